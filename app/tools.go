package app

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/session"
)

// sanitizers are compute-sanitizer's tools, in the order in which they run.
var sanitizers = []string{"memcheck", "racecheck", "initcheck", "synccheck"}

// sections are ncu's sets of sections.
var sections = []string{"basic", "detailed", "full"}

// findingsExit is the exit status that compute-sanitizer is told to use where it found something.
const findingsExit = 86

type toolOptions struct {
	device, set, workload, solution string
	timeout                         time.Duration
	tools, sections                 string
}

func (o *toolOptions) flags() []cli.Flag {
	o.timeout = 5 * time.Minute
	return []cli.Flag{
		deviceFlag(&o.device),
		stringFlag(&o.set, "set", "take the workload from `SET`", "default"),
		stringFlag(&o.workload, "workload", "the workload whose uuid begins with `PREFIX`", "the first of the set"),
		solutionFlag(&o.solution),
		timeFlag(&o.timeout, "timeout", "end a tool after `TIME`", ""),
	}
}

func (a *app) sanitizeCommand() *cli.Command {
	var o toolOptions
	return &cli.Command{
		Name:  "sanitize",
		Usage: "look for invalid accesses, races and uninitialised reads on one workload",
		Description: "On a GPU it runs the workload under NVIDIA's compute-sanitizer, once for each tool; without one, on the emulator\n" +
			"with AddressSanitizer, UBSan and the shared-memory race check. Exit status 3 where something was found.\n\n" +
			"   fisub sanitize\n" +
			"   fisub sanitize --tool memcheck,racecheck --workload 3fb7\n" +
			"   fisub sanitize --device emu",
		Flags:  append(o.flags(), stringFlag(&o.tools, "tool", "`TOOL[,TOOL...]` of compute-sanitizer", strings.Join(sanitizers, ","))),
		Action: func(c *cli.Context) error { return a.sanitize(c.Context, o) },
	}
}

func (a *app) profileCommand() *cli.Command {
	o := toolOptions{sections: "detailed"}
	return &cli.Command{
		Name:  "profile",
		Usage: "profile the kernels of one workload with Nsight Compute",
		Description: "Runs the workload under ncu, keeps the report in the run folder and prints a summary. The clocks are left as they\n" +
			"are; each kernel is replayed on cold caches.\n\n" +
			"   fisub profile\n" +
			"   fisub profile --set contest54 --workload 2f4e --ncu-set full",
		Flags:  append(o.flags(), stringFlag(&o.sections, "ncu-set", "collect ncu's `SECTIONS`: "+strings.Join(sections, ", "), "")),
		Action: func(c *cli.Context) error { return a.profile(c.Context, o) },
	}
}

// A tooled run is one workload of a submission, ready to run under a tool.
type tooled struct {
	root     string
	workload *trace.Workload
	solution *trace.Solution
	shared   bench.Shared
	self     string
}

func (a *app) tooled(ctx context.Context, o toolOptions) (*tooled, error) {
	s, err := a.load(o.solution)
	if err != nil {
		return nil, err
	}
	ws, err := s.Data.Workloads(s.Definition.Name, o.set)
	if err != nil {
		return nil, usage.Invalid(err)
	}
	if ws, err = session.Choose(ws, slices.DeleteFunc([]string{o.workload}, func(p string) bool { return p == "" }), 1); err != nil {
		return nil, err
	}
	if pyworker.Runs(&s.Solution.Spec) {
		return nil, usage.Errorf("", "%s: only cuda and cpp submissions with the tvm-ffi binding run under a tool", s.Solution.Spec.Language)
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	opts := device.Options{CacheDir: root}
	kind, err := session.ChooseDevice(ctx, o.device, s.Solution, &opts, a.term)
	if err != nil {
		return nil, err
	}
	opts.Sanitize = kind == "emu"
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	profile, err := bench.NewProfile("quick", s.Definition)
	if err != nil {
		return nil, err
	}
	profile.Timeout = o.timeout
	shared := bench.Shared{Definition: s.Definition, Profile: profile, Load: s.Data.LoadTrial, DeviceKind: kind, Device: opts}
	return &tooled{root: s.Root, workload: ws[0], solution: s.Solution, shared: shared, self: self}, nil
}

// once runs the workload in a worker that starts with the words of prefix. found tells that the process ended with the
// status that a tool was told to end with; fault is what the solution did wrong, and nil where nothing.
func (t *tooled) once(ctx context.Context, prefix ...string) (log string, found bool, fault, err error) {
	shared := t.shared
	shared.Worker = worker.Command{Args: append(prefix, t.self, "worker")}
	log, err = bench.Once(ctx, shared, t.solution, t.workload)
	var exit *exec.ExitError
	var died *worker.Died
	var we *worker.Error
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == findingsExit:
		return log, true, nil, nil
	case errors.As(err, &died):
		return log, false, err, nil
	case errors.As(err, &we) && we.Kind != worker.Machine:
		return log + we.Log, false, err, nil
	}
	return log, false, nil, err
}

// A toolVerdict is what a tool says of a workload.
type toolVerdict struct {
	Tool     string `json:"tool"`
	Workload string `json:"workload"`
	Verdict  string `json:"verdict"`
	Log      string `json:"log"`
}

