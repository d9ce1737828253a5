package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"fisub/device"
	"fisub/device/activity"
	"fisub/device/counters"
	"fisub/internal/cache"
	"fisub/internal/ledger"
	"fisub/internal/plain"
	"fisub/internal/retry"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
)

// A Command is the command line and the limits of a worker.
type Command struct {
	Args        []string         // program and arguments of a process that calls Serve on descriptors 3 and 4
	Env         []string         // added to the environment
	MemoryLimit int64            // resident bytes of the worker and its children; 0: no limit
	Sandbox     *sandbox.Sandbox // nil for a worker without a sandbox
	Progress    func(string)     // see Client.show; nil if nothing shows it
}

// A Client is the parent's end of one worker process. It must be used from one goroutine.
type Client struct {
	cmd      *exec.Cmd
	requests *net.UnixConn
	replies  *bufio.Reader
	log      *capture
	exited   chan struct{} // closed when the process has been waited for
	state    error         // of Wait; valid after exited
	cached   bool
	emulated bool // whether the open device is emulated
	hazards  []device.Hazard
	counters []counters.Launch
	fault    *Error         // the first one during the current request
	ledger   *ledger.Ledger // of the device, with the file for the worker
	shared   *os.File
	idle     bool // whether the last call was idle
	hosted   bool // whether it only copied or set memory
	called   bool // whether the solution was called
	memory   memory
	progress func(string)
	shown    string // last passed to progress

	mu     sync.Mutex
	reason string // why the parent killed the process; "" if it did not
}

// Start starts a worker. The caller must Close it. Cancelling ctx kills the worker.
func Start(ctx context.Context, c Command) (cl *Client, err error) {
	err = retry.Short(func() error {
		cl, err = startOnce(ctx, c)
		return err
	})
	return cl, err
}

func startOnce(ctx context.Context, c Command) (*Client, error) {
	reqW, reqR, err := socket()
	if err != nil {
		return nil, err
	}
	repR, repW, err := os.Pipe()
	if err != nil {
		reqR.Close()
		reqW.Close()
		return nil, err
	}
	printed, out, err := newCapture()
	if err != nil {
		for _, f := range []io.Closer{reqR, reqW, repR, repW} {
			f.Close()
		}
		return nil, err
	}
	hazards, shared, err := ledger.New()
	if err != nil {
		for _, f := range []io.Closer{reqR, reqW, repR, repW, out} {
			f.Close()
		}
		printed.close()
		return nil, err
	}
	cl := &Client{requests: reqW, replies: bufio.NewReaderSize(repR, 1<<16), log: printed, exited: make(chan struct{}),
		ledger: hazards, shared: shared, progress: c.Progress}
	env := append(slices.Clone(c.Env), marker+"=1")
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	if c.Sandbox != nil {
		s := *c.Sandbox
		s.Env = slices.Concat(s.Env, env)
		cmd = s.Command(context.Background(), c.Args[0], c.Args[1:]...)
	} else {
		cmd.Env = append(os.Environ(), env...)
		sandbox.Own(cmd)
	}
	cmd.ExtraFiles = []*os.File{reqR, repW}
	cmd.Stdout, cmd.Stderr = out, out
	cl.cmd = cmd
	err = cmd.Start()
	reqR.Close()
	repW.Close()
	out.Close()
	if err != nil {
		reqW.Close()
		repR.Close()
		printed.close()
		shared.Close()
		hazards.Close()
		return nil, fmt.Errorf("starting the worker: %w", err)
	}
	go func() {
		cl.state = cmd.Wait()
		repR.Close()
		close(cl.exited)
	}()
	go cl.watch(ctx, c.MemoryLimit)
	return cl, nil
}

// watch kills the process when ctx ends or when its memory exceeds limit.
func (c *Client) watch(ctx context.Context, limit int64) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.exited:
			return
		case <-ctx.Done():
			c.kill("cancelled")
			return
		case <-tick.C:
			if limit > 0 && sandbox.Over(c.cmd.Process.Pid, limit) {
				c.kill(fmt.Sprintf("over the memory limit of %.1f GiB", float64(limit)/(1<<30)))
				return
			}
		}
	}
}

