package outcome

import (
	"bytes"
	"encoding/json"
	"testing"

	"fisub/app/submit"
	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/project/tools"
	"fisub/runs"
)

func row(uuid string, batch int, status string, speedup float64) runs.Row {
	v := eventtest.Verdict{Status: status}
	if speedup > 0 {
		v.Speedup = &speedup
	}
	return runs.Row{UUID: uuid, Axes: map[string]int{"batch_size": batch, "seq_len": 6}, Evaluated: v.Evaluated()}
}

func contest(string) bool { return true }

func of(device event.Device, rows ...runs.Row) *Outcome {
	r := &runs.Run{ID: "one", Summary: runs.Summary{
		Run: &event.Run{Device: device, Set: "contest", Language: "cuda", DPS: true,
			Workloads: make([]event.WorkloadRef, len(rows))},
		Rows: rows, Done: &event.Done{}}}
	o := new(Outcome)
	o.Of(r, contest)
	return o
}

func TestWorst(t *testing.T) {
	const ok, wrong = "PASSED", "INCORRECT_NUMERICAL"
	for _, c := range []struct {
		name string
		rows []runs.Row
		want *Group
	}{
		{"nothing was timed", []runs.Row{row("a", 1, ok, 0), row("b", 8, ok, 0)}, nil},
		{"one value of each axis", []runs.Row{row("a", 1, ok, 2), row("b", 1, wrong, 0)}, nil},
		{"speed", []runs.Row{row("a", 1, ok, 3), row("b", 8, ok, 1), row("c", 8, ok, 2)},
			&Group{Axis: "batch_size", Value: 8, Workloads: 2, Passed: 2, Speedup: 1.5}},
		{"a baseline that fails one weighs nothing", []runs.Row{row("a", 1, ok, 3), row("b", 8, ok, 0), row("c", 8, ok, 4)},
			&Group{Axis: "batch_size", Value: 1, Workloads: 1, Passed: 1, Speedup: 3}},
		{"what fails comes before what is slow", []runs.Row{row("a", 1, ok, 1), row("b", 8, ok, 9), row("c", 8, wrong, 0)},
			&Group{Axis: "batch_size", Value: 8, Workloads: 2, Passed: 1, Speedup: 9}},
	} {
		got := of(event.Device{}, c.rows...).Worst
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(c.want)
		if !bytes.Equal(a, b) {
			t.Errorf("%s: got %s, want %s", c.name, a, b)
		}
	}
}

