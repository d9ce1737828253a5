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

// New sets up runs of s on devices of that kind on other machines.
func New(p *project.Project, s *project.Submission, o Options, kind string, term *ui.Terminal) (*Setup, error) {
	u, err := choose(p, s, o, nil)
	if err != nil {
		return nil, err
	}
	u.Kind = kind
	if err := u.timed(o.MaxTime); err != nil {
		return nil, err
	}
	u.Baseline, err = findBaseline(p, s, o.Baseline, nil, kind, term)
	return u, err
}

// NewLocal sets up runs of s on this machine. old is the run to resume, or nil.
func NewLocal(ctx context.Context, p *project.Project, s *project.Submission, o Options, old *runs.Run,
	term *ui.Terminal) (*Setup, error) {
	u, err := choose(p, s, o, old)
	if err != nil {
		return nil, err
	}
	u.host = machine.Host()
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	if o.Prebuilt != "" {
		if o.Prebuilt, err = filepath.Abs(p.Path(o.Prebuilt)); err != nil {
			return nil, err
		}
	}
	u.Device = device.Options{CacheDir: root, Arch: o.Arch, Prebuilt: o.Prebuilt}
	if o.Sanitize {
		u.Device.Sanitize = strings.Join(device.Sanitizers, ",")
	}
	if o.Device == "" && old != nil {
		if o.Device = old.Run.Device.Kind; o.Device != "emu" {
			o.Device = fmt.Sprintf("%s:%d", o.Device, old.Run.Device.Ordinal)
		}
	}
	if u.Kind, err = machine.Choose(ctx, o.Device, s.Solution, &u.Device, term); err != nil {
		return nil, err
	}
	if u.tools, err = machine.Compiler(ctx, u.Kind, &u.Device, s.Solution, term); err != nil {
		return nil, err
	}
	if o.Sanitize && u.Kind != "emu" {
		return nil, usage.Errorf("add --device emu", "--sanitize works only on the virtual GPU")
	}
	if u.worker, err = machine.Worker(); err != nil {
		return nil, err
	}
	if err := u.timed(o.MaxTime); err != nil && (old == nil || o.MaxTime != 0) {
		return nil, err
	}
	if limit := o.MemoryLimit; limit != nil {
		if !(*limit >= 0 && *limit <= 1<<30) { // NaN too
			return nil, usage.Errorf("a number of GiB; 0 means unlimited", "--memory-limit: want 0 to %d", 1<<30)
		}
		u.worker.MemoryLimit = int64(*limit * (1 << 30))
	}
	u.Baseline, err = findBaseline(p, s, o.Baseline, old, u.Kind, term)
	return u, err
}

// timed rejects a timer or a limit of timing on a device that measures no time.
func (u *Setup) timed(limit time.Duration) error {
	flag := ""
	switch {
	case u.Kind != "emu":
	case u.Timer != device.TimerAuto:
		flag = "--timer " + u.Timer
	case limit != 0:
		flag = "--max-time"
	}
	if flag == "" {
		return nil
	}
	return usage.Errorf("omit it, or use a GPU", "%s: the virtual GPU measures no time", flag)
}

