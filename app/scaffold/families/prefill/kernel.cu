// Gated delta rule over whole sequences, k-last state (definition [[.Definition]]).
//
// For each token of a sequence, in order, with S the state of the head before it:
//   g      = exp(-exp(A_log) * softplus(a + dt_bias))      decay
//   beta   = sigmoid(b)                                    update gate
//   old    = g * (S k)                                     one number for each value
//   S      = g * S + beta * (v - old) k^T
//   output = scale * (S q)
//
// Shapes: q, k (L, HQ, 128); v, output (L, HV, 128); state, new_state (N, HV, 128, 128) as (n, hv, v, k), k innermost;
// A_log, dt_bias (HV); a, b (L, HV); cu_seqlens (N + 1): sequence n holds tokens cu_seqlens[n] to cu_seqlens[n + 1] - 1. Query
// and key head h serve value heads 2h and 2h + 1.
// dtypes: q, k, v, a, b, output bfloat16; state, new_state, A_log, dt_bias float32; cu_seqlens int64; all arithmetic float32.
// state None means zeros; scale None or 0 means 1/sqrt(128). A sequence without tokens has a new state of zeros.
//
// Design: a block for each head of a sequence, two neighbouring threads for each row of its state, which stays in registers
// from the first token to the last: the even and the odd keys of a row. The token's query and key are shared through shared
// memory, in two buffers, so that one barrier a token is enough.
//
// Where to begin: this walks through the tokens one by one, on N * HV blocks. The chunked form of the delta rule turns 64 or
// more tokens into a few matrix products, for the tensor cores; and rows of one head are independent, so that a head can be
// spread over several blocks as it is.

#include "tensor.cuh"

constexpr int kHeadsQK = [[axis "num_q_heads"]];
constexpr int kHeadsV = [[axis "num_v_heads"]];
constexpr int kDim = 128;            // head size, of keys and of values
constexpr int kLanes = 2;            // threads of a row
constexpr int kOwn = kDim / kLanes;  // values of the state that a thread holds
constexpr int kThreads = kDim * kLanes;
static_assert(kLanes == 2, "the sum over a row takes one shuffle, and each thread loads one value of query or key");

__global__ void __launch_bounds__(kThreads)
    prefill_kernel(const __nv_bfloat16* __restrict__ q,      // (L, HQ, 128)
                   const __nv_bfloat16* __restrict__ k,      // (L, HQ, 128)
                   const __nv_bfloat16* __restrict__ v,      // (L, HV, 128)
                   const float* __restrict__ state,          // (N, HV, 128, 128), or null: zeros
                   const float* __restrict__ a_log,          // (HV)
                   const __nv_bfloat16* __restrict__ a,      // (L, HV)
                   const float* __restrict__ dt_bias,        // (HV)
                   const __nv_bfloat16* __restrict__ b,      // (L, HV)
                   const int64_t* __restrict__ cu_seqlens,   // (N + 1)
                   int64_t tokens,                           // L
                   float scale,
                   __nv_bfloat16* __restrict__ output,  // (L, HV, 128)
                   float* __restrict__ new_state) {     // (N, HV, 128, 128)
  __shared__ float query[2][kDim];
  __shared__ float key[2][kDim];
  const int row = threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t head = blockIdx.x;  // n * HV + hv
  const int hv = head % kHeadsV;
  const int head_qk = hv / (kHeadsV / kHeadsQK);
  const int64_t n = head / kHeadsV;
  const int64_t begin = max(cu_seqlens[n], int64_t{0});
  const int64_t end = min(cu_seqlens[n + 1], tokens);

  float s[kOwn];  // this thread's part of the row: keys lane, lane + 2, ...
  const int64_t at = (head * kDim + row) * kDim + lane;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    s[i] = state != nullptr && begin < end ? state[at + i * kLanes] : 0.0f;
  }
  const float rate = -expf(a_log[hv]);
  const float bias = dt_bias[hv];

  for (int64_t t = begin; t < end; ++t) {
    float* q_t = query[(t - begin) % 2];
    float* k_t = key[(t - begin) % 2];
    const int64_t from = (t * kHeadsQK + head_qk) * kDim;
    if (threadIdx.x < kDim) {
      q_t[threadIdx.x] = __bfloat162float(q[from + threadIdx.x]);
    } else {
      k_t[threadIdx.x - kDim] = __bfloat162float(k[from + threadIdx.x - kDim]);
    }
    __syncthreads();

    const float x = __bfloat162float(a[t * kHeadsV + hv]) + bias;
    const float g = expf(rate * (x > 20.0f ? x : log1pf(expf(x))));
    const float beta = 1.0f / (1.0f + expf(-__bfloat162float(b[t * kHeadsV + hv])));

    float old = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      s[i] *= g;
      old += s[i] * k_t[i * kLanes + lane];
    }
    old += __shfl_xor_sync(0xffffffff, old, 1);
    const int64_t value = (t * kHeadsV + hv) * kDim + row;
    const float delta = beta * (__bfloat162float(v[value]) - old);
    float result = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      s[i] += delta * k_t[i * kLanes + lane];
      result += s[i] * q_t[i * kLanes + lane];
    }
    result += __shfl_xor_sync(0xffffffff, result, 1);
    if (lane == 0) {
      output[value] = __float2bfloat16_rn(scale * result);
    }
  }

