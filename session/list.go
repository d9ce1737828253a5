package session

import (
	"context"

	"fisub/explain"
	"fisub/internal/trace"
	"fisub/preflight"
	"fisub/workloads"
)

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
