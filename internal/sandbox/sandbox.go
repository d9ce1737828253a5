// Package sandbox starts the processes that run or compile submitted code: workers, references and compilers. On Linux
// such a process has a session of its own without a terminal, a small environment, no rights of root, a Landlock domain
// and a seccomp filter. It may use the network and, unless Read is set, read the user's files.
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

// A Sandbox says which files a process and its descendants may reach.
type Sandbox struct {
	Write []string // files and folders they may change; a missing one becomes a folder
	Read  []string // files and folders they may read besides Write and the system's libraries; nil is all
	Env   []string // added to the allowed variables of this process
	Tools bool     // NVIDIA's tools run in it: their processes may trace each other and use Unix sockets
}

// A spec is what a process is told before it enters its sandbox.
type spec struct {
	Write []string
	Read  []string
	Limit bool // reading is limited to Read and Write
	Tools bool
	MPS   string // folder of the sockets of CUDA's multi-process service, or ""
}

const (
	// name is the first argument of a process that is to enter a sandbox.
	name = "fisub-sandbox"
	// inside is set in the environment of a process in a sandbox.
	inside = "FISUB_SANDBOX"
	// failed is the exit status of a process that could not enter its sandbox.
	failed = 125
)

// Command is like exec.CommandContext for a process in the sandbox s. The process dies with this one; when ctx is done,
// its descendants die too. Set its environment through Env alone.
func (s *Sandbox) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	text, err := json.Marshal(spec{s.Write, s.Read, s.Read != nil, s.Tools, os.Getenv("CUDA_MPS_PIPE_DIRECTORY")})
	cmd := exec.CommandContext(ctx, self())
	cmd.Args = slices.Concat([]string{name, string(text), program}, args)
	cmd.Env = append(append(environment(os.Environ()), s.Env...), inside+"=1")
	Own(cmd)
	cmd.Cancel = func() error { End(cmd.Process.Pid); return nil }
	cmd.WaitDelay = 5 * time.Second
	cmd.Err = errors.Join(cmd.Err, err)
	return cmd
}

// Refused reports whether err, of a process of Command, says that it could not enter its sandbox. Its standard error
// says why.
func Refused(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == failed
}

// init turns a process that Command has started into its program.
func init() {
	if len(os.Args) < 3 || os.Args[0] != name {
		return
	}
	var s spec
	err := json.Unmarshal([]byte(os.Args[1]), &s)
	if err == nil {
		err = enter(s, os.Args[2:])
	}
	fmt.Fprintf(os.Stderr, "fisub: entering the sandbox: %v\n", err)
	os.Exit(failed)
}

// names and prefixes are the variables that a sandbox lets through: what CUDA, Python, its packages, compilers and the
// choice of a GPU need.
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

// environment returns the variables of all that a sandbox lets through.
func environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		in := func(part string) bool { return strings.Contains(name, part) }
		prefix := func(p string) bool { return strings.HasPrefix(name, p) }
		return !slices.Contains(names, name) && !slices.ContainsFunc(prefixes, prefix) || slices.ContainsFunc(secrets, in)
	})
}

// A Report says what the sandbox enforces on this machine.
type Report struct {
	Text string   // in a few words, such as "landlock 7, seccomp"
	Gaps []string // what it does not enforce, each with the kernel that does
}

// Files reports whether files of the judge are out of a submission's reach.
func (r Report) Files() bool { return strings.HasPrefix(r.Text, "landlock") }

func (r Report) String() string {
	if len(r.Gaps) == 0 {
		return r.Text
	}
	return r.Text + "; not enforced: " + strings.Join(r.Gaps, ", ")
}
