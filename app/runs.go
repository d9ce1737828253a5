package app

import (
	"fmt"
	"path/filepath"
	"strings"

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
	mark := func(c *cli.Context, change func(*runs.Mark)) error {
		dir, err := a.RunFolder(c.Args().First())
		if err != nil {
			return err
		}
		return runs.ChangeMark(dir, change)
	}
	pin := func(pinned bool) cli.ActionFunc {
		return func(c *cli.Context) error { return mark(c, func(m *runs.Mark) { m.Pinned = pinned }) }
	}
	return &cli.Command{
		Name:   "runs",
		Usage:  "list, show, mark and remove runs",
		Action: func(*cli.Context) error { return a.runsLs(session.RunFilter{}) },
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the runs, the newest first", Flags: []cli.Flag{
				countFlag(&f.Limit, "limit", "the newest `N` runs", "all"),
				listFlag(&f.Match, "match", "only runs with `TEXT` in their line, in the whole commit or hash, or in the GPU's "+
					"name; may be repeated"),
				boolFlag(&f.Best, "best", "only the best of those that can be compared"),
				boolFlag(&f.Pinned, "pinned", "only those that are pinned")},
				Action: func(*cli.Context) error { return a.runsLs(f) }},
			{Name: "show", Usage: "show what a run ran, and its table", ArgsUsage: "RUN",
				Action: func(c *cli.Context) error { return a.runsShow(c.Args().First()) }},
			{Name: "best", Usage: "say which version of the sources is the fastest on which workloads", ArgsUsage: "[RUN]",
				Action: func(c *cli.Context) error { return a.runsBest(c.Args().First()) }},
			{Name: "note", Usage: "note TEXT beside a run, or take the note away", ArgsUsage: "RUN [TEXT...]",
				Action: func(c *cli.Context) error {
					return mark(c, func(m *runs.Mark) { m.Note = plain.Brief(strings.Join(c.Args().Tail(), " "), 500) })
				}},
			{Name: "pin", Usage: "keep a run from being removed", ArgsUsage: "RUN", Action: pin(true)},
			{Name: "unpin", Usage: "let a run be removed", ArgsUsage: "RUN", Action: pin(false)},
			{Name: "rm", Usage: "remove runs", ArgsUsage: "[RUN...]", Flags: []cli.Flag{countFlag(&keep, "keep",
				"remove all but the newest `N`, those that are pinned, and the best", "none")},
				Action: func(c *cli.Context) error { return a.runsRm(c.Args().Slice(), keep) }},
		},
	}
}

func (a *app) runsLs(f session.RunFilter) error {
	lines, trends, err := a.Runs(f, a.term)
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
	for _, text := range trends {
		fmt.Fprintln(a.stdout, a.term.Fit(plain.Line(text), 2))
	}
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
	a.line("best", "%s  %s", best.ID, strings.Join([]string{plain.Short(best.ContentHash), best.Note}, "  "))
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
