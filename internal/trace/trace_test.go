package trace_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

const (
	definition = `{"name":"toy","op_type":"t","axes":{"n":{"type":"var"},"m":{"type":"var"},"h":{"type":"const","value":8}},
 "inputs":{"x":{"shape":["n","h"],"dtype":"bfloat16"},"y":{"shape":["m","n"],"dtype":"int8"},"s":{"shape":null,"dtype":"float32"}},
 "outputs":{"z":{"shape":["n"],"dtype":"float32"}},
 "reference":"import math\n\n@math.f\ndef run(x, y, s):\n    return x\n"}`
	solution = `{"name":"n","definition":"d","author":"a","spec":{"language":"cuda","target_hardware":["cuda"],` +
		`"entry_point":"kernel.cu::kernel"},"sources":[{"path":"kernel.cu","content":"x"}]}`
	workload = `{"axes":{"n":4},"inputs":{"x":{"type":"random"},"s":{"type":"scalar","value":2}},"uuid":"u"}`
	passed   = `{"definition":"d","workload":` + workload + `,"solution":"s","evaluation":{"status":"PASSED","environment":` +
		`{"hardware":"h","libs":{}},"timestamp":"t","log":"","correctness":{"max_relative_error":0.5,"max_absolute_error":"NaN",` +
		`"extra":null},"performance":{"latency_ms":1.0,"reference_latency_ms":2.0,"speedup_factor":2.0}}}`
)

func documents() map[string]string {
	return map[string]string{"Definition": definition, "Solution": solution, "Workload": workload, "Trace": passed}
}

// edited replaces old by now in the sound document of a model.
func edited(t *testing.T, model, old, now string) []byte {
	t.Helper()
	doc := documents()[model]
	if !strings.Contains(doc, old) {
		t.Fatalf("%s has no %s", model, old)
	}
	return []byte(strings.Replace(doc, old, now, 1))
}

func TestSyntaxFaults(t *testing.T) {
	for _, tt := range []struct{ doc, msg, place string }{
		{"", "EOF while parsing a value at line 1 column 0", "1:1"},
		{"{", "EOF while parsing an object at line 1 column 1", "1:2"},
		{`{"a":1}` + "\n x", "trailing characters at line 2 column 2", "2:2"},
		{`{"a":1,}`, "trailing comma at line 1 column 8", "1:8"},
		{"{\n\"a\":[1,\n]}", "trailing comma at line 3 column 1", "3:1"},
		{`{"a":1 "b"}`, "expected `,` or `}` at line 1 column 8", "1:8"},
		{`[1 2]`, "expected `,` or `]` at line 1 column 4", "1:4"},
		{`{"a" 1}`, "expected `:` at line 1 column 6", "1:6"},
		{`{a:1}`, "key must be a string at line 1 column 2", "1:2"},
		{`{"a":01}`, "invalid number at line 1 column 7", "1:7"},
		{`{"a":1.}`, "invalid number at line 1 column 8", "1:8"},
		{`{"a":-Inf}`, "expected ident at line 1 column 10", "1:10"},
		{`{"a":+1}`, "expected value at line 1 column 6", "1:6"},
		{`{"a":"\x"}`, "invalid escape at line 1 column 8", "1:8"},
		{`{"a":"\ud800"}`, "unexpected end of hex escape at line 1 column 13", "1:13"},
		{`{"a":"\udc00"}`, "lone leading surrogate in hex escape at line 1 column 12", "1:12"},
		{`{"a":"\ud800\u0041"}`, "lone leading surrogate in hex escape at line 1 column 18", "1:18"},
		{"{\"a\":\"b\nc\"}", `control character (\u0000-\u001F) found while parsing a string at line 2 column 0`, "1:8"},
		{"{\"a\":\"b\xff\"}", "invalid unicode code point at line 1 column 8", "1:8"},
		{"{\"\xed\xa0\x80\":1}", "invalid unicode code point at line 1 column 3", "1:3"},
		{"\ufeff{}", "expected value at line 1 column 1", "1:1"},
		{strings.Repeat("[", 202), "recursion limit exceeded at line 1 column 202", "1:202"},
		{`{"a":` + strings.Repeat("9", 4301) + "}", "number out of range at line 1 column 4307", "1:4307"},
	} {
		for model := range documents() {
			_, _, err := decodeAs(model, []byte(tt.doc))
			var invalid *trace.ValidationError
			if !errors.As(err, &invalid) || len(invalid.Faults) != 1 {
				t.Errorf("%.40q: got %v", tt.doc, err)
				continue
			}
			f := invalid.Faults[0]
			if f.Type != "json_invalid" || f.Msg != "Invalid JSON: "+tt.msg || len(f.Loc) > 0 {
				t.Errorf("%.40q: got %s %s, want %s", tt.doc, f.Type, f.Msg, tt.msg)
			}
			if got := fmt.Sprintf("%d:%d", f.Line, f.Col); got != tt.place {
				t.Errorf("%.40q: got place %s, want %s", tt.doc, got, tt.place)
			}
		}
	}
}

