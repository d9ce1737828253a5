package trace

import (
	"math"
	"strconv"
)

// A Form is a way to lay out JSON. All forms keep the models' field order, write non-ASCII characters as they are, and
// end without a newline.
type Form uint8

const (
	Compact     Form = iota // no spaces, all fields: lines of workloads and traces files
	Indent                  // two spaces, all fields: solution.json
	IndentUnset             // two spaces, without fields that the decoded document lacked and that still have their default
)

// decoded marks a fieldSet that decoding made. Values made in Go have no marks, and all their fields count as set.
const decoded fieldSet = 1 << 15

// JSON writes the definition.
func (d *Definition) JSON(form Form) []byte { return encode(form, d, (*encoder).definition) }

// JSON writes the workload. A scalar input that is not finite becomes null, which cannot be read back.
func (w *Workload) JSON(form Form) []byte { return encode(form, w, (*encoder).workload) }

// JSON writes the solution.
func (s *Solution) JSON(form Form) []byte { return encode(form, s, (*encoder).solution) }

// JSON writes the trace. Of numbers that are not finite, the errors of a correctness become "NaN" and "Infinity", all
// others null.
func (t *Trace) JSON(form Form) []byte { return encode(form, t, (*encoder).trace) }

// An encoder writes JSON as pydantic does.
type encoder struct {
	buf   []byte
	form  Form
	depth int
	empty bool // nothing was written since the last opening bracket
}

func encode[T any](form Form, v *T, write func(*encoder, *T)) []byte {
	e := &encoder{form: form}
	write(e, v)
	return e.buf
}

func (e *encoder) open(bracket byte) {
	e.buf = append(e.buf, bracket)
	e.depth++
	e.empty = true
}

func (e *encoder) close(bracket byte) {
	e.depth--
	if !e.empty {
		e.newline()
	}
	e.buf = append(e.buf, bracket)
	e.empty = false
}

func (e *encoder) newline() {
	if e.form == Compact {
		return
	}
	e.buf = append(e.buf, '\n')
	for range e.depth {
		e.buf = append(e.buf, "  "...)
	}
}

// item starts an element of an array, or a key of an object.
func (e *encoder) item() {
	if !e.empty {
		e.buf = append(e.buf, ',')
	}
	e.newline()
	e.empty = false
}

func (e *encoder) key(name string) {
	e.item()
	e.buf = appendString(e.buf, name)
	e.buf = append(e.buf, ':')
	if e.form != Compact {
		e.buf = append(e.buf, ' ')
	}
}

// object writes the fields of a model, in the order in which the model declares them.
func (e *encoder) object(set fieldSet, fields ...field) {
	e.open('{')
	for i, f := range fields {
		if e.form == IndentUnset && f.isDefault && set&decoded != 0 && set&(1<<i) == 0 {
			continue
		}
		e.key(f.name)
		f.write()
	}
	e.close('}')
}

type field struct {
	name      string
	isDefault bool // the field may be left out: its value is the default
	write     func()
}

// write forms of the basic types, for field.

func (e *encoder) str(s string) func() { return func() { e.buf = appendString(e.buf, s) } }

func (e *encoder) optString(s *string) func() {
	if s == nil {
		return e.word("null")
	}
	return e.str(*s)
}

func (e *encoder) word(w string) func() { return func() { e.buf = append(e.buf, w...) } }

func (e *encoder) int(n int64) func() { return func() { e.buf = strconv.AppendInt(e.buf, n, 10) } }

func (e *encoder) bool(b bool) func() { return func() { e.buf = strconv.AppendBool(e.buf, b) } }

// float writes f; where it is not finite, as text if named, else as null.
func (e *encoder) float(f float64, named bool) func() {
	switch {
	case math.IsNaN(f) && named:
		return e.str("NaN")
	case math.IsInf(f, 1) && named:
		return e.str("Infinity")
	case math.IsInf(f, -1) && named:
		return e.str("-Infinity")
	case math.IsNaN(f) || math.IsInf(f, 0):
		return e.word("null")
	}
	return func() { e.buf = appendFloat(e.buf, f) }
}

