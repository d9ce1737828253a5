package bench

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"fisub/bench/worker"
	"fisub/device"
)

// The test binary is also the worker of its own runs, with the devices of run_test.go and measure_test.go.
func TestMain(m *testing.M) {
	if in, out, err := worker.Pipes(); err == nil {
		if err := worker.Serve(context.Background(), in, out, []device.Opener{{Kind: "model", Open: openModel}, {Kind: "shaky", Open: openShaky}},
			func(error) string { return "code" }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
