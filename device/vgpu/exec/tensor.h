// Tensor maps, tensor memory, and matrix products with operands in shared memory: cp.async.bulk.tensor, tcgen05, wgmma.
#pragma once
#include "matrix.h"
#include "mbarrier.h"

// shared_address returns a shared-memory address from a 32-bit (narrow) or 64-bit operand, which may be generic.
static u64 shared_address(u8 *const *base, int32_t place, int narrow, int32_t offset, u32 lane) {
  u64 a = narrow ? U32(place)[lane] : U64(place)[lane];
  if (a >> 56 == 0x40) a &= 0xffffffffffffffull;
  return a + (u64)(s64)offset;
}

static u64 with_rank(u64 a, int rank) { return (a & 0xffffff) | (u64)(rank + 1) << 24; }

static u64 swizzled(u64 a, int mode) {
  switch (mode) {
  case 1: return a ^ (a >> 3 & 0x10);        // 32 bytes
  case 2: return a ^ (a >> 3 & 0x30);        // 64 bytes
  case 3: return a ^ (a >> 3 & 0x70);        // 128 bytes
  case 4: return a ^ (a >> 2 & 0x60);        // 128 bytes in units of 32
  case 6: return a ^ (a >> 1 & 0x40);        // 128 bytes in units of 64
  }
  return a;
}

// descriptor checks the rules of tensor copies for a Triton descriptor whose copies are compiled to plain accesses. imm:
// bytes per element, or 0 for a: the tensor's address. a: innermost coordinate; n: rank; extra: extents, then strides of
// all dimensions except the innermost one. Dimension 0 is the outermost one.
static int descriptor(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  const int32_t *x = extra + in->x;
  s64 size = in->imm;
  EACH(m) {
    if (size == 0) {
      if ((U64(in->a)[l] & 15) == 0) continue;
      FAULT(k, w, g, (int)l, descriptor, .address = U64(in->a)[l], .base = true);
      return 0;
    }
    for (int d = 0; d < in->n; d++) {
      s32 extent = (s32)U32(x[d])[l];
      s64 stride = d + 1 < in->n ? (s64)U64(x[in->n + d])[l] : 0;
      // The stride of a single row is not used.
      if (extent > 0 && (extent == 1 || (stride >= 0 && stride < (1ll << 40) / size && (stride * size & 15) == 0))) continue;
      FAULT(k, w, g, (int)l, descriptor, .stride = stride, .extent = extent, .dimension = d, .size = (s32)size);
      return 0;
    }
    s32 c = (s32)U32(in->a)[l];
    if ((c * size & 15) == 0) continue;
    FAULT(k, w, g, (int)l, coordinate, .coordinate = c, .size = (s32)size);
    return 0;
  }
  return 1;
}

// hardware_map decodes a tensor map in the format of a GPU, in which the CuTe DSL writes them, without the driver. The
// format is not documented: these are the fields that the DSL sets. It returns 0 if q is no such map. If a map uses
// others, it counts as interleaved.
static int hardware_map(const u64 *q, vg_tensor_map *t) {
  // By code; 99: not known. tf32 has the code of f32 and a flag.
  static const u8 types[16] = {0, 1, 2, 99, 4, 99, 6, 7, 99, 8, 9, 13, 99, 15, 99, 99};
  enum { FORMAT = 2, TYPE = 7, SWIZZLE = 13, TF32 = 16, TILED = 18, ATOM = 19, KNOWN = 0x7d67ff };
  u64 head = q[1] & 0xffffffff;
  if ((head & 15) != FORMAT || !(head >> TILED & 1) || q[0] & 15 || q[0] >> 57) return 0;
  *t = (vg_tensor_map){.magic = VG_TENSOR_MAP, .address = q[0], .rank = (head >> 4 & 7) + 1, .type = types[head >> TYPE & 15]};
  if (head >> TF32 & 1) t->type = 11;
  u64 strides[4] = {q[1] >> 32, q[2] & 0xffffffff, q[2] >> 32, q[3] & 0xffffffff};
  u64 dims[5] = {q[4] & 0xffffffff, q[4] >> 32, q[5] & 0xffffffff, q[5] >> 32, q[6] & 0xffffffff};
  u64 boxes = q[6] >> 56 | q[7] << 8;
  for (int d = 0; d < 5; d++) {
    t->dims[d] = (u32)dims[d];
    t->box[d] = (uint16_t)((boxes >> (8 * d) & 255) + 1);
    t->steps[d] = 1;
    if (d < 4) t->strides[d] = (strides[d] | (q[3] >> (32 + 4 * d) & 15) << 32) << 4;
  }
  t->swizzle = head >> SWIZZLE & 3;
  u32 atom = head >> ATOM & 3;
  if (atom == 1 && t->swizzle == 3) t->atom = 1;
  else if (atom) t->interleave = 1;
  if (t->type > 15) t->type = 0, t->interleave = 1;
  if (head & ~(u64)KNOWN || q[3] >> 48 || q[6] >> 32 & 0xffffff || q[7] >> 32) t->interleave = 1;
  return 1;
}

// read_map reads the tensor map at p. It returns 0 if there is none.
static int read_map(const u8 *p, vg_tensor_map *t) {
  u64 q[8];
  memcpy(t, p, sizeof *t);
  memcpy(q, p, sizeof q);
  return t->magic == VG_TENSOR_MAP || hardware_map(q, t);
}

// map_at returns the place of a tensor map, in two halves since it is aligned to one, or NULL after a fault.
static u8 *map_at(worker *k, warp *w, group *g, int space, u32 lane, u64 a, int write) {
  u8 *p = at(k, w, g, space, (int)lane, a, 64, write);
  return p && at(k, w, g, space, (int)lane, a + 64, 64, write) ? p : NULL;
}

// tensor_map executes tensormap.replace and, for one lane, tensormap.cp_fenceproxy. kind: TM_*; a: address of the map; b:
// new value, or for TM_COPY where the map is; n: ordinal of the field; x: space of the map.
static int tensor_map(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  static const u8 types[16] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15}; // in the order of the driver's
  EACH(in->kind == TM_COPY ? m & -m : m) {
    u64 to = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
    u8 *from = in->kind == TM_COPY ? map_at(k, w, g, SHARED, l, shared_address(base, in->b, in->c & M_16, 0, l), READ) : NULL;
    if (in->kind == TM_COPY && from == NULL) return 0;
    u8 *p = map_at(k, w, g, extra[in->x], l, to, WRITE), other[128];
    if (p == NULL) return 0;
    if (from) {
      memcpy(other, from, sizeof other);
    } else {
      vg_tensor_map t;
      static const u8 empty[128];
      if (memcmp(p, empty, sizeof empty) == 0) t = (vg_tensor_map){.magic = VG_TENSOR_MAP}; // filled in field by field
      else if (!read_map(p, &t) || t.im2col) {
        FAULT(k, w, g, (int)l, tensor_map, .address = to);
        return 0;
      }
      u64 v = in->kind == TM_ADDRESS || in->kind == TM_STRIDE ? U64(in->b)[l] : U32(in->b)[l];
      switch (in->kind) {
      case TM_ADDRESS: t.address = v; break;
      case TM_RANK: t.rank = (u8)v + 1; break;
      case TM_BOX: t.box[in->n] = (u16)v; break;
      case TM_DIM: t.dims[in->n] = (u32)v - 1; break;
      case TM_STRIDE: t.strides[in->n] = v & ~15ull; break;
      case TM_STEP: t.steps[in->n] = (u8)v; break;
      case TM_TYPE: t.type = v < 16 ? types[v] : 255; break;
      case TM_INTERLEAVE: t.interleave = (u8)v; break;
      case TM_SWIZZLE: t.swizzle = (u8)v; break;
      case TM_ATOM: t.atom = (u8)v; break;
      case TM_FILL: t.fill = (u8)v; break;
      }
      memset(other, 0, sizeof other);
      memcpy(other, &t, sizeof t);
    }
    if (k->state->races) {
      if (from) touch(k, w, g, l, from, sizeof other, 0, 0);
      touch(k, w, g, l, p, sizeof other, A_WRITE, memcmp(p, other, sizeof other) == 0);
      if (k->state->stop) return 0;
      if (from) fenced(k, w, m);
    }
    memcpy(p, other, sizeof other);
  }
  return 1;
}

