// Matrix products with operands in registers, and loads and stores of their fragments.
#pragma once
#include "memory.h"

static inline void transpose16(u16 (*v)[8], u16 (*t)[8]) {
#if VG_WIDE
  __m128i x[8], y[8];
  for (int i = 0; i < 8; i++) x[i] = _mm_loadu_si128((const __m128i *)v[i]);
  for (int turns = 0; turns < 3; turns++) { // each rotates the index (row, column) by one bit
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
  int write = in->op == E_stmatrix, tall = !write && in->kind == MATRIX_BYTES; // 16 rows, to two registers
  u32 m = in->n == 1 ? 0xff : in->n == 2 ? 0xffff : ~0u;
  if (write) effect(k);
  if (places(k, w, g, in, base, in->c & M_SIGNED ? GENERIC : SHARED, m, 16, write, row) == INVALID || k->state->stop) return 0;
  if (k->counting) count_access(k, w, g, SHARED, row, 0, m, 16, COUNT_ROWS);
  if (k->reading && write) EACH(m) overwrite(k, w, g, (int)l, row[l], 16);
  if (k->state->races) EACH(m) touch(k, w, g, ANY_LANE, row[l], 16, write ? A_WRITE : 0, 0);
  if (k->state->stop) return 0;
  if (tall) { // lane l has bytes l / 4 of rows 4 * (l % 4) to the next three, then bytes 8 more
    for (int j = 0; j < in->n; j++)
      for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) P(extra[in->x + j])[4 * l + i] = row[16 * (j / 2) + 4 * (l & 3) + i][(l >> 2) + 8 * (j & 1)];
    return 1;
  }
  for (int j = 0; j < in->n; j++) {
    u8 *d = P(extra[in->x + j]);
    u16 v[8][8], t[8][8];
    for (int r = 0; r < 8; r++) {
      const u8 *from = row[8 * j + r];
      u64 packed_[2] = {0, 0};
      u8 *to = (u8 *)v[r];
      switch (in->kind) {
      case MATRIX_BYTES: // bytes 0 and 2 of lanes r / 2 and every fourth are in even rows
        for (int i = 0; i < 16; i++) to[i] = d[4 * (4 * (i & 7) + r / 2) + (r & 1) + 2 * (i >> 3)];
        break;
      case MATRIX_4_BITS: case MATRIX_6_BITS: {
        int bits = in->kind == MATRIX_4_BITS ? 4 : 6;
        memcpy(packed_, from, bits == 4 ? 8 : 12);
        for (int i = 0; i < 16; i++) {
          int o = bits * i;
          u64 w_ = o >= 64 ? packed_[1] >> (o - 64) : packed_[0] >> o | (o > 58 ? packed_[1] << (64 - o) : 0);
          to[i] = (u8)(w_ & ((1u << bits) - 1));
        }
        break;
      }
      default: memcpy(to, write ? d + 16 * r : from, 16);
      }
    }
    if (in->kind == MATRIX_COLUMNS) {
      transpose16(v, t);
      memcpy(v, t, sizeof v);
    }
    for (int r = 0; r < 8; r++) memcpy(write ? row[8 * j + r] : d + 16 * r, v[r], 16);
  }
  return 1;
}

