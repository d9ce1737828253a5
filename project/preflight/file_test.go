package preflight

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/internal/trace"
	"fisub/workloads/tasks"
)

// The kind of a file is found as its content is read: with NaN, as Python writes it, and without doubled keys.
func TestFile(t *testing.T) {
	const solution = `{"name":"n","definition":"d","author":"a","spec":{"language":"cuda","target_hardware":["cuda"],
"entry_point":"k.cu::k"},"sources":[{"path":"k.cu","content":"x"}PATHS]REST}`
	for _, test := range []struct{ name, paths, rest, what, err string }{
		{"sound", "", "", "solution n, hash ", ""},
		{"NaN in an unknown key", "", `,"score":NaN`, "solution n, hash ", ""},
		{"not JSON in an unknown key", "", `,"score":nan`, "", ":2:77: Invalid JSON: invalid character"},
		{"Infinity in capitals", "", `,"score":INFINITY`, "", ":2:76: Invalid JSON: invalid character"},
		{"doubled key", "", `,"name":"x"`, "", ":2:68: Invalid JSON: duplicate object member name"},
		{"cut", "", `,"a`, "", ":2:71: Invalid JSON: unexpected EOF"},
		{"more than one value", "", `}{`, "", ":2:68: Invalid JSON: more than one value"},
		{"file and folder", `,{"path":"k.cu/x.cu","content":"x"}`, "", "",
			":2:75: Value error, Source path 'k.cu' is both a file and a folder, of 'k.cu/x.cu'"},
		{"the same file", `,{"path":"./k.cu","content":"x"}`, "", "", "Source paths 'k.cu' and './k.cu' are the same file"},
		{"long name", `,{"path":"` + strings.Repeat("n", 303) + `","content":"x"}`, "", "", "name that is too long: 303 bytes"},
	} {
		file := filepath.Join(t.TempDir(), "s.json")
		text := strings.NewReplacer("PATHS", test.paths, "REST", test.rest).Replace(solution)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		what, _, err := File(t.Context(), file)
		if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err) ||
			!strings.HasPrefix(err.Error(), file)) || !strings.HasPrefix(what, test.what) {
			t.Errorf("%s: got %q, %v; want %q, %q", test.name, what, err, test.what, test.err)
		}
	}
}

// The header is read as the board reads it: only its first lines that begin with # or //.
func TestDirectives(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	const missing = "names no leaderboard: the board asks for it"
	for text, want := range map[string][]string{
		"#!POPCORN leaderboard sort_v2 x\n# words\n//!POPCORN gpu B200 H100\n": nil,
		"#!POPCORN leaderboard a\n#!POPCORN gpu B200\n#!POPCORN gpus H100\n":   {"3 a second !POPCORN gpus"},
		"\n#!POPCORN leaderboard sort":                                         {"0 " + missing},
		"import torch\n#!POPCORN leaderboard sort":                             {"0 " + missing},
		"#!POPCORN\n#!POPCORN LEADERBOARD\n":                                   {"1 !POPCORN  has no value", "2 !POPCORN leaderboard has no value"},
		"#!POPCORN board x\n# !POPCORN leaderboard sort\n":                     {"1 unknown directive !POPCORN board", "0 " + missing},
	} {
		sol := &trace.Solution{Sources: []trace.SourceFile{{Path: "submission.py", Content: text}}}
		def := &trace.Definition{OpType: tasks.GPUMode, Python: &trace.Functions{}}
		c := &checker{Report: &Report{Definition: def, Solution: sol}}
		if err := c.task(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range c.Findings {
			if f.Code != "no-kernel" {
				got = append(got, fmt.Sprint(f.Line, " ", f.Msg))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
