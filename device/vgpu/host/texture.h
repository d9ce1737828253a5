// The runtime's functions for arrays, texture objects and surface objects. Part of runtime.c. The errors are as on an
// H200.

// An array has its elements in row order, without gaps. Its size is at least 1 in each dimension; the third is its
// depth, layers, or faces of cubes.
typedef struct {
  char *data;
  struct cudaChannelFormatDesc desc;
  struct cudaExtent extent; // as given
  unsigned flags;
  size_t size[3], bytes, row, slice; // bytes: of an element
} array;

// element_bytes returns the bytes of an element and sets *channels, or returns 0 if there is no such format.
static size_t element_bytes(const struct cudaChannelFormatDesc *c, int *channels) {
  int n = !!c->x + !!c->y + !!c->z + !!c->w, bits = c->x;
  if (n == 3 || (bits != 8 && bits != 16 && bits != 32) || (n > 1 && c->y != bits) || (n > 2 && (c->z != bits || c->w != bits)))
    return 0;
  if (c->f != cudaChannelFormatKindSigned && c->f != cudaChannelFormatKindUnsigned && c->f != cudaChannelFormatKindFloat) return 0;
  if (c->f == cudaChannelFormatKindFloat && bits == 8) return 0;
  *channels = n;
  return (size_t)(n * bits / 8);
}

struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, enum cudaChannelFormatKind f) {
  return (struct cudaChannelFormatDesc){x, y, z, w, f};
}

cudaError_t cudaMalloc3DArray(cudaArray_t *to, const struct cudaChannelFormatDesc *desc, struct cudaExtent n, unsigned flags) {
  const unsigned known_flags = cudaArrayLayered | cudaArraySurfaceLoadStore | cudaArrayCubemap | cudaArrayTextureGather;
  int channels, cube = (flags & cudaArrayCubemap) != 0, layered = (flags & cudaArrayLayered) != 0;
  if (to == NULL || desc == NULL) return fail(cudaErrorInvalidValue);
  if (flags & ~known_flags) return lacks("cudaMalloc3DArray of a sparse or deferred array");
  if (desc->f > cudaChannelFormatKindFloat && desc->f != cudaChannelFormatKindNone)
    return lacks("cudaMalloc3DArray with this channel format");
  array a = {.desc = *desc, .extent = n, .flags = flags, .bytes = element_bytes(desc, &channels)};
  if (a.bytes == 0) return fail(cudaErrorInvalidChannelDescriptor);
  size_t most[3] = {131072, n.height ? 65536 : 1, 0};
  if (layered || cube) most[0] = 32768, most[1] = n.height ? 32768 : 1, most[2] = cube ? 2046 : 2048;
  else if (n.depth) most[0] = most[1] = most[2] = 16384;
  if (n.width == 0 || n.width > most[0] || n.height > most[1] || n.depth > most[2] || (layered && n.depth == 0) ||
      (n.depth && n.height == 0 && !layered) || (cube && (n.width != n.height || n.depth == 0 || n.depth % 6 || (!layered && n.depth != 6))))
    return fail(cudaErrorInvalidValue);
  a.size[0] = n.width, a.size[1] = n.height ? n.height : 1, a.size[2] = n.depth ? n.depth : 1;
  a.row = n.width * a.bytes, a.slice = a.row * a.size[1];
  cudaError_t e = cudaMalloc((void **)&a.data, a.slice * a.size[2]);
  if (e) return e;
  array *p = malloc(sizeof *p);
  if (p == NULL) abort();
  *p = a;
  hold(p, ARRAY);
  *to = (cudaArray_t)p;
  return cudaSuccess;
}
cudaError_t cudaMallocArray(cudaArray_t *to, const struct cudaChannelFormatDesc *desc, size_t w, size_t h, unsigned flags) {
  return cudaMalloc3DArray(to, desc, (struct cudaExtent){w, h, 0}, flags);
}
cudaError_t cudaFreeArray(cudaArray_t handle) {
  array *a = (array *)handle;
  if (a == NULL) return permitted();
  if (!held(a, ARRAY)) return fail(cudaErrorInvalidResourceHandle);
  cudaError_t e = wait_and_release("cudaFreeArray", a->data, 0);
  let_go(a);
  free(a);
  return e;
}
cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc *desc, struct cudaExtent *n, unsigned *flags, cudaArray_t handle) {
  const array *a = (const array *)handle;
  if (!held(a, ARRAY)) return fail(cudaErrorInvalidResourceHandle);
  if (desc) *desc = a->desc;
  if (n) *n = a->extent;
  if (flags) *flags = a->flags;
  return cudaSuccess;
}
cudaError_t cudaGetChannelDesc(struct cudaChannelFormatDesc *desc, cudaArray_const_t a) {
  return desc ? cudaArrayGetInfo(desc, NULL, NULL, (cudaArray_t)a) : fail(cudaErrorInvalidValue);
}

