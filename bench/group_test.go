package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/trace"
	"fisub/runs"
)

// named returns a solution that the model device knows by its name.
func named(name string) *trace.Solution {
	return &trace.Solution{Name: name, Definition: decode, Author: "a",
		Spec: trace.BuildSpec{Language: "cuda", EntryPoint: "k.cu::k",
			TargetHardware: []string{"cuda"}, DestinationPassingStyle: true},
		Sources: []trace.SourceFile{{Path: "k.cu", Content: "x"}}}
}

// turns makes the workers of c record their measurements and returns a function that reads them.
func turns(t *testing.T, c *testRun, env ...string) func() []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "turns")
	c.Worker.Env = append(append(c.Worker.Env, env...), "FISUB_TEST_TURNS="+file)
	return func() []string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(data)), "\n")
	}
}

// payloads returns the warnings, evaluations, samples and floors of a run.
func payloads(events []event.Event) (warnings []string, evaluated []*event.Evaluated, samples []*event.Samples,
	floors []*event.Floor) {
	for _, e := range events {
		switch {
		case e.Type == event.TypeWarning && e.Message != nil:
			warnings = append(warnings, e.Message.Text)
		case e.Evaluated != nil:
			evaluated = append(evaluated, e.Evaluated)
		case e.Samples != nil:
			samples = append(samples, e.Samples)
		case e.Floor != nil:
			floors = append(floors, e.Floor)
		}
	}
	return warnings, evaluated, samples, floors
}

func TestBaselineTakesTurns(t *testing.T) {
	var read func() []string
	events, result, err := modelRun(t, "ours", 2, func(c *testRun) {
		c.Profile.Trials, c.Profile.Iterations = 3, 4
		c.Baseline = &Baseline{Name: "twice", Solution: named("double")}
		read = turns(t, c)
	})
	if err != nil || result.Passed != 2 {
		t.Fatalf("got %+v and %v, want 2 passed", result, err)
	}
	one := []string{"ours cold 1 4", "double cold 1 4", "double cold 1 4", "ours cold 1 4", "ours cold 1 4",
		"double cold 1 4", "ours warm 1 4"}
	if got, want := read(), slices.Concat(one, one); !slices.Equal(got, want) {
		t.Errorf("measurements: got %q, want %q", got, want)
	}
	warnings, evaluated, samples, floors := payloads(events)
	if len(warnings) != 0 || len(floors) != 0 || len(samples) != 2 || len(evaluated) != 2 {
		t.Fatalf("got %q, %d floors, %d samples, %d verdicts", warnings, len(floors), len(samples), len(evaluated))
	}
	for i, s := range samples {
		if s.MedianNS != 1001.5 || s.N != 12 || s.Baseline == nil || s.Baseline.MedianNS != 2001.5 || s.Baseline.N != 12 ||
			len(s.Baseline.TrialsNS) != 3 ||
			s.Baseline.TrialsNS[2][3] != 2003 || !s.Baseline.ColdL2 || s.CopyNS != 0 {
			t.Errorf("samples: got %+v and %+v", s, s.Baseline)
		}
		if w := s.Warm; w == nil || w.MedianNS != 501.5 || w.N != 4 || w.ColdL2 || len(w.TrialsNS) != 1 || !s.ColdL2 {
			t.Errorf("warm: got %+v", s.Warm)
		}
		if p := evaluated[i].Trace.Evaluation.Performance; p.LatencyMS != 1001.5/1e6 || p.ReferenceLatencyMS != 0 || p.SpeedupFactor != 0 {
			t.Errorf("trace: got %+v, want no reference: the baseline is another solution", p)
		}
		if got := evaluated[i].Speedup(); got == nil || *got != 2001.5/1001.5 {
			t.Errorf("speed-up: got %v, want %g", got, 2001.5/1001.5)
		}
	}
	done := events[len(events)-1].Done
	if done.Score == nil || *done.Score != 2001.5/1001.5 || done.Scored != 2 {
		t.Errorf("score: got %+v", done)
	}
}

// The speed-up fields of the official trace refer to the definition's own reference.
func TestReferenceAsBaseline(t *testing.T) {
	def := &trace.Definition{Name: "d", Reference: "def run(): pass"}
	shared := &Shared{Definition: def, Baseline: &Baseline{Name: "reference", Solution: ReferenceSolution(def)}}
	entry := Entry{Solution: named("s"), Run: &event.Run{},
		Events: event.NewStream(func(e event.Event) error {
			if p := e.Evaluated.Trace.Evaluation.Performance; p.LatencyMS != 2 || p.ReferenceLatencyMS != 6 || p.SpeedupFactor != 3 ||
				e.Evaluated.Ratio != nil || *e.Evaluated.Speedup() != 3 {
				t.Errorf("got %+v, want 2, 6 and 3 there only", p)
			}
			return nil
		})}
	p := &process{info: device.Info{Name: "model"}}
	a := &attempt{runner: &runner{shared: shared, entry: entry, process: p}, workload: &trace.Workload{UUID: "u"},
		verdict: verdict{status: trace.Passed, correctness: &trace.Correctness{}},
		samples: &device.Samples{Trials: [][]time.Duration{{2 * time.Millisecond}}}}
	a.emit(&device.Samples{Trials: [][]time.Duration{{6 * time.Millisecond}}})
	if err := entry.Events.Err(); err != nil {
		t.Fatal(err)
	}
}

