package pysyntax

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// testdata/expressions.txt holds CPython 3.12's verdicts.
func TestExpression(t *testing.T) {
	f, err := os.Open("testdata/expressions.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); n++ {
		verdict, quoted, _ := strings.Cut(lines.Text(), " ")
		var src string
		if err := json.Unmarshal([]byte(quoted), &src); err != nil {
			t.Fatal(err)
		}
		if err := Expression(src); (err == nil) != (verdict == "ok") {
			t.Errorf("%q: got %v, want %s", src, err, verdict)
		}
		if err := Module(src); verdict == "ok" && err != nil {
			t.Errorf("%q as a module: got %v", src, err)
		}
	}
	if n < 300 {
		t.Errorf("got %d expressions", n)
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct{ name, src, want string }{
		{"never closed", "x = (1,\n\n[2)", "closing parenthesis ')' does not match opening parenthesis '[' (line 3)"},
		{"never closed at the end", "a\nx = (1,\n", "'(' was never closed (line 2)"},
		{"unmatched", "x = 1)\n", "unmatched ')' (line 1)"},
		{"string", "x = 'abc\n", "unterminated string literal (line 1)"},
		{"triple", "\nx = '''abc\n\n", "unterminated triple-quoted string literal (detected at line 4) (line 2)"},
		{"null", "x\n\x00", "source code string cannot contain null bytes (line 2)"},
		{"BOM", "\ufeffx", "invalid non-printable character U+FEFF (line 1)"},
		{"character", "x = 1 × 2", "invalid character '×' (U+00D7) (line 1)"},
		{"number", "x = 12ab", "invalid decimal literal (line 1)"},
		{"indent", "x = 1\n  y = 2\n", "unexpected indent (line 2)"},
		{"continued indent", "\\\n x\n", "unexpected indent (line 2)"},
		{"deep indent", nested(100), "too many levels of indentation (line 101)"},
		{"deep indent at the limit", nested(99), ""},
		{"continued block indent", "if x:\n  \\\n      y\n  z\n", ""},
		{"no block", "if x:\ny = 1\n", "expected an indented block (line 2)"},
		{"no block at the end", "def run():\n", "expected an indented block (line 2)"},
		{"dedent", "if x:\n    y\n  z\n", "unindent does not match any outer indentation level (line 3)"},
		{"tabs", "if x:\n        y\n\tz\n", "inconsistent use of tabs and spaces in indentation (line 3)"},
		{"no colon", "def run(x)\n    return x\n", "expected ':' (line 1)"},
		{"no parameters", "def run:\n    return x\n", "invalid syntax (line 1)"},
		{"prose", "some plain text\n", "invalid syntax (line 1)"},
		{"C", "int x = 3;\n", "invalid syntax (line 1)"},
		{"open end", "x = 1 +\n", "invalid syntax (line 1)"},
		{"operator first", "= 3\n", "invalid syntax (line 1)"},
		{"continuation", "x = 1 \\ \n + 2\n", "unexpected character after line continuation character (line 1)"},
		{"f-string", "x = f'{a'\n", "unterminated string literal (line 1)"},
		{"brackets", strings.Repeat("(", 201) + strings.Repeat(")", 201), "too many nested parentheses (line 1)"},
		{"nothing", "", ""},
		{"comments", "# a\n\n  # b\n\t\n", ""},
		{"carriage returns", "if x:\r\n    y\rz\r", ""},
		{"one line", "class A: x = 1; y = 2\n", ""},
		{"soft keywords", "match x:\n  case [1, 2] if y:\n    type = 3\ntype X = int\nmatch = case = 1\n", ""},
		{"statements", "from . import (a,\n b)\nimport c as d\n@e\nasync def f(a, /, b: int = 1, *c, d, **g) -> int:\n" +
			"\tasync with a as b, c: pass\n\tawait x\n\treturn a, *b,\ntry: x\nexcept* E as e: raise X from e\nelse: del " +
			"y,\nprint(*a, sep='')\nx: int\n", ""},
		{"f-strings", "x = f'{a['b']!r:>{w}}' rf\"\"\"{a\n}\\d{{}}\"\"\" f'{x=}'\n", ""},
		{"continued lines", "x = 1 + \\\n  2\nif a and \\\n  b:\n    c\n", ""},
	} {
		got := ""
		if err := Module(tt.src); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func nested(levels int) string {
	var b strings.Builder
	for i := range levels {
		b.WriteString(strings.Repeat(" ", i) + "if x:\n")
	}
	return b.String() + strings.Repeat(" ", levels) + "y\n"
}

func TestDefines(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      bool
	}{
		{"plain", "def run(x): return x", true},
		{"after others", "import a\n\ndef f():\n    def g(): pass\n\ndef run(x,\n  y):\n  pass\n", true},
		{"decorated", "@a\n@b(1)\ndef run(): pass\n", true},
		{"generic", "def run[T](x: T): pass\n", true},
		{"continued margin", "\\\ndef run(): pass\n", true},
		{"async", "async def run(): pass\n", false},
		{"in if", "if x:\n    def run(): pass\n", false},
		{"in class", "class A:\n\n    def run(): pass\n", false},
		{"in function", "def f():\n\tdef run(): pass\n", false},
		{"lambda", "run = lambda x: x\n", false},
		{"in text", "'''\ndef run(): pass\n'''\n", false},
		{"in comment", "# def run(): pass\n", false},
		{"longer name", "def runs(): pass\n", false},
		{"in brackets", "x = (\ndef_,\nrun)\n", false},
		{"none", "", false},
	} {
		if err := Module(tt.src); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := Defines(tt.src, "run"); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Input of any depth ends in an error, not in a stack overflow.
func TestNesting(t *testing.T) {
	for _, part := range []string{"-", "not ", "(", "[", "{", "lambda:", "a if b else ", "f'{", "a**", "await "} {
		if err := Expression(strings.Repeat(part, 100_000) + "1"); err == nil && part != "not " {
			t.Errorf("%q: accepted", part)
		}
	}
	if err := Expression(strings.Repeat("a or ", 1<<20) + "a"); err == nil || !strings.Contains(err.Error(), "tokens") {
		t.Errorf("got %v", err)
	}
}

func FuzzPython(f *testing.F) {
	for _, src := range []string{"f'{x!r:>{w}}'", "lambda a,/,b=1,*c,d,**e:(yield)", "[x async for (a,*b) in d if e]",
		"'\\N{", "f'{a:{", "\\\n", "if x:\n\ty\n", "b'\\x'"} {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		expression, module := Expression(src), Module(src)
		if expression == nil && module != nil {
			t.Errorf("%q is an expression, but as a module: %v", src, module)
		}
		if module == nil {
			Defines(src, "run")
		}
	})
}
