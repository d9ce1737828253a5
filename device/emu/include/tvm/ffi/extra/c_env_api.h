// The stream and the allocator that the caller provides.
#ifndef FISUB_EMU_TVM_FFI_C_ENV_API_H_
#define FISUB_EMU_TVM_FFI_C_ENV_API_H_

#include <tvm/ffi/c_api.h>

typedef void* TVMFFIStreamHandle;

#ifdef __cplusplus
extern "C" {
#endif
TVMFFIStreamHandle TVMFFIEnvGetStream(int32_t device_type, int32_t device_id);
int TVMFFIEnvSetStream(int32_t device_type, int32_t device_id, TVMFFIStreamHandle stream, TVMFFIStreamHandle* previous);
int TVMFFIEnvTensorAlloc(DLTensor* prototype, TVMFFIObjectHandle* out);
int TVMFFIEnvCheckSignals(void);
#ifdef __cplusplus
}
#endif

#endif  // FISUB_EMU_TVM_FFI_C_ENV_API_H_
