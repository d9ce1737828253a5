// Package setup combines options, the config and a run to resume into a Setup: the workloads of a run, its device,
// and how it is timed.
package setup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/cuda/stamp"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/machine"
	"fisub/runs"
	"fisub/workloads"
	"fisub/workloads/tasks"
)

// Options select workloads and how to time them. A zero option defaults to the resumed run's value, then the
// config's, then its own default.
type Options struct {
	Set  string
	Seed uint64 // of alternative generated inputs; 0: the standard ones
	workloads.Choice
	Profile  string
	Timer    string
	Timeout  time.Duration
	MaxTime  time.Duration
	Baseline string
	Arch     string

	// Of a run on this machine:
	Device      string // "auto", "cuda", "cuda:1", "emu"
	Prebuilt    string // folder of compiled kernels
	Sanitize    bool
	MemoryLimit *float64 // of a worker, in GiB; 0: unlimited; nil: three quarters of the machine's
}

// A Setup holds the workloads of a run, and where and how they run.
type Setup struct {
	Set       string
	Seed      uint64
	Profile   bench.Profile
	Timer     string
	Workloads []*trace.Workload
	Kind      string // of the device
	Baseline  *bench.Baseline
	Omitted   string // what the default set omits of the contest's; "" for other sets
	whole     int    // workloads of the set
	data      *workloads.Dataset
	project   *project.Project

	// Of a run on this machine:
	Device device.Options
	tools  *nvcc.Toolchain // nil if missing or not needed
	worker worker.Command
	host   event.Host
}

// New sets up runs of sub on devices of that kind on other machines.
func New(p *project.Project, sub *project.Submission, o Options, kind string, term *ui.Terminal) (*Setup, error) {
	s, err := choose(p, sub, o, nil)
	if err != nil {
		return nil, err
	}
	s.Kind = kind
	if err := s.timed(o.MaxTime); err != nil {
		return nil, err
	}
	s.Baseline, err = findBaseline(p, sub, o.Baseline, nil, kind, term)
	return s, err
}

// NewLocal sets up runs of sub on this machine. old is the run to resume, or nil.
func NewLocal(ctx context.Context, p *project.Project, sub *project.Submission, o Options, old *runs.Run,
	term *ui.Terminal) (*Setup, error) {
	s, err := choose(p, sub, o, old)
	if err != nil {
		return nil, err
	}
	s.host = machine.Host()
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	if o.Prebuilt != "" {
		if o.Prebuilt, err = filepath.Abs(p.Path(o.Prebuilt)); err != nil {
			return nil, err
		}
	}
	s.Device = device.Options{CacheDir: root, Arch: o.Arch, Prebuilt: o.Prebuilt}
	if o.Sanitize {
		s.Device.Sanitize = strings.Join(device.Sanitizers, ",")
	}
	if o.Device == "" && old != nil {
		if o.Device = old.Run.Device.Kind; o.Device != "emu" {
			o.Device = fmt.Sprintf("%s:%d", o.Device, old.Run.Device.Ordinal)
		}
	}
	if s.Kind, err = machine.Choose(ctx, o.Device, sub.Solution, &s.Device, term); err != nil {
		return nil, err
	}
	if s.tools, err = machine.Compiler(ctx, s.Kind, &s.Device, sub.Solution, term); err != nil {
		return nil, err
	}
	if o.Sanitize && s.Kind != "emu" {
		return nil, usage.Errorf("add --device emu", "--sanitize works only on the virtual GPU")
	}
	if s.worker, err = machine.Worker(); err != nil {
		return nil, err
	}
	s.worker.Progress = term.Passing
	if err := s.timed(o.MaxTime); err != nil && (old == nil || o.MaxTime != 0) {
		return nil, err
	}
	if limit := o.MemoryLimit; limit != nil {
		if !(*limit >= 0 && *limit <= 1<<30) { // NaN too
			return nil, usage.Errorf("a number of GiB; 0 means unlimited", "--memory-limit: want 0 to %d", 1<<30)
		}
		s.worker.MemoryLimit = int64(*limit * (1 << 30))
	}
	s.Baseline, err = findBaseline(p, sub, o.Baseline, old, s.Kind, term)
	return s, err
}

// timed rejects a timer or a limit of timing on a device that measures no time.
func (s *Setup) timed(limit time.Duration) error {
	flag := ""
	switch {
	case s.Kind != "emu":
	case s.Timer != device.TimerAuto:
		flag = "--timer " + s.Timer
	case limit != 0:
		flag = "--max-time"
	}
	if flag == "" {
		return nil
	}
	return usage.Errorf("omit it, or use a GPU", "%s: the virtual GPU measures no time", flag)
}

