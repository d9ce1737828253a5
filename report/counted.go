package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"fisub/device/counters"
	"fisub/internal/ui"
)

// A Counted is what the virtual GPU counted in some launches, for a page.
type Counted struct {
	Version  string // of fisub
	Title    string
	Lines    []string // below the title
	GPU      *counters.GPU
	Launches []counters.Launch
	Source   func(file string) []string // lines of a source file, or nil
}

// A countedKernel is a section of the page.
type countedKernel struct {
	ID, Title, Link string
	Facts, Figures  table
	Advice          []advice
	Sources         []table // one for each file
}

type advice struct {
	ID, Place, Share string // of the line
	Texts            []string
}

// HTML writes the page as one self-contained file.
func (c *Counted) HTML(w io.Writer) error {
	view := struct {
		Version, Title, GPU string
		Lines               []string
		Kernels             []countedKernel
	}{Version: c.Version, Title: clean(c.Title, 120), GPU: c.GPU.Name}
	for _, line := range c.Lines {
		view.Lines = append(view.Lines, clean(line, 120))
	}
	for i := range c.Launches {
		view.Kernels = append(view.Kernels, c.kernel(&c.Launches[i], fmt.Sprintf("k%d-", i+1)))
	}
	return countedPage.Execute(w, view)
}

func (c *Counted) kernel(l *counters.Launch, id string) countedKernel {
	title, facts := c.GPU.Describe(l)
	k := countedKernel{ID: id, Title: clean(title, 400), Link: clean(l.Kernel, 60),
		Facts: table{ID: id + "facts", HeadingID: id + "h", Caption: "Resources and counts"}}
	for _, f := range facts {
		k.Facts.Rows = append(k.Facts.Rows, []cell{{Text: f[0]}, {Text: f[1]}})
	}
	metrics := l.Metrics(c.GPU)
	k.Figures = table{ID: id + "figures", HeadingID: id + "h", Caption: "Figures"}
	fill(&k.Figures, true, []field[string]{
		{column{Text: "Figure"}, func(name string) cell { return cell{Text: name, Class: "code"} }},
		{column{Text: "Value", Right: true}, func(name string) cell {
			return cell{Text: strings.TrimSuffix(fmt.Sprintf("%.2f", metrics[name].Value), ".00")}
		}},
		{column{Text: "Kind"}, func(name string) cell { return cell{Text: string(metrics[name].Kind)} }},
	}, slices.Sorted(maps.Keys(metrics)))
	lines := l.SourceLines()
	var files []string
	for _, s := range lines {
		if !slices.Contains(files, s.File) {
			files = append(files, s.File)
		}
	}
	for n, file := range files {
		prefix := fmt.Sprintf("%sf%d-", id, n+1)
		k.Sources = append(k.Sources, c.source(prefix, file, lines))
		k.Sources[n].HeadingID = id + "h"
		for _, s := range lines {
			if s.File == file && len(s.Advice) > 0 && s.Share >= 0.01 {
				k.Advice = append(k.Advice, advice{fmt.Sprintf("%s%d", prefix, s.Line), fmt.Sprintf("%s:%d", clean(file, 200),
					s.Line), ui.Percent(s.Share), s.Advice})
			}
		}
	}
	return k
}

// A listedLine is a line of a source file, with its counts if it has any.
type listedLine struct {
	number int
	text   string
	*counters.SourceLine
}

const hot = 0.1 // share of the cost from which a line is marked

// source returns the lines of a file that have counts, and the three lines before and after each. The ids of its rows
// begin with prefix.
func (c *Counted) source(prefix, file string, lines []counters.SourceLine) table {
	listed := map[int]listedLine{}
	text := c.Source(file)
	for i := range lines {
		s := &lines[i]
		if s.File != file {
			continue
		}
		for n := s.Line - 3; n <= s.Line+3; n++ {
			old := listed[n]
			if old.number = n; n >= 1 && n <= len(text) {
				old.text = sourceText(strings.TrimSuffix(text[n-1], "\r"))
			} else if n != s.Line {
				continue
			}
			if n == s.Line {
				old.SourceLine = s
			}
			listed[n] = old
		}
	}
	count := func(name, title string, of func(*counters.Counts) uint64) field[listedLine] {
		return field[listedLine]{column{Text: name, Title: title, Right: true, optional: true}, func(l listedLine) cell {
			if l.SourceLine == nil || of(&l.Counts) == 0 {
				return cell{Class: "note"}
			}
			return cell{Text: fmt.Sprint(of(&l.Counts))}
		}}
	}
	t := table{ID: prefix + "source", Caption: clean(file, 200)}
	fill(&t, true, []field[listedLine]{
		{column{Text: "Line"}, func(l listedLine) cell {
			return cell{Text: fmt.Sprint(l.number), ID: fmt.Sprintf("%s%d", prefix, l.number)}
		}},
		{column{Text: "Cost", Title: "share of the kernel's cost, an estimate", Right: true}, func(l listedLine) cell {
			switch {
			case l.SourceLine == nil:
				return cell{Class: "note"}
			case l.Share >= hot:
				return cell{Text: ui.Percent(l.Share), Class: "hot"}
			}
			return cell{Text: ui.Percent(l.Share)}
		}},
		count("Instructions", "executions by a warp, of the PTX", func(c *counters.Counts) uint64 { return c.Warps }),
		count("Requests", "to global memory", func(c *counters.Counts) uint64 { return c.Requests }),
		count("Sectors", "of global memory", func(c *counters.Counts) uint64 { return c.Sectors }),
		count("Ideal", "the least sectors for the same bytes", func(c *counters.Counts) uint64 { return c.Least }),
		count("Wavefronts", "of shared memory", func(c *counters.Counts) uint64 { return c.Waves }),
		count("Conflicts", "wavefronts by bank conflicts", func(c *counters.Counts) uint64 { return c.Conflicts }),
		{column{Text: "Source"}, func(l listedLine) cell { return cell{Text: cmp.Or(l.text, " "), Class: "source"} }},
	}, slices.SortedFunc(maps.Values(listed), func(a, b listedLine) int { return cmp.Compare(a.number, b.number) }))
	return t
}
