// One rank of an fp8 mixture of experts (definition moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048), the plain
// way.
//
//   Routing: 8 groups of 32 experts; the 4 groups with the largest sum of their two best biased scores stay, of their
//   experts the 8 best are chosen; weights are the unbiased scores, scaled to a sum of routed_scaling_factor.
//   output = sum over a token's experts of this rank of weight W2 (silu(gate) up), [up; gate] = W1 x
//
// Shapes: logits (T, 256); hidden_states (T, 7168), scales (56, T); W1 (32, 4096, 7168), scales (32, 32, 56); W2
// (32, 7168, 2048), scales (32, 56, 16); output (T, 7168). A scale is for 128 channels, of a matrix for 128 rows as well.
// Three kernels: the routing, one thread for each token; then for each token the rows of its experts' matrices.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

constexpr int kExperts = 256, kLocal = 32, kGroups = 8, kKept = 4, kChosen = 8, kBlock = 128, kThreads = 128;
constexpr int kHidden = 7168, kInner = 2048, kHiddenBlocks = kHidden / kBlock, kInnerBlocks = kInner / kBlock;

// experts and weights are (T, 8); an expert of another rank is -1.
__global__ void route(const float* logits, const __nv_bfloat16* bias, int tokens, int offset, float factor, int* experts,
                      float* weights) {
  const int token = blockIdx.x * kThreads + threadIdx.x;
  if (token >= tokens) {
    return;
  }
  constexpr int kSize = kExperts / kGroups;
  float biased[kExperts], group[kGroups];
  logits += static_cast<int64_t>(token) * kExperts;
  for (int g = 0; g < kGroups; ++g) {
    float first = -CUDART_INF_F, second = -CUDART_INF_F;
    for (int e = g * kSize; e < (g + 1) * kSize; ++e) {
      biased[e] = 1.0f / (1.0f + expf(-logits[e])) + __bfloat162float(bias[e]);
      second = fmaxf(second, fminf(first, biased[e]));
      first = fmaxf(first, biased[e]);
    }
    group[g] = first + second;
  }
  bool kept[kGroups] = {};
  for (int n = 0; n < kKept; ++n) {
    int best = -1;
    for (int g = 0; g < kGroups; ++g) {
      if (!kept[g] && (best < 0 || group[g] > group[best])) {
        best = g;
      }
    }
    kept[best] = true;
  }
  int chosen[kChosen];
  float score[kChosen], total = 1e-20f;
  for (int n = 0; n < kChosen; ++n) {
    int best = -1;
    for (int e = 0; e < kExperts; ++e) {
      if (kept[e / kSize] && (best < 0 || biased[e] > biased[best])) {
        best = e;
      }
    }
    biased[best] = -CUDART_INF_F;
    chosen[n] = best;
    score[n] = 1.0f / (1.0f + expf(-logits[best]));
    total += score[n];
  }
  for (int n = 0; n < kChosen; ++n) {
    const int local = chosen[n] - offset;
    experts[token * kChosen + n] = local >= 0 && local < kLocal ? local : -1;
    weights[token * kChosen + n] = factor * score[n] / total;
  }
}

// The product of a row of a matrix, whose scales are one for each block, with x.
__device__ float row_times(const __nv_fp8_e4m3* row, const float* scales, const float* x, int blocks) {
  float total = 0.0f;
  for (int b = 0; b < blocks; ++b) {
    float sum = 0.0f;
    for (int i = b * kBlock; i < (b + 1) * kBlock; ++i) {
      sum += static_cast<float>(row[i]) * x[i];
    }
    total += sum * scales[b];
  }
  return total;
}

