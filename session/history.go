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
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/remote/dispatch"
	"fisub/report"
)

// A RunLine is a run in the list.
type RunLine struct {
	ID          string     `json:"id"`
	Started     *time.Time `json:"started,omitempty"`
	State       string     `json:"state"` // of runs.Run.State; "broken" where its files cannot be read
	Solution    string     `json:"solution,omitempty"`
	ContentHash string     `json:"content_hash,omitempty"`
	Commit      string     `json:"commit,omitempty"` // with -dirty behind it where the sources had been changed
	Definition  string     `json:"definition,omitempty"`
	Set         string     `json:"set,omitempty"`
	Device      string     `json:"device,omitempty"` // "cuda:0", "emu"
	GPU         string     `json:"gpu,omitempty"`    // its name
	Passed      int        `json:"passed"`
	Total       int        `json:"total"`
	MeanNS      float64    `json:"mean_ns,omitempty"`
	Score       *float64   `json:"score,omitempty"`
	runs.Mark
	Relative float64 `json:"relative,omitempty"` // mean speed-up over what its family has in common; 0 in none
	Best     bool    `json:"best,omitempty"`     // no run of its family has a larger one

	latency map[string]float64 // of each workload in ms, where all passed, were timed, and have no finding
	axes    map[string][]int   // of each workload, by their names
	names   map[string]string  // of the same: "batch_size=64"
	base    map[string]float64 // latency of the run's baseline
	family  string             // what runs whose figures can be compared have in common; "" where it is in none
	of      string             // what Relative is over
	over    map[string]float64 // and its latencies
}

// lineOf takes what the list has of a run.
func lineOf(r *runs.Run) *RunLine {
	l := &RunLine{ID: r.ID, State: r.State(), MeanNS: r.Official(), Mark: r.Mark}
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
	if r.Done == nil || r.Done.Missing > 0 {
		return l
	}
	l.Score = r.Done.Score
	latency, base, timers := map[string]float64{}, map[string]float64{}, map[string]bool{}
	axes, names := map[string][]int{}, map[string]string{}
	for _, row := range r.Rows {
		e := row.Evaluated
		if e == nil || e.Status != string(trace.Passed) || e.Latency == nil || len(row.Findings) > 0 || row.Samples == nil {
			return l
		}
		latency[row.UUID] = *e.Latency
		timers[row.Samples.Timer] = true
		for _, name := range slices.Sorted(maps.Keys(row.Axes)) {
			axes[row.UUID] = append(axes[row.UUID], row.Axes[name])
			names[row.UUID] = strings.TrimSpace(fmt.Sprintf("%s %s=%d", names[row.UUID], name, row.Axes[name]))
		}
		if e.Speedup != nil && f.Baseline != nil {
			base[row.UUID] = *e.Latency * *e.Speedup
		}
	}
	if len(timers) != 1 {
		return l
	}
	if len(base) == len(latency) {
		l.base, l.of = base, "baseline "+f.Baseline.Name
	}
	l.latency, l.axes, l.names = latency, axes, names
	l.family = fmt.Sprint(f.Definition, f.Device.Kind, f.Device.Name, f.Device.Arch, timers,
		slices.Sorted(maps.Keys(latency)))
	return l
}

// history reads all runs, the newest first. Those that cannot be read are told, where log is not nil.
func (p *Project) history(log Log) (lines []*RunLine, err error) {
	ids, err := runs.IDs(p.Root())
	if err != nil {
		return nil, err
	}
	lines = []*RunLine{} // of none too, for whoever writes it as JSON
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
		rate(family)
	}
	return lines, nil
}

// rate gives each run of a family, the newest first, its mean speed-up over the newest baseline that one of them was
// timed with, as the contest's score has it, and over the oldest run where there is none. The best has the largest.
func rate(family []*RunLine) {
	oldest := family[len(family)-1]
	base, of := oldest.latency, "run "+oldest.ID
	if i := slices.IndexFunc(family, func(l *RunLine) bool { return l.base != nil }); i >= 0 {
		base, of = family[i].base, family[i].of
	}
	best := family[0]
	for _, l := range family {
		l.of, l.over, l.Relative = of, base, 0
		for uuid, ms := range l.latency {
			l.Relative += base[uuid] / ms / float64(len(l.latency))
		}
		if l.Relative > best.Relative {
			best = l
		}
	}
	best.Best = true
}

// A RunFilter says which runs are listed.
type RunFilter struct {
	Match        []string // texts, of which a run's line has each
	Best, Pinned bool
	Limit        int // the newest so many; 0: all
}

