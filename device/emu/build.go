package emu

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

//go:embed include runtime
var files embed.FS

// forwards are the headers of TVM-FFI that say nothing but #include <tvm/ffi/tvm_ffi.h>, and other headers' second
// names.
var forwards = map[string][]string{
	"tvm/ffi/tvm_ffi.h": {
		"tvm/ffi/any.h", "tvm/ffi/base_detail.h", "tvm/ffi/cast.h", "tvm/ffi/container/shape.h", "tvm/ffi/container/tensor.h",
		"tvm/ffi/device.h", "tvm/ffi/dtype.h", "tvm/ffi/error.h", "tvm/ffi/function.h", "tvm/ffi/function_details.h",
		"tvm/ffi/memory.h", "tvm/ffi/object.h", "tvm/ffi/optional.h", "tvm/ffi/string.h", "tvm/ffi/type_traits.h",
	},
	"tvm/ffi/extra/cuda_base.h": {"tvm/ffi/extra/cuda/base.h", "tvm/ffi/extra/cuda/device_guard.h"},
	"cuda_runtime.h":            {"cuda.h", "cuda_runtime_api.h", "device_launch_parameters.h", "driver_types.h"},
	"device_functions.h":        {"sm_30_intrinsics.h", "device_atomic_functions.h"},
	"vector_types.h":            {"vector_functions.h"},
}

// ErrNoCompiler means that $CXX, or where it is not set both g++ and clang++, cannot be run.
var ErrNoCompiler = errors.New("no C++ compiler")

// A mode is one way to build a submission; each is an executable of its own.
type mode string

const (
	bare     mode = "plain"
	sanitize mode = "sanitize" // AddressSanitizer and UBSan
	race     mode = "race"     // the check of shared memory
)

var modeFlags = map[mode]struct{ source, runtime, link []string }{
	bare: {},
	sanitize: {
		source: []string{"-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all",
			"-fno-omit-frame-pointer"},
		runtime: []string{"-DFISUB_EMU_ASAN"},
		link:    []string{"-fsanitize=address,undefined"},
	},
	race: {
		source:  []string{"-fsanitize=thread"},
		runtime: []string{"-DFISUB_EMU_RACE"},
	},
}

// Submissions are built with -O1: -O2 takes 1.4 times as long and gives no faster ones.
const sourceLevel, runtimeLevel = "-O1", "-O2"

// Floating point is as written, so that results are the same with and without the instructions of newer processors.
var commonFlags = []string{
	"-std=c++17", "-g1", "-fno-pie", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-U_FORTIFY_SOURCE",
	"-fdiagnostics-color=never", "-Wno-unknown-pragmas", "-Wno-attributes", "-D__FISUB_EMU__=1",
}

// cudaFlags are for .cu files, which nvcc compiles with cuda_runtime.h in front. __CUDA_ARCH__ stays undefined.
var cudaFlags = []string{
	"-D__CUDACC__=1", "-D__NVCC__=1", "-D__CUDACC_VER_MAJOR__=12", "-D__CUDACC_VER_MINOR__=8", "-include",
	"cuda_runtime.h",
}

var linkFlags = []string{"-no-pie", "-rdynamic", "-pthread", "-ldl"}

// A compiler is a C++ compiler with the flags for this machine.
type compiler struct {
	command []string
	version string // first line of --version
	flags   []string
}

// findCompiler looks for $CXX, g++ and clang++, in this order; only the first is tried where $CXX is set.
func findCompiler(ctx context.Context) (*compiler, error) {
	candidates := [][]string{{"g++"}, {"clang++"}}
	if cxx := strings.Fields(os.Getenv("CXX")); len(cxx) > 0 {
		candidates = [][]string{cxx}
	}
	for _, c := range candidates {
		out, err := exec.CommandContext(ctx, c[0], append(c[1:len(c):len(c)], "--version")...).Output()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			continue
		}
		version, _, _ := strings.Cut(string(out), "\n")
		flags := commonFlags
		if runtime.GOARCH == "amd64" && hasFeatures("avx2", "fma", "bmi2", "f16c") {
			flags = append(flags[:len(flags):len(flags)], "-mavx2", "-mfma", "-mbmi2", "-mf16c")
		}
		return &compiler{command: c, version: strings.TrimSpace(version), flags: flags}, nil
	}
	if cxx := os.Getenv("CXX"); strings.TrimSpace(cxx) != "" {
		return nil, fmt.Errorf("%w: $CXX is %q, which cannot be run", ErrNoCompiler, cxx)
	}
	return nil, fmt.Errorf("%w: neither g++ nor clang++ was found", ErrNoCompiler)
}

