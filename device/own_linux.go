package device

import (
	"os/exec"
	"syscall"
)

// Own gives a program that is to be started a process group of its own, which an interrupt from the keyboard does not
// reach, and lets it die with this process, however that ends.
func Own(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
