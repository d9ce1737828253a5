// Groups of a warp's lanes: call frames, barriers, scheduling and waiting.
#pragma once
#include "quick.h"

// new_frame returns a frame of zeros. Frames of the kernel itself are reused.
static frame *new_frame(worker *k, vg_func *f) {
  frame *fr = f == k->l->funcs[k->l->entry] ? k->frames : NULL;
  u8 *regs;
  if (fr) {
    regs = fr->regs;
    k->frames = fr->up;
  } else {
    fr = malloc(sizeof *fr);
    regs = aligned_alloc(64, ((size_t)f->frame_size + 63) / 64 * 64 + 64);
    if (fr == NULL || regs == NULL) abort();
  }
  memset(fr, 0, sizeof *fr);
  memset(regs, 0, (size_t)f->frame_size);
  fr->f = f;
  fr->refs = 1;
  fr->regs = regs;
  return fr;
}

static void free_frame(frame *fr) {
  free(fr->regs);
  free(fr);
}

static void drop_frame(worker *k, frame *fr) {
  while (fr && --fr->refs == 0) {
    frame *up = fr->up;
    free(fr->taints);
    if (fr->f == k->l->funcs[k->l->entry]) fr->up = k->frames, k->frames = fr;
    else free_frame(fr);
    fr = up;
  }
}

// merge_groups merges groups at the same place, unless they wait there for different lanes.
static void merge_groups(warp *w) {
  for (int i = 0; i < w->ng; i++)
    for (int j = i + 1; j < w->ng;) {
      group *a = &w->g[i], *b = &w->g[j];
      int apart = a->state == WAIT_LANES && b->state == WAIT_LANES && a->need != b->need;
      if (a->pc == b->pc && a->fr == b->fr && a->state != WAIT_BARRIER && b->state != WAIT_BARRIER && !apart) {
        a->mask |= b->mask;
        a->state = RUN; // an instruction that waits for lanes tries again
        a->forced = 0;
        a->back = 0;
        b->fr->refs--;
        w->g[j] = w->g[--w->ng];
      } else {
        j++;
      }
    }
}

// wake resumes lanes whose __syncwarp is complete; lanes of one mask may wait at different calls.
static int wake(warp *w) {
  for (int i = 0; i < w->ng; i++) {
    group *g = &w->g[i];
    if (g->state != WAIT_LANES) continue;
    u32 here = 0;
    int syncs = 1;
    for (int j = 0; j < w->ng; j++) {
      group *o = &w->g[j];
      if (o->state != WAIT_LANES) continue;
      if (o->fr->f->code[o->pc].op != E_warp_sync) {
        if (o == g) syncs = 0;
        continue;
      }
      here |= o->mask;
    }
    if ((g->need & w->live & ~g->mask) == 0) { // the missing lanes have ended
      g->state = RUN;
      return 1;
    }
    if (syncs && (g->need & w->live & ~here) == 0) {
      u32 need = g->need;
      for (int j = 0; j < w->ng; j++) {
        group *o = &w->g[j];
        if (o->state == WAIT_LANES && o->fr->f->code[o->pc].op == E_warp_sync && o->mask & need) {
          o->pc++;
          o->state = RUN;
        }
      }
      return 1;
    }
  }
  return 0;
}

static int pick(warp *w) {
  int best = -1;
  for (int i = 0; i < w->ng; i++) {
    group *g = &w->g[i];
    if (g->state != RUN) continue;
    if (g->forced) return i;
    if (best < 0 || g->depth > w->g[best].depth || (g->depth == w->g[best].depth && g->pc < w->g[best].pc)) best = i;
  }
  return best;
}

// turn passes the turn from group i to another.
static void turn(warp *w, int i) {
  w->g[i].forced = 0;
  w->g[i].back = 0;
  for (int n = 1; n < w->ng; n++) {
    int j = (i + n) % w->ng;
    if (w->g[j].state == RUN) {
      w->g[j].forced = 1;
      w->g[j].back = 0;
      return;
    }
  }
}

static void release_barrier(worker *k, block *b, int id) {
  barrier *bar = &b->bars[id];
  int missing = bar->expected ? 0 : (int)(b->threads - b->live);
  for (int i = 0; i < b->nw; i++) {
    warp *w = &b->w[i];
    for (int j = 0; j < w->ng; j++) {
      group *g = &w->g[j];
      if (g->state != WAIT_BARRIER || g->bar != id) continue;
      if (missing && k->l->strict >> HAZARD_ENDED & 1) {
        FAULT(k, w, g, __builtin_ctz(g->mask), ended_threads, .threads = missing);
        return;
      }
      vg_inst *in = &g->fr->f->code[g->pc];
      u8 *base[3] = {g->fr->regs, g->fr->f->pool, w->spec};
      if (in->kind == BAR_POPC) {
        u32 v[32];
        LANES v[l] = bar->popc;
        blend32(U32(in->d), v, g->mask);
      } else if (in->kind >= BAR_AND) {
        u32 v = in->kind == BAR_AND ? bar->all : bar->any;
        PRED(in->d) = (PRED(in->d) & ~g->mask) | (v ? g->mask : 0);
      }
      g->state = RUN;
      g->pc++;
      acquire(w, g->mask, row_bar(b->t, b->rank, (u32)id));
      if (!bar->expected) acquire(w, g->mask, row_exit(b->t, b->rank)); // ended threads count as having arrived
    }
  }
  if (b->t->views) memset(row(b->t, row_bar(b->t, b->rank, (u32)id)), 0, b->t->nviews * sizeof(view));
  memset(bar, 0, sizeof *bar);
  bar->all = 1;
}

