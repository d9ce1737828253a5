package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"fisub/bench/bound"
	"fisub/bench/reference"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/memfile"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/runs/stats"
	"fisub/workloads"
	"fisub/workloads/random"
)

// Values of a Finding's Check.
const (
	cachedByPointer = "cached-by-pointer"   // outputs depend on addresses instead of contents
	cachedByContent = "cached-by-content"   // outputs depend on part of the inputs
	skippedWork     = "skipped-work"        // a later call leaves outputs unwritten
	changedInput    = "changed-input"       // inputs are written to
	outsideWrite    = "outside-write"       // memory next to a tensor is written to
	reboundOutput   = "rebound-output"      // an output is bound to memory other than the passed one
	lateWrite       = "late-write"          // outputs are incomplete when the call's stream is done
	tooFast         = bound.TooFast         // the GPU's memory cannot deliver the inputs in that time
	workOutside     = "work-outside-window" // work on the GPU that the latency does not include
	gpuProcess      = "gpu-process"         // another process of the solution uses the GPU
	unsteadyResult  = "unsteady-result"     // right at first, then wrong on the same inputs
	wrongResult     = "wrong-result"        // wrong on other inputs of the same shapes
	failedCall      = "failed-call"         // a crash, a fault, an error or a hang on other inputs
	wrongRows       = "wrong-rows"          // whole rows of an output are wrong within the permitted ratio
	endedChecks     = "ended-checks"        // these checks could not be completed
)

// guard is the number of bytes watched on each side of a tensor: a multiple of 512, to keep the alignment of the CUDA
// allocator.
const guard = 4096

// maxChanged is the largest size, in bytes, of tensors that get new contents. Larger ones are weights, which are slow
// to regenerate.
const maxChanged = 64 << 20

// honesty checks side effects of a solution on one workload, after the workload was judged and timed.
type honesty struct {
	*attempt
	in      *inputs
	seen    [][]expected        // expected outputs of the calls so far
	values  []workloads.Input   // current contents of the inputs
	changed []int               // inputs that get new contents, largest first
	written []worker.FileTensor // the outputs of the last call
	other   *inputs             // of another seed; nil unless functions make the inputs
	stopped bool                // the last call launched, copied and set nothing, unlike the judged call
	calling bool                // the last request asked for a call
}

