// Part of the switch of run.h: loads, stores, atomics, asynchronous copies and mbarriers. g->pc is set before any
// fault.
    case E_fence:
      if (state->races) fenced(k, w);
      break;
    case E_ld_global: g->pc = pc; if (!load(k, w, g, in, base, GLOBAL, m, extra)) FAULTED break;
    case E_ld_shared: g->pc = pc; if (!load(k, w, g, in, base, SHARED, m, extra)) FAULTED break;
    case E_ld_local: g->pc = pc; if (!load(k, w, g, in, base, LOCAL, m, extra)) FAULTED break;
    case E_ld_generic: g->pc = pc; if (!load(k, w, g, in, base, GENERIC, m, extra)) FAULTED break;
    case E_st_global: g->pc = pc; if (!store(k, w, g, in, base, GLOBAL, m, extra)) FAULTED break;
    case E_st_shared: g->pc = pc; if (!store(k, w, g, in, base, SHARED, m, extra)) FAULTED break;
    case E_st_local: g->pc = pc; if (!store(k, w, g, in, base, LOCAL, m, extra)) FAULTED break;
    case E_st_generic: g->pc = pc; if (!store(k, w, g, in, base, GENERIC, m, extra)) FAULTED break;
    case E_atom: g->pc = pc; if (!atomic(k, w, g, in, base, m, extra)) FAULTED break;
    case E_mbar: g->pc = pc; if (!mbarrier(k, w, g, in, base, m)) FAULTED break;
    case E_cp_async: { // a: to, b: from; n: bytes; x: bytes of the source, or -1, or (kind 1) a predicate to ignore it
      g->pc = pc;
      effect(k);
      int32_t src = extra[in->x];
      EACH(m) {
        u64 to = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
        u32 n = (u32)in->n, have = n;
        if (src >= 0) have = in->kind ? (PRED(src) >> l & 1 ? 0 : n) : U32(src)[l];
        if (have > n) have = n;
        u8 *d = at(k, w, g, SHARED, (int)l, to, (int)n, 1);
        u64 from = U64(in->b)[l] + (u64)(s64)extra[in->x + 1];
        u8 *s = have ? at(k, w, g, GENERIC, (int)l, from, have == n ? (int)n : 1, 0) : d;
        if (d == NULL || s == NULL) FAULTED
        if (have && have < n && find(k, from, have) == NULL) {
          FAULT(k, w, g, (int)l, out_of_bounds, .address = from, .size = (s32)have);
          FAULTED
        }
        if (state->races) {
          if (have) touch(k, w, g, l, s, have, 0, 0);
          touch(k, w, g, ANY_LANE, d, n, A_WRITE, 0);
          if (state->stop) FAULTED
        }
        if (have) memcpy(d, s, have);
        memset(d + have, 0, n - have);
        memset(d - w->b->shared + w->b->shadow, IN_FLIGHT, n);
        add_copy(&w->copies, (copy){.to = w->b, .at = (u32)(d - w->b->shared), .size = n, .lane = l, .group = w->committed[l]});
      }
      break;
    }
    case E_cp_async_commit:
      EACH(m) w->committed[l]++;
      break;
    case E_cp_async_wait: // imm: groups that may be pending, -1: none
      if (in->imm < 0) EACH(m) w->committed[l]++;
      if (w->copies.n) wait_copies(w, m, in->imm < 0 ? 0 : (u32)in->imm);
      break;
    case E_cp_async_arrive: { // arrive on an mbarrier when the lane's copies are done, which is at once
      g->pc = pc;
      effect(k);
      EACH(m) w->committed[l]++;
      if (w->copies.n) wait_copies(w, m, 0);
      EACH(m) {
        u64 a = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
        u64 *p = (u64 *)at(k, w, g, in->c & M_SIGNED ? GENERIC : SHARED, (int)l, a, 8, 0);
        if (p == NULL) FAULTED
        release_clock_at(w, p);
        if (in->kind) *p = mb_next_phase(*p - 1); // .noinc
      }
      break;
    }
    case E_cp_bulk: g->pc = pc; effect(k); if (!bulk_copy(k, w, g, in, base, m, extra)) FAULTED break;
    case E_cp_tensor: g->pc = pc; effect(k); if (!tensor_copy(k, w, g, in, base, m, extra)) FAULTED break;
    case E_st_async: g->pc = pc; effect(k); if (!store_async(k, w, g, in, base, m, extra)) FAULTED break;
