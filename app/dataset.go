package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/session"
	"fisub/workloads"
)

type datasetOptions struct {
	definition, set, out string
	seed                 uint64
}

func (o *datasetOptions) flags() []cli.Flag {
	return []cli.Flag{
		stringFlag(&o.definition, "definition", "only the definition `DEFINITION`", ""),
		stringFlag(&o.set, "set", "only the workload set `SET`", ""),
	}
}

func (a *app) datasetCommand() *cli.Command {
	var ls, verify, synth, imports datasetOptions
	return &cli.Command{
		Name:  "dataset",
		Usage: "list, check, synthesise and import workloads and their inputs",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list definitions and their workload sets; with -v the workloads too", Flags: ls.flags(),
				Action: func(*cli.Context) error { return a.datasetLs(ls) }},
			{Name: "verify", Usage: "check workloads and input files against their definitions", Flags: verify.flags(),
				Action: func(c *cli.Context) error { return a.datasetVerify(c.Context, verify) }},
			{Name: "synth", Usage: "make the input files that are missing, the same bytes on every machine",
				Flags: append(synth.flags(), seedFlag(&synth.seed),
					stringFlag(&synth.out, "o", "write below the folder `DIR`", "the dataset's own root")),
				Action: func(c *cli.Context) error { return a.datasetSynth(c.Context, synth) }},
			{Name: "import", Usage: "take definitions and workloads of fi_trace, SOL-ExecBench or a dataset into a dataset",
				ArgsUsage: "DIR|FILE",
				Flags:     []cli.Flag{stringFlag(&imports.out, "o", "the dataset is the folder `DIR`", "trace")},
				Action:    func(c *cli.Context) error { return a.datasetImport(c.Context, c.Args().First(), imports.out) }},
		},
	}
}

func (a *app) datasetLs(o datasetOptions) error {
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	lines := []session.SetLine{}
	err = session.EachSet(data, o.definition, o.set, func(def *trace.Definition, set string, ws []*trace.Workload) error {
		l := session.SetLine{Definition: def.Name, Set: set, Workloads: len(ws)}
		for _, w := range ws {
			l.UUIDs = append(l.UUIDs, w.UUID)
		}
		lines = append(lines, l)
		if a.json {
			return nil
		}
		fmt.Fprintln(a.stdout, a.term.Fit(plain.Line(def.Name)+"  "+plain.Line(set)+"  "+plain.Count(len(ws), "workload"), 4))
		for _, w := range ws {
			if a.term.Verbose {
				text := w.UUID + session.AxesText(w)
				if tests := workloads.Tests(def.Name, w.UUID); tests != "" {
					text += "  " + tests
				}
				fmt.Fprintln(a.stdout, a.term.Fit("    "+plain.Line(text), 6))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(lines)
	}
	if len(lines) == 0 {
		a.term.Note("no workloads")
	}
	if data.Embedded() {
		a.term.Note("embedded dataset; input files are made in %s", data.Root())
	}
	return nil
}

func (a *app) datasetVerify(ctx context.Context, o datasetOptions) error {
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	found, unread, err := session.Verify(ctx, data, o.definition, o.set)
	if err != nil {
		return err
	}
	for _, f := range found.Faults {
		text := f.Definition + ": "
		if f.Workload != "" {
			text += "workload " + f.Workload + ": "
		}
		a.term.Error(text+f.Text, f.Hint)
	}
	if found.MoreFaults > 0 {
		a.term.Error(plain.Count(found.MoreFaults, "more fault"), "")
	}
	if a.json {
		if err := a.writeJSON(found); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.stdout, "%s checked, %s\n", plain.Count(found.Workloads, "workload"),
			plain.Count(len(found.Faults)+found.MoreFaults, "fault"))
	}
	if unread != nil {
		a.term.Note("references were not looked at: %v", unread)
	}
	if n := found.AbsentFiles; n > 0 {
		a.term.Note("not made yet: %s; fisub local makes them when it needs them, fisub dataset synth at once",
			plain.Count(n, "input file"))
	}
	if len(found.Faults) > 0 {
		return shown(exitUsage)
	}
	return nil
}

func (a *app) datasetSynth(ctx context.Context, o datasetOptions) error {
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	dest := o.out
	if dest != "" {
		dest = a.Path(dest)
		if st, err := os.Stat(dest); err == nil && !st.IsDir() {
			return usage.Errorf("name a folder", "-o %s: not a folder", dest)
		}
	}
	data = data.Seeded(o.seed)
	made := session.Synthesis{Folder: dest}
	err = session.EachSet(data, o.definition, o.set, func(def *trace.Definition, set string, ws []*trace.Workload) error {
		bar := a.term.Bar(int64(len(ws)), def.Name+" "+set, false)
		defer bar.Finish()
		return data.Synth(ctx, def, ws, dest, func(done, total int) {
			bar.Set(int64(done))
			if done == total {
				made.Files += total
			}
		})
	})
	if err != nil {
		return usage.Invalid(err)
	}
	if dest == "" {
		made.Folder = data.Root()
	}
	if a.json {
		return a.writeJSON(made)
	}
	_, err = fmt.Fprintf(a.stdout, "%s below %s\n", plain.Count(made.Files, "input file"), made.Folder)
	return err
}

func (a *app) datasetImport(ctx context.Context, src, out string) error {
	found, err := a.Import(ctx, src, out)
	if err != nil {
		return err
	}
	return errors.Join(a.result(found), found.Err())
}
