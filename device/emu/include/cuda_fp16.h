// __half and __half2.
#ifndef FISUB_EMU_CUDA_FP16_H_
#define FISUB_EMU_CUDA_FP16_H_

#include "fisub_narrow.h"

FISUB_NARROW_TYPE(__half, __half2, __half_raw, __half2_raw, to_fp16, from_fp16)
FISUB_NARROW_OPS(__half, __half2)
FISUB_NARROW_CONVERSIONS(__half, __half2, half, half2, to_fp16)
typedef __half half;
typedef __half2 half2;
typedef __half nv_half;
typedef __half2 nv_half2;

#endif  // FISUB_EMU_CUDA_FP16_H_
