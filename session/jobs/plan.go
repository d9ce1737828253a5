// Package jobs decides about remote runs: what runs where and what is sent there, which runs there are, which jobs
// nobody waits for, and what the logs of jobs have that was not read yet. package dispatch does what is decided.
package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fisub/bench"
	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/vgpu"
	"fisub/explain"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/remote/bundle"
	"fisub/remote/dispatch"
	"fisub/remote/providers"
	"fisub/session"
)

// Options say where a run goes. What is zero is as the tables say.
type Options struct {
	GPU    string // "b200"; "none" is the emulator
	Shards int    // 0 is one for each place
	Race   bool
	Busy   bool
	Strict bool
	Limit  time.Duration // of each job
}

// defaultLimit is that of a job, where neither Options nor the table has one.
const defaultLimit = 30 * time.Minute

// Chosen gives the names of tables in on, "lab,cloud"; where that is "" those of all tables: of the only one, unless
// all is set.
func Chosen(tables map[string]*config.Table, on string, all bool) ([]string, error) {
	if on != "" {
		names := strings.Split(on, ",")
		for i, name := range names {
			if names[i] = strings.TrimSpace(name); names[i] == "" || slices.Contains(names[:i], names[i]) {
				return nil, usage.Errorf("write --on lab,cloud", "--on: %q", on)
			}
		}
		return names, nil
	}
	names := slices.Sorted(maps.Keys(tables))
	switch {
	case len(names) == 0:
		return nil, usage.Errorf("docs/remote.md shows one; --on loopback runs on this machine",
			"no table [remote.NAME] in the config")
	case len(names) > 1 && !all:
		return nil, usage.Errorf("add --on "+names[0], "which of the tables %s?", strings.Join(names, ", "))
	}
	return names, nil
}

// An Order is a remote run that has not begun.
type Order struct {
	Plan     *dispatch.Plan
	Spec     bundle.Spec
	Baseline *bench.Baseline
	solution *trace.Solution
}

// NewOrder decides what of s runs where: on the tables of those names, whose providers are open. It fills in what u
// leaves open.
func NewOrder(ctx context.Context, p *session.Project, s *session.Submission, u *session.Setup, how session.Options,
	o Options,
	names []string, open providers.Set, commons map[string]providers.Terms, log session.Log) (*Order, error) {
	if o.Shards > 0 && o.Race {
		return nil, usage.Errorf("leave out one of them", "--shards and --race: a race sends all workloads to each place")
	}
	gpu, limit, err := common(o, names, commons)
	if err != nil {
		return nil, err
	}
	plan := &dispatch.Plan{Version: 1, GPU: gpu, Limit: limit, Busy: o.Busy, Race: o.Race, Strict: o.Strict}
	u.Kind = "cuda"
	if plan.GPU == "none" {
		plan.GPU, u.Kind = "", "emu"
	}
	if err := u.Timed(how.MaxTime); err != nil {
		return nil, err
	}
	if u.Baseline, err = p.FindBaseline(s, how.Baseline, nil, u.Kind, log); err != nil {
		return nil, err
	}
	spec := bundle.Spec{Set: u.Set, Args: []string{"--profile", u.Profile.Name, "--timer", u.Timer, "--timeout",
		u.Profile.Timeout.String()}}
	if u.Profile.Target > 0 && u.Kind == "cuda" {
		spec.Args = append(spec.Args, "--max-time", u.Profile.MaxTime.String())
	}
	spec.Args = append(spec.Args, "--device", u.Kind)
	if u.Seed != 0 {
		spec.Args = append(spec.Args, "--seed", fmt.Sprint(u.Seed))
	}
	if !s.Data.Embedded() {
		spec.Dataset = s.Data.Root()
	}
	switch {
	case u.Kind == "cuda":
		spec.Arch, err = hostArch(s, u, plan.GPU, how.Arch, log)
	case s.Solution.Spec.Compiled():
		spec.Arch = vgpu.Arch
		opts := device.Options{}
		if opts.CacheDir, err = cache.Root(); err == nil {
			_, err = session.Compiler(ctx, u.Kind, &opts, s.Solution, log)
		}
	}
	if err != nil {
		return nil, err
	}
	plan.Run = *u.Describe(ctx, s)
	if plan.Places = places(o, len(u.Workloads), names, open, commons); len(plan.Places) == 0 {
		return nil, usage.Errorf("", "the tables name no place to run on")
	}
	return &Order{Plan: plan, Spec: spec, Baseline: u.Baseline, solution: s.Solution}, nil
}