func TestManyValues(t *testing.T) {
	_, _, err := trace.DecodeWorkload([]byte("[" + strings.Repeat("0,", 1<<20) + "0]"))
	if want := "workload:1:2097152: Invalid JSON: more than 1048576 values"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Depth and digits at the limits are no fault of the JSON.
func TestWithinLimits(t *testing.T) {
	deep := `"extra":{"a":` + strings.Repeat("[", 196) + strings.Repeat("]", 196) + `,"n":` + strings.Repeat("9", 4300) + "}"
	tr, _, err := trace.DecodeTrace(edited(t, "Trace", `"extra":null`, deep))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(tr.JSON(trace.Compact)); !strings.Contains(got, deep) {
		t.Errorf("got %s", got)
	}
}

func TestFaultTexts(t *testing.T) {
	for _, tt := range []struct{ name, model, old, new, want string }{
		{"reference syntax", "Definition", "return x", "return (x", "definition:4:14: Value error, Reference must be valid Python code: '(' was never closed (line 5)"},
		{"reference without run", "Definition", "def run", "async def run", "definition:4:14: Value error, Reference must define a top-level function named 'run'"},
		{"reference with BOM", "Definition", `"import`, `"\ufeffimport`, "definition:4:14: Value error, Reference must be valid Python code: invalid non-printable character U+FEFF (line 1)"},
		{"overlapping names", "Definition", `"z"`, `"x"`, "definition:3:12: Value error, Input and output names must not overlap"},
		{"constraint", "Definition", `"name"`, `"constraints":["n > 0","M = 3"],"name"`, "definition:1:16: Value error, Constraints must be valid Python expressions: invalid syntax (line 1)"},
		{"undefined axis", "Definition", `["m","n"]`, `["m","q"]`, `definition:2:11: Value error, Input "y" references undefined axis "q"`},
		{"undefined output axis", "Definition", `["n"]`, `["q"]`, `definition:3:12: Value error, Output "z" references undefined axis "q"`},
		{"axis too large", "Definition", `"value":8`, `"value":9223372036854775808`, "definition:1:103: axes.h.AxisConst.value: Input should be an integer of at most 64 bits"},
		{"axis too large, no type", "Definition", `"type":"const","value":8`, `"value":"99999999999999999999"`, "definition:1:88: axes.h.AxisConst.value: Input should be an integer of at most 64 bits"},
		{"several", "Definition", `"dtype":"int8"`, `"dtype":"uint8","description":3`,
			"definition:2:86: inputs.y.dtype: Input should be 'float32', 'float16', 'bfloat16', 'float8_e4m3fn', 'float8_e5m2', 'float4_e2m1', 'int64', 'int32', 'int16', 'int8' or 'bool'\n" +
				"definition:2:108: inputs.y.description: Input should be a valid string"},
		{"scalar too large", "Workload", `"value":2`, `"value":-9223372036854775809`, "workload:1:78: inputs.s.ScalarInput.value: Input should be an integer of at most 64 bits"},
		{"entry point", "Solution", "kernel.cu::kernel", "kernel.cu", `solution:1:110: spec: Value error, Invalid entry point format: kernel.cu. Expected "<file_path>::<function_name>".`},
		{"source path", "Solution", `"path":"kernel.cu"`, `"path":"a/../b\u001b[2J"`, `solution:1:150: sources.0: Value error, Invalid source path (parent directory traversal not allowed): a/../b�[2J`},
		{"correctness forbidden", "Trace", "PASSED", "TIMEOUT", "trace:1:251: evaluation: Value error, Evaluation must not include correctness when status is EvaluationStatus.TIMEOUT"},
		{"performance forbidden", "Trace", "PASSED", "INCORRECT_NUMERICAL", "trace:1:344: evaluation: Value error, Evaluation must not include performance when status is EvaluationStatus.INCORRECT_NUMERICAL"},
	} {
		_, _, err := decodeAs(tt.model, edited(t, tt.model, tt.old, tt.new))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got\n%v\nwant\n%s", tt.name, err, tt.want)
		}
	}
}

