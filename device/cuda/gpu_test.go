//go:build cuda && linux && cgo

package cuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"fisub/device"
	"fisub/device/cuda/stamp"
	"fisub/device/devicetest"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// gpuFor opens the GPU for a test, or skips the test.
func gpuFor(t *testing.T) device.Device {
	t.Helper()
	d, err := Opener().Open(context.Background(), device.Options{})
	if err != nil {
		longtest.Missing(t, "cuda", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func solution(t *testing.T, file string) *trace.Solution {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return &trace.Solution{Name: file, Sources: []trace.SourceFile{{Path: file, Content: string(text)}},
		Spec: trace.BuildSpec{Language: trace.CUDA, EntryPoint: file + "::kernel", DestinationPassingStyle: true}}
}

func build(t *testing.T, d device.Device, sol *trace.Solution) device.Kernel {
	t.Helper()
	k, err := d.Build(context.Background(), &trace.Definition{}, sol)
	if err != nil {
		var be *device.BuildError
		if errors.As(err, &be) {
			t.Fatalf("%v\n%s", err, be.Log)
		}
		var missing *nvcc.MissingError
		if errors.As(err, &missing) {
			longtest.Missing(t, "toolchain", err)
		}
		t.Fatal(err)
	}
	return k
}

func floats(t *testing.T, d device.Device, values ...float32) device.Arg {
	t.Helper()
	b, err := d.Alloc(4 * len(values))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(bytesOf(values)); err != nil {
		t.Fatal(err)
	}
	return device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Float32, Shape: []int{len(values)}}}
}

func bytesOf(values []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values))
}

func want(t *testing.T, a device.Arg, want ...float32) {
	t.Helper()
	got := make([]float32, len(want))
	if err := a.Tensor.Buffer.Read(bytesOf(got)); err != nil {
		t.Error(err)
	} else if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func float(x float64) device.Arg {
	return device.Arg{Scalar: &trace.Scalar{Kind: trace.FloatScalar, Float: x}}
}
func integer(n int64) device.Arg {
	return device.Arg{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: n}}
}

// The TestFake tests below run in a child process, with testdata/fakecuda.c as libcuda.so.1 and testdata/fakecupti.c
// as libcupti.
func TestWithFakeDriver(t *testing.T) {
	longtest.Skip(t, "compiles a driver")
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler for the fake driver")
	}
	dir := t.TempDir()
	for lib, source := range map[string]string{"libcuda.so.1": "testdata/fakecuda.c",
		"extras/CUPTI/lib64/libcupti.so.13": "testdata/fakecupti.c"} {
		lib = filepath.Join(dir, lib)
		if err := os.MkdirAll(filepath.Dir(lib), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", lib,
			source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, tt := range []struct{ test, env string }{
		{"TestFakeDevice", ""}, {"TestFakeFault", ""}, {"TestFakeHang", ""},
		{"TestFakeNoGPU", "FAKE_CUDA_INIT=100"}, {"TestFakeBroken", "FAKE_CUDA_INIT=803"},
		{"TestFakeOld", "FAKE_CUDA_VERSION=12040"},
		// CUPTI of CUDA 13.0, 12.0, 12.9, and a version newer than all known.
		{"TestFakeCUPTI", "FAKE_CUPTI_VERSION=130001"}, {"TestFakeCUPTI", "FAKE_CUPTI_VERSION=19"},
		{"TestFakeCUPTI", "FAKE_CUPTI_VERSION=28"},
		{"TestFakeCUPTI", "FAKE_CUPTI_VERSION=140000"},
		{"TestFakeRefusal", "FAKE_CUPTI=subscribed"}, {"TestFakeRefusal", "FAKE_CUPTI=privileges"},
		{"TestFakeRefusal", "FAKE_CUPTI=drops"},
		{"TestFakeRefusal", "FAKE_CUPTI=zero"}, {"TestFakeRefusal", "FAKE_CUPTI=backwards"},
		{"TestFakeRefusal", "FAKE_CUPTI=strangers"},
	} {
		t.Run(tt.test+" "+tt.env, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout=2m", "-test.run=^"+tt.test+"$")
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "CUDA_HOME="+dir, "FISUB_FAKE_CUDA=1", tt.env)
			if tt.env == "FAKE_CUPTI=strangers" {
				cmd.Env = append(cmd.Env, "FAKE_CUPTI_VERSION=140000")
			}
			out, err := cmd.CombinedOutput()
			switch {
			case err != nil || !strings.Contains(string(out), tt.test):
				t.Errorf("%v\n%s", err, out)
			case strings.Contains(string(out), "--- SKIP"):
				t.Skipf("%s", out)
			}
		})
	}
}

