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
	"fisub/bench/stats"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/remote"
	"fisub/remote/agent"
)

// A Dispatcher takes one run to its end. Its fields are set by the caller.
type Dispatcher struct {
	Plan      *Plan
	Folder    string                     // the run folder
	Old       *runs.Run                  // what the folder holds already; nil for a new run
	Providers map[string]remote.Provider // by table

	// Files gives the bundle of a job for workloads, and the program with its arguments.
	Files func(ctx context.Context, workloads []string) ([]remote.File, []string, error)

	MaxStream int64 // bytes that a job may say, at most; 1 GiB where it is 0

	Detach bool // return when each place has taken its job, or has refused it

	Events   *event.Stream                         // takes what happens; its sinks record it
	Progress func(place string, sent, total int64) // of a bundle; may be nil

	begun    time.Time
	mu       sync.Mutex        // guards Plan, its jobs and what follows, and keeps the events in order
	settled  map[string]string // workload: the job that gave it a verdict, or said that there is none
	verdicts map[string]bool   // workload: passed
	index    map[string]int
	origins  map[string]int64
	findings int
	score    stats.Score
	first    string // the job that opened the stream
	device   event.Device
	losers   map[string]context.CancelFunc // of a race: the jobs that may still lose
}

// A Result counts as bench.Result does.
type Result struct {
	Passed, Failed, Missing, Findings int

	Open int // of those Missing: no host has said why
}

// An ended is a job that has come to its end.
type ended struct {
	job  *Job
	exit remote.Exit
	err  error // it could not be taken to its place, or not be followed
	full error // the run folder cannot take what the hosts say
	left error // it cannot be followed for a reason that the user can mend; it goes on
}

// mendable tells whether the error of a Wait is about the table or the user's credentials, and says nothing of the job.
func mendable(err error) bool {
	return slices.Contains([]string{"credentials", "host-key", "no-such"}, remote.CodeOf(err))
}

// maxAttempts is how many jobs may have a workload: the reason that hosts are lost may be the workload.
const maxAttempts = 3

