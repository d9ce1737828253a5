package tasks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fisub/internal/hint"
	"fisub/internal/trace"
)

// write writes a task of GPU MODE with a part of task.yml, and returns its folder.
func write(t *testing.T, yml string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"task.yml": "files:\n  - {name: submission.py, source: \"@SUBMISSION@\"}\n  - {name: eval.py, source: eval.py}\n" +
			"  - {name: reference.py, source: reference.py}\nconfig: {main: eval.py}\n" + yml,
		"eval.py":      "custom_kernel, generate_input, check_implementation\n",
		"reference.py": "def generate_input(n, seed): pass\nfrom x import (check_implementation)\ndef ref_kernel(d): pass\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Cases become workloads: sizes are axes, all else is an argument. The UUID follows from the files and the values.
func TestCases(t *testing.T) {
	const yml = "lang: py\ntests: [{n: 4, seed: 1, kind: a, flags: [1, 2], low: -3, on: true}]\nbenchmarks: [{n: 9, seed: 2}]\n"
	dir := write(t, yml)
	task, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	w := task.Sets[0].Workloads[0]
	if got := string(w.JSON(trace.Compact)); !strings.Contains(got, `{"axes":{"n":4,"seed":1},"inputs":{},`) ||
		!strings.Contains(got, `"arguments":{"kind":"a","flags":[1,2],"low":-3,"on":true}`) {
		t.Errorf("got %s", got)
	}
	def := task.Definition
	if def.Name != filepath.Base(dir) || def.Python.Ranking != "last" || def.Python.Inputs != "reference.py::generate_input" ||
		def.Python.Check != "reference.py::check_implementation" || task.Sets[1].Name != Benchmarks || task.Answer != filepath.Join(dir, "submission.py") {
		t.Errorf("got %+v, %+v", def, def.Python)
	}
	again, _, err := trace.DecodeDefinition(def.JSON(trace.Compact))
	if err != nil || string(again.JSON(trace.Compact)) != string(def.JSON(trace.Compact)) {
		t.Errorf("got %v, want the same definition: %v", again, err)
	}
	if same, _ := Read(write(t, yml)); same.Sets[0].Workloads[0].UUID == w.UUID {
		t.Error("a task of another name has the same workload")
	}
	if same, _ := Read(dir); same.Sets[0].Workloads[0].UUID != w.UUID {
		t.Error("the same case has another UUID")
	}
	if text, err := task.Start(); err != nil || !strings.Contains(text, "from reference import ref_kernel\n") {
		t.Errorf("got %q, %v", text, err)
	}
}

// What cannot be judged is refused with the place and a remedy.
func TestRefused(t *testing.T) {
	for yml, want := range map[string]string{
		"lang: cu\ntests: [{n: 1}]\n":                           `lang: "cu" is not supported`,
		"lang: py\n":                                            "no tests and no benchmarks",
		"lang: py\nmulti_gpu: true\ntests: [{n: 1}]\n":          "multi_gpu: fisub runs tasks on one GPU",
		"lang: py\nranking_by: best\ntests: [{n: 1}]\n":         `ranking_by: "best"`,
		"lang: py\ntests:\n  - {n: {}}\n":                       "task.yml:8: tests: n: a map",
		"lang: py\ntests:\n  - 5\n":                             "task.yml:8: tests: want a map",
		"lang: [\n":                                             "task.yml: ",
		"lang: py\ntests: [{n: 1}]\nconfig: {main: other.py}\n": "task.yml: ",
	} {
		_, err := Read(write(t, yml))
		if err == nil || !strings.Contains(err.Error(), want) || hint.Of(err) == "" {
			t.Errorf("%q: got %v, want %s and a hint", yml, err, want)
		}
	}
}

// A task's names and links lead to no file that is not Python.
func TestLeads(t *testing.T) {
	dir := write(t, "lang: py\ntests: [{n: 1}]\n")
	secret := filepath.Join(dir, "id_rsa")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Remove(filepath.Join(dir, "reference.py")),
		os.Symlink(secret, filepath.Join(dir, "reference.py"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "id_rsa, which is not a Python file") {
		t.Errorf("got %v for a link", err)
	}
	yml, _ := os.ReadFile(filepath.Join(dir, "task.yml"))
	text := strings.Replace(string(yml), "source: reference.py", "source: id_rsa", 1)
	if err := os.WriteFile(filepath.Join(dir, "task.yml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "id_rsa, which is not a Python file") {
		t.Errorf("got %v for a name", err)
	}
}

// A folder is KernelBench's if exactly one of its files is a problem.
func TestKernelBench(t *testing.T) {
	const problem = "class Model(nn.Module):\n  pass\ndef get_inputs():\n  pass\ndef get_init_inputs():\n  pass\n"
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if task, err := Read(dir); task != nil || err != nil {
		t.Errorf("got %v, %v; want nothing in an empty folder", task, err)
	}
	put("helper.py", "class Model: pass\n")
	put("12_Gemm.py", problem)
	task, err := Read(dir)
	if err != nil || task.Definition.Name != "12_Gemm" || filepath.Base(task.Answer) != "answer.py" || len(task.Sets[0].Workloads) != 5 {
		t.Fatalf("got %+v, %v", task, err)
	}
	if text, _ := task.Start(); !strings.HasPrefix(text, "class ModelNew(nn.Module)") {
		t.Errorf("got %q", text)
	}
	put("mine.py", "import triton\n"+strings.ReplaceAll(problem, "Model", "ModelNew"))
	task, err = Read(dir)
	if err != nil {
		t.Fatalf("got %+v, %v", task, err)
	}
	if sol, err := task.Read(task.Answer); err != nil || sol.Spec.EntryPoint != "mine.py::ModelNew" ||
		sol.Spec.Language != trace.Triton {
		t.Errorf("got %+v, %v", sol, err)
	}
	put("other.py", "class ModelNew: pass\n")
	if _, err = Read(dir); err == nil || !strings.Contains(err.Error(), "several files define ModelNew: ") {
		t.Errorf("got %v", err)
	}
	put("answer.py", "class ModelNew: pass\n")
	if task, err = Read(dir); err != nil || task.Answer != filepath.Join(dir, "answer.py") {
		t.Errorf("got %+v, %v; want the answer with the usual name among three", task, err)
	}
	put("13_Other.py", problem)
	if _, err = Read(dir); err == nil || !strings.Contains(err.Error(), "several problems of KernelBench") {
		t.Errorf("got %v", err)
	}
}
