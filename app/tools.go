package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/app/outcome"
	"fisub/device"
	"fisub/device/counters"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/tools"
	"fisub/remote/agent"
	"fisub/remote/bundle"
	"fisub/remote/dispatch"
	"fisub/runs"
	"fisub/workloads"
)

type toolOptions struct {
	sendRequest
	solution, tools, sections string
	send                      bool // write the report to stdout, in parts
	gpu                       string
	sample                    int
}

func (o *toolOptions) flags(set, which, timeout string) []cli.Flag {
	return append([]cli.Flag{
		deviceFlag(&o.Device),
		stringFlag(&o.Set, "set", "take workloads from `SET`", set),
		&cli.StringFlag{Name: "workload", Usage: "use the workload whose uuid begins with `PREFIX`", DefaultText: which,
			Action: func(_ *cli.Context, prefix string) error { o.Prefixes = []string{prefix}; return nil }},
		solutionFlag(&o.solution),
		timeFlag(&o.Timeout, "timeout", "stop a tool after `TIME`", timeout),
		&cli.StringFlag{Name: "arch", Usage: "compiled for `ARCH`", Hidden: true, Destination: &o.Arch},
		yesFlag(&o.yes), prebuiltFlag(&o.Prebuilt), sendFlag(&o.send),
	}, toolPlaceFlags(&o.on, &o.jobs)...)
}

// toolPlaceFlags are the flags of commands that can run as a remote job.
func toolPlaceFlags(on *string, o *hostOptions) []cli.Flag {
	return []cli.Flag{
		stringFlag(on, "on", "run on the hosts of `TABLE` of the config", "this machine"), hostFlag(on),
		stringFlag(&o.GPU, "gpu", "with --on or --host: `GPU` of the hosts, or none for the virtual GPU", "the table's"),
		boolFlag(&o.Busy, "busy", "with --on or --host: also use a GPU that another process uses"),
	}
}

func (a *app) sanitizeCommand() *cli.Command {
	var o toolOptions
	return &cli.Command{
		Name:  "sanitize",
		Usage: "find invalid accesses, races and uninitialised reads",
		Flags: append(o.flags("contest, if it exists", "one of each shape", "5m; 1m on the virtual GPU"),
			stringFlag(&o.tools, "tool", "run `TOOL[,TOOL...]` of compute-sanitizer",
				strings.Join(device.Sanitizers, ","))),
		Action: func(c *cli.Context) error { return a.sanitize(c.Context, o) },
	}
}

func (a *app) profileCommand() *cli.Command {
	o := toolOptions{sections: "detailed", gpu: counters.GPUs[0].Name, sample: 512}
	return &cli.Command{
		Name:  "profile",
		Usage: "profile the kernels of one workload: Nsight Compute, or counters without a GPU",
		Flags: append(o.flags("default", "the first of the set", "5m"), stringFlag(&o.sections, "ncu-set",
			"collect ncu's `SECTIONS`: "+strings.Join(tools.Sections, ", "), ""),
			boundsFlag(&o.gpu),
			&cli.IntFlag{Name: "blocks", Usage: "on the virtual GPU: run about `N` clusters of a large launch",
				Destination: &o.sample, Value: o.sample}),
		Action: func(c *cli.Context) error { return a.profile(c.Context, o) },
	}
}

func (a *app) newTool(ctx context.Context, s *project.Submission, o toolOptions) (*tools.Target, error) {
	if o.Prebuilt != "" {
		var err error
		if o.Prebuilt, err = filepath.Abs(a.Path(o.Prebuilt)); err != nil {
			return nil, err
		}
	}
	run, err := tools.New(ctx, s, o.Options, a.term)
	if err == nil && !run.Emulated {
		a.term.Note("sandbox    %s; below a tool without rules for Unix sockets and for tracing own processes",
			sandbox.State())
	}
	return run, err
}