static inline void widen16(const u32 *r, f32 *out, int bf16) { // converts both halves of 32 registers, in order
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

// exponent returns ilogbf(x), mostly without a call.
static inline int exponent(f32 x) {
  int e = (int)(f32_bits(x) >> 23 & 255);
  return e ? e - 127 : ilogbf(x);
}

// A scaling holds a factor of the products of each `each` terms; each is 0 if there is none.
typedef struct {
  f64 of[8];
  int each;
} scaling;

static const scaling UNSCALED = {{0}, 0};

// block_sum returns c plus the products a[i] * b[i * stride], added as Hopper's tensor cores do (found by comparison
// with an H200). Each term is truncated to `keep` bits below the largest exponent of a term; a product's exponent is
// the sum of its factors'. The sum is truncated to `final` bits below its own exponent, or for a result of float16, which
// is rounded once, to 23 bits, the last of which is set if bits were lost (FOR_F16).
enum { FOR_F16 = -1 };
static f32 block_sum(const f32 *a, const f32 *b, int stride, int n, f32 c, int keep, int final, const scaling *s) {
  f64 plain = c;
  int top = c == 0 ? -10000 : exponent(c);
  for (int i = 0; i < n; i++) {
    f32 x = a[i], y = b[i * stride];
    f64 z = s->each ? s->of[i / s->each] : 1;
    plain += (f64)x * y * z;
    if (x == 0 || y == 0 || z == 0 || x != x || y != y || isinf(x) || isinf(y)) continue;
    int e = exponent(x) + exponent(y) + (z == 1 ? 0 : ilogb(z));
    if (e > top) top = e;
  }
  if (plain != plain || isinf(plain)) return (f32)plain;
  if (top == -10000) return (f32)plain;
  f64 scale = ldexp(1, keep - top); // all scaled terms are normal numbers
  s64 sum = (s64)(c * scale);
  for (int i = 0; i < n; i++) sum += (s64)((f64)a[i] * b[i * stride] * (s->each ? s->of[i / s->each] : 1) * scale);
  if (sum == 0) return 0;
  int e = 63 - __builtin_clzll((u64)(sum < 0 ? -sum : sum)), least = e + top - keep < -126 ? -149 + 23 : e + top - keep;
  int drop = least - (final == FOR_F16 ? 23 : final) - (top - keep);
  if (drop > 62) sum = 0;
  else if (drop > 0) {
    s64 all = sum < 0 ? -sum : sum, left = all >> drop << drop;
    if (final == FOR_F16 && left != all) left |= 1ll << drop;
    sum = sum < 0 ? -left : left;
  }
  f64 r = (f64)sum / scale;
  return fabs(r) > FORMAT_F32.max ? (f32)copysign(INFINITY, r) : (f32)r;
}

// A factor of a matrix product: rows of a with depth numbers each, or panels of b, each depth rows of eight columns.
// depth is even.
typedef struct {
  const f32 *v;
  const s16 *e; // exponents, for b with each two rows interleaved; a product's exponent is the sum of two
  int plain;    // no infinity, NaN or subnormal
} factor;

enum { EXPONENT_OF_0 = -0x2000, ONLY_ZEROS = -0x1000 }; // exponents below ONLY_ZEROS belong to products that are 0

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

// cut8 clears the dropped bits of the sums of block_sum8.
static inline __m256d cut8(__m256d v, s64 dropped, int final) {
  __m256i x = _mm256_castpd_si256(v), mask = _mm256_set1_epi64x(dropped), left = _mm256_andnot_si256(mask, x);
  if (final == FOR_F16) {
    __m256i exact = _mm256_cmpeq_epi64(_mm256_and_si256(x, mask), _mm256_setzero_si256());
    left = _mm256_or_si256(left, _mm256_andnot_si256(exact, _mm256_set1_epi64x(dropped + 1)));
  }
  return _mm256_castsi256_pd(left);
}

// block_sum8 is block_sum for eight columns of b. It returns the columns that need block_sum, and does not change their
// c.
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
  // If all products and c are 0, any exponent will do.
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
    for (int o = q; o < (n < q + 8 ? n : q + 8); o++) // eight terms of at most 27 bits, and c, fit
      part = _mm256_add_epi32(part, _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_mul_ps(_mm256_broadcast_ss(a + o), _mm256_loadu_ps(b + 8 * o)), scale)));
    lo = _mm256_add_pd(lo, _mm256_cvtepi32_pd(_mm256_castsi256_si128(part)));
    hi = _mm256_add_pd(hi, _mm256_cvtepi32_pd(_mm256_extracti128_si256(part, 1)));
    part = _mm256_setzero_si256();
  }
  __m256 unit = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(top, _mm256_set1_epi32(keep)), 23));
  s64 dropped = (1ll << (52 - (final == FOR_F16 ? 23 : final))) - 1;
  lo = cut8(_mm256_mul_pd(lo, _mm256_cvtps_pd(_mm256_castps256_ps128(unit))), dropped, final);
  hi = cut8(_mm256_mul_pd(hi, _mm256_cvtps_pd(_mm256_extractf128_ps(unit, 1))), dropped, final);
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

