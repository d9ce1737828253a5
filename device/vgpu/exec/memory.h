// Memory of all spaces: validity and location of addresses, loads, stores and atomics.
#pragma once
#include "count.h"
#include "taint.h"

// unused_element reports whether an instruction is a load without a register for the element at the given offset.
static int unused_element(const group *g, u64 offset) {
  const vg_inst *in = &g->fr->f->code[g->pc];
  if (in->op < E_ld_global || in->op > E_ld_generic || in->n < 2) return 0;
  return g->fr->f->extra[in->x + (int)(offset / (u64)(in->c & 31))] < 0;
}

// unused reports whether all unwritten bytes of a load are of unused elements.
static __attribute__((cold, noinline)) int unused(const group *g, const u8 *shadow, u64 size) {
  if (around(g, shadow, size)) return 1;
  for (u64 i = 0; i < size; i++)
    if (shadow[i] == 0 && !unused_element(g, i)) return 0;
  return 1;
}

// mark_written sets n bytes of a shadow to 1.
static inline void mark_written(u8 *s, int n) {
  const u64 ones = 0x0101010101010101ull;
  switch (n) {
  case 1: *s = 1; break;
  case 2: memcpy(s, &ones, 2); break;
  case 4: memcpy(s, &ones, 4); break;
  case 8: memcpy(s, &ones, 8); break;
  case 16: memcpy(s, &ones, 8), memcpy(s + 8, &ones, 8); break;
  default: memset(s, 1, (size_t)n);
  }
}

// is_written reports whether n bytes of a shadow are 1.
static inline int is_written(const u8 *s, int n) {
  u64 v = 0x0101010101010101ull, v2 = v;
  switch (n) {
  case 1: return *s == 1;
  case 2: memcpy(&v, s, 2); break;
  case 4: memcpy(&v, s, 4); break;
  case 16: memcpy(&v2, s + 8, 8); // fall through
  case 8: memcpy(&v, s, 8); break;
  default:
    for (int i = 0; i < n; i++) if (s[i] != 1) return 0;
  }
  return v == 0x0101010101010101ull && v2 == 0x0101010101010101ull;
}

// written_apart marks n bytes of a shadow for each lane as written, or reports whether they are.
static inline int written_apart(u8 *shadow, const u64 *a, u32 m, int n, int write) {
  int ok = 1;
#define APART_CASE(n)                                            \
  if (write) EACH(m) mark_written(shadow + a[l], n);             \
  else EACH(m) ok &= is_written(shadow + a[l], n);               \
  break;
  switch (n) {
  case 1: APART_CASE(1)
  case 2: APART_CASE(2)
  case 4: APART_CASE(4)
  case 8: APART_CASE(8)
  case 16: APART_CASE(16)
  default: APART_CASE(n)
  }
#undef APART_CASE
  return ok;
}

// written_to records a write to global memory, or checks that a read is of written memory.
static inline void written_to(worker *k, warp *w, group *g, const vg_range *r, int lane, u64 a, int size, int write) {
  u8 *s = (u8 *)(a + (u64)r->shadow);
  if (r->shadow == 0) return;
  if (write) mark_written(s, size);
  else if (!is_written(s, size) && memchr(s, 0, (size_t)size) && !unused(g, s, (u64)size))
    FAULT(k, w, g, lane, unwritten_global, .address = a, .size = size);
}

// Shadows of shared memory: asynchronous copies mark the bytes that they write as in flight until a thread has waited
// for them.
enum { UNWRITTEN, WRITTEN, IN_FLIGHT, LIVE_BARRIER };

// A remote access is a warp's last one to the shared memory of another block.
typedef struct remote { u32 tick, place; u8 lane; } remote;

// reach_block checks an access to another block's shared memory: the block has started, and has not ended. It returns 0
// after a fault.
static int reach_block(worker *k, warp *w, group *g, int lane, block *b) {
  task *t = w->b->t;
  if (b->done == b->nw) {
    FAULT(k, w, g, lane, cluster_ended, .rank = (s32)b->rank);
    return 0;
  }
  if (!k->state->races) return 1;
  u32 me = warp_of(w);
  int started = 0;
  for (u32 i = b->rank * (u32)b->nw; i < (b->rank + 1) * (u32)b->nw && !started; i++)
    started = row(t, me)[i].seen.upto | row(t, me)[i].seen.all | (t->some[me] ? row(t, row_some(t, me))[i].seen.upto : 0);
  if (!started) FAULT(k, w, g, lane, cluster_start, .rank = (s32)b->rank);
  if (b->remote) b->remote[me] = (remote){t->ticks[me], (u32)g->pc | (u32)g->fr->f->id << 20, (u8)lane};
  return !k->state->stop;
}

