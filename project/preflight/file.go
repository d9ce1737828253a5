package preflight

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/project/preflight/source"
)

// File checks a file of a dataset by the rules of its format, which it detects by the keys. what describes the content.
// A reference is checked only if a Python is available.
func File(ctx context.Context, file string) (what string, warnings []trace.Warning, err error) {
	switch filepath.Ext(file) {
	case ".jsonl":
		traces, warnings, err := trace.ReadTraces(file)
		n := 0
		for _, t := range traces {
			if t.Evaluation != nil {
				n++
			}
		}
		return fmt.Sprintf("file of %d traces, %d of them evaluated", len(traces), n), warnings, err
	case ".json":
		data, err := plain.ReadFile(file, trace.MaxBytes)
		if err != nil {
			return "", nil, err
		}
		keys, err := trace.Keys(file, data)
		if err != nil {
			return "", nil, err
		}
		has := func(key string) bool { return slices.Contains(keys, key) }
		switch {
		case has("sources"), has("spec"):
			sol, warnings, err := trace.ReadSolution(file)
			if err != nil {
				return "", warnings, err
			}
			if err := sol.CheckNames(); err != nil {
				return "", warnings, fmt.Errorf("%s: %w", file, err)
			}
			var faults []error
			for _, f := range source.Includes(sol, nil) {
				faults = append(faults, fmt.Errorf("%s: %v", file, f))
			}
			if err := errors.Join(faults...); err != nil {
				return "", warnings, err
			}
			return "solution " + sol.Name + ", hash " + sol.Hash(), warnings, nil
		case has("uuid"):
			w, warnings, err := trace.ReadWorkload(file)
			if err != nil {
				return "", warnings, err
			}
			return "workload " + w.UUID, warnings, nil
		case has("workload"), has("evaluation"):
			_, warnings, err := trace.ReadTrace(file)
			return "trace", warnings, err
		}
		def, warnings, err := trace.ReadDefinition(file)
		if err != nil {
			return "", warnings, err
		}
		faults, err := Definition(ctx, def)
		if err != nil && len(faults) == 0 {
			return fmt.Sprintf("definition %s; its reference was not checked: %v", def.Name, err), warnings, nil
		}
		for i, text := range faults {
			faults[i] = file + ": " + text
		}
		if len(faults) > 0 {
			return "", warnings, errors.New(strings.Join(faults, "\n"))
		}
		return "definition " + def.Name, warnings, nil
	}
	return "", nil, fmt.Errorf("%s: not a .json or .jsonl file", file)
}
