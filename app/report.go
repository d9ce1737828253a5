package app

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/usage"
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
	var all []*runs.Run
	for _, name := range o.runs {
		folder, err := a.runFolder(name)
		if err != nil {
			return err
		}
		r, err := runs.Read(folder)
		if err != nil {
			return usage.Invalid(err)
		}
		if w.Runs, all = append(w.Runs, r.ID), append(all, r); w.File == "" {
			w.File = filepath.Join(folder, "report."+o.format)
		}
	}
	rep, err := report.New(Version, all...)
	if errors.Is(err, report.ErrUnknown) {
		return usage.Errorf("fisub compare can still read its timings", "%w", err)
	}
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := write(rep, &text); err != nil {
		return err
	}
	if o.out != "" {
		w.File = a.Path(o.out)
	}
	if toStdout {
		w.File = "-"
	}
	w.Bytes = text.Len()
	if err := cache.Output(a.stdout, w.File, text.Bytes()); err != nil || toStdout {
		return err
	}
	return a.result(w)
}
