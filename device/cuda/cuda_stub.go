//go:build !(cuda && linux && cgo)

package cuda

import (
	"context"

	"fisub/device"
)

// Built reports whether this program can use a GPU.
const Built = false

// Opener opens NVIDIA GPUs; in this build, Open fails with ErrNotBuilt.
func Opener() device.Opener {
	return device.Opener{Kind: "cuda", Open: func(context.Context, device.Options) (device.Device, error) {
		return nil, ErrNotBuilt
	}}
}
