package bench

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
)

// A Python submission can write to its own cache, but not to files that other submissions read.
func TestSharedCachesAreReadOnly(t *testing.T) {
	needPython(t)
	if !sandbox.State().Files() {
		t.Skip("no Landlock")
	}
	shared := sharedPython(t, scaleDefinition, []map[string]int{{"n": 4}}, nil)
	shared.Worker.Sandbox = &sandbox.Sandbox{}
	const source = `import os
own = os.environ["FISUB_OWN_CACHE"]
open(os.path.join(own, "file"), "w").close()
root, written = os.path.dirname(os.path.dirname(own)), []
for folder in FOLDERS:
    try:
        open(os.path.join(root, folder, "planted"), "w").close()
        written.append(folder)
    except PermissionError:
        pass
def run(x, c):
    if written:
        raise ValueError(written)
    return x * c
`
	folders := []string{"build", "dataset", "python", "pyworker", "python-build", "reference", "toolchain", "vgpu", "vgpu-python"}
	list := "FOLDERS = ["
	for _, name := range folders {
		if err := os.MkdirAll(filepath.Join(shared.Device.CacheDir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		list += "'" + name + "', "
	}
	var evaluated trace.Evaluation
	stream := event.NewStream(func(e event.Event) error {
		if e.Evaluated != nil {
			evaluated = *e.Evaluated.Trace.Evaluation
		}
		return nil
	})
	_, err := Run(t.Context(), shared, Entry{Events: stream, Run: &event.Run{Schema: event.Schema, Fisub: "test"},
		Solution: &trace.Solution{Name: "s", Definition: shared.Definition.Name, Author: "a", Spec: trace.BuildSpec{
			Language: trace.Python, TargetHardware: []string{"cuda"}, EntryPoint: "main.py::run"},
			Sources: []trace.SourceFile{{Path: "main.py", Content: list + "]\n" + source}}}})
	if err != nil || evaluated.Status != trace.Passed {
		t.Errorf("got %s, %v, log %s", evaluated.Status, err, evaluated.Log)
	}
}

// A worker may write only to its own folders, not to compiler caches of other submissions.
func TestConfinedFolders(t *testing.T) {
	cache := t.TempDir()
	def := &trace.Definition{Name: "d"}
	folder := func(content string) string {
		sol := &trace.Solution{Definition: "d", Spec: trace.BuildSpec{Language: trace.CUDA, DestinationPassingStyle: true},
			Sources: []trace.SourceFile{{Path: "a", Content: content}}}
		if content == "" { // concatenated, its parts match the solution "b"
			sol.Sources = []trace.SourceFile{{Path: "ab"}}
		}
		p, err := newProcess(t.Context(), &Shared{Device: device.Options{CacheDir: cache},
			Worker: worker.Command{Sandbox: &sandbox.Sandbox{}}}, def, sol)
		if err != nil {
			t.Fatal(err)
		}
		defer p.stop()
		c, err := p.confined()
		if err != nil {
			t.Fatal(err)
		}
		own := filepath.Join(cache, "python")
		if len(c.Sandbox.Write) != 2 || c.Sandbox.Write[0] != p.temp {
			t.Errorf("got %v, want the temporary folder and one below %s", c.Sandbox.Write, own)
		}
		i := slices.IndexFunc(c.Sandbox.Write, func(path string) bool { return filepath.Dir(path) == own })
		if sandbox.State().Files() != (i == 1) || !slices.Contains(c.Env, pyworker.Own+"="+c.Sandbox.Write[1]) {
			t.Errorf("got %v, want a folder below %s", c.Sandbox.Write, own)
		}
		return c.Sandbox.Write[1]
	}
	if folder("b") == folder("") {
		t.Error("two submissions have one folder")
	}
}
