[[- $state := or (and (has "state") "state") "initial_state" -]]
[[- $unit := or (named "mtp") (named "l2norm") -]]
[[about "// "]]
//
// Design: a warp for each value channel of a head, whose part of the state stays in registers from the first token to
// the last: keys lane, lane + 32, and so on. The products with the state are sums over the warp.
//
// Where to begin: reading and writing the states takes most of the time. Compare with a plain copy (column COPY of fisub
// local). Small batches leave most of the GPU idle.
[[- if named "v_last"]] Neighbouring lanes read keys, which lie [[axis "head_size"]] elements
// apart here: let them own neighbouring value channels.
[[- else]] Let a lane own neighbouring keys, and read and write 16 bytes at a time.
[[- end]]
[[- if not (axis "seq_len")]]
// The products of the tokens among themselves do not depend on the state, and shorten the chain from token to token.
[[- end]]

#include <cmath>

#include "tensor.cuh"

using State = [[type $state]];  // an element of a state
[[- if has "initial_state_indices"]]
using Slot = [[type "initial_state_indices"]];
[[- end]]

constexpr int kHeadsQK = [[axis "num_q_heads"]];
constexpr int kHeadsV = [[axis "num_v_heads"]];
constexpr int kDim = [[axis "head_size"]];         // head size, of keys and of values
constexpr int kOwn = kDim / 32;   // keys that a lane holds
constexpr int kRowsPerBlock = 8;  // one for each warp
constexpr int kBlocksPerHead = kDim / kRowsPerBlock;

static_assert(kDim % 32 == 0, "each lane holds as many keys");
static_assert(kDim % kRowsPerBlock == 0, "blocks do not cross heads");

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

__device__ __forceinline__ float dot(const float (&x)[kOwn], const float (&y)[kOwn]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    sum += x[i] * y[i];
  }
  return warp_sum(sum);
}

// What this lane holds of a query or key.
__device__ __forceinline__ void load(float (&x)[kOwn], const __nv_bfloat16* from, int lane_idx) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    x[i] = __bfloat162float(from[i * 32 + lane_idx]);
  }
[[- if $unit]]
  const float factor = rsqrtf(dot(x, x) + 1e-6f);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    x[i] *= factor;
  }
[[- end]]
}

// Offset of key i of this lane in state number `slot`; it may exceed 2^31 elements.
__device__ __forceinline__ int64_t at(int64_t slot, int hv, int row, int lane_idx, int i) {
  const int key = i * 32 + lane_idx;
  return (slot * kHeadsV + hv) * kDim * kDim + [[if named "v_last"]]key * kDim + row[[else]]row * kDim + key[[end]];
}

__device__ __forceinline__ void store(State* to, const float (&s)[kOwn], int64_t slot, int hv, int row, int lane_idx) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    to[at(slot, hv, row, lane_idx, i)] = static_cast<State>(s[i]);
  }
}

__global__ void __launch_bounds__(32 * kRowsPerBlock)
    gdn_kernel(const __nv_bfloat16* __restrict__ q, const __nv_bfloat16* __restrict__ k, const __nv_bfloat16* __restrict__ v,
               [[if not (has "final_state")]]const [[end]]State* [[$state]],
[[- if has "initial_state_indices"]] const Slot* __restrict__ initial_state_indices,[[end]]
[[- if has "output_state_indices"]]
               const Slot* __restrict__ output_state_indices,[[end]]
[[- if has "ssm_state_indices"]]
               const Slot* __restrict__ ssm_state_indices,[[end]]
               const float* __restrict__ a_log, const __nv_bfloat16* __restrict__ a, const float* __restrict__ dt_bias,
               const __nv_bfloat16* __restrict__ b, float scale, int tokens, __nv_bfloat16* __restrict__ output
[[- if has "new_state"]],
               State* __restrict__ new_state[[end]]
[[- if has "intermediate_states"]],
               State* __restrict__ intermediate_states[[end]]) {
  const int warp_idx = threadIdx.x / 32, lane_idx = threadIdx.x % 32;
  const int row = blockIdx.x % kBlocksPerHead * kRowsPerBlock + warp_idx;  // value channel
  const int hv = blockIdx.x / kBlocksPerHead % kHeadsV;
  const int head_qk = hv / (kHeadsV / kHeadsQK);
  const int64_t n = blockIdx.x / (kBlocksPerHead * kHeadsV);  // sequence
[[- if has "initial_state_indices"]]
  const int64_t slot = initial_state_indices[n];
  if (slot < 0) {
    for (int64_t token = n * tokens; token < (n + 1) * tokens; ++token) {
      if (lane_idx == 0) {
        output[(token * kHeadsV + hv) * kDim + row] = __float2bfloat16_rn(0.0f);
      }
    }
    return;
  }
[[- else]]
  const int64_t slot = n;
[[- end]]

  float s[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    s[i] = [[if optional $state]][[$state]] == nullptr ? 0.0f : [[end]]static_cast<float>([[$state]][at(slot, hv, row, lane_idx, i)]);
  }
  for (int64_t token = n * tokens; token < (n + 1) * tokens; ++token) {
    float query[kOwn], key[kOwn];
    load(query, q + (token * kHeadsQK + head_qk) * kDim, lane_idx);
    load(key, k + (token * kHeadsQK + head_qk) * kDim, lane_idx);
    const int64_t head = token * kHeadsV + hv;
    const float x = __bfloat162float(a[head]) + dt_bias[hv];
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    const float g = expf(-expf(a_log[hv]) * softplus);
    const float beta = 1.0f / (1.0f + expf(-__bfloat162float(b[head])));

    const float delta = beta * (__bfloat162float(v[head * kDim + row]) - g * dot(s, key));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      s[i] = g * s[i] + delta * key[i];
    }
    const float result = scale * dot(s, query);
    if (lane_idx == 0) {
      output[head * kDim + row] = __float2bfloat16_rn(result);
    }
[[- if has "intermediate_states"]]
    store(intermediate_states, s, token, hv, row, lane_idx);
[[- else if has "ssm_state_indices"]]
    if (ssm_state_indices[token] >= 0) {
      store([[$state]], s, ssm_state_indices[token], hv, row, lane_idx);
    }
[[- end]]
  }
