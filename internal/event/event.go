// Package event defines the stream of events of a run. The terminal view, --json, the run folder and a remote client
// all render it. Each event is one JSON object on its own line. Readers ignore unknown event types and keys.
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

// Schema is the version of the stream. Additions do not change it.
const Schema = "fisub.event/1"

// A Type is the kind of an event. It determines the payload.
type Type string

const (
	TypeRun       Type = "run"       // a run begins; first event of a stream
	TypeBuilding  Type = "building"  // the solution is being compiled
	TypeBuilt     Type = "built"     // the solution is ready
	TypeStarted   Type = "started"   // a workload begins
	TypeSamples   Type = "samples"   // a workload was timed
	TypeEvaluated Type = "evaluated" // a workload has its verdict
	TypeFailed    Type = "failed"    // a workload has no verdict: it could not be judged
	TypeWarning   Type = "warning"   // a caveat about the result
	TypeFloor     Type = "floor"     // a roofline copy or an empty kernel was timed
	TypeDone      Type = "done"      // the run ended; last event of a stream
	TypeJob       Type = "job"       // a remote job changed state; may precede the run event
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
	Message   *Message   `json:"message,omitempty"` // of failed events, and of warnings that are not findings
	Finding   *Finding   `json:"finding,omitempty"` // of warnings about the solution's behaviour on one workload
	Floor     *Floor     `json:"floor,omitempty"`
	Done      *Done      `json:"done,omitempty"`

	// Only in a remote run, which merges the streams of several jobs:
	JobState *JobChange `json:"job_state,omitempty"`
	Place    string     `json:"place,omitempty"`  // host and GPU: "lab: gpu04 gpu 1"
	Job      string     `json:"job,omitempty"`    // the job that sent the event
	Origin   int64      `json:"origin,omitempty"` // line number in that job's stream, from 1
}

// A Payload describes a payload of an event.
type Payload struct {
	Key   string // in JSON
	Types []Type // whose events may have it; an event has one payload, or none if no payload has its type
	Set   bool
}

// Payloads returns all payloads in the order of e's fields, and which of them e has.
func (e *Event) Payloads() []Payload {
	return []Payload{
		{"run", []Type{TypeRun}, e.Run != nil},
		{"built", []Type{TypeBuilt}, e.Built != nil},
		{"started", []Type{TypeStarted}, e.Started != nil},
		{"samples", []Type{TypeSamples}, e.Samples != nil},
		{"evaluated", []Type{TypeEvaluated}, e.Evaluated != nil},
		{"message", []Type{TypeFailed, TypeWarning}, e.Message != nil},
		{"finding", []Type{TypeWarning}, e.Finding != nil},
		{"floor", []Type{TypeFloor}, e.Floor != nil},
		{"done", []Type{TypeDone}, e.Done != nil},
		{"job_state", []Type{TypeJob}, e.JobState != nil},
	}
}

// NeedsRun reports whether e makes sense only after a run event. Readers ignore such an event before the first one.
func (e *Event) NeedsRun() bool {
	return e.Type == TypeBuilding || e.Type == TypeFailed || e.Built != nil || e.Started != nil || e.Samples != nil ||
		e.Evaluated != nil || e.Finding != nil || e.Floor != nil || e.Done != nil
}

// A JobChange is the new state of a remote job: a phase of package remote, "sending" or "ended".
type JobChange struct {
	Phase  string  `json:"phase"`
	Text   string  `json:"text,omitempty"`
	Device *Device `json:"device,omitempty"` // in the first report from the host
	Host   *Host   `json:"host,omitempty"`
}

