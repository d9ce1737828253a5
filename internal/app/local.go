package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/trace"
)

func (a *app) localCommand() *cli.Command {
	return &cli.Command{
		Name:  "local",
		Usage: "run the submission's workloads on this machine",
		Description: "Builds the submission, runs it on every workload of the set, judges the outputs as the contest does, and,\n" +
			"on a GPU, times it. Where there is no GPU the same kernel.cu runs on a CPU emulation, which finds wrong\n" +
			"results but measures nothing.\n\n" +
			"   fisub local\n" +
			"   fisub local --set contest54 --device cuda:0\n" +
			"   fisub local --workload 3daa --device emu --sanitize\n" +
			"   fisub local --solution solution.json",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "device", Value: "auto", Usage: "`DEVICE`: auto, cuda, cuda:N or emu"},
			&cli.StringFlag{Name: "set", Usage: "run the workloads of `SET`", DefaultText: "bench.set of the config, else default"},
			&cli.StringSliceFlag{Name: "workload", Usage: "run only workloads whose uuid begins with `PREFIX`; may be repeated"},
			&cli.IntFlag{Name: "limit", Usage: "run the first `N` workloads"},
			&cli.StringFlag{Name: "solution", Usage: "run the packed solution in `FILE` instead of the sources"},
			&cli.StringFlag{Name: "profile", Usage: "call and time as `PROFILE` says: " + strings.Join(bench.Profiles, ", "), DefaultText: "bench.profile of the config, else official"},
			&cli.StringFlag{Name: "timer", Value: device.TimerAuto, Usage: "time with `TIMER`: cupti, as the contest does, events, or auto: cupti if it can be used"},
			&cli.DurationFlag{Name: "timeout", Usage: "end a workload after `TIME`", DefaultText: "of the profile: 5m"},
			&cli.DurationFlag{Name: "max-time", Usage: "profile thorough: time a workload for at most `TIME`", DefaultText: "10s"},
			&cli.Float64Flag{Name: "memory-limit", Usage: "end a worker that holds more than `GIB`; 0 is no limit", DefaultText: "three quarters of the machine's"},
			&cli.StringFlag{Name: "arch", Usage: "compile for `ARCH`, such as sm_90a", DefaultText: "the GPU's own"},
			&cli.BoolFlag{Name: "strict", Usage: "exit with 3 also where a workload passed with a finding"},
			&cli.BoolFlag{Name: "sanitize", Usage: "emulator: look for invalid accesses, undefined behaviour and races"},
			&cli.StringFlag{Name: "resume", Usage: "go on with `RUN`, an id, its beginning, last or last~1: set, workloads, profile, timer and device are its own unless given, and workloads with a verdict are left out"},
		},
		Action: a.local,
	}
}

