package machine

import (
	"errors"
	"strings"
	"testing"

	"fisub/device"
	"fisub/internal/hint"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
)

func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		name, kind string
		ordinal    int
		fault      string
	}{
		{"emu", "emu", 0, ""}, {"cuda", "cuda", 0, ""}, {"cuda:3", "cuda", 3, ""},
		{"cuda:x", "", 0, `"x" is not a device number`}, {"cuda:-1", "", 0, "is not a device number"},
		{"emu:1", "", 1, "unknown device"}, {"auto:1", "", 1, "unknown device"}, {"gpu", "", 0, "one of auto, cuda"},
	} {
		var opts device.Options
		kind, err := Choose(t.Context(), tc.name, &trace.Solution{}, &opts, &ui.Terminal{})
		var u *usage.Error
		if tc.fault == "" && err != nil ||
			tc.fault != "" && (!errors.As(err, &u) || !strings.Contains(err.Error()+"\n"+hint.Of(err), tc.fault)) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.fault)
		}
		if kind != tc.kind || opts.Ordinal != tc.ordinal {
			t.Errorf("%s: got %s, %d, want %s, %d", tc.name, kind, opts.Ordinal, tc.kind, tc.ordinal)
		}
	}
}

func TestLacking(t *testing.T) {
	for text, want := range map[string]string{
		"cuda: device unavailable: no NVIDIA driver: libcuda.so.1: cannot open shared object file": "no NVIDIA driver",
		"cuda: driver too old": "cuda: driver too old",
	} {
		if got := lacking(errors.New(text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
