package dispatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/remote"
)

// maxText limits a message of a job, in bytes.
const maxText = 2000

// UsualStream limits the stream of any job, in bytes.
const UsualStream = 1 << 30

// room returns the usual stream limit for n workloads. Each needs some kB, and up to 5 MiB of the solution's output.
func room(n int) int64 { return min(16<<20+int64(n)*8<<20, UsualStream) }

type workload struct {
	index    int
	by       string          // job with the verdict, even a retracted one; before(place) if from an earlier process
	failedOn map[string]bool // hosts that could not judge it
	tries    int             // number of jobs that had it
	given    bool            // no further job gets it
}

// before returns workload.by for a verdict from an earlier process.
func before(place string) string { return "before: " + place }

// A merger merges the streams of a run's jobs. Its only side effect is emit.
type merger struct {
	run     event.Run // as known to the client
	work    map[string]*workload
	summary runs.Summary // of the merged events
	unclean bool         // a tool has found something
	settled int          // number of workloads that have or had a verdict
	first   string       // job whose stream opened the run
	device  event.Device
	begun   time.Time // start of this process
	emit    func(event.Event)
}

func newMerger(run event.Run, emit func(event.Event)) *merger {
	m := &merger{run: run, work: map[string]*workload{}}
	m.summary.Run = &m.run
	m.emit = func(e event.Event) {
		m.summary.Add(&e)
		emit(e)
	}
	for i, w := range run.Workloads {
		m.work[w.UUID] = &workload{index: i, failedOn: map[string]bool{}}
	}
	return m
}

// of returns a workload. A workload of another run counts as settled.
func (m *merger) of(uuid string) *workload {
	if w := m.work[uuid]; w != nil {
		return w
	}
	return &workload{by: "not a workload of this run", failedOn: map[string]bool{}}
}

// restore loads the verdicts of the run folder.
func (m *merger) restore(old *runs.Run) {
	if m.summary = old.Clone(); old.Run != nil {
		m.first, m.device = "before", old.Run.Device
	} else {
		m.summary.Run = &m.run
	}
	for _, row := range old.Rows {
		w := m.work[row.UUID]
		if w == nil || row.Evaluated == nil && len(row.Findings) == 0 {
			continue // another host may be able to judge it
		}
		m.settle(w, before(row.Place))
	}
}

func (m *merger) settle(w *workload, by string) {
	if w.by == "" {
		m.settled++
	}
	w.by = by
}

func (m *merger) done(now time.Time) {
	done := m.summary.Totals()
	done.Seconds += now.Sub(m.begun).Seconds()
	m.emit(event.Event{Type: event.TypeDone, Done: &done})
}

// A reader is the position in the stream of a job.
type reader struct {
	job     *JobRecord
	cut     remote.Cutter
	said    runs.Summary // summary of the whole stream
	line    int64        // lines so far
	seen    int64        // last line whose event is in the run folder
	junk    int64        // lines dropped
	size    int64        // bytes so far
	current string       // workload started last
	against string       // contradiction in the stream, or ""
}

func newReader(j *JobRecord, seen int64) reader {
	return reader{job: j, seen: seen, cut: remote.Cutter{Seal: remote.Seal{Key: j.Key, Job: j.ID}},
		said: runs.Summary{Single: true}}
}

// read processes the next bytes of the stream.
func (m *merger) read(r *reader, p []byte) {
	r.size += int64(len(p))
	for line := range r.cut.Cut(p) {
		r.line++
		switch {
		case line.Long:
			r.said.Skip()
			r.junk++
		case !line.Signed:
			text := fmt.Sprintf("line %d of its stream is not signed by its agent", r.line)
			m.contradict(r, text, r.line > r.seen)
		case !m.event(r, line.Text):
			r.junk++
		}
	}
}

// lines passes on the lines in the next bytes of a tool's stream, up to the first unsigned one.
func (r *reader) lines(p []byte, hand func(text []byte)) {
	r.size += int64(len(p))
	for line := range r.cut.Cut(p) {
		switch r.line++; {
		case r.against != "":
		case !line.Signed:
			r.against = fmt.Sprintf("line %d of its stream is not signed by its agent", r.line)
		case line.Long:
			r.against = fmt.Sprintf("line %d of its stream is longer than %d bytes", r.line, remote.MaxLine)
		default:
			hand(line.Text)
		}
	}
}

