package trace

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fisub/internal/tensor"
	"fisub/internal/trace/pysyntax"
)

// DecodeDefinition reads a definition. Its error is a *ValidationError; warnings are returned with it as well.
func DecodeDefinition(data []byte) (*Definition, []Warning, error) {
	return decode(data, false, "Definition", (*decoder).definition)
}

// DecodeWorkload reads a workload: what the workload key of a trace holds. Its error is a *ValidationError.
func DecodeWorkload(data []byte) (*Workload, []Warning, error) {
	return decode(data, false, "Workload", (*decoder).workload)
}

// DecodeSolution reads a solution. Its error is a *ValidationError.
func DecodeSolution(data []byte) (*Solution, []Warning, error) {
	return decode(data, false, "Solution", (*decoder).solution)
}

// DecodeTrace reads a trace: one line of a workloads or traces file. Its error is a *ValidationError.
func DecodeTrace(data []byte) (*Trace, []Warning, error) {
	return decode(data, false, "Trace", (*decoder).trace)
}

// Validate checks a definition made in Go by the rules of DecodeDefinition. Its error is a *ValidationError.
func (d *Definition) Validate() error {
	_, _, err := decode(d.JSON(Compact), true, "Definition", (*decoder).definition)
	return err
}

// Validate checks a workload made in Go by the rules of DecodeWorkload. Its error is a *ValidationError.
func (w *Workload) Validate() error {
	_, _, err := decode(w.JSON(Compact), true, "Workload", (*decoder).workload)
	return err
}

// Validate checks a solution made in Go by the rules of DecodeSolution. Its error is a *ValidationError.
func (s *Solution) Validate() error {
	_, _, err := decode(s.JSON(Compact), true, "Solution", (*decoder).solution)
	return err
}

// Validate checks a trace made in Go by the rules of DecodeTrace, and that it can be read back: a performance or a
// scalar input that is not finite cannot. Its error is a *ValidationError.
func (t *Trace) Validate() error {
	_, _, err := decode(t.JSON(Compact), true, "Trace", (*decoder).trace)
	return err
}

func (d *decoder) definition(def *Definition) read {
	return func(v *value) {
		r := d.record(v, &def.set)
		r.required("name", d.nonEmpty(&def.Name))
		r.required("op_type", d.nonEmpty(&def.OpType))
		r.required("axes", mapping(d, &def.Axes, false, d.axis))
		r.required("inputs", mapping(d, &def.Inputs, false, d.tensorSpec))
		r.required("outputs", mapping(d, &def.Outputs, false, d.tensorSpec))
		r.required("reference", d.nonEmpty(&def.Reference))
		r.optional("tags", list(d, &def.Tags, false, d.nonEmpty))
		r.optional("description", nullable(&def.Description, d.str))
		r.optional("constraints", list(d, &def.Constraints, false, d.nonEmpty))
		if !r.end() {
			return
		}
		if field, err := def.check(); err != "" {
			d.ruleFault(r.pos(field), err)
		}
	}
}

