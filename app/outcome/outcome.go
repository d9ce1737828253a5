// Package outcome is what a command came to, as one object: what --json=final prints, for a program that decides by it
// what to do next. It says no more than the command's other output does.
package outcome

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fisub/bench/compare"
	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/preflight"
)

// Schema names the version of the object. Additions keep the version.
const Schema = "fisub.final/1"

// An Outcome is what one command came to. Its status is, of check, "sound" or "not sound"; of a run "passed", "not
// passed", "no verdict" or "findings"; of compare the verdict on B; of each of them "error" or "interrupted" where it
// came to nothing.
type Outcome struct {
	Schema  string `json:"schema"`
	Command string `json:"command"`     // its words behind fisub
	Status  string `json:"status"`      // see above
	Exit    int    `json:"exit_status"` // as fisub help exit-status has it

	Submission *Submission `json:"submission,omitempty"`   // that was run or checked, where it is one
	Run        *Run        `json:"run,omitempty"`          // of local and remote
	Score      *float64    `json:"score,omitempty"`        // mean speed-up over the baseline, 0 where a workload fails
	ScoreName  string      `json:"score_name,omitempty"`   // "contest score" where the baseline is the reference
	Worst      *Group      `json:"worst_group,omitempty"`  // of the workloads that share a value of an axis
	Fault      *Fault      `json:"first_fault,omitempty"`  // what to fix first
	Faults     int         `json:"faults,omitempty"`       // errors of check, workloads of a run that did not pass
	Compared   []Compared  `json:"compared,omitempty"`     // of compare: each of the others with A
	Warnings   []string    `json:"warnings,omitempty"`     // what the result should be read with
	Errors     []Message   `json:"errors,omitempty"`       // why the command came to nothing
	Next       string      `json:"next_command,omitempty"` // that tells most now
}

// A Submission names what was judged.
type Submission struct {
	Definition  string `json:"definition,omitempty"`
	Solution    string `json:"solution,omitempty"`     // name
	ContentHash string `json:"content_hash,omitempty"` // the contest's
}

// A Run says what ran.
type Run struct {
	ID        string `json:"id"`
	Set       string `json:"set"`
	Device    string `json:"device"`
	Emulated  bool   `json:"emulated"` // verdicts only: nothing was timed
	Workloads int    `json:"workloads"`
	Whole     int    `json:"whole,omitempty"` // workloads of the set, where some were left out
	Passed    int    `json:"passed"`
	Failed    int    `json:"failed"`
	Missing   int    `json:"missing"`           // without a verdict
	Left      int    `json:"not_run,omitempty"` // not among the missing: the run's budget was spent
	Findings  int    `json:"findings"`          // about what the solution does besides its outputs

	Looked *event.Looked `json:"looked,omitempty"` // besides wrong outputs
}

// A Group is the workloads of a run in which an axis has one value. The worst is the one of which the smallest share
// passed, and among equals the one with the smallest speed-up, or share of a copy's bandwidth.
type Group struct {
	Axis      string  `json:"axis"`
	Value     int     `json:"value"`
	Workloads int     `json:"workloads"` // that have a verdict
	Passed    int     `json:"passed"`
	Speedup   float64 `json:"mean_speedup,omitempty"`    // over the baseline
	CopyShare float64 `json:"mean_copy_share,omitempty"` // of the bandwidth that a copy of as many bytes has
}

// A Fault is one thing that is wrong, with its place where that is known.
type Fault struct {
	Code     string         `json:"code"`               // of a finding of check, or the status of a workload
	Workload string         `json:"workload,omitempty"` // uuid
	Axes     map[string]int `json:"axes,omitempty"`
	Text     string         `json:"text"`
	Hint     string         `json:"hint,omitempty"`
	File     string         `json:"file,omitempty"`
	Line     int            `json:"line,omitempty"`
	Column   int            `json:"column,omitempty"`
	Lines    []string       `json:"lines,omitempty"` // of the source, or the first of the log
}

