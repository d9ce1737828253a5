// Package explain gives the words for an error, and the advice that goes with it. A package that alone knows the remedy
// states it in its error; what only all of fisub knows is here.
package explain

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"fisub/bench"
	"fisub/bench/compare"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/safetensors"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/remote"
	"fisub/remote/bundle"
	"fisub/remote/dispatch"
	"fisub/workloads"
)

// Error gives the words for err, and the hint that goes with it, which may be "".
func Error(err error) (text, hint string) {
	text = plainly(err)
	var (
		u       *usage.Error
		fault   *config.Fault
		unknown *workloads.NotFoundError
		lfs     *safetensors.LFSPointerError
		damaged *safetensors.DamagedError
		invalid *trace.ValidationError
		syntax  *json.SyntaxError // of a run's files
		run     *runs.UnknownError
		nothing *runs.NothingError
		crossed *worker.Error
		timers  *bench.TimerError
		temp    *fs.PathError

		denied   *remote.Denied
		ended    *dispatch.Ended
		mismatch *compare.MismatchError
	)
	switch {
	case errors.As(err, &fault):
		text = fault.Error()
		if fault.Excerpt != "" {
			text += "\n" + fault.Excerpt
		}
		hint = fault.Hint
	case errors.As(err, &unknown):
		hint = notFoundHint(unknown)
	case errors.As(err, &lfs):
		hint = "fetch it: " + LFSCommand(lfs.Path)
	case errors.As(err, &damaged):
		hint = "the file is cut off, damaged or another one: fetch it again"
	case errors.As(err, &invalid) && invalid.Model == "Solution":
		hint = "mend it at that place, or write it anew: fisub pack does"
	case errors.As(err, &invalid):
		hint = "mend it at that place, or fetch the dataset's file again"
	case errors.As(err, &syntax):
		hint = "that file is damaged, by another program or its disk: start a new run"
	case errors.As(err, &run):
		hint = "a run id, its beginning, last or last~1; fisub runs ls lists them"
	case errors.As(err, &crossed):
		hint = hints[crossed.Code]
	case errors.As(err, &denied):
		hint = denied.Hint
	case errors.As(err, &ended):
		hint = ended.Exit.Hint
	case errors.As(err, &mismatch):
		hint = "run both on the same definition, on GPUs of one model, with the same timer"
	case errors.As(err, &nothing):
		hint = "fisub remote logs " + nothing.ID + " shows what the host said"
	case errors.Is(err, runs.ErrEmpty):
		hint = "nothing of it is left: start a new run"
	case errors.Is(err, runs.ErrNoRun):
		hint = "fisub runs ls lists the runs"
	case errors.Is(err, runs.ErrRunning):
		hint = "wait for it, or end that process"
	case errors.As(err, &timers):
		hint = "start a new run without --resume"
	case errors.Is(err, cache.ErrNoFolder):
		hint = "set FISUB_CACHE to a folder that can be written to"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "make room on that disk, then go on with --resume; FISUB_CACHE and TMPDIR name folders on another one"
	case errors.Is(err, syscall.EMFILE):
		hint = "ulimit -n raises the number of files that may be open"
	case errors.As(err, &temp) && temp.Path == os.TempDir():
		hint = "TMPDIR names the folder for temporary files"
	case unwritableRun(err):
		hint = "a run is kept in " + runs.Dir + ", beside config.toml: make it a folder that you can write to, or work in " +
			"a copy"
	default:
		hint = cmp.Or(hints[Code(err)], gitHint(err))
	}
	if errors.As(err, &u) && u.Hint != "" {
		hint = u.Hint
	}
	return text, hint
}

// plainly is what err says, without the names of system calls that say nothing to a user.
func plainly(err error) string {
	text := err.Error()
	var file *fs.PathError
	if errors.As(err, &file) && !slices.Contains([]string{"read", "write"}, file.Op) {
		name := file.Path
		if name == "" {
			name = `""`
		}
		text = strings.Replace(text, file.Error(), name+": "+file.Err.Error(), 1)
	}
	return text
}