// A faulty baseline costs the speed-up, but not the solution's verdict and time.
func TestBaselineFails(t *testing.T) {
	for _, tc := range []struct {
		name     string
		speedups []bool
		warnings []string
	}{
		{"wrong", []bool{true, false, true},
			[]string{"has no speed-up: baseline b: INCORRECT_NUMERICAL: output[0 0 0 0] is NaN"}},
		{"crash", []bool{true, false, true},
			[]string{"has no speed-up: baseline b: RUNTIME_ERROR: Worker process failed unexpectedly: exit status 9"}},
		{"crash when timed", []bool{false, false, false}, []string{"exit status 8", "exit status 8", "exit status 8"}},
		{"no build", []bool{false, false, false},
			[]string{"no further speed-ups: baseline b: COMPILE_ERROR: does not compile"}},
		{"no machine", []bool{false, false, false}, []string{"no further speed-ups: baseline b: no compiler"}},
		{"hang", []bool{false, false, false},
			[]string{"no further speed-ups: baseline b: TIMEOUT: Evaluation timeout after 2 seconds for solution hang"}},
		{"other timer", []bool{false, false, false},
			[]string{"no speed-up: baseline b is timed with clock, the solution with model"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			events, result, err := modelRun(t, "ours", 3, func(c *testRun) {
				c.Baseline = &Baseline{Name: "b", Solution: named(tc.name)}
				if tc.name == "hang" {
					c.Profile.Timeout = 2 * time.Second
				}
			})
			if err != nil || result.Passed != 3 {
				t.Fatalf("got %+v and %v, want 3 passed", result, err)
			}
			warnings, evaluated, samples, _ := payloads(events)
			if !slices.EqualFunc(warnings, tc.warnings, strings.Contains) {
				t.Errorf("warnings: got %q, want %q", warnings, tc.warnings)
			}
			scored := 0
			for i, e := range evaluated {
				if (e.Speedup() != nil) != tc.speedups[i] || e.Latency() == nil || samples[i].N != 20 {
					t.Errorf("workload %d: got speed-up %v, %d timings, want one: %v", i, e.Speedup(), samples[i].N, tc.speedups[i])
				}
				if tc.speedups[i] {
					scored++
				}
			}
			done := events[len(events)-1].Done
			if (done.Score != nil) != (scored > 0) || done.Scored != scored {
				t.Errorf("score: got %+v, want one over %d workloads", done, scored)
			}
		})
	}
}

// A solution that fails any workload scores 0. A baseline is not even started in an emulated run or for a failing
// solution.
func TestScoreOfFailure(t *testing.T) {
	events, _, err := modelRun(t, "crash", 2,
		func(c *testRun) { c.Baseline = &Baseline{Name: "b", Solution: named("double")} })
	if err != nil {
		t.Fatal(err)
	}
	if done := events[len(events)-1].Done; done.Score == nil || *done.Score != 0 || done.Scored != 1 {
		t.Errorf("got %+v, want a score of 0", done)
	}
	events, _, err = modelRun(t, "no build", 1,
		func(c *testRun) { c.Baseline = &Baseline{Name: "b", Solution: named("hang")} })
	if warnings, _, _, _ := payloads(events); err != nil || len(warnings) != 0 {
		t.Errorf("got %q and %v, want no word of the baseline", warnings, err)
	}
	events, _, err = modelRun(t, "double", 2, func(c *testRun) {
		c.Baseline = &Baseline{Name: "b", Solution: named("double")}
		five := 5.0
		c.Before = &runs.Summary{Rows: []runs.Row{
			{UUID: "before", Evaluated: eventtest.Verdict{Status: "PASSED", Speedup: &five}.Evaluated()},
			{UUID: c.Workloads[1].UUID, Evaluated: eventtest.Verdict{Status: "TIMEOUT"}.Evaluated()}}}
	})
	if done := events[len(events)-1].Done; err != nil || done.Score == nil || *done.Score != 0 || done.Scored != 2 || done.Passed != 2 || done.Failed != 1 {
		t.Errorf("resumed: got %+v and %v, want a score of 0 over both parts", done, err)
	}
}

