package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/usage"
	"fisub/remote"
)

// IDs are the remote runs below root, the oldest first.
func IDs(root string) ([]string, error) {
	ids, err := runs.IDs(root)
	return slices.DeleteFunc(ids, func(id string) bool { return !IsRemote(filepath.Join(root, runs.Dir, id)) }),
		err
}

// A Listing is a run in the list of remote runs. Its State is "running" (followed), "detached" (attach brings more),
// "unsent" (it was ended before it began a job), "cancelled" or "done".
type Listing struct {
	ID      string    `json:"id"`
	State   string    `json:"state"`
	Jobs    int       `json:"jobs"`
	Active  int       `json:"active"` // of them: may still run, also where the state is "done" or "cancelled"
	Passed  int       `json:"passed"`
	Total   int       `json:"total"`          // 0 of a tool
	Tool    string    `json:"tool,omitempty"` // the command, of a run that gives no verdicts
	Places  []string  `json:"places"`
	Started time.Time `json:"-"`
}

func lineOf(dir string) (l Listing, err error) {
	plan, err := Load(dir)
	if err != nil {
		return l, err
	}
	l = Listing{ID: plan.Run.ID, State: "detached", Jobs: len(plan.Jobs), Active: len(plan.Active()),
		Total: len(plan.Run.Workloads), Tool: plan.Tool, Started: plan.Run.Started}
	if plan.Tool != "" {
		l.Total = 0
	}
	r, _ := runs.Read(dir)
	if r != nil {
		l.Passed, _ = r.Passed()
	}
	lacks := len(Lacking(plan, r)) > 0
	switch {
	case r != nil && r.Running:
		l.State = "running"
	case lacks && Marked(dir):
		l.State = "cancelled"
	case !plan.Packed():
		l.State = "unsent"
	case plan.Done, !lacks:
		l.State = "done"
	}
	for _, j := range plan.Jobs {
		if name := j.Place.String(); !slices.Contains(l.Places, name) {
			l.Places = append(l.Places, name)
		}
	}
	return l, nil
}

// Lacking returns the workloads for which the run has no verdict, or those of a tool that has not ended. r may be nil.
func Lacking(plan *Plan, r *runs.Run) (uuids []string) {
	if plan.Tool != "" && plan.Done {
		return nil
	}
	for _, w := range plan.Run.Workloads {
		if r == nil || !r.Judged(w.UUID) {
			uuids = append(uuids, w.UUID)
		}
	}
	return uuids
}

