package app

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"fisub/internal/plain"
	"fisub/internal/usage"
)

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

func (a *app) report(o reportOptions) error {
	stdout := o.out != nil && *o.out == "-"
	if stdout && a.json {
		return usage.Errorf("name a file, or leave out --json", "-o -: stdout cannot have the report and --json's result")
	}
	w, err := a.Project.Report(a.stdout, Version, o.format, o.out, o.runs)
	switch {
	case err != nil || stdout:
		return err
	case a.json:
		return a.writeJSON(w)
	}
	_, err = fmt.Fprintln(a.stdout, plain.Line(w.File))
	return err
}
