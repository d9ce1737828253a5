// Package tools runs workloads of a submission under NVIDIA's tools or under the virtual GPU's sanitizers.
package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/counters"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/machine"
	"fisub/project/setup"
	"fisub/workloads"
)

// Sections lists ncu's section sets.
var Sections = []string{"basic", "detailed", "full"}

// findingsExit is the exit status for compute-sanitizer to use if it found something.
const findingsExit = 86

// A Target is a submission with some workloads, ready to run under a tool.
type Target struct {
	Workloads []*trace.Workload // at least one
	Set       string            // of the workloads
	Emulated  bool
	solution  *trace.Solution
	shared    bench.Shared
	writable  []string // files and folders that the tool may write
}

// The default time limits of a tool per workload.
const (
	Timeout         = 5 * time.Minute
	emulatedTimeout = time.Minute
)

// New prepares the workloads chosen by o, by default one of each shape: see Shapes. o.Timeout is the time limit of a
// tool per workload.
func New(ctx context.Context, s *project.Submission, o setup.Options, term *ui.Terminal) (*Target, error) {
	ws, set, err := chosen(s, o)
	if err != nil {
		return nil, err
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	opts := device.Options{CacheDir: root, Arch: o.Arch, Prebuilt: o.Prebuilt}
	kind, err := machine.Choose(ctx, o.Device, s.Solution, &opts, term)
	if err != nil {
		return nil, err
	}
	opts.LineInfo = kind != "emu"
	tools, err := machine.Compiler(ctx, kind, &opts, s.Solution, term)
	if err != nil {
		return nil, err
	}
	profile, err := bench.NewProfile("quick", s.Definition)
	if err != nil {
		return nil, err
	}
	if profile.Timeout = cmp.Or(o.Timeout, Timeout); o.Timeout == 0 && kind == "emu" {
		profile.Timeout = emulatedTimeout
	}
	shared := bench.Shared{Definition: s.Definition, Profile: profile, Load: s.Data.Load, DeviceKind: kind, Device: opts,
		Build: machine.Builder(kind, opts, tools)}
	if shared.Worker, err = machine.Worker(); err != nil {
		return nil, err
	}
	shared.Worker.Progress = term.Passing
	return &Target{Workloads: ws, Set: set, Emulated: kind == "emu", solution: s.Solution, shared: shared}, nil
}

// chosen returns the workloads of o and their set. Without a set it uses the contest's, which has more shapes, if there
// is one. Workloads given by prefix are looked up in the default set first.
func chosen(s *project.Submission, o setup.Options) (ws []*trace.Workload, from string, err error) {
	sets := []string{cmp.Or(o.Set, workloads.ContestSet), cmp.Or(o.Set, workloads.DefaultSet)}
	if len(o.Prefixes) > 0 {
		slices.Reverse(sets)
	}
	var first error
	for _, set := range sets {
		ws, err := s.Data.Workloads(s.Definition.Name, set)
		if err != nil {
			err = usage.Invalid(err)
		} else {
			ws, err = o.Of(ws)
		}
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		if len(o.Prefixes) > 0 {
			return ws[:1], set, nil
		}
		return Shapes(ws), set, nil
	}
	return nil, "", first
}

// manyTimes limits the size of a workload that Shapes picks, as a multiple of the smallest.
const manyTimes = 64

// bySize compares two workloads by the products of their axes.
func bySize(a, b *trace.Workload) int { return cmp.Compare(size(a), size(b)) }

func size(w *trace.Workload) float64 {
	n := 1.0
	for _, x := range w.Axes.All() {
		n *= float64(1 + max(x, 0))
	}
	return n
}

// Largest returns the largest workload by the product of its axes.
func Largest(ws []*trace.Workload) *trace.Workload { return slices.MaxFunc(ws, bySize) }

// Shapes picks from ws the smallest workload of each class of axes (0, 1 and more for each axis), the smallest with
// an odd axis above 1, and the largest of at most manyTimes the smallest size. The size is the product of the axes.
func Shapes(ws []*trace.Workload) []*trace.Workload {
	ws = slices.Clone(ws)
	slices.SortStableFunc(ws, bySize)
	var taken []*trace.Workload
	seen, odd := map[string]bool{}, false
	for _, w := range ws {
		class, unlike := "", false
		for name, x := range w.Axes.All() {
			class += fmt.Sprint(name, min(x, 2), " ")
			unlike = unlike || x > 1 && x%2 == 1
		}
		if !seen[class] || unlike && !odd {
			seen[class], odd = true, odd || unlike
			taken = append(taken, w)
		}
	}
	for _, w := range slices.Backward(ws) {
		if size(w) <= manyTimes*size(ws[0]) {
			if size(w) > size(taken[len(taken)-1]) {
				taken = append(taken, w)
			}
			break
		}
	}
	return taken
}

// Find looks for a program of the CUDA toolkit on PATH, in the toolkit's folder and in the standalone Nsight Compute.
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
	return "", usage.Errorf("install the CUDA toolkit and add its bin folder to PATH, or set CUDA_HOME",
		"%s: not found", name)
}