func hasFeatures(names ...string) bool {
	flags := " " + plain.Field("/proc/cpuinfo", "flags") + " "
	for _, n := range names {
		if !strings.Contains(flags, " "+n+" ") {
			return false
		}
	}
	return true
}

// run runs the compiler in dir; a failed compilation is a *exec.ExitError with the output in log.
func (c *compiler) run(ctx context.Context, dir string, args ...string) (log string, err error) {
	cmd := device.Command(ctx, c.command[0], append(c.command[1:len(c.command):len(c.command)], args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.String(), err
}

// support returns the folder with the headers and the runtime's source, and what stands for them and for m in a key.
func (c *compiler) support(ctx context.Context, root string, m mode) (dir, key string, err error) {
	parts := []string{c.version, fmt.Sprintf("%q %q %s %s %q %q %q %q", c.command, c.flags, sourceLevel, runtimeLevel,
		cudaFlags, linkFlags, m, modeFlags[m])}
	err = fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		parts = append(parts, path, string(data))
		return err
	})
	if err != nil {
		return "", "", err
	}
	parts = append(parts, fmt.Sprint(forwards))
	key = cache.Key(parts...)
	dir, _, err = cache.Folder(ctx, root, "emu", key, func(dir string) error {
		if err := os.CopyFS(dir, files); err != nil {
			return err
		}
		for to, names := range forwards {
			for _, name := range names {
				path := filepath.Join(dir, "include", filepath.FromSlash(name))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(path, []byte("#pragma once\n#include <"+to+">\n"), 0o644); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return dir, key, err
}

// runtime returns the objects of the runtime for m; support and key are what support returned.
func (c *compiler) runtime(ctx context.Context, root, support, key string, m mode) (objects []string, err error) {
	units := []string{"emu"}
	if m == race {
		units = append(units, "race")
	}
	dir, _, err := cache.Folder(ctx, root, "emu", cache.Key("runtime", key), func(dir string) error {
		for _, u := range units {
			args := append(append(c.flags[:len(c.flags):len(c.flags)], runtimeLevel), modeFlags[m].runtime...)
			args = append(args, "-I"+filepath.Join(support, "include"), "-c", u+".cc", "-o", filepath.Join(dir, u+".o"))
			if log, err := c.run(ctx, filepath.Join(support, "runtime"), args...); err != nil {
				return fmt.Errorf("building the emulator with %s: %w\n%s", c.command[0], err, log)
			}
		}
		return nil
	})
	for _, u := range units {
		objects = append(objects, filepath.Join(dir, u+".o"))
	}
	return objects, err
}

// A program is a built submission.
type program struct {
	path   string
	serial bool // its blocks run one after the other: it uses atomics
}

var hostSuffixes = []string{".cpp", ".cc", ".cxx", ".c"}

func hasSuffix(path string, suffixes ...string) bool {
	for _, s := range suffixes {
		if strings.HasSuffix(path, s) {
			return true
		}
	}
	return false
}

// build compiles sol in mode m, or finds the program in the cache.
func (c *compiler) build(ctx context.Context, root string, sol *trace.Solution, m mode) (*program, error) {
	sources := map[string]string{}
	var units, parts []string
	serial := false
	for _, s := range sol.Sources {
		path := filepath.Clean(filepath.FromSlash(s.Path))
		if !filepath.IsLocal(path) || path == "." || strings.ContainsRune(path, 0) {
			return nil, &device.BuildError{Text: fmt.Sprintf("source path %q leaves its folder", s.Path)}
		}
		if _, ok := sources[path]; ok {
			return nil, &device.BuildError{Text: fmt.Sprintf("source %s occurs twice", path)}
		}
		text := s.Content
		if !hasSuffix(path, hostSuffixes...) {
			out, atomics, err := rewrite(text)
			if err != nil {
				text := fmt.Sprintf("%s:%d: %s", s.Path, err.Line, err.Text)
				return nil, &device.BuildError{Text: text, Log: text + "\n"}
			}
			text, serial = out, serial || atomics
		}
		sources[path] = text
		parts = append(parts, path, text)
		if hasSuffix(path, hostSuffixes...) || hasSuffix(path, ".cu") {
			units = append(units, path)
		}
	}
	if len(units) == 0 {
		return nil, &device.BuildError{Text: "no source to compile: none ends in .cu, .cpp, .cc, .cxx or .c"}
	}
	support, key, err := c.support(ctx, root, m)
	if err != nil {
		return nil, err
	}
	dir, _, err := cache.Folder(ctx, root, "build", cache.Key(append(parts, key)...), func(dir string) error {
		return c.compile(ctx, dir, support, sources, units, m, func(ctx context.Context) ([]string, error) {
			return c.runtime(ctx, root, support, key, m)
		})
	})
	if err != nil {
		return nil, err
	}
	return &program{path: filepath.Join(dir, "kernel"), serial: serial}, nil
}

// compile writes the sources to dir/src and leaves the program as dir/kernel. The objects of the runtime are made
// meanwhile.
func (c *compiler) compile(ctx context.Context, dir, support string, sources map[string]string, units []string, m mode,
	runtimeObjects func(context.Context) ([]string, error)) error {
	src := filepath.Join(dir, "src")
	for path, text := range sources {
		path = filepath.Join(src, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return sourceError(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return sourceError(err)
		}
	}
	objects := make([]string, len(units))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	var emulator []string
	g.Go(func() (err error) {
		emulator, err = runtimeObjects(gctx)
		return err
	})
	for i, unit := range units {
		objects[i] = filepath.Join(dir, fmt.Sprintf("%d.o", i))
		g.Go(func() error {
			args := append(append(c.flags[:len(c.flags):len(c.flags)], sourceLevel), modeFlags[m].source...)
			// -ffile-prefix-map keeps the temporary folder out of the program.
			args = append(args, "-ffile-prefix-map="+src+"=.", "-I.", "-isystem", filepath.Join(support, "include"))
			if hasSuffix(unit, ".cu") {
				args = append(args, cudaFlags...)
			}
			if strings.HasPrefix(unit, "-") || strings.HasPrefix(unit, "@") {
				unit = "./" + unit
			}
			return c.step(gctx, src, support, append(args, "-c", "-x", "c++", unit, "-o", objects[i]))
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	args := append(slices.Concat(objects, emulator), modeFlags[m].link...)
	args = append(append(args, linkFlags...), "-o", filepath.Join(dir, "kernel"))
	if err := c.step(ctx, dir, support, args); err != nil {
		return err
	}
	for _, o := range objects {
		if err := os.Remove(o); err != nil {
			return err
		}
	}
	return checkShared(filepath.Join(dir, "kernel"))
}

// sourceError is a *device.BuildError where the sources' own names are at fault: one is a folder of another, or too
// long.
func sourceError(err error) error {
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.EEXIST) ||
		errors.Is(err, syscall.ENAMETOOLONG) {
		return &device.BuildError{Text: fmt.Sprintf("writing the sources: %v", errors.Unwrap(err))}
	}
	return err
}

// step runs the compiler; where it refuses the source, the error is a *device.BuildError.
func (c *compiler) step(ctx context.Context, dir, support string, args []string) error {
	log, err := c.run(ctx, dir, args...)
	if err == nil {
		return nil
	}
	var exit *exec.ExitError
	if ctx.Err() != nil || !errors.As(err, &exit) {
		return err
	}
	if fault := device.MachineFault(log); fault != "" || !exit.Exited() {
		return fmt.Errorf("running %s: %s", c.command[0], cmp.Or(fault, err.Error()))
	}
	log = strings.NewReplacer(filepath.Join(support, "include")+"/", "", filepath.Dir(dir)+"/", "", dir+"/", "", "././",
		"").Replace(log)
	return &device.BuildError{Text: firstError(log), Log: log}
}

var (
	errorLine  = regexp.MustCompile(`^(?:\./)*(.+?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$`)
	undeclared = regexp.MustCompile(
		`^(?:use of undeclared identifier )?['‘]?` +
			`((?:__|wmma|nvcuda|cooperative_groups|cute|cutlass|cub|cuda\b)[\w:]*)['’]? ?` +
			`(?:was not declared|has not been declared|is not a member|does not name|has not been|$)`)
	noHeader  = regexp.MustCompile(`^'?(\S+?)'?(?:: No such file or directory| file not found)$`)
	inlinePTX = regexp.MustCompile(`attribute.*(inline PTX cannot run.*\))`)
	undefined = regexp.MustCompile("undefined reference to [`'‘](.*?)['’]|multiple definition of [`'‘](.*?)['’]")
)

// firstError puts the first error of a compiler's output into one line.
func firstError(log string) string {
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if m := errorLine.FindStringSubmatch(line); m != nil {
			place, text := m[1]+":"+m[2]+": ", m[3]
			if p := inlinePTX.FindStringSubmatch(text); p != nil {
				return place + p[1]
			}
			if h := noHeader.FindStringSubmatch(text); h != nil {
				return place + "the emulator has no header " + h[1]
			}
			if u := undeclared.FindStringSubmatch(text); u != nil {
				return place + u[1] + " is not available on the emulator (guard it with #ifndef __FISUB_EMU__ and give a C++ path)"
			}
			return place + text
		}
		if m := undefined.FindString(line); m != "" {
			return "linking: " + m
		}
	}
	return "the compiler gave no reason"
}

// A symbolTable is what the emulator needs to know of a built program.
type symbolTable struct {
	entries map[string]bool // exported functions, without the prefix
	shared  []sharedVariable
}

// A sharedVariable is a static __shared__ variable: a thread-local one of the program.
type sharedVariable struct {
	name         string
	offset, size uint64
}

// localStatic matches the mangled name of a function's static variable; the first group is the function's part.
var localStatic = regexp.MustCompile(`^(_ZZ.*E)(?:\d+[A-Za-z_]\w*|[A-Za-z_]\w*)$`)

func readSymbols(path string) (*symbolTable, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t := &symbolTable{entries: map[string]bool{}}
	for _, s := range all {
		switch kind := elf.ST_TYPE(s.Info); {
		case kind == elf.STT_TLS && localStatic.MatchString(s.Name):
			t.shared = append(t.shared, sharedVariable{s.Name, s.Value, s.Size})
		case kind == elf.STT_FUNC && s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "__tvm_ffi_"):
			t.entries[strings.TrimPrefix(s.Name, "__tvm_ffi_")] = true
		}
	}
	return t, nil
}

// checkShared refuses what ptxas refuses: more than 48 KiB of static shared memory in one function.
func checkShared(path string) error {
	const limit = 48 << 10
	t, err := readSymbols(path)
	if err != nil {
		return err
	}
	sum := map[string]uint64{}
	for _, v := range t.shared {
		function := localStatic.FindStringSubmatch(v.name)[1]
		if sum[function] += v.size; sum[function] > limit {
			text := fmt.Sprintf("%s uses too much shared data: 0x%x bytes, 0x%x are allowed",
				strings.TrimSuffix(strings.TrimPrefix(function, "_Z"), "E"), sum[function], limit)
			return &device.BuildError{Text: text, Log: text + "\n"}
		}
	}
	return nil
}
