// Causal attention in f32 arithmetic, for f32, and for heads too wide for attention_mma.cu. Three
// kernels of one shape: each warp has four rows that stand still, and tiles of 32 rows of the other
// side pass by in shared memory, one to each lane.
//
//   forward   queries stand, keys pass:   s = q k, p = softmax(s), out += p v
//   d_query   queries stand, keys pass:   p and dp = dout v again, ds = p (dp - delta), dq += ds k
//   d_key     keys stand, queries pass:   the same, dv += p dout, dk += ds q

#include "ops/cuda/head.h"

namespace trainlaunch::gpu {

namespace {

constexpr int warps = 4, threads = warps * warp_size;
constexpr int group = 4;                                   // rows that a warp keeps
constexpr int still = warps * group;                       // rows that a block keeps
constexpr int passing = warp_size;                         // rows of a tile
constexpr int most_columns = most_head_width / warp_size;  // of a row, for each lane

// Rows in shared memory, one apart so that lanes reading a column of them do not collide.
struct Tile {
  float* p;
  int stride;
  TL_DEVICE float* row(int i) const { return p + i * stride; }
};
constexpr int tile_floats(int rows, int width) { return rows * (width + 1); }
// Takes `count` tiles of so many rows from the front of `memory`.
TL_DEVICE Tile take(float*& memory, int rows, int width) {
  const Tile tile{memory, width + 1};
  memory += tile_floats(rows, width);
  return tile;
}

// Rows `first` to `first + rows` of what lies `stride` apart; zeros from row `end` on.
template <class T>
TL_DEVICE void load_rows(const Tile& to, const T* from, int64_t stride, int first, int rows,
                         int end, int width) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += threads) {
    const int row = i / width, c = i % width;
    to.row(row)[c] = first + row < end ? widen(from[(first + row) * stride + c]) : 0.0f;
  }
}

// s[r] = row r of the warp's group . the lane's row of the tile
TL_DEVICE void dots(float (&s)[group], const Tile& rows, const Tile& tile, int width) {
  const float* mine = tile.row(lane_index());
  for (int r = 0; r < group; ++r) s[r] = 0;
#pragma unroll 4
  for (int c = 0; c < width; ++c) {
    const float x = mine[c];
#pragma unroll
    for (int r = 0; r < group; ++r) s[r] += rows.row(warp_index() * group + r)[c] * x;
  }
}

using Sums = float[group][most_columns];

// sums[r] += sum over the tile's rows j of weights[r][j] tile[j]
TL_DEVICE void add_weighted(Sums& sums, const float (*weights)[passing], const Tile& tile,
                            int width) {
#pragma unroll
  for (int i = 0; i < most_columns; ++i) {
    const int c = i * warp_size + lane_index();
    if (c >= width) continue;
#pragma unroll 4
    for (int j = 0; j < passing; ++j) {
      const float x = tile.row(j)[c];
#pragma unroll
      for (int r = 0; r < group; ++r) sums[r][i] += weights[r][j] * x;
    }
  }
}

template <class T>
TL_DEVICE void store_row(T* to, const float (&sums)[most_columns], float scale, int width) {
#pragma unroll
  for (int i = 0; i < most_columns; ++i) {
    const int c = i * warp_size + lane_index();
    if (c < width) to[c] = narrow<T>(sums[i] * scale);
  }
}

using Weights = float (*)[passing];  // of the warp's rows, in shared memory