func fake(t *testing.T) {
	t.Helper()
	if os.Getenv("FISUB_FAKE_CUDA") == "" {
		t.Skip("run by TestWithFakeDriver")
	}
}

func TestFakeNoGPU(t *testing.T) {
	fake(t)
	if _, err := Opener().Open(context.Background(), device.Options{}); !errors.Is(err, ErrNoGPU) {
		t.Errorf("got %v, want %v", err, ErrNoGPU)
	}
}

func TestFakeBroken(t *testing.T) {
	fake(t)
	_, err := Opener().Open(context.Background(), device.Options{})
	if !errors.Is(err, ErrUnavailable) || err.Error() != "cuda: device unavailable: cuInit: CUDA error 803" {
		t.Errorf("got %v, want ErrUnavailable with cuInit's result", err)
	}
}

func TestFakeOld(t *testing.T) {
	fake(t)
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	if tools, err := nvcc.Find(root); err != nil || tools.Major() < 13 {
		t.Skipf("no toolchain that the driver is too old for (%v)", err)
	}
	d, err := Opener().Open(context.Background(), device.Options{})
	if d != nil || !errors.Is(err, ErrDriverTooOld) ||
		!strings.Contains(err.Error(), "is for CUDA 12.4, kernels are built with CUDA 1") {
		t.Errorf("got %v, want %v with both versions", err, ErrDriverTooOld)
	}
}