// Show tells what would run where, what is sent, of which size in bytes, and what it may cost.
func (o *Order) Show(log session.Log, size int64) {
	p, spec := o.Plan, o.Spec
	log.Note("plan       %s, %s, profile %s", p.Run.Definition, p.Run.Selection(), p.Run.Profile.Name)
	if b := p.Run.Baseline; b != nil {
		log.Note("baseline   %s", plain.Line(b.Name))
	}
	var where []string
	for _, place := range p.Places[:p.Used()] {
		where = append(where, place.String())
	}
	how := plain.Count(len(where), "job")
	if p.Race {
		how += " with all workloads each, the first that begins stays"
	}
	log.Note("where      %s (%s)", strings.Join(where, ", "), how)
	kernel := "the solution's sources"
	switch {
	case p.GPU == "" && spec.Arch != "":
		kernel = "kernels for the virtual GPU"
	case spec.Arch != "":
		kernel = "kernels for " + spec.Arch
	}
	log.Note("bundle     %.1f MB: fisub, %s; what a host has already is not sent", float64(size)/1e6, kernel)
	log.Note("limit      %v for each job, kept on the host", p.Limit)
	most, missing := p.MostCost()
	switch {
	case most == 0:
		log.Note("cost       not known: no price in the table")
		return
	case len(missing) > 0:
		log.Note("cost       more than %s: no %s in the config", Dollars(most), strings.Join(missing, ", "))
	default:
		log.Note("cost       at most %s; at most %s with further tries where hosts are lost", Dollars(most),
			Dollars(p.Cap()))
	}
	for _, line := range p.Parts() {
		log.Note("           %s", plain.Line(line))
	}
}

// Again makes a plan whose jobs are over one that runs what has no verdict, on the tables of those names, or where
// there are none on the places that it has. What o leaves open stays.
func Again(plan *dispatch.Plan, o Options, lacking int, names []string, open providers.Set,
	commons map[string]providers.Terms) error {
	for _, name := range names {
		if gpu := strings.ToLower(commons[name].GPU); gpu != "" && gpu != cmp.Or(plan.GPU, "none") {
			return usage.Errorf("start a new run there", "--resume: the run is for GPU %s, remote.%s has %s",
				cmp.Or(plan.GPU, "none"), name, gpu)
		}
	}
	if len(names) > 0 {
		plan.Places = places(o, lacking, names, open, commons)
	}
	plan.Limit = cmp.Or(o.Limit, plan.Limit)
	plan.Busy, plan.Strict = plan.Busy || o.Busy, plan.Strict || o.Strict
	plan.Before, plan.Race, plan.Done = len(plan.Jobs), false, false
	return nil
}

// common gives the GPU and the limit of all jobs: those of the options, else of the tables, of which the shortest limit
// counts.
func common(o Options, names []string, commons map[string]providers.Terms) (gpu string, limit time.Duration,
	err error) {
	for _, name := range names {
		c := commons[name]
		if o.GPU == "" && gpu != "" && c.GPU != "" && c.GPU != gpu {
			return "", 0, usage.Errorf("add --gpu", "the tables name several GPUs: %s and %s", gpu, c.GPU)
		}
		gpu = cmp.Or(gpu, c.GPU)
		if c.Limit > 0 && (limit == 0 || c.Limit < limit) {
			limit = c.Limit
		}
	}
	return strings.ToLower(cmp.Or(o.GPU, gpu)), cmp.Or(o.Limit, limit, defaultLimit), nil
}

// places are those of the tables that at most so many workloads can use.
func places(o Options, workloads int, names []string, open providers.Set,
	commons map[string]providers.Terms) (all []dispatch.Place) {
	for _, name := range names {
		n := workloads // of a further table too: they are needed where the first has trouble
		switch {
		case o.Race:
			n = 1
		case o.Shards > 0:
			n = max(0, o.Shards-len(all))
		}
		for _, place := range open[name].Places(n) {
			all = append(all, dispatch.Place{Table: name, Price: commons[name].Price, Bill: commons[name].Bill,
				Place: place})
		}
	}
	return all
}