template <class T>
__global__ void forward_kernel(HeadPlace shape, const T* qkv, T* out, float* lse) {
  float* memory = reinterpret_cast<float*>(shared_memory());
  const int width = shape.width, lane = lane_index();
  const Tile queries = take(memory, still, width), keys = take(memory, passing, width),
             values = take(memory, passing, width);
  const Weights weights = reinterpret_cast<Weights>(memory) + warp_index() * group;

  // The last queries see the most keys, so they come first.
  const int query0 = shape.first + static_cast<int>(gridDim.x - 1 - blockIdx.x) * still;
  const int mine = query0 + warp_index() * group;
  const int end = query0 + still < shape.context ? query0 + still : shape.context;
  const T* head = qkv + shape.offset();
  load_rows(queries, head, shape.stride(), query0, still, shape.context, width);

  Sums sums = {};
  float highest[group], total[group] = {};
  for (int r = 0; r < group; ++r) highest[r] = -INFINITY;
  for (int key0 = 0; key0 < end; key0 += passing) {
    __syncthreads();
    load_rows(keys, head + shape.all, shape.stride(), key0, passing, end, width);
    load_rows(values, head + 2 * shape.all, shape.stride(), key0, passing, end, width);
    __syncthreads();
    float s[group];
    dots(s, queries, keys, width);
    for (int r = 0; r < group; ++r) {
      if (key0 + lane > mine + r) s[r] = -INFINITY;
      const float top = fmaxf(highest[r], warp_max(s[r] * shape.scale));
      const float p = expf(s[r] * shape.scale - top), shrink = expf(highest[r] - top);
      highest[r] = top;  // finite: key 0 is seen by all
      total[r] = total[r] * shrink + warp_sum(p);
      for (int i = 0; i < most_columns; ++i) sums[r][i] *= shrink;
      weights[r][lane] = p;
    }
    __syncwarp();
    add_weighted(sums, weights, values, width);
  }
  for (int r = 0; r < group; ++r) {
    const int query = mine + r;
    if (query >= shape.context) return;
    const int row = query - shape.first;
    store_row(out + shape.out_offset() + row * shape.all, sums[r], 1.0f / total[r], width);
    if (lse && lane == 0) lse[shape.row_offset() + row] = highest[r] + logf(total[r]);
  }
}

template <class T>
__global__ void d_query_kernel(HeadPlace shape, const T* qkv, const T* dout, const float* lse,
                               const float* delta, T* dqkv) {
  float* memory = reinterpret_cast<float*>(shared_memory());
  const int width = shape.width, lane = lane_index();
  const Tile queries = take(memory, still, width), douts = take(memory, still, width),
             keys = take(memory, passing, width), values = take(memory, passing, width);
  const Weights weights = reinterpret_cast<Weights>(memory) + warp_index() * group;

  const int query0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * still;
  const int mine = query0 + warp_index() * group;
  const int end = query0 + still < shape.context ? query0 + still : shape.context;
  const T* head = qkv + shape.offset();
  load_rows(queries, head, shape.stride(), query0, still, shape.context, width);
  load_rows(douts, dout + shape.out_offset(), shape.all, query0, still, shape.context, width);

  Sums sums = {};
  for (int key0 = 0; key0 < end; key0 += passing) {
    __syncthreads();
    load_rows(keys, head + shape.all, shape.stride(), key0, passing, end, width);
    load_rows(values, head + 2 * shape.all, shape.stride(), key0, passing, end, width);
    __syncthreads();
    float s[group], dp[group];
    dots(s, queries, keys, width);
    dots(dp, douts, values, width);
    for (int r = 0; r < group; ++r) {
      const int query = mine + r;
      const bool seen = key0 + lane <= query && query < shape.context;
      const int64_t at = shape.row_offset() + query;
      weights[r][lane] = seen ? expf(s[r] * shape.scale - lse[at]) * (dp[r] - delta[at]) : 0.0f;
    }
    __syncwarp();
    add_weighted(sums, weights, keys, width);
  }
  for (int r = 0; r < group && mine + r < shape.context; ++r)
    store_row(dqkv + shape.offset() + (mine + r) * shape.stride(), sums[r], shape.scale, width);
}

