package bench

import (
	"context"
	"errors"
	"time"

	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/trace"
)

// A contender is a solution in a worker process of its own, on the device of the run: what it does to its process and its
// context, no other contender feels.
type contender struct {
	def      *trace.Definition
	sol      *trace.Solution
	command  worker.Command
	python   bool // it runs in the Python worker
	kind     string
	opts     device.Options
	gauge    *gauge         // of the run; nil where nothing is timed
	client   *worker.Client // nil before the first one
	info     device.Info
	tried    bool          // it was built, or could not be
	buildErr *worker.Error // of kind Build: it would fail again
	out      outFile       // outputs of the workload in flight
	left     time.Duration // of the time limit for the workload in flight
}

// newContender chooses the worker for sol. Where that takes a Python that is missing, the error is a *worker.Error.
func newContender(ctx context.Context, c *Config, def *trace.Definition, sol *trace.Solution) (contender, error) {
	t := contender{def: def, sol: sol, command: c.Worker, kind: c.DeviceKind, opts: c.Device}
	if pyworker.Runs(&sol.Spec) {
		command, err := pyworker.Command(ctx, c.Device.CacheDir)
		if err != nil {
			return t, err
		}
		t.command.Args, t.python = command.Args, true
	}
	return t, nil
}

// start starts a worker, which lives as long as run does, and opens the device.
func (c *contender) start(run, ctx context.Context) error {
	client, err := worker.Start(run, c.command)
	if err != nil {
		return err
	}
	c.client = client
	c.gauge.join(client)
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute) // importing torch from a cold disk takes a while
	defer cancel()
	c.info, err = client.Open(limit, c.kind, c.opts)
	return err
}

// running tells whether there is a worker, and puts one away that has ended.
func (c *contender) running() bool {
	if c.client != nil && !c.client.Alive() {
		c.client.Close()
		c.client = nil
	}
	return c.client != nil
}

// build builds the solution. A fault of it is kept.
func (c *contender) build(ctx context.Context) error {
	err := c.client.Build(ctx, c.def, c.sol)
	var we *worker.Error
	if errors.As(err, &we) && we.Kind == worker.Build {
		c.buildErr = we
	}
	c.tried = c.tried || err == nil || c.buildErr != nil
	return err
}

// load gives the worker the inputs of t.
func (c *contender) load(ctx context.Context, t *trial) error {
	load := *t.load
	if c.info.Emulated && !c.python {
		load.Guard = 0 // the emulator has its own, and names the place
	}
	return c.client.Load(ctx, &load)
}

// within calls f with what is left of the time limit, and takes what f needs off it. It is the time limit of each contender
// alone that runs while it is its turn.
func (c *contender) within(ctx context.Context, f func(context.Context) error) error {
	begun := time.Now()
	limit, cancel := context.WithTimeout(ctx, c.left)
	defer cancel()
	err := f(limit)
	c.left -= time.Since(begun)
	return err
}

// log takes what the worker printed.
func (c *contender) log() string {
	if c.client == nil {
		return ""
	}
	return c.client.TakeLog()
}

func (c *contender) stop() {
	if c.client != nil {
		c.client.Close()
		c.client = nil
	}
	c.out.close()
}
