package runs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"fisub/internal/event"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
)

// A Run is the content of a run folder.
type Run struct {
	ID string `json:"id"` // name of the folder
	Summary
	Running bool `json:"running"` // a process is writing the folder

	Bare bool `json:"-"` // it has no events, so its ending is unknown
}

// State returns "running", "killed" (no end), "incomplete" (ended before all workloads had a verdict) or "done". For
// a remote run that ran on no host it returns the reason, such as "refused". For a folder without events it returns
// "".
func (r *Run) State() string {
	switch {
	case r.Running:
		return "running"
	case r.Bare:
		return ""
	case r.Ending != "":
		word, _, _ := strings.Cut(r.Ending, ":")
		return strings.Fields(word + " ended")[0]
	case r.Done == nil:
		return "killed"
	case r.Done.Missing > 0:
		return "incomplete"
	}
	return "done"
}

// Official returns the mean official latency of the passed workloads in nanoseconds; 0 if none was timed.
func (r *Run) Official() float64 {
	sum, n := 0.0, 0
	for _, row := range r.Rows {
		if row.Evaluated != nil && row.Evaluated.Latency() != nil {
			sum += *row.Evaluated.Latency() * 1e6
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// Passed returns the number of passed workloads and of all workloads of the run.
func (r *Run) Passed() (passed, total int) {
	d := r.Totals()
	return d.Passed, d.Passed + d.Failed + d.Missing
}

// PassedText returns Passed as text, followed by after; or "verdicts not kept" if the folder has timings but no
// verdicts.
func (r *Run) PassedText(after string) string {
	if r.Bare && !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Evaluated != nil }) {
		return "no verdicts stored"
	}
	passed, total := r.Passed()
	return fmt.Sprintf("%d of %d%s", passed, total, after)
}

// Emit replays the run: one event per recorded item, in order, with the totals at the end of a finished run.
func (r *Run) Emit(s *event.Stream) {
	for _, p := range r.Places {
		s.Emit(event.Event{Type: event.TypeJob, Place: p.Name, JobState: &event.JobChange{Phase: "running", Device: &p.Device,
			Host: &p.Host}})
	}
	if r.Run != nil {
		s.Emit(event.Event{Type: event.TypeRun, Run: r.Run})
	}
	for _, row := range r.Rows {
		if row.Samples != nil {
			s.Emit(event.Event{Type: event.TypeSamples, Workload: row.UUID, Samples: row.Samples})
		}
		if row.Evaluated != nil {
			s.Emit(event.Event{Type: event.TypeEvaluated, Workload: row.UUID, Evaluated: row.Evaluated, Place: row.Place})
		} else if row.Unjudged != nil {
			s.Emit(event.Event{Type: event.TypeFailed, Workload: row.UUID, Message: row.Unjudged, Place: row.Place})
		}
		for _, f := range row.Findings {
			s.Emit(event.Event{Type: event.TypeWarning, Workload: row.UUID, Finding: &f})
		}
	}
	for _, w := range r.Warnings {
		s.Emit(event.Event{Type: event.TypeWarning, Message: &w})
	}
	if r.Done != nil {
		s.Emit(event.Event{Type: event.TypeDone, Done: r.Done})
	}
}

var (
	// ErrEmpty means that a run left no complete event.
	ErrEmpty = hint.Wrap(errors.New("killed before its first event"), "start a new run")
	// ErrRunning means that another process is writing the run's folder.
	ErrRunning = hint.Wrap(errors.New("running in another process"), "wait for it, or kill that process")
	// ErrNoRun means that a folder is not a run's.
	ErrNoRun = hint.Wrap(errors.New("no events.jsonl and no samples.jsonl"), "fisub runs ls lists the runs")
)

// Read reads the run folder at path: its events or, without events, samples.jsonl with traces.jsonl and run.json, if
// present. It ignores an unfinished last line. If the folder is not a run's, the error wraps ErrNoRun. If it has no
// complete event, the error wraps ErrEmpty and the Run has only its ID and Running.
func Read(path string) (*Run, error) {
	events := filepath.Join(path, eventsFile)
	f, err := plain.Open(events)
	if errors.Is(err, fs.ErrNotExist) {
		return readSamples(path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, _, err := replay(f, name(path))
	if err != nil {
		return nil, err
	}
	r.Running = running(f)
	if r.Run == nil && r.Ending != "" {
		return r, &NothingError{r.ID, r.Ending}
	}
	if r.Run == nil {
		return r, fmt.Errorf("run %s: %w", r.ID, ErrEmpty)
	}
	return r, nil
}

// running reports whether a process is writing the folder of the events file f.
func running(f *os.File) bool {
	if !lock(f, syscall.LOCK_SH) {
		return true
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	return false
}

// A NothingError means that no host ran any part of a remote run. It wraps ErrEmpty.
type NothingError struct{ ID, Ending string }

func (e *NothingError) Error() string {
	return "run " + e.ID + ": no workload has run: " + plain.Line(e.Ending)
}
func (e *NothingError) Unwrap() error { return ErrEmpty }

// Advice returns the hint of the error.
func (e *NothingError) Advice() string {
	return "fisub remote logs " + e.ID + " shows the host's output"
}

// maxHeader is the largest run.json that Header reads, in bytes.
const maxHeader = 16 << 20

// Header reads only the run.json of the run folder at path, which describes the run but not its outcome.
func Header(path string) (*event.Run, error) {
	file := filepath.Join(path, runFile)
	data, err := plain.ReadFile(file, maxHeader)
	if err != nil {
		return nil, err
	}
	r := &event.Run{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, damaged(fmt.Errorf("%s: %w", file, err))
	}
	return r, nil
}

// damaged adds a hint to the error of a line that cannot be decoded.
func damaged(err error) error { return hint.Wrap(err, "the file is damaged: start a new run") }

func name(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return filepath.Base(path)
}

// replay reads events from f. whole is the number of bytes up to the end of the last complete line.
func replay(f *os.File, id string) (r *Run, whole int64, err error) {
	r = &Run{ID: id}
	whole, err = eachLine(f, func(line []byte) error {
		var e event.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return damaged(err)
		}
		if e.Run != nil && e.Run.Schema != "" && e.Run.Schema != event.Schema {
			return fmt.Errorf("unknown schema %.40q (this fisub reads %s): use fisub %.40q", e.Run.Schema,
				event.Schema, e.Run.Fisub)
		}
		r.Add(&e)
		return nil
	})
	if r.Run != nil && len(r.Origins) > 0 { // its places finish workloads in any order
		at := map[string]int{}
		for i, w := range r.Run.Workloads {
			at[w.UUID] = i
		}
		slices.SortStableFunc(r.Rows, func(a, b Row) int { return at[a.UUID] - at[b.UUID] })
		r.at = nil
	}
	return r, whole, err
}

// maxLine is the longest line of a file in bytes. A verdict with 5 MiB of output, each byte escaped, or a million
// timings are shorter.
const maxLine = 32 << 20

// eachLine calls do for each line of f that ends with a newline, without the newline; do must not keep it. whole is the
// number of bytes up to the last one.
func eachLine(f *os.File, do func(line []byte) error) (whole int64, err error) {
	r := bufio.NewReaderSize(f, 1<<16)
	var line []byte
	for n := 1; ; n++ {
		line, err = plain.ReadLine(r, line, maxLine)
		switch {
		case errors.Is(err, io.EOF):
			return whole, nil
		case errors.Is(err, plain.ErrTooLong):
			return whole, fmt.Errorf("%s:%d: a line of more than %d MiB", f.Name(), n, maxLine>>20)
		case err != nil:
			return whole, err
		}
		if text := bytes.TrimSpace(line); len(text) > 0 {
			if err := do(text); err != nil {
				return whole, fmt.Errorf("%s:%d: %w", f.Name(), n, err)
			}
		}
		whole += int64(len(line))
	}
}

// readSamples reads a folder without events.
func readSamples(path string) (*Run, error) {
	f, err := plain.Open(filepath.Join(path, samplesFile))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(path, runFile)); err == nil {
			return &Run{ID: name(path)}, fmt.Errorf("run %s: %w", name(path), ErrEmpty)
		}
		return nil, fmt.Errorf("%s: %w", path, ErrNoRun)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &Run{ID: name(path), Bare: true}
	rows := map[string]int{}
	if _, err := eachLine(f, func(line []byte) error {
		row := sampleRow{Samples: &event.Samples{}}
		if err := json.Unmarshal(line, &row); err != nil {
			return damaged(err)
		}
		if _, ok := rows[row.Workload]; ok {
			return fmt.Errorf("workload %q for the second time", row.Workload)
		}
		rows[row.Workload] = len(r.Rows)
		r.Rows = append(r.Rows, Row{UUID: row.Workload, Samples: row.Samples})
		return nil
	}); err != nil {
		return nil, err
	}
	if r.Run, err = Header(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if r.Run != nil {
		for _, w := range r.Run.Workloads {
			if at, ok := rows[w.UUID]; ok {
				r.Rows[at].Axes = w.Axes
			}
		}
	}
	traces, _, err := trace.ReadTraces(filepath.Join(path, tracesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, t := range traces {
		if t.Evaluation == nil {
			continue
		}
		e := &event.Evaluated{Trace: t}
		at, ok := rows[t.Workload.UUID]
		if !ok {
			at = len(r.Rows)
			rows[t.Workload.UUID] = at
			r.Rows = append(r.Rows, Row{UUID: t.Workload.UUID})
		}
		r.Rows[at].Axes, r.Rows[at].Evaluated = e.Axes(), e
	}
	return r, nil
}

// Resume opens the folder of run id to continue it, and returns its content. It repairs the folder of a killed run:
// it cuts off a partial last event and completes run.json, traces, timings and logs from the events. The caller must
// Close the folder. Without events the error wraps ErrEmpty; if another process is writing the run, it wraps
// ErrRunning.
func Resume(root, id string) (*Folder, *Run, error) {
	if _, err := os.Stat(filepath.Join(root, Dir, id, eventsFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("run %s: %w", id, ErrEmpty)
	}
	f, r, err := Attach(root, id)
	if err == nil && r.Run == nil {
		f.Close()
		return nil, nil, fmt.Errorf("run %s: %w", id, ErrEmpty)
	}
	return f, r, err
}

// Attach is Resume for a remote run, which may have ended before its first event.
func Attach(root, id string) (*Folder, *Run, error) {
	f := NewFolder(root, id)
	var r *Run
	var whole int64
	err := f.Hold()
	if err == nil {
		r, whole, err = replay(f.events, id)
	}
	if err == nil {
		err = f.events.Truncate(whole)
	}
	if err == nil && r.Run != nil {
		err = f.repair(r)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, r, nil
}

// Order sorts the traces and timings of a remote run by its workloads. They are recorded as its places finish them.
func (f *Folder) Order() error {
	if f.events == nil {
		return nil
	}
	f.stale = false
	if _, err := f.events.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r, _, err := replay(f.events, filepath.Base(f.path))
	if err != nil || r.Run == nil {
		return err
	}
	return f.repair(r)
}

// repair rewrites the other files from the events.
func (f *Folder) repair(r *Run) error {
	f.run = r.Run
	if err := f.writeRun(r.secret); err != nil {
		return err
	}
	var traces, samples []byte
	for _, row := range r.Rows {
		if row.Unjudged != nil {
			if err := f.writeLog(row.UUID, row.Unjudged.Log); err != nil {
				return err
			}
		}
		if row.Evaluated == nil {
			continue
		}
		traces = append(traces, officialLine(row.Evaluated)...)
		if row.Samples != nil {
			line, err := sampleLine(row.UUID, row.Samples)
			if err != nil {
				return err
			}
			samples = append(samples, line...)
		}
		if err := f.writeLog(row.UUID, row.Evaluated.Log()); err != nil {
			return err
		}
	}
	return errors.Join(rewrite(f.traces, traces), rewrite(f.samples, samples))
}

// rewrite replaces the content of f, which is open for appending.
func rewrite(f *os.File, content []byte) error {
	have, err := os.ReadFile(f.Name())
	if err != nil || bytes.Equal(have, content) {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.Write(content)
	return err
}

// Continue makes run the continuation of r, with its id and its other workloads. It rejects a run that differs from
// r, whose verdicts and figures must not be mixed with r's.
func (r *Run) Continue(run *event.Run) error {
	if err := r.same(append(facts(r.Run, run), fact{"set", r.Run.Set, run.Set},
		fact{"baseline", r.Run.Baseline.Text(), run.Baseline.Text()})); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, w := range run.Workloads {
		wanted[w.UUID] = true
	}
	for _, w := range r.Run.Workloads {
		if !wanted[w.UUID] {
			run.Workloads = append(run.Workloads, w)
		}
	}
	run.ID, run.Started = r.ID, r.Run.Started
	return nil
}

// End records the end of old, the run of the folder, if it was killed after its last verdict.
func (f *Folder) End(old *Run) error {
	if old.Done != nil {
		return nil
	}
	stream := event.NewStream(f.Record)
	stream.Emit(event.Event{Type: event.TypeRun, Run: old.Run})
	stream.Emit(event.Event{Type: event.TypeDone, Done: new(old.Totals())})
	return stream.Err()
}

func tolerance(t event.Tolerance) string { return strings.TrimPrefix(ui.Tolerance(t), "correct: ") }

// facts compares what two descriptions of the same run have in common on all machines.
func facts(a, b *event.Run) []fact {
	return []fact{
		{"content hash", a.ContentHash, b.ContentHash},
		{"solution", a.Solution, b.Solution},
		{"destination-passing style", fmt.Sprint(a.DPS), fmt.Sprint(b.DPS)},
		{"definition", a.Definition, b.Definition},
		{"known secret", fmt.Sprint(a.KnownSecret), fmt.Sprint(b.KnownSecret)},
		{"seed", fmt.Sprint(a.Seed), fmt.Sprint(b.Seed)},
		{"profile", ui.Profile(a.Profile), ui.Profile(b.Profile)},
		{"tolerance", tolerance(a.Tolerance), tolerance(b.Tolerance)},
		{"timer", a.Timer, b.Timer},
	}
}

// Differ returns the first fact in which the descriptions of a run by two machines differ, with its values, or "". The
// machine that runs a job knows neither the set of its workloads nor the name of the baseline.
func Differ(a, b *event.Run) (what, inA, inB string) {
	for _, f := range facts(a, b) {
		if f.old != f.new {
			return f.what, f.old, f.new
		}
	}
	return "", "", ""
}

// SameDevice refuses to continue r on another device or with another driver.
func (r *Run) SameDevice(d event.Device) error {
	o := r.Run.Device
	return r.same([]fact{
		{"device", o.Kind, d.Kind}, {"device", o.Name, d.Name}, {"device", o.UUID, d.UUID}, {"arch", o.Arch, d.Arch},
		{"driver", o.Driver, d.Driver},
	})
}

type fact struct{ what, old, new string }

func (r *Run) same(facts []fact) error {
	for _, f := range facts {
		if f.old != f.new {
			return usage.Errorf("start a new run without --resume", "--resume %s: its %s is %s, now it is %s", r.ID, f.what,
				f.old, f.new)
		}
	}
	return nil
}
