// Quick accesses: loads and stores of which only the bounds and the unwritten bytes have to be looked at, by shape. All
// others, and all that are refused here, are memory.h's.
#pragma once
#include "memory.h"

#define INLINE static inline __attribute__((always_inline))
typedef u64 vec __attribute__((vector_size(32), aligned(4), may_alias));
typedef u32 vec32 __attribute__((vector_size(32), aligned(4), may_alias));

// ANY reports whether a bit of a vector is set.
#if VG_WIDE
#define ANY(v) (!_mm256_testz_si256((__m256i)(v), (__m256i)(v)))
#else
#define ANY(v) (((v)[0] | (v)[1] | (v)[2] | (v)[3]) != 0)
#endif

// in_steps reports whether the addresses of all lanes are the first one plus the lane times step.
INLINE int in_steps32(const u32 *a, u32 step) {
  vec32 bad = {0}, at = (vec32){0, 1, 2, 3, 4, 5, 6, 7} * step + a[0];
  for (int i = 0; i < 4; i++, at += 8 * step) bad |= *(const vec32 *)(a + 8 * i) ^ at;
  vec all = (vec)bad;
  return !ANY(all);
}
INLINE int in_steps64(const u64 *a, u64 step) {
  vec bad = {0}, at = (vec){0, 1, 2, 3} * step + a[0];
  for (int i = 0; i < 8; i++, at += 4 * step) bad |= *(const vec *)(a + 4 * i) ^ at;
  return !ANY(bad);
}

// quick_written reports whether n bytes of a shadow are 1.
INLINE int quick_written(const u8 *s, int n) {
  if (n < 32) return is_written(s, n);
  vec bad = {0};
  for (int i = 0; i < n; i += 32) bad |= *(const vec *)(s + i) ^ 0x0101010101010101ull;
  return !ANY(bad);
}

// copy_lane copies n elements of a lane from memory at p to the registers to, or back.
INLINE void copy_lane(u8 *const *to, u8 *p, u32 l, int size, int n, int c, int write) {
  for (int i = 0; i < n; i++) {
    if (size == 8) {
      u64 *d = (u64 *)to[i] + l;
      if (write) memcpy(p + 8 * i, d, 8);
      else memcpy(d, p + 8 * i, 8);
    } else {
      u32 *d = (u32 *)to[i] + l;
      if (write) memcpy(p + size * i, d, (size_t)size);
      else if (size == 4) memcpy(d, p + 4 * i, 4);
      else *d = (u32)load_element(p + size * i, size, c) & (c & M_16 ? 0xffff : ~0u);
    }
  }
}

#define POINTER(address) ((u8 *)(uintptr_t)(address))

