// mbarriers, and the asynchronous copies that complete on an mbarrier or in a lane's commit group.
#pragma once
#include "memory.h"

// An mbarrier: pending arrivals in bits 0-19, expected arrivals in 20-39, bytes in flight + MB_TX_ZERO in 40-62, phase
// in 63.
static u64 mb_make(u64 pending, u64 expected, u64 tx, u64 phase) { return pending | expected << 20 | tx << 40 | phase << 63; }
// mb_next_phase begins the next phase if the current one is complete.
static u64 mb_next_phase(u64 v) {
  if ((v & 0xfffff) == 0 && (v >> 40 & 0x7fffff) == MB_TX_ZERO) {
    u64 e = v >> 20 & 0xfffff;
    return mb_make(e, e, MB_TX_ZERO, ~v >> 63);
  }
  return v;
}
static u64 mb_tx(u64 v, s64 bytes) {
  u64 tx = (v >> 40 & 0x7fffff) + (u64)bytes;
  return (v & ~(0x7fffffull << 40)) | (tx & 0x7fffff) << 40;
}

// ISSUED is the origin of a copy.
#define ISSUED(w, g, l)                                                                                    \
  .place = location(g), .thread = (s32)((w)->id * 32 + (l)), .issuer = warp_of(w),                            \
  .tick = (w)->b->t->views ? (w)->b->t->ticks[warp_of(w)] : 0

// raced checks an access of an asynchronous copy or matrix product, for which the lane is unknown. same: a write that
// does not change the value, see touch. It returns 0 after a fault.
static int raced(worker *k, warp *w, group *g, u8 *p, u32 n, int how, int same) {
  if (k->reading && how & A_WRITE) overwrite(k, w, g, -1, p, n);
  if (k->writing && !(how & A_WRITE)) early_read(k, w, g, -1, (u64)(uintptr_t)p, n);
  if (k->state->races) touch(k, w, g, ANY_LANE, p, n, how | A_ASYNC, same);
  return !k->state->stop;
}

// barrier_at returns the mbarrier at a lane's address, or NULL after a fault, and whether it is live. An operation other
// than MB_INIT needs a live one.
static u64 *barrier_at(worker *k, warp *w, group *g, int space, u32 lane, u64 a, int operation, int *is_live) {
  u8 *p = at(k, w, g, space, (int)lane, a, 8, LOCATE);
  if (p == NULL) return NULL;
  block *b = block_at(w, p);
  if (b == NULL) {
    FAULT(k, w, g, (int)lane, shared_address, .address = a);
    return NULL;
  }
  u8 *s = b->shadow + (p - b->shared);
  u64 state;
  memcpy(&state, s, 8);
  int live = state == LIVE_BARRIER * 0x0101010101010101ull;
  *is_live = live;
  if (live == (operation == MB_INIT)) FAULT(k, w, g, (int)lane, mbarrier_state, .live = live);
  if (operation <= MB_INVAL) {
    memset(s, operation == MB_INIT ? LIVE_BARRIER : WRITTEN, 8);
    if (k->reading) overwrite(k, w, g, (int)lane, p, 8);
  }
  // Uses are not recorded: an mbarrier.inval after the last wait is right without further synchronisation.
  if (k->state->races) touch(k, w, g, lane, p, 8, operation <= MB_INVAL ? A_WRITE : A_STRONG, operation > MB_INVAL);
  return k->state->stop ? NULL : (u64 *)p;
}

static void add_copy(copies *c, copy one) {
  if (c->n == c->room) {
    c->room = c->room ? 2 * c->room : 64;
    c->all = realloc(c->all, (size_t)c->room * sizeof *c->all);
    if (c->all == NULL) abort();
  }
  one.waited.func = -1;
  c->all[c->n++] = one;
}

// finish_copy marks the bytes of a copy as written.
static void finish_copy(const copy *c) {
  for (u32 i = c->at; i < c->at + c->size; i++)
    if (i < c->to->shared_size && c->to->shadow[i] == IN_FLIGHT) c->to->shadow[i] = WRITTEN;
}

// wait_copies executes cp.async.wait_group n for lanes m. A lane's commit groups are numbered from 0.
static void wait_copies(worker *k, warp *w, group *g, u32 m, u32 n) {
  int left = 0;
  for (int i = 0; i < w->copies.n; i++) {
    copy *c = &w->copies.all[i];
    if (m >> c->lane & 1 && c->group + n < w->committed[c->lane]) {
      finish_copy(c), written_now(k, w, c->to->shared + c->at, c->size);
      continue;
    }
    if (m >> c->lane & 1) c->waited = location(g);
    w->copies.all[left++] = *c;
  }
  w->copies.n = left;
}

