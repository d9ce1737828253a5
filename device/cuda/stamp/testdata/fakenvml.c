// A libnvidia-ml.so.1 for tests: one GPU, and FAKE_NVML says what is special about it. With OLD it is that of a driver that
// has fewer functions.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

struct process {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};
struct utilization {
  unsigned pid;
  unsigned long long time;
  unsigned sm, memory, encoder, decoder;
};

static int is(const char *what) {
  const char *set = getenv("FAKE_NVML");
  return set != NULL && strcmp(set, what) == 0;
}

int nvmlInit_v2(void) { return is("down") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int r) {
  return r == NOT_SUPPORTED ? "Not Supported" : r == NOT_FOUND ? "Not Found" : r == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **dev) {
  *dev = (void *)(strncmp(uuid, "MIG-", 4) == 0 ? 2ul : 1ul);
  return strncmp(uuid, is("mig") ? "MIG-" : "GPU-", 4) == 0 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 1, SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **dev) { return *dev = (void *)1ul, i == 0 ? SUCCESS : NOT_FOUND; }
int nvmlDeviceGetUUID(void *dev, char *uuid, unsigned size) { return (void)dev, strncpy(uuid, "GPU-1", size), SUCCESS; }
int nvmlDeviceGetName(void *dev, char *name, unsigned size) { return (void)dev, strncpy(name, "NVIDIA Fake", size), SUCCESS; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **dev) { return *dev = (void *)1ul, slice == (void *)2ul ? SUCCESS : NOT_FOUND; }
int nvmlDeviceGetClockInfo(void *dev, int kind, unsigned *mhz) {
  static int n;
  *mhz = kind == 1 ? (is("clocks") && n++ % 2 ? 1755 : 1980) : 3201;
  return dev == (void *)1ul ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetTemperature(void *dev, int sensor, unsigned *c) { return (void)dev, *c = 41, sensor == 0 ? SUCCESS : NOT_SUPPORTED; }
int nvmlDeviceGetPowerUsage(void *dev, unsigned *mw) { return (void)dev, *mw = 123456, is("poor") ? NOT_SUPPORTED : SUCCESS; }
#ifdef OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(void *dev, unsigned long long *bits) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(void *dev, unsigned long long *bits) {
#endif
  return (void)dev, *bits = 1 | 2 | (is("throttled") ? 4 : 0), SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *dev, unsigned *n, struct process *p) {
  (void)dev;
  unsigned there = is("many") ? 20 : is("shared") || is("container") ? 2 : 1;
  if (*n < there) return *n = there, INSUFFICIENT_SIZE;
  p[0] = (struct process){.pid = is("container") ? 4000001 : getpid(), .memory = 500 << 20};
  for (unsigned i = 1; i < there; i++) p[i] = (struct process){.pid = 4000001 + i, .memory = i == 1 ? 700 << 20 : -1ull};
  return *n = there, SUCCESS;
}
#ifndef OLD
int nvmlDeviceGetProcessUtilization(void *dev, struct utilization *u, unsigned *n, unsigned long long since) {
  (void)dev;
  if (since < 1000000000000000ull) return NOT_SUPPORTED; // microseconds since 1970
  if (u == NULL) return *n = 2, INSUFFICIENT_SIZE;
  u[0] = (struct utilization){.pid = is("container") ? 4000001 : getpid(), .sm = 60};
  u[1] = (struct utilization){.pid = 4000002, .sm = 30};
  return SUCCESS;
}
int nvmlDeviceGetMigMode(void *dev, unsigned *now, unsigned *later) { return (void)dev, *now = *later = is("mig"), SUCCESS; }
#endif
int nvmlDeviceGetEccMode(void *dev, unsigned *now, unsigned *later) { return (void)dev, *now = *later = 1, SUCCESS; }
int nvmlDeviceGetTotalEccErrors(void *dev, int type, int counter, unsigned long long *n) {
  static int calls;
  *n = 7 + (is("ecc") ? 2 * calls++ : 0);
  return (void)dev, type == 1 && counter == 0 ? SUCCESS : NOT_SUPPORTED;
}
