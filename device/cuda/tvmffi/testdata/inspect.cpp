// Functions that report what they were called with, for the tests of this package.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <sstream>
#include <stdexcept>

namespace ffi = tvm::ffi;

static void describe(std::ostringstream& os, const DLTensor* t) {
  os << "dtype " << int(t->dtype.code) << "/" << int(t->dtype.bits) << "/" << t->dtype.lanes << " device " << int(t->device.device_type)
     << ":" << t->device.device_id << " offset " << t->byte_offset << " shape";
  for (int i = 0; i < t->ndim; ++i) os << " " << t->shape[i];
  os << " strides";
  for (int i = 0; i < t->ndim; ++i) os << " " << t->strides[i];
}

// report raises what it got: any number of arguments of any type.
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_report(void*, const TVMFFIAny* args, int32_t n, TVMFFIAny*) {
  TVM_FFI_SAFE_CALL_BEGIN();
  std::ostringstream os;
  for (int i = 0; i < n; ++i) {
    os << "[" << args[i].type_index << " " << args[i].zero_padding << " ";
    if (args[i].type_index == kTVMFFIFloat) {
      os << args[i].v_float64;
    } else if (args[i].type_index == kTVMFFITensor) {
      describe(os, TVMFFITensorGetDLTensorPtr(args[i].v_obj));
    } else {
      os << args[i].v_int64;
    }
    os << "]";
  }
  TVM_FFI_THROW(ValueError) << os.str();
  TVM_FFI_SAFE_CALL_END();
}

// scale is a kernel of the usual form: y = s * x, and for an owning parameter too.
static void scale(ffi::TensorView x, double s, ffi::Optional<ffi::Tensor> z, bool twice, int64_t n, ffi::Tensor y) {
  for (int64_t i = 0; i < n; ++i) {
    static_cast<float*>(y.data_ptr())[i] = static_cast<float>((twice ? 2 : 1) * s * static_cast<const float*>(x.data_ptr())[i]);
  }
  if (z.has_value()) static_cast<float*>(z.value().data_ptr())[0] = -1;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);

// stream stores the stream that a kernel would launch on.
static void stream(ffi::TensorView out) {
  DLDevice d = out.device();
  static_cast<int64_t*>(out.data_ptr())[0] = reinterpret_cast<int64_t>(TVMFFIEnvGetStream(d.device_type, d.device_id));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stream, stream);

// workspace allocates two tensors of n floats, writes to them, stores the first one's address and returns the second.
static ffi::Tensor workspace(ffi::TensorView out, int64_t n) {
  DLDevice d = out.device();
  ffi::Tensor a = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {2, n}, {kDLFloat, 32, 1}, d);
  ffi::Tensor b = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {n}, {kDLFloat, 32, 1}, d);
  for (int64_t i = 0; i < n; ++i) static_cast<float*>(a.data_ptr())[n + i] = static_cast<float*>(b.data_ptr())[i] = 1;
  static_cast<int64_t*>(out.data_ptr())[0] = reinterpret_cast<int64_t>(a.data_ptr());
  static_cast<int64_t*>(out.data_ptr())[1] = a.stride(0);
  return b;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(workspace, workspace);

static void throws() { throw std::runtime_error("plain C++ exception"); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(throws, throws);

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_silent(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) { return -1; }
