package preflight

import (
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fisub/bench"
	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/preflight/source"
)

// A Kernel is what one kernel takes of a multiprocessor, on one arch.
type Kernel struct {
	Arch string `json:"arch"`
	nvcc.Kernel
	LargestBlock int `json:"largest_block"` // threads that a block can be launched with at most
	// Occupancy with blocks of MaxThreads threads; nil where the launch bounds do not tell
	// the block size, or the arch is not known.
	Occupancy *Occupancy `json:"occupancy,omitempty"`
}

// An Occupancy is the share of a multiprocessor's threads that can be resident at once.
type Occupancy struct {
	Blocks int     `json:"blocks"` // on a multiprocessor
	Share  float64 `json:"share"`  // of its threads, 0 to 1
	Limit  string  `json:"limit"`  // what bounds it: "registers", "shared memory", "threads" or "blocks"
	// Dynamic is how many bytes of dynamic shared memory a launch may ask for so that this holds; nil for a kernel that
	// has no use for any.
	Dynamic *int `json:"dynamic,omitempty"`
}

// A multiprocessor's limits: threads, blocks, shared memory in bytes. Every arch here has 65536 registers, given out to
// a warp in units of 256, and takes 1 KiB of shared memory for each block.
type limits struct{ threads, blocks, shared int }

// Source: CUDA C++ Programming Guide 13.0, section "Compute Capabilities", technical specifications.
var archLimits = map[string]limits{
	"sm_80":  {2048, 32, 164 << 10},
	"sm_86":  {1536, 16, 100 << 10},
	"sm_87":  {1536, 16, 164 << 10},
	"sm_89":  {1536, 24, 100 << 10},
	"sm_90":  {2048, 32, 228 << 10},
	"sm_100": {2048, 32, 228 << 10},
	"sm_103": {2048, 32, 228 << 10},
	"sm_120": {1536, 24, 100 << 10},
}

const (
	registers     = 65536
	registerUnit  = 256
	sharedPerGrid = 1 << 10 // bytes that the system takes of each block's shared memory
	sharedUnit    = 128
)

func up(n, unit int) int { return (n + unit - 1) / unit * unit }

// occupancy is that of a kernel in blocks of so many threads.
func occupancy(arch string, k nvcc.Kernel, threads int) *Occupancy {
	l, ok := archLimits[strings.TrimRight(arch, "af")]
	if !ok || threads <= 0 || k.Registers <= 0 {
		return nil
	}
	warps := up(threads, 32) / 32
	o := &Occupancy{Blocks: l.threads / 32 / warps, Limit: "threads"}
	bound := func(blocks int, by string) {
		if blocks < o.Blocks {
			o.Blocks, o.Limit = blocks, by
		}
	}
	bound(l.blocks, "blocks")
	perWarp := up(k.Registers*32, registerUnit)
	bound(registers/perWarp/4*4/warps, "registers")
	bound(l.shared/up(k.Shared+sharedPerGrid, sharedUnit), "shared memory")
	o.Share = float64(o.Blocks*warps*32) / float64(l.threads)
	if k.Dynamic && o.Blocks > 0 {
		left := l.shared/o.Blocks/sharedUnit*sharedUnit - sharedPerGrid - k.Shared
		o.Dynamic = &left
	}
	return o
}

// build compiles the solution for each arch.
func (c *checker) build(ctx context.Context) error {
	sol := c.Report.Solution
	torch := sol.Spec.Binding == "torch" && (sol.Spec.Language == trace.CUDA || sol.Spec.Language == trace.CPP)
	if !sol.Spec.Compiled() && !torch {
		return c.triton(ctx)
	}
	python := ""
	if torch && len(c.Archs) > 0 {
		python, _ = pyworker.Find(ctx)
	}
	for _, arch := range c.Archs {
		var obj *nvcc.Object
		var err error
		if torch {
			obj, err = nvcc.BuildTorch(ctx, c.Cache, cmp.Or(python, "python3"), sol, arch)
		} else {
			obj, err = nvcc.Build(ctx, c.Cache, sol, arch)
		}
		b := Build{Arch: arch}
		var broken *device.BuildError
		var missing *nvcc.MissingError
		switch {
		case errors.As(err, &missing) && !c.MustCompile:
			hint := "fisub toolchain install fetches what is missing"
			if torch {
				hint = "install torch, or set FISUB_PYTHON to a Python that has it; " + hint
			}
			c.add(Note, "not-compiled", "", hint, "not compiled for %s, so that exports, parameters and what the compiler "+
				"refuses were not looked at: %v", arch, err)
		case errors.As(err, &broken):
			c.broken(arch, broken)
		case err != nil:
			return err
		default:
			b.Toolchain = obj.Toolchain
			c.built(arch, obj, &b)
		}
		c.Builds = append(c.Builds, b)
	}
	return nil
}

