// Race detection. Two accesses to the same bytes race if at least one is a write and nothing orders them. Each warp has
// a clock, which ticks when its lanes wait for each other or publish something, and knows the accesses of the other
// warps of its cluster that barriers, mbarriers and atomics have ordered before its own. Between the many clusters only
// two times are kept: a cluster's last release to the others, and its last acquire from them. In case of doubt,
// accesses count as ordered.
#pragma once
#include <pthread.h>

#include "state.h"

// An access is the latest access of its kind to a 4-byte word, by any task.
typedef struct access {
  u32 task, tick, time, place; // task: its number, which starts at 1; 0: no access; place: pc | function << 20
  u16 warp;                    // number in the task
  u8 lane, how;                // how: accessed bytes in bits 0 to 3, then A_* flags
} access;

enum { A_WRITE = 16, A_ATOMIC = 32, A_STRONG = 64, A_ASYNC = 128 }; // strong: volatile, relaxed, acquire, release
enum { MORALLY_STRONG = A_ATOMIC | A_STRONG };             // two such accesses do not race
enum { MANY_LANES = 254, ANY_LANE = 255 };                 // several lanes read the same; the lane is unknown
typedef struct word { access w[2], r[2]; } word; // w[0] is the last write, w[1] the last one before it by another warp

enum { PAGE = 4096, LINE = 128, BUCKETS = 64 };

// A line has the records of 128 bytes of global memory. As long as all of its words are accessed together by runs, one
// record is enough. Its lanes are codes: LANE_CODES | logarithm of the words per lane << 3 | number of the line in the run.
typedef struct line {
  word all;
  word *words; // NULL: all is the record of each word
} line;
enum { LANE_CODES = 128 };
static inline u32 line_code(u32 shift, u32 number) { return LANE_CODES | shift << 3 | number; }
static inline u32 decoded(u32 lane, u32 i) { // the lane of word i
  return lane < LANE_CODES || lane >= MANY_LANES ? lane : (LINE / 4 * (lane & 7) + i) >> (lane >> 3 & 3);
}

typedef struct page { // of global memory
  u64 number;  // 0: an unused entry
  line *lines; // NULL beyond MAX_PAGES
  u8 *used;    // by byte: USE_*, if the launch records its accesses
} page;

typedef vg_span span;
enum { STARTED = 1 }; // the tick before a warp's first access

// A view is a row's knowledge of a warp. seen: the warp's accesses before the owner's later ones; proxied: those which a
// fence.proxy.async of the warp itself made visible to the async proxy; chained: the tick up to which any thread's fence
// did so; mapped: the tick up to which a fence.proxy.tensormap of the owner did so for tensor maps, which is not published.
typedef struct view { span seen, proxied; u32 chained, mapped; } view;

// Rows of t->views. A row has a view per warp. In kernels with asynchronous operations it has another view per warp, of
// the reads of its operations; their ticks are the operations' numbers. Three rows per warp hold its knowledge, the
// additional knowledge of its lanes t->some, and its knowledge at its last fence. The others hold publications: at 16
// barriers per block, at BUCKETS of addresses, at barrier.cluster in even and odd phases, by each block's ended threads.
static view *row(task *t, u32 number) { return t->views + (size_t)number * t->nviews; }
static u32 row_count(const task *t) { return 3 * t->nwarps + 17 * (u32)t->nb + BUCKETS + 2; }
static u32 row_some(const task *t, u32 warp) { return t->nwarps + warp; }
static u32 row_fence(const task *t, u32 warp) { return 2 * t->nwarps + warp; }
static u32 row_bar(const task *t, u32 rank, u32 id) { return 3 * t->nwarps + 16 * rank + id; }
static u32 row_key(const task *t, u64 key) { return 3 * t->nwarps + 16 * (u32)t->nb + (u32)((key >> 2) * 0x9e3779b97f4a7c15ull >> 58); }
static u32 row_cluster(const task *t, u32 phase) { return 3 * t->nwarps + 16 * (u32)t->nb + BUCKETS + (phase & 1); }
static u32 row_exit(const task *t, u32 rank) { return 3 * t->nwarps + 16 * (u32)t->nb + BUCKETS + 2 + rank; }
static u32 warp_of(const warp *w) { return w->b->rank * (u32)w->b->nw + w->id; }
static u32 operations_of(const warp *w) { return w->b->t->nwarps + warp_of(w); } // view of the reads of its operations

static int covers(const span *s, u32 tick, u32 lane) {
  if (tick <= s->all) return 1;
  if (tick > s->upto || s->lanes == 0) return 0;
  if (lane == MANY_LANES) return (s->lanes & (s->lanes - 1)) != 0;
  return lane == ANY_LANE || s->lanes >> lane & 1;
}
static u32 last_tick(const span *s) { return s->lanes ? s->upto : s->all; }
static void join_span(span *to, const span *from) {
  if (from->all > to->all) to->all = from->all;
  if (from->lanes && from->upto > to->all) {
    if (to->lanes == 0 || to->upto <= to->all) to->lanes = 0, to->upto = 0;
    to->lanes |= from->lanes;
    if (from->upto > to->upto) to->upto = from->upto;
  }
  if (to->upto <= to->all) to->lanes = 0;
  else if (to->lanes == ~0u) to->all = to->upto, to->lanes = 0;
}
static void join_view(view *to, const view *from) {
  join_span(&to->seen, &from->seen);
  join_span(&to->proxied, &from->proxied);
  if (from->chained > to->chained) to->chained = from->chained;
}
static void join(view *to, const view *from, u32 n) {
  for (u32 i = 0; i < n; i++)
    if (from[i].seen.all | from[i].seen.upto | from[i].proxied.upto) join_view(&to[i], &from[i]);
}

