// What the runtime library leaves to the program that has loaded it. Results that are numbers are of cudaError_t.
#pragma once
#include <stddef.h>

typedef struct {
  void *(*module)(const void *fatbin);
  // prepare copies what a launch needs; NULL with *error set where the launch is refused. launch may be called any number of times.
  void *(*prepare)(void *module, const char *kernel, const unsigned *grid_block_cluster_cooperative, void **args, size_t shared, int *error);
  int (*launch)(void *prepared);
  void (*forget)(void *prepared);
  int (*attributes)(void *module, const char *kernel, int *shared_local_threads);
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
