// Package event is the one stream in which everything that happens during a run is told. The terminal view, --json, the
// run folder and a remote client are renderings of it. Each event is one JSON object on a line of its own; a reader
// ignores event types and keys that it does not know.
package event

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"fisub/internal/plain"
	"fisub/internal/trace"
)

// Schema names the version of the stream; the run event carries it. Additions keep the version.
const Schema = "fisub.event/1"

// A Type says what happened, and so which payload an event has.
type Type string

const (
	TypeRun       Type = "run"       // a run begins; first event of a stream
	TypeBuilding  Type = "building"  // the solution is being compiled
	TypeBuilt     Type = "built"     // the solution is ready
	TypeStarted   Type = "started"   // a workload begins
	TypeSamples   Type = "samples"   // a workload was timed
	TypeEvaluated Type = "evaluated" // a workload has its verdict
	TypeFailed    Type = "failed"    // a workload has no verdict: what judging it takes is not there
	TypeWarning   Type = "warning"   // something that the result should be read with
	TypeFloor     Type = "floor"     // what no solution can beat was timed
	TypeDone      Type = "done"      // the run ended; last event of a stream
	TypeJob       Type = "job"       // of a remote run: what a job does; may come before the run event
)

// An Event is one line of the stream. Exactly the payload of its Type is set.
type Event struct {
	Seq       int64      `json:"seq"` // 1, 2, 3, ...
	Time      time.Time  `json:"time"`
	Type      Type       `json:"type"`
	Workload  string     `json:"workload,omitempty"` // uuid, for events about one workload
	Run       *Run       `json:"run,omitempty"`
	Built     *Built     `json:"built,omitempty"`
	Started   *Started   `json:"started,omitempty"`
	Samples   *Samples   `json:"samples,omitempty"`
	Evaluated *Evaluated `json:"evaluated,omitempty"`
	Message   *Message   `json:"message,omitempty"` // of failed, and of a warning that is not a finding
	Finding   *Finding   `json:"finding,omitempty"` // of a warning about what the solution does on one workload
	Floor     *Floor     `json:"floor,omitempty"`
	Done      *Done      `json:"done,omitempty"`

	// Of a remote run, which is made of the streams of several jobs:
	JobState *JobChange `json:"job_state,omitempty"`
	Place    string     `json:"place,omitempty"`  // where it happened: "lab: gpu04 gpu 1"
	Job      string     `json:"job,omitempty"`    // whose event it is
	Origin   int64      `json:"origin,omitempty"` // its line in that job's stream, from 1
}

// A JobChange is the new state of a job of a remote run: a phase of package remote, sending, or ended.
type JobChange struct {
	Phase  string  `json:"phase"`
	Text   string  `json:"text,omitempty"`
	Device *Device `json:"device,omitempty"` // with the first word that the host gives
	Host   *Host   `json:"host,omitempty"`
}

// A Run says what runs where; it is the content of run.json too.
type Run struct {
	Schema      string        `json:"schema"`
	ID          string        `json:"id"`
	Started     time.Time     `json:"started"`
	Fisub       string        `json:"fisub"` // version of the program
	Command     []string      `json:"command"`
	Solution    string        `json:"solution"` // name
	Author      string        `json:"author"`
	Folder      string        `json:"folder,omitempty"`  // of the sources, relative to the project; "" if they were packed
	Sources     []string      `json:"sources,omitempty"` // in Folder
	Language    string        `json:"language"`
	ContentHash string        `json:"content_hash"`                        // the contest's, of the solution
	DPS         bool          `json:"destination_passing_style,omitempty"` // not part of the content hash
	Definition  string        `json:"definition"`
	Set         string        `json:"set"`
	Seed        uint64        `json:"seed,omitempty"`  // of other generated inputs than the usual ones
	Whole       int           `json:"whole,omitempty"` // workloads of the set, where some are left out
	Workloads   []WorkloadRef `json:"workloads"`
	BudgetS     float64       `json:"budget_s,omitempty"` // later than this no workload starts, except the first
	Profile     Profile       `json:"profile"`
	Timer       string        `json:"timer,omitempty"`    // as asked for: "auto", "cupti", "events"
	Baseline    *Baseline     `json:"baseline,omitempty"` // what is timed in turn with the solution
	Floors      bool          `json:"floors,omitempty"`   // also time an empty kernel and a copy of the same bytes
	Tolerance   Tolerance     `json:"tolerance"`
	Device      Device        `json:"device"`
	Looked      *Looked       `json:"looked,omitempty"` // besides wrong outputs
	Host        Host          `json:"host"`
	Git         *Git          `json:"git,omitempty"`
}

