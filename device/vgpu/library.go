package vgpu

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/cache"
)

// This file builds the libraries that stand for NVIDIA's in a program, the CUDA runtime and the driver, and has the
// notifications that they send. It needs no cgo.

//go:embed host/*.c host/*.h
var hostFiles embed.FS

// hostSources returns the sources of the runtime and the driver by file name.
func hostSources() map[string]string {
	names, err := fs.Glob(hostFiles, "host/*")
	all := map[string]string{}
	for _, name := range names {
		var text []byte
		if text, err = hostFiles.ReadFile(name); err != nil {
			break
		}
		all[path.Base(name)] = string(text)
	}
	if err != nil {
		panic(err) // they are part of this program
	}
	return all
}

// Arch is the default arch for submissions: PTX for a B200.
const Arch = "compute_100"

// ArchOf returns the arch that solutions are built for.
func ArchOf(opts device.Options) string {
	return cmp.Or(strings.Replace(opts.Arch, "sm_", "compute_", 1), Arch)
}

// driverName is the file name under which programs load the CUDA driver.
const driverName = "libcuda.so.1"

// packed is the name of the runtime's folder, both in a folder of prebuilt kernels and in the cache.
const packed = "vgpu"

// Pack returns the files that kernels for Arch need besides those of nvcc.Pack, in the same form.
func Pack(ctx context.Context, root string, t *nvcc.Toolchain) (map[string]string, error) {
	library, err := Runtime(ctx, root, t)
	return map[string]string{packed + "/" + filepath.Base(library): library,
		packed + "/" + driverName: filepath.Join(filepath.Dir(library), driverName)}, err
}

// Runtime returns the path of the virtual GPU's CUDA runtime, which has the file name of t's own runtime. The driver is
// in the same folder. Runtime builds both in the cache below root if they are missing.
func Runtime(ctx context.Context, root string, t *nvcc.Toolchain) (string, error) {
	return runtimeLibrary(ctx, root, packed, t, filepath.Base(t.CUDART))
}

// runtimeLibrary returns the virtual GPU's CUDA runtime with the given file name. It builds it in folder kind of the
// cache if it is missing.
func runtimeLibrary(ctx context.Context, root, kind string, t *nvcc.Toolchain, name string) (string, error) {
	files := hostSources()
	key := []string{"vgpu 9", t.CXXVersion, t.CUDAVersion, name}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		key = append(key, file, files[file])
	}
	dir, _, err := cache.Folder(ctx, root, kind, cache.Key(key...), func(dir string) error {
		stubs, err := stubs(t.CUDART)
		if err != nil {
			return err
		}
		header, err := os.ReadFile(filepath.Join(t.CUDAInclude, "cuda.h"))
		if err != nil {
			return err
		}
		files["stubs.c"], files["driver_stubs.c"] = stubs, driverStubs(string(header))
		files["version"] = name + " { global: *; };\n"
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				return err
			}
		}
		args := slices.Concat(t.CXX[1:], []string{"-O1", "-w", "-fPIC", "-shared", "-I" + t.CUDAInclude,
			"-x", "c", "runtime.c", "-x", "c", "stubs.c", "-x", "none", "-o", name, "-Wl,-soname," + name,
			"-Wl,--version-script=version", "-lpthread"})
		cmd := device.Command(ctx, t.CXX[0], args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("emu: building the CUDA runtime: %w\n%s", err, bytes.TrimSpace(out))
		}
		args = slices.Concat(t.CXX[1:], []string{"-O1", "-w", "-fPIC", "-shared", "-I" + t.CUDAInclude,
			"-x", "c", "driver.c", "-x", "c", "cute_dsl.c", "-x", "c", "driver_stubs.c", "-x", "none", "-o", driverName,
			"-Wl,-soname," + driverName, "./" + name})
		cmd = device.Command(ctx, t.CXX[0], args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("emu: building the CUDA driver: %w\n%s", err, bytes.TrimSpace(out))
		}
		return linkStub(ctx, t, dir)
	})
	return filepath.Join(dir, name), err
}

// Stubs returns a folder with a libcuda.so to link programs with.
func Stubs(ctx context.Context, root string, t *nvcc.Toolchain) (string, error) {
	library, err := Runtime(ctx, root, t)
	return filepath.Join(filepath.Dir(library), stubFolder), err
}

const stubFolder = "stubs"

