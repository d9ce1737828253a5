package preflight

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fisub/bench/pyworker"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/project/preflight/source"
)

// A CompiledKernel is a kernel compiled for one arch.
type CompiledKernel struct {
	Arch string `json:"arch"`
	nvcc.Resources
}

func (c *checker) build(ctx context.Context) error {
	sol := c.Report.Solution
	torch := sol.Spec.Binding == "torch" && (sol.Spec.Language == trace.CUDA || sol.Spec.Language == trace.CPP)
	if !sol.Spec.Compiled() && !torch {
		compiler := ""
		if pyworker.UsesTriton(sol) {
			compiler = "Triton"
		} else if sol.Spec.Language == trace.TileLang {
			compiler = "TileLang"
		}
		if compiler != "" && len(c.Archs) > 0 {
			advice := "fisub local --device emu --limit 1 compiles and runs them"
			if _, err := pyworker.Find(ctx); hint.Of(err) != "" {
				advice = hint.Of(err) + "; then " + advice
			}
			c.add(Note, "compiled-when-called", "", advice, "not compiled: %s compiles kernels at the first call", compiler)
		}
		return nil
	}
	python := ""
	if torch && len(c.Archs) > 0 {
		python, _ = pyworker.Find(ctx)
	}
	tools, _ := nvcc.Find(c.Cache) // Build returns the error
	_, gpu := os.Stat("/dev/nvidiactl")
	for _, arch := range c.Archs {
		var obj *nvcc.Object
		var err error
		if torch {
			obj, err = nvcc.BuildTorch(ctx, c.Cache, cmp.Or(python, "python3"), sol, arch)
		} else {
			obj, err = nvcc.BuildShared(ctx, c.Cache, tools, sol, arch, gpu == nil)
		}
		b := Build{Arch: arch}
		broken, failed := errors.AsType[*device.BuildError](err)
		missing, lacking := errors.AsType[*nvcc.MissingError](err)
		switch {
		case lacking && !c.MustCompile:
			advice := missing.Advice()
			if torch {
				advice = "install torch, or set FISUB_PYTHON to a Python with torch; " + advice
			}
			c.add(Note, "not-compiled", "", advice, "not compiled for %s, so exports, parameters and compile errors were not "+
				"checked: %v", arch, err)
		case failed:
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

func (c *checker) has(code string) bool {
	return slices.ContainsFunc(c.Findings, func(f Finding) bool { return f.Code == code })
}

var (
	// A message of nvcc or the host compiler. The source line with a marker follows it, then the lines that led there.
	compileError   = regexp.MustCompile(messagePlace + `(?:catastrophic |fatal )?error(?: #[0-9-]+D?)?: (.*)$`)
	compileWarning = regexp.MustCompile(messagePlace + `(warning\b.*)$`)

	ledFrom   = regexp.MustCompile(`at line (\d+) of ([^\s"]+)|([^\s:"]+):(\d+):\d+:\s+required from here`)
	undefined = regexp.MustCompile("(?m)undefined reference to [`']([^'\n]+)'")
	multiple  = regexp.MustCompile("(?m)multiple definition of [`']([^'\n]+)'")
	noTarget  = regexp.MustCompile(`not supported on \.target|cannot be compiled for architecture`)
	noHeader  = regexp.MustCompile(`^(\S+): No such file or directory$|cannot open source file "([^"]+)"`)
)

const messagePlace = `^([^\s(:][^(:\n]*)(?:\((\d+)\)|:(\d+):(\d+))?: `

const maxErrors = 10 // of one build

// emptyKernel matches the symbol of a kernel that cub, and thus torch's headers, adds to every source.
var emptyKernel = regexp.MustCompile(`^_ZN3cub\w*11EmptyKernelI`)

// broken adds the findings of a failed build, each error at its place.
func (c *checker) broken(arch string, b *device.BuildError) {
	c.Log += b.Log
	added, places := 0, map[string]bool{}
	add := func(f Finding) {
		at := fmt.Sprint(f.Path, f.Line) // later errors in the same line are mostly consequences
		if f.Line == 0 {
			at += f.Msg
		}
		if f.Msg += " (" + arch + ")"; !places[at] && added < maxErrors {
			places[at] = true
			added++
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
			add(c.compileFault(m, block))
		}
	}
	for _, m := range append(undefined.FindAllStringSubmatch(b.Log, -1), multiple.FindAllStringSubmatch(b.Log, -1)...) {
		add(Finding{Code: "does-not-link", Severity: Error, Msg: m[0],
			Hint: "all sources form one library: define it in only one of them"})
	}
	_, symbol := c.Report.Solution.Entry()
	switch names, mangled := nvcc.Names(b.Exports, symbol); {
	case !strings.HasPrefix(b.Text, "Entry point"):
	case mangled:
		add(Finding{Code: "export-linkage", Severity: Error, Path: c.sourcePath(c.entryFile()),
			Hint: `declare it extern "C"`, Msg: "__tvm_ffi_" + symbol + ` is not extern "C"`})
	case !c.has("no-export") && !c.has("no-module"):
		f := source.NoExport(c.Report.Solution, names, "")
		f.Path = c.sourcePath(f.Path)
		add(f)
	default:
		added++
	}
	if added == 0 && !c.has("upper-case-suffix") && !c.has("file-name") {
		add(Finding{Code: "does-not-compile", Severity: Error, Msg: b.Text})
	}
}

func (c *checker) entryFile() string {
	file, _ := c.Report.Solution.Entry()
	return file
}

// compileFault returns the finding for a match of compileError and the lines after it.
func (c *checker) compileFault(m, block []string) Finding {
	path, line, col := place(m)
	msg := m[5]
	text, own := c.source(path)
	if !own && path != "ptxas" { // in a toolchain header: find the line that led there
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
		f.Hint = "tvm-ffi cannot convert this type: export a host function of tvm::ffi::TensorView and numbers"
	case noTarget.MatchString(msg):
		f.Code, f.Hint = "needs-a-arch", source.NeedsArch("an arch with an \"a\", such as sm_100a")
	case path == "ptxas" || strings.HasPrefix(msg, "Entry function"):
		f.Code = "does-not-assemble"
	case header != nil:
		c.header(&f, header[1]+header[2])
	}
	return f
}

// place returns the file, line and column of a match of messagePlace; 0 if unknown.
func place(m []string) (path string, line, col int) {
	line, _ = strconv.Atoi(m[2] + m[3])
	col, _ = strconv.Atoi(m[4])
	return filepath.Clean(m[1]), line, col
}

// warned adds the compiler's warnings about the solution's own files.
func (c *checker) warned(log string) {
	for text := range strings.SplitSeq(log, "\n") {
		m := compileWarning.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		path, line, col := place(m)
		f := Finding{Code: "compiler-warning", Severity: Note, Msg: m[5]}
		if text, own := c.source(path); own {
			f.Path = c.sourcePath(path)
			mark(&f, text, line, col)
		} else if path != "ptxas" {
			continue
		}
		if !slices.Contains(c.Findings, f) { // host and device passes, and each arch
			c.Findings = append(c.Findings, f)
		}
	}
}

// mark sets the place of f to a line and a column of text, from 1, if the line exists. Column 0 means the start of the
// line's text.
func mark(f *Finding, text string, line, col int) {
	if lines := strings.SplitAfter(text, "\n"); line > 0 && line <= len(lines) {
		if col == 0 {
			col = 1 + len(lines[line-1]) - len(strings.TrimLeft(lines[line-1], " \t"))
		}
		start := len(strings.Join(lines[:line-1], ""))
		f.Line, f.Col, f.Excerpt = plain.Mark(text, start+min(max(col-1, 0), len(lines[line-1])), start)
	}
}

func (c *checker) source(path string) (string, bool) {
	for _, s := range c.Report.Solution.Sources {
		if filepath.Clean(s.Path) == path {
			return s.Content, true
		}
	}
	return "", false
}

// header completes a finding about a missing header with the reason.
func (c *checker) header(f *Finding, name string) {
	f.Code = "missing-include"
	f.Hint = "put it next to the kernel: the builder searches there and in the headers of CUDA and tvm-ffi"
	if top, _, _ := strings.Cut(name, "/"); slices.Contains([]string{"torch", "ATen", "c10", "pybind11"}, top) {
		f.Hint = "use tvm::ffi::TensorView and TVM_FFI_DLL_EXPORT_TYPED_FUNC, or set binding = \"torch\""
	}
	switch {
	case nvcc.OfImage(name) && (strings.HasPrefix(name, "cutlass/") || strings.HasPrefix(name, "cute/")):
		f.Severity, f.Hint = Warning, "its headers are allowed, but the contest's compiler may not find them: copy the "+
			"needed ones next to the kernel, in one folder; set CPATH to your folder"
	case nvcc.OfImage(name):
		f.Code, f.Severity, f.Msg = "not-compiled", Note, "not compiled: the toolchain has no "+name
		f.Hint = "set CUDA_HOME to a complete CUDA toolkit"
	}
	if c.leftOut(name) {
		f.Code, f.Severity, f.Msg = "include-dropped", Error, fmt.Sprintf(source.DroppedText, name)
		f.Hint = source.DroppedHint(name)
	}
}

func (c *checker) built(arch string, obj *nvcc.Object, b *Build) {
	if plainArch := strings.Trim(arch, "0123456789") == "sm_"; plainArch {
		for _, f := range source.Features(c.Report.Solution) {
			f.Path = c.sourcePath(f.Path)
			c.Findings = append(c.Findings, f)
		}
	}
	c.warned(obj.Log)
	if obj.Parameters != nil && c.Report.Definition != nil {
		if f := source.Call(c.Report.Solution, c.Report.Definition, *obj.Parameters); f != nil {
			f.Path = c.sourcePath(c.entryFile())
			c.Findings = append(c.Findings, *f)
		}
	}
	for _, k := range obj.Kernels {
		if !emptyKernel.MatchString(k.Symbol) {
			b.Kernels = append(b.Kernels, CompiledKernel{arch, k})
		}
	}
	if c.Report.Solution.Spec.Binding == "torch" {
		return // torch's own libraries define the rest
	}
	for _, name := range unresolved(obj) {
		c.add(Error, "unresolved-symbol", "", "define it in a source that is compiled (.cu .cpp .cc .cxx .c)",
			"undefined %s: the library does not load", name)
	}
}

// unresolved returns the symbols of an object that its libraries do not define.
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
		// Libraries of CUDA are present when the object is loaded. Symbols of libc and libstdc++ have versions.
		if s.Section != elf.SHN_UNDEF || elf.ST_BIND(s.Info) != elf.STB_GLOBAL || s.Version != "" || s.Name == "" ||
			defined[s.Name] ||
			strings.HasPrefix(s.Name, "cu") || strings.HasPrefix(s.Name, "nv") || strings.HasPrefix(s.Name, "TVMFFI") {
			continue
		}
		names = append(names, s.Name)
	}
	return nvcc.Demangle(names)
}
