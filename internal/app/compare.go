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
	"fisub/internal/config"
	"fisub/internal/ui"
)

func (a *app) compareCommand() *cli.Command {
	return &cli.Command{
		Name:      "compare",
		Usage:     "tell whether run B is faster than run A",
		ArgsUsage: "A B",
		Description: "A and B are runs: an id, its beginning, last, last~1 for the one before it, or the folder of a run. For each\n" +
			"workload that both have, and as a whole, B's time over A's with its 95 % interval, and the verdict on B:\n" +
			"   faster, slower  the medians differ by more than the threshold, and chance does not explain it\n" +
			"                   (Mann-Whitney test at 0.05, and the interval)\n" +
			"   same            they do not, and the interval rules out twice the threshold\n" +
			"   unclear         the timings do not decide it\n\n" +
			"   fisub compare last~1 last\n" +
			"   fisub compare --fail-on slower --threshold 0.5 20260102 last",
		Flags: []cli.Flag{
			&cli.Float64Flag{Name: "threshold", Value: 100 * compare.Threshold, Usage: "smallest difference that matters, in `PERCENT`"},
			&cli.StringFlag{Name: "fail-on", Usage: "slower: exit with status 3 if B is slower as a whole, fails what A passes, or is surely slower on any workload"},
		},
		Action: a.compare,
	}
}

func (a *app) compare(c *cli.Context) error {
	if c.NArg() != 2 {
		return usage("fisub compare last~1 last", "compare: got %d runs, want 2", c.NArg())
	}
	threshold := c.Float64("threshold") / 100
	if !(threshold > 0 && threshold <= 1) {
		return usage("", "--threshold: must be above 0 and at most 100 %%")
	}
	if on := c.String("fail-on"); on != "" && on != "slower" {
		return usage("--fail-on slower", "--fail-on: unknown verdict %q", on)
	}
	x, err := readRun(c, c.Args().Get(0))
	if err != nil {
		return err
	}
	y, err := readRun(c, c.Args().Get(1))
	if err != nil {
		return err
	}
	res, err := compare.Runs(x, y, threshold)
	if err != nil {
		return invalid(err)
	}
	if globalBool(c, "json") {
		err = writeJSON(a.stdout, res)
	} else {
		a.term.Note("A          %s", runText(x))
		a.term.Note("B          %s", runText(y))
		err = a.showComparison(res)
	}
	if err != nil {
		return err
	}
	if c.String("fail-on") == "slower" && res.Slower() {
		return errSlower
	}
	return nil
}

func (a *app) showComparison(res *compare.Result) error {
	for _, w := range res.Warnings {
		a.term.Warn(ui.Printable(w), "")
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
		head = append(head, ui.Cut(strings.ToUpper(name), 10))
	}
	rows := [][]string{append(head, "A", "B", "B/A", "95 % INTERVAL", "VERDICT ON B")}
	for _, row := range res.Rows {
		cells := []string{ui.Short(row.UUID)}
		for _, name := range axes {
			cell := "-"
			if n, ok := row.Axes[name]; ok {
				cell = fmt.Sprint(n)
			}
			cells = append(cells, cell)
		}
		ratio, interval := ratioText(row.Ratio)
		rows = append(rows, append(cells, timeText(row.A), timeText(row.B), ratio, interval, verdictText(row.Verdict, row.Why)))
		for _, w := range row.Warnings {
			a.term.Warn(fmt.Sprintf("workload %s: %s", ui.Printable(row.UUID), ui.Printable(w)), "")
		}
	}
	err := a.term.Table("l"+strings.Repeat("r", len(axes))+"rrrll", rows, func(n int) int { return news(res.Rows[n-1].Verdict) })
	if err != nil {
		return err
	}

	var counts []string
	for _, v := range []compare.Verdict{compare.Faster, compare.Same, compare.Slower, compare.Unclear, compare.NotComparable} {
		if n := res.Count(v); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, v))
		}
	}
	text := fmt.Sprintf("%d workloads: %s\n", len(res.Rows), strings.Join(counts, ", "))
	if res.Ratio != nil {
		ratio, interval := ratioText(res.Ratio)
		text += fmt.Sprintf("B/A: %s, 95 %% interval %s, geometric mean over %d workloads, threshold %.3g %%\n", ratio, interval, res.Timed, 100*res.Threshold)
	}
	if res.ScoreA != nil && res.ScoreB != nil {
		text += fmt.Sprintf("contest score: A %.3f, B %.3f\n", *res.ScoreA, *res.ScoreB)
	}
	text += fmt.Sprintf("B as a whole: %s\n", a.term.News(news(res.Verdict), verdictText(res.Verdict, res.Why)))
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

func verdictText(v compare.Verdict, why string) string {
	if why == "" {
		return string(v)
	}
	return string(v) + ": " + why
}

func ratioText(r *compare.Ratio) (value, interval string) {
	if r == nil {
		return "-", "-"
	}
	return fmt.Sprintf("%.3f", r.Value), fmt.Sprintf("%.3f to %.3f", r.Lo, r.Hi)
}

// timeText is the median that the ratio is of, or what the workload has instead.
func timeText(s compare.Side) string {
	switch {
	case s.Status == "":
		return "-"
	case s.Status == "PASSED" && s.N > 0:
		return ui.Micros(s.MedianNS)
	}
	return s.Status
}

// runText names a run in a line.
func runText(r *runs.Run) string {
	if r.Run == nil {
		return ui.Printable(r.ID)
	}
	return ui.Printable(fmt.Sprintf("%s  %s %s, profile %s, on %s", r.ID, r.Run.Solution, hash8(r.Run.ContentHash), r.Run.Profile.Name, r.Run.Device.Name))
}

func hash8(hash string) string { return hash[:min(8, len(hash))] }

// runsRoot is the folder that has the runs: the config's, or the working directory's where there is no config.
func runsRoot(c *cli.Context) string {
	name := globalString(c, "config")
	if name == "" {
		name = config.Name
	}
	return filepath.Dir(path(c, name))
}

// readRun reads the run that arg names: by its id, or as a folder.
func readRun(c *cli.Context, arg string) (*runs.Run, error) {
	root := runsRoot(c)
	dir := path(c, arg)
	id, err := runs.Find(root, arg)
	if err == nil {
		dir = filepath.Join(root, runs.Dir, id)
	} else {
		var unknown *runs.UnknownError
		if !errors.As(err, &unknown) {
			return nil, err
		}
		st, statErr := os.Stat(dir)
		switch {
		case len(unknown.Matches) > 0 || statErr != nil && !looksOther(arg):
			return nil, invalid(err)
		case statErr != nil || !st.IsDir():
			return nil, usage("run it first: fisub local --solution FILE, or fisub local in a checkout of the revision; then compare the runs",
				"%s: %s is not a run: only runs can be compared", c.Command.Name, arg)
		}
	}
	r, err := runs.Read(dir)
	return r, invalid(err)
}

// looksOther tells whether a word that is no run looks like a packed solution or a git revision.
func looksOther(arg string) bool {
	return strings.HasSuffix(arg, ".json") || strings.HasPrefix(arg, "HEAD") || strings.ContainsAny(arg, "^@:")
}
