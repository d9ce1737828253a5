// Global loads and stores of 32 bits whose lanes are a constant number of elements apart.
#include "common.cuh"

constexpr int kBlocks = 4, kThreads = 128, kCount = kBlocks * kThreads;

// Thread i reads element i * kStride.
template <int kStride>
__global__ void load_stride(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i * kStride];
}

// Thread i writes element i * kStride.
template <int kStride>
__global__ void store_stride(const float* in, float* out) {
  int i = thread_number();
  out[i * kStride] = in[i];
}

// Each thread reads a row of 16 consecutive elements, one after the other.
__global__ void load_rows(const float* in, float* out) {
  int i = thread_number();
  float sum = 0;
#pragma unroll 1
  for (int j = 0; j < 16; ++j) sum += in[i * 16 + j];
  out[i] = sum;
}

// A grid-stride loop over n elements; n is not a multiple of the warp size.
__global__ void copy_grid_stride(const float* in, float* out, int n) {
#pragma unroll 1
  for (int i = thread_number(); i < n; i += gridDim.x * blockDim.x) out[i] = in[i];
}

int main() {
  float* in = floats(kCount * 1024);
  float* out = zeros<float>(kCount * 1024);
  load_stride<1><<<kBlocks, kThreads>>>(in, out);
  load_stride<2><<<kBlocks, kThreads>>>(in, out);
  load_stride<3><<<kBlocks, kThreads>>>(in, out);
  load_stride<33><<<kBlocks, kThreads>>>(in, out);
  load_stride<64><<<kBlocks, kThreads>>>(in, out);
  load_stride<1024><<<kBlocks, kThreads>>>(in, out);
  store_stride<1><<<kBlocks, kThreads>>>(in, out);
  store_stride<2><<<kBlocks, kThreads>>>(in, out);
  store_stride<3><<<kBlocks, kThreads>>>(in, out);
  store_stride<33><<<kBlocks, kThreads>>>(in, out);
  store_stride<64><<<kBlocks, kThreads>>>(in, out);
  store_stride<1024><<<kBlocks, kThreads>>>(in, out);
  load_rows<<<kBlocks, kThreads>>>(in, out);
  copy_grid_stride<<<kBlocks, kThreads>>>(in, out, 5001);
  return finish();
}