// Selection says which workloads run: "20 workloads of set default", "5 of the 54 workloads of set contest".
func (r *Run) Selection() string {
	set := r.Set
	if r.Seed != 0 {
		set += fmt.Sprintf(", seed %d", r.Seed)
	}
	if r.Whole > len(r.Workloads) {
		return fmt.Sprintf("%d of the %d workloads of set %s", len(r.Workloads), r.Whole, set)
	}
	return plain.Count(len(r.Workloads), "workload") + " of set " + set
}

// A Baseline is the solution that latencies are compared with.
type Baseline struct {
	Name        string `json:"name"` // as asked for
	Solution    string `json:"solution"`
	ContentHash string `json:"content_hash"`
}

// Text returns the name and the hash, and "none" for nil.
func (b *Baseline) Text() string {
	if b == nil {
		return "none"
	}
	return b.Name + " " + plain.Short(b.ContentHash)
}

// Score is what the mean speed-up over the baseline is called: only that over the
// definition's reference is the contest's.
func (b *Baseline) Score() string {
	if b.Name == "reference" {
		return "contest score"
	}
	return "mean speed-up"
}

// A WorkloadRef names one row of the run.
type WorkloadRef struct {
	UUID  string         `json:"uuid"`
	Axes  map[string]int `json:"axes"`
	Tests string         `json:"tests,omitempty"` // in set edge: "scale 0"
}

// A Profile is how often the solution is called and timed (spec section 6).
type Profile struct {
	Name       string  `json:"name"`
	Warmup     int     `json:"warmup_runs"`
	Iterations int     `json:"iterations"`
	Trials     int     `json:"num_trials"`
	TimeoutS   float64 `json:"timeout_s"`            // wall clock for one workload
	Target     float64 `json:"target,omitempty"`     // width of the interval up to which trials are added; 0: none
	MaxTimeS   float64 `json:"max_time_s,omitempty"` // of timing one workload; 0: no limit
}

// Looked says which mistakes a run looks for.
type Looked struct {
	For []string `json:"for"`           // with the calls that are examined
	Not []string `json:"not,omitempty"` // what the device or the language cannot show
}

// String is one sentence.
func (l *Looked) String() string {
	text := "looked for: " + strings.Join(l.For, "; ")
	if len(l.Not) > 0 {
		text += "; not looked for: " + strings.Join(l.Not, ", ")
	}
	return text
}

// A Tolerance is the contest's rule for comparing outputs (spec section 5).
type Tolerance struct {
	Atol         float64 `json:"atol"`
	Rtol         float64 `json:"rtol"`
	MatchedRatio float64 `json:"required_matched_ratio"`
}

// A Host is the machine of the run.
type Host struct {
	Name   string `json:"name"`
	OS     string `json:"os"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`

	// Confined says by what the submission's process is kept from the run's files and processes.
	Confined string `json:"confined,omitempty"`
}

// Git is the state of the repository that the solution came from.
type Git struct {
	Commit string `json:"commit"`
	Dirty  bool   `json:"dirty"`
}

// Built tells how the solution was built.
type Built struct {
	OK      bool    `json:"ok"`
	Cached  bool    `json:"cached"` // nothing was compiled; false of what Python builds
	Seconds float64 `json:"seconds"`
	Log     string  `json:"log,omitempty"` // the compiler's output
}

// Started opens a workload: number Index of Total, counted from 1.
type Started struct {
	Index int            `json:"index"`
	Total int            `json:"total"`
	Axes  map[string]int `json:"axes"`
}

