// Package bench runs one solution over the workloads of a definition: it starts the worker, judges the outputs by the
// contest's rules and times the solution, alternating with a baseline or another solution if there is one. It does
// not choose devices or show results: it is given a worker and emits events.
package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"fisub/bench/reference"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/counters"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/runs"
	"fisub/workloads"
)

// Shared holds the settings that all solutions of a run share.
type Shared struct {
	Definition *trace.Definition
	Workloads  []*trace.Workload
	Profile    Profile
	Timer      string // device.TimerAuto, TimerCUPTI or TimerEvents; "" is auto

	// Load opens the inputs of a workload for a trial, counted from 0.
	Load func(ctx context.Context, def *trace.Definition, w *trace.Workload, trial int) (*workloads.Inputs, error)

	Worker     worker.Command // for solutions without Python; its limits apply to the Python worker too
	DeviceKind string         // "cuda", "emu"
	Device     device.Options // with CacheDir

	// Build adds a solution that needs no Python to the cache, which its worker only reads, and reports whether it
	// was cached already. If Build is nil or Device.Prebuilt is set, the worker finds or builds the solution itself.
	// Its error is a *worker.Error, or ctx's.
	Build func(ctx context.Context, sol *trace.Solution, info device.Info) (cached bool, err error)

	// Meter opens the meter of the GPU with that UUID; Run closes it. If Meter is nil, timings have no stamp. If it
	// fails, the error becomes the stamp's note.
	Meter func(uuid string) (Meter, error)

	// Baseline, if not nil, is timed alternately with the solutions on each workload that both pass. Its faults are
	// warnings; the workload then has no speed-up.
	Baseline *Baseline
	Roofline bool // also measure an empty kernel and a copy of each workload's bytes, if the device keeps time

	FailFast bool // stop at the first workload that does not pass
	EndEarly bool // stop after two TIMEOUTs in a row, or if the solution does not build

	Budget time.Duration // start no workload except the first later than this; 0: no limit

	Seed uint64 // a board's secret seed, for definitions with functions in Python; 0: none

	Secret string // of a run to repeat, see event.Run; "" draws one
}

// An Entry is one solution of a run.
type Entry struct {
	Solution *trace.Solution
	Events   *event.Stream
	Run      *event.Run // filled in by the caller, except for Device, which Run sets before emitting it

	// For a resumed run. Both are optional.
	Before *runs.Summary           // its workloads with a verdict are skipped
	Admit  func(device.Info) error // rejects a device that differs from the run's, before anything is recorded

	Dump string // folder for the tensors of the first workload that does not pass; "": none
}

// A Baseline is a solution to compare latencies with. Name is the user's name for it.
type Baseline struct {
	Name     string
	Solution *trace.Solution
}

// A Result holds the totals of a run, including those from before it was resumed.
type Result struct {
	Passed, Failed, Missing int
	Findings                int  // of the honesty checks, on all workloads
	Stopped                 bool // by FailFast, EndEarly or Budget; the remaining workloads are missing
	Left                    int  // missing workloads that did not fit into Budget
	Unbuilt                 bool // the solution does not build

	Dumped *Dumped // nil if nothing was dumped
}

// ErrNoReference means that the expected outputs of a definition cannot be computed: bench/reference does not know
// its reference, and no Python with torch can run it.
var ErrNoReference = errors.New("fisub cannot run its reference")

// A DeviceError means that the device could not be opened or used at all.
type DeviceError struct{ Err *worker.Error }

func (e *DeviceError) Error() string { return e.Err.Error() }
func (e *DeviceError) Unwrap() error { return e.Err }

// A TimerError means that a resumed run would continue with another timer, whose figures are not comparable.
type TimerError struct{ Was, Is string }

func (e *TimerError) Error() string {
	return fmt.Sprintf("the run was timed with %s, but this machine times with %s", e.Was, e.Is)
}

// Advice returns the hint of the error.
func (e *TimerError) Advice() string { return "start a new run without --resume" }

// Run judges and times the solution on each workload. A wrong, slow, hanging or crashing solution is a verdict; an
// error is about the machine: no device, no compiler, a full disk, ctx. A workload gets no verdict if its inputs
// cannot be loaded or the device is missing something the solution needs. It then counts as missing, with a failed
// event, and the others still run.
func Run(ctx context.Context, shared Shared, entry Entry) (Result, error) {
	results, err := Together(ctx, shared, []Entry{entry})
	return results[0], err
}