// once runs a workload in a sandboxed worker, below the tool whose command is prefix. found reports whether the
// process exited with findingsExit. fault is the solution's fault, or nil; if judge is set, wrong outputs are one.
func (r *Target) once(ctx context.Context, w *trace.Workload, judge bool, prefix ...string) (
	log string, found bool, fault, err error,
) {
	shared := r.shared
	if len(prefix) > 0 {
		shared.Worker.Sandbox = &sandbox.Sandbox{Write: r.writable, Tools: true, Below: prefix}
	}
	if r.python() && !r.Emulated { // line information; each tensor in its own allocation, with padding between them
		flags := strings.TrimSpace(os.Getenv("NVCC_APPEND_FLAGS") + " -lineinfo")
		shared.Worker.Env = append(slices.Clone(shared.Worker.Env), "NVCC_APPEND_FLAGS="+flags,
			"PYTORCH_NO_CUDA_MEMORY_CACHING=1")
	}
	wrong, log, err := bench.Once(ctx, shared, r.solution, w, judge)
	exit, exited := errors.AsType[*exec.ExitError](err)
	_, died := errors.AsType[*worker.Died](err)
	we, failed := errors.AsType[*worker.Error](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return log, false, timeError(shared.Profile.Timeout), nil
	case exited && exit.ExitCode() == findingsExit:
		return log, true, nil, nil
	case died:
		return log, false, err, nil
	case failed && we.Kind != worker.Machine && we.Kind != worker.Lacking:
		return log + we.Log, false, err, nil
	case err == nil && wrong != "":
		return log, false, fmt.Errorf("%w: %s", errWrong, wrong), nil
	}
	return log, false, nil, machine.Invalid(err)
}

// python reports whether the solution runs in the Python worker.
func (r *Target) python() bool { return pyworker.Runs(&r.solution.Spec) }

var errWrong = errors.New(Wrong)

// A timeError is a time limit that a tool exceeded.
type timeError time.Duration

func (e timeError) Error() string {
	return fmt.Sprintf("timeout after %v (--timeout)", time.Duration(e))
}

func timedOut(err error) bool {
	_, ok := errors.AsType[timeError](err)
	return ok
}

// Tools returns those of the tools that can check the submission.
func (r *Target) Tools(tools []string) ([]string, error) {
	if !r.Emulated || !r.python() || !pyworker.UsesTriton(r.solution) {
		return tools, nil
	}
	tools = slices.DeleteFunc(slices.Clone(tools), func(name string) bool { return name == "racecheck" })
	if len(tools) == 0 {
		return nil, usage.Errorf("on a GPU, fisub sanitize finds them", "the virtual GPU finds no races in Triton kernels")
	}
	return tools, nil
}

