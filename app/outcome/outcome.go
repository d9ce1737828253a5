// Package outcome defines the object that --json=final prints: the result of a command, for programs that decide what
// to do next. It contains nothing that the command's other output omits.
package outcome

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fisub/device/counters"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/project/preflight"
	"fisub/project/tools"
	"fisub/runs"
	"fisub/runs/compare"
	"fisub/workloads"
)

// Schema names the version of the object. Additions keep the version.
const Schema = "fisub.final/1"

// An Outcome is the result of one command. Its status depends on the command: check gives "sound" or "not sound"; a
// run gives "passed", "not passed", "no verdict" or "findings"; remote --dry-run gives "planned" and remote --detach
// "running"; compare gives the verdict on B, and "compared" for two profiles; sanitize gives "clean" or "faults";
// profile gives "profiled"; pack gives "packed"; submit gives "tagged", "pushed" or "not submitted", and with --dry-run
// "would submit" or "not submitted". A command that failed gives "error", an interrupted one "interrupted". Paths are
// relative to the project's folder.
type Outcome struct {
	Schema  string `json:"schema"`
	Command string `json:"command"`     // words after fisub, such as "runs show"
	Status  string `json:"status"`      // see above
	Exit    int    `json:"exit_status"` // see fisub help exit-status

	Submission *SubmissionName `json:"submission,omitempty"`   // submission that was checked or run, if only one
	Run        *RunTotals      `json:"run,omitempty"`          // for commands about a run
	Score      *float64        `json:"score,omitempty"`        // mean speed-up over the baseline; 0 if a workload failed
	ScoreName  string          `json:"score_name,omitempty"`   // "contest score" if the baseline is the reference
	BoardNS    *float64        `json:"board_ns,omitempty"`     // the score of a task's board
	Worst      *Group          `json:"worst_group,omitempty"`  // worst group of workloads that share a value of an axis
	Fault      *Fault          `json:"first_fault,omitempty"`  // what to fix first
	Faults     int             `json:"faults,omitempty"`       // errors of check and submit, failed workloads or tools
	File       string          `json:"file,omitempty"`         // written by pack; of profile: ncu's report
	Tag        string          `json:"tag,omitempty"`          // of submit: the git tag, also if not created yet
	Plan       *Plan           `json:"plan,omitempty"`         // of remote --dry-run
	Compared   []Compared      `json:"compared,omitempty"`     // of compare: each further run compared with A
	Sweep      *compare.Sweep  `json:"sweep,omitempty"`        // of compare --define
	Warnings   []string        `json:"warnings,omitempty"`     // caveats of the result
	Errors     []Message       `json:"errors,omitempty"`       // why the command failed
	Next       string          `json:"next_command,omitempty"` // the most useful next command

	Kernels  []tools.ProfiledKernel `json:"kernels,omitempty"`  // of profile, in the order of launch
	Profiles []*tools.Profiled      `json:"profiles,omitempty"` // of compare with two profiles: A and B
	Counts   *counters.Ranking      `json:"counts,omitempty"`   // of compare without a GPU: a ranking by counts, not times
}

// A SubmissionName identifies the judged submission.
type SubmissionName struct {
	Definition  string `json:"definition,omitempty"`
	Solution    string `json:"solution,omitempty"`     // name of the solution
	ContentHash string `json:"content_hash,omitempty"` // as the contest computes it
}

// A RunTotals counts the workloads of a run.
type RunTotals struct {
	ID        string `json:"id"`
	Set       string `json:"set"`
	Device    string `json:"device"`
	Emulated  bool   `json:"emulated"` // verdicts only: nothing was timed
	Workloads int    `json:"workloads"`
	Whole     int    `json:"whole,omitempty"` // number of workloads of the set, if only some were chosen
	Passed    int    `json:"passed"`
	Failed    int    `json:"failed"`
	Missing   int    `json:"missing"`           // without a verdict
	Left      int    `json:"not_run,omitempty"` // workloads skipped because the budget was spent; not counted as missing
	Findings  int    `json:"findings"`          // problems other than wrong outputs

	Checked *event.Checked `json:"looked,omitempty"` // mistakes looked for, besides wrong outputs
}

// A Plan is a remote run that was not started.
type Plan struct {
	Set         string   `json:"set"`
	Workloads   int      `json:"workloads"`
	GPU         string   `json:"gpu"`          // "none" for the virtual GPU
	Places      []string `json:"places"`       // one job each
	LimitS      float64  `json:"limit_s"`      // of each job, in seconds
	BundleBytes int64    `json:"bundle_bytes"` // sent to each host that does not have the files
}

// A Group is the set of workloads of a run with one value of an axis. The worst group has the smallest share of passed
// workloads, then the smallest speed-up, then the smallest share of the copy bandwidth.
type Group struct {
	Axis      string  `json:"axis"`
	Value     int     `json:"value"`
	Workloads int     `json:"workloads"` // workloads with a verdict
	Passed    int     `json:"passed"`
	Speedup   float64 `json:"mean_speedup,omitempty"`    // over the baseline
	CopyShare float64 `json:"mean_copy_share,omitempty"` // share of the bandwidth of a plain copy of the same size
}