[[- if has "new_state"]]
  store(new_state, s, slot, hv, row, lane_idx);
[[- else if has "output_state_indices"]]
  if (output_state_indices[n] >= 0) {
    store([[$state]], s, output_state_indices[n], hv, row, lane_idx);
  }
[[- else if and (has "final_state") (not (has "ssm_state_indices"))]]
  store([[$state]], s, slot, hv, row, lane_idx);
[[- end]]
}

void gdn(TensorView q, TensorView k, TensorView v, [[if optional $state]]Optional<TensorView>[[else]]TensorView[[end]] [[$state]],
[[- if has "initial_state_indices"]] TensorView initial_state_indices,[[end]]
[[- if has "output_state_indices"]]
         TensorView output_state_indices,[[end]]
[[- if has "ssm_state_indices"]]
         TensorView ssm_state_indices,[[end]]
         TensorView a_log, TensorView a, TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output
[[- if has "new_state"]],
         TensorView new_state[[end]]
[[- if has "intermediate_states"]],
         TensorView intermediate_states[[end]]) {
  const int64_t batch = extent(q, 0), tokens = extent(q, 1)[[if has "initial_state_indices"]], slots = extent([[$state]], 0)[[end]];
  const auto* q_data = checked<const __nv_bfloat16>("q", q, {batch, tokens, kHeadsQK, kDim});
  const auto* k_data = checked<const __nv_bfloat16>("k", k, {batch, tokens, kHeadsQK, kDim});
  const auto* v_data = checked<const __nv_bfloat16>("v", v, {batch, tokens, kHeadsV, kDim});
[[- if optional $state]]
  const State* state_data = nullptr;
  if (state.has_value()) {
    state_data = checked<const State>("state", state.value(), {batch, kHeadsV, kDim, kDim});
  }
[[- else]]
  auto* state_data = checked<[[if not (has "final_state")]]const [[end]]State>("[[$state]]", [[$state]],
      {[[if has "initial_state_indices"]]slots[[else]]batch[[end]], kHeadsV, kDim, kDim});
[[- end]]
[[- if has "initial_state_indices"]]
  const auto* read_data = checked<const Slot>("initial_state_indices", initial_state_indices, {batch});
[[- end]]
[[- if has "output_state_indices"]]
  const auto* write_data = checked<const Slot>("output_state_indices", output_state_indices, {batch});
[[- end]]
[[- if has "ssm_state_indices"]]
  const auto* write_data = checked<const Slot>("ssm_state_indices", ssm_state_indices, {batch, tokens});
[[- end]]
  const auto* a_log_data = checked<const float>("A_log", a_log, {kHeadsV});
  const auto* a_data = checked<const __nv_bfloat16>("a", a, {batch, tokens, kHeadsV});
  const auto* dt_bias_data = checked<const float>("dt_bias", dt_bias, {kHeadsV});
  const auto* b_data = checked<const __nv_bfloat16>("b", b, {batch, tokens, kHeadsV});
  auto* output_data = checked<__nv_bfloat16>("output", output, {batch, tokens, kHeadsV, kDim});
[[- if has "new_state"]]
  auto* new_state_data = checked<State>("new_state", new_state, {batch, kHeadsV, kDim, kDim});
[[- else if has "intermediate_states"]]
  auto* new_state_data = checked<State>("intermediate_states", intermediate_states, {batch, tokens, kHeadsV, kDim, kDim});
[[- end]]
  if (batch == 0) {
    return;
  }
  if (batch > INT32_MAX / (kHeadsV * kBlocksPerHead)) {
    TVM_FFI_THROW(ValueError) << "q: batch " << batch << " is above " << INT32_MAX / (kHeadsV * kBlocksPerHead);
  }
  double factor = scale.has_value() ? scale.value() : 0.0;
  if (factor == 0.0) {
    factor = 1.0 / std::sqrt(static_cast<double>(kDim));
  }
  gdn_kernel<<<static_cast<unsigned>(batch * kHeadsV * kBlocksPerHead), 32 * kRowsPerBlock, 0, stream_of(q)>>>(
      q_data, k_data, v_data, state_data,[[if has "initial_state_indices"]] read_data,[[end]]
[[- if or (has "output_state_indices") (has "ssm_state_indices")]] write_data,[[end]] a_log_data, a_data, dt_bias_data, b_data,
      static_cast<float>(factor), static_cast<int>(tokens), output_data
[[- if or (has "new_state") (has "intermediate_states")]], new_state_data[[end]]);
  CUDA_CHECK(cudaGetLastError());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, gdn);
