// The core of the GDN prefill kernel: one launch in which the warps of a block have roles. docs/performance.md tells the way here.
//
// A sequence is cut into chunks of 32 tokens. With S the state before a chunk, G the running sum of the chunk's log decays,
// rows i and j of the chunk, and everything below for one value head:
//
//   A[i][j] = beta_i exp(G_i - G_j) (k_i . k_j)  for i > j, else 0        T = (I + A)^-1
//   P[i][j] =        exp(G_i - G_j) (q_i . k_j)  for i >= j, else 0
//   RHS_i   = beta_i (v_i - exp(G_i) S k_i)                               U = T RHS
//   output  = scale (exp(G_i) S q_i + P U)                                S' = exp(G_31) S + sum_i exp(G_31 - G_i) u_i k_i^T
//
// Rows of S are independent, so a block owns 16 * kTiles of one head's 128, as long as the sequence lasts. Its warps:
//
//   chain     one for each 16 rows: S in 64 float32 registers a lane, as accumulators of mma.m16n8k16; computes U and S'
//   output    for one or two chain warps each: reads their S and U as operands, in the same layout, and computes the output;
//             where there are none (merged shapes), chain warps do, of one or two tiles each: more rows a second, longer chunks
//   load      brings k, q (to float16) and v into shared memory, a chunk ahead in registers
//   prepare   in turn, a chunk each: the gates, A and T, then P. The diagonal 8 x 8 blocks of T in float32 by forward
//             substitution, the others by products
//
// They meet at mbarriers, in a ring of kStages chunks.
// Operands are float16 and sums float32. Where values are large U is refined, in operands of two parts, by the chain warp. A chunk
// that does not fit float16 (long keys, large queries, very large values or states) it walks token by token in float32. So results are
// right there too, only slower.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace gdn {

constexpr int kHeadsQK = 4;
constexpr int kHeadsV = 8;
constexpr int kDim = 128;    // head size: K and V
constexpr int kChunk = 32;   // tokens
constexpr int kPitch = 40;   // halves in a row of T and P: eight rows of 80 bytes start in different banks
constexpr int kRanked = 512;  // sequences that are taken longest first; more are taken as they come

constexpr int64_t kMaxSequences = (int64_t{1} << 31) / (kHeadsV * kDim / 16) - 1;  // items are counted in 31 bits

// Above these the float16 path is left: |k|^2 beta and |k|^2 bound the entries of T, kMaxRhs times their sum bounds U. Above kMaxRound
// a tile's U and S are not rounded to float16: errors are allowed of 0.01, whatever the values.
constexpr float kMaxBetaKK = 2.0f, kMaxKK = 4.0f, kMaxQ = 32.0f, kMaxRhs = 64.0f, kMaxRound = 5.0f;

template <int kTiles_, int kOutputs_, int kLoaders_, int kPreparers_, int kStages_, int kPerChain_ = 1, int kLeftOut_ = kTiles_ == 1>
struct Shape {
  static constexpr int kTiles = kTiles_;          // of 16 rows
  static constexpr int kPerChain = kPerChain_;    // tiles of a chain warp
  static constexpr int kChains = kTiles / kPerChain;
  static constexpr int kOutputs = kOutputs_;      // output warps, each for kTiles / kOutputs tiles; none: chain warps compute outputs too
  static constexpr int kLoaders = kLoaders_;      // warps
  static constexpr int kPreparers = kPreparers_;  // warps, in turn
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksPerHead = kDim / (16 * kTiles);
  // First place of each role. Beside a lone chain warp, warp 4 is left out, or 4 and 8 (they end at once): few share the chain's
  // scheduler and instruction cache, or none. A warp's place is its number, with two left out that of those in use.
  static constexpr int kLeftOut = kLeftOut_;
  static constexpr bool kMerged = kOutputs == 0;
  static constexpr int kPrepare = kChains + kOutputs;
  static constexpr int kLoad = kPrepare + kPreparers + (kLeftOut == 1);
  static constexpr int kWarps = kLoad + kLoaders + (kLeftOut == 2 ? 2 : 0);
  static_assert(kLeftOut <= 2 && (kLeftOut == 0 || kWarps > 4 * kLeftOut), "warps that are left out come before the last");
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4 || kTiles == 8, "rows of a block divide a head, and swizzles are made for these");
  static_assert(kTiles % kPerChain == 0 && kTiles % (kMerged ? 1 : kOutputs) == 0, "tiles of a warp");
  static_assert(kMerged ? kPerChain <= 2 : kPerChain == 1, "separate chain warps have one tile");
  static_assert(kPreparers <= kStages, "a barrier's parity tells two uses of a stage apart, not three");
  static_assert(kLoaders == 2 || kLoaders == 4, "loaders share the 512 pieces of 16 bytes evenly");
  // With 8 warps, so 255 registers a lane, the chain loads all operands of a product before it; with 12 it is a step ahead.
  static constexpr int kAhead = kWarps <= 8 ? 4 : 1;
  static_assert(kWarps <= 12, "168 registers a lane");

  // Shared memory, in bytes. A stage holds a chunk:
  //   k, q    rows of 256: unit u of 16 bytes of a token lies at u ^ token % 8
  //   v       units of 16 bytes, swizzled by token; bfloat16 as given
  //   t, p    rows of kPitch halves
  //   slots   for each tile the operands that the chain hands to the output: of S (k16 step, lane), then of U
  //   gates   32 float32 each: G / log(2), beta, exp(G), exp(G_31 - G)
  //   flags   words: 4 of the loaders (a value is too large), then 1: the chunk does not fit float16, then for each tile: the
  //           chain took the slow way
  static constexpr uint32_t kK = 0, kQ = 8192, kV = 16384, kT = kV + 1024 * kTiles, kP = kT + kChunk * kPitch * 2,
                            kSlots = kP + kChunk * kPitch * 2, kSlotBytes = 5120, kHandOvers = kMerged ? 0 : kTiles,
                            kG2 = kSlots + kSlotBytes * kHandOvers,
                            kBeta = kG2 + 128, kDecay = kG2 + 256, kRest = kG2 + 384, kLarge = kG2 + 512,
                            kSlow = kLarge + 16, kTileSlow = kLarge + 32, kStageBytes = (kLarge + 64 + 127) / 128 * 128;
  // Behind the stages: columns of the diagonal blocks of A, for each preparer; outputs on their way, in rows of 48 bytes;
  // barriers; ranks.
  static constexpr uint32_t kScratchBytes = 4 * 400, kScratch = kStages * kStageBytes,
                            kOut = kScratch + kPreparers * kScratchBytes, kBarriers = kOut + kTiles * kChunk * 48,
                            kLoaded = kBarriers, kInverted = kLoaded + 8 * kStages, kScored = kInverted + 8 * kStages,
                            kEmpty = kScored + 8 * kStages, kSFull = kEmpty + 8 * kStages,
                            kUFull = kSFull + 8 * kStages * kHandOvers, kLengths = kUFull + 8 * kStages * kHandOvers,
                            kOrder = kLengths + 4 * kRanked, kOwn = kOrder + 2 * kRanked, kBytes = kOwn + 2 * kRanked + 16;
  static_assert(kBytes <= 227 * 1024, "shared memory of a block");
};

// Device pointers, and what the kernel computes with them.
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

// ---- instructions ----

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Shared memory is addressed by 32-bit numbers, and every access is volatile: all stay in the order in which they are written.
__device__ __forceinline__ float load_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
  return x;
}
__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}
__device__ __forceinline__ float2 load_float2(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}
__device__ __forceinline__ void load_float4(float (&x)[4], uint32_t address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(address));
}
__device__ __forceinline__ void load_words(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address));
}
__device__ __forceinline__ void store_float(uint32_t address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ void store_word(uint32_t address, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ void store_half(uint32_t address, float x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(__half_as_ushort(__float2half_rn(x))) : "memory");
}
__device__ __forceinline__ void store_words(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// d += a b: a (16 x 16) row-major, b (16 x 8) column-major, float16; d (16 x 8) float32. Volatile: independent products stay
// in turn, as they are written, where the compiler would chain those of one sum.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with a (16 x 8) and b (8 x 8).
__device__ __forceinline__ void mma_k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(b));
}

// Four 8 x 8 matrices of 16-bit elements, of which each lane gives the address of a row. Volatile: it stays behind the
// barrier that it follows.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ __forceinline__ void store_transposed(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

__device__ __forceinline__ uint32_t transpose(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

__device__ __forceinline__ float2 load_once(const float* p) {
  float2 r;
  asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "l"(p));
  return r;
}

// Volatile, so that it is started where it stands.
__device__ __forceinline__ float load_global(const float* p) {
  float r;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(r) : "l"(p));
  return r;
}
__device__ __forceinline__ uint16_t load_global(const __nv_bfloat16* p) {
  uint16_t r;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p));
  return r;
}
__device__ __forceinline__ int64_t load_long(const int64_t* p) {
  int64_t r;
  asm volatile("ld.global.nc.s64 %0, [%1];" : "=l"(r) : "l"(p));
  return r;
}

__device__ __forceinline__ uint4 load_vector(const void* p) {
  uint4 r;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}

// As four stores, which nvcc makes of an assignment at times, it would take four times the L1's cycles.
__device__ __forceinline__ void store_vector(void* p, const uint32_t (&x)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// Lanes of a warp that arrive at a barrier. With one, the others' accesses come before it by __syncwarp, which the racecheck of
// compute-sanitizer does not follow: -DGDN_RACECHECK lets each lane arrive for itself.
#ifdef GDN_RACECHECK
constexpr int kArriving = 32;
#else
constexpr int kArriving = 1;
#endif

// warps: how many arrive in a phase.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int warps) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(warps * kArriving) : "memory");
}

