// A CUDA runtime library for code whose kernels run on the virtual GPU. It keeps the state of the host (streams,
// events, launch configurations, the last error). The program that loads it provides modules, memory and launches
// through fisub_vgpu_install. All work is done when a call returns, so nothing ever waits for streams or events. To find
// missing waits, it records which operations each stream, event and the host code know to be done.
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
  int max_dynamic; // bytes of dynamic shared memory that cudaFuncSetAttribute allows; -1: never set
  int any_cluster; // more than 8 blocks are allowed
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

// The handles that the program holds, in a hash table with open addressing: a handle that it does not hold is never
// followed. A removed one leaves GONE behind.
enum { STREAM = 1, EVENT, GRAPH, EXEC, NODE, POOL, ARRAY, GONE };
typedef struct {
  const void *p;
  int kind;
} handle;
static handle *handles;
static size_t n_handles, handles_size;

static handle *find_handle(const void *p) { // under the lock; NULL: unknown
  for (size_t i = (size_t)p / 16 * 0x9e3779b97f4a7c15ull; handles_size; i++) {
    handle *h = &handles[i & (handles_size - 1)];
    if (h->kind == 0) return NULL;
    if (h->p == p && h->kind != GONE) return h;
  }
  return NULL;
}
static void put_handle(const void *p, int kind) {
  size_t i = (size_t)p / 16 * 0x9e3779b97f4a7c15ull;
  while (handles[i & (handles_size - 1)].kind) i++;
  handles[i & (handles_size - 1)] = (handle){p, kind};
  n_handles++;
}
static void hold(const void *p, int kind) {
  pthread_mutex_lock(&lock);
  if (2 * n_handles >= handles_size) {
    handle *old = handles;
    size_t size = handles_size, live = 0;
    for (size_t i = 0; i < size; i++) live += old[i].kind && old[i].kind != GONE;
    handles_size = 256;
    while (handles_size < 4 * live) handles_size *= 2;
    handles = calloc(handles_size, sizeof *handles);
    if (handles == NULL) abort();
    n_handles = 0;
    for (size_t i = 0; i < size; i++)
      if (old[i].kind && old[i].kind != GONE) put_handle(old[i].p, old[i].kind);
    free(old);
  }
  put_handle(p, kind);
  pthread_mutex_unlock(&lock);
}
static int held(const void *p, int kind) {
  pthread_mutex_lock(&lock);
  handle *h = find_handle(p);
  int is = h && h->kind == kind;
  pthread_mutex_unlock(&lock);
  return is;
}
static void let_go(const void *p) {
  pthread_mutex_lock(&lock);
  handle *h = find_handle(p);
  if (h) h->kind = GONE;
  pthread_mutex_unlock(&lock);
}

void fisub_vgpu_install(const fisub_vgpu_hooks *h) { hooks = *h; }
const fisub_vgpu_hooks *fisub_vgpu_hooks_now(void) { return &hooks; }

