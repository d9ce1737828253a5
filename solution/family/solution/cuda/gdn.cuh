// The core of the GDN decode family: one to eight tokens for each row of the batch, any layout and dtype of the state.
//
// A warp owns 16 values (rows of S) of one head and keeps them in registers: S is read once and written once. What all
// tokens need of the old state comes from it at once, on the tensor cores:
//
//   X = S [k_0 .. k_T-1 | q_0 .. q_T-1]                           16 x 2T
//   U = beta_t (v_t - G_t X_k)                                    G_t: product of the decays up to t
//   delta = U M^T,  M = (I + A)^-1,  A_tj = beta_t D_tj k_t.k_j   D_tj: product of the decays after j up to t; j < t
//   output = G_t X_q + delta P^T,    P_tj = D_tj q_t.k_j          j <= t
//   S' = G_T-1 S + sum over j of D_T-1,j delta_j k_j^T
//
// M and P depend on q, k and the gates alone: they are made while the state is still on its way. The products with S take
// float32 numbers as two of tf32 (their error is about 2^-20), bfloat16 ones as they are; q and k are bfloat16 and exact.
// With l2norm the products are scaled, not q and k.
//
// Lane 4g + c of a warp has rows 2g and 2g + 1 of the 16, and of each 32 columns that column() names, in both layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace gdn {

constexpr int kDim = 128;  // K and V
constexpr int kMaxTokens = 8;
constexpr int kRows = 16;      // of a warp
constexpr int kMaxWarps = 4;  // of a block

// Device pointers and extents of a call. HV is a multiple of HQ; value head h is served by query and key head h / (HV / HQ).
struct Arguments {
  const __nv_bfloat16* q;  // (B, T, HQ, 128)
  const __nv_bfloat16* k;  // (B, T, HQ, 128)
  const __nv_bfloat16* v;  // (B, T, HV, 128)
  const __nv_bfloat16* a;  // (B, T, HV)
  const __nv_bfloat16* b;  // (B, T, HV)
  const float* a_log;      // (HV)
  const float* dt_bias;    // (HV)
  __nv_bfloat16* output;   // (B, T, HV, 128)
  const void* state;       // (slots, HV, 128, 128); nullptr: zeros
  void* new_state;         // where the state after the last token goes, perhaps state itself; nullptr: nowhere
  void* token_states;      // where the state after each token goes; nullptr: nowhere
  const void* read;        // (B) slots of state; nullptr: row b. Below 0: padding, output 0, no state read or written
  const void* write;       // (B) slots of new_state; nullptr: as read. Below 0: not written
  const void* token_slots;  // (B, T) slots of token_states; nullptr: b * token_rows + t. Below 0: not written
  int64_t state_stride, new_state_stride, token_stride;  // elements from slot to slot
  int64_t token_rows;
  int batch, tokens, heads_qk, heads_v;
  uint64_t over_ratio;  // 2^32 over heads_v / heads_qk, rounded up
  float scale;
  bool l2norm;
  bool wide, write_wide, slots_wide;  // read, write, token_slots are int64, else int32
};

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float low(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

// Two floats as bfloat16, the first in the lower half.
__device__ __forceinline__ uint32_t pack(float x, float y) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  return r;
}

__device__ __forceinline__ uint4 load16(const void* p) {
  uint4 r;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}

__device__ __forceinline__ uint2 load8(const void* p) {
  uint2 r;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  return r;
}

__device__ __forceinline__ uint32_t load4(const void* p) {
  uint32_t r;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(r) : "l"(p));
  return r;
}

// Products of 16 x 16 and 16 x 8 with 16 x 8 and 8 x 8 matrices.
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16_k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

