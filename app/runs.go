package app

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/report"
)

func (a *app) runsCommand() *cli.Command {
	var limit int
	return &cli.Command{
		Name:   "runs",
		Usage:  "list and show runs",
		Action: func(*cli.Context) error { return a.runsLs(0) },
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the runs, the newest first", Flags: []cli.Flag{countFlag(&limit, "limit",
				"the newest `N` runs", "all")},
				Action: func(*cli.Context) error { return a.runsLs(limit) }},
			{Name: "show", Usage: "show what a run ran, and its table", ArgsUsage: "RUN",
				Action: func(c *cli.Context) error { return a.runsShow(c.Args().First()) }},
		},
	}
}

func (a *app) runsLs(limit int) error {
	lines, err := a.Runs(limit, a.term)
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(lines)
	}
	if len(lines) == 0 {
		a.term.Note("no runs below %s", filepath.Join(a.Root(), runs.Dir))
		return nil
	}
	rows := [][]string{{"RUN", "AGE", "STATE", "PASSED", "MEAN", "DEVICE", "HASH", "SOLUTION", "DEFINITION", "SET"}}
	for _, l := range lines {
		mean, started, passed := "-", "-", "-"
		if l.MeanNS > 0 {
			mean = ui.Micros(l.MeanNS)
		}
		if l.Started != nil {
			started = ui.Age(time.Since(*l.Started))
			passed = fmt.Sprintf("%d/%d", l.Passed, l.Total)
		}
		rows = append(rows, []string{l.ID, started, l.State, passed, mean, l.Device, plain.Short(l.ContentHash), l.Solution,
			l.Definition, l.Set})
	}
	a.term.Table("lrlrrlllll", rows, nil)
	return nil
}

func (a *app) runsShow(arg string) error {
	r, err := a.ReadRun(arg)
	if err != nil {
		return err
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
		fmt.Fprintf(a.stdout, "%-10s %s\n", fact[0], plain.Line(fact[1]))
	}
	fmt.Fprintln(a.stdout)
	term := *a.term
	term.Wide = true
	term.Quiet = true // the facts say it
	stream := event.NewStream(term.Run())
	r.Emit(stream)
	return stream.Err()
}
