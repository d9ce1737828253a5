package runs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/internal/usage"
)

// A Brief is the entry of a run in a list.
type Brief struct {
	ID          string     `json:"id"`
	Started     *time.Time `json:"started,omitempty"`
	State       string     `json:"state"` // of Run.State or dispatch.Listing, "broken" if unreadable, or "profile"
	Solution    string     `json:"solution,omitempty"`
	ContentHash string     `json:"content_hash,omitempty"`
	Commit      string     `json:"commit,omitempty"` // ends with -dirty if the sources had been changed
	Definition  string     `json:"definition,omitempty"`
	Set         string     `json:"set,omitempty"`
	Device      string     `json:"device,omitempty"` // "cuda:0", "emu"
	GPU         string     `json:"gpu,omitempty"`    // its name
	Passed      int        `json:"passed"`
	Failed      int        `json:"failed"` // judged, but not PASSED
	Total       int        `json:"total"`
	MeanNS      float64    `json:"mean_ns,omitempty"`
	Score       *float64   `json:"score,omitempty"`
	Best        bool       `json:"best,omitempty"` // of its family

	left   int    // workloads not started because the budget was spent
	family string // equal for runs whose figures can be compared; "" for a run without such figures

	// All runs of a family have the same workloads, here sorted by uuid, and the same groups.
	latency []float64 // ms
	base    []float64 // ms, of the run's baseline; nil without one
	groups  []Group
}

// brief returns the entry of r. It gets a family if all workloads passed without findings and were timed.
func brief(r *Run) *Brief {
	b := &Brief{ID: r.ID, State: r.State(), MeanNS: r.Official()}
	d := r.Totals()
	b.Passed, b.Failed, b.Total, b.left = d.Passed, d.Failed, d.Passed+d.Failed+d.Missing, d.Left
	f := r.Run
	if f == nil {
		return b
	}
	b.Started, b.Solution, b.ContentHash, b.Definition, b.Set = &f.Started, f.Solution, f.ContentHash, f.Definition, f.Set
	if b.Device, b.GPU = f.Device.Kind, f.Device.Name; !f.Device.Emulated {
		b.Device = fmt.Sprintf("%s:%d", f.Device.Kind, f.Device.Ordinal)
	}
	if f.Git != nil {
		if b.Commit = f.Git.Commit; f.Git.Dirty {
			b.Commit += "-dirty"
		}
	}
	if r.Done == nil || r.Done.Missing > 0 || len(r.Rows) == 0 {
		return b
	}
	b.Score = r.Done.Score
	rows := slices.SortedFunc(slices.Values(r.Rows), func(x, y Row) int { return strings.Compare(x.UUID, y.UUID) })
	family := fmt.Appendf(nil, "%q %q %q %q", f.Definition, f.Device.Kind, f.Device.Name, f.Device.Arch)
	for _, row := range rows {
		e := row.Evaluated
		if !row.Passed() || e.Latency() == nil || len(row.Findings) > 0 || row.Samples == nil {
			return b
		}
		ms := *e.Latency()
		b.latency = append(b.latency, ms)
		if x := e.Speedup(); x != nil && f.Baseline != nil {
			b.base = append(b.base, ms**x)
		}
		family = fmt.Appendf(family, " %q %q %q", row.UUID, fmt.Sprint(row.Axes), row.Samples.Timer)
	}
	if len(b.base) < len(rows) {
		b.base = nil
	}
	b.family, b.groups = string(family), Groups(rows)
	return b
}

// NotPassed reports whether a workload was judged and did not pass or, if the run has ended, has no verdict.
// Workloads that were not started because the budget was spent do not count.
func (b *Brief) NotPassed() bool {
	switch b.State {
	case "running", "detached", "profile", "broken", "": // "" if the run's end is unknown
		return b.Failed > 0
	}
	return b.Total == 0 || b.Passed+b.left < b.Total
}

