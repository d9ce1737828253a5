package app

import (
	"cmp"
	"context"
	"encoding/json"
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
	"fisub/bench/bound"
	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/vgpu"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/machine"
	"fisub/project/setup"
	"fisub/remote"
	"fisub/remote/bundle"
	"fisub/remote/dispatch"
	"fisub/remote/providers"
	"fisub/remote/slurm"
	"fisub/remote/ssh"
	"fisub/runs"
)

// hostOptions choose the hosts of a run and its limits. Zero values use the settings of the tables.
type hostOptions struct {
	dispatch.Terms     // with "none" for the virtual GPU
	Shards         int // 0: one for each place
}

// defaultLimit is a job's time limit if neither the options nor the table set one.
const defaultLimit = 30 * time.Minute

// tablesOf splits a list of tables such as "lab,cloud". If on is "" it returns all tables; unless all is set, there
// must then be only one. If the config has no tables, that one is the service that this machine is set up to use.
func tablesOf(tables map[string]*config.Table, on string, all bool) ([]string, error) {
	if on != "" {
		names := strings.Split(on, ",")
		for i, name := range names {
			name = strings.TrimSpace(name)
			switch names[i] = name; {
			case name == "":
				return nil, usage.Errorf("such as --on lab,cloud", "--on %q: empty table name", on)
			case slices.Contains(names[:i], name):
				return nil, usage.Errorf("such as --on lab,cloud", "--on %q: duplicate table %s", on, name)
			}
		}
		return names, nil
	}
	names := slices.Sorted(maps.Keys(tables))
	switch {
	case len(names) == 0:
		return unconfigured(all)
	case len(names) > 1 && !all:
		return nil, usage.Errorf("add --on "+names[0], "several tables in the config: %s", strings.Join(names, ", "))
	}
	return names, nil
}

const hintLine = "\n      " // between the lines of a hint

// unconfigured returns the service to use if the config has no tables; with all, it returns all available services. If
// no service is available, or several without all, the error lists the commands to choose from.
func unconfigured(all bool) ([]string, error) {
	found := providers.Unconfigured()
	switch {
	case len(found) == 1, len(found) > 1 && all:
		return found, nil
	case len(found) == 0:
		lines := []string{"fisub remote --gpu b200 --host HOST, if `ssh HOST` can log in"}
		if known := ssh.Known(); len(known) > 0 {
			lines[0] = fmt.Sprintf("fisub remote --gpu b200 --host %s; ~/.ssh/config has %s", known[0],
				plain.List(known, "and"))
		}
		lacks := "and this machine has no Modal token and no sbatch"
		if slurm.Installed() {
			lacks = "this machine has no Modal token, and its Slurm commands find no cluster"
		}
		return nil, usage.Errorf(strings.Join(append(lines,
			"on Modal: run `modal token new` once, then fisub remote --gpu b200",
			"on a Slurm cluster: run it on a login node, or see fisub help remote",
			"on this machine's virtual GPU: fisub remote --gpu none --on loopback"), hintLine),
			"no host to run on: the config has no table [remote.NAME], %s", lacks)
	}
	var lines []string
	for _, name := range found {
		lines = append(lines, "fisub remote --gpu b200 --on "+name)
	}
	return nil, usage.Errorf(strings.Join(lines, hintLine), "this machine is set up for %s", plain.List(found, "and"))
}

// hosts holds the opened providers of tables.
type hosts struct {
	names []string // tables, in the user's order
	open  providers.Set
	terms map[string]remote.Common
}

// openTables opens the named tables. If gpu is not "", they must provide that kind of GPU.
func (a *app) openTables(names []string, gpu string) (hosts, error) {
	tables, err := a.Tables()
	if err != nil {
		return hosts{}, err
	}
	open, terms, err := providers.OpenAll(tables, names, gpu)
	return hosts{names, open, terms}, err
}

