package report

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/trace"
	"fisub/runs"
	"fisub/runs/stats"
)

// results holds real runs, with their first timings only.
const results = "testdata/runs"

// measured completes the run in dir, which has only timings and run.json: it adds verdicts and the speed-ups that
// bench would compute.
func measured(t testing.TB, dir string) *runs.Run {
	t.Helper()
	bare, err := runs.Read(filepath.Join(results, dir))
	if err != nil {
		t.Fatal(err)
	}
	axes := map[string]map[string]int{}
	for _, w := range bare.Run.Workloads {
		axes[w.UUID] = w.Axes
	}
	var list []event.Event
	var score stats.Score
	for i, row := range bare.Rows {
		abs, rel, ms := 1.19e-7*float64(i+1), 7e-4, row.Samples.MedianNS/1e6
		e := eventtest.Verdict{Index: i + 1, Axes: axes[row.UUID], Status: "PASSED", MaxAbs: abs, MaxRel: rel, Latency: &ms,
			UUID: row.UUID}.Evaluated()
		if row.Samples.Baseline != nil {
			x := row.Samples.Baseline.MedianNS / row.Samples.MedianNS
			e.Ratio = &x
			score.Add(x)
		}
		list = append(list, event.Event{Type: event.TypeSamples, Workload: row.UUID, Samples: row.Samples},
			event.Event{Type: event.TypeEvaluated, Workload: row.UUID, Evaluated: e})
	}
	done := &event.Done{Passed: len(bare.Rows), Seconds: 10}
	list = append(list, event.Event{Type: event.TypeDone, Done: done})
	return folder(t, bare.Run, list...)
}

