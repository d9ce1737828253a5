package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/bench/compare"
	"fisub/bench/runs"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/report"
)

func (a *app) compareCommand() *cli.Command {
	return &cli.Command{
		Name:      "compare",
		Usage:     "tell whether B is faster than A",
		ArgsUsage: "A B [C...]",
		Description: "A and B are two runs: an id, its beginning, last, last~1 for the one before it, or the folder of a run. Or they are\n" +
			"two solutions that are run now, with their trials taken in turn on one device: a packed solution FILE.json, a folder\n" +
			"with a config.toml, or a git revision REV, or REV:DIR for the submission in another folder of the repository.\n" +
			"Further ones are run in turn with them and compared with A too, each in a table of its own.\n" +
			"For each workload that both have, and as a whole, B's time over A's with its 95 % interval, and the verdict on B:\n" +
			"   faster, slower  the medians differ by more than the threshold, and chance does not explain it\n" +
			"                   (at 0.05: Mann-Whitney test of the timings, t-test of the\n" +
			"                   medians of trials, and the interval)\n" +
			"   same            they do not, and the interval rules out twice the threshold\n" +
			"   unclear         the timings do not decide it\n\n" +
			"   fisub compare last~1 last\n" +
			"   fisub compare HEAD .\n" +
			"   fisub compare . solution/baselines/warp-per-row solution/baselines/warp-8-rows\n" +
			"   fisub compare --fail-on slower --set contest54 main HEAD",
		Flags: append([]cli.Flag{
			&cli.Float64Flag{Name: "threshold", Value: 100 * compare.Threshold, Usage: "smallest difference that matters, in `PERCENT`"},
			&cli.StringFlag{Name: "fail-on", Usage: "`VERDICT` slower: exit with status 3 if B is slower as a whole, fails what A passes, or is surely slower on any workload; with 2 if nothing can be compared"},
		}, runFlags()...),
		Action: a.compare,
	}
}

func (a *app) compare(c *cli.Context) error {
	if n := c.NArg(); n < 2 || n > maxSides {
		return usage("fisub compare last~1 last, or fisub compare HEAD .", "compare: got %d arguments, want A and B, and %d at most", n, maxSides)
	}
	threshold := c.Float64("threshold") / 100
	if !(threshold > 0 && threshold <= 1) {
		return usage("", "--threshold: must be above 0 and at most 100 %%")
	}
	if on := c.String("fail-on"); on != "" && on != "slower" {
		return usage("--fail-on slower", "--fail-on: unknown verdict %q", on)
	}
	sides, err := a.sides(c)
	if err != nil {
		return err
	}
	var results []*compare.Result
	for _, side := range sides[1:] {
		res, err := compare.Runs(sides[0], side, threshold)
		if err != nil {
			return invalid(err)
		}
		results = append(results, res)
	}
	switch {
	case !globalBool(c, "json"):
		for i, res := range results {
			a.term.Note("A          %s", runText(sides[0]))
			a.term.Note("B          %s", runText(sides[i+1]))
			if err := a.showComparison(res); err != nil {
				return err
			}
		}
	case len(results) == 1:
		err = writeJSON(a.stdout, results[0])
	default:
		err = writeJSON(a.stdout, results)
	}
	if err != nil {
		return err
	}
	if c.String("fail-on") == "slower" {
		for _, res := range results {
			if res.Slower() {
				return errSlower
			}
		}
		for i, res := range results {
			if res.Verdict == compare.NotComparable {
				return usage("time both on one GPU: the emulator measures nothing", "--fail-on slower: nothing says whether run %s is slower: %s", sides[i+1].ID, res.Why)
			}
		}
	}
	return nil
}

// maxSides is how many solutions a comparison takes: each holds a process and its tensors on the device.
const maxSides = 9

