// A gated delta rule decode step (definition gdn_decode_qk4_v8_d128_k_last) that passes the contest's judge and cheats in the
// way that MODE, defined in front of this file, says. The kernel itself is right and plain: a warp for each row of the state.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <map>
#include <string>

#define MODE_HONEST 0
#define MODE_POINTER 1        // keeps the outputs, and gives them again where the addresses are the same
#define MODE_CONTENT 2        // the same where the first 16 bytes of each input are the same
#define MODE_SKIP 3           // computes eight rows only from call 9 on
#define MODE_IN_PLACE 4       // writes the new state over the old one as well
#define MODE_ALIAS 5          // computes the new state in the memory of the old one, and copies it
#define MODE_SIDE_STREAM 6    // works on a stream of its own that the caller's does not wait for
#define MODE_LOOSE_STREAM 7   // works on a stream of its own that waits for nothing either
#define MODE_BEHIND 8         // writes 64 bytes behind its output
#define MODE_BEFORE 9         // writes 64 bytes before its output
#define MODE_REMEMBER 10      // uses the addresses of the first call in every call, as a captured graph does
#define MODE_RACE 11          // hands the scale to other warps without a barrier, which are late enough by luck
#define MODE_ONCE 12          // leaves outputs alone that the call before wrote to
#define MODE_WRITTEN 13       // leaves outputs alone that are not poisoned
#define MODE_ALTERNATE 14     // computes eight rows only in every second call from call 10 on

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

__global__ void decode_kernel(Call c) {
  const int lane_idx = threadIdx.x % 32;
  const size_t head = blockIdx.y;  // b * 8 + hv
  const int hv = head % kHeadsV;
  const size_t qk = (head / kHeadsV * kHeadsQK + hv / (kHeadsV / kHeadsQK)) * kDim;
  const size_t value = head * kDim + blockIdx.x * kRowsPerBlock + threadIdx.x / 32;

#if MODE == MODE_WRITTEN
  if (__bfloat16_as_ushort(c.output[value]) != 0xffff) return;
#endif

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
#if MODE == MODE_IN_PLACE
    c.state[value * kDim + 32 * i + lane_idx] = s[i];
#endif
  }
  result = warp_sum(result);
#if MODE == MODE_RACE
  __shared__ float scale;
  if (threadIdx.x == 0) scale = c.scale;
#else
  const float scale = c.scale;
#endif
  if (lane_idx == 0) {
    c.output[value] = __float2bfloat16_rn(scale * result);
  }
#if MODE == MODE_BEHIND
  if (value == 0) {
    c.output[c.batch * kHeadsV * kDim + lane_idx] = __float2bfloat16_rn(1.0f);
  }
#elif MODE == MODE_BEFORE
  if (value == 0) {
    c.output[lane_idx - 32] = __float2bfloat16_rn(1.0f);
  }
#endif
}

void launch(const Call& c, cudaStream_t stream, dim3 grid) {
  decode_kernel<<<grid, 32 * kRowsPerBlock, 0, stream>>>(c);
  CHECK(cudaGetLastError());
}

// Outputs kept from a call before.
struct Kept {
  void *output, *new_state;
};

void cached(const Call& c, cudaStream_t stream, dim3 grid, const std::string& key) {
  static std::map<std::string, Kept> cache;
  const size_t output_bytes = 2 * c.batch * kHeadsV * kDim, state_bytes = 4 * c.batch * kHeadsV * kDim * kDim;
  auto found = cache.find(key);
  if (found != cache.end()) {
    CHECK(cudaMemcpyAsync(c.output, found->second.output, output_bytes, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(c.new_state, found->second.new_state, state_bytes, cudaMemcpyDeviceToDevice, stream));
    return;
  }
  launch(c, stream, grid);
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

void run(Call c, cudaStream_t stream) {
  const dim3 grid(kDim / kRowsPerBlock, static_cast<unsigned>(c.batch * kHeadsV));
#if MODE == MODE_POINTER
  const void* pointers[] = {c.q, c.k, c.v, c.state, c.a_log, c.a, c.dt_bias, c.b, c.output, c.new_state};
  cached(c, stream, grid, std::string(reinterpret_cast<const char*>(pointers), sizeof pointers));
#elif MODE == MODE_CONTENT
  const void* inputs[] = {c.q, c.k, c.v, c.state, c.a_log, c.a, c.dt_bias, c.b};
  char start[8][16];
  for (int i = 0; i < 8; ++i) {
    CHECK(cudaMemcpyAsync(start[i], inputs[i], 16, cudaMemcpyDeviceToHost, stream));
  }
  CHECK(cudaStreamSynchronize(stream));
  cached(c, stream, grid, std::string(start[0], sizeof start));
#elif MODE == MODE_SKIP
  static int calls = 0;
  launch(c, stream, ++calls > 8 ? dim3(1, 1) : grid);
#elif MODE == MODE_ALTERNATE
  static int calls = 0;
  launch(c, stream, ++calls > 9 && calls % 2 == 0 ? dim3(1, 1) : grid);
#elif MODE == MODE_ALIAS
  Call in_place = c;
  in_place.new_state = c.state;
  launch(in_place, stream, grid);
  CHECK(cudaMemcpyAsync(c.new_state, c.state, 4 * c.batch * kHeadsV * kDim * kDim, cudaMemcpyDeviceToDevice, stream));
#elif MODE == MODE_SIDE_STREAM
  static cudaEvent_t ready = nullptr;
  if (ready == nullptr) {
    CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  }
  CHECK(cudaEventRecord(ready, stream));
  CHECK(cudaStreamWaitEvent(own(), ready, 0));
  launch(c, own(), grid);
#elif MODE == MODE_LOOSE_STREAM
  launch(c, own(), grid);
#elif MODE == MODE_ONCE
  static const void* last = nullptr;
  if (last == c.output) return;
  last = c.output;
  launch(c, stream, grid);
#elif MODE == MODE_REMEMBER
  static const Call first = c;
  launch(first, stream, grid);
#else
  launch(c, stream, grid);
#endif
}

using tvm::ffi::TensorView;

template <typename T>
T* data(TensorView t) {
  return static_cast<T*>(t.data_ptr());
}

void decode(TensorView q, TensorView k, TensorView v, TensorView state, TensorView a_log, TensorView a, TensorView dt_bias,
            TensorView b, double scale, TensorView output, TensorView new_state) {
  const DLDevice device = q.device();
  const Call c{data<__nv_bfloat16>(q), data<__nv_bfloat16>(k), data<__nv_bfloat16>(v), data<float>(state), data<float>(a_log),
               data<__nv_bfloat16>(a), data<float>(dt_bias), data<__nv_bfloat16>(b),
               scale == 0.0 ? 0.08838834764831845f : static_cast<float>(scale),  // 1/sqrt(128)
               data<__nv_bfloat16>(output), data<float>(new_state), static_cast<size_t>(q.size(0))};
  run(c, static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id)));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, decode);
