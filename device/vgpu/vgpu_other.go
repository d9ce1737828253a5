//go:build !(linux && cgo)

// Package vgpu is a GPU that is a program; it runs on Linux, in a build with cgo.
package vgpu

import (
	"context"
	"errors"

	"fisub/device"
)

// Opener opens the virtual GPU, which this build has not.
func Opener() device.Opener {
	return device.Opener{Kind: "vgpu", Open: func(context.Context, device.Options) (device.Device, error) {
		return nil, errors.New("vgpu: this build has no virtual GPU")
	}}
}
