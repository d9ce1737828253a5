// Textures and surfaces. That normalized coordinates have 21 bits behind the point, and how weights of the linear filter
// are rounded to 1/256 and sums to float32, was found on an H200 with the program in app/testdata/script/emu_textures.txtar.
#pragma once
#include "memory.h"

enum { MODE_WRAP, MODE_CLAMP, MODE_MIRROR, MODE_BORDER }; // cudaTextureAddressMode
enum { CHANNEL_SIGNED, CHANNEL_UNSIGNED, CHANNEL_FLOAT }; // cudaChannelFormatKind

// touched records an access of a lane, in the generic proxy. It returns 0 after a fault.
static int touched(worker *k, warp *w, group *g, u32 l, u8 *p, u32 n, int how, int same) {
  if (k->writing && !(how & A_WRITE)) early_read(k, w, g, (int)l, (u64)(uintptr_t)p, n);
  if (k->state->races) touch(k, w, g, l, p, n, how, same);
  return !k->state->stop;
}

// object_of returns the object with a handle, or NULL after a fault.
static const vg_texture *object_of(worker *k, warp *w, group *g, int lane, u64 handle, int kind, int surface) {
  const vg_texture *t = (const vg_texture *)handle;
  if (handle & 15 || find(k, handle, sizeof *t) == NULL || t->magic != (surface ? VG_SURFACE : VG_TEXTURE)) {
    FAULT(k, w, g, lane, texture_object, .handle = handle, .surface = surface);
    return NULL;
  }
  // Textures of one and of two dimensions may be read as each other, cubes as layers by a surface instruction.
  int three = (kind & 3) == 3, layered = (kind & TEX_LAYERED) != 0, cube = (kind & TEX_CUBE) != 0;
  int fits = surface ? three || t->dims < 3 : three == (t->dims == 3) && cube == t->cube;
  fits &= surface && (three || t->cube) ? 1 : layered == t->layered;
  if (!fits || (t->linear_memory && !(kind & TEX_INTEGER))) {
    FAULT(k, w, g, lane, texture_shape, .dims = t->dims, .layered = t->layered, .cube = t->cube, .linear = t->linear_memory);
    return NULL;
  }
  return t;
}

// texel sets v to the channels of the element at an index, -1 meaning the border: integers, or the bits of a float32. It
// returns 0 after a fault.
static int texel(worker *k, warp *w, group *g, u32 l, const vg_texture *t, const s64 i[3], u32 v[4]) {
  memset(v, 0, 4 * sizeof *v);
  if (i[0] < 0 || i[1] < 0 || i[2] < 0) {
    memcpy(v, t->border, t->channels * sizeof *v);
    return 1;
  }
  u8 *p = at(k, w, g, GLOBAL, (int)l, t->address + (u64)i[0] * t->bytes + (u64)i[1] * t->row + (u64)i[2] * t->slice, t->bytes, READ);
  if (p == NULL || !touched(k, w, g, l, p, t->bytes, 0, 0)) return 0;
  int size = t->bytes / t->channels;
  for (int c = 0; c < t->channels; c++) {
    u64 raw = load_element(p + c * size, size, t->type == CHANNEL_SIGNED ? M_SIGNED : 0);
    v[c] = t->type == CHANNEL_FLOAT && size == 2 ? f16_bits32((u16)raw) : (u32)raw;
  }
  return 1;
}

// normal returns an integer that stands for a value of at most 1, as a float32.
static u32 normal(const vg_texture *t, u32 v) {
  int bits = 8 * t->bytes / t->channels;
  if (t->type == CHANNEL_UNSIGNED) return f32_bits((f32)(v / (f64)((1 << bits) - 1)));
  return f32_bits((f32)fmax(-1, (s32)v / (f64)((1 << (bits - 1)) - 1)));
}

// in_range returns the index of an element from an index that may be outside, or -1 for the border.
static s64 in_range(s64 i, u32 n, int mode) {
  s64 size = n;
  switch (mode) {
  case MODE_WRAP: i %= size; return i < 0 ? i + size : i;
  case MODE_MIRROR: i %= 2 * size; i = i < 0 ? i + 2 * size : i; return i < size ? i : 2 * size - 1 - i;
  case MODE_CLAMP: return i < 0 ? 0 : i < size ? i : size - 1;
  }
  return i < 0 || i >= size ? -1 : i;
}

// rounded_away rounds to float32, ties away from zero.
static u32 rounded_away(f64 v) {
  f32 near = (f32)v;
  f64 off = v - near;
  if (off != 0) {
    f32 other = nextafterf(near, off > 0 ? INFINITY : -INFINITY);
    if (fabs((f64)other - v) == fabs(off) && fabsf(other) > fabsf(near)) near = other;
  }
  return nan32(near);
}

