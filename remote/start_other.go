//go:build !linux

package remote

import (
	"os/exec"
	"syscall"
)

// Start starts a helper program in its own process group, so that Ctrl-C does not reach it.
func Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

// EndWithParent has no effect on this system.
func EndWithParent(*exec.Cmd) {}
