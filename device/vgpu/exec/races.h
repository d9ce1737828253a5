// Race detection. Two accesses to the same bytes race if at least one is a write and nothing orders them. Each warp has
// a vector clock: its own clock ticks when its lanes wait for each other or publish something, and it holds the latest
// clock of each other warp of the cluster known from barriers, mbarriers and atomics. Between the many clusters only
// two times are kept: a cluster's last release to the others, and its last acquire from them. In case of doubt,
// accesses count as ordered.
#pragma once
#include "state.h"

// An access is the latest access of its kind to a 4-byte word, by any task.
typedef struct access {
  u32 task, tick, time, place; // task: its number, which starts at 1; 0: no access; place: pc | function << 20
  u16 warp;                    // number in the task
  u8 lane, how;                // how: accessed bytes in bits 0 to 3, then A_* flags
} access;

enum { A_WRITE = 16, A_ATOMIC = 32, A_STRONG = 64 };       // strong: volatile, relaxed, acquire, release
enum { MORALLY_STRONG = A_ATOMIC | A_STRONG };             // two such accesses do not race
enum { MANY_LANES = 254, ANY_LANE = 255 };                 // several lanes read the same; the lane is unknown
typedef struct word { access w[2], r[2]; } word; // w[0] is the last write, w[1] the last one before it by another warp

enum { PAGE = 4096, BUCKETS = 64 };
typedef struct page { u64 number; word *words; } page;

// Rows of t->clocks: one per warp, 16 barriers per block, BUCKETS for addresses, one for barrier.cluster, one for
// fences, and one per warp for its clock at its last fence.
static u32 *clock_row(task *t, u32 row) { return t->clocks + (size_t)row * t->nclocks; }
static u32 clock_rows(const task *t) { return 2 * t->nclocks + 16 * (u32)t->nb + BUCKETS + 2; }
static u32 row_bar(const task *t, u32 rank, u32 id) { return t->nclocks + 16 * rank + id; }
static u32 row_key(const task *t, u64 key) { return t->nclocks + 16 * (u32)t->nb + (u32)((key >> 3) * 0x9e3779b97f4a7c15ull >> 58); }
static u32 row_cluster(const task *t) { return t->nclocks + 16 * (u32)t->nb + BUCKETS; }
static u32 row_fence(const task *t) { return row_cluster(t) + 1; }
static u32 row_fenced(const task *t, u32 warp) { return row_fence(t) + 1 + warp; }
static u32 warp_of(const warp *w) { return w->b->rank * (u32)w->b->nw + w->id; }
static u32 *tick_of(warp *w) { return &clock_row(w->b->t, warp_of(w))[warp_of(w)]; }

