package dispatch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"fisub/bench/bound"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/remote"
	"fisub/runs"
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
	run     event.Run                // as known to the client
	gpu     string                   // kind that the run is for; "" is the virtual GPU
	least   map[string]bound.Traffic // of the workloads, as known to the client
	work    map[string]*workload
	summary runs.Summary // of the merged events
	settled int          // number of workloads that have or had a verdict
	first   string       // job whose stream opened the run
	device  event.Device
	begun   time.Time // start of this process
	now     time.Time // of the last bytes of a stream
	emit    func(event.Event)

	held    []event.Event // about untrusted verdicts, until the run's stream is opened
	claimed *event.Run    // run event of the first untrusted job; may be nil
	secrets []string      // of the jobs that have ended
}

func newMerger(p *Plan, run event.Run, emit func(event.Event)) *merger {
	m := &merger{run: run, gpu: p.GPU, least: p.Least, work: map[string]*workload{}}
	m.summary.Run = &m.run
	m.emit = func(e event.Event) {
		if m.first == "" && e.Workload != "" {
			m.held = append(m.held, e)
			return
		}
		m.summary.Add(&e)
		emit(e)
	}
	for i, w := range run.Workloads {
		m.work[w.UUID] = &workload{index: i, failedOn: map[string]bool{}}
	}
	return m
}

