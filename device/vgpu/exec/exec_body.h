// The main loop of the executor. A worker runs its blocks one after another. A block that does not end soon shares its
// time with the next, so that blocks that wait for each other make progress. The lanes of a warp form groups, each with
// its own position in the code. The group that is furthest behind runs until it meets another. Every group gets its
// turn, even if another one loops.
#include "run.h"

// set_special sets the special registers, or only those that differ between the blocks of a launch.
static void set_special(const vg_launch *l, block *b, warp *w, int again) {
  u32 *s = (u32 *)w->spec;
#define SPEC(which, expr) { u32 *to_ = s + 64 * (which); for (u32 i = 0; i < 32; i++) to_[i] = (u32)(expr); }
  SPEC(SR_SMID, b->linear % 148)
  for (u32 d = 0; d < 3; d++) {
    u32 id = b->id[d], size = l->cluster[d];
    SPEC(SR_CTAID_X + d, id)
    u32 cluster = id / size, rank = id % size;
    SPEC(SR_CLUSTER_X + d, cluster)
    SPEC(SR_CCTAID_X + d, rank)
  }
  if (again) return;
  u32 nx = l->block[0], ny = l->block[1];
  SPEC(SR_TID_X, (w->id * 32 + i) % nx)
  SPEC(SR_TID_Y, (w->id * 32 + i) / nx % ny)
  SPEC(SR_TID_Z, (w->id * 32 + i) / nx / ny)
  SPEC(SR_LANEID, i)
  SPEC(SR_WARPID, w->id)
  SPEC(SR_NWARPID, b->nw)
  SPEC(SR_LT, (1u << i) - 1)
  SPEC(SR_LE, i == 31 ? ~0u : (2u << i) - 1)
  SPEC(SR_GT, i == 31 ? 0 : ~0u << (i + 1))
  SPEC(SR_GE, ~0u << i)
  SPEC(SR_EQ, 1u << i)
  SPEC(SR_NSMID, 148)
  SPEC(SR_GRIDID, 1)
  SPEC(SR_CCTARANK, b->rank)
  SPEC(SR_CNCTARANK, b->t->nb)
  SPEC(SR_DYNAMIC_SMEM, l->shared_dynamic)
  SPEC(SR_TOTAL_SMEM, l->shared_static + l->shared_dynamic)
  SPEC(SR_ENVREG1, l->workspace >> 32)
  SPEC(SR_ENVREG2, l->workspace)
  SPEC(SR_ZERO, 0)
  for (u32 d = 0; d < 3; d++) {
    SPEC(SR_NTID_X + d, l->block[d])
    SPEC(SR_NCTAID_X + d, l->grid[d])
    SPEC(SR_NCLUSTER_X + d, l->grid[d] / l->cluster[d])
    SPEC(SR_CNCTAID_X + d, l->cluster[d])
  }
}

static void end_task(worker *k, task *t) {
  for (int i = 0; i < t->nb; i++) {
    block *b = &t->b[i];
    for (int j = 0; j < b->nw; j++) {
      warp *w = &b->w[j];
      for (int q = 0; q < w->ng; q++) drop_frame(k, w->g[q].fr);
      free(w->spec);
      free(w->copies.all);
      free(w->pending.all);
      if (w->local) munmap(w->local, 32ull * LOCAL_BYTES);
      if (w->local_shadow) munmap(w->local_shadow, 32ull * LOCAL_BYTES);
    }
    free(b->w);
    free(b->shared);
    free(b->shadow);
    free(b->words);
    free(b->remote);
    free(b->reading);
    free(b->copies.all);
    free(b->tmem);
  }
  free(t->views);
  free(t->ticks);
  free(t->b);
  free(t);
}

static int uses_local(const vg_launch *l) {
  for (int i = 0; i < l->nfuncs; i++)
    if (l->funcs[i] && (l->funcs[i]->local_size || l->funcs[i]->calls)) return 1;
  return 0;
}