func TestWarmFails(t *testing.T) {
	events, result, err := modelRun(t, "crash when warm", 1, nil)
	if err != nil || result.Passed != 1 {
		t.Fatalf("got %+v and %v, want 1 passed", result, err)
	}
	warnings, evaluated, samples, _ := payloads(events)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "no warm-L2 figure: worker process ended: exit status 8") ||
		samples[0].Warm != nil || evaluated[0].Latency() == nil {
		t.Errorf("got %q, %+v, %+v; want a warning and the official figure", warnings, samples[0].Warm, evaluated[0])
	}
}

// Each trial, of the roofline too, has its tensors at other addresses, until the copies fill an eighth of the memory.
func TestTrialsMove(t *testing.T) {
	// Buffers of a call: 8 tensor inputs, 2 outputs, and the copies of poison for the outputs.
	const tensors, poison = 10, 2
	for memory, want := range map[int64][]string{
		1 << 40: {"ours cold 1 1 12", "ours cold 1 1 23", "ours cold 1 1 34", "ours warm 1 1 34"}, // with gaps
		1 << 30: {"ours cold 1 1 12", "ours cold 1 1 22", "ours cold 1 1 32", "ours warm 1 1 32"},
		64:      {"ours cold 1 1 12", "ours cold 1 1 12", "ours cold 1 1 12", "ours warm 1 1 12"},
	} {
		var read func() []string
		_, result, err := modelRun(t, "ours", 1, func(c *testRun) {
			c.Profile.Trials, c.Profile.Iterations = 3, 1
			read = turns(t, c, fmt.Sprint("FISUB_TEST_MEMORY=", memory))
		})
		if got := read(); err != nil || result.Passed != 1 || !slices.Equal(got, want) {
			t.Errorf("with %d bytes: got %+v, %v, %q, want %q", memory, result, err, got, want)
		}
	}
	var read func() []string
	_, _, err := modelRun(t, "ours", 1, func(c *testRun) {
		c.Profile.Trials, c.Profile.Iterations, c.Roofline = 18, 1, true
		read = turns(t, c, "FISUB_TEST_MEMORY=1000000000")
	})
	got := read()
	if most := fmt.Sprintf("ours cold 1 1 %d", maxCopies*tensors+poison); err != nil || !slices.Contains(got, most) ||
		slices.Contains(got, most+"0") || got[maxCopies+1] != "ours cold 1 1 22" {
		t.Errorf("got %v, %q, want up to %q, then from the start", err, got, most)
	}
	if !slices.Contains(got, "floor cold 1 1 5") {
		t.Errorf("got %q, want a floor whose two tensors have moved", got)
	}
}

func TestFloors(t *testing.T) {
	var read func() []string
	events, result, err := modelRun(t, "ours", 3, func(c *testRun) {
		c.Roofline = true
		c.Profile.Trials, c.Profile.Iterations = 2, 4
		read = turns(t, c)
	})
	if err != nil || result.Passed != 3 {
		t.Fatalf("got %+v and %v, want 3 passed", result, err)
	}
	mine := []string{"ours cold 1 4", "ours cold 1 4", "ours warm 1 4"}
	want := slices.Concat(mine, slices.Repeat([]string{"floor cold 1 4"}, 2+len(copyShapes)+2), mine, mine)
	if got := read(); !slices.Equal(got, want) {
		t.Errorf("measurements: got %q, want the floors once: %q", got, want)
	}
	warnings, _, samples, floors := payloads(events)
	if len(warnings) != 0 || len(floors) != 2 || len(samples) != 3 {
		t.Fatalf("got %q, %d floors and %d samples", warnings, len(floors), len(samples))
	}
	empty, copied := floors[0], floors[1]
	if empty.Kind != "empty" || empty.MedianNS != 511.5 || empty.Bytes != 0 || len(empty.TrialsNS) != 2 {
		t.Errorf("empty kernel: got %+v", empty)
	}
	last := len(copyShapes) - 1
	ns := float64(500-10*last) + 1.5
	if copied.Kind != "copy" || copied.Shape != copyShapes[last] || copied.MedianNS != ns ||
		copied.Bytes < samples[0].Bytes || copied.Bytes > samples[0].Bytes+31 {
		t.Errorf("copy: got %+v, want %g ns", copied, ns)
	}
	for _, s := range samples {
		if s.CopyNS != ns || s.EmptyNS != empty.MedianNS || s.CopyShare != ns/s.MedianNS {
			t.Errorf("samples: got copy %g, empty %g, share %g", s.CopyNS, s.EmptyNS, s.CopyShare)
		}
	}

	events, result, err = modelRun(t, "ours", 2, func(c *testRun) {
		c.Roofline = true
		turns(t, c, "FISUB_TEST_FLOOR=wrong")
	})
	warnings, _, samples, _ = payloads(events)
	if err != nil || result.Passed != 2 || !slices.Equal(warnings,
		[]string{"no comparison with the copy bandwidth: wrong result of the roofline copy"}) || samples[1].CopyNS != 0 {
		t.Errorf("a copy that is wrong: got %+v, %v, %q, want one warning and no copy", result, err, warnings)
	}
}