// Run begins the jobs that are missing, follows those that run, and returns when all have ended and are released. Where
// ctx ends first, it leaves the jobs running, and the error wraps ctx's. It leaves a job running also where the user's
// credentials or the table do not let it follow the job; the error is then the provider's. Where nothing ran at all the
// error is ErrNothing, or that of the only place.
func (d *Dispatcher) Run(ctx context.Context) (Result, error) {
	if err := d.prepare(); err != nil {
		return Result{}, err
	}
	ctx, halt := context.WithCancel(ctx)
	defer halt()
	var broken, left error // of this machine, and of hosts: jobs go on, and another process can follow them
	ends := make(chan ended)
	running := 0
	defer func() {
		for halt(); running > 0; running-- {
			<-ends
		}
	}()
	bad := map[string]error{}
	taken := map[string]bool{}
	attempts := map[string]int{}
	begin := func(j *Job) {
		running++
		taken[j.Place.String()] = true
		jctx, cancel := context.WithCancel(ctx)
		d.mu.Lock()
		d.losers[j.ID] = cancel
		d.mu.Unlock()
		go func() {
			defer cancel()
			ends <- d.follow(jctx, ctx, j)
		}()
	}
	for i, j := range d.Plan.Jobs {
		if j.Error != "" {
			bad[j.Place.String()] = errors.New(j.Error)
			continue
		}
		if d.Plan.Race && i < len(d.Plan.Places) {
			continue // all of a race are one attempt, which is not counted
		}
		for _, w := range j.Workloads {
			attempts[w]++
		}
	}
	for _, j := range d.active() {
		if err := d.again(ctx, j); err != nil {
			return Result{}, err
		}
		begin(j)
	}
	if d.Plan.Race && len(d.Plan.Jobs) == 0 {
		for _, p := range d.Plan.Places {
			j, err := d.add(p, d.open())
			if err != nil {
				return Result{}, err
			}
			begin(j)
		}
	}
	given := map[string]bool{} // workloads that nobody is to have any more
	capped := false
	for {
		rest := slices.DeleteFunc(d.open(), func(w string) bool {
			runs := func(j *Job) bool { return slices.Contains(j.Workloads, w) }
			return given[w] || attempts[w] >= maxAttempts || slices.ContainsFunc(d.active(), runs)
		})
		free := slices.DeleteFunc(slices.Clone(d.Plan.Places), func(p Place) bool {
			return taken[p.String()] || bad[p.String()] != nil
		})
		if ctx.Err() == nil {
			for i, shard := range Deal(rest, len(free)) {
				if capped = !d.affords(free[i]); capped {
					continue // when a job has ended, what it did not use is there again
				}
				j, err := d.add(free[i], shard)
				if err != nil {
					return Result{}, err
				}
				for _, w := range shard {
					attempts[w]++
				}
				begin(j)
			}
		}
		if running == 0 {
			break
		}
		e := <-ends
		running--
		taken[e.job.Place.String()] = false
		if e.full != nil {
			broken = errors.Join(broken, e.full)
			halt()
		}
		if e.left != nil {
			bad[e.job.Place.String()] = e.left
			left = errors.Join(left, e.left)
			continue
		}
		if ctx.Err() != nil && e.err != nil || errors.Is(e.err, ErrDetached) {
			continue
		}
		d.judge(e, bad, given, attempts)
	}
	if broken != nil {
		return Result{}, broken
	}
	if ctx.Err() != nil && len(d.active()) > 0 {
		return Result{}, ctx.Err()
	}
	if left != nil {
		return Result{}, left
	}
	if d.Detach && len(d.active()) > 0 {
		return Result{}, ErrDetached
	}
	d.mu.Lock()
	opened := d.first != ""
	d.mu.Unlock()
	if !opened {
		err := ErrNothing
		if len(d.Plan.Places) == 1 && bad[d.Plan.Places[0].String()] != nil {
			err = bad[d.Plan.Places[0].String()]
		}
		n := len(d.Plan.Run.Workloads)
		return Result{Missing: n, Open: n}, errors.Join(err, d.finish(true))
	}
	r := d.count()
	if capped && r.Missing > 0 {
		d.Events.Emit(event.Event{Type: event.TypeWarning, Message: &event.Message{
			Text: fmt.Sprintf("another job may take the run over its cap of $%.2f", d.Plan.Cap()),
			Hint: "raise --max-cost, or lower --limit-time"}})
	}
	d.done(r)
	return r, errors.Join(d.finish(ctx.Err() == nil), d.Events.Err())
}

// change changes the plan and writes it down.
func (d *Dispatcher) change(do func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
	return d.Plan.Save(d.Folder)
}

func (d *Dispatcher) finish(done bool) error {
	return d.change(func() { d.Plan.Done = done && len(d.Plan.Active()) == 0 })
}

func (d *Dispatcher) prepare() error {
	d.begun = time.Now()
	d.settled, d.verdicts, d.index = map[string]string{}, map[string]bool{}, map[string]int{}
	d.losers = map[string]context.CancelFunc{}
	d.origins, d.score = map[string]int64{}, stats.Score{}
	for i, w := range d.Plan.Run.Workloads {
		d.index[w.UUID] = i
	}
	if d.Old != nil {
		d.origins = d.Old.Origins
		if d.Old.Run != nil {
			d.first, d.device = "before", d.Old.Run.Device
		}
		for _, row := range d.Old.Rows {
			d.settled[row.UUID] = "before"
			d.findings += len(row.Findings)
			row.Score(&d.score)
			if row.Evaluated != nil {
				d.verdicts[row.UUID] = row.Evaluated.Status == string(trace.Passed)
			}
		}
	}
	return d.change(func() {})
}

func (d *Dispatcher) affords(p Place) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Plan.affords(p)
}

func (d *Dispatcher) active() []*Job {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Plan.Active()
}

// open are the workloads without a word.
func (d *Dispatcher) open() (uuids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.Plan.Run.Workloads {
		if d.settled[w.UUID] == "" {
			uuids = append(uuids, w.UUID)
		}
	}
	return uuids
}

