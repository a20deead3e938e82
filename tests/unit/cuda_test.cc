#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "base/cuda/cuda_device.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <vector>

using namespace trainlaunch;

TEST_CASE("a GPU that is not there is an error") {
  CHECK_FALSE(make_cuda_device(-1));
  auto none = make_cuda_device(1'000'000);
  REQUIRE_FALSE(none);
  CHECK_FALSE(none.error().what.empty());
  CHECK(none.error().what.find('\n') == std::string::npos);
}

namespace {
struct HostEvent final : Event::Impl {
  std::atomic<bool> set = false;
  Result<bool> done() override { return set.load(); }
  void* native() override { return nullptr; }
};
}  // namespace

TEST_CASE("what is uploaded comes back") {
  auto device = make_cuda_device(0);
  if (!device) {
    MESSAGE("skipped: " << device.error().what);
    return;
  }
  CHECK_FALSE((*device)->host_readable());
  constexpr int64_t n = 100'000;
  auto arena = Arena::make(**device, n * sizeof(float));
  REQUIRE(arena);
  const View there = arena->take("there", DType::f32, {n});
  auto first = (*device)->stream(), second = (*device)->stream();
  REQUIRE(first);
  REQUIRE(second);

  std::vector<float> sent(n), received(n, -1);
  const View from(sent.data(), DType::f32, {n}), to(received.data(), DType::f32, {n});
  (*device)->download(**first, to, there);
  REQUIRE((*first)->record().wait(Deadline::in(Seconds(60))));
  CHECK(received == sent);  // memory comes zeroed

  for (int64_t i = 0; i < n; ++i) sent[i] = static_cast<float>(i);
  (*device)->upload(**first, there, from);
  (*second)->wait((*first)->record());
  (*device)->download(**second, to, there);
  REQUIRE((*second)->record().wait(Deadline::in(Seconds(60))));
  CHECK(received == sent);

  auto gate = std::make_shared<HostEvent>();
  (*first)->wait(Event(gate));
  const Event after = (*first)->record();
  auto done = after.done();
  REQUIRE(done);
  CHECK_FALSE(*done);
  gate->set = true;
  CHECK(after.wait(Deadline::in(Seconds(60))));
}
