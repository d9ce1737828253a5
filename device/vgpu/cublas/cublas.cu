// A part of cuBLAS for the virtual GPU, as plain kernels: one thread computes one element of a result, and sums its terms
// in order with fma. Matrices are column-major, as in BLAS. Accesses are checked like those of a program's own kernels.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

extern "C" __attribute__((weak)) int fisub_vgpu_missing(const char* name); // of the virtual GPU's runtime

struct cublasContext {
  cudaStream_t stream;
  cublasPointerMode_t mode;
  cublasMath_t math;
  cublasAtomicsMode_t atomics;
  void* scratch;  // device memory for a result that goes to the host
};

namespace {

// A scalar is in host memory, and thus a value, or in device memory.
template <class T>
struct Scalar {
  T value;
  const T* at;
  __device__ T get() const { return at ? *at : value; }
};
template <class T>
Scalar<T> scalar(cublasHandle_t h, const T* p) {
  if (h->mode == CUBLAS_POINTER_MODE_DEVICE) return {T(0), p};
  return {*p, nullptr};
}

template <class Acc, class T>
__device__ Acc wide(T v) { return Acc(v); }
template <>
__device__ float wide<float, __half>(__half v) { return __half2float(v); }
template <>
__device__ float wide<float, __nv_bfloat16>(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T, class Acc>
__device__ T narrow(Acc v) { return T(v); }
template <>
__device__ __half narrow<__half, float>(float v) { return __float2half(v); }
template <>
__device__ __nv_bfloat16 narrow<__nv_bfloat16, float>(float v) { return __float2bfloat16(v); }

// A Batch is an array of pointers to matrices, or a matrix and the distance to the next one in elements.
template <class T>
struct Batch {
  T* base;
  T* const* list;
  long long stride;
  __device__ T* get(int i) const { return list ? list[i] : base + i * stride; }
};

// C = alpha op(A) op(B) + beta C. op(A) is m x k, op(B) is k x n. C is not read if beta is 0, nor A and B if alpha is 0.
template <class T, class TC, class Acc, class S>
__global__ void gemm(bool ta, bool tb, int m, int n, int k, Scalar<S> alpha, Batch<const T> as, int lda, Batch<const T> bs,
                     int ldb, Scalar<S> beta, Batch<TC> cs, int ldc, int batches) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i >= m) return;
  Acc x = wide<Acc>(alpha.get()), y = wide<Acc>(beta.get());
  for (; j < n; j += gridDim.y * blockDim.y)
    for (int z = blockIdx.z; z < batches; z += gridDim.z) {
      Acc sum = 0;
      if (x != Acc(0) && k > 0) {
        const T *a = as.get(z), *b = bs.get(z);
        for (int l = 0; l < k; l++)
          sum = fma(wide<Acc>(ta ? a[l + size_t(i) * lda] : a[i + size_t(l) * lda]),
                    wide<Acc>(tb ? b[j + size_t(l) * ldb] : b[l + size_t(j) * ldb]), sum);
      }
      TC* c = cs.get(z) + i + size_t(j) * ldc;
      *c = narrow<TC>(y == Acc(0) ? x * sum : fma(x, sum, y * wide<Acc>(*c)));
    }
}

cublasStatus_t launched() { return cudaPeekAtLastError() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS; }

bool is_op(cublasOperation_t op) { return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C; }

cublasStatus_t missing(const char* what) {
  fisub_vgpu_missing(what);
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

template <class T, class TC, class Acc, class S>
cublasStatus_t run_gemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const S* alpha,
                        Batch<const T> a, int lda, Batch<const T> b, int ldb, const S* beta, Batch<TC> c, int ldc,
                        int batches) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  int rows_a = ta == CUBLAS_OP_N ? m : k, rows_b = tb == CUBLAS_OP_N ? k : n;
  if (!is_op(ta) || !is_op(tb) || m < 0 || n < 0 || k < 0 || batches < 0 || lda < max(1, rows_a) || ldb < max(1, rows_b) ||
      ldc < max(1, m) || !alpha || !beta)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0 || batches == 0) return CUBLAS_STATUS_SUCCESS;
  dim3 block(16, 16), grid((m + 15) / 16, min((n + 15) / 16, 65535), min(batches, 65535));
  gemm<T, TC, Acc, S><<<grid, block, 0, h->stream>>>(ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, scalar(h, alpha), a, lda,
                                                     b, ldb, scalar(h, beta), c, ldc, batches);
  return launched();
}

