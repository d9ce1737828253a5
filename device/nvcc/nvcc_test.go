package nvcc

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
)

func TestComponents(t *testing.T) {
	all := Components()
	if len(all) != 9 {
		t.Fatalf("got %d components, want 9", len(all))
	}
	for _, c := range all {
		if c.Name == "" || c.Version == "" || c.Bytes <= 0 || len(c.hashes) != 2 {
			t.Errorf("got %+v, want a name, a version, a size and two hashes", c)
		}
		for _, h := range c.hashes {
			if b, err := hex.DecodeString(h); err != nil || len(b) != sha256.Size {
				t.Errorf("%s: hash %q is not a sha256", c.Name, h)
			}
		}
	}
}

// Each Python version with a wheel of the contest's Triton has its own pin, and pip is asked for that version.
func TestTriton(t *testing.T) {
	for _, tag := range []string{"cp310", "cp311", "cp312", "cp313", "cp313t", "cp314", "cp314t"} {
		c, ok := Triton(tag)
		if !ok || c.Name != "triton" || c.Version != "3.6.0" || c.Bytes < 100e6 || len(c.hashes) != 2 {
			t.Errorf("%s: got %+v, %v; want a pinned package", tag, c, ok)
		}
	}
	root, bin := t.TempDir(), t.TempDir()
	err := InstallTriton(t.Context(), root, "cp39", nil)
	if err == nil || !strings.Contains(err.Error(), "Triton 3.6.0 has no wheel for cp39") {
		t.Errorf("cp39: got %v, want that there is no wheel", err)
	}
	script := "#!/bin/sh\necho \"$@\" >'" + bin + "/args'\necho ERROR: no network\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	err = InstallTriton(t.Context(), root, "cp313t", nil)
	args, _ := os.ReadFile(filepath.Join(bin, "args"))
	if err == nil || !strings.Contains(err.Error(), "triton 3.6.0: pip download: no network") ||
		!strings.Contains(string(args), "--python-version=3.13 --abi=cp313t ") {
		t.Errorf("got %v from pip %s, want its error, and that it was asked for cp313t", err, args)
	}
	if dir, ok := TritonInstalled(root, "cp313t"); ok {
		t.Errorf("got %s, want nothing installed", dir)
	}
}

