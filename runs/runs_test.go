package runs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
)

// record records a run, or the rest of a run in which before workloads have already failed.
func record(t *testing.T, f *Folder, before int, uuids ...string) {
	t.Helper()
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema, ID: filepath.Base(f.Path()),
		ContentHash: "abc",
		Workloads:   []event.WorkloadRef{{UUID: "u1"}, {UUID: "../u2"}, {UUID: "u3"}}}})
	for _, u := range uuids {
		s.Emit(event.Event{Type: event.TypeStarted, Workload: u, Started: &event.Started{}})
		s.Emit(event.Event{Type: event.TypeSamples, Workload: u,
			Samples: &event.Samples{Timer: "t", TrialsNS: [][]int64{{1, 2}}}})
		s.Emit(event.Event{Type: event.TypeEvaluated, Workload: u, Evaluated: eventtest.Verdict{UUID: u,
			Status: "RUNTIME_ERROR", Axes: map[string]int{"n": 1}, Log: "boom"}.Evaluated()})
	}
	s.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Failed: before + len(uuids), Seconds: 2}})
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, f *Folder, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(f.Path(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, f *Folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.Path(), name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run.json has the secret of the honesty checks once the run has ended.
func TestSecret(t *testing.T) {
	f := NewFolder(t.TempDir(), "r")
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema, ID: "r"}})
	if got := read(t, f, runFile); strings.Contains(got, "secret") {
		t.Errorf("got %s while the run is running", got)
	}
	s.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Secret: "abc"}})
	if err := errors.Join(s.Err(), f.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := Header(f.Path())
	if err != nil || got.Secret != "abc" {
		t.Errorf("got %+v, %v, want the secret", got, err)
	}
	g, _, err := Attach(filepath.Dir(filepath.Dir(filepath.Dir(f.Path()))), "r")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if got, err = Header(f.Path()); err != nil || got.Secret != "abc" {
		t.Errorf("attached: got %+v, %v, want the secret", got, err)
	}
}

// The places of a remote run finish workloads in any order. Rows, traces and timings follow the order of the run.
func TestOrder(t *testing.T) {
	f := NewFolder(t.TempDir(), "r")
	defer f.Close()
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema,
		Workloads: []event.WorkloadRef{{UUID: "u1"}, {UUID: "u2"}, {UUID: "u3"}}}})
	for i, u := range []string{"u3", "u1", "u2"} {
		from := event.Event{Workload: u, Place: "p", Job: "j" + u, Origin: int64(i + 1)}
		samples, evaluated := from, from
		samples.Type, samples.Samples = event.TypeSamples, &event.Samples{Timer: "t", TrialsNS: [][]int64{{1}}}
		evaluated.Type = event.TypeEvaluated
		evaluated.Evaluated = eventtest.Verdict{UUID: u, Status: "RUNTIME_ERROR"}.Evaluated()
		s.Emit(samples)
		s.Emit(evaluated)
	}
	if err := errors.Join(s.Err(), f.Order()); err != nil {
		t.Fatal(err)
	}
	r, err := Read(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range r.Rows {
		if want := fmt.Sprint("u", i+1); row.UUID != want {
			t.Errorf("row %d: got %s", i, row.UUID)
		}
	}
	for _, name := range []string{tracesFile, samplesFile} {
		lines := strings.Split(strings.TrimSpace(read(t, f, name)), "\n")
		for i, line := range lines {
			if len(lines) != 3 || !strings.Contains(line, fmt.Sprintf(`"u%d"`, i+1)) {
				t.Errorf("%s: line %d: got %s", name, i+1, line)
			}
		}
	}
}

