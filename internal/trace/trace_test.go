package trace_test

import (
	"encoding/json"
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
	passed   = `{"definition":"d","workload":` + workload +
		`,"solution":"s","evaluation":{"status":"PASSED","environment":` +
		`{"hardware":"h","libs":{}},"timestamp":"t","log":"","correctness":{"max_relative_error":0.5,"max_absolute_error":"NaN",` +
		`"extra":null},"performance":{"latency_ms":1.0,"reference_latency_ms":2.0,"speedup_factor":2.0}}}`
)

func documents() map[string]string {
	return map[string]string{"Definition": definition, "Solution": solution, "Workload": workload, "Trace": passed}
}

// edited replaces old by now in the valid document of a model.
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
		{"", "unexpected EOF", "1:1"},
		{`{"a":"b`, "unexpected EOF", "1:8"},
		{`{} {}`, "more than one value", "1:3"},
		{`{"a":1,}`, "invalid character ',' at start of value", "1:7"},
		{`{"a":1 "b"}`, "invalid character '\"' after object value (expecting ',' or '}')", "1:8"},
		{`{"a":01}`, "invalid character '1' after object value (expecting ',' or '}')", "1:7"},
		{`{"a":-Inf}`, "invalid character 'I' in number (expecting digit)", "1:7"},
		{`{"a":NaN1}`, "invalid character 'N' at start of value", "1:6"},
		{`{NaN:1}`, "object member name must be a string", "1:2"},
		{`{"a":"\x"}`, "invalid escape sequence `\\x` in string", "1:7"},
		{`{"a":"\udc00"}`, "invalid surrogate pair `\\udc00\"}` in string", "1:7"},
		{"{\"a\":\"b\nc\"}", `invalid character '\n' in string (expecting non-control character)`, "1:8"},
		{"{\"a\":\"b\xff\"}", "invalid UTF-8", "1:8"},
		{"\ufeff{}", `invalid character '\ufeff' at start of value`, "1:1"},
		{`{"a":1,` + "\n" + `"a":2}`, "duplicate object member name", "2:1"},
		{`{"a":1,"\u0061":2}`, "duplicate object member name", "1:8"},
		{strings.Repeat("[", 10001), "exceeded max depth", "1:10001"},
	} {
		for model := range documents() {
			_, _, err := decodeAs(model, []byte(tt.doc))
			var invalid *trace.ValidationError
			if !errors.As(err, &invalid) || len(invalid.Faults) != 1 {
				t.Errorf("%.40q: got %v", tt.doc, err)
				continue
			}
			f := invalid.Faults[0]
			if f.Msg != "Invalid JSON: "+tt.msg || len(f.Loc) > 0 {
				t.Errorf("%.40q: got %s, want %s", tt.doc, f.Msg, tt.msg)
			}
			if got := fmt.Sprintf("%d:%d", f.Line, f.Col); got != tt.place {
				t.Errorf("%.40q: got place %s, want %s", tt.doc, got, tt.place)
			}
		}
	}
}

