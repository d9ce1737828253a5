package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device"
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
			&cli.DurationFlag{Name: "timeout", Usage: "end a workload after `TIME`", DefaultText: "of the profile: 5m"},
			&cli.Float64Flag{Name: "memory-limit", Usage: "end a worker that holds more than `GIB`; 0 is no limit", DefaultText: "three quarters of the machine's"},
			&cli.StringFlag{Name: "arch", Usage: "compile for `ARCH`, such as sm_90a", DefaultText: "the GPU's own"},
			&cli.BoolFlag{Name: "strict", Usage: "exit with 3 also where a workload passed with a finding"},
			&cli.BoolFlag{Name: "sanitize", Usage: "emulator: look for invalid accesses, undefined behaviour and races"},
			&cli.StringFlag{Name: "resume", Usage: "go on with `RUN`, an id, its beginning or last: workloads with a verdict are left out"},
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
	a.warn(s)
	set, profileName := c.String("set"), c.String("profile")
	if s.cfg != nil && set == "" {
		set = s.cfg.Bench.Set
	}
	if s.cfg != nil && profileName == "" {
		profileName = s.cfg.Bench.Profile
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
	}
	ws, err := s.data.Workloads(s.def.Name, set)
	if err != nil {
		return invalid(err)
	}
	if ws, err = choose(ws, c.StringSlice("workload"), c.IsSet("limit"), c.Int("limit")); err != nil {
		return err
	}
	if len(ws) == 0 {
		return usage("fisub dataset ls shows what there is", "no workloads for %s", s.def.Name)
	}
	root, err := cacheRoot()
	if err != nil {
		return err
	}
	opts := device.Options{CacheDir: root, Arch: c.String("arch"), Sanitize: c.Bool("sanitize")}
	kind, err := a.chooseDevice(c.Context, c.String("device"), &opts)
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
			TimeoutS: profile.Timeout.Seconds()},
		Tolerance: event.Tolerance{Atol: profile.Tolerance.Atol, Rtol: profile.Tolerance.Rtol, MatchedRatio: profile.Tolerance.MatchedRatio},
		Host:      host(), Git: gitState(c.Context, s.root)}
	for _, w := range ws {
		axes := map[string]int{}
		for name, n := range w.Axes.All() {
			axes[name] = n
		}
		run.Workloads = append(run.Workloads, event.Workload{UUID: w.UUID, Axes: axes})
	}

	folder, skip, err := openFolder(s, run, kind, c.String("resume"))
	if err != nil {
		return err
	}
	defer folder.Close()
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
		Definition: s.def, Solution: s.sol, Workloads: ws, Skip: skip, Profile: profile, Load: s.data.Load,
		Worker:     worker.Command{Args: []string{self, "worker"}, MemoryLimit: memory},
		DeviceKind: kind, Device: opts, Events: stream, Run: run,
	})
	if c.Context.Err() != nil {
		a.term.Note("go on with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		var dev *bench.DeviceError
		if errors.As(err, &dev) || errors.Is(err, bench.ErrNoReference) {
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
	case result.Failed > 0, c.Bool("strict") && result.Findings+findingsOf(s.root, run.ID, skip) > 0:
		return errNotPassed
	}
	return nil
}

// warn shows what was odd about the input without being wrong.
func (a *app) warn(s *submission) {
	for _, w := range s.warnings {
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
func (a *app) chooseDevice(ctx context.Context, name string, opts *device.Options) (string, error) {
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
	client, err := worker.Start(ctx, worker.Command{Args: []string{self, "worker"}})
	if err != nil {
		return "", err
	}
	defer client.Close()
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := client.Open(limit, "cuda", *opts); err != nil {
		a.term.Note("no GPU:    %v", err)
		return "emu", nil
	}
	return "cuda", nil
}

// openFolder creates the run's folder, or opens the one to resume, and tells which workloads have a verdict there.
func openFolder(s *submission, run *event.Run, kind, resume string) (*runs.Folder, map[string]bool, error) {
	if resume == "" {
		return runs.New(s.root, run.ID), nil, nil
	}
	id, err := runs.Find(s.root, resume)
	if err != nil {
		return nil, nil, invalid(err)
	}
	folder, old, traces, err := runs.Resume(s.root, id)
	if err != nil {
		return nil, nil, invalid(err)
	}
	for _, d := range []struct{ what, old, new string }{
		{"content hash", old.ContentHash, run.ContentHash},
		{"definition", old.Definition, run.Definition},
		{"device", old.Device.Kind, kind},
		{"profile", fmt.Sprint(old.Profile), fmt.Sprint(run.Profile)},
	} {
		if d.old != d.new {
			folder.Close()
			return nil, nil, usage("start a new run without --resume", "--resume %s: its %s is %s, now it is %s", id, d.what, d.old, d.new)
		}
	}
	run.ID, run.Started = old.ID, old.Started
	wanted := map[string]bool{}
	for _, w := range run.Workloads {
		wanted[w.UUID] = true
	}
	skip := map[string]bool{}
	for _, t := range traces {
		if t.Evaluation != nil && wanted[t.Workload.UUID] {
			skip[t.Workload.UUID] = true
		}
	}
	return folder, skip, nil
}

// findingsOf counts the findings on the workloads of a resumed run that were left out.
func findingsOf(root, id string, skip map[string]bool) (n int) {
	if len(skip) == 0 {
		return 0
	}
	_ = runs.Events(root, id, func(e event.Event) error { // the run went on with this very file
		if e.Finding != nil && skip[e.Workload] {
			n++
		}
		return nil
	})
	return n
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
