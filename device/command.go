package device

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"fisub/internal/sandbox"
)

// machineFault matches compiler messages about the machine, not the sources.
var machineFault = regexp.MustCompile(`(?im)^.*(no space left on device|disk quota exceeded|read-only file system|` +
	`cannot allocate memory|virtual memory exhausted|out of memory allocating|too many open files|` +
	`(killed|terminated|interrupt|hangup) signal terminated program|(terminated with|died due to) signal (1|2|9|15)\b|` +
	`unsupported gpu architecture|failed to find c compiler|cannot find compiler|host compiler targets unsupported|` +
	`unsupported (gnu|clang) version).*$`)

// MachineFault returns the line of a compiler's output that is about the machine, or "".
func MachineFault(log string) string { return strings.TrimSpace(machineFault.FindString(log)) }

// Command is exec.CommandContext for a program that starts others, such as a compiler: when ctx is done, its whole
// process group is killed. It is not sandboxed.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	sandbox.Own(cmd)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
