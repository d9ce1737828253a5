// A CUDA runtime library for code whose kernels run on the virtual GPU. It keeps what belongs to the host (streams, events,
// launch configurations, the last error) and leaves modules, memory and launches to the program that has loaded it, by the
// functions of fisub_vgpu_install. All work is done when a call returns, so streams and events have nothing to wait for.
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hooks.h"

static fisub_vgpu_hooks hooks;
static __thread cudaError_t last_error;

// Modules and functions that were registered before the hooks came, or since.
typedef struct function {
  struct function *next;
  const void *host;
  char *name;
  void **module;
  int max_dynamic, carveout;
} function;
typedef struct variable {
  struct variable *next;
  const void *host;
  char *name;
  void **module;
  size_t size;
} variable;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static function *functions;
static variable *variables;

void fisub_vgpu_install(const fisub_vgpu_hooks *h) { hooks = *h; }
const fisub_vgpu_hooks *fisub_vgpu_hooks_now(void) { return &hooks; }

static cudaError_t fail(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}

static cudaError_t lacks(const char *name) {
  if (hooks.lacks) hooks.lacks(name);
  return fail(cudaErrorNotSupported);
}

cudaError_t fisub_vgpu_missing(const char *name) { return lacks(name); }

// What every call that may tell an earlier fault returns.
static cudaError_t status(void) { return fail(hooks.status ? (cudaError_t)hooks.status() : cudaSuccess); }

/* Registration */

typedef struct {
  int magic, version;
  const void *data;
  void *more;
} wrapper;

void **__cudaRegisterFatBinary(void *fat) {
  const wrapper *w = fat;
  void **handle = calloc(1, sizeof *handle);
  *handle = hooks.module ? hooks.module(w->data) : NULL;
  return handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) { (void)handle; return 1; }

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *tid, uint3 *bid,
                            dim3 *block, dim3 *grid, int *warp) {
  (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
  function *f = calloc(1, sizeof *f);
  f->host = host;
  f->name = strdup(name);
  f->module = handle;
  f->max_dynamic = 48 << 10;
  pthread_mutex_lock(&lock);
  f->next = functions;
  functions = f;
  pthread_mutex_unlock(&lock);
}

static void add_variable(void **handle, const void *host, const char *name, size_t size) {
  variable *v = calloc(1, sizeof *v);
  v->host = host;
  v->name = strdup(name);
  v->module = handle;
  v->size = size;
  pthread_mutex_lock(&lock);
  v->next = variables;
  variables = v;
  pthread_mutex_unlock(&lock);
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size, int constant, int global) {
  (void)device, (void)ext, (void)constant, (void)global;
  add_variable(handle, host, name, size);
}
void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t size) { add_variable(handle, host, name, size); }
void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int ext, size_t size, int constant,
                              int global) {
  (void)device, (void)ext, (void)constant, (void)global;
  size_t found = 0;
  void *p = hooks.symbol ? hooks.symbol(*handle, name, &found) : NULL;
  if (p) *host = p;
  add_variable(handle, p, name, size);
}

static function *find_function(const void *host) {
  pthread_mutex_lock(&lock);
  function *f = functions;
  while (f && f->host != host) f = f->next;
  pthread_mutex_unlock(&lock);
  return f;
}

/* Capture: what goes to a stream that is being captured is kept as a list, which a graph plays back in order */

enum { NODE_LAUNCH, NODE_COPY, NODE_SET, NODE_CALL };
typedef struct node {
  struct node *next;
  int kind, value;
  void *launch; // of hooks.prepare
  void *to;
  const void *from;
  size_t size;
  cudaHostFn_t call;
} node;
typedef struct {
  node *first, **end;
  size_t n;
  int users;
} graph;
typedef struct {
  graph *capture;
} stream;
typedef struct {
  double ms;
  graph *capture;
} event;