// A Run describes a run. It is also the content of run.json.
type Run struct {
	Schema      string        `json:"schema"`
	ID          string        `json:"id"`
	Started     time.Time     `json:"started"`
	Fisub       string        `json:"fisub"` // version of the program
	Command     []string      `json:"command"`
	Remote      bool          `json:"remote,omitempty"`  // fisub remote ran it, on hosts
	Solution    string        `json:"solution"`          // name
	Variant     string        `json:"variant,omitempty"` // of a sweep: the values of the constants, "TILE=16 STAGES=2"
	Author      string        `json:"author"`
	Folder      string        `json:"folder,omitempty"`  // source folder, relative to the project; "" if packed
	Sources     []string      `json:"sources,omitempty"` // in Folder
	Language    string        `json:"language"`
	Binding     string        `json:"binding,omitempty"`                   // "tvm-ffi", "torch"
	ContentHash string        `json:"content_hash"`                        // as the contest computes it
	DPS         bool          `json:"destination_passing_style,omitempty"` // not part of the content hash
	Definition  string        `json:"definition"`
	Set         string        `json:"set"`
	Seed        uint64        `json:"seed,omitempty"`  // seed of the generated inputs; 0: the usual ones
	Whole       int           `json:"whole,omitempty"` // workloads in the set, if only some of them run
	Workloads   []WorkloadRef `json:"workloads"`
	BudgetS     float64       `json:"budget_s,omitempty"` // no workload starts after this time, except the first
	Profile     Profile       `json:"profile"`
	Timer       string        `json:"timer,omitempty"`    // as requested: "auto", "cupti", "events"
	Baseline    *Baseline     `json:"baseline,omitempty"` // timed alternately with the solution
	Floors      bool          `json:"floors,omitempty"`   // also time an empty kernel and a copy of the same bytes
	Tolerance   Tolerance     `json:"tolerance"`
	Functions   bool          `json:"functions,omitempty"` // of the definition judge, by their own tolerances
	Ranking     string        `json:"ranking,omitempty"`   // of the task's board: "last", "mean" or "geom"
	Device      Device        `json:"device"`
	Checked     *Checked      `json:"looked,omitempty"` // mistakes looked for, besides wrong outputs
	Host        Host          `json:"host"`
	Git         *Git          `json:"git,omitempty"`

	// Secret determines what the honesty checks draw: changed elements and rows, judged calls, addresses. Submitted
	// code must not know it while it runs. KnownSecret means that it may: findings count, their absence proves nothing.
	Secret      string `json:"secret,omitempty"`       // of the honesty checks; in run.json once the run has ended
	KnownSecret bool   `json:"known_secret,omitempty"` // the secret was given with --secret
}

// Selection describes the workloads: "20 workloads of set default", "5 of the 54 workloads of set contest".
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

// Name returns the name of the solution with its variant.
func (r *Run) Name() string { return strings.TrimSpace(r.Solution + " " + r.Variant) }

// A Baseline is the solution that latencies are compared with.
type Baseline struct {
	Name        string `json:"name"` // as requested
	Solution    string `json:"solution"`
	ContentHash string `json:"content_hash"`
}

// Text returns the name and the hash, or "none" if b is nil.
func (b *Baseline) Text() string {
	if b == nil {
		return "none"
	}
	return b.Name + " " + plain.Short(b.ContentHash)
}

// Score returns the name of the mean speed-up over b: "contest score" only if b is the reference.
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
	Tests string         `json:"tests,omitempty"` // tested property, only in set edge: "scale 0"
}

// A Profile sets the number of calls and trials and the time limits of a measurement (spec section 6).
type Profile struct {
	Name       string  `json:"name"`
	Warmup     int     `json:"warmup_runs"`
	Iterations int     `json:"iterations"`
	Trials     int     `json:"num_trials"`
	TimeoutS   float64 `json:"timeout_s"`            // wall clock for one workload
	Target     float64 `json:"target,omitempty"`     // add trials until the interval is this narrow; 0: add none
	MaxTimeS   float64 `json:"max_time_s,omitempty"` // limit for timing one workload; 0: none
}

// Checked lists the mistakes that a run looks for.
type Checked struct {
	For []string `json:"for"`           // each with the calls that are examined
	Not []string `json:"not,omitempty"` // mistakes that this device or language cannot show
}

// String returns one sentence.
func (l *Checked) String() string {
	text := "checked for: " + strings.Join(l.For, "; ")
	if len(l.Not) > 0 {
		text += "; not checked for: " + strings.Join(l.Not, ", ")
	}
	return text
}

// Short returns at most 100 columns: a mistake of each of the first two lists, one that is not looked for, and counts.
func (l *Checked) Short() string {
	var some []string
	n := -len(l.For[:min(len(l.For), 2)])
	for i, text := range l.For {
		_, list, _ := strings.Cut(text, ": ")
		mistakes := strings.Split(list, ", ")
		if n += len(mistakes); i < 2 {
			some = append(some, mistakes[0])
		}
	}
	more := func(n int) string {
		if n <= 0 {
			return ""
		}
		return fmt.Sprintf(", %d more", n)
	}
	text := "checked: " + strings.Join(some, ", ") + more(n)
	if len(l.Not) > 0 {
		text += "; not: " + l.Not[0] + more(len(l.Not)-1)
	}
	return text + "; -v: all"
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

	// Confined names the mechanisms that keep the submission from the run's files and processes.
	Confined string `json:"confined,omitempty"`
}