// Without a check for races, synchronised, publish and acquire cost one test.

// synchronised orders later accesses of the warp's lanes after earlier ones.
static __attribute__((noinline)) void synchronised_checked(warp *w) {
  task *t = w->b->t;
  u32 me = warp_of(w);
  if (t->some[me]) join(row(t, me), row(t, row_some(t, me)), t->nviews), t->some[me] = 0;
  row(t, me)[me].seen = (span){t->ticks[me]++, 0, 0};
}

// with_ended adds the ended lanes: they count as taking part in all later actions of the warp.
static u32 with_ended(const warp *w, u32 lanes) { return lanes | ~w->live; }

// publish adds the accesses and the knowledge of lanes of a warp to a row.
static __attribute__((noinline)) void publish_checked(warp *w, u32 lanes, u32 to) {
  task *t = w->b->t;
  u32 me = warp_of(w);
  view *mine = row(t, me), own = {.seen = {0, t->ticks[me]++, with_ended(w, lanes)}};
  join(row(t, to), mine, t->nviews);
  if (t->some[me] & lanes) join(row(t, to), row(t, row_some(t, me)), t->nviews);
  join_view(&row(t, to)[me], &own);
}

// acquire orders later accesses of lanes of a warp after everything published in a row.
static __attribute__((noinline)) void acquire_checked(warp *w, u32 lanes, u32 from) {
  task *t = w->b->t;
  u32 me = warp_of(w);
  if (with_ended(w, lanes) == ~0u) {
    join(row(t, me), row(t, from), t->nviews);
    return;
  }
  view *some = row(t, row_some(t, me));
  if (t->some[me] == 0) memset(some, 0, t->nviews * sizeof *some);
  join(some, row(t, from), t->nviews);
  t->some[me] |= lanes;
  if (with_ended(w, t->some[me]) == ~0u) join(row(t, me), some, t->nviews), t->some[me] = 0;
}
// converged records that the lanes wait for each other without ordering memory. Their reads are over, though.
static inline void converged(warp *w) {
  task *t = w->b->t;
  if (t->views) t->converged[warp_of(w)] = t->ticks[warp_of(w)]++;
}
static inline void synchronised(warp *w) {
  if (w->b->t->views) synchronised_checked(w);
}
static inline void publish(warp *w, u32 lanes, u32 to) {
  if (w->b->t->views) publish_checked(w, lanes, to);
}
static inline void acquire(warp *w, u32 lanes, u32 from) {
  if (w->b->t->views) acquire_checked(w, lanes, from);
}
// For mbarriers the row depends on the address.
static void publish_at(warp *w, u32 lanes, const void *p) { publish(w, lanes, row_key(w->b->t, (u64)(uintptr_t)p)); }
static void acquire_at(warp *w, u32 lanes, const void *p) { acquire(w, lanes, row_key(w->b->t, (u64)(uintptr_t)p)); }

// begin_operation numbers the next asynchronous operation of a warp.
static void begin_operation(warp *w) {
  if (w->b->t->views) w->b->t->ticks[operations_of(w)]++;
}
// ended_reads orders later accesses of a warp after the reads of another's operations up to number.
static void ended_reads(warp *w, const warp *other, u32 number) {
  task *t = w->b->t;
  if (t->views) join_span(&row(t, warp_of(w))[operations_of(other)].seen, &(span){.all = number});
}
// publish_reads publishes at an mbarrier that the reads of all operations so far have ended.
static void publish_reads(warp *w, const void *p) {
  task *t = w->b->t;
  if (!t->views || t->nviews == t->nwarps) return;
  u32 at = operations_of(w);
  join_span(&row(t, row_key(t, (u64)(uintptr_t)p))[at].seen, &(span){.all = t->ticks[at]});
}

// proxy_fence makes the earlier accesses of lanes, and those that they know of, visible to the async proxy.
static void proxy_fence(warp *w, u32 lanes) {
  task *t = w->b->t;
  if (t->views == NULL) return;
  u32 me = warp_of(w);
  view *rows[2] = {row(t, me), t->some[me] & lanes ? row(t, row_some(t, me)) : NULL};
  for (int r = 0; r < 2 && rows[r]; r++)
    for (u32 i = 0; i < t->nwarps; i++) {
      view *v = &rows[r][i];
      if (last_tick(&v->seen) > v->chained) v->chained = last_tick(&v->seen);
    }
  join_span(&rows[0][me].proxied, &(span){0, t->ticks[me]++, with_ended(w, lanes)});
}

