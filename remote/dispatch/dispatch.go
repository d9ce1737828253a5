package dispatch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fisub/bench/runs"
	"fisub/bench/stats"
	"fisub/internal/event"
	"fisub/internal/plain"
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

	MaxStream int64 // bytes that a job may say, at most; if 0, by the number of its workloads

	// Overtime is for how long a host that can be reached may say nothing of a job that must be over by its limit; 3
	// minutes if it is 0.
	Overtime time.Duration

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
	failed   map[string]map[string]bool  // workload: the hosts that could not judge it
	followed map[*Job]context.CancelFunc // ends the following of a job
	ceded    map[*Job]bool               // jobs whose workloads others may have: out of reach, or over
	current  map[*Job]string             // the workload that a job has begun last
	back     bool                        // a job that was out of reach is not any more

	wake chan struct{} // holds a token when Run is to look again
}

// A Result counts as bench.Result does.
type Result struct {
	Passed, Failed, Missing, Findings int
}

// An ended is a job that nobody follows any more.
type ended struct {
	job   *Job
	exit  remote.Exit
	err   error // it could not be taken to its place
	full  error // the run folder cannot take what the hosts say
	left  error // it cannot be followed; it may go on
	again bool  // its place has told that it is lost, and may take another
}

// mendable tells whether the error of a Wait is about the table, the user's credentials or the way to the host, and
// says nothing of the job.
func mendable(err error) bool {
	return slices.Contains([]string{"credentials", "host-key", "no-such", "unreachable"}, remote.CodeOf(err))
}

// maxAttempts is how many jobs may have a workload: the reason that hosts are lost may be the workload.
const maxAttempts = 3

// Run begins the jobs that are missing, follows those that run, and returns when all workloads have a verdict or no job
// can give them one. A job whose host is out of reach is waited for, until its time limit has passed; meanwhile its
// workloads are given to places that are free. Where ctx ends first, Run leaves the jobs running, and the error wraps
// ctx's. It leaves a job running also where the user's credentials or the table do not let it follow the job, or where
// its host stays out of reach; where its results are needed the error is then the provider's. Where nothing ran at all
// the error is ErrNothing, or that of the only place. ErrCancelled says that another process wants the run to end.
func (d *Dispatcher) Run(parent context.Context) (Result, error) {
	if err := d.prepare(); err != nil {
		return Result{}, err
	}
	ctx, halt := context.WithCancel(parent)
	defer halt()
	r := &round{d: d, ctx: ctx, ends: make(chan ended), bad: map[string]error{}, taken: map[string]bool{},
		attempts: map[string]int{}, losses: map[string]int{}, given: map[string]bool{}}
	marked := watch(ctx, d.Folder)
	defer r.drain(halt)
	r.begun()
	var broken, left error // of this machine, and of hosts: jobs go on, and another process can follow them
	for {
		if ctx.Err() == nil {
			if err := r.deal(); err != nil {
				return Result{}, err
			}
		}
		if d.idle() {
			break
		}
		var e ended
		select {
		case <-d.wake:
			continue
		case <-marked:
			return Result{}, ErrCancelled
		case e = <-r.ends:
			r.over(e)
		}
		switch {
		case e.full != nil:
			broken = errors.Join(broken, e.full)
			halt()
		case e.left != nil:
			r.bad[e.job.Place.String()] = e.left
			if d.pending(e.job) {
				left = errors.Join(left, e.left)
			}
		case ctx.Err() != nil && e.err != nil, errors.Is(e.err, ErrDetached):
		default:
			r.judge(e)
		}
	}
	r.drain(halt)
	active := d.active()
	switch {
	case broken != nil:
		return Result{}, broken
	case parent.Err() != nil && len(active) > 0:
		return Result{}, parent.Err()
	case left != nil && slices.ContainsFunc(active, d.pending):
		return Result{}, left
	case d.Detach && slices.ContainsFunc(active, d.pending):
		return Result{}, ErrDetached
	}
	return r.result(parent.Err() == nil)
}

// A round is one Run.
type round struct {
	d        *Dispatcher
	ctx      context.Context // of the jobs; it ends with the round
	ends     chan ended
	bad      map[string]error // places that get no job
	taken    map[string]bool
	attempts map[string]int  // by workload
	losses   map[string]int  // jobs that were lost, by place
	given    map[string]bool // workloads that nobody is to have any more
}

