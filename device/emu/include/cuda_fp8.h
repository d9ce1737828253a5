// __nv_fp8_e4m3 and __nv_fp8_e5m2: storage and conversion.
#ifndef FISUB_EMU_CUDA_FP8_H_
#define FISUB_EMU_CUDA_FP8_H_

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace fisub_emu {

inline float from_fp8(uint8_t v, __nv_fp8_interpretation_t kind) {
  if (kind == __NV_E5M2) return from_fp16(static_cast<uint16_t>(v << 8));
  const int exponent = v >> 3 & 15, m = v & 7;
  if (exponent == 15 && m == 7) return NAN;
  const float f = exponent ? ldexpf(static_cast<float>(8 + m), exponent - 10) : ldexpf(static_cast<float>(m), -9);
  return v & 0x80 ? -f : f;
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
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t k) {
  return {fisub_emu::to_fp16(fisub_emu::from_fp8(v, k))};
}

#define FISUB_FP8(T, kind)                                                                                         \
  struct T {                                                                                                       \
    __nv_fp8_storage_t __x;                                                                                        \
    T() = default;                                                                                                 \
    explicit T(float f) : __x(fisub_emu::to_fp8(f, __NV_SATFINITE, kind)) {}                                       \
    explicit T(double d) : T(fisub_emu::odd(d)) {}                                                                 \
    explicit T(int i) : T(static_cast<double>(i)) {}                                                               \
    explicit T(__half h) : T(static_cast<float>(h)) {}                                                             \
    explicit T(__nv_bfloat16 h) : T(static_cast<float>(h)) {}                                                      \
    explicit operator float() const { return fisub_emu::from_fp8(__x, kind); }                                     \
    explicit operator __half() const { return __half(fisub_emu::from_fp8(__x, kind)); }                            \
    explicit operator __nv_bfloat16() const { return __nv_bfloat16(fisub_emu::from_fp8(__x, kind)); }              \
  };
FISUB_FP8(__nv_fp8_e4m3, __NV_E4M3)
FISUB_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef FISUB_FP8

#endif  // FISUB_EMU_CUDA_FP8_H_