// end_block checks an ended block: other blocks' accesses to its shared memory were over.
static void end_block(worker *k, block *b) {
  task *t = b->t;
  if (k->reading | k->writing) end_pending(k, b);
  for (u32 i = 0; b->remote && k->state->races && i < t->nwarps; i++) {
    const remote *r = &b->remote[i];
    if (r->tick == 0) continue;
    int over = 0;
    for (u32 j = b->rank * (u32)b->nw; j < (b->rank + 1) * (u32)b->nw && !over; j++)
      over = covers(&row(t, j)[i].seen, r->tick, r->lane) || (t->some[j] && covers(&row(t, row_some(t, j))[i].seen, r->tick, r->lane));
    if (over) continue;
    warp *w = &t->b[i / (u32)b->nw].w[i % (u32)b->nw];
    fault(k, w, r->lane, &(vg_fault){.kind = FAULT_cluster_end, .at = {(s32)(r->place >> 20), (s32)(r->place & 0xfffff)},
                                     .args.cluster_end = {.rank = (s32)b->rank}});
    return;
  }
}

// all_written reports whether n bytes of a shadow are 1.
static inline int all_written(const u8 *s, int n) {
  const u64 ones = 0x0101010101010101ull;
  u64 bad = 0;
  for (; n >= 64; n -= 64, s += 64) {
    u64 v[8];
    memcpy(v, s, 64);
    for (int i = 0; i < 8; i++) bad |= v[i] ^ ones;
  }
  return bad == 0 && (n == 0 || is_written(s, n));
}

// mark_all sets n bytes of a shadow to 1.
static inline void mark_all(u8 *s, int n) {
  for (; n >= 64; n -= 64, s += 64) memset(s, 1, 64);
  if (n) mark_written(s, n);
}

enum { READ, WRITE, LOCATE }; // LOCATE neither needs nor leaves written bytes

// read_in_flight raises a fault for a read of a byte of b's shared memory that an asynchronous copy still writes. It
// names the latest such copy in the lists of the cluster.
static __attribute__((cold, noinline)) void read_in_flight(worker *k, warp *w, group *g, int lane, const block *b, u32 where) {
  task *t = w->b->t;
  const copy *last = NULL;
  for (int i = 0; i < t->nb; i++)
    for (int j = -1; j < t->b[i].nw; j++) {
      const copies *c = j < 0 ? &t->b[i].copies : &t->b[i].w[j].copies;
      for (int q = 0; q < c->n; q++)
        if (c->all[q].by == NULL && c->all[q].to == b && where - c->all[q].at < c->all[q].size) last = &c->all[q];
    }
  if (last == NULL) {
    FAULT(k, w, g, lane, in_flight, .waited = {-1, 0}, .missing = MISSING_EITHER, .other_rank = -1);
    return;
  }
  u32 nw = (u32)w->b->nw, rank = last->issuer / nw;
  access issue = {.task = t->number, .tick = last->tick, .warp = (u16)last->issuer, .lane = (u8)(last->thread % 32), .how = A_WRITE};
  int own = last->thread == (s32)w->id * 32 + lane && rank == w->b->rank, missing = MISSING_EITHER;
  if (own) missing = MISSING_OWN;
  else if (t->views) missing = ordered(k, w, &issue, (u32)lane, 0) ? MISSING_WAIT : MISSING_BARRIER;
  FAULT(k, w, g, lane, in_flight, .other = last->place, .waited = last->waited, .other_thread = last->thread, .other_rank = (s32)rank, .missing = missing);
}

// read_unwritten is called for a read of shared memory of which some bytes are not written. It returns 0 if they are in
// flight.
static __attribute__((cold, noinline)) int read_unwritten(worker *k, warp *w, group *g, int lane, block *b, const u8 *s, int size) {
  int part = around(g, s, (u64)size);
  for (int i = 0; i < size; i++) {
    if (s[i] == WRITTEN || s[i] == LIVE_BARRIER || (s[i] == UNWRITTEN && part) || unused_element(g, (u64)i)) continue;
    if (s[i] == IN_FLIGHT) {
      read_in_flight(k, w, g, lane, b, (u32)(s - b->shadow) + (u32)i);
      return 0;
    }
    if (!met_undefined(k, w, g, lane, b, s[i])) return 0;
    if (s[i] == UNWRITTEN) break;
  }
  return 1;
}