func (d *Dispatcher) count() (r Result) {
	r.Open = len(d.open())
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, passed := range d.verdicts {
		if passed {
			r.Passed++
		} else {
			r.Failed++
		}
	}
	r.Missing = len(d.Plan.Run.Workloads) - r.Passed - r.Failed
	r.Findings = d.findings
	return r
}

// done tells the end of the run. The score is over all workloads, wherever they ran.
func (d *Dispatcher) done(r Result) {
	done := &event.Done{Passed: r.Passed, Failed: r.Failed, Missing: r.Missing, Findings: r.Findings,
		Seconds: time.Since(d.begun).Seconds()}
	d.mu.Lock()
	defer d.mu.Unlock()
	if score, n, ok := d.score.Value(); ok && d.Plan.Run.Baseline != nil && r.Missing == 0 {
		done.Score, done.Scored = &score, n
	}
	d.Events.Emit(event.Event{Type: event.TypeDone, Done: done})
}

// Deal gives n hands of the workloads, each the next in turn, so that neighbours, which are alike, are spread. There
// are fewer hands where there are fewer workloads.
func Deal(workloads []string, n int) [][]string {
	hands := make([][]string, min(n, len(workloads)))
	for i, w := range workloads {
		if n > 0 {
			hands[i%n] = append(hands[i%n], w)
		}
	}
	return hands
}

// add writes a new job into the plan.
func (d *Dispatcher) add(p Place, workloads []string) (j *Job, err error) {
	err = d.change(func() {
		j = &Job{ID: fmt.Sprintf("fisub-%s-%d", d.Plan.Run.ID, len(d.Plan.Jobs)+1), Place: p, Workloads: workloads}
		d.Plan.Jobs = append(d.Plan.Jobs, j)
	})
	return j, err
}

// again prepares a job that another process was submitting when it ended. Whether a host has taken it is not known:
// what hosts have of it is released, and it gets another id, under which it is submitted anew.
func (d *Dispatcher) again(ctx context.Context, j *Job) error {
	if j.Handle != nil {
		return nil
	}
	provider := d.Providers[j.Place.Table]
	if provider == nil {
		return nil // follow gives the error
	}
	if err := d.releaseUnknown(ctx, provider, j); err != nil {
		return err
	}
	return d.change(func() {
		id, _, _ := strings.Cut(j.ID, "-r")
		j.ID = fmt.Sprintf("%s-r%d", id, time.Now().UnixMilli()%1e6)
	})
}

// releaseUnknown releases what hosts have of a job that was submitted by a process that has ended, by the provider's
// list. That a host cannot be asked is an error only where no other has the job.
func (d *Dispatcher) releaseUnknown(ctx context.Context, provider remote.Provider, j *Job) error {
	all, err := provider.List(ctx)
	for _, h := range all {
		if h.Job != j.ID {
			continue
		}
		if err = provider.Release(ctx, h); err != nil {
			return err
		}
	}
	return err
}

// ErrDetached says that jobs run that nobody follows.
var ErrDetached = errors.New("detached")

// ErrNothing says that no place took a job; events tell why.
var ErrNothing = errors.New("nothing ran: no place took the job")

var errLost = errors.New("another place has begun first")

// claim makes the first job of a race that says something its winner. Its error is errLost for the others.
func (d *Dispatcher) claim(j *Job) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.beaten(j) {
		return errLost
	}
	if !d.Plan.Race || d.Plan.Winner != "" {
		return nil
	}
	d.Plan.Winner = j.ID
	for id, cancel := range d.losers {
		if id != j.ID {
			cancel()
		}
	}
	return d.Plan.Save(d.Folder)
}

// beaten tells whether another job has won the race of j. Jobs that were begun after the race have to be heard too.
func (d *Dispatcher) beaten(j *Job) bool {
	raced := d.Plan.Race && slices.Index(d.Plan.Jobs, j) < len(d.Plan.Places)
	return raced && d.Plan.Winner != "" && d.Plan.Winner != j.ID
}

func (d *Dispatcher) lost(j *Job) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.beaten(j)
}

