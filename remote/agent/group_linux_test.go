package agent_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/longtest"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/servertest"
)

// A program that survives SIGKILL, as if stuck in a driver, does not keep the job from ending. Here a debugger holds
// it.
func TestUnkillable(t *testing.T) {
	longtest.Skip(t, "waits for a limit")
	dir := prepare(t, `echo $$; while :; do sleep 0.1; done`, func(j *remote.Job) { j.Limit = 2 * time.Second })
	if _, errs, err := runAgent(t, nil, "start", dir); err != nil {
		t.Fatal(errs, err)
	}
	servertest.Until(t, "the program", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, agent.EventsName)) // the file may not exist yet
		return strings.HasSuffix(string(text), "\n")
	})
	pid, err := strconv.Atoi(strings.TrimSpace(servertest.Read(t, dir, agent.EventsName)))
	if err != nil {
		t.Fatal(err)
	}
	held, over := make(chan error), make(chan bool)
	released := make(chan bool)
	go func() {
		defer close(released)
		runtime.LockOSThread() // ptrace binds the debugger to a thread
		defer runtime.UnlockOSThread()
		err := syscall.PtraceAttach(pid)
		var status syscall.WaitStatus
		if err == nil {
			if _, err = syscall.Wait4(pid, &status, syscall.WALL, nil); err == nil {
				err = syscall.PtraceCont(pid, 0)
			}
		}
		held <- err
		<-over
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for err == nil && !status.Exited() && !status.Signaled() {
			_, err = syscall.Wait4(pid, &status, syscall.WALL, nil)
		}
	}()
	if err := <-held; err != nil {
		close(over)
		t.Skipf("this machine lets nobody debug: %v", err)
	}
	defer func() { close(over); <-released }()
	if got := exited(t, dir); got.End != remote.Limited {
		t.Errorf("got %+v, want limit", got)
	}
	if log := servertest.Read(t, dir, agent.LogName); !strings.Contains(log, "cannot be killed") {
		t.Errorf("log: got %q", log)
	}
}
