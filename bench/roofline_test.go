package bench

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/devicetest"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/longtest"
)

func newTestRoofline(t *testing.T) *roofline {
	t.Helper()
	f, err := newRoofline(t.Context(), &Shared{Profile: Profile{Iterations: 1, Trials: 1, Timeout: time.Minute},
		DeviceKind: "emu",
		Worker:     worker.Command{Args: []string{os.Args[0]}}, Device: device.Options{CacheDir: devicetest.Cache(t)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.stop)
	f.limit = limit{left: 10 * time.Minute} // it compiles
	return f
}

// Every shape copies every byte on the virtual GPU: less than a block, and several blocks with a partial last one.
func TestFloorCopies(t *testing.T) {
	longtest.Skip(t, "compiles copies for the emulator")
	f := newTestRoofline(t)
	for shape := emptyShape; shape < len(copyShapes); shape++ {
		for _, moved := range []int64{32, 32 * 1000} {
			_, err := f.run(t.Context(), device.Plan{Iterations: 1, Trials: 1}, shape, moved)
			var we *worker.Error
			if !errors.As(err, &we) || we.Kind != worker.Timing { // which comes after the check
				t.Errorf("shape %d, %d bytes: got %v, want no error but that the virtual GPU measures no time", shape, moved, err)
			}
		}
	}
	if _, err := f.run(t.Context(), device.Plan{Iterations: 1, Trials: 1}, len(copyShapes), 32); err == nil ||
		!strings.Contains(err.Error(), "no shape 6") {
		t.Errorf("a shape too many: got %v, want an error", err)
	}
}

func TestFloorCompiles(t *testing.T) {
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := nvcc.Find(root)
	if err != nil {
		longtest.Missing(t, "toolchain", err)
	}
	f := newTestRoofline(t)
	for _, arch := range []string{"sm_90", "sm_100"} {
		var build *device.BuildError
		if o, err := tools.Build(t.Context(), root, f.process.sol, arch); errors.As(err, &build) {
			t.Errorf("%s: %v\n%s", arch, err, build.Log)
		} else if err != nil || o.Log != "" {
			t.Errorf("%s: got %v, %+v, want an object without warnings", arch, err, o)
		}
	}
}