func (a *app) local(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	s, err := a.loadSubmission(c)
	if err != nil {
		return err
	}
	a.warn(s.warnings)
	if s.cfg != nil && s.cfg.Bench.Baseline != "" {
		a.term.Warn(relative(s.cfg.Path)+": bench.baseline is not used yet: no speed-up is shown", "")
	}
	set, profileName := c.String("set"), c.String("profile")
	folder, old, err := openResumed(s, c.String("resume"))
	if err != nil {
		return err
	}
	if folder != nil {
		defer folder.Close()
		set, profileName = cmp.Or(set, old.Run.Set), cmp.Or(profileName, old.Run.Profile.Name)
	}
	if s.cfg != nil {
		set, profileName = cmp.Or(set, s.cfg.Bench.Set), cmp.Or(profileName, s.cfg.Bench.Profile)
	}
	if profileName == "" {
		profileName = "official"
	}
	if set == "" {
		set = "default"
	}
	profile, err := bench.NewProfile(profileName, s.def)
	if err != nil {
		return invalid(err)
	}
	if c.IsSet("timeout") {
		if profile.Timeout = c.Duration("timeout"); profile.Timeout <= 0 {
			return usage("", "--timeout: must be above zero")
		}
	} else if old != nil {
		profile.Timeout = seconds(old.Run.Profile.TimeoutS)
	}
	if c.IsSet("max-time") {
		if profile.Target == 0 {
			return usage("add --profile thorough", "--max-time: profile %s takes an exact number of timings", profile.Name)
		}
		if profile.MaxTime = c.Duration("max-time"); profile.MaxTime <= 0 {
			return usage("", "--max-time: must be above zero")
		}
	} else if old != nil && profile.Target > 0 {
		profile.MaxTime = seconds(old.Run.Profile.MaxTimeS)
	}
	timer := c.String("timer")
	if old != nil && !c.IsSet("timer") {
		timer = cmp.Or(old.Run.Timer, timer)
	}
	if !slices.Contains(device.Timers, timer) {
		return usage("one of "+strings.Join(device.Timers, ", "), "--timer: unknown timer %q", timer)
	}
	ws, err := s.data.Workloads(s.def.Name, set)
	if err != nil {
		return invalid(err)
	}
	if old != nil && !c.IsSet("set") && !c.IsSet("workload") && !c.IsSet("limit") {
		ws = slices.DeleteFunc(ws, func(w *trace.Workload) bool {
			return !slices.ContainsFunc(old.Run.Workloads, func(o event.Workload) bool { return o.UUID == w.UUID })
		})
	}
	if ws, err = choose(ws, c.StringSlice("workload"), c.IsSet("limit"), c.Int("limit")); err != nil {
		return err
	}
	if len(ws) == 0 {
		return usage("fisub dataset ls shows what there is", "no workloads for %s", s.def.Name)
	}
	root, err := cache.Root()
	if err != nil {
		return err
	}
	opts := device.Options{CacheDir: root, Arch: c.String("arch"), Sanitize: c.Bool("sanitize")}
	name := c.String("device")
	if old != nil && !c.IsSet("device") {
		if name = old.Run.Device.Kind; name != "emu" {
			name = fmt.Sprintf("%s:%d", name, old.Run.Device.Ordinal)
		}
	}
	kind, err := a.chooseDevice(c.Context, name, s.sol, &opts)
	if err != nil {
		return err
	}
	if opts.Sanitize && kind != "emu" {
		return usage("add --device emu", "--sanitize: only the emulator has sanitizers")
	}

	now := time.Now()
	run := &event.Run{Schema: event.Schema, ID: runs.NewID(now), Started: now, Fisub: Version, Command: append([]string{"fisub"}, os.Args[1:]...), Solution: s.sol.Name,
		Author: s.sol.Author, Language: string(s.sol.Spec.Language), ContentHash: s.sol.Hash(), Definition: s.def.Name, Set: set,
		Profile: event.Profile{Name: profile.Name, Warmup: profile.Warmup, Iterations: profile.Iterations, Trials: profile.Trials,
			TimeoutS: profile.Timeout.Seconds(), Target: profile.Target, MaxTimeS: profile.MaxTime.Seconds()},
		Timer:     timer,
		Tolerance: event.Tolerance{Atol: profile.Tolerance.Atol, Rtol: profile.Tolerance.Rtol, MatchedRatio: profile.Tolerance.MatchedRatio},
		Host:      host(), Git: gitState(c.Context, s.root)}
	for _, w := range ws {
		run.Workloads = append(run.Workloads, event.Workload{UUID: w.UUID, Axes: maps.Collect(w.Axes.All())})
	}

	var admit func(event.Device) error
	var skip map[string]bool
	before, found, timedWith := 0, 0, "" // failed workloads and findings of the run that is resumed; what it was timed with
	if old == nil {
		folder = runs.New(s.root, run.ID)
		defer folder.Close()
	} else {
		if err := sameRun(old, run); err != nil {
			return err
		}
		admit = func(d event.Device) error { return sameDevice(old, d) }
		skip, before, found, timedWith = goOn(old, run)
		a.term.Note("resumed    %s: %d of %d workloads have a verdict", run.ID, len(skip), len(ws))
		if len(skip) == len(ws) {
			if before > 0 || c.Bool("strict") && found > 0 {
				return errNotPassed
			}
			return nil
		}
	}
	view := a.term.Run()
	if globalBool(c, "json") {
		view = func(e event.Event) error {
			line, err := event.Marshal(e)
			if err == nil {
				_, err = a.stdout.Write(line)
			}
			return err
		}
	}
	stream := event.NewStream(folder.Record, view)

	memory := int64(c.Float64("memory-limit") * (1 << 30))
	if !c.IsSet("memory-limit") {
		memory = run.Host.Memory / 4 * 3
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	result, err := bench.Run(c.Context, bench.Config{
		Definition: s.def, Solution: s.sol, Workloads: ws, Skip: skip, Profile: profile, Timer: timer, Load: s.data.LoadTrial,
		Worker:     worker.Command{Args: []string{self, "worker"}, MemoryLimit: memory},
		DeviceKind: kind, Device: opts, Events: stream, Run: run, Admit: admit, TimedWith: timedWith,
	})
	if c.Context.Err() != nil {
		a.term.Note("go on with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		var dev *bench.DeviceError
		var timers *bench.TimerError
		if errors.As(err, &dev) || errors.Is(err, bench.ErrNoReference) || errors.As(err, &timers) {
			return invalid(err)
		}
		return err
	}
	if err := stream.Err(); err != nil {
		return err
	}
	a.term.Note("run folder %s", relative(folder.Path()))
	switch {
	case result.Missing > 0:
		return errShown
	case result.Failed+before > 0, c.Bool("strict") && result.Findings+found > 0:
		return errNotPassed
	}
	return nil
}

// warn shows what was odd about the input without being wrong.
func (a *app) warn(warnings []trace.Warning) {
	for _, w := range warnings {
		hint := ""
		if w.Suggestion != "" {
			hint = fmt.Sprintf("did you mean %q?", w.Suggestion)
		}
		a.term.Warn(w.String(), hint)
	}
}

// choose narrows ws to the prefixes, then to the first limit of them.
func choose(ws []*trace.Workload, prefixes []string, limited bool, limit int) ([]*trace.Workload, error) {
	if len(prefixes) > 0 {
		var chosen []*trace.Workload
		used := map[string]bool{}
		for _, w := range ws {
			for _, p := range prefixes {
				if strings.HasPrefix(w.UUID, p) {
					used[p] = true
					chosen = append(chosen, w)
					break
				}
			}
		}
		for _, p := range prefixes {
			if !used[p] {
				return nil, usage("fisub dataset ls -v lists the uuids", "--workload: no workload of the set begins with %q", p)
			}
		}
		ws = chosen
	}
	if limited {
		if limit < 1 {
			return nil, usage("", "--limit: must be at least 1")
		}
		ws = ws[:min(limit, len(ws))]
	}
	return ws, nil
}

// chooseDevice turns --device into a kind. For auto it asks a worker whether a GPU can be opened, because a process that
// has met a broken driver is of no further use.
func (a *app) chooseDevice(ctx context.Context, name string, sol *trace.Solution, opts *device.Options) (string, error) {
	kind, ordinal, numbered := strings.Cut(name, ":")
	if numbered {
		n, err := strconv.Atoi(ordinal)
		if err != nil || n < 0 {
			return "", usage("write cuda:0 for the first GPU", "--device %s: %q is not a device number", name, ordinal)
		}
		opts.Ordinal = n
	}
	switch {
	case kind == "cuda", kind == "emu" && !numbered:
		return kind, nil
	case kind != "auto" || numbered:
		return "", usage("one of auto, cuda, cuda:N, emu", "--device: unknown device %q", name)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	err = hasGPU(ctx, worker.Command{Args: []string{self, "worker"}}, *opts)
	if err != nil && errorCode(err) == "not-built" && pyworker.Runs(&sol.Spec) {
		// torch may know a GPU that this binary does not.
		command, missing := pyworker.Command(ctx, opts.CacheDir)
		if missing != nil {
			return "", invalid(missing)
		}
		err = hasGPU(ctx, command, *opts)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		a.term.Note("no GPU:    %v", err)
		return "emu", nil
	}
	return "cuda", nil
}

// hasGPU asks a worker to open a GPU.
func hasGPU(ctx context.Context, command worker.Command, opts device.Options) error {
	client, err := worker.Start(ctx, command)
	if err != nil {
		return err
	}
	defer client.Close()
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	_, err = client.Open(limit, "cuda", opts)
	return err
}

// openResumed opens the folder of the run to resume; folder and old are nil where there is none.
func openResumed(s *submission, resume string) (folder *runs.Folder, old *runs.Run, err error) {
	if resume == "" {
		return nil, nil, nil
	}
	id, err := runs.Find(s.root, resume)
	if err != nil {
		return nil, nil, invalid(err)
	}
	folder, old, err = runs.Resume(s.root, id)
	return folder, old, invalid(err)
}

// sameRun refuses to go on with another run than the old one: verdicts and figures of two would mix.
func sameRun(old *runs.Run, run *event.Run) error {
	return sameFacts(old, []fact{
		{"content hash", old.Run.ContentHash, run.ContentHash},
		{"definition", old.Run.Definition, run.Definition},
		{"set", old.Run.Set, run.Set},
		{"profile", profileText(old.Run.Profile), profileText(run.Profile)},
		{"timer", old.Run.Timer, run.Timer},
	})
}

// sameDevice refuses to go on with a run on another device, or with another driver.
func sameDevice(old *runs.Run, d event.Device) error {
	o := old.Run.Device
	return sameFacts(old, []fact{{"device", o.Kind, d.Kind}, {"device", o.Name, d.Name}, {"device", o.UUID, d.UUID},
		{"arch", o.Arch, d.Arch}, {"driver", o.Driver, d.Driver}})
}

type fact struct{ what, old, new string }

func sameFacts(old *runs.Run, facts []fact) error {
	for _, f := range facts {
		if f.old != f.new {
			return usage("start a new run without --resume", "--resume %s: its %s is %s, now it is %s", old.ID, f.what, f.old, f.new)
		}
	}
	return nil
}

func profileText(p event.Profile) string {
	text := fmt.Sprintf("%s (%d trials of %d warm-up and %d timed calls, timeout %v", p.Name, p.Trials, p.Warmup, p.Iterations, seconds(p.TimeoutS))
	if p.Target > 0 {
		text += fmt.Sprintf(", more up to %g %% or %v", 100*p.Target, seconds(p.MaxTimeS))
	}
	return text + ")"
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// goOn makes run the continuation of old: it has its id, and its workloads too. skip are the workloads of run that have a
// verdict, failed counts those of them that did not pass, found their findings, and timer is what old was timed with.
func goOn(old *runs.Run, run *event.Run) (skip map[string]bool, failed, found int, timer string) {
	skip = map[string]bool{}
	wanted := map[string]bool{}
	for _, w := range run.Workloads {
		wanted[w.UUID] = true
	}
	for _, row := range old.Rows {
		if row.Samples != nil {
			timer = row.Samples.Timer
		}
		if row.Evaluated == nil || !wanted[row.UUID] {
			continue
		}
		skip[row.UUID] = true
		found += len(row.Findings)
		if row.Evaluated.Status != string(trace.Passed) {
			failed++
		}
	}
	for _, w := range old.Run.Workloads {
		if !wanted[w.UUID] {
			run.Workloads = append(run.Workloads, w)
		}
	}
	run.ID, run.Started = old.ID, old.Run.Started
	return skip, failed, found, timer
}

func host() event.Host {
	h := event.Host{OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}
	h.Name, _ = os.Hostname()
	for line := range strings.Lines(readFile("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			h.CPU = strings.TrimSpace(value)
			break
		}
	}
	for line := range strings.Lines(readFile("/proc/meminfo")) {
		var kb int64
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kb); err == nil {
			h.Memory = kb << 10
			break
		}
	}
	return h
}

func readFile(name string) string {
	data, _ := os.ReadFile(name)
	return string(data)
}

// gitState describes the repository at dir; nil where there is none.
func gitState(ctx context.Context, dir string) *event.Git {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return nil
	}
	status, err := git("status", "--porcelain", "--", filepath.Join(".", "solution"), "config.toml")
	return &event.Git{Commit: commit, Dirty: err != nil || status != ""}
}

func (a *app) workerCommand() *cli.Command {
	return &cli.Command{Name: "worker", Hidden: true, Action: func(c *cli.Context) error {
		in, out, err := worker.Pipes()
		if err != nil {
			return invalid(err)
		}
		go dieWithParent(os.Getppid())
		return worker.Serve(c.Context, in, out, openers, errorCode)
	}}
}

// dieWithParent ends this process, and the emulated kernel that it may be running, when its parent is gone: a hanging
// kernel would never read the end of the requests.
func dieWithParent(parent int) {
	for os.Getppid() == parent {
		time.Sleep(500 * time.Millisecond)
	}
	worker.KillTree(os.Getpid())
}
