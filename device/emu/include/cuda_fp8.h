// __nv_fp8_e4m3 and __nv_fp8_e5m2, their pairs and fours: storage and conversion.
#ifndef FISUB_EMU_CUDA_FP8_H_
#define FISUB_EMU_CUDA_FP8_H_

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace fisub_emu {

// The values of all codes. A kernel may read as many of them as there are weights, so they are looked up.
struct Fp8Values {
  float e4m3[256];
  Fp8Values() {
    for (int v = 0; v < 256; ++v) {
      const int exponent = v >> 3 & 15, m = v & 7;
      float f = exponent ? ldexpf(static_cast<float>(8 + m), exponent - 10) : ldexpf(static_cast<float>(m), -9);
      if (exponent == 15 && m == 7) f = NAN;
      e4m3[v] = v & 0x80 ? -f : f;
    }
  }
};
inline const Fp8Values fp8_values;

inline float from_fp8(uint8_t v, __nv_fp8_interpretation_t kind) {
  return kind == __NV_E5M2 ? from_fp16(static_cast<uint16_t>(v << 8)) : fp8_values.e4m3[v];
}

inline uint8_t to_fp8(float f, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {
  const int mantissa = kind == __NV_E4M3 ? 3 : 2, lowest = kind == __NV_E4M3 ? -6 : -14;
  const unsigned largest = kind == __NV_E4M3 ? 0x7e : 0x7b, over = kind == __NV_E4M3 ? 0x7f : 0x7c;
  const uint32_t u = bits<uint32_t>(f), magnitude = u & 0x7fffffffu;
  const uint8_t sign = static_cast<uint8_t>(u >> 24 & 0x80);
  if (magnitude > 0x7f800000u) return sign | 0x7f;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t q;
  if (exponent < lowest) {
    const uint32_t m = exponent < -126 ? 0 : (magnitude & 0x7fffffu) | 0x800000u;
    q = shift_round(m, 23 - mantissa + lowest - exponent, kNear, false);
  } else {
    q = shift_round(magnitude - (static_cast<uint32_t>(lowest - 1 + 127) << 23), 23 - mantissa, kNear, false);
  }
  if (q > largest) q = saturation == __NV_SATFINITE ? largest : over;
  return static_cast<uint8_t>(sign | q);
}

}  // namespace fisub_emu

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float f, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return fisub_emu::to_fp8(f, s, k);
}
inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double d, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return fisub_emu::to_fp8(fisub_emu::odd(d), s, k);
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw h, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return fisub_emu::to_fp8(fisub_emu::from_fp16(h.x), s, k);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw h, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return fisub_emu::to_fp8(fisub_emu::from_bf16(h.x), s, k);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 f, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return static_cast<__nv_fp8x2_storage_t>(fisub_emu::to_fp8(f.x, s, k) | fisub_emu::to_fp8(f.y, s, k) << 8);
}
inline __nv_fp8x2_storage_t __nv_cvt_double2_to_fp8x2(double2 d, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return __nv_cvt_float2_to_fp8x2({fisub_emu::odd(d.x), fisub_emu::odd(d.y)}, s, k);
}
inline __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(__half2_raw h, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return __nv_cvt_float2_to_fp8x2({fisub_emu::from_fp16(h.x), fisub_emu::from_fp16(h.y)}, s, k);
}
inline __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw h, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return __nv_cvt_float2_to_fp8x2({fisub_emu::from_bf16(h.x), fisub_emu::from_bf16(h.y)}, s, k);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t k) {
  return {fisub_emu::to_fp16(fisub_emu::from_fp8(v, k))};
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t k) {
  return {__nv_cvt_fp8_to_halfraw(v & 0xff, k).x, __nv_cvt_fp8_to_halfraw(v >> 8, k).x};
}

// The element T, its pair T2, of which x is the low byte, and its four T4.
#define FISUB_FP8(T, T2, T4, kind)                                                                                 \
  struct T {                                                                                                       \
    __nv_fp8_storage_t __x;                                                                                        \
    T() = default;                                                                                                 \
    explicit T(float f) : __x(fisub_emu::to_fp8(f, __NV_SATFINITE, kind)) {}                                       \
    explicit T(double d) : T(fisub_emu::odd(d)) {}                                                                 \
    explicit T(int i) : T(static_cast<double>(i)) {}                                                               \
    explicit T(__half h) : T(static_cast<float>(h)) {}                                                             \
    explicit T(__nv_bfloat16 h) : T(static_cast<float>(h)) {}                                                      \
    explicit operator float() const { return fisub_emu::from_fp8(__x, kind); }                                     \
    explicit operator double() const { return fisub_emu::from_fp8(__x, kind); }                                    \
    explicit operator bool() const { return (__x & 0x7f) != 0; }                                                   \
    explicit operator __half() const { return __half(fisub_emu::from_fp8(__x, kind)); }                            \
    explicit operator __nv_bfloat16() const { return __nv_bfloat16(fisub_emu::from_fp8(__x, kind)); }              \
  };                                                                                                               \
  struct T2 {                                                                                                      \
    __nv_fp8x2_storage_t __x;                                                                                      \
    T2() = default;                                                                                                \
    explicit T2(float2 f) : __x(__nv_cvt_float2_to_fp8x2(f, __NV_SATFINITE, kind)) {}                              \
    explicit T2(double2 d) : __x(__nv_cvt_double2_to_fp8x2(d, __NV_SATFINITE, kind)) {}                            \
    explicit T2(__half2 h) : T2(__half22float2(h)) {}                                                              \
    explicit T2(__nv_bfloat162 h) : T2(__bfloat1622float2(h)) {}                                                   \
    explicit operator float2() const {                                                                             \
      return {fisub_emu::from_fp8(__x & 0xff, kind), fisub_emu::from_fp8(__x >> 8, kind)};                         \
    }                                                                                                              \
    explicit operator __half2() const { return __half2(__nv_cvt_fp8x2_to_halfraw2(__x, kind)); }                   \
  };                                                                                                               \
  struct T4 {                                                                                                      \
    __nv_fp8x4_storage_t __x;                                                                                      \
    T4() = default;                                                                                                \
    explicit T4(float4 f) : __x(T2(float2{f.x, f.y}).__x | static_cast<unsigned>(T2(float2{f.z, f.w}).__x) << 16) {} \
    T4(__half2 lo, __half2 hi) : __x(T2(lo).__x | static_cast<unsigned>(T2(hi).__x) << 16) {}                      \
    T4(__nv_bfloat162 lo, __nv_bfloat162 hi) : __x(T2(lo).__x | static_cast<unsigned>(T2(hi).__x) << 16) {}        \
    explicit operator float4() const {                                                                             \
      return {fisub_emu::from_fp8(__x & 0xff, kind), fisub_emu::from_fp8(__x >> 8 & 0xff, kind),                   \
              fisub_emu::from_fp8(__x >> 16 & 0xff, kind), fisub_emu::from_fp8(__x >> 24, kind)};                  \
    }                                                                                                              \
  };
FISUB_FP8(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, __NV_E4M3)
FISUB_FP8(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, __NV_E5M2)
#undef FISUB_FP8

#endif  // FISUB_EMU_CUDA_FP8_H_
