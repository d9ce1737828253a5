// Intrinsics of device code as plain C++. The fast-math ones are as exact as the C library; conversions to integers
// saturate and take NaN to 0, as the hardware does.
#ifndef FISUB_EMU_DEVICE_FUNCTIONS_H_
#define FISUB_EMU_DEVICE_FUNCTIONS_H_

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <limits>

#include "fisub_emu.h"

// Loads and stores with a cache hint.
#define FISUB_LOAD(name) \
  template <class T> inline T name(const T* p) { return *p; }
FISUB_LOAD(__ldg)
FISUB_LOAD(__ldcs)
FISUB_LOAD(__ldca)
FISUB_LOAD(__ldcg)
FISUB_LOAD(__ldlu)
FISUB_LOAD(__ldcv)
#undef FISUB_LOAD
#define FISUB_STORE(name) \
  template <class T> inline void name(T* p, fisub_emu::Id<T> v) { *p = v; }
FISUB_STORE(__stcs)
FISUB_STORE(__stcg)
FISUB_STORE(__stwb)
FISUB_STORE(__stwt)
#undef FISUB_STORE

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { fisub_emu::yield(); }
inline void __prof_trigger(int) {}
inline void __brkpt() {}
#ifndef __clang__
inline void __builtin_assume(bool) {}
#endif
namespace fisub_emu { long long nanoseconds(); }
inline long long clock64() { return fisub_emu::nanoseconds(); }
inline long long __clock64() { return fisub_emu::nanoseconds(); }
inline size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<size_t>(static_cast<const char*>(p) - fisub_emu::dynamic_shared_bytes);
}
inline void* __cvta_shared_to_generic(size_t offset) { return fisub_emu::dynamic_shared_bytes + offset; }

// min, max for every pair of types that CUDA has; others are ambiguous there too.
#define FISUB_MINMAX(T, A, B)                                                        \
  inline T min(A a, B b) { return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a); } \
  inline T max(A a, B b) { return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a); }
