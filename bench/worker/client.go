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
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
)

// A Command says how to start a worker.
type Command struct {
	Args        []string         // program and arguments of a process that calls Serve on descriptors 3 and 4
	Env         []string         // added to the environment
	MemoryLimit int64            // resident bytes of the worker and its children; 0 is no limit
	Sandbox     *sandbox.Sandbox // nil starts the worker without one
}

// A Client is the parent's end of one worker process. It is used from one goroutine.
type Client struct {
	cmd      *exec.Cmd
	requests *net.UnixConn
	replies  *bufio.Reader
	log      *capture
	exited   chan struct{} // closed when the process has been waited for
	state    error         // of Wait; valid after exited
	cached   bool
	emulated bool // the device that was opened
	hazards  []device.Hazard
	idle     bool // the call of the last request
	called   bool // the solution

	mu     sync.Mutex
	reason string // why the process was killed, when the parent did it
}

// Start starts a worker. The caller must Close it. Cancelling ctx kills the worker.
func Start(ctx context.Context, c Command) (*Client, error) {
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
	cl := &Client{requests: reqW, replies: bufio.NewReaderSize(repR, 1<<16), log: printed, exited: make(chan struct{})}
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

// watch kills the process when ctx ends or its memory is over the limit.
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
			if limit > 0 && sandbox.Memory(c.cmd.Process.Pid) > limit {
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

// PID is the number of the worker process.
func (c *Client) PID() int { return c.cmd.Process.Pid }

// Alive tells whether the process still runs.
func (c *Client) Alive() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// Close ends the process: first by closing its input, after two seconds by force.
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
}

// Finish closes the worker's input and waits until ctx ends for the process to end by itself; the error is its exit
// status, as an *exec.ExitError, where that is not 0.
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

// TakeLog returns what the process printed since the last call.
func (c *Client) TakeLog() string { return c.log.take() }

// TakeHazards returns the hazards that the device has noticed since the last call: the worker's word.
func (c *Client) TakeHazards() []device.Hazard {
	hazards := c.hazards
	c.hazards = nil
	return hazards
}

// Called reports whether the solution was called: from then on the process is as it pleases the solution.
func (c *Client) Called() bool { return c.called }

// Idle reports whether the call of the last Run or Check launched no kernel and copied and set no memory: the worker's
// word. It is false if the device does not tell.
func (c *Client) Idle() bool { return c.idle }

// Open opens a device by kind and ordinal.
func (c *Client) Open(ctx context.Context, kind string, opts device.Options) (device.Info, error) {
	r, err := c.do(ctx, &request{Open: &openRequest{kind, opts}})
	if err != nil {
		return device.Info{}, err
	}
	if r.Info == nil {
		return device.Info{}, c.nonsense()
	}
	r.Info.Kind = kind
	c.emulated = r.Info.Emulated
	return *r.Info, nil
}

// Build builds sol on the opened device; a fault of the solution is an *Error of kind Build.
func (c *Client) Build(ctx context.Context, def *trace.Definition, sol *trace.Solution) error {
	r, err := c.do(ctx, &request{Build: &buildRequest{def.JSON(trace.Compact), sol.JSON(trace.Compact), false}})
	c.cached = err == nil && r.Cached
	return err
}

// Unbuilt is the code of the error of Build if a Python worker may not write what it needs to the cache. Prepare, in
// another worker that may, builds it.
const Unbuilt = "unbuilt"

// Prepare builds what Build needs, and neither loads nor runs any of the solution. Only a Python worker does it.
func (c *Client) Prepare(ctx context.Context, def *trace.Definition, sol *trace.Solution) error {
	_, err := c.do(ctx, &request{Build: &buildRequest{def.JSON(trace.Compact), sol.JSON(trace.Compact), true}})
	return err
}

// Cached tells whether the last Build had nothing to compile.
func (c *Client) Cached() bool { return c.cached }

// Load gives the worker its inputs and outputs, in place of those before.
func (c *Client) Load(ctx context.Context, w *Workload) error {
	_, err := c.do(ctx, &request{Load: w})
	return err
}

// Run calls the solution once, on poisoned outputs, and writes the outputs into the file out. Where the solution
// returns its outputs, or has made something else of those that were passed, the result says what they are and where in
// the file, which may have grown: it is the worker's word, to be checked, and not nil. Else the outputs are those of
// Load and the result is nil.
func (c *Client) Run(ctx context.Context, out *os.File) ([]FileTensor, error) {
	r, err := c.do(ctx, &request{Run: &runRequest{Out: out}})
	if err != nil {
		return nil, err
	}
	return r.Outputs, nil
}

// Measure times the solution, with outputs that are poisoned before each call, and returns the calls whose outputs were
// taken: the worker's word. plan.Timing is called on a goroutine that has ended when Measure returns. A timer that plan
// insists on and that cannot be used is an Error of kind Machine.
func (c *Client) Measure(ctx context.Context, plan Plan) (*device.Samples, []Judged, error) {
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

// measure is Measure of one timer. The error wraps device.ErrTimer where CUPTI's records are not to be had or believed.
func (c *Client) measure(ctx context.Context, plan Plan) (*device.Samples, []Judged, error) {
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
	var call *device.CallError
	if errors.As(err, &call) {
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

// maxTiming is longer than any call: sums of all timings are durations.
const maxTiming = 7 * 24 * time.Hour

// credible refuses timings that no measurement of plan gives: they are the word of a process that the solution shares.
func credible(trials [][]time.Duration, plan device.Plan) error {
	if len(trials) == 0 || len(trials) > plan.Trials {
		return &Error{Kind: Call, Text: fmt.Sprintf("the worker tells the timings of %d trials of %d", len(trials),
			plan.Trials)}
	}
	for _, trial := range trials {
		if len(trial) == 0 || len(trial) > plan.Iterations {
			return &Error{Kind: Call, Text: fmt.Sprintf("the worker tells %d timings of %d calls", len(trial), plan.Iterations)}
		}
		for _, d := range trial {
			if d <= 0 || d > maxTiming {
				return &Error{Kind: Call, Text: fmt.Sprintf("the worker tells a timing of %v", d)}
			}
		}
	}
	return nil
}

// match makes the timings of s. The records are the worker's word.
func (r *recorded) match(s *device.Samples, plan device.Plan) error {
	if len(r.Windows) == 0 || len(r.Windows) > plan.Trials {
		return activity.Unavailable(fmt.Sprintf("the worker recorded %d trials of %d", len(r.Windows), plan.Trials))
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
	s.Timer, s.Trials = device.TimerCUPTI, nil
	for i, trial := range r.Windows {
		if len(trial) == 0 || len(trial) > plan.Iterations {
			return activity.Unavailable(fmt.Sprintf("the worker recorded %d calls of %d", len(trial), plan.Iterations))
		}
		windows := make([]activity.Window, len(trial))
		for j, w := range trial {
			windows[j] = activity.Window{Begin: w[0], End: w[1]}
		}
		times, kernels, err := records.Match(windows)
		if err != nil {
			return err
		}
		if i == 0 {
			s.Kernels = kernels
		}
		s.Trials = append(s.Trials, times)
	}
	return nil
}

// clip bounds a text of the worker's.
func clip(s string) string { return s[:min(len(s), 4<<10)] }

// Check makes the look that req asks for at what was loaded. Errors are those of Run.
func (c *Client) Check(ctx context.Context, req Check) (*Checked, error) {
	r, err := c.do(ctx, &request{Check: &req})
	if err != nil {
		return nil, err
	}
	if r.Checked == nil {
		return nil, c.nonsense()
	}
	return r.Checked, nil
}

type buildsKey struct{}

// WithBuilds returns a context whose requests call f with true when a build of an emulated solution begins, and with
// false when it ends. Calls are on another goroutine, which has ended when the request has. They are the worker's word.
func WithBuilds(ctx context.Context, f func(bool)) context.Context {
	return context.WithValue(ctx, buildsKey{}, f)
}

// do is exchange for a request that nothing is told about before its reply.
func (c *Client) do(ctx context.Context, req *request) (*reply, error) {
	return c.exchange(ctx, req, nil)
}

// exchange sends req and waits for its reply; timing is called, on another goroutine, with what is told before it.
// When ctx ends first, the worker is killed and ctx's error returned.
func (c *Client) exchange(ctx context.Context, req *request, timing func(bool)) (*reply, error) {
	c.called = c.called || req.calls()
	own := req.Open != nil || req.Load != nil && !c.called
	files := req.attach()
	line, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	type answer struct {
		reply *reply // nil where err is not, and where what came is no reply
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		if err := send(c.requests, append(line, '\n'), files); err != nil {
			got <- answer{err: err}
			return
		}
		for told := 0; ; told++ {
			line, err := plain.ReadLine(c.replies, maxReply)
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
				for _, h := range r.Hazards[:min(len(r.Hazards), maxHazards)] {
					c.hazards = append(c.hazards, device.Hazard{Kind: clip(h.Kind), Place: clip(h.Place), Text: clip(h.Text)})
				}
				c.idle = r.Idle
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
	select {
	case a := <-got:
		if a.err != nil {
			err := c.died()
			err.Own = own
			return nil, err
		}
		if a.reply == nil {
			return nil, c.nonsense()
		}
		if a.reply.Error != nil {
			return nil, a.reply.Error
		}
		return a.reply, nil
	case <-ctx.Done():
		if c.emulated && syscall.Kill(c.cmd.Process.Pid, syscall.SIGTERM) == nil {
			select { // it tells in the log where its threads are
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

// maxReply and maxParts bound a line of the worker's in bytes and commas: the longest are CUPTI's records of a solution
// with very many kernels, and a part of a list may take 100 bytes of memory. maxTold bounds what it may tell before the
// reply to one request, maxHazards the hazards of one.
const maxReply, maxParts, maxTold, maxHazards = 256 << 20, 4 << 20, 100, 100

// nonsense ends a process whose reply is none.
func (c *Client) nonsense() error {
	c.kill("it wrote what is not a reply")
	return c.died()
}

// died waits for the end of a process that closed its replies, and says how it ended.
func (c *Client) died() *Died {
	select {
	case <-c.exited:
	case <-time.After(2 * time.Second):
		c.kill("it closed its replies")
		<-c.exited
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != "" {
		return &Died{Reason: c.reason}
	}
	var exit *exec.ExitError
	if errors.As(c.state, &exit) {
		return &Died{Reason: exit.ProcessState.String()}
	}
	if c.state != nil {
		return &Died{Reason: c.state.Error()}
	}
	return &Died{Reason: "exit status 0"}
}