// Git is the state of the repository that contains the solution.
type Git struct {
	Commit string `json:"commit"`
	Dirty  bool   `json:"dirty"`
}

// Built is the result of building the solution.
type Built struct {
	OK      bool    `json:"ok"`
	Cached  bool    `json:"cached"` // nothing was compiled; always false for Python builds
	Seconds float64 `json:"seconds"`
	Log     string  `json:"log,omitempty"` // the compiler's output
}

// Started starts a workload: number Index of Total, from 1.
type Started struct {
	Index int            `json:"index"`
	Total int            `json:"total"`
	Axes  map[string]int `json:"axes"`
}

// Samples holds the timings of one workload, in nanoseconds, one row per trial. All figures except MedianNS are over
// the timings of all trials together.
type Samples struct {
	Timer     string     `json:"timer"`                // "cupti", "cuda events"
	TimerNote string     `json:"timer_note,omitempty"` // why CUPTI was requested but not used
	ColdL2    bool       `json:"cold_l2"`
	TrialsNS  [][]int64  `json:"trials_ns"`
	MedianNS  float64    `json:"median_ns"` // official latency: the mean over trials of each trial's median
	MinNS     int64      `json:"min_ns"`
	N         int        `json:"n"`
	Q1NS      float64    `json:"q1_ns"` // quartiles
	Q2NS      float64    `json:"q2_ns"` // the median of all timings
	Q3NS      float64    `json:"q3_ns"`
	MeanNS    float64    `json:"mean_ns"`
	Interval  Interval   `json:"interval"`                // confidence interval of Q2NS
	Bytes     int64      `json:"bytes"`                   // of all input and output tensors
	Bandwidth float64    `json:"achieved_gb_s,omitempty"` // Bytes / MedianNS, in 10^9 bytes a second
	PeakShare float64    `json:"peak_share,omitempty"`    // Bandwidth over the memory's by specification
	Warnings  []string   `json:"warnings,omitempty"`      // caveats about the figures
	Truncated bool       `json:"truncated,omitempty"`     // a time limit ended the measurement
	Kernels   []Activity `json:"kernels,omitempty"`       // of one call, in order of start; empty with CUDA events
	Stamp     *Stamp     `json:"stamp,omitempty"`
	Measured  int        `json:"measured"`            // number of measurements; only the last one's timings are kept
	Disturbed []string   `json:"disturbed,omitempty"` // reasons to doubt the timings, as sentences

	Warm      *Timings `json:"warm,omitempty"`       // with a warm L2, measured right afterwards
	Baseline  *Timings `json:"baseline,omitempty"`   // of the run's baseline, its trials alternating with these
	Board     *Board   `json:"board,omitempty"`      // as the task's board computes it
	CopyNS    float64  `json:"copy_ns,omitempty"`    // roofline copy of Bytes, half read and half written
	EmptyNS   float64  `json:"empty_ns,omitempty"`   // of an empty kernel
	CopyShare float64  `json:"copy_share,omitempty"` // CopyNS / MedianNS: the fraction of the copy's bandwidth
}

// Timings is an additional measurement of a workload, with figures as in Samples.
type Timings struct {
	Timer     string    `json:"timer"`
	ColdL2    bool      `json:"cold_l2"`
	TrialsNS  [][]int64 `json:"trials_ns"`
	MedianNS  float64   `json:"median_ns"`
	N         int       `json:"n"`
	Interval  Interval  `json:"interval"`
	Disturbed []string  `json:"disturbed,omitempty"`
}

// A Board is the figure of a task's own judge: the mean of the times between CUDA events, with a cold L2, of as many
// calls as its rule asks for. Times are in nanoseconds.
type Board struct {
	Runs  int     `json:"runs"`
	Mean  float64 `json:"mean_ns"`
	Err   float64 `json:"err_ns"` // standard error of the mean
	Best  float64 `json:"best_ns"`
	Worst float64 `json:"worst_ns"`
}