// tensor_copy executes cp.async.bulk.tensor and cp.reduce.async.bulk.tensor. kind: COPY_*; a: shared address; b:
// address of the map; n: number of coordinates, +16 to gather four rows, +32 for the mbarrier of the pair's even block;
// imm: 1 for im2col; extra: coordinates, mbarrier, its offset, CTA mask, offsets of a and b, reduction or -1, for im2col
// offsets of the pixels; c: M_ADDR32 if the shared address has 32 bits, M_16 if the mbarrier's has.
static int tensor_copy(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  static const u8 sizes[16] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 1, 1, 1}; // packed ones as in shared memory
  static const u8 kinds[16] = {T_U8, T_U16, T_U32, T_S32, T_U64, T_S64, T_F16, T_F32, T_F64, T_BF16, T_F32, T_F32, T_F32};
  int n = in->n & 15, gather = in->n & 16;
  const int32_t *x = extra + in->x, *more = x + n;
  EACH(m) {
    u64 map = U64(in->b)[l] + (u64)(s64)more[4];
    begin_operation(w);
    if (map >> 56) { // in shared or local memory
      FAULT(k, w, g, (int)l, tensor_map_memory, .shared = map >> 56 == 0x40);
      return 0;
    }
    u8 *mp = map_at(k, w, g, GENERIC, l, map, 0);
    if (mp == NULL || !map_acquired(k, w, g, l, mp)) return 0;
    vg_tensor_map t;
    int rank = gather ? 2 : n, im2col = in->imm != 0;
    if (!read_map(mp, &t) || t.rank != rank || t.type > 15 || t.im2col != im2col) {
      FAULT(k, w, g, (int)l, tensor_map, .address = map, .dimensions = rank, .im2col = im2col);
      return 0;
    }
    // Of 4 bits, two to a byte; and 16 elements of 4 or 6 bits, which take 8 or 12 bytes and are padded to 16.
    u32 unit = t.type == 14 ? 8 : t.type == 15 ? 12 : 16;
    int pairs = t.type == 13;
    int unknown = t.swizzle > 3 || (t.swizzle == 3 && t.atom == 2);
    if (t.interleave || unknown || (unit < 16 && in->kind)) {
      FAULT(k, w, g, (int)l, unsupported, .feature = t.interleave ? FEATURE_INTERLEAVED : unknown ? FEATURE_SWIZZLE : FEATURE_PACKED);
      return 0;
    }
    u64 smem = shared_address(base, in->a, in->c & M_ADDR32, more[3], l);
    if (smem & 127) {
      FAULT(k, w, g, (int)l, misaligned, .address = smem, .multiple = 128, .write = in->kind == COPY_TO_SHARED);
      return 0;
    }
    u32 es = sizes[t.type], count[5] = {1, 1, 1, 1, 1}, total = im2col ? t.box[1] : 1;
    s64 pixel[5] = {0};
    for (int d = 0; d < rank; d++) {
      u32 step = d == 0 ? 1 : t.steps[d];
      pixel[d] = (s32)U32(x[d])[l];
      if (im2col && d > 0) continue;
      if (step == 0 || t.box[d] == 0) { // a map that a kernel has not filled in
        FAULT(k, w, g, (int)l, tensor_map, .address = map, .dimensions = rank, .im2col = im2col);
        return 0;
      }
      count[d] = (t.box[d] + step - 1) / step;
    }
    if (pairs) count[0] /= 2;
    if (gather) count[1] = 4;
    for (int d = 1; d < rank && !im2col; d++) total *= count[d];
    if (t.swizzle == 3) t.swizzle += t.atom;
    // The pitch is the swizzle width even if rows are shorter (observed on an H200).
    int part = 0; // some of the box is outside
    u32 row_bytes = count[0] * es, pitch = t.swizzle == 0 ? row_bytes : t.swizzle >= 3 ? 128 : 16u << t.swizzle, mask = more[2] >= 0 ? U32(more[2])[l] & 0xffff : 0;
    int op = more[5];
    for (u32 r = 0; r < total; r++) {
      u64 address = t.address;
      int inside = 1;
      u32 rest = r;
      for (int d = 1; d < rank; d++) {
        u32 i = rest % count[d];
        rest /= count[d];
        s64 c = gather ? (s32)U32(x[1 + i])[l] : pixel[d] + i * t.steps[d];
        if (im2col) c = pixel[d] + (d < rank - 1 ? U32(more[5 + d])[l] & 0xffff : 0);
        if (c < 0 || c > t.dims[d]) inside = 0;
        address += (u64)c * t.strides[d - 1];
      }
      for (int d = 1; d < rank && im2col; d++) { // the next pixel of the box: its lines, planes, and images follow each other
        pixel[d] += d < rank - 1 ? t.steps[d] : 1;
        if (d == rank - 1 || pixel[d] <= (s64)t.dims[d] + t.upper[d - 1]) break;
        pixel[d] = t.lower[d - 1];
      }
      s64 c0 = pixel[0];
      if ((c0 * es >> pairs) & (unit < 16 ? 63 : 15) || (pairs && c0 & 1)) { // an illegal instruction on an H200
        FAULT(k, w, g, (int)l, coordinate, .coordinate = (s32)c0, .size = (s32)es);
        return 0;
      }
      s64 extent = ((s64)t.dims[0] + 1) >> pairs;
      c0 >>= pairs;
      s64 lo = c0 < 0 ? -c0 : 0, hi = extent - c0;
      if (hi > count[0]) hi = count[0];
      if (!inside || hi < lo) lo = hi = 0;
      part |= hi - lo < count[0];
      u64 first = address + (u64)((c0 + lo) * es) / 16 * unit + (u64)((c0 + lo) * es) % 16, valid = (u64)(hi - lo) * es / 16 * unit + (u64)(hi - lo) * es % 16;
      vg_range *range = valid ? find(k, first, valid) : NULL;
      if (valid && (range == NULL || (in->kind && range->readonly))) {
        if (range) FAULT(k, w, g, (int)l, read_only, .address = first, .size = (s32)valid);
        else FAULT(k, w, g, (int)l, out_of_bounds, .address = first, .size = (s32)valid, .write = in->kind);
        return 0;
      }
      if (k->counting && valid) mark_bytes(k, first, valid, in->kind == COPY_TO_SHARED ? COUNT_READ : op < 0 ? COUNT_WRITE : COUNT_READ | COUNT_WRITE);
      if (valid && (in->kind == COPY_TO_SHARED || op >= 0)) written_to(k, w, g, range, (int)l, first, valid, 0);
      if (valid && in->kind) {
        written_to(k, w, g, range, (int)l, first, valid, 1);
        add_write(k, w, g, l, first, valid);
      }
      for (u32 j = 0; j < row_bytes; j += 16) {
        u8 data[16];
        s64 from = lo * es - (s64)j, to = hi * es - (s64)j; // valid bytes of these 16
        if (from < 0) from = 0;
        if (to > 16) to = 16;
        u8 *global = (u8 *)(address + (u64)((c0 * es + (s64)j) / 16 * (s64)unit));
        if (to > (s64)unit) to = unit;
        u64 a = swizzled(smem + (u64)r * pitch + j, t.swizzle);
        if (in->kind) {
          if (to <= from) continue; // elements outside of the tensor are not read
          u8 *s = at(k, w, g, SHARED, (int)l, a, 16, to - from == 16 ? READ : LOCATE);
          if (s == NULL || !raced(k, w, g, s + from, (u32)(to - from), 0, 0)) return 0;
          add_read(k, w, g, l, s, 16, BY_BULK_GROUP, w->bulk_committed[l]);
          int same = op < 0 && memcmp(global + from, s + from, (size_t)(to - from)) == 0;
          if (!raced(k, w, g, global + from, (u32)(to - from), op < 0 ? A_WRITE : A_WRITE | A_ATOMIC, same)) return 0;
          if (op < 0) {
            for (s64 i = from; i < to; i++) global[i] = s[i];
          } else {
            for (s64 i = from; i < to; i += es) {
              u64 old = 0, v = 0;
              memcpy(&old, global + i, es);
              memcpy(&v, s + i, es);
              v = atomic_value(op, kinds[t.type], old, v, 0);
              memcpy(global + i, &v, es);
            }
          }
          continue;
        }
        if (to > from && !raced(k, w, g, global + from, (u32)(to - from), 0, 0)) return 0;
        for (int i = 0; i < 16; i++) {
          data[i] = i >= from && i < to ? global[i] : t.fill ? i & 1 ? 0x7f : 0xf7 : 0;
        }
        if (mask == 0) {
          u8 *s = at(k, w, g, SHARED, (int)l, a, 16, 1);
          if (s == NULL || !raced(k, w, g, s, 16, A_WRITE, 0)) return 0;
          memcpy(s, data, 16);
        } else {
          for (int c = 0; c < 16; c++) {
            if (!(mask >> c & 1)) continue;
            u8 *s = at(k, w, g, SHARED, (int)l, with_rank(a, c), 16, 1);
            if (s == NULL || !raced(k, w, g, s, 16, A_WRITE, 0)) return 0;
            memcpy(s, data, 16);
          }
        }
      }
    }
    if (k->counting) count_copy(k, g, (u64)row_bytes * total, part);
    if (in->kind == COPY_TO_SHARED) {
      u64 bar = shared_address(base, more[0], in->c & M_16, more[1], l), before, bytes = (u64)row_bytes * total / 16 * unit; // without padding
      for (int c = -1; c < 16; c++) {
        if (c < 0 ? mask != 0 : !(mask >> c & 1)) continue;
        u64 b = c < 0 ? bar : with_rank(bar, c);
        if (in->n & 32) b = with_rank(bar, (c < 0 ? (int)w->b->rank : c) & ~1);
        if (!complete(k, w, g, l, b, bytes, &before)) return 0;
        in_flight(w, g, l, c < 0 ? smem : with_rank(smem, c), pitch * total, b, before);
      }
    }
  }
  return 1;
}

