package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
)

// kept records a run with that id and content hash. It has a latency in microseconds for each workload; 0 means
// failed. If base is above 0, a baseline that takes base microseconds was timed too.
func kept(t *testing.T, root, id, hash string, base float64, latencies ...float64) {
	t.Helper()
	run := &event.Run{Schema: event.Schema, ID: id, Started: time.Now(), Solution: "s", Definition: "d", Set: "default",
		ContentHash: hash, Device: event.Device{Kind: "cuda", Name: "NVIDIA B200"},
		Git: &event.Git{Commit: "c0ffee" + hash, Dirty: hash == "bbb"}}
	if base > 0 {
		run.Baseline = &event.Baseline{Name: "reference"}
	}
	folder := NewFolder(root, id)
	stream := event.NewStream(folder.Record)
	for i := range latencies {
		run.Workloads = append(run.Workloads, event.WorkloadRef{UUID: fmt.Sprint("w", i), Axes: map[string]int{"n": 2 + 8*(i/2)}})
	}
	stream.Emit(event.Event{Type: event.TypeRun, Run: run})
	done := &event.Done{}
	for i, us := range latencies {
		w := run.Workloads[i]
		v := eventtest.Verdict{UUID: w.UUID, Status: "PASSED", Axes: w.Axes}
		if done.Passed++; us == 0 {
			v.Status = "INCORRECT_NUMERICAL"
			done.Passed, done.Failed = done.Passed-1, done.Failed+1
		} else {
			ms, speedup := us/1e3, base/us
			if v.Latency = &ms; base > 0 {
				v.Speedup = &speedup
			}
		}
		stream.Emit(event.Event{Type: event.TypeSamples, Workload: w.UUID, Samples: &event.Samples{Timer: "cupti",
			TrialsNS: [][]int64{{int64(1000 * us)}}}})
		stream.Emit(event.Event{Type: event.TypeEvaluated, Workload: w.UUID, Evaluated: v.Evaluated()})
	}
	stream.Emit(event.Event{Type: event.TypeDone, Done: done})
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if err := folder.Close(); err != nil {
		t.Fatal(err)
	}
}

// A folder of fisub profile is listed as one.
func TestProfileFolder(t *testing.T) {
	root := t.TempDir()
	kept(t, root, "20260101-000000-000001", "aaa", 0, 2)
	folder := filepath.Join(root, Dir, "20260101-000000-000002")
	if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, FiguresName), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	h, err := ReadHistory(root, func(string) bool { return false }, func(err error) { t.Error(err) })
	if err != nil || len(h.Runs) != 2 || h.Runs[0].State != "profile" {
		t.Errorf("got %+v, %v, want a profile and a run", h, err)
	}
}

// A run counts as not passed if a workload was judged and did not pass or, after the run's end, has no verdict.
func TestNotPassed(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    Brief
		want bool
	}{
		{"passed", Brief{State: "done", Passed: 2, Total: 2}, false},
		{"failed", Brief{State: "done", Passed: 1, Failed: 1, Total: 2}, true},
		{"failed, still running", Brief{State: "running", Failed: 1, Total: 2}, true},
		{"running", Brief{State: "running", Passed: 1, Total: 2}, false},
		{"detached", Brief{State: "detached", Total: 2}, false},
		{"not judged", Brief{State: "incomplete", Passed: 1, Total: 2}, true},
		{"left by the budget", Brief{State: "incomplete", Passed: 1, Total: 2, left: 1}, false},
		{"left by the budget, and not judged", Brief{State: "incomplete", Passed: 1, Total: 3, left: 1}, true},
		{"killed", Brief{State: "killed", Passed: 1, Total: 2}, true},
		{"killed before its first event", Brief{State: "killed"}, true},
		{"cancelled", Brief{State: "cancelled", Passed: 1, Total: 2}, true},
		{"refused", Brief{State: "refused"}, true},
		{"profile", Brief{State: "profile"}, false},
		{"broken", Brief{State: "broken"}, false},
		{"without events", Brief{Total: 2}, false},
	} {
		if got := tc.b.NotPassed(); got != tc.want {
			t.Errorf("%s: got %t, want %t", tc.name, got, tc.want)
		}
	}
}

