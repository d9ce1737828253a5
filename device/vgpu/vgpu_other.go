//go:build !(linux && cgo)

// Package vgpu is a virtual GPU. It needs Linux and a build with cgo.
package vgpu

import (
	"context"
	"errors"

	"fisub/device"
)

// Opener returns an opener that always fails: this build does not include the virtual GPU.
func Opener() device.Opener {
	return device.Opener{Kind: "emu", Open: func(context.Context, device.Options) (device.Device, error) {
		return nil, errors.New("emu: the virtual GPU runs only on Linux")
	}}
}
