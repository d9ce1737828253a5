// The executor. A worker runs blocks, one after another while they end soon; one that does not end shares its time with the
// next, so that blocks that wait for each other go on. A warp's lanes are in groups with a place in the code each; the group
// that is furthest behind runs, until it meets another, and each group gets its turn however long another one loops.
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
  u32 local; // offset of the function's local memory in that of a lane
  const int32_t *out; // of the call: where results go
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
typedef struct { // see tensor.h
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
  s32 by_func, by_pc; // the first arrival
} barrier;

typedef struct block {
  u32 id[3];
  u64 linear;
  warp *w;
  int nw, done;
  u32 threads, live;
  u8 *shared, *shadow;
  struct word *words; // of shared memory, where races are looked for
  u32 shared_size;
  barrier bars[16];
  struct task *t;
  u32 rank;
  copies copies;
  u32 *tmem, columns; // tensor memory, and a bit for each 32 columns that are allocated
} block;

// A task is what is started together: a cluster.
typedef struct task {
  block *b;
  int nb, done;
  u32 arrived, phase;
  u32 number, nclocks, *clocks; // see races.h; NULL where no races are looked for
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
  u64 slept; // nanoseconds: clocks count these and one for each instruction of a warp
  task *free_task;
  int yield;
  u64 time; // of what clusters tell each other
  pages pages;
  vg_progress *mine;
  int watch;     // what is read is kept in poll, to say what a thread waits for
  vg_fault poll;
  volatile u32 *first; // as in vg_launch, NULL: it is not told
} worker;

// effect counts what other threads may notice.
static inline void effect(worker *k) { k->mine->effects++; }

static int hazard_of(int kind) {
  switch (kind) {
  case FAULT_UNINITIALISED: return 0;
  case FAULT_RACE: return 1;
  case FAULT_UNINITIALISED_LOCAL: return 2;
  case FAULT_DIVISION: return 3;
  case FAULT_UNINITIALISED_GLOBAL: return 6;
  case FAULT_REGISTER: return 7;
  case FAULT_OUTSIDE_MASK: return 8;
  }
  return -1;
}

// earlier waits until no other worker can fault in an earlier cluster than number. A worker that waits for this one holds it up
// for two seconds.
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
  if (kind != FAULT_SPIN) earlier(k, w->b->t->number); // of a spin all workers have taken part in the proof
  told(k, w->b->t->number, &f, &k->l->fault, &k->l->faulted, &k->l->fault_task);
  k->l->stop = 1;
}

// find returns the allocation that holds size bytes at a, NULL where there is none.
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

// watch keeps what a lane reads, while it is looked at what threads wait for. waits: for this phase of an mbarrier, or -1.
static inline void watch(worker *k, group *g, int space, int lane, u64 address, u64 value, int size, int waits) {
  if (!k->watch) return;
  k->poll = (vg_fault){.kind = FAULT_SPIN, .write = waits, .size = size, .lane = lane, .func = g->fr->f->id, .pc = g->pc,
                       .address = address, .limit = value, .other_write = space};
}

#include "races.h"

enum { GENERIC, GLOBAL, SHARED, LOCAL, OUTSIDE };

static block *shared_of(warp *w, u64 *a) { // takes the rank off a shared address
  u32 rank = (u32)(*a >> 24) & 0xff;
  *a &= 0xffffff;
  if (rank == 0) return w->b;
  if ((int)rank > w->b->t->nb) return NULL;
  return &w->b->t->b[rank - 1];
}

// written_to keeps that global memory of a range was written to, or looks whether a read is of what was.
static void written_to(worker *k, warp *w, group *g, const vg_range *r, int lane, u64 a, u64 size, int write) {
  u8 *s = (u8 *)(a + (u64)r->shadow);
  if (r->shadow == 0) return;
  if (write) memset(s, 1, size);
  else if (memchr(s, 0, size)) fault(k, w, g, FAULT_UNINITIALISED_GLOBAL, lane, a, 0, (int)size, 0);
}

// all_written reports whether n bytes of a shadow are 1.
static inline int all_written(const u8 *s, int n) {
  u64 ok = 0x0101010101010101ull;
  u32 half;
  for (; n >= 8; n -= 8, s += 8) {
    u64 v;
    memcpy(&v, s, 8);
    ok = v == 0x0101010101010101ull ? ok : 0;
  }
  if (n >= 4) {
    memcpy(&half, s, 4);
    if (half != 0x01010101u) return 0;
    n -= 4, s += 4;
  }
  for (; n > 0; n--, s++) ok = *s == 1 ? ok : 0;
  return ok != 0;
}

// at returns where size bytes at address a of a lane lie, NULL after a fault.
static u8 *at(worker *k, warp *w, group *g, int space, int lane, u64 a, int size, int write) {
  if (space == GENERIC) {
    switch (a >> 56) {
    case 0x40: space = SHARED; a &= 0xffffffffffffffull; break;
    case 0x41: space = LOCAL; a &= 0xffffffffffffffull; break;
    default: space = GLOBAL;
    }
  }
  if (a & (u64)(size - 1) && space != GLOBAL) {
    fault(k, w, g, FAULT_MISALIGNED, lane, a, (u64)space, size, write);
    return NULL;
  }
  if (space == SHARED) {
    u64 o = a;
    block *b = a >> 32 ? NULL : shared_of(w, &o);
    if (b == NULL || o < k->l->shared_base || o + (u64)size > b->shared_size) {
      fault(k, w, g, FAULT_SHARED, lane, a, b ? b->shared_size : 0, size, write);
      return NULL;
    }
    u8 *s = b->shadow + o;
    if (write) {
      memset(s, 1, (size_t)size);
    } else if (!all_written(s, size)) {
      for (int i = 0; i < size; i++)
        if (s[i] != 1) {
          fault(k, w, g, s[i] ? FAULT_IN_FLIGHT : FAULT_UNINITIALISED, lane, a, SHARED, size, 0);
          if (s[i]) return NULL;
          break;
        }
    }
    return b->shared + o;
  }
  if (space == LOCAL) {
    if (a + (u64)size > LOCAL_BYTES) {
      fault(k, w, g, FAULT_LOCAL, lane, a, LOCAL_BYTES, size, write);
      return NULL;
    }
    return w->local + (u64)lane * LOCAL_BYTES + a;
  }
  vg_range *r = find(k, a, (u64)size);
  if (a & (u64)(size - 1)) { // a GPU looks at this first
    fault(k, w, g, FAULT_MISALIGNED, lane, a, r ? GLOBAL : OUTSIDE, size, write);
    return NULL;
  }
  if (r == NULL) {
    fault(k, w, g, FAULT_BOUNDS, lane, a, 0, size, write);
    return NULL;
  }
  if (write && r->readonly) {
    fault(k, w, g, FAULT_READONLY, lane, a, 0, size, write);
    return NULL;
  }
  written_to(k, w, g, r, lane, a, (u64)size, write);
  return (u8 *)a;
}

static inline void blend32(u32 *d, const u32 *s, u32 m) {
  LANES d[l] = m >> l & 1 ? s[l] : d[l];
}
static inline void blend64(u64 *d, const u64 *s, u32 m) {
  for (int l = 0; l < 32; l++) if (m >> l & 1) d[l] = s[l];
}

static frame *new_frame(worker *k, warp *w, vg_func *f) {
  (void)k;
  frame *fr = malloc(sizeof *fr);
  if (fr == NULL) abort();
  memset(fr, 0, sizeof *fr);
  fr->f = f;
  fr->refs = 1;
  fr->regs = aligned_alloc(64, ((size_t)f->frame_size + 63) / 64 * 64 + 64);
  if (fr->regs == NULL) abort();
  memset(fr->regs, 0, (size_t)f->frame_size);
  (void)w;
  return fr;
}

static void drop_frame(frame *fr) {
  while (fr && --fr->refs == 0) {
    frame *up = fr->up;
    free(fr->regs);
    free(fr);
    fr = up;
  }
}

static int ld_slow(int n) { return n; }

// place of an operand
#define P(x) (base[(x) & 3] + ((x) >> 2))
#define U32(x) ((u32 *)P(x))
#define U64(x) ((u64 *)P(x))
#define PRED(x) (*(u32 *)P(x))

// Description of a load or store, in c: size of an element in the lowest 5 bits.
enum { M_SIGNED = 32, M_64 = 64, M_16 = 128, M_ADDR32 = 256, M_STRONG = 512, M_RELEASE = 1024 };

static inline u64 load_element(const u8 *p, int size, int c) {
  switch (size) {
  case 1: { u8 v = *(volatile const u8 *)p; return c & M_SIGNED ? (u64)(s64)(s8)v : v; }
  case 2: { u16 v = *(volatile const u16 *)p; return c & M_SIGNED ? (u64)(s64)(s16)v : v; }
  case 4: { u32 v = *(volatile const u32 *)p; return c & M_SIGNED ? (u64)(s64)(s32)v : v; }
  default: return *(volatile const u64 *)p;
  }
}

// How the lanes' places lie, if all take part: anyhow, at one place, one behind the other.
enum { FAULTS, APART, ONE, IN_ORDER };

// places fills p with the addresses of n bytes for each lane of m. It returns how they lie, or FAULTS, which is 0.
static inline int places(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, int space, u32 m, int bytes, int write,
                         u8 **p) {
  u64 a[32], differ = 0, gaps = 0;
  if (in->c & M_ADDR32) {
    const u32 *s = U32(in->a);
    u32 off = (u32)in->imm;
    LANES a[l] = s[l] + off;
  } else {
    const u64 *s = U64(in->a);
    u64 off = (u64)in->imm;
    LANES a[l] = s[l] + off;
  }
  LANES {
    u64 by = a[l] - a[0];
    differ |= by;
    gaps |= by ^ (u64)(l * bytes);
  }
  int lie = m != ~0u ? APART : differ == 0 ? ONE : gaps == 0 ? IN_ORDER : APART, span = lie == ONE ? bytes : 32 * bytes;
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
        if (lie != APART && write) memset(shadow, 1, (size_t)span);
        else if (lie == APART || !all_written(shadow, span)) EACH(m) written_to(k, w, g, r, (int)l, a[l], (u64)bytes, write);
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
          if (write) memset(sh + a[0], 1, (size_t)span);
          if (write || all_written(sh + a[0], span)) return lie;
        }
        if (write) {
          EACH(m) memset(sh + a[l], 1, (size_t)bytes);
          return APART;
        }
        u32 ok = 1;
        switch (bytes) {
        case 4: EACH(m) ok &= *(u32 *)(sh + a[l]) == 0x01010101u; break;
        case 8: EACH(m) ok &= *(u64 *)(sh + a[l]) == 0x0101010101010101ull; break;
        case 16: EACH(m) ok &= (*(u64 *)(sh + a[l]) & *(u64 *)(sh + a[l] + 8)) == 0x0101010101010101ull; break;
        default: EACH(m) for (int i = 0; i < bytes; i++) ok &= sh[a[l] + (u64)i];
        }
        if (ok) return lie;
      }
    }
  } else if (space == LOCAL) {
    u64 bad = 0, low = 0;
    EACH(m) { bad |= a[l] + (u64)bytes > LOCAL_BYTES; low |= a[l]; p[l] = w->local + (u64)l * LOCAL_BYTES + a[l]; }
    if (!bad && !(low & (u64)(bytes - 1))) return APART;
  }
  EACH(m) {
    p[l] = at(k, w, g, space, (int)l, a[l], bytes, write);
    if (p[l] == NULL) return FAULTS;
  }
  return APART;
}

// written keeps which local memory was written to; unwritten looks whether none of n bytes was.
static u8 *local_shadow(warp *w, const u8 *p) {
  return w->local_shadow && p >= w->local && p < w->local + 32ull * LOCAL_BYTES ? w->local_shadow + (p - w->local) : NULL;
}
static void written(warp *w, const u8 *p, size_t n) {
  u8 *s = local_shadow(w, p);
  if (s) memset(s, 1, n);
}
static int unwritten(warp *w, const u8 *p, size_t n) {
  const u8 *s = local_shadow(w, p);
  return s && memchr(s, 1, n) == NULL;
}