func TestManyValues(t *testing.T) {
	_, _, err := trace.DecodeWorkload([]byte("[" + strings.Repeat("0,", 1<<20) + "0]"))
	if want := "workload:1:2097151: Invalid JSON: more than 1048576 values"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Deep nesting and long numbers are valid JSON.
func TestWithinLimits(t *testing.T) {
	deep := `"extra":{"a":` + strings.Repeat("[", 196) + strings.Repeat("]", 196) + `,"n":` + strings.Repeat("9",
		4300) + "}"
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
		{"reference without run", "Definition", "def run", "async def run",
			"definition:4:14: Value error, Reference must define a top-level function named 'run'"},
		{"overlapping names", "Definition", `"z"`, `"x"`,
			"definition:3:12: Value error, Input and output names must not overlap"},
		{"undefined axis", "Definition", `["m","n"]`, `["m","q"]`,
			`definition:2:11: Value error, Input "y" references undefined axis "q"`},
		{"axis too large", "Definition", `"value":8`, `"value":9223372036854775808`,
			"definition:1:103: axes.h.value: Input should be an integer of at most 64 bits"},
		{"several", "Definition", `"dtype":"int8"`, `"dtype":"uint8","description":3`,
			"definition:2:86: inputs.y.dtype: Input should be 'float32', 'float16', 'bfloat16', 'float8_e4m3fn', " +
				"'float8_e5m2', 'float4_e2m1', 'int64', 'int32', 'int16', 'int8' or 'bool'\n" +
				"definition:2:108: inputs.y.description: Input should be a valid string"},
		{"entry point", "Solution", "kernel.cu::kernel", "kernel.cu",
			`solution:1:110: spec: Value error, Invalid entry point format: kernel.cu. Expected "<file_path>::<function_name>".`},
		{"source path", "Solution", `"path":"kernel.cu"`, `"path":"a/../b\u001b[2J"`,
			`solution:1:150: sources.0: Value error, Invalid source path (parent directory traversal not allowed): a/../b�[2J`},
		{"correctness forbidden", "Trace", "PASSED", "TIMEOUT",
			"trace:1:251: evaluation: Value error, Evaluation must not include correctness when status is " +
				"EvaluationStatus.TIMEOUT"},
		{"performance forbidden", "Trace", "PASSED", "INCORRECT_NUMERICAL",
			"trace:1:344: evaluation: Value error, Evaluation must not include performance when status is " +
				"EvaluationStatus.INCORRECT_NUMERICAL"},
	} {
		_, _, err := decodeAs(tt.model, edited(t, tt.model, tt.old, tt.new))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got\n%v\nwant\n%s", tt.name, err, tt.want)
		}
	}
}

