// The decode family of the gated delta rule: one to eight tokens, float32 or bfloat16 states, dense or in a pool.
//
//   for each token t:  S = g_t S;  S = S + beta_t (v_t - S k_t) k_t^T;  output_t = scale S q_t
//   g = exp(-exp(A_log) softplus(a + dt_bias)),  beta = sigmoid(b);  with l2norm q and k are x / sqrt(|x|^2 + 1e-6)
//
// Shapes: q, k (B, T, HQ, 128); v, output (B, T, HV, 128); a, b (B, T, HV); A_log, dt_bias (HV); states (slots, HV, 128, 128),
// as (v, k) or, with v last, as (k, v). q, k, v, a, b, output bfloat16; A_log, dt_bias float32; states float32 or bfloat16; all
// arithmetic float32. The stride of a pool's slots is a multiple of 16 bytes. scale None or 0 means 1/sqrt(128).
//
// A read slot below 0 is padding: its output is 0, and no state is read or written for it, whatever its other slots. A write
// slot below 0 is not written. Two rows that write one slot leave it undefined.
//
// Arch: sm_80 and later. Built by nvcc -std=c++17 -O2 against the TVM-FFI headers; each entry point below is called in
// destination-passing style.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "one.cuh"

namespace gdn {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

constexpr DLDataType kBF16 = {kDLBfloat, 16, 1};
constexpr DLDataType kF32 = {kDLFloat, 32, 1};

bool is(TensorView t, DLDataType dtype) {
  return t.dtype().code == dtype.code && t.dtype().bits == dtype.bits && t.dtype().lanes == 1;
}

// A checked pointer to the data of t: the extents, the strides behind the first `free` dimensions, 16-byte alignment.
template <typename T>
T* pointer(const char* name, TensorView t, std::initializer_list<int64_t> shape, int free = 0) {
  if (t.ndim() != static_cast<int>(shape.size())) {
    TVM_FFI_THROW(ValueError) << name << ": " << t.ndim() << " dimensions; expected " << shape.size();
  }
  int i = 0;
  for (int64_t extent : shape) {
    if (extent >= 0 && t.size(i) != extent) {
      TVM_FFI_THROW(ValueError) << name << ": extent " << t.size(i) << " in dimension " << i << "; expected " << extent;
    }
    ++i;
  }
  int64_t stride = 1;
  for (i = t.ndim() - 1; i >= free; --i) {
    if (t.size(i) != 1 && t.stride(i) != stride) {
      TVM_FFI_THROW(ValueError) << name << ": stride " << t.stride(i) << " in dimension " << i << "; expected " << stride;
    }
    stride *= t.size(i);
  }
  char* data = static_cast<char*>(t.data_ptr()) + t.byte_offset();
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    TVM_FFI_THROW(ValueError) << name << ": data is not aligned to 16 bytes";
  }
  return reinterpret_cast<T*>(data);
}

template <typename T>
T* checked(const char* name, TensorView t, DLDataType dtype, std::initializer_list<int64_t> shape) {
  if (!is(t, dtype)) {
    TVM_FFI_THROW(TypeError) << name << ": dtype code " << int(t.dtype().code) << ", " << int(t.dtype().bits)
                             << " bits; expected code " << int(dtype.code) << ", " << int(dtype.bits) << " bits";
  }
  return pointer<T>(name, t, shape);
}

// Indices of int32 or, if wide, int64.
const void* indices(const char* name, const Optional<TensorView>& t, std::initializer_list<int64_t> shape, bool* wide) {
  if (!t.has_value()) {
    return nullptr;
  }
  *wide = is(t.value(), {kDLInt, 64, 1});
  if (!*wide && !is(t.value(), {kDLInt, 32, 1})) {
    TVM_FFI_THROW(TypeError) << name << ": neither int32 nor int64";
  }
  return pointer<const void>(name, t.value(), shape);
}

// All arguments of a call. state, or else new_state, has the state's dtype.
struct Call {
  TensorView q, k, v;
  Optional<TensorView> state;
  TensorView a_log, a, dt_bias, b;
  Optional<double> scale;
  TensorView output;
  Optional<TensorView> new_state = {};     // the same tensor as state: updated in place
  Optional<TensorView> token_states = {};  // (rows, tokens, HV, 128, 128), or with token_slots as a pool
  Optional<TensorView> read = {}, write = {}, token_slots = {};
  bool l2norm = false, v_last = false;
};

