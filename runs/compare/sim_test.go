package compare

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fisub/bench"
	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/longtest"
	"fisub/internal/trace"
	"fisub/runs"
)

// A machine simulates a GPU's timings: log-normal noise, a level that varies between trials, and a timer with ticks.
type machine struct {
	noise, drift float64 // standard deviations, relative
	tick         float64 // ns
	stamps       bool    // both ends of a span are rounded to the tick, as by CUPTI; else the span is
	random       *rand.Rand
	trialsOf     int // number of trials; 0: 3
	timings      int // per trial; 0: 50
}

// trials returns the trials of a kernel that takes ns nanoseconds.
func (m *machine) trials(ns float64) [][]int64 {
	var all [][]int64
	for range cmp.Or(m.trialsOf, 3) {
		level := ns * math.Exp(m.drift*m.random.NormFloat64())
		row := make([]int64, cmp.Or(m.timings, 50))
		for i := range row {
			span := level * math.Exp(m.noise*m.random.NormFloat64())
			if m.stamps {
				start := m.random.Float64() * m.tick
				row[i] = int64(m.tick * math.Floor((start+span)/m.tick))
			} else {
				row[i] = int64(m.tick * math.Round(span/m.tick))
			}
		}
		all = append(all, row)
	}
	return all
}

// run times workloads with kernels that take from 2.4 to 300 us, multiplied by factor.
func (m *machine) run(id string, workloads int, factor float64) *runs.Run {
	r := &runs.Run{ID: id, Summary: runs.Summary{Done: &event.Done{},
		Run: &event.Run{ID: id, Definition: "d", Device: event.Device{Kind: "cuda", Name: "GPU"}}}}
	for i := range workloads {
		ns := 2400 * math.Pow(125, float64(i)/float64(max(workloads-1, 1)))
		uuid := fmt.Sprint("w", i)
		r.Run.Workloads = append(r.Run.Workloads, event.WorkloadRef{UUID: uuid})
		r.Rows = append(r.Rows, runs.Row{UUID: uuid, Evaluated: eventtest.Verdict{Status: "PASSED"}.Evaluated(),
			Samples: &event.Samples{Timer: "cupti", ColdL2: true, TrialsNS: m.trials(ns * factor)}})
	}
	return r
}

// The verdict is right for an unchanged kernel and one that is 2 % slower or faster, with noise from 0.5 to 3 %,
// drift between trials and a timer with 32 ns ticks: for nearly every workload, and always for the whole.
func TestErrorRates(t *testing.T) {
	longtest.Skip(t, "compares many simulated runs")
	const repeats, workloads = 2, 25
	random := rand.New(rand.NewPCG(7, 11))
	for _, tc := range []struct {
		noise        float64
		right, wrong int // of 50 workloads: at least right, at most wrong; the rest is unclear
	}{{0.005, 50, 0}, {0.01, 50, 0}, {0.03, 40, 2}} {
		for _, stamps := range []bool{false, true} {
			m := &machine{noise: tc.noise, drift: 0.002, tick: 32, stamps: stamps, random: random}
			for _, change := range []struct {
				factor float64
				want   Verdict
			}{{1, Same}, {1.02, Slower}, {1 / 1.02, Faster}} {
				rows, whole := map[Verdict]int{}, map[Verdict]int{}
				for range repeats {
					res, err := Runs(m.run("a", workloads, 1), m.run("b", workloads, change.factor), Threshold)
					if err != nil {
						t.Fatal(err)
					}
					for _, row := range res.Rows {
						rows[row.Verdict]++
					}
					whole[res.Verdict]++
					if res.Slower() != (change.want == Slower) {
						t.Errorf("regression: got %v, want %v: %+v", res.Slower(), change.want == Slower, res.Ratio)
					}
				}
				right := rows[change.want]
				wrong := repeats*workloads - right - rows[Unclear]
				text := fmt.Sprintf(
					"noise %.1f %%, both ends rounded %-5v, B takes %.3f of A: %3d workloads right, %d wrong, %d unclear; whole %v",
					100*tc.noise, stamps, change.factor, right, wrong, rows[Unclear], whole)
				t.Log(text)
				if right < tc.right || wrong > tc.wrong || whole[change.want] != repeats {
					t.Errorf("%s; want %d right at least, %d wrong at most, the whole always %s", text, tc.right, tc.wrong,
						change.want)
				}
			}
		}
	}
}

// With a drift of 1 % between trials, an unchanged kernel is called slower or faster about as often as the tests'
// level allows, and is never a regression.
func TestErrorRatesOfDrift(t *testing.T) {
	const repeats, workloads = 8, 25
	random := rand.New(rand.NewPCG(3, 4))
	for _, noise := range []float64{0.01, 0.02} {
		m := &machine{noise: noise, drift: 0.01, tick: 32, stamps: true, random: random}
		rows, regressions := map[Verdict]int{}, 0
		for range repeats {
			res, err := Runs(m.run("a", workloads, 1), m.run("b", workloads, 1), Threshold)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range res.Rows {
				rows[row.Verdict]++
			}
			if res.Slower() {
				regressions++
			}
		}
		t.Logf("noise %.1f %%: %v", 100*noise, rows)
		if wrong := rows[Slower] + rows[Faster]; wrong > repeats*workloads*8/100 || regressions > 0 {
			t.Errorf("noise %.1f %%: of %d workloads %d slower or faster, %d regressions; want 8 %% at most, and none",
				100*noise,
				repeats*workloads, wrong, regressions)
		}
	}
}

// On an H200 the addresses of a call's tensors change its time by 1.1 % (standard deviation); at fixed addresses it
// repeats to 0.2 %. With the trials for comparing solutions, at least 19 of 20 comparisons call an unchanged kernel
// the same, and one that takes 2 % longer slower, as a whole. So do 17 of 20 workloads.
func TestErrorRatesOfPlaces(t *testing.T) {
	const repeats, workloads = 20, 6
	def := &trace.Definition{Name: "d", OpType: "gdn"}
	official, err := bench.NewProfile("official", def)
	if err != nil {
		t.Fatal(err)
	}
	p := official.InTurn(def)
	m := &machine{noise: 0.015, drift: 0.011, tick: 32, stamps: true, random: rand.New(rand.NewPCG(5, 6)),
		trialsOf: p.Trials, timings: p.Iterations}
	for _, change := range []struct {
		factor float64
		want   Verdict
	}{{1, Same}, {1.02, Slower}} {
		whole, rows := map[Verdict]int{}, map[Verdict]int{}
		for range repeats {
			res, err := Runs(m.run("a", workloads, 1), m.run("b", workloads, change.factor), Threshold)
			if err != nil {
				t.Fatal(err)
			}
			whole[res.Verdict]++
			for _, row := range res.Rows {
				rows[row.Verdict]++
			}
			if res.Slower() != (change.want == Slower) {
				t.Errorf("regression: got %v, want %v: %+v", res.Slower(), change.want == Slower, res.Ratio)
			}
		}
		t.Logf("B takes %.2f of A, %d trials of %d: whole %v, workloads %v", change.factor, p.Trials, p.Iterations, whole, rows)
		if whole[change.want] < 19 || rows[change.want] < repeats*workloads*17/20 {
			t.Errorf("B takes %.2f of A: got %v, workloads %v; want %s in 19 of %d and 17 of 20 workloads", change.factor, whole,
				rows, change.want, repeats)
		}
	}
}
