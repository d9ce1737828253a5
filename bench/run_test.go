package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"fisub/bench/reference"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/runs"
	"fisub/workloads"
)

// A model is a device whose kernel computes the reference, or copies if the solution is the floor. Its clock gives
// 1000 ns for the first timing and 1 ns more for each further one. A solution's name selects its odd behaviour.
// $FISUB_TEST_TURNS names a file that gets a line for each measurement; if $FISUB_TEST_MEMORY, the device's memory in
// bytes, is set, the line ends with the number of buffers.
type model struct {
	kernel *modelKernel
	live   int
}

func openModel(context.Context, device.Options) (device.Device, error) { return &model{}, nil }

func (*model) Info() device.Info {
	bytes, _ := strconv.ParseInt(os.Getenv("FISUB_TEST_MEMORY"), 10, 64) // 0 without it
	return device.Info{Name: "model", UUID: "M-1", MemoryBytes: bytes, Emulated: os.Getenv("FISUB_TEST_EMULATED") != ""}
}

func (*model) Close() error { return nil }

func (m *model) Alloc(n int) (device.Buffer, error) {
	m.live++
	return &allocated{make(memory, n), m}, nil
}

type allocated struct {
	memory
	of *model
}

func (a *allocated) Close() error {
	a.of.live--
	return nil
}

func (m *model) Build(_ context.Context, def *trace.Definition, sol *trace.Solution) (device.Kernel, error) {
	switch sol.Name {
	case "slow build":
		time.Sleep(time.Second)
	case "no build":
		return nil, &device.BuildError{Text: "does not compile", Log: "line 1"}
	case "no machine":
		return nil, errors.New("no compiler")
	case "lacks at build":
		return nil, fmt.Errorf("%w: the model lacks mma.h (k.cu:1)", device.ErrUnsupported)
	}
	m.kernel = &modelKernel{def: def, odd: sol.Name}
	return m.kernel, nil
}

func (m *model) Measure(_ context.Context, call func() error, plan device.Plan) (*device.Samples, error) {
	k := m.kernel
	if name := os.Getenv("FISUB_TEST_TURNS"); name != "" {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		cold := "cold"
		if !plan.ColdL2 {
			cold = "warm"
		}
		counted := plan.Iterations
		if plan.Apart != nil {
			counted--
		}
		line := fmt.Sprintf("%s %s %d %d", k.odd, cold, plan.Trials, counted)
		if os.Getenv("FISUB_TEST_MEMORY") != "" {
			line += fmt.Sprint(" ", m.live)
		}
		fmt.Fprintln(f, line)
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	s := &device.Samples{Timer: "model", ColdL2: plan.ColdL2}
	base := 1000
	switch {
	case k.odd == "double":
		base = 2000
	case k.odd == "other timer":
		s.Timer = "clock"
	case k.odd == "floor":
		base = 500 - 10*k.shape // the last shape is the fastest
	case k.odd == "crash when timed":
		os.Exit(8)
	case k.odd == "crash when warm" && !plan.ColdL2:
		os.Exit(8)
	}
	if !plan.ColdL2 {
		base /= 2
	}
	if plan.MaxTime > 0 && k.odd == "s" {
		s.Timer += " limited" // the plan had a limit
	}
	for t := range plan.Trials {
		var trial []time.Duration
		for i := range plan.Iterations {
			number := t*plan.Iterations + i
			if plan.Apart != nil && number == *plan.Apart { // the only call that is made; it is not counted
				calls := k.calls
				k.calls = -100
				err := errors.Join(plan.Before(number), call(), plan.After(number), plan.Before(-1), call())
				if k.calls = calls; err != nil {
					return nil, err
				}
				continue
			}
			trial = append(trial, time.Duration(base+t*plan.Iterations+len(trial)))
			if err := plan.After(number); err != nil {
				return nil, err
			}
		}
		s.Trials = append(s.Trials, trial)
	}
	return s, nil
}

// contents returns the contents of a model's buffer or of a slice of one.
func contents(b device.Buffer) []byte {
	if a, ok := b.(*allocated); ok {
		return a.memory
	}
	return *b.(*memory)
}

type memory []byte

func (m memory) Address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m))) }

