// The places of warps and of data: which warp has which role, and the layout of shared memory.
#pragma once

#include "arguments.cuh"

namespace gdn {

constexpr int kPitch = 40;  // halves in a row of T and P: eight rows of 80 bytes start in different banks

// A config C (configs.cuh) has the fields
//   kTiles          tiles of a block, 16 rows of the state each
//   kTilesPerChain  tiles of a chain warp
//   kOutputs        output warps, for kTiles / kOutputs tiles each; 0: merged, chain warps compute the outputs too
//   kLoaders        loader warps
//   kPreparers      preparer warps, which alternate by chunk
//   kStages         chunks in the ring
//   kIdleWarps      warps that end at once: warp 4, or 4 and 8, so that few warps or none share the scheduler and the
//                   instruction cache of a single chain warp
//
// Warps in order of their places; a place is the warp's number less the idle warps before it:
//
//   0 ... kChains - 1 | kChains ... | kFirstPreparer ... | kFirstLoader ... kWarps - 1
//        chain        |   output    |      preparers     |         loaders
//
// Shared memory of a block, sizes in bytes:
//
//   0            +---------------------+
//                | stage 0             |  kStageBytes each, one chunk, as below
//                | ...                 |
//                | stage kStages - 1   |
//   kScratch     +---------------------+
//                | preparers' scratch  |  1600 each: columns of the four diagonal blocks of -A, 12 floats a column
//   kOutputRows  +---------------------+
//                | output rows         |  1536 a tile: outputs before they are stored, in rows of 48 or 64
//   kBarriers    +---------------------+
//                | loaded              |  mbarriers, 8 each, one for each stage
//                | inverted            |    T and the gates are there
//                | scored              |    P is there
//                | empty               |    everyone is done with the stage
//                | state ready         |  and for each handed-over tile one for each stage: S is there
//                | update ready        |    U is there
//   kLengths     +---------------------+
//                | lengths             |  4 * kRanked: tokens of each sequence
//                | order               |  2 * kRanked: sequences, longest first
//                | assigned            |  2 * kRanked: sequences of this block; 0xffff ends them
//   kBytes       +---------------------+
//
// A stage:
//
//   kK           +---------------------+
//                | k                   |  32 rows of 256: 16-byte unit u of a token is at u ^ token % 8; float16
//   kQ           | q                   |  likewise
//   kV           | v                   |  1024 a tile: 16-byte units, swizzled by token (unit_of_v); bfloat16, as given
//   kT           | T                   |  32 rows of kPitch float16
//   kP           | P                   |  likewise
//   kSlots       | hand-over slots     |  5120 a handed-over tile: S as operands (8 k16 steps of kStepBytes), U (2)
//   kLogSum      | log sum             |  32 float32, one for each token: G / log(2)
//   kBeta        | beta                |  likewise: update gate
//   kDecay       | decay               |  likewise: exp(G)
//   kDecayToEnd  | decay to the end    |  likewise: exp(G_31 - G)
//   kLoaderLarge | a word a loader     |  not 0: a value is too large for float16
//   kChunkSlow   | a word              |  not 0: the chunk does not fit the float16 path
//   kTileSlow    | a word a tile       |  not 0: the chain warp redid the chunk (refine.cuh) and wrote its outputs
//   kStageBytes  +---------------------+
template <class C>
struct Layout : C {
  static constexpr int kTiles = C::kTiles, kTilesPerChain = C::kTilesPerChain, kChains = kTiles / kTilesPerChain;
  static constexpr int kOutputs = C::kOutputs, kLoaders = C::kLoaders, kPreparers = C::kPreparers;
  static constexpr int kStages = C::kStages, kIdleWarps = C::kIdleWarps;
  static constexpr int kBlocksPerHead = kDim / (16 * kTiles);
  static constexpr bool kMerged = kOutputs == 0;
  static constexpr int kFirstPreparer = kChains + kOutputs;
  static constexpr int kFirstLoader = kFirstPreparer + kPreparers + (kIdleWarps == 1);
  static constexpr int kWarps = kFirstLoader + kLoaders + (kIdleWarps == 2 ? 2 : 0);
  static_assert(kIdleWarps <= 2 && (kIdleWarps == 0 || kWarps > 4 * kIdleWarps), "idle warps come before the last");
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4 || kTiles == 8,
                "rows of a block divide a head, and swizzles are made for these");
  static_assert(kTiles % kTilesPerChain == 0 && kTiles % (kMerged ? 1 : kOutputs) == 0, "tiles of a warp");
  static_assert(kMerged ? kTilesPerChain <= 2 : kTilesPerChain == 1, "separate chain warps have one tile");
  static_assert(kPreparers <= kStages, "a barrier's parity tells two uses of a stage apart, not three");
  static_assert(kLoaders == 2 || kLoaders == 4, "loaders share the 512 units of 16 bytes evenly");
  // Pairs of k16 steps whose operands a chain warp loads before it needs them: with 8 warps, so 255 registers a lane,
  // all of a product; with 12 one.
  static constexpr int kStepsAhead = kWarps <= 8 ? 4 : 1;
  static_assert(kWarps <= 12, "168 registers a lane");

