// Library functions for device code: malloc, free and printf.
#pragma once
#include <limits.h>

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

/* Kernels that launch kernels */

// prepare_child returns memory for the parameters of a kernel, or 0 if func is none or memory is exhausted. sizes holds
// the grid and the block.
static u64 prepare_child(worker *k, u64 func, const u32 sizes[6], u32 shared) {
  vg_state *s = k->state;
  u64 i = (func - VG_CODE_WINDOW) >> 4;
  if (func < VG_CODE_WINDOW || i >= (u64)k->l->nfuncs || k->l->entries[i] < 0) return 0;
  u64 p = allocate(s->heap, (u64)k->l->entries[i]);
  if (p == 0) return 0;
  if ((s->nchildren & (s->nchildren - 1)) == 0) {
    s->children = realloc(s->children, (2 * s->nchildren + 1) * sizeof *s->children);
    if (s->children == NULL) abort();
  }
  vg_child *c = &s->children[s->nchildren++];
  *c = (vg_child){.params = p, .func = (u32)i, .shared = shared};
  memcpy(c->grid, sizes, sizeof c->grid);
  memcpy(c->block, sizes + 3, sizeof c->block);
  return p;
}

// launch_child launches what was prepared last with parameters at p, after the kernel. It returns an error of CUDA.
static u32 launch_child(worker *k, u64 p, u64 stream) {
  vg_state *s = k->state;
  for (u64 i = s->nchildren; i-- > 0;) {
    vg_child *c = &s->children[i];
    if (c->params != p || c->order) continue;
    size_t n = (size_t)k->l->entries[c->func];
    void *copy = malloc(n + 1);
    if (copy == NULL) abort();
    memcpy(copy, (void *)p, n);
    release_memory(s->heap, p);
    c->params = (u64)(uintptr_t)copy, c->stream = stream, c->order = ++s->launches;
    return 0;
  }
  return 1; // cudaErrorInvalidValue
}

// A conversion of printf, as CUDA has them: %[flags][width][.precision][h, l or ll]type.
typedef struct {
  char flags[6];
  int width, precision; // -1: none
  bool star;            // the width is an argument
  char size, type;      // size: h, l or 0
} conversion;

static int read_number(const char **s) {
  int n = 0;
  for (; **s >= '0' && **s <= '9'; ++*s) n = n > INT_MAX / 10 - 1 ? n : 10 * n + (**s - '0');
  return n;
}

// read_conversion returns the end of a conversion whose % is before s, or NULL if CUDA does not have it. CUDA prints
// those as they are: %n, %hhd, %zu, %.*f.
static const char *read_conversion(const char *s, conversion *c) {
  *c = (conversion){.width = -1, .precision = -1};
  for (int n = 0; *s && strchr("-+ #0", *s); s++)
    if (!strchr(c->flags, *s)) c->flags[n++] = *s;
  c->star = *s == '*';
  if (c->star) s++;
  else if (*s >= '0' && *s <= '9') c->width = read_number(&s);
  if (*s == '.') s++, c->precision = read_number(&s);
  if (*s == 'h' || *s == 'l') c->size = *s++;
  if (c->size == 'l' && *s == 'l') s++;
  c->type = *s;
  return *s && strchr("%cdiouxXpeEfFgGaAs", *s) ? s + 1 : NULL;
}

// A printer is a call of printf by a lane.
typedef struct {
  worker *k;
  warp *w;
  group *g;
  int lane;
  u64 args; // address of the next argument
  s32 count;
  bool skipped; // a conversion that CUDA does not have
  FILE *out;
} printer;

