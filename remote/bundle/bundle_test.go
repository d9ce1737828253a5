package bundle_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/bench/bound"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/longtest"
	"fisub/internal/trace"
	"fisub/remote"
	"fisub/remote/bundle"
	"fisub/remote/servertest"
	"fisub/workloads"
)

const definition = "gdn_decode_qk4_v8_d128_k_last"

func named(name, source string) *trace.Solution {
	return &trace.Solution{Name: name, Author: "a", Definition: definition,
		Spec: trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::kernel", DestinationPassingStyle: true,
			TargetHardware: []string{"cuda"}},
		Sources: []trace.SourceFile{{Path: "kernel.cu", Content: source}}}
}

const returns = "extern \"C\" int __tvm_ffi_kernel(void*, const void*, int, void*) { return 0; }\n"

func solution(t *testing.T) string {
	t.Helper()
	return file(t, "solution.json", string(named("s", returns).JSON(trace.Compact)))
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	servertest.Write(t, path, content)
	return path
}

func uuids(t *testing.T, data *workloads.Dataset, n int) (all []string) {
	t.Helper()
	ws, err := data.Workloads(definition, "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ws[:n] {
		all = append(all, w.UUID)
	}
	return all
}

func names(files []remote.File) (all []string) {
	for _, f := range files {
		all = append(all, f.Name)
	}
	slices.Sort(all)
	return all
}

// check checks that the files and args form a valid job.
func check(t *testing.T, files []remote.File, args []string) {
	t.Helper()
	job := &remote.Job{ID: "j", Files: files, Args: args, Limit: 1}
	if err := job.Check(); err != nil {
		t.Error(err)
	}
	for _, f := range files {
		if st, err := os.Stat(f.Path); err != nil || st.Size() != f.Size || f.Exec != (f.Name == "fisub") {
			t.Errorf("%s: got %+v, %v", f.Name, f, err)
		}
	}
}

