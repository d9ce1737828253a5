package tools

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/plain"
)

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

// limits lists what limits the blocks of an SM, by the name in ncu's metrics, launch__occupancy_limit_NAME.
var limits = []struct{ metric, name string }{
	{"registers", "registers"}, {"shared_mem", "shared memory"}, {"warps", "block size"},
	{"barriers", "barriers"}, {"blocks", "blocks of an SM"},
}

// limiter names the smallest limit. number returns the value of a metric, or 0.
func limiter(number func(metric string) float64) string {
	least, names := 0.0, ""
	for _, l := range limits {
		switch x := number("launch__occupancy_limit_" + l.metric); {
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
