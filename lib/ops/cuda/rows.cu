// What is summed along rows or columns. Every sum has one order, given by its shape alone.

#include "ops/cuda/dispatch.h"
#include "ops/cuda/kernels.h"

namespace trainlaunch::gpu {

namespace {

constexpr float norm_epsilon = 1e-5f;
constexpr int warps = 4;  // of a block that gives each row to one warp
constexpr unsigned threads = warps * warp_size;

TL_DEVICE int64_t row_of_warp() { return static_cast<int64_t>(blockIdx.x) * warps + warp_index(); }

template <class T, int N>
__global__ void norm_kernel(const T* x, const T* gain, const T* bias, T* y, float* mean,
                            float* rstd, int64_t rows, int width) {
  const int64_t row = row_of_warp();
  if (row >= rows) return;
  x += row * width;
  y += row * width;
  const int first = lane_index() * N;
  constexpr int step = warp_size * N;

  float sum = 0;
  for (int c = first; c < width; c += step) {
    const auto v = load<N>(x + c);
    for (int j = 0; j < N; ++j) sum += widen(v[j]);
  }
  const float m = warp_sum(sum) / width;

  float squares = 0;
  for (int c = first; c < width; c += step) {
    const auto v = load<N>(x + c);
    for (int j = 0; j < N; ++j) squares += (widen(v[j]) - m) * (widen(v[j]) - m);
  }
  const float r = 1.0f / sqrtf(warp_sum(squares) / width + norm_epsilon);

  for (int c = first; c < width; c += step) {
    const auto v = load<N>(x + c), g = load<N>(gain + c), b = load<N>(bias + c);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j)
      out[j] = narrow<T>((widen(v[j]) - m) * r * widen(g[j]) + widen(b[j]));
    store<N>(y + c, out);
  }
  if (lane_index() == 0) {
    mean[row] = m;
    rstd[row] = r;
  }
}

// With h = (x - mean) rstd and g = dy gain: dx += rstd (g - avg(g) - h avg(g h)).
template <class T, int N>
__global__ void norm_back_kernel(const T* x, const T* dy, const T* gain, const float* mean,
                                 const float* rstd, T* dx, int64_t rows, int width) {
  const int64_t row = row_of_warp();
  if (row >= rows) return;
  x += row * width;
  dy += row * width;
  dx += row * width;
  const float m = mean[row], r = rstd[row];
  const int first = lane_index() * N;
  constexpr int step = warp_size * N;

  float sum_g = 0, sum_gh = 0;
  for (int c = first; c < width; c += step) {
    const auto v = load<N>(x + c), d = load<N>(dy + c), w = load<N>(gain + c);
    for (int j = 0; j < N; ++j) {
      const float g = widen(d[j]) * widen(w[j]);
      sum_g += g;
      sum_gh += g * (widen(v[j]) - m) * r;
    }
  }
  const float avg_g = warp_sum(sum_g) / width, avg_gh = warp_sum(sum_gh) / width;

  for (int c = first; c < width; c += step) {
    const auto v = load<N>(x + c), d = load<N>(dy + c), w = load<N>(gain + c);
    auto out = load<N>(dx + c);
    for (int j = 0; j < N; ++j) {
      const float g = widen(d[j]) * widen(w[j]), h = (widen(v[j]) - m) * r;
      out[j] = narrow<T>(widen(out[j]) + r * (g - avg_g - h * avg_gh));
    }
    store<N>(dx + c, out);
  }
}

// Sums over rows, of K numbers for each element of a row. A block takes 32 N columns and a chunk of
// rows, which its warps share out; their sums are added in order into partial[k][chunk][column].
constexpr int column_warps = 8;
constexpr unsigned column_threads = column_warps * warp_size;
constexpr int64_t most_chunks = 128, least_rows = 64;  // of a chunk

int64_t chunk_rows(int64_t rows) { return divide_up(rows, column_chunks(rows)); }

template <int K, int N, class F>
__global__ void columns_kernel(F f, int64_t rows, int64_t in_chunk, int width, float* partial) {
  const int lane = lane_index(), warp = warp_index();
  const int column = (static_cast<int>(blockIdx.x) * warp_size + lane) * N;
  const int64_t begin = blockIdx.y * in_chunk;
  const int64_t end = begin + in_chunk < rows ? begin + in_chunk : rows;

  float sums[K][N] = {};
  if (column < width)
    for (int64_t row = begin + warp; row < end; row += column_warps)
      f.template add<N>(row, column, sums);

  float* shared = reinterpret_cast<float*>(shared_memory());  // [warp][k][lane][n]
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < N; ++j) shared[((warp * K + k) * warp_size + lane) * N + j] = sums[k][j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < K * warp_size * N; i += column_threads) {
    const int k = i / (warp_size * N),
              c = static_cast<int>(blockIdx.x) * warp_size * N + i % (warp_size * N);
    float sum = 0;
    for (int w = 0; w < column_warps; ++w) sum += shared[w * K * warp_size * N + i];
    if (c < width) partial[(static_cast<int64_t>(k) * gridDim.y + blockIdx.y) * width + c] = sum;
  }
}