// widened returns a texel as the linear filter sees it: a float, or an integer of 16 bits.
static f64 widened(const vg_texture *t, u32 v) {
  int byte = t->bytes == t->channels;
  if (!t->floats) return bits_f32(v);
  if (t->type == CHANNEL_UNSIGNED) return byte ? v * 257.0 : v;
  return byte ? fmax((s32)v, -127) * (258 + 1.0 / 128) : fmax((s32)v, -32767);
}

// weights sets the weights of 2^n elements, in units of 1/256, for fractions f in each dimension. Their sum can differ
// from 256 in three dimensions.
static void weights(const int *f, int n, int *to) {
  if (n < 3) {
    int both = (f[0] * f[1] + 128) >> 8;
    to[0] = 256 - f[0] - f[1] + both, to[1] = f[0] - both, to[2] = f[1] - both, to[3] = both;
    return;
  }
  for (int x = 0; x < 2; x++)
    for (int z = 0; z < 2; z++) { // ties go up for the second element in x
      int of = ((x ? f[0] : 256 - f[0]) * (z ? f[2] : 256 - f[2]) + 127 + x) >> 8, second = (of * f[1] + 127 + x) >> 8;
      to[x + 4 * z] = of - second, to[x + 4 * z + 2] = second;
    }
}

// face sets the coordinates in a face of a cube for a direction, and returns its number.
static int face(const f32 d[3], f64 at[2]) {
  f32 a[3] = {fabsf(d[0]), fabsf(d[1]), fabsf(d[2])};
  int major = a[0] >= a[1] && a[0] >= a[2] ? 0 : a[1] >= a[2] ? 1 : 2, back = d[major] < 0;
  f32 s = major == 0 ? (back ? d[2] : -d[2]) : major == 1 ? d[0] : (back ? -d[0] : d[0]);
  f32 t = major == 1 ? (back ? -d[2] : d[2]) : -d[1];
  at[0] = (f64)(s / a[major] + 1) / 2, at[1] = (f64)(t / a[major] + 1) / 2;
  return 2 * major + back;
}

// sample sets v to the value of a texture at the coordinates c, in elements.
static int sample(worker *k, warp *w, group *g, u32 l, const vg_texture *t, const f64 c[3], s64 layer, int gather, int component, u32 v[4]) {
  int n = t->dims < 2 ? 2 : t->dims, f[3] = {0}, weight[8];
  s64 first[3] = {0}, i[3] = {0, 0, layer};
  int mode[3] = {t->mode[0], t->dims == 1 && t->layered ? MODE_CLAMP : t->mode[1], t->mode[2]};
  for (int d = 0; d < n; d++) {
    f64 x = c[d] != c[d] ? 0 : fmax(-1e9, fmin(1e9, c[d]));
    if (mode[d] == MODE_CLAMP && t->linear) x = fmax(0.5, fmin(t->size[d] - 0.5, x));
    s64 fine = (s64)floor((x - 0.5) * 256 + 0.5);
    first[d] = t->linear || gather ? fine >> 8 : (s64)floor(x);
    f[d] = (int)(fine & 255);
  }
  if (!t->linear && !gather) {
    for (int d = 0; d < n; d++) i[d] = in_range(first[d], t->size[d], mode[d]);
    if (!texel(k, w, g, l, t, i, v)) return 0;
    for (int q = 0; q < t->channels && t->floats; q++) v[q] = normal(t, v[q]);
    return 1;
  }
  weights(f, n, weight);
  f64 sum[4] = {0};
  for (int e = 0; e < 1 << n; e++) {
    u32 one[4];
    if (weight[e] == 0 && !gather) continue;
    for (int d = 0; d < n; d++) i[d] = in_range(first[d] + (e >> d & 1), t->size[d], mode[d]);
    if (!texel(k, w, g, l, t, i, one)) return 0;
    if (gather) v[e ^ (e < 2 ? 3 : 2)] = t->floats ? normal(t, one[component]) : one[component];
    for (int q = 0; q < t->channels; q++) sum[q] += weight[e] * widened(t, one[q]);
  }
  for (int q = 0; q < 4 && !gather; q++)
    v[q] = t->floats ? f32_bits((f32)(round(sum[q] / 256) / (t->type == CHANNEL_SIGNED ? 32767 : 65535))) : rounded_away(sum[q] / 256);
  return 1;
}

