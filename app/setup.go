package app

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
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/cuda/stamp"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/trace"
)

// runFlags are those of every command that runs solutions on this machine and times them.
func runFlags() []cli.Flag {
	device := &cli.StringFlag{Name: "device", Value: "auto", Usage: "`DEVICE`: auto, cuda, cuda:N or emu"}
	return append(append([]cli.Flag{device}, workloadFlags()...),
		&cli.Float64Flag{Name: "memory-limit", Usage: "end a worker that holds more than `GIB`; 0 is no limit", DefaultText: "three quarters of the machine's"},
		&cli.StringFlag{Name: "arch", Usage: "compile for `ARCH`, such as sm_90a", DefaultText: "the GPU's own"},
	)
}

// workloadFlags say what runs, wherever it does, and how it is timed.
func workloadFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "set", Usage: "run the workloads of `SET`", DefaultText: "bench.set of the config, else default"},
		&cli.StringSliceFlag{Name: "workload", Usage: "run only workloads whose uuid begins with `PREFIX`; may be repeated"},
		&cli.IntFlag{Name: "limit", Usage: "run the first `N` workloads", DefaultText: "all"},
		&cli.StringFlag{Name: "profile", Usage: "call and time as `PROFILE` says: " + strings.Join(config.Profiles, ", "), DefaultText: "bench.profile of the config, else official"},
		&cli.StringFlag{Name: "timer", Value: device.TimerAuto, Usage: "time with `TIMER`: cupti, as the contest does, events, or auto: cupti if it can be used"},
		&cli.DurationFlag{Name: "timeout", Usage: "end a workload after `TIME`", DefaultText: "of the profile: 5m"},
		&cli.DurationFlag{Name: "max-time", Usage: "profile thorough: time a workload for at most `TIME`", DefaultText: "10s"},
	}
}

// baselineFlag is that of the commands that find a baseline.
func baselineFlag() cli.Flag {
	return &cli.StringFlag{Name: "baseline", Usage: "time `NAME` in turn with the submission, for speed-ups and the contest score: a folder of solution/baselines, " +
		"reference, a packed solution FILE.json, or none", DefaultText: "bench.baseline of the config, else none"}
}

// A setup is what, where and how solutions of one definition run.
type setup struct {
	set       string
	profile   bench.Profile
	timer     string
	workloads []*trace.Workload
	kind      string // of the device
	baseline  *bench.Baseline

	// Of a run on this machine:
	device device.Options
	worker worker.Command
	host   event.Host
}

// newSetup reads runFlags, for the submission s. What no flag says is as in old, the run that is resumed, or nil, then as the
// config says.
func (a *app) newSetup(c *cli.Context, s *submission, old *runs.Run) (*setup, error) {
	u, err := readSetup(c, s, old)
	if err != nil {
		return nil, err
	}
	u.host = host()
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	u.device = device.Options{CacheDir: root, Arch: c.String("arch"), Prebuilt: c.String("prebuilt"), Sanitize: c.Bool("sanitize")}
	if u.device.Prebuilt != "" {
		if u.device.Prebuilt, err = filepath.Abs(path(c, u.device.Prebuilt)); err != nil {
			return nil, err
		}
	}
	name := c.String("device")
	if old != nil && !c.IsSet("device") {
		if name = old.Run.Device.Kind; name != "emu" {
			name = fmt.Sprintf("%s:%d", name, old.Run.Device.Ordinal)
		}
	}
	if u.kind, err = a.chooseDevice(c.Context, name, s.sol, &u.device); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if limit := c.Float64("memory-limit"); !(limit >= 0 && limit <= 1<<30) { // NaN too
		return nil, usage("a number of GiB; 0 is no limit", "--memory-limit: must be from 0 to %d", 1<<30)
	}
	u.worker = worker.Command{Args: []string{self, "worker"}, MemoryLimit: int64(c.Float64("memory-limit") * (1 << 30))}
	if !c.IsSet("memory-limit") {
		u.worker.MemoryLimit = u.host.Memory / 4 * 3
	}
	return u, nil
}