// openOn opens the tables that tablesOf returns.
func (a *app) openOn(on string, all bool, gpu string) (hosts, error) {
	tables, err := a.Tables()
	if err != nil {
		return hosts{}, err
	}
	names, err := tablesOf(tables, on, all)
	if err != nil {
		return hosts{}, err
	}
	return a.openTables(names, gpu)
}

// An order is a prepared remote run that has not started. Until then plan, spec and others may be changed.
type order struct {
	sendRequest
	hosts
	setup  *setup.Setup
	plan   *dispatch.Plan
	spec   bundle.Spec
	others []*trace.Solution // solutions to compare with the submission
}

// prepare opens the hosts of a request, which the caller closes, and assigns its workloads to places.
func (a *app) prepare(ctx context.Context, r sendRequest) (o *order, err error) {
	h, err := a.openOn(r.on, false, r.jobs.GPU)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.open.Close()
		}
	}()
	terms, kind, err := termsOf(r.jobs, h)
	if err != nil {
		return nil, err
	}
	settings, err := setup.New(&a.Project, r.s, r.Options, kind, a.term)
	if err != nil {
		return nil, err
	}
	spec := bundle.Spec{Set: settings.Set, Args: []string{"--profile", settings.Profile.Name,
		"--timer", settings.Timer, "--timeout", settings.Profile.Timeout.String()}}
	if settings.Profile.Target > 0 && settings.Kind == "cuda" {
		spec.Args = append(spec.Args, "--max-time", settings.Profile.MaxTime.String())
	}
	spec.Args = append(spec.Args, "--device", settings.Kind)
	if settings.Seed != 0 {
		spec.Args = append(spec.Args, "--seed", fmt.Sprint(settings.Seed))
	}
	if !r.s.Data.Embedded() {
		spec.Dataset = r.s.Data.Root()
	}
	switch {
	case settings.Kind == "cuda":
		spec.Arch, err = hostArch(r.s, settings, terms.GPU, r.Arch, a.term)
	case r.s.Solution.Spec.Compiled():
		spec.Arch = vgpu.Arch
		opts := device.Options{}
		if opts.CacheDir, err = cache.Root(); err == nil {
			_, err = machine.Compiler(ctx, settings.Kind, &opts, r.s.Solution, a.term)
		}
	}
	if err != nil {
		return nil, err
	}
	plan := &dispatch.Plan{Version: 1, Terms: terms, Run: *settings.Describe(ctx, r.s), Least: map[string]bound.Traffic{},
		Places: placesOf(r.jobs, len(settings.Workloads), h)}
	plan.Run.Remote = true
	for _, w := range settings.Workloads {
		if least := bound.Least(r.s.Definition, w); least != (bound.Traffic{}) {
			plan.Least[w.UUID] = least
		}
	}
	if len(plan.Places) == 0 {
		return nil, usage.Errorf("", "the tables contain no place to run on")
	}
	return &order{sendRequest: r, hosts: h, setup: settings, plan: plan, spec: spec}, nil
}

// show prints what would run where, and the number of bytes to send.
func (o *order) show(term *ui.Terminal, size int64) {
	p, spec := o.plan, o.spec
	term.Note("plan       %s, %s, profile %s", p.Run.Definition, p.Run.Selection(), p.Run.Profile.Name)
	if b := p.Run.Baseline; b != nil {
		term.Note("baseline   %s", plain.Line(b.Name))
	}
	where := p.Used()
	term.Note("where      %s (%s)", strings.Join(where, ", "), plain.Count(len(where), "job"))
	kernel := "the solution's sources"
	switch {
	case p.GPU == "" && spec.Arch != "":
		kernel = "kernels for the virtual GPU"
	case spec.Arch != "":
		kernel = "kernels for " + spec.Arch
	}
	term.Note("bundle     %.1f MB: fisub, %s; files that a host already has are not sent", float64(size)/1e6, kernel)
	term.Note("limit      %v for each job, enforced on the host", p.Limit)
}

