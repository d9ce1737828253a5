// The part of CUDA's driver API that submissions use, based on runtime.c. A CUfunction is a host function of the
// runtime.
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"

void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
const fisub_vgpu_hooks *fisub_vgpu_hooks_now(void);
cudaError_t fisub_vgpu_set(const char *function, void *d, unsigned v, size_t n);

// Runtime and driver errors have the same numbers.
#define R(call) ((CUresult)(call))

CUresult cuInit(unsigned f) { return f ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *v) { return R(cudaDriverGetVersion(v)); }
CUresult cuDeviceGet(CUdevice *d, int n) { *d = n; return n ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *n) { *n = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int n, CUdevice d) {
  struct cudaDeviceProp p;
  cudaGetDeviceProperties(&p, d);
  strncpy(name, p.name, (size_t)n);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) { return R(cudaDeviceGetAttribute(v, (enum cudaDeviceAttr)a, d)); }
CUresult cuDeviceTotalMem(size_t *n, CUdevice d) { size_t f; (void)d; return R(cudaMemGetInfo(&f, n)); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { (void)d; *c = (CUcontext)(uintptr_t)1; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice d) { (void)d; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)(uintptr_t)1; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { (void)c; return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext c) { (void)c; return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *c) { if (c) *c = (CUcontext)(uintptr_t)1; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *d) { *d = 0; return CUDA_SUCCESS; }
CUresult cuCtxCreate(CUcontext *c, CUctxCreateParams *p, unsigned f, CUdevice d) {
  (void)p, (void)f;
  *c = (CUcontext)(uintptr_t)1;
  return d ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext c) { (void)c; return R(cudaDeviceSynchronize()); }
CUresult cuCtxSynchronize(void) { return R(cudaDeviceSynchronize()); }
CUresult cuGetErrorString(CUresult e, const char **s) { *s = cudaGetErrorString((cudaError_t)e); return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult e, const char **s) { *s = cudaGetErrorName((cudaError_t)e); return CUDA_SUCCESS; }

CUresult cuMemAlloc(CUdeviceptr *p, size_t n) { return R(cudaMalloc((void **)p, n)); }
CUresult cuMemGetInfo(size_t *f, size_t *n) { return R(cudaMemGetInfo(f, n)); }
CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned f) { return R(cudaMallocManaged((void **)p, n, f)); }
CUresult cuMemAllocHost(void **p, size_t n) { return R(cudaMallocHost(p, n)); }
CUresult cuMemHostAlloc(void **p, size_t n, unsigned f) { return R(cudaHostAlloc(p, n, f)); }
CUresult cuMemFreeHost(void *p) { return R(cudaFreeHost(p)); }
CUresult cuMemFree(CUdeviceptr p) { return R(cudaFree((void *)p)); }
CUresult cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream s) { return R(cudaMallocAsync((void **)p, n, s)); }
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { return R(cudaFreeAsync((void *)p, s)); }
// Structs and attributes of pools are those of the runtime.
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *p, CUdevice d) { return R(cudaDeviceGetDefaultMemPool((cudaMemPool_t *)p, d)); }
CUresult cuMemPoolCreate(CUmemoryPool *p, const CUmemPoolProps *props) { return R(cudaMemPoolCreate((cudaMemPool_t *)p, (const struct cudaMemPoolProps *)props)); }
CUresult cuMemPoolDestroy(CUmemoryPool p) { return R(cudaMemPoolDestroy((cudaMemPool_t)p)); }
CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep) { return R(cudaMemPoolTrimTo((cudaMemPool_t)p, keep)); }
CUresult cuMemPoolSetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *v) { return R(cudaMemPoolSetAttribute((cudaMemPool_t)p, (enum cudaMemPoolAttr)a, v)); }
CUresult cuMemPoolGetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *v) { return R(cudaMemPoolGetAttribute((cudaMemPool_t)p, (enum cudaMemPoolAttr)a, v)); }
CUresult cuMemPoolSetAccess(CUmemoryPool p, const CUmemAccessDesc *all, size_t n) { return R(cudaMemPoolSetAccess((cudaMemPool_t)p, (const struct cudaMemAccessDesc *)all, n)); }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t n, CUmemoryPool from, CUstream s) { return R(cudaMallocFromPoolAsync((void **)p, n, (cudaMemPool_t)from, s)); }
CUresult cuMemcpy(CUdeviceptr d, CUdeviceptr s, size_t n) { return R(cudaMemcpy((void *)d, (void *)s, n, cudaMemcpyDefault)); }
CUresult cuMemcpyAsync(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream st) { return R(cudaMemcpyAsync((void *)d, (void *)s, n, cudaMemcpyDefault, st)); }
CUresult cuMemcpyHtoD(CUdeviceptr d, const void *s, size_t n) { return R(cudaMemcpy((void *)d, s, n, cudaMemcpyDefault)); }
CUresult cuMemcpyDtoH(void *d, CUdeviceptr s, size_t n) { return R(cudaMemcpy(d, (void *)s, n, cudaMemcpyDefault)); }
CUresult cuMemcpyDtoD(CUdeviceptr d, CUdeviceptr s, size_t n) { return R(cudaMemcpy((void *)d, (void *)s, n, cudaMemcpyDefault)); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr d, const void *s, size_t n, CUstream st) { return R(cudaMemcpyAsync((void *)d, s, n, cudaMemcpyDefault, st)); }
CUresult cuMemcpyDtoHAsync(void *d, CUdeviceptr s, size_t n, CUstream st) { return R(cudaMemcpyAsync(d, (void *)s, n, cudaMemcpyDefault, st)); }
CUresult cuMemcpyDtoDAsync(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream st) { return R(cudaMemcpyAsync((void *)d, (void *)s, n, cudaMemcpyDefault, st)); }
CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, CUstream s) { return R(cudaMemsetAsync((void *)d, v, n, s)); }
CUresult cuMemsetD8(CUdeviceptr d, unsigned char v, size_t n) { return R(cudaMemset((void *)d, v, n)); }
CUresult cuMemsetD32(CUdeviceptr d, unsigned v, size_t n) {
  return R(fisub_vgpu_set("cuMemsetD32", (void *)d, v, n));
}

