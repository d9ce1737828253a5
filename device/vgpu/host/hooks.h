// Functions that the program provides to the runtime library. Those that can fail return a cudaError_t.
#pragma once
#include <stddef.h>

// Attributes of a kernel: bytes of static shared memory, bytes of local memory per thread, threads of the largest
// block, registers per thread, and the compute capability that it was compiled for, such as 100.
typedef struct {
  int shared, local, threads, registers, arch;
} fisub_vgpu_attributes;

// Kinds of memory: neither of the device nor registered, of the device, for host code as well, and the heap of device
// malloc, which only kernels may use.
enum { FISUB_VGPU_PAGEABLE, FISUB_VGPU_DEVICE, FISUB_VGPU_PINNED, FISUB_VGPU_HEAP };

// Limits of the device: bytes of a thread's stack and of the heap of device malloc (0: no change), and whether a kernel
// has used the heap or printf, which fixes its limit.
typedef struct {
  size_t stack, heap;
  int heap_used, printf_used;
} fisub_vgpu_limits;

// The return addresses of the latest calls in the program, innermost first; NULL after the last one.
typedef struct {
  void *at[8];
} fisub_vgpu_callers;

typedef struct {
  void *(*module)(const void *fatbin, void **units); // units: the fat binaries that nvlink linked, up to NULL; or NULL
  // prepare copies everything that a launch needs. If the launch is refused, it returns NULL and sets *error. launch
  // may be called any number of times. numbers holds grid, block, cluster (0: the kernel's own), whether the launch is
  // cooperative, and whether clusters of more than 8 blocks are allowed.
  void *(*prepare)(void *module, const char *kernel, const unsigned numbers[11], void **args, size_t shared, int *error);
  int (*launch)(void *prepared);
  void (*forget)(void *prepared);
  int (*attributes)(void *module, const char *kernel, fisub_vgpu_attributes *out);
  int (*blocks)(void *module, const char *kernel, int threads, size_t shared); // blocks per multiprocessor at once
  int (*capability)(void); // compute capability of the device, such as 100
  void *(*symbol)(void *module, const char *name, size_t *size);
  void *(*alloc)(size_t size, int host, const fisub_vgpu_callers *by); // host: host code may use it, too
  // release frees p, which must be for host code too if host is set. It returns 0 if it is not allocated.
  int (*release)(const char *function, void *p, int host, const fisub_vgpu_callers *by);
  int (*known)(const void *p); // what p points to
  // expose lets kernels use host memory; it returns 0 if they may use a part already. conceal ends that; it returns 0 if
  // no such memory begins at p.
  int (*expose)(void *p, size_t n);
  int (*conceal)(void *p);
  void (*limits)(fisub_vgpu_limits *limits);
  // copy and set (elements of 1 or 4 bytes) access memory of the device or host. function is named in faults.
  int (*copy)(const char *function, void *to, const void *from, size_t n);
  int (*set)(const char *function, void *to, unsigned value, int width, size_t n);
  int (*status)(void); // of all launches so far
  void (*lacks)(const char *function);
  void (*refused)(const char *kernel, const char *why); // reports a refused launch
  void (*note)(const char *text); // reports a note once
  void (*ending)(void);           // reports what is left at the end of a program
  // The order of operations; begin is NULL if it is not checked. begin starts an operation, which is the next one of a
  // chain and follows those in before[n]: by chain, the number of the last one. Calls of launch, copy and set until end,
  // and of use, are accesses of the operation. use is one to the whole allocation p. waited sets the operations that are
  // done when host code continues.
  void (*begin)(const char *where, unsigned chain, const unsigned *before, unsigned n);
  void (*end)(void);
  void (*use)(const char *what, void *p);
  void (*waited)(const unsigned *done, unsigned n);
} fisub_vgpu_hooks;
