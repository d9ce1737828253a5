package session

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench/runs"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/remote/dispatch"
)

// A RunLine is a run in the list.
type RunLine struct {
	ID          string     `json:"id"`
	Started     *time.Time `json:"started,omitempty"`
	State       string     `json:"state"` // of runs.Run.State; "broken" if its files cannot be read
	Solution    string     `json:"solution,omitempty"`
	ContentHash string     `json:"content_hash,omitempty"`
	Commit      string     `json:"commit,omitempty"` // ends with -dirty if the sources had been changed
	Definition  string     `json:"definition,omitempty"`
	Set         string     `json:"set,omitempty"`
	Device      string     `json:"device,omitempty"` // "cuda:0", "emu"
	GPU         string     `json:"gpu,omitempty"`    // its name
	Passed      int        `json:"passed"`
	Total       int        `json:"total"`
	MeanNS      float64    `json:"mean_ns,omitempty"`
	Score       *float64   `json:"score,omitempty"`
	Best        bool       `json:"best,omitempty"` // of its family

	family string // equal for runs whose figures can be compared; "" for a run without such figures

	// In a family all runs have the same workloads, here in the order of their uuids, and the same groups.
	latency []float64 // ms
	base    []float64 // ms, of the run's baseline; nil without one
	groups  []runs.Group
}

// lineOf returns the line of r. It has a family if all workloads passed, were timed, and have no finding.
func lineOf(r *runs.Run) *RunLine {
	l := &RunLine{ID: r.ID, State: r.State(), MeanNS: r.Official()}
	l.Passed, l.Total = r.Passed()
	f := r.Run
	if f == nil {
		return l
	}
	l.Started, l.Solution, l.ContentHash, l.Definition, l.Set = &f.Started, f.Solution, f.ContentHash, f.Definition, f.Set
	if l.Device, l.GPU = f.Device.Kind, f.Device.Name; !f.Device.Emulated {
		l.Device = fmt.Sprintf("%s:%d", f.Device.Kind, f.Device.Ordinal)
	}
	if f.Git != nil {
		if l.Commit = f.Git.Commit; f.Git.Dirty {
			l.Commit += "-dirty"
		}
	}
	if r.Done == nil || r.Done.Missing > 0 || len(r.Rows) == 0 {
		return l
	}
	l.Score = r.Done.Score
	rows := slices.SortedFunc(slices.Values(r.Rows), func(a, b runs.Row) int { return strings.Compare(a.UUID, b.UUID) })
	family := fmt.Appendf(nil, "%q %q %q %q", f.Definition, f.Device.Kind, f.Device.Name, f.Device.Arch)
	for _, row := range rows {
		e := row.Evaluated
		if !row.Passed() || e.Latency() == nil || len(row.Findings) > 0 || row.Samples == nil {
			return l
		}
		ms := *e.Latency()
		l.latency = append(l.latency, ms)
		if x := e.Speedup(); x != nil && f.Baseline != nil {
			l.base = append(l.base, ms**x)
		}
		family = fmt.Appendf(family, " %q %q %q", row.UUID, fmt.Sprint(row.Axes), row.Samples.Timer)
	}
	if len(l.base) < len(rows) {
		l.base = nil
	}
	l.family, l.groups = string(family), runs.Groups(rows)
	return l
}

// history reads all runs, the newest first, and marks the best of each family. It warns of those that it cannot read;
// log may be nil.
func (p *Project) history(log Log) (lines []*RunLine, err error) {
	ids, err := runs.IDs(p.Root())
	if err != nil {
		return nil, err
	}
	lines = []*RunLine{} // JSON has a list even without runs
	families := map[string][]*RunLine{}
	for _, id := range slices.Backward(ids) {
		dir := filepath.Join(p.Root(), runs.Dir, id)
		if plan, err := dispatch.Load(dir); err == nil && plan.Tool != "" {
			continue
		}
		r, err := runs.Read(dir)
		if err != nil && !errors.Is(err, runs.ErrEmpty) {
			if log != nil {
				log.Warn(plain.Line(err.Error()), "")
			}
			lines = append(lines, &RunLine{ID: id, State: "broken"})
			continue
		}
		l := lineOf(r)
		if lines = append(lines, l); l.family != "" {
			families[l.family] = append(families[l.family], l)
		}
	}
	for _, family := range families {
		best(family).Best = true
	}
	return lines, nil
}

// best returns the run of a family, the newest first, with the largest mean speed-up, which is how the contest scores.
// It is the speed-up over the newest baseline that one of the runs was timed with, without one over the oldest run.
func best(family []*RunLine) *RunLine {
	base := family[len(family)-1].latency
	if i := slices.IndexFunc(family, func(l *RunLine) bool { return l.base != nil }); i >= 0 {
		base = family[i].base
	}
	speedup := func(l *RunLine) (sum float64) {
		for i, ms := range l.latency {
			sum += base[i] / ms
		}
		return sum
	}
	return slices.MaxFunc(family, func(a, b *RunLine) int { return cmp.Compare(speedup(a), speedup(b)) })
}

// A RunFilter says which runs are listed.
type RunFilter struct {
	Match []string // only runs whose line has all of these texts
	Best  bool
	Limit int // the newest so many; 0: all
}

// Runs lists the runs of the project, the newest first.
func (p *Project) Runs(f RunFilter, log Log) ([]*RunLine, error) {
	lines, err := p.history(log)
	if err != nil {
		return nil, err
	}
	lines = slices.DeleteFunc(lines, func(l *RunLine) bool {
		text := strings.ToLower(strings.Join([]string{l.ID, l.State, l.Solution, l.ContentHash, l.Commit, l.Definition, l.Set,
			l.Device, l.GPU}, "\n"))
		return f.Best && !l.Best || slices.ContainsFunc(f.Match, func(m string) bool {
			return !strings.Contains(text, strings.ToLower(m))
		})
	})
	if f.Limit > 0 {
		lines = lines[:min(f.Limit, len(lines))]
	}
	return lines, nil
}

