package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/remote/dispatch"
	"fisub/report"
	"fisub/runs"
)

// A runFilter selects the runs to list.
type runFilter struct {
	match  []string // only runs that match these texts
	best   bool
	failed bool // only runs with a workload that did not pass
	limit  int  // only the newest runs; 0: all
}

// String returns the flags of the filter, without the limit.
func (f runFilter) String() string {
	var flags []string
	for _, text := range f.match {
		flags = append(flags, "--match "+text)
	}
	if f.best {
		flags = append(flags, "--best")
	}
	if f.failed {
		flags = append(flags, "--failed")
	}
	return strings.Join(flags, " ")
}

func (a *app) runsCommand() *cli.Command {
	var f runFilter
	var keep int
	return &cli.Command{
		Name:   "runs",
		Usage:  "list, show and remove runs",
		Action: func(*cli.Context) error { return a.runsLs(runFilter{}) },
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the runs, newest first", Flags: []cli.Flag{
				countFlag(&f.limit, "limit", "only the newest `N` runs", "all"),
				listFlag(&f.match, "match", "only runs whose line, commit, hash or GPU contains `TEXT`; may be repeated"),
				boolFlag(&f.best, "best", "only the best of each group of comparable runs"),
				boolFlag(&f.failed, "failed", "only runs in which a workload failed or got no verdict")},
				Action: func(*cli.Context) error { return a.runsLs(f) }},
			{Name: "show", Usage: "show a run: its settings and its table", ArgsUsage: "RUN",
				Action: func(c *cli.Context) error { return a.runsShow(c.Args().First()) }},
			{Name: "best", Usage: "show the fastest version of the sources for each group of workloads", ArgsUsage: "[RUN]",
				Action: func(c *cli.Context) error { return a.runsBest(c.Args().First()) }},
			{Name: "rm", Usage: "remove runs", ArgsUsage: "[RUN...]", Flags: []cli.Flag{countFlag(&keep, "keep",
				"remove all but the newest `N` and the best ones", "none")},
				Action: func(c *cli.Context) error { return a.runsRm(c.Args().Slice(), keep) }},
		},
	}
}

func (a *app) runsLs(f runFilter) error {
	h, err := a.history()
	if err != nil {
		return err
	}
	all := len(h.Runs)
	lines := slices.DeleteFunc(h.Runs, func(b *runs.Brief) bool {
		return f.best && !b.Best || f.failed && !b.NotPassed() || !b.Matches(f.match)
	})
	if f.limit > 0 {
		lines = lines[:min(f.limit, len(lines))]
	}
	switch {
	case a.json:
		return a.writeJSON(lines)
	case len(lines) == 0:
		folder := filepath.Join(a.Root(), runs.Dir)
		if all > 0 {
			a.term.Note("no run below %s matches %s", folder, f)
		} else {
			a.term.Note("no runs below %s", folder)
		}
		return nil
	}
	align, rows := runTable(lines)
	a.term.Table(align, rows, nil)
	return nil
}

// runTable returns the rows of a table of runs, with the heading first, and the alignment of its columns. It omits
// optional columns that are empty.
func runTable(lines []*runs.Brief) (align string, rows [][]string) {
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

func (a *app) runsBest(arg string) error {
	h, err := a.history()
	if err != nil {
		return err
	}
	best, wins, err := h.Wins(arg)
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(struct {
			Best *runs.Brief `json:"best"`
			Wins []runs.Win  `json:"wins"`
		}{best, wins})
	}
	rows := [][]string{{"AXES", "WORKLOADS", "FASTEST", "HASH", "MEAN", "SECOND", "AHEAD"}}
	for _, w := range wins {
		ahead := ""
		if w.Second != "" {
			ahead = fmt.Sprintf("%.1f %%", 100*w.Ahead)
		}
		rows = append(rows, []string{w.Axes, fmt.Sprint(w.Workloads), w.Run, plain.Short(w.Hash), ui.Micros(w.MeanNS),
			w.Second, ahead})
	}
	a.term.Table("LrLrRrR", rows, nil)
	a.line("best", "%s  %s", best.ID, plain.Short(best.ContentHash))
	return nil
}

