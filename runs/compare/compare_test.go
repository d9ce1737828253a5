package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/runs"
)

func gpu() *machine {
	return &machine{noise: 0.01, drift: 0.001, tick: 32, random: rand.New(rand.NewPCG(1, 2))}
}

func mustCompare(t *testing.T, a, b *runs.Run) *Result {
	t.Helper()
	res, err := Runs(a, b, Threshold)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// The same files give the same figures, and a run is the same as itself.
func TestItself(t *testing.T) {
	a := gpu().run("a", 5, 1)
	first, second := mustCompare(t, a, a), mustCompare(t, a, a)
	x, _ := json.Marshal(first)
	y, _ := json.Marshal(second)
	if string(x) != string(y) {
		t.Errorf("got %s, then %s", x, y)
	}
	if first.Verdict != Same || first.Ratio.Value != 1 || first.Ratio.Lo > 1 || first.Ratio.Hi < 1 || first.Timed != 5 ||
		first.Count(Same) != 5 || first.Warnings != nil {
		t.Errorf("got %s", x)
	}
}

// The ratio compares medians interpolated between the timer's ticks, the whole is their geometric mean, and swapping
// the runs inverts it.
func TestRatio(t *testing.T) {
	fixed := func(id string, ns ...int64) *runs.Run {
		r := gpu().run(id, 2, 1)
		for i := range r.Rows {
			r.Rows[i].Samples.TrialsNS = [][]int64{{ns[i], ns[i], ns[i], ns[i]}, {ns[i], ns[i], ns[i], ns[i]}}
		}
		return r
	}
	a, b := fixed("a", 1000, 2000), fixed("b", 2000, 16000)
	res := mustCompare(t, a, b)
	if r := res.Rows[1].Ratio; r.Value != 8 || r.Lo != 8 || r.Hi != 8 || res.Rows[1].B.OfficialNS != 16000 ||
		res.Rows[1].B.N != 8 {
		t.Errorf("got %+v and %+v, want 8", res.Rows[1], r)
	}
	if math.Abs(res.Ratio.Value-4) > 1e-9 || res.Verdict != Slower || !res.Slower() {
		t.Errorf("got %+v, want 4, slower", res.Ratio)
	}
	res = mustCompare(t, b, a)
	if math.Abs(res.Ratio.Value-0.25) > 1e-9 || res.Verdict != Faster || res.Slower() {
		t.Errorf("swapped: got %+v, want 0.25, faster", res.Ratio)
	}
	// 3 of 8 on the next tick: 2560 + 32*3/8.
	a.Rows[0].Samples.TrialsNS = [][]int64{{2560, 2592, 2560, 2560}, nil, {2592, 2592, 2560, 2560}}
	if got := mustCompare(t, a, a).Rows[0].A; got.MedianNS != 2572 || got.OfficialNS != 2568 {
		t.Errorf("got median %v, official %v, want 2572 and 2568", got.MedianNS, got.OfficialNS)
	}
}

func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		ratio       Ratio
		significant bool
		want        Verdict
	}{
		{Ratio{1.02, 1.005, 1.03}, true, Slower},
		{Ratio{1.02, 1.005, 1.03}, false, Unclear},
		{Ratio{1.02, 0.999, 1.04}, true, Unclear},
		{Ratio{0.98, 0.97, 0.995}, true, Faster},
		{Ratio{0.98, 0.97, 0.995}, false, Unclear},
		{Ratio{0.98, 0.97, 1.001}, true, Unclear},
		{Ratio{1.005, 1.002, 1.008}, true, Same}, // a difference, but not a relevant one
		{Ratio{1.005, 0.99, 1.019}, false, Same},
		{Ratio{1.005, 0.99, 1.021}, false, Unclear}, // 2 % is not ruled out
		{Ratio{0.995, 0.979, 1.005}, false, Unclear},
	} {
		if got := tc.ratio.verdict(tc.significant, 0.01); got != tc.want {
			t.Errorf("%+v, significant %v: got %s, want %s", tc.ratio, tc.significant, got, tc.want)
		}
	}
}

func TestFewTimings(t *testing.T) {
	a, b := gpu().run("a", 1, 1), gpu().run("b", 1, 2)
	a.Rows[0].Samples.TrialsNS, b.Rows[0].Samples.TrialsNS = [][]int64{{1000, 1001, 1002}}, [][]int64{{2000, 2001, 2002}}
	if row := mustCompare(t, a, b).Rows[0]; row.Verdict != Unclear || len(row.Warnings) != 1 {
		t.Errorf("3 timings: got %+v, want unclear, with a warning", row)
	}
}

