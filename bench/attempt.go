package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/runs/stats"
	"fisub/workloads"
)

// An attempt is one solution on one workload, from its start to its verdict, timings and honesty checks.
type attempt struct {
	*runner
	limit
	workload *trace.Workload
	index    int // of the workload, from 0
	started  time.Time
	bytes    int64 // total of the workload's tensors

	verdict  verdict
	idle     bool            // the last judged call launched, copied and set nothing
	hosted   bool            // it only copied or set memory
	took     time.Duration   // duration of the first call, including the loading of its inputs but no builds
	samples  *device.Samples // nil if it was not timed
	warm     *device.Samples // nil without a warm-L2 measurement
	board    *event.Board    // nil unless the definition is of a board
	measured int             // number of measurements
	empty    float64         // time of an empty kernel in nanoseconds; 0 if unknown
	draws    int             // for measurements, so far
	err      error           // the error that ended its measurement
	unknown  error           // the reason if it gets no verdict after all
	printed  string          // output before the warm calls

	loaded *inputs           // the inputs that the worker holds
	copies int               // of its tensors on the device
	held   int64             // device memory of the copies and the gaps between them, in bytes
	writes []*worker.Checked // forbidden writes of calls

	varied       *variation // of timed calls; nil without one
	judgedVaried bool       // a timed call with it was judged

	found []event.Finding     // findings about the workload so far
	timed *event.Finding      // about a timed call; nil if the judged ones are right
	bound []worker.FileTensor // outputs of a call that rebound one to other memory

	wrong *inputs  // of the first call with wrong outputs; nil without one or without a dump
	made  []output // the outputs of that call

	later    bool            // it failed in a later call than the first
	hazards  []device.Hazard // until the end of a repetition with all checks
	repeated string          // a line about how it ended, or ""
}

// A limit is the remaining time of a time limit. It stops during builds, which have their own limit.
type limit struct {
	left  time.Duration
	built time.Duration // time spent on builds
}

// within calls f with the remaining time and subtracts the time that f took. Each solution's limit only runs during
// its own calls.
func (l *limit) within(ctx context.Context, f func(context.Context) error) error {
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var begun time.Time
	var building bool
	var end *time.Timer
	start := func(builds bool) {
		left, cause := l.left, error(context.DeadlineExceeded)
		if builds {
			left, cause = buildTimeout-l.built, errSlowBuild
		}
		begun, building = time.Now(), builds
		end = time.AfterFunc(left, func() { cancel(cause) })
	}
	stop := func() {
		end.Stop()
		if building {
			l.built += time.Since(begun)
		} else {
			l.left -= time.Since(begun)
		}
	}
	start(false)
	err := f(worker.WithBuilds(within, func(builds bool) {
		if builds != building {
			stop()
			start(builds)
		}
	}))
	stop()
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = context.Cause(within)
	}
	return err
}

// judge sets the attempt's verdict. The error is about the machine, a *referenceError, or one that lacking reports.
func (a *attempt) judge(run context.Context, trials []*inputs) error {
	a.bytes = trials[len(trials)-1].bytes
	used := a.process.running() && a.process.client.Called()
	err := a.judgeOnce(run, trials)
	if err == nil && used && trials[0].made != nil && a.verdict.status == trace.RuntimeError {
		// A task's board only calls the solution before, while this worker has made the timed calls and the checks of
		// earlier workloads. Judge it once more in a new one.
		first := a.verdict.detail
		a.printed += a.process.log()
		a.process.client.Close()
		if err = a.judgeOnce(run, trials); err == nil && a.verdict.status == trace.Passed {
			a.find(failedCall, "after the calls of earlier workloads it failed, in a new process it is right: %s", first)
		}
	}
	if err != nil {
		return err
	}
	return a.dump()
}

func (a *attempt) judgeOnce(run context.Context, trials []*inputs) error {
	err := a.build(run)
	if err == nil {
		err = a.expect(run, trials)
	}
	if err == nil {
		err = a.within(run, func(ctx context.Context) (err error) {
			a.verdict, err = a.evaluate(ctx, trials)
			return err
		})
	}
	return a.settle(run, err)
}

// explainTime limits the repetition of a failed call with all checks.
const explainTime = time.Minute