FISUB_MINMAX(int, int, int)
FISUB_MINMAX(unsigned, unsigned, unsigned)
FISUB_MINMAX(unsigned, int, unsigned)
FISUB_MINMAX(unsigned, unsigned, int)
FISUB_MINMAX(long, long, long)
FISUB_MINMAX(unsigned long, unsigned long, unsigned long)
FISUB_MINMAX(unsigned long, long, unsigned long)
FISUB_MINMAX(unsigned long, unsigned long, long)
FISUB_MINMAX(long long, long long, long long)
FISUB_MINMAX(unsigned long long, unsigned long long, unsigned long long)
FISUB_MINMAX(unsigned long long, long long, unsigned long long)
FISUB_MINMAX(unsigned long long, unsigned long long, long long)
#undef FISUB_MINMAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// Single precision.
inline float __saturatef(float x) { return x >= 0.0f ? (x > 1.0f ? 1.0f : x) : 0.0f; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return static_cast<float>(::pow(10.0, static_cast<double>(x))); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / ::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float normcdff(float x) { return static_cast<float>(0.5 * ::erfc(-static_cast<double>(x) * M_SQRT1_2)); }
inline float erfcxf(float x) { return static_cast<float>(::exp(static_cast<double>(x) * x) * ::erfc(static_cast<double>(x))); }
inline float sinpif(float x) { return static_cast<float>(::sin(M_PI * ::fmod(static_cast<double>(x), 2.0))); }
inline float cospif(float x) { return static_cast<float>(::cos(M_PI * ::fmod(static_cast<double>(x), 2.0))); }
inline float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
inline float norm3df(float a, float b, float c) {
  return static_cast<float>(::sqrt(static_cast<double>(a) * a + static_cast<double>(b) * b + static_cast<double>(c) * c));
}

namespace fisub_emu {

// odd rounds toward zero and then sets the last bit when the result is inexact, so that a later rounding to fewer bits
// gives what one rounding of x (+ error, a remainder too small for x) would give.
inline float odd(double x, double error = 0) {
  float f = static_cast<float>(x);
  if (!(x - x == 0)) return f;
  double rest = f - f == 0 ? x - static_cast<double>(f) : 0;
  if (!(f - f == 0)) return f;
  if (rest == 0 && error == 0) return f;
  const double sign = rest != 0 ? rest : error;
  uint32_t u = bits<uint32_t>(f);
  if (!(u & 1)) {
    const bool away = (sign > 0) == (f > 0 || (f == 0 && sign > 0));
    if (f == 0) u = (sign < 0 ? 0x80000001u : 1u);
    else u += away ? 1 : -1;
  }
  return bits<float>(u);
}

// Directed rounding of x, whose exact value is x + error.
enum Round { kNear, kZero, kUp, kDown };
inline float directed(double x, double error, Round mode) {
  float f = static_cast<float>(x);
  const double d = static_cast<double>(f);
  if (!(x - x == 0)) return f;
  if (!(f - f == 0)) {  // the largest finite number where the mode does not go to infinity
    if ((mode == kZero) || (mode == kUp && x < 0) || (mode == kDown && x > 0)) {
      return x < 0 ? -std::numeric_limits<float>::max() : std::numeric_limits<float>::max();
    }
    return f;
  }
  const int above = d > x || (d == x && error < 0);  // f is above the exact value
  const int below = d < x || (d == x && error > 0);
  if (mode == kUp && below) return nextafterf(f, INFINITY);
  if (mode == kDown && above) return nextafterf(f, -INFINITY);
  if (mode == kZero && ((f > 0 && above) || (f < 0 && below))) return nextafterf(f, 0.0f);
  return f;
}
inline float add(double a, double b, Round mode) {
  const double s = a + b, bb = s - a;
  return directed(s, (a - (s - bb)) + (b - bb), mode);
}
// fma of floats: the product of two floats is exact in a double.
inline float muladd(float a, float b, float c, Round mode) { return add(static_cast<double>(a) * b, c, mode); }
inline float divide(float a, float b, Round mode) {
  const double q = static_cast<double>(a) / b;
  return directed(q, ::fma(-q, static_cast<double>(b), static_cast<double>(a)) / b, mode);
}
inline float root(float a, Round mode) {
  const double r = ::sqrt(static_cast<double>(a));
  return directed(r, ::fma(-r, r, static_cast<double>(a)), mode);
}

template <class I, class F>
inline I saturate(F x) {
  if (!(x == x)) return sizeof(I) == 8 ? static_cast<I>(1ull << 63) : 0;
  if (x >= -2 * static_cast<F>(std::numeric_limits<I>::min() / 2) && std::is_signed_v<I>) return std::numeric_limits<I>::max();
  if (!std::is_signed_v<I> && x >= static_cast<F>(2) * static_cast<F>(std::numeric_limits<I>::max() / 2 + 1)) {
    return std::numeric_limits<I>::max();
  }
  if (x <= static_cast<F>(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
  return static_cast<I>(x);
}
inline float integral(float x, Round m) { return m == kNear ? rintf(x) : m == kZero ? truncf(x) : m == kUp ? ceilf(x) : floorf(x); }
inline double integral(double x, Round m) { return m == kNear ? rint(x) : m == kZero ? trunc(x) : m == kUp ? ceil(x) : floor(x); }

}  // namespace fisub_emu

#define FISUB_ROUND(suffix, mode)                                                                                    \
  inline float __fadd_##suffix(float a, float b) { return fisub_emu::add(a, b, fisub_emu::mode); }                   \
  inline float __fsub_##suffix(float a, float b) { return fisub_emu::add(a, -static_cast<double>(b), fisub_emu::mode); } \
  inline float __fmul_##suffix(float a, float b) { return fisub_emu::directed(static_cast<double>(a) * b, 0, fisub_emu::mode); } \
  inline float __fmaf_##suffix(float a, float b, float c) { return fisub_emu::mode == fisub_emu::kNear ? fmaf(a, b, c) : fisub_emu::muladd(a, b, c, fisub_emu::mode); } \
  inline float __fdiv_##suffix(float a, float b) { return fisub_emu::divide(a, b, fisub_emu::mode); }                \
  inline float __frcp_##suffix(float a) { return fisub_emu::divide(1.0f, a, fisub_emu::mode); }                      \
  inline float __fsqrt_##suffix(float a) { return fisub_emu::root(a, fisub_emu::mode); }                             \
  inline int __float2int_##suffix(float x) { return fisub_emu::saturate<int>(fisub_emu::integral(x, fisub_emu::mode)); } \
  inline unsigned __float2uint_##suffix(float x) { return fisub_emu::saturate<unsigned>(fisub_emu::integral(x, fisub_emu::mode)); } \
  inline long long __float2ll_##suffix(float x) { return fisub_emu::saturate<long long>(fisub_emu::integral(x, fisub_emu::mode)); } \
  inline unsigned long long __float2ull_##suffix(float x) { return fisub_emu::saturate<unsigned long long>(fisub_emu::integral(x, fisub_emu::mode)); } \
  inline int __double2int_##suffix(double x) { return fisub_emu::saturate<int>(fisub_emu::integral(x, fisub_emu::mode)); } \
  inline unsigned __double2uint_##suffix(double x) { return fisub_emu::saturate<unsigned>(fisub_emu::integral(x, fisub_emu::mode)); } \
  inline long long __double2ll_##suffix(double x) { return fisub_emu::saturate<long long>(fisub_emu::integral(x, fisub_emu::mode)); } \
  inline float __double2float_##suffix(double x) { return fisub_emu::directed(x, 0, fisub_emu::mode); }              \
  inline float __int2float_##suffix(int x) { return fisub_emu::directed(x, 0, fisub_emu::mode); }                    \
  inline float __uint2float_##suffix(unsigned x) { return fisub_emu::directed(x, 0, fisub_emu::mode); }
FISUB_ROUND(rn, kNear)
FISUB_ROUND(rz, kZero)
FISUB_ROUND(ru, kUp)
FISUB_ROUND(rd, kDown)
#undef FISUB_ROUND
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return ::fma(a, b, c); }
inline double __dsqrt_rn(double a) { return ::sqrt(a); }

inline int __float_as_int(float x) { return fisub_emu::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return fisub_emu::bits<unsigned>(x); }
inline float __int_as_float(int x) { return fisub_emu::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return fisub_emu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return fisub_emu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return fisub_emu::bits<double>(x); }
inline int __double2hiint(double x) { return static_cast<int>(fisub_emu::bits<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(fisub_emu::bits<uint64_t>(x)); }
inline double __hiloint2double(int hi, int lo) {
  return fisub_emu::bits<double>(static_cast<uint64_t>(static_cast<unsigned>(hi)) << 32 | static_cast<unsigned>(lo));
}

// Integers.
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
  x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
  x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
  return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(both >> (8 * (s & 7))) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
  return static_cast<unsigned>(((static_cast<uint64_t>(hi) << 32 | lo) << (n & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
  return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (n & 31));
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
inline int __mul24(int a, int b) {
  return static_cast<int>(static_cast<int64_t>(static_cast<int>(static_cast<unsigned>(a) << 8) >> 8) *
                          (static_cast<int>(static_cast<unsigned>(b) << 8) >> 8));
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __sad(int a, int b, unsigned c) {
  return c + static_cast<unsigned>(a > b ? static_cast<int64_t>(a) - b : static_cast<int64_t>(b) - a);
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
  return c;
}
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) + b) >> 1); }
inline unsigned __lane_id() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}

// Atomics. The blocks of a program that uses them run one after the other, so their order is always the same.
namespace fisub_emu {

template <class T, class F>
inline T update(T* p, F f) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "atomics take values of 2, 4 or 8 bytes");
  using Word = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  Word* w = reinterpret_cast<Word*>(p);
  Word old = __atomic_load_n(w, __ATOMIC_RELAXED);
  for (;;) {
    const T value = bits<T>(old);
    const Word next = bits<Word>(static_cast<T>(f(value)));
    if (__atomic_compare_exchange_n(w, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return value;
  }
}

}  // namespace fisub_emu

#define FISUB_ATOMIC(name, expression)                                             \
  template <class T> inline T name(T* p, fisub_emu::Id<T> v) {                     \
    return fisub_emu::update(p, [v](T old) { return expression; });                \
  }                                                                                \
  template <class T> inline T name##_block(T* p, fisub_emu::Id<T> v) { return name(p, v); }  \
  template <class T> inline T name##_system(T* p, fisub_emu::Id<T> v) { return name(p, v); }
FISUB_ATOMIC(atomicAdd, old + v)
FISUB_ATOMIC(atomicSub, old - v)
FISUB_ATOMIC(atomicMax, old < v ? v : old)
FISUB_ATOMIC(atomicMin, v < old ? v : old)
FISUB_ATOMIC(atomicAnd, old & v)
FISUB_ATOMIC(atomicOr, old | v)
FISUB_ATOMIC(atomicXor, old ^ v)
FISUB_ATOMIC(atomicInc, old >= v ? T(0) : T(old + 1))
FISUB_ATOMIC(atomicDec, (old == T(0) || old > v) ? v : T(old - 1))
#undef FISUB_ATOMIC
// Lock loops spin on these two, so a thread that does not get what it wants lets the others run.
template <class T>
inline T atomicExch(T* p, fisub_emu::Id<T> v) {
  const T old = fisub_emu::update(p, [v](T) { return v; });
  if (memcmp(&old, &v, sizeof v) == 0) fisub_emu::yield();
  return old;
}
template <class T>
inline T atomicCAS(T* p, fisub_emu::Id<T> compare, fisub_emu::Id<T> v) {
  const T old = fisub_emu::update(p, [&](T o) { return memcmp(&o, &compare, sizeof o) == 0 ? v : o; });
  if (memcmp(&old, &compare, sizeof old) != 0) fisub_emu::yield();
  return old;
}

#endif  // FISUB_EMU_DEVICE_FUNCTIONS_H_
