package event

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Readers drop a map or an excerpt whose parts do not agree, and keep the verdict.
func TestMapsAreValidated(t *testing.T) {
	right := Map{Output: "y", Text: "2 elements wrong", Elements: 130 * 2, Counts: [5]int{1, 0, 0, 0, 1},
		Down: MapAxis{"head", 2}, Across: MapAxis{"dim", 130}, Cells: []string{strings.Repeat(".", 43) + "A",
			"u" + strings.Repeat(".", 43)}}
	if right.Across.Cells() != 44 || right.Across.PerCell() != 3 || right.Wrong() != 2 {
		t.Fatalf("got %d cells of %d and %d wrong elements", right.Across.Cells(), right.Across.PerCell(), right.Wrong())
	}
	source := Excerpt{File: "kernel.cu", Line: 4, Column: 2, First: 3, Lines: []string{"a", "b"}}
	for _, tc := range []struct {
		name   string
		change func(m *Map, x *Excerpt)
		maps   bool
		source bool
	}{
		{"right", func(*Map, *Excerpt) {}, true, true},
		{"a missing row", func(m *Map, _ *Excerpt) { m.Cells = m.Cells[:1] }, false, true},
		{"a long row", func(m *Map, _ *Excerpt) { m.Cells[1] += "." }, false, true},
		{"an unknown class", func(m *Map, _ *Excerpt) { m.Cells[1] = strings.Replace(m.Cells[1], "u", "z", 1) }, false, true},
		{"markup", func(m *Map, _ *Excerpt) { m.Cells[0] = "<svg>" + strings.Repeat(".", 39) }, false, true},
		{"no indices", func(m *Map, _ *Excerpt) { m.Down.Size, m.Cells = 0, nil }, false, true},
		{"too many indices", func(m *Map, _ *Excerpt) { m.Across.Size = 1 << 62 }, false, true},
		{"more wrong elements than all", func(m *Map, _ *Excerpt) { m.Counts[2] = 260 }, false, true},
		{"a sum that overflows", func(m *Map, _ *Excerpt) { m.Counts, m.Elements = [5]int{1 << 62, 1 << 62}, 1<<62 }, false, true},
		{"a negative count", func(m *Map, _ *Excerpt) { m.Counts[2] = -1 }, false, true},
		{"a long name", func(m *Map, _ *Excerpt) { m.Down.Name = strings.Repeat("x", 1000) }, false, true},
		{"a line outside of the excerpt", func(_ *Map, x *Excerpt) { x.Line = 5 }, true, false},
		{"a line before the excerpt", func(_ *Map, x *Excerpt) { x.Line = 2 }, true, false},
		{"line 0", func(_ *Map, x *Excerpt) { x.First, x.Line = 0, 1 }, true, false},
		{"a number that overflows", func(_ *Map, x *Excerpt) { x.First, x.Line = 1<<63-1, 1<<63-1 }, true, false},
		{"a negative column", func(_ *Map, x *Excerpt) { x.Column = -1 }, true, false},
		{"a whole file", func(_ *Map, x *Excerpt) { x.Lines = make([]string, 1000) }, true, false},
		{"two lines in one", func(_ *Map, x *Excerpt) { x.Lines[1] = "b\nc" }, true, false},
		{"a long line", func(_ *Map, x *Excerpt) { x.Lines[1] = strings.Repeat("x", 1<<20) }, true, false},
	} {
		m, x := right, source
		m.Cells, x.Lines = append([]string{}, right.Cells...), append([]string{}, source.Lines...)
		tc.change(&m, &x)
		maps, _ := json.Marshal([]Map{m})
		excerpts, _ := json.Marshal([]Excerpt{x})
		var e Evaluated
		line := fmt.Sprintf(`{"trace": {"definition": "d", "workload": {"axes": {}, "inputs": {}, "uuid": "w"}, "solution": "s",
			"evaluation": {"status": "RUNTIME_ERROR", "environment": {"hardware": "h", "libs": {}}, "timestamp": "t", "log": ""}},
			"maps": %s, "source": %s}`, maps, excerpts)
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := len(e.Maps) == 1; got != tc.maps {
			t.Errorf("%s: got %d maps, want one: %v", tc.name, len(e.Maps), tc.maps)
		}
		var f Finding
		if err := json.Unmarshal(fmt.Appendf(nil, `{"check": "race", "text": "t", "source": %s}`, excerpts), &f); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if len(e.Source) == 1 != tc.source || len(f.Source) == 1 != tc.source {
			t.Errorf("%s: got %d and %d excerpts, want one: %v", tc.name, len(e.Source), len(f.Source), tc.source)
		}
	}
}