// explain repeats the failed call of the run's first failed workload on the virtual GPU with all checks: those of first
// calls may have ended before it. The log thus names the cause. The error is about the machine.
func (a *attempt) explain(run context.Context) error {
	failed := a.verdict.status == trace.IncorrectNumerical ||
		a.verdict.status == trace.RuntimeError && a.index > 0 // the first call of a run is checked anyway
	if !failed || !a.process.info.Emulated || a.explained || a.loaded == nil {
		return nil
	}
	a.explained = true
	a.hazards = a.process.hazards()
	goesOn := a.process.running()
	ctx, cancel := context.WithTimeout(run, explainTime)
	defer cancel()
	err := a.ready(run, run)
	if err == nil {
		load := *a.loaded.load
		load.Fully = true
		err = a.process.load(ctx, &load)
	}
	written := a.loaded.outputs
	if err == nil {
		var returned []worker.FileTensor
		if returned, err = a.process.client.Run(ctx, a.process.out.f); returned != nil {
			written = returned
		}
	}
	if err == nil && a.verdict.status == trace.IncorrectNumerical {
		if likely := a.mixedUp(ctx, written); likely != "" {
			a.repeated = "note: the outputs are right for " + likely + "\n"
		} else {
			a.repeated = a.scaled(ctx, written)
		}
	}
	a.hazards = append(a.hazards, a.process.hazards()...)
	if a.index == 0 && !a.later { // no earlier call could change anything
		a.hazards = slices.DeleteFunc(a.hazards, func(h device.Hazard) bool { return h.Kind == device.ChangedVariable })
	}
	if err != nil || !goesOn {
		a.process.client.Close() // the next workload gets a new one, as without the repetition
	}
	we, _ := errors.AsType[*worker.Error](err)
	switch {
	case run.Err() != nil:
		return run.Err()
	case err != nil && ctx.Err() != nil:
		a.repeated = fmt.Sprintf("note: a repetition with all checks did not end in %v\n", explainTime)
	case we != nil && (we.Kind == worker.Fault || we.Kind == worker.Call) &&
		!strings.Contains(plain.NoAddresses(a.verdict.detail), plain.NoAddresses(we.Text)):
		a.repeated = "note: a repetition with all checks ends with " + plain.Line(we.Text) + "\n"
	}
	return nil
}

// mostMixed is the number of mistakes that mixedUp tries.
const mostMixed = 8

// mixedUp looks for the mistake that explains the outputs of the last call: two inputs exchanged, or a scalar taken as
// 1. It returns "" if there is none, or no quick reference.
func (a *attempt) mixedUp(ctx context.Context, written []worker.FileTensor) string {
	values, tried := a.loaded.Values, 0
	explains := func(change func(values []workloads.Input)) bool {
		changed := slices.Clone(values)
		change(changed)
		want, err := a.expected(ctx, changed)
		if tried++; err != nil {
			return false
		}
		c, err := a.compare(ctx, written, want, changed)
		return err == nil && c.ok
	}
	if a.reference != nil || a.evaluator == topK {
		return ""
	}
	for i, x := range values {
		if x.Scalar != nil && x.Scalar.Kind == trace.FloatScalar && x.Scalar.Float != 1 && tried < mostMixed &&
			explains(func(v []workloads.Input) { v[i].Scalar = &trace.Scalar{Kind: trace.FloatScalar, Float: 1} }) {
			return x.Name + " = 1"
		}
		for j, y := range values[:i] {
			alike := x.Tensor != nil && y.Tensor != nil && x.Tensor.DType == y.Tensor.DType &&
				slices.Equal(x.Tensor.Shape, y.Tensor.Shape)
			if alike && tried < mostMixed &&
				explains(func(v []workloads.Input) { v[i].Tensor, v[j].Tensor = y.Tensor, x.Tensor }) {
				return y.Name + " and " + x.Name + " exchanged"
			}
		}
	}
	return ""
}