func (c *Client) kill(reason string) {
	c.mu.Lock()
	if c.reason == "" {
		c.reason = reason
	}
	c.mu.Unlock()
	sandbox.End(c.cmd.Process.Pid)
}

// PID returns the process ID of the worker.
func (c *Client) PID() int { return c.cmd.Process.Pid }

// Alive reports whether the process is running.
func (c *Client) Alive() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// Close ends the process by closing its input, and kills it after two seconds.
func (c *Client) Close() {
	c.requests.Close()
	select {
	case <-c.exited:
	case <-time.After(2 * time.Second):
		c.kill("closed")
		<-c.exited
	}
	sandbox.EndLeft(c.cmd.Process.Pid)
	c.log.close()
	c.memory.close()
	c.shared.Close()
	c.ledger.Close()
}

// Finish closes the worker's input and waits for the process to exit. A non-zero exit status is an *exec.ExitError.
// When ctx ends, Finish kills the process and returns ctx's error.
func (c *Client) Finish(ctx context.Context) error {
	c.requests.Close()
	select {
	case <-c.exited:
		return c.state
	case <-ctx.Done():
		c.kill("time limit")
		<-c.exited
		return ctx.Err()
	}
}

// TakeLog returns the output of the process since the last call.
func (c *Client) TakeLog() string { return c.log.take() }

// TakeHazards returns the hazards reported by the device since the last call. They are unverified.
func (c *Client) TakeHazards() []device.Hazard {
	hazards := c.hazards
	c.hazards = nil
	return hazards
}

// TakeCounters returns what the device has counted since the last call. It is unverified.
func (c *Client) TakeCounters() []counters.Launch {
	all := c.counters
	c.counters = nil
	return all
}

// Called reports whether the solution was called. From then on it may have changed anything in the process.
func (c *Client) Called() bool { return c.called }

// Idle reports whether the call of the last Run or Check launched no kernel and copied and set no memory. It is
// unverified, and false if the device cannot tell.
func (c *Client) Idle() bool { return c.idle }

// Hosted reports whether that call copied or set memory, but launched no kernel. Idle's restrictions apply.
func (c *Client) Hosted() bool { return c.hosted }

// Open opens a device by kind and ordinal.
func (c *Client) Open(ctx context.Context, kind string, opts device.Options) (device.Info, error) {
	r, err := c.do(ctx, &request{Open: &openRequest{Kind: kind, Options: opts, Ledger: c.shared}})
	if err != nil {
		return device.Info{}, err
	}
	if r.Info == nil {
		return device.Info{}, c.nonsense()
	}
	r.Info.Kind = kind
	c.emulated = r.Info.Emulated
	c.memory.open = c.emulated && readable(c.PID())
	return *r.Info, nil
}

// Build builds sol on the opened device. If the solution does not build, the error is an *Error of kind Build.
func (c *Client) Build(ctx context.Context, def *trace.Definition, sol *trace.Solution) error {
	r, err := c.do(ctx, &request{Build: newBuild(def, sol)})
	c.cached, c.memory.passing = err == nil && r.Cached, sol.Spec.DestinationPassingStyle
	return err
}

// Unbuilt is the code of Build's error if files are missing that a Python worker needs, which may not write them to the
// cache itself. Prepare makes them in another worker.
const Unbuilt = "unbuilt"

// Prepare builds what Build's error called missing in the empty folder dir, without loading or running the solution.
// Only a Python worker supports it.
func (c *Client) Prepare(ctx context.Context, def *trace.Definition, sol *trace.Solution, missing, dir string) error {
	b := newBuild(def, sol)
	b.Only = &onlyBuild{missing, dir}
	_, err := c.do(ctx, &request{Build: b})
	return err
}

// BuildKey returns the part of a build's name that stands for sol.
func BuildKey(sol *trace.Solution) string { return cache.Key(string(sol.JSON(trace.Compact))) }

func newBuild(def *trace.Definition, sol *trace.Solution) *buildRequest {
	return &buildRequest{Definition: def.JSON(trace.Compact), Solution: sol.JSON(trace.Compact), Key: BuildKey(sol)}
}

