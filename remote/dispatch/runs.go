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

	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/remote"
	"fisub/runs"
)

// IDs returns the ids of the remote runs below root, oldest first.
func IDs(root string) ([]string, error) {
	ids, err := runs.IDs(root)
	return slices.DeleteFunc(ids, func(id string) bool { return !IsRemote(filepath.Join(root, runs.Dir, id)) }), err
}

// A Listing is an entry in the list of remote runs. State is "running" (with a process), "detached" (attach fetches
// more), "unsent" (ended before its first job), "cancelled" or "done".
type Listing struct {
	ID     string   `json:"id"`
	State  string   `json:"state"`
	Jobs   int      `json:"jobs"`
	Active int      `json:"active"` // jobs that may be running, even if State is "done" or "cancelled"
	Passed int      `json:"passed"`
	Total  int      `json:"total"`          // 0 for a tool
	Tool   string   `json:"tool,omitempty"` // command of a run without verdicts
	Places []string `json:"places"`

	Run event.Run `json:"-"` // as known to the client
}

// Describe returns the entry of the remote run in the folder dir.
func Describe(dir string) (l Listing, err error) {
	plan, err := Load(dir)
	if err != nil {
		return l, err
	}
	l = Listing{ID: plan.Run.ID, State: "detached", Jobs: len(plan.Jobs), Active: len(plan.Active()),
		Total: len(plan.Run.Workloads), Tool: plan.Tool, Run: plan.Run}
	if plan.Tool != "" {
		l.Total = 0
	}
	r, _ := runs.Read(dir)
	if r != nil {
		l.Passed, _ = r.Passed()
	}
	lacks := len(MissingVerdicts(plan, r)) > 0
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

// MissingVerdicts returns the workloads without a verdict, or all workloads of a tool that has not ended. r may be nil.
func MissingVerdicts(plan *Plan, r *runs.Run) (uuids []string) {
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

// List returns the remote runs below root, newest first, and calls warn with the error of each unreadable one.
func List(root string, warn func(error)) ([]Listing, error) {
	ids, err := IDs(root)
	if err != nil {
		return nil, err
	}
	lines := []Listing{}
	for _, id := range slices.Backward(ids) {
		l, err := Describe(filepath.Join(root, runs.Dir, id))
		if err != nil {
			warn(err)
			continue
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// Unsent returns the error for a run that has started no job.
func Unsent(id string) error {
	return fmt.Errorf("run %s: fisub ended before sending anything: start a new run", id)
}

// Find returns the remote run below root that arg names; "last" is the newest one.
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
		return "", nil, usage.Errorf("fisub remote ls lists them", "run %s is not a remote run", id)
	}
	return id, plan, err
}

// An Orphan is a job on a host that no run waits for.
type Orphan struct {
	Table     string        `json:"table"`
	Job       string        `json:"job"`
	Place     string        `json:"place"`
	Elsewhere bool          `json:"elsewhere,omitempty"` // from another folder or machine, which may wait for it
	Run       string        `json:"run,omitempty"`       // local run whose missing results the job may have
	Damaged   bool          `json:"damaged,omitempty"`   // the plan of Run cannot be read
	Handle    remote.Handle `json:"-"`
	owner     string        // local run that submitted the job
}

// End ends the job and records that in its run's plan.
func (o *Orphan) End(ctx context.Context, root string, open map[string]remote.Provider) error {
	if err := open[o.Table].Release(ctx, o.Handle); err != nil || o.owner == "" {
		return err
	}
	folder, _, err := runs.Attach(root, o.owner)
	if errors.Is(err, runs.ErrRunning) {
		return nil // the process that follows the run will notice
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

// Free reports whether ending the job loses nothing.
func (o *Orphan) Free() bool { return !o.Elsewhere && o.Run == "" }

// Orphans returns the jobs on the hosts that no run below root waits for, each once. The error names the hosts that did
// not answer.
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
	// Read the runs after asking the hosts: a run records a job before it submits it.
	owners, err := owners(root)
	if err != nil {
		return nil, err
	}
	orphans, seen := []Orphan{}, map[string]string{}
	for _, name := range names {
		for _, h := range held[name] {
			if table, ok := seen[h.Job]; ok && table != name {
				continue // the host is in two tables
			}
			seen[h.Job] = name
			o := Orphan{Table: name, Job: h.Job, Place: h.Place.String(), Elsewhere: true, Handle: h}
			if !slices.ContainsFunc(owners, func(w owner) bool { return w.claims(&o) }) {
				orphans = append(orphans, o)
			}
		}
	}
	return orphans, errors.Join(faults...)
}

// An owner is a run that may wait for jobs.
type owner struct {
	plan    *Plan
	lacking []string // workloads without a verdict; none if the run was cancelled
	running bool     // a process is following it
	damaged bool     // the plan cannot be read
}

func owners(root string) (all []owner, err error) {
	ids, err := IDs(root)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		dir := filepath.Join(root, runs.Dir, id)
		plan, err := Load(dir)
		if err != nil {
			all = append(all, owner{plan: &Plan{Run: event.Run{ID: id}}, damaged: true})
			continue
		}
		o := owner{plan: plan}
		r, _ := runs.Read(dir)
		if o.running = r != nil && r.Running; !Marked(dir) {
			o.lacking = MissingVerdicts(plan, r)
		}
		all = append(all, o)
	}
	return all, nil
}

// claims reports whether the run waits for the job. If not, it sets the fields of o that concern the run.
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

// Logs passes the lines of the jobs' logs to line. If follow is set, it continues until the jobs have ended.
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
	read := map[string]int{} // bytes by job
	for {
		plan, err := Load(dir)
		if err != nil {
			return err
		}
		// Find the running jobs before reading the logs, so that the logs of the others are complete.
		last := !follow || !f.live(ctx, dir, plan, open)
		for _, j := range plan.Jobs {
			text, err := logOf(ctx, dir, temp, open, j)
			if err != nil {
				return err
			}
			text = text[min(read[j.ID], len(text)):]
			if j.Ended == nil && !last {
				text = text[:strings.LastIndexByte(text, '\n')+1] // leave an incomplete line for the next pass
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

// A follower detects the end of jobs, even if no process is following the run.
type follower struct {
	group  sync.WaitGroup
	mu     sync.Mutex
	over   map[string]bool // by job; whether it has ended
	faults []error         // errors of Wait
}

// live reports whether a job of the plan is running, or yet to be started.
func (f *follower) live(ctx context.Context, dir string, plan *Plan, open map[string]remote.Provider) (live bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range plan.Active() {
		over, watched := f.over[j.ID]
		switch {
		case j.Handle == nil: // it starts only if a process is following the run
			r, _ := runs.Read(dir)
			live = live || r != nil && r.Running
			continue
		case !watched:
			f.over[j.ID] = false
			f.group.Go(func() {
				_, err := open[j.Place.Table].Wait(ctx, *j.Handle, 0, ignoreWatcher{})
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

// ignoreWatcher is a Watcher that ignores everything.
type ignoreWatcher struct{}

func (ignoreWatcher) Write(p []byte) (int, error) { return len(p), nil }
func (ignoreWatcher) State(remote.Stage)          {}

// logOf returns the log of a job so far, from the run folder dir, or copied from the job's host to temp.
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
	data, err := plain.ReadFile(filepath.Join(at, "log"), 1<<30)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return string(data), err
}
