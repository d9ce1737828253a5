package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
)

// A line that no run writes is not decoded, and the run is listed as broken.
func TestLongLine(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, Dir, "r")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ file, before, begin, end string }{
		{eventsFile, `{"seq":1,"type":"run","run":{"schema":"fisub.event/1","workloads":[{"uuid":"w"}]}}` + "\n",
			`{"seq":2,"type":"warning","message":{"text":"`, `"}}` + "\n"},
		{samplesFile, "\n", `{"workload":"`, `"}` + "\n"},
	} {
		name := filepath.Join(dir, test.file)
		text := test.before + test.begin + strings.Repeat("A", 50_000_000) + test.end
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var warned error
		h, err := ReadHistory(root, func(string) bool { return false }, func(err error) { warned = err })
		if err != nil {
			t.Fatal(err)
		}
		if want := name + ":2: a line of more than 32 MiB"; warned == nil || warned.Error() != want ||
			h.Runs[0].State != "broken" {
			t.Errorf("%s: got %v and %q, want %s", test.file, warned, h.Runs[0].State, want)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// The longest output of a submission fits, though each of its bytes is escaped.
func TestLongestLog(t *testing.T) {
	f := NewFolder(t.TempDir(), "r")
	defer f.Close()
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema, Workloads: []event.WorkloadRef{{UUID: "w"}}}})
	log := strings.Repeat("\x01", 5<<20) // bench/worker keeps as much
	s.Emit(event.Event{Type: event.TypeEvaluated, Workload: "w",
		Evaluated: eventtest.Verdict{UUID: "w", Status: "RUNTIME_ERROR", Log: log}.Evaluated()})
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	r, err := Read(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Rows[0].Evaluated.Log(); got != log {
		t.Errorf("got a log of %d bytes, want %d", len(got), len(log))
	}
}

// Events after a contradiction or the end of a run cost the same however many workloads it has: with a look at all
// workloads for each event, this test would last longer than go test allows.
func TestManyEvents(t *testing.T) {
	const workloads, events = 100_000, 1_000_000
	for _, contradiction := range []bool{true, false} {
		s := &Summary{}
		add := func(e event.Event) {
			e.Seq = s.seq + 1
			s.Add(&e)
		}
		add(event.Event{Type: event.TypeRun, Run: &event.Run{}})
		for i := range workloads {
			id := fmt.Sprint(i)
			add(event.Event{Type: event.TypeEvaluated, Workload: id,
				Evaluated: eventtest.Verdict{UUID: id, Status: "RUNTIME_ERROR"}.Evaluated()})
		}
		if contradiction {
			s.seq += 7
			s.Add(&event.Event{Type: event.TypeWarning, Seq: 1 << 40})
		} else {
			add(event.Event{Type: event.TypeDone, Done: &event.Done{Failed: workloads}})
		}
		for range events {
			add(event.Event{Type: event.TypeFloor, Workload: "7"})
		}
		if got := s.Totals(); contradiction && (got.Missing != workloads || got.Findings != workloads) ||
			!contradiction && (got.Failed != workloads || *s.Done != got) {
			t.Errorf("contradiction %t: got %+v", contradiction, got)
		}
		if !contradiction {
			continue
		}
		id := fmt.Sprint(workloads) // a verdict after the contradiction
		add(event.Event{Type: event.TypeEvaluated, Workload: id,
			Evaluated: eventtest.Verdict{UUID: id, Status: "PASSED"}.Evaluated()})
		if row := s.Row(id); row.Evaluated != nil || len(row.Findings) != 1 {
			t.Errorf("got %+v, want a retracted verdict", row)
		}
	}
}

func BenchmarkReadLongLine(b *testing.B) {
	dir := b.TempDir()
	text := `{"seq":1,"type":"run","run":{"schema":"fisub.event/1","workloads":[{"uuid":"w"}]}}` + "\n" +
		`{"seq":2,"type":"warning","message":{"text":"` + strings.Repeat("A", 16<<20) + `"}}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, eventsFile), []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Read(dir); err != nil {
			b.Fatal(err)
		}
	}
}
