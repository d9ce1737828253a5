package app

import (
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"fisub/internal/trace"
	"fisub/workloads"
)

func (a *app) datasetCommand() *cli.Command {
	pick := []cli.Flag{
		&cli.StringFlag{Name: "definition", Usage: "only the definition `NAME`"},
		&cli.StringFlag{Name: "set", Usage: "only the workload set `SET`"},
	}
	return &cli.Command{
		Name:  "dataset",
		Usage: "list, check and synthesise workloads and their inputs",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list definitions and their workload sets; with -v the workloads too", Flags: pick, Action: a.datasetLs,
				Description: "   fisub dataset ls\n   fisub dataset ls -v --definition gdn_decode_qk4_v8_d128_k_last --set contest54"},
			{Name: "verify", Usage: "check workloads and input files against their definitions", Flags: pick, Action: a.datasetVerify,
				Description: "   fisub dataset verify\n   fisub dataset verify --dataset ~/mlsys26-contest"},
			{Name: "synth", Usage: "make the input files that are missing, the same bytes on every machine", Action: a.datasetSynth,
				Flags: append(pick, &cli.StringFlag{Name: "o", Usage: "write below the folder `DIR`", DefaultText: "the dataset's own root"}),
				Description: "   fisub dataset synth --definition gdn_decode_qk4_v8_d128_k_last --set default\n" +
					"   fisub dataset synth --definition gdn_decode_qk4_v8_d128_k_last --set default -o trace    below another folder"},
		},
	}
}

// eachSet calls do for every workload set that the flags choose.
func eachSet(c *cli.Context, data *workloads.Dataset, do func(def *trace.Definition, set string, ws []*trace.Workload) error) error {
	names := data.Definitions()
	if name := c.String("definition"); name != "" {
		names = []string{name}
	}
	found := false
	for _, name := range names {
		def, err := data.Definition(name)
		if err != nil {
			return invalid(err)
		}
		sets, err := data.Sets(name)
		if err != nil {
			return invalid(err)
		}
		for _, set := range sets {
			if want := c.String("set"); want != "" && want != set {
				continue
			}
			found = true
			ws, err := data.Workloads(name, set)
			if err != nil {
				return invalid(err)
			}
			if err := do(def, set, ws); err != nil {
				return err
			}
		}
	}
	if !found {
		return usage("fisub dataset ls lists what there is", "no such workload set")
	}
	return nil
}

func (a *app) datasetLs(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	data, err := openDataset(c)
	if err != nil {
		return err
	}
	type row struct {
		Definition string   `json:"definition"`
		Set        string   `json:"set"`
		Workloads  int      `json:"workloads"`
		UUIDs      []string `json:"uuids"`
	}
	var rows []row
	err = eachSet(c, data, func(def *trace.Definition, set string, ws []*trace.Workload) error {
		r := row{Definition: def.Name, Set: set, Workloads: len(ws)}
		for _, w := range ws {
			r.UUIDs = append(r.UUIDs, w.UUID)
		}
		rows = append(rows, r)
		if globalBool(c, "json") {
			return nil
		}
		fmt.Fprintf(a.stdout, "%s  %s  %d workloads\n", def.Name, set, len(ws))
		if a.term.Verbose {
			for _, w := range ws {
				fmt.Fprintf(a.stdout, "    %s%s\n", w.UUID, axesText(w))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if globalBool(c, "json") {
		return writeJSON(a.stdout, rows)
	}
	if data.Embedded() {
		a.term.Note("embedded dataset; input files are made in %s", data.Root())
	}
	return nil
}

func axesText(w *trace.Workload) string {
	text := ""
	for name, n := range w.Axes.All() {
		text += fmt.Sprintf("  %s=%d", name, n)
	}
	return text
}

func (a *app) datasetVerify(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	data, err := openDataset(c)
	if err != nil {
		return err
	}
	absent, total := 0, 0
	faults := []map[string]string{}
	err = eachSet(c, data, func(def *trace.Definition, _ string, ws []*trace.Workload) error {
		reports, err := data.Verify(c.Context, def, ws)
		if err != nil {
			return err
		}
		for _, r := range reports {
			total++
			absent += r.Absent
			for _, f := range r.Faults {
				text, hint := explain(f)
				faults = append(faults, map[string]string{"definition": def.Name, "workload": r.UUID, "text": text, "hint": hint})
				a.term.Error(fmt.Sprintf("%s: workload %s: %s", def.Name, r.UUID, text), hint)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if globalBool(c, "json") {
		if err := writeJSON(a.stdout, map[string]any{"workloads": total, "absent_files": absent, "faults": faults}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.stdout, "%d workloads checked, %d faults\n", total, len(faults))
	}
	if absent > 0 {
		a.term.Note("%d input files are not made yet: fisub local makes them when it needs them, fisub dataset synth at once", absent)
	}
	if len(faults) > 0 {
		return errShown
	}
	return nil
}

func (a *app) datasetSynth(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	data, err := openDataset(c)
	if err != nil {
		return err
	}
	dest := c.String("o")
	if dest != "" {
		dest = path(c, dest)
		if st, err := os.Stat(dest); err == nil && !st.IsDir() {
			return usage("name a folder", "-o %s: not a folder", dest)
		}
	}
	made := 0
	err = eachSet(c, data, func(def *trace.Definition, set string, ws []*trace.Workload) error {
		bar := a.term.Bar(int64(len(ws)), def.Name+" "+set, false)
		defer bar.Finish()
		return data.Synth(c.Context, def, ws, dest, func(done, total int) {
			bar.Set(int64(done))
			if done == total {
				made += total
			}
		})
	})
	if err != nil {
		return invalid(err)
	}
	if dest == "" {
		dest = data.Root()
	}
	if globalBool(c, "json") {
		return writeJSON(a.stdout, map[string]any{"files": made, "folder": dest})
	}
	_, err = io.WriteString(a.stdout, fmt.Sprintf("%d input files below %s\n", made, dest))
	return err
}
