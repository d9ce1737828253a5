package workloads

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fisub/internal/hint"
	"fisub/internal/trace"
	"fisub/internal/usage"
)

// Each prefix of the order has small and large workloads.
func TestEvenly(t *testing.T) {
	var all []*trace.Workload
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7} {
		w := &trace.Workload{UUID: fmt.Sprint(n)}
		w.Axes.Set("n", n)
		all = append(all, w)
	}
	got := ""
	for _, w := range Evenly(all) {
		got += w.UUID
	}
	if want := "1735246"; got != want || all[1].UUID != "2" {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestChoice(t *testing.T) {
	var all []*trace.Workload
	for i, n := range []int{64, 1, 8, 64, 1, 4, 64, 256} { // uuids a1, b2 ...
		w := &trace.Workload{UUID: fmt.Sprintf("%c%d", 'a'+i, n)}
		w.Axes.Set("n", n)
		all = append(all, w)
	}
	for _, tc := range []struct {
		choice Choice
		want   []string
		fault  string
	}{
		{Choice{}, []string{"a64", "b1", "c8", "d64", "e1", "f4", "g64", "h256"}, ""},
		{Choice{Limit: 2}, []string{"a64", "b1"}, ""},
		{Choice{Limit: 9}, []string{"a64", "b1", "c8", "d64", "e1", "f4", "g64", "h256"}, ""},
		{Choice{Prefixes: []string{"c", "a6"}}, []string{"a64", "c8"}, ""},
		{Choice{Prefixes: []string{"b", "c"}, Limit: 1}, []string{"b1"}, ""},
		{Choice{Prefixes: []string{"b", "b"}}, []string{"b1"}, ""},
		{Choice{Prefixes: []string{"b", "x"}}, nil, `begins with "x"`},
		{Choice{Where: []string{"n=64"}}, []string{"a64", "d64", "g64"}, ""},
		{Choice{Where: []string{"n=64"}, Limit: 2}, []string{"a64", "d64"}, ""},
		{Choice{Where: []string{"n=4..64", "n=..8"}}, []string{"c8", "f4"}, ""},
		{Choice{Where: []string{"n=65.."}}, []string{"h256"}, ""},
		{Choice{Where: []string{"n=2"}}, nil, "no matching workload"},
		{Choice{Where: []string{"m=2"}}, nil, `unknown axis "m"`},
		{Choice{Where: []string{"n"}}, nil, `--where: "n"`},
		{Choice{Where: []string{"n=a..4"}}, nil, `--where: "n=a..4"`},
		{Choice{Where: []string{"n=8..4"}}, nil, `--where: "n=8..4"`},
		{Choice{Stride: 3}, []string{"a64", "d64", "g64"}, ""},
		{Choice{Sample: 1}, []string{"b1"}, ""},
		{Choice{Sample: 2}, []string{"b1", "h256"}, ""},
		{Choice{Sample: 3}, []string{"b1", "c8", "h256"}, ""},
		{Choice{Sample: 5}, []string{"a64", "b1", "c8", "f4", "h256"}, ""},
		{Choice{Sample: 7}, []string{"a64", "b1", "c8", "d64", "e1", "f4", "h256"}, ""},
		{Choice{Sample: 9}, []string{"a64", "b1", "c8", "d64", "e1", "f4", "g64", "h256"}, ""},
	} {
		before := slices.Clone(all)
		got, err := tc.choice.Of(all)
		var uuids []string
		for _, w := range got {
			uuids = append(uuids, w.UUID)
		}
		var u *usage.Error
		if tc.fault == "" && err != nil ||
			tc.fault != "" && (!errors.As(err, &u) || !strings.Contains(err.Error()+"\n"+hint.Of(err), tc.fault)) {
			t.Errorf("%+v: got %v, want %q", tc.choice, err, tc.fault)
		}
		if !slices.Equal(uuids, tc.want) {
			t.Errorf("%+v: got %v, want %v", tc.choice, uuids, tc.want)
		}
		if !slices.Equal(all, before) {
			t.Fatalf("%+v: it has changed what it chooses from", tc.choice)
		}
	}
}

// A sample of packed sequences includes the longest sequence, even if another workload has more tokens.
func TestSampleOfLengths(t *testing.T) {
	var all []*trace.Workload
	for _, n := range [][2]int{{6, 1}, {134, 1}, {8192, 32}, {8192, 57}, {4124, 15}, {32, 2}, {2107, 1}, {5709, 2}, {16, 1}, {300, 2}} {
		w := &trace.Workload{UUID: fmt.Sprintf("%d/%d", n[0], n[1])}
		w.Axes.Set("total_seq_len", n[0])
		w.Axes.Set("num_seqs", n[1])
		w.Axes.Set("len_cu_seqlens", n[1]+1)
		all = append(all, w)
	}
	for n := 2; n <= len(all); n++ {
		got, err := (&Choice{Sample: n}).Of(all)
		if err != nil || len(got) != n || !slices.Contains(got, all[0]) || !slices.Contains(got, all[7]) ||
			n > 2 && !slices.Contains(got, all[3]) {
			t.Errorf("--sample %d: got %d, %v, want the smallest, the largest and the longest", n, len(got), err)
		}
	}
}