static void ending(void) {
  if (hooks.status) hooks.status(); // reports the last actions of the host code
  if (hooks.ending) hooks.ending();
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

// A function that cudaLaunchHostFunc calls may use only a few calls of the runtime.
static __thread int in_host_function;
static cudaError_t permitted(void) { return in_host_function ? fail(cudaErrorNotPermitted) : cudaSuccess; }

static cudaError_t lacks(const char *name) {
  if (hooks.lacks) hooks.lacks(name);
  return fail(cudaErrorNotSupported);
}

static int capability(void) { return hooks.capability ? hooks.capability() : 100; }

cudaError_t fisub_vgpu_missing(const char *name) { return lacks(name); }

// status returns an earlier fault, if any, for calls that may report one.
static cudaError_t status(void) {
  cudaError_t e = permitted();
  return e ? e : fail(hooks.status ? (cudaError_t)hooks.status() : cudaSuccess);
}

/* Registration */

enum { RELOCATABLE = 2 };
typedef struct {
  int magic, version; // version: 1, or RELOCATABLE
  const void *data;
  void *more; // of RELOCATABLE: the fat binaries of the units
} wrapper;

void **__cudaRegisterFatBinary(void *fat) {
  const wrapper *w = fat;
  void **handle = calloc(1, sizeof *handle);
  *handle = hooks.module ? hooks.module(w->data, w->version == RELOCATABLE ? w->more : NULL) : NULL;
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
  f->max_dynamic = -1;
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
static cudaError_t no_function(const void *host) {
  return fail(host ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction);
}

// attributes sets *a, and max_dynamic of a function for which it was never set.
static cudaError_t attributes(function *f, fisub_vgpu_attributes *a) {
  cudaError_t e = hooks.attributes ? (cudaError_t)hooks.attributes(*f->module, f->name, a) : cudaErrorNoDevice;
  if (e == cudaSuccess && f->max_dynamic < 0) f->max_dynamic = (48 << 10) - a->shared;
  return fail(e);
}

/* Order. Operations are launches, copies, memsets and stream-ordered allocations, numbered from 1. A chain is a sequence
   of operations in which each one is ordered after the earlier ones. */

// A history is a set of operations: by chain, the number of the last one. It contains the earlier ones of the chain.
typedef struct {
  unsigned n, *last;
} history;

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER; // held during an operation
static unsigned operations;
// All operations so far, those that the host has waited for, and those that the legacy stream's next operation follows.
static history all_operations, waited, blocking;

static void reach(history *h, unsigned n) {
  if (h->n >= n) return;
  h->last = realloc(h->last, n * sizeof *h->last);
  if (h->last == NULL) abort();
  while (h->n < n) h->last[h->n++] = 0;
}
static void join(history *to, const history *from) {
  reach(to, from->n);
  for (unsigned i = 0; i < from->n; i++)
    if (from->last[i] > to->last[i]) to->last[i] = from->last[i];
}
// begin_operation starts an operation after those of *past, to which it adds itself. end_operation ends it.
static void begin_operation(history *past, const char *where) {
  if (!hooks.begin) return;
  pthread_mutex_lock(&order);
  unsigned chain = 0;
  reach(past, all_operations.n + 1);
  while (chain < all_operations.n && all_operations.last[chain] > past->last[chain]) chain++;
  hooks.begin(where, chain, past->last, past->n);
  reach(&all_operations, chain + 1);
  past->last[chain] = all_operations.last[chain] = ++operations;
}
static void end_operation(void) {
  if (!hooks.begin) return;
  hooks.end();
  pthread_mutex_unlock(&order);
}
// host_knows records that operations are done when host code continues.
static void host_knows(const history *of) {
  if (!hooks.begin) return;
  pthread_mutex_lock(&order);
  join(&waited, of);
  hooks.waited(waited.last, waited.n);
  pthread_mutex_unlock(&order);
}

/* Graphs. A capture records the work of its streams as a sequence of nodes; nodes added otherwise have dependencies. */

enum { NODE_LAUNCH, NODE_COPY, NODE_SET, NODE_CALL, NODE_EMPTY, NODE_GRAPH };
typedef struct node {
  struct node *next;
  int kind;
  void *launch;   // from hooks.prepare
  int own_launch; // in a clone: it is not the source's
  char *to;
  const char *from;
  size_t size, rows, slices; // in bytes for a copy, in elements of width bytes for a set
  size_t to_pitch, to_slice, from_pitch, from_slice;
  unsigned value, width;
  cudaHostFn_t call;
  struct graph *child;
  struct node **after; // its dependencies
  size_t n_after;
  int followed; // it is a dependency
  size_t index;
  unsigned long round; // last round in which it ran
  history past;        // in that round: the operations before it, and its own
} node;
typedef struct graph {
  node *first, **end;
  size_t n;
  int users;
  unsigned long round;
  struct graph *source; // of a clone: the owner of the launches
  history past;         // the operations up to the last launch of the clone
  // For a capture:
  struct graph *next;
  unsigned long id;
  pthread_t thread;
  enum cudaStreamCaptureMode mode;
  struct stream *origin; // which began it
  int blocking;          // origin is not a non-blocking stream
  cudaError_t invalid; // set once an illegal call has invalidated it
} graph;
// The nodes of a capture that the next work of a stream, or of those that wait for an event, depends on.
typedef struct {
  node **all;
  size_t n;
} frontier;
typedef struct stream {
  unsigned long capture; // id, 0 if not captured
  frontier last;
  unsigned flags;
  int priority;
  // For non-blocking streams: amount of work so far, and of work that something has waited for.
  unsigned long work, awaited;
  const char *kernel; // of the last launch, NULL after a copy
  struct stream *next;
  int destroyed;
  history past; // operations before the stream's next one
  char name[48];
} stream;
typedef struct {
  unsigned long capture;
  frontier last;
  int recorded, untimed;
  double ms;
  stream *of; // stream of the last record, and its work then
  unsigned long work;
  history past; // operations that are done when the event is
} event;

static graph *captures; // not yet ended
static unsigned long last_capture;
static stream per_thread = {.name = "on the per-thread default stream"};
static stream legacy_stream = {.name = "on the legacy default stream"}; // its past and name
static unsigned long streams;
static stream *own_streams; // non-blocking streams

// stream_of returns NULL for the legacy stream.
static stream *stream_of(void *s) { return s == cudaStreamPerThread ? &per_thread : s > (void *)cudaStreamLegacy ? s : NULL; }
// check_stream returns an error for a stream that does not exist.
static cudaError_t check_stream(void *s) {
  return s <= (void *)cudaStreamPerThread || held(s, STREAM) ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}
static cudaError_t check_event(cudaEvent_t e) {
  return held(e, EVENT) ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}
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
  host_knows(&all_operations);
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
    if (st->destroyed) *at = st->next;
    else at = &st->next;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

// enter orders the next operation of s after those that precede all operations of s, and returns s.
static stream *enter(void *s) {
  stream *st = stream_of(s) ? stream_of(s) : &legacy_stream;
  if (!hooks.begin) return st;
  pthread_mutex_lock(&order);
  join(&st->past, &waited);
  if (st == &legacy_stream) join(&st->past, &blocking);
  else if (!(st->flags & cudaStreamNonBlocking)) join(&st->past, &legacy_stream.past);
  pthread_mutex_unlock(&order);
  return st;
}
// leave records the new past of a stream.
static void leave(stream *st) {
  if (!hooks.begin || st->flags & cudaStreamNonBlocking) return;
  pthread_mutex_lock(&order);
  join(&blocking, &st->past);
  pthread_mutex_unlock(&order);
}
static stream *begin_on(void *s) {
  stream *st = enter(s);
  begin_operation(&st->past, st->name);
  return st;
}
static void end_on(stream *st, int wait) {
  end_operation();
  leave(st);
  if (wait) host_knows(&st->past);
}

// wait_for returns the error of waiting for s.
static cudaError_t wait_for(void *s) {
  cudaError_t unknown = check_stream(s);
  if (unknown) return unknown;
  if (stream_of(s)) awaited(stream_of(s), stream_of(s)->work);
  graph *g = captured(s);
  cudaError_t e = g ? fail(invalidate(g, cudaErrorStreamCaptureUnsupported)) : stream_of(s) ? unsafe() : legacy(s);
  if (e == cudaSuccess) host_knows(&enter(s)->past);
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
  n->index = g->n++;
  *g->end = n;
  g->end = &n->next;
  return n;
}
static void drop(graph *g) {
  if (--g->users > 0) return;
  for (node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (n->launch && hooks.forget && (!g->source || n->own_launch)) hooks.forget(n->launch);
    if (n->child) drop(n->child);
    let_go(n);
    free(n->past.last);
    free(n->after);
    free(n);
  }
  if (g->source) drop(g->source);
  free(g->past.last);
  free(g);
}
static void depend(node *n, const cudaGraphNode_t *after, size_t count) {
  n->after = realloc(n->after, (n->n_after + count + 1) * sizeof *n->after);
  if (n->after == NULL) abort();
  for (size_t i = 0; i < count; i++) {
    n->after[n->n_after++] = (node *)after[i];
    ((node *)after[i])->followed = 1;
  }
}

static void copy_frontier(frontier *to, const frontier *from) {
  node **all = malloc((from->n + 1) * sizeof *all);
  if (all == NULL) abort();
  if (from->n) memcpy(all, from->all, from->n * sizeof *all);
  free(to->all);
  *to = (frontier){all, from->n};
}
static int in_frontier(const frontier *f, const node *n) {
  for (size_t i = 0; i < f->n; i++)
    if (f->all[i] == n) return 1;
  return 0;
}
static void join_frontier(frontier *to, const frontier *from) {
  to->all = realloc(to->all, (to->n + from->n + 1) * sizeof *to->all);
  if (to->all == NULL) abort();
  for (size_t i = 0; i < from->n; i++)
    if (!in_frontier(to, from->all[i])) to->all[to->n++] = from->all[i];
}
// record_on records work of a captured stream.
static node *record_on(void *s, graph *g, int kind) {
  node *n = record(g, kind);
  stream *st = stream_of(s);
  depend(n, (const cudaGraphNode_t *)st->last.all, st->last.n);
  hold(n, NODE);
  copy_frontier(&st->last, &(frontier){&n, 1});
  return n;
}

static graph *clone_of(graph *of) {
  graph *g = new_graph();
  node **copies = malloc((of->n + 1) * sizeof *copies);
  if (copies == NULL) abort();
  g->source = of;
  of->users++;
  for (node *n = of->first; n; n = n->next) {
    node *c = record(g, n->kind), *next = c->next;
    copies[n->index] = c;
    *c = *n;
    c->next = next, c->after = NULL, c->n_after = 0, c->round = 0, c->own_launch = 0, c->past = (history){0};
    if (c->child) c->child->users++;
  }
  for (node *n = of->first, *c = g->first; n; n = n->next, c = c->next)
    for (size_t i = 0; i < n->n_after; i++) depend(c, (const cudaGraphNode_t *)&copies[n->after[i]->index], 1);
  free(copies);
  return g;
}

static cudaError_t copy(const char *function, void *d, const void *s, size_t n);
static cudaError_t play(graph *g, int run, history *past, const char *where);
// call_host calls a host function that runs after the operations of past. It may tell other host code that they are done.
static void call_host(cudaStreamCallback_t f, cudaHostFn_t g, cudaStream_t s, void *p, const history *past) {
  host_knows(past);
  in_host_function++;
  if (f) f(s, cudaSuccess, p);
  else g(p);
  in_host_function--;
}
static cudaError_t play_node(node *n, const char *where) {
  cudaError_t e = cudaSuccess;
  switch (n->kind) {
  case NODE_CALL: call_host(NULL, n->call, NULL, n->to, &n->past); return cudaSuccess;
  case NODE_GRAPH: return play(n->child, 1, &n->past, where);
  case NODE_EMPTY: return cudaSuccess;
  }
  begin_operation(&n->past, where);
  if (n->kind == NODE_LAUNCH) e = fail((cudaError_t)hooks.launch(n->launch));
  for (size_t z = 0; z < n->slices && n->kind != NODE_LAUNCH; z++)
    for (size_t y = 0; y < n->rows && e == cudaSuccess; y++) {
      char *to = n->to + z * n->to_slice + y * n->to_pitch;
      if (n->kind == NODE_COPY)
        e = copy("a graph's copy", to, n->from + z * n->from_slice + y * n->from_pitch, n->size);
      else if (n->kind == NODE_SET && n->size)
        e = fail((cudaError_t)hooks.set("a graph's memset", to, n->value, (int)n->width, n->size));
    }
  end_operation();
  return e;
}
// play runs the nodes of g in the order of their dependencies, after the operations of *past, to which it adds theirs.
// It fails if they form a cycle.
static cudaError_t play(graph *g, int run, history *past, const char *where) {
  cudaError_t e = cudaSuccess;
  unsigned long round = ++g->round;
  for (size_t left = g->n, before = 0; left && e == cudaSuccess;) {
    if (left == before) return fail(cudaErrorInvalidValue);
    before = left;
    for (node *n = g->first; n && e == cudaSuccess; n = n->next) {
      size_t ready = 0;
      while (ready < n->n_after && n->after[ready]->round == round) ready++;
      if (n->round == round || ready < n->n_after) continue;
      if (run) {
        n->past.n = 0;
        join(&n->past, past);
        for (size_t i = 0; i < n->n_after; i++) join(&n->past, &n->after[i]->past);
        e = play_node(n, where);
      }
      n->round = round;
      left--;
    }
  }
  for (node *n = run ? g->first : NULL; n; n = n->next) join(past, &n->past);
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
  return find_function(host) ? cudaSuccess : no_function(host);
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
  if (f == NULL) return no_function(host);
  if (hooks.prepare == NULL) return fail(cudaErrorNoDevice);
  fisub_vgpu_attributes a = {0};
  cudaError_t e = permitted();
  if (e || (e = attributes(f, &a))) return e;
  if (shared > (size_t)f->max_dynamic) {
    if (f->max_dynamic + a.shared == 48 << 10 && a.shared)
      return refuse(f, cudaErrorInvalidValue, "%zu bytes of dynamic and %d of static shared memory are more than 49152 "
                    "together, and cudaFuncSetAttribute did not allow more", shared, a.shared);
    return refuse(f, cudaErrorInvalidValue, "%zu bytes of dynamic shared memory are more than the %d that cudaFuncSetAttribute allowed",
                  shared, f->max_dynamic);
  }
  unsigned dims[11] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, [10] = f->any_cluster};
  if (more) memcpy(dims + 6, more, 4 * sizeof *more);
  int error = 0;
  *ready = hooks.prepare(*f->module, f->name, dims, args, shared, &error);
  return *ready ? cudaSuccess : fail((cudaError_t)error);
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, const unsigned *more, void **args, size_t shared, void *to) {
  void *ready = NULL;
  cudaError_t e = check_stream(to);
  if (e) return e;
  graph *g = captured(to);
  if ((e = prepare(host, grid, block, more, args, shared, &ready))) {
    if (g) invalidate(g, e);
    return e;
  }
  if (g) {
    record_on(to, g, NODE_LAUNCH)->launch = ready;
    return cudaSuccess;
  }
  e = legacy(to);
  if (e == cudaSuccess) {
    stream *st = begin_on(to);
    e = fail((cudaError_t)hooks.launch(ready));
    end_on(st, 0);
  }
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
  if (c == NULL || (c->numAttrs && c->attrs == NULL)) return fail(cudaErrorInvalidValue);
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
  if (f == NULL) return no_function(host);
  fisub_vgpu_attributes a = {0};
  cudaError_t e = attributes(f, &a);
  if (e) return e;
  switch ((int)attr) {
  case cudaFuncAttributeMaxDynamicSharedMemorySize:
    if (value < 0 || value > (227 << 10) - a.shared) return fail(cudaErrorInvalidValue);
    f->max_dynamic = value;
    return cudaSuccess;
  case cudaFuncAttributePreferredSharedMemoryCarveout:
    return value < -1 || value > 100 ? fail(cudaErrorInvalidValue) : cudaSuccess;
  case cudaFuncAttributeNonPortableClusterSizeAllowed: f->any_cluster = value != 0; return cudaSuccess;
  case cudaFuncAttributeClusterDimMustBeSet: case cudaFuncAttributeRequiredClusterWidth:
  case cudaFuncAttributeRequiredClusterHeight: case cudaFuncAttributeRequiredClusterDepth:
  case cudaFuncAttributeClusterSchedulingPolicyPreference: return cudaSuccess;
  }
  return fail(cudaErrorInvalidValue);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host) {
  function *f = find_function(host);
  if (a == NULL) return fail(cudaErrorInvalidValue);
  if (f == NULL) return no_function(host);
  fisub_vgpu_attributes v;
  cudaError_t e = attributes(f, &v);
  if (e) return e;
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

static cudaError_t blocks_of(int *n, const void *host, size_t threads, size_t shared) {
  function *f = find_function(host);
  if (n == NULL || threads == 0) return fail(cudaErrorInvalidValue);
  if (f == NULL) return no_function(host);
  *n = hooks.blocks && threads <= 1024 ? hooks.blocks(*f->module, f->name, (int)threads, shared) : 0;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *host, int threads, size_t shared) {
  return blocks_of(n, host, threads < 0 ? 0 : (size_t)threads, shared);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host, int threads, size_t shared, unsigned flags) {
  (void)flags;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, host, threads, shared);
}
cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *host, const cudaLaunchConfig_t *c) {
  if (c == NULL) return fail(cudaErrorInvalidValue);
  cudaError_t e = blocks_of(n, host, (size_t)c->blockDim.x * c->blockDim.y * c->blockDim.z, c->dynamicSmemBytes);
  if (e == cudaSuccess) *n *= 16;
  return e;
}

