// One token for each row of the batch, k last. Small batches need few instructions between the load and the store of the
// state; large ones need accesses of whole rows.
//
// A row of the state belongs to kLanes lanes, each with vectors of 16 bytes, 16 * kLanes bytes apart; a lane has kRowsEach
// rows, and a warp needs no other warp. S k, S q, k.q, k.k and q.q are reduced together, so that no output waits for S'.
#pragma once

#include "gdn.cuh"

namespace gdn {

template <typename State, int kLanes, int kRowsEach, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 1) one_token_kernel(const __grid_constant__ Arguments x) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr bool kWide = sizeof(State) == 4;
  constexpr int kPer = 16 / sizeof(State), kWords = kPer / 2, kVectors = kDim / (kPer * kLanes), kGroups = 32 / kLanes;
  constexpr int kRowsWarp = kGroups * kRowsEach, kBlocks = kDim / (kRowsWarp * kWarps);  // blocks: of a head
  static_assert(kVectors * kPer * kLanes == kDim && kBlocks * kRowsWarp * kWarps == kDim && kRowsEach <= kLanes,
                "rows must split evenly over lanes and blocks, and their sums over the lanes");
  const int lane = threadIdx.x % 32, row_lane = lane % kLanes, group = lane / kLanes;
  const int hv = blockIdx.x / kBlocks;
  const int hq = static_cast<int>(static_cast<uint64_t>(hv) * x.over_ratio >> 32);
  const int row = blockIdx.x % kBlocks * (kRowsWarp * kWarps) + threadIdx.x / 32 * kRowsWarp;  // the warp's first
  const int64_t b = blockIdx.y;
  const int64_t from = x.read == nullptr ? b : slot(x.read, x.wide, b);
  const int64_t head = b * x.heads_v + hv;
  if (from < 0) {
    if (lane < kRowsWarp) {
      x.output[head * kDim + row + lane] = __float2bfloat16_rn(0.0f);
    }
    return;
  }

  const int64_t at = (static_cast<int64_t>(hv) * kDim + row + group) * kDim + row_lane * kPer;
  uint4 s[kRowsEach][kVectors] = {};
  if (x.state != nullptr) {
    const State* p = static_cast<const State*>(x.state) + from * x.state_stride + at;
#pragma unroll
    for (int i = 0; i < kRowsEach * kVectors; ++i) {
      s[i / kVectors][i % kVectors] = load16(p + i / kVectors * kGroups * kDim + i % kVectors * kLanes * kPer);
    }
  }
  uint32_t k[kVectors][kWords], q[kVectors][kWords];
  const int64_t vector = (b * x.heads_qk + hq) * kDim + row_lane * kPer;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if constexpr (kWide) {
      const uint2 kk = load8(x.k + vector + i * kLanes * kPer), qq = load8(x.q + vector + i * kLanes * kPer);
      k[i][0] = kk.x, k[i][1] = kk.y, q[i][0] = qq.x, q[i][1] = qq.y;
    } else {
      const uint4 kk = load16(x.k + vector + i * kLanes * kPer), qq = load16(x.q + vector + i * kLanes * kPer);
      k[i][0] = kk.x, k[i][1] = kk.y, k[i][2] = kk.z, k[i][3] = kk.w;
      q[i][0] = qq.x, q[i][1] = qq.y, q[i][2] = qq.z, q[i][3] = qq.w;
    }
  }
  // The sums of a lane's rows are dealt out below, bit by bit of row_lane from the top: this lane ends with row `mine`.
  int mine = 0;
#pragma unroll
  for (int rows = kRowsEach, bit = kLanes / 2; rows > 1; rows /= 2, bit /= 2) {
    mine += row_lane & bit ? rows / 2 : 0;
  }
  const int64_t value = head * kDim + row + mine * kGroups + group;
  const float target = __bfloat162float(x.v[value]);
  const Gates gate = gates(x.a_log[hv], __bfloat162float(x.a[head]), x.dt_bias[hv], __bfloat162float(x.b[head]));

  // Elements 2w and 2w + 1 of a vector.
  const auto pair = [](const uint4& v, int w) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    return kWide ? float2{__uint_as_float(words[2 * w % 4]), __uint_as_float(words[(2 * w + 1) % 4])}
                 : float2{low(words[w]), high(words[w])};
  };
  float sk[kRowsEach] = {}, sq[kRowsEach] = {}, kq = 0.0f, kk = 0.0f, qq = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const float k0 = low(k[i][w]), k1 = high(k[i][w]), q0 = low(q[i][w]), q1 = high(q[i][w]);
      kq = fmaf(k1, q1, fmaf(k0, q0, kq));
      kk = fmaf(k1, k1, fmaf(k0, k0, kk));
      qq = fmaf(q1, q1, fmaf(q0, q0, qq));
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r) {
        const float2 e = pair(s[r][i], w);
        sk[r] = fmaf(e.y, k1, fmaf(e.x, k0, sk[r]));
        sq[r] = fmaf(e.y, q1, fmaf(e.x, q0, sq[r]));
      }
    }
  }
