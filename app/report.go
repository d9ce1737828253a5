package app

import (
	"github.com/urfave/cli/v2"

	"fisub/session"
)

func (a *app) reportCommand() *cli.Command {
	o := session.ReportOptions{Version: Version}
	return &cli.Command{
		Name:      "report",
		Usage:     "write a page, a Markdown table or CSV about runs, or serve the page while a run goes on",
		ArgsUsage: "[RUN...]",
		Flags: []cli.Flag{
			stringFlag(&o.Format, "format", "`FORMAT` html, md or csv", "html"),
			&cli.StringFlag{Name: "o", Usage: "write `FILE`; - is stdout",
				DefaultText: "report.FORMAT in the folder of the first RUN",
				Action:      func(_ *cli.Context, file string) error { o.Out = &file; return nil }},
			boolFlag(&o.Serve, "serve", "show the page to browsers of this machine, and each change of its runs"),
			countFlag(&o.Port, "port", "serve on port `N` of 127.0.0.1", "a free one"),
		},
		Action: func(c *cli.Context) error {
			o.Runs, o.JSON, a.signals = c.Args().Slice(), a.json, o.Serve // which an interrupt ends in good order
			return a.Report(c.Context, o, a.stdout, a.term, a.result)
		},
	}
}
