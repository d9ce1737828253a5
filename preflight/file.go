package preflight

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"fisub/internal/plain"
	"fisub/internal/trace"
)

// File checks a file of a dataset by the rules of its format, and says in words what it holds, which its keys tell.
func File(file string) (what string, warnings []trace.Warning, err error) {
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
		var keys map[string]json.RawMessage
		_ = json.Unmarshal(data, &keys) // a syntax error is found again below, with its place
		has := func(key string) bool { _, ok := keys[key]; return ok }
		switch {
		case has("sources"), has("spec"):
			sol, warnings, err := trace.ReadSolution(file)
			if err != nil {
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
		return "definition " + def.Name, warnings, nil
	}
	return "", nil, fmt.Errorf("%s: not a .json or .jsonl file", file)
}