static graph *captured(void *s) { return s > (void *)2 ? ((stream *)s)->capture : NULL; }
static node *record(graph *g, int kind) {
  node *n = calloc(1, sizeof *n);
  if (n == NULL) abort();
  n->kind = kind;
  *g->end = n;
  g->end = &n->next;
  g->n++;
  return n;
}
static void drop(graph *g) {
  if (--g->users > 0) return;
  for (node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (n->launch && hooks.forget) hooks.forget(n->launch);
    free(n);
  }
  free(g);
}

/* Launches */

static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} calls[64];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  if (depth == 64) return 1;
  calls[depth].grid = grid;
  calls[depth].block = block;
  calls[depth].shared = shared;
  calls[depth++].stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (depth == 0) return fail(cudaErrorMissingConfiguration);
  depth--;
  *grid = calls[depth].grid;
  *block = calls[depth].block;
  *shared = calls[depth].shared;
  *(void **)stream = calls[depth].stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = (cudaKernel_t)host;
  return find_function(host) ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}

__attribute__((format(printf, 3, 4))) static cudaError_t refuse(const function *f, cudaError_t e, const char *format, ...) {
  char why[256];
  va_list list;
  va_start(list, format);
  vsnprintf(why, sizeof why, format, list);
  va_end(list);
  if (hooks.refused) hooks.refused(f->name, why);
  return fail(e);
}