/* Copies. Offsets and widths are in bytes. */

// part_of sets *p to the address of w bytes in each of h rows of an array, or returns an error.
static cudaError_t part_of(cudaArray_const_t handle, size_t x, size_t y, size_t w, size_t h, char **p) {
  const array *a = (const array *)handle;
  if (!held(a, ARRAY)) return fail(cudaErrorInvalidResourceHandle);
  if (x > a->row || w > a->row - x || y > a->size[1] || h > a->size[1] - y) return fail(cudaErrorInvalidValue);
  *p = a->data + y * a->row + x;
  return cudaSuccess;
}
static cudaError_t copy_to(const char *function, cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t w, size_t h,
                           enum cudaMemcpyKind k, cudaStream_t st) {
  char *p;
  cudaError_t e = part_of(to, x, y, w, h, &p);
  return e ? e : copy_rows(function, p, ((array *)to)->row, from, pitch, w, h, k, st);
}
static cudaError_t copy_from(const char *function, void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t w, size_t h,
                             enum cudaMemcpyKind k, cudaStream_t st) {
  char *p;
  cudaError_t e = part_of(from, x, y, w, h, &p);
  return e ? e : copy_rows(function, to, pitch, p, ((const array *)from)->row, w, h, k, st);
}
cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t w, size_t h, enum cudaMemcpyKind k) {
  return copy_to("cudaMemcpy2DToArray", to, x, y, from, pitch, w, h, k, NULL);
}
cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t w, size_t h,
                                     enum cudaMemcpyKind k, cudaStream_t st) {
  return copy_to("cudaMemcpy2DToArrayAsync", to, x, y, from, pitch, w, h, k, st);
}
cudaError_t cudaMemcpy2DFromArray(void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t w, size_t h, enum cudaMemcpyKind k) {
  return copy_from("cudaMemcpy2DFromArray", to, pitch, from, x, y, w, h, k, NULL);
}
cudaError_t cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t w, size_t h,
                                       enum cudaMemcpyKind k, cudaStream_t st) {
  return copy_from("cudaMemcpy2DFromArrayAsync", to, pitch, from, x, y, w, h, k, st);
}
cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t to, size_t x, size_t y, cudaArray_const_t from, size_t fx, size_t fy, size_t w, size_t h,
                                     enum cudaMemcpyKind k) {
  char *p;
  cudaError_t e = part_of(from, fx, fy, w, h, &p);
  return e ? e : copy_to("cudaMemcpy2DArrayToArray", to, x, y, p, ((const array *)from)->row, w, h, k, NULL);
}

// run_of sets *p to the address of n bytes of an array, which may go on in the next rows, or returns an error.
static cudaError_t run_of(cudaArray_const_t handle, size_t x, size_t y, size_t n, char **p) {
  const array *a = (const array *)handle;
  cudaError_t e = part_of(handle, x, y, 0, 0, p);
  return e ? e : n > a->slice - (size_t)(*p - a->data) ? fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaMemcpyToArrayAsync(cudaArray_t to, size_t x, size_t y, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  char *p;
  cudaError_t e = run_of(to, x, y, n, &p);
  return e ? e : copy_rows("cudaMemcpyToArrayAsync", p, n, from, n, n, 1, k, st);
}
cudaError_t cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void *from, size_t n, enum cudaMemcpyKind k) {
  char *p;
  cudaError_t e = run_of(to, x, y, n, &p);
  return e ? e : copy_rows("cudaMemcpyToArray", p, n, from, n, n, 1, k, NULL);
}
cudaError_t cudaMemcpyFromArrayAsync(void *to, cudaArray_const_t from, size_t x, size_t y, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  char *p;
  cudaError_t e = run_of(from, x, y, n, &p);
  return e ? e : copy_rows("cudaMemcpyFromArrayAsync", to, n, p, n, n, 1, k, st);
}
cudaError_t cudaMemcpyFromArray(void *to, cudaArray_const_t from, size_t x, size_t y, size_t n, enum cudaMemcpyKind k) {
  char *p;
  cudaError_t e = run_of(from, x, y, n, &p);
  return e ? e : copy_rows("cudaMemcpyFromArray", to, n, p, n, n, 1, k, NULL);
}
cudaError_t cudaMemcpyArrayToArray(cudaArray_t to, size_t x, size_t y, cudaArray_const_t from, size_t fx, size_t fy, size_t n, enum cudaMemcpyKind k) {
  char *p;
  cudaError_t e = run_of(from, fx, fy, n, &p);
  return e ? e : cudaMemcpyToArray(to, x, y, p, n, k);
}

