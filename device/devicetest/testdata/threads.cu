// What the threads of a block do together: warp functions, static and dynamic shared memory, barriers, atomics.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

using tvm::ffi::TensorView;

static cudaStream_t stream_of(TensorView t) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(t.device().device_type, t.device().device_id));
}

static void check_launch() {
  cudaError_t status = cudaGetLastError();
  TVM_FFI_CHECK(status == cudaSuccess, RuntimeError) << cudaGetErrorString(status);
}

constexpr unsigned kAll = 0xffffffffu;

// in is (64), out is (14, 64): one row for each function.
__global__ void warp_kernel(const int* in, int* out) {
  const int i = threadIdx.x, lane = i % warpSize;
  const int v = in[i];
  int row = 0;
  auto put = [&](int value) { out[64 * row++ + i] = value; };
  put(__shfl_xor_sync(kAll, v, 1));
  put(__shfl_up_sync(kAll, v, 3));
  put(__shfl_down_sync(kAll, v, 5));
  put(__shfl_sync(kAll, v, 7));
  put(__shfl_sync(kAll, v, lane + 3, 8));
  put(__shfl_down_sync(kAll, v, 2, 4));
  put(static_cast<int>(__ballot_sync(kAll, v & 1)));
  put(__any_sync(kAll, v > 90));
  put(__all_sync(kAll, v > -90));
  put(static_cast<int>(__match_any_sync(kAll, v % 3)));
  int divergent = -1;
  if (lane < 16) divergent = __shfl_xor_sync(0xffffu, v, 8);
  __syncwarp();
  put(divergent);
  put(static_cast<int>(__shfl_xor_sync(kAll, static_cast<double>(v) * 0.5, 16) * 2));
  put(static_cast<int>(__shfl_sync(kAll, (1ll << 40) + v, 0) - (1ll << 40)));
  put(__popc(static_cast<unsigned>(v)) + 100 * __clz(v) + 10000 * __ffs(v));
}

void warp(TensorView in, TensorView out) {
  warp_kernel<<<1, 64, 0, stream_of(in)>>>(static_cast<const int*>(in.data_ptr()), static_cast<int*>(out.data_ptr()));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(warp, warp);

template <int kThreads>
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float partial[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kAll, v, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];
  __syncthreads();
  return total;
}

// Sums the rows of in (rows, cols); cols is a multiple of 4.
template <int kThreads, typename T>
__global__ void __launch_bounds__(kThreads) row_sum_kernel(const T* __restrict__ in, T* __restrict__ out, int cols) {
  const float4* row = reinterpret_cast<const float4*>(in + static_cast<size_t>(blockIdx.x) * cols);
  float sum = 0;
  for (int c = threadIdx.x; c < cols / 4; c += kThreads) {
    const float4 v = __ldg(row + c);
    sum += v.x + v.y + v.z + v.w;
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

void row_sum(TensorView in, TensorView out) {
  const dim3 grid(static_cast<unsigned>(in.size(0)));
  const float* p = static_cast<const float*>(in.data_ptr());
  row_sum_kernel<128><<<grid, 128, 0, stream_of(in)>>>(p, static_cast<float*>(out.data_ptr()), static_cast<int>(in.size(1)));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(row_sum, row_sum);

// Transposes 32 x 32 tiles through dynamic shared memory; in is (n, n), n a multiple of 32.
__global__ void transpose_kernel(const int* in, int* out, int n) {
  extern __shared__ __align__(16) unsigned char bytes[];
  int* tile = reinterpret_cast<int*>(bytes);
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += blockDim.y) tile[(threadIdx.y + j) * 33 + threadIdx.x] = in[(y + j) * n + x];
  __syncthreads();
  const int tx = blockIdx.y * 32 + threadIdx.x, ty = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += blockDim.y) out[(ty + j) * n + tx] = tile[threadIdx.x * 33 + threadIdx.y + j];
}

void transpose(TensorView in, TensorView out) {
  const unsigned n = static_cast<unsigned>(in.size(0));
  transpose_kernel<<<dim3(n / 32, n / 32), dim3(32, 8), 32 * 33 * sizeof(int), stream_of(in)>>>(
      static_cast<const int*>(in.data_ptr()), static_cast<int*>(out.data_ptr()), static_cast<int>(n));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(transpose, transpose);

// Uses more dynamic shared memory than a kernel has by default.
__global__ void large_kernel(int* out) {
  extern __shared__ int numbers[];
  for (int i = threadIdx.x; i < 16384; i += blockDim.x) numbers[i] = i;
  __syncthreads();
  int sum = 0;
  for (int i = threadIdx.x; i < 16384; i += blockDim.x) sum += numbers[16383 - i] & 255;
  atomicAdd(out, sum);
}

void large(TensorView out) {
  cudaError_t status = cudaFuncSetAttribute(large_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);
  TVM_FFI_CHECK(status == cudaSuccess, RuntimeError) << cudaGetErrorString(status);
  large_kernel<<<4, 256, 65536, stream_of(out)>>>(static_cast<int*>(out.data_ptr()));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(large, large);

// out is (3, 96): what the voting barriers give; threads of the last warp end before the barrier.
__global__ void barrier_kernel(int* out) {
  const int i = threadIdx.x;
  if (i >= 96) return;
  out[i] = __syncthreads_count(i % 3 == 0);
  out[96 + i] = __syncthreads_or(i == 95);
  out[192 + i] = __syncthreads_and(i != 95);
}

void barrier(TensorView out) {
  barrier_kernel<<<1, 128, 0, stream_of(out)>>>(static_cast<int*>(out.data_ptr()));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(barrier, barrier);

// A histogram and float sums of many blocks.
__global__ void atomics_kernel(const int* in, int n, unsigned* counts, float* sum, int* extremes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&counts[in[i] & 15], 1u);
  atomicAdd(sum, static_cast<float>(in[i]));
  atomicMax(&extremes[0], in[i]);
  atomicMin(&extremes[1], in[i]);
}

void atomics(TensorView in, TensorView counts, TensorView sum, TensorView extremes) {
  const int n = static_cast<int>(in.numel());
  atomics_kernel<<<(n + 127) / 128, 128, 0, stream_of(in)>>>(
      static_cast<const int*>(in.data_ptr()), n, static_cast<unsigned*>(counts.data_ptr()),
      static_cast<float*>(sum.data_ptr()), static_cast<int*>(extremes.data_ptr()));
  check_launch();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(atomics, atomics);
