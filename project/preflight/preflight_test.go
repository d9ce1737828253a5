package preflight

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"fisub/bench/pyworker"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/longtest"
	"fisub/pack"
	"fisub/workloads"
)

// A project is a folder made from a txtar file, with the settings in its comment.
type project struct {
	dir   string
	check []string // folders with the submissions to check
	archs []string
	want  string
}

// load creates the project in file. The comment's lines after the title are: base NAME [DIR] (start with the files of
// testdata/base/NAME.txtar, in DIR), move FILE NEW (rename a file of the base), git (make a repository of all files that
// are not ignored), pack (write packed_solution.json), check DIR, arch ARCH, bytes FILE QUOTED, link FILE TARGET,
// fifo FILE. The archive's files are added to those of the base, or replace them.
//
// To add a case, write testdata/reject/NAME.txtar: a title, the closest base, the files that differ from it, and the
// expected findings in "want".
func load(t *testing.T, file string) *project {
	t.Helper()
	read := func(file string) *txtar.Archive {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return ar
	}
	p := &project{dir: filepath.Join(t.TempDir(), "project")}
	at := func(name string) string { // at creates the folder of a file
		path := filepath.Join(p.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	files := map[string][]byte{}
	packed, inGit := false, false
	ar := read(file)
	for _, line := range strings.Split(strings.TrimSpace(string(ar.Comment)), "\n")[1:] {
		verb, rest, _ := strings.Cut(line, " ")
		name, value, _ := strings.Cut(rest, " ")
		switch verb {
		case "base":
			for _, f := range read(filepath.Join("testdata", "base", name+".txtar")).Files {
				files[filepath.Join(value, f.Name)] = f.Data
			}
		case "move":
			if files[name] == nil {
				t.Fatalf("%s: no file %s to move", file, name)
			}
			files[value] = files[name]
			delete(files, name)
		case "git":
			inGit = true
		case "pack":
			packed = true
		case "check":
			p.check = append(p.check, rest)
		case "arch":
			p.archs = append(p.archs, rest)
		case "bytes":
			text, err := strconv.Unquote(value)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = []byte(text)
		case "fifo":
			if err := syscall.Mkfifo(at(name), 0o600); err != nil {
				t.Fatal(err)
			}
		case "link":
			if err := os.Symlink(value, at(name)); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("%s: unknown line %q", file, line)
		}
	}
	for _, f := range ar.Files {
		files[f.Name] = f.Data
	}
	p.want = string(files["want"])
	delete(files, "want")
	for name, data := range files {
		if err := os.WriteFile(at(name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if p.check == nil {
		p.check = []string{"."}
	}
	if packed {
		cfg, err := config.Load(filepath.Join(p.dir, config.Name))
		if err != nil {
			t.Fatal(err)
		}
		sol, _, err := pack.Solution(cfg, cfg.SourceDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := pack.Write(nil, filepath.Join(p.dir, pack.Packed), sol); err != nil {
			t.Fatal(err)
		}
	}
	if inGit {
		if _, err := exec.LookPath("git"); err != nil {
			t.Skip("no git")
		}
		for _, args := range [][]string{{"init", "-q"}, {"add", "."}} {
			if out, err := exec.Command("git", append([]string{"-C", p.dir}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("git %v: %v: %s", args, err, out)
			}
		}
	}
	return p
}

func (p *project) dataset(t *testing.T) *workloads.Dataset {
	t.Helper()
	root := filepath.Join(p.dir, "dataset")
	if _, err := os.Stat(root); err != nil {
		root = filepath.Join("testdata", "dataset")
	}
	data, err := workloads.Open(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// compiler skips a test that compiles if the toolchain is missing; it returns the cache to build in.
func compiler(t *testing.T) string {
	t.Helper()
	longtest.Skip(t, "runs nvcc")
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nvcc.Find(root); err != nil {
		t.Skipf("nothing is compiled: %v", err)
	}
	return root
}

func (p *project) run(t *testing.T) []Finding {
	t.Helper()
	if files, _ := filepath.Glob(filepath.Join(p.dir, "solution", "*", "*.py")); len(files) > 0 {
		if _, err := exec.LookPath("python3"); err != nil {
			t.Skip("no python3")
		}
	}
	root := t.TempDir()
	if len(p.archs) > 0 {
		root = compiler(t)
	}
	data := p.dataset(t)
	var all []Finding
	for _, dir := range p.check {
		r, err := Submission(t.Context(), Options{Config: filepath.Join(p.dir, dir, config.Name), Dataset: data, Cache: root,
			Archs: p.archs, MustCompile: true})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r.Findings...)
	}
	return all
}

// text formats a finding like the projects' "want".
func (p *project) text(f Finding) string {
	path := f.Path
	if rel, err := filepath.Rel(p.dir, f.Path); err == nil {
		path = rel
	}
	if f.Line > 0 {
		path += fmt.Sprintf(":%d", f.Line)
	}
	return fmt.Sprintf("%s %s %s", f.Severity, f.Code, cmp.Or(path, "-"))
}

func projects(t *testing.T, kind string, least int) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", kind, "*.txtar"))
	if err != nil || len(files) < least {
		t.Fatalf("got %d projects, %v; want %d at least", len(files), err, least)
	}
	return files
}

// TestReject: each way to be rejected or silently altered is reported at its place, without other findings.
func TestReject(t *testing.T) {
	for _, file := range projects(t, "reject", 40) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			p := load(t, file)
			var got []string
			for _, f := range p.run(t) {
				got = append(got, p.text(f))
				if f.Msg == "" || strings.Contains(f.Hint, "%!") || strings.Contains(f.Msg, "%!") {
					t.Errorf("%+v: want a message", f)
				}
				if f.Hint == "" && !slices.Contains([]string{"config-syntax", "missing-key", "does-not-compile",
					"does-not-assemble", "python-syntax", "parameter-count", "unknown-value", "invalid-utf8", "unknown-key",
					"compiler-warning"}, f.Code) {
					t.Errorf("%s: %s: want a remedy", p.text(f), f.Msg)
				}
			}
			want := strings.Split(strings.TrimSpace(p.want), "\n")
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
			}
		})
	}
}

// TestSound: no finding on correct projects, not even a note.
func TestSound(t *testing.T) {
	for _, file := range projects(t, "sound", 5) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			p := load(t, file)
			if p.want != "" {
				t.Fatal("a sound project wants no finding")
			}
			for _, f := range p.run(t) {
				t.Errorf("got %s: %v", p.text(f), f)
			}
		})
	}
}

