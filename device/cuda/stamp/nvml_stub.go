//go:build !(cuda && linux && cgo)

package stamp

import (
	"errors"

	"fisub/device"
)

// A Meter reads one GPU; in this build it cannot be opened.
type Meter struct{}

// Open finds the GPU with the UUID; in this build it fails.
func Open(string) (*Meter, error) { return nil, errors.New("nvml: built without -tags cuda") }

// Close shuts NVML down.
func (*Meter) Close() {}

// Begin starts the readings.
func (*Meter) Begin([]int) (end func() (*device.Stamp, []string)) {
	return func() (*device.Stamp, []string) { return nil, nil }
}

// GPUs lists the GPUs of this machine; in this build it fails.
func GPUs() ([]GPU, error) { return nil, errors.New("built without -tags cuda") }
