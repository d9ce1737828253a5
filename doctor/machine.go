package doctor

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fisub/bench/pyworker"
	"fisub/bench/runs"
	"fisub/device/cuda"
	"fisub/device/cuda/stamp"
	"fisub/device/nvcc"
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/remote/bundle"
)

// An examination is one Examine.
type examination struct{ Options }

// ask runs a program and gives what it prints: on stdout, and, if both is set, on stderr.
func ask(ctx context.Context, both bool, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	run := cmd.Output
	if both {
		run = cmd.CombinedOutput
	}
	out, err := run()
	if ctx.Err() != nil {
		return "", errors.New("gives no answer")
	}
	return strings.TrimSpace(string(out)), err
}

func (x *examination) program(context.Context) []Line {
	if !x.Built {
		return []Line{missing("gpu-support", fmt.Sprintf("fisub %s was built without GPU support", x.Version), "make build")}
	}
	return []Line{ok("gpu-support", "fisub %s with GPU support, %s/%s", x.Version, runtime.GOOS, runtime.GOARCH)}
}

// confinement tells what keeps a submission's process from the files and processes of the one that judges it.
func confinement(context.Context) []Line {
	state := sandbox.State()
	if len(state.Gaps) > 0 {
		return []Line{warn("confinement", state.String(), "a newer Linux; else judge no code that you distrust")}
	}
	return []Line{ok("confinement", "%s", state)}
}

// program looks for one on PATH and asks it for its version.
func program(name, hint string, version ...string) look {
	return func(ctx context.Context) []Line {
		path, err := exec.LookPath(name)
		if err != nil {
			return []Line{missing(name, "not on PATH", hint)}
		}
		if out, err := ask(ctx, true, path, version...); err == nil { // ssh tells its version on stderr
			return []Line{ok(name, "%s (%s)", plain.First(out), path)}
		}
		return []Line{ok(name, "%s", path)}
	}
}

// toolchain tells of the CUDA compiler, TVM-FFI, CUPTI, which comes with it, and of what fisub remote makes with them.
func (x *examination) toolchain(ctx context.Context) []Line {
	const install = "fisub toolchain install"
	var t *nvcc.Toolchain
	var err, ready error
	done := make(chan struct{})
	go func() { // it asks programs that may hang
		defer close(done)
		t, err = nvcc.Find(x.Cache)
		ready = bundle.Ready(x.Cache, x.Built)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		const late = "looking for it takes too long"
		return []Line{missing("nvcc", late, ""), missing("tvm-ffi", late, ""), missing("bundle", late, "")}
	}
	cc, ffi := ok("nvcc", "found"), ok("tvm-ffi", "found")
	var lacking *nvcc.MissingError
	switch {
	case err == nil:
		cc = ok("nvcc", "%s, for CUDA %s (%s)", t.Version, t.CUDAVersion, t.NVCC)
		ffi = ok("tvm-ffi", "%s (%s)", t.TVMFFIVersion, t.TVMFFI)
	case errors.As(err, &lacking):
		var lacks []string
		for _, m := range lacking.Missing {
			if strings.HasPrefix(m, "tvm-ffi") {
				ffi = missing("tvm-ffi", "no "+m, install)
			} else {
				lacks = append(lacks, m)
			}
		}
		if len(lacks) > 0 {
			cc = missing("nvcc", "no "+strings.Join(lacks, ", "), install)
		}
		if len(lacks) == 1 && lacking.NoCXX() {
			cc.Hint = "apt-get install g++"
		}
	default:
		cc, ffi = missing("nvcc", err.Error(), ""), missing("tvm-ffi", err.Error(), "")
	}
	send := ok("bundle", "this program and kernels that are compiled here can be sent to hosts with a GPU")
	if ready != nil {
		send = failed("bundle", ready, "")
	}
	return []Line{cc, ffi, cupti(append(cuda.CUPTIDirs(x.Cache, t), "/usr/lib/x86_64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu")), send}
}