static void join(u32 *to, const u32 *from, u32 n) {
  for (u32 i = 0; i < n; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}
// ticks orders later accesses of the warp's lanes after earlier ones.
static void ticks(warp *w) {
  if (w->b->t->clocks) ++*tick_of(w);
}
// release_clock publishes in a row everything that the warp has done; acquire_clock orders the warp after everything
// published there.
static void release_clock(warp *w, u32 row) {
  task *t = w->b->t;
  if (t->clocks == NULL) return;
  join(clock_row(t, row), clock_row(t, warp_of(w)), t->nclocks);
  ticks(w);
}
static void acquire_clock(warp *w, u32 row) {
  task *t = w->b->t;
  if (t->clocks == NULL) return;
  join(clock_row(t, warp_of(w)), clock_row(t, row), t->nclocks);
  ticks(w);
}
// For mbarriers the row depends on the address.
static void release_clock_at(warp *w, const void *p) { release_clock(w, row_key(w->b->t, (u64)(uintptr_t)p)); }
static void acquire_clock_at(warp *w, const void *p) { acquire_clock(w, row_key(w->b->t, (u64)(uintptr_t)p)); }

// release_to_clusters and acquire_from_clusters record communication of a cluster with all others.
static void release_to_clusters(worker *k, task *t) {
  if (k->state->released) k->state->released[t->number - 1] = ++k->time;
}
static void acquire_from_clusters(worker *k, task *t) { t->acquired = ++k->time; }

static word *word_of(worker *k, warp *w, const u8 *p, u64 *task_at) {
  task *t = w->b->t;
  *task_at = 0;
  for (int i = 0; i < t->nb; i++) {
    block *b = &t->b[i];
    if (p >= b->shared && p < b->shared + b->shared_size) return &b->words[(p - b->shared) >> 2];
  }
  if (w->local && p >= w->local && p < w->local + 32ull * LOCAL_BYTES) return NULL;
  *task_at = 1;
  pages *all = &k->pages;
  u64 number = (u64)(uintptr_t)p / PAGE, i = all->last;
  if (all->room == 0 || all->all[i].number != number) {
    if (2 * all->n >= all->room) {
      pages old = *all;
      all->room = old.room ? 2 * old.room : 1024;
      all->all = calloc(all->room, sizeof *all->all);
      if (all->all == NULL) abort();
      for (u64 j = 0; j < old.room; j++)
        if (old.all[j].words) {
          for (i = old.all[j].number * 0x9e3779b97f4a7c15ull & (all->room - 1); all->all[i].words; i = (i + 1) & (all->room - 1)) {}
          all->all[i] = old.all[j];
        }
      free(old.all);
    }
    for (i = number * 0x9e3779b97f4a7c15ull & (all->room - 1); all->all[i].words && all->all[i].number != number; i = (i + 1) & (all->room - 1)) {}
    if (all->all[i].words == NULL) {
      if (all->n >= MAX_PAGES) return NULL;
      all->all[i].number = number;
      all->all[i].words = calloc(PAGE / 4, sizeof(word));
      if (all->all[i].words == NULL) return NULL;
      all->n++;
    }
    all->last = i;
  }
  return &all->all[i].words[(u64)(uintptr_t)p % PAGE / 4];
}

static void drop_pages(pages *all) {
  for (u64 i = 0; i < all->room; i++) free(all->all[i].words);
  free(all->all);
}

// ordered reports whether access a happened before the current instruction of the warp.
static int ordered(worker *k, warp *w, const access *a, u32 lane, int global) {
  task *t = w->b->t;
  if (a->task != t->number) {
    const u64 *released = k->state->released;
    return a->task == 0 || !global || released == NULL || (released[a->task - 1] > a->time && t->acquired > a->time);
  }
  const u32 *mine = clock_row(t, warp_of(w));
  if (a->warp != warp_of(w)) return a->tick <= mine[a->warp];
  return a->tick < mine[a->warp] || lane == ANY_LANE || a->lane == ANY_LANE || a->lane == lane;
}

// conflict reports whether accesses a and now race. If so, it raises a fault.
static int conflict(worker *k, warp *w, group *g, const access *a, const access *now, const u8 *p, u32 lane, int global) {
  if (!(a->how & now->how & 15) || ((a->how & MORALLY_STRONG) && (now->how & MORALLY_STRONG))) return 0;
  if (ordered(k, w, a, lane, global)) return 0;
  s32 other = (s32)(a->warp % (u32)w->b->nw);
  FAULT(k, w, g, lane < 32 ? (int)lane : -1, race, .address = (u64)(uintptr_t)p, .global = global,
        .write = now->how & A_WRITE, .other = {(s32)(a->place >> 20), (s32)(a->place & 0xfffff)}, .other_write = a->how & A_WRITE,
        .other_thread = a->lane < 32 ? 32 * other + a->lane : -1 - other, .other_block = a->task != w->b->t->number);
  k->state->races = 0; // report only one race: others may be consequences
  return 1;
}

static void keep(access *at, const access *now) {
  if (at->task == now->task && at->warp == now->warp && at->tick == now->tick && (at->how | 15) == (now->how | 15)) {
    u8 lane = at->lane == now->lane || at->lane == ANY_LANE ? at->lane : at->how == now->how ? MANY_LANES : ANY_LANE;
    u8 how = at->how | now->how;
    *at = *now;
    at->lane = lane, at->how = how;
    return;
  }
  *at = *now;
}

// keep_write records a write. w[1] remains the last write by another warp than w[0].
static void keep_write(word *s, const access *now) {
  if (s->w[0].task && (s->w[0].task != now->task || s->w[0].warp != now->warp)) s->w[1] = s->w[0];
  keep(&s->w[0], now);
}

// touch records an access to n bytes at p and checks it. same: the write does not change the value, and so does not
// race with writes of the same value.
static void touch(worker *k, warp *w, group *g, u32 lane, u8 *p, u32 n, int how, int same) {
  u64 begin = (u64)(uintptr_t)p, global;
  word *s = NULL;
  access now = {w->b->t->number, *tick_of(w), k->time, (u32)g->pc | (u32)g->fr->f->id << 20, (u16)warp_of(w), (u8)lane, 0};
  for (u64 at = begin & ~3ull; at < begin + n && k->state->races; at += 4, s++) {
    if ((s == NULL || at % PAGE == 0) && (s = word_of(k, w, (u8 *)(uintptr_t)(at < begin ? begin : at), &global)) == NULL) return;
    u32 from = at < begin ? (u32)(begin - at) : 0, to = begin + n - at < 4 ? (u32)(begin + n - at) : 4;
    now.how = (u8)(how | ((1 << to) - (1 << from)));
    if (!(how & A_WRITE)) {
      if (s->w[0].task &&
          (conflict(k, w, g, &s->w[0], &now, p, lane, (int)global) || conflict(k, w, g, &s->w[1], &now, p, lane, (int)global)))
        return;
      access *r = &s->r[0];
      if (r->task == now.task && r->warp != now.warp && !ordered(k, w, r, lane, (int)global)) r = &s->r[1];
      keep(r, &now);
      continue;
    }
    if (same) {
      int over = ordered(k, w, &s->w[0], lane, (int)global) || !(s->w[0].how & now.how & 15);
      if (over) keep_write(s, &now);
      else if (s->w[0].task == now.task && s->w[0].warp == now.warp) s->w[0].lane = ANY_LANE;
      else s->w[0].task = s->w[1].task = 0;
      continue;
    }
    // A cluster that took part in the atomics on a word may write to it: the last block of a grid resets the block
    // counter.
    int takes_part = s->w[0].task == now.task && s->w[0].how & s->w[1].how & A_ATOMIC;
    if (conflict(k, w, g, &s->w[0], &now, p, lane, (int)global) ||
        (!takes_part && conflict(k, w, g, &s->w[1], &now, p, lane, (int)global)) || conflict(k, w, g, &s->r[0], &now, p, lane, (int)global) ||
        conflict(k, w, g, &s->r[1], &now, p, lane, (int)global))
      return;
    keep_write(s, &now);
  }
}

// before_strong and after_strong update the clocks around a strong or atomic access. A relaxed access publishes what
// its warp did before its last fence, a releasing one publishes everything. Every reader of the word is assumed to
// acquire.
static void before_strong(worker *k, warp *w, const u8 *p) {
  acquire_clock_at(w, p);
  acquire_clock(w, row_fence(w->b->t));
  acquire_from_clusters(k, w->b->t);
}
static void after_strong(worker *k, warp *w, const u8 *p, int releases) {
  task *t = w->b->t;
  if (releases) {
    release_clock_at(w, p);
    release_to_clusters(k, t);
  } else if (t->clocks) {
    join(clock_row(t, row_key(t, (u64)(uintptr_t)p)), clock_row(t, row_fenced(t, warp_of(w))), t->nclocks);
    ticks(w);
  }
}
// fenced updates the clocks for a fence.
static void fenced(worker *k, warp *w) {
  task *t = w->b->t;
  if (t->clocks) memcpy(clock_row(t, row_fenced(t, warp_of(w))), clock_row(t, warp_of(w)), t->nclocks * sizeof(u32));
  release_clock(w, row_fence(t));
  release_to_clusters(k, t);
}