func TestCopied(t *testing.T) {
	for _, tc := range []struct {
		bytes, moved int64
		scale        float64
	}{{0, 32, 1}, {1, 32, 1}, {32, 32, 1}, {33, 64, 1}, {1 << 20, 1 << 20, 1}, {3 * mostCopied, mostCopied, 3}} {
		if moved, scale := copied(tc.bytes); moved != tc.moved || scale != tc.scale {
			t.Errorf("%d bytes: got %d, times %g, want %d, times %g", tc.bytes, moved, scale, tc.moved, tc.scale)
		}
	}
}

// Two solutions of one run have separate runs and alternating trials.
func TestTogether(t *testing.T) {
	var a, b []event.Event
	var shared Shared
	var entries []Entry
	var read func() []string
	_, _, err := modelRun(t, "ours", 2, func(c *testRun) {
		read = turns(t, c)
		shared = c.Shared
		entries = []Entry{
			{Solution: named("double"), Run: described(&shared, &event.Run{ID: "a"}),
				Events: event.NewStream(func(e event.Event) error { a = append(a, e); return nil })},
			{Solution: named("crash"), Run: described(&shared, &event.Run{ID: "b"}),
				Events: event.NewStream(func(e event.Event) error { b = append(b, e); return nil })},
		}
		c.Workloads = nil
	})
	if err != nil {
		t.Fatal(err)
	}
	results, err := Together(t.Context(), shared, entries)
	if err != nil || results[0] != (Result{Passed: 2}) || results[1] != (Result{Passed: 1, Failed: 1}) {
		t.Fatalf("got %+v and %v", results, err)
	}
	if got, want := read(), []string{"double cold 1 20", "crash cold 1 20", "double warm 1 20", "crash warm 1 20",
		"double cold 1 20", "double warm 1 20"}; !slices.Equal(got, want) {
		t.Errorf("measurements: got %q, want %q", got, want)
	}
	for i, events := range [][]event.Event{a, b} {
		if first, last := events[0], events[len(events)-1]; first.Run == nil || first.Run.ID != []string{"a", "b"}[i] ||
			first.Run.Device.Name != "model" || last.Done == nil {
			t.Errorf("run %d: got %+v to %+v, want its own run from beginning to end", i, first, last)
		}
		if _, evaluated, _, _ := payloads(events); len(evaluated) != 2 || !evaluated[0].Passed() ||
			evaluated[1].Passed() != (i == 0) {
			t.Errorf("run %d: got %+v", i, evaluated)
		}
	}
}

// If one attempt is disturbed, all are measured again.
func TestDisturbedTogether(t *testing.T) {
	calm, _ := shakyAttempt(t, 0)
	shaken, _ := shakyAttempt(t, 1)
	measure(t.Context(), []*attempt{calm, shaken})
	for _, r := range []*attempt{calm, shaken} {
		if r.err != nil || r.measured != 2 || len(r.samples.Trials) != 1 || len(r.samples.Disturbed) != 0 {
			t.Errorf("got %+v measured %d times, %v; want calm timings of the second time", r.samples, r.measured, r.err)
		}
	}
}

// A missing Python is only a warning if just the baseline needs it.
func TestBaselineWithoutPython(t *testing.T) {
	t.Setenv("FISUB_PYTHON", "/nonexistent/python")
	b := named("b")
	b.Spec.Language = trace.Python
	events, result, err := modelRun(t, "ours", 2, func(c *testRun) {
		c.Baseline = &Baseline{Name: "b", Solution: b}
	})
	if len(events) < 2 || events[1].Message == nil || !strings.Contains(events[1].Message.Hint, "FISUB_PYTHON") {
		t.Errorf("got %+v, want the warning to have a hint", events)
	}
	warnings, _, _, _ := payloads(events)
	if err != nil || result.Passed != 2 || !slices.EqualFunc(warnings,
		[]string{"no further speed-ups: baseline b: python: "}, strings.HasPrefix) || events[0].Run == nil {
		t.Errorf("got %+v, %v, %q, want one warning in the run", result, err, warnings)
	}
	var we *worker.Error
	if _, _, err = modelRun(t, "b", 1, func(c *testRun) { c.Solution = b }); !errors.As(err, &we) ||
		we.Code != "no-python" {
		t.Errorf("the solution itself: got %v, want an error of the machine", err)
	}
}
