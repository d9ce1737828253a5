package trace

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"fisub/internal/plain"
)

// maxFaults bounds how many faults, and how many warnings, one document reports.
const maxFaults = 1000

// A ValidationError lists everything that is wrong with a document: the faults of its JSON, or else those of all its
// fields, in the order in which the format's models declare them. A model's rules across fields are checked only where
// its fields are valid, and the first that fails ends them. After 1000 faults the rest are left out.
type ValidationError struct {
	Place  string // the file; empty when none was named
	Model  string // "Definition", "Workload", "Solution" or "Trace"
	Faults []Fault
}

// A Fault is one reason to reject a document.
type Fault struct {
	Loc       []any  // path of keys (string) and indices (int); a failed union adds the branch's name; empty is the whole document
	Type, Msg string // as pydantic words them
	Line, Col int    // place in the file, from 1, Col in bytes; 0 for a value that was not read
}

// Error is one line for each fault: "solution.json:3:9: spec.language: Input should be ...".
func (e *ValidationError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = place(e.Place, e.Model, f.Line, f.Col)
		if len(f.Loc) > 0 {
			lines[i] += locText(f.Loc) + ": "
		}
		msg := f.Msg
		if f.Type == "json_invalid" && f.Line > 0 { // the place is said already
			msg, _, _ = strings.Cut(msg, " at line ")
		}
		lines[i] = plain.Line(lines[i] + msg)
	}
	return strings.Join(lines, "\n")
}

// A Warning is a key that the format does not know. The format ignores it, and writing the document loses it.
type Warning struct {
	Place      string // the file; empty when none was named
	Model      string
	Loc        []any // of the object that holds the key
	Key        string
	Suggestion string // the key that may be meant, or ""
	Line, Col  int
}

// String is one line: "solution.json:3:9: unknown key spec.bindings".
func (w Warning) String() string {
	loc := append(slices.Clone(w.Loc), w.Key)
	return plain.Line(place(w.Place, w.Model, w.Line, w.Col) + "unknown key " + locText(loc))
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

// A decoder turns JSON values into models and collects what is wrong with them.
type decoder struct {
	lines
	model    string
	raw      bool // the document was written from a value in memory: no places, and strings may be invalid UTF-8
	loc      []any
	faults   []Fault
	warnings []Warning
	bad      int // faults found, of which the first maxFaults are in faults
}

// A read stores a JSON value somewhere, or reports faults.
type read func(v *value)

// decode reads one document with the model's read.
func decode[T any](data []byte, raw bool, model string, read func(d *decoder, dst *T) read) (*T, []Warning, error) {
	d := &decoder{lines: lines{data: data}, model: model, raw: raw}
	dst := new(T)
	r := reader{data: data, raw: raw}
	if v, err := r.parse(); err != nil {
		d.fault(err.pos, "json_invalid", "Invalid JSON: "+err.text+" at "+d.jsonPlace(err.pos))
	} else {
		read(d, dst)(v)
	}
	sort.SliceStable(d.warnings, func(i, j int) bool {
		a, b := d.warnings[i], d.warnings[j]
		return a.Line < b.Line || a.Line == b.Line && a.Col < b.Col
	})
	if d.bad > 0 {
		return nil, d.warnings, &ValidationError{Model: model, Faults: d.faults}
	}
	return dst, d.warnings, nil
}

func (d *decoder) fault(pos int, typ, msg string) {
	if d.bad++; len(d.faults) == maxFaults {
		return
	}
	f := Fault{Loc: slices.Clone(d.loc), Type: typ, Msg: msg}
	if !d.raw {
		f.Line, f.Col = d.at(pos)
	}
	d.faults = append(d.faults, f)
}

// ruleFault reports a rule of the format's own, as opposed to one of the types.
func (d *decoder) ruleFault(pos int, text string) { d.fault(pos, "value_error", "Value error, "+text) }

// within reads v as the part loc of the present place.
func (d *decoder) within(loc any, v *value, read read) {
	d.loc = append(d.loc, loc)
	read(v)
	d.loc = d.loc[:len(d.loc)-1]
}

// A record reads the fields of a JSON object, in the order in which the model declares them.
type record struct {
	d     *decoder
	v     *value // nil where the value is no object
	known []string
	set   *fieldSet
	bad   int // d.bad at the start
}

// record starts reading v, of which set gets the keys that are present.
func (d *decoder) record(v *value, set *fieldSet) *record {
	r := &record{d: d, v: v, set: set, bad: d.bad}
	*set = decoded
	if v.kind != object {
		d.fault(v.pos, "model_type", "Input should be an object")
		r.v = nil
	}
	return r
}

func (r *record) optional(name string, read read) bool {
	if r.v == nil {
		return true
	}
	r.known = append(r.known, name)
	v := r.v.get(name)
	if v == nil {
		return false
	}
	*r.set |= 1 << (len(r.known) - 1)
	r.d.within(name, v, read)
	return true
}

func (r *record) required(name string, read read) {
	if !r.optional(name, read) {
		r.d.within(name, r.v, func(v *value) { r.d.fault(v.pos, "missing", "Field required") })
	}
}

// historic names keys that are neither fields nor unknown.
func (r *record) end(historic ...string) (valid bool) {
	if r.v == nil {
		return false
	}
	for _, k := range r.v.keys {
		if slices.Contains(r.known, k.name) || slices.Contains(historic, k.name) || len(r.d.warnings) == maxFaults {
			continue
		}
		w := Warning{Model: r.d.model, Loc: slices.Clone(r.d.loc), Key: k.name}
		w.Line, w.Col = r.d.at(k.pos)
		absent := slices.DeleteFunc(slices.Clone(r.known), func(name string) bool { return r.v.get(name) != nil })
		if near := Nearest(k.name, absent); len(near) > 0 {
			w.Suggestion = near[0]
		}
		r.d.warnings = append(r.d.warnings, w)
	}
	return r.d.bad == r.bad
}

// pos is the place of a field's value.
func (r *record) pos(name string) int {
	if v := r.v.get(name); v != nil {
		return v.pos
	}
	return r.v.pos
}

func (d *decoder) str(dst *string) read {
	return func(v *value) {
		switch {
		case v.kind != text:
			d.fault(v.pos, "string_type", "Input should be a valid string")
		case d.raw && !utf8.ValidString(v.text):
			d.fault(v.pos, "string_unicode", "Input should be a valid string, unable to parse raw data as a unicode string")
		default:
			*dst = v.text
		}
	}
}

func (d *decoder) nonEmpty(dst *string) read {
	return func(v *value) {
		if v.kind == text && v.text == "" {
			d.fault(v.pos, "string_too_short", "String should have at least 1 character")
			return
		}
		d.str(dst)(v)
	}
}

// nullable reads null as nil, and anything else with item.
func nullable[T any](dst **T, item func(dst *T) read) read {
	return func(v *value) {
		if v.kind == null {
			*dst = nil
			return
		}
		*dst = new(T)
		item(*dst)(v)
	}
}

// word reads one of the given words.
func word[T ~string](d *decoder, dst *T, typ string, words ...T) read {
	return func(v *value) {
		if v.kind == text && slices.Contains(words, T(v.text)) {
			*dst = T(v.text)
			return
		}
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = "'" + string(w) + "'"
		}
		list := quoted[len(quoted)-1]
		if rest := quoted[:len(quoted)-1]; len(rest) > 0 {
			list = strings.Join(rest, ", ") + " or " + list
		}
		d.fault(v.pos, typ, "Input should be "+list)
	}
}