CUresult cuModuleLoadData(CUmodule *m, const void *image) {
  const fisub_vgpu_hooks *h = fisub_vgpu_hooks_now();
  const unsigned char *b = image;
  if (h == NULL || h->module == NULL) return CUDA_ERROR_NOT_INITIALIZED;
  if (memcmp(b, "\177ELF", 4) == 0) {
    h->lacks("cuModuleLoadData of machine code: it executes PTX");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  size_t n = *(const uint32_t *)b == 0xba55ed50 ? *(const uint16_t *)(b + 6) + *(const uint64_t *)(b + 8) : strlen(image) + 1;
  void *copy = malloc(n); // the caller may free image
  memcpy(copy, image, n);
  void **handle = calloc(1, sizeof *handle);
  *handle = h->module(copy, NULL);
  *m = (CUmodule)handle;
  return CUDA_SUCCESS;
}
// cuModuleLoad loads PTX or a fat binary from a file.
CUresult cuModuleLoad(CUmodule *m, const char *path) {
  FILE *f = fopen(path, "rb");
  if (f == NULL) return CUDA_ERROR_FILE_NOT_FOUND;
  size_t n = 0, room = 1 << 16, got;
  char *image = malloc(room);
  while (image && (got = fread(image + n, 1, room - n - 1, f)) > 0)
    if ((n += got) == room - 1) image = realloc(image, room *= 2);
  fclose(f);
  if (image == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  image[n] = 0;
  CUresult e = n < 16 ? CUDA_ERROR_INVALID_IMAGE : cuModuleLoadData(m, image);
  free(image);
  return e;
}
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, CUjit_option *o, void **v) { (void)n, (void)o, (void)v; return cuModuleLoadData(m, image); }
CUresult cuModuleLoadFatBinary(CUmodule *m, const void *image) { return cuModuleLoadData(m, image); }
CUresult cuModuleUnload(CUmodule m) { (void)m; return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  fisub_vgpu_attributes a;
  int e = fisub_vgpu_hooks_now()->attributes(*(void **)m, name, &a);
  if (e) return e == 98 ? CUDA_ERROR_NOT_FOUND : (CUresult)e;
  char *id = calloc(1, 1);
  __cudaRegisterFunction((void **)m, id, NULL, name, -1, NULL, NULL, NULL, NULL, NULL);
  *f = (CUfunction)id;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr *p, size_t *n, CUmodule m, const char *name) {
  size_t size = 0;
  void *at = fisub_vgpu_hooks_now()->symbol(*(void **)m, name, &size);
  if (p) *p = (CUdeviceptr)at;
  if (n) *n = size;
  return at ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuLibraryLoadData(CUlibrary *l, const void *image, CUjit_option *o, void **ov, unsigned n, CUlibraryOption *lo, void **lv, unsigned ln) {
  (void)o, (void)ov, (void)n, (void)lo, (void)lv, (void)ln;
  return cuModuleLoadData((CUmodule *)l, image);
}
CUresult cuLibraryUnload(CUlibrary l) { (void)l; return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name) { return cuModuleGetFunction((CUfunction *)k, (CUmodule)l, name); }
CUresult cuLibraryGetModule(CUmodule *m, CUlibrary l) { *m = (CUmodule)l; return CUDA_SUCCESS; }
CUresult cuKernelGetFunction(CUfunction *f, CUkernel k) { *f = (CUfunction)k; return CUDA_SUCCESS; }

// arguments reports CU_LAUNCH_PARAM_BUFFER_POINTER as unsupported: kernels are launched with pointers to arguments.
static CUresult arguments(void **args, void **extra) {
  if (args || extra == NULL) return CUDA_SUCCESS;
  fisub_vgpu_hooks_now()->lacks("cuLaunchKernel with its parameters in one buffer");
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s,
                        void **args, void **extra) {
  CUresult e = arguments(args, extra);
  void *none[1] = {NULL};
  return e ? e : R(cudaLaunchKernel(f, (dim3){gx, gy, gz}, (dim3){bx, by, bz}, args ? args : none, shared, s));
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   CUstream s, void **args) {
  void *none[1] = {NULL};
  return R(cudaLaunchCooperativeKernel(f, (dim3){gx, gy, gz}, (dim3){bx, by, bz}, args ? args : none, shared, s));
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  CUresult e = arguments(args, extra);
  if (e) return e;
  cudaLaunchConfig_t r = {.gridDim = {c->gridDimX, c->gridDimY, c->gridDimZ}, .blockDim = {c->blockDimX, c->blockDimY, c->blockDimZ},
                          .dynamicSmemBytes = c->sharedMemBytes, .stream = c->hStream, .attrs = (cudaLaunchAttribute *)c->attrs,
                          .numAttrs = c->numAttrs};
  return R(cudaLaunchKernelExC(&r, f, args));
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return R(cudaFuncSetAttribute(f, (enum cudaFuncAttribute)a, v)); }
CUresult cuKernelSetAttribute(CUfunction_attribute a, int v, CUkernel k, CUdevice d) { (void)d; return cuFuncSetAttribute((CUfunction)k, a, v); }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { (void)f, (void)c; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  struct cudaFuncAttributes all;
  CUresult e = R(cudaFuncGetAttributes(&all, f));
  if (e) return e;
  switch (a) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = all.maxThreadsPerBlock; break;
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *v = (int)all.sharedSizeBytes; break;
  case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *v = (int)all.localSizeBytes; break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS: *v = all.numRegs; break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION: *v = all.ptxVersion; break;
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *v = all.binaryVersion; break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *v = all.maxDynamicSharedSizeBytes; break;
  default: *v = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared) {
  return R(cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, shared));
}
CUresult cuStreamCreate(CUstream *s, unsigned f) { return R(cudaStreamCreateWithFlags(s, f)); }
CUresult cuStreamCreateWithPriority(CUstream *s, unsigned f, int p) { return R(cudaStreamCreateWithPriority(s, f, p)); }
CUresult cuStreamGetPriority(CUstream s, int *p) { return R(cudaStreamGetPriority(s, p)); }
CUresult cuStreamGetFlags(CUstream s, unsigned *f) { return R(cudaStreamGetFlags(s, f)); }
CUresult cuStreamGetDevice(CUstream s, CUdevice *d) { return R(cudaStreamGetDevice(s, d)); }
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) {
  int d;
  *c = (CUcontext)(uintptr_t)1;
  return R(cudaStreamGetDevice(s, &d));
}
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *c) { return R(cudaStreamIsCapturing(s, (enum cudaStreamCaptureStatus *)c)); }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { return R(cudaDeviceGetStreamPriorityRange(least, greatest)); }
CUresult cuStreamDestroy(CUstream s) { return R(cudaStreamDestroy(s)); }
CUresult cuStreamQuery(CUstream s) { return R(cudaStreamQuery(s)); }
CUresult cuLaunchHostFunc(CUstream s, CUhostFn f, void *p) { return R(cudaLaunchHostFunc(s, f, p)); }
CUresult cuStreamSynchronize(CUstream s) { return R(cudaStreamSynchronize(s)); }
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned f) { return R(cudaStreamWaitEvent(s, e, f)); }
CUresult cuEventCreate(CUevent *e, unsigned f) { return R(cudaEventCreateWithFlags(e, f)); }
CUresult cuEventDestroy(CUevent e) { return R(cudaEventDestroy(e)); }
CUresult cuEventRecord(CUevent e, CUstream s) { return R(cudaEventRecord(e, s)); }
CUresult cuEventQuery(CUevent e) { return R(cudaEventQuery(e)); }
CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) { return R(cudaEventElapsedTime(ms, a, b)); }
CUresult cuEventSynchronize(CUevent e) { return R(cudaEventSynchronize(e)); }
CUresult cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) {
  struct cudaPointerAttributes all;
  cudaPointerGetAttributes(&all, (void *)p);
  if (a != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || all.type != cudaMemoryTypeDevice) return CUDA_ERROR_INVALID_VALUE;
  *(unsigned *)v = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

// The same as vg_tensor_map in exec.h.
typedef struct {
  uint64_t address, magic, strides[4];
  uint32_t dims[5];
  uint16_t box[5];
  uint8_t steps[5], type, rank, interleave, swizzle, atom, fill, im2col;
  int16_t lower[3], upper[3];
} tensor_map;

// encode checks the rules of tensor maps of both modes and writes one. box: in elements, not above the limits most.
static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                       const cuuint32_t *box, const cuuint32_t *most, int boxes, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapFloatOOBfill fill, tensor_map t) {
  static const uint8_t sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 0, 1, 1}; // 16U4_ALIGN8B: half a byte
  static const uint16_t spans[] = {256, 32, 64, 128, 128, 128, 128};
  if (rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if ((unsigned)type >= sizeof sizes || (unsigned)swizzle > 6) {
    fisub_vgpu_hooks_now()->lacks("a tensor map with such a type or swizzle");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // Maps that are interleaved are reported when a copy uses them (tensor.h).
  int padded = type > CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; // 16 values of 4 or 6 bits to 16 bytes
  unsigned unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B || padded ? 31 : 15;
  if (padded && (dims[0] % 128 || box[0] != 128 || interleave || (swizzle && swizzle < CU_TENSOR_MAP_SWIZZLE_128B))) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B && dims[0] & 1) return CUDA_ERROR_INVALID_VALUE;
  if ((unsigned)interleave > 2 || (interleave && rank < 3) || (interleave == CU_TENSOR_MAP_INTERLEAVE_32B && swizzle != CU_TENSOR_MAP_SWIZZLE_32B))
    return CUDA_ERROR_INVALID_VALUE;
  if ((uintptr_t)map & 63 || (uintptr_t)address & unit) return CUDA_ERROR_INVALID_VALUE;
  t.magic = 0x70616d726f4d6e74ull, t.address = (uintptr_t)address, t.type = (uint8_t)type, t.rank = (uint8_t)rank;
  t.interleave = (uint8_t)interleave, t.fill = (uint8_t)fill;
  t.swizzle = swizzle > 3 ? 3 : (uint8_t)swizzle, t.atom = swizzle > 3 ? (uint8_t)swizzle - 3 : 0;
  for (int i = 0; i < boxes; i++) {
    if (box[i] == 0 || box[i] > most[i]) return CUDA_ERROR_INVALID_VALUE;
    t.box[i] = (uint16_t)box[i];
  }
  for (cuuint32_t i = 0; i < rank; i++) {
    if (dims[i] == 0 || dims[i] > 1ull << 32 || steps[i] == 0 || steps[i] > 8) return CUDA_ERROR_INVALID_VALUE;
    if (i && (strides[i - 1] & unit || strides[i - 1] >= 1ull << 40)) return CUDA_ERROR_INVALID_VALUE;
    t.dims[i] = (uint32_t)(dims[i] - 1);
    t.steps[i] = (uint8_t)steps[i];
    if (i) t.strides[i - 1] = strides[i - 1];
  }
  unsigned inner = sizes[type] ? box[0] * sizes[type] : box[0] / 2;
  if (inner & 15 || (swizzle && !interleave && inner > spans[swizzle])) return CUDA_ERROR_INVALID_VALUE;
  if (fill && (type < CU_TENSOR_MAP_DATA_TYPE_FLOAT16)) return CUDA_ERROR_INVALID_VALUE;
  memset(map, 0, sizeof *map);
  memcpy(map, &t, sizeof t);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  static const cuuint32_t most[5] = {256, 256, 256, 256, 256};
  (void)l2;
  return encode(map, type, rank, address, dims, strides, box, most, (int)rank, steps, interleave, swizzle, fill, (tensor_map){0});
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                 const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                 CUtensorMapFloatOOBfill fill) {
  static const int limits[6] = {0, 0, 0, 1 << 15, 1 << 7, 1 << 4}; // of the corners, by rank
  tensor_map t = {.im2col = 1};
  (void)l2;
  if (rank < 3 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i < rank - 2; i++) {
    int n = limits[rank];
    if (lower[i] < -n || lower[i] >= n || upper[i] < -n || upper[i] >= n) return CUDA_ERROR_INVALID_VALUE;
    if ((int64_t)dims[i + 1] - 1 + upper[i] < lower[i]) return CUDA_ERROR_INVALID_VALUE; // the box is empty
    t.lower[i] = (int16_t)lower[i], t.upper[i] = (int16_t)upper[i];
  }
  return encode(map, type, rank, address, dims, strides, (cuuint32_t[]){channels, pixels}, (cuuint32_t[]){256, 1024}, 2, steps, interleave, swizzle,
                fill, t);
}
CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
  if ((uintptr_t)address & 15) return CUDA_ERROR_INVALID_VALUE;
  ((tensor_map *)map)->address = (uintptr_t)address;
  return CUDA_SUCCESS;
}

// The first driver function called by a program that is linked with NVIDIA's runtime.
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)table, (void)id;
  fisub_vgpu_hooks_now()->lacks("cuGetExportTable, which NVIDIA's runtime inside of the program calls: link with -cudart shared, or use "
                                "fisub nvcc");
  return CUDA_ERROR_NOT_SUPPORTED;
}

// As in CUDA, the result is success even for unknown names. Other names of cuda.h have stubs, which report the call.
CUresult cuGetProcAddress_v2(const char *name, void **f, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
  char newer[128];
  (void)version, (void)flags;
  if (name == NULL || f == NULL) return CUDA_ERROR_INVALID_VALUE;
  *f = NULL;
  if (strncmp(name, "cu", 2) == 0) {
    snprintf(newer, sizeof newer, "%s_v2", name);
    *f = dlsym(RTLD_DEFAULT, newer);
    if (*f == NULL) *f = dlsym(RTLD_DEFAULT, name);
  }
  if (status) *status = *f ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}
#undef cuGetProcAddress
CUresult cuGetProcAddress(const char *name, void **f, int version, cuuint64_t flags) { return cuGetProcAddress_v2(name, f, version, flags, NULL); }