// List lists the remote runs below root, the newest first. warn gets the errors of those that cannot be read.
func List(root string, warn func(error)) ([]Listing, error) {
	ids, err := IDs(root)
	if err != nil {
		return nil, err
	}
	lines := []Listing{}
	for _, id := range slices.Backward(ids) {
		l, err := lineOf(filepath.Join(root, runs.Dir, id))
		if err != nil {
			warn(err)
			continue
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// Unsent is the error of a run that has begun no job.
func Unsent(id string) error {
	return fmt.Errorf("run %s: fisub was ended before it had sent anything: start it again", id)
}

// Find finds the remote run below root that arg names; last is the last remote one.
func Find(root, arg string) (id string, plan *Plan, err error) {
	ids, err := IDs(root)
	if err != nil {
		return "", nil, err
	}
	if arg == "last" && len(ids) > 0 {
		if id, err = runs.Find(root, arg); err != nil {
			return "", nil, err
		}
		_, err := runs.Read(filepath.Join(root, runs.Dir, id))
		if errors.Is(err, runs.ErrNoRun) && !slices.Contains(ids, id) {
			return "", nil, Unsent(id)
		}
		id = ids[len(ids)-1]
	} else if id, err = runs.Find(root, arg); err != nil {
		return "", nil, usage.Invalid(err)
	}
	plan, err = Load(filepath.Join(root, runs.Dir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, usage.Errorf("fisub remote ls lists them", "run %s is no remote run", id)
	}
	return id, plan, err
}

// An Orphan is a job that a host holds and no run waits for.
type Orphan struct {
	Table     string        `json:"table"`
	Job       string        `json:"job"`
	Place     string        `json:"place"`
	Elsewhere bool          `json:"elsewhere,omitempty"` // begun from another folder or machine, which may wait for it
	Run       string        `json:"run,omitempty"`       // the run here that lacks results which the job may have
	Damaged   bool          `json:"damaged,omitempty"`   // the plan of Run cannot be read
	Handle    remote.Handle `json:"-"`
	owner     string        // the run here that has begun it
}

// End ends the job, and writes that into the plan of its run below root.
func (o *Orphan) End(ctx context.Context, root string, open map[string]remote.Provider) error {
	if err := open[o.Table].Release(ctx, o.Handle); err != nil || o.owner == "" {
		return err
	}
	folder, _, err := runs.Attach(root, o.owner)
	if errors.Is(err, runs.ErrRunning) {
		return nil // it sees that
	}
	if err != nil {
		return err
	}
	defer folder.Close()
	plan, err := Load(folder.Path())
	if err != nil || !plan.Close(o.Job) {
		return err
	}
	return plan.Save(folder.Path())
}

// Free tells whether ending the job loses nothing.
func (o *Orphan) Free() bool { return !o.Elsewhere && o.Run == "" }

// Orphans asks the hosts which jobs they hold, and gives those that none of the runs below root waits for, each once.
// The error names the hosts that did not answer: one of them keeps no job of another one alive.
func Orphans(ctx context.Context, root string, open map[string]remote.Provider, names []string) ([]Orphan, error) {
	held := map[string][]remote.Handle{}
	var faults []error
	for _, name := range names {
		var err error
		held[name], err = open[name].List(ctx)
		if ctx.Err() != nil {
			return nil, err
		}
		faults = append(faults, err)
	}
	// That is read after the hosts were asked: a run writes a job down before it submits it.
	owners, err := owners(root)
	if err != nil {
		return nil, err
	}
	orphans, seen := []Orphan{}, map[string]string{}
	for _, name := range names {
		for _, h := range held[name] {
			if table, ok := seen[h.Job]; ok && table != name {
				continue // two tables have the host
			}
			seen[h.Job] = name
			o := Orphan{Table: name, Job: h.Job, Place: h.Place.String(), Elsewhere: true, Handle: h}
			waited := false
			for _, w := range owners {
				waited = waited || w.claims(&o)
			}
			if !waited {
				orphans = append(orphans, o)
			}
		}
	}
	return orphans, errors.Join(faults...)
}

// An owner is a run that may wait for jobs.
type owner struct {
	plan    *Plan
	lacking []string // workloads; none in a run that was cancelled
	running bool     // a process follows it
	damaged bool     // the plan cannot be read
}

func owners(root string) (all []owner, err error) {
	ids, err := runs.IDs(root)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		dir := filepath.Join(root, runs.Dir, id)
		if !IsRemote(dir) {
			continue
		}
		plan, err := Load(dir)
		if err != nil {
			all = append(all, owner{plan: &Plan{Run: event.Run{ID: id}}, damaged: true})
			continue
		}
		o := owner{plan: plan}
		r, _ := runs.Read(dir)
		if o.running = r != nil && r.Running; !Marked(dir) {
			o.lacking = Lacking(plan, r)
		}
		all = append(all, o)
	}
	return all, nil
}

// claims tells whether the run waits for the job, and says in it what it is to the run otherwise.
func (w *owner) claims(o *Orphan) bool {
	if strings.HasPrefix(o.Job, "fisub-"+w.plan.Run.ID+"-") {
		o.Elsewhere = false
		if w.damaged {
			o.Run, o.Damaged = w.plan.Run.ID, true
		}
	}
	for _, j := range w.plan.Jobs {
		if j.ID != o.Job {
			continue
		}
		o.Elsewhere, o.owner = false, w.plan.Run.ID
		lacks := slices.ContainsFunc(j.Workloads, func(u string) bool { return slices.Contains(w.lacking, u) })
		switch {
		case j.Ended == nil:
			return w.running || lacks
		case lacks:
			o.Run = w.plan.Run.ID
		}
	}
	return false
}

// Logs hands on the lines of the logs of a run's jobs; with follow until the jobs have ended, else those that there
// are.
func Logs(ctx context.Context, dir string, open map[string]remote.Provider, follow bool, line func(place ProviderPlace,
	text string) error) error {
	temp, remove, err := cache.TempDir("fisub-logs")
	if err != nil {
		return err
	}
	defer remove()
	f := &follower{over: map[string]bool{}}
	ctx, cancel := context.WithCancel(ctx)
	defer f.group.Wait()
	defer cancel()
	read := map[string]int{} // bytes, by job
	for {
		plan, err := Load(dir)
		if err != nil {
			return err
		}
		// Which jobs go on is asked first: what the others have said is then there.
		last := !follow || !f.live(ctx, dir, plan, open)
		for _, j := range plan.Jobs {
			text, err := logOf(ctx, dir, temp, open, j)
			if err != nil {
				return err
			}
			text = text[min(read[j.ID], len(text)):]
			if j.Ended == nil && !last {
				text = text[:strings.LastIndexByte(text, '\n')+1] // half a line comes whole the next time
			}
			read[j.ID] += len(text)
			for l := range strings.Lines(text) {
				if err := line(j.Place, strings.TrimRight(l, "\n")); err != nil {
					return err
				}
			}
		}
		if last {
			return errors.Join(f.faults...)
		}
		if err := remote.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// A follower finds out when jobs end that no process may follow.
type follower struct {
	group  sync.WaitGroup
	mu     sync.Mutex
	over   map[string]bool // the jobs that are watched: whether they have ended
	faults []error         // of hosts that do not say
}

// live tells whether a job of the plan goes on, or is still to begin.
func (f *follower) live(ctx context.Context, dir string, plan *Plan, open map[string]remote.Provider) (live bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range plan.Active() {
		over, watched := f.over[j.ID]
		switch {
		case j.Handle == nil: // it begins where somebody follows the run
			r, _ := runs.Read(dir)
			live = live || r != nil && r.Running
			continue
		case !watched:
			f.over[j.ID] = false
			f.group.Go(func() {
				_, err := open[j.Place.Table].Wait(ctx, *j.Handle, 0, nobody{})
				f.mu.Lock()
				defer f.mu.Unlock()
				if f.over[j.ID] = true; err != nil {
					f.faults = append(f.faults, err)
				}
			})
		}
		live = live || !over
	}
	return live
}

// nobody is a Watcher that drops what it is told.
type nobody struct{}

func (nobody) Write(p []byte) (int, error) { return len(p), nil }
func (nobody) State(remote.Stage)          {}

// logOf is the log of a job as far as it is known: in the run folder dir, or on its host, from where it is brought
// below temp.
func logOf(ctx context.Context, dir, temp string, open map[string]remote.Provider, j *JobRecord) (string, error) {
	at := filepath.Join(dir, "log", j.ID)
	if j.Ended == nil && j.Handle != nil {
		brought := filepath.Join(temp, j.ID)
		if err := os.MkdirAll(brought, 0o700); err != nil {
			return "", err
		}
		if err := open[j.Place.Table].Collect(ctx, *j.Handle, brought); err == nil {
			at = brought
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	data, err := os.ReadFile(filepath.Join(at, "log"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return string(data), err
}
