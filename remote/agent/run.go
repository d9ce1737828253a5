package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/remote"
)

const (
	maxLog   = 8 << 20         // bytes of a job's log
	grace    = 5 * time.Second // between SIGTERM and SIGKILL
	minRoom  = 16 << 20        // bytes that must be free to start a job
	maxCache = 20 << 30        // size of a work folder's cache in bytes
	reserve  = ".reserve"      // its 8 KiB are freed for exit.json if the disk is full

	maxCacheAge = 30 * 24 * time.Hour // how long an unused file stays in the cache
)

// Start runs the job in dir in a detached process and returns when that has started. It does nothing if the job has
// ended.
func (a *Agent) Start(ctx context.Context, dir string) error {
	if _, err := ReadExit(dir); err == nil {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(dir, LogName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, err := start(func() *exec.Cmd {
		cmd := exec.Command(a.Self[0], append(slices.Clone(a.Self[1:]), "run", dir, alone)...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	there := func() bool {
		l, _, err := lifeOf(dir)
		_, exited := ReadExit(dir)
		return err == nil && l != unborn || exited == nil
	}
	for {
		select {
		case err := <-ended:
			if there() {
				return nil
			}
			text, _ := os.ReadFile(log.Name())
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			return fmt.Errorf("agent: ended at once: %w: %s", err, lines[len(lines)-1])
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
			if there() {
				return nil
			}
		}
	}
}

const makeRoom = "free space on the host (df -h and df -i show bytes and inodes), or set workdir to a larger disk"

// A Refusal is the reason why the agent does not start a program.
type Refusal struct {
	Text, Hint string
	Busy       bool // may be temporary
}

func (r *Refusal) Error() string { return r.Text }

func refuse(hint, format string, args ...any) *Refusal {
	return &Refusal{Text: fmt.Sprintf(format, args...), Hint: hint}
}

// Run executes the job in dir. If ctx or Stop ends it early, it is Cancelled. The error is nil if exit.json was
// written. If the job has ended, Run returns its exit; if another agent has started it, an error.
func (a *Agent) Run(ctx context.Context, dir string) (remote.Exit, error) {
	if exit, err := ReadExit(dir); err == nil {
		return exit, nil
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return remote.Exit{}, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return remote.Exit{}, fmt.Errorf("agent: another agent runs the job in %s", dir)
	}
	if l, s, err := lifeOf(dir); err != nil {
		return remote.Exit{}, err
	} else if l != unborn {
		return remote.Exit{}, fmt.Errorf("agent: process %d on %s has started the job in %s", s.PID, s.Host, dir)
	}
	if err := os.WriteFile(filepath.Join(dir, reserve), make([]byte, 8<<10), 0o600); err != nil {
		return remote.Exit{}, err
	}
	if err := writeJSON(filepath.Join(dir, StateName), self(a.Version), false); err != nil {
		return remote.Exit{}, err
	}
	seal := &remote.Seal{}
	exit := seal.Sign(a.run(ctx, dir, seal))
	_ = os.Remove(filepath.Join(dir, reserve))
	name := filepath.Join(dir, ExitName)
	_ = cache.RemoveAll(name) // the program may have created anything here
	return exit, writeJSON(name, exit, false)
}

// run sets the seal's key and job before the program starts.
func (a *Agent) run(ctx context.Context, dir string, seal *remote.Seal) remote.Exit {
	sandbox.Hide()
	file, err := os.OpenFile(filepath.Join(dir, LogName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return remote.Exit{End: remote.Refused, Text: err.Error()}
	}
	defer file.Close()
	log := &logFile{file: file, room: maxLog}
	ctx, stop := stoppable(ctx, dir)
	defer stop()
	host, _ := os.Hostname()
	log.say("fisub %s on %s", a.Version, host)
	exit, err := a.attempt(ctx, dir, log, seal)
	var r *Refusal
	switch {
	case ctx.Err() != nil && exit.End == "":
		exit = a.stopped(ctx)
		exit.Text += " before the start"
	case errors.As(err, &r):
		exit = remote.Exit{End: remote.Refused, Text: r.Text, Hint: r.Hint}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		exit = remote.Exit{End: remote.Refused, Text: err.Error(), Hint: makeRoom}
	case err != nil:
		exit = remote.Exit{End: remote.Refused, Text: err.Error()}
	}
	log.say("%s", Describe(exit))
	return exit
}

var errStopped = errors.New("stopped")

// stopped returns the exit of a job whose context, from stoppable, has ended.
func (a *Agent) stopped(ctx context.Context) remote.Exit {
	if a.detached && context.Cause(ctx) != errStopped {
		return remote.Exit{End: remote.Lost, Text: "a signal ended the agent",
			Hint: "the host was shut down, or ends a user's processes at logout (loginctl enable-linger prevents that)"}
	}
	return remote.Exit{End: remote.Cancelled, Text: "stopped"}
}

// Describe returns a line about the end of a job.
func Describe(e remote.Exit) string {
	text := string(e.End)
	if e.End == remote.Exited {
		text = fmt.Sprintf("exited with %d", e.Code)
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// stoppable returns a context that is cancelled by Stop or Free.
func stoppable(ctx context.Context, dir string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for remote.Sleep(ctx, 100*time.Millisecond) == nil {
			_, stop := os.Lstat(filepath.Join(dir, StopName))
			_, there := os.Lstat(filepath.Join(dir, JobName))
			if stop == nil || errors.Is(there, fs.ErrNotExist) { // Stop, or a Free that did not see the job start
				cancel(errStopped)
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

func (a *Agent) attempt(ctx context.Context, dir string, log *logFile, seal *remote.Seal) (remote.Exit, error) {
	job, err := ReadJob(dir)
	if err != nil {
		return remote.Exit{}, err
	}
	if seal.Key, seal.Job = job.Key, job.ID; job.Key != "" {
		job.Key = ""
		if err := writeJSON(filepath.Join(dir, JobName), job, false); err != nil {
			return remote.Exit{}, err
		}
	}
	work := filepath.Dir(filepath.Dir(dir))
	if room, err := free(dir); err == nil && room < minRoom {
		return remote.Exit{}, refuse(makeRoom, "disk: %d MiB free in %s, less than %d MiB", room>>20, dir, minRoom>>20)
	}
	begun := time.Now()
	size, err := unbundle(ctx, work, filepath.Join(dir, BundleName), job)
	if err != nil {
		return remote.Exit{}, err
	}
	log.say("%d files of %.1f MB verified in %.2f s", len(job.Files), float64(size)/1e6, time.Since(begun).Seconds())
	kept := filepath.Join(work, "cache")
	telling := cache.Telling(ctx, func(path string) { log.say("waiting for %s, locked by another process", path) })
	release, err := cache.Hold(telling, kept)
	if held := (*cache.HeldError)(nil); errors.As(err, &held) {
		log.say("%v; continuing without it", held)
	}
	if ctx.Err() != nil {
		return remote.Exit{}, ctx.Err()
	}
	if err == nil { // some file systems have no locks
		defer func() {
			release()
			if err := cache.Prune(kept, maxCacheAge, maxCache); err != nil {
				log.say("%v", err)
			}
		}()
	}
	environ := append(os.Environ(), "FISUB_CACHE="+kept) // the last value of a name wins
	for name, value := range job.Env {
		environ = append(environ, name+"="+value)
	}
	environ = append(environ, jobMark+"="+dir)
	if job.GPU != "" {
		uuid, unlock, err := a.takeGPU(ctx, job)
		if err != nil {
			return remote.Exit{}, err
		}
		defer unlock()
		environ = append(environ, "CUDA_VISIBLE_DEVICES="+uuid)
	}
	return a.program(ctx, dir, job, environ, log, seal)
}

// unbundle verifies the job's files in the store and links them into the new folder to. It deletes corrupt files from
// the store, so that they are sent again.
func unbundle(ctx context.Context, work, to string, job *remote.Job) (size int64, err error) {
	// Mkdir, not MkdirAll: Free may have removed the job's folder.
	if err := os.Mkdir(to, 0o700); err != nil {
		return 0, err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	checked := map[string]bool{}
	for _, f := range job.Files {
		if err := ctx.Err(); err != nil {
			return size, err
		}
		stored := Stored(work, f.SHA256)
		if !checked[f.SHA256] {
			got, err := remote.FileAt(stored)
			if errors.Is(err, fs.ErrNotExist) {
				return size, refuse("submit it again", "file %s is missing on the host", f.Name)
			}
			if err != nil {
				return size, err
			}
			if got.SHA256 != f.SHA256 || got.Size != f.Size {
				_ = os.Remove(stored)
				return size, refuse("submit the job again, which sends the file again",
					"file %s: %v: got %s of %d bytes, want %s of %d",
					f.Name, ErrHash, got.SHA256, got.Size, f.SHA256, f.Size)
			}
			checked[f.SHA256] = true
			size += f.Size
		}
		dst := filepath.Join(to, filepath.FromSlash(f.Name))
		if err := root.MkdirAll(filepath.FromSlash(path.Dir(f.Name)), 0o700); err != nil {
			return size, err
		}
		if err := link(stored, dst, f.Mode()); err != nil {
			return size, err
		}
	}
	return size, nil
}

// link makes dst a hard link of src, or a copy if that fails or the executable bit must differ.
func link(src, dst string, mode fs.FileMode) error {
	st, err := os.Stat(src)
	if err != nil {
		return err
	}
	if (st.Mode()^mode)&0o100 == 0 && os.Link(src, dst) == nil {
		return nil
	}
	r, err := os.Open(src)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// program runs the job's program until it exits, exceeds the limit, or ctx ends.
func (a *Agent) program(
	ctx context.Context, dir string, job *remote.Job, environ []string, log *logFile, seal *remote.Seal,
) (remote.Exit, error) {
	events, err := openStream(dir, seal)
	if err != nil {
		return remote.Exit{}, err
	}
	defer events.close()
	bundle := filepath.Join(dir, BundleName)
	command := func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(bundle, filepath.FromSlash(job.Args[0])), job.Args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = bundle, events.in, log, environ
		cmd.WaitDelay = 300 * time.Millisecond // processes outside the group may keep the log open
		group(cmd)
		return cmd
	}

	// The program dies with the thread that starts it (Pdeathsig), so keep that thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	adopt()
	cmd, err := start(command)
	if err != nil {
		return remote.Exit{}, err
	}
	log.say("running %s, limit %v", abridged(job.Args), job.Limit)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	events.take()
	limit := time.NewTimer(job.Limit)
	defer limit.Stop()
	var early remote.Exit
	select {
	case err = <-ended:
	case <-limit.C:
		early = remote.Exit{End: remote.Limited, Text: fmt.Sprintf("over the time limit of %v", job.Limit),
			Hint: "raise it with --limit-time, or send fewer workloads"}
	case <-ctx.Done():
		early = a.stopped(ctx)
	}
	if early.End != "" {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(grace):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			select {
			case <-ended:
			case <-time.After(grace): // stuck in a driver
			}
		}
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if left := reap() + Sweep(dir); left > 0 {
		log.say("%d processes of the job cannot be killed", left)
	}
	lost := events.end()
	if early.End != "" {
		return early, nil
	}
	exit := remote.Exit{End: remote.Exited}
	var failed *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
	case errors.As(err, &failed):
		exit.Code = failed.ExitCode()
		if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			exit.Code, exit.Text = 128+int(status.Signal()), failed.Error()
		}
	default:
		return remote.Exit{}, err
	}
	if lost != nil { // regardless of the program's own status
		exit.Code, exit.Text = max(exit.Code, 1), lost.Error()
		if errors.Is(lost, syscall.ENOSPC) || errors.Is(lost, syscall.EDQUOT) {
			exit.Hint = makeRoom
		}
	}
	return exit, nil
}

// A logFile is a job's log, cut off after maxLog bytes.
type logFile struct {
	mu   sync.Mutex
	file *os.File
	room int
}

// Write never fails: a full disk must not end the program.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room <= 0 {
		return len(p), nil
	}
	cut := p[:min(len(p), l.room)]
	_, _ = l.file.Write(cut)
	if l.room -= len(cut); l.room <= 0 {
		_, _ = fmt.Fprintf(l.file, "\n... truncated after %d MiB\n", maxLog>>20)
	}
	return len(p), nil
}

// say writes a line of the agent, even if the log is full.
func (l *logFile) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = fmt.Fprintf(l.file, "agent: %s %s\n", time.Now().UTC().Format(time.RFC3339), fmt.Sprintf(format, args...))
}

// start starts a command, retrying while its file is open for writing: a process forked elsewhere may have inherited
// the new file for a moment.
func start(command func() *exec.Cmd) (cmd *exec.Cmd, err error) {
	for range 100 {
		cmd = command()
		if err = cmd.Start(); !errors.Is(err, syscall.ETXTBSY) {
			return cmd, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return cmd, err
}

// abridged joins the arguments of a job, and leaves out all but the first three of its workloads.
func abridged(args []string) string {
	var shown []string
	named := 0
	for i := 0; i < len(args); i++ {
		if args[i] == "--workload" && i+1 < len(args) {
			if named++; named > 3 {
				i++
				continue
			}
		}
		shown = append(shown, args[i])
	}
	text := strings.Join(shown, " ")
	if named > 3 {
		text += fmt.Sprintf(" (and %s)", plain.Count(named-3, "more workload"))
	}
	return text
}
