package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/device/counters"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/machine"
	"fisub/project/setup"
	"fisub/project/tools"
	"fisub/remote/dispatch"
	"fisub/report"
	"fisub/runs"
	"fisub/runs/compare"
	"fisub/workloads"
)

type compareOptions struct {
	sendRequest
	threshold *float64 // in per cent
	failOn    string
	best      bool
	define    []string // constants to sweep
	args      []string
	given     string // a flag such as "--set" that applies only to solutions; "" if none was given
	send      bool   // write the events of all runs to stdout, for the machine that sent this job
	gpu       string // whose least times rank counted variants; "": the profile's or the default
}

func (a *app) compareCommand() *cli.Command {
	percent := 100 * compare.Threshold
	o := compareOptions{threshold: &percent}
	running := append(runFlags(&o.Options), toolPlaceFlags(&o.on, &o.jobs)...)
	running = append(running, prebuiltFlag(&o.Prebuilt), sendFlag(&o.send),
		timeFlag(&o.jobs.Limit, "limit-time", "with --on or --host: end the job after `TIME`",
			"limit of the table, else 30m"))
	return &cli.Command{
		Name:      "compare",
		Usage:     "compare B with A: faster, slower or the same",
		ArgsUsage: "[A] [B] [C...]",
		Flags: append([]cli.Flag{
			numberFlag(&o.threshold, "threshold", "ignore differences below `PERCENT`", fmt.Sprint(percent)),
			stringFlag(&o.failOn, "fail-on", "exit with 3 if B is `VERDICT` (slower), with 2 if nothing can be compared", ""),
			listFlag(&o.define, "define", "compare variants of one solution: constant `NAME=VALUE,...`; may be repeated"),
			boolFlag(&o.best, "best", "use the best comparable run of other sources as A"),
			yesFlag(&o.yes), boundsFlag(&o.gpu),
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
	if o.best && len(o.args) > 0 {
		h, err := a.history()
		if err != nil {
			return err
		}
		best, err := h.BestOther(o.args[0])
		if err != nil {
			return err
		}
		o.args = slices.Insert(o.args, 0, best.ID)
	}
	switch n := len(o.args); {
	case len(o.define) > 0 && (o.best || o.failOn != ""):
		return usage.Errorf("", "--define cannot be combined with --best or --fail-on")
	case len(o.define) > 0 && n > 1:
		return usage.Errorf("fisub compare --define TILE=16,32 .", "compare --define: got %d arguments, want one solution", n)
	case len(o.define) > 0 && n == 0:
		o.args = []string{"."}
	case len(o.define) > 0:
	case n < 2:
		return usage.Errorf("fisub compare last~1 last, or fisub compare --best last",
			"compare: got %s, want A B [C...]", plain.Count(n, "argument"))
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
	if profiles := a.profiles(o.args); len(profiles) == 2 {
		return a.compareProfiles(o, profiles[0], profiles[1])
	}
	sides, err := a.sides(ctx, o, threshold)
	if err != nil {
		return err
	}
	if sides == nil {
		return nil
	}
	ranking, err := a.rankSides(sides, o.gpu)
	return cmp.Or(err, a.compared(sides, threshold, o.failOn, ranking))
}

// compareProfiles compares two profiles, and ranks them if the virtual GPU counted both.
func (a *app) compareProfiles(o compareOptions, first, second *tools.Profiled) error {
	gpu, err := counters.Named(cmp.Or(o.gpu, first.GPU, counters.GPUs[0].Name))
	if err != nil {
		return err
	}
	both := []*tools.Profiled{first, second}
	var ranking *counters.Ranking
	if first.Counters != nil && second.Counters != nil {
		var variants []counters.Variant
		for i, p := range both {
			p.GPU, p.Kernels = gpu.Name, tools.Kernels(p.Counters, gpu)
			variants = append(variants, counters.Variant{Name: string(rune('A' + i)), Launches: p.Counters})
		}
		ranking = counters.Rank(variants, gpu)
	}
	if first.Workload != second.Workload {
		a.term.Warn("the profiles are of different workloads: A of "+plain.Short(first.Workload)+", B of "+
			plain.Short(second.Workload), "")
	}
	switch {
	case a.final != nil:
		a.final.CompareProfiles(both, ranking)
	case a.json:
		return a.writeJSON(both)
	default:
		layout, rows := tools.CompareTable(first, second)
		a.term.Table(layout, rows, nil)
		a.showRanking(ranking)
	}
	return nil
}

// showRanking prints what the counts of variants say. r may be nil.
func (a *app) showRanking(r *counters.Ranking) {
	if r != nil {
		fmt.Fprintln(a.stdout, a.term.Fit(r.Text(), 2))
	}
}

// countSides counts the sources on the virtual GPU, on the largest workload of their runs if they pass it, and stores
// the counters in the folders of the runs.
func (a *app) countSides(ctx context.Context, o compareOptions, settings *setup.Setup, sources []*project.Source,
	sides []*runs.Run) error {
	options := setup.Options{Device: "emu", Set: settings.Set, Timeout: cmp.Or(o.Timeout, tools.Timeout)}
	options.Prefixes = []string{tools.Largest(settings.Workloads).UUID}
	for i, s := range sources {
		if row := sides[i].Row(options.Prefixes[0]); row == nil || !row.Passed() {
			continue
		}
		a.term.Note("counting   %s", plain.Line(s.Arg))
		var all []counters.Launch
		target, err := tools.New(ctx, s.Submission, options, a.term)
		if err == nil {
			all, err = target.Count(ctx, tools.AllClusters)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = tools.WriteCounters(filepath.Join(a.Root(), runs.Dir, sides[i].ID), all)
		}
		if err != nil {
			a.term.Warn(plain.Line(s.Arg+" is not counted: "+err.Error()), "")
		}
	}
	return nil
}

// rankSides ranks the runs whose folders have counters. It returns nil if those are less than two.
func (a *app) rankSides(sides []*runs.Run, gpu string) (*counters.Ranking, error) {
	g, err := counters.Named(cmp.Or(gpu, counters.GPUs[0].Name))
	if err != nil {
		return nil, err
	}
	var variants []counters.Variant
	for i, side := range sides {
		all, err := tools.ReadCounters(filepath.Join(a.Root(), runs.Dir, side.ID, tools.CountersName))
		if err != nil {
			return nil, err
		}
		if len(all) > 0 && side.Run != nil {
			variants = append(variants, counters.Variant{Name: cmp.Or(side.Run.Variant, string(rune('A'+i))), Launches: all})
		}
	}
	if len(variants) < 2 {
		return nil, nil
	}
	return counters.Rank(variants, g), nil
}

// profiles returns the profiles that the arguments name, folders of fisub profile or files of counters, or nil if one
// names anything else.
func (a *app) profiles(args []string) (list []*tools.Profiled) {
	for _, arg := range args {
		if all, err := tools.ReadCounters(a.Path(arg)); strings.HasSuffix(arg, ".jsonl") && err == nil && len(all) > 0 {
			list = append(list, &tools.Profiled{Counters: all})
			continue
		}
		dir, err := a.runFolder(arg)
		if err != nil {
			return nil
		}
		p, err := tools.ReadProfile(dir)
		if err != nil {
			return nil
		}
		list = append(list, p)
	}
	return list
}

// compared prints the comparison of each further run with the first.
func (a *app) compared(sides []*runs.Run, threshold float64, failOn string, ranking *counters.Ranking) error {
	if !slices.ContainsFunc(sides, func(r *runs.Run) bool { return r.Run == nil || r.Run.Variant == "" }) {
		return a.swept(sides, threshold, ranking)
	}
	var err error
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
		a.final.Compare(results, ranking)
	case !a.json:
		for i, res := range results {
			a.term.Note("A          %s", runText(sides[0]))
			a.term.Note("B          %s", runText(sides[i+1]))
			a.showComparison(res)
		}
		a.showRanking(ranking)
	case len(results) == 1:
		err = a.writeJSON(struct {
			*compare.Result
			Counts *counters.Ranking `json:"counts,omitempty"`
		}{results[0], ranking})
	default:
		err = a.writeJSON(results)
	}
	if err != nil || failOn == "" {
		return err
	}
	if slices.ContainsFunc(results, (*compare.Result).Slower) {
		return shown(exitNotPassed)
	}
	for i, res := range results {
		if res.Verdict == compare.NotComparable {
			return usage.Errorf("time both on the same GPU and driver; the virtual GPU measures nothing",
				"--fail-on slower: run %s cannot be compared: %s", sides[i+1].ID, res.Why)
		}
	}
	return nil
}

// swept prints the comparison of the variants of one solution.
func (a *app) swept(sides []*runs.Run, threshold float64, ranking *counters.Ranking) error {
	s, err := compare.NewSweep(sides, threshold)
	if err != nil {
		return usage.Invalid(err)
	}
	if a.final != nil {
		a.final.Swept(s, ranking)
		return nil
	}
	if a.json {
		return a.writeJSON(struct {
			*compare.Sweep
			Counts *counters.Ranking `json:"counts,omitempty"`
		}{s, ranking})
	}
	for _, w := range s.Warnings {
		a.term.Warn(plain.Line(w), "")
	}
	for _, t := range report.SweepTables(s) {
		a.term.Table(t.Layout, t.Rows, nil)
		fmt.Fprintln(a.stdout)
	}
	fmt.Fprintln(a.stdout, a.term.Fit(report.SweepText(s), 0))
	if ranking != nil {
		layout, rows := ranking.Table()
		fmt.Fprintln(a.stdout)
		a.term.Table(layout, rows, nil)
		fmt.Fprintln(a.stdout)
	}
	a.showRanking(ranking)
	return nil
}

// maxSides is the maximum number of solutions in a comparison: each holds a process and its tensors on the device.
const maxSides = 16

// sides returns the runs that the arguments name. If they name solutions, it runs these and returns their runs, or nil
// if the result has already been shown.
func (a *app) sides(ctx context.Context, o compareOptions, threshold float64) ([]*runs.Run, error) {
	data, err := a.OpenDataset()
	if err != nil {
		return nil, err
	}
	found, sources, err := a.readSides(ctx, o.args, data)
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		a.warn(s.Warnings)
	}
	if len(o.define) > 0 {
		constants, err := project.ParseConstants(o.define)
		if err != nil {
			return nil, err
		}
		if len(sources) == 0 {
			return nil, usage.Errorf("fisub compare --define TILE=16,32 .", "compare --define: %s is a run, want a solution",
				o.args[0])
		}
		if sources, err = sources[0].Variants(constants, maxSides); err != nil {
			return nil, err
		}
	}
	switch {
	case len(found) > 0 && o.given != "":
		return nil, usage.Errorf("omit it: runs are compared as they are", "%s applies to solutions, but A and B "+
			"are runs", o.given)
	case len(found) > 0:
		return found, nil
	}
	if o.on != "" {
		return nil, a.remoteSides(ctx, o, sources, threshold)
	}
	last := sources[len(sources)-1]
	o.Baseline = setup.NoBaseline // A is the baseline
	settings, err := setup.NewLocal(ctx, &a.Project, last.Submission, o.Options, nil, a.term)
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		if _, err := machine.Compiler(ctx, settings.Kind, &settings.Device, s.Solution, a.term); err != nil {
			return nil, err
		}
	}
	sides, err := a.runTogether(ctx, settings, sources, func(letter string, s *project.Source, run *event.Run) event.Sink {
		if o.send {
			return a.sender(slices.Index(sources, s))
		}
		a.term.Note("running    %s: %s, %s %s", letter, plain.Line(s.Arg), plain.Line(s.Solution.Name),
			plain.Short(run.ContentHash))
		return a.also(a.term.Progress(slices.Index(sources, s), len(sources)))
	})
	if err == nil && settings.Kind == "emu" && !o.send {
		err = a.countSides(ctx, o, settings, sources, sides)
	}
	return sides, err
}

// readSides returns the runs that the arguments name, or the solutions, which must share a definition.
func (a *app) readSides(ctx context.Context, args []string, data *workloads.Dataset) (found []*runs.Run,
	sources []*project.Source, err error) {
	var foundArg string
	for _, arg := range args {
		run, err := a.readRun(arg)
		if err == nil {
			found, foundArg = append(found, run), arg
			continue
		}
		unknown, _ := errors.AsType[*runs.UnknownError](err)
		if !errors.Is(err, runs.ErrNoRun) && (unknown == nil || len(unknown.Matches) > 0) {
			return nil, nil, err
		}
		s, sourceErr := a.ReadSource(ctx, arg, data)
		if sourceErr != nil {
			return nil, nil, sourceErr
		}
		if s == nil {
			hint := "a run (fisub runs ls), a packed solution FILE.json, a folder with a config.toml, or a git revision"
			if _, err := git.Open(ctx, a.Root()); err != nil {
				hint += "; git revisions cannot be read here: " + plain.Line(plain.First(err.Error()))
			}
			return nil, nil, usage.Errorf(hint, "compare: %w", err)
		}
		sources = append(sources, s)
	}
	if len(found) > 0 && len(sources) > 0 {
		return nil, nil, usage.Errorf("compare runs with runs, or solutions with solutions",
			"compare: %s is a solution, %s is a run", sources[0].Arg, foundArg)
	}
	return found, sources, sameDefinition(sources)
}

// sameDefinition rejects sources of different definitions.
func sameDefinition(sources []*project.Source) error {
	for _, s := range sources {
		if first := sources[0]; first.Definition.Name != s.Definition.Name {
			return usage.Errorf("", "compare: different definitions: %s has %s, %s has %s", first.Arg, first.Definition.Name,
				s.Arg, s.Definition.Name)
		}
	}
	return nil
}

// describeAll describes a run of each source. Their ids sort in the order of the sources.
func describeAll(ctx context.Context, settings *setup.Setup, sources []*project.Source) (all []event.Run) {
	ids := runs.NewIDs(time.Now(), len(sources))
	for i, s := range sources {
		run := settings.Describe(ctx, s.Submission)
		run.ID, run.Variant = ids[i], s.Variant
		if s.Git != nil {
			run.Git = s.Git
		}
		all = append(all, *run)
	}
	return all
}

// runTogether runs the sources on one device with alternating trials, and returns their runs. It calls begin for each
// source, with its letter and its run, to get the sink of its events.
func (a *app) runTogether(ctx context.Context, settings *setup.Setup, sources []*project.Source,
	begin func(letter string, s *project.Source, run *event.Run) event.Sink) ([]*runs.Run, error) {
	settings.Profile = settings.Profile.InTurn(sources[0].Definition)
	var entries []bench.Entry
	var folders []*runs.Folder
	var streams []*event.Stream
	described := describeAll(ctx, settings, sources)
	for i, s := range sources {
		run := &described[i]
		folder := runs.NewFolder(a.Root(), run.ID)
		defer folder.Close()
		stream := event.NewStream(folder.Record, begin(string(rune('A'+i)), s, run))
		folders, streams = append(folders, folder), append(streams, stream)
		entries = append(entries, bench.Entry{Solution: s.Solution, Events: stream, Run: run})
	}
	if _, err := bench.Together(ctx, settings.Shared(sources[0].Submission), entries); err != nil {
		return nil, machine.Invalid(err)
	}
	var read []*runs.Run
	for i, f := range folders {
		if err := errors.Join(streams[i].Err(), f.Close()); err != nil {
			return nil, err
		}
		r, err := runs.Read(f.Path())
		if err != nil {
			return nil, err
		}
		read = append(read, r)
	}
	return read, nil
}

// sender returns a sink that writes the events of one run, with the index of its side, for the machine that sent this
// job.
func (a *app) sender(side int) event.Sink {
	return func(e event.Event) error {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return json.NewEncoder(a.stdout).Encode(dispatch.SideLine{Side: side, Event: text})
	}
}

// remoteSides runs the sources with alternating trials, in one job on a place of a table.
func (a *app) remoteSides(ctx context.Context, o compareOptions, sources []*project.Source, threshold float64) error {
	if o.Device != "" {
		return usage.Errorf("use --gpu for the GPU of the hosts; --gpu none is the virtual GPU",
			"--device cannot be combined with --on")
	}
	o.Baseline, o.jobs.Shards = "none", 1
	o.s = sources[0].Submission
	order, err := a.prepare(ctx, o.sendRequest)
	if err != nil {
		return err
	}
	defer order.open.Close()
	order.setup.Profile = order.setup.Profile.InTurn(sources[0].Definition)
	order.plan.Tool, order.spec.Command = "compare", "compare"
	order.spec.Args = append(order.spec.Args, "--send")
	order.plan.Sides = describeAll(ctx, order.setup, sources)
	for _, s := range sources[1:] {
		order.others = append(order.others, s.Solution)
	}
	return a.start(ctx, order, &comparison{a: a, threshold: threshold, failOn: o.failOn})
}

// A comparison receives the events of several runs from one job and stores each run in its own folder.
type comparison struct {
	a         *app
	sides     dispatch.Sides
	folders   []*runs.Folder
	threshold float64
	failOn    string
}

func (c *comparison) open(plan *dispatch.Plan, _ string) error {
	a := c.a
	for i, run := range plan.Sides {
		folder, old := runs.NewFolder(a.Root(), run.ID), (*runs.Run)(nil)
		if _, err := os.Stat(folder.Path()); err == nil {
			if folder, old, err = runs.Attach(a.Root(), run.ID); err != nil {
				return err
			}
		}
		a.term.Note("%c          %s %s, run %s", 'A'+i, plain.Line(run.Name()), plain.Short(run.ContentHash), run.ID)
		view := a.paused(a.also(a.term.Progress(i, len(plan.Sides))))
		c.folders = append(c.folders, folder)
		c.sides = append(c.sides, dispatch.NewSide(plan, i, old, event.NewStream(folder.Record, view)))
	}
	return nil
}

func (c *comparison) line(j *dispatch.JobRecord, text []byte) error { return c.sides.Line(j, text) }

func (c *comparison) end(_ bool, err error) error {
	var read []*runs.Run
	for i, side := range c.sides {
		folder := c.folders[i]
		if fault := errors.Join(side.Done(err == nil), folder.Order(), folder.Close()); fault != nil {
			return errors.Join(err, fault)
		}
		r, fault := runs.Read(folder.Path())
		if fault != nil {
			return cmp.Or(err, fault)
		}
		read = append(read, r)
	}
	return cmp.Or(err, c.a.compared(read, c.threshold, c.failOn, nil))
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
	a.term.Table(layout, rows, func(n int) int { return report.Rating(res.Rows[n-1].Verdict) })
	fmt.Fprintf(a.stdout, "%s\nB as a whole: %s\n", a.term.Fit(strings.Join(report.Conclusion(res), "\n"), 2),
		a.term.Rate(report.Headline(res), report.VerdictText(res.Verdict, res.Why)))
}

func runText(r *runs.Run) string {
	if r.Run == nil {
		return plain.Line(r.ID)
	}
	return plain.Line(fmt.Sprintf("%s  %s %s, profile %s, on %s", r.ID, r.Run.Name(), plain.Short(r.Run.ContentHash),
		r.Run.Profile.Name, r.Run.Device.Name))
}
