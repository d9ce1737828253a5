package ui

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

func show(t *testing.T, term *Terminal, events ...event.Event) (stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	term.Out, term.Err = &out, &err
	s := event.NewStream(term.Run())
	for _, e := range events {
		s.Emit(e)
	}
	if e := s.Err(); e != nil {
		t.Fatal(e)
	}
	return out.String(), err.String()
}

func gpuRun(uuids ...string) event.Event {
	r := &event.Run{Solution: "s", Author: "a", Language: "cuda", ContentHash: "0123456789", Definition: "d",
		Set:     "default",
		Profile: event.Profile{Name: "official", Trials: 3, Iterations: 50},
		Device:  event.Device{Kind: "cuda", Name: "NVIDIA H200", Arch: "sm_90", Driver: "580"}}
	for _, u := range uuids {
		r.Workloads = append(r.Workloads, event.WorkloadRef{UUID: u, Axes: map[string]int{"n": 7, "batch_size": 4}})
	}
	return event.Event{Type: event.TypeRun, Run: r}
}

func TestRunOnGPU(t *testing.T) {
	ms, abs, rel := 0.00256, float64(1.5e-7), float64(3e-4)
	out, errs := show(t, &Terminal{}, gpuRun("0123456789abc"),
		event.Event{Type: event.TypeBuilding},
		event.Event{Type: event.TypeSamples, Workload: "0123456789abc", Samples: &event.Samples{Timer: "cupti", ColdL2: true,
			MinNS: 2400, Interval: event.Interval{Width: 0.0125}, Bandwidth: 812.4, PeakShare: 0.169}},
		event.Event{Type: event.TypeEvaluated, Workload: "0123456789abc", Evaluated: eventtest.Verdict{Status: "PASSED",
			Axes: map[string]int{"n": 7, "batch_size": 4}, MaxAbs: abs, MaxRel: rel, Latency: &ms}.Evaluated()},
		event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 1, Seconds: 0.25}})
	want := `WORKLOAD  BATCH_SIZE  N  STATUS                MAX ABS   MAX REL      MEDIAN      ±         MIN
01234567           4  7  PASSED               1.50e-07  3.00e-04     2.56 µs  0.6 %     2.40 µs
1 of 1 PASSED on cuda:0 (NVIDIA H200, sm_90, driver 580) in 0.2 s
latency: mean over 3 trials of the median of 50 calls, cold L2, cupti, profile official
±: half of the 95 % interval of the median
`
	if out != want {
		t.Errorf("stdout: got\n%s\nwant\n%s", out, want)
	}
	if !strings.Contains(errs, "building s for cuda:0 (NVIDIA H200") {
		t.Errorf("stderr: got %q", errs)
	}
}

func TestRemoteRun(t *testing.T) {
	ms := 0.00256
	run := gpuRun("0123456789abc", "fedcba98")
	device := run.Run.Device
	row := func(uuid, place string, disturbed ...string) []event.Event {
		return []event.Event{{Type: event.TypeSamples, Workload: uuid, Place: place,
			Samples: &event.Samples{Timer: "cupti", ColdL2: true, MinNS: 2400, Disturbed: disturbed}},
			{Type: event.TypeEvaluated, Workload: uuid, Place: place, Evaluated: eventtest.Verdict{Status: "PASSED",
				Axes: map[string]int{"n": 7, "batch_size": 4}, Latency: &ms}.Evaluated()}}
	}
	warning := event.Event{Type: event.TypeWarning, Place: "lab: a gpu 0", Message: &event.Message{Text: "no libcupti"}}
	events := []event.Event{
		{Type: event.TypeJob, Place: "lab: a gpu 0", JobState: &event.JobChange{Phase: "sending"}}, run,
		{Type: event.TypeJob, Place: "lab: a gpu 0", JobState: &event.JobChange{Phase: "running", Device: &device}},
		{Type: event.TypeJob, Place: "lab: b gpu 0", JobState: &event.JobChange{Phase: "running", Device: &device}}, warning,
		warning}
	events = append(append(events, row("0123456789abc", "lab: a gpu 0")...),
		row("fedcba98", "lab: b gpu 0", "it was throttled")...)
	out, errs := show(t, &Terminal{}, append(events,
		event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 2, Seconds: 0.25}})...)
	want := `WORKLOAD  BATCH_SIZE  N  STATUS                MAX ABS   MAX REL      MEDIAN      ±         MIN     PLACE
01234567           4  7  PASSED               0.00e+00  0.00e+00     2.56 µs  0.0 %     2.40 µs     lab: a gpu 0
fedcba98           4  7  PASSED               0.00e+00  0.00e+00     2.56 µs  0.0 %     2.40 µs  *  lab: b gpu 0
2 of 2 PASSED on cuda:0 (NVIDIA H200, sm_90, driver 580) and 1 other place in 0.2 s
`
	if !strings.HasPrefix(out, want) {
		t.Errorf("stdout: got\n%s\nwant\n%s", out, want)
	}
	if strings.Count(errs, "no libcupti") != 1 || !strings.Contains(errs, "lab: a gpu 0: sending\n") ||
		!strings.Contains(errs, "lab: b gpu 0: running on cuda:0 (NVIDIA H200") {
		t.Errorf("stderr: got %q", errs)
	}
}

