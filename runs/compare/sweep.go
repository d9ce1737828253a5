package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"fisub/internal/trace"
	"fisub/runs"
)

// A Sweep compares the variants of one solution: its runs with different values of its constants.
type Sweep struct {
	Threshold float64      `json:"threshold"` // smallest relevant relative difference
	Variants  []Variant    `json:"variants"`
	All       SweepGroup   `json:"all"`    // all workloads
	Groups    []SweepGroup `json:"groups"` // workloads with the same axes
	Warnings  []string     `json:"warnings,omitempty"`
}

// A Variant is one run of a sweep.
type Variant struct {
	Name      string `json:"name"` // "TILE=16 STAGES=2"
	Run       string `json:"run"`  // id
	Passed    int    `json:"passed"`
	Workloads int    `json:"workloads"`
	Fastest   int    `json:"fastest_in"` // number of groups
}

// A SweepGroup ranks the variants on some workloads.
type SweepGroup struct {
	Axes      map[string]int `json:"axes,omitempty"`
	Workloads int            `json:"workloads"`
	Ranks     []Rank         `json:"ranks,omitempty"` // from the fastest; only variants that passed and were timed on all
}

// A Rank is the place of a variant in a group.
type Rank struct {
	Variant int     `json:"variant"`           // index
	MeanNS  float64 `json:"mean_ns"`           // mean of the medians
	Ratio   *Ratio  `json:"ratio,omitempty"`   // its time over the fastest's; nil for the fastest
	Verdict Verdict `json:"verdict,omitempty"` // slower, same or unclear; "" for the fastest
}

// NewSweep ranks the runs of a sweep.
func NewSweep(all []*runs.Run, threshold float64) (*Sweep, error) {
	s := &Sweep{Threshold: threshold}
	for _, r := range all {
		if err := check(r); err != nil {
			return nil, err
		}
		var res Result
		apart, err := res.conditions(all[0], r)
		if err != nil {
			return nil, err
		}
		if apart != "" {
			return nil, fmt.Errorf("the variants cannot be compared: %s", apart)
		}
		s.Warnings = append(s.Warnings, res.Warnings...)
		s.Variants = append(s.Variants, Variant{Name: r.Run.Variant, Run: r.ID, Workloads: len(r.Run.Workloads),
			Passed: r.Totals().Passed})
	}
	var err error
	if s.All, err = s.rank(all, all[0].Rows); err != nil {
		return nil, err
	}
	for _, group := range runs.Groups(all[0].Rows) {
		g, err := s.rank(all, group.Rows)
		if err != nil {
			return nil, err
		}
		g.Axes = group.Axes
		s.Groups = append(s.Groups, g)
		if len(g.Ranks) > 0 {
			s.Variants[g.Ranks[0].Variant].Fastest++
		}
	}
	return s, nil
}

// rank ranks the variants, which have the runs all, on the workloads of group.
func (s *Sweep) rank(all []*runs.Run, group []runs.Row) (SweepGroup, error) {
	g := SweepGroup{Workloads: len(group)}
	logs := make([]float64, len(all)) // sum of the logarithms of the medians
	for v, r := range all {
		sum, timed := 0.0, true
		for _, row := range group {
			x := side(r.Row(row.UUID))
			timed = timed && x.Status == string(trace.Passed) && x.N > 0
			sum += x.MedianNS
			logs[v] += math.Log(x.MedianNS)
		}
		if timed && len(group) > 0 {
			g.Ranks = append(g.Ranks, Rank{Variant: v, MeanNS: sum / float64(len(group))})
		}
	}
	slices.SortStableFunc(g.Ranks, func(a, b Rank) int { return cmp.Compare(logs[a.Variant], logs[b.Variant]) })
	for i := range g.Ranks[min(1, len(g.Ranks)):] {
		r := &g.Ranks[i+1]
		total, drawn, level := 0.0, make([]float64, draws), 0.0
		for _, row := range group {
			compared, ratios := compareRow(all[g.Ranks[0].Variant].Row(row.UUID), all[r.Variant].Row(row.UUID), s.Threshold)
			if compared.Ratio == nil || compared.apart() {
				return g, fmt.Errorf("the variants cannot be compared: workload %s: %s", row.UUID, compared.Why)
			}
			total += math.Log(compared.Ratio.Value)
			level = max(level, *compared.P, compared.levels)
			for n, x := range ratios {
				drawn[n] += math.Log(x)
			}
		}
		for n := range drawn {
			drawn[n] = math.Exp(drawn[n] / float64(len(group)))
		}
		r.Ratio = interval(math.Exp(total/float64(len(group))), drawn)
		r.Verdict = r.Ratio.verdict(len(group) > 1 || level < Alpha, s.Threshold)
	}
	return g, nil
}
