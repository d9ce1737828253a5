package device

import (
	"context"
	"os/exec"
	"syscall"
	"time"
)

// Command is exec.CommandContext for a program that starts others, such as a compiler: when ctx is done, all of them
// end.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
