// The state of a worker: its tasks, which are clusters of blocks of warps of groups of lanes, and how it reports
// faults.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "exec.h"
#include "arith.h"
#include "ops.h"
#if VG_WIDE
#include <immintrin.h>
#endif

#define OP_ENUM(id, ...) E_##id,
enum { OPS1(OP_ENUM) OPS2(OP_ENUM) OPS3(OP_ENUM) OPSCMP(OP_ENUM) OPSX(OP_ENUM) };

#if defined(__clang__)
#define LANES _Pragma("clang loop vectorize(assume_safety)") for (int l = 0; l < 32; l++)
#else
#define LANES _Pragma("GCC ivdep") for (int l = 0; l < 32; l++)
#endif
#define EACH(m) for (u32 m_ = (m), l; m_ && (l = (u32)__builtin_ctz(m_), 1); m_ &= m_ - 1)

enum { RUN, WAIT_LANES, WAIT_BARRIER };
enum { BACK_LIMIT = 64, SLICE = 4000, BLOCK_SLICE = 400000, MAX_STILL = 200, MAX_SLEEP = 1000000, LOCAL_BYTES = 1 << 18, MAX_BLOCKS = 2048, MAX_PAGES = 8192 };

typedef struct frame {
  struct frame *up;
  vg_func *f;
  int32_t return_pc, refs;
  u32 local; // offset of the function's local memory in a lane's
  const int32_t *out; // copies of the call's results
  int32_t nout;
  u8 *regs;
} frame;

typedef struct {
  frame *fr;
  u32 mask, need;
  int32_t pc;
  u8 state, forced, bar;
  s8 depth;
  int32_t back;
  u32 turns; // backward branches so far
} group;

struct block;
typedef struct { // see mbarrier.h
  struct copy *all;
  int n, room;
} copies;
typedef struct {
  group g[32];
  int ng, last;
  u32 live, exists, id;
  u8 *spec, *local, *local_shadow;
  struct block *b;
  copies copies;
  u32 committed[32];
} warp;

typedef struct {
  u32 arrived, expected, popc;
  u32 all, any;
  s32 by_func, by_pc; // place of the first arrival
} barrier;

typedef struct block {
  u32 id[3];
  u64 linear;
  warp *w;
  int nw, done;
  u32 threads, live;
  u8 *shared, *shadow;
  struct word *words; // records of accesses to shared memory, if races are checked
  u32 shared_size;
  barrier bars[16];
  struct task *t;
  u32 rank;
  copies copies;
  u32 *tmem, columns; // tensor memory; columns has a bit for every 32 allocated columns
} block;

// A task is the unit of scheduling: a cluster.
typedef struct task {
  block *b;
  int nb, done;
  u32 arrived, phase;
  u32 number, nclocks, *clocks; // see races.h; clocks is NULL if races are not checked
  u64 heard;
} task;

typedef struct {
  struct page *all;
  u64 room, n, last;
} pages;

typedef struct {
  vg_launch *l;
  vg_range *last;
  u64 executed;
  u64 slept; // nanoseconds; the device's clocks count these and one per warp instruction
  task *free_task;
  int yield;
  u64 time; // logical time of communication between clusters
  pages pages;
  vg_progress *mine;
  int watch;     // record reads in poll, to report what a thread waits for
  vg_fault poll;
  volatile u32 *first; // entry in vg_launch, or NULL
} worker;

// effect counts an action that other threads may notice.
static inline void effect(worker *k) { k->mine->effects++; }

static int hazard_of(int kind) {
  switch (kind) {
  case FAULT_UNINITIALISED: return HAZARD_SHARED;
  case FAULT_RACE: return HAZARD_RACE;
  case FAULT_UNINITIALISED_LOCAL: return HAZARD_LOCAL;
  case FAULT_DIVISION: return HAZARD_DIVISION;
  case FAULT_UNINITIALISED_GLOBAL: return HAZARD_GLOBAL;
  case FAULT_REGISTER: return HAZARD_REGISTER;
  case FAULT_OUTSIDE_MASK: return HAZARD_OUTSIDE_MASK;
  }
  return -1;
}