// scaled looks for inputs whose part of a wrong output is scaled: the difference from the output for an input of zeros.
// It returns lines for the log, or "" if there is no quick reference.
func (a *attempt) scaled(ctx context.Context, written []worker.FileTensor) (lines string) {
	want, names := a.loaded.want, a.shared.Definition.Outputs.Keys()
	large := func(w expected) bool { return w.Len() > mostExplained }
	got, unmap, err := a.process.out.read(written)
	if err != nil {
		return ""
	}
	defer unmap()
	if a.reference != nil || a.evaluator == topK || len(got) != len(want) || slices.ContainsFunc(want, large) {
		return ""
	}
	for i, x := range a.loaded.Values {
		if x.Tensor == nil || !x.Tensor.DType.IsFloat() {
			continue
		}
		zeroed := slices.Clone(a.loaded.Values)
		zeroed[i].Tensor = tensor.New(x.Tensor.DType, x.Tensor.Shape...)
		without, err := a.expected(ctx, zeroed)
		if err != nil {
			return lines
		}
		for j, name := range names {
			if got[j].tensor == nil || want[j].before != nil || want[j].compare(got[j].tensor, a.shared.Profile.Tolerance).OK {
				continue
			}
			spec, _ := a.shared.Definition.Outputs.Get(name)
			if how := scaling(got[j].tensor, want[j].Tensor, without[j].Tensor, spec.Shape); how != "" {
				lines += fmt.Sprintf("note: the part of %s that depends on %s is %s\n", name, x.Name, how)
			}
		}
	}
	return lines
}

// build makes the process ready. Compiling does not count against the workload's time limit; code that a Python
// submission runs when it is imported does.
func (a *attempt) build(run context.Context) error {
	if lang := a.entry.Solution.Spec.Language; a.process.python && lang != trace.CUDA && lang != trace.CPP {
		return a.within(run, func(ctx context.Context) error { return a.ready(run, ctx) })
	}
	return a.ready(run, run)
}

// expect computes the missing expected outputs of the trials with bench/reference. This does not count against the
// time limit, which is for the solution.
func (a *attempt) expect(ctx context.Context, trials []*inputs) (err error) {
	for _, in := range trials {
		if in.want != nil || a.reference != nil {
			continue
		}
		if in.want, err = a.expected(ctx, in.Values); err != nil {
			return &referenceError{a.shared.Definition.Name, err}
		}
	}
	return nil
}

// evaluate runs and judges one workload until ctx ends.
func (a *attempt) evaluate(ctx context.Context, trials []*inputs) (verdict, error) {
	v := newVerdict()
	n := a.shared.Profile.judged()
	if a.process.info.Emulated {
		n = len(trials) // deterministic: another trial with the same inputs would repeat the first
	}
	for i := range n {
		in := trials[min(i, len(trials)-1)]
		begun, built := time.Now(), a.built
		written, err := a.call(ctx, in, i < len(trials))
		if err != nil {
			return verdict{}, err
		}
		a.idle, a.hosted = a.process.client.Idle(), a.process.client.Hosted()
		if i == 0 {
			a.took = time.Since(begun) - (a.built - built)
		}
		if in.made != nil {
			if more, err := v.judgeMade(ctx, a, in, written); err != nil || !more {
				return v, err
			}
			continue
		}
		got, unmap, err := a.process.out.read(written)
		if err != nil {
			return verdict{}, err
		}
		before := v.status
		names, tol := a.shared.Definition.Outputs.Keys(), a.shared.Profile.Tolerance
		more := v.evaluate(a.evaluator, names, got, in.want, in.Values, tol)
		if before == trace.Passed && v.status == trace.IncorrectNumerical && a.evaluator != topK {
			v.log, v.maps = diagnose(a.shared.Definition, in.Values, got, in.want, tol,
				a.entry.Solution.Spec.DestinationPassingStyle)
		}
		if before == trace.Passed && v.status != trace.Passed && a.entry.Dump != "" {
			a.wrong, a.made = in, kept(got)
		}
		if i >= len(trials) && before == trace.Passed && v.status == trace.IncorrectNumerical {
			again := compareAll(names, tensorsOf(got), in.want, tol)
			what := fmt.Sprintf("call %d on the same inputs", i+1)
			a.later = true
			v.found, v.detail = again.finding(what), what+": "+v.detail
		}
		unmap()
		if !more {
			break
		}
	}
	return v, nil
}

// put loads the inputs into the worker at their first addresses.
func (a *attempt) put(ctx context.Context, in *inputs) error {
	a.loaded, a.copies, a.held = in, 1, a.bytes
	return a.process.load(ctx, in.load)
}

