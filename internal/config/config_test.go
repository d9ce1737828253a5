package config_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"fisub/internal/config"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

var update = flag.Bool("update", false, "write the golden files anew")

const good = `# the submission
[solution]
name = "gdn-decode"
definition = "gdn_decode_qk4_v8_d128_k_last"
author = "team-x"

[build]
language = "cuda"
entry_point = "kernel.cu::kernel"
`

// TestFaults compares the output for each testdata/NAME.toml with testdata/NAME.txt.
func TestFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(files) < 10 {
		t.Fatalf("got %d configs (%v), want at least 10", len(files), err)
	}
	files = append(files, "testdata/missing.toml")
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".toml")
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(file)
			faults := config.Faults(err)
			if len(faults) == 0 {
				t.Fatalf("got %v, want faults", err)
			}
			var b strings.Builder
			for _, f := range faults {
				f.Path = filepath.Base(f.Path)
				fmt.Fprintln(&b, f)
				if f.Excerpt != "" {
					fmt.Fprintln(&b, f.Excerpt)
				}
				if f.Hint != "" {
					fmt.Fprintln(&b, "hint:", f.Hint)
				}
			}
			golden := strings.TrimSuffix(file, ".toml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.String(); got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	base := config.Config{
		Path:     "config.toml",
		Solution: config.Solution{Name: "gdn-decode", Definition: "gdn_decode_qk4_v8_d128_k_last", Author: "team-x"},
		Build: config.Build{Language: trace.CUDA, EntryPoint: "kernel.cu::kernel", DestinationPassingStyle: true,
			SourceDir: "cuda"},
	}
	tests := []struct {
		name, text string
		want       func(*config.Config)
	}{
		{"plain", good, func(*config.Config) {}},
		{"dotted keys", `solution.name = "gdn-decode"
solution.definition = "gdn_decode_qk4_v8_d128_k_last"
solution.author = 'team-x'
build = { language = "cuda", entry_point = "kernel.cu::kernel" }
`, func(*config.Config) {}},
		{"all keys", good + `destination_passing_style = false
binding = "torch"
dependencies = ["cutlass", "cublas"]
source_dir = "v2"
[bench]
profile = "quick"
baseline = "flashinfer_wrapper_9b7f1e"
set = "contest54"
[submit]
tag = "team/{definition}-{n}"
remote = "github"
`, func(c *config.Config) {
			c.Build.DestinationPassingStyle = false
			c.Build.Binding = "torch"
			c.Build.Dependencies = []string{"cutlass", "cublas"}
			c.Build.SourceDir = "v2"
			c.Bench = config.Bench{Profile: "quick", Baseline: "flashinfer_wrapper_9b7f1e", Set: "contest54"}
			c.Submit = config.Submit{Tag: "team/{definition}-{n}", Remote: "github"}
		}},
		{"empty description", strings.Replace(good, "[build]", "description = \"\"\n[build]", 1), func(*config.Config) {}},
		{"CRLF", strings.ReplaceAll(good, "\n", "\r\n"), func(*config.Config) {}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := config.Parse("config.toml", []byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			want := base
			test.want(&want)
			for _, field := range []struct{ got, want any }{
				{got.Path, want.Path}, {got.Solution, want.Solution}, {got.Build, want.Build}, {got.Bench, want.Bench},
				{got.Submit, want.Submit},
			} {
				if !reflect.DeepEqual(field.got, field.want) {
					t.Errorf("got %+v, want %+v", field.got, field.want)
				}
			}
		})
	}
}