// One arrival for the calling warp, behind everything that its lanes did to shared memory.
__device__ __forceinline__ void arrive(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane < kArriving) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  }
}

// Whether the phase of that parity is complete. A new barrier counts as one whose phase of parity 1 is.
__device__ __forceinline__ uint32_t complete(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done;
}

// The hint, in ns, is how long the warp may sleep before it asks again.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity), "r"(10000000)
                 : "memory");
  } while (!done);
}

__device__ __forceinline__ uint32_t pack(float x, float y) {
  const __half2 h = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&h);
}

__device__ __forceinline__ float low(uint32_t bf16x2) { return __uint_as_float(bf16x2 << 16); }
__device__ __forceinline__ float high(uint32_t bf16x2) { return __uint_as_float(bf16x2 & 0xffff0000u); }

// A tile is 16 rows of a state, its 128 columns in fragments of mma.sync's result. from and to are the lane's first two
// elements of it.
__device__ __forceinline__ void load_tile(float (&s)[16][4], const float* from) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 lo = load_once(from + 8 * i), hi = load_once(from + 8 * kDim + 8 * i);
    s[i][0] = lo.x, s[i][1] = lo.y, s[i][2] = hi.x, s[i][3] = hi.y;
  }
}

__device__ __forceinline__ void store_tile(float* to, const float (&s)[16][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    *reinterpret_cast<float2*>(to + 8 * i) = make_float2(s[i][0], s[i][1]);
    *reinterpret_cast<float2*>(to + 8 * kDim + 8 * i) = make_float2(s[i][2], s[i][3]);
  }
}

// pack_tile gives columns 32 * kk to 32 * kk + 31 of a tile as two operands of 16 by 16.
__device__ __forceinline__ void pack_tile(uint32_t (&so)[2][4], const float (&s)[16][4], int kk) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = 4 * kk + 2 * h;
    so[h][0] = pack(s[i][0], s[i][1]);
    so[h][1] = pack(s[i][2], s[i][3]);
    so[h][2] = pack(s[i + 1][0], s[i + 1][1]);
    so[h][3] = pack(s[i + 1][2], s[i + 1][3]);
  }
}

// Loads the 32 rows of T or P, by blocks: rows 0 to 15 of columns 0 to 15, then rows 16 to 23 and 24 to 31 of all columns. square and rows are
// where this lane's row starts in each kind.
__device__ __forceinline__ void load_lower(uint32_t (&b)[3][4], uint32_t square, uint32_t rows) {
  load_matrices(b[0], square);
  load_matrices(b[1], rows + 16 * kPitch * 2);
  load_matrices(b[2], rows + 24 * kPitch * 2);
}

// y += a times the transpose of what load_lower has loaded, for 16 rows and 32 tokens.
__device__ __forceinline__ void multiply_lower(float (&y)[4][4], const uint32_t (&a)[2][4], const uint32_t (&b)[3][4]) {
  mma(y[0], a[0], b[0][0], b[0][1]);
  mma(y[1], a[0], b[0][2], b[0][3]);
  mma(y[2], a[0], b[1][0], b[1][1]);
  mma(y[3], a[0], b[2][0], b[2][1]);
  mma(y[2], a[1], b[1][2], b[1][3]);
  mma(y[3], a[1], b[2][2], b[2][3]);
}

// The larger of each half's magnitudes; NaN if one is.
__device__ __forceinline__ uint32_t max_magnitude(uint32_t x, uint32_t y) {
  const __half2 m = __hmax2_nan(__habs2(*reinterpret_cast<const __half2*>(&x)), __habs2(*reinterpret_cast<const __half2*>(&y)));
  return *reinterpret_cast<const uint32_t*>(&m);
}

__device__ __forceinline__ bool within(uint32_t magnitudes, float limit) {
  const float2 m = __half22float2(*reinterpret_cast<const __half2*>(&magnitudes));
  return m.x <= limit && m.y <= limit;
}

// log2 of the decay, and the update gate, of one token and head. See solution/cuda/decode.cuh for the two forms of softplus.
__device__ __forceinline__ float log2_decay(float a_log, float a, float dt_bias) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float x = (a + dt_bias) * kLog2E, e = exp2_approx(x);
  constexpr float kLog2OnePlus[] = {1.44269502f, -0.721339047f, 0.480616659f, -0.357095629f,
                                    0.266183972f, -0.164029971f, 0.0557941049f};
  float small = kLog2OnePlus[6];
#pragma unroll
  for (int i = 5; i >= 0; --i) {
    small = fmaf(small, e, kLog2OnePlus[i]);
  }
  const float softplus = e < 0.5f ? small * e : x > 20.0f * kLog2E ? x : log2_approx(1.0f + e);
  return -exp2_approx(a_log * kLog2E) * softplus;
}

__device__ __forceinline__ float sigmoid(float x) { return reciprocal_approx(1.0f + exp2_approx(-1.4426950408889634f * x)); }

// Position in a ring.
template <int kSize>
struct Ring {
  int at = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++at == kSize) {
      at = 0;
      parity ^= 1;
    }
  }
};

template <int kValue_>
struct Number {
  static constexpr int kValue = kValue_;
};

// What a block works on: rows of one head of one sequence.
struct Item {
  int64_t sequence, begin;
  int tokens, chunks, hv, row;  // row: first of the block's rows
};

template <typename S>
__device__ __forceinline__ int unit_of_v(int token, int unit) {  // of 16 bytes
  constexpr int kUnits = 2 * S::kTiles;
  return token * kUnits + (unit ^ (kUnits > 8 ? token & 7 : (token * kUnits / 8) & (kUnits - 1)));
}


// The thread's number, asked for anew: what is computed from it is computed here, not kept in registers from the kernel's start.
__device__ __forceinline__ int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// Chunk c of the item, token by token, from memory, in float32: outputs, and S. state[j] has columns 8j + 2t and 8j + 2t + 1 of rows g
// and g + 8 of the tile.
__device__ __forceinline__ void walk(const Arguments& x, const Item& item, int c, int tile, float4 (&state)[16]) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = thread_again() % 32, g = lane / 4, t = lane % 4;
  const int last = min(kChunk, item.tokens - c * kChunk);
  const float a_log = x.a_log[item.hv], dt_bias = x.dt_bias[item.hv];
#pragma unroll 1
  for (int i = 0; i < last; ++i) {
    const int64_t token = item.begin + c * kChunk + i;
    const uint32_t* k = reinterpret_cast<const uint32_t*>(x.k + (token * kHeadsQK + item.hv / 2) * kDim + 2 * t);
    const uint32_t* q = reinterpret_cast<const uint32_t*>(x.q + (token * kHeadsQK + item.hv / 2) * kDim + 2 * t);
    const float decay = exp2_approx(log2_decay(a_log, __bfloat162float(x.a[token * kHeadsV + item.hv]), dt_bias));
    const float beta = sigmoid(__bfloat162float(x.b[token * kHeadsV + item.hv]));
    const int64_t at = (token * kHeadsV + item.hv) * kDim + item.row + tile * 16 + g;
    float d0 = 0.0f, d1 = 0.0f, o0 = 0.0f, o1 = 0.0f;
#pragma unroll 4
    for (int j = 0; j < 16; ++j) {
      const uint32_t w = k[4 * j];
      const float4 s = state[j];
      d0 += s.x * low(w) + s.y * high(w);
      d1 += s.z * low(w) + s.w * high(w);
    }
    d0 += __shfl_xor_sync(kAll, d0, 1), d1 += __shfl_xor_sync(kAll, d1, 1);
    d0 += __shfl_xor_sync(kAll, d0, 2), d1 += __shfl_xor_sync(kAll, d1, 2);
    d0 = beta * (__bfloat162float(x.v[at]) - decay * d0);
    d1 = beta * (__bfloat162float(x.v[at + 8]) - decay * d1);
#pragma unroll 4
    for (int j = 0; j < 16; ++j) {
      const uint32_t w = k[4 * j], y = q[4 * j];
      float4 s = state[j];
      s.x = decay * s.x + d0 * low(w), s.y = decay * s.y + d0 * high(w);
      s.z = decay * s.z + d1 * low(w), s.w = decay * s.w + d1 * high(w);
      state[j] = s;
      o0 += s.x * low(y) + s.y * high(y);
      o1 += s.z * low(y) + s.w * high(y);
    }
    o0 += __shfl_xor_sync(kAll, o0, 1), o1 += __shfl_xor_sync(kAll, o1, 1);
    o0 += __shfl_xor_sync(kAll, o0, 2), o1 += __shfl_xor_sync(kAll, o1, 2);
    if (t == 0) {
      x.output[at] = __float2bfloat16_rn(x.scale * o0);
      x.output[at + 8] = __float2bfloat16_rn(x.scale * o1);
    }
  }
}

// x and y in two parts, of which hi is pack(x, y).
__device__ __forceinline__ void split(uint32_t& hi, uint32_t& lo, float x, float y) {
  hi = pack(x, y);
  const float2 h = __half22float2(*reinterpret_cast<const __half2*>(&hi));
  lo = pack(x - h.x, y - h.y);
}

// A chunk of a tile in nearly float32, of the stage st: outputs, and S. Operands that are rounded elsewhere are of two parts here; what
// rounding T has left of U is taken out by a step of iterative refinement, U + T (RHS - (I + A) U), with A made anew. state as for walk.
// output: of the chunk's first token and the tile's first row; left: tokens from there on.
template <typename S>
__device__ __forceinline__ void refine(float4 (&state)[16], uint32_t st, int tile, __nv_bfloat16* output, int left, float scale) {
  const int lane = thread_again() % 32, g = lane >> 2, t = lane & 3, r8 = lane & 7, mi = lane >> 3;
  const uint32_t as_rows = ((mi & 1) * 8 + r8) * 256 + (((mi >> 1) ^ r8) << 4);
  float u[4][4] = {}, e[4][4];
  uint32_t hi[2][4], lo[2][4];  // of U
  // e = S x for the 32 rows of k or q.
  const auto multiply = [&](uint32_t x) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      e[n][0] = e[n][1] = e[n][2] = e[n][3] = 0.0f;
    }