// The faults of a document do not grow without bound.
func TestManyFaults(t *testing.T) {
	doc := edited(t, "Solution", `"target_hardware":["cuda"]`, `"target_hardware":[`+strings.Repeat("1,", 5000)+`1]`)
	_, _, err := trace.DecodeSolution(doc)
	var invalid *trace.ValidationError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
	if got := len(invalid.Faults); got != 1000 {
		t.Errorf("got %d faults", got)
	}
}

func TestWarnings(t *testing.T) {
	doc := strings.Replace(solution, `"spec":{`, "\n\"spec\":{ \"destination_passing_stlye\":false,\"colour\":1,", 1)
	doc = strings.Replace(doc, `"path"`, `"Name":"n","path"`, 1)
	sol, warnings, err := trace.DecodeSolution([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if !sol.Spec.DestinationPassingStyle {
		t.Error("a misspelt key had an effect")
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String()+" "+w.Suggestion)
	}
	want := []string{
		"solution:2:10: unknown key spec.destination_passing_stlye destination_passing_style",
		"solution:2:44: unknown key spec.colour ",
		"solution:2:147: unknown key sources.0.Name ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// A key of another branch of the union is unknown to the one that was chosen.
	doc = strings.Replace(workload, `"type":"random"`, `"type":"random","seed":1,"value":2`, 1)
	w, warnings, err := trace.DecodeWorkload([]byte(doc))
	if err != nil || len(warnings) != 2 || warnings[0].String() != "workload:1:48: unknown key inputs.x.seed" || warnings[1].Key != "value" {
		t.Errorf("got %v, %v", warnings, err)
	}
	if s, _ := w.Inputs.Get("x"); s.Kind != trace.Random {
		t.Errorf("got %v", s.Kind)
	}
	// The historic key is known.
	doc = strings.Replace(definition, `"dtype":"int8"`, `"dtype":"int8","optional":true`, 1)
	def, warnings, err := trace.DecodeDefinition([]byte(doc))
	if err != nil || len(warnings) > 0 {
		t.Errorf("got %v, %v", warnings, err)
	}
	if y, _ := def.Inputs.Get("y"); !y.Optional {
		t.Error("optional was not read")
	}
}

func TestOrder(t *testing.T) {
	doc := strings.Replace(definition, `"axes":{`, `"axes":{"q":{},"a":{"value":1},"q":{"value":2},`, 1)
	def, _, err := trace.DecodeDefinition([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := def.Axes.Keys(), []string{"q", "a", "n", "m", "h"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if q, _ := def.Axes.Get("q"); !q.Const || q.Value != 2 {
		t.Errorf("got %+v: the last of equal keys counts", q)
	}
	many := []string{`"k0":{}`}
	for i := range 40 {
		many = append(many, fmt.Sprintf(`"k%d":{"value":%d}`, i%20, i))
	}
	def, _, err = trace.DecodeDefinition([]byte(strings.Replace(definition, `"axes":{`, `"axes":{`+strings.Join(many, ",")+",", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if a, ok := def.Axes.Get(fmt.Sprintf("k%d", i)); !ok || a.Value != i+20 {
			t.Errorf("k%d: got %+v", i, a)
		}
	}
	if got := def.Axes.Len(); got != 23 {
		t.Errorf("got %d axes", got)
	}
	def, _, err = trace.DecodeDefinition([]byte(strings.Replace(definition, `{"name"`, `{"tags":["a","b"],"tags":["c"],"name"`, 1)))
	if err != nil || !slices.Equal(def.Tags, []string{"c"}) {
		t.Errorf("got %v, %v", def, err)
	}
}

// Time is linear in the number of keys.
func TestManyKeys(t *testing.T) {
	var keys strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&keys, `"k%d":0,`, i)
	}
	start := time.Now()
	w, _, err := trace.DecodeWorkload(edited(t, "Workload", `"n":4`, keys.String()+`"n":4`))
	if err != nil || w.Axes.Len() != 200_001 {
		t.Errorf("got %v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestHash(t *testing.T) {
	s := sound()
	s.Spec.Binding, s.Spec.Dependencies = "torch", []string{"d1", "d2"}
	s.Sources = append(s.Sources, trace.SourceFile{Path: "é.cuh", Content: "y"})
	if got, want := s.Hash(), "523562cc15d33b1431e41696a457a3a84f94c40d"; got != want { // sha1 of "dcudakernel.cu::kerneltorchd1d2kernel.cuxé.cuhy"
		t.Errorf("got %v, want %v", got, want)
	}
}

func sound() *trace.Solution {
	return &trace.Solution{Name: "n", Definition: "d", Author: "a",
		Spec:    trace.BuildSpec{Language: trace.CUDA, TargetHardware: []string{"cuda"}, EntryPoint: "kernel.cu::kernel"},
		Sources: []trace.SourceFile{{Path: "kernel.cu", Content: "x"}}}
}

func TestValidate(t *testing.T) {
	if err := sound().Validate(); err != nil {
		t.Fatal(err)
	}
	if got, want := sound().Hash(), "4570a6c5a6b0fcd651a1f93162bf087049963400"; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, tt := range []struct {
		name   string
		change func(s *trace.Solution)
		want   string
	}{
		{"no name", func(s *trace.Solution) { s.Name = "" }, "solution: name: String should have at least 1 character"},
		{"no language", func(s *trace.Solution) { s.Spec.Language = "" }, "solution: spec.language: Input should be 'python', 'triton', 'cpp', 'cuda' or 'tilelang'"},
		{"no hardware", func(s *trace.Solution) { s.Spec.TargetHardware = nil }, "solution: spec.target_hardware: List should have at least 1 item after validation, not 0"},
		{"no sources", func(s *trace.Solution) { s.Sources = nil }, "solution: sources: List should have at least 1 item after validation, not 0"},
		{"empty source", func(s *trace.Solution) { s.Sources[0].Content = "" }, "solution: sources.0.content: String should have at least 1 character"},
		{"invalid UTF-8", func(s *trace.Solution) { s.Sources[0].Content = "a\xff" }, "solution: sources.0.content: Input should be a valid string, unable to parse raw data as a unicode string"},
		{"twice", func(s *trace.Solution) { s.Sources = append(s.Sources, s.Sources[0]) }, "solution: Value error, Duplicate source path 'kernel.cu'"},
		{"entry", func(s *trace.Solution) { s.Spec.EntryPoint = "x.cu::k" }, "solution: Value error, Entry source file 'x.cu' not found in sources"},
	} {
		s := sound()
		tt.change(s)
		if err := s.Validate(); err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}

	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	def.Axes.Set("h", trace.Axis{Const: true, Value: -1})
	if err := def.Validate(); err == nil || !strings.HasPrefix(err.Error(), "definition: axes.h.AxisConst.value: Input should be greater") {
		t.Errorf("got %v", err)
	}

	var w trace.Workload
	w.UUID = "u"
	w.Inputs.Set("x", trace.InputSpec{Kind: trace.Safetensors})
	if err := w.Validate(); err == nil || !strings.Contains(err.Error(), "inputs.x.SafetensorsInput.path: String should have") {
		t.Errorf("got %v", err)
	}
	w.Inputs.Set("x", trace.InputSpec{})
	if err := w.Validate(); err != nil {
		t.Error(err)
	}

	tr, _, err := trace.DecodeTrace([]byte(passed))
	if err != nil {
		t.Fatal(err)
	}
	tr.Evaluation.Correctness.MaxAbsoluteError = math.Inf(1)
	if err := tr.Validate(); err != nil {
		t.Error(err)
	}
	tr.Evaluation.Performance.SpeedupFactor = math.Inf(1)
	if err := tr.Validate(); err == nil || err.Error() != "trace: evaluation.performance.speedup_factor: Input should be a valid number" {
		t.Errorf("got %v", err)
	}
}

// Of a decoded document, IndentUnset writes what it had and what was changed since; of a value made in Go, everything.
func TestUnset(t *testing.T) {
	sol, _, err := trace.DecodeSolution([]byte(solution))
	if err != nil {
		t.Fatal(err)
	}
	sol.Spec.Binding = "torch"
	text := string(sol.JSON(trace.IndentUnset))
	if !strings.Contains(text, `"binding": "torch"`) || strings.Contains(text, "dependencies") || strings.Contains(text, "description") {
		t.Errorf("got %s", text)
	}
	made := sound()
	if got, want := string(made.JSON(trace.IndentUnset)), string(made.JSON(trace.Indent)); got != want || !strings.Contains(got, `"binding": null`) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAppendTraces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	tr, _, err := trace.DecodeTrace([]byte(passed))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(passed+"\n\n \r\n{\"definition\":"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := trace.AppendTraces(path, tr, tr); err != nil {
		t.Fatal(err)
	}
	want := passed + "\n\n \r\n{\"definition\":\n" + passed + "\n" + passed + "\n"
	got, _ := os.ReadFile(path)
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	traces, _, err := trace.ReadTraces(path)
	if len(traces) != 3 || err == nil || err.Error() != path+":4:15: Invalid JSON: EOF while parsing a value" {
		t.Errorf("got %d traces, %v", len(traces), err)
	}

	bad := *tr
	bad.Definition = ""
	if err := trace.AppendTraces(path, tr, &bad); err == nil {
		t.Error("an invalid trace was appended")
	}
	if got, _ := os.ReadFile(path); string(got) != want {
		t.Error("the file changed with an error")
	}
	if _, _, err := trace.ReadTraces(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestReadPlaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(path, edited(t, "Solution", `"name":"n"`, "\n\"nmae\":\"n\""), 0o644); err != nil {
		t.Fatal(err)
	}
	_, warnings, err := trace.ReadSolution(path)
	if err == nil || err.Error() != path+":1:1: name: Field required" {
		t.Errorf("got %v", err)
	}
	if len(warnings) != 1 || warnings[0].String() != path+":2:1: unknown key nmae" || warnings[0].Suggestion != "name" {
		t.Errorf("got %v", warnings)
	}
}

func TestBindAxes(t *testing.T) {
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		shapes map[string][]int
		want   string
	}{
		{"bound", map[string][]int{"x": {5, 9}, "y": {2, 5}, "s": {1, 2, 3}}, ""},
		{"rank", map[string][]int{"x": {5}}, "Input 'x''s defined dimension is 2 but the actual dimension is 1"},
		{"disagree", map[string][]int{"x": {5, 8}, "y": {3, 2}}, "Axis 'n' has different values for different input tensors: 5 and 2"},
		{"missing", map[string][]int{"x": {5, 8}}, "Missing values for variable axes: {'m'}"},
		{"nothing", nil, "Missing values for variable axes: {'n', 'm'}"},
	} {
		axes, err := def.BindAxes(tt.shapes)
		if tt.want == "" {
			if want := map[string]int{"n": 5, "m": 2}; err != nil || !maps.Equal(axes, want) {
				t.Errorf("%s: got %v, %v, want %v", tt.name, axes, err, want)
			}
		} else if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}

	for _, tt := range []struct {
		spec trace.TensorSpec
		axes map[string]int
		want []int
		err  string
	}{
		{trace.TensorSpec{Shape: []string{"n", "h"}}, map[string]int{"n": 3, "h": 7, "q": 1}, []int{3, 8}, ""},
		{trace.TensorSpec{Shape: []string{}}, nil, []int{}, ""},
		{trace.TensorSpec{Scalar: true}, nil, nil, ""},
		{trace.TensorSpec{Shape: []string{"m"}}, map[string]int{"n": 3}, nil, "Missing value for variable axis 'm'"},
		{trace.TensorSpec{Shape: []string{"m"}}, map[string]int{"m": -3}, nil, "axis 'm' is negative: -3"},
		{trace.TensorSpec{Shape: []string{"q"}}, map[string]int{"q": 3}, nil, "undefined axis 'q'"},
	} {
		got, err := def.Shape(tt.spec, tt.axes)
		if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%v: got %#v, %v, want %#v, %s", tt.spec, got, err, tt.want, tt.err)
		}
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"name", "definition", "author", "destination_passing_style", "binding", "entry_point"}
	for _, tt := range []struct {
		word string
		want []string
	}{
		{"nmae", []string{"name"}},
		{"Name", []string{"name"}},
		{"entrypoint", []string{"entry_point"}},
		{"destination_passing_stlye", []string{"destination_passing_style"}},
		{"bindings", []string{"binding"}},
		{"x", nil},
		{"", nil},
		{"sources", nil},
	} {
		if got := trace.Nearest(tt.word, keys); !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %v, want %v", tt.word, got, tt.want)
		}
	}
	if got := trace.Nearest("sm", []string{"ms", "xx"}); !slices.Equal(got, []string{"ms"}) {
		t.Errorf("got %v: a swap of neighbours is one edit", got)
	}
	if got := trace.Nearest("util.cu", []string{"UTIL.CU"}); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if got, want := trace.Nearest("gdn_4", []string{"gdn_16", "gdn_45", "gdn_4", "gdn_5", "gdn_6"}), []string{"gdn_4", "gdn_45", "gdn_5"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func fuzz(f *testing.F, model string) {
	f.Add([]byte(documents()[model]))
	for _, v := range []string{`{}`, `[]`, `null`, `{"a":NaN,"a":-Infinity}`, `{"axes":{"":{"value":"1_0.0"}}}`} {
		f.Add([]byte(v))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, _, err := decodeAs(model, data)
		if err != nil {
			var invalid *trace.ValidationError
			if v != nil || !errors.As(err, &invalid) || err.Error() == "" {
				t.Fatalf("got %v with error %v", v, err)
			}
			return
		}
		if v.Validate() != nil { // an infinite scalar or latency, which the format writes as null
			return
		}
		for _, form := range []trace.Form{trace.Compact, trace.Indent, trace.IndentUnset} {
			text := v.JSON(form)
			again, warnings, err := decodeAs(model, text)
			if err != nil || len(warnings) > 0 {
				t.Fatalf("%q does not read back: %v, warnings %v", text, err, warnings)
			}
			if got := again.JSON(form); string(got) != string(text) {
				t.Fatalf("got %q, want %q", got, text)
			}
		}
	})
}

func FuzzDefinition(f *testing.F) { fuzz(f, "Definition") }
func FuzzSolution(f *testing.F)   { fuzz(f, "Solution") }
func FuzzWorkload(f *testing.F)   { fuzz(f, "Workload") }
func FuzzTrace(f *testing.F)      { fuzz(f, "Trace") }

func megabyte() *trace.Solution {
	s := sound()
	s.Sources[0].Content = strings.Repeat("  if (i < n) { out[i] = \"\\t\" + in[i]; } // é\n", 1<<20/48)
	return s
}

func BenchmarkDecodeSolution(b *testing.B) {
	data := megabyte().JSON(trace.Indent)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, _, err := trace.DecodeSolution(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeSolution(b *testing.B) {
	s := megabyte()
	b.SetBytes(int64(len(s.JSON(trace.Indent))))
	for b.Loop() {
		s.JSON(trace.Indent)
	}
}

func TestKinds(t *testing.T) {
	w, _, err := trace.DecodeWorkload([]byte(`{"axes":{},"uuid":"u","inputs":{"i":{"value":1},"f":{"value":1.0},"b":{"value":true},"s":{"value":"1"},"t":{"path":"p","tensor_key":"k"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]trace.Scalar{"i": {Kind: trace.IntScalar, Int: 1}, "f": {Kind: trace.FloatScalar, Float: 1},
		"b": {Kind: trace.BoolScalar, Bool: true}, "s": {Kind: trace.IntScalar, Int: 1}}
	for name, v := range want {
		if got, _ := w.Inputs.Get(name); got.Kind != trace.ScalarInput || got.Value != v {
			t.Errorf("%s: got %+v, want %+v", name, got, v)
		}
	}
	if s, _ := w.Inputs.Get("t"); s.Kind != trace.Safetensors || s.Path != "p" || s.TensorKey != "k" {
		t.Errorf("got %+v", s)
	}
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	if x, _ := def.Inputs.Get("x"); x.DType != tensor.BFloat16 || x.Scalar || !slices.Equal(x.Shape, []string{"n", "h"}) {
		t.Errorf("got %+v", x)
	}
	if s, _ := def.Inputs.Get("s"); s.DType != tensor.Float32 || !s.Scalar {
		t.Errorf("got %+v", s)
	}
}
