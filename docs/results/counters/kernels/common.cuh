// Shared by the programs of this folder: checks of CUDA calls, and arrays filled by a formula.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                         \
  do {                                                                                      \
    cudaError_t status_ = (call);                                                           \
    if (status_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (0)

// An array of n elements on the device, aligned to 256 bytes. Element i is at(i).
template <typename T, typename F>
T* filled(int n, F at) {
  std::vector<T> host(n);
  for (int i = 0; i < n; ++i) host[i] = at(i);
  T* device;
  CHECK(cudaMalloc(&device, n * sizeof(T)));
  CHECK(cudaMemcpy(device, host.data(), n * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

// An array of floats between 1 and 2.
inline float* floats(int n) {
  return filled<float>(n, [](int i) { return 1 + (i * 2654435761u >> 8) / 16777216.0f; });
}

// An array of zeros.
template <typename T>
T* zeros(int n) {
  T* device;
  CHECK(cudaMalloc(&device, n * sizeof(T)));
  CHECK(cudaMemset(device, 0, n * sizeof(T)));
  return device;
}

// Number i of a permutation of the numbers below n, a power of two.
inline int permuted(unsigned i, unsigned n) { return (i * 1103515245u + 12345) & (n - 1); }

// Ends the program: waits for all kernels and reports the first error.
inline int finish() {
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__device__ inline int thread_number() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int lane_number() { return threadIdx.x % 32; }
__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
