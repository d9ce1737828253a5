// Arithmetic of all types. Each kernel reads and writes each element once, so its memory instructions are simple.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.cuh"

constexpr int kBlocks = 2, kThreads = 128, kCount = kBlocks * kThreads;

// Applies kF to each element.
template <typename T, T kF(T)>
__global__ void map(const T* in, T* out) {
  int i = thread_number();
  out[i] = kF(in[i]);
}

__device__ float fma_chain(float v) {
#pragma unroll 1
  for (int j = 0; j < 32; ++j) v = fmaf(v, 0.5f, 0.75f);
  return v;
}
__device__ float add_and_multiply(float v) {
#pragma unroll 1
  for (int j = 0; j < 16; ++j) v = __fmul_rn(__fadd_rn(v, 1.0f), 0.5f);
  return v;
}
__device__ float square_root(float v) { return sqrtf(v); }
__device__ float square_root_fast(float v) { return __fsqrt_rn(v) + rsqrtf(v); }
__device__ float exponential(float v) { return expf(v); }
__device__ float exponential_fast(float v) { return __expf(v); }
__device__ float logarithm(float v) { return logf(v); }
__device__ float sine(float v) { return sinf(v); }
__device__ float sine_fast(float v) { return __sinf(v); }
__device__ float hyperbolic_tangent(float v) { return tanhf(v); }
__device__ float power(float v) { return powf(v, 2.3f); }
__device__ float division(float v) { return 3.0f / v; }
__device__ float division_fast(float v) { return __fdividef(3.0f, v); }
__device__ double double_chain(double v) {
#pragma unroll 1
  for (int j = 0; j < 16; ++j) v = fma(v, 0.5, 0.75);
  return v;
}
__device__ double double_add_and_multiply(double v) { return __dmul_rn(__dadd_rn(v, 1.0), 0.5); }
__device__ double double_division(double v) { return 3.0 / v; }
__device__ double double_square_root(double v) { return sqrt(v); }
__device__ half2 half2_chain(half2 v) {
  half2 a = __float2half2_rn(0.5f), b = __float2half2_rn(0.75f);
#pragma unroll 1
  for (int j = 0; j < 16; ++j) v = __hfma2(v, a, b);
  return v;
}
__device__ half half_sum(half v) { return __hadd(__hmul(v, __float2half(0.5f)), __float2half(0.75f)); }
__device__ __nv_bfloat162 bfloat2_chain(__nv_bfloat162 v) {
  __nv_bfloat162 a = __float2bfloat162_rn(0.5f), b = __float2bfloat162_rn(0.75f);
#pragma unroll 1
  for (int j = 0; j < 16; ++j) v = __hfma2(v, a, b);
  return v;
}
__device__ int integer_chain(int v) {
#pragma unroll 1
  for (int j = 0; j < 16; ++j) v = v * 5 + 7;
  return v;
}
__device__ int integer_division(int v) { return (v / 7) + (v % 13) + 1000003 / (v | 1); }
__device__ int64_t long_multiply(int64_t v) { return v * v + (v >> 7) * 11; }
__device__ unsigned bits(unsigned v) {
  return __popc(v) + __clz(v) + __brev(v) + __byte_perm(v, ~v, 0x5140) + __funnelshift_l(v, ~v, 7) +
         (v ^ v >> 3 & v << 2);
}
__device__ float conversions(float v) {
  int i = static_cast<int>(v * 100);
  return static_cast<float>(i) + __half2float(__float2half(v)) + static_cast<float>(static_cast<double>(v) * 1.1);
}

int main() {
  float* in = floats(kCount * 2);
  float* out = zeros<float>(kCount * 2);
  double* doubles = filled<double>(kCount, [](int i) { return 1 + i / 1024.0; });
  auto* out_doubles = reinterpret_cast<double*>(out);
  auto* halves = filled<half2>(kCount, [](int i) { return __float2half2_rn(1 + i / 1024.0f); });
  auto* bfloats = filled<__nv_bfloat162>(kCount, [](int i) { return __float2bfloat162_rn(1 + i / 1024.0f); });
  map<float, fma_chain><<<kBlocks, kThreads>>>(in, out);
  map<float, add_and_multiply><<<kBlocks, kThreads>>>(in, out);
  map<float, square_root><<<kBlocks, kThreads>>>(in, out);
  map<float, square_root_fast><<<kBlocks, kThreads>>>(in, out);
  map<float, exponential><<<kBlocks, kThreads>>>(in, out);
  map<float, exponential_fast><<<kBlocks, kThreads>>>(in, out);
  map<float, logarithm><<<kBlocks, kThreads>>>(in, out);
  map<float, sine><<<kBlocks, kThreads>>>(in, out);
  map<float, sine_fast><<<kBlocks, kThreads>>>(in, out);
  map<float, hyperbolic_tangent><<<kBlocks, kThreads>>>(in, out);
  map<float, power><<<kBlocks, kThreads>>>(in, out);
  map<float, division><<<kBlocks, kThreads>>>(in, out);
  map<float, division_fast><<<kBlocks, kThreads>>>(in, out);
  map<double, double_chain><<<kBlocks, kThreads>>>(doubles, out_doubles);
  map<double, double_add_and_multiply><<<kBlocks, kThreads>>>(doubles, out_doubles);
  map<double, double_division><<<kBlocks, kThreads>>>(doubles, out_doubles);
  map<double, double_square_root><<<kBlocks, kThreads>>>(doubles, out_doubles);
  map<half2, half2_chain><<<kBlocks, kThreads>>>(halves, reinterpret_cast<half2*>(out));
  map<half, half_sum><<<kBlocks, kThreads>>>(reinterpret_cast<half*>(halves), reinterpret_cast<half*>(out));
  map<__nv_bfloat162, bfloat2_chain><<<kBlocks, kThreads>>>(bfloats, reinterpret_cast<__nv_bfloat162*>(out));
  map<int, integer_chain><<<kBlocks, kThreads>>>(reinterpret_cast<int*>(in), reinterpret_cast<int*>(out));
  map<int, integer_division><<<kBlocks, kThreads>>>(reinterpret_cast<int*>(in), reinterpret_cast<int*>(out));
  auto* longs = reinterpret_cast<int64_t*>(doubles);
  map<int64_t, long_multiply><<<kBlocks, kThreads>>>(longs, reinterpret_cast<int64_t*>(out));
  map<unsigned, bits><<<kBlocks, kThreads>>>(reinterpret_cast<unsigned*>(in), reinterpret_cast<unsigned*>(out));
  map<float, conversions><<<kBlocks, kThreads>>>(in, out);
  return finish();
}