func TestDisturbed(t *testing.T) {
	a, b := gpu().run("a", 1, 1), gpu().run("b", 1, 1)
	b.Rows[0].Samples.Disturbed = []string{"the GPU was throttled"}
	if row := mustCompare(t, a, b).Rows[0]; len(row.Warnings) != 1 ||
		row.Warnings[0] != "unreliable timings of B: the GPU was throttled" {
		t.Errorf("got %q, want a warning about B", row.Warnings)
	}
}

func TestFailing(t *testing.T) {
	evaluated := func(r *runs.Run, status ...string) *runs.Run {
		for i, s := range status {
			r.Rows[i].Evaluated = eventtest.Verdict{Status: s}.Evaluated()
			if s != "PASSED" {
				r.Rows[i].Samples = nil
			}
			if s == "" {
				r.Rows[i].Evaluated, r.Rows[i].Unjudged = nil, &event.Message{Text: "no blob"}
			}
		}
		return r
	}
	for _, tc := range []struct {
		name     string
		a, b     []string
		factor   float64
		rows     []Verdict
		whole    Verdict
		why      string
		slower   bool
		rowWhy   string // of the first row
		noTiming bool
	}{
		{"lost", []string{"PASSED", "PASSED"}, []string{"TIMEOUT", "PASSED"}, 0.9, []Verdict{Slower, Faster}, Slower,
			"B fails 1 of the workloads that A passes", true, "B does not pass", false},
		{"gained", []string{"TIMEOUT", "PASSED"}, []string{"PASSED", "PASSED"}, 1, []Verdict{Faster, Same}, Faster,
			"B passes 1 of the workloads that A fails", false, "A does not pass", false},
		{"gained, but slower", []string{"TIMEOUT", "PASSED"}, []string{"PASSED", "PASSED"}, 1.1, []Verdict{Faster, Slower},
			Slower, "", true, "A does not pass", false},
		{"neither", []string{"TIMEOUT", "PASSED"}, []string{"TIMEOUT", "PASSED"}, 1, []Verdict{NotComparable, Same}, Same, "",
			false, "neither passes", false},
		{"not judged", []string{"", "PASSED"}, []string{"PASSED", "PASSED"}, 1, []Verdict{NotComparable, Same}, Same, "",
			false, "not judged", false},
		{"not timed", []string{"PASSED", "PASSED"}, []string{"PASSED", "PASSED"}, 1, []Verdict{NotComparable, NotComparable},
			NotComparable, "no workload was timed in both runs", false, "not timed", true},
	} {
		a, b := evaluated(gpu().run("a", 2, 1), tc.a...), evaluated(gpu().run("b", 2, tc.factor), tc.b...)
		if tc.noTiming {
			a.Rows[0].Samples, b.Rows[1].Samples = nil, nil
		}
		res := mustCompare(t, a, b)
		for i, row := range res.Rows {
			if row.Verdict != tc.rows[i] {
				t.Errorf("%s: workload %d: got %s, want %s", tc.name, i, row.Verdict, tc.rows[i])
			}
		}
		if res.Verdict != tc.whole || res.Why != tc.why || res.Slower() != tc.slower || res.Rows[0].Why != tc.rowWhy {
			t.Errorf("%s: got %s because %q, regression %v, want %s because %q, %v", tc.name, res.Verdict, res.Why, res.Slower(),
				tc.whole, tc.why, tc.slower)
		}
	}
}

// One workload that is clearly slower is a regression, even if the whole is not slower.
func TestOneSlower(t *testing.T) {
	m := gpu()
	a, b := m.run("a", 20, 1), m.run("b", 20, 1)
	b.Rows[10].Samples.TrialsNS = m.trials(30000)
	a.Rows[10].Samples.TrialsNS = m.trials(27000)
	if res := mustCompare(t, a, b); res.Verdict != Same || res.Count(Slower) != 1 || !res.Slower() {
		t.Errorf("got %s with %d slower, regression %v, want same, 1, true", res.Verdict, res.Count(Slower), res.Slower())
	}
}

