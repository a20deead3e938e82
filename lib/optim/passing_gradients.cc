// Each rank keeps the sum of its own gradients only. The backward pass writes a bucket at a time
// into one of a few buffers, from where it is reduced as soon as it is complete, in every
// micro-batch; the owner adds its part to what it has.
#include <algorithm>
#include <array>
#include <cassert>

#include "optim/gradients.h"
#include "optim/weights.h"

namespace trainlaunch {

namespace {

bool waits_long(const Layout& layout, std::span<const ParamSpec> specs, const Bucket& b) {
  return specs[layout.entries[b.first].param].contributions > 1;
}

class PassingGradients final : public Gradients {
 public:
  PassingGradients(const ShardParts& parts, const GradientsPlan& plan)
      : device_(parts.device),
        ops_(parts.ops),
        comm_(parts.comm),
        plan_(plan),
        readiness_(plan.layout, plan.specs, plan.buckets),
        passages_(plan.buckets.size()),
        begun_(plan.specs.size()) {}

  Status prepare() {
    auto memory = comm_.alloc("passing gradients", DType::f32,
                              passing_elements(plan_.layout, plan_.specs, plan_.buckets));
    if (!memory) return forward(memory);
    int64_t next = 0, largest = 0;
    for (size_t b = 0; b < passages_.size(); ++b) {
      const Bucket& bucket = plan_.buckets[b];
      if (!waits_long(plan_.layout, plan_.specs, bucket)) {
        largest = std::max(largest, bucket.elements());
        continue;
      }
      buffers_.push_back({memory->slice(next, bucket.elements()), -1});
      passages_[b].home = static_cast<int>(buffers_.size()) - 1;
      next += bucket.elements();
    }
    shared_ = buffers_.size();
    for (; largest > 0 && next + largest <= memory->size(); next += largest)
      buffers_.push_back({memory->slice(next, largest), -1});

    const int64_t own = plan_.own.elements;
    auto arena = Arena::make(device_, static_cast<size_t>(own) * sizeof(float));
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    sums_ = arena_.take("gradients", DType::f32, {own});
    return {};
  }

  void begin_step(Stream&) override {
    for (Passage& p : passages_) p.summed = false;
    passes_ = 0;
    readiness_.restart();
  }
  void begin_micro(Stream&, bool) override {
    ++passes_;
    begun_.restart();
    readiness_.restart();
  }

  GradientSum grad_sum(Stream& stream, int param) override {
    const auto b = static_cast<size_t>(readiness_.bucket_of(param));
    const Passage& p = passages_[b];
    if (p.buffer < 0 || p.travels) open(stream, b);
    const Layout::Entry& e = plan_.layout.of(param);
    const int64_t at = e.offset - plan_.buckets[b].offset;
    return begun_.take(ops_, stream, plan_.specs[param], e,
                       buffers_[p.buffer].memory.slice(at, e.whole()));
  }
  void ready(Stream& stream, int param) override {
    if (!readiness_.ready(param)) return;
    const int b = readiness_.bucket_of(param);
    Passage& p = passages_[b];
    p.ticket = comm_.reduce_scatter(working(b), plan_.buckets[b].owners, plan_.options.wire,
                                    stream.record());
    p.travels = true;
    buffers_[p.buffer].sent = ++sent_;
  }
  void no_micro(Stream&) override { passes_ = 0; }

  Status complete() const override {
    if (passes_ == 0)
      return fail("a rank ran no pass in this step: with sharded gradients all ranks run as many");
    for (size_t b = 0; b < passages_.size(); ++b)
      if (!readiness_.done(static_cast<int>(b)))
        return fail("an optimizer step was asked for before every gradient was ready");
    return status_;
  }
  Status collect(Stream& stream, size_t b) override {
    take(stream, b);
    return status_;
  }
  View own(size_t b) const override {
    const auto runs = plan_.own.of(b);
    return sums_.slice(runs.empty() ? 0 : runs.front().kept,
                       plan_.buckets[b].owners.count(comm_.rank()));
  }
  View sum(const Run& run) const override { return sums_.slice(run.kept, run.size()); }

