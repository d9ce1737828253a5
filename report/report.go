// Package report renders runs for people: as an HTML page that needs no network, or as Markdown. All figures come from
// the runs and from runs/compare. The contents of a run folder are not trusted.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/runs"
	"fisub/runs/compare"
)

// A Report covers one or more runs. Writing it does not change them.
type Report struct {
	Version     string // of fisub
	Runs        []*Subject
	Comparisons []Comparison // the first run with each other run
}

// A Subject is a run prepared for display.
type Subject struct {
	*runs.Run
	Axes []string // names, in order
	// workloads with a verdict or a failure, in the order of the run, then the missing ones
	Workloads []runs.Row
	Timed     bool // has a latency to show; always false on the virtual GPU
	Emulated  bool // nothing ran on a GPU
}

// A Comparison compares run B with run A.
type Comparison struct {
	A, B   *Subject
	Result *compare.Result
	Err    error // why the runs cannot be compared; Result is then nil
}

// Warnings returns the caveats of the comparison.
func (c *Comparison) Warnings() []string {
	var list []string
	warn := func(format string, args ...any) { list = append(list, clean(fmt.Sprintf(format, args...), 400)) }
	for _, run := range []*Subject{c.A, c.B} {
		if run.Split() {
			warn("run %s had %d places: ratios between different GPUs say nothing about the solutions", run.ID,
				len(run.Places))
		}
	}
	for _, w := range c.Result.Warnings {
		warn("%s", w)
	}
	for _, row := range c.Result.Rows {
		for _, w := range row.Warnings {
			warn("workload %s: %s", row.UUID, w)
		}
	}
	return list
}

// ErrUnknown means that a run folder has no record of the solution and its workloads.
var ErrUnknown = errors.New("no run.json")

// New makes a report about one or more runs, in this order. The error wraps ErrUnknown if a run has no run.json.
func New(version string, all ...*runs.Run) (*Report, error) {
	r := &Report{Version: version}
	for _, run := range all {
		if run.Run == nil {
			return nil, fmt.Errorf("run %s: %w", run.ID, ErrUnknown)
		}
		r.Runs = append(r.Runs, newRun(run))
	}
	for _, run := range r.Runs[1:] {
		c := Comparison{A: r.Runs[0], B: run}
		c.Result, c.Err = compare.Runs(c.A.Run, c.B.Run, compare.Threshold)
		r.Comparisons = append(r.Comparisons, c)
	}
	return r, nil
}

// locate replaces source paths in the texts of w by paths that the user knows.
func locate(w *runs.Row, r *event.Run) {
	if r.Folder == "" {
		return
	}
	known := func(text string) string { return plain.Places(text, r.Folder, r.Sources) }
	source := func(list []event.Excerpt) []event.Excerpt {
		list = slices.Clone(list)
		for i := range list {
			list[i].File = path.Join(r.Folder, list[i].File)
		}
		return list
	}
	w.Findings = slices.Clone(w.Findings)
	for i, f := range w.Findings {
		w.Findings[i].Place, w.Findings[i].Text, w.Findings[i].Source = known(f.Place), known(f.Text), source(f.Source)
	}
	if w.Evaluated != nil {
		e := *w.Evaluated
		t, evaluation := *e.Trace, *e.Trace.Evaluation
		evaluation.Log, t.Evaluation = known(e.Log()), &evaluation
		e.Detail, e.Trace, e.Source = known(e.Detail), &t, source(e.Source)
		w.Evaluated = &e
	}
	if w.Unjudged != nil {
		f := *w.Unjudged
		f.Text, f.Log = known(f.Text), known(f.Log)
		w.Unjudged = &f
	}
}

func newRun(r *runs.Run) *Subject {
	run := &Subject{Run: r, Emulated: r.Run.Device.Emulated}
	axes := map[string]map[string]int{}
	for _, w := range r.Run.Workloads {
		axes[w.UUID] = w.Axes
	}
	seen := map[string]bool{}
	add := func(w runs.Row) {
		if w.Axes == nil {
			w.Axes = axes[w.UUID]
		}
		if run.device(&w).Emulated {
			w.Samples = nil
		}
		locate(&w, r.Run)
		run.Timed = run.Timed || w.Samples != nil
		run.Workloads = append(run.Workloads, w)
	}
	for _, row := range r.Rows {
		seen[row.UUID] = true
		add(row)
	}
	for _, w := range r.Run.Workloads {
		if !seen[w.UUID] {
			seen[w.UUID] = true
			add(runs.Row{UUID: w.UUID})
		}
	}
	run.Axes = ui.AxisNames(run.Workloads, func(w runs.Row) map[string]int { return w.Axes })
	return run
}

