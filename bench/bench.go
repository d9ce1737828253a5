// Package bench runs one solution over the workloads of a definition: it starts the worker, judges what comes out of it
// by the contest's rules and has it timed. It is not for choosing devices or showing results: it is given a worker and
// emits events.
package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fisub/bench/pyworker"
	"fisub/bench/reference"
	"fisub/bench/stats"
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
	Timer      string // device.TimerAuto, TimerCUPTI or TimerEvents; "" is auto

	// Load opens the inputs of a trial, from 0, of a workload.
	Load func(ctx context.Context, def *trace.Definition, w *trace.Workload, trial int) (*workloads.Inputs, error)

	Worker     worker.Command // for what runs without Python; its limits hold for the Python worker too
	DeviceKind string         // "cuda", "emu"
	Device     device.Options // with CacheDir

	Events *event.Stream
	Run    *event.Run // described by the caller; Run fills in Device and emits it

	// Of a run that is resumed: Admit refuses a device that is not the run's, before anything is recorded, and TimedWith
	// is what its workloads were timed with, "" where none was. Both may be left out.
	Admit     func(event.Device) error
	TimedWith string
}

// A Result counts verdicts. Passed + Failed + Missing is the number of workloads that were asked for.
type Result struct {
	Passed, Failed, Missing int
	Findings                int // of the honesty checks, on passed workloads and others
}

// ErrNoReference says that nothing can compute the expected outputs of a definition: it is not of those that bench/reference
// knows, and there is no Python with torch to run its own reference.
var ErrNoReference = errors.New("no reference that fisub can run")

// A DeviceError says that the device could not be opened or used at all.
type DeviceError struct{ Err *worker.Error }

func (e *DeviceError) Error() string { return e.Err.Error() }
func (e *DeviceError) Unwrap() error { return e.Err }

// A TimerError says that a run that is resumed would go on with another timer, whose figures mean something else.
type TimerError struct{ Was, Is string }

func (e *TimerError) Error() string {
	return fmt.Sprintf("the run was timed with %s, now it is %s", e.Was, e.Is)
}

// Run judges and times the solution on each workload in turn. A wrong, slow, hanging or crashing solution is a verdict;
// the error is about the machine: no device, no compiler, a full disk, ctx. A workload whose inputs cannot be loaded is
// told as a failed event and counted as missing, and the others still run.
func Run(ctx context.Context, c Config) (Result, error) {
	r := &runner{Config: c, begun: time.Now()}
	defer r.stop()
	var err error
	if r.evaluator, err = evaluatorOf(c.Definition); err != nil {
		return Result{}, err
	}
	if !reference.Knows(c.Definition) {
		if r.reference, err = newReference(ctx, &c); err != nil {
			return Result{}, err
		}
	}
	if pyworker.Runs(&c.Solution.Spec) {
		command, err := pyworker.Command(ctx, c.Device.CacheDir)
		if err != nil {
			return Result{}, r.machineError(err)
		}
		r.Worker.Args = command.Args
		r.python = true
	}
	err = r.run(ctx)
	done := r.result
	done.Missing = len(c.Workloads) - done.Passed - done.Failed - len(c.Skip)
	r.result.Missing = done.Missing
	if r.announced {
		c.Events.Emit(event.Event{Type: event.TypeDone, Done: &event.Done{Passed: done.Passed, Failed: done.Failed,
			Missing: done.Missing, Seconds: time.Since(r.begun).Seconds(), Findings: done.Findings}})
	}
	return r.result, err
}

