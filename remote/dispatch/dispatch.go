package dispatch

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fisub/bench/runs"
	"fisub/internal/event"
	"fisub/remote"
)

// A Dispatcher takes one run to its end. Its fields are set by the caller.
type Dispatcher struct {
	Plan      *Plan
	Folder    string                     // the run folder
	Old       *runs.Run                  // the content of the folder; nil for a new run
	Providers map[string]remote.Provider // by table
	Follow    Follow

	// Files gives the bundle of a job for workloads, and the program with its arguments.
	Files func(ctx context.Context, workloads []string) ([]remote.File, []string, error)

	Events   *event.Stream                         // takes what happens; its sinks record it
	Line     func(j *JobRecord, text []byte) error // takes the lines of a tool
	Progress func(place string, sent, total int64) // of a bundle; may be nil

	state *state
}

// Follow says how jobs are followed.
type Follow struct {
	Detach    bool          // return when each place has taken its job, or has refused it
	MaxStream int64         // bytes that a job may say, at most; if 0, by the number of its workloads
	Overtime  time.Duration // for how long a host may say nothing of a job that must be over; 3 minutes if 0
}

// maxTries is how many jobs may have a workload.
const maxTries = 3

// Run begins the jobs that are missing, follows those that run, and returns when all workloads have a verdict or no job
// can give them one. Run waits for a job whose host is out of reach until the job's time limit has passed, and also
// gives its workloads to free places. The totals are about the whole run; a tool's have
// a failure if it found something. If ctx ends first, Run leaves the jobs running, and the error wraps
// ctx's. It also leaves a job running if the user's credentials or the table do not let it follow the job, or if
// its host stays out of reach; if its results are needed the error is then the provider's. If nothing ran at all
// the error is ErrNothing, or the only place's error. It is ErrCancelled if another process wants the run to end.
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
	res := s.runs.summary.Totals()
	if s.runs.unclean {
		res.Failed++
	}
	if err := s.nothing(); err != nil {
		return res, errors.Join(err, d.finish(true))
	}
	if d.Plan.Tool == "" {
		s.runs.done(time.Now())
	}
	err := x.perform(s.next(time.Now()))
	return res, errors.Join(err, d.finish(s.paused == nil))
}

// prepare takes over the run.
func (d *Dispatcher) prepare() error {
	r := rules{detach: d.Follow.Detach, overtime: d.Follow.Overtime, stream: d.Follow.MaxStream, tries: maxTries,
		key: rand.Text}
	if r.overtime == 0 {
		r.overtime = 3 * time.Minute
	}
	if d.Plan.Tool != "" {
		r.tries = 1
	}
	d.state = newState(d.Plan, d.Old, r)
	d.state.runs.begun = time.Now()
	return d.Plan.Claim(d.Folder)
}

// finish writes down whether anything is left to do.
func (d *Dispatcher) finish(done bool) error {
	d.Plan.Done = done && len(d.Plan.Active()) == 0
	return d.Plan.Save(d.Folder)
}

// Cancel ends all jobs that may still run, and writes down that the run is over: no job is begun any more. Jobs that
// could not be ended stay in the plan; the error gives the reasons. Run must have returned.
func (d *Dispatcher) Cancel(ctx context.Context) error {
	if d.state == nil {
		if err := d.prepare(); err != nil {
			return err
		}
	}
	if err := Mark(d.Folder); err != nil {
		return err
	}
	s := d.state
	x := &executor{Dispatcher: d, base: ctx, facts: make(chan message), stops: map[*job]context.CancelFunc{}}
	s.end()
	x.loop(nil, nil, nil)
	if s.runs.first != "" && d.Plan.Tool == "" {
		s.runs.done(time.Now())
	}
	err := x.perform(s.next(time.Now()))
	return errors.Join(s.left, err, d.finish(true))
}

// Reopen asks the hosts for jobs that were given up and whose workloads have no verdict. Those that are still there
// count as running again: Run takes their results. It returns their number; the error names the hosts that
// did not answer.
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

// Said hands on the lines of a tool's job that are in the run folder.
func Said(folder string, j *JobRecord, line func(j *JobRecord, text []byte) error) error {
	f, err := os.Open(filepath.Join(folder, streamOf(j.ID)))
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

// A writer is an io.Writer that takes all.
type writer func(p []byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

var (
	// ErrDetached is the error of a Run that has left its jobs running.
	ErrDetached = errors.New("detached")
	// ErrNothing is the error if no place took a job; events have the reasons.
	ErrNothing = errors.New("nothing ran: no place took the job")
)
