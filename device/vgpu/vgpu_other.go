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
	return device.Opener{Kind: "emu", Open: func(context.Context, device.Options) (device.Device, error) {
		return nil, errors.New("emu: the virtual GPU runs on Linux only")
	}}
}
