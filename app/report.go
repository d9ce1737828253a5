package app

import (
	"github.com/urfave/cli/v2"

	"fisub/session"
)

func (a *app) reportCommand() *cli.Command {
	o := session.ReportOptions{Version: Version}
	return &cli.Command{
		Name:      "report",
		Usage:     "write a page or a Markdown table about runs",
		ArgsUsage: "[RUN...]",
		Flags: []cli.Flag{
			stringFlag(&o.Format, "format", "`FORMAT` html or md", "html"),
			&cli.StringFlag{Name: "o", Usage: "write `FILE`; - is stdout",
				DefaultText: "report.FORMAT in the folder of the first RUN",
				Action:      func(_ *cli.Context, file string) error { o.Out = &file; return nil }},
		},
		Action: func(c *cli.Context) error {
			o.Runs, o.JSON = c.Args().Slice(), a.json
			written, err := a.Report(o, a.stdout)
			if err != nil || written == nil {
				return err
			}
			return a.result(written)
		},
	}
}
