// The core of the GDN decode kernel: one template, instantiated with the configs of table.cuh.
//
// A row of the state, 128 floats, belongs to kLanesPerRow lanes of a warp, each with 128 / kLanesPerRow of its columns
// as float4, 4 * kLanesPerRow columns apart. A lane holds kRowsPerLane such rows in registers, so a warp owns
// kRowsPerLane * 32 / kLanesPerRow consecutive rows of one head and needs no other warp: no shared memory, no barrier.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace gdn {

constexpr int kHeadsQK = 4;
constexpr int kHeadsV = 8;
constexpr int kDim = 128;                 // head size: K and V
constexpr int kVectorsPerRow = kDim / 4;  // float4 in a row of the state, uint2 in a row of q or k

// How the loads of the state treat the L2, of which a part or all may be the first to be evicted, and the stores the L1
// and L2.
enum class Load { kPlain, kEvictQuarter, kEvictHalf, kEvictFirst };
enum class Store { kPlain, kStreaming };

// What compilers do with the loads of a kernel decides more than its arithmetic: ptxas moves a load down to its first
// use to save registers, and a load that starts after others have arrived costs a second trip to memory.
//   kFree:   the loads are plain ones, and the kernel may use any number of registers (launch bounds of 1 block), with
//            which ptxas 13.0 leaves them at the top. Fastest where few warps run: small batches.
//   kPinned: the loads are relaxed ones of block scope, whose order the compiler keeps, and the last one is the
//            state's, which everything waits for. Takes fewer registers, so more warps run: large batches.
enum class Order { kFree, kPinned };

template <int kLanesPerRow_, int kRowsPerLane_, int kWarps_, Order kOrder_, Load kLoad_ = Load::kPlain,
          Store kStore_ = Store::kPlain>
struct Config {
  static constexpr int kLanesPerRow = kLanesPerRow_;
  static constexpr int kRowsPerLane = kRowsPerLane_;
  static constexpr int kWarps = kWarps_;
  static constexpr Order kOrder = kOrder_;
  static constexpr Load kLoad = kLoad_;
  static constexpr Store kStore = kStore_;

  static constexpr int kGroups = 32 / kLanesPerRow;  // lane groups of a warp: rows that it holds side by side
  static constexpr int kVectors = kDim / (4 * kLanesPerRow);
  static constexpr int kRowsPerWarp = kGroups * kRowsPerLane;
  static constexpr int kRowsPerBlock = kWarps * kRowsPerWarp;
  static constexpr int kBlocksPerHead = kDim / kRowsPerBlock;

  static_assert(kVectors * 4 * kLanesPerRow == kDim, "a row must split evenly over its lanes");
  static_assert(kDim % kRowsPerBlock == 0, "a block's rows must belong to one head");
  static_assert((kRowsPerLane & (kRowsPerLane - 1)) == 0 && kRowsPerLane <= kLanesPerRow,
                "the sums of a lane's rows are dealt out to the lanes by halving");
};

// The kernel's arguments: device pointers and scalars.
struct Arguments {
  const __nv_bfloat16* q;  // (B, 4, 128)
  const __nv_bfloat16* k;  // (B, 4, 128)
  const __nv_bfloat16* v;  // (B, 8, 128)
  const float* state;      // (B, 8, 128, 128); nullptr means zeros
  const float* a_log;      // (8)
  const __nv_bfloat16* a;  // (B, 8)
  const float* dt_bias;    // (8)
  const __nv_bfloat16* b;  // (B, 8)
  float scale;
  __nv_bfloat16* output;  // (B, 8, 128)
  float* new_state;       // (B, 8, 128, 128)
  int64_t batch;
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

// Keeps the compiler from moving the computation of x past this point into a branch, which would separate the loads from
// their uses.
__device__ __forceinline__ void evaluate_here(float& x) { asm volatile("" : "+f"(x)); }

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <Order kOrder>
__device__ __forceinline__ uint2 load(const uint2* p) {
  uint2 r;
  if constexpr (kOrder == Order::kPinned) {
    asm volatile("ld.relaxed.cta.global.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p) : "memory");
  } else {
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  }
  return r;
}

template <Order kOrder>
__device__ __forceinline__ float load(const float* p) {
  float r;
  if constexpr (kOrder == Order::kPinned) {
    asm volatile("ld.relaxed.cta.global.f32 %0, [%1];" : "=f"(r) : "l"(p) : "memory");
  } else {
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(r) : "l"(p));
  }
  return r;
}

template <Order kOrder>
__device__ __forceinline__ float load(const __nv_bfloat16* p) {
  uint16_t r;
  if constexpr (kOrder == Order::kPinned) {
    asm volatile("ld.relaxed.cta.global.u16 %0, [%1];" : "=h"(r) : "l"(p) : "memory");
  } else {
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p));
  }
  return __uint_as_float(static_cast<uint32_t>(r) << 16);
}