// block_rows adds to c the products, n deep, of rows of a from index i on and a panel of b from index j on.
static void block_rows(const factor *a, u32 i, int rows, const factor *b, u32 j, int n, f32 (*c)[8], int keep, int final) {
  for (int r = 0; r < rows; r++, i += (u32)n) {
    u32 slow = 255;
#if VG_WIDE
    const f32 *x = a->v + i, *y = b->v + j;
    if (a->plain && b->plain) // the constant lets the compiler unroll the loops for the usual depth
      slow = n == 16 ? block_sum8(x, a->e + i, y, b->e + j, 16, c[r], keep, final) : block_sum8(x, a->e + i, y, b->e + j, n, c[r], keep, final);
#endif
    EACH(slow) c[r][l] = block_sum(a->v + i, b->v + j + l, 8, n, c[r][l], keep, final, &UNSCALED);
  }
}

#if VG_WIDE
static inline __m256 widen8(__m128i x, int bf16) {
  return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)) : _mm256_cvtph_ps(x);
}

// unpack16_b unpacks a register of b to eight rows of a panel: lane l has column l / 4 of rows 2 * (l % 4) and the
// next.
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

// half_of returns the position of element i in the order of 8-bit products of depth 16 n: the first n of every 2 n elements
// first. n: 2, or 4 if a is sparse.
static int half_of(int i, int n) { return (i & n) * 8 + i / (2 * n) * n + (i & (n - 1)); }

// packed returns integer i of a packed operand; type is MMA_S8 or a later one.
static s32 packed(u32 v, int i, int type) {
  switch (type) {
  case MMA_S8: return (s8)(v >> 8 * i);
  case MMA_U8: return (u8)(v >> 8 * i);
  case MMA_S4: return (s32)(v << (28 - 4 * i)) >> 28;
  case MMA_U4: return v >> 4 * i & 15;
  }
  return v >> i & 1;
}

// Where the elements of a sparse matrix belong: the column of each one that is stored.
typedef u8 columns[16][64];

// chosen reads the metadata of a sparse a of the given depth, with elements of bits, and its selector. Four bits choose
// two elements of four, one of two (32 bits), or two pairs of eight (4 bits). Registers of 16 bits for each row have
// the row and that 8 below; those of more bits are divided among two lanes, or all four, of each group.
static void chosen(const u32 *metadata, int selector, int depth, int bits, columns where) {
  int chunk = bits == 32 ? 2 : bits == 4 ? 8 : 4, n = depth / chunk, lanes = n / 4 > 1 ? n / 4 : 1, first = lanes == 4 ? 0 : lanes * selector;
  for (int i = 0; i < 16; i++)
    for (int q = 0; q < n; q++) {
      u32 v = metadata[4 * (i & 7) + (bits >= 16 ? first + q / 4 : first + (i >> 3) + 2 * (q / 8)) % 4];
      v >>= bits >= 16 ? 16 * (i >> 3) + 4 * (q % 4) : 4 * (q % 8);
      u32 one = v & 3, two = v >> 2 & 3;
      u8 *to = where[i] + q * chunk / 2;
      if (chunk == 2) to[0] = (u8)(2 * q + (int)(one >> 1));
      if (chunk == 4) to[0] = (u8)(4 * q + (int)one), to[1] = (u8)(4 * q + (int)two);
      for (int o = 0; o < 4 && chunk == 8; o++) to[o] = (u8)(8 * q + 2 * (int)(o < 2 ? one : two) + (o & 1));
    }
}

