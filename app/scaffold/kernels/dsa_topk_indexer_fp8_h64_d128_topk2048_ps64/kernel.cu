// Top-k indexer over a paged cache of fp8 keys, DeepSeek-V3.2 (definition dsa_topk_indexer_fp8_h64_d128_topk2048_ps64).
//
// For each sequence b and each of its seq_lens[b] tokens j:
//   score[j] = sum over heads h of weights[b, h] * max(q[b, h] . key[j], 0)
//   topk_indices[b] = the 2048 tokens of the largest scores, in any order, as page * 64 + offset; -1 behind the last one of
//                     a sequence that has fewer
//
// Shapes: q_index_fp8 (B, 64, 128); k_index_cache_fp8 (P, 64, 1, 132); weights (B, 64); seq_lens (B); block_table
// (B, max_num_pages); topk_indices (B, 2048).
// dtypes: q_index_fp8 float8_e4m3fn; k_index_cache_fp8 int8; weights float32; all others int32.
// A page of the cache is 64 * 132 bytes: 64 keys of 128 float8_e4m3fn, then 64 scales, float32. Page p of sequence b is
// block_table[b, p]. All arithmetic is float32.
//
// Design: two kernels. The first has a block for each page of a sequence, four threads for each token, sixteen heads each,
// and puts the scores into a workspace. The second has a block for each sequence and finds the 2048th largest score digit by
// digit (a radix selection on order-preserving bits), then collects the scores above it.
//
// Where to begin: q . key of a page is a product of 64 x 128 by 128 x 64, made for the tensor cores. Blocks for pages behind
// the end of a sequence start in vain. A sequence of 2048 tokens or fewer needs no scores at all, and is not given any here.

#include "tensor.cuh"
#include "workspace.cuh"

constexpr int kHeads = 64;
constexpr int kDim = 128;
constexpr int kPageSize = 64;
constexpr int kScaleBytes = 4;
constexpr int kPageBytes = kPageSize * (kDim + kScaleBytes);
constexpr int kTopK = 2048;
constexpr int kParts = 4;  // threads for each token
constexpr int kScoreThreads = kParts * kPageSize;
constexpr int kSelectThreads = 1024;
constexpr int kDigits = 256;

static_assert(kHeads % kParts == 0, "a thread has whole heads");
static_assert(kPageBytes % 16 == 0 && kDim % 16 == 0, "keys are read in 16 bytes");

// Scores of the tokens in one page of a sequence; of sequences that need none, nothing.
__global__ void __launch_bounds__(kScoreThreads)
    score_kernel(const __nv_fp8_e4m3* __restrict__ q,       // (B, 64, 128)
                 const int8_t* __restrict__ cache,          // (P, 64 * 132)
                 const float* __restrict__ weights,         // (B, 64)
                 const int32_t* __restrict__ seq_lens,      // (B)
                 const int32_t* __restrict__ block_table,   // (B, pages)
                 int64_t pages,
                 float* __restrict__ scores) {  // (B, pages * 64)
  __shared__ float query[kHeads * kDim];
  __shared__ float partial[kParts][kPageSize];
  const int64_t b = blockIdx.x / pages, page = blockIdx.x % pages;
  const int64_t length = seq_lens[b];
  if (length <= kTopK || page * kPageSize >= length) {
    return;
  }
  for (int i = threadIdx.x; i < kHeads * kDim; i += kScoreThreads) {
    query[i] = static_cast<float>(q[b * kHeads * kDim + i]);
  }
  __syncthreads();

  const int token = threadIdx.x % kPageSize, part = threadIdx.x / kPageSize;
  const int8_t* in_page = cache + block_table[b * pages + page] * int64_t{kPageBytes};
  float key[kDim];
#pragma unroll
  for (int i = 0; i < kDim; i += 16) {
    const uint4 raw = *reinterpret_cast<const uint4*>(in_page + token * kDim + i);
    const __nv_fp8_e4m3* values = reinterpret_cast<const __nv_fp8_e4m3*>(&raw);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      key[i + j] = static_cast<float>(values[j]);
    }
  }
  const float scale = reinterpret_cast<const float*>(in_page + kPageSize * kDim)[token];

  float score = 0.0f;
  for (int h = part * (kHeads / kParts); h < (part + 1) * (kHeads / kParts); ++h) {
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kDim; ++i) {
      dot += query[h * kDim + i] * key[i];
    }
    score += weights[b * kHeads + h] * fmaxf(dot * scale, 0.0f);
  }
  partial[part][token] = score;
  __syncthreads();
  if (part == 0) {
    for (int p = 1; p < kParts; ++p) {
      score += partial[p][token];
    }
    scores[(b * pages + page) * kPageSize + token] = score;
  }
}

