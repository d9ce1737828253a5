package trace

import (
	"bytes"
	"cmp"
	"math"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Form is a JSON layout. Both forms keep the order of fields, leave non-ASCII characters unescaped, and end without a
// newline.
type Form uint8

const (
	Compact Form = iota // no spaces: lines of workload and trace files
	Indent              // two spaces: solution.json
)

// JSON encodes the definition.
func (d *Definition) JSON(form Form) []byte { return text(d, form) }

// JSON encodes the workload. A non-finite scalar becomes null, which cannot be decoded.
func (w *Workload) JSON(form Form) []byte { return text(w, form) }

// JSON encodes the solution.
func (s *Solution) JSON(form Form) []byte { return text(s, form) }

// JSON encodes the trace. Non-finite errors become "NaN" and "Infinity", other non-finite numbers null. It panics if
// Correctness.Extra contains a value that JSON cannot represent.
func (t *Trace) JSON(form Form) []byte {
	type fields Trace // without MarshalJSON
	return text((*fields)(t), form)
}

// MarshalJSON encodes the trace like JSON.
func (t *Trace) MarshalJSON() ([]byte, error) { return t.JSON(Compact), nil }

// text encodes v. Invalid UTF-8 becomes the replacement character.
func text(v any, form Form) []byte {
	data, err := marshal(v, form, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic(err) // not a value of this package's types
	}
	return data
}

// marshal encodes v as pydantic does. Invalid UTF-8 in a string is a *jsontext.SyntacticError.
func marshal(v any, form Form, opts ...json.Options) ([]byte, error) {
	opts = append(opts, json.WithMarshalers(json.MarshalToFunc(writeFloat)))
	if form == Indent {
		opts = append(opts, jsontext.WithIndent("  "))
	}
	return json.Marshal(v, opts...)
}

// MarshalJSONTo writes the keys in order.
func (m Map[V]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for k, v := range m.All() {
		if err := enc.WriteToken(jsontext.String(k)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, &v); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

// MarshalJSONTo writes the fields of the definition.
func (d Definition) MarshalJSONTo(enc *jsontext.Encoder) error {
	type Fields Definition
	return d.kept.write(enc, Fields(d))
}

// MarshalJSONTo writes the fields of the axis's kind.
func (a Axis) MarshalJSONTo(enc *jsontext.Encoder) error {
	switch {
	case a.Const:
		return a.kept.write(enc, constAxis{"const", a.Value, a.Description})
	case a.Expr != "":
		return a.kept.write(enc, exprAxis{"expr", a.Expr, a.Description})
	}
	return a.kept.write(enc, varAxis{"var", a.Description})
}

// MarshalJSONTo writes null for the shape of a scalar.
func (t TensorSpec) MarshalJSONTo(enc *jsontext.Encoder) error {
	out := tensorSpec{&t.Shape, cmp.Or(t.Foreign, t.DType.String()), t.Description, t.Optional, t.Param}
	if t.Scalar {
		out.Shape = nil
	}
	return t.kept.write(enc, out)
}

// MarshalJSONTo writes the fields of the input's kind.
func (s InputSpec) MarshalJSONTo(enc *jsontext.Encoder) error {
	switch s.Kind {
	case Safetensors:
		return json.MarshalEncode(enc, safetensorsInput{s.Kind.String(), s.Path, s.TensorKey})
	case ScalarInput:
		return json.MarshalEncode(enc, scalarInput{s.Kind.String(), s.Value})
	}
	return json.MarshalEncode(enc, randomInput{s.Kind.String()})
}

// MarshalJSONTo writes the number or boolean with its original type.
func (s Scalar) MarshalJSONTo(enc *jsontext.Encoder) error {
	switch s.Kind {
	case IntScalar:
		return enc.WriteToken(jsontext.Int(s.Int))
	case BoolScalar:
		return enc.WriteToken(jsontext.Bool(s.Bool))
	}
	return writeFloat(enc, s.Float)
}

// MarshalJSONTo writes null for the default binding.
func (b BuildSpec) MarshalJSONTo(enc *jsontext.Encoder) error {
	type Fields BuildSpec
	out := struct {
		Fields
		Binding *string `json:"binding"`
	}{Fields: Fields(b)}
	if b.Binding != "" {
		out.Binding = &b.Binding
	}
	return json.MarshalEncode(enc, out)
}

// MarshalJSONTo writes non-finite errors as strings.
func (c Correctness) MarshalJSONTo(enc *jsontext.Encoder) error {
	return json.MarshalEncode(enc, struct {
		MaxRelativeError bound     `json:"max_relative_error"`
		MaxAbsoluteError bound     `json:"max_absolute_error"`
		Extra            *Map[any] `json:"extra"`
	}{bound(c.MaxRelativeError), bound(c.MaxAbsoluteError), c.Extra})
}

// A bound is an error in Correctness.
type bound float64

// MarshalJSONTo writes non-finite values as "NaN", "Infinity" and "-Infinity".
func (b bound) MarshalJSONTo(enc *jsontext.Encoder) error {
	if f := float64(b); math.IsNaN(f) || math.IsInf(f, 0) {
		return enc.WriteToken(jsontext.Float(f))
	}
	return writeFloat(enc, float64(b))
}

// MarshalJSONTo writes the digits.
func (n BigInt) MarshalJSONTo(enc *jsontext.Encoder) error { return enc.WriteValue(jsontext.Value(n)) }

// writeFloat writes f as the format does: the shortest digits that decode to f, without exponent from 1e-5 up to 1e16,
// and always recognisable as a float. Non-finite numbers become null.
func writeFloat(enc *jsontext.Encoder, f float64) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return enc.WriteToken(jsontext.Null)
	}
	var dst []byte
	if abs := math.Abs(f); abs == 0 || 1e-5 <= abs && abs < 1e16 {
		dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
		if !bytes.ContainsRune(dst, '.') {
			dst = append(dst, ".0"...)
		}
		return enc.WriteValue(dst)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go writes at least two digits of exponent.
	if n := len(dst); n >= 4 && dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') {
		dst = append(dst[:n-2], dst[n-1])
	}
	return enc.WriteValue(dst)
}