// literal reads the type key of a union's branch.
func (d *decoder) literal(want string) read {
	var ignored string
	return word(d, &ignored, "literal_error", want)
}

func list[T any](d *decoder, dst *[]T, atLeastOne bool, item func(dst *T) read) read {
	return func(v *value) {
		if v.kind != array {
			d.fault(v.pos, "list_type", "Input should be a valid array")
			return
		}
		if atLeastOne && len(v.items) == 0 {
			d.fault(v.pos, "too_short", "List should have at least 1 item after validation, not 0")
			return
		}
		*dst = make([]T, len(v.items))
		for i := range v.items {
			d.within(i, &v.items[i], item(&(*dst)[i]))
		}
	}
}

func mapping[T any](d *decoder, dst *Map[T], emptyKey bool, item func(dst *T) read) read {
	return func(v *value) {
		if v.kind != object {
			d.fault(v.pos, "dict_type", "Input should be an object")
			return
		}
		var m Map[T]
		for i, k := range v.keys {
			d.loc = append(d.loc, k.name)
			switch {
			case !emptyKey && k.name == "":
				d.within("[key]", v, func(*value) {
					d.fault(k.pos, "string_too_short", "String should have at least 1 character")
				})
			case d.raw && !utf8.ValidString(k.name):
				d.within("[key]", &value{kind: text, text: k.name}, d.str(new(string)))
			}
			var e T
			item(&e)(&v.items[i])
			m.Set(k.name, e)
			d.loc = d.loc[:len(d.loc)-1]
		}
		*dst = m
	}
}

// A branch is one model of a union.
type branch[T any] struct {
	name string
	read func(dst *T) read
}

