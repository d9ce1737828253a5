package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench/pyworker"
	"fisub/device"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/project/preflight/source"
	"fisub/workloads"
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

const (
	pythonLimit = 20 * time.Second // for one script
	maxFacts    = 64 << 20         // the most bytes it may print
)

// python runs scripts in the first of pyworker's interpreters that accepts them, without the user's packages and
// settings.
func python(ctx context.Context, limit time.Duration) source.Python {
	return func(script string, stdin []byte) ([]byte, error) {
		err := errors.New("needs python3")
		for i, path := range pyworker.Pythons() {
			out, failed := runScript(ctx, limit, path, script, stdin)
			if failed == nil {
				return out, nil
			}
			if i == 0 {
				err = fmt.Errorf("%s: %w", path, failed)
			}
		}
		return nil, err
	}
}

// Python returns a function that runs scripts in the interpreter that the checks use.
func Python(ctx context.Context) source.Python { return python(ctx, pythonLimit) }

func runScript(ctx context.Context, limit time.Duration, path, script string, stdin []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, complaint := &plain.Buffer{Limit: maxFacts}, &plain.Buffer{Limit: maxFacts}
	cmd := device.Command(ctx, path, "-I", "-S", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), out, complaint
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("timeout after %v", limit)
	case err != nil:
		lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
		return nil, fmt.Errorf("%w: %.200s", err, lines[len(lines)-1])
	case out.Over():
		return nil, fmt.Errorf("more than %d bytes", maxFacts)
	}
	return out.Bytes(), nil
}

// Definition returns the faults of a definition: no outputs, an op type that cannot name a folder, and a reference or
// constraints that are not valid Python. The error says why the Python was not checked.
func Definition(ctx context.Context, def *trace.Definition) (faults []string, err error) {
	if def.Outputs.Len() == 0 {
		faults = append(faults, "the definition has no outputs")
	}
	if !workloads.IsFile(def.OpType) {
		faults = append(faults, fmt.Sprintf("op_type %q cannot be a folder name", def.OpType))
	}
	more, err := source.Definition(def, python(ctx, pythonLimit))
	return append(faults, more...), err
}