// Cached reports whether the last Build compiled nothing.
func (c *Client) Cached() bool { return c.cached }

// Load replaces the worker's inputs and outputs.
func (c *Client) Load(ctx context.Context, w *Tensors) error {
	r, err := c.do(ctx, &request{Load: w})
	if err == nil && !c.memory.load(w, r.Addresses) {
		return c.nonsense()
	}
	return err
}

// Run calls the solution once on poisoned outputs and writes the outputs to out. If the solution returns its outputs
// or replaces passed ones, the result is not nil and describes them and their place in the file, which may have
// grown; it is unverified. Otherwise it is nil, and the outputs are placed as in Load.
func (c *Client) Run(ctx context.Context, out *os.File) ([]FileTensor, error) {
	r, err := c.do(ctx, &request{Run: &runRequest{Out: out}})
	if err != nil {
		return nil, err
	}
	return r.Outputs, nil
}

// Measure times the solution, poisoning the outputs before each call, and returns the calls whose outputs were
// stored, which are unverified. plan.Timing is called on another goroutine, which has ended when Measure returns. If
// plan requires a timer that cannot be used, the error is an *Error of kind Machine.
func (c *Client) Measure(ctx context.Context, plan JudgedPlan) (*device.Samples, []Judged, error) {
	s, judged, err := c.measure(ctx, plan)
	if !errors.Is(err, device.ErrTimer) {
		return s, judged, err
	}
	if plan.Timer == device.TimerCUPTI {
		return nil, nil, AsError(err, Machine)
	}
	note := err.Error()
	plan.Timer = device.TimerEvents
	if s, judged, err = c.measure(ctx, plan); err != nil {
		return nil, nil, err
	}
	s.TimerNote = note
	return s, judged, nil
}

// measure is Measure with one timer. The error wraps device.ErrTimer if CUPTI's records are unavailable or
// implausible.
func (c *Client) measure(ctx context.Context, plan JudgedPlan) (*device.Samples, []Judged, error) {
	r, err := c.exchange(ctx, &request{Measure: &plan}, plan.Tell)
	if err != nil {
		return nil, nil, err
	}
	if r.Recorded != nil && r.Recorded.Failed != "" {
		return nil, nil, activity.Unavailable(clip(r.Recorded.Failed))
	}
	if r.Samples == nil {
		return nil, nil, c.nonsense()
	}
	if r.Recorded != nil {
		err = r.Recorded.match(r.Samples, plan.Plan)
	}
	if call, ok := errors.AsType[*device.CallError](err); ok {
		return nil, nil, &Error{Kind: Call, Text: call.Error()}
	}
	if err == nil {
		err = credible(r.Samples.Trials, plan.Plan)
	}
	if err != nil {
		return nil, nil, err
	}
	return r.Samples, r.Judged, nil
}

// maxTiming is longer than any call, and short enough that the sum of all timings fits a Duration.
const maxTiming = 7 * 24 * time.Hour

// credible rejects timings that plan cannot produce: the solution runs in the process that reports them.
func credible(trials [][]time.Duration, plan device.Plan) error {
	if len(trials) == 0 || len(trials) > plan.Trials {
		return &Error{Kind: Call, Text: fmt.Sprintf("the worker returned timings of %d trials, want %d", len(trials),
			plan.Trials)}
	}
	for _, trial := range trials {
		if len(trial) == 0 || len(trial) > plan.Iterations {
			return &Error{Kind: Call, Text: fmt.Sprintf("the worker returned %d timings for %d calls", len(trial),
				plan.Iterations)}
		}
		for _, d := range trial {
			if d <= 0 || d > maxTiming {
				return &Error{Kind: Call, Text: fmt.Sprintf("the worker returned a timing of %v", d)}
			}
		}
	}
	return nil
}

