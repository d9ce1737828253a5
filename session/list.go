package session

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"fisub/explain"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/preflight"
	"fisub/workloads"
)

// A Verified is what Verify found.
type Verified struct {
	Workloads   int            `json:"workloads"`
	AbsentFiles int            `json:"absent_files"`
	Faults      []DatasetFault `json:"faults"`
	MoreFaults  int            `json:"more_faults,omitempty"` // number of faults after the first maxFaults
}

const maxFaults = 1000

func (v *Verified) add(f DatasetFault) {
	if len(v.Faults) == maxFaults {
		v.MoreFaults++
		return
	}
	v.Faults = append(v.Faults, f)
}

// A DatasetFault is one of a workload, or of a definition where Workload is "".
type DatasetFault struct {
	Definition string `json:"definition"`
	Workload   string `json:"workload"`
	Text       string `json:"text"`
	Hint       string `json:"hint"`
}

// Verify checks workloads and input files against their definitions, of those and in the sets that EachSet goes
// through. unread says why references were not looked at.
func Verify(ctx context.Context, data *workloads.Dataset, definition, set string) (found Verified, unread, err error) {
	found.Faults = []DatasetFault{}
	seen := map[string]bool{}
	err = EachSet(data, definition, set, func(def *trace.Definition, _ string, ws []*trace.Workload) error {
		seen[def.Name] = true
		reports, err := data.Verify(ctx, def, ws)
		if err != nil {
			return err
		}
		for _, r := range reports {
			found.Workloads++
			found.AbsentFiles += r.Absent
			for _, f := range r.Faults {
				text, hint := explain.Error(f)
				found.add(DatasetFault{def.Name, r.UUID, text, hint})
			}
		}
		return nil
	})
	for _, name := range data.Definitions() {
		if err != nil || unread != nil {
			break
		}
		if !seen[name] && (set != "" || definition != "" && name != definition) {
			continue
		}
		var faults []string
		var def *trace.Definition
		if def, err = data.Definition(name); err == nil {
			faults, unread = preflight.Definition(ctx, def)
		}
		for _, text := range faults {
			found.add(DatasetFault{Definition: name, Text: text})
		}
	}
	return found, unread, err
}

// A SetLine is a workload set in the list.
type SetLine struct {
	Definition string   `json:"definition"`
	Set        string   `json:"set"`
	Workloads  int      `json:"workloads"`
	UUIDs      []string `json:"uuids"`
}

// An Import is what was taken into a dataset.
type Import struct {
	Folder string `json:"folder"` // the dataset
	*workloads.Imported
	from string
}

// Import takes the definitions and workloads of the folder or file src into the dataset in the folder out, "trace"
// where that is "".
func (p *Project) Import(ctx context.Context, src, out string) (*Import, error) {
	i := &Import{from: src, Folder: cmp.Or(out, "trace")}
	found, err := workloads.Import(p.Path(src), p.Path(i.Folder), workloads.Python(preflight.Python(ctx)))
	i.Imported = found
	return i, usage.Invalid(err)
}

// Text is a line for each note, and one for all.
func (i *Import) Text() string {
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

// Err is an error where there is no definition.
func (i *Import) Err() error {
	if i.Definitions > 0 {
		return nil
	}
	return usage.Errorf("a definition is a .json file with axes, inputs and outputs", "%s: no definition to import",
		i.from)
}

// A Synthesis is what was made of a dataset's input files.
type Synthesis struct {
	Files  int    `json:"files"`
	Folder string `json:"folder"`
}
