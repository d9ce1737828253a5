package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fisub/internal/sandbox"
)

// TestMain makes the system calls of an attack in a sandbox if a test requests it.
func TestMain(m *testing.M) {
	if os.Getenv("FISUB_TERMINAL") != "" {
		atTerminal()
	}
	if os.Getenv("FISUB_OTHER_USER") != "" {
		besideHog()
	}
	if name := os.Getenv("FISUB_ATTACK"); name != "" {
		for _, a := range attacks {
			if a.name == name {
				fmt.Println(errno(a.call()))
			}
		}
		if os.Getenv("FISUB_HOLD") != "" {
			time.Sleep(time.Hour)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func errno(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

func number(name string) int {
	n, _ := strconv.Atoi(os.Getenv(name))
	return n
}

func victim() int        { return number("FISUB_VICTIM") }
func file() string       { return os.Getenv("FISUB_FILE") }
func socketName() string { return os.Getenv("FISUB_SOCKET") }

func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// text returns the address of a string for a system call.
func text(s string) uintptr { return uintptr(unsafe.Pointer(&append([]byte(s), 0)[0])) }

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return inner(err)
	}
	_, err = f.WriteString(text)
	return inner(errors.Join(err, f.Close()))
}

func ioctl(request uintptr) error {
	fd, err := unix.Open(file(), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	var value [64]byte
	return call(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&value)))
}

// attacks are system calls that a submission may try. want is the result; "idle" is success without an effect.
var attacks = []struct {
	name, want string
	call       func() error
}{
	{"prlimit", "EPERM", func() error {
		return unix.Prlimit(victim(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}, nil)
	}},
	{"prlimit of high bits", "EPERM", func() error {
		return call(unix.SYS_PRLIMIT64, uintptr(victim())|1<<40, unix.RLIMIT_NOFILE, 0, 0)
	}},
	{"own limit", "done", func() error {
		return unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	}},
	{"affinity", "idle", func() error { var s unix.CPUSet; s.Set(0); return unix.SchedSetaffinity(victim(), &s) }},
	{"priority", "idle", func() error { return unix.Setpriority(unix.PRIO_PROCESS, victim(), 19) }},
	{"priority of the user", "idle", func() error { return unix.Setpriority(unix.PRIO_USER, 0, 19) }},
	{"scheduler", "idle", func() error {
		return unix.SchedSetAttr(victim(), &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
	}},
	{"disk priority", "idle", func() error { return call(unix.SYS_IOPRIO_SET, 1, uintptr(victim()), 3<<13) }},
	{"ptrace", "EPERM", func() error { return unix.PtraceAttach(victim()) }},
	{"read memory", "EPERM", func() error { return call(unix.SYS_PROCESS_VM_READV, uintptr(victim())) }},
	{"take a descriptor", "EPERM", func() error { return call(unix.SYS_PIDFD_GETFD, 0, 0, 0) }},
	{"compare", "EPERM", func() error { return call(unix.SYS_KCMP, uintptr(victim()), uintptr(victim())) }},
	{"chmod", "idle", func() error { return unix.Chmod(file(), 0o777) }},
	{"fchmod", "idle", func() error {
		fd, err := unix.Open(file(), unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		return unix.Fchmod(fd, 0o777)
	}},
	{"fchmodat2", "idle", func() error {
		dir := unix.AT_FDCWD
		return call(unix.SYS_FCHMODAT2, uintptr(dir), text(file()), 0o777, 0)
	}},
	{"chown", "idle", func() error { return unix.Chown(file(), 65534, 65534) }},
	{"utimes", "idle", func() error { return unix.Utimes(file(), make([]unix.Timeval, 2)) }},
	{"utimensat", "idle", func() error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, file(), make([]unix.Timespec, 2), 0)
	}},
	{"xattr", "idle", func() error { return unix.Setxattr(file(), "user.x", []byte("x"), 0) }},
	{"attributes", "EPERM", func() error { return ioctl(unix.FS_IOC_SETFLAGS) }},
	{"attributes of high bits", "EPERM", func() error { return ioctl(unix.FS_IOC_SETFLAGS | 1<<40) }},
	{"attributes of XFS", "EPERM", func() error { return ioctl(0x401c5820) }},
	{"set-user-ID file", "EPERM", func() error {
		_, err := unix.Open(filepath.Join(os.Getenv("TMPDIR"), "shell"), unix.O_CREAT|unix.O_WRONLY, 0o4755)
		return err
	}},
	{"terminal input", "EPERM", func() error { return ioctl(unix.TIOCSTI) }},
	{"terminal input of high bits", "EPERM", func() error { return ioctl(unix.TIOCSTI | 1<<33) }},
	{"console selection", "EPERM", func() error { return ioctl(unix.TIOCLINUX) }},
	{"type", "done", typed},
	{"terminal", "ENXIO", func() error { _, err := unix.Open("/dev/tty", unix.O_RDONLY, 0); return err }},
	{"unix socket", "EPERM", func() error { _, err := net.Dial("unix", socketName()); return inner(err) }},
	{"unix datagrams", "EPERM", func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0); return err }},
	{"unix datagram socket", "EPERM", func() error {
		_, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}},
	{"raw unix socket", "EPERM", func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_RAW, 0); return err }},
	{"unix socket of high bits", "EPERM", func() error {
		return call(unix.SYS_SOCKET, unix.AF_UNIX|1<<35, unix.SOCK_STREAM|1<<34, 0)
	}},
	{"CUDA's socket", "done", func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@cuda-uvmfd-" + strconv.Itoa(os.Getpid())})
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		return err
	}},
	{"own socket pair", "done", func() error {
		_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	}},
	{"virtual machine socket", "EPERM", func() error { _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); return err }},
	{"network", "done", func() error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); return err }},
	{"namespace", "EPERM", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"namespace of a child", "EPERM", func() error {
		cmd := exec.Command("true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		return inner(cmd.Run())
	}},
	{"join a namespace", "EPERM", func() error { return unix.Setns(0, 0) }},
	{"mount", "EPERM", func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") }},
	{"bpf", "EPERM", func() error { return call(unix.SYS_BPF, 0, 0, 0) }},
	{"keyring", "EPERM", func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, false); return err }},
	{"perf", "EPERM", func() error { _, err := unix.PerfEventOpen(&unix.PerfEventAttr{}, 0, -1, -1, 0); return err }},
	{"userfaultfd", "EPERM", func() error { return call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC) }},
	{"asynchronous I/O of the machine", "ENOSYS", func() error {
		var context uint64
		return call(unix.SYS_IO_SETUP, 1000, uintptr(unsafe.Pointer(&context)))
	}},
	{"io_uring", "ENOSYS", func() error { return call(unix.SYS_IO_URING_SETUP, 1, text(strings.Repeat("\x00", 120))) }},
	{"SysV memory", "EPERM", func() error { return call(unix.SYS_SHMGET, 0, 4096, unix.IPC_CREAT|0o600) }},
	{"message queue", "EPERM", func() error { return call(unix.SYS_MQ_OPEN, text("fisub"), unix.O_CREAT|unix.O_RDWR, 0o600) }},
	{"hide from /proc", "idle", func() error {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
		if n, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); n == 0 {
			return fmt.Errorf("hidden")
		}
		return nil
	}},
	{"priority of its own", "EACCES", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) }},
	{"real-time scheduling of its own", "EPERM", func() error {
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 99}
		return unix.SchedSetAttr(0, &attr, 0)
	}},
	{"deadline scheduling of its own", "EPERM", func() error {
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Runtime: 1e7, Deadline: 2e7,
			Period: 2e7}
		return unix.SchedSetAttr(0, &attr, 0)
	}},
	{"real-time disk access of its own", "EPERM", func() error { return call(unix.SYS_IOPRIO_SET, 1, 0, 1<<13) }},
	{"advise about memory", "EPERM", func() error { return call(unix.SYS_PROCESS_MADVISE, 0, 0, 0, unix.MADV_COLD) }},
	{"write memory", "EPERM", func() error { return call(unix.SYS_PROCESS_VM_WRITEV, uintptr(victim())) }},
	{"memory file", "EACCES", func() error {
		_, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", victim()), os.O_RDWR, 0)
		return inner(err)
	}},
	{"descriptor file", "EACCES", func() error {
		_, err := unix.Open(fmt.Sprintf("/proc/%d/fd/0", victim()), unix.O_RDONLY, 0)
		return err
	}},
	{"environment file", "EACCES", func() error {
		_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", victim()))
		return inner(err)
	}},
	{"move memory", "EPERM", func() error { return call(unix.SYS_MIGRATE_PAGES, uintptr(victim())) }},
	{"release memory", "EPERM", func() error { return call(unix.SYS_PROCESS_MRELEASE, 0, 0) }},
	{"secret memory", "EPERM", func() error { return call(unix.SYS_MEMFD_SECRET, 0) }},
	{"signal by descriptor", "EPERM", func() error {
		fd, err := unix.PidfdOpen(victim(), 0)
		if err != nil {
			return err
		}
		return unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0)
	}},
	{"signal to a group", "EPERM", func() error { return unix.Kill(-victim(), unix.SIGKILL) }},
	{"signal to a thread", "EPERM", func() error { return unix.Tgkill(victim(), victim(), unix.SIGKILL) }},
	{"queued signal", "EPERM", func() error {
		info := [128]byte{8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff} // SI_QUEUE
		return call(unix.SYS_RT_SIGQUEUEINFO, uintptr(victim()), uintptr(unix.SIGKILL), uintptr(unsafe.Pointer(&info)))
	}},
	{"signal of a timer", "EINVAL", func() error {
		var timer int32
		event := [16]int32{2: int32(unix.SIGKILL), 3: 4, 4: int32(victim())} // SIGEV_THREAD_ID
		return call(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)),
			uintptr(unsafe.Pointer(&timer)))
	}},
	{"process group of others", "ESRCH", func() error { return unix.Setpgid(victim(), 0) }},
	{"tracing by a parent", "EPERM", func() error { return call(unix.SYS_PTRACE, unix.PTRACE_TRACEME) }},
	{"new way to set attributes", "ENOSYS", func() error { return call(469, 0, text(file()), 0, 24, 0) }}, // file_setattr
	{"signal of a descriptor", "idle", func() error {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		for _, set := range [][2]int{{unix.F_SETOWN, victim()}, {unix.F_SETSIG, int(unix.SIGKILL)},
			{unix.F_SETFL, unix.O_ASYNC}} {
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fds[0]), set[0], set[1])
			}
		}
		if err == nil {
			_, err = unix.Write(fds[1], []byte("x"))
		}
		return err
	}},
	{"lease that delays the judge", "EPERM", func() error {
		fd, err := unix.Open(file(), unix.O_RDONLY, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
		}
		return err
	}},
	{"truncate", "EACCES", func() error { return unix.Truncate(file(), 0) }},
	{"truncate while reading", "EACCES", func() error { _, err := unix.Open(file(), unix.O_TRUNC, 0); return err }},
	{"open a descriptor again", "EACCES", func() error {
		fd, err := unix.Open(file(), unix.O_RDONLY, 0)
		if err == nil {
			_, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, 0)
		}
		return err
	}},
	{"write through a mapping", "EACCES", func() error {
		fd, err := unix.Open(file(), unix.O_RDONLY, 0)
		if err == nil {
			_, err = unix.Mmap(fd, 0, 4, unix.PROT_WRITE, unix.MAP_SHARED)
		}
		return err
	}},
	{"exchange files", "EACCES", func() error {
		own := filepath.Join(os.Getenv("TMPDIR"), "own")
		if err := os.WriteFile(own, nil, 0o600); err != nil {
			return err
		}
		return unix.Renameat2(unix.AT_FDCWD, own, unix.AT_FDCWD, file(), unix.RENAME_EXCHANGE)
	}},
	{"file by handle", "EPERM", func() error {
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, file(), 0)
		if err == nil {
			_, err = unix.OpenByHandleAt(unix.AT_FDCWD, handle, unix.O_RDWR)
		}
		return err
	}},
	{"program without a file", "exit status 2", func() error {
		fd, err := unix.MemfdCreate("sh", 0)
		sh, rerr := os.ReadFile("/bin/sh")
		if err != nil || rerr != nil {
			return errors.Join(err, rerr)
		}
		if _, err := unix.Write(fd, sh); err != nil {
			return err
		}
		// Not through the id of this process: each of its threads has its own Landlock domain and cannot see the first one.
		return exec.Command(fmt.Sprintf("/proc/self/fd/%d", fd), "-c", "echo x >>"+file()).Run()
	}},
	{"device of its own", "EPERM", func() error {
		return unix.Mknod(filepath.Join(os.Getenv("TMPDIR"), "disk"), unix.S_IFBLK|0o600, 8<<8)
	}},
	{"core file", "idle", func() error {
		cmd := exec.Command("sh", "-c", "ulimit -c unlimited; kill -ABRT $$")
		cmd.Dir = filepath.Dir(file())
		_ = cmd.Run()
		return nil
	}},
	{"names in shared memory", "EACCES", func() error { return write("/dev/shm/fisub-test", "x") }},
	{"own thread's name, as CUDA sets it", "done", func() error {
		return write(fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()), "worker")
	}},
	{"memory pressure of others", "EACCES", func() error {
		return write(fmt.Sprintf("/proc/%d/oom_score_adj", victim()), "1000")
	}},
	{"kernel settings", "EACCES", func() error { return write("/proc/sys/kernel/core_pattern", "|/bin/sh") }},
	{"kernel messages", "EACCES", func() error { return write("/dev/kmsg", "x") }},
	{"pseudo terminal", "EACCES", func() error { _, err := unix.Open("/dev/ptmx", unix.O_RDWR, 0); return err }},
	{"control group", "EACCES", func() error { return inner(os.Mkdir("/sys/fs/cgroup/fisub-test", 0o755)) }},
	{"file watch of all processes", "EPERM", func() error { _, err := unix.FanotifyInit(0, 0); return err }},
	{"abstract socket", "EPERM", func() error { _, err := net.Dial("unix", "@"+socketName()); return inner(err) }},
	{"abstract packet socket", "EPERM", func() error {
		_, err := net.Dial("unixpacket", "@"+socketName()+"-packet")
		return inner(err)
	}},
	{"raw network packets", "EPERM", func() error { _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); return err }},
	{"kernel's ciphers", "EPERM", func() error { _, err := unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0); return err }},
	{"capabilities", "EPERM", func() error {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		sets := []unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}, {}}
		return unix.Capset(&hdr, &sets[0])
	}},
	{"another user", "EPERM", func() error { return unix.Setresuid(65534, 65534, 65534) }},
	{"key", "EPERM", func() error {
		_, err := unix.AddKey("user", "fisub", []byte("x"), unix.KEY_SPEC_USER_KEYRING)
		return err
	}},
	{"SysV queue", "EPERM", func() error { return call(unix.SYS_MSGGET, 0, unix.IPC_CREAT|0o600) }},
	{"SysV semaphore", "EPERM", func() error { return call(unix.SYS_SEMGET, 0, 1, unix.IPC_CREAT|0o600) }},
	{"quotas", "EPERM", func() error { return call(unix.SYS_QUOTACTL, 0, 0, 0, 0) }},
	{"host name", "EPERM", func() error { return unix.Sethostname([]byte("x")) }},
	{"clock", "EPERM", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: -1}) }},
	{"speed of the clock", "EPERM", func() error { _, err := unix.Adjtimex(&unix.Timex{}); return err }},
	{"swap", "EPERM", func() error { return call(unix.SYS_SWAPOFF, text("/none")) }},
	{"accounting", "EPERM", func() error { return unix.Acct("") }},
	{"kernel module", "EPERM", func() error { return unix.DeleteModule("none", 0) }},
	{"kernel log", "EPERM", func() error { _, err := unix.Klogctl(10, nil); return err }},
	{"descriptors in flight", "ETOOMANYREFS", func() error {
		for range 10 {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			for range 2 {
				if err == nil {
					err = unix.Sendmsg(fds[0], []byte("x"), unix.UnixRights(make([]int, 250)...), nil, 0)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"more open files", "EPERM", func() error {
		return unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4096, Max: 4096}, nil)
	}},
	{"pending signals", "EAGAIN", func() error {
		runtime.LockOSThread()
		realTime := unix.Sigset_t{Val: [16]uint64{1 << 39}}
		if err := unix.PthreadSigmask(unix.SIG_BLOCK, &realTime, nil); err != nil {
			return err
		}
		info := [128]byte{8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff} // SI_QUEUE
		for range 2000 {
			if err := call(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(unix.Gettid()), 40,
				uintptr(unsafe.Pointer(&info))); err != nil {
				return err
			}
		}
		return nil
	}},
	{"large pipe", "EPERM", func() error {
		var fds [2]int
		if err := unix.Pipe(fds[:]); err != nil {
			return err
		}
		_, err := unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, 1<<20)
		return err
	}},
	{"pages in a pipe", "EPERM", func() error {
		_, err := unix.Vmsplice(1, []unix.Iovec{{Base: new(byte), Len: 1}}, 0)
		return err
	}},
	{"large socket", "idle", func() error {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		for _, option := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF, unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
			read := map[int]int{unix.SO_SNDBUF: unix.SO_SNDBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF}[option]
			if read == 0 {
				read = unix.SO_RCVBUF
			}
			before, _ := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, read)
			if err := unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, option, 1<<20); err != nil {
				return err
			}
			if after, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, read); after != before || err != nil {
				return fmt.Errorf("option %d: %d bytes instead of %d, %v", option, after, before, err)
			}
		}
		return nil
	}},
	{"file watch", "EMFILE", func() error { _, err := unix.InotifyInit1(unix.IN_CLOEXEC); return err }},
	{"folder watch by signals", "EPERM", func() error {
		fd, err := unix.Open(filepath.Dir(file()), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_NOTIFY, 1) // DN_ACCESS
		}
		return err
	}},
	{"an unknown call", "ENOSYS", func() error { return call(100000) }},
	{"calls of x32", "ENOSYS", func() error { return call(0x40000000 | unix.SYS_GETPID) }},
}