func (m *memory) Len() int                      { return len(*m) }
func (m *memory) Write(p []byte) error          { copy(*m, p); return nil }
func (m *memory) Read(p []byte) error           { copy(p, *m); return nil }
func (m *memory) Close() error                  { return nil }
func (m *memory) Copy(from device.Buffer) error { return from.Read(*m) }
func (m *memory) Slice(offset, n int) device.Buffer {
	s := (*m)[offset : offset+n : offset+n]
	return &s
}
func (m *memory) Fill(b byte) error {
	for i := range *m {
		(*m)[i] = b
	}
	return nil
}

type modelKernel struct {
	def   *trace.Definition
	odd   string
	calls int // without probes
	shape int // of the floor
}

func (k *modelKernel) Sync(context.Context) error { return nil }
func (k *modelKernel) Close() error               { return nil }

func (k *modelKernel) Probe(_ context.Context, args []device.Arg, _ byte, into [][]byte, _ ...device.Kept) error {
	if err := k.compute(args); err != nil {
		return err
	}
	for i, out := range args[len(args)-len(into):] {
		if err := out.Tensor.Buffer.Read(into[i]); err != nil {
			return err
		}
	}
	return nil
}

func (k *modelKernel) Call(_ context.Context, args []device.Arg) error {
	k.calls++
	switch {
	case k.odd == "crash" && k.calls == 2: // with one trial: the second workload's
		os.Exit(9)
	case k.odd == "hang":
		time.Sleep(time.Hour)
	case k.odd == "guarded" && slices.ContainsFunc(args, isPart):
		return &device.CallError{Kind: "ValueError", Text: "a tensor is part of a larger allocation"}
	case k.odd == "wrong" && k.calls == 2:
		return nil
	case k.odd == "lacks" && k.calls == 2:
		fmt.Println("before it")
		return fmt.Errorf("%w: the model lacks tcgen05.ld (k.cu:212)", device.ErrUnsupported)
	}
	return k.compute(args)
}

// isPart reports whether a tensor is only part of its allocation, because of guards.
func isPart(a device.Arg) bool {
	if a.Tensor == nil {
		return false
	}
	_, whole := a.Tensor.Buffer.(*allocated)
	return !whole
}

func (k *modelKernel) compute(args []device.Arg) error {
	if k.def.Name == "floor" {
		if k.shape = int(args[1].Scalar.Int); k.shape < 0 || os.Getenv("FISUB_TEST_FLOOR") == "wrong" {
			return nil
		}
		return args[2].Tensor.Buffer.Write(contents(args[0].Tensor.Buffer))
	}
	var inputs []workloads.Input
	i := 0
	for name := range k.def.Inputs.All() {
		in := workloads.Input{Name: name, Scalar: args[i].Scalar}
		if t := args[i].Tensor; t != nil {
			in.Tensor = &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: contents(t.Buffer)}
		}
		inputs = append(inputs, in)
		i++
	}
	outputs, err := reference.Run(context.Background(), k.def, inputs)
	if err != nil {
		return err
	}
	for j, out := range outputs {
		if err := args[i+j].Tensor.Buffer.Write(out.Data); err != nil {
			return err
		}
	}
	return nil
}

// A build longer than a workload's time limit is not a TIMEOUT.
func TestSlowBuild(t *testing.T) {
	_, result, err := modelRun(t, "slow build", 2, func(c *testRun) { c.Profile.Timeout = 900 * time.Millisecond })
	if err != nil || result.Passed != 2 {
		t.Errorf("got %+v and %v, want 2 passed", result, err)
	}
}

