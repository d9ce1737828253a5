//go:build linux && cgo

package vgpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/device"
	"fisub/device/devicetest"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// TestFaultsOfSources compiles kernels with one fault each. The message must begin with the line of the fault.
func TestFaultsOfSources(t *testing.T) {
	longtest.Skip(t, "compiles kernels")
	const outside = `invalid %s of 4 bytes at 0x[0-9a-f]+, %s argument 0 \(data\)$`
	cases := []struct{ name, body, config, text string }{
		{"past the end", "if (threadIdx.x == 5 && blockIdx.y == 1) p[n + 1000] = 1;", "dim3(1, 2), 32",
			`block \(0,1,0\), thread \(5,0,0\): ` + fmt.Sprintf(outside, "write", "4000 bytes past the end of")},
		{"just past the end", "p[n] = 1;", "1, 1", fmt.Sprintf(outside, "write", "0 bytes past the end of")},
		{"before the start", "p[0] = __ldg(p - 3000);", "1, 1", fmt.Sprintf(outside, "read", "12000 bytes before")},
		{"null", "*reinterpret_cast<int*>(static_cast<size_t>(n - 63)) = 3;", "1, 1", `invalid write of 4 bytes at 0x0, a null pointer$`},
		{"host memory", "**reinterpret_cast<int**>(p) = 3;", "1, 1", `invalid write of 4 bytes at 0x[0-9a-f]+, `},
		{"misaligned", "p[0] = reinterpret_cast<volatile double*>(p + 1)[0];", "1, 1", `misaligned read: address .* is not a multiple of 8$`},
		{"trap", "if (threadIdx.x == 3) __trap();", "1, 32", `thread \(3,0,0\): trap$`},
		{"assert", "assert(n < 0);", "1, 1", "thread \\(0,0,0\\): assertion `n < 0` failed$"},
		{"dynamic shared memory", "extern __shared__ volatile float s[]; s[4] = n; p[0] = s[4];", "1, 1, 16",
			`invalid write of 4 bytes of shared memory at 16, which has 16 bytes$`},
		{"local memory", "volatile float a[4] = {}; a[n * 100000] = 1; p[0] = a[n & 3];", "1, 1", `invalid write of 4 bytes of local memory$`},
		{"barrier that a warp leaves out", "if (threadIdx.x < 32) asm volatile(\"bar.sync 1, 64;\");", "1, 64", `deadlock: 32 threads of the block wait forever, this one in bar.sync, barrier 1, `},
		{"shared memory past its end", "__shared__ volatile float s[32]; s[threadIdx.x + n * 4096] = n; p[0] = s[0];", "1, 32",
			`invalid write of 4 bytes of shared memory at [0-9]+, which has 128 bytes$`},
		{"write to a constant", "const_cast<volatile float*>(table)[n & 1] = 1; p[0] = table[n & 1];", "1, 1",
			`trap$`}, // inserted by nvcc
		{"a barrier in a loop of unlike turns", "for (unsigned i = 0; i < threadIdx.x % 3; i++) { p[i] = n; __syncthreads(); } " +
			"if (p[40] == 0) __syncthreads(); p[50] = 1;", "1, 32", `bar(rier)?.*sync.* for lanes that never come`},
		{"a shuffle of half a warp", `if (threadIdx.x < 16) asm volatile("{.reg .b32 a; shfl.sync.bfly.b32 a, 1, 1, 31, -1;}"); ` +
			"else __syncthreads(); p[threadIdx.x] = 1;", "1, 32", `for lanes that never come`},
		{"__syncwarp without a lane", "if (threadIdx.x != 7) __syncwarp(); else __syncthreads(); p[threadIdx.x] = 1;", "1, 32",
			`for lanes that never come`},
		{"spin", "while (static_cast<volatile float*>(p)[0] == 0) {}", "1, 32", "32 threads of the block wait forever, this " +
			"one for a change of 0x0, which it reads from 0x[0-9a-f]+ \\(byte 0 of argument 0 \\(data\\)\\)"},
		{"hang", "while (clock64() >= 0) {}", "1, 32", "stopped"},
	}
	faults := len(cases)
	// Hazards, which are faults for one of compute-sanitizer's tools.
	cases = append(cases, []struct{ name, body, config, text string }{
		{"initcheck: shared memory", "__shared__ volatile float s[64]; s[2 * threadIdx.x] = 1; p[threadIdx.x] = s[threadIdx.x];", "1, 32",
			"read of unwritten shared memory$"},
		{"initcheck: local memory", "volatile float a[8]; a[n & 7] = 1; p[0] = a[n + 1 & 7];", "1, 1",
			"read of 4 unwritten bytes of local memory$"},
		{"racecheck: a sum in shared memory", "__shared__ float s; s = 0; __syncthreads(); s += p[threadIdx.x] + 1; " +
			"__syncthreads(); p[0] = s;", "1, 48", `race on shared memory: nothing orders this (read|write) and the (read|write) at `},
		{"racecheck: a sum in global memory", "if (threadIdx.x == 0) p[0] += blockIdx.x + 1;", "4, 32",
			`race on global memory: nothing orders this (read|write) and the (read|write) at .* of block \(.,0,0\), at byte 0 of argument 0 \(data\)$`},
		{"racecheck: a tile that is written anew too soon", `__shared__ float s[64]; for (int i = 0; i < 4; i++) {
			s[threadIdx.x] = i * n + threadIdx.x; __syncthreads(); p[threadIdx.x / 2] = s[63 - threadIdx.x] * 0; }`, "1, 64",
			"race on shared memory"},
		{"memcheck: division by zero", "p[0] = n / (n - 63);", "1, 1", "integer division by zero$"},
	}...)
	var source, calls strings.Builder
	source.WriteString("#include <cassert>\n#include <vector>\n#include <tvm/ffi/container/tensor.h>\n" +
		"#include <tvm/ffi/function.h>\n__constant__ float table[2];\n")
	const before = 5 // lines
	for i, c := range cases {
		fmt.Fprintf(&source, "__global__ void k%d(float* p, int n) { %s }\n", i, strings.ReplaceAll(c.body, "\n", " "))
		fmt.Fprintf(&calls, "  case %d: k%d<<<%s>>>(p, n); break;\n", i, i, c.config)
	}
	fmt.Fprintf(&source, `__global__ void __launch_bounds__(64) bounded(float* p) { p[0] = 1; }
__global__ void first(const float* from, float* to) { to[0] = from[0]; }
void run(tvm::ffi::TensorView t, int64_t which) {
  float* p = static_cast<float*>(t.data_ptr());
  const int n = static_cast<int>(t.numel());
  switch (which) {
%s  case 100: bounded<<<0, 1>>>(p); break;
  case 101: bounded<<<1, 128>>>(p); break;
  case 102: bounded<<<1, 1, 50000>>>(p); break;
  case 103: bounded<<<1, 2048>>>(p); break;
  case 109: { void* all[] = {&p}; cudaLaunchCooperativeKernel(reinterpret_cast<void*>(bounded), 5000, 64, all, 0, nullptr); } break;
  case 104: p[1] = 1; bounded<<<1, 1>>>(p); break;
  case 115: p[1024] = 1; break;
  case 119: { // a part of large memory becomes 0, and the host still cannot access it
    unsigned char *own, v[4];
    size_t n = 3 << 20;
    cudaMalloc(&own, n);
    cudaMemset(own, 5, n);
    cudaMemset(own + 7, 0, n - 9);
    cudaMemcpy(v, own + 6, 2, cudaMemcpyDeviceToHost);
    cudaMemcpy(v + 2, own + n - 3, 2, cudaMemcpyDeviceToHost);
    TVM_FFI_CHECK(v[0] == 5 && v[1] == 0 && v[2] == 0 && v[3] == 5, RuntimeError) << +v[0] << +v[1] << +v[2] << +v[3];
    own[1 << 20] = 1;
  } break;
  case 105: { float big[64]; cudaMemcpyAsync(p, big, sizeof big, cudaMemcpyHostToDevice); } break;
  case 106: cudaMemset(p + 60, 0, 16); break;
  case 107: {
    float *own, *pinned, x;
    cudaMalloc(&own, 4096);
    cudaMallocHost(&pinned, 4096);
    cudaMemcpy(own, p, 252, cudaMemcpyDeviceToDevice);
    bounded<<<1, 1>>>(own);
    cudaMemcpy(&x, own, 4, cudaMemcpyDeviceToHost);
    bounded<<<1, 1>>>(pinned);
    TVM_FFI_CHECK(x == 1 && pinned[0] == 1, RuntimeError) << x << " and " << pinned[0];
    cudaFree(own);
    cudaFreeHost(pinned);
  } break;
  case 110: case 111: case 112: case 113: case 114: {
    float* own;
    which == 114 ? cudaMallocManaged(&own, 64) : cudaMalloc(&own, 64);
    if (which == 111) cudaMemset(own, 0, 64);
    if (which == 112) cudaMemcpy(own, p, 64, cudaMemcpyDeviceToDevice);
    if (which == 113) first<<<1, 1>>>(p, own);
    first<<<1, 1>>>(own, p);
    cudaFree(own);
  } break;
  case 108: { float* own; cudaMalloc(&own, 64); p = own; std::vector<float> v(own, own + 4); } break;
  case 130: case 131: {
    cudaGraph_t g;
    cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal);
    cudaStreamEndCapture(nullptr, &g);
    if (which == 131) cudaGetLastError();
    bounded<<<1, 1>>>(p);
  } break;
  case 132: case 133:
    cudaMemsetAsync(nullptr, 0, 64, nullptr);
    if (which == 133) cudaGetLastError();
    break;
  case 116: cudaMemcpy(p, reinterpret_cast<void*>(0x123000), 16, cudaMemcpyHostToDevice); break;
  case 117: cudaMemcpy(p, reinterpret_cast<void*>(0xdead000000000010), 16, cudaMemcpyHostToDevice); break;
  case 118: cudaMemcpy(reinterpret_cast<void*>(0xdead000000000010), p, 16, cudaMemcpyDeviceToHost); break;
  case 120: case 121: case 122: case 123: {
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, which == 123 ? cudaStreamDefault : cudaStreamNonBlocking);
    bounded<<<1, 1, 0, s>>>(p);
    cudaEvent_t e;
    cudaEventCreate(&e);
    cudaEventRecord(e, s);
    if (which == 121) cudaStreamWaitEvent(nullptr, e, 0);
    if (which == 122) cudaStreamSynchronize(s);
    cudaStreamDestroy(s);
  } break;
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
`, calls.String())
	sol := &trace.Solution{Name: "faults", Spec: trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::run",
		DestinationPassingStyle: true},
		Sources: []trace.SourceFile{{Path: "kernel.cu", Content: source.String()}}}
	def := &trace.Definition{}
	def.Inputs.Set("data", trace.TensorSpec{})
	root := devicetest.Cache(t)
	call := func(t *testing.T, which int64, tool string, limit time.Duration) (said string, fault error) {
		t.Helper()
		log := &bytes.Buffer{}
		d, err := Opener().Open(t.Context(), device.Options{CacheDir: root, Stderr: log, Sanitize: tool})
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
		if which == 4 { // an address in host memory
			if err := b.Write([]byte{0, 0, 0x10, 0, 0, 0x7f}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		recorded := ""
		d.(device.Observer).Forget()
		d.(device.Observer).Record(func(h device.Hazard) {
			if h.Kind == device.Faulted {
				recorded += h.Text
				return
			}
			fmt.Fprintf(log, "%s at %s: %s\n", h.Kind, h.Place, h.Text)
		})
		fault = k.Call(ctx, []device.Arg{{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Float32, Shape: []int{63}}},
			{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: which}}})
		var failed *device.CallError
		faulted := errors.As(fault, &failed) && failed.Kind == "DeviceFault"
		if faulted && !strings.Contains(failed.Text, recorded) || recorded == "" == faulted && ctx.Err() == nil {
			t.Errorf("recorded %q, want the fault %v", recorded, fault)
		}
		return log.String(), fault
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "hang" {
				log, err := call(t, int64(i), "", time.Second)
				want := fmt.Sprintf("^DeviceFault: kernel\\.cu:%d:[0-9]+: kernel k%d, block \\(0,0,0\\), thread \\(0,0,0\\): "+
					"timeout: still running\\n$", before+1+i, i)
				if !errors.Is(err, context.DeadlineExceeded) || !regexp.MustCompile(want).MatchString(log) {
					t.Errorf("got  %q, %v\nwant %s, %v", log, err, want, context.DeadlineExceeded)
				}
				return
			}
			want := fmt.Sprintf(`^kernel\.cu:%d(:[0-9]+)?: kernel k%d, .*%s`, before+1+i, i, c.text)
			tool := ""
			if i >= faults {
				tool, _, _ = strings.Cut(c.name, ":")
				kind := map[string]string{"initcheck": "unwritten-memory", "racecheck": "race", "memcheck": "division-by-zero"}[tool]
				hazard := fmt.Sprintf(`^%s at kernel\.cu:%d:[0-9]+: %s\n$`, kind, before+1+i, strings.Trim(want, "^$")+".*")
				log, err := call(t, int64(i), "", time.Minute)
				if err != nil || !regexp.MustCompile(hazard).MatchString(log) {
					t.Errorf("got  %q, %v\nwant %s", log, err, hazard)
				}
				others := slices.DeleteFunc(slices.Clone(device.Sanitizers), func(name string) bool { return name == tool })
				if _, err := call(t, int64(i), strings.Join(others, ","), time.Minute); err != nil {
					t.Errorf("got %v from %v", err, others)
				}
			}
			_, err := call(t, int64(i), tool, time.Minute)
			var fault *device.CallError
			if !errors.As(err, &fault) || !errors.Is(err, device.ErrFault) || fault.Kind != "DeviceFault" ||
				!regexp.MustCompile(want).MatchString(fault.Text) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
	const invalid = "cudaErrorInvalidValue: invalid argument"
	for which, want := range map[int64]string{
		100: "kernel bounded was not launched: grid (0,1,1) is out of range",
		101: "kernel bounded was not launched: a block of 128 threads is larger than its launch bounds of 64",
		102: "kernel bounded was not launched: 50000 bytes of dynamic shared memory are more than the 49152 that " +
			"cudaFuncSetAttribute allowed",
		103: "kernel bounded was not launched: block (2048,1,1) is out of range",
		109: "kernel bounded was not launched: a cooperative launch of 5000 blocks, " +
			"of which only 4736 fit on the GPU at once",
	} {
		ignored := invalid
		if which == 109 {
			ignored = "cudaErrorCooperativeLaunchTooLarge: too many blocks in cooperative launch"
		}
		log, err := call(t, which, "", time.Minute)
		if err == nil || err.Error() != ignored || log != "refused-launch at bounded: "+want+"\n" {
			t.Errorf("got %q (%v), want %q and %s", log, err, want, ignored)
		}
		if _, err := call(t, which, "memcheck", time.Minute); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("memcheck: got %v, want %q", err, want)
		}
	}
	for which, want := range map[int64]string{
		104: `^host code in run writes device memory, byte 4 of argument 0 \(data\): on a GPU this is a segmentation fault$`,
		115: `^host code in run writes device memory, 3844 bytes past the end of argument 0 \(data\): `,
		105: `^cudaMemcpyAsync of 256 bytes at 0x[0-9a-f]+, crossing the end of argument 0 \(data\) by 4 bytes$`,
		106: `^cudaMemset of 16 bytes at 0x[0-9a-f]+, crossing the end of argument 0 \(data\) by 4 bytes$`,
		107: "",
		108: `^host code in run reads device memory, byte 0 of the submission's allocation 1 \(64 bytes\): `,
		119: `^host code in run writes device memory, byte 1048576 of the submission's allocation 1 \(3145728 bytes\): `,
		116: `^cudaMemcpy reads host memory at 0x123000, which is not accessible: on a GPU this is a segmentation fault$`,
		117: `^cudaMemcpy reads host memory at 0xdead000000000010, `,
		118: `^cudaMemcpy writes host memory at 0xdead000000000010, `,
	} {
		_, err := call(t, which, "", time.Minute)
		var fault *device.CallError
		if want == "" && err != nil || want != "" && (!errors.As(err, &fault) || !regexp.MustCompile(want).MatchString(fault.Text)) {
			t.Errorf("%d: got %v, want %q", which, err, want)
		}
	}
	for which, want := range map[int64]string{ // errors that the host code ignores, and the same errors cleared
		130: "cudaErrorIllegalState: the operation cannot be performed in the present state", 131: "", 132: invalid, 133: "",
	} {
		if _, err := call(t, which, "", time.Minute); (err != nil || want != "") && (err == nil || err.Error() != want) {
			t.Errorf("%d: got %v, want %q", which, err, want)
		}
	}
	for which := int64(120); which <= 123; which++ { // a non-blocking stream, one waited for in two ways, a blocking one
		want := ""
		if which == 120 {
			want = "late-write at bounded: kernel bounded may go on when the call has returned: nothing orders its stream, which is " +
				"non-blocking, with the stream of the call\n"
		}
		if log, err := call(t, which, "", time.Minute); err != nil || log != want {
			t.Errorf("%d: got %q (%v), want %q", which, log, err, want)
		}
	}
	for which := int64(110); which <= 114; which++ { // reads of memory that was not written (110) or was
		want, told := "^$", `^$`
		if which == 110 {
			told = "kernel\\.cu:[0-9]+:[0-9]+: kernel first, .*: read of 4 unwritten bytes of global memory at " +
				"0x[0-9a-f]+, byte 0 of the submission's allocation 1 \\(64 bytes\\)"
			want = "^unwritten-memory at kernel.cu:[0-9]+:[0-9]+: " + told + "\n$"
		}
		if log, err := call(t, which, "", time.Minute); err != nil || !regexp.MustCompile(want).MatchString(log) {
			t.Errorf("%d: got %q (%v), want %s", which, log, err, want)
		}
		if _, err := call(t, which, "initcheck", time.Minute); (err != nil) != (which == 110) ||
			err != nil && !regexp.MustCompile(told).MatchString(err.Error()) {
			t.Errorf("%d: got %v of initcheck, want %s", which, err, told)
		}
	}
}
