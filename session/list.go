package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"fisub/bench/runs"
	"fisub/explain"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/preflight"
	"fisub/workloads"
)

// A RunLine is a run in the list.
type RunLine struct {
	ID          string     `json:"id"`
	Started     *time.Time `json:"started,omitempty"`
	State       string     `json:"state"` // of runs.Run.State; "broken" where its files cannot be read
	Solution    string     `json:"solution,omitempty"`
	ContentHash string     `json:"content_hash,omitempty"`
	Definition  string     `json:"definition,omitempty"`
	Set         string     `json:"set,omitempty"`
	Device      string     `json:"device,omitempty"` // "cuda:0", "emu"
	GPU         string     `json:"gpu,omitempty"`    // its name
	Passed      int        `json:"passed"`
	Total       int        `json:"total"`
	MeanNS      float64    `json:"mean_ns,omitempty"`
}

// Runs lists the newest runs of the project, the newest first; a limit of 0 is all of them. Those that cannot be read
// are told.
func (p *Project) Runs(limit int, log Log) ([]RunLine, error) {
	root := p.Root()
	ids, err := runs.IDs(root)
	if err != nil {
		return nil, err
	}
	slices.Reverse(ids)
	if limit > 0 {
		ids = ids[:min(len(ids), limit)]
	}
	lines := []RunLine{}
	for _, id := range ids {
		r, err := runs.Read(filepath.Join(root, runs.Dir, id))
		if err != nil && !errors.Is(err, runs.ErrEmpty) {
			log.Warn(plain.Line(err.Error()), "")
			lines = append(lines, RunLine{ID: id, State: "broken"})
			continue
		}
		line := RunLine{ID: id, State: r.State(), MeanNS: r.Official()}
		line.Passed, line.Total = r.Passed()
		if f := r.Run; f != nil {
			line.Started, line.Solution, line.ContentHash, line.Definition, line.Set = &f.Started, f.Solution, f.ContentHash,
				f.Definition, f.Set
			line.Device, line.GPU = f.Device.Kind, f.Device.Name
			if !f.Device.Emulated {
				line.Device = fmt.Sprintf("%s:%d", f.Device.Kind, f.Device.Ordinal)
			}
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// A Verified is what Verify found.
type Verified struct {
	Workloads   int            `json:"workloads"`
	AbsentFiles int            `json:"absent_files"`
	Faults      []DatasetFault `json:"faults"`
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
		reports, err := data.Verify(ctx, def, ws)
		if err != nil {
			return err
		}
		if !seen[def.Name] && unread == nil {
			seen[def.Name] = true
			var faults []string
			faults, unread = preflight.Definition(ctx, def)
			for _, text := range faults {
				found.Faults = append(found.Faults, DatasetFault{Definition: def.Name, Text: text})
			}
		}
		for _, r := range reports {
			found.Workloads++
			found.AbsentFiles += r.Absent
			for _, f := range r.Faults {
				text, hint := explain.Error(f)
				found.Faults = append(found.Faults, DatasetFault{def.Name, r.UUID, text, hint})
			}
		}
		return nil
	})
	return found, unread, err
}