// multiply_integers is mma of integers. imm: MULTIPLY_*.
static void multiply_integers(const vg_inst *in, u8 *const *base, const int32_t *extra) {
  int K = (int)(in->imm & 0xfff), M = in->imm & MULTIPLY_ROWS_8 ? 8 : 16, ta = in->kind & 15, tb = in->kind >> 4;
  int E = ta <= MMA_U8 ? 4 : ta <= MMA_U4 ? 8 : 32, sparse = in->imm & MULTIPLY_SPARSE ? 1 : 0;
  int na = M * (K >> sparse) / 32 / E, nb = 8 * K / 32 / E, nd = M / 4;
  const int32_t *pd = extra + in->x, *pa = pd + nd, *pb = pa + na, *pc = pb + nb;
  s8 A[16][256], B[256][8];
  s64 D[16][8];
  columns where;
  if (sparse) {
    memset(A, 0, sizeof A);
    chosen(U32(pc[nd]), pc[nd + 1], K, 32 / E, where);
  }
  for (int r = 0; r < na; r++)
    for (int l = 0; l < 32; l++)
      for (int i = 0; i < E; i++) {
        int row = (l >> 2) + (M == 16 ? 8 * (r & 1) : 0), col = (l & 3) * E + i + (M == 16 ? r >> 1 : r) * 4 * E;
        s32 v = packed(U32(pa[r])[l], i, ta);
        A[row][sparse ? where[row][col] : col] = (s8)v;
      }
  for (int r = 0; r < nb; r++)
    for (int l = 0; l < 32; l++)
      for (int i = 0; i < E; i++) B[(l & 3) * E + i + r * 4 * E][l >> 2] = (s8)packed(U32(pb[r])[l], i, tb);
  for (int r = 0; r < nd; r++)
    for (int l = 0; l < 32; l++) D[(l >> 2) + 8 * (r >> 1)][(l & 3) * 2 + (r & 1)] = (s32)U32(pc[r])[l];
  int bits = ta == MMA_B1, both = in->imm & MULTIPLY_AND ? 1 : 0;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < 8; j++) {
      s64 sum = D[i][j];
      for (int q = 0; q < K; q++) {
        s32 x = ta == MMA_U8 ? (u8)A[i][q] : A[i][q], y = tb == MMA_U8 ? (u8)B[q][j] : B[q][j];
        sum += bits ? (both ? x & y : x ^ y) : x * y;
      }
      D[i][j] = in->imm & MULTIPLY_SATURATES ? sat32(sum) : sum;
    }
  for (int r = 0; r < nd; r++)
    for (int l = 0; l < 32; l++) U32(pd[r])[l] = (u32)D[(l >> 2) + 8 * (r >> 1)][(l & 3) * 2 + (r & 1)];
}

// side_by_side interleaves the registers of a result's even and odd columns; apart separates them.
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

// scale_bytes reads n scales of each of 16 rows or 8 columns. x: registers, byte, thread. Two lanes of each group, or
// one, have a row's scales.
static void scale_bytes(const vg_inst *in, u8 *const *base, const int32_t *x, int rows, int n, f64 (*to)[4]) {
  const u32 *v = U32(x[0]);
  u32 byte = U32(x[1])[0] & 3, thread = U32(x[2])[0] & 3;
  for (int i = 0; i < rows; i++) {
    u32 lane = rows == 8 ? 4 * (u32)i + thread : 4 * (u32)(i & 7) + 2 * (thread & 1) + (u32)(i >> 3);
    for (int q = 0; q < n; q++)
      to[i][q] = narrow_f32(v[lane] >> 8 * ((byte + (u32)q) & 3) & (in->imm & MULTIPLY_E4M3_SCALES ? 0x7f : 0xff),
                            in->imm & MULTIPLY_E4M3_SCALES ? MMA_E4M3 : MMA_UE8M0);
  }
}

// scaled_rows multiplies rows of a, and columns of a panel of b, by their scales, and adds the products. Products that leave
// the range of normal float32 numbers on the way are computed with both scales at once.
static void scaled_rows(f32 *A, s16 *EA, int rows, f32 (*B)[8], s16 *EB, int K, int n, f64 (*sa)[4], f64 (*sb)[4], f32 (*D)[8]) {
  int each = K / n;
  f32 a[16 * 128], b[128][8];
  for (int i = 0; i < rows; i++)
    for (int q = 0; q < K; q++) a[i * K + q] = (f32)(A[i * K + q] * sa[i][q / each]);
  for (int q = 0; q < K; q++)
    for (int j = 0; j < 8; j++) b[q][j] = (f32)(B[q][j] * sb[j][q / each]);
  factor fa = factor_a(a, EA, (u32)(rows * K)), fb = factor_b(b[0], EB, (u32)(8 * K));
  if (fa.plain && fb.plain) {
    block_rows(&fa, 0, rows, &fb, 0, K, D, 25, 23);
    return;
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < 8; j++) {
      scaling s = {.each = each};
      for (int q = 0; q < n; q++) s.of[q] = sa[i][q] * sb[j][q];
      D[i][j] = block_sum(A + i * K, B[0] + j, 8, K, D[i][j], 25, 23, &s);
    }
}

