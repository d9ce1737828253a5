// The kernel for calls of at most kFewTokens tokens.
#pragma once

#include "fragments.cuh"

namespace gdn {

constexpr int kFewTokens = 16;

// Computes at most kFewTokens tokens one after the other in float32. A block has 8 rows of a head's state of a
// sequence, a thread 8 columns of a row. All loads of a block are in flight together, and the code is short, since a
// cold call fetches that too.
__global__ void __launch_bounds__(128) few_kernel(const Arguments args) {
  __shared__ uint4 ks[kFewTokens * 16], qs[kFewTokens * 16];  // bfloat16: rows of k and q
  __shared__ uint4 vs[kFewTokens];                            // the block's 8 values of a token
  __shared__ float2 gates[kFewTokens];                        // decay, update gate
  const int thread = threadIdx.x, row = thread / 16, part = thread % 16;
  const int rows = blockIdx.x % 16 * 8, head = blockIdx.x / 16 % kHeadsV;
  const int64_t n = blockIdx.x / (16 * kHeadsV), at = ((n * kHeadsV + head) * kDim + rows + row) * kDim + part * 8;
  float4 s[2] = {};
  if (args.state != nullptr) {
    s[0] = *reinterpret_cast<const float4*>(args.state + at);
    s[1] = *reinterpret_cast<const float4*>(args.state + at + 4);
  }
  int64_t begin = 0;
  int count = static_cast<int>(args.tokens);
  if (args.sequences > 1) {
    begin = args.cu_seqlens[n];
    count = static_cast<int>(args.cu_seqlens[n + 1] - begin);
  }
  uint4 k[2] = {}, q[2] = {}, v = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + 8 * i < count) {
      const int64_t from = ((begin + row + 8 * i) * kHeadsQK + head / 2) * kDim + part * 8;
      k[i] = *reinterpret_cast<const uint4*>(args.k + from);
      q[i] = *reinterpret_cast<const uint4*>(args.q + from);
    }
  }
  if (thread < count) {
    const int64_t from = (begin + thread) * kHeadsV + head;
    v = *reinterpret_cast<const uint4*>(args.v + from * kDim + rows);
    const float a = __bfloat162float(args.a[from]), b = __bfloat162float(args.b[from]);
    gates[thread] = {exp2_approx(log2_decay(args.a_log[head], a, args.dt_bias[head])), sigmoid(b)};
    vs[thread] = v;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    ks[thread + 128 * i] = k[i], qs[thread + 128 * i] = q[i];
  }
  __syncthreads();
  float* const f = &s[0].x;
  uint4 next_k = ks[part], next_q = qs[part];
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const uint32_t kw[4] = {next_k.x, next_k.y, next_k.z, next_k.w}, qw[4] = {next_q.x, next_q.y, next_q.z, next_q.w};
    const float2 gate = gates[i];
    const float value = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(vs + i)[row]);
    const int after = (i + 1) % kFewTokens * 16 + part;
    next_k = ks[after], next_q = qs[after];
    float key[8], sums[2][3] = {};  // S k, S q, k q
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      key[j] = __uint_as_float(j % 2 ? kw[j / 2] & 0xffff0000u : kw[j / 2] << 16);
      const float query = __uint_as_float(j % 2 ? qw[j / 2] & 0xffff0000u : qw[j / 2] << 16);
      sums[j % 2][0] = fmaf(f[j], key[j], sums[j % 2][0]);
      sums[j % 2][1] = fmaf(f[j], query, sums[j % 2][1]);
      sums[j % 2][2] = fmaf(key[j], query, sums[j % 2][2]);
    }
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      sums[0][j] += sums[1][j];
    }
#pragma unroll
    for (int lanes = 8; lanes > 0; lanes /= 2) {
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        sums[0][j] += __shfl_xor_sync(~0u, sums[0][j], lanes);
      }
    }
    const float delta = gate.y * (value - gate.x * sums[0][0]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      f[j] = fmaf(delta, key[j], gate.x * f[j]);
    }
    if (part == 0) {
      args.output[((begin + i) * kHeadsV + head) * kDim + rows + row] =
          __float2bfloat16_rn(args.scale * fmaf(delta, sums[0][2], gate.x * sums[0][1]));
    }
  }
  if (count <= 0) {
    s[0] = s[1] = {};
  }
  *reinterpret_cast<float4*>(args.new_state + at) = s[0];
  *reinterpret_cast<float4*>(args.new_state + at + 4) = s[1];
}

// Starts few_kernel; at most kFewTokens tokens.
inline cudaError_t launch_few(const Arguments& args, int, cudaStream_t stream) {
  if (args.tokens > kFewTokens) {
    return cudaErrorInvalidValue;
  }
  few_kernel<<<static_cast<unsigned>(args.sequences * kHeadsV * 16), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace gdn