// show prints a record of a tool. Its texts may come from another host.
func (a *app) show(l tools.Record) error {
	if a.final != nil {
		if l.Kernels != nil {
			a.final.Profile(a.Root(), l)
		}
		return nil
	}
	if a.json {
		return l.Write(a.stdout)
	}
	if l.Kernels != nil {
		tools.Table(a.stdout, l.Kernels, a.term.Verbose)
		for line := range strings.Lines(l.Log) {
			a.term.Note("%s", plain.Line(strings.TrimSuffix(line, "\n")))
		}
		a.line("report", "%s", plain.Relative(l.Report))
		a.line("figures", "%s", plain.Relative(filepath.Join(filepath.Dir(l.Report), tools.FiguresName)))
		return nil
	}
	if l.Verdict == tools.Clean && !a.term.Verbose {
		l.Log = ""
	}
	a.line(strings.ReplaceAll(l.Tool, ",", ", "), "%s", a.term.Locate(l.Verdict))
	for line := range strings.Lines(l.Log) {
		if line = strings.TrimRight(line, "\n"); line != "" && !strings.HasSuffix(line, l.Verdict) &&
			!strings.HasSuffix(l.Verdict, strings.TrimSpace(line)) {
			fmt.Fprintf(a.stdout, "    %s\n", plain.Line(a.term.Locate(line)))
		}
	}
	return nil
}

// A verdictList shows the verdicts of sanitizers on several workloads: findings immediately, clean tools once at the
// end.
type verdictList struct {
	a     *app
	all   []tools.Record
	clean []string
	found []string
}

func (v *verdictList) add(l tools.Record) error {
	v.all = append(v.all, l)
	names := strings.Split(l.Tool, ",")
	if l.Verdict != tools.Clean {
		v.found = append(v.found, names...)
	} else if !v.a.json && !v.a.term.Verbose {
		v.clean = append(v.clean, names...)
		return nil
	}
	return v.a.show(l)
}

func (v *verdictList) end() {
	for i, name := range v.clean {
		if !slices.Contains(v.found, name) && !slices.Contains(v.clean[:i], name) {
			v.a.line(name, tools.Clean)
		}
	}
}

func (a *app) sanitize(ctx context.Context, o toolOptions) error {
	names, err := sanitizers(o.tools)
	if err != nil {
		return err
	}
	if names == nil {
		names = device.Sanitizers
	}
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	if o.on != "" {
		var args []string
		if o.tools != "" {
			args = []string{"--tool", o.tools}
		}
		return a.remoteTool(ctx, s, o, "sanitize", len(names), args...)
	}
	run, err := a.newTool(ctx, s, o)
	if err != nil {
		return err
	}
	asked := len(names)
	if names, err = run.Tools(names); err != nil {
		return err
	}
	if len(names) < asked {
		a.term.Note("racecheck  not run: the virtual GPU finds no races in Triton kernels")
	}
	verdicts := &verdictList{a: a}
	err = run.Sanitize(ctx, names, func(w *trace.Workload) {
		a.term.Note("workload   %s%s", w.UUID, axesText(w))
	}, func(l tools.Record) { _ = verdicts.add(l) })
	verdicts.end()
	if err == nil && a.final != nil {
		ran := &event.Run{Definition: s.Definition.Name, Solution: s.Solution.Name, ContentHash: s.Solution.Hash(),
			Set: run.Set}
		ran.Folder, ran.Sources = s.SourceFolder(), s.SourcePaths()
		for _, w := range run.Workloads {
			ran.Workloads = append(ran.Workloads, event.WorkloadRef{UUID: w.UUID, Axes: maps.Collect(w.Axes.All())})
		}
		c := outcome.Sanitized{Run: ran, Records: verdicts.all, Contest: a.inContest(ran.Definition)}
		if run.Emulated {
			c.Where = " --device emu"
		}
		a.final.Sanitize(c)
	}
	if err == nil && len(verdicts.found) > 0 {
		err = shown(exitNotPassed)
	}
	if omitted := s.Data.Omitted(s.Definition.Name, run.Set); err == nil && omitted != "" {
		a.term.Note("%s", omitted)
	}
	return err
}

// sanitizers splits a list of tools, or returns all for "all" and nil for "".
func sanitizers(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	if list == "all" {
		return device.Sanitizers, nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.Contains(device.Sanitizers, name) {
			return nil, usage.Unknown("tool", name, append([]string{"all"}, device.Sanitizers...))
		}
	}
	return names, nil
}

