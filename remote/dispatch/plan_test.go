package dispatch

import (
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/remote"
)

// The cap holds for the sum of all jobs: what they take beside their limits counts, and one that is lost counts to its
// limit, since nobody knows that it has ended. Without --max-cost it is what the plan has shown.
func TestAffords(t *testing.T) {
	begun := time.Now().Add(-30 * time.Minute)
	ended := begun.Add(6 * time.Minute)
	p := &Plan{Limit: 48 * time.Minute, Run: event.Run{Workloads: make([]event.Workload, 2)}}
	place := Place{Table: "a", Bill: remote.Bill{{For: "GPU", Hourly: 10, Key: "price", Beyond: 12 * time.Minute}}}
	p.Places = []Place{place, place}
	if most, missing := p.MostCost(); most != 20 || len(missing) > 0 || p.Cap() != 60 {
		t.Fatalf("got %v, %v, cap %v, want 20 and 60", most, missing, p.Cap())
	}
	job := func(end remote.End, taken bool) *Job {
		j := &Job{Place: place, Began: &begun}
		if end != "" {
			j.Ended, j.Exit = &ended, &remote.Exit{End: end}
		}
		if taken {
			j.Handle = &remote.Handle{}
		}
		return j
	}
	refused := job("", false)
	refused.Ended, refused.Began = &ended, nil
	for _, tc := range []struct {
		name string
		jobs []*Job
		most float64 // what they may cost
	}{
		{"none", nil, 0},
		{"one that runs", []*Job{job("", true)}, 10},
		{"one that has ended", []*Job{job(remote.Exited, true)}, 3},
		{"one that is lost", []*Job{job(remote.Lost, true)}, 10},
		{"one that no place took", []*Job{refused}, 0},
		{"all", []*Job{job("", true), job(remote.Limited, true), job(remote.Lost, true), refused}, 23},
	} {
		p.Jobs, p.MaxCost = tc.jobs, tc.most+10
		if !p.affords(place) {
			t.Errorf("%s: another job for $10 is refused under a cap of $%v", tc.name, p.MaxCost)
		}
		if p.MaxCost -= 0.01; p.affords(place) {
			t.Errorf("%s: another job for $10 is begun under a cap of $%v", tc.name, p.MaxCost)
		}
	}
	p.Jobs, p.MaxCost = nil, 0
	for range 6 {
		if !p.affords(place) {
			t.Fatalf("job %d of 6 is refused", len(p.Jobs)+1)
		}
		p.Jobs = append(p.Jobs, job(remote.Lost, true))
	}
	if p.affords(place) {
		t.Error("a seventh job is begun: two places have three tries each")
	}
	// A plan of an older fisub has the price alone.
	old := &Plan{Limit: time.Hour, Places: []Place{{Table: "a", Price: 2}, {Table: "b"}}, Run: p.Run}
	if most, missing := old.MostCost(); most != 2 || len(missing) != 1 || missing[0] != "remote.b.price" || old.Cap() != 0 {
		t.Errorf("got %v, %v, cap %v", most, missing, old.Cap())
	}
}
