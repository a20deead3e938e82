#include "boot/session.h"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>

#include "boot/local_sockets.h"
#include "boot/net.h"

namespace trainlaunch {
namespace {

constexpr const char* loopback = "127.0.0.1";
constexpr Seconds local_limit{4};  // nothing is said to the hub meanwhile: well within its silence

// What rank 0 shares, and what all say to each other afterwards, travels as Messages: their coding
// is there and bounded.
struct Invitation {
  Secret secret{};
  Link::Place hub;
};

std::string encode_invitation(const Invitation& i, const std::string& version) {
  Message m;
  m.name = version;
  m.number = i.hub.port;
  m.values.emplace_back(i.secret.begin(), i.secret.end());
  m.values.insert(m.values.end(), i.hub.addresses.begin(), i.hub.addresses.end());
  return encode(m);
}

Result<Invitation> decode_invitation(const std::string& bytes, const std::string& version) {
  auto m = decode(bytes);
  if (!m) return forward(m);
  if (m->name != version)
    return fail("rank 0 runs train-launch " + m->name + ", this rank " + version +
                    "; install one version on all nodes",
                exit_code::usage);
  Invitation i;
  if (m->values.empty() || m->values[0].size() != i.secret.size())
    return fail("control channel: a malformed invitation");
  std::copy(m->values[0].begin(), m->values[0].end(), i.secret.begin());
  i.hub.port = static_cast<int>(m->number);
  i.hub.addresses.assign(m->values.begin() + 1, m->values.end());
  return i;
}

Hub::Listen reach_of(const World& w) {
  if (w.size == 1) return Hub::Listen::nowhere;
  return w.nodes.size() == 1 ? Hub::Listen::loopback : Hub::Listen::everywhere;
}

std::vector<std::string> addresses_for(const World& w) {
  if (w.nodes.size() == 1) return {loopback};
  std::vector<std::string> out;
  for (const LocalAddress& a : own_addresses())
    if (!a.loopback) out.push_back(a.ip);
  return out;
}

// Rank 0's own line to its hub needs no port.
Result<Link> join_own(Hub& hub, const Link::Options& options, Deadline deadline) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
    return fail_errno("socketpair");
  hub.adopt(Fd(pair[0]));
  return Link::join(Fd(pair[1]), options, deadline, deadline);
}

Status join_all(Session& s, Bootstrap& bootstrap, const std::string& version, Pace pace,
                Deadline deadline) {
  Invitation mine;
  if (s.world.rank == 0) {
    auto secret = make_secret();
    if (!secret) return forward(secret);
    auto hub = Hub::start({s.world, *secret, reach_of(s.world), pace});
    if (!hub) return forward(hub);
    s.hub = std::move(*hub);
    mine.secret = *secret;
    mine.hub.port = s.hub->port();
    mine.hub.addresses = addresses_for(s.world);
  }
  auto shared = bootstrap.share(encode_invitation(mine, version), deadline);
  if (!shared) return forward(shared);
  auto theirs = decode_invitation(*shared, version);
  if (!theirs) return forward(theirs);
  const Link::Options options{
      theirs->secret,
      {static_cast<uint32_t>(s.world.rank), static_cast<uint32_t>(s.world.generation)},
      s.world.size,
      pace};
  auto link =
      s.hub ? join_own(*s.hub, options, deadline) : Link::join(theirs->hub, options, deadline);
  if (!link) return forward(link);
  s.link = std::move(*link);
  return {};
}

Result<std::vector<Message>> gather(Session& s, const std::string& name, const Message& mine,
                                    Deadline deadline) {
  Message call;
  call.kind = Message::Kind::gather;
  call.name = name;
  call.values = {encode(mine)};
  auto answers = s.link->call(call, deadline);
  if (!answers) return forward(answers);
  if (answers->size() != static_cast<size_t>(s.world.size))
    return fail("control channel: an answer of the wrong size");
  std::vector<Message> out;
  for (const std::string& a : *answers) {
    auto m = decode(a);
    if (!m) return forward(m);
    out.push_back(std::move(*m));
  }
  return out;
}

// Two rounds: what each rank offers, and what came of it. A node whose ranks did not all find each
// other has no local sockets; that is no error.
Status meet(Session& s, Deadline deadline) {
  const World& w = s.world;
  auto listener = LocalListener::open();
  Message offer;
  offer.name = s.link->hub_address();
  if (listener) offer.values = {listener->card().name, listener->card().nonce};
  auto offers = gather(s, "local sockets", offer, deadline);
  if (!offers) return forward(offers);

  std::vector<LocalListener::Card> cards;
  for (int r = 0; r < w.size; ++r)
    if (w.node_of[r] == w.node && (*offers)[r].values.size() == 2)
      cards.push_back({(*offers)[r].values[0], (*offers)[r].values[1]});
  bool connected = w.local_size == 1;
  if (w.local_size > 1 && listener && cards.size() == static_cast<size_t>(w.local_size)) {
    const Deadline soon = Deadline::in(local_limit);
    auto sockets = listener->connect(cards, w.local_rank, soon.at < deadline.at ? soon : deadline);
    connected = sockets.has_value();
    if (sockets) s.local_sockets = std::move(*sockets);
  }

  Message outcome;
  outcome.number = connected;
  if (w.rank == 0) {
    auto port = free_port();
    if (!port) return forward(port);
    outcome.name = std::to_string(*port);
  }
  auto outcomes = gather(s, "start", outcome, deadline);
  if (!outcomes) return forward(outcomes);
  for (int r = 0; r < w.size; ++r)
    if (w.node_of[r] == w.node && (*outcomes)[r].number == 0) s.local_sockets.clear();

  const std::string& port = outcomes->front().name;
  std::from_chars(port.data(), port.data() + port.size(), s.main_port);
  s.main_address = loopback;
  for (int r = 0; r < w.size; ++r) {
    if (w.node_of[r] == w.node_of[0]) continue;
    s.main_address = (*offers)[r].name;
    break;
  }
  return {};
}

}  // namespace

Result<Session> open_session(Bootstrap& bootstrap, const std::string& version, Pace pace,
                             Deadline deadline) {
  Session s;
  s.world = bootstrap.world();
  if (Status ok = join_all(s, bootstrap, version, pace, deadline); !ok) return forward(ok);
  if (Status ok = meet(s, deadline); !ok) return forward(ok);
  return s;
}

}  // namespace trainlaunch