// at returns a pointer to size bytes at a lane's address a, or NULL after a fault.
static u8 *at(worker *k, warp *w, group *g, int space, int lane, u64 a, int size, int write) {
  if (space == GENERIC) {
    switch (a >> 56) {
    case 0x40: space = SHARED; a &= 0xffffffffffffffull; break;
    case 0x41: space = LOCAL; a &= 0xffffffffffffffull; break;
    default: space = GLOBAL;
    }
  }
  if (a & (u64)(size - 1) && space != GLOBAL) {
    FAULT(k, w, g, lane, misaligned, .address = a, .multiple = size, .write = write == WRITE);
    return NULL;
  }
  if (space == SHARED) {
    u64 o = a;
    block *b = a >> 32 ? NULL : shared_of(w, &o);
    if (b == NULL || o < k->l->shared_base || o + (u64)size > b->shared_size) {
      if (b == NULL) FAULT(k, w, g, lane, shared_address, .address = a);
      else
        FAULT(k, w, g, lane, shared_range, .offset = (s64)a - k->l->shared_base, .size = size,
              .limit = (s32)(b->shared_size - k->l->shared_base), .write = write == WRITE);
      return NULL;
    }
    if (b != w->b && !reach_block(k, w, g, lane, b)) return NULL;
    u8 *s = b->shadow + o;
    if (write == WRITE) {
      memset(s, 1, (size_t)size);
    } else if (write == READ && !all_written(s, size) && !read_unwritten(k, w, g, lane, b, s, size)) {
      return NULL;
    }
    return b->shared + o;
  }
  if (space == LOCAL) {
    if (a + (u64)size > LOCAL_BYTES) {
      FAULT(k, w, g, lane, local_range, .size = size, .write = write);
      return NULL;
    }
    return w->local + (u64)lane * LOCAL_BYTES + a;
  }
  vg_range *r = find(k, a, (u64)size);
  if (a & (u64)(size - 1)) { // a GPU checks this first
    FAULT(k, w, g, lane, misaligned, .address = a, .multiple = size, .write = write, .outside = r == NULL);
    return NULL;
  }
  if (r == NULL) {
    FAULT(k, w, g, lane, out_of_bounds, .address = a, .size = size, .write = write);
    return NULL;
  }
  if (write && r->readonly) {
    FAULT(k, w, g, lane, read_only, .address = a, .size = size);
    return NULL;
  }
  written_to(k, w, g, r, lane, a, size, write);
  return (u8 *)a;
}

static inline u64 load_element(const u8 *p, int size, int c) {
  switch (size) {
  case 1: { u8 v = *(volatile const u8 *)p; return c & M_SIGNED ? (u64)(s64)(s8)v : v; }
  case 2: { u16 v = *(volatile const u16 *)p; return c & M_SIGNED ? (u64)(s64)(s16)v : v; }
  case 4: { u32 v = *(volatile const u32 *)p; return c & M_SIGNED ? (u64)(s64)(s32)v : v; }
  default: return *(volatile const u64 *)p;
  }
}

// Layout of the addresses of a full warp's lanes: no pattern, all the same, consecutive.
enum { INVALID, APART, ONE, IN_ORDER };

static inline int layout(const vg_inst *in, u8 *const *base, int bytes) {
  u64 odd = 0, step;
  if (in->c & M_ADDR32) {
    const u32 *s = U32(in->a);
    u32 by = s[1] - s[0], odd32 = 0;
    if (by != 0 && by != (u32)bytes) return APART;
    LANES odd32 |= (s[l] - s[0]) ^ (u32)l * by;
    odd = odd32 | (s[31] + (u32)in->imm < s[0] + (u32)in->imm); // or they wrap around
    step = by;
  } else {
    const u64 *s = U64(in->a);
    step = s[1] - s[0];
    if (step != 0 && step != (u64)bytes) return APART;
    u32 by = (u32)step;
    LANES odd |= (s[l] - s[0]) ^ (u32)l * by;
  }
  return odd ? APART : step ? IN_ORDER : ONE;
}

