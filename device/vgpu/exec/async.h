// Asynchronous operations that have not ended: the shared memory that they still read, and the global memory that they
// still write.
#pragma once
#include "races.h"

// How an operation ends: a wait of the same lane for its bulk group, of the warpgroup for its group of products, of
// anyone for the mbarrier of a later tcgen05.commit, or for the operation's own mbarrier.
enum { BY_BULK_GROUP, BY_WGMMA_GROUP, BY_COMMIT, BY_MBARRIER };

static void add_pending(worker *k, warp *w, pending one) {
  pendings *l = &w->pending;
  pending *last = l->n ? &l->all[l->n - 1] : NULL;
  if (one.of) {
    if (one.of->reading == NULL && (one.of->reading = calloc(one.of->shared_size / 16 + 1, sizeof(u16))) == NULL) abort();
    for (u64 i = one.from; i < one.end; i++) one.of->reading[i]++;
    k->reading += (s64)(one.end - one.from);
  } else {
    if (k->writing++ == 0) k->written = one;
    else if (one.from < k->written.from) k->written.from = one.from;
    if (one.end > k->written.end) k->written.end = one.end;
  }
  if (last && last->of && last->of == one.of && last->end == one.from && last->by == one.by && last->number == one.number &&
      last->group == one.group && last->lane == one.lane && last->at.pc == one.at.pc && last->at.func == one.at.func) {
    last->end = one.end;
    return;
  }
  if (l->n == l->room) {
    l->room = l->room ? 2 * l->room : 16;
    l->all = realloc(l->all, (size_t)l->room * sizeof *l->all);
    if (l->all == NULL) abort();
  }
  l->all[l->n++] = one;
}

// add_read records that an operation of a lane reads n bytes at p, in shared memory.
static void add_read(worker *k, warp *w, group *g, u32 lane, const u8 *p, u32 n, int by, u32 group_) {
  block *b = block_at(w, p);
  u64 o = (u64)(p - b->shared);
  add_pending(k, w, (pending){.of = b, .from = o / 16, .end = (o + n + 15) / 16, .lane = lane, .group = group_, .by = by, .at = location(g),
                              .number = w->b->t->views ? w->b->t->ticks[operations_of(w)] : 0});
}

// add_write records that a bulk or tensor store of a lane writes n bytes of global memory at a.
static void add_write(worker *k, warp *w, group *g, u32 lane, u64 a, u64 n) {
  add_pending(k, w, (pending){.from = a, .end = a + n, .lane = lane, .group = w->bulk_committed[lane], .by = BY_BULK_GROUP, .at = location(g)});
}

static void drop_pending(worker *k, const pending *e) {
  if (e->of) {
    for (u64 i = e->from; i < e->end; i++) e->of->reading[i]--;
    k->reading -= (s64)(e->end - e->from);
  } else {
    k->writing--;
  }
}

// finish ends the operations of lanes of a warp whose groups are in [first, end), or only their reads. It returns the
// number of the last one that read shared memory.
static u32 finish(worker *k, warp *w, int by, u32 lanes, u32 first, u32 end, int reads_only) {
  int left = 0;
  u32 last = 0;
  for (int i = 0; i < w->pending.n; i++) {
    pending *e = &w->pending.all[i];
    if (e->by != by || !(lanes >> e->lane & 1) || e->group - first >= end - first || (reads_only && !e->of)) {
      w->pending.all[left++] = *e;
      continue;
    }
    if (e->number > last) last = e->number;
    drop_pending(k, e);
  }
  w->pending.n = left;
  return last;
}

// overwrite raises a hazard if an operation still reads some of n bytes at p, which are about to be written. Call it if
// k->reading.
static __attribute__((noinline)) void overwrite(worker *k, warp *w, group *g, int lane, const u8 *p, u32 n) {
  task *t = w->b->t;
  const block *b = block_at(w, p);
  if (b == NULL || b->reading == NULL) return;
  u64 from = (u64)(p - b->shared) / 16, end = ((u64)(p - b->shared) + n + 15) / 16;
  while (from < end && !b->reading[from]) from++;
  if (from == end) return;
  for (int j = 0; j < t->nb; j++)
    for (int q = 0; q < t->b[j].nw; q++) {
      const pendings *l = &t->b[j].w[q].pending;
      for (int e = 0; e < l->n; e++)
        if (l->all[e].of == b && l->all[e].from < end && from < l->all[e].end) {
          FAULT(k, w, g, lane, async_source, .other = l->all[e].at);
          return;
        }
    }
}

// early_read raises a hazard if an operation still writes some of n bytes of global memory at a. Call it if k->writing.
static __attribute__((noinline)) void early_read(worker *k, warp *w, group *g, int lane, u64 a, u32 n) {
  task *t = w->b->t;
  if (a + n <= k->written.from || a >= k->written.end) return;
  for (int j = 0; j < t->nb; j++)
    for (int q = 0; q < t->b[j].nw; q++) {
      const pendings *l = &t->b[j].w[q].pending;
      for (int e = 0; e < l->n; e++)
        if (l->all[e].of == NULL && l->all[e].from < a + n && a < l->all[e].end) {
          FAULT(k, w, g, lane, async_result, .address = a, .other = l->all[e].at);
          return;
        }
    }
}

// end_pending ends the operations of an ended block's warps, and all that read its shared memory. Reads are a hazard:
// the memory may belong to another block by then. For bulk stores it is only a note: an H200 keeps the memory until they
// have read it, and widespread kernels rely on it.
static void end_pending(worker *k, block *b) {
  task *t = b->t;
  for (int i = 0; i < t->nb; i++)
    for (int j = 0; j < t->b[i].nw; j++) {
      warp *w = &t->b[i].w[j];
      int left = 0, reported = 0;
      for (int e = 0; e < w->pending.n; e++) {
        pending *p = &w->pending.all[e];
        if (p->of ? p->of != b : w->b != b) {
          w->pending.all[left++] = *p;
          continue;
        }
        int kind = p->by == BY_BULK_GROUP ? FAULT_async_late : FAULT_async_unfinished;
        if (p->of && !reported++) fault(k, w, (int)p->lane, &(vg_fault){.kind = kind, .at = p->at});
        drop_pending(k, p);
      }
      w->pending.n = left;
    }
}
