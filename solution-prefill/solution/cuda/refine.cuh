// A chunk of a tile again, if its values do not fit the usual float16 operands: refined, or token by token in float32.
#pragma once

#include "fragments.cuh"

namespace gdn {

// Computes chunk c of the item token by token, from memory, in float32: outputs, and S. state[j] has columns 8j + 2t
// and 8j + 2t + 1 of rows g and g + 8 of the tile.
__device__ __forceinline__ void walk_tokens(const Arguments& args, const Item& item, int c, int tile,
                                            float4 (&state)[16]) {
  const int lane = reread_thread_index() % 32, g = lane / 4, t = lane % 4;
  const int last = min(kChunk, item.tokens - c * kChunk);
  const float a_log = args.a_log[item.hv], dt_bias = args.dt_bias[item.hv];
#pragma unroll 1
  for (int i = 0; i < last; ++i) {
    const int64_t token = item.begin + c * kChunk + i;
    const uint32_t* k = reinterpret_cast<const uint32_t*>(args.k + (token * kHeadsQK + item.hv / 2) * kDim + 2 * t);
    const uint32_t* q = reinterpret_cast<const uint32_t*>(args.q + (token * kHeadsQK + item.hv / 2) * kDim + 2 * t);
    const float decay = exp2_approx(log2_decay(a_log, __bfloat162float(args.a[token * kHeadsV + item.hv]), dt_bias));
    const float beta = sigmoid(__bfloat162float(args.b[token * kHeadsV + item.hv]));
    const int64_t at = (token * kHeadsV + item.hv) * kDim + item.row + tile * 16 + g;
    float d0 = 0.0f, d1 = 0.0f, o0 = 0.0f, o1 = 0.0f;
#pragma unroll 4
    for (int j = 0; j < 16; ++j) {
      const uint32_t w = k[4 * j];
      const float4 s = state[j];
      d0 += s.x * low(w) + s.y * high(w);
      d1 += s.z * low(w) + s.w * high(w);
    }
    d0 += __shfl_xor_sync(kAllLanes, d0, 1), d1 += __shfl_xor_sync(kAllLanes, d1, 1);
    d0 += __shfl_xor_sync(kAllLanes, d0, 2), d1 += __shfl_xor_sync(kAllLanes, d1, 2);
    d0 = beta * (__bfloat162float(args.v[at]) - decay * d0);
    d1 = beta * (__bfloat162float(args.v[at + 8]) - decay * d1);
#pragma unroll 4
    for (int j = 0; j < 16; ++j) {
      const uint32_t w = k[4 * j], y = q[4 * j];
      float4 s = state[j];
      s.x = decay * s.x + d0 * low(w), s.y = decay * s.y + d0 * high(w);
      s.z = decay * s.z + d1 * low(w), s.w = decay * s.w + d1 * high(w);
      state[j] = s;
      o0 += s.x * low(y) + s.y * high(y);
      o1 += s.z * low(y) + s.w * high(y);
    }
    o0 += __shfl_xor_sync(kAllLanes, o0, 1), o1 += __shfl_xor_sync(kAllLanes, o1, 1);
    o0 += __shfl_xor_sync(kAllLanes, o0, 2), o1 += __shfl_xor_sync(kAllLanes, o1, 2);
    if (t == 0) {
      args.output[at] = __float2bfloat16_rn(args.scale * o0);
      args.output[at + 8] = __float2bfloat16_rn(args.scale * o1);
    }
  }
}

// x and y in two parts, of which hi is pack(x, y).
__device__ __forceinline__ void split(uint32_t& hi, uint32_t& lo, float x, float y) {
  hi = pack(x, y);
  const float2 h = __half22float2(*reinterpret_cast<const __half2*>(&hi));
  lo = pack(x - h.x, y - h.y);
}

// Computes the chunk of a stage, of one tile, in nearly float32: outputs, and S. Operands that are rounded elsewhere
// have two parts here. A step of iterative refinement, U + T (RHS - (I + A) U), with A computed again, removes the
// error that rounding T leaves in U. state as for walk_tokens. output: of the chunk's first token and the tile's first
// row; left: tokens from there on.
template <typename S>
__device__ __forceinline__ void refine(float4 (&state)[16], uint32_t stage, int tile, __nv_bfloat16* output, int left,
                                       float scale) {
  const int lane = reread_thread_index() % 32, g = lane >> 2, t = lane & 3, matrix_row = lane & 7, matrix = lane >> 3;
  const uint32_t as_rows = ((matrix & 1) * 8 + matrix_row) * 256 + (((matrix >> 1) ^ matrix_row) << 4);
  float u[4][4] = {}, e[4][4];
  uint32_t hi[2][4], lo[2][4];  // of U
  // e = S x for the 32 rows of k or q.
  const auto multiply = [&](uint32_t x) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      e[n][0] = e[n][1] = e[n][2] = e[n][3] = 0.0f;
    }
#pragma unroll 4
    for (int kk = 0; kk < 8; ++kk) {  // 16 columns
      uint32_t a_hi[4], a_lo[4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 part = state[2 * kk + n];
        split(a_hi[2 * n], a_lo[2 * n], part.x, part.y);
        split(a_hi[2 * n + 1], a_lo[2 * n + 1], part.z, part.w);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t b[4];
        load_matrices(b, stage + x + (as_rows ^ (kk << 5)) + j * 16 * 256);
        mma(e[2 * j], a_hi, b[0], b[2]);
        mma(e[2 * j + 1], a_hi, b[1], b[3]);
        mma(e[2 * j], a_lo, b[0], b[2]);
        mma(e[2 * j + 1], a_lo, b[1], b[3]);
      }
    }
  };
  // hi and lo, each token's times its weight.
  const auto split_tokens = [&](const float2(&weight)[4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        split(hi[n / 2][n % 2 * 2 + h], lo[n / 2][n % 2 * 2 + h], weight[n].x * u[n][2 * h],
              weight[n].y * u[n][2 * h + 1]);
      }
    }
  };
  const float2 ones[4] = {{1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}};
  // u += T e
  const auto solve = [&] {
    const uint32_t lower_square = stage + S::kT + ((matrix >> 1) * 8 + matrix_row) * kPitch * 2 + (matrix & 1) * 16,
                   rows = stage + S::kT + matrix_row * kPitch * 2 + matrix * 16;
    uint32_t a[2][4], b[3][4];
    load_lower(b, lower_square, rows);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      a[n / 2][n % 2 * 2] = pack(e[n][0], e[n][1]);
      a[n / 2][n % 2 * 2 + 1] = pack(e[n][2], e[n][3]);
    }
    multiply_lower(u, a, b);
  };
  // e += P U, or -A U.
  const auto add_products = [&](bool of_q) {
#pragma unroll
    for (int block = 0; block < 3; ++block) {  // of 16 x 16
      const int row = (block + 1) / 2, column = block / 2;
      float a[2][4] = {};
#pragma unroll 4
      for (int i = 0; i < 8; ++i) {
        uint32_t y[4], k[4];
        load_matrices(y, stage + (of_q ? S::kQ : S::kK) + (as_rows ^ (i << 5)) + row * 16 * 256);
        load_matrices(k, stage + S::kK + (as_rows ^ (i << 5)) + column * 16 * 256);
        mma(a[0], y, k[0], k[2]);
        mma(a[1], y, k[1], k[3]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // 8 rows
        const int i = 16 * row + 8 * h + g, most = of_q ? i : i - 1;
        const float log_sum = load_float(stage + S::kLogSum + 4 * i),
                    factor = of_q ? 1.0f : -load_float(stage + S::kBeta + 4 * i);
        uint32_t a_hi[2], a_lo[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int j = 16 * column + 8 * n + 2 * t;
          const float2 from = load_float2(stage + S::kLogSum + 4 * j);
          split(a_hi[n], a_lo[n], j <= most ? factor * exp2_approx(log_sum - from.x) * a[n][2 * h] : 0.0f,
                j + 1 <= most ? factor * exp2_approx(log_sum - from.y) * a[n][2 * h + 1] : 0.0f);
        }
        mma(e[2 * row + h], hi[column], a_hi[0], a_hi[1]);
        mma(e[2 * row + h], hi[column], a_lo[0], a_lo[1]);
        mma(e[2 * row + h], lo[column], a_hi[0], a_hi[1]);
      }
    }
  };

#pragma unroll 1
  for (int of_q = 0; of_q < 2; ++of_q) {  // U, then outputs
    multiply(of_q ? S::kQ : S::kK);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t v[4];  // of 16 tokens
      load_transposed(
          v, stage + S::kV + unit_of_v<S>(n / 2 * 16 + (matrix >> 1) * 8 + matrix_row, 2 * tile + (matrix & 1)) * 16);
      const float2 beta = load_float2(stage + S::kBeta + n * 32 + 8 * t),
                   decay = load_float2(stage + S::kDecay + n * 32 + 8 * t);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t w = v[n % 2 * 2 + h];
        e[n][2 * h] *= decay.x, e[n][2 * h + 1] *= decay.y;
        if (!of_q) {  // the right-hand side
          e[n][2 * h] = beta.x * (low(w) - e[n][2 * h]), e[n][2 * h + 1] = beta.y * (high(w) - e[n][2 * h + 1]);
        }
      }
    }
    if (!of_q) {
      solve();
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        e[n][0] -= u[n][0], e[n][1] -= u[n][1], e[n][2] -= u[n][2], e[n][3] -= u[n][3];
      }
    }
    split_tokens(ones);
    add_products(of_q);
    if (!of_q) {
      solve();
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int token = 8 * n + 2 * t + m % 2;
      if (token < left) {
        output[token * kHeadsV * kDim + g + m / 2 * 8] = __float2bfloat16_rn(scale * e[n][m]);
      }
    }
  }

  float2 to_end[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    to_end[n] = load_float2(stage + S::kDecayToEnd + n * 32 + 8 * t);
  }
  split_tokens(to_end);
  const float all = load_float(stage + S::kDecay + 4 * (kChunk - 1));
