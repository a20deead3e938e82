// Where the tests of the CUDA operations run: kernels emulated on the host, or on a GPU.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/convert.h"
#include "tests/unit/ops_testing.h"

namespace trainlaunch::testing {

using F64 = Tensor<double>;

// Operations in one type, and memory of their device.
class Machine {
 public:
  Machine(std::string name, std::unique_ptr<Device> device, std::unique_ptr<Ops> ops)
      : name_(std::move(name)), device_(std::move(device)), ops_(std::move(ops)) {
    stream_ = *device_->stream();
    arena_ = *Arena::make(*device_, size_t{32} << 20);
  }

  const std::string& name() const { return name_; }
  Ops& ops() { return *ops_; }
  Stream& stream() { return *stream_; }
  DType dtype() const { return ops_->dtype(); }
  DType wide() const { return ops_->wide(); }
  void set_limits(const OpsLimits& limits) {
    ops_->use_scratch(
        arena_.take("scratch", DType::u8, {static_cast<int64_t>(ops_->scratch_bytes(limits))}));
  }

  // The numbers of a tensor, which its type holds exactly, in memory of the device.
  View put(const F64& t, DType type) {
    View there = t.view;
    there.t = type;
    there = take(there);
    std::vector<std::byte> bytes(there.bytes());
    View here = there;
    here.p = bytes.data();
    convert(t, here, 0, t.size());
    device_->upload(*stream_, there, here);
    wait();
    return there;
  }
  View put(const F64& t) { return put(t, dtype()); }
  View put_wide(const F64& t) { return put(t, wide()); }
  View put(const Tensor<int32_t>& t) {
    const View there = take(t.view);
    device_->upload(*stream_, there, t);
    wait();
    return there;
  }
  // Memory for a result, full of NaN.
  View blank(std::initializer_list<int64_t> shape, DType type) {
    F64 t(shape);
    for (double& x : t.data) x = NAN;
    return put(t, type);
  }
  View blank(std::initializer_list<int64_t> shape) { return blank(shape, dtype()); }
  View blank_wide(std::initializer_list<int64_t> shape) { return blank(shape, wide()); }

  F64 get(View there) {
    std::vector<std::byte> bytes(there.bytes());
    View here = there;
    here.p = bytes.data();
    device_->download(*stream_, here, there);
    wait();
    F64 t;
    t.data.resize(there.size());
    t.view = there;
    t.view.t = DType::f64;
    t.view.p = t.data.data();
    convert(here, t.view, 0, there.size());
    return t;
  }

 private:
  View take(View shaped) {
    const View flat = arena_.take("test", shaped.t, {shaped.size()});
    REQUIRE((flat.p || shaped.size() == 0));
    shaped.p = flat.p;
    return shaped;
  }
  void wait() {
    const auto done = stream_->record().wait(Deadline::in(Seconds(60)));
    INFO((done ? std::string() : done.error().what));
    REQUIRE(done);
  }

  std::string name_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
  Arena arena_;
};

// Calls f with one machine after the other; each program that runs the cases has its own.
void for_each_machine(const OpsLimits& limits, const std::function<void(Machine&)>& f);

}  // namespace trainlaunch::testing