func (a *app) sanitize(ctx context.Context, o toolOptions) error {
	tools := sanitizers
	if o.tools != "" {
		tools = strings.Split(o.tools, ",")
		for _, tool := range tools {
			if !slices.Contains(sanitizers, tool) {
				return usage.Unknown("tool", tool, sanitizers)
			}
		}
	}
	t, err := a.tooled(ctx, o)
	if err != nil {
		return err
	}
	bad := false
	report := func(name, log string, found bool, fault error) {
		verdict := "clean"
		switch {
		case fault != nil:
			verdict = fault.Error()
		case found:
			verdict = "findings"
		}
		bad = bad || verdict != "clean"
		if a.json {
			line, _ := json.Marshal(toolVerdict{name, t.workload.UUID, verdict, log}) // never fails
			fmt.Fprintf(a.stdout, "%s\n", line)
			return
		}
		fmt.Fprintf(a.stdout, "%-10s  %s\n", name, verdict)
		if verdict != "clean" || a.term.Verbose {
			for line := range strings.Lines(log) {
				fmt.Fprintf(a.stdout, "    %s\n", strings.TrimRight(line, "\n"))
			}
		}
	}
	a.term.Note("workload   %s%s", t.workload.UUID, axesText(t.workload))
	if t.shared.DeviceKind == "emu" {
		if o.tools != "" {
			return usage.Errorf("leave --tool out", "--tool: the emulator has sanitizers of its own")
		}
		log, found, fault, err := t.once(ctx)
		if err != nil {
			return session.Machine(err)
		}
		report("emulator", log, found, fault)
	} else {
		tool, err := session.FindTool("compute-sanitizer")
		if err != nil {
			return err
		}
		// The first run builds, so that the compiler does not run under the tool. A fault is what the tools are there for.
		log, _, fault, err := t.once(ctx)
		if err != nil {
			return session.Machine(err)
		}
		var we *worker.Error
		if errors.As(fault, &we) && we.Kind == worker.Build {
			report("build", log, false, fault)
			return shown(exitNotPassed)
		}
		for _, name := range tools {
			log, found, fault, err := t.once(ctx, tool, "--tool", name, "--error-exitcode", fmt.Sprint(findingsExit), "--target-processes", "application-only")
			if err != nil {
				return session.Machine(err)
			}
			report(name, log, found, fault)
		}
	}
	if bad {
		return shown(exitNotPassed)
	}
	return nil
}

// metrics are the figures of ncu's report that the summary shows.
var metrics = []struct{ name, label string }{
	{"gpu__time_duration.sum", "duration"},
	{"dram__bytes_read.sum", "DRAM read"},
	{"dram__bytes_write.sum", "DRAM written"},
	{"dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM throughput"},
	{"sm__throughput.avg.pct_of_peak_sustained_elapsed", "SM throughput"},
	{"sm__warps_active.avg.pct_of_peak_sustained_active", "warps active"},
	{"lts__t_sector_hit_rate.pct", "L2 hit rate"},
	{"smsp__inst_executed.sum", "instructions"},
	{"launch__grid_size", "grid"},
	{"launch__block_size", "block"},
	{"launch__registers_per_thread", "registers"},
	{"launch__shared_mem_per_block_static", "static shared"},
	{"launch__shared_mem_per_block_dynamic", "dynamic shared"},
	{"launch__waves_per_multiprocessor", "waves"},
}

func (a *app) profile(ctx context.Context, o toolOptions) error {
	t, err := a.tooled(ctx, o)
	if err != nil {
		return err
	}
	if t.shared.DeviceKind == "emu" {
		return usage.Errorf("run it on a machine with an NVIDIA GPU", "profile: the emulator keeps no time")
	}
	ncu, err := session.FindTool("ncu")
	if err != nil {
		return err
	}
	if log, _, fault, err := t.once(ctx); err != nil {
		return session.Machine(err)
	} else if fault != nil {
		a.term.Error(fault.Error()+"\n"+strings.TrimRight(log, "\n"), "")
		return shown(exitNotPassed)
	}
	folder := filepath.Join(t.root, runs.Dir, runs.NewID(time.Now()))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file := filepath.Join(folder, "profile.ncu-rep")
	var names []string
	for _, m := range metrics {
		names = append(names, m.name)
	}
	log, _, fault, err := t.once(ctx, ncu, "--set", o.sections, "--metrics", strings.Join(names, ","),
		"--clock-control", "none", "--target-processes", "application-only", "--force-overwrite", "--export", file)
	if err == nil && fault != nil {
		err = fault
	}
	if _, serr := os.Stat(file); err != nil || serr != nil {
		if err == nil {
			err = errors.New("ncu wrote no report")
		}
		return fmt.Errorf("profile: %w\n%s", err, strings.TrimRight(log, "\n"))
	}
	out, err := exec.CommandContext(ctx, ncu, "--import", file, "--page", "raw", "--csv", "--metrics", strings.Join(names, ",")).Output()
	if err != nil {
		return fmt.Errorf("reading %s with ncu: %w", file, err)
	}
	if err := a.summary(out); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	fmt.Fprintf(a.stdout, "report      %s\n", relative(file))
	return nil
}

// summary prints what ncu's raw page says: a header, a row of units, and a row for each kernel.
func (a *app) summary(raw []byte) error {
	if i := bytes.Index(raw, []byte(`"ID"`)); i > 0 {
		raw = raw[i:] // ncu's own messages stand in front
	}
	r := csv.NewReader(bytes.NewReader(raw))
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		return err
	}
	if len(rows) < 3 {
		return errors.New("the report holds no kernel")
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	for _, row := range rows[2:] {
		cell := func(name string) (value, unit string) {
			i, ok := column[name]
			if !ok || i >= len(row) || i >= len(rows[1]) {
				return "", ""
			}
			return row[i], rows[1][i]
		}
		name, _ := cell("Kernel Name")
		fmt.Fprintf(a.stdout, "kernel      %s\n", name)
		for _, m := range metrics {
			if value, unit := cell(m.name); value != "" {
				fmt.Fprintf(a.stdout, "  %-16s %s %s\n", m.label, value, unit)
			}
		}
	}
	return nil
}