void run(const Call& call) {
  Arguments x = {};
  const int64_t batch = call.q.ndim() == 4 ? call.q.size(0) : 0, tokens = call.q.ndim() == 4 ? call.q.size(1) : 0;
  const int64_t hq = call.q.ndim() == 4 ? call.q.size(2) : 0, hv = call.v.ndim() == 4 ? call.v.size(2) : 0;
  using BF16 = __nv_bfloat16;
  x.q = checked<const BF16>("q", call.q, kBF16, {batch, tokens, hq, kDim});
  x.k = checked<const BF16>("k", call.k, kBF16, {batch, tokens, hq, kDim});
  x.v = checked<const BF16>("v", call.v, kBF16, {batch, tokens, hv, kDim});
  x.a_log = checked<const float>("A_log", call.a_log, kF32, {hv});
  x.a = checked<const BF16>("a", call.a, kBF16, {batch, tokens, hv});
  x.dt_bias = checked<const float>("dt_bias", call.dt_bias, kF32, {hv});
  x.b = checked<const BF16>("b", call.b, kBF16, {batch, tokens, hv});
  x.output = checked<BF16>("output", call.output, kBF16, {batch, tokens, hv, kDim});
  if (batch == 0) {
    return;
  }
  if (batch > 65535 || tokens < 1 || tokens > kMaxTokens) {
    TVM_FFI_THROW(ValueError) << "q: " << batch << " rows of " << tokens << " tokens; expected up to 65535 of 1 to "
                              << kMaxTokens;
  }
  if (hq == 0 || hv == 0 || hv % hq != 0) {
    TVM_FFI_THROW(ValueError) << "v: " << hv << " heads; expected a multiple of q's " << hq;
  }

  x.read = indices("read slots", call.read, {batch}, &x.wide);
  x.write = indices("write slots", call.write, {batch}, &x.write_wide);
  x.token_slots = indices("slots of tokens", call.token_slots, {batch, tokens}, &x.slots_wide);
  bool bf16 = false, known = false;
  const auto states = [&](const char* name, const Optional<TensorView>& t, bool pool, int64_t* stride) -> void* {
    if (!t.has_value()) {
      return nullptr;
    }
    const TensorView s = t.value();
    if (known ? !is(s, bf16 ? kBF16 : kF32) : !is(s, kBF16) && !is(s, kF32)) {
      TVM_FFI_THROW(TypeError) << name << ": a state is float32 or bfloat16, and all of a call are the same";
    }
    bf16 = is(s, kBF16), known = true;
    *stride = s.ndim() > 0 ? s.stride(0) : 0;
    if (*stride * (bf16 ? 2 : 4) % 16 != 0) {
      TVM_FFI_THROW(ValueError) << name << ": slots lie " << *stride << " elements apart; expected a multiple of 16 bytes";
    }
    return pointer<void>(name, s, {pool ? -1 : batch, hv, kDim, kDim}, 1);
  };
  x.state = states("state", call.state, call.read.has_value(), &x.state_stride);
  x.new_state = states("new_state", call.new_state, call.read.has_value() || call.write.has_value(), &x.new_state_stride);
  if (call.token_slots.has_value() || !call.token_states.has_value()) {
    x.token_states = states("states of tokens", call.token_states, true, &x.token_stride);
  } else {
    const TensorView s = call.token_states.value();
    if (known ? !is(s, bf16 ? kBF16 : kF32) : !is(s, kBF16) && !is(s, kF32)) {
      TVM_FFI_THROW(TypeError) << "states of tokens: a state is float32 or bfloat16, and all of a call are the same";
    }
    bf16 = is(s, kBF16);
    x.token_states = pointer<void>("states of tokens", s, {-1, -1, hv, kDim, kDim});
    if (s.size(0) < batch || s.size(1) < tokens) {
      TVM_FFI_THROW(ValueError) << "states of tokens: " << s.size(0) << " rows of " << s.size(1) << "; expected at least "
                                << batch << " of " << tokens;
    }
    x.token_rows = s.size(1), x.token_stride = hv * kDim * kDim;
  }
  x.batch = static_cast<int>(batch), x.tokens = static_cast<int>(tokens);
  x.heads_qk = static_cast<int>(hq), x.heads_v = static_cast<int>(hv);
  x.over_ratio = ((uint64_t{1} << 32) + hv / hq - 1) / (hv / hq);
  x.l2norm = call.l2norm;
  const double factor = call.scale.has_value() ? call.scale.value() : 0.0;
  x.scale = static_cast<float>(factor != 0.0 ? factor : 0.08838834764831845);  // 1/sqrt(128)

  const DLDevice device = call.q.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  if (bf16 && call.v_last) {
    TVM_FFI_THROW(ValueError) << "state: bfloat16 with v last is not there";
  }
  bf16 ? launch<BF16, false>(x, stream) : call.v_last ? launch<float, true>(x, stream) : launch<float, false>(x, stream);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << "starting the kernel: " << cudaGetErrorString(status);
  }
}