// places sets p to the addresses of n bytes for each lane of m. It returns their layout, or INVALID, which is 0.
static inline int places(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, int space, u32 m, int bytes, int write,
                         u8 **p) {
  u64 a[32];
  int narrow = in->c & M_ADDR32, lie = m == ~0u ? layout(in, base, bytes) : APART, span = lie == ONE ? bytes : 32 * bytes;
  if (narrow) {
    const u32 *s = U32(in->a);
    u32 off = (u32)in->imm;
    LANES a[l] = s[l] + off;
  } else {
    const u64 *s = U64(in->a);
    u64 off = (u64)in->imm;
    LANES a[l] = s[l] + off;
  }
  if (space == GENERIC) {
    u64 top = a[__builtin_ctz(m)] >> 56;
    int same = lie == ONE || (lie == IN_ORDER && a[31] >> 56 == top);
    if (lie == APART) {
      same = 1;
      EACH(m) same &= a[l] >> 56 == top;
    }
    if (same && top != 0x40 && top != 0x41) space = GLOBAL;
  }
  if (space == GLOBAL) {
    vg_range *r = find(k, a[__builtin_ctz(m)], (u64)bytes);
    if (r && !(write && r->readonly)) {
      u64 lo = r->base, most = r->size - (u64)bytes, bad = 0, low = 0;
      if (m == ~0u) {
        LANES { bad |= a[l] - lo > most; low |= a[l]; p[l] = (u8 *)a[l]; }
      } else {
        EACH(m) { bad |= a[l] - lo > most; low |= a[l]; p[l] = (u8 *)a[l]; }
      }
      if (!bad && !(low & (u64)(bytes - 1))) {
        u8 *shadow = (u8 *)(a[0] + (u64)r->shadow);
        if (r->shadow == 0) return lie;
        if (lie != APART && write) mark_all(shadow, span);
        else if (lie == APART ? !written_apart((u8 *)r->shadow, a, m, bytes, write) : !all_written(shadow, span))
          EACH(m) written_to(k, w, g, r, (int)l, a[l], bytes, write);
        return lie;
      }
    }
  } else if (space == SHARED && k->l->cluster[0] * k->l->cluster[1] * k->l->cluster[2] <= 1) {
    u64 most = w->b->shared_size - (u64)bytes, lo = k->l->shared_base, bad = 0, low = 0;
    u8 *s = w->b->shared;
    if (w->b->shared_size >= lo + (u64)bytes) {
      if (lie != APART) {
        u64 last = a[0] + (u64)(span - bytes);
        bad = a[0] < lo || a[0] > most || last > most;
        low = a[0];
        LANES p[l] = s + a[l];
      } else {
        EACH(m) { bad |= a[l] < lo || a[l] > most; low |= a[l]; p[l] = s + a[l]; }
      }
      if (!bad && !(low & (u64)(bytes - 1))) {
        u8 *sh = w->b->shadow;
        if (lie != APART) {
          if (write) mark_all(sh + a[0], span);
          if (write || all_written(sh + a[0], span)) return lie;
        }
        if (written_apart(sh, a, m, bytes, write)) return write ? APART : lie;
      }
    }
  } else if (space == LOCAL) {
    u64 bad = 0, low = 0;
    EACH(m) { bad |= a[l] + (u64)bytes > LOCAL_BYTES; low |= a[l]; p[l] = w->local + (u64)l * LOCAL_BYTES + a[l]; }
    if (!bad && !(low & (u64)(bytes - 1))) return APART;
  }
  EACH(m) {
    p[l] = at(k, w, g, space, (int)l, a[l], bytes, write);
    if (p[l] == NULL) return INVALID;
  }
  return APART;
}

// written records a write to local memory; unwritten reports whether none of n bytes was written.
static void written(warp *w, const u8 *p, size_t n) {
  u8 *s = local_shadow(w, p);
  if (s) memset(s, 1, n);
}
static int unwritten(warp *w, const u8 *p, size_t n) {
  const u8 *s = local_shadow(w, p);
  u32 any = 0;
  if (s == NULL) return 0;
  for (size_t i = 0; i < n; i++) any |= s[i];
  return any == 0;
}

// check_width raises a hazard if a lane accesses a part of an element that is not the element's first one.
static __attribute__((cold, noinline)) void check_width(worker *k, warp *w, group *g, u32 m, u8 *const *p, int size, int write) {
  EACH(m) {
    const vg_range *r = find(k, (u64)(uintptr_t)p[l], (u64)size);
    if (r == NULL || size >= r->element || ((u64)(uintptr_t)p[l] - r->base) % (u64)r->element == 0) continue;
    FAULT(k, w, g, (int)l, element_width, .address = (u64)(uintptr_t)p[l], .size = size, .element = r->element, .write = write);
    return;
  }
}

// Copies of element i of n for each lane, from or to consecutive elements at p.
#define LOADED(S, D, i, expr)                                                  \
  {                                                                            \
    const S *s = (const S *)p + i;                                             \
    D *d = (D *)P(extra[in->x + i]);                                           \
    if (n == 1) LANES { S v = s[l]; d[l] = expr; }                             \
    else if (n == 2) LANES { S v = s[2 * l]; d[l] = expr; }                    \
    else if (n == 4) LANES { S v = s[4 * l]; d[l] = expr; }                    \
    else LANES { S v = s[8 * l]; d[l] = expr; }                                \
    break;                                                                     \
  }