// release_to_clusters and acquire_from_clusters record communication of a cluster with all others.
static span *released_spans(worker *k, u32 number, const task *t) {
  return k->state->spans ? k->state->spans + (size_t)(number - 1) * t->nwarps : NULL;
}
static void release_to_clusters(worker *k, warp *w, u32 lanes) {
  task *t = w->b->t;
  if (k->state->released == NULL) return;
  k->state->released[t->number - 1] = ++k->time;
  span *to = released_spans(k, t->number, t);
  if (to == NULL || t->views == NULL) return;
  u32 me = warp_of(w);
  for (u32 i = 0; i < t->nwarps; i++) {
    join_span(&to[i], &row(t, me)[i].seen);
    if (t->some[me] & lanes) join_span(&to[i], &row(t, row_some(t, me))[i].seen);
  }
  join_span(&to[me], &(span){0, t->ticks[me]++, with_ended(w, lanes)});
}
static void acquire_from_clusters(worker *k, task *t) { t->acquired = ++k->time; }

// A chunk is memory for records. Chunks are reused by later launches, up to MOST_IDLE of them: the pages of new memory
// cost more than to clear it.
enum { CHUNK = 4 << 20, MOST_IDLE = 32 };
typedef struct chunk {
  struct chunk *next;
  int used; // it is not all zero
} chunk;
static struct { pthread_mutex_t lock; chunk *first; int n; } idle = {.lock = PTHREAD_MUTEX_INITIALIZER};

static chunk *new_chunk(int populated) {
  pthread_mutex_lock(&idle.lock);
  chunk *c = idle.first;
  if (c) idle.first = c->next, idle.n--;
  pthread_mutex_unlock(&idle.lock);
  if (c) {
    c->used = 1;
    return c;
  }
  c = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (populated ? MAP_POPULATE : 0), -1, 0);
  return c == MAP_FAILED ? NULL : c;
}
static void drop_chunk(chunk *c) {
  pthread_mutex_lock(&idle.lock);
  int keep = idle.n < MOST_IDLE;
  if (keep) c->next = idle.first, idle.first = c, idle.n++;
  pthread_mutex_unlock(&idle.lock);
  if (!keep) munmap(c, CHUNK);
}

// new_records returns size zero bytes for records, or NULL.
static void *new_records(pages *all, size_t size) {
  if (all->left < size) {
    chunk *c = new_chunk(all->chunks != NULL); // later ones need no page faults
    if (c == NULL) return NULL;
    c->next = all->chunks;
    all->chunks = c;
    all->unused = (u8 *)c + LINE, all->left = CHUNK - LINE;
  }
  void *records = all->unused;
  all->unused += size, all->left -= size;
  if (all->chunks->used) memset(records, 0, size);
  return records;
}

// words_of returns a record for each word of a line, or NULL.
static word *words_of(worker *k, line *at) {
  enum { WORDS = LINE / 4 };
  if (at->words || (at->words = new_records(&k->pages, WORDS * sizeof *at->words)) == NULL) return at->words;
  for (u32 i = 0; i < WORDS; i++) {
    word *s = &at->words[i];
    *s = at->all;
    access *each[] = {&s->w[0], &s->w[1], &s->r[0], &s->r[1]};
    for (int j = 0; j < 4; j++) each[j]->lane = (u8)decoded(each[j]->lane, i);
  }
  return at->words;
}

// page_of returns the records of a page of global memory, or NULL if there are too many.
static page *page_of(worker *k, u64 number) {
  pages *all = &k->pages;
  u64 i = all->last;
  if (all->room && all->all[i].number == number) return &all->all[i];
  if (2 * all->n >= all->room) {
    pages old = *all;
    all->room = old.room ? 2 * old.room : 1024;
    all->all = calloc(all->room, sizeof *all->all);
    if (all->all == NULL) abort();
    for (u64 j = 0; j < old.room; j++)
      if (old.all[j].number) {
        for (i = old.all[j].number * 0x9e3779b97f4a7c15ull & (all->room - 1); all->all[i].number; i = (i + 1) & (all->room - 1)) {}
        all->all[i] = old.all[j];
      }
    free(old.all);
  }
  for (i = number * 0x9e3779b97f4a7c15ull & (all->room - 1); all->all[i].number && all->all[i].number != number; i = (i + 1) & (all->room - 1)) {}
  page *at = &all->all[i];
  if (at->number == 0) {
    if (all->n < MAX_PAGES) at->lines = new_records(all, PAGE / LINE * sizeof *at->lines);
    if (at->lines == NULL && !k->l->record) return NULL;
    if (k->l->record && (at->used = calloc(PAGE, 1)) == NULL) abort();
    at->number = number;
    all->n++;
  }
  all->last = i;
  return at;
}

// line_of returns the records of the line with global memory at p, or NULL.
static line *line_of(worker *k, u64 p) {
  page *at = page_of(k, p / PAGE);
  return at && at->lines ? &at->lines[p % PAGE / LINE] : NULL;
}

static word *word_of(worker *k, warp *w, const u8 *p, u64 *task_at) {
  block *b = block_at(w, p);
  *task_at = b == NULL;
  if (b) return &b->words[(p - b->shared) >> 2];
  if (in_local(w, p)) return NULL;
  u64 a = (u64)(uintptr_t)p;
  line *at = line_of(k, a);
  word *words = at ? words_of(k, at) : NULL;
  return words ? &words[a % LINE / 4] : NULL;
}

