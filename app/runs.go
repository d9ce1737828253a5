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
	"fisub/report"
)

func (a *app) runsCommand() *cli.Command {
	return &cli.Command{
		Name:  "runs",
		Usage: "list and show runs",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the runs, the newest first", Action: a.runsLs,
				Flags: []cli.Flag{&cli.IntFlag{Name: "limit", Usage: "the newest `N` runs", DefaultText: "all"}},
				Description: "MEAN is the mean over the passed workloads of the official latency. A run is running, done, incomplete (it\n" +
					"ended before all workloads had a verdict) or killed.\n\n   fisub runs ls --limit 10"},
			{Name: "show", Usage: "show what a run ran, and its table", ArgsUsage: "RUN", Action: a.runsShow,
				Description: "RUN is an id, its beginning, last, last~1 for the one before it, or the folder of a run.\n\n   fisub runs show last"},
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

func (a *app) runsLs(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	if c.IsSet("limit") && c.Int("limit") < 1 {
		return usage("", "--limit: must be at least 1")
	}
	root := runsRoot(c)
	ids, err := runs.IDs(root)
	if err != nil {
		return err
	}
	slices.Reverse(ids)
	if c.IsSet("limit") {
		ids = ids[:min(len(ids), c.Int("limit"))]
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
	if globalBool(c, "json") {
		return writeJSON(a.stdout, lines)
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

// age is how long ago something was, in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func (a *app) runsShow(c *cli.Context) error {
	if c.NArg() != 1 {
		return usage("fisub runs show last", "show: got %d runs, want 1", c.NArg())
	}
	r, err := readRun(c, c.Args().First())
	if err != nil {
		return err
	}
	if globalBool(c, "json") {
		return writeJSON(a.stdout, struct {
			State string `json:"state"`
			*runs.Run
		}{r.State(), r})
	}
	if r.Run == nil {
		return usage("fisub compare can still read its timings", "run %s: it has no run.json", r.ID)
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
