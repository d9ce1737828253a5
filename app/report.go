package app

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/device/counters"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/project/tools"
	"fisub/report"
	"fisub/runs"
)

// reportFormats are the formats of a report, the default first.
var reportFormats = []string{"html", "md"}

type reportOptions struct {
	format string
	out    string   // file, "-" for stdout; "": in the folder of the first run
	runs   []string // default: the newest run
}

func (a *app) reportCommand() *cli.Command {
	o := reportOptions{format: reportFormats[0]}
	return &cli.Command{
		Name:      "report",
		Usage:     "write an HTML page or a Markdown table about runs",
		ArgsUsage: "[RUN...]",
		Flags: []cli.Flag{
			stringFlag(&o.format, "format", "write `FORMAT` html or md", "html"),
			stringFlag(&o.out, "o", "write `FILE`; - is stdout", "report.FORMAT in the folder of the first RUN"),
		},
		Action: func(c *cli.Context) error {
			if o.runs = c.Args().Slice(); len(o.runs) == 0 {
				o.runs = []string{"last"}
			}
			return a.report(o)
		},
	}
}

// A reportFile is a written report, for --json.
type reportFile struct {
	File   string   `json:"file"`
	Format string   `json:"format"`
	Bytes  int      `json:"bytes"`
	Runs   []string `json:"runs"`
}

// Text returns the name of the file.
func (w *reportFile) Text() string { return plain.Line(w.File) + "\n" }

func (a *app) report(o reportOptions) error {
	toStdout := o.out == "-"
	if a.json && toStdout {
		return usage.Errorf("use a file, or omit --json", "-o - and --json would both write to stdout")
	}
	write, ok := map[string]func(*report.Report, io.Writer) error{
		"html": (*report.Report).HTML, "md": (*report.Report).Markdown}[o.format]
	if !ok {
		return usage.Errorf("one of "+strings.Join(reportFormats, ", "), "--format: unknown format %q", o.format)
	}
	w := &reportFile{Format: o.format}
	var text bytes.Buffer
	var all []*runs.Run
	for _, name := range o.runs {
		folder, err := a.runFolder(name)
		if err != nil {
			return err
		}
		if w.File == "" {
			w.File = filepath.Join(folder, "report."+o.format)
		}
		if runs.IsProfile(folder) && len(o.runs) == 1 {
			if err := a.reportProfile(o, folder, &text); err != nil {
				return err
			}
			return a.writeReport(o, w, text.Bytes())
		}
		r, err := runs.Read(folder)
		if err != nil {
			return usage.Invalid(err)
		}
		w.Runs, all = append(w.Runs, r.ID), append(all, r)
	}
	rep, err := report.New(Version, all...)
	if errors.Is(err, report.ErrUnknown) {
		return usage.Errorf("fisub compare can still read its timings", "%w", err)
	}
	if err != nil {
		return err
	}
	if err := write(rep, &text); err != nil {
		return err
	}
	return a.writeReport(o, w, text.Bytes())
}

// writeReport writes text to the file of o or w, and prints its name.
func (a *app) writeReport(o reportOptions, w *reportFile, text []byte) error {
	toStdout := o.out == "-"
	if o.out != "" {
		w.File = a.Path(o.out)
	}
	if toStdout {
		w.File = "-"
	}
	w.Bytes = len(text)
	if err := cache.Output(a.stdout, w.File, text); err != nil || toStdout {
		return err
	}
	return a.result(w)
}

// reportProfile writes a page about a profile with counters, which is in folder.
func (a *app) reportProfile(o reportOptions, folder string, to io.Writer) error {
	p, err := tools.ReadProfile(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && p.Counters == nil:
		return usage.Errorf("open it with ncu-ui", "report: %s is a profile of Nsight Compute", plain.Relative(folder))
	case err != nil:
		return err
	case o.format != "html":
		return usage.Errorf("omit --format", "report: a profile has only a page")
	}
	gpu, err := counters.Named(p.GPU)
	if err != nil {
		return err
	}
	s, _, err := trace.ReadSolution(filepath.Join(folder, solutionName))
	if err != nil {
		return err
	}
	page := report.Counted{Version: Version, Title: s.Name + " " + plain.Short(s.Hash()), GPU: gpu, Launches: p.Counters,
		Lines: []string{s.Definition, "workload " + p.Workload, "profile " + filepath.Base(folder)},
		Source: func(file string) []string {
			for _, f := range s.Sources {
				if f.Path == file {
					return strings.Split(f.Content, "\n")
				}
			}
			return nil
		}}
	return page.HTML(to)
}
