//go:build linux && cgo

package vgpu

import (
	"testing"

	"fisub/device/devicetest"
	"fisub/internal/longtest"
)

func TestConformance(t *testing.T) {
	longtest.Skip(t, "runs nvcc")
	devicetest.Run(t, Opener())
}
