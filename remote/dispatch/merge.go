package dispatch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/remote"
)

// maxText bounds a message of a job's, in bytes.
const maxText = 2000

// UsualStream bounds any stream of a job.
const UsualStream = 1 << 30

// room is the usual bound of the stream of a job for n workloads: it takes some kB for each, and what a solution
// prints, of which 5 MiB for each are kept.
func room(n int) int64 { return min(16<<20+int64(n)*8<<20, UsualStream) }

// A feed takes the stream of one job: first into a file of its own, then, line by line, into the run's events. It is a
// remote.Watcher.
type feed struct {
	d    *Dispatcher
	job  *Job
	file *os.File
	line int64 // lines so far
	seen int64 // the last one whose event the run folder has
	junk int64 // lines that are no events
	size int64 // bytes so far
	err  error // this machine cannot keep the stream

	heard   atomic.Int64 // when the last bytes came, in nanoseconds since the run began
	running atomic.Bool  // the host answers, and says that the job runs

	cut       remote.Cutter
	check     event.Checker
	emulated  bool
	against   string // why it cannot be what one run has told
	retracted map[string]bool
}

// openFeed opens the job's file and takes what is in it; offset is where the stream goes on.
func (d *Dispatcher) openFeed(j *Job) (f *feed, offset int64, err error) {
	name := filepath.Join(d.Folder, streams, j.ID+".jsonl")
	f = &feed{d: d, job: j, seen: d.origins[j.ID], cut: remote.Cutter{Seal: remote.Seal{Key: j.Key, Job: j.ID}},
		check: event.Checker{Job: true}, retracted: map[string]bool{}}
	if f.file, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644); err != nil {
		return nil, 0, err
	}
	if _, err = io.Copy(taker{f}, f.file); err != nil {
		f.file.Close()
	}
	return f, f.size, err
}

// A taker takes what the job's file has already.
type taker struct{ *feed }

func (t taker) Write(p []byte) (int, error) {
	t.size += int64(len(p))
	return len(p), t.take(p)
}

func (f *feed) Write(p []byte) (int, error) {
	f.size += int64(len(p))
	f.heard.Store(int64(time.Since(f.d.begun)))
	if most := cmp.Or(f.d.MaxStream, room(len(f.job.Workloads))); f.size > most {
		return 0, fmt.Errorf("it has said more than %d bytes, which no job for %s takes; its place may be broken", most,
			plain.Count(len(f.job.Workloads), "workload"))
	}
	if _, f.err = f.file.Write(p); f.err == nil {
		f.err = f.take(p)
	}
	return len(p), f.err
}

// take takes what comes next of the stream.
func (f *feed) take(p []byte) error {
	for line := range f.cut.Cut(p) {
		f.line++
		switch {
		case line.Long:
			f.check.Skip()
			f.junk++
		case !line.Signed:
			f.unsigned()
		case !f.event(line.Text):
			f.junk++
		}
		if err := f.d.Events.Err(); err != nil {
			return err
		}
	}
	return nil
}

// State tells a change of what the job does.
func (f *feed) State(s remote.State) {
	f.running.Store(s.Phase == remote.Running)
	if s.Phase == remote.Running || s.Phase == remote.Starting {
		f.d.began(f.job)
		f.d.returned(f.job)
	}
	text := plain.Brief(s.Text, 200)
	if !s.Start.IsZero() {
		text = fmt.Sprintf("%s, to start at about %s", text, s.Start.Format("15:04"))
	}
	f.d.tell(f.job, event.Job{Phase: string(s.Phase), Text: text})
}

