package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/bench/compare"
	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/report"
	"fisub/session"
)

type compareOptions struct {
	session.Options
	threshold *float64 // in per cent
	failOn    string
	args      []string
	given     string // a flag about how to run that was given, "--set"
}

func (a *app) compareCommand() *cli.Command {
	percent := 100 * compare.Threshold
	o := compareOptions{threshold: &percent}
	running := runFlags(&o.Options)
	return &cli.Command{
		Name:      "compare",
		Usage:     "tell whether B is faster than A",
		ArgsUsage: "A B [C...]",
		Flags: append([]cli.Flag{
			numberFlag(&o.threshold, "threshold", "smallest difference that matters, in `PERCENT`", fmt.Sprint(percent)),
			stringFlag(&o.failOn, "fail-on", "`VERDICT` slower: exit with status 3 if B is slower as a whole, fails what A "+
				"passes, or is "+
				"surely slower on any workload; with 2 if nothing can be compared", ""),
		}, running...),
		Action: func(c *cli.Context) error {
			o.args = c.Args().Slice()
			for _, f := range running {
				if name := f.Names()[0]; o.given == "" && c.IsSet(name) {
					o.given = "--" + name
				}
			}
			return a.compare(c.Context, o)
		},
	}
}

func (a *app) compare(ctx context.Context, o compareOptions) error {
	if n := len(o.args); n > maxSides {
		return usage.Errorf("fisub compare last~1 last, or fisub compare HEAD .",
			"compare: got %d arguments, want A and B, and %d at most", n, maxSides)
	}
	threshold := *o.threshold / 100
	if !(threshold > 0 && threshold <= 1) {
		return usage.Errorf("", "--threshold: must be above 0 and at most 100 %%")
	}
	if o.failOn != "" && o.failOn != "slower" {
		return usage.Errorf("--fail-on slower", "--fail-on: unknown verdict %q", o.failOn)
	}
	sides, err := a.sides(ctx, o)
	if err != nil {
		return err
	}
	var results []*compare.Result
	for _, side := range sides[1:] {
		res, err := compare.Runs(sides[0], side, threshold)
		if err != nil {
			return usage.Invalid(err)
		}
		results = append(results, res)
	}
	switch {
	case !a.json:
		for i, res := range results {
			a.term.Note("A          %s", runText(sides[0]))
			a.term.Note("B          %s", runText(sides[i+1]))
			a.showComparison(res)
		}
	case len(results) == 1:
		err = a.writeJSON(results[0])
	default:
		err = a.writeJSON(results)
	}
	if err != nil || o.failOn == "" {
		return err
	}
	if slices.ContainsFunc(results, (*compare.Result).Slower) {
		return shown(exitNotPassed)
	}
	for i, res := range results {
		if res.Verdict == compare.NotComparable {
			return usage.Errorf("time both on one GPU: the emulator measures nothing",
				"--fail-on slower: nothing says whether run %s is slower: %s", sides[i+1].ID, res.Why)
		}
	}
	return nil
}

// maxSides is how many solutions a comparison takes: each holds a process and its tensors on the device.
const maxSides = 9

