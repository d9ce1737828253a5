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
enum { BACK_LIMIT = 64, SLICE = 4000, BLOCK_SLICE = 400000, MAX_STILL = 200, MAX_SLEEP = 1000000, LOCAL_BYTES = 1 << 18, MAX_BLOCKS = 2048, MAX_PAGES = 8192, NEAR = 16 };
enum { YIELD_AT_JUMP = 1, YIELD_NOW }; // end the slice: at the next jump back, after the instruction

typedef struct frame {
  struct frame *up;
  vg_func *f;
  int32_t return_pc, refs;
  u32 local; // offset of the function's local memory in a lane's
  u32 stack; // bytes of the stack in use
  const int32_t *out; // copies of the call's results
  int32_t nout;
  u8 *regs;
  struct taint *taints; // by PTX register, or NULL: see taint.h
} frame;

typedef struct {
  frame *fr;
  u32 mask, need;
  int32_t pc;
  u8 state, forced : 1, bar : 7;
  u16 depth; // of calls, each with at least 16 bytes of at most 512 KiB of stack
  int32_t back;
  u32 turns; // backward branches so far
} group;

struct block;
struct warp;
typedef struct { // an asynchronous copy by a lane (cp.async) or on an mbarrier (bulk copy), see mbarrier.h
  struct block *to;
  u32 at, size;
  u32 lane, group;   // lane and its commit group
  u32 bar, phase;    // shared address and phase of the mbarrier
  struct warp *by;   // whose operations up to commit `group` end too, or NULL; see async.h
  int how;           // how they end
  vg_location place; // of the instruction
  vg_location waited; // of the latest cp.async.wait_group that left it pending; func -1: none
  s32 thread;        // which executed it
  u32 issuer, tick;  // its warp in the task, and that warp's clock
} copy;
typedef struct {
  copy *all;
  int n, room;
} copies;
typedef struct { // a read or write of an asynchronous operation that has not ended, see async.h
  struct block *of; // whose shared memory is read; NULL: global memory is written
  u64 from, end;    // of the addresses; in shared memory in units of 16 bytes
  u32 lane, group, number; // number: of the operation, if races are checked
  int by;
  vg_location at;
} pending;
typedef struct {
  pending *all;
  int n, room;
} pendings;
typedef struct warp {
  group g[32];
  int ng, last, slow; // slow: instructions need more than their execution, counts or taints
  u32 live, exists, id;
  u8 *spec, *local, *local_shadow;
  struct block *b;
  copies copies;
  u32 committed[32];
  pendings pending;
  u32 bulk_committed[32], products, commits; // groups committed so far, see async.h
  u32 multiplied, ended;                     // wgmma.mma_async so far, and the last operation that has ended
  u8 tracks;                                 // see taint.h: a register may be undefined
  u32 reported;                              // hazards that were reported, bits 1 << HAZARD_*
} warp;

// An origin is the cause of an undefined value: a shuffle that read an absent lane, for one of the reasons ABSENT_*, a
// store of an unwritten register, or a load of unwritten local or shared memory.
typedef struct {
  vg_location at;
  u8 why, lane, size; // the lane that was read; the bytes of the load
  u16 thread;         // of the block, that loaded first; of shared memory only
} origin;
enum { ORIGIN_STORE = 3, ORIGIN_LOCAL, ORIGIN_SHARED, MAX_ORIGINS = 63 };

typedef struct {
  u32 arrived, expected, popc;
  u32 all, any;
  vg_location first; // of the first arrival
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
  struct remote *remote; // by warp of the cluster, if races are checked: its last access to the block's shared memory
  copies copies;
  u16 *reading; // by 16 bytes of shared memory: number of asynchronous operations that still read them; or NULL
  origin origins[MAX_ORIGINS + 1]; // from 1
  u32 norigins;
  u32 *tmem, columns; // tensor memory; columns has a bit for every 32 allocated columns
} block;