#define STORED(S, D, i)                                                        \
  {                                                                            \
    const S *s = (const S *)P(extra[in->x + i]);                               \
    D *d = (D *)p + i;                                                         \
    if (n == 1) LANES d[l] = (D)s[l];                                          \
    else if (n == 2) LANES d[2 * l] = (D)s[l];                                 \
    else if (n == 4) LANES d[4 * l] = (D)s[l];                                 \
    else LANES d[8 * l] = (D)s[l];                                             \
    break;                                                                     \
  }
enum { WIDE_64 = 64 }; // with the size of an element: registers of 64 bits

static inline void load_in_order(const vg_inst *in, u8 *const *base, const int32_t *extra, const u8 *p) {
  int n = in->n;
  u32 keep = in->c & M_16 ? 0xffff : ~0u;
  for (int i = 0; i < n; i++) {
    if (extra[in->x + i] < 0) continue;
    switch ((in->c & 31) | (in->c & M_64 ? WIDE_64 : 0)) {
    case 4: LOADED(u32, u32, i, v)
    case 8 | WIDE_64: LOADED(u64, u64, i, v)
    case 4 | WIDE_64:
      if (in->c & M_SIGNED) LOADED(s32, u64, i, (u64)(s64)v)
      LOADED(u32, u64, i, v)
    case 2:
      if (in->c & M_SIGNED) LOADED(s16, u32, i, (u32)(s32)v & keep)
      LOADED(u16, u32, i, v)
    case 1:
      if (in->c & M_SIGNED) LOADED(s8, u32, i, (u32)(s32)v & keep)
      LOADED(u8, u32, i, v)
    case 2 | WIDE_64:
      if (in->c & M_SIGNED) LOADED(s16, u64, i, (u64)(s64)v)
      LOADED(u16, u64, i, v)
    default:
      if (in->c & M_SIGNED) LOADED(s8, u64, i, (u64)(s64)v)
      LOADED(u8, u64, i, v)
    }
  }
}
static inline void store_in_order(const vg_inst *in, u8 *const *base, const int32_t *extra, u8 *p) {
  int n = in->n;
  for (int i = 0; i < n; i++) {
    switch ((in->c & 31) | (in->c & M_64 ? WIDE_64 : 0)) {
    case 4: STORED(u32, u32, i)
    case 8 | WIDE_64: STORED(u64, u64, i)
    case 2: STORED(u32, u16, i)
    case 1: STORED(u32, u8, i)
    case 4 | WIDE_64: STORED(u64, u32, i)
    case 2 | WIDE_64: STORED(u64, u16, i)
    default: STORED(u64, u8, i)
    }
  }
}

// unchanged returns the lanes whose store to consecutive elements of at least four bytes does not change the memory at p.
static u32 unchanged(const vg_inst *in, u8 *const *base, const int32_t *extra, const u8 *p) {
  u32 same[32];
  int n = in->n;
  LANES same[l] = ~0u;
  for (int i = 0; i < n; i++) {
    if ((in->c & 31) == 8) {
      const u64 *s = U64(extra[in->x + i]), *d = (const u64 *)p + i;
      LANES same[l] &= d[l * n] == s[l] ? ~0u : 0;
    } else if (in->c & M_64) {
      const u64 *s = U64(extra[in->x + i]);
      const u32 *d = (const u32 *)p + i;
      LANES same[l] &= d[l * n] == (u32)s[l] ? ~0u : 0;
    } else {
      const u32 *s = U32(extra[in->x + i]), *d = (const u32 *)p + i;
      LANES same[l] &= d[l * n] == s[l] ? ~0u : 0;
    }
  }
  return lane_mask(same);
}

// copy_whole copies the n bytes of an aligned vector, 16 at once. GPUs do so too, and programs rely on it, although the
// PTX ISA does not say so: CUB's blocks publish a status together with a value.
typedef u64 sixteen __attribute__((vector_size(16), may_alias));
static inline void copy_whole(void *to, const void *from, int n) {
  switch (n) {
  case 2: *(volatile u16 *)to = *(const volatile u16 *)from; break;
  case 4: *(volatile u32 *)to = *(const volatile u32 *)from; break;
  case 8: *(volatile u64 *)to = *(const volatile u64 *)from; break;
  default:
    for (int i = 0; i < n; i += 16) *(volatile sixteen *)((u8 *)to + i) = *(const volatile sixteen *)((const u8 *)from + i);
  }
}