// mma multiplies. kind: element types of a and b; imm: MULTIPLY_*; extra: d, a, b, c, then the metadata of a sparse a
// and its selector's value, then each the scales of a and b, the byte and the thread.
static void mma(const vg_inst *in, u8 *const *base, const int32_t *extra) {
  int K = (int)(in->imm & 0xfff), at_ = in->kind & 15, bt = in->kind >> 4, half_acc = in->imm & MULTIPLY_HALF ? 1 : 0;
  int bits = at_ <= MMA_BF16 ? 16 : at_ == MMA_TF32 ? 32 : in->imm & MULTIPLY_PACKED ? 4 : 8, E = 32 / bits;
  int sparse = in->imm & MULTIPLY_SPARSE ? 1 : 0, stored = K >> sparse;
  int na = 16 * stored * bits / 1024, nb = 8 * K * bits / 1024, nd = half_acc ? 2 : 4;
  const int32_t *pd = extra + in->x, *pa = pd + nd, *pb = pa + na, *pc = pb + nb, *more = pc + nd;
  if (at_ >= MMA_S8) {
    multiply_integers(in, base, extra);
    return;
  }
  f32 A[16 * 128], B[128][8], D[16][8], wide[256];
  s16 EA[16 * 128], EB[128 * 8];
  columns where;
  if (sparse) {
    memset(A, 0, sizeof A);
    chosen(U32(more[0]), more[1], K, bits, where);
    more += 2;
  }
  // Two steps of half the depth, whose sum is added to D; of each 2 n elements the first has n.
  int n = 2 << sparse, halves = E == 4 && !(in->imm & MULTIPLY_KIND) && K == 16 * n;
  for (int r = 0; r < na + nb; r++) {
    const u32 *s = U32(r < na ? pa[r] : pb[r - na]);
    int t = r < na ? at_ : bt;
#if VG_WIDE
    if (t <= MMA_BF16 && !sparse) {
      if (r >= na) unpack16_b(s, B[8 * (r - na)], t == MMA_BF16);
      for (int i = 0; i < 8 && r < na; i++)
        _mm256_storeu_ps(A + (8 * (r & 1) + i) * K + (r >> 1) * 8, widen8(_mm_loadu_si128((const __m128i *)s + i), t == MMA_BF16));
      continue;
    }
#endif
    if (t <= MMA_BF16) widen16(s, wide, t == MMA_BF16);
    else if (t == MMA_TF32) for (int l = 0; l < 32; l++) wide[l] = bits_f32(s[l] & 0xffffe000u);
    else if (E == 8) for (int l = 0; l < 256; l++) wide[l] = narrow_f32(s[l >> 3] >> 4 * (l & 7), t);
    else for (int l = 0; l < 128; l++) wide[l] = narrow_f32(s[l >> 2] >> (8 * (l & 3) + (t == MMA_E2M1 ? 2 : 0)), t); // the middle of a byte
    if (r < na) {
      int row = 8 * (r & 1), col = (r >> 1) * 4 * E;
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4 * E; j++) {
          int at = sparse ? where[row + i][col + j] : col + j;
          A[(row + i) * K + (halves ? half_of(at, n) : at)] = wide[i * 4 * E + j];
        }
    } else {
      int first = (r - na) * 4 * E;
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4 * E; j++) B[halves ? half_of(first + j, n) : first + j][i] = wide[i * 4 * E + j];
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
  int scales = (int)(in->imm >> 20 & 7);
  if (scales) {
    f64 sa[16][4], sb[8][4];
    scale_bytes(in, base, more, 16, scales, sa);
    scale_bytes(in, base, more + 3, 8, scales, sb);
    scaled_rows(A, EA, 16, B, EB, K, scales, sa, sb, D);
  } else {
    factor a = factor_a(A, EA, (u32)(16 * K)), b = factor_b(B[0], EB, (u32)(8 * K));
    if (!halves) block_rows(&a, 0, 16, &b, 0, K, D, 25, half_acc ? FOR_F16 : 23);
    for (u32 i = 0; i < 16 && halves; i++) {
      f32 both[1][8] = {{0}};
      block_rows(&a, i * (u32)K, 1, &b, 0, K / 2, both, 25, 23);
      block_rows(&a, i * (u32)K + (u32)K / 2, 1, &b, 4 * (u32)K, K / 2, both, 25, 23);
      for (int j = 0; j < 8; j++) D[i][j] += both[0][j];
    }
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

// Registers of mma_f64: a has m/8 * k/4, b k/4, c and d m/8 * 2.
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