func TestEmbedded(t *testing.T) {
	root := t.TempDir()
	b, err := bundle.New(t.Context(), root, t.TempDir(), file(t, "fisub", "program"),
		bundle.Spec{Solution: solution(t), Set: "default", Args: []string{"--device", "emu"}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := workloads.Open("", root)
	if err != nil {
		t.Fatal(err)
	}
	two := uuids(t, data, 2)
	files, args, err := b.Files(t.Context(), two)
	if err != nil {
		t.Fatal(err)
	}
	check(t, files, args)
	want := "fisub local --json --solution solution.json --device emu --keep-going --set default --workload " + two[0] +
		" --workload " + two[1]
	if got := strings.Join(args, " "); got != want {
		t.Errorf("args: got %s, want %s", got, want)
	}
	if got := names(files); !slices.Equal(got, []string{"fisub", "solution.json"}) {
		t.Errorf("files: got %v", got)
	}
	b, err = bundle.New(t.Context(), root, t.TempDir(), file(t, "fisub", "program"),
		bundle.Spec{Solution: solution(t), Set: "default",
			Baseline: file(t, "solution.json", string(named("b", returns).JSON(trace.Compact)))})
	if err != nil {
		t.Fatal(err)
	}
	files, args, err = b.Files(t.Context(), two)
	if err != nil {
		t.Fatal(err)
	}
	check(t, files, args)
	if got := strings.Join(args, " "); !strings.Contains(got, " --baseline baseline/solution.json ") {
		t.Errorf("args with a baseline: got %s", got)
	}
	if got := names(files); !slices.Equal(got, []string{"baseline/solution.json", "fisub", "solution.json"}) {
		t.Errorf("files with a baseline: got %v", got)
	}
	if _, _, err := b.Files(t.Context(), []string{"nobody"}); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("an unknown workload: got %v", err)
	}
}

// With a dataset in a folder, each job gets only its own workloads and their input files, from any folder.
func TestFolder(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	embedded, err := workloads.Open("", root)
	if err != nil {
		t.Fatal(err)
	}
	def, err := embedded.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := embedded.Workloads(definition, "default")
	if err != nil {
		t.Fatal(err)
	}
	outside := file(t, "outside.safetensors", "far away")
	put := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		servertest.Write(t, path, content)
	}
	put("definitions/d.json", string(def.JSON(trace.Compact)))
	var lines strings.Builder
	for i, w := range ws[:2] {
		for name, in := range w.Inputs.All() {
			if in.Kind != trace.Safetensors {
				continue
			}
			if i == 0 {
				put(in.Path, "content of "+in.Path)
			} else {
				in.Path = outside
				w.Inputs.Set(name, in)
			}
		}
		lines.Write((&trace.Trace{Definition: definition, Workload: *w}).JSON(trace.Compact))
		lines.WriteString("\n")
	}
	put("workloads/w.jsonl", lines.String())
	b, err := bundle.New(t.Context(), root, t.TempDir(), file(t, "fisub", "program"),
		bundle.Spec{Solution: solution(t), Dataset: dir, Set: "default"})
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range ws[:2] {
		files, args, err := b.Files(t.Context(), []string{w.UUID})
		if err != nil {
			t.Fatal(err)
		}
		check(t, files, args)
		if got := strings.Join(args, " "); !strings.HasSuffix(got, " --dataset dataset") {
			t.Errorf("args: got %s", got)
		}
		// The bundle contains a dataset with this workload and its files.
		there := t.TempDir()
		for _, f := range files {
			content, err := os.ReadFile(f.Path)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(there, f.Name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			servertest.Write(t, path, string(content))
		}
		data, err := workloads.Open(filepath.Join(there, "dataset"), root)
		if err != nil {
			t.Fatal(err)
		}
		got, err := data.Workloads(definition, "default")
		if err != nil || len(got) != 1 || got[0].UUID != w.UUID {
			t.Fatalf("workloads: got %v, %v", got, err)
		}
		inputs := 0
		for _, in := range got[0].Inputs.All() {
			if in.Kind != trace.Safetensors {
				continue
			}
			inputs++
			content, err := os.ReadFile(filepath.Join(there, "dataset", in.Path))
			want := "far away"
			if i == 0 {
				want = "content of " + in.Path
			}
			if err != nil || string(content) != want {
				t.Errorf("input %s: got %q, %v, want %q", in.Path, content, err, want)
			}
		}
		if inputs == 0 {
			t.Error("no input is a file: the test tests nothing")
		}
	}
}

// The folder of compiled kernels contains the solution, the baseline, and each further solution.
func TestKernel(t *testing.T) {
	longtest.Skip(t, "runs nvcc")
	root := t.TempDir() // without a toolchain, so the user's own is used
	base, floor := named("b", returns+"// b"), named("floor", returns+"// floor")
	python := named("p", returns)
	python.Spec.Language = trace.Python
	spec := bundle.Spec{Solution: solution(t), Set: "default", Arch: "sm_100",
		Baseline: file(t, "b.json", string(base.JSON(trace.Compact)))}
	b, err := bundle.New(t.Context(), root, t.TempDir(), file(t, "fisub", "program"), spec, floor, python)
	var missing *nvcc.MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := workloads.Open("", root)
	if err != nil {
		t.Fatal(err)
	}
	files, args, err := b.Files(t.Context(), uuids(t, data, 1))
	if err != nil {
		t.Fatal(err)
	}
	check(t, files, args)
	all := strings.Join(names(files), "\n")
	there := t.TempDir()
	for _, f := range files {
		path := filepath.Join(there, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(f.Path, path); err != nil {
			if err := os.Symlink(f.Path, path); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, sol := range []*trace.Solution{named("s", returns), base, floor} {
		if o, err := nvcc.Prebuilt(filepath.Join(there, "prebuilt"), sol, "sm_100"); err != nil || o.Arch != "sm_100" {
			t.Errorf("kernel of %s: got %+v, %v", sol.Name, o, err)
		}
	}
	for _, want := range []string{"/kernel.so", "/build.json", "/lib/libtvm_ffi.so", "prebuilt/build/index/",
		"prebuilt/lib/libcupti.so."} {
		if !strings.Contains(all, want) {
			t.Errorf("files: got %s, want %s among them", all, want)
		}
	}
	if got := strings.Join(args, " "); !strings.Contains(got, " --arch sm_100 --prebuilt prebuilt ") {
		t.Errorf("args: got %s", got)
	}
}

// Compile errors are reported before any host is contacted. An error of the solution is returned as is, others name
// their solution.
func TestBroken(t *testing.T) {
	longtest.Skip(t, "runs nvcc")
	root := t.TempDir()
	broken := named("b", "int x = y;")
	try := func(sol, baseline *trace.Solution) error {
		spec := bundle.Spec{Solution: file(t, "s.json", string(sol.JSON(trace.Compact))), Set: "default", Arch: "sm_100"}
		_, err := bundle.New(t.Context(), root, t.TempDir(), file(t, "fisub", "program"), spec, baseline)
		var missing *nvcc.MissingError
		if errors.As(err, &missing) {
			t.Skip(err)
		}
		return err
	}
	var build *device.BuildError
	if err := try(named("s", returns), broken); err == nil || errors.As(err, &build) ||
		!strings.Contains(err.Error(), "b does not compile for sm_100: kernel.cu does not compile") {
		t.Errorf("a second solution: got %v", err)
	}
	if err := try(broken, named("s", returns)); !errors.As(err, &build) {
		t.Errorf("the solution: got %v", err)
	}
}

func TestArch(t *testing.T) {
	for gpu, want := range map[string]string{"b200": "sm_100", "H200": "sm_90", "a100": "sm_80", "b300": "sm_103",
		"v100": ""} {
		if got, ok := bundle.Arch(gpu); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, want %q", gpu, got, want)
		}
	}
	for _, gpu := range bundle.GPUs() {
		if m := bound.Card(gpu); m.L2 == 0 || m.Bandwidth == 0 {
			t.Errorf("%s: got memory %+v", gpu, m)
		}
	}
	if len(bundle.GPUs()) < 8 {
		t.Errorf("GPUs: got %v", bundle.GPUs())
	}
}
