// The arguments of a call, sizes, and the limits of the float16 path.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace gdn {

constexpr int kHeadsQK = 4;
constexpr int kHeadsV = 8;
constexpr int kDim = 128;     // head size: K and V
constexpr int kChunk = 32;    // tokens
constexpr int kRanked = 512;  // up to so many sequences are assigned to blocks longest first; more are taken in order

constexpr int64_t kMaxSequences = (int64_t{1} << 31) / (kHeadsV * kDim / 16) - 1;  // items are counted in 31 bits

// Above these limits a chunk leaves the float16 path: |k|^2 beta and |k|^2 bound the entries of T, and kMaxRhs times
// their sum bounds U. Above kMaxRound a tile's U and S are not rounded to float16, because the tolerance of 0.01 does
// not grow with their values.
constexpr float kMaxBetaKK = 2.0f, kMaxKK = 4.0f, kMaxQ = 32.0f, kMaxRhs = 64.0f, kMaxRound = 5.0f;

// Device pointers and scalars of a call.
struct Arguments {
  const __nv_bfloat16* q;     // (T, 4, 128)
  const __nv_bfloat16* k;     // (T, 4, 128)
  const __nv_bfloat16* v;     // (T, 8, 128)
  const float* state;         // (N, 8, 128, 128); nullptr means zeros
  const float* a_log;         // (8)
  const __nv_bfloat16* a;     // (T, 8)
  const float* dt_bias;       // (8)
  const __nv_bfloat16* b;     // (T, 8)
  const int64_t* cu_seqlens;  // (N + 1), from 0 to T, never falling
  float scale;
  __nv_bfloat16* output;  // (T, 8, 128)
  float* new_state;       // (N, 8, 128, 128)
  int64_t tokens, sequences;
};

// The work of a block: rows of one head of one sequence.
struct Item {
  int64_t sequence, begin;      // begin: its first token
  int tokens, chunks, hv, row;  // hv: the value head; row: the first of the block's rows
};

}  // namespace gdn