// union reads v as the branch that finds most of its fields in it, the first of equals. Where none is valid, the faults
// of all are reported, unless a number was too large for this program: that is no reason to try another branch.
func union[T any](d *decoder, dst *T, fields func(*T) fieldSet, branches ...branch[T]) read {
	return func(v *value) {
		faults, bad := len(d.faults), d.bad
		warnings := len(d.warnings)
		var kept []Warning
		best := -1
		for _, b := range branches {
			var got T
			f, n := len(d.faults), d.bad
			d.within(b.name, v, b.read(&got))
			if d.bad == n {
				if count := bits.OnesCount16(uint16(fields(&got))); count > best {
					best, *dst = count, got
					kept = slices.Clone(d.warnings[warnings:])
					for i := range kept { // the branch's name is no part of the place
						kept[i].Loc = slices.Delete(kept[i].Loc, len(d.loc), len(d.loc)+1)
					}
				}
			} else if i := slices.IndexFunc(d.faults[f:], func(f Fault) bool { return f.Type == tooLarge }); i >= 0 {
				d.faults[faults] = d.faults[f+i]
				d.faults, d.bad = d.faults[:faults+1], bad+1
				d.warnings = d.warnings[:warnings]
				return
			}
			d.warnings = d.warnings[:warnings]
		}
		if best >= 0 {
			d.faults, d.bad = d.faults[:faults], bad
			d.warnings = append(d.warnings, kept...)
		}
	}
}

// tooLarge is the type of a fault of this program only: the format's integers have no bounds.
const tooLarge = "int_too_large"

// toInt converts as the format does: integral floats, booleans and decimal strings are integers. typ is "" on success.
func toInt(v *value) (n int64, typ, msg string) {
	const prefix = "Input should be a valid integer"
	switch v.kind {
	case boolean:
		if v.text == "true" {
			n = 1
		}
		return n, "", ""
	case integer:
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil {
			return n, tooLarge, "Input should be an integer of at most 64 bits"
		}
		return n, "", ""
	case float:
		switch f := toFloat64(v.text); {
		case math.IsNaN(f) || math.IsInf(f, 0):
			return 0, "finite_number", "Input should be a finite number"
		case f != math.Trunc(f):
			return 0, "int_from_float", prefix + ", got a number with a fractional part"
		case f <= math.MinInt64 || f >= math.MaxInt64:
			return 0, "int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size"
		default:
			return int64(f), "", ""
		}
	case text:
		s, ok := intText(v.text)
		if !ok {
			return 0, "int_parsing", prefix + ", unable to parse string as an integer"
		}
		return toInt(&value{kind: integer, text: s})
	}
	return 0, "int_type", prefix
}

// intText strips what the format allows around the digits of an integer in a string: white space, a sign, single
// underscores between digits, and zeros after a decimal point.
func intText(s string) (digits string, ok bool) {
	s = strings.TrimSpace(s)
	sign := ""
	if s != "" && (s[0] == '+' || s[0] == '-') {
		sign, s = s[:1], s[1:]
	}
	if i := strings.IndexByte(s, '.'); i >= 0 {
		if zeros := s[i+1:]; zeros == "" || strings.Trim(zeros, "0") != "" {
			return "", false
		}
		s = s[:i]
	}
	s, ok = dropUnderscores(s)
	if !ok || s == "" || strings.Trim(s, "0123456789") != "" {
		return "", false
	}
	return sign + s, true
}

// dropUnderscores removes single underscores between other characters; ok is false for any other underscore.
func dropUnderscores(s string) (string, bool) {
	if strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return "", false
	}
	return strings.ReplaceAll(s, "_", ""), true
}

// toFloat64 is the nearest float of a number's literal; out of range is an infinity.
func toFloat64(literal string) float64 {
	f, _ := strconv.ParseFloat(literal, 64)
	return f
}

func toFloat(v *value) (f float64, typ, msg string) {
	const prefix = "Input should be a valid number"
	switch v.kind {
	case boolean:
		if v.text == "true" {
			f = 1
		}
		return f, "", ""
	case integer, float:
		return toFloat64(v.text), "", ""
	case text:
		if s, ok := floatText(v.text); ok {
			return toFloat64(s), "", ""
		}
		return 0, "float_parsing", prefix + ", unable to parse string as a number"
	}
	return 0, "float_type", prefix
}

