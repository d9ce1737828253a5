// The part of torch's CUDA libraries that extensions call, on the virtual GPU: one device whose work is done when the
// call that started it returns. Functions that are missing here are undefined symbols of the extension.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda {

void c10_cuda_check_implementation(const int32_t err, const char *file, const char *function, const int line, const bool) {
  if (err != cudaSuccess)
    throw c10::AcceleratorError({function, file, static_cast<uint32_t>(line)}, err,
                                std::string("CUDA error: ") + cudaGetErrorString(static_cast<cudaError_t>(err)));
}

void c10_cuda_check_implementation(const int32_t err, const char *file, const char *function, const uint32_t line, const bool a) {
  c10_cuda_check_implementation(err, file, function, static_cast<int>(line), a);
}

DeviceIndex device_count() noexcept { return 1; }
DeviceIndex device_count_ensure_non_zero() { return 1; }
DeviceIndex current_device() { return 0; }
void set_device(DeviceIndex) {}
void set_device(DeviceIndex, const bool) {}
void device_synchronize() { c10_cuda_check_implementation(cudaDeviceSynchronize(), __FILE__, __func__, __LINE__, false); }
void warn_or_error_on_sync() {}
cudaError_t GetDeviceCount(int *n) { return cudaGetDeviceCount(n); }
cudaError_t GetDevice(DeviceIndex *device) { *device = 0; return cudaSuccess; }
cudaError_t SetDevice(DeviceIndex device) { return cudaSetDevice(device); }
cudaError_t SetDevice(DeviceIndex device, const bool) { return cudaSetDevice(device); }
cudaError_t MaybeSetDevice(DeviceIndex device) { return cudaSetDevice(device); }
DeviceIndex ExchangeDevice(DeviceIndex) { return 0; }
DeviceIndex MaybeExchangeDevice(DeviceIndex) { return 0; }

static CUDAStream stream() { return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0))); }
cudaStream_t CUDAStream::stream() const { return nullptr; }
CUDAStream getDefaultCUDAStream(DeviceIndex) { return stream(); }
CUDAStream getCurrentCUDAStream(DeviceIndex) { return stream(); }
CUDAStream getStreamFromPool(const bool, DeviceIndex) { return stream(); }
CUDAStream getStreamFromPool(const int, DeviceIndex) { return stream(); }
void setCurrentCUDAStream(CUDAStream) {}

} // namespace c10::cuda

namespace at::cuda {

__attribute__((visibility("default"))) cudaDeviceProp *getDeviceProperties(c10::DeviceIndex) {
  static cudaDeviceProp *properties = [] {
    auto p = new cudaDeviceProp{};
    cudaGetDeviceProperties(p, 0);
    return p;
  }();
  return properties;
}
__attribute__((visibility("default"))) cudaDeviceProp *getCurrentDeviceProperties() { return getDeviceProperties(0); }
__attribute__((visibility("default"))) int warp_size() { return 32; }

} // namespace at::cuda
