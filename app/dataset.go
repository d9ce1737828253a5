package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project/preflight"
	"fisub/workloads"
)

type datasetOptions struct {
	definition, set, out string
	first                string // the definition to begin with
	seed                 uint64
}

func (o *datasetOptions) flags() []cli.Flag {
	return []cli.Flag{
		stringFlag(&o.definition, "definition", "only the definition `DEFINITION`", ""),
		stringFlag(&o.set, "set", "only the workload set `SET`", ""),
	}
}

func (a *app) datasetCommand() *cli.Command {
	var ls, verify, synth datasetOptions
	out := "trace" // of import
	return &cli.Command{
		Name:  "dataset",
		Usage: "list, show, check, generate and import workloads and their inputs",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list definitions and their workload sets, with -v also the workloads", Flags: ls.flags(),
				Action: func(*cli.Context) error { return a.datasetLs(ls) }},
			{Name: "show", Usage: "print a definition: shapes, constraints, tolerance, workload sets, reference",
				ArgsUsage: "[DEFINITION]",
				Action:    func(c *cli.Context) error { return a.datasetShow(c.Args().First()) }},
			{Name: "verify", Usage: "check workloads and input files against their definitions", Flags: verify.flags(),
				Action: func(c *cli.Context) error { return a.datasetVerify(c.Context, verify) }},
			{Name: "synth", Usage: "generate missing input files, with the same bytes on every machine",
				Flags: append(synth.flags(), seedFlag(&synth.seed),
					stringFlag(&synth.out, "o", "write into the folder `DIR`", "the dataset")),
				Action: func(c *cli.Context) error { return a.datasetSynth(c.Context, synth) }},
			{Name: "import", Usage: "import definitions and workloads of fi_trace, SOL-ExecBench or a dataset",
				ArgsUsage: "DIR|FILE",
				Flags:     []cli.Flag{stringFlag(&out, "o", "import into the dataset in `DIR`", "trace")},
				Action:    func(c *cli.Context) error { return a.datasetImport(c.Context, c.Args().First(), out) }},
		},
	}
}

// A setLine is a workload set in the list.
type setLine struct {
	Definition string   `json:"definition"`
	Set        string   `json:"set"`
	Workloads  int      `json:"workloads"`
	UUIDs      []string `json:"uuids"`
}