// The number of faults is limited.
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

	// A key of another branch of the union is unknown in the chosen one.
	doc = strings.Replace(workload, `"type":"random"`, `"type":"random","seed":1,"value":2`, 1)
	w, warnings, err := trace.DecodeWorkload([]byte(doc))
	if err != nil || len(warnings) != 2 || warnings[0].String() != "workload:1:48: unknown key inputs.x.seed" ||
		warnings[1].Key != "value" {
		t.Errorf("got %v, %v", warnings, err)
	}
	if s, _ := w.Inputs.Get("x"); s.Kind != trace.Random {
		t.Errorf("got %v", s.Kind)
	}
	// The obsolete key "optional" is known.
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
	doc := strings.Replace(definition, `"axes":{`, `"axes":{"q":{},"a":{"value":1},`, 1)
	def, _, err := trace.DecodeDefinition([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := def.Axes.Keys(), []string{"q", "a", "n", "m", "h"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Values must have their exact JSON type. Conversions of the format's library are rejected.
func TestStrictTypes(t *testing.T) {
	for _, tt := range []struct{ model, old, now, want string }{
		{"Definition", `"value":8`, `"value":"8"`, "definition:1:103: axes.h.value: Input should be a valid integer"},
		{"Definition", `"value":8`, `"value":8.0`, "definition:1:103: axes.h.value: Input should be a valid integer"},
		{"Definition", `"value":8`, `"value":true`, "definition:1:103: axes.h.value: Input should be a valid integer"},
		{"Definition", `"value":8`, `"value":-1`,
			"definition:1:103: axes.h.value: Input should be greater than or equal to 0"},
		{"Definition", `"type":"const"`, `"type":"expr"`, "definition:1:87: axes.h.type: Input should be 'const' or 'var'"},
		{"Workload", `"n":4`, `"n":"4"`, "workload:1:14: axes.n: Input should be a valid integer"},
		{"Workload", `"value":2`, `"value":"2"`, "workload:1:78: inputs.s.value: Input should be a number or a boolean"},
		{"Solution", `"kernel.cu::kernel"`, `"kernel.cu::kernel","destination_passing_style":"yes "`,
			"solution:1:158: spec.destination_passing_style: Input should be a valid boolean, unable to interpret input"},
		{"Solution", `"kernel.cu::kernel"`, `"kernel.cu::kernel","destination_passing_style":0.5`,
			"solution:1:158: spec.destination_passing_style: Input should be a valid boolean"},
		{"Trace", `"max_relative_error":0.5`, `"max_relative_error":"0.5"`,
			"trace:1:272: evaluation.correctness.max_relative_error: Input should be a valid number"},
		{"Trace", `"latency_ms":1.0`, `"latency_ms":true`,
			"trace:1:345: evaluation.performance.latency_ms: Input should be a valid number"},
		{"Trace", `"latency_ms":1.0`, `"latency_ms":NaN`,
			"trace:1:345: evaluation.performance.latency_ms: Input should be greater than or equal to 0"},
	} {
		_, _, err := decodeAs(tt.model, edited(t, tt.model, tt.old, tt.now))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got\n%v\nwant\n%s", tt.now, err, tt.want)
		}
	}
}

// Booleans are decoded as in pydantic 2.13.4.
func TestBooleans(t *testing.T) {
	for text, want := range map[string]bool{"true": true, "1": true, "1.0": true, "10e-1": true, "0": false, "-0.0": false,
		`"True"`: true, `"YES"`: true, `"on"`: true, `"y"`: true, `"t"`: true, `"1"`: true, `"False"`: false, `"no"`: false,
		`"OFF"`: false, `"n"`: false, `"f"`: false, `"0"`: false} {
		doc := strings.Replace(solution, `"kernel.cu::kernel"`,
			`"kernel.cu::kernel","destination_passing_style":`+text, 1)
		sol, _, err := trace.DecodeSolution([]byte(doc))
		if err != nil || sol.Spec.DestinationPassingStyle != want {
			t.Errorf("%s: got %v, %v, want %v", text, sol, err, want)
		}
	}
}

// Non-finite values are accepted bare, as Python's json writes them, and as pydantic's strings. In strings and keys the
// words are plain text.
func TestNotFinite(t *testing.T) {
	for _, tt := range []struct{ old, now, want string }{
		{`"max_relative_error":0.5`, `"max_relative_error":NaN`, `"max_relative_error":"NaN"`},
		{`"max_relative_error":0.5`, `"max_relative_error": Infinity `, `"max_relative_error":"Infinity"`},
		{`"max_relative_error":0.5`, `"max_relative_error":"Infinity"`, `"max_relative_error":"Infinity"`},
		{`"extra":null`, `"extra":{"NaN":[NaN,-Infinity,Infinity],"s":"[NaN,\" Infinity"}`,
			`"extra":{"NaN":[null,null,null],"s":"[NaN,\" Infinity"}`},
		{`"latency_ms":1.0`, `"latency_ms":Infinity`, `"latency_ms":null`},
	} {
		tr, _, err := trace.DecodeTrace(edited(t, "Trace", tt.old, tt.now))
		if err != nil {
			t.Errorf("%s: %v", tt.now, err)
			continue
		}
		if got := string(tr.JSON(trace.Compact)); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %s, want %s in it", tt.now, got, tt.want)
		}
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
	// sha1 of "dcudakernel.cu::kerneltorchd1d2kernel.cuxé.cuhy"
	if got, want := s.Hash(), "523562cc15d33b1431e41696a457a3a84f94c40d"; got != want {
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
		{"no sources", func(s *trace.Solution) { s.Sources = nil },
			"solution: sources: List should have at least 1 item after validation, not 0"},
		{"invalid UTF-8", func(s *trace.Solution) { s.Sources[0].Content = "a\xff" },
			"solution: sources.0.content: Input should be a valid string, unable to parse raw data as a unicode string"},
		{"twice", func(s *trace.Solution) { s.Sources = append(s.Sources, s.Sources[0]) },
			"solution: Value error, Duplicate source path 'kernel.cu'"},
		{"entry", func(s *trace.Solution) { s.Spec.EntryPoint = "x.cu::k" },
			"solution: Value error, Entry source file 'x.cu' not found in sources"},
	} {
		s := sound()
		tt.change(s)
		if err := s.Validate(); err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}

// Values that no document may contain can be encoded, but not decoded.
func TestUnreadable(t *testing.T) {
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	def.Axes.Set("h", trace.Axis{Const: true, Value: -1})
	if _, _, err := trace.DecodeDefinition(def.JSON(trace.Compact)); err == nil ||
		!strings.Contains(err.Error(), "axes.h.value: Input should be greater") {
		t.Errorf("got %v", err)
	}

	var w trace.Workload
	w.UUID = "u"
	w.Inputs.Set("x", trace.InputSpec{Kind: trace.Safetensors})
	if _, _, err := trace.DecodeWorkload(w.JSON(trace.Compact)); err == nil ||
		!strings.Contains(err.Error(), "inputs.x.path: String should have") {
		t.Errorf("got %v", err)
	}
	w.Inputs.Set("x", trace.InputSpec{})
	if _, _, err := trace.DecodeWorkload(w.JSON(trace.Compact)); err != nil {
		t.Error(err)
	}

	tr, _, err := trace.DecodeTrace([]byte(passed))
	if err != nil {
		t.Fatal(err)
	}
	tr.Evaluation.Correctness.MaxAbsoluteError = math.Inf(1)
	if _, _, err := trace.DecodeTrace(tr.JSON(trace.Compact)); err != nil {
		t.Error(err)
	}
	tr.Evaluation.Performance.SpeedupFactor = math.Inf(1)
	if _, _, err := trace.DecodeTrace(tr.JSON(trace.Compact)); err == nil ||
		!strings.Contains(err.Error(), "evaluation.performance.speedup_factor: Input should be a valid number") {
		t.Errorf("got %v", err)
	}
}

func TestReadTraces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	text := passed + "\n\n \r\n{\"definition\":\n" + passed + "\n" + passed
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	traces, _, err := trace.ReadTraces(path)
	if len(traces) != 3 || err == nil || err.Error() != path+":4:15: Invalid JSON: unexpected EOF" {
		t.Errorf("got %d traces, %v", len(traces), err)
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
		{"disagree", map[string][]int{"x": {5, 8}, "y": {3, 2}},
			"Axis 'n' has different values for different input tensors: 5 and 2"},
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

func fuzz(f *testing.F, model string) {
	f.Add([]byte(documents()[model]))
	for _, v := range []string{`{}`, `[]`, `null`, `{"a":NaN,"a":-Infinity}`, `{"axes":{"":{"value":10.0}}}`,
		`{"a":1,"a":2}`,
		`[NaN,Infinity]`, "{\"a\":\"\xff\"}", `{"\ud800":1}`, `[1e400,-0,1E+2]`, `{NaN:"NaN"}`, `{} {}`} {
		f.Add([]byte(v))
	}
	for _, word := range []string{"NaN", "Infinity", "-Infinity"} { // replacing each number
		f.Add([]byte(strings.NewReplacer("0.5", word, "1.0", word, "2", word, "4", word).Replace(documents()[model])))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, _, err := decodeAs(model, data)
		if err != nil {
			var invalid *trace.ValidationError
			// If a character is invalid here, it must be for encoding/json too, which accepts duplicate keys and invalid UTF-8.
			if errors.As(err, &invalid) && strings.HasPrefix(invalid.Faults[0].Msg, "Invalid JSON: invalid character") &&
				json.Valid(data) {
				t.Fatalf("%q: got %v", data, err)
			}
			if v != nil || !errors.As(err, &invalid) || err.Error() == "" {
				t.Fatalf("got %v with error %v", v, err)
			}
			return
		}
		if _, _, err := decodeAs(model, v.JSON(trace.Compact)); err != nil {
			return // an infinite scalar or latency, which the format writes as null
		}
		for _, form := range []trace.Form{trace.Compact, trace.Indent} {
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
	w, _, err := trace.DecodeWorkload(
		[]byte(
			`{"axes":{},"uuid":"u","inputs":{"i":{"value":1},"f":{"value":1.0},"b":{"value":true},"t":{"path":"p","tensor_key":"k"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]trace.Scalar{"i": {Kind: trace.IntScalar, Int: 1}, "f": {Kind: trace.FloatScalar, Float: 1},
		"b": {Kind: trace.BoolScalar, Bool: true}}
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