// bulk_copy executes cp.async.bulk and cp.reduce.async.bulk. a: destination; b: source; kind: COPY_*; extra: bytes,
// mbarrier or -1, its offset, b's offset, CTA mask or -1, reduction or -1, its type, or -1: the numbers of bytes that are
// ignored at the start and the end, the mask of those that are copied of each 16.
static int bulk_copy(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  const int32_t *x = extra + in->x;
  EACH(m) {
    u64 to = in->c & M_ADDR32 ? U32(in->a)[l] + (u32)in->imm : U64(in->a)[l] + (u64)in->imm;
    u64 from = (in->c & M_64 ? U32(in->b)[l] : U64(in->b)[l]) + (u64)(s64)x[3];
    u32 n = U32(x[0])[l], mask = x[4] >= 0 ? U32(x[4])[l] & 0xffff : 0;
    u32 left = x[7] >= 0 ? U32(x[7])[l] : 0, right = x[8] >= 0 ? U32(x[8])[l] : 0, bytes = x[9] >= 0 ? U32(x[9])[l] & 0xffff : 0xffff;
    int to_space = in->kind == COPY_TO_GLOBAL ? GLOBAL : to >> 56 == 0x40 ? GENERIC : SHARED;
    int from_space = in->kind == COPY_TO_SHARED ? GENERIC : from >> 56 == 0x40 ? GENERIC : SHARED;
    if (n & 15) {
      FAULT(k, w, g, (int)l, copy_size, .size = n, .multiple = 16);
      return 0;
    }
    if ((to | from) & 15) {
      FAULT(k, w, g, (int)l, misaligned, .address = to & 15 ? to : from, .multiple = 16, .write = (to & 15) != 0);
      return 0;
    }
    if (k->counting) {
      count_copy(k, g, n, 0);
      if (in->kind == COPY_TO_SHARED && left + right < n) mark_bytes(k, from + left, n - left - right, COUNT_READ);
      if (in->kind == COPY_TO_GLOBAL) mark_bytes(k, to, n, x[5] < 0 ? COUNT_WRITE : COUNT_READ | COUNT_WRITE);
    }
    begin_operation(w);
    int by = in->kind == COPY_TO_CLUSTER ? BY_MBARRIER : BY_BULK_GROUP;
    for (u32 i = 0, step; i < n; i += step) { // 16 bytes at once if all are copied
      u32 row = i & ~15u;
      step = bytes == 0xffff && row >= left && row + 16 + right <= n ? 16 : 1;
      int copied = step == 16 || (bytes >> (i & 15) & 1 && i >= left && i + right < n);
      if (!copied && in->kind == COPY_TO_GLOBAL) continue;
      u8 *s = copied ? at(k, w, g, from_space, (int)l, from + i, (int)step, 0) : NULL;
      if (copied && (s == NULL || !raced(k, w, g, s, step, 0, 0))) return 0;
      if (in->kind != COPY_TO_SHARED) add_read(k, w, g, l, s, step, by, by == BY_MBARRIER ? w->commits : w->bulk_committed[l]);
      for (int c = -1; c < 16; c++) {
        if (c < 0 ? mask != 0 : !(mask >> c & 1)) continue;
        u64 a = c < 0 ? to + i : with_rank(to + i, c);
        u8 *d = x[5] >= 0 && !at(k, w, g, to_space, (int)l, a, 16, 0) ? NULL : at(k, w, g, to_space, (int)l, a, (int)step, 1);
        int same = in->kind == COPY_TO_GLOBAL && x[5] < 0 && d && memcmp(d, s, step) == 0;
        if (d == NULL || !raced(k, w, g, d, step, x[5] < 0 ? A_WRITE : A_WRITE | A_ATOMIC, same)) return 0;
        if (x[5] < 0) {
          block *of = copied ? NULL : block_at(w, d);
          if (copied) memcpy(d, s, step);
          else of->shadow[d - of->shared] = UNWRITTEN; // its value is undefined
          continue;
        }
        int size = x[6] == T_F16 || x[6] == T_BF16 ? 4 : x[6] == T_F64 ? 8 : 1 << (x[6] & 3);
        if (x[6] == T_F32) size = 4;
        for (int q = 0; q < 16; q += size) {
          u64 old = 0, v = 0;
          memcpy(&old, d + q, (size_t)size);
          memcpy(&v, s + q, (size_t)size);
          v = atomic_value(x[5], x[6], old, v, 0);
          memcpy(d + q, &v, (size_t)size);
        }
      }
    }
    if (in->kind == COPY_TO_GLOBAL && bytes) { // from the first to the last byte that is copied
      u32 first = (u32)__builtin_ctz(bytes);
      add_write(k, w, g, l, to + first, n - first - (u32)(__builtin_clz(bytes) - 16));
    }
    if (x[1] < 0) continue;
    u64 bar = shared_address(base, x[1], in->c & M_16, x[2], l), before;
    to &= 0xffffffff;
    for (int c = -1; c < 16; c++) {
      if (c < 0 ? mask != 0 : !(mask >> c & 1)) continue;
      if (!complete(k, w, g, l, c < 0 ? bar : with_rank(bar, c), n, &before)) return 0;
      in_flight(w, g, l, c < 0 ? to : with_rank(to, c), n, c < 0 ? bar : with_rank(bar, c), before);
    }
    if (by == BY_MBARRIER) {
      ends_with(w, BY_MBARRIER, bar, before);
      w->commits++;
    }
  }
  return 1;
}

