package trace

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/tensor"
)

// maxFaults limits the reported faults, and the warnings, of one document.
const maxFaults = 1000

// A ValidationError lists the faults of a document's JSON, or else of its fields, in the order of the format's models.
// A model's rules across fields are checked only if all its fields are valid, and only the first violation is reported.
// Faults after the first 1000 are omitted.
type ValidationError struct {
	File   string // file name, may be ""
	Model  string // "Definition", "Workload", "Solution" or "Trace"
	Faults []Fault
}

// Advice returns the hint of the error.
func (e *ValidationError) Advice() string {
	if e.Model == "Solution" {
		return "fix that line, or write the file again with fisub pack"
	}
	return "fix that line, or fetch the dataset's file again"
}

// A Fault is one reason to reject a document.
type Fault struct {
	Loc       []any  // path of keys (string) and indices (int); empty for the whole document
	Msg       string // as the format's library words it, if it has the same rule
	Line, Col int    // position in the file, from 1, Col in bytes; 0 if not decoded from a file
}

// Error returns one line per fault: "solution.json:3:9: spec.language: Input should be ...".
func (e *ValidationError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = place(e.File, e.Model, f.Line, f.Col)
		if len(f.Loc) > 0 {
			lines[i] += locText(f.Loc) + ": "
		}
		lines[i] = plain.Line(lines[i] + f.Msg)
	}
	return strings.Join(lines, "\n")
}

// A Warning reports an unknown key. The format ignores it, and encoding drops it.
type Warning struct {
	File       string // file name, may be ""
	Model      string
	Loc        []any // path of the object that contains the key
	Key        string
	Suggestion string // the probably intended key, or ""
	Line, Col  int
}

// String returns one line: "solution.json:3:9: unknown key spec.bindings".
func (w Warning) String() string {
	loc := append(slices.Clone(w.Loc), w.Key)
	return plain.Line(place(w.File, w.Model, w.Line, w.Col) + "unknown key " + locText(loc))
}

func place(file, model string, line, col int) string {
	if file == "" {
		file = strings.ToLower(model)
	}
	if line == 0 {
		return file + ": "
	}
	return fmt.Sprintf("%s:%d:%d: ", file, line, col)
}

func locText(loc []any) string {
	parts := make([]string, len(loc))
	for i, l := range loc {
		parts[i] = fmt.Sprint(l)
	}
	return strings.Join(parts, ".")
}

// words maps the name of a rule to the strings that it allows.
var words = map[string][]string{
	"language": {"python", "triton", "cpp", "cuda", "tilelang"},
	"binding":  {"tvm-ffi", "torch"},
	"status": {"PASSED", "INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR",
		"TIMEOUT"},
	"dtype": dtypes(),
	"call":  {"one", "positional", "model"},
}

func dtypes() (names []string) {
	for _, t := range tensor.DTypes() {
		names = append(names, t.String())
	}
	return names
}

// rules is the content of a field's tag rule, a list of: required; contest (required except in a dialect); beside
// (ignored by the format's library, so a value of the wrong type counts as an unknown key); object (likewise, for an
// object); nonempty (a string, the
// strings in a list or the keys of a map); some (a list with at least one item); null (null is allowed and decodes to
// the zero value); nan (NaN is allowed); or a key of words.
type rules string

func (r rules) has(word string) bool { return slices.Contains(strings.Split(string(r), ","), word) }

// A custom type decodes itself.
type custom interface {
	decode(d *decoder, v *value, r rules)
}

// A checked type has rules across its fields. check returns the first violation, or "", and the keys and indices that
// lead to the faulty value.
type checked interface {
	check() (fault string, at []any)
}

// A decoder converts JSON values to the types of this package and collects faults.
type decoder struct {
	lines
	model    string
	dialect  bool // accept the dialects' additions, and skip the checks across fields
	objects  bool // the definition has functions in Python
	loc      []any
	faults   []Fault
	warnings []Warning
	bad      int // number of faults found; faults holds the first maxFaults
}

