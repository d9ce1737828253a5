package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/servertest"
)

// The test binary is also the agent. FAKE_GPUS lists the GPUs of its host: "NVIDIA B200,NVIDIA B200=123 (python)".
func newAgent() *agent.Agent {
	self, _ := os.Executable()
	return &agent.Agent{Version: "test", Self: []string{self, "agent"}, GPUs: func() ([]agent.GPU, error) {
		if os.Getenv("FAKE_GPUS") == "" {
			return nil, errors.New("no driver")
		}
		var gpus []agent.GPU
		for i, g := range strings.Split(os.Getenv("FAKE_GPUS"), ",") {
			name, process, busy := strings.Cut(g, "=")
			gpu := agent.GPU{UUID: fmt.Sprintf("GPU-test-%s-%d", os.Getenv("FAKE_HOST"), i), Name: name}
			if busy {
				gpu.Processes = []string{process}
			}
			gpus = append(gpus, gpu)
		}
		return gpus, nil
	}}
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		if err := newAgent().Main(context.Background(), os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func sum(content string) string {
	h := sha256.Sum256([]byte(content))
	return hex.EncodeToString(h[:])
}

// prepare creates a job with a script in a new work folder and returns the job's folder.
func prepare(t *testing.T, script string, change func(*remote.Job)) string {
	t.Helper()
	work := t.TempDir()
	job := &remote.Job{ID: "j1", Args: []string{"bin/run.sh", "a b", "$x"}, Limit: time.Minute,
		Place: remote.Place{GPU: -1}}
	for _, f := range []struct{ name, content string }{{"bin/run.sh", "#!/bin/sh\n" + script}, {"data.txt", "some data"}} {
		file := remote.File{Name: f.name, SHA256: sum(f.content), Size: int64(len(f.content)),
			Exec: strings.HasPrefix(f.name, "bin/")}
		err := os.MkdirAll(agent.Store(work), 0o700)
		if err == nil {
			err = os.WriteFile(agent.Stored(work, file.SHA256), []byte(f.content), file.Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
		job.Files = append(job.Files, file)
	}
	if change != nil {
		change(job)
	}
	dir := agent.JobDir(work, job.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	data, _ := json.Marshal(job)
	servertest.Write(t, filepath.Join(dir, agent.JobName), string(data))
	return dir
}

func runAgent(t *testing.T, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	self, _ := os.Executable()
	cmd := exec.Command(self, append([]string{"agent"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// do runs a command of the agent, which must succeed.
func do(t *testing.T, args ...string) {
	t.Helper()
	if _, errs, err := runAgent(t, nil, args...); err != nil {
		t.Fatal(errs, err)
	}
}

// started is prepare, and starts the job.
func started(t *testing.T, script string, change func(*remote.Job)) (dir string) {
	t.Helper()
	dir = prepare(t, script, change)
	do(t, "start", dir)
	return dir
}

// agentOf returns the agent of a job whose program has begun its stream.
func agentOf(t *testing.T, dir string) (s agent.Identity) {
	t.Helper()
	servertest.Until(t, "the program", func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, agent.EventsName))
		return len(data) > 0
	})
	if err := json.Unmarshal([]byte(servertest.Read(t, dir, agent.StateName)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func exited(t *testing.T, dir string) remote.Exit {
	t.Helper()
	var exit remote.Exit
	servertest.Until(t, "the job's end", func() (ok bool) {
		var err error
		exit, err = agent.ReadExit(dir)
		return err == nil
	})
	return exit
}

// gone reports whether the process whose pid is in the file has ended.
func gone(t *testing.T, file string) bool {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(servertest.Read(t, file)))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestRun(t *testing.T) {
	dir := prepare(t,
		`echo "{\"n\":1}"; cat data.txt; printf '\n%s|%s|%s|%s\n' "$1" "$2" "$NAME" "${FISUB_CACHE##*/}"; echo words >&2; exit 3`,
		func(j *remote.Job) { j.Env = map[string]string{"NAME": "value"} })
	if out, errs, err := runAgent(t, nil, "run", dir); err != nil || out != "" {
		t.Fatalf("run: got %q, %q, %v", out, errs, err)
	}
	if got, want := servertest.Read(t, dir, agent.EventsName), "{\"n\":1}\nsome data\na b|$x|value|cache\n"; got != want {
		t.Errorf("events: got %q, want %q", got, want)
	}
	if got := exited(t, dir); got.End != remote.Exited || got.Code != 3 {
		t.Errorf("exit: got %+v, want exited with 3", got)
	}
	if log := servertest.Read(t, dir, agent.LogName); !strings.Contains(log, "\nwords\n") || !strings.Contains(log, "exited with 3") {
		t.Errorf("log: got %q", log)
	}
	before := servertest.Read(t, dir, agent.EventsName)
	if _, _, err := runAgent(t, nil, "run", dir); err != nil || servertest.Read(t, dir, agent.EventsName) != before {
		t.Errorf("run for the second time: %v, events %q", err, servertest.Read(t, dir, agent.EventsName))
	}
	for from, want := range map[string]string{"0": before, "8": before[8:], strconv.Itoa(len(before)): ""} {
		if out, errs, err := runAgent(t, nil, "tail", dir, "--from", from); err != nil || out != want {
			t.Errorf("tail --from %s: got %q, %q, %v", from, out, errs, err)
		}
	}
	if _, _, err := runAgent(t, nil, "tail", dir, "--from", "1000"); err == nil {
		t.Error("tail --from 1000: got no error")
	}
	if st, err := os.Stat(filepath.Join(dir, agent.BundleName, "data.txt")); err != nil || st.Mode().Perm() != 0o444 {
		t.Errorf("data.txt: got %v, %v", st.Mode(), err)
	}
}

func sealed(j *remote.Job) { j.Key = "secret-of-the-test" }

// known returns the signed lines of a job's stream, whether all lines are signed, and the job's end.
func known(t *testing.T, dir string) (lines []string, all bool, exit remote.Exit) {
	t.Helper()
	seal, all := remote.Seal{Key: "secret-of-the-test", Job: "j1"}, true
	for text := range strings.Lines(servertest.Read(t, dir, agent.EventsName)) {
		line, ok := seal.Line([]byte(strings.TrimSuffix(text, "\n")))
		if ok {
			lines = append(lines, string(line))
		}
		all = all && ok
	}
	exit = agent.ParseExit([]byte(servertest.Read(t, dir, agent.ExitName)), seal)
	return lines, all && exit.Lines == int64(len(lines)), exit
}

// The agent signs the stream and the end of a job with a key, which the program cannot find.
func TestSigned(t *testing.T) {
	dir := prepare(t, `cat ../job.json >&2; grep -l secret-of-''the-test -r ..; printf 'one\ntw'; sleep 0.1; printf 'o\nhalf a line'; exit 3`, sealed)
	do(t, "run", dir)
	lines, _, exit := known(t, dir)
	if strings.Join(lines, "|") != "one|two" || exit.End != remote.Exited || exit.Code != 3 || exit.Lines != 2 ||
		!strings.HasSuffix(servertest.Read(t, dir, agent.EventsName), "\nhalf a line") {
		t.Errorf("got %q, %+v", lines, exit)
	}
	if log := servertest.Read(t, dir, agent.LogName); strings.Contains(log, "secret-of-the-test") || !strings.Contains(log, `"id":"j1"`) {
		t.Errorf("log: got %q", log)
	}
}

// Files that the program writes to the job's folder do not end the job, and are not taken for the agent's.
func TestForged(t *testing.T) {
	for _, c := range []struct {
		name, script string
		sound        bool // the stream contains only the agent's lines
	}{
		{"exit.json", `echo '{"end":"exited","code":0}' >../exit.json`, true},
		{"an exit.json that is none", `echo x >../exit.json`, true},
		{"a folder exit.json", `mkdir -p ../exit.json/x`, true},
		{"a line", `echo forged >>../events.jsonl`, false},
		{"half a line", `printf forged >>../events.jsonl`, false},
		{"a line again", `while ! grep one ../events.jsonl >&2; do sleep 0.01; done; head -n 1 ../events.jsonl >>../events.jsonl`,
			false},
		{"nothing left", `while ! grep one ../events.jsonl >&2; do sleep 0.01; done; : >../events.jsonl`, false},
		{"another file", `rm ../events.jsonl; echo forged >../events.jsonl`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := started(t, `echo one; `+c.script+`; touch forged; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 3`,
				sealed)
			file := func(name string) string { return filepath.Join(dir, agent.BundleName, name) }
			servertest.Until(t, "the forgery", func() bool { _, err := os.Stat(file("forged")); return err == nil })
			tailed := make(chan error, 1)
			go func() {
				_, err := agent.Tail(t.Context(), dir, 0, io.Discard)
				tailed <- err
			}()
			select {
			case err := <-tailed:
				t.Errorf("tail ended with the forgery: %v", err)
			case <-time.After(100 * time.Millisecond): // a wrong tail may not have noticed yet
				servertest.Write(t, file("go"), "")
				if err := <-tailed; err != nil {
					t.Error(err)
				}
			}
			lines, all, exit := known(t, dir)
			if all != c.sound || all && strings.Join(lines, "|") != "one|two" || exit.MAC == "" || exit.Lines != 2 ||
				exit.Code != 3 || strings.Contains(strings.Join(lines, "|"), "forged") {
				t.Errorf("got %q, all %v, %+v", lines, all, exit)
			}
		})
	}
	dir := started(t, `echo '{"end":"exited","code":0}' >../exit.json; touch forged; exec sleep 307`, sealed)
	servertest.Until(t, "the forgery", func() bool {
		_, err := os.Stat(filepath.Join(dir, agent.BundleName, "forged"))
		return err == nil
	})
	if exit, err := agent.Stop(t.Context(), dir); err != nil || exit.End != remote.Cancelled {
		t.Errorf("stopped: got %+v, %v", exit, err)
	}
}

func TestSignalAndStatus(t *testing.T) {
	dir := prepare(t, `kill -KILL $$`, nil)
	do(t, "run", dir)
	if got := exited(t, dir); got.End != remote.Exited || got.Code != 137 {
		t.Errorf("got %+v, want exited with 137", got)
	}
}

// Processes that a job leaves behind, even in their own sessions, end with it.
const spawn = `setsid sleep 300 & echo $! >left; sh -c 'sleep 301 & echo $! >left2; wait' & `

func TestLimit(t *testing.T) {
	dir := prepare(t, `trap '' TERM; `+spawn+`echo 1; while :; do sleep 0.1; done`,
		func(j *remote.Job) { j.Limit = 300 * time.Millisecond })
	begun := time.Now()
	do(t, "run", dir)
	if got := exited(t, dir); got.End != remote.Limited || !strings.Contains(got.Text, "300ms") {
		t.Errorf("got %+v, want limit", got)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	for _, f := range []string{"left", "left2"} {
		if file := filepath.Join(dir, agent.BundleName, f); !gone(t, file) {
			t.Errorf("process %s goes on", f)
		}
	}
}

func TestStartTailStop(t *testing.T) {
	dir := prepare(t, spawn+`for i in 1 2 3; do echo $i; done; exec sleep 302`, nil)
	if out, errs, err := runAgent(t, nil, "start", dir); err != nil {
		t.Fatal(out, errs, err)
	}
	if _, _, err := runAgent(t, nil, "run", dir); err == nil {
		t.Error("a second agent: got no error")
	}
	// A tail whose reader is gone ends, even if the job prints nothing.
	self, _ := os.Executable()
	lone := exec.Command(self, "agent", "tail", dir)
	pipe, _ := lone.StdoutPipe()
	if err := lone.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(pipe, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	late := time.AfterFunc(10*time.Second, func() { lone.Process.Kill(); t.Error("tail without a reader goes on") })
	if err := lone.Wait(); err == nil {
		t.Error("tail without a reader: got no error")
	}
	late.Stop()
	ended := make(chan string)
	go func() {
		out, errs, err := runAgent(t, nil, "tail", dir)
		ended <- fmt.Sprintf("%s%s%v", out, errs, err)
	}()
	servertest.Until(t, "events", func() bool { data, _ := os.ReadFile(filepath.Join(dir, agent.EventsName)); return len(data) == 6 })
	for range 2 {
		do(t, "stop", dir)
	}
	if got := exited(t, dir); got.End != remote.Cancelled {
		t.Errorf("got %+v, want cancelled", got)
	}
	if got := <-ended; got != "1\n2\n3\n<nil>" {
		t.Errorf("tail: got %q", got)
	}
	for _, f := range []string{"left", "left2"} {
		if file := filepath.Join(dir, agent.BundleName, f); !gone(t, file) {
			t.Errorf("process %s goes on", f)
		}
	}
}

// A process being forked may have the file of a new program open for writing.
func TestStartOfFreshProgram(t *testing.T) {
	dir := prepare(t, `echo ran`, nil)
	self, _ := os.Executable()
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(filepath.Join(t.TempDir(), "program"), os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := program.Write(data); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { program.Close() })
	a := newAgent()
	a.Self[0] = program.Name()
	if err := a.Start(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if got := exited(t, dir); got.End != remote.Exited || servertest.Read(t, dir, agent.EventsName) != "ran\n" {
		t.Errorf("got %+v, want it to have run", got)
	}
}

func TestStopBeforeStart(t *testing.T) {
	dir := prepare(t, `echo ran`, nil)
	if _, err := agent.Stop(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	do(t, "start", dir)
	if got := exited(t, dir); got.End != remote.Cancelled {
		t.Errorf("got %+v, want cancelled", got)
	}
	if _, err := os.Stat(filepath.Join(dir, agent.EventsName)); err == nil {
		t.Error("the program ran")
	}
}

func TestFree(t *testing.T) {
	dir := started(t, `echo one; exec sleep 305`, nil)
	ended := make(chan remote.Exit)
	events, to := io.Pipe()
	go func() { exit, _ := agent.Tail(t.Context(), dir, 0, to); ended <- exit }()
	if _, err := io.ReadFull(events, make([]byte, len("one\n"))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		do(t, "free", dir)
		if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 0 {
			t.Errorf("left: %v, %v", entries, err)
		}
	}
	half := filepath.Join(filepath.Dir(dir), ".free-j1")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	do(t, "free", dir)
	if _, err := os.Stat(half); err == nil {
		t.Error("what a killed free has left is still there")
	}
	if got := <-ended; got.End != remote.Cancelled {
		t.Errorf("tail: got %+v, want cancelled", got)
	}
}

// A job freed while Tail finds its agent dead is released, without an error or leftovers.
func TestFreeWhileLost(t *testing.T) {
	host, _ := os.Hostname()
	state, _ := json.Marshal(agent.Identity{Host: host})
	for i := range 50 {
		dir := prepare(t, `echo one`, nil)
		servertest.Write(t, filepath.Join(dir, agent.StateName), string(state))
		freed := make(chan error)
		go func() {
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			freed <- os.Rename(dir, dir+".free")
		}()
		exit, err := agent.Tail(t.Context(), dir, 0, &bytes.Buffer{})
		if first := <-freed; first != nil {
			t.Fatal(first)
		}
		if _, there := os.Stat(dir); there == nil {
			t.Error("the folder is there again")
		}
		released := errors.Is(err, fs.ErrNotExist) && exit.End == "" // Free was faster than Tail
		if err != nil && !released || err == nil && exit.End != remote.Lost && exit.End != remote.Cancelled {
			t.Errorf("freed after %d00 us: got %+v, %v, want lost or cancelled", i, exit, err)
		}
	}
}

// A job whose folder is removed ends and does not create it again.
func TestFolderGone(t *testing.T) {
	dir := started(t, `echo $$ >pid; exec sleep 306`, nil)
	away := filepath.Join(t.TempDir(), "away")
	servertest.Until(t, "the program", func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, agent.BundleName, "pid"))
		return len(data) > 0
	})
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	servertest.Until(t, "the program's end", func() bool { return gone(t, filepath.Join(away, agent.BundleName, "pid")) })
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder is there again")
	}
}

// A signal to a detached agent means Lost, as when a host shuts down. A signal to an agent in a queue cancels the job.
func TestAgentSignalled(t *testing.T) {
	for command, want := range map[string]remote.End{"start": remote.Lost, "run": remote.Cancelled} {
		dir := prepare(t, `echo one; exec sleep 304`, nil)
		ended := make(chan error, 1)
		go func() { _, _, err := runAgent(t, nil, command, dir); ended <- err }()
		if err := syscall.Kill(agentOf(t, dir).PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		exited(t, dir)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := exited(t, dir); got.End != want {
			t.Errorf("%s: got %+v, want %s", command, got, want)
		}
	}
	dir := started(t, `echo one; exec sleep 305`, nil)
	agentOf(t, dir)
	do(t, "stop", dir)
	if got := exited(t, dir); got.End != remote.Cancelled {
		t.Errorf("stop: got %+v", got)
	}
}

// A job waits only briefly for the cache's lock, and logs that; stop works in the meantime.
func TestCacheHeld(t *testing.T) {
	dir := prepare(t, `echo one`, nil)
	cache := filepath.Join(filepath.Dir(filepath.Dir(dir)), "cache")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(cache, ".hold"))
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	do(t, "start", dir)
	servertest.Until(t, "a word of the lock", func() bool {
		return strings.Contains(servertest.Read(t, dir, agent.LogName), "waiting for "+f.Name()+", locked by another process")
	})
	do(t, "stop", dir)
	if got := exited(t, dir); got.End != remote.Cancelled || !strings.HasPrefix(got.Text, "stopped before the start") {
		t.Errorf("got %+v", got)
	}
	if text := servertest.Read(t, dir, agent.LogName); strings.Contains(text, "continuing without it") {
		t.Errorf("the lock was waited for to the end: %s", text)
	}
}

func TestAgentKilled(t *testing.T) {
	dir := started(t, `echo $$ >pid; echo one; exec sleep 303`, nil)
	if err := syscall.Kill(agentOf(t, dir).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Nobody has called tail, stop or free so far.
	servertest.Until(t, "the program's end", func() bool { return gone(t, filepath.Join(dir, agent.BundleName, "pid")) })
	out, errs, err := runAgent(t, nil, "tail", dir)
	if err != nil || out != "one\n" {
		t.Errorf("tail: got %q, %q, %v", out, errs, err)
	}
	if got := exited(t, dir); got.End != remote.Lost || got.Hint == "" {
		t.Errorf("got %+v, want lost", got)
	}
}

// A daemon in its own session, left by a submission that killed its agent, is killed by tail, stop or free.
func TestSweep(t *testing.T) {
	for name, end := range map[string]func(dir string) error{
		"tail": func(dir string) error { _, err := agent.Tail(t.Context(), dir, 0, io.Discard); return err },
		"stop": func(dir string) error { _, err := agent.Stop(t.Context(), dir); return err },
		"free": func(dir string) error { return agent.Free(t.Context(), dir) },
		"after its end": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, agent.ExitName), []byte(`{"end":"exited"}`), 0o600),
				agent.Free(t.Context(), dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			pids := t.TempDir()
			dir := started(t, `setsid sh -c 'trap "" HUP TERM INT; echo $$ >`+pids+`/half; mv `+pids+`/half `+pids+`/daemon
exec sleep 305' </dev/null >/dev/null 2>&1 &
while ! [ -e `+pids+`/daemon ]; do sleep 0.01; done; kill -9 $PPID; sleep 306`, nil)
			var state agent.Identity
			if err := json.Unmarshal([]byte(servertest.Read(t, dir, agent.StateName)), &state); err != nil {
				t.Fatal(err)
			}
			servertest.Until(t, "the agent's end", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", state.PID))
				return err != nil || strings.Contains(string(stat), ") Z ")
			})
			if gone(t, filepath.Join(pids, "daemon")) {
				t.Fatal("the daemon ended by itself")
			}
			if err := end(dir); err != nil {
				t.Error(err)
			}
			servertest.Until(t, "the daemon's end", func() bool { return gone(t, filepath.Join(pids, "daemon")) })
		})
	}
}

// The kind of a GPU must be a word of its name.
func TestGPUIs(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		want       bool
	}{
		{"NVIDIA B200", "b200", true}, {"NVIDIA GB200", "b200", false}, {"NVIDIA GB200", "gb200", true},
		{"NVIDIA H200 NVL", "H200", true}, {"NVIDIA GH200 480GB", "h200", false}, {"NVIDIA H200", "h20", false},
		{"NVIDIA A100-SXM4-80GB", "a100", true}, {"NVIDIA A100-SXM4-80GB", "a10", false}, {"NVIDIA A10G", "a10", false},
		{"NVIDIA L40S", "l4", false}, {"NVIDIA L4", "l4", true}, {"NVIDIA H100 80GB HBM3", "h100", true},
	} {
		if gpu := (agent.GPU{Name: c.name}); gpu.Is(c.kind) != c.want {
			t.Errorf("%s is %s: got %v, want %v", c.name, c.kind, !c.want, c.want)
		}
	}
}

func TestOtherHosts(t *testing.T) {
	host, _ := os.Hostname()
	for _, c := range []struct {
		name  string
		state agent.Identity
		lost  bool
	}{
		{"rebooted", agent.Identity{PID: os.Getpid(), Host: host, Boot: "other", Start: "1"}, true},
		{"pid of another process", agent.Identity{PID: os.Getpid(), Host: host,
			Boot: strings.TrimSpace(servertest.Read(t, "/proc/sys/kernel/random/boot_id")), Start: "1"}, true},
		{"other host", agent.Identity{PID: 1 << 22, Host: host + "x", Boot: "other", Start: "1"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := prepare(t, "", nil)
			data, _ := json.Marshal(c.state)
			servertest.Write(t, filepath.Join(dir, agent.StateName), string(data))
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			exit, err := agent.Tail(ctx, dir, 0, &bytes.Buffer{})
			if lost := exit.End == remote.Lost; lost != c.lost || lost != (err == nil) {
				t.Errorf("got %+v, %v; want lost %v", exit, err, c.lost)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*remote.Job)
		spoil  func(work string, job *remote.Job)
		gpus   string
		text   string
	}{
		{name: "missing file", spoil: func(work string, j *remote.Job) { os.Remove(agent.Stored(work, j.Files[1].SHA256)) },
			text: "data.txt is missing on the host"},
		{name: "wrong hash", spoil: func(work string, j *remote.Job) {
			name := agent.Stored(work, j.Files[1].SHA256)
			os.Remove(name)
			os.WriteFile(name, []byte("other dat"), 0o444)
		}, text: "wrong hash"},
		{name: "no driver", change: func(j *remote.Job) { j.GPU = "b200" }, text: "no GPU: no driver"},
		{name: "other gpu", change: func(j *remote.Job) { j.GPU = "b200"; j.Place.GPU = 1 }, gpus: "NVIDIA B200,NVIDIA H200",
			text: "gpu 1 is NVIDIA H200, the job is for b200"},
		{name: "no such gpu", change: func(j *remote.Job) { j.GPU = "b200"; j.Place.GPU = 2 },
			gpus: "NVIDIA B200,NVIDIA H200", text: "no gpu 2, the host has 2"},
		{name: "busy", change: func(j *remote.Job) { j.GPU = "b200"; j.Place.GPU = 0 }, gpus: "NVIDIA B200=123 (python)",
			text: "busy: process 123 (python)"},
		{name: "out of the bundle", change: func(j *remote.Job) { j.Files[1].Name = "../x" },
			text: "is outside the bundle"},
		{name: "not executable", change: func(j *remote.Job) { j.Args = []string{"data.txt"} }, text: "is not an " +
			"executable file"},
		{name: "no limit", change: func(j *remote.Job) { j.Limit = 0 }, text: "no time limit"},
		{name: "other id", change: func(j *remote.Job) { j.ID = "UPPER" }, text: "not a valid id"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var job *remote.Job
			dir := prepare(t, "echo ran", func(j *remote.Job) {
				if c.change != nil {
					c.change(j)
				}
				job = j
			})
			if c.spoil != nil {
				c.spoil(filepath.Dir(filepath.Dir(dir)), job)
			}
			if _, errs, err := runAgent(t, []string{"FAKE_GPUS=" + c.gpus}, "run", dir); err != nil {
				t.Fatal(errs, err)
			}
			if got := exited(t, dir); got.End != remote.Refused || !strings.Contains(got.Text, c.text) {
				t.Errorf("got %+v, want refused: %s", got, c.text)
			}
			if data, err := os.ReadFile(filepath.Join(dir, agent.EventsName)); err == nil {
				t.Errorf("the program ran: %q", data)
			}
			if c.name == "wrong hash" {
				if _, err := os.Stat(agent.Stored(filepath.Dir(filepath.Dir(dir)), job.Files[1].SHA256)); err == nil {
					t.Error("the spoilt file is still in the store")
				}
			}
		})
	}
}

func TestGPU(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077)) // like agents started by remote/ssh
	env := []string{"FAKE_GPUS=NVIDIA B200,NVIDIA B200=9 (x)",
		"FAKE_HOST=" + filepath.Base(t.TempDir()) + strconv.Itoa(os.Getpid())}
	number := 0
	job := func(script string, gpu int) string {
		number++
		return prepare(t, script, func(j *remote.Job) {
			j.ID = fmt.Sprint("j", number)
			j.GPU, j.Place.GPU, j.Busy = "b200", gpu, true
		})
	}
	first := job(`echo $CUDA_VISIBLE_DEVICES; exec sleep 304`, 0)
	if _, errs, err := runAgent(t, env, "start", first); err != nil {
		t.Fatal(errs, err)
	}
	servertest.Until(t, "the first job", func() bool {
		data, _ := os.ReadFile(filepath.Join(first, agent.EventsName))
		return len(data) > 0
	})
	if got := servertest.Read(t, first, agent.EventsName); !strings.HasPrefix(got, "GPU-test-") || !strings.HasSuffix(got, "-0\n") {
		t.Errorf("CUDA_VISIBLE_DEVICES: got %q", got)
	}
	second, other := job("echo ran", 0), job("echo $CUDA_VISIBLE_DEVICES", 1)
	if _, errs, err := runAgent(t, env, "run", other); err != nil {
		t.Fatal(errs, err)
	}
	if got := exited(t, other); got.End != remote.Exited || !strings.HasSuffix(servertest.Read(t, other, agent.EventsName), "-1\n") {
		t.Errorf("the other GPU: got %+v", got)
	}
	if _, errs, err := runAgent(t, env, "run", second); err != nil {
		t.Fatal(errs, err)
	}
	if got := exited(t, second); got.End != remote.Refused || !strings.Contains(got.Text, `another fisub job: j1, process `) {
		t.Errorf("the same GPU: got %+v, want refused", got)
	}
	if _, err := agent.Stop(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	again := job("echo ran; exec sleep 304", 0)
	if _, errs, err := runAgent(t, env, "start", again); err != nil {
		t.Fatal(errs, err)
	}
	servertest.Until(t, "the job after the first", func() bool {
		data, _ := os.ReadFile(filepath.Join(again, agent.EventsName))
		return len(data) > 0
	})
	// The holder is the current one, not the creator of the file.
	out, errs, err := runAgent(t, env, "look")
	var gpus []agent.GPU
	if err = errors.Join(err, json.Unmarshal([]byte(out), &gpus)); err != nil || len(gpus) != 2 ||
		!strings.HasPrefix(gpus[0].Holder, filepath.Base(again)+", process ") || gpus[1].Holder != "" ||
		len(gpus[1].Processes) != 1 {
		t.Errorf("look: got %+v, %v, %s", gpus, err, errs)
	}
	if _, err := agent.Stop(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	// An unknown GPU in the value set by the queue is an error.
	for _, visible := range []string{"MIG-1", "NoDevFiles", "GPU-other"} {
		dir := job("echo ran", -1)
		if _, errs, err := runAgent(t, append(env, "CUDA_VISIBLE_DEVICES="+visible), "run", dir); err != nil {
			t.Fatal(errs, err)
		}
		if got := exited(t, dir); got.End != remote.Refused || !strings.Contains(got.Text, visible) || got.Hint == "" {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: got %+v", visible, got)
		}
	}
	for i := range 2 {
		name := fmt.Sprintf("/tmp/fisub-GPU-test-%s-%d.lock", strings.TrimPrefix(env[1], "FAKE_HOST="), i)
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("a lock that other users cannot take: got %v, %v", st, err)
		}
		os.Remove(name)
	}
}

// ParseExit returns only known Ends, and plain text.
func TestParseExit(t *testing.T) {
	for text, want := range map[string]remote.Exit{
		`{"end":"exited","code":3}`:                 {End: remote.Exited, Code: 3},
		`{"end":"limit","text":"a\nb\u001b[2J"}`:    {End: remote.Limited, Text: "a b [2J"},
		`{"end":"lost","hint":"a\tb","more":[1,2]}`: {End: remote.Lost, Hint: "a b"},
	} {
		if got := agent.ParseExit([]byte(text), remote.Seal{}); got != want {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{"", "{", "{}", `{"end":"won","code":1}`, "\x00\xff", `{"end":"exited","code":"x"}`} {
		got := agent.ParseExit([]byte(text), remote.Seal{})
		if got.End != remote.Lost || !strings.HasPrefix(got.Text, "exit.json cannot be read: ") || got.Code != 0 {
			t.Errorf("%q: got %+v", text, got)
		}
	}
	seal := remote.Seal{Key: "k", Job: "j"}
	seal.Line([]byte("unsigned"))
	signed := seal.Sign(remote.Exit{End: remote.Exited, Text: "\xff<\u2028"})
	for name, c := range map[string]struct {
		change func(*remote.Exit)
		want   remote.End
		lines  bool
	}{
		"signed":         {func(*remote.Exit) {}, remote.Exited, true},
		"another status": {func(e *remote.Exit) { e.Code = 3 }, remote.Lost, false},
		"fewer lines":    {func(e *remote.Exit) { e.Lines-- }, remote.Lost, false},
		"no code":        {func(e *remote.Exit) { e.MAC = "" }, remote.Lost, false},
		"a cancelled one that the agent cannot sign": {func(e *remote.Exit) { *e = remote.Exit{End: remote.Cancelled} },
			remote.Cancelled, false},
	} {
		e := signed
		c.change(&e)
		text, _ := json.Marshal(e)
		if got := agent.ParseExit(text, remote.Seal{Key: "k", Job: "j"}); got.End != c.want || (got.MAC != "") != c.lines {
			t.Errorf("%s: got %+v", name, got)
		}
		if got := agent.ParseExit(text, remote.Seal{Key: "k", Job: "i"}); got.MAC != "" {
			t.Errorf("%s, of another job: got %+v", name, got)
		}
	}
	if got := agent.ParseExit([]byte(`{"end":"lost","text":"`+strings.Repeat("x", 5000)+`"}`),
		remote.Seal{}); len(got.Text) != 1000 {
		t.Errorf("a long text: got %d bytes", len(got.Text))
	}
}

func TestFlood(t *testing.T) {
	dir := prepare(t, `head -c 3000000 /dev/zero; head -c 20000000 /dev/zero >&2; echo end`, nil)
	var out bytes.Buffer
	do(t, "start", dir)
	exit, err := agent.Tail(t.Context(), dir, 0, &out)
	if err != nil || exit.End != remote.Exited || out.Len() != 3000004 {
		t.Errorf("got %+v, %v, %d bytes, want 3000004", exit, err, out.Len())
	}
	if log := servertest.Read(t, dir, agent.LogName); len(log) > 9<<20 || !strings.Contains(log, "truncated after") ||
		!strings.Contains(log, "exited with 0") {
		t.Errorf("log: %d bytes", len(log))
	}
}

// The test fills its own tmpfs.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("no small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	from := prepare(t, `echo ran`, nil)
	dir := agent.JobDir(disk, "j1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	servertest.Write(t, filepath.Join(dir, agent.JobName), servertest.Read(t, from, agent.JobName))
	do(t, "run", dir)
	if got := exited(t, dir); got.End != remote.Refused || !strings.Contains(got.Text, "disk: ") || got.Hint == "" {
		t.Errorf("got %+v, want refused", got)
	}
}

// The end of a job is recorded even if the disk fills while it runs.
func TestDiskFills(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=40m"); err != nil {
		t.Skipf("no small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	dir := agent.JobDir(disk, "j1")
	from := prepare(t, `echo one; until grep -q one '`+filepath.Join(dir, agent.EventsName)+`'; do sleep 0.05; done
cat /dev/zero >fill; head -c 800000 /dev/zero || exit 7`, nil)
	if err := os.CopyFS(filepath.Join(disk, "store"),
		os.DirFS(agent.Store(filepath.Dir(filepath.Dir(from))))); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	do(t, "run", dir)
	if got := exited(t, dir); got.End != remote.Exited || got.Code != 7 || got.Hint == "" ||
		!strings.Contains(got.Text, "no space left") || !strings.HasPrefix(servertest.Read(t, dir, agent.EventsName), "one\n") {
		t.Errorf("got %+v, want exited with 7, and why", got)
	}
}
