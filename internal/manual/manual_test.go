package manual

import (
	"slices"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	text, examples := Split("What it does:\n   faster  a verdict\n\n   fisub a --b c      what for\n   fisub a | fisub b\n\nIts status.")
	if want := "What it does:\n   faster  a verdict\n\n\nIts status."; text != want {
		t.Errorf("text: got %q, want %q", text, want)
	}
	want := []Example{{"fisub a --b c", "what for"}, {"fisub a | fisub b", ""}}
	if !slices.Equal(examples, want) {
		t.Errorf("examples: got %q, want %q", examples, want)
	}
}

func TestPlain(t *testing.T) {
	got := Plain("# A title\n\nSome `code` and **words** that\nare wrapped, [a page](../b/page.md), [page.md](page.md).\n\n- one item\n  that goes on\n- two\n\n    code  stays\n\n    as it is\n\n## More\n\nEnd.\n", 24)
	want := `A TITLE

Some code and words that
are wrapped, a page
(b/page.md), page.md.

- one item that goes on
- two

    code  stays

    as it is

More

End.
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Plain("averylongwordthatdoesnotfit x", 10); got != "averylongwordthatdoesnotfit\nx\n" {
		t.Errorf("a long word: got %q", got)
	}
}

func tree() *Command {
	return &Command{Name: "fisub", Usage: "do things", Global: []Flag{{Names: []string{"-C"}, Value: "DIR", Usage: "work in DIR"}},
		Commands: []*Command{{Name: "fisub run", Usage: "run it", Args: "FILE", Text: ".dots and 'quotes' first\n   a\\b  kept\nthen _prose_ <b>",
			Flags:    []Flag{{Names: []string{"--to", "-t"}, Value: "A|B", Usage: "one of A|B", Default: "A"}},
			Examples: []Example{{"fisub run x", ""}, {"fisub run --to A x", "to A – or not"}},
			Commands: []*Command{{Name: "fisub run off", Usage: "stop it"}}}}}
}

func TestMan(t *testing.T) {
	got := Man(tree(), "1.0", []Section{{"Files", "# Files\n\n- `a-b`: c\n\n    .x\n\n## Sub\n\nText.\n"}})
	for _, want := range []string{
		".TH \"FISUB\" \"1\" \"\" \"fisub 1.0\" \"User Commands\"\n",
		"fisub \\- do things\n",
		".SS \"fisub run [FLAGS] FILE\"\nRun it.\n" + ".PP\n\\&.dots and \\(aqquotes\\(aq first\n",
		".nf\na\\eb  kept\n.fi\n",
		".TP\n\\fB\\-\\-to\\fR, \\fB\\-t\\fR \\fIA|B\\fR\none of A|B (default: A)\n",
		"fisub run x\nfisub run \\-\\-to A x   to A \\[u2013] or not\n",
		".SH \"FILES\"\n.IP \\(bu 2\na\\-b: c\n.PP\n.RS 4\n.nf\n\\&.x\n.fi\n.RE\n.SS \"Sub\"\nText.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}
}

func TestPage(t *testing.T) {
	c := tree().Commands[0]
	if got := FileName(c); got != "run.md" {
		t.Errorf("file: got %s", got)
	}
	got := Page(c)
	for _, want := range []string{
		"# fisub run\n\nRun it.\n\n    fisub run [FLAGS] FILE\n",
		".dots and 'quotes' first\n\n    a\\b  kept\n\nthen \\_prose\\_ &lt;b>\n",
		"    fisub run x\n    fisub run --to A x   to A – or not\n",
		"| `--to, -t A\\|B` | one of A\\|B | A |\n",
		"## fisub run off\n\nStop it.\n\n    fisub run off\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}
	if index := Index(tree()); !strings.Contains(index, "| [fisub run](run.md) | run it |\n") || !strings.Contains(index, "| `-C DIR` | work in DIR |") {
		t.Errorf("index: got\n%s", index)
	}
}
