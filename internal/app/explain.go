package app

import (
	"errors"
	"fmt"
	"strings"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/bench/worker"
	"fisub/device/emu"
	"fisub/device/nvcc"
	"fisub/internal/config"
	"fisub/internal/safetensors"
	"fisub/workloads"
)

// explain gives the words for an error and, where there is one, the advice that goes with it. Packages state facts; the
// remedies are here.
func explain(err error) (text, hint string) {
	text = err.Error()
	var (
		u       *usageError
		fault   *config.Fault
		unknown *workloads.NotFoundError
		lfs     *safetensors.LFSPointerError
		missing *nvcc.MissingError
		run     *runs.UnknownError
		remote  *worker.Error
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
		hint = "fetch it: git lfs pull --include " + lfs.Path
	case errors.As(err, &missing):
		hint = "fisub toolchain install fetches what is missing"
	case errors.Is(err, nvcc.ErrNoPip):
		hint = "apt-get install python3-pip, or install a CUDA toolkit and apache-tvm-ffi yourself"
	case errors.Is(err, emu.ErrNoCompiler):
		hint = compilerHint
	case errors.As(err, &run):
		hint = "a run id, its beginning, or last; runs are folders in " + runs.Dir
	case errors.As(err, &remote):
		hint = codeHint(remote.Code)
	case errors.Is(err, bench.ErrNoReference):
		hint = "fisub knows the references of the gdn family"
	}
	if errors.As(err, &u) && u.hint != "" {
		hint = u.hint
	}
	return text, hint
}

func notFoundHint(e *workloads.NotFoundError) string {
	switch {
	case len(e.Track) > 0:
		return "it is a track of the contest; its definitions are " + list(e.Track, "and")
	case len(e.Near) > 0:
		return "did you mean " + list(e.Near, "or") + "?"
	}
	return "fisub dataset ls lists the definitions"
}

const compilerHint = "apt-get install g++, or set CXX to a C++ compiler"

// codeHint is the advice for an error that crossed from the worker, by its code.
func codeHint(code string) string {
	switch code {
	case "no-compiler":
		return compilerHint
	case "no-toolchain":
		return "fisub toolchain install fetches what is missing"
	case "not-built":
		return "build with GPU support: make build, or fisub toolchain install and then make; --device emu needs none of it"
	case "no-driver", "no-gpu":
		return "nvidia-smi shows what the driver sees; --device emu runs on the CPU"
	case "driver-too-old":
		return "update the NVIDIA driver, or set CUDA_HOME to an older toolkit"
	case "no-ordinal":
		return "--device cuda:0 is the first GPU"
	}
	return ""
}

// list joins words for a sentence.
func list(words []string, conjunction string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return fmt.Sprintf("%s %s %s", strings.Join(words[:len(words)-1], ", "), conjunction, words[len(words)-1])
}