func TestFakeDevice(t *testing.T) {
	fake(t)
	ctx := context.Background()
	_, err := Opener().Open(ctx, device.Options{Ordinal: 2})
	if !errors.Is(err, ErrOrdinal) || err.Error() != "cuda: no such device: ordinal 2; there are 0 (Fake 0), 1 (Fake 1)" {
		t.Errorf("got %v, want %v with what is there", err, ErrOrdinal)
	}
	d, err := Opener().Open(ctx, device.Options{Ordinal: 1})
	if err != nil {
		t.Fatal(err)
	}
	info := d.Info()
	info.Driver, info.Toolchain, info.CUDA = "", "", ""
	if want := (device.Info{Name: "Fake 1", Arch: "sm_90", Ordinal: 1, L2Bytes: 3 << 20, MemoryBytes: 2 << 30,
		UUID: "GPU-11111111-1111-1111-1111-111111111111", Multiprocessors: 132, Bandwidth: 128e9}); !reflect.DeepEqual(info,
		want) {
		t.Errorf("got %+v, want %+v", info, want)
	}
	if _, err := d.Alloc(2 << 30); err == nil ||
		err.Error() != "cuda: allocating 2147483648 bytes: CUDA_ERROR_OUT_OF_MEMORY: out of memory" {
		t.Errorf("got %v, want the driver's error", err)
	}

	k := build(t, d, solution(t, "fake.cpp"))
	x, y, state := floats(t, d, 1, 2, 3), floats(t, d, 0, 0, 0), floats(t, d, 0)
	none := device.Arg{}
	call := func(args ...device.Arg) error {
		t.Helper()
		if err := k.Call(ctx, args); err != nil {
			return err
		}
		return k.Sync(ctx)
	}
	if err := call(x, float(0.5), integer(0), none, y); err != nil {
		t.Fatal(err)
	}
	want(t, y, 1.5, 2.5, 3.5)
	// One different value in the arguments makes them be converted again.
	z := floats(t, d, 0, 0, 0)
	args := []device.Arg{x, float(0.5), integer(0), none, z}
	for _, step := range []struct {
		change func()
		want   []float32
	}{
		{func() {}, []float32{1.5, 2.5, 3.5}},
		{func() { args[1] = float(2) }, []float32{3, 4, 5}},
		{func() { args[0].Tensor.Shape = []int{2}; args[1] = float(3) }, []float32{4, 5, 5}},
		{func() { args[0].Tensor.Shape = []int{3} }, []float32{4, 5, 6}},
		{func() { args[3] = state }, []float32{4, 5, 6}},
	} {
		step.change()
		if err := call(args...); err != nil {
			t.Fatal(err)
		}
		want(t, z, step.want...)
	}
	want(t, state, 1)

	halves, into := floats(t, d, make([]float32, 128)...), [][]byte{make([]byte, 12)}
	half := device.Arg{Tensor: &device.TensorArg{Buffer: halves.Tensor.Buffer.Slice(256, 12), DType: tensor.Float32,
		Shape: []int{3}}}
	if err := k.Probe(ctx, []device.Arg{x, float(4), integer(0), none, half}, 0xff, into); err != nil {
		t.Fatal(err)
	}
	if got := bytesOf([]float32{5, 6, 7}); !slices.Equal(into[0], got) {
		t.Errorf("probe: got %v, want %v", into[0], got)
	}
	want(t, halves, append(make([]float32, 64), 5, 6, 7, 0)...)
	if err := k.Probe(ctx, []device.Arg{x, float(4), integer(0), none, half}, 0xff,
		[][]byte{make([]byte, 13)}); err == nil {
		t.Error("probe of 13 bytes of an output of 12: got no error")
	}

	var ce *device.CallError
	if err := call(x, float(1), integer(3), none, y); !errors.As(err, &ce) || ce.Kind != "ValueError" ||
		ce.Text != "mode 3" {
		t.Errorf("got %v, want the solution's ValueError", err)
	}
	if err := call(x, float(1)); !errors.As(err, &ce) || ce.Kind != "TypeError" {
		t.Errorf("too few arguments: got %v, want a TypeError", err)
	}
	x.Tensor.Shape = []int{4}
	if err := call(x, float(1), integer(0), none, y); err == nil ||
		!strings.Contains(err.Error(), "argument 0: a buffer of 12 bytes cannot hold float32 [4]") {
		t.Errorf("shape beyond the buffer: got %v, want an error", err)
	}
	x.Tensor.Shape = []int{3}

	calls, told := 0, ""
	s, err := d.Measure(ctx, func() error {
		calls++
		time.Sleep(time.Millisecond)
		return k.Call(ctx, []device.Arg{x, float(7), integer(0), none, y})
	}, device.Plan{Warmup: 2, Iterations: 4, Trials: 3, ColdL2: true, Timer: device.TimerEvents,
		Timing: func(on bool) { told += fmt.Sprint(on, calls, " ") }})
	if err != nil {
		t.Fatal(err)
	}
	if calls != 3*(1+5+2+4) || len(s.Trials) != 3 || s.Timer != "cuda events" || !s.ColdL2 || s.TimerNote != "" ||
		s.Kernels != nil || s.Truncated {
		t.Errorf("got %d calls and %+v, want 36 calls and 3 trials", calls, s)
	}
	if want := "true 8 false 36 "; told != want {
		t.Errorf("told %q, want %q: the first trial is warm after 8 calls", told, want)
	}
	for _, row := range s.Trials {
		if len(row) != 4 || slices.Min(row) < time.Millisecond || slices.Max(row) > time.Second {
			t.Errorf("got %v, want 4 samples of at least 1ms", row)
		}
	}
	want(t, y, 8, 9, 10)
	s, err = d.Measure(ctx, func() error { time.Sleep(2 * time.Millisecond); return nil },
		device.Plan{Iterations: 100, Trials: 3, MaxTime: time.Millisecond, Timer: device.TimerEvents})
	if err != nil || len(s.Trials) != 1 || len(s.Trials[0]) != 1 || !s.Truncated {
		t.Errorf("out of time: got %+v, %v, want one sample", s, err)
	}
	if _, err := d.Measure(ctx, func() error { return errors.New("stop") },
		device.Plan{Iterations: 1, Trials: 1}); err == nil || err.Error() != "stop" {
		t.Errorf("got %v, want the call's error", err)
	}
	if _, err := d.Measure(ctx, func() error { return nil }, device.Plan{}); err == nil {
		t.Error("empty plan: got no error")
	}
	if _, err := d.Measure(ctx, func() error { return nil },
		device.Plan{Iterations: 1, Trials: 1, Timer: "sundial"}); err == nil ||
		!strings.Contains(err.Error(), `no timer "sundial"`) {
		t.Errorf("got %v, want an error about the timer", err)
	}

	for _, a := range []device.Arg{x, y, z, state, half, halves} {
		if err := a.Tensor.Buffer.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := call(x, float(7), integer(0), none, y); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("closed buffer: got %v, want an error", err)
	}
	if err := errors.Join(k.Close(), d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	d, err = Opener().Open(ctx, device.Options{Ordinal: 1})
	if err != nil {
		t.Fatal(err)
	}
	if n := d.Info().MemoryBytes - 2<<30; n != 0 {
		t.Errorf("got %d things not given back to the driver, want 0", n)
	}
}

// fakeMeasure times the fake solution in the given mode.
func fakeMeasure(t *testing.T, d device.Device, mode int64, plan device.Plan) (*device.Samples, error) {
	t.Helper()
	k := build(t, d, solution(t, "fake.cpp"))
	args := []device.Arg{floats(t, d, 1, 2, 3), float(1), integer(mode), {}, floats(t, d, 0, 0, 0)}
	return d.Measure(t.Context(), func() error { return k.Call(t.Context(), args) }, plan)
}

func TestFakeCUPTI(t *testing.T) {
	fake(t)
	d := gpuFor(t)
	plan := device.Plan{Warmup: 2, Iterations: 4, Trials: 3, ColdL2: true}
	for _, timer := range []string{"", device.TimerCUPTI} {
		plan.Timer = timer
		s, err := fakeMeasure(t, d, 10, plan)
		if err != nil {
			t.Fatal(err)
		}
		// The fill of twice the L2 is not among the activities.
		want := []device.Activity{{Kind: "kernel", Name: "first(float*, int)", Grid: [3]int{1, 2, 3}, Block: [3]int{32, 4, 1},
			Registers:         40,
			StaticSharedBytes: 1024, DynamicSharedBytes: 2048, LocalBytes: 16, MedianNS: 3000}}
		if s.Timer != "cupti" || s.TimerNote != "" || !slices.Equal(s.Kernels, want) || len(s.Trials) != 3 || s.Truncated {
			t.Errorf("got %+v, want 3 trials by CUPTI of %+v", s, want)
		}
		for _, row := range s.Trials {
			if !slices.Equal(row, []time.Duration{3000, 3000, 3000, 3000}) {
				t.Errorf("got %v, want 4 times 3us", row)
			}
		}
	}
	s, err := fakeMeasure(t, d, 11, plan)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Kernels) != 2 || s.Kernels[1].Name != "second" || s.Trials[2][3] < 5500 {
		t.Errorf("got %+v, want two kernels and the gap between them", s)
	}
	if s.Outside != nil || s.HostFunction != "" {
		t.Errorf("got %+v and %q, want no work outside of the windows", s.Outside, s.HostFunction)
	}
	s, err = fakeMeasure(t, d, 13, plan)
	if err != nil {
		t.Fatal(err)
	}
	if o := s.Outside; o == nil || o.Calls != 12 || len(o.Missed) != 12 || o.Work.Name != "late" || slices.Min(o.Missed) < 2000 ||
		s.HostFunction != "cuLaunchHostFunc" || s.Trials[2][3] != 3000 {
		t.Errorf("got %+v, %+v, want the kernel of the other thread outside of 12 windows", s, o)
	}
	var ce *device.CallError
	_, err = fakeMeasure(t, d, 0, plan)
	if !errors.As(err, &ce) || err.Error() != "ValueError: No kernel activities recorded for iteration 0" {
		t.Errorf("no kernel: got %v, want a CallError", err)
	}
	plan.Iterations = 100
	_, err = fakeMeasure(t, d, 12, plan)
	text := "ValueError: Inconsistent kernel names: {'_Z5firstPfi_0_0_0_10'} != {'_Z5firstPfi_0_0_0_10', " +
		"'now_and_then_0_0_0_10'}"
	if !errors.As(err, &ce) || err.Error() != text {
		t.Errorf("got %v, want %s", err, text)
	}
	if s, err := fakeMeasure(t, d, 10, device.Plan{Iterations: 1 << 30, Trials: 3,
		MaxTime: 20 * time.Millisecond}); err != nil || len(s.Trials) != 1 || !s.Truncated || s.Timer != "cupti" {
		t.Errorf("out of time: got %+v, %v, want a part of one trial", s, err)
	}
	if _, err := d.Measure(t.Context(), func() error { return errors.New("stop") }, plan); err == nil ||
		err.Error() != "stop" {
		t.Errorf("got %v, want the call's error", err)
	}
	if s, err := fakeMeasure(t, d, 10, device.Plan{Iterations: 2, Trials: 1}); err != nil || s.Timer != "cupti" {
		t.Errorf("after errors: got %+v, %v, want a measurement", s, err)
	}
}