static void drop_pages(pages *all) {
  for (u64 i = 0; i < all->room; i++) free(all->all[i].used);
  free(all->all);
  for (chunk *c = all->chunks, *next; c; c = next) next = c->next, drop_chunk(c);
}

// record_use records that n bytes of global memory at p are accessed.
static void record_use(worker *k, warp *w, const u8 *p, u32 n, int how) {
  int strong = how & MORALLY_STRONG, kinds = how & A_WRITE ? strong ? USE_STRONG_WRITE : USE_WRITE : strong ? USE_STRONG_READ : USE_READ;
  if (how & A_ATOMIC) kinds |= USE_STRONG_READ;
  if (block_at(w, p) || in_local(w, p)) return;
  for (u64 at = (u64)(uintptr_t)p, end = at + n; at < end;) {
    u8 *used = page_of(k, at / PAGE)->used;
    u64 stop = at - at % PAGE + PAGE < end ? at - at % PAGE + PAGE : end;
    if ((at | stop) % 4 == 0)
      for (u32 *to = (u32 *)(void *)(used + at % PAGE); at < stop; at += 4) *to++ |= (u32)kinds * 0x01010101;
    else
      for (; at < stop; at++) used[at % PAGE] |= (u8)kinds;
  }
}

static int by_number(const void *a, const void *b) {
  u64 x = ((const page *)a)->number, y = ((const page *)b)->number;
  return x < y ? -1 : x > y;
}
// add_access appends an access to n bytes at a, or extends the last one.
static void add_access(vg_state *s, size_t *room, u64 a, u64 n, u8 kinds, u32 place) {
  vg_access *last = s->naccesses ? &s->accesses[s->naccesses - 1] : NULL;
  vg_location at = {(s32)(place >> 20), (s32)(place & 0xfffff)};
  if (kinds == 0) return;
  if (last && last->to == a && last->kinds == kinds && last->at.func == at.func && last->at.pc == at.pc) {
    last->to += n;
    return;
  }
  if (s->naccesses == *room) {
    *room = *room ? 2 * *room : 256;
    s->accesses = realloc(s->accesses, *room * sizeof *s->accesses);
    if (s->accesses == NULL) abort();
  }
  s->accesses[s->naccesses++] = (vg_access){a, a + n, kinds, at};
}
// take_uses moves the recorded accesses to the state of the launch.
static void take_uses(worker *k) {
  pages *all = &k->pages;
  size_t room = 0;
  if (all->room) qsort(all->all, all->room, sizeof *all->all, by_number);
  for (const page *q = all->all; q < all->all + all->room; q++)
    for (u32 i = 0; q->number && i < PAGE; i += 4) {
      const u8 *used = q->used + i;
      const line *at = q->lines ? &q->lines[i / LINE] : NULL;
      const word *s = !at ? NULL : at->words ? &at->words[i % LINE / 4] : &at->all;
      u32 four, n = 4;
      memcpy(&four, used, 4);
      if (four == 0) continue;
      if (four != used[0] * 0x01010101u) n = 1;
      for (u32 j = 0; j < 4; j += n) {
        int writes = used[j] & (USE_WRITE | USE_STRONG_WRITE);
        add_access(k->state, &room, q->number * PAGE + i + j, n, used[j], !s ? 0 : writes ? s->w[0].place : s->r[0].place);
      }
    }
}

// map_fence makes the accesses that a warp knows of visible to its reads of tensor maps.
static void map_fence(worker *k, warp *w) {
  task *t = w->b->t;
  if (t->views == NULL) return;
  u32 me = warp_of(w);
  for (u32 i = 0; i < t->nwarps; i++) {
    view *v = &row(t, me)[i];
    const view *some = t->some[me] ? &row(t, row_some(t, me))[i] : v;
    u32 a = last_tick(&v->seen), b = last_tick(&some->seen);
    v->mapped = a > b ? a : b;
  }
  row(t, me)[me].mapped = t->ticks[me]++;
  t->mapped = ++k->time;
}

// ordered reports whether access a happened before the current instruction of the warp.
static int ordered(worker *k, warp *w, const access *a, u32 lane, int global) {
  task *t = w->b->t;
  if (a->task != t->number) {
    const u64 *released = k->state->released;
    if (a->task == 0 || !global || released == NULL) return 1;
    const span *spans = a->warp < t->nwarps ? released_spans(k, a->task, t) : NULL;
    return released[a->task - 1] > a->time && t->acquired > a->time && (!spans || covers(&spans[a->warp], a->tick, a->lane));
  }
  u32 me = warp_of(w);
  if (a->warp == me && (lane == ANY_LANE || a->lane == ANY_LANE || a->lane == lane)) return 1;
  if (a->warp == me && !(a->how & A_WRITE) && a->tick <= t->converged[me]) return 1;
  if (covers(&row(t, me)[a->warp].seen, a->tick, a->lane)) return 1;
  return t->some[me] && (lane >= 32 || t->some[me] >> lane & 1) &&
         covers(&row(t, row_some(t, me))[a->warp].seen, a->tick, a->lane);
}

