// Package sandbox starts the processes that run or compile submitted code: workers, references and compilers. On Linux
// such a process has its own session without a terminal, a small environment, no root rights, a Landlock domain and a
// seccomp filter. It may use the network and, unless Read is set, read the user's files.
package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A Sandbox defines the files that a process and its descendants may access.
type Sandbox struct {
	Write []string // files and folders they may change; missing ones become folders
	Read  []string // files and folders they may also read, besides the system's libraries; nil for all
	Env   []string // additional environment variables
	Tools bool     // NVIDIA's tools run inside: processes may trace each other and use Unix sockets
	Below []string // command of a tool that starts the program, which must be this one; may be nil
}

// A spec describes a sandbox to the process that is to enter it.
type spec struct {
	Write []string
	Read  []string
	Limit bool // reading is limited to Read and Write
	Tools bool
	Proc  bool   // all of /proc is writable
	MPS   string // folder of the sockets of CUDA's multi-process service, or ""
}

const (
	// name is argument 0 of a process that is to enter a sandbox.
	name = "fisub-sandbox"
	// inside is an environment variable set inside a sandbox.
	inside = "FISUB_SANDBOX"
	// narrow is an environment variable with the spec of a program below a tool.
	narrow = "FISUB_SANDBOX_BELOW"
	// failed is the exit status of a process that could not enter its sandbox.
	failed = 125
)

// Command is like exec.CommandContext, in the sandbox s. The process is killed when this one ends; when ctx is done,
// its descendants are killed too. Set its environment only through Env.
func (s *Sandbox) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	to := spec{s.Write, s.Read, s.Read != nil, s.Tools, false, os.Getenv("CUDA_MPS_PIPE_DIRECTORY")}
	text, err := json.Marshal(to)
	cmd := exec.CommandContext(ctx, self())
	cmd.Args = slices.Concat([]string{name, string(text), program}, args)
	env := append(environment(os.Environ()), s.Env...)
	if s.Below != nil {
		// CUDA writes to /proc/self, but a Landlock rule covers only an existing process. So the tool may write to all of
		// /proc, and the program then gives up that right. It cannot be started by a restricted process, because tools attach
		// to the first program of a process.
		to.Proc = true
		tool, terr := json.Marshal(to)
		cmd.Args = slices.Concat([]string{name, string(tool)}, s.Below, []string{program}, args)
		env, err = append(env, narrow+"="+string(text)), errors.Join(err, terr)
	}
	cmd.Env = append(env, inside+"=1")
	Own(cmd)
	cmd.Cancel = func() error { End(cmd.Process.Pid); return nil }
	cmd.WaitDelay = 5 * time.Second
	cmd.Err = errors.Join(cmd.Err, err)
	return cmd
}

// Refused reports whether err, from a process of Command, means that it could not enter its sandbox. Its stderr has the
// reason.
func Refused(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() == failed
}

// init turns a process started by Command into its program, and restricts a program started by a tool.
func init() {
	var s spec
	var err error
	switch below := os.Getenv(narrow); {
	case len(os.Args) > 2 && os.Args[0] == name:
		if err = json.Unmarshal([]byte(os.Args[1]), &s); err == nil {
			err = enter(s, os.Args[2:])
		}
	case below != "":
		if err = errors.Join(json.Unmarshal([]byte(below), &s), os.Unsetenv(narrow)); err == nil {
			err = restrict(s)
		}
		if err == nil {
			return
		}
	default:
		return
	}
	fmt.Fprintf(os.Stderr, "fisub: entering the sandbox: %v\n", err)
	os.Exit(failed)
}

// names and prefixes select the environment variables that a sandbox keeps: those for CUDA, Python, its packages,
// compilers and the choice of a GPU. Variables with one of secrets in the name are dropped.
var (
	names = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "NO_COLOR", "CC",
		"CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX",
		"SOURCE_DATE_EPOCH", "MAX_JOBS", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_CPUS_PER_TASK",
		"VIRTUAL_ENV", "CONDA_PREFIX", "XDG_CACHE_HOME", "GOMAXPROCS", "GOTRACEBACK", "GODEBUG", "GORACE", "GOCOVERDIR",
		"GOMEMLIMIT", "GOGC"}
	prefixes = []string{"LC_", "LD_", "CUDA_", "CUBLAS_", "CUDNN_", "CUPTI_", "NVCC_", "NVIDIA_", "NCCL_", "TORCH_",
		"TORCHINDUCTOR_", "PYTORCH_", "PYTHON", "TRITON_", "TILELANG_", "TVM_", "FLASHINFER_", "CUTLASS_", "CUTE_", "DG_",
		"OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "MALLOC_", "FISUB_", "FIB_"}
	secrets = []string{"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"}
)

// environment returns the variables in all that a sandbox keeps.
func environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		in := func(part string) bool { return strings.Contains(name, part) }
		prefix := func(p string) bool { return strings.HasPrefix(name, p) }
		return !slices.Contains(names, name) && !slices.ContainsFunc(prefixes, prefix) || slices.ContainsFunc(secrets, in)
	})
}

// An Enforcement describes the protection by the sandbox on this machine.
type Enforcement struct {
	Text string   // summary, such as "landlock 7, seccomp"
	Gaps []string // missing restrictions, each with the kernel that adds it
}

// Files reports whether the judge's files are protected from a submission.
func (r Enforcement) Files() bool { return strings.HasPrefix(r.Text, "landlock") }

func (r Enforcement) String() string {
	if len(r.Gaps) == 0 {
		return r.Text
	}
	return r.Text + "; not enforced: " + strings.Join(r.Gaps, ", ")
}