func cupti(dirs []string) Line {
	for _, dir := range dirs {
		for _, name := range []string{"libcupti.so.13", "libcupti.so.12"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return ok("cupti", "%s", filepath.Join(dir, name))
			}
		}
	}
	return missing("cupti", "no libcupti.so.12 or .13 in the toolkit's folders",
		"fisub toolchain install; without it CUDA events time, launch included")
}

// The driver's own words, where it has them.
const driverFolder = "/proc/driver/nvidia"

// gpu tells of the driver, the GPUs, NVML, the clocks and the performance counters; without a driver of nothing but it.
func (x *examination) gpu(ctx context.Context) []Line {
	rows, smiErr := smi(ctx)
	version := driverVersion()
	if version == "" && len(rows) > 0 {
		version = rows[0]["driver_version"]
	}
	lines := []Line{ok("driver", "NVIDIA %s", version)}
	if version == "" {
		lines[0] = missing("driver", "no NVIDIA driver", "install one (https://www.nvidia.com/drivers), or in a container "+
			"start it with the GPUs; fisub remote uses other hosts' GPUs")
	}
	if x.OpenGPU != nil {
		if info, err := x.OpenGPU(ctx); err != nil {
			lines = append(lines, failed("gpu", err, "nvidia-smi shows what the driver sees"))
		} else {
			text := fmt.Sprintf("cuda:%d %s, %s, %.0f GiB, CUDA %s", info.Ordinal, info.Name, info.Arch,
				float64(info.MemoryBytes)/(1<<30), info.CUDA)
			lines = append(lines, ok("gpu", "%s", strings.TrimSuffix(text, ", CUDA ")))
		}
	}
	if version == "" {
		return lines
	}
	for _, r := range rows {
		lines = append(lines, r.line())
	}
	if smiErr != nil {
		lines = append(lines, warn("nvidia-smi", smiErr.Error(), "put it on PATH: it comes with the driver"))
	}
	if gpus, err := stamp.GPUs(); err != nil {
		lines = append(lines, warn("nvml", err.Error()+": runs have no clocks, temperature and other processes in their "+
			"stamp", "put the driver's libnvidia-ml.so.1 in the loader's path"))
	} else {
		lines = append(lines, ok("nvml", "tells of %s", plain.Count(len(gpus), "GPU")))
	}
	if len(rows) > 0 {
		lines = append(lines, clocks(rows))
	}
	if params, err := os.ReadFile(driverFolder + "/params"); err == nil {
		lines = append(lines, counters(string(params)))
	}
	return lines
}

func driverVersion() string {
	text, err := os.ReadFile(driverFolder + "/version")
	if err != nil {
		return ""
	}
	return cmp.Or(regexp.MustCompile(`\b\d+\.\d+(\.\d+)?\b`).FindString(plain.First(string(text))), "of unknown version")
}

// A row is a GPU as nvidia-smi tells of it, by field. Memory is in MiB, clocks in MHz, utilization in per cent.
type row map[string]string

var smiFields = []string{"index", "name", "driver_version", "compute_cap", "mig.mode.current", "memory.total",
	"memory.used", "persistence_mode", "clocks.current.sm", "clocks.max.sm", "utilization.gpu"}

// number is -1 where it is not told.
func (r row) number(field string) int {
	n, err := strconv.Atoi(r[field])
	if err != nil {
		return -1
	}
	return n
}

func smi(ctx context.Context) ([]row, error) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, errors.New("nvidia-smi is not on PATH")
	}
	out, err := ask(ctx, true, path, "--query-gpu="+strings.Join(smiFields, ","), "--format=csv,noheader,nounits")
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %s", cmp.Or(plain.First(out), err.Error()))
	}
	return readSMI(out)
}