// sides gives the runs that the arguments name, or those of the sources that they name, which it runs.
func (a *app) sides(ctx context.Context, o compareOptions) ([]*runs.Run, error) {
	data, err := a.OpenDataset()
	if err != nil {
		return nil, err
	}
	var found []*runs.Run
	var sources []*session.Source
	var foundArg string
	for _, arg := range o.args {
		run, err := a.ReadRun(arg)
		if err == nil {
			found, foundArg = append(found, run), arg
			continue
		}
		var unknown *runs.UnknownError
		if !errors.Is(err, runs.ErrNoRun) && !(errors.As(err, &unknown) && len(unknown.Matches) == 0) {
			return nil, err
		}
		s, sourceErr := a.ReadSource(ctx, arg, data)
		if sourceErr != nil {
			return nil, sourceErr
		}
		if s == nil {
			hint := "a run (fisub runs ls), a packed solution FILE.json, a folder with a config.toml, or a git revision"
			if _, err := git.Open(ctx, a.Root()); err != nil {
				hint += "; revisions cannot be read here: " + plain.Line(plain.First(err.Error()))
			}
			return nil, usage.Errorf(hint, "compare: %w", err)
		}
		a.warn(s.Warnings)
		sources = append(sources, s)
	}
	switch {
	case len(found) > 0 && len(sources) > 0:
		return nil, usage.Errorf("compare runs, or solutions, which are run now, their trials taken in turn",
			"compare: %s is a solution, %s is a run", sources[0].Arg, foundArg)
	case len(found) > 0 && o.given != "":
		return nil, usage.Errorf("leave it out: runs are compared as they are", "%s: A and B are runs", o.given)
	case len(found) > 0:
		return found, nil
	}
	if err := session.SameDefinition(sources); err != nil {
		return nil, err
	}
	last := sources[len(sources)-1]
	u, err := session.NewLocal(ctx, last.Submission, o.Options, nil, a.term)
	if err != nil {
		return nil, err
	}
	u.Version = Version
	return u.RunTogether(ctx, a.Root(), sources, func(letter string, s *session.Source, run *event.Run) event.Sink {
		a.term.Note("running    %s: %s, %s %s", letter, plain.Line(s.Arg), plain.Line(s.Solution.Name),
			plain.Short(run.ContentHash))
		return a.term.Progress(letter, s == last)
	})
}

func (a *app) showComparison(res *compare.Result) {
	for _, w := range res.Warnings {
		a.term.Warn(plain.Line(w), "")
	}
	var axes []string
	for _, row := range res.Rows {
		for name := range row.Axes {
			if !slices.Contains(axes, name) {
				axes = append(axes, name)
			}
		}
	}
	slices.Sort(axes)
	head := []string{"WORKLOAD"}
	for _, name := range axes {
		head = append(head, plain.Cut(strings.ToUpper(name), 10))
	}
	rows := [][]string{append(head, "A", "B", "B/A", "95 % INTERVAL", "VERDICT ON B")}
	for _, row := range res.Rows {
		cells := []string{plain.Short(row.UUID)}
		for _, name := range axes {
			cell := "-"
			if n, ok := row.Axes[name]; ok {
				cell = fmt.Sprint(n)
			}
			cells = append(cells, cell)
		}
		ratio, interval := report.RatioText(row.Ratio)
		rows = append(rows, append(cells, report.SideText(row.A), report.SideText(row.B), ratio, interval,
			report.VerdictText(row.Verdict, row.Why)))
		for _, w := range row.Warnings {
			a.term.Warn(fmt.Sprintf("workload %s: %s", plain.Line(row.UUID), plain.Line(w)), "")
		}
	}
	a.term.Table("l"+strings.Repeat("r", len(axes))+"rrrll", rows, func(n int) int { return news(res.Rows[n-1].Verdict) })
	fmt.Fprintf(a.stdout, "%s\nB as a whole: %s\n", strings.Join(report.Conclusion(res), "\n"),
		a.term.News(headline(res), report.VerdictText(res.Verdict, res.Why)))
}

func news(v compare.Verdict) int {
	switch v {
	case compare.Faster:
		return 1
	case compare.Slower:
		return -1
	}
	return 0
}

// headline is the news of the whole: none that is good where some workloads are slower.
func headline(res *compare.Result) int {
	if res.Mixed && res.Verdict == compare.Faster {
		return 0
	}
	return news(res.Verdict)
}

// runText names a run in a line.
func runText(r *runs.Run) string {
	if r.Run == nil {
		return plain.Line(r.ID)
	}
	return plain.Line(fmt.Sprintf("%s  %s %s, profile %s, on %s", r.ID, r.Run.Solution, plain.Short(r.Run.ContentHash),
		r.Run.Profile.Name, r.Run.Device.Name))
}
