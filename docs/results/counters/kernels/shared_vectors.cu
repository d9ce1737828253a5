// Shared memory with elements of 64 and 128 bits.
#include "common.cuh"
#include "patterns.cuh"

constexpr int kBlocks = 4;

// One warp per block. The array is filled with consecutive stores of 32 bits, then read as given by Pattern.
template <typename T, typename Pattern>
__global__ void vector_load(const float* in, T* out) {
  constexpr int kWords = Pattern::kSize * sizeof(T) / 4;
  __shared__ alignas(16) float words[kWords];
  int lane = threadIdx.x;
#pragma unroll 1
  for (int i = lane; i < kWords; i += 32) words[i] = in[i];
  __syncthreads();
  if (Pattern::active(lane)) out[thread_number()] = reinterpret_cast<T*>(words)[Pattern::at(lane)];
}

// One warp per block. The array is written as given by Pattern, and each lane reads its own element again, one word at
// a time.
template <typename T, typename Pattern>
__global__ void vector_store(const T* in, float* out) {
  constexpr int kWords = sizeof(T) / 4;
  __shared__ alignas(16) float words[Pattern::kSize * kWords];
  int lane = threadIdx.x;
  T v = in[Pattern::at(lane)];
  if (Pattern::active(lane)) reinterpret_cast<T*>(words)[Pattern::at(lane)] = v;
  __syncthreads();
  float sum = 0;
  const volatile float* own = words + Pattern::at(lane) * kWords;
  if (Pattern::active(lane)) {
#pragma unroll 1
    for (int i = 0; i < kWords; ++i) sum += own[i];
  }
  out[thread_number()] = sum;
}

template <typename T, typename Pattern>
void both(const float* in, float* out) {
  vector_load<T, Pattern><<<kBlocks, 32>>>(in, reinterpret_cast<T*>(out));
  vector_store<T, Pattern><<<kBlocks, 32>>>(reinterpret_cast<const T*>(in), out);
}

template <typename T>
void all(const float* in, float* out) {
  both<T, Stride<1>>(in, out);
  both<T, Stride<2>>(in, out);
  both<T, Stride<3>>(in, out);
  both<T, Stride<5>>(in, out);
  both<T, Stride<9>>(in, out);
  both<T, Stride<16>>(in, out);
  both<T, Broadcast>(in, out);
  both<T, PairsSame>(in, out);
  both<T, HalvesSame>(in, out);
  both<T, QuartersConflict>(in, out);
  both<T, QuartersRepeat>(in, out);
  both<T, Reversed>(in, out);
  both<T, Permuted>(in, out);
  both<T, FirstLanes<8>>(in, out);
  both<T, FirstLanes<20>>(in, out);
  both<T, OddLanes>(in, out);
  both<T, FourLanes>(in, out);
}

int main() {
  float* in = floats(8192);
  float* out = zeros<float>(8192);
  all<float2>(in, out);
  all<float4>(in, out);
  return finish();
}
