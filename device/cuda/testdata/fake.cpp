// A solution for the fake driver: what would be a kernel runs on the CPU.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

extern "C" void fake_fault(int code);
extern "C" void fake_hang(void);
extern "C" void fake_host_function(void);
extern "C" void fake_late(long ns);
extern "C" void fake_launch(const char* name, long delay, long ns);

// kernel computes y = x + s, after what mode asks for.
static void kernel(ffi::TensorView x, double s, int64_t mode, ffi::Optional<ffi::TensorView> state, ffi::TensorView y) {
  DLDevice d = x.device();
  TVM_FFI_CHECK(TVMFFIEnvGetStream(d.device_type, d.device_id) != nullptr, RuntimeError) << "no stream";
  if (mode == 3) TVM_FFI_THROW(ValueError) << "mode 3";
  ffi::Tensor w = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), d);
  for (int64_t i = 0; i < x.size(0); ++i) {
    static_cast<float*>(w.data_ptr())[i] = static_cast<const float*>(x.data_ptr())[i] + static_cast<float>(s);
    static_cast<float*>(y.data_ptr())[i] = static_cast<float*>(w.data_ptr())[i];
  }
  if (state.has_value()) static_cast<float*>(state.value().data_ptr())[0] += 1;
  if (mode == 1) fake_fault(700);
  if (mode == 2) fake_hang();
  // Modes 10 to 13 launch what CUPTI records: two kernels with a gap of 2 us between them; another kernel in the third call; a host
  // function, and a kernel of another thread after the call.
  static int calls = 0;
  if (mode >= 10) fake_launch("_Z5firstPfi", 1000, 3000);
  if (mode == 11) fake_launch("second", 6000, 500);
  if (mode == 12 && ++calls % 64 == 0) fake_launch("now_and_then", 6000, 500);
  if (mode == 13) fake_host_function(), fake_late(2000);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);