// TestOwn: no finding on this repository's own submissions and the baselines, except calls of other libraries.
func TestOwn(t *testing.T) {
	data, err := workloads.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	configs, err := filepath.Glob(filepath.Join("..", "..", "solution", "baselines", "*", config.Name))
	if err != nil || len(configs) < 4 {
		t.Fatalf("got %q, %v; want four baselines at least", configs, err)
	}
	configs = append(configs, filepath.Join("..", "..", config.Name), filepath.Join("..", "..", "solution-prefill", config.Name))
	for _, file := range configs {
		r, err := Submission(t.Context(), Options{Config: file, Dataset: data, Cache: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Findings {
			others := []string{"flashinfer", "flashinfer-prefill", "fla-prefill"}
			if slices.Contains(others, filepath.Base(filepath.Dir(file))) &&
				(f.Code == "forbidden-library" || f.Code == "setting-lost") {
				continue
			}
			t.Errorf("%s: got %s: %v", file, f.Code, f)
		}
	}
}

// TestPacked: a packed solution gets the same checks as its sources.
func TestPacked(t *testing.T) {
	p := load(t, filepath.Join("testdata", "reject", "parameter_count.txtar"))
	cfg, err := config.Load(filepath.Join(p.dir, config.Name))
	if err != nil {
		t.Fatal(err)
	}
	sol, _, err := pack.Solution(cfg, cfg.SourceDir())
	if err != nil {
		t.Fatal(err)
	}
	sol.Sources[0].Content = strings.ReplaceAll(sol.Sources[0].Content, "\n", "\r\n")
	sol.Definition = "scales"
	r, err := Submission(t.Context(), Options{Solution: sol, File: "s.json", Dataset: p.dataset(t)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range r.Findings {
		got = append(got, p.text(f))
	}
	if want := []string{"warning crlf kernel.cu", "error unknown-definition s.json"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestKernels: the assembler's figures of each kernel.
func TestKernels(t *testing.T) {
	root := compiler(t)
	p := load(t, filepath.Join("testdata", "sound", "cuda.txtar"))
	r, err := Submission(t.Context(), Options{Config: filepath.Join(p.dir, config.Name), Dataset: p.dataset(t),
		Cache: root, Archs: []string{"sm_90", "sm_100"}, MustCompile: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Builds) != 2 {
		t.Fatalf("got %d builds, want 2", len(r.Builds))
	}
	for _, b := range r.Builds {
		if len(b.Kernels) != 1 {
			t.Fatalf("got %+v, want one kernel", b)
		}
		k := b.Kernels[0]
		if k.Arch != b.Arch || !strings.Contains(k.Name, "scale_kernel") || k.File != "kernel.cu" || k.Registers < 4 ||
			k.Registers > 64 ||
			k.MaxThreads != 256 || k.MinBlocks != 2 || k.Constant < 28 || k.SpillStores != 0 {
			t.Errorf("got %+v, want the figures of scale_kernel", k)
		}
	}
}

// TestCodes: docs/check.md lists each code, and no other.
func TestCodes(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "check.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			for _, m := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(cells[1], -1) {
				listed[m[1]] = true
			}
		}
	}
	var text strings.Builder
	for _, pattern := range []string{"*.go", "*.py", "source/*.go", "../../internal/config/*.go", "../../pack/pack.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				text.Write(data)
			}
		}
	}
	for code := range listed {
		if !strings.Contains(text.String(), strconv.Quote(code)) {
			t.Errorf("%s is listed, and nothing finds it", code)
		}
	}
	found := regexp.MustCompile(
		`(?:(?:Error|Warning|Note|"error"|"warning"|"note"), |Code[:=] ?|code(?:, hint)? :?= ?|fault\(|once\(|found\(|code: |\.Code = )"([a-z0-9-]+)"`).FindAllStringSubmatch(text.String(), -1)
	for _, m := range found {
		if !listed[m[1]] {
			t.Errorf("%s is found, and not listed", m[1])
		}
	}
	if len(found) < 60 || len(listed) < 70 {
		t.Errorf("got %d uses and %d rows, want more", len(found), len(listed))
	}
}

func TestRepositoryErrors(t *testing.T) {
	if _, _, err := Repository(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil || !os.IsNotExist(err) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
}

// TestCompilerWarnings: warnings about the solution's own files are notes, from the cache too.
func TestCompilerWarnings(t *testing.T) {
	p := load(t, filepath.Join("testdata", "reject", "compiler_warning.txtar"))
	want := []string{
		"host.cpp:1:23: warning: left shift count >= width of type [-Wshift-count-overflow]",
		"kernel.cu:10:1: warning: Value of threads per SM for entry 'scale_kernel' is out of range. .minnctapersm will be " +
			"ignored",
		`kernel.cu:12:20: warning #177-D: variable "before" was declared but never referenced`,
		`kernel.cu:14:3: warning #549-D: variable "sum" is used before its value is set`,
		`scale.cuh:2:7: warning #177-D: variable "unused_in_header" was declared but never referenced`,
	}
	for range 2 {
		var got []string
		for _, f := range p.run(t) {
			f.Path = filepath.Base(f.Path)
			got = append(got, f.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
	}
}

// TestTorch: the torch binding is compiled with torch's headers if torch is installed; otherwise a note says so.
func TestTorch(t *testing.T) {
	longtest.CI(t, "compiles against torch's headers")
	root := compiler(t)
	p := load(t, filepath.Join("testdata", "sound", "torch.txtar"))
	check := func() *Report {
		r, err := Submission(t.Context(), Options{Config: filepath.Join(p.dir, config.Name), Dataset: p.dataset(t), Cache: root,
			Archs: []string{"sm_100"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	texts := func(r *Report) (all []string) {
		for _, f := range r.Findings {
			if f.Code != "stale-packed" {
				all = append(all, p.text(f))
			}
		}
		return all
	}
	kernel := filepath.Join(p.dir, "solution", "cuda", "kernel.cu")
	text, err := os.ReadFile(kernel)
	if err != nil {
		t.Fatal(err)
	}
	// The error comes before torch's headers, which take a compiler a minute.
	if err := os.WriteFile(kernel, append([]byte("#error not today\n"), text...), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("none", func(t *testing.T) {
		t.Setenv("FISUB_PYTHON", "/nonexistent")
		if got := texts(check()); !slices.Equal(got, []string{"note not-compiled -"}) {
			t.Errorf("got %q, want a note", got)
		}
	})
	if _, err := pyworker.Find(t.Context()); err != nil {
		longtest.Missing(t, "python", err)
	}
	if got := texts(check()); !slices.Equal(got, []string{"error does-not-compile solution/cuda/kernel.cu:1"}) {
		t.Errorf("got %q, want the error", got)
	}
	if err := os.WriteFile(kernel, text, 0o644); err != nil {
		t.Fatal(err)
	}
	r := check()
	var kernels []string // without the empty one of torch's headers
	for _, k := range r.Builds[0].Kernels {
		kernels = append(kernels, k.Name)
	}
	if texts(r) != nil || !strings.Contains(r.Builds[0].Toolchain, "torch ") || !slices.Equal(kernels, []string{"scale_kernel"}) {
		t.Errorf("got %q, %q by %s; want scale_kernel, compiled with torch", texts(r), kernels, r.Builds[0].Toolchain)
	}
}
