// Package bench runs one solution over the workloads of a definition: it starts the worker, judges what comes out of it
// by the contest's rules and has it timed, in turn with a baseline or with another solution where there is one. It is not
// for choosing devices or showing results: it is given a worker and emits events.
package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

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

	// Meter opens the meter of the GPU with that UUID, which Run closes. Where it is nil, timings have no stamp; its error is
	// the note of theirs.
	Meter func(uuid string) (Meter, error)

	Events *event.Stream
	Run    *event.Run // described by the caller; Run fills in Device and emits it

	// Baseline, where it is not nil, is timed in turn with the solution on each workload that both pass. What is wrong with it
	// is a warning, and the workload has no speed-up then.
	Baseline *Baseline
	Floors   bool // measure an empty kernel and a copy of each workload's bytes too, where the device keeps time

	Hint func(error) string // gives the hint of a warning about an error, or ""; may be nil

	// Of a run that is resumed: Admit refuses a device that is not the run's, before anything is recorded, and TimedWith
	// is what its workloads were timed with, "" where none was. Both may be left out.
	Admit     func(event.Device) error
	TimedWith string
	Score     stats.Score // of the workloads in Skip
}

// A Baseline is what the solution's latencies are compared with. Name is what the user calls it.
type Baseline struct {
	Name     string
	Solution *trace.Solution
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
	results, err := Together(ctx, c)
	return results[0], err
}

// Together is Run of several solutions on the same workloads, whose timings are taken in turn. Each has its own events; the
// definition, the workloads, the profile, the device, the baseline and Floors are those of the first. There is a result for each.
func Together(ctx context.Context, cs ...Config) ([]Result, error) {
	results := make([]Result, len(cs))
	l, err := newLineup(ctx, cs)
	if l != nil {
		defer l.stop()
	}
	if err != nil {
		return results, err
	}
	err = l.run(ctx)
	for i, r := range l.runners {
		results[i] = r.end()
	}
	return results, err
}

// Once builds the solution and runs it on one workload, neither judged nor timed, and waits for the worker to end: for
// tools that start the worker themselves and watch it. The log is what the worker and the tool printed. The error is an
// *exec.ExitError where the process ended with a status other than 0, or any that Run gives; a fault of the solution is a
// *worker.Error or *worker.Died.
func Once(ctx context.Context, c Config, w *trace.Workload) (log string, err error) {
	c.Events = event.NewStream()
	r := &runner{Config: c, announced: true}
	defer r.stop()
	if r.contender, err = newContender(ctx, &c, c.Definition, c.Solution); err != nil {
		return "", err
	}
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
	if err = r.put(limit, t); err == nil {
		_, err = r.client.Run(limit, r.out.path())
	}
	if end := r.client.Finish(limit); err == nil {
		err = end
	}
	return r.log(), err
}

// A runner takes one solution through the workloads.
type runner struct {
	Config
	contender
	begun     time.Time
	announced bool
	noted     string // the TimerNote that was warned of last
	told      bool   // the events have the build
	evaluator evaluator
	reference *pyReference // nil where bench/reference knows the definition
	examined  bool         // a workload had the honesty checks that take calls
	result    Result

	// Of the workload in flight:
	started  time.Time
	verdict  verdict
	err      error             // what ended its measurement
	samples  *device.Samples   // nil where it was not timed
	warm     *device.Samples   // nil without that figure
	printed  string            // before the warm calls
	measured int               // how often it was measured
	bytes    int64             // of its tensors
	current  *trial            // what is loaded
	places   int               // where its tensors were since it was loaded
	strays   []*worker.Checked // what calls wrote where nothing may be
}

// end tells the end of the run.
func (r *runner) end() Result {
	done := &event.Done{Passed: r.result.Passed, Failed: r.result.Failed, Seconds: time.Since(r.begun).Seconds(), Findings: r.result.Findings}
	done.Missing = len(r.Workloads) - done.Passed - done.Failed - len(r.Skip)
	r.result.Missing = done.Missing
	if score, n, ok := r.Score.Value(); ok && r.Baseline != nil && done.Missing == 0 {
		done.Score, done.Scored = &score, n
	}
	if r.announced {
		r.Events.Emit(event.Event{Type: event.TypeDone, Done: done})
	}
	return r.result
}

