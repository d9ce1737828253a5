// Lower limits of any kernel's latency: a copy of float4 in several shapes, and an empty kernel.
//
// source and target are (n), float32, with n a multiple of 4 and both aligned to 16 bytes. shape selects a copy, from
// 0, or the empty kernel, -1. fisub builds and times this file like a submission and reports the fastest copy.
//
//   nvcc -std=c++17 -O2 -arch=sm_90 or sm_100; fisub adds the headers of TVM-FFI.

#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace floors {

// A block copies kThreads * kVectors consecutive float4. Each of a thread's loads is coalesced over the block, and
// all of them are in flight before the first store.
template <int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads) copy_kernel(const float4* __restrict__ source,  // (count)
                                                        float4* __restrict__ target,        // (count)
                                                        int64_t count) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kVectors) + threadIdx.x;
  float4 x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t at = first + i * kThreads;
    if (at < count) {
      x[i] = source[at];
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t at = first + i * kThreads;
    if (at < count) {
      target[at] = x[i];
    }
  }
}

__global__ void empty_kernel() {}

template <int kThreads, int kVectors>
void copy(const float4* source, float4* target, int64_t count, cudaStream_t stream) {
  const int64_t blocks = (count + kThreads * kVectors - 1) / (kThreads * kVectors);
  copy_kernel<kThreads, kVectors><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(source, target, count);
}

using tvm::ffi::TensorView;

void run(TensorView source, int64_t shape, TensorView target) {
  const int64_t count = source.size(0) / 4;
  const auto* from = static_cast<const float4*>(source.data_ptr());
  auto* to = static_cast<float4*>(target.data_ptr());
  const DLDevice device = source.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  switch (shape) {
    case -1: empty_kernel<<<1, 1, 0, stream>>>(); break;
    case 0: copy<128, 1>(from, to, count, stream); break;
    case 1: copy<256, 1>(from, to, count, stream); break;
    case 2: copy<512, 1>(from, to, count, stream); break;
    case 3: copy<128, 4>(from, to, count, stream); break;
    case 4: copy<256, 4>(from, to, count, stream); break;
    case 5: copy<256, 8>(from, to, count, stream); break;
    default: TVM_FFI_THROW(ValueError) << "no shape " << shape;
  }
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << "launching: " << cudaGetErrorString(status);
  }
}

}  // namespace floors

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, floors::run);