// Once builds the solution and runs it on one workload, neither judged nor timed, and waits for the worker to end: for
// tools that start the worker themselves and watch it. The log is what the worker and the tool printed. The error is an
// *exec.ExitError where the process ended with a status other than 0, or any that Run gives; a fault of the solution is a
// *worker.Error or *worker.Died.
func Once(ctx context.Context, c Config, w *trace.Workload) (log string, err error) {
	c.Events = event.NewStream()
	r := &runner{Config: c, announced: true}
	defer r.stop()
	t := &trial{}
	if t.in, err = c.Load(ctx, c.Definition, w, 0); err != nil {
		return "", err
	}
	defer t.in.Close()
	limit, cancel := context.WithTimeout(ctx, c.Profile.Timeout)
	defer cancel()
	if err := r.ready(ctx, limit); err != nil {
		return r.log(), err
	}
	if err := r.describe(t); err != nil {
		return "", err
	}
	if err := r.out.room(t.size); err != nil {
		return "", err
	}
	if err = r.client.Load(limit, t.load); err == nil {
		_, err = r.client.Run(limit, r.out.path())
	}
	if end := r.client.Finish(limit); err == nil {
		err = end
	}
	return r.log(), err
}

func (r *runner) log() string {
	if r.client == nil {
		return ""
	}
	return r.client.TakeLog()
}

type runner struct {
	Config
	begun     time.Time
	client    *worker.Client
	info      device.Info
	announced bool
	measured  int          // how often the workload in flight was measured
	noted     string       // the TimerNote that was warned of last
	built     *event.Built // nil before the first build
	buildErr  *worker.Error
	out       outFile // outputs of the workload in flight
	evaluator evaluator
	python    bool         // the solution runs in the Python worker
	reference *pyReference // nil where bench/reference knows the definition
	bytes     int64        // of the tensors of the workload in flight
	result    Result
}

func (r *runner) stop() {
	if r.client != nil {
		r.client.Close()
		r.client = nil
	}
	r.out.close()
	if r.reference != nil {
		r.reference.close()
	}
}

func (r *runner) run(ctx context.Context) error {
	if err := r.open(ctx, ctx); err != nil {
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

// open starts a worker, which lives as long as run does, and opens the device; the first time, it also announces the run.
func (r *runner) open(run, ctx context.Context) error {
	client, err := worker.Start(run, r.Worker)
	if err != nil {
		return err
	}
	r.client = client
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute) // importing torch from a cold disk takes a while
	defer cancel()
	r.info, err = client.Open(limit, r.DeviceKind, r.Device)
	if err != nil {
		return r.machineError(err)
	}
	if r.announced {
		return nil
	}
	r.Config.Run.Device = event.Device{Kind: r.DeviceKind, Name: r.info.Name, Arch: r.info.Arch, Ordinal: r.info.Ordinal,
		Driver: r.info.Driver, CUDA: r.info.CUDAVersion, Emulated: r.info.Emulated, Toolchain: r.info.Toolchain, UUID: r.info.UUID,
		L2Bytes: r.info.L2Bytes, MemoryBytes: r.info.MemoryBytes, Multiprocessors: r.info.Multiprocs, Libs: r.info.Libs}
	if r.Admit != nil {
		if err := r.Admit(r.Config.Run.Device); err != nil {
			return err
		}
	}
	r.announced = true
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
		if log := lastLines(r.log(), 5); log != "" {
			return fmt.Errorf("%w\n%s", err, log)
		}
	}
	return err
}