__device__ __forceinline__ void mma_tf32(float (&d)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// x truncated to tf32; the remainder is exact in float32.
__device__ __forceinline__ float coarse(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

// d += a b^T in three products of parts: a as the result of a product, b as the lane's two numbers of one.
__device__ __forceinline__ void mma_float(float (&d)[4], const float (&a)[4], float b0, float b1) {
  // Columns 2c and 2c + 1 of a result are taken for columns c and c + 4 of a factor.
  const float ah[4] = {coarse(a[0]), coarse(a[2]), coarse(a[1]), coarse(a[3])};
  const float al[4] = {a[0] - ah[0], a[2] - ah[1], a[1] - ah[2], a[3] - ah[3]};
  const float b0h = coarse(b0), b1h = coarse(b1);
  mma_tf32(d, al, b0h, b1h);
  mma_tf32(d, ah, b0 - b0h, b1 - b1h);
  mma_tf32(d, ah, b0h, b1h);
}

__device__ __forceinline__ uint32_t transpose(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

struct Gates {
  float decay, beta;
};

// The gates of a token; right to about 1e-6 of the decay's exponent, so a small softplus is a polynomial of e.
__device__ __forceinline__ Gates gates(float a_log, float a, float dt_bias, float b) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float x = (a + dt_bias) * kLog2E;
  const float e = exp2_approx(x);
  // log2(1 + e) / e for e from 0 to 0.5, to 3e-8: least squares of the relative error, constant first.
  constexpr float kLog2OnePlus[] = {1.44269502f, -0.721339047f, 0.480616659f, -0.357095629f,
                                    0.266183972f, -0.164029971f, 0.0557941049f};
  float small = kLog2OnePlus[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) {
    small = fmaf(small, e, kLog2OnePlus[i]);
  }
  const float softplus = e < 0.5f ? small * e : x > 20.0f * kLog2E ? x : log2_approx(1.0f + e);
  return {exp2_approx(-exp2_approx(a_log * kLog2E) * softplus), __fdividef(1.0f, 1.0f + exp2_approx(-b * kLog2E))};
}

__device__ __forceinline__ int64_t slot(const void* indices, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
}

// The 16 rows of a warp. Pair p of the lane's 16 is columns kFirst * c + column(2p) and the next; pointers are to the lane's
// first column.
template <typename T, bool kVLast>
struct Tile;

template <bool kVLast>
struct Tile<float, kVLast> {
  float s[2][32] = {};

  static constexpr int kFirst = 4;  // the lane's columns start at kFirst * c
  static constexpr __host__ __device__ int column(int l) { return 16 * (l / 4) + l % 4; }

  static __device__ __forceinline__ void load_vector(uint32_t (&to)[16], const __nv_bfloat16* from) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint2 x = load8(from + column(4 * i));
      to[2 * i] = x.x, to[2 * i + 1] = x.y;
    }
  }

  __device__ __forceinline__ void load(const float* from) {
    if constexpr (kVLast) {
#pragma unroll
      for (int l = 0; l < 32; ++l) {
        const uint2 x = load8(from + column(l) * kDim);
        s[0][l] = __uint_as_float(x.x), s[1][l] = __uint_as_float(x.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int r = i % 2, l = i / 2 * 4;
        const uint4 x = load16(from + r * kDim + column(l));
        s[r][l] = __uint_as_float(x.x), s[r][l + 1] = __uint_as_float(x.y);
        s[r][l + 2] = __uint_as_float(x.z), s[r][l + 3] = __uint_as_float(x.w);
      }
    }
  }

  // d += S b^T, where b has the pairs of 8 vectors.
  __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&b)[16]) const {
    float e[4] = {};  // the two chains of products depend on nothing of each other
#pragma unroll
    for (int p = 0; p < 16; ++p) {
      const float b0 = low(b[p]), b1 = high(b[p]);
      const float fine_of[4] = {s[0][2 * p], s[1][2 * p], s[0][2 * p + 1], s[1][2 * p + 1]};
      const float h[4] = {coarse(fine_of[0]), coarse(fine_of[1]), coarse(fine_of[2]), coarse(fine_of[3])};
      const float l[4] = {fine_of[0] - h[0], fine_of[1] - h[1], fine_of[2] - h[2], fine_of[3] - h[3]};
      mma_tf32(e, l, b0, b1);
      mma_tf32(d, h, b0, b1);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] += e[i];
    }
  }

  // Stores decay S + delta k, where delta is the result of a product and k^T the transposed pairs of k.
  __device__ __forceinline__ void update(float* to, float decay, const float (&delta)[4], const uint32_t (&k)[16],
                                         uint32_t mask) {
    const uint32_t h0 = pack(delta[0], delta[1]), h1 = pack(delta[2], delta[3]);
    const float l[4] = {delta[0] - low(h0), delta[1] - high(h0), delta[2] - low(h1), delta[3] - high(h1)};
    const uint32_t l0 = pack(l[0], l[1]), l1 = pack(l[2], l[3]);
    const uint32_t r0 = pack(l[0] - low(l0), l[1] - high(l0)), r1 = pack(l[2] - low(l1), l[3] - high(l1));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float d[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int l = 4 * i + 2 * h;
        const uint32_t b = transpose(k[2 * i + h]) & mask;
        d[h][0] = decay * s[0][l], d[h][1] = decay * s[0][l + 1], d[h][2] = decay * s[1][l], d[h][3] = decay * s[1][l + 1];
        mma_bf16_k8(d[h], r0, r1, b);
        mma_bf16(d[h], h0, h1, l0, l1, b, b);
      }
      if constexpr (kVLast) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          *reinterpret_cast<float2*>(to + column(4 * i + e) * kDim) = {d[e / 2][e % 2], d[e / 2][2 + e % 2]};
        }
      } else {
        *reinterpret_cast<float4*>(to + column(4 * i)) = {d[0][0], d[0][1], d[1][0], d[1][1]};
        *reinterpret_cast<float4*>(to + kDim + column(4 * i)) = {d[0][2], d[0][3], d[1][2], d[1][3]};
      }
    }
  }

  __device__ __forceinline__ void widen(float (&wide)[2][32]) const {
#pragma unroll
    for (int l = 0; l < 32; ++l) {
      wide[0][l] = s[0][l], wide[1][l] = s[1][l];
    }
  }

  static __device__ __forceinline__ void store(float* to, const float (&x)[2][32]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kVLast) {
#pragma unroll
        for (int l = 4 * i; l < 4 * i + 4; ++l) {
          *reinterpret_cast<float2*>(to + column(l) * kDim) = {x[0][l], x[1][l]};
        }
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          *reinterpret_cast<float4*>(to + r * kDim + column(4 * i)) = {x[r][4 * i], x[r][4 * i + 1], x[r][4 * i + 2],
                                                                         x[r][4 * i + 3]};
        }
      }
    }
  }
};

