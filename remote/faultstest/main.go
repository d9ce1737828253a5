//go:build linux

// Command faultstest checks fisub's guarantees about remote runs. Each run uses three hosts with a real sshd, in
// namespaces on this machine, and suffers one random fault. It is followed to its end and judged. All workloads must be
// in the final result exactly once, with the verdict of fisub local and of the host's stream. Nothing may be left on
// the hosts. Exit statuses must agree with `fisub help exit-status`.
//
//	go run ./remote/faultstest -runs 200 -seed 1
//	go run ./remote/faultstest -runs 1 -seed 37 -keep DIR    repeat run 37
//
// It needs root and Linux, ip, tc, nsenter, sshd and ssh. Everything that it creates is in namespaces that end with it,
// however it ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fisub/internal/cache"
	"fisub/runs"
)

type options struct {
	Seed   uint64
	Runs   int
	AtOnce int
	Time   time.Duration
	Fisub  string
	Source string // folder of the submission
	Keep   string
	Only   string
	Work   string
}

// insideMode is the argument with which this program runs itself in new namespaces.
const insideMode = "inside"

func main() {
	if len(os.Args) == 3 && os.Args[1] == machineMode {
		fail(machineMain(os.Args[2]))
		return
	}
	if len(os.Args) == 3 && os.Args[1] == insideMode {
		var o options
		fail(json.Unmarshal([]byte(os.Args[2]), &o))
		os.Exit(inside(o))
	}
	var o options
	flag.Uint64Var(&o.Seed, "seed", 1, "of the first run; each further one has the next")
	flag.IntVar(&o.Runs, "runs", 200, "number of runs")
	flag.IntVar(&o.AtOnce, "at-once", 4, "runs at a time, each over hosts of its own")
	flag.DurationVar(&o.Time, "time", time.Hour, "begin no run after this time")
	flag.StringVar(&o.Fisub, "fisub", "dist/fisub", "the program, of scripts/build")
	flag.StringVar(&o.Source, "submission", ".", "folder of the submission")
	flag.StringVar(&o.Keep, "keep", "dist/faults", "folder for the logs of runs that break a promise")
	flag.StringVar(&o.Only, "only", "", "one fault: "+strings.Join(faults, ", "))
	flag.Parse()
	if flag.NArg() > 0 || o.Runs < 1 || o.Runs > 10000 || o.AtOnce < 1 || o.AtOnce > 16 ||
		o.Only != "" && !slices.Contains(faults, o.Only) {
		flag.Usage()
		os.Exit(2)
	}
	status, err := outside(o)
	fail(err)
	os.Exit(status)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// missing returns a missing requirement of this machine, or "".
func missing() string {
	if os.Getuid() != 0 {
		return "root, for namespaces"
	}
	path := os.Getenv("PATH")
	os.Setenv("PATH", path+":/usr/sbin:/sbin")
	for tool, where := range map[string]string{"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux",
		"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "g++": "g++"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + ", which is in Debian's " + where
		}
	}
	return ""
}

// outside runs this program in new namespaces, which end with it, and forwards signals.
func outside(o options) (status int, err error) {
	if lacks := missing(); lacks != "" {
		return 0, errors.New("this machine lacks " + lacks)
	}
	for _, path := range []*string{&o.Fisub, &o.Source, &o.Keep} {
		if *path, err = filepath.Abs(*path); err != nil {
			return 0, err
		}
	}
	if _, err := os.Stat(o.Fisub); err != nil {
		return 0, fmt.Errorf("%w; scripts/build makes it", err)
	}
	if o.Work, err = os.MkdirTemp("", "fisub-faults-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(o.Work)
	spec, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // the child dies with the thread that starts it
	cmd := exec.Command("/proc/self/exe", insideMode, string(spec))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		stopping := false
		for {
			select {
			case <-signals:
				again := syscall.SIGTERM
				if stopping {
					again = syscall.SIGKILL
				}
				stopping = true
				_ = cmd.Process.Signal(again)
			case <-time.After(time.Minute):
				if stopping {
					_ = cmd.Process.Kill()
				}
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	if exited := (*exec.ExitError)(nil); errors.As(err, &exited) {
		return exited.ExitCode(), nil
	}
	return 0, err
}

// inside executes the runs and prints their results. It returns 0 if no guarantee was broken.
func inside(o options) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", "/proc", "proc", 0, ""),
		unix.Mount("none", o.Work, "tmpfs", 0, "mode=755"),
		ownEtc(filepath.Join(o.Work, "etc")),
		combined(exec.Command("ip", "link", "set", "lo", "up")),
	} {
		fail(err)
	}
	version, _ := exec.Command(o.Fisub, "--version").CombinedOutput()
	fmt.Printf("faultstest -runs %d -seed %d -at-once %d, %s", o.Runs, o.Seed, o.AtOnce, version)
	base := filepath.Join(o.Work, "base")
	want, err := prepare(ctx, o, base)
	fail(err)
	begun := time.Now()
	var all []*result
	var mu sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, o.AtOnce)
	for i := range o.Runs {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || time.Since(begun) > o.Time {
			break
		}
		s := draw(o.Seed+uint64(i), o.Only)
		group.Go(func() {
			defer func() { <-slots }()
			dir := filepath.Join(o.Work, fmt.Sprint("run-", s.Seed))
			fail(os.Mkdir(dir, 0o755))
			r := try(ctx, dir, base, s, want[s.Mixed])
			if ctx.Err() == nil {
				mu.Lock()
				all = append(all, r)
				r.print(os.Stdout, len(all), o.Runs)
				mu.Unlock()
				if len(r.Problems) > 0 {
					r.keep(dir, filepath.Join(o.Keep, fmt.Sprint("run-", s.Seed)))
				}
			}
			_ = os.RemoveAll(dir)
		})
	}
	group.Wait()
	summary(os.Stdout, all, time.Since(begun))
	switch {
	case ctx.Err() != nil:
		return 130
	case slices.ContainsFunc(all, func(r *result) bool { return len(r.Problems) > 0 }):
		return 3
	case len(all) < o.Runs:
		return 1
	}
	return 0
}

