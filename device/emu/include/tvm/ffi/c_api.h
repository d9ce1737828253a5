// The part of TVM-FFI's C ABI through which an exported function is called.
#ifndef FISUB_EMU_TVM_FFI_C_API_H_
#define FISUB_EMU_TVM_FFI_C_API_H_

#include <dlpack/dlpack.h>

#define TVM_FFI_DLL_EXPORT __attribute__((visibility("default"), used))

typedef enum {
  kTVMFFINone = 0, kTVMFFIInt = 1, kTVMFFIBool = 2, kTVMFFIFloat = 3, kTVMFFIOpaquePtr = 4, kTVMFFIDataType = 5,
  kTVMFFIDevice = 6, kTVMFFIDLTensorPtr = 7, kTVMFFIRawStr = 8, kTVMFFIByteArrayPtr = 9, kTVMFFISmallStr = 11,
  kTVMFFIObject = 64, kTVMFFIStr = 65, kTVMFFIError = 67, kTVMFFIFunction = 68, kTVMFFIShape = 69, kTVMFFITensor = 70,
} TVMFFITypeIndex;

typedef void* TVMFFIObjectHandle;

typedef struct TVMFFIObject {
  uint64_t combined_ref_count;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
} TVMFFIObject;

typedef struct {
  int32_t type_index;
  union {
    uint32_t zero_padding, small_str_len;
  };
  union {
    int64_t v_int64;
    double v_float64;
    void* v_ptr;
    const char* v_c_str;
    TVMFFIObject* v_obj;
    DLDataType v_dtype;
    DLDevice v_device;
    char v_bytes[8];
  };
} TVMFFIAny;

typedef struct {
  const char* data;
  size_t size;
} TVMFFIByteArray;

typedef int (*TVMFFISafeCallType)(void* handle, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

static_assert(sizeof(TVMFFIObject) == 24 && sizeof(TVMFFIAny) == 16, "these are part of the ABI");

#ifdef __cplusplus
extern "C" {
#endif
int TVMFFIObjectIncRef(TVMFFIObjectHandle obj);
int TVMFFIObjectDecRef(TVMFFIObjectHandle obj);
void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
#ifdef __cplusplus
}
#endif

inline DLTensor* TVMFFITensorGetDLTensorPtr(TVMFFIObjectHandle obj) {
  return reinterpret_cast<DLTensor*>(static_cast<char*>(obj) + sizeof(TVMFFIObject));
}

#endif  // FISUB_EMU_TVM_FFI_C_API_H_
