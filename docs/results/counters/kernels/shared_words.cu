// Shared memory with elements of 8, 16 and 32 bits.
#include "common.cuh"
#include "patterns.cuh"

constexpr int kBlocks = 4;

// One warp per block. The array is filled with consecutive stores, then read as given by Pattern.
template <typename T, typename Pattern>
__global__ void shared_load(const T* in, T* out) {
  __shared__ T tile[Pattern::kSize];
  int lane = threadIdx.x;
#pragma unroll 1
  for (int i = lane; i < Pattern::kSize; i += 32) tile[i] = in[i];
  __syncthreads();
  if (Pattern::active(lane)) out[thread_number()] = tile[Pattern::at(lane)];
}

// One warp per block. The array is written as given by Pattern, and each lane reads its own element again.
template <typename T, typename Pattern>
__global__ void shared_store(const T* in, T* out) {
  __shared__ T tile[Pattern::kSize];
  int lane = threadIdx.x;
  T v = in[Pattern::at(lane)];
  if (Pattern::active(lane)) tile[Pattern::at(lane)] = v;
  __syncthreads();
  if (Pattern::active(lane)) out[thread_number()] = tile[Pattern::at(lane)];
}

template <typename T, typename Pattern>
void both(const T* in, T* out) {
  shared_load<T, Pattern><<<kBlocks, 32>>>(in, out);
  shared_store<T, Pattern><<<kBlocks, 32>>>(in, out);
}

// Columns of a tile of 32 x kPitch words are read after its rows were written.
template <int kPitch>
__global__ void transpose(const float* in, float* out) {
  __shared__ float tile[32][kPitch];
  int x = threadIdx.x, y = threadIdx.y;
  for (int i = 0; i < 32; i += 8) tile[y + i][x] = in[blockIdx.x * 1024 + (y + i) * 32 + x];
  __syncthreads();
  for (int i = 0; i < 32; i += 8) out[blockIdx.x * 1024 + (y + i) * 32 + x] = tile[x][y + i];
}

// Without padding, but with columns permuted by row.
__global__ void transpose_swizzled(const float* in, float* out) {
  __shared__ float tile[32][32];
  int x = threadIdx.x, y = threadIdx.y;
  for (int i = 0; i < 32; i += 8) tile[y + i][x ^ (y + i)] = in[blockIdx.x * 1024 + (y + i) * 32 + x];
  __syncthreads();
  for (int i = 0; i < 32; i += 8) out[blockIdx.x * 1024 + (y + i) * 32 + x] = tile[x][(y + i) ^ x];
}

// A sum of a block in shared memory, with the stride halved in each step.
__global__ void tree_sum(const float* in, float* out) {
  extern __shared__ float sums[];
  int t = threadIdx.x;
  sums[t] = in[thread_number()];
  __syncthreads();
#pragma unroll 1
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (t < step) sums[t] += sums[t + step];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = sums[0];
}

// The same with interleaved addresses: conflicts and divergence.
__global__ void tree_sum_interleaved(const float* in, float* out) {
  extern __shared__ float sums[];
  int t = threadIdx.x;
  sums[t] = in[thread_number()];
  __syncthreads();
#pragma unroll 1
  for (int step = 1; step < blockDim.x; step *= 2) {
    int i = 2 * step * t;
    if (i + step < blockDim.x) sums[i] += sums[i + step];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = sums[0];
}

int main() {
  float* in = floats(8192);
  float* out = zeros<float>(8192);
  both<float, Stride<1>>(in, out);
  both<float, Stride<2>>(in, out);
  both<float, Stride<4>>(in, out);
  both<float, Stride<8>>(in, out);
  both<float, Stride<16>>(in, out);
  both<float, Stride<32>>(in, out);
  both<float, Stride<33>>(in, out);
  shared_load<float, Broadcast><<<kBlocks, 32>>>(in, out);
  both<float, HalvesSame>(in, out);
  both<float, Permuted>(in, out);
  both<float, FirstLanes<20>>(in, out);
  both<float, OddLanes>(in, out);
  auto* bytes = reinterpret_cast<uint8_t*>(in);
  auto* shorts = reinterpret_cast<uint16_t*>(in);
  both<uint8_t, Stride<1>>(bytes, reinterpret_cast<uint8_t*>(out));
  both<uint8_t, Stride<4>>(bytes, reinterpret_cast<uint8_t*>(out));
  both<uint8_t, Stride<128>>(bytes, reinterpret_cast<uint8_t*>(out));
  both<uint16_t, Stride<1>>(shorts, reinterpret_cast<uint16_t*>(out));
  both<uint16_t, Stride<2>>(shorts, reinterpret_cast<uint16_t*>(out));
  both<uint16_t, Stride<64>>(shorts, reinterpret_cast<uint16_t*>(out));
  transpose<32><<<kBlocks, dim3(32, 8)>>>(in, out);
  transpose<33><<<kBlocks, dim3(32, 8)>>>(in, out);
  transpose_swizzled<<<kBlocks, dim3(32, 8)>>>(in, out);
  tree_sum<<<kBlocks, 256, 1024>>>(in, out);
  tree_sum_interleaved<<<kBlocks, 256, 1024>>>(in, out);
  return finish();
}