template <class T>
__global__ void d_key_kernel(HeadPlace shape, const T* qkv, const T* dout, const float* lse,
                             const float* delta, T* dqkv) {
  float* memory = reinterpret_cast<float*>(shared_memory());
  const int width = shape.width, lane = lane_index();
  const Tile keys = take(memory, still, width), values = take(memory, still, width),
             queries = take(memory, passing, width), douts = take(memory, passing, width);
  const Weights weights = reinterpret_cast<Weights>(memory) + warp_index() * group;
  const Weights dweights = weights + still;

  const int key0 = static_cast<int>(blockIdx.x) * still;
  const int mine = key0 + warp_index() * group;
  const T* head = qkv + shape.offset();
  load_rows(keys, head + shape.all, shape.stride(), key0, still, shape.context, width);
  load_rows(values, head + 2 * shape.all, shape.stride(), key0, still, shape.context, width);

  Sums dk = {}, dv = {};
  for (int query0 = key0 / passing * passing; query0 < shape.context; query0 += passing) {
    __syncthreads();
    load_rows(queries, head, shape.stride(), query0, passing, shape.context, width);
    load_rows(douts, dout + shape.out_offset(), shape.all, query0, passing, shape.context, width);
    __syncthreads();
    float s[group], dp[group];
    dots(s, keys, queries, width);
    dots(dp, values, douts, width);
    const int query = query0 + lane;
    const bool valid = query < shape.context;
    const float row_lse = valid ? lse[shape.row_offset() + query] : 0.0f;
    const float row_delta = valid ? delta[shape.row_offset() + query] : 0.0f;
    for (int r = 0; r < group; ++r) {
      const float p = valid && mine + r <= query ? expf(s[r] * shape.scale - row_lse) : 0.0f;
      weights[r][lane] = p;
      dweights[r][lane] = p * (dp[r] - row_delta);
    }
    __syncwarp();
    add_weighted(dv, weights, douts, width);
    add_weighted(dk, dweights, queries, width);
  }
  for (int r = 0; r < group && mine + r < shape.context; ++r) {
    T* to = dqkv + shape.offset() + (mine + r) * shape.stride();
    store_row(to + shape.all, dk[r], shape.scale, width);
    store_row(to + 2 * shape.all, dv[r], 1.0f, width);
  }
}

// One warp to each query of a head.
template <class T>
__global__ void delta_kernel(HeadPlace shape, const T* out, const T* dout, float* delta) {
  const int query = static_cast<int>(blockIdx.x) * warps + warp_index();
  if (query >= shape.context) return;
  const int64_t at = shape.out_offset() + query * shape.all;
  float sum = 0;
  for (int c = lane_index(); c < shape.width; c += warp_size)
    sum += widen(out[at + c]) * widen(dout[at + c]);
  sum = warp_sum(sum);
  if (lane_index() == 0) delta[shape.row_offset() + query] = sum;
}

// Tiles that stand and tiles that pass, and the weights of `sides`.
size_t shared_bytes(const AttentionShape& s, int standing, int going, int sides) {
  const int width = static_cast<int>(s.width);
  return sizeof(float) *
         static_cast<size_t>(standing * tile_floats(still, width) +
                             going * tile_floats(passing, width) + sides * still * passing);
}

}  // namespace

void attention(void* stream, const AttentionForward& a) {
  assert(a.shape.width <= most_head_width);
  with_type(a.qkv.t, [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(a.shape, still), threads, shared_bytes(a.shape, 1, 2, 1),
           forward_kernel<T>, place_of(a.shape), pointer<T>(a.qkv), pointer<T>(a.out), a.lse);
  });
}

void attention_delta(void* stream, const AttentionShape& shape, View out, View dout, float* delta) {
  with_type(out.t, [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(shape, warps), threads, 0, delta_kernel<T>, place_of(shape),
           pointer<T>(out), pointer<T>(dout), delta);
  });
}

void attention_back(void* stream, const AttentionBackward& a) {
  assert(a.shape.width <= most_head_width && a.shape.first == 0);
  with_type(a.qkv.t, [&](auto type) {
    using T = decltype(type);
    launch(stream, grid_of(a.shape, still), threads, shared_bytes(a.shape, 2, 2, 2),
           d_key_kernel<T>, place_of(a.shape), pointer<T>(a.qkv), pointer<T>(a.dout), a.lse,
           a.delta, pointer<T>(a.dqkv));
    launch(stream, grid_of(a.shape, still), threads, shared_bytes(a.shape, 2, 2, 1),
           d_query_kernel<T>, place_of(a.shape), pointer<T>(a.qkv), pointer<T>(a.dout), a.lse,
           a.delta, pointer<T>(a.dqkv));
  });
}

}  // namespace trainlaunch::gpu
