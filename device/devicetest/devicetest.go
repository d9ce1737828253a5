// Package devicetest checks a device against the contract of package device. Each implementation's test calls Run.
package devicetest

import (
	"bytes"
	"context"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

//go:embed testdata
var sources embed.FS

// Cache returns the folder for the tests' builds: $FISUB_DEVICETEST_CACHE, or one reused by later test runs, because
// compiling a kernel takes many seconds. It is not the user's cache.
func Cache(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("FISUB_DEVICETEST_CACHE")
	if dir == "" {
		root, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(root, "fisub", "test")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Share lets root, the cache of a program under test, use the user's toolchain and Cache's builds.
func Share(t testing.TB, root string) {
	t.Helper()
	dir := Cache(t)
	own, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"toolchain": own, "build": dir, "vgpu": dir} {
		from = filepath.Join(from, name)
		if err := errors.Join(os.MkdirAll(from, 0o755), os.Symlink(from, filepath.Join(root, name))); err != nil {
			t.Fatal(err)
		}
	}
}

// child is the variable naming the test of a child process; see isolated.
const child = "FISUB_DEVICETEST_CHILD"

// Run runs the suite on the device of opener, with builds in Cache.
func Run(t *testing.T, opener device.Opener) {
	s := &suite{opener: opener, opts: device.Options{CacheDir: Cache(t)}}
	for _, c := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"info", testInfo},
		{"memory", testMemory},
		{"slices", testSlices},
		{"build cache", testBuildCache},
		{"compile error", testCompileError},
		{"missing entry point", testMissingEntry},
		{"output", testOutput},
		{"argument kinds", testArgumentKinds},
		{"tensor metadata", testMetadata},
		{"call errors", testCallErrors},
		{"bad launch", testBadLaunch},
		{"warp functions", testWarp},
		{"shared memory", testShared},
		{"same result twice", testDeterminism},
		{"probe", testProbe},
		{"atomics", testAtomics},
		{"narrow types", testNarrow},
		{"measure", testMeasure},
		{"faults", testFaults},
		{"hang", testHang},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, s) })
	}
}

type suite struct {
	opener device.Opener
	opts   device.Options
}

// A session is an open device and its test.
type session struct {
	*testing.T
	dev device.Device
	ctx context.Context
}

// Stamp checks the stamp that begin, a stamp.Meter's Begin, takes of the process pid while measure times kernels on a
// GPU. measure is like Device.Measure with that Plan.Timing.
func Stamp(t *testing.T, begin func(own []int) func() (*device.Stamp, []string), pid int,
	measure func(timing func(on bool)) error) {
	t.Helper()
	var end func() (*device.Stamp, []string)
	var s *device.Stamp
	var disturbed []string
	err := measure(func(on bool) {
		if on {
			end = begin([]int{pid})
		} else {
			s, disturbed = end()
		}
	})
	if err != nil || s == nil {
		t.Fatalf("%v, stamp %v", err, s)
	}
	t.Logf("%+v, disturbed %q", s, disturbed)
	r := s.During.Median
	if s.During.N < 3 || r.SMClockMHz < 200 || r.SMClockMHz > 4000 || r.MemoryClockMHz < 200 || r.TemperatureC < 10 ||
		r.TemperatureC > 110 || r.PowerW < 5 || r.PowerW > 2000 {
		t.Errorf("got %+v, want plausible readings", s)
	}
	for _, p := range s.OtherProcesses {
		if p.PID == pid {
			t.Errorf("the timed process is among the others: %+v", s.OtherProcesses)
		}
	}
}

func (s *suite) open(t *testing.T) *session {
	t.Helper()
	opts := s.opts
	log := &bytes.Buffer{}
	opts.Stdout, opts.Stderr = log, log
	dev, err := s.opener.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &session{t, dev, t.Context()}
}

func solution(file, symbol string) *trace.Solution {
	text, err := sources.ReadFile("testdata/" + file)
	if err != nil {
		panic(err)
	}
	return &trace.Solution{
		Name: "devicetest", Definition: "devicetest", Author: "devicetest",
		Spec: trace.BuildSpec{
			Language: trace.CUDA, TargetHardware: []string{"cuda"}, EntryPoint: file + "::" + symbol,
			DestinationPassingStyle: true,
		},
		Sources: []trace.SourceFile{{Path: file, Content: string(text)}},
	}
}

func (s *session) build(file, symbol string) device.Kernel {
	s.Helper()
	k, err := s.dev.Build(s.ctx, &trace.Definition{Name: "devicetest"}, solution(file, symbol))
	if err != nil {
		var b *device.BuildError
		if errors.As(err, &b) {
			s.Fatalf("building %s: %v\n%s", file, err, b.Log)
		}
		s.Fatalf("building %s: %v", file, err)
	}
	s.Cleanup(func() { k.Close() })
	return k
}

