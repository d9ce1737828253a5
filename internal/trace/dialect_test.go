package trace_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"fisub/internal/trace"
)

// Documents of other programs are written back unchanged. Python escapes non-ASCII characters as \u.
func TestDialectsUnchanged(t *testing.T) {
	files, err := filepath.Glob("testdata/dialects/*/*.json")
	if err != nil || len(files) < 12 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	for _, file := range files {
		def, err := trace.ReadDialect(file)
		if err != nil {
			t.Error(err)
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := def.JSON(trace.Compact); !bytes.Equal(got, relaid(t, want)) {
			t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
		}
		if filepath.Base(filepath.Dir(file)) != "fi_trace" {
			continue // laid out by hand
		}
		var got strings.Builder
		for _, r := range string(def.JSON(trace.Indent)) + "\n" {
			if r < 0x80 {
				got.WriteRune(r)
			} else {
				fmt.Fprintf(&got, "\\u%04x", r)
			}
		}
		if got.String() != string(want) {
			t.Errorf("%s: got\n%s", file, got.String())
		}
	}
}

// relaid returns data as JSON without spaces, with strings in the encoder's form.
func relaid(t *testing.T, data []byte) []byte {
	t.Helper()
	v := jsontext.Value(bytes.Clone(data))
	if err := v.Compact(jsontext.PreserveRawStrings(false)); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDialectFields(t *testing.T) {
	read := func(file string) *trace.Definition {
		def, err := trace.ReadDialect("testdata/dialects/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return def
	}
	def := read("fi_trace/gdn_fused_decode_h5120_v48_d128.json")
	state, _ := def.Outputs.Get("ssm_state_out")
	out, _ := def.Inputs.Get("out")
	if state.Param != "ssm_state" || !out.Optional || !strings.Contains(def.Init, "def ") {
		t.Errorf("got param %q, optional %v, init %q", state.Param, out.Optional, def.Init)
	}
	def = read("sol-execbench/flux_rope.json")
	if half, _ := def.Axes.Get("half_head_dim"); half.Expr != "attention_head_dim // 2" || half.Const {
		t.Errorf("got %+v", half)
	}
	if def = read("sol-execbench/custom_inputs_matmul.json"); def.CustomInputs != "generate_inputs" {
		t.Errorf("got %q", def.CustomInputs)
	}
	// ReadDefinition rejects the same documents as the contest's library, but reads fields that the library ignores.
	for file, want := range map[string]string{
		"fi_trace/gdn_fused_decode_h5120_v48_d128.json": "top-level function named 'run'",
		"fi_trace/xqa_mla_h1_ckv128_kpe1_ps64.json":     "axes.beam_width.value: Field required",
		"sol-execbench/flux_rope.json":                  "axes.half_head_dim.type: Input should be 'const' or 'var'",
	} {
		if _, _, err := trace.ReadDefinition("testdata/dialects/" + file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", file, err, want)
		}
	}
	doc := strings.Replace(definition, `"dtype":"int8"`, `"dtype":"int8","optional":true,"param":"y"`, 1)
	doc = strings.Replace(doc, `"axes":`, `"init":7,"axes":`, 1)
	def, warnings, err := trace.DecodeDefinition([]byte(doc))
	if err != nil || len(warnings) != 1 || warnings[0].Key != "init" {
		t.Fatalf("got %v, %v", warnings, err)
	}
	if got := string(def.JSON(trace.Compact)); !strings.Contains(got, `"description":null,"optional":true,"param":"y"}`) {
		t.Errorf("got %s", got)
	}
}

func TestDialectWorkload(t *testing.T) {
	w, err := trace.DecodeDialectWorkload([]byte(`{"axes":{"n":2},"inputs":{"x":{"type":"custom"}},"uuid":"u",` +
		`"tolerance":{"max_atol":0.5,"max_error_cap":null}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := trace.Tolerance{MaxAtol: 0.5, MaxRtol: 0.01, RequiredMatchedRatio: 0.99}
	if x, _ := w.Inputs.Get("x"); x.Kind != trace.CustomInput || w.Tolerance == nil || *w.Tolerance != want {
		t.Errorf("got %+v, %+v", x, w.Tolerance)
	}
	const custom = `{"axes":{},"inputs":{"x":{"type":"custom"}},"uuid":"u"}`
	if w, _, err := trace.DecodeWorkload([]byte(custom)); err != nil || string(w.JSON(trace.Compact)) != custom {
		t.Errorf("got %v, %v", w, err)
	}
}