// A Fault is one error, with its place if that is known.
type Fault struct {
	Code     string         `json:"code"`               // of a finding; status of a workload; tool; step of submit
	Workload string         `json:"workload,omitempty"` // uuid
	Axes     map[string]int `json:"axes,omitempty"`
	Text     string         `json:"text"`
	Hint     string         `json:"hint,omitempty"`
	File     string         `json:"file,omitempty"`
	Line     int            `json:"line,omitempty"`
	Column   int            `json:"column,omitempty"`
	Lines    []string       `json:"lines,omitempty"` // the source line, or the first lines of the log
}

// A Compared is the comparison of run B with run A.
type Compared struct {
	A       string         `json:"a"` // id of the run
	B       string         `json:"b"`
	Verdict string         `json:"verdict"`         // on B
	Why     string         `json:"why,omitempty"`   // reason for a verdict that is not based on timings
	Ratio   *compare.Ratio `json:"ratio,omitempty"` // B's time over A's; below 1, B is faster
	Timed   int            `json:"timed"`           // workloads that passed and were timed on both sides
	Faster  int            `json:"faster"`          // number of workloads
	Slower  int            `json:"slower"`
}

// A Message is an error with advice.
type Message struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

// Write completes o with the exit status of the command, and writes it as one line.
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

// Check records the reports of check. All errors of several submissions count; the first one becomes the first fault.
// root is the project's folder.
func (o *Outcome) Check(root string, reports []*preflight.Report, strict bool) {
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
					o.Fault = &Fault{Code: f.Code, Text: f.Msg, Hint: f.Hint, File: inProject(root, f.Path),
						Line: f.Line, Column: f.Col, Lines: first(f.Excerpt)}
				}
			case f.Severity == preflight.Warning || f.Code == "compiler-warning":
				o.Warnings = append(o.Warnings, warning(root, f))
			}
		}
	}
	if len(reports) == 1 && reports[0].Solution != nil {
		o.Submission = nameOf(reports[0].Solution)
	}
}

// warning returns the first line of a finding, with its path in the project.
func warning(root string, f preflight.Finding) string {
	f.Path = inProject(root, f.Path)
	return plain.First(f.Text())
}

func nameOf(s *trace.Solution) *SubmissionName {
	return &SubmissionName{Definition: s.Definition, Solution: s.Name, ContentHash: s.Hash()}
}

// inProject returns the path of file relative to the folder root if it is below root.
func inProject(root, file string) string {
	from, err := filepath.Abs(root)
	to, err2 := filepath.Abs(file)
	if rel, err3 := filepath.Rel(from, to); file != "" && cmp.Or(err, err2, err3) == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return file
}

// Of records a run from its folder. contest reports whether a definition has the contest's workload set.
func (o *Outcome) Of(r *runs.Run, contest func(definition string) bool) {
	if r.Run == nil {
		return
	}
	d := r.Run.Device
	o.Submission = ranName(r.Run)
	counts := r.Totals()
	o.Run = &RunTotals{ID: r.ID, Set: r.Run.Set, Device: d.Name, Emulated: d.Emulated, Workloads: len(r.Run.Workloads),
		Whole: r.Run.Whole, Checked: r.Run.Checked, Passed: counts.Passed, Failed: counts.Failed, Findings: counts.Findings}
	known := func(text string) string { return plain.Places(text, r.Run.Folder, r.Run.Sources) }
	wrong := func(row runs.Row) bool { return row.Evaluated != nil && !row.Passed() }
	if i := slices.IndexFunc(r.Rows, wrong); i >= 0 {
		row, e := r.Rows[i], r.Rows[i].Evaluated
		o.Fault = &Fault{Code: string(e.Status()), Workload: row.UUID, Axes: row.Axes}
		o.Fault.tell(known(e.Detail), known(e.Log()))
	} else if i := slices.IndexFunc(r.Rows, func(row runs.Row) bool { return len(row.Findings) > 0 }); i >= 0 {
		row, found := r.Rows[i], r.Rows[i].Findings[0]
		o.Fault = &Fault{Code: found.Check, Workload: row.UUID, Axes: row.Axes, Text: plain.Line(known(found.Text))}
		o.Fault.place(known(found.Place + "\n" + found.Text))
	}
	if d := r.Done; d != nil {
		o.Run.Left = d.Left
		if r.Run.Baseline != nil && d.Score != nil {
			o.Score, o.ScoreName = d.Score, r.Run.Baseline.Score()
		}
		o.BoardNS = d.BoardNS
	}
	o.Run.Missing = o.Run.Workloads - o.Run.Passed - o.Run.Failed - o.Run.Left
	o.Faults = o.Run.Failed
	for _, w := range r.Warnings {
		o.Warnings = append(o.Warnings, plain.Line(w.Text))
	}
	o.Worst = worst(r)
	o.Status, o.Next = verdict(r, o, contest)
}