static int load(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, int space, u32 m, const int32_t *extra) {
  u8 *p[32];
  int size = in->c & 31, n = in->n, lie = places(k, w, g, in, base, space, m, size * n, 0, p);
  if (lie == INVALID) return 0;
  if (k->watch) {
    int lane = __builtin_ctz(m);
    u64 a = in->c & M_ADDR32 ? U32(in->a)[lane] + (u32)in->imm : U64(in->a)[lane] + (u64)in->imm;
    WATCH(k, w, g, m, spin_read, .space = space, .address = a, .value = load_element(p[lane], size, 0));
  }
  if (k->counting) count_access(k, w, g, space, p, lie == IN_ORDER, m, (u32)(size * n), COUNT_READ);
  if (k->writing && space != LOCAL) EACH(m) early_read(k, w, g, (int)l, (u64)(uintptr_t)p[l], (u32)(size * n));
  if (k->l->check_width && space != SHARED && space != LOCAL) check_width(k, w, g, m, p, size * n, 0);
  if (k->state->races && space != LOCAL) {
    toucher c = touching(k, w, g, in->c & M_STRONG ? A_STRONG : 0);
    int run = lie == IN_ORDER;
    for (int i = 0; i < n; i++) run &= extra[in->x + i] >= 0;
    u32 handled = run ? touch_run(&c, p[0], (u32)(size * n), 0) : 0;
    u32 left = handled == 32 ? 0 : m & ~0u << handled;
    EACH(lie == ONE && !(in->c & M_STRONG) ? 3 : left) { // if lanes read the same word, two are enough
      if (in->c & M_STRONG) before_strong(k, w, l, p[l]);
      for (int i = 0, to; i < n; i = to + 1) { // elements without a register are not read
        for (to = i; to < n && extra[in->x + to] >= 0; to++) {}
        if (to > i) touch_lane(&c, l, p[l] + size * i, (u32)(size * (to - i)), 0);
      }
    }
    if (left == 0) {
      load_in_order(in, base, extra, p[0]);
      return 1;
    }
    if (k->state->stop) return 0;
  }
  if (w->local_shadow && (space == LOCAL || space == GENERIC)) {
    EACH(m)
      for (int i = 0; i < n; i++)
        if (extra[in->x + i] >= 0 && unwritten(w, p[l] + size * i, (size_t)size))
          keep_undefined(k, w, g, l, p[l] + size * i, size, ~0u, numbered(w->b, (origin){location(g), .why = ORIGIN_LOCAL, .size = (u8)size}));
    EACH(m) k->met |= (u32)has_undefined(w, p[l], size * n) << l;
  }
  if (k->met) loaded(k, w, g, in, p, m);
  u8 vectors[32][32] __attribute__((aligned(16)));
  if (n > 1 && in->c & M_STRONG) EACH(m) copy_whole(vectors[l], p[l], size * n), p[l] = vectors[l];
  for (int i = 0; i < n; i++) {
    int32_t to = extra[in->x + i];
    if (to < 0) continue;
    if (in->c & M_64) {
      u64 *d = U64(to);
      if (size == 8) EACH(m) d[l] = *(volatile u64 *)(p[l] + 8 * i);
      else EACH(m) d[l] = load_element(p[l] + size * i, size, in->c);
    } else {
      u32 *d = U32(to), keep = in->c & M_16 ? 0xffff : ~0u;
      if (size == 4) {
        if (lie == ONE) {
          u32 v = *(volatile u32 *)(p[0] + 4 * i);
          LANES d[l] = v;
        } else if (m == ~0u) for (int l = 0; l < 32; l++) d[l] = *(volatile u32 *)(p[l] + 4 * i);
        else EACH(m) d[l] = *(volatile u32 *)(p[l] + 4 * i);
      } else {
        EACH(m) d[l] = (u32)load_element(p[l] + size * i, size, in->c) & keep;
      }
    }
  }
  return 1;
}

// vector_of sets v to the bytes that a lane stores.
static inline void vector_of(u8 *v, const vg_inst *in, u8 *const *base, const int32_t *extra, u32 l) {
  int size = in->c & 31;
  for (int i = 0; i < in->n; i++) {
    u64 x = in->c & M_64 ? U64(extra[in->x + i])[l] : U32(extra[in->x + i])[l];
    memcpy(v + size * i, &x, (size_t)size);
  }
}

