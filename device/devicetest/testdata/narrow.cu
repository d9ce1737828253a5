// bfloat16 and float16: conversions, arithmetic, pairs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

// bf and hf are (6, n): x itself, x + y, x * y, fma(x, y, z), the pair's high half, x as it comes back.
__global__ void narrow_kernel(const float* x, const float* y, const float* z, int n, __nv_bfloat16* bf, __half* hf) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const __nv_bfloat16 bx = __float2bfloat16(x[i]), by = __float2bfloat16_rn(y[i]), bz = __float2bfloat16(z[i]);
  bf[i] = bx;
  bf[n + i] = __hadd(bx, by);
  bf[2 * n + i] = __hmul(bx, by);
  bf[3 * n + i] = __hfma(bx, by, bz);
  const __nv_bfloat162 bp = __floats2bfloat162_rn(y[i], x[i]);
  bf[4 * n + i] = __high2bfloat16(bp);
  bf[5 * n + i] = __float2bfloat16(__bfloat162float(bx));
  const __half hx = __float2half(x[i]), hy = __float2half_rn(y[i]), hz = __float2half(z[i]);
  hf[i] = hx;
  hf[n + i] = __hadd(hx, hy);
  hf[2 * n + i] = __hmul(hx, hy);
  hf[3 * n + i] = __hfma(hx, hy, hz);
  const __half2 hp = __floats2half2_rn(y[i], x[i]);
  hf[4 * n + i] = __float2half(__high2float(hp));
  hf[5 * n + i] = __float2half(__half2float(hx));
}

void narrow(TensorView x, TensorView y, TensorView z, TensorView bf, TensorView hf) {
  const int n = static_cast<int>(x.numel());
  cudaStream_t stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, x.device().device_id));
  narrow_kernel<<<(n + 127) / 128, 128, 0, stream>>>(
      static_cast<const float*>(x.data_ptr()), static_cast<const float*>(y.data_ptr()), static_cast<const float*>(z.data_ptr()), n,
      static_cast<__nv_bfloat16*>(bf.data_ptr()), static_cast<__half*>(hf.data_ptr()));
  cudaError_t status = cudaGetLastError();
  TVM_FFI_CHECK(status == cudaSuccess, RuntimeError) << cudaGetErrorString(status);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(narrow, narrow);
