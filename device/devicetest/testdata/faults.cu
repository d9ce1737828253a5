// Kernels that go wrong on the device.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cassert>

using tvm::ffi::TensorView;

__global__ void write_kernel(float* out, long long at) { out[at] = 1.0f; }
__global__ void trap_kernel(float* out) {
  if (out[0] == 0.0f) __trap();
}
__global__ void assert_kernel(float* out) { assert(out[0] != 0.0f); }
__global__ void hang_kernel(volatile float* out) {
  while (clock64() >= 0 && out[0] == 0.0f) {
  }
}

static cudaStream_t stream_of(TensorView t) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(t.device().device_type, t.device().device_id));
}

void out_of_bounds(TensorView out) {
  write_kernel<<<1, 1, 0, stream_of(out)>>>(static_cast<float*>(out.data_ptr()), 1ll << 40);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(out_of_bounds, out_of_bounds);

void trap(TensorView out) { trap_kernel<<<1, 32, 0, stream_of(out)>>>(static_cast<float*>(out.data_ptr())); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(trap, trap);

void assertion(TensorView out) { assert_kernel<<<1, 32, 0, stream_of(out)>>>(static_cast<float*>(out.data_ptr())); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(assertion, assertion);

void hang(TensorView out) { hang_kernel<<<1, 1, 0, stream_of(out)>>>(static_cast<float*>(out.data_ptr())); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hang, hang);
