// Undefined values: those that a shuffle read from a lane that does not take part, those that a store of an unwritten
// register left in shared or local memory, and those of unwritten shared or local memory. They are errors only if
// something visible depends on them: a store to global memory, an address, a branch, an atomic, the operand of a vote.
// Shadows of memory hold UNDEFINED times the number of the value's origin in the block, plus 1 if only the lower 4 bits of
// the byte are undefined, plus 2 if only the upper ones are; registers have taints. A warp has taints from its first
// undefined value on. Then run updates them before each PTX instruction, as the function's table says.
// The table, vg_func.tracks, has for each instruction the index of its entry, or 0. An entry is made of
//   a TRACK_* code
//   the guard's register or -1, its place, and 1 if it is negated
//   a number of registers, then these: those read; of memory accesses only the address; of select a, b and the condition
//   the same, of the registers written; of a store those stored; of a vector in order, -1 for other operands
//   a number of operands that can decide the result, then for each its register, its place, its size in bytes (0: a
//   predicate) and the deciding value: and with an operand that is 0 is 0 for any other operand; or, if the instruction
//   only moves halves of bytes, by written register 16 times the origin of a half: 16 times the index in the registers read
//   plus the number of the half, or -1
#pragma once
#include "races.h"

enum { UNDEFINED = 4 };

// A taint has the lanes in which a register is undefined, and by lane the value's origin and the undefined halves of bytes.
typedef struct taint {
  u32 lanes;
  u8 from[32];
  u16 halves[32];
} taint;

static block *shared_of(warp *w, u64 *a) { // removes the rank from a shared address
  u32 rank = (u32)(*a >> 24) & 0xff;
  *a &= 0xffffff;
  if (rank == 0) return w->b;
  if ((int)rank > w->b->t->nb) return NULL;
  return &w->b->t->b[rank - 1];
}

static u8 *local_shadow(warp *w, const u8 *p) {
  return w->local_shadow && in_local(w, p) ? w->local_shadow + (p - w->local) : NULL;
}

// numbered returns the number of an origin. When a block has too many, those of one instruction share a number.
static u32 numbered(block *b, origin o) {
  u32 like = MAX_ORIGINS;
  for (u32 i = 1; i <= b->norigins; i++) {
    const origin *p = &b->origins[i];
    if (p->at.func != o.at.func || p->at.pc != o.at.pc) continue;
    if (p->why == o.why && p->lane == o.lane) return i;
    like = i;
  }
  if (b->norigins == MAX_ORIGINS) return like;
  b->origins[++b->norigins] = o;
  return b->norigins;
}

static u32 hazard_of(u32 why) {
  switch (why) {
  case ORIGIN_STORE: return HAZARD_REGISTER;
  case ORIGIN_LOCAL: return HAZARD_LOCAL;
  case ORIGIN_SHARED: return HAZARD_SHARED;
  default: return HAZARD_OUTSIDE_MASK;
  }
}

// reported reports whether an earlier report makes another one for the same hazard useless.
static int reported(worker *k, warp *w, u32 why) {
  const vg_report *r = &k->state->hazards[hazard_of(why)];
  return w->reported >> hazard_of(why) & 1 || (r->set && r->cluster && r->cluster <= w->b->t->number);
}

static taint *taints(worker *k, warp *w, frame *fr) {
  if (fr->taints == NULL && (fr->taints = calloc((size_t)fr->f->nregs + 1, sizeof(taint))) == NULL) abort();
  w->tracks = 1;
  w->slow = 1;
  return fr->taints;
}

// use reports that the next instruction of a group uses an undefined value. It returns 0 if the launch stops.
static __attribute__((cold, noinline)) int use(worker *k, warp *w, group *g, u32 lane, u32 number) {
  origin o = w->b->origins[number];
  if (reported(k, w, o.why)) return 1;
  if (o.why == ORIGIN_STORE) FAULT(k, w, g, (int)lane, stored_register, .store = o.at);
  else if (o.why == ORIGIN_LOCAL) {
    vg_fault f = FAULT_AT(g, unwritten_local, .size = o.size);
    f.at = o.at;
    fault(k, w, (int)lane, &f);
  } else if (o.why == ORIGIN_SHARED) {
    vg_fault f = {.kind = FAULT_unwritten_shared, .at = o.at};
    fault(k, &w->b->w[o.thread / 32], o.thread % 32, &f);
  } else FAULT(k, w, g, (int)lane, absent_lane, .lane = o.lane, .why = o.why, .shuffle = o.at);
  w->reported |= 1u << hazard_of(o.why);
  w->tracks = 0;
  for (int i = 0; i < w->ng; i++)
    for (frame *fr = w->g[i].fr; fr; fr = fr->up) {
      free(fr->taints);
      fr->taints = NULL;
    }
  return !k->state->stop;
}