// Sanitize runs the workloads under each of the tools, or on the virtual GPU with the equivalent checks, until one
// finds something. It passes results to tell, combining tools with the same result for a workload: "clean",
// "findings", or the solution's fault, even if that is only wrong outputs. For a submission that does not build, the
// tool is "build".
func (r *Target) Sanitize(ctx context.Context, tools []string, begin func(*trace.Workload), tell func(Record)) error {
	sanitizer := ""
	if !r.Emulated {
		var err error
		if sanitizer, err = Find("compute-sanitizer"); err != nil {
			return err
		}
		// The first run builds, so that the compiler does not run under a tool. Other faults are left for the tools
		// to find.
		log, _, fault, err := r.once(ctx, r.Workloads[0], false)
		if err != nil {
			return err
		}
		if unbuilt(fault) {
			tell(Record{Tool: Build, Workload: r.Workloads[0].UUID, Verdict: fault.Error(), Log: log})
			return nil
		}
	}
	for _, w := range r.Workloads {
		begin(w)
		lines, err := r.sanitize(ctx, w, tools, sanitizer)
		if err != nil {
			return err
		}
		stop := false
		for _, l := range lines {
			tell(l)
			stop = stop || l.Verdict != Clean
		}
		if stop {
			return nil
		}
	}
	return nil
}

// unbuilt reports whether fault means that the submission does not build.
func unbuilt(fault error) bool { return worker.KindOf(fault) == worker.Build }

const (
	Clean = "clean"                            // verdict of a sanitizer that found nothing
	Wrong = "clean, but the outputs are wrong" // beginning of the verdict if only the outputs are wrong
	Build = "build"                            // tool of the record if the submission does not build
)

// sanitize returns the results of the tools on w, combining equal ones. It stops after a tool that exceeds the time
// limit.
func (r *Target) sanitize(ctx context.Context, w *trace.Workload, tools []string,
	sanitizer string) (all []Record, err error) {
	add := func(names []string, log string, found bool, fault error) {
		l := Record{Tool: strings.Join(names, ","), Workload: w.UUID, Verdict: Clean, Log: log}
		if fault != nil {
			l.Verdict = fault.Error()
		} else if found {
			l.Verdict = "findings"
		}
		for i := range all {
			if l.Verdict != "findings" &&
				plain.NoAddresses(all[i].Verdict) == plain.NoAddresses(l.Verdict) {
				all[i].Tool += "," + l.Tool
				return
			}
		}
		all = append(all, l)
	}
	if r.Emulated { // look for everything at once; on a fault, find out which tool reports it
		r.shared.Device.Sanitize = strings.Join(tools, ",")
		log, found, fault, err := r.once(ctx, w, true)
		switch {
		case err != nil:
			return nil, err
		case unbuilt(fault):
			add([]string{Build}, log, found, fault)
			return all, nil
		case fault == nil || len(tools) == 1 || timedOut(fault) || errors.Is(fault, errWrong):
			add(tools, log, found, fault)
			return all, nil
		}
	}
	for _, name := range tools {
		var prefix []string
		if r.shared.Device.Sanitize = name; !r.Emulated {
			r.shared.Device.Sanitize = ""
			prefix = []string{sanitizer, "--tool", name, "--error-exitcode", fmt.Sprint(findingsExit), "--target-processes",
				"application-only"}
			if name == "memcheck" { // otherwise another tensor may follow immediately
				prefix = append(prefix, "--padding", "4096")
			}
		}
		log, found, fault, err := r.once(ctx, w, true, prefix...)
		if err != nil {
			return nil, err
		}
		if add([]string{name}, log, found, fault); timedOut(fault) {
			break
		}
	}
	return all, nil
}

// A FaultError is a fault of the solution before any tool ran, with its log.
type FaultError struct {
	Err error
	Log string
}

