// Package tools runs one workload of a submission under NVIDIA's tools, or under the emulator's sanitizers.
package tools

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/session"
)

// Sanitizers are compute-sanitizer's tools, in the order in which they run.
var Sanitizers = []string{"memcheck", "racecheck", "initcheck", "synccheck"}

// Sections are ncu's sets of sections.
var Sections = []string{"basic", "detailed", "full"}

// findingsExit is the exit status that compute-sanitizer is told to use where it found something.
const findingsExit = 86

// A Run is one workload of a submission, ready to run under a tool.
type Run struct {
	Workload *trace.Workload
	Emulated bool
	root     string
	solution *trace.Solution
	shared   bench.Shared
	self     string
}

// New prepares the first workload of o that there is. timeout is that of a tool.
func New(ctx context.Context, s *session.Submission, o session.Options, log session.Log) (*Run, error) {
	ws, err := s.Data.Workloads(s.Definition.Name, o.Set)
	if err != nil {
		return nil, usage.Invalid(err)
	}
	if ws, err = session.Choose(ws, o.Workloads, 1); err != nil {
		return nil, err
	}
	if pyworker.Runs(&s.Solution.Spec) {
		return nil, usage.Errorf("", "%s: only cuda and cpp submissions with the tvm-ffi binding run under a tool",
			s.Solution.Spec.Language)
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	opts := device.Options{CacheDir: root}
	kind, err := session.ChooseDevice(ctx, o.Device, s.Solution, &opts, log)
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
	profile.Timeout = o.Timeout
	shared := bench.Shared{Definition: s.Definition, Profile: profile, Load: s.Data.Load, DeviceKind: kind, Device: opts}
	return &Run{Workload: ws[0], Emulated: kind == "emu", root: s.Root, solution: s.Solution, shared: shared,
		self: self}, nil
}

// Find looks for a program of the CUDA toolkit on PATH and in the toolkit's folder.
func Find(name string) (string, error) {
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
	return "", usage.Errorf("it comes with the CUDA toolkit; put its bin folder on PATH or set CUDA_HOME",
		"%s: not found", name)
}

// once runs the workload in a worker that starts with the words of prefix. found tells that the process ended with the
// status that a tool was told to end with; fault is what the solution did wrong, and nil where nothing.
func (r *Run) once(ctx context.Context, prefix ...string) (log string, found bool, fault, err error) {
	shared := r.shared
	shared.Worker = worker.Command{Args: append(prefix, r.self, "worker")}
	log, err = bench.Once(ctx, shared, r.solution, r.Workload)
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
	return log, false, nil, session.Machine(err)
}

// Sanitize runs the workload under each of the tools, or on the emulator under its own, and tells what each says:
// "clean", "findings", or what the solution did wrong.
func (r *Run) Sanitize(ctx context.Context, tools []string, tell func(tool, verdict, log string)) error {
	report := func(name, log string, found bool, fault error) {
		switch {
		case fault != nil:
			tell(name, fault.Error(), log)
		case found:
			tell(name, "findings", log)
		default:
			tell(name, "clean", log)
		}
	}
	// The first run builds, so that the compiler does not run under a tool. A fault is what the tools are there for.
	sanitizer := ""
	if !r.Emulated {
		var err error
		if sanitizer, err = Find("compute-sanitizer"); err != nil {
			return err
		}
	}
	log, found, fault, err := r.once(ctx)
	if err != nil {
		return err
	}
	var failed *worker.Error
	switch {
	case r.Emulated:
		report("emulator", log, found, fault)
		return nil
	case errors.As(fault, &failed) && failed.Kind == worker.Build:
		report("build", log, false, fault)
		return nil
	}
	for _, name := range tools {
		log, found, fault, err := r.once(ctx, sanitizer, "--tool", name, "--error-exitcode", fmt.Sprint(findingsExit),
			"--target-processes", "application-only")
		if err != nil {
			return err
		}
		report(name, log, found, fault)
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

// A FaultError is what the solution did wrong before a tool had seen it, with its log.
type FaultError struct {
	Err error
	Log string
}

func (e *FaultError) Error() string { return e.Err.Error() }

// Profile runs the workload under ncu, which collects a set of sections, prints a summary and gives the file of the
// report.
func (r *Run) Profile(ctx context.Context, sections string, out io.Writer) (file string, err error) {
	ncu, err := Find("ncu")
	if err != nil {
		return "", err
	}
	log, _, fault, err := r.once(ctx)
	if err != nil {
		return "", err
	}
	if fault != nil {
		return "", &FaultError{fault, log}
	}
	folder := filepath.Join(r.root, runs.Dir, runs.NewID(time.Now()))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	file = filepath.Join(folder, "profile.ncu-rep")
	var names []string
	for _, m := range metrics {
		names = append(names, m.name)
	}
	log, _, fault, err = r.once(ctx, ncu, "--set", sections, "--metrics", strings.Join(names, ","), "--clock-control",
		"none",
		"--target-processes", "application-only", "--force-overwrite", "--export", file)
	if err == nil {
		err = fault
	}
	if _, missing := os.Stat(file); err == nil && missing != nil {
		err = errors.New("ncu wrote no report")
	}
	if err != nil {
		return "", fmt.Errorf("profile: %w\n%s", err, strings.TrimRight(log, "\n"))
	}
	raw, err := exec.CommandContext(ctx, ncu, "--import", file, "--page", "raw", "--csv", "--metrics",
		strings.Join(names, ",")).Output()
	if err != nil {
		return "", fmt.Errorf("reading %s with ncu: %w", file, err)
	}
	if err := summary(out, raw); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return file, nil
}

// summary prints what ncu's raw page says: a header, a row of units, and a row for each kernel.
func summary(out io.Writer, raw []byte) error {
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
		fmt.Fprintf(out, "kernel      %s\n", plain.Line(name))
		for _, m := range metrics {
			if value, unit := cell(m.name); value != "" {
				fmt.Fprintf(out, "  %-16s %s %s\n", m.label, value, unit)
			}
		}
	}
	return nil
}
