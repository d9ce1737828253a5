package worker

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A process is what /proc tells of one.
type process struct {
	pid, parent int
	rss         int64 // bytes
}

// tree returns the process pid and its descendants, parents first. Where there is no /proc it is pid alone.
func tree(pid int) []process {
	children := map[int][]process{}
	root := process{pid: pid}
	folders, _ := filepath.Glob("/proc/[0-9]*") // with "/stat", Glob would list each of them
	for _, folder := range folders {
		data, err := os.ReadFile(filepath.Join(folder, "stat"))
		if err != nil {
			continue
		}
		// pid (comm) state ppid ... rss is number 24; comm may hold spaces and parentheses.
		fields := strings.Fields(string(data[max(bytes.LastIndexByte(data, ')')+1, 0):]))
		id, err := strconv.Atoi(filepath.Base(folder))
		if err != nil || len(fields) < 22 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		pages, _ := strconv.ParseInt(fields[21], 10, 64)
		p := process{pid: id, parent: parent, rss: pages * int64(os.Getpagesize())}
		if id == pid {
			root = p
		}
		children[parent] = append(children[parent], p)
	}
	all := []process{root}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].pid]...)
	}
	return all
}

// KillTree kills the descendants of the process pid, and then that, which may be this one: an emulated kernel or a
// compiler is a process of its own, often in a group of its own.
func KillTree(pid int) {
	for _, p := range slices.Backward(tree(pid)) {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}

// treeRSS is the resident memory of pid and its descendants in bytes.
func treeRSS(pid int) (sum int64) {
	for _, p := range tree(pid) {
		sum += p.rss
	}
	return sum
}
