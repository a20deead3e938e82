// Where the time goes, and against what speed is measured.
#include "train/profile.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "train/peak.h"
#include "train/progress.h"
#include "train_runs.h"

using namespace trainlaunch;

TEST_CASE("the peak of a GPU is the dense one, and the longer name counts") {
  CHECK(*dense_peak("NVIDIA H100 80GB HBM3", DType::bf16) == 989.4e12);
  CHECK(*dense_peak("NVIDIA H100 PCIe", DType::bf16) == 756e12);
  CHECK(*dense_peak("NVIDIA H200", DType::bf16) == 989.4e12);
  CHECK(*dense_peak("NVIDIA A100-SXM4-80GB", DType::f32) == 19.5e12);
  CHECK(*dense_peak("NVIDIA GB200", DType::bf16) == 2500e12);
  CHECK_FALSE(dense_peak("cpu", DType::f32));
}

TEST_CASE("mfu is the model's arithmetic against what all ranks could do") {
  Progress p(10, {1000, 6e6, 4e9});
  p.took(std::chrono::duration_cast<Clock::duration>(Seconds(2)));
  p.took(std::chrono::duration_cast<Clock::duration>(Seconds(4)));
  StepRecord r{2, 1.5, 1e-3, 0.5};
  const std::string line = p.line(r);
  CHECK(r.tokens_per_second == doctest::Approx(1000.0 / 3));
  CHECK(r.mfu == doctest::Approx(0.5));
  CHECK(line ==
        "step 2/10  loss 1.5000  lr 1.00e-03  norm 0.500  333 tokens/s  mfu 50.0%  left 24s");
}

TEST_CASE("a profile has every operation, its arithmetic, and what was waited for") {
  const auto device = make_host_device();
  const auto stream = std::move(*device->stream());
  Trace trace(0, Trace::Keep::totals);
  Profile profile(trace);
  const auto ops = profiled(make_reference_ops(), profile);
  std::vector<double> a(6, 1), b(12, 2), c(8, 0), qkv(4 * 3 * 2, 0.5), out(4 * 2), lse(4);
  Gemm g;
  g.a = View(a.data(), DType::f64, {2, 3});
  g.b = View(b.data(), DType::f64, {3, 4});
  g.c = View(c.data(), DType::f64, {2, 4});
  ops->gemm(*stream, g);  // before the first step: does not count
  profile.begin_step();
  ops->gemm(*stream, g);
  ops->gemm(*stream, g);
  ops->attention(
      *stream, {1, 4, 1, View(qkv.data(), DType::f64, {4, 6}), View(out.data(), DType::f64, {4, 2}),
                View(lse.data(), DType::f64, {4})});
  profile.waited(Seconds(0.25));
  profile.end_step();
  CHECK(c == std::vector<double>(8, 6));
  CHECK(profile.flops("product 2 x 4 x 3") == 2 * 2 * 2 * 4 * 3);
  CHECK(profile.flops("attention") == 2 * 2 * 10 * 2);  // ten pairs, two columns, two products
  const auto table = profile.table({1e9, "so fast"});
  CHECK(table[0].starts_with("profile     of rank 0, 1 step in "));
  CHECK(table[1] == "ceiling     so fast");
  for (const char* what : {"product 2 x 4 x 3 ", "attention ", "the rest"})
    CHECK_MESSAGE(std::any_of(table.begin(), table.end(),
                              [&](const std::string& l) { return l.starts_with(what); }),
                  what);
}

TEST_CASE("a run with a profile ends with the same bits, and says where its time went") {
  Temporary dir;
  RunConfig c = small(dir, "plain"), p = small(dir, "profiled");
  p.profile = true;
  p.trace = dir / "trace";
  REQUIRE(train_as({2}, c) == "");
  REQUIRE(train_as({2}, p, dir / "out") == "");
  CHECK(losses(p) == losses(c));
  const std::string trace = read_file(dir / "trace.rank1");
  CHECK(trace.find(R"("cat":"operations")") != std::string::npos);
  CHECK(trace.find(R"("name":"attention, backward")") != std::string::npos);
  const std::string out = read_file(dir / "out");
  for (const char* part :
       {"profile     of rank 0, 12 steps in ", "ceiling     ",
        "GFLOP/s a rank, measured: f32 "
        "products of 512 x 512 matrices, 1 thread",
        "product 64 x 48 x 16 ",
        ", of a weight's "
        "gradient ",
        ", through gelu ", "attention, backward ", "% of the ceiling", "communication, waited for ",
        "communication, behind the computation ", "sums over the ranks", "the rest: "})
    CHECK_MESSAGE(out.find(part) != std::string::npos, part);
  CHECK(read_file(dir / "out").find("peak        1.0 TFLOP/s a rank, as train.peak-tflops says") !=
        std::string::npos);
}