  // Within a stage.
  static constexpr uint32_t kStepBytes = 512, kUpdate = 8 * kStepBytes;  // in a slot: S, and U from kUpdate on
  static constexpr uint32_t kSlotBytes = kUpdate + 2 * kStepBytes, kHandedTiles = kMerged ? 0 : kTiles;
  static constexpr uint32_t kK = 0;
  static constexpr uint32_t kQ = kK + kChunk * 256;
  static constexpr uint32_t kV = kQ + kChunk * 256;
  static constexpr uint32_t kT = kV + 1024 * kTiles;
  static constexpr uint32_t kP = kT + kChunk * kPitch * 2;
  static constexpr uint32_t kSlots = kP + kChunk * kPitch * 2;
  static constexpr uint32_t kLogSum = kSlots + kSlotBytes * kHandedTiles;
  static constexpr uint32_t kBeta = kLogSum + 128;
  static constexpr uint32_t kDecay = kBeta + 128;
  static constexpr uint32_t kDecayToEnd = kDecay + 128;
  static constexpr uint32_t kLoaderLarge = kDecayToEnd + 128;
  static constexpr uint32_t kChunkSlow = kLoaderLarge + 16;
  static constexpr uint32_t kTileSlow = kChunkSlow + 16;
  static constexpr uint32_t kStageBytes = (kTileSlow + 32 + 127) / 128 * 128;
  // Within the block's memory.
  static constexpr uint32_t kScratchBytes = 4 * 400;
  static constexpr uint32_t kScratch = kStages * kStageBytes;
  static constexpr uint32_t kOutputRows = kScratch + kPreparers * kScratchBytes;
  static constexpr uint32_t kBarriers = kOutputRows + kTiles * kChunk * 48;
  static constexpr uint32_t kLoaded = kBarriers;
  static constexpr uint32_t kInverted = kLoaded + 8 * kStages;
  static constexpr uint32_t kScored = kInverted + 8 * kStages;
  static constexpr uint32_t kEmpty = kScored + 8 * kStages;
  static constexpr uint32_t kStateReady = kEmpty + 8 * kStages;
  static constexpr uint32_t kUpdateReady = kStateReady + 8 * kStages * kHandedTiles;
  static constexpr uint32_t kLengths = kUpdateReady + 8 * kStages * kHandedTiles;
  static constexpr uint32_t kOrder = kLengths + 4 * kRanked;
  static constexpr uint32_t kAssigned = kOrder + 2 * kRanked;
  static constexpr uint32_t kBytes = kAssigned + 2 * kRanked + 16;
  static_assert(kBytes <= 227 * 1024, "shared memory of a block");
};

// A position in the ring of stages.
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

// The place of a 16-byte unit of v in a stage, in units.
template <class S>
__device__ __forceinline__ int unit_of_v(int token, int unit) {
  constexpr int kUnits = 2 * S::kTiles;
  return token * kUnits + (unit ^ (kUnits > 8 ? token & 7 : (token * kUnits / 8) & (kUnits - 1)));
}

}  // namespace gdn