static void lanes_ended(worker *k, block *b) {
  for (int i = 0; i < 16; i++) {
    barrier *bar = &b->bars[i];
    if (bar->arrived && !bar->expected && bar->arrived >= b->live) release_barrier(k, b, i);
  }
}

// cluster_arrived ends a phase of barrier.cluster once all live threads of the cluster have arrived.
static void cluster_arrived(task *t) {
  u32 all = 0;
  for (int i = 0; i < t->nb; i++) all += t->b[i].live;
  if (!t->arrived || t->arrived < all) return;
  t->arrived = 0, t->phase++;
  if (t->views) memset(row(t, row_cluster(t, t->phase)), 0, t->nviews * sizeof(view));
}

static void end_lanes(worker *k, warp *w, int gi) {
  group *g = &w->g[gi];
  effect(k);
  if (w->live == g->mask && w->b->done + 1 == w->b->nw && w->b->columns)
    FAULT(k, w, g, __builtin_ctz(g->mask), tmem_leak);
  publish(w, g->mask, row_exit(w->b->t, w->b->rank));
  w->live &= ~g->mask;
  w->b->live -= (u32)__builtin_popcount(g->mask);
  drop_frame(k, g->fr);
  w->g[gi] = w->g[--w->ng];
  if (w->live == 0 && ++w->b->done == w->b->nw) end_block(k, w->b);
  lanes_ended(k, w->b);
  cluster_arrived(w->b->t);
}

// split moves the lanes who of a group to a new group at pc.
static group *split(warp *w, group *g, u32 who, int pc) {
  group *n = &w->g[w->ng++];
  *n = *g;
  n->mask = who;
  n->pc = pc;
  n->forced = 0;
  g->fr->refs++;
  g->mask &= ~who;
  return n;
}

// waits_for_absent raises a fault if lanes of a member mask have ended or were never started. It accepts the mask of
// __syncwarp() without an argument in a warp of fewer lanes.
static __attribute__((cold, noinline)) int waits_for_absent(worker *k, warp *w, group *g, const vg_inst *in, u32 lane, u32 want) {
  u32 ended = want & w->exists & ~w->live, never = want & ~w->exists;
  if (in->op == E_warp_sync && want == ~0u) never = 0;
  if (ended | never) FAULT(k, w, g, (int)lane, ended_lanes, .ended = ended, .never_started = never);
  return (ended | never) != 0;
}

// gathered looks for lanes of *m that can execute an instruction with a member mask together: all live lanes of one
// mask. It leaves them in *m and their mask in *need, and splits off lanes with other masks, which may be ready, too.
// If no mask is complete, it returns 0: lanes with the same mask wait as a group, and lanes excluded by the guard
// continue.
static int gathered(worker *k, warp *w, int gi, const vg_inst *in, u8 *const *base, u32 *m, u32 *need) {
  group *g = &w->g[gi];
  u32 left = *m, waiting[32], wanted[32];
  int n = 0;
  while (left) {
    u32 lane = (u32)__builtin_ctz(left), want = *need, same = left;
    if (in->want >= 0) {
      const u32 *masks = U32(in->want);
      want = masks[lane];
      same = 0;
      EACH(left) same |= (u32)(masks[l] == want) << l;
      if (same & ~want) FAULT(k, w, g, __builtin_ctz(same & ~want), outside_mask, .mask = want);
      if (k->state->stop) return 0;
    }
    left &= ~same;
    if (want & ~w->live && k->l->strict >> HAZARD_ENDED & 1 && waits_for_absent(k, w, g, in, lane, want)) return 0;
    want &= w->live;
    if ((want & ~same) == 0) {
      if (*m != same) split(w, g, *m & ~same, g->pc)->state = RUN;
      *m = same, *need = want;
      return 1;
    }
    waiting[n] = same, wanted[n++] = want;
  }
  u32 excluded = g->mask & ~*m;
  if (excluded) split(w, g, excluded, g->pc + 1)->state = RUN;
  for (int i = 1; i < n; i++) {
    group *o = split(w, g, waiting[i], g->pc);
    o->state = WAIT_LANES, o->need = wanted[i];
  }
  g->state = WAIT_LANES, g->need = wanted[0];
  return 0;
}