func (a *app) profile(ctx context.Context, o toolOptions) error {
	if !slices.Contains(tools.Sections, o.sections) {
		return usage.Unknown("set of sections", o.sections, tools.Sections)
	}
	gpu, err := counters.Named(o.gpu)
	if err != nil {
		return err
	}
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	o.Set, o.Limit = cmp.Or(o.Set, workloads.DefaultSet), 1
	if o.on != "" {
		return a.remoteTool(ctx, s, o, "profile", 1)
	}
	run, err := a.newTool(ctx, s, o)
	if err != nil {
		return err
	}
	folder := filepath.Join(s.Root, runs.Dir, runs.NewID(time.Now()))
	if run.Emulated {
		return a.count(ctx, run, s, gpu, max(1, o.sample), folder)
	}
	l, err := run.Profile(ctx, o.sections, folder)
	if fault, ok := errors.AsType[*tools.FaultError](err); ok {
		a.term.Error(fault.Error()+"\n"+strings.TrimRight(fault.Log, "\n"), "")
		return shown(exitNotPassed)
	}
	if err != nil {
		return err
	}
	if o.send {
		if err := tools.Send(a.stdout, l.Report); err != nil {
			return err
		}
	}
	return a.show(l)
}

// count profiles a submission on the virtual GPU.
func (a *app) count(ctx context.Context, run *tools.Target, s *project.Submission, gpu *counters.GPU, sample int,
	folder string) error {
	w := run.Workloads[0]
	a.term.Note("workload   %s%s", w.UUID, axesText(w))
	all, err := run.Count(ctx, sample)
	if fault, ok := errors.AsType[*tools.FaultError](err); ok {
		hint := ""
		if strings.Contains(fault.Error(), "deadlock") {
			hint = "if it waits for other blocks, run all of them: --blocks " + strconv.Itoa(tools.AllClusters)
		}
		a.term.Error(fault.Error()+"\n"+strings.TrimRight(fault.Log, "\n"), hint)
		return shown(exitNotPassed)
	}
	if err != nil {
		return err
	}
	if err = os.MkdirAll(folder, 0o755); err == nil {
		err = plain.WriteFile(filepath.Join(folder, solutionName), s.Solution.JSON(trace.Indent), 0o644)
	}
	if err != nil {
		return err
	}
	l := tools.Record{Tool: "counters", Workload: w.UUID, Verdict: "counted", Counters: all}
	return a.counted(l, folder, filepath.Join(s.Root, s.SourceFolder()), gpu)
}

// counted stores a record with counters in folder and shows it. The kernels' sources are in the folder sources.
func (a *app) counted(l tools.Record, folder, sources string, gpu *counters.GPU) error {
	l.Report, l.Kernels = filepath.Join(folder, tools.CountersName), tools.Kernels(l.Counters, gpu)
	if err := errors.Join(tools.WriteCounters(folder, l.Counters), tools.WriteFigures(folder, &tools.Profiled{
		Workload: l.Workload, GPU: gpu.Name, Kernels: l.Kernels})); err != nil {
		return err
	}
	switch {
	case a.final != nil:
		a.final.Profile(a.Root(), l)
		return nil
	case a.json:
		return l.Write(a.stdout)
	}
	report := counters.Report{GPU: gpu, Lines: 10, Source: sourceFiles(sources)}
	report.Write(a.stdout, l.Counters)
	a.line("counters", "%s", plain.Relative(l.Report))
	a.term.Note("fisub report profile writes a page with the source and its counts")
	return nil
}

// boundsFlag is the flag for the GPU whose limits a report uses.
func boundsFlag(to *string) cli.Flag {
	var names []string
	for _, g := range counters.GPUs {
		names = append(names, g.Name)
	}
	return stringFlag(to, "bounds", "counters: the least time on a `GPU`: "+strings.Join(names, ", "), *to)
}

// sourceFiles returns a function that returns the lines of source files in dir, or nil if a file cannot be read.
func sourceFiles(dir string) func(file string) []string {
	files := map[string][]string{}
	return func(file string) []string {
		lines, ok := files[file]
		if !ok {
			path := file
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			if data, err := plain.ReadFile(path, 16<<20); err == nil {
				lines = strings.Split(plain.Text(string(data)), "\n")
			}
			files[file] = lines
		}
		return lines
	}
}

