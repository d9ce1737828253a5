package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fisub/bench/worker"
	"fisub/internal/safetensors"
)

// The first workload that does not pass leaves a file with its inputs, the expected outputs and, if the call
// returned, the actual outputs.
func TestDump(t *testing.T) {
	for _, tc := range []struct {
		name   string
		actual bool
	}{{"wrong", true}, {"crash", false}} {
		dir := t.TempDir()
		events, result, err := modelRun(t, tc.name, 3, func(c *testRun) {
			c.Dump, c.Profile.Trials = dir, 1
		})
		if err != nil || result.Failed != 1 || result.Dumped == nil {
			t.Fatalf("%s: got %+v and %v, want one failed and its tensors", tc.name, result, err)
		}
		var uuid, status string
		for _, e := range events {
			if e.Evaluated != nil && !e.Evaluated.Passed() {
				uuid, status = e.Workload, string(e.Evaluated.Status())
			}
		}
		if files, _ := os.ReadDir(dir); len(files) != 1 || result.Dumped.Path != filepath.Join(dir, uuid+".safetensors") {
			t.Errorf("%s: got %v of %d files, want one of %s", tc.name, result.Dumped, len(files), uuid)
		}
		f, err := safetensors.Open(result.Dumped.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if st, err := os.Stat(result.Dumped.Path); err != nil || st.Size() != result.Dumped.Bytes ||
			result.Dumped.Actual != tc.actual {
			t.Errorf("%s: got %+v of %v, %v", tc.name, result.Dumped, st.Size(), err)
		}
		if m := f.Metadata(); m["workload"] != uuid || m["status"] != status || m["input.scale"] == "" {
			t.Errorf("%s: got the facts %v", tc.name, m)
		}
		for _, name := range []string{"input.q", "input.state", "expected.output", "expected.new_state"} {
			if x, err := f.Tensor(name); err != nil || !slices.ContainsFunc(x.Data, func(b byte) bool { return b != 0 }) {
				t.Errorf("%s: got %v, want tensor %s with numbers in it", tc.name, err, name)
			}
		}
		if f.Has("actual.output") != tc.actual || f.Has("actual.new_state") != tc.actual {
			t.Errorf("%s: the outputs of the call are there: %v, want %v", tc.name, f.Has("actual.output"), tc.actual)
		}
		if tc.actual { // it wrote nothing
			x, err := f.Tensor("actual.output")
			if err != nil || !bytes.Equal(x.Data, bytes.Repeat([]byte{worker.Poison}, len(x.Data))) {
				t.Errorf("%s: got an output that is not the poison: %v", tc.name, err)
			}
		}
	}
	if _, result, err := modelRun(t, "wrong", 3, nil); err != nil || result.Dumped != nil {
		t.Errorf("got %+v and %v, want nothing dumped", result.Dumped, err)
	}
}

// Outputs of a Python submission are kept with any shape. For a dtype that the format does not have, only dtype and
// shape are.
func TestDumpPython(t *testing.T) {
	needPython(t)
	for body, want := range map[string]string{
		"return (x * 2)[:3]": "", "return (x * 2).double()": "float64[8]",
	} {
		dir := t.TempDir()
		source := "import torch\ndef run(x, c):\n    " + body + "\n"
		_, _, _, result, err := dumpPython(t, scaleDefinition, source, false, []map[string]int{{"n": 8}}, nil, dir)
		if err != nil || result.Dumped == nil || filepath.Dir(result.Dumped.Path) != dir {
			t.Fatalf("%s: got %+v and %v", body, result, err)
		}
		f, err := safetensors.Open(result.Dumped.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := f.Metadata()["actual.y"]; got != want || f.Has("actual.y") != (want == "") {
			t.Errorf("%s: got %q and %v, want %q", body, got, f.Has("actual.y"), want)
		}
	}
}
