// The GDN prefill kernel: one launch in which the warps of a block have roles. Read solution/baselines/prefill-plain
// first, which computes the same in plain C++; docs/experiments.md has the history of this one.
//
// A sequence is cut into chunks of 32 tokens. With S the state before a chunk, G the running sum of the chunk's log
// decays, rows i and j of the chunk, and everything below for one value head:
//
//   A[i][j] = beta_i exp(G_i - G_j) (k_i . k_j)  for i > j, else 0        T = (I + A)^-1
//   P[i][j] =        exp(G_i - G_j) (q_i . k_j)  for i >= j, else 0
//   RHS_i   = beta_i (v_i - exp(G_i) S k_i)                               U = T RHS
//   output  = scale (exp(G_i) S q_i + P U)
//   S'      = exp(G_31) S + sum_i exp(G_31 - G_i) u_i k_i^T
//
// Rows of S are independent, so a block owns 16 * kTiles of one head's 128, as long as the sequence lasts. Its warps:
//
//   chain     one for each 16 rows: S in 64 float32 registers a lane, as accumulators of mma.m16n8k16; computes U and
//             S'
//   output    for one or two chain warps each: reads their S and U as operands, in the same layout, and computes the
//             output. In merged configs the chain warps, of one or two tiles each, compute the outputs too, which gives
//             more rows a second and longer chunks
//   load      brings k, q (to float16) and v into shared memory, a chunk ahead in registers
//   prepare   the gates, A and T, then P; preparers alternate by chunk. The diagonal 8 x 8 blocks of T in float32 by
//             forward substitution, the others by products
//
// They synchronise by mbarriers, in a ring of kStages chunks (layout.cuh). One chunk in time, from left to right; each
// stage has the four mbarriers in capitals, and S READY and U READY for each tile:
//
//   load      wait EMPTY -> k, q, v -> LOADED
//   prepare   wait EMPTY -> gates; wait LOADED -> T -> INVERTED -> P -> SCORED
//   chain                   wait LOADED -> S k -> S READY; wait INVERTED -> U -> U READY -> S' -> EMPTY
//   output                            wait S READY, LOADED -> S q; wait SCORED; wait U READY -> EMPTY -> P U, output
//
// A chain warp that also computes the outputs waits for INVERTED and SCORED only. From its second chunk on a chain warp
// waits for INVERTED at the start. EMPTY is complete when all chain and output warps have arrived; the loaders then
// fill the stage with the chunk that is kStages later. LOADED takes the arrivals of all loaders of a team, the others
// that of one warp.
//
// Each role has a file, ROLE.inc.cuh, which is included into the body of run below. It begins with the names of run
// that it uses: as functions of their own, roles get other machine code.
//
// Operands are float16 and sums float32. If values are large the chain warp refines U, with operands of two parts. A
// chunk that does not fit float16 (long keys, large queries, very large values or states) it computes token by token in
// float32 (refine.cuh). So results are right there too, only slower.
#pragma once

#include <type_traits>

#include "refine.cuh"

