// The indexer of sparse attention (definition dsa_topk_indexer_fp8_h64_d128_topk2048_ps64), the plain way.
//
//   score_t = sum_h weights_h max(0, q_h . k_t);  the 2048 tokens with the best scores, -1 where there are fewer
//
// Shapes: q (B, 64, 128) float8_e4m3; the cache (P, 64, 1, 132) bytes, of a page first the float8_e4m3 keys of its 64
// tokens, then their 64 float32 scales; weights (B, 64); seq_lens (B); block_table (B, columns); topk_indices (B, 2048).
// Two kernels: scores, one thread for each token; and ranks, where a token counts those that are better than it.
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

constexpr int kHeads = 64, kDim = 128, kPage = 64, kPageBytes = kPage * (kDim + 4), kTopK = 2048, kThreads = 128;

// scores is (B, columns * 64), of which the tokens of each sequence are set.
__global__ void score(const __nv_fp8_e4m3* q, const uint8_t* cache, const float* weights, const int32_t* seq_lens,
                      const int32_t* block_table, int columns, float* scores) {
  const int sequence = blockIdx.y, token = blockIdx.x * kThreads + threadIdx.x;
  __shared__ float query[kHeads * kDim];
  for (int i = threadIdx.x; i < kHeads * kDim; i += kThreads) {
    query[i] = static_cast<float>(q[sequence * kHeads * kDim + i]);
  }
  __syncthreads();
  if (token >= seq_lens[sequence]) {
    return;
  }
  const uint8_t* page = cache + static_cast<int64_t>(block_table[sequence * columns + token / kPage]) * kPageBytes;
  const int at = token % kPage;
  const auto* key = reinterpret_cast<const __nv_fp8_e4m3*>(page) + at * kDim;
  const float scale = reinterpret_cast<const float*>(page + kPage * kDim)[at];
  float k[kDim];
  for (int i = 0; i < kDim; ++i) {
    k[i] = static_cast<float>(key[i]) * scale;
  }
  float total = 0.0f;
  for (int h = 0; h < kHeads; ++h) {
    float sum = 0.0f;
    for (int i = 0; i < kDim; ++i) {
      sum += query[h * kDim + i] * k[i];
    }
    total += weights[sequence * kHeads + h] * fmaxf(sum, 0.0f);
  }
  scores[static_cast<int64_t>(sequence) * columns * kPage + token] = total;
}

__global__ void choose(const float* scores, const int32_t* seq_lens, const int32_t* block_table, int columns, int32_t* topk) {
  const int sequence = blockIdx.y, token = blockIdx.x * kThreads + threadIdx.x, length = seq_lens[sequence];
  if (token < kTopK && token >= length) {
    topk[sequence * kTopK + token] = -1;
  }
  if (token >= length) {
    return;
  }
  scores += static_cast<int64_t>(sequence) * columns * kPage;
  const float mine = scores[token];
  int rank = 0;
  for (int i = 0; i < length; ++i) {
    rank += scores[i] > mine || (scores[i] == mine && i < token);
  }
  if (rank < kTopK) {
    topk[sequence * kTopK + rank] = block_table[sequence * columns + token / kPage] * kPage + token % kPage;
  }
}

using tvm::ffi::TensorView;

template <typename T>
T* data(TensorView t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data_ptr()) + t.byte_offset());
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(status);
  }
}

void run(TensorView q_index_fp8, TensorView k_index_cache_fp8, TensorView weights, TensorView seq_lens, TensorView block_table,
         TensorView topk_indices) {
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(weights.device().device_type, weights.device().device_id));
  const int columns = static_cast<int>(block_table.size(1));
  const size_t tokens = static_cast<size_t>(columns) * kPage;  // at least kTopK, says the definition
  float* scores = nullptr;
  check(cudaMallocAsync(&scores, weights.size(0) * tokens * sizeof(float), stream), "cudaMallocAsync");
  const dim3 grid(static_cast<unsigned>((tokens + kThreads - 1) / kThreads), static_cast<unsigned>(weights.size(0)));
  score<<<grid, kThreads, 0, stream>>>(data<__nv_fp8_e4m3>(q_index_fp8), data<uint8_t>(k_index_cache_fp8), data<float>(weights),
                                       data<int32_t>(seq_lens), data<int32_t>(block_table), columns, scores);
  check(cudaGetLastError(), "score");
  choose<<<grid, kThreads, 0, stream>>>(scores, data<int32_t>(seq_lens), data<int32_t>(block_table), columns,
                                        data<int32_t>(topk_indices));
  check(cudaGetLastError(), "choose");
  check(cudaFreeAsync(scores, stream), "cudaFreeAsync");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);
