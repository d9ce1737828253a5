package runs

import (
	"fmt"

	"fisub/internal/event"
	"fisub/internal/ui"
	"fisub/internal/usage"
)

// Continue makes run the continuation of r: it gets the id and the workloads of r. Other sources or conditions are
// an error: the verdicts and figures of two runs would mix.
func (r *Run) Continue(run *event.Run) error {
	old := r.Run
	if err := r.same([]fact{
		{"content hash", old.ContentHash, run.ContentHash},
		{"solution", old.Solution, run.Solution},
		{"destination-passing style", fmt.Sprint(old.DPS), fmt.Sprint(run.DPS)},
		{"definition", old.Definition, run.Definition},
		{"set", old.Set, run.Set},
		{"seed", fmt.Sprint(old.Seed), fmt.Sprint(run.Seed)},
		{"profile", ui.Profile(old.Profile), ui.Profile(run.Profile)},
		{"timer", old.Timer, run.Timer},
		{"baseline", old.Baseline.Text(), run.Baseline.Text()},
	}); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, w := range run.Workloads {
		wanted[w.UUID] = true
	}
	for _, w := range old.Workloads {
		if !wanted[w.UUID] {
			run.Workloads = append(run.Workloads, w)
		}
	}
	run.ID, run.Started = r.ID, old.Started
	return nil
}

// End ends the run r, which was killed between its last verdict and its end.
func (f *Folder) End(r *Run) error {
	if r.Done != nil {
		return nil
	}
	stream := event.NewStream(f.Record)
	stream.Emit(event.Event{Type: event.TypeRun, Run: r.Run})
	d := r.Totals()
	stream.Emit(event.Event{Type: event.TypeDone, Done: &d})
	return stream.Err()
}

// SameDevice returns an error if d is not the device of the run, or has another driver.
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
