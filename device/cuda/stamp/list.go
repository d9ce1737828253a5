package stamp

import "fisub/device"

// A GPU is one that NVML lists.
type GPU struct {
	UUID      string // "GPU-..."
	Name      string // "NVIDIA B200"
	Processes []device.GPUProcess
}
