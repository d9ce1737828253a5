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

	"fisub/internal/longtest"
)

// The events of a run on the emulator, of a remote run and of the runs on a GPU whose streams the repository keeps are
// as docs/event.schema.json says, and what is not an event is refused.
func TestEventSchema(t *testing.T) {
	t.Parallel()
	longtest.Skip(t, "runs on the emulator")
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(repo, "docs", "event.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	valid := func(line []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		if err != nil {
			return err
		}
		return schema.Validate(v)
	}
	dir := t.TempDir()
	if err := copySubmission(repo, dir); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "FISUB_CACHE="+newCache(t), "FIB_DATASET_PATH=")
	streams := [][]byte{}
	for _, command := range []string{"fisub --json local --device emu --limit 2",
		"fisub --json remote --gpu none --on loopback --limit 2",
		// A wrong kernel has a log, errors that are no numbers, and another exit status.
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
