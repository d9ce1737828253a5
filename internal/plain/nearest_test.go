package plain

import (
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	keys := []string{"name", "definition", "author", "destination_passing_style", "binding", "entry_point"}
	for _, tt := range []struct {
		word string
		want []string
	}{
		{"nmae", []string{"name"}},
		{"Name", []string{"name"}},
		{"entrypoint", []string{"entry_point"}},
		{"destination_passing_stlye", []string{"destination_passing_style"}},
		{"bindings", []string{"binding"}},
		{"x", nil},
		{"", nil},
		{"sources", nil},
	} {
		if got := Nearest(tt.word, keys); !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %v, want %v", tt.word, got, tt.want)
		}
	}
	if got := Nearest("sm", []string{"ms", "xx"}); !slices.Equal(got, []string{"ms"}) {
		t.Errorf("got %v: a swap of neighbours is one edit", got)
	}
	if got := Nearest("util.cu", []string{"UTIL.CU"}); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if got, want := Nearest("gdn_4", []string{"gdn_16", "gdn_45", "gdn_4", "gdn_5", "gdn_6"}),
		[]string{"gdn_4", "gdn_45", "gdn_5"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
