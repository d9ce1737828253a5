package trace

import (
	"bytes"
	"errors"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"fisub/internal/plain"
)

// ReadDialect reads a definition file of the format or of a dialect of it. What the format lacks (axes of kind expr,
// const axes without a value, further dtypes) is read, what it requires of a definition as a whole is not checked:
// DecodeDefinition of its JSON tells that. Its JSON has the document's keys in their order, also those that this
// package does not know, and none that the document lacks, but for fields that were set since.
func ReadDialect(path string) (*Definition, error) {
	data, err := plain.ReadFile(path, MaxBytes)
	if err != nil {
		return nil, err
	}
	def, _, err := decodeAs[Definition](&decoder{lines: lines{data: data}, model: "Definition", dialect: true})
	return def, moved(path, 0, nil, err)
}

// DecodeDialectWorkload reads a workload of SOL-ExecBench, or one of the format.
func DecodeDialectWorkload(data []byte) (*DialectWorkload, error) {
	w, _, err := decodeAs[DialectWorkload](&decoder{lines: lines{data: data}, model: "Workload", dialect: true})
	return w, err
}

func (w *DialectWorkload) decode(d *decoder, v *value, _ rules) {
	d.record(v, &w.Workload)
	if t := v.get("tolerance"); t != nil && t.kind != 'n' {
		w.Tolerance = &Tolerance{MaxAtol: 1e-2, MaxRtol: 1e-2, RequiredMatchedRatio: 0.99}
		d.within("tolerance", t, reflect.ValueOf(w.Tolerance).Elem(), "")
	}
}

// A kept is how a document of a dialect had an object: its keys in order, and those that no field has.
type kept struct {
	keys   []string
	others map[string]jsontext.Value
}

// keep is what was kept of v, which was read into fields; nil of a document of the format.
func (d *decoder) keep(v *value, fields any) *kept {
	if !d.dialect {
		return nil
	}
	k := &kept{others: map[string]jsontext.Value{}}
	for i, key := range v.keys {
		k.keys = append(k.keys, key.name)
		known := slices.ContainsFunc(reflect.VisibleFields(reflect.TypeOf(fields)), func(f reflect.StructField) bool {
			name, r, ok := field(f)
			return ok && name == key.name && (!r.has("beside") || v.items[i].fits(f.Type.Kind()))
		})
		raw, _ := jsontext.NewDecoder(bytes.NewReader(d.data[v.items[i].pos:])).ReadValue()
		if !known || slices.Contains([]string{"false", `""`}, string(raw)) { // encoding leaves those out
			k.others[key.name] = raw
		}
	}
	return k
}

// write writes the fields in their order; where something was kept, as that was: fields that were not there are
// written, at the end, only where they are set.
func (k *kept) write(enc *jsontext.Encoder, fields any) error {
	if k == nil {
		return json.MarshalEncode(enc, fields)
	}
	data, err := marshal(fields, Compact, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	root, syntax := parse(data)
	if syntax != nil {
		return errors.New(syntax.text)
	}
	object := Map[jsontext.Value]{}
	add := func(name string, required bool) error {
		if v := root.get(name); v != nil {
			raw, err := jsontext.NewDecoder(bytes.NewReader(data[v.pos:])).ReadValue()
			if required || !slices.Contains([]string{"null", "[]", `""`, "0"}, string(raw)) {
				object.Set(name, raw)
			}
			return err
		}
		if raw, ok := k.others[name]; ok {
			object.Set(name, raw)
		}
		return nil
	}
	for _, name := range k.keys {
		err = errors.Join(err, add(name, true))
	}
	for _, key := range root.keys {
		err = errors.Join(err, add(key.name, slices.Contains(k.keys, key.name)))
	}
	if err != nil {
		return err
	}
	return json.MarshalEncode(enc, object)
}
