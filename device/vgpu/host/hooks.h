// What the runtime library leaves to the program that has loaded it. Results that are numbers are of cudaError_t.
#pragma once
#include <stddef.h>

// Of one kernel: bytes of static shared memory, bytes of local memory of a thread, threads of the largest block, registers of a
// thread, and the compute capability that it was compiled for, such as 100.
typedef struct {
  int shared, local, threads, registers, arch;
} fisub_vgpu_attributes;

typedef struct {
  void *(*module)(const void *fatbin);
  // prepare copies what a launch needs; NULL with *error set where the launch is refused. launch may be called any number of times.
  // The numbers are grid, block and cluster (0: the kernel's own), whether it is cooperative, and whether clusters of more than 8
  // blocks are allowed.
  void *(*prepare)(void *module, const char *kernel, const unsigned numbers[11], void **args, size_t shared, int *error);
  int (*launch)(void *prepared);
  void (*forget)(void *prepared);
  int (*attributes)(void *module, const char *kernel, fisub_vgpu_attributes *out);
  int (*blocks)(void *module, const char *kernel, int threads, size_t shared); // on a multiprocessor at once
  int (*capability)(void); // compute capability of the device, such as 100
  void *(*symbol)(void *module, const char *name, size_t *size);
  void *(*alloc)(size_t size, int host); // host: its code may use it too
  int (*release)(void *p); // 0: it was not allocated
  int (*known)(const void *p);
  // copy and set, of elements of 1 or 4 bytes, are what function does with memory of the device or of the host.
  int (*copy)(const char *function, void *to, const void *from, size_t n);
  int (*set)(const char *function, void *to, unsigned value, int width, size_t n);
  int (*status)(void); // of all that was launched
  void (*lacks)(const char *function);
  void (*refused)(const char *kernel, const char *why); // a launch
} fisub_vgpu_hooks;