// upload copies values to new device memory and returns it as an argument.
func upload[T any](s *session, d tensor.DType, values []T, shape ...int) device.Arg {
	s.Helper()
	data, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		s.Fatal(err)
	}
	b, err := s.dev.Alloc(len(data))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { b.Close() })
	if err := b.Write(data); err != nil {
		s.Fatal(err)
	}
	if shape == nil {
		shape = []int{len(values)}
	}
	return device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: d, Shape: shape}}
}

func download[T any](s *session, a device.Arg, n int) []T {
	s.Helper()
	values := make([]T, n)
	data := make([]byte, binary.Size(values))
	if err := a.Tensor.Buffer.Read(data); err != nil {
		s.Fatal(err)
	}
	if _, err := binary.Decode(data, binary.LittleEndian, values); err != nil {
		s.Fatal(err)
	}
	return values
}

func call(ctx context.Context, k device.Kernel, args ...device.Arg) error {
	if err := k.Call(ctx, args); err != nil {
		return err
	}
	return k.Sync(ctx)
}

func (s *session) call(k device.Kernel, args ...device.Arg) {
	s.Helper()
	if err := call(s.ctx, k, args...); err != nil {
		s.Fatal(err)
	}
}

func integer(i int64) device.Arg {
	return device.Arg{Scalar: &trace.Scalar{Kind: trace.IntScalar, Int: i}}
}
func float(f float64) device.Arg {
	return device.Arg{Scalar: &trace.Scalar{Kind: trace.FloatScalar, Float: f}}
}
func boolean(b bool) device.Arg {
	return device.Arg{Scalar: &trace.Scalar{Kind: trace.BoolScalar, Bool: b}}
}

func equal[T comparable](s *session, what string, got, want []T) {
	s.Helper()
	if slices.Equal(got, want) {
		return
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			s.Errorf("%s: at %d got %v, want %v", what, i, got[i], want[i])
			return
		}
	}
	s.Errorf("%s: got %d values, want %d", what, len(got), len(want))
}

func testInfo(t *testing.T, s *suite) {
	info := s.open(t).dev.Info()
	if info.Name == "" || info.Toolchain == "" {
		t.Errorf("got name %q and toolchain %q, want both", info.Name, info.Toolchain)
	}
	if !info.Emulated && info.Arch == "" {
		t.Error("got no arch for a GPU")
	}
}

func testMemory(t *testing.T, s *suite) {
	d := s.open(t)
	for _, n := range []int{0, 1, 255, 4096, 4097, 1 << 20} {
		b, err := d.dev.Alloc(n)
		if err != nil {
			t.Fatalf("Alloc(%d): %v", n, err)
		}
		if b.Len() != n {
			t.Errorf("Len: got %d, want %d", b.Len(), n)
		}
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i * 7)
		}
		got := make([]byte, n)
		if err := errors.Join(b.Write(want), b.Read(got)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: what was read differs from what was written (%v)", n, err)
		}
		if err := errors.Join(b.Fill(0x5a), b.Write(want[:n/2]), b.Read(got)); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got[:n/2], want[:n/2]) || bytes.Count(got[n/2:], []byte{0x5a}) != n-n/2 {
			t.Errorf("%d bytes: Write of the first half over Fill gave other bytes", n)
		}
		if b.Write(make([]byte, n+1)) == nil {
			t.Errorf("Write of %d bytes to %d: got no error", n+1, n)
		}
		if b.Read(make([]byte, n+1)) == nil {
			t.Errorf("Read of %d bytes from %d: got no error", n+1, n)
		}
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if b, err := d.dev.Alloc(-1); err == nil {
		b.Close()
		t.Error("Alloc(-1): got no error")
	}
}