#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    new_state[at + i * kLanes] = s[i];
  }
}

void prefill(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a,
             TensorView dt_bias, TensorView b, TensorView cu_seqlens, Optional<double> scale, TensorView output,
             TensorView new_state) {
  const int64_t tokens = extent(q, 0);
  const int64_t sequences = extent(new_state, 0);
  const auto* q_data = checked<const __nv_bfloat16>("q", q, {tokens, kHeadsQK, kDim});
  const auto* k_data = checked<const __nv_bfloat16>("k", k, {tokens, kHeadsQK, kDim});
  const auto* v_data = checked<const __nv_bfloat16>("v", v, {tokens, kHeadsV, kDim});
  const float* state_data = nullptr;
  if (state.has_value()) {
    state_data = checked<const float>("state", state.value(), {sequences, kHeadsV, kDim, kDim});
  }
  const auto* a_log_data = checked<const float>("A_log", a_log, {kHeadsV});
  const auto* a_data = checked<const __nv_bfloat16>("a", a, {tokens, kHeadsV});
  const auto* dt_bias_data = checked<const float>("dt_bias", dt_bias, {kHeadsV});
  const auto* b_data = checked<const __nv_bfloat16>("b", b, {tokens, kHeadsV});
  const auto* cu_seqlens_data = checked<const int64_t>("cu_seqlens", cu_seqlens, {sequences + 1});
  auto* output_data = checked<__nv_bfloat16>("output", output, {tokens, kHeadsV, kDim});
  auto* new_state_data = checked<float>("new_state", new_state, {sequences, kHeadsV, kDim, kDim});
  if (sequences == 0) {
    return;
  }
  if (sequences > INT32_MAX / kHeadsV) {
    TVM_FFI_THROW(ValueError) << "new_state: " << sequences << " sequences are above " << INT32_MAX / kHeadsV;
  }
  double factor = scale.has_value() ? scale.value() : 0.0;
  if (factor == 0.0) {
    factor = 0.08838834764831845;  // 1/sqrt(128)
  }
  prefill_kernel<<<static_cast<unsigned>(sequences * kHeadsV), kThreads, 0, stream_of(q)>>>(
      q_data, k_data, v_data, state_data, a_log_data, a_data, dt_bias_data, b_data, cu_seqlens_data, tokens,
      static_cast<float>(factor), output_data, new_state_data);
  CUDA_CHECK(cudaGetLastError());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, prefill);
