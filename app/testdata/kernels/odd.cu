// A submission that misbehaves in the way that MODE, defined in front of this file, says. Otherwise it fills its outputs
// with ones.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdio>

#define MODE_NAN 1
#define MODE_HANG 2
#define MODE_OUT_OF_BOUNDS 3
#define MODE_THROW 4
#define MODE_NOTHING 5
#define MODE_PRINT 6
#define MODE_ABORT 7
#define MODE_WRONG_DTYPE 8

__global__ void fill(__nv_bfloat16* output, size_t n_output, float* state, size_t n_state) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
#if MODE == MODE_HANG
  volatile float* spin = state;
  while (spin[0] != 42.0f) {
    spin[1] = 1.0f;
  }
#endif
  float value = 1.0f;
#if MODE == MODE_NAN
  value = __int_as_float(0x7fc00000);
#endif
  if (i < n_output) {
    output[i] = __float2bfloat16(value);
  }
  if (i < n_state) {
#if MODE == MODE_OUT_OF_BOUNDS
    state[i + (size_t(1) << 30)] = value;
#elif MODE == MODE_WRONG_DTYPE
    reinterpret_cast<double*>(state)[i / 2] = value;
#else
    state[i] = value;
#endif
  }
}

using tvm::ffi::TensorView;

void run(TensorView q, TensorView k, TensorView v, TensorView state, TensorView a_log, TensorView a, TensorView dt_bias,
         TensorView b, double scale, TensorView output, TensorView new_state) {
#if MODE == MODE_THROW
  TVM_FFI_THROW(ValueError) << "batch " << q.size(0) << " is odd";
#elif MODE == MODE_PRINT
  printf("q has %d dimensions\n", static_cast<int>(q.ndim()));
#elif MODE == MODE_ABORT
  abort();
#elif MODE == MODE_NOTHING
  return;
#endif
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(q.device().device_type, q.device().device_id));
  const size_t n = new_state.numel();
  fill<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(static_cast<__nv_bfloat16*>(output.data_ptr()),
                                                                    output.numel(),
                                                                    static_cast<float*>(new_state.data_ptr()), n);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);
