//go:build linux && cgo

// Package tvmffi calls functions that a shared object exports with the tvm-ffi C ABI, passing tensors and scalars like
// the contest's Python harness (spec section 4.4). It uses libtvm_ffi and DLPack, but not CUDA: device memory is an
// address, a stream a pointer.
package tvmffi

/*
#cgo LDFLAGS: -ldl -lpthread
#include <dlfcn.h>
#include <stdlib.h>
#include "abi.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strings"
	"unsafe"

	"fisub/device"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A Library is libtvm_ffi; it is never unloaded.
type Library struct{ ffi C.fisub_ffi }

// A Device is a DLPack device.
type Device struct {
	Type int // 1 is the CPU, 2 CUDA
	ID   int
}

// CPU is host memory.
var CPU = Device{Type: C.DL_CPU}

// CUDA returns the GPU with the ordinal.
func CUDA(ordinal int) Device { return Device{Type: C.DL_CUDA, ID: ordinal} }

func (d Device) c() C.fisub_dl_device {
	return C.fisub_dl_device{device_type: C.int32_t(d.Type), device_id: C.int32_t(d.ID)}
}

// A Tensor is contiguous row-major memory on a device. Data is not Go memory, and must outlive the Args made with it.
type Tensor struct {
	Data   uintptr
	Device Device
	DType  tensor.DType
	Shape  []int
}

// An Arg is a tensor, a scalar, or None if both are nil.
type Arg struct {
	Tensor *Tensor
	Scalar *trace.Scalar
}

// Load loads libs in order, with global symbols, and binds tvm-ffi's entry points from libtvm_ffi.so. A library whose
// file name is loaded in the process is not loaded again.
func Load(libs ...string) (*Library, error) {
	l := &Library{}
	bound := false
	for _, lib := range libs {
		path := C.CString(lib)
		var message *C.char
		if filepath.Base(lib) == "libtvm_ffi.so" {
			message = C.fisub_ffi_bind(&l.ffi, path)
			bound = true
		} else {
			C.fisub_dlopen(path, 1, &message)
		}
		C.free(unsafe.Pointer(path))
		if message != nil {
			return nil, fmt.Errorf("loading %s: %s", lib, take(message))
		}
	}
	if !bound {
		return nil, errors.New("tvm-ffi: missing library libtvm_ffi.so")
	}
	return l, nil
}

// take copies a C string and frees it.
func take(s *C.char) string {
	defer C.free(unsafe.Pointer(s))
	return C.GoString(s)
}

// A Func is an exported function of a loaded shared object.
type Func struct {
	lib *Library
	fn  unsafe.Pointer
}

// Func loads the shared object at path and returns its function symbol. The object is never unloaded, because tvm-ffi
// and the CUDA runtime refer to its code. If it does not load, or symbol is missing, the error is a *device.BuildError
// with the contest's text.
func (l *Library) Func(path, symbol string) (*Func, error) {
	cpath, csymbol := C.CString(path), C.CString(symbol)
	defer C.free(unsafe.Pointer(cpath))
	defer C.free(unsafe.Pointer(csymbol))
	var message *C.char
	handle := C.fisub_dlopen(cpath, 0, &message)
	if handle == nil {
		text := take(message)
		if strings.Contains(text, "undefined symbol") {
			return nil, &device.BuildError{Text: "Shared library has unresolved symbols: " + text}
		}
		return nil, &device.BuildError{Text: "Failed to load compiled module: " + text}
	}
	fn := C.dlsym(handle, csymbol)
	if fn == nil {
		entry := strings.TrimPrefix(symbol, "__tvm_ffi_")
		return nil, &device.BuildError{Text: fmt.Sprintf("Entry point '%s' not found in module", entry)}
	}
	return &Func{l, fn}, nil
}

// Args are converted arguments for any number of calls.
type Args struct {
	lib    *Library
	values *C.fisub_any // C memory
	n      int
}

// Args converts args. A tensor becomes an owning Tensor object with strides, like torch's in Python.
func (l *Library) Args(args []Arg) (*Args, error) {
	if len(args) > math.MaxInt32 {
		return nil, errors.New("tvm-ffi: too many arguments")
	}
	a := &Args{lib: l, n: len(args)}
	a.values = (*C.fisub_any)(C.calloc(C.size_t(max(1, len(args))), C.sizeof_fisub_any))
	values := unsafe.Slice(a.values, len(args))
	for i, arg := range args {
		if err := l.convert(&values[i], arg); err != nil {
			a.Close()
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
	}
	return a, nil
}

func (l *Library) convert(v *C.fisub_any, arg Arg) error {
	payload := unsafe.Pointer(&v.anon0)
	switch {
	case arg.Tensor != nil:
		t := arg.Tensor
		dtype, ok := dlDType(t.DType)
		if !ok {
			return fmt.Errorf("tvm-ffi has no dtype for %s", t.DType)
		}
		if len(t.Shape) > 64 {
			return fmt.Errorf("a tensor of rank %d", len(t.Shape))
		}
		shape := make([]C.int64_t, max(1, len(t.Shape)))
		for i, s := range t.Shape {
			if s < 0 {
				return fmt.Errorf("shape %v", t.Shape)
			}
			shape[i] = C.int64_t(s)
		}
		var object unsafe.Pointer
		var raised *C.fisub_error
		rc := C.fisub_tensor(&l.ffi, C.uint64_t(t.Data), t.Device.c(), dtype, C.int32_t(len(t.Shape)), &shape[0],
			&object, &raised)
		if err := l.result(rc, raised); err != nil {
			return err
		}
		v.type_index = C.FFI_TENSOR
		*(*unsafe.Pointer)(payload) = object
	case arg.Scalar == nil:
		v.type_index = C.FFI_NONE
	case arg.Scalar.Kind == trace.FloatScalar:
		v.type_index = C.FFI_FLOAT
		*(*float64)(payload) = arg.Scalar.Float
	case arg.Scalar.Kind == trace.BoolScalar:
		v.type_index = C.FFI_BOOL
		if arg.Scalar.Bool {
			*(*int64)(payload) = 1
		}
	default:
		v.type_index = C.FFI_INT
		*(*int64)(payload) = arg.Scalar.Int
	}
	return nil
}

// Close releases the argument objects, but not the tensors' memory.
func (a *Args) Close() {
	for _, v := range unsafe.Slice(a.values, a.n) {
		if v.type_index >= C.FFI_OBJECT {
			C.fisub_dec_ref(&a.lib.ffi, *(*unsafe.Pointer)(unsafe.Pointer(&v.anon0)))
		}
	}
	C.free(unsafe.Pointer(a.values))
	a.values, a.n = nil, 0
}

// Call calls f on the current thread and releases the result. An error raised by f is a *device.CallError.
func (f *Func) Call(a *Args) error {
	var raised *C.fisub_error
	rc := C.fisub_call(&f.lib.ffi, f.fn, a.values, C.int32_t(a.n), &raised)
	return f.lib.result(rc, raised)
}

// SetStream sets the stream, a CUstream, for functions called on this thread, to which the goroutine must be locked.
func (l *Library) SetStream(d Device, stream unsafe.Pointer) error {
	var raised *C.fisub_error
	rc := C.fisub_set_stream(&l.ffi, d.c(), stream, &raised)
	return l.result(rc, raised)
}

// SetAllocator sets the allocator of d for tensors that functions called on this thread request from tvm-ffi; the
// goroutine must be locked to it. alloc and release are C functions with the signatures of cuMemAlloc and cuMemFree;
// nil is the C heap, for the CPU. Freed memory is kept for the next tensor of its size, in stream order like torch's;
// Trim frees it. A process can have an allocator for one device at a time.
func (l *Library) SetAllocator(d Device, alloc, release unsafe.Pointer) error {
	var raised *C.fisub_error
	rc := C.fisub_set_allocator(&l.ffi, d.c(), alloc, release, &raised)
	return l.result(rc, raised)
}

// Trim frees unused memory of the allocator and returns the bytes in use.
func Trim() (used int) { return int(C.fisub_trim()) }

// result returns nil if rc is 0; otherwise it converts and releases the raised error.
func (l *Library) result(rc C.int, raised *C.fisub_error) error {
	switch {
	case rc == 0:
		return nil
	case raised == nil:
		return &device.CallError{Kind: "RuntimeError", Text: fmt.Sprintf("returned %d without an error message", int(rc))}
	}
	defer C.fisub_dec_ref(&l.ffi, unsafe.Pointer(raised))
	return &device.CallError{Kind: text(raised.kind), Text: text(raised.message),
		Log: own.ReplaceAllString(text(raised.backtrace), "")}
}

// own matches fisub's, TVM-FFI's and Go's frames in a backtrace.
var own = regexp.MustCompile(
	`(?m)^ *File "[^"]*", line \d+, in (?:_cgo_|fisub_|__tvm_ffi_|crosscall|runtime\.|main\.)\S*\n?`)

func text(b C.fisub_bytes) string {
	const limit = 1 << 20
	if b.data == nil {
		return ""
	}
	return strings.ToValidUTF8(C.GoStringN(b.data, C.int(min(b.size, limit))), "\ufffd")
}

func dlDType(d tensor.DType) (t C.fisub_dl_dtype, ok bool) {
	code, ok := map[tensor.DType]C.uint8_t{
		tensor.Int64: 0, tensor.Int32: 0, tensor.Int16: 0, tensor.Int8: 0,
		tensor.Float32: 2, tensor.Float16: 2, tensor.BFloat16: 4, tensor.Bool: 6,
		tensor.Float8E4M3FN: 10, tensor.Float8E5M2: 12,
	}[d]
	if !ok {
		return t, false
	}
	return C.fisub_dl_dtype{code: code, bits: C.uint8_t(d.Bits()), lanes: 1}, true
}