// follow takes a job to its end. run is the context of the whole run, ctx that of this job, which is cancelled where
// another job wins the race.
func (d *Dispatcher) follow(ctx, run context.Context, j *Job) ended {
	e := ended{job: j}
	provider := d.Providers[j.Place.Table]
	if provider == nil {
		e.err = fmt.Errorf("%s: no table remote.%s in the config any more", j.Place, j.Place.Table)
		return e
	}
	lost := remote.Exit{End: remote.Cancelled, Text: errLost.Error()}
	if d.lost(j) { // the process in which another job won ended before this one was released
		return d.end(provider, j, lost)
	}
	if j.Handle == nil {
		if e.err = d.submit(ctx, provider, j); e.err != nil {
			if run.Err() == nil && d.lost(j) {
				return d.end(provider, j, lost)
			}
			return e
		}
	}
	if d.Detach {
		e.err = ErrDetached
		return e
	}
	f, offset, err := d.openFeed(j)
	if err != nil {
		e.err, e.full = err, err
		return e
	}
	defer f.file.Close()
	exit, err := provider.Wait(ctx, *j.Handle, offset, f)
	switch {
	case err == nil:
	case run.Err() == nil && d.lost(j):
		exit = lost
	case f.err != nil:
		e.err, e.full = f.err, f.err
		return e
	case run.Err() != nil:
		e.err = err
		return e
	case mendable(err):
		e.err, e.left = err, err
		return e
	default:
		exit = remote.Exit{End: remote.Lost, Text: err.Error()}
		if denied := (*remote.Denied)(nil); errors.As(err, &denied) {
			exit.Hint = denied.Hint
		}
	}
	f.exited(exit)
	if f.junk > 0 {
		d.warn(j, fmt.Sprintf("%d lines of its stream are no events of this run", f.junk), "they are in "+f.file.Name())
	}
	if exit.End == remote.Exited && exit.Code != 0 && exit.Code != 3 && exit.Text == "" {
		exit.Text, exit.Hint = d.lastWords(run, provider, j)
	}
	return d.end(provider, j, exit)
}

func (d *Dispatcher) submit(ctx context.Context, provider remote.Provider, j *Job) error {
	d.tell(j, event.Job{Phase: "sending"})
	files, args, err := d.Files(ctx, j.Workloads)
	if err != nil {
		return err
	}
	job := &remote.Job{ID: j.ID, Files: files, Args: args, GPU: d.Plan.GPU, Limit: d.Plan.Limit, Place: j.Place.Place,
		Busy: d.Plan.Busy, Env: map[string]string{"FIB_DATASET_PATH": ""},
		Labels: map[string]string{"run": d.Plan.Run.ID, "definition": d.Plan.Run.Definition}}
	h, err := provider.Submit(ctx, job, func(sent, total int64) {
		if d.Progress != nil {
			d.Progress(j.Place.String(), sent, total)
		}
	})
	if err != nil {
		return err
	}
	if err := d.change(func() { j.Handle = &h }); err != nil {
		// A job that nobody can find again must not run.
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return errors.Join(err, provider.Release(rctx, h))
	}
	return nil
}

func (d *Dispatcher) began(j *Job) {
	if d.mu.Lock(); j.Began == nil {
		now := time.Now()
		j.Began = &now
		_ = d.Plan.Save(d.Folder) // the next Save says what is wrong
	}
	d.mu.Unlock()
}

// ended writes down how a job has ended.
func (d *Dispatcher) ended(j *Job, exit *remote.Exit, fault string) error {
	now := time.Now()
	return d.change(func() { j.Ended, j.Exit, j.Error = &now, exit, fault })
}

// logDir is where the job's log is kept.
func (d *Dispatcher) logDir(j *Job) string { return filepath.Join(d.Folder, "log", j.ID) }

// lastWords are the last error that the program told.
func (d *Dispatcher) lastWords(ctx context.Context, provider remote.Provider, j *Job) (text, hint string) {
	d.collect(ctx, provider, j)
	data, _ := os.ReadFile(filepath.Join(d.logDir(j), agent.LogName))
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if word, ok := strings.CutPrefix(line, "fisub: "); ok {
			text, hint = word, ""
		} else if word, ok := strings.CutPrefix(line, "hint: "); ok {
			hint = word
		}
	}
	return text, hint
}