// out[k][column] += the sum of the chunks' partial sums.
struct Outputs {
  float* out[2];
};
__global__ void add_chunks_kernel(const float* partial, int chunks, int width, Outputs outputs) {
  const int lane = lane_index(), warp = warp_index(), k = static_cast<int>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.x) * warp_size + lane;
  partial += static_cast<int64_t>(k) * chunks * width;
  float sum = 0;
  if (column < width)
    for (int i = warp; i < chunks; i += column_warps)
      sum += partial[static_cast<int64_t>(i) * width + column];
  float* shared = reinterpret_cast<float*>(shared_memory());
  shared[warp * warp_size + lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  float total = 0;
  for (int w = 0; w < column_warps; ++w) total += shared[w * warp_size + lane];
  float* out = k == 0 ? outputs.out[0] : outputs.out[1];
  out[column] += total;
}

template <int K, int N, class F>
void sum_columns(void* stream, const F& f, int64_t rows, int64_t width, float* partial,
                 const Outputs& outputs) {
  if (rows == 0) return;
  const int64_t in_chunk = chunk_rows(rows), chunks = divide_up(rows, in_chunk);
  launch(stream, dim3(blocks(divide_up(width, warp_size * N)), blocks(chunks)), column_threads,
         sizeof(float) * K * N * column_threads, columns_kernel<K, N, F>, f, rows, in_chunk,
         static_cast<int>(width), partial);
  launch(stream, dim3(blocks(divide_up(width, warp_size)), K), column_threads,
         sizeof(float) * column_threads, add_chunks_kernel, static_cast<const float*>(partial),
         static_cast<int>(chunks), static_cast<int>(width), outputs);
}

template <class T>
struct BiasColumns {
  const T* dy;
  int64_t width;
  template <int N>
  TL_DEVICE void add(int64_t row, int column, float (&sums)[1][N]) const {
    const auto d = load<N>(dy + row * width + column);
    for (int j = 0; j < N; ++j) sums[0][j] += widen(d[j]);
  }
};

template <class T>
struct NormColumns {
  const T *x, *dy;
  const float *mean, *rstd;
  int64_t width;
  template <int N>
  TL_DEVICE void add(int64_t row, int column, float (&sums)[2][N]) const {
    const auto v = load<N>(x + row * width + column), d = load<N>(dy + row * width + column);
    for (int j = 0; j < N; ++j) {
      sums[0][j] += widen(d[j]) * (widen(v[j]) - mean[row]) * rstd[row];
      sums[1][j] += widen(d[j]);
    }
  }
};

template <int N>
__global__ void sumsq_kernel(const float* x, int64_t tile, double* out, int64_t tiles) {
  const int64_t i = row_of_warp();
  if (i >= tiles) return;
  x += i * tile;
  double sum = 0;
  for (int64_t c = lane_index() * N; c < tile; c += warp_size * N) {
    const auto v = load<N>(x + c);
    for (int j = 0; j < N; ++j) sum += static_cast<double>(v[j]) * static_cast<double>(v[j]);
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) out[i] = sum;
}

