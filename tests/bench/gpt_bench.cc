// How fast GPT-2 124M trains on this machine's CPUs, with its whole vocabulary, which data over
// bytes does not have. Prints the median of the steps' tokens per second.
//
//   gpt_bench [threads [f32 | bf16 [steps]]]

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "comm/kinds.h"
#include "optim/optim.h"

using namespace trainlaunch;

namespace {

constexpr BatchShape shape{4, 64};
const GptConfig config{.layers = 12, .heads = 12, .width = 768, .context = 64, .vocab = 50257};

// Everything that a world of one trains with.
struct Training {
  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Stream> stream = *device->stream();
  std::unique_ptr<Comm> comm = make_single_comm();
  std::unique_ptr<Model> model = *make_gpt(config);
  std::unique_ptr<Ops> ops;
  Layout layout = Layout::plan(model->params());
  Arena arena;
  View tokens, targets, sums;
  std::unique_ptr<Shard> shard;

  static Result<std::unique_ptr<Training>> make(int threads, DType dtype) {
    auto t = std::make_unique<Training>();
    t->ops = make_cpu_ops(threads, SameBits::same_threads, dtype);
    auto arena = Arena::fitting(*t->device, [&](Arena& a) { t->take(a); });
    if (!arena) return forward(arena);
    t->arena = std::move(*arena);
    auto shard = make_shard({*t->device, *t->ops, *t->comm, t->model->params(), t->layout, 1}, {});
    if (!shard) return forward(shard);
    t->shard = std::move(*shard);
    for (int64_t i = 0; i < t->tokens.size(); ++i) {
      const Philox p = philox(1, RandomStream::sample, static_cast<uint64_t>(i), 0);
      t->tokens.as<int32_t>()[i] = static_cast<int32_t>(p[0] % config.vocab);
      t->targets.as<int32_t>()[i] = static_cast<int32_t>(p[1] % config.vocab);
    }
    return t;
  }

  void take(Arena& a) {
    model->reserve(a, *ops, {shape});
    tokens = a.take("batch", DType::i32, {shape.sequences, shape.context});
    targets = a.take("batch", DType::i32, {shape.sequences, shape.context});
    sums = a.take("loss and count", DType::f64, {2});
    ops->use_scratch(a.take("scratch", DType::u8,
                            {static_cast<int64_t>(ops->scratch_bytes(model->limits(shape)))}));
  }

  Status step() {
    Ctx ctx{*ops, *stream, sums.slice(0, 1), sums.slice(1, 1), nullptr};
    ops->fill(*stream, sums, 0);
    shard->begin_step(*stream);
    shard->begin_micro(*stream, /*last=*/true);
    model->forward(ctx, {tokens, targets}, *shard);
    model->backward(ctx, {tokens, targets}, *shard);
    StepScalars scalars{};
    scalars.lr = 1e-4;
    scalars.clip = 1.0;
    scalars.tokens = static_cast<double>(tokens.size());
    auto stats = shard->step(*stream, scalars);
    if (!stats) return forward(stats);
    return {};
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int asked = argc > 1 ? std::atoi(argv[1]) : 0;
  const DType dtype = argc > 2 && std::strcmp(argv[2], "bf16") == 0 ? DType::bf16 : DType::f32;
  const int steps = std::max(argc > 3 ? std::atoi(argv[3]) : 5, 1);
  auto training = Training::make(asked, dtype);
  if (!training) {
    std::fprintf(stderr, "%s\n", training.error().what.c_str());
    return 1;
  }
  std::vector<double> speeds;
  for (int i = 0; i < steps + 2; ++i) {
    const auto begin = Clock::now();
    if (auto s = (*training)->step(); !s) {
      std::fprintf(stderr, "%s\n", s.error().what.c_str());
      return 1;
    }
    const double seconds = Seconds(Clock::now() - begin).count();
    if (i >= 2) speeds.push_back(static_cast<double>(shape.sequences * shape.context) / seconds);
  }
  std::nth_element(speeds.begin(), speeds.begin() + steps / 2, speeds.end());
  std::printf("%.1f\n", speeds[static_cast<size_t>(steps) / 2]);
  return 0;
}
