package doctor

import (
	"bytes"
	"cmp"
	"context"
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
	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/cuda/stamp"
	"fisub/device/emu"
	"fisub/device/nvcc"
	"fisub/remote/bundle"
)

// An examination is one Examine.
type examination struct{ Options }

// mend is the caller's remedy for err, else another one.
func (x *examination) mend(err error, otherwise string) string {
	if x.Mend != nil {
		return cmp.Or(x.Mend(err), otherwise)
	}
	return otherwise
}

// ask runs a program and gives what it prints on stdout.
func ask(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", errors.New("gives no answer")
	}
	return strings.TrimSpace(string(out)), err
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

func (x *examination) program(context.Context) Line {
	l := Line{Name: "gpu-support", State: OK, Fact: fmt.Sprintf("fisub %s with GPU support, %s/%s", x.Version, runtime.GOOS, runtime.GOARCH)}
	if !x.Built {
		l.State, l.Mend = Missing, "make build"
		l.Fact = fmt.Sprintf("fisub %s was built without GPU support", x.Version)
	}
	return l
}

// found looks for a program on PATH and asks it for its version.
func found(ctx context.Context, name, mend string, version ...string) Line {
	l := Line{Name: name}
	path, err := exec.LookPath(name)
	if err != nil {
		l.State, l.Fact, l.Mend = Missing, "not on PATH", mend
		return l
	}
	l.State, l.Fact = OK, path
	cmd := exec.CommandContext(ctx, path, version...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err == nil { // ssh tells its version on stderr
		l.Fact = firstLine(string(out)) + " (" + path + ")"
	}
	return l
}

func (x *examination) git(ctx context.Context) Line {
	return found(ctx, "git", "apt-get install git", "--version")
}

func (x *examination) ssh(ctx context.Context) Line {
	return found(ctx, "ssh", "apt-get install openssh-client; only hosts over SSH need it", "-V")
}

func (x *examination) slurm(ctx context.Context) Line {
	return found(ctx, "sbatch", `name a login host in [remote.NAME]; only provider = "slurm" without one needs it here`, "--version")
}

func (x *examination) compiler(ctx context.Context) Line {
	d, err := emu.Opener().Open(ctx, device.Options{CacheDir: x.Cache})
	if err != nil {
		return Line{Name: "compiler", State: Missing, Fact: err.Error(), Mend: x.mend(err, "apt-get install g++")}
	}
	defer d.Close()
	return Line{Name: "compiler", State: OK, Fact: d.Info().Toolchain + ", for the emulator"}
}

// toolchain tells of the CUDA compiler, TVM-FFI, CUPTI, which comes with it, and of what fisub remote makes with them.
func (x *examination) toolchain(ctx context.Context) []Line {
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
		late := Line{State: Missing, Fact: "looking for it takes too long"}
		lines := []Line{late, late, late}
		lines[0].Name, lines[1].Name, lines[2].Name = "nvcc", "tvm-ffi", "bundle"
		return lines
	}
	cc, ffi := Line{Name: "nvcc"}, Line{Name: "tvm-ffi"}
	var missing *nvcc.MissingError
	switch {
	case err == nil:
		cc.State, cc.Fact = OK, fmt.Sprintf("%s, for CUDA %s (%s)", t.Version, t.CUDAVersion, t.NVCC)
		ffi.State, ffi.Fact = OK, fmt.Sprintf("%s (%s)", t.TVMFFIVersion, t.TVMFFI)
	case errors.As(err, &missing):
		var lacks []string
		ffi.State, ffi.Fact = OK, "found"
		for _, m := range missing.Missing {
			if strings.HasPrefix(m, "tvm-ffi") {
				ffi.State, ffi.Fact, ffi.Mend = Missing, "no "+m, "fisub toolchain install"
			} else {
				lacks = append(lacks, m)
			}
		}
		cc.State, cc.Fact = OK, "found"
		if len(lacks) > 0 {
			cc.State, cc.Fact, cc.Mend = Missing, "no "+strings.Join(lacks, ", "), "fisub toolchain install"
			if len(lacks) == 1 && strings.HasPrefix(lacks[0], "a C++ compiler") {
				cc.Mend = "apt-get install g++"
			}
		}
	default:
		cc.State, cc.Fact = Missing, err.Error()
		ffi = cc
		ffi.Name = "tvm-ffi"
	}
	cupti := Line{Name: "cupti", State: Missing, Fact: "no libcupti.so.12 or .13 in the toolkit's folders", Mend: "fisub toolchain install; without it CUDA events time, launch included"}
	for _, dir := range append(cuda.CUPTIDirs(x.Cache, t), "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu") {
		for _, name := range []string{"libcupti.so.13", "libcupti.so.12"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil && cupti.State != OK {
				cupti = Line{Name: "cupti", State: OK, Fact: filepath.Join(dir, name)}
			}
		}
	}
	send := Line{Name: "bundle", State: OK, Fact: "this program and kernels that are compiled here can be sent to hosts with a GPU"}
	if ready != nil {
		send.State, send.Fact, send.Mend = Missing, ready.Error(), x.mend(ready, "")
	}
	return []Line{cc, ffi, cupti, send}
}