// The numbers of a run in the list are those of its totals.
func TestBriefTotals(t *testing.T) {
	r := &Run{Summary: Summary{Run: &event.Run{Workloads: make([]event.WorkloadRef, 4)}}}
	stream := event.NewStream(func(e event.Event) error { r.Add(&e); return nil })
	stream.Emit(event.Event{Type: event.TypeRun, Run: r.Run})
	for _, v := range []eventtest.Verdict{{UUID: "a", Status: "PASSED"}, {UUID: "b", Status: "INCORRECT_NUMERICAL"}} {
		stream.Emit(event.Event{Type: event.TypeEvaluated, Workload: v.UUID, Evaluated: v.Evaluated()})
	}
	stream.Emit(event.Event{Type: event.TypeFailed, Workload: "c", Message: &event.Message{Text: "no room"}})
	stream.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 1, Failed: 1, Missing: 2, Left: 1}})
	b := brief(r)
	if b.Passed != 1 || b.Failed != 1 || b.Total != 4 || b.left != 1 || b.State != "incomplete" {
		t.Errorf("got %+v, left %d", b, b.left)
	}
}

// The best run has the largest mean speed-up over the family's common baseline, not the smallest mean latency. Runs
// that failed or used other workloads are excluded.
func TestHistory(t *testing.T) {
	root := t.TempDir()
	kept(t, root, "20260101-1", "aaa", 0, 10, 10, 100, 100)
	kept(t, root, "20260102-1", "bbb", 0, 5, 5, 110, 110)
	kept(t, root, "20260103-1", "aaa", 0, 12, 12, 90, 90)
	kept(t, root, "20260104-1", "ccc", 0, 1, 1, 0, 1)
	kept(t, root, "20260105-1", "ddd", 0, 1, 1)
	kept(t, root, "20260100-1", "ddd", 0, 1, 1)
	history := func() *History {
		h, err := ReadHistory(root, func(folder string) bool { return strings.HasSuffix(folder, "00-1") }, nil)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	got := func(texts ...string) string {
		var ids []string
		for _, b := range history().Runs {
			if !b.Matches(texts) {
				continue
			}
			id := b.ID[6:8]
			if b.Best {
				id += "*"
			}
			ids = append(ids, id)
		}
		return strings.Join(ids, " ")
	}
	for _, tc := range []struct{ texts, want string }{
		{"", "05* 04 03 02* 01"}, {"C0FFEEAAA", "03 01"}, {"aaa 20260101", "01"}, {"b200 -dirty", "02*"},
	} {
		if ids := got(strings.Fields(tc.texts)...); ids != tc.want {
			t.Errorf("%s: got %q, want %q", tc.texts, ids, tc.want)
		}
	}
	for _, b := range history().Runs {
		if failed := b.ID == "20260104-1"; b.NotPassed() != failed || b.Failed > 0 != failed {
			t.Errorf("%s: got %d failed, not passed: %t", b.ID, b.Failed, b.NotPassed())
		}
	}
	if ids := strings.Join(history().Surplus(1), " "); ids != "20260104-1 20260103-1 20260101-1" {
		t.Errorf("surplus: got %q, want all but the newest and the best", ids)
	}
	// Version aaa has two runs, so the median counts.
	best, wins, err := history().Wins("20260103")
	if err != nil || best.ID != "20260102-1" || len(wins) != 2 {
		t.Fatalf("got %+v, %+v, %v", best, wins, err)
	}
	for i, want := range []string{"n=2 2 20260102-1 5000 20260103-1 1.20", "n=10 2 20260103-1 95000 20260102-1 0.16"} {
		w := wins[i]
		if got := fmt.Sprintf("%s %d %s %.0f %s %.2f", w.Axes, w.Workloads, w.Run, w.MeanNS, w.Second, w.Ahead); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if b, err := history().BestOther("20260103"); err != nil || b.ID != "20260102-1" {
		t.Errorf("beside aaa: got %v, %v", b, err)
	}
	if b, err := history().BestOther("20260102"); err != nil || b.ID != "20260101-1" {
		t.Errorf("beside bbb: got %v, %v", b, err)
	}
	_, err = history().BestOther("20260105")
	if err == nil || !strings.Contains(err.Error(), "no comparable run of other sources") {
		t.Errorf("alone: got %v", err)
	}
	if _, err = history().BestOther("20260104"); err == nil || !strings.Contains(err.Error(), "no best run") {
		t.Errorf("a run that failed: got %v", err)
	}

	// With a baseline, all speed-ups are relative to it, even in runs without it.
	kept(t, root, "20260106-1", "eee", 0, 50, 50, 10, 10)
	if ids := got(); ids != "06* 05* 04 03 02 01" {
		t.Errorf("over the oldest run: got %q", ids)
	}
	kept(t, root, "20260107-1", "eee", 50, 50, 50, 10, 10)
	if ids := got(); ids != "07 06 05* 04 03 02* 01" {
		t.Errorf("over a baseline: got %q", ids)
	}
}
