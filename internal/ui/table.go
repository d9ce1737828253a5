package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"fisub/internal/plain"
)

// A column of a table. Numbers are right-aligned, words left-aligned.
type column struct {
	title   string
	width   int
	number  bool
	slack   int // characters to cut off before any column is hidden
	reserve int // characters to cut off if hiding columns is not enough
	order   int // order in which columns are hidden; 0: never hidden
	hidden  bool
}

// shrink fits the columns into width. It cuts off the slack, the widest columns first, then hides columns, and then
// cuts off the reserve.
func shrink(all []column, width int) {
	over := 2*(len(all)-1) - width
	for _, c := range all {
		over += c.width
	}
	cut := func(spare func(*column) *int) {
		for ; over > 0; over-- {
			var widest *column
			for i := range all {
				if c := &all[i]; *spare(c) > 0 && !c.hidden && (widest == nil || c.width > widest.width) {
					widest = c
				}
			}
			if widest == nil {
				return
			}
			widest.width--
			*spare(widest)--
		}
	}
	cut(func(c *column) *int { return &c.slack })
	order := make([]*column, len(all))
	for i := range all {
		order[i] = &all[i]
	}
	slices.SortFunc(order, func(a, b *column) int { return cmp.Compare(a.order, b.order) })
	for _, c := range order {
		if c.order > 0 && over > 0 {
			c.hidden = true
			over -= c.width + 2
		}
	}
	cut(func(c *column) *int { return &c.reserve })
}

// align aligns the cells of a row in the columns and leaves out hidden ones. The last column of words is not padded.
// Cells without a column stay as they are.
func align(columns []column, cells []string) (shown []string) {
	for i, cell := range cells {
		switch {
		case i >= len(columns):
		case columns[i].hidden:
			continue
		case columns[i].number:
			cell = fmt.Sprintf("%*s", columns[i].width, cell)
		case i < len(columns)-1:
			cell = fmt.Sprintf("%-*s", columns[i].width, cell)
		}
		shown = append(shown, cell)
	}
	return shown
}

func line(cells []string) string { return strings.TrimRight(strings.Join(cells, "  "), " ") }

// Table prints rows as columns on Out. The first row is the heading. layout has an l or r for each column, in upper
// case if the column must not be cut or dropped on a narrow terminal. rating rates the last cell of a row, from 0: good
// (1), bad (-1) or neutral (0). It may be nil.
func (t *Terminal) Table(layout string, rows [][]string, rating func(row int) int) {
	if len(rows) == 0 {
		return
	}
	columns := tableColumns(layout, rows)
	if IsTerminal(t.Out) {
		shrink(columns, Width(t.Out)-1)
	}
	for n, row := range rows {
		cells := slices.Clone(row)
		for i, c := range columns {
			if !c.hidden {
				cells[i] = plain.Cut(plain.Line(row[i]), c.width)
			}
		}
		cells = align(columns, cells)
		if last := len(cells) - 1; n > 0 && rating != nil {
			cells[last] = t.Rate(rating(n), cells[last])
		}
		text := line(cells)
		if n == 0 {
			text = t.paint(bold, text)
		}
		fmt.Fprintln(t.Out, text)
	}
	var lost []string
	for _, c := range columns {
		if c.hidden {
			lost = append(lost, c.title)
		}
	}
	if len(lost) > 0 {
		t.Note("omitted columns: %s; --json has them", plain.List(lost, "and"))
	}
}

// tableColumns returns the columns of a table. Words have slack above 12 characters, headings of numbers above 8.
// Columns are hidden from the right, first those with the same cell in all rows. The last column is never hidden. The
// first and upper-case columns stay whole unless nothing else helps.
func tableColumns(layout string, rows [][]string) []column {
	all := make([]column, len(layout))
	for i := range all {
		c, least := &all[i], 0
		c.title, c.number = rows[0][i], strings.ContainsRune("rR", rune(layout[i]))
		values, same := 0, true
		for _, row := range rows[1:] {
			values = max(values, utf8.RuneCountInString(plain.Line(row[i])))
			same = same && row[i] == rows[1][i]
		}
		c.width = max(values, utf8.RuneCountInString(plain.Line(c.title)))
		switch {
		case layout[i] == 'r':
			least = max(8, values)
		case layout[i] == 'l' && i > 0:
			least = 12
		default:
			least = c.width
		}
		c.slack = max(0, c.width-least)
		c.reserve = max(0, c.width-c.slack-8)
		if i > 0 && i < len(all)-1 && strings.ContainsRune("lr", rune(layout[i])) {
			if c.order = len(all) - i; !same {
				c.order += len(all)
			}
		}
	}
	return all
}
