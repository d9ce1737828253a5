//go:build linux && cgo

package vgpu

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"strings"

	"fisub/device/nvcc"
	"fisub/internal/cache"
)

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

// Home returns a folder for $CUDA_HOME, for programs that compile CUDA themselves, and loads its runtime into this
// process. Its nvcc keeps the PTX, and objects linked with its runtime run on Host. root is the cache's folder.
func Home(ctx context.Context, root string) (string, error) {
	t, err := nvcc.Find(root)
	if err != nil {
		return "", err
	}
	dir, library, err := home(ctx, root, t)
	if err != nil {
		return "", err
	}
	return dir, install(library)
}

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

// Host returns the machine that runs the launches of the runtime library in this process.
func Host() *Machine { return host.machine }

// Verdict returns and clears the fault of a kernel of Host, which wraps a *Fault, or the error for an unsupported
// feature.
func Verdict() error {
	err := verdict()
	host.Lock()
	defer host.Unlock()
	host.fault, host.lack = nil, ""
	return err
}