func TestDifferentWorkloads(t *testing.T) {
	a, b := gpu().run("a", 3, 1), gpu().run("b", 4, 1)
	a.Rows, b.Rows = a.Rows[:2], b.Rows[1:2]
	b.Rows = append(b.Rows, runs.Row{UUID: "other", Evaluated: eventtest.Verdict{Status: "PASSED"}.Evaluated()})
	b.Rows[0].Samples.TrialsNS = a.Rows[1].Samples.TrialsNS
	b.Done, b.Started, a.Running = nil, 1, true
	res := mustCompare(t, a, b)
	got := ""
	for _, row := range res.Rows {
		got += fmt.Sprintf("%s %s %s; ", row.UUID, row.Verdict, row.Why)
	}
	if want := "w0 not comparable only in A; w1 same ; other not comparable only in B; "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(res.Warnings) != 3 || res.Warnings[0] != "run a is still running" ||
		res.Warnings[1] != "run b is incomplete" || res.Timed != 1 ||
		res.Warnings[2] != "different workloads: 1 in both runs, 1 only in A, 1 only in B" {
		t.Errorf("got warnings %q, %d timed", res.Warnings, res.Timed)
	}
}

// With another driver, other locked clocks or other axes the verdict is not "slower". Unlocked clocks do not matter.
func TestApart(t *testing.T) {
	clocks := func(b *runs.Run, mhz int, locked bool) {
		b.Rows[1].Samples.Stamp = &event.Stamp{ClocksLocked: locked,
			During: event.During{N: 1, Median: event.Reading{SMClockMHz: mhz, MemoryClockMHz: 3201}}}
	}
	const set = "the SM and memory clocks were locked at 1980 and 3201 MHz for A, 1200 and 3201 MHz for B"
	for _, tc := range []struct {
		name        string
		change      func(b *runs.Run)
		first       Verdict
		whole       Verdict
		why, whole2 string // of the second row, and of the whole
	}{
		{"driver", func(b *runs.Run) { b.Run.Device.Driver = "580" }, NotComparable, NotComparable,
			"the driver was  for A, 580 for B", "the driver was  for A, 580 for B"},
		{"clocks", func(b *runs.Run) { clocks(b, 1200, true) }, Slower, NotComparable, set, set + " on 1 of 2 workloads"},
		{"power", func(b *runs.Run) { clocks(b, 1200, false) }, Slower, Slower, "", ""},
		{"set to what they were", func(b *runs.Run) { clocks(b, 1975, true) }, Slower, Slower, "", ""},
		{"axes", func(b *runs.Run) { b.Rows[1].Axes = map[string]int{"n": 2} }, Slower, Slower, "different axes", ""},
	} {
		a, b := gpu().run("a", 2, 1), gpu().run("b", 2, 1.2)
		a.Rows[1].Axes = map[string]int{"n": 1}
		clocks(a, 1980, false)
		tc.change(b)
		res := mustCompare(t, a, b)
		second := res.Rows[1]
		if res.Verdict != tc.whole || res.Why != tc.whole2 || res.Rows[0].Verdict != tc.first || second.Why != tc.why ||
			(second.Verdict == NotComparable) != (tc.why != "") {
			t.Errorf("%s: got %s: %s; workloads %s, %s: %s", tc.name, res.Verdict, res.Why, res.Rows[0].Verdict, second.Verdict,
				second.Why)
		}
	}
}

func TestConditions(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(b *runs.Run)
		refused string // by the error
		warning string
	}{
		{"definition", func(b *runs.Run) { b.Run.Definition = "e" }, "the definition is d and e", ""},
		{"GPU model", func(b *runs.Run) { b.Run.Device.Name = "Other" }, "the device is GPU (cuda, ) and Other (cuda, )", ""},
		{"emulator", func(b *runs.Run) { b.Run.Device.Emulated = true }, "the virtual GPU", ""},
		{"timer", func(b *runs.Run) { b.Rows[0].Samples.Timer = "cuda events" },
			"the timer is cupti on a cold L2 and cuda events on a cold L2", ""},
		{"L2", func(b *runs.Run) { b.Rows[0].Samples.ColdL2 = false }, "warm L2", ""},
		{"profile", func(b *runs.Run) { b.Run.Profile = event.Profile{Name: "thorough", Target: 0.01} }, "",
			"the profile differs: "},
		{"GPU", func(b *runs.Run) { b.Run.Device.UUID = "GPU-1" }, "", "the GPU differs: "},
		{"no run.json", func(b *runs.Run) { b.Run = nil }, "", "run b has no run.json"},
	} {
		a, b := gpu().run("a", 1, 1), gpu().run("b", 1, 1)
		tc.change(b)
		res, err := Runs(a, b, Threshold)
		var mismatch *MismatchError
		if tc.refused != "" && (!errors.As(err, &mismatch) || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s: got %v, want it refused: %s", tc.name, err, tc.refused)
		}
		if tc.warning != "" && (err != nil || len(res.Warnings) != 1 || !strings.HasPrefix(res.Warnings[0], tc.warning)) {
			t.Errorf("%s: got %+v and %v, want the warning %q", tc.name, res, err, tc.warning)
		}
	}
	for _, ns := range []int64{0, -5, 1 << 62} {
		a := gpu().run("a", 1, 1)
		a.Rows[0].Samples.TrialsNS[1][3] = ns
		if _, err := Runs(a, a, Threshold); err == nil || !strings.Contains(err.Error(), "run a: workload w0: a timing of") {
			t.Errorf("%d ns: got %v", ns, err)
		}
	}
	a := gpu().run("a", 1, 1)
	a.Rows[0].Samples.TrialsNS = [][]int64{nil}
	if res := mustCompare(t, a, a); res.Verdict != NotComparable || res.Timed != 0 {
		t.Errorf("no timings: got %+v", res)
	}
}

