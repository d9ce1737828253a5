package agent

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// group puts the program into its own process group, and lets it die with the thread that starts it.
func group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adopt makes this process the parent of orphaned descendants.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// reap kills all descendants of this process and returns the number of survivors.
func reap() (left int) {
	return end(func() []int { return descendants(os.Getpid()) })
}

// Sweep kills the processes with the mark of the job in dir and returns the number of survivors. It misses processes
// that have cleared their environment.
func Sweep(dir string) (left int) {
	mark := []byte("\x00" + jobMark + "=" + dir + "\x00")
	return end(func() (all []int) {
		for _, pid := range processes() {
			environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if pid != os.Getpid() && bytes.Contains(append([]byte{0}, environ...), mark) {
				all = append(all, pid)
			}
		}
		return all
	})
}

// end kills processes until find returns none, and returns the number of survivors.
func end(find func() []int) int {
	for deadline := time.Now().Add(grace); ; time.Sleep(5 * time.Millisecond) {
		all := find()
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			var status syscall.WaitStatus
			_, _ = syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		}
		if len(all) == 0 || time.Now().After(deadline) {
			return len(all)
		}
	}
}

func processes() (pids []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range paths {
		if pid, err := strconv.Atoi(filepath.Base(path)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func descendants(of int) (all []int) {
	children := map[int][]int{}
	for _, pid := range processes() {
		if fields := stat(pid); len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], pid)
		}
	}
	all = append(all, children[of]...)
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// free returns the bytes that this user may write below dir.
func free(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
