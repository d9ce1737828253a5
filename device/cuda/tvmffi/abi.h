//go:build linux && cgo

// The part of the tvm-ffi C ABI and of DLPack 1.x that a caller needs, so that fisub builds without their headers
// (spec section 4.4; the layouts have not changed since tvm-ffi 0.1.0). Types have the prefix fisub_, so that the
// originals can be included too.
#ifndef FISUB_TVMFFI_ABI_H
#define FISUB_TVMFFI_ABI_H

#include <stddef.h>
#include <stdint.h>

// Type indices of a value.
enum { FFI_NONE = 0, FFI_INT = 1, FFI_BOOL = 2, FFI_FLOAT = 3, FFI_OBJECT = 64, FFI_ERROR = 67, FFI_TENSOR = 70 };

// Device types of DLPack.
enum { DL_CPU = 1, DL_CUDA = 2 };

typedef struct {
  int32_t type_index;
  uint32_t zero_padding;
  union {
    int64_t v_int64;
    double v_float64;
    void *v_obj;
  };
} fisub_any;

typedef struct {
  const char *data;
  size_t size;
} fisub_bytes;

typedef struct {
  uint64_t refcount;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void *self, int flags);
} fisub_object;

// The first fields of an error object; newer versions of tvm-ffi append others.
typedef struct {
  fisub_object header;
  fisub_bytes kind;
  fisub_bytes message;
  fisub_bytes backtrace;
} fisub_error;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} fisub_dl_device;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} fisub_dl_dtype;

typedef struct {
  void *data;
  fisub_dl_device device;
  int32_t ndim;
  fisub_dl_dtype dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} fisub_dl_tensor;

typedef struct fisub_dl_managed {
  uint32_t major, minor;
  void *manager_ctx;
  void (*deleter)(struct fisub_dl_managed *self);
  uint64_t flags;
  fisub_dl_tensor dl_tensor;
} fisub_dl_managed;

#define FISUB_AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field " is out of place")
#define FISUB_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " has another size")
FISUB_SIZE(fisub_any, 16);
FISUB_AT(fisub_any, v_int64, 8);
FISUB_SIZE(fisub_object, 24);
FISUB_AT(fisub_object, type_index, 8);
FISUB_AT(fisub_object, deleter, 16);
FISUB_AT(fisub_error, kind, 24);
FISUB_AT(fisub_error, message, 24 + 16);
FISUB_AT(fisub_error, backtrace, 24 + 32);
FISUB_SIZE(fisub_dl_tensor, 48);
FISUB_AT(fisub_dl_tensor, device, 8);
FISUB_AT(fisub_dl_tensor, ndim, 16);
FISUB_AT(fisub_dl_tensor, dtype, 20);
FISUB_AT(fisub_dl_tensor, shape, 24);
FISUB_AT(fisub_dl_tensor, strides, 32);
FISUB_AT(fisub_dl_tensor, byte_offset, 40);
FISUB_SIZE(fisub_dl_managed, 80);
FISUB_AT(fisub_dl_managed, manager_ctx, 8);
FISUB_AT(fisub_dl_managed, deleter, 16);
FISUB_AT(fisub_dl_managed, flags, 24);
FISUB_AT(fisub_dl_managed, dl_tensor, 32);

// An exported function, and the allocator of its tensors.
typedef int (*fisub_safe_call)(void *handle, const fisub_any *args, int32_t num_args, fisub_any *result);
typedef int (*fisub_dl_allocator)(fisub_dl_tensor *prototype, fisub_dl_managed **out, void *error_ctx,
                                  void (*set_error)(void *error_ctx, const char *kind, const char *message));

// The entry points of libtvm_ffi, bound by fisub_ffi_bind.
typedef struct {
  void (*error_move_from_raised)(void **out);
  int (*object_dec_ref)(void *object);
  int (*tensor_from_dlpack)(fisub_dl_managed *from, int32_t align, int32_t contiguous, void **out);
  int (*env_set_stream)(int32_t device_type, int32_t device_id, void *stream, void **previous);
  int (*env_set_allocator)(fisub_dl_allocator alloc, int write_to_global, fisub_dl_allocator *previous);
} fisub_ffi;

// fisub_ffi_bind loads the library at path with global symbols and fills in *f. It returns NULL, or a message, which
// the caller frees.
char *fisub_ffi_bind(fisub_ffi *f, const char *path);

// fisub_dlopen is dlopen; on NULL the caller frees *message. If global is set, a loaded library with the same file
// name is preferred.
void *fisub_dlopen(const char *path, int global, char **message);

// The functions below return 0, or a non-zero code with *error set to the error raised by tvm-ffi on this thread, or
// NULL. The caller passes *error to fisub_dec_ref.

// fisub_tensor creates an owning tensor object for data, which remains the caller's.
int fisub_tensor(const fisub_ffi *f, uint64_t data, fisub_dl_device device, fisub_dl_dtype dtype, int32_t ndim,
                 const int64_t *shape, void **out, fisub_error **error);

// fisub_call calls fn and releases its result.
int fisub_call(const fisub_ffi *f, void *fn, const fisub_any *args, int32_t num_args, fisub_error **error);

int fisub_dec_ref(const fisub_ffi *f, void *object);
int fisub_set_stream(const fisub_ffi *f, fisub_dl_device device, void *stream, fisub_error **error);

// fisub_set_allocator sets the allocator behind TVMFFIEnvTensorAlloc. alloc and release have the signatures of
// cuMemAlloc and cuMemFree; both NULL means the C heap. Released blocks are kept for tensors of the same size, which
// is safe as long as all work is on one stream.
int fisub_set_allocator(const fisub_ffi *f, fisub_dl_device device, void *alloc, void *release, fisub_error **error);

// fisub_trim frees unused blocks and returns the bytes in use.
size_t fisub_trim(void);

#endif
