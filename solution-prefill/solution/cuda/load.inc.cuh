// Part of run (prefill.cuh), the role of a loader: it brings k, q and v of a chunk into shared memory, from registers
// that were loaded a chunk ahead. k and q become float16 on the way. Loaders work in one team, or in two that
// alternate by chunk.
//
// It uses of run: args, S, kTiles, kTeams, kTeamWarps, warp, lane, base, item, next_item, set_extent, state_offset,
// single_sequence, sync_block, ring.
  constexpr int kThreads = 32 * kTeamWarps,
                kPieces = kChunk * 16 / kThreads;  // of 16 bytes, of k and of q, for each thread
  constexpr int kUnits = 2 * kTiles, kVectors = (kChunk * kUnits + kThreads - 1) / kThreads, kStep = kThreads / 16;
  const int team = (warp - S::kFirstLoader) / kTeamWarps, member = (warp - S::kFirstLoader) % kTeamWarps,
            thread = member * 32 + lane;
  const int token = thread / 16,
            v_token = thread / kUnits;  // of piece 0; piece i is kStep tokens further, and so on
  const bool has_v = thread < kChunk * kUnits;
  uint4 k[kPieces], q[kPieces], v[kVectors];
  const __nv_bfloat16 *k_from, *q_from, *v_from;
  const auto start = [&](int64_t begin) {  // at the team's first chunk
    begin += team * kChunk;
    const size_t at = ((begin + token) * kHeadsQK + item.hv / 2) * kDim + thread % 16 * 8;
    k_from = args.k + at, q_from = args.q + at;
    v_from = args.v + ((begin + v_token) * kHeadsV + item.hv) * kDim + item.row + thread % kUnits * 8;
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
    k_from += kTeams * kChunk * kHeadsQK * kDim, q_from += kTeams * kChunk * kHeadsQK * kDim,
        v_from += kTeams * kChunk * kHeadsV * kDim;
  };
  if (single_sequence) {
    start(0);
    load_chunk(static_cast<int>(args.tokens) - team * kChunk);
  }
  sync_block();
  set_extent();
  for (int round = 0; next_item(round); ++round) {
    if (item.chunks <= 0) {
      continue;
    }
    if (round > 0 && args.state != nullptr) {
      for (int i = thread; i < 64 * kTiles; i += kThreads) {
        prefetch(args.state + state_offset(0) + i * 32);
      }
    }
    if (!single_sequence || item.begin != 0 || item.tokens != args.tokens) {
      start(item.begin);
      load_chunk(item.tokens - team * kChunk);
    }
    // Into the L2: each thread 128 bytes of k or q, and of v.
    const int line_token = thread / 4;
    const __nv_bfloat16* line_from = (thread % 4 < 2 ? args.k : args.q) +
                                     ((item.begin + line_token) * kHeadsQK + item.hv / 2) * kDim + thread % 2 * 64;
    const __nv_bfloat16* v_line_from = args.v + ((item.begin + line_token) * kHeadsV + item.hv) * kDim + item.row;
    const auto prefetch_chunk = [&](int c) {
#pragma unroll
      for (int i = 0; i < 128 / kThreads; ++i) {
        const int offset = c * kChunk + i * (kThreads / 4);
        if (offset + line_token < item.tokens) {
          prefetch(line_from + static_cast<size_t>(offset) * (kHeadsQK * kDim));
          if (thread % 4 == 0) {
            prefetch(v_line_from + static_cast<size_t>(offset) * (kHeadsV * kDim));
          }
        }
      }
    };
#pragma unroll 1
    for (int c = 0; c < item.chunks; ++c, ring.next()) {
      if (kTeams > 1 && c % kTeams != team) {
        continue;
      }
      const uint32_t stage = base + ring.at * S::kStageBytes, barriers = base + 8 * ring.at, parity = ring.parity;
      wait(barriers + S::kEmpty, parity ^ 1);
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
      // Piece i is kStep tokens further; for steps of less than 8 tokens the swizzle changes with i.
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        store(stage + S::kK + (token + i * kStep) * 256 + (((thread % 16) ^ ((token + i * kStep) % 8)) << 4), k[i],
              false);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (has_v) {
          const int at = i * kThreads + thread;
          store_words(stage + S::kV + unit_of_v<S>(at / kUnits, at % kUnits) * 16, v[i].x, v[i].y, v[i].z, v[i].w);
        }
      }
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        store(stage + S::kQ + (token + i * kStep) * 256 + (((thread % 16) ^ ((token + i * kStep) % 8)) << 4), q[i],
              true);
      }
      const bool large = __any_sync(kAllLanes, !within(largest, kMaxQ));
      if (lane == 0) {
        store_word(stage + S::kLoaderLarge + 4 * member, large);
      }
      arrive(barriers + S::kLoaded, lane);
      if (c + kTeams < item.chunks) {
        load_chunk(item.tokens - (c + kTeams) * kChunk);
        if (c < kTeams) {
          prefetch_chunk(c + (kTeams > 1 ? 2 * kTeams : 2));
        }
        prefetch_chunk(c + (kTeams > 1 ? 3 * kTeams : 3));
      }
    }
  }