// Samples are all timings of one workload, in nanoseconds, a row for each trial. All figures but the official one are
// about the timings of all trials together.
type Samples struct {
	Timer     string     `json:"timer"`                // "cupti", "cuda events"
	TimerNote string     `json:"timer_note,omitempty"` // why CUPTI was not used, where it was asked for
	ColdL2    bool       `json:"cold_l2"`
	TrialsNS  [][]int64  `json:"trials_ns"`
	MedianNS  float64    `json:"median_ns"` // the official figure: mean over trials of the trial's median
	MinNS     int64      `json:"min_ns"`
	N         int        `json:"n"`
	Q1NS      float64    `json:"q1_ns"` // quartiles
	Q2NS      float64    `json:"q2_ns"` // the median of all timings
	Q3NS      float64    `json:"q3_ns"`
	MeanNS    float64    `json:"mean_ns"`
	Interval  Interval   `json:"interval"`                // of the median of all timings
	Bytes     int64      `json:"bytes"`                   // of all input and output tensors
	Bandwidth float64    `json:"achieved_gb_s,omitempty"` // Bytes over the official figure, in 10^9 bytes a second
	Warnings  []string   `json:"warnings,omitempty"`      // what the figures should be read with
	Truncated bool       `json:"truncated,omitempty"`     // a time limit ended the measurement
	Kernels   []Activity `json:"kernels,omitempty"`       // of one call, in order of their start; none with events
	Stamp     *Stamp     `json:"stamp,omitempty"`
	Measured  int        `json:"measured"`            // how often the workload was measured; these are the last timings
	Disturbed []string   `json:"disturbed,omitempty"` // sentences that say why the timings are in doubt

	Warm      *Timings `json:"warm,omitempty"`       // on a warm L2, right after
	Baseline  *Timings `json:"baseline,omitempty"`   // of the run's baseline, trials taken in turn with these
	CopyNS    float64  `json:"copy_ns,omitempty"`    // of a copy that moves Bytes, half of them read and half written
	EmptyNS   float64  `json:"empty_ns,omitempty"`   // of an empty kernel
	CopyShare float64  `json:"copy_share,omitempty"` // CopyNS over the official figure: the share of the copy's bandwidth
}

// Timings are those of a measurement beside a workload's own. Figures are as in Samples.
type Timings struct {
	Timer     string    `json:"timer"`
	ColdL2    bool      `json:"cold_l2"`
	TrialsNS  [][]int64 `json:"trials_ns"`
	MedianNS  float64   `json:"median_ns"`
	N         int       `json:"n"`
	Interval  Interval  `json:"interval"`
	Disturbed []string  `json:"disturbed,omitempty"`
}

// A Floor is what no solution can beat on this GPU: the time of an empty kernel, or of a plain copy.
type Floor struct {
	Kind  string `json:"kind"`            // "empty", "copy"
	Bytes int64  `json:"bytes,omitempty"` // that the copy moves: half of them read, half written
	Shape string `json:"shape,omitempty"` // of the copy, the fastest of some
	Timings
}

// An Interval is where a median lies with a Confidence of 0.95, or a little more; of less than 6 timings it is their
// range, at whatever confidence that has (stats.Summarize).
type Interval struct {
	LoNS       float64 `json:"lo_ns"`
	HiNS       float64 `json:"hi_ns"`
	Width      float64 `json:"relative_width"` // (hi - lo) / median
	Confidence float64 `json:"confidence"`
}

// Evaluated is a verdict: the official trace with its evaluation, and the facts that the format lacks.
type Evaluated struct {
	Index   int          `json:"index"`
	Trace   *trace.Trace `json:"trace"`             // the official trace line
	Detail  string       `json:"detail,omitempty"`  // one line: the worst element, or the error
	Ratio   *float64     `json:"speedup,omitempty"` // over a baseline that is not the reference: its latency over this one
	Seconds float64      `json:"seconds"`           // wall clock of the whole workload
}

// UnmarshalJSON refuses a trace without an evaluation.
func (e *Evaluated) UnmarshalJSON(data []byte) error {
	type fields Evaluated
	if err := json.Unmarshal(data, (*fields)(e)); err != nil {
		return err
	}
	if e.Trace == nil || e.Trace.Evaluation == nil {
		return errors.New("event: a verdict without an evaluation")
	}
	return nil
}

// Status is the verdict in the contest's words.
func (e *Evaluated) Status() trace.Status { return e.Trace.Evaluation.Status }