// A local run reports the gaps of the sandbox once; a remote run reports those of the host.
func TestGaps(t *testing.T) {
	run := gpuRun("0123456789abc")
	run.Run.Host.Confined = "landlock 4, seccomp; not enforced: device ioctls (Linux 6.10), signals (Linux 6.12)"
	const want = "sandbox    not enforced: device ioctls (Linux 6.10), signals (Linux 6.12) (fisub doctor)\n"
	if _, errs := show(t, &Terminal{}, run); !strings.Contains(errs, "\n"+want) {
		t.Errorf("got %q, want %q", errs, want)
	}
	job := event.Event{Type: event.TypeJob, Place: "lab", JobState: &event.JobChange{Phase: "running", Device: &run.Run.Device,
		Host: &run.Run.Host}}
	if _, errs := show(t, &Terminal{}, job, run); strings.Count(errs, want) != 1 || !strings.Contains(errs, "\nlab: "+want) {
		t.Errorf("got %q, want lab: %q", errs, want)
	}
	run.Run.Host.Confined = "landlock 7, seccomp"
	if _, errs := show(t, &Terminal{}, run); strings.Contains(errs, "enforced") {
		t.Errorf("got %q, want nothing", errs)
	}
}

func TestDoubtfulTimings(t *testing.T) {
	ms := 0.00256
	events := []event.Event{gpuRun("aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc")}
	for uuid, why := range map[string][]string{"aaaaaaaaaa": {"throttled\x1b", "shaken"}, "bbbbbbbbbb": nil,
		"cccccccccc": {"shaken"}} {
		events = append(events, event.Event{Type: event.TypeSamples, Workload: uuid,
			Samples: &event.Samples{Timer: "cupti", MinNS: 2400, Disturbed: why}},
			event.Event{Type: event.TypeEvaluated, Workload: uuid, Evaluated: eventtest.Verdict{Status: "PASSED",
				Axes: map[string]int{"n": 7, "batch_size": 4}, Latency: &ms}.Evaluated()})
	}
	out, _ := show(t, &Terminal{Quiet: true},
		append(events, event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 3}})...)
	for _, line := range []string{
		"aaaaaaaa           4  7  PASSED               0.00e+00  0.00e+00     2.56 µs  0.0 %     2.40 µs  *\n",
		"bbbbbbbb           4  7  PASSED               0.00e+00  0.00e+00     2.56 µs  0.0 %     2.40 µs\n",
		"* 2 workloads, unreliable in every measurement: shaken\n* workload aaaaaaaa, " +
			"unreliable in every measurement: throttled�\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("got\n%s\nwant in it\n%s", out, line)
		}
	}
}

