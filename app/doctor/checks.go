package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"fisub/bench/pyworker"
	"fisub/device/nvcc"
	"fisub/internal/config"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/remote/bundle"
	"fisub/remote/providers"
	"fisub/runs"
)

// An examination is one call of Examine.
type examination struct{ Options }

func (x *examination) program(context.Context) []Probe {
	if !x.Built {
		return []Probe{missing("gpu-support", fmt.Sprintf("fisub %s was built without GPU support", x.Version), "make build")}
	}
	return []Probe{ok("gpu-support", "fisub %s with GPU support, %s/%s", x.Version, runtime.GOOS, runtime.GOARCH)}
}

// confinement checks how well the judging process is protected from a submission.
func confinement(context.Context) []Probe {
	state := sandbox.State()
	if len(state.Gaps) > 0 {
		return []Probe{warn("confinement", state.String(), "use a newer Linux, or run only code that you trust")}
	}
	return []Probe{ok("confinement", "%s", state)}
}

func program(name, hint string) func(context.Context) []Probe {
	return func(context.Context) []Probe {
		path, err := exec.LookPath(name)
		if err != nil {
			return []Probe{missing(name, "not on PATH", hint)}
		}
		return []Probe{ok(name, "%s", path)}
	}
}

// toolchain looks for the CUDA compiler with TVM-FFI, and checks whether this program can be sent to a remote.
func (x *examination) toolchain(ctx context.Context) []Probe {
	lines := make([]Probe, 2)
	if t, err := nvcc.Find(x.Cache); err != nil {
		lines[0] = failed("nvcc", err, "")
		missing, ok := errors.AsType[*nvcc.MissingError](err)
		noPip := nvcc.CanInstall(ctx)
		lines[0].fetchable = ok && !missing.NoCXX() && noPip == nil
		if ok && noPip != nil {
			lines[0].Hint += "; to download it, " + hint.Of(noPip)
		}
	} else {
		lines[0] = ok("nvcc", "%s, for CUDA %s (%s), tvm-ffi %s", t.Version, t.CUDAVersion, t.NVCC, t.TVMFFIVersion)
	}
	if err := bundle.Ready(x.Cache, x.Built); err != nil {
		lines[1] = failed("bundle", err, "")
	} else {
		lines[1] = ok("bundle", "this program and kernels compiled here can be sent to hosts with a GPU")
	}
	return lines
}

// driverVersion is a file of NVIDIA's kernel driver.
const driverVersion = "/proc/driver/nvidia/version"

func (x *examination) gpu(ctx context.Context) (lines []Probe) {
	text, err := os.ReadFile(driverVersion)
	if version := regexp.MustCompile(`\b\d+\.\d+(\.\d+)?\b`).FindString(plain.First(string(text))); err == nil {
		lines = append(lines, ok("driver", "NVIDIA %s", cmp.Or(version, "of unknown version")))
	}
	if x.OpenGPU != nil {
		if info, err := x.OpenGPU(ctx); err != nil {
			lines = append(lines, failed("gpu", err, "nvidia-smi lists the driver's GPUs"))
		} else {
			text := fmt.Sprintf("cuda:%d %s, %s, %.0f GiB, CUDA %s", info.Ordinal, info.Name, info.Arch,
				float64(info.MemoryBytes)/(1<<30), info.CUDA)
			if lines == nil { // in WSL
				lines = append(lines, ok("driver", "NVIDIA %s", cmp.Or(info.Driver, "of unknown version")))
			}
			return append(lines, ok("gpu", "%s", strings.TrimSuffix(text, ", CUDA ")))
		}
	}
	if err != nil {
		lines = append(lines, missing("driver", "no NVIDIA driver", "install one (https://www.nvidia.com/drivers), or "+
			"start the container with its GPUs; fisub remote uses GPUs of other hosts"))
	}
	return lines
}

func (x *examination) tools(context.Context) (lines []Probe) {
	if x.Tool == nil {
		return nil
	}
	for _, name := range []string{"compute-sanitizer", "ncu"} {
		if path, err := x.Tool(name); err == nil {
			lines = append(lines, ok(name, "%s", path))
			continue
		}
		lines = append(lines, missing(name, "neither on PATH nor in a toolkit",
			"install the CUDA toolkit and put its bin folder on PATH, or set CUDA_HOME"))
	}
	return lines
}

