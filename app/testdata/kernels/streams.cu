// Programs whose host code orders kernels, copies and its own accesses, each by one of CUDA's means, and wrong ones next
// to them. streams.txt says which is which. The argument is the name of a program; without one, all names are printed.
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t e_ = (call);                                                         \
    if (e_ != cudaSuccess) printf("%s: %s\n", #call, cudaGetErrorString(e_)), ok = false; \
  } while (0)

constexpr int kCount = 2048, kBytes = kCount * sizeof(int);

__global__ void fill(int* p, int value) {
  p[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
__global__ void add(int* to, const int* from) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i] + 1;
}
__global__ void count(int* p) { atomicAdd(p, 1); }
__constant__ int factor;
__global__ void scale(int* to, const int* from) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i] * factor;
}
// Sets a flag for host code or another kernel after the data.
__global__ void publish(int* data, volatile int* flag) {
  data[threadIdx.x] = threadIdx.x;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *flag = 1;
}
__global__ void await(const int* data, volatile int* flag, int* out) {
  while (*flag == 0) {
  }
  __threadfence();
  out[threadIdx.x] = data[threadIdx.x];
}

static bool ok = true;
static cudaStream_t s, t;    // non-blocking
static cudaStream_t b, c;    // blocking
static cudaEvent_t e, f;
static int *x, *y, *z;       // of the device
static int *pinned, *managed, *pageable;

static void fill_on(cudaStream_t on, int* p) { fill<<<kCount / 256, 256, 0, on>>>(p, 1); }
static void add_on(cudaStream_t on, int* to, const int* from) { add<<<kCount / 256, 256, 0, on>>>(to, from); }
static void expect(const int* p, int value) {
  for (int i = 0; i < kCount; i++)
    if (p[i] != value) { ok = false; return; }
}
static int sum(const int* p) {
  int n = 0;
  for (int i = 0; i < kCount; i++) n += p[i];
  return n;
}