#pragma unroll 4
    for (int kk = 0; kk < 8; ++kk) {  // 16 columns
      uint32_t a_hi[4], a_lo[4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 part = state[2 * kk + n];
        split(a_hi[2 * n], a_lo[2 * n], part.x, part.y);
        split(a_hi[2 * n + 1], a_lo[2 * n + 1], part.z, part.w);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t b[4];
        load_matrices(b, st + x + (as_rows ^ (kk << 5)) + j * 16 * 256);
        mma(e[2 * j], a_hi, b[0], b[2]);
        mma(e[2 * j + 1], a_hi, b[1], b[3]);
        mma(e[2 * j], a_lo, b[0], b[2]);
        mma(e[2 * j + 1], a_lo, b[1], b[3]);
      }
    }
  };
  // hi and lo, each token's times its weight.
  const auto split_tokens = [&](const float2 (&weight)[4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        split(hi[n / 2][n % 2 * 2 + h], lo[n / 2][n % 2 * 2 + h], weight[n].x * u[n][2 * h], weight[n].y * u[n][2 * h + 1]);
      }
    }
  };
  const float2 ones[4] = {{1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}};
  // u += T e
  const auto solve = [&] {
    const uint32_t square = st + S::kT + ((mi >> 1) * 8 + r8) * kPitch * 2 + (mi & 1) * 16, rows = st + S::kT + r8 * kPitch * 2 + mi * 16;
    uint32_t a[2][4], b[3][4];
    load_lower(b, square, rows);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      a[n / 2][n % 2 * 2] = pack(e[n][0], e[n][1]);
      a[n / 2][n % 2 * 2 + 1] = pack(e[n][2], e[n][3]);
    }
    multiply_lower(u, a, b);
  };
  // e += P U, or -A U.
  const auto add_products = [&](bool of_q) {
#pragma unroll
    for (int block = 0; block < 3; ++block) {  // of 16 x 16
      const int row = (block + 1) / 2, column = block / 2;
      float a[2][4] = {};
#pragma unroll 4
      for (int i = 0; i < 8; ++i) {
        uint32_t y[4], k[4];
        load_matrices(y, st + (of_q ? S::kQ : S::kK) + (as_rows ^ (i << 5)) + row * 16 * 256);
        load_matrices(k, st + S::kK + (as_rows ^ (i << 5)) + column * 16 * 256);
        mma(a[0], y, k[0], k[2]);
        mma(a[1], y, k[1], k[3]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // 8 rows
        const int i = 16 * row + 8 * h + g, most = of_q ? i : i - 1;
        const float g2 = load_float(st + S::kG2 + 4 * i), factor = of_q ? 1.0f : -load_float(st + S::kBeta + 4 * i);
        uint32_t a_hi[2], a_lo[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int j = 16 * column + 8 * n + 2 * t;
          const float2 from = load_float2(st + S::kG2 + 4 * j);
          split(a_hi[n], a_lo[n], j <= most ? factor * exp2_approx(g2 - from.x) * a[n][2 * h] : 0.0f,
                j + 1 <= most ? factor * exp2_approx(g2 - from.y) * a[n][2 * h + 1] : 0.0f);
        }
        mma(e[2 * row + h], hi[column], a_hi[0], a_hi[1]);
        mma(e[2 * row + h], hi[column], a_lo[0], a_lo[1]);
        mma(e[2 * row + h], lo[column], a_hi[0], a_hi[1]);
      }
    }
  };

#pragma unroll 1
  for (int of_q = 0; of_q < 2; ++of_q) {  // U, then outputs
    multiply(of_q ? S::kQ : S::kK);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t v[4];  // of 16 tokens
      load_transposed(v, st + S::kV + unit_of_v<S>(n / 2 * 16 + (mi >> 1) * 8 + r8, 2 * tile + (mi & 1)) * 16);
      const float2 beta = load_float2(st + S::kBeta + n * 32 + 8 * t), decay = load_float2(st + S::kDecay + n * 32 + 8 * t);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t w = v[n % 2 * 2 + h];
        e[n][2 * h] *= decay.x, e[n][2 * h + 1] *= decay.y;
        if (!of_q) {  // the right-hand side
          e[n][2 * h] = beta.x * (low(w) - e[n][2 * h]), e[n][2 * h + 1] = beta.y * (high(w) - e[n][2 * h + 1]);
        }
      }
    }
    if (!of_q) {
      solve();
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        e[n][0] -= u[n][0], e[n][1] -= u[n][1], e[n][2] -= u[n][2], e[n][3] -= u[n][3];
      }
    }
    split_tokens(ones);
    add_products(of_q);
    if (!of_q) {
      solve();
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int token = 8 * n + 2 * t + m % 2;
      if (token < left) {
        output[token * kHeadsV * kDim + g + m / 2 * 8] = __float2bfloat16_rn(scale * e[n][m]);
      }
    }
  }

  float2 rest[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    rest[n] = load_float2(st + S::kRest + n * 32 + 8 * t);
  }
  split_tokens(rest);
  const float all = load_float(st + S::kDecay + 4 * (kChunk - 1));
#pragma unroll 4
  for (int i = 0; i < 8; ++i) {
    float s[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 part = state[2 * i + n];
      s[n][0] = all * part.x, s[n][1] = all * part.y, s[n][2] = all * part.z, s[n][3] = all * part.w;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t k[4];
      load_transposed(k, st + S::kK + (as_rows ^ (i << 5)) + j * 16 * 256);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        mma(s[n], hi[j], k[2 * n], k[2 * n + 1]);
        mma(s[n], lo[j], k[2 * n], k[2 * n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      state[2 * i + n] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    }
  }
}

// The chunk with which `left` tokens of the item begin, where the float16 path does not do: refined, or walked where `large`. state is
// in memory: what this takes of registers would drive out what the usual way keeps there.
template <typename S>
__device__ __forceinline__ void repeat(const Arguments& x, Item item, int left, int tile, float4 (&state)[16], uint32_t st, bool large) {
  item.begin = load_long(x.cu_seqlens + item.sequence);
  item.tokens = static_cast<int>(load_long(x.cu_seqlens + item.sequence + 1) - item.begin);
  if (large) {
    walk(x, item, (item.tokens - left) / kChunk, tile, state);
  } else {
    refine<S>(state, st, tile, x.output + ((item.begin + item.tokens - left) * kHeadsV + item.hv) * kDim + item.row + tile * 16, left,
              x.scale);
  }
}

__device__ __forceinline__ void save(float4 (&state)[16], const float (&s)[16][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    state[i] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
  }
}

__device__ __forceinline__ void restore(float (&s)[16][4], const float4 (&state)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    s[i][0] = state[i].x, s[i][1] = state[i].y, s[i][2] = state[i].z, s[i][3] = state[i].w;
  }
}

// ---- the kernel ----

// The groups of blocks that sequences are dealt out to in a mixed launch, each of a block for each head and rows: `first` groups of
// one shape, then others of another. A group takes start + chunk * chunks + sequence * sequences.
struct Cost {
  int start, chunk, sequence;
};
struct Groups {
  int count, first;
  Cost a, b;
};

