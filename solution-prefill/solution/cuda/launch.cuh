// The kernels of prefill.cuh and what starts them.
#pragma once

#include "prefill.cuh"

namespace gdn {

// groups: of blocks, to which sequences are assigned; 0: blocks take items by their index.
template <class S, bool kMany>
__global__ void __launch_bounds__(S::kWarps * 32, 1) prefill_kernel(const Arguments args, const int groups) {
  run<S, kMany, false>(args, groups, {}, 0, 0);
}

// Two configs of as many warps, side by side: A for the longest sequences, B for the others.
template <class A, class B>
__global__ void __launch_bounds__(A::kWarps * 32, 1) mixed_kernel(const Arguments args, const Groups groups) {
  constexpr uint32_t kA = kHeadsV * A::kBlocksPerHead, kB = kHeadsV * B::kBlocksPerHead;
  const uint32_t before = groups.count_a * kA;
  if (blockIdx.x < before) {
    run<A, true, true>(args, groups.count, groups, blockIdx.x, blockIdx.x / kA);
  } else {
    run<B, true, true>(args, groups.count, groups, blockIdx.x - before, groups.count_a + (blockIdx.x - before) / kB);
  }
}

template <class G>
cudaError_t start(void (*kernel)(Arguments, G), int grid, int threads, uint32_t bytes, cudaStream_t stream,
                  const Arguments& args, const G& groups) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) {
    return status;
  }
  kernel<<<grid, threads, bytes, stream>>>(args, groups);
  return cudaGetLastError();
}

// Starts the kernel of a config on at most `blocks` blocks, one for each multiprocessor; sequences from 1 to
// kMaxSequences.
template <class Config>
cudaError_t launch(const Arguments& args, int blocks, cudaStream_t stream) {
  using S = Layout<Config>;
  constexpr int kUnits = kHeadsV * S::kBlocksPerHead;  // blocks for a sequence
  const int64_t items = args.sequences * kUnits;
  if (items <= blocks) {
    return start(prefill_kernel<S, false>, static_cast<int>(items), S::kWarps * 32, S::kBytes, stream, args, 0);
  }
  if (args.sequences > kRanked || blocks < kUnits) {
    return start(prefill_kernel<S, true>, blocks, S::kWarps * 32, S::kBytes, stream, args, 0);
  }
  const int groups = blocks / kUnits < 32 ? blocks / kUnits : 32;
  return start(prefill_kernel<S, true>, groups * kUnits, S::kWarps * 32, S::kBytes, stream, args, groups);
}

// The same with kGroups groups of ConfigA and the other blocks in groups of ConfigB.
template <class ConfigA, class ConfigB, int kGroups>
cudaError_t launch_mixed(const Arguments& args, int blocks, cudaStream_t stream) {
  using A = Layout<ConfigA>;
  using B = Layout<ConfigB>;
  static_assert(A::kWarps == B::kWarps, "one launch");
  // In 20 ns, fitted to times of FourTilesFewWarps and EightTiles on an H200.
  constexpr Cost kLong = {225, 68, 150}, kShort = {575, 81, 190};
  constexpr int kA = kHeadsV * A::kBlocksPerHead, kB = kHeadsV * B::kBlocksPerHead;
  const int others = (blocks - kGroups * kA) / kB;
  if (args.sequences > kRanked || others < 1 || kGroups + others > 32 || args.tokens >= 1 << 23) {
    return launch<ConfigB>(args, blocks, stream);
  }
  return start(mixed_kernel<A, B>, kGroups * kA + others * kB, A::kWarps * 32,
               A::kBytes > B::kBytes ? A::kBytes : B::kBytes, stream, args,
               Groups{kGroups + others, kGroups, kLong, kShort});
}

}  // namespace gdn