// match computes the timings of s. The records are unverified.
func (r *recorded) match(s *device.Samples, plan device.Plan) error {
	if len(r.Windows) == 0 || len(r.Windows) > plan.Trials {
		return activity.Unavailable(fmt.Sprintf("the worker recorded %d trials, want %d", len(r.Windows), plan.Trials))
	}
	names := make([]activity.Name, len(r.Names))
	for i, n := range r.Names {
		names[i] = activity.Name{Symbol: n[0], Plain: n[1]}
	}
	launches, activities, err := activity.Decode(r.Records, names)
	if err != nil {
		return err
	}
	records, err := activity.New(launches, activities, r.Version, r.Lost)
	if err != nil {
		return err
	}
	trials := make([][]activity.Window, len(r.Windows))
	for i, trial := range r.Windows {
		if len(trial) == 0 || len(trial) > plan.Iterations {
			return activity.Unavailable(fmt.Sprintf("the worker recorded %d calls, want %d", len(trial), plan.Iterations))
		}
		for _, w := range trial {
			trials[i] = append(trials[i], activity.Window{Begin: w[0], End: w[1], Idle: w[2]})
		}
	}
	s.Timer = device.TimerCUPTI
	return records.Sample(s, activity.Calls{Trials: trials, Apart: plan.Apart, Thread: r.Thread, First: r.First})
}

func clip(s string) string { return s[:min(len(s), 4<<10)] }

// Check performs req on the loaded tensors. Its errors are like Run's.
func (c *Client) Check(ctx context.Context, req Check) (*Checked, error) {
	found := &Checked{}
	before := req.Move || req.Back
	if before {
		if err := c.findWrites(ctx, found); err != nil {
			return nil, err
		}
	}
	r, err := c.do(ctx, &request{Check: &req})
	if err != nil {
		return nil, err
	}
	if r.Checked == nil {
		return nil, c.nonsense()
	}
	found.Late, found.Outputs = r.Checked.Late, r.Checked.Outputs
	if !c.memory.change(req, r.Addresses) {
		return nil, c.nonsense()
	}
	if req.Out != nil || !before {
		err = c.findWrites(ctx, found)
	}
	return found, err
}

type buildsKey struct{}

// WithBuilds returns a context whose requests call f with true when a build of an emulated solution begins and with
// false when it ends. f runs on another goroutine, which has ended when the request returns. The reports are
// unverified.
func WithBuilds(ctx context.Context, f func(bool)) context.Context {
	return context.WithValue(ctx, buildsKey{}, f)
}

// Pause calls f between the reports of a build, if ctx is from WithBuilds: f is work of fisub, not of the solution.
func Pause(ctx context.Context, f func() error) error {
	if builds, ok := ctx.Value(buildsKey{}).(func(bool)); ok {
		builds(true)
		defer builds(false)
	}
	return f()
}

// do is exchange for a request without messages before its reply.
func (c *Client) do(ctx context.Context, req *request) (*reply, error) {
	return c.exchange(ctx, req, nil)
}

