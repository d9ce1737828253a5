package dispatch

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"path/filepath"
	"time"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/runs"
)

// A Dispatcher executes one run.
type Dispatcher struct {
	Plan   *Plan
	Folder *runs.Folder
	Old    *runs.Run // the first content of the folder; nil for a new run

	providers map[string]remote.Provider // by table
	files     Files
	settings  Follow
	events    *event.Stream // of the run
	state     *state
}

// Files returns the files of a job for the workloads, and its command.
type Files func(ctx context.Context, workloads []string) ([]remote.File, []string, error)

// Follow controls how Run follows the jobs.
type Follow struct {
	Detach    bool          // return as soon as each place has accepted or refused its job
	MaxStream int64         // maximum bytes of a job's stream; 0: depends on the number of its workloads
	Overtime  time.Duration // how long a host may be silent about a job that must be over; 0 means 3 minutes

	Events   event.Sink                            // also receives the events of the run; may be nil
	Line     func(j *JobRecord, text []byte) error // receives the lines of a tool; nil for an ordinary run
	Progress func(place string, sent, total int64) // of sending a bundle; may be nil

	// Decide returns when the user wants to end the run, and reports whether to stop its jobs. It also returns when over
	// is closed. Nil: the run ends with its context.
	Decide func(over <-chan struct{}) (stop bool)
}

// An End is the way in which a Run has ended.
type End int

const (
	Finished  End = iota // all workloads have a verdict, or no job can deliver one
	Failed               // with an error
	Detached             // as Follow.Detach demands
	Left                 // the jobs are left running: the user or the context has ended the Run
	Stopped              // the user wants to stop the jobs, which Cancel does
	Cancelled            // another process has cancelled the run; Cancel stops the jobs
)

// New returns the Dispatcher of a plan in its run folder, which has the content old; old is nil for a new run. The
// folder records the events of an ordinary run. files may be nil if no job is to be started.
func New(p *Plan, folder *runs.Folder, old *runs.Run, providers map[string]remote.Provider, files Files) *Dispatcher {
	return &Dispatcher{Plan: p, Folder: folder, Old: old, providers: providers, files: files}
}

// Run starts the missing jobs, follows those that are running, and returns when all workloads have a verdict or no job
// can deliver one. It waits for an unreachable job until the job's time limit has passed, but also gives its workloads
// to free places. The totals cover the whole run; for a tool they count a failure if it found something.
//
// If ctx or Decide ends first, Run leaves the jobs running. It also leaves a job that it cannot follow because of the
// user's credentials, the table, or an unreachable host; if the results are needed, Run has Failed with the provider's
// error. If nothing ran, the error is ErrNothing, or the error of the only place.
func (d *Dispatcher) Run(ctx context.Context, f Follow) (End, event.Done, error) {
	d.settings = f
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	over, stop := make(chan struct{}), make(chan bool, 1)
	if f.Decide == nil {
		f.Decide = func(over <-chan struct{}) bool { <-over; return false }
	}
	go func() {
		stop <- f.Decide(over)
		leave()
	}()
	end, totals, err := d.run(ctx)
	close(over)
	if <-stop && end == Left {
		end = Stopped
	}
	return end, totals, err
}

// run is Run without Decide.
func (d *Dispatcher) run(ctx context.Context) (End, event.Done, error) {
	if err := d.prepare(); err != nil {
		return Failed, event.Done{}, err
	}
	s := d.state
	e := newExecutor(d, context.WithoutCancel(ctx))
	e.replay()
	s.resume(time.Now())
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	marked := make(chan struct{})
	go watch(watching, d.Folder.Path(), func() { close(marked) })
	e.loop(ctx, marked)
	if end, err := s.unfollowed(); end != Finished {
		return end, event.Done{}, err
	}
	s.runs.release()
	totals := s.totals()
	if err := s.nothingRan(); err != nil {
		return Failed, totals, errors.Join(err, d.finish(true))
	}
	if !s.isTool() {
		s.runs.done(time.Now())
	}
	if err := errors.Join(e.perform(s.next(time.Now())), d.finish(s.paused == nil)); err != nil {
		return Failed, totals, err
	}
	return Finished, totals, nil
}

// prepare sets up the state and claims the run.
func (d *Dispatcher) prepare() error {
	r := rules{detach: d.settings.Detach, overtime: d.settings.Overtime, stream: d.settings.MaxStream, key: rand.Text}
	if r.overtime == 0 {
		r.overtime = 3 * time.Minute
	}
	d.state = newState(d.Plan, d.Old, r)
	var record event.Sink
	if !d.state.isTool() {
		record = d.Folder.Record
	}
	d.events = event.NewStream(record, d.settings.Events)
	d.state.runs.begun = time.Now()
	d.state.runs.now = d.state.runs.begun
	return d.Plan.Claim(d.Folder.Path())
}

// finish records in the plan whether anything is left to do.
func (d *Dispatcher) finish(done bool) error {
	d.Plan.Done = done && len(d.Plan.Active()) == 0
	return d.Plan.Save(d.Folder.Path())
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
	if err := Mark(d.Folder.Path()); err != nil {
		return err
	}
	s := d.state
	e := newExecutor(d, ctx)
	if fresh && !s.isTool() {
		d.fetch(ctx)
		e.replay()
	}
	s.end()
	e.loop(context.Background(), nil)
	s.runs.release()
	if s.runs.first != "" && !s.isTool() {
		s.runs.done(time.Now())
	}
	err := e.perform(s.next(time.Now()))
	return errors.Join(s.left, err, d.finish(true))
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

// ErrNothing is the error if no place accepted a job; events have the reasons.
var ErrNothing = errors.New("nothing ran: no place accepted the job")