// A Floor is a lower bound on this GPU's latencies: the time of an empty kernel or of a roofline copy.
type Floor struct {
	Kind  string `json:"kind"`            // "empty", "copy"
	Bytes int64  `json:"bytes,omitempty"` // moved by the copy: half read, half written
	Shape string `json:"shape,omitempty"` // of the fastest copy tried
	Timings
}

// An Interval contains the median with a Confidence of at least 0.95. With fewer than 6 timings it is their range, and
// its Confidence may be lower (stats.Summarize).
type Interval struct {
	LoNS       float64 `json:"lo_ns"`
	HiNS       float64 `json:"hi_ns"`
	Width      float64 `json:"relative_width"` // (hi - lo) / median
	Confidence float64 `json:"confidence"`
}

// Evaluated is a verdict: the official trace, and facts that the trace cannot hold.
type Evaluated struct {
	Index   int          `json:"index"`
	Trace   *trace.Trace `json:"trace"`             // the official trace line
	Detail  string       `json:"detail,omitempty"`  // one line: the worst element, or the error
	Ratio   *float64     `json:"speedup,omitempty"` // speed-up over a baseline other than the reference
	Seconds float64      `json:"seconds"`           // wall clock of the whole workload
	Maps    []Map        `json:"maps,omitempty"`    // of the wrong outputs
	Source  []Excerpt    `json:"source,omitempty"`  // of the place of the fault or a warning; of both places of a race
}

// UnmarshalJSON rejects a trace without an evaluation. It drops maps and excerpts that this version cannot show.
func (e *Evaluated) UnmarshalJSON(data []byte) error {
	type fields Evaluated
	if err := json.Unmarshal(data, (*fields)(e)); err != nil {
		return err
	}
	if e.Trace == nil || e.Trace.Evaluation == nil {
		return errors.New("event: verdict without an evaluation")
	}
	e.Maps = validOnly(e.Maps, mostMaps, (*Map).valid)
	e.Source = validOnly(e.Source, mostExcerpts, (*Excerpt).valid)
	return nil
}

// A Map shows which elements of an output of the first wrong call are wrong, over the two axes of the output along
// which they are spread least evenly. The classes of wrong elements, the worst last: a, an error of at most 10 times
// the tolerance; b, at most 100 times; c, more; n, a result that is not finite; u, an element that the call did not
// write.
type Map struct {
	Output   string   `json:"output"`
	Text     string   `json:"text"`     // "12 elements wrong: all with head index 1"
	Elements int      `json:"elements"` // number of compared elements
	Counts   [5]int   `json:"counts"`   // of wrong elements, by class
	Down     MapAxis  `json:"down"`     // of the rows of cells; its size is 1 if only one axis has several indices
	Across   MapAxis  `json:"across"`   // of the cells of a row
	Cells    []string `json:"cells"`    // rows: the worst class in each cell, a capital if most of it is wrong, or "."
}

// A MapAxis is an axis of the output. Each cell has Size / 64 of its indices, rounded up; the last one may have fewer.
type MapAxis struct {
	Name string `json:"name"` // may be empty
	Size int    `json:"size"` // number of indices
}

// An Excerpt is a part of a source file around a place that a fault or a finding names.
type Excerpt struct {
	File   string   `json:"file"`             // as the solution names it
	Line   int      `json:"line"`             // of the place, from 1
	Column int      `json:"column,omitempty"` // of the place in characters, from 1; 0: unknown
	First  int      `json:"first"`            // number of the first of Lines
	Lines  []string `json:"lines"`            // at most 7, cut to 200 characters
}

// Status returns the verdict, as the contest spells it.
func (e *Evaluated) Status() trace.Status { return e.Trace.Evaluation.Status }

// Passed reports whether the workload passed.
func (e *Evaluated) Passed() bool { return e.Status() == trace.Passed }

// Axes returns the axes of the workload.
func (e *Evaluated) Axes() map[string]int { return maps.Collect(e.Trace.Workload.Axes.All()) }

// Log returns the log of the evaluation.
func (e *Evaluated) Log() string { return e.Trace.Evaluation.Log }

// Latency returns the official latency in milliseconds, or nil if it was not measured.
func (e *Evaluated) Latency() *float64 {
	if p := e.Trace.Evaluation.Performance; p != nil && p.LatencyMS > 0 {
		return &p.LatencyMS
	}
	return nil
}

