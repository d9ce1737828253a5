package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"fisub/remote"
)

// A GPU describes one GPU of the host.
type GPU struct {
	UUID      string
	Name      string   // "NVIDIA B200"
	Processes []string // processes that use it: "123 (python, 10 GiB)"
	Holder    string   `json:",omitempty"` // holder of its lock, set by ListGPUs
}

// Is reports whether kind, such as "b200", is a word of the GPU's name: an A100 is not an a10.
func (g *GPU) Is(kind string) bool {
	apart := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	return slices.Contains(strings.FieldsFunc(strings.ToLower(g.Name), apart), strings.ToLower(kind))
}

// Judge returns the reason why a job for that kind of GPU cannot run on GPU number at, or nil. If busy is set, other
// processes may use it.
func Judge(gpus []GPU, at int, kind string, busy bool) *Refusal {
	if at < 0 || at >= len(gpus) {
		return refuse("fisub remote hosts lists the GPUs", "no gpu %d, the host has %d", at, len(gpus))
	}
	gpu := &gpus[at]
	var r *Refusal
	switch {
	case !gpu.Is(kind):
		return refuse("set --gpu to the GPU of the host", "gpu %d is %s, the job is for %s", at, gpu.Name, kind)
	case gpu.Holder != "":
		r = refuse("wait for it; fisub remote ls lists the jobs", "gpu %d is in use by another fisub job: %s", at,
			gpu.Holder)
	case len(gpu.Processes) > 0 && !busy:
		r = refuse("wait for it, or add --busy", "gpu %d is busy: process %s", at, strings.Join(gpu.Processes, ", "))
	default:
		return nil
	}
	r.Busy = true
	return r
}

// ListGPUs returns the host's GPUs and the holders of their locks.
func (a *Agent) ListGPUs() ([]GPU, error) {
	if a.GPUs == nil {
		return nil, refuse("use a fisub built with GPU support: make build", "this fisub has no GPU support")
	}
	gpus, err := a.GPUs()
	if err != nil {
		return nil, refuse("install the NVIDIA driver on the host; nvidia-smi lists its GPUs", "no GPU: %v", err)
	}
	for i := range gpus {
		f, err := os.OpenFile(LockName(gpus[i].UUID), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
			gpus[i].Holder = holder(f)
		}
		f.Close()
	}
	return gpus, nil
}

// takeGPU chooses the job's GPU and locks it.
func (a *Agent) takeGPU(ctx context.Context, job *remote.Job) (uuid string, unlock func(), err error) {
	gpus, err := a.ListGPUs()
	if err != nil {
		return "", nil, err
	}
	at := job.Place.GPU
	if at < 0 {
		// The queue sets CUDA_VISIBLE_DEVICES to its choice, unless the host has only one GPU.
		visible, _, _ := strings.Cut(os.Getenv("CUDA_VISIBLE_DEVICES"), ",")
		chosen := func(g GPU) bool { return visible != "" && strings.HasPrefix(g.UUID, visible) }
		if at = slices.IndexFunc(gpus, chosen); at < 0 {
			if at, err = strconv.Atoi(strings.TrimSpace(visible)); err != nil && visible != "" {
				return "", nil, refuse("request a whole GPU from the queue",
					"the queue assigned %.80q, which is not a GPU of the host", visible)
			}
		}
	}
	if at >= 0 && at < len(gpus) {
		gpus[at].Holder = "" // lockGPU waits for it
	}
	if r := Judge(gpus, at, job.GPU, job.Busy); r != nil {
		return "", nil, r
	}
	var held string
	if unlock, held, err = lockGPU(ctx, gpus[at].UUID); held != "" {
		gpus[at].Holder = held
		return "", nil, Judge(gpus, at, job.GPU, job.Busy)
	}
	return gpus[at].UUID, unlock, err
}

// lockTime is how long a job waits for a GPU whose last job may be ending.
const lockTime = 5 * time.Second

var notWord = regexp.MustCompile(`[^0-9a-zA-Z-]`)

// LockName returns the file that a job of any user locks while it uses a GPU.
func LockName(uuid string) string {
	return "/tmp/fisub-" + notWord.ReplaceAllString(uuid, "_") + ".lock"
}

// lockGPU locks a GPU against jobs of all users, or returns the holder of the lock.
func lockGPU(ctx context.Context, uuid string) (unlock func(), held string, err error) {
	name := LockName(uuid)
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, 0) // read-only: another user may own it
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o644); err == nil {
			_ = f.Chmod(0o644) // despite the umask; it fails harmlessly on another user's file
		}
	}
	if err != nil {
		return nil, "", err
	}
	for deadline := time.Now().Add(lockTime); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, "", nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, "", fmt.Errorf("locking %s: %w", name, err)
		}
		if time.Now().After(deadline) {
			defer f.Close()
			return nil, holder(f), nil
		}
		if err := remote.Sleep(ctx, poll); err != nil {
			f.Close()
			return nil, "", err
		}
	}
}

// holder identifies the holder of a lock from /proc/locks and the command line of the process. The owner of the file
// could have written anything into it.
func holder(f *os.File) string {
	var st syscall.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || syscall.Fstat(int(f.Fd()), &st) != nil {
		return f.Name()
	}
	for lock := range strings.Lines(string(locks)) {
		// 1: FLOCK ADVISORY WRITE 4711 08:01:123 0 EOF
		fields := strings.Fields(lock)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[3] != "WRITE" ||
			!strings.HasSuffix(fields[5], fmt.Sprintf(":%d", st.Ino)) {
			continue
		}
		line, _ := os.ReadFile("/proc/" + fields[4] + "/cmdline")
		args := strings.Split(strings.TrimSuffix(strings.TrimRight(string(line), "\x00"), "\x00"+alone), "\x00")
		if n := len(args); n > 2 && args[n-2] == "run" && remote.ValidID(filepath.Base(args[n-1])) {
			return filepath.Base(args[n-1]) + ", process " + fields[4]
		}
		return "process " + fields[4]
	}
	return f.Name()
}