// choose returns a Setup without device and baseline.
func choose(p *project.Project, s *project.Submission, o Options, old *runs.Run) (*Setup, error) {
	same := old != nil && o.Set == "" && o.All() // the workloads of old
	if old != nil {
		o.Set, o.Profile = cmp.Or(o.Set, old.Run.Set), cmp.Or(o.Profile, old.Run.Profile.Name)
		o.Seed = cmp.Or(o.Seed, old.Run.Seed)
		o.Timer = cmp.Or(o.Timer, old.Run.Timer)
		o.Timeout = cmp.Or(o.Timeout, seconds(old.Run.Profile.TimeoutS))
	}
	configured := o.Set == "" && s.Config != nil // use the config's set if it names one
	if s.Config != nil {
		o.Set, o.Profile = cmp.Or(o.Set, s.Config.Bench.Set), cmp.Or(o.Profile, s.Config.Bench.Profile)
	}
	u := &Setup{Set: cmp.Or(o.Set, "default"), Seed: o.Seed, data: s.Data, project: p,
		Timer: cmp.Or(o.Timer, device.TimerAuto)}
	var err error
	if u.Profile, err = bench.NewProfile(cmp.Or(o.Profile, config.Official), s.Definition); err != nil {
		return nil, usage.Invalid(err)
	}
	u.Profile.Timeout = cmp.Or(o.Timeout, u.Profile.Timeout)
	switch {
	case o.MaxTime != 0 && u.Profile.Target == 0:
		return nil, usage.Errorf("add --profile thorough, and use a GPU",
			"--max-time: profile %s has a fixed number of timings", u.Profile.Name)
	case o.MaxTime != 0:
		u.Profile.MaxTime = o.MaxTime
	case old != nil && u.Profile.Target > 0:
		u.Profile.MaxTime = seconds(old.Run.Profile.MaxTimeS)
	}
	if !slices.Contains(device.Timers, u.Timer) {
		return nil, usage.Errorf("one of "+strings.Join(device.Timers, ", "), "--timer: unknown timer %q", u.Timer)
	}
	if u.Seed != 0 {
		u.data = s.Data.Seeded(u.Seed)
	}
	ws, err := u.data.Workloads(s.Definition.Name, u.Set)
	if sets, _ := s.Data.Sets(s.Definition.Name); err != nil && configured && len(sets) > 0 && o.Set != "" {
		err = s.Config.Fault("", "bench.set", "", "%v", err)
	}
	if err != nil {
		return nil, usage.Invalid(err)
	}
	resumed := func(w *trace.Workload) bool {
		same := func(o event.WorkloadRef) bool { return o.UUID == w.UUID }
		return old != nil && slices.ContainsFunc(old.Run.Workloads, same)
	}
	if same {
		ws = slices.DeleteFunc(ws, func(w *trace.Workload) bool { return !resumed(w) })
	}
	if u.whole = len(ws); same {
		u.whole = old.Run.Whole
	}
	if u.Workloads, err = o.Of(ws); err != nil {
		return nil, err
	}
	if len(u.Workloads) == 0 {
		return nil, usage.Errorf("fisub dataset ls lists the workload sets", "no workloads for %s", s.Definition.Name)
	}
	u.Omitted = s.Data.Omitted(s.Definition.Name, u.Set, slices.DeleteFunc(slices.Clone(ws), func(w *trace.Workload) bool {
		return !resumed(w) && !slices.Contains(u.Workloads, w)
	}))
	drawn := func(w *trace.Workload) bool {
		return u.data.Makes(s.Definition.Name, w) || workloads.Redrawn(s.Definition, w)
	}
	if u.Seed != 0 && !slices.ContainsFunc(u.Workloads, drawn) {
		return nil, usage.Errorf("omit it", "--seed: no generated inputs: set %s uses files of the dataset", u.Set)
	}
	return u, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Describe returns the description of a new run of s.
func (u *Setup) Describe(ctx context.Context, s *project.Submission) *event.Run {
	now := time.Now()
	p, sol := u.Profile, s.Solution
	run := &event.Run{
		Schema: event.Schema, ID: runs.NewID(now), Started: now, Fisub: u.project.Version, Command: u.project.Command,
		Solution: sol.Name, Author: sol.Author, Language: string(sol.Spec.Language), ContentHash: sol.Hash(),
		Definition: s.Definition.Name, Set: u.Set, Seed: u.Seed,
		Profile: event.Profile{Name: p.Name, Warmup: p.Warmup, Iterations: p.Iterations, Trials: p.Trials,
			TimeoutS: p.Timeout.Seconds(), Target: p.Target, MaxTimeS: p.MaxTime.Seconds()},
		Timer: u.Timer, Floors: u.Kind != "emu",
		Tolerance: event.Tolerance{Atol: p.Tolerance.Atol, Rtol: p.Tolerance.Rtol, MatchedRatio: p.Tolerance.MatchedRatio},
		Host:      u.host, DPS: sol.Spec.DestinationPassingStyle, Binding: sol.Spec.Binding,
	}
	if s.Config != nil {
		run.Folder, run.Sources = s.SourceFolder(), s.SourcePaths()
	}
	if b := u.Baseline; b != nil {
		run.Baseline = &event.Baseline{Name: b.Name, Solution: b.Solution.Name, ContentHash: b.Solution.Hash()}
	}
	if commit, dirty := git.State(ctx, s.Root, "solution", config.Name); commit != "" {
		run.Git = &event.Git{Commit: commit, Dirty: dirty}
	}
	if len(u.Workloads) < u.whole {
		run.Whole = u.whole
	}
	for _, w := range u.Workloads {
		run.Workloads = append(run.Workloads, event.WorkloadRef{UUID: w.UUID, Axes: maps.Collect(w.Axes.All()),
			Tests: workloads.Tests(s.Definition.Name, w.UUID)})
	}
	return run
}

// Shared returns the settings that all solutions of a run of s share.
func (u *Setup) Shared(s *project.Submission) bench.Shared {
	return bench.Shared{
		Definition: s.Definition, Workloads: u.Workloads, Profile: u.Profile, Timer: u.Timer, Load: u.data.Load,
		Worker: u.worker, DeviceKind: u.Kind, Device: u.Device, Build: machine.Builder(u.Kind, u.Device, u.tools),
		Baseline: u.Baseline, Roofline: u.Kind != "emu",
		Meter: func(uuid string) (bench.Meter, error) { return stamp.Open(uuid) },
	}
}
