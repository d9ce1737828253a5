// Gated delta rule over whole sequences (definition gdn_prefill_qk4_v8_d128_k_last), in chunks, step by step: a baseline, and
// what to read before solution-prefill, which does the same on tensor cores.
//
// Token by token, with S the state of a head (rows v, columns k):
//   S_t = g_t S_{t-1} + beta_t (v_t - g_t S_{t-1} k_t) k_t^T        output_t = scale S_t q_t
// With u_t = beta_t (v_t - g_t S_{t-1} k_t), S after token i of a chunk is exp(G_i) S + sum_{j<=i} exp(G_i - G_j) u_j k_j^T, where
// G_i is the sum of log g up to i, and S the state before the chunk. Put into the definition of u, that is a triangular system:
//   u_i + sum_{j<i} A[i][j] u_j = beta_i (v_i - exp(G_i) S k_i)      A[i][j] = beta_i exp(G_i - G_j) (k_i . k_j)
// A depends on no value and no state, so T = (I + A)^-1 is shared by all rows of S, and a chunk is a few products of matrices.
// All exponents are of G_i - G_j with i >= j, so none is above 1.
//
// Shapes: q, k (T, 4, 128); v, output (T, 8, 128); state, new_state (N, 8, 128, 128) as (n, hv, v, k), k innermost; A_log,
// dt_bias (8); a, b (T, 8); cu_seqlens (N + 1). q, k, v, a, b, output bfloat16; cu_seqlens int64; the others float32, and so
// is all arithmetic. Query and key head h serve value heads 2h and 2h + 1. Inputs are taken to be contiguous.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

namespace gdn {

constexpr int kHeadsQK = 4;
constexpr int kHeadsV = 8;
constexpr int kDim = 128;   // head size: K and V
constexpr int kChunk = 32;  // tokens

// Block: head blockIdx.x % 8 of sequence blockIdx.x / 8; thread: row threadIdx.x of its state.
__global__ void __launch_bounds__(kDim)
    prefill_kernel(const __nv_bfloat16* __restrict__ q, const __nv_bfloat16* __restrict__ k,
                   const __nv_bfloat16* __restrict__ v, const float* __restrict__ state,  // null: zeros
                   const float* __restrict__ a_log, const __nv_bfloat16* __restrict__ a,
                   const float* __restrict__ dt_bias, const __nv_bfloat16* __restrict__ b,
                   const int64_t* __restrict__ cu_seqlens, float scale, __nv_bfloat16* __restrict__ output,
                   float* __restrict__ new_state) {
  __shared__ float ks[kChunk][kDim], qs[kChunk][kDim];
  __shared__ float A[kChunk][kChunk], P[kChunk][kChunk], T[kChunk][kChunk];
  __shared__ float G[kChunk], beta[kChunk];
  const int row = threadIdx.x, hv = blockIdx.x % kHeadsV;
  const int64_t n = blockIdx.x / kHeadsV, begin = cu_seqlens[n], end = cu_seqlens[n + 1];
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kDim + row) * kDim;