// A Compared is what the comparison of B with A says.
type Compared struct {
	A       string `json:"a"` // id of the run
	B       string `json:"b"`
	Verdict string `json:"verdict"`         // on B
	Why     string `json:"why,omitempty"`   // where it does not come from timings
	Ratio   *Ratio `json:"ratio,omitempty"` // B's time over A's: below 1 is faster
	Timed   int    `json:"timed"`           // workloads that passed and were timed on both sides
	Faster  int    `json:"faster"`          // workloads
	Slower  int    `json:"slower"`
}

// A Ratio has its 95 % interval.
type Ratio struct {
	Value float64 `json:"value"`
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
}

// A Message is an error, and what to do about it.
type Message struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

// Write ends o with the exit status of the command, and writes it as one line.
func (o *Outcome) Write(w io.Writer, exit int) error {
	o.Schema, o.Exit = Schema, exit
	if exit == 130 {
		o.Status = "interrupted"
	} else if o.Status == "" {
		o.Status = "error"
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(o)
}

// Check takes what was found in a submission; of several, all errors count, and the first is told.
func (o *Outcome) Check(reports []*preflight.Report, strict bool) {
	o.Status, o.Next = "sound", "fisub local"
	for _, r := range reports {
		if !r.OK(strict) {
			o.Status, o.Next = "not sound", "fisub check"
		}
		for _, f := range r.Findings {
			switch {
			case f.Severity == preflight.Error || strict && f.Severity == preflight.Warning:
				o.Faults++
				if o.Fault == nil {
					o.Fault = &Fault{Code: f.Code, Text: f.Msg, Hint: f.Hint, File: plain.Relative(f.Path), Line: f.Line,
						Column: f.Col, Lines: first(f.Excerpt)}
				}
			case f.Severity == preflight.Warning:
				o.Warnings = append(o.Warnings, strings.SplitN(f.Text(), "\n", 2)[0])
			}
		}
	}
	if len(reports) == 1 && reports[0].Solution != nil {
		s := reports[0].Solution
		o.Submission = &Submission{Definition: s.Definition, Solution: s.Name, ContentHash: s.Hash()}
	}
}

// Of takes a run as its folder has it.
func (o *Outcome) Of(r *runs.Run) {
	if r.Run == nil {
		return
	}
	d := r.Run.Device
	o.Submission = &Submission{r.Run.Definition, r.Run.Solution, r.Run.ContentHash}
	o.Run = &Run{ID: r.ID, Set: r.Run.Set, Device: d.Name, Emulated: d.Emulated, Workloads: len(r.Run.Workloads),
		Whole: r.Run.Whole, Looked: r.Run.Looked}
	for _, row := range r.Rows {
		o.Run.Findings += len(row.Findings)
		switch e := row.Evaluated; {
		case e == nil:
		case e.Passed():
			o.Run.Passed++
		default:
			o.Run.Failed++
			if o.Fault == nil {
				o.Fault = &Fault{Code: string(e.Status()), Workload: row.UUID, Axes: row.Axes, Text: plain.Line(e.Detail),
					Lines: first(e.Log())}
				o.Fault.place(e.Detail + "\n" + e.Log())
			}
		}
	}
	if r.Done != nil {
		o.Run.Left = r.Done.Left
	}
	o.Run.Missing = o.Run.Workloads - o.Run.Passed - o.Run.Failed - o.Run.Left
	o.Faults = o.Run.Failed
	for _, w := range r.Warnings {
		o.Warnings = append(o.Warnings, plain.Line(w.Text))
	}
	if r.Done != nil && r.Run.Baseline != nil {
		if o.Score = r.Done.Score; o.Score != nil {
			o.ScoreName = r.Run.Baseline.Score()
		}
	}
	o.Worst = worst(r)
	o.Status, o.Next = verdict(r, o)
}

// verdict is the status of a run, and the command that tells most then.
func verdict(r *runs.Run, o *Outcome) (status, next string) {
	device := ""
	if o.Run.Emulated {
		device = " --device emu"
	}
	again := "fisub local --resume "
	if len(r.Places) > 0 {
		again = "fisub remote --resume "
	}
	switch f := o.Fault; {
	case f != nil && f.Code == "COMPILE_ERROR":
		return "not passed", "fisub check"
	case f != nil && (f.Code == "RUNTIME_ERROR" || f.Code == "TIMEOUT"):
		return "not passed", "fisub sanitize" + device + " --set " + o.Run.Set + " --workload " + plain.Short(f.Workload)
	case f != nil:
		return "not passed", "fisub local" + device + " --set " + o.Run.Set + " --workload " + plain.Short(f.Workload) +
			" --dump dump"
	case o.Run.Missing > 0:
		i := slices.IndexFunc(r.Rows, func(row runs.Row) bool { return row.Failed != nil })
		if i >= 0 {
			row := r.Rows[i]
			o.Fault = &Fault{Code: "no verdict", Workload: row.UUID, Axes: row.Axes, Text: plain.Line(row.Failed.Text),
				Hint: row.Failed.Hint, Lines: first(row.Failed.Log)}
		}
		return "no verdict", again + r.ID
	case o.Run.Findings > 0:
		return "findings", "fisub runs show " + r.ID
	case o.Run.Left > 0:
		return "passed", again + r.ID
	case o.Run.Emulated:
		return "passed", "fisub local --device cuda"
	}
	return "passed", "fisub report " + r.ID
}

// Compare takes comparisons of further runs with one; the status is the verdict of the first.
func (o *Outcome) Compare(results []*compare.Result) {
	o.Status, o.Next = string(results[0].Verdict), "fisub report "+results[0].A
	for _, res := range results {
		c := Compared{A: res.A, B: res.B, Verdict: string(res.Verdict), Why: res.Why, Timed: res.Timed,
			Faster: res.Count(compare.Faster), Slower: res.Count(compare.Slower)}
		if res.Ratio != nil {
			c.Ratio = &Ratio{res.Ratio.Value, res.Ratio.Lo, res.Ratio.Hi}
		}
		o.Compared = append(o.Compared, c)
		o.Warnings = append(o.Warnings, res.Warnings...)
		o.Next += " " + res.B
	}
}

// worst is the worst group of a run, nil where nothing tells one from the others.
func worst(r *runs.Run) *Group {
	by := map[string][]runs.Row{} // by axis, which is the only one that these rows have
	for _, row := range r.Rows {
		if row.Evaluated == nil {
			continue
		}
		for axis, value := range row.Axes {
			row.Axes = map[string]int{axis: value}
			by[axis] = append(by[axis], row)
		}
	}
	var all []*Group
	differ := false // in what passed, or in speed
	for _, axis := range slices.Sorted(maps.Keys(by)) {
		groups := runs.Groups(by[axis])
		if len(groups) < 2 {
			continue
		}
		for _, g := range groups {
			w := &Group{Axis: axis, Value: g.Axes[axis], Workloads: g.Workloads, Passed: g.Passed, CopyShare: g.CopyShare}
			if g.Speedup != nil {
				w.Speedup = *g.Speedup
			}
			differ = differ || w.Passed < w.Workloads || w.Speedup > 0 || w.CopyShare > 0
			all = append(all, w)
		}
	}
	if len(all) == 0 || !differ {
		return nil
	}
	return slices.MinFunc(all, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(float64(a.Passed)/float64(a.Workloads), float64(b.Passed)/float64(b.Workloads)),
			cmp.Compare(a.Speedup, b.Speedup), cmp.Compare(a.CopyShare, b.CopyShare),
			cmp.Compare(b.Workloads, a.Workloads))
	})
}

// most is how many lines of a log a fault has.
const most = 12

func first(text string) []string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return nil
	}
	lines := strings.Split(plain.Lines(text), "\n")
	return lines[:min(len(lines), most)]
}

// place is how compilers, Python and the emulator name a place in a source.
var place = regexp.MustCompile(`([\w./+-]+\.(?:cu|cuh|cpp|cc|cxx|c|h|hpp|py))(?:"?, line |:|\()(\d+)`)

// place sets the first place that text names.
func (f *Fault) place(text string) {
	if m := place.FindStringSubmatch(text); m != nil {
		f.File = filepath.ToSlash(m[1])
		f.Line, _ = strconv.Atoi(m[2])
	}
}
