// Part of the switch of run.h: register operations that are not lane by lane as in ops.h: predicates, carries,
// conversions.
    case E_nop:
      break;
#define HALVES(f, op)                                                                             \
  LANES { lo[l] = f(a_[l] & 0xffff, b_[l] & 0xffff, c_[l] & 0xffff, op); }                         \
  LANES { r[l] = flags & A_X2 ? lo[l] | f(a_[l] >> 16, b_[l] >> 16, c_[l] >> 16, op) << 16 : lo[l]; } \
  break;
    case E_h_arith: {
      const u32 *a_ = U32(in->a), *b_ = U32(in->b), *c_ = U32(in->c);
      int flags = (int)in->imm;
      u32 *r = scratch, lo[32];
      switch ((flags & ~(A_X2 | A_BF16) ? -1 : in->kind) * 2 + (flags & A_BF16 ? 1 : 0)) {
      case 2 * A_ADD: HALVES(f16_sum, A_ADD)
      case 2 * A_SUB: HALVES(f16_sum, A_SUB)
      case 2 * A_MUL: HALVES(f16_sum, A_MUL)
      case 2 * A_FMA: HALVES(f16_sum, A_FMA)
      case 2 * A_ADD + 1: HALVES(bf16_sum, A_ADD)
      case 2 * A_SUB + 1: HALVES(bf16_sum, A_SUB)
      case 2 * A_MUL + 1: HALVES(bf16_sum, A_MUL)
      case 2 * A_FMA + 1: HALVES(bf16_sum, A_FMA)
      default: for (int l = 0; l < 32; l++) r[l] = h_arith(a_[l], b_[l], c_[l], in->kind, flags);
      }
      if (m == ~0u) memcpy(U32(in->d), r, 128);
      else blend32(U32(in->d), r, m);
      break;
    }
