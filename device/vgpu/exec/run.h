// run executes a warp's instructions in a switch over their codes. Its cases are in run_*.h. They may use:
//   in       the instruction           m     the lanes of the group that pass its guard
//   base     for P, U32, U64, PRED     mask  the lanes of group g, number gi of warp w
//   extra    its further operands      pc    its index; g->pc is set when the group stops
// A case ends with break (next instruction), continue (pc is set), FAULTED, or goto again (pick a group).
#pragma once
#include "groups.h"
#include "library.h"
#include "tensor.h"
#include "texture.h"

static void shuffle(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, u32 need, const int32_t *extra) {
  const u32 *v = U32(in->a), *b = U32(in->b), *c = U32(in->c);
  u32 from[32], ok[32], out[32], inside = 0; // by lane: the lane it reads, itself if the other is outside of its segment
#define SOURCES(j, in_range)                                                        \
  LANES {                                                                           \
    u32 lane = (u32)l, bound = b[l] & 31, clamp = c[l] & 31, seg = c[l] >> 8 & 31;  \
    u32 limit = (lane & seg) | (clamp & ~seg), other = j;                           \
    ok[l] = in_range;                                                               \
    from[l] = ok[l] ? other & 31 : lane;                                            \
  }                                                                                 \
  break;
  switch (in->kind) {
  case S_UP: SOURCES(lane - bound, (s32)other >= (s32)limit)
  case S_DOWN: SOURCES(lane + bound, other <= limit)
  case S_BFLY: SOURCES(lane ^ bound, other <= limit)
  default: SOURCES((lane & seg) | (bound & ~seg & 31), other <= limit)
  }
#undef SOURCES
  for (int l = 0; l < 32; l++) out[l] = v[from[l]];
  for (int l = 0; l < 32; l++) inside |= ok[l] << l;
  if (need != ~0u || w->tracks) shuffled(k, w, g, m, need, inside, from, out);
  blend32(U32(in->d), out, m);
  int32_t p = extra[in->x];
  if (p >= 0) PRED(p) = (PRED(p) & ~m) | (inside & m);
}

// counted counts an instruction and updates the taints for it. It returns 0 after a fault.
static __attribute__((noinline)) int counted(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base) {
  u32 m = g->mask;
  if (in->guard >= 0) m &= in->flags & FLAG_NEGATED ? ~PRED(in->guard) : PRED(in->guard);
  if (k->state->counts && m) __atomic_fetch_add(&k->state->counts[in->op], 1, __ATOMIC_RELAXED);
  if (k->counting) count_instruction(k, g, in, base, m);
  return !w->tracks || !(in->flags & FLAG_TRACKED) || tracked(k, w, g, base);
}