// The driver's own words, where it has them.
const driverFolder = "/proc/driver/nvidia"

// gpu tells of the driver, the GPUs, NVML, the clocks and the performance counters; without a driver of nothing but it.
func (x *examination) gpu(ctx context.Context) []Line {
	rows, smiErr := smi(ctx)
	version := driverVersion()
	if version == "" && len(rows) > 0 {
		version = rows[0].driver
	}
	driver := Line{Name: "driver", State: OK, Fact: "NVIDIA " + version}
	if version == "" {
		driver.State, driver.Fact, driver.Mend = Missing, "no NVIDIA driver", "install one (https://www.nvidia.com/drivers), or in a container start it with the GPUs; fisub remote uses other hosts' GPUs"
	}
	open := Line{Name: "gpu"}
	if x.OpenGPU != nil {
		info, err := x.OpenGPU(ctx)
		if err == nil {
			open.State, open.Fact = OK, fmt.Sprintf("cuda:%d %s, %s, %.0f GiB, CUDA %s", info.Ordinal, info.Name, info.Arch, float64(info.MemoryBytes)/(1<<30), info.CUDA)
			open.Fact = strings.TrimSuffix(open.Fact, ", CUDA ")
		} else {
			open.State, open.Fact, open.Mend = Missing, err.Error(), x.mend(err, "nvidia-smi shows what the driver sees")
		}
	}
	lines := []Line{driver}
	if open.State != "" {
		lines = append(lines, open)
	}
	if version == "" {
		return lines
	}
	for _, r := range rows {
		lines = append(lines, r.line())
	}
	if smiErr != nil {
		lines = append(lines, Line{Name: "nvidia-smi", State: Warn, Fact: smiErr.Error(), Mend: "put it on PATH: it comes with the driver"})
	}
	lines = append(lines, nvml())
	if len(rows) > 0 {
		lines = append(lines, clocks(rows))
	}
	if params, err := os.ReadFile(driverFolder + "/params"); err == nil {
		status, _ := os.ReadFile("/proc/self/status")
		lines = append(lines, counters(string(params), string(status)))
	}
	return lines
}

func driverVersion() string {
	text, err := os.ReadFile(driverFolder + "/version")
	if err != nil {
		return ""
	}
	return cmp.Or(regexp.MustCompile(`\b\d+\.\d+(\.\d+)?\b`).FindString(firstLine(string(text))), "of unknown version")
}

// A row is a GPU as nvidia-smi tells of it.
type row struct {
	index, name, driver, arch, mig     string
	memory, used                       int // MiB
	persistent                         bool
	clock, highest, application, usage int // MHz, and per cent; -1 where it is not told
}