// Passed reports whether the workload passed.
func (e *Evaluated) Passed() bool { return e.Status() == trace.Passed }

// Axes returns the axes of the workload.
func (e *Evaluated) Axes() map[string]int { return maps.Collect(e.Trace.Workload.Axes.All()) }

// Log returns the log of the evaluation.
func (e *Evaluated) Log() string { return e.Trace.Evaluation.Log }

// Latency returns the official latency in milliseconds; nil if it was not measured.
func (e *Evaluated) Latency() *float64 {
	if p := e.Trace.Evaluation.Performance; p != nil && p.LatencyMS > 0 {
		return &p.LatencyMS
	}
	return nil
}

// Speedup returns the baseline's latency over this one; nil without a baseline that passes.
func (e *Evaluated) Speedup() *float64 {
	if p := e.Trace.Evaluation.Performance; e.Ratio == nil && p != nil && p.SpeedupFactor > 0 {
		return &p.SpeedupFactor
	}
	return e.Ratio
}

// Errors returns the largest absolute and relative errors; nil if outputs were not compared. e may be nil.
func (e *Evaluated) Errors() (abs, rel *float64) {
	if e == nil || e.Trace.Evaluation.Correctness == nil {
		return nil, nil
	}
	c := e.Trace.Evaluation.Correctness
	return &c.MaxAbsoluteError, &c.MaxRelativeError
}

// A Message is one sentence, and what to do about it.
type Message struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
	Log  string `json:"log,omitempty"` // of failed: what the solution, or what runs it, has said
}

// Contradiction is the Check of a finding about a stream that cannot be what one run has told: a verdict that stands
// twice, numbers out of order, totals or an exit status that are not those of the verdicts; of a job, also lines that
// its agent has not signed, or that are missing. The workload then has no verdict.
const Contradiction = "contradiction"

// A Finding is something that a solution does and an honest one does not. The verdict stays the contest's.
type Finding struct {
	Check string `json:"check"`           // its name: "cached-by-pointer", "race", ...
	Place string `json:"place,omitempty"` // file:line:column in the source, or a kernel, which it is about
	Text  string `json:"text"`
}

// Told are the findings of a run that were shown, with the workload of each.
type Told map[[2]string]string

// Text returns the text of f on a workload to be shown; it is short if the same finding was shown before.
func (t Told) Text(f *Finding, workload string) string {
	key := [2]string{f.Check, cmp.Or(f.Place, f.Text)}
	first, again := t[key]
	switch {
	case !again:
		t[key] = plain.Short(workload)
		return f.Text
	case f.Place != "":
		return f.Place + ": as on " + first
	}
	return "as on " + first
}

// Done closes a run.
type Done struct {
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`            // judged, and not PASSED
	Missing int     `json:"missing"`           // without a verdict
	Left    int     `json:"not_run,omitempty"` // of these: the run's budget was spent
	Seconds float64 `json:"seconds"`

	Findings int      `json:"findings,omitempty"`
	Score    *float64 `json:"score,omitempty"`  // mean speed-up, 0 where a workload fails; absent without a baseline
	Scored   int      `json:"scored,omitempty"` // workloads that the mean is over: those that the baseline passes
}

// A Sink takes events in order. It must not keep the pointers in an event beyond the call.
type Sink func(Event) error

// A Stream numbers events and hands each to every sink. Emit may be called from several goroutines.
type Stream struct {
	mu    sync.Mutex
	seq   int64
	sinks []Sink
	err   error
	now   func() time.Time
}

// NewStream returns a stream into sinks.
func NewStream(sinks ...Sink) *Stream {
	return &Stream{sinks: sinks, now: time.Now}
}

// Emit sets the number and time of e and passes it on. A sink that fails gets no further events.
func (s *Stream) Emit(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	e.Seq, e.Time = s.seq, s.now()
	for i, sink := range s.sinks {
		if sink == nil {
			continue
		}
		if err := sink(e); err != nil {
			s.sinks[i] = nil
			if s.err == nil {
				s.err = err
			}
		}
	}
}

// Err is the first error of a sink.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Marshal gives the line of e, with its newline.
func Marshal(e Event) ([]byte, error) {
	line, err := json.Marshal(e)
	return append(line, '\n'), err
}
