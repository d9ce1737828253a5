package agent

import "testing"

func TestAbridged(t *testing.T) {
	args := []string{"fisub", "local", "--workload", "a", "--workload", "b", "--workload", "c"}
	if got, want := abridged(args), "fisub local --workload a --workload b --workload c"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := abridged(append(args, "--workload", "d", "--json")),
		"fisub local --workload a --workload b --workload c --json (and 1 more workload)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
