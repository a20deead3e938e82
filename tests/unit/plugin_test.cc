// The parts of gpu_bind.so below Slurm's hooks: options, what was asked of Slurm, and the bounds of
// a rank.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sched.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "../../spank/apply.h"
#include "../../spank/asked.h"
#include "../../spank/options.h"
#include "plugin_parts.h"

using namespace trainlaunch;
using namespace trainlaunch::plugin;

TEST_CASE("options take what their help says") {
  const auto all = [](int id, std::initializer_list<const char*> values, bool valid) {
    for (const char* v : values) {
      CAPTURE(v);
      CHECK(valid_option(id, v) == valid);
    }
  };
  all(policy, {"auto", "closest", "off", "map:0", "map:3,2,1,0", "map:0*2,4095*1024"}, true);
  all(policy,
      {"",       "help",   "AUTO",    "auto ",      "au",       "auto,off",  "map",
       "map:",   "map:,",  "map:0,",  "map:,0",     "map:0,,1", "map:-1",    "map:0-3",
       "map:0*", "map:*2", "map:0*0", "map:0*1025", "map:4096", "map:0*2*2", "map:99999999999",
       "map:0 ", "map:0x1"},
      false);
  all(visible, {"ordered", "own", "auto"}, true);
  all(cpu, {"local", "numa", "off", "local,smt=1"}, true);
  all(cpu, {"local,smt=", "off,smt=1", "smt=1", "local,"}, false);
  all(mem, {"preferred", "bind", "off"}, true);
  all(nic, {"auto", "closest", "all", "off", "list:mlx5_0,mlx5_1:1"}, true);
  all(nic, {"list:", "list:../x", "mlx5_0", "list:a\nb"}, false);
  all(env, {"keep", "set", "off"}, true);
  all(report, {"none", "summary", "full", "json", "doctor"}, true);
  all(strict, {"yes", "no"}, true);
  all(strict, {"maybe", "1", "true"}, false);
  const std::string longest = "list:" + std::string(Options::max_value - 6, '1');
  CHECK(valid_option(nic, longest));
  CHECK_FALSE(valid_option(nic, longest + "1"));
  CHECK_FALSE(valid_option(nic, std::string_view("list:0\0001", 8)));
}

TEST_CASE("a wrong option is kept out, and its refusal is one printable line") {
  Options o;
  CHECK_FALSE(o.any());
  CHECK(o.set(policy, "off"));
  CHECK_FALSE(o.set(policy, "nonsense"));
  CHECK(o.get(policy) == "off");
  CHECK_FALSE(o.has(cpu));
  CHECK(o.any());
  CHECK(refusal(policy, false, "bogus").view() ==
        "--gpu-bind-policy=bogus: no such value; use auto, closest, map:<gpus>, off or help");
  const Reason r = refusal(strict, true, "\x1b" + std::string(5000, 'x'));
  CHECK(starts_with(r.view(), "GPU_BIND_STRICT=?xxx"));
  CHECK(all_printable(r.view()));
  CHECK_FALSE(r.cut());
}

TEST_CASE("a wrong option alone still asks for binding") {
  Options o;
  CHECK_FALSE(o.set(report, "everything"));
  CHECK(o.any());
}

TEST_CASE("srun's own words, in each part of a heterogeneous step") {
  const auto own = [](std::vector<const char*> words, std::vector<const char*> command) {
    std::vector<char*> argv;
    for (const char* w : command) argv.push_back(const_cast<char*>(w));
    const WordRange r = options_for(words.data(), static_cast<int>(words.size()), argv.data(),
                                    static_cast<int>(argv.size()));
    return std::vector<std::string>(words.begin() + r.begin, words.begin() + r.end);
  };
  using Words = std::vector<std::string>;
  CHECK(own({"srun", "-n2", "prog", "-x"}, {"/usr/bin/prog", "-x"}) == Words{"srun", "-n2"});
  const std::vector<const char*> parts = {"srun", "-n1", "a", ":", "--gpus-per-task=1", "b", "-n1"};
  CHECK(own(parts, {"a"}) == Words{"srun", "-n1"});
  CHECK(own(parts, {"/b", "-n1"}) == Words{"--gpus-per-task=1"});
  // A command that is not found there: by its length, as if there were one part.
  CHECK(own({"srun", "-n1", "a", "b"}, {"c", "d"}) == Words{"srun", "-n1"});
  CHECK(own({"srun"}, {"c", "d"}).empty());
  CHECK(own({"srun", "-n1"}, {}) == Words{"srun", "-n1"});
}