func TestFindings(t *testing.T) {
	finding := event.Event{Type: event.TypeWarning, Workload: "u1", Finding: &event.Finding{Check: "late-write",
		Text: "output[0] \x1b[2J was"}}
	for n, want := range map[int]string{1: "1 of 1 PASSED, 1 finding on ", 2: "1 of 1 PASSED, 2 findings on "} {
		events := []event.Event{gpuRun("u1"), {Type: event.TypeEvaluated, Workload: "u1",
			Evaluated: eventtest.Verdict{Status: "PASSED"}.Evaluated()}}
		for range n {
			events = append(events, finding)
		}
		out, errs := show(t, &Terminal{Quiet: true},
			append(events, event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 1, Findings: n}})...)
		line := "\n          finding: late-write: output[0] \uFFFD[2J was\n"
		if !strings.Contains(out, line) || !strings.Contains(out, want) {
			t.Errorf("stdout: got\n%s\nwant %q and %q", out, line, want)
		}
		if errs != "" {
			t.Errorf("stderr: got %q, want nothing", errs)
		}
	}
}

// Findings, explanations and tracebacks name sources by their paths in the project.
func TestSources(t *testing.T) {
	run := gpuRun("u1", "u2")
	run.Run.Folder, run.Run.Sources = "solution/cuda", []string{"kernel.cu", "main.py"}
	out, _ := show(t, &Terminal{Quiet: true}, run,
		event.Event{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "PASSED"}.Evaluated()},
		event.Event{Type: event.TypeWarning, Workload: "u1", Finding: &event.Finding{Check: "race", Place: "kernel.cu:3:4",
			Text: "kernel.cu:3:4: a race"}},
		event.Event{Type: event.TypeEvaluated, Workload: "u2", Evaluated: eventtest.Verdict{Status: "RUNTIME_ERROR",
			Detail: "ValueError: odd", Log: "Traceback:\n  File \"main.py\", line 3, in run\nwarning: kernel.cu:5:6: a race\n"}.Evaluated()})
	for _, want := range []string{"finding: race: solution/cuda/kernel.cu:3:4: a race\n",
		"  File \"solution/cuda/main.py\", line 3, in run\n", "warning: solution/cuda/kernel.cu:5:6: a race\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwant in it %q", out, want)
		}
	}
}

// The source line of a fault or a finding is below the text that names it, once, and not if the log has it.
func TestSourceLines(t *testing.T) {
	source := func(line, column int, text string) []event.Excerpt {
		return []event.Excerpt{{File: "kernel.cu", Line: line, Column: column, First: line - 1, Lines: []string{"{", text, "}"}},
			{File: "kernel.cu", Line: 90, First: 90, Lines: []string{"second place"}}}
	}
	failed := func(uuid string, v eventtest.Verdict, source []event.Excerpt) event.Event {
		e := v.Evaluated()
		e.Source = source
		return event.Event{Type: event.TypeEvaluated, Workload: uuid, Evaluated: e}
	}
	race := event.Finding{Check: "race", Place: "kernel.cu:3:5", Text: "kernel.cu:3:5: a race with kernel.cu:90", Source: source(3, 5, "  \ty = x;")}
	for _, tc := range []struct {
		name   string
		events []event.Event
		want   string // the lines below the row
	}{
		{"a fault", []event.Event{failed("u1", eventtest.Verdict{Status: "RUNTIME_ERROR", Detail: "DeviceFault: kernel.cu:12:3: bad"},
			source(12, 3, "  \x1b[2Jé = 1;"))},
			"          DeviceFault: kernel.cu:12:3: bad\n          12 |   \uFFFD[2Jé = 1;\n             |   ^\n"},
		{"a warning in the log", []event.Event{failed("u1", eventtest.Verdict{Status: "INCORRECT_NUMERICAL", Detail: "y[0] is 1",
			Log: "y: 1 element wrong\nwarning: kernel.cu:12:3: a race"}, source(12, 0, "y = 1;"))},
			"          y[0] is 1\n          y: 1 element wrong\n          warning: kernel.cu:12:3: a race\n          12 | y = 1;\n"},
		{"a column beyond the line", []event.Event{failed("u1", eventtest.Verdict{Status: "RUNTIME_ERROR", Detail: "kernel.cu:12:300: bad"},
			source(12, 300, "y = 1;"))}, "          kernel.cu:12:300: bad\n          12 | y = 1;\n"},
		{"a compiler's log", []event.Event{failed("u1", eventtest.Verdict{Status: "COMPILE_ERROR", Detail: "kernel.cu does not compile",
			Log: "kernel.cu(12): error: bad\n      y = 1\n      ^"}, source(12, 0, "  y = 1"))},
			"          kernel.cu does not compile\n          kernel.cu(12): error: bad\n                y = 1\n                ^\n"},
		{"a finding on two workloads", []event.Event{
			{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "PASSED"}.Evaluated()},
			{Type: event.TypeWarning, Workload: "u1", Finding: &race}, {Type: event.TypeWarning, Workload: "u2", Finding: &race}},
			"          finding: race: kernel.cu:3:5: a race with kernel.cu:90\n          3 |   \ty = x;\n            |   \t ^\n" +
				"          finding: race: kernel.cu:3:5: as on u1\n"},
	} {
		out, _ := show(t, &Terminal{Quiet: true}, append([]event.Event{gpuRun("u1", "u2")}, tc.events...)...)
		if _, below, _ := strings.Cut(out, "\nu1"); below[strings.Index(below, "\n")+1:] != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, out, tc.want)
		}
	}
}