static const int32_t *entry_of(const group *g) { return g->fr->f->tracks + g->fr->f->tracks[g->pc]; }

// moved updates the taints for an instruction that moves halves of bytes.
static void moved(taint *t, u32 m, u32 doubtful, int guard, const int32_t *reads, const int32_t *writes, const int32_t *halves) {
  taint old[4]; // a written register may be one of those read
  int any = doubtful != 0;
  for (int i = 0; i < reads[-1]; i++) old[i] = t[reads[i]], any |= (old[i].lanes & m) != 0;
  for (int i = 0; i < writes[-1]; i++, halves += 16) {
    if (writes[i] < 0) continue;
    taint *d = &t[writes[i]];
    d->lanes &= ~m;
    if (!any) continue;
    EACH(m | doubtful) {
      u16 bad = doubtful >> l & 1 ? 0xffff : 0;
      u8 from = bad ? t[guard].from[l] : 0;
      for (int j = 0; j < 16; j++) {
        if (halves[j] < 0) continue;
        const taint *s = &old[halves[j] >> 4];
        if (s->lanes & m & 1u << l && s->halves[l] >> (halves[j] & 15) & 1) bad |= (u16)(1 << j), from = s->from[l];
      }
      if (bad) d->lanes |= 1u << l, d->from[l] = from, d->halves[l] = bad;
    }
  }
}

// tracked updates the taints for the next instruction of a group. It returns 0 if the launch stops.
static int tracked(worker *k, warp *w, group *g, u8 *const *base) {
  taint *t = g->fr->taints;
  if (t == NULL) return 1;
  const int32_t *e = entry_of(g);
  int how = e[0], guard = e[1], nreads = e[4];
  u32 m = g->mask, doubtful = 0, lanes = 0;
  u8 from[32];
  u16 halves[32] = {0};
  if (guard >= 0) {
    m &= e[3] ? ~PRED(e[2]) : PRED(e[2]);
    doubtful = t[guard].lanes & g->mask;
  }
  const int32_t *reads = e + 5, *writes = reads + nreads + 1, *decisive = writes + writes[-1] + 1;
  if (how >= TRACK_SHUFFLE) {
    if (doubtful) {
      u32 lane = (u32)__builtin_ctz(doubtful);
      return use(k, w, g, lane, t[guard].from[lane]);
    }
    for (int i = 0; i < nreads; i++) {
      u32 bad = t[reads[i]].lanes & m;
      if (bad == 0) continue;
      u32 lane = (u32)__builtin_ctz(bad);
      if (!use(k, w, g, lane, t[reads[i]].from[lane])) return 0;
      if (g->fr->taints == NULL) return 1;
    }
    if (how != TRACK_SHUFFLE && how != TRACK_STORE)
      for (int i = 0; i < writes[-1]; i++)
        if (writes[i] >= 0) t[writes[i]].lanes &= ~m;
    return 1;
  }
  if (how == TRACK_MOVE) {
    moved(t, m, doubtful, guard, reads, writes, decisive);
    return 1;
  }
  u32 decided = 0, chosen[3] = {~0u, ~0u, ~0u};
  if (how == TRACK_SELECT) {
    chosen[0] = PRED(decisive[1]);
    chosen[1] = ~chosen[0];
  } else {
    for (int i = 0; i < decisive[-1]; i++) {
      const int32_t *d = decisive + 4 * i;
      u32 equal = 0;
      if (d[2] == 0) equal = d[3] ? PRED(d[1]) : ~PRED(d[1]);
      else EACH(m) equal |= (u32)(d[2] == 8 ? U64(d[1])[l] == (u64)d[3] : U32(d[1])[l] == (u32)d[3]) << l;
      decided |= equal & ~t[d[0]].lanes;
    }
  }
  for (int i = 0; i < nreads; i++) {
    if (reads[i] < 0) continue;
    u32 add = t[reads[i]].lanes & m & ~decided & (how == TRACK_SELECT ? chosen[i] : ~0u);
    lanes |= add;
    int same = how == TRACK_BITWISE || (how == TRACK_SELECT && i < 2); // the same halves of the result
    EACH(add) from[l] = t[reads[i]].from[l], halves[l] |= same ? t[reads[i]].halves[l] : 0xffff;
  }
  lanes |= doubtful;
  EACH(doubtful) from[l] = t[guard].from[l], halves[l] = 0xffff;
  for (int i = 0; i < writes[-1]; i++) {
    taint *d = &t[writes[i]];
    d->lanes = (d->lanes & ~m) | lanes;
    EACH(lanes) d->from[l] = from[l], d->halves[l] = halves[l];
  }
  return 1;
}

