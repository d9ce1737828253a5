// Gated delta rule, one decode step, k-last state (definition gdn_decode_qk4_v8_d128_k_last).
//
//   g      = exp(-exp(A_log) * softplus(a + dt_bias))      decay, one number for each (b, hv)
//   beta   = sigmoid(b)                                    update gate
//   delta  = beta * (v - g * (S k))                        S is the old state, one row of K numbers for each value
//   S'     = g * S + delta k^T
//   output = scale * (S' q) = scale * (g * (S q) + delta * (k . q))
//
// Shapes: q, k (B, 1, 4, 128); v, output (B, 1, 8, 128); state, new_state (B, 8, 128, 128) as (b, hv, v, k) with k
// innermost; A_log, dt_bias (8); a, b (B, 1, 8). Query and key head h serve value heads 2h and 2h + 1.
// dtypes: q, k, v, a, b, output bfloat16; state, new_state, A_log, dt_bias float32; all arithmetic float32.
// state None means zeros; scale None or 0 means 1/sqrt(128). Inputs are not written; new_state must not alias state.
//
// Arch: sm_80 and later; nothing specific to one. Built by nvcc -std=c++17 -O2 against the TVM-FFI headers and called
// in destination-passing style as kernel(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state).
//
// One pass over the state, without shared memory and barriers: S k, S q and k q are reduced independently, so the output
// does not wait for the update. Each range of batch sizes has its config (table.cuh), because what limits it differs.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "table.cuh"

namespace gdn {

#define GDN_CUDA_CHECK(call)                                                              \
  do {                                                                                    \
    cudaError_t status_ = (call);                                                         \
    if (status_ != cudaSuccess) {                                                         \
      TVM_FFI_THROW(RuntimeError) << __FILE__ << ":" << __LINE__ << ": " << #call << ": " \
                                  << cudaGetErrorString(status_);                         \
    }                                                                                     \
  } while (0)

using tvm::ffi::TensorView;

constexpr DLDataType kBF16 = {kDLBfloat, 16, 1};
constexpr DLDataType kF32 = {kDLFloat, 32, 1};

// A checked pointer to the data of t: dtype, the extents behind the batch (0: any), contiguity, 16-byte alignment.
template <typename T>
T* checked(const char* name, TensorView t, DLDataType dtype, std::initializer_list<int64_t> shape) {
  if (t.dtype().code != dtype.code || t.dtype().bits != dtype.bits || t.dtype().lanes != 1) {
    TVM_FFI_THROW(TypeError) << name << ": dtype code " << int(t.dtype().code) << ", " << int(t.dtype().bits)
                             << " bits; expected code " << int(dtype.code) << ", " << int(dtype.bits) << " bits";
  }
  if (t.ndim() != static_cast<int>(shape.size())) {
    TVM_FFI_THROW(ValueError) << name << ": " << t.ndim() << " dimensions; expected " << shape.size();
  }
  int i = 0;
  for (int64_t extent : shape) {
    if (t.size(i) != extent) {
      TVM_FFI_THROW(ValueError) << name << ": extent " << t.size(i) << " in dimension " << i << "; expected " << extent;
    }
    ++i;
  }
  if (!t.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << name << ": not contiguous";
  }
  char* data = static_cast<char*>(t.data_ptr()) + t.byte_offset();
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    TVM_FFI_THROW(ValueError) << name << ": data is not aligned to 16 bytes";
  }
  return reinterpret_cast<T*>(data);
}

void decode(TensorView q, TensorView k, TensorView v, tvm::ffi::Optional<TensorView> state, TensorView a_log,
            TensorView a, TensorView dt_bias, TensorView b, tvm::ffi::Optional<double> scale, TensorView output,
            TensorView new_state) {
  Arguments x;
  const int64_t batch = x.batch = q.ndim() > 0 ? q.size(0) : 0;
  x.q = checked<const __nv_bfloat16>("q", q, kBF16, {batch, 1, kHeadsQK, kDim});
  x.k = checked<const __nv_bfloat16>("k", k, kBF16, {batch, 1, kHeadsQK, kDim});
  x.v = checked<const __nv_bfloat16>("v", v, kBF16, {batch, 1, kHeadsV, kDim});
  x.state = nullptr;
  if (state.has_value()) {
    x.state = checked<const float>("state", state.value(), kF32, {batch, kHeadsV, kDim, kDim});
  }
  x.a_log = checked<const float>("A_log", a_log, kF32, {kHeadsV});
  x.a = checked<const __nv_bfloat16>("a", a, kBF16, {batch, 1, kHeadsV});
  x.dt_bias = checked<const float>("dt_bias", dt_bias, kF32, {kHeadsV});
  x.b = checked<const __nv_bfloat16>("b", b, kBF16, {batch, 1, kHeadsV});
  x.output = checked<__nv_bfloat16>("output", output, kBF16, {batch, 1, kHeadsV, kDim});
  x.new_state = checked<float>("new_state", new_state, kF32, {batch, kHeadsV, kDim, kDim});
  if (batch == 0) {
    return;
  }
  if (batch > kMaxBatch) {
    TVM_FFI_THROW(ValueError) << "q: batch " << batch << " is above " << kMaxBatch;
  }
  const double factor = scale.has_value() ? scale.value() : 0.0;
  x.scale = static_cast<float>(factor != 0.0 ? factor : 0.08838834764831845);  // 1/sqrt(128)

  const Choice* choice = kTable;
  for (const Choice& c : kTable) {
    if (c.from <= batch) {
      choice = &c;
    }
  }
  const DLDevice device = q.device();
  choice->launch(x, static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id)));
  GDN_CUDA_CHECK(cudaGetLastError());
}

}  // namespace gdn

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, gdn::decode);