static int load(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, int space, u32 m, const int32_t *extra) {
  u8 *p[32];
  int size = in->c & 31, n = in->n;
  int lie = places(k, w, g, in, base, space, m, size * n, 0, p);
  if (lie == FAULTS) return 0;
  if (k->watch) {
    int lane = __builtin_ctz(m);
    u64 a = in->c & M_ADDR32 ? U32(in->a)[lane] + (u32)in->imm : U64(in->a)[lane] + (u64)in->imm;
    watch(k, g, space, lane, a, load_element(p[lane], size, 0), size, -1);
  }
  if (k->l->races && space != LOCAL) {
    EACH(lie == ONE && !(in->c & M_STRONG) ? 3 : m) { // of lanes that read the same, it matters that they are several
      if (in->c & M_STRONG) before_strong(k, w, p[l]);
      touch(k, w, g, l, p[l], (u32)(size * n), in->c & M_STRONG ? A_STRONG : 0, 0);
    }
    if (k->l->stop) return 0;
  }
  if (w->local_shadow && (space == LOCAL || space == GENERIC)) {
    EACH(m)
      for (int i = 0; i < n; i++)
        if (extra[in->x + i] >= 0 && unwritten(w, p[l] + size * i, (size_t)size)) {
          fault(k, w, g, FAULT_UNINITIALISED_LOCAL, (int)l, (u64)(p[l] - w->local) % LOCAL_BYTES, 0, size, 0);
          if (k->l->stop) return 0;
        }
  }
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

static int store(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, int space, u32 m, const int32_t *extra) {
  u8 *p[32];
  int size = in->c & 31, n = in->n;
  if (!places(k, w, g, in, base, space, m, size * n, 1, p)) return 0;
  effect(k);
  if (w->local_shadow && (space == LOCAL || space == GENERIC)) EACH(m) written(w, p[l], (size_t)(size * n));
  if (k->l->races && space != LOCAL) { // a lane after the other, since they may write the same
    EACH(m) {
      u8 v[32];
      for (int i = 0; i < n; i++) {
        u64 x = in->c & M_64 ? U64(extra[in->x + i])[l] : U32(extra[in->x + i])[l];
        memcpy(v + size * i, &x, (size_t)size);
      }
      touch(k, w, g, l, p[l], (u32)(size * n), A_WRITE | (in->c & M_STRONG ? A_STRONG : 0), memcmp(p[l], v, (size_t)(size * n)) == 0);
      if (k->l->stop) return 0;
      if (in->c & M_STRONG) after_strong(k, w, p[l], in->c & M_RELEASE);
      memcpy(p[l], v, (size_t)(size * n));
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

enum { AT_ADD, AT_MIN, AT_MAX, AT_AND, AT_OR, AT_XOR, AT_EXCH, AT_CAS, AT_INC, AT_DEC };

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

static int atomic(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  int size = in->c & 31, t = in->kind >> 4, op = in->kind & 15, space = extra[in->x];
  int wide = size == 8;
  EACH(m) {
    u64 a = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
    u8 *p = at(k, w, g, space, (int)l, a, size, 0);
    if (p == NULL || (p = at(k, w, g, space, (int)l, a, size, 1)) == NULL) return 0;
    if (k->l->races) {
      before_strong(k, w, p);
      touch(k, w, g, l, p, (u32)size, A_WRITE | A_ATOMIC, 0);
      if (k->l->stop) return 0;
      after_strong(k, w, p, in->c & M_RELEASE);
    }
    int32_t second = extra[in->x + 1];
    u64 v = wide ? U64(in->b)[l] : U32(in->b)[l], v2 = second < 0 ? 0 : wide ? U64(second)[l] : U32(second)[l], old, value;
    for (;;) { // the host's code may look at the same memory
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
    watch(k, g, space, (int)l, a, old, size, -1);
    if (in->d >= 0) {
      if (wide) U64(in->d)[l] = old;
      else U32(in->d)[l] = (u32)old;
    }
  }
  return 1;
}

// An mbarrier: pending arrivals in bits 0-19, expected ones in 20-39, bytes in flight in 40-62 with an offset, phase in 63.
#define MB_TX_ZERO (1ull << 22)
static u64 mb_make(u64 pending, u64 expected, u64 tx, u64 phase) { return pending | expected << 20 | tx << 40 | phase << 63; }
static u64 mb_settle(u64 v) {
  if ((v & 0xfffff) == 0 && (v >> 40 & 0x7fffff) == MB_TX_ZERO) {
    u64 e = v >> 20 & 0xfffff;
    return mb_make(e, e, MB_TX_ZERO, ~v >> 63);
  }
  return v;
}
static u64 mb_tx(u64 v, s64 bytes) {
  u64 tx = (v >> 40 & 0x7fffff) + (u64)bytes;
  return (v & ~(0x7fffffull << 40)) | (tx & 0x7fffff) << 40;
}

static void passed(block *b, u32 bar, u32 phase);

enum { MB_INIT, MB_INVAL, MB_ARRIVE, MB_ARRIVE_TX, MB_DROP, MB_EXPECT_TX, MB_COMPLETE_TX, MB_TEST, MB_TRY, MB_TEST_PARITY, MB_TRY_PARITY,
       MB_PENDING };

static int mbarrier(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m) {
  u32 result = 0;
  EACH(m) {
    if (in->kind == MB_PENDING) {
      U32(in->d)[l] = (u32)(U64(in->a)[l] & 0xfffff);
      continue;
    }
    u64 a = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
    int space = in->c & M_SIGNED ? GENERIC : SHARED; // the bit tells a generic address
    if (in->kind < MB_TEST) effect(k);
    if (in->kind == MB_INIT) {
      u64 *p = (u64 *)at(k, w, g, space, (int)l, a, 8, 1);
      if (p == NULL) return 0;
      u64 n = U32(in->b)[l] & 0xfffff;
      *p = mb_make(n, n, MB_TX_ZERO, 0);
      continue;
    }
    u64 *p = (u64 *)at(k, w, g, space, (int)l, a, 8, 0);
    if (p == NULL) return 0;
    u64 v = *p, count = in->b >= 0 ? U32(in->b)[l] : 1;
    switch (in->kind) {
    case MB_INVAL: break;
    case MB_ARRIVE_TX:
      v = mb_tx(v, (s64)(u64)count);
      count = 1;
      // fall through
    case MB_DROP: case MB_ARRIVE:
      if (in->d >= 0) U64(in->d)[l] = *p;
      if ((v & 0xfffff) < count) {
        fault(k, w, g, FAULT_MBARRIER, (int)l, a, v & 0xfffff, (int)count, 1);
        return 0;
      }
      tells_at(w, p);
      if (in->kind == MB_DROP) v -= count << 20;
      *p = mb_settle(v - count);
      break;
    case MB_EXPECT_TX: *p = mb_tx(v, (s64)count); break;
    case MB_COMPLETE_TX: *p = mb_settle(mb_tx(v, -(s64)count)); break;
    case MB_TEST: case MB_TRY: count = U64(in->b)[l] >> 63;
      // fall through
    case MB_TEST_PARITY: case MB_TRY_PARITY:
      if ((count & 1) == v >> 63) {
        watch(k, g, space, (int)l, a, v, 8, (int)(count & 1));
        break;
      }
      result |= 1u << l;
      hears_at(w, p);
      block *of = w->b;
      if (space == SHARED && a >> 24) of = shared_of(w, &a);
      if (of->copies.n) passed(of, (u32)a, (u32)count & 1);
      break;
    }
  }
  if (in->kind >= MB_TEST && in->kind <= MB_TRY_PARITY) {
    PRED(in->d) = (PRED(in->d) & ~m) | result;
    if ((result & m) != m) k->yield = 1;
  }
  return 1;
}

static inline void transpose16(u16 (*v)[8], u16 (*t)[8]) {
#if VG_WIDE
  __m128i x[8], y[8];
  for (int i = 0; i < 8; i++) x[i] = _mm_loadu_si128((const __m128i *)v[i]);
  for (int turns = 0; turns < 3; turns++) { // each turns the bits of row and column by one
    for (int i = 0; i < 4; i++) {
      y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
      y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
    }
    memcpy(x, y, sizeof x);
  }
  for (int i = 0; i < 8; i++) _mm_storeu_si128((__m128i *)t[i], x[i]);
#else
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 8; j++) t[j][i] = v[i][j];
#endif
}

static int ldmatrix(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, const int32_t *extra) {
  u8 *row[32];
  u32 m = in->n == 1 ? 0xff : in->n == 2 ? 0xffff : ~0u;
  int write = in->op == E_stmatrix;
  if (write) effect(k);
  if (places(k, w, g, in, base, in->c & M_SIGNED ? GENERIC : SHARED, m, 16, write, row) == FAULTS || k->l->stop) return 0;
  if (k->l->races) EACH(m) touch(k, w, g, ANY_LANE, row[l], 16, write ? A_WRITE : 0, 0);
  if (k->l->stop) return 0;
  for (int j = 0; j < in->n; j++) {
    u8 *d = P(extra[in->x + j]);
    u16 v[8][8], t[8][8];
    for (int r = 0; r < 8; r++) memcpy(v[r], write ? d + 16 * r : row[8 * j + r], 16);
    if (in->kind) { // transposed
      transpose16(v, t);
      memcpy(v, t, sizeof v);
    }
    for (int r = 0; r < 8; r++) memcpy(write ? row[8 * j + r] : d + 16 * r, v[r], 16);
  }
  return 1;
}

static inline void widen16(const u32 *r, f32 *out, int bf16) { // 32 registers' halves in order
  if (bf16) {
    for (int l = 0; l < 32; l++) out[2 * l] = bits_f32(r[l] << 16), out[2 * l + 1] = bits_f32(r[l] & 0xffff0000u);
    return;
  }
#if VG_WIDE
  for (int i = 0; i < 8; i++)
    _mm256_storeu_ps(out + 8 * i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)r + i)));
#else
  for (int l = 0; l < 32; l++) out[2 * l] = f16_f32((u16)r[l]), out[2 * l + 1] = f16_f32((u16)(r[l] >> 16));
#endif
}

// What mma multiplies: kind is the element type of a and b; imm has m, n, k and whether c and d are float16.
enum { MMA_F16, MMA_BF16, MMA_TF32, MMA_E4M3, MMA_E5M2, MMA_S8, MMA_U8, MMA_S4, MMA_U4, MMA_B1 };

// exponent is that of a number as ilogbf tells it, without a call for most.
static inline int exponent(f32 x) {
  int e = (int)(f32_bits(x) >> 23 & 255);
  return e ? e - 127 : ilogbf(x);
}

// block_sum is c plus the products a[i] * b[i * stride] as the tensor cores of Hopper add them (found by comparison with an H200):
// all terms are cut to `keep` bits behind the highest exponent of a term, that of a product being the sum of its factors', and the
// sum is cut to `final` bits behind its own.
static f32 block_sum(const f32 *a, const f32 *b, int stride, int n, f32 c, int keep, int final) {
  f64 plain = c;
  int top = c == 0 ? -10000 : exponent(c);
  for (int i = 0; i < n; i++) {
    f32 x = a[i], y = b[i * stride];
    plain += (f64)x * y;
    if (x == 0 || y == 0 || x != x || y != y || isinf(x) || isinf(y)) continue;
    int e = exponent(x) + exponent(y);
    if (e > top) top = e;
  }
  if (plain != plain || isinf(plain)) return (f32)plain;
  if (top == -10000) return (f32)plain;
  f64 scale = ldexp(1, keep - top); // what it multiplies stays a normal number
  s64 sum = (s64)(c * scale);
  for (int i = 0; i < n; i++) sum += (s64)((f64)a[i] * b[i * stride] * scale);
  if (sum == 0) return 0;
  int e = 63 - __builtin_clzll((u64)(sum < 0 ? -sum : sum)), least = e + top - keep < -126 ? -149 + 23 : e + top - keep;
  int drop = least - final - (top - keep);
  if (drop > 0) sum = drop > 62 ? 0 : sum < 0 ? -(-sum >> drop << drop) : sum >> drop << drop;
  f64 r = (f64)sum / scale;
  return fabs(r) > FORMAT_F32.max ? (f32)copysign(INFINITY, r) : (f32)r;
}

// A factor of a product of matrices: rows of a, depth numbers each, or panels of b, which are depth rows of eight columns. The depth
// is even.
typedef struct {
  const f32 *v;
  const s16 *e; // exponents, of a in order, of b those of two rows side by side; their sum is that of a product
  int plain;    // no number is infinite, none, or subnormal
} factor;

enum { EXPONENT_OF_0 = -0x2000, ONLY_ZEROS = -0x1000 }; // sums below ONLY_ZEROS are of products that are 0

#if VG_WIDE
static inline __m256i exponents8(const f32 *v, int bias, __m256i *odd) {
  __m256i x = _mm256_loadu_si256((const __m256i *)v), none = _mm256_setzero_si256();
  __m256i e = _mm256_and_si256(_mm256_srli_epi32(x, 23), _mm256_set1_epi32(255)), zero = _mm256_cmpeq_epi32(e, none);
  __m256i small = _mm256_andnot_si256(_mm256_cmpeq_epi32(_mm256_add_epi32(x, x), none), zero);
  *odd = _mm256_or_si256(*odd, _mm256_or_si256(small, _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255))));
  return _mm256_add_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(bias)), _mm256_and_si256(zero, _mm256_set1_epi32(EXPONENT_OF_0)));
}

