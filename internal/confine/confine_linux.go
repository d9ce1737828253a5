package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	writeFile = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	write     = writeFile | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR |
		unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER
)

// devices are what a kernel's process writes to; the GPUs' are there once their driver is loaded. CUDA gives its
// threads names, in /proc.
var devices = []string{"/proc/self", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty",
	"/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*"}

// version is that of the kernel's Landlock; 0 where it has none, or where it may not be used.
func version() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// State says how processes are confined here; ok tells whether files are out of their reach.
func State() (text string, ok bool) {
	switch v := version(); {
	case v == 0:
		return "none: the kernel has no Landlock", false
	case v < 6:
		return fmt.Sprintf("landlock %d: files and memory, not signals", v), true
	default:
		return fmt.Sprintf("landlock %d", v), true
	}
}

// Exec becomes the program argv, which, with all that it starts, writes and makes files only below the folders of
// writable, in its files, and in devices; which reads and writes the memory of no process but its own; and which sends
// signals to no other ones, from Landlock's version 6 on. Reading files and the network are free. Folders that are
// missing are made. Where the kernel has no Landlock the program is only kept from the rights that root has over other
// processes and the machine: it can then not open the memory of one that hides it either.
func Exec(writable, argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the thread that is restricted is the one that becomes the program
	makeUVM()
	err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if v := version(); v > 0 && err == nil {
		err = restrict(v, writable)
	}
	if err = errors.Join(err, unprivileged()); err != nil {
		return fmt.Errorf("confining the worker: %w", err)
	}
	return fmt.Errorf("%s: %w", path, unix.Exec(path, argv, os.Environ()))
}

// unprivileged gives up what root may do but for files and memory of its own: tracing, modules, devices. Programs that
// are started do not get it back, since they get no new privileges.
func unprivileged() error {
	const keep = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
		1<<unix.CAP_IPC_LOCK | 1<<unix.CAP_SYS_NICE | 1<<unix.CAP_SYS_RESOURCE
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&hdr, &sets[0]); err != nil {
		return err
	}
	for i := range sets {
		mask := uint32(uint64(keep) >> (32 * i))
		sets[i] = unix.CapUserData{Effective: sets[i].Effective & mask, Permitted: sets[i].Permitted & mask}
	}
	return unix.Capset(&hdr, &sets[0])
}

// makeUVM has the driver's own program make the device that CUDA needs, where that is missing: it is a setuid program,
// which a process that is confined cannot use.
func makeUVM() {
	_, driver := os.Stat("/dev/nvidiactl")
	if _, err := os.Stat("/dev/nvidia-uvm"); driver == nil && errors.Is(err, os.ErrNotExist) {
		_ = exec.Command("nvidia-modprobe", "-u", "-c=0").Run()
	}
}

func restrict(version int, writable []string) error {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: write}
	if version < 2 {
		attr.Handled_access_fs &^= unix.LANDLOCK_ACCESS_FS_REFER // it is refused, as it should be
	}
	if version < 3 {
		attr.Handled_access_fs &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	size := unsafe.Sizeof(attr.Handled_access_fs)
	if version >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL
		size = unsafe.Sizeof(attr)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(fd))
	for _, pattern := range devices {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if err := allow(int(fd), path, attr.Handled_access_fs); err != nil {
				return err
			}
		}
	}
	for _, path := range writable {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
		}
		if err := allow(int(fd), path, attr.Handled_access_fs); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// allow adds the folder or file path to the rules, with those of the rights that it can have.
func allow(rules int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= writeFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("%s: %w", path, errno)
	}
	return nil
}

// Hide closes the memory and the descriptors of this process to all others of the user, which may not trace it either;
// a process with root's rights, which one that is confined has not, may. It leaves no core file.
func Hide() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