// The dense step of the contest's definition, for any heads.
void decode(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a,
            TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output, TensorView new_state) {
  run({q, k, v, state, a_log, a, dt_bias, b, scale, output, new_state});
}

// The same with q and k normalised; with v last.
void decode_l2norm(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a,
                   TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output, TensorView new_state) {
  run({q, k, v, state, a_log, a, dt_bias, b, scale, output, new_state, {}, {}, {}, {}, true});
}

void decode_v_last(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a,
                   TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output, TensorView new_state) {
  run({q, k, v, state, a_log, a, dt_bias, b, scale, output, new_state, {}, {}, {}, {}, false, true});
}

// Tokens on an unchanged pool. The state after each token is stored by row, or not at all.
void verify(TensorView q, TensorView k, TensorView v, TensorView pool, TensorView read, TensorView a_log, TensorView a,
            TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output, TensorView token_states) {
  run({q, k, v, pool, a_log, a, dt_bias, b, scale, output, {}, token_states, read, {}, {}, true});
}

void output_only(TensorView q, TensorView k, TensorView v, TensorView pool, TensorView read, TensorView a_log, TensorView a,
                 TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output) {
  run({q, k, v, pool, a_log, a, dt_bias, b, scale, output, {}, {}, read, {}, {}, true});
}

// The same on a pool that is updated in place: in the slot that was read, in another one, or after each token in one of its own.
void update(TensorView q, TensorView k, TensorView v, TensorView pool, TensorView read, TensorView a_log, TensorView a,
            TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output) {
  run({q, k, v, pool, a_log, a, dt_bias, b, scale, output, pool, {}, read, {}, {}, true});
}

void update_elsewhere(TensorView q, TensorView k, TensorView v, TensorView pool, TensorView read, TensorView write, TensorView a_log,
                      TensorView a, TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output) {
  run({q, k, v, pool, a_log, a, dt_bias, b, scale, output, pool, {}, read, write, {}, true});
}

void scatter(TensorView q, TensorView k, TensorView v, TensorView pool, TensorView read, TensorView token_slots, TensorView a_log,
             TensorView a, TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output) {
  run({q, k, v, pool, a_log, a, dt_bias, b, scale, output, {}, pool, read, {}, token_slots, true});
}

// FlashInfer's functions, with their arguments in its order; output is always given. state, or initial_state, is updated in
// place. Padding is as above for each dtype.
void pretranspose(TensorView q, TensorView k, TensorView v, Optional<TensorView> state, TensorView a_log, TensorView a,
                  TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output, bool l2norm,
                  Optional<TensorView> initial_state, Optional<TensorView> read, Optional<TensorView> write,
                  Optional<TensorView> token_states, bool keep) {
  const Optional<TensorView> s = initial_state.has_value() ? initial_state : state;
  run({q, k, v, s, a_log, a, dt_bias, b, scale, output, keep ? Optional<TensorView>() : s, token_states, read, write, {}, l2norm});
}

void nontranspose(TensorView q, TensorView k, TensorView v, TensorView state, TensorView a_log, TensorView a, TensorView dt_bias,
                  TensorView b, Optional<double> scale, TensorView output, bool l2norm) {
  run({q, k, v, state, a_log, a, dt_bias, b, scale, output, state, {}, {}, {}, {}, l2norm, true});
}

// With token_slots the states after each token go to slots of initial_state, and none but those.
void mtp(TensorView q, TensorView k, TensorView v, TensorView initial_state, TensorView read, TensorView a_log, TensorView a,
         TensorView dt_bias, TensorView b, Optional<double> scale, TensorView output, Optional<TensorView> token_states,
         Optional<TensorView> token_slots, bool keep, bool l2norm, Optional<TensorView> write) {
  const bool scatter = token_slots.has_value();
  if (scatter && (keep || token_states.has_value())) {
    TVM_FFI_THROW(ValueError) << "ssm_state_indices: neither with intermediate_states_buffer nor without an update";
  }
  const Optional<TensorView> pool = initial_state;
  run({q, k, v, pool, a_log, a, dt_bias, b, scale, output, keep || scatter ? Optional<TensorView>() : pool,
       scatter ? pool : token_states, read, write, token_slots, l2norm});
}

}  // namespace gdn

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, gdn::decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_l2norm, gdn::decode_l2norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_v_last, gdn::decode_v_last);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(verify, gdn::verify);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(output_only, gdn::output_only);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(update, gdn::update);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(update_elsewhere, gdn::update_elsewhere);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scatter, gdn::scatter);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gated_delta_rule_decode_pretranspose, gdn::pretranspose);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gated_delta_rule_decode, gdn::nontranspose);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gated_delta_rule_mtp, gdn::mtp);