// store_async executes st.async (STORE_TO_ONE), a store to all blocks of the cluster (STORE_TO_ALL), or red.async. a:
// destination; n: number of values of in->c & 31 bytes; extra: values, mbarrier, its offset, type of the reduction.
static int store_async(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  const int32_t *x = extra + in->x;
  int size = in->c & 31;
  EACH(m) {
    u64 first = shared_address(base, in->a, in->c & M_ADDR32, (int32_t)in->imm, l), before;
    u64 counter = shared_address(base, x[in->n], in->c & M_16, x[in->n + 1], l);
    int stores = in->kind >= STORE_TO_ALL, all = in->kind == STORE_TO_ALL;
    for (int c = 0; c < (all ? w->b->t->nb : 1); c++) {
      u64 to = all ? with_rank(first, c) : first, bar = all ? with_rank(counter, c) : counter;
      for (int i = 0; i < in->n; i++) {
        u8 *p = at(k, w, g, SHARED, (int)l, to + (u64)(size * i), size, 1);
        if (p == NULL || !raced(k, w, g, p, (u32)size, stores ? A_WRITE : A_WRITE | A_ATOMIC, 0)) return 0;
        u64 v = size == 8 ? U64(x[i])[l] : U32(x[i])[l], old = 0;
        memcpy(&old, p, (size_t)size);
        if (!stores) v = atomic_value(in->kind, x[in->n + 2], old, v, 0);
        memcpy(p, &v, (size_t)size);
      }
      if (!complete(k, w, g, l, bar, (u64)(size * in->n), &before)) return 0;
      if (stores) in_flight(w, g, l, to, (u32)(size * in->n), bar, before);
    }
  }
  return 1;
}

// element converts an element of a matrix; types are coded as for mma.
static inline f32 element(u32 v, int type) {
  switch (type) {
  case MMA_F16: return f16_f32((u16)v);
  case MMA_BF16: return bits_f32(v << 16);
  case MMA_TF32: return bits_f32(v & 0xffffe000u);
  case MMA_S8: return (f32)(s8)v;
  case MMA_U8: return (f32)(u8)v;
  }
  return narrow_f32(v, type);
}

static int element_size(int type) { return type <= MMA_BF16 ? 2 : type == MMA_TF32 ? 4 : 1; }

// A matrix is a decoded descriptor of a matrix in shared memory, for wgmma or tcgen05.
typedef struct {
  u64 start;
  u32 leading, stride;
  int swizzle; // mode for swizzled()
  u32 atoms;   // 16-byte units in a row of the swizzle pattern
} matrix;

static matrix described(u64 d, int blackwell) {
  matrix r = {(d & 0x3fff) << 4, (u32)(d >> 16 & 0x3fff) << 4, (u32)(d >> 32 & 0x3fff) << 4, 0, 1};
  static const u8 old[4] = {0, 3, 2, 1}, fresh[8] = {0, 4, 3, 0, 2, 0, 1, 0};
  r.swizzle = blackwell ? fresh[d >> 61] : old[d >> 62];
  r.atoms = r.swizzle == 0 ? 1 : r.swizzle == 4 ? 8 : 1u << r.swizzle;
  return r;
}

// offset returns the address of element (row, kk). Elements are contiguous along kk, or along rows if across is set.
static u64 offset(const matrix *d, u32 row, u32 kk, u32 size, int across) {
  u64 o;
  if (!across) {
    u32 byte = kk * size, unit = byte >> 4;
    o = (row & 7) * 16 * d->atoms + (row >> 3) * (u64)d->stride + (d->atoms == 1 ? unit * (u64)d->leading : unit * 16) + (byte & 15);
  } else {
    u32 byte = row * size, unit = byte >> 4;
    if (d->atoms == 1) o = (u64)unit * d->stride + (kk & 7) * 16 + (u64)(kk >> 3) * d->leading + (byte & 15);
    else o = unit % d->atoms * 16 + (u64)(unit / d->atoms) * d->leading + (kk & 7) * 16 * d->atoms + (u64)(kk >> 3) * d->stride + (byte & 15);
  }
  return swizzled(d->start + o, d->swizzle);
}

// unit_bits returns how many bits an element takes of the 16 bytes in shared memory that hold 16 or more: narrow ones
// come first in it, and padding follows, unless they are packed.
static int unit_bits(int type) { return type == MMA_E2M1 ? 4 : type == MMA_E2M3 || type == MMA_E3M2 ? 6 : 8 * element_size(type); }

