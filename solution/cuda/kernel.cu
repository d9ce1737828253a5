// Gated delta rule, one decode step, k-last state (definition gdn_decode_qk4_v8_d128_k_last).
//
//   g      = exp(-exp(A_log) * softplus(a + dt_bias))      decay, one number for each (b, hv)
//   beta   = sigmoid(b)                                    update gate
//   delta  = beta * (v - g * (S k))                        S is the old state, one row of K numbers for each value
//   S'     = g * S + delta k^T
//   output = scale * (S' q) = scale * (g * (S q) + delta * (k . q))
//
// Shapes: q, k (B, 1, 4, 128); v, output (B, 1, 8, 128); state, new_state (B, 8, 128, 128) as (b, hv, v, k) with k
// innermost; A_log, dt_bias (8); a, b (B, 1, 8). Query and key head h serve value heads 2h and 2h + 1.
// dtypes: q, k, v, a, b, output bfloat16; state, new_state, A_log, dt_bias float32; all arithmetic float32.
// state None means zeros; scale None or 0 means 1/sqrt(128). Inputs are not written; new_state must not alias state.
//
// Arch: sm_80 and later; nothing specific to one. Built by nvcc -std=c++17 -O2 against the TVM-FFI headers and called
// in destination-passing style as kernel(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state).
//
// Version 1: one pass over the state; S k, S q and k q are reduced independently, so the output does not wait for the
//            update. No shared memory, no barrier.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

namespace gdn {

constexpr int kHeadsQK = 4;
constexpr int kHeadsV = 8;
constexpr int kDim = 128;  // head size: K and V

constexpr int kWarpsPerBlock = 4;
constexpr int kLanesPerRow = 8;  // each holds 16 of a row's 128 columns, as four float4 that lie 32 columns apart
constexpr int kRowsPerWarp = 32 / kLanesPerRow;
constexpr int kVectors = kDim / (4 * kLanesPerRow);
constexpr int kRowsPerBlock = kWarpsPerBlock * kRowsPerWarp;
constexpr int kBlocksPerHead = kDim / kRowsPerBlock;

static_assert(kDim % kRowsPerBlock == 0, "a block's rows must belong to one head");
static_assert(kVectors * 4 * kLanesPerRow == kDim, "a row must split evenly over its lanes");

#define GDN_CUDA_CHECK(call)                                                              \
  do {                                                                                    \
    cudaError_t status_ = (call);                                                         \
    if (status_ != cudaSuccess) {                                                         \
      TVM_FFI_THROW(RuntimeError) << __FILE__ << ":" << __LINE__ << ": " << #call << ": " \
                                  << cudaGetErrorString(status_);                         \
    }                                                                                     \
  } while (0)

struct Gates {
  float decay;  // g
  float beta;
};

__device__ __forceinline__ Gates gates(float a_log, float a, float dt_bias, float b) {
  const float x = a + dt_bias;
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  return {expf(-expf(a_log) * softplus), 1.0f / (1.0f + expf(-b))};
}

// Four consecutive bf16 as float4; p is 8-byte aligned.
__device__ __forceinline__ float4 load_bf16x4(const __nv_bfloat16* p) {
  const uint2 raw = *reinterpret_cast<const uint2*>(p);
  return {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
          __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u)};
}

__device__ __forceinline__ float dot(float4 x, float4 y, float sum) {
  return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
}

// One warp updates kRowsPerWarp consecutive rows of one head's state.
template <bool kHasState>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    decode_kernel(const __nv_bfloat16* __restrict__ q,        // (B, 4, 128)
                  const __nv_bfloat16* __restrict__ k,        // (B, 4, 128)
                  const __nv_bfloat16* __restrict__ v,        // (B, 8, 128)
                  const float* __restrict__ state,            // (B, 8, 128, 128), or unused
                  const float* __restrict__ a_log,            // (8)
                  const __nv_bfloat16* __restrict__ a,        // (B, 8)
                  const float* __restrict__ dt_bias,          // (8)
                  const __nv_bfloat16* __restrict__ b,        // (B, 8)
                  float scale,
                  __nv_bfloat16* __restrict__ output,         // (B, 8, 128)
                  float* __restrict__ new_state) {            // (B, 8, 128, 128)
  const int warp_idx = threadIdx.x / 32;
  const int lane_idx = threadIdx.x % 32;
  const int row_lane = lane_idx % kLanesPerRow;

  const size_t head = blockIdx.x / kBlocksPerHead;  // b * 8 + hv
  const size_t batch = head / kHeadsV;
  const int hv = static_cast<int>(head % kHeadsV);
  const int row = (blockIdx.x % kBlocksPerHead) * kRowsPerBlock + warp_idx * kRowsPerWarp + lane_idx / kLanesPerRow;

  const size_t value = head * kDim + row;  // index into v and output
  const size_t row_offset = value * kDim + 4 * row_lane;
  const size_t qk_offset = (batch * kHeadsQK + hv / (kHeadsV / kHeadsQK)) * kDim + 4 * row_lane;

  float4 s[kVectors], kv[kVectors], qv[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    s[i] = kHasState ? __ldcs(reinterpret_cast<const float4*>(state + row_offset + 4 * kLanesPerRow * i))
                     : float4{0.0f, 0.0f, 0.0f, 0.0f};
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    kv[i] = load_bf16x4(k + qk_offset + 4 * kLanesPerRow * i);
    qv[i] = load_bf16x4(q + qk_offset + 4 * kLanesPerRow * i);
  }
  const Gates gate = gates(a_log[hv], __bfloat162float(a[head]), dt_bias[hv], __bfloat162float(b[head]));
  const float target = __bfloat162float(v[value]);

  float sk = 0.0f, sq = 0.0f, kq = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    sk = dot(s[i], kv[i], sk);
    sq = dot(s[i], qv[i], sq);
    kq = dot(kv[i], qv[i], kq);
  }