// Together runs several solutions with alternating timings. Each has its own events and result. Workloads judged in
// the first entry's Before are skipped for all.
func Together(ctx context.Context, shared Shared, entries []Entry) ([]Result, error) {
	results := make([]Result, len(entries))
	known := shared.Secret != ""
	if !known {
		shared.Secret = rand.Text()
	}
	g, err := newGroup(ctx, &shared, entries)
	if g != nil {
		defer g.stop()
	}
	if err != nil {
		return results, err
	}
	for _, r := range g.runners {
		r.entry.Run.KnownSecret = known
	}
	err = g.run(ctx)
	g.stop() // no submitted code runs any more when the secret is published
	for i, r := range g.runners {
		results[i] = r.end()
	}
	return results, err
}

// Once builds the solution, calls it twice on one workload without timing it, and waits for the worker to end. It
// serves tools that watch the worker. If judge is set, wrong describes wrong outputs of a definition that
// bench/reference knows. log is the output of the worker and the tool. The error is an *exec.ExitError if the process
// ends with a non-zero status, or one of Run's errors; a fault of the solution is a *worker.Error or *worker.Died.
func Once(ctx context.Context, shared Shared, sol *trace.Solution, w *trace.Workload, judge bool) (
	wrong, log string, err error) {
	o, err := newOnce(ctx, &shared, sol, w)
	if o == nil {
		return "", "", err
	}
	defer o.close()
	p, in := o.process, o.in
	in.load.Fully = true
	if err != nil {
		return "", p.log(), p.machineError(err)
	}
	limit, cancel := context.WithTimeout(ctx, shared.Profile.Timeout)
	defer cancel()
	if err := p.out.room(in.size); err != nil {
		return "", "", err
	}
	var want []expected
	clues := ""
	if judge = judge && reference.Knows(shared.Definition); judge {
		made, err := reference.Run(ctx, shared.Definition, in.Values)
		if err != nil {
			return "", "", &referenceError{shared.Definition.Name, err}
		}
		want = expectedOf(shared.Definition, made, in.Values)
	}
	for call := 1; call <= onceCalls && err == nil && wrong == ""; call++ {
		if err = p.load(limit, in.load); err != nil {
			break
		}
		var written []worker.FileTensor
		if written, err = p.client.Run(limit, p.out.f); err != nil || !judge {
			continue
		}
		if written == nil {
			written = in.outputs
		}
		got, unmap, err := p.out.read(written)
		if err != nil {
			return "", p.log(), err
		}
		v := newVerdict()
		v.evaluate(o.evaluator, shared.Definition.Outputs.Keys(), got, want, in.Values, shared.Profile.Tolerance)
		if v.detail != "" && o.evaluator != topK {
			clues, _ = diagnose(shared.Definition, in.Values, got, want, shared.Profile.Tolerance,
				sol.Spec.DestinationPassingStyle)
		}
		unmap()
		if wrong = v.detail; wrong != "" && call > 1 {
			wrong = fmt.Sprintf("those of call %d on the same inputs: %s", call, wrong)
		}
	}
	if wrong != "" {
		clues += warnings(p.hazards())
	}
	if end := p.client.Finish(limit); err == nil {
		err = end
	}
	return wrong, clues + p.log(), err
}

// A once is a worker for calls on one workload.
type once struct {
	process   *process
	evaluator evaluator
	in        *inputs
}

// newOnce builds the solution. With an error of the build, the result is not nil.
func newOnce(ctx context.Context, shared *Shared, sol *trace.Solution, w *trace.Workload) (o *once, err error) {
	o = &once{}
	if o.process, err = newProcess(ctx, shared, shared.Definition, sol); err != nil {
		return nil, o.process.machineError(err)
	}
	var functions *pyReference
	o.evaluator, err = evaluatorOf(shared.Definition)
	if f := functionsOf(shared.Definition); f != nil && err == nil {
		if functions, err = newReference(ctx, shared, f, nil); err == nil {
			defer functions.stop()
		}
	}
	if err == nil {
		o.in, err = openInputs(ctx, shared, functions, o.evaluator, w, 0)
	}
	if err != nil {
		o.process.stop()
		return nil, err
	}
	o.in.load.Guard = 0                 // guards would hide writes next to a tensor from a tool
	return o, o.process.ready(ctx, ctx) // a build has its own limit
}

