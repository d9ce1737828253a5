// Package bench runs one solution over the workloads of a definition: it starts the worker, judges what comes out of it
// by the contest's rules and has it timed. It is not for choosing devices or showing results: it is given a worker and
// emits events.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"fisub/bench/reference"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A Config is one run.
type Config struct {
	Definition *trace.Definition
	Solution   *trace.Solution
	Workloads  []*trace.Workload
	Skip       map[string]bool // uuids that have a verdict already
	Profile    Profile

	// Load opens the inputs of a workload.
	Load func(ctx context.Context, def *trace.Definition, w *trace.Workload) (*workloads.Inputs, error)

	Worker     worker.Command
	DeviceKind string // "cuda", "emu"
	Device     device.Options

	Events *event.Stream
	Run    *event.Run // described by the caller; Run fills in Device and emits it

	now func() time.Time
}

// A Result counts verdicts. Passed + Failed + Missing is the number of workloads that were asked for.
type Result struct {
	Passed, Failed, Missing int
	Findings                int // of the honesty checks, on passed workloads and others
}

// ErrNoReference says that nothing can compute the expected outputs of a definition.
var ErrNoReference = errors.New("no reference that fisub can run")

// A DeviceError says that the device could not be opened or used at all.
type DeviceError struct{ Err *worker.Error }

func (e *DeviceError) Error() string { return e.Err.Error() }
func (e *DeviceError) Unwrap() error { return e.Err }

// Run judges and times the solution on each workload in turn. A wrong, slow, hanging or crashing solution is a verdict;
// the error is about the machine: no device, no compiler, a full disk, ctx. A workload whose inputs cannot be loaded is
// told as a failed event and counted as missing, and the others still run.
func Run(ctx context.Context, c Config) (Result, error) {
	if c.now == nil {
		c.now = time.Now
	}
	if !reference.Knows(c.Definition) {
		return Result{}, fmt.Errorf("%s: %w", c.Definition.Name, ErrNoReference)
	}
	r := &runner{Config: c, begun: c.now()}
	defer r.stop()
	err := r.run(ctx)
	done := r.result
	done.Missing = len(c.Workloads) - done.Passed - done.Failed - len(c.Skip)
	r.result.Missing = done.Missing
	if r.announced {
		c.Events.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Passed: done.Passed, Failed: done.Failed,
			Missing: done.Missing, Seconds: c.now().Sub(r.begun).Seconds(), Findings: done.Findings}})
	}
	return r.result, err
}

type runner struct {
	Config
	begun     time.Time
	client    *worker.Client
	info      device.Info
	announced bool
	built     *event.Built // nil before the first build
	buildErr  *worker.Error
	out       *os.File // outputs of the workload in flight, at outSize bytes
	outSize   int64
	result    Result
}

func (r *runner) stop() {
	if r.client != nil {
		r.client.Close()
		r.client = nil
	}
	if r.out != nil {
		r.out.Close()
		os.Remove(r.out.Name())
	}
}

