// Sparse attention over a paged cache of compressed keys and values, DeepSeek-V3.2 (definition
// dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64).
//
// For each token t and head h, over the entries j of sparse_indices[t] that are not -1:
//   logit[j]  = sm_scale * (q_nope . ckv[j] + q_pe . kpe[j])
//   output    = sum of softmax(logit)[j] * ckv[j]
//   lse       = log2(sum of exp(logit[j]))
// A token without entries has an output of zeros and an lse of -inf.
//
// Shapes: q_nope, output (T, 16, 512); q_pe (T, 16, 64); ckv_cache (P, 64, 512); kpe_cache (P, 64, 64), P pages of 64
// entries; sparse_indices (T, 2048), page * 64 + entry, or -1; lse (T, 16).
// dtypes: q_nope, q_pe, ckv_cache, kpe_cache, output bfloat16; sparse_indices int32; lse float32; all arithmetic float32.
//
// Design: a block for each head of a token. First a thread for each entry: its logit, into shared memory. Then the block's
// maximum and sum. Then a thread for each two values of the output, which adds up all entries.
//
// Where to begin: all 16 heads of a token use the same entries, and here each reads them again, twice. One block for all
// heads reads them once, and has matrices of 16 rows for the tensor cores; with few tokens, the 2048 entries can be spread
// over several blocks whose results are combined.

#include "tensor.cuh"

constexpr int kHeads = 16;
constexpr int kDimC = 512;   // of the compressed part, which is key and value
constexpr int kDimPE = 64;   // of the positional part
constexpr int kPageSize = 64;
constexpr int kTopK = 2048;
constexpr int kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

static_assert(kDimC == 2 * kThreads, "a thread adds up two values of the output");
static_assert(kDimC % 8 == 0 && kDimPE % 8 == 0, "rows are read in 16 bytes");

// The dot product of n floats in shared memory with n bfloat16 that are aligned to 16 bytes.
template <int n>
__device__ __forceinline__ float dot(const float* x, const __nv_bfloat16* y) {
  float sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < n; i += 8) {
    const uint4 raw = *reinterpret_cast<const uint4*>(y + i);
    const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float2 two = __bfloat1622float2(pairs[p]);
      sum += x[i + 2 * p] * two.x + x[i + 2 * p + 1] * two.y;
    }
  }
  return sum;
}

// Combines x over the block, by maximum or by sum; every thread gets the result.
template <bool maximum>
__device__ float block_reduce(float x) {
  __shared__ float partial[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, x, offset);
    x = maximum ? fmaxf(x, other) : x + other;
  }
  if (threadIdx.x % 32 == 0) {
    partial[threadIdx.x / 32] = x;
  }
  __syncthreads();
  x = partial[0];
  for (int i = 1; i < kThreads / 32; ++i) {
    x = maximum ? fmaxf(x, partial[i]) : x + partial[i];
  }
  __syncthreads();
  return x;
}

__global__ void __launch_bounds__(kThreads)
    attention_kernel(const __nv_bfloat16* __restrict__ q_nope,  // (T, 16, 512)
                     const __nv_bfloat16* __restrict__ q_pe,    // (T, 16, 64)
                     const __nv_bfloat16* __restrict__ ckv,     // (P * 64, 512)
                     const __nv_bfloat16* __restrict__ kpe,     // (P * 64, 64)
                     const int32_t* __restrict__ indices,       // (T, 2048)
                     float sm_scale,
                     __nv_bfloat16* __restrict__ output,  // (T, 16, 512)
                     float* __restrict__ lse) {           // (T, 16)
  __shared__ float query[kDimC + kDimPE];
  __shared__ float weight[kTopK];  // logits, then their exponentials
  __shared__ int32_t entry[kTopK];
  const int64_t row = blockIdx.x;  // t * 16 + h
  const int64_t t = row / kHeads;

  for (int i = threadIdx.x; i < kDimC; i += kThreads) {
    query[i] = __bfloat162float(q_nope[row * kDimC + i]);
  }
  for (int i = threadIdx.x; i < kDimPE; i += kThreads) {
    query[kDimC + i] = __bfloat162float(q_pe[row * kDimPE + i]);
  }
  __syncthreads();

  float largest = -INFINITY;
  for (int j = threadIdx.x; j < kTopK; j += kThreads) {
    const int64_t e = indices[t * kTopK + j];
    float logit = -INFINITY;
    if (e >= 0) {
      logit = sm_scale * (dot<kDimC>(query, ckv + e * kDimC) + dot<kDimPE>(query + kDimC, kpe + e * kDimPE));
    }
    entry[j] = static_cast<int32_t>(e);
    weight[j] = logit;
    largest = fmaxf(largest, logit);
  }
  largest = block_reduce<true>(largest);

  float sum = 0.0f;
  for (int j = threadIdx.x; j < kTopK; j += kThreads) {
    weight[j] = entry[j] >= 0 ? expf(weight[j] - largest) : 0.0f;
    sum += weight[j];
  }
  sum = block_reduce<false>(sum);  // its barriers also separate writing and reading weight

  float2 acc = make_float2(0.0f, 0.0f);
  for (int j = 0; j < kTopK; ++j) {
    const int64_t e = entry[j];
    if (e >= 0) {
      const float2 value = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(ckv + e * kDimC)[threadIdx.x]);
      acc.x += weight[j] * value.x;
      acc.y += weight[j] * value.y;
    }
  }
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  reinterpret_cast<__nv_bfloat162*>(output + row * kDimC)[threadIdx.x] =
      __floats2bfloat162_rn(acc.x * inverse, acc.y * inverse);
  if (threadIdx.x == 0) {
    lse[row] = sum > 0.0f ? largest * kLog2E + log2f(sum) : -INFINITY;
  }
}

void attention(TensorView q_nope, TensorView q_pe, TensorView ckv_cache, TensorView kpe_cache, TensorView sparse_indices,
               double sm_scale, TensorView output, TensorView lse) {
  const int64_t tokens = extent(q_nope, 0);
  const int64_t pages = extent(ckv_cache, 0);
  const auto* q_nope_data = checked<const __nv_bfloat16>("q_nope", q_nope, {tokens, kHeads, kDimC});
  const auto* q_pe_data = checked<const __nv_bfloat16>("q_pe", q_pe, {tokens, kHeads, kDimPE});
  const auto* ckv_data = checked<const __nv_bfloat16>("ckv_cache", ckv_cache, {pages, kPageSize, kDimC});
  const auto* kpe_data = checked<const __nv_bfloat16>("kpe_cache", kpe_cache, {pages, kPageSize, kDimPE});
  const auto* indices_data = checked<const int32_t>("sparse_indices", sparse_indices, {tokens, kTopK});
  auto* output_data = checked<__nv_bfloat16>("output", output, {tokens, kHeads, kDimC});
  auto* lse_data = checked<float>("lse", lse, {tokens, kHeads});
  if (tokens == 0) {
    return;
  }
  if (tokens > INT32_MAX / kHeads) {
    TVM_FFI_THROW(ValueError) << "q_nope: " << tokens << " tokens are above " << INT32_MAX / kHeads;
  }
  attention_kernel<<<static_cast<unsigned>(tokens * kHeads), kThreads, 0, stream_of(q_nope)>>>(
      q_nope_data, q_pe_data, ckv_data, kpe_data, indices_data, static_cast<float>(sm_scale), output_data, lse_data);
  CUDA_CHECK(cudaGetLastError());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, attention);