/* Errors */

cudaError_t cudaGetLastError(void) {
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e != cudaSuccess ? e : hooks.status ? (cudaError_t)hooks.status() : cudaSuccess;
}
// fisub_vgpu_pending takes this thread's last error. It returns 0 if there is none.
int fisub_vgpu_pending(const char **name, const char **text) {
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  *name = cudaGetErrorName(e);
  *text = cudaGetErrorString(e);
  return e != cudaSuccess;
}
cudaError_t cudaPeekAtLastError(void) { return last_error != cudaSuccess ? last_error : hooks.status ? (cudaError_t)hooks.status() : cudaSuccess; }

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {20, "cudaErrorInvalidChannelDescriptor", "invalid channel descriptor"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {26, "cudaErrorInvalidFilterSetting", "linear filtering not supported for non-float type"},
    {27, "cudaErrorInvalidNormSetting", "read as normalized float not supported for 32-bit non float type"},
    {52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {215, "cudaErrorUnsupportedLimit", "limit is not supported on this architecture"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {910, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {903, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {906, "cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
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

static int known(const void *p) { return hooks.known ? hooks.known(p) : FISUB_VGPU_PAGEABLE; }

// callers returns the calls that led here.
static fisub_vgpu_callers callers(void) {
  fisub_vgpu_callers c = {{NULL}};
  backtrace(c.at, sizeof c.at / sizeof *c.at);
  return c;
}

static cudaError_t obtain(void **p, size_t n, int host) {
  fisub_vgpu_callers by = callers();
  *p = n && hooks.alloc ? hooks.alloc(n, host, &by) : NULL;
  return *p ? status() : n ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
static cudaError_t allocate(void **p, size_t n, int host) {
  cudaError_t e = p == NULL ? fail(cudaErrorInvalidValue) : permitted();
  if (e == cudaSuccess && n) e = unsafe();
  return e ? e : obtain(p, n, host);
}
static cudaError_t release(const char *function, void *p, int host) {
  fisub_vgpu_callers by = callers();
  if (p != NULL && hooks.release && !hooks.release(function, p, host, &by)) return fail(cudaErrorInvalidValue);
  return status();
}
static cudaError_t wait_and_release(const char *function, void *p, int host) {
  cudaError_t e = permitted();
  if (e || (e = unsafe())) return e;
  all_awaited();
  return release(function, p, host);
}
cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, 0); }
cudaError_t cudaFree(void *p) { return wait_and_release("cudaFree", p, 0); }
cudaError_t cudaFreeHost(void *p) { return wait_and_release("cudaFreeHost", p, 1); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) {
  if (p == NULL) return fail(cudaErrorInvalidValue);
  cudaError_t e = check_stream(s);
  if (e) return e;
  if (captured(s)) return lacks("cudaMallocAsync into a stream that is captured");
  if ((e = legacy(s))) return e;
  stream *st = begin_on(s);
  e = obtain(p, n, 0);
  if (hooks.begin && *p) hooks.use("cudaMallocAsync", *p);
  end_on(st, 0);
  return e;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
  cudaError_t e = check_stream(s);
  if (e) return e;
  if (captured(s)) return fail(cudaErrorInvalidValue); // p is not from the captured graph
  if ((e = legacy(s))) return e;
  stream *st = begin_on(s);
  if (hooks.begin) hooks.use("cudaFreeAsync", p);
  end_on(st, 0);
  return release("cudaFreeAsync", p, 0);
}
cudaError_t cudaMallocManaged(void **p, size_t n, unsigned f) {
  return f == cudaMemAttachGlobal || f == cudaMemAttachHost ? allocate(p, n, 1) : fail(cudaErrorInvalidValue);
}
cudaError_t cudaMallocPitch(void **p, size_t *pitch, size_t w, size_t h) {
  if (pitch == NULL) return fail(cudaErrorInvalidValue);
  *pitch = (w + 511) / 512 * 512;
  return cudaMalloc(p, *pitch * h);
}
cudaError_t cudaMallocHost(void **p, size_t n) { return allocate(p, n, 1); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) {
  return f > 7 ? fail(cudaErrorInvalidValue) : allocate(p, n, 1);
}
cudaError_t cudaHostGetDevicePointer(void **d, void *h, unsigned f) {
  if (d == NULL || f || known(h) != FISUB_VGPU_PINNED) return fail(cudaErrorInvalidValue);
  *d = h;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_, size_t *total) {
  if (total) *total = 180ull << 30;
  if (free_) *free_ = 170ull << 30;
  return permitted();
}

// check_copy returns the error for a copy between d and s. The kind says which of them is the device's, and memory of
// the device may also be called the host's.
static cudaError_t check_copy(const void *d, const void *s, enum cudaMemcpyKind k) {
  int to = known(d), from = known(s);
  int device_to = k == cudaMemcpyHostToDevice || k == cudaMemcpyDeviceToDevice;
  int device_from = k == cudaMemcpyDeviceToHost || k == cudaMemcpyDeviceToDevice;
  if ((unsigned)k > cudaMemcpyDefault) return fail(cudaErrorInvalidMemcpyDirection);
  if (d == NULL || s == NULL || to == FISUB_VGPU_HEAP || from == FISUB_VGPU_HEAP) return fail(cudaErrorInvalidValue);
  if ((device_to && to == FISUB_VGPU_PAGEABLE) || (device_from && from == FISUB_VGPU_PAGEABLE))
    return fail(cudaErrorInvalidValue);
  return cudaSuccess;
}

static int is_async(const char *function) { return strstr(function, "Async") != NULL; }
static cudaError_t copy(const char *function, void *d, const void *s, size_t n) {
  cudaError_t e = status();
  return e || n == 0 ? e : fail((cudaError_t)hooks.copy(function, d, s, n));
}
static cudaError_t set(const char *function, void *d, unsigned v, int width, size_t n) {
  cudaError_t e = status();
  return e || n == 0 ? e : fail((cudaError_t)hooks.set(function, d, width == 1 ? (unsigned char)v : v, width, n));
}
// waits_copy reports whether the host waits for a copy: not in an asynchronous one, except to pageable memory or without
// memory of the device, and not in one between memory of the device. A copy from pageable memory that need not have
// arrived when cudaMemcpy returns counts as awaited, too.
static int waits_copy(const char *function, const void *d, const void *s) {
  int to = known(d), from = known(s), device = (to == FISUB_VGPU_DEVICE) + (from == FISUB_VGPU_DEVICE);
  return is_async(function) ? to == FISUB_VGPU_PAGEABLE || !device : device < 2;
}
// copy_rows copies h rows of w bytes on the stream st; if st is being captured, it adds the copy to the graph instead.
// The errors are as on an H100.
static cudaError_t copy_rows(const char *function, void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h,
                             enum cudaMemcpyKind k, cudaStream_t st) {
  cudaError_t e = permitted();
  if (e || (e = check_stream(st))) return e;
  if (w == 0 || h == 0) return status();
  if (dp < w || sp < w) return fail(cudaErrorInvalidPitchValue);
  if ((e = check_copy(d, s, k))) return e;
  graph *g = captured(st);
  if (g) {
    node *c = record_on(st, g, NODE_COPY);
    c->to = d, c->to_pitch = dp, c->from = s, c->from_pitch = sp, c->size = w, c->rows = h, c->slices = 1;
    return cudaSuccess;
  }
  e = legacy(st);
  worked(st, NULL);
  stream *on = begin_on(st);
  for (size_t i = 0; i < h && e == cudaSuccess; i++) e = copy(function, (char *)d + i * dp, (const char *)s + i * sp, w);
  end_on(on, waits_copy(function, d, s));
  return e;
}
static cudaError_t set_rows(const char *function, void *d, size_t p, unsigned v, int width, size_t w, size_t h, cudaStream_t st) {
  cudaError_t e = permitted();
  if (e || (e = check_stream(st))) return e;
  if (w == 0 || h == 0) return status();
  if (p < w || known(d) == FISUB_VGPU_PAGEABLE) return fail(cudaErrorInvalidValue);
  graph *g = captured(st);
  if (g) {
    node *c = record_on(st, g, NODE_SET);
    c->to = d, c->to_pitch = p, c->value = v, c->width = (unsigned)width, c->size = w, c->rows = h, c->slices = 1;
    return cudaSuccess;
  }
  e = legacy(st);
  worked(st, NULL);
  stream *on = begin_on(st);
  for (size_t i = 0; i < h && e == cudaSuccess; i++) e = set(function, (char *)d + i * p, v, width, w);
  end_on(on, known(d) == FISUB_VGPU_PINNED && !is_async(function));
  return e;
}
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) {
  return copy_rows("cudaMemcpy", d, n, s, n, n, 1, k, NULL);
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  return copy_rows("cudaMemcpyAsync", d, n, s, n, n, 1, k, st);
}
cudaError_t cudaMemcpy2D(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k) {
  return copy_rows("cudaMemcpy2D", d, dp, s, sp, w, h, k, NULL);
}
cudaError_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k, cudaStream_t st) {
  return copy_rows("cudaMemcpy2DAsync", d, dp, s, sp, w, h, k, st);
}
cudaError_t cudaMemset(void *d, int v, size_t n) { return set_rows("cudaMemset", d, n, (unsigned)v, 1, n, 1, NULL); }
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t s) { return set_rows("cudaMemsetAsync", d, n, (unsigned)v, 1, n, 1, s); }
cudaError_t fisub_vgpu_set(const char *function, void *d, unsigned v, size_t n) { return set_rows(function, d, n, v, 4, n, 1, NULL); }
cudaError_t cudaMemset2D(void *d, size_t p, int v, size_t w, size_t h) { return set_rows("cudaMemset2D", d, p, (unsigned)v, 1, w, h, NULL); }
cudaError_t cudaMemset2DAsync(void *d, size_t p, int v, size_t w, size_t h, cudaStream_t s) {
  return set_rows("cudaMemset2DAsync", d, p, (unsigned)v, 1, w, h, s);
}
cudaError_t cudaMemPrefetchAsync(const void *p, size_t n, struct cudaMemLocation l, unsigned f, cudaStream_t s) {
  (void)p, (void)n, (void)l, (void)f, (void)s;
  return cudaSuccess;
}

static variable *find_variable(const void *host) {
  pthread_mutex_lock(&lock);
  variable *v = variables;
  while (v && v->host != host) v = v->next;
  pthread_mutex_unlock(&lock);
  return v;
}
cudaError_t cudaGetSymbolAddress(void **p, const void *host) {
  variable *v = find_variable(host);
  size_t n = 0;
  if (p == NULL) return fail(cudaErrorInvalidValue);
  *p = v && hooks.symbol ? hooks.symbol(*v->module, v->name, &n) : NULL;
  return *p ? cudaSuccess : fail(cudaErrorInvalidSymbol);
}
cudaError_t cudaGetSymbolSize(size_t *n, const void *host) {
  variable *v = find_variable(host);
  if (n == NULL) return fail(cudaErrorInvalidValue);
  if (v == NULL) return fail(cudaErrorInvalidSymbol);
  *n = v->size;
  return cudaSuccess;
}
// part sets *p to n bytes of a symbol from byte at on. k is the only wrong kind besides cudaMemcpyHostToHost.
static cudaError_t part(char **p, const void *host, size_t n, size_t at, enum cudaMemcpyKind k, enum cudaMemcpyKind wrong) {
  void *address;
  cudaError_t e = cudaGetSymbolAddress(&address, host);
  if (e) return e;
  size_t size = find_variable(host)->size;
  if (at > size || n > size - at) return fail(cudaErrorInvalidValue);
  if (k == wrong || k == cudaMemcpyHostToHost) return fail(cudaErrorInvalidMemcpyDirection);
  *p = (char *)address + at;
  return cudaSuccess;
}
static cudaError_t to_symbol(const char *function, const void *host, const void *s, size_t n, size_t at, enum cudaMemcpyKind k,
                             cudaStream_t st) {
  char *p;
  cudaError_t e = part(&p, host, n, at, k, cudaMemcpyDeviceToHost);
  return e ? e : copy_rows(function, p, n, s, n, n, 1, k, st);
}
static cudaError_t from_symbol(const char *function, void *d, const void *host, size_t n, size_t at, enum cudaMemcpyKind k,
                               cudaStream_t st) {
  char *p;
  cudaError_t e = part(&p, host, n, at, k, cudaMemcpyHostToDevice);
  return e ? e : copy_rows(function, d, n, p, n, n, 1, k, st);
}
cudaError_t cudaMemcpyToSymbol(const void *host, const void *s, size_t n, size_t at, enum cudaMemcpyKind k) {
  return to_symbol("cudaMemcpyToSymbol", host, s, n, at, k, NULL);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *host, const void *s, size_t n, size_t at, enum cudaMemcpyKind k, cudaStream_t st) {
  return to_symbol("cudaMemcpyToSymbolAsync", host, s, n, at, k, st);
}
cudaError_t cudaMemcpyFromSymbol(void *d, const void *host, size_t n, size_t at, enum cudaMemcpyKind k) {
  return from_symbol("cudaMemcpyFromSymbol", d, host, n, at, k, NULL);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *d, const void *host, size_t n, size_t at, enum cudaMemcpyKind k, cudaStream_t st) {
  return from_symbol("cudaMemcpyFromSymbolAsync", d, host, n, at, k, st);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  if (a == NULL) return fail(cudaErrorInvalidValue);
  memset(a, 0, sizeof *a);
  int kind = known(p);
  a->type = kind == FISUB_VGPU_DEVICE || kind == FISUB_VGPU_PINNED ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  a->devicePointer = a->type == cudaMemoryTypeDevice ? (void *)p : NULL;
  return cudaSuccess;
}

/* Streams and events */

static cudaError_t new_handle(void **p, size_t size, int kind) {
  cudaError_t e = p == NULL ? fail(cudaErrorInvalidValue) : permitted();
  if (e) return e;
  *p = calloc(1, size);
  if (*p == NULL) return fail(cudaErrorMemoryAllocation);
  hold(*p, kind);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) {
  if (f > cudaStreamNonBlocking) return fail(cudaErrorInvalidValue);
  cudaError_t e = new_handle((void **)s, sizeof(stream), STREAM);
  if (e) return e;
  stream *st = (stream *)*s;
  st->flags = f;
  pthread_mutex_lock(&lock);
  snprintf(st->name, sizeof st->name, "on %sstream %lu", f & cudaStreamNonBlocking ? "non-blocking " : "", ++streams);
  pthread_mutex_unlock(&lock);
  if (f & cudaStreamNonBlocking) {
    pthread_mutex_lock(&lock);
    st->next = own_streams;
    own_streams = st;
    pthread_mutex_unlock(&lock);
  }
  return e;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
// fisub_vgpu_stream returns a new stream, for the calls of a submission.
void *fisub_vgpu_stream(void) {
  cudaStream_t s;
  return cudaStreamCreate(&s) == cudaSuccess ? s : NULL;
}
enum { GREATEST_PRIORITY = -5 };
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) {
  cudaError_t e = cudaStreamCreateWithFlags(s, f);
  if (e == cudaSuccess) stream_of(*s)->priority = p > 0 ? 0 : p < GREATEST_PRIORITY ? GREATEST_PRIORITY : p;
  return e;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  if (!held(s, STREAM)) return fail(cudaErrorInvalidResourceHandle);
  stream *st = stream_of(s);
  let_go(s);
  graph *g = captured(s);
  if (g) invalidate(g, cudaErrorStreamCaptureInvalidated);
  st->destroyed = 1; // not freed: events may still refer to it
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return wait_for(s); }
cudaError_t cudaStreamQuery(cudaStream_t s) { return wait_for(s); }
// captured_event returns the error of a call with an event that an ended capture has recorded.
static cudaError_t captured_event(event *e) {
  return e->capture && capture(e->capture) == NULL ? fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t handle, unsigned f) { // s joins the capture of the event, if any
  event *e = (event *)handle;
  cudaError_t wrong = check_stream(s);
  if (wrong || (wrong = check_event(handle))) return wrong;
  if (f > cudaEventWaitExternal) return fail(cudaErrorInvalidValue);
  if ((wrong = captured_event(e))) return wrong;
  stream *st = stream_of(s);
  if (e->of != st) awaited(e->of, e->work);
  if (captured(s) == NULL && capture(e->capture) == NULL) {
    stream *waiting = enter(s);
    join(&waiting->past, &e->past);
    leave(waiting);
  }
  if (st && capture(e->capture)) {
    if (captured(s) == NULL) st->capture = e->capture, st->last.n = 0;
    if (st->capture == e->capture) join_frontier(&st->last, &e->last);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) {
  cudaError_t wrong = p ? check_stream(s) : fail(cudaErrorInvalidValue);
  if (wrong == cudaSuccess) *p = stream_of(s) ? stream_of(s)->priority : 0;
  return wrong;
}
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *f) {
  cudaError_t wrong = f ? check_stream(s) : fail(cudaErrorInvalidValue);
  if (wrong == cudaSuccess) *f = stream_of(s) ? stream_of(s)->flags : 0;
  return wrong;
}
cudaError_t cudaStreamGetDevice(cudaStream_t s, int *d) {
  if (d == NULL) return fail(cudaErrorInvalidValue);
  *d = 0;
  return check_stream(s);
}
cudaError_t cudaStreamSetAttribute(cudaStream_t s, cudaStreamAttrID id, const cudaStreamAttrValue *v) { (void)s, (void)id, (void)v; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) {
  cudaError_t unknown = c ? check_stream(s) : fail(cudaErrorInvalidValue);
  if (unknown) return unknown;
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
  cudaError_t e = f ? check_stream(s) : fail(cudaErrorInvalidValue);
  if (e || (e = permitted())) return e;
  graph *g = captured(s);
  if (g) {
    node *c = record_on(s, g, NODE_CALL);
    c->call = f, c->to = p;
    return cudaSuccess;
  }
  e = legacy(s);
  if (e == cudaSuccess) call_host(NULL, f, s, p, &enter(s)->past);
  return e;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *p, unsigned flags) {
  cudaError_t e = f && flags == 0 ? check_stream(s) : fail(cudaErrorInvalidValue);
  if (e || (e = permitted())) return e;
  graph *g = captured(s);
  if (g) return fail(invalidate(g, cudaErrorStreamCaptureUnsupported));
  if ((e = legacy(s)) == cudaSuccess) call_host(f, NULL, s, p, &enter(s)->past);
  return e;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m) {
  stream *st = stream_of(s);
  cudaError_t e = check_stream(s);
  if (e) return e;
  if ((unsigned)m > cudaStreamCaptureModeRelaxed) return fail(cudaErrorInvalidValue);
  if (st == NULL) return fail(cudaErrorStreamCaptureUnsupported);
  if (captured(s)) return fail(cudaErrorIllegalState);
  graph *g = new_graph();
  st->last.n = 0;
  g->origin = st;
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
  cudaError_t e = check_stream(s);
  if (e) return e;
  graph *g = captured(s);
  if (out) *out = NULL;
  if (g == NULL) return fail(cudaErrorIllegalState);
  if (out == NULL) return fail(cudaErrorInvalidValue);
  if (g->origin != stream_of(s)) {
    invalidate(g, cudaErrorStreamCaptureUnmatched);
    return fail(cudaErrorStreamCaptureUnmatched);
  }
  e = g->invalid;
  for (node *n = g->first; n && e == cudaSuccess; n = n->next)
    if (!n->followed && !in_frontier(&g->origin->last, n)) e = cudaErrorStreamCaptureUnjoined;
  pthread_mutex_lock(&lock);
  graph **at = &captures;
  while (*at != g) at = &(*at)->next;
  *at = g->next;
  pthread_mutex_unlock(&lock);
  if (e) {
    drop(g);
  } else {
    hold(g, GRAPH);
    *out = (cudaGraph_t)g;
  }
  return fail(e);
}
static cudaError_t check_graph(const void *g, int kind) { return held(g, kind) ? cudaSuccess : fail(cudaErrorInvalidValue); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph_, cudaGraphNode_t *nodes, size_t *n) {
  graph *g = (graph *)graph_;
  size_t i = 0;
  cudaError_t e = n ? check_graph(g, GRAPH) : fail(cudaErrorInvalidValue);
  if (e) return e;
  for (node *c = g->first; c && nodes && i < *n; c = c->next) nodes[i++] = (cudaGraphNode_t)c;
  *n = nodes ? i : g->n;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, enum cudaGraphNodeType *t) {
  static const enum cudaGraphNodeType types[] = {cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset,
                                                 cudaGraphNodeTypeHost, cudaGraphNodeTypeEmpty, cudaGraphNodeTypeGraph};
  if (t == NULL || !held(n, NODE)) return fail(cudaErrorInvalidValue);
  *t = types[((node *)n)->kind];
  return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t *g, unsigned flags) {
  if (g == NULL || flags) return fail(cudaErrorInvalidValue);
  *g = (cudaGraph_t)new_graph();
  hold(*g, GRAPH);
  return cudaSuccess;
}
cudaError_t cudaGraphClone(cudaGraph_t *out, cudaGraph_t g) {
  cudaError_t e = out ? check_graph(g, GRAPH) : fail(cudaErrorInvalidValue);
  if (e) return e;
  *out = (cudaGraph_t)clone_of((graph *)g);
  for (node *n = ((graph *)*out)->first; n; n = n->next) hold(n, NODE);
  hold(*out, GRAPH);
  return cudaSuccess;
}
// can_add returns an error if a node cannot be added to g behind others.
static cudaError_t can_add(const cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n) {
  int ok = out && held(g, GRAPH) && (n == 0 || after);
  for (size_t i = 0; ok && i < n; i++) ok = held(after[i], NODE);
  return ok ? cudaSuccess : fail(cudaErrorInvalidValue);
}
static node *add(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n, int kind) {
  node *c = record((graph *)g, kind);
  c->rows = c->slices = 1;
  depend(c, after, n);
  hold(c, NODE);
  *out = (cudaGraphNode_t)c;
  return c;
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n) {
  cudaError_t e = can_add(out, g, after, n);
  if (e == cudaSuccess) add(out, g, after, n, NODE_EMPTY);
  return e;
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n, cudaGraph_t child) {
  cudaError_t e = can_add(out, g, after, n);
  if (e == cudaSuccess) e = check_graph(child, GRAPH);
  if (e == cudaSuccess) add(out, g, after, n, NODE_GRAPH)->child = clone_of((graph *)child);
  return e;
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n,
                                 const struct cudaHostNodeParams *p) {
  cudaError_t e = p && p->fn ? can_add(out, g, after, n) : fail(cudaErrorInvalidValue);
  if (e) return e;
  node *c = add(out, g, after, n, NODE_CALL);
  c->call = p->fn, c->to = p->userData;
  return cudaSuccess;
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n, void *to,
                                     const void *from, size_t size, enum cudaMemcpyKind k) {
  cudaError_t e = can_add(out, g, after, n);
  if (e == cudaSuccess && size) e = check_copy(to, from, k);
  if (e) return e;
  node *c = add(out, g, after, n, NODE_COPY);
  c->to = to, c->from = from, c->size = size;
  return cudaSuccess;
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n,
                                   const struct cudaMemcpy3DParms *p) {
  cudaError_t e = p ? can_add(out, g, after, n) : fail(cudaErrorInvalidValue);
  if (e) return e;
  if (p->srcArray || p->dstArray) return lacks("cudaGraphAddMemcpyNode with a cudaArray");
  if ((e = check_copy(p->dstPtr.ptr, p->srcPtr.ptr, p->kind))) return e;
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
  cudaError_t e = p ? can_add(out, g, after, n) : fail(cudaErrorInvalidValue);
  if (e) return e;
  if (p->elementSize == 2) return lacks("cudaGraphAddMemsetNode with elements of 2 bytes");
  if ((p->elementSize != 1 && p->elementSize != 4) || known(p->dst) == FISUB_VGPU_PAGEABLE) return fail(cudaErrorInvalidValue);
  node *c = add(out, g, after, n, NODE_SET);
  c->to = p->dst, c->to_pitch = p->pitch, c->value = p->value, c->width = p->elementSize, c->size = p->width, c->rows = p->height;
  return cudaSuccess;
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *after, size_t n,
                                   const struct cudaKernelNodeParams *p) {
  cudaError_t e = p ? can_add(out, g, after, n) : fail(cudaErrorInvalidValue);
  if (e) return e;
  if (p->kernelParams == NULL && p->extra) return lacks("cudaGraphAddKernelNode with its parameters in one buffer");
  void *none[1] = {NULL}, *ready = NULL;
  e = prepare(p->func, p->gridDim, p->blockDim, NULL, p->kernelParams ? p->kernelParams : none, p->sharedMemBytes, &ready);
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
  if (!held(g, GRAPH) || (n && (from == NULL || to == NULL))) return fail(cudaErrorInvalidValue);
  for (size_t i = 0; i < n; i++) {
    if (!held(from[i], NODE) || !held(to[i], NODE)) return fail(cudaErrorInvalidValue);
    depend((node *)to[i], from + i, 1);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags) {
  (void)flags;
  cudaError_t e = exec ? check_graph(g, GRAPH) : fail(cudaErrorInvalidValue);
  if (e || (e = play((graph *)g, 0, NULL, NULL))) return e;
  *exec = (cudaGraphExec_t)clone_of((graph *)g);
  hold(*exec, EXEC);
  return e;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags) {
  return cudaGraphInstantiate(exec, g, flags);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) {
  cudaError_t e = check_graph(exec, EXEC);
  return e ? e : check_stream(s);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  cudaError_t e = check_graph(exec, EXEC);
  if (e || (e = check_stream(s))) return e;
  graph *g = captured(s);
  if (g) return fail(invalidate(g, cudaErrorStreamCaptureUnsupported));
  e = legacy(s);
  if (e == cudaSuccess) e = status();
  worked(s, NULL);
  if (e) return e;
  stream *st = enter(s);
  history *past = &((graph *)exec)->past;
  join(&st->past, past); // a graph does not run twice at once
  char name[64];
  snprintf(name, sizeof name, "in a graph %s", st->name);
  e = play((graph *)exec, 1, &st->past, name);
  join(past, &st->past);
  leave(st);
  return e;
}
static cudaError_t destroy(void *g, int kind) {
  cudaError_t e = check_graph(g, kind);
  if (e) return e;
  let_go(g);
  drop(g);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return destroy(exec, EXEC); }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return destroy(g, GRAPH); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) {
  if (f & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess)) return fail(cudaErrorInvalidValue);
  cudaError_t failed = new_handle((void **)e, sizeof(event), EVENT);
  if (failed == cudaSuccess) ((event *)*e)->untimed = (f & cudaEventDisableTiming) != 0;
  return failed;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  if (check_event(e)) return cudaErrorInvalidResourceHandle;
  let_go(e);
  free(((event *)e)->last.all);
  free(((event *)e)->past.last);
  free(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t s) {
  struct timespec t;
  event *e = (event *)handle;
  cudaError_t wrong = check_event(handle);
  if (wrong || (wrong = check_stream(s)) || (wrong = legacy(s))) return wrong;
  graph *g = captured(s);
  stream *st = stream_of(s);
  clock_gettime(CLOCK_MONOTONIC, &t);
  e->ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
  e->recorded = 1;
  e->capture = g ? g->id : 0;
  if (g) {
    copy_frontier(&e->last, &st->last);
  } else {
    e->past.n = 0;
    join(&e->past, &enter(s)->past);
  }
  if (st) e->of = st, e->work = st->work;
  return status();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { (void)f; return cudaEventRecord(e, s); }
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  event *e = (event *)handle;
  cudaError_t wrong = check_event(handle);
  if (wrong || (wrong = captured_event(e))) return wrong;
  awaited(e->of, e->work);
  graph *g = capture(e->capture);
  if (g) return fail(invalidate(g, cudaErrorCapturedEvent));
  host_knows(&e->past);
  return status();
}
cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaEventSynchronize(e); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  if (ms == NULL) return fail(cudaErrorInvalidValue);
  cudaError_t wrong = check_event(a);
  if (wrong || (wrong = check_event(b))) return wrong;
  event *from = (event *)a, *to = (event *)b;
  if (!from->recorded || !to->recorded || from->untimed || to->untimed) return fail(cudaErrorInvalidResourceHandle);
  *ms = (float)(to->ms - from->ms);
  if (hooks.note) hooks.note("times of events are those of the virtual GPU, not of a GPU");
  return cudaSuccess;
}

/* The device */

cudaError_t cudaDeviceSynchronize(void) {
  cudaError_t e = permitted();
  if (e) return e;
  pthread_mutex_lock(&lock);
  for (graph *g = captures; g; g = g->next) e = invalidate(g, cudaErrorStreamCaptureUnsupported); // even relaxed ones
  pthread_mutex_unlock(&lock);
  all_awaited();
  return e ? fail(e) : status();
}
static cudaError_t give(int *to, int value) {
  if (to == NULL) return fail(cudaErrorInvalidValue);
  *to = value;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d) {
  cudaError_t e = permitted();
  return e ? e : give(d, 0);
}
cudaError_t cudaSetDevice(int d) { return d == 0 ? permitted() : fail(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceCount(int *n) { return give(n, 1); }
cudaError_t cudaDeviceReset(void) { all_awaited(); return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned f) { (void)f; return cudaSuccess; }

// The limits of the device, as an H100 has them. Those of printf and malloc are fixed once a kernel has used them.
static struct { size_t stack, fifo, heap, granularity, pending; } limits = {1024, 8650752, 8 << 20, 64, 2048};
cudaError_t cudaDeviceSetLimit(enum cudaLimit l, size_t v) {
  cudaError_t e = permitted();
  if (e) return e;
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
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = GREATEST_PRIORITY; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return give(v, CUDART_VERSION); }
cudaError_t cudaDriverGetVersion(int *v) { return give(v, CUDART_VERSION); }
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  if (d != 0) return fail(cudaErrorInvalidDevice);
  if (v == NULL || (int)a <= 0 || a >= cudaDevAttrMax) return fail(cudaErrorInvalidValue);
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
  if (p == NULL) return fail(cudaErrorInvalidValue);
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
  p->memoryPoolsSupported = p->canMapHostMemory = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->textureAlignment = p->surfaceAlignment = 512;
  p->texturePitchAlignment = 32;
  p->maxTexture1D = p->maxTexture2D[0] = 131072;
  p->maxTexture2D[1] = 65536;
  p->maxTexture3D[0] = p->maxTexture3D[1] = p->maxTexture3D[2] = 16384;
  return cudaSuccess;
}

#include "texture.h"
#include "memory.h"
#include "cuda12.h"