// drain waits until nobody follows a job.
func (r *round) drain(halt func()) {
	for halt(); r.d.following() > 0; {
		r.over(<-r.ends)
	}
}

// over takes a job off the list of those that are followed.
func (r *round) over(e ended) {
	r.taken[e.job.Place.String()] = false
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	delete(r.d.followed, e.job)
	if !errors.Is(e.err, ErrDetached) {
		r.d.ceded[e.job] = e.left == nil || remote.CodeOf(e.left) == "unreachable"
	}
}

// begun follows the jobs of the plan.
func (r *round) begun() {
	d := r.d
	for _, j := range d.Plan.Jobs[d.Plan.Before:] {
		if j.Error != "" {
			r.bad[j.Place.String()] = errors.New(j.Error)
			continue
		}
		for _, w := range j.Workloads {
			r.attempts[w]++
		}
	}
	for _, j := range d.active() {
		r.begin(j, j.Handle == nil)
	}
}

// begin follows a job; again tells that another process was submitting it when it ended.
func (r *round) begin(j *Job, again bool) {
	d := r.d
	r.taken[j.Place.String()] = true
	ctx, cancel := context.WithCancel(r.ctx)
	d.mu.Lock()
	d.followed[j] = cancel
	d.mu.Unlock()
	go func() {
		defer cancel()
		r.ends <- d.follow(ctx, r.ctx, j, again)
	}()
}

// deal ends jobs that nobody needs any more, and gives what no job has to the places that are free.
func (r *round) deal() error {
	d := r.d
	d.mu.Lock()
	for j, cancel := range d.followed {
		if d.superseded(j) && !d.ceded[j] {
			cancel()
		}
	}
	if d.back { // what could not be reached beside that job may be there again too
		maps.DeleteFunc(r.bad, func(_ string, err error) bool { return remote.CodeOf(err) == "unreachable" })
	}
	d.back = false
	rest := slices.DeleteFunc(d.opened(), func(w string) bool {
		return r.given[w] || r.attempts[w] >= maxAttempts || slices.ContainsFunc(d.Plan.Active(), func(j *Job) bool {
			return !d.ceded[j] && slices.Contains(j.Workloads, w) && !d.failed[w][j.Place.host()]
		})
	})
	free := slices.DeleteFunc(slices.Clone(d.Plan.Places), func(p Place) bool {
		return r.taken[p.String()] || r.bad[p.String()] != nil
	})
	shards := Deal(rest, len(free), func(w string, i int) bool { return !d.failed[w][free[i].host()] })
	d.mu.Unlock()
	for i, shard := range shards {
		if len(shard) == 0 {
			continue
		}
		j, err := d.add(free[i], shard)
		if err != nil {
			return err
		}
		for _, w := range shard {
			r.attempts[w]++
		}
		r.begin(j, false)
	}
	return nil
}

// result is that of a round that has ended; whole tells that it was not stopped.
func (r *round) result(whole bool) (Result, error) {
	d := r.d
	d.mu.Lock()
	opened := d.first != ""
	d.mu.Unlock()
	if !opened {
		err := ErrNothing
		if len(d.Plan.Places) == 1 && r.bad[d.Plan.Places[0].String()] != nil {
			err = r.bad[d.Plan.Places[0].String()]
		}
		return Result{Missing: len(d.Plan.Run.Workloads)}, errors.Join(err, d.finish(true))
	}
	res := d.count()
	d.done(res)
	return res, errors.Join(d.finish(whole), d.Events.Err())
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
	d.failed, d.current = map[string]map[string]bool{}, map[*Job]string{}
	d.followed, d.ceded = map[*Job]context.CancelFunc{}, map[*Job]bool{}
	d.wake = make(chan struct{}, 1)
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
			if row.Evaluated == nil && len(row.Findings) == 0 { // another host may be able to judge it
				at := slices.IndexFunc(d.Plan.Places, func(p Place) bool { return p.String() == row.Place })
				if at >= 0 && d.Plan.Before == 0 {
					d.cannot(row.UUID, d.Plan.Places[at])
				}
				continue
			}
			d.settled[row.UUID] = "before"
			d.findings += len(row.Findings)
			row.Score(&d.score)
			if row.Evaluated != nil {
				d.verdicts[row.UUID] = row.Evaluated.Status == string(trace.Passed)
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Plan.Claim(d.Folder)
}

func (d *Dispatcher) active() []*Job {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Plan.Active()
}

// following tells how many jobs are followed.
func (d *Dispatcher) following() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.followed)
}

