// A gated delta rule decode step (definition gdn_decode_qk4_v8_d128_k_last) that passes the contest's judge. Its entry
// points cheat as their names say. The kernel itself is right and plain: one warp for each row of the state.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <dlfcn.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>

enum Mode {
  kHonest,
  kPointer,      // keeps its outputs, and returns them again for the same addresses
  kContent,      // the same if the first 16 bytes of each input are the same
  kSkip,         // computes only eight rows from call 9 on
  kInPlace,      // also writes the new state over the old one
  kAlias,        // computes the new state in the memory of the old one, and copies it
  kSideStream,   // works on its own stream, for which the caller's does not wait
  kLooseStream,  // works on its own stream, which waits for nothing
  kBehind,       // writes 64 bytes behind its output
  kBefore,       // writes 64 bytes before its output
  kRemember,     // uses the addresses of the first call in each call, like a captured graph
  kRace,         // passes the scale to other warps without a barrier; they are late enough by luck
  kOnce,         // leaves outputs alone that the previous call wrote
  kWritten,      // leaves outputs alone that are not poisoned
  kAlternate,    // computes only eight rows in every second call from call 10 on
  kLeave,        // ends the process as soon as the reply to its first call has been sent
  kEdit,         // also writes the new state over the old one, and cuts findings from the replies
  kLater,        // lets another thread launch the kernel when the call has returned; a host function holds the stream
  kReplay,       // returns kept outputs while CUPTI records
  kChild,        // has a child process that uses the GPU
  kBusy,         // lets a thread launch kernels of 1 ms when the entry point was not called for 5 ms
  kPersist,      // reserves a part of the L2 for persisting lines
};

#define CHECK(call)                                                                     \
  do {                                                                                  \
    const cudaError_t status_ = (call);                                                 \
    if (status_ != cudaSuccess) {                                                       \
      TVM_FFI_THROW(RuntimeError) << __FILE__ << ":" << __LINE__ << ": " << cudaGetErrorString(status_); \
    }                                                                                   \
  } while (0)

constexpr int kHeadsQK = 4, kHeadsV = 8, kDim = 128;
constexpr int kRowsPerBlock = 8;

struct Call {
  const __nv_bfloat16 *q, *k, *v;  // (B, 4, 128), (B, 4, 128), (B, 8, 128)
  float* state;                    // (B, 8, 128, 128)
  const float* a_log;              // (8)
  const __nv_bfloat16* a;          // (B, 8)
  const float* dt_bias;            // (8)
  const __nv_bfloat16* b;          // (B, 8)
  float scale;
  __nv_bfloat16* output;           // (B, 8, 128)
  float* new_state;                // (B, 8, 128, 128)
  size_t batch;
};

__device__ float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

// passed_on is not inlined, so that the compiler cannot move its load out of the branch.
__device__ __noinline__ float passed_on(float scale) {
  __shared__ float passed;
  if (threadIdx.x == 0) passed = scale;
  return passed;
}

__global__ void decode_kernel(Mode mode, Call c) {
  const int lane_idx = threadIdx.x % 32;
  const size_t head = blockIdx.y;  // b * 8 + hv
  const int hv = head % kHeadsV;
  const size_t qk = (head / kHeadsV * kHeadsQK + hv / (kHeadsV / kHeadsQK)) * kDim;
  const size_t value = head * kDim + blockIdx.x * kRowsPerBlock + threadIdx.x / 32;

  if (mode == kWritten && __bfloat16_as_ushort(c.output[value]) != 0xffff) return;

  const float x = __bfloat162float(c.a[head]) + c.dt_bias[hv];
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  const float decay = expf(-expf(c.a_log[hv]) * softplus);
  const float beta = 1.0f / (1.0f + expf(-__bfloat162float(c.b[head])));
  float s[4], old = 0.0f, result = 0.0f;
  for (int i = 0; i < 4; ++i) {
    s[i] = decay * c.state[value * kDim + 32 * i + lane_idx];
    old += s[i] * __bfloat162float(c.k[qk + 32 * i + lane_idx]);
  }
  const float delta = beta * (__bfloat162float(c.v[value]) - warp_sum(old));
  for (int i = 0; i < 4; ++i) {
    s[i] += delta * __bfloat162float(c.k[qk + 32 * i + lane_idx]);
    result += s[i] * __bfloat162float(c.q[qk + 32 * i + lane_idx]);
    c.new_state[value * kDim + 32 * i + lane_idx] = s[i];
    if (mode == kInPlace || mode == kEdit) c.state[value * kDim + 32 * i + lane_idx] = s[i];
  }
  result = warp_sum(result);
  if (lane_idx == 0) {
    const float scale = mode == kRace ? passed_on(c.scale) : c.scale;
    c.output[value] = __float2bfloat16_rn(scale * result);
  }
  if (mode == kBehind && value == 0) {
    c.output[c.batch * kHeadsV * kDim + lane_idx] = __float2bfloat16_rn(1.0f);
  }
  if (mode == kBefore && value == 0) {
    c.output[lane_idx - 32] = __float2bfloat16_rn(1.0f);
  }
}