// floatText checks a number in a string: decimal digits with single underscores, a point, an exponent; or nan, inf or
// infinity in any case; a sign, and white space around it.
func floatText(s string) (literal string, ok bool) {
	s, ok = dropUnderscores(strings.TrimSpace(s))
	if !ok {
		return "", false
	}
	sign := ""
	if s != "" && (s[0] == '+' || s[0] == '-') {
		sign, s = s[:1], s[1:]
	}
	switch strings.ToLower(s) {
	case "nan":
		return "NaN", true
	case "inf", "infinity":
		return sign + "Inf", true
	}
	digits := func() (n int) {
		for n < len(s) && '0' <= s[n] && s[n] <= '9' {
			n++
		}
		s = s[n:]
		return n
	}
	all := s
	n := digits()
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		n += digits()
	}
	if n == 0 {
		return "", false
	}
	if s != "" && s[0]|0x20 == 'e' {
		s = s[1:]
		if s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if digits() == 0 {
			return "", false
		}
	}
	return sign + all, s == ""
}

func toBool(v *value) (b bool, typ, msg string) {
	const prefix = "Input should be a valid boolean"
	switch v.kind {
	case boolean:
		return v.text == "true", "", ""
	case integer:
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil {
			return false, "bool_type", prefix
		}
		if n == 0 || n == 1 {
			return n == 1, "", ""
		}
		return false, "bool_parsing", prefix + ", unable to interpret input"
	case float:
		f := toFloat64(v.text)
		switch {
		case f == 0 || f == 1:
			return f == 1, "", ""
		case f != math.Trunc(f) || f <= math.MinInt64 || f >= math.MaxInt64:
			return false, "bool_type", prefix
		}
		return false, "bool_parsing", prefix + ", unable to interpret input"
	case text:
		switch strings.ToLower(v.text) {
		case "1", "t", "true", "y", "yes", "on":
			return true, "", ""
		case "0", "f", "false", "n", "no", "off":
			return false, "", ""
		}
		return false, "bool_parsing", prefix + ", unable to interpret input"
	}
	return false, "bool_type", prefix
}

func (d *decoder) boolean(dst *bool) read {
	return func(v *value) {
		b, typ, msg := toBool(v)
		if typ != "" {
			d.fault(v.pos, typ, msg)
			return
		}
		*dst = b
	}
}

const negative = "Input should be greater than or equal to 0"

func (d *decoder) nonNegativeInt(dst *int) read {
	return func(v *value) {
		n, typ, msg := toInt(v)
		if typ == tooLarge && n < 0 || typ == "" && n < 0 {
			typ, msg = "greater_than_equal", negative
		} else if typ == "" && int64(int(n)) != n {
			typ, msg = tooLarge, "Input should be an integer of at most 32 bits"
		}
		if typ != "" {
			d.fault(v.pos, typ, msg)
			return
		}
		*dst = int(n)
	}
}

func (d *decoder) float(dst *float64) read {
	return func(v *value) {
		f, typ, msg := toFloat(v)
		if typ != "" {
			d.fault(v.pos, typ, msg)
			return
		}
		*dst = f
	}
}

// scalar reads a number or boolean of the type that it has in JSON; a string becomes the first that it can be of an
// integer, a float and a boolean.
func (d *decoder) scalar(dst *Scalar) read {
	return func(v *value) {
		n, intType, intMsg := toInt(v)
		f, floatType, floatMsg := toFloat(v)
		b, boolType, boolMsg := toBool(v)
		switch {
		case v.kind == boolean:
			*dst = Scalar{Kind: BoolScalar, Bool: b}
		case v.kind == float:
			*dst = Scalar{Kind: FloatScalar, Float: f}
		case intType == "":
			*dst = Scalar{Kind: IntScalar, Int: n}
		case intType == tooLarge:
			d.fault(v.pos, intType, intMsg)
		case floatType == "":
			*dst = Scalar{Kind: FloatScalar, Float: f}
		case boolType == "":
			*dst = Scalar{Kind: BoolScalar, Bool: b}
		default:
			d.within("int", v, func(v *value) { d.fault(v.pos, intType, intMsg) })
			d.within("float", v, func(v *value) { d.fault(v.pos, floatType, floatMsg) })
			d.within("bool", v, func(v *value) { d.fault(v.pos, boolType, boolMsg) })
		}
	}
}

// any reads any JSON value: nil, bool, int64, float64, string, []any, *Map[any], and BigInt for larger integers.
func (d *decoder) any(dst *any) read {
	return func(v *value) {
		switch v.kind {
		case null:
			*dst = nil
		case boolean:
			*dst = v.text == "true"
		case integer:
			if n, err := strconv.ParseInt(v.text, 10, 64); err == nil {
				*dst = n
			} else {
				*dst = BigInt(v.text)
			}
		case float:
			*dst = toFloat64(v.text)
		case text:
			var s string
			d.str(&s)(v)
			*dst = s
		case array:
			var items []any
			list(d, &items, false, d.any)(v)
			*dst = items
		case object:
			m := new(Map[any])
			mapping(d, m, true, d.any)(v)
			*dst = m
		}
	}
}