func wheel(t *testing.T, entries map[string]os.FileMode) []byte {
	t.Helper()
	var buf strings.Builder
	z := zip.NewWriter(&buf)
	for name, mode := range entries {
		h := &zip.FileHeader{Name: name}
		h.SetMode(mode)
		w, err := z.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("content of " + name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return []byte(buf.String())
}

// fakePip puts a python3 on PATH that answers "-m pip download ... -r R -d D" with the file in wheels named by the
// component in R, and logs the component's name. It fails if there is no such file.
func fakePip(t *testing.T, wheels string) (log string) {
	t.Helper()
	bin := t.TempDir()
	log = filepath.Join(bin, "log")
	script := `#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -r) r=$2; shift;; -d) d=$2; shift;; esac
  shift
done
name=$(sed 's/==.*//' "$r")
echo "$name" >>'` + log + `'
if [ ! -f '` + wheels + `'/$name ]; then echo "ERROR: no matching distribution for $name"; exit 1; fi
cp '` + wheels + `'/$name "$d/$name-1-py3-none-any.whl"
`
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return log
}

func TestInstall(t *testing.T) {
	wheels, root := t.TempDir(), t.TempDir()
	contents := map[string][]byte{
		"first": wheel(t, map[string]os.FileMode{
			"nvidia/cu13/bin/nvcc":            0o744,
			"nvidia/cu13/lib/libcudart.so.13": 0o644,
			"first-1.dist-info/RECORD":        0o644,
		}),
		"second": wheel(t, map[string]os.FileMode{"tvm_ffi/include/tvm/ffi/c_api.h": 0o644, "tvm_ffi/core.py": 0o644}),
	}
	var components []Component
	for _, name := range []string{"first", "second"} {
		sum := sha256.Sum256(contents[name])
		components = append(components, Component{Name: name, Version: "1", Bytes: int64(len(contents[name])),
			hashes: []string{hex.EncodeToString(sum[:])}, line: name + "==1"})
	}
	log := fakePip(t, wheels)
	put := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(wheels, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var last map[string]int64
	run := func() error {
		last = map[string]int64{}
		return install(context.Background(), root, "key", components, parts, func(name string, done, _ int64) { last[name] = done })
	}

	put("first", contents["first"])
	if err := run(); err == nil || !strings.Contains(err.Error(),
		"second 1: pip download: no matching distribution for second") {
		t.Errorf("without the second wheel: got %v, want pip's own reason", err)
	}
	put("second", append(slices.Clone(contents["second"]), 0))
	if err := run(); err == nil || !strings.Contains(err.Error(), "unpinned") {
		t.Errorf("with another wheel: got %v, want a hash that is unpinned", err)
	}
	dir := filepath.Join(root, "toolchain", "key")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after a failure: got %v, want nothing installed", err)
	}
	put("second", contents["second"])
	for range 2 {
		if err := run(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(log); err != nil || string(got) != "first\nsecond\nsecond\nsecond\n" {
		t.Errorf("got pip called for %q (%v), want first once and nothing once installed", got, err)
	}
	var got []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		rel, _ := filepath.Rel(dir, path)
		got = append(got, st.Mode().String()+" "+rel)
		return err
	})
	want := []string{"-rwxr-xr-x cuda/bin/nvcc", "Lrwxrwxrwx cuda/lib/libcudart.so", "-rw-r--r-- cuda/lib/libcudart.so.13",
		"-rw-r--r-- tvm_ffi/include/tvm/ffi/c_api.h"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	if _, err := os.Stat(filepath.Join(root, "toolchain", "download")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want the downloads removed", err)
	}

	root, components = t.TempDir(), components[:1]
	contents["first"] = wheel(t, map[string]os.FileMode{"nvidia/cu13/../../../../out": 0o644})
	sum := sha256.Sum256(contents["first"])
	components[0].hashes = []string{hex.EncodeToString(sum[:])}
	put("first", contents["first"])
	if err := run(); err == nil || !strings.Contains(err.Error(), "not a file below") {
		t.Errorf("entry outside the folder: got %v, want an error", err)
	}

	empty := t.TempDir()
	t.Setenv("PATH", empty)
	root = t.TempDir()
	if err := run(); !errors.Is(err, ErrNoPip) {
		t.Errorf("without python3: got %v, want %v", err, ErrNoPip)
	}
	if err := CanInstall(t.Context()); !errors.Is(err, ErrNoPip) {
		t.Errorf("CanInstall without python3: got %v, want %v", err, ErrNoPip)
	}
	if err := os.WriteFile(filepath.Join(empty, "python3"),
		[]byte("#!/bin/sh\necho /usr/bin/python3: No module named pip >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(); !errors.Is(err, ErrNoPip) {
		t.Errorf("without pip: got %v, want %v", err, ErrNoPip)
	}
}

// withoutTools hides every toolchain except one in /usr/local.
func withoutTools(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", t.TempDir())
	t.Setenv("TVM_FFI_HOME", t.TempDir())
	for _, env := range []string{"CUDA_HOME", "CUDA_PATH", "CXX"} {
		t.Setenv(env, "")
	}
}

func TestFindMissing(t *testing.T) {
	withoutTools(t)
	_, err := Find(t.TempDir())
	var missing *MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("got %v, want a *MissingError", err)
	}
	for _, want := range []string{"tvm-ffi", "C++ compiler"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want it to name %s", err, want)
		}
	}
}

// toolchain finds a toolchain, and returns it with a cache folder for the test.
func toolchain(t *testing.T) (*Toolchain, string) {
	t.Helper()
	longtest.Skip(t, "runs nvcc")
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := Find(root)
	if err != nil {
		longtest.Missing(t, "toolchain", err)
	}
	return tools, t.TempDir()
}

func solution(files ...string) *trace.Solution {
	s := &trace.Solution{Name: "s", Spec: trace.BuildSpec{Language: trace.CUDA, TargetHardware: []string{"cuda"},
		EntryPoint: files[0] + "::kernel"}}
	for i := 0; i < len(files); i += 2 {
		s.Sources = append(s.Sources, trace.SourceFile{Path: files[i], Content: files[i+1]})
	}
	return s
}

// simple exports the entry symbol without tvm-ffi's headers, which take seconds to compile.
const simple = `#include "sub/grid.cuh"
__global__ void fill(float* p) { p[blockIdx.x * blockDim.x + threadIdx.x] = scale(1.0f); }
extern "C" int __tvm_ffi_kernel(void*, const void*, int, void*) {
  fill<<<1, 32>>>(nullptr);
  return (int)cudaGetLastError();
}
extern "C" int __tvm_ffi_other(void*, const void*, int, void*) { return 0; }
`

// Checks and runs on this machine share one object, whichever comes first; its kernels are those of the real arch.
func TestBuildShared(t *testing.T) {
	tools, root := toolchain(t)
	ctx := context.Background()
	for _, gpu := range []bool{false, true} {
		sol := solution("kernel.cu", simple+fmt.Sprintf("// for a run, %t\n", gpu), "grid.cuh", "",
			"sub/grid.cuh", "__device__ float scale(float x) { return 2.0f * x; }\n")
		virtual, err := tools.Build(ctx, root, sol, "compute_100")
		if err != nil {
			t.Fatal(err)
		}
		shared, err := BuildShared(ctx, root, tools, sol, "sm_100", gpu)
		if err != nil || shared.Path != virtual.Path || !shared.Hit {
			t.Errorf("gpu %t: got %+v (%v), want the object of the run", gpu, shared, err)
		}
		real, err := tools.Build(ctx, root, sol, "sm_100")
		if err != nil || !reflect.DeepEqual(real.Kernels, virtual.Kernels) || len(real.Kernels) == 0 {
			t.Errorf("gpu %t: got kernels %+v (%v), want %+v", gpu, real.Kernels, err, virtual.Kernels)
		}

		sol = solution("kernel.cu", simple+fmt.Sprintf("// for a check, %t\n", gpu), "sub/grid.cuh",
			"__device__ float scale(float x) { return 2.0f * x; }\n")
		if shared, err = BuildShared(ctx, root, tools, sol, "sm_100", gpu); err != nil {
			t.Fatal(err)
		}
		arch := "compute_100"
		if gpu {
			arch = "sm_100"
		}
		if run, err := tools.Build(ctx, root, sol, arch); err != nil || !run.Hit || run.Path != shared.Path {
			t.Errorf("gpu %t: got %+v (%v), want the object of the check", gpu, run, err)
		}
	}
}

func TestBuild(t *testing.T) {
	tools, root := toolchain(t)
	ctx := context.Background()
	sol := solution("kernel.cu", simple, "sub/grid.cuh", "__device__ float scale(float x) { return 2.0f * x; }\n",
		"sub/host.cpp", "#warning mind the gap\nint host() { return 1; }\n", "notes.txt", "not compiled")
	o, err := tools.Build(ctx, root, sol, "sm_90")
	if err != nil {
		t.Fatal(err)
	}
	if o.Hit || o.Symbol != "__tvm_ffi_kernel" || o.Arch != "sm_90" || len(o.Libs) != 2 {
		t.Errorf("got %+v, want a fresh object with libtvm_ffi and libcudart", o)
	}
	again, err := tools.Build(ctx, root, sol, "sm_90")
	if err != nil || !again.Hit || again.Path != o.Path {
		t.Errorf("again: got %+v (%v), want the cached object", again, err)
	}
	other := *sol
	other.Spec.EntryPoint = "kernel.cu::other"
	if got, err := tools.Build(ctx, root, &other, "sm_90"); err != nil || got.Path != o.Path || got.Symbol != "__tvm_ffi_other" {
		t.Errorf("another entry point of the same sources: got %+v (%v), want the cached object", got, err)
	}
	other.Spec.EntryPoint = "kernel.cu::none"
	var broken *device.BuildError
	if _, err := tools.Build(ctx, root, &other, "sm_90"); !errors.As(err, &broken) || len(broken.Exports) != 2 {
		t.Errorf("an entry point that the same sources lack: got %v, want a *device.BuildError with two exports", err)
	}
	if !strings.Contains(again.Log, "sub/host.cpp:1:2: warning: #warning mind the gap") {
		t.Errorf("got log %q, want the warning of sub/host.cpp", again.Log)
	}
	commands, err := os.ReadFile(filepath.Join(o.Dir, "build.json"))
	want := "-Xcompiler -fPIC -std=c++17 -O2 -gencode=arch=compute_90,code=sm_90 -I"
	if err != nil || !strings.Contains(string(commands), want) {
		t.Errorf("got commands %s (%v), want %s", commands, err, want)
	}

	// The files named by Pack are enough on a machine without a toolchain, whatever their folder is called, even if
	// another toolchain has replaced the entry of the index.
	entries, err := filepath.Glob(filepath.Join(root, "build/index/*"))
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	keys := map[string][]byte{}
	for _, entry := range entries {
		keys[entry], err = os.ReadFile(entry)
		if err = errors.Join(err, os.WriteFile(entry, []byte("other\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	packed, written, err := Pack(root, o, sol, "sm_90")
	if err != nil {
		t.Fatal(err)
	}
	for entry, key := range keys {
		if err := os.WriteFile(entry, key, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range packed {
		if written[name], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	for name, data := range written {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Prebuilt(dir, sol, "sm_90"); err != nil ||
		got.Dir != filepath.Join(dir, "build", filepath.Base(o.Dir)) || len(got.Libs) != len(o.Libs) {
		t.Errorf("Prebuilt: got %+v, %v", got, err)
	}
	if got, _ := Packed(dir); got != o.Toolchain {
		t.Errorf("Packed: got %q, want %q", got, o.Toolchain)
	}
	var mismatch *MismatchError
	if _, err := Prebuilt(dir, sol, "sm_100"); !errors.As(err, &mismatch) ||
		!strings.Contains(err.Error(), "for sm_100 in the bundle; it has sm_90") {
		t.Errorf("Prebuilt for another arch: got %v, want a *MismatchError", err)
	}
	changed := solution("kernel.cu", simple+"// changed")
	changed.Name = "elsewhere"
	if _, err := Prebuilt(dir, changed, "sm_90"); !errors.As(err, &mismatch) ||
		err.Error() != "no kernel of elsewhere for sm_90 in the bundle, only of other solutions" {
		t.Errorf("Prebuilt of another solution: got %v, want a *MismatchError that names it", err)
	}

	// A copy of the folder and the index is enough on a machine without a toolchain.
	withoutTools(t)
	got, err := Build(ctx, root, nil, sol, "sm_90")
	if err != nil || got.Path != o.Path || !got.Hit {
		t.Errorf("without a toolchain: got %+v (%v), want the cached object", got, err)
	}
	var missing *MissingError
	if _, err := Build(ctx, root, nil, sol, "sm_100"); !errors.As(err, &missing) {
		t.Errorf("without a toolchain, another arch: got %v, want a *MissingError", err)
	}
	sol.Sources[3].Content = "changed"
	if _, err := Build(ctx, root, nil, sol, "sm_90"); !errors.As(err, &missing) {
		t.Errorf("without a toolchain, other sources: got %v, want a *MissingError", err)
	}
}

// A folder that nvcc cannot use says nothing about the solution.
func TestBuildOddFolder(t *testing.T) {
	tools, _ := toolchain(t)
	sol := solution("kernel.cu", simple, "sub/grid.cuh", "#include <tvm/ffi/c_api.h>\n__device__ float scale(float x) { return x; }\n")
	if _, err := tools.Build(t.Context(), filepath.Join(t.TempDir(), "a b;(&"), sol, "sm_90"); err != nil {
		t.Error(err)
	}
	var broken *device.BuildError
	for _, name := range []string{"a,b", "a'b", "a$b", "a\"b", "a`b", `a\b`} {
		_, err := tools.Build(t.Context(), filepath.Join(t.TempDir(), name), sol, "sm_90")
		if err == nil || errors.As(err, &broken) || !strings.Contains(err.Error(), "set FISUB_CACHE") {
			t.Errorf("%s: got %v, want an error about the folder", name, err)
		}
	}
}

func TestBuildArch(t *testing.T) {
	tools, root := toolchain(t)
	// setmaxnreg exists on the arch-specific targets only.
	sol := solution("kernel.cu", `__global__ void k() { asm volatile("setmaxnreg.inc.sync.aligned.u32 64;"); }
extern "C" int __tvm_ffi_kernel(void*, const void*, int, void*) { k<<<1, 128>>>(); return 0; }
`)
	for _, arch := range []string{"sm_90a", "sm_100a"} {
		if _, err := tools.Build(context.Background(), root, sol, arch); err != nil {
			t.Errorf("%s: %v", arch, err)
		}
	}
	var build *device.BuildError
	if _, err := tools.Build(context.Background(), root, sol, "sm_100"); !errors.As(err, &build) {
		t.Errorf("sm_100: got %v, want a *device.BuildError", err)
	}
	if _, err := tools.Build(context.Background(), root, sol, "sm_12"); err == nil || errors.As(err, &build) {
		t.Errorf("sm_12: got %v, want an error about the machine", err)
	}
	for _, arch := range []string{"", "90", "sm_9", "sm_90 -x", "sm_90b"} {
		if _, err := tools.Build(context.Background(), root, sol, arch); err == nil ||
			!strings.Contains(err.Error(), "arch") {
			t.Errorf("%q: got %v, want an error about the arch", arch, err)
		}
	}
}

func TestBuildErrors(t *testing.T) {
	tools, root := toolchain(t)
	tests := []struct {
		name string
		sol  *trace.Solution
		text string
		log  string
	}{
		{"syntax", solution("kernel.cu", "int x;\nint y = z;\n"),
			`kernel.cu does not compile: kernel.cu:2:9: error: identifier "z" is undefined`, "kernel.cu:2:9: error"},
		{"header", solution("kernel.cu", "#include \"a/b.cuh\"\n", "a/b.cuh", "#error no\n"), "a/b.cuh:1:2: error: #error no",
			"a/b.cuh:1"},
		{"host file", solution("k.cpp", "int x = y;"), "k.cpp does not compile: k.cpp:1:9: error:", "not declared"},
		{"no symbol", solution("k.cpp", "int kernel() { return 0; }"), "Entry point 'kernel' not found in module", ""},
		{"symbol only declared", solution("k.cpp",
			`extern "C" int __tvm_ffi_kernel(); int f() { return __tvm_ffi_kernel(); }`),
			"Entry point 'kernel' not found in module", ""},
		{"twice defined", solution("a.cpp", `extern "C" int __tvm_ffi_kernel() { return 0; }`, "b.cpp",
			`extern "C" int __tvm_ffi_kernel() { return 0; }`), "the solution does not link", "multiple definition"},
		{"file and folder", solution("a.cpp", "", "x", "1", "x/y", "2"), `source path "x/y"`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tools.Build(context.Background(), root, tt.sol, "sm_90")
			var build *device.BuildError
			if !errors.As(err, &build) {
				t.Fatalf("got %v, want a *device.BuildError", err)
			}
			if !strings.Contains(build.Text, tt.text) || !strings.Contains(build.Log, tt.log) {
				t.Errorf("got text %q and log %q, want %q and %q", build.Text, build.Log, tt.text, tt.log)
			}
			if strings.Contains(build.Log, root) {
				t.Errorf("got log %q, want no path of the cache", build.Log)
			}
		})
	}
	// The assembler's errors get their place for PTX too, even if the cache is a symbolic link.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	large := solution("kernel.cu", "\n__global__ void large(float* x) {\n  __shared__ float s[16384];\n  s[threadIdx.x] = x[0];\n"+
		"  __syncthreads();\n  x[1] = s[blockIdx.x];\n}\n")
	for _, arch := range []string{"sm_100", "compute_100"} {
		_, err := tools.Build(t.Context(), link, large, arch)
		want := "kernel.cu(2): error: Entry function 'large' uses too much shared data (65536 bytes, 49152 max)"
		var build *device.BuildError
		if !errors.As(err, &build) || !strings.Contains(build.Text, want) {
			t.Errorf("%s: got %v, want %q", arch, err, want)
		}
	}
	left, err := filepath.Glob(filepath.Join(root, "build", "*.so"))
	if err != nil || len(left) > 0 {
		t.Errorf("got %q (%v), want nothing left of failed builds", left, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tools.Build(ctx, root, solution("k.cpp", "int x;"), "sm_90"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v, want %v", err, context.Canceled)
	}
}

// A compiler that is killed, such as by a machine without free memory, says nothing about the sources.
func TestBuildKilled(t *testing.T) {
	tools, root := toolchain(t)
	for _, tt := range []struct {
		name, script string
		machine      bool
	}{
		{"killed", "sh -c 'kill -KILL $$'\nexit $?\n", true},
		{"terminated", "sh -c 'kill -TERM $$'\nexit $?\n", true},
		{"interrupted", "sh -c 'kill -INT $$'\nexit $?\n", true},
		{"cicc terminated", "echo 'kernel.cu(1): warning #177-D: unused'\necho\necho Compilation terminated.\nexit 4\n", true},
		{"catastrophic error", "echo 'kernel.cu(1): catastrophic error: too deep'\necho Compilation terminated.\nexit 4\n",
			false},
		{"crash", "sh -c 'kill -SEGV $$'\nexit $?\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := *tools
			broken.NVCC = filepath.Join(t.TempDir(), "nvcc")
			if err := os.WriteFile(broken.NVCC, []byte("#!/bin/sh\n"+tt.script), 0o755); err != nil {
				t.Fatal(err)
			}
			_, err := broken.Build(t.Context(), root, solution("kernel.cu", "int "+strings.Fields(tt.name)[0]+";\n"), "sm_90")
			var build *device.BuildError
			if got := err != nil && !errors.As(err, &build); got != tt.machine {
				t.Errorf("got %v, want an error about the machine: %v", err, tt.machine)
			}
		})
	}
}

// Sources cannot include the user's files: the built object may be sent to a host.
func TestBuildReads(t *testing.T) {
	if state := sandbox.State(); !state.Files() {
		longtest.Missing(t, "sandbox", state)
	}
	tools, root := toolchain(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("int secret;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{secret, "/etc/passwd", "/dev/zero"} {
		for _, file := range []string{"k.cpp", "kernel.cu"} {
			if file == "kernel.cu" && path != secret {
				continue // nvcc takes seconds
			}
			for _, text := range []string{"#include \"" + path + "\"\n", "asm(\".incbin \\\"" + path + "\\\"\");\n"} {
				text += `extern "C" int __tvm_ffi_kernel() { return 0; }`
				_, err := tools.Build(t.Context(), root, solution(file, text), "sm_90")
				if _, ok := errors.AsType[*device.BuildError](err); !ok {
					t.Errorf("%s of %s: got %v, want a *device.BuildError", file, text, err)
				}
			}
		}
	}
}

func TestSources(t *testing.T) {
	tests := []struct {
		name string
		sol  *trace.Solution
		want string
	}{
		{"above", solution("../k.cu", "x"), "not a file below"},
		{"absolute", solution("/k.cu", "x"), "not a file below"},
		{"folder", solution(".", "x"), "not a file below"},
		{"same file", solution("k.cu", "x", "./k.cu", "y"), "the same file"},
		{"nothing to compile", solution("k.cuh", "x"), "no source file"},
		{"upper case", solution("K.CU", "x"), "no source file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := newSources(tt.sol, "sm_90")
			var build *device.BuildError
			if !errors.As(err, &build) || !strings.Contains(build.Text, tt.want) {
				t.Errorf("got %v, want a *device.BuildError with %q", err, tt.want)
			}
		})
	}
	var build *device.BuildError
	for _, name := range []string{"k\x00.cu", "-o.cu", "$(id).cu", "a b.cu", "@arguments.cuh", "a\nb.h"} { // no verdict
		if _, err := newSources(solution("k.cu", "x", name, "y"), "sm_90"); err == nil || errors.As(err, &build) {
			t.Errorf("%q: got %v, want an error that is no *device.BuildError", name, err)
		}
	}
	sol := solution("k.cu", "x")
	sol.Spec.Language = trace.Triton
	if _, err := newSources(sol, "sm_90"); err == nil {
		t.Error("triton: got no error")
	}
	sol = solution("k.cu", "x")
	sol.Spec.Binding = "torch"
	if _, err := newSources(sol, "sm_90"); err == nil {
		t.Error("torch: got no error")
	}
}

func TestServes(t *testing.T) {
	for _, c := range []struct {
		kernel, gpu string
		want        bool
	}{
		{"sm_100", "sm_100", true}, {"sm_100", "sm_103", true}, {"sm_103", "sm_100", false}, {"sm_90", "sm_100", false},
		{"sm_90a", "sm_90", true},
		{"sm_100a", "sm_103", false}, {"sm_100f", "sm_103", true}, {"sm_80", "sm_89", true}, {"sm_10", "sm_100", false},
		{"", "sm_90", false},
	} {
		if got := Serves(c.kernel, c.gpu); got != c.want {
			t.Errorf("%s on %s: got %v, want %v", c.kernel, c.gpu, got, c.want)
		}
	}
}

// The cache key covers everything that changes the object, and nothing else.
func TestBuildKey(t *testing.T) {
	tools := &Toolchain{Version: "13.0.88", TVMFFIVersion: "0.1.15"}
	key := func(t *testing.T, tools *Toolchain, arch string, files ...string) string {
		s, err := newSources(solution(files...), arch)
		if err != nil {
			t.Fatal(err)
		}
		return tools.key(s)
	}
	base := key(t, tools, "sm_90", "k.cu", "x", "h.cuh", "y")
	if got := key(t, tools, "sm_90", "k.cu", "x", "h.cuh", "y"); got != base {
		t.Errorf("the same: got %s, want %s", got, base)
	}
	newer := *tools
	newer.Version = "13.1.80"
	for name, got := range map[string]string{
		"arch":     key(t, tools, "sm_90a", "k.cu", "x", "h.cuh", "y"),
		"content":  key(t, tools, "sm_90", "k.cu", "x", "h.cuh", "z"),
		"path":     key(t, tools, "sm_90", "k.cu", "x", "g.cuh", "y"),
		"compiler": key(t, &newer, "sm_90", "k.cu", "x", "h.cuh", "y"),
		"boundary": key(t, tools, "sm_90", "k.cu", "xh.cuh", "y", ""),
	} {
		if got == base {
			t.Errorf("other %s: got the same key", name)
		}
	}
}

// The hint names everything that is not fetched, also if nvcc is missing too.
func TestMissingAdvice(t *testing.T) {
	for _, tc := range []struct {
		missing []string
		want    string
	}{
		{[]string{"nvcc"}, "fisub toolchain install fetches"}, {[]string{noCXX}, "apt-get install g++, or set CXX"},
		{[]string{"nvcc", noCXX + " (c++)"}, "apt-get install g++ python3-pip; then"},
	} {
		if got := (&MissingError{tc.missing}).Advice(); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%q: got %q, want %q", tc.missing, got, tc.want)
		}
	}
}