// shuffled completes a shuffle of lanes m and member mask need, in which lane l reads out[l] from lane from[l] if it is
// inside its segment. As on a GPU, absent lanes give 0.
static __attribute__((noinline)) void shuffled(worker *k, warp *w, group *g, u32 m, u32 need, u32 inside, const u32 *from, u32 *out) {
  u32 absent = 0, lanes = 0;
  u8 number[32];
  u16 halves[32];
  EACH(m & inside) absent |= (u32)(~need >> from[l] & 1) << l;
  EACH(absent) out[l] = 0;
  frame *fr = g->fr;
  if (fr->f->tracks == NULL) return;
  const int32_t *e = entry_of(g);
  const int32_t *writes = e + 5 + e[4] + 1;
  EACH(absent) {
    u8 j = (u8)from[l];
    u8 why = !(w->exists >> j & 1) ? ABSENT_NEVER_STARTED : !(w->live >> j & 1) ? ABSENT_ENDED : ABSENT_OUTSIDE;
    if (reported(k, w, why)) continue;
    number[l] = (u8)numbered(w->b, (origin){location(g), .why = why, .lane = j});
    halves[l] = 0xffff, lanes |= 1u << l;
  }
  if (fr->taints == NULL && lanes == 0) return;
  taint *t = taints(k, w, fr);
  if (writes[0] >= 0) { // the register whose value is exchanged
    const taint *v = &t[writes[0]];
    EACH(m & ~absent)
      if (v->lanes >> from[l] & 1) number[l] = v->from[from[l]], halves[l] = v->halves[from[l]], lanes |= 1u << l;
  }
  for (int i = 1; i < writes[-1]; i++) {
    taint *d = &t[writes[i]];
    d->lanes = (d->lanes & ~m) | (i == 1 ? lanes : 0);
    if (i == 1) EACH(lanes) d->from[l] = number[l], d->halves[l] = halves[l];
  }
}

// shadow_of returns the shadow of shared or local memory at p, and its block, or NULL.
static u8 *shadow_of(warp *w, const u8 *p, block **of) {
  block *b = block_at(w, p);
  *of = b ? b : w->b;
  return b ? b->shadow + (p - b->shared) : local_shadow(w, p);
}

// keep_undefined marks those halves of n bytes of shared or local memory that hold a value of an origin of the warp's
// block. A store to other memory uses the value. It returns 0 if the launch stops.
static int keep_undefined(worker *k, warp *w, group *g, u32 lane, const u8 *p, int n, u32 halves, u32 number) {
  if ((halves & ((1ull << 2 * n) - 1)) == 0) return 1;
  block *of;
  u8 *s = shadow_of(w, p, &of);
  if (s == NULL && !in_local(w, p)) return use(k, w, g, lane, number);
  if (s && of != w->b) number = numbered(of, w->b->origins[number]);
  for (int i = 0; s && i < n; i++) {
    u32 which = halves >> 2 * i & 3;
    if (which) s[i] = (u8)(number * UNDEFINED + which % 3);
  }
  return 1;
}

// stored marks the memory to which a store writes undefined registers.
static __attribute__((noinline)) int stored(worker *k, warp *w, group *g, const vg_inst *in, u8 **p, u32 m) {
  const taint *t = g->fr->taints;
  if (t == NULL) return 1;
  const int32_t *e = entry_of(g), *regs = e + 5 + e[4] + 1;
  for (int i = 0; i < in->n; i++) {
    int32_t r = regs[i * regs[-1] / in->n];
    if (r < 0) continue;
    EACH(t[r].lanes & m) {
      if (!keep_undefined(k, w, g, l, p[l] + (in->c & 31) * i, in->c & 31, t[r].halves[l], t[r].from[l])) return 0;
      if ((t = g->fr->taints) == NULL) return 1;
    }
  }
  return 1;
}