template <bool kVLast>
struct Tile<__nv_bfloat16, kVLast> {
  uint32_t s[2][16] = {};  // pairs

  static constexpr int kFirst = 8;
  static constexpr __host__ __device__ int column(int l) { return 32 * (l / 8) + l % 8; }

  static __device__ __forceinline__ void load_vector(uint32_t (&to)[16], const __nv_bfloat16* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 x = load16(from + column(8 * i));
      to[4 * i] = x.x, to[4 * i + 1] = x.y, to[4 * i + 2] = x.z, to[4 * i + 3] = x.w;
    }
  }

  __device__ __forceinline__ void load(const __nv_bfloat16* from) {
    if constexpr (kVLast) {
      uint32_t x[32];
#pragma unroll
      for (int l = 0; l < 32; ++l) {
        x[l] = load4(from + column(l) * kDim);
      }
#pragma unroll
      for (int p = 0; p < 16; ++p) {
        s[0][p] = __byte_perm(x[2 * p], x[2 * p + 1], 0x5410), s[1][p] = __byte_perm(x[2 * p], x[2 * p + 1], 0x7632);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = i % 2, p = i / 2 * 4;
        const uint4 x = load16(from + r * kDim + column(2 * p));
        s[r][p] = x.x, s[r][p + 1] = x.y, s[r][p + 2] = x.z, s[r][p + 3] = x.w;
      }
    }
  }

  __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&b)[16]) const {
    float e[4] = {};
#pragma unroll
    for (int p = 0; p < 16; p += 4) {
      mma_bf16(d, s[0][p], s[1][p], s[0][p + 1], s[1][p + 1], b[p], b[p + 1]);
      mma_bf16(e, s[0][p + 2], s[1][p + 2], s[0][p + 3], s[1][p + 3], b[p + 2], b[p + 3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] += e[i];
    }
  }

  // Stores rows x and y of 8 columns.
  static __device__ __forceinline__ void put(__nv_bfloat16* to, int i, const uint32_t (&x)[4], const uint32_t (&y)[4]) {
    if constexpr (kVLast) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        *reinterpret_cast<uint32_t*>(to + column(8 * i + e) * kDim) =
            __byte_perm(x[e / 2], y[e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
      }
    } else {
      *reinterpret_cast<uint4*>(to + column(8 * i)) = {x[0], x[1], x[2], x[3]};
      *reinterpret_cast<uint4*>(to + kDim + column(8 * i)) = {y[0], y[1], y[2], y[3]};
    }
  }

  __device__ __forceinline__ void update(__nv_bfloat16* to, float decay, const float (&delta)[4],
                                         const uint32_t (&k)[16], uint32_t mask) {
    const uint32_t h0 = pack(delta[0], delta[1]), h1 = pack(delta[2], delta[3]);
    const uint32_t l0 = pack(delta[0] - low(h0), delta[1] - high(h0)), l1 = pack(delta[2] - low(h1), delta[3] - high(h1));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t x[4], y[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int p = 4 * i + w;
        const uint32_t b = transpose(k[p]) & mask;
        float d[4] = {decay * low(s[0][p]), decay * high(s[0][p]), decay * low(s[1][p]), decay * high(s[1][p])};
        mma_bf16(d, h0, h1, l0, l1, b, b);
        x[w] = pack(d[0], d[1]), y[w] = pack(d[2], d[3]);
      }
      put(to, i, x, y);
    }
  }

  __device__ __forceinline__ void widen(float (&wide)[2][32]) const {
#pragma unroll
    for (int l = 0; l < 32; ++l) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        wide[r][l] = l % 2 == 0 ? low(s[r][l / 2]) : high(s[r][l / 2]);
      }
    }
  }

  static __device__ __forceinline__ void store(__nv_bfloat16* to, const float (&x)[2][32]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t row[2][4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        row[0][w] = pack(x[0][8 * i + 2 * w], x[0][8 * i + 2 * w + 1]);
        row[1][w] = pack(x[1][8 * i + 2 * w], x[1][8 * i + 2 * w + 1]);
      }
      put(to, i, row[0], row[1]);
    }
  }
};

