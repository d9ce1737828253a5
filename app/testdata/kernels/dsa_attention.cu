// Sparse attention over a paged cache (definition dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64), the plain way.
//
//   logit_n = sm_scale (q_nope . ckv_n + q_pe . kpe_n),  output = softmax(logit) ckv,  lse = log2 sum exp(logit)
//
// Shapes: q_nope, output (T, 16, 512); q_pe (T, 16, 64); ckv_cache (P, 64, 512); kpe_cache (P, 64, 64); sparse_indices
// (T, 2048), -1 where there is no entry; lse (T, 16). One block for each token and head; in the first half a thread takes
// whole entries, in the second one channels.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

constexpr int kHeads = 16, kCompressed = 512, kPositional = 64, kTopK = 2048, kThreads = 128;

// The largest, or the sum, of the block's values, in every thread. scratch holds kThreads numbers.
template <bool kSum>
__device__ float reduce(float value, float* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) {
      const float other = scratch[threadIdx.x + width];
      scratch[threadIdx.x] = kSum ? scratch[threadIdx.x] + other : fmaxf(scratch[threadIdx.x], other);
    }
    __syncthreads();
  }
  value = scratch[0];
  __syncthreads();
  return value;
}

__global__ void attend(const __nv_bfloat16* q_nope, const __nv_bfloat16* q_pe, const __nv_bfloat16* ckv,
                       const __nv_bfloat16* kpe, const int32_t* indices, float scale, __nv_bfloat16* output, float* lse) {
  const int64_t token = blockIdx.x, at = token * kHeads + blockIdx.y;
  indices += token * kTopK;
  __shared__ float query[kCompressed + kPositional], weight[kTopK], scratch[kThreads];
  for (int i = threadIdx.x; i < kCompressed; i += kThreads) {
    query[i] = __bfloat162float(q_nope[at * kCompressed + i]);
  }
  for (int i = threadIdx.x; i < kPositional; i += kThreads) {
    query[kCompressed + i] = __bfloat162float(q_pe[at * kPositional + i]);
  }
  __syncthreads();

  float largest = -CUDART_INF_F;
  for (int n = threadIdx.x; n < kTopK; n += kThreads) {
    const int64_t entry = indices[n];
    weight[n] = -CUDART_INF_F;
    if (entry < 0) {
      continue;
    }
    float sum = 0.0f;
    for (int i = 0; i < kCompressed; ++i) {
      sum += query[i] * __bfloat162float(ckv[entry * kCompressed + i]);
    }
    for (int i = 0; i < kPositional; ++i) {
      sum += query[kCompressed + i] * __bfloat162float(kpe[entry * kPositional + i]);
    }
    weight[n] = sum * scale;
    largest = fmaxf(largest, weight[n]);
  }
  largest = reduce<false>(largest, scratch);
  float total = 0.0f;
  for (int n = threadIdx.x; n < kTopK; n += kThreads) {
    weight[n] = weight[n] == -CUDART_INF_F ? 0.0f : expf(weight[n] - largest);
    total += weight[n];
  }
  total = reduce<true>(total, scratch);

  for (int i = threadIdx.x; i < kCompressed; i += kThreads) {
    float sum = 0.0f;
    for (int n = 0; n < kTopK; ++n) {
      if (weight[n] != 0.0f) {
        sum += weight[n] * __bfloat162float(ckv[static_cast<int64_t>(indices[n]) * kCompressed + i]);
      }
    }
    output[at * kCompressed + i] = __float2bfloat16(total > 0.0f ? sum / total : 0.0f);
  }
  if (threadIdx.x == 0) {
    lse[at] = (largest + logf(total)) * 1.44269504f;  // log2(e)
  }
}

using tvm::ffi::TensorView;

template <typename T>
T* data(TensorView t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data_ptr()) + t.byte_offset());
}

void run(TensorView q_nope, TensorView q_pe, TensorView ckv_cache, TensorView kpe_cache, TensorView sparse_indices, double sm_scale,
         TensorView output, TensorView lse) {
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(q_nope.device().device_type, q_nope.device().device_id));
  const dim3 grid(static_cast<unsigned>(q_nope.size(0)), kHeads);
  attend<<<grid, kThreads, 0, stream>>>(data<__nv_bfloat16>(q_nope), data<__nv_bfloat16>(q_pe), data<__nv_bfloat16>(ckv_cache),
                                        data<__nv_bfloat16>(kpe_cache), data<int32_t>(sparse_indices),
                                        static_cast<float>(sm_scale), data<__nv_bfloat16>(output), data<float>(lse));
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << "attend: " << cudaGetErrorString(status);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);