// Name returns the solution's name and the start of its content hash.
func (r *Subject) Name() string {
	return clean(r.Run.Run.Name(), 80) + " " + plain.Short(r.Run.Run.ContentHash)
}

// name returns the name of run, with the run's id if another run has the same name.
func (r *Report) name(run *Subject) string {
	for _, other := range r.Runs {
		if other != run && other.Name() == run.Name() {
			return run.Name() + ", run " + clean(run.ID, 60)
		}
	}
	return run.Name()
}

// verdict returns the contest's status, or lower-case words for a workload without a status.
func (r *Subject) verdict(w *runs.Row) string {
	switch {
	case w.Evaluated != nil:
		return string(w.Evaluated.Status())
	case w.Unjudged != nil:
		return "no verdict"
	case w.Samples != nil:
		return "timed, no verdict stored"
	case r.Running:
		return "to come"
	}
	return "not run"
}

// Split reports whether the run used several places. Figures of different GPUs are not averaged.
func (r *Subject) Split() bool { return len(r.Places) > 1 }

func (r *Subject) device(w *runs.Row) event.Device {
	for _, p := range r.Places {
		if p.Name == w.Place {
			return p.Device
		}
	}
	return r.Run.Run.Device
}

// where names the device of the run, or all its devices.
func (r *Subject) where() string {
	if !r.Split() {
		return deviceText(r.Run.Run.Device)
	}
	var names []string
	for _, p := range r.Places {
		if name := deviceText(p.Device); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return fmt.Sprintf("%d places: %s", len(r.Places), strings.Join(names, "; "))
}

func deviceText(d event.Device) string {
	if d.Emulated {
		return "the virtual GPU"
	}
	return clean(fmt.Sprintf("%s (%s, driver %s)", d.Name, d.Arch, d.Driver), 120)
}

// Summary returns the verdict in sentences.
func (r *Subject) Summary() []string {
	counts := r.Totals()
	judged := counts.Passed + counts.Failed
	total := judged + counts.Missing
	var list []string
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if judged > 0 || len(r.Workloads) == 0 || !r.Timed {
		say("%d of %s PASSED on %s.", counts.Passed, plain.Count(total, "workload"), r.where())
	} else {
		say("%s timed on %s; the folder contains no verdicts.", plain.Count(len(r.Workloads), "workload"), r.where())
	}
	if n := counts.Failed; n > 0 {
		say("%s did not pass.", plain.Count(n, "workload"))
	}
	if n := counts.Findings; n > 0 {
		say("%s.", plain.Count(n, "finding"))
	}
	switch r.State() {
	case "running":
		say("The run is in progress: %d of %s have a verdict.", len(r.Rows), plain.Count(total, "workload"))
	case "killed":
		say("The run was killed before its end.")
	case "incomplete":
		say("The run ended before every workload had a verdict.")
	}
	if d := r.Done; d != nil && d.Score != nil && r.Run.Run.Baseline != nil {
		text := clean(ui.ScoreText(r.Run.Run.Baseline, d), 300)
		say("%s%s.", strings.ToUpper(text[:1]), text[1:])
	}
	if d := r.Done; d != nil && d.BoardNS != nil {
		say("%s.", strings.Replace(ui.BoardText(r.Run.Run.Ranking, *d.BoardNS), "board", "Board", 1))
	}
	if r.Emulated {
		say("The virtual GPU checks results and measures nothing.")
	}
	return list
}

// Mean returns the mean official latency of the passed workloads in nanoseconds, or 0 if nothing was timed or the run
// used several places.
func (r *Subject) Mean() float64 {
	if !r.Timed || r.Split() {
		return 0
	}
	return r.Official()
}

// conditions returns the timers and the L2 states behind the run's latencies.
func (r *Subject) conditions() (timer, l2 string) {
	timers, states := map[string]bool{}, map[string]bool{}
	for _, w := range r.Workloads {
		if w.Samples != nil {
			timers[clean(w.Samples.Timer, 40)] = true
			states[ui.L2(w.Samples.ColdL2)] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(timers)), " and "), strings.Join(slices.Sorted(maps.Keys(states)), " and ")
}

// Latency describes the run's latencies, or returns "" if nothing was timed.
func (r *Subject) Latency() string {
	if !r.Timed {
		return ""
	}
	timer, l2 := r.conditions()
	return ui.Latency(r.Run.Run.Profile, l2, timer)
}

// empty returns the longest time of an empty kernel in nanoseconds, or 0 if it was not timed.
func (r *Subject) empty() (ns float64) {
	for _, w := range r.Workloads {
		if w.Samples != nil {
			ns = max(ns, w.Samples.EmptyNS)
		}
	}
	return ns
}

// Checked lists the mistakes that the run checked for and how many results it judged, or returns nil if the run did not
// record this.
func (r *Subject) Checked() []string {
	l := r.Run.Run.Checked
	if l == nil {
		return nil
	}
	counts := r.Totals()
	judged := counts.Passed + counts.Failed
	list := []string{fmt.Sprintf("Results of %d of %s, by the contest's rule and tolerance.", judged,
		plain.Count(judged+counts.Missing, "workload"))}
	for _, text := range l.For {
		list = append(list, clean(strings.ToUpper(text[:min(len(text), 1)])+text[min(len(text), 1):]+".", 1000))
	}
	if len(l.Not) > 0 {
		list = append(list, clean("Not checked for: "+strings.Join(l.Not, ", ")+".", 1000))
	}
	return list
}

// largest returns the largest absolute and relative errors of the rows, or nil if no outputs were compared. NaN is
// larger than any number.
func largest(rows []runs.Row) (abs, rel *float64) {
	for _, w := range rows {
		a, r := w.Evaluated.Errors()
		if a == nil {
			continue
		}
		if abs == nil || *a > *abs || math.IsNaN(*a) {
			abs = a
		}
		if rel == nil || *r > *rel || math.IsNaN(*r) {
			rel = r
		}
	}
	return abs, rel
}

// Facts describes the run and its environment, with the largest errors instead of the profile if nothing was timed
// because the device is the virtual GPU. r.Run must not be nil.
func Facts(r *runs.Run) [][2]string {
	f := r.Run
	state := r.State()
	if state == "killed" {
		state = "killed, with " + plain.Count(r.Started, "workload") + " in flight"
	}
	var rows [][2]string
	add := func(name, format string, args ...any) {
		rows = append(rows, [2]string{name, fmt.Sprintf(format, args...)})
	}
	add("run", "%s", r.ID)
	if state != "" {
		state += "; "
	}
	add("state", "%s%s", state, r.PassedText(" passed"))
	add("started", "%s", f.Started.Format(time.RFC3339))
	add("solution", "%s by %s, %s, %s", f.Solution, f.Author, f.Language, f.ContentHash)
	add("definition", "%s, %s", f.Definition, f.Selection())
	if b := f.Baseline; b != nil {
		add("baseline", "%s: %s, %s", b.Name, b.Solution, b.ContentHash)
	}
	add("device", "%s", ui.Device(f.Device))
	add("toolchain", "%s", strings.TrimSuffix(f.Device.Toolchain+", CUDA "+f.Device.CUDA, ", CUDA "))
	if len(f.Device.Libs) > 0 {
		var libs []string
		for _, name := range slices.Sorted(maps.Keys(f.Device.Libs)) {
			libs = append(libs, name+" "+f.Device.Libs[name])
		}
		add("libraries", "%s", strings.Join(libs, ", "))
	}
	if !f.Device.Emulated {
		add("profile", "%s", ui.Profile(f.Profile))
	} else if abs, rel := largest(r.Rows); abs != nil && !f.Functions {
		add("errors", "at most %s absolute, %s relative", ui.Error(abs).Text, ui.Error(rel).Text)
	}
	add("host", "%s, %s, %s, %d cores", f.Host.Name, f.Host.OS, f.Host.CPU, f.Host.Cores)
	for _, p := range r.Places {
		add("place", "%s: %s on %s", p.Name, ui.Device(p.Device), p.Host.Name)
	}
	if f.Device.UUID != "" {
		add("GPU", "%s", f.Device.UUID)
	}
	if f.Git != nil {
		state := "clean"
		if f.Git.Dirty {
			state = "with changes"
		}
		add("git", "%s, %s", f.Git.Commit, state)
	}
	add("fisub", "%s", f.Fisub)
	add("command", "%s", strings.Join(f.Command, " "))
	return rows
}

// Conclusion returns the sentences about the whole comparison that precede the verdict.
func Conclusion(res *compare.Result) []string {
	var counts []string
	for _, v := range []compare.Verdict{compare.Faster, compare.Same, compare.Slower, compare.Unclear,
		compare.NotComparable} {
		if n := res.Count(v); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, v))
		}
	}
	why := map[string]int{}
	for _, row := range res.Rows {
		if row.Verdict == compare.NotComparable {
			why[row.Why]++
		}
	}
	var reasons []string
	for _, text := range slices.Sorted(maps.Keys(why)) {
		reasons = append(reasons, fmt.Sprintf("%d: %s", why[text], text))
	}
	if len(reasons) > 0 {
		counts[len(counts)-1] += " (" + strings.Join(reasons, "; ") + ")"
	}
	if untimed(res) {
		counts = []string{"all pass in both runs, but none was timed in both"}
	}
	list := []string{fmt.Sprintf("%s: %s", plain.Count(len(res.Rows), "workload"), strings.Join(counts, ", "))}
	if res.Ratio != nil {
		list = append([]string{SpeedText(res)}, list...)
		ratio, interval := RatioText(res.Ratio)
		list = append(list, fmt.Sprintf("B/A: %s, 95 %% interval %s, geometric mean over %s, threshold %.3g %%",
			ratio, interval, plain.Count(res.Timed, "workload"), 100*res.Threshold))
	}
	if res.ScoreA != nil && res.ScoreB != nil {
		list = append(list, fmt.Sprintf("%s: A %.3f, B %.3f", res.ScoreName, *res.ScoreA, *res.ScoreB))
	}
	return list
}

