package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/report"
)

var formats = []string{"html", "md", "csv"}

type reportOptions struct {
	format string
	out    *string // nil: beside the first run
	runs   []string
}

func (a *app) reportCommand() *cli.Command {
	o := reportOptions{format: "html"}
	return &cli.Command{
		Name:      "report",
		Usage:     "write a page, a Markdown table or CSV about runs",
		ArgsUsage: "RUN [RUN...]",
		Flags: []cli.Flag{
			stringFlag(&o.format, "format", "`FORMAT` html, md or csv", ""),
			&cli.StringFlag{Name: "o", Usage: "write `FILE`; - is stdout",
				DefaultText: "report.FORMAT in the folder of the first RUN",
				Action:      func(_ *cli.Context, file string) error { o.out = &file; return nil }},
		},
		Action: func(c *cli.Context) error {
			o.runs = c.Args().Slice()
			return a.report(o)
		},
	}
}

// A written is a report in a file.
type written struct {
	File   string   `json:"file"`
	Format string   `json:"format"`
	Bytes  int      `json:"bytes"`
	Runs   []string `json:"runs"`
}

func (a *app) report(o reportOptions) error {
	write, ok := map[string]func(*report.Report, io.Writer) error{
		"html": (*report.Report).HTML, "md": (*report.Report).Markdown, "csv": (*report.Report).CSV}[o.format]
	if !ok {
		return usage.Errorf("one of "+strings.Join(formats, ", "), "--format: unknown format %q", o.format)
	}
	if o.out != nil && *o.out == "" {
		return usage.Errorf("-o report.html, or -o - for stdout", "-o: no file given")
	}
	stdout := o.out != nil && *o.out == "-"
	if stdout && a.json {
		return usage.Errorf("name a file, or leave out --json", "-o -: stdout cannot have the report and --json's result")
	}
	w := written{Format: o.format}
	var all []*runs.Run
	for _, arg := range o.runs {
		dir, err := a.RunFolder(arg)
		if err != nil {
			return err
		}
		r, err := runs.Read(dir)
		if err != nil {
			return usage.Invalid(err)
		}
		all, w.Runs = append(all, r), append(w.Runs, r.ID)
		if w.File == "" {
			w.File = filepath.Join(dir, "report."+o.format)
		}
	}
	if o.out != nil {
		w.File = a.Path(*o.out)
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
	w.Bytes = text.Len()
	if stdout {
		w.File = "-"
	}
	if err := cache.Output(a.stdout, w.File, text.Bytes()); err != nil || stdout {
		return err
	}
	if a.json {
		return a.writeJSON(w)
	}
	_, err = fmt.Fprintln(a.stdout, plain.Line(w.File))
	return err
}