// prepareResume prepares a plan whose jobs have ended for another attempt at the workloads without a verdict. It uses
// the places of the tables in h, or keeps the plan's places if h has no tables. Options that opts leaves unset stay
// unchanged.
func prepareResume(plan *dispatch.Plan, opts hostOptions, lacking int, h hosts) error {
	for _, name := range h.names {
		if gpu := strings.ToLower(h.terms[name].GPU); gpu != "" && gpu != cmp.Or(plan.GPU, "none") {
			return usage.Errorf("start a new run there", "--resume: the run used GPU %s, but remote.%s has %s",
				cmp.Or(plan.GPU, "none"), name, gpu)
		}
	}
	if len(h.names) > 0 {
		plan.Places = placesOf(opts, lacking, h)
	}
	plan.Limit = cmp.Or(opts.Limit, plan.Limit)
	plan.Busy, plan.Strict = plan.Busy || opts.Busy, plan.Strict || opts.Strict
	plan.Before, plan.Done = len(plan.Jobs), false
	return nil
}

// termsOf returns the common terms of all jobs and their kind of device. The GPU and the limit come from the options,
// else from the tables; the shortest limit of the tables applies.
func termsOf(opts hostOptions, h hosts) (t dispatch.Terms, kind string, err error) {
	gpu, limit := "", time.Duration(0)
	for _, name := range h.names {
		c := h.terms[name]
		if opts.GPU == "" && gpu != "" && c.GPU != "" && c.GPU != gpu {
			return t, "", usage.Errorf("add --gpu", "the tables have different GPUs: %s and %s", gpu, c.GPU)
		}
		gpu = cmp.Or(gpu, c.GPU)
		if c.Limit > 0 && (limit == 0 || c.Limit < limit) {
			limit = c.Limit
		}
	}
	t = opts.Terms
	t.GPU, t.Limit = strings.ToLower(cmp.Or(t.GPU, gpu)), cmp.Or(t.Limit, limit, defaultLimit)
	if t.GPU == "none" {
		t.GPU = ""
		return t, "emu", nil
	}
	return t, "cuda", nil
}

// placesOf returns the places of the tables that this many workloads can use.
func placesOf(opts hostOptions, workloads int, h hosts) (all []dispatch.ProviderPlace) {
	for _, name := range h.names {
		n := workloads // offered by each table, in case another one fails
		if opts.Shards > 0 {
			n = max(0, opts.Shards-len(all))
		}
		for _, place := range h.open[name].Places(n) {
			all = append(all, dispatch.ProviderPlace{Table: name, Place: place})
		}
	}
	return all
}

// hostArch returns the arch to compile for on this machine, or "" if this machine cannot compile and need not.
func hostArch(s *project.Submission, settings *setup.Setup, gpu, named string, term *ui.Terminal) (string, error) {
	arch, known := bundle.Arch(gpu)
	switch {
	case gpu == "":
		return "", usage.Errorf("add --gpu b200, or gpu = \"b200\" to the table; --gpu none is the virtual GPU",
			"no GPU named")
	case !known:
		return "", usage.Errorf("one of "+strings.Join(bundle.GPUs(), ", ")+", none", "--gpu: unknown GPU %q", gpu)
	}
	root, err := cache.Root()
	if err != nil {
		return "", err
	}
	if err := bundle.Ready(root, cuda.Built); err != nil {
		if s.Solution.Spec.Compiled() || settings.Baseline != nil && settings.Baseline.Solution.Spec.Compiled() {
			return "", err
		}
		text, hint := usage.Explain(err)
		term.Warn("no comparison with the copy bandwidth unless the hosts have a compiler: "+text, hint)
		return "", nil
	}
	return cmp.Or(named, arch), nil
}

// Names in the folder of a remote run: its packed solution, and the folder of its packed baseline.
const (
	solutionName = "solution.json"
	baselineDir  = "baseline"
)

