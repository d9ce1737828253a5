// Part of run (prefill.cuh), the role of a chain warp that computes no outputs: the recurrence of one tile. It hands S
// and U of each chunk to an output warp, as operands.
//
// It uses of run: args, S, kStages, warp, lane, g, t, matrix, matrix_row, base, item, next_item, set_extent,
// state_offset, sync_block, ring, as_rows, as_columns32, lower_square, lower_rows.
  constexpr int kBuffers = S::kStepsAhead < 4 ? 2 : 4;
  const int tile = warp;
  float s[16][4];
  const auto load_state = [&] { load_tile(s, args.state + state_offset(tile) + g * kDim + 2 * t); };
  if (args.state != nullptr) {
    load_state();
  }
  sync_block();
  set_extent();
  for (int round = 0; next_item(round); ++round) {
    if (round > 0 && args.state != nullptr) {
      load_state();
    }
    if (args.state == nullptr || item.tokens <= 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0f;
      }
    }
    uint32_t ready = 0;
#pragma unroll 1
    for (int c = 0; c < item.chunks; ++c, ring.next()) {
      const uint32_t stage = base + ring.at * S::kStageBytes, barriers = base + 8 * ring.at, parity = ring.parity;
      const uint32_t slot = stage + S::kSlots + tile * S::kSlotBytes + lane * 16;
      // In the first chunk there is work to do before T is ready. Later chunks wait for T: then k, q and v are ready.
      if (c == 0) {
        wait(barriers + S::kLoaded, parity);
      } else if (!ready) {
        wait(barriers + S::kInverted, parity);
      }
      uint32_t kb[kBuffers][4][4], v[2][4], tb[3][4];
      const auto load_keys = [&](int kk) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          load_matrices(kb[kk % kBuffers][j], stage + S::kK + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
        }
      };
#pragma unroll
      for (int kk = 0; kk < S::kStepsAhead; ++kk) {
        load_keys(kk);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        load_transposed(
            v[j],
            stage + S::kV + unit_of_v<S>(16 * j + (matrix >> 1) * 8 + matrix_row, 2 * tile + (matrix & 1)) * 16);
      }
      float r[4][4] = {};
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        uint32_t so[2][4];
        pack_tile(so, s, kk);
        if (kk == 3) {
          if (c == 0) {
            wait(barriers + S::kInverted, parity);
          }
          load_lower(tb, stage + S::kT + lower_square, stage + S::kT + lower_rows);
        }
        if (kk + S::kStepsAhead < 4) {
          load_keys(kk + S::kStepsAhead);
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
          store_words(slot + S::kStepBytes * (2 * kk + h), so[h][0], so[h][1], so[h][2], so[h][3]);
        }
      }
      arrive(barriers + S::kStateReady + 8 * kStages * tile, lane);
      uint32_t rhs[2][4], largest = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = n / 2, h = n % 2;
        const float2 beta = load_float2(stage + S::kBeta + n * 32 + 8 * t),
                     decay = load_float2(stage + S::kDecay + n * 32 + 8 * t);
        const uint32_t v0 = v[j][2 * h], v1 = v[j][2 * h + 1];
        rhs[j][2 * h] = pack(beta.x * (low(v0) - decay.x * r[n][0]), beta.y * (high(v0) - decay.y * r[n][1]));
        rhs[j][2 * h + 1] = pack(beta.x * (low(v1) - decay.x * r[n][2]), beta.y * (high(v1) - decay.y * r[n][3]));
        largest = max_magnitude(largest, max_magnitude(rhs[j][2 * h], rhs[j][2 * h + 1]));
      }
      const uint32_t flagged = load_word(stage + S::kChunkSlow);
      const float all = load_float(stage + S::kDecay + 4 * (kChunk - 1));
      float u[4][4] = {};
      multiply_lower(u, rhs, tb);
      // The operands of the update are loaded and packed before the branch: fewer registers are alive across it, so
      // none spill.
      constexpr int kColumnsAhead = S::kStepsAhead < 4 ? 1 : 3;
      uint32_t b[kBuffers][2][4];
      const auto load_columns = [&](int i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          load_transposed(b[i % kBuffers][j], stage + S::kK + (as_rows ^ (i << 5)) + j * 16 * 256);
        }
      };
#pragma unroll
      for (int i = 0; i < kColumnsAhead; ++i) {
        load_columns(i);
      }
      uint32_t uo[2][4], ud[2][4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 to_end = load_float2(stage + S::kDecayToEnd + n * 32 + 8 * t);
        uo[n / 2][n % 2 * 2] = pack(u[n][0], u[n][1]);
        uo[n / 2][n % 2 * 2 + 1] = pack(u[n][2], u[n][3]);
        ud[n / 2][n % 2 * 2] = pack(to_end.x * u[n][0], to_end.y * u[n][1]);
        ud[n / 2][n % 2 * 2 + 1] = pack(to_end.x * u[n][2], to_end.y * u[n][3]);
      }
      if (!__any_sync(kAllLanes, !within(largest, kMaxRound) || flagged)) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          s[i][0] *= all, s[i][1] *= all, s[i][2] *= all, s[i][3] *= all;
        }
        store_words(slot + S::kUpdate, uo[0][0], uo[0][1], uo[0][2], uo[0][3]);
        store_words(slot + S::kUpdate + S::kStepBytes, uo[1][0], uo[1][1], uo[1][2], uo[1][3]);
        if (lane == 0) {
          store_word(stage + S::kTileSlow + 4 * tile, 0);
        }
        arrive(barriers + S::kUpdateReady + 8 * kStages * tile, lane);
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
          store_word(stage + S::kTileSlow + 4 * tile, 1);
        }
        arrive(barriers + S::kUpdateReady + 8 * kStages * tile, lane);
        ready = 0;
        float4 state[16];
        to_memory(state, s);
        redo_chunk<S>(args, item, item.tokens - c * kChunk, tile, state, stage,
                      __any_sync(kAllLanes, !within(largest, kMaxRhs) || flagged));
        to_registers(s, state);
      }
      arrive(barriers + S::kEmpty, lane);
    }
    store_tile(args.new_state + state_offset(tile) + g * kDim + 2 * t, s);
  }
