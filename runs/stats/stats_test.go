package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLatency(t *testing.T) {
	ns := func(values ...int) (d []time.Duration) {
		for _, v := range values {
			d = append(d, time.Duration(v))
		}
		return d
	}
	for _, tc := range []struct {
		name   string
		trials [][]time.Duration
		want   float64
	}{
		{"none", nil, 0},
		{"odd", [][]time.Duration{ns(30, 10, 20)}, 20},
		{"even", [][]time.Duration{ns(40, 10, 21, 30)}, 25.5},
		{"mean of medians", [][]time.Duration{ns(1, 2, 300), ns(5), ns(9, 9)}, 16.0 / 3},
		{"an empty trial does not count", [][]time.Duration{nil, ns(7)}, 7},
	} {
		if got := Latency(tc.trials); got != tc.want {
			t.Errorf("%s: got %v ns, want %v ns", tc.name, got, tc.want)
		}
	}
}

func TestSummarize(t *testing.T) {
	trials := [][]int64{{50, 10, 40}, nil, {30, 20}}
	s := Summarize(trials)
	want := Summary{N: 5, Min: 10, Q1: 20, Median: 30, Q3: 40, Max: 50, Mean: 30, Lo: 10, Hi: 50, Confidence: 1 - 1.0/16}
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "their range") {
		t.Errorf("five timings: got warnings %q, want one about the range", s.Warnings)
	}
	if s.Warnings = nil; !equal(s, want) {
		t.Errorf("five timings: got %+v, want %+v", s, want)
	}
	if got, want := s.Width(), 40.0/30; got != want {
		t.Errorf("width: got %v, want %v", got, want)
	}
	if !slices.Equal(trials[0], []int64{50, 10, 40}) {
		t.Errorf("the timings were changed: %v", trials)
	}

	if s := Summarize[int64](nil); s.N != 0 || len(s.Warnings) != 1 || s.Width() != 0 {
		t.Errorf("no timings: got %+v, want a warning", s)
	}
	if s := Summarize([][]int64{{7}}); s.Lo != 7 || s.Hi != 7 || s.Confidence != 0 || len(s.Warnings) != 1 {
		t.Errorf("one timing: got %+v, want interval [7, 7] of confidence 0, and a warning", s)
	}

	// For six timings the interval is the whole range, at 1 - 2/64. For ten it begins at the second, since P(2 <=
	// B(10, 1/2) <= 8) = 0.9785.
	s = Summarize([][]int64{{1, 2, 3}, {4, 5, 6}})
	if s.Lo != 1 || s.Hi != 6 || s.Warnings != nil || math.Abs(s.Confidence-0.96875) > 1e-9 {
		t.Errorf("six timings: got %+v, want [1, 6] at 0.96875", s)
	}
	s = Summarize([][]int64{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}})
	if s.Lo != 2 || s.Hi != 9 || math.Abs(s.Confidence-0.978515625) > 1e-9 {
		t.Errorf("ten timings: got %+v, want [2, 9] at 0.9785", s)
	}
}

func equal(a, b Summary) bool {
	return a.N == b.N && a.Min == b.Min && a.Q1 == b.Q1 && a.Median == b.Median && a.Q3 == b.Q3 && a.Max == b.Max &&
		a.Mean == b.Mean && a.Lo == b.Lo && a.Hi == b.Hi && a.Confidence == b.Confidence
}

// The interval contains the true median as often as it claims.
func TestIntervalCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{6, 20, 150} {
		const draws = 2000
		covered := 0
		for range draws {
			row := make([]int64, n)
			for i := range row {
				row[i] = int64(1e6 * math.Exp(0.02*r.NormFloat64()))
			}
			if s := Summarize([][]int64{row}); s.Lo <= 1e6 && 1e6 <= s.Hi {
				covered++
			}
		}
		share := float64(covered) / draws
		t.Logf("n=%d: the interval holds the median in %.3f of %d draws", n, share, draws)
		if share < 0.94 || share > 0.99 {
			t.Errorf("n=%d: the interval holds the median in %.3f of the draws, want 0.95 or a little more", n, share)
		}
	}
}

func TestEnough(t *testing.T) {
	row := func(n int, spread int64) (r []int64) {
		for i := range n {
			r = append(r, 1000+spread*int64(i%11))
		}
		return r
	}
	for _, tc := range []struct {
		name    string
		trials  [][]int64
		atLeast int
		target  float64
		want    bool
	}{
		{"nothing yet", nil, 1, 0.01, false},
		{"too few trials", [][]int64{row(50, 0)}, 2, 0.01, false},
		{"exact counts", [][]int64{row(50, 9), row(50, 9)}, 2, 0, true},
		{"exact counts, too few", [][]int64{row(50, 9)}, 2, 0, false},
		{"narrow", [][]int64{row(50, 1), row(50, 1)}, 2, 0.01, true},
		{"wide", [][]int64{row(50, 20), row(50, 20)}, 2, 0.01, false},
		{"wide, but so is the target", [][]int64{row(50, 20), row(50, 20)}, 2, 0.2, true},
		{"no interval yet, though nothing varies", [][]int64{{1000}, {1000}}, 2, 0.01, false},
		{"nothing varies", [][]int64{{1000, 1000, 1000}, {1000, 1000, 1000}}, 2, 0.01, true},
	} {
		if got := Enough(tc.trials, tc.atLeast, tc.target); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestMidMedian(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values []float64
		counts []int
		want   float64
	}{
		{"none", nil, nil, 0},
		{"only zero counts", []float64{3, 4}, []int{0, 0}, 0},
		{"one value", []float64{2560}, []int{50}, 2560},
		{"odd, no ties", []float64{1, 2, 9}, []int{1, 1, 1}, 2},
		{"even, no ties", []float64{1, 2, 4, 9}, []int{1, 1, 1, 1}, 3},
		{"half on either tick", []float64{2560, 2592}, []int{5, 5}, 2576},
		{"a quarter on the upper tick", []float64{2560, 2592}, []int{75, 25}, 2568},
		{"a value that does not occur", []float64{2560, 2570, 2592}, []int{75, 0, 25}, 2568},
		{"most on the first", []float64{10, 20, 30}, []int{98, 1, 1}, 10 + 10*1/49.5},
	} {
		if got := MidMedian(tc.values, tc.counts); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestScore(t *testing.T) {
	var s Score
	if _, _, ok := s.Value(); ok {
		t.Error("got a score of nothing")
	}
	s.Add(1)
	s.Add(4)
	if v, n, ok := s.Value(); v != 2.5 || n != 2 || !ok {
		t.Errorf("got %g over %d, want 2.5 over 2", v, n)
	}
	s.Fail()
	if v, n, ok := s.Value(); v != 0 || n != 2 || !ok {
		t.Errorf("got %g over %d, want 0", v, n)
	}
}
