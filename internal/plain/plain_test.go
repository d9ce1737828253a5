package plain

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestOneLine(t *testing.T) {
	for _, c := range []struct{ name, in, line, lines, brief string }{
		{"plain", "a b", "a b", "a b", "a b"},
		{"empty", "", "", "", ""},
		{"letters", "für 束 µs", "für 束 µs", "für 束 µs", "für 束 µs"},
		{"white space", " a\t\tb\n c\n", " a  b\uFFFD c\uFFFD", " a\t\tb\n c\n", "a b c"},
		{"escape", "\x1b[2Jgone\r", "\uFFFD[2Jgone\uFFFD", "\uFFFD[2Jgone\uFFFD", "[2Jgone"},
		{"delete and C1", "a\x7fb\u009bc", "a\uFFFDb\uFFFDc", "a\uFFFDb\uFFFDc", "a b c"},
		{"direction", "a\u202eb", "a\uFFFDb", "a\uFFFDb", "a b"},
		{"separators", "a\u2028b\u2029c", "a\uFFFDb\uFFFDc", "a\uFFFDb\uFFFDc", "a b c"},
		{"no UTF-8", "a\xffb", "a\uFFFDb", "a\uFFFDb", "ab"},
		{"long", strings.Repeat("ab ", 10), strings.Repeat("ab ", 10), strings.Repeat("ab ", 10), "ab ab ab ab ab ab..."},
		{"cut in a character", strings.Repeat("aµ", 7), strings.Repeat("aµ", 7), strings.Repeat("aµ", 7), "aµaµaµaµaµa..."},
	} {
		if got := Line(c.in); got != c.line {
			t.Errorf("%s: Line: got %q, want %q", c.name, got, c.line)
		}
		if got := Lines(c.in); got != c.lines {
			t.Errorf("%s: Lines: got %q, want %q", c.name, got, c.lines)
		}
		got := Brief(c.in, 20)
		if got != c.brief {
			t.Errorf("%s: Brief: got %q, want %q", c.name, got, c.brief)
		}
		if again := Brief(got, 20); again != got {
			t.Errorf("%s: Brief of it: got %q, want %q", c.name, again, got)
		}
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct{ name, got, want string }{
		{"one", Count(1, "file"), "1 file"},
		{"none", Count(0, "file"), "0 files"},
		{"hash", Short("0123456789"), "01234567"},
		{"short hash", Short("0123"), "0123"},
		{"no hash", Short("a\x1b束\n567890"), "a\uFFFD束\uFFFD5678"},
		{"cut", Cut("束束束", 2), "束…"},
		{"not cut", Cut("束束", 2), "束束"},
		{"long line", Line(strings.Repeat("束", 5000)), strings.Repeat("束", 4095) + "…"},
		{"long lines", Text("a\n" + strings.Repeat("束", 5000) + "\nb\x1b\n"), "a\n" + strings.Repeat("束", 4095) + "…\nb\uFFFD\n"},
		{"list", List([]string{"a", "b", "c"}, "and"), "a, b and c"},
		{"list of two", List([]string{"a", "b"}, "or"), "a or b"},
		{"list of one", List([]string{"a"}, "or"), "a"},
		{"empty list", List(nil, "or"), ""},
		{"first", First("a\nb"), "a"},
		{"only", First("a"), "a"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, c.got, c.want)
		}
	}
}

func TestQuote(t *testing.T) {
	for _, c := range []struct{ text, word string }{
		{"solution/cuda", "solution/cuda"},
		{"", "''"},
		{"a b", "'a b'"},
		{"it's", `'it'\''s'`},
		{"$(id) `id` \\ \" * ~", "'$(id) `id` \\ \" * ~'"},
		{"a\nb", "'a\nb'"},
	} {
		if got := Word(c.text); got != c.word {
			t.Errorf("%q: got %s, want %s", c.text, got, c.word)
		}
		out, err := exec.Command("sh", "-c", "printf %s "+Quote(c.text)).Output()
		if err != nil || string(out) != c.text {
			t.Errorf("%q: the shell gives %q, %v", c.text, out, err)
		}
	}
}

func TestReadFileIsBounded(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	endless := fmt.Sprintf("/dev/fd/%d", zero.Fd())
	if data, err := ReadFile(endless, 5); err == nil || !strings.HasSuffix(err.Error(), "more than the limit of 5 bytes") {
		t.Errorf("a file without an end: got %d bytes, %v", len(data), err)
	}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadFile(name, 5); err != nil || string(data) != "12345" {
		t.Errorf("got %q, %v", data, err)
	}
	if _, err := ReadFile(name, 4); err == nil {
		t.Error("one byte more than the limit: no error")
	}
}

func TestBuffer(t *testing.T) {
	b := Buffer{Limit: 5}
	for _, c := range []struct {
		write, kept string
		over        bool
	}{{"abc", "abc", false}, {"de", "abcde", false}, {"", "abcde", false}, {"f", "abcde", true}, {"ghi", "abcde", true}} {
		n, err := b.Write([]byte(c.write))
		if n != len(c.write) || err != nil {
			t.Errorf("%q: got %d, %v", c.write, n, err)
		}
		if b.String() != c.kept || b.Over() != c.over {
			t.Errorf("%q: got %q, %t, want %q, %t", c.write, b.String(), b.Over(), c.kept, c.over)
		}
	}
}

func TestField(t *testing.T) {
	file := filepath.Join(t.TempDir(), "info")
	text := "processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\nflags\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ path, key, want string }{
		{file, "model name", "A: B"}, {file, "model", ""}, {file, "flags", ""}, {file + "2", "processor", ""},
	} {
		if got := Field(tc.path, tc.key); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.key, got, tc.want)
		}
	}
}

func TestFindPlaces(t *testing.T) {
	for text, want := range map[string]string{
		"DeviceFault: sub/kernel.cu:72:5: bad, written at a.cuh:7": "[{sub/kernel.cu 72 5} {a.cuh 7 0}]",
		"kernel.cu(12): error: what":                               "[{kernel.cu 12 0}]",
		"  File \"main.py\", line 3, in run":                       "[{main.py 3 0}]",
		"kernel.cu: 3, kernel.cu:x, 10:20 and a.txt:5":             "[]",
	} {
		if got := fmt.Sprint(FindPlaces(text)); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestPlaces(t *testing.T) {
	files := []string{"kernel.cu", "lib/decode.cuh", "main.py"}
	for in, want := range map[string]string{
		"kernel.cu:34:5: kernel f: a fault":                     "solution/cuda/kernel.cu:34:5: kernel f: a fault",
		"a race (lib/decode.cuh:3) at kernel.cu:1":              "a race (solution/cuda/lib/decode.cuh:3) at solution/cuda/kernel.cu:1",
		"a\n  File \"main.py\", line 3, in run\n":               "a\n  File \"solution/cuda/main.py\", line 3, in run\n",
		"my_kernel.cu:3, /tmp/kernel.cu:4, kernel.cu is packed": "my_kernel.cu:3, /tmp/kernel.cu:4, kernel.cu is packed",
		"solution/cuda/kernel.cu:34":                            "solution/cuda/kernel.cu:34",
	} {
		if got := Places(in, "solution/cuda", files); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