func (o *once) close() {
	o.in.Close()
	o.process.stop()
}

// Count builds the solution for the virtual GPU, calls it once on a workload, and returns what its launches did, each
// counted in about sample clusters of blocks. log and the error are as of Once.
func Count(ctx context.Context, shared Shared, sol *trace.Solution, w *trace.Workload, sample int) (
	all []counters.Launch, log string, err error) {
	o, err := newOnce(ctx, &shared, sol, w)
	if o == nil {
		return nil, "", err
	}
	defer o.close()
	p := o.process
	if err != nil {
		return nil, p.log(), p.machineError(err)
	}
	o.in.load.Count = sample
	limit, cancel := context.WithTimeout(ctx, shared.Profile.Timeout)
	defer cancel()
	if err = p.out.room(o.in.size); err == nil {
		err = p.load(limit, o.in.load)
	}
	if err == nil {
		_, err = p.client.Run(limit, p.out.f)
	}
	all = p.client.TakeCounters()
	if end := p.client.Finish(limit); err == nil {
		err = end
	}
	return all, p.log(), err
}

// onceCalls is the number of calls that Once makes.
const onceCalls = 2

// A Profile determines how often a solution is called and timed on each workload, and how its outputs are compared.
type Profile struct {
	Name       string
	Warmup     int // untimed calls of a trial
	Iterations int // timed calls of a trial
	Trials     int
	Judged     int           // calls whose outputs are judged; 0: equal to Trials
	Timeout    time.Duration // wall clock for one workload, including the build
	Target     float64       // relative width of the median's interval at which to stop adding trials; 0: exactly Trials
	MaxTime    time.Duration // of timing one workload; 0: no limit
	Tolerance  tensor.Tolerance
}

// InTurn returns the profile for comparing solutions of def in one run. It judges the same number of calls and times
// about the same number, in four times the trials. Each trial has its tensors at other addresses, and addresses
// change a short call's time by about 1 % either way, which more calls at the same addresses do not average out. A
// mixture of experts keeps its profile: its weights, 1.4 GB, are spread over many addresses anyway.
func (p Profile) InTurn(def *trace.Definition) Profile {
	if def.OpType != "moe" {
		p.Judged = p.judged()
		p.Trials, p.Iterations = 4*p.Trials, (p.Iterations+3)/4
	}
	return p
}

func (p Profile) judged() int { return cmp.Or(p.Judged, p.Trials) }

// NewProfile returns the profile of that name, one of config.Profiles, for a definition. "official" is the contest's
// evaluation: the counts and tolerances of its flags for that definition (spec section 5). The others change only the
// counts. "thorough" adds trials until the median is known to 1 %, for at most 10 s per workload.
func NewProfile(name string, def *trace.Definition) (Profile, error) {
	p := Profile{Name: name, Warmup: 10, Iterations: 50, Trials: 3, Timeout: 300 * time.Second,
		Tolerance: tensor.Tolerance{Atol: 0.01, Rtol: 0.01, MatchedRatio: 1}}
	switch {
	case def.Python != nil: // its functions judge
		p.Tolerance = tensor.Tolerance{}
	case strings.HasPrefix(def.Name, "moe_fp8_block_scale"):
		p.Tolerance = tensor.Tolerance{Atol: 1, Rtol: 0.3, MatchedRatio: 0.9}
	case def.OpType == "moe", strings.Contains(def.Name, "moe_fp8_block_scale"):
		p.Tolerance.MatchedRatio = 0.95
	case strings.HasPrefix(def.Name, "gdn_prefill"):
		p.Warmup, p.Iterations = 1, 5
	}
	switch name {
	case config.Official:
	case config.Quick:
		p.Warmup, p.Iterations, p.Trials = 3, 20, 1
	case config.Thorough:
		p.Warmup, p.Iterations, p.Trials = 20, 200, 5
		p.Target, p.MaxTime = 0.01, 10*time.Second
	default:
		return Profile{}, fmt.Errorf("unknown profile %q: one of %s", name, strings.Join(config.Profiles, ", "))
	}
	return p, nil
}
