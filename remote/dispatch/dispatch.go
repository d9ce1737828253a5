package dispatch

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"time"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/runs"
)

// A Dispatcher executes one run. The caller sets its fields.
type Dispatcher struct {
	Plan      *Plan
	Folder    string                     // the run folder
	Old       *runs.Run                  // the content of the folder; nil for a new run
	Providers map[string]remote.Provider // by table
	Follow    Follow

	// Files returns the files of a job for the workloads, and its command.
	Files func(ctx context.Context, workloads []string) ([]remote.File, []string, error)

	Events   *event.Stream                         // receives the events of the run; its sinks record them
	Line     func(j *JobRecord, text []byte) error // receives the lines of a tool
	Progress func(place string, sent, total int64) // of sending a bundle; may be nil

	state *state
}

// Follow controls how jobs are followed.
type Follow struct {
	Detach    bool          // return as soon as each place has accepted or refused its job
	MaxStream int64         // maximum bytes of a job's stream; 0: depends on the number of its workloads
	Overtime  time.Duration // how long a host may be silent about a job that must be over; 0 means 3 minutes
}

// Run starts the missing jobs, follows those that are running, and returns when all workloads have a verdict or no job
// can deliver one. It waits for an unreachable job until the job's time limit has passed, but also gives its workloads
// to free places. The totals cover the whole run; for a tool they count a failure if it found something.
//
// If ctx ends first, Run leaves the jobs running and returns an error that wraps ctx's. It also leaves a job that it
// cannot follow because of the user's credentials, the table, or an unreachable host; if the results are needed, the
// error is the provider's. If nothing ran, the error is ErrNothing, or the error of the only place. If another process
// has cancelled the run, it is ErrCancelled.
func (d *Dispatcher) Run(ctx context.Context) (event.Done, error) {
	if err := d.prepare(); err != nil {
		return event.Done{}, err
	}
	s := d.state
	x := &executor{Dispatcher: d, base: context.WithoutCancel(ctx), facts: make(chan message),
		stops: map[*job]context.CancelFunc{}}
	x.replay()
	s.resume(time.Now())
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	x.loop(ctx.Done(), watch(watching, d.Folder), func() error { return ctx.Err() })
	if err := s.stays(); err != nil {
		return event.Done{}, err
	}
	s.runs.release()
	res := s.content.totals()
	if err := s.nothing(); err != nil {
		return res, errors.Join(err, d.finish(true))
	}
	s.content.done(time.Now())
	err := x.perform(s.next(time.Now()))
	return res, errors.Join(err, d.finish(s.paused == nil))
}

// prepare sets up the state and claims the run.
func (d *Dispatcher) prepare() error {
	r := rules{detach: d.Follow.Detach, overtime: d.Follow.Overtime, stream: d.Follow.MaxStream, key: rand.Text}
	if r.overtime == 0 {
		r.overtime = 3 * time.Minute
	}
	d.state = newState(d.Plan, d.Old, r)
	d.state.runs.begun = time.Now()
	d.state.runs.now = d.state.runs.begun
	return d.Plan.Claim(d.Folder)
}

// finish records in the plan whether anything is left to do.
func (d *Dispatcher) finish(done bool) error {
	d.Plan.Done = done && len(d.Plan.Active()) == 0
	return d.Plan.Save(d.Folder)
}

// Cancel ends all jobs that may be running and prevents new ones. Without a Run before it, it first fetches the events
// that the jobs have written so far. Jobs that could not be ended stay in the plan; the error gives the reasons. Cancel
// must not be called during Run.
func (d *Dispatcher) Cancel(ctx context.Context) error {
	fresh := d.state == nil
	if fresh {
		if err := d.prepare(); err != nil {
			return err
		}
	}
	if err := Mark(d.Folder); err != nil {
		return err
	}
	s := d.state
	x := &executor{Dispatcher: d, base: ctx, facts: make(chan message), stops: map[*job]context.CancelFunc{}}
	if fresh && s.content.partial() {
		d.fetch(ctx)
		x.replay()
	}
	s.end()
	x.loop(nil, nil, nil)
	s.runs.release()
	if s.runs.first != "" {
		s.content.done(time.Now())
	}
	err := x.perform(s.next(time.Now()))
	return errors.Join(s.left, err, d.finish(true))
}

// Reopen looks for jobs that were given up although workloads have no verdict. Those still on their host are marked as
// running, so that Run fetches their results. Reopen returns their number; the error names the hosts that did not
// answer.
func (d *Dispatcher) Reopen(ctx context.Context) (n int, err error) {
	if err := d.prepare(); err != nil {
		return 0, err
	}
	pending := map[*JobRecord]bool{}
	for _, j := range d.state.jobs {
		pending[j.JobRecord] = d.state.awaited(j)
	}
	given := map[string][]*JobRecord{}
	for _, j := range d.Plan.Jobs {
		if j.Ended != nil && j.Handle != nil && pending[j] && d.Providers[j.Place.Table] != nil {
			given[j.Place.Table] = append(given[j.Place.Table], j)
		}
	}
	var faults []error
	for table, jobs := range given {
		held, err := d.Providers[table].List(ctx)
		faults = append(faults, err)
		for _, j := range jobs {
			if slices.ContainsFunc(held, func(h remote.Handle) bool { return h.Job == j.ID }) {
				n++
				j.Ended, j.Exit, d.Plan.Done = nil, nil, false
				faults = append(faults, d.Plan.Save(d.Folder))
			}
		}
	}
	return n, errors.Join(faults...)
}

// ReplayOutput passes the recorded lines of a tool's job to line.
func ReplayOutput(folder string, j *JobRecord, line func(j *JobRecord, text []byte) error) error {
	f, err := plain.Open(filepath.Join(folder, streamOf(j.ID)))
	if err != nil {
		return err
	}
	defer f.Close()
	r := newReader(j, 0)
	_, err = io.Copy(writer(func(p []byte) (err error) {
		r.lines(p, func(text []byte) {
			if err == nil {
				err = line(j, text)
			}
		})
		return err
	}), f)
	return err
}

// A writer is an io.Writer whose writes are always complete.
type writer func(p []byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

var (
	// ErrDetached is the error of a Run that leaves its jobs running.
	ErrDetached = errors.New("detached")
	// ErrNothing is the error if no place accepted a job; events have the reasons.
	ErrNothing = errors.New("nothing ran: no place accepted the job")
)