// keep writes the packed solutions to the run folder: jobs that are submitted later need them too.
func (o *order) keep(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if base := o.setup.Baseline; base != nil {
		o.spec.Baseline = strings.TrimSuffix(filepath.Base(base.Name), ".json") + ".json"
		within(folder, &o.spec)
		if err := os.MkdirAll(filepath.Dir(o.spec.Baseline), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(o.spec.Baseline, base.Solution.JSON(trace.Compact), 0o644); err != nil {
			return err
		}
	}
	o.spec.Others = make([]string, len(o.others))
	within(folder, &o.spec)
	for i, other := range o.others {
		if err := os.WriteFile(o.spec.Others[i], other.JSON(trace.Compact), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(o.spec.Solution, o.s.Solution.JSON(trace.Compact), 0o644)
}

// within points the paths of spec into the run folder, whose path differs between machines.
func within(folder string, spec *bundle.Spec) {
	spec.Solution = filepath.Join(folder, solutionName)
	for i := range spec.Others {
		spec.Others[i] = filepath.Join(folder, fmt.Sprintf("other-%d.json", i+1))
	}
	if spec.Baseline != "" {
		spec.Baseline = filepath.Join(folder, baselineDir, filepath.Base(spec.Baseline))
	}
}

// pack claims the run folder and builds the files of the jobs, until the run is cancelled.
func (o *order) pack(ctx context.Context, folder *runs.Folder) (b *bundle.Bundle, err error) {
	for _, step := range []func() error{func() error { return o.plan.Claim(folder.Path()) }, folder.Hold,
		func() error { return o.keep(folder.Path()) }} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	err = dispatch.UntilMarked(ctx, folder.Path(), func(ctx context.Context) (err error) {
		b, err = newBundle(ctx, folder.Path(), o.spec)
		return err
	})
	return b, err
}

// newBundle builds the files that all jobs of the run share.
func newBundle(ctx context.Context, folder string, spec bundle.Spec) (*bundle.Bundle, error) {
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var extra []*trace.Solution
	if spec.Arch != "" && spec.Arch != vgpu.Arch {
		extra = append(extra, bench.RooflineSolution())
	}
	return bundle.New(ctx, root, filepath.Join(folder, "remote", "files"), self, spec, extra...)
}

// whileCheckingHosts runs do, which prepares a run, and checks the hosts at the same time, which also opens their
// connections. If no host could run a job, it cancels do and returns the reasons.
func whileCheckingHosts(ctx context.Context, open providers.Set, do func(context.Context) error) error {
	doing, stop := context.WithCancelCause(ctx)
	checking, enough := context.WithCancel(ctx)
	var none error
	var group sync.WaitGroup
	group.Go(func() {
		if err := noUsableHost(checking, open); err != nil && checking.Err() == nil {
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

// noUsableHost returns the reasons why no host could run a job, or nil if one could or a provider does not know.
func noUsableHost(ctx context.Context, open providers.Set) error {
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

// filesOf returns a function that returns the files of further jobs of the run in folder. The function builds the
// bundle when it is first called.
func filesOf(ctx context.Context, folder string, plan *dispatch.Plan) (func(context.Context, []string) ([]remote.File,
	[]string, error), error) {
	if !plan.Packed() {
		return nil, dispatch.Unsent(plan.Run.ID)
	}
	var spec bundle.Spec
	if err := json.Unmarshal(plan.Bundle, &spec); err != nil {
		return nil, fmt.Errorf("run %s: %w", plan.Run.ID, err)
	}
	within(folder, &spec)
	made := sync.OnceValues(func() (*bundle.Bundle, error) { return newBundle(context.WithoutCancel(ctx), folder, spec) })
	return func(ctx context.Context, ws []string) ([]remote.File, []string, error) {
		b, err := made()
		if err != nil {
			return nil, nil, err
		}
		return b.Files(ctx, ws)
	}, nil
}