// The work of a block of shape S. kMany: a block has several items; sequences are dealt out to `count` groups, or in turn with none.
// block and group, in a mixed launch: the block's number among those of its shape, and its group's; else they are computed where they
// are used, since more is spilled otherwise.
template <typename S, bool kMany, bool kMixed>
__device__ __forceinline__ void run(const Arguments& x, const int count, const Groups& groups, const uint32_t block, const uint32_t group) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int kTiles = S::kTiles, kStages = S::kStages, kBlocks = S::kBlocksPerHead;
  // Loaders work in teams that take a chunk each in turn; with one team the loads of a chunk begin when those of the last are there.
  constexpr int kTeams = !kMany && kTiles <= 2 && S::kLoaders == 4 ? 2 : 1, kTeam = S::kLoaders / kTeams;
  constexpr unsigned kAll = 0xffffffffu;
  int thread_id = threadIdx.x;
  if (S::kMerged) {  // volatile, so that it is read once
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread_id));
  }
  const int lane = thread_id & 31, number = thread_id >> 5;
  const int warp = S::kLeftOut == 2 ? number - (number < 8 ? number / 4 : 2) : number;  // its place
  const int g = lane >> 2, t = lane & 3;   // row and column pair of an accumulator
  const int r8 = lane & 7, mi = lane >> 3;  // row and matrix that this lane addresses
  uint32_t base;  // of the shared memory; volatile, so that it is computed once
  asm volatile("{\n.reg .u64 a;\ncvta.to.shared.u64 a, %1;\ncvt.u32.u64 %0, a;\n}" : "=r"(base) : "l"(memory));

  // With few sequences a block has one item. With more (kMany), sequences are dealt out, longest first, to groups of blocks, one
  // for each head and rows: to the group that has least to do. With more than kRanked, in rounds, to and fro.
  Item item;
  const auto place_of = [&](int round) {
    if (kMany && count > 0) {
      item.hv = (kMixed ? block : blockIdx.x) % (kHeadsV * kBlocks) / kBlocks;
      item.row = (kMixed ? block : blockIdx.x) % kBlocks * 16 * kTiles;
      uint16_t own;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(own) : "r"(base + S::kOwn + 2 * round));
      item.sequence = own;
      return own != 0xffff;
    }
    const uint32_t i = !kMany ? blockIdx.x : round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const uint32_t place = i / (kHeadsV * kBlocks), rest = i % (kHeadsV * kBlocks);
    item.hv = rest / kBlocks;
    item.row = rest % kBlocks * 16 * kTiles;
    item.sequence = place;
    return place < x.sequences;
  };
  int64_t cu[2];
  const auto load_extent = [&] {
    cu[0] = load_long(x.cu_seqlens + item.sequence), cu[1] = load_long(x.cu_seqlens + item.sequence + 1);
  };
  const auto set_extent = [&] {
    item.begin = cu[0];
    item.tokens = static_cast<int>(cu[1] - cu[0]);
    item.chunks = (item.tokens + kChunk - 1) / kChunk;
  };
  // The item of a round; that of the first is there already. Rounds in which the block has none are skipped.
  const auto next_item = [&](int round) {
    if (round == 0) {
      return true;
    }
    if (!kMany || !place_of(round)) {
      return false;
    }
    load_extent();
    set_extent();
    return true;
  };
  const auto state_of = [&](int tile) {
    return ((static_cast<size_t>(item.sequence) * kHeadsV + item.hv) * kDim + item.row + tile * 16) * kDim;
  };

  if (kMany && count > 0) {  // longest first, ties by number
    const int n = static_cast<int>(x.sequences);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += S::kWarps * 32) {
      store_word(base + S::kLengths + 4 * i, static_cast<uint32_t>(x.cu_seqlens[i + 1] - x.cu_seqlens[i]));
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += S::kWarps * 32) {
      const uint32_t own = load_word(base + S::kLengths + 4 * i);
      int rank = 0;
#pragma unroll 4
      for (int j = 0; j < n; ++j) {
        const uint32_t other = load_word(base + S::kLengths + 4 * j);
        rank += other > own || (other == own && j < i);
      }
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(base + S::kOrder + 2 * rank), "h"(static_cast<uint16_t>(i)) : "memory");
    }
    __syncthreads();
    // Each to the group of blocks that has least to do; in a mixed launch to the one that will have done it first.
    if (warp == 0) {
      const Cost cost = kMixed ? (lane < groups.first ? groups.a : groups.b) : Cost{0, 1, 1};
      uint32_t load = lane < count ? cost.start * 32 + lane : ~0u;  // * 32 + group
      int own = 0;
#pragma unroll 1
      for (int from = 0; from < n; from += 32) {
        uint16_t sequence = 0;
        uint32_t chunks = 0;
        if (from + lane < n) {
          asm volatile("ld.shared.u16 %0, [%1];" : "=h"(sequence) : "r"(base + S::kOrder + 2 * (from + lane)));
          chunks = (load_word(base + S::kLengths + 4 * sequence) + kChunk - 1) / kChunk + !kMixed;
        }
#pragma unroll 1
        for (int i = 0; i < 32 && from + i < n; ++i) {
          uint32_t least;
          if (kMixed) {
            const uint32_t more = cost.chunk * __shfl_sync(kAll, chunks, i) + cost.sequence;
            const uint32_t then = lane < count ? load + more * 32 : ~0u;
            least = __reduce_min_sync(kAll, then);
            if (then == least) {
              load = then;
            }
          } else {
            least = __reduce_min_sync(kAll, load);
            const uint32_t more = __shfl_sync(kAll, chunks, i);
            if (load == least) {
              load += more * 32;
            }
          }
          if (least % 32 == (kMixed ? group : blockIdx.x / (kHeadsV * kBlocks))) {
            if (lane == i) {
              asm volatile("st.shared.u16 [%0], %1;" ::"r"(base + S::kOwn + 2 * own), "h"(sequence) : "memory");
            }
            ++own;
          }
        }
      }
      if (lane == 0) {
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(base + S::kOwn + 2 * own), "h"(static_cast<uint16_t>(0xffff)) : "memory");
      }
    }
    __syncthreads();
  }

  // Each role now starts the loads of its first chunk, then meets the others, who wait for the barriers to be initialised.
  if (!place_of(0) && kMixed) {  // a group of a mixed launch may have nothing to do; else a block has an item in the first round
    return;
  }
  load_extent();
  // A lone sequence is, but for its extent in cu_seqlens, known: what it needs is loaded before that is there.
  const bool guess = x.sequences == 1 && x.tokens > 0 && x.tokens < (1 << 30);
  const auto meet = [] {
    __syncwarp();
    // 1: roles call it apart. The first form is faster in merged shapes, the second in others; synccheck takes the second for
    // divergence.
    if (S::kMerged || kArriving > 1) {
      asm volatile("barrier.sync 1, %0;" ::"n"(S::kWarps * 32) : "memory");
    } else {
      asm volatile("bar.sync 1, %0;" ::"n"(S::kWarps * 32) : "memory");
    }
  };

  Ring<kStages> ring;
  // Where this lane's row of four 8 x 8 matrices starts, for the first 16 or 32 columns.
  const uint32_t as_rows = ((mi & 1) * 8 + r8) * 256 + (((mi >> 1) ^ r8) << 4);     // k16 of 16 tokens, as operand a
  const uint32_t as_columns32 = r8 * 256 + ((mi ^ r8) << 4);                        // k32 of 8 tokens, as operand b
  const uint32_t square = ((mi >> 1) * 8 + r8) * kPitch * 2 + (mi & 1) * 16;        // of T or P: 16 x 16 at the top left
  const uint32_t eight_rows = r8 * kPitch * 2 + mi * 16;                            // of T or P: 8 rows, all columns

  const auto initialise_barriers = [&] {
    // At addresses that are constants: others are initialised one at a time, 60 cycles each.
    const uint32_t constant = shared_address(memory);
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      barrier_init(constant + S::kLoaded + 8 * i, kTeam);
      barrier_init(constant + S::kInverted + 8 * i, 1);
      barrier_init(constant + S::kScored + 8 * i, 1);
      barrier_init(constant + S::kEmpty + 8 * i, S::kChains + S::kOutputs);
    }
#pragma unroll
    for (int i = 0; i < kStages * static_cast<int>(S::kHandOvers); ++i) {
      barrier_init(constant + S::kSFull + 8 * i, 1);
      barrier_init(constant + S::kUFull + 8 * i, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  };

  if (S::kLeftOut == 2 && (number == 4 || number == 8)) {
    meet();
    return;
  }

  if constexpr (S::kMerged) {
    if (warp < S::kChains) {
      // ---- chain and output ----
      constexpr int kOwn = S::kPerChain;
      const int first = warp * kOwn;
      float s[kOwn][16][4];
      const auto load_state = [&] {
#pragma unroll
        for (int m = 0; m < kOwn; ++m) {
          load_tile(s[m], x.state + state_of(first + m) + g * kDim + 2 * t);
        }
      };
      if (x.state != nullptr) {
        load_state();
      }
      meet();
      set_extent();
      for (int round = 0; next_item(round); ++round) {
        if (round > 0 && x.state != nullptr) {
          load_state();
        }
        if (x.state == nullptr || item.tokens <= 0) {
#pragma unroll
          for (int m = 0; m < kOwn; ++m) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
              s[m][i][0] = s[m][i][1] = s[m][i][2] = s[m][i][3] = 0.0f;
            }
          }
        }
        // Where this lane's first 16 bytes of outputs go.
        constexpr int kPieces = 2 * kOwn, kRows = 32 / kPieces;  // of a token; tokens of a store
        __nv_bfloat16* output = x.output + ((item.begin + lane / kPieces) * kHeadsV + item.hv) * kDim + item.row + first * 16 + lane % kPieces * 8;
#pragma unroll 1
        for (int left = item.tokens; left > 0; left -= kChunk, output += kChunk * kHeadsV * kDim, ring.next()) {
          const uint32_t st = base + ring.at * S::kStageBytes, bar = base + 8 * ring.at, parity = ring.parity;
          wait(bar + S::kInverted, parity);
          uint32_t kb[2][4], qb[2][4];
          const auto load_rows = [&](int step) {
            const int kk = step / 4, j = step % 4;
            load_matrices(kb[step % 2], st + S::kK + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
            load_matrices(qb[step % 2], st + S::kQ + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
          };
          load_rows(0);
          float r[kOwn][4][4] = {}, o[kOwn][4][4] = {};
#pragma unroll
          for (int kk = 0; kk < 4; ++kk) {
            uint32_t so[kOwn][2][4];
#pragma unroll
            for (int m = 0; m < kOwn; ++m) {
              pack_tile(so[m], s[m], kk);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const int step = 4 * kk + j;
              if (step + 1 < 16) {
                load_rows(step + 1);
              }
#pragma unroll
              for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int m = 0; m < kOwn; ++m) {
                  mma(r[m][j], so[m][h], kb[step % 2][2 * h], kb[step % 2][2 * h + 1]);
                  mma(o[m][j], so[m][h], qb[step % 2][2 * h], qb[step % 2][2 * h + 1]);
                }
              }
            }
          }
          uint32_t rhs[kOwn][2][4], v[kOwn][2][4], largest[kOwn], tb[3][4];
#pragma unroll
          for (int m = 0; m < kOwn; ++m) {
            largest[m] = 0;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              load_transposed(v[m][j], st + S::kV + unit_of_v<S>(16 * j + (mi >> 1) * 8 + r8, 2 * (first + m) + (mi & 1)) * 16);
            }
          }
          load_lower(tb, st + S::kT + square, st + S::kT + eight_rows);
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int j = n / 2, h = n % 2;
            const float2 beta = load_float2(st + S::kBeta + n * 32 + 8 * t), decay = load_float2(st + S::kDecay + n * 32 + 8 * t);
#pragma unroll
            for (int m = 0; m < kOwn; ++m) {
              const uint32_t v0 = v[m][j][2 * h], v1 = v[m][j][2 * h + 1];
              rhs[m][j][2 * h] = pack(beta.x * (low(v0) - decay.x * r[m][n][0]), beta.y * (high(v0) - decay.y * r[m][n][1]));
              rhs[m][j][2 * h + 1] = pack(beta.x * (low(v1) - decay.x * r[m][n][2]), beta.y * (high(v1) - decay.y * r[m][n][3]));
              o[m][n][0] *= decay.x, o[m][n][1] *= decay.y, o[m][n][2] *= decay.x, o[m][n][3] *= decay.y;
              largest[m] = max_magnitude(largest[m], max_magnitude(rhs[m][j][2 * h], rhs[m][j][2 * h + 1]));
            }
          }
          const uint32_t flagged = load_word(st + S::kSlow);
          const float all = load_float(st + S::kDecay + 4 * (kChunk - 1));
          float u[kOwn][4][4] = {};
#pragma unroll
          for (int m = 0; m < kOwn; ++m) {
            multiply_lower(u[m], rhs[m], tb);
          }
          bool plain[kOwn], all_plain = true;
#pragma unroll
          for (int m = 0; m < kOwn; ++m) {
            plain[m] = !__any_sync(kAll, !within(largest[m], kMaxRound) || flagged);
            all_plain &= plain[m];
          }
          wait(bar + S::kScored, parity);
          // One tile after the other only where one of them is not plain.
          const auto finish = [&](auto from, auto to) {
            constexpr int kFrom = decltype(from)::kValue, kTo = decltype(to)::kValue;
            uint32_t ud[kOwn][2][4];
            {
              uint32_t p[3][4], uo[kOwn][2][4];
              load_lower(p, st + S::kP + square, st + S::kP + eight_rows);
#pragma unroll
              for (int n = 0; n < 4; ++n) {
                const float2 rest = load_float2(st + S::kRest + n * 32 + 8 * t);
#pragma unroll
                for (int m = kFrom; m < kTo; ++m) {
                  uo[m][n / 2][n % 2 * 2] = pack(u[m][n][0], u[m][n][1]);
                  uo[m][n / 2][n % 2 * 2 + 1] = pack(u[m][n][2], u[m][n][3]);
                  ud[m][n / 2][n % 2 * 2] = pack(rest.x * u[m][n][0], rest.y * u[m][n][1]);
                  ud[m][n / 2][n % 2 * 2 + 1] = pack(rest.x * u[m][n][2], rest.y * u[m][n][3]);
                }
              }
#pragma unroll
              for (int m = kFrom; m < kTo; ++m) {
                multiply_lower(o[m], uo[m], p);
              }
            }
            uint32_t b[2][2][4];
            const auto load_columns = [&](int i) {
#pragma unroll
              for (int j = 0; j < 2; ++j) {
                load_transposed(b[i % 2][j], st + S::kK + (as_rows ^ (i << 5)) + j * 16 * 256);
              }
            };
            load_columns(0);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              if (i < 7) {
                load_columns(i + 1);
              }
#pragma unroll
              for (int m = kFrom; m < kTo; ++m) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                  s[m][2 * i][e] *= all, s[m][2 * i + 1][e] *= all;
                }
              }
