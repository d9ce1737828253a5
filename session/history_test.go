package session

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/remote"
	"fisub/remote/dispatch"
)

// kept keeps a run of that id, of sources with that hash, with a latency in microseconds for each of the workloads; one
// of 0 failed. It was timed in turn with a baseline that takes base microseconds, where that is above 0.
func kept(t *testing.T, root, id, hash string, base float64, latencies ...float64) {
	t.Helper()
	run := &event.Run{Schema: event.Schema, ID: id, Started: time.Now(), Solution: "s", Definition: "d", Set: "default",
		ContentHash: hash, Device: event.Device{Kind: "cuda", Name: "NVIDIA B200"},
		Git: &event.Git{Commit: "c0ffee" + hash, Dirty: hash == "bbb"}}
	if base > 0 {
		run.Baseline = &event.Baseline{Name: "reference"}
	}
	folder := runs.New(root, id)
	stream := event.NewStream(folder.Record)
	for i := range latencies {
		run.Workloads = append(run.Workloads, event.Workload{UUID: fmt.Sprint("w", i), Axes: map[string]int{"n": 2 + 8*(i/2)}})
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

// The best run is that with the largest mean speed-up over what all of its family have in common, not the one with the
// least mean; a run that failed, or on other workloads, is none of them.
func TestHistory(t *testing.T) {
	p := &Project{Dir: t.TempDir()}
	kept(t, p.Dir, "20260101-1", "aaa", 0, 10, 10, 100, 100)
	kept(t, p.Dir, "20260102-1", "bbb", 0, 5, 5, 110, 110)
	kept(t, p.Dir, "20260103-1", "aaa", 0, 12, 12, 90, 90)
	kept(t, p.Dir, "20260104-1", "ccc", 0, 1, 1, 0, 1)
	kept(t, p.Dir, "20260105-1", "ddd", 0, 1, 1)
	got := func(f RunFilter) (ids []string) {
		lines, err := p.Runs(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			id := l.ID[6:8]
			if l.Best {
				id += "*"
			}
			ids = append(ids, id)
		}
		return ids
	}
	for _, tc := range []struct {
		filter RunFilter
		want   string
	}{
		{RunFilter{}, "05* 04 03 02* 01"},
		{RunFilter{Limit: 2}, "05* 04"},
		{RunFilter{Best: true}, "05* 02*"},
		{RunFilter{Match: []string{"C0FFEEAAA"}}, "03 01"},
		{RunFilter{Match: []string{"aaa", "20260101"}}, "01"},
		{RunFilter{Match: []string{"b200", "-dirty"}, Best: true}, "02*"},
	} {
		if ids := got(tc.filter); strings.Join(ids, " ") != tc.want {
			t.Errorf("%+v: got %q, want %q", tc.filter, ids, tc.want)
		}
	}
	// Of the version aaa, with two runs, the median counts.
	best, wins, err := p.Wins("20260103", nil)
	if err != nil || best.ID != "20260102-1" || len(wins) != 2 {
		t.Fatalf("got %+v, %+v, %v", best, wins, err)
	}
	for i, want := range []string{"n=2 2 20260102-1 5000 20260103-1 1.20", "n=10 2 20260103-1 95000 20260102-1 0.16"} {
		w := wins[i]
		if got := fmt.Sprintf("%s %d %s %.0f %s %.2f", w.Axes, w.Workloads, w.Run, w.MeanNS, w.Second, w.Ahead); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if id, err := p.BestBeside("20260103", nil); err != nil || id != "20260102-1" {
		t.Errorf("beside aaa: got %s, %v", id, err)
	}
	if id, err := p.BestBeside("20260102", nil); err != nil || id != "20260101-1" {
		t.Errorf("beside bbb: got %s, %v", id, err)
	}
	_, err = p.BestBeside("20260105", nil)
	if err == nil || !strings.Contains(err.Error(), "no run of other sources") {
		t.Errorf("alone: got %v", err)
	}
	_, err = p.BestBeside("20260104", nil)
	hinted(t, "a run that failed", err, "no best run")

	// With a baseline, the speed-ups are over that, also those of the runs without it.
	kept(t, p.Dir, "20260106-1", "eee", 0, 50, 50, 10, 10)
	if ids := got(RunFilter{Best: true}); strings.Join(ids, " ") != "06* 05*" {
		t.Errorf("over the oldest run: got %q", ids)
	}
	kept(t, p.Dir, "20260107-1", "eee", 50, 50, 50, 10, 10)
	if ids := got(RunFilter{Best: true}); strings.Join(ids, " ") != "05* 02*" {
		t.Errorf("over a baseline: got %q", ids)
	}
}

// A run that is written, or whose jobs may run, is not removed; of the others the newest and the best stay.
func TestRemoveRuns(t *testing.T) {
	p := &Project{Dir: t.TempDir()}
	for i, us := range []float64{10, 5, 10, 10, 10, 10} {
		kept(t, p.Dir, fmt.Sprintf("2026010%d-1", i+1), fmt.Sprint("v", i), 0, us)
	}
	dir := func(id string) string { return filepath.Join(p.Dir, runs.Dir, id) }
	plan := dispatch.Plan{Version: 1, Jobs: []*dispatch.Job{{ID: "j", Handle: &remote.Handle{}}}}
	if err := plan.Save(dir("20260103-1")); err != nil {
		t.Fatal(err)
	}
	folder, _, err := runs.Attach(p.Dir, "20260104-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ id, fault string }{
		{"20260103", "its jobs may still run"}, {"20260104", "still going on"},
		{"2026010", "ambiguous"},
	} {
		if removed, err := p.RemoveRuns([]string{tc.id}, 0, nil); err == nil || !strings.Contains(err.Error(), tc.fault) ||
			len(removed) > 0 {
			t.Errorf("%s: got %q, %v, want %q", tc.id, removed, err, tc.fault)
		}
	}
	if err := folder.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir("20260103-1"), "remote.json")); err != nil {
		t.Fatal(err)
	}
	removed, err := p.RemoveRuns(nil, 1, nil)
	if want := []string{"20260105-1", "20260104-1", "20260103-1", "20260101-1"}; err != nil || !slices.Equal(removed, want) {
		t.Errorf("got %q, %v, want %q", removed, err, want)
	}
	ids, err := runs.IDs(p.Dir)
	if want := []string{"20260102-1", "20260106-1"}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("left: got %q, %v, want %q", ids, err, want)
	}
	if left, _ := filepath.Glob(filepath.Join(p.Dir, ".fisub", "*", "*", ".*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
