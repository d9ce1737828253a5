//go:build linux && cgo

package vgpu

import (
	"testing"

	"fisub/device/devicetest"
)

func TestConformance(t *testing.T) { devicetest.Run(t, Opener()) }
