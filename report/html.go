package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/runs"
	"fisub/runs/compare"
)

var (
	//go:embed page.html
	pageText string
	//go:embed counted.html
	countedText string
	//go:embed style.css
	styleText string
	//go:embed page.js
	scriptText string

	page = template.Must(template.New("page").Funcs(template.FuncMap{
		"num": func(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") },
		"add": func(a, b float64) float64 { return a + b },
		// share formats a position in a plot.
		"share": func(x float64) string { return fmt.Sprintf("%.2f%%", 100*x/plotWidth) },
		// key identifies the rows and marks of one workload.
		"key": func(workload string) string { return fmt.Sprintf("%.4x", sha256.Sum256([]byte(workload))) },
		// breakable allows line breaks after the underscores of a verdict.
		"breakable": func(verdict string) template.HTML {
			return template.HTML(strings.ReplaceAll(template.HTMLEscapeString(verdict), "_", "_<wbr>"))
		},
		"style": func() template.CSS { return template.CSS(styleText) },
		// The page's content security policy allows only this script, by its hash.
		"script": func() template.JS { return template.JS(scriptText) },
		"scripthash": func() string {
			sum := sha256.Sum256([]byte(scriptText))
			return base64.StdEncoding.EncodeToString(sum[:])
		},
	}).Parse(pageText))
	countedPage = template.Must(page.New("counted").Parse(countedText))
)

// A section is one run on the page.
type section struct {
	*Subject
	ID       string   // prefix of the ids in it
	Heading  string   // of the run; "" if it is the only one
	Link     string   // short name of the run, for the contents
	Sub      bool     // headings are one level lower
	Lines    []string // definition, device, id and start of the run
	Figures  []figure
	Charts   []*chart
	Groups   []table // workloads grouped by their axes
	Tables   []table // workloads
	Hist     []*histogram
	Findings []finding
	Failed   []failure
	Undrawn  bool // some failures lack their pictures
	Warnings []string
	Steady   string  // the state of the GPU for most workloads
	Trust    []table // workloads for which it differed
	Kernels  []table
	Facts    table
}

type figure struct {
	Name string
	ui.Value
}

type finding struct {
	Workload, Check, Text string

	Source []*listing
}

type failure struct {
	Workload, Verdict, Text, Log, More string

	Pictures []*picture
	Source   []*listing
}

type difference struct {
	ID, Heading string
	Link        string // short heading, for the contents
	Lines       []string
	Verdict     string
	Class       string
	Refused     string
	Warnings    []string
	Charts      []*chart
	Tables      []table
}

// HTML writes the page as one self-contained file.
func (r *Report) HTML(w io.Writer) error {
	view := struct {
		Title       string
		Version     string
		Report      *Report
		Overview    []table
		Charts      []*chart // over all runs
		Sections    []section
		Differences []difference
		Timed       bool            // a run has latencies
		Columns     map[string]bool // headings of the tables of workloads
		Latencies   []string        // definitions of the runs' latencies
		Brief       bool            // sections omit details that the page of a single run shows
	}{Title: r.Runs[0].Name(), Version: r.Version, Report: r, Columns: map[string]bool{}}
	if len(r.Runs) > 1 {
		all := 0
		for _, run := range r.Runs {
			all += len(run.Workloads)
		}
		view.Brief = all > mostDetailed
		view.Title = fmt.Sprintf("%d runs, %s first", len(r.Runs), r.Runs[0].Name())
		if len(r.Comparisons) == 1 && r.Comparisons[0].Err == nil {
			if text := SpeedText(r.Comparisons[0].Result); text != "" {
				view.Title = text
			}
		}
		view.Overview = visibleTables(r.overview(), r.configurations())
		view.Charts = visibleCharts(r.latency("all-latency"))
	}
	links := r.links()
	for i, run := range r.Runs {
		s := run.section(i+1, view.Brief)
		s.Link = links[i]
		if len(view.Charts) > 0 && view.Brief { // those charts show all runs
			s.Charts = nil
		}
		if len(r.Runs) > 1 {
			s.Heading, s.Sub, s.Facts.HeadingID = r.name(run), true, s.ID+"h"
			for _, list := range [][]table{s.Groups, s.Tables, s.Trust, s.Kernels} {
				for i := range list {
					list[i].HeadingID = s.ID + "h"
				}
			}
		}
		view.Timed = view.Timed || run.Timed
		for _, c := range s.Tables[0].Head {
			view.Columns[c.Text] = true
		}
		view.Sections = append(view.Sections, s)
	}
	view.Latencies = latencyTexts(view.Sections)
	for i, c := range r.Comparisons {
		view.Differences = append(view.Differences, c.section(i+1, r.name(c.B)+" against "+r.name(c.A), view.Brief))
	}
	for i, d := range view.Differences {
		view.Differences[i].Link = links[i+1] + " against " + links[0]
		// The title is not repeated.
		view.Differences[i].Lines = slices.DeleteFunc(d.Lines, func(line string) bool { return line == view.Title })
	}
	if len(view.Differences) == 1 {
		view.Differences[0].Link = "Comparison"
		if r.Runs[0].Name() == r.Runs[1].Name() {
			view.Differences[0].Heading = "Second run against first"
		}
		view.Sections[0].Link, view.Sections[1].Link = "A: "+links[0], "B: "+links[1]
	}
	return page.Execute(w, view)
}

// latencyTexts returns the definition of the latencies if all sections share it, else one for each section.
func latencyTexts(sections []section) (list []string) {
	var shared []string
	for _, s := range sections {
		if text := s.Latency(); text != "" {
			shared = append(shared, "The "+text)
			list = append(list, "For "+s.Heading+", the "+text)
		}
	}
	if shared = slices.Compact(shared); len(shared) < 2 {
		return shared
	}
	return list
}

// links returns a short, distinct name of each run: its solution, content hash or id.
func (r *Report) links() []string {
	short := func(run *Subject) [3]string {
		return [3]string{clean(run.Run.Run.Solution, 32), plain.Short(run.Run.Run.ContentHash), clean(run.ID, 60)}
	}
	list := make([]string, len(r.Runs))
	for i, run := range r.Runs {
		for n, name := range short(run) {
			list[i] = name
			if !slices.ContainsFunc(r.Runs, func(other *Subject) bool { return other != run && short(other)[n] == name }) {
				break
			}
		}
	}
	return list
}

// mostDetailed is the number of workloads, over all runs, up to which a page shows every detail. Beyond it the page
// would take megabytes.
const mostDetailed = 200

// mostPictures is the maximum number of pictures in a section.
const mostPictures = 20

// visibleCharts returns those of list that show something. A chart may be nil.
func visibleCharts(list ...*chart) []*chart {
	return slices.DeleteFunc(list, func(c *chart) bool { return c == nil || len(c.Marks) == 0 })
}

// visibleTables returns those of list that have rows.
func visibleTables(list ...table) []table {
	return slices.DeleteFunc(list, func(t table) bool { return len(t.Rows) == 0 })
}

// brief removes the exact figures shown when hovering.
func (t *table) brief() {
	for _, row := range t.Rows {
		for i := range row {
			if row[i].Right {
				row[i].Title = ""
			}
		}
	}
}

func (r *Subject) section(n int, brief bool) section {
	id := fmt.Sprintf("r%d-", n)
	f := r.Run.Run
	s := section{Subject: r, ID: id, Facts: r.facts(id + "facts")}
	s.Lines = append(s.Lines, clean(f.Definition, 120), r.where(),
		"run "+clean(r.ID, 60), f.Started.UTC().Format("2006-01-02 15:04 UTC"))
	s.Figures = append(s.Figures, figure{"passed", ui.Value{Text: r.PassedText("")}})
	if d := r.Done; d != nil && d.Score != nil && f.Baseline != nil {
		s.Figures = append(s.Figures, figure{f.Baseline.Score() + " over " + clean(f.Baseline.Name, 40),
			ui.Value{Text: fmt.Sprintf("%.3f", *d.Score), Exact: ui.Exact(*d.Score)}})
	}
	if d := r.Done; d != nil && d.BoardNS != nil {
		s.Figures = append(s.Figures, figure{"board, " + clean(f.Ranking, 10) + " of the cases", ui.Nanos(*d.BoardNS)})
	}
	if mean := r.Mean(); mean > 0 {
		s.Figures = append(s.Figures, figure{"mean latency, " + r.L2() + " L2", ui.Nanos(mean)})
	}
	if abs, rel := largest(r.Workloads); r.Emulated && abs != nil {
		s.Figures = append(s.Figures, figure{"largest absolute error", ui.Error(abs)},
			figure{"largest relative error", ui.Error(rel)})
	}
	count, word, _ := strings.Cut(plain.Count(r.Totals().Findings, "finding"), " ")
	s.Figures = append(s.Figures, figure{word, ui.Value{Text: count}})
	s.Charts = visibleCharts(r.latency(id+"latency"), r.speedups(id+"speedup"))
	s.Groups = visibleTables(r.groups(id + "groups"))
	workloads := r.workloads(id+"workloads", true)
	if brief {
		workloads.brief()
	}
	s.Tables = []table{workloads}
	from, to := scale(r.Workloads)
	shown, drawn := event.Shown{}, 0
	for i := range r.Workloads {
		w := &r.Workloads[i]
		if h := histogramOf(w, fmt.Sprintf("%sh%d", id, i), from, to); h != nil && !brief {
			s.Hist = append(s.Hist, h)
		}
		for _, f := range w.Findings {
			item := finding{Workload: clean(w.UUID, 80), Check: clean(f.Check, 60)}
			text := shown.Text(&f, w.UUID)
			if item.Text = clean(text, 1000); text == f.Text {
				item.Source = listings(f.Source)
			}
			s.Findings = append(s.Findings, item)
		}
		if w.Passed() || w.Evaluated == nil && w.Unjudged == nil {
			continue
		}
		f := r.failure(w)
		if w.Evaluated != nil {
			for j, m := range w.Evaluated.Maps {
				if drawn++; drawn > mostPictures || brief {
					s.Undrawn = true
					break
				}
				f.Pictures = append(f.Pictures, pictureOf(&m, fmt.Sprintf("%sm%d-%d", id, i, j)))
			}
		}
		same := func(old failure) bool { return old.Text == f.Text && old.Log == f.Log }
		if first := slices.IndexFunc(s.Failed, same); first >= 0 && len(f.Pictures) == 0 {
			f.Text, f.Log, f.More, f.Source = "as on "+plain.Short(s.Failed[first].Workload), "", "", nil
		}
		s.Failed = append(s.Failed, f)
	}
	for _, w := range r.Warnings {
		text := clean(w.Text, 1000)
		if w.Hint != "" {
			text += " (" + clean(w.Hint, 400) + ")"
		}
		s.Warnings = append(s.Warnings, text)
	}
	if r.Timed {
		sentence, t := r.trust(id + "trust")
		s.Steady, s.Trust = sentence, visibleTables(t)
		if !brief {
			s.Kernels = visibleTables(r.kernels(id + "kernels"))
		}
	}
	return s
}

// L2 returns the L2 state behind the run's latencies.
func (r *Subject) L2() string {
	_, l2 := r.conditions()
	return l2
}

// PlotWidth returns the width of the plot, in its own units.
func (c *chart) PlotWidth() int { return plotWidth }

// PlotHeight returns the height of the plot in pixels.
func (c *chart) PlotHeight() float64 { return c.Bottom - c.Top }

// Empty returns the time of an empty kernel, or "" if it was not timed.
func (s section) Empty() string { return ui.Nanos(s.empty()).Text }

// Count returns the number of workloads with a histogram, as text.
func (s section) Count() string { return plain.Count(len(s.Hist), "workload") }

// Body reports whether there is more to show than a sentence.
func (f failure) Body() bool { return len(f.Pictures)+len(f.Source)+len(f.Log)+len(f.More) > 0 }

// failure describes a workload that did not pass, without pictures. The log lacks lines that are shown elsewhere.
func (r *Subject) failure(w *runs.Row) failure {
	f := failure{Workload: clean(w.UUID, 80), Verdict: clean(r.verdict(w), 60)}
	if w.Unjudged != nil {
		f.Text = clean(w.Unjudged.Text, 1000)
		f.Log, f.More = logText(w.Unjudged.Log, w.Unjudged.Text)
	}
	if e := w.Evaluated; e != nil {
		known := []string{e.Detail}
		for _, m := range e.Maps {
			known = append(known, m.Output+": "+m.Text)
		}
		f.Text, f.Source = clean(e.Detail, 1000), listings(e.Source)
		f.Log, f.More = logText(e.Log(), known...)
	}
	return f
}

func (c *Comparison) section(n int, heading string, brief bool) difference {
	id := fmt.Sprintf("d%d-", n)
	d := difference{ID: id, Heading: heading,
		Lines: []string{"A: " + clean(c.A.ID, 60) + ", " + c.A.Name(), "B: " + clean(c.B.ID, 60) + ", " + c.B.Name()}}
	if c.Err != nil {
		d.Refused = clean(c.Err.Error(), 400)
		return d
	}
	d.Lines = append(d.Lines, Conclusion(c.Result)...)
	d.Verdict, d.Class = c.Verdict(), ratings[Headline(c.Result)]
	d.Warnings = c.Warnings()
	d.Charts = visibleCharts(c.chart(id + "ratio"))
	t := c.table(id+"workloads", true)
	if brief {
		t.brief()
	}
	t.HeadingID = d.ID + "h"
	d.Tables = visibleTables(t)
	return d
}

// Threshold returns the smallest difference that the comparisons count, in per cent.
func (r *Report) Threshold() string { return fmt.Sprintf("%g %%", 100*compare.Threshold) }

// clean turns text from a run into one line of at most n characters, without characters that could hide or reorder the
// text around it.
func clean(s string, n int) string {
	return plain.Cut(plain.Line(s), n)
}

// escapes matches terminal escapes: control sequences, strings such as titles and links, and two-byte escapes.
var escapes = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b[ -/]*[0-~]")

const (
	logLines = 60
	logBytes = 6000
)

// logText returns the beginning of a log without terminal escapes and without lines at the end of a known text. more is
// a note if the log was cut, else "".
func logText(log string, known ...string) (text, more string) {
	cut := len(log) > logBytes
	if cut {
		log = log[:logBytes]
	}
	log = escapes.ReplaceAllString(strings.ToValidUTF8(log, "\uFFFD"), "")
	lines := strings.Split(strings.TrimRight(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(log), "\n"), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		line = strings.TrimSpace(line)
		return line != "" && slices.ContainsFunc(known, func(text string) bool { return strings.HasSuffix(text, line) })
	})
	if len(lines) > logLines {
		lines, cut = lines[:logLines], true
	}
	for i, line := range lines {
		lines[i] = plain.Line(strings.ReplaceAll(line, "\t", "    "))
	}
	if cut {
		more = "the complete log is in the run folder, in log/"
	}
	return strings.Join(lines, "\n"), more
}