// event takes one line into the run's events and tells whether it is one that this job may say. What the host says of
// numbers and times is dropped: the run's own stream has its own.
func (f *feed) event(line []byte) bool {
	var e event.Event
	if len(bytes.TrimSpace(line)) == 0 {
		return true
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return false
	}
	against := f.check.Next(&e)
	if e.Run != nil {
		f.emulated = e.Run.Device.Emulated
	}
	e.Seq, e.Time, e.JobState = 0, time.Time{}, nil
	e.Place, e.Job, e.Origin = f.job.Place.String(), f.job.ID, f.line
	payloads := 0
	for _, is := range []bool{e.Run != nil, e.Built != nil, e.Started != nil, e.Samples != nil, e.Evaluated != nil,
		e.Message != nil, e.Finding != nil, e.Floor != nil, e.Done != nil} {
		if is {
			payloads++
		}
	}
	if e.Message != nil {
		e.Message.Text, e.Message.Hint = plain.Brief(e.Message.Text, maxText), plain.Brief(e.Message.Hint, maxText)
	}
	if e.Finding != nil {
		e.Finding.Check, e.Finding.Text = plain.Brief(e.Finding.Check, 100), plain.Brief(e.Finding.Text, maxText)
		e.Finding.Place = plain.Brief(e.Finding.Place, 200)
	}
	ours := slices.Contains(f.job.Workloads, e.Workload)
	if payloads > 1 || e.Workload != "" && !ours {
		return false
	}
	d := f.d
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh, open := f.line > f.seen, d.settled[e.Workload] == ""
	if against != "" {
		d.contradict(f, against, fresh)
	}
	emit := fresh
	switch {
	case e.Type == event.TypeRun && e.Run != nil:
		d.host(f, e.Run, fresh)
		emit = false
	case e.Type == event.TypeBuilding && payloads == 0, e.Type == event.TypeBuilt && e.Built != nil:
		emit = fresh && (d.first == f.job.ID || e.Built != nil && !e.Built.OK)
	case e.Type == event.TypeStarted && e.Started != nil && ours:
		e.Started = &event.Started{Index: len(d.settled) + 1, Total: len(d.Plan.Run.Workloads), Axes: e.Started.Axes}
		d.current[f.job] = e.Workload
		d.look()
		emit = fresh && open
	case e.Type == event.TypeSamples && e.Samples != nil && ours:
		if !measurable(e.Samples) {
			return false
		}
		emit = fresh && open
	case e.Type == event.TypeEvaluated && e.Evaluated != nil && ours:
		t, _, err := trace.DecodeTrace(e.Evaluated.Trace)
		if err != nil || t.Workload.UUID != e.Workload || t.Evaluation == nil ||
			string(t.Evaluation.Status) != e.Evaluated.Status {
			return false
		}
		if !possible(e.Evaluated, t.Evaluation.Performance, f.emulated) {
			return false
		}
		if open || !fresh {
			d.settled[e.Workload] = f.job.ID // its findings may not be known yet
		}
		if emit = fresh && open; emit {
			e.Evaluated.Index = d.index[e.Workload]
			d.verdicts[e.Workload] = e.Evaluated.Status == string(trace.Passed)
			(&runs.Row{Evaluated: e.Evaluated}).Score(&d.score)
			defer d.retract(f) // after the verdict has been told
			d.look()
		}
	case e.Type == event.TypeFailed && e.Message != nil && ours:
		if emit = fresh && open && !d.failed[e.Workload][f.job.Place.host()]; open { // another host may be able to judge it
			d.cannot(e.Workload, f.job.Place)
			d.look()
		}
	case e.Type == event.TypeWarning && e.Finding != nil && ours:
		if emit = fresh && d.settled[e.Workload] == f.job.ID; emit {
			d.findings++
		}
	case e.Type == event.TypeWarning && e.Message != nil, e.Type == event.TypeFloor && e.Floor != nil:
	case e.Type == event.TypeDone && e.Done != nil:
		emit = false
	default:
		// A newer fisub may say what this one does not know.
		return e.Type != "" && payloads == 0
	}
	if emit {
		d.Events.Emit(e)
	}
	return true
}

// unsigned says that the last line is not what the job's agent has written.
func (f *feed) unsigned() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.contradict(f, fmt.Sprintf("line %d of its stream is not signed by its agent", f.line), f.line > f.seen)
}

// exited compares what the agent says of the end with what the stream has told. An exit status with a Text is not the
// program's own.
func (f *feed) exited(exit remote.Exit) {
	text := f.cut.Missing(exit)
	if text == "" && exit.End == remote.Exited && exit.Text == "" {
		text = f.check.Exit(exit.Code)
	}
	if text != "" {
		f.d.mu.Lock()
		defer f.d.mu.Unlock()
		f.d.contradict(f, text, true)
	}
}

// contradict takes the verdicts of a job back whose stream cannot be what the judge has told and the agent written;
// fresh tells that this is new.
func (d *Dispatcher) contradict(f *feed, text string, fresh bool) {
	if f.against == "" && fresh {
		d.Events.Emit(event.Event{Type: event.TypeWarning, Place: f.job.Place.String(), Job: f.job.ID,
			Message: &event.Message{Text: fmt.Sprintf("%s: its verdicts are not to be believed: %s", f.job.Place, text),
				Hint: "something has written to it that was not the judge: fisub help trust"}})
	}
	f.against = text
	d.retract(f)
}

