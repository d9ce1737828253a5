// Gated delta rule over packed sequences (definition gdn_prefill_qk4_v8_d128_k_last), the plain way.
//
//   S = g S + beta (v - g S k) k^T,  output = scale S q,  g = exp(-exp(A_log) softplus(a + dt_bias)),  beta = sigmoid(b)
//
// Shapes: q, k (L, 4, 128); v, output (L, 8, 128); state, new_state (N, 8, 128, 128), key channels last; a, b (L, 8).
// One block for each sequence and value head; a thread keeps one row of S, which belongs to one value channel.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>

constexpr int kHeadsQK = 4, kHeadsV = 8, kDim = 128;

__global__ void prefill(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, const float* state,
                        const float* a_log, const __nv_bfloat16* a, const float* dt_bias, const __nv_bfloat16* b,
                        const int64_t* cu_seqlens, float scale, __nv_bfloat16* output, float* new_state) {
  const int sequence = blockIdx.x, head = blockIdx.y, row = threadIdx.x;
  const int head_qk = head / (kHeadsV / kHeadsQK);
  const int64_t first = cu_seqlens[sequence], last = cu_seqlens[sequence + 1];
  const int64_t at = ((static_cast<int64_t>(sequence) * kHeadsV + head) * kDim + row) * kDim;
  __shared__ float key[kDim], query[kDim];
  float s[kDim];
  for (int i = 0; i < kDim; ++i) {
    s[i] = state != nullptr && first < last ? state[at + i] : 0.0f;
  }
  for (int64_t t = first; t < last; ++t) {
    key[row] = __bfloat162float(k[(t * kHeadsQK + head_qk) * kDim + row]);
    query[row] = __bfloat162float(q[(t * kHeadsQK + head_qk) * kDim + row]);
    __syncthreads();
    const float x = __bfloat162float(a[t * kHeadsV + head]) + dt_bias[head];
    const float decay = expf(-expf(a_log[head]) * (x > 20.0f ? x : log1pf(expf(x))));
    const float beta = 1.0f / (1.0f + expf(-__bfloat162float(b[t * kHeadsV + head])));
    float have = 0.0f;
    for (int i = 0; i < kDim; ++i) {
      s[i] *= decay;
      have += s[i] * key[i];
    }
    const float delta = beta * (__bfloat162float(v[(t * kHeadsV + head) * kDim + row]) - have);
    float sum = 0.0f;
    for (int i = 0; i < kDim; ++i) {
      s[i] += delta * key[i];
      sum += s[i] * query[i];
    }
    output[(t * kHeadsV + head) * kDim + row] = __float2bfloat16(scale * sum);
    __syncthreads();
  }
  for (int i = 0; i < kDim; ++i) {
    new_state[at + i] = s[i];
  }
}

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

template <typename T>
T* data(TensorView t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data_ptr()) + t.byte_offset());
}

void run(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a, TensorView dt_bias,
         TensorView b, TensorView cu_seqlens, Optional<double> scale, TensorView output, TensorView new_state) {
  const double factor = scale.has_value() && scale.value() != 0.0 ? scale.value() : 0.08838834764831845;  // 1/sqrt(128)
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(q.device().device_type, q.device().device_id));
  const dim3 grid(static_cast<unsigned>(cu_seqlens.size(0) - 1), kHeadsV);
  prefill<<<grid, kDim, 0, stream>>>(data<__nv_bfloat16>(q), data<__nv_bfloat16>(k), data<__nv_bfloat16>(v),
                                     state.has_value() ? data<float>(state.value()) : nullptr, data<float>(a_log),
                                     data<__nv_bfloat16>(a), data<float>(dt_bias), data<__nv_bfloat16>(b),
                                     data<int64_t>(cu_seqlens), static_cast<float>(factor), data<__nv_bfloat16>(output),
                                     data<float>(new_state));
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << "prefill: " << cudaGetErrorString(status);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);
