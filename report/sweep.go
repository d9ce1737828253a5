package report

import (
	"fmt"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/runs/compare"
)

// A TextTable is a table as ui.Terminal.Table takes it: the alignment of the columns, the heading and the rows.
type TextTable struct {
	Layout string
	Rows   [][]string
}

// SweepTables returns the table of the variants of a sweep and, if their timings are known for several groups of
// workloads, the table of the groups.
func SweepTables(s *compare.Sweep) (tables []TextTable) {
	timed := slices.ContainsFunc(s.Groups, func(g compare.SweepGroup) bool { return len(g.Ranks) > 0 })
	t := TextTable{Layout: "lr", Rows: [][]string{{"VARIANT", "PASSED"}}}
	if timed {
		t.Layout += "rll"
		t.Rows[0] = append(t.Rows[0], "MEAN", "TIME OVER FASTEST", "FASTEST IN")
	}
	for i, v := range s.Variants {
		row := []string{plain.Line(v.Name), fmt.Sprintf("%d of %d", v.Passed, v.Workloads)}
		if timed {
			row = append(row, "-", "-", fmt.Sprintf("%d of %s", v.Fastest, plain.Count(len(s.Groups), "group")))
		}
		for place, r := range s.All.Ranks {
			if r.Variant == i {
				row[2], row[3] = ui.Micros(r.MeanNS), "fastest"
				if place > 0 {
					row[3] = rankText(r)
				}
			}
		}
		t.Rows = append(t.Rows, row)
	}
	tables = append(tables, t)
	if !timed || len(s.Groups) < 2 {
		return tables
	}
	axes := slices.DeleteFunc(ui.AxisNames(s.Groups, func(g compare.SweepGroup) map[string]int { return g.Axes }),
		func(name string) bool {
			differs := func(g compare.SweepGroup) bool { return g.Axes[name] != s.Groups[0].Axes[name] }
			return !slices.ContainsFunc(s.Groups, differs)
		})
	t = TextTable{}
	var head []string
	for _, name := range axes {
		t.Layout += "r"
		head = append(head, plain.Cut(strings.ToUpper(plain.Line(name)), 13))
	}
	t.Layout += "rlrll"
	t.Rows = [][]string{append(head, "N", "FASTEST", "MEAN", "SECOND", "TIME OVER FASTEST")}
	for _, g := range s.Groups {
		var row []string
		for _, name := range axes {
			row = append(row, fmt.Sprint(g.Axes[name]))
		}
		row = append(row, fmt.Sprint(g.Workloads), "-", "-", "-", "-")
		at := len(axes)
		if len(g.Ranks) > 0 {
			row[at+1], row[at+2] = plain.Line(s.Variants[g.Ranks[0].Variant].Name), ui.Micros(g.Ranks[0].MeanNS)
		}
		if len(g.Ranks) > 1 {
			row[at+3], row[at+4] = plain.Line(s.Variants[g.Ranks[1].Variant].Name), rankText(g.Ranks[1])
		}
		t.Rows = append(t.Rows, row)
	}
	return append(tables, t)
}

func rankText(r compare.Rank) string {
	text := fmt.Sprintf("%.3fx (%.3f to %.3f)", r.Ratio.Value, r.Ratio.Lo, r.Ratio.Hi)
	if r.Verdict != compare.Slower {
		text += ", " + string(r.Verdict)
	}
	return text
}

// SweepText returns the conclusion of a sweep.
func SweepText(s *compare.Sweep) string {
	ranks := s.All.Ranks
	passed := 0
	for _, v := range s.Variants {
		if v.Passed == v.Workloads {
			passed++
		}
	}
	switch {
	case passed == 0:
		return "no variant passed all workloads"
	case len(ranks) == 0:
		return fmt.Sprintf("%d of %d variants passed all workloads; nothing was timed", passed, len(s.Variants))
	}
	text := "fastest overall: " + plain.Line(s.Variants[ranks[0].Variant].Name)
	var near []string // variants that are not clearly slower
	for _, r := range ranks[1:] {
		if r.Verdict != compare.Slower {
			near = append(near, plain.Line(s.Variants[r.Variant].Name))
		}
	}
	switch {
	case len(near) == 1:
		text += "; " + near[0] + " is not clearly slower"
	case len(near) > 1:
		text += fmt.Sprintf("; %d others are not clearly slower", len(near))
	}
	return text
}