// Matches reports whether the entry contains all the texts, ignoring case.
func (b *Brief) Matches(texts []string) bool {
	all := strings.ToLower(strings.Join([]string{b.ID, b.State, b.Solution, b.ContentHash, b.Commit, b.Definition, b.Set,
		b.Device, b.GPU}, "\n"))
	return !slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(all, strings.ToLower(t)) })
}

// A History lists the runs of a project, newest first. Comparable runs form a family; the best run of each is marked.
type History struct {
	root string
	Runs []*Brief
}

// ReadHistory reads the runs below root, except for folders that skip selects. It passes the error of an unreadable
// run to warn, and lists the run as broken.
func ReadHistory(root string, skip func(folder string) bool, warn func(error)) (*History, error) {
	ids, err := IDs(root)
	if err != nil {
		return nil, err
	}
	h := &History{root: root, Runs: []*Brief{}} // JSON has a list even without runs
	families := map[string][]*Brief{}
	for _, id := range slices.Backward(ids) {
		folder := filepath.Join(root, Dir, id)
		if skip(folder) {
			continue
		}
		if IsProfile(folder) {
			h.Runs = append(h.Runs, &Brief{ID: id, State: "profile"})
			continue
		}
		r, err := Read(folder)
		if err != nil && !errors.Is(err, ErrEmpty) {
			warn(err)
			h.Runs = append(h.Runs, &Brief{ID: id, State: "broken"})
			continue
		}
		b := brief(r)
		if h.Runs = append(h.Runs, b); b.family != "" {
			families[b.family] = append(families[b.family], b)
		}
	}
	for _, family := range families {
		best(family).Best = true
	}
	return h, nil
}

// best returns the run of a family with the largest mean speed-up, which is the contest's score. The speed-up is
// relative to the newest baseline in the family or, without any, to the oldest run. family is sorted newest first.
func best(family []*Brief) *Brief {
	base := family[len(family)-1].latency
	if i := slices.IndexFunc(family, func(b *Brief) bool { return b.base != nil }); i >= 0 {
		base = family[i].base
	}
	speedup := func(b *Brief) (sum float64) {
		for i, ms := range b.latency {
			sum += base[i] / ms
		}
		return sum
	}
	return slices.MaxFunc(family, func(a, b *Brief) int { return cmp.Compare(speedup(a), speedup(b)) })
}

// family returns the run with the id arg and all runs comparable with it, newest first. If arg is "", run is the
// newest one with a family.
func (h *History) family(arg string) (run *Brief, family []*Brief, err error) {
	if arg != "" {
		if arg, err = Find(h.root, arg); err != nil {
			return nil, nil, usage.Invalid(err)
		}
	}
	i := slices.IndexFunc(h.Runs, func(b *Brief) bool { return b.family != "" && (arg == "" || b.ID == arg) })
	if i < 0 {
		return nil, nil, usage.Errorf("only complete runs on a GPU that passed without a finding count",
			"%s", strings.TrimSpace("no best run "+arg))
	}
	run = h.Runs[i]
	for _, b := range h.Runs {
		if b.family == run.family {
			family = append(family, b)
		}
	}
	return run, family, nil
}

// Best returns the best run of the newest family.
func (h *History) Best() (*Brief, error) {
	_, family, err := h.family("")
	if err != nil {
		return nil, err
	}
	return best(family), nil
}

// BestOther returns the best run of other sources that is comparable with the run with the id arg.
func (h *History) BestOther(arg string) (*Brief, error) {
	run, family, err := h.family(arg)
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(family, func(b *Brief) bool { return b.ContentHash == run.ContentHash })
	if len(others) == 0 {
		return nil, usage.Errorf("", "--best: no comparable run of other sources for %s", run.ID)
	}
	return best(others), nil
}

