package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"fisub/device"
	"fisub/internal/hint"
	"fisub/internal/ledger"
	"fisub/internal/memfile"
	"fisub/internal/trace"
)

// The test binary is also the worker, on a device in this file that really moves bytes: its kernel doubles int32s,
// and the solution's name makes it misbehave. It can also be a worker that replays a file of answers.
func TestMain(m *testing.M) {
	if file := os.Getenv("FISUB_TEST_ANSWERS"); file != "" {
		answer(file)
	}
	if how := os.Getenv("FISUB_TEST_IN_FLIGHT"); how != "" {
		_ = os.Unsetenv("FISUB_TEST_IN_FLIGHT")
		inFlight(how == "freed")
		os.Exit(0)
	}
	if os.Getenv("FISUB_TEST_WORKER") == "1" {
		in, out, err := Pipes()
		if err == nil {
			err = Serve(context.Background(), in, out, []device.Opener{{Kind: "host", Open: openHost}})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

type hostDevice struct{}

func openHost(_ context.Context, opts device.Options) (device.Device, error) {
	if opts.Ordinal > 0 {
		return nil, fmt.Errorf("host: no device %d", opts.Ordinal)
	}
	return hostDevice{}, nil
}

func (hostDevice) Info() device.Info { return device.Info{Name: "host"} }
func (hostDevice) Close() error      { return nil }
func (hostDevice) Alloc(n int) (device.Buffer, error) {
	b := make(hostBuffer, n)
	return &b, nil
}

func (hostDevice) Build(_ context.Context, _ *trace.Definition, sol *trace.Solution) (device.Kernel, error) {
	if sol.Name == "broken" {
		return nil, hint.Wrap(&device.BuildError{Text: "kernel.cu:1: expected ;", Log: "the compiler's words"}, "a hint")
	}
	return &hostKernel{mode: sol.Name}, nil
}

func (hostDevice) Measure(_ context.Context, call func() error, plan device.Plan) (*device.Samples, error) {
	s := &device.Samples{Timer: "test"}
	plan.Tell(true)
	defer plan.Tell(false)
	for range plan.Trials {
		var trial []time.Duration
		for range plan.Iterations {
			begun := time.Now()
			if err := errors.Join(plan.Before(len(trial)+len(s.Trials)*plan.Iterations), call(),
				plan.After(len(trial)+len(s.Trials)*plan.Iterations)); err != nil {
				return nil, err
			}
			trial = append(trial, time.Since(begun))
		}
		s.Trials = append(s.Trials, trial)
	}
	return s, nil
}

type hostBuffer []byte

func (b *hostBuffer) Len() int                      { return len(*b) }
func (b *hostBuffer) Address() uintptr              { return uintptr(unsafe.Pointer(unsafe.SliceData(*b))) }
func (b *hostBuffer) Write(p []byte) error          { copy(*b, p); return nil }
func (b *hostBuffer) Read(p []byte) error           { copy(p, *b); return nil }
func (b *hostBuffer) Close() error                  { return nil }
func (b *hostBuffer) Copy(from device.Buffer) error { return from.Read(*b) }
func (b *hostBuffer) Slice(offset, n int) device.Buffer {
	s := (*b)[offset : offset+n : offset+n]
	return &s
}
func (b *hostBuffer) Fill(v byte) error {
	for i := range *b {
		(*b)[i] = v
	}
	return nil
}

type hostKernel struct{ mode string }

func (k *hostKernel) Close() error {
	if k.mode == "exit when closed" {
		os.Exit(5)
	}
	return nil
}

func (k *hostKernel) Sync(context.Context) error {
	if k.mode == "fault" {
		return fmt.Errorf("illegal address: %w", device.ErrFault)
	}
	return nil
}

func (k *hostKernel) Probe(ctx context.Context, args []device.Arg, fill byte, into [][]byte, kept ...device.Kept) error {
	out := args[len(args)-1].Tensor.Buffer
	if err := errors.Join(out.Fill(fill), k.Call(ctx, args), out.Read(into[0])); err != nil {
		return err
	}
	if k.mode == "late" {
		(*out.(*hostBuffer))[5]++
	}
	return nil
}

func (k *hostKernel) Call(_ context.Context, args []device.Arg) error {
	switch k.mode {
	case "hang":
		child := exec.Command("sleep", "3600")
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := child.Start(); err != nil {
			return err
		}
		fmt.Println(child.Process.Pid)
		if err := os.WriteFile(os.Getenv("FISUB_TEST_STARTED"), nil, 0o600); err != nil {
			return err
		}
		time.Sleep(time.Hour)
	case "crash":
		fmt.Println("last words")
		os.Exit(7)
	case "raise":
		return &device.CallError{Kind: "ValueError", Text: "odd input"}
	case "print":
		fmt.Println("hello from the kernel")
	case "flood":
		io.CopyN(os.Stdout, zeros{}, maxLog+1000)
	case "greedy":
		hog := make([]byte, 2<<30)
		for i := 0; i < len(hog); i += 4096 {
			hog[i] = 1
		}
		time.Sleep(time.Minute)
	}
	in, out := args[0].Tensor.Buffer.(*hostBuffer), args[len(args)-1].Tensor.Buffer.(*hostBuffer)
	// Like a kernel, reach the guards through the tensor's address.
	beside := func(b *hostBuffer, offset int) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(&(*b)[0]), offset)) }
	switch k.mode {
	case "in place":
		(*in)[7]++
	case "before":
		*beside(out, -2)++
		*beside(out, -256)++
	case "behind":
		*beside(in, 12)++
		*beside(out, 12+255)++
	}
	add := int32(0)
	if s := args[1].Scalar; s != nil {
		add = int32(s.Int)
	}
	for i := 0; i+4 <= len(*in); i += 4 {
		binary.LittleEndian.PutUint32((*out)[i:], uint32(2*int32(binary.LittleEndian.Uint32((*in)[i:]))+add))
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

const definition = `{"name":"d","op_type":"t","axes":{"n":{"type":"var"}},"inputs":{"x":{"shape":["n"],"dtype":"int32"},"c":{"shape":null,"dtype":"int32"}},
"outputs":{"y":{"shape":["n"],"dtype":"int32"}},"reference":"def run(x, c):\n    return 2 * x + c\n"}`

func start(t *testing.T, name string, limit int64) (*Client, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), Command{Args: []string{self}, Env: []string{"FISUB_TEST_WORKER=1"}, MemoryLimit: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	info, err := c.Open(t.Context(), "host", device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != "host" {
		t.Errorf("device: got %q, want host", info.Name)
	}
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	sol := &trace.Solution{Name: name, Definition: "d", Author: "a", Spec: trace.BuildSpec{Language: trace.CUDA, DestinationPassingStyle: true,
		TargetHardware: []string{"cuda"},
		EntryPoint:     "kernel.cu::kernel"}, Sources: []trace.SourceFile{{Path: "kernel.cu", Content: "x"}}}
	return c, c.Build(t.Context(), def, sol)
}

// workload writes three int32s after 12 other bytes and returns the workload and the file for outputs.
func workload(t *testing.T, c *trace.Scalar) (*Tensors, *os.File) {
	t.Helper()
	in, out := filepath.Join(t.TempDir(), "in"), outputs(t, 256+12)
	data := []byte("xxxxxxxxxxxx")
	for _, v := range []int32{1, -2, 30} {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	ft := FileTensor{DType: "int32", Shape: []int{3}, Path: in, Offset: 12, Bytes: 12}
	to := FileTensor{DType: "int32", Shape: []int{3}, Offset: 256, Bytes: 12}
	return &Tensors{Inputs: []Value{{Tensor: &ft}, {Scalar: c}}, Outputs: []Value{{Tensor: &to}}}, out
}

func outputs(t *testing.T, size int64) *os.File {
	t.Helper()
	f, err := memfile.New("outputs", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func ints(t *testing.T, f *os.File, offset int64) []int32 {
	t.Helper()
	data := make([]byte, 12)
	if _, err := f.ReadAt(data, offset); err != nil {
		t.Fatal(err)
	}
	var values []int32
	for i := range 3 {
		values = append(values, int32(binary.LittleEndian.Uint32(data[4*i:])))
	}
	return values
}

func TestRunAndMeasure(t *testing.T) {
	c, err := start(t, "print", 0)
	if err != nil {
		t.Fatal(err)
	}
	five := trace.Scalar{Kind: trace.IntScalar, Int: 5}
	for _, tc := range []struct {
		add  *trace.Scalar
		want []int32
	}{{nil, []int32{2, -4, 60}}, {&five, []int32{7, 1, 65}}} {
		w, out := workload(t, tc.add)
		if err := c.Load(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Run(t.Context(), out); err != nil {
			t.Fatal(err)
		}
		if got := ints(t, out, 256); !slices.Equal(got, tc.want) {
			t.Errorf("outputs: got %v, want %v", got, tc.want)
		}
		if got, want := c.TakeLog(), "hello from the kernel\n"; got != want {
			t.Errorf("log: got %q, want %q", got, want)
		}
	}
	var told []bool
	out := outputs(t, 2*512)
	s, judged, err := c.Measure(t.Context(), JudgedPlan{Plan: device.Plan{Trials: 2, Iterations: 3,
		Timing: func(on bool) { told = append(told, on) }}, Judged: []int{1, 5}, Stride: 512, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	if want := []bool{true, false}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if len(s.Trials) != 2 || len(s.Trials[1]) != 3 || s.Trials[0][0] <= 0 {
		t.Errorf("samples: got %v, want 2 trials of 3", s.Trials)
	}
	if want := []Judged{{Call: 1}, {Call: 5}}; !reflect.DeepEqual(judged, want) {
		t.Errorf("judged: got %v, want %v", judged, want)
	}
	for k := range int64(2) {
		if got, want := ints(t, out, 512*k+256), []int32{7, 1, 65}; !slices.Equal(got, want) {
			t.Errorf("outputs of a timed call: got %v, want %v", got, want)
		}
	}

	// A patch lasts for one call. The inputs are 1, -2 and 30.
	number := func(x int32) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(x)) }
	one := 1
	plan := JudgedPlan{Plan: device.Plan{Trials: 1, Iterations: 3, Apart: &one}, Judged: []int{0, 1, 2}, Stride: 512, Out: outputs(t, 3*512),
		Patch: &Patch{Old: number(1), New: number(100)}}
	if _, _, err := c.Measure(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	for k, first := range []int32{7, 205, 7} {
		if got, want := ints(t, plan.Out, 512*int64(k)+256), []int32{first, 1, 65}; !slices.Equal(got, want) {
			t.Errorf("outputs of timed call %d: got %v, want %v", k, got, want)
		}
	}
	for _, patch := range []Patch{{Arg: -1}, {Arg: 2}, {Offset: -256}, {Offset: 4}, {Offset: 256}, {New: make([]byte, 13)}} {
		plan.Patch = &patch
		if _, _, err := c.Measure(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "patch of ") {
			t.Errorf("%+v: got %v, want an error", patch, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name string
		want Checked
	}{
		{"ok", Checked{}},
		{"in place", Checked{Changed: []Change{{0, 7}}}},
		{"before", Checked{Outside: []Change{{2, -2}}}},
		{"behind", Checked{Outside: []Change{{0, 12}, {2, 12 + 255}}}},
		{"late", Checked{Late: []Change{{2, 5}}}},
	} {
		for _, how := range []string{"the judge reads", "the worker copies"} {
			c, err := start(t, tc.name, 0)
			if err != nil {
				t.Fatal(err)
			}
			w, out := workload(t, nil)
			w.Guard = 256
			if err := c.Load(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if c.memory.places == nil {
				t.Fatal("the worker named no addresses")
			}
			if how == "the worker copies" {
				c.memory.places, c.memory.open = nil, false
			}
			quiet, err := c.Check(t.Context(), Check{})
			if err != nil || !reflect.DeepEqual(*quiet, Checked{}) {
				t.Errorf("%s: %s: before the first call: got %+v, %v, want nothing", tc.name, how, quiet, err)
			}
			got, err := c.Check(t.Context(), Check{Out: out})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, tc.want) {
				t.Errorf("%s: %s: got %+v, want %+v", tc.name, how, *got, tc.want)
			}
		}
	}
}

// The next call sees new contents and addresses. The old memory stays unchanged.
func TestCheckChangesInputs(t *testing.T) {
	c, err := start(t, "ok", 0)
	if err != nil {
		t.Fatal(err)
	}
	w, out := workload(t, nil)
	if err := c.Load(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	other := *w.Inputs[0].Tensor
	other.Offset = 8 // the last four bytes before the first tensor, then 1, -2
	for i, step := range []struct {
		check Check
		want  []int32
	}{
		{Check{Out: out}, []int32{2, -4, 60}},
		{Check{Inputs: []*FileTensor{&other}, Out: out}, []int32{-252645136, 2, -4}}, // "xxxx" as an int32, doubled
		{Check{Move: true, Gap: 1 << 20, Out: out}, []int32{-252645136, 2, -4}},
		{Check{Inputs: []*FileTensor{w.Inputs[0].Tensor, nil}, Out: out}, []int32{2, -4, 60}},
	} {
		found, err := c.Check(t.Context(), step.check)
		if err != nil || !reflect.DeepEqual(*found, Checked{}) {
			t.Fatalf("step %d: got %+v, %v, want nothing", i, found, err)
		}
		if got := ints(t, out, 256); !slices.Equal(got, step.want) {
			t.Errorf("step %d: got %v, want %v", i, got, step.want)
		}
	}
	// At the addresses of the load, the contents are still the old ones.
	found, err := c.Check(t.Context(), Check{Back: true, Out: out})
	if err != nil || !slices.Equal(found.Changed, []Change{{0, 0}}) {
		t.Errorf("back: got %+v, %v, want the contents from before", found, err)
	}
	other.Bytes = 8
	for _, bad := range [][]*FileTensor{{&other}, {nil, &other}, {nil, nil, nil}} {
		if _, err := c.Check(t.Context(), Check{Inputs: bad}); !isKind(err, Machine) {
			t.Errorf("contents that do not fit: got %v, want a machine error", err)
		}
	}
	w.Guard = 100
	if err := c.Load(t.Context(), w); !isKind(err, Machine) {
		t.Errorf("a guard of 100 bytes: got %v, want a machine error", err)
	}
}

func TestFaultsOfTheSolution(t *testing.T) {
	var broken *Error
	if _, err := start(t, "broken", 0); !errors.As(err, &broken) || broken.Kind != Build ||
		broken.Log != "the compiler's words" || broken.Hint != "a hint" {
		t.Errorf("broken: got %v, want a build error with its log and hint", err)
	}
	for _, tc := range []struct {
		name string
		kind Kind
	}{{"raise", Call}, {"fault", Fault}} {
		c, err := start(t, tc.name, 0)
		if err != nil {
			t.Fatal(err)
		}
		w, out := workload(t, nil)
		if err := c.Load(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Run(t.Context(), out); !isKind(err, tc.kind) {
			t.Errorf("%s: got %v, want an error of kind %s", tc.name, err, tc.kind)
		}
	}
}

func isKind(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

func TestWorkerDies(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		limit      int64
	}{{"crash", "exit status 7", 0}, {"greedy", "over the memory limit of 0.5 GiB", 512 << 20}} {
		c, err := start(t, tc.name, tc.limit)
		if err != nil {
			t.Fatal(err)
		}
		w, out := workload(t, nil)
		if err := c.Load(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		_, err = c.Run(t.Context(), out)
		var died *Died
		if !errors.As(err, &died) || died.Reason != tc.want {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
		if c.Alive() {
			t.Errorf("%s: the worker is still alive", tc.name)
		}
		if tc.name == "crash" {
			if got, want := c.TakeLog(), "last words\n"; got != want {
				t.Errorf("log: got %q, want %q", got, want)
			}
		}
	}
}

func TestTimeLimit(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	t.Setenv("FISUB_TEST_STARTED", started)
	c, err := start(t, "hang", 0)
	if err != nil {
		t.Fatal(err)
	}
	w, out := workload(t, nil)
	if err := c.Load(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	ctx := newExpiry(t.Context())
	go func() { // the limit expires while the solution hangs
		defer close(ctx.done)
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(started); err == nil {
				return
			}
		}
	}()
	if _, err := c.Run(ctx, out); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	if c.Alive() {
		t.Error("the worker is still alive")
	}
	var child int
	if _, err := fmt.Sscan(c.TakeLog(), &child); err != nil {
		t.Fatal(err)
	}
	// A killed process takes a moment to disappear.
	for deadline := time.Now().Add(time.Minute); !processGone(child); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("child %d of the worker is still there", child)
		}
	}
}

// A worker that gets a signal ends without a reply: the judge would take its errors for the solution's.
func TestServeEnds(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			parent, file, err := socket()
			if err != nil {
				t.Fatal(err)
			}
			defer parent.Close()
			conn, err := connection(file)
			file.Close()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			open := func(ctx context.Context, _ device.Options) (device.Device, error) {
				cancel()
				return nil, ctx.Err()
			}
			var replies bytes.Buffer
			ended := make(chan error, 1)
			go func() {
				ended <- Serve(ctx, &Requests{conn: conn}, &replies, []device.Opener{{Kind: "host", Open: open}})
			}()
			if busy {
				if err := send(parent, []byte(`{"open":{"kind":"host"}}`+"\n"), nil); err != nil {
					t.Fatal(err)
				}
			} else {
				cancel()
			}
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) || replies.Len() > 0 {
					t.Errorf("got %v and the reply %q, want %v and none", err, replies.String(), context.Canceled)
				}
			case <-time.After(20 * time.Second):
				parent.Close()
				t.Errorf("the worker does not end: %v, reply %q", <-ended, replies.String())
			}
		})
	}
}

// An expiry is a context whose deadline passes when done is closed.
type expiry struct {
	context.Context
	done chan struct{}
}

func newExpiry(ctx context.Context) *expiry { return &expiry{Context: ctx, done: make(chan struct{})} }

func (e *expiry) Done() <-chan struct{} { return e.done }

func (e *expiry) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func processGone(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(data), ") Z ")
}

func TestLogIsCapped(t *testing.T) {
	c, err := start(t, "flood", 0)
	if err != nil {
		t.Fatal(err)
	}
	w, out := workload(t, nil)
	if err := c.Load(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	log := c.TakeLog()
	if len(log) != maxLog+len(logTruncated) || !strings.HasSuffix(log, logTruncated) {
		t.Errorf("log: got %d bytes, want %d with a mark at the end", len(log), maxLog+len(logTruncated))
	}
}

func TestInputOutsideItsFile(t *testing.T) {
	c, err := start(t, "ok", 0)
	if err != nil {
		t.Fatal(err)
	}
	w, _ := workload(t, nil)
	w.Inputs[0].Tensor.Offset = 16
	if err := c.Load(t.Context(), w); !isKind(err, Machine) ||
		!strings.Contains(err.Error(), "outside the file of 24 bytes") {
		t.Errorf("got %v, want an error about the file's size", err)
	}
}

func TestFinish(t *testing.T) {
	c, err := start(t, "ok", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Finish(t.Context()); err != nil || c.Alive() {
		t.Errorf("got %v, want exit status 0", err)
	}
	c, err = start(t, "exit when closed", 0)
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := c.Finish(t.Context()); !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("got %v, want exit status 5", err)
	}
}

func TestOutOfOrder(t *testing.T) {
	c, err := start(t, "ok", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context(), outputs(t, 1)); !isKind(err, Machine) {
		t.Errorf("run before load: got %v, want a machine error", err)
	}
}

// Progress in the ledger is shown while a call runs, and removed at its end. A fault found in between is not lost.
func TestProgress(t *testing.T) {
	t.Setenv("FISUB_TEST_STARTED", filepath.Join(t.TempDir(), "started"))
	c, err := start(t, "hang", 0)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := ledger.Open(c.shared)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	add := func(kind, text string) {
		line, _ := json.Marshal(device.Hazard{Kind: kind, Text: text})
		writer.Add(line)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var shown []string
	c.emulated = true
	c.progress = func(text string) {
		switch shown = append(shown, text); text {
		case "one":
			add(device.Progress, "two")
		case "two":
			cancel()
		}
	}
	w, out := workload(t, nil)
	if err := c.Load(ctx, w); err != nil {
		t.Fatal(err)
	}
	add(device.Progress, "one")
	add(device.Progress, "one")
	if _, err := c.Run(ctx, out); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if want := []string{"one", "two", ""}; !slices.Equal(shown, want) {
		t.Errorf("got %q, want %q", shown, want)
	}

	if c, err = start(t, "print", 0); err == nil {
		err = c.Load(t.Context(), w)
	}
	if err == nil {
		writer, err = ledger.Open(c.shared)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	add(device.Faulted, "a fault")
	c.takeLedger()
	for _, want := range []string{"a fault", "<nil>"} {
		if _, err := c.Run(t.Context(), out); fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