func writeList[T any](e *encoder, items []T, item func(*T)) func() {
	return func() {
		e.open('[')
		for i := range items {
			e.item()
			item(&items[i])
		}
		e.close(']')
	}
}

func (e *encoder) strings(items []string) func() {
	return writeList(e, items, func(s *string) { e.buf = appendString(e.buf, *s) })
}

func writeMap[T any](e *encoder, m *Map[T], item func(*T)) func() {
	return func() {
		e.open('{')
		for k, v := range m.All() {
			e.key(k)
			item(&v)
		}
		e.close('}')
	}
}

func (e *encoder) definition(d *Definition) {
	e.object(d.set,
		field{"name", false, e.str(d.Name)},
		field{"op_type", false, e.str(d.OpType)},
		field{"axes", false, writeMap(e, &d.Axes, e.axis)},
		field{"inputs", false, writeMap(e, &d.Inputs, e.tensorSpec)},
		field{"outputs", false, writeMap(e, &d.Outputs, e.tensorSpec)},
		field{"reference", false, e.str(d.Reference)},
		field{"tags", len(d.Tags) == 0, e.strings(d.Tags)},
		field{"description", d.Description == nil, e.optString(d.Description)},
		field{"constraints", len(d.Constraints) == 0, e.strings(d.Constraints)})
}

func (e *encoder) axis(a *Axis) {
	description := field{"description", a.Description == nil, e.optString(a.Description)}
	if a.Const {
		e.object(a.set, field{"type", true, e.str("const")}, field{"value", false, e.int(int64(a.Value))}, description)
		return
	}
	e.object(a.set, field{"type", true, e.str("var")}, description)
}

func (e *encoder) tensorSpec(t *TensorSpec) {
	shape := e.strings(t.Shape)
	if t.Scalar {
		shape = e.word("null")
	}
	e.object(t.set,
		field{"shape", false, shape},
		field{"dtype", false, e.str(t.DType.String())},
		field{"description", t.Description == nil, e.optString(t.Description)})
}

func (e *encoder) workload(w *Workload) {
	e.object(w.set,
		field{"axes", false, writeMap(e, &w.Axes, func(n *int) { e.int(int64(*n))() })},
		field{"inputs", false, writeMap(e, &w.Inputs, e.inputSpec)},
		field{"uuid", false, e.str(w.UUID)})
}

func (e *encoder) inputSpec(s *InputSpec) {
	kind := field{"type", true, e.str(s.Kind.String())}
	switch s.Kind {
	case Safetensors:
		e.object(s.set, kind, field{"path", false, e.str(s.Path)}, field{"tensor_key", false, e.str(s.TensorKey)})
	case ScalarInput:
		e.object(s.set, kind, field{"value", false, e.scalar(s.Value)})
	default:
		e.object(s.set, kind)
	}
}

func (e *encoder) scalar(s Scalar) func() {
	switch s.Kind {
	case IntScalar:
		return e.int(s.Int)
	case BoolScalar:
		return e.bool(s.Bool)
	}
	return e.float(s.Float, false)
}

func (e *encoder) solution(s *Solution) {
	e.object(s.set,
		field{"name", false, e.str(s.Name)},
		field{"definition", false, e.str(s.Definition)},
		field{"author", false, e.str(s.Author)},
		field{"spec", false, func() { e.buildSpec(&s.Spec) }},
		field{"sources", false, writeList(e, s.Sources, e.sourceFile)},
		field{"description", s.Description == nil, e.optString(s.Description)})
}

func (e *encoder) buildSpec(b *BuildSpec) {
	binding := e.str(b.Binding)
	if b.Binding == "" {
		binding = e.word("null")
	}
	e.object(b.set,
		field{"language", false, e.str(string(b.Language))},
		field{"target_hardware", false, e.strings(b.TargetHardware)},
		field{"entry_point", false, e.str(b.EntryPoint)},
		field{"dependencies", len(b.Dependencies) == 0, e.strings(b.Dependencies)},
		field{"destination_passing_style", b.DestinationPassingStyle, e.bool(b.DestinationPassingStyle)},
		field{"binding", b.Binding == "", binding})
}