var smiFields = []string{"index", "name", "driver_version", "compute_cap", "mig.mode.current", "memory.total", "memory.used", "persistence_mode",
	"clocks.current.sm", "clocks.max.sm", "clocks.applications.graphics", "utilization.gpu"}

func smi(ctx context.Context) ([]row, error) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, errors.New("nvidia-smi is not on PATH")
	}
	out, err := ask(ctx, path, "--query-gpu="+strings.Join(smiFields, ","), "--format=csv,noheader,nounits")
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = errors.New(cmp.Or(firstLine(out), firstLine(string(exit.Stderr)), err.Error()))
		}
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	return readSMI(out)
}

func readSMI(out string) (rows []row, err error) {
	r := csv.NewReader(bytes.NewReader([]byte(out)))
	r.TrimLeadingSpace = true
	r.FieldsPerRecord = len(smiFields)
	records, err := r.ReadAll()
	if err != nil {
		return nil, errors.New("nvidia-smi prints something else than a table")
	}
	for _, f := range records {
		number := func(i int) int {
			n, err := strconv.Atoi(f[i])
			if err != nil {
				return -1
			}
			return n
		}
		rows = append(rows, row{index: f[0], name: f[1], driver: f[2], arch: "sm_" + strings.ReplaceAll(f[3], ".", ""), mig: f[4], memory: number(5), used: number(6),
			persistent: f[7] == "Enabled", clock: number(8), highest: number(9), application: number(10), usage: number(11)})
	}
	return rows, nil
}

// line warns of what disturbs a measurement.
func (r row) line() Line {
	l := Line{Name: "gpu." + r.index, State: OK, Fact: fmt.Sprintf("%s, %s, %d of %d MiB used", r.name, r.arch, max(r.used, 0), max(r.memory, 0))}
	if r.mig == "Enabled" {
		l.State, l.Fact, l.Mend = Warn, l.Fact+", split by MIG: its figures are those of a slice", fmt.Sprintf("sudo nvidia-smi -i %s -mig 0", r.index)
	}
	if r.usage >= 5 {
		l.State, l.Mend = Warn, cmp.Or(l.Mend, "nvidia-smi names the processes; wait for them, or take another GPU: --device cuda:N")
		l.Fact += fmt.Sprintf(", %d %% busy with others' work", r.usage)
	}
	return l
}

// clocks tells whether the clocks are held. NVML does not tell of a lock: an idle GPU whose clock is not held falls far below
// its highest.
func clocks(rows []row) Line {
	l := Line{Name: "clocks", State: OK}
	var facts, loose []string
	for _, r := range rows {
		fact := fmt.Sprintf("gpu %s: SM at %d of %d MHz", r.index, r.clock, r.highest)
		if r.application > 0 {
			fact += fmt.Sprintf(", application clock %d", r.application)
		}
		switch {
		case r.clock < 0 || r.highest <= 0:
			fact = fmt.Sprintf("gpu %s: not told", r.index)
		case r.usage >= 5:
			fact += ", busy, so that one cannot see whether it is held"
		case 2*r.clock < r.highest:
			fact += ", not held"
			loose = append(loose, r.index)
		default:
			fact += ", held"
		}
		if !r.persistent {
			fact += ", persistence mode off"
			if len(loose) == 0 || loose[len(loose)-1] != r.index {
				loose = append(loose, r.index)
			}
		}
		facts = append(facts, fact)
	}
	l.Fact = strings.Join(facts, "; ")
	if len(loose) > 0 {
		l.State = Warn
		l.Mend = fmt.Sprintf("for steadier figures: sudo nvidia-smi -pm 1 && sudo nvidia-smi -i %s -lgc MHZ; -rgc gives them free", strings.Join(loose, ","))
	}
	return l
}

