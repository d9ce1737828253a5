// Arithmetic of one lane. Floats are passed as their bits. NaN results are canonical, as in PTX.
#pragma once
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;
typedef float f32;
typedef double f64;

// mixed returns the shadow of a value computed from two others; see undefined.go.
static inline u32 mixed(u32 a, u32 b, u32 at) {
  if (a && a != ~0u) return a;
  if (b && b != ~0u) return b;
  return a | b ? at : 0;
}

static inline f32 bits_f32(u32 b) { f32 f; memcpy(&f, &b, 4); return f; }
static inline u32 f32_bits(f32 f) { u32 b; memcpy(&b, &f, 4); return b; }
static inline f64 bits_f64(u64 b) { f64 f; memcpy(&f, &b, 8); return f; }
static inline u64 bits64(f64 f) { u64 b; memcpy(&b, &f, 8); return b; }
static inline u32 nan32(f32 f) { return f != f ? 0x7fffffffu : f32_bits(f); }
// The NaN result of a float64 operation is its first NaN operand, else the processor's default NaN.
static inline int is_nan64(u64 b) { return (b & 0x7fffffffffffffffull) > 0x7ff0000000000000ull; }
static inline u64 quiet64(u64 b) { return is_nan64(b) ? b | 0x0008000000000000ull : b; }
static inline u64 nan_of(f64 r, f64 a, f64 b, f64 c) {
  if (r == r) return bits64(r);
  return a != a ? quiet64(bits64(a)) : b != b ? quiet64(bits64(b)) : c != c ? quiet64(bits64(c)) : 0xfff8000000000000ull;
}
static inline u64 nan64(f64 f) { return f != f ? 0x7ff8000000000000ull : bits64(f); }
static inline int is_nan(u32 b) { return (b & 0x7fffffffu) > 0x7f800000u; }
static inline u32 ftz(u32 b) { return (b & 0x7f800000u) == 0 ? b & 0x80000000u : b; }
#define FMA32(a, b, c) __builtin_fmaf(a, b, c)
#define FMA64(a, b, c) __builtin_fma(a, b, c)

static inline f64 ftz64(f64 a) { return fabs(a) < 0x1p-1022 ? copysign(0, a) : a; }
static inline u64 gross64(f64 r, f64 a) { // keeps only the high word
  if (r != r) return 0x7fffffff00000000ull;
  (void)a;
  return bits64(ftz64(r)) & ~0xffffffffull;
}
static inline u32 half_sign(u32 h, u32 inf, int neg) { return (h & 0x7fff) > inf ? 0x7fff : neg ? (h ^ 0x8000) & 0xffff : h & 0x7fff; }
static inline u32 signed2(u32 a, u32 s, u32 inf) { // applies s to the signs of both halves, except NaN
  return a | (s & ((a & 0x7fff) > inf ? 0 : 0x8000u)) | (s & ((a >> 16 & 0x7fff) > inf ? 0 : 0x80000000u));
}
// As in hardware, the angle is first converted to turns in float32.
static inline f32 turn_part(f32 a) { f32 t = a * 0.15915494f; return t - rintf(t); }
static inline f32 sin_approx(f32 a) { return isinf(a) ? NAN : (f32)sin(6.283185307179586 * (f64)turn_part(a)); }
static inline f32 cos_approx(f32 a) { return isinf(a) ? NAN : (f32)cos(6.283185307179586 * (f64)turn_part(a)); }
static inline u32 div_approx(f32 a, f32 b) {
  if (fabsf(b) > 0x1p126f && !isinf(b)) return nan32(a * copysignf(0, b));
  return nan32(a / b);
}

