// Global accesses of 32 bits in which lanes share addresses, are absent, or are in any order; cache operators; generic
// addresses.
#include "common.cuh"

constexpr int kBlocks = 4, kThreads = 128, kCount = kBlocks * kThreads;

// A block of 80 threads: its last warp has 16.
__global__ void partial_warp(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i] * 2;
}

// Only threads below n take part.
__global__ void bounds_guard(const float* in, float* out, int n) {
  int i = thread_number();
  if (i < n) out[i] = in[i] * 2;
}

__global__ void even_lanes(const float* in, float* out) {
  int i = thread_number();
  if (i % 2 == 0) out[i] = in[i] * 2;
}

// Both lanes of a pair read the same element.
__global__ void pairs_same(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i / 2];
}

// All lanes of a half-warp read the same element; the two elements are in different sectors.
__global__ void half_warps_same(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i / 16 * 16];
}

// All lanes of a warp read the same element.
__global__ void broadcast(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i / 32];
}

__global__ void reversed(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i ^ 31];
}

__global__ void gather_words(const float* in, const int* index, float* out) {
  int i = thread_number();
  out[i] = in[index[i]];
}

__global__ void scatter_words(const float* in, const int* index, float* out) {
  int i = thread_number();
  out[index[i]] = in[i];
}

__global__ void gather_quads(const float4* in, const int* index, float* out) {
  int i = thread_number();
  float4 v = in[index[i]];
  out[i] = v.x * v.y + v.z * v.w;
}

// Both lanes of a pair write the same value to the same element.
__global__ void store_same_word(float* out) {
  int i = thread_number();
  out[i / 2] = static_cast<float>(i / 2);
}

// All lanes of a warp write the same value to the same element.
__global__ void store_one_word(float* out) {
  int i = thread_number();
  out[i / 32] = static_cast<float>(i / 32);
}

__global__ void load_read_only(const float* in, float* out) {
  int i = thread_number();
  out[i] = __ldg(in + i * 2);
}

__global__ void load_volatile(const volatile float* in, float* out) {
  int i = thread_number();
  out[i] = in[i * 2] + in[i * 2 + 1];
}

__global__ void load_cache_global(const float* in, float* out) {
  int i = thread_number();
  out[i] = __ldcg(in + i * 2);
}

__global__ void load_streaming(const float* in, float* out) {
  int i = thread_number();
  __stcs(out + i, __ldcs(in + i * 2));
}

__global__ void store_write_through(const float* in, float* out) {
  int i = thread_number();
  __stwt(out + i * 2, in[i]);
}

__global__ void load_acquire(const float* in, float* out) {
  int i = thread_number();
  float v;
  asm volatile("ld.acquire.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(in + i));
  asm volatile("st.release.gpu.global.f32 [%0], %1;" ::"l"(out + i), "f"(v));
}

// The compiler must not move the accesses to the callers, where it knows the space.
__noinline__ __device__ float load_generic(const float* p) {
  float v;
  asm volatile("ld.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__noinline__ __device__ void store_generic(float* p, float v) {
  asm volatile("st.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}

__global__ void generic_global(const float* in, float* out) {
  int i = thread_number();
  store_generic(out + i, load_generic(in + i * 2));
}

__global__ void generic_shared(const float* in, float* out) {
  __shared__ float tile[2 * kThreads];
  store_generic(tile + threadIdx.x * 2, in[thread_number()]);
  __syncthreads();
  out[thread_number()] = load_generic(tile + (threadIdx.x ^ 1) * 2);
}

// Lanes below 16 read global memory, the others shared memory, with one generic load.
__global__ void generic_mixed(const float* in, float* out) {
  __shared__ float tile[kThreads];
  int i = thread_number();
  tile[threadIdx.x] = in[i] * 2;
  __syncthreads();
  const float* p = lane_number() < 16 ? in + i : tile + threadIdx.x;
  out[i] = load_generic(p);
}

int main() {
  float* in = floats(kCount * 4);
  float* out = zeros<float>(kCount * 4);
  int* index = filled<int>(kCount, [](int i) { return permuted(i, kCount); });
  partial_warp<<<kBlocks, 80>>>(in, out);
  bounds_guard<<<kBlocks, kThreads>>>(in, out, 389);
  even_lanes<<<kBlocks, kThreads>>>(in, out);
  pairs_same<<<kBlocks, kThreads>>>(in, out);
  half_warps_same<<<kBlocks, kThreads>>>(in, out);
  broadcast<<<kBlocks, kThreads>>>(in, out);
  reversed<<<kBlocks, kThreads>>>(in, out);
  gather_words<<<kBlocks, kThreads>>>(in, index, out);
  scatter_words<<<kBlocks, kThreads>>>(in, index, out);
  gather_quads<<<kBlocks, kThreads>>>(reinterpret_cast<float4*>(in), index, out);
  store_same_word<<<kBlocks, kThreads>>>(out);
  store_one_word<<<kBlocks, kThreads>>>(out);
  load_read_only<<<kBlocks, kThreads>>>(in, out);
  load_volatile<<<kBlocks, kThreads>>>(in, out);
  load_cache_global<<<kBlocks, kThreads>>>(in, out);
  load_streaming<<<kBlocks, kThreads>>>(in, out);
  store_write_through<<<kBlocks, kThreads>>>(in, out);
  load_acquire<<<kBlocks, kThreads>>>(in, out);
  generic_global<<<kBlocks, kThreads>>>(in, out);
  generic_shared<<<kBlocks, kThreads>>>(in, out);
  generic_mixed<<<kBlocks, kThreads>>>(in, out);
  return finish();
}