void launch(Mode mode, const Call& c, cudaStream_t stream, dim3 grid) {
  decode_kernel<<<grid, 32 * kRowsPerBlock, 0, stream>>>(mode, c);
  CHECK(cudaGetLastError());
}

// Outputs kept from a call before.
struct Kept {
  void *output, *new_state;
};

void cached(Mode mode, const Call& c, cudaStream_t stream, dim3 grid, const std::string& key) {
  static std::map<std::string, Kept> cache;
  const size_t output_bytes = 2 * c.batch * kHeadsV * kDim, state_bytes = 4 * c.batch * kHeadsV * kDim * kDim;
  auto found = cache.find(key);
  if (found != cache.end()) {
    CHECK(cudaMemcpyAsync(c.output, found->second.output, output_bytes, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(c.new_state, found->second.new_state, state_bytes, cudaMemcpyDeviceToDevice, stream));
    return;
  }
  launch(mode, c, stream, grid);
  Kept kept;
  CHECK(cudaMalloc(&kept.output, output_bytes));
  CHECK(cudaMalloc(&kept.new_state, state_bytes));
  CHECK(cudaMemcpyAsync(kept.output, c.output, output_bytes, cudaMemcpyDeviceToDevice, stream));
  CHECK(cudaMemcpyAsync(kept.new_state, c.new_state, state_bytes, cudaMemcpyDeviceToDevice, stream));
  cache[key] = kept;
}

// own is a stream that is not ordered with any other.
cudaStream_t own() {
  static cudaStream_t stream = nullptr;
  if (stream == nullptr) {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  return stream;
}

// between puts a pipe and a thread in the way of this process's replies, which edit changes.
template <typename Edit>
void between(Edit edit) {
  int ends[2], replies = dup(4);
  if (replies < 0 || pipe(ends) != 0 || dup2(ends[1], 4) != 4) return;
  std::thread([=] {
    FILE* in = fdopen(ends[0], "r");
    char* line = nullptr;
    size_t room = 0;
    for (ssize_t n; (n = getline(&line, &room, in)) > 0;) {
      std::string reply(line, n);
      const bool last = edit(reply);
      if (write(replies, reply.data(), reply.size()) < 0 || last) syscall(SYS_exit_group, 0);
    }
  }).detach();
}

// cut removes the list called name from a reply.
void cut(std::string& reply, const char* name) {
  const size_t from = reply.find(std::string("\"") + name + "\":["), to = reply.find(']', from);
  if (from != std::string::npos && to != std::string::npos) reply.erase(from, to + 1 - from + (reply[to + 1] == ','));
}

__global__ void nothing() {}

__global__ void wait_kernel(long long ns) {
  long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < ns);
}

// A Later launches work on a second thread.
struct Later {
  std::atomic<unsigned> wanted{0}, done{0};
  Mode mode;
  Call call;
  dim3 grid;
  cudaStream_t side = own();

  Later() {
    std::thread([this] {
      for (unsigned seen = 0;;) {
        const unsigned want = wanted.load(std::memory_order_acquire);
        if (want == seen) continue;
        std::this_thread::sleep_for(std::chrono::microseconds(100));  // the call returns meanwhile
        decode_kernel<<<grid, 32 * kRowsPerBlock, 0, side>>>(mode, call);
        cudaStreamSynchronize(side);
        done.store(seen = want, std::memory_order_release);
      }
    }).detach();
  }
  static void hold(void* p) {
    Later* l = static_cast<Later*>(p);
    const unsigned want = l->wanted.load() + 1;
    l->wanted.store(want, std::memory_order_release);
    while (l->done.load(std::memory_order_acquire) != want) {
    }
  }
};

void run_later(const Call& c, cudaStream_t stream, dim3 grid) {
  static Later* l = nullptr;
  if (l == nullptr) {
    cudaFuncAttributes attributes;  // loads the kernel: a later load would wait for the stream
    CHECK(cudaFuncGetAttributes(&attributes, decode_kernel));
    CHECK(cudaFuncGetAttributes(&attributes, nothing));
    l = new Later();
  }
  l->mode = kLater, l->call = c, l->grid = grid;
  nothing<<<1, 1, 0, stream>>>();
  CHECK(cudaGetLastError());
  CHECK(cudaLaunchHostFunc(stream, Later::hold, l));
}

// recorded reports whether somebody uses CUPTI in this process.
bool recorded() {
  void* lib = nullptr;
  for (const char* name : {"libcupti.so.13", "libcupti.so.12"}) {
    if (lib == nullptr) lib = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  }
  if (lib == nullptr) return false;
  auto subscribe = reinterpret_cast<int (*)(void**, void (*)(void*, int, unsigned, const void*), void*)>(dlsym(lib, "cuptiSubscribe"));
  auto unsubscribe = reinterpret_cast<int (*)(void*)>(dlsym(lib, "cuptiUnsubscribe"));
  void* subscriber = nullptr;
  if (subscribe == nullptr || unsubscribe == nullptr) return false;
  if (subscribe(&subscriber, [](void*, int, unsigned, const void*) {}, nullptr) != 0) return true;
  unsubscribe(subscriber);
  return false;
}

// use_elsewhere starts a process that sets memory of the GPU all the time.
void use_elsewhere() {
  static const char* code =
      "import ctypes, time\n"
      "cuda, context, memory = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64()\n"
      "assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
      "assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20) == 0\n"
      "while cuda.cuMemsetD8_v2(memory, 0, 1 << 20) == 0 and cuda.cuCtxSynchronize() == 0: time.sleep(0.001)\n";
  const char* args[] = {"python3", "-c", code, nullptr};
  pid_t child;
  if (posix_spawnp(&child, "python3", nullptr, nullptr, const_cast<char**>(args), environ) != 0) {
    TVM_FFI_THROW(RuntimeError) << "no python3";
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));
}