// most is the maximum number of workloads of a run.
const most = 12

func projectName(mixed bool) string {
	if mixed {
		return "mixed"
	}
	return "good"
}

// clientCache is the folder in base with the initial cache of each world's client.
const clientCache = "client-cache"

// prepare creates everything that worlds share and returns the verdicts of fisub local.
func prepare(ctx context.Context, o options, base string) (want map[bool]map[string]string, err error) {
	want = map[bool]map[string]string{}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return nil, err
	}
	if err := combined(exec.Command("cp", o.Fisub, filepath.Join(base, "fisub"))); err != nil {
		return nil, err
	}
	// Worlds have no network to download a compiler.
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	compiler, to := filepath.Join(root, "toolchain"), filepath.Join(base, clientCache)
	if err := errors.Join(os.Mkdir(to, 0o755), combined(exec.Command("cp", "-a", compiler, to))); err != nil {
		return nil, fmt.Errorf("fisub toolchain install comes first: %w", err)
	}
	for _, mixed := range []bool{false, true} {
		dir := filepath.Join(base, projectName(mixed))
		if err := submission(o.Source, dir, mixed); err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(base, "fisub"), "-q", "-C", dir, "local", "--device", "emu", "--limit",
			fmt.Sprint(most))
		cmd.Env = append(os.Environ(), "FISUB_CACHE="+filepath.Join(base, clientCache), "FIB_DATASET_PATH=")
		err := combined(cmd)
		if status := cmd.ProcessState.ExitCode(); err != nil && status != 3 {
			return nil, err
		}
		ids, err := runs.IDs(dir)
		if err != nil || len(ids) != 1 {
			return nil, fmt.Errorf("%s: %d runs, %w", dir, len(ids), err)
		}
		r, err := runs.Read(filepath.Join(dir, runs.Dir, ids[0]))
		if err != nil {
			return nil, err
		}
		want[mixed] = verdicts(r)
		passed, total := r.Passed()
		fmt.Printf("submission %q: %d of %d workloads pass\n", projectName(mixed), passed, total)
		if len(want[mixed]) != total || passed == 0 || mixed == (passed == total) {
			return nil, fmt.Errorf("%s: got %d verdicts of %d, %d passed", dir, len(want[mixed]), total, passed)
		}
		if err := os.RemoveAll(filepath.Join(dir, ".fisub")); err != nil {
			return nil, err
		}
	}
	// After a run without a fault, the host's store is the initial one of other worlds.
	dir := filepath.Join(o.Work, "run-0")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	w, err := newWorld(dir, base, false)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	defer w.end()
	if err := w.project(filepath.Join(base, "good"), table(time.Minute)); err != nil {
		return nil, err
	}
	r := &result{}
	status, ok := w.command(ctx, r, "remote", "remote", "--on", "lab", "--limit", fmt.Sprint(most))
	if !ok || status != 0 {
		return nil, fmt.Errorf("a run without a fault: exit status %d, %v: %s", status, r.Problems, w.words("remote"))
	}
	for _, part := range []string{"cache", "store"} {
		_ = os.RemoveAll(filepath.Join(base, part))
		if err := combined(exec.Command("cp", "-a", workFolder(w.hosts[0], part), base)); err != nil {
			return nil, err
		}
	}
	return want, nil
}

// Code inserted into the submission's kernel: a delay and, with mixed, skipped workloads and a process left behind.
const (
	where = "  if (batch == 0) {\n    return;\n  }\n"
	nap   = "  usleep(250000);\n"
	skip  = "  uint16_t first = 0;\n  cudaMemcpy(&first, x.b, sizeof first, cudaMemcpyDeviceToHost);\n" +
		"  if (first & 1) {\n    return;\n  }\n" +
		"  if (fork() == 0) {\n    setsid();\n    for (int fd = 0; fd < 256; fd++) close(fd);\n" +
		"    sleep(3600);\n    _exit(0);\n  }\n"
	include = "#include <cstdint>\n"
)

// submission writes a modified copy of the repository's submission to dir.
func submission(from, dir string, mixed bool) error {
	kernels := filepath.Join(dir, "solution", "cuda")
	if err := os.MkdirAll(kernels, 0o755); err != nil {
		return err
	}
	if err := combined(exec.Command("cp", filepath.Join(from, "config.toml"), dir)); err != nil {
		return err
	}
	sources, err := filepath.Glob(filepath.Join(from, "solution", "cuda", "*.cu*"))
	if err != nil {
		return err
	}
	changed := 0
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		code := string(text)
		if strings.Contains(code, where) && strings.Contains(code, include) {
			more := nap
			if mixed {
				more += skip
			}
			code = strings.Replace(strings.Replace(code, where, where+more, 1), include, include+"#include <unistd.h>\n", 1)
			changed++
		}
		if err := os.WriteFile(filepath.Join(kernels, filepath.Base(name)), []byte(code), 0o644); err != nil {
			return err
		}
	}
	if changed != 1 {
		return fmt.Errorf("%s: %d sources of a kernel to change, want 1", from, changed)
	}
	return nil
}
