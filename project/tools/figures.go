package tools

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fisub/device/counters"
	"fisub/internal/plain"
	"fisub/runs"
)

// The files of a profile, in its run folder.
const (
	ReportName  = runs.ProfileName // ncu's own, for ncu-ui
	FiguresName = runs.FiguresName // its figures, a Profiled
)

// A ProfiledKernel is a launch profiled by ncu, or some launches of a kernel counted by the virtual GPU.
type ProfiledKernel struct {
	Name    string   `json:"name"`
	Figures []Figure `json:"figures"`           // those in the report, in the order of the table
	Limiter string   `json:"limiter,omitempty"` // of the occupancy: "registers", "shared memory", "block size", ...
	Stalls  []Stall  `json:"stalls,omitempty"`  // from the most frequent; without the state "selected"
}

// A Stall is a reason for which warps issued no instruction.
type Stall struct {
	Reason string  `json:"reason"` // "long scoreboard"
	Share  float64 `json:"share"`  // of all samples of the kernel's warps
	Lines  []Line  `json:"lines,omitempty"`
}

// A Line is a source line with its share of a kernel's samples with one stall reason.
type Line struct {
	File  string  `json:"file"` // path in the solution, or the name of a header
	Line  int     `json:"line"`
	Text  string  `json:"text"`
	Share float64 `json:"share"` // of all samples of the kernel's warps
}

// A Figure is one of ncu's metrics under a name of our own. Metric is "" if ncu has none.
type Figure struct {
	Name   string   `json:"name"`   // "dram_read"
	Metric string   `json:"metric"` // ncu's: "dram__bytes_read.sum"
	Value  *float64 `json:"value"`  // nil if ncu has no value
	Unit   string   `json:"unit"`   // ncu's base unit: "byte", "ns", "%"; "" for a plain number
	// Kind is set for a figure of the virtual GPU: "exact" (equal to ncu's), "PTX" (the machine code may differ), "bound"
	// (ncu's is at least as large), "estimate".
	Kind counters.Kind `json:"kind,omitempty"`
}

// Profiled is the content of FiguresName.
type Profiled struct {
	Workload string            `json:"workload"`
	GPU      string            `json:"gpu,omitempty"` // of the least times, if the virtual GPU counted
	Kernels  []ProfiledKernel  `json:"kernels"`
	Counters []counters.Launch `json:"-"` // content of CountersName
}