template <Order kOrder, Load kLoad>
__device__ __forceinline__ float4 load_state(const float4* p) {
  float4 r;
  if constexpr (kLoad != Load::kPlain) {
    uint64_t policy;
    if constexpr (kLoad == Load::kEvictQuarter) {
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 0.25;" : "=l"(policy));
    } else if constexpr (kLoad == Load::kEvictHalf) {
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 0.5;" : "=l"(policy));
    } else {
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    }
    if constexpr (kOrder == Order::kPinned) {
      asm volatile("ld.relaxed.cta.global.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
                   : "l"(p), "l"(policy)
                   : "memory");
    } else {
      asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
                   : "l"(p), "l"(policy)
                   : "memory");
    }
  } else if constexpr (kOrder == Order::kPinned) {
    asm volatile("ld.relaxed.cta.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
                 : "l"(p)
                 : "memory");
  } else {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
                 : "l"(p)
                 : "memory");
  }
  return r;
}

// Four consecutive bf16 as float4.
__device__ __forceinline__ float4 widen(uint2 raw) {
  return {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
          __uint_as_float(raw.y & 0xffff0000u)};
}

// Adds x . y to two sums, which halves the chain of dependent additions.
__device__ __forceinline__ void dot(float4 x, float4 y, float (&sum)[2]) {
  sum[0] = fmaf(x.x, y.x, sum[0]);
  sum[1] = fmaf(x.y, y.y, sum[1]);
  sum[0] = fmaf(x.z, y.z, sum[0]);
  sum[1] = fmaf(x.w, y.w, sum[1]);
}

struct Gates {
  float decay;  // g
  float beta;
};

// The gates, with the hardware's exp and log to base 2. The exponent of the decay, exp(a_log) * softplus, has a relative
// error of about 1e-6. A polynomial computes small values of softplus: the hardware's logarithm is off by up to 2^-22 near
// 1, and exp(a_log) magnifies that.
__device__ __forceinline__ Gates gates(float a_log, float a, float dt_bias, float b) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float x = (a + dt_bias) * kLog2E;
  const float e = exp2_approx(x);
  // log2(1 + e) / e for e from 0 to 0.5, to 3e-8: least squares of the relative error, constant first.
  constexpr float kLog2OnePlus[] = {1.44269502f,  -0.721339047f, 0.480616659f, -0.357095629f,
                                    0.266183972f, -0.164029971f, 0.0557941049f};
  float small = kLog2OnePlus[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) {
    small = fmaf(small, e, kLog2OnePlus[i]);
  }
  small *= e;
  evaluate_here(small);  // the logarithm is left to a branch: computed always, it costs large batches 2 to 5 %
  const float softplus = e < 0.5f ? small : x > 20.0f * kLog2E ? x : log2_approx(1.0f + e);
  return {exp2_approx(-exp2_approx(a_log * kLog2E) * softplus), reciprocal_approx(1.0f + exp2_approx(-b * kLog2E))};
}