// inner returns the error number of err.
func inner(err error) error {
	var number syscall.Errno
	for ; err != nil; err = unwrap(err) {
		if n, ok := err.(syscall.Errno); ok {
			number = n
		}
	}
	if number == 0 {
		return nil
	}
	return number
}

func unwrap(err error) error {
	u, ok := err.(interface{ Unwrap() error })
	if !ok {
		return nil
	}
	return u.Unwrap()
}

func TestAttacks(t *testing.T) {
	attack(t, false, nil)
}

// NVIDIA's tools may connect to sockets and trace their own processes, but no others.
func TestAttacksBelowTools(t *testing.T) {
	attack(t, true, map[string]string{"unix socket": "done", "unix datagrams": "done", "unix datagram socket": "done",
		"raw unix socket": "done", "unix socket of high bits": "done", "virtual machine socket": "", "raw network packets": "",
		"kernel's ciphers": "", "perf": "", "capabilities": "", "real-time disk access of its own": "",
		"read memory": "", "write memory": "", "environment file": "",
		"file watch": "done", "pending signals": "done", "descriptors in flight": "", // root may exceed the limit
		"tracing by a parent": "none"}) // this test would be the tracer, and Go's Wait cannot trace
}

// attack runs the attacks. other overrides results: "" accepts any result, and "none" skips the attack.
func attack(t *testing.T, tools bool, other map[string]string) {
	need(t, "seccomp", "signals")
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, a := range []struct{ kind, name string }{{"unix", ""}, {"unixpacket", "-packet"}} {
		l, err := net.Listen(a.kind, "@"+l.Addr().String()+a.name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	sleeper := exec.Command("sleep", "600")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	look := func() string {
		pid := sleeper.Process.Pid
		var set unix.CPUSet
		_ = unix.SchedGetaffinity(pid, &set)
		nice, _ := unix.Getpriority(unix.PRIO_PROCESS, pid)
		attr, _ := unix.SchedGetAttr(pid, 0)
		disk, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(pid), 0)
		limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		var st unix.Stat_t
		_ = unix.Stat(kept, &st)
		n, _ := unix.Listxattr(kept, nil)
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		state := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
		runs := strings.Contains("RSD", state)
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		return fmt.Sprint(set, nice, attr.Policy, disk, string(limits), st.Mode, st.Uid, st.Mtim, st.Size, n, runs, files)
	}
	own := filepath.Join(dir, "own")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, a := range attacks {
		var below []string
		if tools { // a tool starts the program in another process
			below = []string{"sh", "-c", `"$@"; exit $?`, "tool"}
		}
		s := sandbox.Sandbox{Write: []string{own}, Tools: tools, Below: below, Env: []string{"TMPDIR=" + own, "FISUB_ATTACK=" + a.name,
			"FISUB_FILE=" + kept, "FISUB_SOCKET=" + l.Addr().String(), fmt.Sprintf("FISUB_VICTIM=%d", sleeper.Process.Pid)}}
		want, differs := other[a.name]
		if !differs {
			want = a.want
		}
		if want == "none" {
			continue
		}
		switch want {
		case "idle":
			want = "done"
		case "EPERM", "EACCES", "EAGAIN", "EINVAL", "EMFILE", "ETOOMANYREFS", "ESRCH", "ENOSYS", "ENXIO":
			for n := range syscall.Errno(200) {
				if unix.ErrnoName(n) == want {
					want = n.Error()
				}
			}
		}
		before := look()
		out, err := s.Command(t.Context(), os.Args[0]).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || want != "" && got != want {
			t.Errorf("%s: got %v, %s, want %s", a.name, err, got, want)
		}
		if after := look(); after != before {
			t.Errorf("%s: changed\n%s\nto\n%s", a.name, before, after)
		}
	}
}

// typed types a line into the terminal, through its name and through every descriptor.
func typed() error {
	_, _ = unix.Open("/dev/tty", unix.O_RDWR, 0)
	for fd := range uintptr(16) {
		for _, c := range []byte("typed\n") {
			_ = call(unix.SYS_IOCTL, fd, unix.TIOCSTI, uintptr(unsafe.Pointer(&[]byte{c}[0])))
		}
	}
	return nil
}

// atTerminal runs the attack "type" like a program started by a person, in a sandbox or not, and prints the number of
// bytes typed.
func atTerminal() {
	s := sandbox.Sandbox{Env: []string{"FISUB_ATTACK=type"}}
	cmd := s.Command(context.Background(), os.Args[0])
	if os.Getenv("FISUB_TERMINAL") == "bare" {
		cmd = exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FISUB_ATTACK=type", "FISUB_TERMINAL=")
	}
	cmd.Stdin = os.Stdin
	err := cmd.Run()
	n, ierr := unix.IoctlGetInt(0, unix.TIOCINQ)
	fmt.Println(n, errors.Join(err, ierr))
	os.Exit(0)
}

// A submission cannot type into the terminal in which fisub was started.
func TestTerminal(t *testing.T) {
	need(t, "seccomp")
	for _, how := range []string{"sandbox", "bare"} {
		pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
		if err != nil {
			t.Skip(err)
		}
		defer pty.Close()
		n, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
		if err == nil {
			err = unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer terminal.Close()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FISUB_TERMINAL="+how)
		cmd.Stdin = terminal
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		out, err := cmd.Output()
		switch got := strings.TrimSpace(string(out)); {
		case err != nil || how == "sandbox" && got != "0 <nil>":
			t.Errorf("%s: got %v, %q, want 0 bytes", how, err, got)
		case how == "bare" && got == "0 <nil>":
			t.Log("this kernel lets nobody type")
		}
	}
}

// A daemon stays in the session of its job, so it is found after its parents have ended.
func TestDaemons(t *testing.T) {
	need(t, "seccomp")
	s := sandbox.Sandbox{Write: []string{t.TempDir()}}
	cmd := s.Command(t.Context(), "sh", "-c",
		`(setsid env -i sh -c 'sleep 600 & echo $!; exec sleep 600' </dev/null 2>/dev/null &) ; sleep 600`)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	daemon, _ := strconv.Atoi(strings.TrimSpace(line))
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
	if err := syscall.Kill(daemon, 0); err != nil {
		t.Fatalf("the daemon ended with its parent: %v", err)
	}
	sandbox.EndLeft(cmd.Process.Pid)
	if state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", daemon)); len(state) > 0 && !strings.Contains(string(state), ") Z ") {
		t.Errorf("the daemon is still there: %s", state)
	}
}