static int store(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, int space, u32 m, const int32_t *extra) {
  u8 *p[32];
  int size = in->c & 31, n = in->n, lie = places(k, w, g, in, base, space, m, size * n, 1, p);
  if (lie == INVALID) return 0;
  effect(k);
  if (k->counting) count_access(k, w, g, space, p, lie == IN_ORDER, m, (u32)(size * n), COUNT_WRITE);
  if (k->l->check_width && space != SHARED && space != LOCAL) check_width(k, w, g, m, p, size * n, 1);
  if (k->reading && space != LOCAL && space != GLOBAL) EACH(m) overwrite(k, w, g, (int)l, p[l], (u32)(size * n));
  if (w->local_shadow && (space == LOCAL || space == GENERIC)) EACH(m) written(w, p[l], (size_t)(size * n));
  if (w->tracks && !stored(k, w, g, in, p, m)) return 0;
  if (k->state->races && space != LOCAL) { // one lane after another: they may write to the same address
    toucher c = touching(k, w, g, A_WRITE | (in->c & M_STRONG ? A_STRONG : 0));
    u32 same = lie == IN_ORDER && size >= 4 ? unchanged(in, base, extra, p[0]) : 1;
    u32 handled = same == 0 || same == ~0u ? touch_run(&c, p[0], (u32)(size * n), same != 0) : 0;
    if (handled == 32) {
      store_in_order(in, base, extra, p[0]);
      return 1;
    }
    EACH(m) {
      u8 v[32] __attribute__((aligned(16)));
      vector_of(v, in, base, extra, l);
      if (l >= handled) touch_lane(&c, l, p[l], (u32)(size * n), memcmp(p[l], v, (size_t)(size * n)) == 0);
      if (k->state->stop) return 0;
      if (in->c & M_STRONG) after_strong(k, w, l, p[l], in->c & M_RELEASE);
      if (n > 1) copy_whole(p[l], v, size * n);
      else memcpy(p[l], v, (size_t)size);
    }
    return 1;
  }
  if (n > 1 && in->c & M_STRONG) {
    EACH(m) {
      u8 v[32] __attribute__((aligned(16)));
      vector_of(v, in, base, extra, l);
      copy_whole(p[l], v, size * n);
    }
    return 1;
  }
  for (int i = 0; i < n; i++) {
    int32_t from = extra[in->x + i];
    if (in->c & M_64) {
      const u64 *s = U64(from);
      switch (size) {
      case 8: EACH(m) *(volatile u64 *)(p[l] + 8 * i) = s[l]; break;
      case 4: EACH(m) *(volatile u32 *)(p[l] + 4 * i) = (u32)s[l]; break;
      case 2: EACH(m) *(volatile u16 *)(p[l] + 2 * i) = (u16)s[l]; break;
      default: EACH(m) *(volatile u8 *)(p[l] + i) = (u8)s[l];
      }
    } else {
      const u32 *s = U32(from);
      switch (size) {
      case 4: EACH(m) *(volatile u32 *)(p[l] + 4 * i) = s[l]; break;
      case 2: EACH(m) *(volatile u16 *)(p[l] + 2 * i) = (u16)s[l]; break;
      default: EACH(m) *(volatile u8 *)(p[l] + i) = (u8)s[l];
      }
    }
  }
  return 1;
}

static u64 atomic_value(int op, int t, u64 old, u64 v, u64 v2) {
  switch (op) {
  case AT_AND: return old & v;
  case AT_OR: return old | v;
  case AT_XOR: return old ^ v;
  case AT_EXCH: return v;
  case AT_CAS: return old == v ? v2 : old;
  case AT_INC: return (u32)old >= (u32)v ? 0 : old + 1;
  case AT_DEC: return (u32)old == 0 || (u32)old > (u32)v ? v : old - 1;
  case AT_ADD:
    switch (t) {
    case T_F32: return f_arith((u32)old, (u32)v, 0, A_ADD, 0);
    case T_F64: return d_arith(old, v, 0, A_ADD, 0);
    case T_F16: return h_arith((u32)old, (u32)v, 0, A_ADD, A_X2);
    case T_BF16: return h_arith((u32)old, (u32)v, 0, A_ADD, A_X2 | A_BF16);
    }
    return old + v;
  case AT_MIN: case AT_MAX: {
    int min = op == AT_MIN;
    switch (t) {
    case T_S32: return ((s32)old < (s32)v) == min ? old : v;
    case T_S64: return ((s64)old < (s64)v) == min ? old : v;
    case T_F16: return h_arith((u32)old, (u32)v, 0, min ? A_MIN : A_MAX, A_X2);
    case T_BF16: return h_arith((u32)old, (u32)v, 0, min ? A_MIN : A_MAX, A_X2 | A_BF16);
    }
    return (old < v) == min ? old : v;
  }
  }
  return old;
}