#pragma unroll 4
  for (int i = 0; i < 8; ++i) {
    float s[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 part = state[2 * i + n];
      s[n][0] = all * part.x, s[n][1] = all * part.y, s[n][2] = all * part.z, s[n][3] = all * part.w;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t k[4];
      load_transposed(k, stage + S::kK + (as_rows ^ (i << 5)) + j * 16 * 256);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        mma(s[n], hi[j], k[2 * n], k[2 * n + 1]);
        mma(s[n], lo[j], k[2 * n], k[2 * n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      state[2 * i + n] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    }
  }
}

// Computes the chunk with which the last `left` tokens of the item begin, if the float16 path is not accurate enough:
// refined, or token by token if `large`. state is in memory, because in registers it would spill the values of the
// usual way.
template <typename S>
__device__ __forceinline__ void redo_chunk(const Arguments& args, Item item, int left, int tile, float4 (&state)[16],
                                           uint32_t stage, bool large) {
  item.begin = load_long(args.cu_seqlens + item.sequence);
  item.tokens = static_cast<int>(load_long(args.cu_seqlens + item.sequence + 1) - item.begin);
  if (large) {
    walk_tokens(args, item, (item.tokens - left) / kChunk, tile, state);
  } else {
    refine<S>(state, stage, tile,
              args.output + ((item.begin + item.tokens - left) * kHeadsV + item.hv) * kDim + item.row + tile * 16, left,
              args.scale);
  }
}

__device__ __forceinline__ void to_memory(float4 (&state)[16], const float (&s)[16][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    state[i] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
  }
}

__device__ __forceinline__ void to_registers(float (&s)[16][4], const float4 (&state)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    s[i][0] = state[i].x, s[i][1] = state[i].y, s[i][2] = state[i].z, s[i][3] = state[i].w;
  }
}

}  // namespace gdn