// check applies the rules across fields and returns the first that fails, "" where all hold, and the field at fault.
func (d *Definition) check() (field, fault string) {
	if err := pysyntax.Module(d.Reference); err != nil {
		return "reference", "Reference must be valid Python code: " + err.Error()
	}
	if !pysyntax.Defines(d.Reference, "run") {
		return "reference", "Reference must define a top-level function named 'run'"
	}
	for name := range d.Outputs.All() {
		if _, ok := d.Inputs.Get(name); ok {
			return "outputs", "Input and output names must not overlap"
		}
	}
	for _, c := range d.Constraints {
		if err := pysyntax.Expression(c); err != nil {
			return "constraints", "Constraints must be valid Python expressions: " + err.Error()
		}
	}
	for name, spec := range d.Inputs.All() {
		if axis, ok := d.undefinedAxis(spec); ok {
			return "inputs", fmt.Sprintf(`Input "%s" references undefined axis "%s"`, name, axis)
		}
	}
	for name, spec := range d.Outputs.All() {
		if axis, ok := d.undefinedAxis(spec); ok {
			return "outputs", fmt.Sprintf(`Output "%s" references undefined axis "%s"`, name, axis)
		}
	}
	return "", ""
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

func (d *decoder) axis(a *Axis) read {
	return union(d, a, func(a *Axis) fieldSet { return a.set },
		branch[Axis]{"AxisConst", func(a *Axis) read {
			return func(v *value) {
				a.Const = true
				r := d.record(v, &a.set)
				r.optional("type", d.literal("const"))
				r.required("value", d.nonNegativeInt(&a.Value))
				r.optional("description", nullable(&a.Description, d.str))
				r.end()
			}
		}},
		branch[Axis]{"AxisVar", func(a *Axis) read {
			return func(v *value) {
				r := d.record(v, &a.set)
				r.optional("type", d.literal("var"))
				r.optional("description", nullable(&a.Description, d.str))
				r.end()
			}
		}})
}

func (d *decoder) tensorSpec(t *TensorSpec) read {
	return func(v *value) {
		r := d.record(v, &t.set)
		r.required("shape", func(v *value) {
			if t.Scalar = v.kind == null; !t.Scalar {
				list(d, &t.Shape, false, d.nonEmpty)(v)
			}
		})
		r.required("dtype", d.dtype(&t.DType))
		r.optional("description", nullable(&t.Description, d.str))
		if r.end("optional") {
			if o := v.get("optional"); o != nil {
				t.Optional, _, _ = toBool(o)
			}
		}
	}
}

func (d *decoder) dtype(dst *tensor.DType) read {
	return func(v *value) {
		var names []string
		for _, t := range tensor.DTypes() {
			names = append(names, t.String())
		}
		var name string
		word(d, &name, "enum", names...)(v)
		*dst, _ = tensor.ParseDType(name)
	}
}

func (d *decoder) workload(w *Workload) read {
	return func(v *value) {
		r := d.record(v, &w.set)
		r.required("axes", mapping(d, &w.Axes, true, d.nonNegativeInt))
		r.required("inputs", mapping(d, &w.Inputs, true, d.inputSpec))
		r.required("uuid", d.nonEmpty(&w.UUID))
		r.end()
	}
}

func (d *decoder) inputSpec(s *InputSpec) read {
	return union(d, s, func(s *InputSpec) fieldSet { return s.set },
		branch[InputSpec]{"RandomInput", func(s *InputSpec) read {
			return func(v *value) {
				s.Kind = Random
				r := d.record(v, &s.set)
				r.optional("type", d.literal("random"))
				r.end()
			}
		}},
		branch[InputSpec]{"SafetensorsInput", func(s *InputSpec) read {
			return func(v *value) {
				s.Kind = Safetensors
				r := d.record(v, &s.set)
				r.optional("type", d.literal("safetensors"))
				r.required("path", d.nonEmpty(&s.Path))
				r.required("tensor_key", d.nonEmpty(&s.TensorKey))
				r.end()
			}
		}},
		branch[InputSpec]{"ScalarInput", func(s *InputSpec) read {
			return func(v *value) {
				s.Kind = ScalarInput
				r := d.record(v, &s.set)
				r.optional("type", d.literal("scalar"))
				r.required("value", d.scalar(&s.Value))
				r.end()
			}
		}})
}

func (d *decoder) solution(s *Solution) read {
	return func(v *value) {
		r := d.record(v, &s.set)
		r.required("name", d.nonEmpty(&s.Name))
		r.required("definition", d.nonEmpty(&s.Definition))
		r.required("author", d.nonEmpty(&s.Author))
		r.required("spec", d.buildSpec(&s.Spec))
		r.required("sources", list(d, &s.Sources, true, d.sourceFile))
		r.optional("description", nullable(&s.Description, d.str))
		if !r.end() {
			return
		}
		seen := make(map[string]bool)
		for i, src := range s.Sources {
			if seen[src.Path] {
				d.ruleFault(v.get("sources").items[i].pos, fmt.Sprintf("Duplicate source path '%s'", src.Path))
				return
			}
			seen[src.Path] = true
		}
		if file, _ := s.Entry(); !seen[file] {
			d.ruleFault(v.get("spec").get("entry_point").pos, fmt.Sprintf("Entry source file '%s' not found in sources", file))
		}
	}
}

func (d *decoder) buildSpec(b *BuildSpec) read {
	return func(v *value) {
		b.DestinationPassingStyle = true
		r := d.record(v, &b.set)
		r.required("language", word(d, &b.Language, "enum", Python, Triton, CPP, CUDA, TileLang))
		r.required("target_hardware", list(d, &b.TargetHardware, true, d.str))
		r.required("entry_point", d.nonEmpty(&b.EntryPoint))
		r.optional("dependencies", list(d, &b.Dependencies, false, d.nonEmpty))
		r.optional("destination_passing_style", d.boolean(&b.DestinationPassingStyle))
		r.optional("binding", func(v *value) {
			if v.kind != null {
				word(d, &b.Binding, "enum", "tvm-ffi", "torch")(v)
			}
		})
		if r.end() && strings.Count(b.EntryPoint, "::") != 1 {
			d.ruleFault(r.pos("entry_point"), fmt.Sprintf(
				`Invalid entry point format: %s. Expected "<file_path>::<function_name>".`, b.EntryPoint))
		}
	}
}

func (d *decoder) sourceFile(s *SourceFile) read {
	return func(v *value) {
		r := d.record(v, &s.set)
		r.required("path", d.nonEmpty(&s.Path))
		r.required("content", d.nonEmpty(&s.Content))
		if !r.end() {
			return
		}
		switch {
		case strings.HasPrefix(s.Path, "/"):
			d.ruleFault(r.pos("path"), "Invalid source path (absolute path not allowed): "+s.Path)
		case slices.Contains(strings.Split(s.Path, "/"), ".."):
			d.ruleFault(r.pos("path"), "Invalid source path (parent directory traversal not allowed): "+s.Path)
		}
	}
}

func (d *decoder) trace(t *Trace) read {
	return func(v *value) {
		r := d.record(v, &t.set)
		r.required("definition", d.nonEmpty(&t.Definition))
		r.required("workload", d.workload(&t.Workload))
		r.optional("solution", nullable(&t.Solution, d.str))
		r.optional("evaluation", nullable(&t.Evaluation, d.evaluation))
		r.end()
	}
}

func (d *decoder) evaluation(e *Evaluation) read {
	return func(v *value) {
		r := d.record(v, &e.set)
		r.required("status", word(d, &e.Status, "enum",
			Passed, IncorrectShape, IncorrectNumerical, IncorrectDType, RuntimeError, CompileError, Timeout))
		r.required("environment", d.environment(&e.Environment))
		r.required("timestamp", d.nonEmpty(&e.Timestamp))
		r.optional("log", d.str(&e.Log))
		r.optional("correctness", nullable(&e.Correctness, d.correctness))
		r.optional("performance", nullable(&e.Performance, d.performance))
		if !r.end() {
			return
		}
		check := func(name string, has, want bool) bool {
			if has == want {
				return true
			}
			verb := "must include"
			if has {
				verb = "must not include"
			}
			d.ruleFault(r.pos(name), fmt.Sprintf("Evaluation %s %s when status is EvaluationStatus.%s", verb, name, e.Status))
			return false
		}
		_ = check("correctness", e.Correctness != nil, e.Status == Passed || e.Status == IncorrectNumerical) &&
			check("performance", e.Performance != nil, e.Status == Passed)
	}
}

func (d *decoder) environment(e *Environment) read {
	return func(v *value) {
		r := d.record(v, &e.set)
		r.required("hardware", d.nonEmpty(&e.Hardware))
		r.optional("libs", mapping(d, &e.Libs, true, d.str))
		r.end()
	}
}

func (d *decoder) correctness(c *Correctness) read {
	return func(v *value) {
		r := d.record(v, &c.set)
		r.optional("max_relative_error", d.errorBound(&c.MaxRelativeError))
		r.optional("max_absolute_error", d.errorBound(&c.MaxAbsoluteError))
		r.optional("extra", nullable(&c.Extra, func(m *Map[any]) read { return mapping(d, m, true, d.any) }))
		r.end()
	}
}

func (d *decoder) errorBound(dst *float64) read {
	return func(v *value) {
		if d.float(dst)(v); *dst < 0 {
			d.ruleFault(v.pos, "must be non-negative or NaN")
		}
	}
}

func (d *decoder) performance(p *Performance) read {
	return func(v *value) {
		r := d.record(v, &p.set)
		r.optional("latency_ms", d.nonNegativeFloat(&p.LatencyMS))
		r.optional("reference_latency_ms", d.nonNegativeFloat(&p.ReferenceLatencyMS))
		r.optional("speedup_factor", d.nonNegativeFloat(&p.SpeedupFactor))
		r.end()
	}
}

func (d *decoder) nonNegativeFloat(dst *float64) read {
	return func(v *value) {
		if d.float(dst)(v); *dst < 0 || math.IsNaN(*dst) {
			d.fault(v.pos, "greater_than_equal", negative)
		}
	}
}
