package remote

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a program that helps this one, so that an interrupt from the keyboard does not reach it: in a process
// group of its own and, since that comes a moment after its birth, with SIGINT blocked. SIGTERM ends it.
func Start(cmd *exec.Cmd) error {
	runtime.LockOSThread() // a new process has the blocked signals of the thread that starts it
	defer runtime.UnlockOSThread()
	var block, before unix.Sigset_t
	block.Val[0] = 1 << (unix.SIGINT - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &before); err != nil {
		return err
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}