// Vectors: with a negative increment BLAS begins at the last element.
__device__ size_t place(int i, int n, int inc) { return inc < 0 ? size_t(i - n + 1) * inc : size_t(i) * inc; }

template <class T>
__global__ void axpy(int n, Scalar<T> alpha, const T* x, int incx, T* y, int incy) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[place(i, n, incy)] = fma(alpha.get(), x[place(i, n, incx)], y[place(i, n, incy)]);
}
template <class T>
__global__ void scal(int n, Scalar<T> alpha, T* x, int incx) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[size_t(i) * incx] *= alpha.get();
}
template <class T>
__global__ void copy(int n, const T* x, int incx, T* y, int incy) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[place(i, n, incy)] = x[place(i, n, incx)];
}
template <class T>
__global__ void swap(int n, T* x, int incx, T* y, int incy) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  T* a = x + place(i, n, incx);
  T* b = y + place(i, n, incy);
  T v = *a;
  *a = *b, *b = v;
}
enum Kind { DOT, NRM2, ASUM, AMAX, AMIN };

// reduce is one block of 256 threads; each sums or compares every 256th element.
template <class T, class R>
__global__ void reduce(Kind kind, int n, const T* x, int incx, const T* y, int incy, R* result) {
  __shared__ double sums[256];
  __shared__ int index[256];
  int t = threadIdx.x;
  double best = 0;
  int at = -1;
  for (int i = t; i < n; i += 256) {
    double v = x[place(i, n, incx)];
    switch (kind) {
      case DOT: best += v * double(y[place(i, n, incy)]); break;
      case NRM2: best += v * v; break;
      case ASUM: best += fabs(v); break;
      case AMAX: if (at < 0 || fabs(v) > best) best = fabs(v), at = i; break;
      case AMIN: if (at < 0 || fabs(v) < best) best = fabs(v), at = i; break;
    }
  }
  sums[t] = best, index[t] = at;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) {
      double a = sums[t], b = sums[t + half];
      int p = index[t], q = index[t + half];
      if (kind == AMAX || kind == AMIN) {
        if (q >= 0 && (p < 0 || (kind == AMAX ? b > a : b < a) || (a == b && q < p))) sums[t] = b, index[t] = q;
      } else {
        sums[t] = a + b;
      }
    }
    __syncthreads();
  }
  if (t == 0) *result = kind == AMAX || kind == AMIN ? R(index[0] + 1) : R(kind == NRM2 ? sqrt(sums[0]) : sums[0]);
}

template <class T>
__global__ void gemv(bool trans, int m, int n, Scalar<T> alpha, const T* a, int lda, const T* x, int incx, Scalar<T> beta, T* y,
                     int incy) {
  int rows = trans ? n : m, terms = trans ? m : n, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  T u = alpha.get(), v = beta.get(), sum = 0;
  for (int l = 0; u != T(0) && l < terms; l++)
    sum = fma(trans ? a[l + size_t(i) * lda] : a[i + size_t(l) * lda], x[place(l, terms, incx)], sum);
  T* to = y + place(i, rows, incy);
  *to = v == T(0) ? u * sum : fma(u, sum, v * *to);
}
template <class T>
__global__ void ger(int m, int n, Scalar<T> alpha, const T* x, int incx, const T* y, int incy, T* a, int lda) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int j = blockIdx.y; i < m && j < n; j += gridDim.y)
    a[i + size_t(j) * lda] = fma(alpha.get() * x[place(i, m, incx)], y[place(j, n, incy)], a[i + size_t(j) * lda]);
}
template <class T>
__global__ void geam(bool ta, bool tb, int m, int n, Scalar<T> alpha, const T* a, int lda, Scalar<T> beta, const T* b, int ldb,
                     T* c, int ldc) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  T x = alpha.get(), y = beta.get();
  for (int j = blockIdx.y; i < m && j < n; j += gridDim.y) {
    T sum = 0;
    if (x != T(0)) sum = x * (ta ? a[j + size_t(i) * lda] : a[i + size_t(j) * lda]);
    if (y != T(0)) sum = fma(y, tb ? b[j + size_t(i) * ldb] : b[i + size_t(j) * ldb], sum);
    c[i + size_t(j) * ldc] = sum;
  }
}

