package runs

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"fisub/internal/event"
	"fisub/runs/stats"
)

// A Summary is the content of a run's events so far. It is the only place that counts verdicts.
//
// The events also show whether only the judge wrote them: a verdict before the run has begun, and in numbered events
// numbers out of order, a second verdict for a workload, or totals that differ from the verdicts retract all verdicts.
type Summary struct {
	Run      *event.Run      `json:"run,omitempty"` // the latest, if resumed; nil before the run has begun
	Rows     []Row           `json:"workloads"`     // judged or impossible to judge, in the order they ran
	Started  int             `json:"started"`       // begun but unfinished: 1 in a run that is running or was killed
	Done     *event.Done     `json:"done,omitempty"`
	Warnings []event.Message `json:"warnings,omitempty"`
	Places   []Origin        `json:"places,omitempty"` // of a remote run, in the order in which they began

	// Origins holds, for each job of a remote run, the last line of its stream that events came from.
	Origins map[string]int64 `json:"-"`

	// Ending describes the end of a remote run's last job if no host ran it, such as "refused: ..."; otherwise "".
	Ending string `json:"-"`

	// Against is the first contradiction in the events, or "".
	Against string `json:"-"`

	// Single is set if one process has written all events. In a run folder each process begins with number 1.
	Single bool `json:"-"`

	seq     int64
	at      map[string]int // the index in Rows of each workload
	begun   map[string]bool
	samples map[string]*event.Samples // of workloads without a verdict
	seconds float64
	left    int
	secret  string

	retracted bool // the verdicts of all rows, because of Against
}

// An Origin is the place of a part of a remote run.
type Origin struct {
	Name   string       `json:"place"`
	Device event.Device `json:"device"`
	Host   event.Host   `json:"host"`
}

// A Row is one workload. If a workload was judged more than once, the first verdict counts.
type Row struct {
	UUID      string           `json:"workload"`
	Axes      map[string]int   `json:"axes,omitempty"`      // nil if they are not known
	Samples   *event.Samples   `json:"samples,omitempty"`   // nil if it was not timed
	Evaluated *event.Evaluated `json:"evaluated,omitempty"` // nil if it could not be judged
	Unjudged  *event.Message   `json:"failed,omitempty"`    // why it could not be judged
	Findings  []event.Finding  `json:"findings,omitempty"`  // of the honesty checks
	Place     string           `json:"place,omitempty"`     // of a remote run: the Name of one of its Places
}

// Passed reports whether the workload passed.
func (r *Row) Passed() bool { return r.Evaluated != nil && r.Evaluated.Passed() }

func (r *Row) retract(why *event.Finding) {
	r.Evaluated, r.Samples = nil, nil
	r.Unjudged = &event.Message{Text: "untrusted verdict: " + why.Text,
		Hint: "another program has written to the run: fisub help trust"}
	r.Findings = append(r.Findings, *why)
}

// Score adds the workload, if it has a verdict, to the contest's score.
func (r *Row) Score(s *stats.Score) {
	switch {
	case r.Evaluated == nil:
	case !r.Passed():
		s.Fail()
	case r.Evaluated.Speedup() != nil:
		s.Add(*r.Evaluated.Speedup())
	}
}

// Clone returns a copy of s that accepts the events of another process.
func (s *Summary) Clone() Summary {
	c := *s
	c.seq = 0
	c.Rows, c.Warnings, c.Places = slices.Clone(s.Rows), slices.Clone(s.Warnings), slices.Clone(s.Places)
	c.Origins, c.begun, c.samples, c.at = maps.Clone(s.Origins), maps.Clone(s.begun), maps.Clone(s.samples), nil
	return c
}

// Row returns the row of a workload, or nil.
func (s *Summary) Row(uuid string) *Row {
	if s.at == nil || len(s.at) != len(s.Rows) {
		s.at = map[string]int{}
		for i, row := range s.Rows {
			s.at[row.UUID] = i
		}
	}
	if i, ok := s.at[uuid]; ok {
		return &s.Rows[i]
	}
	return nil
}

// Judged reports whether a workload has a verdict.
func (s *Summary) Judged(uuid string) bool {
	row := s.Row(uuid)
	return row != nil && row.Evaluated != nil
}

// Timer returns the timer of the last timed workload, or "".
func (s *Summary) Timer() string {
	for _, row := range slices.Backward(s.Rows) {
		if row.Samples != nil {
			return row.Samples.Timer
		}
	}
	return ""
}

// Totals counts verdicts. The score covers the workloads that the baseline passes; it is nil until all have a
// verdict.
func (s *Summary) Totals() event.Done {
	d := event.Done{Seconds: s.seconds, Left: s.left, Secret: s.secret}
	var score stats.Score
	for i := range s.Rows {
		row := &s.Rows[i]
		d.Findings += len(row.Findings)
		row.Score(&score)
		if row.Passed() {
			d.Passed++
		} else if row.Evaluated != nil {
			d.Failed++
		}
	}
	total := len(s.Rows)
	if s.Run != nil {
		total = max(total, len(s.Run.Workloads))
	}
	d.Missing = total - d.Passed - d.Failed
	if value, n, ok := score.Value(); ok && d.Missing == 0 && s.Run != nil && s.Run.Baseline != nil {
		d.Score, d.Scored = &value, n
	}
	d.BoardNS = s.board(d.Passed)
	return d
}