// still_read reports whether an asynchronous operation that has not ended reads the shared memory at p.
static int still_read(warp *w, const u8 *p) {
  const block *b = block_at(w, p);
  return b && b->reading && b->reading[(p - b->shared) / 16];
}

static vg_location place_of(const access *a) { return (vg_location){(s32)(a->place >> 20), (s32)(a->place & 0xfffff)}; }

// thread_of returns the thread of an access, or -1 - its warp if the lane is unknown.
static s32 thread_of(const task *t, const access *a) {
  s32 warp = (s32)(a->warp % t->nwarps % (u32)t->b->nw);
  return a->lane < 32 ? 32 * warp + a->lane : -1 - warp;
}

// conflict reports whether accesses a and now race. If so, it raises a fault.
static int conflict(worker *k, warp *w, group *g, const access *a, const access *now, const u8 *p, u32 lane, int global) {
  if (!(a->how & now->how & 15) || ((a->how & MORALLY_STRONG) && (now->how & MORALLY_STRONG))) return 0;
  if (ordered(k, w, a, lane, global)) return 0;
  task *t = w->b->t;
  u32 nw = (u32)w->b->nw, by = a->warp % t->nwarps;
  if (a->warp >= t->nwarps && k->reading && still_read(w, p)) return 0; // that is a hazard of its own
  FAULT(k, w, g, lane < 32 ? (int)lane : -1, race, .address = (u64)(uintptr_t)p, .global = global,
        .write = now->how & A_WRITE, .other = place_of(a), .other_write = a->how & A_WRITE, .other_thread = thread_of(t, a),
        .other_block = a->task != t->number || by / nw != w->b->rank, .other_cluster = (s32)a->task - 1,
        .other_rank = (s32)(by / nw));
  k->state->races = 0; // report only one race: others may be consequences
  return 1;
}

// unproxied raises a hazard if an asynchronous operation reads bytes that write a of the generic proxy wrote, and no
// fence.proxy.async stands between. A fence by another thread than the writer is a hazard of its own kind.
static void unproxied(worker *k, warp *w, group *g, const access *a, const access *now, u32 lane) {
  task *t = w->b->t;
  if (a->task != t->number || !(a->how & now->how & 15) || a->how & A_ASYNC) return;
  u32 me = warp_of(w);
  const view *v = &row(t, me)[a->warp], *some = t->some[me] ? &row(t, row_some(t, me))[a->warp] : v;
  if (covers(&v->proxied, a->tick, a->lane) || covers(&some->proxied, a->tick, a->lane)) return;
  int who = lane < 32 ? (int)lane : -1;
  if (a->tick <= v->chained || a->tick <= some->chained)
    FAULT(k, w, g, who, proxy_chain, .other = place_of(a), .other_thread = thread_of(t, a));
  else
    FAULT(k, w, g, who, proxy_fence, .other = place_of(a), .other_thread = thread_of(t, a));
}

// keep records an access like now by a lane, how it accesses the word.
static inline void keep(access *at, const access *now, u32 lane, u32 how) {
  if (at->task == now->task && at->warp == now->warp && at->tick == now->tick && (at->how | 15) == (how | 15)) {
    u32 was = at->lane;
    lane = was == lane || was == ANY_LANE ? was : at->how == how ? MANY_LANES : ANY_LANE;
    how |= at->how;
  }
  at->task = now->task, at->tick = now->tick, at->time = now->time, at->place = now->place, at->warp = now->warp;
  at->lane = (u8)lane, at->how = (u8)how;
}

// keep_write records a write. w[1] remains the last write by another warp than w[0].
static inline void keep_write(word *s, const access *now, u32 lane, u32 how) {
  if (s->w[0].task && (s->w[0].task != now->task || s->w[0].warp != now->warp)) s->w[1] = s->w[0];
  keep(&s->w[0], now, lane, how);
}

// A toucher records and checks accesses of one instruction.
typedef struct {
  worker *k;
  warp *w;
  group *g;
  task *t;
  const view *mine; // the warp's row
  u32 me, who;      // its number, and that of the view of these accesses
  int how;
  access now; // without its lane and the accessed bytes
  u64 from, size; // the memory whose records are words
  word *words;
  int global;
} toucher;

static toucher touching(worker *k, warp *w, group *g, int how) {
  task *t = w->b->t;
  u32 me = warp_of(w), who = how & A_ASYNC && !(how & A_WRITE) ? operations_of(w) : me;
  return (toucher){.k = k, .w = w, .g = g, .t = t, .mine = row(t, me), .me = me, .who = who, .how = how,
                   .now = {.task = t->number, .tick = ~0u, .place = (u32)g->pc | (u32)g->fr->f->id << 20,
                           .warp = (u16)who}};
}

// record_of returns the record of the word at a, or NULL.
static inline word *record_of(toucher *c, u64 a) {
  if (a - c->from < c->size) return &c->words[(a - c->from) >> 2];
  u64 global;
  word *s = word_of(c->k, c->w, (u8 *)(uintptr_t)a, &global);
  if (s == NULL) return NULL;
  c->global = (int)global;
  const block *b = global ? NULL : block_at(c->w, (u8 *)(uintptr_t)a);
  c->from = b ? (u64)(uintptr_t)b->shared : a - a % LINE, c->size = b ? b->shared_size : LINE;
  c->words = b ? b->words : s - a % LINE / 4;
  return s;
}

