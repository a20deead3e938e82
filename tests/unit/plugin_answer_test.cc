// The planner's answers as gpu_bind.so reads them, of planners that mean harm, too.
#include <doctest/doctest.h>

#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "plugin_parts.h"

using namespace trainlaunch;
using namespace trainlaunch::plugin;

namespace {

const std::string good =
    "gpu-bind-wire 1\n"
    "digest 0123abCD\n"
    "say the node\n"
    "warn mind the gap\n"
    "rank 0\n"
    "cpus 0-1,4\n"
    "mems preferred 0\n"
    "env keep NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n"
    "env set CUDA_VISIBLE_DEVICES=0,1\n"
    "say rank zero\n"
    "rank 1\n"
    "say rank one\n"
    "mems bind 1-3\n"
    "end\n";

// `good` with the first `from` replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string s = good;
  const size_t at = s.find(from);
  REQUIRE(at != std::string::npos);
  return s.replace(at, from.size(), to);
}

void check_void(const std::string& text, const std::string& why) {
  CAPTURE(text);
  const Read r(text);
  CHECK_FALSE(r.ok);
  CHECK_MESSAGE(r.reason().find(why) != std::string::npos, r.reason());
}

std::vector<std::string> texts(std::string_view rest) {
  std::vector<std::string> found;
  for (std::string_view text; Answer::next_text(rest, text);) found.emplace_back(text);
  return found;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("an answer in order is read as it was meant") {
  const Read r(good);
  REQUIRE_MESSAGE(r.ok, r.reason());
  CHECK(r.answer.digest() == "0123abCD");
  CHECK(texts(r.answer.node()) == Strings{"the node", "mind the gap"});
  CHECK(texts(r.answer.rank(0)) == Strings{"rank zero"});
  CHECK(texts(r.answer.rank(1)) == Strings{"rank one"});

  const plugin::RankPlan zero = r.answer.plan(0), one = r.answer.plan(1);
  CHECK(zero.has_cpus);
  CHECK(members(zero.cpus) == std::vector<int>{0, 1, 4});
  CHECK(zero.mem_policy == MemPolicy::preferred);
  CHECK(members(zero.mems) == std::vector<int>{0});
  REQUIRE(zero.variable_count == 2);
  CHECK(std::string(zero.variables[0].name) == "NCCL_IB_HCA");
  CHECK(zero.variables[0].value == "=mlx5_0:1,mlx5_1:1");
  CHECK(zero.variables[0].give == plugin::Give::keep);
  CHECK(zero.variables[1].value == "0,1");
  CHECK(zero.variables[1].give == plugin::Give::set);

  CHECK_FALSE(one.has_cpus);
  CHECK(one.mem_policy == MemPolicy::bind);
  CHECK(members(one.mems) == std::vector<int>{1, 2, 3});
  CHECK(one.variable_count == 0);
}

TEST_CASE("an answer for no rank leaves everything alone, and says so") {
  const Read r("gpu-bind-wire 1\ndigest 0\nend\n");
  REQUIRE(r.ok);
  CHECK(r.answer.empty());
  CHECK_FALSE(Read(good).answer.empty());
}

TEST_CASE("an empty plan binds nothing") {
  const Read r("gpu-bind-wire 1\ndigest 0\nrank 0\nrank 1\nend\n");
  REQUIRE(r.ok);
  CHECK_FALSE(r.answer.empty());
  CHECK(r.answer.node().empty());
  for (unsigned i : {0u, 1u}) {
    const plugin::RankPlan plan = r.answer.plan(i);
    CHECK_FALSE(plan.has_cpus);
    CHECK(plan.mem_policy == MemPolicy::leave);
    CHECK(plan.variable_count == 0);
  }
}

TEST_CASE("the planner's own refusal is the reason, made safe to print") {
  const Read r("error no GPU 7 \x1b[31mhere\n");
  CHECK_FALSE(r.ok);
  CHECK(r.reason() == "no GPU 7 ?[31mhere");
  // Without a reason strict would have nothing to stop the job step with.
  CHECK(Read("error \n").reason() == "the planner gave no reason");
}

TEST_CASE("a truncated answer is void wherever it was cut") {
  // "end" and its newline: without the newline it is still whole.
  for (size_t n = 0; n + 1 < good.size(); ++n) {
    CAPTURE(n);
    CHECK_FALSE(Read(good.substr(0, n)).ok);
  }
  CHECK(Read(good.substr(0, good.size() - 1)).ok);
}

TEST_CASE("hostile answers are void") {
  check_void("", "cut short");
  check_void("#!/bin/sh\n", "no answer of gpu-bind");
  check_void(with("wire 1", "wire 2"), "another version");
  check_void(with("wire 1", "wire 99999999999999999999"), "no answer");
  check_void(with("digest 0123abCD", "digest $(reboot)"), "no digest");
  check_void(with("digest 0123abCD", "digest " + std::string(65, 'a')), "no digest");
  check_void(with("say the node", "sudo the node"), "unknown line");
  check_void(with("rank 1", "rank 0"), "out of order");
  check_void(with("rank 1", "rank 2"), "out of order");
  check_void(with("rank 1", "rank -1"), "out of order");
  check_void(with("rank 0", "rank 4294967296"), "out of order");
  check_void(with("end\n", "rank 2\nend\n"), "3 ranks of 2");
  check_void("gpu-bind-wire 1\ndigest 0\nrank 0\nend\n", "1 ranks of 2");
  check_void(good + "rank 0\n", "after the end");
  check_void(with("cpus 0-1,4", "cpus 0\ncpus 1"), "twice");
  check_void(with("mems bind 1-3", "mems bind 1\nmems bind 1"), "twice");
  check_void(with("mems bind", "mems interleave"), "policy");
  check_void(with("env keep", "env drop"), "neither keep, set nor unset");
  check_void(with("CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES"), "without a value");
  check_void(with("=0,1", "=0\t1"), "control characters");
  check_void(with("=0,1", std::string("=0\0001", 4)), "control characters");
  check_void(with("=0,1", "=\x1b[2J"), "control characters");
  check_void(with("say the node", "say " + std::string(gpu_bind_wire::max_line, 'x')), "too long");
}

TEST_CASE("lists of numbers stay in their range") {
  for (const char* list : {"",           ",",   "0,",   ",0",     "0,,1", "-1",
                           "1-",         "-",   "3-1",  "0-8192", "8192", "99999999999999999999",
                           "4294967296", "0x1", "1 2",  " 1",     "1,0",  "1,1",
                           "0-3,2",      "all", "0-1-2"}) {
    CAPTURE(list);
    CpuBits bits;
    CHECK_FALSE(parse_list(list, bits));
    check_void(with("cpus 0-1,4", std::string("cpus ") + list), "");
  }
  CpuBits bits;
  CHECK(parse_list("0-8191", bits));
  CHECK(bits.test(8191));
  MemBits mems;
  CHECK_FALSE(parse_list("1024", mems));
  CHECK(parse_list("1023", mems));
}

TEST_CASE("unknown variables are dropped, known ones bounded") {
  const Read r(with("env set CUDA_VISIBLE_DEVICES=0,1",
                    "env set LD_PRELOAD=/tmp/x.so\nenv set PATH=/tmp\nenv set "
                    "=x\nenv set CUDA_VISIBLE_DEVICES2=0\nenv set NCCL_SOCKET_IFNAME="));
  REQUIRE_MESSAGE(r.ok, r.reason());
  const plugin::RankPlan plan = r.answer.plan(0);
  REQUIRE(plan.variable_count == 2);
  CHECK(std::string(plan.variables[1].name) == "NCCL_SOCKET_IFNAME");
  CHECK(plan.variables[1].value.empty());

  const auto taken = [](const std::string& line) {
    const Read one(with("env set CUDA_VISIBLE_DEVICES=0,1", line));
    REQUIRE_MESSAGE(one.ok, one.reason());
    return one.answer.plan(0).variable_count == 2;
  };
  for (const char* name : {"FI_PROVIDER", "NCCL_DEBUG", "UCX_TLS", "OFI_NCCL_PROTOCOL", "GLOO_X9"})
    CHECK_MESSAGE(taken(std::string("env keep ") + name + "=v"), name);
  for (const char* name : {"FI_", "NCCL_CONF_FILE", "NCCL_ld", "NCCL_X Y", "XNCCL_A", "FI-A",
                           "GPU_BIND_SET", "HOME", "LD_LIBRARY_PATH", "NCCL_\\", "SLURM_CONF"})
    CHECK_MESSAGE(!taken(std::string("env set ") + name + "=v"), name);
  CHECK_FALSE(taken("env set NCCL_" + std::string(gpu_bind_wire::max_name, 'A') + "=v"));
  // Only masks are taken away.
  CHECK(taken("env unset CUDA_VISIBLE_DEVICES"));
  CHECK_FALSE(taken("env unset NCCL_DEBUG"));
  CHECK_FALSE(taken("env unset PATH"));
  CHECK_FALSE(taken("env unset CUDA_VISIBLE_DEVICES=0"));

  std::string many;
  for (size_t i = 0; i < gpu_bind_wire::max_env; ++i) many += "env set NCCL_IB_HCA=a\n";
  check_void(with("say rank zero\n", many), "too many variables");
}

TEST_CASE("what is printed has no control characters") {
  const Read r(with("say rank zero", "say \x1b]0;title\x07zero\x7f\x80"));
  REQUIRE(r.ok);
  CHECK(texts(r.answer.rank(0)) == Strings{"?]0;title?zero??"});
}

TEST_CASE("damaged answers are void or harmless") {
  std::mt19937 random(20240601);
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (int hits = 1 + static_cast<int>(random() % 4); hits > 0; --hits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 16));
      }
      if (text.empty()) break;
    }
    const Read r(text);
    if (!r.ok) {
      CHECK(all_printable(r.why.view()));
      continue;
    }
    for (unsigned i : {0u, 1u})
      for (size_t v = 0; v < r.answer.plan(i).variable_count; ++v)
        CHECK(all_printable(r.answer.plan(i).variables[v].value));
  }
}
