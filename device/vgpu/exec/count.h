// Counts of executed instructions and their accesses. The rules are those of NVIDIA's Nsight Compute: a warp's access
// is one request; a sector has 32 bytes, a line four sectors; a wavefront is what shared memory does in a cycle, one
// word of 4 bytes for each of its 32 banks.
#pragma once
#include <stddef.h>
#include "async.h"

enum { SET_SLOTS = 128 };

// What a worker has counted.
typedef struct counting {
  vg_count *at;         // by instruction, see vg_launch.counter
  struct shape *shapes; // by instruction: of its last access to global and to shared memory
  vg_totals totals;
  // The set of numbers that one access has met: those of slots whose turn is the current one.
  u64 met[SET_SLOTS];
  u32 turns[SET_SLOTS], turn;
  // Atomic operations by address, which is 0 in free slots.
  struct { u64 address, times; } *atomics;
  u64 room, addresses;
} counting;

static inline vg_count *counter(worker *k, const group *g) {
  return &k->counting->at[k->l->counter[g->fr->f->id] + g->pc];
}

// count_instruction counts an instruction of group g, of whose lanes m pass its guard.
static void count_instruction(worker *k, const group *g, const vg_inst *in, u8 *const *base, u32 m) {
  vg_count *q = counter(k, g);
  q->warps++;
  q->threads += (u64)__builtin_popcount(g->mask);
  q->active += (u64)__builtin_popcount(m);
  if (m == 0) return;
  if (in->op == E_bra) {
    q->divergent += m != g->mask;
  } else if (in->op == E_brx) {
    const u32 *to = U32(in->a);
    u32 first = to[__builtin_ctz(m)], differ = m != g->mask;
    EACH(m) differ |= to[l] != first;
    q->divergent += differ != 0;
  }
}

// uncount takes back count_instruction for an instruction that was not executed and will be tried again.
static void uncount(worker *k, const group *g, int pc, u32 mask, u32 m) {
  vg_count *q = &k->counting->at[k->l->counter[g->fr->f->id] + pc];
  q->warps--;
  q->threads -= (u64)__builtin_popcount(mask);
  q->active -= (u64)__builtin_popcount(m);
}

// meet adds a number to the set. It returns 0 if the set has it already.
static inline int meet(counting *c, u64 number) {
  u32 i = (u32)(number * 0x9e3779b97f4a7c15ull >> 57);
  for (; c->turns[i] == c->turn; i = (i + 1) % SET_SLOTS)
    if (c->met[i] == number) return 0;
  c->turns[i] = c->turn, c->met[i] = number;
  return 1;
}

static inline void empty(counting *c) {
  if (++c->turn == 0) memset(c->turns, 0, sizeof c->turns), c->turn = 1;
}

// Marks of a sector of global memory.
enum { SECTOR_READ = 1, SECTOR_WRITTEN = 2 };
enum { COUNT_ROWS = 0, COUNT_READ = 1, COUNT_WRITE = 2 }; // COUNT_ROWS: rows of ldmatrix or stmatrix

// mark marks the sector at address a as read or written or both.
static inline void mark(worker *k, u64 a, int how) {
  const vg_range *r = find(k, a, 1);
  if (r == NULL || r->sectors == NULL) return;
  u8 *s = r->sectors + ((a >> 5) - (r->base >> 5));
  vg_totals *t = &k->counting->totals;
  if (how & COUNT_READ && !(*s & SECTOR_READ)) {
    int old = __atomic_fetch_or(s, SECTOR_READ, __ATOMIC_RELAXED);
    t->read += !(old & SECTOR_READ);
    t->cold += !old;
  }
  if (how & COUNT_WRITE && !(*s & SECTOR_WRITTEN))
    t->written += !(__atomic_fetch_or(s, SECTOR_WRITTEN, __ATOMIC_RELAXED) & SECTOR_WRITTEN);
}

// mark_bytes marks n bytes at a.
static inline void mark_bytes(worker *k, u64 a, u64 n, int how) {
  for (u64 s = a & ~31ull; s < a + n; s += 32) mark(k, s, how);
}

// common returns the distance d that all accesses had, given that one had distance e.
static inline s64 common(s64 d, s64 e) { return d == VG_UNKNOWN ? e : e == VG_UNKNOWN || d == e ? d : VG_VARIES; }

// stride_of returns the distance between neighbouring lanes of m, 0 if there are none or all have the same address.
static s64 stride_of(u8 *const *p, u32 m) {
  s64 d = VG_UNKNOWN;
  int equal = 0;
  EACH(m & m << 1) {
    d = common(d, p[l] - p[l - 1]);
    equal |= p[l] == p[l - 1];
  }
  return equal && d != VG_UNKNOWN ? VG_VARIES : d;
}

// A shape is what an access takes because of how its lanes' addresses lie to each other: sectors, lines and least sectors
// of global memory, or wavefronts, conflicts and least wavefronts of shared memory.
typedef struct shape {
  u64 pattern; // of the addresses, 0: unknown
  u32 m, n[3];
  s64 stride;
} shape;

