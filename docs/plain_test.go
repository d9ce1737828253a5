package docs

import "testing"

func TestPlain(t *testing.T) {
	got := Plain(
		"# A title\n\nSome `code` and **words** that\nare wrapped, [a page](../b/page.md), [page.md](page.md).\n\n- one "+
			"item\n  that goes on\n- two\n\n    code  stays\n\n    as it is\n\n## More\n\nEnd.\n", 24)
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