// call makes one call on in and returns the worker's description of the outputs. If fresh is set it loads the inputs
// first; otherwise it restores them, since the official harness gives each trial unmodified clones.
func (a *attempt) call(ctx context.Context, in *inputs, fresh bool) ([]worker.FileTensor, error) {
	if err := a.process.out.room(in.size); err != nil {
		return nil, err
	}
	if fresh {
		if err := a.put(ctx, in); err != nil {
			return nil, err
		}
	} else if err := a.restore(ctx, in); err != nil {
		return nil, err
	}
	written := in.outputs
	returned, err := a.process.client.Run(ctx, a.process.out.f)
	if returned != nil {
		written = returned
	}
	if in.made != nil {
		if err == nil && in.learn(written) {
			err = a.put(ctx, in)
		}
	} else if slices.ContainsFunc(returned, func(t worker.FileTensor) bool { return t.Bound != nil }) {
		a.bound = returned
	}
	return written, err
}

// restore restores the inputs at their present addresses if a call has written to one.
func (a *attempt) restore(ctx context.Context, in *inputs) error {
	found, err := a.process.client.Check(ctx, worker.Check{})
	if err != nil {
		return err
	}
	a.writes = append(a.writes, found)
	if len(found.Changed) > 0 {
		_, err = a.process.client.Check(ctx, worker.Check{Inputs: in.contents()})
	}
	return err
}

// lacking reports whether err means that something the solution needs is missing, so that it gets no verdict.
func lacking(err error) bool { return worker.KindOf(err) == worker.Lacking }

// settle turns err into the verdict if the solution is at fault, and returns any other error.
func (a *attempt) settle(run context.Context, err error) error {
	if run.Err() != nil {
		return run.Err()
	}
	if _, unknown := errors.AsType[*referenceError](err); err == nil || unknown {
		return err
	}
	a.verdict, err = a.attribute(err)
	return err
}

// attribute turns an error of the worker into the verdict that the contest gives for it. If the solution is not at
// fault, it returns the error.
func (a *attempt) attribute(err error) (verdict, error) {
	var we *worker.Error
	var died *worker.Died
	switch {
	case errors.Is(err, context.DeadlineExceeded) && a.process.info.Emulated:
		a.timeouts++
		text := fmt.Sprintf("timeout on the virtual GPU after %g seconds", a.shared.Profile.Timeout.Seconds())
		return verdict{}, &worker.Error{Kind: worker.Lacking, Text: text}
	case errors.Is(err, context.DeadlineExceeded):
		return verdict{status: trace.Timeout, detail: fmt.Sprintf("Evaluation timeout after %g seconds for solution %s",
			a.shared.Profile.Timeout.Seconds(), a.entry.Solution.Name)}, nil
	case errors.As(err, &died):
		a.printed += a.process.log()
		if died.Own || outOfMemory(a.printed) {
			return verdict{}, a.afterCall(withLog(err, a.printed))
		}
		return verdict{status: trace.RuntimeError, detail: "Worker process failed unexpectedly: " + died.Reason}, nil
	case errors.As(err, &we):
		switch we.Kind {
		case worker.Build:
			return verdict{status: trace.CompileError, detail: we.Text, log: "Build error: " + we.Text + "\n\n" + we.Log}, nil
		case worker.Call:
			return verdict{status: trace.RuntimeError, detail: we.Text, log: we.Log}, nil
		case worker.Fault:
			// The process is unusable; the next workload gets a new one.
			a.process.client.Close()
			return verdict{status: trace.RuntimeError, detail: we.Text, log: we.Log}, nil
		}
		if we.Unsent { // the worker is ended, and the next workload gets a new one
			return verdict{}, &worker.Error{Kind: worker.Lacking, Text: we.Text}
		}
		if we.Kind == worker.Lacking {
			if !a.process.python { // the next workload must not see a half-done call
				a.process.client.Close()
			}
			return verdict{}, err
		}
		if we.Code == worker.NoTimer && a.shared.Timer == device.TimerCUPTI {
			return verdict{}, &DeviceError{we}
		}
		return verdict{}, a.afterCall(&DeviceError{we})
	}
	return verdict{}, err
}

// afterCall returns the error for a worker that failed in fisub's own code. It is an error of the machine, unless the
// solution was called before and could have caused anything: then only this workload has no verdict.
func (a *attempt) afterCall(err error) error {
	if !a.process.client.Called() {
		return err
	}
	a.process.client.Close() // the next workload gets a new one
	return &worker.Error{Kind: worker.Lacking, Text: "after the solution was called: " + err.Error()}
}