int blocks(int n) { return (n + 255) / 256; }

template <class T, class R>
cublasStatus_t run_reduce(cublasHandle_t h, Kind kind, int n, const T* x, int incx, const T* y, int incy, R* result) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!result) return CUBLAS_STATUS_INVALID_VALUE;
  if (kind != DOT && incx <= 0) n = 0; // as in BLAS, the result is 0
  if (h->mode == CUBLAS_POINTER_MODE_DEVICE) {
    reduce<T, R><<<1, 256, 0, h->stream>>>(kind, max(n, 0), x, incx, y, incy, result);
    return launched();
  }
  if (n <= 0) {
    *result = R(0);
    return CUBLAS_STATUS_SUCCESS;
  }
  reduce<T, R><<<1, 256, 0, h->stream>>>(kind, n, x, incx, y, incy, (R*)h->scratch);
  cudaMemcpyAsync(result, h->scratch, sizeof(R), cudaMemcpyDeviceToHost, h->stream);
  cudaStreamSynchronize(h->stream);
  return launched();
}

cublasStatus_t copied(cudaError_t e) { return e ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS; }

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* h) {
  if (!h) return CUBLAS_STATUS_INVALID_VALUE;
  *h = new cublasContext();
  return cudaMalloc(&(*h)->scratch, 16) ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  cudaFree(h->scratch);
  delete h;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* v) {
  *v = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

#define FIELD(name, type, field)                                      \
  cublasStatus_t cublasSet##name(cublasHandle_t h, type v) {          \
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;                     \
    h->field = v;                                                     \
    return CUBLAS_STATUS_SUCCESS;                                     \
  }                                                                   \
  cublasStatus_t cublasGet##name(cublasHandle_t h, type* v) {         \
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;                     \
    *v = h->field;                                                    \
    return CUBLAS_STATUS_SUCCESS;                                     \
  }
