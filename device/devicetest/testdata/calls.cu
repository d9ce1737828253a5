// Argument kinds, errors and results of calls.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>
#include <stdexcept>

using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

static cudaStream_t stream_of(TensorView t) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(t.device().device_type, t.device().device_id));
}

static void check_launch() {
  cudaError_t status = cudaGetLastError();
  TVM_FFI_CHECK(status == cudaSuccess, RuntimeError) << cudaGetErrorString(status);
}

__global__ void scale_kernel(const float* __restrict__ x, float factor, float* __restrict__ out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * factor;
}

// out = factor * x
void scale(TensorView x, double factor, TensorView out) {
  TVM_FFI_CHECK(x.ndim() == 1 && x.size(0) == out.size(-1), ValueError) << "x and out differ";
  TVM_FFI_CHECK(x.IsContiguous() && x.stride(0) == 1, ValueError) << "x is not contiguous";
  TVM_FFI_CHECK(x.device().device_type == kDLCUDA, ValueError) << "x is not on the GPU";
  int n = static_cast<int>(x.numel());
  if (n == 0) return;
  scale_kernel<<<(n + 255) / 256, 256, 0, stream_of(x)>>>(static_cast<const float*>(x.data_ptr()), static_cast<float>(factor),
                                                        static_cast<float*>(out.data_ptr()), n);
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);

__global__ void kinds_kernel(const float* zero_d, float i, float f, float b, float o, float* out) {
  out[0] = *zero_d;
  out[1] = i;
  out[2] = f;
  out[3] = b;
  out[4] = o;
}

// out = {zero_d, i, f, b, o or -1}
void kinds(TensorView zero_d, int64_t i, float f, bool b, Optional<double> o, Optional<Tensor> t, DLTensor* out) {
  TVM_FFI_CHECK(zero_d.ndim() == 0 && zero_d.numel() == 1, ValueError) << "not 0-d";
  TVM_FFI_CHECK(!t.has_value() || t.value().dtype().code == kDLInt, ValueError) << "t is not an integer tensor";
  float absent = t.has_value() ? -static_cast<float>(t.value().size(1)) : -1.0f;
  kinds_kernel<<<1, 1, 0, stream_of(zero_d)>>>(static_cast<const float*>(zero_d.data_ptr()), static_cast<float>(i), f,
                                                b ? 1.0f : 0.0f, o.has_value() ? static_cast<float>(*o) : absent,
                                                static_cast<float*>(out->data));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kinds, kinds);

// Writes the tensor's metadata: ndim, dtype code and bits, then shape and strides.
__global__ void describe_kernel(float* out, float value, int at) { out[at] = value; }

void describe(TensorView t, TensorView out) {
  float* p = static_cast<float*>(out.data_ptr());
  auto put = [&, at = 0](double value) mutable {
    describe_kernel<<<dim3(1), dim3(1), 0, stream_of(out)>>>(p, static_cast<float>(value), at);
    ++at;
  };
  put(t.ndim());
  put(t.dtype().code);
  put(t.dtype().bits);
  for (int64_t s : t.shape()) put(static_cast<double>(s));
  for (int64_t s : t.strides()) put(static_cast<double>(s));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(describe, describe);

void throws(int64_t code) { TVM_FFI_THROW(ValueError) << "code " << code; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(throws, throws);

void throws_std() { throw std::runtime_error("plain exception"); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(throws_std, throws_std);

void checks(int64_t a, int64_t b) { TVM_FFI_ICHECK_EQ(a, b) << "they differ"; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(checks, checks);

// A block of 2048 threads is refused by the runtime.
void bad_launch(TensorView out) {
  scale_kernel<<<1, 2048, 0, stream_of(out)>>>(nullptr, 0.0f, static_cast<float*>(out.data_ptr()), 0);
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(bad_launch, bad_launch);