static factor factor_a(const f32 *v, s16 *e, u32 n) {
  __m256i odd = _mm256_setzero_si256();
  for (u32 i = 0; i < n; i += 16) {
    __m256i both = _mm256_packs_epi32(exponents8(v + i, 127, &odd), exponents8(v + i + 8, 127, &odd));
    _mm256_storeu_si256((__m256i *)(e + i), _mm256_permute4x64_epi64(both, 0xd8));
  }
  return (factor){v, e, _mm256_testz_si256(odd, odd)};
}

static factor factor_b(const f32 *v, s16 *e, u32 n) {
  __m256i odd = _mm256_setzero_si256();
  for (u32 i = 0; i < n; i += 16) {
    __m256i first = exponents8(v + i, 0, &odd), second = exponents8(v + i + 8, 0, &odd);
    _mm256_storeu_si256((__m256i *)(e + i), _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa));
  }
  return (factor){v, e, _mm256_testz_si256(odd, odd)};
}

// block_sum8 is block_sum for eight columns of b. It returns the columns that must take the slow way, whose c it leaves.
static inline __attribute__((always_inline)) u32 block_sum8(const f32 *a, const s16 *ea, const f32 *b, const s16 *eb, int n, f32 *c, int keep,
                                                            int final) {
  __m256 sum = _mm256_loadu_ps(c);
  __m256i bits = _mm256_castps_si256(sum), top = _mm256_set1_epi16(-0x7fff);
  for (int q = 0; q < n; q += 2) {
    s32 two;
    memcpy(&two, ea + q, sizeof two);
    top = _mm256_max_epi16(top, _mm256_add_epi16(_mm256_set1_epi32(two), _mm256_loadu_si256((const __m256i *)(eb + 8 * q))));
  }
  top = _mm256_max_epi32(_mm256_srai_epi32(top, 16), _mm256_srai_epi32(_mm256_slli_epi32(top, 16), 16));
  // If all products and c are 0, any exponent is right.
  __m256i zero = _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(ONLY_ZEROS), top), _mm256_cmpeq_epi32(bits, _mm256_setzero_si256()));
  top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(255)));
  top = _mm256_blendv_epi8(top, _mm256_set1_epi32(127), zero);
  __m256i bad = _mm256_or_si256(_mm256_cmpgt_epi32(top, _mm256_set1_epi32(127 + 120)), _mm256_cmpgt_epi32(_mm256_set1_epi32(127 - 80), top));
  u32 slow = (u32)_mm256_movemask_ps(_mm256_castsi256_ps(bad));
  if (slow == 255) return slow;
  __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254 + keep), top), 23));
  __m256i part = _mm256_cvttps_epi32(_mm256_mul_ps(sum, scale));
  __m256d lo = _mm256_setzero_pd(), hi = lo;
#pragma unroll
  for (int q = 0; q < n; q += 8) {
#pragma unroll
    for (int o = q; o < (n < q + 8 ? n : q + 8); o++) // eight terms of at most 27 bits, and c
      part = _mm256_add_epi32(part, _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_mul_ps(_mm256_broadcast_ss(a + o), _mm256_loadu_ps(b + 8 * o)), scale)));
    lo = _mm256_add_pd(lo, _mm256_cvtepi32_pd(_mm256_castsi256_si128(part)));
    hi = _mm256_add_pd(hi, _mm256_cvtepi32_pd(_mm256_extracti128_si256(part, 1)));
    part = _mm256_setzero_si256();
  }
  __m256 unit = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(top, _mm256_set1_epi32(keep)), 23));
  __m256d cut = _mm256_castsi256_pd(_mm256_set1_epi64x((s64)(~0ull << (52 - final))));
  lo = _mm256_and_pd(_mm256_mul_pd(lo, _mm256_cvtps_pd(_mm256_castps256_ps128(unit))), cut);
  hi = _mm256_and_pd(_mm256_mul_pd(hi, _mm256_cvtps_pd(_mm256_extractf128_ps(unit, 1))), cut);
  _mm256_storeu_ps(c, _mm256_blendv_ps(_mm256_set_m128(_mm256_cvtpd_ps(hi), _mm256_cvtpd_ps(lo)), sum, _mm256_castsi256_ps(bad)));
  return slow;
}
#else
static factor factor_a(const f32 *v, s16 *e, u32 n) {
  (void)n;
  return (factor){v, e, 0};
}
#define factor_b factor_a
#endif

// block_rows adds the products of rows of a and a panel of b, which begin at numbers i and j of theirs and are n deep, to c.
static void block_rows(const factor *a, u32 i, int rows, const factor *b, u32 j, int n, f32 (*c)[8], int keep, int final) {
  for (int r = 0; r < rows; r++, i += (u32)n) {
    u32 slow = 255;
#if VG_WIDE
    const f32 *x = a->v + i, *y = b->v + j;
    if (a->plain && b->plain) // the constant unrolls the loops for the usual depth
      slow = n == 16 ? block_sum8(x, a->e + i, y, b->e + j, 16, c[r], keep, final) : block_sum8(x, a->e + i, y, b->e + j, n, c[r], keep, final);
#endif
    EACH(slow) c[r][l] = block_sum(a->v + i, b->v + j + l, 8, n, c[r][l], keep, final);
  }
}

#if VG_WIDE
static inline __m256 widen8(__m128i x, int bf16) {
  return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)) : _mm256_cvtph_ps(x);
}

// unpack16_b makes eight rows of a panel of a register of b: lane l has column l / 4 of rows 2 * (l % 4) and the next.
static inline void unpack16_b(const u32 *r, f32 *out, int bf16) {
  __m256i y[4], t[4], u[4];
  for (int i = 0; i < 4; i++) y[i] = _mm256_loadu_si256((const __m256i *)r + i);
  for (int i = 0; i < 2; i++) {
    t[2 * i] = _mm256_permute2x128_si256(y[i], y[i + 2], 0x20);
    t[2 * i + 1] = _mm256_permute2x128_si256(y[i], y[i + 2], 0x31);
  }
  for (int i = 0; i < 2; i++) {
    u[i] = _mm256_unpacklo_epi32(t[2 * i], t[2 * i + 1]);
    u[i + 2] = _mm256_unpackhi_epi32(t[2 * i], t[2 * i + 1]);
  }
  const __m256i halves = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  for (int i = 0; i < 4; i++) {
    __m256i two = i & 1 ? _mm256_unpackhi_epi64(u[i & 2], u[(i & 2) + 1]) : _mm256_unpacklo_epi64(u[i & 2], u[(i & 2) + 1]);
    two = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(two, halves), 0xd8);
    _mm256_storeu_ps(out + 16 * i, widen8(_mm256_castsi256_si128(two), bf16));
    _mm256_storeu_ps(out + 16 * i + 8, widen8(_mm256_extracti128_si256(two, 1), bf16));
  }
}
#endif

// half_of puts the first two of each four elements in front: the order in which numbers of 8 bits are multiplied.
static int half_of(int i) { return (i & 2) * 8 + (i >> 2) * 2 + (i & 1); }

// An integer of a packed operand, of a type from MMA_S8 on.
static s32 packed(u32 v, int i, int type) {
  switch (type) {
  case MMA_S8: return (s8)(v >> 8 * i);
  case MMA_U8: return (u8)(v >> 8 * i);
  case MMA_S4: return (s32)(v << (28 - 4 * i)) >> 28;
  case MMA_U4: return v >> 4 * i & 15;
  }
  return v >> i & 1;
}

// multiply_integers is mma of integers. imm has the depth in bits 0 to 11, 8 rows in bit 12, saturation in 13, and of bits and in
// 14, else xor.
static void multiply_integers(const vg_inst *in, u8 *const *base, const int32_t *extra) {
  int K = (int)(in->imm & 0xfff), M = in->imm >> 12 & 1 ? 8 : 16, ta = in->kind & 15, tb = in->kind >> 4;
  int E = ta <= MMA_U8 ? 4 : ta <= MMA_U4 ? 8 : 32, na = M * K / 32 / E, nb = 8 * K / 32 / E, nd = M / 4;
  const int32_t *pd = extra + in->x, *pa = pd + nd, *pb = pa + na, *pc = pb + nb;
  s8 A[16][256], B[256][8];
  s64 D[16][8];
  for (int r = 0; r < na; r++)
    for (int l = 0; l < 32; l++)
      for (int i = 0; i < E; i++) {
        int row = (l >> 2) + (M == 16 ? 8 * (r & 1) : 0), col = (l & 3) * E + i + (M == 16 ? r >> 1 : r) * 4 * E;
        s32 v = packed(U32(pa[r])[l], i, ta);
        A[row][col] = (s8)v;
      }
  for (int r = 0; r < nb; r++)
    for (int l = 0; l < 32; l++)
      for (int i = 0; i < E; i++) B[(l & 3) * E + i + r * 4 * E][l >> 2] = (s8)packed(U32(pb[r])[l], i, tb);
  for (int r = 0; r < nd; r++)
    for (int l = 0; l < 32; l++) D[(l >> 2) + 8 * (r >> 1)][(l & 3) * 2 + (r & 1)] = (s32)U32(pc[r])[l];
  int bits = ta == MMA_B1, both = in->imm >> 14 & 1;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < 8; j++) {
      s64 sum = D[i][j];
      for (int q = 0; q < K; q++) {
        s32 x = ta == MMA_U8 ? (u8)A[i][q] : A[i][q], y = tb == MMA_U8 ? (u8)B[q][j] : B[q][j];
        sum += bits ? (both ? x & y : x ^ y) : x * y;
      }
      D[i][j] = in->imm >> 13 & 1 ? sat32(sum) : sum;
    }
  for (int r = 0; r < nd; r++)
    for (int l = 0; l < 32; l++) U32(pd[r])[l] = (u32)D[(l >> 2) + 8 * (r >> 1)][(l & 3) * 2 + (r & 1)];
}

// side_by_side puts together what lies in the registers of a result's even and odd columns; apart is the reverse.
static void side_by_side(const f32 *even, const f32 *odd, f32 *v) {
#if VG_WIDE
  for (int l = 0; l < 32; l += 4) {
    __m128 x = _mm_loadu_ps(even + l), y = _mm_loadu_ps(odd + l);
    _mm_storeu_ps(v + 2 * l, _mm_unpacklo_ps(x, y));
    _mm_storeu_ps(v + 2 * l + 4, _mm_unpackhi_ps(x, y));
  }
#else
  for (int l = 0; l < 32; l++) v[2 * l] = even[l], v[2 * l + 1] = odd[l];
#endif
}
static void apart(const f32 *v, u32 *even, u32 *odd) {
  u32 all[64];
  for (int i = 0; i < 64; i++) all[i] = nan32(v[i]);
#if VG_WIDE
  for (int l = 0; l < 32; l += 4) {
    __m128 x = _mm_loadu_ps((const f32 *)all + 2 * l), y = _mm_loadu_ps((const f32 *)all + 2 * l + 4);
    _mm_storeu_ps((f32 *)even + l, _mm_shuffle_ps(x, y, 0x88));
    _mm_storeu_ps((f32 *)odd + l, _mm_shuffle_ps(x, y, 0xdd));
  }
#else
  for (int l = 0; l < 32; l++) even[l] = all[2 * l], odd[l] = all[2 * l + 1];
#endif
}