// A workload's time limit does not run during the build of an extension, which has its own limit.
func TestLimitBuilds(t *testing.T) {
	for name, tc := range map[string]struct {
		limit
		run  string // the worker's reaction to run
		want error
	}{
		"build": {limit{left: 5 * time.Second}, `tell '{"building":true}'; sleep 6; tell '{"building":false}'; tell '{}'`, nil},
		"call":  {limit{left: time.Second}, `read never`, context.DeadlineExceeded},
		"call after a build": {limit{left: 5 * time.Second}, `tell '{"building":true}'; tell '{"building":false}'; read never`,
			context.DeadlineExceeded},
		"slow build": {limit{left: time.Hour, built: buildTimeout}, `tell '{"building":true}'; read never`, errSlowBuild},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, err := worker.Start(t.Context(), worker.Command{Args: []string{"sh", "-c",
				`exec <&3; tell() { echo "$1" >&4; }; read open; tell '{"info":{"emulated":true}}'; read run; ` + tc.run +
					`; read end`}})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := client.Open(t.Context(), "emu", device.Options{}); err != nil {
				t.Fatal(err)
			}
			err = tc.within(t.Context(), func(ctx context.Context) error {
				_, err := client.Run(ctx, nil)
				return err
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if builds := tc.built > 0; builds != strings.Contains(tc.run, "building") {
				t.Errorf("got %v of builds", tc.built)
			}
		})
	}
}

// A device without a feature that the solution uses gives that workload no verdict; the others are judged. If the
// build needs the feature, no workload has a verdict.
func TestLacking(t *testing.T) {
	for name, want := range map[string]struct {
		result Result
		texts  []string
		log    string
	}{
		"lacks": {Result{Passed: 2, Missing: 1}, []string{"the model lacks tcgen05.ld (k.cu:212)"}, "before it\n"},
		"lacks at build": {Result{Missing: 3}, []string{"the model lacks mma.h (k.cu:1)", "the model lacks mma.h (k.cu:1)",
			"the model lacks mma.h (k.cu:1)"}, ""},
	} {
		events, result, err := modelRun(t, name, 3, nil)
		if err != nil || result != want.result {
			t.Errorf("%s: got %+v and %v, want %+v", name, result, err, want.result)
		}
		var texts []string
		judged, builds := map[string]bool{}, 0
		for _, e := range events {
			switch {
			case e.Type == event.TypeFailed:
				if texts = append(texts, e.Message.Text); e.Message.Log != want.log {
					t.Errorf("%s: got log %q, want %q", name, e.Message.Log, want.log)
				}
			case e.Evaluated != nil:
				judged[e.Workload] = true
			case e.Type == event.TypeBuilding:
				builds++
			}
		}
		if !slices.Equal(texts, want.texts) || len(judged) != result.Passed || builds != 1 {
			t.Errorf("%s: got %q, %d evaluated and %d builds, want %q, %d and one", name, texts, len(judged), builds,
				want.texts, result.Passed)
		}
		if d := events[len(events)-1].Done; d == nil || d.Passed != result.Passed || d.Failed != 0 || d.Missing != result.Missing {
			t.Errorf("%s: got the end %+v, want %+v", name, d, result)
		}
	}
}