// choose returns a Setup without device and baseline.
func choose(p *project.Project, sub *project.Submission, o Options, old *runs.Run) (*Setup, error) {
	same := old != nil && o.Set == "" && o.All() // the workloads of old
	if old != nil {
		o.Set, o.Profile = cmp.Or(o.Set, old.Run.Set), cmp.Or(o.Profile, old.Run.Profile.Name)
		o.Seed = cmp.Or(o.Seed, old.Run.Seed)
		o.Timer = cmp.Or(o.Timer, old.Run.Timer)
		o.Timeout = cmp.Or(o.Timeout, seconds(old.Run.Profile.TimeoutS))
	}
	configured := o.Set == "" && sub.Config != nil // use the config's set if it names one
	if sub.Config != nil {
		o.Set, o.Profile = cmp.Or(o.Set, sub.Config.Bench.Set), cmp.Or(o.Profile, sub.Config.Bench.Profile)
	}
	s := &Setup{Set: cmp.Or(o.Set, "default"), Seed: o.Seed, data: sub.Data, project: p,
		Timer: cmp.Or(o.Timer, device.TimerAuto)}
	var err error
	if s.Profile, err = bench.NewProfile(cmp.Or(o.Profile, config.Official), sub.Definition); err != nil {
		return nil, usage.Invalid(err)
	}
	s.Profile.Timeout = cmp.Or(o.Timeout, s.Profile.Timeout)
	switch {
	case o.MaxTime != 0 && s.Profile.Target == 0:
		return nil, usage.Errorf("add --profile thorough, and use a GPU",
			"--max-time: profile %s has a fixed number of timings", s.Profile.Name)
	case o.MaxTime != 0:
		s.Profile.MaxTime = o.MaxTime
	case old != nil && s.Profile.Target > 0:
		s.Profile.MaxTime = seconds(old.Run.Profile.MaxTimeS)
	}
	if !slices.Contains(device.Timers, s.Timer) {
		return nil, usage.Errorf("one of "+strings.Join(device.Timers, ", "), "--timer: unknown timer %q", s.Timer)
	}
	if s.Seed != 0 {
		s.data = sub.Data.Seeded(s.Seed)
	}
	ws, err := s.data.Workloads(sub.Definition.Name, s.Set)
	if sets, _ := sub.Data.Sets(sub.Definition.Name); err != nil && configured && len(sets) > 0 && o.Set != "" {
		err = sub.Config.Fault("", "bench.set", "", "%v", err)
	}
	if err != nil {
		return nil, usage.Invalid(err)
	}
	resumed := func(w *trace.Workload) bool {
		is := func(o event.WorkloadRef) bool { return o.UUID == w.UUID }
		return old != nil && slices.ContainsFunc(old.Run.Workloads, is)
	}
	if same {
		ws = slices.DeleteFunc(ws, func(w *trace.Workload) bool { return !resumed(w) })
	}
	if s.whole = len(ws); same {
		s.whole = old.Run.Whole
	}
	if s.Workloads, err = o.Of(ws); err != nil {
		return nil, err
	}
	if len(s.Workloads) == 0 {
		return nil, usage.Errorf("fisub dataset ls lists the workload sets", "no workloads for %s", sub.Definition.Name)
	}
	s.Omitted = sub.Data.Omitted(sub.Definition.Name, s.Set)
	drawn := func(w *trace.Workload) bool {
		return sub.Definition.Python != nil || s.data.Makes(sub.Definition.Name, w) || workloads.Redrawn(sub.Definition, w)
	}
	if s.Seed != 0 && !slices.ContainsFunc(s.Workloads, drawn) {
		return nil, usage.Errorf("omit it", "--seed: no generated inputs: set %s uses files of the dataset", s.Set)
	}
	return s, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Describe returns the description of a new run of sub.
func (s *Setup) Describe(ctx context.Context, sub *project.Submission) *event.Run {
	now := time.Now()
	p, sol := s.Profile, sub.Solution
	run := &event.Run{
		Schema: event.Schema, ID: runs.NewID(now), Started: now, Fisub: s.project.Version, Command: s.project.Command,
		Solution: sol.Name, Author: sol.Author, Language: string(sol.Spec.Language), ContentHash: sol.Hash(),
		Definition: sub.Definition.Name, Set: s.Set, Seed: s.Seed,
		Profile: event.Profile{Name: p.Name, Warmup: p.Warmup, Iterations: p.Iterations, Trials: p.Trials,
			TimeoutS: p.Timeout.Seconds(), Target: p.Target, MaxTimeS: p.MaxTime.Seconds()},
		Timer: s.Timer, Floors: s.Kind != "emu",
		Tolerance: event.Tolerance(p.Tolerance),
		Host:      s.host, DPS: sol.Spec.DestinationPassingStyle, Binding: sol.Spec.Binding,
	}
	if f := sub.Definition.Python; f != nil {
		if run.Functions = true; s.Set == tasks.Benchmarks {
			run.Ranking = f.Ranking
		}
	}
	if sub.Config != nil {
		run.Folder, run.Sources = sub.SourceFolder(), sub.SourcePaths()
	}
	if b := s.Baseline; b != nil {
		run.Baseline = &event.Baseline{Name: b.Name, Solution: b.Solution.Name, ContentHash: b.Solution.Hash()}
	}
	if commit, dirty := git.State(ctx, sub.Root, "solution", config.Name); commit != "" {
		run.Git = &event.Git{Commit: commit, Dirty: dirty}
	}
	if len(s.Workloads) < s.whole {
		run.Whole = s.whole
	}
	for _, w := range s.Workloads {
		run.Workloads = append(run.Workloads, event.WorkloadRef{UUID: w.UUID, Axes: maps.Collect(w.Axes.All()),
			Tests: workloads.Tests(sub.Definition.Name, w.UUID)})
	}
	return run
}

// Shared returns the settings that all solutions of a run of sub share.
func (s *Setup) Shared(sub *project.Submission) bench.Shared {
	return bench.Shared{
		Definition: sub.Definition, Seed: s.Seed, Workloads: s.Workloads,
		Profile: s.Profile, Timer: s.Timer, Load: s.data.Load,
		Worker: s.worker, DeviceKind: s.Kind, Device: s.Device, Build: machine.Builder(s.Kind, s.Device, s.tools),
		Baseline: s.Baseline, Roofline: s.Kind != "emu",
		Meter: func(uuid string) (bench.Meter, error) { return stamp.Open(uuid) },
	}
}