// python looks for the interpreter of Python submissions, and for their packages.
func (x *examination) python(ctx context.Context) []Probe {
	install := "pip install triton==" + pyworker.Contest
	path, err := pyworker.Find(ctx)
	if err != nil {
		return []Probe{failed("python", err, "")}
	}
	lines := []Probe{ok("python", "%s, with torch", path)}
	switch t, err := pyworker.FindTriton(ctx, x.Cache); {
	case err != nil:
		return append(lines, failed("triton", err, ""))
	case t.Version() == "":
		l := missing("triton", "not installed in "+path, path+" -m "+install)
		_, pinned := nvcc.Triton(t.Tag)
		_, err := os.Stat(driverVersion) // with a GPU, Triton is not fetched
		l.fetchable = pinned && err != nil && nvcc.CanInstall(ctx) == nil
		return append(lines, l)
	case t.Version() != pyworker.Contest:
		return append(lines, warn("triton", t.Own+"; the contest has "+pyworker.Contest+", which the first run on the "+
			"virtual GPU fetches", "fisub toolchain install; for a GPU "+path+" -m "+install))
	default:
		return append(lines, ok("triton", "%s", t.Version()))
	}
}

func (x *examination) storage(context.Context) []Probe {
	const hint = "set FISUB_CACHE to a writable folder"
	c := folder("cache", x.Cache, hint)
	if x.CacheErr != nil {
		c = failed("cache", x.CacheErr, hint)
	}
	return []Probe{c, folder("runs", filepath.Join(filepath.Dir(x.Config), runs.Dir),
		"make the submission's folder writable")}
}

// folder reports whether dir, which need not exist, is writable.
func folder(name, dir, hint string) Probe {
	there := dir
	for there != filepath.Dir(there) {
		st, err := os.Stat(there)
		if err == nil && !st.IsDir() {
			err = fmt.Errorf("%s: not a folder", there)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return missing(name, err.Error(), hint)
		}
		there = filepath.Dir(there)
	}
	f, err := os.CreateTemp(there, ".fisub-doctor-*")
	if err != nil {
		return missing(name, fmt.Sprintf("%s: not writable: %v", there, plain.Cause(err)), hint)
	}
	f.Close()
	os.Remove(f.Name())
	return ok(name, "%s", dir)
}

func (x *examination) config(context.Context) []Probe {
	cfg, err := config.Load(x.Config)
	if err == nil {
		return []Probe{ok("config", "%s: %s, %s", x.Config, cfg.Solution.Name, cfg.Solution.Definition)}
	}
	hint := "fisub check lists the errors"
	if errors.Is(err, fs.ErrNotExist) {
		hint = "run fisub in the submission's folder, or use -C DIR"
	}
	return []Probe{missing("config", err.Error()+"; every command about a submission needs it", hint)}
}

func (x *examination) dataset(context.Context) []Probe {
	if x.Dataset == nil {
		return nil
	}
	const hint = "set --dataset DIR or FIB_DATASET_PATH; without them the embedded dataset is used"
	data, err := x.Dataset()
	if err != nil {
		return []Probe{failed("dataset", err, hint)}
	}
	names := data.Definitions()
	if len(names) == 0 {
		return []Probe{missing("dataset", fmt.Sprintf("%s: no definitions below %s", data.Root(),
			filepath.Join(data.Root(), "definitions")), hint)}
	}
	where := data.Root()
	if data.Embedded() {
		where = "embedded"
	}
	return []Probe{ok("dataset", "%s: %s", where, plain.Count(len(names), "definition"))}
}

func (x *examination) remote(ctx context.Context, table string) (lines []Probe) {
	name, again := "remote."+table, "fisub remote hosts --on "+table+" checks again"
	p, common, err := providers.Open(x.Tables, table, "")
	if err != nil {
		l := failed(name, err, "fisub help remote lists the keys of such a table")
		l.Fact = err.Error() // without excerpts
		return []Probe{l}
	}
	defer p.Close()
	hosts, err := p.Check(ctx)
	if err == nil && len(hosts) == 0 {
		err = errors.New("no hosts")
	}
	if err != nil {
		return []Probe{failed(name, err, again)}
	}
	for _, h := range hosts {
		host := name
		if len(hosts) > 1 {
			host += "." + h.Name
		}
		if h.Err != nil {
			lines = append(lines, failed(host, h.Err, again))
			continue
		}
		l := ok(host, "%s", strings.TrimSuffix(fmt.Sprintf("%s, %s: %s, %s", common.Provider, h.Name, h.State, h.Detail),
			", "))
		if h.State == "down" || h.State == "busy" {
			l.State = Warn
		}
		lines = append(lines, l)
	}
	return lines
}
