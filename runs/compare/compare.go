// Package compare decides from the timings in run folders whether one run is faster than another. It runs nothing
// itself.
package compare

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/runs"
	"fisub/runs/stats"

	moremath "github.com/aclements/go-moremath/stats"
)

// A Verdict describes B relative to A.
type Verdict string

const (
	Faster        Verdict = "faster"
	Slower        Verdict = "slower"
	Same          Verdict = "same"    // a relevant difference is ruled out
	Unclear       Verdict = "unclear" // the timings do not decide it
	NotComparable Verdict = "not comparable"
)

// Threshold is the default for the smallest relevant difference: 1 %.
const Threshold = 0.01

// Alpha is the level of the tests and of the intervals.
const Alpha = 0.05

// A Result compares run B with run A.
type Result struct {
	A         string   `json:"a"` // id of the run
	B         string   `json:"b"`
	Threshold float64  `json:"threshold"` // smallest relevant relative difference
	Rows      []Row    `json:"workloads"`
	Timed     int      `json:"timed"`           // workloads that passed and were timed on both sides
	Ratio     *Ratio   `json:"ratio,omitempty"` // geometric mean over the timed workloads; nil without any
	Verdict   Verdict  `json:"verdict"`
	Why       string   `json:"why,omitempty"`     // if the verdict is not from timings, or some of them disagree
	Mixed     bool     `json:"-"`                 // some workloads are faster, and some slower
	ScoreName string   `json:"-"`                 // name of ScoreA and ScoreB
	ScoreA    *float64 `json:"score_a,omitempty"` // the contest's, over common workloads; nil without a common baseline
	ScoreB    *float64 `json:"score_b,omitempty"`
	Warnings  []string `json:"warnings,omitempty"` // qualifications of the result
}

// A Row compares one workload.
type Row struct {
	UUID     string         `json:"workload"`
	Axes     map[string]int `json:"axes,omitempty"`
	A        Side           `json:"a"`
	B        Side           `json:"b"`
	Ratio    *Ratio         `json:"ratio,omitempty"` // nil unless it passed and was timed on both sides
	P        *float64       `json:"p,omitempty"`     // of the Mann-Whitney test
	Verdict  Verdict        `json:"verdict"`
	Why      string         `json:"why,omitempty"` // if the verdict is not from timings
	Warnings []string       `json:"warnings,omitempty"`

	levels float64 // result of the function levels
}

// apart reports whether w was timed on both sides, but under different conditions.
func (w *Row) apart() bool { return w.Ratio != nil && w.Verdict == NotComparable }

// A Side is one workload of one run.
type Side struct {
	Status     string  `json:"status"` // "" without a verdict
	N          int     `json:"n"`
	OfficialNS float64 `json:"official_ns,omitempty"`
	MedianNS   float64 `json:"median_ns,omitempty"` // stats.MidMedian of all timings
}

// A Ratio is B over A: above 1, B is slower. The interval from Lo to Hi has a confidence of 95 %, but only about 85 %
// if three trials drift apart by more than the noise of their medians: three are too few to draw from.
type Ratio struct {
	Value float64 `json:"value"`
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
}

// verdict classifies the ratio. A difference must be significant, exceed the threshold and have the interval on its
// side of 1. The verdict is Same if the ratio is within the threshold and the interval within twice the threshold.
// Otherwise it is Unclear.
func (r *Ratio) verdict(significant bool, threshold float64) Verdict {
	most := 1 + threshold
	switch {
	case significant && r.Lo > 1 && r.Value > most:
		return Slower
	case significant && r.Hi < 1 && r.Value < 1/most:
		return Faster
	case r.Value <= most && r.Value >= 1/most && r.Hi <= most+threshold && r.Lo >= 1/(most+threshold):
		return Same
	}
	return Unclear
}

// Slower reports whether B is a regression. It is one if it is slower as a whole, fails a workload that A passes, or
// is clearly slower on a single workload: the whole interval is beyond the threshold, and the difference between
// trials is significant with Bonferroni's correction. One plain verdict Slower among many workloads may be due to
// chance.
func (r *Result) Slower() bool {
	return r.Verdict == Slower || slices.ContainsFunc(r.Rows, func(row Row) bool {
		return row.Verdict == Slower && (row.Ratio == nil || row.Ratio.Lo > 1+r.Threshold &&
			row.levels < Alpha/float64(r.Timed))
	})
}