// fetch reads rows x depth elements into out: row by row, or in panels of depth rows of eight. Types are coded as for
// mma; pairs: two e2m1 in each byte.
static int fetch(worker *k, warp *w, group *g, u32 lane, int by, const matrix *d, u32 first, u32 rows, u32 depth, int type, int pairs, int across,
                 int rank, int panels, f32 *out) {
  u32 size = (u32)element_size(type), each = pairs ? 32 : 16 / size, high = across ? each : 1, wide = across ? 1 : each, bits = (u32)unit_bits(type);
  for (u32 r = 0; r < rows; r += high)
    for (u32 q = 0; q < depth; q += wide) { // elements contiguous in 16 bytes
      u32 n = across && rows - r < each ? rows - r : each;
      u64 a = across ? offset(d, first + r, q, size, 1) : offset(d, first + r, q / each * 16, 1, 0);
      if (rank >= 0) a = with_rank(a, rank);
      u8 *p = at(k, w, g, SHARED, (int)lane, a, (int)(n * bits / 8), 0);
      if (p == NULL || !raced(k, w, g, p, n * bits / 8, 0, 0)) return 0;
      add_read(k, w, g, lane, p, n * bits / 8, by, by == BY_WGMMA_GROUP ? w->products : w->commits);
      for (u32 i = 0; i < n; i++) {
        u32 v = 0, row = across ? r + i : r, col = across ? q : q + i, b = i * bits;
        memcpy(&v, p + b / 8, bits >= 8 ? size : b / 8 + 2 <= n * bits / 8 ? 2 : 1);
        out[panels ? (row / 8 * depth + col) * 8 + row % 8 : row * depth + col] = element(v >> b % 8, type);
      }
    }
  return 1;
}

// wgmma_cell returns the register with element (i, j) of the warp's part of the result.
static inline u32 *wgmma_cell(u8 *const *base, const int32_t *pd, u32 half, u32 i, u32 j) {
  u32 hi = i >> 3;
  return U32(pd[half ? (j >> 3) * 2 + hi : (j >> 3) * 4 + 2 * hi + (j & 1)]) + (i & 7) * 4 + (j & 7) / 2;
}

// wgmma computes the warp's 16 rows of the warpgroup's 64. kind: types of a and b; imm: n, depth << 16, f16 result <<
// 24, a in registers << 25, across for a << 26 and b << 27, negate a << 28 and b << 29; a, b: descriptors; c:
// predicate; extra: results, then registers of a.
static int wgmma(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, const int32_t *extra) {
  u32 n = in->imm & 0xffff, depth = in->imm >> 16 & 0xff, half = in->imm >> 24 & 1;
  int ta = in->kind & 15, tb = in->kind >> 4, nd = (int)(half ? n / 4 : n / 2);
  f32 A[16 * 32], *B = malloc(n * depth * (sizeof *B + sizeof(s16)));
  s16 EA[16 * 32];
  if (B == NULL) abort();
  const int32_t *pd = extra + in->x;
  matrix db = described(U64(in->b)[0], 0);
  int ok = 1;
  begin_operation(w);
  w->multiplied++;
  if (in->imm >> 25 & 1) {
    int size = element_size(ta), each = 4 / size;
    for (int r = 0; r < 4; r++)
      for (int l = 0; l < 32; l++) {
        u32 v = U32(pd[nd + r])[l];
        for (int i = 0; i < each; i++)
          A[((l >> 2) + 8 * (r & 1)) * (int)depth + (l & 3) * each + i + (r >> 1) * 4 * each] = element(size == 4 ? v : v >> 8 * size * i, ta);
      }
  } else {
    matrix da = described(U64(in->a)[0], 0);
    ok = fetch(k, w, g, 0, BY_WGMMA_GROUP, &da, 16 * (w->id & 3), 16, depth, ta, 0, in->imm >> 26 & 1, -1, 0, A);
  }
  ok = ok && fetch(k, w, g, 0, BY_WGMMA_GROUP, &db, 0, n, depth, tb, 0, in->imm >> 27 & 1, -1, 1, B);
  if (ok) {
    if (in->imm >> 28 & 1) for (u32 i = 0; i < 16 * depth; i++) A[i] = -A[i];
    if (in->imm >> 29 & 1) for (u32 i = 0; i < n * depth; i++) B[i] = -B[i];
    int fresh = !(PRED(in->c) & 1), bits = ta >= MMA_E4M3 ? 13 : 25;
    factor fa = factor_a(A, EA, 16 * depth), fb = factor_b(B, (s16 *)(B + n * depth), n * depth);
    for (u32 i = 0; i < 16; i++)
      for (u32 j = 0; j < n; j += 8) {
        f32 sums[8];
        for (u32 q = 0; q < 8; q++) {
          u32 v = *wgmma_cell(base, pd, half, i, j + q);
          sums[q] = fresh ? 0 : half ? f16_f32((u16)(v >> 16 * (q & 1))) : bits_f32(v);
        }
        if (ta < MMA_S8) block_rows(&fa, i * depth, 1, &fb, j * depth, (int)depth, &sums, bits, bits == 13 ? 13 : half ? FOR_F16 : 23);
        for (u32 q = 0; q < 8; q++) {
          u32 *d = wgmma_cell(base, pd, half, i, j + q);
          if (ta >= MMA_S8) {
            if (fresh) *d = 0;
            for (u32 o = 0; o < depth; o++) *d += (u32)((s32)A[i * depth + o] * (s32)B[j * depth + o * 8 + q]); // wraps around
          } else if (half) {
            *d = (*d & 0xffffu << 16 * !(q & 1)) | f16_of(f32_bits(sums[q])) << 16 * (q & 1);
          } else {
            *d = nan32(sums[q]);
          }
        }
      }
  }
  free(B);
  return ok;
}

/* Tensor memory: 128 lanes x 512 columns of 32 bits per block */

static u32 *tmem(block *b) {
  if (b->tmem == NULL && (b->tmem = malloc(128 * 512 * 4)) == NULL) abort();
  return b->tmem;
}

// paired reports whether the cluster has both blocks of the pair of b.
static int paired(const block *b) { return ((int)b->rank | 1) < (int)b->t->nb; }

// allocated reports whether columns [column, column + n) are all allocated.
static int allocated(const block *b, u32 column, u32 n) {
  if (column + n > 512) return 0;
  for (u32 i = column; i < column + n; i++)
    if (!(b->columns >> i / 32 & 1)) return 0;
  return 1;
}

// cell sets row and col for register i (half h if pack) of lane l in a load or store of the given shape.
static void cell(int shape, int pack, u32 i, u32 l, u32 h, u32 split, u32 *row, u32 *col) {
  switch (shape) {
  case TC_32X32: *row = l, *col = i; break;
  case TC_16X64: *row = (l >> 2) + 8 * (l & 1), *col = 2 * i + (l >> 1 & 1); break;
  case TC_16X128: *row = (l >> 2) + 8 * (i & 1), *col = (l & 3) + (i >> 1) * 4; break;
  case TC_16X256: *row = (l >> 2) + 8 * (i >> 1 & 1), *col = (l & 3) * 2 + (i & 1) + (i >> 2) * 8; break;
  default: *row = l & 15, *col = i + (l >> 4) * split;
  }
  if (pack) *col = 2 * *col + h - (shape == TC_16X32X2 ? (l >> 4) * split : 0);
}

