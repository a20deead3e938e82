// Causal attention in bf16 on tensor cores, in blocks, with no more memory than its inputs (Dao,
// "FlashAttention-2"). Three kernels of one shape: a block of 64 queries, or keys, stands still and
// the blocks of the other side pass by, 16 of its rows to each of four warps.
//
//   forward   64 queries, keys pass:   S = Q K^T, P = softmax(S), O += P V
//   d_query   64 queries, keys pass:   P and dP = dO V^T again, dS = P (dP - delta), dQ += dS K
//   d_key     64 keys, queries pass:   all of it transposed, dV += P^T dO, dK += dS^T Q
//
// The backward pass takes S twice, once for each side, so that no two blocks add to one result:
// no atomics, and equal inputs give equal bits.
//
// Tiles in shared memory are row-major, [rows, HD], HD being the width of a head rounded up to 64
// or 128 with zeros. 16-byte chunks of a row change places (chunk ^ row % 8), because eight rows
// that are read at once would otherwise lie in the same banks.

#include "ops/cuda/head.h"

namespace trainlaunch::gpu {

namespace {

constexpr int warps = 4, threads = warps * warp_size;
constexpr int still = 64;    // rows of the block that stands still
constexpr int in_chunk = 8;  // elements of 16 bytes
constexpr float log2_e = 1.4426950408889634f;

template <int HD>
struct Tile {
  static constexpr int chunks = HD / in_chunk;
  bf16* p;
  TL_DEVICE bf16* at(int row, int chunk) const {
    return p + row * HD + (chunk ^ (row % 8)) * in_chunk;
  }
};

// Rows of one head in global memory; `packed`: in 16 bytes at a time.
struct Rows {
  const bf16* p;
  int64_t stride;
  int valid, width;  // rows and columns that there are
  bool packed;
};

// Fills ROWS rows of a tile, with zeros where there is nothing. Arrives with the next group of
// asynchronous copies.
template <int HD, int ROWS>
TL_DEVICE void load_tile(const Tile<HD>& tile, const Rows& from) {
  constexpr int chunks = Tile<HD>::chunks;
  for (int i = static_cast<int>(threadIdx.x); i < ROWS * chunks; i += threads) {
    const int row = i / chunks, chunk = i % chunks, column = chunk * in_chunk;
    bf16* to = tile.at(row, chunk);
    const bf16* source = from.p + row * from.stride + column;
    if (row < from.valid && column < from.width && from.packed) {
      copy_async(to, source);
    } else {
      for (int j = 0; j < in_chunk; ++j)
        to[j] = row < from.valid && column + j < from.width ? source[j] : bf16{0};
    }
  }
}

// The fragments of 16 rows and 16 columns, as a of a product.
template <int HD>
TL_DEVICE void load_a(uint32_t (&a)[4], const Tile<HD>& tile, int row, int k) {
  const int lane = lane_index();
  load_matrices(a, tile.at(row + lane % 16, k * 2 + lane / 16));
}
// Two fragments b of a product with the tile's transpose: n = 16 of its rows, k = 16 columns.
template <int HD>
TL_DEVICE void load_b_of_rows(uint32_t (&b)[4], const Tile<HD>& tile, int row, int k) {
  const int lane = lane_index();
  load_matrices(b, tile.at(row + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
}
// Two fragments b of a product with the tile itself: k = 16 of its rows, n = 16 columns.
template <int HD>
TL_DEVICE void load_b_of_columns(uint32_t (&b)[4], const Tile<HD>& tile, int row, int n) {
  const int lane = lane_index();
  load_matrices_transposed(b, tile.at(row + lane % 16, n * 2 + lane / 16));
}

// c[16, N] = a[16, HD] b[N, HD]^T: of 16 rows of tile a with N rows of tile b.
template <int HD, int N>
TL_DEVICE void multiply_rows(float (&c)[N / 8][4], const Tile<HD>& a, int row, const Tile<HD>& b) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
    for (int i = 0; i < 4; ++i) c[n][i] = 0;
#pragma unroll
  for (int k = 0; k < HD / 16; ++k) {
    uint32_t fa[4];
    load_a(fa, a, row, k);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      uint32_t fb[4];
      load_b_of_rows(fb, b, n * 16, k);
      multiply_add(c[2 * n], fa, fb[0], fb[1]);
      multiply_add(c[2 * n + 1], fa, fb[2], fb[3]);
    }
  }
}

// c[16, HD] += p[16, K] b[K, HD], p being the result of a product, rounded to bf16: what a lane
// holds of c and of a are the same elements.
template <int HD, int K>
TL_DEVICE void multiply_result(float (&c)[HD / 8][4], const float (&p)[K / 8][4],
                               const Tile<HD>& b) {
#pragma unroll
  for (int k = 0; k < K / 16; ++k) {
    const uint32_t fa[4] = {
        pack_bf16(p[2 * k][0], p[2 * k][1]), pack_bf16(p[2 * k][2], p[2 * k][3]),
        pack_bf16(p[2 * k + 1][0], p[2 * k + 1][1]), pack_bf16(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < HD / 16; ++n) {
      uint32_t fb[4];
      load_b_of_columns(fb, b, k * 16, n);
      multiply_add(c[2 * n], fa, fb[0], fb[1]);
      multiply_add(c[2 * n + 1], fa, fb[2], fb[3]);
    }
  }
}

// Sum or maximum over the four lanes that hold a row of a result.
TL_DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}
TL_DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

// Where a lane's part of a result lies in its 16 rows and 8 columns: row (i / 2), column (i % 2).
TL_DEVICE int result_row(int i) { return lane_index() / 4 + i / 2 * 8; }
TL_DEVICE int result_column(int i) { return lane_index() % 4 * 2 + i % 2; }

// Stores 16 rows of a result times `scale` of each row.
template <int HD>
TL_DEVICE void store_result(const float (&c)[HD / 8][4], bf16* to, int64_t stride, int valid,
                            int width, float scale_low, float scale_high) {
#pragma unroll
  for (int n = 0; n < HD / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = result_row(2 * half), column = n * 8 + result_column(0);
      const float scale = half == 0 ? scale_low : scale_high;
      if (row >= valid) continue;
      const uint32_t pair = pack_bf16(c[n][2 * half] * scale, c[n][2 * half + 1] * scale);
      bf16* p = to + row * stride + column;
      if (column + 1 < width && width % 2 == 0) {
        *reinterpret_cast<uint32_t*>(p) = pair;
      } else {
        if (column < width) p[0] = {static_cast<uint16_t>(pair)};
        if (column + 1 < width) p[1] = {static_cast<uint16_t>(pair >> 16)};
      }
    }
  }
}

// What all three kernels are told.
struct Head : HeadPlace {
  const bf16* qkv;
  bool packed;