// testSlices makes calls on slices of a buffer; the bytes around them must not change.
func testSlices(t *testing.T, s *suite) {
	d := s.open(t)
	all := upload(d, tensor.Int8, slices.Repeat([]int8{7}, 4*512)).Tensor.Buffer
	in, out := all.Slice(512, 12), all.Slice(1280, 256).Slice(256, 0)
	if in.Len() != 12 || out.Len() != 0 {
		t.Errorf("Len: got %d and %d, want 12 and 0", in.Len(), out.Len())
	}
	out = all.Slice(1024, 512).Slice(256, 12)
	x, err := binary.Append(nil, binary.LittleEndian, []float32{1, -2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.Write(x), out.Fill(0)); err != nil {
		t.Fatal(err)
	}
	if in.Write(make([]byte, 13)) == nil || in.Read(make([]byte, 13)) == nil {
		t.Error("13 bytes of a slice of 12: got no error")
	}
	arg := func(b device.Buffer) device.Arg {
		return device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Float32, Shape: []int{3}}}
	}
	d.call(d.build("calls.cu", "scale"), arg(in), float(2), arg(out))
	equal(d, "scale", download[float32](d, arg(out), 3), []float32{2, -4, 6})
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	want := bytes.Repeat([]byte{7}, 4*512)
	copy(want[512:], x)
	if err := out.Read(want[1280:1292]); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := all.Read(got); err != nil {
		t.Fatal(err)
	}
	equal(d, "the whole buffer", got, want)
	copied, err := d.dev.Alloc(len(want))
	if err == nil {
		err = errors.Join(copied.Copy(all), copied.Read(got))
	}
	if err != nil {
		t.Fatal(err)
	}
	equal(d, "a copy", got, want)
	if copied.Copy(out) == nil {
		t.Error("a copy of 12 bytes to 2,048: got no error")
	}
	for _, r := range [][2]int{{128, 1}, {-256, 1}, {256, 4*512 - 255}, {0, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Slice(%d, %d) of 2048: got no panic", r[0], r[1])
				}
			}()
			all.Slice(r[0], r[1])
		}()
	}
}

func testProbe(t *testing.T, s *suite) {
	d := s.open(t)
	k := d.build("calls.cu", "scale")
	in, out := upload(d, tensor.Float32, []float32{1, -2, 3}), upload(d, tensor.Float32, make([]float32, 3))
	into := [][]byte{make([]byte, 12)}
	args := []device.Arg{in, float(3), out}
	if err := k.Probe(d.ctx, args, 0xff, into); err != nil {
		t.Fatal(err)
	}
	want, _ := binary.Append(nil, binary.LittleEndian, []float32{3, -6, 9})
	equal(d, "in the stream's order", into[0], want)
	equal(d, "after it", download[float32](d, out, 3), []float32{3, -6, 9})
	// Elements that the call does not write keep the fill.
	wide := upload(d, tensor.Float32, make([]float32, 6))
	into[0] = make([]byte, 24)
	if err := d.build("calls.cu", "describe").Probe(d.ctx, []device.Arg{upload(d, tensor.Float16, make([]uint16, 5)),
		wide}, 0xff, into); err != nil {
		t.Fatal(err)
	}
	want, _ = binary.Append(nil, binary.LittleEndian, []float32{1, 2, 16, 5, 1})
	equal(d, "one element left out", into[0], append(want, 0xff, 0xff, 0xff, 0xff))
	// A kept argument is not filled.
	wide = upload(d, tensor.Float32, []float32{0, 0, 0, 0, 0, 7})
	kept := device.Kept{Arg: 1, Into: make([]byte, 24)}
	if err := d.build("calls.cu", "describe").Probe(d.ctx, []device.Arg{upload(d, tensor.Float16, make([]uint16, 5)),
		wide}, 0xff, nil, kept); err != nil {
		t.Fatal(err)
	}
	want, _ = binary.Append(nil, binary.LittleEndian, []float32{1, 2, 16, 5, 1, 7})
	equal(d, "one element kept", kept.Into, want)
	var e *device.CallError
	if err := k.Probe(d.ctx, args[:2], 0, nil); !errors.As(err, &e) {
		t.Errorf("too few arguments: got %v, want a *device.CallError", err)
	}
}