constexpr int loss_warps = 16;
constexpr unsigned loss_threads = loss_warps * warp_size;

// A maximum and the sum of exponentials of what it exceeds.
struct Exponentials {
  float highest, total;
  TL_DEVICE void add(const Exponentials& o) {
    const float top = fmaxf(highest, o.highest);
    if (top == -INFINITY) return;
    total = total * expf(highest - top) + o.total * expf(o.highest - top);
    highest = top;
  }
};

// One block to a row: once over it for the logarithm of the sum of exponentials, once more for the
// gradient softmax - [target].
template <class T, int N>
__global__ void cross_entropy_kernel(T* logits, int64_t stride, int vocab, const int32_t* targets,
                                     double* losses, bool gradient) {
  const int64_t row = blockIdx.x;
  const int target = targets[row], thread = static_cast<int>(threadIdx.x);
  logits += row * stride;
  const int packed = vocab / N * N;  // the rest is done one by one
  if (target < 0) {
    if (thread == 0) losses[row] = 0;
    if (gradient)
      for (int c = thread; c < vocab; c += loss_threads) logits[c] = narrow<T>(0.0f);
    return;
  }

  Exponentials mine{-INFINITY, 0};
  for (int c = thread * N; c < packed; c += loss_threads * N) {
    const auto v = load<N>(logits + c);
    float top = widen(v[0]);
    for (int j = 1; j < N; ++j) top = fmaxf(top, widen(v[j]));
    float total = 0;
    for (int j = 0; j < N; ++j) total += expf(widen(v[j]) - top);
    mine.add({top, total});
  }
  for (int c = packed + thread; c < vocab; c += loss_threads) mine.add({widen(logits[c]), 1.0f});

  Exponentials* shared = reinterpret_cast<Exponentials*>(shared_memory());
  for (int step = warp_size / 2; step > 0; step /= 2) {
    const Exponentials other{__shfl_xor_sync(all_lanes, mine.highest, step),
                             __shfl_xor_sync(all_lanes, mine.total, step)};
    mine.add(other);
  }
  if (lane_index() == 0) shared[warp_index()] = mine;
  __syncthreads();
  Exponentials all = shared[0];
  for (int w = 1; w < loss_warps; ++w) all.add(shared[w]);
  const float lse = all.highest + logf(all.total);
  if (thread == 0) losses[row] = static_cast<double>(lse) - widen(logits[target]);
  if (!gradient) return;
  __syncthreads();  // the target's logit has been read

  for (int c = thread * N; c < packed; c += loss_threads * N) {
    auto v = load<N>(logits + c);
    for (int j = 0; j < N; ++j)
      v[j] = narrow<T>(expf(widen(v[j]) - lse) - (c + j == target ? 1.0f : 0.0f));
    store<N>(logits + c, v);
  }
  for (int c = packed + thread; c < vocab; c += loss_threads)
    logits[c] = narrow<T>(expf(widen(logits[c]) - lse) - (c == target ? 1.0f : 0.0f));
}

// One block: each thread sums every loss_threads-th row, then all are added in order.
__global__ void add_losses_kernel(const double* losses, const int32_t* targets, int64_t rows,
                                  double* loss, double* count) {
  double sum = 0, counted = 0;
  for (int64_t i = threadIdx.x; i < rows; i += loss_threads) {
    sum += losses[i];
    counted += targets[i] >= 0;
  }
  double* shared = reinterpret_cast<double*>(shared_memory());
  sum = warp_sum(sum);
  counted = warp_sum(counted);
  if (lane_index() == 0) {
    shared[warp_index()] = sum;
    shared[loss_warps + warp_index()] = counted;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 0; w < loss_warps; ++w) {
    *loss += shared[w];
    *count += shared[loss_warps + w];
  }
}

}  // namespace

