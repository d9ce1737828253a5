package sandbox_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fisub/internal/sandbox"
)

// TestMain makes the system calls of an attack, in a sandbox, if a test asks for it.
func TestMain(m *testing.M) {
	if name := os.Getenv("FISUB_ATTACK"); name != "" {
		for _, a := range attacks {
			if a.name == name {
				fmt.Println(errno(a.call()))
			}
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

func ioctl(request uintptr) error {
	fd, err := unix.Open(file(), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	var value [64]byte
	return call(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&value)))
}

// attacks are what a submission may try. want is the answer; "idle" stands for success without an effect.
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
	sleeper := exec.Command("sleep", "600")
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
		return fmt.Sprint(set, nice, attr.Policy, disk, string(limits), st.Mode, st.Uid, st.Mtim, n)
	}
	own := filepath.Join(dir, "own")
	for _, a := range attacks {
		s := sandbox.Sandbox{Write: []string{own}, Env: []string{"TMPDIR=" + own, "FISUB_ATTACK=" + a.name,
			"FISUB_FILE=" + kept, "FISUB_SOCKET=" + l.Addr().String(), fmt.Sprintf("FISUB_VICTIM=%d", sleeper.Process.Pid)}}
		want := a.want
		switch want {
		case "idle":
			want = "done"
		case "EPERM", "ENOSYS", "ENXIO":
			for n := range syscall.Errno(200) {
				if unix.ErrnoName(n) == want {
					want = n.Error()
				}
			}
		}
		before := look()
		out, err := s.Command(t.Context(), os.Args[0]).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s: got %v, %s, want %s", a.name, err, got, want)
		}
		if after := look(); after != before {
			t.Errorf("%s: changed\n%s\nto\n%s", a.name, before, after)
		}
	}
}

// A daemon stays in the session of its job, where it is found when its parents are gone.
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

// Memory in files without a name counts, mapped or not.
func TestMemory(t *testing.T) {
	fd, err := unix.MemfdCreate("hidden", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	before := sandbox.Memory(os.Getpid())
	if err := unix.Fallocate(fd, 0, 0, 64<<20); err != nil {
		t.Fatal(err)
	}
	if got := sandbox.Memory(os.Getpid()) - before; got < 60<<20 {
		t.Errorf("got %d bytes more, want 64 MiB", got)
	}
}