func testBuildCache(t *testing.T, s *suite) {
	d := s.open(t)
	d.build("calls.cu", "scale")
	start := time.Now()
	d.build("calls.cu", "scale")
	if took := time.Since(start); took > time.Second {
		t.Errorf("the second build took %v: it was not cached", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sol := solution("calls.cu", "scale")
	sol.Sources[0].Content += "// other content\n"
	if _, err := d.dev.Build(ctx, &trace.Definition{}, sol); !errors.Is(err, context.Canceled) {
		t.Errorf("Build with a cancelled context: got %v, want %v", err, context.Canceled)
	}
}

func testCompileError(t *testing.T, s *suite) {
	_, err := s.open(t).dev.Build(t.Context(), &trace.Definition{}, solution("broken.cu", "kernel"))
	var b *device.BuildError
	if !errors.As(err, &b) {
		t.Fatalf("got %v, want a *device.BuildError", err)
	}
	if !strings.Contains(b.Log, "undeclared_name") || !regexp.MustCompile(`broken\.cu[:(]5`).MatchString(b.Log) {
		t.Errorf("the log names neither the fault nor its line:\n%s", b.Log)
	}
	if b.Text == "" || strings.Contains(b.Text, "\n") {
		t.Errorf("got text %q, want one line", b.Text)
	}
}

func testMissingEntry(t *testing.T, s *suite) {
	_, err := s.open(t).dev.Build(t.Context(), &trace.Definition{}, solution("calls.cu", "absent"))
	var b *device.BuildError
	if !errors.As(err, &b) {
		t.Fatalf("got %v, want a *device.BuildError", err)
	}
	if want := "Entry point 'absent' not found in module"; !strings.Contains(b.Text, want) {
		t.Errorf("got %q, want %q", b.Text, want)
	}
}

func testOutput(t *testing.T, s *suite) {
	d := s.open(t)
	k := d.build("calls.cu", "scale")
	for _, n := range []int{0, 1, 1000} {
		x, want := make([]float32, n), make([]float32, n)
		for i := range x {
			x[i] = float32(i) - 3
			want[i] = x[i] * 2.5
		}
		in, out := upload(d, tensor.Float32, x), upload(d, tensor.Float32, make([]float32, n))
		d.call(k, in, float(2.5), out)
		equal(d, "scale", download[float32](d, out, n), want)
		equal(d, "input after the call", download[float32](d, in, n), x)
		d.call(k, out, integer(2), out) // again, in place
		for i := range want {
			want[i] *= 2
		}
		equal(d, "scale in place", download[float32](d, out, n), want)
	}
}

func testArgumentKinds(t *testing.T, s *suite) {
	d := s.open(t)
	k := d.build("calls.cu", "kinds")
	zero := upload(d, tensor.Float32, []float32{0.5}, []int{}...)
	zero.Tensor.Shape = []int{}
	shaped := upload(d, tensor.Int32, make([]int32, 6), 2, 3)
	out := upload(d, tensor.Float32, make([]float32, 5))
	none := device.Arg{}
	for _, c := range []struct {
		name string
		args []device.Arg
		want []float32
	}{
		{"as declared", []device.Arg{integer(-7), float(1.25), boolean(true), float(3.5), none},
			[]float32{0.5, -7, 1.25, 1, 3.5}},
		{"none", []device.Arg{integer(1 << 40), integer(2), boolean(false), none, none}, []float32{0.5, 1 << 40, 2, 0, -1}},
		{"coerced", []device.Arg{boolean(true), boolean(true), integer(5), integer(9), shaped}, []float32{0.5, 1, 1, 1, 9}},
		{"optional tensor", []device.Arg{integer(0), float(0), boolean(false), none, shaped}, []float32{0.5, 0, 0, 0, -3}},
	} {
		if err := out.Tensor.Buffer.Fill(0xff); err != nil {
			t.Fatal(err)
		}
		d.call(k, slices.Concat([]device.Arg{zero}, c.args, []device.Arg{out})...)
		equal(d, c.name, download[float32](d, out, 5), c.want)
	}
}

func testMetadata(t *testing.T, s *suite) {
	d := s.open(t)
	k := d.build("calls.cu", "describe")
	for _, c := range []struct {
		dtype tensor.DType
		shape []int
		want  []float32
	}{
		{tensor.Float32, []int{2, 3, 4}, []float32{3, 2, 32, 2, 3, 4, 12, 4, 1}},
		{tensor.Float16, []int{5}, []float32{1, 2, 16, 5, 1}},
		{tensor.BFloat16, []int{}, []float32{0, 4, 16}},
		{tensor.Float8E4M3FN, []int{7, 2}, []float32{2, 10, 8, 7, 2, 2, 1}},
		{tensor.Float8E5M2, []int{1}, []float32{1, 12, 8, 1, 1}},
		{tensor.Int64, []int{2}, []float32{1, 0, 64, 2, 1}},
		{tensor.Int32, []int{2}, []float32{1, 0, 32, 2, 1}},
		{tensor.Int16, []int{2}, []float32{1, 0, 16, 2, 1}},
		{tensor.Int8, []int{2}, []float32{1, 0, 8, 2, 1}},
		{tensor.Bool, []int{2}, []float32{1, 6, 8, 2, 1}},
	} {
		n, _ := tensor.Elements(c.shape)
		size, _ := c.dtype.Bytes(n)
		in := upload(d, c.dtype, make([]byte, size))
		in.Tensor.Shape = c.shape
		out := upload(d, tensor.Float32, make([]float32, 16))
		d.call(k, in, out)
		equal(d, c.dtype.String(), download[float32](d, out, len(c.want)), c.want)
	}
}

func testCallErrors(t *testing.T, s *suite) {
	d := s.open(t)
	x := upload(d, tensor.Float32, make([]float32, 4))
	for _, c := range []struct {
		name, entry string
		args        []device.Arg
		kind, text  string
	}{
		{"too few", "scale", []device.Arg{x, float(1)}, "TypeError",
			"Mismatched number of arguments when calling: `scale(0: DLTensor*, 1: float, 2: DLTensor*) -> void`. Expected 3 " +
				"but got 2 arguments"},
		{"too many", "throws", []device.Arg{integer(1), integer(2)}, "TypeError",
			"Mismatched number of arguments when calling: `throws(0: int) -> void`. Expected 1 but got 2 arguments"},
		{"float for int", "throws", []device.Arg{float(1)}, "TypeError",
			"Mismatched type on argument #0 when calling: `throws(0: int) -> void`. Expected `int` but got `float`"},
		{"none for tensor", "scale", []device.Arg{x, float(1), {}}, "TypeError",
			"Mismatched type on argument #2 when calling: `scale(0: DLTensor*, 1: float, 2: DLTensor*) -> void`. Expected " +
				"`DLTensor*` but got `None`"},
		{"tensor for float", "scale", []device.Arg{x, x, x}, "TypeError",
			"Mismatched type on argument #1 when calling: `scale(0: DLTensor*, 1: float, 2: DLTensor*) -> void`. Expected " +
				"`float` but got `ffi.Tensor`"},
		{"int for optional tensor", "kinds", []device.Arg{x, integer(1), float(1), boolean(true), {}, integer(1), x},
			"TypeError",
			"Mismatched type on argument #5 when calling: `kinds(0: DLTensor*, 1: int, 2: float, 3: bool, 4: " +
				"Optional<float>, 5: Optional<ffi.Tensor>, 6: DLTensor*) -> void`. Expected `Optional<ffi.Tensor>` but got `int`"},
		{"thrown", "throws", []device.Arg{integer(42)}, "ValueError", "code 42"},
		{"thrown std::exception", "throws_std", nil, "InternalError", "plain exception"},
		{"check", "checks", []device.Arg{integer(1), integer(2)}, "InternalError",
			"Check failed: a == b (1 vs. 2) : they differ"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := &session{t, d.dev, t.Context()}
			err := call(t.Context(), sub.build("calls.cu", c.entry), c.args...)
			var e *device.CallError
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a *device.CallError", err)
			}
			if e.Kind != c.kind || e.Text != c.text {
				t.Errorf("got %s: %s\nwant %s: %s", e.Kind, e.Text, c.kind, c.text)
			}
		})
	}
	out := upload(d, tensor.Float32, make([]float32, 4))
	d.call(d.build("calls.cu", "scale"), x, float(1), out) // such errors leave the device usable
}

