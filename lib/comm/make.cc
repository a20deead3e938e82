#include <algorithm>
#include <bit>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "comm/hierarchy.h"
#include "comm/kinds.h"
#include "comm/route.h"

namespace trainlaunch {

namespace {

// What each rank tells the others before they choose.
struct Hello {
  uint64_t nonce = 0;
  bool sockets = false;  // to the other ranks of its node
  std::vector<std::string> addresses;

  std::string text() const {
    return nlohmann::json{{"nonce", nonce}, {"sockets", sockets}, {"addresses", addresses}}.dump();
  }
  static Result<Hello> parse(const std::string& text) {
    const auto j = nlohmann::json::parse(text, nullptr, false);
    if (j.is_discarded() || !j.is_object()) return fail("a rank sent no greeting");
    try {
      return Hello{j.at("nonce").get<uint64_t>(), j.at("sockets").get<bool>(),
                   j.at("addresses").get<std::vector<std::string>>()};
    } catch (const nlohmann::json::exception&) {
      return fail("a rank sent a greeting of another version");
    }
  }
};

uint64_t random_number() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

Result<std::vector<Hello>> greet(Control& control, const Hello& mine, Deadline deadline) {
  auto texts = control.gather("communicator: greeting", mine.text(), deadline);
  if (!texts) return forward(texts);
  std::vector<Hello> all;
  for (const std::string& text : *texts) {
    auto hello = Hello::parse(text);
    if (!hello) return forward(hello);
    all.push_back(std::move(*hello));
  }
  return all;
}

// The memory of this node if all its ranks share it, else null.
Result<std::unique_ptr<Node>> share(Control& control, const std::vector<int>& sockets,
                                    const std::vector<Hello>& all, Deadline deadline) {
  const World& w = control.world();
  const int first = w.rank - w.local_rank;
  std::vector<uint64_t> nonces;
  bool possible = w.local_size > 1;
  for (int r = first; r < first + w.local_size; ++r) {
    nonces.push_back(all[r].nonce);
    possible = possible && all[r].sockets;
  }
  std::unique_ptr<Node> node;
  if (possible) {
    auto joined = Node::join(w, sockets, all[w.rank].nonce, deadline);
    if (joined) node = std::move(*joined);
  }
  // Everyone has written before anyone reads.
  auto written = control.gather("communicator: shared memory", "", deadline);
  if (!written) return forward(written);
  if (node && !node->verify(nonces)) node.reset();
  return node;
}

// The first rank of each group that shares memory, and the number of ranks at the end. A node on
// which one rank does not share falls into single ranks.
std::vector<int> group(const World& w, const std::vector<std::string>& shares) {
  std::vector<int> first;
  for (int begin = 0, end; begin < w.size; begin = end) {
    bool all = true;
    for (end = begin; end < w.size && w.node_of[end] == w.node_of[begin]; ++end)
      all = all && shares[end] == "yes";
    for (int r = begin; r < end; ++r)
      if (r == begin || !all) first.push_back(r);
  }
  first.push_back(w.size);
  return first;
}

std::string wanted_interface(const CommOptions& options) {
  if (!options.interface.empty()) return options.interface;
  const char* set = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string list = set ? set : "";
  return list.substr(0, list.find(','));
}

Result<std::unique_ptr<Mesh>> connect(Control& control, const std::vector<LocalAddress>& own,
                                      const std::vector<Hello>& all, const CommOptions& options,
                                      Deadline deadline) {
  const World& w = control.world();
  // The next rank of another node; on one node, the next rank.
  int peer = (w.rank + 1) % w.size;
  for (int i = 1; i < w.size; ++i) {
    const int r = (w.rank + i) % w.size;
    if (w.node_of[r] == w.node_of[w.rank]) continue;
    peer = r;
    break;
  }
  auto address = choose_address(wanted_interface(options), own, all[peer].addresses);
  if (!address) return fail(describe_rank(w, w.rank) + ": " + address.error().what);
  return connect_mesh(control, *address, deadline);
}

}  // namespace

Result<std::unique_ptr<Comm>> make_comm(Control& control, const std::vector<int>& local_sockets,
                                        const CommOptions& options) {
  const World& w = control.world();
  if (w.size == 1) return make_single_comm();
  constexpr size_t most = Node::stage_bytes / sizeof(double);
  if (static_cast<size_t>(w.size) > most)
    return fail(std::to_string(w.size) + " ranks are more than the " + std::to_string(most) +
                    " that this communicator has room for",
                exit_code::usage);
  if (options.order == SumOrder::tree && !std::has_single_bit(static_cast<unsigned>(w.size)))
    return fail(std::to_string(w.size) + " ranks are no power of two: their sums make no tree");
  const Deadline deadline = Deadline::in(options.timeout);

  const std::vector<LocalAddress> own = own_addresses();
  Hello hello{random_number(), local_sockets.size() == static_cast<size_t>(w.local_size), {}};
  for (const LocalAddress& a : own) hello.addresses.push_back(a.ip);
  auto all = greet(control, hello, deadline);
  if (!all) return forward(all);

  auto node = share(control, local_sockets, *all, deadline);
  if (!node) return forward(node);
  auto shares = control.gather("communicator: who shares memory", *node ? "yes" : "no", deadline);
  if (!shares) return forward(shares);
  std::vector<int> first = group(w, *shares);
  const bool alone = std::find(first.begin(), first.end(), w.rank) != first.end() &&
                     std::find(first.begin(), first.end(), w.rank + 1) != first.end();
  if (alone || !*node) *node = Node::alone(w);

  std::unique_ptr<Mesh> mesh;
  if (first.size() > 2) {
    auto connected = connect(control, own, *all, options, deadline);
    if (!connected) return forward(connected);
    mesh = std::move(*connected);
  }
  return std::make_unique<Hierarchy>(w, std::move(first), std::move(*node), std::move(mesh),
                                     options);
}

}  // namespace trainlaunch