func nvml() Line {
	gpus, err := stamp.GPUs()
	if err != nil {
		return Line{Name: "nvml", State: Warn, Fact: err.Error() + ": runs have no clocks, temperature and other processes in their stamp", Mend: "make build, with the driver's libnvidia-ml.so.1 in the loader's path"}
	}
	others := 0
	for _, g := range gpus {
		others += len(g.Processes)
	}
	l := Line{Name: "nvml", State: OK, Fact: fmt.Sprintf("tells of %d GPUs, no process computes on them", len(gpus))}
	if others > 0 {
		l.State, l.Fact, l.Mend = Warn, fmt.Sprintf("tells of %d GPUs, and of %d processes that compute on them", len(gpus), others), "nvidia-smi names them: figures are disturbed while they run"
	}
	return l
}

// capSysAdmin is the capability that the driver asks for.
const capSysAdmin = 21

// counters tells from the driver's parameters and this process's status whether ncu may read the performance counters.
func counters(params, status string) Line {
	l := Line{Name: "counters", State: OK, Fact: "every user may read the performance counters"}
	only := ""
	for line := range strings.Lines(params) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == "RmProfilingAdminOnly" {
			only = strings.TrimSpace(value)
		}
	}
	if only == "0" {
		return l
	}
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			if bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil && bits>>capSysAdmin&1 == 1 {
				l.Fact = "only root may read the performance counters, and this is root"
				return l
			}
		}
	}
	l.State, l.Fact = Warn, "only root may read the performance counters: fisub profile, which runs ncu, cannot (ERR_NVGPUCTRPERM)"
	l.Mend = "run it as root, or put options nvidia NVreg_RestrictProfilingToAdminUsers=0 into /etc/modprobe.d/nvidia.conf and reboot"
	return l
}

func (x *examination) tools(ctx context.Context) (lines []Line) {
	if x.Tool == nil {
		return nil
	}
	for _, name := range []string{"compute-sanitizer", "ncu"} {
		path, err := x.Tool(name)
		if err != nil {
			lines = append(lines, Line{Name: name, State: Missing, Fact: "not on PATH, nor in a toolkit", Mend: "install the CUDA toolkit and put its bin folder on PATH, or set CUDA_HOME"})
			continue
		}
		l := Line{Name: name, State: OK, Fact: path}
		out, err := ask(ctx, path, "--version")
		if m := regexp.MustCompile(`(?i)version (\d[\w.]*)`).FindStringSubmatch(out); err == nil && m != nil {
			l.Fact = m[1] + " (" + path + ")"
		}
		lines = append(lines, l)
	}
	return lines
}

// versions prints what Python and its packages are, without importing them.
const versions = `import sys, importlib.metadata as m, importlib.util as u, os, re
print("python", "%d.%d.%d" % sys.version_info[:3])
for name, package in (("torch", "torch"), ("triton", "triton"), ("numpy", "numpy"), ("flashinfer-bench", "flashinfer_bench")):
    try:
        if u.find_spec(package) is None:
            continue
        print(name, m.version(name))
    except m.PackageNotFoundError:
        print(name, "of unknown version")
    except Exception:
        pass
try:
    with open(os.path.join(u.find_spec("torch").submodule_search_locations[0], "version.py")) as f:
        found = re.search(r"^cuda\b[^=]*= *['\"]([0-9.]+)", f.read(), re.M)
    print("torch-cuda", found.group(1) if found else "none")
except Exception:
    pass
`