// run executes up to budget instructions of a warp. It returns 0 if all groups wait.
static int run(worker *k, warp *w, int budget) {
  const vg_launch *launch = k->l;
  vg_state *state = k->state;
  int gi, start_budget = budget;
again:
  merge_groups(w);
  gi = pick(w);
  if (gi < 0) {
    if (wake(w)) goto again;
    k->executed += (u64)(start_budget - budget);
    return 0;
  }
  group *g = &w->g[gi];
  vg_func *f = g->fr->f;
  const vg_inst *code = f->code;
  const int32_t *extra = f->extra;
  const vg_native *native = f->native;
  u8 *base[4] = {g->fr->regs, f->pool, w->spec, launch->params}; // the last one for translated code
  u32 mask = g->mask;
  int pc = g->pc;
  u64 scratch_[32] __attribute__((aligned(64)));
  void *scratch = scratch_;
  w->slow = state->counts != NULL || k->counting || w->tracks;

#define FAULTED { g->pc = pc; k->executed += (u64)(start_budget - budget); return 0; }
  for (;;) {
    const vg_inst *in = &code[pc];
    if (w->ng > 1 && in->flags & FLAG_LEADER) {
      g->pc = pc;
      int other = 0;
      for (int i = 0; i < w->ng; i++) {
        group *o = &w->g[i];
        if (i == gi || o->state == WAIT_BARRIER) continue;
        if (o->pc == pc && o->fr == g->fr) other = 1;
        if (!g->forced && o->state == RUN && (o->depth > g->depth || (o->depth == g->depth && o->pc < pc))) other = 1;
      }
      if (other) goto again;
    }
    if (native && native[pc].n && !w->slow && budget >= native[pc].n && !state->stop) {
      if (mask == ~0u) native[pc].full(base);
      else native[pc].part(base, mask);
      budget -= native[pc].n;
      pc += native[pc].n;
      continue;
    }
    if (budget-- <= 0 || state->stop) {
      g->pc = pc;
      if (g->forced && w->ng > 1) turn(w, gi);
      k->executed += (u64)(start_budget - budget);
      return 1;
    }
    if (w->slow) {
      g->pc = pc;
      if (!counted(k, w, g, in, base)) FAULTED
    }
    u32 m = mask;
    if (in->guard >= 0) {
      u32 p = PRED(in->guard);
      m &= in->flags & FLAG_NEGATED ? ~p : p;
      if (m == 0) {
        pc++;
        continue;
      }
    }

// MISSING_LANES sets m to the lanes that are ready to execute a warp instruction together, and need_ to the lanes that
// take part: all lanes of one member mask, once they have arrived. The other lanes become separate groups.
#define MISSING_LANES(required)                                 \
  g->pc = pc;                                                   \
  u32 need_ = required;                                         \
  u32 tried_ = m;                                               \
  if (!gathered(k, w, gi, in, base, &m, &need_)) {              \
    if (k->counting) uncount(k, g, pc, mask, tried_);           \
    if (state->stop) FAULTED                                   \
    goto again;                                                 \
  }                                                             \
  mask = g->mask;                                               \
  converged(w);
#define STORE(D, expr)                                   \
  if (m == ~0u) {                                        \
    D *d = (D *)P(in->d);                                \
    LANES { expr; }                                      \
  } else {                                               \
    D *d = (D *)scratch;                                 \
    LANES { expr; }                                      \
    if (sizeof(D) == 8) blend64(U64(in->d), scratch, m); \
    else blend32(U32(in->d), scratch, m);                \
  }
#define CASE1(id, D, A, expr)            \
  case E_##id: {                         \
    const A *a_ = (const A *)P(in->a);   \
    STORE(D, A a = a_[l]; d[l] = expr)   \
    break;                               \
  }
#define CASE2(id, D, A, B, expr)                              \
  case E_##id: {                                              \
    const A *a_ = (const A *)P(in->a);                        \
    const B *b_ = (const B *)P(in->b);                        \
    STORE(D, A a = a_[l]; B b = b_[l]; d[l] = expr)           \
    break;                                                    \
  }
#define CASE3(id, D, A, B, C, expr)                           \
  case E_##id: {                                              \
    const A *a_ = (const A *)P(in->a);                        \
    const B *b_ = (const B *)P(in->b);                        \
    const C *c_ = (const C *)P(in->c);                        \
    STORE(D, A a = a_[l]; B b = b_[l]; C c = c_[l]; d[l] = expr) \
    break;                                                    \
  }
#define CMP(T, cond) LANES { T x = (T)x_[l], y = (T)y_[l]; r[l] = (cond) ? ~0u : 0; } break;
#define CASECMP(id, T, S)                                     \
  case E_##id: {                                              \
    const S *x_ = (const S *)P(in->a), *y_ = (const S *)P(in->b); \
    u32 r[32] = {0};                                          \
    switch (in->kind) {                                       \
    case CMP_EQ: CMP(T, x == y)                            \
    case CMP_NE: CMP(T, x < y || x > y)              \
    case CMP_LT: CMP(T, x < y)                             \
    case CMP_LE: CMP(T, x <= y)                            \
    case CMP_GT: CMP(T, x > y)                             \
    case CMP_GE: CMP(T, x >= y)                            \
    case CMP_EQU: CMP(T, !(x < y || x > y))          \
    case CMP_NEU: CMP(T, x != y)                           \
    case CMP_LTU: CMP(T, !(x >= y))                        \
    case CMP_LEU: CMP(T, !(x > y))                         \
    case CMP_GTU: CMP(T, !(x <= y))                        \
    case CMP_GEU: CMP(T, !(x < y))                         \
    case CMP_NUM: CMP(T, x == x && y == y)           \
    case CMP_NAN: CMP(T, x != x || y != y)           \
    }                                                         \
    PRED(in->d) = (PRED(in->d) & ~m) | (lane_mask(r) & m);    \
    break;                                                    \
  }
    if (in->op == E_bra && m == mask && w->ng == 1 && !k->yield) { // the usual branch
      if (in->imm <= pc) g->turns++, g->back++;
      pc = (int)in->imm;
      continue;
    }
    switch (in->op) {
      OPS1(CASE1)
      OPS2(CASE2)
      OPS3(CASE3)
      OPSCMP(CASECMP)
#include "run_values.h"
#include "run_control.h"
#include "run_memory.h"
#include "run_matrix.h"
#include "run_warp.h"
#include "run_library.h"
    default:
      g->pc = pc;
      FAULT(k, w, g, __builtin_ctz(m), unsupported);
      FAULTED
    }
    pc++;
  }
}