// ready makes sure that a worker runs with the solution built. A fault of the solution is a *worker.Error of kind Build
// or a worker.Died. A worker that it starts outlives ctx, for the workloads that follow, but not run.
func (r *runner) ready(run, ctx context.Context) error {
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
		if err := r.open(run, ctx); err != nil {
			return err
		}
	}
	first := r.built == nil
	if first {
		r.Events.Emit(event.Event{Type: event.TypeBuilding})
	}
	begun := time.Now()
	err := r.client.Build(ctx, r.Definition, r.Solution)
	built := &event.Built{OK: err == nil, Seconds: time.Since(begun).Seconds()}
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
	axes := maps.Collect(w.Axes.All())
	r.Events.Emit(event.Event{Type: event.TypeStarted, Workload: w.UUID,
		Started: &event.Started{Index: index + 1, Total: len(r.Workloads), Axes: axes}})
	begun := time.Now()

	trials, err := r.prepare(ctx, w)
	defer func() {
		for _, t := range trials {
			t.in.Close()
		}
	}()
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.fail(w, err)
		return nil
	}

	limit, cancel := context.WithTimeout(ctx, r.Profile.Timeout)
	defer cancel()
	v, samples, err := r.evaluate(ctx, limit, trials)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if unknown := (*referenceError)(nil); errors.As(err, &unknown) {
		r.fail(w, err)
		return nil
	}
	if err != nil {
		if v, err = r.blame(err); err != nil {
			return err
		}
	}
	if samples != nil {
		if r.TimedWith != "" && samples.Timer != r.TimedWith {
			return &TimerError{Was: r.TimedWith, Is: samples.Timer}
		}
		r.tell(w.UUID, samples)
	}
	r.emit(w, index, axes, v, samples, time.Since(begun))
	if r.python {
		return nil // its worker does not answer checks
	}
	return r.examine(ctx, w, trials[len(trials)-1], v, samples)
}

// fail tells that w gets no verdict: its inputs or expected outputs cannot be had, and the official harness writes no trace
// either.
func (r *runner) fail(w *trace.Workload, err error) {
	r.Events.Emit(event.Event{Type: event.TypeFailed, Workload: w.UUID, Message: &event.Message{Text: err.Error()}})
}

// A trial is one set of inputs. Trials that do not differ are one.
type trial struct {
	in      *workloads.Inputs
	load    *worker.Workload
	outputs []worker.FileTensor // as declared
	size    int64               // of the declared outputs, in bytes
	want    []*tensor.Tensor    // nil before the reference ran
}

// prepare opens the inputs of w, of each trial where they differ, and runs a Python reference on them. The time limit of
// the workload is not for that. The caller closes the inputs also where there is an error.
func (r *runner) prepare(ctx context.Context, w *trace.Workload) (trials []*trial, err error) {
	n := 1
	if workloads.Redrawn(r.Definition, w) && r.evaluator != sampling {
		n = r.Profile.Trials
	}
	for i := range n {
		in, err := r.Load(ctx, r.Definition, w, i)
		if err != nil {
			return trials, err
		}
		t := &trial{in: in}
		trials = append(trials, t)
		if err := r.describe(t); err != nil {
			return trials, err
		}
		if r.reference != nil {
			if t.want, err = r.reference.run(ctx, t.load, t.size); err != nil {
				return trials, err
			}
		}
	}
	return trials, nil
}

// evaluate runs, judges and times one workload while ctx lasts, which ends before run does.
func (r *runner) evaluate(run, ctx context.Context, trials []*trial) (verdict, *device.Samples, error) {
	if err := r.ready(run, ctx); err != nil {
		return verdict{}, nil, err
	}
	if r.evaluator == sampling {
		return r.evaluateSampling(ctx, trials[0])
	}
	v := newVerdict()
	n := r.Profile.Trials
	if r.info.Emulated {
		n = len(trials) // deterministic: a further trial of the same inputs would repeat the first
	}
	for i := range n {
		t := trials[min(i, len(trials)-1)]
		written, err := r.call(ctx, t, i < len(trials))
		if err != nil {
			return verdict{}, nil, err
		}
		got, unmap, err := r.out.read(written)
		if err != nil {
			return verdict{}, nil, err
		}
		before := v.status
		more := v.evaluate(r.evaluator, r.Definition.Outputs.Keys(), got, t.want, t.in.Values, r.Profile.Tolerance)
		if i >= len(trials) && before == trace.Passed && v.status == trace.IncorrectNumerical {
			v.later = compareAll(r.Definition.Outputs.Keys(), tensorsOf(got), t.want, r.Profile.Tolerance).finding(fmt.Sprintf("call %d on the same inputs", i+1))
		}
		unmap()
		if !more {
			return v, nil, nil
		}
	}
	if v.status != trace.Passed || r.info.Emulated {
		return v, nil, nil
	}
	samples, err := r.measure(ctx)
	return v, samples, err
}