static void mma(const vg_inst *in, u8 *const *base, const int32_t *extra) {
  int K = (int)(in->imm & 0xff), at_ = in->kind & 15, bt = in->kind >> 4, half_acc = in->imm >> 8 & 1;
  int bits = at_ <= MMA_BF16 ? 16 : at_ == MMA_TF32 ? 32 : 8, E = 32 / bits;
  int na = 16 * K * bits / 1024, nb = 8 * K * bits / 1024, nd = half_acc ? 2 : 4;
  const int32_t *pd = extra + in->x, *pa = pd + nd, *pb = pa + na, *pc = pb + nb;
  if (at_ >= MMA_S8) {
    multiply_integers(in, base, extra);
    return;
  }
  f32 A[16 * 32], B[32][8], D[16][8], wide[128];
  s16 EA[16 * 32], EB[32 * 8];
  for (int r = 0; r < na + nb; r++) {
    const u32 *s = U32(r < na ? pa[r] : pb[r - na]);
    int t = r < na ? at_ : bt;
#if VG_WIDE
    if (t <= MMA_BF16) {
      if (r >= na) unpack16_b(s, B[8 * (r - na)], t == MMA_BF16);
      for (int i = 0; i < 8 && r < na; i++)
        _mm256_storeu_ps(A + (8 * (r & 1) + i) * K + (r >> 1) * 8, widen8(_mm_loadu_si128((const __m128i *)s + i), t == MMA_BF16));
      continue;
    }
#endif
    if (t <= MMA_BF16) widen16(s, wide, t == MMA_BF16);
    else if (t == MMA_TF32) for (int l = 0; l < 32; l++) wide[l] = bits_f32(s[l] & 0xffffe000u);
    else for (int l = 0; l < 128; l++) wide[l] = fp8_f32((u8)(s[l >> 2] >> 8 * (l & 3)), t == MMA_E5M2);
    if (r < na) {
      int row = 8 * (r & 1), col = (r >> 1) * 4 * E;
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4 * E; j++) A[(row + i) * K + (E == 4 ? half_of(col + j) : col + j)] = wide[i * 4 * E + j];
    } else {
      int first = (r - na) * 4 * E;
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4 * E; j++) B[E == 4 ? half_of(first + j) : first + j][i] = wide[i * 4 * E + j];
    }
  }
  if (half_acc) {
    for (int r = 0; r < 2; r++) {
      widen16(U32(pc[r]), wide, 0);
      for (int l = 0; l < 32; l++)
        for (int i = 0; i < 2; i++) D[(l >> 2) + 8 * r][(l & 3) * 2 + i] = wide[2 * l + i];
    }
  } else {
    for (int r = 0; r < 4; r += 2) side_by_side((const f32 *)P(pc[r]), (const f32 *)P(pc[r + 1]), D[4 * r]);
  }
  factor a = factor_a(A, EA, (u32)(16 * K)), b = factor_b(B[0], EB, (u32)(8 * K));
  if (at_ < MMA_E4M3) block_rows(&a, 0, 16, &b, 0, K, D, 25, 23);
  for (u32 i = 0; i < 16 && at_ >= MMA_E4M3; i++) { // two products of depth 16, and the sum by itself
    f32 both[1][8] = {{0}};
    block_rows(&a, i * 32, 1, &b, 0, 16, both, 25, 23);
    block_rows(&a, i * 32 + 16, 1, &b, 128, 16, both, 25, 23);
    for (int j = 0; j < 8; j++) D[i][j] += both[0][j];
  }
  if (!half_acc) {
    for (int r = 0; r < 4; r += 2) apart(D[4 * r], U32(pd[r]), U32(pd[r + 1]));
    return;
  }
  for (int r = 0; r < 2; r++) {
    const f32 *v = D[8 * r];
    u32 *d = U32(pd[r]);
    for (int l = 0; l < 32; l++) d[l] = f16_of(f32_bits(v[2 * l])) | f16_of(f32_bits(v[2 * l + 1])) << 16;
  }
}

#include "tensor.h"

// mma_f64: a has m/8 x k/4 registers, b k/4, c and d m/8 x 2.
static void mma_f64(const vg_inst *in, u8 *const *base, const int32_t *extra) {
  int M = (int)in->imm & 255, K = (int)in->imm >> 8, nd = M / 4, na = M / 8 * (K / 4);
  const int32_t *pd = extra + in->x, *pa = pd + nd, *pb = pa + na, *pc = pb + K / 4;
  f64 A[16][16], B[16][8], D[16][8];
  for (int r = 0; r < na; r++)
    for (int l = 0; l < 32; l++) A[(l >> 2) + 8 * (r % (M / 8))][(l & 3) + 4 * (r / (M / 8))] = bits_f64(U64(pa[r])[l]);
  for (int r = 0; r < K / 4; r++)
    for (int l = 0; l < 32; l++) B[(l & 3) + 4 * r][l >> 2] = bits_f64(U64(pb[r])[l]);
  for (int r = 0; r < nd; r++)
    for (int l = 0; l < 32; l++) D[(l >> 2) + 8 * (r >> 1)][(l & 3) * 2 + (r & 1)] = bits_f64(U64(pc[r])[l]);
  for (int i = 0; i < M; i++)
    for (int j = 0; j < 8; j++)
      for (int q = 0; q < K; q++) D[i][j] = FMA64(A[i][q], B[q][j], D[i][j]);
  for (int r = 0; r < nd; r++)
    for (int l = 0; l < 32; l++) U64(pd[r])[l] = bits64(D[(l >> 2) + 8 * (r >> 1)][(l & 3) * 2 + (r & 1)]);
}

/* Device malloc: blocks of a power of two, whose class is in the 16 bytes in front of them */

enum { HEAP_MARK = 0x5afe0000 };

static u64 allocate(vg_heap *h, u64 n) {
  if (n > h->size) return 0;
  u64 class = 5, p = 0;
  while ((1ull << class) < n + 16) class++;
  while (__atomic_exchange_n(&h->lock, 1, __ATOMIC_ACQUIRE)) {}
  if (h->free[class]) {
    p = h->free[class];
    memcpy(&h->free[class], (void *)p, 8);
  } else if (h->size - h->used >= 1ull << class) {
    p = (u64)(uintptr_t)h->base + h->used + 16;
    h->used += 1ull << class;
  }
  if (p) ((u64 *)p)[-2] = HEAP_MARK | class;
  __atomic_store_n(&h->lock, 0, __ATOMIC_RELEASE);
  return p;
}

// release_memory frees what allocate has returned, or NULL. It returns 0 for anything else.
static int release_memory(vg_heap *h, u64 p) {
  u64 base = (u64)(uintptr_t)h->base;
  if (p == 0) return 1;
  if (p < base + 16 || p >= base + h->used || p & 15) return 0;
  u64 mark = ((u64 *)p)[-2], class = mark & 0xffff;
  if ((mark & ~0xffffull) != HEAP_MARK || class >= 48) return 0;
  while (__atomic_exchange_n(&h->lock, 1, __ATOMIC_ACQUIRE)) {}
  ((u64 *)p)[-2] = 0;
  memcpy((void *)p, &h->free[class], 8);
  h->free[class] = p;
  __atomic_store_n(&h->lock, 0, __ATOMIC_RELEASE);
  return 1;
}

enum { S_IDX, S_UP, S_DOWN, S_BFLY };

static void shuffle(const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  const u32 *v = U32(in->a), *b = U32(in->b), *c = U32(in->c);
  u32 out[32], inside = 0;
  for (u32 l = 0; l < 32; l++) {
    u32 bound = b[l] & 31, clamp = c[l] & 31, seg = c[l] >> 8 & 31, j;
    u32 max_lane = (l & seg) | (clamp & ~seg), min_lane = l & seg;
    int in_range;
    switch (in->kind) {
    case S_UP: j = l - bound; in_range = (s32)j >= (s32)max_lane; break;
    case S_DOWN: j = l + bound; in_range = j <= max_lane; break;
    case S_BFLY: j = l ^ bound; in_range = j <= max_lane; break;
    default: j = min_lane | (bound & ~seg & 31); in_range = j <= max_lane;
    }
    out[l] = v[in_range ? j & 31 : l];
    inside |= (u32)(in_range != 0) << l;
  }
  blend32(U32(in->d), out, m);
  int32_t p = extra[in->x];
  if (p >= 0) PRED(p) = (PRED(p) & ~m) | (inside & m);
}

// settle joins groups at the same place. Those that wait there for different lanes stay apart.
static void settle(warp *w) {
  for (int i = 0; i < w->ng; i++)
    for (int j = i + 1; j < w->ng;) {
      group *a = &w->g[i], *b = &w->g[j];
      int apart = a->state == WAIT_LANES && b->state == WAIT_LANES && a->need != b->need;
      if (a->pc == b->pc && a->fr == b->fr && a->state != WAIT_BARRIER && b->state != WAIT_BARRIER && !apart) {
        a->mask |= b->mask;
        a->state = RUN; // an instruction that waits for lanes looks again
        a->forced = 0;
        a->back = 0;
        b->fr->refs--;
        w->g[j] = w->g[--w->ng];
      } else {
        j++;
      }
    }
}

// wake looks for lanes that wait for others at __syncwarp, which may stand in several places.
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
    if ((g->need & w->live & ~g->mask) == 0) { // lanes that were missing have ended
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

// turn gives another group than i the next turn.
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

static void release(worker *k, block *b, int id) {
  barrier *bar = &b->bars[id];
  int missing = bar->expected ? 0 : (int)(b->threads - b->live);
  for (int i = 0; i < b->nw; i++) {
    warp *w = &b->w[i];
    for (int j = 0; j < w->ng; j++) {
      group *g = &w->g[j];
      if (g->state != WAIT_BARRIER || g->bar != id) continue;
      if (missing && k->l->strict & HAZARD_ENDED) {
        fault(k, w, g, FAULT_ENDED, __builtin_ctz(g->mask), 0, 0, missing, 0);
        return;
      }
      vg_inst *in = &g->fr->f->code[g->pc];
      u8 *base[3] = {g->fr->regs, g->fr->f->pool, w->spec};
      if (in->kind == 1) {
        u32 v[32];
        LANES v[l] = bar->popc;
        blend32(U32(in->d), v, g->mask);
      } else if (in->kind >= 2) {
        u32 v = in->kind == 2 ? bar->all : bar->any;
        PRED(in->d) = (PRED(in->d) & ~g->mask) | (v ? g->mask : 0);
      }
      g->state = RUN;
      g->pc++;
      if (b->t->clocks) hears(w, row_bar(b->t, b->rank, (u32)id));
    }
  }
  if (b->t->clocks) memset(clock_row(b->t, row_bar(b->t, b->rank, (u32)id)), 0, b->t->nclocks * sizeof(u32));
  memset(bar, 0, sizeof *bar);
  bar->all = 1;
}

static void lanes_ended(worker *k, block *b) {
  for (int i = 0; i < 16; i++) {
    barrier *bar = &b->bars[i];
    if (bar->arrived && !bar->expected && bar->arrived >= b->live) release(k, b, i);
  }
}

// cluster_arrived ends a phase of barrier.cluster if all threads of the cluster that have not ended have arrived.
static void cluster_arrived(task *t) {
  u32 all = 0;
  for (int i = 0; i < t->nb; i++) all += t->b[i].live;
  if (t->arrived && t->arrived >= all) t->arrived = 0, t->phase++;
}

static void end_lanes(worker *k, warp *w, int gi) {
  group *g = &w->g[gi];
  effect(k);
  if (w->live == g->mask && w->b->done + 1 == w->b->nw && w->b->columns) fault(k, w, g, FAULT_TMEM, __builtin_ctz(g->mask), 0, 0, 0, 4);
  w->live &= ~g->mask;
  w->b->live -= (u32)__builtin_popcount(g->mask);
  drop_frame(g->fr);
  w->g[gi] = w->g[--w->ng];
  if (w->live == 0) w->b->done++;
  lanes_ended(k, w->b);
  cluster_arrived(w->b->t);
}

static s32 print_formatted(worker *k, warp *w, group *g, int lane, u64 format, u64 args);

// split makes the lanes who of a group a group of their own at pc.
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

// gathered finds lanes of *m that can execute an instruction with a member mask together: all lanes of a mask, but those that
// have ended. It leaves them in *m and their mask in *need, and lets lanes with other masks, which may be ready too, come next.
// If no mask is complete it returns 0: lanes with the same mask wait as a group, and those that the guard excludes go on.
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
      if (same & ~want) fault(k, w, g, FAULT_OUTSIDE_MASK, __builtin_ctz(same & ~want), want, 0, 0, 0);
      if (k->l->stop) return 0;
    }
    left &= ~same;
    if (want & w->exists & ~w->live && k->l->strict & HAZARD_ENDED) {
      fault(k, w, g, FAULT_ENDED, (int)lane, want & w->exists & ~w->live, 0, 0, 0);
      return 0;
    }
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

