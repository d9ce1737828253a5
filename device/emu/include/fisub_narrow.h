// What __half and __nv_bfloat16 share: rounding, operators and intrinsics. Each result is rounded once, to nearest even.
#ifndef FISUB_EMU_NARROW_H_
#define FISUB_EMU_NARROW_H_

#include <type_traits>

#include "device_functions.h"

namespace fisub_emu {

// shift_round drops the low n bits of u to nearest even or as mode says; negative is the sign of the number.
inline uint32_t shift_round(uint32_t u, int n, Round mode, bool negative) {
  if (n > 31) return mode == kNear || u == 0 || mode == kZero ? 0 : (mode == kUp) != negative;
  if (n <= 0) return u;
  const uint32_t rest = u & ((1u << n) - 1), half = 1u << (n - 1);
  uint32_t q = u >> n;
  switch (mode) {
    case kNear: q += rest > half || (rest == half && (q & 1)); break;
    case kUp: q += rest && !negative; break;
    case kDown: q += rest && negative; break;
    case kZero: break;
  }
  return q;
}

inline uint16_t to_bf16(float f, Round mode = kNear) {
  const uint32_t u = bits<uint32_t>(f);
  if (f != f) return 0x7fff;
  return static_cast<uint16_t>((u >> 31 << 15) | shift_round(u & 0x7fffffffu, 16, mode, u >> 31));
}
inline float from_bf16(uint16_t h) { return bits<float>(static_cast<uint32_t>(h) << 16); }

inline uint16_t to_fp16(float f, Round mode = kNear) {
  const uint32_t u = bits<uint32_t>(f), magnitude = u & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude == 0x7f800000u) return sign | 0x7c00;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t h;
  if (exponent < -14) {  // a subnormal or zero: 2^-24 is one unit
    const uint32_t m = magnitude >> 23 ? (magnitude & 0x7fffffu) | 0x800000u : magnitude;
    h = shift_round(m, 13 + (-14 - (exponent < -126 ? -126 : exponent)), mode, sign);
  } else {
    h = shift_round(magnitude - (112u << 23), 13, mode, sign);
  }
  if (h >= 0x7c00) h = mode == kNear || (mode == kUp && !sign) || (mode == kDown && sign) ? 0x7c00 : 0x7bff;
  return static_cast<uint16_t>(sign | h);
}
inline float from_fp16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = h >> 10 & 31, m = h & 0x3ffu;
  if (exponent == 31) return bits<float>(sign | 0x7f800000u | m << 13);
  if (exponent) return bits<float>(sign | (exponent + 112) << 23 | m << 13);
  const float f = static_cast<float>(m) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -f : f;
}

// The exact a*b+c rounded to odd in single precision, ready for one rounding to a narrower type.
inline float odd_fma(float a, float b, float c) {
  const double p = static_cast<double>(a) * b, s = p + c, cc = s - p;
  return odd(s, (p - (s - cc)) + (c - cc));
}
inline float odd_divide(float a, float b) {
  const double q = static_cast<double>(a) / b;
  return odd(q, q - q == 0 ? ::fma(-q, static_cast<double>(b), static_cast<double>(a)) / b : 0);
}
inline float larger(float a, float b, bool keep_nan) { return keep_nan && (a != a || b != b) ? NAN : fmaxf(a, b); }
inline float smaller(float a, float b, bool keep_nan) { return keep_nan && (a != a || b != b) ? NAN : fminf(a, b); }

}  // namespace fisub_emu

// The struct T with its conversions and the pair T2; raw and raw2 are their bit structs, to and from convert to and from
// float.
#define FISUB_NARROW_TYPE(T, T2, raw, raw2, to, from)                                           \
  struct raw { unsigned short x; };                                                             \
  struct alignas(4) raw2 { unsigned short x, y; };                                              \
  struct T {                                                                                    \
    unsigned short __x;                                                                         \
    T() = default;                                                                              \
    constexpr T(raw r) : __x(r.x) {}                                                            \
    T(float f) : __x(fisub_emu::to(f)) {}                                                       \
    T(double d) : __x(fisub_emu::to(fisub_emu::odd(d))) {}                                      \
    template <class I, class = std::enable_if_t<std::is_integral_v<I>>>                         \
    T(I i) : __x(fisub_emu::to(fisub_emu::odd(static_cast<double>(i)))) {}                      \
    operator raw() const { return {__x}; }                                                      \
    operator float() const { return fisub_emu::from(__x); }                                     \
    T& operator=(float f) { return *this = T(f); }                                              \
  };                                                                                            \
  struct alignas(4) T2 {                                                                         \
    T x, y;                                                                                     \
    T2() = default;                                                                             \
    constexpr T2(const T& x, const T& y) : x(x), y(y) {}                                        \
    constexpr T2(raw2 r) : x(raw{r.x}), y(raw{r.y}) {}                                          \
    operator raw2() const { return {x.__x, y.__x}; }                                            \
  };

