// Package pyworker provides the worker process for solutions that need Python and for the Python references of
// definitions. Its program, fisub_worker, speaks the protocol of bench/worker, so a worker.Client drives it like `fisub
// worker`. It needs a Python with torch; nothing else in fisub does.
package pyworker

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"fisub/bench/worker"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/trace"
)

//go:embed fisub_worker/*.py fisub_worker/vgpu/*.py fisub_worker/vgpu/torch_cuda.cpp startup/sitecustomize.py
var program embed.FS // the name of a folder would leave out __init__.py

// The virtual GPU as a library, for Triton: scripts/build puts it there.
//
//go:embed all:library
var library embed.FS

// gpu returns the library, or nil if this program was built without it. $FISUB_VGPU_LIBRARY, which is for fisub's own
// tests, names a file to use instead.
func gpu() ([]byte, error) {
	if name := os.Getenv("FISUB_VGPU_LIBRARY"); name != "" {
		return os.ReadFile(name)
	}
	data, err := library.ReadFile("library/vgpu.so.gz")
	if err != nil {
		return nil, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// vgpuFile is the path of the virtual GPU in the folder of the worker's program.
const vgpuFile = "fisub_worker/vgpu/vgpu.so"

// ForPrograms returns the path of the virtual GPU as a C library, stored below the cache folder root, and the variables
// with which each Python that a program starts runs on it, in addition to those of fisub emu. The path is "" if fisub
// was built without the library.
func ForPrograms(ctx context.Context, root string) (library string, env []string, err error) {
	dir, err := install(ctx, root)
	if err != nil {
		return "", nil, err
	}
	library = filepath.Join(dir, vgpuFile)
	if _, err := os.Stat(library); errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	path := filepath.Join(dir, "startup")
	if old := os.Getenv("PYTHONPATH"); old != "" {
		path += string(filepath.ListSeparator) + old
	}
	var triton []string // by the tag of an interpreter
	for _, tag := range nvcc.TritonTags() {
		if dir, ok := nvcc.TritonInstalled(root, tag); ok {
			triton = append(triton, tag+"="+dir)
		}
	}
	return library, []string{"PYTHONPATH=" + path, "FISUB_EMU_CACHE=" + root,
		"FISUB_EMU_TRITON=" + strings.Join(triton, string(filepath.ListSeparator))}, nil
}

// Runs reports whether solutions with that spec run in Python. CUDA and C++ do if they return their outputs.
func Runs(spec *trace.BuildSpec) bool { return !spec.Compiled() || !spec.DestinationPassingStyle }

// Command returns the command of the worker, whose program it stores below the cache folder root. It uses the first
// of $FISUB_PYTHON, python3 and python that has torch. If none has, the error is a *worker.Error of kind Machine with
// the code "no-python" or "no-torch".
func Command(ctx context.Context, root string) (worker.Command, error) {
	python, err := Find(ctx)
	if err != nil {
		return worker.Command{}, err
	}
	dir, err := install(ctx, root)
	if err != nil {
		return worker.Command{}, err
	}
	return worker.Command{Args: []string{python, "-u", filepath.Join(dir, "fisub_worker", "__main__.py")}}, nil
}

// install stores the worker's program below the cache folder root, and returns its folder.
func install(ctx context.Context, root string) (string, error) {
	lib, err := gpu()
	if err != nil {
		return "", err
	}
	files, key := map[string][]byte{}, []string{string(lib)}
	_ = fs.WalkDir(program, ".", func(name string, d fs.DirEntry, _ error) error { // reads memory
		if !d.IsDir() {
			files[name], _ = program.ReadFile(name)
			key = append(key, name, string(files[name]))
		}
		return nil
	})
	if lib != nil {
		files[vgpuFile] = lib
	}
	dir, _, err := cache.Folder(ctx, root, "pyworker", cache.Key(key...), func(dir string) error {
		for name, data := range files {
			path := filepath.Join(dir, name)
			if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755)); err != nil {
				return err
			}
		}
		return nil
	})
	return dir, err
}

// A Triton describes the Triton available to an interpreter.
type Triton struct {
	Python string
	Tag    string // of the interpreter, such as "cp312"
	Own    string // the version among its packages, or ""
	Folder string // of the contest's version in fisub's cache, or "" if not fetched
}

// Contest is the version of Triton in the contest's image.
var Contest = func() string { c, _ := nvcc.Triton(""); return c.Version }()

// FindTriton returns the Triton of Command's interpreter. Its errors are like Command's.
func FindTriton(ctx context.Context, root string) (*Triton, error) {
	python, err := Find(ctx)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, python, "-c", "import importlib.metadata as m, sys\n"+
		"print('cp' * (sys.implementation.name == 'cpython') + '%d%d' % sys.version_info[:2] + sys.abiflags)\n"+
		"print(next((d.version for d in m.distributions(name='triton')), ''))").Output()
	if err != nil {
		return nil, fmt.Errorf("python: %s: %w", python, err)
	}
	tag, own, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	t := &Triton{Python: python, Tag: tag, Own: own}
	if dir, ok := nvcc.TritonInstalled(root, tag); ok {
		t.Folder = dir
	}
	return t, nil
}

// Version returns the version that runs on the virtual GPU.
func (t *Triton) Version() string {
	if t.Folder != "" {
		return Contest
	}
	return t.Own
}

