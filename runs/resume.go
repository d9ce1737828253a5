package runs

import (
	"fmt"
	"strings"

	"fisub/internal/event"
	"fisub/internal/ui"
	"fisub/internal/usage"
)

// Continue makes run the continuation of r, with its id and its other workloads. It rejects a run that differs from
// r, whose verdicts and figures must not be mixed with r's.
func (r *Run) Continue(run *event.Run) error {
	if err := r.same(append(facts(r.Run, run), fact{"set", r.Run.Set, run.Set},
		fact{"baseline", r.Run.Baseline.Text(), run.Baseline.Text()})); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, w := range run.Workloads {
		wanted[w.UUID] = true
	}
	for _, w := range r.Run.Workloads {
		if !wanted[w.UUID] {
			run.Workloads = append(run.Workloads, w)
		}
	}
	run.ID, run.Started = r.ID, r.Run.Started
	return nil
}

// End records the end of old, the run of the folder, if it was killed after its last verdict.
func (f *Folder) End(old *Run) error {
	if old.Done != nil {
		return nil
	}
	stream := event.NewStream(f.Record)
	stream.Emit(event.Event{Type: event.TypeRun, Run: old.Run})
	stream.Emit(event.Event{Type: event.TypeDone, Done: new(old.Totals())})
	return stream.Err()
}

func tolerance(t event.Tolerance) string { return strings.TrimPrefix(ui.Tolerance(t), "correct: ") }

// facts compares what two descriptions of the same run have in common on all machines.
func facts(a, b *event.Run) []fact {
	return []fact{
		{"content hash", a.ContentHash, b.ContentHash},
		{"solution", a.Solution, b.Solution},
		{"destination-passing style", fmt.Sprint(a.DPS), fmt.Sprint(b.DPS)},
		{"definition", a.Definition, b.Definition},
		{"known secret", fmt.Sprint(a.KnownSecret), fmt.Sprint(b.KnownSecret)},
		{"seed", fmt.Sprint(a.Seed), fmt.Sprint(b.Seed)},
		{"profile", ui.Profile(a.Profile), ui.Profile(b.Profile)},
		{"tolerance", tolerance(a.Tolerance), tolerance(b.Tolerance)},
		{"timer", a.Timer, b.Timer},
	}
}

// Differ returns the first fact in which the descriptions of a run by two machines differ, with its values, or "". The
// machine that runs a job knows neither the set of its workloads nor the name of the baseline.
func Differ(a, b *event.Run) (what, inA, inB string) {
	for _, f := range facts(a, b) {
		if f.old != f.new {
			return f.what, f.old, f.new
		}
	}
	return "", "", ""
}

// SameDevice refuses to continue r on another device or with another driver.
func (r *Run) SameDevice(d event.Device) error {
	o := r.Run.Device
	return r.same([]fact{
		{"device", o.Kind, d.Kind}, {"device", o.Name, d.Name}, {"device", o.UUID, d.UUID}, {"arch", o.Arch, d.Arch},
		{"driver", o.Driver, d.Driver},
	})
}

type fact struct{ what, old, new string }

func (r *Run) same(facts []fact) error {
	for _, f := range facts {
		if f.old != f.new {
			return usage.Errorf("start a new run without --resume", "--resume %s: its %s is %s, now it is %s", r.ID, f.what,
				f.old, f.new)
		}
	}
	return nil
}