// The duration of an emulated run says nothing about a GPU, so a timeout gives no verdict. Two in a row still end the
// run.
func TestEmulatedTooLong(t *testing.T) {
	t.Setenv("FISUB_TEST_EMULATED", "1")
	events, result, err := modelRun(t, "hang", 4, func(c *testRun) {
		c.EndEarly, c.Profile.Timeout = true, 300*time.Millisecond
	})
	if want := (Result{Missing: 4, Stopped: true}); err != nil || result != want {
		t.Errorf("got %+v and %v, want %+v", result, err, want)
	}
	failed := 0
	for _, e := range events {
		if e.Evaluated != nil {
			t.Errorf("got a verdict: %+v", e.Evaluated)
		}
		if e.Type == event.TypeFailed {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("got %d workloads without a verdict, want 2 before the end", failed)
	}
}

// A solution that the device cannot run does not affect the other one.
func TestLackingTogether(t *testing.T) {
	var shared Shared
	_, _, err := modelRun(t, "ours", 3, func(c *testRun) { shared, c.Workloads = c.Shared, nil })
	if err != nil {
		t.Fatal(err)
	}
	entry := func(name string) Entry {
		return Entry{Solution: named(name), Run: described(&shared, &event.Run{}), Events: event.NewStream()}
	}
	results, err := Together(t.Context(), shared, []Entry{entry("lacks"), entry("double")})
	if err != nil || results[0] != (Result{Passed: 2, Missing: 1}) || results[1] != (Result{Passed: 3}) {
		t.Errorf("got %+v and %v", results, err)
	}
}

// FailFast ends the run at the first workload that does not pass. EndEarly ends it after two timeouts in a row.
func TestStops(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*testRun)
		want   Result
	}{
		{"crash", func(c *testRun) { c.FailFast = true }, Result{Passed: 1, Failed: 1, Missing: 2, Stopped: true}},
		{"crash", nil, Result{Passed: 2, Failed: 2}},
		{"ours", func(c *testRun) { c.FailFast, c.EndEarly = true, true }, Result{Passed: 4}},
		{"hang", func(c *testRun) { c.EndEarly = true }, Result{Failed: 2, Missing: 2, Stopped: true}},
		{"hang", nil, Result{Failed: 4}},
		{"no build", func(c *testRun) { c.EndEarly = true }, Result{Failed: 1, Missing: 3, Stopped: true, Unbuilt: true}},
		{"no build", nil, Result{Failed: 4, Unbuilt: true}},
		{"ours", func(c *testRun) { c.Budget = 1 }, Result{Passed: 1, Missing: 3, Left: 3, Stopped: true}},
		{"ours", func(c *testRun) { c.Budget = time.Hour }, Result{Passed: 4}},
	} {
		events, result, err := modelRun(t, tc.name, 4, func(c *testRun) {
			if c.Profile.Timeout = 300 * time.Millisecond; tc.name != "hang" {
				c.Profile.Timeout = time.Minute
			}
			if tc.change != nil {
				tc.change(c)
			}
		})
		if err != nil || result != tc.want {
			t.Errorf("%s: got %+v and %v, want %+v", tc.name, result, err, tc.want)
		}
		told := false
		for _, e := range events {
			told = told || e.Message != nil && strings.HasPrefix(e.Message.Text, "stopped")
		}
		if told != tc.want.Stopped {
			t.Errorf("%s: told %v, want %v", tc.name, told, tc.want.Stopped)
		}
	}
}

// modelRun runs the solution of that name on n workloads.
func modelRun(t *testing.T, name string, n int, change func(*testRun)) ([]event.Event, Result, error) {
	t.Helper()
	data, err := workloads.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	def, err := data.Definition("gdn_decode_qk4_v8_d128_k_last")
	if err != nil {
		t.Fatal(err)
	}
	ws, err := data.Workloads(def.Name, "default")
	if err != nil {
		t.Fatal(err)
	}
	profile, err := NewProfile("quick", def)
	if err != nil {
		t.Fatal(err)
	}
	sol := &trace.Solution{Name: name, Definition: def.Name, Author: "a",
		Spec: trace.BuildSpec{Language: "cuda", EntryPoint: "k.cu::k",
			TargetHardware: []string{"cuda"}, DestinationPassingStyle: true},
		Sources: []trace.SourceFile{{Path: "k.cu", Content: "x"}}}
	var events []event.Event
	c := testRun{Shared{Definition: def, Workloads: ws[:n], Profile: profile, Load: data.Load, DeviceKind: "model",
		Worker: worker.Command{Args: []string{os.Args[0]}, Env: []string{"GORACE=atexit_sleep_ms=0"}}},
		Entry{Solution: sol, Run: &event.Run{Fisub: "test"},
			Events: event.NewStream(func(e event.Event) error { events = append(events, e); return nil })}}
	if change != nil {
		change(&c)
	}
	result, err := c.run(t.Context())
	return events, result, err
}

func TestRunTimes(t *testing.T) {
	events, result, err := modelRun(t, "s", 2, func(c *testRun) {
		c.Profile.Target, c.Profile.MaxTime = 0.01, 3*time.Second
	})
	if err != nil || result != (Result{Passed: 2}) {
		t.Fatalf("got %+v and %v, want 2 passed", result, err)
	}
	n := 0
	for _, e := range events {
		if s := e.Samples; s != nil {
			n++
			// 20 timings from 1000 ns on. q, k, a, dt_bias, A_log, b and so on, and the state twice: 2 x 8 x 128 x
			// 128 floats.
			if s.Timer != "model limited" || s.Truncated || !s.ColdL2 || s.N != 20 || s.MedianNS != 1009.5 || s.MinNS != 1000 {
				t.Errorf("samples: got %+v", s)
			}
			if s.Bytes < 2*8*128*128*4 || s.Bytes > 2*8*128*128*4+20000 || s.Bandwidth != float64(s.Bytes)/1009.5 {
				t.Errorf("bytes: got %d and %g GB/s, want the two states and a little more", s.Bytes, s.Bandwidth)
			}
		}
	}
	if n != 2 {
		t.Errorf("samples events: got %d, want 2", n)
	}
}