func (a *app) runsRm(args []string, keep int) error {
	if (len(args) > 0) == (keep > 0) {
		return usage.Errorf("fisub runs rm RUN..., or fisub runs rm --keep N", "rm: missing RUN or --keep")
	}
	var ids []string
	for _, arg := range args {
		id, err := runs.Find(a.Root(), arg)
		if err != nil {
			return usage.Invalid(err)
		}
		ids = append(ids, id)
	}
	if keep > 0 {
		h, err := a.history()
		if err != nil {
			return err
		}
		ids = h.Surplus(keep)
	}
	var faults []error
	for _, id := range ids {
		folder := filepath.Join(a.Root(), runs.Dir, id)
		if plan, err := dispatch.Load(folder); err == nil && len(plan.Active()) > 0 {
			faults = append(faults, usage.Errorf("fisub remote cancel "+id+" ends them", "run %s: its jobs may still run", id))
		} else if err := runs.Remove(folder); err != nil {
			faults = append(faults, err)
		} else {
			a.line("removed", "%s", id)
		}
	}
	return errors.Join(faults...)
}

func (a *app) runsShow(arg string) error {
	r, err := a.readRun(arg)
	if err != nil {
		return err
	}
	if a.final != nil {
		a.final.Of(r, a.inContest)
		return nil
	}
	if a.json {
		return a.writeJSON(struct {
			State string `json:"state"`
			*runs.Run
		}{r.State(), r})
	}
	if r.Run == nil {
		return usage.Errorf("fisub compare can still read its timings", "run %s: no run.json", r.ID)
	}
	for _, fact := range report.Facts(r) {
		fmt.Fprintln(a.stdout, a.term.Fit(fmt.Sprintf("%-10s %s", fact[0], plain.Line(fact[1])), 11))
	}
	fmt.Fprintln(a.stdout)
	term := *a.term
	term.Wide = true
	term.Quiet = true // the facts above say the same
	stream := event.NewStream(term.Run())
	r.Emit(stream)
	return stream.Err()
}

// history returns the runs of the project, except runs of tools.
func (a *app) history() (*runs.History, error) {
	isTool := func(folder string) bool {
		plan, err := dispatch.Load(folder)
		return err == nil && plan.Tool != ""
	}
	h, err := runs.ReadHistory(a.Root(), isTool, func(err error) { a.Warn(plain.Line(err.Error()), "") })
	if err != nil {
		return nil, err
	}
	for _, b := range h.Runs {
		if b.State != "killed" { // the folder of a detached run looks like that of a killed one
			continue
		}
		l, err := dispatch.Describe(filepath.Join(a.Root(), runs.Dir, b.ID))
		if err != nil {
			continue // not a remote run
		}
		b.State, b.Total = l.State, l.Total
		if b.Started == nil {
			b.Started, b.Definition, b.Set = &l.Run.Started, l.Run.Definition, l.Run.Set
			b.Solution, b.ContentHash = l.Run.Solution, l.Run.ContentHash
		}
	}
	return h, nil
}

// runFolder returns the folder of the run arg: a run id, "best", or a folder.
func (a *app) runFolder(arg string) (string, error) {
	if arg == "best" {
		h, err := a.history()
		if err != nil {
			return "", err
		}
		best, err := h.Best()
		if err != nil {
			return "", err
		}
		arg = best.ID
	}
	id, err := runs.Find(a.Root(), arg)
	if err == nil {
		return filepath.Join(a.Root(), runs.Dir, id), nil
	}
	unknown, ok := errors.AsType[*runs.UnknownError](err)
	if !ok {
		return "", err
	}
	dir := a.Path(arg)
	if st, statErr := os.Stat(dir); len(unknown.Matches) > 0 || statErr != nil || !st.IsDir() {
		return "", usage.Invalid(err)
	}
	return dir, nil
}

// readRun reads the run arg, in the form accepted by runFolder.
func (a *app) readRun(arg string) (*runs.Run, error) {
	dir, err := a.runFolder(arg)
	if err != nil {
		return nil, err
	}
	r, err := runs.Read(dir)
	return r, usage.Invalid(err)
}