func TestFailures(t *testing.T) {
	log := "Build error: kernel.cu does not compile: kernel.cu:3: bad\n\nline 1\nkernel.cu:3: bad\n\x1b[2Jgone\n" + strings.Repeat("more\n", 20)
	out, errs := show(t, &Terminal{Quiet: true}, gpuRun("u1", "u2"),
		event.Event{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "COMPILE_ERROR",
			Detail: "kernel.cu does not compile: kernel.cu:3: bad",
			Axes:   map[string]int{"n": 7, "batch_size": 4}, Log: log}.Evaluated()},
		event.Event{Type: event.TypeFailed, Workload: "u2", Message: &event.Message{Text: "no \x1b[31mblob"}},
		event.Event{Type: event.TypeDone, Done: &event.Done{Failed: 1, Missing: 1}})
	for _, want := range []string{
		"u1                 4  7  COMPILE_ERROR               -         -\n          kernel.cu does not compile: kernel.cu:3: bad\n" +
			"          line 1\n",
		"\nu2                 4  7  no verdict\n          no \uFFFD[31mblob\n",
		"0 of 2 PASSED, 1 without a verdict on", "more lines in the run folder, log/u1.log"} {
		if !strings.Contains(out, want) {
			t.Errorf("stdout: got\n%s\nwant in it %q", out, want)
		}
	}
	if strings.Count(out, "kernel.cu:3: bad") != 1 {
		t.Errorf("stdout: got the detail twice\n%s", out)
	}
	if strings.Contains(out+errs, "\x1b") {
		t.Errorf("got control characters of a log: %q", out+errs)
	}
	if errs != "" {
		t.Errorf("stderr: got %q, want nothing: the table has it", errs)
	}
}

// A run that was interrupted before its first row has no explanations of figures.
func TestNoRows(t *testing.T) {
	run := gpuRun("u1", "u2")
	run.Run.Tolerance = event.Tolerance{Atol: 0.01, Rtol: 0.01}
	run.Run.Checked = &event.Checked{}
	out, errs := show(t, &Terminal{}, run, event.Event{Type: event.TypeDone, Done: &event.Done{Missing: 2}})
	if !strings.Contains(out, "0 of 2 PASSED, 2 without a verdict on") || strings.Contains(out, "correct:") || strings.Contains(errs, "checked") {
		t.Errorf("got\n%s%s\nwant the totals only", out, errs)
	}
}