// A task is the unit of scheduling: a cluster.
typedef struct task {
  block *b;
  int nb, done;
  u32 arrived, phase;
  u32 number, nwarps, nviews;
  struct view *views; // see races.h; NULL if races are not checked
  u32 *ticks, *some;  // by view: its clock; by warp: the lanes that know more than the others
  u32 *converged;     // by warp: tick at which its lanes last waited for each other
  int fences;         // some warp has executed a fence
  u64 acquired, mapped;
} task;

typedef struct {
  struct page *all;
  u64 room, n, last;
  struct chunk *chunks; // memory for their records
  u8 *unused;           // the rest of the first chunk
  size_t left;
} pages;

typedef struct {
  const vg_launch *l;
  vg_state *state;
  vg_range *last, *near[NEAR]; // the ranges of the last access, and of some instructions
  u64 executed;
  u64 slept; // nanoseconds; the device's clocks count these and one per warp instruction
  frame *frames; // of the kernel, unused, linked by up
  int yield; // 0 or a YIELD_*
  u64 time; // logical time of communication between clusters
  s64 reading, writing; // reads and writes of asynchronous operations that have not ended, see async.h
  pending written;      // contains the addresses of all such writes
  pages pages;
  vg_progress *mine;
  u32 met;       // lanes whose load read undefined bytes
  int watch;     // waits are looked for; COLLECT: and recorded
  vg_wait waits[MAX_WAITS];
  warp *waiters[MAX_WAITS];
  int nwaits;
  volatile u32 *first; // entry in vg_state, or NULL
  struct counting *counting; // see count.h; NULL: nothing is counted
} worker;

static inline vg_location location(const group *g) { return (vg_location){g->fr->f->id, g->pc}; }

// effect counts an action that other threads may notice.
static inline void effect(worker *k) { k->mine->effects++; }

