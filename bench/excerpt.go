package bench

import (
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

// excerptsOf returns the source around the first two places in text that are in a file of sol. The places of a Python
// traceback count from its end.
func excerptsOf(sol *trace.Solution, text string) (list []event.Excerpt) {
	places := plain.FindPlaces(text)
	if strings.Contains(text, "Traceback (most recent call last)") {
		slices.Reverse(places)
	}
	for _, p := range places {
		i := slices.IndexFunc(sol.Sources, func(f trace.SourceFile) bool { return f.Path == p.File })
		known := func(x event.Excerpt) bool { return x.File == p.File && x.Line == p.Line }
		if i < 0 || slices.ContainsFunc(list, known) {
			continue
		}
		lines := strings.Split(strings.ReplaceAll(sol.Sources[i].Content, "\r\n", "\n"), "\n")
		if p.Line < 1 || p.Line > len(lines) {
			continue
		}
		x := event.Excerpt{File: p.File, Line: p.Line, Column: p.Column, First: max(1, p.Line-event.ExcerptMargin)}
		for _, line := range lines[x.First-1 : min(len(lines), p.Line+event.ExcerptMargin)] {
			x.Lines = append(x.Lines, plain.Cut(strings.ToValidUTF8(line, "\uFFFD"), event.ExcerptWidth))
		}
		if list = append(list, x); len(list) == 2 {
			break
		}
	}
	return list
}
