package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/bench/worker"
	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
	"fisub/workloads/random"
)

const decode = "gdn_decode_qk4_v8_d128_k_last"

// run runs the solution of that name on n workloads with a small head size and returns its result and events.
func run(t *testing.T, name string, n int) (Result, []event.Event) {
	t.Helper()
	return runOn(t, decode, name, 0, n)
}

// runOn is run with n workloads of a definition, starting at first.
func runOn(t *testing.T, definition, name string, first, n int) (Result, []event.Event) {
	t.Helper()
	result, events, err := tryOn(t, definition, name, first, n)
	if err != nil {
		t.Fatal(err)
	}
	return result, events
}

func tryOn(t *testing.T, definition, name string, first, n int) (Result, []event.Event, error) {
	t.Helper()
	data, err := workloads.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	def, err := data.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := data.Workloads(definition, workloads.DefaultSet)
	if err != nil {
		t.Fatal(err)
	}
	def.Axes.Set("head_size", trace.Axis{Const: true, Value: 32})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var events []event.Event
	stream := event.NewStream(func(e event.Event) error {
		events = append(events, e)
		return nil
	})
	sol := &trace.Solution{Name: name, Definition: definition, Author: "a", Spec: trace.BuildSpec{Language: trace.CUDA,
		TargetHardware: []string{"cuda"}, DestinationPassingStyle: true,
		EntryPoint: "kernel.cu::kernel"}, Sources: []trace.SourceFile{{Path: "kernel.cu", Content: "x"}}}
	kind := "host"
	if name == "dying" {
		kind = name
	}
	if rest, ok := strings.CutPrefix(name, "emulated: "); ok {
		sol.Name, kind = rest, "emulated"
	}
	ratio, iterations := 1.0, 1
	if strings.HasPrefix(name, "misses a row") {
		ratio = 0.9
	}
	timeout := 10 * time.Minute // the race detector makes the indexer slow
	if strings.HasPrefix(name, "hangs") {
		timeout = 3 * time.Second
	}
	if rest, ok := strings.CutSuffix(name, ", four timed calls"); ok {
		sol.Name, iterations = rest, 4
	}
	if rest, ok := strings.CutSuffix(sol.Name, " by ratio"); ok {
		sol.Name, ratio = rest, 0.9
	}
	shared := Shared{Definition: def, Workloads: ws[first : first+n], Load: data.Load,
		Profile: Profile{Iterations: iterations, Trials: 3, Timeout: timeout,
			Tolerance: tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: ratio}},
		Worker:     worker.Command{Args: []string{self}, Env: []string{"FISUB_TEST_WORKER=1", "GORACE=atexit_sleep_ms=0"}},
		DeviceKind: kind}
	result, err := Run(t.Context(), shared, Entry{Solution: sol, Events: stream, Run: described(&shared, &event.Run{})})
	return result, events, err
}

// A failure of fisub's code after the solution was called gives no verdict, and does not affect the other workloads.
func TestSpoilt(t *testing.T) {
	for name, want := range map[string]string{
		"takes all descriptors": "too many open files",
		"runs out of threads": "worker process ended: exit status 2; " +
			"runtime/cgo: pthread_create failed: Resource temporarily unavailable",
	} {
		result, events, err := tryOn(t, decode, name, 0, 2)
		if want := (Result{Missing: 2}); err != nil || result != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, result, err, want)
		}
		for _, e := range events {
			if e.Type == event.TypeFailed && (!strings.HasPrefix(e.Message.Text, "after the solution was called: ") ||
				!strings.HasSuffix(e.Message.Text, want)) {
				t.Errorf("%s: got %q, want %q", name, e.Message.Text, want)
			}
		}
	}
}

// A request that the kernel refuses to send is not the solution's fault.
func TestUnsent(t *testing.T) {
	var events []event.Event
	stream := event.NewStream(func(e event.Event) error {
		events = append(events, e)
		return nil
	})
	a := &attempt{runner: &runner{entry: Entry{Events: stream}, process: &process{}}, workload: &trace.Workload{UUID: "u"}}
	unsent := &worker.Error{Kind: worker.Machine, Unsent: true, Text: "sending a request: too many references"}
	if v, err := a.attribute(unsent); v.status != "" || !lacking(err) || err.Error() != unsent.Text {
		t.Errorf("got verdict %q and %v, want none for this workload", v.status, err)
	}
	(&honesty{attempt: a}).attribute(fmt.Errorf("with all inputs changed: %w", unsent))
	if len(a.found) > 0 || len(events) != 1 || events[0].Message == nil || events[0].Message.Text !=
		"the honesty checks could not be completed: with all inputs changed: sending a request: too many references" {
		t.Errorf("got findings %v and events %+v, want a message", a.found, events)
	}
}