// exchange sends req and waits for its reply. It calls timing, on another goroutine, with each value sent before the
// reply. If ctx ends first, it kills the worker and returns ctx's error.
func (c *Client) exchange(ctx context.Context, req *request, timing func(bool)) (*reply, error) {
	c.called = c.called || req.calls()
	own := req.Open != nil || req.Load != nil && !c.called
	files := req.attach()
	line, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	type answer struct {
		reply *reply // nil if err is set or the line is not a reply
		err   error

		unsent bool // the kernel refused to send the request
	}
	got := make(chan answer, 1)
	go func() {
		if err := send(c.requests, append(line, '\n'), files); err != nil {
			got <- answer{err: err, unsent: !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET)}
			return
		}
		for told := 0; ; told++ {
			line, err := plain.ReadLine(c.replies, nil, maxReply)
			r := &reply{}
			switch {
			case errors.Is(err, plain.ErrTooLong) ||
				err == nil && (bytes.Count(line, []byte(",")) > maxParts || json.Unmarshal(line, r) != nil):
				got <- answer{}
			case err != nil:
				got <- answer{err: err}
			case r.Building != nil && c.emulated && told < maxTold:
				if builds, ok := ctx.Value(buildsKey{}).(func(bool)); ok {
					builds(*r.Building)
				}
				continue
			case r.Timing == nil && r.Building == nil:
				if req.calls() {
					c.idle, c.hosted = r.Idle, r.Hosted
				}
				got <- answer{reply: r}
			case timing == nil || r.Timing == nil || told == maxTold:
				got <- answer{}
			default:
				timing(*r.Timing)
				continue
			}
			return
		}
	}()
	defer c.show("")
	for waits := c.emulated && c.progress != nil; waits; {
		select {
		case a := <-got:
			got <- a
			waits = false
		case <-ctx.Done():
			waits = false
		case <-time.After(200 * time.Millisecond):
			c.takeLedger()
		}
	}
	select {
	case a := <-got:
		if a.unsent {
			c.kill("it did not get a request")
			return nil, &Error{Kind: Machine, Unsent: true, Text: "sending a request: " + a.err.Error()}
		}
		if a.err != nil {
			err := c.died()
			err.Own = own
			return nil, err
		}
		if a.reply == nil {
			return nil, c.nonsense()
		}
		c.takeLedger()
		fault := c.fault
		c.fault = nil
		if a.reply.Error != nil {
			return nil, a.reply.Error
		}
		if fault != nil && req.calls() { // the reply conceals it
			return nil, fault
		}
		return a.reply, nil
	case <-ctx.Done():
		if c.emulated && syscall.Kill(c.cmd.Process.Pid, syscall.SIGTERM) == nil {
			select { // it then logs the state of its threads
			case a := <-got:
				got <- a
			case <-time.After(2 * time.Second):
			}
		}
		c.kill("time limit")
		<-c.exited
		<-got
		return nil, ctx.Err()
	}
}

// show passes the progress of a launch on an emulated device on if it has changed: from a launch that takes long until
// it or the request ends, then "". The text is unverified.
func (c *Client) show(text string) {
	if c.progress != nil && text != c.shown {
		c.shown = text
		c.progress(text)
	}
}

// takeLedger adds the device's new hazards, keeps the first fault and shows progress.
func (c *Client) takeLedger() {
	lines, whole := c.ledger.Take()
	damaged := !whole
	for _, line := range lines[:min(len(lines), maxHazards)] {
		var h device.Hazard
		switch {
		case json.Unmarshal(line, &h) != nil:
			damaged = true
		case h.Kind == device.Counted:
			var l counters.Launch
			if json.Unmarshal([]byte(h.Text), &l) != nil || l.Check() != nil {
				damaged = true
				continue
			}
			c.counters = counters.Merge(c.counters, l)
		case h.Kind == device.Progress:
			c.show(clip(h.Text))
		case h.Kind != device.Faulted:
			h.Kind, h.Place, h.Text = clip(h.Kind), clip(h.Place), clip(h.Text)
			c.hazards = append(c.hazards, h)
		case c.fault == nil:
			c.fault = &Error{Kind: Call, Text: clip(h.Text)}
		}
	}
	if damaged {
		c.hazards = append(c.hazards, device.Hazard{Kind: "ended-checks",
			Text: "the virtual GPU's list of hazards is incomplete: the submission has changed it, or it is full"})
	}
}

// maxReply and maxParts limit a line from the worker in bytes and commas. CUPTI's records of a solution with very
// many kernels are the longest, and a list element may take 100 bytes of memory. maxTold limits the messages before
// the reply to one request, maxHazards the hazards in it.
const maxReply, maxParts, maxTold, maxHazards = 256 << 20, 4 << 20, 100, 100

// nonsense kills a process that sent an invalid reply.
func (c *Client) nonsense() error {
	c.kill("it wrote an invalid reply")
	return c.died()
}

// died waits for the end of a process that closed its replies and returns the reason.
func (c *Client) died() *Died {
	select {
	case <-c.exited:
	case <-time.After(2 * time.Second):
		c.kill("it closed the reply pipe")
		<-c.exited
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != "" {
		return &Died{Reason: c.reason}
	}
	if exit, ok := errors.AsType[*exec.ExitError](c.state); ok {
		return &Died{Reason: exit.ProcessState.String()}
	}
	if c.state != nil {
		return &Died{Reason: c.state.Error()}
	}
	return &Died{Reason: "exit status 0"}
}
