package bench

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"fisub/bench/worker"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/runs"
)

// A runner takes one solution through the workloads.
type runner struct {
	shared    *Shared
	entry     Entry
	process   *process
	evaluator evaluator
	reference *pyReference // nil if bench/reference knows the definition

	summary   runs.Summary
	begun     time.Time
	announced bool
	told      bool     // the build was reported
	explained bool     // a failed workload was repeated with all checks
	noted     []string // texts of notes about the solution
	timeouts  int      // consecutive, up to the last workload
	failed    bool     // a workload did not pass
	examined  bool     // a workload has had the honesty checks that make calls
	number    int      // among the solutions of the run; -1: the baseline
	result    Result
}

// newRunner returns a runner even with an error.
func newRunner(ctx context.Context, shared *Shared, entry Entry, e evaluator, reference *pyReference,
	s *stamper) (*runner, error) {
	p, err := newProcess(ctx, shared, shared.Definition, entry.Solution)
	p.stamper, p.rival = s, true
	r := &runner{shared: shared, entry: entry, process: p, evaluator: e, reference: reference, begun: time.Now()}
	if entry.Before != nil {
		r.summary = entry.Before.Clone()
	}
	return r, err
}

// say emits an event and adds it to the summary.
func (r *runner) say(e event.Event) {
	r.summary.Add(&e)
	r.entry.Events.Emit(e)
}

// end emits the end of the run.
func (r *runner) end() Result {
	d := r.summary.Totals()
	d.Seconds += time.Since(r.begun).Seconds()
	d.Left, d.Secret = r.result.Left, r.shared.Secret
	r.result.Passed, r.result.Failed, r.result.Missing, r.result.Findings = d.Passed, d.Failed, d.Missing, d.Findings
	if r.announced {
		r.say(event.Event{Type: event.TypeDone, Done: &d})
	}
	return r.result
}

// open starts the first worker, which lives until run ends, opens the device and announces the run.
func (r *runner) open(run, ctx context.Context) error {
	if err := r.process.start(run, ctx); err != nil {
		return r.process.machineError(err)
	}
	r.entry.Run.Device, r.entry.Run.Checked = r.process.info, checked(r.process)
	if r.entry.Admit != nil {
		if err := r.entry.Admit(r.entry.Run.Device); err != nil {
			return err
		}
	}
	r.say(event.Event{Type: event.TypeRun, Run: r.entry.Run})
	if r.entry.Run.KnownSecret {
		r.say(event.Event{Type: event.TypeWarning, Message: &event.Message{Text: "the honesty checks repeat the draws of a " +
			"known secret: a run without findings proves nothing"}})
	}
	if err := r.entry.Events.Err(); err != nil {
		return err // before anything runs that could not be recorded
	}
	r.announced = true
	return nil
}

// ready makes the process ready and reports the build. A worker that it starts outlives ctx, for the workloads that
// follow, but not run.
func (r *runner) ready(run, ctx context.Context) error {
	if !r.announced {
		if err := r.open(run, ctx); err != nil {
			return err
		}
	}
	if r.told {
		return r.process.ready(run, ctx)
	}
	r.say(event.Event{Type: event.TypeBuilding})
	begun := time.Now()
	err := r.process.ready(run, ctx)
	if err != nil && r.process.buildErr == nil {
		return err
	}
	built := &event.Built{OK: err == nil, Seconds: time.Since(begun).Seconds()}
	built.Cached = err == nil && r.process.cached
	if err != nil {
		built.Log = r.process.buildErr.Log
	}
	r.say(event.Event{Type: event.TypeBuilt, Built: built})
	r.told = true
	return err
}

// begin starts workload number index, counted from 0.
func (r *runner) begin(index int, w *trace.Workload) *attempt {
	axes := maps.Collect(w.Axes.All())
	r.say(event.Event{Type: event.TypeStarted, Workload: w.UUID,
		Started: &event.Started{Index: index + 1, Total: len(r.shared.Workloads), Axes: axes}})
	return &attempt{runner: r, workload: w, index: index, started: time.Now(),
		limit: limit{left: r.shared.Profile.Timeout}}
}

// fail reports that w gets no verdict. Either its inputs or expected outputs are unavailable, and the official
// harness writes no trace either, or the machine is missing something that the solution needs.
func (r *runner) fail(w *trace.Workload, err error) {
	text := strings.TrimPrefix(err.Error(), "workload "+w.UUID+": ") // the event has the UUID
	m := &event.Message{Text: strings.ReplaceAll(text, "\n", "; ")}  // joined errors on one line
	if we, ok := errors.AsType[*worker.Error](err); ok {
		m.Log = we.Log
	}
	if printed := r.process.log(); lacking(err) {
		m.Log = printed + m.Log + warnings(r.process.hazards())
	}
	r.say(event.Event{Type: event.TypeFailed, Workload: w.UUID, Message: m})
}

// checked returns the mistakes that a run on p's device looks for.
func checked(p *process) *event.Checked {
	honesty := "dependence on earlier calls, modified inputs, "
	switch {
	case !p.info.Emulated:
		return &event.Checked{
			For: []string{"in calls after the timing: " + honesty + "writes within 4096 bytes of a tensor, work that " +
				"outlives the call's stream"},
			Not: []string{"other invalid accesses", "races", "reads of unwritten memory (see fisub sanitize)"}}
	case p.kind != "emu":
		return nil
	}
	l := &event.Checked{Not: []string{"host synchronisation"}}
	all := "in all calls: invalid accesses, misaligned accesses, barriers that never open, "
	always := "shared memory in use by asynchronous operations, misused mbarriers, "
	first := "races (first instructions), missing proxy fences, unordered accesses in clusters, " +
		"unwritten local and global memory"
	if p.python {
		always, first = "", "unwritten local memory, races in CUDA (first instructions)"
		l.Not = []string{"races in Triton", "registers without a value in Triton", "unwritten tensors",
			"host synchronisation", "the host's use of device memory"}
	}
	launches := "in the first call of the first workload, and in later ones in launches with a new kernel or block " +
		"size, or of up to 128 blocks with a new grid: "
	if p.opts.Sanitize != "" { // a run has either all sanitizers or none
		launches, first = "in all launches: ", strings.Replace(first, " (first instructions)", "", 1)
	}
	l.For = []string{all + always + "unwritten shared memory, registers without a value, member masks, divisions by " +
		"zero, refused launches", launches + first,
		"in a second call of workloads up to 32 MB and 3 s: " + strings.TrimSuffix(honesty, ", ")}
	return l
}