func TestVerdict(t *testing.T) {
	fault := row("96825aea-cf78", 1, "RUNTIME_ERROR", 0)
	fault.Evaluated.Detail = "invalid access"
	fault.Evaluated.Trace.Evaluation.Log = "at /tmp/x/kernel.cu:41 in block (0,0,0)\nkernel.cu:50"
	raced := row("96825aea-cf78", 1, "INCORRECT_NUMERICAL", 0)
	raced.Evaluated.Trace.Evaluation.Log = "1 of 2 elements are wrong\nwarning: kernel.cu:3:1: race on shared memory"
	python := &runs.Run{ID: "one", Summary: runs.Summary{Rows: []runs.Row{fault},
		Run: &event.Run{Set: "contest", Language: "python", Device: event.Device{Emulated: true}}}}
	inPython := new(Outcome)
	inPython.Of(python, contest)
	python.Run.Language, python.Run.DPS, python.Run.Binding = "cuda", true, "torch"
	inTorch := new(Outcome)
	inTorch.Of(python, contest)
	found := row("a", 1, "PASSED", 0)
	found.Findings = []event.Finding{{Check: "late-write", Place: "kernel.cu:7:3", Text: "wrote late"}}
	lost := runs.Row{UUID: "b", Unjudged: &event.Message{Text: "no memory"}}
	emu := event.Device{Emulated: true}
	parameters := row("c", 1, "RUNTIME_ERROR", 0)
	parameters.Evaluated.Detail = "TypeError: Expected 11 arguments but got 10"
	small := new(Outcome)
	small.Of(&runs.Run{ID: "one", Summary: runs.Summary{Run: &event.Run{Set: "default", Device: emu,
		Workloads: make([]event.WorkloadRef, 1)}, Rows: []runs.Row{row("a", 1, "PASSED", 0)},
		Done: &event.Done{Passed: 1}}}, contest)
	for _, c := range []struct {
		name         string
		o            *Outcome
		status, next string
	}{
		{"passed", of(event.Device{}, row("a", 1, "PASSED", 2)), "passed", "fisub report one"},
		{"emulated", of(emu, row("a", 1, "PASSED", 0)), "passed", "fisub remote --gpu b200 --set contest"},
		{"emulated, a small set", small, "passed", "fisub local --device emu --set contest"},
		{"wrong parameters", of(emu, parameters), "not passed", "fisub check"},
		{"findings", of(emu, found), "findings", "fisub runs show one"},
		{"fault", of(emu, found, fault), "not passed", "fisub sanitize --device emu --set contest --workload 96825aea"},
		{"wrong outputs after a race", of(emu, raced), "not passed",
			"fisub sanitize --device emu --set contest --workload 96825aea"},
		{"wrong outputs", of(emu, row("96825aea-cf78", 1, "INCORRECT_NUMERICAL", 0)), "not passed",
			"fisub local --device emu --set contest --workload 96825aea --dump dump"},
		{"a fault in Python, which sanitize refuses", inPython, "not passed",
			"fisub local --device emu --set contest --workload 96825aea --dump dump"},
		{"a fault in a torch binding, which sanitize refuses", inTorch, "not passed",
			"fisub local --device emu --set contest --workload 96825aea --dump dump"},
		{"lost", of(emu, found, lost), "no verdict", "fisub local --resume one"},
	} {
		if c.o.Status != c.status || c.o.Next != c.next {
			t.Errorf("%s: got %q and %q, want %q and %q", c.name, c.o.Status, c.o.Next, c.status, c.next)
		}
	}
	if f := of(emu, found, fault).Fault; f.File != "/tmp/x/kernel.cu" || f.Line != 41 || len(f.Lines) != 2 {
		t.Errorf("fault: got %+v, want line 41 of kernel.cu and both lines of the log", f)
	}
	if f := of(emu, found).Fault; f == nil || f.Code != "late-write" || f.File != "kernel.cu" || f.Line != 7 || f.Column != 3 {
		t.Errorf("findings: got fault %+v, want the finding and its place", f)
	}
	inFolder := &runs.Run{ID: "one", Summary: runs.Summary{Run: &event.Run{Workloads: make([]event.WorkloadRef, 1),
		Folder: "solution/cuda", Sources: []string{"kernel.cu"}}, Rows: []runs.Row{fault}}}
	inFolder.Rows[0].Evaluated.Trace.Evaluation.Log = "kernel.cu:50:2: invalid read"
	in := new(Outcome)
	if in.Of(inFolder, contest); in.Fault.File != "solution/cuda/kernel.cu" || in.Fault.Line != 50 {
		t.Errorf("a source in a folder: got fault %+v, want its path in the project", in.Fault)
	}
	spent := &runs.Run{ID: "one", Summary: runs.Summary{Run: &event.Run{Workloads: make([]event.WorkloadRef, 3)},
		Rows: []runs.Row{row("a", 1, "PASSED", 2)}, Done: &event.Done{Passed: 1, Missing: 2, Left: 2}}}
	o := new(Outcome)
	if o.Of(spent, contest); o.Status != "passed" || o.Run.Left != 2 || o.Run.Missing != 0 || o.Next != "fisub local --resume one" {
		t.Errorf("a budget that was spent: got %q, %+v, next %q", o.Status, o.Run, o.Next)
	}
	if f := of(emu, lost).Fault; f == nil || f.Text != "no memory" {
		t.Errorf("no verdict: got fault %+v, want why", f)
	}
}

// Source positions are found in the messages of compilers, Python and the virtual GPU.
func TestPlace(t *testing.T) {
	for text, want := range map[string]Fault{
		"kernel.cu(12): error: x":         {File: "kernel.cu", Line: 12},
		"a/b.cuh:3:14: error":             {File: "a/b.cuh", Line: 3, Column: 14},
		`File "/s/main.py", line 7, in f`: {File: "/s/main.py", Line: 7},
		"12 of 40 elements are off":       {},
	} {
		var f Fault
		if f.place(text); f.File != want.File || f.Line != want.Line || f.Column != want.Column {
			t.Errorf("%s: got %s:%d:%d, want %s:%d:%d", text, f.File, f.Line, f.Column, want.File, want.Line, want.Column)
		}
	}
}

