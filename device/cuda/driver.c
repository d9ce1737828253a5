//go:build cuda && linux && cgo

#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100 };

static int no_device(void) { return NO_DEVICE; }

// cu's package initialisation calls cuInit and ends the process if that fails, so this one always succeeds;
// fisub_driver_init calls the driver's. Commands without a GPU thus also avoid its cost.
__attribute__((visibility("hidden"))) int cuInit(unsigned int flags) {
  (void)flags;
  return 0;
}

// Every entry point jumps through a slot, which leaves the arguments unchanged. The names are hidden, so that
// solutions loaded later get the driver's own.
#if defined(__x86_64__)
#define JUMP(name) "jmp *fisub_slot_" name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name) "adrp x16, fisub_slot_" name "\nldr x16, [x16, #:lo12:fisub_slot_" name "]\nbr x16\n"
#else
#error "no jump for this processor"
#endif

#define X(name)                                                                                                        \
  __attribute__((visibility("hidden"), used)) void *fisub_slot_##name = (void *)no_device;                            \
  __asm__(".pushsection .text\n.p2align 4\n.globl " #name "\n.hidden " #name "\n.type " #name ", %function\n" #name    \
          ":\n" JUMP(#name) ".size " #name ", . - " #name "\n.popsection\n");
#include "driver_symbols.h"
#undef X

static const struct {
  const char *name;
  void **slot;
} table[] = {
#define X(name) {#name, &fisub_slot_##name},
#include "driver_symbols.h"
#undef X
};

static void *driver;

void *fisub_driver_symbol(const char *name) { return driver == NULL ? NULL : dlsym(driver, name); }

char *fisub_driver_open(void) {
  // Containers often have the driver in a folder that the loader does not search.
  static const char *const names[] = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
  char *message = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names && driver == NULL; i++) {
    driver = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
    if (driver == NULL && message == NULL) message = strdup(dlerror());
  }
  if (driver == NULL) return message;
  free(message);
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    void *fn = dlsym(driver, table[i].name);
    // Drivers before CUDA 12.8 export the same function without the suffix.
    if (fn == NULL && strcmp(table[i].name, "cuEventElapsedTime_v2") == 0) fn = dlsym(driver, "cuEventElapsedTime");
    if (fn != NULL) *table[i].slot = fn;
  }
  return NULL;
}

void fisub_default_signals(void) {
  static const int fatal[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
  for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) signal(fatal[i], SIG_DFL);
}

int fisub_driver_init(void) {
  int (*init)(unsigned int) = fisub_driver_symbol("cuInit");
  return init == NULL ? NO_DEVICE : init(0);
}

const char *fisub_driver_error(int code, const char **description) {
  int (*get_name)(int, const char **) = fisub_driver_symbol("cuGetErrorName");
  int (*get_string)(int, const char **) = fisub_driver_symbol("cuGetErrorString");
  const char *name = NULL;
  *description = NULL;
  if (get_name == NULL || get_name(code, &name) != 0) name = NULL;
  if (get_string == NULL || get_string(code, description) != 0) *description = NULL;
  return name;
}

int fisub_runtime_error(const char **name, const char **description) {
  static int (*get_last)(void);
  static const char *(*get_name)(int);
  static const char *(*get_string)(int);
  if (get_last == NULL) {
    get_name = dlsym(RTLD_DEFAULT, "cudaGetErrorName");
    get_string = dlsym(RTLD_DEFAULT, "cudaGetErrorString");
    if (get_name == NULL || get_string == NULL) return 0;
    get_last = dlsym(RTLD_DEFAULT, "cudaGetLastError");
    if (get_last == NULL) return 0;
  }
  int code = get_last();
  if (code != 0) {
    *name = get_name(code);
    *description = get_string(code);
  }
  return code;
}