func (e *encoder) sourceFile(s *SourceFile) {
	e.object(s.set, field{"path", false, e.str(s.Path)}, field{"content", false, e.str(s.Content)})
}

func (e *encoder) trace(t *Trace) {
	evaluation := e.word("null")
	if t.Evaluation != nil {
		evaluation = func() { e.evaluation(t.Evaluation) }
	}
	e.object(t.set,
		field{"definition", false, e.str(t.Definition)},
		field{"workload", false, func() { e.workload(&t.Workload) }},
		field{"solution", t.Solution == nil, e.optString(t.Solution)},
		field{"evaluation", t.Evaluation == nil, evaluation})
}

func (e *encoder) evaluation(v *Evaluation) {
	correctness, performance := e.word("null"), e.word("null")
	if v.Correctness != nil {
		correctness = func() { e.correctness(v.Correctness) }
	}
	if v.Performance != nil {
		performance = func() { e.performance(v.Performance) }
	}
	e.object(v.set,
		field{"status", false, e.str(string(v.Status))},
		field{"environment", false, func() { e.environment(&v.Environment) }},
		field{"timestamp", false, e.str(v.Timestamp)},
		field{"log", v.Log == "", e.str(v.Log)},
		field{"correctness", v.Correctness == nil, correctness},
		field{"performance", v.Performance == nil, performance})
}

func (e *encoder) environment(v *Environment) {
	e.object(v.set,
		field{"hardware", false, e.str(v.Hardware)},
		field{"libs", v.Libs.Len() == 0, writeMap(e, &v.Libs, func(s *string) { e.str(*s)() })})
}

func (e *encoder) correctness(c *Correctness) {
	extra := e.word("null")
	if c.Extra != nil {
		extra = func() { e.any(c.Extra) }
	}
	e.object(c.set,
		field{"max_relative_error", c.MaxRelativeError == 0, e.float(c.MaxRelativeError, true)},
		field{"max_absolute_error", c.MaxAbsoluteError == 0, e.float(c.MaxAbsoluteError, true)},
		field{"extra", c.Extra == nil, extra})
}

func (e *encoder) performance(p *Performance) {
	e.object(p.set,
		field{"latency_ms", p.LatencyMS == 0, e.float(p.LatencyMS, false)},
		field{"reference_latency_ms", p.ReferenceLatencyMS == 0, e.float(p.ReferenceLatencyMS, false)},
		field{"speedup_factor", p.SpeedupFactor == 0, e.float(p.SpeedupFactor, false)})
}

// any writes what decoding gives; further number types and plain slices for values made in Go. It panics on others.
func (e *encoder) any(v any) {
	switch v := v.(type) {
	case nil:
		e.word("null")()
	case bool:
		e.bool(v)()
	case int:
		e.int(int64(v))()
	case int64:
		e.int(v)()
	case BigInt:
		e.word(string(v))()
	case float64:
		e.float(v, false)()
	case string:
		e.str(v)()
	case []any:
		writeList(e, v, func(item *any) { e.any(*item) })()
	case []float64:
		writeList(e, v, func(f *float64) { e.float(*f, false)() })()
	case *Map[any]:
		writeMap(e, v, func(item *any) { e.any(*item) })()
	default:
		panic("trace: extra holds a value of no JSON type")
	}
}

// appendString appends s as a JSON string in the format's spelling: only quotes, backslashes and control characters are
// escaped.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, `\u00`...)
			dst = append(dst, hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendFloat appends a finite float in the format's spelling: the shortest digits that read back as f, plain from 1e-5
// up to 1e16, and always recognisable as a float.
func appendFloat(dst []byte, f float64) []byte {
	if abs := math.Abs(f); abs == 0 || 1e-5 <= abs && abs < 1e16 {
		start := len(dst)
		dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
		for _, c := range dst[start:] {
			if c == '.' {
				return dst
			}
		}
		return append(dst, ".0"...)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go writes at least two digits of exponent.
	if n := len(dst); n-start >= 4 && dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}