  // Queries (part 0), keys (1) or values (2) from row `row` on.
  TL_DEVICE Rows rows(int part, int row) const {
    return {qkv + offset() + part * all + row * stride(), stride(), context - row, width, packed};
  }
  TL_DEVICE Rows out_rows(const bf16* out, int row) const {
    return {out + out_offset() + row * all, all, context - row, width, packed};
  }
};

template <int HD>
__global__ void __launch_bounds__(threads) forward_kernel(Head head, bf16* out, float* lse) {
  constexpr int passing = 64;
  bf16* memory = reinterpret_cast<bf16*>(shared_memory());
  const Tile<HD> queries{memory};
  const auto keys = [&](int stage) {
    return Tile<HD>{memory + (still + stage * 2 * passing) * HD};
  };
  const auto values = [&](int stage) {
    return Tile<HD>{memory + (still + (stage * 2 + 1) * passing) * HD};
  };

  // The last queries see the most keys, so their blocks start first.
  const int query0 = head.first + static_cast<int>(gridDim.x - 1 - blockIdx.x) * still;
  const int last_query = query0 + still < head.context ? query0 + still - 1 : head.context - 1;
  const int last = last_query / passing;
  const int warp_row = warp_index() * 16;

  load_tile<HD, still>(queries, head.rows(0, query0));
  load_tile<HD, passing>(keys(0), head.rows(1, 0));
  load_tile<HD, passing>(values(0), head.rows(2, 0));
  copy_async_commit();

  float sums[HD / 8][4] = {};
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of rows g and g + 8
  const float scale2 = head.scale * log2_e;

  for (int block = 0; block <= last; ++block) {
    if (block < last) {
      load_tile<HD, passing>(keys((block + 1) % 2), head.rows(1, (block + 1) * passing));
      load_tile<HD, passing>(values((block + 1) % 2), head.rows(2, (block + 1) * passing));
    }
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();

    float p[passing / 8][4];
    multiply_rows<HD, passing>(p, queries, warp_row, keys(block % 2));
    if (block * passing + passing - 1 > query0 + warp_row) {
#pragma unroll
      for (int n = 0; n < passing / 8; ++n)
        for (int i = 0; i < 4; ++i)
          if (block * passing + n * 8 + result_column(i) > query0 + warp_row + result_row(i))
            p[n][i] = -INFINITY;
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = highest[half];
#pragma unroll
      for (int n = 0; n < passing / 8; ++n)
        top = fmaxf(top, fmaxf(p[n][2 * half], p[n][2 * half + 1]));
      top = row_max(top);  // finite: key 0 is seen by all
      const float shrink = fast_exp2((highest[half] - top) * scale2);
      highest[half] = top;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < passing / 8; ++n) {
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          p[n][j] = fast_exp2(p[n][j] * scale2 - top * scale2);
          sum += p[n][j];
        }
      }
      total[half] = total[half] * shrink + sum;
#pragma unroll
      for (int n = 0; n < HD / 8; ++n)
        for (int j = 2 * half; j < 2 * half + 2; ++j) sums[n][j] *= shrink;
    }
    multiply_result<HD, passing>(sums, p, values(block % 2));
    __syncthreads();  // before the next copies overwrite what was read
  }

  total[0] = row_sum(total[0]);
  total[1] = row_sum(total[1]);
  const int row = query0 + warp_row;
  store_result<HD>(sums, out + head.out_offset() + (row - head.first) * head.all, head.all,
                   head.context - row, head.width, 1.0f / total[0], 1.0f / total[1]);
  if (lse && lane_index() % 4 == 0) {
    for (int half = 0; half < 2; ++half) {
      const int query = row + result_row(2 * half);
      if (query < head.context)
        lse[head.row_offset() + query - head.first] =
            highest[half] * head.scale + logf(total[half]);
    }
  }
}

