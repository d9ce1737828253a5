package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/runs/stats"
	"fisub/workloads/random"
)

// remeasure is the maximum number of repeated measurements of a workload with doubtful timings.
const remeasure = 2

// measure times the attempts at a workload. If the device reports a disturbance of one, it repeats all of them; it
// keeps the last samples even if disturbed. If a solution or its device fails, it sets that attempt's err and
// continues with the others.
func measure(ctx context.Context, attempts []*attempt) {
	for n := 1; ; n++ {
		sample(ctx, attempts, n)
		attempts = slices.DeleteFunc(slices.Clone(attempts), func(a *attempt) bool { return a.err != nil })
		disturbed := slices.ContainsFunc(attempts, func(a *attempt) bool { return len(a.samples.Disturbed) > 0 })
		if !disturbed || n > remeasure {
			return
		}
	}
}

// sample takes the profile's trials and, if the profile has a target, further ones until each median's interval is
// that narrow or the time is over. Each trial has its tensors at other addresses, because addresses change a short
// kernel's time by 1 to 3 % (docs/kernels.md): trials at the same addresses would agree on a figure that another
// process does not reproduce. Several solutions alternate forwards and backwards (A B, B A, A B, ...). Slow changes
// of the GPU, such as its temperature, then affect all alike, and no solution always follows the same other one.
func sample(ctx context.Context, attempts []*attempt, n int) {
	begun := time.Now()
	p := attempts[0].shared.Profile
	plan := device.Plan{Warmup: p.Warmup, Iterations: p.Iterations, Trials: 1, ColdL2: true,
		Timer: attempts[0].shared.Timer}
	limit := p.MaxTime * time.Duration(len(attempts))
	turns := slices.Clone(attempts)
	for _, a := range attempts {
		a.samples, a.err, a.measured = nil, nil, n
	}
	for {
		if limit > 0 {
			plan.MaxTime = limit - time.Since(begun)
		}
		over := false
		for _, a := range turns {
			if a.samples != nil {
				a.err = a.move(ctx)
			}
			if a.err == nil {
				a.err = a.trial(ctx, plan)
			}
			over = over || a.err == nil && a.samples.Truncated
		}
		turns = slices.DeleteFunc(turns, func(a *attempt) bool { return a.err != nil })
		enough := !slices.ContainsFunc(turns, func(a *attempt) bool {
			return !stats.Enough(a.samples.Trials, p.Trials, p.Target)
		})
		if enough || ctx.Err() != nil {
			return
		}
		if over || limit > 0 && time.Since(begun) >= limit {
			for _, a := range turns {
				a.samples.Truncated = true
			}
			return
		}
		slices.Reverse(turns)
	}
}

// maxCopies limits the copies of a workload's tensors on the device. With the gaps between them they use at most an
// eighth of its memory.
const maxCopies = 16

// page is the unit in which the GPU's driver allocates memory; maxGap is the largest gap between two copies.
const page, maxGap = 2 << 20, 64 << 20

// gap draws the number of bytes to skip before the next copy of the tensors; 0 on a device with little memory.
// Without gaps, since a process always gets the same memory in the same order, one of two equal solutions could have
// the slower addresses for all workloads.
func (a *attempt) gap(memory int64) int64 {
	if pages := min(maxGap, memory/1024) / page; pages > 0 {
		return page * int64(1+a.next("gap").Intn(0, int(pages)))
	}
	return 0
}

// move moves the workload's tensors to new addresses or, if memory is short, back to the first ones. It records
// forbidden writes for the findings.
func (a *attempt) move(ctx context.Context) error {
	return a.within(ctx, func(ctx context.Context) error {
		memory := a.process.info.MemoryBytes
		check := worker.Check{Gap: a.gap(memory)}
		check.Move = a.copies < maxCopies && (memory == 0 || a.held+check.Gap+a.bytes <= memory/8)
		found, err := a.process.client.Check(ctx, check)
		if err != nil {
			return err
		}
		a.writes = append(a.writes, found)
		if check.Move {
			a.copies++
			a.held += check.Gap + a.bytes
			return nil
		}
		return a.put(ctx, a.loaded)
	})
}

// trial adds a trial of plan to the samples, measured with their timer.
func (a *attempt) trial(ctx context.Context, plan device.Plan) error {
	if a.samples != nil {
		plan.Timer = timerOf(a.samples.Timer) // no change of timer within a workload
	}
	left := a.left
	more, err := a.measureOnce(ctx, plan, 0)
	if a.varied != nil && (crashed(err) || errors.Is(err, context.DeadlineExceeded)) {
		a.left = left
		more, err = a.withoutVariation(ctx, plan, err)
	}
	if err != nil {
		return err
	}
	if a.samples == nil {
		a.samples = more
		return nil
	}
	add(a.samples, more)
	return nil
}