// look makes Run look again at what is to be done.
func (d *Dispatcher) look() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// idle tells whether no job that is followed can give a verdict that is not there, or none is.
func (d *Dispatcher) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for j := range d.followed {
		if !d.ceded[j] || d.awaited(j) {
			return false
		}
	}
	return true
}

// pending tells whether a job may give a verdict that is not there.
func (d *Dispatcher) pending(j *Job) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.awaited(j)
}

// awaited is pending, for one who has the lock.
func (d *Dispatcher) awaited(j *Job) bool {
	return slices.ContainsFunc(j.Workloads, func(w string) bool {
		return d.settled[w] == "" && !d.failed[w][j.Place.host()]
	})
}

// superseded tells whether other jobs have given the verdicts that a job could still give. One that has just given one
// may have something to say about it.
func (d *Dispatcher) superseded(j *Job) bool {
	w := d.current[j]
	if d.awaited(j) || w != "" && d.settled[w] == "" {
		return false
	}
	return w != "" && d.settled[w] != j.ID || w == "" && !slices.ContainsFunc(j.Workloads, func(w string) bool {
		return d.settled[w] == j.ID
	})
}

// cannot writes down that the host of a place could not judge a workload.
func (d *Dispatcher) cannot(w string, p Place) {
	if d.failed[w] == nil {
		d.failed[w] = map[string]bool{}
	}
	d.failed[w][p.host()] = true
}

// cede gives the workloads of a job that is out of reach free for other places.
func (d *Dispatcher) cede(j *Job, err error) {
	d.mu.Lock()
	before := d.ceded[j]
	d.ceded[j] = true
	d.mu.Unlock()
	if !before {
		d.warn(j, plain.Brief(said(j, err), 300), "fisub keeps trying, and gives its workloads to a place that is free; "+
			"its job may go on there")
	}
	d.look()
}

// said is what an error says, but for the names that stand before it where it is told.
func said(j *Job, err error) string {
	if denied, ok := errors.AsType[*remote.Denied](err); ok {
		return denied.Text
	}
	return strings.TrimPrefix(err.Error(), j.Place.Table+": ")
}

// returned takes a job that is in reach again for what it is.
func (d *Dispatcher) returned(j *Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ceded[j] {
		d.ceded[j], d.back = false, true
		d.look()
	}
}

// open are the workloads without a verdict.
func (d *Dispatcher) open() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened()
}

// opened is open, for one who has the lock.
func (d *Dispatcher) opened() (uuids []string) {
	for _, w := range d.Plan.Run.Workloads {
		if d.settled[w.UUID] == "" {
			uuids = append(uuids, w.UUID)
		}
	}
	return uuids
}

