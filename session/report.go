package session

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/report"
)

// Formats are those of a report.
var Formats = []string{"html", "md"}

// ReportOptions say what is reported of what.
type ReportOptions struct {
	Version string   // of the program
	Format  string   // "" is html
	Out     *string  // a file, "-" for stdout; nil: in the folder of the first run
	Runs    []string // none: the newest
	JSON    bool     // stdout is taken
}

// A Written is a report in a file.
type Written struct {
	File   string   `json:"file"`
	Format string   `json:"format"`
	Bytes  int      `json:"bytes"`
	Runs   []string `json:"runs"`
}

// Text is the file.
func (w *Written) Text() string { return plain.Line(w.File) + "\n" }

// Report writes a report. It returns nil if stdout got the report itself.
func (p *Project) Report(o ReportOptions, stdout io.Writer) (*Written, error) {
	if o.JSON && o.Out != nil && *o.Out == "-" {
		return nil, usage.Errorf("name a file, or leave out --json",
			"-o -: stdout cannot have the report and --json's result")
	}
	w := &Written{Format: cmp.Or(o.Format, Formats[0])}
	write, ok := map[string]func(*report.Report, io.Writer) error{
		"html": (*report.Report).HTML, "md": (*report.Report).Markdown}[w.Format]
	if !ok {
		return nil, usage.Errorf("one of "+strings.Join(Formats, ", "), "--format: unknown format %q", o.Format)
	}
	if len(o.Runs) == 0 {
		o.Runs = []string{"last"}
	}
	var all []*runs.Run
	for _, name := range o.Runs {
		dir, err := p.RunFolder(name)
		if err != nil {
			return nil, err
		}
		r, err := runs.Read(dir)
		if err != nil {
			return nil, usage.Invalid(err)
		}
		if w.Runs, all = append(w.Runs, r.ID), append(all, r); w.File == "" {
			w.File = filepath.Join(dir, "report."+w.Format)
		}
	}
	rep, err := report.New(o.Version, all...)
	if errors.Is(err, report.ErrUnknown) {
		return nil, usage.Errorf("fisub compare can still read its timings", "%w", err)
	}
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := write(rep, &text); err != nil {
		return nil, err
	}
	if o.Out != nil && *o.Out == "-" {
		return nil, cache.Output(stdout, "-", text.Bytes())
	}
	if o.Out != nil {
		w.File = p.Path(*o.Out)
	}
	w.Bytes = text.Len()
	if err := cache.Output(stdout, w.File, text.Bytes()); err != nil {
		return nil, err
	}
	return w, nil
}