// The first fault of sanitize is a finding of a tool. Without one, it is the wrong outputs.
func TestSanitize(t *testing.T) {
	wrong := tools.Record{Tool: "memcheck,synccheck", Workload: "96825aea-cf78", Verdict: tools.Wrong + ": output[0] is NaN"}
	race := tools.Record{Tool: "racecheck", Workload: "96825aea-cf78", Verdict: "DeviceFault: kernel.cu:88:5: race"}
	broken := tools.Record{Tool: tools.Build, Workload: "96825aea-cf78", Verdict: "nvcc: exit status 2", Log: "kernel.cu(3): x"}
	clean := tools.Record{Tool: "initcheck", Workload: "96825aea-cf78", Verdict: tools.Clean}
	one := " --on lab --set default --workload 96825aea"
	for _, c := range []struct {
		name               string
		records            []tools.Record
		status, next, code string
		faults, line       int
	}{
		{"clean", []tools.Record{clean}, "clean", "fisub remote --on lab --set contest", "", 0, 0},
		{"a race", []tools.Record{wrong, race, clean}, "faults", "fisub sanitize" + one + " --tool racecheck", "racecheck", 2, 88},
		{"wrong outputs", []tools.Record{wrong}, "faults", "fisub remote" + one, "INCORRECT_NUMERICAL", 1, 0},
		{"a compile error", []tools.Record{broken}, "faults", "fisub check", "COMPILE_ERROR", 1, 3},
	} {
		o := new(Outcome)
		o.Sanitize(Sanitized{Run: &event.Run{Set: "default", Sources: []string{"kernel.cu"}, Folder: "solution/cuda"},
			Records: c.records, Where: " --on lab", Remote: true, Contest: true})
		var f Fault
		if o.Fault != nil {
			f = *o.Fault
		}
		if o.Status != c.status || o.Next != c.next || f.Code != c.code || o.Faults != c.faults || f.Line != c.line ||
			f.Line > 0 && f.File != "solution/cuda/kernel.cu" {
			t.Errorf("%s: got %q, next %q, %d faults, %+v; want %+v", c.name, o.Status, o.Next, o.Faults, f, c)
		}
	}
}

// The place of a fault of submit is relative to the project, and the excerpt is not part of its text.
func TestSubmitPlace(t *testing.T) {
	o := new(Outcome)
	o.Submit("sub", &submit.TagPlan{Steps: []submit.Step{{Name: "check", State: submit.Fault,
		Text: "sub/solution/cuda/a.cu:3:7: undefined\n3 | x\n  | ^"}}}, false, "")
	if f := o.Fault; f.Text != "solution/cuda/a.cu:3:7: undefined" || f.File != "solution/cuda/a.cu" || f.Line != 3 ||
		len(f.Lines) != 2 {
		t.Errorf("got %+v", f)
	}
}

// The next command of a plan to submit is the command of its first fault, else of its first open step.
func TestSubmit(t *testing.T) {
	ok, todo := submit.Step{Name: "check", State: submit.OK}, submit.Step{Name: "commit", State: submit.Todo, Command: "git init"}
	fault := submit.Step{Name: "tested", State: submit.Fault, Text: "a.cu:3: wrong", Command: "fisub runs show one"}
	bare := submit.Step{Name: "remote", State: submit.Warning, Text: "no remote"}
	for _, c := range []struct {
		name               string
		dryRun, pushed     bool
		steps              []submit.Step
		status, next, code string
	}{
		{"a fault comes first", true, false, []submit.Step{ok, todo, fault}, "not submitted", "fisub runs show one", "tested"},
		{"an open step", false, false, []submit.Step{ok, todo}, "not submitted", "git init", "commit"},
		{"a step without a command", true, false, []submit.Step{{Name: "tag", State: submit.Fault}}, "not submitted",
			"fisub submit --dry-run --untested", "tag"},
		{"ready", true, false, []submit.Step{ok}, "would submit", "fisub submit --untested", ""},
		{"tagged", false, false, []submit.Step{ok}, "tagged", "fisub submit --push --untested", ""},
		{"no remote", false, false, []submit.Step{ok, bare}, "tagged", "", ""},
		{"pushed", false, true, []submit.Step{ok}, "pushed", "", ""},
		{"pushed before", true, true, []submit.Step{ok}, "pushed", "", ""},
	} {
		o := new(Outcome)
		o.Submit("sub", &submit.TagPlan{Steps: c.steps, Pushed: c.pushed}, c.dryRun, " --untested")
		code := ""
		if o.Fault != nil {
			code = o.Fault.Code
		}
		if o.Status != c.status || o.Next != c.next || code != c.code {
			t.Errorf("%s: got %q, %q and fault %q, want %q, %q and %q", c.name, o.Status, o.Next, code, c.status, c.next, c.code)
		}
	}
}

func TestProfile(t *testing.T) {
	o := new(Outcome)
	o.Profile("/p", tools.Record{Report: "/p/.fisub/runs/1/profile.ncu-rep", Kernels: []tools.ProfiledKernel{{Name: "f()"}}})
	if o.Status != "profiled" || o.File != ".fisub/runs/1/profile.ncu-rep" || len(o.Kernels) != 1 {
		t.Errorf("got %+v", o)
	}
}

// The score of a task's board is in the final record.
func TestBoard(t *testing.T) {
	ns := 1500.0
	o := new(Outcome)
	o.Of(&runs.Run{Summary: runs.Summary{Run: &event.Run{}, Done: &event.Done{BoardNS: &ns}}}, contest)
	if o.BoardNS == nil || *o.BoardNS != ns {
		t.Errorf("got %v, want %g", o.BoardNS, ns)
	}
}