func TestFakeRefusal(t *testing.T) {
	fake(t)
	d := gpuFor(t)
	plan := device.Plan{Iterations: 4, Trials: 2, Timer: device.TimerCUPTI}
	_, err := fakeMeasure(t, d, 10, plan)
	if !errors.Is(err, device.ErrTimer) {
		t.Fatalf("got %v, want %v", err, device.ErrTimer)
	}
	note := map[string]string{"subscribed": "cupti: cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
		"privileges": "cupti: cuptiActivityEnable: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
		"drops":      "cupti: 3 records were lost",
		"zero":       "cupti: a kernel was recorded without a time", "backwards": "cupti: a kernel was recorded from ",
		"strangers": "cupti: unknown version of CUPTI's records"}[os.Getenv("FAKE_CUPTI")]
	if !strings.Contains(err.Error(), note) {
		t.Errorf("got %v, want %s", err, note)
	}
	plan.Timer = device.TimerAuto
	s, err := fakeMeasure(t, d, 10, plan)
	if err != nil {
		t.Fatal(err)
	}
	if s.Timer != "cuda events" || !strings.Contains(s.TimerNote, note) || len(s.Trials) != 2 || s.Kernels != nil {
		t.Errorf("got %+v, want events with the note %s", s, note)
	}
}

