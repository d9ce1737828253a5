package app

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fisub/internal/cache"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/dispatch"
	"fisub/remote/servertest"
	"fisub/runs"
)

// preparing starts a run and stops its process while the process still prepares the run.
func (b *remoteBench) preparing(t *testing.T) (client *process, id string) {
	t.Helper()
	name := filepath.Join(b.dir, "solution/cuda/kernel.cu")
	for range 10 {
		code, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, append(code, '\n'), 0o644) // forces a compilation
		}
		if err != nil {
			t.Fatal(err)
		}
		known, _ := runs.IDs(b.dir)
		client = b.start("remote", "--limit", "1")
		servertest.Until(t, "no run folder", func() bool {
			ids, _ := runs.IDs(b.dir)
			if len(ids) <= len(known) {
				return false
			}
			id = ids[len(ids)-1]
			_, err := os.Stat(filepath.Join(b.dir, runs.Dir, id, "solution.json"))
			return err == nil
		})
		if err := client.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if plan, err := dispatch.Load(filepath.Join(b.dir, runs.Dir, id)); err != nil || len(plan.Jobs) == 0 {
			return client, id
		}
		client.ends(syscall.SIGCONT)
	}
	t.Fatal("it is never seen while it prepares its run")
	return nil, ""
}

// A run counts as the newest even while it is being prepared: attach reports that nothing was sent and cancel ends it.
// Neither falls back to the previous run.
func TestRemotePreparing(t *testing.T) {
	b, work := newLoopbackBench(t)
	b.fisub(0, "remote", "--limit", "1")
	before := filepath.Base(b.lastFolder())

	client, id := b.preparing(t)
	client.ends(os.Kill)
	b.fisub(exitError, "remote", "attach", "last")
	if text := b.stderr.String(); !strings.Contains(text, id) || !strings.Contains(text, "before sending anything") ||
		strings.Contains(text, before) {
		t.Errorf("attach: got %s", text)
	}
	b.fisub(0, "remote", "cancel", "last")
	if got := b.fisub(0, "remote", "ls"); !strings.Contains(got, " unsent ") {
		t.Errorf("ls: got %s", got)
	}

	client, id = b.preparing(t)
	cancel := b.start("remote", "cancel", "last")
	servertest.Until(t, "the order to end", func() bool { return dispatch.Marked(filepath.Join(b.dir, runs.Dir, id)) })
	if got := client.ends(syscall.SIGCONT); got != exitInterrupted || !strings.Contains(client.out.String(), "nothing was sent") {
		t.Errorf("the client: exit status %d\n%s", got, &client.out)
	}
	if got := cancel.ends(nil); got != 0 || !strings.Contains(cancel.out.String(), id+": ended before a host") {
		t.Errorf("cancel: exit status %d\n%s", got, &cancel.out)
	}
	nothingIn(t, work)
}

// cancel during an upload succeeds and reports it.
func TestRemoteCancelUpload(t *testing.T) {
	b, work := newLoopbackBench(t)
	program, err := exec.LookPath("fisub")
	if err != nil {
		t.Fatal(err)
	}
	file, err := remote.FileAt(program)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(agent.Store(work), ".part-"+file.SHA256)
	if err := os.MkdirAll(filepath.Dir(part), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(part, 0o600); err != nil { // writers to a FIFO block
		t.Fatal(err)
	}
	client := b.start("remote", "--limit", "1")
	servertest.Until(t, "the job", func() bool {
		ids, _ := runs.IDs(b.dir)
		if len(ids) == 0 {
			return false
		}
		plan, err := dispatch.Load(b.lastFolder())
		return err == nil && len(plan.Jobs) == 1
	})
	b.fisub(0, "remote", "cancel", "last")
	if got := client.ends(nil); got != exitInterrupted {
		t.Errorf("the client: exit status %d\n%s", got, &client.out)
	}
	if pipe, err := os.OpenFile(part, os.O_RDWR, 0); err == nil { // lets the host's dd, which waits to open it, end
		_ = pipe.Close()
	}
	nothingIn(t, work)
}

// A damaged plan does not stop gc and attach for other runs. The jobs of its run stay until gc --all.
func TestRemoteDamagedPlan(t *testing.T) {
	b, work := newLoopbackBench(t)
	b.linger()
	b.fisub(0, "remote", "--limit", "1", "--detach")
	whole := filepath.Base(b.lastFolder())
	b.fisub(0, "remote", "--limit", "1", "--detach")
	name := filepath.Join(b.lastFolder(), dispatch.PlanName)
	if err := os.Truncate(name, 100); err != nil {
		t.Fatal(err)
	}
	jobs := func(want int) {
		t.Helper()
		if all, err := os.ReadDir(agent.Jobs(work)); err != nil || len(all) != want {
			t.Errorf("jobs: got %v, %v, want %d", all, err, want)
		}
	}
	b.fisub(0, "remote", "gc", "--yes")
	if text := b.stderr.String(); !strings.Contains(text, "whose remote.json cannot be read") {
		t.Errorf("gc: got %s", text)
	}
	jobs(2)
	b.fisub(exitError, "remote", "attach", "last")
	letGo(t, work)
	b.fisub(0, "remote", "attach", whole)
	jobs(1)
	b.fisub(0, "remote", "gc", "--yes", "--all")
	jobs(0)
	if err := cache.WriteFile(name, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.fisub(0, "remote", "gc", "--yes")
}
