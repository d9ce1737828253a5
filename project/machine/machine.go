// Package machine prepares the devices of this machine: it chooses one, finds or fetches the compilers for it, and
// starts the worker processes that open it. Package bench runs solutions on them.
package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/device/vgpu"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
)

// Choose converts the name of a device to its kind and sets its number in opts; "" is "auto". For auto it has a
// worker open the GPU, because a broken driver makes the process that loads it unusable.
func Choose(ctx context.Context, name string, sol *trace.Solution, opts *device.Options, term *ui.Terminal) (string,
	error) {
	kind, ordinal, numbered := strings.Cut(name, ":")
	if numbered {
		n, err := strconv.Atoi(ordinal)
		if err != nil || n < 0 {
			return "", usage.Errorf("write cuda:0 for the first GPU", "--device %s: %q is not a device number", name, ordinal)
		}
		opts.Ordinal = n
	}
	switch {
	case kind == "cuda", kind == "emu" && !numbered:
		return kind, nil
	case kind != "auto" && kind != "" || numbered:
		return "", usage.Errorf("one of auto, cuda, cuda:N, emu", "--device: unknown device %q", name)
	}
	_, err := OpenGPU(ctx, *opts)
	if we, ok := errors.AsType[*worker.Error](err); ok && we.Code == worker.NotBuilt && pyworker.Runs(&sol.Spec) {
		// torch may support a GPU that this binary does not.
		command, missing := pyworker.Command(ctx, opts.CacheDir)
		if missing != nil {
			return "", usage.Invalid(missing)
		}
		_, err = openGPU(ctx, command, *opts)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		term.NoteOnce("no GPU     %s", lacking(err))
		return "emu", nil
	}
	return "cuda", nil
}

// lacking returns the reason for a missing GPU. Without a driver, as on most machines for development, it omits the
// details.
func lacking(err error) string {
	if text := "no NVIDIA driver"; strings.Contains(err.Error(), text) {
		return text
	}
	return err.Error()
}

// Compiler finds the toolchain for sol on a device of that kind. For the virtual GPU it fetches a missing one, and
// builds the libraries that a confined worker may not write. The toolchain is nil if it is missing and sol does not
// need it.
func Compiler(ctx context.Context, kind string, opts *device.Options, sol *trace.Solution,
	term *ui.Terminal) (*nvcc.Toolchain, error) {
	emulated, compiled := kind == "emu", sol.Spec.Compiled() && opts.Prebuilt == ""
	inside := emulated && pyworker.Runs(&sol.Spec) && pyworker.Compiles(sol) // compiles in Python
	var tools *nvcc.Toolchain
	var err error
	if compiled || inside {
		tools, err = nvcc.Find(opts.CacheDir)
	}
	if inside && tools != nil {
		if err := vgpu.PrepareHome(ctx, opts.CacheDir, tools); err != nil {
			return nil, err
		}
	}
	if pyworker.Runs(&sol.Spec) && pyworker.UsesTriton(sol) {
		return tools, FetchTriton(ctx, kind, opts.CacheDir, nil, term)
	}
	if !emulated || !compiled {
		return tools, nil
	}
	if err != nil {
		if missing, ok := errors.AsType[*nvcc.MissingError](err); !ok || missing.NoCXX() {
			return nil, usage.Invalid(err)
		}
		term.Note("compiler   not installed: fetching nvcc and TVM-FFI from PyPI into %s", opts.CacheDir)
		if err := nvcc.Install(ctx, opts.CacheDir, func(string, int64, int64) {}); err != nil {
			return nil, usage.Invalid(err)
		}
		if tools, err = nvcc.Find(opts.CacheDir); err != nil {
			return nil, usage.Invalid(err)
		}
	}
	_, err = vgpu.Runtime(ctx, opts.CacheDir, tools)
	return tools, err
}

// Builder returns the Build function for bench.Shared, which builds solutions for the device with the toolchain of
// Compiler. Only compilers see the sources.
func Builder(kind string, opts device.Options, tools *nvcc.Toolchain) func(context.Context, *trace.Solution,
	device.Info) (bool, error) {
	return func(ctx context.Context, sol *trace.Solution, info device.Info) (bool, error) {
		arch := cmp.Or(opts.Arch, info.Arch)
		if kind == "emu" {
			arch = vgpu.ArchOf(opts)
		} else if opts.LineInfo {
			arch = nvcc.WithLines(arch)
		}
		o, err := nvcc.Build(ctx, opts.CacheDir, tools, sol, arch)
		if err == nil {
			return o.Hit, nil
		} else if ctx.Err() != nil {
			return false, ctx.Err()
		}
		return false, worker.AsError(nvcc.Judged(err), worker.Machine)
	}
}

