// Entry points that misbehave as their names say, and otherwise fill their outputs with ones.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdio>

enum Mode { kNaN, kHang, kOutOfBounds, kThrow, kNothing, kPrint, kAbort, kWrongDtype };

__global__ void fill(Mode mode, __nv_bfloat16* output, size_t n_output, float* state, size_t n_state) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (mode == kHang) {
    volatile float* spin = state;
    while (spin[0] != 42.0f) {
      spin[1] = 1.0f;
    }
  }
  const float value = mode == kNaN ? __int_as_float(0x7fc00000) : 1.0f;
  if (i < n_output) {
    output[i] = __float2bfloat16(value);
  }
  if (i < n_state) {
    if (mode == kOutOfBounds) {
      state[i + (size_t(1) << 30)] = value;
    } else if (mode == kWrongDtype) {
      reinterpret_cast<double*>(state)[i / 2] = value;
    } else {
      state[i] = value;
    }
  }
}

using tvm::ffi::TensorView;

template <Mode mode>
void run(TensorView q, TensorView k, TensorView v, TensorView state, TensorView a_log, TensorView a, TensorView dt_bias,
         TensorView b, double scale, TensorView output, TensorView new_state) {
  if (mode == kThrow) {
    TVM_FFI_THROW(ValueError) << "batch " << q.size(0) << " is odd";
  } else if (mode == kPrint) {
    printf("q has %d dimensions\n", static_cast<int>(q.ndim()));
  } else if (mode == kAbort) {
    abort();
  } else if (mode == kNothing) {
    return;
  }
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(q.device().device_type, q.device().device_id));
  const size_t n = new_state.numel();
  fill<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(
      mode, static_cast<__nv_bfloat16*>(output.data_ptr()), output.numel(), static_cast<float*>(new_state.data_ptr()), n);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(nan, run<kNaN>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hang, run<kHang>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(out_of_bounds, run<kOutOfBounds>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(throws, run<kThrow>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nothing, run<kNothing>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prints, run<kPrint>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(aborts, run<kAbort>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(wrong_dtype, run<kWrongDtype>);
