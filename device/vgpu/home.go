//go:build linux && cgo

package vgpu

import (
	"context"

	"fisub/device/nvcc"
)

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

// Host returns the machine that runs the launches of the runtime library in this process.
func Host() *Machine { return host.machine }

// Verdict returns and clears the fault of a kernel of Host, which wraps a *Fault, or the error for an unsupported
// feature.
func Verdict() error {
	err := verdict()
	host.Lock()
	defer host.Unlock()
	host.fault, host.lack, host.lacks = nil, "", nil
	return err
}