// A traceback precedes a library's warnings. Rows with the same reason refer to the first one.
func TestTracebackFirst(t *testing.T) {
	failed := eventtest.Verdict{Status: "RUNTIME_ERROR", Detail: "ValueError: x", Axes: map[string]int{"n": 7, "batch_size": 4},
		Log: "jit.py:7: UserWarning: old\nTraceback (most recent call last):\n  File \"main.py\", line 3, in run\n  <main.f object at 0x7f1>\nValueError: x\n"}
	again := failed
	again.Log = strings.Replace(failed.Log, "0x7f1", "0x5e2", 1)
	out, _ := show(t, &Terminal{}, gpuRun("u1", "u2"),
		event.Event{Type: event.TypeEvaluated, Workload: "u1", Evaluated: failed.Evaluated()},
		event.Event{Type: event.TypeEvaluated, Workload: "u2", Evaluated: again.Evaluated()},
		event.Event{Type: event.TypeDone, Done: &event.Done{Failed: 2}})
	for _, want := range []string{"          ValueError: x\n          Traceback (most recent call last):\n            File \"main.py\", " +
		"line 3, in run\n            <main.f object at 0x7f1>\n          jit.py:7: UserWarning: old\nu2", "  -         -\n          (as above)\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwant in it %q", out, want)
		}
	}
}

// The tested property of a failed edge workload is shown below its row.
func TestTests(t *testing.T) {
	var out bytes.Buffer
	sink := (&Terminal{Out: &out, Err: io.Discard}).Run()
	run := &event.Run{Definition: "d", Set: "edge", Device: event.Device{Kind: "emu", Emulated: true}, Workloads: []event.WorkloadRef{
		{UUID: "u1", Tests: "scale 0"}, {UUID: "u2", Tests: "batch 3"}, {UUID: "u3", Tests: "state 0"}}}
	for _, e := range []event.Event{{Type: event.TypeRun, Run: run},
		{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "INCORRECT_NUMERICAL", Detail: "all wrong"}.Evaluated()},
		{Type: event.TypeEvaluated, Workload: "u2", Evaluated: eventtest.Verdict{Status: "PASSED"}.Evaluated()},
		{Type: event.TypeFailed, Workload: "u3", Message: &event.Message{Text: "no GPU"}}} {
		if err := sink(e); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]bool{"\n          edge: scale 0\n          all wrong\n": true, "batch 3": false,
		"\n          edge: state 0\n          no GPU\n": true} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("%q: want %v in\n%s", text, want, out.String())
		}
	}
}

// Control characters in a host's warnings and errors do not reach the terminal.
func TestHostileWords(t *testing.T) {
	var errs bytes.Buffer
	term := &Terminal{Out: io.Discard, Err: &errs}
	sink := term.Run()
	if err := sink(event.Event{Type: event.TypeWarning, Place: "lab", Message: &event.Message{Text: "a\x1b[2Jb",
		Hint: "c\x1b]0;d\x07"}}); err != nil {
		t.Fatal(err)
	}
	term.Error("e\x1b[2J\n\tf\r", "g\u009b2J")
	if got, want := errs.String(),
		"warning: a\ufffd[2Jb\nhint: c\ufffd]0;d\ufffd\nfisub: e\ufffd[2J\n\tf\ufffd\nhint: g\ufffd2J\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A narrow terminal hides the least useful columns, and every line fits.
func TestNarrow(t *testing.T) {
	run := gpuRun("u1").Run
	run.Workloads[0].Axes = map[string]int{"batch_size": 64}
	run.Floors = true
	for width, want := range map[int]string{
		102: "WORKLOAD BATCH_SIZE STATUS MAX ABS MAX REL MEDIAN ± MIN COPY ",
		82:  "WORKLOAD BAT… STATUS MAX ABS MAX REL MEDIAN COPY ",
		62:  "WORKLOAD BAT… STATUS MAX REL MEDIAN ",
	} {
		var titles []string
		sum := -2
		v := &runView{t: &Terminal{Quiet: true}}
		v.start(run)
		columns := v.tableColumns()
		shrink(columns, width)
		for _, c := range columns {
			if !c.hidden {
				titles = append(titles, plain.Cut(c.title, c.width))
				sum += c.width + 2
			}
		}
		if got := strings.Join(titles, " "); got != want || sum > width {
			t.Errorf("%d columns: got %q, %d wide, want %q", width, got, sum, want)
		}
	}
	run.Tolerance = event.Tolerance{Atol: 1, Rtol: 0.3, MatchedRatio: 0.9}
	out, _ := show(t, &Terminal{Quiet: true}, event.Event{Type: event.TypeRun, Run: run},
		event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 1}})
	if want := "\ncorrect: within 1 absolute or 0.3 relative, 90 % of the elements\n"; !strings.Contains(out, want) {
		t.Errorf("got %q, want in it %q", out, want)
	}
}

