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

// ReadDialect reads a definition file of the format or of a dialect. It accepts the dialects' extensions (axes of kind
// expr, const axes without a value, further dtypes) and does not check rules across fields, which DecodeDefinition of
// the result's JSON does. That JSON keeps all keys of the file in order and adds only fields that were set later.
func ReadDialect(path string) (*Definition, error) {
	data, err := plain.ReadFile(path, MaxBytes)
	if err != nil {
		return nil, err
	}
	def, _, err := decodeAs[Definition](&decoder{lines: lines{data: data}, model: "Definition", dialect: true})
	return def, moved(path, 0, nil, err)
}

// DecodeDialectWorkload decodes a workload of SOL-ExecBench or of the format.
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

// A kept preserves an object of a dialect's document: the order of its keys, and the keys that match no field.
type kept struct {
	keys   []string
	others map[string]jsontext.Value
}

// keep returns the kept of v, which was decoded into fields, or nil if the document is not in a dialect.
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
		if !known || slices.Contains([]string{"false", `""`}, string(raw)) { // encoding omits these
			k.others[key.name] = raw
		}
	}
	return k
}

// write encodes fields. If k is not nil, it writes the keys of k in their order, and then other fields that are set.
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
