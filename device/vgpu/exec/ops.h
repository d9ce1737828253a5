// Instructions on each lane separately: name, result type, operand types, value. 16-bit values have 32-bit operands.
#define OPS1(X)                                       \
  X(mov_64, u64, u64, a)                              \
  X(mov_32_64, u64, u32, a)                           \
  X(mov_64_32, u32, u64, (u32)a)                      \
  X(lo16, u32, u32, a & 0xffff)                       \
  X(hi16, u32, u32, a >> 16)                          \
  X(hi32, u32, u64, (u32)(a >> 32))                   \
  X(b16_of_64_1, u32, u64, (u32)(a >> 16) & 0xffff)   \
  X(b16_of_64_3, u32, u64, (u32)(a >> 48))            \
  X(not_32, u32, u32, ~a)                             \
  X(not_64, u64, u64, ~a)                             \
  X(not_16, u32, u32, ~a & 0xffff)                    \
  X(cnot_32, u32, u32, a == 0)                        \
  X(neg_32, u32, u32, 0u - a)                         \
  X(neg_64, u64, u64, 0ull - a)                       \
  X(neg_16, u32, u32, (0u - a) & 0xffff)              \
  X(abs_s32, u32, s32, a < 0 ? 0u - (u32)a : (u32)a)  \
  X(abs_s64, u64, s64, a < 0 ? 0ull - (u64)a : (u64)a) \
  X(abs_s16, u32, s32, (u32)((s16)a < 0 ? -(s16)a : (s16)a) & 0xffff) \
  X(popc_32, u32, u32, (u32)__builtin_popcount(a))    \
  X(popc_64, u32, u64, (u32)__builtin_popcountll(a))  \
  X(clz_32, u32, u32, a ? (u32)__builtin_clz(a) : 32u) \
  X(clz_64, u32, u64, a ? (u32)__builtin_clzll(a) : 64u) \
  X(brev_32, u32, u32, brev32(a))                     \
  X(brev_64, u64, u64, (u64)brev32((u32)a) << 32 | brev32((u32)(a >> 32))) \
  X(bfind_u32, u32, u32, a ? 31u - (u32)__builtin_clz(a) : ~0u) \
  X(bfind_s32, u32, s32, bfind_s(a, 31))              \
  X(bfind_u64, u32, u64, a ? 63u - (u32)__builtin_clzll(a) : ~0u) \
  X(bfind_s64, u32, s64, bfind_s(a, 63))              \
  X(bfind_shiftamt_u32, u32, u32, a ? (u32)__builtin_clz(a) : ~0u) \
  X(bfind_shiftamt_s32, u32, s32, bfind_s(a, 31) == ~0u ? ~0u : 31u - bfind_s(a, 31)) \
  X(bfind_shiftamt_s64, u32, s64, bfind_s(a, 63) == ~0u ? ~0u : 63u - bfind_s(a, 63)) \
  X(bfind_shiftamt_u64, u32, u64, a ? (u32)__builtin_clzll(a) : ~0u) \
  X(neg_f32, u32, u32, is_nan(a) ? 0x7fffffffu : a ^ 0x80000000u)               \
  X(abs_f32, u32, u32, is_nan(a) ? 0x7fffffffu : a & 0x7fffffffu)               \
  X(neg_ftz_f32, u32, u32, is_nan(a) ? 0x7fffffffu : ftz(a) ^ 0x80000000u)     \
  X(abs_ftz_f32, u32, u32, is_nan(a) ? 0x7fffffffu : ftz(a) & 0x7fffffffu)     \
  X(flush_f32, u32, u32, ftz(a))                                                \
  X(neg_f64, u64, u64, is_nan64(a) ? quiet64(a) : a ^ 0x8000000000000000ull)     \
  X(abs_f64, u64, u64, is_nan64(a) ? quiet64(a) : a & 0x7fffffffffffffffull)     \
  X(neg_f16, u32, u32, half_sign(a, 0x7c00u, 1)) \
  X(neg_f16x2, u32, u32, half_sign(a, 0x7c00u, 1) | half_sign(a >> 16, 0x7c00u, 1) << 16) \
  X(neg_bf16, u32, u32, half_sign(a, 0x7f80u, 1)) \
  X(neg_bf16x2, u32, u32, half_sign(a, 0x7f80u, 1) | half_sign(a >> 16, 0x7f80u, 1) << 16) \
  X(abs_f16, u32, u32, half_sign(a, 0x7c00u, 0)) \
  X(abs_f16x2, u32, u32, half_sign(a, 0x7c00u, 0) | half_sign(a >> 16, 0x7c00u, 0) << 16) \
  X(abs_bf16, u32, u32, half_sign(a, 0x7f80u, 0)) \
  X(abs_bf16x2, u32, u32, half_sign(a, 0x7f80u, 0) | half_sign(a >> 16, 0x7f80u, 0) << 16) \
  X(cvt_u8_32, u32, u32, a & 0xff)                    \
  X(cvt_s8_32, u32, u32, (u32)(s32)(s8)a)             \
  X(cvt_u16_32, u32, u32, a & 0xffff)                 \
  X(cvt_s16_32, u32, u32, (u32)(s32)(s16)a)           \
  X(cvt_s8_16, u32, u32, (u32)(s32)(s8)a & 0xffff)    \
  X(cvt_u32_64, u64, u32, a)                          \
  X(cvt_s32_64, u64, u32, (u64)(s64)(s32)a)           \
  X(cvt_u16_64, u64, u32, a & 0xffff)                 \
  X(cvt_s16_64, u64, u32, (u64)(s64)(s16)a)           \
  X(cvt_u8_64, u64, u32, a & 0xff)                    \
  X(cvt_s8_64, u64, u32, (u64)(s64)(s8)a)             \
  X(cvt_64_16, u32, u64, (u32)a & 0xffff)             \
  X(cvt_f32_s32, f32, s32, (f32)a)                    \
  X(cvt_f32_u32, f32, u32, (f32)a)                    \
  X(cvt_f64_f32, u64, f32, bits64((f64)a))                  \
  X(cvt_f64_s32, f64, s32, (f64)a)                    \
  X(cvt_f64_u32, f64, u32, (f64)a)                    \
  X(cvt_s32_f32, u32, f32, a == a ? s32_of(a) : 0)    \
  X(cvt_u32_f32, u32, f32, a == a ? u32_of(a) : 0)    \
  X(cvt_s32_f64, u32, f64, a == a ? s32_of(a) : 0x80000000u) \
  X(cvt_u32_f64, u32, f64, a == a ? u32_of(a) : 0x80000000u) \
  X(cvt_f32_f64, u32, u64, f32_of_f64(a))             \
  X(cvt_f32_bf16, u32, u32, a << 16)                  \
  X(cvt_f32_f16, u32, u32, f16_bits32((u16)a))        \
  X(cvt_bf16_f32, u32, u32, bf16_of(a))               \
  X(cvt_f16_f32, u32, u32, f16_of(a))                 \
  X(cvta_shared, u64, u64, a + VG_SHARED_WINDOW)      \
  X(cvta_to_shared, u64, u64, a - VG_SHARED_WINDOW)   \
  X(cvta_local, u64, u64, a + VG_LOCAL_WINDOW)        \
  X(cvta_to_local, u64, u64, a - VG_LOCAL_WINDOW)     \
  X(ex2_f32, u32, u32, ex2(a))                        \
  X(ex2_ftz_f32, u32, u32, ftz(ex2(ftz(a))))          \
  X(lg2_f32, u32, u32, lg2(a))                        \
  X(lg2_ftz_f32, u32, u32, ftz(lg2(ftz(a))))          \
  X(rcp_f32, u32, u32, nan32(1.0f / bits_f32(a)))     \
  X(rcp_ftz_f32, u32, u32, ftz(nan32(1.0f / bits_f32(ftz(a))))) \
  X(sqrt_f32, u32, f32, nan32(sqrtf(a)))              \
  X(sqrt_ftz_f32, u32, u32, ftz(nan32(sqrtf(bits_f32(ftz(a)))))) \
  X(rsqrt_f32, u32, u32, rsqrt(a))                    \
  X(rsqrt_ftz_f32, u32, u32, ftz(rsqrt(ftz(a))))      \
  X(sin_f32, u32, f32, nan32(sin_approx(a)))                \
  X(cos_f32, u32, f32, nan32(cos_approx(a)))                \
  X(tanh_f32, u32, f32, nan32(tanhf(a)))              \
  X(rcp_f64, u64, f64, nan_of(1.0 / a, a, a, a))                \
  X(sqrt_f64, u64, f64, nan_of(sqrt(a), a, a, a))               \
  X(rsqrt_f64, u64, f64, nan_of(1.0 / sqrt(a), a, a, a)) \
  X(rcp_gross_f64, u64, f64, gross64(1.0 / ftz64(a), a)) \
  X(rsqrt_gross_f64, u64, f64, gross64(1.0 / sqrt(ftz64(a)), a))        \
  X(isspacep_shared, u64, u64, (a >> 56) == 0x40)     \
  X(cluster_rank_of, u32, u64, (u32)(a >> 24) & 0xff)