#pragma unroll
              for (int j = 0; j < 2; ++j) {
#pragma unroll
                for (int m = kFrom; m < kTo; ++m) {
                  mma(s[m][2 * i], ud[m][j], b[i % 2][j][0], b[i % 2][j][1]);
                  mma(s[m][2 * i + 1], ud[m][j], b[i % 2][j][2], b[i % 2][j][3]);
                }
              }
            }
#pragma unroll
            for (int m = kFrom; m < kTo; ++m) {
              uint32_t w[4][2];
#pragma unroll
              for (int n = 0; n < 4; ++n) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                  const __nv_bfloat162 y = __floats2bfloat162_rn(x.scale * o[m][n][2 * h], x.scale * o[m][n][2 * h + 1]);
                  w[n][h] = *reinterpret_cast<const uint32_t*>(&y);
                }
              }
              // Rows of 16 bytes for each tile, two units; with two tiles, unit u of a token lies at u ^ token / 2 % 4.
              const uint32_t out = base + S::kOut + first * kChunk * 48, token = (mi >> 1) * 8 + r8;
              if (kOwn == 1) {
                store_transposed(out + token * 48 + (mi & 1) * 16, w[0][0], w[0][1], w[1][0], w[1][1]);
                store_transposed(out + (16 + token) * 48 + (mi & 1) * 16, w[2][0], w[2][1], w[3][0], w[3][1]);
              } else {
                const uint32_t unit = (2 * m + (mi & 1)) ^ (r8 >> 1);
                store_transposed(out + token * 64 + unit * 16, w[0][0], w[0][1], w[1][0], w[1][1]);
                store_transposed(out + (16 + token) * 64 + unit * 16, w[2][0], w[2][1], w[3][0], w[3][1]);
              }
            }
            __syncwarp();
            const uint32_t out = base + S::kOut + first * kChunk * 48;
#pragma unroll
            for (int i = 0; i < 32 / kRows; ++i) {
              const int token = lane / kPieces, piece = lane % kPieces;
              uint32_t y[4];
              load_words(y, out + (i * kRows + token) * (kOwn == 1 ? 48 : 64) + (kOwn == 1 ? piece : piece ^ (token >> 1)) * 16);
              if (i * kRows + token < left && (kFrom == 0 || piece >= 2) && (kTo == kOwn || piece < 2)) {
                store_vector(output + i * kRows * kHeadsV * kDim, y);
              }
            }
            __syncwarp();
          };
          if (all_plain) {
            finish(Number<0>(), Number<kOwn>());
          } else {
            if constexpr (kOwn == 2) {
              if (plain[0]) {
                finish(Number<0>(), Number<1>());
              } else if (plain[1]) {
                finish(Number<1>(), Number<2>());
              }
            }
#pragma unroll
            for (int m = 0; m < kOwn; ++m) {
              if (!plain[m]) {
                float4 state[16];
                save(state, s[m]);
                repeat<S>(x, item, left, first + m, state, st, __any_sync(kAll, !within(largest[m], kMaxRhs) || flagged));
                restore(s[m], state);
              }
            }
          }
          arrive(bar + S::kEmpty, lane);
        }
#pragma unroll
        for (int m = 0; m < kOwn; ++m) {
          store_tile(x.new_state + state_of(first + m) + g * kDim + 2 * t, s[m]);
        }
      }
      return;
    }
  }

  if (!S::kMerged && warp < kTiles) {
    // ---- chain ----
    constexpr int kBuffers = S::kAhead < 4 ? 2 : 4;
    const int tile = warp;
    float s[16][4];
    const auto load_state = [&] { load_tile(s, x.state + state_of(tile) + g * kDim + 2 * t); };
    if (x.state != nullptr) {
      load_state();
    }
    meet();
    set_extent();
    for (int round = 0; next_item(round); ++round) {
      if (round > 0 && x.state != nullptr) {
        load_state();
      }
      if (x.state == nullptr || item.tokens <= 0) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0f;
        }
      }
      uint32_t ready = 0;
#pragma unroll 1
      for (int c = 0; c < item.chunks; ++c, ring.next()) {
        const uint32_t st = base + ring.at * S::kStageBytes, bar = base + 8 * ring.at, parity = ring.parity;
        const uint32_t slot = st + S::kSlots + tile * S::kSlotBytes + lane * 16;
        // In the first chunk there is work before T is there; later T is, and everything with it.
        if (c == 0) {
          wait(bar + S::kLoaded, parity);
        } else if (!ready) {
          wait(bar + S::kInverted, parity);
        }
        uint32_t kb[kBuffers][4][4], v[2][4], tb[3][4];
        const auto load_keys = [&](int kk) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            load_matrices(kb[kk % kBuffers][j], st + S::kK + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
          }
        };
#pragma unroll
        for (int kk = 0; kk < S::kAhead; ++kk) {
          load_keys(kk);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          load_transposed(v[j], st + S::kV + unit_of_v<S>(16 * j + (mi >> 1) * 8 + r8, 2 * tile + (mi & 1)) * 16);
        }
        float r[4][4] = {};
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
          uint32_t so[2][4];
          pack_tile(so, s, kk);
          if (kk == 3) {
            if (c == 0) {
              wait(bar + S::kInverted, parity);
            }
            load_lower(tb, st + S::kT + square, st + S::kT + eight_rows);
          }
          if (kk + S::kAhead < 4) {
            load_keys(kk + S::kAhead);
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              mma(r[j], so[h], kb[kk % kBuffers][j][2 * h], kb[kk % kBuffers][j][2 * h + 1]);
            }
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            store_words(slot + 512 * (2 * kk + h), so[h][0], so[h][1], so[h][2], so[h][3]);
          }
        }
        arrive(bar + S::kSFull + 8 * kStages * tile, lane);
        uint32_t rhs[2][4], largest = 0;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int j = n / 2, h = n % 2;
          const float2 beta = load_float2(st + S::kBeta + n * 32 + 8 * t), decay = load_float2(st + S::kDecay + n * 32 + 8 * t);
          const uint32_t v0 = v[j][2 * h], v1 = v[j][2 * h + 1];
          rhs[j][2 * h] = pack(beta.x * (low(v0) - decay.x * r[n][0]), beta.y * (high(v0) - decay.y * r[n][1]));
          rhs[j][2 * h + 1] = pack(beta.x * (low(v1) - decay.x * r[n][2]), beta.y * (high(v1) - decay.y * r[n][3]));
          largest = max_magnitude(largest, max_magnitude(rhs[j][2 * h], rhs[j][2 * h + 1]));
        }
        const uint32_t flagged = load_word(st + S::kSlow);
        const float all = load_float(st + S::kDecay + 4 * (kChunk - 1));
        float u[4][4] = {};
        multiply_lower(u, rhs, tb);
        // What the update needs is there before the branch: with less alive across it nothing is spilled.
        constexpr int kColumnsAhead = S::kAhead < 4 ? 1 : 3;
        uint32_t b[kBuffers][2][4];
        const auto load_columns = [&](int i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            load_transposed(b[i % kBuffers][j], st + S::kK + (as_rows ^ (i << 5)) + j * 16 * 256);
          }
        };
