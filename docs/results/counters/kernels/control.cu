// Branches, loops, barriers and exchanges between lanes.
#include "common.cuh"

constexpr int kBlocks = 4, kThreads = 128, kCount = kBlocks * kThreads;

// Each side of the branch is too long for predicates.
__global__ void branch_by_parity(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  if (i % 2) {
#pragma unroll 1
    for (int j = 0; j < 5; ++j) v = v * v - 1.5f;
  } else {
#pragma unroll 1
    for (int j = 0; j < 3; ++j) v = v * 0.5f + 2.5f;
  }
  out[i] = v;
}

// A branch taken by whole warps.
__global__ void branch_by_warp(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  if (threadIdx.x / 32 % 2) {
#pragma unroll 1
    for (int j = 0; j < 5; ++j) v = v * v - 1.5f;
  } else {
#pragma unroll 1
    for (int j = 0; j < 3; ++j) v = v * 0.5f + 2.5f;
  }
  out[i] = v;
}

// A branch that depends on the data.
__global__ void branch_by_value(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  if (v > 1.3f) {
#pragma unroll 1
    for (int j = 0; j < 4; ++j) v = v * v - 1.5f;
    out[i] = v;
  }
}

// A short branch, for which the compiler uses predicates or a selection.
__global__ void branch_short(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  if (i % 3 == 0) v += 1;
  out[i] = v;
}

// Lane l makes l + 1 rounds.
__global__ void loop_by_lane(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
#pragma unroll 1
  for (int j = 0; j <= lane_number(); ++j) v = v * 0.5f + in[j];
  out[i] = v;
}

__global__ void switch_by_lane(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  switch (i % 5) {
    case 0: v = sqrtf(v); break;
    case 1: v = v / (v + 3); break;
    case 2: v = v * v * v + in[i + 1]; break;
    case 3: v = in[i + 2] - v; break;
    default: v = fmaf(v, v, in[i + 3]) / 7; break;
  }
  out[i] = v;
}

__global__ void early_return(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  if (v < 1.5f) return;
#pragma unroll 1
  for (int j = 0; j < 4; ++j) v = v * v - 1.5f;
  out[i] = v;
}

// Branches within branches, with a loop that lanes leave at different times.
__global__ void nested(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
#pragma unroll 1
  for (int j = 0; j < 16; ++j) {
    if (i & 1) {
      if (i & 2) {
        v = v * v - 1.25f;
        out[i] = v;
      } else {
        v = v * 0.25f + in[i + j];
      }
    }
    if (v > 1.9f || j == (i & 7)) break;
  }
  out[i] = v;
}

// A loop that the compiler unrolls.
__global__ void unrolled(const float* in, float* out) {
  int i = thread_number();
  float sum = 0;
  for (int j = 0; j < 8; ++j) sum += in[i + j * kCount];
  out[i] = sum;
}

// A loop over n rounds without a directive, which the compiler unrolls by four with a remainder.
__global__ void loop_by_argument(const float* in, float* out, int n) {
  int i = thread_number();
  float sum = 0;
  for (int j = 0; j < n; ++j) sum = sum * 0.5f + in[i + j];
  out[i] = sum;
}

// Sums of warps by butterfly exchange.
__global__ void shuffles(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  if (lane_number() == 0) out[i / 32] = v;
}

__global__ void shuffle_kinds(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  v += __shfl_down_sync(~0u, v, 1) + __shfl_up_sync(~0u, v, 2);
  out[i] = v + __shfl_sync(~0u, v, (i * 7) & 31);
}

__global__ void votes(const float* in, unsigned* out) {
  int i = thread_number();
  float v = in[i];
  unsigned above = __ballot_sync(~0u, v > 1.5f);
  unsigned all = __all_sync(~0u, v > 1.01f), some = __any_sync(~0u, v > 1.99f);
  unsigned same = __match_any_sync(~0u, __float_as_uint(v) >> 20), sum = __reduce_add_sync(~0u, above >> (i & 31));
  out[i] = above + all + some + same + sum;
}

__global__ void barriers(const float* in, float* out) {
  __shared__ float values[kThreads];
  float v = in[thread_number()];
#pragma unroll 1
  for (int j = 0; j < 6; ++j) {
    values[threadIdx.x] = v;
    __syncthreads();
    v += values[(threadIdx.x + 33) % kThreads];
    __syncthreads();
  }
  out[thread_number()] = v;
}

__global__ void barrier_kinds(const float* in, int* out) {
  int i = thread_number();
  int above = __syncthreads_count(in[i] > 1.5f);
  int all = __syncthreads_and(in[i] > 1.01f);
  __syncwarp();
  __threadfence();
  if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
  out[i] = above + all;
}

// A call that is not inlined, by odd lanes only.
__noinline__ __device__ float called(float v, int n) {
#pragma unroll 1
  for (int j = 0; j < n; ++j) v = v * v - 1.5f;
  return v;
}
__global__ void call_by_lane(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  if (i % 2) v = called(v, i & 3);
  out[i] = v;
}

int main() {
  float* in = floats(kCount * 8);
  float* out = zeros<float>(kCount * 8);
  auto* words = reinterpret_cast<unsigned*>(out);
  branch_by_parity<<<kBlocks, kThreads>>>(in, out);
  branch_by_warp<<<kBlocks, kThreads>>>(in, out);
  branch_by_value<<<kBlocks, kThreads>>>(in, out);
  branch_short<<<kBlocks, kThreads>>>(in, out);
  loop_by_lane<<<kBlocks, kThreads>>>(in, out);
  switch_by_lane<<<kBlocks, kThreads>>>(in, out);
  early_return<<<kBlocks, kThreads>>>(in, out);
  nested<<<kBlocks, kThreads>>>(in, out);
  unrolled<<<kBlocks, kThreads>>>(in, out);
  loop_by_argument<<<kBlocks, kThreads>>>(in, out, 11);
  shuffles<<<kBlocks, kThreads>>>(in, out);
  shuffle_kinds<<<kBlocks, kThreads>>>(in, out);
  votes<<<kBlocks, kThreads>>>(in, words);
  barriers<<<kBlocks, kThreads>>>(in, out);
  barrier_kinds<<<kBlocks, kThreads>>>(in, reinterpret_cast<int*>(out));
  call_by_lane<<<kBlocks, kThreads>>>(in, out);
  return finish();
}