FIELD(Stream_v2, cudaStream_t, stream)
FIELD(PointerMode_v2, cublasPointerMode_t, mode)
FIELD(MathMode, cublasMath_t, math)
FIELD(AtomicsMode, cublasAtomicsMode_t, atomics)
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void*, size_t) {
  return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

#define STATUSES(X)                                                                                          \
  X(SUCCESS, "success") X(NOT_INITIALIZED, "the library was not initialized")                                \
  X(ALLOC_FAILED, "the resource allocation failed") X(INVALID_VALUE, "an unsupported value or parameter was passed to the function") \
  X(ARCH_MISMATCH, "the function requires an architectural feature absent from the architecture of the device") \
  X(MAPPING_ERROR, "an access to GPU memory space failed") X(EXECUTION_FAILED, "the function failed to launch on the GPU") \
  X(INTERNAL_ERROR, "an internal operation failed") X(NOT_SUPPORTED, "the functionality requested is not supported") \
  X(LICENSE_ERROR, "the functionality requested requires some license")
const char* cublasGetStatusName(cublasStatus_t s) {
#define NAME(s, text) case CUBLAS_STATUS_##s: return "CUBLAS_STATUS_" #s;
  switch (s) { STATUSES(NAME) }
  return "unknown";
}
const char* cublasGetStatusString(cublasStatus_t s) {
#define TEXT(s, text) case CUBLAS_STATUS_##s: return text;
  switch (s) { STATUSES(TEXT) }
  return "unknown";
}

cublasStatus_t cublasSetVectorAsync(int n, int size, const void* x, int incx, void* y, int incy, cudaStream_t s) {
  if (size <= 0 || incx <= 0 || incy <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  return copied(cudaMemcpy2DAsync(y, size_t(incy) * size, x, size_t(incx) * size, size, n, cudaMemcpyHostToDevice, s));
}
cublasStatus_t cublasGetVectorAsync(int n, int size, const void* x, int incx, void* y, int incy, cudaStream_t s) {
  if (size <= 0 || incx <= 0 || incy <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  return copied(cudaMemcpy2DAsync(y, size_t(incy) * size, x, size_t(incx) * size, size, n, cudaMemcpyDeviceToHost, s));
}
cublasStatus_t cublasSetMatrixAsync(int m, int n, int size, const void* a, int lda, void* b, int ldb, cudaStream_t s) {
  if (size <= 0 || lda < m || ldb < m) return CUBLAS_STATUS_INVALID_VALUE;
  return copied(cudaMemcpy2DAsync(b, size_t(ldb) * size, a, size_t(lda) * size, size_t(m) * size, n, cudaMemcpyHostToDevice, s));
}
cublasStatus_t cublasGetMatrixAsync(int m, int n, int size, const void* a, int lda, void* b, int ldb, cudaStream_t s) {
  if (size <= 0 || lda < m || ldb < m) return CUBLAS_STATUS_INVALID_VALUE;
  return copied(cudaMemcpy2DAsync(b, size_t(ldb) * size, a, size_t(lda) * size, size_t(m) * size, n, cudaMemcpyDeviceToHost, s));
}
#define WAIT(call)                      \
  cublasStatus_t s = call;              \
  return s ? s : copied(cudaStreamSynchronize(0));
cublasStatus_t cublasSetVector(int n, int size, const void* x, int incx, void* y, int incy) {
  WAIT(cublasSetVectorAsync(n, size, x, incx, y, incy, 0))
}
cublasStatus_t cublasGetVector(int n, int size, const void* x, int incx, void* y, int incy) {
  WAIT(cublasGetVectorAsync(n, size, x, incx, y, incy, 0))
}
cublasStatus_t cublasSetMatrix(int m, int n, int size, const void* a, int lda, void* b, int ldb) {
  WAIT(cublasSetMatrixAsync(m, n, size, a, lda, b, ldb, 0))
}
cublasStatus_t cublasGetMatrix(int m, int n, int size, const void* a, int lda, void* b, int ldb) {
  WAIT(cublasGetMatrixAsync(m, n, size, a, lda, b, ldb, 0))
}

#define CHECK(condition)                           \
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;    \
  if (!(condition)) return CUBLAS_STATUS_INVALID_VALUE;

#define VECTORS(L, T)                                                                                                      \
  cublasStatus_t cublas##L##axpy_v2(cublasHandle_t h, int n, const T* alpha, const T* x, int incx, T* y, int incy) {       \
    CHECK(alpha)                                                                                                           \
    if (n <= 0) return CUBLAS_STATUS_SUCCESS;                                                                              \
    axpy<<<blocks(n), 256, 0, h->stream>>>(n, scalar(h, alpha), x, incx, y, incy);                                         \
    return launched();                                                                                                     \
  }                                                                                                                        \
  cublasStatus_t cublas##L##scal_v2(cublasHandle_t h, int n, const T* alpha, T* x, int incx) {                             \
    CHECK(alpha)                                                                                                           \
    if (n <= 0 || incx <= 0) return CUBLAS_STATUS_SUCCESS;                                                                 \
    scal<<<blocks(n), 256, 0, h->stream>>>(n, scalar(h, alpha), x, incx);                                                  \
    return launched();                                                                                                     \
  }                                                                                                                        \
  cublasStatus_t cublas##L##copy_v2(cublasHandle_t h, int n, const T* x, int incx, T* y, int incy) {                       \
    CHECK(true)                                                                                                            \
    if (n <= 0) return CUBLAS_STATUS_SUCCESS;                                                                              \
    copy<<<blocks(n), 256, 0, h->stream>>>(n, x, incx, y, incy);                                                           \
    return launched();                                                                                                     \
  }                                                                                                                        \
  cublasStatus_t cublas##L##swap_v2(cublasHandle_t h, int n, T* x, int incx, T* y, int incy) {                             \
    CHECK(true)                                                                                                            \
    if (n <= 0) return CUBLAS_STATUS_SUCCESS;                                                                              \
    swap<<<blocks(n), 256, 0, h->stream>>>(n, x, incx, y, incy);                                                           \
    return launched();                                                                                                     \
  }                                                                                                                        \
  cublasStatus_t cublas##L##dot_v2(cublasHandle_t h, int n, const T* x, int incx, const T* y, int incy, T* r) {            \
    return run_reduce(h, DOT, n, x, incx, y, incy, r);                                                                     \
  }                                                                                                                        \
  cublasStatus_t cublas##L##nrm2_v2(cublasHandle_t h, int n, const T* x, int incx, T* r) {                                 \
    return run_reduce(h, NRM2, n, x, incx, x, incx, r);                                                                    \
  }                                                                                                                        \
  cublasStatus_t cublas##L##asum_v2(cublasHandle_t h, int n, const T* x, int incx, T* r) {                                 \
    return run_reduce(h, ASUM, n, x, incx, x, incx, r);                                                                    \
  }                                                                                                                        \
  cublasStatus_t cublas##L##gemv_v2(cublasHandle_t h, cublasOperation_t op, int m, int n, const T* alpha, const T* a,      \
                                    int lda, const T* x, int incx, const T* beta, T* y, int incy) {                        \
    CHECK(is_op(op) && m >= 0 && n >= 0 && lda >= max(1, m) && incx && incy && alpha && beta)                              \
    int rows = op == CUBLAS_OP_N ? m : n;                                                                                  \
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;                                                                    \
    gemv<<<blocks(rows), 256, 0, h->stream>>>(op != CUBLAS_OP_N, m, n, scalar(h, alpha), a, lda, x, incx, scalar(h, beta), \
                                              y, incy);                                                                    \
    return launched();                                                                                                     \
  }                                                                                                                        \
  cublasStatus_t cublas##L##ger_v2(cublasHandle_t h, int m, int n, const T* alpha, const T* x, int incx, const T* y,       \
                                   int incy, T* a, int lda) {                                                              \
    CHECK(m >= 0 && n >= 0 && lda >= max(1, m) && incx && incy && alpha)                                                   \
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;                                                                    \
    ger<<<dim3(blocks(m), min(n, 65535)), 256, 0, h->stream>>>(m, n, scalar(h, alpha), x, incx, y, incy, a, lda);          \
    return launched();                                                                                                     \
  }                                                                                                                        \
  cublasStatus_t cublas##L##geam(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n,               \
                                 const T* alpha, const T* a, int lda, const T* beta, const T* b, int ldb, T* c, int ldc) { \
    CHECK(is_op(ta) && is_op(tb) && m >= 0 && n >= 0 && lda >= max(1, ta == CUBLAS_OP_N ? m : n) &&                        \
          ldb >= max(1, tb == CUBLAS_OP_N ? m : n) && ldc >= max(1, m) && alpha && beta)                                   \
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;                                                                    \
    geam<<<dim3(blocks(m), min(n, 65535)), 256, 0, h->stream>>>(ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n,                \
                                                                scalar(h, alpha), a, lda, scalar(h, beta), b, ldb, c, ldc);\
    return launched();                                                                                                     \
  }