func TestEncode(t *testing.T) {
	c := &config.Config{
		Path: "config.toml",
		Solution: config.Solution{Name: "a \"b\" \\ é\t😀", Definition: "d\u2028e", Author: "x\x01\x7f",
			Description: "two\r\nlines"},
		Build: config.Build{Language: trace.CPP, EntryPoint: "k.cpp::run", Binding: "torch",
			Dependencies: []string{"a", "b\"c"},
			SourceDir:    "other"},
	}
	got, err := config.Parse(c.Path, config.Encode(c))
	if err != nil {
		t.Fatalf("%v in\n%s", err, config.Encode(c))
	}
	if !reflect.DeepEqual(got.Solution, c.Solution) || !reflect.DeepEqual(got.Build, c.Build) {
		t.Errorf("got %+v %+v, want %+v %+v", got.Solution, got.Build, c.Solution, c.Build)
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := config.Load(filepath.Join(dir, "config.toml"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	if _, err := config.Load(dir); err == nil || !strings.HasSuffix(err.Error(), ": is a folder") {
		t.Errorf("got %v, want ... is a folder", err)
	}
	big := filepath.Join(dir, "big.toml")
	if err := os.WriteFile(big, make([]byte, 2<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(big); err == nil || !strings.HasSuffix(err.Error(),
		": more than the limit of 1048576 bytes") {
		t.Errorf("got %v, want a size limit", err)
	}
}

func TestCheck(t *testing.T) {
	c, err := config.Parse("config.toml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	def := &trace.Definition{Name: "gdn_decode_qk4_v8_d128_k_last"}
	def.Outputs.Set("output", trace.TensorSpec{DType: tensor.BFloat16})
	if err := config.Check(c, def); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	def.Name = "other"
	def.Outputs.Set("n", trace.TensorSpec{Scalar: true})
	want := `config.toml:4:14: definition "gdn_decode_qk4_v8_d128_k_last" is not "other"
config.toml:7:1: output "n" is a scalar, which destination-passing style cannot allocate`
	if err := config.Check(c, def); err == nil || err.Error() != want {
		t.Errorf("got %v, want %v", err, want)
	}

	f := c.UnknownDefinition([]string{"moe", "gdn_decode_qk4_v8_d128_k_first"})
	if want := `config.toml:4:14: unknown definition "gdn_decode_qk4_v8_d128_k_last"`; f.Error() != want {
		t.Errorf("got %v, want %v", f, want)
	}
	if want := `did you mean "gdn_decode_qk4_v8_d128_k_first"?`; f.Hint != want {
		t.Errorf("got %v, want %v", f.Hint, want)
	}
}

func TestDiscover(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.toml", "b/config.toml", "a/config.toml", "a/deep/config.toml",
		".git/config.toml", "c/other.toml", "d/config.toml/x"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := config.Discover(dir)
	want := []string{filepath.Join(dir, "config.toml"), filepath.Join(dir, "a/config.toml"),
		filepath.Join(dir, "b/config.toml")}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// FuzzParse checks that Parse does not panic, that faults have valid positions, and that Encode's output is accepted.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	files, _ := filepath.Glob("testdata/*.toml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("config.toml", data)
		if err != nil {
			for _, fault := range config.Faults(err) {
				if lines := 1 + strings.Count(string(data), "\n"); fault.Line > lines || fault.Line > 0 && fault.Col < 1 {
					t.Errorf("got place %d:%d, want one in %d lines", fault.Line, fault.Col, lines)
				}
				if strings.ContainsRune(fault.Excerpt, '\x1b') {
					t.Errorf("got excerpt %q, want no escape", fault.Excerpt)
				}
			}
			if len(config.Faults(err)) == 0 {
				t.Errorf("got %v, want faults", err)
			}
			return
		}
		again, err := config.Parse("config.toml", config.Encode(c))
		if err != nil {
			t.Fatalf("got %v, want nil for\n%s", err, config.Encode(c))
		}
		if !reflect.DeepEqual(again.Solution, c.Solution) || !reflect.DeepEqual(again.Build, c.Build) {
			t.Errorf("got %+v %+v, want %+v %+v", again.Solution, again.Build, c.Solution, c.Build)
		}
	})
}

// The number of reported faults is limited to about 1000.
func TestManyFaults(t *testing.T) {
	for _, head := range []string{"[solution]\n", ""} {
		var text strings.Builder
		text.WriteString(head)
		for i := range 2000 {
			fmt.Fprintf(&text, "k%d = 1\n", i)
		}
		_, err := config.Parse(config.Name, []byte(text.String()))
		if n := len(config.Faults(err)); n < 1000 || n > 1010 {
			t.Errorf("%q: got %d faults, want about 1000", head, n)
		}
	}
}

// Long lists of faults and many tables produce bounded text.
func TestHugeFiles(t *testing.T) {
	c, err := config.Parse(config.Name, []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	table := config.NewTable("remote.lab", nil)
	for range 5000 {
		table.Fault("gpus", "", "duplicate GPU %d", 1)
	}
	if n := len(config.Faults(table.Err())); n != 1000 {
		t.Errorf("got %d faults of a table, want 1000", n)
	}
	for _, line := range []string{"[t%d]\n", "k%d = 1\n", "[remote.t%d]\n"} {
		var text strings.Builder
		for i := range 10_001 {
			fmt.Fprintf(&text, line, i)
		}
		_, err := config.Parse(config.Name, append(config.Encode(c), text.String()...))
		if err == nil || err.Error() != "config.toml: has more than 10000 keys and tables" {
			t.Errorf("%q: got %.200v", line, err)
		}
	}
}

func TestRemoteWithoutName(t *testing.T) {
	_, err := config.Parse("config.toml", []byte(good+"\n[remote.\"\"]\nprovider = \"ssh\"\n"))
	if faults := config.Faults(err); len(faults) != 1 || faults[0].Msg != "a table of remote without a name" {
		t.Errorf("got %v, want a fault of the name", err)
	}
}
