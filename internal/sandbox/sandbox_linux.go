package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// File rights that a sandbox removes unless a rule grants them.
const (
	change = ll.AccessFSWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar |
		ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock |
		ll.AccessFSMakeSym | ll.AccessFSRefer | ll.AccessFSTruncate | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix
	read = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir
)

var (
	// devices are files that programs write to. The GPUs' devices exist once their driver is loaded.
	devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
	gpus    = []string{"/dev/nvidia*", "/dev/nvidia-caps*/*", "/dev/dri/*", "/dev/dxg"}
	// system lists the paths, except the user's files, that a program reads to start.
	system = []string{"/usr", "/bin", "/sbin", "/lib*", "/opt/rh", "/nix/store", "/gnu/store", "/etc/ld.so.*",
		"/etc/alternatives", "/etc/localtime", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
		"/sys/devices/system/cpu"}
)

// self returns a path of this program that works even if its file was removed.
func self() string { return "/proc/self/exe" }

// same reports whether two descriptors share an open file, and false if the kernel has no kcmp or forbids it.
func same(pid, fd, otherPID, otherFD int) bool {
	const file = 0 // KCMP_FILE
	order, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(otherPID), file, uintptr(fd), uintptr(otherFD), 0)
	return err == 0 && order == 0
}

// Own makes cmd start in its own session, without the terminal, and die with this process in any case.
func Own(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if os.Getenv(inside) != "" { // the seccomp filter disables setsid
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	}
}

// State returns the Enforcement on this machine.
func State() Enforcement {
	v, err := ll.LandlockGetABIVersion()
	r := Enforcement{Text: fmt.Sprintf("landlock %d", v)}
	if v <= 0 || err != nil {
		v, r.Text, r.Gaps = 0, "no landlock", append(r.Gaps, "files (Linux 5.13 with Landlock)")
	}
	for _, gap := range []struct {
		before int
		text   string
	}{{3, "truncation (Linux 6.2)"}, {5, "device ioctls (Linux 6.10)"}, {6, "signals, abstract sockets (Linux 6.12)"}} {
		if v < gap.before {
			r.Gaps = append(r.Gaps, gap.text)
		}
	}
	if _, err := filters(false, false); err != nil || !seccomp.Supported() {
		r.Gaps = append(r.Gaps, "seccomp: limits, priorities, modes and owners, sockets (CONFIG_SECCOMP_FILTER)")
	} else {
		r.Text += ", seccomp"
	}
	return r
}