// open starts a worker, which lives as long as run does, and opens the device; the first time, it also announces the run.
func (r *runner) open(run, ctx context.Context) error {
	if err := r.start(run, ctx); err != nil {
		return r.machineError(err)
	}
	if r.announced {
		return nil
	}
	r.Config.Run.Device = r.info
	if r.Admit != nil {
		if err := r.Admit(r.Config.Run.Device); err != nil {
			return err
		}
	}
	r.Events.Emit(event.Event{Type: event.TypeRun, Run: r.Config.Run})
	if err := r.Events.Err(); err != nil {
		return err // before anything has run that could not be kept
	}
	r.announced = true
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
	running := r.running()
	switch {
	case r.buildErr != nil:
		return r.buildErr
	case running && r.tried:
		return nil
	case !running:
		if err := r.open(run, ctx); err != nil {
			return err
		}
	}
	first := !r.told
	if first {
		r.Events.Emit(event.Event{Type: event.TypeBuilding})
	}
	begun := time.Now()
	err := r.build(ctx)
	if err != nil && r.buildErr == nil {
		return err
	}
	if first {
		built := &event.Built{OK: err == nil, Seconds: time.Since(begun).Seconds()}
		if r.buildErr != nil {
			built.Log = r.buildErr.Log
		}
		r.Events.Emit(event.Event{Type: event.TypeBuilt, Built: built})
		r.told = true
	}
	return err
}

// begin opens workload number index, counted from 0.
func (r *runner) begin(index int, w *trace.Workload) {
	r.started, r.left = time.Now(), r.Profile.Timeout
	r.verdict, r.err, r.samples, r.warm, r.printed, r.strays = verdict{}, nil, nil, nil, "", nil
	r.Events.Emit(event.Event{Type: event.TypeStarted, Workload: w.UUID,
		Started: &event.Started{Index: index + 1, Total: len(r.Workloads), Axes: maps.Collect(w.Axes.All())}})
}

// judge gives the workload in flight its verdict. An error is about the machine, or a *referenceError.
func (r *runner) judge(run context.Context, trials []*trial) error {
	err := r.within(run, func(ctx context.Context) error { return r.ready(run, ctx) })
	if err == nil {
		err = r.expect(run, trials)
	}
	if err == nil {
		err = r.within(run, func(ctx context.Context) (err error) {
			r.verdict, err = r.evaluate(ctx, trials)
			return err
		})
	}
	return r.settle(run, err)
}

// expect computes what bench/reference expects of the trials, as far as that is not known yet. The time limit is the
// solution's, so it does not run meanwhile.
func (r *runner) expect(ctx context.Context, trials []*trial) (err error) {
	for _, t := range trials {
		if t.want != nil || r.reference != nil {
			continue
		}
		if t.want, err = reference.Run(ctx, r.Definition, t.in.Values); err != nil {
			return &referenceError{r.Definition.Name, err}
		}
	}
	return nil
}

// restore gives the inputs their contents again, where they are, if a call has written to one.
func (r *runner) restore(ctx context.Context, t *trial) error {
	found, err := r.client.Check(ctx, worker.Check{})
	if err != nil {
		return err
	}
	r.strays = append(r.strays, found)
	if len(found.Changed) > 0 {
		_, err = r.client.Check(ctx, worker.Check{Inputs: t.contents()})
	}
	return err
}

// contents are the tensors among the inputs, in a list as long as those.
func (t *trial) contents() []*worker.FileTensor {
	all := make([]*worker.FileTensor, len(t.load.Inputs))
	for i, in := range t.load.Inputs {
		all[i] = in.Tensor
	}
	return all
}

// settle makes the verdict of err where the solution is at fault, and returns any other error.
func (r *runner) settle(run context.Context, err error) error {
	if run.Err() != nil {
		return run.Err()
	}
	if unknown := (*referenceError)(nil); err == nil || errors.As(err, &unknown) {
		return err
	}
	r.verdict, err = r.blame(err)
	return err
}

// fail tells that w gets no verdict: its inputs or expected outputs cannot be had, and the official harness writes no trace
// either.
func (r *runner) fail(w *trace.Workload, err error) {
	text := strings.TrimPrefix(err.Error(), "workload "+w.UUID+": ") // the event names it
	r.Events.Emit(event.Event{Type: event.TypeFailed, Workload: w.UUID, Message: &event.Message{Text: text}})
}

// A trial is one set of inputs. Trials that do not differ are one.
type trial struct {
	in      *workloads.Inputs
	load    *worker.Workload
	outputs []worker.FileTensor // as declared
	size    int64               // of the declared outputs in their file, in bytes
	bytes   int64               // of all tensors
	want    []*tensor.Tensor    // nil before the reference ran
}