static inline u32 brev32(u32 v) {
  v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
  v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
  v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(v);
}
static inline u32 bfind_s(s64 a, int top) {
  u64 v = (u64)(a < 0 ? ~a : a);
  (void)top;
  return v ? 63u - (u32)__builtin_clzll(v) : ~0u;
}
static inline s32 sat32(s64 v) { return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (s32)v; }
static inline u64 bfe_u(u64 a, u32 b, u32 c, int width) {
  u32 at = b & 255, len = c & 255;
  if (at >= (u32)width || len == 0) return 0;
  u64 v = a >> at;
  return len >= 64 ? v : v & ((1ull << len) - 1);
}
static inline u64 bfe_s(u64 a, u32 b, u32 c, int width) {
  u32 at = b & 255, len = c & 255, top = (u32)width - 1;
  if (len == 0) return 0;
  u32 sign_at = at + len - 1 < top ? at + len - 1 : top;
  u64 sign = a >> sign_at & 1;
  u64 v = at > top ? 0 : a >> at;
  u32 have = at > top ? 0 : top - at + 1;
  if (have > len) have = len;
  if (have < 64) {
    v &= (1ull << have) - 1;
    if (sign) v |= ~0ull << have;
  }
  return v;
}
static inline u64 bfi(u64 a, u64 b, u32 c, u32 d, int width) {
  u32 at = c & 255, len = d & 255;
  if (len == 0 || at >= (u32)width) return b;
  u64 mask = (len >= 64 ? ~0ull : (1ull << len) - 1) << at;
  return (b & ~mask) | (a << at & mask);
}
static inline u32 bmsk(u32 at, u32 len) {
  if (at > 31) return 0;
  return (u32)((len >= 32 ? 0xffffffffull : (1ull << len) - 1) << at);
}
// szext extends the lowest b bits of a. kind: SZEXT_*.
static inline u32 szext(u32 a, u32 b, int kind) {
  u32 n = kind & SZEXT_WRAPS ? b & 31 : b > 32 ? 32 : b;
  if (n == 0) return 0;
  return kind & SZEXT_SIGNED ? (u32)((s32)(a << (32 - n)) >> (32 - n)) : a << (32 - n) >> (32 - n);
}
// fns finds the n-th set bit of mask from base on, upwards if n is positive, downwards if it is negative.
static inline u32 fns(u32 mask, u32 base, s32 n) {
  if (n == 0) return base < 32 && mask >> base & 1 ? base : ~0u;
  s32 left = n > 0 ? n : -n;
  for (s64 i = base; i >= 0 && i < 32; i += n > 0 ? 1 : -1)
    if (mask >> i & 1 && --left == 0) return (u32)i;
  return ~0u;
}
// sat_pack converts a and b to narrow integers with saturation and appends a, then b, to c shifted left. kind: bits of
// the result type, and PACK_*.
static inline u32 sat_pack(s32 a, s32 b, u32 c, int kind) {
  int bits = kind & 31;
  s64 lo = kind & PACK_SIGNED ? -(1ll << (bits - 1)) : 0, hi = kind & PACK_SIGNED ? (1ll << (bits - 1)) - 1 : (1ll << bits) - 1;
  s64 x = kind & PACK_FROM_UNSIGNED ? (s64)(u32)a : a, y = kind & PACK_FROM_UNSIGNED ? (s64)(u32)b : b;
  x = x < lo ? lo : x > hi ? hi : x, y = y < lo ? lo : y > hi ? hi : y;
  u32 mask = bits == 16 ? 0xffff : (1u << bits) - 1;
  u32 both = ((u32)x & mask) << bits | ((u32)y & mask);
  return bits == 16 ? both : c << 2 * bits | both;
}
// pair16 operates on pairs of 16-bit integers, or on 32-bit integers with relu. kind: PAIR_ADD, PAIR_MIN, PAIR_MAX;
// flags: the other PAIR_*.
static inline u32 pair16(u32 a, u32 b, int kind, int flags) {
  u32 r = 0;
  if (flags & PAIR_WORD) {
    s32 v = kind == PAIR_MIN ? ((s32)a < (s32)b ? (s32)a : (s32)b) : ((s32)a > (s32)b ? (s32)a : (s32)b);
    return flags & PAIR_RELU && v < 0 ? 0 : (u32)v;
  }
  for (int i = 0; i < 32; i += 16) {
    s32 x = flags & PAIR_SIGNED ? (s16)(a >> i) : (u16)(a >> i), y = flags & PAIR_SIGNED ? (s16)(b >> i) : (u16)(b >> i);
    s32 v = kind == PAIR_ADD ? x + y : kind == PAIR_MIN ? (x < y ? x : y) : x > y ? x : y;
    if (flags & PAIR_RELU && v < 0) v = 0;
    r |= ((u32)v & 0xffff) << i;
  }
  return r;
}