// Outside of a terminal, headings are whole.
func TestWidth(t *testing.T) {
	ms, abs := 1.23456, float64(1)
	for _, tc := range []struct {
		all       bool
		axes      map[string]int
		head, row string
	}{
		{false, map[string]int{"total_seq_len": 65536, "num_seqs": 12, "len_cu_seqlens_of_all": 13},
			"WORKLOAD  LEN_CU_SEQLENS_OF_ALL  NUM_SEQS  TOTAL_SEQ_LEN  STATUS ", "  1234.56 µs   25 %  1234.56 µs"},
		{true, map[string]int{"total_seq_len": 65536, "num_seqs": 12}, "WORKLOAD  NUM_SEQS  TOTAL_SEQ_LEN  STATUS",
			"  1234.56 µs   25 %    1235x   83 %"},
	} {
		run := gpuRun("u1")
		run.Run.Workloads[0].Axes = tc.axes
		ratio := 1234.56
		if run.Run.Floors = tc.all; tc.all {
			run.Run.Baseline = &event.Baseline{Name: "b"}
		}
		out, errs := show(t, &Terminal{Wide: tc.all}, run,
			event.Event{Type: event.TypeSamples, Workload: "u1", Samples: &event.Samples{Timer: "cupti", MinNS: 1234560,
				Bandwidth: 4321.4, PeakShare: 0.9, CopyNS: 1024675, CopyShare: 0.83,
				Warm:     &event.Timings{MedianNS: 1230000, Interval: event.Interval{Width: 0.002}},
				Baseline: &event.Timings{MedianNS: 1524138418},
				Interval: event.Interval{Width: 0.5}, Warnings: []string{"few \x1btimings"}}},
			event.Event{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "PASSED", Axes: tc.axes,
				MaxAbs: abs, MaxRel: abs, Latency: &ms, Speedup: &ratio}.Evaluated()})
		lines := strings.Split(out, "\n")
		if len(lines) < 2 || !strings.HasPrefix(lines[0], tc.head) ||
			strings.HasSuffix(lines[0], "  SPEEDUP   COPY") != tc.all || !strings.HasSuffix(lines[1], tc.row) {
			t.Errorf("stdout: got\n%s\nwant it to begin with %q, and a row to end with %q", out, tc.head, tc.row)
		}
		if want := "          4321 GB/s (90 % of the memory's peak), min 1234.56 µs, warm L2 1230.00 µs ± 0.1 %, " +
			"baseline 1524138.42 µs ± 0.0 %, copy " +
			"1024.67 µs\n"; strings.Contains(out, want) != tc.all {
			t.Errorf("stdout: got\n%s\nwant %q: %v", out, want, tc.all)
		}
		if want := "warning: workload u1: few \uFFFDtimings\n"; !strings.HasSuffix(errs, want) {
			t.Errorf("stderr: got %q, want at its end %q", errs, want)
		}
	}
}

