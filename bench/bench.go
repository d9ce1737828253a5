// Package bench runs one solution over the workloads of a definition: it starts the worker, judges what comes out of
// it by the contest's rules and has it timed, in turn with a baseline or with another solution where there is one. It
// is not for choosing devices or showing results: it is given a worker and emits events.
package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fisub/bench/reference"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/workloads"
)

// Shared is what the solutions of a run have in common.
type Shared struct {
	Definition *trace.Definition
	Workloads  []*trace.Workload
	Profile    Profile
	Timer      string // device.TimerAuto, TimerCUPTI or TimerEvents; "" is auto

	// Load opens the inputs of a trial, from 0, of a workload.
	Load func(ctx context.Context, def *trace.Definition, w *trace.Workload, trial int) (*workloads.Inputs, error)

	Worker     worker.Command // for what runs without Python; its limits hold for the Python worker too
	DeviceKind string         // "cuda", "emu"
	Device     device.Options // with CacheDir

	// Build puts a solution that needs no Python into the cache, which its worker only reads, and reports whether it was
	// there. If it is nil, or Device.Prebuilt is set, the worker finds or builds it by itself. Its error is a
	// *worker.Error, or ctx's.
	Build func(ctx context.Context, sol *trace.Solution, info device.Info) (cached bool, err error)

	// Meter opens the meter of the GPU with that UUID, which Run closes. Where it is nil, timings have no stamp; its
	// error is the note of theirs.
	Meter func(uuid string) (Meter, error)

	// Baseline, where it is not nil, is timed in turn with the solutions on each workload that both pass. What is wrong
	// with it is a warning, and the workload has no speed-up then.
	Baseline *Baseline
	Roofline bool // measure an empty kernel and a copy of each workload's bytes too, where the device keeps time

	FailFast bool // the first workload that does not pass ends the run
	EndEarly bool // so do two TIMEOUTs in a row, and a solution that does not build

	Budget time.Duration // no workload but the first begins later than that after the run; 0: no limit
}

// An Entry is one solution of a run.
type Entry struct {
	Solution *trace.Solution
	Events   *event.Stream
	Run      *event.Run // described by the caller; Run fills in Device and emits it

	// Of a run that is resumed; both may be left out.
	Before *runs.Summary           // workloads that have a verdict in it are left out
	Admit  func(device.Info) error // refuses a device that is not the run's, before anything is recorded

	Dump string // folder for the tensors of the first workload that does not pass; "" where none are kept
}

// A Baseline is what the solution's latencies are compared with. Name is what the user calls it.
type Baseline struct {
	Name     string
	Solution *trace.Solution
}

// A Result has the totals of a run, from before it was resumed too.
type Result struct {
	Passed, Failed, Missing int
	Findings                int  // of the honesty checks, on passed workloads and others
	Stopped                 bool // by FailFast, EndEarly or Budget: the rest is missing, and was not run
	Left                    int  // of Missing: those that Budget left no time for
	Unbuilt                 bool // it does not build

	Dumped *Dumped // nil where nothing was
}

// ErrNoReference says that nothing can compute the expected outputs of a definition: bench/reference was not compared
// with its reference, and there is no Python with torch to run that.
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

// Advice returns the hint of the error.
func (e *TimerError) Advice() string { return "start a new run without --resume" }

// Run judges and times the solution on each workload in turn. A wrong, slow, hanging or crashing solution is a verdict;
// the error is about the machine: no device, no compiler, a full disk, ctx. A workload whose inputs cannot be loaded,
// or for which the device lacks what the solution uses, has no verdict: it is told as a failed event and counted as
// missing, and the others still run.
func Run(ctx context.Context, shared Shared, entry Entry) (Result, error) {
	results, err := Together(ctx, shared, []Entry{entry})
	return results[0], err
}

// Together is Run of several solutions, whose timings are taken in turn. Each has its own events, and a result. The
// first one's Before says what is left out for all.
func Together(ctx context.Context, shared Shared, entries []Entry) ([]Result, error) {
	results := make([]Result, len(entries))
	g, err := newGroup(ctx, &shared, entries)
	if g != nil {
		defer g.stop()
	}
	if err != nil {
		return results, err
	}
	err = g.run(ctx)
	for i, r := range g.runners {
		results[i] = r.end()
	}
	return results, err
}

// Once builds the solution and runs it on one workload, not timed, and waits for the worker to end: for tools that
// start the worker themselves and watch it. Where judge is set, wrong says what is wrong with the outputs of a
// definition that bench/reference knows. The log is what the worker and the tool printed. The error is an
// *exec.ExitError where the process ended with a status other than 0, or any that Run gives; a fault of the solution
// is a *worker.Error or *worker.Died.
func Once(ctx context.Context, shared Shared, sol *trace.Solution, w *trace.Workload, judge bool) (
	wrong, log string, err error) {
	p, err := newProcess(ctx, &shared, shared.Definition, sol)
	if err != nil {
		return "", "", err
	}
	defer p.stop()
	evaluator, err := evaluatorOf(shared.Definition)
	if err != nil {
		return "", "", err
	}
	in, err := openInputs(ctx, &shared, evaluator, w, 0)
	if err != nil {
		return "", "", err
	}
	defer in.Close()
	// Guards would hide writes next to a tensor from a tool.
	in.load.Guard = 0
	if err := p.ready(ctx, ctx); err != nil { // a build has a limit of its own
		return "", p.log(), p.machineError(err)
	}
	limit, cancel := context.WithTimeout(ctx, shared.Profile.Timeout)
	defer cancel()
	if err := p.out.room(in.size); err != nil {
		return "", "", err
	}
	var returned []worker.FileTensor
	if err = p.load(limit, in.load); err == nil {
		returned, err = p.client.Run(limit, p.out.f)
	}
	if end := p.client.Finish(limit); err == nil {
		err = end
	}
	if err != nil || !judge || !reference.Knows(shared.Definition) {
		return "", p.log(), err
	}
	want, err := reference.Run(ctx, shared.Definition, in.Values)
	if err != nil {
		return "", p.log(), &referenceError{shared.Definition.Name, err}
	}
	if returned == nil {
		returned = in.outputs
	}
	got, unmap, err := p.out.read(returned)
	if err != nil {
		return "", p.log(), err
	}
	defer unmap()
	v := newVerdict()
	v.evaluate(evaluator, shared.Definition.Outputs.Keys(), got, expectedOf(shared.Definition, want, in.Values), in.Values,
		shared.Profile.Tolerance)
	return v.detail, p.log(), nil
}