// decode decodes one document.
func decode[T any](data []byte, model string) (*T, []Warning, error) {
	return decodeAs[T](&decoder{lines: lines{data: data}, model: model})
}

func decodeAs[T any](d *decoder) (*T, []Warning, error) {
	dst := new(T)
	if v, err := parse(d.data); err != nil {
		d.fault(err.pos, "Invalid JSON: "+err.text)
	} else {
		d.value(v, reflect.ValueOf(dst).Elem(), "")
	}
	slices.SortStableFunc(d.warnings, func(a, b Warning) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	if d.bad > 0 {
		return nil, d.warnings, &ValidationError{Model: d.model, Faults: d.faults}
	}
	return dst, d.warnings, nil
}

// fault records a fault at the current path, or at below below it.
func (d *decoder) fault(pos int, msg string, below ...any) {
	if d.bad++; len(d.faults) == maxFaults {
		return
	}
	f := Fault{Loc: append(slices.Clone(d.loc), below...), Msg: msg}
	f.Line, f.Col = d.at(pos)
	d.faults = append(d.faults, f)
}

// within decodes v, whose path is loc below the current one.
func (d *decoder) within(loc any, v *value, dst reflect.Value, r rules) {
	d.loc = append(d.loc, loc)
	d.value(v, dst, r)
	d.loc = d.loc[:len(d.loc)-1]
}

// value decodes v into dst or records faults.
func (d *decoder) value(v *value, dst reflect.Value, r rules) {
	if c, ok := dst.Addr().Interface().(custom); ok {
		c.decode(d, v, r)
		return
	}
	switch dst.Kind() {
	case reflect.Struct:
		d.record(v, dst.Addr().Interface())
	case reflect.Pointer:
		if v.kind != 'n' {
			dst.Set(reflect.New(dst.Type().Elem()))
			d.value(v, dst.Elem(), r)
		}
	case reflect.Slice:
		d.list(v, dst, r)
	case reflect.String:
		if v.kind != 'n' || !r.has("null") {
			dst.SetString(d.text(v, r))
		}
	case reflect.Bool:
		dst.SetBool(d.boolean(v))
	case reflect.Int:
		dst.SetInt(int64(d.count(v)))
	case reflect.Float64:
		dst.SetFloat(d.float(v, r))
	case reflect.Interface:
		if got := d.any(v); got != nil {
			dst.Set(reflect.ValueOf(got))
		}
	default:
		panic("trace: no JSON type for " + dst.Type().String())
	}
}

// boolean decodes true, false, and the numbers and words that the format's library converts to them.
func (d *decoder) boolean(v *value) bool {
	const invalid = "Input should be a valid boolean"
	switch v.kind {
	case 't', 'f':
		return v.kind == 't'
	case '0':
		x, err := strconv.ParseFloat(v.text, 64)
		switch {
		case x == 0 || x == 1:
			return x == 1
		case err == nil && x == math.Trunc(x) && math.Abs(x) < 1<<63:
			d.fault(v.pos, invalid+", unable to interpret input")
			return false
		}
	case '"':
		word := strings.ToLower(v.text)
		yes := slices.Contains([]string{"true", "t", "yes", "y", "on", "1"}, word)
		if !yes && !slices.Contains([]string{"false", "f", "no", "n", "off", "0"}, word) {
			d.fault(v.pos, invalid+", unable to interpret input")
		}
		return yes
	}
	d.fault(v.pos, invalid)
	return false
}

// record decodes the fields of the struct that dst points to, in order. valid reports whether it found no fault.
func (d *decoder) record(v *value, dst any) (valid bool) {
	if v.kind != '{' {
		d.fault(v.pos, "Input should be an object")
		return false
	}
	bad := d.bad
	fields := reflect.ValueOf(dst).Elem()
	var known []string
	for i := range fields.NumField() {
		name, r, ok := field(fields.Type().Field(i))
		child := v.get(name)
		if !ok || r.has("beside") && child != nil && !child.fits(fields.Field(i).Kind()) ||
			r.has("object") && child != nil && child.kind != '{' {
			continue
		}
		known = append(known, name)
		if child != nil {
			d.within(name, child, fields.Field(i), r)
		} else if r.has("required") || r.has("contest") && !d.dialect && !d.objects {
			d.fault(v.pos, "Field required", name)
		}
	}
	d.unknown(v, known)
	if d.bad > bad {
		return false
	}
	if c, ok := dst.(checked); ok && !d.dialect {
		if fault, at := c.check(); fault != "" {
			d.fault(v.find(at).pos, "Value error, "+fault)
			return false
		}
	}
	return true
}

// field returns the JSON name of a struct field and its rules. ok is false for a field that is not decoded.
func field(f reflect.StructField) (name string, r rules, ok bool) {
	name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
	return name, rules(f.Tag.Get("rule")), f.IsExported()
}

// fits reports whether v is a string exactly if the field is one, and likewise for booleans.
func (v *value) fits(field reflect.Kind) bool {
	return (v.kind == '"') == (field == reflect.String) && (v.kind == 't' || v.kind == 'f') == (field == reflect.Bool)
}

// find follows the keys and indices in at as far as they exist.
func (v *value) find(at []any) *value {
	for _, step := range at {
		next := (*value)(nil)
		switch step := step.(type) {
		case string:
			next = v.get(step)
		case int:
			next = &v.items[step]
		}
		if next == nil {
			break
		}
		v = next
	}
	return v
}

// unknown records a warning for each key of v that is not in known.
func (d *decoder) unknown(v *value, known []string) {
	for _, k := range v.keys {
		if slices.Contains(known, k.name) || len(d.warnings) == maxFaults || d.dialect {
			continue
		}
		w := Warning{Model: d.model, Loc: slices.Clone(d.loc), Key: k.name}
		w.Line, w.Col = d.at(k.pos)
		absent := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return v.get(name) != nil })
		if near := plain.Nearest(k.name, absent); len(near) > 0 {
			w.Suggestion = near[0]
		}
		d.warnings = append(d.warnings, w)
	}
}