func (r *runner) run(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	for i, w := range r.Workloads {
		if r.Skip[w.UUID] {
			continue
		}
		if err := r.workload(ctx, i, w); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// open starts a worker and opens the device; the first time, it also announces the run.
func (r *runner) open(ctx context.Context) error {
	client, err := worker.Start(ctx, r.Worker)
	if err != nil {
		return err
	}
	r.client = client
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r.info, err = client.Open(limit, r.DeviceKind, r.Device)
	if err != nil {
		return r.machineError(err)
	}
	if r.announced {
		return nil
	}
	r.announced = true
	r.Config.Run.Device = event.Device{Kind: r.DeviceKind, Name: r.info.Name, Arch: r.info.Arch, Ordinal: r.info.Ordinal,
		Driver: r.info.Driver, CUDA: r.info.CUDAVersion, Emulated: r.info.Emulated, Toolchain: r.info.Toolchain, UUID: r.info.UUID,
		L2Bytes: r.info.L2Bytes, MemoryBytes: r.info.MemoryBytes, Multiprocessors: r.info.Multiprocs}
	r.Events.Emit(event.Event{Type: event.TypeRun, Run: r.Config.Run})
	return nil
}

// machineError gives the error that ends the whole run.
func (r *runner) machineError(err error) error {
	var we *worker.Error
	if errors.As(err, &we) && we.Kind == worker.Machine {
		return &DeviceError{we}
	}
	var died *worker.Died
	if errors.As(err, &died) {
		if log := lastLines(r.client.TakeLog(), 5); log != "" {
			return fmt.Errorf("%w\n%s", err, log)
		}
	}
	return err
}

// ready makes sure that a worker runs with the solution built. A fault of the solution is a *worker.Error of kind Build
// or a worker.Died.
func (r *runner) ready(ctx context.Context) error {
	if r.client != nil && !r.client.Alive() {
		r.client.Close()
		r.client = nil
	}
	if r.buildErr != nil {
		return r.buildErr
	}
	if r.client != nil && r.built != nil {
		return nil
	}
	if r.client == nil {
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	first := r.built == nil
	if first {
		r.Events.Emit(event.Event{Type: event.TypeBuilding})
	}
	begun := r.now()
	err := r.client.Build(ctx, r.Definition, r.Solution)
	built := &event.Built{OK: err == nil, Seconds: r.now().Sub(begun).Seconds()}
	var we *worker.Error
	if errors.As(err, &we) && we.Kind == worker.Build {
		built.Log, r.buildErr = we.Log, we
	} else if err != nil {
		return err
	}
	if first {
		r.Events.Emit(event.Event{Type: event.TypeBuilt, Built: built})
		r.built = built
	}
	return err
}

// workload takes one workload to its verdict. An error ends the run.
func (r *runner) workload(ctx context.Context, index int, w *trace.Workload) error {
	axes := map[string]int{}
	for name, n := range w.Axes.All() {
		axes[name] = n
	}
	r.Events.Emit(event.Event{Type: event.TypeStarted, Workload: w.UUID,
		Started: &event.Started{Index: index + 1, Total: len(r.Workloads), Axes: axes}})
	begun := r.now()

	in, err := r.Load(ctx, r.Definition, w)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// The official harness writes no trace either when the inputs cannot be had.
		r.Events.Emit(event.Event{Type: event.TypeFailed, Workload: w.UUID, Message: &event.Message{Text: err.Error()}})
		return nil
	}
	defer in.Close()

	limit, cancel := context.WithTimeout(ctx, r.Profile.Timeout)
	defer cancel()
	t := &trial{in: in}
	v, samples, err := r.evaluate(limit, t)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if v, err = r.blame(err); err != nil {
			return err
		}
	}
	if samples != nil {
		r.Events.Emit(event.Event{Type: event.TypeSamples, Workload: w.UUID, Samples: eventSamples(samples)})
	}
	r.emit(w, index, axes, v, samples, r.now().Sub(begun))
	return r.examine(ctx, w, t, v, samples)
}

// A trial is what a workload is called with and should come to.
type trial struct {
	in      *workloads.Inputs
	load    *worker.Workload
	outputs []*worker.FileTensor
	want    []*tensor.Tensor
}

// evaluate runs, judges and times one workload.
func (r *runner) evaluate(ctx context.Context, t *trial) (verdict, *device.Samples, error) {
	if err := r.ready(ctx); err != nil {
		return verdict{}, nil, err
	}
	var err error
	if t.load, t.outputs, err = r.layout(t.in); err != nil {
		return verdict{}, nil, err
	}

	// The expected outputs are computed here while the worker takes the inputs and makes its first call.
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		t.want, err = reference.Run(r.Definition, t.in.Values)
		if err != nil {
			err = fmt.Errorf("reference of %s: %w", r.Definition.Name, err)
		}
		return err
	})
	g.Go(func() error {
		if err := r.client.Load(gctx, t.load); err != nil {
			return err
		}
		return r.client.Run(gctx, r.out.Name())
	})
	if err := g.Wait(); err != nil {
		return verdict{}, nil, err
	}

	got, unmap, err := r.mapOutputs(t.outputs)
	if err != nil {
		return verdict{}, nil, err
	}
	defer unmap()
	v := newVerdict()
	names := r.Definition.Outputs.Keys()
	trials := r.Profile.Trials
	if r.info.Emulated {
		trials = 1 // deterministic: further trials would repeat the first
	}
	for trial := range trials {
		if trial > 0 {
			if err := r.client.Run(ctx, r.out.Name()); err != nil {
				return verdict{}, nil, err
			}
		}
		before := v.status
		more := v.judge(names, got, t.want, r.Profile.Tolerance)
		if trial > 0 && before == trace.Passed && v.status == trace.IncorrectNumerical {
			v.later = compareAll(names, got, t.want, r.Profile.Tolerance).finding(fmt.Sprintf("call %d on the same inputs", trial+1))
		}
		if !more {
			return v, nil, nil
		}
	}
	if v.status != trace.Passed || r.info.Emulated {
		return v, nil, nil
	}
	samples, err := r.client.Measure(ctx, device.Plan{Warmup: r.Profile.Warmup, Iterations: r.Profile.Iterations,
		Trials: r.Profile.Trials, ColdL2: true})
	return v, samples, err
}