// The score is the mean of baseline over solution, 0 if a workload fails, and absent without baselines.
func TestScore(t *testing.T) {
	scored := func(id string, latency, base float64) *runs.Run {
		r := gpu().run(id, 2, 1)
		for i := range r.Rows {
			if speedup := base / (latency * float64(i+1)); base > 0 {
				r.Run.Baseline, r.Rows[i].Evaluated.Ratio = &event.Baseline{ContentHash: "0123"}, &speedup
			}
		}
		return r
	}
	a, b := scored("a", 2, 6), scored("b", 1, 6)
	if res := mustCompare(t, a, b); res.ScoreA == nil || *res.ScoreA != 2.25 || *res.ScoreB != 4.5 {
		t.Errorf("got %v and %v, want 2.25 and 4.5", res.ScoreA, res.ScoreB)
	}
	b.Rows[1].Evaluated.Trace.Evaluation.Status = "TIMEOUT"
	if res := mustCompare(t, a, b); *res.ScoreA != 2.25 || *res.ScoreB != 0 {
		t.Errorf("a failing workload: got %v and %v, want 2.25 and 0", *res.ScoreA, *res.ScoreB)
	}
	if res := mustCompare(t, a, scored("b", 1, 0)); res.ScoreA != nil || res.ScoreB != nil {
		t.Errorf("no baseline: got %v and %v, want none", res.ScoreA, res.ScoreB)
	}
	// A workload whose baseline fails in B counts for neither run.
	b = scored("b", 1, 6)
	b.Rows[0].Evaluated.Ratio = nil
	if res := mustCompare(t, a, b); *res.ScoreA != 1.5 || *res.ScoreB != 3 {
		t.Errorf("one baseline missing: got %v and %v, want 1.5 and 3", *res.ScoreA, *res.ScoreB)
	}
	b.Run.Baseline.ContentHash = "4567"
	if res := mustCompare(t, a, b); res.ScoreA != nil || res.ScoreB != nil {
		t.Errorf("another baseline: got %v and %v, want none", res.ScoreA, res.ScoreB)
	}
}

// If the whole is faster, its headline has the number of slower workloads and the largest slowdown.
func TestMixed(t *testing.T) {
	row := func(v Verdict, ratio float64) Row { return Row{Verdict: v, Ratio: &Ratio{Value: ratio}} }
	r := Result{Threshold: 0.01, Ratio: &Ratio{Value: 0.9, Lo: 0.89, Hi: 0.91},
		Rows: []Row{row(Faster, 0.8), row(Slower, 1.11), row(Slower, 1.15), row(Same, 1)}}
	if r.conclude(); r.Verdict != Faster || r.Why != "on average; 2 of 4 slower, up to 15 %" || !r.Mixed {
		t.Errorf("got %s, %q", r.Verdict, r.Why)
	}
	r = Result{Threshold: 0.01, Ratio: &Ratio{Value: 0.9, Lo: 0.89, Hi: 0.91}, Rows: []Row{row(Faster, 0.8), row(Same, 1)}}
	if r.conclude(); r.Verdict != Faster || r.Why != "" || r.Mixed {
		t.Errorf("got %s, %q", r.Verdict, r.Why)
	}
}