func (x *examination) python(ctx context.Context) []Line {
	mends := []struct{ name, mend string }{{"torch", "pip install torch"}, {"triton", "pip install triton"}, {"numpy", "pip install numpy"},
		{"flashinfer-bench", "pip install flashinfer-bench; only to compare with the official harness"}}
	path, err := pyworker.Find(ctx)
	why := ""
	if err != nil {
		why = err.Error()
		names := []string{"python3", "python"}
		if named := os.Getenv("FISUB_PYTHON"); named != "" {
			names = []string{named}
		}
		for _, name := range names {
			if p, err := exec.LookPath(name); err == nil && path == "" {
				path = p
			}
		}
	}
	has := map[string]string{}
	if path != "" {
		out, err := ask(ctx, path, "-c", versions)
		for line := range strings.Lines(out) {
			if name, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				has[name] = version
			}
		}
		if err != nil && has["python"] == "" {
			why = fmt.Sprintf("%s: %v", path, err)
		}
	}
	l := Line{Name: "python", State: OK, Fact: fmt.Sprintf("%s (%s)", has["python"], path)}
	if has["python"] == "" {
		l.State, l.Fact, l.Mend = Missing, why, "install Python 3.9 or later, or set FISUB_PYTHON to one"
	} else if old(has["python"]) {
		l.State, l.Fact, l.Mend = Missing, l.Fact+": 3.9 is the oldest that will do", "install a later one, or set FISUB_PYTHON to one"
	}
	lines := []Line{l}
	for _, p := range mends {
		version := has[p.name]
		l := Line{Name: p.name, State: OK, Fact: version}
		switch {
		case version == "":
			l.State, l.Fact, l.Mend = Missing, "not among the packages of "+cmp.Or(path, "any Python"), p.mend
			if path != "" && strings.HasPrefix(p.mend, "pip ") {
				l.Mend = path + " -m " + p.mend
			}
		case p.name == "torch" && has["torch-cuda"] == "none":
			l.State, l.Fact, l.Mend = Warn, version+", without CUDA: Triton and Python submissions run on the CPU only", "install a torch with CUDA, or set FISUB_PYTHON to a Python that has one"
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

// walkLimit is how long the cache is counted.
const walkLimit = time.Second

func (x *examination) storage(ctx context.Context) []Line {
	c := Line{Name: "cache", State: Missing, Mend: "set FISUB_CACHE to a folder that can be written to"}
	if x.CacheErr != nil {
		c.Fact = x.CacheErr.Error()
	} else {
		c = folder("cache", x.Cache, cacheRoom, c.Mend)
		if c.State != Missing {
			size, whole := count(ctx, x.Cache)
			more := ""
			if !whole {
				more = "more than "
			}
			c.Fact += fmt.Sprintf(", it holds %s%s", more, bytesText(size))
		}
	}
	r := folder("runs", filepath.Join(x.Folder, runs.Dir), runsRoom, "run fisub where the folder of the submission can be written to")
	return []Line{c, r}
}

// folder tells whether something can be written below dir, which need not exist, and how much.
func folder(name, dir string, room uint64, mend string) Line {
	l := Line{Name: name, State: OK}
	there := dir
	for {
		st, err := os.Stat(there)
		if err == nil && st.IsDir() {
			break
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil {
			if err == nil {
				err = fmt.Errorf("%s: not a folder", there)
			}
			return Line{Name: name, State: Missing, Fact: err.Error(), Mend: mend}
		}
		up := filepath.Dir(there)
		if up == there {
			break
		}
		there = up
	}
	f, err := os.CreateTemp(there, ".fisub-doctor-*")
	if err != nil {
		var perr *fs.PathError
		if errors.As(err, &perr) {
			err = perr.Err
		}
		return Line{Name: name, State: Missing, Fact: fmt.Sprintf("%s: cannot be written to: %v", there, err), Mend: mend}
	}
	f.Close()
	os.Remove(f.Name())
	l.Fact = dir
	var st syscall.Statfs_t
	if err := syscall.Statfs(there, &st); err == nil {
		free := st.Bavail * uint64(st.Bsize)
		l.Fact += fmt.Sprintf(", %s free", bytesText(int64(min(free, 1<<62))))
		if free < room {
			l.State, l.Mend = Warn, "make room: du -sh "+there
		}
	}
	return l
}

// count adds up the files below dir; whole is false where it took too long.
func count(ctx context.Context, dir string) (size int64, whole bool) {
	ctx, cancel := context.WithTimeout(ctx, walkLimit)
	defer cancel()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				size += st.Size()
			}
		}
		return nil
	})
	return size, err == nil
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", (n+1023)>>10)
}
