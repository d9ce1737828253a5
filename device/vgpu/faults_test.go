//go:build linux && cgo

package vgpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"fisub/device"
	"fisub/device/devicetest"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// TestFaultsOfSources has nvcc compile kernels with a fault each; what is told begins with the line that the fault is on.
func TestFaultsOfSources(t *testing.T) {
	longtest.Skip(t, "compiles kernels")
	const outside = `invalid %s of 4 bytes at 0x[0-9a-f]+, %s argument 0 \(data\)$`
	cases := []struct{ name, body, config, text string }{
		{"past the end", "if (threadIdx.x == 5 && blockIdx.y == 1) p[n + 1000] = 1;", "dim3(1, 2), 32",
			`block \(0,1,0\), thread \(5,0,0\): ` + fmt.Sprintf(outside, "write", "4000 bytes past the end of")},
		{"just past the end", "p[n] = 1;", "1, 1", fmt.Sprintf(outside, "write", "0 bytes past the end of")},
		{"before the start", "p[0] = __ldg(p - 3000);", "1, 1", fmt.Sprintf(outside, "read", "12000 bytes in front of")},
		{"null", "*reinterpret_cast<int*>(static_cast<size_t>(n - 63)) = 3;", "1, 1", `invalid write of 4 bytes at 0x0, a null pointer$`},
		{"host memory", "**reinterpret_cast<int**>(p) = 3;", "1, 1", `invalid write of 4 bytes at 0x[0-9a-f]+, `},
		{"misaligned", "p[0] = reinterpret_cast<volatile double*>(p + 1)[0];", "1, 1", `misaligned read: address .* is no multiple of 8$`},
		{"trap", "if (threadIdx.x == 3) __trap();", "1, 32", `thread \(3,0,0\): trap$`},
		{"assert", "assert(n < 0);", "1, 1", "thread \\(0,0,0\\): assertion `n < 0` failed$"},
		{"dynamic shared memory", "extern __shared__ volatile float s[]; s[4] = n; p[0] = s[4];", "1, 1, 16",
			`invalid write of 4 bytes of shared memory at 16, which has 16 bytes$`},
		{"local memory", "volatile float a[4] = {}; a[n * 100000] = 1; p[0] = a[n & 3];", "1, 1", `invalid write of 4 bytes of local memory$`},
		{"barrier that a warp leaves out", "if (threadIdx.x < 32) asm volatile(\"bar.sync 1, 64;\");", "1, 64", `deadlock: 32 threads wait at bar.sync`},
		{"hang", "while (static_cast<volatile float*>(p)[0] == 0) {}", "1, 32", "stopped"},
	}
	var source, calls strings.Builder
	source.WriteString("#include <cassert>\n#include <tvm/ffi/container/tensor.h>\n#include <tvm/ffi/function.h>\n")
	const before = 3 // lines
	for i, c := range cases {
		fmt.Fprintf(&source, "__global__ void k%d(float* p, int n) { %s }\n", i, c.body)
		fmt.Fprintf(&calls, "  case %d: k%d<<<%s>>>(p, n); break;\n", i, i, c.config)
	}
	fmt.Fprintf(&source, `__global__ void __launch_bounds__(64) bounded(float* p) { p[0] = 1; }
void run(tvm::ffi::TensorView t, int64_t which) {
  float* p = static_cast<float*>(t.data_ptr());
  const int n = static_cast<int>(t.numel());
  switch (which) {
%s  case 100: bounded<<<0, 1>>>(p); break;
  case 101: bounded<<<1, 128>>>(p); break;
  case 102: bounded<<<1, 1, 50000>>>(p); break;
  case 103: bounded<<<1, 2048>>>(p); break;
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
`, calls.String())
	sol := &trace.Solution{Name: "faults", Spec: trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::run"},
		Sources: []trace.SourceFile{{Path: "kernel.cu", Content: source.String()}}}
	def := &trace.Definition{}
	def.Inputs.Set("data", trace.TensorSpec{})
	root := devicetest.Cache(t)
	call := func(t *testing.T, which int64, limit time.Duration) (said string, fault error) {
		t.Helper()
		log := &bytes.Buffer{}
		d, err := Opener().Open(t.Context(), device.Options{CacheDir: root, Stderr: log})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		k, err := d.Build(t.Context(), def, sol)
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.Alloc(4 * 63)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if err := b.Fill(0); err != nil {
			t.Fatal(err)
		}
		if which == 4 { // an address of the host
			if err := b.Write([]byte{0, 0, 0x10, 0, 0, 0x7f}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		fault = k.Call(ctx, []device.Arg{{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Float32, Shape: []int{63}}},
			{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: which}}})
		return log.String(), fault
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "hang" {
				if _, err := call(t, int64(i), time.Second); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want the end of the time limit", err)
				}
				return
			}
			_, err := call(t, int64(i), time.Minute)
			var fault *device.CallError
			want := fmt.Sprintf(`^kernel\.cu:%d:[0-9]+: kernel k%d, .*%s`, before+1+i, i, c.text)
			if !errors.As(err, &fault) || !errors.Is(err, device.ErrFault) || fault.Kind != "DeviceFault" ||
				!regexp.MustCompile(want).MatchString(fault.Text) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
	for which, want := range map[int64]string{
		100: "kernel bounded was not launched: grid (0,1,1) is out of range",
		101: "kernel bounded was not launched: a block of 128 threads is larger than its launch bounds of 64",
		102: "kernel bounded was not launched: 50000 bytes of dynamic shared memory are more than the 49152 that " +
			"cudaFuncSetAttribute allowed",
		103: "kernel bounded was not launched: block (2048,1,1) is out of range",
	} {
		if log, err := call(t, which, time.Minute); err != nil || log != "warning: "+want+"\n" {
			t.Errorf("got %q (%v), want %q", log, err, want)
		}
	}
}
