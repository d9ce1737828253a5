package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is the entry of one process in /proc.
type process struct {
	pid, group, session int
	rss                 int64  // bytes
	stack               string // address of its stack, which only exec changes; "" if unknown
	stopped             bool
}

// tree returns the process pid, its descendants and all processes of its session, which a sandboxed process cannot
// leave. Without /proc it returns only pid.
func tree(pid int) []process {
	children := map[int][]process{}
	root := process{pid: pid}
	var others []process
	folders, _ := filepath.Glob("/proc/[0-9]*") // with "/stat", Glob would list each folder
	for _, folder := range folders {
		data, err := os.ReadFile(filepath.Join(folder, "stat"))
		if err != nil {
			continue
		}
		// Format: pid (comm) state ppid pgrp session ... rss is field 24. comm may contain spaces and parentheses.
		fields := strings.Fields(string(data[max(bytes.LastIndexByte(data, ')')+1, 0):]))
		id, err := strconv.Atoi(filepath.Base(folder))
		if err != nil || len(fields) < 22 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		group, _ := strconv.Atoi(fields[2])
		session, _ := strconv.Atoi(fields[3])
		pages, _ := strconv.ParseInt(fields[21], 10, 64)
		p := process{pid: id, group: group, session: session, rss: pages * int64(os.Getpagesize()),
			stopped: fields[0] == "T" || fields[0] == "t"}
		if len(fields) > 25 && fields[25] != "0" {
			p.stack = fields[25]
		}
		switch {
		case id == pid:
			root = p
		case session == pid:
			others = append(others, p)
		}
		children[parent] = append(children[parent], p)
	}
	all := append([]process{root}, others...)
	for i := 0; i < len(all); i++ {
		for _, p := range children[all[i].pid] {
			if !slices.ContainsFunc(all, func(q process) bool { return q.pid == p.pid }) {
				all = append(all, p)
			}
		}
	}
	return all
}

// Pause stops the process pid, its descendants and the processes of its session, and waits up to 5 s until they have
// stopped. resume lets them continue.
func Pause(pid int) (resume func()) {
	deadline := time.Now().Add(5 * time.Second)
	for ; ; time.Sleep(100 * time.Microsecond) {
		all := tree(pid)
		running := func(p process) bool { return !p.stopped && syscall.Kill(p.pid, 0) == nil }
		if !slices.ContainsFunc(all, running) || time.Now().After(deadline) {
			break
		}
		deliver(syscall.SIGSTOP, pid, all)
	}
	return func() { deliver(syscall.SIGCONT, pid, tree(pid)) }
}

// deliver sends a signal to the processes all of tree(pid), the last ones first, and to their groups in the session of
// pid. A process that constantly replaces itself may escape every tree, but not a signal to its group.
func deliver(sig syscall.Signal, pid int, all []process) {
	for _, p := range slices.Backward(all) {
		if p.session == pid && p.group != pid {
			_ = syscall.Kill(-p.group, sig)
		}
		_ = syscall.Kill(p.pid, sig)
	}
	if pid != os.Getpid() {
		_ = syscall.Kill(-pid, sig)
	}
}

// comparable reports whether the kernel can compare open files of two processes.
var comparable = same(os.Getpid(), 0, os.Getpid(), 0)

// Openers returns the processes of tree(pid) other than pid that have opened a file with one of the names, as
// "PID (NAME)". Files that a process inherited from pid do not count: the same open files or, if the kernel cannot
// compare them, all files of a process that has executed no program of its own. A process whose open files this process
// may not list counts too.
func Openers(pid int, names ...string) (found []string) {
	var inherited []int // descriptors of pid
	opened := func(pid int, each func(fd int)) bool {
		folder := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(folder)
		for _, e := range entries {
			if name, err := os.Readlink(filepath.Join(folder, e.Name())); err == nil && slices.Contains(names, name) {
				fd, _ := strconv.Atoi(e.Name())
				each(fd)
			}
		}
		return !errors.Is(err, fs.ErrPermission)
	}
	all := tree(pid)
	if len(all) > 1 {
		opened(pid, func(fd int) { inherited = append(inherited, fd) })
	}
	for _, p := range all[1:] {
		own := false
		listed := opened(p.pid, func(fd int) {
			if !comparable {
				own = own || p.stack == "" || p.stack != all[0].stack
				return
			}
			own = own || !slices.ContainsFunc(inherited, func(old int) bool { return same(pid, old, p.pid, fd) })
		})
		if own || !listed {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.pid))
			found = append(found, fmt.Sprintf("%d (%s)", p.pid, strings.TrimSpace(string(comm))))
		}
	}
	return found
}

// End kills the descendants of the process pid, the processes of its session, and then pid, which may be this process.
func End(pid int) { end(pid, true) }

// EndLeft kills the remaining processes in the session of pid, which has ended.
func EndLeft(pid int) { end(pid, false) }

// end retries for up to 5 seconds until the processes are gone.
func end(pid int, leader bool) {
	deadline := time.Now().Add(5 * time.Second)
	for gone := 0; gone < 3 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		all := tree(pid)[1:]
		deliver(syscall.SIGKILL, pid, all)
		if leader {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if gone++; len(all) > 0 {
			gone = 0
		}
	}
}