// sides gives the runs that the arguments name, or those of the sources that they name, which it runs.
func (a *app) sides(c *cli.Context) ([]*runs.Run, error) {
	data, err := openDataset(c)
	if err != nil {
		return nil, err
	}
	var found []*runs.Run
	var sources []*source
	var foundArg string
	for _, arg := range c.Args().Slice() {
		run, err := readRun(c, arg)
		if err == nil {
			found, foundArg = append(found, run), arg
			continue
		}
		var unknown *runs.UnknownError
		if !errors.Is(err, runs.ErrNoRun) && !(errors.As(err, &unknown) && len(unknown.Matches) == 0) {
			return nil, err
		}
		s, sourceErr := a.readSource(c, arg, data)
		if sourceErr != nil {
			return nil, sourceErr
		}
		if s == nil {
			hint := "a run (fisub runs ls), a packed solution FILE.json, a folder with a config.toml, or a git revision"
			if _, err := git.Open(c.Context, runsRoot(c)); err != nil {
				text, _, _ := strings.Cut(err.Error(), "\n")
				hint += "; revisions cannot be read here: " + plain.Line(text)
			}
			return nil, usage(hint, "compare: %w", err)
		}
		sources = append(sources, s)
	}
	switch {
	case len(found) == 0:
		return a.runTogether(c, sources)
	case len(sources) > 0:
		return nil, usage("compare runs, or solutions, which are run now, their trials taken in turn",
			"compare: %s is a solution, %s is a run", sources[0].arg, foundArg)
	}
	for _, f := range runFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			return nil, usage("leave it out: runs are compared as they are", "--%s: A and B are runs", name)
		}
	}
	return found, nil
}

func (a *app) showComparison(res *compare.Result) error {
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
		rows = append(rows, append(cells, report.SideText(row.A), report.SideText(row.B), ratio, interval, report.VerdictText(row.Verdict, row.Why)))
		for _, w := range row.Warnings {
			a.term.Warn(fmt.Sprintf("workload %s: %s", plain.Line(row.UUID), plain.Line(w)), "")
		}
	}
	err := a.term.Table("l"+strings.Repeat("r", len(axes))+"rrrll", rows, func(n int) int { return news(res.Rows[n-1].Verdict) })
	if err != nil {
		return err
	}

	text := strings.Join(report.Conclusion(res), "\n") + "\n"
	text += fmt.Sprintf("B as a whole: %s\n", a.term.News(news(res.Verdict), report.VerdictText(res.Verdict, res.Why)))
	_, err = fmt.Fprint(a.stdout, text)
	return err
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

// runText names a run in a line.
func runText(r *runs.Run) string {
	if r.Run == nil {
		return plain.Line(r.ID)
	}
	return plain.Line(fmt.Sprintf("%s  %s %s, profile %s, on %s", r.ID, r.Run.Solution, plain.Short(r.Run.ContentHash), r.Run.Profile.Name, r.Run.Device.Name))
}

// runsRoot is the folder that has the runs: the config's, or the working directory's where there is no config.
func runsRoot(c *cli.Context) string {
	return filepath.Dir(configPath(c))
}

// readRun reads the run that arg names: by its id, or as a folder.
func readRun(c *cli.Context, arg string) (*runs.Run, error) {
	dir, err := runFolder(c, arg)
	if err != nil {
		return nil, err
	}
	r, err := runs.Read(dir)
	return r, invalid(err)
}

// runFolder finds the folder of the run that arg names.
func runFolder(c *cli.Context, arg string) (string, error) {
	root := runsRoot(c)
	id, err := runs.Find(root, arg)
	if err == nil {
		return filepath.Join(root, runs.Dir, id), nil
	}
	var unknown *runs.UnknownError
	if !errors.As(err, &unknown) {
		return "", err
	}
	dir := path(c, arg)
	if st, statErr := os.Stat(dir); len(unknown.Matches) > 0 || statErr != nil || !st.IsDir() {
		return "", invalid(err)
	}
	return dir, nil
}
