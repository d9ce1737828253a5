// A CUDA runtime library for code whose kernels run on the virtual GPU. It keeps the state of the host (streams,
// events, launch configurations, the last error). The program that loads it provides modules, memory and launches
// through fisub_vgpu_install. All work is done when a call returns, so nothing ever waits for streams or events.
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hooks.h"

static fisub_vgpu_hooks hooks;
static __thread cudaError_t last_error;

// Registered functions and variables. Registration may come before fisub_vgpu_install.
typedef struct function {
  struct function *next;
  const void *host;
  char *name;
  void **module;
  int max_dynamic, any_cluster; // any_cluster: more than 8 blocks are allowed
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

static void ending(void) {
  if (hooks.status) hooks.status(); // reports the last actions of the host code
}

// A program run by fisub emu loads the virtual GPU along with this library, before its own constructors register
// kernels.
__attribute__((constructor)) static void attach(void) {
  const char *path = getenv("FISUB_EMU");
  if (path == NULL) return;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  char *(*emu)(void) = library ? (char *(*)(void))dlsym(library, "fisub_emu") : NULL;
  const char *error = emu ? emu() : dlerror();
  if (error == NULL) {
    atexit(ending);
    return;
  }
  fprintf(stderr, "fisub: %s\n", error);
  _exit(1);
}

static cudaError_t fail(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}

static cudaError_t lacks(const char *name) {
  if (hooks.lacks) hooks.lacks(name);
  return fail(cudaErrorNotSupported);
}

static int capability(void) { return hooks.capability ? hooks.capability() : 100; }

cudaError_t fisub_vgpu_missing(const char *name) { return lacks(name); }

// status returns an earlier fault, if any, for calls that may report one.
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

/* Graphs. A capture records the work of its streams as a sequence of nodes; nodes added otherwise have dependencies. */

enum { NODE_LAUNCH, NODE_COPY, NODE_SET, NODE_CALL, NODE_EMPTY, NODE_GRAPH };
typedef struct node {
  struct node *next;
  int kind;
  void *launch; // from hooks.prepare
  char *to;
  const char *from;
  size_t size, rows, slices; // in bytes for a copy, in elements of width bytes for a set
  size_t to_pitch, to_slice, from_pitch, from_slice;
  unsigned value, width;
  cudaHostFn_t call;
  struct graph *child;
  struct node **after; // its dependencies
  size_t n_after;
  unsigned long round; // last round in which it ran
} node;
typedef struct graph {
  node *first, **end;
  size_t n;
  int users;
  unsigned long round;
  struct graph *source; // of a clone: the owner of the launches
  // For a capture:
  struct graph *next;
  unsigned long id;
  pthread_t thread;
  enum cudaStreamCaptureMode mode;
  int blocking;        // its stream is not a non-blocking one
  cudaError_t invalid; // set once an illegal call has invalidated it
} graph;
typedef struct stream {
  unsigned long capture; // id, 0 if not captured
  unsigned flags;
  // For non-blocking streams: amount of work so far, and of work that something has waited for.
  unsigned long work, awaited;
  const char *kernel; // of the last launch, NULL after a copy
  struct stream *next;
  int destroyed;
} stream;
typedef struct {
  unsigned long capture;
  double ms;
  stream *of; // stream of the last record, and its work then
  unsigned long work;
} event;

static graph *captures; // not yet ended
static unsigned long last_capture;
static stream per_thread;
static stream *own_streams; // non-blocking streams

// stream_of returns NULL for the legacy stream.
static stream *stream_of(void *s) { return s == cudaStreamPerThread ? &per_thread : s > (void *)cudaStreamLegacy ? s : NULL; }
static graph *capture(unsigned long id) {
  pthread_mutex_lock(&lock);
  graph *g = captures;
  while (g && g->id != id) g = g->next;
  pthread_mutex_unlock(&lock);
  return id ? g : NULL;
}
static graph *captured(void *s) {
  stream *st = stream_of(s);
  return st ? capture(st->capture) : NULL;
}

// A call that is not allowed during a capture fails, and so does the end of the capture. The errors are as on an H100.
static cudaError_t invalidate(graph *g, cudaError_t e) {
  g->invalid = cudaErrorStreamCaptureInvalidated;
  return e;
}
// unsafe returns the error of a call that only relaxed captures allow.
static cudaError_t unsafe(void) {
  cudaError_t e = cudaSuccess;
  pthread_mutex_lock(&lock);
  for (graph *g = captures; g; g = g->next)
    if (g->mode == cudaStreamCaptureModeGlobal || (g->mode == cudaStreamCaptureModeThreadLocal && pthread_equal(g->thread, pthread_self())))
      e = invalidate(g, cudaErrorStreamCaptureUnsupported);
  pthread_mutex_unlock(&lock);
  return fail(e);
}
// legacy returns an error if s is the legacy stream and would have to wait for a captured stream.
static cudaError_t legacy(void *s) {
  cudaError_t e = cudaSuccess;
  if (stream_of(s)) return e;
  pthread_mutex_lock(&lock);
  for (graph *g = captures; g; g = g->next)
    if (g->blocking) e = invalidate(g, cudaErrorStreamCaptureImplicit);
  pthread_mutex_unlock(&lock);
  return fail(e);
}
// worked counts work on s outside a capture. kernel is NULL for a copy.
static void worked(void *s, const char *kernel) {
  stream *st = stream_of(s);
  if (st && st->flags & cudaStreamNonBlocking) st->work++, st->kernel = kernel;
}
static void awaited(stream *st, unsigned long work) {
  if (st && st->awaited < work) st->awaited = work;
}
static void all_awaited(void) {
  pthread_mutex_lock(&lock);
  for (stream *st = own_streams; st; st = st->next) st->awaited = st->work;
  pthread_mutex_unlock(&lock);
}
// fisub_vgpu_unawaited returns 1 if some stream has work that no stream and no host code has waited for, once per
// stream. *kernel is set to the stream's last kernel.
int fisub_vgpu_unawaited(const char **kernel) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (stream **at = &own_streams; *at && !found;) {
    stream *st = *at;
    found = st->awaited < st->work;
    if (found) *kernel = st->kernel;
    st->awaited = st->work;
    if (st->destroyed) *at = st->next; // not freed: events may still refer to it
    else at = &st->next;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

// wait_for returns the error of waiting for s.
static cudaError_t wait_for(void *s) {
  if (stream_of(s)) awaited(stream_of(s), stream_of(s)->work);
  graph *g = captured(s);
  cudaError_t e = g ? fail(invalidate(g, cudaErrorStreamCaptureUnsupported)) : stream_of(s) ? unsafe() : legacy(s);
  return e ? e : status();
}

static graph *new_graph(void) {
  graph *g = calloc(1, sizeof *g);
  if (g == NULL) abort();
  g->end = &g->first;
  g->users = 1;
  return g;
}
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
    if (n->launch && hooks.forget && !g->source) hooks.forget(n->launch);
    if (n->child) drop(n->child);
    free(n->after);
    free(n);
  }
  if (g->source) drop(g->source);
  free(g);
}
static void depend(node *n, const cudaGraphNode_t *after, size_t count) {
  n->after = realloc(n->after, (n->n_after + count + 1) * sizeof *n->after);
  if (n->after == NULL) abort();
  for (size_t i = 0; i < count; i++) n->after[n->n_after++] = (node *)after[i];
}
static node *twin(graph *of, graph *g, const node *n) {
  node *a = of->first, *b = g->first;
  while (a && a != n) a = a->next, b = b->next;
  return a ? b : NULL;
}
static graph *clone_of(graph *of) {
  graph *g = new_graph();
  g->source = of;
  of->users++;
  for (node *n = of->first; n; n = n->next) {
    node *c = record(g, n->kind), *next = c->next;
    *c = *n;
    c->next = next, c->after = NULL, c->n_after = 0, c->round = 0;
    if (c->child) c->child->users++;
  }
  for (node *n = of->first, *c = g->first; n; n = n->next, c = c->next)
    for (size_t i = 0; i < n->n_after; i++) {
      cudaGraphNode_t after = (cudaGraphNode_t)twin(of, g, n->after[i]);
      depend(c, &after, 1);
    }
  return g;
}

