package counters

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// rankable returns a launch of 592 blocks of 256 threads with some counts.
func rankable(kernel string, registers int, c Counts) Launch {
	return Launch{Kernel: kernel, Launches: 1, Grid: [3]int{592, 1, 1}, Block: [3]int{256, 1, 1}, Cluster: [3]int{1, 1, 1},
		Blocks: 592, Registers: registers, Cold: 1 << 20, Proved: true, Rows: []Row{{"a.cu", 7, "ld.shared.f32", c}}}
}

func TestRank(t *testing.T) {
	b200 := &GPUs[0]
	base := Counts{Warps: 1000, Shared: 1000, Waves: 1000, Ideal: 1000}
	conflicted := Counts{Warps: 1000, Shared: 1000, Waves: 1620, Ideal: 1000, Conflicts: 620}
	cold := rankable("k", 32, base)
	cold.Cold *= 2
	spilled := rankable("k", 32, base)
	spilled.Local = 16
	small := rankable("k", 32, base)
	small.Block, small.Grid, small.Blocks = [3]int{64, 1, 1}, [3]int{2368, 1, 1}, 2368
	sampled := rankable("k", 32, Counts{Warps: 500, Shared: 500, Waves: 500, Ideal: 500})
	sampled.Blocks, sampled.Cold = 296, 1<<19+1<<14 // 3 % more
	half := rankable("norm", 32, base)
	half.Rows = nil
	for _, c := range []struct {
		name   string
		launch [][]Launch
		places string
		texts  []string // of the variants after the first
	}{
		{"sentence", [][]Launch{{rankable("k", 32, conflicted)}, {rankable("k", 40, base)}}, "[2 1]",
			[]string{"B: no bank conflicts instead of 620, 38 % fewer shared wavefronts, 6 blocks per multiprocessor instead " +
				"of 8, 8 more registers"}},
		{"the same", [][]Launch{{rankable("k", 32, base)}, {rankable("k", 32, base)}}, "[1 1]",
			[]string{"B: the same counts"}},
		{"a small difference", [][]Launch{{rankable("k", 32, base)}, {rankable("k", 32,
			Counts{Warps: 1001, Shared: 1000, Waves: 1005, Ideal: 1000, Conflicts: 5})}}, "[1 1]",
			[]string{"B: the same counts"}},
		{"least time before counts", [][]Launch{{cold}, {rankable("k", 32, conflicted)}}, "[2 1]",
			[]string{"B: 620 bank conflicts instead of none, a least time of 4.37 µs instead of 8.75, 50 % fewer cold bytes, " +
				"62 % more shared wavefronts"}},
		{"spills", [][]Launch{{rankable("k", 32, base)}, {spilled}}, "[1 1]",
			[]string{"B: 16 bytes of local memory instead of none"}},
		{"unknown registers", [][]Launch{{rankable("k", 0, base)}, {rankable("k", 255, base)}}, "[1 1]",
			[]string{"B: the same counts"}},
		{"smaller blocks", [][]Launch{{small}, {rankable("k", 255, base)}}, "[1 1]",
			[]string{"B: an occupancy of 12 % instead of 100 %, 223 more registers, 75 % fewer blocks"}},
		{"sampled", [][]Launch{{rankable("k", 32, base)}, {sampled}}, "[1 1]", []string{"B: the same counts"}},
		{"other kernels", [][]Launch{{rankable("k<1>", 32, base), half}, {rankable("k<2>", 40, conflicted), half}}, "[1 2]",
			[]string{"B: 620 bank conflicts instead of none, 62 % more shared wavefronts"}},
		{"kernel by kernel", [][]Launch{{rankable("k", 32, base), half}, {rankable("k", 40, base), half}}, "[1 1]",
			[]string{"B:\n  k: 6 blocks per multiprocessor instead of 8, 8 more registers"}},
		{"three", [][]Launch{{rankable("k", 32, Counts{Warps: 64, Shared: 64, Waves: 64 * 32, Conflicts: 64 * 31})},
			{rankable("k", 32, Counts{Warps: 64, Shared: 64, Waves: 64 * 128, Conflicts: 64 * 127})},
			{rankable("k", 32, Counts{Warps: 64, Shared: 64, Waves: 32, Conflicts: 1})}}, "[2 3 1]",
			[]string{"B: 4.1 times as many bank conflicts, 4 times as many shared wavefronts",
				"C: 1/1984 of the bank conflicts, 1/64 of the shared wavefronts"}},
	} {
		var variants []Variant
		for i, launches := range c.launch {
			variants = append(variants, Variant{string(rune('A' + i)), launches})
		}
		r := Rank(variants, b200)
		var places []int
		for _, v := range r.Variants {
			places = append(places, v.Place)
		}
		if fmt.Sprint(places) != c.places {
			t.Errorf("%s: got places %v, want %s", c.name, places, c.places)
		}
		for i, want := range c.texts {
			if got := r.Variants[i+1].Text(); got != want {
				t.Errorf("%s: got %q, want %q", c.name, got, want)
			}
		}
	}
}

// TestRankTable checks that the table has the figures that differ, and that the conclusion names the first variants.
func TestRankTable(t *testing.T) {
	a := rankable("k", 32, Counts{Warps: 1000, Shared: 1000, Waves: 1620, Conflicts: 620})
	b, c := rankable("k", 40, Counts{Warps: 1000, Shared: 1000, Waves: 1000}), a
	c.Blocks = 296
	r := Rank([]Variant{{"TILE=16", []Launch{a}}, {"TILE=32", []Launch{b}}}, &GPUs[0])
	_, rows := r.Table()
	want := []string{"COUNTED", "PLACE", "LEAST TIME", "SHARED WAVEFRONTS", "BANK CONFLICTS", "REGISTERS",
		"BLOCKS PER MULTIPROCESSOR", "OCCUPANCY"}
	if !slices.Equal(rows[0], want) {
		t.Errorf("got columns %q, want %q", rows[0], want)
	}
	if want := []string{"TILE=32", "1", "4.37 µs", "1000", "0", "40", "6", "75 %"}; !slices.Equal(rows[2], want) {
		t.Errorf("got %q, want %q", rows[2], want)
	}
	if got := r.conclusion(); !strings.HasPrefix(got, "first by counts, not times: TILE=32 (equal least times") {
		t.Errorf("got %q", got)
	}
	other := a
	other.Workload = "w"
	if got := Rank([]Variant{{"A", []Launch{a}}, {"B", []Launch{other}}}, &GPUs[0]); got != nil {
		t.Errorf("different workloads: got %+v, want no ranking", got)
	}
	r = Rank([]Variant{{"TILE=16", []Launch{a}}, {"TILE=32", []Launch{a}}, {"TILE=64", []Launch{c}}}, &GPUs[0])
	if got := r.conclusion(); got != "first by counts, not times: TILE=16 and TILE=32 (the smallest least time on a B200); "+
		"not all blocks were counted (estimates)" {
		t.Errorf("got %q", got)
	}
}
