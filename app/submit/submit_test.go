package submit

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/trace"
	"fisub/runs"
)

func TestExpand(t *testing.T) {
	for _, tc := range []struct {
		pattern string
		taken   []string
		want    string
	}{
		{Pattern, nil, "submission-d-1"},
		{Pattern, []string{"submission-d-2", "submission-d-10", "submission-d-9", "submission-e-40"}, "submission-d-11"},
		{Pattern, []string{"submission-d-x", "submission-d-", "submission-d-3-4", "submission-d-99999999999999999999",
			"submission-d--5"}, "submission-d-1"},
		{"v{n}/{definition}", []string{"v7/d", "v8/e", "v9"}, "v8/d"},
		{"fixed", []string{"fixed"}, "fixed"},
	} {
		if got := Expand(tc.pattern, "d", tc.taken); got != tc.want {
			t.Errorf("%s with %v taken: got %s, want %s", tc.pattern, tc.taken, got, tc.want)
		}
	}
}

func TestNote(t *testing.T) {
	n := Note{Definition: "d", Name: "x\nContent-Hash: 1", Author: "a\u2028b\x1b[2J", ContentHash: "abc", Run: "none",
		Fisub: "0.1"}
	want := n
	want.Name, want.Author = "x Content-Hash: 1", "a b [2J"
	if got := parseNote(n.Message()); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := parseNote("Release 1\n\nDefinition: none\n"); got != (Note{}) {
		t.Errorf("got %+v of a message that is not fisub's, want nothing", got)
	}
}

// Any parsed note can be written and parsed again, without additional lines.
func FuzzNote(f *testing.F) {
	f.Add("Definition: d\nContent-Hash: abc\nName: n\n")
	f.Add("Definition: \nContent-Hash: x\r\nDefinition: d\x00")
	f.Fuzz(func(t *testing.T, message string) {
		n := parseNote(message)
		if got := parseNote(n.Message()); got != n {
			t.Errorf("got %+v, want %+v", got, n)
		}
	})
}