// figures lists the figures of a profile. Those with asked set are requested in addition to the section set; the
// others are in the sets detailed and full. Those with free set need no permission; the ones of executed instructions
// are counted by code that ncu inserts (https://docs.nvidia.com/nsight-compute/ProfilingGuide, metrics collection).
var figures = []struct {
	name, metric string
	asked, free  bool
}{
	{"duration", "gpu__time_duration.sum", true, false},
	{"cycles", "gpc__cycles_elapsed.max", false, false},
	{"dram_read", "dram__bytes_read.sum", true, false},
	{"dram_written", "dram__bytes_write.sum", true, false},
	{"dram_throughput", "dram__throughput.avg.pct_of_peak_sustained_elapsed", true, false},
	{"l2_throughput", "lts__throughput.avg.pct_of_peak_sustained_elapsed", false, false},
	{"l1_throughput", "l1tex__throughput.avg.pct_of_peak_sustained_active", false, false},
	{"memory_busy", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", false, false},
	{"tensor_busy", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", false, false},
	{"sm_throughput", "sm__throughput.avg.pct_of_peak_sustained_elapsed", true, false},
	{"l2_hit_rate", "lts__t_sector_hit_rate.pct", true, false},
	{"l1_hit_rate", "l1tex__t_sector_hit_rate.pct", false, false},
	{"warps_active", "sm__warps_active.avg.pct_of_peak_sustained_active", true, false},
	{"warps_possible", "sm__maximum_warps_per_active_cycle_pct", false, false},
	{"warps_eligible", "smsp__warps_eligible.avg.per_cycle_active", false, false},
	{"issue_slots_busy", "smsp__issue_active.avg.pct_of_peak_sustained_active", false, false},
	{"instructions", "smsp__inst_executed.sum", true, false},
	{"instructions", "inst_executed", false, true}, // the same number
	{"global_sectors", "memory_l2_theoretical_sectors_global", false, true},
	{"global_sectors_ideal", "memory_l2_theoretical_sectors_global_ideal", false, true},
	{"shared_wavefronts", "memory_l1_wavefronts_shared", false, true},
	{"shared_wavefronts_ideal", "memory_l1_wavefronts_shared_ideal", false, true},
	{"instructions_per_cycle", "sm__inst_executed.avg.per_cycle_active", false, false},
	{"grid", "launch__grid_size", true, true},
	{"block", "launch__block_size", true, true},
	{"waves", "launch__waves_per_multiprocessor", true, true},
	{"registers", "launch__registers_per_thread", true, true},
	{"shared_static", "launch__shared_mem_per_block_static", true, true},
	{"shared_dynamic", "launch__shared_mem_per_block_dynamic", true, true},
}

// requested returns the metrics to ask ncu for in addition to a section set or, with counters unset, those that need no
// permission.
func requested(counters bool) string {
	var names []string
	for _, f := range figures {
		if counters && f.asked || !counters && f.free {
			names = append(names, f.metric)
		}
	}
	if !counters {
		for _, l := range limits {
			names = append(names, occupancyLimit+l.metric)
		}
	}
	return strings.Join(names, ",")
}

// unknown returns the names of the figures for which ncu has no value.
func unknown(kernels []ProfiledKernel) (names []string) {
	for _, k := range kernels {
		for _, f := range k.Figures {
			if name := strings.ReplaceAll(f.Name, "_", " "); f.Value == nil && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Figures parses ncu's raw page in base units: a header, a row of units, and a row for each kernel.
func Figures(raw []byte) ([]ProfiledKernel, error) {
	if i := bytes.Index(raw, []byte(`"ID"`)); i > 0 {
		raw = raw[i:] // skip ncu's own messages
	}
	r := csv.NewReader(bytes.NewReader(raw))
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) < 3 {
		return nil, errors.New("no kernel in the report")
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	var kernels []ProfiledKernel
	for _, row := range rows[2:] {
		cell := func(name string) (value, unit string) {
			i, ok := column[name]
			if !ok || i >= len(row) || i >= len(rows[1]) {
				return "", ""
			}
			return row[i], rows[1][i]
		}
		k := ProfiledKernel{Figures: []Figure{}}
		k.Name, _ = cell("Kernel Name")
		for _, f := range figures {
			text, unit := cell(f.metric)
			if text == "" || slices.ContainsFunc(k.Figures, func(have Figure) bool { return have.Name == f.name }) {
				continue
			}
			figure := Figure{Name: f.name, Metric: f.metric, Unit: unit}
			if x, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64); err == nil && x-x == 0 {
				figure.Value = &x
			}
			k.Figures = append(k.Figures, figure)
		}
		number := func(name string) float64 {
			text, _ := cell(name)
			x, _ := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
			return x
		}
		k.Limiter, k.Stalls = limiter(number), stalls(number)
		kernels = append(kernels, k)
	}
	return kernels, nil
}

// WriteFigures writes FiguresName into folder.
func WriteFigures(folder string, p *Profiled) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return plain.WriteFile(filepath.Join(folder, FiguresName), append(data, '\n'), 0o644)
}

// Table writes the metrics that decide, one per line; with all set, also every figure.
func Table(w io.Writer, kernels []ProfiledKernel, all bool) {
	for _, k := range kernels {
		fmt.Fprintf(w, "kernel      %s\n", plain.Line(k.Name))
		for _, m := range k.metrics() {
			fmt.Fprintf(w, "  %-24s %s\n", m.name, m.text)
		}
		for i, s := range k.Stalls[:min(maxReasons, len(k.Stalls))] {
			name := ""
			if i == 0 {
				name = "stalls"
			}
			fmt.Fprintf(w, "  %-24s %.0f %% %s\n", name, 100*s.Share, s.Reason)
			for _, l := range s.Lines {
				if l.Share < 0.01 {
					break
				}
				fmt.Fprintf(w, "  %-24s   %2.0f %%  %s:%d: %s\n", "", 100*l.Share, plain.Line(l.File), l.Line,
					plain.Cut(plain.Line(l.Text), 60))
			}
		}
		if !all {
			continue
		}
		for _, f := range k.Figures {
			fmt.Fprintf(w, "    %-22s %s\n", strings.ReplaceAll(plain.Line(f.Name), "_", " "), f.text())
		}
	}
}

// A metric is a line of Table. value is 0 if it cannot be compared as a ratio.
type metric struct {
	name, text string
	value      float64
}

// value returns a figure, or NaN.
func (k *ProfiledKernel) value(name string) float64 {
	for _, f := range k.Figures {
		if f.Name == name && f.Value != nil {
			return *f.Value
		}
	}
	return math.NaN()
}

// metrics returns the metrics that decide, without the stalls. Missing ones are left out.
func (k *ProfiledKernel) metrics() (list []metric) {
	add := func(name string, value float64, format, detail string) {
		if !math.IsNaN(value) {
			list = append(list, metric{name, fmt.Sprintf(format, value) + detail, value})
		}
	}
	detail := func(format string, names ...string) string { // "" if a figure is missing
		var values []any
		for _, name := range names {
			if math.IsNaN(k.value(name)) {
				return ""
			}
			values = append(values, k.value(name))
		}
		return fmt.Sprintf(format, values...)
	}
	ns := k.value("duration")
	add("duration", ns/1e3, "%.2f us", "")
	add("bandwidth", (k.value("dram_read")+k.value("dram_written"))/ns, "%.0f GB/s",
		detail(", %.0f %% of the memory's peak", "dram_throughput"))
	add("memory busy", k.value("memory_busy"), "%.0f %%", "")
	add("SM busy", k.value("sm_throughput"), "%.0f %%", "")
	add("tensor cores busy", k.value("tensor_busy"), "%.0f %%", "")
	add("L2 hits", k.value("l2_hit_rate"), "%.0f %%", "")
	possible := detail(" of possible %.0f %%", "warps_possible")
	if k.Limiter != "" {
		possible += ", limited by " + k.Limiter
	}
	add("occupancy", k.value("warps_active"), "%.0f %%", possible)
	add("blocks", k.value("grid"), "%.0f", detail(" of %.0f threads", "block")+detail(", %.2f waves", "waves"))
	shared := ""
	if bytes := k.value("shared_static") + k.value("shared_dynamic"); !math.IsNaN(bytes) {
		shared = fmt.Sprintf(", %.0f bytes of shared memory a block", bytes)
	}
	add("registers", k.value("registers"), "%.0f a thread", shared)
	if !math.IsNaN(ns) {
		return list
	}
	add("least time", k.value("least_time")/1e3, "%.2f us", "")
	add("resident blocks", k.value("resident_blocks"), "%.0f",
		detail(" a multiprocessor, %.0f %% of its warps", "warps_possible"))
	of := ""
	if !math.IsNaN(k.value("least_time")) {
		of = " of the PTX"
	}
	add("instructions", k.value("instructions"), "%.0f", of)
	add("divergent branches", k.value("divergent_branches"), "%.0f", "")
	add("load sectors", k.value("load_sectors"), "%.0f", detail(" in %.0f requests", "load_requests"))
	add("store sectors", k.value("store_sectors"), "%.0f", detail(" in %.0f requests", "store_requests"))
	add("global sectors", k.value("global_sectors"), "%.0f", detail(", %.0f would do", "global_sectors_ideal"))
	add("cold bytes", k.value("dram_read"), "%.0f", "")
	add("shared wavefronts", k.value("shared_wavefronts"), "%.0f",
		detail(", %.0f would do", "shared_wavefronts_ideal")+
			detail(", %.0f + %.0f by conflicts", "load_conflicts", "store_conflicts"))
	return list
}

// CompareTable returns the table of the metrics of two profiles, as ui.Terminal.Table takes it, for kernels at the same
// place in the order of launch.
func CompareTable(a, b *Profiled) (layout string, rows [][]string) {
	rows = [][]string{{"METRIC", "A", "B", "B/A"}}
	for i := range max(len(a.Kernels), len(b.Kernels)) {
		var sides [2][]metric
		name := ""
		for n, p := range []*Profiled{a, b} {
			if i < len(p.Kernels) {
				sides[n] = p.Kernels[i].metrics()
				for _, s := range p.Kernels[i].Stalls[:min(maxReasons, len(p.Kernels[i].Stalls))] {
					sides[n] = append(sides[n], metric{"stall: " + s.Reason, fmt.Sprintf("%.0f %%", 100*s.Share), s.Share})
				}
				name = cmp.Or(name, plain.Cut(plain.Line(p.Kernels[i].Name), 40))
			}
		}
		rows = append(rows, []string{name, "", "", ""})
		var names []string
		for _, m := range append(slices.Clone(sides[0]), sides[1]...) {
			if !slices.Contains(names, m.name) {
				names = append(names, m.name)
			}
		}
		for _, name := range names {
			row := []string{"  " + name, "-", "-", "-"}
			var values [2]float64
			for n, side := range sides {
				if at := slices.IndexFunc(side, func(m metric) bool { return m.name == name }); at >= 0 {
					row[1+n], values[n] = side[at].text, side[at].value
				}
			}
			if values[0] > 0 && values[1] > 0 {
				row[3] = fmt.Sprintf("%.2f", values[1]/values[0])
			}
			rows = append(rows, row)
		}
	}
	return "lllr", rows
}

// ReadProfile reads the figures and counters in a run folder. The error is fs.ErrNotExist if it is not the folder of a
// profile.
func ReadProfile(folder string) (*Profiled, error) {
	data, err := plain.ReadFile(filepath.Join(folder, FiguresName), 16<<20)
	if err != nil {
		return nil, err
	}
	var p Profiled
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(folder, FiguresName), err)
	}
	p.Counters, err = ReadCounters(filepath.Join(folder, CountersName))
	return &p, err
}

// ReadCounters reads launches in a file like CountersName. It returns none if the file is missing.
func ReadCounters(file string) ([]counters.Launch, error) {
	data, err := plain.ReadFile(file, 256<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return counters.Parse(data), err
}

// scales holds the units in which Table shows base units.
var scales = map[string]struct {
	unit string
	by   float64
}{"ns": {"us", 1e-3}, "nsecond": {"us", 1e-3}, "byte": {"MB", 1e-6}}

func (f Figure) text() string {
	if f.Value == nil {
		return "n/a"
	}
	x, unit := *f.Value, f.Unit
	if s, ok := scales[unit]; ok {
		x, unit = x*s.by, s.unit
	}
	return strings.TrimSpace(strconv.FormatFloat(math.Round(x*1e4)/1e4, 'f', -1, 64) + " " + plain.Line(unit))
}

// stallReasons lists the reasons by the name in ncu's metrics, smsp__pcsamp_warps_issue_stalled_NAME, and by the column
// of its source page.
var stallReasons = []struct{ metric, column, name string }{
	{"barrier", "stall_barrier", "barrier"},
	{"branch_resolving", "stall_branch_resolving", "branch resolving"},
	{"dispatch_stall", "stall_dispatch", "dispatch"},
	{"drain", "stall_drain", "drain"},
	{"imc_miss", "stall_imc", "constant cache miss"},
	{"lg_throttle", "stall_lg", "local/global queue"},
	{"long_scoreboard", "stall_long_sb", "long scoreboard"},
	{"math_pipe_throttle", "stall_math", "math pipe"},
	{"membar", "stall_membar", "memory barrier"},
	{"mio_throttle", "stall_mio", "shared memory queue"},
	{"misc", "stall_misc", "other"},
	{"no_instructions", "stall_no_inst", "no instruction"},
	{"not_selected", "stall_not_selected", "not selected"},
	{"short_scoreboard", "stall_short_sb", "short scoreboard"},
	{"sleeping", "stall_sleep", "sleeping"},
	{"tex_throttle", "stall_tex", "texture queue"},
	{"wait", "stall_wait", "fixed latency"},
	{"warpgroup_arrive", "stall_gmma", "warpgroup arrive"},
}

const stallMetric = "smsp__pcsamp_warps_issue_stalled_"

const occupancyLimit = "launch__occupancy_limit_"

// limits lists what limits the blocks of an SM, by the name in ncu's metrics, occupancyLimit and NAME.
var limits = []struct{ metric, name string }{
	{"registers", "registers"}, {"shared_mem", "shared memory"}, {"warps", "block size"},
	{"barriers", "barriers"}, {"blocks", "blocks of an SM"},
}

// limiter names the smallest limit. number returns the value of a metric, or 0.
func limiter(number func(metric string) float64) string {
	least, names := 0.0, ""
	for _, l := range limits {
		switch x := number(occupancyLimit + l.metric); {
		case x <= 0:
		case least == 0 || x < least:
			least, names = x, l.name
		case x == least:
			names += " and " + l.name
		}
	}
	return names
}

// stalls returns the reasons with samples.
func stalls(number func(metric string) float64) (list []Stall) {
	all := number(stallMetric + "selected")
	for _, r := range stallReasons {
		all += number(stallMetric + r.metric)
	}
	for _, r := range stallReasons {
		if n := number(stallMetric + r.metric); n > 0 && all > 0 {
			list = append(list, Stall{Reason: r.name, Share: n / all})
		}
	}
	slices.SortStableFunc(list, func(a, b Stall) int { return cmp.Compare(b.Share, a.Share) })
	return list
}

// LineSamples holds the samples of one source line of a kernel.
type LineSamples struct {
	Kernel, File, Text string
	Line               int
	All                float64
	Stalled            map[string]float64 // by Stall.Reason
}

// SourceLines parses ncu's source page with the views cuda and sass: for each file and kernel the lines of the source,
// each followed by its instructions, which are skipped. Files below src get their path there.
func SourceLines(page []byte, src string) (list []LineSamples, err error) {
	r := csv.NewReader(bytes.NewReader(page))
	r.FieldsPerRecord, r.LazyQuotes = -1, true
	var kernel, file string
	var column map[string]int
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		switch {
		case len(row) < 2:
		case row[0] == "File Path":
			file, column = filepath.Base(row[1]), nil
			if own, err := filepath.Rel(src, row[1]); err == nil && filepath.IsLocal(own) {
				file = filepath.ToSlash(own)
			}
		case row[0] == "Function Name":
			kernel = row[1]
		case row[0] == "Line No":
			column = map[string]int{}
			for i, name := range row {
				column[name] = i
			}
		case column != nil:
			line, err := strconv.Atoi(row[0])
			if err != nil {
				continue // an instruction
			}
			number := func(name string) float64 {
				i, ok := column[name]
				if !ok || i >= len(row) {
					return 0
				}
				x, _ := strconv.ParseFloat(row[i], 64)
				return x
			}
			l := LineSamples{Kernel: kernel, File: file, Line: line, Text: strings.TrimSpace(row[1]),
				All: number("# Samples"), Stalled: map[string]float64{}}
			for _, reason := range stallReasons {
				if n := number(reason.column); n > 0 {
					l.Stalled[reason.name] = n
				}
			}
			list = append(list, l)
		}
	}
}

const (
	maxReasons = 3 // with lines
	maxLines   = 3 // of a reason
)

// AddLines adds the lines with the most samples to the stalls of the kernels. Lines of several kernels cannot be told
// apart by ncu's short names; a kernel gets its lines only if it is the only one in lines.
func AddLines(kernels []ProfiledKernel, lines []LineSamples) {
	if len(kernels) != 1 || slices.ContainsFunc(lines, func(l LineSamples) bool { return l.Kernel != lines[0].Kernel }) {
		return
	}
	all := 0.0
	for _, l := range lines {
		all += l.All
	}
	if all == 0 {
		return
	}
	k := &kernels[0]
	for i := range k.Stalls[:min(maxReasons, len(k.Stalls))] {
		reason := k.Stalls[i].Reason
		of := slices.DeleteFunc(slices.Clone(lines), func(l LineSamples) bool { return l.Stalled[reason] == 0 })
		slices.SortStableFunc(of, func(a, b LineSamples) int { return cmp.Compare(b.Stalled[reason], a.Stalled[reason]) })
		for _, l := range of[:min(maxLines, len(of))] {
			k.Stalls[i].Lines = append(k.Stalls[i].Lines, Line{File: plain.Line(l.File), Line: l.Line, Text: plain.Line(l.Text),
				Share: l.Stalled[reason] / all})
		}
	}
}