func (d *Dispatcher) count() (r Result) {
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

// Deal gives n hands of the workloads, each the next in turn that fits, so that neighbours, which are alike, are
// spread. What fits nowhere is left out.
func Deal(workloads []string, n int, fits func(w string, hand int) bool) [][]string {
	hands := make([][]string, n)
	for i, w := range workloads {
		for k := range n {
			if at := (i + k) % n; fits(w, at) {
				hands[at] = append(hands[at], w)
				break
			}
		}
	}
	return hands
}

// add writes a new job into the plan.
func (d *Dispatcher) add(p Place, workloads []string) (j *Job, err error) {
	err = d.change(func() {
		j = &Job{ID: fmt.Sprintf("fisub-%s-%d", d.Plan.Run.ID, len(d.Plan.Jobs)+1), Place: p, Workloads: workloads,
			Key: rand.Text()}
		d.Plan.Jobs = append(d.Plan.Jobs, j)
	})
	return j, err
}

// again prepares a job that another process was submitting when it ended. Whether a host has taken it is not known:
// what hosts have of it is released, and it gets another id, under which it is submitted anew.
func (d *Dispatcher) again(ctx context.Context, provider remote.Provider, j *Job) error {
	if err := release(ctx, provider, j); err != nil {
		return err
	}
	return d.change(func() {
		id, _, _ := strings.Cut(j.ID, "-r")
		j.ID = fmt.Sprintf("%s-r%d", id, time.Now().UnixMilli()%1e6)
	})
}

// Release ends the jobs of a plan that may still run, and leaves the plan as it is: to the process that has the run
// folder.
func Release(ctx context.Context, p *Plan, open map[string]remote.Provider) error {
	var faults []error
	for _, j := range p.Active() {
		faults = append(faults, release(ctx, open[j.Place.Table], j))
	}
	return errors.Join(faults...)
}

// release ends a job. What hosts have of one that was being submitted is told by the provider's list: that a host
// cannot be asked is then an error only where no other has the job.
func release(ctx context.Context, provider remote.Provider, j *Job) error {
	if provider == nil {
		return fmt.Errorf("%s: no table remote.%s in the config any more", j.Place, j.Place.Table)
	}
	if j.Handle != nil {
		return provider.Release(ctx, *j.Handle)
	}
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

// ErrCancelled says that another process wants the run to end.
var ErrCancelled = errors.New("cancelled by another process")

// markName is the file of a run folder that says that the run is to end, and stays so.
const markName = "cancelled"

// Mark writes down that the run in folder is to end: a process that follows it ends its jobs, and no job is begun any
// more.
func Mark(folder string) error {
	return os.WriteFile(filepath.Join(folder, streams, markName), nil, 0o600)
}

// Marked tells whether the run in folder is to end.
func Marked(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, streams, markName))
	return err == nil
}

