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

// Report writes a report. tell gets the Written unless stdout got the report itself.
func (p *Project) Report(o ReportOptions, stdout io.Writer, tell func(interface{ Text() string }) error) error {
	if o.JSON && o.Out != nil && *o.Out == "-" {
		return usage.Errorf("name a file, or leave out --json", "-o -: stdout cannot have the report and --json's result")
	}
	w := &Written{Format: cmp.Or(o.Format, Formats[0])}
	write, ok := map[string]func(*report.Report, io.Writer) error{
		"html": (*report.Report).HTML, "md": (*report.Report).Markdown}[w.Format]
	if !ok {
		return usage.Errorf("one of "+strings.Join(Formats, ", "), "--format: unknown format %q", o.Format)
	}
	if len(o.Runs) == 0 {
		o.Runs = []string{"last"}
	}
	dirs, err := p.runFolders(o.Runs)
	if err != nil {
		return err
	}
	rep, err := newReport(o.Version, dirs)
	if err != nil {
		return err
	}
	for _, run := range rep.Runs {
		w.Runs = append(w.Runs, run.ID)
	}
	var text bytes.Buffer
	if err := write(rep, &text); err != nil {
		return err
	}
	if o.Out != nil && *o.Out == "-" {
		return cache.Output(stdout, "-", text.Bytes())
	}
	if w.File = filepath.Join(dirs[0], "report."+w.Format); o.Out != nil {
		w.File = p.Path(*o.Out)
	}
	w.Bytes = text.Len()
	if err := cache.Output(stdout, w.File, text.Bytes()); err != nil {
		return err
	}
	return tell(w)
}

func (p *Project) runFolders(names []string) (dirs []string, err error) {
	for _, name := range names {
		dir, err := p.RunFolder(name)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// newReport returns a report about the runs in dirs.
func newReport(version string, dirs []string) (*report.Report, error) {
	var all []*runs.Run
	for _, dir := range dirs {
		r, err := runs.Read(dir)
		if err != nil {
			return nil, usage.Invalid(err)
		}
		all = append(all, r)
	}
	rep, err := report.New(version, all...)
	if errors.Is(err, report.ErrUnknown) {
		return nil, usage.Errorf("fisub compare can still read its timings", "%w", err)
	}
	return rep, err
}