func (a *app) datasetLs(o datasetOptions) error {
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	if s, err := a.Load(""); err == nil {
		o.first = s.Definition.Name
	}
	lines := []setLine{}
	err = o.eachSet(data, func(def *trace.Definition, set string, ws []*trace.Workload) error {
		l := setLine{Definition: def.Name, Set: set, Workloads: len(ws)}
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
				text := w.UUID + axesText(w)
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
		a.term.Note("embedded dataset; input files are generated in %s", data.Root())
	}
	return nil
}

// A shownDefinition is the result of dataset show.
type shownDefinition struct {
	Name        string          `json:"name"`
	OpType      string          `json:"op_type"`
	Description string          `json:"description"`
	Axes        []shownAxis     `json:"axes"`
	Inputs      []shownTensor   `json:"inputs"` // in calling order
	Outputs     []shownTensor   `json:"outputs"`
	Constraints []string        `json:"constraints"` // Python expressions over the axes
	Tolerance   event.Tolerance `json:"tolerance"`   // of the profile official
	Sets        []shownSet      `json:"sets"`
	Reference   string          `json:"reference"` // Python source

	// The functions that make the inputs and judge the outputs, as FILE::FUNCTION, instead of tolerance and reference.
	Functions map[string]string `json:"python,omitempty"`
}

type shownAxis struct {
	Name        string `json:"name"`
	Size        int    `json:"size,omitempty"` // 0 if each workload sets it
	Description string `json:"description"`
}

type shownTensor struct {
	Name        string   `json:"name"`
	DType       string   `json:"dtype"`
	Shape       []string `json:"shape"` // names of axes; null for a Python number
	Description string   `json:"description"`
}

// A shownSet is a workload set with the range of each axis that the workloads set.
type shownSet struct {
	Name      string                     `json:"name"`
	Workloads int                        `json:"workloads"`
	Axes      map[string]workloads.Range `json:"axes"`
}

// datasetShow prints the definition of that name, or the project's if name is "".
func (a *app) datasetShow(name string) error {
	if name == "" {
		s, err := a.Load("")
		if err != nil {
			return err
		}
		name = s.Definition.Name
	}
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	def, err := data.Definition(name)
	if err != nil {
		return usage.Invalid(err)
	}
	shown, err := showDefinition(data, def)
	if err != nil {
		return usage.Invalid(err)
	}
	return a.result(shown)
}

func showDefinition(data *workloads.Dataset, def *trace.Definition) (*shownDefinition, error) {
	profile, err := bench.NewProfile(config.Official, def)
	if err != nil {
		return nil, err
	}
	d := &shownDefinition{Name: def.Name, OpType: def.OpType, Description: optional(def.Description),
		Constraints: append([]string{}, def.Constraints...), Reference: def.Reference, Sets: []shownSet{},
		Tolerance: event.Tolerance(profile.Tolerance)}
	if f := def.Python; f != nil {
		d.Functions = map[string]string{"inputs": f.Inputs, "outputs": cmp.Or(f.Check, f.Expected)}
	}
	for name, axis := range def.Axes.All() {
		d.Axes = append(d.Axes, shownAxis{name, axis.Value, optional(axis.Description)})
	}
	d.Inputs, d.Outputs = showTensors(def.Inputs), showTensors(def.Outputs)
	sets, err := data.Sets(def.Name)
	if err != nil {
		return nil, err
	}
	for _, name := range sets {
		ws, err := data.Workloads(def.Name, name)
		if err != nil {
			return nil, err
		}
		d.Sets = append(d.Sets, shownSet{name, len(ws), workloads.Ranges(ws)})
	}
	return d, nil
}

func showTensors(specs trace.Map[trace.TensorSpec]) (list []shownTensor) {
	for name, spec := range specs.All() {
		t := shownTensor{Name: name, DType: cmp.Or(spec.Foreign, spec.DType.String()),
			Description: optional(spec.Description)}
		if !spec.Scalar {
			t.Shape = append([]string{}, spec.Shape...)
		}
		list = append(list, t)
	}
	return list
}

// optional returns *s, or "" if s is nil.
func optional(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Text returns a labelled block for each part, and the reference as it is.
func (d *shownDefinition) Text() string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s%s\n", label, plain.Line(strings.TrimRight(fmt.Sprintf(format, args...), " ")))
	}
	line("definition", "%s, op type %s", d.Name, d.OpType)
	if d.Description != "" {
		line("", "%s", d.Description)
	}
	block := func(label string, rows []string) {
		for _, row := range rows {
			line(label, "%s", row)
			label = ""
		}
	}
	var axes, sets []string
	for _, axis := range d.Axes {
		size := "var"
		if axis.Size > 0 {
			size = fmt.Sprint(axis.Size)
		}
		axes = append(axes, fmt.Sprintf("%-14s %-6s %s", axis.Name, size, axis.Description))
	}
	for _, set := range d.Sets {
		row := fmt.Sprintf("%-14s %s", set.Name, plain.Count(set.Workloads, "workload"))
		for _, axis := range d.Axes {
			if r, ok := set.Axes[axis.Name]; ok {
				row += fmt.Sprintf("  %s %v", axis.Name, r)
			}
		}
		sets = append(sets, row)
	}
	block("axes", axes)
	if d.Functions != nil {
		line("inputs", "made by %s", d.Functions["inputs"])
		line("outputs", "judged by %s", d.Functions["outputs"])
		block("sets", sets)
		return b.String()
	}
	block("inputs", tensorRows(d.Inputs))
	block("outputs", tensorRows(d.Outputs))
	block("constraints", d.Constraints)
	line("tolerance", "%s", ui.Tolerance(d.Tolerance))
	block("sets", sets)
	fmt.Fprintf(&b, "reference\n\n%s\n", plain.Lines(strings.TrimRight(d.Reference, "\n")))
	return b.String()
}

func tensorRows(tensors []shownTensor) (rows []string) {
	for _, t := range tensors {
		shape := "scalar"
		if t.Shape != nil {
			shape = "[" + strings.Join(t.Shape, ", ") + "]"
		}
		rows = append(rows, fmt.Sprintf("%-14s %-9s %s  %s", t.Name, t.DType, shape, t.Description))
	}
	return rows
}

// A verified is the result of dataset verify, for --json.
type verified struct {
	Workloads   int            `json:"workloads"`
	AbsentFiles int            `json:"absent_files"`
	Faults      []datasetFault `json:"faults"`
	MoreFaults  int            `json:"more_faults,omitempty"` // number of faults after the first maxFaults
}

const maxFaults = 1000

func (v *verified) add(f datasetFault) {
	if len(v.Faults) == maxFaults {
		v.MoreFaults++
		return
	}
	v.Faults = append(v.Faults, f)
}