// Speedup returns the baseline's latency divided by this one, or nil without a baseline that passes. e may be nil.
func (e *Evaluated) Speedup() *float64 {
	if e == nil {
		return nil
	} else if p := e.Trace.Evaluation.Performance; e.Ratio == nil && p != nil && p.SpeedupFactor > 0 {
		return &p.SpeedupFactor
	}
	return e.Ratio
}

// Errors returns the largest absolute and relative errors, or nil if no outputs were compared. e may be nil.
func (e *Evaluated) Errors() (abs, rel *float64) {
	if e == nil || e.Trace.Evaluation.Correctness == nil {
		return nil, nil
	}
	c := e.Trace.Evaluation.Correctness
	return &c.MaxAbsoluteError, &c.MaxRelativeError
}

// A Message is one sentence, with an optional hint.
type Message struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
	Log  string `json:"log,omitempty"` // of failed events: output of the solution or of the program that runs it
}

// Contradiction is the Check of a finding about an impossible stream: two verdicts on a workload, an event before the
// run event, numbers out of order, totals or an exit status that disagree with the verdicts, missing or unsigned lines
// of a job, or claims that disagree with what the client knows. The workload then has no verdict.
const Contradiction = "contradiction"

// A Finding reports something that no honest solution does. The contest's verdict stays the same.
type Finding struct {
	Check string `json:"check"`           // name of the check: "cached-by-pointer", "race", ...
	Place string `json:"place,omitempty"` // file:line:column in the source, or a kernel
	Text  string `json:"text"`

	Source []Excerpt `json:"source,omitempty"` // of the places in Place and Text
}

// UnmarshalJSON drops excerpts that this version cannot show.
func (f *Finding) UnmarshalJSON(data []byte) error {
	type fields Finding
	err := json.Unmarshal(data, (*fields)(f))
	f.Source = validOnly(f.Source, mostExcerpts, (*Excerpt).valid)
	return err
}

// Shown records the findings already shown, each with the workload it was shown for. A nil Shown records nothing.
type Shown map[[2]string]string

// Text returns the text to show for f on a workload. It is short if the finding was shown before.
func (t Shown) Text(f *Finding, workload string) string {
	key := [2]string{f.Check, cmp.Or(f.Place, f.Text)}
	first, again := t[key]
	switch {
	case t == nil:
		return f.Text
	case !again:
		t[key] = plain.Short(workload)
		return f.Text
	case f.Place != "":
		return f.Place + ": as on " + first
	}
	return "as on " + first
}