// launch takes the cluster's three sizes and whether the launch is cooperative, or NULL.
static cudaError_t launch(const void *host, dim3 grid, dim3 block, const unsigned *more, void **args, size_t shared, void *to) {
  function *f = find_function(host);
  if (f == NULL) return fail(cudaErrorInvalidDeviceFunction);
  if (hooks.prepare == NULL) return fail(cudaErrorNoDevice);
  size_t threads = (size_t)block.x * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || grid.x > 2147483647u)
    return refuse(f, cudaErrorInvalidConfiguration, "grid (%u,%u,%u) is out of range", grid.x, grid.y, grid.z);
  if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64)
    return refuse(f, threads > 1024 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration, "block (%u,%u,%u) is out of range",
                  block.x, block.y, block.z);
  if (shared > (size_t)f->max_dynamic)
    return refuse(f, cudaErrorInvalidValue, "%zu bytes of dynamic shared memory are more than the %d that cudaFuncSetAttribute allowed",
                  shared, f->max_dynamic);
  unsigned dims[10] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
  if (more) memcpy(dims + 6, more, 4 * sizeof *more);
  int error = 0;
  void *ready = hooks.prepare(*f->module, f->name, dims, args, shared, &error);
  if (ready == NULL) return fail((cudaError_t)error);
  graph *g = captured(to);
  if (g) {
    record(g, NODE_LAUNCH)->launch = ready;
    return cudaSuccess;
  }
  error = hooks.launch(ready);
  hooks.forget(ready);
  return fail((cudaError_t)error);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t to) {
  return launch(host, grid, block, NULL, args, shared, to);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t to) {
  return launch(kernel, grid, block, NULL, args, shared, to);
}
cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t to) {
  return launch(host, grid, block, (unsigned[]){0, 0, 0, 1}, args, shared, to);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args) {
  unsigned more[4] = {0};
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const cudaLaunchAttributeValue *v = &c->attrs[i].val;
    if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
      more[0] = v->clusterDim.x, more[1] = v->clusterDim.y, more[2] = v->clusterDim.z;
    if (c->attrs[i].id == cudaLaunchAttributeCooperative) more[3] = v->cooperative != 0;
  }
  return launch(host, c->gridDim, c->blockDim, more, args, c->dynamicSmemBytes, c->stream);
}
cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attr, int value) {
  function *f = find_function(host);
  if (f == NULL) return fail(cudaErrorInvalidDeviceFunction);
  if (attr == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    int attributes[4];
    int e = hooks.attributes ? hooks.attributes(*f->module, f->name, attributes) : 0;
    if (e) return fail((cudaError_t)e);
    if (value < 0 || value + attributes[0] > 227 << 10) return fail(cudaErrorInvalidValue);
    f->max_dynamic = value;
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host) {
  function *f = find_function(host);
  if (f == NULL || hooks.attributes == NULL) return fail(cudaErrorInvalidDeviceFunction);
  int v[4];
  int e = hooks.attributes(*f->module, f->name, v);
  if (e) return fail((cudaError_t)e);
  memset(a, 0, sizeof *a);
  a->sharedSizeBytes = (size_t)v[0];
  a->localSizeBytes = (size_t)v[1];
  a->maxThreadsPerBlock = v[2];
  a->numRegs = 64;
  a->ptxVersion = a->binaryVersion = 100;
  a->maxDynamicSharedSizeBytes = f->max_dynamic;
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache c) { (void)host, (void)c; return cudaSuccess; }

static int blocks_of(const void *host, int threads, size_t shared) {
  function *f = find_function(host);
  int v[4] = {0};
  if (f == NULL || threads <= 0 || hooks.attributes == NULL || hooks.attributes(*f->module, f->name, v)) return 0;
  int by_threads = 2048 / threads, by_shared = (int)((228 << 10) / (1024 + (size_t)v[0] + shared)), n = by_threads < by_shared ? by_threads : by_shared;
  return n > 32 ? 32 : n;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *host, int threads, size_t shared) {
  *n = blocks_of(host, threads, shared);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host, int threads, size_t shared, unsigned flags) {
  (void)flags;
  *n = blocks_of(host, threads, shared);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *host, const cudaLaunchConfig_t *c) {
  *n = blocks_of(host, (int)(c->blockDim.x * c->blockDim.y * c->blockDim.z), c->dynamicSmemBytes) * 16;
  return cudaSuccess;
}

/* Errors */

cudaError_t cudaGetLastError(void) {
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e != cudaSuccess ? e : hooks.status ? (cudaError_t)hooks.status() : cudaSuccess;
}
cudaError_t cudaPeekAtLastError(void) { return last_error != cudaSuccess ? last_error : hooks.status ? (cudaError_t)hooks.status() : cudaSuccess; }

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {999, "cudaErrorUnknown", "unknown error"},
};
const char *cudaGetErrorString(cudaError_t e) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == (int)e) return errors[i].text;
  return "unrecognized error code";
}
const char *cudaGetErrorName(cudaError_t e) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == (int)e) return errors[i].name;
  return "unrecognized error code";
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status_) {
  int (*get)(const char *, void **, int, unsigned long long, int *) = dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
  int found = cudaDriverEntryPointSymbolNotFound;
  *f = NULL;
  if (get) get(name, f, (int)version, flags, NULL);
  if (*f) found = cudaDriverEntryPointSuccess;
  if (status_) *status_ = (enum cudaDriverEntryPointQueryResult)found;
  return cudaSuccess;
}
#undef cudaGetDriverEntryPoint
cudaError_t cudaGetDriverEntryPoint(const char *name, void **f, unsigned long long flags, enum cudaDriverEntryPointQueryResult *s) {
  return cudaGetDriverEntryPointByVersion(name, f, CUDART_VERSION, flags, s);
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *f, const void *host) { *f = (cudaFunction_t)host; return cudaSuccess; }

/* Memory */

static cudaError_t allocate(void **p, size_t n, int host) {
  *p = NULL;
  if (n == 0) return cudaSuccess;
  *p = hooks.alloc ? hooks.alloc(n, host) : NULL;
  return *p ? status() : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, 0); }
