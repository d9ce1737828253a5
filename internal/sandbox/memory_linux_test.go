package sandbox_test

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fisub/internal/sandbox"
)

// part is the amount of memory that each case of TestMemory holds.
const part = 64 << 20

// touch writes to each page of memory, and then gives up its mapping if drop is set.
func touch(t *testing.T, data []byte, drop bool) {
	for at := 0; at < len(data); at += os.Getpagesize() {
		data[at] = 1
	}
	if drop {
		if err := unix.Madvise(data, unix.MADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
	}
}

// memfile returns the descriptor of a memory file of that size, of which nothing is allocated.
func memfile(t *testing.T, size int64) int {
	fd, err := unix.MemfdCreate("hidden", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// mapped maps a memory file, or shared memory without a file if fd is -1, until the test ends.
func mapped(t *testing.T, fd, size int) []byte {
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags |= unix.MAP_ANON
	}
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(data) })
	return data
}

// Memory counts all memory that a process holds, and nothing twice.
func TestMemory(t *testing.T) {
	page := uintptr(os.Getpagesize())
	own, err := unix.MmapPtr(-1, 0, nil, page, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.MunmapPtr(own, page) //nolint:errcheck // of a mapping that was made above
	_, err = os.Stat(fmt.Sprintf("/proc/self/map_files/%x-%x", uintptr(own), uintptr(own)+page))
	exact := err == nil // see Memory
	for _, tc := range []struct {
		name string
		want int
		hold func(t *testing.T)
	}{
		{"memory file", part, func(t *testing.T) {
			fd := memfile(t, 0)
			t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Fallocate(fd, 0, 0, part); err != nil {
				t.Fatal(err)
			}
		}},
		{"mapped memory file", part, func(t *testing.T) {
			fd := memfile(t, part)
			t.Cleanup(func() { unix.Close(fd) })
			touch(t, mapped(t, fd, part), false)
		}},
		{"memory file without descriptor", part, func(t *testing.T) {
			fd := memfile(t, part)
			data := mapped(t, fd, part)
			unix.Close(fd)
			touch(t, data, true)
		}},
		{"mapped memory file without descriptor", part, func(t *testing.T) {
			fd := memfile(t, part)
			data := mapped(t, fd, part)
			unix.Close(fd)
			touch(t, data, false)
		}},
		{"memory file mapped twice", part, func(t *testing.T) {
			fd := memfile(t, part)
			touch(t, mapped(t, fd, part), false)
			touch(t, mapped(t, fd, part), false)
			unix.Close(fd)
		}},
		{"memory file beside a mapped file of a tmpfs", 2 * part, func(t *testing.T) {
			var fs unix.Statfs_t
			if unix.Statfs("/dev/shm", &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
				t.Skip("no tmpfs at /dev/shm")
			}
			fd, err := unix.Open("/dev/shm", unix.O_TMPFILE|unix.O_RDWR, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Ftruncate(fd, part); err != nil {
				t.Fatal(err)
			}
			touch(t, mapped(t, fd, part), false) // resident, like a program on a tmpfs
			unix.Close(fd)
			touch(t, mapped(t, -1, part), true)
		}},
		{"shared memory", part, func(t *testing.T) { touch(t, mapped(t, -1, part), true) }},
		{"mapped shared memory", part, func(t *testing.T) { touch(t, mapped(t, -1, part), false) }},
		{"named shared memory", part, func(t *testing.T) {
			data := mapped(t, -1, part)
			touch(t, data, true)
			_ = unix.Prctl(unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME, uintptr(unsafe.Pointer(&data[0])), part, text("x"))
		}},
		{"private memory", part, func(t *testing.T) {
			data, err := unix.Mmap(-1, 0, part, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Munmap(data) })
			touch(t, data, false)
		}},
		{"a page of shared memory", part, func(t *testing.T) {
			if !exact {
				t.Skip("the size of an unmapped part is unknown without rights of root")
			}
			data, err := unix.MmapPtr(-1, 0, nil, part, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
			if err != nil {
				t.Fatal(err)
			}
			touch(t, unsafe.Slice((*byte)(data), part), true)
			if err := unix.MunmapPtr(unsafe.Add(data, page), part-page); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.MunmapPtr(data, page) })
		}},
		{"untouched shared memory", 0, func(t *testing.T) {
			if !exact {
				t.Skip("only the size of the mapping is known")
			}
			mapped(t, -1, 16*part)
		}},
		{"page tables", part, func(t *testing.T) { // each of one page for 2 MiB, which maps the page of zeros
			const reach, tables = 2 << 20, part / 4096
			data, err := unix.MmapPtr(-1, 0, nil, tables*reach, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
			if err == nil {
				t.Cleanup(func() { _ = unix.MunmapPtr(data, tables*reach) })
				err = unix.Madvise(unsafe.Slice((*byte)(data), tables*reach), unix.MADV_NOHUGEPAGE)
			}
			if err != nil {
				t.Skip(err)
			}
			sum := byte(0)
			for at := range tables {
				sum += *(*byte)(unsafe.Add(data, at*reach))
			}
			if sum != 0 {
				t.Fatal("not zero")
			}
		}},
		{"sockets", 200 * 200 << 10, func(t *testing.T) {
			for range 200 {
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				for err == nil {
					_, err = unix.Write(fds[0], make([]byte, 1<<15))
				}
				unix.Close(fds[0]) // the data stay in the other's queue
				t.Cleanup(func() { unix.Close(fds[1]) })
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := sandbox.Memory(os.Getpid())
			tc.hold(t)
			if got := int(sandbox.Memory(os.Getpid()) - before); got < tc.want-4<<20 || got > tc.want+16<<20 {
				t.Errorf("got %d MiB more, want %d", got>>20, tc.want>>20)
			}
		})
	}
}

// The figures hold for a judge without the rights of root.
func TestMemoryOfUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("becomes another user, which only root may do")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestMemory$", "-test.v")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61236, Gid: 61236}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("got %v, %s", err, out)
	}
}

// Over agrees with Memory, also if shared memory decides.
func TestOver(t *testing.T) {
	touch(t, mapped(t, -1, part), true)
	held := sandbox.Memory(os.Getpid())
	if sandbox.Over(os.Getpid(), held+8<<20) || !sandbox.Over(os.Getpid(), held-8<<20) {
		t.Errorf("wrong about %d MiB", held>>20)
	}
}

// BenchmarkMemory measures one check of a worker's memory, without and with a search for shared memory.
func BenchmarkMemory(b *testing.B) {
	for name, limit := range map[string]int64{"far below the limit": 1 << 50, "near the limit": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				sandbox.Over(os.Getpid(), limit)
			}
		})
	}
}
