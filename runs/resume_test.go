package runs

import (
	"errors"
	"strings"
	"testing"

	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/hint"
	"fisub/internal/usage"
)

// hinted checks that err is a usage error with a hint that contains words, or nil for "".
func hinted(t *testing.T, what string, err error, words string) {
	t.Helper()
	var u *usage.Error
	if words == "" && err != nil || words != "" &&
		(!errors.As(err, &u) || !strings.Contains(err.Error()+"\n"+hint.Of(err), words)) {
		t.Errorf("%s: got %v, want %q", what, err, words)
	}
}

func TestContinue(t *testing.T) {
	describe := func() *event.Run {
		return &event.Run{ID: "new", Solution: "s", ContentHash: "h", Definition: "d", Set: "default", Timer: "auto",
			DPS:     true,
			Profile: event.Profile{Name: "quick"}, Workloads: []event.WorkloadRef{{UUID: "a"}, {UUID: "b"}}}
	}
	old := func() *Run {
		run := describe()
		run.ID, run.Workloads = "old", append(run.Workloads, event.WorkloadRef{UUID: "c"})
		return &Run{ID: "old", Summary: Summary{Run: run}}
	}
	run := describe()
	if err := old().Continue(run); err != nil || run.ID != "old" || len(run.Workloads) != 3 {
		t.Errorf("got %v, run %s with %d workloads, want the old one with all 3", err, run.ID, len(run.Workloads))
	}
	for _, tc := range []struct {
		change func(*event.Run)
		words  string
	}{
		{func(r *event.Run) { r.ContentHash = "x" }, "its content hash is h, now it is x"},
		{func(r *event.Run) { r.Set = "other" }, "its set is default, now it is other"},
		{func(r *event.Run) { r.Profile.Trials = 2 }, "its profile is"},
		{func(r *event.Run) { r.Timer = "events" }, "its timer is auto"},
		{func(r *event.Run) { r.Baseline = &event.Baseline{Name: "n", ContentHash: "0123456789"} },
			"its baseline is none, now it is n 01234567"},
		{func(r *event.Run) { r.DPS = false }, "its destination-passing style is true, now it is false"},
	} {
		run := describe()
		tc.change(run)
		hinted(t, tc.words, old().Continue(run), tc.words)
	}
}

func TestSameDevice(t *testing.T) {
	d := device.Info{Kind: "cuda", Name: "H200", UUID: "u", Arch: "sm_90", Driver: "580"}
	old := &Run{ID: "old", Summary: Summary{Run: &event.Run{Device: d}}}
	hinted(t, "the same", old.SameDevice(d), "")
	d.Driver = "590"
	hinted(t, "another driver", old.SameDevice(d), "its driver is 580, now it is 590")
}
