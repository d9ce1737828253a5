package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/longtest"
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

// A source whose path a builder takes for commands has no verdict, in any language and kind of file, and is not built.
func TestNames(t *testing.T) {
	needPython(t)
	for _, tc := range []struct {
		language trace.Language
		path     string
	}{{trace.CPP, "d\ncxx=touch$${IFS}planted;c++\n#/k.cpp"}, {trace.CPP, "a\nb.h"}, {trace.CUDA, "a$(touch planted).cuh"},
		{trace.Python, "a\nb.py"}, {trace.Triton, "two words.txt"}} {
		shared := sharedPython(t, scaleDefinition, []map[string]int{{"n": 4}}, nil)
		sol := &trace.Solution{Name: "s", Definition: "scale", Author: "a", Spec: trace.BuildSpec{Language: tc.language, Binding: "torch",
			TargetHardware: []string{"cuda"}, EntryPoint: "main.py::run"},
			Sources: []trace.SourceFile{{Path: "main.py", Content: "def run(x, c):\n    return x * c\n"}, {Path: tc.path, Content: "x"}}}
		var failed, others []string
		stream := event.NewStream(func(e event.Event) error {
			switch {
			case e.Type == event.TypeFailed:
				failed = append(failed, e.Message.Text)
			case e.Evaluated != nil:
				others = append(others, string(e.Evaluated.Trace.Evaluation.Status))
			}
			return nil
		})
		_, err := Run(t.Context(), shared, Entry{Events: stream, Run: &event.Run{Schema: event.Schema, Fisub: "test"}, Solution: sol})
		if err != nil || len(others) > 0 || len(failed) != 1 || !strings.Contains(failed[0], "characters that builders do not quote") {
			t.Errorf("%q: got %v, verdicts %q, failures %q", tc.path, err, others, failed)
		}
		if left, _ := os.ReadDir(filepath.Join(shared.Device.CacheDir, "python-build")); len(left) > 0 {
			t.Errorf("%q: got builds %v", tc.path, left)
		}
	}
}

// A compiler can write only to the folder of its own build. Whatever it leaves there gets the name of that build.
func TestCompilersReachNoOtherBuild(t *testing.T) {
	needPython(t)
	if !sandbox.State().Files() {
		t.Skip("no Landlock")
	}
	shared := sharedPython(t, scaleDefinition, []map[string]int{{"n": 4}}, nil)
	shared.Worker.Sandbox = &sandbox.Sandbox{}
	builds := filepath.Join(shared.Device.CacheDir, "python-build")
	other := filepath.Join(builds, "torch-0123456789abcdef0123456789abcdef-0123456789abcdef0123456789abcdef")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	compiler := filepath.Join(t.TempDir(), "c++")
	script := "#!/bin/sh\ncase \"$*\" in *version*) exec c++ \"$@\";; esac\nexec 2>&1\necho x >mine && echo own folder: written\n" +
		"for f in " + builds + "/torch-planted " + other + "/s.so; do (echo x >$f) && echo others: written; done\n" +
		"mv " + other + " " + other + "2 && echo others: moved\n(sleep 600; touch late) >/dev/null 2>&1 &\nexit 1\n"
	if err := os.WriteFile(compiler, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CXX", compiler)
	var log string
	stream := event.NewStream(func(e event.Event) error {
		if e.Evaluated != nil {
			log += string(e.Evaluated.Trace.Evaluation.Status) + e.Evaluated.Trace.Evaluation.Log
		}
		if e.Message != nil {
			log += e.Message.Text + e.Message.Log
		}
		return nil
	})
	_, err := Run(t.Context(), shared, Entry{Events: stream, Run: &event.Run{Schema: event.Schema, Fisub: "test"},
		Solution: &trace.Solution{Name: "s", Definition: "scale", Author: "a", Spec: trace.BuildSpec{
			Language: trace.CPP, Binding: "torch", TargetHardware: []string{"cpu"}, EntryPoint: "main.cpp::run", DestinationPassingStyle: true},
			Sources: []trace.SourceFile{{Path: "main.cpp", Content: "int x;\n"}}}})
	if strings.Contains(log, "no-ninja") || strings.Contains(log, "ninja, which is not on PATH") {
		longtest.Missing(t, "python", errors.New(log))
	}
	if err != nil || !strings.Contains(log, "own folder: written") || strings.Contains(log, "others: ") {
		t.Errorf("got %v, %s, want that only the build's own folder is writable", err, log)
	}
	left, err := os.ReadDir(builds)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() != filepath.Base(other) && !strings.HasSuffix(e.Name(), ".lock") {
			t.Errorf("a failed build left %s", e.Name())
		}
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
