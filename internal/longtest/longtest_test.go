package longtest

import (
	"fmt"
	"testing"
)

// record stores the outcome of a test instead of ending it.
type record struct {
	testing.TB
	outcome string
}

func (*record) Helper()            {}
func (r *record) Skip(args ...any) { r.end("skip: " + fmt.Sprint(args...)) }
func (r *record) Skipf(format string, args ...any) {
	r.end("skip: " + fmt.Sprintf(format, args...))
}
func (r *record) Fatalf(format string, args ...any) {
	r.end("fail: " + fmt.Sprintf(format, args...))
}
func (r *record) end(outcome string) {
	if r.outcome == "" {
		r.outcome = outcome
	}
}

func TestMissing(t *testing.T) {
	for _, tc := range []struct{ require, name, want string }{
		{"", "aws", "skip: no moto; to run it: scripts/aws/tools"},
		{"", "cuda", "skip: no moto"},
		{"ssh,awsome", "aws", "skip: no moto; to run it: scripts/aws/tools"},
		{"ssh,aws", "aws", "fail: FISUB_TEST_REQUIRE lists aws: no moto"},
		{"", "moto", `fail: longtest: unknown requirement "moto"`},
	} {
		t.Setenv("FISUB_TEST_REQUIRE", tc.require)
		r := &record{TB: t}
		Missing(r, tc.name, "no moto")
		if r.outcome != tc.want {
			t.Errorf("%s of %q: got %s, want %s", tc.name, tc.require, r.outcome, tc.want)
		}
	}
}

func TestCI(t *testing.T) {
	for all, want := range map[string]string{"": "skip: left out of make test: starts Slurm; to run it: make ci", "1": ""} {
		t.Setenv("FISUB_TEST_ALL", all)
		r := &record{TB: t}
		CI(r, "starts Slurm")
		if r.outcome != want {
			t.Errorf("FISUB_TEST_ALL=%s: got %q, want %q", all, r.outcome, want)
		}
		if got := Rounds(20); (got == 20) != (all != "") {
			t.Errorf("FISUB_TEST_ALL=%s: got %d rounds", all, got)
		}
	}
}
