package random

import (
	"math"
	"testing"
)

// The first outputs of SplitMix64 with seed 1234567, from the authors of the reference implementation.
func TestUint64(t *testing.T) {
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
		16408922859458223821} {
		if got := Stream(1234567).Uint64(i); got != want {
			t.Errorf("number %d: got %d, want %d", i, got, want)
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	seen := map[Stream][]string{}
	for _, parts := range [][]string{nil, {""}, {"a"}, {"a", ""}, {"a", "b"}, {"ab"}, {"b", "a"}} {
		s := New(parts...)
		if other, ok := seen[s]; ok {
			t.Errorf("%q and %q: the same stream", parts, other)
		}
		seen[s] = parts
	}
}

// A change of these numbers changes every generated file, and needs a new generator version.
func TestPinned(t *testing.T) {
	s := New("pinned")
	got := [3]float64{s.Uniform(3), s.Normal(3), s.Normal(1 << 40)}
	want := [3]float64{0x1.efcb8895p-01, 0x1.db6939bc13303p+00, 0x1.8d2d53c91e1d6p-07}
	if got != want {
		t.Errorf("got %x, want %x", got, want)
	}
}

// Every quantile must invert the distribution function, and the tails must be reached.
func TestNormal(t *testing.T) {
	s := New("normal")
	var sum, squares, lo, hi float64
	const n = 1 << 18
	for i := range n {
		p, x := s.Uniform(i), s.Normal(i)
		if back := math.Erfc(-x/math.Sqrt2) / 2; math.Abs(back-p) > 1e-14*math.Max(1, x*x)*math.Min(p, 1-p)+1e-16 {
			t.Fatalf("number %d: quantile %v at %v, where the distribution is %v", i, x, p, back)
		}
		sum, squares, lo, hi = sum+x, squares+x*x, min(lo, x), max(hi, x)
	}
	if mean, sd := sum/n, math.Sqrt(squares/n); math.Abs(mean) > 5/math.Sqrt(n) || math.Abs(sd-1) > 5/math.Sqrt(2*n) {
		t.Errorf("mean %v, standard deviation %v, want 0 and 1", mean, sd)
	}
	if lo > -4 || hi < 4 {
		t.Errorf("extremes of %d numbers: %v and %v", n, lo, hi)
	}
}

func TestExpLog(t *testing.T) {
	s := New("exp")
	for i := range 1 << 14 {
		x := 1400*s.Uniform(i) - 700
		if got, want := Exp(x), math.Exp(x); math.Abs(got-want) > 2e-13*want {
			t.Fatalf("exp %v: got %v, want %v", x, got, want)
		}
		y := math.Exp(x)
		if got, want := Log(y), math.Log(y); math.Abs(got-want) > 1e-15*math.Max(1, math.Abs(want)) {
			t.Fatalf("log %v: got %v, want %v", y, got, want)
		}
	}
	if got := Exp(0); got != 1 {
		t.Errorf("exp 0: got %v, want 1", got)
	}
	if got := Log(1); got != 0 {
		t.Errorf("log 1: got %v, want 0", got)
	}
}

func TestIntn(t *testing.T) {
	s := New("intn")
	var counts [7]int
	const n = 70000
	for i := range n {
		counts[s.Intn(i, len(counts))]++
	}
	for v, c := range counts {
		if math.Abs(float64(c)-n/7) > 5*math.Sqrt(n/7) {
			t.Errorf("%d came %d times of %d, want about %d", v, c, n, n/7)
		}
	}
}

func BenchmarkNormal(b *testing.B) {
	s := New("bench")
	i := 0
	for b.Loop() {
		s.Normal(i)
		i++
	}
}
