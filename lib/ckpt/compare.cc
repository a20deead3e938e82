#include "ckpt/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "ckpt/ckpt.h"

namespace trainlaunch {

namespace {

constexpr int64_t block = int64_t{4} << 20;  // elements compared at a time

class Comparer {
 public:
  Comparer(const std::string& slot, const Progress& progress) : slot_(slot), progress_(progress) {}

  Result<Comparison> go(const Directory& a, const Directory& b) {
    Side sides[2];
    for (auto [dir, side] : {std::pair{&a, &sides[0]}, std::pair{&b, &sides[1]}})
      if (auto s = open(*dir, *side); !s) return forward(s);
    if (!slot_.empty() && !sides[0].reader->slots().contains(slot_) &&
        !sides[1].reader->slots().contains(slot_))
      return fail("neither checkpoint has a slot " + slot_, exit_code::usage);
    std::vector<std::pair<std::string, std::string>> common;
    const auto slots = match(*sides[0].reader, *sides[1].reader, common);
    for (const std::string& name : slots) result_.slots[name], result_.tensors[name];
    remark(sides[0].reader->state(), sides[1].reader->state());
    for (const auto& [tensor, name] : common)
      if (auto s = compare_one(sides, tensor, name); !s) return forward(s);
    return std::move(result_);
  }

 private:
  struct Side {
    std::unique_ptr<Reader> reader;
    std::vector<float> values;
  };

  Status open(const Directory& dir, Side& side) const {
    auto reader = Reader::open_at(dir.path());
    if (!reader) return forward(reader);
    side.reader = std::move(*reader);
    return {};
  }

  bool wanted(const std::string& slot) const { return slot_.empty() || slot == slot_; }

  void only_in(const char* which, const std::string& what) {
    result_.unmatched.push_back(what + " is only in the " + which);
  }

  // The tensors and slots that both have; what else there is, is said.
  std::set<std::string> match(const Reader& a, const Reader& b,
                              std::vector<std::pair<std::string, std::string>>& common) {
    std::set<std::string> both;
    const auto in_a = a.slots(), in_b = b.slots();
    for (const std::string& s : in_a)
      if (wanted(s)) in_b.contains(s) ? void(both.insert(s)) : only_in("first", "slot " + s);
    for (const std::string& s : in_b)
      if (wanted(s) && !in_a.contains(s)) only_in("second", "slot " + s);
    for (const auto& [tensor, size] : a.tensors()) {
      const auto other = b.tensors().find(tensor);
      if (other == b.tensors().end()) {
        only_in("first", "tensor " + tensor);
      } else if (other->second != size) {
        result_.unmatched.push_back("tensor " + tensor + " has " + std::to_string(size) +
                                    " elements in the first and " + std::to_string(other->second) +
                                    " in the second");
      } else {
        for (const std::string& s : both) {
          common.emplace_back(tensor, s);
          all_ += static_cast<uint64_t>(size) * sizeof(float);
        }
      }
    }
    for (const auto& [tensor, size] : b.tensors())
      if (!a.tensors().contains(tensor)) only_in("second", "tensor " + tensor);
    return both;
  }

  void remark(const State& a, const State& b) {
    // Imported weights lack most options.
    const auto told = [](const std::string& x) { return x.empty() ? std::string("nothing") : x; };
    auto say = [&](const std::string& what, const std::string& x, const std::string& y) {
      if (x != y) result_.remarks.push_back(what + ": " + told(x) + " and " + told(y));
    };
    say("step", std::to_string(a.step), std::to_string(b.step));
    say("samples", std::to_string(a.samples), std::to_string(b.samples));
    say("Adam's count", std::to_string(a.updates), std::to_string(b.updates));
    say("text", a.data_digest, b.data_digest);
    std::map<std::string, std::pair<std::string, std::string>> options;
    for (const auto& [key, value] : a.config) options[key].first = value;
    for (const auto& [key, value] : b.config) options[key].second = value;
    for (const auto& [key, values] : options) say(key, values.first, values.second);
  }

  Status read(Side& side, const std::string& tensor, const std::string& slot, int64_t offset,
              int64_t length) {
    side.values.resize(static_cast<size_t>(length));
    const Piece piece{tensor, slot, offset, length, View(side.values.data(), DType::f32, {length})};
    return side.reader->read({&piece, 1}, *device_, *stream_);
  }

  Status compare_one(Side (&sides)[2], const std::string& tensor, const std::string& slot) {
    if (!stream_) {
      auto stream = device_->stream();
      if (!stream) return forward(stream);
      stream_ = std::move(*stream);
    }
    const int64_t size = sides[0].reader->tensors().at(tensor);
    Difference total;
    for (int64_t at = 0; at < size; at += block) {
      const int64_t length = std::min(block, size - at);
      for (Side& side : sides)
        if (auto s = read(side, tensor, slot, at, length); !s) return s;
      total.add(difference(sides[0].values.data(), sides[1].values.data(), length));
      done_ += static_cast<uint64_t>(length) * sizeof(float);
      if (progress_) progress_(done_, all_);
    }
    result_.slots[slot].add(total);
    if (total.differing == 0) return {};
    ++result_.tensors[slot];
    result_.differing.push_back({tensor, slot, total});
    return {};
  }

  const std::string& slot_;
  const Progress& progress_;
  Comparison result_;
  std::unique_ptr<Device> device_ = make_host_device();
  std::unique_ptr<Stream> stream_;
  uint64_t done_ = 0, all_ = 0;
};

}  // namespace

void Difference::add(const Difference& other) {
  elements += other.elements;
  differing += other.differing;
  largest = std::max(largest, other.largest);
  relative = std::max(relative, other.relative);
}

Difference difference(const float* a, const float* b, int64_t n) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  Difference d;
  d.elements = static_cast<uint64_t>(n);
  for (int64_t i = 0; i < n; ++i) {
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    ++d.differing;
    const double x = a[i], y = b[i], apart = std::abs(x - y),
                 scale = std::max(std::abs(x), std::abs(y));
    const bool finite = std::isfinite(x) && std::isfinite(y);
    d.largest = std::max(d.largest, finite ? apart : infinite);
    d.relative = std::max(d.relative, !finite ? infinite : scale > 0 ? apart / scale : 0.0);
  }
  return d;
}

Result<Comparison> compare(const Directory& a, const Directory& b, const std::string& slot,
                           const Progress& progress) {
  return Comparer(slot, progress).go(a, b);
}

}  // namespace trainlaunch
