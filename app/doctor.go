package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/app/doctor"
	"fisub/device"
	"fisub/device/cuda"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/project/machine"
	"fisub/project/tools"
)

func (a *app) doctorCommand() *cli.Command {
	var noRemote bool
	var require string
	return &cli.Command{
		Name:  "doctor",
		Usage: "check which commands work on this machine, and what the others need",
		Flags: []cli.Flag{
			boolFlag(&noRemote, "no-remote", "do not ask the hosts of [remote.NAME]"),
			stringFlag(&require, "require", "exit with 1 if one of `FOUND[,FOUND...]` is missing (cuda: all for a GPU run)",
				""),
		},
		Action: func(c *cli.Context) error { return a.doctor(c.Context, noRemote, require) },
	}
}

// A diagnosis is the result of doctor, with the required items that are missing.
type diagnosis struct {
	*doctor.Diagnosis
	Required []string `json:"required_and_missing,omitempty"`
}

func (a *app) doctor(ctx context.Context, noRemote bool, require string) (err error) {
	o := doctor.Options{Version: Version, Built: cuda.Built, Config: a.ConfigPath(), Tool: tools.Find,
		Dataset: a.OpenDataset}
	o.Cache, o.CacheErr = cache.Root()
	o.OpenGPU = func(ctx context.Context) (device.Info, error) {
		return machine.OpenGPU(ctx, device.Options{CacheDir: o.Cache})
	}
	if !noRemote {
		if tables, err := a.Tables(); err == nil { // doctor reports a broken config separately
			o.Tables = tables
			if tables == nil {
				o.Tables = map[string]*config.Table{}
			}
		}
	}
	d := diagnosis{Diagnosis: doctor.Examine(ctx, o)}
	if err := ctx.Err(); err != nil {
		return err
	}
	if require != "" {
		if d.Required, err = d.Require(strings.Split(require, ",")); err != nil {
			return usage.Errorf("fisub doctor lists the names", "--require: %w", err)
		}
	}
	if a.json {
		err = a.writeJSON(d)
	} else {
		a.showMachine(d.Diagnosis)
	}
	if err == nil && len(d.Required) > 0 {
		return fmt.Errorf("missing: %s", plain.List(d.Required, "and"))
	}
	return err
}

func (a *app) showMachine(r *doctor.Diagnosis) {
	for _, u := range r.Uses {
		word, text := "can", u.Command
		if !u.OK {
			word, text = "cannot", u.Command+": missing "+strings.Join(u.Lacks, ", ")
		} else if u.Fetches != nil {
			text += "; the first run downloads " + strings.Join(u.Fetches, ", ")
		}
		fmt.Fprintln(a.stdout, a.term.Fit(fmt.Sprintf("%-7s  %s", word, text), len("missing  ")))
	}
	fmt.Fprintln(a.stdout)
	width := 0
	for _, l := range r.Lines {
		width = max(width, len(plain.Line(l.Name)))
	}
	news := map[doctor.Level]int{doctor.OK: 1, doctor.Missing: -1}
	for _, l := range r.Lines {
		text := fmt.Sprintf("%-*s  %s", width, plain.Line(l.Name), joinLines(l.Fact))
		if l.Hint != "" {
			text += "; hint: " + joinLines(l.Hint)
		}
		text = fmt.Sprintf("%-*s  %s", len("missing"), l.State, text)
		text = a.term.Fit(text, len("missing  "))
		fmt.Fprintln(a.stdout, a.term.Rate(news[l.State], string(l.State))+text[len(l.State):])
	}
}

func joinLines(text string) string {
	return plain.Line(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), "; "))
}
