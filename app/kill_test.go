package app

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/longtest"
	"fisub/runs"
)

// A kernel that hangs ends with fisub, whichever signal ends fisub.
func TestKilledHang(t *testing.T) {
	longtest.Skip(t, "builds a kernel")
	hangups(t)
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir, cache := t.TempDir(), newCache(t)
	if err := copySubmission(repo, dir); err != nil {
		t.Fatal(err)
	}
	kernel := filepath.Join(dir, "solution", "cuda", "kernel.cu")
	text := "#include <tvm/ffi/tvm_ffi.h>\n#include <unistd.h>\n" +
		"template <class... T> void hang(T...) { for (;;) pause(); }\n" +
		"void kernel(tvm::ffi::TensorView q, tvm::ffi::TensorView k, tvm::ffi::TensorView v, tvm::ffi::TensorView state,\n" +
		"            tvm::ffi::TensorView a_log, tvm::ffi::TensorView a, tvm::ffi::TensorView dt, tvm::ffi::TensorView b,\n" +
		"            double scale, tvm::ffi::TensorView output, tvm::ffi::TensorView new_state) { hang(q); }\n" +
		"TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);\n"
	if err := os.WriteFile(kernel, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("fisub") // testscript.Main put it on PATH
	if err != nil {
		t.Fatal(err)
	}
	// hung returns the processes that have loaded the kernel.
	hung := func() (pids []string) {
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, pid := range all {
			environ, _ := os.ReadFile(filepath.Join(pid, "environ"))
			maps, _ := os.ReadFile(filepath.Join(pid, "maps"))
			if strings.Contains(string(environ), "FISUB_CACHE="+cache) && strings.Contains(string(maps), "/kernel.so") {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	wait := func(what string, until func() bool) {
		t.Helper()
		for range 6000 {
			if until() {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%s: not within a minute", what)
	}
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGKILL} {
		var stderr bytes.Buffer
		cmd := exec.Command(program, "-q", "local", "--device", "emu", "--limit", "1")
		cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "FISUB_CACHE="+cache, "FIB_DATASET_PATH="), &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		wait("the kernel", func() bool {
			select {
			case <-ended:
				t.Fatalf("fisub ended: %s", &stderr)
			default:
			}
			return len(hung()) > 0
		})
		_ = cmd.Process.Signal(signal)
		<-ended
		if status := cmd.ProcessState.ExitCode(); signal == syscall.SIGHUP && status != exitInterrupted {
			t.Errorf("%v: got exit status %d, want %d: %s", signal, status, exitInterrupted, &stderr)
		}
		wait("the end of the kernel", func() bool { return len(hung()) == 0 })
	}
}

// --watch runs again after each save, even if the previous run failed, until an interrupt.
func TestWatch(t *testing.T) {
	longtest.Skip(t, "builds a kernel")
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir, cache := t.TempDir(), newCache(t)
	if err := copySubmission(repo, dir); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("fisub") // testscript.Main put it on PATH
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "local", "--device", "emu", "--limit", "2", "--watch")
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "FISUB_CACHE="+cache, "FIB_DATASET_PATH="), log
	cmd.Stdout = log
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
	change := func(name, from, to string) {
		t.Helper()
		name = filepath.Join(dir, name)
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, []byte(strings.Replace(string(text), from, to, 1)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	waits("(?s:.*)watching   solution/cuda; Ctrl-C ends")
	change("solution/cuda/decode.cuh", "delta_1 = -gate.beta", "delta_1 = gate.beta")
	waits(`WORKLOAD .*\n.{8} +1 +INCORRECT_NUMERICAL .*\n(?s:.*)\d\d:\d\d:\d\d  0 of 2 PASSED, changed: 2 workloads`)
	change("solution/cuda/decode.cuh", "delta_1 = gate.beta", "delta_1 = +gate.beta")
	waits(`\d\d:\d\d:\d\d  0 of 2 PASSED, as before`)
	change("config.toml", "[solution]", "[solution")
	waits("fisub: config.toml:(?s:.*)")
	change("config.toml", "[solution", "[solution]")
	waits(`(?s:.*)\d\d:\d\d:\d\d  0 of 2 PASSED, as before`)
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		t.Errorf("exit status: got %d, want %d", got, exitInterrupted)
	}
	ids, err := runs.IDs(dir)
	if err != nil || len(ids) != 4 {
		t.Fatalf("got runs %v, %v, want 4", ids, err)
	}
	for i, want := range []int{2, 0, 0, 0} {
		r, err := runs.Read(filepath.Join(dir, runs.Dir, ids[i]))
		if err != nil || r.Done == nil || r.Done.Passed != want {
			t.Errorf("run %s: got %+v, %v, want %d passed", ids[i], r, err, want)
		}
	}
}

// A full disk under the cache never leads to a verdict, even if nvcc crashes because of it. The run resumes when there
// is room. The disk is a tmpfs.
func TestFullCache(t *testing.T) {
	longtest.Skip(t, "builds a kernel")
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	disk, dir := t.TempDir(), t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=100k"); err != nil {
		t.Skipf("no small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	shared := newCache(t)
	repo, err := filepath.Abs("..")
	if err == nil {
		err = copySubmission(repo, dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	toolchain, err := os.Readlink(filepath.Join(shared, "toolchain"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("fisub") // testscript.Main put it on PATH
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []string{"100k", "2m", "5m", ""} {
		args := []string{"local", "--device", "emu", "--limit", "1"}
		cache := disk
		if size == "" {
			cache, args = shared, []string{"local", "--resume", "last"}
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
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "FISUB_CACHE="+cache, "FIB_DATASET_PATH=")
		out, err := cmd.CombinedOutput()
		if size == "" {
			if err != nil || !strings.Contains(string(out), "1 of 1 PASSED") {
				t.Errorf("with room: got %v\n%s", err, out)
			}
			continue
		}
		if status := cmd.ProcessState.ExitCode(); status != exitError && status != exitUsage ||
			!strings.Contains(strings.ToLower(string(out)), "no space left on device") {
			t.Errorf("%s: got exit status %d\n%s", size, status, out)
		}
		ids, _ := runs.IDs(dir)
		for _, id := range ids {
			r, err := runs.Read(filepath.Join(dir, runs.Dir, id))
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
	longtest.Skip(t, "kills many runs on the emulator")
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := copySubmission(repo, dir); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("fisub") // testscript.Main put it on PATH
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "FISUB_CACHE="+newCache(t), "FIB_DATASET_PATH=")
	var stderr bytes.Buffer
	// fisub runs the program, with kill at the same time, and returns its exit status, or -1 if a signal ended it.
	fisub := func(kill func(pid int), args ...string) int {
		stderr.Reset()
		cmd := exec.Command(program, append([]string{"-q"}, args...)...)
		cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if kill != nil {
			kill(cmd.Process.Pid)
		}
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}

	// build the kernel, generate the inputs
	if status := fisub(nil, "local", "--device", "emu", "--limit", "10"); status != 0 {
		t.Fatalf("exit status %d: %s", status, &stderr)
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
			t.Fatalf("exit status %d: %s", status, &stderr)
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
func child(pid int) int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, _ := os.ReadFile(path)
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])) // state, parent, ...
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return n
		}
	}
	return 0
}