// inner is (T, 8, 2048): silu(gate) up of each local expert of a token.
__global__ void expand(const __nv_fp8_e4m3* hidden, const float* hidden_scale, const __nv_fp8_e4m3* w1, const float* w1_scale,
                       const int* experts, int tokens, float* inner) {
  const int slot = blockIdx.y, token = slot / kChosen, r = blockIdx.x * kThreads + threadIdx.x;
  const int64_t expert = experts[slot];
  if (expert < 0) {
    return;
  }
  __shared__ float x[kHidden];
  for (int i = threadIdx.x; i < kHidden; i += kThreads) {
    x[i] = static_cast<float>(hidden[static_cast<int64_t>(token) * kHidden + i]) * hidden_scale[static_cast<int64_t>(i / kBlock) * tokens + token];
  }
  __syncthreads();
  float y[2];
  for (int half = 0; half < 2; ++half) {
    const int64_t row = expert * 2 * kInner + half * kInner + r;
    y[half] = row_times(w1 + row * kHidden, w1_scale + row / kBlock * kHiddenBlocks, x, kHiddenBlocks);
  }
  inner[static_cast<int64_t>(slot) * kInner + r] = y[0] * y[1] / (1.0f + expf(-y[1]));
}

__global__ void contract(const float* inner, const __nv_fp8_e4m3* w2, const float* w2_scale, const int* experts,
                         const float* weights, __nv_bfloat16* output) {
  const int token = blockIdx.y, r = blockIdx.x * kThreads + threadIdx.x;
  float total = 0.0f;
  for (int slot = token * kChosen; slot < (token + 1) * kChosen; ++slot) {
    if (experts[slot] < 0) {
      continue;
    }
    const int64_t row = static_cast<int64_t>(experts[slot]) * kHidden + r;
    total += weights[slot] * row_times(w2 + row * kInner, w2_scale + row / kBlock * kInnerBlocks, inner + static_cast<int64_t>(slot) * kInner, kInnerBlocks);
  }
  output[static_cast<int64_t>(token) * kHidden + r] = __float2bfloat16(total);
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

void run(TensorView routing_logits, TensorView routing_bias, TensorView hidden_states, TensorView hidden_states_scale,
         TensorView gemm1_weights, TensorView gemm1_weights_scale, TensorView gemm2_weights, TensorView gemm2_weights_scale,
         int64_t local_expert_offset, double routed_scaling_factor, TensorView output) {
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(output.device().device_type, output.device().device_id));
  const unsigned tokens = static_cast<unsigned>(hidden_states.size(0)), slots = tokens * kChosen;
  int* experts = nullptr;
  float *weights = nullptr, *inner = nullptr;
  check(cudaMallocAsync(&experts, slots * sizeof(int), stream), "cudaMallocAsync");
  check(cudaMallocAsync(&weights, slots * sizeof(float), stream), "cudaMallocAsync");
  check(cudaMallocAsync(&inner, static_cast<size_t>(slots) * kInner * sizeof(float), stream), "cudaMallocAsync");
  route<<<(tokens + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
      data<float>(routing_logits), data<__nv_bfloat16>(routing_bias), static_cast<int>(tokens),
      static_cast<int>(local_expert_offset), static_cast<float>(routed_scaling_factor), experts, weights);
  check(cudaGetLastError(), "route");
  expand<<<dim3(kInner / kThreads, slots), kThreads, 0, stream>>>(
      data<__nv_fp8_e4m3>(hidden_states), data<float>(hidden_states_scale), data<__nv_fp8_e4m3>(gemm1_weights),
      data<float>(gemm1_weights_scale), experts, static_cast<int>(tokens), inner);
  check(cudaGetLastError(), "expand");
  contract<<<dim3(kHidden / kThreads, tokens), kThreads, 0, stream>>>(inner, data<__nv_fp8_e4m3>(gemm2_weights),
                                                                      data<float>(gemm2_weights_scale), experts, weights,
                                                                      data<__nv_bfloat16>(output));
  check(cudaGetLastError(), "contract");
  check(cudaFreeAsync(experts, stream), "cudaFreeAsync");
  check(cudaFreeAsync(weights, stream), "cudaFreeAsync");
  check(cudaFreeAsync(inner, stream), "cudaFreeAsync");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);
