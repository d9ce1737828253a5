package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/bench/compare"
	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/report"
	"fisub/session"
)

type compareOptions struct {
	session.Options
	threshold *float64 // in per cent
	failOn    string
	best      bool
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
		ArgsUsage: "[A] B [C...]",
		Flags: append([]cli.Flag{
			numberFlag(&o.threshold, "threshold", "smallest difference that matters, in `PERCENT`", fmt.Sprint(percent)),
			stringFlag(&o.failOn, "fail-on", "`VERDICT` slower: exit with status 3 if B is slower as a whole, fails what A "+
				"passes, or is "+
				"surely slower on any workload; with 2 if nothing can be compared", ""),
			boolFlag(&o.best, "best", "A is the best run of other sources that can be compared with run B"),
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
	if o.best {
		best, err := a.BestBeside(o.args[0], a.term)
		if err != nil {
			return err
		}
		o.args = slices.Insert(o.args, 0, best)
	}
	switch n := len(o.args); {
	case n < 2:
		return usage.Errorf("fisub compare last~1 last, or fisub compare --best last",
			"compare: got 1 argument, want A B [C...]")
	case n > maxSides:
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
	case a.final != nil:
		a.final.Compare(results)
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
			return usage.Errorf("time both on one GPU and one driver: the emulator measures nothing",
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
	found, sources, err := a.Sides(ctx, o.args, data)
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		a.warn(s.Warnings)
	}
	switch {
	case len(found) > 0 && o.given != "":
		return nil, usage.Errorf("leave it out: runs are compared as they are", "%s: A and B are runs", o.given)
	case len(found) > 0:
		return found, nil
	}
	last := sources[len(sources)-1]
	o.Baseline = session.NoBaseline // A is
	u, err := a.NewLocal(ctx, last.Submission, o.Options, nil, a.term)
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		if _, err := session.Compiler(ctx, u.Kind, &u.Device, s.Solution, a.term); err != nil {
			return nil, err
		}
	}
	return u.RunTogether(ctx, a.Root(), sources, func(letter string, s *session.Source, run *event.Run) event.Sink {
		a.term.Note("running    %s: %s, %s %s", letter, plain.Line(s.Arg), plain.Line(s.Solution.Name),
			plain.Short(run.ContentHash))
		return a.also(a.term.Progress(letter, s == last))
	})
}

func (a *app) showComparison(res *compare.Result) {
	for _, w := range res.Warnings {
		a.term.Warn(plain.Line(w), "")
	}
	for _, row := range res.Rows {
		for _, w := range row.Warnings {
			a.term.Warn(fmt.Sprintf("workload %s: %s", plain.Line(row.UUID), plain.Line(w)), "")
		}
	}
	layout, rows := report.Table(res)
	a.term.Table(layout, rows, func(n int) int { return news(res.Rows[n-1].Verdict) })
	fmt.Fprintf(a.stdout, "%s\nB as a whole: %s\n", a.term.Fit(strings.Join(report.Conclusion(res), "\n"), 2),
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
