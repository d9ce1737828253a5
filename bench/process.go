package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
)

// A process is a solution in its own worker process on the run's device. Damage to the process or its CUDA context
// does not affect other solutions.
type process struct {
	// build is Shared.Build; nil if the worker builds the solution.
	build func(ctx context.Context, sol *trace.Solution, info device.Info) (cached bool, err error)

	def      *trace.Definition
	sol      *trace.Solution
	command  worker.Command
	python   bool // uses the Python worker
	kind     string
	opts     device.Options
	stamper  *stamper       // of the run; nil without timing
	rival    bool           // submitted: other solutions' timings must not depend on it
	client   *worker.Client // nil before the first one
	info     device.Info
	built    bool          // whether client has built the solution
	cached   bool          // nothing was compiled
	buildErr *worker.Error // of kind Build or Lacking: building again would fail too
	out      outFile       // outputs of the workload in flight
	temp     string        // folder for the temporary files of confined workers; "" before the first one
	untemp   func()        // removes it
}

// newProcess chooses the worker for sol without starting it. If sol needs a Python that is missing, the error is a
// *worker.Error. The process is never nil.
func newProcess(ctx context.Context, s *Shared, def *trace.Definition, sol *trace.Solution) (*process, error) {
	p := &process{def: def, sol: sol, command: s.Worker, kind: s.DeviceKind, opts: s.Device, build: s.Build}
	if s.Device.Prebuilt != "" {
		p.build = nil
	}
	if pyworker.Runs(&sol.Spec) {
		command, err := pyworker.Command(ctx, s.Device.CacheDir)
		if err != nil {
			return p, err
		}
		p.command.Args, p.python = command.Args, true
		if s.DeviceKind == "emu" && pyworker.UsesTriton(sol) {
			triton, err := pyworker.FindTriton(ctx, s.Device.CacheDir)
			if err != nil {
				return p, err
			}
			p.command.Env = append(slices.Clone(p.command.Env), triton.Env()...)
		}
	}
	return p, nil
}

// start starts a worker, which lives until run ends, and opens the device.
func (p *process) start(run, ctx context.Context) error {
	p.end()
	command, err := p.confined()
	if err != nil {
		return err
	}
	client, err := worker.Start(run, command)
	if err != nil {
		return err
	}
	p.client, p.built = client, false
	p.stamper.join(client, p.rival)
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute) // importing torch from a cold disk takes a while
	defer cancel()
	p.info, err = client.Open(limit, p.kind, p.opts)
	return err
}

// confined returns the command of a worker that can write only its temporary files and its own compiler caches, and
// no files that another process trusts.
func (p *process) confined() (worker.Command, error) {
	c := p.command
	if c.Sandbox == nil {
		return c, nil
	}
	if p.temp == "" {
		var err error
		if p.temp, p.untemp, err = cache.TempDir("fisub-worker"); err != nil {
			return c, err
		}
	}
	own := filepath.Join(p.opts.CacheDir, "python", cache.Key(string(p.sol.JSON(trace.Compact))))
	if !sandbox.State().Files() { // other submissions may have written there
		own = filepath.Join(p.temp, "cache")
	}
	return p.within(p.temp, own), nil
}

// within returns the command of a worker that may write to its temporary folder, its caches and more.
func (p *process) within(temp, own string, more ...string) worker.Command {
	c := p.command
	c.Env = slices.Concat(c.Env, []string{"TMPDIR=" + temp}, pyworker.Caches(own))
	if p.python {
		// Inductor's processes for compilers open the GPU, which no process but the worker shall do.
		c.Env = append(c.Env, pyworker.Confined+"=1", "TORCHINDUCTOR_COMPILE_THREADS=1")
	}
	if c.Sandbox == nil {
		return c
	}
	box := *c.Sandbox
	box.Write = slices.Concat(box.Write, []string{temp, own}, more)
	if box.Tools {
		c.Env = append(c.Env, "HOME="+temp) // tools copy files there
	}
	c.Sandbox = &box
	return c
}

// compiler starts a worker that compiles into the folder dir and runs no submitted code.
func (p *process) compiler(run, ctx context.Context, temp, dir string) (*worker.Client, error) {
	client, err := worker.Start(run, p.within(temp, temp, dir))
	if err != nil {
		return nil, err
	}
	if _, err := client.Open(ctx, p.kind, p.opts); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

func (p *process) running() bool { return p.client != nil && p.client.Alive() }

// buildTimeout is the time limit of a build.
const buildTimeout = 20 * time.Minute

var errSlowBuild = &worker.Error{Kind: worker.Build, Text: fmt.Sprintf("build timeout after %v", buildTimeout)}

// ready ensures that a worker is running with the solution built; see start for its lifetime. A fault of the
// solution, including a build longer than buildTimeout, is a *worker.Error of kind Build or a *worker.Died. Errors of
// kind Build and Lacking are kept.
func (p *process) ready(run, ctx context.Context) error {
	if err := p.sol.CheckNames(); err != nil && p.buildErr == nil {
		p.buildErr = worker.AsError(err, worker.Lacking)
	}
	if p.buildErr != nil {
		return p.buildErr
	}
	if !p.running() {
		if err := p.start(run, ctx); err != nil {
			return err
		}
	}
	if p.built {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	err := p.make(run, limit)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = errSlowBuild
	}
	if we, ok := errors.AsType[*worker.Error](err); ok && (we.Kind == worker.Build || we.Kind == worker.Lacking) {
		p.buildErr = we
	}
	p.built = err == nil
	return err
}

// make builds the solution and loads it into the worker.
func (p *process) make(run, ctx context.Context) (err error) {
	if p.python {
		temp, remove, err := cache.TempDir("fisub-worker")
		if err != nil {
			return err
		}
		defer remove()
		return pyworker.Build(ctx, p.client, p.opts.CacheDir, p.def, p.sol,
			func(dir string) (*worker.Client, error) { return p.compiler(run, ctx, temp, dir) })
	}
	if p.build != nil {
		if p.cached, err = p.build(ctx, p.sol, p.info); err != nil {
			return err
		}
	}
	err = p.client.Build(ctx, p.def, p.sol)
	if p.build == nil {
		p.cached = p.client.Cached()
	}
	return err
}

// load gives the worker the inputs. An output is an input only if the process's definition says so.
func (p *process) load(ctx context.Context, in *worker.Tensors) error {
	load := *in
	if p.info.Emulated && !p.python {
		load.Guard = 0 // the virtual GPU has its own, and reports the place
	}
	load.Outputs = slices.Clone(load.Outputs)
	for i, name := range p.def.Outputs.Keys() {
		if _, ok := p.def.InPlace(name); !ok {
			load.Outputs[i].InPlace = nil
		}
	}
	return p.client.Load(ctx, &load)
}

// machineError returns the error that ends the whole run.
func (p *process) machineError(err error) error {
	if we, ok := errors.AsType[*worker.Error](err); ok && we.Kind == worker.Machine {
		return &DeviceError{we}
	}
	if _, died := errors.AsType[*worker.Died](err); died {
		return withLog(err, p.log())
	}
	return err
}

// log takes the worker's output.
func (p *process) log() string {
	if p.client == nil {
		return ""
	}
	return p.client.TakeLog()
}

// hazards takes the hazards reported by the device.
func (p *process) hazards() []device.Hazard {
	if p.client == nil {
		return nil
	}
	return p.client.TakeHazards()
}

func (p *process) end() {
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
}

// stop ends the process and removes its files. It may be called again.
func (p *process) stop() {
	p.end()
	p.out.close()
	if p.temp != "" {
		p.untemp()
		p.temp = ""
	}
}