// The operators and intrinsics of T and its pair T2.
#define FISUB_NARROW_OPS(T, T2)                                                                                     \
  inline T __hadd(T a, T b) { return T(static_cast<float>(a) + static_cast<float>(b)); }                            \
  inline T __hsub(T a, T b) { return T(static_cast<float>(a) - static_cast<float>(b)); }                            \
  inline T __hmul(T a, T b) { return T(static_cast<float>(a) * static_cast<float>(b)); }                            \
  inline T __hadd_rn(T a, T b) { return __hadd(a, b); }                                                             \
  inline T __hsub_rn(T a, T b) { return __hsub(a, b); }                                                             \
  inline T __hmul_rn(T a, T b) { return __hmul(a, b); }                                                             \
  inline T __hdiv(T a, T b) { return T(fisub_emu::odd_divide(static_cast<float>(a), static_cast<float>(b))); }      \
  inline T __hfma(T a, T b, T c) { return T(fisub_emu::odd_fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c))); } \
  inline T __hneg(T a) { return a.__x ^= 0x8000, a; }                                                               \
  inline T __habs(T a) { return a.__x &= 0x7fff, a; }                                                               \
  inline T __hadd_sat(T a, T b) { return T(__saturatef(static_cast<float>(__hadd(a, b)))); }                        \
  inline T __hmul_sat(T a, T b) { return T(__saturatef(static_cast<float>(__hmul(a, b)))); }                        \
  inline T __hfma_sat(T a, T b, T c) { return T(__saturatef(static_cast<float>(__hfma(a, b, c)))); }                \
  inline T __hfma_relu(T a, T b, T c) { return T(fisub_emu::larger(static_cast<float>(__hfma(a, b, c)), 0.0f, true)); } \
  inline T __hmax(T a, T b) { return T(fisub_emu::larger(static_cast<float>(a), static_cast<float>(b), false)); }   \
  inline T __hmin(T a, T b) { return T(fisub_emu::smaller(static_cast<float>(a), static_cast<float>(b), false)); }  \
  inline T __hmax_nan(T a, T b) { return T(fisub_emu::larger(static_cast<float>(a), static_cast<float>(b), true)); }  \
  inline T __hmin_nan(T a, T b) { return T(fisub_emu::smaller(static_cast<float>(a), static_cast<float>(b), true)); } \
  inline bool __heq(T a, T b) { return static_cast<float>(a) == static_cast<float>(b); }                            \
  inline bool __hne(T a, T b) { return static_cast<float>(a) < static_cast<float>(b) || static_cast<float>(a) > static_cast<float>(b); } \
  inline bool __hneu(T a, T b) { return static_cast<float>(a) != static_cast<float>(b); }                           \
  inline bool __hlt(T a, T b) { return static_cast<float>(a) < static_cast<float>(b); }                             \
  inline bool __hle(T a, T b) { return static_cast<float>(a) <= static_cast<float>(b); }                            \
  inline bool __hgt(T a, T b) { return static_cast<float>(a) > static_cast<float>(b); }                             \
  inline bool __hge(T a, T b) { return static_cast<float>(a) >= static_cast<float>(b); }                            \
  inline bool __hisnan(T a) { return static_cast<float>(a) != static_cast<float>(a); }                              \
  inline int __hisinf(T a) { return __builtin_isinf_sign(static_cast<float>(a)); }                                  \
  inline T hexp(T a) { return T(expf(static_cast<float>(a))); }                                                     \
  inline T hexp2(T a) { return T(exp2f(static_cast<float>(a))); }                                                   \
  inline T hlog(T a) { return T(logf(static_cast<float>(a))); }                                                     \
  inline T hlog2(T a) { return T(log2f(static_cast<float>(a))); }                                                   \
  inline T hsqrt(T a) { return T(sqrtf(static_cast<float>(a))); }                                                   \
  inline T hrsqrt(T a) { return T(rsqrtf(static_cast<float>(a))); }                                                 \
  inline T hrcp(T a) { return T(fisub_emu::odd_divide(1.0f, static_cast<float>(a))); }                              \
  inline T hsin(T a) { return T(sinf(static_cast<float>(a))); }                                                     \
  inline T hcos(T a) { return T(cosf(static_cast<float>(a))); }                                                     \
  inline T htanh(T a) { return T(tanhf(static_cast<float>(a))); }                                                   \
  inline T hfloor(T a) { return T(floorf(static_cast<float>(a))); }                                                 \
  inline T hceil(T a) { return T(ceilf(static_cast<float>(a))); }                                                   \
  inline T hrint(T a) { return T(rintf(static_cast<float>(a))); }                                                   \
  inline T htrunc(T a) { return T(truncf(static_cast<float>(a))); }                                                 \
  inline T operator+(const T& a, const T& b) { return __hadd(a, b); }                                               \
  inline T operator-(const T& a, const T& b) { return __hsub(a, b); }                                               \
  inline T operator*(const T& a, const T& b) { return __hmul(a, b); }                                               \
  inline T operator/(const T& a, const T& b) { return __hdiv(a, b); }                                               \
  inline T operator-(const T& a) { return __hneg(a); }                                                              \
  inline T operator+(const T& a) { return a; }                                                                      \
  inline T& operator+=(T& a, const T& b) { return a = __hadd(a, b); }                                               \
  inline T& operator-=(T& a, const T& b) { return a = __hsub(a, b); }                                               \
  inline T& operator*=(T& a, const T& b) { return a = __hmul(a, b); }                                               \
  inline T& operator/=(T& a, const T& b) { return a = __hdiv(a, b); }                                               \
  inline bool operator==(const T& a, const T& b) { return __heq(a, b); }                                            \
  inline bool operator!=(const T& a, const T& b) { return __hneu(a, b); }                                           \
  inline bool operator<(const T& a, const T& b) { return __hlt(a, b); }                                             \
  inline bool operator<=(const T& a, const T& b) { return __hle(a, b); }                                            \
  inline bool operator>(const T& a, const T& b) { return __hgt(a, b); }                                             \
  inline bool operator>=(const T& a, const T& b) { return __hge(a, b); }                                            \
  FISUB_NARROW_PAIR2(__hadd2, __hadd, T2) FISUB_NARROW_PAIR2(__hsub2, __hsub, T2) FISUB_NARROW_PAIR2(__hmul2, __hmul, T2) \
  FISUB_NARROW_PAIR2(__h2div, __hdiv, T2) FISUB_NARROW_PAIR2(__hmax2, __hmax, T2) FISUB_NARROW_PAIR2(__hmin2, __hmin, T2) \
  FISUB_NARROW_PAIR2(__hadd2_rn, __hadd, T2) FISUB_NARROW_PAIR2(__hmul2_rn, __hmul, T2)                             \
  FISUB_NARROW_PAIR1(__hneg2, __hneg, T2) FISUB_NARROW_PAIR1(__habs2, __habs, T2)                                   \
  FISUB_NARROW_PAIR1(h2exp, hexp, T2) FISUB_NARROW_PAIR1(h2exp2, hexp2, T2) FISUB_NARROW_PAIR1(h2log, hlog, T2)     \
  FISUB_NARROW_PAIR1(h2sqrt, hsqrt, T2) FISUB_NARROW_PAIR1(h2rsqrt, hrsqrt, T2) FISUB_NARROW_PAIR1(h2rcp, hrcp, T2) \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }                    \
  inline T2 operator+(const T2& a, const T2& b) { return __hadd2(a, b); }                                           \
  inline T2 operator-(const T2& a, const T2& b) { return __hsub2(a, b); }                                           \
  inline T2 operator*(const T2& a, const T2& b) { return __hmul2(a, b); }                                           \
  inline T2 operator/(const T2& a, const T2& b) { return __h2div(a, b); }                                           \
  inline T2 operator-(const T2& a) { return __hneg2(a); }                                                           \
  inline T2& operator+=(T2& a, const T2& b) { return a = __hadd2(a, b); }                                           \
  inline T2& operator-=(T2& a, const T2& b) { return a = __hsub2(a, b); }                                           \
  inline T2& operator*=(T2& a, const T2& b) { return a = __hmul2(a, b); }                                           \
  inline bool __hbeq2(T2 a, T2 b) { return __heq(a.x, b.x) && __heq(a.y, b.y); }                                    \
  inline bool operator==(const T2& a, const T2& b) { return __hbeq2(a, b); }                                        \
  inline float __low2float(T2 v) { return static_cast<float>(v.x); }                                                \
  inline float __high2float(T2 v) { return static_cast<float>(v.y); }                                               \
  inline T2 __lowhigh2highlow(T2 v) { return {v.y, v.x}; }
