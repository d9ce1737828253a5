package definitions

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"fisub/internal/trace"
)

// contest is the folder of the contest's own definitions.
const contest = "../workloads/testdata/contest/definitions"

func all(t *testing.T) map[string]*trace.Definition {
	t.Helper()
	defs := map[string]*trace.Definition{}
	names, err := fs.Glob(FS, "*/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("embedded files: got %v, %v", names, err)
	}
	for _, name := range names {
		text, err := FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		def, warnings, err := trace.DecodeDefinition(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, w := range warnings {
			t.Errorf("%s: %v", name, w)
		}
		defs[name] = def
	}
	return defs
}

func TestNamesAndPaths(t *testing.T) {
	for file, def := range all(t) {
		if want := path.Join(def.OpType, def.Name+".json"); file != want {
			t.Errorf("%s: got a definition that belongs at %s", file, want)
		}
		if def.Description == nil {
			t.Errorf("%s: no description", file)
		}
		for name, spec := range def.Inputs.All() {
			if spec.Description == nil {
				t.Errorf("%s: input %s: no description", file, name)
			}
		}
	}
}

// Definitions of the contest's dataset must have exactly the same interface here; only descriptions, tags and the text
// of the reference may differ.
func TestSameInterfaceAsTheContest(t *testing.T) {
	compared := 0
	for file, def := range all(t) {
		text, err := os.ReadFile(filepath.Join(contest, filepath.FromSlash(file)))
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		compared++
		theirs, _, err := trace.DecodeDefinition(text)
		if err != nil {
			t.Fatal(err)
		}
		if def.Name != theirs.Name || def.OpType != theirs.OpType {
			t.Errorf("%s: got %s of %s, want %s of %s", file, def.Name, def.OpType, theirs.Name, theirs.OpType)
		}
		compareAxes(t, file, def, theirs)
		compareSpecs(t, file+" inputs", &def.Inputs, &theirs.Inputs)
		compareSpecs(t, file+" outputs", &def.Outputs, &theirs.Outputs)
		if got, want := slices.Sorted(slices.Values(def.Constraints)),
			slices.Sorted(slices.Values(theirs.Constraints)); !slices.Equal(got, want) {
			t.Errorf("%s: constraints: got %q, want %q", file, got, want)
		}
		if def.Reference == theirs.Reference {
			t.Errorf("%s: the reference is a copy of the contest's", file)
		}
	}
	if compared != 9 {
		t.Errorf("got %d definitions that the contest's dataset has, want 9", compared)
	}
}

func compareAxes(t *testing.T, file string, got, want *trace.Definition) {
	t.Helper()
	if !slices.Equal(got.Axes.Keys(), want.Axes.Keys()) {
		t.Errorf("%s: axes: got %v, want %v", file, got.Axes.Keys(), want.Axes.Keys())
	}
	for name, w := range want.Axes.All() {
		if g, _ := got.Axes.Get(name); g.Const != w.Const || g.Value != w.Value {
			t.Errorf("%s: axis %s: got const %v %d, want const %v %d", file, name, g.Const, g.Value, w.Const, w.Value)
		}
	}
}

func compareSpecs(t *testing.T, place string, got, want *trace.Map[trace.TensorSpec]) {
	t.Helper()
	if !slices.Equal(got.Keys(), want.Keys()) {
		t.Errorf("%s: got %v, want %v", place, got.Keys(), want.Keys())
	}
	for name, w := range want.All() {
		g, _ := got.Get(name)
		if g.Scalar != w.Scalar || !reflect.DeepEqual(g.Shape, w.Shape) || g.DType != w.DType || g.Optional != w.Optional {
			t.Errorf("%s: %s: got %v %v optional %v, want %v %v optional %v", place, name, g.Shape, g.DType, g.Optional, w.Shape,
				w.DType, w.Optional)
		}
	}
}
