// Package cuda implements device.Device for NVIDIA GPUs. It builds a submission with device/nvcc and calls it through
// the tvm-ffi C ABI, like the contest, but without Python. It needs the build tag cuda and CUDA's headers (see
// scripts/env); without the tag, Open fails with ErrNotBuilt. A binary with the tag also starts without a driver.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/hint"
)

// ErrUnavailable is wrapped by Open's errors if the machine has no usable GPU at all: ErrNotBuilt, ErrNoDriver,
// ErrNoGPU, and a driver that does not start.
var ErrUnavailable = hint.Wrap(errors.New("cuda: device unavailable"),
	"nvidia-smi lists the driver's GPUs; --device emu runs on the CPU")

var (
	ErrNotBuilt = hint.Wrap(fmt.Errorf("%w: %w", ErrUnavailable, device.ErrNotBuilt), hint.Of(device.ErrNotBuilt))
	ErrNoDriver = fmt.Errorf("%w: no NVIDIA driver", ErrUnavailable)
	ErrNoGPU    = fmt.Errorf("%w: the NVIDIA driver sees no GPU", ErrUnavailable)
)

// ErrOrdinal is wrapped by Open's error if no GPU has the ordinal.
var ErrOrdinal = hint.Wrap(errors.New("cuda: no such device"), "--device cuda:0 is the first GPU")

// ErrDriverTooOld is wrapped by errors of Open and Build if the driver does not support the CUDA release of the
// runtime that kernels link with.
var ErrDriverTooOld = hint.Wrap(errors.New("cuda: driver too old"),
	"update the NVIDIA driver, or set CUDA_HOME to an older toolkit")

// ErrArch is wrapped by Build's error if a prebuilt kernel does not run on this GPU.
var ErrArch = hint.Wrap(errors.New("arch mismatch"), device.ArchHint)

// ErrFault is wrapped by all errors after a device fault, such as an illegal address: this process can no longer use
// the GPU, but another can.
var ErrFault = fmt.Errorf("cuda: %w", device.ErrFault)

// CUPTIDirs returns the folders to search for libcupti. t may be nil.
func CUPTIDirs(root string, t *nvcc.Toolchain) (dirs []string) {
	homes := []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH")}
	if t != nil {
		homes = append(homes, filepath.Dir(filepath.Dir(t.NVCC)))
	}
	for _, home := range append(homes, "/usr/local/cuda") {
		if home != "" {
			dirs = append(dirs, filepath.Join(home, "extras", "CUPTI", "lib64"), filepath.Join(home, "lib64"))
		}
	}
	if t != nil {
		dirs = append(dirs, t.LibDirs...)
	}
	if installed, ok := nvcc.Installed(root); ok {
		dirs = append(dirs, filepath.Join(installed, "cuda", "lib"))
	}
	return dirs
}
