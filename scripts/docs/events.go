package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/event"
)

// payloads are the keys of which an event of a type has one, in the order of the types' constants.
var payloads = map[event.Type][]string{
	event.TypeRun: {"run"}, event.TypeBuilding: nil, event.TypeBuilt: {"built"}, event.TypeStarted: {"started"},
	event.TypeSamples: {"samples"}, event.TypeEvaluated: {"evaluated"}, event.TypeFailed: {"message"},
	event.TypeWarning: {"message", "finding"}, event.TypeFloor: {"floor"},
	event.TypeDone: {"done"}, event.TypeJob: {"job_state"},
}

// A stream is what the source of package event says about its lines.
type stream struct {
	types   []field // the constants of Type: name is the value
	structs []object
}

type object struct {
	name, doc string
	alias     string // of package device's struct of that name; "" for none
	fields    []field
}

type field struct {
	name, doc string
	kind      ast.Expr
	optional  bool
}

// readEvents reads the types, their keys and their comments from the file that declares them, and from that of package
// device, which some of them are aliases of.
func readEvents(file, devices string) (*stream, error) {
	s := &stream{}
	if err := s.read(devices); err != nil {
		return nil, err
	}
	foreign := s.structs
	s.structs = nil
	if err := s.read(file); err != nil {
		return nil, err
	}
	for i, o := range s.structs {
		if o.alias != "" {
			j := slices.IndexFunc(foreign, func(f object) bool { return f.name == o.alias })
			s.structs[i].doc, s.structs[i].fields = foreign[j].doc, foreign[j].fields
		}
	}
	// Fields of embedded structs are the keys of the one that embeds them.
	for i, o := range s.structs {
		var all []field
		for _, f := range o.fields {
			if f.name != "" {
				all = append(all, f)
				continue
			}
			j := slices.IndexFunc(s.structs, func(e object) bool { return e.name == f.kind.(*ast.Ident).Name })
			all = append(all, s.structs[j].fields...)
		}
		s.structs[i].fields = all
	}
	if len(s.types) != len(payloads) {
		return nil, errors.New("payloads does not have the types that package event has")
	}
	for _, t := range s.types {
		if _, ok := payloads[event.Type(t.name)]; !ok {
			return nil, fmt.Errorf("payloads lacks the type %s", t.name)
		}
	}
	return s, nil
}

// read adds the types that a file declares.
func (s *stream) read(file string) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	for _, decl := range f.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Type" {
					value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
					if err != nil {
						return err
					}
					s.types = append(s.types, field{name: value, doc: sentence(spec.Comment)})
				}
			case *ast.TypeSpec:
				if other, ok := spec.Type.(*ast.SelectorExpr); ok && spec.Assign.IsValid() {
					s.structs = append(s.structs, object{name: spec.Name.Name, alias: other.Sel.Name})
				} else if st, ok := spec.Type.(*ast.StructType); ok {
					o := object{name: spec.Name.Name, doc: sentence(d.Doc)}
					if o.fields = fields(st); o.fields != nil {
						s.structs = append(s.structs, o)
					}
				}
			}
		}
	}
	return nil
}

// fields gives the keys of a struct, nil where it is none of JSON. An embedded struct has no name.
func fields(st *ast.StructType) (all []field) {
	for _, f := range st.Fields.List {
		if len(f.Names) == 0 {
			all = append(all, field{kind: f.Type})
			continue
		}
		if f.Tag == nil {
			return nil
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			return nil
		}
		name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		all = append(all, field{name: name, doc: sentence(f.Comment), kind: f.Type, optional: options != ""})
	}
	return all
}

func sentence(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	return strings.Join(strings.Fields(c.Text()), " ")
}

