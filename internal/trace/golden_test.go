package trace_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fisub/internal/trace"
)

const golden = "testdata/golden"

func readGolden(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(golden, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestGoldenSolution(t *testing.T) {
	var want struct {
		Hash string `json:"hash"`
	}
	if err := json.Unmarshal(readGolden(t, "hash.txt"), &want); err != nil {
		t.Fatal(err)
	}
	compact := readGolden(t, "solution.compact.json")
	for name, form := range map[string]trace.Form{
		"../../../../pack/testdata/solution.pack.json": trace.Indent,
		"solution.compact.json":                        trace.Compact,
	} {
		data := readGolden(t, name)
		sol, warnings, err := trace.ReadSolution(filepath.Join(golden, name))
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, warnings %v", name, err, warnings)
		}
		if got := sol.JSON(form); !bytes.Equal(got, data) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, data)
		}
		if got := sol.JSON(trace.Compact); !bytes.Equal(got, compact) {
			t.Errorf("%s in compact form: got\n%s\nwant\n%s", name, got, compact)
		}
		if got := sol.Hash(); got != want.Hash {
			t.Errorf("%s: hash: got %v, want %v", name, got, want.Hash)
		}
		if file, symbol := sol.Entry(); file != "kernel.cu" || symbol != "kernel" {
			t.Errorf("%s: entry: got %v %v", name, file, symbol)
		}
		if err := sol.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGoldenDefinition(t *testing.T) {
	compact, unset := readGolden(t, "definition.compact.json"), readGolden(t, "definition.save_json_file.json")
	def, _, err := trace.DecodeDefinition(unset)
	if err != nil {
		t.Fatal(err)
	}
	if got := def.JSON(trace.Compact); !bytes.Equal(got, compact) {
		t.Errorf("got\n%s\nwant\n%s", got, compact)
	}
	def, _, err = trace.DecodeDefinition(compact)
	if err != nil {
		t.Fatal(err)
	}
	if got := def.JSON(trace.Compact); !bytes.Equal(got, compact) {
		t.Errorf("got\n%s\nwant\n%s", got, compact)
	}
}

func TestGoldenTraces(t *testing.T) {
	data := readGolden(t, "traces.jsonl")
	traces, warnings, err := trace.ReadTraces(filepath.Join(golden, "traces.jsonl"))
	if err != nil || len(warnings) > 0 || len(traces) != 4 {
		t.Fatalf("got %d traces, warnings %v, %v", len(traces), warnings, err)
	}
	var got []byte
	for _, tr := range traces {
		got = append(append(got, tr.JSON(trace.Compact)...), '\n')
	}
	if !bytes.Equal(got, data) {
		t.Errorf("got\n%s\nwant\n%s", got, data)
	}
}

// Floats are encoded as errors of a Correctness, which accepts all of them.
func TestGoldenFloats(t *testing.T) {
	var vectors struct{ Pairs [][2]string }
	if err := json.Unmarshal(readGolden(t, "float_vectors.json"), &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Pairs) < 10 {
		t.Fatalf("got %d pairs", len(vectors.Pairs))
	}
	for _, pair := range vectors.Pairs {
		for _, sign := range []string{"", "-"} {
			f, err := strconv.ParseFloat(sign+pair[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			var extra trace.Map[any]
			extra.Set("f", f)
			tr := trace.Trace{Evaluation: &trace.Evaluation{Correctness: &trace.Correctness{Extra: &extra}}}
			want := `"extra":{"f":` + sign + pair[1] + `}`
			if got := string(tr.JSON(trace.Compact)); !strings.Contains(got, want) {
				t.Errorf("%s%s: got %s, want %s", sign, pair[0], got, want)
			}
		}
	}
}

type fault struct {
	Loc []any  `json:"loc"`
	Msg string `json:"msg"`
}

func faultsOf(t *testing.T, err error) []fault {
	t.Helper()
	if err == nil {
		return nil
	}
	var invalid *trace.ValidationError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %T: %v", err, err)
	}
	var faults []fault
	for _, f := range invalid.Faults {
		loc := make([]any, len(f.Loc))
		for i, l := range f.Loc {
			loc[i] = l
			if n, ok := l.(int); ok {
				loc[i] = float64(n) // as JSON decodes it
			}
		}
		faults = append(faults, fault{loc, f.Msg})
	}
	return faults
}

func TestGoldenValidation(t *testing.T) {
	var vectors map[string]struct {
		Input  json.RawMessage
		OK     bool
		Hash   string
		Errors []fault
	}
	if err := json.Unmarshal(readGolden(t, "solution_validation_vectors.json"), &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 20 {
		t.Fatalf("got %d vectors", len(vectors))
	}
	for name, v := range vectors {
		sol, _, err := trace.DecodeSolution(v.Input)
		if got, want := faultsOf(t, err), v.Errors; len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		if (sol != nil) != v.OK || v.OK && sol.Hash() != v.Hash {
			t.Errorf("%s: got %v, want ok %v, hash %s", name, sol, v.OK, v.Hash)
		}
	}
}

// decodeAs decodes a document of the named model.
func decodeAs(model string, data []byte) (v interface {
	JSON(trace.Form) []byte
}, warnings []trace.Warning, err error) {
	switch model {
	case "Definition":
		return unnil(trace.DecodeDefinition(data))
	case "Workload":
		return unnil(trace.DecodeWorkload(data))
	case "Solution":
		return unnil(trace.DecodeSolution(data))
	}
	return unnil(trace.DecodeTrace(data))
}

func unnil[T any, P interface {
	*T
	JSON(trace.Form) []byte
}](v P, w []trace.Warning, err error) (interface {
	JSON(trace.Form) []byte
}, []trace.Warning, error) {
	if v == nil {
		return nil, w, err
	}
	return v, w, err
}

// branches are the models of unions, which pydantic inserts into the path of a fault.
var branches = []string{"AxisConst", "AxisVar", "RandomInput", "SafetensorsInput", "ScalarInput", "int", "float",
	"bool"}

// testdata/pydantic.jsonl contains randomly damaged documents with the results of pydantic 2.13.4 for models with the
// format's fields and rules: faults, or the encoded document. Documents that pydantic rejects must be rejected here,
// with faults that it also reports; for a union it reports the faults of every branch. Documents that pydantic accepts
// only by converting a string, number or boolean, or in another branch than the keys imply, are rejected here with a
// type fault.
func TestPydanticVectors(t *testing.T) {
	f, err := os.Open("testdata/pydantic.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var n, written, stricter int
	for ; lines.Scan(); n++ {
		var v struct {
			Model, JSON, Compact string
			Errors               []fault
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		doc, _, err := decodeAs(v.Model, []byte(v.JSON))
		got := faultsOf(t, err)
		union := false
		for i, f := range v.Errors {
			v.Errors[i].Loc = slices.DeleteFunc(f.Loc, func(l any) bool {
				name, ok := l.(string)
				return ok && slices.Contains(branches, name)
			})
			union = union || len(v.Errors[i].Loc) < len(f.Loc)
			v.Errors[i].Msg = brief(f.Msg)
		}
		if len(v.Errors) > 0 && len(got) == 0 {
			t.Errorf("%s\n is read, want %v", v.JSON, v.Errors)
		}
		about := 0
		for _, f := range got {
			f.Msg = brief(f.Msg)
			same := func(want fault) bool { return reflect.DeepEqual(want, f) }
			switch {
			case slices.ContainsFunc(v.Errors, same):
				about++
			case strings.HasPrefix(f.Msg, "Input should be "):
				stricter++
			default:
				t.Errorf("%s\n got %v\nwant one of %v", v.JSON, f, v.Errors)
			}
		}
		if !union && about < len(v.Errors) && (len(got) != 1 || len(got[0].Loc) > 0) {
			t.Errorf("%s\n got %v\nwant %v", v.JSON, got, v.Errors)
		}
		if len(got) > 0 {
			continue
		}
		written++
		// pydantic drops optional
		if got := strings.ReplaceAll(string(doc.JSON(trace.Compact)), `,"optional":true`, ""); got != v.Compact {
			t.Errorf("%s\n got %s\nwant %s", v.JSON, got, v.Compact)
		}
	}
	t.Logf("%d vectors, of which %d are read; %d faults that pydantic does not name", n, written, stricter)
	if n < 100 || written < 15 {
		t.Errorf("got %d vectors, %d documents", n, written)
	}
}

// brief removes details of attempted conversions from a message of the format's library.
func brief(msg string) string {
	msg = strings.Replace(msg, "finite number", "valid integer", 1) // for integers
	if strings.HasPrefix(msg, "Input should be a valid ") {
		msg, _, _ = strings.Cut(msg, ": ")
		msg, _, _ = strings.Cut(msg, ", ")
	}
	if strings.HasPrefix(msg, "Invalid JSON: ") {
		return "Invalid JSON"
	}
	return msg
}

func TestDataset(t *testing.T) {
	definitions, _ := filepath.Glob("../../workloads/testdata/contest/definitions/*/*.json")
	if len(definitions) < 13 {
		t.Errorf("got %d definitions", len(definitions))
	}
	for _, path := range definitions {
		def, warnings, err := trace.ReadDefinition(path)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%v, warnings %v", err, warnings)
			continue
		}
		stable(t, "Definition", def.JSON(trace.Compact))
	}
	workloads, _ := filepath.Glob("../../workloads/*/*.jsonl")
	if len(workloads) < 3 {
		t.Errorf("got %d workloads files", len(workloads))
	}
	for _, path := range workloads {
		traces, warnings, err := trace.ReadTraces(path)
		if err != nil || len(warnings) > 0 || len(traces) < 2 {
			t.Errorf("%s: %d traces, %v, warnings %v", path, len(traces), err, warnings)
		}
		for _, tr := range traces {
			if tr.Solution != nil || tr.Evaluation != nil || tr.Workload.UUID == "" {
				t.Errorf("%s: got %+v", path, tr)
			}
			stable(t, "Trace", tr.JSON(trace.Compact))
		}
	}
}

// stable checks that an encoded document decodes, and then encodes to the same bytes.
func stable(t *testing.T, model string, data []byte) {
	t.Helper()
	again, _, err := decodeAs(model, data)
	if err != nil {
		t.Errorf("%s does not read back: %v", data, err)
		return
	}
	if got := again.JSON(trace.Compact); !bytes.Equal(got, data) {
		t.Errorf("got\n%s\nwant\n%s", got, data)
	}
}