// Which NaN results is decided only if there is one.
#define CASE_F64(id, expr, nan)                                                                       \
    case E_##id: {                                                                                    \
      const f64 *a_ = (const f64 *)P(in->a), *b_ = (const f64 *)P(in->b), *c_ = (const f64 *)P(in->c); \
      f64 *r = scratch;                                                                               \
      u64 *bits = scratch, odd = 0;                                                                   \
      (void)c_;                                                                                       \
      LANES { f64 a = a_[l], b = b_[l], c = c_[l]; (void)c; r[l] = expr; }                            \
      LANES odd |= (u64)(r[l] != r[l]);                                                               \
      if (odd) for (int l = 0; l < 32; l++) { f64 a = a_[l], b = b_[l], c = c_[l]; (void)c; bits[l] = nan; } \
      if (m == ~0u) memcpy(P(in->d), scratch, 256);                                                   \
      else blend64(U64(in->d), scratch, m);                                                           \
      break;                                                                                          \
    }
    CASE_F64(add_f64, a + b, nan_of(a + b, b, a, a))
    CASE_F64(sub_f64, a - b, nan_of(a - b, b, a, a))
    CASE_F64(mul_f64, a * b, nan_of(a * b, b, a, a))
    CASE_F64(fma_f64, FMA64(a, b, c), nan_of(FMA64(a, b, c), c, b, a))
    case E_mov_32:
      if (m == ~0u) memmove(U32(in->d), U32(in->a), 128);
      else blend32(U32(in->d), U32(in->a), m);
      break;
    case E_nonzero: // a: the divisor; n: 1 if it has 64 bits
      EACH(m)
        if ((in->n ? U64(in->a)[l] : U32(in->a)[l]) == 0) {
          g->pc = pc;
          FAULT(k, w, g, (int)l, division);
          if (state->stop) FAULTED
          break;
        }
      break;
    case E_undefined: { // a: the shadow of a register
      const u32 *s = U32(in->a);
      u32 bad = 0, any = 0;
      LANES any |= s[l];
      if (any) EACH(m) bad |= (u32)(s[l] != 0) << l;
      if (bad) {
        int lane = __builtin_ctz(bad);
        g->pc = s[lane] == ~0u ? pc : (int)s[lane] - 1;
        FAULT(k, w, g, lane, unwritten_register);
        g->pc = pc;
        if (state->stop) FAULTED
      }
      break;
    }
    case E_selp_32: {
      const u32 *a_ = U32(in->a), *b_ = U32(in->b);
      u32 p = PRED(in->c);
      STORE(u32, d[l] = p >> l & 1 ? a_[l] : b_[l])
      break;
    }
    case E_selp_64: {
      const u64 *a_ = U64(in->a), *b_ = U64(in->b);
      u32 p = PRED(in->c);
      STORE(u64, d[l] = p >> l & 1 ? a_[l] : b_[l])
      break;
    }
    case E_pand: PRED(in->d) = (PRED(in->d) & ~m) | (PRED(in->a) & PRED(in->b) & m); break;
    case E_por: PRED(in->d) = (PRED(in->d) & ~m) | ((PRED(in->a) | PRED(in->b)) & m); break;
    case E_pxor: PRED(in->d) = (PRED(in->d) & ~m) | ((PRED(in->a) ^ PRED(in->b)) & m); break;
    case E_pnot: PRED(in->d) = (PRED(in->d) & ~m) | (~PRED(in->a) & m); break;
    case E_pmov: PRED(in->d) = (PRED(in->d) & ~m) | (PRED(in->a) & m); break;
    case E_pconst: PRED(in->d) = (PRED(in->d) & ~m) | (in->imm ? m : 0); break;
    case E_setp_h: {
      const u32 *a_ = U32(in->a), *b_ = U32(in->b);
      u32 r = 0;
      for (int l = 0; l < 32; l++) {
        f64 x = half_value(a_[l] >> in->n & 0xffff, (int)in->imm), y = half_value(b_[l] >> in->n & 0xffff, (int)in->imm);
        int lt = x < y, gt = x > y, eq = x == y, un = x != x || y != y, v = 0;
        switch (in->kind) {
        case CMP_EQ: v = eq; break;
        case CMP_NE: v = lt | gt; break;
        case CMP_LT: v = lt; break;
        case CMP_LE: v = lt | eq; break;
        case CMP_GT: v = gt; break;
        case CMP_GE: v = gt | eq; break;
        case CMP_EQU: v = eq | un; break;
        case CMP_NEU: v = !eq; break;
        case CMP_LTU: v = lt | un; break;
        case CMP_LEU: v = !gt; break;
        case CMP_GTU: v = gt | un; break;
        case CMP_GEU: v = !lt; break;
        case CMP_NUM: v = !un; break;
        case CMP_NAN: v = un; break;
        }
        r |= (u32)v << l;
      }
      PRED(in->d) = (PRED(in->d) & ~m) | (r & m);
      break;
    }
    case E_testp_f32: case E_testp_f64: {
      u32 r = 0;
      for (int l = 0; l < 32; l++) {
        u64 v, e, frac;
        if (in->op == E_testp_f32) v = U32(in->a)[l], e = v >> 23 & 255, e = e == 255 ? 2047 : e, frac = v & 0x7fffff;
        else v = U64(in->a)[l], e = v >> 52 & 2047, frac = v & 0xfffffffffffffull;
        int nan = e == 2047 && frac, inf = e == 2047 && !frac, sub = e == 0 && frac, t = 0;
        switch (in->kind) {
        case TEST_FINITE: t = !nan && !inf; break;
        case TEST_INFINITE: t = inf; break;
        case TEST_NUMBER: t = !nan; break;
        case TEST_NOTANUMBER: t = nan; break;
        case TEST_NORMAL: t = !nan && !inf && !sub; break;
        case TEST_SUBNORMAL: t = sub; break;
        }
        r |= (u32)t << l;
      }
      PRED(in->d) = (PRED(in->d) & ~m) | (r & m);
      break;
    }
    case E_isspacep: {
      const u64 *a_ = U64(in->a);
      u32 r = 0;
      for (int l = 0; l < 32; l++) {
        u64 t = a_[l] >> 56;
        r |= (u32)(in->kind == SHARED ? t == 0x40 : in->kind == LOCAL ? t == 0x41 : t != 0x40 && t != 0x41 && in->kind == GLOBAL) << l;
      }
      PRED(in->d) = (PRED(in->d) & ~m) | (r & m);
      break;
    }
    case E_bfi_32: {
      const u32 *a_ = U32(in->a), *b_ = U32(in->b), *c_ = U32(in->c), *e_ = U32(extra[in->x]);
      STORE(u32, d[l] = (u32)bfi(a_[l], b_[l], c_[l], e_[l], 32))
      break;
    }
    case E_bfi_64: {
      const u64 *a_ = U64(in->a), *b_ = U64(in->b);
      const u32 *c_ = U32(in->c), *e_ = U32(extra[in->x]);
      STORE(u64, d[l] = bfi(a_[l], b_[l], c_[l], e_[l], 64))
      break;
    }
    case E_addc: { // kind: CARRY_*; c: the carry
      u32 *cc = U32(in->c);
      EACH(m) {
        u64 carry = in->kind & CARRY_TAKES ? cc[l] & 1 : (in->kind & CARRY_SUBTRACTS);
        if (in->kind & CARRY_64) {
          u64 x = U64(in->a)[l], y = U64(in->b)[l];
          if (in->kind & CARRY_SUBTRACTS) y = ~y;
          unsigned __int128 s = (unsigned __int128)x + y + carry;
          U64(in->d)[l] = (u64)s;
          if (in->kind & CARRY_GIVES) cc[l] = (u32)(s >> 64);
        } else {
          u64 x = U32(in->a)[l], y = U32(in->b)[l];
          if (in->kind & CARRY_SUBTRACTS) y = (u32)~y;
          u64 s = x + y + carry;
          U32(in->d)[l] = (u32)s;
          if (in->kind & CARRY_GIVES) cc[l] = (u32)(s >> 32);
        }
      }
      break;
    }
    case E_cvt: { // imm: result type, source type, flags; n: 1 wide result, 2 wide source, 4 16-bit result
      int dst = (int)in->imm & 255, src = (int)(in->imm >> 8) & 255, flags = (int)(in->imm >> 16), bits = 8 << (dst & 3);
      EACH(m) {
        u64 v = cvt1(in->n & 2 ? U64(in->a)[l] : U32(in->a)[l], dst, src, flags);
        if (in->n & 1) U64(in->d)[l] = v;
        else U32(in->d)[l] = in->n & 4 && dst <= T_S64 && bits <= 16 ? (u32)v & 0xffff : (u32)v;
      }
      break;
    }
    case E_cvt_narrow: { // kind: MMA_*; n: FROM_*; imm: NARROW_*, count << 8; extra, if random: the other numbers, random bits
      const u32 *a_ = U32(in->a), *b_ = U32(in->b);
      u32 *r = scratch, hi[32], lo[32];
      int flags = (int)in->imm & 255, type = in->kind;
      if (in->n == FROM_RANDOM) {
        const int32_t *x = extra + in->x;
        const u32 *rest[4] = {a_, b_, U32(x[0]), U32(x[1])}, *random = U32(x[2]);
        int count = (int)(in->imm >> 8);
        EACH(m) {
          u32 s = random[l], d = 0;
          for (int i = 0; i < count; i++) {
            u32 part = count == 2 ? i ? s & 0xffff : s >> 16 : type != MMA_E2M1 ? i > 1 ? s & 0xffff : s >> 16
                     : i > 1 ? (s >> 8 & 0xff00) | (s & 0xff) : (s >> 16 & 0xff00) | (s >> 8 & 0xff);
            int bits = type == MMA_F16 ? 13 : 16;
            d = d << (count == 2 ? 16 : type == MMA_E2M1 ? 4 : 8) | stochastic(rest[i][l], type, part & ((1u << bits) - 1), bits, flags);
          }
          U32(in->d)[l] = d;
        }
        break;
      }
      LANES {
        u32 v = a_[l], w_ = b_[l];
        hi[l] = in->n == FROM_F32X2 ? v : in->n == FROM_F16X2 ? f16_bits32((u16)(v >> 16)) : v & 0xffff0000u;
        lo[l] = in->n == FROM_F32X2 ? w_ : in->n == FROM_F16X2 ? f16_bits32((u16)v) : v << 16;
      }
      switch (type) { // each with a constant type, so that the loop is compiled to vectors
#define PAIR(T, width)                                                                                  \
  case T:                                                                                               \
    LANES r[l] = narrow_of(hi[l], T, flags) << width | narrow_of(lo[l], T, flags);                      \
    break;
        PAIR(MMA_E4M3, 8) PAIR(MMA_E5M2, 8) PAIR(MMA_E2M3, 8) PAIR(MMA_E3M2, 8) PAIR(MMA_E2M1, 4) PAIR(MMA_UE8M0, 8)
#undef PAIR
      }
      blend32(U32(in->d), r, m);
      break;
    }
    case E_cvt_from_narrow: // kind: MMA_*; n: 1 if to bf16; imm: NARROW_RELU
      EACH(m) {
        u32 v = U32(in->a)[l], d = 0;
        for (int i = 1; i >= 0; i--) {
          f32 x = narrow_f32(v >> (in->kind == MMA_E2M1 ? 4 : 8) * i, in->kind);
          if (in->imm && x <= 0) x = 0;
          d = d << 16 | (in->n ? bf16_of(f32_bits(x)) : f16_of(nan32(x)));
        }
        U32(in->d)[l] = d;
      }
      break;
    case E_cvt_pack: { // two results of cvt in one register; imm as for cvt; b is the lower half
      int dst = (int)in->imm & 255, src = (int)(in->imm >> 8) & 255, flags = (int)(in->imm >> 16);
      EACH(m) {
        u64 hi = cvt1(U32(in->a)[l], dst, src, flags), lo = cvt1(U32(in->b)[l], dst, src, flags);
        U32(in->d)[l] = (u32)hi << 16 | ((u32)lo & 0xffff);
      }
      break;
    }
    case E_f32x2: {
      const u64 *a_ = U64(in->a), *b_ = U64(in->b), *c_ = U64(in->c);
      EACH(m) {
        u32 lo = f_arith((u32)a_[l], (u32)b_[l], (u32)c_[l], in->kind, (int)in->imm);
        u32 hi = f_arith((u32)(a_[l] >> 32), (u32)(b_[l] >> 32), (u32)(c_[l] >> 32), in->kind, (int)in->imm);
        U64(in->d)[l] = (u64)hi << 32 | lo;
      }
      break;
    }
    case E_local_address: {
      u64 v = (u64)in->imm + g->fr->local;
      if (in->kind) STORE(u64, d[l] = v)
      else STORE(u32, d[l] = (u32)v)
      break;
    }
    case E_ldparam: {
      const u8 *p = launch->params + in->imm;
      int size = in->c & 31;
      for (int i = 0; i < in->n; i++) {
        u64 v = 0;
        if ((u64)in->imm + (u64)(size * (i + 1)) <= launch->params_size) {
          u64 raw = 0; // launch parameters may be unaligned
          if (size == 8) memcpy(&raw, p + 8 * i, 8);
          else if (size == 4) memcpy(&raw, p + 4 * i, 4);
          else memcpy(&raw, p + size * i, (size_t)size);
          v = load_element((const u8 *)&raw, size, in->c);
        }
        int32_t to = extra[in->x + i];
        if (to < 0) continue;
        if (in->c & M_16 && !(in->c & M_64)) v &= 0xffff;
        if (m != ~0u) {
          if (in->c & M_64) EACH(m) U64(to)[l] = v;
          else EACH(m) U32(to)[l] = (u32)v;
        } else if (in->c & M_64) {
          u64 *d = U64(to);
          LANES d[l] = v;
        } else {
          u32 *d = U32(to);
          LANES d[l] = (u32)v;
        }
      }
      break;
    }