func testBadLaunch(t *testing.T, s *suite) {
	d := s.open(t)
	out := upload(d, tensor.Float32, make([]float32, 4))
	err := call(t.Context(), d.build("calls.cu", "bad_launch"), out)
	var e *device.CallError
	if !errors.As(err, &e) || !strings.Contains(e.Text, "invalid argument") {
		t.Errorf("got %v, want invalid argument", err)
	}
}

func testWarp(t *testing.T, s *suite) {
	d := s.open(t)
	in := make([]int32, 64)
	for i := range in {
		in[i] = int32((i*37)%100 - 20)
	}
	const rows = 14
	want := make([]int32, rows*64)
	for i := range in {
		w, lane := i&^31, i&31
		warp := in[w : w+32]
		bits := func(f func(v int32) bool) (m int32) {
			for j, v := range warp {
				if f(v) {
					m |= 1 << j
				}
			}
			return m
		}
		truth := func(b bool) int32 {
			if b {
				return 1
			}
			return 0
		}
		pick := func(j int, inside bool) int32 {
			if inside {
				return warp[j]
			}
			return warp[lane]
		}
		divergent := int32(-1)
		if lane < 16 {
			divergent = warp[lane^8]
		}
		v := uint32(in[i])
		popc, clz, ffs := 0, 32, 0
		for b := range 32 {
			if v>>b&1 == 1 {
				popc++
				clz = 31 - b
				if ffs == 0 {
					ffs = b + 1
				}
			}
		}
		for row, value := range []int32{
			warp[lane^1],
			pick(max(0, lane-3), lane >= 3),
			pick(min(31, lane+5), lane+5 < 32),
			warp[7],
			warp[lane&^7+(lane+3)&7],
			pick(min(31, lane+2), lane&3+2 < 4),
			bits(func(v int32) bool { return v&1 != 0 }),
			truth(slices.ContainsFunc(warp, func(v int32) bool { return v > 90 })),
			truth(!slices.ContainsFunc(warp, func(v int32) bool { return v <= -90 })),
			bits(func(o int32) bool { return o%3 == in[i]%3 }),
			divergent,
			warp[lane^16],
			warp[0],
			int32(popc + 100*clz + 10000*ffs),
		} {
			want[64*row+i] = value
		}
	}
	out := upload(d, tensor.Int32, make([]int32, len(want)))
	d.call(d.build("threads.cu", "warp"), upload(d, tensor.Int32, in), out)
	equal(d, "warp", download[int32](d, out, len(want)), want)
}