// Runs lists the runs of the project, the newest first, and says in a line for each family of runs whose figures can be
// compared how they went.
func (p *Project) Runs(f RunFilter, log Log) (lines []*RunLine, trends []string, err error) {
	all, err := p.history(log)
	if err != nil {
		return nil, nil, err
	}
	lines = slices.DeleteFunc(all, func(l *RunLine) bool {
		text := strings.ToLower(strings.Join([]string{l.ID, l.State, l.Solution, l.ContentHash, l.Commit, l.Definition, l.Set,
			l.Device, l.GPU, l.Note}, "\n"))
		return f.Best && !l.Best || f.Pinned && !l.Pinned || slices.ContainsFunc(f.Match, func(m string) bool {
			return !strings.Contains(text, strings.ToLower(m))
		})
	})
	if f.Limit > 0 {
		lines = lines[:min(f.Limit, len(lines))]
	}
	values, of := map[string][]float64{}, map[string]*RunLine{}
	var families []string
	for _, l := range lines {
		if l.family == "" {
			continue
		}
		if of[l.family] == nil {
			families, of[l.family] = append(families, l.family), l
		}
		values[l.family] = append(values[l.family], l.Relative)
	}
	for _, name := range families {
		if v := values[name]; len(v) > 1 {
			slices.Reverse(v)
			trends = append(trends, fmt.Sprintf("%s  %s to %s in %d runs, over %s: %s, %s of %s", ui.Spark(v), ui.Times(&v[0]),
				ui.Times(&v[len(v)-1]), len(v), of[name].of, of[name].GPU, plain.Count(of[name].Total, "workload"),
				of[name].Definition))
		}
	}
	return lines, trends, nil
}

// commit is short, with + behind it where the sources had been changed.
func (l *RunLine) commit() string {
	commit, dirty, _ := strings.Cut(l.Commit, "-")
	if dirty != "" {
		return plain.Short(commit) + "+"
	}
	return plain.Short(commit)
}

// RunTable gives the rows of a table of runs, its heading first, and how its columns are aligned. A column that would
// be empty is left out.
func RunTable(lines []*RunLine) (align string, rows [][]string) {
	heads := strings.Fields("RUN AGE STATE PASSED MEAN SCORE MARK NOTE DEVICE COMMIT HASH SOLUTION DEFINITION SET")
	rows = [][]string{heads}
	for _, l := range lines {
		mean, started, passed, score := "-", "-", "-", ""
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
		var marks []string
		if l.Best {
			marks = append(marks, "best")
		}
		if l.Pinned {
			marks = append(marks, "pin")
		}
		rows = append(rows, []string{l.ID, started, l.State, passed, mean, score, strings.Join(marks, " "), l.Note, l.Device,
			l.commit(), plain.Short(l.ContentHash), l.Solution, l.Definition, l.Set})
	}
	align = "LRLRRRLlllllll"
	for i := len(heads) - 1; i >= 0; i-- {
		if slices.Contains([]string{"SCORE", "MARK", "NOTE", "COMMIT"}, heads[i]) &&
			!slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != "" }) {
			align = align[:i] + align[i+1:]
			for n := range rows {
				rows[n] = slices.Concat(rows[n][:i], rows[n][i+1:])
			}
		}
	}
	return align, rows
}

// family gives the runs whose figures can be compared with those of the run that arg names, that one first; of the
// newest run that is in a family where arg is "".
func (p *Project) family(arg string, log Log) (family []*RunLine, err error) {
	if arg != "" {
		if arg, err = runs.Find(p.Root(), arg); err != nil {
			return nil, usage.Invalid(err)
		}
	}
	all, err := p.history(log)
	if err != nil {
		return nil, err
	}
	first := slices.IndexFunc(all, func(l *RunLine) bool { return l.family != "" && (arg == "" || l.ID == arg) })
	if first < 0 {
		return nil, usage.Errorf("a run counts that has ended, was timed on a GPU, and passed without a finding",
			"%s", strings.TrimSpace("no best run "+arg))
	}
	for _, l := range all {
		if l.family == all[first].family && l != all[first] {
			family = append(family, l)
		}
	}
	return append([]*RunLine{all[first]}, family...), nil
}

