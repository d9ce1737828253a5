//go:build cuda && linux && cgo

#define _GNU_SOURCE
#include "session.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "records.h"

enum {
  BUFFER_BYTES = 8 << 20,
  MAX_POOL = 4,
  MAX_BYTES = 256 << 20,
  MAX_NAMES = 1 << 14,
  FLUSH_FORCED = 1,
  MAX_LIMIT_REACHED = 12,
  CBID_DRIVER_EVENT_QUERY = 120,
};

typedef void (*requested_func)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*completed_func)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
typedef void (*callback_func)(void *user, int domain, uint32_t id, const void *data);

#define FUNCTIONS                                                                                                      \
  X(cuptiGetVersion, (uint32_t *))                                                                                     \
  X(cuptiGetResultString, (int, const char **))                                                                        \
  X(cuptiGetTimestamp, (uint64_t *))                                                                                   \
  X(cuptiSubscribe, (void **, callback_func, void *))                                                                  \
  X(cuptiUnsubscribe, (void *))                                                                                        \
  X(cuptiActivityRegisterCallbacks, (requested_func, completed_func))                                                  \
  X(cuptiActivityEnable, (int))                                                                                        \
  X(cuptiActivityDisable, (int))                                                                                       \
  X(cuptiActivityFlushAll, (uint32_t))                                                                                 \
  X(cuptiActivityGetNextRecord, (uint8_t *, size_t, void **))                                                          \
  X(cuptiActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))

static struct {
#define X(name, args) int(*name) args;
  FUNCTIONS
#undef X
} api;

static const int kinds[] = {KIND_RUNTIME, KIND_CONCURRENT_KERNEL, KIND_DRIVER, KIND_MEMCPY, KIND_MEMSET};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void *library, *subscriber;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards the variables below
static fisub_records got;
static size_t room, last_name;
static uint8_t *pool[MAX_POOL];
static int n_pool;

