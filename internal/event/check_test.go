package event

import (
	"encoding/json"
	"testing"
)

func TestChecker(t *testing.T) {
	run := func(seq int64) Event { return Event{Seq: seq, Type: TypeRun, Run: &Run{}} }
	told := func(seq int64, workload, status, trace string) Event {
		return Event{Seq: seq, Type: TypeEvaluated, Workload: workload,
			Evaluated: &Evaluated{Status: status, Trace: json.RawMessage(trace)}}
	}
	done := func(seq int64, passed, failed int) Event {
		return Event{Seq: seq, Type: TypeDone, Done: &Done{Passed: passed, Failed: failed}}
	}
	ofJob := func(e Event) Event { e.Job = "j"; return e }
	one, other := told(2, "w", "PASSED", "1"), told(3, "w", "PASSED", "2")
	for _, tc := range []struct {
		name        string
		events      []Event
		folder, job string // what each kind of Checker says first
	}{
		{"sound", []Event{run(1), one, done(3, 1, 0)}, "", ""},
		{"failed", []Event{run(1), told(2, "w", "RUNTIME_ERROR", "1"), done(3, 0, 1)}, "", ""},
		{"gone on with", []Event{run(1), one, run(1), told(2, "v", "TIMEOUT", "1"), done(3, 0, 1)}, "",
			"event 1 follows event 2"},
		{"the same verdict twice", []Event{run(1), one, told(3, "w", "PASSED", "1")}, "", "two verdicts for workload w"},
		{"two verdicts", []Event{run(1), one, other}, "two verdicts for workload w", "two verdicts for workload w"},
		{"not numbered", []Event{run(0), told(0, "w", "PASSED", "1"), told(7, "v", "PASSED", "1"), done(0, 9, 9)}, "", ""},
		{"not numbered, two verdicts", []Event{run(0), told(0, "w", "PASSED", "1"), told(0, "w", "PASSED", "2")},
			"two verdicts for workload w", ""},
		{"left out", []Event{run(1), other}, "event 3 follows event 1", "event 3 follows event 1"},
		{"totals", []Event{run(1), one, done(3, 0, 1)}, "1 passed and 0 failed, and at its end it says 0 and 1",
			"1 passed and 0 failed, and at its end it says 0 and 1"},
		{"totals of many jobs", []Event{run(1), ofJob(one), done(3, 2, 0)}, "",
			"1 passed and 0 failed, and at its end it says 2 and 0"},
	} {
		for _, job := range []bool{false, true} {
			c, got, want := Checker{Job: job}, "", tc.folder
			if job {
				want = tc.job
			}
			for _, e := range tc.events {
				if text := c.Next(&e); got == "" {
					got = text
				}
			}
			if got != want {
				t.Errorf("%s, job %v: got %q, want %q", tc.name, job, got, want)
			}
		}
	}
	c := Checker{Job: true}
	for _, e := range []Event{run(1), one} {
		c.Next(&e)
	}
	c.Skip()
	e := done(4, 1, 0)
	if text := c.Next(&e); text != "" {
		t.Errorf("after a line that was skipped: got %q", text)
	}
	for status, want := range map[int]string{0: "", 1: "", 137: "", 3: "0 of 1 workloads failed, and its exit status is 3"} {
		if text := c.Exit(status); text != want {
			t.Errorf("exit status %d: got %q, want %q", status, text, want)
		}
	}
}