static cudaError_t copy(const char *function, void *d, const void *s, size_t n);
static cudaError_t play(graph *g, int run);
static cudaError_t play_node(node *n) {
  cudaError_t e = cudaSuccess;
  switch (n->kind) {
  case NODE_LAUNCH: return fail((cudaError_t)hooks.launch(n->launch));
  case NODE_CALL: n->call(n->to); return cudaSuccess;
  case NODE_GRAPH: return play(n->child, 1);
  }
  for (size_t z = 0; z < n->slices; z++)
    for (size_t y = 0; y < n->rows && e == cudaSuccess; y++) {
      char *to = n->to + z * n->to_slice + y * n->to_pitch;
      if (n->kind == NODE_COPY)
        e = copy("a graph's copy", to, n->from + z * n->from_slice + y * n->from_pitch, n->size);
      else if (n->kind == NODE_SET && n->size)
        e = fail((cudaError_t)hooks.set("a graph's memset", to, n->value, (int)n->width, n->size));
    }
  return e;
}
// play runs the nodes of g in the order of their dependencies. It fails if they form a cycle.
static cudaError_t play(graph *g, int run) {
  cudaError_t e = cudaSuccess;
  unsigned long round = ++g->round;
  for (size_t left = g->n, before = 0; left && e == cudaSuccess;) {
    if (left == before) return fail(cudaErrorInvalidValue);
    before = left;
    for (node *n = g->first; n && e == cudaSuccess; n = n->next) {
      size_t ready = 0;
      while (ready < n->n_after && n->after[ready]->round == round) ready++;
      if (n->round == round || ready < n->n_after) continue;
      if (run) e = play_node(n);
      n->round = round;
      left--;
    }
  }
  return e;
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

// prepare sets *ready to the result of hooks.prepare. more is NULL, or the three cluster sizes and whether the launch
// is cooperative.
static cudaError_t prepare(const void *host, dim3 grid, dim3 block, const unsigned *more, void **args, size_t shared, void **ready) {
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
  unsigned dims[11] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, [10] = f->any_cluster};
  if (more) memcpy(dims + 6, more, 4 * sizeof *more);
  int error = 0;
  *ready = hooks.prepare(*f->module, f->name, dims, args, shared, &error);
  return *ready ? cudaSuccess : fail((cudaError_t)error);
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, const unsigned *more, void **args, size_t shared, void *to) {
  void *ready = NULL;
  cudaError_t e = prepare(host, grid, block, more, args, shared, &ready);
  if (e) return e;
  graph *g = captured(to);
  if (g) {
    record(g, NODE_LAUNCH)->launch = ready;
    return cudaSuccess;
  }
  e = legacy(to);
  if (e == cudaSuccess) e = fail((cudaError_t)hooks.launch(ready));
  if (e == cudaSuccess) worked(to, find_function(host)->name);
  hooks.forget(ready);
  return e;
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
    fisub_vgpu_attributes a = {0};
    int e = hooks.attributes ? hooks.attributes(*f->module, f->name, &a) : 0;
    if (e) return fail((cudaError_t)e);
    if (value < 0 || value + a.shared > 227 << 10) return fail(cudaErrorInvalidValue);
    f->max_dynamic = value;
  }
  if (attr == cudaFuncAttributeNonPortableClusterSizeAllowed) f->any_cluster = value != 0;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host) {
  function *f = find_function(host);
  if (f == NULL || hooks.attributes == NULL) return fail(cudaErrorInvalidDeviceFunction);
  fisub_vgpu_attributes v;
  int e = hooks.attributes(*f->module, f->name, &v);
  if (e) return fail((cudaError_t)e);
  memset(a, 0, sizeof *a);
  a->sharedSizeBytes = (size_t)v.shared;
  a->localSizeBytes = (size_t)v.local;
  a->maxThreadsPerBlock = v.threads;
  a->numRegs = v.registers;
  a->ptxVersion = v.arch;
  a->binaryVersion = capability();
  a->nonPortableClusterSizeAllowed = f->any_cluster;
  a->maxDynamicSharedSizeBytes = f->max_dynamic;
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache c) { (void)host, (void)c; return cudaSuccess; }

