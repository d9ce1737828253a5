package preflight

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fisub/device"
	"fisub/device/nvcc"
)

// A Kernel is what one kernel takes of a multiprocessor, on one arch.
type Kernel struct {
	Arch string `json:"arch"`
	nvcc.Kernel
	// Occupancy with blocks of MaxThreads threads and no dynamic shared memory; nil where the launch bounds do not tell
	// the block size, or the arch is not known.
	Occupancy *Occupancy `json:"occupancy,omitempty"`
}

// An Occupancy is the share of a multiprocessor's threads that can be resident at once.
type Occupancy struct {
	Blocks int     `json:"blocks"` // on a multiprocessor
	Share  float64 `json:"share"`  // of its threads, 0 to 1
	Limit  string  `json:"limit"`  // what bounds it: "registers", "shared memory", "threads" or "blocks"
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
	return o
}

// build compiles the solution for each arch.
func (c *checker) build(ctx context.Context) error {
	sol := c.Report.Solution
	if !sol.Spec.Compiled() {
		return nil
	}
	for _, arch := range c.Archs {
		obj, err := nvcc.Build(ctx, c.Cache, sol, arch)
		b := Build{Arch: arch}
		var broken *device.BuildError
		var missing *nvcc.MissingError
		switch {
		case errors.As(err, &missing) && !c.MustCompile:
			c.add(Note, "not-compiled", "", "fisub toolchain install fetches what is missing", "not compiled for %s: %v", arch,
				err)
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

func (c *checker) has(code string, path string, line int) bool {
	return slices.ContainsFunc(c.Findings, func(f Finding) bool {
		return f.Code == code && (path == "" || f.Path == path && f.Line == line)
	})
}

var (
	nvccError = regexp.MustCompile(`(?m)^([^\s(:][^(:\n]*)` +
		`(?:\((\d+)\)|:(\d+):(\d+)): (?:catastrophic |fatal )?error(?: #[0-9-]+D?)?: (.*)$`)
	ptxError  = regexp.MustCompile(`(?m)^ptxas .*?; (?:error|fatal)\s*: (.*)$|^ptxas (?:error|fatal)\s*: (.*)$`)
	undefined = regexp.MustCompile("(?m)undefined reference to [`']([^'\n]+)'")
	multiple  = regexp.MustCompile("(?m)multiple definition of [`']([^'\n]+)'")
)

// toolkitHeader matches headers of the libraries of a CUDA toolkit, which the wheels of a toolchain need not have.
var toolkitHeader = regexp.MustCompile(`\b(?:cublas\w*|curand\w*|cusparse\w*|cusolver\w*|cufft\w*|nvrtc|npp\w*|` +
	`nvJitLink)\.h\b|\bnvtx3/[\w.]+`)

const maxErrors = 10 // of one build that are told

// broken tells a failed build, each error at its place; what was told already, without compiling, is not told again.
func (c *checker) broken(arch string, b *device.BuildError) {
	told := 0
	tell := func(f Finding) {
		if told++; told <= maxErrors && !slices.Contains(c.Findings, f) {
			c.Findings = append(c.Findings, f)
		}
	}
	for _, m := range nvccError.FindAllStringSubmatch(b.Log, -1) {
		path := c.sourcePath(filepath.Clean(m[1]))
		line, _ := strconv.Atoi(m[2] + m[3])
		col, _ := strconv.Atoi(m[4])
		if c.has("missing-include", path, line) || c.has("include-dropped", path, line) {
			told++
			continue
		}
		code, hint := "does-not-compile", ""
		if lib := toolkitHeader.FindString(m[5]); lib != "" && strings.Contains(m[5], "o such file") {
			told++
			text := fmt.Sprintf("not compiled for %s: this toolchain has no %s, the contest's has", arch, lib)
			c.Findings = append(c.Findings, Finding{Code: "not-compiled", Severity: Note, Path: path, Line: line,
				Col: max(col, 1), Msg: text, Hint: "set CUDA_HOME to a whole CUDA toolkit"})
			continue
		}
		if strings.Contains(m[5], "o such file or directory") || strings.Contains(m[5], "cannot open source file") {
			code = "missing-include"
			hint = "put it beside the kernel: the builder looks there, at CUDA's and at tvm-ffi's headers"
		}
		tell(Finding{Code: code, Severity: Error, Path: path, Line: line, Col: max(col, 1), Msg: m[5] + " (" + arch + ")",
			Hint: hint})
	}
	for _, m := range ptxError.FindAllStringSubmatch(b.Log, -1) {
		if text := m[1] + m[2]; strings.Contains(text, "not supported on .target") && c.has("needs-a-arch", "", 0) ||
			strings.Contains(text, "due to errors") {
			told++
		} else {
			tell(Finding{Code: "does-not-assemble", Severity: Error, Msg: text + " (" + arch + ")"})
		}
	}
	for _, m := range append(undefined.FindAllStringSubmatch(b.Log, -1), multiple.FindAllStringSubmatch(b.Log, -1)...) {
		tell(Finding{Code: "does-not-link", Severity: Error, Msg: m[0] + " (" + arch + ")",
			Hint: "all sources make one library: define it once, in one of them"})
	}
	if strings.HasPrefix(b.Text, "Entry point") && slices.ContainsFunc([]string{"no-export", "export-linkage",
		"entry-point", "global-export"}, func(code string) bool { return c.has(code, "", 0) }) {
		return
	}
	if told == 0 && !c.has("upper-case-suffix", "", 0) && !c.has("file-name", "", 0) {
		tell(Finding{Code: "does-not-compile", Severity: Error, Msg: b.Text + " (" + arch + ")"})
	}
	c.Log += b.Log
}

// built looks at a compiled solution.
func (c *checker) built(arch string, obj *nvcc.Object, b *Build) {
	if !strings.HasSuffix(arch, "a") && !strings.HasSuffix(arch, "f") {
		// The compiler knows better what is compiled in the end.
		c.Findings = slices.DeleteFunc(c.Findings, func(f Finding) bool {
			return f.Code == "needs-a-arch" && f.Severity == Error
		})
	}
	for _, k := range obj.Kernels {
		b.Kernels = append(b.Kernels, Kernel{Arch: arch, Kernel: k, Occupancy: occupancy(arch, k, k.MaxThreads)})
		if k.SpillStores+k.SpillLoads > 0 {
			c.add(Warning, "spills", c.sourcePath(k.File), "use fewer registers at once, or raise what __launch_bounds__ allows",
				"%s spills registers on %s: %d bytes of stores, %d of loads for each thread",
				k.Name, arch, k.SpillStores, k.SpillLoads)
		}
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

// Text is a kernel in one line.
func (k Kernel) Text() string {
	parts := []string{fmt.Sprintf("%d registers", k.Registers)}
	if k.SpillStores+k.SpillLoads > 0 {
		parts = append(parts, fmt.Sprintf("%d + %d bytes of spills", k.SpillStores, k.SpillLoads))
	}
	parts = append(parts, fmt.Sprintf("%d bytes shared, %d constant", k.Shared, k.Constant))
	if k.MaxThreads > 0 {
		parts = append(parts, fmt.Sprintf("at most %d threads", k.MaxThreads))
	}
	if o := k.Occupancy; o != nil {
		parts = append(parts, fmt.Sprintf("%d blocks on a multiprocessor, occupancy %.0f %% (%s)", o.Blocks, 100*o.Share,
			o.Limit))
	}
	return strings.Join(parts, ", ")
}
