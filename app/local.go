package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/runs"
	"fisub/bench/stats"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/remote/dispatch"
)

func (a *app) localCommand() *cli.Command {
	return &cli.Command{
		Name:  "local",
		Usage: "run the submission's workloads on this machine",
		Description: "Builds the submission, runs it on every workload of the set, judges the outputs as the contest does, and,\n" +
			"on a GPU, times it. Where there is no GPU the same kernel.cu runs on a CPU emulation, which finds wrong\n" +
			"results but measures nothing.\n\n" +
			"   fisub local\n" +
			"   fisub local --set contest54 --device cuda:0            the contest's mix of batch sizes, on the first GPU\n" +
			"   fisub local --workload 3fb7 --device emu --sanitize    races and invalid accesses, on one workload\n" +
			"   fisub local --solution solution.json                   what was packed, instead of the sources\n" +
			"   fisub local --baseline warp-per-row                    speed-ups and the contest's score\n" +
			"   fisub local --resume last                              go on with a run that was cut off",
		Flags: append(runFlags(),
			&cli.StringFlag{Name: "solution", Usage: "run the packed solution in `FILE` instead of the sources"},
			baselineFlag(),
			&cli.StringFlag{Name: "prebuilt", Usage: "take compiled kernels from `DIR`", Hidden: true},
			&cli.BoolFlag{Name: "strict", Usage: "exit with 3 also where a workload passed with a finding"},
			&cli.BoolFlag{Name: "sanitize", Usage: "emulator: look for invalid accesses, undefined behaviour and races"},
			&cli.StringFlag{Name: "resume", Usage: "go on with `RUN`, an id, its beginning, last or last~1: set, workloads, profile, timer, baseline and device are its own unless given, and workloads with a verdict are left out"}),
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
	folder, old, err := openResumed(s, c.String("resume"))
	if err != nil {
		return err
	}
	if folder != nil {
		defer folder.Close()
	}
	u, err := a.newSetup(c, s, old)
	if err != nil {
		return err
	}
	if u.device.Sanitize && u.kind != "emu" {
		return usage("add --device emu", "--sanitize: only the emulator has sanitizers")
	}
	if u.baseline, err = a.baseline(c, s, old, u.kind); err != nil {
		return err
	}
	run := u.describe(c.Context, s)

	before := &rest{}
	var admit func(device.Info) error
	if old == nil {
		folder = runs.New(s.root, run.ID)
		defer folder.Close()
	} else {
		if err := sameRun(old, run); err != nil {
			return err
		}
		admit = func(d device.Info) error { return sameDevice(old, d) }
		before = goOn(old, run)
		a.term.Note("resumed    %s: %d of %d workloads have a verdict", run.ID, len(before.skip), len(u.workloads))
		if len(before.skip) == len(u.workloads) {
			if before.failed > 0 || c.Bool("strict") && before.findings > 0 {
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
	result, err := bench.Run(c.Context, u.shared(s), bench.Entry{Solution: s.sol, Events: stream, Run: run,
		Admit: admit, Skip: before.skip, TimedWith: before.timer, Score: before.score})
	if c.Context.Err() != nil {
		a.term.Note("go on with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		return machine(err)
	}
	if err := stream.Err(); err != nil {
		return err
	}
	a.term.Note("run folder %s", relative(folder.Path()))
	switch {
	case result.Missing > 0:
		return errShown
	case result.Failed+before.failed > 0, c.Bool("strict") && result.Findings+before.findings > 0:
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
	if dispatch.IsRemote(filepath.Join(s.root, runs.Dir, id)) {
		return nil, nil, usage("fisub remote attach "+id, "--resume %s: it is a remote run", id)
	}
	folder, old, err = runs.Resume(s.root, id)
	return folder, old, invalid(err)
}

// sameRun refuses to go on with another run than the old one: verdicts and figures of two would mix.
func sameRun(old *runs.Run, run *event.Run) error {
	passing := run.DPS
	if old.Run.DPS != nil {
		passing = old.Run.DPS
	}
	return sameFacts(old, []fact{
		{"content hash", old.Run.ContentHash, run.ContentHash},
		{"solution", old.Run.Solution, run.Solution},
		{"destination-passing style", fmt.Sprint(*passing), fmt.Sprint(*run.DPS)},
		{"definition", old.Run.Definition, run.Definition},
		{"set", old.Run.Set, run.Set},
		{"profile", ui.Profile(old.Run.Profile), ui.Profile(run.Profile)},
		{"timer", old.Run.Timer, run.Timer},
		{"baseline", baselineText(old.Run.Baseline), baselineText(run.Baseline)},
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

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// A rest is what a run that goes on has already.
type rest struct {
	skip     map[string]bool // workloads that have a verdict
	failed   int             // of them
	findings int
	timer    string      // what they were timed with, "" where none was
	score    stats.Score // of them
}

// goOn makes run the continuation of old: it has its id, and its workloads too.
func goOn(old *runs.Run, run *event.Run) *rest {
	r := &rest{skip: map[string]bool{}}
	wanted := map[string]bool{}
	for _, w := range run.Workloads {
		wanted[w.UUID] = true
	}
	for _, row := range old.Rows {
		if row.Samples != nil {
			r.timer = row.Samples.Timer
		}
		if row.Evaluated == nil || !wanted[row.UUID] {
			continue
		}
		r.skip[row.UUID] = true
		r.findings += len(row.Findings)
		row.Score(&r.score)
		if row.Evaluated.Status != string(trace.Passed) {
			r.failed++
		}
	}
	for _, w := range old.Run.Workloads {
		if !wanted[w.UUID] {
			run.Workloads = append(run.Workloads, w)
		}
	}
	run.ID, run.Started = old.ID, old.Run.Started
	return r
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
	commit, dirty := git.State(ctx, dir, "solution", config.Name)
	if commit == "" {
		return nil
	}
	return &event.Git{Commit: commit, Dirty: dirty}
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
