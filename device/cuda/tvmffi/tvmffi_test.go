//go:build linux && cgo

package tvmffi

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// build builds a C++ solution with the real tvm-ffi headers and loads tvm-ffi.
func build(t *testing.T, entry, source string) (*Library, *nvcc.Object) {
	t.Helper()
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := nvcc.Find(root)
	if err != nil {
		longtest.Missing(t, "toolchain", err)
	}
	sol := &trace.Solution{Spec: trace.BuildSpec{Language: trace.CPP, EntryPoint: "k.cpp::" + entry},
		Sources: []trace.SourceFile{{Path: "k.cpp", Content: source}}}
	o, err := tools.Build(context.Background(), root, sol, "sm_90")
	if err != nil {
		var build *device.BuildError
		if errors.As(err, &build) {
			t.Fatalf("%v\n%s", err, build.Log)
		}
		t.Fatal(err)
	}
	lib, err := Load(o.Libs...)
	if err != nil {
		t.Fatal(err)
	}
	return lib, o
}

func inspect(t *testing.T) (*Library, func(name string) *Func) {
	t.Helper()
	source, err := os.ReadFile("testdata/inspect.cpp")
	if err != nil {
		t.Fatal(err)
	}
	lib, o := build(t, "report", string(source))
	return lib, func(name string) *Func {
		t.Helper()
		f, err := lib.Func(o.Path, "__tvm_ffi_"+name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
}

// memory returns n bytes outside Go's heap.
func memory(t *testing.T, n int) []byte {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	return b
}

func at(b []byte, d tensor.DType, shape ...int) Arg {
	return Arg{Tensor: &Tensor{Data: uintptr(unsafe.Pointer(&b[0])), Device: CPU, DType: d, Shape: shape}}
}

func floats(b []byte, n int) []float32 { return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n) }

func integer(n int64) Arg { return Arg{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: n}} }
func float(x float64) Arg { return Arg{Scalar: &trace.Scalar{Kind: trace.FloatScalar, Float: x}} }
func boolean(b bool) Arg  { return Arg{Scalar: &trace.Scalar{Kind: trace.BoolScalar, Bool: b}} }
func none() Arg           { return Arg{} }

func call(t *testing.T, lib *Library, f *Func, args ...Arg) error {
	t.Helper()
	a, err := lib.Args(args)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	return f.Call(a)
}

func TestArguments(t *testing.T) {
	lib, fn := inspect(t)
	f := fn("report")
	cuda := func(d tensor.DType, shape ...int) Arg {
		return Arg{Tensor: &Tensor{Data: 1 << 20, Device: CUDA(3), DType: d, Shape: shape}}
	}
	tests := []struct {
		name string
		args []Arg
		want string
	}{
		{"nothing", nil, ""},
		{"scalars", []Arg{integer(-7), integer(math.MaxInt64), float(0.25), boolean(true), boolean(false), none()},
			"[1 0 -7][1 0 9223372036854775807][3 0 0.25][2 0 1][2 0 0][0 0 0]"},
		{"matrix", []Arg{cuda(tensor.Float32, 2, 3, 4)},
			"[70 0 dtype 2/32/1 device 2:3 offset 0 shape 2 3 4 strides 12 4 1]"},
		{"empty", []Arg{cuda(tensor.BFloat16, 0, 5)}, "[70 0 dtype 4/16/1 device 2:3 offset 0 shape 0 5 strides 5 1]"},
		{"rank 0", []Arg{cuda(tensor.Int64)}, "[70 0 dtype 0/64/1 device 2:3 offset 0 shape strides]"},
		{"dtypes", []Arg{cuda(tensor.Float16, 1), cuda(tensor.Float8E4M3FN, 1), cuda(tensor.Float8E5M2, 1),
			cuda(tensor.Int32, 1),
			cuda(tensor.Int16, 1), cuda(tensor.Int8, 1), cuda(tensor.Bool, 1)},
			"2/16/1 10/8/1 12/8/1 0/32/1 0/16/1 0/8/1 6/8/1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := call(t, lib, f, tt.args...)
			var ce *device.CallError
			if !errors.As(err, &ce) || ce.Kind != "ValueError" {
				t.Fatalf("got %v, want a ValueError", err)
			}
			got := ce.Text
			if tt.name == "dtypes" {
				var types []string
				for _, part := range strings.Split(got, "[70 0 dtype ")[1:] {
					types = append(types, strings.Fields(part)[0])
				}
				got = strings.Join(types, " ")
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if !strings.Contains(ce.Log, "report") || strings.Contains(ce.Log, "fisub_call") {
				t.Errorf("got backtrace %q, want it to name the function, and no frame of fisub", ce.Log)
			}
		})
	}
	for name, bad := range map[string]Arg{"float4": cuda(tensor.Float4E2M1, 2), "negative": cuda(tensor.Int8, -1),
		"rank": cuda(tensor.Int8, make([]int, 65)...)} {
		if a, err := lib.Args([]Arg{integer(1), bad}); err == nil || !strings.HasPrefix(err.Error(), "argument 1: ") {
			t.Errorf("%s: got %v, %v, want an error about argument 1", name, a, err)
		}
	}
}