template <int HD>
constexpr size_t forward_bytes() {
  return sizeof(bf16) * HD * (still + 4 * 64);
}

// In shared memory, behind the tiles: lse and delta of the queries that pass by.
struct QueryNumbers {
  const float *lse, *delta;
};

template <int HD>
__global__ void __launch_bounds__(threads)
    d_query_kernel(Head head, const bf16* dout, QueryNumbers numbers, bf16* dqkv) {
  constexpr int passing = 64;
  bf16* memory = reinterpret_cast<bf16*>(shared_memory());
  const Tile<HD> queries{memory}, douts{memory + still * HD};
  const auto keys = [&](int stage) {
    return Tile<HD>{memory + (2 * still + stage * 2 * passing) * HD};
  };
  const auto values = [&](int stage) {
    return Tile<HD>{memory + (2 * still + (stage * 2 + 1) * passing) * HD};
  };
  const int query0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * still;
  const int last_query = query0 + still < head.context ? query0 + still - 1 : head.context - 1;
  const int last = last_query / passing;
  const int warp_row = warp_index() * 16;

  load_tile<HD, still>(queries, head.rows(0, query0));
  load_tile<HD, still>(douts, head.out_rows(dout, query0));
  load_tile<HD, passing>(keys(0), head.rows(1, 0));
  load_tile<HD, passing>(values(0), head.rows(2, 0));
  copy_async_commit();

  float lse2[2] = {}, delta[2] = {};
  for (int half = 0; half < 2; ++half) {
    const int query = query0 + warp_row + result_row(2 * half);
    if (query >= head.context) continue;
    lse2[half] = numbers.lse[head.row_offset() + query] * log2_e;
    delta[half] = numbers.delta[head.row_offset() + query];
  }

  float sums[HD / 8][4] = {};
  const float scale2 = head.scale * log2_e;
  for (int block = 0; block <= last; ++block) {
    if (block < last) {
      load_tile<HD, passing>(keys((block + 1) % 2), head.rows(1, (block + 1) * passing));
      load_tile<HD, passing>(values((block + 1) % 2), head.rows(2, (block + 1) * passing));
    }
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();

    float s[passing / 8][4], dp[passing / 8][4];
    multiply_rows<HD, passing>(s, queries, warp_row, keys(block % 2));
    multiply_rows<HD, passing>(dp, douts, warp_row, values(block % 2));
#pragma unroll
    for (int n = 0; n < passing / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen =
            block * passing + n * 8 + result_column(i) <= query0 + warp_row + result_row(i);
        const float p = seen ? fast_exp2(s[n][i] * scale2 - lse2[i / 2]) : 0.0f;
        s[n][i] = p * (dp[n][i] - delta[i / 2]);
      }
    }
    multiply_result<HD, passing>(sums, s, keys(block % 2));
    __syncthreads();
  }
  const int row = query0 + warp_row;
  store_result<HD>(sums, dqkv + head.offset() + row * head.stride(), head.stride(),
                   head.context - row, head.width, head.scale, head.scale);
}