/* Objects. A handle is the address of what kernels need, which must be as in exec.h. */

#define TEXTURE 0x65727574786574ull
#define SURFACE 0x65636166727573ull
typedef struct {
  unsigned long long magic, address, row, slice;
  unsigned size[3];
  unsigned char dims, layered, cube, linear_memory, bytes, channels, type, mode[3], linear, normalized, floats;
  float border[4];
  struct cudaResourceDesc resource; // for the host
  struct cudaTextureDesc texture;
} __attribute__((aligned(16))) object;

// Objects are in tables that kernels may read. An ended one is used again last.
enum { TABLE = 512 };
typedef struct table {
  struct table *next;
  object all[TABLE];
  int used;
} table;
static table *tables;
static unsigned long long tables_made;

// find_object returns the first object with a magic number, which is at the handle unless that is 0.
static object *find_object(unsigned long long handle, unsigned long long magic) { // under the lock
  for (table *t = tables; t; t = t->next)
    for (int i = 0; i < t->used; i++)
      if ((handle == 0 || (unsigned long long)&t->all[i] == handle) && t->all[i].magic == magic) return &t->all[i];
  return NULL;
}
// create_object sets *handle to a copy of *o.
static cudaError_t create_object(unsigned long long *handle, const object *o) {
  pthread_mutex_lock(&lock);
  object *p = tables && tables->used < TABLE ? &tables->all[tables->used++] : find_object(0, 0);
  if (p == NULL) {
    // The address is the same in every process, if it is free.
    table *t = mmap((char *)0x3e0000000000 + tables_made++ * (1ull << 20), sizeof *t, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t != MAP_FAILED && hooks.expose && hooks.expose(t, sizeof *t)) {
      t->next = tables;
      tables = t;
      p = &t->all[t->used++];
    }
  }
  if (p) *p = *o;
  *handle = (unsigned long long)p;
  pthread_mutex_unlock(&lock);
  return p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
// known_object copies the object with a handle; end ends it, and is no error if there is none.
static cudaError_t known_object(unsigned long long handle, unsigned long long magic, int end, object *copy) {
  pthread_mutex_lock(&lock);
  object *o = handle ? find_object(handle, magic) : NULL;
  if (o) *copy = *o;
  if (o && end) o->magic = 0;
  pthread_mutex_unlock(&lock);
  return o || end ? permitted() : fail(cudaErrorInvalidValue);
}

// memory_of sets *o for memory of w elements in each of h rows, or returns an error.
static cudaError_t memory_of(object *o, void *p, struct cudaChannelFormatDesc c, size_t w, size_t h, size_t pitch) {
  int channels = 0;
  o->bytes = (unsigned char)element_bytes(&c, &channels);
  if (o->bytes == 0) return fail(cudaErrorInvalidChannelDescriptor);
  if (p == NULL || (size_t)p % 512 || known(p) == FISUB_VGPU_PAGEABLE || w == 0 || h == 0 || w > 1u << 28 || h > 65536) return fail(cudaErrorInvalidValue);
  o->address = (unsigned long long)p, o->channels = (unsigned char)channels, o->type = (unsigned char)c.f;
  o->size[0] = (unsigned)w, o->size[1] = (unsigned)h, o->size[2] = 1, o->row = pitch;
  return cudaSuccess;
}
static cudaError_t array_of(object *o, cudaArray_t handle) {
  const array *a = (const array *)handle;
  int channels = 0;
  if (!held(a, ARRAY)) return fail(cudaErrorInvalidResourceHandle);
  o->bytes = (unsigned char)element_bytes(&a->desc, &channels);
  o->address = (unsigned long long)a->data, o->channels = (unsigned char)channels, o->type = (unsigned char)a->desc.f;
  o->row = a->row, o->slice = a->slice;
  for (int d = 0; d < 3; d++) o->size[d] = (unsigned)a->size[d];
  o->cube = (a->flags & cudaArrayCubemap) != 0;
  o->layered = (a->flags & cudaArrayLayered) != 0;
  o->dims = a->extent.depth && !o->cube && !o->layered ? 3 : a->extent.height ? 2 : 1;
  return cudaSuccess;
}

cudaError_t cudaCreateTextureObject(cudaTextureObject_t *to, const struct cudaResourceDesc *r, const struct cudaTextureDesc *t,
                                    const struct cudaResourceViewDesc *view) {
  cudaError_t e = permitted();
  if (e) return e;
  if (to == NULL || r == NULL || t == NULL) return fail(cudaErrorInvalidValue);
  if (view && view->format != cudaResViewFormatNone) return lacks("cudaCreateTextureObject with a resource view");
  if (t->sRGB) return lacks("cudaCreateTextureObject with sRGB");
  object o = {.magic = TEXTURE, .dims = 1, .resource = *r, .texture = *t};
  switch (r->resType) {
  case cudaResourceTypeArray: e = array_of(&o, r->res.array.array); break;
  case cudaResourceTypeLinear: {
    int n;
    size_t bytes = element_bytes(&r->res.linear.desc, &n);
    e = memory_of(&o, r->res.linear.devPtr, r->res.linear.desc, bytes ? r->res.linear.sizeInBytes / bytes : 0, 1, 0);
    o.linear_memory = 1;
    break;
  }
  case cudaResourceTypePitch2D:
    e = memory_of(&o, r->res.pitch2D.devPtr, r->res.pitch2D.desc, r->res.pitch2D.width, r->res.pitch2D.height, r->res.pitch2D.pitchInBytes);
    if (e == cudaSuccess && (o.row % 32 || o.row < r->res.pitch2D.width * o.bytes)) e = fail(cudaErrorInvalidValue);
    o.dims = 2;
    break;
  case cudaResourceTypeMipmappedArray: return lacks("cudaCreateTextureObject of a mipmapped array");
  default: return fail(cudaErrorInvalidValue);
  }
  if (e) return e;
  int floats = o.type == cudaChannelFormatKindFloat, border = 0;
  o.linear = t->filterMode == cudaFilterModeLinear, o.normalized = t->normalizedCoords != 0;
  o.floats = t->readMode == cudaReadModeNormalizedFloat;
  if (o.floats && (floats || o.bytes / o.channels == 4)) return fail(cudaErrorInvalidNormSetting);
  if (o.linear && !floats && !o.floats && !o.linear_memory) return fail(cudaErrorInvalidFilterSetting);
  for (int d = 0; d < 3; d++) {
    if ((unsigned)t->addressMode[d] > cudaAddressModeBorder) return fail(cudaErrorInvalidValue);
    o.mode[d] = (unsigned char)t->addressMode[d];
    if (!o.normalized && o.mode[d] != cudaAddressModeBorder) o.mode[d] = cudaAddressModeClamp;
    if (o.cube) o.mode[d] = cudaAddressModeClamp;
    border |= o.mode[d] == cudaAddressModeBorder;
  }
  for (int c = 0; c < 4; c++) {
    o.border[c] = t->borderColor[c];
    if (border && !floats && t->borderColor[c] != 0) return lacks("cudaCreateTextureObject with a border color of integers");
  }
  return create_object(to, &o);
}
cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t *to, const struct cudaResourceDesc *r) {
  cudaError_t e = permitted();
  if (e) return e;
  if (to == NULL || r == NULL || r->resType != cudaResourceTypeArray) return fail(cudaErrorInvalidValue);
  object o = {.magic = SURFACE, .resource = *r};
  e = array_of(&o, r->res.array.array);
  return e ? e : create_object(to, &o);
}
cudaError_t cudaDestroyTextureObject(cudaTextureObject_t handle) { return known_object(handle, TEXTURE, 1, &(object){0}); }
cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t handle) { return known_object(handle, SURFACE, 1, &(object){0}); }
cudaError_t cudaGetTextureObjectResourceDesc(struct cudaResourceDesc *r, cudaTextureObject_t handle) {
  object o;
  cudaError_t e = r ? known_object(handle, TEXTURE, 0, &o) : fail(cudaErrorInvalidValue);
  if (e == cudaSuccess) *r = o.resource;
  return e;
}
cudaError_t cudaGetTextureObjectTextureDesc(struct cudaTextureDesc *t, cudaTextureObject_t handle) {
  object o;
  cudaError_t e = t ? known_object(handle, TEXTURE, 0, &o) : fail(cudaErrorInvalidValue);
  if (e == cudaSuccess) *t = o.texture;
  return e;
}
cudaError_t cudaGetSurfaceObjectResourceDesc(struct cudaResourceDesc *r, cudaSurfaceObject_t handle) {
  object o;
  cudaError_t e = r ? known_object(handle, SURFACE, 0, &o) : fail(cudaErrorInvalidValue);
  if (e == cudaSuccess) *r = o.resource;
  return e;
}
