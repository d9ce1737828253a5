// Package tools runs one workload of a submission under NVIDIA's tools, or under the emulator's sanitizers.
package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/session"
)

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
	o.Limit = 1
	if ws, err = o.Of(ws); err != nil {
		return nil, err
	}
	if err := Check(s.Solution); err != nil {
		return nil, err
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	opts := device.Options{CacheDir: root, Arch: o.Arch, Prebuilt: o.Prebuilt}
	kind, err := session.ChooseDevice(ctx, o.Device, s.Solution, &opts, log)
	if err != nil {
		return nil, err
	}
	if err := session.Compiler(ctx, kind, &opts, s.Solution, log); err != nil {
		return nil, err
	}
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

// Check refuses submissions that run under no tool.
func Check(s *trace.Solution) error {
	if pyworker.Runs(&s.Spec) {
		return usage.Errorf("", "%s: only cuda and cpp submissions with the tvm-ffi binding that do not return their "+
			"outputs run under a tool", s.Spec.Language)
	}
	return nil
}

// Find looks for a program of the CUDA toolkit on PATH, in the toolkit's folder, and where Nsight Compute is by itself.
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
	if found, _ := filepath.Glob("/opt/nvidia/nsight-compute/*/" + name); len(found) > 0 {
		return found[len(found)-1], nil
	}
	return "", usage.Errorf("it comes with the CUDA toolkit; put its bin folder on PATH or set CUDA_HOME",
		"%s: not found", name)
}

// once runs the workload in a worker that starts with the words of prefix. found tells that the process ended with the
// status that a tool was told to end with; fault is what the solution did wrong, and nil where nothing. Where judge is
// set, outputs that are wrong are a fault.
func (r *Run) once(ctx context.Context, judge bool, prefix ...string) (log string, found bool, fault, err error) {
	shared := r.shared
	shared.Worker = worker.Command{Args: append(prefix, r.self, "worker")}
	wrong, log, err := bench.Once(ctx, shared, r.solution, r.Workload, judge)
	var exit *exec.ExitError
	var died *worker.Died
	var we *worker.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return log, false, fmt.Errorf("it has not ended within %v (--timeout)", shared.Profile.Timeout), nil
	case errors.As(err, &exit) && exit.ExitCode() == findingsExit:
		return log, true, nil, nil
	case errors.As(err, &died):
		return log, false, err, nil
	case errors.As(err, &we) && we.Kind != worker.Machine && we.Kind != worker.Lacking:
		return log + we.Log, false, err, nil
	case err == nil && wrong != "":
		return log, false, errors.New("clean, but the outputs are wrong: " + wrong), nil
	}
	return log, false, nil, session.Machine(err)
}

// Sanitize runs the workload under each of the tools, on the emulator looking for what each of them does, and tells
// what it says: "clean", "findings", or what the solution did wrong, if only that its outputs are wrong.
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
	if r.Emulated {
		for _, name := range tools {
			r.shared.Device.Sanitize = name
			log, found, fault, err := r.once(ctx, true)
			if err != nil {
				return err
			}
			report(name, log, found, fault)
		}
		return nil
	}
	// The first run builds, so that the compiler does not run under a tool. A fault is what the tools are there for.
	sanitizer, err := Find("compute-sanitizer")
	if err != nil {
		return err
	}
	log, _, fault, err := r.once(ctx, false)
	if err != nil {
		return err
	}
	var failed *worker.Error
	if errors.As(fault, &failed) && failed.Kind == worker.Build {
		report("build", log, false, fault)
		return nil
	}
	for _, name := range tools {
		log, found, fault, err := r.once(ctx, true, sanitizer, "--tool", name, "--error-exitcode",
			fmt.Sprint(findingsExit), "--target-processes", "application-only")
		if err != nil {
			return err
		}
		report(name, log, found, fault)
	}
	return nil
}

// A FaultError is what the solution did wrong before a tool had seen it, with its log.
type FaultError struct {
	Err error
	Log string
}

func (e *FaultError) Error() string { return e.Err.Error() }

// Profile runs the workload under ncu, which collects a set of sections, and writes the report and its figures into
// folder, as ReportName and FiguresName.
func (r *Run) Profile(ctx context.Context, sections, folder string) ([]Kernel, error) {
	ncu, err := Find("ncu")
	if err != nil {
		return nil, err
	}
	log, _, fault, err := r.once(ctx, false)
	if err != nil {
		return nil, err
	}
	if fault != nil {
		return nil, &FaultError{fault, log}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, ReportName)
	var names []string
	for _, f := range figures {
		if f.asked {
			names = append(names, f.metric)
		}
	}
	log, _, fault, err = r.once(ctx, false, ncu, "--set", sections, "--metrics", strings.Join(names, ","),
		"--clock-control", "none",
		"--target-processes", "application-only", "--force-overwrite", "--export", file)
	if err == nil {
		err = fault
	}
	if _, missing := os.Stat(file); err == nil && missing != nil {
		err = errors.New("ncu wrote no report")
	}
	if denied := deniedCounters(log); denied != nil {
		return nil, denied
	}
	if err != nil {
		return nil, fmt.Errorf("profile: %w\n%s", err, strings.TrimRight(log, "\n"))
	}
	raw, err := exec.CommandContext(ctx, ncu, "--import", file, "--page", "raw", "--csv", "--print-units", "base").Output()
	if err != nil {
		return nil, fmt.Errorf("reading %s with ncu: %w", file, err)
	}
	kernels, err := Figures(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return kernels, WriteFigures(folder, r.Workload.UUID, kernels)
}

// deniedCounters tells whether ncu said that this user may not read the GPU's performance counters.
func deniedCounters(log string) error {
	if !strings.Contains(log, "ERR_NVGPUCTRPERM") {
		return nil
	}
	return usage.Errorf("its administrator allows it to all users (NVreg_RestrictProfilingToAdminUsers=0), or run as "+
		"root; in a container it takes CAP_SYS_ADMIN, which most providers refuse: take a machine of your own there. "+
		"https://developer.nvidia.com/ERR_NVGPUCTRPERM",
		"profile: this machine lets you read no performance counters of its GPU (ERR_NVGPUCTRPERM)")
}
