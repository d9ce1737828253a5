//go:build cuda && linux && cgo

// The used part of NVML, loaded at run time: NVML comes with the driver, and binaries start without one. Names, values
// and layouts are as in NVIDIA's nvml.h.
#ifndef FISUB_STAMP_NVML_H
#define FISUB_STAMP_NVML_H

enum {
  NVML_SUCCESS = 0,
  NVML_NOT_FOUND = 6,
  NVML_INSUFFICIENT_SIZE = 7,
  NVML_LIBRARY_NOT_FOUND = 12,
  NVML_FUNCTION_NOT_FOUND = 13,
};
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };
enum { NVML_TEMPERATURE_GPU = 0, NVML_UNCORRECTED = 1, NVML_VOLATILE_ECC = 0 };
enum { NVML_MIG_ENABLE = 1, NVML_FEATURE_ENABLED = 1 };
enum { NVML_CLOCKS_SET_BY_USER = 2 };
enum { NVML_NAME_SIZE = 96 }; // of names and UUIDs

typedef void *nvml_device;

typedef struct {
  unsigned pid;
  unsigned long long memory; // all ones if unknown
  unsigned gpu_instance, compute_instance;
} nvml_process;

typedef struct {
  unsigned pid;
  unsigned long long time; // µs since 1970
  unsigned sm, memory, encoder, decoder;
} nvml_utilization;

// Each of these functions is callable as fisub_NAME. It returns NVML_FUNCTION_NOT_FOUND before fisub_nvml_load, and if
// the driver does not have it.
#define NVML_FUNCTIONS                                                                                                 \
  X(nvmlInit_v2, (void), ())                                                                                           \
  X(nvmlShutdown, (void), ())                                                                                          \
  X(nvmlDeviceGetCount_v2, (unsigned *n), (n))                                                                         \
  X(nvmlDeviceGetHandleByIndex_v2, (unsigned i, nvml_device *d), (i, d))                                               \
  X(nvmlDeviceGetHandleByUUID, (const char *uuid, nvml_device *d), (uuid, d))                                          \
  X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvml_device slice, nvml_device *d), (slice, d))                     \
  X(nvmlDeviceGetUUID, (nvml_device d, char *uuid, unsigned size), (d, uuid, size))                                    \
  X(nvmlDeviceGetName, (nvml_device d, char *name, unsigned size), (d, name, size))                                    \
  X(nvmlDeviceGetMigMode, (nvml_device d, unsigned *now, unsigned *pending), (d, now, pending))                        \
  X(nvmlDeviceGetClockInfo, (nvml_device d, int clock, unsigned *mhz), (d, clock, mhz))                                \
  X(nvmlDeviceGetTemperature, (nvml_device d, int sensor, unsigned *celsius), (d, sensor, celsius))                    \
  X(nvmlDeviceGetPowerUsage, (nvml_device d, unsigned *mw), (d, mw))                                                   \
  X(nvmlDeviceGetCurrentClocksEventReasons, (nvml_device d, unsigned long long *bits), (d, bits))                      \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, (nvml_device d, unsigned long long *bits), (d, bits))                   \
  X(nvmlDeviceGetEccMode, (nvml_device d, unsigned *now, unsigned *pending), (d, now, pending))                        \
  X(nvmlDeviceGetTotalEccErrors, (nvml_device d, int type, int counter, unsigned long long *n), (d, type, counter, n)) \
  X(nvmlDeviceGetComputeRunningProcesses_v3, (nvml_device d, unsigned *n, nvml_process *all), (d, n, all))             \
  X(nvmlDeviceGetProcessUtilization, (nvml_device d, nvml_utilization *all, unsigned *n, unsigned long long since),    \
    (d, all, n, since))

#define X(name, params, args) int fisub_##name params;
NVML_FUNCTIONS
#undef X

// fisub_nvml_load loads and initialises libnvidia-ml.so.1, or returns NVML_LIBRARY_NOT_FOUND. Each success needs one
// fisub_nvmlShutdown.
int fisub_nvml_load(void);

// fisub_nvml_error returns a result's text, a static string.
const char *fisub_nvml_error(int result);

#endif
