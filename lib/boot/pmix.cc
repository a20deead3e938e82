#include "boot/pmix.h"

#include "config.h"

#ifdef HAVE_PMIX

#include <pmix.h>

#include <cstring>
#include <future>
#include <thread>

namespace trainlaunch {
namespace {

tl::unexpected<Error> fail_pmix(const std::string& what, pmix_status_t status) {
  return fail("PMIx: " + what + ": " + PMIx_Error_string(status));
}

// Calls of PMIx block without a deadline. One that is late is left to its thread: the process ends
// soon after.
Result<pmix_status_t> within(Deadline deadline, const std::string& what,
                             std::function<pmix_status_t()> call) {
  std::packaged_task<pmix_status_t()> task(std::move(call));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(deadline.at) == std::future_status::timeout)
    return fail("PMIx: " + what + ": the launcher's PMIx server does not answer");
  return result.get();
}

struct Value {
  pmix_value_t* p = nullptr;
  ~Value() {
    if (p) PMIX_VALUE_RELEASE(p);
  }
};

// A fence in flight. Its callback may come after we stopped waiting, so both sides own it.
struct Fence {
  pmix_proc_t procs;
  pmix_info_t collect;
  std::promise<pmix_status_t> answer;
};
void on_fence(pmix_status_t status, void* data) {
  const std::unique_ptr<std::shared_ptr<Fence>> fence(static_cast<std::shared_ptr<Fence>*>(data));
  (*fence)->answer.set_value(status);
}

class Pmix final : public Bootstrap {
 public:
  Status connect(Deadline deadline) {
    auto me = std::make_shared<pmix_proc_t>();
    auto status = within(deadline, "init", [me] { return PMIx_Init(me.get(), nullptr, 0); });
    if (!status) return forward(status);
    if (*status != PMIX_SUCCESS) return fail_pmix("init", *status);
    me_ = *me;
    return {};
  }

  Status learn_world(const Environment& env) {
    auto size = job_size();
    if (!size) return forward(size);
    if (Status s = check_world(env, me_.nspace, *size); !s) return s;
    auto hosts = hosts_of_ranks(*size);
    if (!hosts) return forward(hosts);
    auto world = arrange(me_.rank, *hosts);
    if (!world) return forward(world);
    world_ = std::move(*world);
    return {};
  }

  const World& world() const override { return world_; }

  Result<std::string> share(std::string_view from_rank0, Deadline deadline) override {
    if (world_.rank == 0)
      if (Status s = put(from_rank0); !s) return forward(s);
    if (auto s = PMIx_Commit(); s != PMIX_SUCCESS) return fail_pmix("commit", s);
    if (Status s = fence(deadline); !s) return forward(s);
    return get_from_rank0(deadline);
  }

  void abort(int code) override {
    (void)within(Deadline::in(Seconds(3)), "abort",
                 [code] { return PMIx_Abort(code, "train-launch", nullptr, 0); });
  }

  Status finalize(Deadline deadline) override {
    auto status = within(deadline, "finalize", [] { return PMIx_Finalize(nullptr, 0); });
    if (!status) return forward(status);
    if (*status != PMIX_SUCCESS) return fail_pmix("finalize", *status);
    return {};
  }

 private:
  static constexpr const char* key = "train-launch";

  pmix_proc_t whole_job() const {
    pmix_proc_t all;
    PMIX_LOAD_PROCID(&all, me_.nspace, PMIX_RANK_WILDCARD);
    return all;
  }

  Result<uint32_t> job_size() const {
    const pmix_proc_t all = whole_job();
    Value v;
    if (auto s = PMIx_Get(&all, PMIX_JOB_SIZE, nullptr, 0, &v.p); s != PMIX_SUCCESS)
      return fail_pmix("the size of the job", s);
    // Servers differ in the integer type they use.
    pmix_status_t s = PMIX_SUCCESS;
    uint32_t size = 0;
    PMIX_VALUE_GET_NUMBER(s, v.p, size, uint32_t);
    if (s != PMIX_SUCCESS || size == 0) return fail_pmix("the size of the job", s);
    return size;
  }