func (d *decoder) list(v *value, dst reflect.Value, r rules) {
	switch {
	case v.kind != '[':
		d.fault(v.pos, "Input should be a valid array")
		return
	case len(v.items) == 0 && r.has("some"):
		d.fault(v.pos, "List should have at least 1 item after validation, not 0")
		return
	}
	dst.Set(reflect.MakeSlice(dst.Type(), len(v.items), len(v.items)))
	for i := range v.items {
		d.within(i, &v.items[i], dst.Index(i), r)
	}
}

func (m *Map[V]) decode(d *decoder, v *value, r rules) {
	if v.kind != '{' {
		d.fault(v.pos, "Input should be an object")
		return
	}
	*m = Map[V]{}
	for i, k := range v.keys {
		if k.name == "" && r.has("nonempty") {
			d.fault(k.pos, "String should have at least 1 character", k.name, "[key]")
		}
		var e V
		d.within(k.name, &v.items[i], reflect.ValueOf(&e).Elem(), "")
		m.Set(k.name, e)
	}
}

func (d *decoder) text(v *value, r rules) string {
	for name, list := range words {
		if r.has(name) && !(name == "dtype" && (d.dialect || d.objects && v.text == Object)) {
			return d.word(v, list)
		}
	}
	switch {
	case v.kind != '"':
		d.fault(v.pos, "Input should be a valid string")
	case v.text == "" && r.has("nonempty") && !(d.objects && r.has("contest")):
		d.fault(v.pos, "String should have at least 1 character")
	}
	return v.text
}