// Scalar video instructions. A selector is 0 to 3 for a byte, 4 and 5 for a half, 7 for the word; +8 if it is signed.
static inline s64 video_part(u32 v, u32 sel) {
  u32 part = sel & 7;
  if (part < 4) return sel & 8 ? (s8)(v >> 8 * part) : (u8)(v >> 8 * part);
  if (part < 6) return sel & 8 ? (s16)(v >> 16 * (part - 4)) : (u16)(v >> 16 * (part - 4));
  return sel & 8 ? (s64)(s32)v : (s64)v;
}
// imm: selector of a, of b << 4, of the result << 8 (7: none), signed result << 12, saturate << 13,
// wrapping shift << 14, second operation << 16 (0: merge into c, 1 to 3: add, min, max with c), comparison << 20.
static u32 video(u32 a, u32 b, u32 c, int op, u32 imm) {
  s64 x = video_part(a, imm & 15), y = video_part(b, imm >> 4 & 15);
  __int128 t = 0; // of vshl: up to 65 bits
  int is_signed = imm >> 12 & 1;
  u32 shift = imm >> 14 & 1 ? (u32)y & 31 : (u64)y > 32 ? 32 : (u32)y;
  switch (op) {
  case V_ADD: t = x + y; break;
  case V_SUB: t = x - y; break;
  case V_ABSDIFF: t = x > y ? x - y : y - x; break;
  case V_MIN: t = x < y ? x : y; break;
  case V_MAX: t = x > y ? x : y; break;
  case V_SHL: t = (__int128)x * (1ll << shift); break;
  case V_SHR: t = x >> shift; break;
  case V_SET:
    switch (imm >> 20) {
    case CMP_EQ: t = x == y; break;
    case CMP_NE: t = x != y; break;
    case CMP_LT: t = x < y; break;
    case CMP_LE: t = x <= y; break;
    case CMP_GT: t = x > y; break;
    case CMP_GE: t = x >= y; break;
    }
  }
  u32 to = imm >> 8 & 7, second = imm >> 16 & 15;
  if (imm >> 13 & 1) {
    int bits = to < 4 ? 8 : to < 6 ? 16 : 32;
    s64 lo = is_signed ? -(1ll << (bits - 1)) : 0, hi = is_signed ? (1ll << (bits - 1)) - 1 : (1ll << bits) - 1;
    t = t < lo ? lo : t > hi ? hi : t;
  }
  u32 r = (u32)t;
  if (second) {
    s64 p = is_signed ? (s64)(s32)r : (s64)r, q = is_signed ? (s64)(s32)c : (s64)c;
    return second == 1 ? r + c : (second == 2) == (p < q) ? r : c;
  }
  if (to < 4) return (c & ~(0xffu << 8 * to)) | (r & 0xff) << 8 * to;
  if (to < 6) return (c & ~(0xffffu << 16 * (to - 4))) | (r & 0xffff) << 16 * (to - 4);
  return r;
}