// One warp updates C::kRowsPerWarp consecutive rows of one head's state.
template <typename C, bool kHasState>
__global__ void __launch_bounds__(C::kWarps * 32, C::kOrder == Order::kFree ? 1 : 0)
    decode_kernel(const float* __restrict__ state, const __nv_bfloat16* __restrict__ k,
                  const __nv_bfloat16* __restrict__ q, const __nv_bfloat16* __restrict__ v,
                  const __nv_bfloat16* __restrict__ a, const float* __restrict__ dt_bias,
                  const float* __restrict__ a_log, const __nv_bfloat16* __restrict__ b, float* __restrict__ new_state,
                  __nv_bfloat16* __restrict__ output, float scale) {
  constexpr int kLanes = C::kLanesPerRow, kRows = C::kRowsPerLane, kGroups = C::kGroups, kVectors = C::kVectors;
  constexpr unsigned kAll = 0xffffffffu;
  const unsigned lane_idx = threadIdx.x % 32;
  const unsigned row_lane = lane_idx % kLanes, group = lane_idx / kLanes;

  // Rows are counted over all heads: b * 8 * 128 + hv * 128 + v. Row r of this lane is first + r * kGroups. The
  // launcher bounds the batch so that 32 * row fits 32 bits; the multiplication by 16 bytes has 64.
  const unsigned warp_row = blockIdx.x * C::kRowsPerBlock + threadIdx.x / 32 * C::kRowsPerWarp;
  const unsigned first = warp_row + group;
  const unsigned head = blockIdx.x / C::kBlocksPerHead;  // b * 8 + hv
  const unsigned hv = head % kHeadsV;
  const float4* state_ptr =
      reinterpret_cast<const float4*>(state) + static_cast<size_t>(first * kVectorsPerRow + row_lane);
  float4* new_state_ptr = reinterpret_cast<float4*>(new_state) + static_cast<size_t>(first * kVectorsPerRow + row_lane);
  // Query and key head hv / 2 of batch entry b is row head / 2 of (B * 4, 128).
  const size_t qk = static_cast<size_t>(head / 2 * kVectorsPerRow + row_lane);
  const uint2* k_ptr = reinterpret_cast<const uint2*>(k) + qk;
  const uint2* q_ptr = reinterpret_cast<const uint2*>(q) + qk;

  // The sums of a lane's rows are dealt out below, bit by bit of row_lane from the top: this lane ends with row `mine`.
  unsigned mine = 0;
#pragma unroll
  for (int rows = kRows, bit = kLanes / 2; rows > 1; rows /= 2, bit /= 2) {
    mine += row_lane & bit ? rows / 2 : 0;
  }
  const size_t value = warp_row + mine * kGroups + group;  // index into v and output

  float4 s[kRows][kVectors];
  uint2 k_raw[kVectors], q_raw[kVectors];
  const auto load_rows = [&](int from, int to) {
#pragma unroll
    for (int i = 0; i < kRows * kVectors; ++i) {
      if (from <= i && i < to) {
        const int r = i / kVectors, c = i % kVectors;
        s[r][c] = kHasState ? load_state<C::kOrder, C::kLoad>(state_ptr + r * kGroups * kVectorsPerRow + c * kLanes)
                            : float4{0.0f, 0.0f, 0.0f, 0.0f};
      }
    }
  };
  const auto load_vectors = [&](uint2* to, const uint2* from) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to[i] = load<C::kOrder>(from + i * kLanes);
    }
  };
  constexpr int kLast = C::kOrder == Order::kPinned ? kRows * kVectors - 1 : kRows * kVectors;
  load_rows(0, kLast);
  if constexpr (C::kOrder == Order::kFree) {
    load_vectors(k_raw, k_ptr);
    load_vectors(q_raw, q_ptr);
  }
  const float a_value = load<C::kOrder>(a + head), dt_bias_value = load<C::kOrder>(dt_bias + hv);
  const float a_log_value = load<C::kOrder>(a_log + hv), b_value = load<C::kOrder>(b + head);
  const float target = load<C::kOrder>(v + value);
  if constexpr (C::kOrder == Order::kPinned) {
    load_vectors(k_raw, k_ptr);
    load_vectors(q_raw, q_ptr);
  }
  load_rows(kLast, kRows * kVectors);

  const Gates gate = gates(a_log_value, a_value, dt_bias_value, b_value);
  // delta = beta * (v - g * sk), in one operation once sk is known.
  const float delta_0 = gate.beta * target, delta_1 = -gate.beta * gate.decay;

  float sk[kRows], sq[kRows], kq;  // S k and S q of each row, and k . q, all of the old state
  {
    float sk2[kRows][2] = {}, sq2[kRows][2] = {}, kq2[2] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 kv = widen(k_raw[i]), qv = widen(q_raw[i]);
      dot(kv, qv, kq2);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        dot(s[r][i], kv, sk2[r]);
        dot(s[r][i], qv, sq2[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sk[r] = sk2[r][0] + sk2[r][1];
      sq[r] = sq2[r][0] + sq2[r][1];
    }
    kq = kq2[0] + kq2[1];
  }
  // Sum over the lanes of a row. While a lane has several rows, it gives half of them to the lane opposite and takes
  // the other half from it, so that kRows rows cost little more than one.
#pragma unroll
  for (int offset = kLanes / 2, rows = kRows; offset > 0; offset /= 2) {
    if (rows > 1) {
      rows /= 2;
      const bool upper = row_lane & offset;
#pragma unroll
      for (int r = 0; r < kRows / 2; ++r) {
        if (r < rows) {
          const float sk_given = upper ? sk[r] : sk[r + rows], sq_given = upper ? sq[r] : sq[r + rows];
          sk[r] = (upper ? sk[r + rows] : sk[r]) + __shfl_xor_sync(kAll, sk_given, offset);
          sq[r] = (upper ? sq[r + rows] : sq[r]) + __shfl_xor_sync(kAll, sq_given, offset);
        }
      }
    } else {
      sk[0] += __shfl_xor_sync(kAll, sk[0], offset);
      sq[0] += __shfl_xor_sync(kAll, sq[0], offset);
    }
    kq += __shfl_xor_sync(kAll, kq, offset);
  }

  const float delta = fmaf(delta_1, sk[0], delta_0);
  constexpr int kLanesPerSum = kLanes / kRows;  // lanes that ended with the same row
  if (row_lane % kLanesPerSum == 0) {
    output[value] = __float2bfloat16_rn(scale * fmaf(delta, kq, gate.decay * sq[0]));
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float delta_r = kRows > 1 ? __shfl_sync(kAll, delta, r * kLanesPerSum, kLanes) : delta;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 kv = widen(k_raw[i]), old = s[r][i];
      const float4 next = {fmaf(delta_r, kv.x, gate.decay * old.x), fmaf(delta_r, kv.y, gate.decay * old.y),
                           fmaf(delta_r, kv.z, gate.decay * old.z), fmaf(delta_r, kv.w, gate.decay * old.w)};
      float4* p = new_state_ptr + r * kGroups * kVectorsPerRow + i * kLanes;
      if constexpr (C::kStore == Store::kStreaming) {
        __stcs(p, next);
      } else {
        *p = next;
      }
    }
  }
}

// The largest batch: 32 * row must fit 32 bits.
constexpr int64_t kMaxBatch = (int64_t{1} << 32) / 32 / (kHeadsV * kDim) - 1;

// Starts the kernel of config C; batch is from 1 to kMaxBatch.
template <typename C>
void launch(const Arguments& x, cudaStream_t stream) {
  auto* kernel = x.state != nullptr ? decode_kernel<C, true> : decode_kernel<C, false>;
  const unsigned blocks = static_cast<unsigned>(x.batch * kHeadsV * C::kBlocksPerHead);
  kernel<<<blocks, C::kWarps * 32, 0, stream>>>(x.state, x.k, x.q, x.v, x.a, x.dt_bias, x.a_log, x.b, x.new_state,
                                                x.output, x.scale);
}

}  // namespace gdn