// settled is ordered for the cases that need no search.
static inline int settled(const toucher *c, const access *a, u32 lane) {
  if (a->task != c->now.task) return a->task == 0 || !c->global || c->k->state->released == NULL;
  if (a->tick <= c->mine[a->warp].seen.all) return 1;
  if (a->warp != c->me) return 0;
  return lane == ANY_LANE || a->lane == ANY_LANE || a->lane == lane || (!(a->how & A_WRITE) && a->tick <= c->t->converged[c->me]);
}
static __attribute__((noinline)) int clashing(toucher *c, const access *a, const u8 *p, u32 lane, u32 how) {
  access now = c->now;
  now.lane = (u8)lane, now.how = (u8)how;
  return conflict(c->k, c->w, c->g, a, &now, p, lane, c->global);
}
static inline int clashes(toucher *c, const access *a, const u8 *p, u32 lane, u32 how) {
  return !settled(c, a, lane) && clashing(c, a, p, lane, how);
}

// touch_lane records an access to n bytes at p and checks it. same: the write does not change the value, and so does not
// race with writes of the same value; a read is checked, but not recorded.
static inline void touch_lane(toucher *c, u32 lane, u8 *p, u32 n, int same) {
  worker *k = c->k;
  u64 begin = (u64)(uintptr_t)p;
  if (k->l->record) record_use(k, c->w, p, n, c->how);
  access *now = &c->now;
  if (now->tick != c->t->ticks[c->who] || now->time != (u32)k->time) now->tick = c->t->ticks[c->who], now->time = (u32)k->time;
  for (u64 at = begin & ~3ull; at < begin + n && k->state->races; at += 4) {
    word *s = record_of(c, at < begin ? begin : at);
    if (s == NULL) return;
    u32 from = at < begin ? (u32)(begin - at) : 0, to = begin + n - at < 4 ? (u32)(begin + n - at) : 4;
    u32 how = (u32)c->how | ((1u << to) - (1u << from));
    if (!(how & A_WRITE)) {
      if (s->w[0].task && (clashes(c, &s->w[0], p, lane, how) || clashes(c, &s->w[1], p, lane, how))) return;
      if (how & A_ASYNC) {
        access this = *now;
        this.lane = (u8)lane, this.how = (u8)how;
        for (int i = 0; i < 2; i++) unproxied(k, c->w, c->g, &s->w[i], &this, lane);
      }
      if (same) continue;
      access *r = &s->r[0];
      if (r->task == now->task && r->warp != now->warp && !settled(c, r, lane) && !ordered(k, c->w, r, lane, c->global)) r = &s->r[1];
      keep(r, now, lane, how);
      continue;
    }
    if (same) {
      int over = settled(c, &s->w[0], lane) || ordered(k, c->w, &s->w[0], lane, c->global) || !(s->w[0].how & how & 15);
      if (over) keep_write(s, now, lane, how);
      else if (s->w[0].task == now->task && s->w[0].warp == now->warp) s->w[0].lane = ANY_LANE;
      else s->w[0].task = s->w[1].task = 0;
      continue;
    }
    // A cluster that took part in the atomics on a word may write to it: the last block of a grid resets the block
    // counter.
    int takes_part = s->w[0].task == now->task && s->w[0].how & s->w[1].how & A_ATOMIC;
    if (clashes(c, &s->w[0], p, lane, how) || (!takes_part && clashes(c, &s->w[1], p, lane, how)) ||
        clashes(c, &s->r[0], p, lane, how) || clashes(c, &s->r[1], p, lane, how))
      return;
    keep_write(s, now, lane, how);
  }
}
// A run is an access of all lanes to consecutive words, lane i >> shift to word i. Words whose records are alike are
// handled together: each decision is the same for all of them.

// The fields of an access that are compared together: task and tick; warp, lane and how.
static inline u64 key_of(const access *a) { u64 v; memcpy(&v, a, 8); return v; }
static inline u32 tail_of(const access *a) { u32 v; memcpy(&v, &a->warp, 4); return v; }
static inline int alike(const access *a, const access *b) {
  return key_of(a) == key_of(b) && ((tail_of(a) ^ tail_of(b)) & 0xff00ffff) == 0; // whatever their lanes and places
}

// A part is n words of a run from word number at on, with records s. If it has a code, s is the record of a line.
typedef struct { word *s; u32 n, at, shift, code; } part;
static inline u32 lane_of(const part *q, u32 i) { return q->code ? q->code : (q->at + i) >> q->shift; }

// one_record reports whether a line has one record even after an access of part q has been merged into a.
static inline int one_record(const access *a, const part *q) {
  return !q->code || a->lane == q->code || a->lane >= MANY_LANES;
}

