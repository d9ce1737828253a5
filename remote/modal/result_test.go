package modal

import (
	"cmp"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"fisub/remote"
)

// TestEnds checks what the end of a sandbox means for a job without an exit.
func TestEnds(t *testing.T) {
	const hint = "another sandbox can run its unfinished workloads"
	for _, c := range []struct {
		result result
		output string
		want   remote.Exit
	}{
		{result{status: pb.GenericResult_GENERIC_STATUS_TIMEOUT}, "",
			remote.Exit{End: remote.Limited, Text: "Modal ended the sandbox at its time limit"}},
		{result{status: pb.GenericResult_GENERIC_STATUS_TERMINATED}, "",
			remote.Exit{End: remote.Cancelled, Text: "the sandbox was ended"}},
		{result{status: pb.GenericResult_GENERIC_STATUS_TERMINATED, text: "Sandbox was preempted"}, "",
			remote.Exit{End: remote.Lost, Text: "Sandbox was preempted", Hint: hint}},
		{result{status: pb.GenericResult_GENERIC_STATUS_FAILURE}, "no program",
			remote.Exit{End: remote.Lost, Text: "the sandbox ended: failure: no program", Hint: hint}},
		{result{status: pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, text: "a worker went away"}, "no program",
			remote.Exit{End: remote.Lost, Text: "a worker went away", Hint: hint}},
		{result{}, "", remote.Exit{End: remote.Lost, Text: "the sandbox is unknown to Modal", Hint: hint}},
	} {
		if got := cmp.Or(c.result.cause(), c.result.lost(c.output)); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.result, got, c.want)
		}
	}
}