// linkStub builds a library below dir that has the driver's functions and needs no other library, as linkers want it.
func linkStub(ctx context.Context, t *nvcc.Toolchain, dir string) error {
	symbols, err := definedSymbols(filepath.Join(dir, driverName))
	if err != nil {
		return err
	}
	text := &strings.Builder{}
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "cu") {
			fmt.Fprintf(text, "int %s(void) { return 999; }\n", s.Name)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, stubFolder), 0o755); err != nil {
		return err
	}
	args := slices.Concat(t.CXX[1:], []string{"-w", "-fPIC", "-shared", "-x", "c", "-", "-x", "none",
		"-o", stubFolder + "/libcuda.so", "-Wl,-soname," + driverName})
	cmd := device.Command(ctx, t.CXX[0], args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(text.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("emu: building libcuda.so: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

// Missing returns the names of CUDA's functions that the program or library at path uses and the virtual GPU lacks.
// more are libraries of the virtual GPU besides the runtime and the driver.
func Missing(ctx context.Context, root string, t *nvcc.Toolchain, path string, more ...string) ([]string, error) {
	library, err := Runtime(ctx, root, t)
	if err != nil {
		return nil, err
	}
	return missingFunctions(path, library, more...), nil
}

// stubs returns C definitions for all functions that the real runtime exports. A stub reports its name as unsupported;
// the virtual GPU's own functions replace it.
func stubs(library string) (string, error) {
	f, err := elf.Open(library)
	if err != nil {
		return "", err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return "", err
	}
	var names []string
	for _, s := range symbols {
		defined := s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC
		if defined && strings.Contains(s.Name, "cuda") {
			names = append(names, s.Name)
		}
	}
	return stubText(names), nil
}

var driverFunction = regexp.MustCompile(`(?m)^CUresult CUDAAPI\s+(cu\w+)\(`)

// driverStubs returns stubs for the functions that cuda.h declares.
func driverStubs(header string) string {
	var names []string
	for _, m := range driverFunction.FindAllStringSubmatch(header, -1) {
		names = append(names, m[1])
	}
	return stubText(names)
}

func stubText(names []string) string {
	text := &strings.Builder{}
	text.WriteString("int fisub_vgpu_missing(const char *name);\n")
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		fmt.Fprintf(text, "__attribute__((weak)) int %s(void) { return fisub_vgpu_missing(\"%[1]s\"); }\n", name)
	}
	return text.String()
}

//go:embed host/nvcc.sh
var wrapper string

// Compiler returns the command for compiling programs for the virtual GPU as well as a GPU. Append the arguments of
// nvcc to it.
func Compiler(t *nvcc.Toolchain) []string {
	return []string{"/bin/sh", "-c", strings.ReplaceAll(wrapper, "NVCC", t.NVCC), "nvcc"}
}

// HostName is the name of the runtime library in a process that may also load NVIDIA's.
const HostName = "libfisub_cudart.so"

// hostCache is the folder in the cache for Home.
const hostCache = "vgpu-python"

// PrepareHome builds the folder for Home, so that a process without write access to the cache finds it.
func PrepareHome(ctx context.Context, root string, t *nvcc.Toolchain) error {
	_, _, err := home(ctx, root, t)
	return err
}

func home(ctx context.Context, root string, t *nvcc.Toolchain) (dir, library string, err error) {
	if library, err = runtimeLibrary(ctx, root, hostCache, t, HostName); err != nil {
		return "", "", err
	}
	script := strings.ReplaceAll(wrapper, "NVCC", t.NVCC)
	dir, _, err = cache.Folder(ctx, root, hostCache, cache.Key("home 1", script, library), func(dir string) error {
		for _, sub := range []string{"bin", "lib64"} {
			if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
				return err
			}
		}
		for name, target := range map[string]string{"include": t.CUDAInclude, "lib64/libcudart.so": library,
			"lib64/libcuda.so": filepath.Join(filepath.Dir(library), driverName)} {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(dir, "bin", "nvcc"), []byte(script), 0o755)
	})
	return dir, library, err
}

// An Event is a kind of notification from the virtual GPU to the program's listener.
type Event byte

// Events that Attach reports.
const (
	Attached Event = 'a' // the program has loaded the virtual GPU
	Launched Event = 'k' // a kernel was launched
	Hazard   Event = 'h' // has a text, like Faulted, Lacking and Stopped
	Faulted  Event = 'f'
	Lacking  Event = 'l' // the program needs a feature that the virtual GPU does not support
	Stopped  Event = 's' // the program was ended while no kernel ran
	Note     Event = 'n' // has a text; the program may be right
	Progress Event = 'p' // has a text: the progress of the running kernel, or "" when it has ended
	// A kernel's register count is unknown, so its launches are not checked against the limit.
	Unlimited Event = 'u'
	// A kernel of Triton was launched, whose launches are never checked for races.
	Racy Event = 'r'
	// A size of launches is not checked, because checks have taken enough time; for some of them LaterChecked follows.
	Unchecked    Event = 'c'
	LaterChecked Event = 'd'
)
