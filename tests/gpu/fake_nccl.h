// NCCL for ranks that are threads, on a FakeDevice: calls return before anything is under way, work
// waits in its stream for the other ranks, and what NCCL forbids is counted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/nccl/nccl_library.h"
#include "tests/gpu/fake_device.h"

namespace trainlaunch::testing::fake_nccl {

enum class Kind { reduce_scatter, reduce, all_gather, broadcast, send, receive };

struct Operation {
  Kind kind;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  int peer;  // or root
  ncclComm_t comm;
  FakeStream* stream;
  uint64_t number = 0;  // of a collective, in the order of the calls
};

// All ranks with one id.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  bool aborted = false;
  struct Collective {
    std::vector<std::vector<std::byte>> in;  // by rank
    int arrived = 0;
    Kind kind{};
    size_t count = 0;
    int root = 0;
  };
  std::map<uint64_t, Collective> collectives;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail;  // from, to
};

struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> worlds;
  std::atomic<int> ids{0};
  std::atomic<int> violations{0};  // of what NCCL asks of its callers
  std::atomic<int> allocations{0}, registrations{0}, communicators{0};
  std::atomic<bool> no_memory{false};
};
inline State state;

}  // namespace trainlaunch::testing::fake_nccl

struct ncclComm {
  std::shared_ptr<trainlaunch::testing::fake_nccl::World> world;
  int rank = 0;
  int unfinished = 0;  // how often it is still asked before the last call is under way
  uint64_t collectives = 0;
};

