//go:build cuda && linux && cgo

#include "nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#define X(name, params, args)                                                                                          \
  static int(*bound_##name) params;                                                                                    \
  int fisub_##name params { return bound_##name == NULL ? NVML_FUNCTION_NOT_FOUND : bound_##name args; }
NVML_FUNCTIONS
#undef X

static const char *(*error_string)(int);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;

static void bind(void) {
  // Containers often have the driver in a folder that the loader does not search.
  static const char *const names[] = {"libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
                                      "/usr/lib/wsl/lib/libnvidia-ml.so.1"};
  for (size_t i = 0; i < sizeof names / sizeof *names && library == NULL; i++)
    library = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) return;
#define X(name, params, args) *(void **)&bound_##name = dlsym(library, #name);
  NVML_FUNCTIONS
#undef X
  *(void **)&error_string = dlsym(library, "nvmlErrorString");
}

int fisub_nvml_load(void) {
  pthread_once(&once, bind);
  return library == NULL ? NVML_LIBRARY_NOT_FOUND : fisub_nvmlInit_v2();
}

const char *fisub_nvml_error(int result) { return error_string == NULL ? "unknown error" : error_string(result); }
