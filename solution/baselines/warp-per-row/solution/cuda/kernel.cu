// Gated delta rule, one decode step, k-last state (definition gdn_decode_qk4_v8_d128_k_last): a baseline.
//
//   old   = g * (S k)                with g = exp(-exp(A_log) * softplus(a + dt_bias)), beta = sigmoid(b)
//   S'    = g * S + beta * (v - old) k^T
//   output = scale * (S' q)
//
// Design: blocks of eight warps, one row of the state for each warp, one 16-byte load for each lane; S k is reduced, then
// the row updated, then S' q reduced.
//
// Shapes: q, k (B, 1, 4, 128); v, output (B, 1, 8, 128); state, new_state (B, 8, 128, 128), k innermost; A_log, dt_bias
// (8); a, b (B, 1, 8). q, k, v, a, b and output are bfloat16, the others float32; arithmetic is float32. Inputs are taken
// to be contiguous, as the contest passes them. Built by nvcc -std=c++17 -O2, called in destination-passing style.

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace gdn {

constexpr int kHeadsQK = 4;
constexpr int kHeadsV = 8;
constexpr int kDim = 128;  // head size: K and V
constexpr int kRowsPerBlock = 8;  // one for each warp

static_assert(kDim == 32 * 4, "a lane holds four columns of a row");

__device__ __forceinline__ float4 load_bf16x4(const __nv_bfloat16* p) {
  const __nv_bfloat162 lo = reinterpret_cast<const __nv_bfloat162*>(p)[0];
  const __nv_bfloat162 hi = reinterpret_cast<const __nv_bfloat162*>(p)[1];
  const float2 a = __bfloat1622float2(lo), b = __bfloat1622float2(hi);
  return {a.x, a.y, b.x, b.y};
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

__device__ __forceinline__ float dot(float4 x, float4 y) {
  return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}

__global__ void decode_kernel(const __nv_bfloat16* __restrict__ q,  // (B, 4, 128)
                              const __nv_bfloat16* __restrict__ k,  // (B, 4, 128)
                              const __nv_bfloat16* __restrict__ v,  // (B, 8, 128)
                              const float* __restrict__ state,      // (B, 8, 128, 128)
                              const float* __restrict__ a_log,      // (8)
                              const __nv_bfloat16* __restrict__ a,  // (B, 8)
                              const float* __restrict__ dt_bias,    // (8)
                              const __nv_bfloat16* __restrict__ b,  // (B, 8)
                              float scale,
                              __nv_bfloat16* __restrict__ output,   // (B, 8, 128)
                              float* __restrict__ new_state) {      // (B, 8, 128, 128)
  const int lane_idx = threadIdx.x % 32;
  const int row = blockIdx.x * kRowsPerBlock + threadIdx.x / 32;
  const size_t head = blockIdx.y;  // b * 8 + hv
  const int hv = head % kHeadsV;
  const size_t qk = (head / kHeadsV * kHeadsQK + hv / (kHeadsV / kHeadsQK)) * kDim + 4 * lane_idx;
  const size_t value = head * kDim + row;

  float4 s = *reinterpret_cast<const float4*>(state + value * kDim + 4 * lane_idx);
  const float4 key = load_bf16x4(k + qk);
  const float4 query = load_bf16x4(q + qk);
  const float x = __bfloat162float(a[head]) + dt_bias[hv];
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  const float decay = expf(-expf(a_log[hv]) * softplus);
  const float beta = 1.0f / (1.0f + expf(-__bfloat162float(b[head])));

  s = {decay * s.x, decay * s.y, decay * s.z, decay * s.w};
  const float delta = beta * (__bfloat162float(v[value]) - warp_sum(dot(s, key)));
  s = {s.x + delta * key.x, s.y + delta * key.y, s.z + delta * key.z, s.w + delta * key.w};
  *reinterpret_cast<float4*>(new_state + value * kDim + 4 * lane_idx) = s;
  const float result = scale * warp_sum(dot(s, query));
  if (lane_idx == 0) {
    output[value] = __float2bfloat16_rn(result);
  }
}

using tvm::ffi::TensorView;

void decode(TensorView q, TensorView k, TensorView v, TensorView state, TensorView a_log, TensorView a,
            TensorView dt_bias, TensorView b, double scale, TensorView output, TensorView new_state) {
  const int64_t batch = q.size(0);
  if (batch == 0) {
    return;
  }
  const float factor = scale == 0.0 ? 0.08838834764831845f : static_cast<float>(scale);  // 1/sqrt(128)
  const DLDevice device = q.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const dim3 grid(kDim / kRowsPerBlock, static_cast<unsigned>(batch * kHeadsV));
  decode_kernel<<<grid, 32 * kRowsPerBlock, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(q.data_ptr()), static_cast<const __nv_bfloat16*>(k.data_ptr()),
      static_cast<const __nv_bfloat16*>(v.data_ptr()), static_cast<const float*>(state.data_ptr()),
      static_cast<const float*>(a_log.data_ptr()), static_cast<const __nv_bfloat16*>(a.data_ptr()),
      static_cast<const float*>(dt_bias.data_ptr()), static_cast<const __nv_bfloat16*>(b.data_ptr()), factor,
      static_cast<__nv_bfloat16*>(output.data_ptr()), static_cast<float*>(new_state.data_ptr()));
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << "launching: " << cudaGetErrorString(status);
  }
}

}  // namespace gdn

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, gdn::decode);