// One warp takes up to kTokens tokens into 16 rows of one head of batch entry blockIdx.y. State: float or __nv_bfloat16.
// kEach: token_states is written. With at most four tokens, k and q share the eight columns of a product, four each.
template <typename State, bool kVLast, int kTokens, bool kEach>
__global__ void __launch_bounds__(kMaxWarps * 32) decode_kernel(const __grid_constant__ Arguments x) {
  using Rows = Tile<State, kVLast>;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr bool kShared = kTokens <= 4;
  constexpr int kHalf = kShared ? 4 : 8;  // columns of a product for k's tokens
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int tile = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int hv = tile / (kDim / kRows), row = tile % (kDim / kRows) * kRows + 2 * g;
  const int64_t b = blockIdx.y;
  const int tokens = x.tokens;

  const int64_t from = x.read == nullptr ? b : slot(x.read, x.wide, b);
  const int64_t first_token = b * tokens;
  // The token of the lane as a row, tr, and as the columns 2c and 2c + 1 of products, tc and tc + 1. Is the row k's?
  const int tr = g % kHalf, tc = 2 * c % kHalf;
  const bool row_k = g < kHalf, column_k = 2 * c < kHalf;

  const int hq = static_cast<int>(static_cast<uint64_t>(hv) * x.over_ratio >> 32);
  __nv_bfloat16* out = x.output + (first_token * x.heads_v + hv) * kDim + row;
  const int64_t token_elements = static_cast<int64_t>(x.heads_v) * kDim;
  if (from < 0) {
#pragma unroll 1
    for (int t = c; t < tokens; t += 4) {
      *reinterpret_cast<uint32_t*>(out + t * token_elements) = 0;
    }
    return;
  }

  // Where the lane's part of the tile starts in a slot: its first row and column.
  const int64_t place = static_cast<int64_t>(hv) * kDim * kDim +
                        (kVLast ? row + Rows::kFirst * c * kDim : row * kDim + Rows::kFirst * c);
  Rows s;
  if (x.state != nullptr) {
    s.load(static_cast<const State*>(x.state) + from * x.state_stride + place);
  }

  uint32_t k[16] = {}, q[16] = {};  // with few tokens k has both
  if (tr < tokens) {
    const int64_t at = ((first_token + tr) * x.heads_qk + hq) * kDim + Rows::kFirst * c;
    Rows::load_vector(k, (row_k ? x.k : x.q) + at);
    if constexpr (!kShared) {
      Rows::load_vector(q, x.q + at);
    }
  }
  uint32_t v0 = 0, v1 = 0;
  const __nv_bfloat16* v = x.v + (first_token * x.heads_v + hv) * kDim + row;
  if (column_k && tc < tokens) {
    v0 = load4(v + tc * token_elements);
  }
  if (column_k && tc + 1 < tokens) {
    v1 = load4(v + (tc + 1) * token_elements);
  }
  Gates gate = {1.0f, 0.0f};  // of token lane % kHalf
  if (lane % kHalf < tokens) {
    const int64_t at = (first_token + lane % kHalf) * x.heads_v + hv;
    gate = gates(x.a_log[hv], __bfloat162float(x.a[at]), x.dt_bias[hv], __bfloat162float(x.b[at]));
  }

  // Products of q and k among themselves: kk of row tr (with few tokens: k or q) with columns 2c, 2c + 1; qk likewise.
  float kk[4] = {}, qq[4] = {};
#pragma unroll
  for (int p = 0; p < 16; p += 2) {
    mma_bf16(kk, k[p], q[p], k[p + 1], q[p + 1], k[p], k[p + 1]);
  }
  const float qk0 = kShared ? kk[0] : kk[2], qk1 = kShared ? kk[1] : kk[3];

  // The factors of the 8 columns of a product: 1 / |k|, scale / |q|.
  const auto factor = [&](const float (&squares)[4], int n) {  // of column n, whose square is on the diagonal
    const float square = __shfl_sync(kAll, g % 2 == 0 ? squares[0] : squares[1], 4 * n + n / 2);
    return x.l2norm ? rsqrtf(square + 1e-6f) : 1.0f;
  };
  float f_row = factor(kk, g), f0 = factor(kk, 2 * c), f1 = factor(kk, 2 * c + 1);
  float q_row = f_row, q0 = f0, q1 = f1;
  if constexpr (!kShared) {
    if (x.l2norm) {
#pragma unroll
      for (int p = 0; p < 16; p += 2) {
        mma_bf16(qq, q[p], 0, q[p + 1], 0, q[p], q[p + 1]);
      }
    }
    q_row = factor(qq, g), q0 = factor(qq, 2 * c), q1 = factor(qq, 2 * c + 1);
  }
  q_row *= x.scale, q0 *= x.scale, q1 *= x.scale;

  // Products of decays: from the first token up to tc and tc + 1, after them to the last, after them to tr.
  float up0 = 1.0f, up1 = 1.0f, after0 = 1.0f, after1 = 1.0f, between0 = 1.0f, between1 = 1.0f, whole = 1.0f;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float decay = __shfl_sync(kAll, gate.decay, t);
    whole *= decay;
    up0 *= t <= tc ? decay : 1.0f;
    up1 *= t <= tc + 1 ? decay : 1.0f;
    after0 *= t > tc ? decay : 1.0f;
    after1 *= t > tc + 1 ? decay : 1.0f;
    between0 *= t > tc && t <= tr ? decay : 1.0f;
    between1 *= t > tc + 1 && t <= tr ? decay : 1.0f;
  }
  const float beta_row = __shfl_sync(kAll, gate.beta, tr), beta0 = __shfl_sync(kAll, gate.beta, tc),
              beta1 = __shfl_sync(kAll, gate.beta, tc + 1);

  // M, column by column: each lane computes the complete columns of its two tokens and keeps row tr.
  const float a0 = beta_row * between0 * f_row * f0 * kk[0], a1 = beta_row * between1 * f_row * f1 * kk[1];
  float m0[kTokens], m1[kTokens], inverse0 = 0.0f, inverse1 = 0.0f;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    m0[t] = t == tc ? 1.0f : 0.0f, m1[t] = t == tc + 1 ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < t; ++j) {
      const float a = __shfl_sync(kAll, j % 2 == 0 ? a0 : a1, 4 * t + j / 2);
      m0[t] = fmaf(-a, m0[j], m0[t]), m1[t] = fmaf(-a, m1[j], m1[t]);
    }
    inverse0 = t == tr ? m0[t] : inverse0, inverse1 = t == tr ? m1[t] : inverse1;
  }
  const bool both_k = row_k && column_k, across = (!kShared || !row_k) && column_k;
  inverse0 = both_k ? inverse0 : 0.0f, inverse1 = both_k ? inverse1 : 0.0f;
  const float p0 = across && tc <= tr ? q_row * f0 * between0 * qk0 : 0.0f;
  const float p1 = across && tc + 1 <= tr ? q_row * f1 * between1 * qk1 : 0.0f;

  float sk[4] = {}, sq[4] = {};
  s.multiply(sk, k);
  if constexpr (!kShared) {
    s.multiply(sq, q);
  }

  // With few tokens, lanes of k's columns have u and lanes of q's the outputs.
  const float k0 = beta0 * up0 * f0, k1 = beta1 * up1 * f1;
  float u[4] = {fmaf(-k0, sk[0], beta0 * low(v0)), fmaf(-k1, sk[1], beta1 * low(v1)),
                fmaf(-k0, sk[2], beta0 * high(v0)), fmaf(-k1, sk[3], beta1 * high(v1))};
  float o[4] = {q0 * up0 * (kShared ? sk[0] : sq[0]), q1 * up1 * (kShared ? sk[1] : sq[1]),
                q0 * up0 * (kShared ? sk[2] : sq[2]), q1 * up1 * (kShared ? sk[3] : sq[3])};
  float delta[4] = {};
  if constexpr (kTokens > 1) {
#pragma unroll
    for (float& each : u) {
      each = column_k ? each : 0.0f;
    }
    mma_float(delta, u, inverse0, inverse1);
  } else {
    delta[0] = column_k ? u[0] : 0.0f, delta[2] = column_k ? u[2] : 0.0f;
  }
  mma_float(o, delta, p0, p1);
  if (!kShared || !column_k) {
    if (tc < tokens) {
      *reinterpret_cast<uint32_t*>(out + tc * token_elements) = pack(o[0], o[2]);
    }
    if (tc + 1 < tokens) {
      *reinterpret_cast<uint32_t*>(out + (tc + 1) * token_elements) = pack(o[1], o[3]);
    }
  }

  delta[0] *= f0, delta[1] *= f1, delta[2] *= f0, delta[3] *= f1;
  const int64_t to = x.new_state == nullptr ? -1 : x.write == nullptr ? from : slot(x.write, x.write_wide, b);
  State* new_state = static_cast<State*>(x.new_state) + to * x.new_state_stride + place;
  if constexpr (!kEach) {
    if (to >= 0) {
      delta[0] *= after0, delta[1] *= after1, delta[2] *= after0, delta[3] *= after1;
      s.update(new_state, whole, delta, k, column_k ? kAll : 0u);
    }
    return;
  }
  float wide[2][32];
  s.widen(wide);