#pragma unroll
        for (int i = 0; i < kColumnsAhead; ++i) {
          load_columns(i);
        }
        uint32_t uo[2][4], ud[2][4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 rest = load_float2(st + S::kRest + n * 32 + 8 * t);
          uo[n / 2][n % 2 * 2] = pack(u[n][0], u[n][1]);
          uo[n / 2][n % 2 * 2 + 1] = pack(u[n][2], u[n][3]);
          ud[n / 2][n % 2 * 2] = pack(rest.x * u[n][0], rest.y * u[n][1]);
          ud[n / 2][n % 2 * 2 + 1] = pack(rest.x * u[n][2], rest.y * u[n][3]);
        }
        if (!__any_sync(kAll, !within(largest, kMaxRound) || flagged)) {
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            s[i][0] *= all, s[i][1] *= all, s[i][2] *= all, s[i][3] *= all;
          }
          store_words(slot + 4096, uo[0][0], uo[0][1], uo[0][2], uo[0][3]);
          store_words(slot + 4096 + 512, uo[1][0], uo[1][1], uo[1][2], uo[1][3]);
          if (lane == 0) {
            store_word(st + S::kTileSlow + 4 * tile, 0);
          }
          arrive(bar + S::kUFull + 8 * kStages * tile, lane);
          // Whether the next chunk is ready is asked here, so that the answer is there in time.
          Ring<kStages> next = ring;
          next.next();
          ready = complete(base + 8 * next.at + S::kInverted, next.parity);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (i + kColumnsAhead < 8) {
              load_columns(i + kColumnsAhead);
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              mma(s[2 * i], ud[j], b[i % kBuffers][j][0], b[i % kBuffers][j][1]);
              mma(s[2 * i + 1], ud[j], b[i % kBuffers][j][2], b[i % kBuffers][j][3]);
            }
          }
        } else {
          if (lane == 0) {
            store_word(st + S::kTileSlow + 4 * tile, 1);
          }
          arrive(bar + S::kUFull + 8 * kStages * tile, lane);
          ready = 0;
          float4 state[16];
          save(state, s);
          repeat<S>(x, item, item.tokens - c * kChunk, tile, state, st, __any_sync(kAll, !within(largest, kMaxRhs) || flagged));
          restore(s, state);
        }
        arrive(bar + S::kEmpty, lane);
      }
      store_tile(x.new_state + state_of(tile) + g * kDim + 2 * t, s);
    }
    return;
  }

  if (!S::kMerged && warp < S::kPrepare) {
    // ---- output ----
    constexpr int kOwn = S::kMerged ? 1 : kTiles / (S::kOutputs + S::kMerged);
    const int first = (warp - kTiles) * kOwn;
    if (lane == 0 && warp == kTiles) {
      initialise_barriers();
    }
    meet();
    set_extent();
    for (int round = 0; next_item(round); ++round) {
#pragma unroll 1
      for (int c = 0; c < item.chunks; ++c, ring.next()) {
        const uint32_t st = base + ring.at * S::kStageBytes, bar = base + 8 * ring.at, parity = ring.parity;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          wait(bar + S::kSFull + 8 * kStages * (first + i), parity);
        }
        wait(bar + S::kLoaded, parity);
        float o[kOwn][4][4] = {};
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
          uint32_t a[kOwn][2][4], b[4][4];
#pragma unroll
          for (int i = 0; i < kOwn; ++i) {
            load_words(a[i][0], st + S::kSlots + (first + i) * S::kSlotBytes + lane * 16 + 1024 * kk);
            load_words(a[i][1], st + S::kSlots + (first + i) * S::kSlotBytes + lane * 16 + 1024 * kk + 512);
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            load_matrices(b[j], st + S::kQ + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
#pragma unroll
              for (int j = 0; j < 4; ++j) {
                mma(o[i][j], a[i][h], b[j][2 * h], b[j][2 * h + 1]);
              }
            }
          }
        }
        wait(bar + S::kScored, parity);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 decay = load_float2(st + S::kDecay + n * 32 + 8 * t);
#pragma unroll
          for (int i = 0; i < kOwn; ++i) {
            o[i][n][0] *= decay.x, o[i][n][1] *= decay.y, o[i][n][2] *= decay.x, o[i][n][3] *= decay.y;
          }
        }
        uint32_t p[3][4];
        load_lower(p, st + S::kP + square, st + S::kP + eight_rows);
        uint32_t a[kOwn][2][4], slow[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          wait(bar + S::kUFull + 8 * kStages * (first + i), parity);
          load_words(a[i][0], st + S::kSlots + (first + i) * S::kSlotBytes + lane * 16 + 4096);
          load_words(a[i][1], st + S::kSlots + (first + i) * S::kSlotBytes + lane * 16 + 4096 + 512);
          slow[i] = load_word(st + S::kTileSlow + 4 * (first + i));
        }
        arrive(bar + S::kEmpty, lane);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          if (slow[i]) {
            continue;
          }
          multiply_lower(o[i], a[i], p);
          uint32_t w[4][2];