// changes_nothing reports whether an atomic operation with operand v changes no value at all.
static int changes_nothing(int op, int t, u64 v, int size) {
  if (op == AT_AND) return (v | (size == 8 ? 0 : ~0ull << 8 * size)) == ~0ull;
  return v == 0 && (op == AT_OR || op == AT_XOR || (op == AT_ADD && (t == T_U32 || t == T_S32 || t == T_U64)));
}

// exchange executes atom.exch and atom.cas of 128 bits for a lane. It returns whether the memory has changed.
static int exchange(const vg_inst *in, u8 *const *base, u32 l, const int32_t *x, u64 *p) {
  u64 old[2] = {p[0], p[1]}, v[2] = {U64(in->b)[l], U64(x[2])[l]};
  if ((in->kind & 15) == AT_CAS) {
    int equal = old[0] == v[0] && old[1] == v[1];
    v[0] = equal ? U64(x[1])[l] : old[0], v[1] = equal ? U64(x[3])[l] : old[1];
  }
  p[0] = v[0], p[1] = v[1];
  if (in->d >= 0) U64(in->d)[l] = old[0], U64(x[4])[l] = old[1];
  return old[0] != v[0] || old[1] != v[1];
}

// extra: the space, the second operand or -1, and of 128 bits the upper halves of the operands and the result.
// If in->n is set, the old value is neither part of the new one nor used: the memory is only written.
static int atomic(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  int size = in->c & 31, t = in->kind >> 4, op = in->kind & 15, space = extra[in->x];
  int wide = size >= 8;
  u8 *all[32];
  if (!in->n && places(k, w, g, in, base, space, m, size, READ, all) == INVALID) return 0;
  if (places(k, w, g, in, base, space, m, size, WRITE, all) == INVALID) return 0;
  EACH(m) {
    u64 a = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
    u8 *p = all[l];
    if (k->counting && p == (u8 *)a) count_atomic(k->counting, a);
    if (k->reading) overwrite(k, w, g, (int)l, p, (u32)size);
    int32_t second = extra[in->x + 1];
    u64 v = wide ? U64(in->b)[l] : U32(in->b)[l];
    if (k->state->races) {
      before_strong(k, w, l, p);
      if (in->d >= 0 || !changes_nothing(op, t, v, size)) touch(k, w, g, l, p, (u32)size, A_WRITE | A_ATOMIC, 0);
      if (k->state->stop) return 0;
      after_strong(k, w, l, p, in->c & M_RELEASE);
    }
    if (size == 16) {
      u64 seen = *(u64 *)p;
      if (exchange(in, base, l, extra + in->x, (u64 *)p)) effect(k);
      WATCH(k, w, g, 1u << l, spin_read, .space = space, .address = a, .value = seen);
      continue;
    }
    u64 v2 = second < 0 ? 0 : wide ? U64(second)[l] : U32(second)[l], old, value;
    int adds = op == AT_ADD && (t == T_U32 || t == T_S32 || t == T_U64);
    if (adds) {
      old = wide ? __atomic_fetch_add((u64 *)p, v, __ATOMIC_SEQ_CST) : __atomic_fetch_add((u32 *)p, (u32)v, __ATOMIC_SEQ_CST);
      value = old + v;
    }
    while (!adds) { // host code may access the same memory
      old = size == 8 ? *(volatile u64 *)p : size == 4 ? *(volatile u32 *)p : *(volatile u16 *)p;
      if (t == T_F32 && op == AT_ADD && p == (u8 *)a) value = ftz((u32)atomic_value(op, t, ftz((u32)old), ftz((u32)v), 0)); // global
      else value = atomic_value(op, t, old, v, v2);
      if (size == 2) value &= 0xffff;
      if (size == 8 ? __sync_bool_compare_and_swap((u64 *)p, old, value)
          : size == 4 ? __sync_bool_compare_and_swap((u32 *)p, (u32)old, (u32)value)
                      : __sync_bool_compare_and_swap((u16 *)p, (u16)old, (u16)value))
        break;
    }
    if (old != value) effect(k);
    WATCH(k, w, g, 1u << l, spin_read, .space = space, .address = a, .value = old);
    if (in->d >= 0) {
      if (wide) U64(in->d)[l] = old;
      else U32(in->d)[l] = (u32)old;
    }
  }
  if (k->counting) count_access(k, w, g, space, all, 0, m, (u32)size, COUNT_READ | COUNT_WRITE);
  return 1;
}
