// A gated delta rule decode step (definition gdn_decode_qk4_v8_d128_k_last), with one block for each sequence and head, and
// one thread for each row of its state. Its entry points are wrong as their names say, but can look right.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

enum Mode {
  kUninitialised,  // accumulates into unwritten shared memory
  kHostRead,       // reads an element of an input on the host
  kMisaligned,     // loads four numbers at once from an address that is not a multiple of 16
  kRace,           // all threads add to one number without an atomic
  kStaticDone,     // does nothing from the second call on
  kLastPointer,    // does nothing if the inputs have the addresses of the previous call
  kOneSequence,    // launches the blocks of the first sequence only
};

constexpr int kHeadsQK = 4, kHeadsV = 8, kDim = 128;

__global__ void decode_kernel(Mode mode, const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, const float* state,
                              const float* a_log, const __nv_bfloat16* a, const float* dt_bias, const __nv_bfloat16* b,
                              float scale, __nv_bfloat16* output, float* new_state) {
  __shared__ float query[kDim], key[kDim], extra[kDim];
  __shared__ int turns;
  const int row = threadIdx.x, head = blockIdx.x, hv = head % kHeadsV;
  const int qk = (head / kHeadsV * kHeadsQK + hv / (kHeadsV / kHeadsQK)) * kDim;
  if (mode != kUninitialised) {
    extra[row] = 0.0f;
  }
  if (row == 0) {
    turns = 0;
  }
  query[row] = __bfloat162float(q[qk + row]);
  key[row] = __bfloat162float(k[qk + row]);
  __syncthreads();
  if (mode == kRace) {
    turns += 1;
    __syncthreads();
  }
  const float x = __bfloat162float(a[head]) + dt_bias[hv];
  const float decay = expf(-expf(a_log[hv]) * (x > 20.0f ? x : log1pf(expf(x))));
  const float beta = 1.0f / (1.0f + expf(-__bfloat162float(b[head])));
  const float* from = state + (static_cast<size_t>(head) * kDim + row) * kDim;
  float* to = new_state + (from - state);
  float old = 0.0f, result = 0.0f;
  for (int i = 1; mode == kMisaligned && i + 4 <= kDim; i += 4) {
    const float4 s = *reinterpret_cast<const float4*>(from + i);
    old += 0.0f * (s.x + s.y + s.z + s.w);
  }
  for (int i = 0; i < kDim; ++i) {
    old += decay * from[i] * key[i];
  }
  const float delta = beta * (__bfloat162float(v[head * kDim + row]) - old);
  for (int i = 0; i < kDim; ++i) {
    const float s = decay * from[i] + delta * key[i];
    result += s * query[i];
    to[i] = s;
  }
  extra[row] += result;
  output[head * kDim + row] = __float2bfloat16_rn(scale * extra[row] + (turns < 0 ? 1.0f : 0.0f));
}

using tvm::ffi::TensorView;

template <typename T>
T* data(TensorView t) {
  return static_cast<T*>(t.data_ptr());
}

template <Mode mode>
void run(TensorView q, TensorView k, TensorView v, TensorView state, TensorView a_log, TensorView a, TensorView dt_bias,
         TensorView b, double scale, TensorView output, TensorView new_state) {
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(q.device().device_type, q.device().device_id));
  float factor = static_cast<float>(scale);
  if (mode == kHostRead) {
    factor += 0.0f * *data<float>(a_log);
  }
  static const void* last = nullptr;
  if (last != nullptr && (mode == kStaticDone || mode == kLastPointer && last == q.data_ptr())) {
    return;
  }
  last = q.data_ptr();
  const int sequences = mode == kOneSequence ? 1 : static_cast<int>(q.size(0));
  decode_kernel<<<sequences * kHeadsV, kDim, 0, stream>>>(
      mode, data<__nv_bfloat16>(q), data<__nv_bfloat16>(k), data<__nv_bfloat16>(v), data<float>(state), data<float>(a_log),
      data<__nv_bfloat16>(a), data<float>(dt_bias), data<__nv_bfloat16>(b), factor, data<__nv_bfloat16>(output),
      data<float>(new_state));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(uninitialised, run<kUninitialised>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(host_read, run<kHostRead>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(misaligned, run<kMisaligned>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(race, run<kRace>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(static_done, run<kStaticDone>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(last_pointer, run<kLastPointer>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(one_sequence, run<kOneSequence>);
