//go:build linux && cgo

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt")
#endif
#define VG_WIDE 1
#define VG_WORK vg_work_wide
#include "exec_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