namespace gdn {

// The time of a group of blocks, in 20 ns: start + chunk * chunks + sequence * sequences.
struct Cost {
  int start, chunk, sequence;
};

// The groups of blocks of a mixed launch, each with a block for each head and rows: count_a groups of one config, then
// others of another.
struct Groups {
  int count, count_a;
  Cost a, b;
};

// The work of a block; S is a Layout. kMany: a block has several items. count: groups of blocks to which sequences are
// assigned; 0: blocks take items by their index. block and group, in a mixed launch: the block's index within its
// config and the group's index; otherwise both are computed at each use, because passing them spills more registers.
template <class S, bool kMany, bool kMixed>
__device__ __forceinline__ void run(const Arguments& args, const int count, const Groups& groups, const uint32_t block,
                                    const uint32_t group) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int kTiles = S::kTiles, kStages = S::kStages, kBlocks = S::kBlocksPerHead;
  // Loaders work in teams that alternate by chunk; with one team the loads of a chunk begin when the
  // previous chunk is there.
  constexpr int kTeams = !kMany && kTiles <= 2 && S::kLoaders == 4 ? 2 : 1, kTeamWarps = S::kLoaders / kTeams;
  int thread_index = threadIdx.x;
  if (S::kMerged) {  // volatile, so that it is read once
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread_index));
  }
  const int lane = thread_index & 31, warp_index = thread_index >> 5;
  const int warp = S::kIdleWarps == 2 ? warp_index - (warp_index < 8 ? warp_index / 4 : 2) : warp_index;  // its place
  const int g = lane >> 2, t = lane & 3;                // row and column pair of an accumulator
  const int matrix_row = lane & 7, matrix = lane >> 3;  // row and 8 x 8 matrix that this lane addresses
  uint32_t base;  // of the shared memory; volatile, so that it is computed once
  asm volatile("{\n.reg .u64 a;\ncvta.to.shared.u64 a, %1;\ncvt.u32.u64 %0, a;\n}" : "=r"(base) : "l"(memory));

  // ---- the items of a block ----

  Item item;
  // Sets item, except for its extent. It returns false if the block has no item in that round. Without assigned
  // sequences, blocks take items in rounds of alternating direction.
  const auto set_item = [&](int round) {
    if (kMany && count > 0) {
      item.hv = (kMixed ? block : blockIdx.x) % (kHeadsV * kBlocks) / kBlocks;
      item.row = (kMixed ? block : blockIdx.x) % kBlocks * 16 * kTiles;
      const uint16_t sequence = load_short(base + S::kAssigned + 2 * round);
      item.sequence = sequence;
      return sequence != 0xffff;
    }
    const uint32_t i = !kMany ? blockIdx.x : round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const uint32_t sequence = i / (kHeadsV * kBlocks), rest = i % (kHeadsV * kBlocks);
    item.hv = rest / kBlocks;
    item.row = rest % kBlocks * 16 * kTiles;
    item.sequence = sequence;
    return sequence < args.sequences;
  };
  int64_t extent[2];  // first token of the item's sequence and of the next one
  const auto load_extent = [&] {
    extent[0] = load_long(args.cu_seqlens + item.sequence), extent[1] = load_long(args.cu_seqlens + item.sequence + 1);
  };
  const auto set_extent = [&] {
    item.begin = extent[0];
    item.tokens = static_cast<int>(extent[1] - extent[0]);
    item.chunks = (item.tokens + kChunk - 1) / kChunk;
  };
  // Moves to the item of a round; round 0 is set already. It returns false after the last item.
  const auto next_item = [&](int round) {
    if (round == 0) {
      return true;
    }
    if (!kMany || !set_item(round)) {
      return false;
    }
    load_extent();
    set_extent();
    return true;
  };
  const auto state_offset = [&](int tile) {  // of a tile's rows of the item's state
    return ((static_cast<size_t>(item.sequence) * kHeadsV + item.hv) * kDim + item.row + tile * 16) * kDim;
  };

  if (kMany && count > 0) {
#include "assign.inc.cuh"
  }
  // A group of a mixed launch may have nothing to do. Otherwise a block has an item in the first round.
  if (!set_item(0) && kMixed) {
    return;
  }
  load_extent();
  // All but the extent of a single sequence is known without cu_seqlens, so roles load ahead of that.
  const bool single_sequence = args.sequences == 1 && args.tokens > 0 && args.tokens < (1 << 30);

  // ---- what roles share ----

  // Each role starts the loads of its first chunk, then calls this, after which the mbarriers are initialised.
  const auto sync_block = [] {
    __syncwarp();
    // Barrier 1, because roles call this at different places. The first form is faster in merged configs, the second in
    // others; synccheck takes the second for divergence.
    if (S::kMerged || kArriving > 1) {
      asm volatile("barrier.sync 1, %0;" ::"n"(S::kWarps * 32) : "memory");
    } else {
      asm volatile("bar.sync 1, %0;" ::"n"(S::kWarps * 32) : "memory");
    }
  };

  Ring<kStages> ring;
  // The start of this lane's row of four 8 x 8 matrices, for the first 16 or 32 columns.
  // as_rows: k16 of 16 tokens, as operand a; as_columns32: k32 of 8 tokens, as operand b.
  const uint32_t as_rows = ((matrix & 1) * 8 + matrix_row) * 256 + (((matrix >> 1) ^ matrix_row) << 4);
  const uint32_t as_columns32 = matrix_row * 256 + ((matrix ^ matrix_row) << 4);
  // Of T or P, the 16 x 16 at the top left; 8 rows, all columns.
  const uint32_t lower_square = ((matrix >> 1) * 8 + matrix_row) * kPitch * 2 + (matrix & 1) * 16;
  const uint32_t lower_rows = matrix_row * kPitch * 2 + matrix * 16;

  const auto initialise_barriers = [&] {
    // At addresses that are constants: others are initialised one at a time, 60 cycles each.
    const uint32_t constant = shared_address(memory);
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      barrier_init(constant + S::kLoaded + 8 * i, kTeamWarps);
      barrier_init(constant + S::kInverted + 8 * i, 1);
      barrier_init(constant + S::kScored + 8 * i, 1);
      barrier_init(constant + S::kEmpty + 8 * i, S::kChains + S::kOutputs);
    }
#pragma unroll
    for (int i = 0; i < kStages * static_cast<int>(S::kHandedTiles); ++i) {
      barrier_init(constant + S::kStateReady + 8 * i, 1);
      barrier_init(constant + S::kUpdateReady + 8 * i, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  };

  // ---- the roles ----

  if (S::kIdleWarps == 2 && (warp_index == 4 || warp_index == 8)) {
    sync_block();
    return;
  }
  if constexpr (S::kMerged) {
    if (warp < S::kChains) {
#include "chain_and_output.inc.cuh"
      return;
    }
  }
  if (!S::kMerged && warp < kTiles) {
#include "chain.inc.cuh"
    return;
  }
  if (!S::kMerged && warp < S::kFirstPreparer) {
#include "output.inc.cuh"
    return;
  }
  if (S::kIdleWarps == 1 && warp == 4) {
    sync_block();
    return;
  }
  if (warp < S::kFirstLoader) {
#include "prepare.inc.cuh"
    return;
  }
#include "load.inc.cuh"
}

}  // namespace gdn
