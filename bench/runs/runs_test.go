package runs

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
)

func traceLine(uuid string) json.RawMessage {
	return json.RawMessage(`{"definition":"d","workload":{"axes":{"n":1},"inputs":{},"uuid":"` + uuid + `"},"solution":"s","evaluation":` +
		`{"status":"RUNTIME_ERROR","environment":{"hardware":"h","libs":{}},"timestamp":"t","log":"boom","correctness":null,"performance":null}}`)
}

func record(t *testing.T, f *Folder, uuids ...string) {
	t.Helper()
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema, ID: filepath.Base(f.Path()), ContentHash: "abc"}})
	for _, u := range uuids {
		s.Emit(event.Event{Type: event.TypeSamples, Workload: u, Samples: &event.Samples{Timer: "t", TrialsNS: [][]int64{{1, 2}}}})
		s.Emit(event.Event{Type: event.TypeEvaluated, Workload: u, Evaluated: &event.Evaluated{Trace: traceLine(u), Log: "boom"}})
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestRecordAndResume(t *testing.T) {
	root := t.TempDir()
	id := NewID(time.Date(2026, 1, 2, 3, 4, 5, 67e6, time.UTC))
	if !strings.HasPrefix(id, "20260102-030405-067") {
		t.Errorf("id: got %s, want it to begin with its time", id)
	}
	f := New(root, id)
	if ids, err := IDs(root); len(ids) != 0 || err != nil {
		t.Errorf("before the first event: got %v and %v, want no folder", ids, err)
	}
	record(t, f, "u1", "../u2")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	// A killed run leaves half a line.
	traces := filepath.Join(f.Path(), "traces.jsonl")
	whole, err := os.ReadFile(traces)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(traces, append(whole, `{"definition":"d","work`...), 0o644); err != nil {
		t.Fatal(err)
	}

	g, run, done, err := Resume(root, id)
	if err != nil {
		t.Fatal(err)
	}
	if run.ContentHash != "abc" || len(done) != 2 || done[1].Workload.UUID != "../u2" {
		t.Errorf("resumed: got %v and %d traces, want hash abc and 2 traces", run, len(done))
	}
	record(t, g, "u3")
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(traces)
	if err != nil {
		t.Fatal(err)
	}
	if want := string(whole) + string(traceLine("u3")) + "\n"; string(got) != want {
		t.Errorf("traces: got %s, want %s", got, want)
	}
	logs, err := filepath.Glob(filepath.Join(f.Path(), "log", "*"))
	if err != nil || len(logs) != 3 {
		t.Errorf("logs: got %v, want 3 inside the folder", logs)
	}
	n := 0
	if err := Events(root, id, func(event.Event) error { n++; return nil }); err != nil || n != 8 {
		t.Errorf("events: got %d and %v, want 8", n, err)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	if _, err := Find(root, "last"); err == nil {
		t.Error("empty root: got no error")
	}
	for _, id := range []string{"20260101-000000-aaaaaa", "20260102-000000-bbbbbb", "20260102-000000-cccccc"} {
		if err := os.MkdirAll(filepath.Join(root, Dir, id), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string]string{"20260101": "20260101-000000-aaaaaa", "last": "20260102-000000-cccccc",
		"20260102-000000-b": "20260102-000000-bbbbbb"} {
		if got, err := Find(root, prefix); got != want || err != nil {
			t.Errorf("Find(%q): got %q and %v, want %q", prefix, got, err, want)
		}
	}
	var unknown *UnknownError
	if _, err := Find(root, "20260102"); !errors.As(err, &unknown) || len(unknown.Matches) != 2 {
		t.Errorf("ambiguous: got %v, want two matches", err)
	}
	if _, err := Find(root, "x"); !errors.As(err, &unknown) || len(unknown.Matches) != 0 {
		t.Errorf("unknown: got %v, want no match", err)
	}
}