func (e *FaultError) Error() string { return e.Err.Error() }

// Profile runs the workload under ncu, which collects a section set, and writes the report and its figures to folder,
// as ReportName and FiguresName. If the user may not read the GPU's performance counters, it collects the metrics that
// need no permission. The record's log says what is missing.
func (r *Target) Profile(ctx context.Context, sections, folder string) (Record, error) {
	l := Record{Tool: "ncu", Workload: r.Workloads[0].UUID, Verdict: "profiled", Report: filepath.Join(folder, ReportName)}
	ncu, err := Find("ncu")
	if err != nil {
		return l, err
	}
	log, _, fault, err := r.once(ctx, r.Workloads[0], false)
	if err != nil {
		return l, err
	}
	if fault != nil {
		return l, &FaultError{fault, log}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return l, err
	}
	dir, remove, err := cache.TempDir("fisub-ncu")
	if err != nil {
		return l, err
	}
	defer remove()
	file := filepath.Join(dir, ReportName)
	r.writable = []string{dir}
	collect := func(args ...string) error {
		args = append([]string{ncu, "--clock-control", "none", "--target-processes", "application-only", "--force-overwrite",
			"--export", file}, args...)
		if r.python() { // the worker starts and stops it around a call
			args = append(args, "--profile-from-start", "off")
		}
		log, _, fault, err = r.once(ctx, r.Workloads[0], false, args...)
		if err = cmp.Or(err, fault); err == nil {
			_, err = os.Stat(file)
		}
		return err
	}
	if err = collect("--set", sections, "--metrics", requested(true)); refused(log) {
		l.Log = "no permission to read the GPU's performance counters (ERR_NVGPUCTRPERM), so times, throughputs, hit rates " +
			"and stalls are missing. For these, run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0; a " +
			"container needs CAP_SYS_ADMIN. https://developer.nvidia.com/ERR_NVGPUCTRPERM"
		err = collect("--metrics", requested(false))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("ncu wrote no report")
	}
	if err != nil {
		return l, fmt.Errorf("profile: %w\n%s", err, strings.TrimRight(log, "\n"))
	}
	box := sandbox.Sandbox{Env: []string{"HOME=" + dir, "TMPDIR=" + dir}, Write: r.writable, Tools: true}
	raw, err := box.Command(ctx, ncu, "--import", file, "--page", "raw", "--csv", "--print-units", "base").Output()
	if err != nil {
		return l, fmt.Errorf("reading %s with ncu: %w", file, err)
	}
	data, err := plain.ReadFile(file, maxReport)
	if err == nil {
		err = os.WriteFile(l.Report, data, 0o644)
	}
	if err != nil {
		return l, err
	}
	if l.Kernels, err = Figures(raw); err != nil {
		return l, fmt.Errorf("%s: %w", l.Report, err)
	}
	if lines, err := r.sourcePage(ctx, box, ncu, dir); err == nil { // a report without samples has no source page
		AddLines(l.Kernels, lines)
	}
	if names := unknown(l.Kernels); len(names) > 0 {
		l.Log = strings.TrimPrefix(l.Log+"\nncu has no value of "+strings.Join(names, ", ")+
			". If the GPU is newer than this ncu, or the reverse, another version may have one", "\n")
	}
	return l, WriteFigures(folder, &Profiled{Workload: l.Workload, Kernels: l.Kernels})
}

// refused reports whether ncu's log says that the user may not read the GPU's performance counters.
func refused(log string) bool { return strings.Contains(log, "ERR_NVGPUCTRPERM") }

// CountersName is the name of the file with the counters of the virtual GPU in a run's folder, as JSON lines.
const CountersName = "counters.jsonl"

// AllClusters is a number of clusters that no launch exceeds.
const AllClusters = 1_000_000_000

