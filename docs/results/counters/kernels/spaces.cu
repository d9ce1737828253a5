// Local and constant memory, parameters, and accesses that ptxas merges, moves or drops.
#include "common.cuh"

constexpr int kBlocks = 4, kThreads = 128, kCount = kBlocks * kThreads;

__constant__ float table[64] = {1, 2, 3, 5, 8, 13, 21, 34};

// The array has a dynamic index, so it is in local memory.
__global__ void local_array(const float* in, float* out) {
  float values[16];
  int i = thread_number();
#pragma unroll 1
  for (int j = 0; j < 16; ++j) values[j] = in[i + j];
  float sum = 0;
#pragma unroll 1
  for (int j = 0; j < 8; ++j) sum += values[(i + j * 5) % 16];
  out[i] = sum;
}

// All lanes use the same index.
__global__ void local_array_uniform(const float* in, float* out, int n) {
  float values[16];
  int i = thread_number();
#pragma unroll 1
  for (int j = 0; j < 16; ++j) values[j] = in[i + j];
  float sum = 0;
#pragma unroll 1
  for (int j = 0; j < 8; ++j) sum += values[(n + j * 5) % 16];
  out[i] = sum;
}

__global__ void constant_uniform(const float* in, float* out, int n) {
  int i = thread_number();
  float sum = in[i];
#pragma unroll 1
  for (int j = 0; j < n; ++j) sum += table[j];
  out[i] = sum;
}

// Each lane reads another constant.
__global__ void constant_by_lane(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i] + table[i % 8];
}

struct Weights {
  float w[16];
};

// An array in the parameters, with an index that all lanes share.
__global__ void parameter_array(const float* in, float* out, const __grid_constant__ Weights weights, int n) {
  int i = thread_number();
  float sum = 0;
#pragma unroll 1
  for (int j = 0; j < n; ++j) sum += in[i + j] * weights.w[j];
  out[i] = sum;
}

// The PTX has a load without a use.
__global__ void dropped_load(const float* in, float* out) {
  int i = thread_number();
  float v;
  [[maybe_unused]] float unused;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(unused) : "l"(in + i + kCount));
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(in + i));
  out[i] = v;
}

// The PTX has two loads of the same address.
__global__ void repeated_load(const float* in, float* out) {
  int i = thread_number();
  float a, b;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(a) : "l"(in + i));
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(b) : "l"(in + i));
  out[i] = a * b;
}

// The PTX has two stores to the same address.
__global__ void repeated_store(const float* in, float* out) {
  int i = thread_number();
  float v = in[i];
  asm volatile("st.global.f32 [%0], %1;" ::"l"(out + i), "f"(v * 2) : "memory");
  asm volatile("st.global.f32 [%0], %1;" ::"l"(out + i), "f"(v * 3) : "memory");
}

// The PTX stores to shared memory and loads the same address in the same thread.
__global__ void forwarded_store(const float* in, float* out) {
  __shared__ float tile[kThreads];
  int i = thread_number();
  float v;
  uint32_t address = shared_address(tile + threadIdx.x);
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(in[i]) : "memory");
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  out[i] = v;
}

// Four neighbouring elements per thread, one load and one store each, which a compiler may merge.
__global__ void neighbours(const float* __restrict__ in, float* __restrict__ out) {
  int i = thread_number() * 4;
  float a = in[i], b = in[i + 1], c = in[i + 2], d = in[i + 3];
  out[i] = a + b;
  out[i + 1] = b + c;
  out[i + 2] = c + d;
  out[i + 3] = d + a;
}

// The PTX computes a product that is not used, and multiplies by one.
__global__ void dropped_arithmetic(const float* in, float* out) {
  int i = thread_number();
  float v = in[i], w;
  [[maybe_unused]] float unused;
  asm volatile("mul.f32 %0, %1, %1;" : "=f"(unused) : "f"(v));
  asm volatile("mul.f32 %0, %1, 0f3F800000;" : "=f"(w) : "f"(v));
  out[i] = w;
}

// So many values at a time that ptxas keeps some in local memory.
__global__ void __launch_bounds__(1024, 2) spilled(const float* in, float* out) {
  float values[40];
  int i = thread_number();
#pragma unroll
  for (int j = 0; j < 40; ++j) values[j] = in[i + j * 37];
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < 3; ++round) {
#pragma unroll
    for (int j = 0; j < 40; ++j) values[j] = values[j] * values[(j + 7) % 40] + 0.25f;
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 40; ++j) sum += values[j] * (j + 1);
  out[i] = sum;
}

int main() {
  float* in = floats(kCount * 8);
  float* out = zeros<float>(kCount * 8);
  Weights weights;
  for (int i = 0; i < 16; ++i) weights.w[i] = i * 0.5f;
  local_array<<<kBlocks, kThreads>>>(in, out);
  local_array_uniform<<<kBlocks, kThreads>>>(in, out, 3);
  constant_uniform<<<kBlocks, kThreads>>>(in, out, 8);
  constant_by_lane<<<kBlocks, kThreads>>>(in, out);
  parameter_array<<<kBlocks, kThreads>>>(in, out, weights, 9);
  dropped_load<<<kBlocks, kThreads>>>(in, out);
  repeated_load<<<kBlocks, kThreads>>>(in, out);
  repeated_store<<<kBlocks, kThreads>>>(in, out);
  forwarded_store<<<kBlocks, kThreads>>>(in, out);
  neighbours<<<kBlocks, kThreads>>>(in, out);
  dropped_arithmetic<<<kBlocks, kThreads>>>(in, out);
  spilled<<<2, 1024>>>(in, out);
  return finish();
}
