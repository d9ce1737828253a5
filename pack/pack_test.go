package pack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"fisub/internal/config"
	"fisub/internal/hint"
	"fisub/internal/trace"
)

// write writes files, a map from slash-separated names to contents, to a new folder.
func write(t testing.TB, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const goldenConfig = `[solution]
name = "golden-solution"
definition = "gdn_decode_qk4_v8_d128_k_last"
author = "team-x"
[build]
language = "cuda"
entry_point = "kernel.cu::kernel"
`

func parse(t testing.TB, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("config.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestSources(t *testing.T) {
	entries, err := Sources("testdata/packdir")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s|%s|%s|%d|%d", e.Path, e.Status, e.Reason, e.Size, len(e.Content)))
	}
	want := []string{
		".hidden.py|included||6|6",
		"B.py|included||4|4",
		"UPPER.CU|included|upper-case suffix: packed, but builders do not compile it|9|9",
		"b-file.py|included||4|4",
		"b_file.py|included||4|4",
		"kernel.cu|altered|CRLF line ends become LF; CR line ends become LF|150|147",
		"noext|skipped|no extension|4|0",
		"notes.md|skipped|extension .md|4|0",
		"sub|skipped|subfolder|0|0",
		"table.inl|skipped|extension .inl|4|0",
		"util.cuh|included|BOM kept as U+FEFF|16|16",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSourcesRules(t *testing.T) {
	dir := write(t, map[string]string{
		".py": "x", "a.py": "x", "z.cu.": "x", "..h": "x", "a.b.CXX": "x", "é.c": "x", "z.hpp": "x\x00", "sub/k.cu": "x",
		"A.cc": "x\r",
	})
	for link, target := range map[string]string{"link.cu": "a.py", "broken.cu": "nowhere", "loop.cu": "loop.cu",
		"dir.cu": "sub"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := Sources(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s|%s|%s", e.Path, e.Status, e.Reason))
	}
	want := []string{
		"..h|included|", ".py|skipped|no extension", "A.cc|altered|CR line ends become LF",
		"a.b.CXX|included|upper-case suffix: packed, but builders do not compile it",
		"a.py|included|", "broken.cu|skipped|broken link", "dir.cu|skipped|subfolder", "link.cu|included|",
		"loop.cu|skipped|link to itself",
		"sub|skipped|subfolder", "z.cu.|skipped|no extension", "z.hpp|included|NUL kept", "é.c|included|",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSourcesErrors(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  string // DIR is replaced by the folder
	}{
		{"empty folder", nil, "DIR: no source files: none ends in .py .cu .cuh .cpp .c .h .hpp .cc .cxx"},
		{"only others", map[string]string{"a.md": "x", "s/k.cu": "x"},
			"DIR: no source files: none ends in .py .cu .cuh .cpp .c .h .hpp .cc .cxx"},
		{"empty file", map[string]string{"__init__.py": "", "k.cu": "x"}, "DIR/__init__.py: empty file"},
		{"two faults", map[string]string{"a.py": "", "b.py": "a\n\n\xff"},
			"DIR/a.py: empty file\nDIR/b.py: invalid UTF-8: byte 0xff at position 3, in line 3"},
		{"surrogate", map[string]string{"a.py": "é\xed\xa0\x80"},
			"DIR/a.py: invalid UTF-8: byte 0xed at position 2, in line 1"},
		{"cut off", map[string]string{"a.py": "x\xe6\xbc"}, "DIR/a.py: invalid UTF-8: byte 0xe6 at position 1, in line 1"},
		{"name", map[string]string{"a\xff.cu": "x"}, "DIR/a\uFFFD.cu: file name is not UTF-8"},
		{"binary elsewhere", map[string]string{"a.bin": "\xff", "b\xff": "x", "k.cu": "x"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := write(t, test.files)
			_, err := Sources(dir)
			got := ""
			if err != nil {
				got = strings.ReplaceAll(err.Error(), dir, "DIR")
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	dir := write(t, map[string]string{"f": "x"})
	for _, name := range []string{"solution/cutedsl", "solution/baselines"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Sources(filepath.Join(dir, "solution", "cuda"))
	if got, want := hint.Of(err), `in [build], set source_dir = "cutedsl" to use that folder of `; !strings.HasPrefix(got, want) {
		t.Errorf("got hint %q, want %q", got, want)
	}
	for name, want := range map[string]string{"none": ": no such folder", "f": ": not a folder"} {
		if _, err := Sources(filepath.Join(dir, name)); err == nil || err.Error() != filepath.Join(dir, name)+want {
			t.Errorf("got %v, want %v", err, filepath.Join(dir, name)+want)
		}
	}
}

func TestSourcesLimit(t *testing.T) {
	dir := write(t, map[string]string{"a.cu": "x"})
	if err := os.Truncate(filepath.Join(dir, "a.cu"), maxSources+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Sources(dir); err == nil || !strings.HasSuffix(err.Error(), "a.cu: the sources are larger than 64 MiB") {
		t.Errorf("got %v, want a size limit", err)
	}
}

func golden(t *testing.T, packdir, want string) {
	t.Helper()
	sol, entries, err := Solution(parse(t, goldenConfig), packdir)
	if err != nil {
		t.Fatal(err)
	}
	bytesWant, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Write(&out, "-", sol); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), bytesWant) {
		t.Errorf("got\n%q\nwant\n%q", out.Bytes(), bytesWant)
	}
	if got, want := sol.Hash(), "fb2cc4b493a690910c4f17227a5cec8b3b9e0672"; got != want {
		t.Errorf("got hash %v, want %v", got, want)
	}
	if len(entries) != 11 {
		t.Errorf("got %d entries, want 11", len(entries))
	}
}

func TestGolden(t *testing.T) { golden(t, "testdata/packdir", "testdata/solution.pack.json") }

func TestSolutionErrors(t *testing.T) {
	files := map[string]string{"kernel.cu": "x", "util.inl": "x"}
	tests := []struct{ name, entry, want, hint string }{
		{"misspelt", "kernl.cu::kernel", `config.toml:7:15: entry file "kernl.cu" is not among the sources in DIR`,
			`did you mean "kernel.cu::kernel"?`},
		{"subfolder", "sub/kernel.cu::kernel", `config.toml:7:15: entry file "sub/kernel.cu" is not among the sources in DIR`,
			"sources are packed without subfolders: write only the file name"},
		{"not packed", "util.inl::kernel", `config.toml:7:15: entry file "util.inl" is not among the sources in DIR`,
			"the file exists, but only files that end in .py .cu .cuh .cpp .c .h .hpp .cc .cxx are packed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := write(t, files)
			_, entries, err := Solution(parse(t, strings.Replace(goldenConfig, "kernel.cu::kernel", test.entry, 1)), dir)
			var f *config.Fault
			if !errors.As(err, &f) {
				t.Fatalf("got %v, want a fault", err)
			}
			if got := strings.ReplaceAll(f.Error(), dir, "DIR"); got != test.want || f.Hint != test.hint {
				t.Errorf("got %q, %q, want %q, %q", got, f.Hint, test.want, test.hint)
			}
			if len(entries) != 2 {
				t.Errorf("got %d entries, want 2", len(entries))
			}
		})
	}
}

func TestSolutionMetadata(t *testing.T) {
	cfg := parse(t, strings.Replace(goldenConfig, "[build]", "description = \"fast\"\n[build]",
		1)+`destination_passing_style = false
binding = "torch"
dependencies = ["cutlass"]
`)
	sol, _, err := Solution(cfg, "testdata/packdir")
	if err != nil {
		t.Fatal(err)
	}
	text := string(sol.JSON(trace.Indent))
	for _, want := range []string{
		"\"dependencies\": [\n      \"cutlass\"\n    ],\n    \"destination_passing_style\": false,\n    \"binding\": " +
			"\"torch\"\n  },",
		"\n  \"description\": \"fast\"\n}",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want it to contain %s", text, want)
		}
	}
}

func TestWrite(t *testing.T) {
	sol, _, err := Solution(parse(t, goldenConfig), "testdata/packdir")
	if err != nil {
		t.Fatal(err)
	}
	want := sol.JSON(trace.Indent)
	dir := write(t, map[string]string{"real.json": "old", "d/x": ""})
	for link, target := range map[string]string{"link.json": "real.json", "loop.json": "loop.json",
		"dangling.json": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"new.json", "link.json"} {
		if err := Write(nil, filepath.Join(dir, name), sol); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %q, %v, want the solution", name, got, err)
		}
	}
	if st, err := os.Lstat(filepath.Join(dir, "link.json")); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("got %v, %v, want the link to stay", st, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "real.json")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v, want the solution behind the link", got, err)
	}
	for _, name := range []string{"loop.json", "dangling.json", "d", "no/such/folder.json"} {
		if err := Write(nil, filepath.Join(dir, name), sol); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	// The pipe represents devices: a Write that renames over a real device would remove it from the whole machine.
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := Write(nil, pipe, sol); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(pipe); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		t.Fatalf("got %v, %v, want the pipe to stay", st, err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v, want the solution in the pipe", got, err)
	}
}

const unpackable = `{"name":"n \"é\"","definition":"d","author":"a","spec":{"language":"triton","target_hardware":["cuda"],
"entry_point":"k.py::run","dependencies":["x"],"destination_passing_style":false},
"sources":[{"path":"k.py","content":"def run():\n\tpass"},{"path":"u.py","content":"\ufeff#\u0000"}],"description":"two\nlines"}`

// TestUnpackPacks unpacks a solution, packs the folder again and compares the solutions.
func TestUnpackPacks(t *testing.T) {
	goldenJSON, err := os.ReadFile("testdata/solution.pack.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{string(goldenJSON), unpackable} {
		dir := filepath.Join(t.TempDir(), "new", "folder")
		u, err := Unpack([]byte(data), dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(u.Notes) != 0 {
			t.Errorf("got notes %q, want none", u.Notes)
		}
		cfg, err := config.Load(filepath.Join(dir, "config.toml"))
		if err != nil {
			t.Fatal(err)
		}
		sol, _, err := Solution(cfg, cfg.SourceDir())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := string(sol.JSON(trace.Indent)), string(u.Solution.JSON(trace.Indent)); got != want ||
			sol.Hash() != u.Solution.Hash() {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if got := listing(t, dir); len(got) != len(u.Files) {
			t.Errorf("got files %q, want %q", got, u.Files)
		}
		if _, err := Unpack([]byte(data), dir); err != nil {
			t.Errorf("unpacking the same again: got %v, want nil", err)
		}
	}
}

// listing returns every file and link below dir.
func listing(t testing.TB, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func solutionJSON(t testing.TB, language, entry string, sources ...string) []byte {
	t.Helper()
	s := map[string]any{"name": "n", "definition": "d", "author": "a",
		"spec": map[string]any{"language": language, "target_hardware": []string{"cuda"}, "entry_point": entry}}
	var list []map[string]string
	for i := 0; i+1 < len(sources); i += 2 {
		list = append(list, map[string]string{"path": sources[i], "content": sources[i+1]})
	}
	s["sources"] = list
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestUnpackRefuses(t *testing.T) {
	tests := []struct {
		name, path, want string
	}{
		{"absolute", "/tmp/x.cu", "absolute path not allowed"},
		{"parent", "../x.cu", "parent directory traversal not allowed"},
		{"deep parent", "a/../../x.cu", "parent directory traversal not allowed"},
		{"backslash", `..\x.cu`, `source path "..\\x.cu" is not a file below the folder`},
		{"NUL", "a\x00.cu", `Source path "a\x00.cu" has a NUL`},
		{"newline", "a\n.cu", `is not a file below the folder`},
		{"folder", ".", `Source path '.' is not a file`},
		{"slash", "a/", `Source path 'a/' is not a file`},
		{"twice", "./k.cu", `Source paths 'k.cu' and './k.cu' are the same file`},
		{"too long for the file system", strings.Repeat("n", 300), "Source path has a name that is too long: 300 bytes"},
		{"git's folder", ".git/config", `source path ".git/config" is a file that git or an editor acts on`},
		{"git's folder in capitals", "a/.GIT/HEAD", `is a file that git or an editor acts on`},
		{"git's folder on NTFS", "GIT~1/config", `is a file that git or an editor acts on`},
		{"git's folder on HFS", ".g\u200cit/config", `is not a file below the folder`},
		{"a bare repository", "a/HEAD", `is a file that git or an editor acts on`},
		{"git's file", "a/.git", `is a file that git or an editor acts on`},
		{"settings of an editor", ".vscode/tasks.json", `is a file that git or an editor acts on`},
		{"source in a hidden folder", ".hidden/x.cu", `is a file that git or an editor acts on`},
		{"file and folder", "k.cu/x.cu", `Source path 'k.cu' is both a file and a folder, of 'k.cu/x.cu'`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "out")
			_, err := Unpack(solutionJSON(t, "cuda", "k.cu::kernel", "k.cu", "x", test.path, "y"), dir)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if got, _ := os.ReadDir(parent); len(got) != 0 {
				t.Errorf("got %v, want nothing written", got)
			}
		})
	}
}

func TestUnpackExisting(t *testing.T) {
	data := solutionJSON(t, "cuda", "k.cu::kernel", "k.cu", "x", "u.cuh", "y")
	outside := t.TempDir()
	tests := []struct {
		name  string
		files map[string]string
		link  [2]string
		want  string // "" if unpacking must succeed
	}{
		{"identical", map[string]string{"solution/cuda/k.cu": "x", "solution/cuda/other.cu": "z"}, [2]string{}, ""},
		{"other content", map[string]string{"solution/cuda/u.cuh": "z"}, [2]string{},
			"DIR/solution/cuda/u.cuh: exists with other content"},
		{"two", map[string]string{"solution/cuda/u.cuh": "zz", "config.toml": "x"}, [2]string{},
			"DIR/config.toml: exists with other content\nDIR/solution/cuda/u.cuh: exists with other content"},
		{"folder in the way", map[string]string{"solution/cuda/k.cu/x": "z"}, [2]string{},
			"DIR/solution/cuda/k.cu: exists and is not a file"},
		{"file in the way", map[string]string{"solution": "z"}, [2]string{}, "not a directory"},
		{"link out", nil, [2]string{"solution", outside}, "path escapes from parent"},
		{"file link out", map[string]string{"solution/cuda/a": ""},
			[2]string{"solution/cuda/k.cu", filepath.Join(outside, "k.cu")}, "path escapes from parent"},
		{"broken link", map[string]string{"solution/cuda/a": ""}, [2]string{"solution/cuda/k.cu", "nowhere"},
			"exists as a broken link"},
		{"link inside", map[string]string{"real/a": ""}, [2]string{"solution", "real"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := write(t, test.files)
			if test.link[0] != "" {
				if err := os.Symlink(test.link[1], filepath.Join(dir, test.link[0])); err != nil {
					t.Fatal(err)
				}
			}
			before := listing(t, dir)
			_, err := Unpack(data, dir)
			if test.want == "" {
				if err != nil {
					t.Fatalf("got %v, want nil", err)
				}
				if got, err := os.ReadFile(filepath.Join(dir, "solution/cuda/k.cu")); string(got) != "x" {
					t.Errorf("got %q, %v, want x", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), dir, "DIR"), test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if after := listing(t, dir); !reflect.DeepEqual(after, before) {
				t.Errorf("got %q, want %q", after, before)
			}
			if got, _ := os.ReadDir(outside); len(got) != 0 {
				t.Errorf("got %v outside, want nothing", got)
			}
		})
	}
}

func TestUnpackNotes(t *testing.T) {
	tests := []struct {
		name string
		data []byte
		want []string
	}{
		{"subfolder", solutionJSON(t, "cuda", "k.cu::kernel", "a/b.cuh", "x", "k.cu", "x"),
			[]string{"a: skipped when packed again: subfolder"}},
		{"extension", solutionJSON(t, "cuda", "k.cu::kernel", "a.inl", "x", "k.cu", "x"),
			[]string{"a.inl: skipped when packed again: extension .inl"}},
		{"line ends", solutionJSON(t, "cuda", "k.cu::kernel", "k.cu", "x\r\n"),
			[]string{"k.cu: altered when packed again: CRLF line ends become LF"}},
		{"order", solutionJSON(t, "cuda", "k.cu::kernel", "k.cu", "x", "a.cuh", "x"),
			[]string{"packed again the sources are sorted by name, which changes the hash"}},
		{"dot", solutionJSON(t, "cuda", "k.cu::kernel", "./a.cuh", "x", "k.cu", "x"),
			[]string{"./a.cuh: packed again as a.cuh"}},
		{"symbol", solutionJSON(t, "cuda", "k.cu::", "k.cu", "x"),
			[]string{`config.toml:8:15: entry_point "k.cu::" has no symbol`}},
		{"hardware", bytes.Replace(solutionJSON(t, "cuda", "k.cu::k", "k.cu", "x"), []byte(`["cuda"]`),
			[]byte(`["NVIDIA_B200"]`), 1),
			[]string{`target_hardware ["NVIDIA_B200"] becomes ["cuda"] when packed again`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			u, err := Unpack(test.data, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(u.Notes, test.want) {
				t.Errorf("got %q, want %q", u.Notes, test.want)
			}
		})
	}
}

// Nothing is written outside the folder, and nothing is left after an error.
func TestUnpackStaysInside(t *testing.T) {
	goldenJSON, err := os.ReadFile("testdata/solution.pack.json")
	if err != nil {
		t.Fatal(err)
	}
	docs := [][]byte{goldenJSON, []byte(unpackable)}
	for _, path := range []string{"a.cu", "../../a", "/etc/x", "a/../../b", "link/x", "x/../link/y", "k.cu", "k.cu/a", "./k.cu",
		strings.Repeat("a/", 300) + "b", strings.Repeat("n", 300)} {
		docs = append(docs, solutionJSON(t, "cuda", "k.cu::kernel", "k.cu", "x", path, "y"))
	}
	for _, doc := range docs {
		parent := t.TempDir()
		dir, outside := filepath.Join(parent, "dir"), filepath.Join(parent, "outside")
		link := filepath.Join(dir, "solution", "cuda", "link")
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Mkdir(outside, 0o755),
			os.Symlink(outside, link)); err != nil {
			t.Fatal(err)
		}
		before := listing(t, parent)
		_, err := Unpack(doc, dir)
		after := listing(t, parent)
		if err != nil && !reflect.DeepEqual(after, before) {
			t.Errorf("got %q after %v, want %q", after, err, before)
		}
		for _, name := range after {
			if rel, err := filepath.Rel(dir, name); err != nil || !filepath.IsLocal(rel) {
				t.Errorf("got %q, want nothing outside", name)
			}
		}
		if entries, _ := os.ReadDir(outside); len(entries) != 0 {
			t.Errorf("got %v outside, want nothing", entries)
		}
	}
}

// The files to write are below their folder and can all be written. If there are no notes, packing them gives the same
// solution again. All is in memory: files would make it far slower.
func FuzzUnpack(f *testing.F) {
	f.Add(unpackable, "a.cu", "x")
	for _, path := range []string{"../../a", "/etc/x", "a/../../b", "x/../link/y", "k.cu", "k.cu/a", "./k.cu", "a//b", "a/",
		".git/config", strings.Repeat("n", 300)} {
		f.Add("", path, "x")
	}
	f.Fuzz(func(t *testing.T, data, path, content string) {
		for _, doc := range [][]byte{[]byte(data), solutionJSON(t, "cuda", "k.cu::kernel", "k.cu", "x", path, content)} {
			u, err := plan(doc)
			if err != nil {
				continue
			}
			disk := fstest.MapFS{}
			for _, name := range u.Files {
				own := name == config.Name && len(disk) == 0 || strings.HasPrefix(name, u.folder+"/")
				if !own || !fs.ValidPath(name) || disk[name] != nil {
					t.Fatalf("got %q", u.Files)
				}
				for part := range strings.SplitSeq(name, "/") {
					if len(part) > 255 || strings.ContainsRune(part, 0) {
						t.Fatalf("got %q", name)
					}
				}
				disk[name] = &fstest.MapFile{Data: u.contents[name], Mode: 0o644}
			}
			for name := range disk {
				for up := filepath.Dir(name); up != "."; up = filepath.Dir(up) {
					if disk[up] != nil {
						t.Fatalf("%q is a file and a folder", up)
					}
				}
			}
			if err := u.repack(disk); err != nil {
				t.Fatal(err)
			}
			if len(u.Notes) > 0 {
				continue
			}
			cfg, err := config.Parse(config.Name, u.contents[config.Name])
			if err != nil {
				t.Fatal(err)
			}
			sub, err := fs.Sub(disk, filepath.ToSlash(cfg.SourceDir()))
			if err != nil {
				t.Fatal(err)
			}
			entries, err := sources(sub, ".", func(string) bool { return true })
			if sol := Assemble(cfg, entries); err != nil || sol.Hash() != u.Solution.Hash() {
				t.Fatalf("got %v, want hash %v again", err, u.Solution.Hash())
			}
		}
	})
}