// hostArch gives what is compiled here for a host's GPU: "" where nothing has to be, and nothing can be.
func hostArch(s *session.Submission, u *session.Setup, gpu, named string, log session.Log) (string, error) {
	arch, known := bundle.Arch(gpu)
	switch {
	case gpu == "":
		return "", usage.Errorf("add --gpu b200, or gpu = \"b200\" to the table; --gpu none runs on the emulator",
			"no GPU named")
	case !known:
		return "", usage.Errorf("one of "+strings.Join(bundle.GPUs(), ", ")+", none", "--gpu: unknown GPU %q", gpu)
	}
	root, err := cache.Root()
	if err != nil {
		return "", err
	}
	if err := bundle.Ready(root, cuda.Built); err != nil {
		if s.Solution.Spec.Compiled() || u.Baseline != nil && u.Baseline.Solution.Spec.Compiled() {
			return "", err
		}
		text, hint := explain.Error(err)
		log.Warn("no share of the copy bandwidth, unless the hosts have a compiler: "+text, hint)
		return "", nil
	}
	return cmp.Or(named, arch), nil
}

// The packed solution of a remote run, in its run folder, and the folder of its packed baseline there.
const (
	solutionName = "solution.json"
	baselineDir  = "baseline"
)

// Keep writes the packed solutions into the run folder: a job that is submitted later needs them too.
func (o *Order) Keep(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if base := o.Baseline; base != nil {
		o.Spec.Baseline = strings.TrimSuffix(filepath.Base(base.Name), ".json") + ".json"
		within(folder, &o.Spec)
		if err := os.MkdirAll(filepath.Dir(o.Spec.Baseline), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(o.Spec.Baseline, base.Solution.JSON(trace.Compact), 0o644); err != nil {
			return err
		}
	}
	within(folder, &o.Spec)
	return os.WriteFile(o.Spec.Solution, o.solution.JSON(trace.Compact), 0o644)
}

// within makes the paths of spec those in the run folder, wherever that is seen from here.
func within(folder string, spec *bundle.Spec) {
	spec.Solution = filepath.Join(folder, solutionName)
	if spec.Baseline != "" {
		spec.Baseline = filepath.Join(folder, baselineDir, filepath.Base(spec.Baseline))
	}
}

// NewBundle makes the files that all jobs of the run in folder share.
func NewBundle(ctx context.Context, folder string, spec bundle.Spec) (*bundle.Bundle, error) {
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var beside []*trace.Solution
	if spec.Arch != "" && spec.Arch != vgpu.Arch {
		beside = append(beside, bench.RooflineSolution())
	}
	return bundle.New(ctx, root, filepath.Join(folder, "remote", "files"), self, spec, beside...)
}

// Asking runs do, which prepares a run, and asks the hosts meanwhile, whose connections then stand: where they say that
// a job could run on none of them, do is ended with that.
func Asking(ctx context.Context, open providers.Set, do func(context.Context) error) error {
	doing, stop := context.WithCancelCause(ctx)
	asked, enough := context.WithCancel(ctx)
	var none error
	var group sync.WaitGroup
	group.Go(func() {
		if err := nowhere(asked, open); err != nil && asked.Err() == nil {
			none = err
			stop(err)
		}
	})
	err := do(doing)
	enough()
	group.Wait()
	stop(nil)
	if err != nil && ctx.Err() == nil {
		err = cmp.Or(none, err)
	}
	return err
}

// nowhere tells why a job could run on none of the hosts; nil where it could on one, or where nobody knows.
func nowhere(ctx context.Context, open providers.Set) error {
	var mu sync.Mutex
	var faults []error
	could := false
	var group sync.WaitGroup
	for _, p := range open {
		group.Go(func() {
			hosts, err := p.Check(ctx)
			mu.Lock()
			defer mu.Unlock()
			could = could || err != nil
			for _, h := range hosts {
				could = could || h.Err == nil
				faults = append(faults, h.Err)
			}
		})
	}
	group.Wait()
	if could {
		return nil
	}
	return errors.Join(faults...)
}

// Affordable refuses a plan whose first jobs may cost more than its MaxCost.
func Affordable(plan *dispatch.Plan) error {
	cost, missing := plan.MostCost()
	if len(missing) > 0 {
		return usage.Errorf("set "+strings.Join(missing, " and ")+", in USD an hour",
			"--max-cost: not every price is known")
	}
	if cost > plan.MaxCost {
		return usage.Errorf("lower --limit-time or --shards, or raise the cap",
			"--max-cost: the run may cost %s, more than %s",
			Dollars(cost), Dollars(plan.MaxCost))
	}
	return nil
}

// Dollars gives an amount of money.
func Dollars(usd float64) string { return fmt.Sprintf("$%.2f", usd) }