// Env returns the environment for a worker in which submissions find the contest's Triton.
func (t *Triton) Env() []string {
	if t.Folder == "" {
		return nil
	}
	path := t.Folder
	if old := os.Getenv("PYTHONPATH"); old != "" {
		path += string(filepath.ListSeparator) + old
	}
	return []string{"PYTHONPATH=" + path}
}

// UsesTriton reports whether a source of sol imports or names Triton.
func UsesTriton(sol *trace.Solution) bool {
	return slices.ContainsFunc(sol.Sources, func(s trace.SourceFile) bool {
		return strings.HasSuffix(s.Path, ".py") && importsTriton.MatchString(s.Content)
	})
}

// Compiles reports whether sol, which runs in Python, may compile C++ or CUDA.
func Compiles(sol *trace.Solution) bool {
	language := sol.Spec.Language
	if language == trace.CUDA || language == trace.CPP {
		return true
	}
	return slices.ContainsFunc(sol.Sources, func(s trace.SourceFile) bool {
		return compiles.MatchString(s.Content)
	})
}

var compiles = regexp.MustCompile(`cpp_extension|tvm_ffi|ctypes|nvcc|cutlass|flashinfer`)
var importsTriton = regexp.MustCompile(`(?m)\b(import|from)[ \t]+triton\b|['"]triton\b`)

// builds is the cache folder for compiled files. Workers only read it.
const builds = "python-build"

// shared matches the names of builds that contain nothing of a solution.
var shared = regexp.MustCompile(`^torch-cuda-[0-9a-f]{32}$`)

// Build builds and loads sol in client. Each file that is missing in the cache below root is first compiled by a worker
// of its own from start, which may write only to the folder dir. The cache gets the files once that worker and all its
// processes have ended, under a name with the key of sol. So no fault of a compiler reaches another solution.
func Build(ctx context.Context, client *worker.Client, root string, def *trace.Definition, sol *trace.Solution,
	start func(dir string) (*worker.Client, error)) error {
	own := regexp.MustCompile("^(torch|tvm-ffi)-" + worker.BuildKey(sol) + "-[0-9a-f]{32}$")
	var made []string
	for {
		err := client.Build(ctx, def, sol)
		we, ok := errors.AsType[*worker.Error](err)
		if !ok || we.Code != worker.Unbuilt {
			return err
		}
		name := we.Missing
		if !own.MatchString(name) && !shared.MatchString(name) || slices.Contains(made, name) {
			return err
		}
		made = append(made, name)
		if _, _, err := cache.Folder(ctx, root, builds, name, func(dir string) error {
			compiler, err := start(dir)
			if err != nil {
				return err
			}
			defer compiler.Close()
			return compiler.Prepare(ctx, def, sol, name, dir)
		}); err != nil {
			return err
		}
	}
}

// Confined names the variable that is set for a Command's worker with restricted write access.
const Confined = "FISUB_CONFINED"

// Own names the variable with the folder in which Command's worker keeps sources and compiled code.
const Own = "FISUB_OWN_CACHE"

// Caches returns variables that move the caches of CUDA and of Python's compilers below the folder own. Other
// programs load code from those in the home folder.
func Caches(own string) []string {
	env := []string{Own + "=" + own}
	for _, v := range []struct{ name, folder string }{{"TRITON_CACHE_DIR", "triton"}, {"TRITON_HOME", "triton"},
		{"TORCH_EXTENSIONS_DIR", "torch"}, {"TORCH_HOME", "torch"}, {"TORCHINDUCTOR_CACHE_DIR", "inductor"},
		{"CUDA_CACHE_PATH", "cuda"}, {"TILELANG_CACHE_DIR", "tilelang"}, {"TVM_FFI_CACHE_DIR", "tvm-ffi"},
		{"FLASHINFER_WORKSPACE_BASE", "flashinfer"}, {"DG_JIT_CACHE_DIR", "deep_gemm"},
		{"CUTE_DSL_CACHE_DIR", "cute-dsl"}} {
		env = append(env, v.name+"="+filepath.Join(own, v.folder))
	}
	return env
}

// Pythons returns the interpreters to try, in order: only $FISUB_PYTHON if set, else python3 and python. They may
// have any version.
func Pythons() (paths []string) {
	names := []string{"python3", "python"}
	if named := os.Getenv("FISUB_PYTHON"); named != "" {
		names = []string{named}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// Find returns the interpreter for Command. It looks for torch without importing it, which takes seconds. Its errors
// are like Command's; with one, the path is a Python that is too old or without torch, or "".
func Find(ctx context.Context) (string, error) {
	without := ""
	for _, path := range Pythons() {
		limit, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := exec.CommandContext(limit, path, "-c",
			"import importlib.util, sys; sys.exit(sys.version_info < (3, 9) or importlib.util.find_spec('torch') is None)").Run()
		cancel()
		if err == nil {
			return path, nil
		}
		if ctx.Err() != nil {
			return path, ctx.Err()
		}
		if without == "" {
			without = path
		}
	}
	if without != "" {
		return without, &worker.Error{Kind: worker.Machine, Code: "no-torch",
			Hint: "pip install torch, or set FISUB_PYTHON to a Python with torch",
			Text: fmt.Sprintf("python: %s is not Python 3.9 or later with torch", without)}
	}
	text := "python: neither python3 nor python is on PATH"
	if named := os.Getenv("FISUB_PYTHON"); named != "" {
		text = "python: FISUB_PYTHON: no program " + named
	}
	return "", &worker.Error{Kind: worker.Machine, Code: "no-python", Text: text,
		Hint: "install Python 3.9 or later with torch, or set FISUB_PYTHON to one"}
}