// A worker that ends before it runs any of the solution is an error of the machine.
func TestDying(t *testing.T) {
	_, events, err := tryOn(t, decode, "dying", 0, 1)
	var died *worker.Died
	if !errors.As(err, &died) || len(events) > 0 {
		t.Errorf("got %v and %d events, want the end of the run", err, len(events))
	}
}

func TestFindings(t *testing.T) {
	was := gpuFiles
	gpuFiles = []string{"/dev/full"}
	defer func() { gpuFiles = was }()
	for _, tc := range []struct {
		name   string
		status trace.Status
		want   []string // check and part of its text, in order
	}{
		{"honest", trace.Passed, nil},
		{"pointer", trace.Passed, []string{cachedByPointer,
			"with all inputs changed, the outputs match the previous inputs"}},
		{"graph", trace.Passed, []string{cachedByPointer,
			"at other addresses, unwritten outputs: output[0 0 0 0] is NaN"}},
		{"content", trace.Passed, []string{cachedByContent, "with "}},
		{"content of the first call", trace.Passed, []string{cachedByContent, "with "}},
		{"skips after the first call", trace.IncorrectNumerical,
			[]string{skippedWork, "call 2 on the same inputs, unwritten outputs: output[0 0 0 0] is NaN"}},
		{"skips after the timing", trace.Passed, []string{skippedWork,
			"after the timing, unwritten outputs: output[0 0 0 0] is NaN"}},
		{"skips half after the timing", trace.Passed,
			[]string{skippedWork, "after the timing, unwritten outputs: new_state[0 0 0 0] is NaN"}},
		{"skips timed calls", trace.Passed, []string{skippedWork,
			"timed call 1 of 1, unwritten outputs: output[0 0 0 0] is NaN"}},
		{"works once", trace.Passed, nil},
		{"honest, four timed calls", trace.Passed, nil},
		{"honest by ratio, four timed calls", trace.Passed, nil},
		{"replays while timed, four timed calls", trace.Passed, []string{cachedByContent, "the outputs match the other calls' inputs"}},
		{"replays while timed by ratio, four timed calls", trace.Passed,
			[]string{cachedByContent, "the outputs match the other calls' inputs"}},
		{"raises while timed, four timed calls", trace.Passed, []string{failedCall, "changed: ValueError: never seen"}},
		{"crashes while timed, four timed calls", trace.Passed, []string{failedCall, "changed: worker process ended: exit status 9"}},
		{"hangs while timed, four timed calls", trace.Passed, []string{failedCall, "changed: no reply within 3 seconds"}},
		{"works outside", trace.Passed, []string{workOutside, "9 of 3 timed calls have work on the GPU that was launched " +
			"outside of the call (the first: kernel late); with it they take 1.20 µs longer (median); the call queues a function " +
			"of the host with cudaLaunchHostFunc"}},
		{"has a child with a GPU", trace.Passed, []string{gpuProcess, "another process of the solution uses a GPU, and its work " +
			"is not timed: process "}},
		{"works while not called", trace.Passed, []string{workOutside, "memcpy of 64 bytes was launched on the GPU while no call " +
			"was in progress"}},
		{"in place", trace.Passed, []string{changedInput, "input state[0 0 0 0] was modified"}},
		{"in place, and edits its replies", trace.Passed, []string{changedInput, "input state[0 0 0 0] was modified"}},
		{"in place at first", trace.Passed, []string{changedInput, "input state[0 0 2 3] was modified"}},
		{"in place at the end", trace.Passed, []string{changedInput, "input state[0 0 2 3] was modified"}},
		{"behind", trace.Passed, []string{outsideWrite, "memory after the end of state was modified"}},
		{"before", trace.Passed, []string{outsideWrite, "memory before output was modified"}},
		{"late stream", trace.Passed, []string{lateWrite,
			"output[0 0 0 0] was written after the end of the call's work in its stream"}},
		{"early stream", trace.Passed, []string{lateWrite, "correct if the device is idle before the call"}},
		{"constant A_log", trace.Passed, []string{wrongResult, "with all "}},
		{"raises", trace.Passed, []string{failedCall, "changed: ValueError: never seen"}},
		{"faults", trace.Passed, []string{failedCall, "changed: device fault: illegal address"}},
		{"crashes", trace.Passed, []string{failedCall, "changed: worker process ended: exit status 9"}},
		{"leaves after the timing", trace.Passed, []string{endedChecks,
			"the honesty checks could not be completed: worker process ended: exit status 0"}},
		{"takes all descriptors after the timing", trace.Passed, []string{endedChecks,
			"the honesty checks could not be completed: "}},
		{"misses a row", trace.Passed, []string{wrongRows, "new_state: most elements are wrong in 1 of 256 rows, first in " +
			"row [0 0 5]; the contest requires only 90 % of all elements"}},
		{"misses a row in timed calls", trace.Passed, []string{wrongRows, "new_state: most elements are wrong in 1 of 256 rows"}},
		{"too fast", trace.Passed, []string{tooFast, "30.00 µs for 0.1 MB, but with a cold L2 memory of 1 GB/s needs 32."}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			result, events := run(t, tc.name, 1)
			var got []string
			status := ""
			for _, e := range events {
				switch {
				case e.Finding != nil:
					if status == "" || e.Type != event.TypeWarning {
						t.Errorf("a finding of type %s after status %q, want a warning after the verdict", e.Type, status)
					}
					got = append(got, e.Finding.Check, e.Finding.Text)
				case e.Message != nil && tc.name == "leaves after the timing": // its last reply may be lost
				case e.Message != nil:
					t.Errorf("got the message %s", e.Message.Text)
				case e.Evaluated != nil:
					status = string(e.Evaluated.Status())
				}
			}
			if status != string(tc.status) {
				t.Errorf("status: got %s, want %s", status, tc.status)
			}
			if strings.Contains(tc.name, " by ratio") { // the replayed elements may be a whole row
				if i := slices.Index(got, wrongRows); i >= 0 {
					got = slices.Delete(got, i, i+2)
					result.Findings--
				}
			}
			if !slices.EqualFunc(got, tc.want, strings.Contains) {
				t.Errorf("findings: got %q, want %q", got, tc.want)
			}
			if want := len(tc.want) / 2; result.Findings != want || !strings.Contains(tc.name, " by ratio") &&
				events[len(events)-1].Done.Findings != want {
				t.Errorf("findings counted: got %d and %d, want %d", result.Findings, events[len(events)-1].Done.Findings, want)
			}
		})
	}
}

