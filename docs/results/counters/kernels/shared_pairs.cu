// Which lanes of a load of 64 or 128 bits are served together. Added after the first measurement.
#include "common.cuh"
#include "patterns.cuh"

constexpr int kBlocks = 4;

// Lanes 0 and 16.
struct TwoLanes {
  static constexpr int kSize = 32;
  static __device__ int at(int lane) { return lane / 2; }
  static __device__ bool active(int lane) { return lane % 16 == 0; }
};

// Even lanes, at consecutive elements.
struct EvenLanes {
  static constexpr int kSize = 16;
  static __device__ int at(int lane) { return lane / 2; }
  static __device__ bool active(int lane) { return lane % 2 == 0; }
};

// Lanes l and l ^ 2 access the same element.
struct SecondSame : AllActive {
  static constexpr int kSize = 16;
  static __device__ int at(int lane) { return lane / 4 * 2 + lane % 2; }
};

// Lanes l and l ^ 4 access the same element.
struct FourthSame : AllActive {
  static constexpr int kSize = 16;
  static __device__ int at(int lane) { return lane / 8 * 4 + lane % 4; }
};

// In quads of even number, lanes l and l ^ 1 access the same element, in the others lanes l and l ^ 2.
struct EitherSame : AllActive {
  static constexpr int kSize = 16;
  static __device__ int at(int lane) { return lane / 4 * 2 + (lane / 4 % 2 ? lane % 2 : lane % 4 / 2); }
};

struct QuadsSame : AllActive {
  static constexpr int kSize = 8;
  static __device__ int at(int lane) { return lane / 4; }
};

// As PairsSame, but the last pair differs.
struct OnePairDiffers : AllActive {
  static constexpr int kSize = 17;
  static __device__ int at(int lane) { return lane < 31 ? lane / 2 : 16; }
};

// As PairsSame, but only in the first half.
struct HalfOfPairsSame : AllActive {
  static constexpr int kSize = 24;
  static __device__ int at(int lane) { return lane < 16 ? lane / 2 : lane - 8; }
};

// As PairsSame, without lane 31.
struct PairsWithoutLast {
  static constexpr int kSize = 16;
  static __device__ int at(int lane) { return lane / 2; }
  static __device__ bool active(int lane) { return lane < 31; }
};

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

template <typename T, typename... Patterns>
void all(const float* in, float* out) {
  (vector_load<T, Patterns><<<kBlocks, 32>>>(in, reinterpret_cast<T*>(out)), ...);
}

template <typename T>
void every(const float* in, float* out) {
  all<T, TwoLanes, EvenLanes, SecondSame, FourthSame, EitherSame, QuadsSame, OnePairDiffers, HalfOfPairsSame,
      PairsWithoutLast>(in, out);
}

int main() {
  float* in = floats(8192);
  float* out = zeros<float>(8192);
  every<float2>(in, out);
  every<float4>(in, out);
  return finish();
}
