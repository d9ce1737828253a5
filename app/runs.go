package app

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
		Name:  "runs",
		Usage: "list and show runs",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the runs, the newest first", Flags: []cli.Flag{countFlag(&limit, "limit", "the newest `N` runs", "all")},
				Description: "MEAN is the mean over the passed workloads of the official latency. A run is running, done, incomplete (it\n" +
					"ended before all workloads had a verdict) or killed.\n\n   fisub runs ls --limit 10",
				Action: func(*cli.Context) error { return a.runsLs(limit) }},
			{Name: "show", Usage: "show what a run ran, and its table", ArgsUsage: "RUN",
				Description: "RUN is an id, its beginning, last, last~1 for the one before it, or the folder of a run.\n\n   fisub runs show last",
				Action:      func(c *cli.Context) error { return a.runsShow(c.Args().First()) }},
		},
	}
}

// A runLine is a run in the list.
type runLine struct {
	ID          string     `json:"id"`
	Started     *time.Time `json:"started,omitempty"`
	State       string     `json:"state"` // of runs.Run.State; "broken" where its files cannot be read
	Solution    string     `json:"solution,omitempty"`
	ContentHash string     `json:"content_hash,omitempty"`
	Definition  string     `json:"definition,omitempty"`
	Set         string     `json:"set,omitempty"`
	Device      string     `json:"device,omitempty"` // "cuda:0", "emu"
	GPU         string     `json:"gpu,omitempty"`    // its name
	Passed      int        `json:"passed"`
	Total       int        `json:"total"`
	MeanNS      float64    `json:"mean_ns,omitempty"`
}

func (a *app) runsLs(limit int) error {
	root := a.Root()
	ids, err := runs.IDs(root)
	if err != nil {
		return err
	}
	slices.Reverse(ids)
	if limit > 0 {
		ids = ids[:min(len(ids), limit)]
	}
	lines := []runLine{}
	for _, id := range ids {
		r, err := runs.Read(filepath.Join(root, runs.Dir, id))
		if err != nil && !errors.Is(err, runs.ErrEmpty) {
			a.term.Warn(plain.Line(err.Error()), "")
			lines = append(lines, runLine{ID: id, State: "broken"})
			continue
		}
		line := runLine{ID: id, State: r.State(), MeanNS: r.Official()}
		line.Passed, line.Total = r.Passed()
		if f := r.Run; f != nil {
			line.Started, line.Solution, line.ContentHash, line.Definition, line.Set = &f.Started, f.Solution, f.ContentHash, f.Definition, f.Set
			line.Device, line.GPU = f.Device.Kind, f.Device.Name
			if !f.Device.Emulated {
				line.Device = fmt.Sprintf("%s:%d", f.Device.Kind, f.Device.Ordinal)
			}
		}
		lines = append(lines, line)
	}
	if a.json {
		return a.writeJSON(lines)
	}
	if len(lines) == 0 {
		a.term.Note("no runs below %s", filepath.Join(root, runs.Dir))
		return nil
	}
	rows := [][]string{{"RUN", "AGE", "STATE", "PASSED", "MEAN", "DEVICE", "HASH", "SOLUTION", "DEFINITION", "SET"}}
	for _, l := range lines {
		mean, started, passed := "-", "-", "-"
		if l.MeanNS > 0 {
			mean = ui.Micros(l.MeanNS)
		}
		if l.Started != nil {
			started = age(time.Since(*l.Started))
			passed = fmt.Sprintf("%d/%d", l.Passed, l.Total)
		}
		rows = append(rows, []string{l.ID, started, l.State, passed, mean, l.Device, plain.Short(l.ContentHash), l.Solution, l.Definition, l.Set})
	}
	return a.term.Table("lrlrrlllll", rows, nil)
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
	if err := a.showFacts(r); err != nil {
		return err
	}
	term := *a.term
	term.Wide = true
	term.Quiet = true // the facts say it
	stream := event.NewStream(term.Run())
	r.Emit(stream)
	return stream.Err()
}

func (a *app) showFacts(r *runs.Run) error {
	for _, fact := range report.Facts(r) {
		if _, err := fmt.Fprintf(a.stdout, "%-10s %s\n", fact[0], plain.Line(fact[1])); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(a.stdout)
	return err
}
