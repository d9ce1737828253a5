package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/report"
)

func (a *app) reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "write a page, a Markdown table or CSV about runs",
		ArgsUsage: "RUN [RUN...]",
		Description: "RUN is an id, its beginning, last, last~1 for the one before it, or the folder of a run. Of several runs each further\n" +
			"one is compared with the first, with the verdicts of fisub compare.\n" +
			"   html  one file that needs no network: verdicts, latencies with intervals, baseline, copy and empty kernel, all\n" +
			"         timings, the state of the GPU, kernels, environment, findings, logs of what did not pass\n" +
			"   md    the verdict and a table, for a comment under a pull request\n" +
			"   csv   a line for each workload and contender, times in ns\n\n" +
			"   fisub report last\n" +
			"   fisub report -o report.html last~1 last\n" +
			"   fisub report --format md -o - last",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Value: "html", Usage: "`FORMAT` html, md or csv"},
			&cli.StringFlag{Name: "o", Usage: "write `FILE`; - is stdout", DefaultText: "report.FORMAT in the folder of the first RUN"},
		},
		Action: a.report,
	}
}

func (a *app) report(c *cli.Context) error {
	if c.NArg() == 0 {
		return usage("fisub report last", "report: no run given")
	}
	format, out := c.String("format"), c.String("o")
	write, ok := map[string]func(*report.Report, io.Writer) error{
		"html": (*report.Report).HTML, "md": (*report.Report).Markdown, "csv": (*report.Report).CSV}[format]
	if !ok {
		return usage("one of html, md, csv", "--format: unknown format %q", format)
	}
	if c.IsSet("o") && out == "" {
		return usage("-o report.html, or -o - for stdout", "-o: no file given")
	}
	if out == "-" && globalBool(c, "json") {
		return usage("name a file, or leave out --json", "-o -: stdout cannot have the report and --json's result")
	}
	var all []*runs.Run
	for _, arg := range c.Args().Slice() {
		dir, err := runFolder(c, arg)
		if err != nil {
			return err
		}
		r, err := runs.Read(dir)
		if err != nil {
			return invalid(err)
		}
		all = append(all, r)
		if out == "" {
			out = filepath.Join(dir, "report."+format)
		} else if len(all) == 1 && out != "-" {
			out = path(c, out)
		}
	}
	rep, err := report.New(Version, all...)
	if errors.Is(err, report.ErrUnknown) {
		return usage("fisub compare can still read its timings", "%w", err)
	}
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := write(rep, &text); err != nil {
		return err
	}
	size := text.Len()
	if err := cache.Output(a.stdout, out, text.Bytes()); err != nil || out == "-" {
		return err
	}
	if globalBool(c, "json") {
		var ids []string
		for _, r := range all {
			ids = append(ids, r.ID)
		}
		return writeJSON(a.stdout, struct {
			File   string   `json:"file"`
			Format string   `json:"format"`
			Bytes  int      `json:"bytes"`
			Runs   []string `json:"runs"`
		}{out, format, size, ids})
	}
	_, err = fmt.Fprintln(a.stdout, plain.Line(out))
	return err
}