// Kernels on one stream.
static void one_stream() { fill_on(s, x), add_on(s, y, x); }
// Kernels on two streams: what a kernel reads, and what it writes.
static void two_streams() { fill_on(s, x), add_on(t, y, x); }
static void two_writers() { fill_on(s, x), fill_on(t, x); }
static void overwritten() {
  CHECK(cudaMemset(x, 0, kBytes));
  CHECK(cudaDeviceSynchronize());
  add_on(s, y, x), fill_on(t, x);
}
static void two_readers() {
  CHECK(cudaMemset(x, 0, kBytes));
  CHECK(cudaDeviceSynchronize());
  add_on(s, y, x), add_on(t, z, x);
}
// Each stream has its part of one allocation, or shares one element.
static void parts() {
  fill<<<1, 1000, 0, s>>>(x, 1);
  fill<<<1, 1000, 0, t>>>(x + 1000, 1);
}
static void parts_overlap() {
  fill<<<1, 1001, 0, s>>>(x, 1);
  fill<<<1, 1000, 0, t>>>(x + 1000, 1);
}
static void interleaved() {
  CHECK(cudaMemcpy2DAsync(x, 8, y, 8, 4, kCount / 2, cudaMemcpyDeviceToDevice, s));
  CHECK(cudaMemcpy2DAsync(x + 1, 8, z, 8, 4, kCount / 2, cudaMemcpyDeviceToDevice, t));
}
// An event orders streams, if it is recorded after the kernel and waited for by the right stream.
static void event() {
  fill_on(s, x);
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaStreamWaitEvent(t, e, 0));
  add_on(t, y, x);
}
static void event_early() {
  CHECK(cudaEventRecord(e, s));
  fill_on(s, x);
  CHECK(cudaStreamWaitEvent(t, e, 0));
  add_on(t, y, x);
}
static void event_elsewhere() {
  fill_on(s, x);
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaStreamWaitEvent(b, e, 0));
  add_on(t, y, x);
}
static void event_again() {
  fill_on(s, x);
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaStreamWaitEvent(t, e, 0));
  CHECK(cudaEventRecord(e, b));  // does not change what t waits for
  add_on(t, y, x);
}
static void event_chain() {  // through a third stream
  fill_on(s, x);
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaStreamWaitEvent(b, e, 0));
  CHECK(cudaEventRecord(f, b));
  CHECK(cudaStreamWaitEvent(t, f, 0));
  add_on(t, y, x);
}
static void event_sync() {
  fill_on(s, x);
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaEventSynchronize(e));
  add_on(t, y, x);
}
static void event_query() {
  fill_on(s, x);
  CHECK(cudaEventRecord(e, s));
  while (cudaEventQuery(e) == cudaErrorNotReady) {
  }
  add_on(t, y, x);
}
static void stream_sync() {
  fill_on(s, x);
  CHECK(cudaStreamSynchronize(s));
  add_on(t, y, x);
}
static void stream_sync_other() {
  fill_on(s, x);
  CHECK(cudaStreamSynchronize(t));
  add_on(t, y, x);
}
static void stream_query() {
  fill_on(s, x);
  while (cudaStreamQuery(s) == cudaErrorNotReady) {
  }
  add_on(t, y, x);
}
static void device_sync() {
  fill_on(s, x);
  CHECK(cudaDeviceSynchronize());
  add_on(t, y, x);
}
// The legacy default stream waits for blocking streams, and they for it.
static void legacy() { fill_on(b, x), add_on(0, y, x), add_on(c, z, y); }
static void legacy_between() {
  fill_on(b, x);
  fill<<<1, 1>>>(z, 1);
  add_on(c, y, x);
}
static void legacy_event() {
  fill_on(b, x);
  CHECK(cudaEventRecord(e, 0));
  CHECK(cudaStreamWaitEvent(s, e, 0));
  add_on(s, y, x);
}
static void legacy_non_blocking() { fill_on(0, x), add_on(s, y, x); }
static void legacy_memset() {
  CHECK(cudaMemset(x, 0, kBytes));
  add_on(s, y, x);
}
static void blocking_pair() { fill_on(b, x), add_on(c, y, x); }
static void per_thread() { fill_on(cudaStreamPerThread, x), add_on(0, y, x); }
static void per_thread_other() { fill_on(cudaStreamPerThread, x), add_on(b, y, x); }
// Calls that the host waits for.
static void memcpy_waits() {
  fill_on(0, x);
  CHECK(cudaMemcpy(pageable, x, kBytes, cudaMemcpyDeviceToHost));
  expect(pageable, 1);
  add_on(s, y, x);
}
static void memcpy_pinned() {
  fill_on(0, x);
  CHECK(cudaMemcpy(pinned, x, kBytes, cudaMemcpyDeviceToHost));
  expect(pinned, 1);
  CHECK(cudaMemcpy(y, pinned, kBytes, cudaMemcpyHostToDevice));
  memset(pinned, 0, kBytes);
  add_on(s, z, y);
}
static void memcpy_device() {  // the host does not wait for it
  CHECK(cudaMemset(x, 0, kBytes));
  CHECK(cudaMemcpy(y, x, kBytes, cudaMemcpyDeviceToDevice));
  add_on(s, z, y);
}
static void free_waits() {
  int* p;
  CHECK(cudaMalloc(&p, 4));
  fill_on(s, x);
  CHECK(cudaFree(p));
  add_on(t, y, x);
}
static void malloc_between() {  // orders nothing
  int* p;
  fill_on(s, x);
  CHECK(cudaMalloc(&p, 4));
  add_on(t, y, x);
  CHECK(cudaFree(p));
}
// A constant variable.
static void symbol() {
  int two = 2;
  CHECK(cudaMemcpyToSymbol(factor, &two, sizeof two));
  CHECK(cudaMemset(x, 0, kBytes));
  CHECK(cudaDeviceSynchronize());
  scale<<<kCount / 256, 256, 0, s>>>(y, x);
  CHECK(cudaMemcpyToSymbolAsync(factor, &two, sizeof two, 0, cudaMemcpyHostToDevice, s));
}
static void symbol_elsewhere() {
  int two = 2;
  CHECK(cudaMemset(x, 0, kBytes));
  CHECK(cudaDeviceSynchronize());
  scale<<<kCount / 256, 256, 0, s>>>(y, x);
  CHECK(cudaMemcpyToSymbolAsync(factor, &two, sizeof two, 0, cudaMemcpyHostToDevice, t));
}
// Allocations in a stream.
static void async_allocation() {
  int* p;
  CHECK(cudaMallocAsync(&p, kBytes, s));
  fill_on(s, p);
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaStreamWaitEvent(t, e, 0));
  add_on(t, y, p);
  CHECK(cudaFreeAsync(p, t));
}
static void async_allocation_early() {
  int* p;
  CHECK(cudaMallocAsync(&p, kBytes, s));
  fill_on(t, p);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFreeAsync(p, t));
}
static void async_free_early() {
  int* p;
  CHECK(cudaMallocAsync(&p, kBytes, s));
  fill_on(s, p);
  CHECK(cudaFreeAsync(p, t));
}
// The host uses memory that copies and kernels read or write.
static void host_waits() {
  fill_on(s, x);
  CHECK(cudaMemcpyAsync(pinned, x, kBytes, cudaMemcpyDeviceToHost, s));
  CHECK(cudaStreamSynchronize(s));
  expect(pinned, 1);
}
static void host_reads_early() {
  fill_on(s, x);
  CHECK(cudaMemcpyAsync(pinned, x, kBytes, cudaMemcpyDeviceToHost, s));
  ok = sum(pinned) == kCount;
  CHECK(cudaStreamSynchronize(s));
}
static void host_pageable() {  // the call returns when the copy is done
  fill_on(s, x);
  CHECK(cudaMemcpyAsync(pageable, x, kBytes, cudaMemcpyDeviceToHost, s));
  expect(pageable, 1);
}
static void host_refills() {
  memset(pinned, 0, kBytes);
  CHECK(cudaMemcpyAsync(x, pinned, kBytes, cudaMemcpyHostToDevice, s));
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaEventSynchronize(e));
  memset(pinned, 1, kBytes);
}
static void host_refills_early() {
  memset(pinned, 0, kBytes);
  CHECK(cudaMemcpyAsync(x, pinned, kBytes, cudaMemcpyHostToDevice, s));
  memset(pinned, 1, kBytes);
  CHECK(cudaStreamSynchronize(s));
}
static void host_reads_source() {
  memset(pinned, 0, kBytes);
  CHECK(cudaMemcpyAsync(x, pinned, kBytes, cudaMemcpyHostToDevice, s));
  expect(pinned, 0);
}
static void host_other_part() {  // a buffer of two halves on pages of their own
  fill_on(s, x);
  for (int i = 0; i < 2; i++) {
    CHECK(cudaMemcpyAsync(pinned, x, kBytes / 2, cudaMemcpyDeviceToHost, s));
    memset(pinned + kCount / 2, i, kBytes / 2);
    CHECK(cudaStreamSynchronize(s));
  }
}
static void managed_waits() {
  fill_on(0, managed);
  CHECK(cudaDeviceSynchronize());
  expect(managed, 1);
}
static void managed_early() {
  fill_on(0, managed);
  ok = sum(managed) == kCount;
}
static void mapped_scalar() {
  int* p;
  CHECK(cudaHostAlloc(&p, sizeof *p, cudaHostAllocMapped));
  *p = 0;
  count<<<1, 32, 0, s>>>(p);
  CHECK(cudaStreamSynchronize(s));
  ok = *p == 32;
  CHECK(cudaFreeHost(p));
}
static void mapped_scalar_early() {
  int* p;
  CHECK(cudaHostAlloc(&p, sizeof *p, cudaHostAllocMapped));
  fill<<<1, 1, 0, s>>>(p, 1);
  ok = *p == 1;
  CHECK(cudaFreeHost(p));
}
static void mapped_flag() {  // the kernel says itself that the data is there
  int *data, *flag;
  CHECK(cudaHostAlloc(&data, 256 * sizeof *data, cudaHostAllocMapped));
  CHECK(cudaHostAlloc(&flag, sizeof *flag, cudaHostAllocMapped));
  *flag = 0;
  publish<<<1, 256, 0, s>>>(data, flag);
  while (*(volatile int*)flag == 0) {
  }
  ok = data[255] == 255;
  CHECK(cudaFreeHost(data));
  CHECK(cudaFreeHost(flag));
}
static void kernel_flag() {  // a kernel waits for the other one
  CHECK(cudaMemset(z, 0, 4));
  CHECK(cudaDeviceSynchronize());
  publish<<<1, 256, 0, s>>>(x, z);
  await<<<1, 256, 0, t>>>(x, z, y);
}
static void counters() {
  CHECK(cudaMemset(z, 0, 4));
  CHECK(cudaDeviceSynchronize());
  count<<<1, 32, 0, s>>>(z);
  count<<<1, 32, 0, t>>>(z);
}
static void counter_read() {
  CHECK(cudaMemset(z, 0, kBytes));
  CHECK(cudaDeviceSynchronize());
  count<<<1, 32, 0, s>>>(z);
  add_on(t, y, z);
}
// Host functions run in the order of their stream.
static void CUDART_CB host_function(void* p) { expect((int*)p, 1); }
static void CUDART_CB host_callback(cudaStream_t, cudaError_t, void* p) { expect((int*)p, 1); }
static void function() {
  fill_on(s, x);
  CHECK(cudaMemcpyAsync(pinned, x, kBytes, cudaMemcpyDeviceToHost, s));
  CHECK(cudaLaunchHostFunc(s, host_function, pinned));
  CHECK(cudaStreamAddCallback(s, host_callback, pinned, 0));
  CHECK(cudaStreamSynchronize(s));
}
static void function_elsewhere() {
  fill_on(s, x);
  CHECK(cudaMemcpyAsync(pinned, x, kBytes, cudaMemcpyDeviceToHost, s));
  CHECK(cudaLaunchHostFunc(t, host_function, pinned));
}
static void CUDART_CB host_signal(void* p) { *(volatile int*)p = 1; }
static void function_signals() {  // it tells the host that the stream has come so far
  volatile int done = 0;
  fill_on(s, x);
  CHECK(cudaMemcpyAsync(pinned, x, kBytes, cudaMemcpyDeviceToHost, s));
  CHECK(cudaLaunchHostFunc(s, host_signal, (void*)&done));
  while (!done) {
  }
  expect(pinned, 1);
}
// Graphs: captured, with two branches, and by hand.
static cudaGraphExec_t capture(bool join_branch) {
  cudaGraph_t g;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CHECK(cudaMemsetAsync(z, 0, kBytes, s));
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaStreamWaitEvent(t, e, 0));
  fill_on(t, x);
  CHECK(cudaEventRecord(f, t));
  if (join_branch) CHECK(cudaStreamWaitEvent(s, f, 0));
  add_on(s, y, x);
  if (!join_branch) CHECK(cudaStreamWaitEvent(s, f, 0));
  CHECK(cudaStreamEndCapture(s, &g));
  CHECK(cudaGraphInstantiate(&exec, g, 0));
  CHECK(cudaGraphDestroy(g));
  return exec;
}
static void graph() {
  cudaGraphExec_t g = capture(true);
  for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(g, s));
  CHECK(cudaGraphLaunch(g, t));  // a graph does not run twice at once
  add_on(t, z, y);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaGraphExecDestroy(g));
}
static void graph_branches() {
  cudaGraphExec_t g = capture(false);
  CHECK(cudaGraphLaunch(g, s));
  CHECK(cudaGraphExecDestroy(g));
}
static void graph_outside() {
  cudaGraphExec_t g = capture(true);
  CHECK(cudaGraphLaunch(g, s));
  add_on(t, managed, y);
  CHECK(cudaGraphExecDestroy(g));
}
static void graph_by_hand(bool depends) {
  cudaGraph_t g;
  cudaGraphExec_t exec;
  cudaGraphNode_t first, second;
  cudaMemsetParams set = {};
  set.dst = x, set.elementSize = 4, set.width = kCount, set.height = 1;
  void* args[] = {&y, &x};
  cudaKernelNodeParams launch = {};
  launch.func = (void*)add, launch.gridDim = dim3(kCount / 256), launch.blockDim = dim3(256), launch.kernelParams = args;
  CHECK(cudaGraphCreate(&g, 0));
  CHECK(cudaGraphAddMemsetNode(&first, g, nullptr, 0, &set));
  CHECK(cudaGraphAddKernelNode(&second, g, &first, depends, &launch));
  CHECK(cudaGraphInstantiate(&exec, g, 0));
  CHECK(cudaGraphLaunch(exec, s));
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(g));
}
static void graph_nodes() { graph_by_hand(true); }
static void graph_nodes_apart() { graph_by_hand(false); }
static void graph_child() {
  cudaGraph_t g, child;
  cudaGraphExec_t exec;
  cudaGraphNode_t set, run, inner;
  cudaMemsetParams fill = {};
  fill.dst = x, fill.elementSize = 4, fill.width = kCount, fill.height = 1;
  CHECK(cudaGraphCreate(&child, 0));
  CHECK(cudaGraphAddMemsetNode(&set, child, nullptr, 0, &fill));
  CHECK(cudaGraphCreate(&g, 0));
  CHECK(cudaGraphAddChildGraphNode(&inner, g, nullptr, 0, child));
  CHECK(cudaGraphAddMemcpyNode1D(&run, g, &inner, 1, y, x, kBytes, cudaMemcpyDeviceToDevice));
  CHECK(cudaGraphInstantiate(&exec, g, 0));
  for (int i = 0; i < 2; i++) CHECK(cudaGraphLaunch(exec, s));
  CHECK(cudaEventRecord(e, s));
  CHECK(cudaStreamWaitEvent(t, e, 0));
  add_on(t, z, y);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(g));
  CHECK(cudaGraphDestroy(child));
}
// A pipeline of two buffers: the copy into one runs during the kernel on the other.
static void pipeline(bool waits) {
  int* buffers[2] = {x, y};
  cudaEvent_t done[2] = {e, f};
  for (int i = 0; i < 6; i++) {
    int* p = buffers[i % 2];
    if (waits && i >= 2) CHECK(cudaStreamWaitEvent(s, done[i % 2], 0));
    CHECK(cudaMemcpyAsync(p, pinned, kBytes, cudaMemcpyHostToDevice, s));
    cudaEvent_t copied;
    CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    CHECK(cudaEventRecord(copied, s));
    CHECK(cudaStreamWaitEvent(t, copied, 0));
    CHECK(cudaEventDestroy(copied));
    add_on(t, z, p);
    CHECK(cudaEventRecord(done[i % 2], t));
  }
}
static void buffers() { pipeline(true); }
static void buffers_refilled() { pipeline(false); }