// Count returns the number of workloads with verdict v.
func (r *Result) Count(v Verdict) (n int) {
	for _, row := range r.Rows {
		if row.Verdict == v {
			n++
		}
	}
	return n
}

// A MismatchError means that the figures of two runs are not comparable.
type MismatchError struct{ What, A, B string }

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the runs cannot be compared: %s is %s and %s", e.What, e.A, e.B)
}

// Advice returns the hint of the error.
func (e *MismatchError) Advice() string {
	return "run both on the same definition, on GPUs of one model, with the same timer"
}

// Runs compares b with a, by workload and as a whole. threshold is the smallest relevant relative difference. For
// different definitions, GPU models, timers or states of the L2 the error is a *MismatchError. With different drivers
// or different locked clocks the verdict is NotComparable. Other differences, such as the profile, are warnings.
// Impossible timings are an error.
func Runs(a, b *runs.Run, threshold float64) (*Result, error) {
	res := &Result{A: a.ID, B: b.ID, Threshold: threshold}
	for _, r := range []*runs.Run{a, b} {
		if err := check(r); err != nil {
			return nil, err
		}
		switch {
		case r.Running:
			res.Warnings = append(res.Warnings, fmt.Sprintf("run %s is still running", r.ID))
		case r.Run == nil:
			res.Warnings = append(res.Warnings, fmt.Sprintf("run %s has no run.json: its solution and GPU are unknown", r.ID))
		case r.State() == "killed", r.State() == "incomplete":
			res.Warnings = append(res.Warnings, fmt.Sprintf("run %s is incomplete", r.ID))
		}
	}
	apart, err := res.conditions(a, b)
	if err != nil {
		return nil, err
	}

	logs := make([]float64, draws) // sum of the logarithms over the workloads, by draw
	var sum float64
	score := scores{}
	for i := range a.Rows {
		ra := &a.Rows[i]
		rb := b.Row(ra.UUID)
		row, ratios := compareRow(ra, rb, threshold)
		if row.Ratio != nil {
			if apart != "" {
				row.Verdict, row.Why = NotComparable, apart
			}
			res.Timed++
			sum += math.Log(row.Ratio.Value)
			for i, r := range ratios {
				logs[i] += math.Log(r)
			}
		}
		if rb != nil {
			score.add(ra, rb)
		}
		res.Rows = append(res.Rows, row)
	}
	for i := range b.Rows {
		if rb := &b.Rows[i]; a.Row(rb.UUID) == nil {
			row, _ := compareRow(nil, rb, threshold)
			res.Rows = append(res.Rows, row)
		}
	}
	if res.Timed > 0 {
		for i := range logs {
			logs[i] = math.Exp(logs[i] / float64(res.Timed))
		}
		res.Ratio = interval(math.Exp(sum/float64(res.Timed)), logs)
	}
	if inA, inB := len(res.Rows)-len(b.Rows), len(res.Rows)-len(a.Rows); inA+inB > 0 {
		res.Warnings = append(res.Warnings, fmt.Sprintf("different workloads: %d in both runs, %d only in A, %d only in B",
			len(b.Rows)-inB, inA, inB))
	}
	res.ScoreA, res.ScoreB = score.results(a, b)
	if a.Run != nil && a.Run.Baseline != nil {
		res.ScoreName = a.Run.Baseline.Score()
	}
	res.conclude()
	return res, nil
}

// conclude sets the verdict of the whole.
func (r *Result) conclude() {
	lost, gained, apart, why := 0, 0, 0, ""
	for _, row := range r.Rows {
		if row.apart() {
			apart, why = apart+1, row.Why
		}
		if row.Ratio == nil && row.Verdict == Slower {
			lost++
		} else if row.Ratio == nil && row.Verdict == Faster {
			gained++
		}
	}
	r.Verdict = NotComparable
	if r.Ratio != nil && apart == 0 {
		r.Verdict = r.Ratio.verdict(true, r.Threshold)
	}
	switch {
	case lost > 0:
		r.Verdict, r.Why = Slower, fmt.Sprintf("B fails %d of the workloads that A passes", lost)
	case gained > 0 && r.Verdict != Slower:
		r.Verdict, r.Why = Faster, fmt.Sprintf("B passes %d of the workloads that A fails", gained)
	case r.Ratio == nil:
		r.Why = "no workload was timed in both runs"
	case apart > 0 && apart == r.Timed:
		r.Why = why
	case apart > 0:
		r.Why = fmt.Sprintf("%s on %d of %d workloads", why, apart, r.Timed)
	case r.Verdict == Faster || r.Verdict == Slower:
		r.mix()
	}
}