// readSetup reads workloadFlags, like newSetup; on which device is left open.
func readSetup(c *cli.Context, s *submission, old *runs.Run) (*setup, error) {
	u := &setup{set: c.String("set"), timer: c.String("timer")}
	profile := c.String("profile")
	if old != nil {
		u.set, profile = cmp.Or(u.set, old.Run.Set), cmp.Or(profile, old.Run.Profile.Name)
	}
	if s.cfg != nil {
		u.set, profile = cmp.Or(u.set, s.cfg.Bench.Set), cmp.Or(profile, s.cfg.Bench.Profile)
	}
	u.set = cmp.Or(u.set, "default")
	var err error
	if u.profile, err = bench.NewProfile(cmp.Or(profile, "official"), s.def); err != nil {
		return nil, invalid(err)
	}
	if c.IsSet("timeout") {
		if u.profile.Timeout = c.Duration("timeout"); u.profile.Timeout <= 0 {
			return nil, usage("", "--timeout: must be above zero")
		}
	} else if old != nil {
		u.profile.Timeout = seconds(old.Run.Profile.TimeoutS)
	}
	if c.IsSet("max-time") {
		if u.profile.Target == 0 {
			return nil, usage("add --profile thorough", "--max-time: profile %s takes an exact number of timings", u.profile.Name)
		}
		if u.profile.MaxTime = c.Duration("max-time"); u.profile.MaxTime <= 0 {
			return nil, usage("", "--max-time: must be above zero")
		}
	} else if old != nil && u.profile.Target > 0 {
		u.profile.MaxTime = seconds(old.Run.Profile.MaxTimeS)
	}
	if old != nil && !c.IsSet("timer") {
		u.timer = cmp.Or(old.Run.Timer, u.timer)
	}
	if !slices.Contains(device.Timers, u.timer) {
		return nil, usage("one of "+strings.Join(device.Timers, ", "), "--timer: unknown timer %q", u.timer)
	}
	ws, err := s.data.Workloads(s.def.Name, u.set)
	if err != nil {
		return nil, invalid(err)
	}
	if old != nil && !c.IsSet("set") && !c.IsSet("workload") && !c.IsSet("limit") {
		ws = slices.DeleteFunc(ws, func(w *trace.Workload) bool {
			return !slices.ContainsFunc(old.Run.Workloads, func(o event.Workload) bool { return o.UUID == w.UUID })
		})
	}
	if u.workloads, err = choose(ws, c.StringSlice("workload"), c.IsSet("limit"), c.Int("limit")); err != nil {
		return nil, err
	}
	if len(u.workloads) == 0 {
		return nil, usage("fisub dataset ls shows what there is", "no workloads for %s", s.def.Name)
	}
	return u, nil
}

// describe says what a new run of s runs.
func (u *setup) describe(ctx context.Context, s *submission) *event.Run {
	now := time.Now()
	p := u.profile
	run := &event.Run{Schema: event.Schema, ID: runs.NewID(now), Started: now, Fisub: Version, Command: append([]string{"fisub"}, os.Args[1:]...),
		Solution: s.sol.Name, Author: s.sol.Author, Language: string(s.sol.Spec.Language), ContentHash: s.sol.Hash(), Definition: s.def.Name, Set: u.set,
		Profile: event.Profile{Name: p.Name, Warmup: p.Warmup, Iterations: p.Iterations, Trials: p.Trials,
			TimeoutS: p.Timeout.Seconds(), Target: p.Target, MaxTimeS: p.MaxTime.Seconds()},
		Timer: u.timer, Baseline: baselineEvent(u.baseline), Floors: u.kind != "emu",
		Tolerance: event.Tolerance{Atol: p.Tolerance.Atol, Rtol: p.Tolerance.Rtol, MatchedRatio: p.Tolerance.MatchedRatio},
		Host:      u.host, Git: gitState(ctx, s.root), DPS: &s.sol.Spec.DestinationPassingStyle}
	for _, w := range u.workloads {
		run.Workloads = append(run.Workloads, event.Workload{UUID: w.UUID, Axes: maps.Collect(w.Axes.All())})
	}
	return run
}

// shared is what the solutions of a run have in common for bench.
func (u *setup) shared(s *submission) bench.Shared {
	return bench.Shared{Definition: s.def, Workloads: u.workloads, Profile: u.profile, Timer: u.timer, Load: s.data.LoadTrial,
		Worker: u.worker, DeviceKind: u.kind, Device: u.device, Meter: openMeter, Baseline: u.baseline, Roofline: u.kind != "emu",
		Hint: func(err error) string { _, hint := explain(err); return hint }}
}

// machine marks an error of a run that is about the device, or what else the machine lacks, for exit status 2.
func machine(err error) error {
	var dev *bench.DeviceError
	var timers *bench.TimerError
	if errors.As(err, &dev) || errors.Is(err, bench.ErrNoReference) || errors.As(err, &timers) {
		return invalid(err)
	}
	return err
}

// openMeter reads a GPU through NVML, in this process: the one that is timed may be in Python.
func openMeter(uuid string) (bench.Meter, error) { return stamp.Open(uuid) }