func testShared(t *testing.T, s *suite) {
	d := s.open(t)
	random := rand.New(rand.NewPCG(1, 2))

	const rows, cols = 37, 1028
	x, sums := make([]float32, rows*cols), make([]float32, rows)
	for i := range x {
		x[i] = float32(random.IntN(2048) - 1024) // sums are exact in any order
		sums[i/cols] += x[i]
	}
	out := upload(d, tensor.Float32, make([]float32, rows))
	d.call(d.build("threads.cu", "row_sum"), upload(d, tensor.Float32, x, rows, cols), out)
	equal(d, "row_sum", download[float32](d, out, rows), sums)

	const n = 96
	square, transposed := make([]int32, n*n), make([]int32, n*n)
	for i := range square {
		square[i] = int32(i)
		transposed[i%n*n+i/n] = int32(i)
	}
	out = upload(d, tensor.Int32, make([]int32, n*n), n, n)
	d.call(d.build("threads.cu", "transpose"), upload(d, tensor.Int32, square, n, n), out)
	equal(d, "transpose", download[int32](d, out, n*n), transposed)

	out = upload(d, tensor.Int32, []int32{0})
	d.call(d.build("threads.cu", "large"), out)
	equal(d, "large", download[int32](d, out, 1), []int32{4 * 64 * (255 * 256 / 2)})

	want := slices.Concat(slices.Repeat([]int32{32}, 96), slices.Repeat([]int32{1}, 96), slices.Repeat([]int32{0}, 96))
	out = upload(d, tensor.Int32, make([]int32, len(want)))
	d.call(d.build("threads.cu", "barrier"), out)
	if got := download[int32](d, out, len(want)); true {
		for i := range got[96:] { // any nonzero value is true
			if got[96+i] != 0 {
				got[96+i] = 1
			}
		}
		equal(d, "barrier", got, want)
	}
}

func testDeterminism(t *testing.T, s *suite) {
	d := s.open(t)
	random := rand.New(rand.NewPCG(7, 8))
	const rows, cols = 300, 516
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	k, in := d.build("threads.cu", "row_sum"), upload(d, tensor.Float32, x, rows, cols)
	var results [3][]uint32
	for i := range results {
		out := upload(d, tensor.Float32, make([]float32, rows))
		d.call(k, in, out)
		results[i] = download[uint32](d, out, rows)
	}
	equal(d, "second call", results[1], results[0])
	equal(d, "third call", results[2], results[0])
	if exact := float64(math.Float32frombits(results[0][0])); math.Abs(exact) > 200 || exact == 0 {
		t.Errorf("got a first sum of %v", exact)
	}
}

func testAtomics(t *testing.T, s *suite) {
	d := s.open(t)
	random := rand.New(rand.NewPCG(3, 4))
	in := make([]int32, 5000)
	counts, sum, extremes := make([]uint32, 16), []float32{0}, []int32{math.MinInt32, math.MaxInt32}
	for i := range in {
		in[i] = int32(random.IntN(2000) - 1000)
		counts[in[i]&15]++
		sum[0] += float32(in[i])
		extremes = []int32{max(extremes[0], in[i]), min(extremes[1], in[i])}
	}
	gotCounts, gotSum := upload(d, tensor.Int32, make([]uint32, 16)), upload(d, tensor.Float32, []float32{0})
	gotExtremes := upload(d, tensor.Int32, []int32{math.MinInt32, math.MaxInt32})
	d.call(d.build("threads.cu", "atomics"), upload(d, tensor.Int32, in), gotCounts, gotSum, gotExtremes)
	equal(d, "counts", download[uint32](d, gotCounts, 16), counts)
	equal(d, "sum", download[float32](d, gotSum, 1), sum)
	equal(d, "extremes", download[int32](d, gotExtremes, 2), extremes)
}

// A format is a narrow binary floating-point format.
type format struct {
	mantissa, bias int // bits without the leading one
	width          int
}

var bfloat16, float16 = format{7, 127, 16}, format{10, 15, 16}