// all_settled is settled for the same access of each word, of which a is the first.
static inline int all_settled(const toucher *c, const access *a, const part *q) {
  if (a->task != c->now.task) return a->task == 0 || !c->global || c->k->state->released == NULL;
  if (a->tick <= c->mine[a->warp].seen.all) return 1;
  if (a->warp != c->me) return 0;
  if (!(a->how & A_WRITE) && a->tick <= c->t->converged[c->me]) return 1;
  u32 odd = 0;
  for (u32 i = 0; i < q->n; i++) odd |= ((const access *)((const word *)(const void *)a + i))->lane ^ lane_of(q, i);
  return odd == 0;
}

// keep_all is keep for the same access of each word, of which a is the first.
static inline void keep_all(access *a, const access *now, const part *q, u32 how) {
  u32 tail = now->warp | how << 24, merge = alike(a, now) && a->how == how;
  u64 key = key_of(now);
  for (u32 i = 0; i < q->n; i++) {
    access *b = (access *)((word *)(void *)a + i);
    u32 lane = lane_of(q, i), was = b->lane;
    if (merge) lane = was == lane || was == ANY_LANE ? was : MANY_LANES;
    u32 by = tail | lane << 16;
    memcpy(b, &key, 8);
    b->time = now->time, b->place = now->place;
    memcpy(&b->warp, &by, 4);
  }
}

// touch_read and touch_write handle the words at the beginning of a part that are alike, and set its length to their
// number. They return 0, without an effect, if lanes have to be handled one by one.
static inline int touch_read(toucher *c, part *q, u32 how) {
  word *s = q->s;
  access *r = &s->r[0];
  int written = s->w[0].task != 0, other = 0;
  if (r->task == c->now.task && r->warp != c->now.warp && !(r->tick <= c->mine[r->warp].seen.all)) {
    const span *known = &c->mine[r->warp].seen;
    if (c->t->some[c->me] || (known->lanes && r->tick <= known->upto)) return 0;
    other = 1; // r[0] is not ordered before this read
  }
  u32 n = 1;
  while (n < q->n && alike(&s[n].w[0], &s->w[0]) && alike(&s[n].r[0], r) && (!written || alike(&s[n].w[1], &s->w[1])) &&
         (!other || alike(&s[n].r[1], &s->r[1]))) n++;
  q->n = n;
  if (written && (!all_settled(c, &s->w[0], q) || !all_settled(c, &s->w[1], q))) return 0;
  if (other) r = &s->r[1];
  if (key_of(r) == key_of(&c->now) && r->warp == c->now.warp && (r->how | 15) == (how | 15) && (r->how != how || !one_record(r, q))) return 0;
  keep_all(r, &c->now, q, how);
  return 1;
}
static inline int touch_write(toucher *c, part *q, u32 how, int same) {
  word *s = q->s;
  u32 n = 1;
  while (n < q->n && alike(&s[n].w[0], &s->w[0]) && alike(&s[n].w[1], &s->w[1]) && alike(&s[n].r[0], &s->r[0]) && alike(&s[n].r[1], &s->r[1])) n++;
  q->n = n;
  if (s->w[0].task == c->now.task && s->w[0].how & s->w[1].how & A_ATOMIC) return 0;
  if (!all_settled(c, &s->w[0], q)) return 0;
  if (!same && !(all_settled(c, &s->w[1], q) && all_settled(c, &s->r[0], q) && all_settled(c, &s->r[1], q))) return 0;
  const access *last = &s->w[0];
  if (key_of(last) == key_of(&c->now) && last->warp == c->now.warp && (last->how | 15) == (how | 15) && (last->how != how || !one_record(last, q))) return 0;
  if (last->task && (last->task != c->now.task || last->warp != c->now.warp))
    for (u32 i = 0; i < n; i++) s[i].w[1] = s[i].w[0];
  keep_all(&s->w[0], &c->now, q, how);
  return 1;
}

// touch_run records and checks an access of all lanes to consecutive elements of some bytes, from p on. It returns the
// number of lanes that it has handled; the others have to be handled one by one.
static u32 touch_run(toucher *c, u8 *p, u32 bytes, int same) {
  enum { MOST_PARTS = 8, WORDS = LINE / 4 };
  worker *k = c->k;
  u64 a = (u64)(uintptr_t)p;
  block *b = block_at(c->w, p);
  u32 n = 8 * bytes, done = 0;
  if ((a | bytes) & 3 || c->how != (c->how & A_WRITE) || in_local(c->w, p)) return 0;
  if (b && a + 4 * n > (u64)(uintptr_t)b->shared + b->shared_size) return 0;
  u32 how = (u32)c->how | 15, shift = (u32)__builtin_ctz(bytes) - 2;
  c->global = b == NULL;
  c->now.tick = c->t->ticks[c->who], c->now.time = (u32)k->time;
  c->now.how = (u8)how; // for alike
  for (int parts = 0; done < n && parts < MOST_PARTS; parts++) {
    part q = {.n = n - done, .at = done, .shift = shift};
    if (b) {
      q.s = &b->words[((p - b->shared) >> 2) + done];
    } else {
      u64 from = a + 4 * done, word_at = from % LINE / 4;
      line *at = line_of(k, from);
      if (at == NULL) break;
      if (at->words == NULL && a % LINE == 0 && q.n >= WORDS) {
        part all = {.s = &at->all, .n = 1, .code = line_code(shift, done / WORDS)};
        if (how & A_WRITE ? touch_write(c, &all, how, same) : touch_read(c, &all, how)) {
          done += WORDS;
          continue;
        }
      }
      if (words_of(k, at) == NULL) break;
      q.s = &at->words[word_at];
      if (q.n > WORDS - word_at) q.n = (u32)(WORDS - word_at);
    }
    if (!(how & A_WRITE ? touch_write(c, &q, how, same) : touch_read(c, &q, how))) break;
    done += q.n;
  }
  if (k->l->record && done) record_use(k, c->w, p, 4 * done, c->how);
  return done >> shift;
}

