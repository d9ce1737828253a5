// Package nvcc finds or installs the tools that build a submission (nvcc, the CUDA headers and runtime, tvm-ffi, a C++
// compiler) and builds a shared object as the contest's builder does (spec section 4.2). It needs no GPU or driver,
// and never loads or runs the object.
package nvcc

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"fisub/internal/cache"
)

// A Toolchain is a complete set of tools. All paths are absolute.
type Toolchain struct {
	NVCC          string
	Version       string   // of nvcc, such as "13.0.88"
	CUDAVersion   string   // of the runtime that kernels link with, such as "13.0"
	CXX           []string // host compiler and linker: $CXX, else c++ or g++, with its arguments
	CXXVersion    string   // first line of its --version
	CUDAInclude   string   // folder of cuda.h and cuda_runtime.h
	LibDirs       []string // folders of libcudart.so and related libraries
	CUDART        string   // the runtime library to load, by its SONAME
	TVMFFI        string   // folder with include/tvm/ffi and lib/libtvm_ffi.so
	TVMFFIVersion string   // such as "0.1.15"
}

// String returns the versions of nvcc and tvm-ffi.
func (t *Toolchain) String() string {
	return fmt.Sprintf("nvcc %s, tvm-ffi %s", t.Version, t.TVMFFIVersion)
}

// A MissingError lists the parts missing from the toolchain.
type MissingError struct{ Missing []string }

func (e *MissingError) Error() string { return "toolchain: missing " + strings.Join(e.Missing, ", ") }

// Advice returns the hint of the error.
func (e *MissingError) Advice() string {
	switch {
	case e.NoCXX() && len(e.Missing) == 1:
		return "apt-get install g++, or set CXX to a C++ compiler"
	case e.NoCXX():
		return "apt-get install g++ python3-pip; then a run, or fisub toolchain install, downloads the rest"
	}
	return "fisub toolchain install fetches what is missing"
}

// NoCXX reports whether the C++ compiler is missing, which Install does not fetch.
func (e *MissingError) NoCXX() bool {
	return slices.ContainsFunc(e.Missing, func(m string) bool { return strings.HasPrefix(m, noCXX) })
}

const noCXX = "a C++ compiler"

// Find returns the first complete toolchain. nvcc is searched in $CUDA_HOME, in $CUDA_PATH, on PATH, in
// /usr/local/cuda, and in the cache below root (see Install), each with its own headers and runtime library; tvm-ffi
// in $TVM_FFI_HOME, among python3's packages, and in the cache. If root has no toolchain, the user's own cache is
// used. Missing parts are a *MissingError. The process reuses the result while the environment is unchanged and the
// compiler exists.
func Find(root string) (*Toolchain, error) {
	key := root
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH", "PATH", "TVM_FFI_HOME", "CXX", "FISUB_CACHE"} {
		key += "\x00" + os.Getenv(name)
	}
	if t, ok := found.Load(key); ok && isExecutable(t.(*Toolchain).NVCC) {
		return t.(*Toolchain), nil
	}
	t, err := find(root)
	if err == nil {
		found.Store(key, t)
	}
	return t, err
}

var found sync.Map // *Toolchain by root and environment

// Finding is set in the environment of the programs that find asks for their version. There, fisub nvcc prints Self: a
// script named nvcc, or $CXX, may start it.
const (
	Finding = "FISUB_FINDING_NVCC"
	Self    = "fisub nvcc"
)

// version returns what a compiler prints with --version.
func version(args ...string) ([]byte, error) {
	cmd := exec.Command(args[0], append(args[1:len(args):len(args)], "--version")...)
	cmd.Env = append(os.Environ(), Finding+"=1")
	return cmd.Output()
}

func find(root string) (*Toolchain, error) {
	installed, ok := Installed(root)
	if own, err := cache.Root(); !ok && err == nil {
		installed, _ = Installed(own)
	}
	t := &Toolchain{}
	var missing []string
	var ffi, cxx bool
	var group sync.WaitGroup // each function starts a program
	group.Go(func() { missing = t.findCUDA(installed) })
	group.Go(func() { ffi = t.findTVMFFI(installed) })
	group.Go(func() { cxx = t.findCXX() })
	group.Wait()
	if !ffi {
		missing = append(missing, "tvm-ffi (include/tvm/ffi/c_api.h and lib/libtvm_ffi.so)")
	}
	if !cxx {
		lacks := noCXX + " (c++ or g++)"
		if cxx := os.Getenv("CXX"); cxx != "" {
			lacks = fmt.Sprintf("%s ($CXX is %q, which is not executable)", noCXX, cxx)
		}
		missing = append(missing, lacks)
	}
	if len(missing) > 0 {
		return nil, &MissingError{missing}
	}
	return t, nil
}

// findCUDA fills in the CUDA part from the first complete place, or returns the parts missing at the first place with
// nvcc.
func (t *Toolchain) findCUDA(installed string) []string {
	var compilers []string
	for _, env := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if home := os.Getenv(env); home != "" {
			compilers = append(compilers, filepath.Join(home, "bin", "nvcc"))
		}
	}
	if path, err := exec.LookPath("nvcc"); err == nil {
		compilers = append(compilers, path)
	}
	compilers = append(compilers, "/usr/local/cuda/bin/nvcc", filepath.Join(installed, "cuda", "bin", "nvcc"))
	missing := []string{"nvcc", "the CUDA headers (cuda_runtime.h)", "the CUDA runtime (libcudart.so)"}
	first := true
	for _, nvcc := range compilers {
		nvcc, err := filepath.Abs(nvcc)
		if err != nil || !isExecutable(nvcc) {
			continue
		}
		lacks := t.tryNVCC(nvcc)
		if len(lacks) == 0 {
			return nil
		}
		if first {
			missing, first = lacks, false
		}
	}
	return missing
}

