// Part of run (prefill.cuh), the role of a preparer: the gates of a chunk, then T = (I + A)^-1, then P. Preparers
// alternate by chunk. I + A is inverted by blocks: the diagonal 8 x 8 blocks in float32 by forward substitution, the
// others by products.
//
// It uses of run: args, S, kTeamWarps, warp, lane, g, t, matrix, matrix_row, base, item, next_item, set_extent,
// single_sequence, sync_block, initialise_barriers, ring, as_rows.
  const int preparer = warp - S::kFirstPreparer - (S::kIdleWarps == 1 && warp > 4);
  const uint32_t scratch = base + S::kScratch + preparer * S::kScratchBytes;
  int next_preparer = 0;
  uint16_t gate_a = 0, gate_b = 0;  // of this warp's next chunk
  float a_log = load_global(args.a_log + item.hv), dt_bias = load_global(args.dt_bias + item.hv);
  const auto load_gates = [&](int64_t token) {
    gate_a = load_global(args.a + token * kHeadsV + item.hv),
    gate_b = load_global(args.b + token * kHeadsV + item.hv);
  };
  const bool gates_preloaded = single_sequence && preparer * kChunk + lane < args.tokens;
  if (gates_preloaded) {
    load_gates(preparer * kChunk + lane);
  }
  if (S::kMerged && preparer == 0 && lane == 0) {
    initialise_barriers();
  }
  sync_block();
  set_extent();
  bool gates_loaded = single_sequence && item.begin == 0;
  for (int round = 0; next_item(round); ++round) {
    if (round > 0) {
      a_log = load_global(args.a_log + item.hv), dt_bias = load_global(args.dt_bias + item.hv);
      gates_loaded = false;
    }
#pragma unroll 1
    for (int c = 0; c < item.chunks;
         ++c, ring.next(), next_preparer = next_preparer + 1 == S::kPreparers ? 0 : next_preparer + 1) {
      if (next_preparer != preparer) {
        continue;
      }
      const uint32_t stage = base + ring.at * S::kStageBytes, barriers = base + 8 * ring.at, parity = ring.parity;
      // Gates, a token in each lane.
      const int left = item.tokens - c * kChunk - lane;
      if (!gates_loaded && left > 0) {
        load_gates(item.begin + c * kChunk + lane);
      }
      float log_sum_own = 0.0f, beta_own = 0.0f;
      if (left > 0) {
        log_sum_own = fmaxf(log2_decay(a_log, low(gate_a), dt_bias), -160.0f);  // exp2 of that is 0
        beta_own = sigmoid(low(gate_b));
      }
      if (left > S::kPreparers * kChunk) {
        load_gates(item.begin + (c + S::kPreparers) * kChunk + lane);
      }
      gates_loaded = true;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const float before = __shfl_up_sync(kAllLanes, log_sum_own, offset);
        log_sum_own += lane >= offset ? before : 0.0f;
      }
      const float last = __shfl_sync(kAllLanes, log_sum_own, 31), decay = exp2_approx(log_sum_own);
      wait(barriers + S::kEmpty, parity ^ 1);
      store_float(stage + S::kLogSum + 4 * lane, log_sum_own);
      store_float(stage + S::kBeta + 4 * lane, beta_own);
      store_float(stage + S::kDecay + 4 * lane, decay);
      store_float(stage + S::kDecayToEnd + 4 * lane, exp2_approx(last - log_sum_own));
      __syncwarp();
      float log_sum[4], beta[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        log_sum[i] = load_float(stage + S::kLogSum + 4 * (8 * i + g)),
        beta[i] = load_float(stage + S::kBeta + 4 * (8 * i + g));
      }
      float2 log_sum_column[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        log_sum_column[i] = load_float2(stage + S::kLogSum + 4 * (8 * i + 2 * t));
      }
      // exp(G_i - G_j) for row 8 row + g and column 8 column + 2t + e.
      const auto decay_of = [&](int row, int column, int e) {
        return exp2_approx(log_sum[row] - (e ? log_sum_column[column].y : log_sum_column[column].x));
      };
      wait(barriers + S::kLoaded, parity);
      uint32_t k[8][2][4];  // k16 step, 16 tokens; kept for P
      float acc[6][4] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        load_matrices(k[i][0], stage + S::kK + (as_rows ^ (i << 5)));
        load_matrices(k[i][1], stage + S::kK + (as_rows ^ (i << 5)) + 16 * 256);
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
      if constexpr (kTeamWarps == 4) {
        uint32_t loaders[4];
        load_words(loaders, stage + S::kLoaderLarge);
        large = (loaders[0] | loaders[1] | loaders[2] | loaders[3]) != 0;
      } else {
#pragma unroll
        for (int i = 0; i < kTeamWarps; ++i) {
          large |= load_word(stage + S::kLoaderLarge + 4 * i) != 0;
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
      large = __any_sync(kAllLanes, large);
      if (lane == 0) {
        store_word(stage + S::kChunkSlow, large);
      }
      __syncwarp();
      // Column lane % 8 of the inverse of diagonal block lane / 8.
      float inverse[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        inverse[i] = matrix_row == i ? 1.0f : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < 7; ++j) {
#pragma unroll
        for (int i4 = (j + 1) / 4; i4 < 2; ++i4) {
          float e[4];
          load_float4(e, scratch + matrix * 400 + 4 * (j * 12 + 4 * i4));
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
        store_half(stage + S::kT + (matrix * 8 + i) * kPitch * 2 + lane * 2, inverse[i]);
        if (matrix % 2 == 0) {  // above it, within the 16 x 16 block, are zeros
          store_half(stage + S::kT + (matrix * 8 + i) * kPitch * 2 + (lane + 8) * 2, 0.0f);
        }
      }
      __syncwarp();
      // Two blocks at once: T10 = T11 (-A10) T00 and T32 = T33 (-A32) T22.
      {
        uint32_t d[4];  // blocks (1, 1), (3, 3); (0, 0), (2, 2)
        const int m = matrix < 2 ? 2 * matrix + 1 : 2 * (matrix - 2);
        const uint32_t from = stage + S::kT + (8 * m + matrix_row) * kPitch * 2 + m * 16;
        load_matrices(d, from);
        float y0[4] = {}, y1[4] = {}, z0[4] = {}, z1[4] = {};
        mma_k8(y0, d[0], d[1], a10);
        mma_k8(y1, d[0], d[1], a32);
        const uint32_t top = pack(y0[0], y0[1]), bottom = pack(y1[2], y1[3]);
        mma_k8(z0, top, bottom, transpose(d[2]));
        mma_k8(z1, top, bottom, transpose(d[3]));
        store_word(stage + S::kT + (8 + g) * kPitch * 2 + 4 * t, pack(z0[0], z0[1]));
        store_word(stage + S::kT + (24 + g) * kPitch * 2 + 32 + 4 * t, pack(z1[2], z1[3]));
      }
      __syncwarp();
      // And the 16 x 16 block below the diagonal, likewise.
      {
        uint32_t t22[4], t11[4];
        load_matrices(t22,
                      stage + S::kT + (16 + (matrix & 1) * 8 + matrix_row) * kPitch * 2 + 32 + (matrix >> 1) * 16);
        load_transposed(t11, stage + S::kT + ((matrix & 1) * 8 + matrix_row) * kPitch * 2 + (matrix >> 1) * 16);
        float y0[4] = {}, y1[4] = {}, z0[4] = {}, z1[4] = {};
        mma(y0, t22, a21[0], a21[1]);
        mma(y1, t22, a21[2], a21[3]);
        const uint32_t y[4] = {pack(y0[0], y0[1]), pack(y0[2], y0[3]), pack(y1[0], y1[1]), pack(y1[2], y1[3])};
        mma(z0, y, t11[0], t11[1]);
        mma(z1, y, t11[2], t11[3]);
        const uint32_t row = stage + S::kT + (16 + g) * kPitch * 2 + 4 * t;
        store_word(row, pack(z0[0], z0[1]));
        store_word(row + 16, pack(z1[0], z1[1]));
        store_word(row + 8 * kPitch * 2, pack(z0[2], z0[3]));
        store_word(row + 8 * kPitch * 2 + 16, pack(z1[2], z1[3]));
      }
      arrive(barriers + S::kInverted, lane);
      float p[6][4] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint32_t q0[4], q1[4];
        load_matrices(q0, stage + S::kQ + (as_rows ^ (i << 5)));
        load_matrices(q1, stage + S::kQ + (as_rows ^ (i << 5)) + 16 * 256);
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
          store_word(stage + S::kP + i * kPitch * 2 + j * 2, pack(p0, p1));
        }
      }
      arrive(barriers + S::kScored, lane);
    }
  }