// texture executes tex and tld4. kind: TEX_* and dimensions; a: handle; imm: component to gather; extra: four results, the
// coordinates, the layer first.
static int texture(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  const int32_t *x = extra + in->x, *coordinates = x + 4 + (in->kind & TEX_LAYERED ? 1 : 0);
  int cube = in->kind & TEX_CUBE, dims = cube ? 3 : in->kind & 3;
  EACH(m) {
    const vg_texture *t = object_of(k, w, g, (int)l, U64(in->a)[l], in->kind, 0);
    if (t == NULL) return 0;
    u32 v[4], layers = cube ? t->size[2] / 6 : t->size[2];
    s64 layer = in->kind & TEX_LAYERED ? U32(x[4])[l] : 0;
    if (layer >= layers) layer = layers - 1;
    if (in->kind & TEX_INTEGER) {
      s64 i[3] = {0, 0, layer};
      int outside = dims == 1 && !t->linear_memory;
      for (int d = 0; d < dims; d++) {
        i[d] = (s32)U32(coordinates[d])[l];
        outside |= i[d] < 0 || i[d] >= t->size[d];
      }
      memset(v, 0, sizeof v);
      if (!outside && !texel(k, w, g, l, t, i, v)) return 0;
      for (int q = 0; q < t->channels && t->floats; q++) v[q] = normal(t, v[q]);
    } else {
      f64 c[3] = {0};
      f32 raw[3] = {0};
      for (int d = 0; d < dims; d++) c[d] = raw[d] = bits_f32(U32(coordinates[d])[l]);
      if (cube) layer = 6 * layer + face(raw, c);
      for (int d = 0; d < dims && t->normalized; d++) {
        f64 fine = floor(c[d] * (1 << 21)) / (1 << 21), turn = t->mode[d] == MODE_MIRROR ? 2 : 1;
        if (t->mode[d] == MODE_WRAP || t->mode[d] == MODE_MIRROR) fine -= turn * floor(fine / turn); // none for infinity
        c[d] = fine * t->size[d];
      }
      if (!sample(k, w, g, l, t, c, layer, in->kind & TEX_GATHER, (int)in->imm, v)) return 0;
    }
    for (int q = 0; q < 4; q++) U32(x[q])[l] = v[q];
  }
  return 1;
}

// surface executes suld.b and sust.b. kind: TEX_* and dimensions; a: handle; c: bytes of a value, M_64 for 64-bit
// registers; n: number of values; imm: SURF_*; extra: values, coordinates, the layer first.
static int surface(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  const int32_t *x = extra + in->x, *coordinates = x + in->n;
  int size = in->c & 31, total = size * in->n, layered = in->kind & TEX_LAYERED, dims = in->kind & 3;
  int outcome = in->imm & 3, write = (in->imm & SURF_WRITE) != 0;
  if (write) effect(k);
  EACH(m) {
    const vg_texture *t = object_of(k, w, g, (int)l, U64(in->a)[l], in->kind, 1);
    if (t == NULL) return 0;
    s64 i[3] = {0}, limit[3] = {(s64)t->size[0] * t->bytes - total, t->size[1] - 1, t->size[2] - 1};
    for (int d = 0; d < dims; d++) i[d] = (s32)U32(coordinates[d + (layered ? 1 : 0)])[l];
    if (layered) i[2] = (s32)U32(coordinates[0])[l];
    int outside = 0;
    for (int d = 0; d < 3; d++) outside |= i[d] < 0 || i[d] > limit[d];
    if (outside && outcome == SURF_TRAP) {
      FAULT(k, w, g, (int)l, surface_range, .x = (s32)i[0], .y = (s32)i[1], .z = (s32)i[2], .size = total,
            .width = t->size[0] * t->bytes, .height = t->size[1], .depth = t->size[2], .write = write);
      return 0;
    }
    for (int d = 0; d < 3 && outcome == SURF_CLAMP; d++) i[d] = i[d] < 0 ? 0 : i[d] > limit[d] ? limit[d] : i[d];
    if (outside && outcome == SURF_ZERO) {
      for (int q = 0; q < in->n && !write; q++) {
        if (in->c & M_64) U64(x[q])[l] = 0;
        else U32(x[q])[l] = 0;
      }
      continue;
    }
    u64 address = t->address + (u64)i[0] + (u64)i[1] * t->row + (u64)i[2] * t->slice;
    u8 *p = at(k, w, g, GLOBAL, (int)l, address, total, write ? WRITE : READ), v[32];
    if (p == NULL) return 0;
    for (int q = 0; q < in->n && write; q++) {
      u64 value = in->c & M_64 ? U64(x[q])[l] : U32(x[q])[l];
      memcpy(v + q * size, &value, (size_t)size);
    }
    if (!touched(k, w, g, l, p, (u32)total, write ? A_WRITE : 0, write && memcmp(p, v, (size_t)total) == 0)) return 0;
    if (write) memcpy(p, v, (size_t)total);
    for (int q = 0; q < in->n && !write; q++) {
      if (in->c & M_64) U64(x[q])[l] = load_element(p + q * size, size, 0);
      else U32(x[q])[l] = (u32)load_element(p + q * size, size, 0);
    }
  }
  return 1;
}