// await_earlier waits until no other worker can fault in a cluster before number, but at most two seconds: such a
// worker may wait for this one.
static void await_earlier(worker *k, u32 number) {
  vg_state *s = k->state;
  if (k->first) *k->first = number;
  for (int turns = 0, some = 1; some && turns < 20000 && !s->stop; turns++) {
    some = 0;
    for (int i = 0; i < s->started && i < MAX_WORKERS; i++) some |= s->first[i] < number;
    if (some) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
}

// record stores a fault in a report unless the report has one of an earlier cluster.
static void record(worker *k, u32 cluster, const vg_fault *f, vg_report *to) {
  while (__atomic_exchange_n(&k->state->lock, 1, __ATOMIC_ACQUIRE)) {}
  if (!to->set || cluster < to->cluster) {
    *to = (vg_report){true, cluster, *f};
    if (to == &k->state->fault) memcpy(k->state->waits, k->waits, sizeof k->waits), k->state->nwaits = k->nwaits;
  }
  __atomic_store_n(&k->state->lock, 0, __ATOMIC_RELEASE);
}

static void set_origin(vg_fault *f, const warp *w, int lane) {
  for (int i = 0; i < 3; i++) f->block[i] = (s32)w->b->id[i];
  f->thread = lane < 0 ? -1 - (s32)w->id : (s32)w->id * 32 + lane;
}

// fault records a fault of a lane, or of a whole warp if lane is -1. It stops the launch unless the fault is a hazard
// that is not in strict.
static __attribute__((cold, noinline)) void fault(worker *k, warp *w, int lane, vg_fault *f) {
#define FAULT_HAZARD(name, hazard, ...) HAZARD_##hazard,
  static const s8 hazards[] = {FAULTS(FAULT_HAZARD)};
  set_origin(f, w, lane);
  int hazard = hazards[f->kind];
  if (hazard != HAZARD_NONE && !(k->l->strict >> hazard & 1)) {
    record(k, w->b->t->number, f, &k->state->hazards[hazard]);
    return;
  }
  int spin = f->kind == FAULT_spin_cluster || f->kind == FAULT_spin_warpgroup || f->kind == FAULT_spin_read || f->kind == FAULT_spin_mbarrier;
  if (!spin) await_earlier(k, w->b->t->number); // all workers took part in the proof of a spin
  record(k, w->b->t->number, f, &k->state->fault);
  k->state->stop = 1;
}

// FAULT_AT is a fault at the next instruction of a group. Its arguments are named: FAULT_AT(g, copy_size, .size = n).
#define FAULT_AT(g, name, ...) (vg_fault){.kind = FAULT_##name, .at = location(g), .args.name = {__VA_ARGS__}}
#define FAULT(k, w, g, lane, ...) fault(k, w, lane, &FAULT_AT(g, __VA_ARGS__))

// block_at returns the block of the warp's cluster whose shared memory contains p, or NULL.
static inline block *block_at(const warp *w, const u8 *p) {
  for (int i = 0; i < w->b->t->nb; i++) {
    block *b = &w->b->t->b[i];
    if (p >= b->shared && p < b->shared + b->shared_size) return b;
  }
  return NULL;
}

static int in_local(const warp *w, const u8 *p) { return w->local && p >= w->local && p < w->local + 32ull * LOCAL_BYTES; }

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

// add_wait adds lanes of a warp that wait forever to the worker's list. Of each wait, it counts the threads of the first
// block only.
static void add_wait(worker *k, warp *w, u32 lanes, vg_fault f) {
  set_origin(&f, w, __builtin_ctz(lanes));
  for (int i = 0; i < k->nwaits; i++) {
    vg_wait *o = &k->waits[i];
    const vg_fault *e = &o->fault;
    if (e->kind != f.kind || e->at.func != f.at.func || e->at.pc != f.at.pc) continue;
    if (f.kind == FAULT_deadlock && e->args.deadlock.barrier != f.args.deadlock.barrier) continue;
    if (f.kind == FAULT_spin_mbarrier && (e->args.spin_mbarrier.address != f.args.spin_mbarrier.address ||
                                          e->args.spin_mbarrier.phase != f.args.spin_mbarrier.phase)) continue;
    if (memcmp(e->block, f.block, sizeof f.block)) return;
    if (o->warp != (s32)w->id) o->warp = (s32)w->id, o->lanes = 0;
    o->threads += __builtin_popcount(lanes & ~o->lanes);
    o->lanes |= lanes;
    return;
  }
  if (k->nwaits == MAX_WAITS) return;
  k->waiters[k->nwaits] = w;
  k->waits[k->nwaits++] = (vg_wait){f, __builtin_popcount(lanes), (s32)w->id, lanes};
}

// WATCH records a wait of lanes, as one of the faults spin_*, if k->watch asks for it.
enum { COLLECT = 2 };
#define WATCH(k, w, g, lanes, ...)                                                   \
  do {                                                                               \
    if ((k)->watch == COLLECT) add_wait(k, w, lanes, FAULT_AT(g, __VA_ARGS__));      \
  } while (0)

// Address of an operand, and its values.
#define P(x) (base[(x) & 3] + ((x) >> 2))
#define U32(x) ((u32 *)P(x))
#define U64(x) ((u64 *)P(x))
#define PRED(x) (*(u32 *)P(x))

// lane_mask returns the sign bits of 32 lanes.
static inline u32 lane_mask(const u32 *v) {
  u32 r = 0;
#if VG_WIDE
  for (int i = 0; i < 4; i++) r |= (u32)_mm256_movemask_ps(_mm256_loadu_ps((const float *)v + 8 * i)) << 8 * i;
#else
  for (int l = 0; l < 32; l++) r |= v[l] >> 31 << l;
#endif
  return r;
}

static inline void blend32(u32 *d, const u32 *s, u32 m) {
  LANES d[l] = m >> l & 1 ? s[l] : d[l];
}
static inline void blend64(u64 *d, const u64 *s, u32 m) {
  for (int l = 0; l < 32; l++) if (m >> l & 1) d[l] = s[l];
}