// Events that need a run are not shown before its run event.
func TestBeforeRun(t *testing.T) {
	verdict := event.Event{Type: event.TypeEvaluated, Workload: "w", Evaluated: eventtest.Verdict{Status: "PASSED"}.Evaluated()}
	events := []event.Event{
		{Type: event.TypeBuilding},
		{Type: event.TypeBuilt, Built: &event.Built{OK: true, Seconds: 1}},
		{Type: event.TypeStarted, Workload: "w", Started: &event.Started{Index: 1, Total: 1}},
		{Type: event.TypeSamples, Workload: "w", Samples: &event.Samples{Timer: "cupti", MedianNS: 1}},
		verdict,
		{Type: event.TypeFailed, Workload: "w", Message: &event.Message{Text: "no room"}},
		{Type: event.TypeWarning, Workload: "w", Finding: &event.Finding{Check: "race", Text: "it races"}},
		{Type: event.TypeFloor, Floor: &event.Floor{Kind: "empty"}},
		{Type: event.TypeDone, Done: &event.Done{Passed: 1}},
	}
	for _, e := range events {
		if out, _ := show(t, &Terminal{}, e); out != "" {
			t.Errorf("%s: got %q", e.Type, out)
		}
	}
	if out, _ := show(t, &Terminal{}, append(events, gpuRun("w"), verdict)...); strings.Count(out, "PASSED") != 1 {
		t.Errorf("got %q", out)
	}
}

func TestProgress(t *testing.T) {
	var out, err bytes.Buffer
	sink := (&Terminal{Out: &out, Err: &err}).Progress(0, 1)
	for _, e := range []event.Event{
		gpuRun("u1"),
		{Type: event.TypeBuilding},
		{Type: event.TypeStarted, Workload: "u1", Started: &event.Started{Index: 1, Total: 3}},
		{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "PASSED", Detail: "fine"}.Evaluated()},
		{Type: event.TypeEvaluated, Workload: "u2", Evaluated: eventtest.Verdict{Status: "TIMEOUT", Detail: "5 \x1bs"}.Evaluated()},
		{Type: event.TypeFailed, Workload: "u3", Message: &event.Message{Text: "no blob"}},
		{Type: event.TypeWarning, Workload: "u1", Finding: &event.Finding{Check: "late-write", Text: "y[0]"}},
		{Type: event.TypeWarning, Message: &event.Message{Text: "no CUPTI", Hint: "install it"}},
		{Type: event.TypeDone, Done: &event.Done{}},
	} {
		if e := sink(e); e != nil {
			t.Fatal(e)
		}
	}
	want := "building A: s (1 of 1)\nfisub: A: workload u2: TIMEOUT: 5 \uFFFDs\nfisub: A: workload u3: no verdict: no blob\nfinding: A: workload u1: " +
		"late-write: y[0]\n" +
		"warning: A: no CUPTI\nhint: install it\n"
	if err.String() != want || out.Len() != 0 {
		t.Errorf("stderr: got %q, want %q; stdout %q", err.String(), want, out.String())
	}
}

func TestScore(t *testing.T) {
	ms, speedup := 0.002, 1.5
	for _, tc := range []struct {
		score  float64
		failed int
		want   string
	}{
		{1.25, 0, "\ncontest score: 1.250, the mean speed-up over baseline reference on 1 workload\n"},
		{1.5, 0, "\nmean speed-up: 1.500 over baseline two on 1 workload\n"},
		{0, 1, "\nmean speed-up: 0.000 over baseline two on 1 workload: 0 because a workload failed\n"},
	} {
		run := gpuRun("u1")
		name := "two"
		if tc.score == 1.25 {
			name = "reference"
		}
		run.Run.Baseline, run.Run.Floors = &event.Baseline{Name: name, Solution: "t", ContentHash: "0123456789"}, true
		out, errs := show(t, &Terminal{}, run,
			event.Event{Type: event.TypeSamples, Workload: "u1", Samples: &event.Samples{Timer: "cupti", ColdL2: true,
				EmptyNS: 1024}},
			event.Event{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "PASSED",
				Axes: map[string]int{"n": 7, "batch_size": 4}, Latency: &ms, Speedup: &speedup}.Evaluated()},
			event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 1, Failed: tc.failed, Score: &tc.score, Scored: 1}})
		for _, want := range []string{tc.want, "     2.00 µs  0.0 %    1.50x      -\n",
			"\ncopy: time of the roofline copy, a plain copy of as many bytes, " +
				"over the latency; an empty kernel takes 1.02 µs\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("stdout: got\n%s\nwant in it %q", out, want)
			}
		}
		if want := "baseline   " + name + ": t, 01234567\n"; !strings.Contains(errs, want) {
			t.Errorf("stderr: got %q, want in it %q", errs, want)
		}
	}
}