// run executes up to budget instructions of a warp; it returns 0 where no group can go on.
static int run(worker *k, warp *w, int budget) {
  vg_launch *launch = k->l;
  int gi, start_budget = budget;
again:
  settle(w);
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
  u8 *base[3] = {g->fr->regs, f->pool, w->spec};
  u32 mask = g->mask;
  int pc = g->pc;
  u64 scratch_[32] __attribute__((aligned(64)));
  void *scratch = scratch_;

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
    if (budget-- <= 0 || launch->stop) {
      g->pc = pc;
      if (g->forced && w->ng > 1) turn(w, gi);
      k->executed += (u64)(start_budget - budget);
      return 1;
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
    if (launch->counts) __atomic_fetch_add(&launch->counts[in->op], 1, __ATOMIC_RELAXED);

#define FAULTED { g->pc = pc; k->executed += (u64)(start_budget - budget); return 0; }
// MISSING_LANES leaves in m the lanes that are ready to execute a warp instruction together, and in need_ the lanes that take part:
// those of one member mask that have all come. The other lanes become groups of their own.
#define MISSING_LANES(required)                                 \
  g->pc = pc;                                                   \
  u32 need_ = required;                                         \
  if (!gathered(k, w, gi, in, base, &m, &need_)) {              \
    if (launch->stop) FAULTED                                   \
    goto again;                                                 \
  }                                                             \
  mask = g->mask;                                               \
  ticks(w);
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
#define CMP(cond) for (int l = 0; l < 32; l++) { r |= (u32)(cond) << l; } break;
#define CASECMP(id, T, S)                                     \
  case E_##id: {                                              \
    const S *pa_ = (const S *)P(in->a), *pb_ = (const S *)P(in->b); \
    T x[32], y[32];                                           \
    for (int l = 0; l < 32; l++) { S s = pa_[l], t = pb_[l]; memcpy(&x[l], &s, sizeof(T)); memcpy(&y[l], &t, sizeof(T)); } \
    u32 r = 0;                                                \
    switch (in->kind) {                                       \
    case 0: CMP(x[l] == y[l])                                 \
    case 1: CMP(x[l] < y[l] || x[l] > y[l])                   \
    case 2: CMP(x[l] < y[l])                                  \
    case 3: CMP(x[l] <= y[l])                                 \
    case 4: CMP(x[l] > y[l])                                  \
    case 5: CMP(x[l] >= y[l])                                 \
    case 6: CMP(!(x[l] < y[l] || x[l] > y[l]))                \
    case 7: CMP(x[l] != y[l])                                 \
    case 8: CMP(!(x[l] >= y[l]))                              \
    case 9: CMP(!(x[l] > y[l]))                               \
    case 10: CMP(!(x[l] <= y[l]))                             \
    case 11: CMP(!(x[l] < y[l]))                              \
    case 12: CMP(x[l] == x[l] && y[l] == y[l])                \
    case 13: CMP(x[l] != x[l] || y[l] != y[l])                \
    }                                                         \
    PRED(in->d) = (PRED(in->d) & ~m) | (r & m);               \
    break;                                                    \
  }
    switch (in->op) {
      OPS1(CASE1)
      OPS2(CASE2)
      OPS3(CASE3)
      OPSCMP(CASECMP)
    case E_nop:
      break;
    case E_mov_32:
      if (m == ~0u) memmove(U32(in->d), U32(in->a), 128);
      else blend32(U32(in->d), U32(in->a), m);
      break;
    case E_fence:
      if (launch->races) fenced(k, w);
      break;
    case E_nonzero: // a: the divisor, n: it has 64 bits
      EACH(m)
        if ((in->n ? U64(in->a)[l] : U32(in->a)[l]) == 0) {
          g->pc = pc;
          fault(k, w, g, FAULT_DIVISION, (int)l, 0, 0, 0, 0);
          if (launch->stop) FAULTED
          break;
        }
      break;
    case E_undefined: { // a: the shadow of a register
      const u32 *s = U32(in->a);
      u32 bad = 0, any = 0;
      LANES any |= s[l];
      if (any) EACH(m) bad |= (u32)(s[l] != 0) << l;
      if (bad) {
        int lane = __builtin_ctz(bad);
        g->pc = s[lane] == ~0u ? pc : (int)s[lane] - 1;
        fault(k, w, g, FAULT_REGISTER, lane, 0, 0, 0, 0);
        g->pc = pc;
        if (launch->stop) FAULTED
      }
      break;
    }
    case E_nanosleep: {
      u32 longest = 0;
      EACH(m) longest = U32(in->a)[l] > longest ? U32(in->a)[l] : longest;
      k->slept += longest < MAX_SLEEP ? longest : MAX_SLEEP;
      k->yield = 1;
      break;
    }
    case E_yield:
      k->yield = 1;
      break;
    case E_bra: {
      int to = (int)in->imm;
      u32 stay = mask & ~m;
      if (stay == 0) {
        if (to <= pc) {
          g->turns++;
          if (++g->back >= BACK_LIMIT && w->ng > 1) {
            g->pc = to;
            turn(w, gi);
            goto again;
          }
          if (k->yield) {
            k->yield = 0;
            g->pc = to;
            if (w->ng > 1) turn(w, gi);
            k->executed += (u64)(start_budget - budget);
            return 1;
          }
        }
        pc = to;
        continue;
      }
      group *n = &w->g[w->ng++];
      *n = *g;
      n->mask = m;
      n->pc = to;
      n->forced = 0;
      n->back = 0;
      n->turns += to <= pc;
      g->fr->refs++;
      g->mask = stay;
      g->pc = pc + 1;
      if (to <= pc && ++g->back >= BACK_LIMIT) turn(w, gi);
      else if (g->forced && g->back >= BACK_LIMIT) turn(w, gi);
      goto again;
    }
    case E_brx: {
      const u32 *index = U32(in->a);
      u32 rest = m, stay = mask & ~m;
      int first = 1;
      while (rest) {
        u32 i = index[__builtin_ctz(rest)], same = 0;
        EACH(rest) same |= (u32)(index[l] == i) << l;
        rest &= ~same;
        int to = i < (u32)in->n ? extra[in->x + (int)i] : pc + 1;
        if (first && !stay) {
          g->pc = to;
          g->mask = same;
        } else {
          group *n = &w->g[w->ng++];
          *n = *g;
          n->mask = same;
          n->pc = to;
          g->fr->refs++;
        }
        first = 0;
      }
      if (stay) {
        g->mask = stay;
        g->pc = pc + 1;
      }
      goto again;
    }
    case E_call: case E_calli: {
      u32 who = m;
      int callee = (int)in->imm;
      if (in->op == E_calli) {
        const u64 *t = U64(in->a);
        u64 target = t[__builtin_ctz(m)];
        who = 0;
        EACH(m) who |= (u32)(t[l] == target) << l;
        callee = (int)((target - VG_CODE_WINDOW) >> 4);
        if (target >> 56 != 0x42 || callee >= launch->nfuncs || launch->funcs[callee] == NULL) {
          g->pc = pc;
          fault(k, w, g, FAULT_CALL, __builtin_ctz(m), target, 0, 8, 0);
          FAULTED
        }
      }
      vg_func *to = launch->funcs[callee];
      if (to == NULL) {
        g->pc = pc;
        fault(k, w, g, FAULT_MISSING, __builtin_ctz(m), 0, 0, 0, 0);
        FAULTED
      }
      if (who != mask) { // the others go on, or call next
        group *n = &w->g[w->ng++];
        *n = *g;
        n->mask = mask & ~who;
        n->pc = in->guard >= 0 && !(m & ~who) ? pc + 1 : pc;
        if (in->guard >= 0 && (m & ~who) && (mask & ~m)) { // three ways: let the guard decide again
          n->pc = pc;
        }
        n->forced = 0;
        g->fr->refs++;
        g->mask = who;
      }
      frame *fr = new_frame(k, w, to);
      fr->up = g->fr;
      fr->return_pc = pc + 1;
      fr->local = g->fr->local + (u32)f->local_size;
      if ((u64)fr->local + (u64)to->local_size > LOCAL_BYTES || g->depth > 100) {
        g->pc = pc;
        fault(k, w, g, FAULT_STACK, __builtin_ctz(who), fr->local, LOCAL_BYTES, 0, 0);
        FAULTED
      }
      const int32_t *x = extra + in->x; // arguments: from, to, size; then results the same
      int nargs = *x++;
      for (int i = 0; i < nargs; i++, x += 3)
        EACH(who) {
          u8 *lane = w->local + (u64)l * LOCAL_BYTES;
          memcpy(lane + fr->local + (u32)x[1], lane + g->fr->local + (u32)x[0], (size_t)x[2]);
          if (!w->local_shadow) continue;
          if (i == 0) memset(lane + fr->local - w->local + w->local_shadow, 0, (size_t)to->local_size);
          written(w, lane + fr->local + (u32)x[1], (size_t)x[2]);
        }
      fr->nout = *x++;
      fr->out = x;
      g->fr = fr;
      g->pc = 0;
      g->depth++;
      goto again;
    }
    case E_ret:
      if (g->fr->up != NULL) {
        if (m != mask) split(w, g, mask & ~m, pc + 1);
        frame *fr = g->fr;
        const int32_t *x = fr->out;
        for (int i = 0; i < fr->nout; i++, x += 3)
          EACH(m) {
            u8 *lane = w->local + (u64)l * LOCAL_BYTES;
            memcpy(lane + fr->up->local + (u32)x[0], lane + fr->local + (u32)x[1], (size_t)x[2]);
            written(w, lane + fr->up->local + (u32)x[0], (size_t)x[2]);
          }
        g->pc = fr->return_pc;
        g->fr = fr->up;
        g->depth--;
        fr->up->refs++;
        drop_frame(fr);
        goto again;
      }
      // fall through
    case E_exit:
      if (m != mask) split(w, g, mask & ~m, pc + 1);
      g->pc = pc;
      end_lanes(k, w, gi);
      goto again;
    case E_trap: case E_brkpt:
      g->pc = pc;
      fault(k, w, g, FAULT_TRAP, __builtin_ctz(m), 0, 0, 0, 0);
      FAULTED
    case E_missing:
      g->pc = pc;
      fault(k, w, g, FAULT_MISSING, __builtin_ctz(m), 0, 0, 0, 0);
      FAULTED
    case E_selp_32: {
      const u32 *a_ = U32(in->a), *b_ = U32(in->b);
      u32 p = PRED(in->c);
      STORE(u32, d[l] = p >> l & 1 ? a_[l] : b_[l])
      break;
    }
    case E_selp_64: {
      const u64 *a_ = U64(in->a), *b_ = U64(in->b);
      u32 p = PRED(in->c);
      STORE(u64, d[l] = p >> l & 1 ? a_[l] : b_[l])
      break;
    }
    case E_pand: PRED(in->d) = (PRED(in->d) & ~m) | (PRED(in->a) & PRED(in->b) & m); break;
    case E_por: PRED(in->d) = (PRED(in->d) & ~m) | ((PRED(in->a) | PRED(in->b)) & m); break;
    case E_pxor: PRED(in->d) = (PRED(in->d) & ~m) | ((PRED(in->a) ^ PRED(in->b)) & m); break;
    case E_pnot: PRED(in->d) = (PRED(in->d) & ~m) | (~PRED(in->a) & m); break;
    case E_pmov: PRED(in->d) = (PRED(in->d) & ~m) | (PRED(in->a) & m); break;
    case E_pconst: PRED(in->d) = (PRED(in->d) & ~m) | (in->imm ? m : 0); break;
    case E_setp_h: {
      const u32 *a_ = U32(in->a), *b_ = U32(in->b);
      u32 r = 0;
      for (int l = 0; l < 32; l++) {
        f64 x = half_value(a_[l] >> in->n & 0xffff, (int)in->imm), y = half_value(b_[l] >> in->n & 0xffff, (int)in->imm);
        int lt = x < y, gt = x > y, eq = x == y, un = x != x || y != y, v = 0;
        switch (in->kind) {
        case 0: v = eq; break;
        case 1: v = lt | gt; break;
        case 2: v = lt; break;
        case 3: v = lt | eq; break;
        case 4: v = gt; break;
        case 5: v = gt | eq; break;
        case 6: v = eq | un; break;
        case 7: v = !eq; break;
        case 8: v = lt | un; break;
        case 9: v = !gt; break;
        case 10: v = gt | un; break;
        case 11: v = !lt; break;
        case 12: v = !un; break;
        case 13: v = un; break;
        }
        r |= (u32)v << l;
      }
      PRED(in->d) = (PRED(in->d) & ~m) | (r & m);
      break;
    }
    case E_testp_f32: case E_testp_f64: {
      u32 r = 0;
      for (int l = 0; l < 32; l++) {
        u64 v, e, frac;
        if (in->op == E_testp_f32) v = U32(in->a)[l], e = v >> 23 & 255, e = e == 255 ? 2047 : e, frac = v & 0x7fffff;
        else v = U64(in->a)[l], e = v >> 52 & 2047, frac = v & 0xfffffffffffffull;
        int nan = e == 2047 && frac, inf = e == 2047 && !frac, sub = e == 0 && frac, t = 0;
        switch (in->kind) {
        case 0: t = !nan && !inf; break;
        case 1: t = inf; break;
        case 2: t = !nan; break;
        case 3: t = nan; break;
        case 4: t = !nan && !inf && !sub; break;
        case 5: t = sub; break;
        }
        r |= (u32)t << l;
      }
      PRED(in->d) = (PRED(in->d) & ~m) | (r & m);
      break;
    }
    case E_isspacep: {
      const u64 *a_ = U64(in->a);
      u32 r = 0;
      for (int l = 0; l < 32; l++) {
        u64 t = a_[l] >> 56;
        r |= (u32)(in->kind == SHARED ? t == 0x40 : in->kind == LOCAL ? t == 0x41 : t != 0x40 && t != 0x41 && in->kind == GLOBAL) << l;
      }
      PRED(in->d) = (PRED(in->d) & ~m) | (r & m);
      break;
    }
    case E_bfi_32: {
      const u32 *a_ = U32(in->a), *b_ = U32(in->b), *c_ = U32(in->c), *e_ = U32(extra[in->x]);
      STORE(u32, d[l] = (u32)bfi(a_[l], b_[l], c_[l], e_[l], 32))
      break;
    }
    case E_bfi_64: {
      const u64 *a_ = U64(in->a), *b_ = U64(in->b);
      const u32 *c_ = U32(in->c), *e_ = U32(extra[in->x]);
      STORE(u64, d[l] = bfi(a_[l], b_[l], c_[l], e_[l], 64))
      break;
    }
    case E_addc: { // kind: bit 0 subtract, 1 takes the carry, 2 gives it, 3 of 64 bits; c is the carry
      u32 *cc = U32(in->c);
      EACH(m) {
        u64 carry = in->kind & 2 ? cc[l] & 1 : (in->kind & 1);
        if (in->kind & 8) {
          u64 x = U64(in->a)[l], y = U64(in->b)[l];
          if (in->kind & 1) y = ~y;
          unsigned __int128 s = (unsigned __int128)x + y + carry;
          U64(in->d)[l] = (u64)s;
          if (in->kind & 4) cc[l] = (u32)(s >> 64);
        } else {
          u64 x = U32(in->a)[l], y = U32(in->b)[l];
          if (in->kind & 1) y = (u32)~y;
          u64 s = x + y + carry;
          U32(in->d)[l] = (u32)s;
          if (in->kind & 4) cc[l] = (u32)(s >> 32);
        }
      }
      break;
    }
    case E_cvt: { // imm: type of the result, of the source, flags; n: the result is wide, the source is wide
      int dst = (int)in->imm & 255, src = (int)(in->imm >> 8) & 255, flags = (int)(in->imm >> 16), bits = 8 << (dst & 3);
      EACH(m) {
        u64 v = cvt1(in->n & 2 ? U64(in->a)[l] : U32(in->a)[l], dst, src, flags);
        if (in->n & 1) U64(in->d)[l] = v;
        else U32(in->d)[l] = in->n & 4 && dst <= T_S64 && bits <= 16 ? (u32)v & 0xffff : (u32)v;
      }
      break;
    }
    case E_cvt_fp8x2: // kind 1: e5m2; n 1: from a pair of float16; imm 1: relu
      EACH(m) {
        f64 hi, lo;
        if (in->n) hi = f16_f32((u16)(U32(in->a)[l] >> 16)), lo = f16_f32((u16)U32(in->a)[l]);
        else hi = bits_f32(U32(in->a)[l]), lo = bits_f32(U32(in->b)[l]);
        if (in->imm && hi <= 0) hi = 0;
        if (in->imm && lo <= 0) lo = 0;
        U32(in->d)[l] = fp8_of(hi, in->kind) << 8 | fp8_of(lo, in->kind);
      }
      break;
    case E_cvt_from_fp8x2:
      EACH(m) {
        u32 v = U32(in->a)[l];
        f32 hi = fp8_f32((u8)(v >> 8), in->kind), lo = fp8_f32((u8)v, in->kind);
        if (in->imm && hi <= 0) hi = 0;
        if (in->imm && lo <= 0) lo = 0;
        U32(in->d)[l] = f16_of(nan32(hi)) << 16 | f16_of(nan32(lo));
      }
      break;
    case E_cvt_pack: { // two results of cvt in one register: imm as for cvt, b is the lower one
      int dst = (int)in->imm & 255, src = (int)(in->imm >> 8) & 255, flags = (int)(in->imm >> 16);
      EACH(m) {
        u64 hi = cvt1(U32(in->a)[l], dst, src, flags), lo = cvt1(U32(in->b)[l], dst, src, flags);
        U32(in->d)[l] = (u32)hi << 16 | ((u32)lo & 0xffff);
      }
      break;
    }
    case E_f32x2: {
      const u64 *a_ = U64(in->a), *b_ = U64(in->b), *c_ = U64(in->c);
      EACH(m) {
        u32 lo = f_arith((u32)a_[l], (u32)b_[l], (u32)c_[l], in->kind, (int)in->imm);
        u32 hi = f_arith((u32)(a_[l] >> 32), (u32)(b_[l] >> 32), (u32)(c_[l] >> 32), in->kind, (int)in->imm);
        U64(in->d)[l] = (u64)hi << 32 | lo;
      }
      break;
    }
    case E_local_address: {
      u64 v = (u64)in->imm + g->fr->local;
      if (in->kind) STORE(u64, d[l] = v)
      else STORE(u32, d[l] = (u32)v)
      break;
    }
    case E_ldparam: {
      const u8 *p = launch->params + in->imm;
      int size = in->c & 31;
      for (int i = 0; i < in->n; i++) {
        u64 v = 0;
        if ((u64)in->imm + (u64)(size * (i + 1)) <= launch->params_size) {
          u64 raw; // the parameters of a launch need not be aligned
          memcpy(&raw, p + size * i, (size_t)size);
          v = load_element((const u8 *)&raw, size, in->c);
        }
        int32_t to = extra[in->x + i];
        if (to < 0) continue;
        if (in->c & M_64) EACH(m) U64(to)[l] = v;
        else EACH(m) U32(to)[l] = in->c & M_16 ? (u32)v & 0xffff : (u32)v;
      }
      break;
    }
    case E_ld_global: g->pc = pc; if (!load(k, w, g, in, base, GLOBAL, m, extra)) FAULTED break;
    case E_ld_shared: g->pc = pc; if (!load(k, w, g, in, base, SHARED, m, extra)) FAULTED break;
    case E_ld_local: g->pc = pc; if (!load(k, w, g, in, base, LOCAL, m, extra)) FAULTED break;
    case E_ld_generic: g->pc = pc; if (!load(k, w, g, in, base, GENERIC, m, extra)) FAULTED break;
    case E_st_global: g->pc = pc; if (!store(k, w, g, in, base, GLOBAL, m, extra)) FAULTED break;
    case E_st_shared: g->pc = pc; if (!store(k, w, g, in, base, SHARED, m, extra)) FAULTED break;
    case E_st_local: g->pc = pc; if (!store(k, w, g, in, base, LOCAL, m, extra)) FAULTED break;
    case E_st_generic: g->pc = pc; if (!store(k, w, g, in, base, GENERIC, m, extra)) FAULTED break;
    case E_atom: g->pc = pc; if (!atomic(k, w, g, in, base, m, extra)) FAULTED break;
    case E_mbar: g->pc = pc; if (!mbarrier(k, w, g, in, base, m)) FAULTED break;
    case E_cp_async: { // a: to, b: from; n bytes; x: bytes of the source, or -1; kind 1: a predicate that says to ignore it
      g->pc = pc;
      effect(k);
      int32_t src = extra[in->x];
      EACH(m) {
        u64 to = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
        u32 n = (u32)in->n, have = n;
        if (src >= 0) have = in->kind ? (PRED(src) >> l & 1 ? 0 : n) : U32(src)[l];
        if (have > n) have = n;
        u8 *d = at(k, w, g, SHARED, (int)l, to, (int)n, 1);
        u64 from = U64(in->b)[l] + (u64)(s64)extra[in->x + 1];
        u8 *s = have ? at(k, w, g, GENERIC, (int)l, from, have == n ? (int)n : 1, 0) : d;
        if (d == NULL || s == NULL) FAULTED
        if (have && have < n && find(k, from, have) == NULL) {
          fault(k, w, g, FAULT_BOUNDS, (int)l, from, 0, (int)have, 0);
          FAULTED
        }
        if (launch->races) {
          if (have) touch(k, w, g, l, s, have, 0, 0);
          touch(k, w, g, ANY_LANE, d, n, A_WRITE, 0);
          if (launch->stop) FAULTED
        }
        if (have) memcpy(d, s, have);
        memset(d + have, 0, n - have);
        memset(d - w->b->shared + w->b->shadow, IN_FLIGHT, n);
        add_copy(&w->copies, (copy){.to = w->b, .at = (u32)(d - w->b->shared), .size = n, .lane = l, .group = w->committed[l]});
      }
      break;
    }
    case E_cp_async_commit:
      EACH(m) w->committed[l]++;
      break;
    case E_cp_async_wait: // imm: groups that may be under way, -1: no copy may
      if (in->imm < 0) EACH(m) w->committed[l]++;
      if (w->copies.n) wait_copies(w, m, in->imm < 0 ? 0 : (u32)in->imm);
      break;
    case E_cp_async_arrive: { // of mbarrier: when the lane's copies are done, which is at once
      g->pc = pc;
      effect(k);
      EACH(m) w->committed[l]++;
      if (w->copies.n) wait_copies(w, m, 0);
      EACH(m) {
        u64 a = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
        u64 *p = (u64 *)at(k, w, g, in->c & M_SIGNED ? GENERIC : SHARED, (int)l, a, 8, 0);
        if (p == NULL) FAULTED
        tells_at(w, p);
        if (in->kind) *p = mb_settle(*p - 1); // .noinc
      }
      break;
    }
    case E_cp_bulk: g->pc = pc; effect(k); if (!bulk_copy(k, w, g, in, base, m, extra)) FAULTED break;
    case E_cp_tensor: g->pc = pc; effect(k); if (!tensor_copy(k, w, g, in, base, m, extra)) FAULTED break;
    case E_st_async: g->pc = pc; effect(k); if (!store_async(k, w, g, in, base, m, extra)) FAULTED break;
    case E_wgmma: {
      MISSING_LANES(~0u)
      g->pc = pc;
      if (!wgmma(k, w, g, in, base, extra)) FAULTED
      break;
    }
    case E_tc_move: {
      MISSING_LANES(~0u)
      g->pc = pc;
      effect(k);
      if (!tc_move(k, w, g, in, base, extra)) FAULTED
      break;
    }
    case E_tc_mma: g->pc = pc; effect(k); EACH(m) if (!tc_multiply(k, w, g, in, base, l, extra)) FAULTED break;
    case E_tcgen05: {
      if (in->kind <= TC_DEALLOC) { MISSING_LANES(~0u) }
      g->pc = pc;
      effect(k);
      if (!tcgen05(k, w, g, in, base, m, extra)) FAULTED
      break;
    }
    case E_ldmatrix: case E_stmatrix: {
      MISSING_LANES(~0u)
      g->pc = pc;
      if (!ldmatrix(k, w, g, in, base, extra)) FAULTED
      break;
    }
    case E_movmatrix: {
      MISSING_LANES(~0u)
      u32 s[32], *d = U32(in->d);
      memcpy(s, U32(in->a), sizeof s);
      for (int l = 0; l < 32; l++) { // lane l has row l / 4, columns 2 * (l % 4) and the next
        int r = l >> 2, c = (l & 3) * 2;
        d[l] = (s[c * 4 + r / 2] >> 16 * (r & 1) & 0xffff) | (s[(c + 1) * 4 + r / 2] >> 16 * (r & 1)) << 16;
      }
      break;
    }
    case E_mma: {
      MISSING_LANES(~0u)
      mma(in, base, extra);
      break;
    }
    case E_mma_f64: {
      MISSING_LANES(~0u)
      mma_f64(in, base, extra);
      break;
    }
    case E_shfl: {
      MISSING_LANES(m)
      shuffle(in, base, m, extra);
      break;
    }
    case E_vote: { // kind: all, any, uni; n: the predicate is negated
      MISSING_LANES(m)
      u32 p = (in->n ? ~PRED(in->a) : PRED(in->a)) & need_;
      int v = in->kind == 0 ? p == need_ : in->kind == 1 ? p != 0 : p == 0 || p == need_;
      PRED(in->d) = (PRED(in->d) & ~m) | (v ? m : 0);
      break;
    }
    case E_ballot: {
      MISSING_LANES(m)
      u32 p = (in->n ? ~PRED(in->a) : PRED(in->a)) & need_;
      STORE(u32, d[l] = p)
      break;
    }
    case E_match_any: case E_match_all: { // n: of 64 bits; x: predicate of match.all
      MISSING_LANES(m)
      u32 r[32];
      int all = 1;
      for (int l = 0; l < 32; l++) {
        u64 v = in->n ? U64(in->a)[l] : U32(in->a)[l];
        r[l] = 0;
        for (int j = 0; j < 32; j++)
          if (need_ >> j & 1) r[l] |= (u32)((in->n ? U64(in->a)[j] : U32(in->a)[j]) == v) << j;
        if (need_ >> l & 1 && r[l] != need_) all = 0;
      }
      if (in->op == E_match_all) {
        for (int l = 0; l < 32; l++) r[l] = all ? need_ : 0;
        int32_t p = extra[in->x];
        if (p >= 0) PRED(p) = (PRED(p) & ~m) | (all ? m : 0);
      }
      blend32(U32(in->d), r, m);
      break;
    }
    case E_redux: { // kind as of atom; n: the type
      MISSING_LANES(m)
      u64 v = 0;
      int first = 1;
      EACH(need_) {
        u64 x = U32(in->a)[l];
        if (in->n == T_F32 && !first) v = in->kind == AT_MIN ? min_f((u32)v, (u32)x) : max_f((u32)v, (u32)x);
        else v = first ? x : (u32)atomic_value(in->kind, in->n, v, x, 0);
        first = 0;
      }
      STORE(u32, d[l] = (u32)v)
      break;
    }
    case E_activemask: {
      STORE(u32, d[l] = m)
      break;
    }
    case E_elect: {
      MISSING_LANES(m)
      int leader = __builtin_ctz(need_);
      if (in->d >= 0) {
        STORE(u32, d[l] = (u32)leader)
      }
      PRED(in->a) = (PRED(in->a) & ~m) | (m & 1u << leader);
      break;
    }
    case E_warp_sync: {
      MISSING_LANES(m)
      break;
    }
    case E_bar: { // a: number, b: threads or -1; kind: sync, red.popc, red.and, red.or, arrive; c: predicate; n: it is negated
      if (in->imm) { MISSING_LANES(w->live) }
      const u32 *ids = U32(in->a), *counts = in->b >= 0 ? U32(in->b) : NULL;
      u32 lane = (u32)__builtin_ctz(m), id = ids[lane] & 15, expected = counts ? counts[lane] : 0, same = 0;
      EACH(m) same |= (u32)((ids[l] & 15) == id && (counts == NULL || counts[l] == expected)) << l;
      if (same != m) split(w, g, m & ~same, pc)->state = RUN, m = same, mask = g->mask;
      barrier *bar = &w->b->bars[id];
      if (bar->arrived == 0) bar->all = 1, bar->any = 0, bar->popc = 0, bar->by_func = g->fr->f->id, bar->by_pc = pc;
      u32 whole = ((u32)w->b->nw) * 32;
      if (bar->arrived && (bar->expected ? bar->expected : whole) != (expected ? expected : whole)) {
        g->pc = pc;
        fault(k, w, g, FAULT_COUNT, (int)lane, id, bar->expected ? bar->expected : whole, (int)(expected ? expected : whole), 0);
        k->l->fault.other_func = bar->by_func, k->l->fault.other_pc = bar->by_pc;
        FAULTED
      }
      bar->expected = expected;
      effect(k);
      if (w->b->t->clocks) tells(w, row_bar(w->b->t, w->b->rank, id));
      bar->arrived += expected && m == w->live ? 32u : (u32)__builtin_popcount(m);
      if (in->kind >= 1 && in->kind <= 3) {
        u32 p = (in->n ? ~PRED(in->c) : PRED(in->c)) & m;
        bar->popc += (u32)__builtin_popcount(p);
        if (p != m) bar->all = 0;
        if (p) bar->any = 1;
      }
      if (in->kind == 4) {
        if (bar->arrived >= expected) release(k, w->b, (int)id);
        break;
      }
      if (m != mask) split(w, g, mask & ~m, pc + 1);
      g->pc = pc;
      g->state = WAIT_BARRIER;
      g->bar = (u8)id;
      if (bar->arrived >= (expected ? expected : w->b->live)) release(k, w->b, (int)id);
      goto again;
    }
    case E_barrier_cluster: { // kind 0: arrive, 1: wait
      task *t = w->b->t;
      if (in->kind == 0) {
        t->arrived += (u32)__builtin_popcount(m);
        effect(k);
        EACH(m) U32(extra[in->x])[l] = t->phase;
        tells(w, row_cluster(t));
        cluster_arrived(t);
      } else {
        int waits = 0;
        EACH(m) waits |= U32(extra[in->x])[l] == t->phase;
        if (waits) {
          g->pc = pc;
          g->turns++;
          watch(k, g, -1, __builtin_ctz(m), 0, 0, 0, -1);
          if (w->ng > 1) turn(w, gi);
          k->executed += (u64)(start_budget - budget);
          return 1;
        }
        hears(w, row_cluster(t));
      }
      break;
    }
    case E_clock: {
      u64 v = k->executed + k->slept + (u64)(start_budget - budget);
      if (in->kind) STORE(u64, d[l] = v)
      else STORE(u32, d[l] = (u32)v)
      break;
    }
    case E_policy: // of the L2: imm has its hints; of a range: b and c, the bytes of its first part and of all
      EACH(m) {
        u64 v = (u64)in->imm;
        if (in->kind) {
          f32 f = bits_f32(U32(in->a)[l]);
          v |= f > 0 && f <= 1 ? (u64)((f - 0x1p-23f) * 16) << 52 : 0;
        } else {
          u64 from = U64(in->a)[l], end = from + U32(in->b)[l];
          u32 all = U32(in->c)[l], size = all > 1u << 19 ? 32 - (u32)__builtin_clz(all - 1) - 19 : 0, block = 12 + size;
          s64 n = (s64)((u32)((end + (1ull << block) - 1) >> block) - (u32)(from >> block));
          v |= (u64)(n < 1 ? 1 : n > 127 ? 127 : n) << 37 | (u64)(u32)(from >> block) << 44 | (u64)size << 52;
        }
        U64(in->d)[l] = v;
      }
      break;
    case E_vprintf:
      g->pc = pc;
      EACH(m) {
        u8 *lane = w->local + (u64)l * LOCAL_BYTES + g->fr->local;
        u64 format, args;
        memcpy(&format, lane + extra[in->x], 8);
        memcpy(&args, lane + extra[in->x + 1], 8);
        s32 n = print_formatted(k, w, g, (int)l, format, args);
        if (extra[in->x + 2] < 0) continue;
        memcpy(lane + extra[in->x + 2], &n, 4);
        written(w, lane + extra[in->x + 2], 4);
      }
      break;
    case E_malloc: case E_free: // extra: the places of the result and of the argument, or of the argument
      g->pc = pc;
      effect(k);
      EACH(m) {
        u8 *lane = w->local + (u64)l * LOCAL_BYTES + g->fr->local;
        u64 v;
        memcpy(&v, lane + extra[in->x + (in->op == E_malloc)], 8);
        if (in->op == E_malloc) {
          v = allocate(launch->heap, v);
          before_strong(k, w, (u8 *)v); // what was done with the block before it was freed is over
          memcpy(lane + extra[in->x], &v, 8);
          written(w, lane + extra[in->x], 8);
        } else if (after_strong(k, w, (u8 *)v, 1), !release_memory(launch->heap, v)) {
          fault(k, w, g, FAULT_HEAP, (int)l, v, 0, 0, 0);
          FAULTED
        }
      }
      break;
    case E_assertfail: {
      g->pc = pc;
      u8 *lane = w->local + (u64)__builtin_ctz(m) * LOCAL_BYTES + g->fr->local;
      u64 message, file;
      u32 line;
      memcpy(&message, lane + extra[in->x], 8);
      memcpy(&file, lane + extra[in->x + 1], 8);
      memcpy(&line, lane + extra[in->x + 2], 4);
      fault(k, w, g, FAULT_ASSERT, __builtin_ctz(m), message, file, (int)line, 0);
      FAULTED
    }
    default:
      g->pc = pc;
      fault(k, w, g, FAULT_MISSING, __builtin_ctz(m), in->op, 0, 0, 0);
      FAULTED
    }
    pc++;
  }
}