func readSMI(out string) (rows []row, err error) {
	r := csv.NewReader(strings.NewReader(out))
	r.TrimLeadingSpace = true
	r.FieldsPerRecord = len(smiFields)
	records, err := r.ReadAll()
	if err != nil {
		return nil, errors.New("nvidia-smi prints something else than a table")
	}
	for _, record := range records {
		r := row{}
		for i, field := range smiFields {
			r[field] = record[i]
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// line warns of what disturbs a measurement.
func (r row) line() Line {
	l := ok("gpu."+r["index"], "%s, sm_%s, %d of %d MiB used", r["name"], strings.ReplaceAll(r["compute_cap"], ".", ""),
		max(r.number("memory.used"), 0), max(r.number("memory.total"), 0))
	if r["mig.mode.current"] == "Enabled" {
		l = warn(l.Name, l.Fact+", split by MIG: its figures are those of a slice",
			fmt.Sprintf("sudo nvidia-smi -i %s -mig 0", r["index"]))
	}
	if busy := r.number("utilization.gpu"); busy >= 5 {
		l = warn(l.Name, fmt.Sprintf("%s, %d %% busy with others' work", l.Fact, busy),
			cmp.Or(l.Hint, "nvidia-smi names the processes; wait for them, or take another GPU: --device cuda:N"))
	}
	return l
}

// clocks tells whether the clocks are held. NVML does not tell of a lock: an idle GPU whose clock is not held falls far
// below its highest.
func clocks(rows []row) Line {
	var facts, loose []string
	for _, r := range rows {
		clock, highest, persistent := r.number("clocks.current.sm"), r.number("clocks.max.sm"),
			r["persistence_mode"] == "Enabled"
		held := "held"
		switch {
		case clock < 0 || highest <= 0:
			held = "not told"
		case r.number("utilization.gpu") >= 5:
			held = "busy, so that one cannot see whether it is held"
		case 2*clock < highest:
			held = "not held"
		}
		if held == "not held" || !persistent {
			loose = append(loose, r["index"])
		}
		if !persistent {
			held += ", persistence mode off"
		}
		facts = append(facts, fmt.Sprintf("gpu %s: SM at %d of %d MHz, %s", r["index"], clock, highest, held))
	}
	text := strings.Join(facts, "; ")
	if len(loose) == 0 {
		return ok("clocks", "%s", text)
	}
	return warn("clocks", text, fmt.Sprintf("for steadier figures: sudo nvidia-smi -pm 1 && sudo nvidia-smi -i %s -lgc "+
		"MHZ; -rgc gives them free", strings.Join(loose, ",")))
}

// counters tells from the driver's parameters whether ncu may read the performance counters.
func counters(params string) Line {
	if regexp.MustCompile(`(?m)^RmProfilingAdminOnly: *0`).MatchString(params) {
		return ok("counters", "every user may read the performance counters")
	}
	return warn("counters", "only root may read the performance counters: for others fisub profile, which runs ncu, "+
		"ends with ERR_NVGPUCTRPERM",
		"run it as root, or put options nvidia NVreg_RestrictProfilingToAdminUsers=0 into /etc/modprobe.d/nvidia.conf and "+
			"reboot")
}

func (x *examination) tools(ctx context.Context) (lines []Line) {
	if x.Tool == nil {
		return nil
	}
	for _, name := range []string{"compute-sanitizer", "ncu"} {
		path, err := x.Tool(name)
		if err != nil {
			lines = append(lines, missing(name, "not on PATH, nor in a toolkit",
				"install the CUDA toolkit and put its bin folder on PATH, or set CUDA_HOME"))
			continue
		}
		l := ok(name, "%s", path)
		out, err := ask(ctx, false, path, "--version")
		if m := regexp.MustCompile(`(?i)version (\d[\w.]*)`).FindStringSubmatch(out); err == nil && m != nil {
			l.Fact = m[1] + " (" + path + ")"
		}
		lines = append(lines, l)
	}
	return lines
}

//go:embed versions.py
var versions string

// packages are those of Python that something needs, with how to get them.
var packages = []struct{ name, hint string }{
	{"torch", "pip install torch"}, {"triton", "pip install triton==" + pyworker.Contest}, {"numpy", "pip install numpy"},
	{"flashinfer-bench", "pip install flashinfer-bench; only to compare with the official harness"},
}

func (x *examination) python(ctx context.Context) []Line {
	path, err := pyworker.Find(ctx)
	why := ""
	if err != nil {
		why = err.Error()
	}
	has := map[string]string{}
	if path != "" {
		out, err := ask(ctx, false, path, "-c", versions)
		for line := range strings.Lines(out) {
			if name, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				has[name] = version
			}
		}
		if err != nil && has["python"] == "" {
			why = fmt.Sprintf("%s: %v", path, err)
		}
	}
	lines := []Line{ok("python", "%s (%s)", has["python"], path)}
	if has["python"] == "" {
		lines[0] = missing("python", why, "install Python 3.9 or later, or set FISUB_PYTHON to one")
	} else if old(has["python"]) {
		lines[0] = missing("python", lines[0].Fact+": 3.9 is the oldest that will do",
			"install a later one, or set FISUB_PYTHON to one")
	}
	for _, p := range packages {
		l := ok(p.name, "%s", has[p.name])
		switch {
		case has[p.name] == "":
			l = missing(p.name, "not among the packages of "+cmp.Or(path, "any Python"), p.hint)
			if path != "" {
				l.Hint = path + " -m " + p.hint
			}
		case p.name == "torch" && has["torch-cuda"] == "none":
			l = warn(p.name, l.Fact+", without CUDA: Triton and Python submissions run on the CPU only",
				"install a torch with CUDA, or set FISUB_PYTHON to a Python that has one")
		case p.name == "triton" && has[p.name] != pyworker.Contest:
			l = warn(p.name, l.Fact+"; the contest has "+pyworker.Contest+", which the first run on the virtual GPU fetches",
				"fisub toolchain install; for a GPU "+path+" -m "+p.hint)
			if t, err := pyworker.FindTriton(ctx, x.Cache); err == nil && t.Folder != "" {
				l = ok(p.name, "%s; on the virtual GPU %s (%s)", has[p.name], pyworker.Contest, t.Folder)
			}
		case p.name == "torch" && has["torch-cuda"] != "":
			l.Fact += ", with CUDA " + has["torch-cuda"]
		}
		lines = append(lines, l)
	}
	return lines
}

func old(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && (major < 3 || major == 3 && minor < 9)
}

// The free space below which a folder is warned of, in bytes: the toolchain takes about 1 GiB, a dataset's inputs more.
const (
	cacheRoom = 4 << 30
	runsRoom  = 1 << 30
)

func (x *examination) storage(context.Context) []Line {
	const hint = "set FISUB_CACHE to a folder that can be written to"
	c := folder("cache", x.Cache, cacheRoom, hint)
	if x.CacheErr != nil {
		c = failed("cache", x.CacheErr, hint)
	}
	return []Line{c, folder("runs", filepath.Join(filepath.Dir(x.Config), runs.Dir), runsRoom,
		"run fisub where the folder of the submission can be written to")}
}

// folder tells whether something can be written below dir, which need not exist, and how much.
func folder(name, dir string, room uint64, hint string) Line {
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
		return missing(name, fmt.Sprintf("%s: cannot be written to: %v", there, plain.Cause(err)), hint)
	}
	f.Close()
	os.Remove(f.Name())
	var st syscall.Statfs_t
	if err := syscall.Statfs(there, &st); err != nil {
		return ok(name, "%s", dir)
	}
	free := st.Bavail * uint64(st.Bsize)
	text := fmt.Sprintf("%s, %.1f GiB free", dir, float64(free)/(1<<30))
	if free < room {
		return warn(name, text, "make room: du -sh "+there)
	}
	return ok(name, "%s", text)
}