// evaluate runs and judges one workload while ctx lasts.
func (r *runner) evaluate(ctx context.Context, trials []*trial) (verdict, error) {
	v := newVerdict()
	n := r.Profile.Trials
	if r.info.Emulated {
		n = len(trials) // deterministic: a further trial of the same inputs would repeat the first
	}
	for i := range n {
		t := trials[min(i, len(trials)-1)]
		written, err := r.call(ctx, t, i < len(trials))
		if err != nil {
			return verdict{}, err
		}
		got, unmap, err := r.out.read(written)
		if err != nil {
			return verdict{}, err
		}
		before := v.status
		more := v.evaluate(r.evaluator, r.Definition.Outputs.Keys(), got, t.want, t.in.Values, r.Profile.Tolerance)
		if i >= len(trials) && before == trace.Passed && v.status == trace.IncorrectNumerical {
			v.later = compareAll(r.Definition.Outputs.Keys(), tensorsOf(got), t.want, r.Profile.Tolerance).finding(fmt.Sprintf("call %d on the same inputs", i+1))
		}
		unmap()
		if !more {
			break
		}
	}
	return v, nil
}

// put gives the worker the inputs of t, at a first place.
func (r *runner) put(ctx context.Context, t *trial) error {
	r.current, r.places = t, 1
	return r.load(ctx, t)
}

// call makes one call on the inputs of t and says what the worker wrote. It loads them first where fresh; otherwise it
// restores them, since the official harness gives each trial clones that no call has written to.
func (r *runner) call(ctx context.Context, t *trial, fresh bool) ([]worker.FileTensor, error) {
	if err := r.out.room(t.size); err != nil {
		return nil, err
	}
	if fresh {
		if err := r.put(ctx, t); err != nil {
			return nil, err
		}
	} else if err := r.restore(ctx, t); err != nil {
		return nil, err
	}
	written := t.outputs
	returned, err := r.client.Run(ctx, r.out.path())
	if returned != nil {
		written = returned
	}
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

// emit writes the verdict as an official trace. base are the baseline's timings, or nil.
func (r *runner) emit(w *trace.Workload, index int, base *device.Samples) {
	v, axes := r.verdict, maps.Collect(w.Axes.All())
	log := v.log
	if printed := r.printed + r.log(); printed != "" {
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
		} else if lib == "cuda" && r.info.CUDA != "" {
			e.Environment.Libs.Set(lib, r.info.CUDA)
		}
	}
	e.Environment.Libs.Set("fisub", r.Config.Run.Fisub)

	ev := &event.Evaluated{Index: index + 1, Axes: axes, Status: string(v.status), Detail: v.detail, Log: log,
		Seconds: time.Since(r.started).Seconds(), Emulated: r.info.Emulated}
	if v.correctness != nil && (v.status == trace.Passed || v.status == trace.IncorrectNumerical) {
		e.Correctness = v.correctness
		abs, rel := event.Float(v.correctness.MaxAbsoluteError), event.Float(v.correctness.MaxRelativeError)
		ev.MaxAbs, ev.MaxRel = &abs, &rel
	}
	if v.status == trace.Passed {
		// The format wants a performance object with PASSED. Zero is what it holds where nothing was measured, and what
		// the contest's scorer refuses as a latency.
		e.Performance = &trace.Performance{}
		if r.samples != nil {
			ms := stats.Latency(r.samples.Trials) / 1e6
			e.Performance.LatencyMS = ms
			ev.Latency = &ms
			if base != nil && ms > 0 {
				theirs := stats.Latency(base.Trials) / 1e6
				speedup := theirs / ms
				ev.Speedup = &speedup
				if isReference(r.Baseline.Solution, r.Definition) { // what the format means by it
					e.Performance.ReferenceLatencyMS, e.Performance.SpeedupFactor = theirs, speedup
				}
				r.Score.Add(speedup)
			}
		}
		r.result.Passed++
	} else {
		r.result.Failed++
		r.Score.Fail()
	}
	t := &trace.Trace{Definition: r.Definition.Name, Workload: *w, Solution: &r.Solution.Name, Evaluation: e}
	ev.Trace = t.JSON(trace.Compact)
	r.Events.Emit(event.Event{Type: event.TypeEvaluated, Workload: w.UUID, Evaluated: ev})
}

// describe sets what the worker is told of t: its inputs, and the outputs as the definition declares them.
func (r *runner) describe(t *trial) error {
	load := &worker.Workload{AnyCount: r.evaluator == sparseAttention, Guard: guard}
	shapes := map[string][]int{}
	t.bytes = 0
	for _, v := range t.in.Values {
		value := worker.Value{}
		switch {
		case v.Tensor != nil:
			value.Tensor = &worker.FileTensor{DType: v.Tensor.DType.String(), Shape: v.Tensor.Shape, Path: v.Path, Offset: v.Offset, Bytes: len(v.Tensor.Data)}
			shapes[v.Name] = v.Tensor.Shape
			t.bytes += int64(len(v.Tensor.Data))
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
		t.bytes += int64(bytes)
	}
	t.load = load
	return nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
