package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/report"
	"fisub/report/serve"
)

// Formats are those of a report.
var Formats = []string{"html", "md", "csv"}

// ReportOptions say what is reported of what.
type ReportOptions struct {
	Version string   // of the program
	Format  string   // "" is html
	Out     *string  // a file, "-" for stdout; nil: in the folder of the first run
	Runs    []string // none: the newest
	Serve   bool     // the page, until the context ends, in place of a file
	Port    int      // to serve on; 0: a free one
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

// A Served is a report on loopback.
type Served struct {
	URL string `json:"url"`
}

// Text is the address.
func (s *Served) Text() string { return s.URL + "\n" }

// Report writes a report, or serves it until ctx ends. tell is given the Written or the Served, where stdout has not
// had the report itself.
func (p *Project) Report(ctx context.Context, o ReportOptions, stdout io.Writer, log Log,
	tell func(interface{ Text() string }) error) error {
	switch {
	case o.Serve && (o.Out != nil || o.Format != ""):
		return usage.Errorf("leave out -o and --format", "--serve writes no file")
	case o.Port != 0 && !o.Serve:
		return usage.Errorf("", "--port is for --serve")
	case o.JSON && o.Out != nil && *o.Out == "-":
		return usage.Errorf("name a file, or leave out --json", "-o -: stdout cannot have the report and --json's result")
	}
	w := &Written{Format: cmp.Or(o.Format, Formats[0])}
	write, ok := map[string]func(*report.Report, io.Writer) error{
		"html": (*report.Report).HTML, "md": (*report.Report).Markdown, "csv": (*report.Report).CSV}[w.Format]
	if !ok {
		return usage.Errorf("one of "+strings.Join(Formats, ", "), "--format: unknown format %q", o.Format)
	}
	if o.Serve {
		return p.serve(ctx, o, log, tell)
	}
	if len(o.Runs) == 0 {
		o.Runs = []string{"last"}
	}
	dirs, err := p.runFolders(o.Runs)
	if err != nil {
		return err
	}
	rep, err := p.report(o.Version, dirs)
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

// report is about the runs in dirs. One of the project's that has ended comes with its history.
func (p *Project) report(version string, dirs []string) (*report.Report, error) {
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
	if err != nil {
		return nil, err
	}
	if all[0].Done != nil && filepath.Dir(dirs[0]) == filepath.Join(p.Root(), runs.Dir) {
		rep.History = p.past(all[0].ID)
	}
	return rep, nil
}

// serve serves the page about the runs, or about the newest, whichever that is.
func (p *Project) serve(ctx context.Context, o ReportOptions, log Log,
	tell func(interface{ Text() string }) error) error {
	dirs, err := p.runFolders(o.Runs)
	if err != nil {
		return err
	}
	shown := func() ([]string, error) {
		if len(dirs) > 0 {
			return dirs, nil
		}
		ids, err := runs.IDs(p.Root())
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		return []string{filepath.Join(p.Root(), runs.Dir, ids[len(ids)-1])}, nil
	}
	page := serve.Page{
		Stamp: func() string {
			now, err := shown()
			stamp := fmt.Sprintf("%d-", len(now))
			if err != nil {
				return stamp + "unread"
			}
			for _, dir := range now {
				stamp += runs.Stamp(dir)
			}
			return stamp
		},
		Write: func(w io.Writer, stamp string) error {
			now, err := shown()
			if err == nil && len(now) == 0 {
				return report.Waiting(w, o.Version, stamp, "There is no run below "+
					filepath.Join(p.Root(), runs.Dir)+" yet. The first one will be shown as soon as it begins.")
			}
			var rep *report.Report
			if err == nil {
				rep, err = p.report(o.Version, now)
			}
			if err != nil {
				return report.Waiting(w, o.Version, stamp, err.Error())
			}
			rep.Live = stamp
			return rep.HTML(w)
		},
	}
	l, err := serve.Listen(o.Port)
	if err != nil {
		return usage.Errorf("without --port fisub takes one that is free", "--port: %w", err)
	}
	if err := tell(&Served{serve.URL(l)}); err != nil {
		l.Close()
		return err
	}
	log.Note("ctrl-C ends it")
	return serve.Run(ctx, l, page)
}