func notFoundHint(e *workloads.NotFoundError) string {
	switch {
	case len(e.Track) > 0:
		return "it is a track of the contest; its definitions are " + plain.List(e.Track, "and")
	case len(e.Near) > 0:
		return "did you mean " + plain.List(e.Near, "or") + "?"
	}
	return "fisub dataset ls lists the definitions"
}

// unwritableRun tells whether err is that run folders cannot be made or written.
func unwritableRun(err error) bool {
	var file *fs.PathError
	return errors.As(err, &file) && strings.Contains(filepath.ToSlash(file.Path), runs.Dir) &&
		(errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR))
}

// LFSCommand fetches a file that Git LFS left as a pointer.
func LFSCommand(file string) string {
	if dir := git.Root(filepath.Dir(file)); dir != "" {
		rel, _ := filepath.Rel(dir, file)
		return fmt.Sprintf("git -C %s lfs pull --include %s", dir, filepath.ToSlash(rel))
	}
	return "git lfs pull --include " + filepath.Base(file) + ", in the clone that it came from"
}

// Code names an error of the machine that has a remedy; errors cross from the worker with their code.
func Code(err error) string {
	var missing *nvcc.MissingError
	var mismatch *nvcc.MismatchError
	var crossed *worker.Error
	switch {
	case errors.As(err, &crossed):
		return crossed.Code
	case errors.As(err, &missing) && missing.NoCXX() && len(missing.Missing) == 1:
		return "no-compiler"
	case errors.As(err, &missing):
		return "no-toolchain"
	case errors.Is(err, nvcc.ErrNoPip):
		return "no-pip"
	case errors.Is(err, cuda.ErrNotBuilt), errors.Is(err, bundle.ErrNoGPUSupport):
		return "not-built"
	case errors.Is(err, cuda.ErrUnavailable):
		return "no-gpu"
	case errors.Is(err, cuda.ErrDriverTooOld):
		return "old-driver"
	case errors.As(err, &mismatch) && mismatch.OtherSolutions():
		return "no-kernel"
	case errors.Is(err, cuda.ErrArch), errors.As(err, &mismatch):
		return "arch"
	case errors.Is(err, cuda.ErrOrdinal):
		return "no-ordinal"
	case errors.Is(err, device.ErrTimer):
		return "no-timer"
	}
	return ""
}

// hints are the hints for the codes of Code.
var hints = map[string]string{
	"no-toolchain": "fisub toolchain install fetches what is missing",
	"no-pip":       "apt-get install python3-pip, or install a CUDA toolkit and apache-tvm-ffi yourself",
	"no-compiler":  "apt-get install g++, or set CXX to a C++ compiler that can be run",
	"not-built":    "make build builds one with GPU support; --device emu runs on the CPU",
	"no-gpu":       "nvidia-smi shows what the driver sees; --device emu runs on the CPU",
	"old-driver":   "update the NVIDIA driver, or set CUDA_HOME to an older toolkit",
	"arch":         "--gpu, or --arch, names the GPU of the host: the kernel is compiled for it before it is sent",
	"no-kernel": "compile it where there is a compiler, and put its kernel there too; without --prebuilt it is " +
		"compiled here",
	"no-ordinal": "--device cuda:0 is the first GPU",
	"no-timer": "fisub toolchain install brings libcupti, for a Python submission pip install nvidia-cuda-cupti; " +
		"--timer auto takes CUDA events where CUPTI cannot be used",

	"no-python": "install Python 3.9 or later with torch, or set FISUB_PYTHON to one",
	"no-torch":  "pip install torch, or set FISUB_PYTHON to a Python that has it",
	"no-torch-cuda": "install a torch with CUDA, or set FISUB_PYTHON to a Python that has one; --device emu runs on " +
		"the CPU",
	"no-triton":     "pip install triton==3.6.0, for the Python that is named, or set FISUB_PYTHON to another one",
	"no-vgpu":       "build fisub with scripts/build",
	"no-tilelang":   "pip install tilelang, for the Python that is named, or set FISUB_PYTHON to another one",
	"no-dependency": "install it, for the Python that is named, or set FISUB_PYTHON to one that has it",
	"no-ninja":      "pip install ninja, and put its folder on PATH",
}
