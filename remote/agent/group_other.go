//go:build !linux

package agent

import (
	"errors"
	"os/exec"
	"syscall"
)

func group(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func adopt() {}

func reap() int { return 0 }

// Sweep does nothing.
func Sweep(string) int { return 0 }

func free(string) (int64, error) { return 0, errors.ErrUnsupported }