func (d *Dispatcher) collect(ctx context.Context, provider remote.Provider, j *Job) {
	dir := d.logDir(j)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = provider.Collect(ctx, *j.Handle, dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.warn(j, fmt.Sprintf("no log: %v", err), "")
	}
}

// end collects and releases a job that has ended, or is to end, and writes its end down.
func (d *Dispatcher) end(provider remote.Provider, j *Job, exit remote.Exit) ended {
	if j.Handle != nil {
		d.collect(context.Background(), provider, j)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := provider.Release(ctx, *j.Handle); err != nil {
			d.warn(j, fmt.Sprintf("it may still run: %v", err),
				"fisub remote gc ends it when the host can be reached; its limit ends it anyway")
		}
	}
	if err := d.ended(j, &exit, ""); err != nil {
		d.warn(j, err.Error(), "")
	}
	d.tell(j, event.Job{Phase: "ended", Text: agent.Describe(exit)})
	return ended{job: j, exit: exit}
}

// judge says what the end of a job means for its place and its workloads.
func (d *Dispatcher) judge(e ended, bad map[string]error, given map[string]bool, attempts map[string]int) {
	place := e.job.Place.String()
	open := d.open()
	left := slices.DeleteFunc(slices.Clone(e.job.Workloads), func(w string) bool { return !slices.Contains(open, w) })
	if e.err != nil {
		for _, w := range e.job.Workloads {
			attempts[w]-- // nobody has tried it there
		}
		bad[place] = e.err
		_ = d.ended(e.job, nil, e.err.Error())
		var denied *remote.Denied
		text, hint := strings.TrimPrefix(e.err.Error(), e.job.Place.Table+": "), ""
		if errors.As(e.err, &denied) {
			text, hint = denied.Text, denied.Hint
		}
		if len(d.Plan.Places) > 1 { // else Run returns it
			d.warn(e.job, text, hint)
		}
		return
	}
	if len(left) == 0 || e.exit.Text == errLost.Error() {
		return
	}
	d.mu.Lock()
	alone := d.first == "" && len(d.Plan.Places) == 1 // then Run returns it
	d.mu.Unlock()
	over := e.exit.End == remote.Limited || e.exit.End == remote.Cancelled
	if over {
		for _, w := range left {
			given[w] = true
		}
	}
	if !over || alone {
		bad[place] = fmt.Errorf("%s: %w", place, &Ended{e.exit})
	}
	if !alone {
		d.warn(e.job, fmt.Sprintf("%s; %d of its %d workloads have no verdict",
			agent.Describe(e.exit), len(left), len(e.job.Workloads)), e.exit.Hint)
	}
}

// An Ended is the error of a place where a job ended before its program had done its work.
type Ended struct{ Exit remote.Exit }

func (e *Ended) Error() string { return agent.Describe(e.Exit) }

// Cancel ends all jobs that may still run, and writes that down.
func (d *Dispatcher) Cancel(ctx context.Context) error {
	if d.settled == nil {
		if err := d.prepare(); err != nil {
			return err
		}
	}
	active := d.active()
	faults := make([]error, len(active))
	var group sync.WaitGroup
	for i, j := range active {
		group.Go(func() { faults[i] = d.cancel(ctx, j) })
	}
	group.Wait()
	if d.first != "" {
		d.done(d.count())
	}
	return errors.Join(append(faults, d.finish(true))...)
}

func (d *Dispatcher) cancel(ctx context.Context, j *Job) error {
	provider := d.Providers[j.Place.Table]
	if provider == nil {
		return fmt.Errorf("%s: no table remote.%s in the config any more", j.Place, j.Place.Table)
	}
	release := func() error { return d.releaseUnknown(ctx, provider, j) }
	if j.Handle != nil {
		d.collect(ctx, provider, j)
		release = func() error { return provider.Release(ctx, *j.Handle) }
	}
	if err := release(); err != nil {
		return err
	}
	err := d.ended(j, &remote.Exit{End: remote.Cancelled, Text: "stopped"}, "")
	d.tell(j, event.Job{Phase: "ended", Text: "stopped"})
	return err
}