// remoteTool runs a command in one job on a place of a table, and shows its output. The job runs each of n tools once.
func (a *app) remoteTool(
	ctx context.Context, s *project.Submission, o toolOptions, command string, n int, args ...string,
) error {
	timeout := cmp.Or(o.Timeout, tools.Timeout)
	o.s, o.Limit, o.Timeout, o.Baseline = s, 1, 0, "none"
	o.jobs.Shards, o.jobs.Limit = 1, time.Duration(n+1)*timeout+5*time.Minute
	order, err := a.prepare(ctx, o.sendRequest)
	if err != nil {
		return err
	}
	defer order.open.Close()
	if command == "profile" {
		args = []string{"--ncu-set", o.sections, "--send"}
		if order.setup.Kind == "emu" {
			args = []string{"--bounds", o.gpu, "--blocks", strconv.Itoa(max(1, o.sample))}
		}
	}
	order.plan.Tool, order.spec.Command = command, command
	order.spec.Args = append([]string{"--device", order.setup.Kind, "--timeout", timeout.String()}, args...)
	return a.start(ctx, order, &toolOutput{a: a})
}

// A toolOutput shows the output of a tool on a host and stores its report.
type toolOutput struct {
	a        *app
	plan     *dispatch.Plan
	folder   string
	verdicts *verdictList
	report   tools.ReportFile
	gpu      *counters.GPU       // of profile: whose least times are shown
	last     *dispatch.JobRecord // the last job with output
}

func (t *toolOutput) open(plan *dispatch.Plan, folder string) error {
	t.plan, t.folder, t.verdicts, t.gpu = plan, folder, &verdictList{a: t.a}, &counters.GPUs[0]
	var spec bundle.Spec
	if err := json.Unmarshal(plan.Bundle, &spec); err == nil {
		if i := slices.Index(spec.Args, "--bounds"); i >= 0 && i+1 < len(spec.Args) {
			if t.gpu, err = counters.Named(spec.Args[i+1]); err != nil {
				return err
			}
		}
	}
	t.report.Path = filepath.Join(folder, tools.ReportName)
	if err := os.Remove(t.report.Path); !errors.Is(err, fs.ErrNotExist) {
		return err // the output contains the report again
	}
	return nil
}

func (t *toolOutput) line(j *dispatch.JobRecord, text []byte) error {
	l, ok := tools.ReadRecord(text)
	switch {
	case !ok:
		return nil // unknown lines of a newer fisub are ignored
	case l.Part != nil:
		return t.report.Take(l.Part)
	case l.Counters != nil:
		t.last = j
		for i := range l.Counters {
			if err := l.Counters[i].Check(); err != nil {
				return err
			}
			l.Counters[i].Clean()
		}
		sources := filepath.Join(t.a.Root(), t.plan.Run.Folder)
		return t.a.pause.Do(func() error { return t.a.counted(l, t.folder, sources, t.gpu) })
	case l.Kernels != nil:
		l.Report = t.report.Path
		if err := tools.WriteFigures(t.folder, &tools.Profiled{Workload: l.Workload, Kernels: l.Kernels}); err != nil {
			return err
		}
	}
	t.last = j
	return t.a.pause.Do(func() error { return t.verdicts.add(l) })
}

func (t *toolOutput) end(failed bool, err error) error {
	t.verdicts.end()
	if t.a.final != nil && err == nil && t.plan.Tool == "sanitize" && t.last != nil {
		t.a.final.Sanitize(outcome.Sanitized{Run: &t.plan.Run, Records: t.verdicts.all, Remote: true,
			Where:   " --on " + plain.Word(strings.Join(t.plan.Tables(), ",")) + " --gpu " + cmp.Or(t.plan.GPU, "none"),
			Contest: t.a.inContest(t.plan.Run.Definition)})
	}
	if !failed {
		return err
	}
	logs, _ := filepath.Glob(filepath.Join(t.folder, "log", "*", agent.LogName))
	if t.last == nil && len(logs) > 0 {
		if log, err := plain.ReadFile(logs[len(logs)-1], 16<<20); err == nil {
			fmt.Fprint(t.a.stderr, plain.Lines(string(log)))
		}
	}
	return shown(exitNotPassed)
}
