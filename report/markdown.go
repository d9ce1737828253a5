package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// mostOpen is the maximum number of rows of a table that is not folded.
const mostOpen = 20

// Markdown writes a comment for a pull request: the verdict, and one table for each run and comparison.
func (r *Report) Markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	for i := range r.Comparisons {
		c := &r.Comparisons[i]
		fmt.Fprintf(b, "### %s against %s\n\n", md(r.name(c.B)), md(r.name(c.A)))
		if c.Err != nil {
			fmt.Fprintf(b, "%s\n\n", md(clean(c.Err.Error(), 400)))
			continue
		}
		if verdict := c.Verdict(); verdict != "" {
			fmt.Fprintf(b, "B as a whole: **%s**\n\n", md(verdict))
		}
		for _, line := range Conclusion(c.Result) {
			fmt.Fprintf(b, "- %s\n", md(line))
		}
		fmt.Fprintln(b)
		if t := c.table("", false); len(t.Rows) > 0 {
			markdownTable(b, &t, false)
		}
		for _, warning := range c.Warnings() {
			fmt.Fprintf(b, "Warning: %s\n\n", md(warning))
		}
	}
	for _, run := range r.Runs {
		fmt.Fprintf(b, "### %s on %s\n\n", md(r.name(run)), md(clean(run.Run.Run.Definition, 120)))
		fmt.Fprintf(b, "%s\n\n", md(strings.Join(run.Summary(), " ")))
		t := run.workloads("", false)
		markdownTable(b, &t, run.Timed)
		noted, shown := false, event.Shown{}
		note := func(format string, args ...any) {
			fmt.Fprintf(b, "- "+format+"\n", args...)
			noted = true
		}
		for _, w := range run.Workloads {
			for _, f := range w.Findings {
				note("finding %s on %s: %s", md(clean(f.Check, 60)), md(clean(w.UUID, 80)),
					md(clean(shown.Text(&f, w.UUID), 400)))
			}
			if !w.Passed() && (w.Evaluated != nil || w.Unjudged != nil) {
				f := run.failure(&w)
				note("%s on %s: %s", md(f.Verdict), md(f.Workload), md(clean(f.Text, 400)))
			}
			if w.Samples != nil && len(w.Samples.Disturbed) > 0 {
				note("unreliable timings of %s: %s", md(clean(w.UUID, 80)),
					md(clean(strings.Join(w.Samples.Disturbed, "; "), 400)))
			}
		}
		for _, warning := range run.Warnings {
			note("warning: %s", md(clean(warning.Text, 400)))
		}
		if noted {
			fmt.Fprintln(b)
		}
		if latency := run.Latency(); latency != "" {
			fmt.Fprintf(b, "Median: %s. ±: half of its 95 %% interval.\n\n", md(latency))
		}
		fmt.Fprintf(b, "Run %s, fisub %s\n\n", md(clean(run.ID, 60)), md(clean(run.Run.Run.Fisub, 40)))
	}
	return b.Flush()
}

// markdownTable writes a table, without its details if brief.
func markdownTable(b *bufio.Writer, t *table, brief bool) {
	fold := len(t.Rows) > mostOpen
	if fold {
		fmt.Fprintf(b, "<details><summary>%s</summary>\n\n", plain.Count(len(t.Rows), "workload"))
	}
	head, rule, lines := "|", "|", make([]string, len(t.Rows))
	for i, c := range t.Head {
		if brief && c.detail {
			continue
		}
		head += " " + md(c.Text) + " |"
		rule += map[bool]string{false: " --- |", true: " ---: |"}[c.Right]
		for n, row := range t.Rows {
			lines[n] += " " + md(row[i].Text) + " |"
		}
	}
	fmt.Fprintf(b, "%s\n%s\n", head, rule)
	for _, line := range lines {
		fmt.Fprintln(b, "|"+line)
	}
	fmt.Fprintln(b)
	if fold {
		fmt.Fprint(b, "</details>\n\n")
	}
}

// md escapes s as plain text: no markup, no HTML, no mentions.
func md(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch r {
		case '\\', '`', '*', '[', ']', '<', '>', '|', '#', '~', '!', '&':
			b.WriteByte('\\')
		case '_':
			if !inWord(s, i) {
				b.WriteByte('\\')
			}
		case '@':
			b.WriteString("@\u2060") // the word joiner prevents a mention
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// inWord reports whether the underscore at i is inside a word and thus no markup.
func inWord(s string, i int) bool {
	letter := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	return i > 0 && i+1 < len(s) && letter(s[i-1]) && letter(s[i+1])
}
