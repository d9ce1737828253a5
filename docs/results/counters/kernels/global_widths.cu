// Global loads and stores of 8 to 128 bits: consecutive, strided, and starting one element after an aligned address.
#include "common.cuh"

constexpr int kBlocks = 4, kThreads = 128, kCount = kBlocks * kThreads;

template <typename T>
__global__ void load_width(const T* in, float* out) {
  int i = thread_number();
  out[i] = static_cast<float>(in[i]);
}

__global__ void load_pairs(const float2* in, float* out) {
  int i = thread_number();
  float2 v = in[i];
  out[i] = v.x * v.y;
}

__global__ void load_quads(const float4* in, float* out) {
  int i = thread_number();
  float4 v = in[i];
  out[i] = v.x * v.y + v.z * v.w;
}

// Thread i reads 64 bits at element 2 i.
__global__ void load_pairs_strided(const float2* in, float* out) {
  int i = thread_number();
  float2 v = in[2 * i];
  out[i] = v.x * v.y;
}

// Thread i reads 128 bits at element 3 i.
__global__ void load_quads_strided(const float4* in, float* out) {
  int i = thread_number();
  float4 v = in[3 * i];
  out[i] = v.x * v.y + v.z * v.w;
}

template <typename T>
__global__ void store_width(const float* in, T* out) {
  int i = thread_number();
  out[i] = static_cast<T>(in[i] * 10);
}

__global__ void store_pairs(const float* in, float2* out) {
  int i = thread_number();
  out[i] = make_float2(in[i], in[i] + 1);
}

__global__ void store_quads(const float* in, float4* out) {
  int i = thread_number();
  float v = in[i];
  out[i] = make_float4(v, v + 1, v + 2, v + 3);
}

// Thread i writes 128 bits at element 5 i.
__global__ void store_quads_strided(const float* in, float4* out) {
  int i = thread_number();
  float v = in[i];
  out[5 * i] = make_float4(v, v + 1, v + 2, v + 3);
}

__global__ void load_words_offset(const float* in, float* out) {
  int i = thread_number();
  out[i] = in[i + 1];
}

__global__ void load_pairs_offset(const float2* in, float* out) {
  int i = thread_number();
  float2 v = in[i + 1];
  out[i] = v.x * v.y;
}

__global__ void load_quads_offset(const float4* in, float* out) {
  int i = thread_number();
  float4 v = in[i + 1];
  out[i] = v.x * v.y + v.z * v.w;
}

__global__ void load_bytes_offset(const uint8_t* in, float* out) {
  int i = thread_number();
  out[i] = in[i + 1];
}

__global__ void store_words_offset(const float* in, float* out) {
  int i = thread_number();
  out[i + 1] = in[i];
}

// A copy of bytes in which each thread moves 16 of them, as in a vectorised copy.
__global__ void copy_quads(const uint4* in, uint4* out, int n) {
  int i = thread_number();
  if (i < n) out[i] = in[i];
}

int main() {
  float* in = floats(kCount * 20);
  float* out = zeros<float>(kCount * 20);
  uint8_t* bytes = filled<uint8_t>(kCount + 1, [](int i) { return i * 7; });
  int16_t* shorts = filled<int16_t>(kCount, [](int i) { return i * 77; });
  auto* pairs = reinterpret_cast<float2*>(in);
  auto* quads = reinterpret_cast<float4*>(in);
  load_width<uint8_t><<<kBlocks, kThreads>>>(bytes, out);
  load_width<int16_t><<<kBlocks, kThreads>>>(shorts, out);
  load_pairs<<<kBlocks, kThreads>>>(pairs, out);
  load_quads<<<kBlocks, kThreads>>>(quads, out);
  load_pairs_strided<<<kBlocks, kThreads>>>(pairs, out);
  load_quads_strided<<<kBlocks, kThreads>>>(quads, out);
  store_width<uint8_t><<<kBlocks, kThreads>>>(in, reinterpret_cast<uint8_t*>(out));
  store_width<int16_t><<<kBlocks, kThreads>>>(in, reinterpret_cast<int16_t*>(out));
  store_pairs<<<kBlocks, kThreads>>>(in, reinterpret_cast<float2*>(out));
  store_quads<<<kBlocks, kThreads>>>(in, reinterpret_cast<float4*>(out));
  store_quads_strided<<<kBlocks, kThreads>>>(in, reinterpret_cast<float4*>(out));
  load_words_offset<<<kBlocks, kThreads>>>(in, out);
  load_pairs_offset<<<kBlocks, kThreads>>>(pairs, out);
  load_quads_offset<<<kBlocks, kThreads>>>(quads, out);
  load_bytes_offset<<<kBlocks, kThreads>>>(bytes, out);
  store_words_offset<<<kBlocks, kThreads>>>(in, out);
  copy_quads<<<kBlocks, kThreads>>>(reinterpret_cast<uint4*>(in), reinterpret_cast<uint4*>(out), 470);
  return finish();
}