VECTORS(S, float)
VECTORS(D, double)

#define EXTREMES(l, T)                                                                                  \
  cublasStatus_t cublasI##l##amax_v2(cublasHandle_t h, int n, const T* x, int incx, int* r) {           \
    return run_reduce(h, AMAX, n, x, incx, x, incx, r);                                                 \
  }                                                                                                     \
  cublasStatus_t cublasI##l##amin_v2(cublasHandle_t h, int n, const T* x, int incx, int* r) {           \
    return run_reduce(h, AMIN, n, x, incx, x, incx, r);                                                 \
  }
EXTREMES(s, float)
EXTREMES(d, double)

#define PRODUCTS(name, batched, strided, T, Acc)                                                                           \
  cublasStatus_t name(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,   \
                      const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {                            \
    return run_gemm<T, T, Acc>(h, ta, tb, m, n, k, alpha, {a, nullptr, 0}, lda, {b, nullptr, 0}, ldb, beta,                \
                               {c, nullptr, 0}, ldc, 1);                                                                   \
  }                                                                                                                        \
  cublasStatus_t batched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,\
                         const T* const a[], int lda, const T* const b[], int ldb, const T* beta, T* const c[], int ldc,   \
                         int count) {                                                                                      \
    return run_gemm<T, T, Acc>(h, ta, tb, m, n, k, alpha, {nullptr, a, 0}, lda, {nullptr, b, 0}, ldb, beta,                \
                               {nullptr, c, 0}, ldc, count);                                                               \
  }                                                                                                                        \
  cublasStatus_t strided(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,\
                         const T* a, int lda, long long sa, const T* b, int ldb, long long sb, const T* beta, T* c,        \
                         int ldc, long long sc, int count) {                                                               \
    return run_gemm<T, T, Acc>(h, ta, tb, m, n, k, alpha, {a, nullptr, sa}, lda, {b, nullptr, sb}, ldb, beta,              \
                               {c, nullptr, sc}, ldc, count);                                                              \
  }