// Notes are emitted once, and are not findings.
func TestNotes(t *testing.T) {
	for name, want := range map[string]string{
		"queues a function": "the call queues a function of the host with cudaLaunchHostFunc: the latency includes it only " +
			"between two kernels",
		"reserves the L2": "reserves 31.5 MB of the L2 for persisting lines, which fisub resets before each timed call; the " +
			"contest does not",
	} {
		result, events := run(t, name, 2)
		var got []string
		for _, e := range events {
			if e.Message != nil {
				got = append(got, e.Message.Text)
			}
		}
		if result.Passed != 2 || result.Findings != 0 || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %+v and %q, want the note %q", name, result, got, want)
		}
	}
}

// The indices of the top-k indexer are judged by their scores in further calls too.
func TestTopKFindings(t *testing.T) {
	const indexer = "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64"
	for name, want := range map[string]string{"honest": "", "in other order": "", "pointer": cachedByPointer,
		"content": cachedByContent, "skips after the timing": skippedWork,
		"skips timed calls": skippedWork, "emulated: pointer": cachedByPointer,
		"emulated: skips after the first call": skippedWork} {
		got, texts, status := "", "", trace.Status("")
		for n := 0; n == 0 || got == "" && name == "content" && n < 20; n++ { // not every change of a row changes the choice
			_, events, err := tryOn(t, indexer, name, 2, 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				switch {
				case e.Finding != nil:
					got += e.Finding.Check
					texts += e.Finding.Text
				case e.Evaluated != nil:
					status = e.Evaluated.Status()
				}
			}
		}
		passes := name != "emulated: skips after the first call"
		if got != want || (status == trace.Passed) != passes {
			t.Errorf("%s: got %s with finding %q (%s), want %q", name, status, got, texts, want)
		}
	}
}