// call makes one call on the inputs of t, which it loads first where fresh, and says what the worker wrote. The expected
// outputs of bench/reference are computed meanwhile.
func (r *runner) call(ctx context.Context, t *trial, fresh bool) ([]worker.FileTensor, error) {
	if err := r.out.room(t.size); err != nil {
		return nil, err
	}
	written := t.outputs
	g, gctx := errgroup.WithContext(ctx)
	if t.want == nil {
		g.Go(func() (err error) {
			if t.want, err = reference.Run(r.Definition, t.in.Values); err != nil {
				err = &referenceError{r.Definition.Name, err}
			}
			return err
		})
	}
	g.Go(func() error {
		if fresh {
			if err := r.client.Load(gctx, t.load); err != nil {
				return err
			}
		}
		returned, err := r.client.Run(gctx, r.out.path())
		if returned != nil {
			written = returned
		}
		return err
	})
	err := g.Wait()
	return written, err
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
	if printed := r.log(); printed != "" {
		if log != "" && !strings.HasSuffix(printed, "\n") {
			printed += "\n"
		}
		if !strings.Contains(log, printed) {
			log = printed + log
		}
	}
	if v.detail != "" && !strings.Contains(log, v.detail) {
		if log != "" && !strings.HasSuffix(log, "\n") {
			log += "\n"
		}
		log += v.detail
	}

	e := &trace.Evaluation{Status: v.status, Timestamp: time.Now().Format("2006-01-02T15:04:05.000000"), Log: log,
		Environment: trace.Environment{Hardware: r.info.Name}}
	if r.info.Emulated {
		e.Environment.Hardware = "emulator on " + r.info.Name
	}
	for _, lib := range []string{"torch", "triton", "tilelang", "cuda"} { // the contest's order
		if v := r.info.Libs[lib]; v != "" {
			e.Environment.Libs.Set(lib, v)
		} else if lib == "cuda" && r.info.CUDAVersion != "" {
			e.Environment.Libs.Set(lib, r.info.CUDAVersion)
		}
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
			ms := stats.Latency(samples.Trials) / 1e6
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

// describe sets what the worker is told of t: its inputs, and the outputs as the definition declares them.
func (r *runner) describe(t *trial) error {
	load := &worker.Workload{AnyCount: r.evaluator == sparseAttention, Guard: guard}
	if r.info.Emulated || r.python {
		load.Guard = 0 // the emulator has its own, and names the place
	}
	shapes := map[string][]int{}
	r.bytes = 0
	for _, v := range t.in.Values {
		value := worker.Value{}
		switch {
		case v.Tensor != nil:
			value.Tensor = &worker.FileTensor{DType: v.Tensor.DType.String(), Shape: v.Tensor.Shape, Path: v.Path, Offset: v.Offset, Bytes: len(v.Tensor.Data)}
			shapes[v.Name] = v.Tensor.Shape
			r.bytes += int64(len(v.Tensor.Data))
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
		return err
	}
	for name, spec := range r.Definition.Outputs.All() {
		shape, err := r.Definition.Shape(spec, axes)
		if err != nil {
			return fmt.Errorf("output %s: %w", name, err)
		}
		n, ok := tensor.Elements(shape)
		bytes, fits := spec.DType.Bytes(n)
		if !ok || !fits || bytes > 1<<40 {
			return fmt.Errorf("output %s: shape %v is out of range", name, shape)
		}
		out := worker.FileTensor{DType: spec.DType.String(), Shape: shape, Offset: t.size, Bytes: bytes}
		t.outputs = append(t.outputs, out)
		load.Outputs = append(load.Outputs, worker.Value{Tensor: &out})
		t.size += (int64(bytes) + 255) &^ 255
		r.bytes += int64(bytes)
	}
	t.load = load
	return nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
