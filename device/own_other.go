//go:build !linux

package device

import (
	"os/exec"
	"syscall"
)

// Own gives a program that is to be started a process group of its own, which an interrupt from the keyboard does not
// reach.
func Own(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
