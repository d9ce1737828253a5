package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/session"
	"fisub/session/tools"
)

type toolOptions struct {
	session.Options
	solution, workload, tools, sections string
}

func (o *toolOptions) flags() []cli.Flag {
	o.Timeout = 5 * time.Minute
	return []cli.Flag{
		deviceFlag(&o.Device),
		stringFlag(&o.Set, "set", "take the workload from `SET`", "default"),
		stringFlag(&o.workload, "workload", "the workload whose uuid begins with `PREFIX`", "the first of the set"),
		solutionFlag(&o.solution),
		timeFlag(&o.Timeout, "timeout", "end a tool after `TIME`", ""),
	}
}

func (a *app) sanitizeCommand() *cli.Command {
	var o toolOptions
	return &cli.Command{
		Name:  "sanitize",
		Usage: "look for invalid accesses, races and uninitialised reads on one workload",
		Flags: append(o.flags(), stringFlag(&o.tools, "tool", "`TOOL[,TOOL...]` of compute-sanitizer",
			strings.Join(tools.Sanitizers, ","))),
		Action: func(c *cli.Context) error { return a.sanitize(c.Context, o) },
	}
}

func (a *app) profileCommand() *cli.Command {
	o := toolOptions{sections: "detailed"}
	return &cli.Command{
		Name:  "profile",
		Usage: "profile the kernels of one workload with Nsight Compute",
		Flags: append(o.flags(), stringFlag(&o.sections, "ncu-set",
			"collect ncu's `SECTIONS`: "+strings.Join(tools.Sections, ", "), "")),
		Action: func(c *cli.Context) error { return a.profile(c.Context, o) },
	}
}

func (a *app) newTool(ctx context.Context, o toolOptions) (*tools.Run, error) {
	s, err := a.load(o.solution)
	if err != nil {
		return nil, err
	}
	if o.workload != "" {
		o.Workloads = []string{o.workload}
	}
	return tools.New(ctx, s, o.Options, a.term)
}

// A toolVerdict is what a tool says of a workload.
type toolVerdict struct {
	Tool     string `json:"tool"`
	Workload string `json:"workload"`
	Verdict  string `json:"verdict"`
	Log      string `json:"log"`
}

func (a *app) sanitize(ctx context.Context, o toolOptions) error {
	names := tools.Sanitizers
	if o.tools != "" {
		names = strings.Split(o.tools, ",")
		for _, name := range names {
			if !slices.Contains(tools.Sanitizers, name) {
				return usage.Unknown("tool", name, tools.Sanitizers)
			}
		}
	}
	run, err := a.newTool(ctx, o)
	if err != nil {
		return err
	}
	a.term.Note("workload   %s%s", run.Workload.UUID, session.AxesText(run.Workload))
	if run.Emulated && o.tools != "" {
		return usage.Errorf("leave --tool out", "--tool: the emulator has sanitizers of its own")
	}
	var bad error
	err = run.Sanitize(ctx, names, func(tool, verdict, log string) {
		if verdict != "clean" {
			bad = shown(exitNotPassed)
		}
		if a.json {
			line, _ := json.Marshal(toolVerdict{tool, run.Workload.UUID, verdict, log}) // never fails
			fmt.Fprintf(a.stdout, "%s\n", line)
			return
		}
		a.line(tool, "%s", verdict)
		for line := range strings.Lines(log) {
			if verdict != "clean" || a.term.Verbose {
				fmt.Fprintf(a.stdout, "    %s\n", plain.Line(strings.TrimRight(line, "\n")))
			}
		}
	})
	return cmp.Or(err, bad)
}

func (a *app) profile(ctx context.Context, o toolOptions) error {
	run, err := a.newTool(ctx, o)
	if err != nil {
		return err
	}
	if run.Emulated {
		return usage.Errorf("run it on a machine with an NVIDIA GPU", "profile: the emulator keeps no time")
	}
	file, err := run.Profile(ctx, o.sections, a.stdout)
	if fault, ok := errors.AsType[*tools.FaultError](err); ok {
		a.term.Error(fault.Error()+"\n"+strings.TrimRight(fault.Log, "\n"), "")
		return shown(exitNotPassed)
	}
	if err != nil {
		return err
	}
	a.line("report", "%s", session.Relative(file))
	return nil
}