#pragma unroll
  for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) {
    sk += __shfl_xor_sync(0xffffffffu, sk, offset);
    sq += __shfl_xor_sync(0xffffffffu, sq, offset);
    kq += __shfl_xor_sync(0xffffffffu, kq, offset);
  }

  const float delta = gate.beta * (target - gate.decay * sk);
  if (row_lane == 0) {
    output[value] = __float2bfloat16_rn(scale * fmaf(delta, kq, gate.decay * sq));
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float4 next = {fmaf(delta, kv[i].x, gate.decay * s[i].x), fmaf(delta, kv[i].y, gate.decay * s[i].y),
                         fmaf(delta, kv[i].z, gate.decay * s[i].z), fmaf(delta, kv[i].w, gate.decay * s[i].w)};
    __stcs(reinterpret_cast<float4*>(new_state + row_offset + 4 * kLanesPerRow * i), next);
  }
}

using tvm::ffi::TensorView;

constexpr DLDataType kBF16 = {kDLBfloat, 16, 1};
constexpr DLDataType kF32 = {kDLFloat, 32, 1};

// A checked pointer to the data of t: dtype, the extents behind the batch (0: any), contiguity, 16-byte alignment.
template <typename T>
T* checked(const char* name, TensorView t, DLDataType dtype, std::initializer_list<int64_t> shape) {
  if (t.dtype().code != dtype.code || t.dtype().bits != dtype.bits || t.dtype().lanes != 1) {
    TVM_FFI_THROW(TypeError) << name << ": dtype code " << int(t.dtype().code) << ", " << int(t.dtype().bits)
                             << " bits; expected code " << int(dtype.code) << ", " << int(dtype.bits) << " bits";
  }
  if (t.ndim() != static_cast<int>(shape.size())) {
    TVM_FFI_THROW(ValueError) << name << ": " << t.ndim() << " dimensions; expected " << shape.size();
  }
  int i = 0;
  for (int64_t extent : shape) {
    if (t.size(i) != extent) {
      TVM_FFI_THROW(ValueError) << name << ": extent " << t.size(i) << " in dimension " << i << "; expected " << extent;
    }
    ++i;
  }
  if (!t.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << name << ": not contiguous";
  }
  char* data = static_cast<char*>(t.data_ptr()) + t.byte_offset();
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    TVM_FFI_THROW(ValueError) << name << ": data is not aligned to 16 bytes";
  }
  return reinterpret_cast<T*>(data);
}

void decode(TensorView q, TensorView k, TensorView v, tvm::ffi::Optional<TensorView> state, TensorView a_log,
            TensorView a, TensorView dt_bias, TensorView b, tvm::ffi::Optional<double> scale, TensorView output,
            TensorView new_state) {
  const int64_t batch = q.ndim() > 0 ? q.size(0) : 0;
  const auto* q_ptr = checked<const __nv_bfloat16>("q", q, kBF16, {batch, 1, kHeadsQK, kDim});
  const auto* k_ptr = checked<const __nv_bfloat16>("k", k, kBF16, {batch, 1, kHeadsQK, kDim});
  const auto* v_ptr = checked<const __nv_bfloat16>("v", v, kBF16, {batch, 1, kHeadsV, kDim});
  const float* state_ptr = nullptr;
  if (state.has_value()) {
    state_ptr = checked<const float>("state", state.value(), kF32, {batch, kHeadsV, kDim, kDim});
  }
  const auto* a_log_ptr = checked<const float>("A_log", a_log, kF32, {kHeadsV});
  const auto* a_ptr = checked<const __nv_bfloat16>("a", a, kBF16, {batch, 1, kHeadsV});
  const auto* dt_bias_ptr = checked<const float>("dt_bias", dt_bias, kF32, {kHeadsV});
  const auto* b_ptr = checked<const __nv_bfloat16>("b", b, kBF16, {batch, 1, kHeadsV});
  auto* output_ptr = checked<__nv_bfloat16>("output", output, kBF16, {batch, 1, kHeadsV, kDim});
  auto* new_state_ptr = checked<float>("new_state", new_state, kF32, {batch, kHeadsV, kDim, kDim});
  if (batch == 0) {
    return;
  }

  double factor = scale.has_value() ? scale.value() : 0.0;
  if (factor == 0.0) {
    factor = 0.08838834764831845;  // 1/sqrt(128)
  }
  const int64_t blocks = batch * kHeadsV * kBlocksPerHead;
  if (blocks > INT32_MAX) {
    TVM_FFI_THROW(ValueError) << "q: batch " << batch << " is above " << INT32_MAX / (kHeadsV * kBlocksPerHead);
  }
  const DLDevice device = q.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  auto* kernel = state_ptr != nullptr ? decode_kernel<true> : decode_kernel<false>;
  kernel<<<static_cast<unsigned>(blocks), kWarpsPerBlock * 32, 0, stream>>>(
      q_ptr, k_ptr, v_ptr, state_ptr, a_log_ptr, a_ptr, dt_bias_ptr, b_ptr, static_cast<float>(factor), output_ptr,
      new_state_ptr);
  GDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace gdn

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, gdn::decode);