// start creates the blocks of cluster n. reuse is an ended task whose memory is reused, or NULL.
static task *start(worker *k, u64 n, task *reuse) {
  const vg_launch *l = k->l;
  vg_func *f = l->funcs[l->entry];
  u32 per = l->cluster[0] * l->cluster[1] * l->cluster[2], threads = l->block[0] * l->block[1] * l->block[2];
  int nw = (int)((threads + 31) / 32), local = uses_local(l);
  u32 shared = l->shared_base + l->shared_static + l->shared_dynamic;
  task *t = reuse ? reuse : calloc(1, sizeof *t);
  if (t == NULL) abort();
  if (!reuse) t->b = calloc(per, sizeof(block));
  t->nb = (int)per;
  t->done = 0;
  t->arrived = t->phase = 0;
  t->number = (u32)n + 1;
  t->nwarps = per * (u32)nw;
  t->nviews = l->async ? 2 * t->nwarps : t->nwarps;
  t->acquired = t->mapped = 0;
  if (k->state->races) {
    size_t views = (size_t)row_count(t) * t->nviews * sizeof(view);
    if (!t->views && (t->views = malloc(views)) == NULL) abort();
    if (!t->ticks && (t->ticks = malloc((t->nviews + 2 * t->nwarps) * sizeof(u32))) == NULL) abort();
    memset(t->views, 0, views);
    t->some = t->ticks + t->nviews;
    t->fences = 0;
    for (u32 i = 0; i < t->nviews; i++) t->ticks[i] = i < t->nwarps ? STARTED + 1 : 0;
    memset(t->some, 0, 2 * t->nwarps * sizeof *t->some);
    t->converged = t->some + t->nwarps;
  } else {
    free(t->views);
    t->views = NULL;
  }
  u64 cx = l->grid[0] / l->cluster[0], cy = l->grid[1] / l->cluster[1];
  u64 c[3] = {n % cx, n / cx % cy, n / cx / cy};
  for (u32 r = 0; r < per; r++) {
    block *b = &t->b[r];
    b->id[0] = (u32)c[0] * l->cluster[0] + r % l->cluster[0];
    b->id[1] = (u32)c[1] * l->cluster[1] + r / l->cluster[0] % l->cluster[1];
    b->id[2] = (u32)c[2] * l->cluster[2] + r / l->cluster[0] / l->cluster[1];
    b->linear = b->id[0] + (u64)l->grid[0] * (b->id[1] + (u64)l->grid[1] * b->id[2]);
    b->t = t;
    b->rank = r;
    b->nw = nw;
    b->done = 0;
    b->threads = b->live = threads;
    b->columns = 0;
    b->copies.n = 0;
    b->norigins = 0;
    memset(b->bars, 0, sizeof b->bars);
    if (!reuse) {
      b->shared_size = shared;
      b->shared = aligned_alloc(1024, ((size_t)shared + 1023) / 1024 * 1024 + 1024);
      b->shadow = malloc(shared + 64);
      if (k->state->races && (b->words = calloc((size_t)shared / 4 + 8, sizeof(word))) == NULL) abort();
      if (k->state->races && per > 1 && (b->remote = malloc(t->nwarps * sizeof *b->remote)) == NULL) abort();
      b->w = calloc((size_t)nw, sizeof(warp));
      if (!b->shared || !b->shadow || !b->w) abort();
    }
    if (b->remote) memset(b->remote, 0, t->nwarps * sizeof *b->remote);
    memset(b->shared, 0xff, shared);
    memset(b->shadow, 0, shared);
    for (int i = 0; i < nw; i++) {
      warp *w = &b->w[i];
      w->id = (u32)i;
      w->b = b;
      if (!reuse) {
        w->spec = aligned_alloc(64, 256 * SR_COUNT);
        memset(w->spec, 0, 256 * SR_COUNT);
        if (local) {
          w->local = mmap(NULL, 32ull * LOCAL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
          if (w->local == MAP_FAILED) abort();
          if (l->check_local) {
            w->local_shadow = mmap(NULL, 32ull * LOCAL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (w->local_shadow == MAP_FAILED) abort();
          }
        }
      } else if (w->local_shadow) {
        madvise(w->local_shadow, 32ull * LOCAL_BYTES, MADV_DONTNEED);
      }
      u32 left = threads - (u32)i * 32;
      w->live = w->exists = left >= 32 ? ~0u : (1u << left) - 1;
      w->copies.n = w->pending.n = 0;
      w->tracks = w->reported = 0;
      memset(w->committed, 0, sizeof w->committed);
      memset(w->bulk_committed, 0, sizeof w->bulk_committed);
      w->products = w->commits = w->multiplied = w->ended = 0;
      w->ng = 1;
      memset(&w->g[0], 0, sizeof w->g[0]);
      w->g[0].fr = new_frame(k, f);
      w->g[0].mask = w->live;
      set_special(l, b, w, reuse != NULL);
    }
  }
  return t;
}

// A snapshot is the state of a warp's threads, except memory.
typedef struct {
  group g[32];
  int ng;
  u8 *regs; // all frames of all groups
  size_t size;
} snapshot;

static size_t frames_of(const warp *w, u8 *to) {
  size_t n = 0;
  for (int i = 0; i < w->ng; i++)
    for (frame *fr = w->g[i].fr; fr; fr = fr->up) {
      if (to) memcpy(to + n, fr->regs, (size_t)fr->f->frame_size);
      n += (size_t)fr->f->frame_size;
    }
  return n;
}

// recurs reports whether a warp is in the state of a snapshot again, registers included, and each running group has
// branched backward since.
static int recurs(const warp *w, const snapshot *s, u8 *buffer) {
  if (w->ng != s->ng) return 0;
  for (int i = 0; i < w->ng; i++) {
    const group *a = &w->g[i], *b = &s->g[i];
    if (a->pc != b->pc || a->mask != b->mask || a->fr != b->fr || a->state != b->state) return 0;
    if (a->state == RUN && a->turns == b->turns) return 0;
  }
  if (frames_of(w, NULL) != s->size) return 0;
  frames_of(w, buffer);
  return memcmp(buffer, s->regs, s->size) == 0;
}

// waits_for_ever reports whether no thread of a warp can continue unless memory changes: it runs the warp until its
// state recurs without any effect. It gives up, and returns 0, after MOST_STEPS.
static int waits_for_ever(worker *k, warp *w) {
  enum { MOST_STEPS = 20000 };
  int runnable = 0;
  for (int i = 0; i < w->ng; i++) runnable |= w->g[i].state == RUN;
  if (!runnable) return 1;
  snapshot s = {.ng = w->ng};
  memcpy(s.g, w->g, sizeof s.g);
  s.size = frames_of(w, NULL);
  s.regs = malloc(2 * s.size);
  if (s.regs == NULL) abort();
  frames_of(w, s.regs);
  u64 before = k->mine->effects;
  int found = 0;
  for (int i = 0; i < MOST_STEPS && !found && k->mine->effects == before && !k->state->stop; i++) {
    run(k, w, 1);
    found = k->mine->effects == before && recurs(w, &s, s.regs + s.size);
  }
  free(s.regs);
  return found;
}

static u64 effects_of_all(const worker *k) {
  u64 n = 0;
  for (int i = 0; i < k->l->workers; i++) n += k->state->progress[i].effects;
  return n;
}

// urgency orders waits: the lower, the more likely it is the cause of the others. Of an mbarrier, those who arrive have
// begun to.
static int urgency(const vg_fault *f) {
  switch (f->kind) {
  case FAULT_spin_mbarrier: {
    u64 missing = f->args.spin_mbarrier.state & 0xfffff, expected = f->args.spin_mbarrier.state >> 20 & 0xfffff;
    return missing == expected;
  }
  case FAULT_missing_lanes: return 2;
  case FAULT_deadlock: return 3;
  }
  return 1;
}

// report_waits raises a fault for n tasks whose threads all wait forever.
static void report_waits(worker *k, task **tasks, int n) {
  k->nwaits = 0;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < tasks[i]->nb; j++)
      for (int q = 0; q < tasks[i]->b[j].nw; q++) {
        warp *w = &tasks[i]->b[j].w[q];
        if (!w->live) continue;
        k->watch = COLLECT;
        waits_for_ever(k, w);
        k->watch = 0;
        for (int e = 0; e < w->ng; e++) {
          group *g = &w->g[e];
          const barrier *bar = &w->b->bars[g->bar];
          if (g->state == WAIT_LANES)
            add_wait(k, w, g->mask, FAULT_AT(g, missing_lanes, .arrived = g->mask, .missing = g->need & w->live & ~g->mask));
          else if (g->state == WAIT_BARRIER)
            add_wait(k, w, g->mask, FAULT_AT(g, deadlock, .barrier = g->bar, .arrived = (s32)bar->arrived, .expected = (s32)bar->expected));
        }
      }
  if (k->nwaits == 0) return;
  int cause = 0;
  for (int i = 1; i < k->nwaits; i++)
    if (urgency(&k->waits[i].fault) < urgency(&k->waits[cause].fault)) cause = i;
  vg_wait first = k->waits[cause];
  warp *w = k->waiters[cause];
  k->waits[cause] = k->waits[0], k->waits[0] = first;
  fault(k, w, first.fault.thread % 32, &first.fault);
}

// report_spin raises a fault and returns 1 if all threads of the launch wait forever. Call it when a worker's tasks ran
// for a while without any effect and no further block can start. It increases *patience if some warp does not wait.
static int report_spin(worker *k, task **active, int n, u64 *patience) {
  u64 all = effects_of_all(k);
  if (k->mine->waiting != all + 1) {
    k->mine->waiting = 0;
    k->watch = 1;
    for (int i = 0; i < n; i++)
      for (int j = 0; j < active[i]->nb; j++) {
        block *b = &active[i]->b[j];
        for (int q = 0; q < b->nw; q++)
          if (b->w[q].live && !waits_for_ever(k, &b->w[q])) {
            k->watch = 0;
            *patience *= 2;
            return 0;
          }
      }
    k->watch = 0;
    if (effects_of_all(k) != all) return 0;
    k->mine->waiting = all + 1;
  }
  for (int i = 0; i < k->l->workers; i++) {
    u64 waiting_at = k->state->progress[i].waiting;
    if (waiting_at != UINT64_MAX && waiting_at != all + 1) return 0;
  }
  if (effects_of_all(k) != all) return 0;
  report_waits(k, active, n);
  return k->state->stop != 0;
}

// advance runs a task for a while. It returns 1 if the task has ended, -1 if it faulted or was stopped, else 0.
static int advance(worker *k, task *t) {
  u64 begin = k->executed;
  if (t->views && !k->state->races) { // the check has ended
    free(t->views);
    t->views = NULL;
  }
  for (int still = 0; still < MAX_STILL && !k->state->stop;) {
    u64 pass = k->executed, effects = k->mine->effects;
    int ran = 0, ended = 0;
    for (int i = 0; i < t->nb; i++) {
      block *b = &t->b[i];
      for (int j = 0; j < b->nw; j++) {
        if (b->w[j].live == 0) continue;
        k->yield = 0;
        ran |= run(k, &b->w[j], SLICE);
        if (k->state->stop) return -1;
        if (b->w[j].live == 0) ran = 1;
      }
      ended += b->done == b->nw;
    }
    if (ended == t->nb) return 1;
    if (!ran) {
      // The last warp that ran may have released a barrier.
      int runnable = 0;
      for (int i = 0; i < t->nb; i++)
        for (int j = 0; j < t->b[i].nw; j++)
          for (int q = 0; q < t->b[i].w[j].ng; q++) runnable |= t->b[i].w[j].g[q].state == RUN;
      if (!runnable) {
        report_waits(k, &t, 1);
        return -1;
      }
    }
    if (k->executed > k->l->races_until) k->state->races = 0;
    if (k->executed - begin > BLOCK_SLICE) return 0;
    // If all warps only poll, give other tasks a turn.
    int polls = k->mine->effects == effects && k->executed - pass < 32 * (u64)(t->nb * t->b[0].nw);
    still = polls ? still + 1 : 0;
  }
  return k->state->stop ? -1 : 0;
}

// limited returns the number of blocks that run at once if at most n may.
static int limited(int n) { return n < 1 ? 1 : n > MAX_BLOCKS ? MAX_BLOCKS : n; }

void VG_WORK(const vg_launch *l, vg_state *s) {
  int index = __atomic_fetch_add(&s->started, 1, __ATOMIC_SEQ_CST);
  // s->first[index] is 0 until the worker asks for its first cluster, which may be any of those left.
  worker k = {.l = l, .state = s, .mine = &s->progress[index], .first = index < MAX_WORKERS ? &s->first[index] : NULL,
              .counting = begin_counting(l)};
  task **active = calloc(MAX_BLOCKS, sizeof *active), *spare = NULL;
  if (active == NULL) abort();
  if (index > 0) {
    if (k.first) *k.first = ~0u;
    while (s->serial && !s->stop) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
  int n = 0, most = limited(l->worker_resident), turn_ = 0, serial = index == 0 && s->serial;
  u64 last = (u64)(l->grid[0] / l->cluster[0]) * (l->grid[1] / l->cluster[1]) * (l->grid[2] / l->cluster[2]) - 1;
  u64 every = l->every ? l->every : 1, total = (last + every - 1) / every + 1; // clusters 0, every, 2 * every, ..., last
  // Blocks that a GPU would run at once have to wait for others.
  int too_many = l->worker_resident > MAX_BLOCKS || (serial && l->resident > MAX_BLOCKS);
  u64 seen = 0, since = 0, patience = 2;
  for (;;) {
    if (s->stop) break;
    int fresh = 0;
    if (serial && !s->races && n <= most) {
      serial = 0;
      for (int i = 1; i < l->workers; i++) s->progress[i].waiting = 0;
      __atomic_store_n(&s->serial, 0, __ATOMIC_SEQ_CST);
    }
    if (n < (serial ? limited(l->resident) : most)) {
      if (k.first) *k.first = 0;
      __atomic_thread_fence(__ATOMIC_SEQ_CST);
      u64 next = __atomic_fetch_add(&s->next, 1, __ATOMIC_SEQ_CST), number = next * every < last ? next * every : last;
      u32 first = ~0u;
      for (int i = 0; i < n; i++) first = active[i]->number < first ? active[i]->number : first;
      if (next < total && number + 1 < first) first = (u32)number + 1;
      if (k.first) *k.first = first;
      if (next < total) {
        effect(&k);
        active[n++] = start(&k, number, spare);
        spare = NULL;
        fresh = 1;
      }
    }
    if (n == 0) break;
    // A newly started task runs at once. Otherwise all tasks take turns.
    int i = fresh ? n - 1 : turn_++ % n;
    int r = advance(&k, active[i]);
    if (r == 1) {
      __atomic_fetch_add(&s->ended, 1, __ATOMIC_RELAXED);
      if (spare) end_task(&k, spare);
      spare = active[i];
      active[i] = active[--n];
      continue;
    }
    if (fresh) continue;
    u64 all = effects_of_all(&k);
    if (all != seen) seen = all, since = 0;
    else if (++since >= patience * (u64)n && !(too_many && s->next < total)) {
      since = 0;
      if (report_spin(&k, active, n, &patience)) break;
    }
  }
  k.mine->waiting = UINT64_MAX;
  if (index == 0) __atomic_store_n(&s->serial, 0, __ATOMIC_SEQ_CST);
  for (int i = 0; i < n && s->stop == STOP_ASKED; i++) // report the place of unfinished threads
    for (int j = 0; j < active[i]->nb * active[i]->b[0].nw && s->stop == STOP_ASKED; j++) {
      warp *w = &active[i]->b[j / active[i]->b[0].nw].w[j % active[i]->b[0].nw];
      int at_ = w->ng ? pick(w) : -1;
      if (at_ >= 0) FAULT(&k, w, &w->g[at_], __builtin_ctz(w->g[at_].mask), stopped);
    }
  if (k.first) *k.first = ~0u;
  for (int i = 0; i < n; i++) end_task(&k, active[i]);
  if (spare) end_task(&k, spare);
  free(active);
  for (frame *fr = k.frames, *next; fr; fr = next) next = fr->up, free_frame(fr);
  if (l->record && index == 0) take_uses(&k);
  end_counting(&k);
  drop_pages(&k.pages);
  __atomic_fetch_add(&s->executed, k.executed, __ATOMIC_SEQ_CST);
}