#define OPS2(X)                                                   \
  X(add_32, u32, u32, u32, a + b)                                 \
  X(sub_32, u32, u32, u32, a - b)                                 \
  X(h_choice, u32, u32, u32, h_choice(a, b, in->kind, (int)in->imm)) \
  X(mullo_32, u32, u32, u32, a * b)                               \
  X(add_64, u64, u64, u64, a + b)                                 \
  X(sub_64, u64, u64, u64, a - b)                                 \
  X(mullo_64, u64, u64, u64, a * b)                               \
  X(add_16, u32, u32, u32, (a + b) & 0xffff)                      \
  X(sub_16, u32, u32, u32, (a - b) & 0xffff)                      \
  X(mullo_16, u32, u32, u32, (a * b) & 0xffff)                    \
  X(add_sat_s32, u32, s32, s32, sat32((s64)a + b))                \
  X(sub_sat_s32, u32, s32, s32, sat32((s64)a - b))                \
  X(mulhi_s32, u32, s32, s32, (u32)(((s64)a * b) >> 32))          \
  X(mulhi_u32, u32, u32, u32, (u32)(((u64)a * b) >> 32))          \
  X(mulhi_s64, u64, s64, s64, (u64)(((__int128)a * b) >> 64))     \
  X(mulhi_u64, u64, u64, u64, (u64)(((unsigned __int128)a * b) >> 64)) \
  X(mulhi_s16, u32, u32, u32, (u32)(((s32)(s16)a * (s16)b) >> 16) & 0xffff) \
  X(mulhi_u16, u32, u32, u32, ((a & 0xffff) * (b & 0xffff)) >> 16) \
  X(mulwide_s32, u64, s32, s32, (u64)((s64)a * b))                \
  X(mulwide_u32, u64, u32, u32, (u64)a * b)                       \
  X(mulwide_s16, u32, u32, u32, (u32)((s32)(s16)a * (s16)b))      \
  X(mulwide_u16, u32, u32, u32, (a & 0xffff) * (b & 0xffff))      \
  X(mul24_u32, u32, u32, u32, (a & 0xffffff) * (b & 0xffffff))    \
  X(mul24hi_u32, u32, u32, u32, (u32)((u64)(a & 0xffffff) * (b & 0xffffff) >> 16)) \
  X(mul24hi_s32, u32, u32, u32, (u32)((s64)((s32)(a << 8) >> 8) * ((s32)(b << 8) >> 8) >> 16)) \
  X(mul24_s32, u32, u32, u32, (u32)((s32)(a << 8) >> 8) * (u32)((s32)(b << 8) >> 8)) \
  X(and_32, u32, u32, u32, a & b)                                 \
  X(or_32, u32, u32, u32, a | b)                                  \
  X(xor_32, u32, u32, u32, a ^ b)                                 \
  X(and_64, u64, u64, u64, a & b)                                 \
  X(or_64, u64, u64, u64, a | b)                                  \
  X(xor_64, u64, u64, u64, a ^ b)                                 \
  X(shl_32, u32, u32, u32, b > 31 ? 0 : a << (b & 31))            \
  X(shr_u32, u32, u32, u32, b > 31 ? 0 : a >> (b & 31))           \
  X(shr_s32, u32, s32, u32, (u32)(a >> (b > 31 ? 31 : b)))        \
  X(shl_64, u64, u64, u32, b > 63 ? 0 : a << (b & 63))            \
  X(shr_u64, u64, u64, u32, b > 63 ? 0 : a >> (b & 63))           \
  X(shr_s64, u64, s64, u32, (u64)(a >> (b > 63 ? 63 : b)))        \
  X(shl_16, u32, u32, u32, b > 15 ? 0 : (a << (b & 15)) & 0xffff) \
  X(shr_u16, u32, u32, u32, b > 15 ? 0 : (a & 0xffff) >> (b & 15)) \
  X(shr_s16, u32, u32, u32, (u32)((s32)(s16)a >> (b > 15 ? 15 : b)) & 0xffff) \
  X(min_s32, s32, s32, s32, a < b ? a : b)                        \
  X(max_s32, s32, s32, s32, a > b ? a : b)                        \
  X(min_u32, u32, u32, u32, a < b ? a : b)                        \
  X(max_u32, u32, u32, u32, a > b ? a : b)                        \
  X(min_s64, s64, s64, s64, a < b ? a : b)                        \
  X(max_s64, s64, s64, s64, a > b ? a : b)                        \
  X(min_u64, u64, u64, u64, a < b ? a : b)                        \
  X(max_u64, u64, u64, u64, a > b ? a : b)                        \
  X(min_s16, u32, u32, u32, (s16)a < (s16)b ? a : b)              \
  X(max_s16, u32, u32, u32, (s16)a > (s16)b ? a : b)              \
  X(min_u16, u32, u32, u32, (u16)a < (u16)b ? a : b)              \
  X(max_u16, u32, u32, u32, (u16)a > (u16)b ? a : b)              \
  X(div_s32, u32, s32, s32, b == 0 ? ~0u : b == -1 ? 0u - (u32)a : (u32)(a / b)) \
  X(div_u32, u32, u32, u32, b == 0 ? ~0u : a / b)                 \
  X(rem_s32, u32, s32, s32, b == 0 ? ~0u : b == -1 ? 0u : (u32)(a % b)) \
  X(rem_u32, u32, u32, u32, b == 0 ? ~0u : a % b)                 \
  X(div_s64, u64, s64, s64, b == 0 ? ~0ull : b == -1 ? 0ull - (u64)a : (u64)(a / b)) \
  X(div_u64, u64, u64, u64, b == 0 ? ~0ull : a / b)               \
  X(rem_s64, u64, s64, s64, b == 0 ? ~0ull : b == -1 ? 0ull : (u64)(a % b)) \
  X(rem_u64, u64, u64, u64, b == 0 ? ~0ull : a % b)                   \
  X(div_s16, u32, u32, u32, (s16)b == 0 ? 0xffff : (u32)((s32)(s16)a / (s16)b) & 0xffff) \
  X(div_u16, u32, u32, u32, (u16)b == 0 ? 0xffff : (u32)((u16)a / (u16)b)) \
  X(rem_s16, u32, u32, u32, (s16)b == 0 ? 0xffff : (u32)((s32)(s16)a % (s16)b) & 0xffff) \
  X(rem_u16, u32, u32, u32, (u16)b == 0 ? 0xffff : (u32)((u16)a % (u16)b)) \
  X(add_f32, u32, f32, f32, nan32(a + b))                         \
  X(sub_f32, u32, f32, f32, nan32(a - b))                         \
  X(mul_f32, u32, f32, f32, nan32(a * b))                         \
  X(add_ftz_f32, u32, u32, u32, ftz(nan32(bits_f32(ftz(a)) + bits_f32(ftz(b))))) \
  X(sub_ftz_f32, u32, u32, u32, ftz(nan32(bits_f32(ftz(a)) - bits_f32(ftz(b))))) \
  X(mul_ftz_f32, u32, u32, u32, ftz(nan32(bits_f32(ftz(a)) * bits_f32(ftz(b))))) \
  X(min_ftz_f32, u32, u32, u32, min_f(ftz(a), ftz(b)))            \
  X(max_ftz_f32, u32, u32, u32, max_f(ftz(a), ftz(b)))            \
  X(div_approx_f32, u32, f32, f32, div_approx(a, b))              \
  X(div_approx_ftz_f32, u32, u32, u32, ftz(div_approx(bits_f32(ftz(a)), bits_f32(ftz(b))))) \
  X(div_f32, u32, f32, f32, nan32(a / b))                         \
  X(div_f64, u64, f64, f64, nan_of(a / b, a, b, b))                         \
  X(min_f32, u32, u32, u32, min_f(a, b))                          \
  X(max_f32, u32, u32, u32, max_f(a, b))                          \
  X(min_nan_f32, u32, u32, u32, is_nan(a) || is_nan(b) ? 0x7fffffffu : min_f(a, b)) \
  X(max_nan_f32, u32, u32, u32, is_nan(a) || is_nan(b) ? 0x7fffffffu : max_f(a, b)) \
  X(min_f64, u64, f64, f64, a != a ? quiet64(bits64(b)) : b != b ? quiet64(bits64(a)) : a < b || (a == b && signbit(a)) ? bits64(a) : bits64(b)) \
  X(max_f64, u64, f64, f64, a != a ? quiet64(bits64(b)) : b != b ? quiet64(bits64(a)) : a > b || (a == b && !signbit(a)) ? bits64(a) : bits64(b)) \
  X(xorsign_32, u32, u32, u32, (a & 0x80000000u) ^ (b & 0x80000000u)) \
  X(sign_f32, u32, u32, u32, is_nan(a) ? a : a | b)               \
  X(sign_f16, u32, u32, u32, signed2(a, b, 0x7c00))               \
  X(sign_bf16, u32, u32, u32, signed2(a, b, 0x7f80))              \
  X(xorsign_h, u32, u32, u32, (a ^ b) & 0x80008000u) \
  X(copysign_32, u32, u32, u32, (a & 0x80000000u) | (b & 0x7fffffffu)) \
  X(copysign_64, u64, u64, u64, (a & 0x8000000000000000ull) | (b & 0x7fffffffffffffffull)) \
  X(pack_16, u32, u32, u32, (a & 0xffff) | b << 16)               \
  X(pack_32, u64, u32, u32, (u64)a | (u64)b << 32)                \
  X(cvt_bf16x2_f32, u32, u32, u32, bf16_of(a) << 16 | bf16_of(b)) \
  X(cvt_f16x2_f32, u32, u32, u32, f16_of(a) << 16 | f16_of(b))    \
  X(mapa_64, u64, u64, u32, (a & ~(0xffull << 24)) | (u64)(b + 1) << 24) \
  X(mapa_32, u32, u32, u32, (a & 0xffffff) | (b + 1) << 24)       \
  X(bmsk_clamp, u32, u32, u32, bmsk(a > 32 ? 32 : a, b > 32 ? 32 : b)) \
  X(bmsk_wrap, u32, u32, u32, bmsk(a & 31, b & 31))               \
  X(szext, u32, u32, u32, szext(a, b, in->kind))                  \
  X(pair16, u32, u32, u32, pair16(a, b, in->kind, (int)in->imm))  \
  X(mix, u32, u32, u32, mixed(a, b, (u32)in->imm))

