// Error checking and device selection of TVM-FFI's CUDA extras.
#ifndef FISUB_EMU_TVM_FFI_CUDA_BASE_H_
#define FISUB_EMU_TVM_FFI_CUDA_BASE_H_

#include <cuda_runtime.h>
#include <tvm/ffi/tvm_ffi.h>

#define TVM_FFI_CHECK_CUDA_ERROR(stmt)                                                              \
  do {                                                                                              \
    cudaError_t fisub_error_ = (stmt);                                                              \
    if (fisub_error_ != cudaSuccess) {                                                              \
      TVM_FFI_THROW(RuntimeError) << "CUDA Runtime Error: " << cudaGetErrorName(fisub_error_) << " (" \
                                  << static_cast<int>(fisub_error_) << "): " << cudaGetErrorString(fisub_error_); \
    }                                                                                               \
  } while (0)

namespace tvm {
namespace ffi {
struct CUDADeviceGuard {
  explicit CUDADeviceGuard(int device) { TVM_FFI_CHECK_CUDA_ERROR(cudaSetDevice(device)); }
};
}  // namespace ffi
}  // namespace tvm

#endif  // FISUB_EMU_TVM_FFI_CUDA_BASE_H_