#pragma unroll 1
  for (int t = 0; t < tokens; ++t) {
    const float decay = __shfl_sync(kAll, gate.decay, t);
    const float d0 = __shfl_sync(kAll, t % 2 == 0 ? delta[0] : delta[1], t / 2, 4);
    const float d1 = __shfl_sync(kAll, t % 2 == 0 ? delta[2] : delta[3], t / 2, 4);
    uint32_t vector[16];
    Rows::load_vector(vector, x.k + ((first_token + t) * x.heads_qk + hq) * kDim + Rows::kFirst * c);
#pragma unroll
    for (int l = 0; l < 32; ++l) {
      const float e = l % 2 == 0 ? low(vector[l / 2]) : high(vector[l / 2]);
      wide[0][l] = fmaf(d0, e, decay * wide[0][l]), wide[1][l] = fmaf(d1, e, decay * wide[1][l]);
    }
    const int64_t at = x.token_slots == nullptr ? b * x.token_rows + t : slot(x.token_slots, x.slots_wide, first_token + t);
    if (at >= 0) {
      Rows::store(static_cast<State*>(x.token_states) + at * x.token_stride + place, wide);
    }
  }
  if (to >= 0) {
    Rows::store(new_state, wide);
  }
}

// Starts the kernel of tiles. Batch is 1 to 65535, tokens 1 to 8. With few tiles each warp is a block, so that all multiprocessors
// get some.
template <typename State, bool kVLast>
void launch_tiles(const Arguments& x, cudaStream_t stream) {
  const bool each = x.token_states != nullptr;
  auto* kernel = x.tokens == 1   ? each ? decode_kernel<State, kVLast, 1, true> : decode_kernel<State, kVLast, 1, false>
                 : x.tokens == 2 ? each ? decode_kernel<State, kVLast, 2, true> : decode_kernel<State, kVLast, 2, false>
                 : x.tokens <= 4 ? each ? decode_kernel<State, kVLast, 4, true> : decode_kernel<State, kVLast, 4, false>
                                 : each ? decode_kernel<State, kVLast, 8, true> : decode_kernel<State, kVLast, 8, false>;
  const int tiles = x.heads_v * (kDim / kRows), warps = tiles * x.batch <= 1024 ? 1 : kMaxWarps;
  kernel<<<dim3(tiles / warps, x.batch), warps * 32, 0, stream>>>(x);
}

}  // namespace gdn