// mix describes the workloads whose verdict is opposite to the whole's, if any.
func (r *Result) mix() {
	other, n, most := Slower, 0, 0.0
	if r.Verdict == Slower {
		other = Faster
	}
	for _, row := range r.Rows {
		if row.Ratio != nil && row.Verdict == other {
			n++
			most = max(most, math.Abs(row.Ratio.Value-1))
		}
	}
	if n > 0 {
		r.Mixed = true
		r.Why = fmt.Sprintf("on average; %d of %d %s, up to %.0f %%", n, len(r.Rows), other, 100*most)
	}
}

// compareRow compares one workload. a or b is nil if the run does not have it. ratios holds the ratio of each draw.
func compareRow(a, b *runs.Row, threshold float64) (row Row, ratios []float64) {
	for _, r := range []*runs.Row{a, b} {
		if r != nil {
			row.UUID = r.UUID
			if r.Axes != nil {
				row.Axes = r.Axes
			}
		}
	}
	row.A, row.B = side(a), side(b)
	row.Verdict = NotComparable
	passedA, passedB := row.A.Status == string(trace.Passed), row.B.Status == string(trace.Passed)
	switch {
	case b == nil:
		row.Why = "only in A"
	case a == nil:
		row.Why = "only in B"
	case row.A.Status == "" || row.B.Status == "":
		row.Why = "not judged"
	case !passedA && !passedB:
		row.Why = "neither passes"
	case !passedB:
		row.Verdict, row.Why = Slower, "B does not pass"
	case !passedA:
		row.Verdict, row.Why = Faster, "A does not pass"
	case row.A.N == 0 || row.B.N == 0:
		row.Why = "not timed"
	case a.Axes != nil && b.Axes != nil && !maps.Equal(a.Axes, b.Axes):
		row.Why = "different axes"
	}
	if row.Why != "" {
		return row, nil
	}
	p, warnings := stats.Same(a.Samples.TrialsNS, b.Samples.TrialsNS)
	row.P, row.Warnings = &p, warnings
	for _, s := range []struct {
		name      string
		disturbed []string
	}{{"A", a.Samples.Disturbed}, {"B", b.Samples.Disturbed}} {
		for _, d := range s.disturbed {
			row.Warnings = append(row.Warnings, fmt.Sprintf("unreliable timings of %s: %s", s.name, d))
		}
	}
	ratios = draw(newPool(a.Samples.TrialsNS), newPool(b.Samples.TrialsNS), row.UUID)
	row.Ratio = interval(row.B.MedianNS/row.A.MedianNS, ratios)
	row.levels = levels(a.Samples.TrialsNS, b.Samples.TrialsNS)
	if row.Why = clocks(a.Samples.Stamp, b.Samples.Stamp); row.Why != "" {
		return row, ratios
	}
	row.Verdict = row.Ratio.verdict(max(p, row.levels) < Alpha, threshold)
	return row, ratios
}

// clocks describes the difference between clocks if they were locked for a or b, else it returns "". Changes of
// unlocked clocks count as part of the solution, since high power draw lowers them.
func clocks(a, b *event.Stamp) string {
	if a == nil || b == nil || !a.ClocksLocked && !b.ClocksLocked {
		return ""
	}
	x, y := cmp.Or(a.During.Median, a.Before), cmp.Or(b.During.Median, b.Before)
	differ := func(x, y int) bool { return 100*max(x-y, y-x) > max(x, y) }
	if !differ(x.SMClockMHz, y.SMClockMHz) && !differ(x.MemoryClockMHz, y.MemoryClockMHz) {
		return ""
	}
	return fmt.Sprintf("the SM and memory clocks were locked at %d and %d MHz for A, %d and %d MHz for B",
		x.SMClockMHz, x.MemoryClockMHz, y.SMClockMHz, y.MemoryClockMHz)
}