// pattern_of returns a number that two accesses of lanes m have in common only if their lanes lie in the same way, from
// an address whose low bits are the same. It returns 0 if the lanes are too far apart.
static u64 pattern_of(u8 *const *p, u32 m, u32 low) {
  static const u32 weights[32] = {0x9e3779b1, 0x85ebca77, 0xc2b2ae3d, 0x27d4eb2f, 0x165667b1, 0xd3a2646d, 0xfd7046c5, 0xb55a4f09,
                                  0x8f14e45f, 0x5bd1e995, 0xcc9e2d51, 0x1b873593, 0xe6546b65, 0x52dce729, 0x38495ab5, 0x7ed55d17,
                                  0xc761c23d, 0x165667b5, 0xd3a2646f, 0xfd7046c7, 0xb55a4f0b, 0x4cf5ad43, 0x2745937f, 0x38b34ae5,
                                  0xa1e38b93, 0x6c8e9cf5, 0x94d049bb, 0xbf58476d, 0x133111eb, 0x2127599b, 0x880355f3, 0x3c6ef372};
  u64 first = (u64)(uintptr_t)p[__builtin_ctz(m)], sum = 0, far = 0;
  if (m == ~0u) {
    LANES {
      u64 by = (u64)(uintptr_t)p[l] - first + 0x40000000;
      far |= by >> 31;
      sum += (by & 0x7fffffff) * weights[l];
    }
  } else {
    EACH(m) {
      u64 by = (u64)(uintptr_t)p[l] - first + 0x40000000;
      far |= by >> 31;
      sum += (by & 0x7fffffff) * weights[l];
    }
  }
  return far ? 0 : (sum << 7 ^ (first & low)) | 1ull << 63;
}

// known returns whether e is the shape of an access with a pattern, and prepares it for another if not.
static inline int known(shape *e, u64 pattern, u32 m) {
  if (pattern && e->pattern == pattern && e->m == m) return 1;
  *e = (shape){.pattern = pattern, .m = m};
  return 0;
}

// count_global counts an access of lanes m to bytes each of global memory.
static void count_global(worker *k, vg_count *q, u8 *const *p, int in_order, u32 m, u32 bytes, int how) {
  counting *c = k->counting;
  q->requests++;
  q->bytes += (u64)__builtin_popcount(m) * bytes;
  if (in_order) {
    u64 a = (u64)(uintptr_t)p[0], end = a + 32 * bytes - 1;
    q->sectors += (end >> 5) - (a >> 5) + 1;
    q->lines += (end >> 7) - (a >> 7) + 1;
    q->least += bytes;
    q->global_stride = common(q->global_stride, bytes);
    mark_bytes(k, a, 32 * bytes, how);
    return;
  }
  shape *e = &c->shapes[2 * (q - c->at)];
  if (!known(e, pattern_of(p, m, 127), m)) {
    u64 before = ~0ull;
    e->stride = stride_of(p, m);
    empty(c);
    EACH(m) {
      u64 a = (u64)(uintptr_t)p[l];
      if (a >> 5 == before) continue;
      before = a >> 5;
      if (!meet(c, before << 2 | 1)) continue;
      e->n[0]++;
      e->n[1] += (u32)meet(c, a >> 7 << 2 | 2);
    }
    u32 least = ((u32)__builtin_popcount(m) * bytes + 31) / 32;
    e->n[2] = least < e->n[0] ? least : e->n[0];
  }
  q->sectors += e->n[0];
  q->lines += e->n[1];
  q->least += e->n[2];
  q->global_stride = common(q->global_stride, e->stride);
  u64 before = ~0ull;
  EACH(m) {
    u64 a = (u64)(uintptr_t)p[l];
    if (a >> 5 != before) mark(k, a, how);
    before = a >> 5;
  }
}

// count_shared counts an access of lanes m to bytes each of shared memory. An access of more than 128 bytes is done in
// phases of 128 bytes. Those of a load have twice as many lanes if lanes l and l ^ 1 load the same, for all l, or lanes l
// and l ^ 2, or one of them takes no part. Each phase takes as many wavefronts as a bank has different words to deliver.
// (Found by comparison with an H100, docs/results/counters.)
static void count_shared(worker *k, vg_count *q, u8 *const *p, u32 m, u32 bytes, int how) {
  counting *c = k->counting;
  shape *e = &c->shapes[2 * (q - c->at) + 1];
  if (!known(e, pattern_of(p, m, 3), m)) {
    u32 each = bytes <= 4 ? 32 : 128 / bytes; // lanes of a phase
    if (each < 32 && how == COUNT_READ) {
      int first = 1, second = 1;
      EACH(m) {
        first &= !(m >> (l ^ 1) & 1) || p[l] == p[l ^ 1];
        second &= !(m >> (l ^ 2) & 1) || p[l] == p[l ^ 2];
      }
      each <<= first | second;
    }
    e->stride = stride_of(p, m);
    for (u32 from = 0; from < 32; from += each) {
      u32 lanes = each == 32 ? m : m >> from << from & ~(from + each == 32 ? 0 : ~0u << (from + each));
      if (lanes == 0) continue;
      u8 words[32] = {0}, most = 0;
      empty(c);
      EACH(lanes) for (u64 a = (u64)(uintptr_t)p[l] >> 2, end = ((u64)(uintptr_t)p[l] + bytes - 1) >> 2; a <= end; a++)
        if (meet(c, a)) {
          u8 n = ++words[a & 31];
          most = n > most ? n : most;
        }
      e->n[0] += most;
      e->n[1] += most - 1u;
    }
    u32 least = ((u32)__builtin_popcount(m) * bytes + 127) / 128;
    e->n[2] = least < e->n[0] ? least : e->n[0];
  }
  q->shared++;
  q->wavefronts += e->n[0];
  q->conflicts += e->n[1];
  q->ideal += e->n[2];
  q->shared_stride = common(q->shared_stride, e->stride);
}