TEST_CASE("srun's words about GPUs") {
  const auto binds = [](std::initializer_list<const char*> words, const char* variable = nullptr) {
    GpuRequest r;
    r.option("--gpu-bind", variable);
    for (const char* w : words) r.argument(w);
    return r.binds();
  };
  CHECK_FALSE(binds({"srun", "-n2", "--gpus-per-node=2", "--gpu-bind-policy=auto"}));
  CHECK(binds({"srun", "--gpus-per-task=1"}));
  CHECK(binds({"srun", "--gpus-per-task", "1"}));
  CHECK(binds({"srun", "--ntasks-per-gpu=1"}));
  CHECK(binds({"srun", "--gpu-bind=closest"}));
  CHECK(binds({"srun", "--gpu-bind", "single:1"}));
  CHECK(binds({"srun", "--gpu-bind=verbose,closest"}));
  CHECK(binds({"srun", "--tres-bind=gres/gpu:single:1"}));
  CHECK(binds({"srun", "--tres-per-task=cpu:2,gres/gpu:1"}));
  CHECK_FALSE(binds({"srun", "--tres-per-task=cpu:2"}));
  CHECK_FALSE(binds({"srun", "--gpu-bind=none"}));
  CHECK_FALSE(binds({"srun", "--gpu-bind=verbose"}));
  CHECK_FALSE(binds({"srun", "--gpu-bind=verbose,none", "--gpus-per-task=1"}));
  CHECK_FALSE(binds({"srun", "--gpus-per-task=1", "--gpu-bind=none"}));
  CHECK(binds({"srun"}, "closest"));
  CHECK_FALSE(binds({"srun", "--gpu-bind=none"}, "closest"));

  Asked a;
  CHECK(a.text().view() == "none");
  a.cpu = a.gpu = true;
  CHECK(a.text().view() == "cpu,gpu");
  const Asked back = parse_asked("gpu,junk,,cpu");
  CHECK(back.cpu);
  CHECK(back.gpu);
  CHECK_FALSE(back.mem);
  CHECK_FALSE(parse_asked("none").any());
}

TEST_CASE("a mask is never emptied, and widened only where the plan may replace it") {
  CpuBits before, now, none_such;
  auto* const set = reinterpret_cast<cpu_set_t*>(before.word);
  REQUIRE(sched_getaffinity(0, sizeof before.word, set) == 0);
  const std::vector<int> allowed = members(before);
  const auto mask = [&] {
    REQUIRE(sched_getaffinity(0, sizeof now.word, reinterpret_cast<cpu_set_t*>(now.word)) == 0);
    return members(now);
  };

  Reason why;
  none_such.set(8191);  // no machine of ours has it
  for (const Within within : {Within::mask, Within::cpuset}) {
    CHECK_FALSE(apply_cpus(none_such, within, why));
    CHECK(starts_with(why.view(), "CPUs 8191 are not among its allowed ones"));
    CHECK(mask() == allowed);
  }

  CpuBits first, last = none_such;
  first.set(allowed.front());
  last.set(allowed.back());
  CHECK(apply_cpus(last, Within::mask, why));
  CHECK(mask() == std::vector<int>{allowed.back()});
  if (allowed.size() > 1) {
    CHECK_FALSE(apply_cpus(first, Within::mask, why));
    CHECK(mask() == std::vector<int>{allowed.back()});
    CHECK(apply_cpus(first, Within::cpuset, why));
    CHECK(mask() == std::vector<int>{allowed.front()});
  }
  // A failure does not leave it wide.
  const std::vector<int> narrow = mask();
  CHECK_FALSE(apply_cpus(none_such, Within::cpuset, why));
  CHECK(mask() == narrow);
  REQUIRE(sched_setaffinity(0, sizeof before.word, set) == 0);
}

TEST_CASE("memory policies that the kernel refuses are told, not fatal") {
  MemBits none_such;
  none_such.set(1023);
  Reason why;
  CHECK(apply_mems(MemPolicy::leave, none_such, why));
  CHECK_FALSE(apply_mems(MemPolicy::bind, none_such, why));
  CHECK(starts_with(why.view(), "memory nodes 1023: "));
}
