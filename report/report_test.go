package report

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/longtest"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/runs"
	"fisub/runs/compare"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s", file, got)
	}
}

// rendered returns the output of write.
func rendered(t testing.TB, write func(io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// check reports texts that are missing in an output, and those that must not be in it.
func check(t testing.TB, name, output string, with, without []string) {
	t.Helper()
	for _, want := range with {
		if !strings.Contains(output, want) {
			t.Errorf("%s: no %q", name, want)
		}
	}
	for _, not := range without {
		if at := strings.Index(output, not); at >= 0 {
			t.Errorf("%s: got %q in ...%s", name, not, output[max(0, at-40):min(len(output), at+60)])
		}
	}
}

func TestMarkdown(t *testing.T) {
	for _, name := range []string{"decode", "two", "emulated", "places", "hostile"} {
		golden(t, name+".md", []byte(rendered(t, pages[name](t).Markdown)))
	}
}

// Markdown shows the failures of a long table outside of the fold, and stays below GitHub's limit of 65,536 characters
// for a comment.
func TestMarkdownOfMany(t *testing.T) {
	text := rendered(t, newReport(t, hundred(t, "20260102-a", 1)).Markdown)
	if len(text) > 65536 {
		t.Errorf("got %d bytes, want at most 65536", len(text))
	}
	fold := strings.Index(text, "</details>")
	for _, want := range []string{"INCORRECT_NUMERICAL on 00000005", "finding cached-by-pointer on 00000007",
		"unreliable timings of 00000003-aaaa-bbbb-cccc-dddddddddddd"} {
		if at := strings.Index(text, want); at < fold {
			t.Errorf("%q: got index %d, want it behind the table, which ends at %d", want, at, fold)
		}
	}
}

func TestSize(t *testing.T) {
	if got := len(rendered(t, newReport(t, hundred(t, "20260102-a", 1)).HTML)); got > 1_000_000 {
		t.Errorf("100 workloads of 3 times 150 timings: got %d bytes, want less than 1 MB", got)
	}
	longtest.CI(t, "compares five runs of 100 workloads")
	if got := len(rendered(t, five(t).HTML)); got > 1_000_000 {
		t.Errorf("five runs of them: got %d bytes, want less than 1 MB", got)
	}
}

// Texts of a run stay text: they add no element, attribute or address.
func TestHostile(t *testing.T) {
	text := strings.Replace(rendered(t, newReport(t, hostile(t)).HTML), scriptText, "", 1)
	check(t, "hostile", strings.ReplaceAll(text, "NaN or infinity", ""), nil, []string{"\x1b", "\u202e", "NaN", "Inf", "%!", "ZgotmplZ", "onerror=\"", "onload=\"",
		"src=\"", "href=\"h"})
	clean := rendered(t, newReport(t, measured(t, "warp-per-row"), hundred(t, "20260102-a", 1), failed(t)).HTML)
	known := tags.FindAllString(clean, -1)
	for _, tag := range tags.FindAllString(text, -1) {
		if !slices.Contains(known, tag) {
			t.Errorf("got %s, an element that other pages do not have", tag)
		}
	}
	policy := regexp.MustCompile(`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; ` +
		`script-src 'sha256-([A-Za-z0-9/]|&#43;){43}='">`)
	if !policy.MatchString(text) {
		t.Error("no content security policy")
	}
	if n := strings.Count(text, "<script>"); n != 1 {
		t.Errorf("scripts: got %d, want the page's own", n)
	}
}

var tags = regexp.MustCompile(`<[/!]?[a-zA-Z]+`)

// An emulated run never has a latency or a speed-up, even if its folder claims some.
func TestEmulated(t *testing.T) {
	run := gpuRun("20260102-fake", 2)
	run.Device.Emulated = true
	claims := passed(run.Workloads[0], samples(1, 5000, 3, 50))
	speedup := ui.Exact(*claims[1].Evaluated.Speedup())
	r := newReport(t, folder(t, run, claims...))
	for name, write := range map[string]func(io.Writer) error{"html": r.HTML, "markdown": r.Markdown} {
		text := rendered(t, write)
		check(t, name, text, nil, []string{"µs", "1.30x", speedup, "cupti"})
		if strings.Count(text, "measures nothing") > 1 {
			t.Errorf("%s: got\n%s", name, text)
		}
	}
}

// An emulated run shows the errors of each workload in every format, and no settings of timings.
func TestEmulatedErrors(t *testing.T) {
	r := pages["emulated"](t)
	for name, write := range map[string]func(io.Writer) error{"html": r.HTML, "markdown": r.Markdown} {
		check(t, name, rendered(t, write), []string{"Max abs", "1.50e-07", "Max rel", "3.00e-04", "Matched", "98.75 %"},
			[]string{"trials", "timed calls", "warm-up"})
	}
	check(t, "facts", fmt.Sprint(Facts(r.Runs[0].Run)),
		[]string{"[errors at most 1.50e-07 absolute, 3.00e-04 relative]"}, []string{"profile"})
	check(t, "facts of a run on a GPU", fmt.Sprint(Facts(pages["decode"](t).Runs[0].Run)),
		[]string{"[profile official (3 trials"}, nil)
}

// Grouped workloads of an emulated run show the largest errors of each group.
func TestEmulatedGroups(t *testing.T) {
	run := gpuRun("20260102-grouped", 6)
	run.Device = event.Device{Kind: "emu", Name: "CPU", Emulated: true}
	var list []event.Event
	for i := range run.Workloads {
		w := &run.Workloads[i]
		w.Axes = map[string]int{"n": i % 2}
		events := passed(*w, nil)
		c := events[0].Evaluated.Trace.Evaluation.Correctness
		c.MaxAbsoluteError, c.MaxRelativeError = float64(i), float64(10*i)
		list = append(list, events...)
	}
	table := newReport(t, folder(t, run, list...)).Runs[0].groups("g")
	var got []string
	for _, row := range table.Rows {
		for _, c := range row {
			got = append(got, c.Text)
		}
	}
	if want := []string{"0", "3 of 3", "4.00e+00", "4.00e+01", "1", "3 of 3", "5.00e+00",
		"5.00e+01"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLargest(t *testing.T) {
	row := func(abs, rel float64) runs.Row {
		return runs.Row{Evaluated: eventtest.Verdict{Status: "INCORRECT_NUMERICAL", MaxAbs: abs, MaxRel: rel}.Evaluated()}
	}
	for _, test := range []struct {
		name     string
		rows     []runs.Row
		abs, rel string
	}{
		{"none", []runs.Row{{}, {Evaluated: eventtest.Verdict{Status: "TIMEOUT"}.Evaluated()}}, "", ""},
		{"of different rows", []runs.Row{row(0, 3), {}, row(2, 1)}, "2.00e+00", "3.00e+00"},
		{"NaN first", []runs.Row{row(math.NaN(), 0), row(math.Inf(1), 0)}, "NaN", "0.00e+00"},
		{"NaN last", []runs.Row{row(math.Inf(1), 0), row(math.NaN(), 0)}, "NaN", "0.00e+00"},
	} {
		abs, rel := largest(test.rows)
		if got := [2]string{ui.Error(abs).Text, ui.Error(rel).Text}; got != [2]string{test.abs, test.rel} {
			t.Errorf("%s: got %q, want %q and %q", test.name, got, test.abs, test.rel)
		}
	}
}

// Figures of two GPUs are never combined.
func TestPlaces(t *testing.T) {
	r := newReport(t, places(t)).Runs[0]
	if got := r.Mean(); got != 0 {
		t.Errorf("mean over two places: got %v, want none", got)
	}
	c := r.latency("x")
	var names []string
	for _, l := range c.Legend {
		names = append(names, l.Text)
	}
	want := []string{"solution on lab: gpu01 gpu 0", "solution on cloud: i-2",
		"roofline copy on lab: gpu01 gpu 0", "roofline copy on cloud: i-2"}
	if !slices.Equal(names, want) {
		t.Errorf("legend: got %q, want %q", names, want)
	}
	if c.Legend[0].Path == c.Legend[1].Path {
		t.Error("both places have the same shape")
	}
	t2 := r.workloads("x", false)
	at := slices.IndexFunc(t2.Head, func(c column) bool { return c.Text == "Place" })
	for i, row := range t2.Rows {
		if got, want := row[at].Text, r.Workloads[i].Place; got != want {
			t.Errorf("row %d: place: got %q, want %q", i, got, want)
		}
	}
}

// Each step of a call is listed once for all workloads, with the range of its times.
func TestKernels(t *testing.T) {
	run := hundred(t, "20260101-a", 1)
	r := newReport(t, run)
	lo, hi, launches := math.Inf(1), 0.0, map[string]bool{}
	for _, w := range r.Runs[0].Workloads {
		if w.Samples != nil {
			lo, hi = min(lo, w.Samples.Kernels[0].MedianNS), max(hi, w.Samples.Kernels[0].MedianNS)
			launches[w.Samples.Kernels[1].Name+fmt.Sprint(w.Samples.Kernels[1].Grid)] = true
		}
	}
	table := r.Runs[0].kernels("k")
	at := slices.IndexFunc(table.Head, func(c column) bool { return c.Text == "Time, µs" })
	if len(table.Rows) != 1+len(launches) {
		t.Errorf("got %d rows, want the memset and %d launches", len(table.Rows), len(launches))
	}
	if got, want := table.Rows[0][at].Text, fmt.Sprintf("%.2f to %.2f", lo/1e3, hi/1e3); got != want {
		t.Errorf("memset: got %q, want %q", got, want)
	}
	for _, w := range r.Runs[0].Workloads {
		if w.Samples != nil {
			for i := range w.Samples.Kernels {
				w.Samples.Kernels[i].MedianNS = 0
			}
		}
	}
	table = r.Runs[0].kernels("k")
	if slices.ContainsFunc(table.Head, func(c column) bool { return c.Text == "Time, µs" }) {
		t.Errorf("got a column of times where none were taken")
	}
	if got := between(0, 0, 2, "").Text + between(1.5, 1.501, 2, "").Text; got != "1.50" {
		t.Errorf("got %q, want nothing and one time", got)
	}
}

// The report repeats the result and the words of runs/compare. A refused comparison becomes a sentence.
func TestComparison(t *testing.T) {
	a, b := hundred(t, "20260102-a", 1), hundred(t, "20260102-b", 0.9)
	r := newReport(t, a, b, emulated(t))
	res, err := compare.Runs(a, b, compare.Threshold)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Comparisons[0].Result, res; got.Verdict != want.Verdict || *got.Ratio != *want.Ratio ||
		got.Verdict != compare.Faster {
		t.Errorf("got %v %v, want %v %v", got.Verdict, got.Ratio, want.Verdict, want.Ratio)
	}
	table := r.Comparisons[0].table("x", false)
	for i, row := range res.Rows {
		ratio, interval := RatioText(row.Ratio)
		cells := table.Rows[i]
		n := len(cells)
		if cells[n-4].Text != ratio || cells[n-3].Text != interval ||
			!strings.HasPrefix(cells[n-1].Text, string(row.Verdict)) {
			t.Errorf("row %d: got %v, want %s, %s, %s", i, cells, ratio, interval, row.Verdict)
		}
	}
	var mismatch *compare.MismatchError
	if !errors.As(r.Comparisons[1].Err, &mismatch) {
		t.Errorf("emulated and GPU: got %v, want a mismatch", r.Comparisons[1].Err)
	}
	check(t, "page", rendered(t, r.HTML), []string{"B as a whole: <strong class=\"good\">faster</strong>",
		"the runs cannot be compared: the device is NVIDIA B200"}, nil)
}

// A comparison of emulated runs has no columns of timings.
func TestComparisonUntimed(t *testing.T) {
	table := newReport(t, emulated(t), emulated(t)).Comparisons[0].table("x", true)
	for _, c := range table.Head {
		if slices.Contains([]string{"B/A", "95 % interval", "p"}, c.Text) {
			t.Errorf("got a column %s in %v", c.Text, table.Rows)
		}
	}
}

// TestTimingsOnly: folders with timings but no verdicts get their axes from run.json, and the page does not claim that
// nothing passed.
func TestTimingsOnly(t *testing.T) {
	var all []*runs.Run
	for _, name := range []string{"triton", "ours"} {
		run, err := runs.Read(filepath.Join("..", "docs", "results", "h200-performance", name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, run)
	}
	check(t, "page", rendered(t, newReport(t, all...).HTML),
		[]string{"batch_size 64, workload d615f2dd: 0.784, interval", "no verdicts stored"}, []string{"no axes", "0 of 10"})
}

func TestNoRunJSON(t *testing.T) {
	if _, err := New("0", &runs.Run{ID: "x"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want %v", err, ErrUnknown)
	}
}

// Each timing is in one bin of its trial, or outside the range.
func TestHistogram(t *testing.T) {
	for _, test := range []struct {
		name   string
		trials [][]int64
		strips []string
		note   string
	}{
		{"one timing", [][]int64{{1000}}, []string{"1"}, ""},
		{"ticks", [][]int64{{991, 992, 993}, {1023, 1024}}, []string{"1", "2"}, ""},
		{"many trials", [][]int64{{1}, {2}, {3}, {4}, {5}, {6}, {7}}, []string{"1–2", "3–4", "5–6", "7"}, "7 below 0.53 µs"},
		{"an empty trial", [][]int64{{}, {900, 1000}}, []string{"1"}, ""},
		{"beyond", [][]int64{{1000, 1000, 1000, 1032, 1000, 9000}}, []string{"1"}, "1 beyond 1.17 µs"},
		{"none", [][]int64{{}}, nil, ""},
		{"none that can be", [][]int64{{-1, 0, 1 << 60}}, nil, ""},
	} {
		s := &event.Samples{TrialsNS: test.trials, MedianNS: 1000}
		if test.name == "beyond" {
			s.Q1NS, s.Q3NS = 1000, 1000
		}
		w := runs.Row{UUID: "u", Samples: s}
		from, to := scale([]runs.Row{w})
		h := histogramOf(&w, "x", from, to)
		var got []string
		note := ""
		if h != nil {
			note = h.Note
			for _, strip := range h.Strips {
				got = append(got, strip.Label)
				if strip.Path == "" && test.name != "many trials" {
					t.Errorf("%s: strip %s is empty", test.name, strip.Label)
				}
			}
		}
		if !slices.Equal(got, test.strips) || note != test.note {
			t.Errorf("%s: got %q %q, want %q %q", test.name, got, note, test.strips, test.note)
		}
	}
	// Timings within 1 ns of a tick share its bin.
	ticks := runs.Row{Samples: &event.Samples{MedianNS: 1800, TrialsNS: [][]int64{{1791, 1792, 1793, 1823, 1824, 1825}}}}
	if got := strings.Count(histogramOf(&ticks, "x", 0.9, 1.1).Strips[0].Path, "h"); got != 2 {
		t.Errorf("bins: got %d, want 2", got)
	}
}

// All histograms of a run share a scale: the same share of a workload's latency is at the same position.
func TestHistogramScale(t *testing.T) {
	var list []runs.Row
	for _, ns := range []int64{2000, 40000} {
		list = append(list, runs.Row{Samples: &event.Samples{MedianNS: float64(ns), Q1NS: float64(ns),
			Q3NS: float64(ns) * 1.02, TrialsNS: [][]int64{{ns * 95 / 100, ns, ns, ns * 11 / 10}}}})
	}
	from, to := scale(list)
	a, b := histogramOf(&list[0], "a", from, to), histogramOf(&list[1], "b", from, to)
	if a.Official != b.Official {
		t.Errorf("official latency: at %v and %v", a.Official, b.Official)
	}
	if !slices.Equal(a.Ticks, b.Ticks) || len(a.Ticks) < 3 || a.Ticks[0].Label != "-5 %" {
		t.Errorf("ticks: got %v and %v, want the same from -5 %%", a.Ticks, b.Ticks)
	}
}

// A sentence describes the state of most workloads. Rows list the exceptions.
func TestTrust(t *testing.T) {
	sentence, table := newReport(t, hundred(t, "20260101-a", 1)).Runs[0].trust("x")
	if len(table.Rows) != 1 || table.Rows[0][0].Text != "00000003" {
		t.Errorf("rows: got %v, want that of workload 3", table.Rows)
	}
	if want := "97 of 98 workloads timed at 1"; !strings.HasPrefix(sentence, want) {
		t.Errorf("got %q, want %q", sentence, want)
	}
}

// Workloads with the same axes share one row; the full table is folded.
func TestGroups(t *testing.T) {
	r := newReport(t, measured(t, "contest54"))
	table := r.Runs[0].groups("g")
	if n := len(table.Rows); n < 2 || n > 10 || table.Head[0].Text != "batch_size" {
		t.Errorf("got %d rows by %q, want one for each batch_size", n, table.Head[0].Text)
	}
	if rows := newReport(t, hundred(t, "20260101-a", 1)).Runs[0].groups("g").Rows; len(rows) > 0 {
		t.Errorf("most workloads are alone with their axes: got %d groups", len(rows))
	}
}

// One chart shows several runs, and one table their different settings.
func TestAllRuns(t *testing.T) {
	r := newReport(t, hundred(t, "20260101-a", 1), hundred(t, "20260102-b", 0.9))
	c := r.latency("x")
	if c == nil || len(c.Legend) < 3 || !strings.Contains(c.Legend[1].Text, "20260101-a") ||
		!strings.Contains(c.Legend[2].Text, "20260102-b") {
		t.Fatalf("legend: got %+v, want baseline and both runs", c)
	}
	if rows := r.configurations().Rows; len(rows) > 0 {
		t.Errorf("runs of one configuration: got %v", rows)
	}
	r = newReport(t, hundred(t, "20260101-a", 1), emulated(t))
	var names []string
	for _, row := range r.configurations().Rows {
		names = append(names, row[0].Text)
	}
	for _, want := range []string{"device", "baseline"} {
		if !slices.Contains(names, want) {
			t.Errorf("got %v, want %s", names, want)
		}
	}
	if r.latency("x") != nil {
		t.Error("an emulated run stands in a chart of latencies")
	}
}

// The verdict comes before the contents, and the first failure is unfolded.
func TestVerdictFirst(t *testing.T) {
	for _, name := range []string{"decode", "emulated", "hostile"} {
		page := rendered(t, pages[name](t).HTML)
		if at := strings.Index(page, `class="summary"`); at < 0 || at > strings.Index(page, "<nav") ||
			strings.Count(page, `class="summary"`) != 1 {
			t.Errorf("%s: the verdict does not stand once, before the contents", name)
		}
		if got, all := strings.Count(page, `class="log" open`), strings.Count(page, `<details class="log"`); got != min(all, 1) {
			t.Errorf("%s: open failures: got %d of %d", name, got, all)
		}
	}
}

// On a page of several runs the verdicts come before the contents.
func TestVerdictsFirst(t *testing.T) {
	for _, c := range pages["two"](t).overview().Head {
		if c.Text == "Baseline" || c.Text == "Mean speed-up" {
			t.Errorf("no run has a baseline: got a column %s", c.Text)
		}
	}
	for name, want := range map[string]int{"two": 1, "three": 2} {
		top, _, _ := strings.Cut(rendered(t, pages[name](t).HTML), "<nav")
		if got := strings.Count(top, `class="summary"`); got != want {
			t.Errorf("%s: got %d verdicts, want %d", name, got, want)
		}
		if name == "two" {
			check(t, name, top, []string{"<strong>same</strong>, 10 workloads: 6 faster, 4 slower."}, nil)
		}
	}
}

// The contents name each run by as little as distinguishes it.
func TestContents(t *testing.T) {
	same := newReport(t, hundred(t, "20260101-a", 1), hundred(t, "20260102-b", 0.9))
	other := gpuRun("20260103-c", 1)
	other.ContentHash = "fedcba9876543210"
	versions := newReport(t, hundred(t, "20260101-a", 1), folder(t, other))
	for _, test := range []struct {
		name string
		r    *Report
		want []string
	}{
		{"two solutions", pages["two"](t), []string{"Runs", "Comparison", "A: baseline-warp-per-row",
			"B: baseline-warp-8-rows", "Definitions"}},
		{"two versions", versions, []string{"Runs", "Comparison", "A: 01234567", "B: fedcba98", "Definitions"}},
		{"one version", same, []string{"Runs", "Comparison", "A: 20260101-a", "B: 20260102-b", "Definitions"}},
		{"three runs", pages["three"](t), []string{"Runs", "fisub-gdn-decode against 20260102-places",
			"20260102-emu against 20260102-places", "20260102-places", "fisub-gdn-decode", "20260102-emu", "Definitions"}},
		{"one run", pages["emulated"](t), []string{"Workloads", "Failures", "Environment", "Definitions"}},
	} {
		_, nav, _ := strings.Cut(rendered(t, test.r.HTML), "<nav")
		nav, _, _ = strings.Cut(nav, "</nav>")
		var got []string
		for _, m := range regexp.MustCompile(`<a href="#[a-z0-9-]+">([^<]+)</a>`).FindAllStringSubmatch(nav, -1) {
			got = append(got, m[1])
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// A run lists the mistakes that it looked for, if they were recorded, and shows a repeated finding in full only once.
func TestChecked(t *testing.T) {
	run := gpuRun("20260102-looked", 3)
	run.Device = event.Device{Kind: "emu", Name: "CPU", Emulated: true}
	run.Checked = &event.Checked{For: []string{"in all calls: faults", "in first calls: races"}, Not: []string{"time", "<b>"}}
	var list []event.Event
	for i, w := range run.Workloads[:2] {
		list = append(list, passed(w, nil)...)
		list = append(list, event.Event{Type: event.TypeWarning, Workload: w.UUID, Finding: &event.Finding{Check: "race",
			Place: "kernel.cu:3:4", Text: fmt.Sprintf("kernel.cu:3:4: race of thread %d", i)}})
	}
	r := newReport(t, folder(t, run, list...))
	want := []string{"Results of 2 of 3 workloads, by the contest's rule and tolerance.", "In all calls: faults.",
		"In first calls: races.", "Not checked for: time, <b>."}
	if got := r.Runs[0].Checked(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, write := range map[string]func(io.Writer) error{"html": r.HTML, "markdown": r.Markdown} {
		text := rendered(t, write)
		if strings.Count(text, "race of thread 0") != 1 || strings.Contains(text, "race of thread 1") ||
			!strings.Contains(text, "kernel.cu:3:4: as on "+plain.Short(run.Workloads[0].UUID)) {
			t.Errorf("%s: got %s, want the race in full on the first workload only", name, text)
		}
	}
	if got := pages["decode"](t).Runs[0].Checked(); got != nil {
		t.Errorf("a run whose record does not tell: got %q", got)
	}
}

func TestScale(t *testing.T) {
	for _, test := range []struct {
		lo, hi float64
		want   string
	}{
		{0.58, 65.6, "[0.5 1 2 5 10 20 50 100]"},
		{1, 10, "[1 2 5 10]"},
		{2, 2, "[2 2.02]"},
		{0.98, 1.03, "[0.98 1 1.02 1.04]"},
		{3, 70, "[2 5 10 20 50 100]"},
	} {
		var got []string
		for _, v := range scaleTicks(test.lo, test.hi) {
			got = append(got, trim(v))
		}
		if s := "[" + strings.Join(got, " ") + "]"; s != test.want {
			t.Errorf("%v to %v: got %s, want %s", test.lo, test.hi, s, test.want)
		}
	}
}

// A chart labels the ticks that fit, more of them if it is wide, and always the last.
func TestLabelTicks(t *testing.T) {
	for _, test := range []struct {
		name   string
		labels []string
		at     []float64
		want   string
	}{
		{"none", nil, nil, ""},
		{"one", []string{"1024"}, []float64{500}, "1024"},
		{"48 next to 64", []string{"32", "48", "64"}, []float64{615, 682, 730}, "32 48:wide 64"},
		{"long ones", []string{"4096", "4097", "8192"}, []float64{40, 41, 960}, "4096 - 8192"},
		{"the last wins", []string{"1", "1000000"}, []float64{955, 960}, "- 1000000"},
		{"more with the width", []string{"1000", "1001", "1002", "1003", "1004"}, []float64{0, 75, 150, 225, 300},
			"1000 1001:wide 1002 1003:wide 1004"},
		{"much wider", []string{"100", "101", "102"}, []float64{0, 40, 80}, "100:wide 101:wider 102"},
	} {
		var ticks []tick
		for _, x := range test.at {
			ticks = append(ticks, tick{At: x})
		}
		labelTicks(ticks, func(i int) string { return test.labels[i] })
		var got []string
		for _, tick := range ticks {
			text := cmp.Or(tick.Label, "-")
			if tick.Wide != "" {
				text += ":" + tick.Wide
			}
			got = append(got, text)
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("%s: got %s, want %s", test.name, s, test.want)
		}
	}
}

func FuzzScale(f *testing.F) {
	f.Add(1.0, 1.0)
	f.Add(1e-6, 1e18)
	f.Add(0.9999999, 1.0000001)
	f.Add(3.0, 8.999)
	f.Fuzz(func(t *testing.T, lo, hi float64) {
		if !(lo >= 1e-6 && hi <= 1e18 && lo <= hi) {
			t.Skip()
		}
		list := scaleTicks(lo, hi)
		if len(list) < 2 || len(list) > 100 || list[0] > lo*(1+1e-6) || list[len(list)-1] < hi*(1-1e-6) ||
			!slices.IsSorted(list) || list[0] == list[len(list)-1] || list[0] <= 0 {
			t.Errorf("%v to %v: got %v", lo, hi, list)
		}
	})
}

func TestLog(t *testing.T) {
	long := strings.Repeat("x\n", 100)
	for _, test := range []struct{ name, log, want, more string }{
		{"colours", "\x1b[1;31merror\x1b[0m: a\tb\r\n", "error: a    b", ""},
		{"a link", "\x1b]8;;http://x\x1b\\text\x1b]8;;\x07 end", "text end", ""},
		{"a title that has no end", "a\x1b]0;b\nc", "a0;b\nc", ""},
		{"cursor", "a\x1b[2J\x1b[Hb\x1bMc", "abc", ""},
		{"half a character", "a\xff\xfe", "a\uFFFD", ""},
		{"direction", "a\u202eb", "a\uFFFDb", ""},
		{"nothing is hidden", "secret\rshown", "secret\nshown", ""},
		{"long", long, strings.TrimSuffix(long[:120], "\n"), "the complete log is in the run folder, in log/"},
		{"wide", strings.Repeat("é", 4000), strings.Repeat("é", 3000), "the complete log is in the run folder, in log/"},
		{"known lines", "a\nkernel.cu:1: bad\n\nFault: kernel.cu:1: bad\n", "a\n", ""},
	} {
		if got, more := logText(test.log, "Fault: kernel.cu:1: bad"); got != test.want || more != test.more {
			t.Errorf("%s: got %q %q, want %q %q", test.name, got, more, test.want, test.more)
		}
	}
}

func TestMarkdownText(t *testing.T) {
	for in, want := range map[string]string{
		"a|b":             `a\|b`,
		"<b>&amp;":        `\<b\>\&amp;`,
		"batch_size":      "batch_size",
		"_a_ *b* `c`":     "\\_a\\_ \\*b\\* \\`c\\`",
		"@team":           "@\u2060team",
		"![x](http://y)":  `\!\[x\](http://y)`,
		"# not a heading": `\# not a heading`,
	} {
		if got := md(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestKernelName(t *testing.T) {
	for in, want := range map[string]string{
		"void gdn::decode<gdn::Shape<8, (gdn::Order)0>, true>(float const*, int)": "gdn::decode<gdn::Shape<8, " +
			"(gdn::Order)0>, true>",
		"void (anonymous namespace)::f<1>(int)": "(anonymous namespace)::f<1>",
		"_kernel_0":                             "_kernel_0",
		"":                                      "",
	} {
		if got := kernelCell(event.Activity{Kind: "kernel", Name: in}).Text; got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// Sources are named by their paths in the project, even if only their path in the solution was recorded.
func TestSources(t *testing.T) {
	run := gpuRun("20260101-s", 2)
	run.Folder, run.Sources = "solution/cuda", []string{"kernel.cu"}
	uuid := [2]string{run.Workloads[0].UUID, run.Workloads[1].UUID}
	list := append(passed(run.Workloads[0], samples(1, 4000, 3, 150)), event.Event{Type: event.TypeWarning, Workload: uuid[0],
		Finding: &event.Finding{Check: "race", Place: "kernel.cu:3:4", Text: "kernel.cu:3:4: a race"}},
		event.Event{Type: event.TypeEvaluated, Workload: uuid[1], Evaluated: eventtest.Verdict{Status: "RUNTIME_ERROR",
			Detail: "DeviceFault: kernel.cu:5:6: a fault", Log: "kernel.cu:5:6: a fault\n", UUID: uuid[1]}.Evaluated()},
		event.Event{Type: event.TypeDone, Done: &event.Done{}})
	r := newReport(t, folder(t, run, list...))
	check(t, "Markdown", strings.ReplaceAll(rendered(t, r.Markdown), `\`, ""),
		[]string{": solution/cuda/kernel.cu:3:4: a race", ": DeviceFault: solution/cuda/kernel.cu:5:6: a fault"}, nil)
}

// A comparison of runs that pass without timings says so once, without a table.
func TestUntimedComparison(t *testing.T) {
	var all []string
	r := newReport(t, emulatedPass(t, "20260102-a"), emulatedPass(t, "20260102-b"))
	page, md := rendered(t, r.HTML), rendered(t, r.Markdown)
	check(t, "page", page, []string{"<h2 id=\"d1-h\" class=\"run\">Second run against first</h2>"},
		[]string{"not comparable", "95 % interval", "B against A", "Mann-Whitney test\""})
	check(t, "Markdown", md, []string{"- 3 workloads: all pass in both runs, but none was timed in both\n"},
		[]string{"not comparable", "95 % interval"})
	for _, c := range newReport(t, emulated(t), emulatedPass(t, "20260102-b")).Comparisons[0].table("", true).Head {
		all = append(all, c.Text)
	}
	if want := "[Workload Verdict on B num_seqs total_seq_len A B]"; fmt.Sprint(all) != want {
		t.Errorf("columns without timings: got %v, want %s", all, want)
	}
}

// The score of a task's board is the mean of its cases by the task's rule, in both forms of a report.
func TestBoard(t *testing.T) {
	for ranking, want := range map[string]string{"last": "4.00", "mean": "2.50", "geom": "2.00"} {
		run := &event.Run{ID: "r", Definition: "sort", Functions: true, Ranking: ranking,
			Workloads: []event.WorkloadRef{{UUID: "u1"}, {UUID: "u2"}}}
		var list []event.Event
		for i, ns := range []float64{1000, 4000} {
			uuid := run.Workloads[i].UUID
			list = append(list, event.Event{Type: event.TypeSamples, Workload: uuid, Samples: &event.Samples{MedianNS: 900,
				N: 1, TrialsNS: [][]int64{{900}}, Board: &event.Board{Runs: 3, Mean: ns, Best: ns, Worst: ns}}},
				event.Event{Type: event.TypeEvaluated, Workload: uuid, Evaluated: eventtest.Verdict{Index: i + 1,
					Status: "PASSED", UUID: uuid}.Evaluated()})
		}
		r := newReport(t, folder(t, run, append(list, event.Event{Type: event.TypeDone, Done: &event.Done{Passed: 2}})...))
		check(t, "Markdown", rendered(t, r.Markdown), []string{"Board: " + want + " µs, "}, nil)
		check(t, "page", rendered(t, r.HTML), []string{"board, " + ranking + " of the cases", want + " µs"}, nil)
	}
}
