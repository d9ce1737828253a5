//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The user account on every machine.
const (
	user   = "kay"
	userID = 2001
)

// A machine is a set of mount, UTS, process, IPC and network namespaces. /home and /tmp are on one disk, and /home
// survives restarts. All processes end with process 1.
type machine struct {
	Name string `json:"name"`
	Disk string `json:"disk"` // becomes /home
	Boot string `json:"boot"` // boot id

	boots int
	init  *exec.Cmd
}

// machineMode is the argument with which this program runs as process 1 of a machine.
const machineMode = "machine"

// start boots the machine. Its only network is the loopback device.
func (m *machine) start() error {
	m.boots++
	m.Boot = fmt.Sprintf("%08x-0000-4000-8000-%012x", os.Getpid(), m.boots)
	spec, err := json.Marshal(m)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", machineMode, string(spec))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS |
		syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.init = cmd
	if n, err := out.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("%s does not boot: %w", m.Name, err)
	}
	return m.run("ip", "link", "set", "lo", "up")
}

// stop is a power cut: all processes of the machine end at once.
func (m *machine) stop() {
	if m.init != nil {
		_ = m.init.Process.Kill()
		_ = m.init.Wait()
		m.init = nil
	}
}

func (m *machine) pid() string { return strconv.Itoa(m.init.Process.Pid) }

// command returns a command that runs on the machine, as root or as the user.
func (m *machine) command(ctx context.Context, asUser bool, args ...string) *exec.Cmd {
	enter := []string{"-t", m.pid(), "-m", "-u", "-i", "-n", "-p"}
	if asUser {
		enter = append(enter, "-S", strconv.Itoa(userID), "-G", strconv.Itoa(userID))
	}
	return exec.CommandContext(ctx, "nsenter", append(append(enter, "--"), args...)...)
}

func (m *machine) run(args ...string) error {
	return combined(m.command(context.Background(), false, args...))
}

func combined(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// ownEtc mounts a copy of /etc with the user account, in the folder dir, for all machines. A mount over a single file
// would vanish when another program replaces the file.
func ownEtc(dir string) error {
	if err := combined(exec.Command("cp", "-a", "/etc", dir)); err != nil {
		return err
	}
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("%s:*:%d:%d::/home/%s:/bin/bash\n", user, userID, userID, user),
		"group":  fmt.Sprintf("%s:x:%d:\n", user, userID),
	} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(line)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return err
		}
	}
	return unix.Mount(dir, "/etc", "", unix.MS_BIND, "")
}

// machineMain runs as process 1 of a machine.
func machineMain(spec string) error {
	var m machine
	if err := json.Unmarshal([]byte(spec), &m); err != nil {
		return err
	}
	mount := func(source, target, kind string, flags uintptr, options string) error {
		if err := unix.Mount(source, target, kind, flags, options); err != nil {
			return fmt.Errorf("mounting %s: %w", target, err)
		}
		return nil
	}
	const temporary = "/home/tmp"
	for _, err := range []error{
		mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Sethostname([]byte(m.Name)),
		mount(m.Disk, "/home", "", unix.MS_BIND, ""),
		os.RemoveAll(temporary),
		os.Mkdir(temporary, 0o755),
		os.Chmod(temporary, 0o777|os.ModeSticky),
		mount(temporary, "/tmp", "", unix.MS_BIND, ""),
		mount("none", "/run", "tmpfs", 0, "size=8m,mode=755"),
		mount("none", "/dev/shm", "tmpfs", 0, "size=512m,mode=1777"),
		mount("none", "/proc", "proc", 0, ""),
		os.Mkdir("/run/sshd", 0o755),
		os.WriteFile("/run/boot_id", []byte(m.Boot+"\n"), 0o644),
		mount("/run/boot_id", "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""),
	} {
		if err != nil {
			return err
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	if _, err := os.Stdout.WriteString("1"); err != nil {
		return err
	}
	for range ended { // orphans become children of this process
		for {
			if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
				break
			}
		}
	}
	return nil
}

// A process is a process of a machine; its pid is the one seen by this program.
type process struct {
	pid     int
	name    string
	command string
}

func (p process) String() string { return fmt.Sprintf("%d %s", p.pid, strings.TrimSpace(p.command)) }

// processes returns the machine's processes except process 1 and zombies.
func (m *machine) processes() (all []process) {
	if m.init == nil {
		return nil
	}
	space, err := os.Readlink("/proc/" + m.pid() + "/ns/pid")
	if err != nil {
		return nil
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if in, err := os.Readlink(filepath.Join(dir, "ns/pid")); err != nil || in != space || pid == m.init.Process.Pid {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if begin < 0 || end+2 >= len(stat) || stat[end+2] == 'Z' {
			continue
		}
		name := string(stat[begin+1 : end])
		text := strings.ReplaceAll(string(command), "\x00", " ")
		if text == "" {
			text = "[" + name + "]"
		}
		all = append(all, process{pid, name, text})
	}
	return all
}

// kill kills the processes selected by which and returns their number.
func (m *machine) kill(which func(process) bool) (n int) {
	for _, p := range m.processes() {
		if which(p) && syscall.Kill(p.pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}

func isSSHD(p process) bool     { return strings.HasPrefix(p.name, "sshd") }
func isListener(p process) bool { return isSSHD(p) && strings.Contains(p.command, "[listener]") }
func isSession(p process) bool  { return isSSHD(p) && !isListener(p) }

var agentRuns = regexp.MustCompile(` agent run /\S*/jobs/`)

func isAgent(p process) bool { return agentRuns.MatchString(p.command) }

// await waits for cond. It returns false if cond does not hold within the bound.
func await(ctx context.Context, bound time.Duration, cond func() bool) bool {
	for deadline := time.Now().Add(bound); !cond(); {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return cond()
		}
	}
	return true
}
