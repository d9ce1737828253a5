// Atomic operations on global and shared memory, and shared memory of other blocks of a cluster.
#include <cooperative_groups.h>

#include "common.cuh"

namespace cg = cooperative_groups;

constexpr int kBlocks = 4, kThreads = 64, kCount = kBlocks * kThreads;

// Without use of the old value: a reduction.
__global__ void red_one_address(unsigned* sums) { atomicAdd(sums, 3u); }
__global__ void red_consecutive(unsigned* sums) { atomicAdd(sums + thread_number(), 3u); }
__global__ void red_four_addresses(unsigned* sums) { atomicAdd(sums + thread_number() % 4, 3u); }
__global__ void red_strided(unsigned* sums) { atomicAdd(sums + thread_number() * 16, 3u); }
__global__ void red_float(float* sums) { atomicAdd(sums + thread_number() % 4, 0.5f); }
__global__ void red_float_consecutive(float* sums) { atomicAdd(sums + thread_number(), 0.5f); }
__global__ void red_double(double* sums) { atomicAdd(sums + thread_number(), 0.5); }
__global__ void red_long(unsigned long long* sums) { atomicAdd(sums + thread_number(), 3ull); }
__global__ void red_max(int* sums) { atomicMax(sums + thread_number() % 4, lane_number()); }
__global__ void red_quads(float* sums) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums + thread_number() * 4), "f"(1.0f), "f"(2.0f),
               "f"(3.0f), "f"(4.0f) : "memory");
}

// With use of the old value.
__global__ void atom_one_address(unsigned* sums, unsigned* out) { out[thread_number()] = atomicAdd(sums, 3u); }
__global__ void atom_consecutive(unsigned* sums, unsigned* out) {
  out[thread_number()] = atomicAdd(sums + thread_number(), 3u);
}
__global__ void atom_four_addresses(unsigned* sums, unsigned* out) {
  out[thread_number()] = atomicAdd(sums + thread_number() % 4, 3u);
}
__global__ void atom_long(unsigned long long* sums, unsigned long long* out) {
  out[thread_number()] = atomicAdd(sums + thread_number(), 3ull);
}
__global__ void atom_float(float* sums, float* out) { out[thread_number()] = atomicAdd(sums + thread_number(), 0.5f); }
__global__ void atom_exchange(unsigned* sums, unsigned* out) {
  out[thread_number()] = atomicExch(sums + thread_number(), 7u);
}
__global__ void atom_cas(unsigned* sums, unsigned* out) {
  out[thread_number()] = atomicCAS(sums + thread_number(), 0u, 7u);
}

// One atomic addition per warp: its leader adds the number of active lanes.
__global__ void atom_aggregated(unsigned* sums, unsigned* out) {
  unsigned active = __activemask(), base = 0;
  int leader = __ffs(active) - 1;
  if (lane_number() == leader) base = atomicAdd(sums, __popc(active));
  out[thread_number()] = __shfl_sync(active, base, leader) + lane_number();
}

// Shared memory: kStride words between the lanes' counters; kStride 0 is one counter for all.
template <int kStride>
__global__ void shared_red(unsigned* out) {
  __shared__ unsigned counters[64 * (kStride ? kStride : 1)];
#pragma unroll 1
  for (int i = threadIdx.x; i < sizeof(counters) / 4; i += blockDim.x) counters[i] = 0;
  __syncthreads();
  atomicAdd(counters + lane_number() * kStride, 3u);
  __syncthreads();
  out[thread_number()] = counters[threadIdx.x];
}

template <int kStride>
__global__ void shared_atom(unsigned* out) {
  __shared__ unsigned counters[64 * (kStride ? kStride : 1)];
#pragma unroll 1
  for (int i = threadIdx.x; i < sizeof(counters) / 4; i += blockDim.x) counters[i] = 0;
  __syncthreads();
  out[thread_number()] = atomicAdd(counters + lane_number() * kStride, 3u);
}

// Of shared memory, additions of float and of 64 bits are loops of compare-and-swap.
__global__ void shared_red_float(float* out) {
  __shared__ float sums[64];
  sums[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(sums + lane_number() / 4, 0.5f);
  __syncthreads();
  out[thread_number()] = sums[threadIdx.x];
}
__global__ void shared_red_long(unsigned long long* out) {
  __shared__ unsigned long long sums[64];
  sums[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(sums + threadIdx.x, 3ull);
  __syncthreads();
  out[thread_number()] = sums[threadIdx.x];
}
__global__ void shared_cas(unsigned* out) {
  __shared__ unsigned values[64];
  values[threadIdx.x] = threadIdx.x % 2;
  __syncthreads();
  out[thread_number()] = atomicCAS(values + threadIdx.x, 1u, 7u);
}

// Each block reads the shared memory of the next block of its cluster.
__global__ void __cluster_dims__(2, 1, 1) cluster_load(const float* in, float* out) {
  __shared__ float tile[kThreads];
  auto cluster = cg::this_cluster();
  tile[threadIdx.x] = in[thread_number()];
  cluster.sync();
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address) : "r"(shared_address(tile + threadIdx.x)), "r"(cluster.block_rank() ^ 1));
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address));
  out[thread_number()] = v;
  cluster.sync();
}

