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

// Compiler returns the command to which the arguments of nvcc are to be added, for programs that run on the virtual GPU
// and on a GPU.
func Compiler(t *nvcc.Toolchain) []string {
	return []string{"/bin/sh", "-c", strings.ReplaceAll(wrapper, "NVCC", t.NVCC), "nvcc"}
}

// HostName is the runtime library's name in a process that may have NVIDIA's.
const HostName = "libfisub_cudart.so"

// hostCache is the folder of the cache with what Home makes.
const hostCache = "vgpu-python"

// Home is a folder as $CUDA_HOME names one, for programs that compile CUDA by themselves: its nvcc keeps the PTX, and
// what is linked with its runtime, which this process then has, runs on the virtual GPU: on Host. root is the cache's
// folder.
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

// PrepareHome builds what Home returns, so that a process that may not write to the cache finds it.
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

// Host is what the runtime library in this process launches kernels on.
func Host() *Machine { return host.machine }

// Verdict is what kernels of Host have done wrong since the last call, which wraps a *Fault, or that something was
// lacking.
func Verdict() error {
	err := verdict()
	host.Lock()
	defer host.Unlock()
	host.fault, host.lack = nil, ""
	return err
}
