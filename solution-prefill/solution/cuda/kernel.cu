// Gated delta rule over whole sequences, k-last state (definition gdn_prefill_qk4_v8_d128_k_last).
//
// For each token of a sequence, in order, with S the state of the head before it:
//   g      = exp(-exp(A_log) * softplus(a + dt_bias))      decay
//   beta   = sigmoid(b)                                    update gate
//   delta  = beta * (v - g * (S k))                        one number for each value
//   S      = g * S + delta k^T
//   output = scale * (S q)
//
// Shapes: q, k (T, 4, 128); v, output (T, 8, 128); state, new_state (N, 8, 128, 128) as (n, hv, v, k) with k innermost;
// A_log, dt_bias (8); a, b (T, 8); cu_seqlens (N + 1), from 0 to T and never falling: sequence n holds tokens
// cu_seqlens[n] to cu_seqlens[n + 1] - 1. Query and key head h serve value heads 2h and 2h + 1.
// dtypes: q, k, v, a, b, output bfloat16; state, new_state, A_log, dt_bias float32; cu_seqlens int64. Products of
// matrices take float16 operands and give float32; the state is float32 throughout; chunks of large values are refined,
// and chunks that do not fit float16 are computed token by token in float32.
// state None means zeros; scale None or 0 means 1/sqrt(128). A sequence without tokens has a new state of zeros. Inputs
// are not written; new_state must not alias state.
//
// Arch: sm_90 and later, nothing of sm_90a or sm_100a. Built by nvcc -std=c++17 -O2 against the TVM-FFI headers and
// called in destination-passing style as kernel(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale, output,
// new_state).
//
// Read solution/baselines/prefill-plain first: the same in plain C++, without the inline PTX (mma, ldmatrix, mbarrier).
// Here the algorithm is in prefill.cuh; ../../README.md lists the files. docs/performance.md has the times (H200,
// CUPTI, cold L2), docs/experiments.md the history.

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
constexpr DLDataType kI64 = {kDLInt, 64, 1};

// A checked pointer to the data of t: dtype, the extents, contiguity, alignment.
template <typename T, int kAlign = 16>
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
  if (reinterpret_cast<uintptr_t>(data) % kAlign != 0) {
    TVM_FFI_THROW(ValueError) << name << ": data is not aligned to " << kAlign << " bytes";
  }
  return reinterpret_cast<T*>(data);
}

void prefill(TensorView q, TensorView k, TensorView v, tvm::ffi::Optional<TensorView> state, TensorView a_log,
             TensorView a, TensorView dt_bias, TensorView b, TensorView cu_seqlens, tvm::ffi::Optional<double> scale,
             TensorView output, TensorView new_state) {
  Arguments x;
  const int64_t tokens = x.tokens = q.ndim() > 0 ? q.size(0) : 0;
  const int64_t sequences = x.sequences = cu_seqlens.ndim() > 0 ? cu_seqlens.size(0) - 1 : 0;
  if (sequences < 0) {
    TVM_FFI_THROW(ValueError) << "cu_seqlens: no element; expected one more than sequences";
  }
  x.q = checked<const __nv_bfloat16>("q", q, kBF16, {tokens, kHeadsQK, kDim});
  x.k = checked<const __nv_bfloat16>("k", k, kBF16, {tokens, kHeadsQK, kDim});
  x.v = checked<const __nv_bfloat16>("v", v, kBF16, {tokens, kHeadsV, kDim});
  x.state = nullptr;
  if (state.has_value()) {
    x.state = checked<const float>("state", state.value(), kF32, {sequences, kHeadsV, kDim, kDim});
  }
  x.a_log = checked<const float, 4>("A_log", a_log, kF32, {kHeadsV});
  x.a = checked<const __nv_bfloat16, 2>("a", a, kBF16, {tokens, kHeadsV});
  x.dt_bias = checked<const float, 4>("dt_bias", dt_bias, kF32, {kHeadsV});
  x.b = checked<const __nv_bfloat16, 2>("b", b, kBF16, {tokens, kHeadsV});
  x.cu_seqlens = checked<const int64_t, 8>("cu_seqlens", cu_seqlens, kI64, {sequences + 1});
  x.output = checked<__nv_bfloat16>("output", output, kBF16, {tokens, kHeadsV, kDim});
  x.new_state = checked<float>("new_state", new_state, kF32, {sequences, kHeadsV, kDim, kDim});
  if (sequences == 0) {
    return;
  }
  if (sequences > kMaxSequences) {
    TVM_FFI_THROW(ValueError) << "cu_seqlens: " << sequences << " sequences are above " << kMaxSequences;
  }
  const double factor = scale.has_value() ? scale.value() : 0.0;
  x.scale = static_cast<float>(factor != 0.0 ? factor : 0.08838834764831845);  // 1/sqrt(128)

  const DLDevice device = q.device();
  int processors = 0;
  GDN_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device.device_id));
  const Choice* choice = kTable;
  for (const Choice& c : kTable) {
    if (c.sequences <= sequences && c.tokens <= tokens) {
      choice = &c;
    }
  }
  GDN_CUDA_CHECK(choice->launch(x, processors,
                                static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id))));
}

}  // namespace gdn

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, gdn::prefill);