// withoutVariation repeats a trial that failed with cause, without the call that the contest does not make. If the
// trial succeeds, cause becomes a finding.
func (a *attempt) withoutVariation(ctx context.Context, plan device.Plan,
	cause error) (*device.Samples, error) {
	what := a.varied.what
	a.varied = nil
	if worker.KindOf(cause) == worker.Fault {
		a.process.client.Close() // the process is unusable
	}
	restore := func(ctx context.Context) error {
		_, err := a.process.client.Check(ctx, worker.Check{Inputs: a.loaded.contents()})
		return err
	}
	if !a.process.running() {
		a.printed += a.process.log()
		if err := a.build(ctx); err != nil {
			return nil, err
		}
		restore = func(ctx context.Context) error { return a.put(ctx, a.loaded) }
	}
	if err := a.within(ctx, restore); err != nil {
		return nil, err
	}
	samples, err := a.measureOnce(ctx, plan, 0)
	if err != nil {
		return nil, cause
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		cause = fmt.Errorf("no reply within %g seconds", a.shared.Profile.Timeout.Seconds())
	}
	a.find(failedCall, "a timed call %s: %v", what, cause)
	return samples, nil
}

func add(all, more *device.Samples) {
	all.Trials = append(all.Trials, more.Trials...)
	all.Stamp, all.Truncated = join(all.Stamp, more.Stamp), more.Truncated
	if len(all.Processes) == 0 {
		all.Processes = more.Processes
	}
	all.PersistingL2 = max(all.PersistingL2, more.PersistingL2)
	all.Outside, all.HostFunction = all.Outside.Add(more.Outside), cmp.Or(all.HostFunction, more.HostFunction)
	for _, d := range more.Disturbed {
		if !slices.Contains(all.Disturbed, d) {
			all.Disturbed = append(all.Disturbed, d)
		}
	}
}

// join merges the stamps of a trial and a later one; either may be nil. The median is from the one with more
// readings.
func join(a, b *device.Stamp) *device.Stamp {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	s := *b
	s.Before = a.Before
	if a.During.N >= b.During.N {
		s.During.Median = a.During.Median
	}
	s.During.N = a.During.N + b.During.N
	switch {
	case a.During.N > 0 && b.During.N > 0:
		s.During.Min, s.During.Max = each(a.During.Min, b.During.Min, math.Min), each(a.During.Max, b.During.Max, math.Max)
	case a.During.N > 0:
		s.During = a.During
	}
	for _, reason := range a.ThrottleReasons {
		if !slices.Contains(s.ThrottleReasons, reason) {
			s.ThrottleReasons = append(slices.Clone(s.ThrottleReasons), reason)
		}
	}
	for _, p := range a.OtherProcesses {
		if !slices.ContainsFunc(s.OtherProcesses, func(q event.GPUProcess) bool { return q.PID == p.PID }) {
			s.OtherProcesses = append(slices.Clone(s.OtherProcesses), p)
		}
	}
	return &s
}

func each(a, b event.Reading, f func(x, y float64) float64) event.Reading {
	whole := func(x, y int) int { return int(f(float64(x), float64(y))) }
	return event.Reading{SMClockMHz: whole(a.SMClockMHz, b.SMClockMHz),
		MemoryClockMHz: whole(a.MemoryClockMHz, b.MemoryClockMHz),
		TemperatureC:   whole(a.TemperatureC, b.TemperatureC), PowerW: f(a.PowerW, b.PowerW)}
}

// measure times the loaded call in the worker.
func (p *process) measure(ctx context.Context, plan worker.JudgedPlan) (*device.Samples, []worker.Judged, error) {
	return p.stamper.measure(ctx, p.client, p.info.UUID, plan)
}

// mostJudged and someJudged limit the judged calls of a trial and the bytes of their outputs. At least one is judged.
const mostJudged, someJudged = 4, 32 << 20