// Sampling continues until the interval is as narrow as the target, or the time is over.
func TestRunSamplesUntilTarget(t *testing.T) {
	for _, tc := range []struct {
		target    float64
		limit     time.Duration
		truncated bool
	}{{0.006, 10 * time.Second, false}, {1e-9, 150 * time.Millisecond, true}} {
		events, _, err := modelRun(t, "s", 1, func(c *testRun) { c.Profile.Target, c.Profile.MaxTime = tc.target, tc.limit })
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if s := e.Samples; s != nil && (s.Truncated != tc.truncated ||
				!tc.truncated && (s.N <= 20 || s.Interval.Width > tc.target)) {
				t.Errorf("target %g: got %d timings, interval %.4f wide, truncated %v", tc.target, s.N, s.Interval.Width,
					s.Truncated)
			}
		}
	}
}

// A worker that crashes affects the workload in flight; its successor runs all others.
func TestRunGoesOnAfterCrash(t *testing.T) {
	events, result, err := modelRun(t, "crash", 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		if e.Evaluated != nil {
			got = append(got, string(e.Evaluated.Status()))
			if !e.Evaluated.Passed() && !strings.Contains(e.Evaluated.Detail, "exit status 9") {
				t.Errorf("detail: got %q, want the exit status of the solution", e.Evaluated.Detail)
			}
		}
	}
	// The new worker reaches its own second workload, and crashes, at the fourth.
	if want := "PASSED RUNTIME_ERROR PASSED RUNTIME_ERROR"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if want := (Result{Passed: 2, Failed: 2}); result != want {
		t.Errorf("got %+v, want %+v", result, want)
	}
}

// timedWith returns the start of a run whose only workload has timings but no verdict.
func timedWith(timer string) *runs.Summary {
	return &runs.Summary{Rows: []runs.Row{{UUID: "before", Samples: &event.Samples{Timer: timer}}}}
}

// A resumed run rejects another device before it records anything, and another timer before it mixes figures.
func TestRunResumed(t *testing.T) {
	refusal := errors.New("another device")
	events, _, err := modelRun(t, "s", 1, func(c *testRun) {
		c.Admit = func(d device.Info) error {
			if d.Name != "model" || d.UUID != "M-1" {
				t.Errorf("device: got %+v", d)
			}
			return refusal
		}
	})
	if !errors.Is(err, refusal) || len(events) != 0 {
		t.Errorf("got %v after %d events, want %v after none", err, len(events), refusal)
	}
	events, _, err = modelRun(t, "s", 2, func(c *testRun) { c.Before = timedWith("cupti") })
	var timer *TimerError
	if !errors.As(err, &timer) || timer.Was != "cupti" || timer.Is != "model" {
		t.Errorf("got %v, want a *TimerError", err)
	}
	for _, e := range events {
		if e.Samples != nil || e.Evaluated != nil {
			t.Errorf("got %s, want no figure of another timer", e.Type)
		}
	}
	if _, result, err := modelRun(t, "s", 1, func(c *testRun) { c.Before = timedWith("model") }); err != nil ||
		result.Passed != 1 {
		t.Errorf("the same timer: got %+v and %v, want it to pass", result, err)
	}
}

// A tool such as compute-sanitizer must not find memory next to a tensor that a kernel may write to.
func TestOnceHasNoGuards(t *testing.T) {
	var c testRun
	_, result, err := modelRun(t, "guarded", 1, func(r *testRun) { c = *r })
	if err != nil || result.Failed != 1 {
		t.Fatalf("Run: got %+v and %v, want it to fail because of the guards", result, err)
	}
	wrong, log, err := Once(t.Context(), c.Shared, c.Solution, c.Workloads[0], true)
	if err != nil || wrong != "" {
		t.Errorf("Once: got %q and %v\n%s", wrong, err, log)
	}
}
