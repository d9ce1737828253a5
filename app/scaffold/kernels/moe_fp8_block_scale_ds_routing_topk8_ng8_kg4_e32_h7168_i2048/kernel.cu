// Mixture of experts with fp8 block scales and DeepSeek-V3 routing, one rank of an expert-parallel group (definition
// moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048).
//
// For each token t:
//   s        = sigmoid(routing_logits[t])                    256 experts in 8 groups of 32
//   biased   = s + routing_bias                              used for the choice
//   groups   = the 4 with the largest sum of their two largest biased scores
//   experts  = the 8 with the largest biased scores in those groups
//   w        = s / (sum of s over the 8 + 1e-20) * routed_scaling_factor
//   output   = sum over the local ones of the 8 (local_expert_offset to + 31) of
//              w * W2 (silu(W13[2048:] x) * (W13[:2048] x))
// where x is the token's hidden state, W13 and W2 the expert's weights, each fp8 times the scale of its block of 128.
//
// Shapes: routing_logits (T, 256); routing_bias (256); hidden_states (T, 7168); hidden_states_scale (56, T); gemm1_weights
// (32, 4096, 7168), scales (32, 32, 56); gemm2_weights (32, 7168, 2048), scales (32, 56, 16); output (T, 7168).
// dtypes: hidden_states and weights float8_e4m3fn; routing_bias, output bfloat16; all others float32; all arithmetic float32.
//
// Design: four kernels for each 512 tokens. Route: a block for each token, a thread for each expert; an expert's rank is the
// number of experts before it, so no sorting. It gives each expert a list of its (token, rank) pairs. The two products have
// a block for each 128 rows of an expert's weights, a thread for each row, and go through the expert's list in tiles of 8
// pairs, so that a weight is read once for 8 tokens. Combine: the weighted sum over a token's pairs, in the order of
// their ranks.
//
// Where to begin: the products are what takes the time. fp8 tensor cores take fp8 times fp8 directly, with the scales applied
// to the sum of each block of 128. With few tokens the weights' bytes are the bound: spread K over more blocks.

#include <cfloat>

#include "tensor.cuh"
#include "workspace.cuh"

constexpr int kExperts = 256;
constexpr int kLocal = 32;
constexpr int kHidden = 7168;
constexpr int kInter = 2048;
constexpr int kBlock = 128;  // of the scales
constexpr int kGroups = 8;
constexpr int kGroupSize = kExperts / kGroups;
constexpr int kKeptGroups = 4;
constexpr int kTopK = 8;
constexpr int kChunk = 512;   // tokens of one pass, which bounds the workspace
constexpr int kTile = 8;      // pairs of one expert at a time
constexpr int kRows = kBlock;  // rows of weights in a block, one for each thread

static_assert(kHidden % kBlock == 0 && kInter % kBlock == 0, "blocks of the scales are whole");

// Intermediate results of the kernels of one pass. A pair is t * 8 + rank, with t counted from the pass's first token.
struct Pass {
  int32_t* count;      // (32) pairs of each local expert
  int32_t* list;       // (32, 512) the pairs; a token has an expert once, so 512 are enough
  int32_t* local;      // (pairs) the local expert, or -1
  float* weight;       // (pairs)
  float* activation;   // (pairs, 2048) after the first product
  float* result;       // (pairs, 7168) after the second one
};

__global__ void __launch_bounds__(kExperts) route_kernel(const float* __restrict__ logits,        // (T, 256)
                                                         const __nv_bfloat16* __restrict__ bias,  // (256)
                                                         int64_t first,                           // token of the pass
                                                         int offset, float factor, Pass pass) {
  __shared__ float biased[kExperts];
  __shared__ float best[kGroups][2];
  __shared__ float chosen[kTopK];
  const int e = threadIdx.x, group = e / kGroupSize;
  const int64_t t = blockIdx.x;
  const float s = 1.0f / (1.0f + expf(-logits[(first + t) * kExperts + e]));
  float mine = s + __bfloat162float(bias[e]);
  biased[e] = mine;
  __syncthreads();

  int rank = 0;  // in the group; of equal scores the first expert's is the larger
  for (int i = group * kGroupSize; i < (group + 1) * kGroupSize; ++i) {
    rank += biased[i] > mine || (biased[i] == mine && i < e);
  }
  if (rank < 2) {
    best[group][rank] = mine;
  }
  __syncthreads();

  const float group_score = best[group][0] + best[group][1];
  int group_rank = 0;
  for (int g = 0; g < kGroups; ++g) {
    const float other = best[g][0] + best[g][1];
    group_rank += other > group_score || (other == group_score && g < group);
  }
  const bool kept = group_rank < kKeptGroups;
  if (!kept) {
    biased[e] = mine = -FLT_MAX;
  }
  __syncthreads();

  rank = 0;
  for (int i = 0; i < kExperts; ++i) {
    rank += biased[i] > mine || (biased[i] == mine && i < e);
  }
  const bool selected = kept && rank < kTopK;
  if (selected) {
    chosen[rank] = s;
  }
  __syncthreads();

  if (selected) {
    float sum = 1e-20f;
    for (int i = 0; i < kTopK; ++i) {
      sum += chosen[i];
    }
    const int pair = static_cast<int>(t) * kTopK + rank;
    const int local = e - offset;
    const bool here = local >= 0 && local < kLocal;
    pass.local[pair] = here ? local : -1;
    pass.weight[pair] = s / sum * factor;
    if (here) {
      pass.list[local * kChunk + atomicAdd(&pass.count[local], 1)] = pair;
    }
  }
}