// encode rounds x to the nearest number of the format, ties to even.
func (f format) encode(x float64) uint16 {
	exponentBits := f.width - 1 - f.mantissa
	if math.IsNaN(x) {
		return 1<<(f.width-1) - 1
	}
	sign := uint16(0)
	if math.Signbit(x) {
		sign = 1 << (f.width - 1)
	}
	x = math.Abs(x)
	infinity := uint16(1<<exponentBits-1) << f.mantissa
	if math.IsInf(x, 0) {
		return sign | infinity
	}
	if x == 0 {
		return sign
	}
	_, e := math.Frexp(x) // x = m * 2^e, m in [0.5, 1)
	e = max(e-1, 1-f.bias)
	units := math.RoundToEven(math.Ldexp(x, f.mantissa-e)) // in the last place
	code := uint64(units) + uint64(e-1+f.bias)<<f.mantissa
	return sign | uint16(min(code, uint64(infinity)))
}

func (f format) decode(u uint16) float64 {
	m, e := int(u)&(1<<f.mantissa-1), int(u)>>f.mantissa&(1<<(f.width-1-f.mantissa)-1)
	x := 0.0
	switch {
	case e == 1<<(f.width-1-f.mantissa)-1 && m != 0:
		return math.NaN()
	case e == 1<<(f.width-1-f.mantissa)-1:
		x = math.Inf(1)
	case e == 0:
		x = math.Ldexp(float64(m), 1-f.bias-f.mantissa)
	default:
		x = math.Ldexp(float64(m+1<<f.mantissa), e-f.bias-f.mantissa)
	}
	if u>>(f.width-1) == 1 {
		x = -x
	}
	return x
}

func testNarrow(t *testing.T, s *suite) {
	d := s.open(t)
	random := rand.New(rand.NewPCG(5, 6))
	var x, y, z []float32
	add := func(a, b, c float64) { x, y, z = append(x, float32(a)), append(y, float32(b)), append(z, float32(c)) }
	// Every float16, the midpoints to the next, and the neighbours of those: all rounding decisions.
	for u := range uint16(0x7c00) {
		lo, hi := float16.decode(u), float16.decode(u+1)
		if u+1 == 0x7c00 {
			hi = 65536
		}
		middle := float32((lo + hi) / 2)
		for _, v := range []float32{float32(lo), middle, math.Nextafter32(middle, 0),
			math.Nextafter32(middle, math.MaxFloat32)} {
			add(float64(v), random.NormFloat64(), random.NormFloat64())
			add(-float64(v), 1, -1)
		}
	}
	for range 50000 { // random bits
		u := random.Uint32()
		v := math.Float32frombits(u)
		if v != v {
			continue
		}
		add(float64(v), random.NormFloat64()*math.Ldexp(1, random.IntN(40)-20),
			random.NormFloat64()*math.Ldexp(1, random.IntN(40)-20))
	}
	for _, v := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), 0, math.Copysign(0, -1), math.MaxFloat32, 65504,
		65519, 65520} {
		add(v, 1, 0)
	}
	n := len(x)
	bf, hf := upload(d, tensor.BFloat16, make([]uint16, 6*n)), upload(d, tensor.Float16, make([]uint16, 6*n))
	d.call(d.build("narrow.cu", "narrow"), upload(d, tensor.Float32, x), upload(d, tensor.Float32, y),
		upload(d, tensor.Float32, z), bf, hf)
	for _, c := range []struct {
		name string
		f    format
		got  []uint16
	}{{"bfloat16", bfloat16, download[uint16](d, bf, 6*n)}, {"float16", float16, download[uint16](d, hf, 6*n)}} {
		bad := 0
		for i := range n {
			r := c.f.encode(float64(x[i]))
			a, b, m := c.f.decode(r), c.f.decode(c.f.encode(float64(y[i]))), c.f.decode(c.f.encode(float64(z[i])))
			for op, want := range []uint16{r, c.f.encode(a + b), c.f.encode(a * b), c.f.encodeSum(a*b, m), r, r} {
				got := c.got[op*n+i]
				if got != want && !(math.IsNaN(c.f.decode(got)) && math.IsNaN(c.f.decode(want))) && bad < 10 {
					bad++
					t.Errorf("%s, operation %d on %g, %g, %g: got %#04x, want %#04x", c.name, op, x[i], y[i], z[i], got, want)
				}
			}
		}
	}
}

// encodeSum rounds p + c once. p and c have at most 22 bits, so their float64 sum is exact or off by less than half a
// unit; the remainder's sign gives the direction.
func (f format) encodeSum(p, c float64) uint16 {
	sum := p + c
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return f.encode(sum)
	}
	t := sum - p
	rest := (p - (sum - t)) + (c - t)
	if rest != 0 && math.Float64bits(sum)&1 == 0 {
		toward := math.Inf(1)
		if rest < 0 {
			toward = math.Inf(-1)
		}
		sum = math.Nextafter(sum, toward)
	}
	return f.encode(sum)
}