// levels returns the p-value for equal distributions of the trial medians in a and b. It uses Student's two-sample
// t-test on the logarithms. If trials drift apart, their timings are less independent than the Mann-Whitney test and
// a bootstrap of three trials assume. It returns 0 if either side has only one trial, or if the medians within each
// side are equal.
func levels(a, b [][]int64) float64 {
	var sides [2]moremath.Sample
	for i, trials := range [][][]int64{a, b} {
		for _, trial := range trials {
			if len(trial) > 0 {
				sides[i].Xs = append(sides[i].Xs, math.Log(newPool([][]int64{trial}).median()))
			}
		}
		if len(sides[i].Xs) < 2 {
			return 0
		}
	}
	r, err := moremath.TwoSampleTTest(sides[0], sides[1], moremath.LocationDiffers)
	if err != nil {
		return 0
	}
	return r.P
}

// side describes one workload of a run. Timings without a verdict count as passed, because only passing workloads are
// timed.
func side(r *runs.Row) (s Side) {
	if r == nil {
		return s
	}
	if r.Evaluated != nil {
		s.Status = string(r.Evaluated.Status())
	} else if r.Samples != nil {
		s.Status = string(trace.Passed)
	}
	if r.Samples != nil {
		p := newPool(r.Samples.TrialsNS)
		s.N, s.OfficialNS, s.MedianNS = p.n, stats.Latency(r.Samples.TrialsNS), p.median()
	}
	return s
}

const draws = 1000

// A pool holds the timings of one workload, prepared for drawing.
type pool struct {
	values []float64 // distinct, ascending
	trials [][]int   // indices into values
	counts []int     // how often each value occurs
	n      int
}

func newPool(trials [][]int64) *pool {
	p := &pool{}
	for _, trial := range trials {
		for _, v := range trial {
			p.values = append(p.values, float64(v))
		}
	}
	p.n = len(p.values)
	slices.Sort(p.values)
	p.values = slices.Compact(p.values)
	p.counts = make([]int, len(p.values))
	for _, trial := range trials {
		var row []int
		for _, v := range trial {
			i, _ := slices.BinarySearch(p.values, float64(v))
			row = append(row, i)
			p.counts[i]++
		}
		if row != nil {
			p.trials = append(p.trials, row)
		}
	}
	return p
}

func (p *pool) median() float64 { return stats.MidMedian(p.values, p.counts) }

// redraw sets the counts to a new random draw.
func (p *pool) redraw(r *rand.Rand) {
	clear(p.counts)
	for range p.trials {
		trial := p.trials[r.IntN(len(p.trials))]
		for range trial {
			p.counts[trial[r.IntN(len(trial))]]++
		}
	}
}

// draw returns the ratios of the medians of random draws from both pools. It changes their counts. The seed depends
// on the workload, so that draws for different workloads are independent.
//
// The interval comes from a bootstrap with a fixed seed, so the same files give the same figures. Each of 1000 draws
// resamples the trials of both sides and the timings within each drawn trial, with replacement, and computes the
// ratio of the medians. Order statistics would not give an interval for a ratio or a geometric mean. Drawing trials
// first widens the interval if trials drift apart, which the timings within a trial do not show. No interval from two
// runs can include effects that all timings of a run share, such as the GPU's temperature.
func draw(a, b *pool, uuid string) []float64 {
	seed := fnv.New64a()
	seed.Write([]byte(uuid))
	r := rand.New(rand.NewPCG(seed.Sum64(), draws))
	ratios := make([]float64, draws)
	for i := range ratios {
		a.redraw(r)
		b.redraw(r)
		ratios[i] = b.median() / a.median()
	}
	return ratios
}

// interval cuts off half of Alpha of the draws at each end.
func interval(value float64, ratios []float64) *Ratio {
	sorted := slices.Sorted(slices.Values(ratios))
	cut := int(Alpha / 2 * float64(len(sorted)))
	return &Ratio{Value: value, Lo: min(value, sorted[cut]), Hi: max(value, sorted[len(sorted)-1-cut])}
}

// mostTimings limits the timings to draw from. A run has a few hundred per workload.
const mostTimings = 1 << 20