// tc_move executes tcgen05.ld and st. n: registers; imm: shape, pack << 8, split << 16; a: address; c: its offset.
static int tc_move(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, const int32_t *extra) {
  int shape = (int)in->imm & 255, pack = (int)in->imm >> 8 & 1;
  u32 split = (u32)(in->imm >> 16), address = U32(in->a)[0] + (u32)in->c, lane0 = address >> 16, column = address & 0xffff;
  u32 widest = 0, row, col, lanes = shape == TC_32X32 ? 32 : 16, mine = 32 * (w->id & 3);
  for (u32 l = 0; l < 32; l++) {
    cell(shape, pack, (u32)in->n - 1, l, 1, split, &row, &col);
    if (col + 1 > widest) widest = col + 1;
  }
  if (lane0 < mine || lane0 + lanes > mine + 32 || !allocated(w->b, column, widest)) {
    FAULT(k, w, g, 0, tmem_range, .address = address, .columns = (s32)widest, .write = in->kind == TC_ST);
    return 0;
  }
  for (u32 i = 0; i < (u32)in->n; i++)
    for (u32 l = 0; l < 32; l++)
      for (u32 h = 0; h < 1u + (u32)pack; h++) {
        cell(shape, pack, i, l, h, split, &row, &col);
        u32 *c = tmem(w->b) + (lane0 + row) * 512 + column + col, *reg = U32(extra[in->x + (int)i]) + l;
        if (in->kind == TC_ST) *c = pack ? *reg >> 16 * h & 0xffff : *reg;
        else *reg = pack ? (h ? (*reg & 0xffff) | *c << 16 : *c & 0xffff) : *c;
      }
  return 1;
}

// A tc_shape has the sizes of a tcgen05.mma: rows of a block, columns, depth, and how d is laid out in tensor memory.
typedef struct {
  u32 M, N, K, stored; // K: without what is left out of a sparse a, stored
  u32 each;            // rows of each block
  u32 parts;           // parts of the columns, each in 128 / parts lanes
  int first, two;      // rank of the first of two blocks
} tc_shape;

// tc_cell sets lane and column of element (r, j) of a block's rows.
static inline void tc_cell(const tc_shape *s, u32 r, u32 j, u32 *lane, u32 *col) {
  u32 wide = s->N / s->parts, part = j / wide;
  *lane = s->parts > 1 ? r + 128 / s->parts * part : s->each == 64 ? r / 16 * 32 + r % 16 : r;
  *col = j - part * wide;
}

// metadata puts the elements of a sparse a in their columns. t: tensor memory of the block; column: of the metadata.
// For types of 16 bits and more, lanes have 16 bits of a row and of that 8 below.
static void metadata(const tc_shape *s, const u32 *t, u32 column, int bits, const f32 *stored, f32 *to) {
  u32 chunk = bits == 32 ? 2 : bits == 4 ? 8 : 4, n = s->K / chunk;
  memset(to, 0, s->each * s->K * sizeof *to);
  for (u32 r = 0; r < s->each; r++)
    for (u32 q = 0; q < n; q++) {
      u32 lane = bits >= 16 ? r % 8 + 8 * (q / 4) + r / 16 * 16 : r, v;
      if (bits >= 16) v = t[lane * 512 + column] >> (16 * (r / 8 % 2) + 4 * (q % 4));
      else v = t[lane * 512 + column + q / 8] >> 4 * (q % 8);
      u32 one = v & 3, two = v >> 2 & 3;
      const f32 *from = stored + r * s->stored + q * chunk / 2;
      f32 *d = to + r * s->K + q * chunk;
      if (chunk == 2) d[one >> 1] = from[0];
      if (chunk == 4) d[one] = from[0], d[two] = from[1];
      if (chunk == 8) d[2 * one] = from[0], d[2 * one + 1] = from[1], d[2 * two] = from[2], d[2 * two + 1] = from[3];
    }
}

// tc_scales reads n scales of row or column i, which are in the 32 lanes of part p.
static inline void tc_scales(const u32 *t, u32 column, u32 p, u32 i, u32 byte, u32 n, int type, f64 *to) {
  u32 v = t[(32 * p + i % 32) * 512 + column + i / 32];
  for (u32 q = 0; q < n; q++) to[q] = narrow_f32(v >> 8 * ((byte + q) & 3) & (type == MMA_E4M3 ? 0x7f : 0xff), type);
}

// zero_columns sets those columns of b to 0 that a mask names. Each part of the columns begins in a span that is used, or
// in one that is not, of which a number of columns have passed.
static void zero_columns(const tc_shape *s, u64 mask, f32 *b) {
  u32 lengths[2] = {(mask >> 48 & 255) + 1, (mask >> 40 & 255) + 1}, wide = s->N / s->parts;
  for (u32 j = 0, zero = 0, passed = 0; j < s->N; j++) {
    if (j % wide == 0) zero = mask >> (32 + j / wide) & 1, passed = mask >> (8 * (j / wide)) & 255;
    for (u32 q = 0; q < s->K && zero; q++) b[(j / 8 * s->K + q) * 8 + j % 8] = 0;
    if (++passed >= lengths[zero]) zero ^= 1, passed = 0;
  }
}