// Only a run of exactly this content, on a GPU and on the contest's whole set, is a proof, and no such run may have
// failed.
func TestProve(t *testing.T) {
	root := t.TempDir()
	sol := &trace.Solution{Name: "n", Author: "a", Definition: "d",
		Spec:    trace.BuildSpec{Language: trace.CUDA, EntryPoint: "k.cu::k", DestinationPassingStyle: true},
		Sources: []trace.SourceFile{{Path: "k.cu", Content: "1"}}}
	other := *sol
	other.Sources = []trace.SourceFile{{Path: "k.cu", Content: "2"}}
	set := []*trace.Workload{{UUID: "u1"}, {UUID: "u2"}}
	hasEdge, ran := false, "default"
	workloads := func(name string) ([]*trace.Workload, error) {
		if name == "edge" && !hasEdge {
			return nil, errors.New("no such set")
		}
		return set, nil
	}
	n := 0
	run := func(sol *trace.Solution, emulated bool, statuses ...string) string {
		t.Helper()
		n++
		id := time.Unix(int64(1e9+n), 0).UTC().Format("20060102-150405")
		r := &event.Run{Schema: event.Schema, ID: id, Solution: sol.Name, Author: sol.Author, ContentHash: sol.Hash(),
			Definition: sol.Definition, Set: ran,
			DPS: sol.Spec.DestinationPassingStyle, Device: event.Device{Kind: "cuda", Name: "GPU", Emulated: emulated}}
		for i := range statuses {
			r.Workloads = append(r.Workloads, event.WorkloadRef{UUID: set[i].UUID})
		}
		folder := runs.NewFolder(root, id)
		stream := event.NewStream(folder.Record)
		stream.Emit(event.Event{Type: event.TypeRun, Run: r})
		done := &event.Done{}
		for i, status := range statuses {
			if status == "" {
				continue
			}
			done.Failed++
			ms := 1.0
			if status == "PASSED" {
				done.Passed, done.Failed = done.Passed+1, done.Failed-1
			}
			stream.Emit(event.Event{Type: event.TypeEvaluated, Workload: set[i].UUID,
				Evaluated: eventtest.Verdict{UUID: set[i].UUID, Status: status, Latency: &ms}.Evaluated()})
		}
		stream.Emit(event.Event{Type: event.TypeDone, Done: done})
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		folder.Close()
		return id
	}
	prove := func(sol *trace.Solution) *Proof {
		t.Helper()
		p, err := Prove(root, sol, workloads)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := prove(sol); p.Run != nil || p.Failed != "" || p.Changed != "" {
		t.Errorf("no run: got %+v, want nothing", p)
	}
	old := run(&other, true, "PASSED", "PASSED")
	if p := prove(sol); p.Run != nil || p.Changed != old || p.Old != other.Hash() {
		t.Errorf("got %+v, want only that it changed", p)
	}
	for _, tc := range []struct {
		statuses []string
		want     string
	}{
		{[]string{"PASSED"}, "left out 1 of the 2 workloads of set contest"},
		{[]string{"PASSED", ""}, "passed 1 of its 2 workloads"},
	} {
		id := run(sol, false, tc.statuses...)
		if p := prove(sol); p.Run != nil || p.Failed != "run "+id+" "+tc.want {
			t.Errorf("%v: got %+v, want %s", tc.statuses, p, tc.want)
		}
	}
	emulated := run(sol, true, "PASSED", "PASSED")
	if p := prove(sol); p.Run != nil || p.Seen == nil || p.Seen.ID != emulated ||
		p.Failed != "run "+emulated+" used the virtual GPU, which proves nothing about a GPU" {
		t.Errorf("got %+v, want the emulated run as seen, and no proof", p)
	}
	if p := prove(sol); p.Broken != "" {
		t.Errorf("got %q, want no run that failed", p.Broken)
	}
	gpu := run(sol, false, "PASSED", "PASSED")
	run(sol, true, "PASSED", "PASSED")
	run(sol, true, "PASSED", "TIMEOUT") // says nothing about a GPU
	if p := prove(sol); p.Run == nil || p.Run.ID != gpu || p.Seen != p.Run || len(p.Warnings) != 0 || p.Broken != "" {
		t.Errorf("got %+v, want the run on a GPU", p)
	}
	broken := run(sol, true, "PASSED", "RUNTIME_ERROR")
	run(sol, false, "PASSED", "PASSED")
	if p := prove(sol); p.Broken != "run "+broken+", of the same content, passed 1 of its 2 workloads: RUNTIME_ERROR on u2" {
		t.Errorf("got %+v, want the run that failed", p)
	}
	plan := &TagPlan{}
	plan.tested(prove(sol), true, true)
	if refused, fault := plan.Refused(); !refused || !fault {
		t.Errorf("got %+v, want it refused, untested or not", plan.Steps)
	}
	if p := prove(sol); p.EdgeLack != "" {
		t.Errorf("got %q of a definition without set edge", p.EdgeLack)
	}
	hasEdge, ran = true, "edge"
	before := prove(sol)
	states := func(untested bool) (states []StepState) {
		plan := &TagPlan{}
		plan.tested(prove(sol), untested, false)
		for _, s := range plan.Steps {
			if s.Name == "edge" {
				states = append(states, s.State)
			}
		}
		return states
	}
	if got := states(false); !slices.Equal(got, []StepState{Todo}) || before.EdgeLack != "no run of this content on "+
		"set edge" {
		t.Errorf("got %v, %q, want the run that is to be done", got, before.EdgeLack)
	}
	wrong := run(sol, true, "PASSED", "RUNTIME_ERROR")
	if p := prove(sol); p.Broken != before.Broken || p.Run.ID != before.Run.ID ||
		p.EdgeLack != "run "+wrong+" passed 1 of its 2 workloads: RUNTIME_ERROR on u2 ()" {
		t.Errorf("got %+v, want the run on set edge that failed", p)
	}
	if got := append(states(false), states(true)...); !slices.Equal(got, []StepState{Fault, Warning}) {
		t.Errorf("got %v, want a fault that --untested overrides", got)
	}
	run(sol, true, "PASSED", "PASSED")
	if got := states(false); !slices.Equal(got, []StepState{OK}) {
		t.Errorf("got %v, want ok", got)
	}
	hasEdge, ran = false, "default"
	returning := *sol
	returning.Spec.DestinationPassingStyle = false
	if p := prove(&returning); p.Run != nil || !strings.HasSuffix(p.Failed, "ran with destination_passing_style = true") {
		t.Errorf("got %+v, want no run of that style", p)
	}
	renamed := *sol
	renamed.Name, renamed.Author = "m", "b"
	if p := prove(&renamed); p.Run == nil || len(p.Warnings) != 2 {
		t.Errorf("got %+v, want warnings about name and author", p)
	}
}