// On the virtual GPU each workload gets a second call, which affects the verdict as on a GPU. Reported hazards become
// findings of a passed workload and warnings in the log of any other.
func TestEmulatedFindings(t *testing.T) {
	for name, want := range map[string]struct {
		statuses, checks []string
		log              string
	}{
		"honest": {[]string{"PASSED", "PASSED", "PASSED"}, nil, ""},
		"races":  {[]string{"PASSED", "PASSED", "PASSED"}, []string{"race", "race", "race"}, ""},
		"races and is wrong": {[]string{"INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL"}, nil,
			"warning: kernel.cu:1:2: a race\n"},
		"skips what it was given": {[]string{"INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL"},
			[]string{skippedWork, skippedWork, skippedWork}, ""},
		"pointer": {[]string{"PASSED", "PASSED", "PASSED"}, []string{cachedByPointer, cachedByPointer, cachedByPointer}, ""},
		"idle":    {[]string{"PASSED", "PASSED", "PASSED"}, nil, ""},
		"crashes": {[]string{"PASSED", "PASSED", "PASSED"}, []string{failedCall, failedCall, failedCall}, ""},
		"crashes at call 2": {[]string{"RUNTIME_ERROR", "RUNTIME_ERROR", "RUNTIME_ERROR"}, nil,
			"call 2 on the same inputs: Worker process failed unexpectedly: exit status 9"},
		"raises at call 2":   {[]string{"RUNTIME_ERROR", "PASSED", "PASSED"}, nil, ""},
		"conceals a fault":   {[]string{"RUNTIME_ERROR", "RUNTIME_ERROR", "RUNTIME_ERROR"}, nil, "kernel.cu:1: a fault"},
		"names no addresses": {[]string{"PASSED", "PASSED", "RUNTIME_ERROR"}, []string{failedCall}, ""},
		"leaves after its reply": {[]string{"RUNTIME_ERROR", "RUNTIME_ERROR", "RUNTIME_ERROR"}, nil,
			"Worker process failed unexpectedly: exit status 0"},
		"idle later": {[]string{"RUNTIME_ERROR", "RUNTIME_ERROR", "RUNTIME_ERROR"}, nil, "nothing was launched, copied " +
			"or set, unlike in the previous call: the contest's timing raises \"No kernel activities recorded\""},
	} {
		var statuses, checks []string
		result, events := run(t, "emulated: "+name, 3)
		for _, e := range events {
			switch {
			case e.Evaluated != nil:
				statuses = append(statuses, string(e.Evaluated.Status()))
				if got := strings.Count(e.Evaluated.Log(), "a race"); got != strings.Count(want.log, "a race") ||
					!strings.HasSuffix(e.Evaluated.Log(), want.log) {
					t.Errorf("%s: log: got %q, want %q", name, e.Evaluated.Log(), want.log)
				}
			case e.Finding != nil:
				checks = append(checks, e.Finding.Check)
				if e.Finding.Check == "race" && (e.Finding.Place != "kernel.cu:1:2" || e.Finding.Text != "kernel.cu:1:2: a race") {
					t.Errorf("%s: got %+v", name, e.Finding)
				}
			}
		}
		if !slices.Equal(statuses, want.statuses) || !slices.Equal(checks, want.checks) || result.Findings != len(want.checks) {
			t.Errorf("%s: got %q with %q, %d findings, want %q with %q", name, statuses, checks, result.Findings, want.statuses,
				want.checks)
		}
	}
}

// Results kept under a part of the inputs are found with a drawn change in workloads that get one other call.
func TestDrawnChanges(t *testing.T) {
	found := 0
	for range 5 {
		_, events := run(t, "emulated: content later", 3)
		for _, e := range events {
			if e.Finding != nil && e.Finding.Check == cachedByContent {
				found++
			} else if e.Finding != nil || e.Evaluated != nil && e.Evaluated.Status() != trace.Passed {
				t.Fatalf("got %+v", e)
			}
		}
	}
	if found == 0 {
		t.Errorf("got no finding %s in 5 runs", cachedByContent)
	}
}

// Each input is at times the only one that changes, so that results kept under all others are found.
func TestEachInputChanges(t *testing.T) {
	def := &trace.Definition{}
	values := []workloads.Input{}
	for _, name := range []string{"a", "b", "c", "d"} {
		def.Inputs.Set(name, trace.TensorSpec{})
		values = append(values, workloads.Input{Name: name, Tensor: &tensor.Tensor{DType: tensor.Float32, Shape: []int{4, 2},
			Data: make([]byte, 32)}})
	}
	seen := map[int]bool{}
	for i := range 200 {
		shared := &Shared{Definition: def, Secret: fmt.Sprint(i)}
		h := &honesty{attempt: &attempt{runner: &runner{shared: shared}, workload: &trace.Workload{}}, values: values,
			changed: []int{0, 1, 2, 3}}
		for _, c := range h.changes() {
			if len(c.inputs) == 1 && strings.Contains(c.what, "all elements") {
				seen[c.inputs[0]] = true
			}
		}
	}
	if len(seen) != len(values) {
		t.Errorf("got changes of only the inputs %v", seen)
	}
}