// Adds scale * (128 weights of one row) * x to acc, for each pair of the tile.
__device__ __forceinline__ void multiply(const __nv_fp8_e4m3* __restrict__ w, const float (*x)[kTile], float scale, float* acc) {
  float sum[kTile] = {};
#pragma unroll 2
  for (int k = 0; k < kBlock; k += 16) {
    const uint4 raw = *reinterpret_cast<const uint4*>(w + k);
    const __nv_fp8_e4m3* values = reinterpret_cast<const __nv_fp8_e4m3*>(&raw);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float value = static_cast<float>(values[i]);
#pragma unroll
      for (int m = 0; m < kTile; ++m) {
        sum[m] += value * x[k + i][m];
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kTile; ++m) {
    acc[m] += scale * sum[m];
  }
}

// activation = silu(W13[2048:] x) * (W13[:2048] x), for all pairs of one expert and 128 of its rows.
__global__ void __launch_bounds__(kRows)
    gemm1_kernel(const __nv_fp8_e4m3* __restrict__ hidden,   // (T, 7168)
                 const float* __restrict__ hidden_scale,     // (56, T)
                 const __nv_fp8_e4m3* __restrict__ weights,  // (32, 4096, 7168)
                 const float* __restrict__ scales,           // (32, 32, 56)
                 int64_t tokens, int64_t first, Pass pass) {
  constexpr int kBlocks = kHidden / kBlock, kRowBlocks = kInter / kBlock;
  __shared__ float x[kBlock][kTile];
  const int local = blockIdx.y, row_block = blockIdx.x;
  const int64_t row = row_block * kRows + threadIdx.x;
  const __nv_fp8_e4m3* up = weights + (local * int64_t{2 * kInter} + row) * kHidden;
  const __nv_fp8_e4m3* gate = up + int64_t{kInter} * kHidden;
  const float* up_scale = scales + (local * 2 * kRowBlocks + row_block) * kBlocks;
  const float* gate_scale = up_scale + kRowBlocks * kBlocks;
  const int32_t* list = pass.list + local * kChunk;
  const int count = pass.count[local];

  for (int begin = 0; begin < count; begin += kTile) {
    float up_sum[kTile] = {}, gate_sum[kTile] = {};
    for (int block = 0; block < kBlocks; ++block) {
      __syncthreads();
      for (int m = 0; m < kTile; ++m) {
        float value = 0.0f;
        if (begin + m < count) {
          const int64_t t = first + list[begin + m] / kTopK;
          value = static_cast<float>(hidden[t * kHidden + block * kBlock + threadIdx.x]) * hidden_scale[block * tokens + t];
        }
        x[threadIdx.x][m] = value;
      }
      __syncthreads();
      multiply(up + block * kBlock, x, up_scale[block], up_sum);
      multiply(gate + block * kBlock, x, gate_scale[block], gate_sum);
    }
    for (int m = 0; m < kTile && begin + m < count; ++m) {
      const float silu = gate_sum[m] / (1.0f + expf(-gate_sum[m]));
      pass.activation[list[begin + m] * int64_t{kInter} + row] = silu * up_sum[m];
    }
  }
}

// result = W2 activation, for all pairs of one expert and 128 of its rows.
__global__ void __launch_bounds__(kRows)
    gemm2_kernel(const __nv_fp8_e4m3* __restrict__ weights,  // (32, 7168, 2048)
                 const float* __restrict__ scales,           // (32, 56, 16)
                 Pass pass) {
  constexpr int kBlocks = kInter / kBlock, kRowBlocks = kHidden / kBlock;
  __shared__ float x[kBlock][kTile];
  const int local = blockIdx.y, row_block = blockIdx.x;
  const int64_t row = row_block * kRows + threadIdx.x;
  const __nv_fp8_e4m3* down = weights + (local * int64_t{kHidden} + row) * kInter;
  const float* down_scale = scales + (local * kRowBlocks + row_block) * kBlocks;
  const int32_t* list = pass.list + local * kChunk;
  const int count = pass.count[local];

  for (int begin = 0; begin < count; begin += kTile) {
    float sum[kTile] = {};
    for (int block = 0; block < kBlocks; ++block) {
      __syncthreads();
      for (int m = 0; m < kTile; ++m) {
        x[threadIdx.x][m] =
            begin + m < count ? pass.activation[list[begin + m] * int64_t{kInter} + block * kBlock + threadIdx.x] : 0.0f;
      }
      __syncthreads();
      multiply(down + block * kBlock, x, down_scale[block], sum);
    }
    for (int m = 0; m < kTile && begin + m < count; ++m) {
      pass.result[list[begin + m] * int64_t{kHidden} + row] = sum[m];
    }
  }
}

__global__ void __launch_bounds__(kRows) combine_kernel(int64_t first, Pass pass,
                                                        __nv_bfloat16* __restrict__ output) {  // (T, 7168)
  const int64_t t = blockIdx.y;
  const int64_t col = blockIdx.x * kRows + threadIdx.x;
  float sum = 0.0f;
  for (int64_t pair = t * kTopK; pair < (t + 1) * kTopK; ++pair) {
    if (pass.local[pair] >= 0) {
      sum += pass.weight[pair] * pass.result[pair * kHidden + col];
    }
  }
  output[(first + t) * kHidden + col] = __float2bfloat16_rn(sum);
}

void moe(TensorView routing_logits, TensorView routing_bias, TensorView hidden_states, TensorView hidden_states_scale,
         TensorView gemm1_weights, TensorView gemm1_weights_scale, TensorView gemm2_weights, TensorView gemm2_weights_scale,
         int64_t local_expert_offset, double routed_scaling_factor, TensorView output) {
  const int64_t tokens = extent(routing_logits, 0);
  const auto* logits = checked<const float>("routing_logits", routing_logits, {tokens, kExperts});
  const auto* bias = checked<const __nv_bfloat16>("routing_bias", routing_bias, {kExperts});
  const auto* hidden = checked<const __nv_fp8_e4m3>("hidden_states", hidden_states, {tokens, kHidden});
  const auto* hidden_scale = checked<const float>("hidden_states_scale", hidden_states_scale, {kHidden / kBlock, tokens});
  const auto* w13 = checked<const __nv_fp8_e4m3>("gemm1_weights", gemm1_weights, {kLocal, 2 * kInter, kHidden});
  const auto* w13_scale = checked<const float>("gemm1_weights_scale", gemm1_weights_scale,
                                               {kLocal, 2 * kInter / kBlock, kHidden / kBlock});
  const auto* w2 = checked<const __nv_fp8_e4m3>("gemm2_weights", gemm2_weights, {kLocal, kHidden, kInter});
  const auto* w2_scale = checked<const float>("gemm2_weights_scale", gemm2_weights_scale,
                                              {kLocal, kHidden / kBlock, kInter / kBlock});
  auto* output_data = checked<__nv_bfloat16>("output", output, {tokens, kHidden});
  if (local_expert_offset < -kLocal || local_expert_offset > kExperts) {
    local_expert_offset = kExperts;  // no expert of a token is here
  }

  const size_t most = tokens < kChunk ? tokens : kChunk;
  const size_t pairs = most * kTopK;
  Workspace workspace(routing_logits, Workspace::bytes<int32_t>(kLocal) + Workspace::bytes<int32_t>(kLocal * kChunk) +
                                          Workspace::bytes<int32_t>(pairs) + Workspace::bytes<float>(pairs) +
                                          Workspace::bytes<float>(pairs * kInter) + Workspace::bytes<float>(pairs * kHidden));
  Pass pass;
  pass.count = workspace.take<int32_t>(kLocal);
  pass.list = workspace.take<int32_t>(kLocal * kChunk);
  pass.local = workspace.take<int32_t>(pairs);
  pass.weight = workspace.take<float>(pairs);
  pass.activation = workspace.take<float>(pairs * kInter);
  pass.result = workspace.take<float>(pairs * kHidden);

  const cudaStream_t stream = stream_of(routing_logits);
  for (int64_t first = 0; first < tokens; first += kChunk) {
    const unsigned now = static_cast<unsigned>(tokens - first < kChunk ? tokens - first : kChunk);
    CUDA_CHECK(cudaMemsetAsync(pass.count, 0, kLocal * sizeof(int32_t), stream));
    route_kernel<<<now, kExperts, 0, stream>>>(logits, bias, first, static_cast<int>(local_expert_offset),
                                               static_cast<float>(routed_scaling_factor), pass);
    CUDA_CHECK(cudaGetLastError());
    gemm1_kernel<<<dim3(kInter / kRows, kLocal), kRows, 0, stream>>>(hidden, hidden_scale, w13, w13_scale, tokens, first, pass);
    CUDA_CHECK(cudaGetLastError());
    gemm2_kernel<<<dim3(kHidden / kRows, kLocal), kRows, 0, stream>>>(w2, w2_scale, pass);
    CUDA_CHECK(cudaGetLastError());
    combine_kernel<<<dim3(kHidden / kRows, now), kRows, 0, stream>>>(first, pass, output_data);
    CUDA_CHECK(cudaGetLastError());
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, moe);