  float s[kDim];  // this thread's row of S
  for (int j = 0; j < kDim; ++j) {
    s[j] = state != nullptr && end > begin ? state[at + j] : 0.0f;
  }
  for (int64_t first = begin; first < end; first += kChunk) {
    const int count = end - first < kChunk ? static_cast<int>(end - first) : kChunk;

    // 1. The chunk's keys and queries, and its gates. Tokens behind the end have zeros and change nothing.
    for (int i = 0; i < kChunk; ++i) {
      const int64_t from = ((first + i) * kHeadsQK + hv / 2) * kDim + row;
      ks[i][row] = i < count ? __bfloat162float(k[from]) : 0.0f;
      qs[i][row] = i < count ? __bfloat162float(q[from]) : 0.0f;
    }
    if (row < kChunk) {
      G[row] = beta[row] = 0.0f;
      if (row < count) {
        const int64_t gate = (first + row) * kHeadsV + hv;
        const float x = __bfloat162float(a[gate]) + dt_bias[hv];
        const float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
        G[row] = fmaxf(-expf(a_log[hv]) * softplus, -110.0f);  // exp of that is 0; sums stay finite
        beta[row] = 1.0f / (1.0f + expf(-__bfloat162float(b[gate])));
      }
    }
    __syncthreads();
    if (row == 0) {
      for (int i = 1; i < kChunk; ++i) {
        G[i] += G[i - 1];
      }
    }
    __syncthreads();

    // 2. A and P, an element at a time.
    for (int e = row; e < kChunk * kChunk; e += kDim) {
      const int i = e / kChunk, j = e % kChunk;
      float kk = 0.0f, qk = 0.0f;
      for (int c = 0; c < kDim; ++c) {
        kk += ks[i][c] * ks[j][c];
        qk += qs[i][c] * ks[j][c];
      }
      A[i][j] = i > j ? beta[i] * expf(G[i] - G[j]) * kk : 0.0f;
      P[i][j] = i >= j ? expf(G[i] - G[j]) * qk : 0.0f;
    }
    __syncthreads();

    // 3. T = (I + A)^-1, a column in each of 32 threads, by forward substitution.
    if (row < kChunk) {
      for (int i = 0; i < kChunk; ++i) {
        float x = i == row ? 1.0f : 0.0f;
        for (int j = 0; j < i; ++j) {
          x -= A[i][j] * T[j][row];
        }
        T[i][row] = x;
      }
    }
    __syncthreads();

    // 4. U = T RHS for this row, then 5. its outputs, and 6. its new state.
    float rhs[kChunk], u[kChunk];
    for (int i = 0; i < kChunk; ++i) {
      float sk = 0.0f;
      for (int c = 0; c < kDim; ++c) {
        sk += s[c] * ks[i][c];
      }
      const float value = i < count ? __bfloat162float(v[((first + i) * kHeadsV + hv) * kDim + row]) : 0.0f;
      rhs[i] = beta[i] * (value - expf(G[i]) * sk);
    }
    for (int i = 0; i < kChunk; ++i) {
      u[i] = 0.0f;
      for (int j = 0; j <= i; ++j) {
        u[i] += T[i][j] * rhs[j];
      }
    }
    for (int i = 0; i < count; ++i) {
      float sq = 0.0f, pu = 0.0f;
      for (int c = 0; c < kDim; ++c) {
        sq += s[c] * qs[i][c];
      }
      for (int j = 0; j <= i; ++j) {
        pu += P[i][j] * u[j];
      }
      output[((first + i) * kHeadsV + hv) * kDim + row] = __float2bfloat16_rn(scale * (expf(G[i]) * sq + pu));
    }
    for (int c = 0; c < kDim; ++c) {
      float sum = expf(G[kChunk - 1]) * s[c];
      for (int i = 0; i < kChunk; ++i) {
        sum += expf(G[kChunk - 1] - G[i]) * u[i] * ks[i][c];
      }
      s[c] = sum;
    }
    __syncthreads();  // before the next chunk overwrites this one's
  }
  for (int j = 0; j < kDim; ++j) {
    new_state[at + j] = s[j];
  }
}

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

template <typename T>
T* data(TensorView t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data_ptr()) + t.byte_offset());
}

void prefill(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a,
             TensorView dt_bias, TensorView b, TensorView cu_seqlens, Optional<double> scale, TensorView output,
             TensorView new_state) {
  const int64_t sequences = cu_seqlens.size(0) - 1;
  if (sequences == 0) {
    return;
  }
  const double factor = scale.has_value() ? scale.value() : 0.0;
  const DLDevice device = q.device();
  prefill_kernel<<<static_cast<unsigned>(sequences * kHeadsV), kDim, 0,
                   static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id))>>>(
      data<const __nv_bfloat16>(q), data<const __nv_bfloat16>(k), data<const __nv_bfloat16>(v),
      state.has_value() ? data<const float>(state.value()) : nullptr, data<const float>(a_log),
      data<const __nv_bfloat16>(a), data<const float>(dt_bias), data<const __nv_bfloat16>(b),
      data<const int64_t>(cu_seqlens), static_cast<float>(factor != 0.0 ? factor : 0.08838834764831845),
      data<__nv_bfloat16>(output), data<float>(new_state));
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << "prefill: " << cudaGetErrorString(status);
  }
}

}  // namespace gdn

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, gdn::prefill);