cudaError_t cudaFree(void *p) {
  if (p != NULL && hooks.release && !hooks.release(p)) return fail(cudaErrorInvalidValue);
  return status();
}
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { (void)s; return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { (void)s; return cudaFree(p); }
cudaError_t cudaMallocManaged(void **p, size_t n, unsigned f) { (void)f; return allocate(p, n, 1); }
cudaError_t cudaMallocPitch(void **p, size_t *pitch, size_t w, size_t h) { *pitch = (w + 511) / 512 * 512; return cudaMalloc(p, *pitch * h); }
cudaError_t cudaMallocHost(void **p, size_t n) { return allocate(p, n, 1); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) { (void)f; return allocate(p, n, 1); }
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaHostGetDevicePointer(void **d, void *h, unsigned f) { (void)f; *d = h; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_, size_t *total) { *total = 180ull << 30; *free_ = 170ull << 30; return cudaSuccess; }

static cudaError_t copy(const char *function, void *d, const void *s, size_t n) {
  cudaError_t e = status();
  return e || n == 0 ? e : fail((cudaError_t)hooks.copy(function, d, s, n));
}
static cudaError_t set(const char *function, void *d, int v, size_t n) {
  cudaError_t e = status();
  return e || n == 0 ? e : fail((cudaError_t)hooks.set(function, d, (unsigned char)v, 1, n));
}
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) { (void)k; return copy("cudaMemcpy", d, s, n); }
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  graph *g = captured(st);
  (void)k;
  if (g == NULL) return copy("cudaMemcpyAsync", d, s, n);
  node *c = record(g, NODE_COPY);
  c->to = d, c->from = s, c->size = n;
  return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k) {
  cudaError_t e = cudaSuccess;
  for (size_t i = 0; i < h && e == cudaSuccess; i++) e = copy("cudaMemcpy2D", (char *)d + i * dp, (const char *)s + i * sp, w);
  (void)k;
  return e;
}
cudaError_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k, cudaStream_t st) {
  (void)st;
  return cudaMemcpy2D(d, dp, s, sp, w, h, k);
}
cudaError_t cudaMemset(void *d, int v, size_t n) { return set("cudaMemset", d, v, n); }
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t s) {
  graph *g = captured(s);
  if (g == NULL) return set("cudaMemsetAsync", d, v, n);
  node *c = record(g, NODE_SET);
  c->to = d, c->value = v, c->size = n;
  return cudaSuccess;
}
cudaError_t cudaMemset2D(void *d, size_t p, int v, size_t w, size_t h) {
  cudaError_t e = cudaSuccess;
  for (size_t i = 0; i < h && e == cudaSuccess; i++) e = set("cudaMemset2D", (char *)d + i * p, v, w);
  return e;
}
cudaError_t cudaMemset2DAsync(void *d, size_t p, int v, size_t w, size_t h, cudaStream_t s) { (void)s; return cudaMemset2D(d, p, v, w, h); }
cudaError_t cudaMemPrefetchAsync(const void *p, size_t n, struct cudaMemLocation l, unsigned f, cudaStream_t s) {
  (void)p, (void)n, (void)l, (void)f, (void)s;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **p, const void *host) {
  pthread_mutex_lock(&lock);
  variable *v = variables;
  while (v && v->host != host) v = v->next;
  pthread_mutex_unlock(&lock);
  size_t n = 0;
  *p = v && hooks.symbol ? hooks.symbol(*v->module, v->name, &n) : NULL;
  return *p ? cudaSuccess : fail(cudaErrorInvalidSymbol);
}
cudaError_t cudaGetSymbolSize(size_t *n, const void *host) {
  pthread_mutex_lock(&lock);
  variable *v = variables;
  while (v && v->host != host) v = v->next;
  pthread_mutex_unlock(&lock);
  if (v == NULL) return fail(cudaErrorInvalidSymbol);
  *n = v->size;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void *host, const void *s, size_t n, size_t at, enum cudaMemcpyKind k) {
  void *p;
  cudaError_t e = cudaGetSymbolAddress(&p, host);
  (void)k;
  return e ? e : copy("cudaMemcpyToSymbol", (char *)p + at, s, n);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *host, const void *s, size_t n, size_t at, enum cudaMemcpyKind k, cudaStream_t st) {
  (void)st;
  return cudaMemcpyToSymbol(host, s, n, at, k);
}
cudaError_t cudaMemcpyFromSymbol(void *d, const void *host, size_t n, size_t at, enum cudaMemcpyKind k) {
  void *p;
  cudaError_t e = cudaGetSymbolAddress(&p, host);
  (void)k;
  return e ? e : copy("cudaMemcpyFromSymbol", d, (char *)p + at, n);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *d, const void *host, size_t n, size_t at, enum cudaMemcpyKind k, cudaStream_t st) {
  (void)st;
  return cudaMemcpyFromSymbol(d, host, n, at, k);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = hooks.known && hooks.known(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  a->devicePointer = a->type == cudaMemoryTypeDevice ? (void *)p : NULL;
  return cudaSuccess;
}

/* Streams and events: addresses that are told apart */

static cudaError_t new_handle(void **p) {
  *p = calloc(1, sizeof(event) > sizeof(stream) ? sizeof(event) : sizeof(stream));
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return new_handle((void **)s); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { (void)f; return new_handle((void **)s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { (void)f, (void)p; return new_handle((void **)s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { free(s); return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { (void)s; return status(); }
cudaError_t cudaStreamQuery(cudaStream_t s) { (void)s; return status(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { // a stream joins the capture of what it waits for
  (void)f;
  graph *g = e ? ((event *)e)->capture : NULL;
  if (g && (void *)s > (void *)2 && ((stream *)s)->capture == NULL) ((stream *)s)->capture = g;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { (void)s; *p = 0; return cudaSuccess; }
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *f) { (void)s; *f = 0; return cudaSuccess; }
cudaError_t cudaStreamGetDevice(cudaStream_t s, int *d) { (void)s; *d = 0; return cudaSuccess; }
cudaError_t cudaStreamSetAttribute(cudaStream_t s, cudaStreamAttrID id, const cudaStreamAttrValue *v) { (void)s, (void)id, (void)v; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) {
  *c = captured(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *p) {
  graph *g = captured(s);
  if (g) {
    node *c = record(g, NODE_CALL);
    c->call = f, c->to = p;
  } else {
    f(p);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m) {
  (void)m;
  if ((void *)s <= (void *)2) return fail(cudaErrorStreamCaptureUnsupported);
  if (captured(s)) return fail(cudaErrorIllegalState);
  graph *g = calloc(1, sizeof *g);
  if (g == NULL) return fail(cudaErrorMemoryAllocation);
  g->end = &g->first;
  g->users = 1;
  ((stream *)s)->capture = g;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
  graph *g = captured(s);
  *out = (cudaGraph_t)g;
  if (g == NULL) return fail(cudaErrorIllegalState);
  ((stream *)s)->capture = NULL;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph_, cudaGraphNode_t *nodes, size_t *n) {
  graph *g = (graph *)graph_;
  size_t i = 0;
  for (node *c = g->first; c && nodes && i < *n; c = c->next) nodes[i++] = (cudaGraphNode_t)c;
  *n = nodes ? i : g->n;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, enum cudaGraphNodeType *t) {
  static const enum cudaGraphNodeType types[] = {cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset,
                                                 cudaGraphNodeTypeHost};
  *t = types[((node *)n)->kind];
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags) {
  (void)flags;
  ((graph *)g)->users++;
  *exec = (cudaGraphExec_t)g;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags) {
  return cudaGraphInstantiate(exec, g, flags);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) { (void)exec, (void)s; return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  if (captured(s)) return lacks("cudaGraphLaunch into a stream that is captured");
  cudaError_t e = status();
  for (node *n = ((graph *)exec)->first; n && e == cudaSuccess; n = n->next) switch (n->kind) {
    case NODE_LAUNCH: e = fail((cudaError_t)hooks.launch(n->launch)); break;
    case NODE_COPY: e = copy("cudaMemcpyAsync", n->to, n->from, n->size); break;
    case NODE_SET: e = set("cudaMemsetAsync", n->to, n->value, n->size); break;
    case NODE_CALL: n->call(n->to); break;
    }
  return e;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { drop((graph *)exec); return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { drop((graph *)g); return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return new_handle((void **)e); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { (void)f; return new_handle((void **)e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  if (e) ((event *)e)->ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6, ((event *)e)->capture = captured(s);
  return status();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { (void)f; return cudaEventRecord(e, s); }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { (void)e; return status(); }
cudaError_t cudaEventQuery(cudaEvent_t e) { (void)e; return status(); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { *ms = (float)(((event *)b)->ms - ((event *)a)->ms); return cudaSuccess; }

/* The device */

cudaError_t cudaDeviceSynchronize(void) { return status(); }
cudaError_t cudaGetDevice(int *d) { *d = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return d == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned f) { (void)f; return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(enum cudaLimit l, size_t v) { (void)l, (void)v; return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t *v, enum cudaLimit l) { *v = l == cudaLimitStackSize ? 1024 : l == cudaLimitPersistingL2CacheSize ? 0 : 8 << 20; return cudaSuccess; }
cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache c) { (void)c; return cudaSuccess; }
cudaError_t cudaCtxResetPersistingL2Cache(void) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  if (d != 0) return fail(cudaErrorInvalidDevice);
  switch ((int)a) {
  case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
  case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *v = 1024; break;
  case cudaDevAttrMaxBlockDimZ: *v = 64; break;
  case cudaDevAttrMaxGridDimX: *v = 2147483647; break;
  case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *v = 65535; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *v = 48 << 10; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = 227 << 10; break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 228 << 10; break;
  case cudaDevAttrReservedSharedMemoryPerBlock: *v = 1024; break;
  case cudaDevAttrTotalConstantMemory: *v = 64 << 10; break;
  case cudaDevAttrWarpSize: *v = 32; break;
  case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *v = 65536; break;
  case cudaDevAttrClockRate: *v = 1965000; break;
  case cudaDevAttrMemoryClockRate: *v = 3996000; break;
  case cudaDevAttrGlobalMemoryBusWidth: *v = 8192; break;
  case cudaDevAttrMultiProcessorCount: *v = 148; break;
  case cudaDevAttrL2CacheSize: *v = 126 << 20; break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
  case cudaDevAttrMaxBlocksPerMultiprocessor: *v = 32; break;
  case cudaDevAttrComputeCapabilityMajor: *v = 10; break;
  case cudaDevAttrComputeCapabilityMinor: *v = 0; break;
  case cudaDevAttrMaxPersistingL2CacheSize: *v = 79 << 20; break;
  case cudaDevAttrMaxAccessPolicyWindowSize: *v = 128 << 20; break;
  case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrCooperativeLaunch:
  case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrManagedMemory: case cudaDevAttrMemoryPoolsSupported:
  case cudaDevAttrGlobalL1CacheSupported: case cudaDevAttrLocalL1CacheSupported: case cudaDevAttrCanMapHostMemory:
  case cudaDevAttrEccEnabled: *v = 1; break;
  default: *v = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  if (d != 0) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  strcpy(p->name, "fisub virtual GPU");
  p->totalGlobalMem = 180ull << 30;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = 227 << 10;
  p->sharedMemPerMultiprocessor = 228 << 10;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 64 << 10;
  p->major = 10;
  p->multiProcessorCount = 148;
  p->l2CacheSize = 126 << 20;
  p->persistingL2CacheMaxSize = 79 << 20;
  p->accessPolicyMaxWindowSize = 128 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->memoryBusWidth = 8192;
  p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = p->managedMemory = p->streamPrioritiesSupported = 1;
  p->memoryPoolsSupported = 1;
  return cudaSuccess;
}