// measureOnce measures one trial within the time limit, with JudgedPlan.Clear. The solution cannot tell which of its
// timed calls are judged, so all of them must compute right outputs.
func (a *attempt) measureOnce(ctx context.Context, once device.Plan, clear int64) (samples *device.Samples, err error) {
	in := a.loaded
	plan := worker.JudgedPlan{Plan: once, Clear: clear, Stride: (in.size + 255) &^ 255}
	n := max(1, min(mostJudged, int(someJudged/max(1, plan.Stride))))
	vary := a.varied != nil && once.Iterations > 1
	if vary {
		plan.Iterations++
		n = max(2, n) // one with the workload's own inputs
	}
	n = min(plan.Iterations, n)
	plan.Judged = choose(a.next("judged"), plan.Iterations, n)
	if err := a.process.out.room(int64(n) * plan.Stride); err != nil {
		return nil, err
	}
	plan.Out = a.process.out.f
	if vary {
		plan.Apart = &plan.Judged[1+a.next("varied").Intn(0, n-1)]
		if a.varied.other != nil {
			plan.Other = a.varied.other.contents()
		} else {
			plan.Patch = &a.varied.patch
		}
	}
	var judged []worker.Judged
	err = a.within(ctx, func(ctx context.Context) (err error) {
		samples, judged, err = a.process.measure(ctx, plan)
		return err
	})
	if err != nil {
		return nil, err
	}
	return samples, a.judgeTimed(ctx, plan, samples, judged)
}

// choose returns k of the numbers 0 to n-1, in order.
func choose(r random.Stream, n, k int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	for i := range k { // Fisher-Yates
		j := i + r.Intn(i, n-i)
		all[i], all[j] = all[j], all[i]
	}
	slices.Sort(all[:k])
	return all[:k]
}

// judgeTimed makes a finding if a timed call left wrong outputs or the worker did not return them.
func (a *attempt) judgeTimed(ctx context.Context, plan worker.JudgedPlan, samples *device.Samples,
	judged []worker.Judged) error {
	calls := 0
	for _, trial := range samples.Trials {
		calls += len(trial)
	}
	if plan.Apart != nil && (!samples.Truncated || calls > *plan.Apart) {
		calls++
	}
	for k, call := range plan.Judged {
		if call >= calls {
			break // the time was over
		}
		what := fmt.Sprintf("timed call %d of %d", call+1, calls)
		if k >= len(judged) || judged[k].Call != call {
			a.timed = &event.Finding{Check: unsteadyResult, Text: what + ": the worker returned no outputs"}
			return nil
		}
		written := judged[k].Outputs
		if written == nil {
			for _, w := range a.loaded.outputs {
				w.Offset += int64(k) * plan.Stride
				written = append(written, w)
			}
		}
		judge := a.judgeAgain
		if plan.Apart != nil && *plan.Apart == call {
			judge = a.judgeVaried
		}
		if found, err := judge(ctx, what, written); err != nil || found != nil {
			a.timed = cmp.Or(a.timed, found)
			return err
		}
	}
	return nil
}

// judgeAgain returns a finding if the outputs of a call on the loaded inputs are wrong. what describes the call.
func (a *attempt) judgeAgain(ctx context.Context, what string, written []worker.FileTensor) (*event.Finding, error) {
	c, err := a.compare(ctx, written, a.loaded.want, a.loaded.Values)
	if err != nil || c.ok {
		return nil, err
	}
	return c.finding(what), nil
}

// further returns one more trial, which is not the contest's. Its failure is a warning about what, and the result nil.
func (a *attempt) further(ctx context.Context, what string, plan device.Plan, clear int64) *device.Samples {
	a.printed += a.process.log()
	defer a.process.log()
	plan.Trials, plan.MaxTime = 1, a.shared.Profile.MaxTime
	s, err := a.measureOnce(ctx, plan, clear)
	if err == nil {
		return s
	}
	if ctx.Err() == nil {
		a.say(event.Event{Type: event.TypeWarning, Message: &event.Message{Text: fmt.Sprintf("no %s: %v", what, err)}})
	}
	return nil
}

// measureWarm adds one trial with a warm L2.
func (a *attempt) measureWarm(ctx context.Context) {
	p := a.shared.Profile
	a.warm = a.further(ctx, "warm-L2 figure", device.Plan{Warmup: p.Warmup, Iterations: p.Iterations,
		Timer: timerOf(a.samples.Timer)}, 0)
}

// boardCalls is the most calls that a board times, and boardError the relative error of their mean at which it stops.
// Both are pmpp_v2's (gpu-mode/reference-kernels f83cb92), whose limit of 10 s is left out.
// Before each call it writes boardClear bytes, which takes so long that the call's launches wait in the queue.
const boardCalls, boardError, boardClear = 100, 0.001, 256 << 20

// measureBoard adds the figure of the task's board.
func (a *attempt) measureBoard(ctx context.Context) {
	if f := a.shared.Definition.Python; f == nil || f.Ranking == "" {
		return
	}
	plan := device.Plan{Warmup: 1, Iterations: boardCalls, ColdL2: true, Timer: device.TimerEvents}
	if s := a.further(ctx, "figure as the board's", plan, boardClear); s != nil && len(s.Trials) > 0 {
		a.board = boardOf(s.Trials[0])
	}
}