static inline u32 prmt(u32 a, u32 b, u32 c, int mode) {
  u64 v = (u64)b << 32 | a;
  u32 s = c & 3, r = 0;
  for (u32 i = 0; i < 4; i++) {
    u32 sel;
    switch (mode) {
    case PRMT_F4E: sel = s + i; break;                             // f4e
    case PRMT_B4E: sel = (s - i) & 7; break;                       // b4e
    case PRMT_RC8: sel = s; break;                                 // rc8
    case PRMT_ECL: sel = i > s ? i : s; break;                     // ecl
    case PRMT_ECR: sel = i < s ? i : s; break;                     // ecr
    case PRMT_RC16: sel = (s & 1) * 2 + (i & 1); break;             // rc16
    default: sel = c >> (4 * i) & 15;
    }
    u32 byte = (u32)(v >> (8 * (sel & 7))) & 255;
    if (sel & 8) byte = byte & 128 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
static inline u32 lop3(u32 a, u32 b, u32 c, int lut) {
  u32 r = 0;
  if (lut & 1) r |= ~a & ~b & ~c;
  if (lut & 2) r |= ~a & ~b & c;
  if (lut & 4) r |= ~a & b & ~c;
  if (lut & 8) r |= ~a & b & c;
  if (lut & 16) r |= a & ~b & ~c;
  if (lut & 32) r |= a & ~b & c;
  if (lut & 64) r |= a & b & ~c;
  if (lut & 128) r |= a & b & c;
  return r;
}
// kind: DOT_SIGNED_A, DOT_SIGNED_B, DOT_HIGH (dp2a uses the high half of b).
static inline u32 dp4a(u32 a, u32 b, u32 c, int kind) {
  for (int i = 0; i < 32; i += 8) {
    s32 x = kind & DOT_SIGNED_A ? (s8)(a >> i) : (u8)(a >> i), y = kind & DOT_SIGNED_B ? (s8)(b >> i) : (u8)(b >> i);
    c += (u32)(x * y);
  }
  return c;
}
static inline u32 dp2a(u32 a, u32 b, u32 c, int kind) {
  if (kind & DOT_HIGH) b >>= 16;
  for (int i = 0; i < 2; i++) {
    s32 x = kind & DOT_SIGNED_A ? (s16)(a >> 16 * i) : (u16)(a >> 16 * i), y = kind & DOT_SIGNED_B ? (s8)(b >> 8 * i) : (u8)(b >> 8 * i);
    c += (u32)(x * y);
  }
  return c;
}
// -0 is below +0. If one operand is NaN, the result is the other.
static inline u32 number_of(u32 a, u32 b, u32 r) { // r if both are numbers
  u32 none_a = is_nan(a) ? ~0u : 0, none_b = is_nan(b) ? ~0u : 0;
  r = none_b ? a : r;
  r = none_a ? b : r;
  return none_a & none_b ? 0x7fffffffu : r;
}
static inline u32 min_f(u32 a, u32 b) {
  f32 x = bits_f32(a), y = bits_f32(b);
  u32 r = x < y ? a : b;
  return number_of(a, b, x == y ? a | b : r);
}
static inline u32 max_f(u32 a, u32 b) {
  f32 x = bits_f32(a), y = bits_f32(b);
  u32 r = x > y ? a : b;
  return number_of(a, b, x == y ? a & b : r);
}
static inline u32 ex2(u32 a) { return nan32(exp2f(bits_f32(a))); }
static inline u32 lg2(u32 a) { return nan32(log2f(bits_f32(a))); }
static inline u32 rsqrt(u32 a) { return nan32((f32)(1.0 / sqrt((f64)bits_f32(a)))); }

// Narrow formats: bits of precision p including the leading one, minimum exponent emin, largest finite value max.
typedef struct { int p, emin; f64 max; } format;
static const format FORMAT_F16 = {11, -14, 65504}, FORMAT_BF16 = {8, -126, 0x1.fep127}, FORMAT_F32 = {24, -126, 0x1.fffffep127},
                    FORMAT_TF32 = {11, -126, 0x1.ffcp127}, FORMAT_E4M3 = {4, -6, 448}, FORMAT_E5M2 = {3, -14, 57344};

// round_to rounds x to a format. Beyond max it returns infinity, or max if the mode rounds toward zero there.
static inline f64 round_to(f64 x, const format *f, int mode) {
  if (x == 0 || x != x || isinf(x)) return x;
  int e;
  frexp(x, &e);
  e = e - 1 < f->emin ? f->emin : e - 1;
  f64 scaled = ldexp(x, f->p - 1 - e), r;
  switch (mode) {
  case RZ: r = trunc(scaled); break;
  case RM: r = floor(scaled); break;
  case RP: r = ceil(scaled); break;
  case RNA: r = round(scaled); break;
  default: r = nearbyint(scaled);
  }
  r = ldexp(r, e - (f->p - 1));
  if (r == 0) return copysign(0, x);
  if (fabs(r) > f->max) {
    int stays = mode == RZ || (mode == RM && x > 0) || (mode == RP && x < 0);
    return copysign(stays ? f->max : INFINITY, x);
  }
  return r;
}
static inline u32 f16_code(f64 x) { // x is a float16 value
  if (x != x) return 0x7fff;
  u32 sign = signbit(x) ? 0x8000 : 0;
  x = fabs(x);
  if (isinf(x)) return sign | 0x7c00;
  if (x < 0x1p-14) return sign | (u32)(x * 0x1p24);
  u64 b = bits64(x);
  return sign | (u32)((b >> 52) - 1023 + 15) << 10 | (u32)(b >> 42 & 0x3ff);
}
static inline u32 f16_bits32(u16 h) {
  u32 sign = (u32)(h & 0x8000) << 16, m = h & 0x3ff, e = h >> 10 & 31;
  if (e == 31) return m ? 0x7fffffffu : sign | 0x7f800000u;
  if (e == 0) return f32_bits((f32)m * 0x1p-24f) | sign;
  return sign | (e + 112) << 23 | m << 13;
}
static inline f32 f16_f32(u16 h) { return bits_f32(f16_bits32(h)); }
static inline u32 f16_of(u32 a) {
  u32 sign = a >> 16 & 0x8000, m = a & 0x7fffffffu;
  if (m > 0x7f800000u) return 0x7fff;
  if (m >= 0x477ff000u) return sign | 0x7c00;       // 65520 and above
  if (m < 0x38800000u) {                            // below 2^-14
    f32 x = bits_f32(m) + 0.5f;                     // the sum has units of 2^-24
    return sign | (f32_bits(x) - 0x3f000000u);
  }
  return sign | ((m - 0x38000000u + 0xfff + (m >> 13 & 1)) >> 13);
}
static inline u32 bf16_of(u32 a) { return is_nan(a) ? 0x7fff : (a + 0x7fff + (a >> 16 & 1)) >> 16; }

// narrow_code converts a float32 number to a type with p bits of mantissa: to nearest even, with saturation. bias: 127
// less the type's; top, last: its largest number and that one's code; sign, nan: codes.
static inline __attribute__((always_inline)) u32 narrow_code(u32 a, u32 p, u32 bias, u32 top, u32 last, u32 sign, u32 nan) {
  u32 m = a & 0x7fffffffu;
  f32 unit = bits_f32((bias + 24 - p) << 23); // a sum with it has the units of subnormal numbers
  u32 below = f32_bits(bits_f32(m) + unit) - f32_bits(unit);
  u32 normal = ((m + (1u << (22 - p)) - 1 + (m >> (23 - p) & 1)) >> (23 - p)) - (bias << p);
  u32 code = m >= top ? last : m < (bias + 1) << 23 ? below : normal;
  return m > 0x7f800000u ? nan : (a >> 31) * sign | code;
}
// scale_code returns the exponent of a number, whose sign is ignored; flags: NARROW_UP, NARROW_FINITE.
static inline u32 scale_code(u32 a, int flags) {
  u32 m = a & 0x7fffffffu, e = m >> 23;
  if (flags & NARROW_UP && m & 0x7fffff && m > 0x400000u && m < 0x7f800000u) e++;
  return flags & NARROW_FINITE && e == 255 && m <= 0x7f800000u ? 254 : e;
}
static inline __attribute__((always_inline)) u32 narrow_of(u32 a, int type, int flags) {
  if (flags & NARROW_RELU && a >> 31 && !is_nan(a)) a = 0;
  switch (type) {
  case MMA_E4M3: return narrow_code(a, 3, 120, 0x43e00000u, 0x7e, 0x80, 0x7f);
  case MMA_E5M2: return narrow_code(a, 2, 112, 0x47600000u, 0x7b, 0x80, 0x7f);
  case MMA_E2M3: return narrow_code(a, 3, 126, 0x40f00000u, 0x1f, 0x20, 0x1f);
  case MMA_E3M2: return narrow_code(a, 2, 124, 0x41e00000u, 0x1f, 0x20, 0x1f);
  case MMA_E2M1: return narrow_code(a, 1, 126, 0x40c00000u, 7, 8, 7);
  }
  return scale_code(a, flags);
}
static inline f32 narrow_value(u32 v, int p, int emin, u32 sign) {
  u32 m = v & ((1u << p) - 1), e = (v & (sign - 1)) >> p;
  f32 x = e ? bits_f32((e + (u32)(126 + emin)) << 23 | m << (23 - p)) : (f32)m * bits_f32((u32)(127 + emin - p) << 23);
  return v & sign ? -x : x;
}
// narrow_f32 converts a narrow number; bits above it are ignored.
static inline f32 narrow_f32(u32 v, int type) {
  switch (type) {
  case MMA_E4M3: return (v & 0x7f) == 0x7f ? NAN : narrow_value(v, 3, -6, 0x80);
  case MMA_E5M2: return (v & 0x7c) != 0x7c ? narrow_value(v, 2, -14, 0x80) : v & 3 ? NAN : v & 0x80 ? -INFINITY : INFINITY;
  case MMA_E2M3: return narrow_value(v, 3, 0, 0x20);
  case MMA_E3M2: return narrow_value(v, 2, -2, 0x20);
  case MMA_E2M1: return narrow_value(v, 1, 0, 8);
  }
  v &= 255;
  return v == 255 ? NAN : v == 0 ? 0x1p-127f : bits_f32(v << 23);
}
// stochastic converts a to a float of at most 16 bits. random has bits that are added below its last place.
static u32 stochastic(u32 a, int type, u32 random, int bits, int flags) {
  static const s8 digits[] = {[MMA_F16] = 10, [MMA_BF16] = 7, [MMA_E4M3] = 3, [MMA_E5M2] = 2, [MMA_E2M3] = 3, [MMA_E3M2] = 2, [MMA_E2M1] = 1};
  static const s8 least[] = {[MMA_F16] = -14, [MMA_BF16] = -126, [MMA_E4M3] = -6, [MMA_E5M2] = -14, [MMA_E3M2] = -2, [MMA_E2M1] = 0};
  f64 x = bits_f32(a & 0x7fffffffu);
  if (flags & NARROW_RELU && a >> 31 && !is_nan(a)) a = 0, x = 0;
  if (x != 0 && x - x == 0) {
    int e = ilogb(x) < least[type] ? least[type] : ilogb(x);
    f64 unit = ldexp(1, e - digits[type]);
    x = floor(x / unit + ldexp(random, -bits)) * unit;
    a = (a & 0x80000000u) | f32_bits((f32)x);
  }
  if (type > MMA_BF16) return narrow_of(a, type, flags);
  u32 code = type == MMA_F16 ? f16_of(a) : bf16_of(a), top = type == MMA_F16 ? 0x7c00 : 0x7f80;
  return flags & NARROW_FINITE && (code & 0x7fff) == top ? code - 1 : code;
}

// odd_sum returns x + y, rounded to odd if inexact, so that rounding the sum again does not round twice.
static inline f64 odd_sum(f64 x, f64 y) {
  f64 s = x + y;
  if (s != s || isinf(s)) return s;
  f64 t = s - x, rest = (x - (s - t)) + (y - t);
  if (rest != 0 && !(bits64(s) & 1)) s = nextafter(s, rest > 0 ? INFINITY : -INFINITY);
  return s;
}

static inline f64 half_value(u32 h, int bf16) { return bf16 ? bits_f32(h << 16) : f16_f32((u16)h); }
// half_choice returns the smaller or larger of two numbers; -0 is below +0.
static inline __attribute__((always_inline)) u32 half_choice(u32 a, u32 b, int op, int flags) {
  if (flags & A_FTZ && !(flags & A_BF16)) a = a & 0x7c00 ? a : a & 0x8000, b = b & 0x7c00 ? b : b & 0x8000;
  u32 inf = flags & A_BF16 ? 0x7f80 : 0x7c00, none_a = (a & 0x7fff) > inf, none_b = (b & 0x7fff) > inf;
  u32 least = op == A_MIN || op == A_MIN_NAN, spreads = op == A_MIN_NAN || op == A_MAX_NAN;
  s32 x = a & 0x8000 ? -(s32)(a & 0x7fff) : (s32)a, y = b & 0x8000 ? -(s32)(b & 0x7fff) : (s32)b;
  u32 same = least ? a | b : a & b, other = (u32)(x < y) == least ? a : b, number = none_a ? b : a;
  u32 r = x == y ? same : other, odd = spreads | (none_a & none_b) ? 0x7fff : number;
  return none_a | none_b ? odd : r;
}
static inline __attribute__((always_inline)) u32 h_choice(u32 a, u32 b, int op, int flags) {
  u32 lo = half_choice(a & 0xffff, b & 0xffff, op, flags), hi = half_choice(a >> 16, b >> 16, op, flags);
  return flags & A_X2 ? lo | hi << 16 : lo;
}
static u32 half1(u32 a, u32 b, u32 c, int op, int flags) {
  int bf = flags & A_BF16;
  if (flags & A_FTZ && !bf) {
    if (!(a & 0x7c00)) a &= 0x8000;
    if (!(b & 0x7c00)) b &= 0x8000;
    if (!(c & 0x7c00)) c &= 0x8000;
  }
  f64 x = half_value(a, bf), y = half_value(b, bf), z = half_value(c, bf), r = 0;
  switch (op) {
  case A_ADD: r = odd_sum(x, y); break;
  case A_SUB: r = odd_sum(x, -y); break;
  case A_MUL: r = x * y; break;
  case A_FMA: r = odd_sum(x * y, z); break;
  case A_EX2: r = exp2(x); break;
  case A_TANH: r = tanh(x); break;
  }
  if (flags & A_SAT) r = r != r || r <= 0 ? 0 : r > 1 ? 1 : r;
  if (flags & A_RELU && r <= 0) r = 0;
  if (r != r) return 0x7fff;
  r = round_to(r, bf ? &FORMAT_BF16 : &FORMAT_F16, flags & 7);
  u32 v = bf ? f32_bits((f32)r) >> 16 : f16_code(r);
  if (flags & A_FTZ && !bf && !(v & 0x7c00)) v &= 0x8000;
  return v;
}
// toward_odd moves the bits of a rounded to-nearest result to the odd neighbour on the other side of the exact value, if
// the result is inexact and even. more: the exact value is farther from zero.
static inline u32 toward_odd(u32 bits, int inexact, int more) {
  u32 moved = more ? bits + 1 : bits - 1;
  return inexact && !(bits & 1) ? moved : bits;
}
// f16_sum and bf16_sum round to nearest, without other modifiers. The products are exact in float32 and float64, the sums
// rounded to odd.
static inline __attribute__((always_inline)) u32 f16_sum(u32 a, u32 b, u32 c, int op) {
  f32 x = f16_f32((u16)a), y = f16_f32((u16)b), z = f16_f32((u16)c);
  f32 p = op == A_MUL || op == A_FMA ? x * y : x, q = op == A_FMA ? z : op == A_SUB ? -y : y;
  if (op == A_MUL) return f16_of(f32_bits(p));
  f32 s = p + q, t = s - p, rest = (p - (s - t)) + (q - t);
  int inexact = rest < 0 || rest > 0; // NaN if s is no number
  return f16_of(toward_odd(f32_bits(s), inexact, (rest > 0) == (s > 0)));
}
static inline __attribute__((always_inline)) u32 bf16_sum(u32 a, u32 b, u32 c, int op) {
  f64 x = bits_f32(a << 16), y = bits_f32(b << 16), z = bits_f32(c << 16);
  f64 p = op == A_MUL || op == A_FMA ? x * y : x, q = op == A_FMA ? z : op == A_SUB ? -y : y;
  f64 s = op == A_MUL ? p : p + q, t = s - p, rest = op == A_MUL ? 0 : (p - (s - t)) + (q - t);
  f32 r = (f32)s;
  f64 off = (s - (f64)r) + rest;
  int inexact = (off < 0 || off > 0) && fabs((f64)r) < INFINITY;
  return bf16_of(toward_odd(f32_bits(r), inexact, (off > 0) == (signbit(r) == 0)));
}
static u32 h_arith(u32 a, u32 b, u32 c, int op, int flags) {
  if (op >= A_MIN && op <= A_MAX_NAN) return h_choice(a, b, op, flags);
  u32 r = half1(a & 0xffff, b & 0xffff, c & 0xffff, op, flags);
  if (flags & A_X2) r |= half1(a >> 16, b >> 16, c >> 16, op, flags) << 16;
  return r;
}

// set_rounding sets the rounding mode and returns what reset_rounding needs to restore the former one.
#if defined(__x86_64__)
static u32 set_rounding(int mode) { // fesetround also sets the mode of x87 instructions, which takes far longer
  u32 old = _mm_getcsr();
  __asm__ volatile("" ::: "memory");
  _mm_setcsr((old & ~0x6000u) | (mode == RZ ? 0x6000u : mode == RM ? 0x2000u : mode == RP ? 0x4000u : 0));
  __asm__ volatile("" ::: "memory");
  return old;
}
static void reset_rounding(u32 old) {
  __asm__ volatile("" ::: "memory");
  _mm_setcsr(old);
  __asm__ volatile("" ::: "memory");
}
#else
static u32 set_rounding(int mode) {
  int old = fegetround();
  fesetround(mode == RZ ? FE_TOWARDZERO : mode == RM ? FE_DOWNWARD : mode == RP ? FE_UPWARD : FE_TONEAREST);
  return (u32)old;
}
static void reset_rounding(u32 old) { fesetround((int)old); }
#endif
static __attribute__((noinline)) u32 f_arith(u32 a, u32 b, u32 c, int op, int flags) {
  if (flags & A_FTZ) a = ftz(a), b = ftz(b), c = ftz(c);
  volatile f32 x = bits_f32(a), y = bits_f32(b), z = bits_f32(c), r = 0;
  u32 old = 0;
  if (flags & 7) old = set_rounding(flags & 7);
  switch (op) {
  case A_ADD: r = x + y; break;
  case A_SUB: r = x - y; break;
  case A_MUL: r = x * y; break;
  case A_FMA: r = fmaf(x, y, z); break;
  case A_DIV: r = x / y; break;
  case A_RCP: r = 1.0f / x; break;
  case A_SQRT: r = sqrtf(x); break;
  case A_RSQRT: r = bits_f32(rsqrt(f32_bits(x))); break;
  case A_MIN: r = bits_f32(min_f(a, b)); break;
  case A_MAX: r = bits_f32(max_f(a, b)); break;
  case A_MIN_NAN: r = is_nan(a) || is_nan(b) ? NAN : bits_f32(min_f(a, b)); break;
  case A_MAX_NAN: r = is_nan(a) || is_nan(b) ? NAN : bits_f32(max_f(a, b)); break;
  case A_NEG: r = -x; break;
  case A_ABS: r = fabsf(x); break;
  case A_EX2: r = exp2f(x); break;
  case A_TANH: r = tanhf(x); break;
  }
  if (flags & 7) reset_rounding(old);
  u32 v = nan32(r);
  if (flags & A_FTZ) v = ftz(v);
  if (flags & A_SAT) v = is_nan(v) || v >> 31 ? 0 : v > 0x3f800000u ? 0x3f800000u : v;
  return v;
}
static __attribute__((noinline)) u64 d_arith(u64 a, u64 b, u64 c, int op, int flags) {
  volatile f64 x = bits_f64(a), y = bits_f64(b), z = bits_f64(c), r = 0;
  u32 old = 0;
  if (flags & 7) old = set_rounding(flags & 7);
  switch (op) {
  case A_ADD: r = x + y; break;
  case A_SUB: r = x - y; break;
  case A_MUL: r = x * y; break;
  case A_FMA: r = fma(x, y, z); break;
  case A_DIV: r = x / y; break;
  case A_RCP: r = 1.0 / x; break;
  case A_SQRT: r = sqrt(x); break;
  }
  if (flags & 7) reset_rounding(old);
  if (op == A_RCP || op == A_SQRT) return nan_of(r, x, x, x);
  if (op == A_DIV) return nan_of(r, x, y, y);
  return op == A_FMA ? nan_of(r, z, y, x) : nan_of(r, y, x, x);
}

// s32_of and u32_of truncate.
static inline u32 s32_of(f64 a) {
  f64 inside = a < -0x1p31 ? -0x1p31 : a > 0x1.fffffffcp30 ? 0x1.fffffffcp30 : a;
  return (u32)(s32)inside;
}
static inline u32 u32_of(f64 a) {
  f64 inside = a < 0 ? 0 : a > 0x1.fffffffep31 ? 0x1.fffffffep31 : a;
  return (u32)(s64)inside;
}
static inline u32 f32_of_f64(u64 v) {
  u32 payload = (u32)(v >> 63) << 31 | 0x7fc00000u | (u32)(v >> 29 & 0x3fffff);
  return is_nan64(v) ? payload : f32_bits((f32)bits_f64(v));
}

static u64 clamp_int(f64 x, int t, int mode, int wide) {
  int bits = 8 << (t & 3), is_signed = t >= T_S8;
  if (x != x) return bits == 64 ? 0x8000000000000000ull : !wide ? 0 : is_signed ? ~0ull << (bits - 1) : 1ull << (bits - 1);
  x = mode == RZ ? trunc(x) : mode == RM ? floor(x) : mode == RP ? ceil(x) : nearbyint(x);
  if (is_signed) {
    f64 top = ldexp(1, bits - 1);
    s64 v = x >= top ? (s64)((1ull << (bits - 1)) - 1) : x < -top ? -(s64)((1ull << (bits - 1)) - 1) - 1 : (s64)x;
    return (u64)v;
  }
  if (x < 0) return 0;
  if (x >= ldexp(1, bits)) return bits == 64 ? ~0ull : (1ull << bits) - 1;
  return (u64)x;
}
static __attribute__((noinline)) u64 cvt1(u64 v, int dst, int src, int flags) {
  int mode = flags & 7;
  int src_int = src <= T_S64, dst_int = dst <= T_S64;
  if (src_int) { // widened to 64 bits
    int bits = 8 << (src & 3);
    if (bits < 64) v = src >= T_S8 ? (u64)((s64)(v << (64 - bits)) >> (64 - bits)) : v & ((1ull << bits) - 1);
    if (dst_int) {
      int want = 8 << (dst & 3);
      if (flags & A_SAT) {
        if (src >= T_S8 && dst < T_S8 && (s64)v < 0) return 0;
        if (dst >= T_S8) {
          s64 top = (s64)((1ull << (want - 1)) - 1);
          if (src < T_S8 ? v > (u64)top : (s64)v > top) return (u64)top;
          if (src >= T_S8 && (s64)v < -top - 1) return (u64)(-top - 1);
        } else if (want < 64 && v > (1ull << want) - 1) {
          return (1ull << want) - 1;
        }
      }
      if (want == 64) return v;
      return dst >= T_S8 ? (u64)((s64)(v << (64 - want)) >> (64 - want)) : v & ((1ull << want) - 1);
    }
    if (dst == T_F32 || dst == T_F64) {
      u32 old = mode == RN ? 0 : set_rounding(mode);
      volatile s64 s = (s64)v;
      volatile u64 u = v;
      volatile f32 f;
      volatile f64 d;
      if (dst == T_F32) f = src >= T_S8 ? (f32)s : (f32)u, v = f32_bits(f);
      else d = src >= T_S8 ? (f64)s : (f64)u, v = bits64(d);
      if (mode != RN) reset_rounding(old);
      return v;
    }
    f64 x = src >= T_S8 ? (f64)(s64)v : (f64)v; // overflows or rounds in 16 bits long before it does in float64
    if (dst == T_F16) return f16_code(round_to(x, &FORMAT_F16, mode));
    return f32_bits((f32)round_to(x, &FORMAT_BF16, mode)) >> 16;
  }
  f64 x;
  if (src == T_F64 && is_nan64(v)) { // keep the float64 payload
    u32 sign = (u32)(v >> 63);
    if (dst == T_F64) return quiet64(v);
    if (dst == T_F32) return sign << 31 | 0x7fc00000u | (u32)(v >> 29 & 0x3fffff);
    if (dst == T_F16) return sign << 15 | 0x7e00 | (u32)(v >> 42 & 0x1ff);
  }
  if (dst == T_F64 && src == T_F16 && (v & 0x7fff) > 0x7c00) return (v >> 15 & 1) << 63 | 0x7ff8000000000000ull | (v & 0x3ff) << 42;
  if (dst == T_TF32 && is_nan((u32)v)) return mode == RNA ? (u32)v & 0xffffe000u : 0x7fffe000u;
  switch (src) {
  case T_F16: x = f16_f32((u16)v); break;
  case T_BF16: x = bits_f32((u32)v << 16); break;
  case T_F32: case T_TF32: x = bits_f32(flags & A_FTZ ? ftz((u32)v) : (u32)v); break;
  default: x = bits_f64(v);
  }
  if (dst_int) return clamp_int(x, dst, mode, src == T_F64);
  if (flags & C_INTEGER) x = x != x ? x : copysign(mode == RZ ? trunc(x) : mode == RM ? floor(x) : mode == RP ? ceil(x) : nearbyint(x), x);
  if (flags & A_SAT) x = x != x || x <= 0 ? 0 : x > 1 ? 1 : x;
  if (flags & A_RELU && x <= 0) x = 0;
  switch (dst) {
  case T_F16: return x != x ? 0x7fff : f16_code(round_to(x, &FORMAT_F16, mode));
  case T_BF16: return x != x ? 0x7fff : f32_bits((f32)round_to(x, &FORMAT_BF16, mode)) >> 16;
  case T_TF32: return x != x ? 0x7fffffffu : f32_bits((f32)round_to(x, &FORMAT_TF32, mode));
  case T_F32: {
    if (x != x) return 0x7fffffffu;
    u32 r = f32_bits((f32)round_to(x, &FORMAT_F32, mode));
    return flags & A_FTZ ? ftz(r) : r;
  }
  }
  return nan64(x);
}
