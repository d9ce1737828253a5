#include <cuda_runtime.h>
#include <tvm/ffi/function.h>

__global__ void kernel_body(float* out) {
  out[0] = undeclared_name;
}

void kernel() { kernel_body<<<1, 1>>>(nullptr); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);
