package scaffold

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fisub/definitions"
	"fisub/internal/config"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/project/preflight"
)

func definition(t *testing.T, json string) *trace.Definition {
	t.Helper()
	def, _, err := trace.DecodeDefinition([]byte(json))
	if err != nil {
		t.Fatal(err)
	}
	return def
}

func file(t *testing.T, p *Project, path string) string {
	t.Helper()
	for _, f := range p.Files {
		if f.Path == path {
			return string(f.Content)
		}
	}
	t.Fatalf("%s: outside the served project", path)
	return ""
}

// double is not a definition of the contest.
const double = `{"name": "double", "op_type": "t", "axes": {"n": {"type": "var"}},
"inputs": {"x": {"shape": ["n"], "dtype": "float32"}, "s": {"shape": null, "dtype": "int32"}},
"outputs": {"y": {"shape": [], "dtype": "float32"}}, "reference": "def run(x, s):\n    return x + s"}`

func decode(t *testing.T) *trace.Definition {
	t.Helper()
	data, err := definitions.FS.ReadFile("gdn/gdn_decode_qk4_v8_d128_k_last.json")
	if err != nil {
		t.Fatal(err)
	}
	return definition(t, string(data))
}

// For every definition, the new project has no finding and a valid config, even with the commented keys enabled.
func TestNew(t *testing.T) {
	files, err := fs.Glob(definitions.FS, "*/*.json")
	if err != nil || len(files) < 37 {
		t.Fatalf("got %q, %v", files, err)
	}
	var defs []*trace.Definition
	for _, name := range files {
		data, err := definitions.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		def := definition(t, string(data))
		if !Known(def.Name) {
			t.Errorf("%s: no kernel", def.Name)
		}
		defs = append(defs, def)
	}
	for _, def := range defs {
		for _, language := range Languages {
			t.Run(def.Name+"/"+string(language), func(t *testing.T) {
				opts := Options{Definition: def, Language: language, Name: `a "b"`, Author: "é", Version: "v1"}
				p, err := New(opts)
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				if _, err := p.Write(dir, false); err != nil {
					t.Fatal(err)
				}
				cfg, err := config.Load(filepath.Join(dir, config.Name))
				if err != nil {
					t.Fatal(err)
				}
				if err := config.Check(cfg, def); err != nil {
					t.Error(err)
				}
				sol, _, err := pack.Solution(cfg, cfg.SourceDir())
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range preflight.Sources(t.Context(), sol, def) {
					t.Errorf("finding: %s", f)
				}
				if sol.Name != opts.Name || sol.Author != opts.Author {
					t.Errorf("got name %q, author %q, want %q, %q", sol.Name, sol.Author, opts.Name, opts.Author)
				}
				for _, f := range p.Files[4:] {
					if strings.Contains(string(f.Content), "[[") {
						t.Errorf("%s: not filled", f.Path)
					}
					if wide := regexp.MustCompile(`(?m)^.{132,}$`).Find(f.Content); wide != nil {
						t.Errorf("%s: wide: %s", f.Path, wide)
					}
				}
				run := "fisub local --device emu --set contest --sample 6\n"
				if def.OpType == "moe" {
					run = "fisub local --device emu\n"
				}
				if text := file(t, p, Workflow); !strings.Contains(text, run) {
					t.Errorf("the workflow has no %q:\n%s", run, text)
				}
				text := file(t, p, config.Name)
				all := regexp.MustCompile(`(?m)^# ((\w+ = |\[).*)`).ReplaceAllString(text, "$1")
				if strings.Count(all, "\n#") >= strings.Count(text, "\n#") {
					t.Error("the config has no commented keys")
				}
				if _, err := config.Parse(config.Name, []byte(all)); err != nil {
					t.Errorf("with every key: %v\n%s", err, all)
				}
			})
		}
	}
}

func TestNewRefuses(t *testing.T) {
	def := decode(t)
	for _, c := range []struct {
		name string
		opts Options
		want string
	}{
		{"no kernel", Options{Definition: definition(t, double), Language: trace.CUDA, Name: "n", Author: "a"},
			`definition "double": fisub has no template kernel: write kernel(x float32 [n], s int32) -> (y float32 [])`},
		{"language", Options{Definition: def, Language: trace.TileLang, Name: "n", Author: "a"},
			`language "tilelang": no template`},
		{"author", Options{Definition: def, Language: trace.Python, Name: "n", Author: "a/b"}, `author "a/b": contains a slash`},
		{"both", Options{Definition: def, Language: trace.Python, Name: "..", Author: "a\nb"}, "unprintable character"},
	} {
		if _, err := New(c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want it to hold %q", c.name, err, c.want)
		}
	}
}

func TestWrite(t *testing.T) {
	p, err := New(Options{Definition: decode(t), Language: trace.Python, Name: "n", Author: "a"})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "deep", "project")
	write := func(force bool, want ...string) {
		t.Helper()
		done, err := p.Write(dir, force)
		if err != nil || strings.Join(done, " ") != strings.Join(want, " ") {
			t.Errorf("got %v, %v, want %v", done, err, want)
		}
	}
	write(false, Created, Created, Created, Created, Created)
	write(false, Unchanged, Unchanged, Unchanged, Unchanged, Unchanged)

	kernel := filepath.Join(dir, "solution", "python", "kernel.py")
	for name, content := range map[string]string{kernel: "mine", filepath.Join(dir, "solution", "python", "more.py"): "x",
		filepath.Join(dir, "README"): "x"} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, ".gitignore")); err != nil {
		t.Fatal(err)
	}
	_, err = p.Write(dir, false)
	var conflict *ConflictError
	want := []string{filepath.Join(dir, "solution/python/kernel.py") + ": exists with other content",
		filepath.Join(dir, "solution/python/more.py") + ": exists, and would be packed as well"}
	if !errors.As(err, &conflict) || !slices.Equal(conflict.Lines, want) {
		t.Fatalf("got %v, want conflicts about kernel.py and more.py", err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".gitignore")); err == nil {
		t.Error("a refused project was written in part")
	}
	if data, _ := os.ReadFile(kernel); string(data) != "mine" {
		t.Errorf("kernel.py: got %q, want it as it was", data)
	}
	write(true, Unchanged, Created, Unchanged, Unchanged, Replaced)

	if err := os.Remove(kernel); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(kernel, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write(dir, true); err == nil || !strings.Contains(err.Error(), "not a file") {
		t.Errorf("a folder in the place of a file: got %v, want it refused", err)
	}
}