// tc_multiply executes tcgen05.mma for one thread. kind: TCK_*; imm: TCM_*, number of scales << 4; a: address of d; b:
// descriptor or address of a; c: descriptor of b; n: CTAs; extra: instruction descriptor, predicate, whether a is in
// tensor memory, scale or -1, number of disable masks, offsets of d and a, places and offsets of the metadata and the
// scales of a and b, mask of zero columns or -1, disable masks.
static int tc_multiply(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 lane, const int32_t *extra) {
  const int32_t *x = extra + in->x;
  u32 id = U32(x[0])[lane], scales = in->imm >> 4 & 7;
  int fresh = !(PRED(x[1]) >> lane & 1), from_tmem = x[2], sparse = in->imm & TCM_SPARSE, pairs = in->kind == TCK_MXF4;
  u32 at_ = id >> 7 & 7, bt = id >> 10 & 7, result = scales ? 1 : id >> 4 & 3;
  static const u8 types[6][8] = {{MMA_F16, MMA_BF16, 255, 255, 255, 255, 255, 255},
                                 {255, 255, MMA_TF32, 255, 255, 255, 255, 255},
                                 {MMA_E4M3, MMA_E5M2, 255, MMA_E2M3, MMA_E3M2, MMA_E2M1, 255, 255},
                                 {MMA_U8, MMA_S8, 255, 255, 255, 255, 255, 255},
                                 {MMA_E4M3, MMA_E5M2, 255, MMA_E2M3, MMA_E3M2, MMA_E2M1, 255, 255},
                                 {255, MMA_E2M1, 255, 255, 255, 255, 255, 255}};
  int ta = types[in->kind][at_], tb = types[in->kind][bt], narrow_a = ta >= MMA_E2M3 && ta <= MMA_E2M1;
  tc_shape s = {.M = (id >> 24 & 31) << 4, .N = (id >> 17 & 63) << 3, .two = in->n == 2};
  int bits = pairs ? 4 : 8 * element_size(ta == 255 ? MMA_F16 : ta);
  s.stored = 256 / (u32)bits, s.K = s.stored << sparse, s.each = s.two ? s.M / 2 : s.M;
  s.parts = in->imm & TCM_WS ? 128 / (s.M ? s.M : 128) : s.two && s.M == 128 ? 2 : 1;
  int wrong = result != (in->kind == TCK_I8 ? 2 : 1) && !(result == 0 && (in->kind == TCK_F16 || in->kind == TCK_F8));
  u64 mask = x[13] < 0 ? 0 : U64(x[13])[lane];
  u32 skipped = mask >> 56 & 63; // columns of b
  // Saturating integers; 96 elements deep, or across, of 4 bits; narrow a in tensor memory; columns of b skipped that are
  // not rows in memory; rows of which no layout of metadata or scales is known.
  if (ta == 255 || tb == 255 || wrong || id >> 3 & 1 || !(id >> 2 & 1) != !sparse || (pairs && (id >> 31 || id >> 15 & 3)) ||
      (from_tmem && narrow_a && !pairs) || (skipped && id >> 16 & 1) || (sparse && s.each != 128 && !(in->imm & TCM_WS)) || (scales && s.each != 128 && s.parts == 1)) {
    FAULT(k, w, g, (int)lane, unsupported);
    return 0;
  }
  u32 d = U32(in->a)[lane] + (u32)x[5], shift = d >> 16 & 127;
  int whole = in->imm & TCM_WS ? s.M == 32 || s.M == 64 || s.M == 128 : s.two ? s.M == 256 || s.M == 128 : s.M == 128 || s.M == 64;
  u32 wide = s.N / s.parts;
  int placed = shift == 0 || (shift == 16 && s.each == 64 && s.parts == 1);
  if (!whole || !placed || s.N == 0 || s.N > 256 || wide & 7 || (s.two && !paired(w->b)) || !allocated(w->b, d & 0xffff, wide)) {
    FAULT(k, w, g, (int)lane, tmem_range, .address = d, .columns = (s32)wide, .write = true);
    return 0;
  }
  u32 columns_[3] = {0, 0, 0}; // of the metadata, and of the scales
  u32 used[3] = {bits >= 16 ? 1 : 2, (s.each + 31) / 32, (wide + 31) / 32};
  for (int i = 0; i < 3; i++) {
    if (x[7 + 2 * i] < 0) continue;
    u32 a = U32(x[7 + 2 * i])[lane] + (u32)x[8 + 2 * i];
    columns_[i] = (a & 0xffff) + (i == 0 ? id & 3 : 0);
    if (allocated(w->b, columns_[i], used[i])) continue;
    FAULT(k, w, g, (int)lane, tmem_range, .address = a, .columns = (s32)used[i]);
    return 0;
  }
  if (k->counting) counter(k, g)->operations += 2ull * s.M * s.N * s.K;
  s.first = s.two ? (int)(w->b->rank & ~1u) : (int)w->b->rank;
  u32 each_part = sparse ? s.parts : 1; // of the columns is multiplied by its own a, as the metadata are in its lanes
  u32 na = each_part * s.M * s.K, nb = s.N * s.K;
  f32 *A = malloc(na * (sizeof *A + sizeof(s16))), *B = malloc(nb * (sizeof *B + sizeof(s16)));
  f32 *kept = sparse ? malloc(s.each * s.stored * sizeof *kept) : NULL;
  if (A == NULL || B == NULL || (sparse && kept == NULL)) abort();
  int ok = 1;
  matrix db = described(U64(in->c)[lane], 1);
  begin_operation(w);
  for (int c = 0; c < (s.two ? 2 : 1) && ok; c++) {
    int rank = w->b->t->nb > 1 ? s.first + c : -1;
    block *of = rank < 0 ? w->b : &w->b->t->b[rank];
    u32 rows = s.two ? s.N / 2 : s.N;
    ok = fetch(k, w, g, lane, BY_COMMIT, &db, skipped, rows, s.K, tb, pairs, id >> 16 & 1, rank, 1, B + (u32)c * rows * s.K);
    f32 *to = A + (u32)c * s.each * s.K, *left = sparse ? kept : to;
    if (ok && !from_tmem) {
      matrix da = described(U64(in->b)[lane], 1);
      ok = fetch(k, w, g, lane, BY_COMMIT, &da, 0, s.each, s.stored, ta, pairs, id >> 15 & 1, rank, 0, left);
    } else if (ok) {
      u32 a = U32(in->b)[lane] + (u32)x[6], *t = tmem(of);
      if (!allocated(w->b, a & 0xffff, 8)) {
        FAULT(k, w, g, (int)lane, tmem_range, .address = a, .columns = 8);
        ok = 0;
        break;
      }
      for (u32 r = 0; r < s.each; r++) {
        u32 row = s.each == 64 && s.parts == 1 ? r / 16 * 32 + r % 16 + (a >> 16 & 16) : r;
        for (u32 q = 0; q < s.stored; q++) left[r * s.stored + q] = element(t[row * 512 + (a & 0xffff) + q * (u32)bits / 32] >> (q * (u32)bits & 31), ta);
      }
    }
    for (u32 i = 0; i < each_part && ok && sparse; i++)
      metadata(&s, tmem(of) + i * (128 / each_part) * 512, columns_[0], bits, kept, to + i * s.M * s.K);
  }
  free(kept);
  if (!ok) {
    free(A);
    free(B);
    return 0;
  }
  if (mask >> 39 & 1) zero_columns(&s, mask, B);
  if (id >> 13 & 1) for (u32 i = 0; i < na; i++) A[i] = -A[i];
  if (id >> 14 & 1) for (u32 i = 0; i < nb; i++) B[i] = -B[i];
  f32 scale = x[3] < 0 ? 1 : ldexpf(1, -(int)U32(x[3])[lane]), sums[8];
  factor fa = factor_a(A, (s16 *)(A + na), na), fb = factor_b(B, (s16 *)(B + nb), nb);
  f64 sa[256][4], sb[256][4];
  f32 *SA = NULL, *SB = NULL;
  int sf = id >> 23 & 1 ? MMA_UE8M0 : MMA_E4M3, loaded = -1; // the part of which block's scales of b are in sb
  u32 step = scales ? s.K / scales : 1;
  if (scales) {
    SA = malloc(na * (sizeof *SA + sizeof(s16))), SB = malloc(nb * (sizeof *SB + sizeof(s16)));
    if (SA == NULL || SB == NULL) abort();
    for (u32 i = 0; i < s.M; i++) {
      u32 r = i % s.each, at_lane, col;
      tc_cell(&s, r, 0, &at_lane, &col);
      tc_scales(tmem(w->b->t->nb > 1 ? &w->b->t->b[s.first + (int)(i / s.each)] : w->b), columns_[1], at_lane / 32, r, id >> 29 & 3, scales, sf, sa[i]);
      for (u32 q = 0; q < s.K; q++) SA[i * s.K + q] = (f32)(A[i * s.K + q] * sa[i][q / step]);
    }
    fa = factor_a(SA, (s16 *)(SA + na), na);
  }
  for (u32 i = 0; i < s.M; i++) {
    block *b = w->b->t->nb > 1 ? &w->b->t->b[s.first + (int)(i / s.each)] : w->b;
    u32 r = i % s.each, row, col;
    tc_cell(&s, r, 0, &row, &col);
    int part = (int)(i / s.each * 4 + row / 32);
    if (scales && part != loaded) {
      f64 fresh_[256][4] = {{0}};
      for (u32 j = 0; j < s.N; j++) { // each part of the columns is in its own lanes
        tc_cell(&s, r, j, &row, &col);
        tc_scales(tmem(b), columns_[2], row / 32, col, id >> 4 & 3, scales, sf, fresh_[j]);
      }
      if (loaded < 0 || memcmp(sb, fresh_, sizeof sb) != 0) {
        memcpy(sb, fresh_, sizeof sb);
        for (u32 e = 0; e < nb; e++) SB[e] = (f32)(B[e] * sb[e / 8 / s.K * 8 + e % 8][e / 8 % s.K / step]);
        fb = factor_b(SB, (s16 *)(SB + nb), nb);
      }
      loaded = part;
    }
    for (u32 j = 0; j < s.N; j += 8) {
      tc_cell(&s, r, j, &row, &col);
      if (row / 32 < (u32)x[4] && U32(x[14 + (int)(row / 32)])[lane] >> row % 32 & 1) continue;
      u32 from = ((each_part > 1 ? j / wide * s.M : 0) + i) * s.K;
      u32 *to = tmem(b) + (row + shift) * 512 + (d & 0xffff) + col;
      if (in->kind == TCK_I8) {
        for (u32 q = 0; q < 8; q++) {
          s32 sum = fresh ? 0 : (s32)to[q];
          for (u32 o = 0; o < s.K; o++) sum += (s32)A[from + o] * (s32)B[j * s.K + o * 8 + q];
          to[q] = (u32)sum;
        }
        continue;
      }
      for (u32 q = 0; q < 8; q++) sums[q] = fresh ? 0 : (result ? bits_f32(to[q]) : f16_f32((u16)to[q])) * scale;
      if (!scales || (fa.plain && fb.plain)) {
        block_rows(&fa, from, 1, &fb, j * s.K, (int)s.K, &sums, 25, result ? 23 : FOR_F16);
      } else {
        for (u32 q = 0; q < 8; q++) {
          scaling z = {.each = (int)step};
          for (u32 o = 0; o < scales; o++) z.of[o] = sa[i][o] * sb[j + q][o];
          sums[q] = block_sum(A + i * s.K, B + j * s.K + q, 8, (int)s.K, sums[q], 25, 23, &z);
        }
      }
      for (u32 q = 0; q < 8; q++) to[q] = result ? nan32(sums[q]) : f16_of(nan32(sums[q]));
    }
  }
  free(A);
  free(B);
  free(SA);
  free(SB);
  return 1;
}