func (t *Toolchain) tryNVCC(nvcc string) (lacks []string) {
	out, err := version(nvcc)
	m := regexp.MustCompile(`\bV(\d+\.\d+\.\d+)`).FindSubmatch(out)
	if err != nil || m == nil {
		return []string{"nvcc (" + nvcc + " --version prints no version)"}
	}
	home := nvcc
	if target, err := filepath.EvalSymlinks(nvcc); err == nil {
		home = target
	}
	home = filepath.Dir(filepath.Dir(home))
	cpu := machine()
	include := firstWith("cuda_runtime.h", home+"/include", home+"/targets/"+cpu+"-linux/include", "/usr/include")
	if include == "" || !isFile(include+"/cuda.h") {
		lacks = append(lacks, "the CUDA headers (cuda_runtime.h, cuda.h) of "+nvcc)
	}
	var dirs []string
	var cudart string
	libs := []string{home + "/lib64", home + "/lib", home + "/targets/" + cpu + "-linux/lib",
		"/usr/lib/" + cpu + "-linux-gnu"}
	for _, dir := range libs {
		if lib, ok := runtimeLibrary(dir); ok {
			dirs = append(dirs, dir)
			if isFile(dir + "/stubs/libcuda.so") {
				dirs = append(dirs, dir+"/stubs")
			}
			cudart = lib
			break
		}
	}
	if cudart == "" {
		lacks = append(lacks, "the CUDA runtime (libcudart.so) of "+nvcc)
	}
	if len(lacks) > 0 {
		return lacks
	}
	t.NVCC, t.Version, t.CUDAInclude, t.LibDirs, t.CUDART = nvcc, string(m[1]), include, dirs, cudart
	t.CUDAVersion = t.Version[:strings.LastIndexByte(t.Version, '.')]
	return nil
}

// runtimeLibrary returns the file in dir to load for its libcudart.so, named by SONAME.
func runtimeLibrary(dir string) (string, bool) {
	link := filepath.Join(dir, "libcudart.so")
	f, err := elf.Open(link)
	if err != nil {
		return "", false
	}
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 || names[0] != filepath.Base(names[0]) {
		return "", false
	}
	lib := filepath.Join(dir, names[0])
	return lib, isFile(lib)
}

func (t *Toolchain) findTVMFFI(installed string) bool {
	homes := []string{filepath.Join(installed, "tvm_ffi")}
	if home := os.Getenv("TVM_FFI_HOME"); home != "" {
		homes = []string{home}
	} else if python, err := exec.LookPath("python3"); err == nil {
		// find_spec locates the package without importing it.
		out, err := exec.Command(python, "-c", `import importlib.util as u
s = u.find_spec("tvm_ffi")
print(s.submodule_search_locations[0] if s and s.submodule_search_locations else "")`).Output()
		if home := strings.TrimSpace(string(out)); err == nil && home != "" {
			homes = append([]string{home}, homes...)
		}
	}
	for _, home := range homes {
		home, err := filepath.Abs(home)
		if err != nil || !isFile(home+"/lib/libtvm_ffi.so") {
			continue
		}
		if version, ok := tvmFFIVersion(home); ok {
			t.TVMFFI, t.TVMFFIVersion = home, version
			return true
		}
	}
	return false
}

// tvmFFIVersion returns the version of the package, or else of the headers.
func tvmFFIVersion(home string) (string, bool) {
	header, err := os.ReadFile(home + "/include/tvm/ffi/c_api.h")
	if err != nil {
		return "", false
	}
	if py, err := os.ReadFile(home + "/_version.py"); err == nil {
		if m := regexp.MustCompile(`(?m)^__version__ = .*'([0-9][0-9A-Za-z.+]*)'$`).FindSubmatch(py); m != nil {
			return string(m[1]), true
		}
	}
	parts := regexp.MustCompile(`(?m)^#define TVM_FFI_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)`).FindAllSubmatch(header, -1)
	if len(parts) != 3 {
		return "", false
	}
	return fmt.Sprintf("%s.%s.%s", parts[0][1], parts[1][1], parts[2][1]), true
}

func (t *Toolchain) findCXX() bool {
	names := []string{"c++", "g++"}
	if cxx := os.Getenv("CXX"); cxx != "" {
		names = []string{cxx}
	}
	for i := 0; i < len(names); i++ {
		args := strings.Fields(names[i])
		if len(args) == 0 {
			continue
		}
		path, err := exec.LookPath(args[0])
		if err != nil {
			continue
		}
		args[0] = path
		out, err := version(args...)
		if err != nil {
			continue
		}
		if strings.TrimSpace(string(out)) == Self { // as in make CXX="fisub nvcc"
			names = append(names, "c++", "g++")
			continue
		}
		t.CXX = args
		t.CXXVersion, _, _ = strings.Cut(string(out), "\n")
		return true
	}
	return false
}

// Major returns the CUDA major release that the driver must support, such as 13.
func (t *Toolchain) Major() int {
	n, _ := strconv.Atoi(t.CUDAVersion[:strings.IndexByte(t.CUDAVersion+".", '.')])
	return n
}

// machine returns the processor's name in wheels and compilers.
func machine() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64"
	}
	return "x86_64"
}

func firstWith(name string, dirs ...string) string {
	for _, dir := range dirs {
		if isFile(filepath.Join(dir, name)) {
			return dir
		}
	}
	return ""
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func isExecutable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}
