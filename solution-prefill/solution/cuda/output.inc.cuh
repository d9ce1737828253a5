// Part of run (prefill.cuh), the role of an output warp: the outputs of one or more tiles, from S and U as the chain
// warps hand them over.
//
// It uses of run: args, S, kTiles, kStages, warp, lane, t, matrix, matrix_row, base, item, next_item, set_extent,
// sync_block, initialise_barriers, ring, as_columns32, lower_square, lower_rows.
  constexpr int kTilesPerWarp = S::kMerged ? 1 : kTiles / (S::kOutputs + S::kMerged);
  const int first_tile = (warp - kTiles) * kTilesPerWarp;
  if (lane == 0 && warp == kTiles) {
    initialise_barriers();
  }
  sync_block();
  set_extent();
  for (int round = 0; next_item(round); ++round) {
#pragma unroll 1
    for (int c = 0; c < item.chunks; ++c, ring.next()) {
      const uint32_t stage = base + ring.at * S::kStageBytes, barriers = base + 8 * ring.at, parity = ring.parity;
#pragma unroll
      for (int i = 0; i < kTilesPerWarp; ++i) {
        wait(barriers + S::kStateReady + 8 * kStages * (first_tile + i), parity);
      }
      wait(barriers + S::kLoaded, parity);
      float o[kTilesPerWarp][4][4] = {};
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        uint32_t a[kTilesPerWarp][2][4], b[4][4];
#pragma unroll
        for (int i = 0; i < kTilesPerWarp; ++i) {
          load_words(a[i][0], stage + S::kSlots + (first_tile + i) * S::kSlotBytes + lane * 16 +
                                  S::kStepBytes * (2 * kk));
          load_words(a[i][1], stage + S::kSlots + (first_tile + i) * S::kSlotBytes + lane * 16 +
                                  S::kStepBytes * (2 * kk + 1));
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          load_matrices(b[j], stage + S::kQ + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int i = 0; i < kTilesPerWarp; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              mma(o[i][j], a[i][h], b[j][2 * h], b[j][2 * h + 1]);
            }
          }
        }
      }
      wait(barriers + S::kScored, parity);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 decay = load_float2(stage + S::kDecay + n * 32 + 8 * t);
#pragma unroll
        for (int i = 0; i < kTilesPerWarp; ++i) {
          o[i][n][0] *= decay.x, o[i][n][1] *= decay.y, o[i][n][2] *= decay.x, o[i][n][3] *= decay.y;
        }
      }
      uint32_t p[3][4];
      load_lower(p, stage + S::kP + lower_square, stage + S::kP + lower_rows);
      uint32_t a[kTilesPerWarp][2][4], slow[kTilesPerWarp];
#pragma unroll
      for (int i = 0; i < kTilesPerWarp; ++i) {
        wait(barriers + S::kUpdateReady + 8 * kStages * (first_tile + i), parity);
        load_words(a[i][0], stage + S::kSlots + (first_tile + i) * S::kSlotBytes + lane * 16 + S::kUpdate);
        load_words(a[i][1], stage + S::kSlots + (first_tile + i) * S::kSlotBytes + lane * 16 + S::kUpdate +
                                S::kStepBytes);
        slow[i] = load_word(stage + S::kTileSlow + 4 * (first_tile + i));
      }
      arrive(barriers + S::kEmpty, lane);
#pragma unroll
      for (int i = 0; i < kTilesPerWarp; ++i) {
        if (slow[i]) {
          continue;
        }
        multiply_lower(o[i], a[i], p);
        uint32_t w[4][2];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const __nv_bfloat162 y =
                __floats2bfloat162_rn(args.scale * o[i][n][2 * h], args.scale * o[i][n][2 * h + 1]);
            w[n][h] = *reinterpret_cast<const uint32_t*>(&y);
          }
        }
        const uint32_t out = base + S::kOutputRows + (first_tile + i) * kChunk * 48;
        store_transposed(out + ((matrix >> 1) * 8 + matrix_row) * 48 + (matrix & 1) * 16, w[0][0], w[0][1], w[1][0],
                         w[1][1]);
        store_transposed(out + (16 + (matrix >> 1) * 8 + matrix_row) * 48 + (matrix & 1) * 16, w[2][0], w[2][1],
                         w[3][0], w[3][1]);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int token = 16 * j + lane / 2;
          uint32_t y[4];
          load_words(y, out + token * 48 + lane % 2 * 16);
          if (c * kChunk + token < item.tokens) {
            const int64_t at = ((item.begin + c * kChunk + token) * kHeadsV + item.hv) * kDim + item.row +
                               (first_tile + i) * 16 + lane % 2 * 8;
            store_vector(args.output + at, y);
          }
        }
        __syncwarp();
      }
    }
  }