// boardOf applies the board's rule to times in the order of the calls.
func boardOf(times []time.Duration) *event.Board {
	b := &event.Board{Best: math.Inf(1)}
	squares := 0.0
	for _, duration := range times {
		t := float64(duration)
		b.Runs++
		n, from := float64(b.Runs), t-b.Mean
		b.Mean += from / n
		squares += from * (t - b.Mean)
		b.Best, b.Worst = min(b.Best, t), max(b.Worst, t)
		b.Err = math.Sqrt(squares / max(1, n*(n-1)))
		if b.Runs > 2 && b.Err < boardError*b.Mean {
			break
		}
	}
	return b
}

func timerOf(samples string) string {
	if samples == device.TimerCUPTI {
		return device.TimerCUPTI
	}
	return device.TimerEvents
}

// traffic returns the minimum number of bytes that the timed call must move.
func (a *attempt) traffic() int64 {
	read, written := a.loaded.moved()
	return read + written
}

// tell emits the samples of a workload, after a warning if their timer is not the contest's. base holds the
// baseline's samples; it and f may be nil.
func (a *attempt) tell(base *device.Samples, f *roofline) {
	s := a.samples
	if s.TimerNote != "" {
		a.note("timed with CUDA events, which include launch gaps, unlike the contest's CUPTI timing: " + s.TimerNote)
	}
	out := eventSamples(s, a.traffic(), a.process.info.Bandwidth)
	out.Measured = a.measured
	out.Warm, out.Baseline, out.Board = timings(a.warm), timings(base), a.board
	if f != nil {
		if out.CopyNS, out.EmptyNS = f.figures(a.traffic(), timerOf(s.Timer)); out.MedianNS > 0 {
			out.CopyShare = out.CopyNS / out.MedianNS
		}
		a.empty = out.EmptyNS
	}
	a.say(event.Event{Type: event.TypeSamples, Workload: a.workload.UUID, Samples: out})
}

// tellHosted emits a note, once for each solution, if a passed call launched no kernel.
func (a *attempt) tellHosted() {
	hosted := a.hosted
	if a.samples != nil && len(a.samples.Kernels) > 0 {
		hosted = !slices.ContainsFunc(a.samples.Kernels, func(k device.Activity) bool { return k.Kind == "kernel" })
	}
	if hosted && len(a.found) == 0 && a.verdict.status == trace.Passed {
		a.note("computes on the host: no kernel was launched, only copies")
	}
}

// eventSamples adds the statistics. bytes is the size of the workload's tensors, peak the bandwidth of the memory in
// bytes a second, or 0.
func eventSamples(s *device.Samples, bytes, peak int64) *event.Samples {
	sum := stats.Summarize(s.Trials)
	out := &event.Samples{Timer: s.Timer, TimerNote: s.TimerNote, ColdL2: s.ColdL2, MedianNS: stats.Latency(s.Trials),
		MinNS: int64(sum.Min), N: sum.N, Q1NS: sum.Q1, Q2NS: sum.Median, Q3NS: sum.Q3, MeanNS: sum.Mean, Bytes: bytes,
		Warnings: sum.Warnings,
		Interval: interval(sum), TrialsNS: nanoseconds(s.Trials),
		Truncated: s.Truncated, Kernels: s.Kernels, Stamp: s.Stamp, Disturbed: s.Disturbed}
	if out.MedianNS > 0 {
		out.Bandwidth = float64(bytes) / out.MedianNS
	}
	if peak > 0 {
		out.PeakShare = out.Bandwidth * 1e9 / float64(peak)
	}
	return out
}

// timings returns the figures of a measurement that supplements the official one. s may be nil.
func timings(s *device.Samples) *event.Timings {
	if s == nil {
		return nil
	}
	sum := stats.Summarize(s.Trials)
	return &event.Timings{Timer: s.Timer, ColdL2: s.ColdL2, MedianNS: stats.Latency(s.Trials), N: sum.N,
		Interval: interval(sum),
		TrialsNS: nanoseconds(s.Trials), Disturbed: s.Disturbed}
}

func interval(s stats.Summary) event.Interval {
	return event.Interval{LoNS: s.Lo, HiNS: s.Hi, Width: s.Width(), Confidence: s.Confidence}
}

func nanoseconds(trials [][]time.Duration) (rows [][]int64) {
	for _, trial := range trials {
		row := make([]int64, len(trial))
		for i, d := range trial {
			row[i] = d.Nanoseconds()
		}
		rows = append(rows, row)
	}
	return rows
}
