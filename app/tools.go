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
)

// sanitizers are compute-sanitizer's tools, in the order in which they run.
var sanitizers = []string{"memcheck", "racecheck", "initcheck", "synccheck"}

// findingsExit is the exit status that compute-sanitizer is told to use where it found something.
const findingsExit = 86

func toolFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "device", Value: "auto", Usage: "`DEVICE`: auto, cuda, cuda:N or emu"},
		&cli.StringFlag{Name: "set", Usage: "take the workload from `SET`", DefaultText: "default"},
		&cli.StringFlag{Name: "workload", Usage: "the workload whose uuid begins with `PREFIX`", DefaultText: "the first of the set"},
		&cli.StringFlag{Name: "solution", Usage: "run the packed solution in `FILE` instead of the sources"},
		&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "end a tool after `TIME`"},
	}
}

func (a *app) sanitizeCommand() *cli.Command {
	return &cli.Command{
		Name:  "sanitize",
		Usage: "look for invalid accesses, races and uninitialised reads on one workload",
		Description: "On a GPU it runs the workload under NVIDIA's compute-sanitizer, once for each tool; without one, on the emulator\n" +
			"with AddressSanitizer, UBSan and the shared-memory race check. Exit status 3 where something was found.\n\n" +
			"   fisub sanitize\n" +
			"   fisub sanitize --tool memcheck,racecheck --workload 3fb7\n" +
			"   fisub sanitize --device emu",
		Flags:  append(toolFlags(), &cli.StringFlag{Name: "tool", Usage: "`TOOL[,TOOL...]` of compute-sanitizer", DefaultText: strings.Join(sanitizers, ",")}),
		Action: a.sanitize,
	}
}

func (a *app) profileCommand() *cli.Command {
	return &cli.Command{
		Name:  "profile",
		Usage: "profile the kernels of one workload with Nsight Compute",
		Description: "Runs the workload under ncu, keeps the report in the run folder and prints a summary. The clocks are left as they\n" +
			"are; each kernel is replayed on cold caches.\n\n" +
			"   fisub profile\n" +
			"   fisub profile --set contest54 --workload 2f4e --ncu-set full",
		Flags:  append(toolFlags(), &cli.StringFlag{Name: "ncu-set", Value: "detailed", Usage: "collect the sections of ncu's `SET`: basic, detailed, full"}),
		Action: a.profile,
	}
}

// A tooled run is one workload of a submission, ready to run under a tool.
type tooled struct {
	submission *submission
	workload   *trace.Workload
	kind       string
	shared     bench.Shared
	self       string
}

func (a *app) tooled(c *cli.Context) (*tooled, error) {
	if err := noArgs(c); err != nil {
		return nil, err
	}
	s, err := a.loadSubmission(c)
	if err != nil {
		return nil, err
	}
	a.warn(s.warnings)
	ws, err := s.data.Workloads(s.def.Name, c.String("set"))
	if err != nil {
		return nil, invalid(err)
	}
	var prefixes []string
	if p := c.String("workload"); p != "" {
		prefixes = []string{p}
	}
	if ws, err = choose(ws, prefixes, true, 1); err != nil {
		return nil, err
	}
	if pyworker.Runs(&s.sol.Spec) {
		return nil, usage("", "%s: only cuda and cpp submissions with the tvm-ffi binding run under a tool", s.sol.Spec.Language)
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	t := &tooled{submission: s, workload: ws[0]}
	opts := device.Options{CacheDir: root}
	if t.kind, err = a.chooseDevice(c.Context, c.String("device"), s.sol, &opts); err != nil {
		return nil, err
	}
	opts.Sanitize = t.kind == "emu"
	if t.self, err = os.Executable(); err != nil {
		return nil, err
	}
	profile, err := bench.NewProfile("quick", s.def)
	if err != nil {
		return nil, err
	}
	profile.Timeout = c.Duration("timeout")
	t.shared = bench.Shared{Definition: s.def, Profile: profile, Load: s.data.LoadTrial, DeviceKind: t.kind, Device: opts}
	return t, nil
}

// once runs the workload in a worker that starts with the words of prefix. found tells that the process ended with the
// status that a tool was told to end with; fault is what the solution did wrong, and nil where nothing.
func (t *tooled) once(ctx context.Context, prefix ...string) (log string, found bool, fault, err error) {
	shared := t.shared
	shared.Worker = worker.Command{Args: append(prefix, t.self, "worker")}
	log, err = bench.Once(ctx, shared, t.submission.sol, t.workload)
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

// findTool looks for a program of the CUDA toolkit on PATH and in the toolkit's folder.
func findTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda"} {
		if dir == "" {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, "bin", name)); err == nil {
			return path, nil
		}
	}
	return "", usage("it comes with the CUDA toolkit; put its bin folder on PATH or set CUDA_HOME", "%s: not found", name)
}

func (a *app) sanitize(c *cli.Context) error {
	tools := sanitizers
	if list := c.String("tool"); list != "" {
		tools = strings.Split(list, ",")
		for _, tool := range tools {
			if !slices.Contains(sanitizers, tool) {
				return unknown("tool", tool, sanitizers)
			}
		}
	}
	t, err := a.tooled(c)
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
		if globalBool(c, "json") {
			line, _ := json.Marshal(map[string]string{"tool": name, "workload": t.workload.UUID, "verdict": verdict, "log": log}) // never fails
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
	if t.kind == "emu" {
		if c.IsSet("tool") {
			return usage("leave --tool out", "--tool: the emulator has sanitizers of its own")
		}
		log, found, fault, err := t.once(c.Context)
		if err != nil {
			return machine(err)
		}
		report("emulator", log, found, fault)
	} else {
		tool, err := findTool("compute-sanitizer")
		if err != nil {
			return err
		}
		// The first run builds, so that the compiler does not run under the tool. A fault is what the tools are there for.
		log, _, fault, err := t.once(c.Context)
		if err != nil {
			return machine(err)
		}
		var we *worker.Error
		if errors.As(fault, &we) && we.Kind == worker.Build {
			report("build", log, false, fault)
			return errNotPassed
		}
		for _, name := range tools {
			log, found, fault, err := t.once(c.Context, tool, "--tool", name, "--error-exitcode", fmt.Sprint(findingsExit), "--target-processes", "application-only")
			if err != nil {
				return machine(err)
			}
			report(name, log, found, fault)
		}
	}
	if bad {
		return errNotPassed
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

func (a *app) profile(c *cli.Context) error {
	t, err := a.tooled(c)
	if err != nil {
		return err
	}
	if t.kind == "emu" {
		return usage("run it on a machine with an NVIDIA GPU", "profile: the emulator keeps no time")
	}
	ncu, err := findTool("ncu")
	if err != nil {
		return err
	}
	if log, _, fault, err := t.once(c.Context); err != nil {
		return machine(err)
	} else if fault != nil {
		a.term.Error(fault.Error()+"\n"+strings.TrimRight(log, "\n"), "")
		return errNotPassed
	}
	folder := filepath.Join(t.submission.root, runs.Dir, runs.NewID(time.Now()))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file := filepath.Join(folder, "profile.ncu-rep")
	var names []string
	for _, m := range metrics {
		names = append(names, m.name)
	}
	log, _, fault, err := t.once(c.Context, ncu, "--set", c.String("ncu-set"), "--metrics", strings.Join(names, ","),
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
	out, err := exec.CommandContext(c.Context, ncu, "--import", file, "--page", "raw", "--csv", "--metrics", strings.Join(names, ",")).Output()
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
