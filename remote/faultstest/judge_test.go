//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/remote/dispatch"
	"fisub/runs"
)

// A seed always draws the same scenario, and every fault is drawn.
func TestDraw(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(200) {
		s := draw(seed, "")
		if again := draw(seed, ""); !reflect.DeepEqual(s, again) {
			t.Fatalf("seed %d: got %+v and %+v", seed, s, again)
		}
		if s.For > 120e9 || s.Verdicts > s.Workloads || s.Workloads > most || !strings.HasPrefix(s.what(), s.Fault) {
			t.Errorf("seed %d: got %+v", seed, s)
		}
		seen[s.Fault] = true
	}
	if len(seen) != len(faults) {
		t.Errorf("got %v, want %v", seen, faults)
	}
}

// Lost, duplicate and wrong verdicts and wrong exit statuses are found.
func TestJudge(t *testing.T) {
	w := &world{client: &machine{Disk: t.TempDir()}}
	folder := runs.NewFolder(home(w.client, "p"), runs.NewID(time.Now()))
	var ws []event.WorkloadRef
	for _, uuid := range []string{"u1", "u2", "u3"} {
		ws = append(ws, event.WorkloadRef{UUID: uuid})
	}
	s := event.NewStream(folder.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema, Workloads: ws}})
	verdict := func(uuid string) {
		s.Emit(event.Event{Type: event.TypeEvaluated, Workload: uuid,
			Evaluated: eventtest.Verdict{UUID: uuid, Status: "PASSED"}.Evaluated()})
	}
	verdict("u1")
	verdict("u2")
	plan := &dispatch.Plan{Version: 1, Done: true, Bundle: json.RawMessage("{}")}
	if err := plan.Save(folder.Path()); err != nil {
		t.Fatal(err)
	}
	r := &result{}
	r.compare(w, &stream{job: "j", verdicts: map[string]string{"u1": "PASSED", "u2": "RUNTIME_ERROR", "u3": "PASSED"}},
		map[string]string{"u1": "PASSED", "u2": "PASSED", "u3": "PASSED"})
	r.status(w, "remote", 0)
	verdict("u1")
	if err := errors.Join(s.Err(), folder.Close()); err != nil {
		t.Fatal(err)
	}
	r.twice(folder.Path())
	slices.Sort(r.Problems)
	want := []string{
		`lost: workload u2 is RUNTIME_ERROR in the stream of j on h1, and "PASSED" in the end result`,
		`lost: workload u3 is PASSED in the stream of j on h1, and "" in the end result`,
		"remote: exit status 0, want 1: ",
		"twice: events.jsonl: u1 is there 2 times",
		"twice: traces.jsonl: u1 is there 2 times",
		"wrong: workload u2 is RUNTIME_ERROR on h1, and PASSED by fisub local",
	}
	if !slices.Equal(r.Problems, want) {
		t.Errorf("got %q\nwant %q", r.Problems, want)
	}
	if w.whole(filepath.Base(folder.Path())) {
		t.Error("a run without a verdict for u3 is whole")
	}
}

// Leftovers of a job are found: its folder and a half-unpacked upload. A resumable upload is not a leftover.
func TestLeft(t *testing.T) {
	w := &world{client: &machine{Disk: t.TempDir()}}
	for i := range w.hosts {
		w.hosts[i] = &machine{Name: "h", Disk: t.TempDir()}
	}
	if left := w.left(); len(left) != 0 {
		t.Errorf("got %q", left)
	}
	job, upload := workFolder(w.hosts[0], "jobs", ".free-fisub-1"), workFolder(w.hosts[2], "store", ".gzip-ab.64")
	for _, name := range []string{job, upload, workFolder(w.hosts[1], "store", ".gzip-ab")} {
		if err := os.MkdirAll(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if left := w.left(); len(left) != 2 {
		t.Errorf("got %q, want a folder and an upload", left)
	}
}