// word decodes a string that must be one of list. below leads to it from the current path.
func (d *decoder) word(v *value, list []string, below ...any) string {
	if v.kind == '"' && slices.Contains(list, v.text) {
		return v.text
	}
	text := "'" + strings.Join(list, "', '") + "'"
	if i := strings.LastIndex(text, ", "); i >= 0 {
		text = text[:i] + " or " + text[i+2:]
	}
	d.fault(v.pos, "Input should be "+text, below...)
	return ""
}

// integral reports whether v is a number without fraction and exponent.
func (v *value) integral() bool { return v.kind == '0' && strings.Trim(v.text, "-0123456789") == "" }

// integer decodes an integer.
func (d *decoder) integer(v *value) int64 {
	n, err := strconv.ParseInt(v.text, 10, 64)
	switch {
	case !v.integral():
		d.fault(v.pos, "Input should be a valid integer")
	case err != nil:
		d.fault(v.pos, "Input should be an integer of at most 64 bits")
	}
	return n
}

const negative = "Input should be greater than or equal to 0"

// count decodes a non-negative integer.
func (d *decoder) count(v *value) int {
	if v.integral() && v.text[0] == '-' && strings.Trim(v.text, "-0") != "" {
		d.fault(v.pos, negative)
		return 0
	}
	n := d.integer(v)
	if int64(int(n)) != n {
		d.fault(v.pos, "Input should be an integer of at most 32 bits")
	}
	return int(n)
}

// float decodes a non-negative number. It accepts the library's strings for non-finite numbers. Numbers out of range
// become infinite.
func (d *decoder) float(v *value, r rules) float64 {
	if v.kind != '0' && (v.kind != '"' || !slices.Contains([]string{"NaN", "Infinity", "-Infinity"}, v.text)) {
		d.fault(v.pos, "Input should be a valid number")
		return 0
	}
	f, _ := strconv.ParseFloat(v.text, 64)
	switch {
	case r.has("nan") && f < 0:
		d.fault(v.pos, "Value error, must be non-negative or NaN")
	case !r.has("nan") && (f < 0 || math.IsNaN(f)):
		d.fault(v.pos, negative)
	}
	return f
}

// any decodes any JSON value as nil, bool, int64, float64, string, []any or *Map[any], and larger integers as BigInt.
func (d *decoder) any(v *value) any {
	switch v.kind {
	case 't', 'f':
		return v.kind == 't'
	case '"':
		return v.text
	case '0':
		if !v.integral() {
			f, _ := strconv.ParseFloat(v.text, 64)
			return f
		}
		if n, err := strconv.ParseInt(v.text, 10, 64); err == nil {
			return n
		}
		return BigInt(v.text)
	case '[':
		items := make([]any, len(v.items))
		for i := range v.items {
			items[i] = d.any(&v.items[i])
		}
		return items
	case '{':
		m := new(Map[any])
		for i, k := range v.keys {
			m.Set(k.name, d.any(&v.items[i]))
		}
		return m
	}
	return nil
}

// union returns the value of v's key "type", one of kinds. It returns guess if the key is missing, and "" after a
// fault.
func (d *decoder) union(v *value, guess string, kinds ...string) string {
	t := v.get("type")
	if t == nil {
		return guess
	}
	return d.word(t, kinds, "type")
}

// Kinds of axes and inputs, selected by the key "type".
type (
	constAxis struct {
		Type        string  `json:"type"`
		Value       int     `json:"value" rule:"contest"`
		Description *string `json:"description"`
	}
	exprAxis struct {
		Type        string  `json:"type"`
		Expression  string  `json:"expression" rule:"required,nonempty"`
		Description *string `json:"description"`
	}
	varAxis struct {
		Type        string  `json:"type"`
		Description *string `json:"description"`
	}
	randomInput struct {
		Type string `json:"type"`
	}
	safetensorsInput struct {
		Type      string `json:"type"`
		Path      string `json:"path" rule:"required,nonempty"`
		TensorKey string `json:"tensor_key" rule:"required,nonempty"`
	}
	scalarInput struct {
		Type  string `json:"type"`
		Value Scalar `json:"value" rule:"required"`
	}
)