// A retracted verdict leaves traces.jsonl and samples.jsonl with the next event, or when the folder is closed.
func TestRetracted(t *testing.T) {
	for _, next := range []bool{true, false} {
		f := NewFolder(t.TempDir(), "r")
		s := event.NewStream(f.Record)
		s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema,
			Workloads: []event.WorkloadRef{{UUID: "u1"}, {UUID: "u2"}, {UUID: "u3"}}}})
		for _, u := range []string{"u1", "u2", "u3"} {
			s.Emit(event.Event{Type: event.TypeSamples, Workload: u, Samples: &event.Samples{Timer: "t"}})
			s.Emit(event.Event{Type: event.TypeEvaluated, Workload: u,
				Evaluated: eventtest.Verdict{UUID: u, Status: "PASSED"}.Evaluated()})
		}
		for _, u := range []string{"u1", "u3"} {
			s.Emit(event.Event{Type: event.TypeWarning, Workload: u,
				Finding: &event.Finding{Check: event.Contradiction, Text: "x"}})
		}
		if next {
			s.Emit(event.Event{Type: event.TypeJob, JobState: &event.JobChange{Phase: "ended"}})
		} else if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{tracesFile, samplesFile} {
			if got := read(t, f, name); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"u2"`) {
				t.Errorf("%s, next event %v: got %s", name, next, got)
			}
		}
		if next {
			s.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 1}})
			if err := errors.Join(s.Err(), f.Close()); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := Read(f.Path()); err != nil || r.Totals().Passed != 1 || r.Totals().Findings != 2 {
			t.Errorf("got %+v, %v", r, err)
		}
	}
}

// A workload without a verdict keeps its reason and log and gets no trace, even if the run is resumed.
func TestNoVerdict(t *testing.T) {
	root := t.TempDir()
	f := NewFolder(root, "r")
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema, Workloads: []event.WorkloadRef{{UUID: "u1"}}}})
	s.Emit(event.Event{Type: event.TypeFailed, Workload: "u1",
		Message: &event.Message{Text: "the virtual GPU does not support tcgen05.ld (kernel.cu:212)", Log: "frames"}})
	s.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Missing: 1}})
	if err := errors.Join(s.Err(), f.Close()); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join("log", "u1.log")
	if got := read(t, f, log); got != "frames" {
		t.Errorf("log: got %q", got)
	}
	if err := os.Remove(filepath.Join(f.Path(), log)); err != nil {
		t.Fatal(err)
	}
	f, r, err := Resume(root, "r")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if r.State() != "incomplete" || len(r.Rows) != 1 || r.Rows[0].Evaluated != nil || r.Rows[0].Unjudged == nil ||
		r.Rows[0].Unjudged.Text != "the virtual GPU does not support tcgen05.ld (kernel.cu:212)" || r.Done.Missing != 1 {
		t.Errorf("got %+v, %+v", r, r.Rows)
	}
	if got := read(t, f, tracesFile) + read(t, f, log); got != "frames" {
		t.Errorf("traces and log: got %q", got)
	}
}

// Wherever a run is killed, resuming it completes its files and repeats only the workload in flight. The test cuts
// the events every few bytes, and the other files hold less or more than the events.
func TestResumeWherever(t *testing.T) {
	full := NewFolder(t.TempDir(), "full")
	record(t, full, 0, "u1", "../u2", "u3")
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	events := read(t, full, eventsFile)
	traces, samples := strings.SplitAfter(read(t, full, tracesFile), "\n"), strings.SplitAfter(read(t, full, samplesFile),
		"\n")
	root := t.TempDir()
	for cut := 0; cut <= len(events); cut += 31 {
		f := NewFolder(root, fmt.Sprint("run", cut))
		if err := os.MkdirAll(filepath.Join(f.Path(), "log"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, f, eventsFile, events[:cut])
		whole := events[:strings.LastIndexByte(events[:cut], '\n')+1]
		done := strings.Count(whole, `"evaluated":{"index"`)
		write(t, f, tracesFile, strings.Join(traces[:max(0, done-1)], "")+traces[max(0, done-1)][:cut%50])
		write(t, f, samplesFile, strings.Join(samples[:done], ""))

		g, r, err := Resume(root, filepath.Base(f.Path()))
		if whole == "" {
			if !errors.Is(err, ErrEmpty) {
				t.Errorf("cut at %d: got %v, want %v", cut, err, ErrEmpty)
			}
			continue
		}
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if len(r.Rows) != done || r.Run.ContentHash != "abc" || (r.Done != nil) != strings.Contains(whole, `"done"`) {
			t.Errorf("cut at %d: got %d verdicts, want %d", cut, len(r.Rows), done)
		}
		record(t, g, done, []string{"u1", "../u2", "u3"}[done:]...)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if got := read(t, f, tracesFile); got != strings.Join(traces, "") {
			t.Fatalf("cut at %d: traces: got %s, want %s", cut, got, strings.Join(traces, ""))
		}
		if got := read(t, f, samplesFile); got != strings.Join(samples, "") {
			t.Fatalf("cut at %d: samples: got %s, want %s", cut, got, strings.Join(samples, ""))
		}
		if !strings.Contains(read(t, f, runFile), `"content_hash": "abc"`) {
			t.Errorf("cut at %d: run.json: got %s", cut, read(t, f, runFile))
		}
		if logs, err := filepath.Glob(filepath.Join(f.Path(), "log", "*")); err != nil || len(logs) != 3 {
			t.Errorf("cut at %d: logs: got %v, want 3 inside the folder", cut, logs)
		}
		again, err := Read(f.Path())
		if err != nil {
			t.Fatal(err)
		}
		if passed, total := again.Passed(); passed != 0 || total != 3 || len(again.Rows) != 3 ||
			again.Rows[1].Samples == nil || again.Started != 0 {
			t.Errorf("cut at %d: got %+v, want 3 workloads with timings", cut, again)
		}
		if d := again.Done; d == nil || d.Failed != 3 || d.Missing != 0 {
			t.Errorf("cut at %d: done: got %+v, want 3 failed", cut, d)
		}
	}
}

func TestNewLeavesNothing(t *testing.T) {
	root := t.TempDir()
	id := NewID(time.Date(2026, 1, 1, 22, 4, 5, 67e6, time.FixedZone("", -5*3600)))
	if !strings.HasPrefix(id, "20260102-030405-067") {
		t.Errorf("id: got %s, want it to begin with its time", id)
	}
	f := NewFolder(root, id)
	if ids, err := IDs(root); len(ids) != 0 || err != nil {
		t.Errorf("before the first event: got %v and %v, want no folder", ids, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := Resume(root, id); !errors.Is(err, ErrEmpty) {
		t.Errorf("resumed without a folder: got %v, want %v", err, ErrEmpty)
	}
}

// The ids of runs that begin together differ and sort in their order, also across a second.
func TestNewIDs(t *testing.T) {
	ids := NewIDs(time.Date(2026, 1, 2, 3, 4, 5, 990e6, time.UTC), 30)
	if len(ids) != 30 || len(slices.Compact(slices.Clone(ids))) != 30 || !slices.IsSorted(ids) {
		t.Errorf("got %q", ids)
	}
	if !strings.HasPrefix(ids[29], "20260102-030406-019") {
		t.Errorf("last: got %s", ids[29])
	}
}

// Only one process at a time writes a run.
func TestRunning(t *testing.T) {
	root := t.TempDir()
	f := NewFolder(root, "r")
	record(t, f, 0, "u1")
	if _, _, err := Resume(root, "r"); !errors.Is(err, ErrRunning) {
		t.Errorf("resumed while it runs: got %v, want %v", err, ErrRunning)
	}
	if r, err := Read(f.Path()); err != nil || r.State() != "running" {
		t.Errorf("read while it runs: got %+v and %v, want it running", r, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Read(f.Path()); err != nil || r.State() != "incomplete" || r.ID != "r" {
		t.Errorf("read behind its end: got %+v and %v, want it not running", r, err)
	}
	g, _, err := Resume(root, "r")
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
}

// Checking whether a run is in progress does not block its writer.
func TestLooking(t *testing.T) {
	root := t.TempDir()
	f := NewFolder(root, "r")
	record(t, f, 0, "u1")
	f.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := Read(f.Path()); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for range 100 {
		g, _, err := Resume(root, "r")
		if err != nil {
			t.Error(err)
			break
		}
		g.Close()
	}
	close(stop)
	<-stopped
}

func TestReadKilled(t *testing.T) {
	f := NewFolder(t.TempDir(), "r")
	record(t, f, 0, "u1", "u3")
	f.Close()
	events := read(t, f, eventsFile)
	at := strings.LastIndex(events, `{"seq":7,`)
	write(t, f, eventsFile, events[:at+20]) // within the second verdict
	r, err := Read(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	if r.State() != "killed" || r.Started != 1 || len(r.Rows) != 1 {
		t.Errorf("got %+v, want 1 verdict, 1 workload in flight, no end", r)
	}
	write(t, f, eventsFile, "{\"seq\":1}\nnonsense\n")
	if _, err := Read(f.Path()); err == nil || !strings.Contains(err.Error(), "events.jsonl:2: ") {
		t.Errorf("nonsense: got %v, want its line", err)
	}
}

// Without events, timings and traces are read if present.
func TestReadSamples(t *testing.T) {
	f := NewFolder(t.TempDir(), "r")
	record(t, f, 0, "u1", "u3")
	f.Close()
	if err := os.Remove(filepath.Join(f.Path(), eventsFile)); err != nil {
		t.Fatal(err)
	}
	r, err := Read(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	if r.Run.ContentHash != "abc" || len(r.Rows) != 2 || r.Rows[1].Samples.TrialsNS[0][1] != 2 ||
		r.Rows[1].Evaluated.Status() != "RUNTIME_ERROR" || r.Rows[1].Axes["n"] != 1 {
		t.Errorf("got %+v", r)
	}
	for _, name := range []string{runFile, tracesFile} {
		if err := os.Remove(filepath.Join(f.Path(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err = Read(f.Path()); err != nil || r.Run != nil || len(r.Rows) != 2 || r.Rows[0].Evaluated != nil ||
		r.Rows[0].Samples == nil {
		t.Errorf("timings only: got %+v and %v", r, err)
	}
	line := read(t, f, samplesFile)
	write(t, f, samplesFile, line+line)
	if _, err = Read(f.Path()); err == nil || !strings.Contains(err.Error(),
		`samples.jsonl:3: workload "u1" for the second time`) {
		t.Errorf("twice: got %v", err)
	}
	if _, err = Read(t.TempDir()); !errors.Is(err, ErrNoRun) {
		t.Errorf("no run: got %v, want %v", err, ErrNoRun)
	}
}

// The score of a resumed run covers both of its parts.
func TestScore(t *testing.T) {
	f := NewFolder(t.TempDir(), "r")
	s := event.NewStream(f.Record)
	two, four := 2.0, 4.0
	run := &event.Run{Baseline: &event.Baseline{Name: "b"}, Workloads: []event.WorkloadRef{{UUID: "u1"}, {UUID: "u2"},
		{UUID: "u3"}}}
	for i, v := range []eventtest.Verdict{{Status: "PASSED", Speedup: &two}, {Status: "PASSED", Speedup: &four},
		{Status: "PASSED"}} {
		s.Emit(event.Event{Type: event.TypeRun, Run: run})
		v.UUID = run.Workloads[i].UUID
		s.Emit(event.Event{Type: event.TypeEvaluated, Workload: v.UUID, Evaluated: v.Evaluated()})
		s.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Passed: i + 1, Missing: 2 - i}})
		r, err := Read(f.Path())
		if err != nil || s.Err() != nil {
			t.Fatal(err, s.Err())
		}
		if i < 2 && r.Done.Score != nil {
			t.Errorf("after %d of 3: got the score %g, want none", i+1, *r.Done.Score)
		}
		if i == 2 && (r.Done.Score == nil || *r.Done.Score != 3 || r.Done.Scored != 2) {
			t.Errorf("got %+v, want a score of 3 on 2 workloads", r.Done)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A run with another event schema is rejected.
func TestReadOtherSchema(t *testing.T) {
	f := NewFolder(t.TempDir(), "r")
	if err := f.Record(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: "fisub.event/2", ID: "r",
		Fisub: "9.0.0"}}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Read(f.Path()); err == nil || !strings.Contains(err.Error(), `schema "fisub.event/2"`) ||
		!strings.Contains(err.Error(), `use fisub "9.0.0"`) {
		t.Errorf("got %+v, %v, want an error that names both versions", r, err)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	if _, err := Find(root, "last"); err == nil {
		t.Error("empty root: got no error")
	}
	// Copies are never the last run.
	for _, id := range []string{"20260101-000000-aaaaaa", "20260102-000000-bbbbbb", "20260102-000000-cccccc", "best",
		"old"} {
		if err := os.MkdirAll(filepath.Join(root, Dir, id), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"20260102-000000-caaaaa", "20260103-000000-dddddd"} {
		folder := filepath.Join(root, Dir, id)
		err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, FiguresName), nil, 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string]string{"20260101": "20260101-000000-aaaaaa", "last": "20260102-000000-cccccc",
		"last~0": "20260102-000000-cccccc", "last~2": "20260101-000000-aaaaaa", "last~3": "old", "best": "best",
		"20260102-000000-b": "20260102-000000-bbbbbb", "profile": "20260103-000000-dddddd",
		"profile~1": "20260102-000000-caaaaa"} {
		if got, err := Find(root, prefix); got != want || err != nil {
			t.Errorf("Find(%q): got %q and %v, want %q", prefix, got, err, want)
		}
	}
	var unknown *UnknownError
	if _, err := Find(root, "20260102"); !errors.As(err, &unknown) || len(unknown.Matches) != 3 {
		t.Errorf("ambiguous: got %v, want three matches", err)
	}
	for _, word := range []string{"last~5", "last~-1", "last~", "last~x", "last1", "lastly", "profile~2", "profiles"} {
		if got, err := Find(root, word); !errors.As(err, &unknown) {
			t.Errorf("Find(%q): got %q and %v, want no match", word, got, err)
		}
	}
	if _, err := Find(root, "x"); !errors.As(err, &unknown) || len(unknown.Matches) != 0 {
		t.Errorf("unknown: got %v, want no match", err)
	}
}

// Events of a remote run's jobs are interleaved. Each workload keeps its own timings and place.
func TestMixedJobs(t *testing.T) {
	root := t.TempDir()
	f, old, err := Attach(root, "mixed") // the run was killed before its first event
	if err != nil || old.Run != nil {
		t.Fatalf("got %+v, %v", old, err)
	}
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeJob, Place: "a", Job: "j1", JobState: &event.JobChange{Phase: "sending"}})
	s.Emit(event.Event{Type: event.TypeRun, Run: &event.Run{Schema: event.Schema, ID: "mixed",
		Workloads: []event.WorkloadRef{{UUID: "u1"}, {UUID: "u2"}}}})
	s.Emit(event.Event{Type: event.TypeJob, Place: "b", Job: "j2", Origin: 1,
		JobState: &event.JobChange{Phase: "running", Device: &event.Device{Name: "B"}, Host: &event.Host{}}})
	for i, u := range []string{"u1", "u2"} {
		s.Emit(event.Event{Type: event.TypeStarted, Workload: u, Started: &event.Started{}})
		s.Emit(event.Event{Type: event.TypeSamples, Workload: u,
			Samples: &event.Samples{Timer: u, TrialsNS: [][]int64{{int64(i)}}}})
	}
	for i, u := range []string{"u1", "u2"} {
		s.Emit(event.Event{Type: event.TypeEvaluated, Workload: u, Place: []string{"a", "b"}[i], Job: []string{"j1", "j2"}[i],
			Origin:    9,
			Evaluated: eventtest.Verdict{UUID: u, Status: "RUNTIME_ERROR"}.Evaluated()})
	}
	if err := errors.Join(s.Err(), f.Close()); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(read(t, f, samplesFile)), "\n") {
		if want := fmt.Sprintf(`{"workload":"u%d","timer":"u%d"`, i+1, i+1); !strings.HasPrefix(line, want) {
			t.Errorf("samples: got %s, want %s...", line, want)
		}
	}
	again, r, err := Attach(root, "mixed")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if len(r.Rows) != 2 || r.Rows[0].Place != "a" || r.Rows[1].Place != "b" || len(r.Places) != 1 ||
		r.Places[0].Device.Name != "B" || r.Origins["j2"] != 9 {
		t.Errorf("got %+v", r)
	}
	if _, _, err := Attach(root, "mixed"); !errors.Is(err, ErrRunning) {
		t.Errorf("a second one: got %v, want ErrRunning", err)
	}
}

// Events that the judge cannot have written retract the verdicts.
func TestContradiction(t *testing.T) {
	told := func(seq int, latency string) string {
		return fmt.Sprintf(`{"seq":%d,"type":"evaluated","workload":"w","evaluated":{"trace":{"definition":"d",`+
			`"workload":{"axes":{},"inputs":{},"uuid":"w"},"solution":"s","evaluation":{"status":"PASSED","log":"","timestamp":"t",`+
			`"environment":{"hardware":"h","libs":{}},"correctness":{"max_relative_error":0,"max_absolute_error":0},`+
			`"performance":{"latency_ms":%s,"reference_latency_ms":0,"speedup_factor":0}}}}}`, seq, latency) + "\n"
	}
	timeout, err := event.Marshal(event.Event{Seq: 3, Type: event.TypeEvaluated, Workload: "v",
		Evaluated: eventtest.Verdict{UUID: "v", Status: "TIMEOUT"}.Evaluated()})
	if err != nil {
		t.Fatal(err)
	}
	other := string(timeout)
	const run = `{"seq":1,"type":"run","run":{"schema":"fisub.event/1","workloads":[{"uuid":"w"}]}}` + "\n"
	const done = `{"seq":3,"type":"done","done":{"passed":1}}` + "\n"
	for _, tc := range []struct {
		name, events string
		want         string // of the finding; "" if not expected
	}{
		{"sound", run + told(2, "1") + done, ""},
		{"gone on with", run + run + told(2, "1") + done, ""},
		{"two verdicts", run + told(2, "1") + told(3, "2"), "two verdicts"},
		{"number", run + told(99, "1"), "event 99 follows event 1"},
		{"totals", run + told(2, "1") + strings.Replace(done, ":1}", ":0}", 1), "1 passed and 0 failed, " +
			"but its totals are 0 and 0"},
		{"totals of the whole run", run + told(2, "1") + run + strings.Replace(other, ":3", ":2", 1) +
			strings.Replace(done, ":1}", `:1,"failed":1}`, 1), ""},
		{"a first event that is not the first", run[:7] + "2" + run[8:] + told(3, "1") + other, "event 3 follows event 3"},
		{"not numbered", strings.Replace(run+told(2, "1"), `"seq":1,`, "", 1), ""},
		{"before the run", told(1, "1") + run[:7] + "2" + run[8:] + done, "event evaluated before the run event"},
		{"before the run, not numbered", told(0, "1") + run[:7] + "0" + run[8:], "event evaluated before the run event"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), []byte(tc.events), 0o666); err != nil {
			t.Fatal(err)
		}
		r, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		row := r.Rows[0]
		if (row.Evaluated != nil) != (tc.want == "") || (len(row.Findings) == 0) != (tc.want == "") ||
			tc.want != "" && !strings.Contains(row.Findings[0].Text, tc.want) {
			t.Errorf("%s: got %+v, want %q", tc.name, row, tc.want)
		}
	}
}
