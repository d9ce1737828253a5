package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/longtest"
	"fisub/remote/servertest"
	"fisub/runs"
)

// A kernel that hangs ends with fisub, whichever signal ends fisub.
func TestKilledHang(t *testing.T) {
	hangups(t)
	b := newRemoteBench(t, "")
	b.change("solution/cuda/kernel.cu", "  if (batch == 0) {\n", "  for (prctl(PR_SET_NAME, \"hung\");;) pause();\n  if (batch == 0) {\n")
	b.change("solution/cuda/kernel.cu", "#include <cstdint>\n", "#include <cstdint>\n#include <sys/prctl.h>\n#include <unistd.h>\n")
	hung := func() bool {
		return len(processes(func(dir string) bool {
			threads, _ := filepath.Glob(dir + "/task/*")
			return has("environ", "FISUB_CACHE="+b.cache)(dir) && slices.ContainsFunc(threads, has("comm", "hung\n"))
		})) > 0
	}
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGKILL} {
		client := b.start("-q", "local", "--device", "emu", "--limit", "1")
		servertest.Until(t, "the kernel", hung)
		if status := client.ends(signal); signal == syscall.SIGHUP && status != exitInterrupted {
			t.Errorf("%v: got exit status %d, want %d: %s", signal, status, exitInterrupted, &client.out)
		}
		servertest.Until(t, "the end of the kernel", func() bool { return !hung() })
	}
}