#define FISUB_NARROW_PAIR1(name, one, T2) \
  inline T2 name(T2 a) { return {one(a.x), one(a.y)}; }
#define FISUB_NARROW_PAIR2(name, one, T2) \
  inline T2 name(T2 a, T2 b) { return {one(a.x, b.x), one(a.y, b.y)}; }

// Conversions whose names end in the type's: half, half2 or bfloat16, bfloat162.
#define FISUB_NARROW_CONVERSIONS(T, T2, name, name2, to)                                                            \
  inline T __float2##name(float f) { return T(f); }                                                                 \
  inline T __float2##name##_rn(float f) { return T(f); }                                                            \
  inline T __float2##name##_rz(float f) { return T(T##_raw{fisub_emu::to(f, fisub_emu::kZero)}); }                  \
  inline T __float2##name##_ru(float f) { return T(T##_raw{fisub_emu::to(f, fisub_emu::kUp)}); }                    \
  inline T __float2##name##_rd(float f) { return T(T##_raw{fisub_emu::to(f, fisub_emu::kDown)}); }                  \
  inline T __double2##name(double d) { return T(d); }                                                               \
  inline T __int2##name##_rn(int i) { return T(i); }                                                                \
  inline T __uint2##name##_rn(unsigned i) { return T(i); }                                                          \
  inline float __##name##2float(T v) { return static_cast<float>(v); }                                              \
  inline int __##name##2int_rn(T v) { return __float2int_rn(static_cast<float>(v)); }                               \
  inline int __##name##2int_rz(T v) { return __float2int_rz(static_cast<float>(v)); }                               \
  inline unsigned __##name##2uint_rn(T v) { return __float2uint_rn(static_cast<float>(v)); }                        \
  inline unsigned short __##name##_as_ushort(T v) { return v.__x; }                                                 \
  inline short __##name##_as_short(T v) { return static_cast<short>(v.__x); }                                       \
  inline T __ushort_as_##name(unsigned short u) { return T(T##_raw{u}); }                                           \
  inline T __short_as_##name(short s) { return T(T##_raw{static_cast<unsigned short>(s)}); }                        \
  inline T2 __halves2##name2(T lo, T hi) { return {lo, hi}; }                                                       \
  inline T2 __##name##2##name2(T v) { return {v, v}; }                                                              \
  inline T2 __float2##name2##_rn(float f) { return {T(f), T(f)}; }                                                  \
  inline T2 __floats2##name2##_rn(float lo, float hi) { return {T(lo), T(hi)}; }                                    \
  inline T2 __float22##name2##_rn(float2 v) { return {T(v.x), T(v.y)}; }                                            \
  inline float2 __##name2##2float2(T2 v) { return {static_cast<float>(v.x), static_cast<float>(v.y)}; }             \
  inline T __low2##name(T2 v) { return v.x; }                                                                       \
  inline T __high2##name(T2 v) { return v.y; }                                                                      \
  inline T2 __lows2##name2(T2 a, T2 b) { return {a.x, b.x}; }                                                       \
  inline T2 __highs2##name2(T2 a, T2 b) { return {a.y, b.y}; }                                                      \
  inline T2 __low2##name2(T2 v) { return {v.x, v.x}; }                                                              \
  inline T2 __high2##name2(T2 v) { return {v.y, v.y}; }                                                             \
  inline T2 make_##name2(T x, T y) { return {x, y}; }

#endif  // FISUB_EMU_NARROW_H_