// checkHonesty runs the checks. An error ends the run.
func (a *attempt) checkHonesty(ctx context.Context) error {
	v := a.verdict
	if v.status != trace.Passed && (v.status != trace.IncorrectNumerical || !a.process.running()) {
		return nil
	}
	a.limit = limit{left: a.shared.Profile.Timeout}
	h := &honesty{attempt: a, in: a.loaded}
	if a.samples != nil {
		h.time(ctx, a.samples)
		h.tellUncounted(a.samples)
	}
	h.tellBound()
	for _, found := range a.writes {
		h.tell(found)
	}
	var err error
	if a.copies > 1 { // anything cached in the first call refers to its addresses
		err = h.look(ctx, worker.Check{Back: true})
	}
	if err == nil {
		err = h.run(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if v := a.verdict; v.found != nil && !h.has(changedInput) && !h.has(v.found.Check) { // a changed input explains it
		a.found = append(a.found, *v.found)
	}
	if err != nil {
		h.attribute(err)
	}
	return nil
}

// notice turns the hazards reported by the device into findings.
func (a *attempt) notice() {
	for _, h := range a.process.hazards() {
		if h.Clue {
			continue
		}
		f := event.Finding{Check: h.Kind, Place: plain.Line(h.Place), Text: plain.Line(h.Text)}
		same := func(old event.Finding) bool { return old.Check == f.Check && old.Place == f.Place }
		if !slices.ContainsFunc(a.found, same) {
			a.found = append(a.found, f)
		}
	}
}

// tellFindings emits the findings, which do not change the verdict.
func (a *attempt) tellFindings() {
	explained := func(f event.Finding) bool {
		if f.Check == lateWrite { // with CUPTI the device is idle before and after a call
			return a.samples == nil || a.samples.Timer != device.TimerCUPTI
		}
		return f.Check != tooFast && f.Check != outsideWrite && f.Check != reboundOutput && f.Check != wrongRows
	}
	if a.timed != nil && !slices.ContainsFunc(a.found, explained) {
		a.found = append(a.found, *a.timed)
	}
	if a.verdict.status == trace.Passed {
		if a.verdict.rows != "" {
			a.find(wrongRows, "%s", a.verdict.rows)
		}
		a.notice()
	}
	for _, f := range a.found {
		f.Source = excerptsOf(a.entry.Solution, f.Place+"\n"+f.Text)
		a.say(event.Event{Type: event.TypeWarning, Workload: a.workload.UUID, Finding: &f})
	}
	a.process.log() // discards the output of calls that do not affect the verdict
}

// attribute turns an error into a finding, because the solution could have caused it, except a request that was not
// sent.
func (h *honesty) attribute(err error) {
	we, failed := errors.AsType[*worker.Error](err)
	_, died := errors.AsType[*worker.Died](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no reply within %g seconds", h.shared.Profile.Timeout.Seconds())
	case died && h.calling:
	case failed && we.Kind == worker.Call:
	case failed && we.Kind == worker.Fault:
		h.process.client.Close() // the process is unusable
	case failed && we.Unsent:
		h.say(event.Event{Type: event.TypeWarning, Workload: h.workload.UUID,
			Message: &event.Message{Text: fmt.Sprintf("the honesty checks could not be completed: %v", err)}})
		return
	default:
		h.find(endedChecks, "the honesty checks could not be completed: %v", err)
		return
	}
	h.find(failedCall, "%v", err)
}

// find adds a finding unless there is already one of that check.
func (a *attempt) find(check, format string, args ...any) {
	if !a.has(check) {
		a.found = append(a.found, event.Finding{Check: check, Text: fmt.Sprintf(format, args...)})
	}
}

func (a *attempt) has(check string) bool {
	return slices.ContainsFunc(a.found, func(f event.Finding) bool { return f.Check == check })
}

// time makes a finding if the latency is too short for the GPU's memory, or not longer than an empty kernel's.
func (h *honesty) time(ctx context.Context, s *device.Samples) {
	def, ns := h.shared.Definition, stats.Latency(s.Trials)
	found := bound.Empty(ns, h.empty)
	if found == nil && s.ColdL2 && bound.Applies(def) {
		read, written := h.in.moved()
		memory := bound.Memory{L2: h.process.info.L2Bytes, Bandwidth: h.process.info.Bandwidth}
		found = bound.Check(ns, bound.Traffic{Read: read, Written: written}, memory)
		if found != nil && !bound.Proven(def) {
			if needed, err := h.needed(ctx); err != nil || !needed {
				return // without the reference the rule proves nothing
			}
		}
	}
	if found != nil {
		h.find(found.Check, "%s", found.Text)
	}
}

// drawnRows is the number of rows, or elements of a single row, of each input with which needed asks the reference.
const drawnRows = 4

// needed reports whether the reference's outputs depend on all drawn rows of the inputs. A definition may read only
// parts, such as the last token.
func (h *honesty) needed(ctx context.Context) (bool, error) {
	s, err := h.choose(ctx)
	if err != nil {
		return false, err
	}
	defer s.close()
	for _, i := range h.changed {
		for n := range drawnRows {
			row := change{"needed " + strconv.Itoa(n), false, []int{i},
				func(t *tensor.Tensor, r random.Stream) {
					n := rowOf(t)
					if n == t.Len() {
						n = 1
					}
					flip(t, r, n)
				}, nil}
			h.replace(s, row)
			want, err := h.expected(ctx, h.values)
			if err != nil {
				return false, err
			}
			same := func(a, b expected) bool { return bytes.Equal(a.Data, b.Data) }
			if slices.EqualFunc(want, h.in.want, same) {
				return false, nil
			}
		}
	}
	return true, nil
}

// tellUncounted adds findings about work that the timer did not count.
func (h *honesty) tellUncounted(s *device.Samples) {
	queued := ""
	if s.HostFunction != "" {
		queued = "; the call queues a function of the host with " + plain.Line(s.HostFunction)
	}
	if o := s.Outside; o != nil && len(o.Missed) > 0 {
		missed := slices.Sorted(slices.Values(o.Missed))
		h.find(workOutside, "%d of %d timed calls have work on the GPU that was launched outside of the call (the first: "+
			"%s); with it they take %.2f µs longer (median)%s", len(missed), o.Calls, plain.Line(o.Work.String()),
			float64(missed[len(missed)/2])/1e3, queued)
	} else if o != nil && o.Uncalled {
		h.find(workOutside, "%s was launched on the GPU while no call was in progress", plain.Line(o.Work.String()))
	} else if queued != "" {
		h.note(strings.TrimPrefix(queued, "; ") + ": the latency includes it only between two kernels")
	}
	if len(s.Processes) > 0 {
		h.find(gpuProcess, "another process of the solution uses a GPU, and its work is not timed: process %s",
			plain.Line(strings.Join(s.Processes, ", ")))
	}
	if s.PersistingL2 > 0 {
		h.note(fmt.Sprintf("reserves %.1f MB of the L2 for persisting lines, which fisub resets before each timed call; the "+
			"contest does not", float64(s.PersistingL2)/1e6))
	}
}

// note emits a warning about the solution, unless the run has it already.
func (a *attempt) note(text string) {
	if !slices.Contains(a.runner.noted, text) {
		a.runner.noted = append(a.runner.noted, text)
		a.say(event.Event{Type: event.TypeWarning, Workload: a.workload.UUID, Message: &event.Message{Text: text}})
	}
}

func (h *honesty) run(ctx context.Context) error {
	emulated := h.process.info.Emulated
	if h.verdict.status != trace.Passed || emulated && h.in.bytes > largeOnCPU {
		return h.look(ctx, worker.Check{})
	}
	s, err := h.choose(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if h.other != nil {
		defer h.other.Close()
	}
	if emulated && h.examined {
		return h.again(ctx, s)
	}
	h.examined = true

	what := "after the timing"
	if emulated {
		what = "call 2 on the same inputs"
	}
	o, err := h.call(ctx, what, worker.Check{}, h.in.want)
	switch {
	case emulated && crashed(err):
		return h.fail(what, err)
	case err == nil && emulated && (o != right || h.stopped):
		return h.reject(ctx, what, o)
	}
	if err != nil || o != right || h.has(changedInput) {
		return err
	}
	cached := ""
	for _, change := range h.changes() {
		o, err := h.call(ctx, change.what, h.replace(s, change), change.want)
		switch {
		case err != nil:
			return err
		case o == stale && !change.all:
			cached = change.what
		case o == stale:
			h.find(cachedByPointer, "%s, the outputs match the previous inputs", change.what)
			return nil
		case o != right:
			return nil
		case change.all && cached != "":
			h.find(cachedByContent, "%s, the outputs match the previous inputs", cached)
			return nil
		}
	}
	// A call that still uses the old memory finds different inputs there.
	_, err = h.call(ctx, "at other addresses", worker.Check{Move: true, Inputs: h.original()}, h.in.want)
	return err
}

// longOnCPU and someOnCPU limit the duration of an emulated call and the size of its tensors in bytes. Above them a
// workload gets no second call, unless it is the first that passes.
const (
	longOnCPU = 3 * time.Second
	someOnCPU = 32 << 20
)

// again makes one call with new contents at the same addresses. If its outputs are wrong, a call with the original
// contents decides whether the solution is wrong: on a GPU several such calls would have been judged.
func (h *honesty) again(ctx context.Context, s *scratch) error {
	if h.took > longOnCPU || h.in.bytes > someOnCPU {
		return h.look(ctx, worker.Check{})
	}
	h.seen = append(h.seen, h.in.want)
	changes, cached := h.changes(), ""
	if n := len(changes); n > 0 { // a drawn one; if its outputs are stale, the last one too
		if drawn := h.draw("again").Intn(0, n); drawn < n-1 {
			changes = []change{changes[drawn], changes[n-1]}
		} else {
			changes = changes[n-1:]
		}
	}
	for _, change := range changes {
		o, err := h.call(ctx, change.what, h.replace(s, change), change.want)
		switch {
		case crashed(err):
			return h.repeat(ctx, err)
		case err != nil:
			return err
		case o == stale && !h.stopped && !change.all:
			cached = change.what
			continue
		case o == stale && !h.stopped:
			h.find(cachedByPointer, "%s, the outputs match the previous inputs", change.what)
			return nil
		case o == right && !h.stopped && cached != "":
			h.find(cachedByContent, "%s, the outputs match the previous inputs", cached)
			return nil
		case o == right && !h.stopped:
			return nil
		}
		break
	}
	const what = "with the first inputs again"
	o, err := h.call(ctx, what, worker.Check{Inputs: h.original()}, h.in.want)
	switch {
	case crashed(err):
		return h.fail(what, err)
	case err != nil || o == right && !h.stopped:
		return err
	}
	return h.reject(ctx, what, o)
}

// crashed reports whether err means that the solution failed, or that its process ended by itself.
func crashed(err error) bool {
	_, died := errors.AsType[*worker.Died](err)
	kind := worker.KindOf(err)
	return died && !errors.Is(err, context.DeadlineExceeded) || kind == worker.Call || kind == worker.Fault
}

// fail sets the verdict of an emulated workload whose worker ended, or whose call on the first call's inputs failed,
// with err: on a GPU the contest makes many such calls. what describes the call.
func (h *honesty) fail(what string, err error) error {
	h.later = true
	v, err := h.attempt.attribute(err)
	if err == nil {
		v.detail = what + ": " + v.detail
		h.verdict = v
	}
	return err
}

// repeat decides about a call on other inputs that failed with cause. In a new worker it makes two calls on the first
// inputs, as the contest does. If one of them fails, that is the verdict; otherwise it returns cause.
func (h *honesty) repeat(ctx context.Context, cause error) error {
	h.process.client.Close()
	err := h.build(ctx)
	defer func() { h.process.client.Close() }() // the next workload gets a new one
	for i := 0; i < 2 && err == nil; i++ {
		err = h.within(ctx, func(ctx context.Context) error {
			_, err := h.attempt.call(ctx, h.in, i == 0)
			return err
		})
	}
	switch {
	case crashed(err):
		return h.fail("in another worker, call 2 on the same inputs", err)
	case err != nil:
		return err
	}
	return cause
}

// reject sets the verdict from the last call, which used the first call's inputs; what describes it. The contest
// judges the outputs of all calls before timing any.
func (h *honesty) reject(ctx context.Context, what string, o outcome) error {
	if o == right {
		h.verdict = verdict{status: trace.RuntimeError, detail: what +
			", nothing was launched, copied or set, unlike in the previous call: the contest's timing raises \"No " +
			"kernel activities recorded\""}
		return nil
	}
	if h.in.made != nil {
		if _, err := h.verdict.judgeMade(ctx, h.attempt, h.in, h.written); err != nil {
			return err
		}
	} else {
		got, unmap, err := h.process.out.read(h.written)
		if err != nil {
			return err
		}
		defer unmap()
		h.verdict.evaluate(h.evaluator, h.shared.Definition.Outputs.Keys(), got, h.in.want, h.in.Values,
			h.shared.Profile.Tolerance)
	}
	h.later = true
	if h.verdict.detail != "" {
		h.verdict.detail = what + ": " + h.verdict.detail
	}
	return nil
}

// An outcome classifies the outputs of one call.
type outcome int

const (
	right outcome = iota
	stale         // the expected outputs of an earlier call
	wrong         // a finding
)

// call makes a call and compares its outputs with want or, if that is nil, with the reference's for the current
// inputs.
func (h *honesty) call(ctx context.Context, what string, check worker.Check, want []expected) (outcome, error) {
	check.Out = h.process.out.f
	g, gctx := errgroup.WithContext(ctx)
	inputs := h.in.Values
	if want == nil {
		inputs = h.values
		g.Go(func() (err error) {
			want, err = h.expected(gctx, h.values)
			return err
		})
	}
	g.Go(func() error { return h.look(gctx, check) })
	if err := g.Wait(); err != nil {
		return wrong, fmt.Errorf("%s: %w", what, err)
	}
	if h.has(changedInput) {
		return right, nil // it explains any outputs
	}
	defer func() { h.seen = append(h.seen, want) }()
	c, err := h.compare(ctx, h.written, want, inputs)
	if err != nil || c.ok {
		return right, err
	}
	for _, old := range h.seen {
		if c, err := h.compare(ctx, h.written, old, nil); err != nil || c.ok {
			if check.Move {
				h.find(cachedByPointer, "%s, the outputs match the inputs at the previous addresses", what)
			}
			return stale, err
		}
	}
	// Repeat the call with the device idle before and after it.
	var returned []worker.FileTensor
	err = h.within(ctx, func(ctx context.Context) (err error) {
		returned, err = h.process.client.Run(ctx, check.Out)
		return err
	})
	if err != nil {
		return wrong, fmt.Errorf("%s: %w", what, err)
	}
	if h.written = h.in.outputs; returned != nil {
		h.written = returned
	}
	if again, err := h.compare(ctx, h.written, want, inputs); err != nil {
		return wrong, err
	} else if again.ok {
		h.find(lateWrite, "%s, %s; correct if the device is idle before the call: work on another stream does not wait "+
			"for the call's stream", what, c.text)
		return right, nil
	}
	f := c.finding(what)
	switch {
	case check.Move && c.unwritten:
		f.Check = cachedByPointer
	case check.Inputs != nil && !c.unwritten:
		f.Check = wrongResult
	}
	h.find(f.Check, "%s", f.Text)
	return wrong, nil
}

// look sends a check and records its findings. The time limit does not cover the computation of expected outputs.
func (h *honesty) look(ctx context.Context, check worker.Check) error {
	h.calling = check.Out != nil
	var found *worker.Checked
	err := h.within(ctx, func(ctx context.Context) (err error) {
		found, err = h.process.client.Check(ctx, check)
		return err
	})
	_, died := errors.AsType[*worker.Died](err)
	if died && !h.calling && h.process.info.Emulated && h.verdict.status == trace.Passed {
		return h.fail("after the call", err)
	}
	if err != nil {
		return err
	}
	if h.written = h.in.outputs; found.Outputs != nil {
		h.written = found.Outputs
	}
	h.stopped = check.Out != nil && h.process.client.Idle() && !h.idle
	h.tell(found)
	return nil
}

// tell turns the results of a check into findings.
func (h *honesty) tell(found *worker.Checked) {
	for _, c := range found.Changed {
		h.find(changedInput, "input %s was modified", h.argument(c))
	}
	for _, c := range found.Outside {
		side := "after the end of"
		if c.Offset < 0 {
			side = "before"
		}
		h.find(outsideWrite, "memory %s %s was modified", side, h.argument(c))
	}
	for _, c := range found.Late {
		h.find(lateWrite, "%s was written after the end of the call's work in its stream: work on another stream "+
			"outlives the call", h.argument(c))
	}
}

// tellBound adds findings about outputs that a call bound to memory other than the passed one. The official harness
// reads the object it passed, so this passes there; a caller that uses the memory finds it unwritten.
func (h *honesty) tellBound() {
	all, out := h.shared.Definition.Arguments(), h.shared.Definition.Outputs.Keys()
	for i, t := range h.bound[:min(len(h.bound), len(out))] {
		if t.Bound == nil {
			continue
		}
		where := "memory that the solution allocated"
		if *t.Bound >= 0 && *t.Bound < len(all) {
			where = "the memory of " + all[*t.Bound]
		}
		h.find(reboundOutput, "the call rebound output %s to %s instead of writing to the memory passed for it",
			out[i], where)
	}
}

// argument names the changed argument and, if the change is inside the tensor, the element.
func (h *honesty) argument(c worker.Change) string {
	names, values := h.shared.Definition.Arguments(), slices.Clone(h.in.load.Inputs)
	if h.in.made != nil {
		names = append(slices.Clone(h.in.load.Names), "output")
	}
	for _, o := range h.in.load.Outputs {
		if o.InPlace == nil {
			values = append(values, o)
		}
	}
	if c.Arg < 0 || c.Arg >= min(len(names), len(values)) || values[c.Arg].Tensor == nil {
		return fmt.Sprintf("argument %d", c.Arg) // the worker is broken
	}
	t := values[c.Arg].Tensor
	if dtype, ok := tensor.ParseDType(t.DType); ok && c.Offset >= 0 && c.Offset < t.Bytes {
		return fmt.Sprintf("%s%v", names[c.Arg], coordinates(c.Offset*8/dtype.Bits(), t.Shape))
	}
	return names[c.Arg]
}

// compare judges the contents of the output file, which written describes. The top-k indexer's indices are judged by
// their scores for inputs or, if that is nil, must be want's in any order.
func (a *attempt) compare(ctx context.Context, written []worker.FileTensor, want []expected, inputs []workloads.Input) (
	comparison, error) {
	if len(want) > 0 && want[0].made != nil {
		return want[0].made.check(ctx, &a.process.out, written)
	}
	got, unmap, err := a.process.out.read(written)
	if err != nil {
		return comparison{}, err
	}
	defer unmap()
	names := a.shared.Definition.Outputs.Keys()
	if len(got) != len(want) && (a.evaluator != sparseAttention || len(got) == 0 || len(got) > len(want)) {
		return comparison{text: fmt.Sprintf("%d outputs, expected %d", len(got), len(want))}, nil
	}
	for i, o := range got {
		if o.tensor == nil {
			return comparison{text: fmt.Sprintf("%s: dtype %s, expected %v", names[i], o.dtype, want[i].DType)}, nil
		}
	}
	if a.evaluator == topK {
		return compareTopK(names, got, want, inputs, a.shared.Profile.Tolerance), nil
	}
	c := compareAll(names, tensorsOf(got), want, a.shared.Profile.Tolerance)
	if c.ok && c.rows != "" {
		a.find(wrongRows, "%s", c.rows)
	}
	return c, nil
}

// expected returns the reference's outputs for values, which differ from the loaded inputs only in their contents.
func (a *attempt) expected(ctx context.Context, values []workloads.Input) ([]expected, error) {
	var want []*tensor.Tensor
	var err error
	if a.reference == nil {
		want, err = reference.Run(ctx, a.shared.Definition, values)
	} else {
		load := *a.loaded.load
		load.Inputs = slices.Clone(load.Inputs)
		for i, v := range values {
			if v.Tensor != nil {
				load.Inputs[i].Tensor = fileTensor(v)
			}
		}
		want, err = a.reference.run(ctx, &load, a.loaded.size)
	}
	if err != nil {
		return nil, err
	}
	return expectedOf(a.shared.Definition, want, values), nil
}

// tensorsOf returns the tensors of outs, which must have known dtypes.
func tensorsOf(outs []output) []*tensor.Tensor {
	var list []*tensor.Tensor
	for _, o := range outs {
		list = append(list, o.tensor)
	}
	return list
}

// A comparison is the result of the contest's rule on all outputs.
type comparison struct {
	ok        bool
	text      string // about the first output that failed
	unwritten bool   // the first failed element is as it was before the call
	rows      string // about rows that are wrong within the matched ratio, or ""
}

// compareAll ignores an output if the reference is not finite at its first failed element.
func compareAll(names []string, got []*tensor.Tensor, want []expected, tol tensor.Tolerance) comparison {
	rows := ""
	for i, g := range got {
		if g.DType != want[i].DType || !slices.Equal(g.Shape, want[i].Shape) {
			return comparison{text: fmt.Sprintf("%s: %v%v, expected %v%v", names[i], g.DType, g.Shape, want[i].DType,
				want[i].Shape)}
		}
		c := want[i].compare(g, tol)
		rows = cmp.Or(rows, wrongIn(names[i], c, want[i], g, tol))
		if c.OK || math.IsNaN(c.First.Want) || math.IsInf(c.First.Want, 0) {
			continue
		}
		return comparison{text: describe(names[i], c, want[i].Shape), unwritten: want[i].unwritten(g, c.First.Index)}
	}
	return comparison{ok: true, rows: rows}
}

// finding describes a call on inputs for which the solution was right before. what describes the call.
func (c comparison) finding(what string) *event.Finding {
	f := &event.Finding{Check: unsteadyResult, Text: what + ": " + c.text}
	if c.unwritten {
		f.Check, f.Text = skippedWork, what+", unwritten outputs: "+c.text
	}
	return f
}

// A scratch file holds new contents of inputs.
type scratch struct {
	f       *os.File
	data    []byte
	offsets []int // by input
}

func (s *scratch) close() {
	if s.data != nil {
		_ = unix.Munmap(s.data)
	}
	if s.f != nil {
		s.f.Close()
	}
}

// changeable returns the inputs that can get new contents. Only floating-point inputs qualify, so that no index leaves
// its range.
func changeable(values []workloads.Input) (inputs []int) {
	for i, v := range values {
		t := v.Tensor
		if t != nil && t.DType.IsFloat() && t.DType.Bits() >= 8 && t.Len() >= 2 && len(t.Data) <= maxChanged {
			inputs = append(inputs, i)
		}
	}
	return inputs
}

// choose makes room for the new contents of inputs.
func (h *honesty) choose(ctx context.Context) (*scratch, error) {
	h.values = slices.Clone(h.in.Values)
	s := &scratch{offsets: make([]int, len(h.values))}
	if h.in.made != nil {
		var err error
		h.other, err = h.attempt.other(ctx, h.in, "other inputs")
		return s, err
	}
	size := 0
	h.changed = changeable(h.values)
	for _, i := range h.changed {
		s.offsets[i] = size
		size += (len(h.values[i].Tensor.Data) + 255) &^ 255
	}
	slices.SortStableFunc(h.changed,
		func(a, b int) int { return len(h.values[b].Tensor.Data) - len(h.values[a].Tensor.Data) })
	var err error
	if s.f, err = memfile.New("fisub-inputs", int64(size)); err == nil && size > 0 {
		s.data, err = unix.Mmap(int(s.f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		err = memfile.Freeze(s.f)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("other inputs: %w", err)
	}
	return s, nil
}

// original returns the workload's own contents of the inputs that change.
func (h *honesty) original() []*worker.FileTensor {
	if h.in.made != nil {
		return h.in.contents()
	}
	inputs := make([]*worker.FileTensor, len(h.in.load.Inputs))
	for _, i := range h.changed {
		inputs[i] = fileTensor(h.in.Values[i])
	}
	return inputs
}

// A change gives inputs new contents.
type change struct {
	what   string
	all    bool
	inputs []int
	f      func(*tensor.Tensor, random.Stream)
	want   []expected // nil unless functions make the inputs
}

// changes returns the changes to make, in order. The first ones are small, to detect solutions that look up a result
// by some of the inputs or some of their elements; the input or the position is drawn. The last one rotates the rows of
// every tensor, which keeps its values plausible.
func (h *honesty) changes() []change {
	if h.other != nil {
		return []change{{what: "with the inputs of another seed", all: true, want: []expected{{made: h.other}}}}
	}
	if len(h.changed) == 0 {
		return nil
	}
	row, element := h.changed[0], h.changed[min(1, len(h.changed)-1)]
	name := func(i int) string { return h.values[i].Name }
	small := []change{
		{"with one element of " + name(element) + " changed", false, []int{element},
			func(t *tensor.Tensor, r random.Stream) { flip(t, r, 1) }, nil},
		{"with one row of " + name(row) + " changed", false, []int{row},
			func(t *tensor.Tensor, r random.Stream) { flip(t, r, rowOf(t)) }, nil},
	}
	if h.judgedVaried { // a timed call had such a change
		small = small[1:]
	}
	if n := len(h.changed); n > 1 {
		drawn := h.changed[h.draw("input").Intn(0, n)]
		small = append(small, change{"with all elements of " + name(drawn) + " changed", false, []int{drawn}, turn, nil})
	}
	return append(small, change{"with all inputs changed", true, h.changed, turn, nil})
}

// draw returns the numbers for one purpose in the checks of this attempt. They follow from the run's secret, which a
// submission cannot know while it runs.
func (a *attempt) draw(purpose ...string) random.Stream {
	return random.New(append([]string{"fisub.honesty/2", a.shared.Secret, a.workload.UUID}, purpose...)...)
}

// next is draw for the measurements, each time with other numbers. Those of different solutions differ too.
func (a *attempt) next(purpose string) random.Stream {
	a.draws++
	return a.draw(purpose, strconv.Itoa(a.number), strconv.Itoa(a.draws))
}

// replace applies the change to the first contents of its inputs, and undoes the previous change.
func (h *honesty) replace(s *scratch, c change) worker.Check {
	if c.want != nil {
		return worker.Check{Inputs: h.other.contents()}
	}
	check := worker.Check{Inputs: make([]*worker.FileTensor, len(h.values))}
	for _, i := range h.changed {
		if first := h.in.Values[i]; h.values[i].Tensor != first.Tensor {
			h.values[i], check.Inputs[i] = first, fileTensor(first)
		}
	}
	for _, i := range c.inputs {
		v := &h.values[i]
		at := s.offsets[i]
		t := &tensor.Tensor{DType: v.Tensor.DType, Shape: v.Tensor.Shape,
			Data: s.data[at : at+len(v.Tensor.Data) : at+len(v.Tensor.Data)]}
		copy(t.Data, v.Tensor.Data)
		c.f(t, h.draw(c.what, v.Name))
		v.Tensor, v.File, v.Offset = t, s.f, int64(at)
		check.Inputs[i] = fileTensor(*v)
	}
	return check
}

func rowOf(t *tensor.Tensor) int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// flip sets n elements of one row to the largest magnitude in the row, with their signs inverted: plausible values
// far from the old ones. Of more than two rows it avoids the first and the last.
func flip(t *tensor.Tensor, r random.Stream, n int) {
	row := make([]float64, rowOf(t))
	rows := t.Len() / len(row)
	at := r.Intn(0, rows)
	if rows > 2 {
		at = 1 + r.Intn(0, rows-2)
	}
	t.ReadFloat64s(row, at*len(row))
	largest := 0.0
	for _, x := range row {
		if !math.IsInf(x, 0) {
			largest = max(largest, math.Abs(x))
		}
	}
	if largest == 0 || math.IsNaN(largest) {
		largest = 1
	}
	first := r.Intn(1, len(row)-n+1)
	for i := range n {
		row[first+i] = -math.Copysign(largest, row[first+i])
	}
	t.WriteFloat64s(row[first:first+n], at*len(row)+first)
}

// turn rotates the rows of t, or the elements of a single row, towards the start.
func turn(t *tensor.Tensor, r random.Stream) {
	unit, _ := t.DType.Bytes(rowOf(t))
	if unit == len(t.Data) {
		unit = t.DType.Bits() / 8
	}
	by := unit * (1 + r.Intn(2, len(t.Data)/unit-1))
	turned := slices.Concat(t.Data[by:], t.Data[:by])
	copy(t.Data, turned)
}