template <int HD>
constexpr size_t d_query_bytes() {
  return sizeof(bf16) * HD * (2 * still + 4 * 64);
}

// Queries that pass by a block of keys: fewer of a wide head, whose sums fill the registers.
template <int HD>
constexpr int passing_queries = HD == 64 ? 64 : 32;

template <int HD>
__global__ void __launch_bounds__(threads)
    d_key_kernel(Head head, const bf16* dout, QueryNumbers numbers, bf16* dqkv) {
  constexpr int passing = passing_queries<HD>;
  bf16* memory = reinterpret_cast<bf16*>(shared_memory());
  const Tile<HD> keys{memory}, values{memory + still * HD};
  const auto queries = [&](int stage) {
    return Tile<HD>{memory + (2 * still + stage * 2 * passing) * HD};
  };
  const auto douts = [&](int stage) {
    return Tile<HD>{memory + (2 * still + (stage * 2 + 1) * passing) * HD};
  };
  float* rows = reinterpret_cast<float*>(memory + (2 * still + 4 * passing) * HD);
  const auto lse2 = [&](int stage) { return rows + stage * 2 * passing; };
  const auto delta = [&](int stage) { return rows + (stage * 2 + 1) * passing; };

  const int key0 = static_cast<int>(blockIdx.x) * still;  // the first keys are seen the most
  const int warp_row = warp_index() * 16;
  const int begin = key0 / passing, end = (head.context + passing - 1) / passing;
  const auto load_queries = [&](int block) {
    const int stage = block % 2, query0 = block * passing;
    load_tile<HD, passing>(queries(stage), head.rows(0, query0));
    load_tile<HD, passing>(douts(stage), head.out_rows(dout, query0));
    for (int i = static_cast<int>(threadIdx.x); i < passing; i += threads) {
      const bool valid = query0 + i < head.context;
      const int64_t at = head.row_offset() + query0 + i;
      lse2(stage)[i] = valid ? numbers.lse[at] * log2_e : 0.0f;
      delta(stage)[i] = valid ? numbers.delta[at] : 0.0f;
    }
  };

  load_tile<HD, still>(keys, head.rows(1, key0));
  load_tile<HD, still>(values, head.rows(2, key0));
  load_queries(begin);
  copy_async_commit();

  float dk[HD / 8][4] = {}, dv[HD / 8][4] = {};
  const float scale2 = head.scale * log2_e;
  for (int block = begin; block < end; ++block) {
    if (block + 1 < end) load_queries(block + 1);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();

    const int stage = block % 2;
    float p[passing / 8][4], ds[passing / 8][4];
    multiply_rows<HD, passing>(p, keys, warp_row, queries(stage));
    multiply_rows<HD, passing>(ds, values, warp_row, douts(stage));
#pragma unroll
    for (int n = 0; n < passing / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = n * 8 + result_column(i);
        const bool seen = key0 + warp_row + result_row(i) <= block * passing + query;
        p[n][i] = seen ? fast_exp2(p[n][i] * scale2 - lse2(stage)[query]) : 0.0f;
        ds[n][i] = p[n][i] * (ds[n][i] - delta(stage)[query]);
      }
    }
    multiply_result<HD, passing>(dv, p, douts(stage));
    multiply_result<HD, passing>(dk, ds, queries(stage));
    __syncthreads();
  }
  const int row = key0 + warp_row;
  bf16* to = dqkv + head.offset() + row * head.stride();
  store_result<HD>(dk, to + head.all, head.stride(), head.context - row, head.width, head.scale,
                   head.scale);
  store_result<HD>(dv, to + 2 * head.all, head.stride(), head.context - row, head.width, 1.0f,
                   1.0f);
}