// change replaces a text in a file.
func (b *remoteBench) change(name, from, to string) {
	b.t.Helper()
	name = filepath.Join(b.dir, name)
	text, err := os.ReadFile(name)
	if err == nil && !strings.Contains(string(text), from) {
		b.t.Fatalf("%s: no %q", name, from)
	}
	if err == nil {
		err = os.WriteFile(name, []byte(strings.Replace(string(text), from, to, 1)), 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// --watch runs again after each save, even if the previous run failed, until an interrupt.
func TestWatch(t *testing.T) {
	b := newRemoteBench(t, "")
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := b.command("local", "--device", "emu", "--limit", "2", "--watch")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	waits := func(line string) {
		t.Helper()
		for range 6000 {
			text, _ := os.ReadFile(log.Name())
			if regexp.MustCompile(`^` + line + `\n$`).Match(text) {
				if err := log.Truncate(0); err != nil {
					t.Fatal(err)
				}
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("no %q within a minute\n%s", line, text)
	}
	waits("(?s:.*)watching   solution/cuda; Ctrl-C ends")
	b.change("solution/cuda/decode.cuh", "delta_1 = -gate.beta", "delta_1 = gate.beta")
	waits(`WORKLOAD .*\n.{8} +1 +INCORRECT_NUMERICAL .*\n(?s:.*)\d\d:\d\d:\d\d  0 of 2 PASSED, changed: 2 workloads`)
	b.change("solution/cuda/decode.cuh", "delta_1 = gate.beta", "delta_1 = +gate.beta")
	waits(`\d\d:\d\d:\d\d  0 of 2 PASSED, as before`)
	b.change("config.toml", "[solution]", "[solution")
	waits("fisub: config.toml:(?s:.*)")
	b.change("config.toml", "[solution", "[solution]")
	waits(`(?s:.*)\d\d:\d\d:\d\d  0 of 2 PASSED, as before`)
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		t.Errorf("exit status: got %d, want %d", got, exitInterrupted)
	}
	ids, err := runs.IDs(b.dir)
	if err != nil || len(ids) != 4 {
		t.Fatalf("got runs %v, %v, want 4", ids, err)
	}
	for i, want := range []int{2, 0, 0, 0} {
		r, err := runs.Read(filepath.Join(b.dir, runs.Dir, ids[i]))
		if err != nil || r.Done == nil || r.Done.Passed != want {
			t.Errorf("run %s: got %+v, %v, want %d passed", ids[i], r, err, want)
		}
	}
}

// A full disk under the cache never leads to a verdict, even if nvcc crashes because of it. The run resumes when there
// is room. The disk is a tmpfs.
func TestFullCache(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	b, disk := newRemoteBench(t, ""), t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=100k"); err != nil {
		t.Skipf("no small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	toolchain, err := os.Readlink(filepath.Join(b.cache, "toolchain"))
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []string{"100k", "2m", "5m", ""} {
		args := []string{"local", "--device", "emu", "--limit", "1"}
		cache := disk
		if size == "" {
			cache, args = b.cache, []string{"local", "--resume", "last"}
		} else {
			left, _ := filepath.Glob(filepath.Join(disk, "*"))
			for _, name := range left {
				os.RemoveAll(name)
			}
			if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size="+size); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(toolchain, filepath.Join(disk, "toolchain")); err != nil {
				t.Fatal(err)
			}
		}
		b.env = append(b.env, "FISUB_CACHE="+cache)
		client := b.start(args...)
		status, out := client.ends(nil), client.out.String()
		if size == "" {
			if status != 0 || !strings.Contains(out, "1 of 1 PASSED") {
				t.Errorf("with room: got exit status %d\n%s", status, out)
			}
			continue
		}
		if status != exitError && status != exitUsage || !strings.Contains(strings.ToLower(out), "no space left on device") {
			t.Errorf("%s: got exit status %d\n%s", size, status, out)
		}
		ids, _ := runs.IDs(b.dir)
		for _, id := range ids {
			r, err := runs.Read(filepath.Join(b.dir, runs.Dir, id))
			if err == nil && slices.ContainsFunc(r.Rows, func(row runs.Row) bool { return row.Evaluated != nil }) {
				t.Errorf("%s: a verdict in run %s", size, id)
			}
		}
	}
}

// fisub or its worker is killed at 20 random points of emulated runs of 10 workloads, and each run is resumed until it
// ends. At most the workload in flight is lost, every line of every file is complete, and nothing is judged twice. A
// killed worker costs only the workload in flight its verdict.
func TestKill(t *testing.T) {
	t.Parallel()
	b := newRemoteBench(t, "")
	dir := b.dir
	var client *process
	// fisub runs the program, with kill at the same time, and returns its exit status, or -1 if a signal ended it.
	fisub := func(kill func(pid int), args ...string) int {
		client = b.start(append([]string{"-q"}, args...)...)
		if kill != nil {
			kill(client.Process.Pid)
		}
		return client.ends(nil)
	}

	// build the kernel, generate the inputs
	if status := fisub(nil, "local", "--device", "emu", "--limit", "10"); status != 0 {
		t.Fatalf("exit status %d: %s", status, &client.out)
	}
	begun := time.Now()
	fisub(nil, "local", "--device", "emu", "--limit", "10")
	whole := time.Since(begun)
	folders, err := runs.IDs(dir)
	if err != nil || len(folders) != 2 {
		t.Fatalf("got runs %v and %v, want 2", folders, err)
	}

	random := rand.New(rand.NewPCG(20, 26))
	kills, inside, completed := 0, 0, 0
	var id string                   // of the incomplete run
	var before map[string]traceText // its verdicts
	faults := 0                     // number of its workers that were killed
	for kills < longtest.Rounds(20) || inside < 3 || id != "" {
		if kills > 200 {
			t.Fatalf("kills between the first verdict and the last: got %d of %d, want 3 at least", inside, kills)
		}
		args := []string{"local", "--device", "emu", "--limit", "10"}
		if id != "" {
			args = append(args, "--resume", id)
		}
		worker, struck, had := kills%2 == 1, false, countEvents(dir, folders)
		var kill func(int)
		if kills < 20 || inside < 3 {
			// After a random number of events, wait for a random part of the time to the next event.
			events, wait := random.IntN(2*(10-len(before))+4), time.Duration(random.Float64()*float64(whole)/12)
			kill = func(pid int) {
				for from := time.Now(); countEvents(dir, folders) < events+had && time.Since(from) < 2*whole; {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(wait)
				if worker {
					pid = child(pid)
				}
				struck = pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
			}
		}
		status := fisub(kill, args...)
		struck = struck && (worker || status == -1)
		if struck {
			kills++
		}
		ids, err := runs.IDs(dir)
		if err != nil {
			t.Fatal(err)
		}
		ids = slices.DeleteFunc(ids, func(old string) bool { return slices.Contains(folders, old) })
		if len(ids) == 0 { // killed before the first event
			continue
		}
		id = ids[0]
		if struck && worker {
			faults++
		}

		r, err := runs.Read(filepath.Join(dir, runs.Dir, id))
		if err != nil {
			if strings.Contains(err.Error(), runs.ErrEmpty.Error()) { // killed during the first event: nothing to resume
				folders, id = append(folders, id), ""
				continue
			}
			t.Fatal(err)
		}
		if r.Started > 1 {
			t.Fatalf("run %s: %d workloads lost, want the one in flight at most", id, r.Started)
		}
		now := verdicts(t, dir, id)
		for uuid, text := range before {
			if now[uuid] != text {
				t.Fatalf("run %s: the verdict of %s was lost or replaced", id, uuid)
			}
		}
		before = now
		if len(now) > 0 && len(now) < 10 && struck {
			inside++
		}
		if status == -1 {
			continue
		}
		if status != 0 && status != 3 && (status != 1 || !worker) {
			t.Fatalf("exit status %d: %s", status, &client.out)
		}
		if status == 1 { // the worker died while it opened the device of a resumed run
			continue
		}
		if r.State() != "done" || len(now) != 10 || r.Done.Missing != 0 || r.Done.Failed > faults {
			for _, row := range r.Rows {
				if row.Evaluated != nil && !row.Evaluated.Passed() {
					t.Logf("%s: %s %s\n%s", row.UUID, row.Evaluated.Status(), row.Evaluated.Detail, row.Evaluated.Log())
				}
			}
			t.Fatalf("run %s: got %+v with %d verdicts, want 10 with at most %d failed", id, r.Done, len(now), faults)
		}
		wholeFiles(t, filepath.Join(dir, runs.Dir, id))
		completed++
		folders, id, before, faults = append(folders, id), "", nil, 0
	}
	t.Logf("%d kills, %d of them between the first verdict and the last; %d runs complete; one takes %v",
		kills, inside, completed, whole.Round(time.Millisecond))
}

// A traceText is a line of traces.jsonl.
type traceText string

// countEvents counts the events of the run that is not in old.
func countEvents(dir string, old []string) int {
	ids, _ := runs.IDs(dir)
	for _, id := range ids {
		if !slices.Contains(old, id) {
			data, _ := os.ReadFile(filepath.Join(dir, runs.Dir, id, "events.jsonl"))
			return bytes.Count(data, []byte("\n"))
		}
	}
	return 0
}

// verdicts returns the verdicts in the events of a run. It fails on duplicates and ignores an incomplete last line.
func verdicts(t *testing.T, dir, id string) map[string]traceText {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, runs.Dir, id, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]traceText{}
	for line := range strings.Lines(string(data)) {
		if !strings.HasSuffix(line, "\n") {
			continue
		}
		var e struct {
			Workload  string
			Evaluated *struct{ Trace json.RawMessage }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("run %s: %v in %s", id, err, line)
		}
		if e.Evaluated == nil {
			continue
		}
		if _, ok := all[e.Workload]; ok {
			t.Fatalf("run %s: workload %s was judged twice", id, e.Workload)
		}
		all[e.Workload] = traceText(e.Evaluated.Trace)
	}
	return all
}

// wholeFiles checks that all lines of all files are JSON, and that each workload has one trace.
func wholeFiles(t *testing.T, path string) {
	t.Helper()
	for _, name := range []string{"run.json", "events.jsonl", "traces.jsonl", "samples.jsonl"} {
		data, err := os.ReadFile(filepath.Join(path, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 0 && data[len(data)-1] != '\n' {
			t.Errorf("%s: its last line has no end", name)
		}
		seen := map[string]bool{}
		for line := range strings.Lines(string(data)) {
			if name == "run.json" {
				line = string(data)
			}
			var v struct{ Workload struct{ UUID string } }
			if err := json.Unmarshal([]byte(line), &v); name != "events.jsonl" && err != nil || !json.Valid([]byte(line)) {
				t.Fatalf("%s: %v in %q", name, err, line)
			}
			seen[v.Workload.UUID] = true
		}
		if name == "traces.jsonl" && (len(seen) != 10 || strings.Count(string(data), "\n") != 10) {
			t.Errorf("traces.jsonl: got %d workloads in %d lines, want 10 in 10", len(seen), strings.Count(string(data), "\n"))
		}
	}
}

// child returns a child process of pid, or 0.
func child(pid int) (child int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		if first, _, _ := strings.Cut(string(text), " "); first != "" {
			child, _ = strconv.Atoi(first)
		}
	}
	return child
}
