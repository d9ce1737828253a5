// Part of the switch of run.h: exchanges between lanes, and barriers. MISSING_LANES waits for the lanes of the member
// mask.
    case E_shfl: {
      MISSING_LANES(m)
      shuffle(k, w, g, in, base, m, need_, extra);
      break;
    }
    case E_vote: { // kind: VOTE_*; n: negate the predicate
      MISSING_LANES(m)
      u32 p = (in->n ? ~PRED(in->a) : PRED(in->a)) & need_;
      int v = in->kind == VOTE_ALL ? p == need_ : in->kind == VOTE_ANY ? p != 0 : p == 0 || p == need_;
      PRED(in->d) = (PRED(in->d) & ~m) | (v ? m : 0);
      break;
    }
    case E_ballot: {
      MISSING_LANES(m)
      u32 p = (in->n ? ~PRED(in->a) : PRED(in->a)) & need_;
      STORE(u32, d[l] = p)
      break;
    }
    case E_match_any: case E_match_all: { // n: 1 for 64 bits; x: predicate of match.all
      MISSING_LANES(m)
      u32 r[32];
      int all = 1;
      for (int l = 0; l < 32; l++) {
        u64 v = in->n ? U64(in->a)[l] : U32(in->a)[l];
        r[l] = 0;
        for (int j = 0; j < 32; j++)
          if (need_ >> j & 1) r[l] |= (u32)((in->n ? U64(in->a)[j] : U32(in->a)[j]) == v) << j;
        if (need_ >> l & 1 && r[l] != need_) all = 0;
      }
      if (in->op == E_match_all) {
        for (int l = 0; l < 32; l++) r[l] = all ? need_ : 0;
        int32_t p = extra[in->x];
        if (p >= 0) PRED(p) = (PRED(p) & ~m) | (all ? m : 0);
      }
      blend32(U32(in->d), r, m);
      break;
    }
    case E_redux: { // kind as for atom; n: the type
      MISSING_LANES(m)
      u64 v = 0;
      int first = 1;
      EACH(need_) {
        u64 x = U32(in->a)[l];
        if (in->n == T_F32 && !first) v = in->kind == AT_MIN ? min_f((u32)v, (u32)x) : max_f((u32)v, (u32)x);
        else v = first ? x : (u32)atomic_value(in->kind, in->n, v, x, 0);
        first = 0;
      }
      STORE(u32, d[l] = (u32)v)
      break;
    }
    case E_activemask: {
      STORE(u32, d[l] = m)
      break;
    }
    case E_elect: {
      MISSING_LANES(m)
      int leader = __builtin_ctz(need_ ? need_ : m); // without members, which is a hazard, any lane
      if (in->d >= 0) {
        STORE(u32, d[l] = (u32)leader)
      }
      PRED(in->a) = (PRED(in->a) & ~m) | (m & 1u << leader);
      break;
    }
    case E_warp_sync: {
      MISSING_LANES(m)
      synchronised(w);
      break;
    }
    case E_bar: { // a: number; b: threads or -1; kind: BAR_*; c: predicate; n: it is negated
      if (in->imm) {
        MISSING_LANES(w->live)
        synchronised(w);
      }
      const u32 *ids = U32(in->a), *counts = in->b >= 0 ? U32(in->b) : NULL;
      u32 lane = (u32)__builtin_ctz(m), id = ids[lane] & 15, expected = counts ? counts[lane] : 0, same = 0;
      if ((in->a & 3) == IN_POOL && (counts == NULL || (in->b & 3) == IN_POOL)) same = m; // constants
      else EACH(m) same |= (u32)((ids[l] & 15) == id && (counts == NULL || counts[l] == expected)) << l;
      if (same != m) split(w, g, m & ~same, pc)->state = RUN, m = same, mask = g->mask;
      barrier *bar = &w->b->bars[id];
      if (bar->arrived == 0) bar->all = 1, bar->any = 0, bar->popc = 0, bar->first = (vg_location){g->fr->f->id, pc};
      u32 whole = ((u32)w->b->nw) * 32;
      if (bar->arrived && (bar->expected ? bar->expected : whole) != (expected ? expected : whole)) {
        g->pc = pc;
        FAULT(k, w, g, (int)lane, barrier_count, .barrier = (s32)id, .threads = (s32)(expected ? expected : whole),
              .earlier_threads = (s32)(bar->expected ? bar->expected : whole), .earlier = bar->first);
        FAULTED
      }
      bar->expected = expected;
      effect(k);
      publish(w, m, row_bar(w->b->t, w->b->rank, id));
      bar->arrived += expected && m == w->live ? 32u : (u32)__builtin_popcount(m);
      if (in->kind >= BAR_POPC && in->kind <= BAR_OR) {
        u32 p = (in->n ? ~PRED(in->c) : PRED(in->c)) & m;
        bar->popc += (u32)__builtin_popcount(p);
        if (p != m) bar->all = 0;
        if (p) bar->any = 1;
      }
      if (in->kind == BAR_ARRIVE) {
        if (bar->arrived >= expected) release_barrier(k, w->b, (int)id);
        break;
      }
      if (m != mask) split(w, g, mask & ~m, pc + 1);
      g->pc = pc;
      g->state = WAIT_BARRIER;
      g->bar = (u8)id;
      if (bar->arrived >= (expected ? expected : w->b->live)) release_barrier(k, w->b, (int)id);
      goto again;
    }
    case E_barrier_cluster: { // kind: CLUSTER_*; n: 1 for a relaxed arrival
      task *t = w->b->t;
      if (in->kind == CLUSTER_ARRIVE) {
        t->arrived += (u32)__builtin_popcount(m);
        effect(k);
        EACH(m) U32(extra[in->x])[l] = t->phase;
        if (in->n == 0) publish(w, m, row_cluster(t, t->phase));
        else if (t->views) publish_fenced(k, w, m, row_cluster(t, t->phase));
        cluster_arrived(t);
      } else {
        int waits = 0;
        EACH(m) waits |= U32(extra[in->x])[l] == t->phase;
        if (waits) {
          g->pc = pc;
          g->turns++;
          WATCH(k, w, g, m, spin_cluster);
          if (k->counting) uncount(k, g, pc, mask, m);
          if (w->ng > 1) turn(w, gi);
          k->executed += (u64)(start_budget - budget);
          return 1;
        }
        acquire(w, m, row_cluster(t, t->phase - 1));
      }
      break;
    }