// print_formatted returns the number of arguments that it has printed, as CUDA's printf does.
static s32 print_formatted(worker *k, warp *w, group *g, int lane, u64 format, u64 args) {
  effect(k);
  if (!find(k, format, 1)) {
    fault(k, w, g, FAULT_BOUNDS, lane, format, 0, 1, 0);
    return -1;
  }
  const char *s = (const char *)format;
  char out[2048];
  size_t n = 0;
  u64 a = args;
  s32 count = 0;
  for (; *s && n + 256 < sizeof out; s++) {
    if (*s != '%') {
      out[n++] = *s;
      continue;
    }
    char spec[32];
    size_t c = 0;
    spec[c++] = *s++;
    int longs = 0;
    while (*s && c < sizeof spec - 2 && !strchr("diouxXcsfFeEgGaAp%", *s)) {
      if (*s == 'l') longs++;
      spec[c++] = *s++;
    }
    spec[c++] = *s;
    spec[c] = 0;
    if (*s == '%') {
      out[n++] = '%';
      continue;
    }
    int size = longs || strchr("fFeEgGaAps", *s) ? 8 : 4;
    a = (a + (u64)size - 1) & ~(u64)(size - 1);
    u8 *p = at(k, w, g, GENERIC, lane, a, size, 0);
    if (p == NULL) return -1;
    a += (u64)size;
    count++;
    u64 v = size == 8 ? *(u64 *)p : *(u32 *)p;
    if (strchr("fFeEgGaA", *s)) n += (size_t)snprintf(out + n, 256, spec, bits_f64(v));
    else if (*s == 's') n += (size_t)snprintf(out + n, 256, spec, find(k, v, 1) ? (const char *)v : "(null)");
    else if (size == 8) n += (size_t)snprintf(out + n, 256, spec, v);
    else n += (size_t)snprintf(out + n, 256, spec, (u32)v);
  }
  fwrite(out, 1, n, stdout);
  fflush(stdout);
  return count;
}

