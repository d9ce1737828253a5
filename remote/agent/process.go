package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/remote"
)

// An Identity is the content of agent.json. It identifies the agent even if its pid is reused.
type Identity struct {
	PID     int    `json:"pid"`
	Start   string `json:"start"` // start time of the process, in clock ticks since boot
	Boot    string `json:"boot"`  // boot id of the machine
	Host    string `json:"host"`
	Version string `json:"version"`
}

func self(version string) Identity {
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return Identity{PID: os.Getpid(), Start: startOf(os.Getpid()), Boot: strings.TrimSpace(string(boot)), Host: host,
		Version: version}
}

// stat returns the fields of /proc/PID/stat from the state on; nil if the process does not exist.
func stat(pid int) []string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// comm, in parentheses, may contain spaces and parentheses.
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

func startOf(pid int) string {
	if fields := stat(pid); len(fields) > 19 && fields[0] != "Z" {
		return fields[19]
	}
	return ""
}

type life int

const (
	unborn  life = iota // no agent has started
	alive               // runs on this machine
	dead                // was on this machine
	distant             // on another machine; its state is unknown
)

// lifeOf returns the state of the agent of the job in dir, as far as this machine knows.
func lifeOf(dir string) (life, Identity, error) {
	var s Identity
	if err := readJSON(filepath.Join(dir, StateName), &s); errors.Is(err, fs.ErrNotExist) {
		return unborn, s, nil
	} else if err != nil {
		return unborn, s, err
	}
	here := self("")
	switch {
	case s.Host != here.Host:
		return distant, s, nil
	case s.Boot != here.Boot, s.PID <= 0, startOf(s.PID) == "" || startOf(s.PID) != s.Start:
		return dead, s, nil
	}
	return alive, s, nil
}

// endOf reads how the job in dir ended. While its agent is alive, ended is false, since only the submission can have
// written exit.json.
func endOf(dir string) (exit remote.Exit, ended bool, l life, s Identity, err error) {
	if l, s, err = lifeOf(dir); err != nil || l == alive {
		return remote.Exit{}, false, l, s, err
	}
	exit, err = ReadExit(dir) // after lifeOf: a dead agent no longer replaces the file
	if errors.Is(err, fs.ErrNotExist) {
		return remote.Exit{}, false, l, s, nil
	}
	return exit, err == nil, l, s, err
}

// poll is the interval at which a job's files are checked.
const poll = 20 * time.Millisecond

// Tail copies the event stream of the job in dir to w from byte offset from, and returns when the job has ended and the
// whole stream is copied. If the agent has died, Tail records and returns Lost. If w is a file whose other end is
// closed, Tail returns an error.
func Tail(ctx context.Context, dir string, from int64, w io.Writer) (remote.Exit, error) {
	if _, err := os.Stat(filepath.Join(dir, JobName)); err != nil {
		return remote.Exit{}, err
	}
	var events *os.File
	defer func() {
		if events != nil {
			events.Close()
		}
	}()
	for {
		exit, ended, l, s, err := endOf(dir)
		if err != nil {
			return exit, err
		}
		if !ended {
			if _, err := os.Lstat(filepath.Join(dir, JobName)); l == unborn && errors.Is(err, fs.ErrNotExist) {
				return remote.Exit{End: remote.Cancelled, Text: "released"}, nil
			}
			if l == dead {
				Sweep(dir)
				exit = remote.Exit{End: remote.Lost, Text: fmt.Sprintf("the agent, process %d on %s, is gone", s.PID, s.Host),
					Hint: "the host was rebooted, ran out of memory, or ends a user's processes at logout (loginctl " +
						"enable-linger prevents that)"}
				if err := writeJSON(filepath.Join(dir, ExitName), exit, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return exit, err
				}
				continue // read it: the agent or a concurrent Free may have been faster
			}
		}
		if events == nil {
			if events, err = openEvents(dir, from, ended); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return exit, err
			}
		}
		if events != nil {
			if _, err := io.Copy(w, events); err != nil {
				return exit, err
			}
		}
		if ended {
			return exit, nil
		}
		if hungUp(w) {
			return exit, fmt.Errorf("agent: writing the stream: %w", syscall.EPIPE)
		}
		if err := remote.Sleep(ctx, poll); err != nil {
			return exit, err
		}
	}
}

// openEvents opens the event stream at byte from, which must not be beyond the end of a finished one.
func openEvents(dir string, from int64, ended bool) (*os.File, error) {
	f, err := plain.Open(filepath.Join(dir, EventsName))
	if err != nil {
		return nil, err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil && ended && end < from {
		err = fmt.Errorf("agent: offset %d is after the end of the stream, %d", from, end)
	}
	if err == nil {
		_, err = f.Seek(from, io.SeekStart)
	}
	return f, err
}

// hungUp reports whether w is a pipe or socket whose other end is closed.
func hungUp(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// stopTime is how long an agent may take to stop.
const stopTime = 20 * time.Second

// Stop ends the job in dir and waits for that. It leaves a job that has ended unchanged, and prevents the start of a
// new one.
func Stop(ctx context.Context, dir string) (remote.Exit, error) {
	cancelled := remote.Exit{End: remote.Cancelled, Text: "stopped"}
	if _, err := os.Stat(dir); err != nil {
		return cancelled, err
	}
	if exit, ended, _, _, err := endOf(dir); ended || err != nil {
		return exit, err
	}
	if err := os.WriteFile(filepath.Join(dir, StopName), nil, 0o600); err != nil {
		return cancelled, err
	}
	for deadline := time.Now().Add(stopTime); ; {
		exit, ended, l, s, err := endOf(dir)
		if ended || err != nil {
			return exit, err
		}
		late := time.Now().After(deadline)
		switch {
		case l == alive && late:
			_ = syscall.Kill(s.PID, syscall.SIGKILL) // this also kills the program
			deadline = time.Now().Add(stopTime)
		case l == distant && late:
			return cancelled, fmt.Errorf("agent: process %d on %s has not stopped within %v", s.PID, s.Host, stopTime)
		case l == dead, l == unborn:
			Sweep(dir)
			if err := writeJSON(filepath.Join(dir, ExitName), cancelled, true); err != nil {
				return cancelled, err
			}
			continue
		}
		if err := remote.Sleep(ctx, poll); err != nil {
			return cancelled, err
		}
	}
}

// jobMark is an environment variable of all processes of a job. Its value, the job's folder, identifies them even after
// they have left their group, session and parent.
const jobMark = "FISUB_JOB"

// swept calls Sweep and returns an error if processes are left.
func swept(dir string) error {
	if left := Sweep(dir); left > 0 {
		return fmt.Errorf("agent: %d processes of the job in %s cannot be killed", left, dir)
	}
	return nil
}

// Free stops the job in dir and removes its folder, which disappears at once. A missing folder is not an error.
func Free(ctx context.Context, dir string) error {
	gone := filepath.Join(filepath.Dir(dir), FreePrefix+filepath.Base(dir))
	if _, err := Stop(ctx, dir); errors.Is(err, fs.ErrNotExist) {
		return cache.RemoveAll(gone) // leftovers of a killed Free
	} else if err != nil {
		return err
	}
	if err := swept(dir); err != nil {
		return err
	}
	if err := os.Rename(dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return cache.RemoveAll(gone)
}