// count_access counts an access of lanes m to bytes each at p, whose layout is known to be consecutive if in_order is
// set. Lanes may access different spaces.
static __attribute__((noinline)) void count_access(worker *k, warp *w, const group *g, int space, u8 *const *p, int in_order, u32 m, u32 bytes,
                                                   int how) {
  vg_count *q = counter(k, g);
  if (space == LOCAL) return;
  if (space == GLOBAL) {
    count_global(k, q, p, in_order, m, bytes, how);
    return;
  }
  const u8 *from = w->b->shared, *end = from + w->b->shared_size;
  u32 own = 0, other = 0;
  if (space == SHARED && w->b->t->nb == 1) own = m;
  else EACH(m) {
    if (p[l] >= from && p[l] < end) own |= 1u << l;
    else if (space == SHARED || block_at(w, p[l])) other |= 1u << l;
    else if (in_local(w, p[l])) m &= ~(1u << l);
  }
  if (own) count_shared(k, q, p, own, bytes, how);
  if (other) q->remote++;
  if (m & ~own & ~other) count_global(k, q, p, in_order && m == ~0u, m & ~own & ~other, bytes, how);
}

// count_copy counts a bulk or tensor copy of n bytes.
static inline void count_copy(worker *k, const group *g, u64 n, int partial) {
  vg_count *q = counter(k, g);
  q->requests++;
  q->bytes += n;
  q->partial += (u64)partial;
}

// count_atomic counts an atomic operation of a lane on address a.
static void count_atomic(counting *c, u64 a) {
  if (c->addresses * 2 >= c->room) {
    u64 room = c->room ? 4 * c->room : 1024;
    typeof(c->atomics) all = calloc(room, sizeof *all);
    if (all == NULL) abort();
    for (u64 i = 0; i < c->room; i++) {
      if (c->atomics[i].address == 0) continue;
      u64 j = c->atomics[i].address * 0x9e3779b97f4a7c15ull >> 32 & (room - 1);
      while (all[j].address) j = (j + 1) & (room - 1);
      all[j].address = c->atomics[i].address, all[j].times = c->atomics[i].times;
    }
    free(c->atomics);
    c->atomics = all, c->room = room;
  }
  u64 i = a * 0x9e3779b97f4a7c15ull >> 32 & (c->room - 1);
  while (c->atomics[i].address && c->atomics[i].address != a) i = (i + 1) & (c->room - 1);
  if (c->atomics[i].address == 0) c->atomics[i].address = a, c->addresses++;
  if (++c->atomics[i].times > c->totals.chain) c->totals.chain = c->atomics[i].times;
}

// begin_counting starts a worker's counts, if the launch is counted.
static counting *begin_counting(const vg_launch *l) {
  if (l->counter == NULL) return NULL;
  counting *c = calloc(1, sizeof *c);
  if (c == NULL || (c->at = calloc((size_t)l->ncounters + 1, sizeof *c->at)) == NULL) abort();
  if ((c->shapes = calloc(2 * (size_t)l->ncounters + 2, sizeof *c->shapes)) == NULL) abort();
  return c;
}

// end_counting adds a worker's counts to those of the launch.
static void end_counting(worker *k) {
  counting *c = k->counting;
  vg_state *s = k->state;
  if (c == NULL) return;
  while (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE)) {}
  for (int i = 0; i < k->l->ncounters; i++) {
    u64 *to = (u64 *)&s->counters[i];
    const u64 *from = (const u64 *)&c->at[i];
    for (size_t j = 0; j < offsetof(vg_count, global_stride) / sizeof(u64); j++) to[j] += from[j];
    s->counters[i].global_stride = common(s->counters[i].global_stride, c->at[i].global_stride);
    s->counters[i].shared_stride = common(s->counters[i].shared_stride, c->at[i].shared_stride);
  }
  s->totals.read += c->totals.read;
  s->totals.cold += c->totals.cold;
  s->totals.written += c->totals.written;
  if (c->totals.chain > s->totals.chain) s->totals.chain = c->totals.chain;
  __atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
  free(c->atomics);
  free(c->shapes);
  free(c->at);
  free(c);
}
