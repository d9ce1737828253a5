// Command docs generates docs/commands.md, docs/config.md, docs/events.md and docs/agents.md with their JSON Schemas,
// the tables of keys in docs/remote.md and docs/remote, and the lists of functions in docs/emulator.md. `go generate
// ./docs` runs it.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fisub/app"
	"fisub/app/outcome"
	"fisub/device/vgpu"
	"fisub/docs"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/remote/providers"
)

const generated = "<!-- Written by `go generate`: edit its sources instead. -->\n\n"

func main() {
	files, err := pages("..") // go generate runs in docs
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join("..", name), content, 0o644))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

// pages returns all generated files by their path below root.
func pages(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	commands, err := app.Reference()
	if err != nil {
		return nil, err
	}
	files["docs/commands.md"] = []byte(generated + commands)
	files["docs/config.md"] = []byte(configPage())
	stream, err := describe(reflect.TypeFor[event.Event](), filepath.Join(root, "internal/event/event.go"))
	if err != nil {
		return nil, err
	}
	files["docs/events.md"] = []byte(stream.page())
	if files["docs/event.schema.json"], err = stream.schema(event.Schema); err != nil {
		return nil, err
	}
	final, err := describe(reflect.TypeFor[outcome.Outcome](), filepath.Join(root, "runs/compare/compare.go"),
		filepath.Join(root, "app/outcome/outcome.go"))
	if err != nil {
		return nil, err
	}
	files["docs/agents.md"] = []byte(generated + topic("agents") + final.tables())
	if files["docs/final.schema.json"], err = final.schema(outcome.Schema); err != nil {
		return nil, err
	}
	for _, name := range []string{"docs/remote.md", "docs/remote/slurm.md", "docs/remote/aws.md", "docs/remote/modal.md",
		"docs/remote/kubernetes.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			files[name], err = withTables(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	const emulator = "docs/emulator.md"
	text, err := os.ReadFile(filepath.Join(root, emulator))
	if err != nil {
		return nil, err
	}
	files[emulator] = withFunctions(text)
	return files, nil
}

func configPage() string {
	var b strings.Builder
	b.WriteString(generated + topic("config"))
	for _, s := range new(config.Config).Sections() {
		fmt.Fprintf(&b, "\n## [%s]\n\n%s\n\n", s.Name, s.Help)
		b.WriteString("| key | type | default | meaning | example |\n|---|---|---|---|---|\n")
		for _, k := range s.Keys {
			kind := k.Type()
			if form := cmp.Or(k.Form, strings.Join(k.OneOf, ", ")); form != "" {
				kind += ": " + form
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s = %s` |\n",
				k.Name, cell(kind), cell(k.Missing()), cell(k.Help), k.Name, k.Example)
		}
	}
	b.WriteString("\n## [remote.NAME]\n\n" +
		"Hosts for `fisub remote`: [remote.md](remote.md) has the keys of every kind of provider.\n")
	return b.String()
}

func keyTable(keys []config.Key) string {
	var b strings.Builder
	b.WriteString("| key | type | meaning | default |\n|---|---|---|---|\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.Type(), cell(k.Help), cell(k.Missing()))
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// topic returns the text of `fisub help NAME`, which begins the page on the same subject.
func topic(name string) string {
	t, err := docs.Find(name)
	if err != nil {
		panic(err)
	}
	text, _, _ := strings.Cut(t.Text, "\ndocs/"+name+".md ") // the last line may name the page
	return strings.TrimRight(text, "\n") + "\n"
}

// withTables fills in a provider's table of keys between the comments "keys of KIND" and "end of keys" in text, and a
// help topic between "topic NAME" and "end of topic".
func withTables(text []byte) ([]byte, error) {
	keys := providers.Keys()
	found := false
	var fault error
	out := marked.ReplaceAllStringFunc(string(text), func(part string) string {
		found = true
		m := marked.FindStringSubmatch(part)
		content, kind := "", strings.TrimSuffix(m[3], "every kind")
		switch {
		case m[2] == "topic ":
			content = topic(kind)
		case keys[kind] != nil:
			content = keyTable(keys[kind])
		default:
			fault = fmt.Errorf("no provider is of kind %q", kind)
		}
		return m[1] + content + m[4]
	})
	if !found {
		fault = errors.New("no comment says where the keys go")
	}
	return []byte(out), fault
}

// withFunctions returns the text with the lists of functions that the virtual GPU has.
func withFunctions(text []byte) []byte {
	runtime, driver := vgpu.Functions()
	for kind, names := range map[string][]string{"runtime": runtime, "driver": driver} {
		place := regexp.MustCompile(`(?s)(<!-- functions of the ` + kind + ` -->\n).*?(<!-- end of functions -->\n)`)
		text = place.ReplaceAll(text, []byte("${1}"+wrapped(names)+"$2"))
	}
	return text
}

// wrapped returns names in lines of at most 120 bytes.
func wrapped(names []string) string {
	text, width := &strings.Builder{}, 0
	for i, name := range names {
		name = "`" + name + "`"
		if i < len(names)-1 {
			name += ","
		}
		switch {
		case i == 0:
		case width+1+len(name) > 120:
			text.WriteByte('\n')
			width = 0
		default:
			text.WriteByte(' ')
			width++
		}
		text.WriteString(name)
		width += len(name)
	}
	return text.String() + "\n"
}

var marked = regexp.MustCompile(`(?s)(<!-- (keys of |topic )([a-z ]+) -->\n).*?(<!-- end of (?:keys|topic) -->\n)`)

// payloads returns the payload keys of an event type, of which an event has one.
func payloads(t string) (keys []string) {
	for _, p := range new(event.Event).Payloads() {
		if slices.Contains(p.Types, event.Type(t)) {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// A stream describes the types of package event with their comments.
type stream struct {
	types    []string          // values of Type, in the order of their constants
	comments map[string]string // by "Run", "Run.ID", and for constants of Type by value
	objects  []object
}

type object struct {
	name, doc string
	fields    []field
}

type field struct {
	name, doc string
	schema    m
	optional  bool
}

// An m is a JSON object.
type m = map[string]any

// describe describes type t, using the comments in the files that declare it and its fields' types.
func describe(t reflect.Type, files ...string) (*stream, error) {
	s := &stream{comments: map[string]string{}}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, s.comment)
	}
	for _, t := range s.types {
		if payloads(t) == nil && event.Type(t) != event.TypeBuilding {
			return nil, fmt.Errorf("events of type %q have no payload", t)
		}
	}
	s.of(t, true)
	return s, nil
}

// comment collects the comments of a declaration.
func (s *stream) comment(n ast.Node) bool {
	sentence := func(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
	d, ok := n.(*ast.GenDecl)
	if !ok {
		return true
	}
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Type" {
				value, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				s.types = append(s.types, value)
				s.comments[value] = sentence(spec.Comment)
			}
		case *ast.TypeSpec:
			s.comments[spec.Name.Name] = sentence(d.Doc)
			if st, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range st.Fields.List {
					for _, name := range f.Names {
						s.comments[spec.Name.Name+"."+name.Name] = sentence(f.Comment)
					}
				}
			}
		}
	}
	return false
}

// of returns the schema of type t, and adds its structs to s.objects.
func (s *stream) of(t reflect.Type, optional bool) m {
	nullable := func(kind string) any { // an empty Go slice or map may be null
		if optional {
			return kind
		}
		return []string{kind, "null"}
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return m{"type": "string", "format": "date-time"}
	case reflect.TypeFor[trace.Trace](), reflect.TypeFor[json.RawMessage]():
		return m{"type": "object"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem(), optional)
	case reflect.Array:
		return m{"type": "array", "items": s.of(t.Elem(), true), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Slice:
		return m{"type": nullable("array"), "items": s.of(t.Elem(), false)}
	case reflect.Map:
		return m{"type": nullable("object"), "additionalProperties": s.of(t.Elem(), true)}
	case reflect.Struct:
		return m{"$ref": "#/$defs/" + s.object(t)}
	}
	return m{"type": map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer",
		reflect.Int64: "integer", reflect.Uint64: "integer", reflect.Float64: "number"}[t.Kind()]}
}

// object adds the struct t to the objects, and returns its name.
func (s *stream) object(t reflect.Type) string {
	name := t.Name()
	if slices.ContainsFunc(s.objects, func(o object) bool { return o.name == name }) {
		return name
	}
	i := len(s.objects)
	s.objects = append(s.objects, object{name: name, doc: s.comments[t.Name()]})
	for _, f := range reflect.VisibleFields(t) {
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if key == "" || key == "-" {
			continue
		}
		owner := t
		if len(f.Index) > 1 {
			owner = t.Field(f.Index[0]).Type
		}
		fields := append(s.objects[i].fields, field{key, s.comments[owner.Name()+"."+f.Name], s.of(f.Type, options != ""),
			options != ""})
		s.objects[i].fields = fields
	}
	return name
}

// word describes a schema's values in a word.
func word(schema m) string {
	if ref, ok := schema["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/$defs/")
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	} else if items, ok := schema["items"].(m); ok {
		return "list of " + word(items)
	} else if values, ok := schema["additionalProperties"].(m); ok {
		return "object of " + word(values) + " by name"
	} else if schema["format"] != nil {
		return "time, RFC 3339"
	}
	kind := schema["type"].(string)
	return cmp.Or(map[string]string{"boolean": "true or false"}[kind], kind)
}

func (s *stream) page() string {
	var b strings.Builder
	b.WriteString(generated + topic("events") + "\n## Types\n\n" +
		"Keys marked \"may be missing\" are omitted if they are empty, zero or unknown.\n\n" +
		"| type | when | payload |\n|---|---|---|\n")
	for _, t := range s.types {
		var keys []string
		for _, key := range payloads(t) {
			keys = append(keys, "`"+key+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", t, cell(s.comments[t]), strings.Join(keys, " or "))
	}
	return b.String() + s.tables()
}

// tables returns the table of keys of each object.
func (s *stream) tables() string {
	var b strings.Builder
	for _, o := range s.objects {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| key | type | | meaning |\n|---|---|---|---|\n", o.name, o.doc)
		for _, f := range o.fields {
			may := ""
			if f.optional {
				may = "may be missing"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, word(f.schema), may, cell(f.doc))
		}
	}
	return b.String()
}

// schema returns a JSON Schema, draft 2020-12, of the first object.
func (s *stream) schema(title string) ([]byte, error) {
	defs := m{}
	for _, o := range s.objects {
		properties, required := m{}, []string{}
		for _, f := range o.fields {
			properties[f.name] = f.schema
			if f.doc != "" {
				f.schema["description"] = f.doc
			}
			if !f.optional {
				required = append(required, f.name)
			}
		}
		defs[o.name] = m{"type": "object", "description": o.doc, "properties": properties, "required": required}
	}
	var rules []m
	for _, t := range slices.Sorted(slices.Values(s.types)) {
		if keys := payloads(t); len(keys) > 0 {
			var one []m
			for _, key := range keys {
				one = append(one, m{"required": []string{key}})
			}
			rules = append(rules, m{"if": m{"properties": m{"type": m{"const": t}}}, "then": m{"anyOf": one}})
		}
	}
	root := s.objects[0].name
	if rules != nil {
		defs[root].(m)["allOf"] = rules
	}
	text, err := json.MarshalIndent(m{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title,
		"$ref": "#/$defs/" + root, "$defs": defs}, "", "  ")
	return append(text, '\n'), err
}