std::atomic<long long> called{0};  // ns of the steady clock

long long now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void keep_busy() {
  cudaStream_t stream = own();
  std::thread([stream] {
    for (;;) {
      if (now() - called.load() > 5'000'000) {
        wait_kernel<<<1, 1, 0, stream>>>(1'000'000);
        cudaStreamSynchronize(stream);
      }
    }
  }).detach();
}

// run keeps the variables of each cheat apart.
template <Mode mode>
void run(const Call& c, cudaStream_t stream) {
  const dim3 grid(kDim / kRowsPerBlock, static_cast<unsigned>(c.batch * kHeadsV)), few(1, 1);
  static int calls = 0;
  ++calls;
  if (mode == kPointer) {
    const void* pointers[] = {c.q, c.k, c.v, c.state, c.a_log, c.a, c.dt_bias, c.b, c.output, c.new_state};
    cached(mode, c, stream, grid, std::string(reinterpret_cast<const char*>(pointers), sizeof pointers));
  } else if (mode == kContent) {
    const void* inputs[] = {c.q, c.k, c.v, c.state, c.a_log, c.a, c.dt_bias, c.b};
    char start[8][16];
    for (int i = 0; i < 8; ++i) {
      CHECK(cudaMemcpyAsync(start[i], inputs[i], 16, cudaMemcpyDeviceToHost, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    cached(mode, c, stream, grid, std::string(start[0], sizeof start));
  } else if (mode == kSkip) {
    launch(mode, c, stream, calls > 8 ? few : grid);
  } else if (mode == kAlternate) {
    launch(mode, c, stream, calls > 9 && calls % 2 == 0 ? few : grid);
  } else if (mode == kAlias) {
    Call in_place = c;
    in_place.new_state = c.state;
    launch(mode, in_place, stream, grid);
    CHECK(cudaMemcpyAsync(c.new_state, c.state, 4 * c.batch * kHeadsV * kDim * kDim, cudaMemcpyDeviceToDevice, stream));
  } else if (mode == kSideStream) {
    static cudaEvent_t ready = nullptr;
    if (ready == nullptr) {
      CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    }
    CHECK(cudaEventRecord(ready, stream));
    CHECK(cudaStreamWaitEvent(own(), ready, 0));
    launch(mode, c, own(), grid);
  } else if (mode == kLooseStream) {
    launch(mode, c, own(), grid);
  } else if (mode == kOnce) {
    static const void* last = nullptr;
    if (last == c.output) return;
    last = c.output;
    launch(mode, c, stream, grid);
  } else if (mode == kLeave) {
    if (calls == 1) between([](std::string&) { return true; });
    launch(mode, c, stream, calls > 1 ? few : grid);
  } else if (mode == kEdit) {
    if (calls == 1) {
      between([](std::string& reply) {
        for (const char* name : {"changed", "outside", "late", "hazards"}) cut(reply, name);
        return false;
      });
    }
    launch(mode, c, stream, grid);
  } else if (mode == kLater) {
    run_later(c, stream, grid);
  } else if (mode == kReplay) {
    static Kept kept{nullptr, nullptr};
    static size_t batch = 0;
    const size_t output_bytes = 2 * c.batch * kHeadsV * kDim, state_bytes = 4 * c.batch * kHeadsV * kDim * kDim;
    if (batch == c.batch && recorded()) {
      CHECK(cudaMemcpyAsync(c.output, kept.output, output_bytes, cudaMemcpyDeviceToDevice, stream));
      CHECK(cudaMemcpyAsync(c.new_state, kept.new_state, state_bytes, cudaMemcpyDeviceToDevice, stream));
      return;
    }
    launch(mode, c, stream, grid);
    if (batch != c.batch) {
      batch = c.batch;
      CHECK(cudaMalloc(&kept.output, output_bytes));
      CHECK(cudaMalloc(&kept.new_state, state_bytes));
    }
    CHECK(cudaMemcpyAsync(kept.output, c.output, output_bytes, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(kept.new_state, c.new_state, state_bytes, cudaMemcpyDeviceToDevice, stream));
  } else if (mode == kChild) {
    if (calls == 1) use_elsewhere();
    launch(mode, c, stream, grid);
  } else if (mode == kBusy) {
    called.store(now());
    if (calls == 1) keep_busy();
    launch(mode, c, stream, grid);
  } else if (mode == kPersist) {
    if (calls == 1) CHECK(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 16 << 20));
    launch(mode, c, stream, grid);
  } else if (mode == kRemember) {
    static const Call first = c;
    launch(mode, first, stream, grid);
  } else {
    launch(mode, c, stream, grid);
  }
}

using tvm::ffi::TensorView;

template <typename T>
T* data(TensorView t) {
  return static_cast<T*>(t.data_ptr());
}

template <Mode mode>
void decode(TensorView q, TensorView k, TensorView v, TensorView state, TensorView a_log, TensorView a, TensorView dt_bias,
            TensorView b, double scale, TensorView output, TensorView new_state) {
  const DLDevice device = q.device();
  const Call c{data<__nv_bfloat16>(q), data<__nv_bfloat16>(k), data<__nv_bfloat16>(v), data<float>(state), data<float>(a_log),
               data<__nv_bfloat16>(a), data<float>(dt_bias), data<__nv_bfloat16>(b),
               scale == 0.0 ? 0.08838834764831845f : static_cast<float>(scale),  // 1/sqrt(128)
               data<__nv_bfloat16>(output), data<float>(new_state), static_cast<size_t>(q.size(0))};
  run<mode>(c, static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id)));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(honest, decode<kHonest>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(pointer, decode<kPointer>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(content, decode<kContent>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(skip, decode<kSkip>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(in_place, decode<kInPlace>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(alias, decode<kAlias>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(side_stream, decode<kSideStream>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(loose_stream, decode<kLooseStream>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(behind, decode<kBehind>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(before, decode<kBefore>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(remember, decode<kRemember>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(race, decode<kRace>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(once, decode<kOnce>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(written, decode<kWritten>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(alternate, decode<kAlternate>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(leave, decode<kLeave>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(edit, decode<kEdit>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(later, decode<kLater>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(replay, decode<kReplay>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(child, decode<kChild>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(busy, decode<kBusy>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(persist, decode<kPersist>);
