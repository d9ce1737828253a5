// Part of run (prefill.cuh): assigns the sequences to the groups of blocks, longest first, and leaves the list of this
// block's group in shared memory. A group has a block for each head and rows. Each block computes the whole assignment.
//
// It uses of run: args, S, kMixed, kBlocks, count, groups, block, group, base.
  const int n = static_cast<int>(args.sequences);
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += S::kWarps * 32) {
    store_word(base + S::kLengths + 4 * i, static_cast<uint32_t>(args.cu_seqlens[i + 1] - args.cu_seqlens[i]));
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += S::kWarps * 32) {
    const uint32_t tokens = load_word(base + S::kLengths + 4 * i);
    int rank = 0;
#pragma unroll 4
    for (int j = 0; j < n; ++j) {
      const uint32_t other = load_word(base + S::kLengths + 4 * j);
      rank += other > tokens || (other == tokens && j < i);
    }
    store_short(base + S::kOrder + 2 * rank, i);
  }
  __syncthreads();
  // Assign each sequence to the group of blocks with the least work; in a mixed launch to the one that would finish it
  // first.
  if (warp == 0) {
    const Cost cost = kMixed ? (lane < groups.count_a ? groups.a : groups.b) : Cost{0, 1, 1};
    uint32_t work = lane < count ? cost.start * 32 + lane : ~0u;  // of group `lane`: time * 32 + group
    int assigned = 0;
#pragma unroll 1
    for (int from = 0; from < n; from += 32) {
      uint16_t sequence = 0;
      uint32_t chunks = 0;
      if (from + lane < n) {
        sequence = load_short(base + S::kOrder + 2 * (from + lane));
        chunks = (load_word(base + S::kLengths + 4 * sequence) + kChunk - 1) / kChunk + !kMixed;
      }
#pragma unroll 1
      for (int i = 0; i < 32 && from + i < n; ++i) {
        uint32_t least;
        if (kMixed) {
          const uint32_t more = cost.chunk * __shfl_sync(kAllLanes, chunks, i) + cost.sequence;
          const uint32_t finish = lane < count ? work + more * 32 : ~0u;
          least = __reduce_min_sync(kAllLanes, finish);
          if (finish == least) {
            work = finish;
          }
        } else {
          least = __reduce_min_sync(kAllLanes, work);
          const uint32_t more = __shfl_sync(kAllLanes, chunks, i);
          if (work == least) {
            work += more * 32;
          }
        }
        if (least % 32 == (kMixed ? group : blockIdx.x / (kHeadsV * kBlocks))) {
          if (lane == i) {
            store_short(base + S::kAssigned + 2 * assigned, sequence);
          }
          ++assigned;
        }
      }
    }
    if (lane == 0) {
      store_short(base + S::kAssigned + 2 * assigned, 0xffff);
    }
  }
  __syncthreads();
