package tools

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"fisub/internal/plain"
)

// The files of a profile, in its run folder.
const (
	ReportName  = "profile.ncu-rep" // ncu's own, for ncu-ui
	FiguresName = "profile.json"    // its figures, a Profiled
)

// A ProfiledKernel is a launch profiled by ncu.
type ProfiledKernel struct {
	Name    string   `json:"name"`
	Figures []Figure `json:"figures"` // those in the report, in the order of the table
}

// A Figure is one of ncu's metrics under a name of our own.
type Figure struct {
	Name   string   `json:"name"`   // "dram_read"
	Metric string   `json:"metric"` // ncu's: "dram__bytes_read.sum"
	Value  *float64 `json:"value"`  // nil if ncu has no value
	Unit   string   `json:"unit"`   // ncu's base unit: "byte", "ns", "%"; "" for a plain number
}

// Profiled is the content of FiguresName.
type Profiled struct {
	Workload string           `json:"workload"`
	Kernels  []ProfiledKernel `json:"kernels"`
}

// figures lists the figures of a profile. Those with asked set are requested in addition to the section set; the
// others are in the sets detailed and full.
var figures = []struct {
	name, metric string
	asked        bool
}{
	{"duration", "gpu__time_duration.sum", true},
	{"cycles", "gpc__cycles_elapsed.max", false},
	{"dram_read", "dram__bytes_read.sum", true},
	{"dram_written", "dram__bytes_write.sum", true},
	{"dram_throughput", "dram__throughput.avg.pct_of_peak_sustained_elapsed", true},
	{"l2_throughput", "lts__throughput.avg.pct_of_peak_sustained_elapsed", false},
	{"l1_throughput", "l1tex__throughput.avg.pct_of_peak_sustained_active", false},
	{"sm_throughput", "sm__throughput.avg.pct_of_peak_sustained_elapsed", true},
	{"l2_hit_rate", "lts__t_sector_hit_rate.pct", true},
	{"l1_hit_rate", "l1tex__t_sector_hit_rate.pct", false},
	{"warps_active", "sm__warps_active.avg.pct_of_peak_sustained_active", true},
	{"warps_possible", "sm__maximum_warps_per_active_cycle_pct", false},
	{"warps_eligible", "smsp__warps_eligible.avg.per_cycle_active", false},
	{"issue_slots_busy", "smsp__issue_active.avg.pct_of_peak_sustained_active", false},
	{"instructions", "smsp__inst_executed.sum", true},
	{"instructions_per_cycle", "sm__inst_executed.avg.per_cycle_active", false},
	{"grid", "launch__grid_size", true},
	{"block", "launch__block_size", true},
	{"waves", "launch__waves_per_multiprocessor", true},
	{"registers", "launch__registers_per_thread", true},
	{"shared_static", "launch__shared_mem_per_block_static", true},
	{"shared_dynamic", "launch__shared_mem_per_block_dynamic", true},
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
			if text == "" {
				continue
			}
			figure := Figure{Name: f.name, Metric: f.metric, Unit: unit}
			if x, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64); err == nil && x-x == 0 {
				figure.Value = &x
			}
			k.Figures = append(k.Figures, figure)
		}
		kernels = append(kernels, k)
	}
	return kernels, nil
}

// WriteFigures writes FiguresName into folder.
func WriteFigures(folder, workload string, kernels []ProfiledKernel) error {
	data, err := json.MarshalIndent(Profiled{workload, kernels}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, FiguresName), append(data, '\n'), 0o644)
}

// Table writes the figures of the kernels, one per line.
func Table(w io.Writer, kernels []ProfiledKernel) {
	for _, k := range kernels {
		fmt.Fprintf(w, "kernel      %s\n", plain.Line(k.Name))
		for _, f := range k.Figures {
			fmt.Fprintf(w, "  %-24s %s\n", strings.ReplaceAll(plain.Line(f.Name), "_", " "), f.text())
		}
	}
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