// check rejects impossible timings.
func check(r *runs.Run) error {
	for _, row := range r.Rows {
		if row.Samples == nil {
			continue
		}
		n := 0
		for _, trial := range row.Samples.TrialsNS {
			n += len(trial)
			if i := slices.IndexFunc(trial, func(ns int64) bool { return ns <= 0 || ns > 1e15 }); i >= 0 {
				return fmt.Errorf("run %s: workload %s: a timing of %d ns", r.ID, row.UUID, trial[i])
			}
		}
		if n > mostTimings {
			return fmt.Errorf("run %s: workload %s: %d timings, more than %d", r.ID, row.UUID, n, mostTimings)
		}
	}
	return nil
}

// conditions rejects runs with incomparable figures, returns the reason why neither can be called faster, if any, and
// warns of other differences.
func (r *Result) conditions(a, b *runs.Run) (apart string, err error) {
	timerA, timerB := timers(a), timers(b)
	mixed := strings.Contains(timerA, " and ")
	if timerA != "" && timerB != "" && (timerA != timerB || mixed) {
		return "", &MismatchError{"the timer", timerA, timerB}
	}
	if a.Run == nil || b.Run == nil {
		return "", nil
	}
	x, y := a.Run, b.Run
	for _, c := range []MismatchError{
		{"the definition", x.Definition, y.Definition},
		{"the device", deviceText(x.Device), deviceText(y.Device)},
	} {
		if c.A != c.B {
			return "", &c
		}
	}
	for _, c := range []MismatchError{
		{"the profile", profileText(x.Profile), profileText(y.Profile)},
		{"the GPU", x.Device.UUID, y.Device.UUID},
		{"the version of CUDA", x.Device.CUDA, y.Device.CUDA},
		{"the compiler", x.Device.Toolchain, y.Device.Toolchain},
		{"the tolerance", fmt.Sprint(x.Tolerance), fmt.Sprint(y.Tolerance)},
		{"the version of fisub", x.Fisub, y.Fisub},
	} {
		if c.A != c.B {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s differs: %s and %s", c.What, c.A, c.B))
		}
	}
	if x, y := x.Device.Driver, y.Device.Driver; x != y {
		apart = fmt.Sprintf("the driver was %s for A, %s for B", x, y)
	}
	return apart, nil
}

// timers names the timers used for the workloads of a run, or returns "".
func timers(r *runs.Run) string {
	var all []string
	for _, row := range r.Rows {
		if row.Samples == nil {
			continue
		}
		name := row.Samples.Timer + " on a warm L2"
		if row.Samples.ColdL2 {
			name = row.Samples.Timer + " on a cold L2"
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " and ")
}

func deviceText(d event.Device) string {
	if d.Emulated {
		return "the virtual GPU"
	}
	return fmt.Sprintf("%s (%s, %s)", d.Name, d.Kind, d.Arch)
}

func profileText(p event.Profile) string {
	text := fmt.Sprintf("%s (%d trials of %d warm-up and %d timed calls", p.Name, p.Trials, p.Warmup, p.Iterations)
	if p.Target > 0 {
		text += fmt.Sprintf(", more up to %g %%", 100*p.Target)
	}
	return text + ")"
}

// scores holds the contest's scores of both runs, over workloads judged in both and with a speed-up if passed.
type scores struct {
	of    [2]stats.Score
	timed bool // a workload has a speed-up
}

func (s *scores) add(a, b *runs.Row) {
	for _, r := range []*runs.Row{a, b} {
		if r.Evaluated == nil || r.Passed() && r.Evaluated.Speedup() == nil {
			return
		}
		s.timed = s.timed || r.Evaluated.Speedup() != nil
	}
	a.Score(&s.of[0])
	b.Score(&s.of[1])
}

// results returns both scores, or nil if the runs have no baseline or different ones.
func (s *scores) results(a, b *runs.Run) (scoreA, scoreB *float64) {
	if !s.timed || a.Run != nil && b.Run != nil && baseline(a) != baseline(b) {
		return nil, nil
	}
	x, _, okX := s.of[0].Value()
	y, _, okY := s.of[1].Value()
	if !okX || !okY {
		return nil, nil
	}
	return &x, &y
}

// baseline returns the content hash of a run's baseline, or "".
func baseline(r *runs.Run) string {
	if r.Run.Baseline == nil {
		return ""
	}
	return r.Run.Baseline.ContentHash
}