func TestCall(t *testing.T) {
	lib, fn := inspect(t)
	f := fn("scale")
	x, y, z := memory(t, 4096), memory(t, 4096), memory(t, 4096)
	copy(floats(x, 4), []float32{1, 2, 3, 4})
	a, err := lib.Args([]Arg{at(x, tensor.Float32, 4), float(0.5), at(z, tensor.Float32, 1), boolean(true), integer(4),
		at(y, tensor.Float32, 4)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for range 3 {
		if err := f.Call(a); err != nil {
			t.Fatal(err)
		}
	}
	if got := floats(y, 4); !slices.Equal(got, []float32{1, 2, 3, 4}) || floats(z, 1)[0] != -1 {
		t.Errorf("got y = %v, z = %v, want [1 2 3 4] and -1", got, floats(z, 1))
	}
	// An int for a float and a bool for an int are accepted, as from Python; None is an absent optional.
	if err := call(t, lib, f, at(x, tensor.Float32, 4), integer(3), none(), integer(0), boolean(true),
		at(y, tensor.Float32, 4)); err != nil {
		t.Fatal(err)
	}
	if got := floats(y, 4); !slices.Equal(got, []float32{3, 2, 3, 4}) {
		t.Errorf("got y = %v, want [3 2 3 4]", got)
	}
}

func TestCallErrors(t *testing.T) {
	lib, fn := inspect(t)
	x := memory(t, 4096)
	tests := []struct {
		name, entry string
		args        []Arg
		kind, text  string
	}{
		{"arity", "scale", []Arg{integer(1)}, "TypeError", "Mismatched number of arguments when calling: `scale("},
		{"arity counts", "scale", []Arg{integer(1)}, "TypeError", "Expected 6 but got 1 arguments"},
		{"float for an int", "scale", []Arg{at(x, tensor.Float32, 1), float(1), none(), boolean(true), float(1),
			at(x, tensor.Float32, 1)},
			"TypeError", "Mismatched type on argument #4 when calling: `scale("},
		{"scalar for a tensor", "scale", []Arg{integer(1), float(1), none(), boolean(true), integer(1),
			at(x, tensor.Float32, 1)},
			"TypeError", "but got `int`"},
		{"none for a tensor", "stream", []Arg{none()}, "TypeError", "but got `None`"},
		{"C++ exception", "throws", nil, "InternalError", "plain C++ exception"},
		{"no error raised", "silent", nil, "RuntimeError", "returned -1 without an error message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var ce *device.CallError
			if err := call(t, lib, fn(tt.entry), tt.args...); !errors.As(err, &ce) || ce.Kind != tt.kind ||
				!strings.Contains(ce.Text, tt.text) {
				t.Errorf("got %v, want %s: ...%s...", err, tt.kind, tt.text)
			}
		})
	}
}

func TestStream(t *testing.T) {
	lib, fn := inspect(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out := memory(t, 4096)
	stream := unsafe.Pointer(&memory(t, 4096)[0]) // any address will do
	if err := lib.SetStream(CPU, stream); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lib.SetStream(CPU, nil) }()
	if err := call(t, lib, fn("stream"), at(out, tensor.Int64, 1)); err != nil {
		t.Fatal(err)
	}
	if got := *(*uintptr)(unsafe.Pointer(&out[0])); got != uintptr(stream) {
		t.Errorf("got stream %#x, want %p", got, stream)
	}
}

func TestAllocator(t *testing.T) {
	lib, fn := inspect(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := fn("workspace")
	out := memory(t, 4096)
	values := unsafe.Slice((*int64)(unsafe.Pointer(&out[0])), 2)
	var ce *device.CallError
	if err := call(t, lib, f, at(out, tensor.Int64, 2), integer(100)); !errors.As(err, &ce) ||
		!strings.Contains(ce.Text, "allocator is nullptr") {
		t.Errorf("without an allocator: got %v, want tvm-ffi's error", err)
	}
	if err := lib.SetAllocator(CPU, nil, nil); err != nil {
		t.Fatal(err)
	}
	var addresses []int64
	for range 3 {
		if err := call(t, lib, f, at(out, tensor.Int64, 2), integer(100)); err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, values[0])
	}
	if addresses[0] == 0 || addresses[0]%512 != 0 || addresses[1] != addresses[0] || addresses[2] != addresses[0] ||
		values[1] != 100 {
		t.Errorf("got addresses %x and stride %d, want one address that is used again, and 100", addresses, values[1])
	}
	if used := Trim(); used != 0 {
		t.Errorf("got %d bytes in use, want the returned tensor released", used)
	}
	if err := call(t, lib, f, at(out, tensor.Int64, 2), integer(1<<61)); !errors.As(err, &ce) || ce.Kind != "ValueError" ||
		!strings.Contains(ce.Text, "out of range") {
		t.Errorf("2^62 floats: got %v, want a ValueError", err)
	}
	if err := call(t, lib, f, at(out, tensor.Int64, 2), integer(1<<55)); !errors.As(err, &ce) || ce.Kind != "MemoryError" {
		t.Errorf("2^56 floats: got %v, want a MemoryError", err)
	}
	if err := lib.SetAllocator(CUDA(1), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := call(t, lib, f, at(out, tensor.Int64, 2), integer(1)); !errors.As(err, &ce) ||
		!strings.Contains(ce.Text, "tensor on device (1, 0) asked for, this is device (2, 1)") {
		t.Errorf("another device: got %v, want a ValueError", err)
	}
}

func TestLoad(t *testing.T) {
	lib, o := build(t, "kernel", `extern "C" void nowhere();
extern "C" int __tvm_ffi_kernel(void*, const void*, int, void*) { nowhere(); return 0; }`)
	var be *device.BuildError
	if _, err := lib.Func(o.Path, o.Symbol); !errors.As(err, &be) ||
		!strings.HasPrefix(be.Text, "Shared library has unresolved symbols: ") || !strings.Contains(be.Text, "nowhere") {
		t.Errorf("undefined symbol: got %v, want a *device.BuildError that names it", err)
	}
	lib, o = build(t, "kernel", `extern "C" int __tvm_ffi_kernel(void*, const void*, int, void*) { return 0; }`)
	if _, err := lib.Func(o.Path, "__tvm_ffi_other"); !errors.As(err, &be) ||
		be.Text != "Entry point 'other' not found in module" {
		t.Errorf("other symbol: got %v, want a *device.BuildError", err)
	}
	if _, err := lib.Func(t.TempDir()+"/none.so", "x"); !errors.As(err, &be) ||
		!strings.HasPrefix(be.Text, "Failed to load compiled module: ") {
		t.Errorf("no file: got %v, want a *device.BuildError", err)
	}
	if _, err := Load(t.TempDir() + "/libnone.so"); err == nil || !strings.Contains(err.Error(), "libnone.so") {
		t.Errorf("no library: got %v, want an error", err)
	}
}