void norm(void* stream, View x, View gain, View bias, View y, View mean, View rstd) {
  const int64_t rows = x.rows(), width = x.cols();
  if (rows == 0) return;
  with_type(x.t, [&](auto type) {
    using T = decltype(type);
    const bool packed =
        sixteen(width * static_cast<int64_t>(sizeof(T)), {x.p, gain.p, bias.p, y.p});
    with_width<T>(packed, [&](auto n) {
      launch(stream, dim3(blocks(divide_up(rows, warps))), threads, 0, norm_kernel<T, n.value>,
             pointer<T>(x), pointer<T>(gain), pointer<T>(bias), pointer<T>(y), pointer<float>(mean),
             pointer<float>(rstd), rows, static_cast<int>(width));
    });
  });
}

void norm_back(void* stream, View x, View dy, View gain, View mean, View rstd, View dx) {
  const int64_t rows = x.rows(), width = x.cols();
  if (rows == 0) return;
  with_type(x.t, [&](auto type) {
    using T = decltype(type);
    const bool packed = sixteen(width * static_cast<int64_t>(sizeof(T)), {x.p, dy.p, gain.p, dx.p});
    with_width<T>(packed, [&](auto n) {
      launch(stream, dim3(blocks(divide_up(rows, warps))), threads, 0, norm_back_kernel<T, n.value>,
             pointer<T>(x), pointer<T>(dy), pointer<T>(gain), pointer<float>(mean),
             pointer<float>(rstd), pointer<T>(dx), rows, static_cast<int>(width));
    });
  });
}

int64_t column_chunks(int64_t rows) {
  const int64_t chunks = divide_up(rows, least_rows);
  return chunks < most_chunks ? chunks : most_chunks;
}

void bias_back(void* stream, View dy, View dbias, float* scratch) {
  const int64_t rows = dy.rows(), width = dy.cols();
  with_type(dy.t, [&](auto type) {
    using T = decltype(type);
    with_width<T>(sixteen(width * static_cast<int64_t>(sizeof(T)), {dy.p}), [&](auto n) {
      sum_columns<1, n.value>(stream, BiasColumns<T>{pointer<T>(dy), width}, rows, width, scratch,
                              {{pointer<float>(dbias), nullptr}});
    });
  });
}

void norm_back_columns(void* stream, View x, View dy, View mean, View rstd, View dgain, View dbias,
                       float* scratch) {
  const int64_t rows = x.rows(), width = x.cols();
  with_type(x.t, [&](auto type) {
    using T = decltype(type);
    with_width<T>(sixteen(width * static_cast<int64_t>(sizeof(T)), {x.p, dy.p}), [&](auto n) {
      sum_columns<2, n.value>(stream,
                              NormColumns<T>{pointer<T>(x), pointer<T>(dy), pointer<float>(mean),
                                             pointer<float>(rstd), width},
                              rows, width, scratch,
                              {{pointer<float>(dgain), pointer<float>(dbias)}});
    });
  });
}

void sumsq(void* stream, View x, int64_t tile, View out) {
  assert(x.t == DType::f32 && out.t == DType::f64 && out.size() * tile == x.size());
  if (out.size() == 0) return;
  with_width<float>(sixteen(tile * 4, {x.p}), [&](auto n) {
    launch(stream, dim3(blocks(divide_up(out.size(), warps))), threads, 0, sumsq_kernel<n.value>,
           pointer<float>(x), tile, pointer<double>(out), out.size());
  });
}

void cross_entropy(void* stream, const CrossEntropy& c) {
  const int64_t rows = c.logits.rows(), stride = c.logits.cols();
  if (rows == 0) return;
  with_type(c.logits.t, [&](auto type) {
    using T = decltype(type);
    with_width<T>(sixteen(stride * static_cast<int64_t>(sizeof(T)), {c.logits.p}), [&](auto n) {
      launch(stream, dim3(blocks(rows)), loss_threads, sizeof(Exponentials) * loss_warps,
             cross_entropy_kernel<T, n.value>, pointer<T>(c.logits), stride,
             static_cast<int>(c.vocab), c.targets, c.losses, c.gradient);
    });
  });
}

void add_losses(void* stream, const double* losses, const int32_t* targets, int64_t rows,
                double* loss, double* count) {
  launch(stream, dim3(1), loss_threads, sizeof(double) * 2 * loss_warps, add_losses_kernel, losses,
         targets, rows, loss, count);
}

}  // namespace trainlaunch::gpu