// A run of a solution that launches no kernel has a note.
func TestHosted(t *testing.T) {
	for name, want := range map[string]int{"honest": 0, "emulated: honest": 0, "emulated: idle": 0,
		"computes on the host": 1, "emulated: computes on the host": 1} {
		result, events := run(t, name, 2)
		notes := 0
		for _, e := range events {
			if e.Message != nil && e.Type == event.TypeWarning &&
				e.Message.Text == "computes on the host: no kernel was launched, only copies" {
				notes++
			}
		}
		if notes != want || result.Passed != 2 || result.Findings > 0 {
			t.Errorf("%s: got %d notes and %+v, want %d", name, notes, result, want)
		}
	}
}

// The checks of one workload do not affect the next.
func TestFindingsOfEachWorkload(t *testing.T) {
	for name, want := range map[string]int{"honest": 0, "late stream": 3, "crashes": 3, "faults": 3, "prints": 0} {
		result, events := run(t, name, 3)
		if result.Passed != 3 || result.Findings != want {
			t.Errorf("%s: got %+v, want 3 passed, %d findings", name, result, want)
		}
		for _, e := range events {
			log := ""
			if name == "prints" { // by three trials and their timing
				log = strings.Repeat("called\n", 6)
			}
			if e.Evaluated != nil && e.Evaluated.Log() != log {
				t.Errorf("%s: log of %s: got %q, want %q", name, e.Workload, e.Evaluated.Log(), log)
			}
		}
	}
}

func TestOtherContents(t *testing.T) {
	values := func(x *tensor.Tensor) []float64 {
		v := make([]float64, x.Len())
		x.ReadFloat64s(v, 0)
		return v
	}
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float8E4M3FN} {
		for _, shape := range [][]int{{2}, {1, 3}, {2, 4}, {5, 3, 4}} {
			x := tensor.New(dtype, shape...)
			before := make([]float64, x.Len())
			for i := range before {
				before[i] = float64(i%7) - 2
			}
			x.WriteFloat64s(before, 0)
			turn(x, random.New("turn"))
			got := values(x)
			if slices.Equal(got, before) || !slices.Equal(slices.Sorted(slices.Values(got)),
				slices.Sorted(slices.Values(before))) {
				t.Errorf("turn of %v%v: got %v of %v, want the same values elsewhere", dtype, shape, got, before)
			}
			for _, n := range []int{1, rowOf(x)} {
				x.WriteFloat64s(before, 0)
				flip(x, random.New("flip"), n)
				var at []int
				for i, v := range values(x) {
					if v != before[i] {
						at = append(at, i)
						if math.Abs(v-before[i]) < 1 {
							t.Errorf("flip of %v%v: %v became %v, want another number by far", dtype, shape, before[i], v)
						}
					}
				}
				row := rowOf(x)
				if len(at) != n || at[n-1]/row != at[0]/row {
					t.Errorf("flip of %v%v changed %v, want %d elements of a row", dtype, shape, at, n)
				}
				if rows := x.Len() / row; rows > 2 && (at[0]/row == 0 || at[0]/row == rows-1) {
					t.Errorf("flip of %v%v changed row %d, want an inner one", dtype, shape, at[0]/row)
				}
			}
		}
	}
	zeros := tensor.New(tensor.Float32, 2, 2)
	flip(zeros, random.New("flip"), 2)
	if got := values(zeros); !slices.Contains(got, -1) {
		t.Errorf("flip of zeros: got %v, want ones", got)
	}
}

// Integers, booleans and packed values keep their contents: a new index could be out of range.
func TestOnlyFloatsChange(t *testing.T) {
	in := &workloads.Inputs{}
	for _, dtype := range []tensor.DType{tensor.Int8, tensor.Float8E4M3FN, tensor.Int32, tensor.BFloat16, tensor.Int64,
		tensor.Bool, tensor.Float4E2M1} {
		in.Values = append(in.Values, workloads.Input{Name: dtype.String(), Tensor: tensor.New(dtype, 2, 8)})
	}
	in.Values = append(in.Values, workloads.Input{Name: "weights", Tensor: &tensor.Tensor{DType: tensor.Float8E4M3FN,
		Shape: []int{2, maxChanged}, Data: make([]byte, 2*maxChanged)}})
	e := &honesty{in: &inputs{Inputs: in}}
	s, err := e.choose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	if want := []int{3, 1}; !slices.Equal(e.changed, want) {
		t.Errorf("got inputs %v, want %v: bfloat16 and float8", e.changed, want)
	}
}
