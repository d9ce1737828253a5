//go:build linux && cgo

#define _GNU_SOURCE
#include "abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *message(void) {
  const char *text = dlerror();
  return strdup(text != NULL ? text : "unknown dlopen failure");
}

void *fisub_dlopen(const char *path, int global, char **error) {
  *error = NULL;
  void *lib = NULL;
  if (global) {
    const char *slash = strrchr(path, '/');
    lib = dlopen(slash != NULL ? slash + 1 : path, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  }
  if (lib == NULL) lib = dlopen(path, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (lib == NULL) *error = message();
  return lib;
}

char *fisub_ffi_bind(fisub_ffi *f, const char *path) {
  char *error;
  void *lib = fisub_dlopen(path, 1, &error);
  if (lib == NULL) return error;
  struct {
    const char *name;
    void *slot;
  } table[] = {
      {"TVMFFIErrorMoveFromRaised", &f->error_move_from_raised},
      {"TVMFFIObjectDecRef", &f->object_dec_ref},
      {"TVMFFITensorFromDLPackVersioned", &f->tensor_from_dlpack},
      {"TVMFFIEnvSetStream", &f->env_set_stream},
      {"TVMFFIEnvSetDLPackManagedTensorAllocator", &f->env_set_allocator},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    void *fn = dlsym(lib, table[i].name);
    if (fn == NULL) return message();
    memcpy(table[i].slot, &fn, sizeof fn);
  }
  return NULL;
}

// raised takes the thread's pending error if rc is not 0.
static int raised(const fisub_ffi *f, int rc, fisub_error **error) {
  void *object = NULL;
  if (rc != 0) f->error_move_from_raised(&object);
  *error = object;
  return rc;
}

// new_managed allocates a managed tensor with shape and contiguous strides in one block, or returns NULL.
static fisub_dl_managed *new_managed(fisub_dl_device device, fisub_dl_dtype dtype, int32_t ndim, const int64_t *shape) {
  fisub_dl_managed *m = calloc(1, sizeof *m + 2 * (size_t)ndim * sizeof(int64_t));
  if (m == NULL) return NULL;
  int64_t *dims = (int64_t *)(m + 1);
  m->major = 1;
  m->minor = 0;
  m->dl_tensor = (fisub_dl_tensor){.device = device, .ndim = ndim, .dtype = dtype, .shape = dims, .strides = dims + ndim};
  int64_t stride = 1;
  for (int32_t i = ndim - 1; i >= 0; i--) {
    dims[i] = shape[i];
    dims[ndim + i] = stride;
    stride *= shape[i] > 1 ? shape[i] : 1;
  }
  return m;
}

static void free_managed(fisub_dl_managed *self) { free(self); }

int fisub_tensor(const fisub_ffi *f, uint64_t data, fisub_dl_device device, fisub_dl_dtype dtype, int32_t ndim,
                 const int64_t *shape, void **out, fisub_error **error) {
  fisub_dl_managed *m = new_managed(device, dtype, ndim, shape);
  if (m == NULL) abort();
  m->dl_tensor.data = (void *)(uintptr_t)data;
  m->deleter = free_managed;
  int rc = f->tensor_from_dlpack(m, 0, 0, out);
  if (rc != 0) free_managed(m);
  return raised(f, rc, error);
}

int fisub_call(const fisub_ffi *f, void *fn, const fisub_any *args, int32_t num_args, fisub_error **error) {
  fisub_any result;
  memset(&result, 0, sizeof result);
  int rc = ((fisub_safe_call)fn)(NULL, args, num_args, &result);
  if (rc == 0 && result.type_index >= FFI_OBJECT) f->object_dec_ref(result.v_obj);
  return raised(f, rc, error);
}

int fisub_dec_ref(const fisub_ffi *f, void *object) { return f->object_dec_ref(object); }

int fisub_set_stream(const fisub_ffi *f, fisub_dl_device device, void *stream, fisub_error **error) {
  return raised(f, f->env_set_stream(device.device_type, device.device_id, stream, NULL), error);
}

// A block of device memory: used by a tensor, or in the free list.
typedef struct block {
  struct block *next;
  uint64_t address;
  size_t size;
  int (*release)(uint64_t address); // NULL: the C heap
} block;

enum { BLOCK_ALIGN = 512 };

static struct {
  pthread_mutex_t mutex;
  fisub_dl_device device;
  int (*alloc)(uint64_t *address, size_t size);
  int (*release)(uint64_t address);
  block *unused;
  size_t used; // bytes in use
} heap = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int heap_alloc(uint64_t *address, size_t size) {
  if (heap.alloc != NULL) return heap.alloc(address, size);
  void *p = NULL;
  if (posix_memalign(&p, BLOCK_ALIGN, size) != 0) return 2; // CUDA_ERROR_OUT_OF_MEMORY
  *address = (uint64_t)(uintptr_t)p;
  return 0;
}

static void heap_release(block *b) {
  if (b->release != NULL)
    b->release(b->address);
  else
    free((void *)(uintptr_t)b->address);
  free(b);
}

static void trim_locked(void) {
  while (heap.unused != NULL) {
    block *b = heap.unused;
    heap.unused = b->next;
    heap_release(b);
  }
}

size_t fisub_trim(void) {
  pthread_mutex_lock(&heap.mutex);
  trim_locked();
  size_t used = heap.used;
  pthread_mutex_unlock(&heap.mutex);
  return used;
}

// take returns a block of exactly size bytes, or NULL with *code set.
static block *take(size_t size, int *code) {
  block *b = NULL;
  pthread_mutex_lock(&heap.mutex);
  for (block **at = &heap.unused; *at != NULL; at = &(*at)->next) {
    if ((*at)->size == size) {
      b = *at;
      *at = b->next;
      break;
    }
  }
  if (b == NULL && (b = calloc(1, sizeof *b)) != NULL) {
    b->size = size;
    b->release = heap.release;
    *code = heap_alloc(&b->address, size);
    if (*code != 0) {
      trim_locked();
      *code = heap_alloc(&b->address, size);
    }
    if (*code != 0) {
      free(b);
      b = NULL;
    }
  }
  if (b != NULL) heap.used += size;
  pthread_mutex_unlock(&heap.mutex);
  return b;
}

static void give(block *b) {
  pthread_mutex_lock(&heap.mutex);
  heap.used -= b->size;
  if (b->release == heap.release) {
    b->next = heap.unused;
    heap.unused = b;
  } else {
    heap_release(b); // its device has been closed
  }
  pthread_mutex_unlock(&heap.mutex);
}

static void free_allocated(fisub_dl_managed *self) {
  if (self->manager_ctx != NULL) give(self->manager_ctx);
  free(self);
}

static int allocate(fisub_dl_tensor *proto, fisub_dl_managed **out, void *error_ctx,
                    void (*set_error)(void *, const char *, const char *)) {
  char text[160];
  if (proto->device.device_type != heap.device.device_type || proto->device.device_id != heap.device.device_id) {
    snprintf(text, sizeof text, "tensor on device (%d, %d) asked for, this is device (%d, %d)", proto->device.device_type,
             proto->device.device_id, heap.device.device_type, heap.device.device_id);
    set_error(error_ctx, "ValueError", text);
    return -1;
  }
  size_t bits = (size_t)proto->dtype.bits * proto->dtype.lanes, size = 0;
  int valid = proto->ndim >= 0 && proto->ndim <= 64;
  uint64_t n = 1;
  for (int32_t i = 0; valid && i < proto->ndim; i++)
    valid = proto->shape[i] >= 0 && !__builtin_mul_overflow(n, (uint64_t)proto->shape[i], &n);
  valid = valid && !__builtin_mul_overflow(n, bits, &size) && size <= SIZE_MAX - 8 * BLOCK_ALIGN;
  if (!valid) {
    set_error(error_ctx, "ValueError", "tensor asked for is out of range");
    return -1;
  }
  size = (size + 7) / 8;
  fisub_dl_managed *m = new_managed(proto->device, proto->dtype, proto->ndim, proto->shape);
  int code = 0;
  block *b = NULL;
  if (m != NULL && size > 0) b = take((size + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN, &code);
  if (m == NULL || (size > 0 && b == NULL)) {
    free(m);
    snprintf(text, sizeof text, "allocating %zu bytes: CUDA error %d", size, code);
    set_error(error_ctx, "MemoryError", text);
    return -1;
  }
  if (b != NULL) m->dl_tensor.data = (void *)(uintptr_t)b->address;
  m->manager_ctx = b;
  m->deleter = free_allocated;
  *out = m;
  return 0;
}

int fisub_set_allocator(const fisub_ffi *f, fisub_dl_device device, void *alloc, void *release, fisub_error **error) {
  pthread_mutex_lock(&heap.mutex);
  trim_locked();
  heap.device = device;
  memcpy(&heap.alloc, &alloc, sizeof alloc);
  memcpy(&heap.release, &release, sizeof release);
  pthread_mutex_unlock(&heap.mutex);
  return raised(f, f->env_set_allocator(allocate, 0, NULL), error);
}
