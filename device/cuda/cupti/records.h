// The used fields of CUPTI's activity records, for little-endian machines with 64-bit pointers. Each struct is the
// beginning of a record that newer versions extend only at the end:
//
//     CUPTI of CUDA    12.0 to 12.7   12.8, 12.9   13.0, 13.1   13.2   13.3
//     kernel           Kernel9        Kernel9      Kernel10     11     12
//     copy             Memcpy5        Memcpy6      Memcpy6
//     memset           Memset4
//     API call         API
//
// TestLayouts compares them with CUPTI's header.
#ifndef FISUB_CUPTI_RECORDS_H
#define FISUB_CUPTI_RECORDS_H

#include <stddef.h>
#include <stdint.h>

enum { KIND_MEMCPY = 1, KIND_MEMSET = 2, KIND_DRIVER = 4, KIND_RUNTIME = 5, KIND_CONCURRENT_KERNEL = 10 };

struct cupti_kernel {
  uint32_t kind;
  uint8_t cache_config, shared_config;
  uint16_t registers; // per thread
  uint32_t cache_requested, cache_executed;
  uint64_t start, end, completed; // ns
  uint32_t device, context, stream;
  int32_t grid[3], block[3];
  int32_t static_shared, dynamic_shared; // bytes
  uint32_t local;                        // bytes per thread
  uint32_t local_total;
  uint32_t correlation;
  int64_t grid_id;
  const char *name;
};

struct cupti_memcpy {
  uint32_t kind;
  uint8_t copy_kind, src_kind, dst_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};

struct cupti_memset {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};

struct cupti_api {
  uint32_t kind, cbid;
  uint64_t start, end;
  uint32_t process, thread, correlation, result;
};

_Static_assert(offsetof(struct cupti_kernel, registers) == 6, "kernel record: registers");
_Static_assert(offsetof(struct cupti_kernel, start) == 16, "kernel record: start");
_Static_assert(offsetof(struct cupti_kernel, grid) == 52, "kernel record: grid");
_Static_assert(offsetof(struct cupti_kernel, local) == 84, "kernel record: local memory");
_Static_assert(offsetof(struct cupti_kernel, correlation) == 92, "kernel record: correlation");
_Static_assert(offsetof(struct cupti_kernel, name) == 104, "kernel record: name");
_Static_assert(sizeof(struct cupti_memcpy) == 48 && sizeof(struct cupti_memset) == 48, "copy and memset record");
_Static_assert(offsetof(struct cupti_memcpy, start) == 16 && offsetof(struct cupti_memcpy, correlation) == 44, "copy record");
_Static_assert(offsetof(struct cupti_memset, start) == 16 && offsetof(struct cupti_memset, correlation) == 44, "memset record");
_Static_assert(offsetof(struct cupti_api, cbid) == 4 && offsetof(struct cupti_api, start) == 8 && offsetof(struct cupti_api, thread) == 28 && offsetof(struct cupti_api, correlation) == 32, "API record");

#endif