// BestBeside gives the id of the best of the runs of other sources that can be compared with the run that arg names.
func (p *Project) BestBeside(arg string, log Log) (string, error) {
	family, err := p.family(arg, log)
	if err != nil {
		return "", err
	}
	others := slices.DeleteFunc(slices.Clone(family), func(l *RunLine) bool {
		return l.ContentHash == family[0].ContentHash
	})
	if len(others) == 0 {
		return "", usage.Errorf("", "--best: no run of other sources can be compared with %s", family[0].ID)
	}
	return slices.MaxFunc(others, func(a, b *RunLine) int { return cmp.Compare(a.Relative, b.Relative) }).ID, nil
}

// past is the history of the runs that can be compared with the run id of the project; nil where there are none.
func (p *Project) past(id string) *report.History {
	family, err := p.family(id, nil)
	if err != nil || len(family) < 2 {
		return nil
	}
	slices.SortFunc(family, func(a, b *RunLine) int { return strings.Compare(a.ID, b.ID) })
	h := &report.History{Of: family[0].of}
	groups, sizes := map[string][]string{}, map[string][]int{}
	for uuid, name := range family[0].names {
		groups[name], sizes[name] = append(groups[name], uuid), family[0].axes[uuid]
	}
	h.Groups = slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(slices.Compare(sizes[a], sizes[b]), strings.Compare(a, b))
	})
	for _, l := range family {
		past := report.Past{ID: l.ID, Commit: l.commit(), Note: l.Note, Speedup: l.Relative}
		for _, name := range h.Groups {
			var sum float64
			for _, uuid := range groups[name] {
				sum += l.over[uuid] / l.latency[uuid]
			}
			past.Groups = append(past.Groups, sum/float64(len(groups[name])))
		}
		h.Runs = append(h.Runs, past)
	}
	return h
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
	sizes     []int
}

// Wins says which version won where, among the runs that can be compared with the run that arg names, or with the
// newest.
func (p *Project) Wins(arg string, log Log) (best *RunLine, wins []Win, err error) {
	family, err := p.family(arg, log)
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(family, func(a, b *RunLine) int { return strings.Compare(b.ID, a.ID) })
	versions := map[string][]*RunLine{} // the newest first
	groups := map[string][]string{}
	for uuid, names := range family[0].names {
		groups[names] = append(groups[names], uuid)
	}
	for _, l := range family {
		versions[l.ContentHash] = append(versions[l.ContentHash], l)
		if l.Best {
			best = l
		}
	}
	type mean struct {
		*RunLine
		ns float64
	}
	for names, uuids := range groups {
		var means []mean
		for _, of := range versions {
			m := mean{RunLine: of[0]}
			for _, uuid := range uuids {
				var all []float64
				for _, l := range of {
					all = append(all, l.latency[uuid])
				}
				slices.Sort(all)
				m.ns += (all[(len(all)-1)/2] + all[len(all)/2]) / 2 * 1e6 / float64(len(uuids))
			}
			means = append(means, m)
		}
		slices.SortFunc(means, func(a, b mean) int { return cmp.Compare(a.ns, b.ns) })
		w := Win{Axes: names, sizes: family[0].axes[uuids[0]], Workloads: len(uuids), Run: means[0].ID,
			Commit: means[0].Commit, Hash: means[0].ContentHash, MeanNS: means[0].ns}
		if len(means) > 1 {
			w.Second, w.Ahead = means[1].ID, means[1].ns/means[0].ns-1
		}
		wins = append(wins, w)
	}
	slices.SortFunc(wins, func(a, b Win) int { return slices.Compare(a.sizes, b.sizes) })
	return best, wins, nil
}

// RemoveRuns removes the runs that args name, or, where keep is above 0, all but the newest so many, those that are
// pinned and those that are the best of theirs. It gives the ids of those that it has removed.
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
			if !l.Pinned && !l.Best && l.State != "running" {
				ids = append(ids, l.ID)
			}
		}
	}
	var faults []error
	for _, id := range ids {
		dir := filepath.Join(p.Root(), runs.Dir, id)
		if plan, err := dispatch.Load(dir); err == nil && len(plan.Active()) > 0 {
			faults = append(faults, usage.Errorf("fisub remote cancel "+id+" ends them", "run %s: its jobs may still run", id))
			continue
		}
		switch err := runs.Remove(dir); {
		case errors.Is(err, runs.ErrPinned):
			faults = append(faults, usage.Errorf("fisub runs unpin "+id, "%w", err))
		case err != nil:
			faults = append(faults, err)
		default:
			removed = append(removed, id)
		}
	}
	return removed, errors.Join(faults...)
}
