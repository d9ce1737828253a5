package sandbox

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A file is a memory file, or shared memory without a name, which the kernel keeps in the same way.
type file struct{ device, inode uint64 }

// A usage is the memory of processes.
type usage struct {
	processes []process
	tables    int64          // bytes of page tables
	files     map[file]int64 // allocated bytes, of files with a descriptor or whose mapping may be followed
	extents   map[file]int64 // of the others: end of the last mapped part
	sockets   map[string]bool
}

// socketBytes is the size of a socket's send buffer, which a process in a sandbox cannot enlarge, except for TCP.
const socketBytes = 208 << 10

// Memory returns the memory of the processes in tree(pid), in bytes: resident pages, page tables, memory files and
// shared memory that are open or mapped, and sockets as if they were full. The allocated part of a memory file that is
// mapped without a descriptor is known only to a process with CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE; for others its
// mapped extent counts, as far as the machine has that much shared memory.
func Memory(pid int) int64 {
	u := usageOf(pid)
	return u.exact()
}

// Over reports whether Memory(pid) exceeds limit. It is faster if that is impossible even with all shared memory of the
// machine.
func Over(pid int, limit int64) bool {
	u := usageOf(pid)
	return u.sum()+field("/proc/meminfo", "Shmem", 1<<60) > limit && u.exact() > limit
}

// usageOf returns the usage of tree(pid) without its mappings.
func usageOf(pid int) usage {
	u := usage{processes: tree(pid), files: map[file]int64{}, extents: map[file]int64{}, sockets: map[string]bool{}}
	for _, p := range u.processes {
		u.tables += field(fmt.Sprintf("/proc/%d/status", p.pid), "VmPTE", 0)
		u.descriptors(p.pid)
	}
	return u
}

// sum returns the total without further mappings. Resident pages of memory files count twice.
func (u *usage) sum() int64 {
	sum := int64(len(u.sockets))*socketBytes + u.tables
	for _, p := range u.processes {
		sum += p.rss
	}
	for _, n := range u.files {
		sum += n
	}
	return sum
}

// exact returns the memory including mapped files, each of which counts once.
func (u *usage) exact() int64 {
	twice, unknown := int64(0), int64(0)
	for _, p := range u.processes {
		twice += u.mappings(p.pid)
	}
	for f, n := range u.extents {
		if _, known := u.files[f]; !known {
			unknown += n
		}
	}
	if unknown > 0 {
		unknown = min(unknown, field("/proc/meminfo", "Shmem", 1<<60))
	}
	return u.sum() - twice + unknown
}

// descriptors adds the open memory files and sockets of a process.
func (u *usage) descriptors(pid int) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, fd := range fds {
		path := filepath.Join(dir, fd.Name())
		if fd.Type() != fs.ModeSymlink {
			continue
		}
		switch target, _ := os.Readlink(path); {
		case strings.HasPrefix(target, "socket:"):
			u.sockets[target] = true
		case strings.HasPrefix(target, "/memfd:"):
			u.allocated(path)
		}
	}
}

// allocated adds the file at path, a link in /proc, and reports whether it may be followed.
func (u *usage) allocated(path string) bool {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return false
	}
	u.files[file{uint64(st.Dev), st.Ino}] = st.Blocks * 512
	return true
}

// shmem returns the device of memory files as a number and as in /proc/PID/maps, or zero if it is unknown.
var shmem = sync.OnceValues(func() (uint64, string) {
	var st unix.Stat_t
	fd, err := unix.MemfdCreate("fisub-device", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, ""
	}
	defer unix.Close(fd)
	if unix.Fstat(fd, &st) != nil {
		return 0, ""
	}
	return st.Dev, fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev))
})

// mappings adds the memory files mapped by a process and returns the resident bytes of the mappings.
func (u *usage) mappings(pid int) (resident int64) {
	device, name := shmem()
	wanted := []byte(" " + name + " ")
	// smaps takes long for a large process, and few have memory files.
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)); err != nil || !bytes.Contains(data, wanted) {
		return 0
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0
	}
	ofMemoryFile := false
	for line := range bytes.Lines(data) {
		// The lines of a mapping: start-end permissions offset device inode path; then "Rss:   12 kB" and others. The
		// path may contain anything but a line break.
		if word, rest, _ := bytes.Cut(line, []byte(" ")); bytes.HasSuffix(word, []byte(":")) {
			if ofMemoryFile && string(word) == "Rss:" {
				resident += kilobytes(rest)
			}
			continue
		}
		at := bytes.Index(line, wanted)
		if ofMemoryFile = at >= 0 && bytes.Count(line[:at], []byte(" ")) == 2; !ofMemoryFile {
			continue
		}
		parts := strings.Fields(string(line))
		from, to, _ := strings.Cut(parts[0], "-")
		start, _ := strconv.ParseUint(from, 16, 63)
		end, _ := strconv.ParseUint(to, 16, 63)
		offset, _ := strconv.ParseInt(parts[2], 16, 64)
		inode, _ := strconv.ParseUint(parts[4], 10, 64)
		length := int64(end - start)
		f := file{device, inode}
		if _, known := u.files[f]; !known && !u.allocated(fmt.Sprintf("/proc/%d/map_files/%s", pid, parts[0])) {
			u.extents[f] = max(u.extents[f], offset+length)
		}
	}
	return resident
}

// kilobytes returns the bytes of "   12 kB".
func kilobytes(text []byte) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(text)), "kB")), 10, 64)
	return n << 10
}

// field returns the bytes of a line such as "Shmem:    12 kB" in a file, or missing.
func field(path, name string, missing int64) int64 {
	data, _ := os.ReadFile(path)
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return kilobytes(rest)
		}
	}
	return missing
}