// FetchTriton fetches the contest's Triton for the virtual GPU, unless the interpreter has it already or has no
// torch. Failing to fetch it, and a different version for a GPU, are warnings. progress is passed to
// nvcc.InstallTriton.
func FetchTriton(ctx context.Context, kind, root string, progress func(name string, done, total int64),
	term *ui.Terminal) error {
	t, err := pyworker.FindTriton(ctx, root)
	if err != nil || t.Version() == pyworker.Contest || kind == "cuda" && t.Own == "" {
		return nil // a run says which Python is missing
	}
	has := t.Python + " has no Triton"
	if t.Own != "" {
		has = t.Python + " has Triton " + t.Own
	}
	pip := t.Python + " -m pip install triton==" + pyworker.Contest
	if kind == "cuda" {
		term.Warn(fmt.Sprintf("%s; the contest uses %s: verdicts and times may differ", has, pyworker.Contest), pip)
		return nil
	}
	if c, ok := nvcc.Triton(t.Tag); ok {
		term.Note("compiler   %s: fetching the contest's %s from PyPI into %s (%d MB; unpacked %d MB)", has, pyworker.Contest,
			root, c.Bytes/1e6, nvcc.TritonUnpacked/1e6)
	}
	if err := nvcc.InstallTriton(ctx, root, t.Tag, progress); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		term.Warn(fmt.Sprintf("%s; the contest uses %s, which is unavailable: %v", has, pyworker.Contest, err),
			"fisub toolchain install fetches it; or "+pip)
	}
	return nil
}

// OpenGPU opens a GPU in a worker process and returns its description.
func OpenGPU(ctx context.Context, opts device.Options) (device.Info, error) {
	self, err := os.Executable()
	if err != nil {
		return device.Info{}, err
	}
	return openGPU(ctx, worker.Command{Args: []string{self, "worker"}}, opts)
}

func openGPU(ctx context.Context, command worker.Command, opts device.Options) (device.Info, error) {
	client, err := worker.Start(ctx, command)
	if err != nil {
		return device.Info{}, err
	}
	defer client.Close()
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return client.Open(limit, "cuda", opts)
}

// Worker returns the command that starts a submission's process, with a limit of three quarters of the machine's
// memory.
func Worker() (worker.Command, error) {
	self, err := os.Executable()
	if err == nil {
		err = cramped()
	}
	sandbox.Hide()
	return worker.Command{Args: []string{self, "worker"}, MemoryLimit: memory() / 4 * 3,
		Sandbox: &sandbox.Sandbox{}}, err
}

// cramped rejects limits of this process that are too low for Go's runtime, which could fail at any moment. That
// would look like a fault of the submission.
func cramped() error {
	for _, l := range []struct {
		resource            int
		least               uint64
		what, unit, command string
	}{
		{unix.RLIMIT_AS, 4 << 20, "address space", "KiB", "ulimit -v unlimited"},
		{unix.RLIMIT_NOFILE, 128, "open files", "", "ulimit -n 1024"},
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(l.resource, &now); err != nil {
			return os.NewSyscallError("getrlimit", err)
		}
		cur := uint64(now.Cur) //nolint:unconvert // of another type on some systems
		if l.unit == "KiB" {
			cur >>= 10
		}
		if cur < l.least {
			return usage.Errorf(l.command+", here or in the shell's startup files or the batch system",
				"the limit of %s is %s; fisub needs %s", l.what, strings.TrimSpace(fmt.Sprint(cur, " ", l.unit)),
				strings.TrimSpace(fmt.Sprint(l.least, " ", l.unit)))
		}
	}
	return nil
}

// Work serves the process that started this one, as its worker, and ends with it.
func Work(ctx context.Context, openers []device.Opener) error {
	in, out, err := worker.Pipes()
	if err != nil {
		return usage.Invalid(err)
	}
	// A hanging kernel would never notice the end of the requests. This process, and an emulated kernel in it,
	// therefore end when the parent is gone.
	parent := os.Getppid()
	go func() {
		for os.Getppid() == parent {
			time.Sleep(500 * time.Millisecond)
		}
		sandbox.End(os.Getpid())
	}()
	err = worker.Serve(ctx, in, out, openers)
	if ctx.Err() != nil { // a message of this process would be in the solution's log
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return err
}

// Invalid is usage.Invalid for errors about the device or a missing part of the machine. It returns other errors
// unchanged.
func Invalid(err error) error {
	_, unusable := errors.AsType[*bench.DeviceError](err)
	_, retimed := errors.AsType[*bench.TimerError](err)
	if unusable || retimed || errors.Is(err, bench.ErrNoReference) {
		return usage.Invalid(err)
	}
	return err
}

// Host describes this machine for run.json.
func Host() event.Host {
	h := event.Host{OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Memory: memory()}
	h.Name, _ = os.Hostname()
	h.Confined = sandbox.State().String()
	h.CPU = plain.Field("/proc/cpuinfo", "model name")
	return h
}

// memory returns the size of the machine's memory in bytes.
func memory() (n int64) {
	_, _ = fmt.Sscanf(plain.Field("/proc/meminfo", "MemTotal"), "%d kB", &n)
	return n << 10
}
