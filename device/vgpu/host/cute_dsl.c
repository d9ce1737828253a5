// The functions that host code compiled by NVIDIA's CuTe DSL (4.4 to 4.8) calls: those of the CUDA runtime and driver
// with an underscore before their names, and those of its "CUDA dialect". They replace the ones in its own library,
// libcute_dsl_runtime.so, which contains NVIDIA's runtime.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cudaError_t _cudaGetDevice(int *d) { return cudaGetDevice(d); }
cudaError_t _cudaGetDeviceCount(int *n) { return cudaGetDeviceCount(n); }
cudaError_t _cudaSetDevice(int d) { return cudaSetDevice(d); }
cudaError_t _cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) { return cudaDeviceGetAttribute(v, a, d); }
cudaError_t _cudaDeviceSynchronize(void) { return cudaDeviceSynchronize(); }
CUresult _cuDeviceGet(CUdevice *d, int n) { return cuDeviceGet(d, n); }

CUresult _cuLibraryLoadData(CUlibrary *l, const void *image, CUjit_option *o, void **ov, unsigned n, CUlibraryOption *lo, void **lv, unsigned ln) {
  return cuLibraryLoadData(l, image, o, ov, n, lo, lv, ln);
}
cudaError_t _cudaLibraryLoadData(CUlibrary *l, const void *image, CUjit_option *o, void **ov, unsigned n, CUlibraryOption *lo, void **lv, unsigned ln) {
  return (cudaError_t)cuLibraryLoadData(l, image, o, ov, n, lo, lv, ln);
}
CUresult _cuLibraryUnload(CUlibrary l) { return cuLibraryUnload(l); }
cudaError_t _cudaLibraryUnload(CUlibrary l) { return (cudaError_t)cuLibraryUnload(l); }
CUresult _cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name) { return cuLibraryGetKernel(k, l, name); }
cudaError_t _cudaLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name) { return (cudaError_t)cuLibraryGetKernel(k, l, name); }
CUresult _cuLibraryGetModule(CUmodule *m, CUlibrary l) { return cuLibraryGetModule(m, l); }
CUresult _cuLibraryGetGlobal(CUdeviceptr *p, size_t *n, CUlibrary l, const char *name) { return cuModuleGetGlobal(p, n, (CUmodule)l, name); }
cudaError_t _cudaLibraryGetGlobal(CUdeviceptr *p, size_t *n, CUlibrary l, const char *name) {
  return (cudaError_t)cuModuleGetGlobal(p, n, (CUmodule)l, name);
}
CUresult _cuKernelGetAttribute(int *v, CUfunction_attribute a, CUkernel k, int d) { (void)d; return cuFuncGetAttribute(v, a, (CUfunction)k); }
cudaError_t _cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) { return cudaFuncSetAttribute(f, a, v); }
cudaError_t _cudaKernelSetAttributeForDevice(const void *k, enum cudaFuncAttribute a, int v, int d) { (void)d; return cudaFuncSetAttribute(k, a, v); }
cudaError_t _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, shared);
}
cudaError_t _cudaLaunchKernel(const void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, void **args, size_t shared,
                              cudaStream_t s) {
  return cudaLaunchKernel(f, (dim3){gx, gy, gz}, (dim3){bx, by, bz}, args, shared, s);
}
cudaError_t _cudaLaunchKernelEx(const cudaLaunchConfig_t *c, const void *f, void **args) { return cudaLaunchKernelExC(c, f, args); }
CUresult _cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                 const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  return cuTensorMapEncodeTiled(map, type, rank, address, dims, strides, box, steps, interleave, swizzle, l2, fill);
}

cudaError_t _cudaMalloc(void **p, size_t n) { return cudaMalloc(p, n); }
cudaError_t _cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return cudaMallocAsync(p, n, s); }
cudaError_t _cudaFree(void *p) { return cudaFree(p); }
cudaError_t _cudaFreeAsync(void *p, cudaStream_t s) { return cudaFreeAsync(p, s); }
cudaError_t _cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) { return cudaMemcpy(d, s, n, k); }
cudaError_t _cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) { return cudaMemcpyAsync(d, s, n, k, st); }
cudaError_t _cudaMemset(void *d, int v, size_t n) { return cudaMemset(d, v, n); }
cudaError_t _cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t s) { return cudaMemsetAsync(d, v, n, s); }
cudaError_t _cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreate(s); }
cudaError_t _cudaStreamDestroy(cudaStream_t s) { return cudaStreamDestroy(s); }
cudaError_t _cudaStreamSynchronize(cudaStream_t s) { return cudaStreamSynchronize(s); }

const char *cuda_dialect_get_error_name(int e) { return cudaGetErrorName((cudaError_t)e); }
void cuda_dialect_print_on_error(int e) {
  if (e) fprintf(stderr, "CUDA error: %s: %s\n", cudaGetErrorName((cudaError_t)e), cudaGetErrorString((cudaError_t)e));
}
void cuda_dialect_assert_success(int e) {
  cuda_dialect_print_on_error(e);
  if (e) abort();
}

// cuda_dialect_init_library_once sets *library with init and loads its kernels, unless that was done before. On an error
// it calls report with a kind of exception and a text, and returns -1.
int cuda_dialect_init_library_once(void **library, int (*init)(void **), int (*load)(void **, int), void (*report)(const char *, const char *)) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  void *loaded = NULL;
  int e = 0;
  pthread_mutex_lock(&lock);
  if (*library == NULL && (e = init(&loaded)) == 0 && (load == NULL || (e = load(&loaded, 0)) == 0)) *library = loaded;
  pthread_mutex_unlock(&lock);
  if (e == 0) return 0;
  char text[256];
  snprintf(text, sizeof text, "CUDA Error: %s (%s)", cudaGetErrorName((cudaError_t)e), cudaGetErrorString((cudaError_t)e));
  report("RuntimeError", text);
  return -1;
}
void cuda_dialect_unload_library_once(void **library) { *library = NULL; }