func testMeasure(t *testing.T, s *suite) {
	d := s.open(t)
	k := d.build("calls.cu", "scale")
	in, out := upload(d, tensor.Float32, make([]float32, 1<<16)), upload(d, tensor.Float32, make([]float32, 1<<16))
	plan := device.Plan{Warmup: 2, Iterations: 5, Trials: 2, ColdL2: true}
	samples, err := d.dev.Measure(t.Context(),
		func() error { return k.Call(t.Context(), []device.Arg{in, float(2), out}) }, plan)
	if d.dev.Info().Emulated {
		if !errors.Is(err, device.ErrNoTiming) {
			t.Errorf("got %v, want %v", err, device.ErrNoTiming)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if samples.Timer == "" || !samples.ColdL2 || len(samples.Trials) != 2 {
		t.Fatalf("got timer %q, cold %v, %d trials; want a timer, true, 2", samples.Timer, samples.ColdL2,
			len(samples.Trials))
	}
	for _, trial := range samples.Trials {
		if len(trial) != 5 {
			t.Errorf("got %d samples, want 5", len(trial))
		}
		for _, v := range trial {
			if v <= 0 || v > time.Second {
				t.Errorf("got a sample of %v", v)
			}
		}
	}
	// Before is not timed. Each call doubles its input in place; Before restores it.
	ones := upload(d, tensor.Float32, slices.Repeat([]float32{1}, 1<<16)).Tensor.Buffer
	calls, before := 0, 0
	plan.Before = func(int) error {
		before++
		return in.Tensor.Buffer.Copy(ones)
	}
	for timer, name := range map[string]string{device.TimerEvents: "cuda events", device.TimerCUPTI: "cupti"} {
		plan.Timer = timer
		samples, err := d.dev.Measure(t.Context(), func() error {
			calls++
			return k.Call(t.Context(), []device.Arg{in, float(2), in})
		}, plan)
		switch {
		case errors.Is(err, device.ErrTimer) && timer == device.TimerCUPTI:
			t.Logf("no CUPTI here: %v", err)
		case err != nil:
			t.Errorf("timer %s: %v", timer, err)
		case samples.Timer != name || samples.TimerNote != "":
			t.Errorf("timer %s: got %q, %q, want %q and no note", timer, samples.Timer, samples.TimerNote, name)
		case name == "cupti" && (len(samples.Kernels) != 1 || samples.Kernels[0].Kind != "kernel"):
			t.Errorf("got %+v, want the kernel of a call", samples.Kernels)
		case calls != before:
			t.Errorf("timer %s: %d calls, %d preparations", timer, calls, before)
		}
		if got := download[float32](d, in, 1); got[0] != 2 {
			t.Errorf("timer %s: got %v after the last call, want 2", timer, got)
		}
	}
}

// isolated runs f in its own process, because a fault leaves a GPU's context unusable.
func isolated(t *testing.T, s *suite, f func(t *testing.T)) {
	if os.Getenv(child) == t.Name() {
		f(t)
		return
	}
	var pattern []string
	for _, part := range strings.Split(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+strings.Join(pattern, "/"), "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), child+"="+t.Name(), "FISUB_DEVICETEST_CACHE="+s.opts.CacheDir)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("in a process of its own: %v\n%s", err, out)
	}
}

func testFaults(t *testing.T, s *suite) {
	for _, entry := range []string{"out_of_bounds", "trap", "assertion"} {
		t.Run(entry, func(t *testing.T) {
			isolated(t, s, func(t *testing.T) {
				d := s.open(t)
				k := d.build("faults.cu", entry)
				out := upload(d, tensor.Float32, make([]float32, 4))
				if err := call(t.Context(), k, out); err == nil {
					t.Error("got no error")
				} else if errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want a fault", err)
				}
				if k.Sync(t.Context()) == nil {
					t.Error("Sync after the fault: got no error")
				}
			})
		})
	}
}

func testHang(t *testing.T, s *suite) {
	isolated(t, s, func(t *testing.T) {
		d := s.open(t)
		k := d.build("faults.cu", "hang")
		out := upload(d, tensor.Float32, make([]float32, 4))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := call(ctx, k, out)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("got an answer after %v, want one second", took)
		}
		if !d.dev.Info().Emulated { // the kernel never ends, so Close would hang too
			if !t.Failed() {
				fmt.Println("--- PASS: " + t.Name())
				syscall.Exit(0)
			}
			syscall.Exit(1)
		}
	})
}
