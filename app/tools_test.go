package app

import (
	"io"
	"testing"

	"fisub/app/outcome"
	"fisub/internal/ui"
	"fisub/project/tools"
	"fisub/remote/dispatch"
)

// A profile made on a host is in the final object too.
func TestFinalOfRemoteProfile(t *testing.T) {
	a := &app{json: true, final: new(outcome.Outcome), stdout: io.Discard,
		term: &ui.Terminal{Out: io.Discard, Err: io.Discard}}
	plan := new(dispatch.Plan)
	plan.Tool = "profile"
	output := &toolOutput{a: a}
	if err := output.open(plan, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	line := `{"tool":"ncu","workload":"w","verdict":"profiled","kernels":[{"name":"f()","figures":[]}]}`
	if _, ok := tools.ReadRecord([]byte(line)); !ok {
		t.Fatal("not a record")
	}
	if err := output.line(nil, []byte(line)); err != nil {
		t.Fatal(err)
	}
	if a.final.Status != "profiled" || len(a.final.Kernels) != 1 {
		t.Errorf("got %+v, want a profile of one kernel", a.final)
	}
}
