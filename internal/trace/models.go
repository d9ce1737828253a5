package trace

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// DecodeDefinition decodes a definition. Its error is a *ValidationError and does not suppress the warnings.
func DecodeDefinition(data []byte) (*Definition, []Warning, error) {
	return decode[Definition](data, "Definition")
}

// DecodeWorkload decodes a workload, the value of a trace's key "workload". Its error is a *ValidationError.
func DecodeWorkload(data []byte) (*Workload, []Warning, error) {
	return decode[Workload](data, "Workload")
}

// DecodeSolution decodes a solution. Its error is a *ValidationError.
func DecodeSolution(data []byte) (*Solution, []Warning, error) {
	return decode[Solution](data, "Solution")
}

// DecodeTrace decodes a trace: one line of a workloads or traces file. Its error is a *ValidationError.
func DecodeTrace(data []byte) (*Trace, []Warning, error) {
	return decode[Trace](data, "Trace")
}

// UnmarshalJSON decodes a trace like DecodeTrace.
func (t *Trace) UnmarshalJSON(data []byte) error {
	read, _, err := DecodeTrace(data)
	if err == nil {
		*t = *read
	}
	return err
}

// Validate applies the rules of DecodeSolution to a solution made in Go. Its error is a *ValidationError without
// positions.
func (s *Solution) Validate() error {
	data, err := marshal(s, Compact)
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		fault := Fault{Msg: "Input should be a valid string, unable to parse raw data as a unicode string"}
		for token := range syntax.JSONPointer.Tokens() {
			fault.Loc = append(fault.Loc, token)
		}
		return &ValidationError{Model: "Solution", Faults: []Fault{fault}}
	}
	if err == nil {
		_, _, err = DecodeSolution(data)
	}
	if invalid, ok := errors.AsType[*ValidationError](err); ok {
		for i := range invalid.Faults {
			invalid.Faults[i].Line, invalid.Faults[i].Col = 0, 0
		}
	}
	return err
}

// definesRun matches every Python source with a top-level function run, and some others.
var definesRun = regexp.MustCompile(`(?:^|[\r\n\f])\x{feff}?def[ \t\f]+run[ \t\f]*[(\[]`)

func (d *Definition) check() (fault string, at []any) {
	if d.Python != nil {
		return d.Python.check()
	}
	if !definesRun.MatchString(strings.ReplaceAll(d.Reference, "\\\n", "")) {
		return "Reference must define a top-level function named 'run'", []any{"reference"}
	}
	for name := range d.Outputs.All() {
		if _, ok := d.Inputs.Get(name); ok {
			return "Input and output names must not overlap", []any{"outputs"}
		}
	}
	for name, spec := range d.Inputs.All() {
		if axis, ok := d.undefinedAxis(spec); ok {
			return fmt.Sprintf(`Input "%s" references undefined axis "%s"`, name, axis), []any{"inputs"}
		}
	}
	for name, spec := range d.Outputs.All() {
		if axis, ok := d.undefinedAxis(spec); ok {
			return fmt.Sprintf(`Output "%s" references undefined axis "%s"`, name, axis), []any{"outputs"}
		}
	}
	return "", nil
}

func (p *Functions) check() (fault string, at []any) {
	for _, f := range []struct{ key, name string }{
		{"inputs", p.Inputs}, {"check", p.Check}, {"expected", p.Expected}, {"init", p.Init}, {"cases", p.Cases},
	} {
		file, _, ok := strings.Cut(f.name, "::")
		if _, known := p.Files.Get(file); f.name != "" && (!ok || !known) {
			return "want FILE::FUNCTION with a file of python.files", []any{"python", f.key}
		}
	}
	if (p.Check == "") == (p.Expected == "") {
		return "want either check or expected", []any{"python"}
	}
	return "", nil
}

func (d *Definition) undefinedAxis(spec TensorSpec) (axis string, found bool) {
	i := slices.IndexFunc(spec.Shape, func(axis string) bool {
		_, ok := d.Axes.Get(axis)
		return !ok
	})
	if i < 0 {
		return "", false
	}
	return spec.Shape[i], true
}

func (s *Solution) check() (fault string, at []any) {
	seen := make(map[string]bool)
	for i, src := range s.Sources {
		if seen[src.Path] {
			return fmt.Sprintf("Duplicate source path '%s'", src.Path), []any{"sources", i}
		}
		seen[src.Path] = true
	}
	if file, _ := s.Entry(); !seen[file] {
		return fmt.Sprintf("Entry source file '%s' not found in sources", file), []any{"spec", "entry_point"}
	}
	paths := make([]string, len(s.Sources))
	for i, src := range s.Sources {
		paths[i] = src.Path
	}
	if fault, i := unwritable(paths); fault != "" { // the format's library accepts it, the builders do not
		return fault, []any{"sources", i, "path"}
	}
	return "", nil
}

func (b *BuildSpec) check() (fault string, at []any) {
	if strings.Count(b.EntryPoint, "::") != 1 {
		fault = fmt.Sprintf(`Invalid entry point format: %s. Expected "<file_path>::<function_name>".`, b.EntryPoint)
	}
	return fault, []any{"entry_point"}
}

func (s *SourceFile) check() (fault string, at []any) {
	switch {
	case strings.HasPrefix(s.Path, "/"):
		fault = "Invalid source path (absolute path not allowed): " + s.Path
	case slices.Contains(strings.Split(s.Path, "/"), ".."):
		fault = "Invalid source path (parent directory traversal not allowed): " + s.Path
	}
	return fault, []any{"path"}
}

func (e *Evaluation) check() (fault string, at []any) {
	for _, part := range []struct {
		name      string
		has, want bool
	}{
		{"correctness", e.Correctness != nil, e.Status == Passed || e.Status == IncorrectNumerical},
		{"performance", e.Performance != nil, e.Status == Passed},
	} {
		verb := "must include"
		if part.has {
			verb = "must not include"
		}
		if part.has != part.want {
			text := fmt.Sprintf("Evaluation %s %s when status is EvaluationStatus.%s", verb, part.name, e.Status)
			return text, []any{part.name}
		}
	}
	return "", nil
}