// A submission with as many pending signals as it may have stops no other one from entering its sandbox.
func TestBesidePendingSignals(t *testing.T) {
	need(t, "seccomp")
	hog := sandbox.Sandbox{Env: []string{"FISUB_ATTACK=pending signals", "FISUB_HOLD=1"}}
	cmd := hog.Command(t.Context(), os.Args[0])
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { sandbox.End(cmd.Process.Pid); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != syscall.EAGAIN.Error()+"\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	for _, below := range [][]string{nil, {"sh", "-c", `"$@"; exit $?`, "tool"}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := sandbox.Sandbox{Below: below, Tools: below != nil, Env: []string{"FISUB_ATTACK=own limit"}}
		if out, err := s.Command(ctx, os.Args[0]).CombinedOutput(); err != nil || string(out) != "done\n" {
			t.Errorf("below %q: got %v, %s", below, err, out)
		}
	}
}

// Processes that constantly replace themselves are killed too.
func TestForkBomb(t *testing.T) {
	need(t, "seccomp")
	dir := t.TempDir()
	rabbit := filepath.Join(dir, "rabbit")
	if err := os.WriteFile(rabbit, []byte("sh $0 &\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := sandbox.Sandbox{Write: []string{dir}}
	cmd := s.Command(t.Context(), "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sh "+rabbit+" & done; echo; sleep 600")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	sandbox.End(cmd.Process.Pid)
	_ = cmd.Wait()
	sandbox.EndLeft(cmd.Process.Pid)
	if left, _ := exec.Command("pgrep", "-r", "R,S,D", "-s", strconv.Itoa(cmd.Process.Pid)).Output(); len(left) > 0 {
		_ = os.Remove(rabbit)
		t.Errorf("there are processes left:\n%s", left)
	}
}

// besideHog is the program of TestLimitsOfUser: a judge with the usual limit of descriptors that sends one while a
// submission of the same user sends descriptors until that fails.
func besideHog() {
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1024, Max: 1024})
	s := sandbox.Sandbox{Env: []string{"FISUB_ATTACK=descriptors in flight", "FISUB_OTHER_USER=", "FISUB_HOLD=1"}}
	cmd := s.Command(context.Background(), "/proc/self/exe") // this user may not search the folder of the program
	out, perr := cmd.StdoutPipe()
	if err = errors.Join(err, perr); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Sendmsg(fds[0], []byte("x"), unix.UnixRights(0), nil, 0)
	}
	fmt.Printf("submission: %s, judge: %s\n", strings.TrimSpace(line), errno(err))
	sandbox.End(cmd.Process.Pid)
	_ = cmd.Wait()
	os.Exit(0)
}

// A submission cannot exhaust a limit that the kernel counts for all processes of a user.
func TestLimitsOfUser(t *testing.T) {
	need(t, "seccomp")
	if os.Getuid() != 0 {
		t.Skip("becomes another user, which only root may do")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args[:1]
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "FISUB_OTHER_USER=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61235, Gid: 61235}}
	out, err := cmd.CombinedOutput()
	want := "submission: " + syscall.ETOOMANYREFS.Error() + ", judge: done\n"
	if err != nil || string(out) != want {
		t.Errorf("got %v, %s, want %s", err, out, want)
	}
}