// folder writes a run folder and reads it back.
func folder(t testing.TB, run *event.Run, list ...event.Event) *runs.Run {
	t.Helper()
	f := runs.NewFolder(t.TempDir(), run.ID)
	s := event.NewStream(f.Record)
	s.Emit(event.Event{Type: event.TypeRun, Run: run})
	var done event.Done // totals of the events
	for _, e := range list {
		if e.Evaluated != nil && e.Evaluated.Passed() {
			done.Passed++
		} else if e.Evaluated != nil {
			done.Failed++
		}
		if e.Done != nil {
			e.Done.Passed, e.Done.Failed = done.Passed, done.Failed
		}
		s.Emit(e)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := runs.Read(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// gpuRun returns a run of n workloads with two axes.
func gpuRun(id string, n int) *event.Run {
	r := &event.Run{Schema: event.Schema, ID: id, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Fisub: "0.1.0",
		Command: []string{"fisub", "local"}, Solution: "my-kernel", Author: "me",
		Language: "cuda", ContentHash: "0123456789abcdef", Definition: "gdn_prefill", Set: "default",
		Tolerance: event.Tolerance{Atol: 0.01, Rtol: 0.02, MatchedRatio: 0.95},
		Profile:   event.Profile{Name: "official", Warmup: 10, Iterations: 50, Trials: 3, TimeoutS: 300}, Floors: true,
		Baseline: &event.Baseline{Name: "triton", Solution: "baseline-triton", ContentHash: "fedcba9876543210"},
		Device: event.Device{Kind: "cuda", Name: "NVIDIA B200", Arch: "sm_100", Driver: "580.1", CUDA: "13.0",
			Toolchain: "nvcc 13.0.88", UUID: "GPU-1"},
		Host: event.Host{Name: "gpu01", OS: "linux/amd64", CPU: "CPU", Cores: 8},
		Git:  &event.Git{Commit: "abc123", Dirty: true}}
	for i := range n {
		r.Workloads = append(r.Workloads, event.WorkloadRef{UUID: fmt.Sprintf("%08d-aaaa-bbbb-cccc-dddddddddddd", i),
			Axes: map[string]int{"num_seqs": 1 + i%7, "total_seq_len": 64 << (i % 10)}})
	}
	return r
}

// samples generates timings around ns in the form that bench records.
func samples(seed uint64, ns float64, trials, calls int) *event.Samples {
	r := rand.New(rand.NewPCG(seed, 1))
	draw := func(ns float64, trials int) (all [][]int64) {
		for range trials {
			var row []int64
			for range calls {
				v := ns * (1 + 0.02*r.NormFloat64())
				if r.IntN(100) == 0 {
					v *= 2.5
				}
				row = append(row, int64(v/32)*32+int64(r.IntN(2))-1)
			}
			all = append(all, row)
		}
		return all
	}
	timings := func(ns float64, trials int, cold bool) *event.Timings {
		all := draw(ns, trials)
		s := stats.Summarize(all)
		return &event.Timings{Timer: "cupti", ColdL2: cold, TrialsNS: all, MedianNS: stats.Latency(all), N: s.N,
			Interval: event.Interval{LoNS: s.Lo, HiNS: s.Hi, Width: s.Width(), Confidence: s.Confidence}}
	}
	own := timings(ns, trials, true)
	s := stats.Summarize(own.TrialsNS)
	bytes := int64(ns * 3000)
	reading := event.Reading{SMClockMHz: 1965, MemoryClockMHz: 3996, TemperatureC: 41, PowerW: 321.5}
	hot := reading
	hot.TemperatureC, hot.PowerW = 44, 402.25
	return &event.Samples{Timer: "cupti", ColdL2: true, TrialsNS: own.TrialsNS, MedianNS: own.MedianNS,
		MinNS: int64(s.Min), N: s.N, Q1NS: s.Q1, Q2NS: s.Median, Q3NS: s.Q3, MeanNS: s.Mean,
		Interval: own.Interval, Bytes: bytes, Bandwidth: float64(bytes) / own.MedianNS,
		PeakShare: float64(bytes) / own.MedianNS / 4800, Measured: 1,
		Kernels: []event.Activity{{Kind: "memset", Bytes: 4096, MedianNS: 640 + float64(seed%100)},
			{Kind: "kernel", Name: fmt.Sprintf("void (anonymous namespace)::prefill<%d, (gdn::Order)1>(float const*, int)",
				seed%4), Grid: [3]int{int(seed%7) + 1, 132, 1},
				Block: [3]int{256, 1, 1}, Registers: 168, StaticSharedBytes: 1024, DynamicSharedBytes: 196608, LocalBytes: 16,
				MedianNS: ns / 2}},
		Stamp: &event.Stamp{Before: reading, After: hot, During: event.During{N: 4, Min: reading, Median: reading, Max: hot},
			ECC: true},
		Warm: timings(0.8*ns, 1, false), Baseline: timings(1.3*ns, trials, true), CopyNS: 0.9 * ns, EmptyNS: 576,
		CopyShare: 0.9 * ns / own.MedianNS}
}

// passed returns the events of a workload that passed.
func passed(w event.WorkloadRef, s *event.Samples) []event.Event {
	abs, rel := 1.5e-7, 3e-4
	e := eventtest.Verdict{Axes: w.Axes, Status: "PASSED", MaxAbs: abs, MaxRel: rel, UUID: w.UUID}.Evaluated()
	if s != nil {
		ms := s.MedianNS / 1e6
		e.Trace.Evaluation.Performance.LatencyMS = ms
		if s.Baseline != nil {
			x := s.Baseline.MedianNS / s.MedianNS
			e.Ratio = &x
		}
		return []event.Event{{Type: event.TypeSamples, Workload: w.UUID, Samples: s},
			{Type: event.TypeEvaluated, Workload: w.UUID, Evaluated: e}}
	}
	return []event.Event{{Type: event.TypeEvaluated, Workload: w.UUID, Evaluated: e}}
}

// made caches the runs of hundred, which take a while.
var made = map[string]*runs.Run{}

// hundred returns a run of 100 workloads with three trials of 150 calls. Some fail, some are in doubt.
func hundred(t testing.TB, id string, factor float64) *runs.Run {
	if made[id] != nil {
		return made[id]
	}
	run := gpuRun(id, 100)
	var list []event.Event
	for i, w := range run.Workloads {
		s := samples(uint64(i), factor*(4000+40*float64(w.Axes["total_seq_len"])), 3, 150)
		switch i {
		case 3:
			s.Disturbed = []string{"the SM clock fell from 1965 to 1200 MHz"}
			s.Stamp.ThrottleReasons = []string{"hw-thermal-slowdown", "sw-power-cap"}
			s.Stamp.OtherProcesses = []event.GPUProcess{{PID: 77, Name: "python3", MemoryBytes: 3 << 30, SMPercent: 40}}
			s.Measured = 3
		case 5, 9:
			e := eventtest.Verdict{Axes: w.Axes, Status: "INCORRECT_NUMERICAL", Detail: "output state[3, 1]: got 1.25, want 0.5",
				Log: "line 1\n\x1b[31mred\x1b[0m line 2\nline 3\n", UUID: w.UUID}.Evaluated()
			list = append(list, event.Event{Type: event.TypeEvaluated, Workload: w.UUID, Evaluated: e})
			continue
		}
		list = append(list, passed(w, s)...)
		if i == 7 {
			list = append(list, event.Event{Type: event.TypeWarning, Workload: w.UUID,
				Finding: &event.Finding{Check: "cached-by-pointer", Text: "the outputs match the previous inputs"}})
		}
	}
	list = append(list, event.Event{Type: event.TypeWarning, Message: &event.Message{Text: "the clocks are not locked",
		Hint: "nvidia-smi -lgc"}}, event.Event{Type: event.TypeDone, Done: &event.Done{Seconds: 12}})
	made[id] = folder(t, run, list...)
	return made[id]
}

var fiveMade *Report // cached by five: the comparisons take seconds

// five returns a report of five runs of 100 workloads.
func five(t testing.TB) *Report {
	if fiveMade != nil {
		return fiveMade
	}
	var all []*runs.Run
	for i := range 5 {
		all = append(all, hundred(t, fmt.Sprintf("20260103-%c", 'a'+i), 1+0.02*float64(i)))
	}
	fiveMade = newReport(t, all...)
	return fiveMade
}

// places returns a run over two different GPUs.
func places(t testing.TB) *runs.Run {
	run := gpuRun("20260102-places", 6)
	run.Baseline = nil
	var list []event.Event
	devices := []event.Device{run.Device, {Kind: "cuda", Name: "NVIDIA H200", Arch: "sm_90", Driver: "570.9",
		UUID: "GPU-2"}}
	names := []string{"lab: gpu01 gpu 0", "cloud: i-2"}
	for i, d := range devices {
		list = append(list, event.Event{Type: event.TypeJob, Place: names[i],
			JobState: &event.JobChange{Phase: "running", Device: &d, Host: &event.Host{Name: "host" + fmt.Sprint(i), Cores: 4}}})
	}
	for i, w := range run.Workloads {
		s := samples(uint64(i), 5000*float64(1+2*(i%2))*float64(i+1), 3, 50)
		s.Baseline = nil
		for _, e := range passed(w, s) {
			e.Place = names[i%2]
			list = append(list, e)
		}
	}
	return folder(t, run, append(list, event.Event{Type: event.TypeDone, Done: &event.Done{Seconds: 1}})...)
}

// emulated returns a run on the virtual GPU, without latencies.
func emulated(t testing.TB) *runs.Run {
	run := gpuRun("20260102-emu", 3)
	run.Device, run.Baseline, run.Floors = event.Device{Kind: "emu", Name: "CPU", Emulated: true, Toolchain: "g++ 12"},
		nil, false
	list := passed(run.Workloads[0], nil)
	extra := &trace.Map[any]{}
	extra.Set("matched_ratio", 0.98756)
	list[0].Evaluated.Trace.Evaluation.Correctness.Extra = extra
	list = append(list, event.Event{Type: event.TypeFailed, Workload: run.Workloads[1].UUID,
		Message: &event.Message{Text: "no space left"}})
	return folder(t, run, list...)
}

// emulatedPass returns a run on the virtual GPU whose workloads pass.
func emulatedPass(t testing.TB, id string) *runs.Run {
	run := gpuRun(id, 3)
	run.Device, run.Baseline, run.Floors = event.Device{Kind: "emu", Name: "CPU", Emulated: true, Toolchain: "g++ 12"},
		nil, false
	var list []event.Event
	for _, w := range run.Workloads {
		list = append(list, passed(w, nil)...)
	}
	return folder(t, run, append(list, event.Event{Type: event.TypeDone, Done: &event.Done{Seconds: 1}})...)
}

// hostile returns a run in which every text attempts an injection.
func hostile(t testing.TB) *runs.Run {
	const script = `</title></style><script>document.title="owned"</script><img src="http://example.invalid/x.png" onerror="document.title='owned'">`
	run := gpuRun("20260102-hostile", 2)
	run.Solution, run.Author, run.Definition, run.Set, run.Command = "=1+1"+script, script, "|"+script, script,
		[]string{script, "\u202egnp.exe"}
	run.Baseline.Name, run.Device.Name, run.Host.Name, run.Git.Commit = "@team "+script, script, script, script
	run.Workloads[0].UUID, run.Workloads[1].UUID = `"><svg onload=alert(1)>`+script, "-2+3"
	run.Workloads[1].Axes = map[string]int{`"><b>n`: 1 << 40, "batch_size": -3}
	s := samples(1, 5000, 3, 50)
	s.Timer, s.Disturbed, s.Warnings, s.TimerNote = script, []string{script}, []string{script}, script
	s.Kernels[1].Name, s.Stamp.ThrottleReasons, s.Stamp.Note = script, []string{script}, script
	s.Stamp.OtherProcesses = []event.GPUProcess{{Name: script}}
	s.TrialsNS = [][]int64{{-5, 0, 1 << 62, 3}, {}, {7}}
	s.Interval, s.MinNS, s.Q3NS, s.CopyNS, s.Baseline.MedianNS = event.Interval{LoNS: -1, HiNS: 1e300, Width: 1e300},
		-1<<62, -1, 5e-324, 1e308
	huge := 1e308
	wrong := wrongMap(script, 8, 128)
	wrong.Text, wrong.Down.Name, wrong.Across.Name = script, script[:100], script[20:120]
	source := []event.Excerpt{{File: "../" + script, Line: 1, Column: 9, First: 1, Lines: []string{script + "\x1b[2J\u202e"}}}
	list := passed(run.Workloads[0], s)
	list[1].Evaluated.Ratio = &huge
	list = append(list, event.Event{Type: event.TypeWarning, Workload: run.Workloads[0].UUID,
		Finding: &event.Finding{Check: script, Text: script, Source: source}})
	broken := eventtest.Verdict{Status: "RUNTIME_ERROR",
		Detail: script, Axes: map[string]int{`"><b>n`: 1 << 40},
		Log: "\x1b]8;;http://example.invalid/\x07link\x1b]8;;\x07 \x1b[2J\x1b[1;31m" + script + "\x1b[0m\rover\n</pre>" +
			script, UUID: "-2+3"}.Evaluated()
	broken.Maps, broken.Source = []event.Map{wrong}, source
	list = append(list, event.Event{Type: event.TypeEvaluated, Workload: "-2+3", Evaluated: broken},
		event.Event{Type: event.TypeWarning, Message: &event.Message{Text: script, Hint: script}})
	return folder(t, run, list...)
}

func newReport(t testing.TB, all ...*runs.Run) *Report {
	t.Helper()
	r, err := New("0.1.0", all...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pages holds the reports under test.
var pages = map[string]func(t testing.TB) *Report{
	"decode":  func(t testing.TB) *Report { return newReport(t, measured(t, "warp-per-row")) },
	"contest": func(t testing.TB) *Report { return newReport(t, measured(t, "contest54")) },
	"hundred": func(t testing.TB) *Report { return newReport(t, hundred(t, "20260102-a", 1)) },
	"one": func(t testing.TB) *Report {
		run := gpuRun("20260102-one", 1)
		return newReport(t, folder(t, run, passed(run.Workloads[0], samples(1, 5000, 40, 50))...))
	},
	"two": func(t testing.TB) *Report {
		return newReport(t, measured(t, "alone-warp-per-row"), measured(t, "alone-warp-8-rows"))
	},
	"three": func(t testing.TB) *Report {
		return newReport(t, places(t), measured(t, "triton"), emulated(t))
	},
	"failed":   func(t testing.TB) *Report { return newReport(t, failed(t)) },
	"places":   func(t testing.TB) *Report { return newReport(t, places(t)) },
	"emulated": func(t testing.TB) *Report { return newReport(t, emulated(t)) },
	"hostile":  func(t testing.TB) *Report { return newReport(t, hostile(t)) },
	"missing":  func(t testing.TB) *Report { return newReport(t, folder(t, gpuRun("20260102-none", 2))) },
}
