package app

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/longtest"
	"fisub/internal/trace"
	"fisub/remote/agent"
	"fisub/remote/dispatch"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
	"fisub/remote/ssh/sshdtest"
	"fisub/runs"
)

// A remoteBench is a folder with a submission, with this machine as its hosts.
type remoteBench struct {
	t      testing.TB
	dir    string
	cache  string
	env    []string
	stderr bytes.Buffer
	stdout bytes.Buffer
}

func newRemoteBench(t testing.TB, tables string) *remoteBench {
	t.Helper()
	longtest.Skip(t, "runs on the emulator")
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	b := &remoteBench{t: t, dir: t.TempDir(), cache: newCache(t)}
	if err := copySubmission(repo, b.dir); err != nil {
		t.Fatal(err)
	}
	config, err := os.OpenFile(filepath.Join(b.dir, "config.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer config.Close()
	if _, err := config.WriteString("\n" + tables); err != nil {
		t.Fatal(err)
	}
	b.env = append(os.Environ(), "FISUB_CACHE="+b.cache, "FIB_DATASET_PATH=", "GORACE=atexit_sleep_ms=0")
	return b
}

// newLoopbackBench returns a bench with the table remote.here, with more lines, and its work folder.
func newLoopbackBench(t testing.TB, more ...string) (b *remoteBench, work string) {
	t.Helper()
	work = t.TempDir()
	return newRemoteBench(t, fmt.Sprintf("[remote.here]\nprovider = \"loopback\"\nworkdir = %q\ngpu = \"none\"\n%s\n", work,
		strings.Join(more, "\n"))), work
}

// newSSHBench returns a bench with the table remote.lab of n real sshds, with more lines, and the hosts' work folders.
func newSSHBench(t testing.TB, n int, more ...string) (b *remoteBench, f *sshdtest.Fleet, works []string) {
	t.Helper()
	f = sshdtest.New(t, n)
	return newRemoteBench(t, sshTable(f, more...)), f, workFolders(f)
}

func sshTable(f *sshdtest.Fleet, more ...string) string {
	var hosts []string
	for _, d := range f.Daemons {
		hosts = append(hosts, strconv.Quote(d.Name))
	}
	return fmt.Sprintf("[remote.lab]\nprovider = \"ssh\"\nhosts = [%s]\nssh_config = %q\ngpu = \"none\"\n%s\n",
		strings.Join(hosts, ", "), f.Config, strings.Join(more, "\n"))
}

func workFolders(f *sshdtest.Fleet) (works []string) {
	for _, d := range f.Daemons {
		works = append(works, filepath.Join(d.Home, ".cache/fisub/remote"))
	}
	return works
}

// linger makes each worker of the submission wait on its host until letGo, for at most ten minutes, so that a job does
// not end before the test has acted on it.
func (b *remoteBench) linger() {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.dir, "solution/cuda/kernel.cu"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`
#include <cstdlib>
#include <string>
#include <unistd.h>
static bool waited = [] {
  const char* job = getenv("FISUB_JOB");
  for (int i = 0; job && i < 60000 && access((std::string(job) + "/../../go").c_str(), F_OK); i++) usleep(10000);
  return true;
}();
`)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// letGo releases the waiting jobs below work folders. It also applies to later jobs, until hold.
func letGo(t testing.TB, works ...string) {
	t.Helper()
	for _, work := range works {
		if err := os.WriteFile(filepath.Join(work, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func hold(t testing.TB, works ...string) {
	t.Helper()
	for _, work := range works {
		if err := os.Remove(filepath.Join(work, "go")); err != nil {
			t.Fatal(err)
		}
	}
}

// share gives the jobs below a host's work folder this machine's cache, so that the kernel is built once.
func (b *remoteBench) share(work string) {
	b.t.Helper()
	if err := os.MkdirAll(work, 0o700); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Symlink(b.cache, filepath.Join(work, "cache")); err != nil {
		b.t.Fatal(err)
	}
}

func (b *remoteBench) command(args ...string) *exec.Cmd {
	b.t.Helper()
	program, err := exec.LookPath("fisub") // testscript.Main put it on PATH
	if err != nil {
		b.t.Fatal(err)
	}
	b.stderr.Reset()
	b.stdout.Reset()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env, cmd.Stderr, cmd.Stdout = b.dir, b.env, &b.stderr, &b.stdout
	return cmd
}

// fisub runs the program, checks its exit status and returns its stdout.
func (b *remoteBench) fisub(want int, args ...string) string {
	b.t.Helper()
	cmd := b.command(args...)
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != want {
		b.t.Fatalf("fisub %s: exit status %d, want %d\n%s%s", strings.Join(args, " "), got, want, &b.stdout, &b.stderr)
	}
	return b.stdout.String()
}

// A process is the program, running with output of its own.
type process struct {
	*exec.Cmd
	out bytes.Buffer // both stdout and stderr
}

// start starts the program.
func (b *remoteBench) start(args ...string) *process {
	b.t.Helper()
	p := &process{Cmd: b.command(args...)}
	p.Stdout, p.Stderr = &p.out, &p.out
	if err := p.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// ends sends a signal, if not nil, and returns the exit status: -1 if the program was killed.
func (p *process) ends(sig os.Signal) int {
	if sig != nil {
		_ = p.Process.Signal(sig)
	}
	_ = p.Wait()
	return p.ProcessState.ExitCode()
}

// lastFolder returns the folder of the newest run.
func (b *remoteBench) lastFolder() string {
	b.t.Helper()
	ids, err := runs.IDs(b.dir)
	if err != nil || len(ids) == 0 {
		b.t.Fatalf("runs: %v, %v", ids, err)
	}
	return filepath.Join(b.dir, runs.Dir, ids[len(ids)-1])
}

// last reads the newest run.
func (b *remoteBench) last() *runs.Run {
	b.t.Helper()
	r, err := runs.Read(b.lastFolder())
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// whole checks that each of n workloads passed exactly once according to all files of the run, and that no job is
// left.
func (b *remoteBench) whole(r *runs.Run, n int) {
	b.t.Helper()
	b.held(r, n, 0)
}

// held is like whole, except that this many jobs may still run.
func (b *remoteBench) held(r *runs.Run, n, held int) {
	b.t.Helper()
	passed, total := r.Passed()
	if passed != n || total != n || r.State() != "done" {
		b.t.Errorf("run %s: got %d of %d passed, %s, want %d", r.ID, passed, total, r.State(), n)
	}
	dir := filepath.Join(b.dir, runs.Dir, r.ID)
	traces, _, err := trace.ReadTraces(filepath.Join(dir, "traces.jsonl"))
	seen := map[string]bool{}
	for _, t := range traces {
		seen[t.Workload.UUID] = true
	}
	if err != nil || len(traces) != n || len(seen) != n {
		b.t.Errorf("traces: got %d of %d workloads, %v, want %d", len(traces), len(seen), err, n)
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "events.jsonl")); bytes.Count(data, []byte(`"type":"evaluated"`)) != n {
		b.t.Errorf("events: got %d verdicts, want %d", bytes.Count(data, []byte(`"type":"evaluated"`)), n)
	}
	plan, err := dispatch.Load(dir)
	if err != nil || plan.Done != (held == 0) || len(plan.Active()) != held {
		b.t.Errorf("plan: got %d jobs that may run, done %v, %v, want %d", len(plan.Active()), plan.Done, err, held)
	}
}

// nothingIn checks that no job is left below the hosts' work folders, and no process of it.
func nothingIn(t testing.TB, works ...string) {
	t.Helper()
	for _, work := range works {
		if entries, err := os.ReadDir(agent.Jobs(work)); err != nil || len(entries) != 0 {
			t.Errorf("left in %s: %v, %v", work, entries, err)
		}
		servertest.Until(t, "the end of all processes in "+work, func() bool {
			return len(processes(func(dir string) bool {
				at, err := os.Readlink(filepath.Join(dir, "cwd"))
				return err == nil && strings.HasPrefix(at, work)
			})) == 0
		})
	}
}

// processes returns the command lines of the processes whose folders in /proc the function selects.
func processes(which func(dir string) bool) (all []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if which(dir) {
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return all
}

// has selects the processes in whose file in /proc the word is.
func has(file, word string) func(dir string) bool {
	return func(dir string) bool {
		text, _ := os.ReadFile(filepath.Join(dir, file))
		return strings.Contains(string(text), word)
	}
}

// Runs over three real sshds give the verdicts of fisub local, even if one of the hosts dies.
func TestRemoteSSH(t *testing.T) {
	t.Parallel()
	b, f, works := newSSHBench(t, 3, `away = "3s"`)
	for _, work := range works {
		b.share(work)
	}
	b.fisub(0, "local", "--device", "emu", "--limit", "12")
	local := judgements(b.last())
	b.fisub(0, "remote", "--on", "lab", "--limit", "12")
	r := b.last()
	b.whole(r, 12)
	if got := judgements(r); fmt.Sprint(got) != fmt.Sprint(local) {
		t.Errorf("verdicts: got %v, want those of fisub local %v", got, local)
	}
	if got := placeCounts(r); got != "map[lab: h1 gpu 0:4 lab: h2 gpu 0:4 lab: h3 gpu 0:4]" {
		t.Errorf("places: got %v", got)
	}

	// During a run one host is cut off, and the agent on another one is killed.
	b.linger()
	client := b.start("remote", "--on", "lab")
	remotetest.KillAgent(t, works[2], b.awaitStream(works[2]))
	b.awaitStream(works[1])
	f.Daemons[1].Stop()
	letGo(t, works...)
	if status := client.ends(nil); status != 0 {
		t.Errorf("with two hosts lost: exit status %d\n%s", status, &client.out)
	}
	b.held(b.last(), 20, 1)
	if got := b.fisub(0, "remote", "ls"); !strings.Contains(got, " done, 1 may still run ") {
		t.Errorf("ls: got %s", got)
	}
	// The host may have been cut off before the client knew that its job had started.
	for _, want := range []string{"the agent, process", "warning: lab: h2 gpu 0: ",
		"1 job may still run: lab: h2 gpu 0; end it with fisub remote gc"} {
		if !strings.Contains(client.out.String(), want) {
			t.Errorf("with two hosts lost: got\n%s, want %q", &client.out, want)
		}
	}
	f.Daemons[1].Start(t)
	b.fisub(0, "remote", "gc", "--yes")
	b.whole(b.last(), 20)
	b.fisub(0, "remote", "hosts")
	nothingIn(t, works...)

	// The client is killed. Its connections end, its jobs continue, and the run is resumed.
	hold(t, works...)
	client = b.start("remote", "--on", "lab")
	for _, work := range works {
		b.awaitStream(work)
	}
	time.Sleep(time.Second / 2) // now the jobs are silent, and the client has read their output
	client.ends(os.Kill)
	servertest.Until(t, "the end of the connections", func() bool { return len(processes(has("cmdline", f.Config))) == 0 })
	letGo(t, works...)
	b.fisub(0, "remote", "attach", "last")
	b.whole(b.last(), 20)
	nothingIn(t, works...)

	f.Daemons[2].Stop()
	b.fisub(1, "remote", "hosts")
	if !strings.Contains(b.stdout.String(), "Connection refused") {
		t.Errorf("hosts: got %s", &b.stdout)
	}
}

// awaitStream waits until a job in the work folder has a stream, and returns its id.
func (b *remoteBench) awaitStream(work string) (job string) {
	b.t.Helper()
	servertest.Until(b.t, "a job that runs", func() bool {
		streams, _ := filepath.Glob(filepath.Join(agent.Jobs(work), "*", agent.EventsName))
		if len(streams) > 0 {
			job = filepath.Base(filepath.Dir(streams[0]))
		}
		return job != ""
	})
	return job
}

// placeCounts returns the number of workloads by place.
func placeCounts(r *runs.Run) string {
	n := map[string]int{}
	for _, row := range r.Rows {
		n[row.Place]++
	}
	return fmt.Sprint(n)
}

func judgements(r *runs.Run) (all []string) {
	for _, row := range r.Rows {
		if row.Evaluated != nil {
			all = append(all, fmt.Sprint(row.UUID, row.Evaluated.Status(), *row.Evaluated.Trace.Evaluation.Correctness))
		}
	}
	slices.Sort(all)
	return all
}

// hangups restores the usual SIGHUP for child processes, in case the test itself runs under nohup.
func hangups(t *testing.T) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(c) })
}

// Without a terminal an interrupt ends the jobs. A closed terminal leaves them running.
func TestRemoteSignals(t *testing.T) {
	hangups(t)
	b, work := newLoopbackBench(t)
	b.linger()
	for sig, want := range map[os.Signal]string{os.Interrupt: "all jobs are stopped", syscall.SIGHUP: "fisub remote attach"} {
		client := b.start("remote")
		b.awaitJob(work)
		if status := client.ends(sig); status != exitInterrupted || !strings.Contains(client.out.String(), want) {
			t.Errorf("%v: exit status %d\n%s", sig, status, &client.out)
		}
		if sig == os.Interrupt {
			nothingIn(t, work)
			continue
		}
		letGo(t, work)
		b.fisub(0, "remote", "attach", "last")
		b.whole(b.last(), 20)
		nothingIn(t, work)
		hold(t, work)
	}
}

// awaitJob waits until jobs below the work folders have started and the client has the handles of all its jobs.
func (b *remoteBench) awaitJob(works ...string) {
	b.t.Helper()
	servertest.Until(b.t, "the jobs", func() bool {
		for _, work := range works {
			if states, _ := filepath.Glob(filepath.Join(work, "jobs/*/agent.json")); len(states) == 0 {
				return false
			}
		}
		plan, err := dispatch.Load(b.lastFolder())
		return err == nil && !slices.ContainsFunc(plan.Jobs, func(j *dispatch.JobRecord) bool { return j.Handle == nil })
	})
}

// cancel of a detached run keeps the verdicts that its job has by then, and runs ls shows what the run does.
func TestRemoteCancelDetached(t *testing.T) {
	b, work := newLoopbackBench(t)
	b.fisub(0, "remote", "--set", "contest", "--detach")
	if got := b.fisub(0, "runs", "ls"); !strings.Contains(got, " detached ") || !strings.Contains(got, "0/54") {
		t.Errorf("runs ls: got\n%s", got)
	}
	stream := filepath.Join(agent.JobDir(work, b.awaitStream(work)), agent.EventsName)
	servertest.Until(t, "a verdict", func() bool {
		text, _ := os.ReadFile(stream)
		return bytes.Contains(text, []byte(`"type":"evaluated"`))
	})
	b.fisub(0, "remote", "cancel", "last")
	r := b.last()
	if want := fmt.Sprintf("%d of 54 workloads have a verdict", r.Totals().Passed); r.Totals().Passed == 0 ||
		!strings.Contains(b.stderr.String(), want) {
		t.Errorf("cancelled with verdicts on the host: got %s, want %q", &b.stderr, want)
	}
	nothingIn(t, work)
}

// cancel ends a run that another process follows, even if that process does not react. The run stays cancelled.
func TestRemoteCancelFollowed(t *testing.T) {
	b, work := newLoopbackBench(t)
	b.linger()
	for _, deaf := range []bool{false, true} {
		client := b.start("remote")
		b.awaitJob(work)
		named := fmt.Sprintf("process %d on ", client.Process.Pid)
		b.fisub(2, "remote", "attach", "last")
		if text := b.stderr.String(); !strings.Contains(text, named) {
			t.Errorf("attach: got %s, want it to name %s", text, named)
		}
		status := 0
		var kill os.Signal
		if deaf {
			status, kill = 1, os.Kill
			if err := client.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
		b.fisub(status, "remote", "cancel", "last")
		if text := b.stderr.String(); !strings.Contains(text, named) {
			t.Errorf("deaf %v: got %s, want it to name %s", deaf, text, named)
		}
		nothingIn(t, work)
		if got := client.ends(kill); !deaf && (got != exitInterrupted ||
			!strings.Contains(client.out.String(), "cancelled by another process: all jobs are stopped")) {
			t.Errorf("the client: exit status %d\n%s", got, &client.out)
		}
		_ = b.command("remote", "attach", "last").Run()
		if plan, err := dispatch.Load(b.lastFolder()); err != nil || len(plan.Jobs) != 1 || len(plan.Active()) != 0 {
			t.Errorf("after attach: got %+v, %v, want the one job, ended", plan, err)
		}
		nothingIn(t, work)
		if got := b.fisub(0, "remote", "ls"); !strings.Contains(strings.Split(got, "\n")[1], " cancelled ") {
			t.Errorf("ls: got %s", got)
		}
	}
}

// One of two hosts of a run is unreachable: an interrupt and cancel report which jobs may still run, cancel ends the
// reachable job, and no command starts a new one.
func TestRemoteCancelAway(t *testing.T) {
	b, f, works := newSSHBench(t, 2)
	b.linger()
	client := b.start("remote")
	b.awaitJob(works...)
	f.Daemons[1].Stop()
	if got := client.ends(os.Interrupt); got != exitError ||
		!strings.Contains(client.out.String(), "interrupted: 1 job may still run: lab: h2 gpu 0") ||
		!strings.Contains(client.out.String(), "fisub remote cancel ") {
		t.Errorf("SIGINT: exit status %d\n%s", got, &client.out)
	}
	nothingIn(t, works[0])
	b.fisub(1, "remote", "cancel", "last")
	if text := b.stderr.String(); !strings.Contains(text, "1 job may still run") {
		t.Errorf("cancel: got %s", text)
	}
	if got := b.fisub(0, "remote", "ls"); !strings.Contains(got, " cancelled, 1 may still run ") {
		t.Errorf("ls: got %s", got)
	}
	f.Daemons[1].Start(t)
	_ = b.command("remote", "attach", "last").Run()
	nothingIn(t, works...)
	if got := b.fisub(0, "remote", "ls"); !strings.Contains(got, " cancelled ") {
		t.Errorf("ls: got %s", got)
	}
}

// gc ends jobs that no run waits for, here one whose run folder is gone. A job of another folder needs --all.
func TestRemoteGC(t *testing.T) {
	b, work := newLoopbackBench(t, "slots = 2")
	id := strings.TrimSpace(b.fisub(0, "remote", "--detach", "--limit", "1"))
	if got := b.fisub(0, "remote", "ls"); !strings.Contains(got, id) || !strings.Contains(got, "detached") {
		t.Errorf("ls: got %s", got)
	}
	// logs -f ends with the jobs, even if nobody follows the run.
	if got := b.fisub(0, "remote", "logs", "-f", id); !strings.Contains(got, "exited with 0") {
		t.Errorf("logs: got %s", got)
	}
	b.fisub(0, "remote", "gc", "--yes")
	if entries, _ := os.ReadDir(agent.Jobs(work)); len(entries) != 1 {
		t.Errorf("a job that is waited for: got %v", entries)
	}
	if err := os.RemoveAll(filepath.Join(b.dir, runs.Dir, id)); err != nil {
		t.Fatal(err)
	}
	b.fisub(0, "remote", "gc", "--yes")
	if entries, _ := os.ReadDir(agent.Jobs(work)); len(entries) != 1 ||
		!strings.Contains(b.stderr.String(), "started elsewhere") {
		t.Errorf("a job of another folder: got %v, %s", entries, &b.stderr)
	}
	b.fisub(0, "remote", "gc", "--yes", "--all")
	nothingIn(t, work)
}

// BenchmarkRemoteFirstEvent measures the time from the command to its first event with dist/fisub, which make builds:
// on a host that has the bundle (aim: below 0.5 s), and on a fresh host over 20 Mbit/s (aim: 12 s). x-of-line is this
// time divided by the minimum time for sending MB-sent (aim: 20) over the line.
func BenchmarkRemoteFirstEvent(b *testing.B) {
	fisub, err := filepath.Abs("../dist/fisub")
	if err == nil {
		_, err = os.Stat(fisub)
	}
	if err != nil {
		b.Skip("make builds what is measured: ", err)
	}
	const mbit = 20
	f, cable := sshdtest.NewSpace(b)
	if out, err := exec.Command(sshdtest.Tool(b, "tc"), "qdisc", "add", "dev", cable, "root", "tbf", "rate",
		fmt.Sprintf("%dmbit", mbit), "burst", "32kbit", "latency", "50ms").CombinedOutput(); err != nil {
		b.Fatalf("tc: %v\n%s", err, out)
	}
	sent := func() int64 {
		text, err := os.ReadFile("/sys/class/net/" + cable + "/statistics/tx_bytes")
		n, perr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err = errors.Join(err, perr); err != nil {
			b.Fatal(err)
		}
		return n
	}
	r := newRemoteBench(b, sshTable(f))
	first := func() time.Duration {
		cmd := r.command("--json", "remote", "--limit", "1")
		cmd.Path, cmd.Args[0], cmd.Stdout = fisub, fisub, nil
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		var took time.Duration
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if took == 0 && strings.Contains(lines.Text(), `"type":"run"`) {
				took = time.Since(begun)
			}
		}
		if err := cmd.Wait(); err != nil || took == 0 {
			b.Fatalf("%v\n%s", err, &r.stderr)
		}
		return took
	}
	var fresh, cached time.Duration
	var wire int64
	for b.Loop() {
		if err := os.RemoveAll(agent.Store(workFolders(f)[0])); err != nil {
			b.Fatal(err)
		}
		before := sent()
		fresh += first()
		wire += sent() - before
		cached += first()
	}
	n := float64(b.N)
	b.ReportMetric(fresh.Seconds()/n, "s-fresh")
	b.ReportMetric(cached.Seconds()/n, "s-cached")
	b.ReportMetric(float64(wire)/n/1e6, "MB-sent")
	b.ReportMetric(fresh.Seconds()/(float64(wire)*8/(mbit*1e6)), "x-of-line")
}

// attach exits with the status of a run with missing verdicts if no host has started the run.
func TestRemoteAttachNothing(t *testing.T) {
	b := newRemoteBench(t, "[remote.here]\nprovider = \"loopback\"\ngpu = \"none\"\n")
	id := runs.NewID(time.Now())
	plan := &dispatch.Plan{Version: 1, Done: true, Places: []dispatch.ProviderPlace{{Table: "here"}}, Bundle: []byte("{}"),
		Run: event.Run{Schema: event.Schema, ID: id, Workloads: []event.WorkloadRef{{UUID: "u"}}}}
	if err := plan.Save(filepath.Join(b.dir, runs.Dir, id)); err != nil {
		t.Fatal(err)
	}
	b.fisub(exitError, "remote", "attach", "last")
	if text := b.stderr.String(); !strings.Contains(text, "no workload has run") {
		t.Errorf("got %s", text)
	}
}