PRODUCTS(cublasSgemm_v2, cublasSgemmBatched, cublasSgemmStridedBatched, float, float)
PRODUCTS(cublasDgemm_v2, cublasDgemmBatched, cublasDgemmStridedBatched, double, double)
PRODUCTS(cublasHgemm, cublasHgemmBatched, cublasHgemmStridedBatched, __half, float)

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType at, int lda, long long sa,
                                          const void* b, cudaDataType bt, int ldb, long long sb, const void* beta, void* c,
                                          cudaDataType ct, int ldc, long long sc, int count, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
#define PRODUCT(T, TC, S)                                                                                              \
  return run_gemm<T, TC, S>(h, ta, tb, m, n, k, (const S*)alpha, Batch<const T>{(const T*)a, nullptr, sa}, lda,        \
                            Batch<const T>{(const T*)b, nullptr, sb}, ldb, (const S*)beta, Batch<TC>{(TC*)c, nullptr, sc}, ldc, count);
  bool single = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                compute == CUBLAS_COMPUTE_32F_FAST_TF32 || compute == CUBLAS_COMPUTE_32F_FAST_16F ||
                compute == CUBLAS_COMPUTE_32F_FAST_16BF;
  bool twice = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
  if (at == bt && single) {
    if (at == CUDA_R_32F && ct == CUDA_R_32F) PRODUCT(float, float, float)
    if (at == CUDA_R_16F && ct == CUDA_R_16F) PRODUCT(__half, __half, float)
    if (at == CUDA_R_16F && ct == CUDA_R_32F) PRODUCT(__half, float, float)
    if (at == CUDA_R_16BF && ct == CUDA_R_16BF) PRODUCT(__nv_bfloat16, __nv_bfloat16, float)
    if (at == CUDA_R_16BF && ct == CUDA_R_32F) PRODUCT(__nv_bfloat16, float, float)
  }
  if (at == CUDA_R_64F && bt == CUDA_R_64F && ct == CUDA_R_64F && twice) PRODUCT(double, double, double)
  if (at == CUDA_R_16F && bt == CUDA_R_16F && ct == CUDA_R_16F && compute == CUBLAS_COMPUTE_16F)
    return cublasHgemmStridedBatched(h, ta, tb, m, n, k, (const __half*)alpha, (const __half*)a, lda, sa, (const __half*)b, ldb,
                                     sb, (const __half*)beta, (__half*)c, ldc, sc, count);
  return missing("cublasGemmEx or cublasGemmStridedBatchedEx with such types");
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType at, int lda, const void* b, cudaDataType bt, int ldb, const void* beta,
                            void* c, cudaDataType ct, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
  return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, compute,
                                    algo);
}

// Of cuBLASLt, handles only: many programs create one and never use it.
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
  if (!h) return CUBLAS_STATUS_INVALID_VALUE;
  *h = (cublasLtHandle_t) new char;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete (char*)h;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

}  // extern "C"