// Done ends a run and holds its totals.
type Done struct {
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`            // judged, but not PASSED
	Missing int     `json:"missing"`           // without a verdict
	Left    int     `json:"not_run,omitempty"` // of Missing: not started because the budget was spent
	Seconds float64 `json:"seconds"`

	Findings int      `json:"findings,omitempty"`
	Score    *float64 `json:"score,omitempty"`    // mean speed-up; 0 if a workload fails, absent without a baseline
	BoardNS  *float64 `json:"board_ns,omitempty"` // the board's score, from Samples.Board of all workloads
	Scored   int      `json:"scored,omitempty"`   // workloads in the mean: those that the baseline passes

	Secret string `json:"secret,omitempty"` // from which the honesty checks drew
}

// A Sink receives events in order. It must not keep pointers from an event.
type Sink func(Event) error

// A Stream numbers events and passes each to every sink. Emit may be called concurrently.
type Stream struct {
	mu    sync.Mutex
	seq   int64
	sinks []Sink
	err   error
}

// NewStream returns a stream that writes to sinks.
func NewStream(sinks ...Sink) *Stream { return &Stream{sinks: sinks} }

// Emit sets the number and time of e and passes it to the sinks. A sink that fails gets no further events.
func (s *Stream) Emit(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	e.Seq, e.Time = s.seq, time.Now()
	for i, sink := range s.sinks {
		if sink == nil {
			continue
		}
		if err := sink(e); err != nil {
			s.sinks[i] = nil
			s.err = cmp.Or(s.err, err)
		}
	}
}

// Err returns the first error of a sink.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Marshal returns e as a line, including the newline.
func Marshal(e Event) ([]byte, error) {
	line, err := json.Marshal(e)
	return append(line, '\n'), err
}

// A Device describes a GPU or the virtual GPU.
type Device struct {
	Kind            string `json:"kind"`             // "cuda", "emu"
	Name            string `json:"name"`             // "NVIDIA H200"; the CPU's name for the virtual GPU
	Arch            string `json:"arch,omitempty"`   // "sm_90"; "" for the virtual GPU
	Ordinal         int    `json:"ordinal"`          // index among the devices of its kind
	Driver          string `json:"driver,omitempty"` // driver version; "" for the virtual GPU
	CUDA            string `json:"cuda,omitempty"`   // version of the runtime linked with the kernel, "13.0"
	Emulated        bool   `json:"emulated"`
	Toolchain       string `json:"toolchain"` // compiler name and version, as it reports them
	UUID            string `json:"uuid,omitempty"`
	L2Bytes         int64  `json:"l2_bytes,omitempty"`
	MemoryBytes     int64  `json:"memory_bytes,omitempty"`
	Multiprocessors int    `json:"multiprocessors,omitempty"`
	Bandwidth       int64  `json:"bandwidth,omitempty"` // of the memory, in bytes a second, from its clock; 0: unknown

	Libs map[string]string `json:"libs,omitempty"` // versions of a solution's libraries: torch, triton, tilelang, cuda
}

// Hardware returns the device's name in official traces.
func (d *Device) Hardware() string {
	if d.Emulated {
		return "emulator on " + d.Name
	}
	return d.Name
}

// An Activity is one kernel, copy or memset on the GPU. Sizes are in bytes.
type Activity struct {
	Kind               string `json:"kind"`           // "kernel", "memcpy", "memset"
	Name               string `json:"name,omitempty"` // of a kernel, demangled if possible
	Grid               [3]int `json:"grid,omitzero"`
	Block              [3]int `json:"block,omitzero"`
	Registers          int    `json:"registers,omitempty"` // per thread
	StaticSharedBytes  int    `json:"static_shared_bytes,omitempty"`
	DynamicSharedBytes int    `json:"dynamic_shared_bytes,omitempty"`
	LocalBytes         int    `json:"local_bytes,omitempty"` // per thread
	Bytes              int64  `json:"bytes,omitempty"`       // copied or set

	MedianNS float64 `json:"median_ns,omitempty"` // time of this activity alone, over the calls of the first trial
}

// String returns "kernel NAME" or the like.
func (a Activity) String() string {
	if a.Kind == "kernel" {
		return "kernel " + a.Name
	}
	return fmt.Sprintf("%s of %d bytes", a.Kind, a.Bytes)
}

// A Stamp is the state of the GPU while a workload was timed, from NVML. Unavailable values are zero, and Note says so.
type Stamp struct {
	Before          Reading      `json:"before"` // after the warm-up calls
	After           Reading      `json:"after"`
	During          During       `json:"during"`
	ThrottleReasons []string     `json:"throttle_reasons,omitempty"` // all reasons seen
	OtherProcesses  []GPUProcess `json:"other_processes,omitempty"`
	ECC             bool         `json:"ecc"`
	ECCErrors       int64        `json:"ecc_errors"`    // uncorrected, since the driver was loaded
	ClocksLocked    bool         `json:"clocks_locked"` // the user's clock settings limited the clocks
	MIG             bool         `json:"mig"`
	Note            string       `json:"note,omitempty"`
}

// A Reading is the state at one moment.
type Reading struct {
	SMClockMHz     int     `json:"sm_clock_mhz"`
	MemoryClockMHz int     `json:"memory_clock_mhz"`
	TemperatureC   int     `json:"temperature_c"`
	PowerW         float64 `json:"power_w"`
}

// During summarizes N readings. It is zero if N is 0.
type During struct {
	N      int     `json:"n"`
	Min    Reading `json:"min"` // each field separately, as for Median and Max
	Median Reading `json:"median"`
	Max    Reading `json:"max"`
}

// A GPUProcess is a process with memory on the GPU.
type GPUProcess struct {
	PID         int    `json:"pid"` // as the driver reports it; may differ in a container
	Name        string `json:"name,omitempty"`
	MemoryBytes int64  `json:"memory_bytes"`
	SMPercent   int    `json:"sm_percent"` // share of the multiprocessors' time; -1: unknown
}
