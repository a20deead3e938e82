// The embedding, and its gradient without atomics: rows of the same token are added up in the order
// of the rows, so equal inputs give equal bits.

#include "ops/cuda/dispatch.h"
#include "ops/cuda/kernels.h"

namespace trainlaunch::gpu {

namespace {

constexpr unsigned threads = 256;

template <class T, int N>
__global__ void embed_kernel(const int32_t* tokens, int64_t context, const T* token_table,
                             const T* position_table, T* out, int64_t rows, int64_t width) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= rows * width) return;
  const int64_t row = i / width, c = i % width;
  const auto a = load<N>(token_table + tokens[row] * width + c),
             b = load<N>(position_table + row % context * width + c);
  Pack<T, N> sum;
  for (int j = 0; j < N; ++j) sum[j] = narrow<T>(widen(a[j]) + widen(b[j]));
  store<N>(out + i, sum);
}

// sorted[p] = the row that is p-th by (token, row): its place is the number of rows before it.
// Where a token begins, ends[p] is the place after its last row; elsewhere 0. The square of the
// rows, but of comparisons only: less than a hundredth of a step.
__global__ void sort_rows_kernel(const int32_t* tokens, int rows, int32_t* sorted, int32_t* ends) {
  int32_t* shared = reinterpret_cast<int32_t*>(shared_memory());
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int32_t token = row < rows ? tokens[row] : 0;
  int smaller = 0, equal = 0, before = 0;
  for (int first = 0; first < rows; first += threads) {
    const int other = first + static_cast<int>(threadIdx.x);
    __syncthreads();
    shared[threadIdx.x] = other < rows ? tokens[other] : INT32_MAX;
    __syncthreads();
    for (int i = 0; i < static_cast<int>(threads); ++i) {
      smaller += shared[i] < token;
      equal += shared[i] == token;
      before += shared[i] == token && first + i < row;
    }
  }
  if (row >= rows) return;
  sorted[smaller + before] = row;
  ends[smaller + before] = before == 0 ? smaller + equal : 0;
}

// One block to each place at which a token begins: adds up all its rows.
template <class T, int N>
__global__ void embed_back_kernel(const int32_t* tokens, const int32_t* sorted, const int32_t* ends,
                                  const T* dout, float* dtable, int64_t width) {
  const int begin = static_cast<int>(blockIdx.x), end = ends[begin];
  const int64_t token = tokens[sorted[begin]];
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < width && begin < end;
       c += blockDim.x * N) {
    float sums[N] = {};
#pragma unroll 4
    for (int p = begin; p < end; ++p) {
      const auto d = load<N>(dout + sorted[p] * width + c);
      for (int j = 0; j < N; ++j) sums[j] += widen(d[j]);
    }
    for (int j = 0; j < N; ++j) dtable[token * width + c + j] += sums[j];
  }
}

template <class T, int N>
__global__ void positions_back_kernel(const T* dout, int64_t sequences, int64_t context,
                                      float* dtable, int64_t width) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= context * width) return;
  float sums[N] = {};
  for (int64_t s = 0; s < sequences; ++s) {
    const auto d = load<N>(dout + s * context * width + i);
    for (int j = 0; j < N; ++j) sums[j] += widen(d[j]);
  }
  for (int j = 0; j < N; ++j) dtable[i + j] += sums[j];
}

}  // namespace

void embed(void* stream, const int32_t* tokens, int64_t rows, int64_t context, View token_table,
           View position_table, View out) {
  const int64_t width = out.cols();
  if (rows == 0) return;
  with_type(out.t, [&](auto type) {
    using T = decltype(type);
    const bool packed =
        sixteen(width * static_cast<int64_t>(sizeof(T)), {token_table.p, position_table.p, out.p});
    with_width<T>(packed, [&](auto n) {
      launch(stream, dim3(blocks(divide_up(rows * width, int64_t{threads} * n.value))), threads, 0,
             embed_kernel<T, n.value>, tokens, context, pointer<T>(token_table),
             pointer<T>(position_table), pointer<T>(out), rows, width);
    });
  });
}

void embed_back(void* stream, const int32_t* tokens, int64_t rows, int64_t context, View dout,
                View dtoken_table, View dposition_table, int32_t* scratch) {
  const int64_t width = dout.cols();
  if (rows == 0) return;
  assert(rows < INT32_MAX);
  launch(stream, dim3(blocks(divide_up(rows, threads))), threads, sizeof(int32_t) * threads,
         sort_rows_kernel, tokens, static_cast<int>(rows), scratch, scratch + rows);
  with_type(dout.t, [&](auto type) {
    using T = decltype(type);
    with_width<T>(sixteen(width * static_cast<int64_t>(sizeof(T)), {dout.p}), [&](auto n) {
      constexpr unsigned block = 128;
      launch(stream, dim3(blocks(rows)), block, 0, embed_back_kernel<T, n.value>, tokens,
             static_cast<const int32_t*>(scratch), static_cast<const int32_t*>(scratch + rows),
             pointer<T>(dout), pointer<float>(dtoken_table), width);
      launch(stream, dim3(blocks(divide_up(context * width, int64_t{threads} * n.value))), threads,
             0, positions_back_kernel<T, n.value>, pointer<T>(dout), rows / context, context,
             pointer<float>(dposition_table), width);
    });
  });
}

}  // namespace trainlaunch::gpu