// mark_unwritten marks the memory to which the preceding store wrote unwritten registers. Fields are those of the store,
// kind is its space, x has the shadows of the registers, see undefined.go.
static __attribute__((noinline)) int mark_unwritten(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  int size = in->c & 31;
  for (int i = 0; i < in->n; i++) {
    if (extra[in->x + i] < 0) continue;
    const u32 *s = U32(extra[in->x + i]);
    u32 any = 0;
    LANES any |= s[l];
    if (any == 0) continue;
    EACH(m) {
      if (s[l] == 0) continue;
      u64 a = (in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm) + (u64)(size * i);
      int space = in->kind;
      if (space == GENERIC) space = a >> 56 == 0x40 ? SHARED : a >> 56 == 0x41 ? LOCAL : GLOBAL;
      a &= 0xffffffffffffffull;
      if (space == GLOBAL) {
        vg_location at = location(g);
        if (s[l] != ~0u) g->pc = (int)s[l] - 1;
        FAULT(k, w, g, (int)l, unwritten_register);
        g->pc = at.pc;
        if (k->state->stop) return 0;
        continue;
      }
      if (space == LOCAL) {
        keep_undefined(k, w, g, l, w->local + (u64)l * LOCAL_BYTES + a, size, ~0u, numbered(w->b, (origin){location(g), .why = ORIGIN_STORE}));
      } else {
        block *b = shared_of(w, &a);
        memset(b->shadow + a, (int)numbered(b, (origin){location(g), .why = ORIGIN_STORE}) * UNDEFINED, (size_t)size);
      }
    }
  }
  return 1;
}

// met_undefined is called for a read of shared memory with the given shadow, in block b, that is unwritten or holds an
// undefined value. A load gives its register a taint later; other instructions use the value. It returns 0 if the launch
// stops.
static __attribute__((cold, noinline)) int met_undefined(worker *k, warp *w, group *g, int lane, block *b, u8 shadow) {
  int op = g->fr->f->code[g->pc].op;
  if (g->fr->f->tracks && (op == E_ld_shared || op == E_ld_generic)) {
    k->met |= 1u << lane;
    return 1;
  }
  if (shadow < UNDEFINED) {
    FAULT(k, w, g, lane, unwritten_shared);
    return !k->state->stop;
  }
  return use(k, w, g, (u32)lane, numbered(w->b, b->origins[shadow / UNDEFINED]));
}

// around reports whether a strong access to a word may be meant for a part of it, which is written: libraries make an
// atomic on one or two bytes from strong loads and atomics on the word around them.
static int around(const group *g, const u8 *shadow, u64 size) {
  const vg_inst *in = &g->fr->f->code[g->pc];
  int strong = in->op == E_atom || (in->op >= E_ld_global && in->op <= E_ld_generic && in->c & M_STRONG);
  return strong && size == 4 && shadow[0] + shadow[1] + shadow[2] + shadow[3] > 0;
}

static __attribute__((noinline)) int has_undefined(warp *w, const u8 *p, int n) {
  const u8 *s = local_shadow(w, p);
  for (int i = 0; s && i < n; i++)
    if (s[i] >= UNDEFINED) return 1;
  return 0;
}

// passed copies the marks of undefined values from one place in local memory to another.
static void passed(warp *w, const u8 *to, const u8 *from, int n) {
  u8 *s = local_shadow(w, to);
  const u8 *old = local_shadow(w, from);
  for (int i = 0; s && old && i < n; i++)
    if (old[i] >= UNDEFINED) s[i] = old[i];
}

// loaded sets the taints of the registers that a load in lanes k->met read from p.
static __attribute__((noinline)) void loaded(worker *k, warp *w, group *g, const vg_inst *in, u8 **p, u32 m) {
  u32 met = k->met & m;
  k->met = 0;
  if (g->fr->f->tracks == NULL) return;
  const int32_t *e = entry_of(g), *regs = e + 5 + e[4] + 1;
  EACH(met)
    for (int i = 0; i < in->n; i++) {
      int32_t r = regs[i * regs[-1] / in->n];
      block *of;
      const u8 *s = shadow_of(w, p[l] + (in->c & 31) * i, &of);
      u32 number = 0, halves = 0, empty = 0, size = in->c & 31;
      if (r < 0 || s == NULL) continue;
      for (u32 j = 0; j < size; j++)
        if (s[j] >= UNDEFINED) number = s[j] / UNDEFINED, halves |= (s[j] % UNDEFINED ? s[j] % UNDEFINED : 3u) << 2 * j;
        else if (s[j] == 0) empty |= 3u << 2 * j;
      if (in_local(w, p[l]) || around(g, s, size)) empty = 0;
      if (number && reported(k, w, of->origins[number].why)) number = halves = 0;
      if (number && of != w->b) number = numbered(w->b, of->origins[number]);
      if (empty && number == 0 && !reported(k, w, ORIGIN_SHARED))
        number = numbered(w->b, (origin){location(g), .why = ORIGIN_SHARED, .thread = (u16)(w->id * 32 + l)});
      if (number == 0) continue;
      halves |= empty;
      if (in->c & M_SIGNED && halves >> (2 * size - 1)) halves |= 0xffffu << 2 * size;
      taint *t = &taints(k, w, g->fr)[r];
      t->lanes |= 1u << l, t->from[l] = (u8)number, t->halves[l] = (u16)halves;
    }
}