// wrongCall matches the error of a function whose parameters do not fit the definition; check explains it.
var wrongCall = regexp.MustCompile(`TypeError.*(argument|parameter)`)

// hazard reports whether a line of a log is the virtual GPU's warning of a race or of unwritten memory.
func hazard(line string) bool { return strings.HasPrefix(line, "warning: ") }

// sanitizable reports whether sanitize accepts the solution of a run.
func sanitizable(r *event.Run) bool {
	language := trace.Language(r.Language)
	return r.DPS && r.Binding != "torch" && (language == trace.CUDA || language == trace.CPP)
}

// verdict returns the status of a run and the most useful next command.
func verdict(r *runs.Run, o *Outcome, contest func(definition string) bool) (status, next string) {
	device := ""
	if o.Run.Emulated {
		device = " --device emu"
	}
	again := "fisub local --resume "
	if len(r.Places) > 0 {
		again = "fisub remote --resume "
	}
	f := o.Fault
	if o.Run.Failed == 0 {
		f = nil // a finding
	}
	switch {
	case f != nil && (f.Code == "COMPILE_ERROR" || wrongCall.MatchString(f.Text)):
		return "not passed", "fisub check"
	case f != nil && sanitizable(r.Run) && (f.Code == "RUNTIME_ERROR" || f.Code == "TIMEOUT" ||
		o.Run.Emulated && slices.ContainsFunc(f.Lines, hazard)):
		return "not passed", "fisub sanitize" + device + " --set " + o.Run.Set + " --workload " + plain.Short(f.Workload)
	case f != nil:
		return "not passed", "fisub local" + device + " --set " + o.Run.Set + " --workload " + plain.Short(f.Workload) +
			" --dump dump"
	case o.Run.Missing > 0:
		if i := slices.IndexFunc(r.Rows, func(row runs.Row) bool { return row.Unjudged != nil }); i >= 0 {
			row := r.Rows[i]
			o.Fault = &Fault{Code: "no verdict", Workload: row.UUID, Axes: row.Axes, Text: plain.Line(row.Unjudged.Text),
				Hint: row.Unjudged.Hint, Lines: first(row.Unjudged.Log)}
		}
		return "no verdict", again + r.ID
	case o.Run.Findings > 0:
		return "findings", "fisub runs show " + r.ID
	case o.Run.Left > 0:
		return "passed", again + r.ID
	case o.Run.Emulated && (o.Run.Set != workloads.ContestSet || o.Run.Whole > o.Run.Workloads) &&
		contest(r.Run.Definition):
		return "passed", "fisub local --device emu --set " + workloads.ContestSet
	case o.Run.Emulated:
		return "passed", "fisub remote --gpu b200 --set " + o.Run.Set
	}
	return "passed", "fisub report " + r.ID
}

// Compare records comparisons of further runs with one run. The status is the verdict of the first comparison.
func (o *Outcome) Compare(results []*compare.Result, ranking *counters.Ranking) {
	o.Counts = ranking
	o.Status, o.Next = string(results[0].Verdict), "fisub report "+results[0].A
	for _, res := range results {
		o.Compared = append(o.Compared, Compared{A: res.A, B: res.B, Verdict: string(res.Verdict), Why: res.Why,
			Ratio: res.Ratio, Timed: res.Timed, Faster: res.Count(compare.Faster), Slower: res.Count(compare.Slower)})
		o.Warnings = append(o.Warnings, res.Warnings...)
		o.Next += " " + res.B
	}
}

// Swept records the comparison of variants. The status is "passed" if a variant passed all workloads.
func (o *Outcome) Swept(s *compare.Sweep, ranking *counters.Ranking) {
	o.Counts = ranking
	o.Sweep, o.Warnings, o.Status, o.Next = s, s.Warnings, "not passed", "fisub report"
	for _, v := range s.Variants {
		if v.Passed == v.Workloads {
			o.Status = "passed"
		}
		o.Next += " " + v.Run
	}
}

// CompareProfiles records the comparison of two profiles. ranking is nil unless the virtual GPU counted both.
func (o *Outcome) CompareProfiles(both []*tools.Profiled, ranking *counters.Ranking) {
	o.Status, o.Profiles, o.Counts = "compared", both, ranking
}

// worst returns the worst group of a run, or nil if the groups do not differ.
func worst(r *runs.Run) *Group {
	by := map[string][]runs.Row{} // by axis; each row has only this axis
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
	differ := false // in passed workloads or in speed
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

// most is the maximum number of log lines in a fault.
const most = 12

func first(text string) []string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return nil
	}
	lines := strings.Split(plain.Lines(text), "\n")
	return lines[:min(len(lines), most)]
}

// tell records the text of the fault and its log, and the first source position in them.
func (f *Fault) tell(text, log string) {
	f.Text, f.Lines = plain.Line(text), first(log)
	f.place(text + "\n" + log)
}

// place records the first source position in text.
func (f *Fault) place(text string) {
	if found := plain.FindPlaces(text); len(found) > 0 {
		f.File, f.Line, f.Column = found[0].File, found[0].Line, found[0].Column
	}
}