static void set_special(vg_launch *l, block *b, warp *w) {
  u32 *s = (u32 *)w->spec;
#define SPEC(which, expr) { u32 *to_ = s + 64 * (which); for (u32 i = 0; i < 32; i++) to_[i] = (u32)(expr); }
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
  SPEC(SR_SMID, b->linear % 148)
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
    SPEC(SR_CTAID_X + d, b->id[d])
    SPEC(SR_NCTAID_X + d, l->grid[d])
    SPEC(SR_CLUSTER_X + d, b->id[d] / l->cluster[d])
    SPEC(SR_NCLUSTER_X + d, l->grid[d] / l->cluster[d])
    SPEC(SR_CCTAID_X + d, b->id[d] % l->cluster[d])
    SPEC(SR_CNCTAID_X + d, l->cluster[d])
  }
}

static void end_task(task *t) {
  for (int i = 0; i < t->nb; i++) {
    block *b = &t->b[i];
    for (int j = 0; j < b->nw; j++) {
      warp *w = &b->w[j];
      for (int q = 0; q < w->ng; q++) drop_frame(w->g[q].fr);
      free(w->spec);
      free(w->copies.all);
      if (w->local) munmap(w->local, 32ull * LOCAL_BYTES);
      if (w->local_shadow) munmap(w->local_shadow, 32ull * LOCAL_BYTES);
    }
    free(b->w);
    free(b->shared);
    free(b->shadow);
    free(b->words);
    free(b->copies.all);
    free(b->tmem);
  }
  free(t->clocks);
  free(t->b);
  free(t);
}