// finish_phase marks the copies of a phase of the mbarrier at bar as written, after a successful wait.
static void finish_phase(worker *k, block *b, u32 bar, u32 phase) {
  int left = 0;
  for (int i = 0; i < b->copies.n; i++) {
    copy *c = &b->copies.all[i];
    if (c->bar != bar || c->phase != phase) b->copies.all[left++] = *c;
    else if (c->by) finish(k, c->by, c->how, ~0u, c->how == BY_COMMIT ? 0 : c->group, c->group + 1, 0);
    else finish_copy(c);
  }
  b->copies.n = left;
}

// in_flight marks size bytes at a shared address, to which a lane copies, as in flight until the mbarrier at bar completes.
static void in_flight(warp *w, group *g, u32 lane, u64 a, u32 size, u64 bar, u64 state) {
  block *to = shared_of(w, &a), *of = shared_of(w, &bar);
  for (u32 i = 0; i < size && a + i < to->shared_size; i++)
    if (to->shadow[a + i] == WRITTEN) to->shadow[a + i] = IN_FLIGHT;
  add_copy(&of->copies, (copy){.to = to, .at = (u32)a, .size = size, .bar = (u32)bar, .phase = (u32)(state >> 63), ISSUED(w, g, lane)});
}

// ends_with makes the operations of the warp since its last commit end with the phase of the mbarrier at bar.
static void ends_with(warp *w, int how, u64 bar, u64 state) {
  block *of = shared_of(w, &bar);
  add_copy(&of->copies, (copy){.by = w, .how = how, .group = w->commits, .bar = (u32)bar, .phase = (u32)(state >> 63)});
}

// complete counts n arrived bytes on the mbarrier at a shared address. It returns NULL after a fault, and sets before
// to the old state.
static u64 *complete(worker *k, warp *w, group *g, u32 lane, u64 bar, u64 n, u64 *before) {
  int live;
  u64 *p = barrier_at(k, w, g, SHARED, lane, bar, MB_COMPLETE_TX, &live);
  if (p == NULL) return NULL;
  *before = *p;
  publish_at(w, 1u << lane, p);
  publish_reads(w, p);
  *p = mb_next_phase(mb_tx(*p, -(s64)n));
  return p;
}

static int mbarrier(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m) {
  u32 result = 0;
  EACH(m) {
    if (in->kind == MB_PENDING) {
      U32(in->d)[l] = (u32)(U64(in->a)[l] & 0xfffff);
      continue;
    }
    u64 a = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
    int space = in->c & M_SIGNED ? GENERIC : SHARED; // here the flag marks a generic address
    if (in->kind < MB_TEST) effect(k);
    int live;
    u64 *p = barrier_at(k, w, g, space, l, a, in->kind, &live);
    if (p == NULL) return 0;
    if (in->kind == MB_INIT) {
      u64 n = U32(in->b)[l] & 0xfffff;
      *p = mb_make(n, n, MB_TX_ZERO, 0);
      continue;
    }
    u64 v = *p, count = in->b >= 0 ? U32(in->b)[l] : 1;
    switch (in->kind) {
    case MB_INVAL: break;
    case MB_ARRIVE_TX:
      v = mb_tx(v, (s64)(u64)count);
      count = 1;
      // fall through
    case MB_DROP: case MB_ARRIVE:
      if (in->d >= 0) U64(in->d)[l] = *p;
      if ((v & 0xfffff) < count) {
        if (!live) break; // a consequence
        FAULT(k, w, g, (int)l, mbarrier_arrivals, .arrivals = (s32)count, .expected = v & 0xfffff);
        return 0;
      }
      publish_at(w, 1u << l, p);
      if (in->kind == MB_DROP) v -= count << 20;
      *p = mb_next_phase(v - count);
      break;
    case MB_EXPECT_TX: *p = mb_tx(v, (s64)count); break;
    case MB_COMPLETE_TX:
      publish_at(w, 1u << l, p);
      *p = mb_next_phase(mb_tx(v, -(s64)count));
      break;
    case MB_TEST: case MB_TRY: count = U64(in->b)[l] >> 63;
      // fall through
    case MB_TEST_PARITY: case MB_TRY_PARITY:
      if ((count & 1) == v >> 63) {
        WATCH(k, w, g, 1u << l, spin_mbarrier, .space = space, .address = a, .state = v, .phase = count & 1);
        break;
      }
      result |= 1u << l;
      acquire_at(w, 1u << l, p);
      block *of = w->b;
      if (space == SHARED && a >> 24) of = shared_of(w, &a);
      if (of->copies.n) finish_phase(k, of, (u32)a, (u32)count & 1);
      break;
    }
  }
  if (in->kind >= MB_TEST && in->kind <= MB_TRY_PARITY) {
    PRED(in->d) = (PRED(in->d) & ~m) | result;
    k->yield = result && k->yield ? YIELD_NOW : YIELD_AT_JUMP; // now: the second phase since the last jump back
  }
  return 1;
}
