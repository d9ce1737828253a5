// Fragments of matrices in registers, as mma.sync has them, and the arithmetic of a token's gates.
#pragma once

#include "layout.cuh"
#include "ptx.cuh"

namespace gdn {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ uint32_t pack(float x, float y) {
  const __half2 h = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&h);
}

__device__ __forceinline__ float low(uint32_t bf16x2) { return __uint_as_float(bf16x2 << 16); }
__device__ __forceinline__ float high(uint32_t bf16x2) { return __uint_as_float(bf16x2 & 0xffff0000u); }

// A tile is 16 rows of a state, its 128 columns in fragments of mma.sync's result. from and to are the lane's first two
// elements of it.
__device__ __forceinline__ void load_tile(float (&s)[16][4], const float* from) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 lo = load_once(from + 8 * i), hi = load_once(from + 8 * kDim + 8 * i);
    s[i][0] = lo.x, s[i][1] = lo.y, s[i][2] = hi.x, s[i][3] = hi.y;
  }
}

__device__ __forceinline__ void store_tile(float* to, const float (&s)[16][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    *reinterpret_cast<float2*>(to + 8 * i) = make_float2(s[i][0], s[i][1]);
    *reinterpret_cast<float2*>(to + 8 * kDim + 8 * i) = make_float2(s[i][2], s[i][3]);
  }
}

// pack_tile gives columns 32 * kk to 32 * kk + 31 of a tile as two operands of 16 by 16.
__device__ __forceinline__ void pack_tile(uint32_t (&so)[2][4], const float (&s)[16][4], int kk) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = 4 * kk + 2 * h;
    so[h][0] = pack(s[i][0], s[i][1]);
    so[h][1] = pack(s[i][2], s[i][3]);
    so[h][2] = pack(s[i + 1][0], s[i + 1][1]);
    so[h][3] = pack(s[i + 1][2], s[i + 1][3]);
  }
}

// Loads the 32 rows of T or P, by blocks: rows 0 to 15 of columns 0 to 15, then rows 16 to 23 and 24 to 31 of all
// columns. square and rows are the addresses of this lane's row in each kind.
__device__ __forceinline__ void load_lower(uint32_t (&b)[3][4], uint32_t square, uint32_t rows) {
  load_matrices(b[0], square);
  load_matrices(b[1], rows + 16 * kPitch * 2);
  load_matrices(b[2], rows + 24 * kPitch * 2);
}

// y += a times the transpose of what load_lower has loaded, for 16 rows and 32 tokens.
__device__ __forceinline__ void multiply_lower(float (&y)[4][4], const uint32_t (&a)[2][4], const uint32_t (&b)[3][4]) {
  mma(y[0], a[0], b[0][0], b[0][1]);
  mma(y[1], a[0], b[0][2], b[0][3]);
  mma(y[2], a[0], b[1][0], b[1][1]);
  mma(y[3], a[0], b[2][0], b[2][1]);
  mma(y[2], a[1], b[1][2], b[1][3]);
  mma(y[3], a[1], b[2][2], b[2][3]);
}

// The larger of each half's magnitudes; NaN if one is.
__device__ __forceinline__ uint32_t max_magnitude(uint32_t x, uint32_t y) {
  const __half2 m =
      __hmax2_nan(__habs2(*reinterpret_cast<const __half2*>(&x)), __habs2(*reinterpret_cast<const __half2*>(&y)));
  return *reinterpret_cast<const uint32_t*>(&m);
}

__device__ __forceinline__ bool within(uint32_t magnitudes, float limit) {
  const float2 m = __half22float2(*reinterpret_cast<const __half2*>(&magnitudes));
  return m.x <= limit && m.y <= limit;
}

// log2 of the decay, and the update gate, of one token and head. See solution/cuda/decode.cuh for the two forms of
// softplus.
__device__ __forceinline__ float log2_decay(float a_log, float a, float dt_bias) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float x = (a + dt_bias) * kLog2E, e = exp2_approx(x);
  constexpr float kLog2OnePlus[] = {1.44269502f,  -0.721339047f, 0.480616659f, -0.357095629f,
                                    0.266183972f, -0.164029971f, 0.0557941049f};
  float small = kLog2OnePlus[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) {
    small = fmaf(small, e, kLog2OnePlus[i]);
  }
  const float softplus = e < 0.5f ? small * e : x > 20.0f * kLog2E ? x : log2_approx(1.0f + e);
  return -exp2_approx(a_log * kLog2E) * softplus;
}

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal_approx(1.0f + exp2_approx(-1.4426950408889634f * x));
}

}  // namespace gdn