// The same through a generic address.
__global__ void __cluster_dims__(2, 1, 1) cluster_load_generic(const float* in, float* out) {
  __shared__ float tile[kThreads];
  auto cluster = cg::this_cluster();
  tile[threadIdx.x] = in[thread_number()];
  cluster.sync();
  out[thread_number()] = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1)[threadIdx.x];
  cluster.sync();
}

__global__ void __cluster_dims__(2, 1, 1) cluster_store(const float* in, float* out) {
  __shared__ float tile[kThreads];
  auto cluster = cg::this_cluster();
  cluster.sync();
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address) : "r"(shared_address(tile + threadIdx.x)), "r"(cluster.block_rank() ^ 1));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(in[thread_number()]) : "memory");
  cluster.sync();
  out[thread_number()] = tile[threadIdx.x];
}

__global__ void __cluster_dims__(2, 1, 1) cluster_red(unsigned* out) {
  __shared__ unsigned counters[kThreads];
  auto cluster = cg::this_cluster();
  counters[threadIdx.x] = 0;
  cluster.sync();
  atomicAdd(cluster.map_shared_rank(counters, 0) + threadIdx.x, 3u);
  cluster.sync();
  out[thread_number()] = counters[threadIdx.x];
}

int main() {
  float* in = floats(kCount);
  float* out = zeros<float>(kCount * 16);
  float* sums = zeros<float>(kCount * 16);
  auto* words = reinterpret_cast<unsigned*>(sums);
  auto* longs = reinterpret_cast<unsigned long long*>(sums);
  auto* out_words = reinterpret_cast<unsigned*>(out);
  auto* out_longs = reinterpret_cast<unsigned long long*>(out);
  red_one_address<<<kBlocks, kThreads>>>(words);
  red_consecutive<<<kBlocks, kThreads>>>(words);
  red_four_addresses<<<kBlocks, kThreads>>>(words);
  red_strided<<<kBlocks, kThreads>>>(words);
  red_float<<<kBlocks, kThreads>>>(sums);
  red_float_consecutive<<<kBlocks, kThreads>>>(sums);
  red_double<<<kBlocks, kThreads>>>(reinterpret_cast<double*>(sums));
  red_long<<<kBlocks, kThreads>>>(longs);
  red_max<<<kBlocks, kThreads>>>(reinterpret_cast<int*>(sums));
  red_quads<<<kBlocks, kThreads>>>(sums);
  atom_one_address<<<kBlocks, kThreads>>>(words, out_words);
  atom_consecutive<<<kBlocks, kThreads>>>(words, out_words);
  atom_four_addresses<<<kBlocks, kThreads>>>(words, out_words);
  atom_long<<<kBlocks, kThreads>>>(longs, out_longs);
  atom_float<<<kBlocks, kThreads>>>(sums, out);
  atom_exchange<<<kBlocks, kThreads>>>(words, out_words);
  atom_cas<<<kBlocks, kThreads>>>(words, out_words);
  atom_aggregated<<<kBlocks, kThreads>>>(words, out_words);
  shared_red<0><<<kBlocks, kThreads>>>(out_words);
  shared_red<1><<<kBlocks, kThreads>>>(out_words);
  shared_red<32><<<kBlocks, kThreads>>>(out_words);
  shared_atom<0><<<kBlocks, kThreads>>>(out_words);
  shared_atom<1><<<kBlocks, kThreads>>>(out_words);
  shared_atom<2><<<kBlocks, kThreads>>>(out_words);
  shared_atom<32><<<kBlocks, kThreads>>>(out_words);
  shared_red_float<<<kBlocks, kThreads>>>(out);
  shared_red_long<<<kBlocks, kThreads>>>(out_longs);
  shared_cas<<<kBlocks, kThreads>>>(out_words);
  cluster_load<<<kBlocks, kThreads>>>(in, out);
  cluster_load_generic<<<kBlocks, kThreads>>>(in, out);
  cluster_store<<<kBlocks, kThreads>>>(in, out);
  cluster_red<<<kBlocks, kThreads>>>(out_words);
  return finish();
}