namespace trainlaunch::testing::fake_nccl {

inline thread_local int depth = 0;
inline thread_local std::vector<Operation> group;

inline size_t size_of(ncclDataType_t t) {
  return t == ncclFloat64 ? 8 : t == ncclBfloat16 ? 2 : t == ncclUint8 ? 1 : 4;
}

inline void execute(const Operation& op) {
  World& world = *op.comm->world;
  const int rank = op.comm->rank;
  const size_t bytes = op.count * size_of(op.type);
  const auto* in = static_cast<const std::byte*>(op.in);
  std::unique_lock lock(world.mutex);
  const auto wait = [&](auto ready) {
    world.changed.wait(lock, [&] { return world.aborted || ready(); });
    return !world.aborted;
  };
  if (op.kind == Kind::send) {
    world.mail[{rank, op.peer}].emplace_back(in, in + bytes);
    world.changed.notify_all();
    return;
  }
  if (op.kind == Kind::receive) {
    auto& box = world.mail[{op.peer, rank}];
    if (!wait([&] { return !box.empty(); })) return;
    if (box.front().size() != bytes) ++state.violations;
    std::memcpy(op.out, box.front().data(), std::min(bytes, box.front().size()));
    box.pop_front();
    return;
  }

  World::Collective& c = world.collectives[op.number];
  if (c.arrived == 0) {
    c.in.resize(static_cast<size_t>(world.size));
    c.kind = op.kind;
    c.count = op.count;
    c.root = op.peer;
  }
  if (c.kind != op.kind || c.count != op.count || c.root != op.peer) ++state.violations;
  const size_t taken = op.kind == Kind::reduce_scatter ? bytes * world.size : bytes;
  c.in[rank].assign(in, in + taken);
  ++c.arrived;
  world.changed.notify_all();
  if (!wait([&] { return c.arrived == world.size; })) return;

  auto* out = static_cast<std::byte*>(op.out);
  switch (op.kind) {
    case Kind::reduce:
      if (rank != op.peer) return;
      [[fallthrough]];
    case Kind::reduce_scatter: {  // in an order of its own: from the last rank down
      const size_t first = op.kind == Kind::reduce_scatter ? op.count * rank : 0;
      for (size_t i = 0; i < op.count; ++i) {
        float sum = 0;
        for (int r = world.size - 1; r >= 0; --r)
          sum += reinterpret_cast<const float*>(c.in[r].data())[first + i];
        std::memcpy(out + i * sizeof(float), &sum, sizeof(sum));
      }
      return;
    }
    case Kind::all_gather:
      for (int r = 0; r < world.size; ++r) std::memcpy(out + r * bytes, c.in[r].data(), bytes);
      return;
    default:
      std::memcpy(out, c.in[op.peer].data(), bytes);
  }
}

// Every call that sets something going passes here.
inline ncclResult_t begin(ncclComm_t comm) {
  if (comm->unfinished > 0) ++state.violations;
  comm->unfinished = 3;
  return ncclInProgress;
}
inline ncclResult_t enqueue(Operation op) {
  if (op.kind != Kind::send && op.kind != Kind::receive) op.number = ++op.comm->collectives;
  if (depth > 0) {
    group.push_back(op);
    return ncclSuccess;
  }
  const ncclResult_t r = begin(op.comm);
  op.stream->push([op] { execute(op); });
  return r;
}
inline FakeStream* stream_of(cudaStream_t s) {
  return static_cast<FakeStream*>(static_cast<void*>(s));
}
inline void leave(ncclComm_t comm, bool aborted) {
  {
    std::lock_guard lock(comm->world->mutex);
    comm->world->aborted = comm->world->aborted || aborted;
    comm->world->changed.notify_all();
  }
  --state.communicators;
  // Not deleted: work in a stream may still look at it.
}

inline NcclLibrary library() {
  NcclLibrary l;
  l.ncclGetVersion = [](int* v) {
    *v = NCCL_VERSION_CODE;
    return ncclSuccess;
  };
  l.ncclGetErrorString = [](ncclResult_t r) {
    return r == ncclRemoteError ? "remote process exited" : "an error of NCCL";
  };
  l.ncclGetUniqueId = [](ncclUniqueId* id) {
    std::memset(id, 0xa5, sizeof(*id));
    std::snprintf(id->internal, sizeof(id->internal), "id %d", ++state.ids);
    return ncclSuccess;
  };
  l.ncclCommInitRankConfig = [](ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                ncclConfig_t* config) {
    if (config->blocking != 0) ++state.violations;
    *comm = new ncclComm;
    ++state.communicators;
    {
      std::lock_guard lock(state.mutex);
      auto& world = state.worlds[std::string(id.internal, sizeof(id.internal))];
      if (!world) world = std::make_shared<World>();
      (*comm)->world = world;
    }
    (*comm)->rank = rank;
    World& w = *(*comm)->world;
    std::lock_guard lock(w.mutex);
    w.size = size;
    ++w.joined;
    return begin(*comm);
  };
  l.ncclCommGetAsyncError = [](ncclComm_t comm, ncclResult_t* r) {
    World& w = *comm->world;
    std::lock_guard lock(w.mutex);
    if (comm->unfinished > 0 && w.joined == w.size) --comm->unfinished;
    *r = w.aborted ? ncclRemoteError : comm->unfinished > 0 ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
  };
  l.ncclCommFinalize = begin;
  l.ncclCommDestroy = [](ncclComm_t comm) {
    leave(comm, false);
    return ncclSuccess;
  };
  l.ncclCommAbort = [](ncclComm_t comm) {
    leave(comm, true);
    return ncclSuccess;
  };
  l.ncclMemAlloc = [](void** p, size_t bytes) {
    if (state.no_memory) return ncclInvalidUsage;
    *p = std::malloc(bytes);
    std::memset(*p, 0xff, bytes);
    ++state.allocations;
    return ncclSuccess;
  };
  l.ncclMemFree = [](void* p) {
    std::free(p);
    --state.allocations;
    return ncclSuccess;
  };
  l.ncclCommRegister = [](ncclComm_t, void* p, size_t, void** handle) {
    *handle = p;
    ++state.registrations;
    return ncclSuccess;
  };
  l.ncclCommDeregister = [](ncclComm_t, void*) {
    --state.registrations;
    return ncclSuccess;
  };
  l.ncclGroupStart = [] {
    ++depth;
    return ncclSuccess;
  };
  l.ncclGroupEnd = [] {
    if (--depth > 0 || group.empty()) return ncclSuccess;
    const ncclResult_t r = begin(group.front().comm);
    for (const Operation& op : group) op.stream->push([op] { execute(op); });
    group.clear();
    return r;
  };
  l.ncclSend = [](const void* p, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                  cudaStream_t s) {
    return enqueue({Kind::send, p, nullptr, n, t, peer, c, stream_of(s)});
  };
  l.ncclRecv = [](void* p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return enqueue({Kind::receive, nullptr, p, n, t, peer, c, stream_of(s)});
  };
  l.ncclReduceScatter = [](const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t,
                           ncclComm_t c, cudaStream_t s) {
    return enqueue({Kind::reduce_scatter, in, out, n, t, 0, c, stream_of(s)});
  };
  l.ncclReduce = [](const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t, int root,
                    ncclComm_t c, cudaStream_t s) {
    return enqueue({Kind::reduce, in, out, n, t, root, c, stream_of(s)});
  };
  l.ncclAllGather = [](const void* in, void* out, size_t n, ncclDataType_t t, ncclComm_t c,
                       cudaStream_t s) {
    return enqueue({Kind::all_gather, in, out, n, t, 0, c, stream_of(s)});
  };
  l.ncclBroadcast = [](const void* in, void* out, size_t n, ncclDataType_t t, int root,
                       ncclComm_t c, cudaStream_t s) {
    return enqueue({Kind::broadcast, in, out, n, t, root, c, stream_of(s)});
  };
  return l;
}

}  // namespace trainlaunch::testing::fake_nccl