// A datasetFault is a fault of a workload, or of a definition if Workload is "".
type datasetFault struct {
	Definition string `json:"definition"`
	Workload   string `json:"workload"`
	Text       string `json:"text"`
	Hint       string `json:"hint"`
}

// verify checks workloads and input files against their definitions, and the references of the definitions. unread is
// the reason why references were not checked.
func (o *datasetOptions) verify(ctx context.Context, data *workloads.Dataset) (found verified, unread, err error) {
	found.Faults = []datasetFault{}
	seen := map[string]bool{}
	err = o.eachSet(data, func(def *trace.Definition, _ string, ws []*trace.Workload) error {
		seen[def.Name] = true
		reports, err := data.Verify(ctx, def, ws)
		if err != nil {
			return err
		}
		for _, r := range reports {
			found.Workloads++
			found.AbsentFiles += r.Absent
			for _, f := range r.Faults {
				text, hint := usage.Explain(f)
				found.add(datasetFault{def.Name, r.UUID, text, hint})
			}
		}
		return nil
	})
	for _, name := range data.Definitions() {
		if err != nil || unread != nil {
			break
		}
		if !seen[name] && (o.set != "" || o.definition != "" && name != o.definition) {
			continue
		}
		var faults []string
		var def *trace.Definition
		if def, err = data.Definition(name); err == nil {
			faults, unread = preflight.Definition(ctx, def)
		}
		for _, text := range faults {
			found.add(datasetFault{Definition: name, Text: text})
		}
	}
	return found, unread, err
}

func (a *app) datasetVerify(ctx context.Context, o datasetOptions) error {
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	found, unread, err := o.verify(ctx, data)
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
		a.term.Note("references were not checked: %v", unread)
	}
	if n := found.AbsentFiles; n > 0 {
		a.term.Note("%s not generated yet; fisub local does that when needed, fisub dataset synth now",
			plain.Count(n, "input file"))
	}
	if len(found.Faults) > 0 {
		return shown(exitUsage)
	}
	return nil
}

// A synthesis is the result of dataset synth, for --json.
type synthesis struct {
	Files  int    `json:"files"`
	Folder string `json:"folder"`
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
	made := synthesis{Folder: dest}
	err = o.eachSet(data, func(def *trace.Definition, set string, ws []*trace.Workload) error {
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

// An imported is the result of dataset import.
type imported struct {
	Folder string `json:"folder"` // the dataset
	*workloads.Imported
}

// Text returns one line for each note and a total.
func (i *imported) Text() string {
	var b strings.Builder
	for _, n := range i.Notes {
		fmt.Fprintf(&b, "%s: %s", plain.Line(n.File), plain.Line(n.Text))
		if n.Workloads > 0 {
			fmt.Fprintf(&b, " (%s)", plain.Count(n.Workloads, "workload"))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s and %s in %s\n", plain.Count(i.Definitions, "definition"),
		plain.Count(i.Workloads, "workload"), plain.Line(i.Folder))
	return b.String()
}

// datasetImport imports the definitions and workloads of the folder or file src into the dataset in the folder out.
func (a *app) datasetImport(ctx context.Context, src, out string) error {
	found, err := workloads.Import(a.Path(src), a.Path(out), workloads.Python(preflight.Python(ctx)))
	if err != nil {
		return usage.Invalid(err)
	}
	err = a.result(&imported{out, found})
	if found.Definitions == 0 {
		err = errors.Join(err, usage.Errorf("a definition is a .json file with axes, inputs and outputs",
			"%s: no definition to import", src))
	}
	return err
}

// eachSet calls do for each workload set that o selects.
func (o *datasetOptions) eachSet(data *workloads.Dataset,
	do func(def *trace.Definition, set string, ws []*trace.Workload) error) error {
	names := data.Definitions()
	if o.definition != "" {
		names = []string{o.definition}
	} else if i := slices.Index(names, o.first); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, o.first)
	}
	found := false
	for _, name := range names {
		def, err := data.Definition(name)
		if err != nil {
			return usage.Invalid(err)
		}
		sets, err := data.Sets(name)
		if err != nil {
			return usage.Invalid(err)
		}
		for _, set := range sets {
			if o.set != "" && !workloads.SameSet(o.set, set) {
				continue
			}
			found = true
			ws, err := data.Workloads(name, set)
			if err != nil {
				return usage.Invalid(err)
			}
			if err := do(def, set, ws); err != nil {
				return err
			}
		}
	}
	if !found && o.set != "" {
		return usage.Errorf("fisub dataset ls lists the workload sets", "--set %s: no such workload set", o.set)
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
