package app

import (
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/report"
	"fisub/session"
)

func (a *app) runsCommand() *cli.Command {
	var f session.RunFilter
	var keep int
	return &cli.Command{
		Name:   "runs",
		Usage:  "list, show and remove runs",
		Action: func(*cli.Context) error { return a.runsLs(session.RunFilter{}) },
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the runs, the newest first", Flags: []cli.Flag{
				countFlag(&f.Limit, "limit", "the newest `N` runs", "all"),
				listFlag(&f.Match, "match", "only runs with `TEXT` in their line, in the whole commit or hash, or in the GPU's "+
					"name; may be repeated"),
				boolFlag(&f.Best, "best", "only the best of those that can be compared")},
				Action: func(*cli.Context) error { return a.runsLs(f) }},
			{Name: "show", Usage: "show what a run ran, and its table", ArgsUsage: "RUN",
				Action: func(c *cli.Context) error { return a.runsShow(c.Args().First()) }},
			{Name: "best", Usage: "say which version of the sources is the fastest on which workloads", ArgsUsage: "[RUN]",
				Action: func(c *cli.Context) error { return a.runsBest(c.Args().First()) }},
			{Name: "rm", Usage: "remove runs", ArgsUsage: "[RUN...]", Flags: []cli.Flag{countFlag(&keep, "keep",
				"remove all but the newest `N` and the best ones", "none")},
				Action: func(c *cli.Context) error { return a.runsRm(c.Args().Slice(), keep) }},
		},
	}
}

func (a *app) runsLs(f session.RunFilter) error {
	lines, err := a.Runs(f, a.term)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.writeJSON(lines)
	case len(lines) == 0:
		a.term.Note("no runs below %s", filepath.Join(a.Root(), runs.Dir))
		return nil
	}
	align, rows := session.RunTable(lines)
	a.term.Table(align, rows, nil)
	return nil
}

func (a *app) runsBest(arg string) error {
	best, wins, err := a.Wins(arg, a.term)
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(struct {
			Best *session.RunLine `json:"best"`
			Wins []session.Win    `json:"wins"`
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
		return usage.Errorf("fisub runs rm RUN..., or fisub runs rm --keep N", "rm: name runs, or say how many to keep")
	}
	removed, err := a.RemoveRuns(args, keep, a.term)
	for _, id := range removed {
		a.line("removed", "%s", id)
	}
	return err
}

func (a *app) runsShow(arg string) error {
	r, err := a.ReadRun(arg)
	if err != nil {
		return err
	}
	if a.final != nil {
		a.final.Of(r)
		return nil
	}
	if a.json {
		return a.writeJSON(struct {
			State string `json:"state"`
			*runs.Run
		}{r.State(), r})
	}
	if r.Run == nil {
		return usage.Errorf("fisub compare can still read its timings", "run %s: it has no run.json", r.ID)
	}
	for _, fact := range report.Facts(r) {
		fmt.Fprintln(a.stdout, a.term.Fit(fmt.Sprintf("%-10s %s", fact[0], plain.Line(fact[1])), 11))
	}
	fmt.Fprintln(a.stdout)
	term := *a.term
	term.Wide = true
	term.Quiet = true // the facts say it
	stream := event.NewStream(term.Run())
	r.Emit(stream)
	return stream.Err()
}
