package app

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"fisub/app/outcome"
	"fisub/internal/longtest"
)

// Events of an emulated run, of a remote run and of the recorded GPU runs match docs/event.schema.json, and the schema
// rejects other objects. The output of --json=final about them matches docs/final.schema.json.
func TestEventSchema(t *testing.T) {
	t.Parallel()
	longtest.Skip(t, "runs on the emulator")
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	valid, final := validator(t, repo, "event"), validator(t, repo, "final")
	dir := t.TempDir()
	if err := copySubmission(repo, dir); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "FISUB_CACHE="+newCache(t), "FIB_DATASET_PATH=")
	streams := [][]byte{}
	for _, command := range []string{"fisub --json local --device emu --limit 2",
		"fisub --json remote --gpu none --on loopback --limit 2",
		// A wrong kernel has a log, non-numeric errors and another exit status.
		"sed -i 's/TVM_FFI_DLL_EXPORT_TYPED_FUNC/DLL_EXPORT/' solution/cuda/kernel.cu; fisub --json local --device emu " +
			"--limit 1; test $? = 3"} {
		cmd := exec.Command("bash", "-c", command)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		streams = append(streams, out)
	}
	floors, err := filepath.Glob(filepath.Join(repo, "docs", "results", "*", "*", "floors.jsonl"))
	if err != nil || len(floors) == 0 {
		t.Fatalf("no events of a GPU in docs/results: %v", err)
	}
	for _, file := range floors {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, text)
	}
	seen := map[string][]byte{}
	for _, text := range streams {
		for line := range bytes.Lines(text) {
			if err := valid(line); err != nil {
				t.Errorf("%.300s\n%v", line, err)
			}
			var e struct{ Type string }
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			seen[e.Type] = line
		}
	}
	for _, kind := range []string{"run", "building", "built", "started", "evaluated", "done", "job", "floor"} {
		if seen[kind] == nil {
			t.Errorf("no stream has the type %s", kind)
		}
	}
	for _, c := range []struct{ command, status, next string }{
		{"local --device emu --limit 1", "not passed", "fisub check"},
		{"runs show last", "not passed", "fisub check"},
		{"runs show last~3", "passed", "fisub local --device emu --set contest"},
		{"compare last~3 last", "slower", "fisub report "},
		{"check --arch none", "not sound", "fisub check"},
		{"check --arch nothing", "error", ""},
		{"local --frobnicate", "error", ""},
		{"doctor", "error", ""},
	} {
		cmd := exec.Command("fisub", append(strings.Fields(c.command), "--json=final")...)
		cmd.Dir, cmd.Env = dir, env
		out, _ := cmd.Output()
		if err := final(out); err != nil {
			t.Errorf("%s: %s\n%v", c.command, out, err)
		}
		var o outcome.Outcome
		if err := json.Unmarshal(out, &o); err != nil || o.Status != c.status || !strings.HasPrefix(o.Next, c.next) ||
			o.Exit != cmd.ProcessState.ExitCode() {
			t.Errorf("%s: got %s, want status %q and next %q", c.command, out, c.status, c.next)
		}
		if o.Run != nil && o.Run.Failed > 0 && (o.Fault == nil || o.Fault.File != "solution/cuda/kernel.cu" || o.Fault.Line == 0) {
			t.Errorf("%s: got fault %+v, want its line in solution/cuda/kernel.cu", c.command, o.Fault)
		}
		if final(bytes.Replace(out, []byte(`"status"`), []byte(`"state"`), 1)) == nil {
			t.Errorf("%s: the schema takes it without a status", c.command)
		}
	}
	for what, line := range map[string]string{
		"no seq":              strings.Replace(string(seen["done"]), `"seq":`, `"sequence":`, 1),
		"no payload":          strings.Replace(string(seen["done"]), `"done":{`, `"ended":{`, 1),
		"a word for a number": strings.Replace(string(seen["done"]), `"passed":`, `"passed":"all","x":`, 1),
		"a word for a time":   strings.Replace(string(seen["evaluated"]), `"seconds":`, `"seconds":"long","x":`, 1),
		"a word for a timing": strings.Replace(string(seen["floor"]), `"trials_ns":[[`, `"trials_ns":[["soon",`, 1),
	} {
		if valid([]byte(line)) == nil {
			t.Errorf("%s: the schema takes it: %.300s", what, line)
		}
	}
}

// validator returns a function that checks a text against NAME.schema.json.
func validator(t *testing.T, repo, name string) func([]byte) error {
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(repo, "docs", name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return func(text []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return err
		}
		return schema.Validate(v)
	}
}