// blame turns an error of the worker into the verdict that the contest gives for it, or returns the error where the
// solution is not at fault.
func (r *runner) blame(err error) (verdict, error) {
	var we *worker.Error
	var died *worker.Died
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return verdict{status: trace.Timeout,
			detail: fmt.Sprintf("Evaluation timeout after %g seconds for solution %s", r.Profile.Timeout.Seconds(), r.Solution.Name)}, nil
	case errors.As(err, &died):
		return verdict{status: trace.RuntimeError, detail: "Worker process failed unexpectedly: " + died.Reason}, nil
	case errors.As(err, &we):
		switch we.Kind {
		case worker.Build:
			return verdict{status: trace.CompileError, detail: we.Text, log: "Build error: " + we.Text + "\n\n" + we.Log}, nil
		case worker.Call:
			return verdict{status: trace.RuntimeError, detail: we.Text, log: we.Log}, nil
		case worker.Fault:
			// The process is of no further use; the next workload gets a new one.
			r.client.Close()
			return verdict{status: trace.RuntimeError, detail: we.Text, log: we.Log}, nil
		}
		return verdict{}, &DeviceError{we}
	}
	return verdict{}, err
}

// emit writes the verdict as an official trace.
func (r *runner) emit(w *trace.Workload, index int, axes map[string]int, v verdict, samples *device.Samples, took time.Duration) {
	log := v.log
	if r.client != nil {
		printed := r.client.TakeLog()
		if log != "" && printed != "" && !strings.HasSuffix(printed, "\n") {
			printed += "\n"
		}
		if !strings.Contains(log, printed) || printed == "" {
			log = printed + log
		}
	}
	if v.detail != "" && !strings.Contains(log, v.detail) {
		if log != "" && !strings.HasSuffix(log, "\n") {
			log += "\n"
		}
		log += v.detail
	}

	e := &trace.Evaluation{Status: v.status, Timestamp: r.now().Format("2006-01-02T15:04:05.000000"), Log: log,
		Environment: trace.Environment{Hardware: r.info.Name}}
	if r.info.Emulated {
		e.Environment.Hardware = "emulator on " + r.info.Name
	}
	if r.info.CUDAVersion != "" {
		e.Environment.Libs.Set("cuda", r.info.CUDAVersion)
	}
	e.Environment.Libs.Set("fisub", r.Config.Run.Fisub)

	ev := &event.Evaluated{Index: index + 1, Axes: axes, Status: string(v.status), Detail: v.detail, Log: log,
		Seconds: took.Seconds(), Emulated: r.info.Emulated}
	if v.correctness != nil && (v.status == trace.Passed || v.status == trace.IncorrectNumerical) {
		e.Correctness = v.correctness
		abs, rel := event.Float(v.correctness.MaxAbsoluteError), event.Float(v.correctness.MaxRelativeError)
		ev.MaxAbs, ev.MaxRel = &abs, &rel
	}
	if v.status == trace.Passed {
		// The format wants a performance object with PASSED. Zero is what it holds where nothing was measured, and what
		// the contest's scorer refuses as a latency.
		e.Performance = &trace.Performance{}
		if samples != nil {
			ms := Latency(samples) / 1e6
			e.Performance.LatencyMS = ms
			ev.Latency = &ms
		}
		r.result.Passed++
	} else {
		r.result.Failed++
	}
	t := &trace.Trace{Definition: r.Definition.Name, Workload: *w, Solution: &r.Solution.Name, Evaluation: e}
	ev.Trace = t.JSON(trace.Compact)
	r.Events.Emit(event.Event{Type: event.TypeEvaluated, Workload: w.UUID, Evaluated: ev})
}

