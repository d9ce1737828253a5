// Part of the switch of run.h: matrix products. All lanes of the warp take part (MISSING_LANES), except in tcgen05.mma.
    case E_wgmma: {
      MISSING_LANES(~0u)
      synchronised(w);
      g->pc = pc;
      if (!wgmma(k, w, g, in, base, extra)) FAULTED
      break;
    }
    case E_tc_move: {
      MISSING_LANES(~0u)
      synchronised(w);
      g->pc = pc;
      effect(k);
      if (!tc_move(k, w, g, in, base, extra)) FAULTED
      break;
    }
    case E_tc_mma: g->pc = pc; effect(k); EACH(m) if (!tc_multiply(k, w, g, in, base, l, extra)) FAULTED break;
    case E_tcgen05: {
      if (in->kind <= TC_DEALLOC) { MISSING_LANES(~0u) synchronised(w); }
      g->pc = pc;
      effect(k);
      if (!tcgen05(k, w, g, in, base, m, extra)) FAULTED
      break;
    }
    case E_ldmatrix: case E_stmatrix: {
      MISSING_LANES(~0u)
      synchronised(w);
      g->pc = pc;
      if (!ldmatrix(k, w, g, in, base, extra)) FAULTED
      break;
    }
    case E_movmatrix: {
      MISSING_LANES(~0u)
      synchronised(w);
      u32 s[32], *d = U32(in->d);
      memcpy(s, U32(in->a), sizeof s);
      for (int l = 0; l < 32; l++) { // lane l holds row l / 4, columns 2 * (l % 4) and the next
        int r = l >> 2, c = (l & 3) * 2;
        d[l] = (s[c * 4 + r / 2] >> 16 * (r & 1) & 0xffff) | (s[(c + 1) * 4 + r / 2] >> 16 * (r & 1)) << 16;
      }
      break;
    }
    case E_mma: {
      MISSING_LANES(~0u)
      synchronised(w);
      mma(in, base, extra);
      break;
    }
    case E_mma_f64: {
      MISSING_LANES(~0u)
      synchronised(w);
      mma_f64(in, base, extra);
      break;
    }
