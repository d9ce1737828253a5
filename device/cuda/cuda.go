// Package cuda implements device.Device for NVIDIA GPUs. It builds a submission with device/nvcc and calls it through
// the tvm-ffi C ABI, as the contest does, but without Python. It needs the build tag cuda and CUDA's headers, at the
// paths set by scripts/env; without the tag, Open fails with ErrNotBuilt. A binary built with the tag also starts on
// machines without a driver.
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

// ErrUnavailable is wrapped by the errors of Open for a machine without a usable GPU, independent of the ordinal:
// ErrNotBuilt, ErrNoDriver, ErrNoGPU, and a driver that does not start.
var ErrUnavailable = hint.Wrap(errors.New("cuda: device unavailable"),
	"nvidia-smi shows what the driver sees; --device emu runs on the CPU")

var (
	ErrNotBuilt = hint.Wrap(fmt.Errorf("%w: %w", ErrUnavailable, device.ErrNotBuilt), hint.Of(device.ErrNotBuilt))
	ErrNoDriver = fmt.Errorf("%w: no NVIDIA driver", ErrUnavailable)
	ErrNoGPU    = fmt.Errorf("%w: the NVIDIA driver sees no GPU", ErrUnavailable)
)

// ErrOrdinal is wrapped by the error of Open if no GPU has the ordinal.
var ErrOrdinal = hint.Wrap(errors.New("cuda: no such device"), "--device cuda:0 is the first GPU")

// ErrDriverTooOld is wrapped by errors of Open and Build if the driver supports only an older CUDA release than the
// runtime that kernels are linked with.
var ErrDriverTooOld = hint.Wrap(errors.New("cuda: driver too old"),
	"update the NVIDIA driver, or set CUDA_HOME to an older toolkit")

// ErrArch is wrapped by the error of Build if a prebuilt kernel does not run on this GPU.
var ErrArch = hint.Wrap(errors.New("arch mismatch"), device.ArchHint)

// ErrFault is wrapped by every error after a device fault, such as an illegal address: this process can no longer use
// the GPU, but another one can.
var ErrFault = fmt.Errorf("cuda: %w", device.ErrFault)

// CUPTIDirs returns the folders to search for libcupti: toolkits and the toolchain in the cache. t may be nil.
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
