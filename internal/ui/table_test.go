package ui

import (
	"strings"
	"testing"

	"fisub/internal/plain"
)

// Columns of words shrink first, then long headings of numbers. Then columns are dropped from the right, first those
// that are the same in all rows. Upper-case columns, the first and the last are kept.
func TestShrink(t *testing.T) {
	rows := func(cells ...string) (all [][]string) {
		for _, row := range cells {
			all = append(all, strings.Split(row, "|"))
		}
		return all
	}
	long := strings.Repeat("x", 30)
	for _, tc := range []struct {
		layout string
		rows   [][]string
		width  int
		want   string // the last row
		lost   string
	}{
		{"lrl", rows("A|B|C", "aaaaaaaa|1|"+long), 60, "aaaaaaaa|1|" + long, ""},
		{"lrl", rows("A|B|C", "aaaaaaaa|1|"+long), 40, "aaaaaaaa|1|" + long[:26] + "…", ""},
		{"llrl", rows("A|B|C|D", long+"|"+long+"|1|"+long), 75, long + "|" + long[:18] + "…|1|" + long[:18] + "…", ""},
		{"lrl", rows("A|BATCH_SIZE|C", "aaaaaaaa|1|"+long), 32, "aaaaaaaa|1|" + long[:11] + "…", ""},
		{"llll", rows("A|B|C|D", long+"|b|c|d", long+"|b|e|f"), 36, long + "|e|f", "B"},
		{"lLrl", rows("A|B|C|D", long+"|b|1|d", long+"|b|2|f"), 36, long + "|b|f", "C"},
		{"LL", rows("A|B", long+"|"+long), 40, long[:18] + "…|" + long[:18] + "…", ""},
	} {
		columns := tableColumns(tc.layout, tc.rows)
		shrink(columns, tc.width)
		var shown, lost []string
		for i, c := range columns {
			if c.hidden {
				lost = append(lost, c.title)
			} else {
				shown = append(shown, plain.Cut(tc.rows[len(tc.rows)-1][i], c.width))
			}
		}
		if got := strings.Join(shown, "|"); got != tc.want || strings.Join(lost, " ") != tc.lost {
			t.Errorf("%s in %d: got %s without %q, want %s without %q", tc.layout, tc.width, got, lost, tc.want, tc.lost)
		}
	}
}

// Lines break between words, long words after a slash, and words without a slash at the width.
func TestWrap(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"ok  short\nok  short too", "ok  short\nok  short too"},
		{"ok  words that are too many", "ok  words that are\n    too many"},
		{"ok  /a/path/that/is/long", "ok  /a/path/that/is/\n    long"},
		{"ok  at /a/path/that/is/long", "ok  at\n    /a/path/that/is/\n    long"},
		{"ok  " + strings.Repeat("é", 20), "ok  " + strings.Repeat("é", 16) + "\n    éééé"},
	} {
		if got := Wrap(tc.text, 4, 20); got != tc.want {
			t.Errorf("got\n%s\nwant\n%s", got, tc.want)
		}
	}
}
