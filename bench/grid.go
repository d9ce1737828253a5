package bench

import (
	"math"
	"strings"

	"fisub/internal/event"
)

// classOf returns the class of a wrong element, an index in event.MapClasses. times is as tensor.Wrong passes it.
func classOf(times float32, unwritten bool) int {
	switch {
	case unwritten:
		return 4
	case times != times:
		return 3
	case times > 100:
		return 2
	case times > 10:
		return 1
	}
	return 0
}

// A grid counts the wrong elements of an output in cells over two of its axes.
type grid struct {
	down, across event.MapAxis
	d, e         int // the axes; -1: none, and one cell
	cells        []gridCell
	compared     int // elements in all cells
}

type gridCell struct {
	compared int // number of compared elements
	wrong    int
	weight   int // of the wrong elements; a worse class weighs more
	worst    int // class
}

// gridsOf returns an empty grid for each pair of the axes of an output that have more than one index.
func gridsOf(want expected) (grids []grid) {
	var axes []int
	for d, n := range want.Shape {
		if n > 1 {
			axes = append(axes, d)
		}
	}
	if len(axes) == 0 {
		axes = []int{len(want.Shape) - 1}
	}
	if len(axes) == 1 {
		return []grid{newGrid(want, -1, axes[0])}
	}
	for i, d := range axes {
		for _, e := range axes[i+1:] {
			grids = append(grids, newGrid(want, d, e))
		}
	}
	return grids
}

func axisOf(want expected, axis int) event.MapAxis {
	if axis < 0 {
		return event.MapAxis{Size: 1}
	}
	return event.MapAxis{Size: want.Shape[axis]}
}

func newGrid(want expected, d, e int) grid {
	g := grid{down: axisOf(want, d), across: axisOf(want, e), d: d, e: e}
	// compared returns the number of compared elements in each cell along an axis.
	compared := func(axis int, along event.MapAxis) []int {
		cells := make([]int, along.Cells())
		if axis == 0 && want.before != nil {
			for _, slot := range want.slots {
				cells[slot/along.PerCell()]++
			}
			return cells
		}
		for i := range along.Size {
			cells[i/along.PerCell()]++
		}
		return cells
	}
	rest := 1 // elements for each pair of indices
	for axis, n := range want.Shape {
		switch {
		case axis == d || axis == e:
		case axis == 0 && want.before != nil:
			rest *= len(want.slots)
		default:
			rest *= n
		}
	}
	across := compared(e, g.across)
	for _, n := range compared(d, g.down) {
		for _, m := range across {
			g.cells = append(g.cells, gridCell{compared: n * m * rest})
			g.compared += n * m * rest
		}
	}
	return g
}

// add counts a wrong element. at is its index along each axis of the output.
func (g *grid) add(at []int, class int) {
	cell := func(axis int, along event.MapAxis) int {
		if axis < 0 {
			return 0
		}
		return at[axis] / along.PerCell()
	}
	c := &g.cells[cell(g.d, g.down)*g.across.Cells()+cell(g.e, g.across)]
	c.wrong++
	c.weight += class + 1
	c.worst = max(c.worst, class)
}

// unevenness returns how far the wrong elements are from an even spread over the cells: the relative entropy, 0 for an
// even one.
func (g *grid) unevenness() (sum float64) {
	total := 0
	for _, c := range g.cells {
		total += c.weight
	}
	for _, c := range g.cells {
		if c.weight > 0 {
			share := float64(c.weight) / float64(total)
			sum += share * math.Log(share*float64(g.compared)/float64(c.compared))
		}
	}
	return sum
}

// rows returns the cells as event.Map has them.
func (g *grid) rows() (rows []string) {
	width := g.across.Cells()
	for from := 0; from < len(g.cells); from += width {
		var row strings.Builder
		for _, c := range g.cells[from : from+width] {
			letter := event.MapClasses[c.worst : c.worst+1]
			switch {
			case c.wrong == 0:
				letter = "."
			case 2*c.wrong > c.compared:
				letter = strings.ToUpper(letter)
			}
			row.WriteString(letter)
		}
		rows = append(rows, row.String())
	}
	return rows
}

// chart returns the map over the two axes along which the wrong elements are spread least evenly. axes are the names of
// the output's axes.
func (w *spread) chart(axes []string) event.Map {
	best, most := &w.grids[0], w.grids[0].unevenness()
	for i := range w.grids {
		if uneven := w.grids[i].unevenness(); uneven > most+1e-9 { // on a tie, the outer axes
			best, most = &w.grids[i], uneven
		}
	}
	if best.d >= 0 {
		best.down.Name = axisName(axes, best.d)
	}
	if best.e >= 0 {
		best.across.Name = axisName(axes, best.e)
	}
	return event.Map{Elements: best.compared, Counts: w.classes, Down: best.down, Across: best.across, Cells: best.rows()}
}
