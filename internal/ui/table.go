package ui

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// A column of the run table. Numbers are right-aligned, words left-aligned.
type column struct {
	title  string
	width  int
	number bool
	hidden bool // for lack of space
}

// columns returns the columns of a run's table. To fit into width, it cuts the longest axis names, but not their
// values, and then hides columns. fisub runs show prints all of them.
func columns(r *event.Run, axes []string, width int) []column {
	const statusWidth, errorWidth, timeWidth = len("INCORRECT_NUMERICAL"), len("1.00e-07"), len("1234.56 us")
	all := []column{{"WORKLOAD", 8, false, false}}
	least := []int{8}
	for _, name := range axes {
		values := 0
		for _, w := range r.Workloads {
			values = max(values, len(fmt.Sprint(w.Axes[name])))
		}
		title := strings.ToUpper(plain.Line(name))
		all = append(all, column{title, max(utf8.RuneCountInString(title), values), true, false})
		least = append(least, max(values, 4))
	}
	all = append(all, column{"STATUS", statusWidth, false, false}, column{"MAX ABS", errorWidth, true, false},
		column{"MAX REL", errorWidth, true, false})
	if !r.Device.Emulated {
		all = append(all, column{"MEDIAN", timeWidth, true, false}, column{"±", len("0.5 %"), true, false})
		if r.Baseline != nil {
			all = append(all, column{"SPEEDUP", len("SPEEDUP"), true, false})
		} else {
			all = append(all, column{"MIN", timeWidth, true, false})
		}
		if r.Floors {
			all = append(all, column{"COPY", len("100 %"), true, false})
		}
	}
	over := 2*(len(all)-1) - width
	for _, c := range all {
		over += c.width
	}
	for ; over > 0; over-- {
		widest := 0
		for i, few := range least {
			if all[i].width > few && (widest == 0 || all[i].width > all[widest].width) {
				widest = i
			}
		}
		if widest == 0 {
			break
		}
		all[widest].width--
	}
	for _, title := range []string{"MIN", "±", "MAX ABS", "COPY", "MAX REL"} {
		i := slices.IndexFunc(all, func(c column) bool { return c.title == title })
		if i >= 0 && over > 0 {
			all[i].hidden = true
			over -= all[i].width + 2
		}
	}
	for i := range all {
		all[i].title = plain.Cut(all[i].title, all[i].width)
	}
	return all
}

// lineWidth returns the maximum width of a table line on w: at most 99 on a terminal, else any.
func lineWidth(w io.Writer) int {
	if !IsTerminal(w) {
		return math.MaxInt
	}
	return min(99, Width(w)-1)
}

// line aligns cells in the columns and appends further cells.
func (v *runView) line(cells []string) string {
	var shown []string
	for i, cell := range cells {
		switch {
		case i >= len(v.columns):
		case v.columns[i].hidden:
			continue
		case v.columns[i].number:
			cell = left(cell, v.columns[i].width)
		default:
			cell = pad(cell, v.columns[i].width)
		}
		shown = append(shown, cell)
	}
	return strings.TrimRight(strings.Join(shown, "  "), " ")
}

// Table prints rows as columns on Out. The first row is the heading. align has an l or r for each column, in upper case
// if the column must not be cut or dropped on a narrow terminal. news rates the last cell of a row, from 0: good (1),
// bad (-1) or neutral (0). It may be nil.
func (t *Terminal) Table(align string, rows [][]string, news func(row int) int) {
	if len(rows) > 0 && IsTerminal(t.Out) {
		var lost []string
		if align, rows, lost = fit(align, rows, Width(t.Out)-1); len(lost) > 0 {
			defer t.Note("omitted columns: %s; --json has them", plain.List(lost, "and"))
		}
	}
	widths := cellWidths(align, rows)
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			cell = plain.Line(cell)
			if align[i] == 'r' || align[i] == 'R' {
				cell = left(cell, widths[i])
			} else if i < len(row)-1 {
				cell = pad(cell, widths[i])
			}
			if i == len(row)-1 && n > 0 && news != nil {
				cell = t.News(news(n), cell)
			}
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString("  ")
			}
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			text = t.paint(bold, text)
		}
		fmt.Fprintln(t.Out, text)
	}
}

func cellWidths(align string, rows [][]string) []int {
	widths := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(plain.Line(cell)))
		}
	}
	return widths
}

// fit fits rows into width. It cuts the widest columns of words, to no less than 12, and headings of numbers, to no
// less than 8. Then it drops columns from the right, first those that are the same in all rows, and returns their
// headings in lost. The last column is never dropped. The first and upper-case columns stay whole unless nothing else
// helps.
func fit(align string, rows [][]string, width int) (fitted string, cut [][]string, lost []string) {
	widths := cellWidths(align, rows)
	over := 2*(len(widths)-1) - width
	least := slices.Clone(widths)
	for i, w := range widths {
		over += w
		switch {
		case i > 0 && align[i] == 'l':
			least[i] = min(w, 12)
		case align[i] == 'r':
			least[i] = min(w, max(8, cellWidths(align, rows[1:])[i]))
		}
	}
	narrow := func(least func(i int) int) {
		for ; over > 0; over-- {
			widest := -1
			for i, w := range widths {
				if w > least(i) && (widest < 0 || w > widths[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				return
			}
			widths[widest]--
		}
	}
	narrow(func(i int) int { return least[i] })
	out := make([]bool, len(align))
	for _, constant := range []bool{true, false} {
		for i := len(align) - 2; i > 0 && over > 0; i-- {
			same := !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != rows[1][i] })
			if strings.ContainsRune("lr", rune(align[i])) && !out[i] && same == constant {
				out[i], over, widths[i] = true, over-widths[i]-2, 0
			}
		}
	}
	narrow(func(int) int { return 8 })
	cut = make([][]string, len(rows))
	for i := range align {
		if out[i] {
			lost = append(lost, rows[0][i])
			continue
		}
		fitted += align[i : i+1]
		for n, row := range rows {
			cut[n] = append(cut[n], plain.Cut(plain.Line(row[i]), widths[i]))
		}
	}
	return fitted, cut, lost
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) }

func left(s string, n int) string {
	return strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) + s
}