#pragma unroll
          for (int n = 0; n < 4; ++n) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const __nv_bfloat162 y = __floats2bfloat162_rn(x.scale * o[i][n][2 * h], x.scale * o[i][n][2 * h + 1]);
              w[n][h] = *reinterpret_cast<const uint32_t*>(&y);
            }
          }
          const uint32_t out = base + S::kOut + (first + i) * kChunk * 48;
          store_transposed(out + ((mi >> 1) * 8 + r8) * 48 + (mi & 1) * 16, w[0][0], w[0][1], w[1][0], w[1][1]);
          store_transposed(out + (16 + (mi >> 1) * 8 + r8) * 48 + (mi & 1) * 16, w[2][0], w[2][1], w[3][0], w[3][1]);
          __syncwarp();
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int token = 16 * j + lane / 2;
            uint32_t y[4];
            load_words(y, out + token * 48 + lane % 2 * 16);
            if (c * kChunk + token < item.tokens) {
              const int64_t at = ((item.begin + c * kChunk + token) * kHeadsV + item.hv) * kDim + item.row + (first + i) * 16 + lane % 2 * 8;
              store_vector(x.output + at, y);
            }
          }
          __syncwarp();
        }
      }
    }
    return;
  }

  if (S::kLeftOut == 1 && warp == 4) {
    meet();
    return;
  }

  if (warp < S::kLoad) {
    // ---- prepare ----
    const int own = warp - S::kPrepare - (S::kLeftOut == 1 && warp > 4);
    const uint32_t scratch = base + S::kScratch + own * S::kScratchBytes;
    int turn = 0;
    uint16_t gate_a = 0, gate_b = 0;  // of this warp's next chunk
    float a_log = load_global(x.a_log + item.hv), dt_bias = load_global(x.dt_bias + item.hv);
    const auto load_gates = [&](int64_t token) {
      gate_a = load_global(x.a + token * kHeadsV + item.hv), gate_b = load_global(x.b + token * kHeadsV + item.hv);
    };
    const bool guessed = guess && own * kChunk + lane < x.tokens;
    if (guessed) {
      load_gates(own * kChunk + lane);
    }
    if (S::kMerged && own == 0 && lane == 0) {
      initialise_barriers();
    }
    meet();
    set_extent();
    bool ahead = guess && item.begin == 0;
    for (int round = 0; next_item(round); ++round) {
      if (round > 0) {
        a_log = load_global(x.a_log + item.hv), dt_bias = load_global(x.dt_bias + item.hv);
        ahead = false;
      }
#pragma unroll 1
      for (int c = 0; c < item.chunks; ++c, ring.next(), turn = turn + 1 == S::kPreparers ? 0 : turn + 1) {
        if (turn != own) {
          continue;
        }
        const uint32_t st = base + ring.at * S::kStageBytes, bar = base + 8 * ring.at, parity = ring.parity;
        // Gates, a token in each lane.
        const int left = item.tokens - c * kChunk - lane;
        if (!ahead && left > 0) {
          load_gates(item.begin + c * kChunk + lane);
        }
        float g2_own = 0.0f, beta_own = 0.0f;
        if (left > 0) {
          g2_own = fmaxf(log2_decay(a_log, low(gate_a), dt_bias), -160.0f);  // exp2 of that is 0
          beta_own = sigmoid(low(gate_b));
        }
        if (left > S::kPreparers * kChunk) {
          load_gates(item.begin + (c + S::kPreparers) * kChunk + lane);
        }
        ahead = true;
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
          const float before = __shfl_up_sync(kAll, g2_own, offset);
          g2_own += lane >= offset ? before : 0.0f;
        }
        const float last = __shfl_sync(kAll, g2_own, 31), decay = exp2_approx(g2_own);
        wait(bar + S::kEmpty, parity ^ 1);
        store_float(st + S::kG2 + 4 * lane, g2_own);
        store_float(st + S::kBeta + 4 * lane, beta_own);
        store_float(st + S::kDecay + 4 * lane, decay);
        store_float(st + S::kRest + 4 * lane, exp2_approx(last - g2_own));
        __syncwarp();
        float g2[4], beta[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          g2[i] = load_float(st + S::kG2 + 4 * (8 * i + g)), beta[i] = load_float(st + S::kBeta + 4 * (8 * i + g));
        }
        float2 g2_column[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          g2_column[i] = load_float2(st + S::kG2 + 4 * (8 * i + 2 * t));
        }
        // exp(G_i - G_j) for row 8 row + g and column 8 column + 2t + e.
        const auto decay_of = [&](int row, int column, int e) {
          return exp2_approx(g2[row] - (e ? g2_column[column].y : g2_column[column].x));
        };
        wait(bar + S::kLoaded, parity);
        uint32_t k[8][2][4];  // k16 step, 16 tokens; kept for P
        float acc[6][4] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          load_matrices(k[i][0], st + S::kK + (as_rows ^ (i << 5)));
          load_matrices(k[i][1], st + S::kK + (as_rows ^ (i << 5)) + 16 * 256);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          mma(acc[0], k[i][0], k[i][0][0], k[i][0][2]);
          mma(acc[1], k[i][0], k[i][0][1], k[i][0][3]);
          mma(acc[2], k[i][1], k[i][0][0], k[i][0][2]);
          mma(acc[3], k[i][1], k[i][0][1], k[i][0][3]);
          mma(acc[4], k[i][1], k[i][1][0], k[i][1][2]);
          mma(acc[5], k[i][1], k[i][1][1], k[i][1][3]);
        }
        bool large = false;
        if constexpr (kTeam == 4) {
          uint32_t loaders[4];
          load_words(loaders, st + S::kLarge);
          large = (loaders[0] | loaders[1] | loaders[2] | loaders[3]) != 0;
        } else {
#pragma unroll
          for (int i = 0; i < kTeam; ++i) {
            large |= load_word(st + S::kLarge + 4 * i) != 0;
          }
        }
        // -A in blocks of 8 x 8, block (m, n) for m >= n: lane (g, t) has row 8m + g, columns 8n + 2t and 8n + 2t + 1.
        // acc[0] and acc[1] hold rows 0 to 15 of n = 0, 1; acc[2 + n] rows 16 to 31.
        const auto minus_a = [&](int m, int n, int e) {
          const float kk = m < 2 ? acc[n][2 * m + e] : acc[2 + n][2 * (m - 2) + e];
          return -beta[m] * decay_of(m, n, e) * kk;
        };
        // The diagonal blocks to scratch, by columns of 12 floats.
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float kk = m < 2 ? acc[m][2 * m + e] : acc[2 + m][2 * (m - 2) + e];
            large |= g == 2 * t + e && !(kk <= kMaxKK && kk * beta[m] <= kMaxBetaKK);
            store_float(scratch + m * 400 + 4 * ((2 * t + e) * 12 + g), minus_a(m, m, e));
          }
        }
        // The others as operands b.
        uint32_t a10 = transpose(pack(minus_a(1, 0, 0), minus_a(1, 0, 1)));
        uint32_t a32 = transpose(pack(minus_a(3, 2, 0), minus_a(3, 2, 1)));
        uint32_t a21[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a21[i] = transpose(pack(minus_a(2 + i % 2, i / 2, 0), minus_a(2 + i % 2, i / 2, 1)));
        }
        large = __any_sync(kAll, large);
        if (lane == 0) {
          store_word(st + S::kSlow, large);
        }
        __syncwarp();
        // Column lane % 8 of the inverse of diagonal block lane / 8.
        float inverse[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          inverse[i] = r8 == i ? 1.0f : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < 7; ++j) {
#pragma unroll
          for (int i4 = (j + 1) / 4; i4 < 2; ++i4) {
            float e[4];
            load_float4(e, scratch + mi * 400 + 4 * (j * 12 + 4 * i4));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (4 * i4 + i > j) {
                inverse[4 * i4 + i] = fmaf(e[i], inverse[j], inverse[4 * i4 + i]);
              }
            }
          }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          store_half(st + S::kT + (mi * 8 + i) * kPitch * 2 + lane * 2, inverse[i]);
          if (mi % 2 == 0) {  // above it, within the 16 x 16 block, are zeros
            store_half(st + S::kT + (mi * 8 + i) * kPitch * 2 + (lane + 8) * 2, 0.0f);
          }
        }
        __syncwarp();
        // Two blocks at once: T10 = T11 (-A10) T00 and T32 = T33 (-A32) T22.
        {
          uint32_t d[4];  // blocks (1, 1), (3, 3); (0, 0), (2, 2)
          const int m = mi < 2 ? 2 * mi + 1 : 2 * (mi - 2);
          const uint32_t from = st + S::kT + (8 * m + r8) * kPitch * 2 + m * 16;
          load_matrices(d, from);
          float y0[4] = {}, y1[4] = {}, z0[4] = {}, z1[4] = {};
          mma_k8(y0, d[0], d[1], a10);
          mma_k8(y1, d[0], d[1], a32);
          const uint32_t top = pack(y0[0], y0[1]), bottom = pack(y1[2], y1[3]);
          mma_k8(z0, top, bottom, transpose(d[2]));
          mma_k8(z1, top, bottom, transpose(d[3]));
          store_word(st + S::kT + (8 + g) * kPitch * 2 + 4 * t, pack(z0[0], z0[1]));
          store_word(st + S::kT + (24 + g) * kPitch * 2 + 32 + 4 * t, pack(z1[2], z1[3]));
        }
        __syncwarp();
        // And the 16 x 16 block below the diagonal, likewise.
        {
          uint32_t t22[4], t11[4];
          load_matrices(t22, st + S::kT + (16 + (mi & 1) * 8 + r8) * kPitch * 2 + 32 + (mi >> 1) * 16);
          load_transposed(t11, st + S::kT + ((mi & 1) * 8 + r8) * kPitch * 2 + (mi >> 1) * 16);
          float y0[4] = {}, y1[4] = {}, z0[4] = {}, z1[4] = {};
          mma(y0, t22, a21[0], a21[1]);
          mma(y1, t22, a21[2], a21[3]);
          const uint32_t y[4] = {pack(y0[0], y0[1]), pack(y0[2], y0[3]), pack(y1[0], y1[1]), pack(y1[2], y1[3])};
          mma(z0, y, t11[0], t11[1]);
          mma(z1, y, t11[2], t11[3]);
          const uint32_t row = st + S::kT + (16 + g) * kPitch * 2 + 4 * t;
          store_word(row, pack(z0[0], z0[1]));
          store_word(row + 16, pack(z1[0], z1[1]));
          store_word(row + 8 * kPitch * 2, pack(z0[2], z0[3]));
          store_word(row + 8 * kPitch * 2 + 16, pack(z1[2], z1[3]));
        }
        arrive(bar + S::kInverted, lane);
        float p[6][4] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          uint32_t q0[4], q1[4];
          load_matrices(q0, st + S::kQ + (as_rows ^ (i << 5)));
          load_matrices(q1, st + S::kQ + (as_rows ^ (i << 5)) + 16 * 256);
          mma(p[0], q0, k[i][0][0], k[i][0][2]);
          mma(p[1], q0, k[i][0][1], k[i][0][3]);
          mma(p[2], q1, k[i][0][0], k[i][0][2]);
          mma(p[3], q1, k[i][0][1], k[i][0][3]);
          mma(p[4], q1, k[i][1][0], k[i][1][2]);
          mma(p[5], q1, k[i][1][1], k[i][1][3]);
        }