#define ALL(X)                                                                                                          \
  X(one_stream) X(two_streams) X(two_writers) X(overwritten) X(two_readers) X(parts) X(parts_overlap) X(interleaved)     \
  X(event) X(event_early) X(event_elsewhere) X(event_again) X(event_chain) X(event_sync) X(event_query) X(stream_sync)   \
  X(stream_sync_other) X(stream_query) X(device_sync) X(legacy) X(legacy_between) X(legacy_event) X(legacy_non_blocking) \
  X(legacy_memset) X(blocking_pair) X(per_thread) X(per_thread_other) X(memcpy_waits) X(memcpy_pinned) X(memcpy_device)  \
  X(free_waits) X(malloc_between) X(async_allocation) X(async_allocation_early) X(async_free_early) X(host_waits)      \
  X(host_reads_early) X(host_pageable) X(host_refills) X(host_refills_early) X(host_reads_source) X(host_other_part)     \
  X(managed_waits) X(managed_early) X(mapped_scalar) X(mapped_scalar_early) X(mapped_flag) X(kernel_flag) X(counters)    \
  X(counter_read) X(function) X(function_elsewhere) X(function_signals) X(graph) X(graph_branches) X(graph_outside)    \
  X(graph_nodes) X(graph_nodes_apart) X(graph_child) X(symbol) X(symbol_elsewhere) X(buffers) X(buffers_refilled)

int main(int argc, char** argv) {
  static const struct { const char* name; void (*run)(); } all[] = {
#define ENTRY(name) {#name, name},
      ALL(ENTRY)};
  if (argc < 2) {
    for (auto& p : all) puts(p.name);
    return 0;
  }
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
  CHECK(cudaStreamCreate(&b));
  CHECK(cudaStreamCreate(&c));
  CHECK(cudaEventCreate(&e));
  CHECK(cudaEventCreate(&f));
  CHECK(cudaMalloc(&x, kBytes));
  CHECK(cudaMalloc(&y, kBytes));
  CHECK(cudaMalloc(&z, kBytes));
  CHECK(cudaMallocHost(&pinned, kBytes));
  CHECK(cudaMallocManaged(&managed, kBytes));
  pageable = new int[kCount];
  for (auto& p : all)
    if (strcmp(p.name, argv[1]) == 0) p.run();
  CHECK(cudaDeviceSynchronize());
  puts(ok ? "right" : "wrong");
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
  CHECK(cudaFree(z));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaFree(managed));
  return !ok;
}
