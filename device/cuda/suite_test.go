//go:build cuda && linux && cgo

package cuda

import (
	"testing"

	"fisub/device/devicetest"
)

func TestSuite(t *testing.T) {
	if err := gpuFor(t).Close(); err != nil {
		t.Fatal(err)
	}
	devicetest.Run(t, Opener())
}