// word names a type for people.
func word(kind ast.Expr) string {
	switch k := kind.(type) {
	case *ast.StarExpr:
		return word(k.X)
	case *ast.ArrayType:
		return "list of " + word(k.Elt)
	case *ast.MapType:
		return "object of " + word(k.Value) + " by name"
	case *ast.SelectorExpr:
		if k.Sel.Name == "Time" {
			return "time, RFC 3339"
		}
		return "object"
	case *ast.Ident:
		switch k.Name {
		case "string", "Type":
			return "string"
		case "int", "int64":
			return "integer"
		case "float64":
			return "number"
		case "Float":
			return `number, "NaN", "Infinity" or "-Infinity"`
		case "bool":
			return "true or false"
		}
		return fmt.Sprintf("[%s](#%s)", k.Name, strings.ToLower(k.Name))
	}
	return ""
}

func (s *stream) page() string {
	var b strings.Builder
	b.WriteString(generated + topic("events") + "\n## Types\n\n" +
		"Keys marked \"may be missing\" are left out where they are empty, zero or unknown.\n\n" +
		"| type | when | payload |\n|---|---|---|\n")
	for _, t := range s.types {
		var keys []string
		for _, key := range payloads[event.Type(t.name)] {
			keys = append(keys, "`"+key+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", t.name, cell(t.doc), strings.Join(keys, " or "))
	}
	for _, o := range s.structs {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| key | type | | meaning |\n|---|---|---|---|\n", o.name, o.doc)
		for _, f := range o.fields {
			may := ""
			if f.optional {
				may = "may be missing"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, word(f.kind), may, cell(f.doc))
		}
	}
	return b.String()
}

// schema is a JSON Schema, draft 2020-12, of one event.
func (s *stream) schema() ([]byte, error) {
	type m = map[string]any
	var of func(kind ast.Expr, optional bool) m
	of = func(kind ast.Expr, optional bool) m {
		nullable := func(t string) any { // an empty list or map of Go may be null
			if optional {
				return t
			}
			return []string{t, "null"}
		}
		switch k := kind.(type) {
		case *ast.StarExpr:
			return of(k.X, optional)
		case *ast.ArrayType:
			if k.Len != nil {
				n, _ := strconv.Atoi(k.Len.(*ast.BasicLit).Value)
				return m{"type": "array", "items": of(k.Elt, true), "minItems": n, "maxItems": n}
			}
			return m{"type": nullable("array"), "items": of(k.Elt, false)}
		case *ast.MapType:
			return m{"type": nullable("object"), "additionalProperties": of(k.Value, true)}
		case *ast.SelectorExpr:
			if k.Sel.Name == "Time" {
				return m{"type": "string", "format": "date-time"}
			}
			return m{"type": "object"}
		case *ast.Ident:
			switch k.Name {
			case "string", "Type":
				return m{"type": "string"}
			case "int", "int64":
				return m{"type": "integer"}
			case "float64":
				return m{"type": "number"}
			case "bool":
				return m{"type": "boolean"}
			case "Float":
				return m{"anyOf": []m{{"type": "number"}, {"enum": []string{"NaN", "Infinity", "-Infinity"}}}}
			}
			return m{"$ref": "#/$defs/" + k.Name}
		}
		panic(fmt.Sprintf("no schema for %T", kind))
	}
	defs := m{}
	for _, o := range s.structs {
		properties, required := m{}, []string{}
		for _, f := range o.fields {
			p := of(f.kind, f.optional)
			if f.doc != "" {
				p["description"] = f.doc
			}
			properties[f.name] = p
			if !f.optional {
				required = append(required, f.name)
			}
		}
		defs[o.name] = m{"type": "object", "description": o.doc, "properties": properties, "required": required}
	}
	var rules []m
	for _, t := range slices.Sorted(maps.Keys(payloads)) {
		if keys := payloads[t]; len(keys) > 0 {
			var one []m
			for _, key := range keys {
				one = append(one, m{"required": []string{key}})
			}
			rules = append(rules, m{"if": m{"properties": m{"type": m{"const": t}}}, "then": m{"anyOf": one}})
		}
	}
	defs["Event"].(m)["allOf"] = rules
	text, err := json.MarshalIndent(m{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": event.Schema,
		"$ref": "#/$defs/Event", "$defs": defs}, "", "  ")
	return append(text, '\n'), err
}