// workload returns a workload of the run. One of another run counts as settled.
func (m *merger) workload(uuid string) *workload {
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

// release opens the run's stream if only untrusted jobs have delivered anything.
func (m *merger) release() {
	if m.first != "" || len(m.held) == 0 {
		return
	}
	is := m.claimed
	if is == nil {
		const unknown = "unknown"
		is = &event.Run{Device: event.Device{Kind: "cuda", Name: "unknown device", Arch: unknown, Driver: unknown,
			Toolchain: unknown}}
		if m.gpu == "" {
			is.Device.Kind, is.Device.Emulated = "emu", true
		}
	}
	m.open(m.held[0].Job, is)
}

// open opens the run's stream with the device and the machine of a job, and emits the held events.
func (m *merger) open(job string, is *event.Run) {
	m.first, m.device = job, is.Device
	run := m.run
	run.Device, run.Host = is.Device, is.Host
	if l := is.Checked; l != nil {
		run.Checked = &event.Checked{For: briefly(l.For), Not: briefly(l.Not)}
	}
	m.emit(event.Event{Type: event.TypeRun, Run: &run})
	held := m.held
	m.held = nil
	for _, e := range held {
		m.emit(e)
	}
}

func (m *merger) done(now time.Time) {
	done := m.summary.Totals()
	done.Seconds += now.Sub(m.begun).Seconds()
	done.Secret = strings.Join(m.secrets, " ")
	m.emit(event.Event{Type: event.TypeDone, Done: &done})
}

// A reader is the position in the stream of a job.
type reader struct {
	job     *JobRecord
	cut     remote.Cutter
	summary runs.Summary // of the whole stream
	line    int64        // lines so far
	seen    int64        // last line whose event is in the run folder
	junk    int64        // lines dropped
	size    int64        // bytes so far
	current string       // workload started last
	against string       // contradiction in the stream, or ""
}

func newReader(j *JobRecord, seen int64) reader {
	return reader{job: j, seen: seen, cut: remote.Cutter{Seal: remote.Seal{Key: j.Key, Job: j.ID}},
		summary: runs.Summary{Single: true}}
}

// read processes the next bytes of the stream.
func (m *merger) read(r *reader, p []byte) {
	r.size += int64(len(p))
	for line := range r.cut.Cut(p) {
		r.line++
		switch {
		case line.Long:
			r.summary.Skip()
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
	begun := r.summary.Run != nil
	r.summary.Add(&e)
	text := cmp.Or(r.summary.Against, m.against(r, &e, begun))
	e.Seq, e.Time, e.JobState = 0, time.Time{}, nil
	e.Place, e.Job, e.Origin = r.job.Place.String(), r.job.ID, r.line
	payloads := 0
	for _, p := range e.Payloads() {
		if p.Set {
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
	if text != "" && r.against == "" {
		m.contradict(r, text, fresh)
	}
	trusted := r.against == ""
	emit := fresh && trusted
	switch {
	case e.Type == event.TypeRun && e.Run != nil:
		m.host(r, e.Run, fresh)
		emit = false
	case e.Type == event.TypeBuilding && payloads == 0, e.Type == event.TypeBuilt && e.Built != nil:
		emit = emit && (m.first == r.job.ID || e.Built != nil && !e.Built.OK)
	case e.Type == event.TypeStarted && e.Started != nil && ours:
		e.Started = &event.Started{Index: m.settled + 1, Total: len(m.run.Workloads), Axes: e.Started.Axes}
		r.current = e.Workload
		emit = emit && open
	case e.Type == event.TypeSamples && e.Samples != nil && ours:
		if !measurable(e.Samples) {
			return false
		}
		emit = emit && open
	case e.Type == event.TypeEvaluated && e.Evaluated != nil && ours:
		emulated := r.summary.Run != nil && r.summary.Run.Device.Emulated
		if trusted && (e.Evaluated.Trace.Workload.UUID != e.Workload || !possible(e.Evaluated, emulated)) {
			return false
		}
		if open || !fresh && w.by == before(e.Place) {
			m.settle(w, r.job.ID) // an earlier process may not have seen its findings
		}
		if !trusted {
			if open {
				m.reject(r, w, e)
			}
			m.retract(r) // a verdict that an earlier process accepted
			return true
		}
		if fresh && open {
			e.Evaluated.Index = w.index
			m.emit(e)
		}
		if f := m.tooFast(e.Workload); f != nil && w.by == r.job.ID {
			m.emit(event.Event{Type: event.TypeWarning, Workload: e.Workload, Place: e.Place, Job: e.Job, Origin: e.Origin,
				Finding: f})
		}
		emit = false
	case e.Type == event.TypeFailed && e.Message != nil && ours:
		emit = fresh && open && !w.failedOn[r.job.Place.host()]
		w.failedOn[r.job.Place.host()] = w.failedOn[r.job.Place.host()] || open // another host may be able to judge it
	case e.Type == event.TypeWarning && e.Finding != nil && ours:
		row := m.summary.Row(e.Workload)
		emit = emit && w.by == r.job.ID && (e.Finding.Check != bound.TooFast || row == nil || !isTooFast(row))
	case e.Type == event.TypeWarning && e.Message != nil:
		emit = fresh
	case e.Type == event.TypeFloor && e.Floor != nil:
		if !timed(&e.Floor.Timings) || !within(e.Floor.Bytes) {
			return false
		}
	case e.Type == event.TypeDone && e.Done != nil:
		emit = false
		if s := plain.Line(e.Done.Secret); s != "" && len(s) < 100 && !slices.Contains(m.secrets, s) {
			m.secrets = append(m.secrets, s)
		}
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
		r.summary.Exited(exit.Code)
		text = r.summary.Against
		if judged := exit.Code == 0 || exit.Code == 3; text == "" && judged && r.summary.Done == nil {
			text = fmt.Sprintf("exit status %d, but no done event", exit.Code)
		}
	}
	if text != "" {
		m.contradict(r, text, true)
	}
}

// untrusted is the hint for verdicts that the client does not accept.
const untrusted = "the host, or another program on it, has written to the output: fisub help trust"

// contradict retracts the verdicts of a job whose stream contradicts itself or the signatures. If fresh is set, the run
// folder does not have the contradiction yet.
func (m *merger) contradict(r *reader, text string, fresh bool) {
	if r.against == "" && fresh {
		m.emit(event.Event{Type: event.TypeWarning, Place: r.job.Place.String(), Job: r.job.ID,
			Message: &event.Message{Text: fmt.Sprintf("%s: untrusted verdicts: %s", r.job.Place, text), Hint: untrusted}})
	}
	r.against = text
	m.retract(r)
}

// retract retracts the verdicts of a job whose stream contradicts itself.
func (m *merger) retract(r *reader) {
	for _, uuid := range r.job.Workloads {
		if w := m.work[uuid]; w == nil || w.by != r.job.ID || !m.summary.Judged(uuid) {
			continue
		}
		m.emit(event.Event{Type: event.TypeWarning, Workload: uuid, Place: r.job.Place.String(), Job: r.job.ID,
			Origin: r.line, Finding: &event.Finding{Check: event.Contradiction, Text: r.against}})
	}
}

// reject records that a verdict on an open workload is not trusted. The verdict itself is not recorded.
func (m *merger) reject(r *reader, w *workload, e event.Event) {
	e.Type, e.Evaluated = event.TypeFailed, nil
	if failed := w.failedOn; !failed[r.job.Place.host()] {
		failed[r.job.Place.host()] = true
		e.Message = &event.Message{Text: "untrusted verdict: " + r.against, Hint: untrusted}
		m.emit(e)
	}
	e.Type, e.Message = event.TypeWarning, nil
	e.Finding = &event.Finding{Check: event.Contradiction, Text: r.against}
	m.emit(e)
}

// host handles the first event of a job, which names its device. The first of all trusted jobs opens the run's stream.
func (m *merger) host(r *reader, is *event.Run, fresh bool) {
	switch {
	case r.against != "":
		if m.claimed == nil {
			m.claimed = is
		}
	case m.first == "":
		m.open(r.job.ID, is)
	case fresh && (m.device.Name != is.Device.Name || m.device.Emulated != is.Device.Emulated):
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

// measurable reports whether all numbers of a measurement can come from a clock, the GPU or its driver.
func measurable(s *event.Samples) bool {
	own := event.Timings{TrialsNS: s.TrialsNS, MedianNS: s.MedianNS, N: s.N, Interval: s.Interval}
	for _, k := range s.Kernels {
		if !within(k.MedianNS, float64(k.Bytes)) || !within(k.Grid[:]...) || !within(k.Block[:]...) ||
			!within(k.Registers, k.StaticSharedBytes, k.DynamicSharedBytes, k.LocalBytes) {
			return false
		}
	}
	return timed(&own) && (s.Warm == nil || timed(s.Warm)) && (s.Baseline == nil || timed(s.Baseline)) &&
		(s.Board == nil || within(s.Board.Runs) && within(s.Board.Mean, s.Board.Err, s.Board.Best, s.Board.Worst)) &&
		(s.Stamp == nil || stamped(s.Stamp)) && within(s.Bytes, s.MinNS, int64(s.Measured)) &&
		within(s.Q1NS, s.Q2NS, s.Q3NS, s.MeanNS, s.CopyNS, s.EmptyNS, s.Bandwidth, s.PeakShare, s.CopyShare)
}

// timed reports whether all timings can come from a clock, and their figures from timings.
func timed(t *event.Timings) bool {
	for _, trial := range t.TrialsNS {
		if len(trial) == 0 || slices.Min(trial) <= 0 || !within(trial...) {
			return false
		}
	}
	i := t.Interval
	return within(t.N) && within(t.MedianNS, i.LoNS, i.HiNS, i.Width) && i.Confidence >= 0 && i.Confidence <= 1
}

// stamped reports whether a driver can have reported all readings.
func stamped(s *event.Stamp) bool {
	for _, r := range []event.Reading{s.Before, s.After, s.During.Min, s.During.Median, s.During.Max} {
		if !within(r.SMClockMHz, r.MemoryClockMHz, r.TemperatureC) || !within(r.PowerW) {
			return false
		}
	}
	for _, p := range s.OtherProcesses {
		if !within(int64(p.PID), p.MemoryBytes) || p.SMPercent < -1 || !within(max(0, p.SMPercent)) { // -1: unknown
			return false
		}
	}
	return within(int64(s.During.N), s.ECCErrors)
}

// within reports whether no number of a measurement is negative or too large. The limit is 11 days in nanoseconds, or
// a petabyte.
func within[T int | int64 | float64](numbers ...T) bool {
	return !slices.ContainsFunc(numbers, func(x T) bool { return !(x >= 0 && float64(x) <= maxFigure*1e6) })
}

// briefly shortens a list from a job.
func briefly(list []string) (brief []string) {
	for _, text := range list[:min(len(list), 20)] {
		brief = append(brief, plain.Brief(text, 500))
	}
	return brief
}