// enter restricts this process and replaces it with the program argv.
func enter(s spec, argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the restricted thread must be the one that executes the program
	makeUVM()
	if err := errors.Join(unprivileged(s.Tools), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); err != nil {
		return err
	}
	if err := restrict(s); err != nil {
		return err
	}
	if err := limit(s.Tools); err != nil {
		return err
	}
	if seccomp.Supported() {
		programs, err := filters(s.MPS != "" || s.Tools, s.Tools)
		for _, p := range programs {
			err = errors.Join(err, load(p))
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %w", path, unix.Exec(path, argv, os.Environ()))
}

// limits are the largest hard limits in a sandbox. For descriptors in sockets' queues and for queued signals the kernel
// compares the sum over all processes of a user with the limit of the process that adds one. So a submission stops at a
// low sum. The judge and the user's programs have higher limits and continue. The number of processes (RLIMIT_NPROC) is
// counted in the same way, but with a low limit an honest submission would fail because of the user's other processes.
var limits = map[int]uint64{syscall.RLIMIT_NOFILE: 512, unix.RLIMIT_SIGPENDING: 1024}

// limit lowers the limits of this process. It uses package syscall, which otherwise restores the limit of files.
// restrict comes before it, or below tools after it: it sends signals to its own threads, and waits for ever if another
// process of the user has as many pending as this one may have.
func limit(tools bool) (err error) {
	for resource, most := range limits {
		if tools && resource == unix.RLIMIT_SIGPENDING {
			continue
		}
		var l syscall.Rlimit
		rerr := syscall.Getrlimit(resource, &l)
		if rerr == nil && l.Max > most {
			rerr = syscall.Setrlimit(resource, &syscall.Rlimit{Cur: min(l.Cur, most), Max: most})
		}
		err = errors.Join(err, rerr)
	}
	return err
}

// unprivileged drops root's capabilities, except those over its own files and memory and, for tools, the one that a
// GPU's driver requires for performance counters. With PR_SET_NO_NEW_PRIVS child processes cannot regain them.
func unprivileged(tools bool) error {
	keep := uint64(1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
		1<<unix.CAP_IPC_LOCK)
	if tools {
		keep |= 1 << unix.CAP_SYS_ADMIN
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&hdr, &sets[0]); err != nil {
		return err
	}
	for i := range sets {
		mask := uint32(keep >> (32 * i))
		sets[i] = unix.CapUserData{Effective: sets[i].Effective & mask, Permitted: sets[i].Permitted & mask}
	}
	return unix.Capset(&hdr, &sets[0])
}

// makeUVM creates the device that CUDA needs, if it is missing, with the driver's setuid program, which a process in a
// sandbox cannot use.
func makeUVM() {
	_, driver := os.Stat("/dev/nvidiactl")
	if _, err := os.Stat("/dev/nvidia-uvm"); driver == nil && errors.Is(err, os.ErrNotExist) {
		_ = exec.Command("nvidia-modprobe", "-u", "-c=0").Run()
	}
}

// restrict enforces s as far as this kernel's Landlock can.
func restrict(s spec) error {
	version, err := ll.LandlockGetABIVersion()
	if err != nil || version <= 0 {
		return nil
	}
	rights := landlock.AccessFSSet(change)
	if s.Limit {
		rights |= read
	}
	var rules []landlock.Rule
	allow := func(path string, dirs, files func(...string) landlock.FSRule) {
		rule := files(path)
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			rule = dirs(path)
		}
		rules = append(rules, rule.IgnoreIfMissing())
	}
	writable := func(paths ...string) landlock.FSRule {
		rule := landlock.RWDirs(paths...)
		if version >= 2 {
			rule = rule.WithRefer()
		}
		return rule
	}
	device := func(paths ...string) landlock.FSRule { return landlock.RWFiles(paths...).WithIoctlDev() }
	rules = append(rules, writable("/proc/self")) // CUDA names its threads there
	if s.Proc {
		rules = append(rules, landlock.RWFiles("/proc"))
	}
	for _, path := range glob(devices) {
		if s.Limit && path == "/dev/zero" {
			continue // as a source file it would fill the memory
		}
		allow(path, landlock.RWDirs, landlock.RWFiles)
	}
	if !s.Limit {
		for _, path := range glob(gpus) {
			allow(path, func(paths ...string) landlock.FSRule { return landlock.RWDirs(paths...).WithIoctlDev() }, device)
		}
	}
	if s.MPS != "" {
		mps := func(paths ...string) landlock.FSRule { return landlock.RWDirs(paths...).WithResolveUnix() }
		allow(s.MPS, mps, landlock.RWFiles)
	}
	for _, path := range s.Write {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
		}
		allow(path, writable, landlock.RWFiles)
	}
	if s.Limit {
		for _, path := range append(glob(system), s.Read...) {
			allow(path, landlock.RODirs, landlock.ROFiles)
		}
	}
	scopes := landlock.ScopedSet(ll.ScopeAbstractUnixSocket | ll.ScopeSignal)
	config, err := landlock.NewConfig(rights, scopes)
	if err != nil {
		return err
	}
	if config.HandledAccessNet = 0; version < 2 {
		config.HandledAccessFS &^= ll.AccessFSRefer // older kernels always refuse it
	}
	return config.BestEffort().Restrict(rules...)
}

func glob(patterns []string) (paths []string) {
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern)
		paths = append(paths, found...)
	}
	return paths
}

// Programs returns the folders that a program at path reads: its own and, next to a bin folder, the installation's.
func Programs(path string) (folders []string) {
	for _, path := range []string{path, target(path)} {
		bin := filepath.Dir(path)
		folders = append(folders, bin)
		for _, part := range []string{"lib*", "include", "share", "targets", "nvvm", "nvvm-*", "*-linux-gnu*"} {
			if filepath.Base(bin) == "bin" {
				folders = append(folders, glob([]string{filepath.Join(filepath.Dir(bin), part)})...)
			}
		}
	}
	return folders
}

func target(path string) string {
	if t, err := filepath.EvalSymlinks(path); err == nil {
		return t
	}
	return path
}

// Hide prevents the user's other processes from tracing this process and from reading its memory and descriptors, and
// disables core files. A process with root rights is not stopped unless it is in a sandbox.
func Hide() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
