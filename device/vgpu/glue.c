//go:build linux && cgo

#include "glue.h"

#include <dlfcn.h>
#include <string.h>

#include "_cgo_export.h"

static void *module(const void *fatbin, void **units) { return (void *)vgModule((void *)fatbin, units); }
static void *prepare(void *m, const char *kernel, const unsigned *dims, void **args, size_t shared, int *error) {
  return (void *)vgPrepare((uintptr_t)m, (char *)kernel, (unsigned *)dims, args, shared, error);
}
static int launch(void *prepared) { return vgLaunch((uintptr_t)prepared); }
static void forget(void *prepared) { vgForget((uintptr_t)prepared); }
static int attributes(void *m, const char *kernel, fisub_vgpu_attributes *out) {
  return vgAttributes((uintptr_t)m, (char *)kernel, out);
}
static int blocks(void *m, const char *kernel, int threads, size_t shared) {
  return vgBlocks((uintptr_t)m, (char *)kernel, threads, shared);
}
static int capability(void) { return vgCapability(); }
static void *symbol(void *m, const char *name, size_t *size) { return (void *)vgSymbol((uintptr_t)m, (char *)name, size); }
static void *alloc(size_t size, int host, const fisub_vgpu_callers *by) {
  return (void *)vgAlloc(size, host, (fisub_vgpu_callers *)by);
}
static int release(const char *function, void *p, int host, const fisub_vgpu_callers *by) {
  return vgRelease((char *)function, (uintptr_t)p, host, (fisub_vgpu_callers *)by);
}
static int known(const void *p) { return vgKnown((uintptr_t)p); }
static void limits(fisub_vgpu_limits *l) { vgLimits(l); }
static int copy(const char *function, void *to, const void *from, size_t n) {
  int e = vgInside((char *)function, (uintptr_t)to, n) | vgInside((char *)function, (uintptr_t)from, n);
  if (e) return e;
  vgUse((char *)function, "copy", (uintptr_t)from, n, 0);
  vgUse((char *)function, "copy", (uintptr_t)to, n, 1);
  vg_device_begins();
  void *wrong = vg_copy(to, from, n);
  vgWritten((uintptr_t)to, n);
  vg_device_ends();
  int writes = (char *)wrong >= (char *)to && (char *)wrong < (char *)to + n;
  if (wrong) vgInaccessible((char *)function, (uintptr_t)wrong, writes);
  return wrong ? 1 : 0;
}
static int set(const char *function, void *to, unsigned value, int width, size_t n) {
  int e = vgInside((char *)function, (uintptr_t)to, width * n);
  if (e) return e;
  vgUse((char *)function, "memset", (uintptr_t)to, width * n, 1);
  vg_device_begins();
  if (value == 0)
    vg_zero(to, width * n);
  else if (width == 1)
    memset(to, (int)value, n);
  else
    for (size_t i = 0; i < n; i++) ((unsigned *)to)[i] = value;
  vgWritten((uintptr_t)to, width * n);
  vg_device_ends();
  return 0;
}
static int status(void) { return vgStatus(); }
static int expose(void *p, size_t n) { return vgExpose((uintptr_t)p, n); }
static int conceal(void *p) { return vgConceal((uintptr_t)p); }
static void refused(const char *kernel, const char *why) { vgRefused((char *)kernel, (char *)why); }
static void lacks(const char *name) { vgLacks((char *)name); }
static void note(const char *text) { vgNote((char *)text); }
static void ending(void) { vgEnding(); }
static void begin(const char *where, unsigned chain, const unsigned *before, unsigned n) {
  vgBegin((char *)where, chain, (unsigned *)before, n);
}
static void end(void) { vgEnd(); }
static void use(const char *what, void *p) { vgUse((char *)what, "call", (uintptr_t)p, 0, 1); }
static void waited(const unsigned *done, unsigned n) { vgWaited((unsigned *)done, n); }

// runtime_function returns a function of the runtime library in use, or NULL.
static void *runtime_function(const char *name) { return dlsym(RTLD_DEFAULT, name); }
int vg_unawaited(const char **kernel) {
  static int (*f)(const char **);
  if (f == NULL) f = (int (*)(const char **))runtime_function("fisub_vgpu_unawaited");
  return f && f(kernel);
}
int vg_pending(const char **name, const char **text) {
  static int (*f)(const char **, const char **);
  if (f == NULL) f = (int (*)(const char **, const char **))runtime_function("fisub_vgpu_pending");
  return f && f(name, text);
}
void *vg_stream(void) {
  void *(*f)(void) = (void *(*)(void))runtime_function("fisub_vgpu_stream");
  return f ? f() : NULL;
}

char *vg_install(const char *path, const char *driver, int order) {
  fisub_vgpu_hooks hooks = {module, prepare, launch, forget, attributes, blocks, capability, symbol, alloc, release,
                            known, expose, conceal, limits, copy, set, status, lacks, refused, note, ending};
  if (order) hooks.begin = begin, hooks.end = end, hooks.use = use, hooks.waited = waited;
  void *lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (lib == NULL) return strdup(dlerror());
  void *install = dlsym(lib, "fisub_vgpu_install");
  if (install == NULL) return strdup("another CUDA runtime is loaded already");
  ((void (*)(const fisub_vgpu_hooks *))install)(&hooks);
  if (dlopen(driver, RTLD_NOW | RTLD_GLOBAL) == NULL) return strdup(dlerror());
  return NULL;
}

int vg_alloc(uint64_t *address, size_t size) {
  *address = vgAlloc(size, 0, NULL);
  return *address ? 0 : 2;
}
int vg_release(uint64_t address) { return vgRelease("", (uintptr_t)address, 0, NULL) ? 0 : 1; }