// Count calls the solution once on the first workload, on the virtual GPU, and returns the counters of its launches. Of
// large launches, it runs about sample clusters of blocks. A fault of the solution is a *FaultError.
func (r *Target) Count(ctx context.Context, sample int) ([]counters.Launch, error) {
	all, log, err := bench.Count(ctx, r.shared, r.solution, r.Workloads[0], sample)
	we, failed := errors.AsType[*worker.Error](err)
	_, died := errors.AsType[*worker.Died](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, &FaultError{timeError(r.shared.Profile.Timeout), log}
	case died || failed && we.Kind != worker.Machine && we.Kind != worker.Lacking:
		return nil, &FaultError{err, log}
	case err != nil:
		return nil, machine.Invalid(err)
	case len(all) == 0:
		return nil, usage.Errorf("", "the call launched no kernel")
	}
	for i := range all {
		all[i].Workload = r.Workloads[0].UUID
		all[i].Clean()
	}
	return all, nil
}

// WriteCounters writes launches into folder as CountersName.
func WriteCounters(folder string, all []counters.Launch) error {
	text, err := counters.Lines(all)
	if err != nil {
		return err
	}
	return plain.WriteFile(filepath.Join(folder, CountersName), text, 0o644)
}

// sourcePage returns ncu's page of the report in dir that has the samples of each source line.
func (r *Target) sourcePage(ctx context.Context, box sandbox.Sandbox, ncu, dir string) ([]LineSamples, error) {
	src := filepath.Join(dir, "src")
	var files []string
	for _, f := range r.solution.Sources {
		file := filepath.Join(src, filepath.FromSlash(f.Path))
		if !filepath.IsLocal(f.Path) || strings.Contains(f.Path, ",") {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, []byte(f.Content), 0o644); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	page, err := box.Command(ctx, ncu, "--import", filepath.Join(dir, ReportName), "--page", "source", "--csv",
		"--print-source", "cuda,sass", "--resolve-source-file", strings.Join(files, ",")).Output()
	if err != nil {
		return nil, err
	}
	return SourceLines(page, src)
}

// A Record is the machine-readable output of `fisub sanitize` and `fisub profile`, one JSON object per line.
type Record struct {
	Tool     string           `json:"tool"` // several with the same result are separated by commas
	Workload string           `json:"workload"`
	Verdict  string           `json:"verdict"` // "clean", "findings", "profiled" or an error; "" with Part
	Log      string           `json:"log"`
	Kernels  []ProfiledKernel `json:"kernels,omitempty"`
	Report   string           `json:"report,omitempty"` // path
	// Counters are those of the launches of a call on the virtual GPU.
	Counters []counters.Launch `json:"counters,omitempty"`
	Part     []byte            `json:"part,omitempty"` // the next bytes of the report; Kernels follow the last part
}

// ReadRecord decodes a line. ok reports whether it is a Record.
func ReadRecord(text []byte) (r Record, ok bool) {
	err := json.Unmarshal(text, &r)
	return r, err == nil && r.Tool != ""
}

// Write writes the line to w.
func (r Record) Write(w io.Writer) error {
	data, err := json.Marshal(r)
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", data)
	}
	return err
}

const (
	partSize  = 256 << 10
	maxReport = 256 << 20 // largest report, in bytes
)

// Send writes the report in file to w, in parts.
func Send(w io.Writer, file string) error {
	f, err := plain.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		part := make([]byte, partSize)
		n, err := io.ReadFull(f, part)
		if n > 0 {
			if err := (Record{Tool: "ncu", Part: part[:n]}).Write(w); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

// A ReportFile collects the parts of a report in a file.
type ReportFile struct {
	Path string
	size int
}

// Take appends a part.
func (r *ReportFile) Take(part []byte) error {
	if r.size += len(part); r.size > maxReport {
		return fmt.Errorf("report larger than %d bytes", maxReport)
	}
	f, err := plain.OpenFile(r.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(part)
	return cmp.Or(err, f.Close())
}
