package sandbox

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// System calls with a special treatment.
var (
	refused = []string{
		"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "pidfd_getfd", "kcmp",
		"mount", "umount2", "pivot_root", "chroot", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree",
		"open_tree_attr", "mount_setattr", "unshare", "setns", "bpf", "perf_event_open", "userfaultfd", "fanotify_init",
		"add_key", "request_key", "keyctl", "open_by_handle_at", "kexec_load", "kexec_file_load", "init_module",
		"finit_module", "delete_module", "swapon", "swapoff", "reboot", "acct", "quotactl", "quotactl_fd", "syslog",
		"settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "iopl", "ioperm",
		"lookup_dcookie", "vhangup", "shmget", "shmat", "msgget", "semget", "mq_open",
		"memfd_secret", "vmsplice",
	}
	// tracing lists the calls in refused that debuggers and profilers need.
	tracing = []string{"ptrace", "process_vm_readv", "process_vm_writev", "perf_event_open"}
	// watching calls fail with the error for a user who has all 128 instances of inotify already.
	watching = []string{"inotify_init", "inotify_init1"}
	// absent calls fail with ENOSYS, as on an older kernel: programs have a fallback. Their arguments are in memory, out
	// of a filter's reach. What io_setup takes counts against a limit of the whole machine (fs.aio-max-nr).
	absent = []string{"clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup"}
	// idle calls succeed without an effect: compilers and archivers need them, but Landlock does not limit them to
	// writable files. Without setsid, processes stay in the session of their job, where End finds them.
	idle = []string{
		"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
		"utimensat", "futimesat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr",
		"fremovexattr", "removexattrat", "setsid",
	}
)

type conditions = seccomp.ArgumentConditions

// is matches if the low 32 bits of an argument are value. The kernel ignores the high bits.
func is(argument uint32, value uint32) (all conditions) {
	for bit := range 32 {
		if value&(1<<bit) != 0 {
			all = append(all, seccomp.Condition{Argument: argument, Operation: seccomp.BitsSet, Value: 1 << bit})
		}
	}
	return append(all, seccomp.Condition{Argument: argument, Operation: seccomp.BitsNotSet, Value: uint64(^value)})
}

func isNot(argument uint32, values ...uint64) (all conditions) {
	for _, v := range values {
		all = append(all, seccomp.Condition{Argument: argument, Operation: seccomp.NotEqual, Value: v})
	}
	return all
}

func has(argument uint32, bits uint64) conditions {
	return conditions{{Argument: argument, Operation: seccomp.BitsSet, Value: bits}}
}

