// Part of run (prefill.cuh), the role of a chain warp of a merged config: the recurrence and the outputs of one or two
// tiles. The products with k and q share the operands of S, and two tiles share k and q.
//
// It uses of run: args, S, warp, lane, g, t, matrix, matrix_row, base, item, next_item, set_extent, state_offset,
// sync_block, ring, as_rows, as_columns32, lower_square, lower_rows.
  constexpr int kTilesPerWarp = S::kTilesPerChain;
  const int first_tile = warp * kTilesPerWarp;
  float s[kTilesPerWarp][16][4];
  const auto load_state = [&] {
#pragma unroll
    for (int m = 0; m < kTilesPerWarp; ++m) {
      load_tile(s[m], args.state + state_offset(first_tile + m) + g * kDim + 2 * t);
    }
  };
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
      for (int m = 0; m < kTilesPerWarp; ++m) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          s[m][i][0] = s[m][i][1] = s[m][i][2] = s[m][i][3] = 0.0f;
        }
      }
    }
    // The place of this lane's first 16 bytes of outputs.
    constexpr int kPieces = 2 * kTilesPerWarp, kRows = 32 / kPieces;  // of a token; tokens of a store
    __nv_bfloat16* output = args.output + ((item.begin + lane / kPieces) * kHeadsV + item.hv) * kDim + item.row +
                            first_tile * 16 + lane % kPieces * 8;
#pragma unroll 1
    for (int left = item.tokens; left > 0; left -= kChunk, output += kChunk * kHeadsV * kDim, ring.next()) {
      const uint32_t stage = base + ring.at * S::kStageBytes, barriers = base + 8 * ring.at, parity = ring.parity;
      wait(barriers + S::kInverted, parity);
      uint32_t kb[2][4], qb[2][4];
      const auto load_rows = [&](int step) {
        const int kk = step / 4, j = step % 4;
        load_matrices(kb[step % 2], stage + S::kK + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
        load_matrices(qb[step % 2], stage + S::kQ + (as_columns32 ^ (kk * 64)) + j * 8 * 256);
      };
      load_rows(0);
      float r[kTilesPerWarp][4][4] = {}, o[kTilesPerWarp][4][4] = {};
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        uint32_t so[kTilesPerWarp][2][4];
#pragma unroll
        for (int m = 0; m < kTilesPerWarp; ++m) {
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
            for (int m = 0; m < kTilesPerWarp; ++m) {
              mma(r[m][j], so[m][h], kb[step % 2][2 * h], kb[step % 2][2 * h + 1]);
              mma(o[m][j], so[m][h], qb[step % 2][2 * h], qb[step % 2][2 * h + 1]);
            }
          }
        }
      }
      uint32_t rhs[kTilesPerWarp][2][4], v[kTilesPerWarp][2][4], largest[kTilesPerWarp], tb[3][4];
#pragma unroll
      for (int m = 0; m < kTilesPerWarp; ++m) {
        largest[m] = 0;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          load_transposed(
              v[m][j],
              stage + S::kV +
                  unit_of_v<S>(16 * j + (matrix >> 1) * 8 + matrix_row, 2 * (first_tile + m) + (matrix & 1)) * 16);
        }
      }
      load_lower(tb, stage + S::kT + lower_square, stage + S::kT + lower_rows);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = n / 2, h = n % 2;
        const float2 beta = load_float2(stage + S::kBeta + n * 32 + 8 * t),
                     decay = load_float2(stage + S::kDecay + n * 32 + 8 * t);
#pragma unroll
        for (int m = 0; m < kTilesPerWarp; ++m) {
          const uint32_t v0 = v[m][j][2 * h], v1 = v[m][j][2 * h + 1];
          rhs[m][j][2 * h] =
              pack(beta.x * (low(v0) - decay.x * r[m][n][0]), beta.y * (high(v0) - decay.y * r[m][n][1]));
          rhs[m][j][2 * h + 1] =
              pack(beta.x * (low(v1) - decay.x * r[m][n][2]), beta.y * (high(v1) - decay.y * r[m][n][3]));
          o[m][n][0] *= decay.x, o[m][n][1] *= decay.y, o[m][n][2] *= decay.x, o[m][n][3] *= decay.y;
          largest[m] = max_magnitude(largest[m], max_magnitude(rhs[m][j][2 * h], rhs[m][j][2 * h + 1]));
        }
      }
      const uint32_t flagged = load_word(stage + S::kChunkSlow);
      const float all = load_float(stage + S::kDecay + 4 * (kChunk - 1));
      float u[kTilesPerWarp][4][4] = {};
#pragma unroll
      for (int m = 0; m < kTilesPerWarp; ++m) {
        multiply_lower(u[m], rhs[m], tb);
      }
      bool plain[kTilesPerWarp], all_plain = true;