#pragma unroll
        for (int n = 0; n < 6; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row = (n < 2 ? 0 : 2) + h, column = n < 2 ? n : n - 2;
            const int i = 8 * row + g, j = 8 * column + 2 * t;
            const float p0 = i >= j ? decay_of(row, column, 0) * p[n][2 * h] : 0.0f;
            const float p1 = i > j ? decay_of(row, column, 1) * p[n][2 * h + 1] : 0.0f;
            store_word(st + S::kP + i * kPitch * 2 + j * 2, pack(p0, p1));
          }
        }
        arrive(bar + S::kScored, lane);
      }
    }
    return;
  }

  // ---- load ----
  constexpr int kThreads = 32 * kTeam, kPieces = kChunk * 16 / kThreads;  // of 16 bytes, of k and of q, for each thread
  constexpr int kUnits = 2 * kTiles, kVectors = (kChunk * kUnits + kThreads - 1) / kThreads, kStep = kThreads / 16;
  const int team = (warp - S::kLoad) / kTeam, role = (warp - S::kLoad) % kTeam, thread = role * 32 + lane;
  const int token = thread / 16, v_token = thread / kUnits;  // of piece 0; piece i lies kStep tokens behind it, and so on
  const bool has_v = thread < kChunk * kUnits;
  uint4 k[kPieces], q[kPieces], v[kVectors];
  const __nv_bfloat16 *k_from, *q_from, *v_from;
  const auto start = [&](int64_t begin) {  // at the team's first chunk
    begin += team * kChunk;
    const size_t at = ((begin + token) * kHeadsQK + item.hv / 2) * kDim + thread % 16 * 8;
    k_from = x.k + at, q_from = x.q + at;
    v_from = x.v + ((begin + v_token) * kHeadsV + item.hv) * kDim + item.row + thread % kUnits * 8;
  };
  const auto load_chunk = [&](int left) {  // left: tokens from the chunk's first to the last of the sequence
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      k[i] = make_uint4(0, 0, 0, 0);
      if (token + i * kStep < left) {
        k[i] = load_vector(k_from + i * kStep * kHeadsQK * kDim);
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      v[i] = make_uint4(0, 0, 0, 0);
      if (has_v && v_token + i * (kThreads / kUnits) < left) {
        v[i] = load_vector(v_from + i * (kThreads / kUnits) * kHeadsV * kDim);
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      q[i] = make_uint4(0, 0, 0, 0);
      if (token + i * kStep < left) {
        q[i] = load_vector(q_from + i * kStep * kHeadsQK * kDim);
      }
    }
    k_from += kTeams * kChunk * kHeadsQK * kDim, q_from += kTeams * kChunk * kHeadsQK * kDim, v_from += kTeams * kChunk * kHeadsV * kDim;
  };
  if (guess) {
    start(0);
    load_chunk(static_cast<int>(x.tokens) - team * kChunk);
  }
  meet();
  set_extent();
  for (int round = 0; next_item(round); ++round) {
    if (item.chunks <= 0) {
      continue;
    }
    if (round > 0 && x.state != nullptr) {
      for (int i = thread; i < 64 * kTiles; i += kThreads) {
        prefetch(x.state + state_of(0) + i * 32);
      }
    }
    if (!guess || item.begin != 0 || item.tokens != x.tokens) {
      start(item.begin);
      load_chunk(item.tokens - team * kChunk);
    }
    // Into the L2: each thread 128 bytes of k or q, and of v.
    const int line_token = thread / 4;
    const __nv_bfloat16* line_from =
        (thread % 4 < 2 ? x.k : x.q) + ((item.begin + line_token) * kHeadsQK + item.hv / 2) * kDim + thread % 2 * 64;
    const __nv_bfloat16* v_line_from = x.v + ((item.begin + line_token) * kHeadsV + item.hv) * kDim + item.row;
    const auto prefetch_chunk = [&](int c) {
#pragma unroll
      for (int i = 0; i < 128 / kThreads; ++i) {
        const int ahead = c * kChunk + i * (kThreads / 4);
        if (ahead + line_token < item.tokens) {
          prefetch(line_from + static_cast<size_t>(ahead) * (kHeadsQK * kDim));
          if (thread % 4 == 0) {
            prefetch(v_line_from + static_cast<size_t>(ahead) * (kHeadsV * kDim));
          }
        }
      }
    };
#pragma unroll 1
    for (int c = 0; c < item.chunks; ++c, ring.next()) {
      if (kTeams > 1 && c % kTeams != team) {
        continue;
      }
      const uint32_t st = base + ring.at * S::kStageBytes, bar = base + 8 * ring.at, parity = ring.parity;
      wait(bar + S::kEmpty, parity ^ 1);
      uint32_t largest = 0;
      const auto store = [&](uint32_t to, uint4 from, bool check) {
        const uint32_t w[4] = {from.x, from.y, from.z, from.w};
        uint32_t h[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          h[j] = pack(low(w[j]), high(w[j]));
          if (check) {
            largest = max_magnitude(largest, h[j]);
          }
        }
        store_words(to, h[0], h[1], h[2], h[3]);
      };
      // Piece i lies kStep tokens further; for steps of less than 8 tokens the swizzle changes with i.
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        store(st + S::kK + (token + i * kStep) * 256 + (((thread % 16) ^ ((token + i * kStep) % 8)) << 4), k[i], false);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (has_v) {
          const int at = i * kThreads + thread;
          store_words(st + S::kV + unit_of_v<S>(at / kUnits, at % kUnits) * 16, v[i].x, v[i].y, v[i].z, v[i].w);
        }
      }
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        store(st + S::kQ + (token + i * kStep) * 256 + (((thread % 16) ^ ((token + i * kStep) % 8)) << 4), q[i], true);
      }
      const bool large = __any_sync(kAll, !within(largest, kMaxQ));
      if (lane == 0) {
        store_word(st + S::kLarge + 4 * role, large);
      }
      arrive(bar + S::kLoaded, lane);
      if (c + kTeams < item.chunks) {
        load_chunk(item.tokens - (c + kTeams) * kChunk);
        if (c < kTeams) {
          prefetch_chunk(c + (kTeams > 1 ? 2 * kTeams : 2));
        }
        prefetch_chunk(c + (kTeams > 1 ? 3 * kTeams : 3));
      }
    }
  }
}

template <typename S, bool kMany>
__global__ void __launch_bounds__(S::kWarps * 32, 1) prefill_kernel(const Arguments x, const int groups) {
  run<S, kMany, false>(x, groups, {}, 0, 0);
}

// Two shapes of as many warps, side by side: A for the longest sequences, B for the others.
template <typename A, typename B>
__global__ void __launch_bounds__(A::kWarps * 32, 1) mixed_kernel(const Arguments x, const Groups groups) {
  constexpr uint32_t kA = kHeadsV * A::kBlocksPerHead, kB = kHeadsV * B::kBlocksPerHead;
  const uint32_t before = groups.first * kA;
  if (blockIdx.x < before) {
    run<A, true, true>(x, groups.count, groups, blockIdx.x, blockIdx.x / kA);
  } else {
    run<B, true, true>(x, groups.count, groups, blockIdx.x - before, groups.first + (blockIdx.x - before) / kB);
  }
}

template <typename G>
cudaError_t start(void (*kernel)(Arguments, G), int grid, int threads, uint32_t bytes, cudaStream_t stream, const Arguments& x, const G& groups) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) {
    return status;
  }
  kernel<<<grid, threads, bytes, stream>>>(x, groups);
  return cudaGetLastError();
}

// Starts the kernel of shape S on at most `blocks` blocks, one for each multiprocessor; sequences from 1 to kMaxSequences.
template <typename S>
cudaError_t launch(const Arguments& x, int blocks, cudaStream_t stream) {
  constexpr int kUnits = kHeadsV * S::kBlocksPerHead;  // blocks for a sequence
  const int64_t items = x.sequences * kUnits;
  if (items <= blocks) {
    return start(prefill_kernel<S, false>, static_cast<int>(items), S::kWarps * 32, S::kBytes, stream, x, 0);
  }
  if (x.sequences > kRanked || blocks < kUnits) {
    return start(prefill_kernel<S, true>, blocks, S::kWarps * 32, S::kBytes, stream, x, 0);
  }
  const int groups = blocks / kUnits < 32 ? blocks / kUnits : 32;
  return start(prefill_kernel<S, true>, groups * kUnits, S::kWarps * 32, S::kBytes, stream, x, groups);
}

// The same with kGroups groups of A and the other blocks in groups of B.
template <typename A, typename B, int kGroups>
cudaError_t launch_mixed(const Arguments& x, int blocks, cudaStream_t stream) {
  static_assert(A::kWarps == B::kWarps, "one launch");
  // In 20 ns, fitted to times on an H200 of Shape<4, 0, 2, 2, 4> and Shape<8, 0, 2, 2, 3, 2>.
  constexpr Cost kLong = {225, 68, 150}, kShort = {575, 81, 190};
  constexpr int kA = kHeadsV * A::kBlocksPerHead, kB = kHeadsV * B::kBlocksPerHead;
  const int others = (blocks - kGroups * kA) / kB;
  if (x.sequences > kRanked || others < 1 || kGroups + others > 32 || x.tokens >= 1 << 23) {
    return launch<B>(x, blocks, stream);
  }
  return start(mixed_kernel<A, B>, kGroups * kA + others * kB, A::kWarps * 32, A::kBytes > B::kBytes ? A::kBytes : B::kBytes, stream, x,
               Groups{kGroups + others, kGroups, kLong, kShort});
}

// ---- calls of few tokens ----

constexpr int kFew = 16;  // tokens

// Walks at most kFew tokens one after the other in float32. A block has 8 rows of a head's state of a sequence, a thread 8 columns of
// a row. All that a block reads is in flight together, and the code is short, since a call from cold fetches that too.
__global__ void __launch_bounds__(128) few_kernel(const Arguments x) {
  __shared__ uint4 ks[kFew * 16], qs[kFew * 16], vs[kFew];  // bfloat16: rows of k and q, the block's 8 values of a token
  __shared__ float2 gates[kFew];                            // decay, update gate
  const int thread = threadIdx.x, row = thread / 16, part = thread % 16;
  const int rows = blockIdx.x % 16 * 8, head = blockIdx.x / 16 % kHeadsV;
  const int64_t n = blockIdx.x / (16 * kHeadsV), at = ((n * kHeadsV + head) * kDim + rows + row) * kDim + part * 8;
  float4 s[2] = {};
  if (x.state != nullptr) {
    s[0] = *reinterpret_cast<const float4*>(x.state + at);
    s[1] = *reinterpret_cast<const float4*>(x.state + at + 4);
  }
  int64_t begin = 0;
  int count = static_cast<int>(x.tokens);
  if (x.sequences > 1) {
    begin = x.cu_seqlens[n];
    count = static_cast<int>(x.cu_seqlens[n + 1] - begin);
  }
  uint4 k[2] = {}, q[2] = {}, v = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + 8 * i < count) {
      const int64_t from = ((begin + row + 8 * i) * kHeadsQK + head / 2) * kDim + part * 8;
      k[i] = *reinterpret_cast<const uint4*>(x.k + from);
      q[i] = *reinterpret_cast<const uint4*>(x.q + from);
    }
  }
  if (thread < count) {
    const int64_t from = (begin + thread) * kHeadsV + head;
    v = *reinterpret_cast<const uint4*>(x.v + from * kDim + rows);
    const float a = __bfloat162float(x.a[from]), b = __bfloat162float(x.b[from]);
    gates[thread] = {exp2_approx(log2_decay(x.a_log[head], a, x.dt_bias[head])), sigmoid(b)};
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
    const int after = (i + 1) % kFew * 16 + part;
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
      x.output[((begin + i) * kHeadsV + head) * kDim + rows + row] =
          __float2bfloat16_rn(x.scale * fmaf(delta, sums[0][2], gate.x * sums[0][1]));
    }
  }
  if (count <= 0) {
    s[0] = s[1] = {};
  }
  *reinterpret_cast<float4*>(x.new_state + at) = s[0];
  *reinterpret_cast<float4*>(x.new_state + at + 4) = s[1];
}

// Starts few_kernel; at most kFew tokens.
inline cudaError_t launch_few(const Arguments& x, int, cudaStream_t stream) {
  if (x.tokens > kFew) {
    return cudaErrorInvalidValue;
  }
  few_kernel<<<static_cast<unsigned>(x.sequences * kHeadsV * 16), 128, 0, stream>>>(x);
  return cudaGetLastError();
}

}  // namespace gdn
