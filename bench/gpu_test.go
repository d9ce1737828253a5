package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/longtest"
	"fisub/internal/trace"
	"fisub/runs"
	"fisub/runs/compare"
	"fisub/workloads"
)

// gpuConfig returns a run of this repository's kernel on the first GPU with workloads of the set contest54, by the
// fisub program $FISUB_TEST_BIN, by default ../dist/fisub.
func gpuConfig(t *testing.T, n int) testRun {
	t.Helper()
	program := os.Getenv("FISUB_TEST_BIN")
	if program == "" {
		program = "../dist/fisub"
	}
	var c testRun
	c.Worker, c.DeviceKind = worker.Command{Args: []string{program, "worker"}}, "cuda"
	c.Device = device.Options{CacheDir: t.TempDir()}
	client, err := worker.Start(t.Context(), c.Worker)
	if err == nil {
		defer client.Close()
		_, err = client.Open(t.Context(), c.DeviceKind, c.Device)
	}
	var we *worker.Error
	if err != nil && (errors.As(err, &we) || errors.Is(err, os.ErrNotExist)) {
		longtest.Missing(t, "cuda", fmt.Errorf("no GPU: %w", err))
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := workloads.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if c.Definition, err = data.Definition(decode); err != nil {
		t.Fatal(err)
	}
	if c.Workloads, err = data.Workloads(decode, "contest54"); err != nil {
		t.Fatal(err)
	}
	sizes := map[int]bool{} // one workload of each batch size
	all := c.Workloads
	c.Workloads = nil
	for _, w := range all {
		if size, _ := w.Axes.Get("batch_size"); !sizes[size] && len(c.Workloads) < n {
			sizes[size] = true
			c.Workloads = append(c.Workloads, w)
		}
	}
	if c.Profile, err = NewProfile("official", c.Definition); err != nil {
		t.Fatal(err)
	}
	c.Solution = named("fisub-gdn-decode")
	c.Solution.Spec.EntryPoint, c.Solution.Sources = "kernel.cu::kernel", nil
	for _, name := range []string{"kernel.cu", "decode.cuh", "table.cuh"} {
		source, err := os.ReadFile("../solution/cuda/" + name)
		if err != nil {
			t.Fatal(err)
		}
		c.Solution.Sources = append(c.Solution.Sources, trace.SourceFile{Path: name, Content: string(source)})
	}
	c.Load, c.Run = data.Load, &event.Run{Definition: decode}
	return c
}

// The copy is right and about as fast as a kernel that moves the same number of bytes, and a solution is as fast as
// itself.
func TestGPUFloorsAndBaseline(t *testing.T) {
	c := gpuConfig(t, 20)
	var events []event.Event
	c.Events = event.NewStream(func(e event.Event) error { events = append(events, e); return nil })
	c.Roofline, c.Baseline = true, &Baseline{Name: "itself", Solution: c.Solution}
	if result, err := c.run(t.Context()); err != nil || result.Passed != len(c.Workloads) {
		t.Fatalf("got %+v and %v, want %d passed", result, err, len(c.Workloads))
	}
	warnings, evaluated, samples, floors := payloads(events)
	if len(warnings) != 0 || len(floors) != 1+len(c.Workloads) {
		t.Errorf("got %q and %d floors, want one for each size and the empty kernel", warnings, len(floors))
	}
	for _, f := range floors {
		t.Logf("%s of %d bytes: %.0f ns, %s", f.Kind, f.Bytes, f.MedianNS, f.Shape)
	}
	for i, s := range samples {
		t.Logf("batch %d: %.0f ns, copy %.0f ns, share %.2f, warm L2 %.0f ns, itself %.0f ns",
			evaluated[i].Axes()["batch_size"], s.MedianNS, s.CopyNS, s.CopyShare, s.Warm.MedianNS, s.Baseline.MedianNS)
		if s.CopyShare < 0.2 || s.CopyShare > 1.2 {
			t.Errorf("share of the copy's bandwidth: got %g, want 0.2 to 1.2", s.CopyShare)
		}
		if s.EmptyNS <= 0 || s.EmptyNS >= s.MedianNS || s.EmptyNS >= s.CopyNS {
			t.Errorf("empty kernel: got %g ns, want less than the copy and the solution", s.EmptyNS)
		}
		if s.Warm.MedianNS > 1.05*s.MedianNS {
			t.Errorf("warm L2: got %g ns, want no more than the %g ns of a cold one", s.Warm.MedianNS, s.MedianNS)
		}
		if x := *evaluated[i].Speedup(); x < 0.95 || x > 1.05 {
			t.Errorf("speed-up over itself: got %g, want 1", x)
		}
	}
	if done := events[len(events)-1].Done; done.Score == nil || *done.Score < 0.98 || *done.Score > 1.02 {
		t.Errorf("score over itself: got %+v, want 1", done)
	}
}

// Two alternating runs of one solution compare as the same.
func TestGPUTogether(t *testing.T) {
	c := gpuConfig(t, 6)
	c.Profile = c.Profile.InTurn(c.Definition)
	var entries []Entry
	var folders []*runs.Folder
	for _, id := range []string{"a", "b"} {
		f := runs.NewFolder(t.TempDir(), id)
		run := described(&c.Shared, c.Run)
		run.ID = id
		entries = append(entries, Entry{Solution: c.Solution, Run: run, Events: event.NewStream(f.Record)})
		folders = append(folders, f)
	}
	if _, err := Together(t.Context(), c.Shared, entries); err != nil {
		t.Fatal(err)
	}
	var both []*runs.Run
	for _, f := range folders {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := runs.Read(f.Path())
		if err != nil {
			t.Fatalf("%s: %v", filepath.Base(f.Path()), err)
		}
		both = append(both, r)
	}
	res, err := compare.Runs(both[0], both[1], compare.Threshold)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range res.Rows {
		t.Logf("%s: %+v, %s %v", row.UUID, row.Ratio, row.Verdict, row.Warnings)
	}
	if res.Verdict != compare.Same || res.Timed != 6 || res.Slower() {
		t.Errorf("got %+v, %s, of %d workloads; want the same", res.Ratio, res.Verdict, res.Timed)
	}
}
