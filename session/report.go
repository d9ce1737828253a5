package session

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/usage"
	"fisub/report"
)

// Formats are those of a report.
var Formats = []string{"html", "md", "csv"}

// A Written is a report in a file.
type Written struct {
	File   string   `json:"file"`
	Format string   `json:"format"`
	Bytes  int      `json:"bytes"`
	Runs   []string `json:"runs"`
}

// Report writes a report of the named runs to out, "-" for stdout; where that is nil into the folder of the first.
func (p *Project) Report(stdout io.Writer, version, format string, out *string, names []string) (*Written, error) {
	write, ok := map[string]func(*report.Report, io.Writer) error{
		"html": (*report.Report).HTML, "md": (*report.Report).Markdown, "csv": (*report.Report).CSV}[format]
	if !ok {
		return nil, usage.Errorf("one of "+strings.Join(Formats, ", "), "--format: unknown format %q", format)
	}
	w := &Written{Format: format}
	var all []*runs.Run
	for _, arg := range names {
		dir, err := p.RunFolder(arg)
		if err != nil {
			return nil, err
		}
		r, err := runs.Read(dir)
		if err != nil {
			return nil, usage.Invalid(err)
		}
		all, w.Runs = append(all, r), append(w.Runs, r.ID)
		if w.File == "" {
			w.File = filepath.Join(dir, "report."+format)
		}
	}
	if out != nil {
		w.File = p.Path(*out)
	}
	rep, err := report.New(version, all...)
	if errors.Is(err, report.ErrUnknown) {
		return nil, usage.Errorf("fisub compare can still read its timings", "%w", err)
	}
	if err != nil {
		return nil, err
	}
	if dir, err := p.RunFolder(names[0]); err == nil && filepath.Dir(dir) == filepath.Join(p.Root(), runs.Dir) {
		rep.History = p.past(w.Runs[0])
	}
	var text bytes.Buffer
	if err := write(rep, &text); err != nil {
		return nil, err
	}
	w.Bytes = text.Len()
	if out != nil && *out == "-" {
		w.File = "-"
	}
	return w, cache.Output(stdout, w.File, text.Bytes())
}