// quick is a load or store of n elements of size bytes for the lanes m, in registers of 64 bits if size is 8. Addresses
// have 32 bits if narrow is set. It returns 0 if memory.h has to do it; nothing is changed then.
INLINE int quick(worker *k, warp *w, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra, int space, int narrow,
                 int size, int n, int write) {
  const int bytes = size * n;
  if (k->watch | k->state->races | k->l->check_width | (k->counting != NULL) | (k->reading != 0) | (k->writing != 0)) return 0;
  if (write && w->tracks) return 0;
  const u32 *a32 = U32(in->a);
  const u64 *a64 = U64(in->a);
  const u32 first = (u32)__builtin_ctz(m);
  u64 a = narrow ? a32[first] + (u32)in->imm : a64[first] + (u64)in->imm;
  u64 from, size_of;     // of the allocation
  u64 memory = 0, shadow; // what is added to an address for its pointer and its shadow
  int shadowed = 1;
  if (space == SHARED || (space == GENERIC && a >> 56 == 0x40)) {
    if (w->b->t->nb > 1) return 0;
    const u64 window = space == GENERIC ? VG_SHARED_WINDOW : 0;
    from = k->l->shared_base + window, size_of = w->b->shared_size - k->l->shared_base;
    memory = (u64)(uintptr_t)w->b->shared - window, shadow = (u64)(uintptr_t)w->b->shadow - window;
  } else {
    vg_range **near = &k->near[in->line & (NEAR - 1)], *r = *near;
    if (r == NULL || a - r->base >= r->size) {
      if ((r = find(k, a, (u64)bytes)) == NULL) return 0;
      *near = r;
    }
    if (write && r->readonly) return 0;
    from = r->base, size_of = r->size;
    shadow = (u64)r->shadow, shadowed = shadow != 0;
  }
  if (size_of < (u64)bytes) return 0;
  const u64 most = size_of - (u64)bytes;
  u8 *to[4];
  for (int i = 0; i < n; i++) to[i] = P(extra[in->x + i]);
  if (m == ~0u) {
    const u64 step = narrow ? a32[1] - a32[0] : a64[1] - a64[0];
    if (step == (u64)bytes && (narrow ? in_steps32(a32, (u32)bytes) : in_steps64(a64, (u64)bytes))) {
      const int span = 32 * bytes;
      if (a - from > size_of || size_of - (a - from) < (u64)span || a & (u64)(bytes - 1)) return 0;
      u8 *p = POINTER(memory + a);
      if (write) {
        effect(k);
        if (shadowed) memset(POINTER(shadow + a), 1, (size_t)span);
        LANES copy_lane(to, p + l * bytes, (u32)l, size, n, in->c, 1);
      } else {
        if (shadowed && !quick_written(POINTER(shadow + a), span)) return 0;
        LANES copy_lane(to, p + l * bytes, (u32)l, size, n, in->c, 0);
      }
      return 1;
    }
    if (!write && step == 0 && (narrow ? in_steps32(a32, 0) : in_steps64(a64, 0))) {
      if (a - from > most || a & (u64)(bytes - 1) || (shadowed && !is_written(POINTER(shadow + a), bytes))) return 0;
      for (int i = 0; i < n; i++) {
        if (size == 8) {
          u64 v;
          memcpy(&v, POINTER(memory + a) + 8 * i, 8);
          LANES ((u64 *)to[i])[l] = v;
        } else {
          u32 v = (u32)load_element(POINTER(memory + a) + size * i, size, in->c) & (in->c & M_16 ? 0xffff : ~0u);
          LANES ((u32 *)to[i])[l] = v;
        }
      }
      return 1;
    }
  }
  u64 all[32], bad = 0, low = 0;
  if (narrow) LANES all[l] = a32[l] + (u32)in->imm;
  else LANES all[l] = a64[l] + (u64)in->imm;
  if (m == ~0u) {
    LANES { bad |= (all[l] - from) | (most - (all[l] - from)); low |= all[l]; }
  } else {
    EACH(m) { bad |= (all[l] - from) | (most - (all[l] - from)); low |= all[l]; }
  }
  if (bad >> 63 || low & (u64)(bytes - 1)) return 0;
  if (shadowed && !write) {
    int ok = 1;
    if (m == ~0u) for (int l = 0; l < 32; l++) ok &= is_written(POINTER(shadow + all[l]), bytes);
    else EACH(m) ok &= is_written(POINTER(shadow + all[l]), bytes);
    if (!ok) return 0;
  }
  if (write) {
    effect(k);
    if (shadowed) EACH(m) mark_written(POINTER(shadow + all[l]), bytes);
  }
  if (m == ~0u) for (u32 l = 0; l < 32; l++) copy_lane(to, POINTER(memory + all[l]), l, size, n, in->c, write);
  else EACH(m) copy_lane(to, POINTER(memory + all[l]), l, size, n, in->c, write);
  return 1;
}

// The functions by in->kind, see quickKind in decode_memory.go: the modes of addresses, then the shapes.
enum { GENERIC_64 = GENERIC << 1, GLOBAL_64 = GLOBAL << 1, SHARED_64 = SHARED << 1, SHARED_32 = SHARED << 1 | 1 };
#define SHAPES(X, mode) X(mode, 1, 1) X(mode, 1, 2) X(mode, 1, 4) X(mode, 2, 1) X(mode, 2, 2) X(mode, 2, 4) \
  X(mode, 4, 1) X(mode, 4, 2) X(mode, 4, 4) X(mode, 8, 1) X(mode, 8, 2)
#define MODES(X) SHAPES(X, GENERIC_64) SHAPES(X, GLOBAL_64) SHAPES(X, SHARED_64) SHAPES(X, SHARED_32)
typedef int access_function(worker *k, warp *w, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra);
#define QUICK_ACCESS(write, mode, size, n)                                                                              \
  static int quick_##write##_##mode##_##size##x##n(worker *k, warp *w, const vg_inst *in, u8 *const *base, u32 m,       \
                                                  const int32_t *extra) {                                             \
    return quick(k, w, in, base, m, extra, mode >> 1, mode & 1, size, n, write);                                        \
  }
#define QUICK_BOTH(mode, size, n) QUICK_ACCESS(0, mode, size, n) QUICK_ACCESS(1, mode, size, n)
MODES(QUICK_BOTH)
#define QUICK_LOAD(mode, size, n) quick_0_##mode##_##size##x##n,
#define QUICK_STORE(mode, size, n) quick_1_##mode##_##size##x##n,
static access_function *const quick_loads[] = {NULL, MODES(QUICK_LOAD)};
static access_function *const quick_stores[] = {NULL, MODES(QUICK_STORE)};

static inline int quick_load(worker *k, warp *w, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  return in->kind && quick_loads[in->kind](k, w, in, base, m, extra);
}
static inline int quick_store(worker *k, warp *w, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  return in->kind && quick_stores[in->kind](k, w, in, base, m, extra);
}