#pragma unroll
      for (int m = 0; m < kTilesPerWarp; ++m) {
        plain[m] = !__any_sync(kAllLanes, !within(largest[m], kMaxRound) || flagged);
        all_plain &= plain[m];
      }
      wait(barriers + S::kScored, parity);
      // Both tiles together, or one alone if the other is not plain.
      const auto finish = [&](auto from, auto to) {
        constexpr int kFrom = decltype(from)::value, kTo = decltype(to)::value;
        uint32_t ud[kTilesPerWarp][2][4];
        {
          uint32_t p[3][4], uo[kTilesPerWarp][2][4];
          load_lower(p, stage + S::kP + lower_square, stage + S::kP + lower_rows);
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const float2 to_end = load_float2(stage + S::kDecayToEnd + n * 32 + 8 * t);
#pragma unroll
            for (int m = kFrom; m < kTo; ++m) {
              uo[m][n / 2][n % 2 * 2] = pack(u[m][n][0], u[m][n][1]);
              uo[m][n / 2][n % 2 * 2 + 1] = pack(u[m][n][2], u[m][n][3]);
              ud[m][n / 2][n % 2 * 2] = pack(to_end.x * u[m][n][0], to_end.y * u[m][n][1]);
              ud[m][n / 2][n % 2 * 2 + 1] = pack(to_end.x * u[m][n][2], to_end.y * u[m][n][3]);
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
            load_transposed(b[i % 2][j], stage + S::kK + (as_rows ^ (i << 5)) + j * 16 * 256);
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
              const __nv_bfloat162 y =
                  __floats2bfloat162_rn(args.scale * o[m][n][2 * h], args.scale * o[m][n][2 * h + 1]);
              w[n][h] = *reinterpret_cast<const uint32_t*>(&y);
            }
          }
          // Rows of 16 bytes for each tile, two units; with two tiles, unit u of a token is at u ^ token / 2 % 4.
          const uint32_t out = base + S::kOutputRows + first_tile * kChunk * 48,
                         token = (matrix >> 1) * 8 + matrix_row;
          if (kTilesPerWarp == 1) {
            store_transposed(out + token * 48 + (matrix & 1) * 16, w[0][0], w[0][1], w[1][0], w[1][1]);
            store_transposed(out + (16 + token) * 48 + (matrix & 1) * 16, w[2][0], w[2][1], w[3][0], w[3][1]);
          } else {
            const uint32_t unit = (2 * m + (matrix & 1)) ^ (matrix_row >> 1);
            store_transposed(out + token * 64 + unit * 16, w[0][0], w[0][1], w[1][0], w[1][1]);
            store_transposed(out + (16 + token) * 64 + unit * 16, w[2][0], w[2][1], w[3][0], w[3][1]);
          }
        }
        __syncwarp();
        const uint32_t out = base + S::kOutputRows + first_tile * kChunk * 48;
#pragma unroll
        for (int i = 0; i < 32 / kRows; ++i) {
          const int token = lane / kPieces, piece = lane % kPieces;
          uint32_t y[4];
          load_words(y, out + (i * kRows + token) * (kTilesPerWarp == 1 ? 48 : 64) +
                            (kTilesPerWarp == 1 ? piece : piece ^ (token >> 1)) * 16);
          if (i * kRows + token < left && (kFrom == 0 || piece >= 2) && (kTo == kTilesPerWarp || piece < 2)) {
            store_vector(output + i * kRows * kHeadsV * kDim, y);
          }
        }
        __syncwarp();
      };
      if (all_plain) {
        finish(std::integral_constant<int, 0>(), std::integral_constant<int, kTilesPerWarp>());
      } else {
        if constexpr (kTilesPerWarp == 2) {
          if (plain[0]) {
            finish(std::integral_constant<int, 0>(), std::integral_constant<int, 1>());
          } else if (plain[1]) {
            finish(std::integral_constant<int, 1>(), std::integral_constant<int, 2>());
          }
        }
#pragma unroll
        for (int m = 0; m < kTilesPerWarp; ++m) {
          if (!plain[m]) {
            float4 state[16];
            to_memory(state, s[m]);
            redo_chunk<S>(args, item, left, first_tile + m, state, stage,
                          __any_sync(kAllLanes, !within(largest[m], kMaxRhs) || flagged));
            to_registers(s[m], state);
          }
        }
      }
      arrive(barriers + S::kEmpty, lane);
    }
#pragma unroll
    for (int m = 0; m < kTilesPerWarp; ++m) {
      store_tile(args.new_state + state_offset(first_tile + m) + g * kDim + 2 * t, s[m]);
    }
  }