// tritonLimit is how long the call may take from whose launches Triton compiles.
const tritonLimit = 10 * time.Minute

// triton has Triton compile, for a B200, what the submission launches on the smallest workload. What it takes as
// arguments and constants only a launch tells, so the entry is called, in a worker, and no kernel is executed.
func (c *checker) triton(ctx context.Context) error {
	sol, def := c.Report.Solution, c.Report.Definition
	if !pyworker.UsesTriton(sol) || len(c.Archs) == 0 || c.MustCompile || def == nil || c.Count(Error) > 0 {
		return nil
	}
	ws, err := c.Dataset.Workloads(def.Name, c.Set)
	if err != nil || len(ws) == 0 {
		return nil // told already
	}
	size := func(w *trace.Workload) (n int) {
		for _, extent := range w.Axes.All() {
			n += extent
		}
		return n
	}
	w := slices.MinFunc(ws, func(a, b *trace.Workload) int { return cmp.Compare(size(a), size(b)) })
	limit, cancel := context.WithTimeout(ctx, tritonLimit)
	defer cancel()
	kernels, tools, err := c.launched(limit, w)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b := Build{Arch: "sm_100a"} // Triton's choice for a B200
	var refused *worker.Error
	switch {
	case errors.As(err, &refused) && (refused.Kind == worker.Build || refused.Code == "other-triton"):
		c.Log += refused.Log
		f := Finding{Code: "does-not-compile", Severity: Error, Msg: refused.Text}
		if refused.Code == "other-triton" {
			f.Code, f.Severity = refused.Code, Warning
			f.Hint = "fisub toolchain install fetches Triton " + pyworker.Contest
		}
		if m := pythonPlace.FindStringSubmatch(refused.Text); m != nil {
			text, _ := c.source(m[1])
			f.Path, f.Msg = c.sourcePath(m[1]), m[4]
			line, _ := strconv.Atoi(m[2])
			col, _ := strconv.Atoi(m[3])
			mark(&f, text, line, col)
		}
		f.Msg += " (Triton, " + b.Arch + ")"
		c.Findings = append(c.Findings, f)
	case err != nil || len(kernels) == 0:
		why := fmt.Sprintf("its call on workload %s launches no kernel", plain.Short(w.UUID))
		if errors.Is(err, context.DeadlineExceeded) {
			why = fmt.Sprintf("its call on workload %s takes longer than %v", plain.Short(w.UUID), tritonLimit)
		} else if err != nil {
			why, _, _ = strings.Cut(err.Error(), "\n")
		}
		hint := ""
		if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "no-") {
			hint = "pip install torch triton==" + pyworker.Contest + ", or set FISUB_PYTHON to a Python that has them"
		}
		c.add(Note, "not-compiled", "", hint, "kernels of Triton were not compiled: %s", why)
	default:
		b.Toolchain = fmt.Sprintf("%s: %s, as workload %s launches them", tools, strings.Join(kernels, ", "),
			plain.Short(w.UUID))
	}
	c.Builds = append(c.Builds, b)
	return nil
}

