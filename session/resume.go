package session

import (
	"fmt"
	"path/filepath"

	"fisub/bench/runs"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/remote/dispatch"
)

// OpenResumed opens the folder of the run to resume, below root; folder and old are nil where resume is "".
func OpenResumed(root, resume string) (folder *runs.Folder, old *runs.Run, err error) {
	if resume == "" {
		return nil, nil, nil
	}
	id, err := runs.Find(root, resume)
	if err != nil {
		return nil, nil, usage.Invalid(err)
	}
	if dispatch.IsRemote(filepath.Join(root, runs.Dir, id)) {
		return nil, nil, usage.Errorf("fisub remote attach "+id, "--resume %s: it is a remote run", id)
	}
	folder, old, err = runs.Resume(root, id)
	return folder, old, usage.Invalid(err)
}

// GoOn makes run the continuation of old: it has its id, and its workloads too. It refuses a run that is not the same:
// verdicts and figures of two would mix.
func GoOn(old *runs.Run, run *event.Run) error {
	if err := sameRun(old, run); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, w := range run.Workloads {
		wanted[w.UUID] = true
	}
	for _, w := range old.Run.Workloads {
		if !wanted[w.UUID] {
			run.Workloads = append(run.Workloads, w)
		}
	}
	run.ID, run.Started = old.ID, old.Run.Started
	return nil
}

// End ends a run that was killed between its last verdict and its end.
func End(folder *runs.Folder, old *runs.Run) error {
	if old.Done != nil {
		return nil
	}
	stream := event.NewStream(folder.Record)
	stream.Emit(event.Event{Type: event.TypeRun, Run: old.Run})
	d := old.Totals()
	stream.Emit(event.Event{Type: event.TypeDone, Done: &d})
	return stream.Err()
}

func sameRun(old *runs.Run, run *event.Run) error {
	return sameFacts(old, []fact{
		{"content hash", old.Run.ContentHash, run.ContentHash},
		{"solution", old.Run.Solution, run.Solution},
		{"destination-passing style", fmt.Sprint(old.Run.DPS), fmt.Sprint(run.DPS)},
		{"definition", old.Run.Definition, run.Definition},
		{"set", old.Run.Set, run.Set},
		{"seed", fmt.Sprint(old.Run.Seed), fmt.Sprint(run.Seed)},
		{"profile", ui.Profile(old.Run.Profile), ui.Profile(run.Profile)},
		{"timer", old.Run.Timer, run.Timer},
		{"baseline", old.Run.Baseline.Text(), run.Baseline.Text()},
	})
}

// SameDevice refuses to go on with old on another device, or with another driver.
func SameDevice(old *runs.Run, d device.Info) error {
	o := old.Run.Device
	return sameFacts(old, []fact{
		{"device", o.Kind, d.Kind}, {"device", o.Name, d.Name}, {"device", o.UUID, d.UUID}, {"arch", o.Arch, d.Arch},
		{"driver", o.Driver, d.Driver},
	})
}

type fact struct{ what, old, new string }

func sameFacts(old *runs.Run, facts []fact) error {
	for _, f := range facts {
		if f.old != f.new {
			return usage.Errorf("start a new run without --resume", "--resume %s: its %s is %s, now it is %s", old.ID, f.what,
				f.old, f.new)
		}
	}
	return nil
}
