// A libcuda.so.1 for tests on machines without a GPU: device memory is host memory, and all work is done when the call that
// starts it returns. A solution can call fake_fault and fake_hang to make the device fail.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fakecuda.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_READY = 600 };

static int fault, hang;
static long live; // allocations, streams and events not given back: counted in the memory that a device says it has

void fake_fault(int code) { fault = code; }
void fake_hang(void) { hang = 1; }

// What was done, in order.
static struct fake_record records[1 << 20];
static size_t n_records;
static uint32_t correlation;

size_t fake_records(struct fake_record **r) { return *r = records, n_records; }

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void note(struct fake_record r) {
  if (n_records < sizeof records / sizeof *records) records[n_records++] = r;
}

// A call of the driver's function number cbid, after it what it launched, if kind is not 0.
static void launched(uint32_t cbid, struct fake_record r) {
  uint64_t t = now();
  correlation++;
  note((struct fake_record){.kind = 4, .correlation = correlation, .thread = (uint32_t)(uintptr_t)pthread_self(), .start = t, .end = t + 10, .value = cbid});
  r.correlation = correlation, r.start += t, r.end += t;
  if (r.kind != 0) note(r);
}

// fake_launch is a kernel that starts after delay ns and runs for ns.
void fake_launch(const char *name, long delay, long ns) {
  launched(307, (struct fake_record){.kind = 10, .start = delay, .end = delay + ns, .name = name});
}

// fake_host_function is a call of cuLaunchHostFunc.
void fake_host_function(void) { launched(527, (struct fake_record){0}); }

static void *late(void *ns) {
  launched(307, (struct fake_record){.kind = 10, .start = 5000, .end = 5000 + (long)ns, .name = "late"});
  return NULL;
}

// fake_thread is a kernel that another thread launches.
void fake_thread(long ns) {
  pthread_t t;
  if (pthread_create(&t, NULL, late, (void *)ns) == 0) pthread_join(t, NULL);
}

// After fake_late, the next synchronization is the time at which another thread launches a kernel of ns.
static long waiting;
void fake_late(long ns) { waiting = ns; }

static int env(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text != NULL ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { return flags != 0 ? INVALID_VALUE : env("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int *v) { return *v = env("FAKE_CUDA_VERSION", 13000), SUCCESS; }
int cuDeviceGetCount(int *n) { return *n = 2, SUCCESS; }
int cuDeviceGet(int *dev, int ordinal) { return *dev = ordinal, ordinal < 2 ? SUCCESS : INVALID_DEVICE; }
int cuDeviceGetName(char *name, int n, int dev) { return strncpy(name, dev == 0 ? "Fake 0" : "Fake 1", n), SUCCESS; }
int cuDeviceTotalMem_v2(size_t *n, int dev) { return *n = ((size_t)(dev + 1) << 30) + live, SUCCESS; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int dev) { return memset(uuid, 0x10 + dev, 16), SUCCESS; }
int cuDeviceGetAttribute(int *v, int attribute, int dev) {
  (void)dev;
  switch (attribute) {
    case 16: return *v = 132, SUCCESS;       // multiprocessors
    case 36: return *v = 1000000, SUCCESS;   // memory clock, kHz
    case 37: return *v = 512, SUCCESS;       // memory bus, bits
    case 38: return *v = 3 << 20, SUCCESS;   // L2 bytes
    case 75: return *v = 9, SUCCESS;         // compute capability
    case 76: return *v = 0, SUCCESS;
    case 108: return *v = 2 << 20, SUCCESS;  // the part of the L2 for persisting lines, at most
  }
  return INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **ctx, int dev) { return *ctx = (void *)(intptr_t)(dev + 1), SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int dev) { return (void)dev, SUCCESS; }
int cuCtxSetCurrent(void *ctx) { return ctx != NULL ? SUCCESS : INVALID_VALUE; }
int cuCtxSynchronize(void) {
  if (waiting > 0) fake_thread(waiting);
  return waiting = 0, fault;
}

// The part of the L2 for persisting lines, which fake_reserve changes.
static size_t reserved = 10 << 20;
void fake_reserve(long n) { reserved = n; }
int cuCtxGetLimit(size_t *n, int limit) { return *n = reserved, limit == 6 ? SUCCESS : INVALID_VALUE; }
int cuCtxResetPersistingL2Cache(void) { return fault; }

int cuStreamCreate(void **s, unsigned flags) { return *s = malloc(1), live++, flags == 0 ? fault : INVALID_VALUE; }
int cuStreamDestroy_v2(void *s) { return free(s), live--, fault; }
int cuStreamSynchronize(void *s) { return (void)s, fault; }

int cuEventCreate(void **e, unsigned flags) { return *e = calloc(1, sizeof(struct timespec)), live++, flags == 0 ? fault : INVALID_VALUE; }
int cuEventDestroy_v2(void *e) { return free(e), live--, fault; }
int cuEventRecord(void *e, void *s) { return (void)s, clock_gettime(CLOCK_MONOTONIC, e), fault; }
int cuEventQuery(void *e) { return (void)e, launched(120, (struct fake_record){0}), hang ? NOT_READY : fault; }
int cuEventElapsedTime_v2(float *ms, struct timespec *start, struct timespec *end) {
  *ms = (end->tv_sec - start->tv_sec) * 1e3f + (end->tv_nsec - start->tv_nsec) * 1e-6f;
  return fault;
}

int cuMemAlloc_v2(uint64_t *p, size_t n) {
  void *m = NULL;
  if (n == 0) return INVALID_VALUE;
  if (n > (size_t)1 << 30 || posix_memalign(&m, 256, n) != 0) return OUT_OF_MEMORY;
  return *p = (uint64_t)(uintptr_t)m, live++, fault;
}
int cuMemFree_v2(uint64_t p) { return free((void *)(uintptr_t)p), live--, fault; }
int cuMemcpyHtoDAsync_v2(uint64_t d, const void *h, size_t n, void *s) { return (void)s, launched(279, (struct fake_record){.kind = 1, .end = 5, .bytes = n, .value = 1}), memcpy((void *)(uintptr_t)d, h, n), fault; }
int cuMemcpyDtoHAsync_v2(void *h, uint64_t d, size_t n, void *s) { return (void)s, memcpy(h, (void *)(uintptr_t)d, n), fault; }
int cuMemcpyDtoDAsync_v2(uint64_t d, uint64_t s, size_t n, void *q) { return (void)q, memcpy((void *)(uintptr_t)d, (void *)(uintptr_t)s, n), fault; }
int cuMemsetD8Async(uint64_t d, unsigned char v, size_t n, void *s) { return (void)s, launched(285, (struct fake_record){.kind = 2, .end = 20, .bytes = n, .value = v}), memset((void *)(uintptr_t)d, v, n), fault; }

int cuGetErrorName(int code, const char **name) {
  *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
  return *name != NULL ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == OUT_OF_MEMORY ? "out of memory" : code == 700 ? "an illegal memory access was encountered" : NULL;
  return *text != NULL ? SUCCESS : INVALID_VALUE;
}