// outOfMemory reports whether log shows that the Go runtime, and so fisub, got no memory or thread.
func outOfMemory(log string) bool {
	return strings.Contains(log, "runtime/cgo: pthread_create failed") ||
		strings.Contains(log, "runtime: failed to create new OS thread") ||
		strings.Contains(log, "fatal error: runtime: out of memory") || strings.Contains(log, "fatal error: out of memory") ||
		strings.Contains(log, "runtime: cannot allocate memory")
}

// emit writes the verdict as an official trace. base holds the baseline's timings and may be nil.
func (a *attempt) emit(base *device.Samples) {
	v, w := a.verdict, a.workload
	log := v.log
	if printed := a.printed + a.process.log(); printed != "" {
		if log != "" && !strings.HasSuffix(printed, "\n") {
			printed += "\n"
		}
		if !strings.Contains(log, printed) {
			log = printed + log
		}
	}
	appendLine := func(text string) {
		if log != "" && text != "" && !strings.HasSuffix(log, "\n") {
			log += "\n"
		}
		log += text
	}
	if !strings.Contains(log, v.detail) {
		appendLine(v.detail)
	}
	if v.status == trace.Passed {
		a.notice()
	} else {
		appendLine(warnings(append(a.hazards, a.process.hazards()...)) + a.repeated)
	}

	e := &trace.Evaluation{Status: v.status, Timestamp: time.Now().Format("2006-01-02T15:04:05.000000"), Log: log,
		Environment: trace.Environment{Hardware: a.process.info.Hardware()}}
	for _, lib := range []string{"torch", "triton", "tilelang", "cuda"} { // the contest's order
		if v := a.process.info.Libs[lib]; v != "" {
			e.Environment.Libs.Set(lib, v)
		} else if lib == "cuda" && a.process.info.CUDA != "" {
			e.Environment.Libs.Set(lib, a.process.info.CUDA)
		}
	}
	e.Environment.Libs.Set("fisub", a.entry.Run.Fisub)

	ev := &event.Evaluated{Index: a.index + 1, Detail: v.detail, Seconds: time.Since(a.started).Seconds(), Maps: v.maps,
		Trace: &trace.Trace{Definition: a.shared.Definition.Name, Workload: *w, Solution: &a.entry.Solution.Name,
			Evaluation: e}}
	if v.correctness != nil && (v.status == trace.Passed || v.status == trace.IncorrectNumerical) {
		e.Correctness = v.correctness
	}
	if v.status == trace.Passed {
		// The format requires a performance object with PASSED. Zero means not measured, and the contest's scorer
		// rejects it as a latency.
		e.Performance = &trace.Performance{}
		if a.samples != nil {
			ms := stats.Latency(a.samples.Trials) / 1e6
			e.Performance.LatencyMS = ms
			if base != nil && ms > 0 {
				theirs := stats.Latency(base.Trials) / 1e6
				speedup := theirs / ms
				if isReference(a.shared.Baseline.Solution, a.shared.Definition) { // as the format defines it
					e.Performance.ReferenceLatencyMS, e.Performance.SpeedupFactor = theirs, speedup
				} else {
					ev.Ratio = &speedup
				}
			}
		}
	} else {
		if ev.Source = excerptsOf(a.entry.Solution, v.detail); ev.Source == nil {
			ev.Source = excerptsOf(a.entry.Solution, log)
		}
		a.failed, a.result.Unbuilt = true, a.process.buildErr != nil
	}
	if a.timeouts++; v.status != trace.Timeout {
		a.timeouts = 0
	}
	a.say(event.Event{Type: event.TypeEvaluated, Workload: w.UUID, Evaluated: ev})
}

// warnings returns log lines about hazards, without duplicates.
func warnings(hazards []device.Hazard) string {
	var text strings.Builder
	for i, h := range hazards {
		if !slices.ContainsFunc(hazards[:i], h.Same) {
			word := "warning"
			if h.Clue {
				word = "note"
			}
			fmt.Fprintf(&text, "%s: %s\n", word, plain.Line(h.Text))
		}
	}
	return text.String()
}

// withLog returns err with the last lines of log, if there are any.
func withLog(err error, log string) error {
	lines := strings.Split(strings.TrimRight(log, "\n"), "\n")
	if last := strings.Join(lines[max(0, len(lines)-5):], "\n"); last != "" {
		return fmt.Errorf("%w\n%s", err, last)
	}
	return err
}