// Surplus returns all finished runs except the newest keep and the best ones.
func (h *History) Surplus(keep int) (ids []string) {
	for _, b := range h.Runs[min(keep, len(h.Runs)):] {
		if !b.Best && b.State != "running" {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// A Win names the fastest version of the sources for a group of workloads. A version's latency is the median over its
// runs.
type Win struct {
	Axes      string  `json:"axes"` // "batch_size=64"
	Workloads int     `json:"workloads"`
	Run       string  `json:"run"` // the version's newest
	Commit    string  `json:"commit,omitempty"`
	Hash      string  `json:"content_hash"`
	MeanNS    float64 `json:"mean_ns"`
	Second    string  `json:"second,omitempty"` // the newest run of the next version
	Ahead     float64 `json:"ahead,omitempty"`  // Second's mean over MeanNS, minus 1
}

// Wins returns the fastest version for each group of workloads among the runs comparable with the run with the id
// arg, or with the newest if arg is "". top is the best of these runs.
func (h *History) Wins(arg string) (top *Brief, wins []Win, err error) {
	run, family, err := h.family(arg)
	if err != nil {
		return nil, nil, err
	}
	versions := map[string][]*Brief{} // the newest first
	for _, l := range family {
		versions[l.ContentHash] = append(versions[l.ContentHash], l)
	}
	type mean struct {
		*Brief
		ns float64
	}
	for i, g := range run.groups {
		var means []mean
		for _, of := range versions {
			var all []float64
			for _, l := range of {
				all = append(all, l.groups[i].Mean)
			}
			slices.Sort(all)
			means = append(means, mean{of[0], (all[(len(all)-1)/2] + all[len(all)/2]) / 2})
		}
		slices.SortFunc(means, func(a, b mean) int { return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(b.ID, a.ID)) })
		var axes []string
		for _, name := range slices.Sorted(maps.Keys(g.Axes)) {
			axes = append(axes, fmt.Sprintf("%s=%d", name, g.Axes[name]))
		}
		w := Win{Axes: strings.Join(axes, " "), Workloads: g.Workloads, Run: means[0].ID, Commit: means[0].Commit,
			Hash: means[0].ContentHash, MeanNS: means[0].ns}
		if len(means) > 1 {
			w.Second, w.Ahead = means[1].ID, means[1].ns/means[0].ns-1
		}
		wins = append(wins, w)
	}
	return best(family), wins, nil
}

// A Group is the workloads of a run with the same axes. Each figure covers the passed workloads that have it; times
// are nanoseconds, and missing figures are 0 or nil.
type Group struct {
	Axes            map[string]int
	Rows            []Row
	Workloads       int
	Passed, Timed   int
	Mean, Low, High float64  // official latency
	Speedup         *float64 // mean over the baseline
	CopyShare       float64  // mean
}

// Groups groups the rows by their axes, in ascending order of the values.
func Groups(rows []Row) (list []Group) {
	by := map[string][]Row{}
	for _, row := range rows {
		key := axesKey(row.Axes)
		by[key] = append(by[key], row)
	}
	for _, key := range slices.Sorted(maps.Keys(by)) {
		list = append(list, groupOf(by[key]))
	}
	return list
}

func groupOf(rows []Row) Group {
	g := Group{Axes: rows[0].Axes, Rows: rows, Workloads: len(rows), Passed: (&Summary{Rows: rows}).Totals().Passed}
	var latencies, speedups, shares []float64
	for _, row := range rows {
		if !row.Passed() {
			continue
		}
		if ms := row.Evaluated.Latency(); ms != nil {
			latencies = append(latencies, *ms*1e6)
		}
		if x := row.Evaluated.Speedup(); x != nil {
			speedups = append(speedups, *x)
		}
		if row.Samples != nil && row.Samples.CopyShare > 0 {
			shares = append(shares, row.Samples.CopyShare)
		}
	}
	if g.Timed = len(latencies); g.Timed > 0 {
		g.Mean, g.Low, g.High = mean(latencies), slices.Min(latencies), slices.Max(latencies)
	}
	if len(speedups) > 0 {
		g.Speedup = new(mean(speedups))
	}
	if len(shares) > 0 {
		g.CopyShare = mean(shares)
	}
	return g
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	return sum / float64(len(all))
}

// axesKey returns a key that sorts like the axes' values.
func axesKey(axes map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(axes)) {
		fmt.Fprintf(&b, "%q %020d\n", name, uint64(axes[name])+math.MaxInt64+1)
	}
	return b.String()
}
