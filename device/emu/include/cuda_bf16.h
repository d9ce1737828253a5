// __nv_bfloat16 and __nv_bfloat162.
#ifndef FISUB_EMU_CUDA_BF16_H_
#define FISUB_EMU_CUDA_BF16_H_

#include "fisub_narrow.h"

FISUB_NARROW_TYPE(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16_raw, __nv_bfloat162_raw, to_bf16, from_bf16)
FISUB_NARROW_OPS(__nv_bfloat16, __nv_bfloat162)
FISUB_NARROW_CONVERSIONS(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162, to_bf16)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#endif  // FISUB_EMU_CUDA_BF16_H_