func TestFakeFault(t *testing.T) {
	fake(t)
	ctx := context.Background()
	d := gpuFor(t)
	k := build(t, d, solution(t, "fake.cpp"))
	x, y := floats(t, d, 1), floats(t, d, 0)
	if err := k.Call(ctx, []device.Arg{x, float(1), integer(1), {}, y}); err != nil {
		t.Fatal(err)
	}
	text := "cuda: device fault: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
	if err := k.Sync(ctx); !errors.Is(err, ErrFault) || err.Error() != text {
		t.Errorf("got %v, want %s", err, text)
	}
	_, aerr := d.Alloc(1)
	for _, err := range []error{aerr, k.Sync(ctx), x.Tensor.Buffer.Read(make([]byte, 1)), k.Call(ctx, nil)} {
		if !errors.Is(err, ErrFault) {
			t.Errorf("after a fault: got %v, want %v", err, ErrFault)
		}
	}
	if err := errors.Join(k.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}

func TestFakeHang(t *testing.T) {
	fake(t)
	d := gpuFor(t)
	k := build(t, d, solution(t, "fake.cpp"))
	if err := k.Call(context.Background(), []device.Arg{floats(t, d, 1), float(1), integer(2), {},
		floats(t, d, 0)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := k.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	if err := k.Sync(context.Background()); !errors.Is(err, ErrFault) {
		t.Errorf("after it: got %v, want %v", err, ErrFault)
	}
}

// The tests below need a real GPU.

func TestGPU(t *testing.T) {
	d := gpuFor(t)
	ctx := context.Background()
	k := build(t, d, solution(t, "gpu.cu"))
	x, y := floats(t, d, 1, 2, 3), floats(t, d, 0, 0, 0)
	for mode, s := range map[int64]float64{0: 1, 1: 2, 4: 3} {
		if err := k.Call(ctx, []device.Arg{x, float(s), integer(mode), integer(3e6), y}); err != nil {
			t.Fatal(err)
		}
		// Read waits for the kernel, on any stream.
		want(t, y, 1+float32(s), 2+float32(s), 3+float32(s))
	}
	// Probe sees only work ordered with the device's stream: on another stream, a kernel of 3 ms finishes too late, a
	// very short one before the fill.
	for _, tt := range []struct {
		mode, ns  int64
		in, after []float32
	}{
		{0, 3e6, []float32{2, 3, 4}, []float32{2, 3, 4}},
		{1, 3e6, []float32{2, 3, 4}, []float32{2, 3, 4}},
		{5, 3e6, []float32{0, 0, 0}, []float32{2, 3, 4}},
		{5, 0, []float32{0, 0, 0}, []float32{0, 0, 0}},
	} {
		into := [][]byte{make([]byte, 12)}
		if err := errors.Join(k.Probe(ctx, []device.Arg{x, float(1), integer(tt.mode), integer(tt.ns), y}, 0, into),
			k.Sync(ctx)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(into[0], bytesOf(tt.in)) {
			t.Errorf("probe of mode %d, %d ns: got %v, want %v", tt.mode, tt.ns, into[0], bytesOf(tt.in))
		}
		want(t, y, tt.after...)
	}
	if b := d.Info().Bandwidth; b < 100e9 || b > 50e12 {
		t.Errorf("bandwidth: got %d bytes a second", b)
	}
	var ce *device.CallError
	if err := k.Call(ctx, []device.Arg{x, float(0), integer(3), integer(0), y}); !errors.As(err, &ce) ||
		ce.Kind != "cudaErrorInvalidValue" {
		t.Errorf("refused launch: got %v, want cudaErrorInvalidValue", err)
	}
	if err := k.Call(ctx, []device.Arg{x, float(9), integer(0), integer(0), y}); err != nil {
		t.Errorf("after a refused launch: %v", err)
	}
	for _, mode := range []int64{0, 1} {
		for _, cold := range []bool{false, true} {
			args := []device.Arg{x, float(1), integer(mode), integer(50_000), y}
			s, err := d.Measure(ctx, func() error { return k.Call(ctx, args) }, device.Plan{Warmup: 3, Iterations: 20, Trials: 2,
				ColdL2: cold, Timer: device.TimerEvents})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("mode %d, cold %v: %v", mode, cold, s.Trials)
			for _, row := range s.Trials {
				slices.Sort(row)
				if len(row) != 20 || row[10] < 45*time.Microsecond || row[10] > 90*time.Microsecond {
					t.Errorf("mode %d, cold %v: got %v for a kernel of 50us", mode, cold, row)
				}
			}
		}
	}
}

// CUPTI's times are the kernels' known times.
func TestGPUCUPTI(t *testing.T) {
	d := gpuFor(t)
	k := build(t, d, solution(t, "gpu.cu"))
	x, y := floats(t, d, 1, 2, 3), floats(t, d, 0, 0, 0)
	kernel := device.Activity{Kind: "kernel", Name: "add_after(float const*, float*, float, int, long long)",
		Grid: [3]int{1, 1, 1}, Block: [3]int{256, 1, 1}}
	narrow := kernel
	narrow.Block[0] = 32
	for _, tt := range []struct {
		mode     int64
		ns       int64
		low      time.Duration
		high     time.Duration
		kernels  []device.Activity
		anyOrder bool
	}{
		{0, 50_000, 49 * time.Microsecond, 56 * time.Microsecond, []device.Activity{kernel}, false},
		{1, 50_000, 49 * time.Microsecond, 56 * time.Microsecond, []device.Activity{kernel}, false},
		{0, 0, 500, 8 * time.Microsecond, []device.Activity{kernel}, false},
		{5, 10_000, 40 * time.Microsecond, 120 * time.Microsecond, []device.Activity{kernel, kernel}, false},
		{6, 10_000, 10 * time.Microsecond, 60 * time.Microsecond, []device.Activity{{Kind: "memset", Bytes: 12},
			{Kind: "memcpy", Bytes: 12}, kernel}, false},
		{7, 10_000, 59 * time.Microsecond, 90 * time.Microsecond, []device.Activity{narrow, kernel}, true},
	} {
		args := []device.Arg{x, float(1), integer(tt.mode), integer(tt.ns), y}
		for _, cold := range []bool{true, false} {
			begun := time.Now()
			s, err := d.Measure(t.Context(), func() error { return k.Call(t.Context(), args) },
				device.Plan{Warmup: 3, Iterations: 20, Trials: 2, ColdL2: cold, Timer: device.TimerCUPTI})
			if err != nil {
				t.Fatalf("mode %d: %v", tt.mode, err)
			}
			t.Logf("mode %d, cold %v, in %v: %v of %+v", tt.mode, cold, time.Since(begun), s.Trials, s.Kernels)
			for _, row := range s.Trials {
				slices.Sort(row)
				if len(row) != 20 || row[10] < tt.low || row[10] > tt.high {
					t.Errorf("mode %d, cold %v: got %v, want a median of %v to %v", tt.mode, cold, row, tt.low, tt.high)
				}
			}
			got := slices.Clone(s.Kernels)
			for i := range got {
				if got[i].Kind == "kernel" && (got[i].Registers < 4 || got[i].Registers > 255) {
					t.Errorf("mode %d: got %+v, want its registers", tt.mode, got[i])
				}
				if ns := got[i].MedianNS; ns <= 0 || ns > float64(tt.high) {
					t.Errorf("mode %d: got %+v, want its time, at most %v", tt.mode, got[i], tt.high)
				}
				got[i].Registers, got[i].MedianNS = 0, 0
			}
			if tt.anyOrder {
				slices.SortFunc(got, func(a, b device.Activity) int { return a.Block[0] - b.Block[0] })
			}
			if !slices.Equal(got, tt.kernels) {
				t.Errorf("mode %d: got %+v, want %+v", tt.mode, got, tt.kernels)
			}
		}
	}
	// With events, the gap before the kernel may count too, so the time is at least the kernel's.
	args := []device.Arg{x, float(1), integer(0), integer(200_000), y}
	var medians [2]time.Duration
	for i, timer := range []string{device.TimerCUPTI, device.TimerEvents} {
		s, err := d.Measure(t.Context(), func() error { return k.Call(t.Context(), args) },
			device.Plan{Iterations: 20, Trials: 1, ColdL2: true, Timer: timer})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(s.Trials[0])
		medians[i] = s.Trials[0][10]
	}
	t.Logf("200us kernel: CUPTI %v, events %v", medians[0], medians[1])
	if medians[1] < medians[0]-2*time.Microsecond || medians[1] > medians[0]+20*time.Microsecond {
		t.Errorf("200us kernel: CUPTI says %v, events %v", medians[0], medians[1])
	}
}

// A stamp as bench takes it during a timing.
func TestGPUStamp(t *testing.T) {
	d := gpuFor(t)
	meter, err := stamp.Open(d.Info().UUID)
	if err != nil {
		t.Skip(err)
	}
	defer meter.Close()
	k := build(t, d, solution(t, "gpu.cu"))
	args := []device.Arg{floats(t, d, 1), float(1), integer(0), integer(500_000), floats(t, d, 0)}
	devicetest.Stamp(t, meter.Begin, os.Getpid(), func(timing func(on bool)) error {
		_, err := d.Measure(t.Context(), func() error { return k.Call(t.Context(), args) },
			device.Plan{Iterations: 400, Trials: 1, Timing: timing})
		return err
	})
}

// A fault ends the process's use of the GPU: run in another process.
func TestGPUFault(t *testing.T) {
	if os.Getenv("FISUB_GPU_FAULT") == "" {
		_ = gpuFor(t)
		cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout=2m", "-test.run=^TestGPUFault$")
		cmd.Env = append(os.Environ(), "FISUB_GPU_FAULT=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	d := gpuFor(t)
	ctx := context.Background()
	k := build(t, d, solution(t, "gpu.cu"))
	if err := k.Call(ctx, []device.Arg{floats(t, d, 1), float(0), integer(2), integer(0), floats(t, d, 0)}); err != nil {
		t.Fatal(err)
	}
	if err := k.Sync(ctx); !errors.Is(err, ErrFault) || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") {
		t.Errorf("got %v, want %v with CUDA_ERROR_ILLEGAL_ADDRESS", err, ErrFault)
	}
	if _, err := d.Alloc(1); !errors.Is(err, ErrFault) {
		t.Errorf("after it: got %v, want %v", err, ErrFault)
	}
}