#define OPS3(X)                                                       \
  X(madlo_32, u32, u32, u32, u32, a * b + c)                          \
  X(madlo_64, u64, u64, u64, u64, a * b + c)                          \
  X(madlo_16, u32, u32, u32, u32, (a * b + c) & 0xffff)               \
  X(madhi_s32, u32, s32, s32, u32, (u32)(((s64)a * b) >> 32) + c)     \
  X(madhi_u32, u32, u32, u32, u32, (u32)(((u64)a * b) >> 32) + c)     \
  X(madwide_s32, u64, s32, s32, u64, (u64)((s64)a * b) + c)           \
  X(madwide_u32, u64, u32, u32, u64, (u64)a * b + c)                  \
  X(madwide_s16, u32, u32, u32, u32, (u32)((s32)(s16)a * (s16)b) + c) \
  X(madwide_u16, u32, u32, u32, u32, (a & 0xffff) * (b & 0xffff) + c) \
  X(fma_f32, u32, f32, f32, f32, nan32(FMA32(a, b, c)))               \
  X(fma_ftz_f32, u32, u32, u32, u32, ftz(nan32(FMA32(bits_f32(ftz(a)), bits_f32(ftz(b)), bits_f32(ftz(c)))))) \
  X(sad_s32, u32, s32, s32, u32, (u32)(a < b ? (s64)b - a : (s64)a - b) + c) \
  X(sad_s64, u64, s64, s64, u64, (a < b ? (u64)b - (u64)a : (u64)a - (u64)b) + c) \
  X(sad_u64, u64, u64, u64, u64, (a < b ? b - a : a - b) + c)         \
  X(sad_s16, u32, u32, u32, u32, ((u32)((s16)a < (s16)b ? (s16)b - (s16)a : (s16)a - (s16)b) + c) & 0xffff) \
  X(sad_u16, u32, u32, u32, u32, ((u32)((u16)a < (u16)b ? (u16)b - (u16)a : (u16)a - (u16)b) + c) & 0xffff) \
  X(fns, u32, u32, u32, s32, fns(a, b, c))                            \
  X(cvt_sat_pack, u32, s32, s32, u32, sat_pack(a, b, c, in->kind))    \
  X(video, u32, u32, u32, u32, video(a, b, c, in->kind, (u32)in->imm)) \
  X(sad_u32, u32, u32, u32, u32, (a < b ? b - a : a - b) + c)         \
  X(shf_l_wrap, u32, u32, u32, u32, (u32)((((u64)b << 32 | a) << (c & 31)) >> 32)) \
  X(shf_l_clamp, u32, u32, u32, u32, (u32)((c >= 32 ? (u64)a << 32 : ((u64)b << 32 | a) << c) >> 32)) \
  X(shf_r_wrap, u32, u32, u32, u32, (u32)(((u64)b << 32 | a) >> (c & 31))) \
  X(shf_r_clamp, u32, u32, u32, u32, (u32)(((u64)b << 32 | a) >> (c > 32 ? 32 : c))) \
  X(bfe_u32, u32, u32, u32, u32, bfe_u(a, b, c, 32))                  \
  X(bfe_s32, u32, u32, u32, u32, bfe_s(a, b, c, 32))                  \
  X(bfe_u64, u64, u64, u32, u32, bfe_u(a, b, c, 64))                  \
  X(bfe_s64, u64, u64, u32, u32, bfe_s(a, b, c, 64))                  \
  X(prmt, u32, u32, u32, u32, prmt(a, b, c, in->kind))                \
  X(lop3, u32, u32, u32, u32, lop3(a, b, c, in->kind))                \
  X(min3_f32, u32, u32, u32, u32, min_f(min_f(a, b), c))              \
  X(max3_f32, u32, u32, u32, u32, max_f(max_f(a, b), c))              \
  X(dp4a, u32, u32, u32, u32, dp4a(a, b, c, in->kind))                \
  X(dp2a, u32, u32, u32, u32, dp2a(a, b, c, in->kind))                \
  X(slct_32, u32, u32, u32, s32, c >= 0 ? a : b)                      \
  X(slct_f32, u32, u32, u32, f32, c >= 0 ? a : b)                     \
  X(slct_64, u64, u64, u64, s32, c >= 0 ? a : b)                      \
  X(f_arith, u32, u32, u32, u32, f_arith(a, b, c, in->kind, (int)in->imm)) \
  X(d_arith, u64, u64, u64, u64, d_arith(a, b, c, in->kind, (int)in->imm))