// RunTable returns the rows of a table of runs, its heading first, and the alignment of its columns. It leaves out a
// column that would be empty.
func RunTable(lines []*RunLine) (align string, rows [][]string) {
	heads := strings.Fields("RUN AGE STATE PASSED MEAN SCORE BEST DEVICE COMMIT HASH SOLUTION DEFINITION SET")
	rows = [][]string{heads}
	for _, l := range lines {
		mean, started, passed, score, best := "-", "-", "-", "", ""
		if l.MeanNS > 0 {
			mean = ui.Micros(l.MeanNS)
		}
		if l.Started != nil {
			started = ui.Age(time.Since(*l.Started))
			passed = fmt.Sprintf("%d/%d", l.Passed, l.Total)
		}
		if l.Score != nil {
			score = fmt.Sprintf("%.3f", *l.Score)
		}
		if l.Best {
			best = "best"
		}
		commit, dirty, _ := strings.Cut(l.Commit, "-")
		if commit = plain.Short(commit); dirty != "" {
			commit += "+"
		}
		rows = append(rows, []string{l.ID, started, l.State, passed, mean, score, best, l.Device, commit,
			plain.Short(l.ContentHash), l.Solution, l.Definition, l.Set})
	}
	align = "LRLRRRLllllll"
	for i := len(heads) - 1; i >= 0; i-- {
		if slices.Contains([]string{"SCORE", "BEST", "COMMIT"}, heads[i]) &&
			!slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != "" }) {
			align = align[:i] + align[i+1:]
			for n := range rows {
				rows[n] = slices.Concat(rows[n][:i], rows[n][i+1:])
			}
		}
	}
	return align, rows
}

// family returns the run that arg names and those whose figures can be compared with its own, the newest first. If arg
// is "", run is the newest one that has a family.
func (p *Project) family(arg string, log Log) (run *RunLine, family []*RunLine, err error) {
	if arg != "" {
		if arg, err = runs.Find(p.Root(), arg); err != nil {
			return nil, nil, usage.Invalid(err)
		}
	}
	all, err := p.history(log)
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(all, func(l *RunLine) bool { return l.family != "" && (arg == "" || l.ID == arg) })
	if i < 0 {
		return nil, nil, usage.Errorf("a run counts that has ended, was timed on a GPU, and passed without a finding",
			"%s", strings.TrimSpace("no best run "+arg))
	}
	run = all[i]
	return run, slices.DeleteFunc(all, func(l *RunLine) bool { return l.family != run.family }), nil
}

// BestBeside returns the id of the best run of other sources that can be compared with the run that arg names.
func (p *Project) BestBeside(arg string, log Log) (string, error) {
	run, family, err := p.family(arg, log)
	if err != nil {
		return "", err
	}
	others := slices.DeleteFunc(family, func(l *RunLine) bool { return l.ContentHash == run.ContentHash })
	if len(others) == 0 {
		return "", usage.Errorf("", "--best: no run of other sources can be compared with %s", run.ID)
	}
	return best(others).ID, nil
}

// A Win says which version of the sources is the fastest on the workloads with the same axes. A version's latency is
// the median over its runs.
type Win struct {
	Axes      string  `json:"axes"` // "batch_size=64"
	Workloads int     `json:"workloads"`
	Run       string  `json:"run"` // the version's newest
	Commit    string  `json:"commit,omitempty"`
	Hash      string  `json:"content_hash"`
	MeanNS    float64 `json:"mean_ns"`
	Second    string  `json:"second,omitempty"` // the newest run of the next version
	Ahead     float64 `json:"ahead,omitempty"`  // Second's mean over MeanNS, less 1
}

// Wins returns the fastest version for each group of workloads, among the runs that can be compared with the run that
// arg names, or with the newest if arg is "". top is the best of these runs.
func (p *Project) Wins(arg string, log Log) (top *RunLine, wins []Win, err error) {
	run, family, err := p.family(arg, log)
	if err != nil {
		return nil, nil, err
	}
	versions := map[string][]*RunLine{} // the newest first
	for _, l := range family {
		versions[l.ContentHash] = append(versions[l.ContentHash], l)
	}
	type mean struct {
		*RunLine
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

// RemoveRuns removes the runs that args name and, if keep is above 0, all others except the newest so many and the best
// ones. It returns the ids of the removed runs.
func (p *Project) RemoveRuns(args []string, keep int, log Log) (removed []string, err error) {
	var ids []string
	for _, arg := range args {
		id, err := runs.Find(p.Root(), arg)
		if err != nil {
			return nil, usage.Invalid(err)
		}
		ids = append(ids, id)
	}
	if keep > 0 {
		all, err := p.history(log)
		if err != nil {
			return nil, err
		}
		for _, l := range all[min(keep, len(all)):] {
			if !l.Best && l.State != "running" {
				ids = append(ids, l.ID)
			}
		}
	}
	var faults []error
	for _, id := range ids {
		dir := filepath.Join(p.Root(), runs.Dir, id)
		if plan, err := dispatch.Load(dir); err == nil && len(plan.Active()) > 0 {
			faults = append(faults, usage.Errorf("fisub remote cancel "+id+" ends them", "run %s: its jobs may still run", id))
		} else if err := runs.Remove(dir); err != nil {
			faults = append(faults, err)
		} else {
			removed = append(removed, id)
		}
	}
	return removed, errors.Join(faults...)
}
