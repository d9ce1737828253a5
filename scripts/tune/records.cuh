// Shared by tune.cu, prefill.cu and floors.cu: checks of calls, and CUPTI's records of kernels.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <cupti.h>

#define CHECK(call)                                                                                    \
  do {                                                                                                 \
    const cudaError_t status_ = (call);                                                                \
    if (status_ != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
      std::exit(1);                                                                                    \
    }                                                                                                  \
  } while (0)
#define CHECK_CUPTI(call)                                                                \
  do {                                                                                   \
    const CUptiResult status_ = (call);                                                  \
    if (status_ != CUPTI_SUCCESS) {                                                      \
      std::fprintf(stderr, "%s:%d: %s: CUPTI error %d\n", __FILE__, __LINE__, #call, int(status_)); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (0)

// Start and duration of a kernel in ns.
struct Record {
  uint64_t start, duration;
  bool operator<(const Record& o) const { return start < o.start; }
};
static std::vector<Record> records;

static void CUPTIAPI buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = 8 << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *max_records = 0;
}

static void CUPTIAPI buffer_completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      const uint64_t start = k->start, end = k->end;
      records.push_back({start, end - start});
    }
  }
  std::free(buffer);
}