char *fisub_cupti_open(const char *path, uint32_t *version) {
  char *message = NULL;
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (lib == NULL) return strdup(dlerror());
#define X(name, args)                                                                                                  \
  if (message == NULL && (*(void **)&api.name = dlsym(lib, #name)) == NULL && asprintf(&message, "%s: no " #name, path) < 0) \
    message = strdup("out of memory");
  FUNCTIONS
#undef X
  if (message == NULL && api.cuptiGetVersion(version) != 0) message = strdup("cuptiGetVersion");
  if (message != NULL) dlclose(lib);
  else library = lib;
  return message;
}

// Makes room for size more bytes, or returns 0.
static int grow(size_t size) {
  if (got.size + size <= room) return 1;
  size_t next = room == 0 ? 1 << 20 : 2 * room;
  void *p = next > MAX_BYTES ? NULL : realloc(got.data, next);
  if (p == NULL) return 0;
  got.data = p, room = next;
  return 1;
}

// Sets *index to a copy of name, because CUPTI's may be freed with the kernel's module.
static int intern(const char *name, uint32_t *index) {
  if (name == NULL) name = "";
  if (last_name < got.n_names && strcmp(got.names[last_name], name) == 0) return *index = last_name, 1;
  for (last_name = 0; last_name < got.n_names; last_name++)
    if (strcmp(got.names[last_name], name) == 0) return *index = last_name, 1;
  if (got.names == NULL) got.names = malloc(MAX_NAMES * sizeof *got.names);
  char *copy = got.names == NULL || got.n_names == MAX_NAMES ? NULL : strdup(name);
  if (copy == NULL) return 0;
  got.names[got.n_names++] = copy;
  return *index = last_name, 1;
}

static void append(const void *from, size_t size) {
  memcpy(got.data + got.size, from, size);
  got.size += size;
}

static void keep(const void *record) {
  uint32_t kind = *(const uint32_t *)record, name;
  size_t size;
  switch (kind) {
    case KIND_RUNTIME:
    case KIND_DRIVER:
      // Waiting for the device polls an event, which launches nothing.
      if (kind == KIND_DRIVER && ((const struct cupti_api *)record)->cbid == CBID_DRIVER_EVENT_QUERY) return;
      size = offsetof(struct cupti_api, result);
      break;
    case KIND_MEMCPY:
    case KIND_MEMSET:
      size = sizeof(struct cupti_memcpy);
      break;
    case KIND_CONCURRENT_KERNEL:
      size = offsetof(struct cupti_kernel, name);
      break;
    default:
      return;
  }
  int named = kind == KIND_CONCURRENT_KERNEL;
  if (!grow(size + sizeof name) || (named && !intern(((const struct cupti_kernel *)record)->name, &name))) {
    got.lost++;
    return;
  }
  append(record, size);
  if (named) append(&name, sizeof name);
}

static void requested(uint8_t **buffer, size_t *size, size_t *max_records) {
  pthread_mutex_lock(&lock);
  *buffer = n_pool > 0 ? pool[--n_pool] : NULL;
  pthread_mutex_unlock(&lock);
  if (*buffer == NULL) *buffer = malloc(BUFFER_BYTES);
  *size = *buffer == NULL ? 0 : BUFFER_BYTES;
  *max_records = 0; // no limit
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)size;
  pthread_mutex_lock(&lock);
  void *record = NULL;
  int result = MAX_LIMIT_REACHED;
  if (valid > 0)
    while ((result = api.cuptiActivityGetNextRecord(buffer, valid, &record)) == 0) keep(record);
  if (result != MAX_LIMIT_REACHED) got.lost++;
  size_t dropped = 0;
  if (api.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == 0) got.lost += dropped;
  if (buffer != NULL && n_pool < MAX_POOL) pool[n_pool++] = buffer, buffer = NULL;
  pthread_mutex_unlock(&lock);
  free(buffer);
}

static void no_callback(void *user, int domain, uint32_t id, const void *data) {
  (void)user, (void)domain, (void)id, (void)data;
}

static void forget(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < got.n_names; i++) free(got.names[i]);
  got.n_names = got.size = got.lost = last_name = 0;
  pthread_mutex_unlock(&lock);
}

int fisub_cupti_begin(const char **step) {
  forget();
  int on = 0;
  *step = "cuptiSubscribe"; // fails if another profiler is active
  int result = api.cuptiSubscribe(&subscriber, no_callback, NULL);
  if (result != 0) return result;
  *step = "cuptiActivityRegisterCallbacks";
  result = api.cuptiActivityRegisterCallbacks(requested, completed);
  if (result == 0) *step = "cuptiActivityEnable";
  while (result == 0 && on < N_KINDS) {
    result = api.cuptiActivityEnable(kinds[on]);
    if (result == 0) on++;
  }
  if (result != 0) {
    while (on > 0) api.cuptiActivityDisable(kinds[--on]);
    api.cuptiUnsubscribe(subscriber);
  }
  return result;
}

int fisub_cupti_end(fisub_records *r, const char **step) {
  // The first flush keeps buffers with unfinished records; the forced one then finds only finished records.
  *step = "cuptiActivityFlushAll";
  int result = api.cuptiActivityFlushAll(0);
  if (result == 0) result = api.cuptiActivityFlushAll(FLUSH_FORCED);
  for (int i = 0; i < N_KINDS; i++) {
    int disabled = api.cuptiActivityDisable(kinds[i]);
    if (result == 0 && disabled != 0) *step = "cuptiActivityDisable", result = disabled;
  }
  api.cuptiUnsubscribe(subscriber);
  size_t dropped = 0;
  pthread_mutex_lock(&lock);
  if (api.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) == 0) got.lost += dropped;
  *r = got;
  pthread_mutex_unlock(&lock);
  return result;
}

uint64_t fisub_cupti_now(void) {
  uint64_t t;
  return api.cuptiGetTimestamp(&t) == 0 ? t : 0;
}

uint32_t fisub_cupti_thread(void) { return (uint32_t)(uintptr_t)pthread_self(); }

const char *fisub_cupti_error(int result) {
  const char *name = NULL;
  return api.cuptiGetResultString(result, &name) == 0 ? name : NULL;
}

char *fisub_demangle(const char *symbol) {
  static char *(*demangle)(const char *, char *, size_t *, int *);
  static int looked;
  if (!looked) {
    looked = 1;
    void *lib = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL);
    if (lib != NULL) *(void **)&demangle = dlsym(lib, "__cxa_demangle");
  }
  int status;
  return demangle == NULL ? NULL : demangle(symbol, NULL, NULL, &status);
}
