// What the CUDA runtime answers to wrong calls: a row for each call, with the state that it finds. errors.txt has the
// answers of an H100 (driver 580.159.04, CUDA 13.0). Each section runs in a process of its own, because some errors end a
// context.
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define ROW(call) (printf("%s: %s\n", #call, cudaGetErrorName(call)), fflush(stdout), cudaGetLastError())
#define STATE(text) (printf("-- %s\n", text), fflush(stdout))

__device__ int global[4];
__constant__ int constant[4];
__global__ void one(int *p) { *p = 1; }
__global__ void dynamic_only(int *p) {
  extern __shared__ int s[];
  s[threadIdx.x] = 1;
  __syncthreads();
  *p = s[0];
}
__global__ void both(int *p) {
  __shared__ int fixed[2048];
  extern __shared__ int s[];
  fixed[threadIdx.x] = 2, s[threadIdx.x] = 1;
  __syncthreads();
  *p = s[0] + fixed[0];
}
__global__ void grab(int **p, size_t n) { *p = static_cast<int *>(malloc(n)); }
__global__ void say() { printf("said\n"); }
__device__ __noinline__ int deep(int n, volatile int *p) {
  volatile int frame[16];
  for (int i = 0; i < 16; i++) frame[i] = n + i;
  if (n == 0) return p[0];
  return deep(n - 1, p) + frame[n & 15] * 0 + 1;
}
__global__ void recursion(int n, int *p) { *p = deep(n, p); }

static int *device(size_t bytes = 4096) {
  int *p = nullptr;
  cudaMalloc(&p, bytes);
  return p;
}

static void copies() {
  int *d = device(), *q = device(), *h = static_cast<int *>(malloc(4096)), *pinned, *managed, *freed = device();
  cudaMallocHost(&pinned, 4096), cudaMallocManaged(&managed, 4096), cudaFree(freed);
  ROW(cudaMemcpy(d, h, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(d, h, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy(h, d, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(h, h + 64, 64, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpy(d, h, 64, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpy(h, d, 64, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpy(h, d, 64, cudaMemcpyHostToHost));
  ROW(cudaMemcpy(d, q, 64, cudaMemcpyHostToHost));
  ROW(cudaMemcpy(d, q, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(d, q, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy(d, h, 64, cudaMemcpyDefault));
  ROW(cudaMemcpy(h, h + 64, 64, cudaMemcpyDefault));
  ROW(cudaMemcpy(pinned, d, 64, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpy(pinned, h, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(h, pinned, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy(managed, h, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(h, managed, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy(d, h, 64, (cudaMemcpyKind)5));
  ROW(cudaMemcpy(d, h, 64, (cudaMemcpyKind)9));
  ROW(cudaMemcpy(d, h, 64, (cudaMemcpyKind)-1));
  ROW(cudaMemcpy(d, h, 0, (cudaMemcpyKind)9));
  ROW(cudaMemcpy(nullptr, h, 0, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(nullptr, h, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(d, nullptr, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(nullptr, d, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy(h, nullptr, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy(d, nullptr, 64, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpy(nullptr, h, 64, cudaMemcpyDefault));
  ROW(cudaMemcpy(freed, h, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(h, freed, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy((void *)0x12345000, h, 64, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy(h, (void *)0x12345000, 64, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpyAsync(d, h, 64, cudaMemcpyDeviceToHost, 0));
  ROW(cudaMemcpyAsync(d, h, 64, (cudaMemcpyKind)9, 0));
  ROW(cudaMemcpyAsync(h, h + 64, 64, cudaMemcpyDeviceToDevice, 0));
  ROW(cudaMemcpyAsync(nullptr, h, 64, cudaMemcpyHostToDevice, 0));
  ROW(cudaMemcpyAsync(h, nullptr, 64, cudaMemcpyDeviceToHost, 0));
  ROW(cudaMemcpy2D(d, 64, h, 64, 32, 4, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy2D(d, 16, h, 32, 32, 4, cudaMemcpyHostToDevice));
  ROW(cudaMemcpy2D(d, 64, h, 64, 32, 4, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy2D(d, 64, h, 64, 32, 4, (cudaMemcpyKind)9));
  ROW(cudaMemcpy2D(nullptr, 64, h, 64, 32, 4, cudaMemcpyHostToDevice));
  ROW(cudaMemset(d, 0, 64));
  ROW(cudaMemset(h, 0, 64));
  ROW(cudaMemset(pinned, 0, 64));
  ROW(cudaMemset(managed, 0, 64));
  ROW(cudaMemset(nullptr, 0, 64));
  ROW(cudaMemset(nullptr, 0, 0));
  ROW(cudaMemset(freed, 0, 64));
  ROW(cudaMemset((void *)0x12345000, 0, 64));
  ROW(cudaMemsetAsync(h, 0, 64, 0));
  ROW(cudaMemsetAsync(nullptr, 0, 64, 0));
  ROW(cudaMemset2D(h, 64, 0, 32, 4));
  ROW(cudaMemset2D(d, 16, 0, 32, 4));
}

static void symbols() {
  int *d = device(), h[8] = {};
  void *p;
  size_t n;
  int outside;
  ROW(cudaMemcpyToSymbol(global, h, 16));
  ROW(cudaMemcpyToSymbol(global, h, 17));
  ROW(cudaMemcpyToSymbol(global, h, 12, 8));
  ROW(cudaMemcpyToSymbol(global, h, 4, 16));
  ROW(cudaMemcpyToSymbol(global, h, 16, 0, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpyToSymbol(global, h, 16, 0, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpyToSymbol(global, d, 16, 0, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpyToSymbol(global, d, 16, 0, cudaMemcpyHostToDevice));
  ROW(cudaMemcpyToSymbol(global, h, 16, 0, cudaMemcpyHostToHost));
  ROW(cudaMemcpyToSymbol(global, h, 16, 0, cudaMemcpyDefault));
  ROW(cudaMemcpyToSymbol(global, h, 16, 0, (cudaMemcpyKind)9));
  ROW(cudaMemcpyToSymbol(global, nullptr, 16));
  ROW(cudaMemcpyToSymbol(constant, h, 16));
  ROW(cudaMemcpyToSymbol(constant, h, 17));
  ROW(cudaMemcpyToSymbol(outside, h, 4));
  ROW(cudaMemcpyFromSymbol(h, global, 16));
  ROW(cudaMemcpyFromSymbol(h, global, 17));
  ROW(cudaMemcpyFromSymbol(h, global, 12, 8));
  ROW(cudaMemcpyFromSymbol(h, global, 16, 0, cudaMemcpyHostToDevice));
  ROW(cudaMemcpyFromSymbol(h, global, 16, 0, cudaMemcpyDeviceToDevice));
  ROW(cudaMemcpyFromSymbol(h, global, 16, 0, cudaMemcpyHostToHost));
  ROW(cudaMemcpyFromSymbol(h, global, 16, 0, (cudaMemcpyKind)9));
  ROW(cudaMemcpyFromSymbol(nullptr, global, 16));
  ROW(cudaMemcpyToSymbolAsync(global, h, 17, 0, cudaMemcpyHostToDevice, 0));
  ROW(cudaMemcpyFromSymbolAsync(h, global, 16, 0, cudaMemcpyHostToDevice, 0));
  ROW(cudaGetSymbolAddress(&p, global));
  ROW(cudaGetSymbolAddress(&p, outside));
  ROW(cudaGetSymbolSize(&n, global));
  ROW(cudaGetSymbolSize(&n, outside));
}

static void memory() {
  void *p, *d = device(), *h = malloc(64);
  size_t pitch, a, b;
  ROW(cudaMalloc((void **)nullptr, 64));
  ROW(cudaMalloc(&p, 0));
  printf("%d\n", p != nullptr);
  ROW(cudaMalloc(&p, (size_t)1 << 45));
  ROW(cudaMalloc(&p, ~(size_t)0));
  ROW(cudaMallocHost((void **)nullptr, 64));
  ROW(cudaMallocManaged((void **)nullptr, 64));
  ROW(cudaMallocManaged(&p, 0));
  ROW(cudaMallocManaged(&p, 64, 0));
  ROW(cudaMallocManaged(&p, 64, 9));
  ROW(cudaMallocPitch((void **)nullptr, &pitch, 64, 4));
  ROW(cudaMallocPitch(&p, nullptr, 64, 4));
  ROW(cudaHostAlloc(&p, 64, 64));
  ROW(cudaMallocAsync((void **)nullptr, 64, 0));
  ROW(cudaFree(nullptr));
  ROW(cudaFree(h));
  ROW(cudaFree((char *)d + 4));
  ROW(cudaFree((void *)0x12345000));
  ROW(cudaFree(d));
  ROW(cudaFree(d));
  ROW(cudaFreeHost(nullptr));
  ROW(cudaFreeHost(h));
  d = device();
  ROW(cudaFreeHost(d));
  ROW(cudaFreeAsync(nullptr, 0));
  ROW(cudaFreeAsync(h, 0));
  ROW(cudaMemGetInfo(nullptr, &b));
  ROW(cudaMemGetInfo(&a, nullptr));
  ROW(cudaHostGetDevicePointer(&p, h, 0));
  ROW(cudaHostGetDevicePointer(&p, d, 0));
  cudaPointerAttributes attributes;
  ROW(cudaPointerGetAttributes(&attributes, h));
  printf("%d\n", attributes.type);
  ROW(cudaPointerGetAttributes(&attributes, nullptr));
  printf("%d\n", attributes.type);
  ROW(cudaPointerGetAttributes(nullptr, d));
}

static void handles() {
  cudaEvent_t a, b, untimed, recorded;
  cudaStream_t s;
  float ms = -1;
  int n;
  cudaEventCreate(&a), cudaEventCreate(&b), cudaEventCreate(&recorded), cudaStreamCreate(&s);
  cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming);
  cudaEventRecord(recorded, s);
  STATE("events: a and b were never recorded, untimed has no timing");
  ROW(cudaEventElapsedTime(&ms, a, b));
  ROW(cudaEventElapsedTime(&ms, recorded, b));
  ROW(cudaEventElapsedTime(&ms, recorded, recorded));
  cudaEventRecord(untimed, s);
  ROW(cudaEventElapsedTime(&ms, untimed, untimed));
  ROW(cudaEventElapsedTime(nullptr, recorded, recorded));
  ROW(cudaEventElapsedTime(&ms, nullptr, recorded));
  ROW(cudaEventQuery(a));
  ROW(cudaEventSynchronize(a));
  ROW(cudaStreamWaitEvent(s, a, 0));
  ROW(cudaStreamWaitEvent(s, nullptr, 0));
  ROW(cudaStreamWaitEvent(s, recorded, 7));
  ROW(cudaEventRecord(nullptr, s));
  ROW(cudaEventQuery(nullptr));
  ROW(cudaEventSynchronize(nullptr));
  ROW(cudaEventDestroy(nullptr));
  ROW(cudaEventCreate((cudaEvent_t *)nullptr));
  ROW(cudaEventCreateWithFlags(&a, 64));
  ROW(cudaStreamCreate((cudaStream_t *)nullptr));
  ROW(cudaStreamCreateWithFlags(&s, 7));
  ROW(cudaStreamCreateWithPriority(&s, 7, 0));
  ROW(cudaStreamDestroy(nullptr));
  ROW(cudaStreamDestroy(cudaStreamLegacy));
  ROW(cudaStreamDestroy(cudaStreamPerThread));
  ROW(cudaStreamQuery(s));
  ROW(cudaStreamGetPriority(s, nullptr));
  ROW(cudaStreamGetFlags(s, nullptr));
  ROW(cudaStreamAddCallback(s, nullptr, nullptr, 0));
  ROW(cudaLaunchHostFunc(s, nullptr, nullptr));
  ROW(cudaGetDeviceCount(nullptr));
  ROW(cudaGetDevice(nullptr));
  ROW(cudaSetDevice(99));
  ROW(cudaSetDevice(-1));
  ROW(cudaDeviceGetAttribute(&n, cudaDevAttrWarpSize, 99));
  ROW(cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, 0));
  ROW(cudaDeviceGetAttribute(&n, (cudaDeviceAttr)100000, 0));
  ROW(cudaGetDeviceProperties((cudaDeviceProp *)nullptr, 0));
  ROW(cudaRuntimeGetVersion(nullptr));
  ROW(cudaDriverGetVersion(nullptr));
  ROW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, one, 0, 0));
  ROW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, one, 2048, 0));
  printf("%d\n", n);
  ROW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, one, 32, 0));
  ROW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, (void (*)(int *))&ms, 32, 0));
}

static void unknown() {
  cudaEvent_t e;
  cudaStream_t s, garbage = static_cast<cudaStream_t>(calloc(1, 4096));
  cudaGraph_t g, gone;
  cudaGraphExec_t exec, exec_gone;
  cudaEventCreate(&e), cudaStreamCreate(&s), cudaGraphCreate(&g, 0), cudaGraphCreate(&gone, 0);
  cudaGraphInstantiate(&exec, g, 0), cudaGraphInstantiate(&exec_gone, g, 0);
  cudaGraphDestroy(gone), cudaGraphExecDestroy(exec_gone);
  ROW(cudaStreamSynchronize(garbage));
  ROW(cudaStreamWaitEvent(garbage, e, 0));
  ROW(cudaStreamBeginCapture(garbage, cudaStreamCaptureModeRelaxed));
  ROW(cudaGraphLaunch((cudaGraphExec_t)garbage, s));
  ROW(cudaGraphLaunch(exec_gone, s));
  ROW(cudaGraphLaunch(nullptr, s));
  ROW(cudaGraphInstantiate(&exec, (cudaGraph_t)garbage, 0));
  ROW(cudaGraphInstantiate(&exec, nullptr, 0));
  ROW(cudaGraphInstantiate(nullptr, g, 0));
  ROW(cudaGraphDestroy(gone));
  ROW(cudaGraphDestroy(nullptr));
  ROW(cudaGraphExecDestroy(exec_gone));
  ROW(cudaGraphExecDestroy(nullptr));
  ROW(cudaGraphCreate(nullptr, 0));
  ROW(cudaGraphAddEmptyNode(nullptr, g, nullptr, 0));
  ROW(cudaGraphGetNodes(nullptr, nullptr, nullptr));
  ROW(cudaGraphClone(nullptr, g));
}

// stale makes call number which. With a GPU the process dies.
static int stale(int which) {
  cudaEvent_t e;
  cudaStream_t s;
  float ms;
  void *nowhere = (void *)0x12345000;
  cudaEventCreate(&e), cudaStreamCreate(&s), cudaEventDestroy(e), cudaStreamDestroy(s);
  switch (which) {
  case 0: ROW(cudaEventDestroy(e)); break;
  case 1: ROW(cudaEventRecord(e, nullptr)); break;
  case 2: ROW(cudaEventSynchronize(e)); break;
  case 3: ROW(cudaEventElapsedTime(&ms, e, e)); break;
  case 4: ROW(cudaStreamDestroy(s)); break;
  case 5: ROW(cudaStreamSynchronize(s)); break;
  case 6: ROW(cudaMemsetAsync(device(), 0, 64, s)); break;
  case 7: one<<<1, 1, 0, s>>>(device()), ROW(cudaPeekAtLastError()); break;
  case 8: ROW(cudaStreamSynchronize((cudaStream_t)nowhere)); break;
  case 9: ROW(cudaEventQuery((cudaEvent_t)nowhere)); break;
  case 10: ROW(cudaGetSymbolAddress(nullptr, global)); break;
  case 11: ROW(cudaMemcpy(device(), nowhere, 64, cudaMemcpyHostToDevice)); break;
  case 12: ROW(cudaMemcpy(nowhere, device(), 64, cudaMemcpyDeviceToHost)); break;
  case 13: ROW(cudaMemcpy(nowhere, nowhere, 64, cudaMemcpyHostToHost)); break;
  case 14: ROW(cudaMemcpy((void *)"constant", device(), 4, cudaMemcpyDeviceToHost)); break;
  default: return 2;
  }
  return 0;
}

__global__ void wrong(int which, int *p) {
  extern __shared__ int s[];
  volatile int *v = p;
  switch (which) {
  case 0: v[0] = *(volatile int *)nullptr; break;
  case 1: *(volatile double *)(p + 1) = 1; break;
  case 2: __trap(); break;
  case 3: assert(which == 0); break;
  case 4: v[0] = ((volatile int *)s)[1 << 16]; break;
  case 5: *(volatile int *)&constant[1] = 1; break; // the compiler makes this a trap
  case 6: ((volatile int *)s)[threadIdx.x] = *(volatile int *)((char *)s + 2); break;
  case 7: v[0] = 1 / (which - 7); break;
  }
}
static int fault(int which) {
  int *p = device();
  wrong<<<1, 32, 256>>>(which, p);
  cudaError_t e = cudaDeviceSynchronize();
  printf("%d: %s\n", which, cudaGetErrorName(e));
  ROW(cudaMemset(p, 0, 4));
  return 0;
}

static void in_function(void *p) {
  int **d = static_cast<int **>(p);
  ROW(cudaMalloc(d, 4));
  ROW(cudaMemset(*d, 0, 4));
  ROW(cudaDeviceSynchronize());
  ROW(cudaEventQuery(nullptr));
  ROW(cudaStreamQuery(nullptr));
  one<<<1, 1>>>(*d);
  ROW(cudaPeekAtLastError());
  int n;
  ROW(cudaGetDevice(&n));
  ROW(cudaGetDeviceCount(&n));
  size_t a, b;
  ROW(cudaMemGetInfo(&a, &b));
  cudaEvent_t e;
  ROW(cudaEventCreate(&e));
  ROW(cudaFree(nullptr));
}

static void functions() {
  int *d = nullptr;
  cudaStream_t s;
  cudaStreamCreate(&s);
  cudaError_t e = cudaLaunchHostFunc(s, in_function, &d);
  cudaStreamSynchronize(s);
  printf("cudaLaunchHostFunc: %s\n", cudaGetErrorName(e));
}

static void captures() {
  cudaStream_t s, t, u;
  cudaEvent_t e, f;
  cudaGraph_t g;
  cudaGraphExec_t exec;
  int *d = device();
  cudaStreamCreate(&s), cudaStreamCreate(&t), cudaStreamCreateWithFlags(&u, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaEventCreateWithFlags(&f, cudaEventDisableTiming);
  auto begin = [&] { cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaEventRecord(e, s), cudaStreamWaitEvent(t, e, 0); };
  STATE("not capturing");
  ROW(cudaStreamEndCapture(s, &g));
  ROW(cudaStreamEndCapture(nullptr, &g));
  ROW(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed));
  ROW(cudaStreamBeginCapture(s, (cudaStreamCaptureMode)9));
  STATE("t joined the capture of s and did nothing");
  begin();
  ROW(cudaStreamEndCapture(s, &g));
  STATE("t joined the capture of s and worked");
  begin();
  one<<<1, 1, 0, t>>>(d);
  ROW(cudaStreamEndCapture(s, &g));
  STATE("t joined, worked, and s waited for it");
  begin();
  one<<<1, 1, 0, t>>>(d);
  cudaEventRecord(f, t), cudaStreamWaitEvent(s, f, 0);
  ROW(cudaStreamEndCapture(s, &g));
  STATE("t joined, worked, s waited for it, t worked again");
  begin();
  one<<<1, 1, 0, t>>>(d);
  cudaEventRecord(f, t), cudaStreamWaitEvent(s, f, 0);
  one<<<1, 1, 0, t>>>(d);
  ROW(cudaStreamEndCapture(s, &g));
  STATE("t joined, u joined t, t waited for u, s for t");
  begin();
  cudaEventRecord(f, t), cudaStreamWaitEvent(u, f, 0);
  one<<<1, 1, 0, u>>>(d);
  cudaEventRecord(f, u), cudaStreamWaitEvent(t, f, 0);
  cudaEventRecord(f, t), cudaStreamWaitEvent(s, f, 0);
  ROW(cudaStreamEndCapture(s, &g));
  STATE("t joined the capture and ends it");
  begin();
  ROW(cudaStreamEndCapture(t, &g));
  ROW(cudaStreamEndCapture(s, &g));
  STATE("begun twice");
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  ROW(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  ROW(cudaStreamEndCapture(s, &g));
  STATE("destroyed while it captures");
  cudaStream_t w;
  cudaStreamCreate(&w);
  cudaStreamBeginCapture(w, cudaStreamCaptureModeRelaxed);
  ROW(cudaStreamDestroy(w));
  STATE("s captures, relaxed");
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  one<<<1, 1, 0, s>>>(d);
  cudaStreamEndCapture(s, &g), cudaGraphInstantiate(&exec, g, 0);
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  ROW(cudaGraphLaunch(exec, s));
  ROW(cudaStreamEndCapture(s, &g));
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  cudaEventRecord(e, s);
  ROW(cudaEventQuery(e));
  ROW(cudaStreamEndCapture(s, &g));
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  ROW(cudaMemcpyAsync(d, nullptr, 64, cudaMemcpyHostToDevice, s));
  ROW(cudaStreamEndCapture(s, &g));
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  ROW(cudaMemcpyAsync(d, &exec, 64, (cudaMemcpyKind)9, s));
  ROW(cudaStreamEndCapture(s, &g));
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  one<<<0, 1, 0, s>>>(d);
  ROW(cudaGetLastError());
  ROW(cudaStreamEndCapture(s, &g));
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  ROW(cudaStreamWaitEvent(u, e, 0));
  ROW(cudaStreamEndCapture(s, &g));
  ROW(cudaStreamEndCapture(s, nullptr));
  STATE("an event of an ended capture");
  begin();
  cudaEventRecord(f, t), cudaStreamWaitEvent(s, f, 0);
  cudaStreamEndCapture(s, &g);
  ROW(cudaStreamWaitEvent(t, f, 0));
  ROW(cudaEventSynchronize(f));
  ROW(cudaEventQuery(f));
}

static void limits() {
  size_t n;
  for (auto limit : {cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize})
    cudaDeviceGetLimit(&n, limit), printf("%zu\n", n);
  ROW(cudaDeviceGetLimit(nullptr, cudaLimitStackSize));
  ROW(cudaDeviceGetLimit(&n, (cudaLimit)99));
  ROW(cudaDeviceSetLimit((cudaLimit)99, 1));
  ROW(cudaDeviceGetLimit(&n, cudaLimitDevRuntimeSyncDepth));
  ROW(cudaDeviceGetLimit(&n, cudaLimitDevRuntimePendingLaunchCount));
  printf("%zu\n", n);
  ROW(cudaDeviceGetLimit(&n, cudaLimitMaxL2FetchGranularity));
  printf("%zu\n", n);
  ROW(cudaDeviceSetLimit(cudaLimitMaxL2FetchGranularity, 32));
  ROW(cudaDeviceSetLimit(cudaLimitStackSize, 3000));
  cudaDeviceGetLimit(&n, cudaLimitStackSize), printf("%zu\n", n);
  ROW(cudaDeviceSetLimit(cudaLimitStackSize, 16));
  cudaDeviceGetLimit(&n, cudaLimitStackSize), printf("%zu\n", n);
  ROW(cudaDeviceSetLimit(cudaLimitStackSize, 1 << 20));
  ROW(cudaDeviceSetLimit(cudaLimitStackSize, 1024));
  ROW(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1000));
  cudaDeviceGetLimit(&n, cudaLimitMallocHeapSize), printf("%zu\n", n);
  ROW(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
  ROW(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 1 << 20));
  cudaDeviceGetLimit(&n, cudaLimitPrintfFifoSize), printf("%zu\n", n);
  int **p = (int **)device(8), *q, h;
  STATE("after a kernel without malloc and printf");
  one<<<1, 1>>>((int *)p), cudaDeviceSynchronize();
  ROW(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 2 << 20));
  ROW(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 32 << 20));
  STATE("after a kernel with printf");
  say<<<1, 1>>>(), cudaDeviceSynchronize();
  ROW(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 4 << 20));
  ROW(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
  STATE("after a kernel with malloc");
  grab<<<1, 1>>>(p, 9 << 20), cudaMemcpy(&q, p, 8, cudaMemcpyDeviceToHost), printf("%d\n", q != nullptr);
  ROW(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 8 << 20));
  ROW(cudaDeviceSetLimit(cudaLimitStackSize, 2048));
  STATE("q is memory of device malloc");
  ROW(cudaMemcpy(&h, q, 4, cudaMemcpyDeviceToHost));
  ROW(cudaMemcpy(&h, q, 4, cudaMemcpyDefault));
  ROW(cudaMemcpy(q, &h, 4, cudaMemcpyHostToDevice));
  ROW(cudaMemset(q, 0, 4));
  ROW(cudaFree(q));
  cudaPointerAttributes a;
  ROW(cudaPointerGetAttributes(&a, q));
  printf("%d\n", a.type);
}

static void stack(int depth, int bytes) {
  int *d = device(), h = 0;
  cudaMemset(d, 0, 4);
  if (bytes) ROW(cudaDeviceSetLimit(cudaLimitStackSize, bytes));
  recursion<<<1, 1>>>(depth, d);
  printf("depth %d, stack %d: ", depth, bytes);
  cudaError_t e = cudaMemcpy(&h, d, 4, cudaMemcpyDeviceToHost);
  printf("%s, %d\n", cudaGetErrorName(e), h);
}

static void launches() {
  int *d = device();
  cudaFuncAttributes a;
#define LAUNCH(...) (__VA_ARGS__, printf("%s: %s\n", #__VA_ARGS__, cudaGetErrorName(cudaGetLastError())), cudaDeviceSynchronize(), cudaGetLastError())
  LAUNCH(dynamic_only<<<1, 32, 49152>>>(d));
  LAUNCH(dynamic_only<<<1, 32, 49153>>>(d));
  ROW(cudaFuncSetAttribute(dynamic_only, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304));
  LAUNCH(dynamic_only<<<1, 32, 98304>>>(d));
  ROW(cudaFuncSetAttribute(dynamic_only, cudaFuncAttributeMaxDynamicSharedMemorySize, 4096));
  LAUNCH(dynamic_only<<<1, 32, 4096>>>(d));
  LAUNCH(dynamic_only<<<1, 32, 8192>>>(d));
  LAUNCH(dynamic_only<<<1, 32, 49152>>>(d));
  LAUNCH(dynamic_only<<<1, 32, 98304>>>(d));
  ROW(cudaFuncSetAttribute(dynamic_only, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  LAUNCH(dynamic_only<<<1, 32, 232448>>>(d));
  ROW(cudaFuncSetAttribute(dynamic_only, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449));
  ROW(cudaFuncSetAttribute(dynamic_only, cudaFuncAttributeMaxDynamicSharedMemorySize, -1));
  ROW(cudaFuncGetAttributes(&a, dynamic_only));
  printf("%d\n", a.maxDynamicSharedSizeBytes);
  ROW(cudaFuncGetAttributes(&a, both));
  printf("%d\n", a.maxDynamicSharedSizeBytes);
  LAUNCH(both<<<1, 32, 40960>>>(d));
  LAUNCH(both<<<1, 32, 40961>>>(d));
  ROW(cudaFuncSetAttribute(both, cudaFuncAttributeMaxDynamicSharedMemorySize, 49152));
  LAUNCH(both<<<1, 32, 49152>>>(d));
  ROW(cudaFuncSetAttribute(both, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  ROW(cudaFuncSetAttribute(both, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448 - 8192));
  LAUNCH(both<<<1, 32, 232448 - 8192>>>(d));
  LAUNCH(both<<<1, 32, 232448>>>(d));
  ROW(cudaFuncSetAttribute(both, cudaFuncAttributePreferredSharedMemoryCarveout, 101));
  ROW(cudaFuncSetAttribute(both, (cudaFuncAttribute)99, 1));
  ROW(cudaFuncGetAttributes(nullptr, both));
  ROW(cudaFuncGetAttributes(&a, &d));
  ROW(cudaFuncSetAttribute(&d, cudaFuncAttributeMaxDynamicSharedMemorySize, 1));
  LAUNCH(one<<<0, 1>>>(d));
  LAUNCH(one<<<dim3(1, 65536), 1>>>(d));
  LAUNCH(one<<<1, 0>>>(d));
  LAUNCH(one<<<1, 1025>>>(d));
  LAUNCH(one<<<1, dim3(1, 1, 65)>>>(d));
  LAUNCH(one<<<1, 1, ~(size_t)0>>>(d));
  void *none[1] = {&d};
  ROW(cudaLaunchKernel((void *)&d, dim3(1), dim3(1), none, 0, 0));
  ROW(cudaLaunchKernel((void *)nullptr, dim3(1), dim3(1), none, 0, 0));
  ROW(cudaLaunchCooperativeKernel((void *)one, dim3(1 << 20), dim3(1024), none, 0, 0));
  ROW(cudaPeekAtLastError());
  STATE("a copy that succeeds does not clear the error of a launch");
  one<<<0, 1>>>(d);
  cudaMemset(d, 0, 4);
  printf("%s\n", cudaGetErrorName(cudaPeekAtLastError()));
  printf("%s\n", cudaGetErrorName(cudaGetLastError()));
  printf("%s\n", cudaGetErrorName(cudaGetLastError()));
}

int main(int argc, char **argv) {
  static const struct { const char *name; void (*run)(); } sections[] = {{"copies", copies}, {"symbols", symbols},
    {"memory", memory}, {"handles", handles}, {"unknown", unknown}, {"functions", functions}, {"captures", captures},
    {"limits", limits}, {"launches", launches}};
  int a = argc > 2 ? atoi(argv[2]) : 0, b = argc > 3 ? atoi(argv[3]) : 0;
  setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  if (argc > 1) {
    for (auto &section : sections)
      if (!strcmp(argv[1], section.name)) return section.run(), 0;
    if (!strcmp(argv[1], "stale")) return stale(a);
    if (!strcmp(argv[1], "fault")) return fault(a);
    if (!strcmp(argv[1], "stack")) return stack(a, b), 0;
    return 2;
  }
  auto run = [&](const char *name, int first, int second) {
    char command[512];
    snprintf(command, sizeof command, "%s %s %d %d 2>/dev/null", argv[0], name, first, second);
    return system(command);
  };
  for (auto &section : sections) STATE(section.name), run(section.name, 0, 0);
  STATE("stack");
  for (int bytes : {0, 512, 2048, 16384})
    for (int more : {-1, 0}) run("stack", (bytes ? bytes : 1024) / 16 + more, bytes);
  STATE("faults");
  for (int which = 0; which < 8; which++) run("fault", which, 0);
}