  Result<std::vector<std::string>> hosts_of_ranks(uint32_t size) const {
    char* list = nullptr;
    if (auto s = PMIx_Resolve_nodes(me_.nspace, &list); s != PMIX_SUCCESS || !list)
      return fail_pmix("the nodes of the job", s);
    const std::unique_ptr<char, void (*)(void*)> owner(list, std::free);
    std::vector<std::string> hosts(size);
    char* rest = nullptr;
    for (char* node = strtok_r(list, ",", &rest); node; node = strtok_r(nullptr, ",", &rest)) {
      pmix_proc_t* procs = nullptr;
      size_t n = 0;
      if (auto s = PMIx_Resolve_peers(node, me_.nspace, &procs, &n); s != PMIX_SUCCESS)
        return fail_pmix(std::string("the ranks on ") + node, s);
      for (size_t i = 0; i < n; ++i)
        if (procs[i].rank < size) hosts[procs[i].rank] = node;
      PMIX_PROC_FREE(procs, n);
    }
    return hosts;
  }

  static Status put(std::string_view bytes) {
    pmix_value_t v;
    PMIX_VALUE_CONSTRUCT(&v);
    v.type = PMIX_BYTE_OBJECT;
    std::string copy(bytes);
    v.data.bo.bytes = copy.data();
    v.data.bo.size = copy.size();
    if (auto s = PMIx_Put(PMIX_GLOBAL, key, &v); s != PMIX_SUCCESS) return fail_pmix("put", s);
    return {};
  }

  Status fence(Deadline deadline) const {
    auto f = std::make_shared<Fence>();
    auto result = f->answer.get_future();
    f->procs = whole_job();
    const bool yes = true;
    PMIX_INFO_LOAD(&f->collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    auto handed = std::make_unique<std::shared_ptr<Fence>>(f);
    const auto s = PMIx_Fence_nb(&f->procs, 1, &f->collect, 1, on_fence, handed.get());
    if (s != PMIX_SUCCESS) return fail_pmix("fence", s);
    handed.release();
    if (result.wait_until(deadline.at) == std::future_status::timeout)
      return fail("not all " + std::to_string(world_.size) +
                  " ranks have reached the bootstrap in time (PMIx does not tell which); see "
                  "whether every node started its tasks");
    if (const auto end = result.get(); end != PMIX_SUCCESS) return fail_pmix("fence", end);
    return {};
  }

  Result<std::string> get_from_rank0(Deadline deadline) const {
    auto first = std::make_shared<pmix_proc_t>();
    PMIX_LOAD_PROCID(first.get(), me_.nspace, 0);
    auto v = std::make_shared<Value>();
    auto s = within(deadline, "get",
                    [first, v] { return PMIx_Get(first.get(), key, nullptr, 0, &v->p); });
    if (!s) return forward(s);
    if (*s != PMIX_SUCCESS) return fail_pmix("what rank 0 has put", *s);
    if (v->p->type != PMIX_BYTE_OBJECT) return fail("PMIx: rank 0 has put another type");
    return std::string(v->p->data.bo.bytes, v->p->data.bo.size);
  }

  pmix_proc_t me_{};
  World world_;
};

}  // namespace

Result<std::unique_ptr<Bootstrap>> make_pmix_bootstrap(const Environment& env, Deadline deadline) {
  auto p = std::make_unique<Pmix>();
  if (Status s = p->connect(deadline); !s) return forward(s);
  if (Status s = p->learn_world(env); !s) {
    // A client that ends without taking leave is a crash to the server, with a code of its own.
    (void)p->finalize(Deadline::in(Seconds(5)));
    return forward(s);
  }
  return p;
}

}  // namespace trainlaunch

#else

namespace trainlaunch {

Result<std::unique_ptr<Bootstrap>> make_pmix_bootstrap(const Environment&, Deadline) {
  return fail(
      "this train-launch was built without PMIx, so it cannot join the other tasks; build "
      "it with --with-pmix, or start one task",
      exit_code::usage);
}

}  // namespace trainlaunch

#endif