static int blocks_of(const void *host, int threads, size_t shared) {
  function *f = find_function(host);
  return f && hooks.blocks ? hooks.blocks(*f->module, f->name, threads, shared) : 0;
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
    {215, "cudaErrorUnsupportedLimit", "limit is not supported on this architecture"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {906, "cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {912, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
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

static cudaError_t obtain(void **p, size_t n, int host) {
  *p = n && hooks.alloc ? hooks.alloc(n, host) : NULL;
  return *p ? status() : n ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
static cudaError_t allocate(void **p, size_t n, int host) {
  cudaError_t e = n ? unsafe() : cudaSuccess;
  return e ? e : obtain(p, n, host);
}
static cudaError_t release(void *p) {
  if (p != NULL && hooks.release && !hooks.release(p)) return fail(cudaErrorInvalidValue);
  return status();
}
cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, 0); }
cudaError_t cudaFree(void *p) {
  cudaError_t e = unsafe();
  if (e) return e;
  all_awaited();
  return release(p);
}
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) {
  if (captured(s)) return lacks("cudaMallocAsync into a stream that is captured");
  cudaError_t e = legacy(s);
  return e ? e : obtain(p, n, 0);
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
  if (captured(s)) return fail(cudaErrorInvalidValue); // p is not from the captured graph
  cudaError_t e = legacy(s);
  return e ? e : release(p);
}
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
// copy_rows copies h rows of w bytes on the stream st; if st is being captured, it adds the copy to the graph instead.
// The errors are as on an H100.
static cudaError_t copy_rows(const char *function, void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, cudaStream_t st) {
  if (w == 0 || h == 0) return status();
  if (dp < w || sp < w) return fail(cudaErrorInvalidPitchValue);
  graph *g = captured(st);
  if (g) {
    node *c = record(g, NODE_COPY);
    c->to = d, c->to_pitch = dp, c->from = s, c->from_pitch = sp, c->size = w, c->rows = h, c->slices = 1;
    return cudaSuccess;
  }
  cudaError_t e = legacy(st);
  worked(st, NULL);
  for (size_t i = 0; i < h && e == cudaSuccess; i++) e = copy(function, (char *)d + i * dp, (const char *)s + i * sp, w);
  return e;
}
static cudaError_t set_rows(const char *function, void *d, size_t p, int v, size_t w, size_t h, cudaStream_t st) {
  if (w == 0 || h == 0) return status();
  if (p < w) return fail(cudaErrorInvalidValue);
  graph *g = captured(st);
  if (g) {
    node *c = record(g, NODE_SET);
    c->to = d, c->to_pitch = p, c->value = (unsigned char)v, c->width = 1, c->size = w, c->rows = h, c->slices = 1;
    return cudaSuccess;
  }
  cudaError_t e = legacy(st);
  worked(st, NULL);
  for (size_t i = 0; i < h && e == cudaSuccess; i++) e = set(function, (char *)d + i * p, v, w);
  return e;
}
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) {
  (void)k;
  return copy_rows("cudaMemcpy", d, n, s, n, n, 1, NULL);
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  (void)k;
  return copy_rows("cudaMemcpyAsync", d, n, s, n, n, 1, st);
}
cudaError_t cudaMemcpy2D(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k) {
  (void)k;
  return copy_rows("cudaMemcpy2D", d, dp, s, sp, w, h, NULL);
}
cudaError_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k, cudaStream_t st) {
  (void)k;
  return copy_rows("cudaMemcpy2DAsync", d, dp, s, sp, w, h, st);
}
cudaError_t cudaMemset(void *d, int v, size_t n) { return set_rows("cudaMemset", d, n, v, n, 1, NULL); }
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t s) { return set_rows("cudaMemsetAsync", d, n, v, n, 1, s); }
cudaError_t cudaMemset2D(void *d, size_t p, int v, size_t w, size_t h) { return set_rows("cudaMemset2D", d, p, v, w, h, NULL); }
cudaError_t cudaMemset2DAsync(void *d, size_t p, int v, size_t w, size_t h, cudaStream_t s) {
  return set_rows("cudaMemset2DAsync", d, p, v, w, h, s);
}
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
static cudaError_t to_symbol(const char *function, const void *host, const void *s, size_t n, size_t at, cudaStream_t st) {
  void *p;
  cudaError_t e = cudaGetSymbolAddress(&p, host);
  return e ? e : copy_rows(function, (char *)p + at, n, s, n, n, 1, st);
}
static cudaError_t from_symbol(const char *function, void *d, const void *host, size_t n, size_t at, cudaStream_t st) {
  void *p;
  cudaError_t e = cudaGetSymbolAddress(&p, host);
  return e ? e : copy_rows(function, d, n, (char *)p + at, n, n, 1, st);
}
cudaError_t cudaMemcpyToSymbol(const void *host, const void *s, size_t n, size_t at, enum cudaMemcpyKind k) {
  (void)k;
  return to_symbol("cudaMemcpyToSymbol", host, s, n, at, NULL);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *host, const void *s, size_t n, size_t at, enum cudaMemcpyKind k, cudaStream_t st) {
  (void)k;
  return to_symbol("cudaMemcpyToSymbolAsync", host, s, n, at, st);
}
cudaError_t cudaMemcpyFromSymbol(void *d, const void *host, size_t n, size_t at, enum cudaMemcpyKind k) {
  (void)k;
  return from_symbol("cudaMemcpyFromSymbol", d, host, n, at, NULL);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *d, const void *host, size_t n, size_t at, enum cudaMemcpyKind k, cudaStream_t st) {
  (void)k;
  return from_symbol("cudaMemcpyFromSymbolAsync", d, host, n, at, st);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = hooks.known && hooks.known(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  a->devicePointer = a->type == cudaMemoryTypeDevice ? (void *)p : NULL;
  return cudaSuccess;
}

/* Streams and events */

static cudaError_t new_handle(void **p) {
  *p = calloc(1, sizeof(event) > sizeof(stream) ? sizeof(event) : sizeof(stream));
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) {
  cudaError_t e = new_handle((void **)s);
  if (e) return e;
  stream *st = (stream *)*s;
  st->flags = f;
  if (f & cudaStreamNonBlocking) {
    pthread_mutex_lock(&lock);
    st->next = own_streams;
    own_streams = st;
    pthread_mutex_unlock(&lock);
  }
  return e;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { (void)p; return cudaStreamCreateWithFlags(s, f); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  stream *st = stream_of(s);
  if (st && st->flags & cudaStreamNonBlocking) st->destroyed = 1;
  else free(st);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return wait_for(s); }
cudaError_t cudaStreamQuery(cudaStream_t s) { return wait_for(s); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { // s joins the capture of e, if any
  (void)f;
  if (e && ((event *)e)->of != stream_of(s)) awaited(((event *)e)->of, ((event *)e)->work);
  if (e && capture(((event *)e)->capture) && stream_of(s) && captured(s) == NULL) stream_of(s)->capture = ((event *)e)->capture;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { (void)s; *p = 0; return cudaSuccess; }
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *f) { (void)s; *f = 0; return cudaSuccess; }
cudaError_t cudaStreamGetDevice(cudaStream_t s, int *d) { (void)s; *d = 0; return cudaSuccess; }
cudaError_t cudaStreamSetAttribute(cudaStream_t s, cudaStreamAttrID id, const cudaStreamAttrValue *v) { (void)s, (void)id, (void)v; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) {
  graph *g = captured(s);
  pthread_mutex_lock(&lock);
  for (graph *blocking = stream_of(s) ? NULL : captures; blocking; blocking = blocking->next)
    if (blocking->blocking) {
      pthread_mutex_unlock(&lock);
      return fail(cudaErrorStreamCaptureImplicit); // the capture remains valid
    }
  pthread_mutex_unlock(&lock);
  *c = !g ? cudaStreamCaptureStatusNone : g->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *p) {
  graph *g = captured(s);
  if (g) {
    node *c = record(g, NODE_CALL);
    c->call = f, c->to = p;
    return cudaSuccess;
  }
  cudaError_t e = legacy(s);
  if (e == cudaSuccess) f(p);
  return e;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m) {
  stream *st = stream_of(s);
  if (st == NULL) return fail(cudaErrorStreamCaptureUnsupported);
  if (captured(s)) return fail(cudaErrorIllegalState);
  graph *g = new_graph();
  g->mode = m;
  g->thread = pthread_self();
  g->blocking = !(st->flags & cudaStreamNonBlocking);
  pthread_mutex_lock(&lock);
  st->capture = g->id = ++last_capture;
  g->next = captures;
  captures = g;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
  graph *g = captured(s);
  *out = NULL;
  if (g == NULL) return fail(cudaErrorIllegalState);
  pthread_mutex_lock(&lock);
  graph **at = &captures;
  while (*at != g) at = &(*at)->next;
  *at = g->next;
  pthread_mutex_unlock(&lock);
  cudaError_t e = g->invalid;
  if (e)
    drop(g);
  else
    *out = (cudaGraph_t)g;
  return fail(e);
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
                                                 cudaGraphNodeTypeHost, cudaGraphNodeTypeEmpty, cudaGraphNodeTypeGraph};
  *t = types[((node *)n)->kind];
  return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t *g, unsigned flags) {
  (void)flags;
  *g = (cudaGraph_t)new_graph();
  return cudaSuccess;
}
cudaError_t cudaGraphClone(cudaGraph_t *out, cudaGraph_t g) {
  if (g == NULL) return fail(cudaErrorInvalidValue);
  *out = (cudaGraph_t)clone_of((graph *)g);
  return cudaSuccess;
}
static node *add(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n, int kind) {
  node *c = record((graph *)g, kind);
  c->rows = c->slices = 1;
  depend(c, after, n);
  *out = (cudaGraphNode_t)c;
  return c;
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n) {
  add(out, g, after, n, NODE_EMPTY);
  return cudaSuccess;
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n, cudaGraph_t child) {
  add(out, g, after, n, NODE_GRAPH)->child = clone_of((graph *)child);
  return cudaSuccess;
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n,
                                 const struct cudaHostNodeParams *p) {
  node *c = add(out, g, after, n, NODE_CALL);
  c->call = p->fn, c->to = p->userData;
  return cudaSuccess;
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n, void *to,
                                     const void *from, size_t size, enum cudaMemcpyKind k) {
  node *c = add(out, g, after, n, NODE_COPY);
  (void)k;
  c->to = to, c->from = from, c->size = size;
  return cudaSuccess;
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n,
                                   const struct cudaMemcpy3DParms *p) {
  if (p->srcArray || p->dstArray) return lacks("cudaGraphAddMemcpyNode with a cudaArray");
  node *c = add(out, g, after, n, NODE_COPY);
  c->to_pitch = p->dstPtr.pitch, c->to_slice = p->dstPtr.pitch * p->dstPtr.ysize;
  c->from_pitch = p->srcPtr.pitch, c->from_slice = p->srcPtr.pitch * p->srcPtr.ysize;
  c->to = (char *)p->dstPtr.ptr + p->dstPos.z * c->to_slice + p->dstPos.y * c->to_pitch + p->dstPos.x;
  c->from = (char *)p->srcPtr.ptr + p->srcPos.z * c->from_slice + p->srcPos.y * c->from_pitch + p->srcPos.x;
  c->size = p->extent.width, c->rows = p->extent.height, c->slices = p->extent.depth;
  return cudaSuccess;
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n,
                                   const struct cudaMemsetParams *p) {
  if (p->elementSize == 2) return lacks("cudaGraphAddMemsetNode with elements of 2 bytes");
  if (p->elementSize != 1 && p->elementSize != 4) return fail(cudaErrorInvalidValue);
  node *c = add(out, g, after, n, NODE_SET);
  c->to = p->dst, c->to_pitch = p->pitch, c->value = p->value, c->width = p->elementSize, c->size = p->width, c->rows = p->height;
  return cudaSuccess;
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n,
                                   const struct cudaKernelNodeParams *p) {
  if (p->kernelParams == NULL && p->extra) return lacks("cudaGraphAddKernelNode with its parameters in one buffer");
  void *none[1] = {NULL}, *ready = NULL;
  cudaError_t e = prepare(p->func, p->gridDim, p->blockDim, NULL, p->kernelParams ? p->kernelParams : none, p->sharedMemBytes, &ready);
  if (e == cudaSuccess) add(out, g, after, n, NODE_LAUNCH)->launch = ready;
  return e;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to, const cudaGraphEdgeData *d,
                                     size_t n) {
  (void)d;
#else
cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to, size_t n) {
#endif
  (void)g;
  for (size_t i = 0; i < n; i++) depend((node *)to[i], from + i, 1);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags) {
  (void)flags;
  cudaError_t e = g ? play((graph *)g, 0) : fail(cudaErrorInvalidValue);
  if (e == cudaSuccess) *exec = (cudaGraphExec_t)clone_of((graph *)g);
  return e;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags) {
  return cudaGraphInstantiate(exec, g, flags);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) { (void)exec, (void)s; return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  if (exec == NULL) return fail(cudaErrorInvalidValue);
  graph *g = captured(s);
  if (g) return fail(invalidate(g, cudaErrorStreamCaptureUnsupported));
  cudaError_t e = legacy(s);
  if (e == cudaSuccess) e = status();
  worked(s, NULL);
  return e ? e : play((graph *)exec, 1);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { if (exec) drop((graph *)exec); return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { if (g) drop((graph *)g); return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return new_handle((void **)e); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { (void)f; return new_handle((void **)e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  struct timespec t;
  cudaError_t l = legacy(s);
  if (l) return l;
  clock_gettime(CLOCK_MONOTONIC, &t);
  if (e) ((event *)e)->ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6, ((event *)e)->capture = captured(s) ? captured(s)->id : 0;
  if (e && stream_of(s)) ((event *)e)->of = stream_of(s), ((event *)e)->work = stream_of(s)->work;
  return status();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { (void)f; return cudaEventRecord(e, s); }
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  graph *g = e ? capture(((event *)e)->capture) : NULL;
  if (e) awaited(((event *)e)->of, ((event *)e)->work);
  return g ? fail(invalidate(g, cudaErrorCapturedEvent)) : status();
}
cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaEventSynchronize(e); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { *ms = (float)(((event *)b)->ms - ((event *)a)->ms); return cudaSuccess; }

/* The device */

cudaError_t cudaDeviceSynchronize(void) {
  cudaError_t e = cudaSuccess;
  pthread_mutex_lock(&lock);
  for (graph *g = captures; g; g = g->next) e = invalidate(g, cudaErrorStreamCaptureUnsupported); // even relaxed ones
  pthread_mutex_unlock(&lock);
  all_awaited();
  return e ? fail(e) : status();
}
cudaError_t cudaGetDevice(int *d) { *d = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return d == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned f) { (void)f; return cudaSuccess; }

// The limits of the device, as an H100 has them. Those of printf and malloc are fixed once a kernel has used them.
static struct { size_t stack, fifo, heap, granularity, pending; } limits = {1024, 8650752, 8 << 20, 64, 2048};
cudaError_t cudaDeviceSetLimit(enum cudaLimit l, size_t v) {
  fisub_vgpu_limits now = {0};
  if (hooks.limits) hooks.limits(&now);
  switch ((int)l) {
  case cudaLimitStackSize:
    if (v > 512 << 10) return fail(cudaErrorInvalidValue);
    limits.stack = (v + 15) / 16 * 16;
    break;
  case cudaLimitPrintfFifoSize:
    if (now.printf_used) return fail(cudaErrorInvalidValue);
    limits.fifo = v;
    return cudaSuccess; // fisub prints all
  case cudaLimitMallocHeapSize:
    if (now.heap_used) return fail(cudaErrorInvalidValue);
    limits.heap = v < 4 << 20 ? 4 << 20 : v > 16ull << 30 ? 16ull << 30 : (v + 4095) / 4096 * 4096;
    break;
  case cudaLimitMaxL2FetchGranularity: limits.granularity = v > 128 ? 128 : v; return cudaSuccess;
  case cudaLimitDevRuntimePendingLaunchCount: limits.pending = v; return cudaSuccess;
  case cudaLimitPersistingL2CacheSize: return cudaSuccess;
  case cudaLimitDevRuntimeSyncDepth: return fail(cudaErrorUnsupportedLimit);
  default: return fail(cudaErrorInvalidValue);
  }
  now = (fisub_vgpu_limits){.stack = limits.stack, .heap = limits.heap};
  if (hooks.limits) hooks.limits(&now);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t *v, enum cudaLimit l) {
  if (v == NULL) return fail(cudaErrorInvalidValue);
  switch ((int)l) {
  case cudaLimitStackSize: *v = limits.stack; break;
  case cudaLimitPrintfFifoSize: *v = limits.fifo; break;
  case cudaLimitMallocHeapSize: *v = limits.heap; break;
  case cudaLimitMaxL2FetchGranularity: *v = limits.granularity; break;
  case cudaLimitDevRuntimePendingLaunchCount: *v = limits.pending; break;
  case cudaLimitPersistingL2CacheSize: *v = 0; break;
  case cudaLimitDevRuntimeSyncDepth: return fail(cudaErrorUnsupportedLimit);
  default: return fail(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
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
  case cudaDevAttrComputeCapabilityMajor: *v = capability() / 10; break;
  case cudaDevAttrComputeCapabilityMinor: *v = capability() % 10; break;
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
  p->major = capability() / 10;
  p->minor = capability() % 10;
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