// Bits that have the order of the numbers.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(const float* __restrict__ scores,         // (B, pages * 64)
                  const int32_t* __restrict__ seq_lens,     // (B)
                  const int32_t* __restrict__ block_table,  // (B, pages)
                  int64_t pages,
                  int32_t* __restrict__ topk_indices) {  // (B, 2048)
  __shared__ int histogram[kDigits];
  __shared__ uint32_t found;  // the digits of the threshold so far
  __shared__ int missing;     // how many of the tokens that have these digits are wanted
  __shared__ int above, equal;
  const int64_t b = blockIdx.x;
  const int64_t length = min(static_cast<int64_t>(seq_lens[b]), pages * kPageSize);
  const float* score = scores + b * pages * kPageSize;
  const int32_t* table = block_table + b * pages;
  int32_t* chosen = topk_indices + b * kTopK;
  auto index = [&](int64_t j) { return static_cast<int32_t>(table[j / kPageSize] * kPageSize + j % kPageSize); };

  if (length <= kTopK) {
    for (int j = threadIdx.x; j < kTopK; j += kSelectThreads) {
      chosen[j] = j < length ? index(j) : -1;
    }
    return;
  }

  if (threadIdx.x == 0) {
    found = 0;
    missing = kTopK;
    above = equal = 0;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int d = threadIdx.x; d < kDigits; d += kSelectThreads) {
      histogram[d] = 0;
    }
    __syncthreads();
    for (int64_t j = threadIdx.x; j < length; j += kSelectThreads) {
      const uint32_t bits = ordered(score[j]);
      if (shift == 24 || bits >> (shift + 8) == found) {
        atomicAdd(&histogram[bits >> shift & (kDigits - 1)], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t digit = kDigits - 1;
      while (histogram[digit] < missing) {
        missing -= histogram[digit--];
      }
      found = found << 8 | digit;
    }
    __syncthreads();
  }

  for (int64_t j = threadIdx.x; j < length; j += kSelectThreads) {
    const uint32_t bits = ordered(score[j]);
    if (bits > found) {
      chosen[atomicAdd(&above, 1)] = index(j);
    } else if (bits == found) {
      const int i = atomicAdd(&equal, 1);
      if (i < missing) {
        chosen[kTopK - 1 - i] = index(j);
      }
    }
  }
}

void index_topk(TensorView q_index_fp8, TensorView k_index_cache_fp8, TensorView weights, TensorView seq_lens,
                TensorView block_table, TensorView topk_indices) {
  const int64_t batch = extent(q_index_fp8, 0);
  const int64_t pages = extent(block_table, 1);
  const auto* q_data = checked<const __nv_fp8_e4m3>("q_index_fp8", q_index_fp8, {batch, kHeads, kDim});
  const auto* cache_data = checked<const int8_t>("k_index_cache_fp8", k_index_cache_fp8,
                                                 {extent(k_index_cache_fp8, 0), kPageSize, 1, kDim + kScaleBytes});
  const auto* weights_data = checked<const float>("weights", weights, {batch, kHeads});
  const auto* seq_lens_data = checked<const int32_t>("seq_lens", seq_lens, {batch});
  const auto* block_table_data = checked<const int32_t>("block_table", block_table, {batch, pages});
  auto* topk_data = checked<int32_t>("topk_indices", topk_indices, {batch, kTopK});
  if (batch == 0) {
    return;
  }
  if (pages < 1 || batch > INT32_MAX / pages) {
    TVM_FFI_THROW(ValueError) << "block_table: " << batch << " rows of " << pages << " pages; expected 1 to " << INT32_MAX
                              << " pages in all";
  }
  const size_t count = batch * pages * kPageSize;
  Workspace workspace(q_index_fp8, Workspace::bytes<float>(count));
  float* scores = workspace.take<float>(count);
  const cudaStream_t stream = stream_of(q_index_fp8);
  score_kernel<<<static_cast<unsigned>(batch * pages), kScoreThreads, 0, stream>>>(
      q_data, cache_data, weights_data, seq_lens_data, block_table_data, pages, scores);
  CUDA_CHECK(cudaGetLastError());
  select_kernel<<<static_cast<unsigned>(batch), kSelectThreads, 0, stream>>>(scores, seq_lens_data, block_table_data, pages,
                                                                             topk_data);
  CUDA_CHECK(cudaGetLastError());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, index_topk);
