// Library functions for device code: malloc, free and printf.
#pragma once
#include "memory.h"

/* Device malloc: block sizes are powers of two; the size class is in the 16 bytes before the block */

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

// release_memory frees a result of allocate, or NULL. It returns 0 for other addresses.
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

// print_formatted returns the number of arguments that it printed, as CUDA's printf does.
static s32 print_formatted(worker *k, warp *w, group *g, int lane, u64 format, u64 args) {
  effect(k);
  if (!find(k, format, 1)) {
    FAULT(k, w, g, lane, out_of_bounds, .address = format, .size = 1);
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
