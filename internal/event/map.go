package event

import (
	"slices"
	"strings"
)

// MapClasses are the classes of a Map, the worst last.
const MapClasses = "abcnu"

// MapCells is the maximum number of cells of a Map along an axis.
const MapCells = 64

// PerCell returns the number of indices in a cell; the last cell may have fewer.
func (a MapAxis) PerCell() int { return (a.Size + MapCells - 1) / MapCells }

// Cells returns the number of cells.
func (a MapAxis) Cells() int { return (a.Size + a.PerCell() - 1) / a.PerCell() }

// Wrong returns the number of wrong elements.
func (m *Map) Wrong() (n int) {
	for _, count := range m.Counts {
		n += count
	}
	return n
}

// Limits of a Map from a run folder or a host.
const (
	mostMaps    = 16
	mostIndices = 1 << 30
	mostMapped  = 1 << 40 // elements
	longestName = 200
	longestText = 2000
)

// valid reports whether m is within the limits and its parts agree.
func (m *Map) valid() bool {
	for _, a := range []MapAxis{m.Down, m.Across} {
		if a.Size < 1 || a.Size > mostIndices || len(a.Name) > longestName {
			return false
		}
	}
	for _, n := range m.Counts {
		if n < 0 || n > m.Elements {
			return false
		}
	}
	wrong := func(row string) bool {
		return len(row) != m.Across.Cells() || strings.Trim(row, "."+MapClasses+strings.ToUpper(MapClasses)) != ""
	}
	return m.Elements <= mostMapped && m.Wrong() <= m.Elements && len(m.Output) <= longestName &&
		len(m.Text) <= longestText && len(m.Cells) == m.Down.Cells() && !slices.ContainsFunc(m.Cells, wrong)
}

// Limits of an Excerpt.
const (
	ExcerptMargin = 3   // lines before and after the place
	ExcerptWidth  = 200 // characters of a line
	mostExcerpts  = 2
	mostLine      = 1 << 30
)

func (x *Excerpt) valid() bool {
	bad := func(line string) bool { return len(line) > 4*ExcerptWidth || strings.ContainsAny(line, "\r\n") }
	return len(x.File) <= longestName && 1 <= x.First && x.First <= x.Line && x.Line < x.First+len(x.Lines) &&
		x.Line <= mostLine && 0 <= x.Column && x.Column <= mostLine && len(x.Lines) <= 2*ExcerptMargin+1 &&
		!slices.ContainsFunc(x.Lines, bad)
}

// validOnly returns the first elements of list that are valid, at most most.
func validOnly[T any](list []T, most int, valid func(*T) bool) []T {
	list = slices.DeleteFunc(list, func(v T) bool { return !valid(&v) })
	return list[:min(len(list), most)]
}