// earlier waits until no other worker can fault in a cluster before number, but at most two seconds: such a worker may
// wait for this one.
static void earlier(worker *k, u32 number) {
  vg_launch *l = k->l;
  if (k->first) *k->first = number;
  for (int turns = 0, some = 1; some && turns < 20000 && !l->stop; turns++) {
    some = 0;
    for (int i = 0; i < l->joined && i < MAX_WORKERS; i++) some |= l->first[i] < number;
    if (some) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
}

static void told(worker *k, u32 number, const vg_fault *f, vg_fault *at, int32_t *has, u32 *task_at) {
  while (__atomic_exchange_n(&k->l->lock, 1, __ATOMIC_ACQUIRE)) {}
  if (!*has || number < *task_at) *at = *f, *task_at = number, *has = 1;
  __atomic_store_n(&k->l->lock, 0, __ATOMIC_RELEASE);
}

static void fault(worker *k, warp *w, group *g, int kind, int lane, u64 address, u64 limit, int size, int write) {
  vg_fault f = {.kind = kind, .write = write, .size = size, .lane = lane, .address = address, .limit = limit};
  for (int i = 0; i < 3; i++) f.block[i] = (s32)w->b->id[i];
  u32 t = w->id * 32 + (u32)lane;
  f.thread[0] = (s32)(t % k->l->block[0]);
  f.thread[1] = (s32)(t / k->l->block[0] % k->l->block[1]);
  f.thread[2] = (s32)(t / k->l->block[0] / k->l->block[1]);
  f.func = g->fr->f->id;
  f.pc = g->pc;
  int hazard = hazard_of(kind);
  if (hazard >= 0 && !(k->l->strict >> hazard & 1)) {
    told(k, w->b->t->number, &f, &k->l->hazards[hazard], &k->l->hazard[hazard], &k->l->hazard_task[hazard]);
    return;
  }
  if (kind != FAULT_SPIN) earlier(k, w->b->t->number); // all workers took part in the proof of a spin
  told(k, w->b->t->number, &f, &k->l->fault, &k->l->faulted, &k->l->fault_task);
  k->l->stop = 1;
}

// find returns the allocation that contains size bytes at a, or NULL.
static vg_range *find(worker *k, u64 a, u64 size) {
  vg_range *r = k->last;
  if (r && a - r->base < r->size && r->size - (a - r->base) >= size) return r;
  int lo = 0, hi = k->l->nranges;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (k->l->ranges[mid].base <= a) lo = mid + 1;
    else hi = mid;
  }
  if (lo == 0) return NULL;
  r = &k->l->ranges[lo - 1];
  if (a - r->base >= r->size || r->size - (a - r->base) < size) return NULL;
  return k->last = r;
}

// watch records a lane's read if k->watch is set. waits is the phase of an mbarrier that the lane waits for, or -1.
static inline void watch(worker *k, group *g, int space, int lane, u64 address, u64 value, int size, int waits) {
  if (!k->watch) return;
  k->poll = (vg_fault){.kind = FAULT_SPIN, .write = waits, .size = size, .lane = lane, .func = g->fr->f->id, .pc = g->pc,
                       .address = address, .limit = value, .other_write = space};
}

// Address of an operand, and its values.
#define P(x) (base[(x) & 3] + ((x) >> 2))
#define U32(x) ((u32 *)P(x))
#define U64(x) ((u64 *)P(x))
#define PRED(x) (*(u32 *)P(x))

static inline void blend32(u32 *d, const u32 *s, u32 m) {
  LANES d[l] = m >> l & 1 ? s[l] : d[l];
}
static inline void blend64(u64 *d, const u64 *s, u32 m) {
  for (int l = 0; l < 32; l++) if (m >> l & 1) d[l] = s[l];
}