// string returns a string at a generic address and sets *n to its length, at most limit. It returns NULL after a fault:
// the string must end in its memory.
static const char *string(printer *p, u64 a, size_t limit, size_t *n) {
  const char *s = "", *c;
  for (*n = 0; *n < limit; ++*n) {
    u64 next = a + *n;
    if (next >> 56 != VG_SHARED_WINDOW >> 56 && next >> 56 != VG_LOCAL_WINDOW >> 56 && !find(p->k, next, 1)) {
      FAULT(p->k, p->w, p->g, p->lane, printf_string, .address = next, .skipped = p->skipped);
      return NULL;
    }
    if ((c = (const char *)at(p->k, p->w, p->g, GENERIC, p->lane, next, 1, 0)) == NULL) return NULL;
    if (*n == 0) s = c;
    if (*c == 0) break;
  }
  return s;
}

enum { PRINTF_ARGUMENTS = 32 }; // at most; with more, a GPU prints other memory

// argument sets *v to the next argument. It returns false after a fault.
static bool argument(printer *p, int size, u64 *v) {
  if (++p->count > PRINTF_ARGUMENTS) {
    FAULT(p->k, p->w, p->g, p->lane, printf_arguments, .limit = PRINTF_ARGUMENTS);
    return false;
  }
  p->args = (p->args + (u64)size - 1) & ~(u64)(size - 1);
  u8 *from = at(p->k, p->w, p->g, GENERIC, p->lane, p->args, size, 0);
  if (from == NULL) return false;
  p->args += (u64)size;
  *v = size == 8 ? *(u64 *)from : *(u32 *)from;
  return true;
}

// print_conversion prints the next arguments. It returns false after a fault.
static bool print_conversion(printer *p, const conversion *c) {
  int width = c->width < 0 ? 0 : c->width, is_float = strchr("eEfFgGaA", c->type) != NULL;
  u64 v;
  if (c->star) {
    if (!argument(p, 4, &v)) return false;
    width = (s32)v == INT_MIN ? -INT_MAX : (s32)v;
  }
  if (c->type == '%') return putc('%', p->out), true;
  int wide = is_float || c->type == 'p' || c->type == 's' || (c->type != 'c' && c->size == 'l');
  if (!argument(p, wide ? 8 : 4, &v)) return false;
  char format[16];
  snprintf(format, sizeof format, "%%%s*.*%s%c", c->flags,
           is_float || strchr("cps", c->type) ? "" : c->size == 'l' ? "ll" : c->size == 'h' ? "h" : "", c->type);
  if (c->type == 's') {
    size_t n = 6;
    const char *s = v ? string(p, v, c->precision < 0 ? INT_MAX : (size_t)c->precision, &n) : "(null)";
    if (s == NULL) return false;
    fprintf(p->out, format, width, (int)n, s);
  } else if (is_float) {
    fprintf(p->out, format, width, c->precision, bits_f64(v));
  } else if (wide) {
    fprintf(p->out, format, width, c->precision, v);
  } else {
    fprintf(p->out, format, width, c->precision, (u32)v);
  }
  return true;
}

// print_formatted returns the number of arguments that it printed, as CUDA's printf does, or -1 without a format.
static __attribute__((cold, noinline))
s32 print_formatted(worker *k, warp *w, group *g, int lane, u64 format, u64 args) {
  effect(k);
  size_t n, size;
  printer p = {.k = k, .w = w, .g = g, .lane = lane, .args = args};
  const char *found = format ? string(&p, format, INT_MAX, &n) : NULL;
  if (found == NULL) return -1;
  char *text = strndup(found, n), *all = NULL; // a copy: other threads may write to the format
  p.out = open_memstream(&all, &size);
  if (text == NULL || p.out == NULL) abort();
  bool ok = true;
  for (const char *s = text; *s && ok;) {
    conversion c;
    const char *end = *s == '%' ? read_conversion(s + 1, &c) : NULL;
    if (end) {
      ok = print_conversion(&p, &c);
    } else {
      p.skipped |= *s == '%';
      putc(*s, p.out);
    }
    s = end ? end : s + 1;
  }
  free(text);
  if (fclose(p.out)) abort();
  if (ok) fwrite(all, 1, size, stdout);
  free(all);
  fflush(stdout);
  return ok ? p.count : -1;
}