// retract takes back the verdicts of a job whose stream contradicts itself.
func (d *Dispatcher) retract(f *feed) {
	if f.against == "" {
		return
	}
	for _, w := range f.job.Workloads {
		if _, judged := d.verdicts[w]; !judged || d.settled[w] != f.job.ID || f.retracted[w] {
			continue
		}
		f.retracted[w] = true
		delete(d.verdicts, w)
		d.score.Fail()
		d.findings++
		d.Events.Emit(event.Event{Type: event.TypeWarning, Workload: w, Place: f.job.Place.String(), Job: f.job.ID,
			Origin: f.line, Finding: &event.Finding{Check: event.Contradiction, Text: f.against}})
	}
}

// maxFigure bounds what a host may say of a workload, in milliseconds, seconds or as a ratio: sums of all are numbers
// then.
const maxFigure = 1e9

// possible tells whether an evaluation has figures that a measurement can give.
func possible(e *event.Evaluated, p *trace.Performance, emulated bool) bool {
	for _, x := range []*float64{e.Latency, e.Speedup} {
		if x != nil && !(*x > 0 && *x <= maxFigure) {
			return false
		}
	}
	if e.Latency != nil && emulated {
		return false
	}
	if p != nil {
		for _, x := range []float64{p.LatencyMS, p.ReferenceLatencyMS, p.SpeedupFactor} {
			if !(x >= 0 && x <= maxFigure) {
				return false
			}
		}
		if e.Latency != nil && p.LatencyMS != *e.Latency {
			return false
		}
	}
	return e.Seconds >= 0 && e.Seconds <= maxFigure
}

// measurable tells whether all timings are such as a clock can give.
func measurable(s *event.Samples) bool {
	for _, trial := range s.TrialsNS {
		if len(trial) == 0 || slices.Min(trial) <= 0 || slices.Max(trial) > maxFigure*1e6 {
			return false
		}
	}
	for _, x := range []float64{s.MedianNS, s.Q1NS, s.Q2NS, s.Q3NS, s.MeanNS, float64(s.MinNS), s.CopyNS, s.EmptyNS} {
		if !(x >= 0 && x <= maxFigure*1e6) {
			return false
		}
	}
	return true
}

// host takes the first word of a job's host: which device it is. The first host of all opens the run's stream.
func (d *Dispatcher) host(f *feed, r *event.Run, fresh bool) {
	if d.first == "" {
		d.first = f.job.ID
		d.device = r.Device
		if fresh {
			run := d.Plan.Run
			run.Device, run.Host = r.Device, r.Host
			if l := r.Looked; l != nil {
				run.Looked = &event.Looked{For: briefly(l.For), Not: briefly(l.Not)}
			}
			d.Events.Emit(event.Event{Type: event.TypeRun, Run: &run})
		}
	} else if fresh && (d.device.Name != r.Device.Name || d.device.Emulated != r.Device.Emulated) {
		text := fmt.Sprintf("places differ: %s is %s, the first is %s", f.job.Place, r.Device.Name, d.device.Name)
		d.Events.Emit(event.Event{Type: event.TypeWarning,
			Message: &event.Message{Text: text, Hint: "do not compare figures of one with those of the other"}})
	}
	if fresh {
		d.Events.Emit(event.Event{Type: event.TypeJob, Place: f.job.Place.String(), Job: f.job.ID, Origin: f.line,
			JobState: &event.Job{Phase: string(remote.Running), Device: &r.Device, Host: &r.Host}})
	}
}

// briefly bounds a list of a job's.
func briefly(list []string) (brief []string) {
	for _, text := range list[:min(len(list), 20)] {
		brief = append(brief, plain.Brief(text, 500))
	}
	return brief
}

func (d *Dispatcher) tell(j *Job, s event.Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Events.Emit(event.Event{Type: event.TypeJob, Place: j.Place.String(), Job: j.ID, JobState: &s})
}

func (d *Dispatcher) warn(j *Job, text, hint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Events.Emit(event.Event{Type: event.TypeWarning, Place: j.Place.String(), Job: j.ID,
		Message: &event.Message{Text: j.Place.String() + ": " + text, Hint: hint}})
}