#pragma unroll
  for (int offset = kLanes / 2, rows = kRowsEach; offset > 0; offset /= 2) {
    if (rows > 1) {
      rows /= 2;
      const bool upper = row_lane & offset;
#pragma unroll
      for (int r = 0; r < kRowsEach / 2; ++r) {
        if (r < rows) {
          const float sk_given = upper ? sk[r] : sk[r + rows], sq_given = upper ? sq[r] : sq[r + rows];
          sk[r] = (upper ? sk[r + rows] : sk[r]) + __shfl_xor_sync(kAll, sk_given, offset);
          sq[r] = (upper ? sq[r + rows] : sq[r]) + __shfl_xor_sync(kAll, sq_given, offset);
        }
      }
    } else {
      sk[0] += __shfl_xor_sync(kAll, sk[0], offset);
      sq[0] += __shfl_xor_sync(kAll, sq[0], offset);
    }
    kq += __shfl_xor_sync(kAll, kq, offset);
    kk += __shfl_xor_sync(kAll, kk, offset);
    qq += __shfl_xor_sync(kAll, qq, offset);
  }
  const float k_factor = x.l2norm ? rsqrtf(kk + 1e-6f) : 1.0f, q_factor = x.scale * (x.l2norm ? rsqrtf(qq + 1e-6f) : 1.0f);
  const float delta = k_factor * gate.beta * fmaf(-gate.decay * k_factor, sk[0], target);
  constexpr int kLanesPerSum = kLanes / kRowsEach;  // lanes that ended with the same row
  if (row_lane % kLanesPerSum == 0) {
    x.output[value] = __float2bfloat16_rn(q_factor * fmaf(delta, kq, gate.decay * sq[0]));
  }
  if (x.new_state == nullptr) {
    return;
  }
  const int64_t to = x.write == nullptr ? from : slot(x.write, x.write_wide, b);
  if (to < 0) {
    return;
  }
  State* p = static_cast<State*>(x.new_state) + to * x.new_state_stride + at;
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    const float delta_r = kRowsEach > 1 ? __shfl_sync(kAll, delta, r * kLanesPerSum, kLanes) : delta;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint32_t next[4];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 e = pair(s[r][i], w);
        const float e0 = fmaf(delta_r, low(k[i][w]), gate.decay * e.x), e1 = fmaf(delta_r, high(k[i][w]), gate.decay * e.y);
        if constexpr (kWide) {
          next[2 * w] = __float_as_uint(e0), next[2 * w + 1] = __float_as_uint(e1);
        } else {
          next[w] = pack(e0, e1);
        }
      }
      *reinterpret_cast<uint4*>(p + r * kGroups * kDim + i * kLanes * kPer) = {next[0], next[1], next[2], next[3]};
    }
  }
}

template <typename State, int kLanes, int kRowsEach, int kWarps>
void launch_one(const Arguments& x, cudaStream_t stream) {
  constexpr int kBlocks = kDim / (32 / kLanes * kRowsEach * kWarps);
  one_token_kernel<State, kLanes, kRowsEach, kWarps><<<dim3(x.heads_v * kBlocks, x.batch), kWarps * 32, 0, stream>>>(x);
}

// Which shape serves how many heads of the whole batch: lanes a row, rows a lane, warps.
struct Choice {
  int64_t from;
  void (*launch)(const Arguments&, cudaStream_t);
};

inline constexpr Choice kOneFloat[] = {
    {1, launch_one<float, 32, 2, 8>},
    {128, launch_one<float, 32, 4, 4>},
    {256, launch_one<float, 16, 8, 2>},
};
inline constexpr Choice kOneBF16[] = {
    {1, launch_one<__nv_bfloat16, 16, 2, 4>},
    {64, launch_one<__nv_bfloat16, 16, 4, 4>},
    {4096, launch_one<__nv_bfloat16, 16, 8, 1>},
};

// Starts the kernel that serves the call.
template <typename State, bool kVLast>
void launch(const Arguments& x, cudaStream_t stream) {
  if (kVLast || x.tokens > 1 || x.token_states != nullptr) {
    launch_tiles<State, kVLast>(x, stream);
    return;
  }
  const auto pick = [&](const auto& table) {
    const Choice* choice = table;
    for (const Choice& c : table) {
      choice = c.from <= static_cast<int64_t>(x.batch) * x.heads_v ? &c : choice;
    }
    choice->launch(x, stream);
  };
  if constexpr (sizeof(State) == 4) {
    pick(kOneFloat);
  } else {
    pick(kOneBF16);
  }
}

}  // namespace gdn