static void touch(worker *k, warp *w, group *g, u32 lane, u8 *p, u32 n, int how, int same) {
  toucher c = touching(k, w, g, how);
  touch_lane(&c, lane, p, n, same);
}

// map_acquired raises a hazard if the launch has written the tensor map at p, and no fence.proxy.tensormap of the warp
// stands between. It returns 0 after a fault.
static int map_acquired(worker *k, warp *w, group *g, u32 lane, u8 *p) {
  task *t = w->b->t;
  if (!k->state->races) return 1;
  for (u32 i = 0; i < sizeof(vg_tensor_map); i += 4) {
    u64 global;
    const word *s = word_of(k, w, p + i, &global);
    const access *a = s ? &s->w[0] : NULL;
    if (a == NULL || a->task == 0) continue;
    if (a->task == t->number ? a->tick <= row(t, warp_of(w))[a->warp].mapped : a->time < t->mapped) continue;
    FAULT(k, w, g, (int)lane, map_fence, .other = place_of(a));
    break;
  }
  return !k->state->stop;
}

// publish_fenced adds the accesses before fences to a row and releases them to the other clusters: fences that the lanes
// have executed, or that they know of.
static void publish_fenced(worker *k, warp *w, u32 lanes, u32 number) {
  task *t = w->b->t;
  u32 me = warp_of(w);
  view *to = row(t, number);
  join_span(&to[me].seen, &(span){.all = STARTED});
  if (!t->fences) return;
  span *spans = k->state->released ? released_spans(k, t->number, t) : NULL;
  if (k->state->released) k->state->released[t->number - 1] = ++k->time;
  for (u32 i = 0; i < t->nwarps; i++) {
    const view *fence = row(t, row_fence(t, i));
    if (fence[i].seen.upto == 0) continue;
    view own = fence[i];
    span known = row(t, me)[i].seen;
    if (t->some[me] & lanes) join_span(&known, &row(t, row_some(t, me))[i].seen);
    if (own.seen.upto > known.all) {
      if (i != me && own.seen.upto > known.upto) continue;
      own.seen.lanes &= known.lanes | (i == me ? lanes : 0);
    }
    for (u32 j = 0; j < t->nviews; j++) {
      const view *v = j == i ? &own : &fence[j];
      join_view(&to[j], v);
      if (spans && j < t->nwarps) join_span(&spans[j], &v->seen);
    }
  }
  t->ticks[me]++;
}

// written_now moves the write of n bytes at p by a finished cp.async to the current tick.
static void written_now(worker *k, warp *w, u8 *p, u32 n) {
  task *t = w->b->t;
  for (u32 i = 0; i < n && k->state->races; i += 4) {
    u64 global;
    word *s = word_of(k, w, p + i, &global);
    if (s && s->w[0].task == t->number && s->w[0].warp == warp_of(w) && s->w[0].lane == ANY_LANE) s->w[0].tick = t->ticks[warp_of(w)];
  }
}

// before_strong and after_strong update the views around a strong or atomic access of a lane. A relaxed access
// publishes the accesses before fences that the lane has executed or knows of, a releasing one publishes everything.
// Every reader of the word is assumed to acquire.
static void before_strong(worker *k, warp *w, u32 lane, const u8 *p) {
  acquire_at(w, 1u << lane, p);
  acquire_from_clusters(k, w->b->t);
}
static void after_strong(worker *k, warp *w, u32 lane, const u8 *p, int releases) {
  if (releases) {
    k->state->fenced = true;
    release_to_clusters(k, w, 1u << lane);
    publish_at(w, 1u << lane, p);
  } else if (w->b->t->views) {
    publish_fenced(k, w, 1u << lane, row_key(w->b->t, (u64)(uintptr_t)p));
  }
}
// fenced updates the views for a fence of lanes.
static void fenced(worker *k, warp *w, u32 lanes) {
  task *t = w->b->t;
  k->state->fenced = true;
  if (t->views) {
    u32 me = warp_of(w);
    view *fence = row(t, row_fence(t, me)), own = fence[me];
    memcpy(fence, row(t, me), t->nviews * sizeof *fence);
    if (t->some[me] & lanes) join(fence, row(t, row_some(t, me)), t->nviews);
    u32 earlier = own.seen.upto > fence[me].seen.all ? own.seen.lanes : 0; // lanes with a fence since the last barrier
    fence[me].seen.lanes = with_ended(w, lanes | earlier);
    fence[me].seen.upto = t->ticks[me]++;
    t->fences = 1;
  }
}