// SpeedText returns the speed of B relative to A with its 95 % interval, and the least one of any workload, or ""
// without timings.
func SpeedText(res *compare.Result) string {
	if res.Ratio == nil {
		return ""
	}
	text := fmt.Sprintf("B is %.2fx as fast as A (%.2f to %.2f)", 1/res.Ratio.Value, 1/res.Ratio.Hi, 1/res.Ratio.Lo)
	slowest := 0.0 // largest ratio of a workload
	for _, row := range res.Rows {
		if row.Ratio != nil {
			slowest = max(slowest, row.Ratio.Value)
		}
	}
	if res.Timed > 1 && slowest > 0 {
		text += fmt.Sprintf(", slowest workload %.2fx", 1/slowest)
	}
	return text
}

// untimed reports whether all workloads passed in both runs but none was timed in both.
func untimed(res *compare.Result) bool {
	timed := func(row compare.Row) bool { return row.Why != "not timed" }
	return len(res.Rows) > 0 && !slices.ContainsFunc(res.Rows, timed)
}

// VerdictText returns a verdict with its reason.
func VerdictText(v compare.Verdict, why string) string {
	if why == "" {
		return string(v)
	}
	if strings.HasPrefix(why, "on average") {
		return string(v) + " " + why
	}
	return string(v) + ": " + why
}

// Verdict returns the verdict on B, or "" if the conclusion already says everything.
func (c *Comparison) Verdict() string {
	if untimed(c.Result) {
		return ""
	}
	return clean(VerdictText(c.Result.Verdict, c.Result.Why), 200)
}

// RatioText formats a ratio and its interval. r may be nil.
func RatioText(r *compare.Ratio) (value, interval string) {
	if r == nil {
		return "-", "-"
	}
	return fmt.Sprintf("%.3f", r.Value), fmt.Sprintf("%.3f to %.3f", r.Lo, r.Hi)
}

// SideText returns the median latency, or the status if the workload was not timed.
func SideText(s compare.Side) string {
	switch {
	case s.Status == "":
		return "-"
	case s.Status == string(trace.Passed) && s.N > 0:
		return ui.Micros(s.MedianNS)
	}
	return s.Status
}

// axesText formats axes such as "batch_size 4, n 7".
func axesText(axes map[string]int) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(axes)) {
		list = append(list, fmt.Sprintf("%s %d", clean(name, 40), axes[name]))
	}
	return cmp.Or(strings.Join(list, ", "), "no axes")
}
