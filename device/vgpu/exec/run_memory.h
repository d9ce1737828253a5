// Part of the switch of run.h: loads, stores, atomics, asynchronous copies and mbarriers. g->pc is set before any
// fault.
    case E_fence:
      if (state->races) {
        fenced(k, w, m);
        if (in->kind == FENCE_PROXY) proxy_fence(w, m);
        if (in->kind == FENCE_TENSORMAP) map_fence(k, w);
      }
      break;
    case E_ld_global: g->pc = pc; if (!quick_load(k, w, in, base, m, extra) && !load(k, w, g, in, base, GLOBAL, m, extra)) FAULTED break;
    case E_ld_shared: g->pc = pc; if (!quick_load(k, w, in, base, m, extra) && !load(k, w, g, in, base, SHARED, m, extra)) FAULTED break;
    case E_ld_local: g->pc = pc; if (!load(k, w, g, in, base, LOCAL, m, extra)) FAULTED break;
    case E_ld_generic: g->pc = pc; if (!quick_load(k, w, in, base, m, extra) && !load(k, w, g, in, base, GENERIC, m, extra)) FAULTED break;
    case E_st_global: g->pc = pc; if (!quick_store(k, w, in, base, m, extra) && !store(k, w, g, in, base, GLOBAL, m, extra)) FAULTED break;
    case E_st_shared: g->pc = pc; if (!quick_store(k, w, in, base, m, extra) && !store(k, w, g, in, base, SHARED, m, extra)) FAULTED break;
    case E_st_local: g->pc = pc; if (!store(k, w, g, in, base, LOCAL, m, extra)) FAULTED break;
    case E_st_generic: g->pc = pc; if (!quick_store(k, w, in, base, m, extra) && !store(k, w, g, in, base, GENERIC, m, extra)) FAULTED break;
    case E_mark: g->pc = pc; if (!mark_unwritten(k, w, g, in, base, m, extra)) FAULTED break;
    case E_atom: g->pc = pc; if (!atomic(k, w, g, in, base, m, extra)) FAULTED break;
    case E_mbar:
      g->pc = pc;
      if (!mbarrier(k, w, g, in, base, m)) FAULTED
      if (k->yield == YIELD_NOW) { // a warp that runs two phases ahead would hide the first from the others
        k->yield = 0;
        g->pc = pc + 1;
        k->executed += (u64)(start_budget - budget);
        return 1;
      }
      break;
    case E_cp_async: { // a: to, b: from; n: bytes; x: bytes of the source, or -1, or (kind 1) a predicate to ignore it
      g->pc = pc;
      effect(k);
      int32_t src = extra[in->x];
      u8 *sources[32], *targets[32];
      u32 read = 0;
      EACH(m) {
        u64 to = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
        u32 n = (u32)in->n, have = n;
        if (src >= 0) have = in->kind ? (PRED(src) >> l & 1 ? 0 : n) : U32(src)[l];
        if (have > n) have = n;
        u8 *d = at(k, w, g, SHARED, (int)l, to, (int)n, 1);
        u64 from = U64(in->b)[l] + (u64)(s64)extra[in->x + 1];
        u8 *s = have ? at(k, w, g, GENERIC, (int)l, from, have == n ? (int)n : 1, 0) : d;
        if (d == NULL || s == NULL) FAULTED
        sources[l] = s, targets[l] = d;
        read |= (u32)(have > 0) << l;
        if (have && have < n && find(k, from, have) == NULL) {
          FAULT(k, w, g, (int)l, out_of_bounds, .address = from, .size = (s32)have);
          FAULTED
        }
        if (k->reading) overwrite(k, w, g, (int)l, d, n);
        if (state->races) {
          if (have) touch(k, w, g, l, s, have, 0, 0);
          touch(k, w, g, ANY_LANE, d, n, A_WRITE, 0);
          if (state->stop) FAULTED
        }
        if (have) memcpy(d, s, have);
        memset(d + have, 0, n - have);
        memset(d - w->b->shared + w->b->shadow, IN_FLIGHT, n);
        add_copy(&w->copies, (copy){.to = w->b, .at = (u32)(d - w->b->shared), .size = n, .lane = l, .group = w->committed[l], ISSUED(w, g, l)});
      }
      if (k->counting && read) count_access(k, w, g, GENERIC, sources, 0, read, (u32)in->n, COUNT_READ);
      if (k->counting) count_access(k, w, g, SHARED, targets, 0, m, (u32)in->n, COUNT_WRITE);
      break;
    }
    case E_cp_async_commit:
      EACH(m) w->committed[l]++;
      break;
    case E_bulk_commit:
      EACH(m) w->bulk_committed[l]++;
      break;
    case E_bulk_wait: // imm: groups that may be pending; kind 1: only the sources must have been read
      EACH(m) if (w->bulk_committed[l] > (u32)in->imm)
        ended_reads(w, w, finish(k, w, BY_BULK_GROUP, 1u << l, 0, w->bulk_committed[l] - (u32)in->imm, in->kind));
      break;
    case E_wgmma_commit:
      effect(k);
      w->products++;
      break;
    case E_wgmma_wait: { // imm: groups that may be pending. The products are of all four warps, so the others must begin them.
      int first = (int)w->id & ~3, last = first + 4 < w->b->nw ? first + 4 : w->b->nw, behind = 0;
      for (int i = first; i < last; i++) behind |= w->b->w[i].live && w->b->w[i].multiplied < w->multiplied;
      if (behind) {
        g->pc = pc;
        g->turns++;
        WATCH(k, w, g, m, spin_warpgroup);
        if (k->counting) uncount(k, g, pc, mask, m);
        if (w->ng > 1) turn(w, gi);
        k->executed += (u64)(start_budget - budget);
        return 1;
      }
      for (int i = first; i < last && w->products > (u32)in->imm; i++) {
        warp *o = &w->b->w[i];
        u32 ended = finish(k, o, BY_WGMMA_GROUP, ~0u, 0, w->products - (u32)in->imm, 0);
        if (ended > o->ended) o->ended = ended;
        ended_reads(w, o, o->ended);
      }
      break;
    }
    case E_cp_async_wait: // imm: groups that may be pending, -1: none
      if (in->imm < 0) EACH(m) w->committed[l]++;
      g->pc = pc;
      if (w->copies.n) wait_copies(k, w, g, m, in->imm < 0 ? 0 : (u32)in->imm);
      break;
    case E_cp_async_arrive: { // arrive on an mbarrier when the lane's copies are done, which is at once
      g->pc = pc;
      effect(k);
      EACH(m) w->committed[l]++;
      if (w->copies.n) wait_copies(k, w, g, m, 0);
      EACH(m) {
        u64 a = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
        int live;
        u64 *p = barrier_at(k, w, g, in->c & M_SIGNED ? GENERIC : SHARED, l, a, MB_ARRIVE, &live);
        if (p == NULL) FAULTED
        publish_at(w, 1u << l, p);
        if (in->kind) *p = mb_next_phase(*p - 1); // .noinc
      }
      break;
    }
    case E_cp_bulk: g->pc = pc; effect(k); if (!bulk_copy(k, w, g, in, base, m, extra)) FAULTED break;
    case E_cp_tensor: g->pc = pc; effect(k); if (!tensor_copy(k, w, g, in, base, m, extra)) FAULTED break;
    case E_tensor_map: g->pc = pc; effect(k); if (!tensor_map(k, w, g, in, base, m, extra)) FAULTED break;
    case E_descriptor: g->pc = pc; if (!descriptor(k, w, g, in, base, m, extra)) FAULTED break;
    case E_st_async: g->pc = pc; effect(k); if (!store_async(k, w, g, in, base, m, extra)) FAULTED break;
    case E_tex: g->pc = pc; if (!texture(k, w, g, in, base, m, extra)) FAULTED break;
    case E_surf: g->pc = pc; if (!surface(k, w, g, in, base, m, extra)) FAULTED break;