// event adds a line to the run's events and reports whether the job may send it. It drops numbers and times from the
// host: the run's own stream has its own.
func (m *merger) event(r *reader, line []byte) bool {
	var e event.Event
	if len(bytes.TrimSpace(line)) == 0 {
		return true
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return false
	}
	r.said.Add(&e)
	e.Seq, e.Time, e.JobState = 0, time.Time{}, nil
	e.Place, e.Job, e.Origin = r.job.Place.String(), r.job.ID, r.line
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
	w := m.work[e.Workload]
	ours := w != nil && slices.Contains(r.job.Workloads, e.Workload)
	if payloads > 1 || e.Workload != "" && !ours {
		return false
	}
	fresh, open := r.line > r.seen, ours && w.by == ""
	if r.said.Against != "" && r.against == "" {
		m.contradict(r, r.said.Against, fresh)
	}
	emit := fresh
	switch {
	case e.Type == event.TypeRun && e.Run != nil:
		m.host(r, e.Run, fresh)
		emit = false
	case e.Type == event.TypeBuilding && payloads == 0, e.Type == event.TypeBuilt && e.Built != nil:
		emit = fresh && (m.first == r.job.ID || e.Built != nil && !e.Built.OK)
	case e.Type == event.TypeStarted && e.Started != nil && ours:
		e.Started = &event.Started{Index: m.settled + 1, Total: len(m.run.Workloads), Axes: e.Started.Axes}
		r.current = e.Workload
		emit = fresh && open
	case e.Type == event.TypeSamples && e.Samples != nil && ours:
		if !measurable(e.Samples) {
			return false
		}
		emit = fresh && open
	case e.Type == event.TypeEvaluated && e.Evaluated != nil && ours:
		emulated := r.said.Run != nil && r.said.Run.Device.Emulated
		if e.Evaluated.Trace.Workload.UUID != e.Workload || !possible(e.Evaluated, emulated) {
			return false
		}
		if open || !fresh && w.by == before(e.Place) {
			m.settle(w, r.job.ID) // an earlier process may not have seen its findings
		}
		if emit = fresh && open; emit {
			e.Evaluated.Index = w.index
			defer m.retract(r) // after the verdict has been emitted
		}
	case e.Type == event.TypeFailed && e.Message != nil && ours:
		emit = fresh && open && !w.failedOn[r.job.Place.host()]
		w.failedOn[r.job.Place.host()] = w.failedOn[r.job.Place.host()] || open // another host may be able to judge it
	case e.Type == event.TypeWarning && e.Finding != nil && ours:
		emit = fresh && w.by == r.job.ID
	case e.Type == event.TypeWarning && e.Message != nil, e.Type == event.TypeFloor && e.Floor != nil:
	case e.Type == event.TypeDone && e.Done != nil:
		emit = false
	default:
		// An event type of a newer fisub.
		return e.Type != "" && payloads == 0
	}
	if emit {
		m.emit(e)
	}
	return true
}

// exited compares the signed end of a job with its stream. If the end has a Text, the exit status is not the program's
// own.
func (m *merger) exited(r *reader, exit remote.Exit) {
	text := r.cut.Missing(exit)
	if text == "" && exit.End == remote.Exited && exit.Text == "" {
		r.said.Exited(exit.Code)
		text = r.said.Against
	}
	if text != "" {
		m.contradict(r, text, true)
	}
}

// contradict retracts the verdicts of a job whose stream contradicts itself or the signatures. If fresh is set, the run
// folder does not have the contradiction yet.
func (m *merger) contradict(r *reader, text string, fresh bool) {
	if r.against == "" && fresh {
		m.emit(event.Event{Type: event.TypeWarning, Place: r.job.Place.String(), Job: r.job.ID,
			Message: &event.Message{Text: fmt.Sprintf("%s: untrusted verdicts: %s", r.job.Place, text),
				Hint: "another program has written to it: fisub help trust"}})
	}
	r.against = text
	m.retract(r)
}

// retract retracts the verdicts of a job whose stream contradicts itself.
func (m *merger) retract(r *reader) {
	if r.against == "" {
		return
	}
	for _, uuid := range r.job.Workloads {
		if w := m.work[uuid]; w == nil || w.by != r.job.ID || !m.summary.Judged(uuid) {
			continue
		}
		m.emit(event.Event{Type: event.TypeWarning, Workload: uuid, Place: r.job.Place.String(), Job: r.job.ID,
			Origin: r.line, Finding: &event.Finding{Check: event.Contradiction, Text: r.against}})
	}
}

// host handles the first event of a job, which names its device. The first of all jobs opens the run's stream.
func (m *merger) host(r *reader, is *event.Run, fresh bool) {
	if m.first == "" {
		m.first = r.job.ID
		m.device = is.Device
		if fresh {
			run := m.run
			run.Device, run.Host = is.Device, is.Host
			if l := is.Checked; l != nil {
				run.Checked = &event.Checked{For: briefly(l.For), Not: briefly(l.Not)}
			}
			m.emit(event.Event{Type: event.TypeRun, Run: &run})
		}
	} else if fresh && (m.device.Name != is.Device.Name || m.device.Emulated != is.Device.Emulated) {
		text := fmt.Sprintf("places differ: %s is %s, the first is %s", r.job.Place, is.Device.Name, m.device.Name)
		m.emit(event.Event{Type: event.TypeWarning,
			Message: &event.Message{Text: text, Hint: "do not compare figures of different places"}})
	}
	if fresh {
		m.emit(event.Event{Type: event.TypeJob, Place: r.job.Place.String(), Job: r.job.ID, Origin: r.line,
			JobState: &event.JobChange{Phase: string(remote.Running), Device: &is.Device, Host: &is.Host}})
	}
}

// maxFigure limits milliseconds, seconds and ratios of a workload, so that all sums are finite.
const maxFigure = 1e9

// possible reports whether the numbers of a verdict can come from a measurement.
func possible(e *event.Evaluated, emulated bool) bool {
	p := trace.Performance{}
	if measured := e.Trace.Evaluation.Performance; measured != nil {
		p = *measured
	}
	for _, x := range []float64{p.LatencyMS, p.ReferenceLatencyMS, p.SpeedupFactor, e.Seconds} {
		if !(x >= 0 && x <= maxFigure) {
			return false
		}
	}
	return (e.Ratio == nil || *e.Ratio > 0 && *e.Ratio <= maxFigure) && (p.LatencyMS == 0 || !emulated)
}

// measurable reports whether all timings can come from a clock.
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

// briefly shortens a list from a job.
func briefly(list []string) (brief []string) {
	for _, text := range list[:min(len(list), 20)] {
		brief = append(brief, plain.Brief(text, 500))
	}
	return brief
}