// tcgen05 executes the other instructions of tcgen05.
static int tcgen05(worker *k, warp *w, group *g, const vg_inst *in, u8 *const *base, u32 m, const int32_t *extra) {
  block *b = w->b;
  switch (in->kind) {
  case TC_ALLOC: { // a: where to store the address; c: flags of a; imm: offset of a; b: columns
    u32 n = U32(in->b)[0], units = n / 32, at_ = 0;
    if (n < 32 || n > 512 || n & (n - 1)) {
      FAULT(k, w, g, 0, tmem_alloc, .columns = (s32)n);
      return 0;
    }
    u32 bits = units == 16 ? 0xffff : (1u << units) - 1;
    while (at_ < 16 && b->columns >> at_ & bits) at_ += units;
    if (at_ >= 16) {
      FAULT(k, w, g, 0, tmem_alloc, .columns = (s32)n);
      return 0;
    }
    b->columns |= bits << at_;
    u8 *p = at(k, w, g, SHARED, 0, shared_address(base, in->a, in->c & M_ADDR32, (int32_t)in->imm, 0), 4, 1);
    if (p == NULL) return 0;
    *(u32 *)p = at_ * 32;
    return 1;
  }
  case TC_DEALLOC: {
    u32 a = U32(in->a)[0], n = U32(in->b)[0];
    if (a & 31 || n < 32 || !allocated(b, a, n)) {
      FAULT(k, w, g, 0, tmem_dealloc, .address = a, .columns = (s32)n);
      return 0;
    }
    b->columns &= ~((n == 512 ? 0xffffu : (1u << n / 32) - 1) << a / 32);
    return 1;
  }
  case TC_COMMIT: // a: mbarrier; b: CTA mask or -1
    EACH(m) {
      u64 bar = shared_address(base, in->a, in->c & M_ADDR32, (int32_t)in->imm, l);
      u32 mask = in->b >= 0 ? U32(in->b)[l] & 0xffff : 0;
      for (int c = -1; c < 16; c++) {
        if (c < 0 ? mask != 0 : !(mask >> c & 1)) continue;
        int live;
        u64 to = c < 0 ? bar : with_rank(bar, c), *p = barrier_at(k, w, g, SHARED, l, to, MB_ARRIVE, &live);
        if (p == NULL) return 0;
        if ((*p & 0xfffff) == 0) {
          if (!live) break; // a consequence
          FAULT(k, w, g, (int)l, mbarrier_arrivals, .arrivals = 1);
          return 0;
        }
        publish_at(w, 1u << l, p);
        publish_reads(w, p);
        ends_with(w, BY_COMMIT, to, *p);
        *p = mb_next_phase(*p - 1);
      }
      w->commits++;
    }
    return 1;
  case TC_SHIFT: // a: address, c: its offset; eight columns of all rows but the last go to the next row
    EACH(m) {
      u32 a = U32(in->a)[l] + (u32)in->c, column = a & 0xffff;
      if (a >> 16 & 31 || !allocated(b, column, 8) || (in->n == 2 && !paired(b))) {
        FAULT(k, w, g, (int)l, tmem_range, .address = a, .columns = 8, .write = true);
        return 0;
      }
      begin_operation(w);
      for (int c = 0; c < in->n; c++) {
        u32 *t = tmem(in->n == 2 ? &b->t->b[(int)(b->rank & ~1u) + c] : b);
        for (u32 r = 127; r > (a >> 16); r--) memcpy(t + r * 512 + column, t + (r - 1) * 512 + column, 32);
      }
    }
    return 1;
  case TC_CP: // a: address; b: descriptor; n: CTAs; imm: rows, bytes << 16, variant << 32 (2: 02_13, 3: 01_23,
                // 4: a row for each 32 lanes, at the address's lane)
    EACH(m) {
      u32 to = U32(in->a)[l] + (u32)in->c, rows = in->imm & 0xffff, bytes = in->imm >> 16 & 0xffff, how = (u32)(in->imm >> 32);
      matrix d = described(U64(in->b)[l], 1);
      begin_operation(w);
      if (!allocated(b, to & 0xffff, bytes / 4) || (in->n == 2 && !paired(b)) || (how == 4 && to >> 21)) {
        FAULT(k, w, g, (int)l, tmem_range, .address = to, .columns = (s32)bytes / 4, .write = true);
        return 0;
      }
      for (int c = 0; c < in->n; c++) {
        block *dest = in->n == 2 ? &b->t->b[(int)(b->rank & ~1u) + c] : b;
        for (u32 r = 0; r < rows; r++)
          for (u32 q = 0; q < bytes; q += 4) {
            u64 a = offset(&d, r, q, 1, 0);
            if (in->n == 2) a = with_rank(a, (int)dest->rank);
            u8 *s = at(k, w, g, SHARED, (int)l, a, 4, 0);
            if (s == NULL || !raced(k, w, g, s, 4, 0, 0)) return 0;
            if (q % 16 == 0) add_read(k, w, g, l, s, 16, BY_COMMIT, w->commits);
            for (u32 copy_ = 0; copy_ < (how == 4 ? 1 : 128 / rows); copy_++) {
              u32 row = how == 4 ? (to >> 16) + 32 * r : how == 3 ? (r / 32) * 64 + r % 32 + 32 * copy_ : r + rows * copy_;
              tmem(dest)[row * 512 + (to & 0xffff) + q / 4] = *(u32 *)s;
            }
          }
      }
    }
    return 1;
  }
  return 1;
}