func (a *Axis) decode(d *decoder, v *value, _ rules) {
	guess, kinds := "var", []string{"const", "var"}
	if v.get("value") != nil {
		guess = "const"
	}
	if d.dialect {
		kinds = append(kinds, "expr")
	}
	switch d.union(v, guess, kinds...) {
	case "const":
		var c constAxis
		d.record(v, &c)
		*a = Axis{Const: true, Value: c.Value, Description: c.Description, kept: d.keep(v, c)}
	case "var":
		var c varAxis
		d.record(v, &c)
		*a = Axis{Description: c.Description, kept: d.keep(v, c)}
	case "expr":
		var c exprAxis
		d.record(v, &c)
		*a = Axis{Expr: c.Expression, Description: c.Description, kept: d.keep(v, c)}
	}
}

func (def *Definition) decode(d *decoder, v *value, _ rules) {
	if python := v.get("python"); python != nil && python.kind == '{' {
		d.objects = true
	}
	d.record(v, def)
	def.kept = d.keep(v, *def)
}

func (s *InputSpec) decode(d *decoder, v *value, _ rules) {
	guess := "random"
	switch {
	case v.get("path") != nil || v.get("tensor_key") != nil:
		guess = "safetensors"
	case v.get("value") != nil:
		guess = "scalar"
	}
	kinds := []string{"random", "safetensors", "scalar"}
	if t := v.get("type"); t != nil && t.text == "custom" { // an extension that faults do not name
		kinds = append(kinds, "custom")
	}
	switch d.union(v, guess, kinds...) {
	case "custom":
		*s = InputSpec{Kind: CustomInput}
	case "random":
		d.record(v, &randomInput{})
		*s = InputSpec{Kind: Random}
	case "safetensors":
		var in safetensorsInput
		d.record(v, &in)
		*s = InputSpec{Kind: Safetensors, Path: in.Path, TensorKey: in.TensorKey}
	case "scalar":
		var in scalarInput
		d.record(v, &in)
		*s = InputSpec{Kind: ScalarInput, Value: in.Value}
	}
}

func (s *Scalar) decode(d *decoder, v *value, _ rules) {
	switch {
	case v.kind == 't' || v.kind == 'f':
		*s = Scalar{Kind: BoolScalar, Bool: v.kind == 't'}
	case v.integral():
		*s = Scalar{Kind: IntScalar, Int: d.integer(v)}
	case v.kind == '0':
		f, _ := strconv.ParseFloat(v.text, 64)
		*s = Scalar{Kind: FloatScalar, Float: f}
	default:
		d.fault(v.pos, "Input should be a number or a boolean")
	}
}

// A tensorSpec is the JSON form of a TensorSpec.
type tensorSpec struct {
	Shape       *[]string `json:"shape" rule:"required,nonempty"`
	DType       string    `json:"dtype" rule:"required,dtype"`
	Description *string   `json:"description"`
	Optional    bool      `json:"optional,omitzero" rule:"beside"`
	Param       string    `json:"param,omitzero" rule:"beside"`
}

func (t *TensorSpec) decode(d *decoder, v *value, _ rules) {
	var in tensorSpec
	d.record(v, &in)
	*t = TensorSpec{Scalar: in.Shape == nil, Description: in.Description, Optional: in.Optional, Param: in.Param,
		kept: d.keep(v, in)}
	ok := false
	if t.DType, ok = tensor.ParseDType(in.DType); !ok {
		t.Foreign = in.DType
	}
	if in.Shape != nil {
		t.Shape = *in.Shape
	}
}

func (b *BuildSpec) decode(d *decoder, v *value, _ rules) {
	b.DestinationPassingStyle = true
	d.record(v, b)
}