// layout describes the inputs and outputs to the worker and makes room for the outputs.
func (r *runner) layout(in *workloads.Inputs) (*worker.Workload, []*worker.FileTensor, error) {
	load := &worker.Workload{Guard: guard}
	if r.info.Emulated {
		load.Guard = 0 // the emulator has its own, and names the place
	}
	shapes := map[string][]int{}
	for _, v := range in.Values {
		value := worker.Value{}
		switch {
		case v.Tensor != nil:
			value.Tensor = &worker.FileTensor{DType: v.Tensor.DType.String(), Shape: v.Tensor.Shape, Path: v.Path, Offset: v.Offset, Bytes: len(v.Tensor.Data)}
			shapes[v.Name] = v.Tensor.Shape
		case v.Scalar != nil:
			switch v.Scalar.Kind {
			case trace.IntScalar:
				value.Int = &v.Scalar.Int
			case trace.FloatScalar:
				value.Float = &v.Scalar.Float
			case trace.BoolScalar:
				value.Bool = &v.Scalar.Bool
			}
		}
		load.Inputs = append(load.Inputs, value)
	}
	axes, err := r.Definition.BindAxes(shapes)
	if err != nil {
		return nil, nil, err
	}
	var outputs []*worker.FileTensor
	var end int64
	for name, spec := range r.Definition.Outputs.All() {
		shape, err := r.Definition.Shape(spec, axes)
		if err != nil {
			return nil, nil, fmt.Errorf("output %s: %w", name, err)
		}
		n, ok := tensor.Elements(shape)
		bytes, fits := spec.DType.Bytes(n)
		if !ok || !fits || bytes > 1<<40 {
			return nil, nil, fmt.Errorf("output %s: shape %v is out of range", name, shape)
		}
		out := &worker.FileTensor{DType: spec.DType.String(), Shape: shape, Offset: end, Bytes: bytes}
		outputs = append(outputs, out)
		load.Outputs = append(load.Outputs, worker.Value{Tensor: out})
		end += (int64(bytes) + 255) &^ 255
	}
	return load, outputs, r.makeOut(end)
}

// makeOut makes the file of outputs at least size bytes long.
func (r *runner) makeOut(size int64) error {
	if r.out == nil {
		f, err := os.CreateTemp(scratchDir(), "fisub-outputs-*")
		if err != nil {
			return err
		}
		r.out = f
	}
	if size > r.outSize {
		if err := r.out.Truncate(size); err != nil {
			return err
		}
		r.outSize = size
	}
	return nil
}

// scratchDir is a folder in memory where there is one: outputs are written once and read once.
func scratchDir() string {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && uint64(st.Bsize)*st.Bavail > 4<<30 {
		return "/dev/shm"
	}
	return os.TempDir()
}

func (r *runner) mapOutputs(outputs []*worker.FileTensor) (got []*tensor.Tensor, unmap func(), err error) {
	if r.outSize == 0 {
		for i, spec := range r.specs() {
			got = append(got, &tensor.Tensor{DType: spec.DType, Shape: outputs[i].Shape})
		}
		return got, func() {}, nil
	}
	data, err := unix.Mmap(int(r.out.Fd()), 0, int(r.outSize), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %s: %w", filepath.Base(r.out.Name()), err)
	}
	for i, spec := range r.specs() {
		o := outputs[i]
		got = append(got, &tensor.Tensor{DType: spec.DType, Shape: o.Shape, Data: data[o.Offset : o.Offset+int64(o.Bytes) : o.Offset+int64(o.Bytes)]})
	}
	return got, func() { _ = unix.Munmap(data) }, nil
}

func (r *runner) specs() []trace.TensorSpec {
	var specs []trace.TensorSpec
	for _, spec := range r.Definition.Outputs.All() {
		specs = append(specs, spec)
	}
	return specs
}

func eventSamples(s *device.Samples) *event.Samples {
	out := &event.Samples{Timer: s.Timer, ColdL2: s.ColdL2, MedianNS: Latency(s)}
	for _, trial := range s.Trials {
		row := make([]int64, len(trial))
		for i, d := range trial {
			row[i] = d.Nanoseconds()
			if out.N == 0 || row[i] < out.MinNS {
				out.MinNS = row[i]
			}
			out.N++
		}
		out.TrialsNS = append(out.TrialsNS, row)
	}
	return out
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
