package report

import (
	"fmt"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// A picture draws the map of an output's wrong elements. As in a chart, heights are in pixels and widths relative.
type picture struct {
	ID, Title, Note string
	Desc            string // for screen readers
	Width           int    // most pixels, with labels
	Columns, Rows   int
	Top, PlotHeight float64
	Layers          []line // in units of a cell
	Down, Across    []tick
	DownName        string
	AcrossName      string
	Legend          []swatch
}

// A swatch is a cell in the legend.
type swatch struct {
	Layers []line
	Text   string
}

// Sizes in pixels.
const (
	besidePlot  = 46 + 12 // for labels
	widestPlot  = 576
	tallestCell = 18
)

// pictureOf draws m, which is valid.
func pictureOf(m *event.Map, id string) *picture {
	p := &picture{ID: id, Columns: m.Across.Cells(), Rows: m.Down.Cells(), Top: 22,
		Title:    clean(m.Output, 80) + ": " + clean(m.Text, 400),
		DownName: clean(m.Down.Name, 32), AcrossName: clean(m.Across.Name, 32)}
	height := min(tallestCell, max(7, 256/p.Rows))
	plot := min(widestPlot, 2*height*p.Columns)
	p.Width, p.PlotHeight = plot+besidePlot, float64(height*p.Rows)
	if p.DownName == "" {
		p.Top = 2
	} else {
		p.Down = cellTicks(m.Down, p.Rows*height/16)
	}
	digits := len(fmt.Sprint(m.Across.Size))
	p.Across = cellTicks(m.Across, min(plot, 300)/(7*digits+10))
	p.Layers = layers(m.Cells)
	for i, text := range []string{"up to 10× the tolerance", "up to 100× the tolerance",
		"over 100× the tolerance", "NaN or infinity", "never written"} {
		if n := m.Counts[i]; n > 0 {
			letter := strings.ToUpper(event.MapClasses[i : i+1])
			p.Legend = append(p.Legend, swatch{layers([]string{letter}), fmt.Sprintf("%s: %d", text, n)})
		}
	}
	p.Desc = "Of " + plain.Count(m.Elements, "element")
	for _, s := range p.Legend {
		p.Desc += ", " + s.Text
	}
	p.Note = along("Across", m.Across)
	if p.DownName != "" {
		p.Note = along("Down", m.Down) + " " + p.Note
	}
	many := "elements"
	if area := m.Down.Size * m.Across.Size; m.Elements%area == 0 {
		many = plain.Count(m.Elements/area*m.Down.PerCell()*m.Across.PerCell(), "element")
	}
	p.Note = fmt.Sprintf("%s. %s A cell shows the worst of its %s. Blank: none is wrong.",
		plain.Count(m.Elements, "element"), p.Note, many)
	if strings.ContainsAny(strings.Join(m.Cells, ""), event.MapClasses) {
		p.Note += " Half height: at most half are wrong."
	}
	return p
}

// Below returns a distance from the lower edge of the plot as a position.
func (p *picture) Below(pixels float64) float64 { return p.Top + p.PlotHeight + pixels }

// Height returns the height with the labels.
func (p *picture) Height() float64 { return p.Below(40) }

// X returns the horizontal position of a cell.
func (p *picture) X(at float64) string { return fmt.Sprintf("%.2f%%", 100*at/float64(p.Columns)) }

// Y returns the vertical position of the label of a row.
func (p *picture) Y(at float64) float64 { return p.Top + p.PlotHeight*at/float64(p.Rows) + 4 }

// along describes an axis of a picture.
func along(direction string, a event.MapAxis) string {
	text := fmt.Sprintf("%s: %s, index 0 to %d", direction, clean(a.Name, 60), a.Size-1)
	if n := a.PerCell(); n > 1 {
		text += fmt.Sprintf(", %d in a cell", n)
	}
	return text + "."
}

// cellTicks labels cells with their first index: each one, or every second, fourth and so on, at most most of them.
func cellTicks(a event.MapAxis, most int) (ticks []tick) {
	n, step := a.Cells(), 1
	for (n+step-1)/step > max(1, most) {
		step *= 2
	}
	for i := 0; i < n; i += step {
		ticks = append(ticks, tick{At: float64(i) + 0.5, Label: fmt.Sprint(i * a.PerCell())})
	}
	return ticks
}

// layers returns a path for each class of cells, and one for its pattern. Neighbours in a row are drawn as one.
func layers(cells []string) (list []line) {
	for _, class := range event.MapClasses {
		var fill, pattern strings.Builder
		for _, letter := range []rune{class, class - 'a' + 'A'} {
			top, height := 0.25, 0.5
			if letter != class {
				top, height = 0.04, 0.92
			}
			for y, row := range cells {
				for x := 0; x < len(row); x++ {
					from := x
					for x < len(row) && rune(row[x]) == letter {
						at, bottom := float64(x), float64(y)+top+height
						if class == 'n' {
							fmt.Fprintf(&pattern, "M%.4g %.4gl.6%+.4gm0%+.4gl-.6%+.4g", at+0.2, bottom, -height, height, -height)
						} else if class == 'u' {
							fmt.Fprintf(&pattern, "M%.4g %.4gl1%+.4g", at, bottom, -height)
						}
						x++
					}
					if x > from {
						fmt.Fprintf(&fill, "M%d %.4gh%dv%.4gh%dz", from, float64(y)+top, x-from, height, from-x)
					}
				}
			}
		}
		if fill.Len() > 0 {
			list = append(list, line{"cell " + string(class), fill.String()})
		}
		if pattern.Len() > 0 {
			list = append(list, line{"pattern " + string(class), pattern.String()})
		}
	}
	return list
}

// A listing is a part of a source file.
type listing struct {
	Place string // file and lines
	Lines []sourceLine

	file        string
	first, last int
}

type sourceLine struct {
	Number, Text string
	Here         bool   // a place
	Caret        string // below the line; "" without a column
}

// listings shows the source around places. Places that are close together share a listing.
func listings(list []event.Excerpt) (all []*listing) {
	for _, x := range list {
		i := slices.IndexFunc(all, func(l *listing) bool { return l.file == x.File && l.first <= x.Line && x.Line <= l.last })
		if i < 0 {
			i = len(all)
			l := &listing{file: x.File, first: x.First, last: x.First + len(x.Lines) - 1}
			l.Place = fmt.Sprintf("%s, lines %d to %d", clean(x.File, 200), l.first, l.last)
			for n, text := range x.Lines {
				l.Lines = append(l.Lines, sourceLine{Number: fmt.Sprintf("%*d", len(fmt.Sprint(l.last)), x.First+n),
					Text: sourceText(text)})
			}
			all = append(all, l)
		}
		l := all[i]
		at := &l.Lines[x.Line-l.first]
		at.Here = true
		if before := []rune(x.Lines[x.Line-x.First]); x.Column > 0 && x.Column <= len(before) && at.Caret == "" {
			at.Caret = strings.Repeat(" ", len(at.Number)+len([]rune(sourceText(string(before[:x.Column-1])))))
		}
	}
	return all
}

func sourceText(line string) string { return plain.Line(strings.ReplaceAll(line, "\t", "    ")) }