// board returns the score of the task's board, or nil unless all workloads passed with its figure.
func (s *Summary) board(passed int) *float64 {
	if s.Run == nil || s.Run.Ranking == "" || passed < len(s.Run.Workloads) || passed < s.Run.Whole {
		return nil
	}
	sum, logs, last := 0.0, 0.0, 0.0
	for _, w := range s.Run.Workloads {
		row := s.Row(w.UUID)
		if row == nil || row.Samples == nil || row.Samples.Board == nil {
			return nil
		}
		last = row.Samples.Board.Mean
		sum, logs = sum+last, logs+math.Log(last)
	}
	n := float64(len(s.Run.Workloads))
	score := map[string]float64{"last": last, "mean": sum / n, "geom": math.Exp(logs / n)}[s.Run.Ranking]
	return &score
}

// Add adds the next event.
func (s *Summary) Add(e *event.Event) {
	s.number(e.Seq)
	if s.Run == nil && e.NeedsRun() && s.Against == "" {
		s.Against = fmt.Sprintf("event %s before the run event", e.Type)
	}
	if s.begun == nil {
		s.begun, s.samples, s.Origins = map[string]bool{}, map[string]*event.Samples{}, map[string]int64{}
	}
	if e.Job != "" {
		s.Origins[e.Job] = max(s.Origins[e.Job], e.Origin)
	}
	switch {
	case e.Run != nil:
		s.Run, s.Done, s.Ending, s.left, s.secret = e.Run, nil, "", 0, ""
	case e.JobState != nil && e.JobState.Device != nil && e.JobState.Host != nil:
		place := Origin{e.Place, *e.JobState.Device, *e.JobState.Host}
		if !slices.ContainsFunc(s.Places, func(p Origin) bool { return p.Name == place.Name }) {
			s.Places = append(s.Places, place)
		}
	case e.JobState != nil && e.JobState.Phase == "ended" && s.Run == nil:
		s.Ending = e.JobState.Text
	case e.Started != nil:
		s.begun[e.Workload] = true
		delete(s.samples, e.Workload)
	case e.Samples != nil:
		s.samples[e.Workload] = e.Samples
	case e.Evaluated != nil, e.Type == event.TypeFailed && e.Message != nil:
		s.verdict(e)
	case e.Finding != nil:
		if row := s.Row(e.Workload); row != nil && e.Finding.Check == event.Contradiction {
			row.retract(e.Finding)
		} else if row != nil {
			row.Findings = append(row.Findings, *e.Finding)
		}
	case e.Type == event.TypeWarning && e.Message != nil:
		s.Warnings = append(s.Warnings, *e.Message)
	case e.Done != nil:
		if d := s.Totals(); d.Passed != e.Done.Passed || d.Failed != e.Done.Failed {
			s.contradict(fmt.Sprintf("%d passed and %d failed, but its totals are %d and %d", d.Passed, d.Failed,
				e.Done.Passed, e.Done.Failed))
		}
		s.Done, s.seconds, s.left, s.secret = e.Done, e.Done.Seconds, e.Done.Left, e.Done.Secret
	}
	changed := e.Run != nil || e.Evaluated != nil || e.Type == event.TypeFailed || e.Finding != nil || e.Done != nil
	if s.Against != "" {
		changed = s.retract(e.Workload) || changed
	}
	if s.Started = len(s.begun); s.Done != nil && changed {
		s.Done = new(s.Totals())
	}
}

// retract retracts the verdicts of all rows, or only of workload if the others are retracted. It reports whether it
// retracted any.
func (s *Summary) retract(workload string) (any bool) {
	rows := s.Rows
	if s.retracted {
		if rows = nil; s.Row(workload) != nil {
			rows = s.Rows[s.at[workload]:][:1]
		}
	}
	s.retracted = true
	for i := range rows {
		if row := &rows[i]; row.Evaluated != nil {
			row.retract(&event.Finding{Check: event.Contradiction, Text: "contradictory events: " + s.Against})
			any = true
		}
	}
	return any
}

// verdict adds an event with a verdict, or with the reason for a missing one.
func (s *Summary) verdict(e *event.Event) {
	row := Row{UUID: e.Workload, Evaluated: e.Evaluated, Place: e.Place}
	if e.Evaluated != nil {
		row.Axes, row.Samples = e.Evaluated.Axes(), s.samples[e.Workload]
	} else {
		row.Unjudged = e.Message
	}
	delete(s.begun, e.Workload)
	delete(s.samples, e.Workload)
	switch old := s.Row(e.Workload); {
	case old == nil:
		s.at[e.Workload] = len(s.Rows)
		s.Rows = append(s.Rows, row)
	case old.Evaluated == nil && len(old.Findings) == 0:
		*old = row
	case old.Evaluated != nil && e.Evaluated != nil:
		s.contradict("two verdicts for workload " + e.Workload)
	}
}

// number checks the number of the next event. Events without one are not checked.
func (s *Summary) number(n int64) {
	if s.seq > 0 && n != s.seq+1 && (n != 1 || s.Single) {
		s.contradict(fmt.Sprintf("event %d follows event %d", n, s.seq))
	}
	s.seq = n
}

// Skip counts an event that cannot be read.
func (s *Summary) Skip() {
	if s.seq > 0 {
		s.seq++
	}
}

func (s *Summary) contradict(text string) {
	if s.Against == "" && s.seq > 0 {
		s.Against = text
	}
}

// Exited checks the exit status of the process that wrote the events against them. Statuses other than 0 and 3 say
// nothing about verdicts.
func (s *Summary) Exited(status int) {
	if d := s.Totals(); (status == 0 || status == 3) && (d.Failed > 0) != (status == 3) {
		s.contradict(fmt.Sprintf("%d of %d workloads failed, but the exit status is %d", d.Failed, d.Passed+d.Failed,
			status))
	}
}
