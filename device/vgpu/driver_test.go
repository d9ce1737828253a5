//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// driverUser loads a module of PTX and encodes a tensor map with the driver API.
const driverUser = `
#include <cuda.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

static const char* ptx = R"(
.version 9.0
.target sm_100
.address_size 64
.visible .global .align 4 .b32 offset = 5;
.visible .entry add(.param .u64 out, .param .u32 value)
{
	.reg .b32 %r<9>; .reg .b64 %rd<9>;
	ld.param.u64 %rd1, [out];
	ld.param.u32 %r1, [value];
	ld.global.b32 %r2, [offset];
	mov.u32 %r3, %tid.x;
	add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
	mul.wide.u32 %rd2, %r3, 4; add.s64 %rd1, %rd1, %rd2;
	st.global.b32 [%rd1], %r1;
	ret;
}
)";

template <class F> static F entry(const char* name) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult found;
  TVM_FFI_CHECK(cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found) == cudaSuccess && f, RuntimeError) << name;
  return reinterpret_cast<F>(f);
}

static void run(tvm::ffi::TensorView out) {
  auto check = [](CUresult e, const char* what) { TVM_FFI_CHECK(e == CUDA_SUCCESS, RuntimeError) << what << " gives " << int(e); };
  TVM_FFI_CHECK(cudaProfilerStart() == cudaSuccess, RuntimeError) << "cudaProfilerStart";
  nvtxRangePushA("driver");
  CUmodule module;
  CUfunction function;
  check(entry<CUresult (*)(CUmodule*, const void*)>("cuModuleLoadData")(&module, ptx), "cuModuleLoadData");
  auto get = entry<CUresult (*)(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction");
  TVM_FFI_CHECK(get(&function, module, "absent") == CUDA_ERROR_NOT_FOUND, RuntimeError) << "absent is there";
  check(get(&function, module, "add"), "cuModuleGetFunction");
  void* data = out.data_ptr();
  unsigned value = 100;
  void* args[] = {&data, &value};
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32;
  check(entry<CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**)>("cuLaunchKernelEx")(&config, function, args, nullptr),
        "cuLaunchKernelEx");
  alignas(64) CUtensorMap map;
  cuuint64_t dims[2] = {8, 4}, strides[1] = {32};
  cuuint32_t box[2] = {8, 4}, steps[2] = {1, 1};
  auto encode = entry<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  auto tile = [&](CUtensorMapSwizzle swizzle) {
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  check(tile(CU_TENSOR_MAP_SWIZZLE_32B), "cuTensorMapEncodeTiled");
  data = nullptr; // CUTLASS sets the address later
  check(tile(CU_TENSOR_MAP_SWIZZLE_32B), "cuTensorMapEncodeTiled without an address");
  data = out.data_ptr();
  strides[0] = 36;
  TVM_FFI_CHECK(tile(CU_TENSOR_MAP_SWIZZLE_32B) == CUDA_ERROR_INVALID_VALUE, RuntimeError) << "a stride of 36 bytes is taken";
  cuuint64_t volume[3] = {8, 4, 4}, steps3[2] = {48, 192};
  cuuint32_t box3[3] = {4, 2, 2}, ones[3] = {1, 1, 1};
  auto interleaved = [&](CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle) {
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, data, volume, steps3, box3, ones, interleave, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  check(interleaved(CU_TENSOR_MAP_INTERLEAVE_16B, CU_TENSOR_MAP_SWIZZLE_NONE), "an interleaved map");
  TVM_FFI_CHECK(interleaved(CU_TENSOR_MAP_INTERLEAVE_32B, CU_TENSOR_MAP_SWIZZLE_32B) == CUDA_ERROR_INVALID_VALUE, RuntimeError)
      << "units of 32 bytes with a stride of 48 are taken";
  auto im2col = entry<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  auto pixels = [&](int lower, int upper, cuuint32_t n) {
    return im2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, data, volume, steps3, &lower, &upper, 4, n, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  check(pixels(-3, -1, 1024), "cuTensorMapEncodeIm2col");
  TVM_FFI_CHECK(pixels(-3, -1, 1025) == CUDA_ERROR_INVALID_VALUE, RuntimeError) << "1025 pixels are taken";
  TVM_FFI_CHECK(pixels(2, -2, 4) == CUDA_ERROR_INVALID_VALUE, RuntimeError) << "an empty box is taken";
  TVM_FFI_CHECK(pixels(-32769, 0, 4) == CUDA_ERROR_INVALID_VALUE, RuntimeError) << "a corner of 17 bits is taken";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);
`

func TestDriver(t *testing.T) {
	longtest.Skip(t, "runs nvcc")
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nvcc.Find(root); err != nil {
		t.Skip(err)
	}
	dev, err := Opener().Open(t.Context(), device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	unknown := map[string]string{"missing header cutlass/cutlass.h": "#include <cutlass/cutlass.h>", "": "#include <absent.h>"}
	for header, text := range unknown { // a missing header that the contest's image has is not a COMPILE_ERROR
		_, err := dev.Build(t.Context(), nil, &trace.Solution{Name: "header",
			Spec:    trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::kernel", DestinationPassingStyle: true},
			Sources: []trace.SourceFile{{Path: "kernel.cu", Content: text}},
		})
		if lacks := errors.Is(err, device.ErrUnsupported); err == nil || lacks != (header != "") || !strings.Contains(err.Error(), header) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	k, err := dev.Build(t.Context(), nil, &trace.Solution{
		Name:    "driver",
		Spec:    trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::kernel", DestinationPassingStyle: true},
		Sources: []trace.SourceFile{{Path: "kernel.cu", Content: driverUser}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := dev.Alloc(128)
	if err != nil {
		t.Fatal(err)
	}
	arg := device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Int32, Shape: []int{32}}}
	if err := k.Call(t.Context(), []device.Arg{arg}); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 128)
	if err := b.Read(out); err != nil {
		t.Fatal(err)
	}
	if v := binary.LittleEndian.Uint32(out[4*7:]); v != 112 {
		t.Errorf("got %d, want 112", v)
	}
}
