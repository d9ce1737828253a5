// A solution for tests on a real GPU.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <chrono>

namespace ffi = tvm::ffi;

// y = x + s, not before ns nanoseconds have gone by.
__global__ void add_after(const float* x, float* y, float s, int n, long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < ns);
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + s;
}

static void kernel(ffi::TensorView x, double s, int64_t mode, int64_t ns, ffi::TensorView y) {
  DLDevice d = x.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(d.device_type, d.device_id));
  auto in = static_cast<const float*>(x.data_ptr());
  auto out = static_cast<float*>(y.data_ptr());
  int n = static_cast<int>(x.size(0));
  if (mode == 1) stream = nullptr;  // the legacy default stream
  if (mode == 5) {  // a stream that nothing waits for
    static cudaStream_t own = nullptr;
    if (own == nullptr) cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    stream = own;
  }
  if (mode == 2) out = reinterpret_cast<float*>(8);  // no such address
  if (mode == 4) {
    ffi::Tensor w = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), d);
    auto tmp = static_cast<float*>(w.data_ptr());
    add_after<<<(n + 255) / 256, 256, 0, stream>>>(in, tmp, 0, n, 0);
    in = tmp;
  }
  // Modes 5 to 7: a kernel and, 20 us after the call has let it end, another; a memset and a copy besides; a side stream.
  if (mode == 5) {
    add_after<<<1, 256, 0, stream>>>(in, out, 0, n, 10000);
    cudaStreamSynchronize(stream);
    auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(20));
  }
  if (mode == 6) {
    cudaMemsetAsync(out, 0, 4 * n, stream);
    cudaMemcpyAsync(out, in, 4 * n, cudaMemcpyDeviceToDevice, stream);
  }
  if (mode == 7) {
    static cudaStream_t side = [] { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); return s; }();
    add_after<<<1, 32, 0, side>>>(in, out + n, 0, 0, 60000);
  }
  // Mode 3 asks for more threads than a block can have, and does not look at the result.
  add_after<<<(n + 255) / 256, mode == 3 ? 4096 : 256, 0, stream>>>(in, out, static_cast<float>(s), n, ns);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);