static int uses_local(vg_launch *l) {
  for (int i = 0; i < l->nfuncs; i++)
    if (l->funcs[i] && (l->funcs[i]->local_size || l->funcs[i]->calls)) return 1;
  return 0;
}

// start makes the blocks of cluster number n; reuse is a task that has ended, or NULL.
static task *start(worker *k, u64 n, task *reuse) {
  vg_launch *l = k->l;
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
  t->nclocks = per * (u32)nw;
  t->heard = 0;
  if (l->races) {
    size_t clocks = (size_t)clock_rows(t) * t->nclocks;
    if (!t->clocks && (t->clocks = malloc(clocks * sizeof(u32))) == NULL) abort();
    memset(t->clocks, 0, clocks * sizeof(u32));
    for (u32 i = 0; i < t->nclocks; i++) clock_row(t, i)[i] = 1; // no one has heard of what comes now
  } else {
    free(t->clocks);
    t->clocks = NULL;
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
    memset(b->bars, 0, sizeof b->bars);
    if (!reuse) {
      b->shared_size = shared;
      b->shared = aligned_alloc(1024, ((size_t)shared + 1023) / 1024 * 1024 + 1024);
      b->shadow = malloc(shared + 64);
      if (l->races && (b->words = calloc((size_t)shared / 4 + 8, sizeof(word))) == NULL) abort();
      b->w = calloc((size_t)nw, sizeof(warp));
      if (!b->shared || !b->shadow || !b->w) abort();
    }
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
          if (l->local) {
            w->local_shadow = mmap(NULL, 32ull * LOCAL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (w->local_shadow == MAP_FAILED) abort();
          }
        }
      } else if (w->local_shadow) {
        madvise(w->local_shadow, 32ull * LOCAL_BYTES, MADV_DONTNEED);
      }
      u32 left = threads - (u32)i * 32;
      w->live = w->exists = left >= 32 ? ~0u : (1u << left) - 1;
      w->copies.n = 0;
      memset(w->committed, 0, sizeof w->committed);
      w->ng = 1;
      memset(&w->g[0], 0, sizeof w->g[0]);
      w->g[0].fr = new_frame(k, w, f);
      w->g[0].mask = w->live;
      set_special(l, b, w);
    }
  }
  return t;
}

// stuck tells why no thread of a task can go on.
static void stuck(worker *k, task *t) {
  warp *where = NULL;
  group *which = NULL;
  int waiting = 0, kind = FAULT_DEADLOCK;
  for (int i = 0; i < t->nb; i++)
    for (int j = 0; j < t->b[i].nw; j++) {
      warp *w = &t->b[i].w[j];
      for (int q = 0; q < w->ng; q++) {
        waiting += __builtin_popcount(w->g[q].mask);
        int lanes = w->g[q].state == WAIT_LANES;
        if (which == NULL || (lanes && kind == FAULT_DEADLOCK)) where = w, which = &w->g[q];
        if (lanes) kind = FAULT_DIVERGENT;
      }
    }
  if (which == NULL) return;
  const barrier *bar = &where->b->bars[which->bar];
  if (kind == FAULT_DEADLOCK) fault(k, where, which, kind, __builtin_ctz(which->mask), which->bar, bar->arrived, (int)bar->expected, 0);
  else fault(k, where, which, kind, __builtin_ctz(which->mask), which->need & where->live & ~which->mask, which->mask, 0, 0);
  k->l->fault.waiting = waiting;
  for (int i = 0; i < t->nb; i++)
    for (int j = 0; j < t->b[i].nw; j++)
      for (int q = 0; q < t->b[i].w[j].ng; q++) {
        group *o = &t->b[i].w[j].g[q];
        if (o != which && (o->pc != which->pc || o->fr->f != which->fr->f)) {
          k->l->fault.other_func = o->fr->f->id;
          k->l->fault.other_pc = o->pc;
          return;
        }
      }
}

// A snapshot is what a warp's threads depend on, apart from memory.
typedef struct {
  group g[32];
  int ng;
  u8 *regs; // of all frames of all groups
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

// recurs reports whether a warp is where it was, with the same values in its registers, and each of its groups has gone around a
// loop since.
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

// waits_for_ever proves that no thread of a warp can go on unless some memory changes: it runs the warp until its state recurs
// without any effect. It returns 0 if that is not so, or takes too long to see.
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
  for (int i = 0; i < MOST_STEPS && !found && k->mine->effects == before && !k->l->stop; i++) {
    run(k, w, 1);
    found = k->mine->effects == before && recurs(w, &s, s.regs + s.size);
  }
  free(s.regs);
  return found;
}

static u64 effects_of_all(const vg_launch *l) {
  u64 n = 0;
  for (int i = 0; i < l->workers; i++) n += l->progress[i].effects;
  return n;
}

// spins reports whether all threads of the launch wait for ever, and makes that a fault. It is called when a worker has run its
// tasks for a while without any effect, and no further block can start. *patience grows if that was in vain.
static int spins(worker *k, task **active, int n, u64 *patience) {
  vg_launch *l = k->l;
  u64 all = effects_of_all(l);
  int waiting = 0;
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
    if (effects_of_all(l) != all) return 0;
    k->mine->waiting = all + 1;
  }
  for (int i = 0; i < l->workers; i++)
    if (l->progress[i].waiting != UINT64_MAX && l->progress[i].waiting != all + 1) return 0;
  if (effects_of_all(l) != all) return 0;
  warp *where = NULL;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < active[i]->nb; j++)
      for (int q = 0; q < active[i]->b[j].nw; q++) {
        warp *w = &active[i]->b[j].w[q];
        waiting += __builtin_popcount(w->live);
        if (where || !w->live) continue;
        k->watch = 1, k->poll.kind = 0;
        if (waits_for_ever(k, w) && k->poll.kind) where = w;
        k->watch = 0;
      }
  if (where == NULL) return 0; // its threads wait at barriers only for those of other warps, which stuck tells
  group g = where->g[0];
  fault(k, where, &g, FAULT_SPIN, k->poll.lane, k->poll.address, k->poll.limit, k->poll.size, k->poll.write);
  vg_fault *f = &l->fault;
  f->func = k->poll.func, f->pc = k->poll.pc, f->other_write = k->poll.other_write, f->waiting = waiting;
  return 1;
}

// advance runs a task for a while: 1 it has ended, 0 it goes on, -1 it faulted.
static int advance(worker *k, task *t) {
  u64 begin = k->executed;
  for (int still = 0; still < MAX_STILL && !k->l->stop;) {
    u64 pass = k->executed, effects = k->mine->effects;
    int ran = 0, ended = 0;
    for (int i = 0; i < t->nb; i++) {
      block *b = &t->b[i];
      for (int j = 0; j < b->nw; j++) {
        if (b->w[j].live == 0) continue;
        k->yield = 0;
        ran |= run(k, &b->w[j], SLICE);
        if (k->l->stop) return -1;
        if (b->w[j].live == 0) ran = 1;
      }
      ended += b->done == b->nw;
    }
    if (ended == t->nb) return 1;
    if (!ran) {
      // a barrier may have been passed by the last warp that ran
      int runnable = 0;
      for (int i = 0; i < t->nb; i++)
        for (int j = 0; j < t->b[i].nw; j++)
          for (int q = 0; q < t->b[i].w[j].ng; q++) runnable |= t->b[i].w[j].g[q].state == RUN;
      if (!runnable) {
        stuck(k, t);
        return -1;
      }
    }
    if (k->executed > k->l->races_until) k->l->races = 0;
    if (k->executed - begin > BLOCK_SLICE) return 0;
    // All warps may only poll: others get their turn.
    int polls = k->mine->effects == effects && k->executed - pass < 32 * (u64)(t->nb * t->b[0].nw);
    still = polls ? still + 1 : 0;
  }
  return k->l->stop ? -1 : 0;
}

void VG_WORK(vg_launch *l) {
  int index = __atomic_fetch_add(&l->joined, 1, __ATOMIC_SEQ_CST);
  worker k = {.l = l, .mine = &l->progress[index], .first = index < MAX_WORKERS ? &l->first[index] : NULL}; // 0: any may come
  task **active = calloc(MAX_BLOCKS, sizeof *active), *spare = NULL;
  if (active == NULL) abort();
  if (index > 0) {
    if (k.first) *k.first = ~0u;
    while (l->solo && !l->stop) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  }
  int n = 0, most = l->resident < 1 ? 1 : l->resident > MAX_BLOCKS ? MAX_BLOCKS : l->resident, turn_ = 0;
  u64 total = (u64)(l->grid[0] / l->cluster[0]) * (l->grid[1] / l->cluster[1]) * (l->grid[2] / l->cluster[2]);
  int alone = index > 0 ? 0 : l->solo > MAX_BLOCKS ? MAX_BLOCKS : l->solo, capped = most < l->resident || (index == 0 && alone < l->solo);
  u64 seen = 0, since = 0, patience = 2;
  for (;;) {
    if (l->stop) break;
    int fresh = 0;
    if (alone && !l->races && n <= most) {
      alone = 0;
      for (int i = 1; i < l->workers; i++) l->progress[i].waiting = 0;
      __atomic_store_n(&l->solo, 0, __ATOMIC_SEQ_CST);
    }
    if (n < (alone ? alone : most)) {
      if (k.first) *k.first = 0;
      __atomic_thread_fence(__ATOMIC_SEQ_CST);
      u64 next = __atomic_fetch_add(&l->next, 1, __ATOMIC_SEQ_CST);
      u32 first = ~0u;
      for (int i = 0; i < n; i++) first = active[i]->number < first ? active[i]->number : first;
      if (next < total && next + 1 < first) first = (u32)next + 1;
      if (k.first) *k.first = first;
      if (next < total) {
        effect(&k);
        active[n++] = start(&k, next, spare);
        spare = NULL;
        fresh = 1;
      }
    }
    if (n == 0) break;
    // the newest first; once all that may be there are, each in turn
    int i = fresh ? n - 1 : turn_++ % n;
    int r = advance(&k, active[i]);
    if (r == 1) {
      if (spare) end_task(spare);
      spare = active[i];
      active[i] = active[--n];
      continue;
    }
    if (fresh) continue;
    u64 all = effects_of_all(l);
    if (all != seen) seen = all, since = 0;
    else if (++since >= patience * (u64)n && !(capped && l->next < total)) {
      since = 0;
      if (spins(&k, active, n, &patience)) break;
    }
  }
  k.mine->waiting = UINT64_MAX;
  if (index == 0) __atomic_store_n(&l->solo, 0, __ATOMIC_SEQ_CST);
  for (int i = 0; i < n && l->stop == STOP_ASKED; i++) // where threads are that have not ended
    for (int j = 0; j < active[i]->nb * active[i]->b[0].nw && l->stop == STOP_ASKED; j++) {
      warp *w = &active[i]->b[j / active[i]->b[0].nw].w[j % active[i]->b[0].nw];
      int at_ = w->ng ? pick(w) : -1;
      if (at_ >= 0) fault(&k, w, &w->g[at_], FAULT_STOPPED, __builtin_ctz(w->g[at_].mask), 0, 0, 0, 0);
    }
  if (k.first) *k.first = ~0u;
  for (int i = 0; i < n; i++) end_task(active[i]);
  if (spare) end_task(spare);
  free(active);
  drop_pages(&k.pages);
  (void)ld_slow;
  __atomic_fetch_add(&l->executed, k.executed, __ATOMIC_SEQ_CST);
}