template <int HD>
constexpr size_t d_key_bytes() {
  constexpr int passing = passing_queries<HD>;
  return sizeof(bf16) * HD * (2 * still + 4 * passing) + sizeof(float) * 4 * passing;
}

Head head_of(const AttentionShape& s, View qkv, View out) {
  return {place_of(s), pointer<bf16>(qkv),
          sixteen(s.width * static_cast<int64_t>(sizeof(bf16)), {qkv.p, out.p})};
}

template <int HD>
void forward(void* stream, const AttentionForward& a) {
  launch(stream, grid_of(a.shape, still), threads, forward_bytes<HD>(), forward_kernel<HD>,
         head_of(a.shape, a.qkv, a.out), pointer<bf16>(a.out), a.lse);
}
template <int HD>
void backward(void* stream, const AttentionBackward& a) {
  const Head head = head_of(a.shape, a.qkv, a.dout);
  const QueryNumbers numbers{a.lse, a.delta};
  launch(stream, grid_of(a.shape, still), threads, d_key_bytes<HD>(), d_key_kernel<HD>, head,
         pointer<const bf16>(a.dout), numbers, pointer<bf16>(a.dqkv));
  launch(stream, grid_of(a.shape, still), threads, d_query_bytes<HD>(), d_query_kernel<HD>, head,
         pointer<const bf16>(a.dout), numbers, pointer<bf16>(a.dqkv));
}

}  // namespace

void attention_tensor(void* stream, const AttentionForward& a) {
  assert(a.qkv.t == DType::bf16 && a.shape.width <= most_tensor_width);
  if (a.shape.width <= 64) return forward<64>(stream, a);
  forward<128>(stream, a);
}

void attention_back_tensor(void* stream, const AttentionBackward& a) {
  assert(a.qkv.t == DType::bf16 && a.shape.width <= most_tensor_width && a.shape.first == 0);
  if (a.shape.width <= 64) return backward<64>(stream, a);
  backward<128>(stream, a);
}

}  // namespace trainlaunch::gpu
