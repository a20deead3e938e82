#include "train/profile.h"

#include <algorithm>
#include <cstdio>

#include "train/words.h"

namespace trainlaunch {

namespace {

// Runs `act` and tells how long it took.
template <class Act, class Tell>
auto timed(const Act& act, const Tell& tell) {
  const auto begin = Clock::now();
  auto result = act();
  tell(Seconds(Clock::now() - begin));
  return result;
}

// 2 m n k: a multiplication and an addition each.
double product_flops(int64_t m, int64_t n, int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// Of one product of attention: a row has scores with those up to itself.
double attention_flops(int64_t sequences, int64_t first, int64_t context, int64_t width) {
  const auto pairs = static_cast<double>(context * (context + 1) / 2 - first * (first + 1) / 2);
  return 2.0 * static_cast<double>(sequences) * pairs * static_cast<double>(width);
}

std::string describe(const Gemm& g, int64_t k) {
  std::string name = "product " + std::to_string(g.c.rows()) + " x " + std::to_string(g.c.cols()) +
                     " x " + std::to_string(k);
  if (g.transposed_a) return name + ", of a weight's gradient";
  if (g.back) return name + ", through gelu";
  if (g.act == Activation::gelu) return name + ", gelu";
  if (g.add) return name + ", add";
  return name;
}

class ProfiledOps final : public Ops {
 public:
  ProfiledOps(std::unique_ptr<Ops> ops, Profile& profile)
      : ops_(std::move(ops)), profile_(profile) {}

  const char* name() const override { return ops_->name(); }
  DType dtype() const override { return ops_->dtype(); }
  size_t scratch_bytes(const OpsLimits& limits) const override {
    return ops_->scratch_bytes(limits);
  }
  void use_scratch(View scratch) override { ops_->use_scratch(scratch); }

  void gemm(Stream& s, const Gemm& g) override {
    const int64_t k = g.transposed_a ? g.a.rows() : g.a.cols();
    time(s, describe(g, k), product_flops(g.c.rows(), g.c.cols(), k), [&] { ops_->gemm(s, g); });
  }
  void embed(Stream& s, const Embed& e) override {
    time(s, "embedding", 0, [&] { ops_->embed(s, e); });
  }
  void embed_back(Stream& s, const EmbedBack& e) override {
    time(s, "embedding, backward", 0, [&] { ops_->embed_back(s, e); });
  }
  void norm(Stream& s, const Norm& o) override {
    time(s, "norm", 0, [&] { ops_->norm(s, o); });
  }
  void norm_back(Stream& s, const NormBack& o) override {
    time(s, "norm, backward", 0, [&] { ops_->norm_back(s, o); });
  }
  // Scores, and the sum of values.
  void attention(Stream& s, const Attention& o) override {
    time(s, "attention", 2 * attention_flops(o.sequences, o.first, o.context, o.out.cols()),
         [&] { ops_->attention(s, o); });
  }
  // Scores again, and the gradients of weights, values, keys and queries.
  void attention_back(Stream& s, const AttentionBack& o) override {
    time(s, "attention, backward", 5 * attention_flops(o.sequences, 0, o.context, o.out.cols()),
         [&] { ops_->attention_back(s, o); });
  }
  void head_loss(Stream& s, const Head& o) override {
    const int products = o.dx ? 3 : 1;
    time(s, o.dx ? "head and loss, with gradients" : "head and loss",
         products * product_flops(o.x.rows(), o.weight.rows(), o.x.cols()),
         [&] { ops_->head_loss(s, o); });
  }
  void copy(Stream& s, View from, View to) override {
    time(s, "copy", 0, [&] { ops_->copy(s, from, to); });
  }
  void fill(Stream& s, View v, double value) override {
    time(s, "fill", 0, [&] { ops_->fill(s, v, value); });
  }
  void sum(Stream& s, View dst, std::span<const View> parts) override {
    time(s, "sum of gradients", 0, [&] { ops_->sum(s, dst, parts); });
  }
  void sumsq(Stream& s, View x, int64_t tile, View out) override {
    time(s, "gradient norm", 0, [&] { ops_->sumsq(s, x, tile, out); });
  }
  void update(Stream& s, const Rule& rule, const Slots& slots, View scalars) override {
    time(s, "update", 0, [&] { ops_->update(s, rule, slots, scalars); });
  }

 private:
  // What goes wrong is told by the stream's next event, to those who ask.
  template <class Act>
  void time(Stream& s, const std::string& what, double flops, const Act& act) {
    const auto begin = Clock::now();
    act();
    (void)s.record().wait(Deadline::never());
    profile_.operation(what, flops, begin, Clock::now());
  }

  const std::unique_ptr<Ops> ops_;
  Profile& profile_;
};

class ProfiledComm final : public Comm {
 public:
  ProfiledComm(std::unique_ptr<Comm> comm, Profile& profile)
      : comm_(std::move(comm)), profile_(profile) {}

  const char* name() const override { return comm_->name(); }
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  Result<View> alloc(std::string_view what, DType t, int64_t count) override {
    return comm_->alloc(what, t, count);
  }
  Ticket reduce_scatter(View v, const Owners& owners, DType wire, Event after) override {
    return comm_->reduce_scatter(v, owners, wire, std::move(after));
  }
  Ticket all_reduce(View v, const Owners& owners, DType wire, Event after) override {
    return comm_->all_reduce(v, owners, wire, std::move(after));
  }
  Ticket all_gather(View v, const Owners& owners, Event after) override {
    return comm_->all_gather(v, owners, std::move(after));
  }
  Status wait(Ticket ticket, Deadline deadline) override {
    return timed([&] { return comm_->wait(ticket, deadline); },
                 [&](Seconds t) { profile_.waited(t); });
  }
  Status all_sum(std::span<double> values, Deadline deadline) override {
    return timed([&] { return comm_->all_sum(values, deadline); },
                 [&](Seconds t) { profile_.met(t); });
  }
  Status broadcast(View v, int root, Deadline deadline) override {
    return timed([&] { return comm_->broadcast(v, root, deadline); },
                 [&](Seconds t) { profile_.met(t); });
  }
  Status barrier(Deadline deadline) override {
    return timed([&] { return comm_->barrier(deadline); }, [&](Seconds t) { profile_.met(t); });
  }
  void abort() noexcept override { comm_->abort(); }
  Moved moved() const override { return comm_->moved(); }

 private:
  const std::unique_ptr<Comm> comm_;
  Profile& profile_;
};

std::string row(const std::string& name, const std::string& calls, Seconds time, double share,
                const std::string& rate) {
  char line[160];
  std::snprintf(line, sizeof line, "%-56s %8s %9.3f s %5.1f %%  %s", name.c_str(), calls.c_str(),
                time.count(), 100 * share, rate.c_str());
  return line;
}

}  // namespace

void Profile::begin_step() {
  in_step_ = true;
  begin_ = Clock::now();
  background_at_begin_ = trace_.total("comm");
}

void Profile::end_step() {
  in_step_ = false;
  all_ += Clock::now() - begin_;
  background_ += trace_.total("comm") - background_at_begin_;
  ++steps_;
}

void Profile::operation(const std::string& name, double flops, Clock::time_point begin,
                        Clock::time_point end) {
  trace_.span("operations", name, begin, end);
  if (!in_step_) return;
  Entry& e = operations_[name];
  ++e.calls;
  e.time += end - begin;
  e.flops += flops;
}

void Profile::waited(Seconds time) {
  if (in_step_) waited_ += time;
}
void Profile::met(Seconds time) {
  if (in_step_) met_ += time;
}

double Profile::flops(const std::string& operation) const {
  const auto found = operations_.find(operation);
  return found == operations_.end() ? 0 : found->second.flops;
}

std::vector<std::string> Profile::table(const Peak& ceiling) const {
  const double all = std::max(all_.count(), 1e-9);
  Seconds rest = all_ - waited_ - met_;
  std::vector<std::pair<std::string, Entry>> by_time(operations_.begin(), operations_.end());
  std::stable_sort(by_time.begin(), by_time.end(),
                   [](const auto& a, const auto& b) { return a.second.time > b.second.time; });
  std::vector<std::string> lines{
      "profile     of rank 0, " + plural(steps_, "step") + " in " + fixed(all_.count(), 3) + " s",
      "ceiling     " + ceiling.name};
  for (const auto& [name, e] : by_time) {
    rest -= e.time;
    std::string rate;
    if (e.flops > 0) {
      const double flops = e.flops / std::max(e.time.count(), 1e-9);
      rate = fixed(flops / 1e9, 1) + " GFLOP/s, " + fixed(100 * flops / ceiling.flops, 1) +
             " % of the ceiling";
    }
    lines.push_back(row(name, std::to_string(e.calls), e.time, e.time.count() / all, rate));
  }
  if (background_.count() > 0) {
    const Seconds hidden = std::max(background_ - waited_, Seconds(0));
    lines.push_back(row("communication, waited for", "", waited_, waited_.count() / all, ""));
    lines.push_back(row("communication, behind the computation", "", hidden, hidden.count() / all,
                        "at the same time as the above"));
  }
  if (met_.count() > 0)
    lines.push_back(
        row("sums over the ranks, and waiting for the last", "", met_, met_.count() / all, ""));
  rest = std::max(rest, Seconds(0));
  lines.push_back(row("the rest: data, bookkeeping", "", rest, rest.count() / all, ""));
  return lines;
}

std::unique_ptr<Ops> profiled(std::unique_ptr<Ops> ops, Profile& profile) {
  return std::make_unique<ProfiledOps>(std::move(ops), profile);
}
std::unique_ptr<Comm> profiled(std::unique_ptr<Comm> comm, Profile& profile) {
  return std::make_unique<ProfiledComm>(std::move(comm), profile);
}

}  // namespace trainlaunch