// A resumed run repeats its run event.
func TestTwoRuns(t *testing.T) {
	out, _ := show(t, &Terminal{}, gpuRun("u1"), gpuRun("u1"),
		event.Event{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "TIMEOUT",
			Axes: map[string]int{"n": 7, "batch_size": 4}}.Evaluated()})
	if want := "WORKLOAD  BATCH_SIZE  N  STATUS"; !strings.HasPrefix(out, want) {
		t.Errorf("got %q, want it to begin with %q", out, want)
	}
}

func TestUseColor(t *testing.T) {
	for _, tc := range []struct {
		mode string
		want bool
	}{{"always", true}, {"never", false}, {"auto", false}, {"", false}} {
		if got := UseColor(tc.mode, &bytes.Buffer{}); got != tc.want {
			t.Errorf("%q into a buffer: got %v, want %v", tc.mode, got, tc.want)
		}
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	term := &Terminal{Out: &out, Color: true}
	term.Table("lrl", [][]string{{"NAME", "µs", "VERDICT"}, {"a\x1bb", "1.25", "slower"}, {"c", "10", "same"}},
		func(row int) int { return []int{0, -1, 0}[row] })
	if want := "\x1b[1mNAME    µs  VERDICT\x1b[0m\na\uFFFDb   1.25  \x1b[31mslower\x1b[0m\nc       10  same\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// An error's text of 200 kB does not flood the terminal.
func TestLongLine(t *testing.T) {
	failed := event.Event{Type: event.TypeEvaluated, Workload: "u1", Evaluated: eventtest.Verdict{Status: "RUNTIME_ERROR",
		Detail: "RuntimeError: " + strings.Repeat("é", 100_000)}.Evaluated()}
	out, _ := show(t, &Terminal{Quiet: true}, gpuRun("u1"), failed, event.Event{Type: event.TypeDone, Done: &event.Done{Failed: 1}})
	if !strings.Contains(out, "RuntimeError: é") || !strings.Contains(out, "é... 198014 more bytes in the run folder, log/u1.log\n") ||
		len(out) > 4000 {
		t.Errorf("got %d bytes: %.300s", len(out), out)
	}
}

func TestNoteOnce(t *testing.T) {
	var errs bytes.Buffer
	term := &Terminal{Out: io.Discard, Err: &errs}
	for _, text := range []string{"a", "a", "b"} {
		term.NoteOnce("note %s", text)
	}
	if got, want := errs.String(), "note a\nnote b\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The matched ratio may be any JSON value in a trace.
func TestMatched(t *testing.T) {
	for _, test := range []struct {
		value any
		want  string
	}{{nil, ""}, {1.0, "100 %"}, {int64(1), "100 %"}, {0.99999, "99.99 %"}, {0.9, "90 %"}, {0.9987, "99.87 %"},
		{math.NaN(), ""}, {-1.0, ""}, {1e300, ""}, {"1", ""}} {
		e := eventtest.Verdict{Status: "PASSED"}.Evaluated()
		extra := &trace.Map[any]{}
		extra.Set("matched_ratio", test.value)
		e.Trace.Evaluation.Correctness.Extra = extra
		if got := matched(e, nil).Text; got != test.want {
			t.Errorf("%v: got %q, want %q", test.value, got, test.want)
		}
	}
	for _, e := range []*event.Evaluated{nil, eventtest.Verdict{Status: "TIMEOUT"}.Evaluated(),
		eventtest.Verdict{Status: "PASSED"}.Evaluated()} {
		if got := matched(e, nil); got != (Value{}) {
			t.Errorf("without a ratio: got %q", got)
		}
	}
}
