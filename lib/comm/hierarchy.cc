#include "comm/hierarchy.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/sum.h"

namespace trainlaunch {

namespace {

constexpr int64_t piece = Awaited::piece;
// Sums are handed out in blocks of this many elements, which the nearest cache has several of.
constexpr int64_t block = 512;
// How long an orderly end waits for the others to have received everything.
constexpr Seconds farewell{5};

// Names a message among all between two ranks. Ranks that made different calls must not match,
// since Gloo ends a process that receives more than it expected.
uint64_t slot_of(const Call& call, int64_t index) {
  return call.signature + static_cast<uint64_t>(index);
}

// The index of a whole part, beside those of its pieces.
constexpr int64_t whole = -1;

int64_t pieces_of(int64_t count) { return (count + piece - 1) / piece; }

std::string why_not_sent(DType t, DType wire, SumOrder order) {
  if (t != DType::f32) return "only f32 is summed";
  if (wire != DType::f32 && wire != DType::bf16) return "only f32 and bf16 are sent";
  if (wire != DType::f32 && order == SumOrder::tree)
    return "sums in the order of a tree are sent as f32";
  return "";
}

}  // namespace

Hierarchy::Hierarchy(const World& world, std::vector<int> first, std::unique_ptr<Node> node,
                     std::unique_ptr<Mesh> mesh, const CommOptions& options)
    : rank_(world.rank),
      size_(world.size),
      options_(options),
      first_(std::move(first)),
      groups_(plan_groups(first_, options.order)),
      node_(std::move(node)),
      mesh_(std::move(mesh)) {
  my_node_ = node_of(first_, rank_);
  for (const Group& g : groups_)
    if (g.first <= rank_) mine_ = g;
  queue_.emplace(static_cast<Queue::Runner&>(*this), options.timeout);
}

// What was sent last may be lost when its sender hangs up, so nobody does before everyone has said
// that he has received everything. Who has gone already is no error any more.
Hierarchy::~Hierarchy() {
  if (mesh_ && queue_->healthy()) (void)barrier(Deadline::in(farewell));
  queue_.reset();
}

Result<View> Hierarchy::alloc(std::string_view what, DType t, int64_t count) {
  const size_t bytes = std::max<size_t>(static_cast<size_t>(count) * bytes_of(t), 1);
  auto local = node_->alloc(what, bytes, Deadline::in(options_.timeout));
  if (!local) {
    queue_->poison(local.error());
    return forward(local);
  }
  const View own((*local)[node_->me()], t, {count});
  memories_.push_back({own, std::move(*local)});
  return own;
}

Call Hierarchy::collective(Kind kind, View v, const Owners& owners, Event after) const {
  Call call;
  call.kind = kind;
  call.view = v;
  call.owners = owners;
  call.after = std::move(after);
  const auto refuse = [&](const std::string& why) {
    call.refused = why;
    return call;
  };
  const std::vector<int64_t>& begin = owners.begin;
  if (begin.size() != static_cast<size_t>(size_) + 1 || begin.front() != 0 ||
      begin.back() != v.size() || !std::is_sorted(begin.begin(), begin.end()))
    return refuse("the owners' parts do not make up the view");
  const auto* p = static_cast<const std::byte*>(v.p);
  for (size_t i = 0; i < memories_.size(); ++i) {
    const Memory& m = memories_[i];
    const auto* start = static_cast<const std::byte*>(m.own.p);
    if (p < start || p + v.bytes() > start + m.own.bytes()) continue;
    call.memory = i;
    call.offset = static_cast<uint64_t>(p - start);
    for (std::byte* base : m.local) call.local.push_back(base + call.offset);
    return call;
  }
  return refuse("the view is not in memory of this communicator");
}

Ticket Hierarchy::reduce_scatter(View v, const Owners& owners, DType wire, Event after) {
  return issue_sum(Kind::reduce_scatter, v, owners, wire, std::move(after));
}

Ticket Hierarchy::all_reduce(View v, const Owners& owners, DType wire, Event after) {
  return issue_sum(Kind::all_reduce, v, owners, wire, std::move(after));
}

Ticket Hierarchy::issue_sum(Kind kind, View v, const Owners& owners, DType wire, Event after) {
  Call call = collective(kind, v, owners, std::move(after));
  call.wire = wire;
  if (call.refused.empty()) call.refused = why_not_sent(v.t, wire, options_.order);
  return issue(std::move(call));
}

Ticket Hierarchy::all_gather(View v, const Owners& owners, Event after) {
  return issue(collective(Kind::all_gather, v, owners, std::move(after)));
}

Ticket Hierarchy::issue(Call call) {
  Call note;
  note.kind = call.kind;
  note.view = call.view;
  note.ticket = queue_->push(std::move(call));
  return issued_.emplace(note.ticket, note).first->first;
}

Status Hierarchy::wait(Ticket ticket, Deadline deadline) {
  const Node::Idle idle(*node_);
  if (auto done = queue_->wait(ticket, deadline); !done) return done;
  auto issued = issued_.extract(ticket);
  if (!issued) return {};
  if (auto left = node_->wait_left(ticket, deadline); !left) {
    queue_->poison({describe(issued.mapped()) + ": " + left.error().what});
    return queue_->wait(ticket, deadline);
  }
  return {};
}

Status Hierarchy::all_sum(std::span<double> values, Deadline deadline) {
  Call call;
  call.kind = Kind::all_sum;
  call.values = values;
  return run_now(std::move(call), deadline);
}

Status Hierarchy::broadcast(View v, int root, Deadline deadline) {
  Call call;
  call.kind = Kind::broadcast;
  call.view = v;
  call.root = root;
  if (root < 0 || root >= size_) call.refused = "no such root";
  return run_now(std::move(call), deadline);
}

Status Hierarchy::barrier(Deadline deadline) { return run_now(Call(), deadline); }

Status Hierarchy::run_now(Call call, Deadline deadline) {
  const Node::Idle idle(*node_);
  return queue_->run(std::move(call), deadline);
}

void Hierarchy::abort() noexcept { queue_->poison({"the communicator was aborted"}); }

Moved Hierarchy::moved() const { return {sent_, received_, shared_}; }

void Hierarchy::stop(Stop why) noexcept {
  stopped_ = true;
  node_->stop(why);
  if (mesh_) mesh_->stop(why);
}

void Hierarchy::failed(const Error& error) noexcept {
  node_->abort(error.what);
  stop(Stop::aborted);
}

void Hierarchy::shut() noexcept {
  if (mesh_) mesh_->close();
}

Status Hierarchy::run(const Call& call) {
  while (true) {
    auto started = call.after.done();
    if (!started) return forward(started);
    if (*started) break;
    if (stopped_ || call.deadline.over())
      return fail(describe(call) + ": gave up waiting for the device");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const bool trace = options_.trace && call.background;
  Traced span(trace ? options_.trace : nullptr, "comm", trace ? describe(call) : "");
  if (auto done = dispatch(call); !done) return fail(describe(call) + ": " + done.error().what);
  node_->leave();
  return {};
}

Status Hierarchy::dispatch(const Call& call) {
  switch (call.kind) {
    case Kind::reduce_scatter:
      return run_reduce_scatter(call);
    case Kind::all_reduce:
      return run_all_reduce(call);
    case Kind::all_gather:
      return run_all_gather(call);
    case Kind::broadcast:
      return run_broadcast(call);
    case Kind::all_sum:
    case Kind::barrier:
      return run_all_sum(call);
  }
  return {};
}

Status Hierarchy::send(int to, uint64_t slot, const void* p, size_t bytes,
                       std::vector<Transfer>& list) {
  auto t = mesh_->send(to, slot, p, bytes);
  if (!t) return forward(t);
  list.push_back(std::move(*t));
  sent_ += bytes;
  return {};
}

Status Hierarchy::receive(int from, uint64_t slot, void* p, size_t bytes,
                          std::vector<Transfer>& list) {
  auto t = mesh_->receive(from, slot, p, bytes);
  if (!t) return forward(t);
  list.push_back(std::move(*t));
  received_ += bytes;
  return {};
}

Status Hierarchy::finish(std::vector<Transfer>& list, Deadline deadline) {
  for (Transfer& t : list)
    if (auto done = mesh_->finish(t, deadline); !done) return done;
  list.clear();
  return {};
}

// What each rank of a group on this node has there.
void Hierarchy::add_ranks(const Call& call, const Group& group, int64_t offset, int64_t count,
                          std::vector<Branch>& in) {
  for (int r = group.first; r < group.first + group.count; ++r) {
    const auto* data = reinterpret_cast<const float*>(call.local[r - node_->first()]);
    in.push_back({data + offset, 1});
    if (r != rank_) shared_ += static_cast<size_t>(count) * sizeof(float);
  }
}

void Hierarchy::sum(float* out, const std::vector<Branch>& in, int64_t count) const {
  if (options_.order == SumOrder::tree) return sum_as_tree(out, in, count);
  sum_in_order(out, in, count);
}

// What this rank's group has there, into the own view.
void Hierarchy::sum_group(const Call& call, int64_t offset, int64_t count) {
  std::vector<Branch> in;
  add_ranks(call, mine_, offset, count, in);
  sum(call.view.as<float>() + offset, in, count);
}

// With bf16 on the wire the partial sum of every node is rounded, the owner's own too: an element's
// sum does not depend on who owns it.
Status Hierarchy::run_reduce_scatter(const Call& call) {
  const int64_t begin = call.owners.offset(rank_), count = call.owners.count(rank_);
  float* const mine = call.view.as<float>() + begin;
  const int64_t pieces = mesh_ ? pieces_of(count) : 0;
  const size_t unit = bytes_of(call.wire);
  const bool rounded = mesh_ && call.wire == DType::bf16;
  const auto elsewhere = [&](const Group& g) { return g.node != my_node_; };

  // Room for some pieces of each group elsewhere, used in turn.
  const Awaited awaited(count, std::count_if(groups_.begin(), groups_.end(), elsewhere));
  const int64_t window = awaited.window;
  const auto room = [&](int64_t group, int64_t index) {
    return scratch_.data() + (group * window + index % window) * awaited.length;
  };
  std::vector<std::vector<Transfer>> coming(pieces);
  const auto expect = [&](int64_t i) -> Status {
    const int64_t n = std::min(piece, count - i * piece);
    int64_t place = 0;
    for (const Group& g : groups_) {
      if (!elsewhere(g)) continue;
      auto r = receive(g.envoy(rank_), slot_of(call, i), room(place++, i),
                       static_cast<size_t>(n) * unit, coming[i]);
      if (!r) return r;
    }
    return {};
  };
  if (const auto need = static_cast<size_t>(awaited.elements()); scratch_.size() < need)
    scratch_.resize(need);
  for (int64_t i = 0; i < window; ++i)
    if (auto r = expect(i); !r) return r;

  if (auto met = node_->meet(call); !met) return met;

  // For others first, so that it travels while the own part is summed.
  std::vector<Transfer> going;
  if (mesh_) {
    std::vector<int> served;
    int64_t most = 0;
    for (int o = 0; o < size_; ++o) {
      if (o >= first_[my_node_] && o < first_[my_node_ + 1]) continue;
      if (mine_.envoy(o) != rank_) continue;
      served.push_back(o);
      most = std::max(most, pieces_of(call.owners.count(o)));
    }
    for (int64_t i = 0; i < most; ++i) {
      for (int o : served) {
        const int64_t n = std::min(piece, call.owners.count(o) - i * piece);
        if (n <= 0) continue;
        float* const partial = call.view.as<float>() + call.owners.offset(o) + i * piece;
        sum_group(call, partial - call.view.as<float>(), n);
        if (rounded) pack_bf16(partial, n);
        auto s = send(o, slot_of(call, i), partial, static_cast<size_t>(n) * unit, going);
        if (!s) return s;
      }
    }
  }
  sum_group(call, begin, count);
  if (rounded) round_to_bf16(mine, count);

  for (int64_t i = 0; i < pieces; ++i) {
    if (auto done = finish(coming[i], call.deadline); !done) return done;
    const int64_t n = std::min(piece, count - i * piece);
    std::vector<Branch> in;
    int64_t place = 0;
    for (const Group& g : groups_) {
      if (g.first == mine_.first) {
        in.push_back({mine + i * piece, g.count});
      } else if (elsewhere(g)) {
        float* const partial = room(place++, i);
        if (rounded) unpack_bf16(partial, n);
        in.push_back({partial, g.count});
      } else {  // here, where nobody has added it up
        add_ranks(call, g, begin + i * piece, n, in);
      }
    }
    sum(mine + i * piece, in, n);
    if (i + window < pieces)
      if (auto r = expect(i + window); !r) return r;
  }
  return finish(going, call.deadline);
}

// What is read from all ranks is written to all of them at once, block by block from the nearest
// cache: each number is read once and written once for each rank, of which there is no less.
Status Hierarchy::run_all_reduce(const Call& call) {
  if (mesh_) {
    if (auto summed = run_reduce_scatter(call); !summed) return summed;
    return run_all_gather(call);
  }
  if (auto met = node_->meet(call); !met) return met;
  const int64_t begin = call.owners.offset(rank_), end = begin + call.owners.count(rank_);
  std::vector<Branch> in;
  add_ranks(call, mine_, begin, end - begin, in);
  shared_ += static_cast<size_t>(end - begin) * sizeof(float) * (in.size() - 1);
  for (int64_t at = begin; at < end; at += block) {
    const int64_t n = std::min(block, end - at);
    const float* const sums = call.view.as<float>() + at;
    sum(call.view.as<float>() + at, in, n);
    for (int r = 0; r < node_->count(); ++r) {
      if (r != node_->me()) std::copy_n(sums, n, reinterpret_cast<float*>(call.local[r]) + at);
    }
    for (Branch& b : in) b.p += n;
  }
  return {};
}

Status Hierarchy::run_all_gather(const Call& call) {
  const size_t unit = bytes_of(call.view.t);
  std::byte* const own = call.local[node_->me()];
  const auto at = [&](int owner) { return static_cast<size_t>(call.owners.offset(owner)) * unit; };
  const auto size = [&](int owner) { return static_cast<size_t>(call.owners.count(owner)) * unit; };
  const auto is_here = [&](int r) { return r >= first_[my_node_] && r < first_[my_node_ + 1]; };

  std::vector<Transfer> coming, going;
  if (mesh_) {
    for (int o = 0; o < size_; ++o) {
      if (is_here(o) || node_group(my_node_).envoy(o) != rank_ || size(o) == 0) continue;
      auto r = receive(o, slot_of(call, whole), own + at(o), size(o), coming);
      if (!r) return r;
    }
    for (int k = 0; k < nodes() && size(rank_) > 0; ++k) {
      if (k == my_node_) continue;
      auto s = send(node_group(k).envoy(rank_), slot_of(call, whole), own + at(rank_), size(rank_),
                    going);
      if (!s) return s;
    }
    if (auto done = finish(coming, call.deadline); !done) return done;
  }

  if (auto met = node_->meet(call); !met) return met;
  for (int o = 0; o < size_; ++o) {
    const int from = is_here(o) ? o : node_group(my_node_).envoy(o);
    if (from == rank_ || size(o) == 0) continue;
    std::memcpy(own + at(o), call.local[from - node_->first()] + at(o), size(o));
    shared_ += size(o);
  }
  return finish(going, call.deadline);
}

// Every node's first rank has the blocks of its own node (`per_rank` bytes for each rank, in rank
// order, within those of all ranks), and gets the others'.
Status Hierarchy::swap_between_leaders(const Call& call, uint64_t slot, std::byte* blocks,
                                       size_t per_rank) {
  std::vector<Transfer> list;
  for (int k = 0; k < nodes(); ++k) {
    if (k == my_node_) continue;
    auto r = receive(first_[k], slot, blocks + first_[k] * per_rank, count_on(k) * per_rank, list);
    if (!r) return r;
  }
  for (int k = 0; k < nodes(); ++k) {
    if (k == my_node_) continue;
    auto s = send(first_[k], slot, blocks + rank_ * per_rank, count_on(my_node_) * per_rank, list);
    if (!s) return s;
  }
  return finish(list, call.deadline);
}

// A barrier between nodes is a sum that nobody looks at.
Status Hierarchy::run_all_sum(const Call& call) {
  double ignored = 0;
  std::span<double> values = call.values;
  if (values.empty()) {
    if (!mesh_) return node_->meet(call);
    values = std::span(&ignored, 1);
  }
  const size_t most = std::max<size_t>(Node::stage_bytes / sizeof(double) / size_, 1);
  for (size_t done = 0, i = 0; done < values.size(); done += most, ++i) {
    const size_t n = std::min(most, values.size() - done);
    const std::span<double> part = values.subspan(done, n);
    auto* stage = reinterpret_cast<double*>(node_->stage(staged_++ % 2));
    std::copy(part.begin(), part.end(), stage + rank_ * n);
    if (auto met = node_->meet(call); !met) return met;
    if (mesh_) {
      if (node_->me() == 0) {
        auto swapped = swap_between_leaders(call, slot_of(call, static_cast<int64_t>(i)),
                                            reinterpret_cast<std::byte*>(stage), n * 8);
        if (!swapped) return swapped;
      }
      if (auto met = node_->meet(call); !met) return met;
    }
    for (size_t e = 0; e < n; ++e) {
      double sum = stage[e];
      for (int r = 1; r < size_; ++r) sum += stage[r * n + e];
      part[e] = sum;
    }
  }
  return {};
}

Status Hierarchy::run_broadcast(const Call& call) {
  const size_t bytes = call.view.bytes();
  auto* const data = static_cast<std::byte*>(call.view.p);
  const bool root_here = call.root >= first_[my_node_] && call.root < first_[my_node_ + 1];
  const int source = root_here ? call.root : first_[my_node_];  // who has it first on this node
  std::vector<Transfer> going;
  for (size_t at = 0, i = 0; at < bytes; at += Node::stage_bytes, ++i) {
    const size_t n = std::min(Node::stage_bytes, bytes - at);
    const uint64_t slot = slot_of(call, static_cast<int64_t>(i));
    if (rank_ == call.root) {
      for (int k = 0; k < nodes(); ++k) {
        if (k == my_node_) continue;
        if (auto s = send(first_[k], slot, data + at, n, going); !s) return s;
      }
    } else if (rank_ == source) {
      std::vector<Transfer> coming;
      if (auto r = receive(call.root, slot, data + at, n, coming); !r) return r;
      if (auto r = finish(coming, call.deadline); !r) return r;
    }
    if (node_->count() == 1) continue;
    std::byte* stage = node_->stage(staged_++ % 2);
    if (rank_ == source) std::memcpy(stage, data + at, n);
    if (auto met = node_->meet(call); !met) return met;
    if (rank_ != source) std::memcpy(data + at, stage, n);
  }
  return finish(going, call.deadline);
}

}  // namespace trainlaunch
