// Package solutiontest opens the devices that the tests of this repository's kernels run on.
package solutiontest

import (
	"errors"
	"strings"
	"testing"

	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/devicetest"
	"fisub/device/nvcc"
	"fisub/device/vgpu"
	"fisub/internal/longtest"
)

// Emulated opens the virtual GPU with these sanitizers, and skips the test without a toolchain for it. The caller
// closes it.
func Emulated(t *testing.T, sanitizers ...string) device.Device {
	t.Helper()
	d, err := vgpu.Opener().Open(t.Context(), device.Options{CacheDir: devicetest.Cache(t),
		Sanitize: strings.Join(sanitizers, ",")})
	var missing *nvcc.MissingError
	if errors.As(err, &missing) {
		longtest.Missing(t, "toolchain", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// GPU opens the first GPU. Without one it skips the test, or fails it if FISUB_TEST_REQUIRE lists cuda. The caller closes
// the device.
func GPU(t *testing.T) device.Device {
	t.Helper()
	d, err := cuda.Opener().Open(t.Context(), device.Options{})
	if err != nil {
		longtest.Missing(t, "cuda", err)
	}
	return d
}