// Unmark lets the run go on.
func Unmark(folder string) error {
	err := os.Remove(filepath.Join(folder, streams, markName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// watch returns a channel that is closed when the run in folder is to end.
func watch(ctx context.Context, folder string) <-chan struct{} {
	marked := make(chan struct{})
	go func() {
		for ; !Marked(folder); _ = remote.Sleep(ctx, time.Second/4) {
			if ctx.Err() != nil {
				return
			}
		}
		close(marked)
	}()
	return marked
}

// UntilMarked calls do with a context that ends when the run in folder is to end; the error is then ErrCancelled.
func UntilMarked(ctx context.Context, folder string, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	marked := watch(ctx, folder)
	go func() {
		select {
		case <-marked:
			cancel(ErrCancelled)
		case <-ctx.Done():
		}
	}()
	err := do(ctx)
	if Marked(folder) {
		return ErrCancelled
	}
	return err
}

var errLost = errors.New("another place has given its verdicts")

// needless tells whether the verdicts of j are no longer needed.
func (d *Dispatcher) needless(j *Job) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.superseded(j)
}

// follow takes a job to its end. run is the context of the whole run, ctx that of this job, which is cancelled where
// others have given its verdicts; again tells that another process was submitting it when it ended.
func (d *Dispatcher) follow(ctx, run context.Context, j *Job, again bool) ended {
	e := ended{job: j}
	provider := d.Providers[j.Place.Table]
	if provider == nil {
		e.left = fmt.Errorf("%s: no table remote.%s in the config any more", j.Place, j.Place.Table)
		return e
	}
	lost := remote.Exit{End: remote.Cancelled, Text: errLost.Error()}
	if again {
		if e.left = d.again(run, provider, j); e.left != nil {
			return e
		}
	}
	f, offset, err := d.openFeed(j)
	if err != nil {
		e.full = err
		return e
	}
	defer f.file.Close()
	if d.needless(j) { // the process in which others gave its verdicts ended before this one was released
		return d.end(provider, j, lost)
	}
	if j.Handle == nil {
		if e.err = d.submit(ctx, provider, j); e.err != nil {
			if run.Err() == nil && d.needless(j) {
				return d.end(provider, j, lost)
			}
			return e
		}
	}
	if d.Detach {
		e.err = ErrDetached
		return e
	}
	begun := d.start(j)
	h := *j.Handle
	h.Key = j.Key
	exit, err := d.wait(ctx, provider, h, offset, f)
	for remote.CodeOf(err) == "unreachable" && ctx.Err() == nil {
		d.cede(j, err)
		if time.Since(begun) > d.Plan.Limit {
			break // it has ended, there or with its host
		}
		_ = remote.Sleep(ctx, time.Second) // Wait sees that ctx is done
		exit, err = d.wait(ctx, provider, h, f.size, f)
	}
	switch {
	case errors.Is(err, errOverdue):
		text := fmt.Sprintf("its host can be reached, but %v after its limit of %v has not said that it is over",
			d.overtime(), d.Plan.Limit)
		exit = remote.Exit{End: remote.Lost, Text: text, Hint: "look at the agent's processes on the host"}
	case err == nil:
		// A judge that somebody has ended on the host is as good as an agent that is gone.
		e.again = exit.End == remote.Lost || exit.End == remote.Exited && exit.Code > 128
	case run.Err() == nil && d.needless(j):
		exit = lost
	case f.err != nil:
		e.full = f.err
		return e
	case run.Err() != nil:
		e.err = err
		return e
	case mendable(err):
		e.left = err
		return e
	default:
		exit = remote.Exit{End: remote.Lost, Text: err.Error()}
		if denied := (*remote.Denied)(nil); errors.As(err, &denied) {
			exit.Hint = denied.Hint
		}
	}
	f.exited(exit)
	exit.Lines, exit.MAC = 0, ""
	if f.junk > 0 {
		d.warn(j, fmt.Sprintf("%d lines of its stream are no events of this run", f.junk), "they are in "+f.file.Name())
	}
	if exit.End == remote.Exited && exit.Code != 0 && exit.Code != 3 && exit.Text == "" {
		exit.Text, exit.Hint = d.lastWords(run, provider, j)
	}
	over := d.end(provider, j, exit)
	over.again = e.again
	return over
}

var errOverdue = errors.New("overdue")

func (d *Dispatcher) overtime() time.Duration { return cmp.Or(d.Overtime, 3*time.Minute) }

// wait is the provider's Wait, which ends with errOverdue if the host can be reached, but says nothing although the job
// must be over by its limit.
func (d *Dispatcher) wait(ctx context.Context, provider remote.Provider, h remote.Handle, from int64,
	f *feed) (remote.Exit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.heard.Store(int64(time.Since(d.begun)))
	go func() {
		for remote.Sleep(ctx, min(d.overtime()/10, time.Second)) == nil {
			// The clock that stands while this machine sleeps says for how long nothing was heard.
			quiet := time.Since(d.begun) - time.Duration(f.heard.Load())
			if f.running.Load() && quiet > d.overtime() && time.Since(d.start(f.job)) > d.Plan.Limit+d.overtime() {
				cancel(errOverdue)
			}
		}
	}()
	exit, err := provider.Wait(ctx, h, from, f)
	if err != nil && context.Cause(ctx) == errOverdue {
		err = errOverdue
	}
	return exit, err
}

func (d *Dispatcher) submit(ctx context.Context, provider remote.Provider, j *Job) error {
	d.tell(j, event.Job{Phase: "sending"})
	files, args, err := d.Files(ctx, j.Workloads)
	if err != nil {
		return err
	}
	job := &remote.Job{ID: j.ID, Files: files, Args: args, GPU: d.Plan.GPU, Limit: d.Plan.Limit, Place: j.Place.Place,
		Busy: d.Plan.Busy, Env: map[string]string{"FIB_DATASET_PATH": ""}, Key: j.Key,
		Labels: map[string]string{"run": d.Plan.Run.ID, "definition": d.Plan.Run.Definition},
		Tell:   func(s remote.State) { d.tell(j, event.Job{Phase: string(s.Phase), Text: s.Text}) }}
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

// start is when the job began, as far as that is known; now where it is not.
func (d *Dispatcher) start(j *Job) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j.Began != nil {
		return *j.Began
	}
	return time.Now()
}

// logDir is where the job's log is kept.
func (d *Dispatcher) logDir(j *Job) string { return filepath.Join(d.Folder, "log", j.ID) }

// lastWords are the last error that the program told.
func (d *Dispatcher) lastWords(ctx context.Context, provider remote.Provider, j *Job) (text, hint string) {
	d.collect(ctx, provider, j)
	data, _ := os.ReadFile(filepath.Join(d.logDir(j), agent.LogName))
	return LastWords(data)
}

// LastWords are the last error that fisub told in a job's log, and its hint.
func LastWords(log []byte) (text, hint string) {
	for line := range strings.Lines(string(log)) {
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

// end collects and releases a job that has ended, or is to end, and writes its end down. A job whose host does not let
// it be released stays one that may still run.
func (d *Dispatcher) end(provider remote.Provider, j *Job, exit remote.Exit) ended {
	var held error
	if j.Handle != nil {
		d.collect(context.Background(), provider, j)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for wait := time.Second / 2; ; wait *= 2 { // a host that has just told the end may have lost a connection only
			held = provider.Release(ctx, *j.Handle)
			if remote.CodeOf(held) != "unreachable" || exit.End == remote.Lost || wait > 2*time.Second ||
				remote.Sleep(ctx, wait) != nil {
				break
			}
		}
		if held != nil {
			d.warn(j, "it may still run: "+plain.Brief(said(j, held), 300), "")
		}
	}
	if err := d.change(func() { j.close(&exit, held == nil) }); err != nil {
		d.warn(j, err.Error(), "")
	}
	d.tell(j, event.Job{Phase: "ended", Text: agent.Describe(exit)})
	return ended{job: j, exit: exit}
}

// judge says what the end of a job means for its place and its workloads.
func (r *round) judge(e ended) {
	d, place := r.d, e.job.Place.String()
	if e.err != nil {
		for _, w := range e.job.Workloads {
			r.attempts[w]-- // nobody has tried it there
		}
		r.bad[place] = e.err
		_ = d.change(func() {
			e.job.close(nil, true)
			e.job.Error = e.err.Error()
		})
		if len(d.Plan.Places) > 1 { // else Run returns it
			hint := ""
			if denied, ok := errors.AsType[*remote.Denied](e.err); ok {
				hint = denied.Hint
			}
			d.warn(e.job, said(e.job, e.err), hint)
		}
		return
	}
	open := d.open()
	left := slices.DeleteFunc(slices.Clone(e.job.Workloads), func(w string) bool { return !slices.Contains(open, w) })
	if len(left) == 0 || e.exit.Text == errLost.Error() || !d.pending(e.job) && e.exit.End == remote.Exited {
		return
	}
	d.mu.Lock()
	alone := d.first == "" && len(d.Plan.Places) == 1 // then Run returns it
	d.mu.Unlock()
	over := e.exit.End == remote.Limited || e.exit.End == remote.Cancelled
	if over {
		for _, w := range left {
			r.given[w] = true
		}
	}
	r.losses[place]++
	if e.again && r.losses[place] == 1 {
		alone = false // a host that was only started anew takes another job
	} else if !over || alone {
		r.bad[place] = fmt.Errorf("%s: %w", place, &Ended{e.exit})
	}
	if !alone {
		d.warn(e.job, fmt.Sprintf("%s; %d of its %d workloads have no verdict",
			agent.Describe(e.exit), len(left), len(e.job.Workloads)), e.exit.Hint)
	}
}

// An Ended is the error of a place where a job ended before its program had done its work.
type Ended struct{ Exit remote.Exit }

func (e *Ended) Error() string { return agent.Describe(e.Exit) }

// Reopen asks the hosts for jobs that were given up and whose workloads have no verdict. Those that are still there
// count as running again: what they have finished is there for Run to take. It gives their number; the error names the
// hosts that did not answer.
func (d *Dispatcher) Reopen(ctx context.Context) (n int, err error) {
	if err := d.prepare(); err != nil {
		return 0, err
	}
	given := map[string][]*Job{}
	for _, j := range d.Plan.Jobs {
		if j.Ended != nil && j.Handle != nil && d.pending(j) && d.Providers[j.Place.Table] != nil {
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
				faults = append(faults, d.change(func() { j.Ended, j.Exit, d.Plan.Done = nil, nil, false }))
			}
		}
	}
	return n, errors.Join(faults...)
}

// Cancel ends all jobs that may still run, and writes down that the run is over: none is begun any more. The error says
// why some may go on; these stay in the plan.
func (d *Dispatcher) Cancel(ctx context.Context) error {
	if d.settled == nil {
		if err := d.prepare(); err != nil {
			return err
		}
	}
	if err := Mark(d.Folder); err != nil {
		return err
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
	if j.Handle != nil && provider != nil {
		d.collect(ctx, provider, j)
	}
	if err := release(ctx, provider, j); err != nil {
		return err
	}
	err := d.change(func() { j.close(&remote.Exit{End: remote.Cancelled, Text: "stopped"}, true) })
	d.tell(j, event.Job{Phase: "ended", Text: "stopped"})
	return err
}
