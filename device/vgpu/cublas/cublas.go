// Package cublas builds the virtual GPU's part of cuBLAS: a library whose kernels run on the virtual GPU, so that their
// accesses are checked. Other functions of cuBLAS are refused by name when a program calls them.
package cublas

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/device/vgpu"
	"fisub/internal/cache"
)

//go:embed cublas.cu
var source string

// Name is the file name of the library, which is also cuBLAS's.
const Name = "libcublas.so.13"

// Names are the file names by which programs need the library: cuBLASLt's too.
var Names = []string{Name, "libcublasLt.so.13"}

// Include returns the folder with the headers of cuBLAS, of the toolchain or fetched below root; ok is false without.
func Include(root string, t *nvcc.Toolchain) (dir string, ok bool) {
	for _, dir := range append([]string{t.CUDAInclude}, nvcc.HeaderFolders(root)...) {
		if _, err := os.Stat(filepath.Join(dir, header)); err == nil {
			return dir, true
		}
	}
	return "", false
}

const (
	header   = "cublas_api.h"
	headerLt = "cublasLt.h"
)

// Library returns the folder with the library, also as libcublas.so and libcublasLt.so, for programs that include
// headers of the folder include. It builds the library in the cache below root if it is missing.
func Library(ctx context.Context, root string, t *nvcc.Toolchain, include string) (string, error) {
	var headers []byte
	for _, name := range []string{header, headerLt} {
		text, err := os.ReadFile(filepath.Join(include, name))
		if err != nil {
			return "", err
		}
		headers = append(headers, text...)
	}
	stubs := stubs(string(headers))
	key := cache.Key("cublas 2", source, stubs, include, t.NVCC, t.Version, t.CXXVersion)
	dir, _, err := cache.Folder(ctx, root, "vgpu-cublas", key, func(dir string) error {
		for name, text := range map[string]string{"cublas.cu": source, "stubs.c": stubs} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
		args := append(vgpu.Compiler(t), "-O2", "-arch=sm_75", "-shared", "-Xcompiler", "-fPIC,-w", "-isystem="+include,
			"-o", Name, "-Xlinker", "-soname="+Name, "cublas.cu", "stubs.c")
		cmd := device.Command(ctx, args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("emu: building cuBLAS: %w\n%s", err, bytes.TrimSpace(out))
		}
		for _, name := range append([]string{"libcublas.so", "libcublasLt.so"}, Names[1:]...) {
			if err := os.Symlink(Name, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return nil
	})
	return dir, err
}

var function = regexp.MustCompile(`(?m)^(?:CUBLASAPI )?cublasStatus_t CUBLASWINAPI\s+(cublas\w+)\(`)

// stubs returns definitions in C of the functions in the headers. A stub reports its name and returns
// CUBLAS_STATUS_NOT_SUPPORTED; the functions of cublas.cu replace it.
func stubs(headers string) string {
	var names []string
	for _, m := range function.FindAllStringSubmatch(headers, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	text := &strings.Builder{}
	text.WriteString("__attribute__((weak)) int fisub_vgpu_missing(const char *name);\n" +
		"static int lacks(const char *name) { if (fisub_vgpu_missing) fisub_vgpu_missing(name); return 15; }\n")
	for _, name := range slices.Compact(names) {
		fmt.Fprintf(text, "__attribute__((weak)) int %s(void) { return lacks(\"%s\"); }\n", name,
			strings.ReplaceAll(name, "_v2", ""))
	}
	return text.String()
}