 private:
  // A bucket on its way through a buffer.
  struct Passage {
    int home = -1;         // the buffer that is its alone, if there is one
    int buffer = -1;       // where it is; -1: nowhere
    bool travels = false;  // it is being reduced
    bool summed = false;   // something was added up in this step
    Ticket ticket = 0;
  };
  struct Buffer {
    View memory;
    int bucket = -1;    // in it; -1: none
    uint64_t sent = 0;  // when its reduction was issued
  };

  View working(size_t b) const {
    return buffers_[passages_[b].buffer].memory.slice(0, plan_.buckets[b].elements());
  }

  // A free buffer, or else the one that has travelled longest.
  int find_buffer() const {
    int found = -1;
    for (auto i = static_cast<int>(shared_); i < static_cast<int>(buffers_.size()); ++i) {
      const Buffer& buffer = buffers_[i];
      if (buffer.bucket < 0) return i;
      if (passages_[buffer.bucket].travels && (found < 0 || buffer.sent < buffers_[found].sent))
        found = i;
    }
    return found;
  }

  void open(Stream& stream, size_t b) {
    take(stream, b);  // of the micro-batch before
    Passage& p = passages_[b];
    p.buffer = p.home >= 0 ? p.home : find_buffer();
    assert(p.buffer >= 0 && "gradients become ready nearly in the layout's order");
    if (const int other = buffers_[p.buffer].bucket; other >= 0) take(stream, other);
    buffers_[p.buffer].bucket = static_cast<int>(b);
  }

  // Adds what has been reduced to the sum, and frees the buffer.
  void take(Stream& stream, size_t b) {
    Passage& p = passages_[b];
    if (!p.travels) return;
    auto ok = comm_.wait(p.ticket, Deadline::in(plan_.options.timeout));
    if (!ok && status_) status_ = ok;
    const Owners& owners = plan_.buckets[b].owners;
    if (owners.count(comm_.rank()) > 0) {
      const View part = working(b).slice(owners.offset(comm_.rank()), owners.count(comm_.rank()));
      const std::array<View, 2> both{own(b), part};
      if (p.summed)
        ops_.sum(stream, both[0], both);
      else
        ops_.copy(stream, part, both[0]);
    }
    p.summed = true;
    p.travels = false;
    buffers_[p.buffer].bucket = -1;
    p.buffer = -1;
  }

  Device& device_;
  Ops& ops_;
  Comm& comm_;
  const GradientsPlan plan_;
  Readiness readiness_;
  std::vector<Passage> passages_;  // by bucket
  std::vector<Buffer> buffers_;    // those of one bucket alone first
  size_t shared_ = 0;              // the first of those that buckets take in turn
  uint64_t sent_ = 0;
  Arena arena_;
  View sums_;           // f32 [own.elements]
  BegunSums begun_;     // of this micro-batch
  int64_t passes_ = 0;  // of this step
  Status status_;
};

}  // namespace

int64_t passing_elements(const Layout& layout, std::span<const ParamSpec> specs,
                         std::span<const Bucket> buckets) {
  int64_t alone = 0, largest = 0;
  int many = 0;
  for (const Bucket& b : buckets) {
    if (waits_long(layout, specs, b)) {
      alone += b.elements();
    } else {
      largest = std::max(largest, b.elements());
      ++many;
    }
  }
  return alone + std::min(many, passing_buffers) * largest;
}

Result<std::unique_ptr<Gradients>> make_passing_gradients(const ShardParts& parts,
                                                          const GradientsPlan& plan) {
  auto gradients = std::make_unique<PassingGradients>(parts, plan);
  if (auto s = gradients->prepare(); !s) return forward(s);
  return gradients;
}

}  // namespace trainlaunch