// filters returns the seccomp filters of a sandbox: one for calls with the same treatment for all arguments, and one
// for each other call, because package seccomp cannot continue after a condition. Calls of other architectures, and
// calls that the package does not know, are absent. sockets allows connections to Unix sockets, for CUDA's
// multi-process service and NVIDIA's tools. tools allows processes to trace each other and to watch files.
func filters(sockets, tools bool) (programs [][]bpf.RawInstruction, err error) {
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	const setID, temporary = unix.S_ISUID | unix.S_ISGID, unix.O_TMPFILE &^ unix.O_DIRECTORY
	const refuse, succeed = seccomp.ActionErrno | seccomp.Action(unix.EPERM), seccomp.ActionTrace
	cpu, err := arch.GetInfo(runtime.GOARCH)
	if err != nil || len(cpu.SyscallNames) == 0 {
		return nil, errors.Join(err, errors.ErrUnsupported)
	}
	known := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { _, ok := cpu.SyscallNames[name]; return !ok })
	}
	allowed := slices.DeleteFunc(slices.Sorted(maps.Keys(cpu.SyscallNames)), func(name string) bool {
		return slices.Contains(absent, name)
	})
	assemble := func(p seccomp.Policy) {
		program, perr := p.Assemble()
		for i, in := range program { // package seccomp has neither this default action nor error number 0
			switch in {
			case bpf.RetConstant{Val: uint32(seccomp.ActionTrap)}:
				program[i] = bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.ENOSYS)}
			case bpf.RetConstant{Val: uint32(seccomp.ActionTrace)}:
				program[i] = bpf.RetConstant{Val: uint32(seccomp.ActionErrno)}
			}
		}
		raw, rerr := bpf.Assemble(program)
		programs, err = append(programs, raw), errors.Join(err, perr, rerr)
	}
	never, watches := known(refused), known(watching)
	if tools {
		watches = nil
		never = slices.DeleteFunc(never, func(name string) bool { return slices.Contains(tracing, name) })
	}
	groups := []seccomp.SyscallGroup{{Names: never, Action: refuse}, {Names: known(idle), Action: succeed},
		{Names: allowed, Action: seccomp.ActionAllow}}
	if len(watches) > 0 {
		full := seccomp.ActionErrno | seccomp.Action(unix.EMFILE)
		groups = slices.Insert(groups, 0, seccomp.SyscallGroup{Names: watches, Action: full})
	}
	assemble(seccomp.Policy{DefaultAction: seccomp.ActionTrap, Syscalls: groups})
	when := func(action seccomp.Action, name string, any ...conditions) {
		if len(known([]string{name})) == 0 {
			return
		}
		group := seccomp.SyscallGroup{Action: action}
		for _, c := range any {
			group.NamesWithCondtions = append(group.NamesWithCondtions, seccomp.NameWithConditions{Name: name, Conditions: c})
		}
		assemble(seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{group}})
	}
	for _, name := range []string{"prlimit64", "migrate_pages", "move_pages"} { // on other processes
		when(refuse, name, isNot(0, 0))
	}
	when(refuse, "clone", has(0, namespaces))
	// A lease delays other processes that open the file. The pages of pipes are limited by user.
	when(refuse, "fcntl", is(1, unix.F_SETLEASE), is(1, unix.F_NOTIFY), is(1, unix.F_SETPIPE_SZ))
	var buffers []conditions // a socket keeps its default size, see socketBytes
	for _, option := range []uint32{unix.SO_SNDBUF, unix.SO_RCVBUF, unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		buffers = append(buffers, append(is(1, unix.SOL_SOCKET), is(2, option)...))
	}
	when(succeed, "setsockopt", buffers...)
	// Terminals: typing, selecting and redirecting text. Files: attributes, also on XFS, which a reader could change.
	when(refuse, "ioctl", is(1, unix.TIOCSTI), is(1, unix.TIOCLINUX), is(1, unix.TIOCCONS), is(1, unix.TIOCSCTTY),
		is(1, unix.FS_IOC_SETFLAGS), is(1, 0x40046602), is(1, 0x401c5820))
	for name, mode := range map[string]uint32{"open": 2, "openat": 3} {
		when(refuse, name, slices.Concat(has(mode-1, unix.O_CREAT|temporary), has(mode, setID)))
	}
	for name, mode := range map[string]uint32{"creat": 1, "mknod": 1, "mknodat": 2} {
		when(refuse, name, has(mode, setID))
	}
	if !sockets {
		// CUDA listens on a SOCK_SEQPACKET socket. Programs that would start others use the other types.
		types := conditions{{Argument: 1, Operation: seccomp.BitsNotSet, Value: unix.SOCK_SEQPACKET &^ unix.SOCK_STREAM}}
		when(refuse, "socket", isNot(0, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK),
			append(is(0, unix.AF_UNIX), types...), append(is(0, unix.AF_UNIX), has(1, unix.SOCK_DGRAM)...))
		when(refuse, "socketpair", has(1, unix.SOCK_DGRAM)) // datagrams can be sent to any socket
	}
	when(succeed, "prctl", is(0, unix.PR_SET_DUMPABLE)) // the memory limit reads /proc of the process
	// Programs that bind their own threads to processors must not fail.
	for _, name := range []string{"sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"} {
		when(succeed, name, isNot(0, 0))
	}
	for _, name := range []string{"setpriority", "ioprio_set"} {
		process := map[string]uint64{"setpriority": unix.PRIO_PROCESS, "ioprio_set": 1}[name]
		when(succeed, name, isNot(0, process), isNot(1, 0))
	}
	return programs, err
}

// load installs a filter for this thread.
func load(program []bpf.RawInstruction) error {
	raw := make([]unix.SockFilter, len(program))
	for i, in := range program {
		raw[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	all := unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	// SPEC_ALLOW prevents kernels before 5.16 from slowing down a process that has a filter.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
		uintptr(unsafe.Pointer(&all)))
	if errno != 0 {
		return errno
	}
	return nil
}