// Comparisons: name, type compared, type of the operands.
#define OPSCMP(X) \
  X(setp_s32, s32, u32) X(setp_u32, u32, u32) X(setp_s64, s64, u64) X(setp_u64, u64, u64) X(setp_f32, f32, f32) \
  X(setp_f64, f64, f64) X(setp_s16, s16, u32) X(setp_u16, u16, u32)

// Instructions that need more than one lane, memory or control flow.
#define OPSX(X) \
  X(mov_32) X(nop) X(bra) X(brx) X(call) X(calli) X(ret) X(exit) X(trap) X(brkpt) X(folded) X(missing) X(selp_32) X(selp_64) X(pand) X(por) X(pxor) \
  X(pnot) X(pmov) X(pconst) X(setp_h) X(setp_h2) X(testp_f32) X(testp_f64) X(set_of_pred) X(ldparam) X(ld_global) X(ld_shared) \
  X(ld_local) X(ld_generic) X(st_global) X(st_shared) X(st_local) X(st_generic) X(local_address) X(atom) X(shfl) X(vote) X(ballot) \
  X(match_any) X(match_all) X(redux) X(activemask) X(elect) X(warp_sync) X(bar) X(barrier_cluster) X(fence) X(mma) X(mma_f64) X(ldmatrix) \
  X(stmatrix) X(movmatrix) X(mbar) X(cp_async) X(cp_async_arrive) X(cp_async_commit) X(cp_async_wait) X(bulk_commit) X(bulk_wait) X(wgmma_commit) X(wgmma_wait) X(cp_bulk) X(cp_tensor) X(tensor_map) X(st_async) \
  X(wgmma) X(tc_move) X(tc_mma) X(tcgen05) X(nanosleep) X(clock) X(policy) X(cvt) X(bfi_32) X(bfi_64) \
  X(addc) X(vprintf) X(assertfail) X(malloc) X(free) X(isspacep) X(mov_pred) X(cvt_pack) X(cvt_narrow) X(cvt_from_narrow) X(f32x2) \
  X(descriptor) X(yield) X(h_arith) X(add_f64) X(sub_f64) X(mul_f64) X(fma_f64) X(undefined) X(mark) X(pair_32) X(pair_64) X(nonzero) X(tex) X(surf) X(device)