// launched is what bench.Compile says of the submission; the cache keeps it, but for errors.
func (c *checker) launched(ctx context.Context, w *trace.Workload) (kernels []string, tools string, err error) {
	sol, def := c.Report.Solution, c.Report.Definition
	machine, err := pyworker.Identity(ctx, c.Cache)
	if err != nil {
		return nil, "", err
	}
	key := cache.Key(machine, string(sol.JSON(trace.Compact)), string(def.JSON(trace.Compact)),
		string(w.JSON(trace.Compact)))
	const name = "kernels.json"
	var kept struct {
		Kernels []string `json:"kernels"`
		Tools   string   `json:"tools"`
	}
	dir, _, err := cache.Folder(ctx, c.Cache, "triton", key, func(dir string) error {
		kept.Kernels, kept.Tools, err = bench.Compile(ctx, &bench.Shared{Definition: def, Load: c.Dataset.Load,
			Worker: c.Worker, DeviceKind: "emu", Device: device.Options{CacheDir: c.Cache}}, sol, w)
		if err != nil {
			return err
		}
		data, err := json.Marshal(kept)
		return cmp.Or(err, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	})
	if err != nil {
		return nil, "", err
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, "", err
	}
	err = json.Unmarshal(data, &kept)
	return kept.Kernels, kept.Tools, err
}

// pythonPlace matches the place in what Triton refuses.
var pythonPlace = regexp.MustCompile(`(?s)^([^\s:]+\.py):(\d+)(?::(\d+))?: (.*)$`)

func (c *checker) has(code string) bool {
	return slices.ContainsFunc(c.Findings, func(f Finding) bool { return f.Code == code })
}

var (
	// A message of nvcc's or the host's compiler. Behind it stand the line of the source with a marker, and what led
	// there.
	compileError = regexp.MustCompile(`^([^\s(:][^(:\n]*)(?:\((\d+)\)|:(\d+):(\d+))?: ` +
		`(?:catastrophic |fatal )?error(?: #[0-9-]+D?)?: (.*)$`)
	ledFrom   = regexp.MustCompile(`at line (\d+) of ([^\s"]+)|([^\s:"]+):(\d+):\d+:\s+required from here`)
	undefined = regexp.MustCompile("(?m)undefined reference to [`']([^'\n]+)'")
	multiple  = regexp.MustCompile("(?m)multiple definition of [`']([^'\n]+)'")
	noTarget  = regexp.MustCompile(`not supported on \.target|cannot be compiled for architecture`)
	noHeader  = regexp.MustCompile(`^(\S+): No such file or directory$|cannot open source file "([^"]+)"`)
)

const maxErrors = 10 // of one build that are told

// broken tells a failed build, each error at its place.
func (c *checker) broken(arch string, b *device.BuildError) {
	c.Log += b.Log
	told, places := 0, map[string]bool{}
	tell := func(f Finding) {
		at := fmt.Sprint(f.Path, f.Line) // what follows an error in the same line mostly follows from it
		if f.Line == 0 {
			at += f.Msg
		}
		if f.Msg += " (" + arch + ")"; !places[at] && told < maxErrors {
			places[at] = true
			told++
			c.Findings = append(c.Findings, f)
		}
	}
	lines := strings.Split(b.Log, "\n")
	for i, line := range lines {
		if m := compileError.FindStringSubmatch(line); m != nil && (m[2]+m[3] != "" || m[1] == "ptxas") {
			block := lines[i+1:]
			if end := slices.IndexFunc(block, compileError.MatchString); end >= 0 {
				block = block[:end]
			}
			tell(c.compileFault(m, block))
		}
	}
	for _, m := range append(undefined.FindAllStringSubmatch(b.Log, -1), multiple.FindAllStringSubmatch(b.Log, -1)...) {
		tell(Finding{Code: "does-not-link", Severity: Error, Msg: m[0],
			Hint: "all sources make one library: define it once, in one of them"})
	}
	_, symbol := c.Report.Solution.Entry()
	switch names, mangled := nvcc.Names(b.Exports, symbol); {
	case !strings.HasPrefix(b.Text, "Entry point"):
	case mangled:
		tell(Finding{Code: "export-linkage", Severity: Error, Path: c.sourcePath(c.entryFile()),
			Hint: `declare it extern "C"`, Msg: "__tvm_ffi_" + symbol + ` is not extern "C"`})
	case !c.has("no-export") && !c.has("no-module"):
		f := source.NoExport(c.Report.Solution, names, "")
		f.Path = c.sourcePath(f.Path)
		tell(f)
	default:
		told++
	}
	if told == 0 && !c.has("upper-case-suffix") && !c.has("file-name") {
		tell(Finding{Code: "does-not-compile", Severity: Error, Msg: b.Text})
	}
}

func (c *checker) entryFile() string {
	file, _ := c.Report.Solution.Entry()
	return file
}

// compileFault is the finding of a message, which compileError has matched, and of the lines behind it.
func (c *checker) compileFault(m, block []string) Finding {
	path, msg := filepath.Clean(m[1]), m[5]
	line, _ := strconv.Atoi(m[2] + m[3])
	col, _ := strconv.Atoi(m[4])
	text, own := c.source(path)
	if !own && path != "ptxas" { // a header of the toolchain: the place in the sources that led there
		for _, l := range block {
			if at := ledFrom.FindStringSubmatch(l); at != nil {
				if from, ok := c.source(filepath.Clean(at[2] + at[3])); ok {
					msg += ", in " + filepath.Base(path)
					path, text, own, col = filepath.Clean(at[2]+at[3]), from, true, 0
					line, _ = strconv.Atoi(at[1] + at[4])
				}
			}
		}
	}
	f := Finding{Code: "does-not-compile", Severity: Error, Msg: msg}
	if own {
		f.Path = c.sourcePath(path)
		mark(&f, text, line, col)
	} else if path != "ptxas" {
		f.Msg = filepath.Base(path) + ": " + msg
	}
	header := noHeader.FindStringSubmatch(msg)
	switch {
	case slices.ContainsFunc(slices.Concat(block, []string{msg}), func(l string) bool {
		return strings.Contains(l, "tvm::ffi::TypeTraits<")
	}):
		f.Hint = "tvm-ffi converts no such type: export a host function of tvm::ffi::TensorView and numbers"
	case noTarget.MatchString(msg):
		f.Code, f.Hint = "needs-a-arch", source.NeedsArch("an arch with an \"a\", such as sm_100a")
	case path == "ptxas" || strings.HasPrefix(msg, "Entry function"):
		f.Code = "does-not-assemble"
	case header != nil:
		c.header(&f, header[1]+header[2])
	}
	return f
}

// mark puts f at a line and a column of text, from 1, where it has that line; a column of 0 is where the line's text
// begins.
func mark(f *Finding, text string, line, col int) {
	if lines := strings.SplitAfter(text, "\n"); line > 0 && line <= len(lines) {
		if col == 0 {
			col = 1 + len(lines[line-1]) - len(strings.TrimLeft(lines[line-1], " \t"))
		}
		start := len(strings.Join(lines[:line-1], ""))
		f.Line, f.Col, f.Excerpt = plain.Mark(text, start+min(max(col-1, 0), len(lines[line-1])), start)
	}
}

// source is the text of a packed source.
func (c *checker) source(path string) (string, bool) {
	for _, s := range c.Report.Solution.Sources {
		if filepath.Clean(s.Path) == path {
			return s.Content, true
		}
	}
	return "", false
}

// header says of a finding about a header that it was not found why.
func (c *checker) header(f *Finding, name string) {
	f.Code = "missing-include"
	f.Hint = "put it beside the kernel: the builder looks there, at CUDA's and at tvm-ffi's headers"
	if top, _, _ := strings.Cut(name, "/"); slices.Contains([]string{"torch", "ATen", "c10", "pybind11"}, top) {
		f.Hint = "take tvm::ffi::TensorView and export with TVM_FFI_DLL_EXPORT_TYPED_FUNC, or set binding = \"torch\""
	}
	switch {
	case nvcc.OfImage(name) && (strings.HasPrefix(name, "cutlass/") || strings.HasPrefix(name, "cute/")):
		f.Severity, f.Hint = Warning, "its headers may be used, but whether the contest's compiler finds them is not known: "+
			"copy what is needed beside the kernel, in one folder; CPATH names the folder of yours"
	case nvcc.OfImage(name):
		f.Code, f.Severity, f.Msg = "not-compiled", Note, "not compiled: this toolchain has no "+name
		f.Hint = "set CUDA_HOME to a whole CUDA toolkit"
	}
	if c.leftOut(name) {
		f.Code, f.Severity, f.Msg = "include-dropped", Error, fmt.Sprintf(source.DroppedText, name)
		f.Hint = source.DroppedHint(name)
	}
}

// built looks at a compiled solution.
func (c *checker) built(arch string, obj *nvcc.Object, b *Build) {
	if plainArch := strings.Trim(arch, "0123456789") == "sm_"; plainArch {
		for _, f := range source.Features(c.Report.Solution) {
			f.Path = c.sourcePath(f.Path)
			c.Findings = append(c.Findings, f)
		}
	}
	if obj.Parameters != nil && c.Report.Definition != nil {
		if f := source.Call(c.Report.Solution, c.Report.Definition, *obj.Parameters); f != nil {
			f.Path = c.sourcePath(c.entryFile())
			c.Findings = append(c.Findings, *f)
		}
	}
	for _, k := range obj.Kernels {
		b.Kernels = append(b.Kernels, Cost(arch, k))
		if k.SpillStores+k.SpillLoads > 0 {
			c.add(Warning, "spills", c.sourcePath(k.File), "use fewer registers at once, or raise what __launch_bounds__ allows",
				"%s spills registers on %s: %d bytes of stores, %d of loads for each thread",
				k.Name, arch, k.SpillStores, k.SpillLoads)
		}
		if k.Prints {
			c.add(Note, "printf", c.sourcePath(k.File), source.PrintfHint, source.PrintfText, k.Name)
		}
	}
	if c.Report.Solution.Spec.Binding == "torch" {
		return // torch's own libraries define the rest
	}
	for _, name := range unresolved(obj) {
		c.add(Error, "unresolved-symbol", "", "define it in a source that is compiled (.cu .cpp .cc .cxx .c)",
			"nothing defines %s: the library does not load", name)
	}
}

// unresolved are the symbols of an object that none of the libraries it is loaded with defines.
func unresolved(obj *nvcc.Object) []string {
	f, err := elf.Open(obj.Path)
	if err != nil {
		return nil
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil
	}
	defined := map[string]bool{}
	for _, lib := range obj.Libs {
		l, err := elf.Open(lib)
		if err != nil {
			continue
		}
		own, _ := l.DynamicSymbols()
		for _, s := range own {
			if s.Section != elf.SHN_UNDEF {
				defined[s.Name] = true
			}
		}
		l.Close()
	}
	var names []string
	for _, s := range symbols {
		// The driver, cuBLAS and its like are there when the object is loaded; libc and libstdc++ have versions.
		if s.Section != elf.SHN_UNDEF || elf.ST_BIND(s.Info) != elf.STB_GLOBAL || s.Version != "" || s.Name == "" ||
			defined[s.Name] ||
			strings.HasPrefix(s.Name, "cu") || strings.HasPrefix(s.Name, "nv") || strings.HasPrefix(s.Name, "TVMFFI") {
			continue
		}
		names = append(names, s.Name)
	}
	return nvcc.Demangle(names)
}

// Cost is what k takes of a multiprocessor of that arch.
func Cost(arch string, k nvcc.Kernel) Kernel {
	largest := min(cmp.Or(k.MaxThreads, 1024), nvcc.LargestBlock(k.Registers))
	return Kernel{Arch: arch, Kernel: k, LargestBlock: largest, Occupancy: occupancy(arch, k, k.MaxThreads)}
}

// Text is a kernel in one line.
func (k Kernel) Text() string {
	parts := []string{fmt.Sprintf("%d registers", k.Registers)}
	if k.SpillStores+k.SpillLoads > 0 {
		parts = append(parts, fmt.Sprintf("%d + %d bytes of spills", k.SpillStores, k.SpillLoads))
	}
	if k.Stack > 0 {
		parts = append(parts, fmt.Sprintf("%d bytes of local memory", k.Stack))
	}
	parts = append(parts, fmt.Sprintf("%d bytes shared, %d constant", k.Shared, k.Constant))
	switch allowed := nvcc.LargestBlock(k.Registers); {
	case allowed < cmp.Or(k.MaxThreads, 1024):
		parts = append(parts, fmt.Sprintf("at most %d threads per block with so many registers", allowed))
	case k.MaxThreads > 0:
		parts = append(parts, fmt.Sprintf("at most %d threads per block", k.MaxThreads))
	}
	if o := k.Occupancy; o != nil {
		text := fmt.Sprintf("%s on a multiprocessor, occupancy %.0f %% (%s)", plain.Count(o.Blocks, "block"), 100*o.Share,
			o.Limit)
		if o.Dynamic != nil {
			text += fmt.Sprintf(", while a launch asks for at most %d bytes of dynamic shared memory", *o.Dynamic)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
