package dispatch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fisub/internal/event"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/runs"
)

// A phase is the current task of this process for a job.
type phase string

const (
	idle       phase = "idle"       // no task: the job may be running, be over, or never have reached its host
	clearing   phase = "clearing"   // another process was submitting the job: find and release it on its hosts
	sending    phase = "sending"    // being submitted to its place
	following  phase = "following"  // its stream is being read
	quitting   phase = "quitting"   // its previous task is being stopped, so that the job can be ended
	collecting phase = "collecting" // its log is being fetched
	releasing  phase = "releasing"  // its host is releasing it
)

// A job is a job of the plan as known to this process.
type job struct {
	*JobRecord
	phase      phase
	ceded      bool      // other places may get its workloads: its host is unreachable, or it was given up
	stopped    bool      // its task has been stopped
	since      time.Time // when this process started to follow it
	lastOutput time.Time // time of its last output
	running    bool      // its host can be reached, and the job is running
	end        *ending   // nil unless the job is to be ended
	stream     reader
}

// An ending describes how a job is ended.
type ending struct {
	exit     remote.Exit
	needless bool // other places have delivered its verdicts
	again    bool // the place lost the job but can be reached, and may get another one
	releases int  // attempts so far
}

// A place is the state of a place of the plan.
type place struct {
	bad    error // why it gets no further job
	losses int   // number of jobs lost there
}

// rules are settings of the process.
type rules struct {
	detach   bool          // do not follow jobs
	overtime time.Duration // how long a host may be silent about a job that must be over
	stream   int64         // maximum bytes of a job's stream; 0: depends on the number of its workloads
	key      func() string // returns a new key for a job
}

// A mode is the aim of the process.
type mode int

const (
	working    mode = iota
	leaving         // start nothing; leave running jobs alone
	cancelling      // end all jobs
)

// state is all that dispatch knows about a run. It only decides: apply takes a fact, next returns actions. It neither
// waits nor reads the clock.
type state struct {
	plan   *Plan
	rules  rules
	runs   *merger
	found  bool              // the tool has found something
	jobs   []*job            // in the order of the plan
	places map[string]*place // by String of their ProviderPlace
	mode   mode
	left   error    // errors of jobs that cannot be followed and may be running
	paused error    // why this process is to end
	broken error    // why this process must give up
	out    []action // decided, but not returned yet
}

// An action is a step for the executor. Their order matters.
type action any

type (
	save struct{}                    // write the plan
	tell struct{ event event.Event } // emit into the run's stream
	hand struct {                    // pass a line of a tool to its reader
		job  *job
		text []byte
	}
	clear struct{ job *job } // release the job on all hosts: it may have been submitted; results in cleared

	submit struct{ job *job } // results in accepted or refused

	// follow waits for the job. It results in received and changed, and finally in waited.
	follow struct {
		job   *job
		after time.Duration // delay before it starts
	}
	stop    struct{ job *job } // stop the job's task, which then gives its last fact
	collect struct{ job *job } // fetch the log; results in collected
	release struct {           // results in released
		job   *job
		after time.Duration
	}
)

// A fact is an event that the state must react to.
type fact any

type (
	cleared struct {
		job *job
		id  string // new id for the job
		err error
	}
	accepted struct {
		job    *job
		handle remote.Handle
		at     time.Time
	}
	refused struct {
		job *job
		err error
	}
	received struct {
		job  *job
		text []byte // bytes of its stream
		at   time.Time
	}
	changed struct { // the host's view of the job
		job   *job
		state remote.Stage
		at    time.Time
	}
	waited struct {
		job  *job
		exit remote.Exit
		err  error
		at   time.Time
	}
	collected struct {
		job        *job
		err        error
		text, hint string // last error in its log
	}
	released struct {
		job *job
		err error
		at  time.Time
	}
	paused struct{ err error } // this process is to end, and leaves the jobs running
	broken struct{ err error } // this process must give up
)

// noTableError is the error of a place whose table is no longer in the config.
type noTableError struct{ place ProviderPlace }

func (e *noTableError) Error() string {
	return fmt.Sprintf("%s: table remote.%s is missing in the config", e.place, e.place.Table)
}

// newState returns the state of a run from its plan and run folder; old may be nil.
func newState(p *Plan, old *runs.Run, r rules) *state {
	s := &state{plan: p, rules: r, places: map[string]*place{}}
	s.runs = newMerger(p, p.Run, func(e event.Event) { s.do(tell{e}) })
	origins := map[string]int64{}
	if old != nil {
		s.runs.restore(old)
		origins = old.Origins
	}
	for _, where := range p.Places {
		s.places[where.String()] = &place{}
	}
	if old != nil && p.Before == 0 {
		for _, row := range old.Rows {
			at := slices.IndexFunc(p.Places, func(p ProviderPlace) bool { return p.String() == row.Place })
			if w := s.runs.workload(row.UUID); w.by == "" && at >= 0 {
				w.failedOn[p.Places[at].host()] = true
			}
		}
	}
	for i, j := range p.Jobs {
		s.jobs = append(s.jobs, &job{JobRecord: j, phase: idle, stream: newReader(j, origins[j.ID])})
		switch {
		case i < p.Before:
		case j.Error != "":
			s.place(j.Place).bad = errors.New(j.Error)
		default:
			s.count(j, 1)
		}
	}
	return s
}

func (s *state) count(j *JobRecord, n int) {
	for _, uuid := range j.Workloads {
		s.runs.workload(uuid).tries += n
	}
}

func (s *state) place(p ProviderPlace) *place {
	at := s.places[p.String()]
	if at == nil { // the run was resumed on other places
		at = &place{}
		s.places[p.String()] = at
	}
	return at
}

func (s *state) do(a action) { s.out = append(s.out, a) }

// active returns the jobs that may still be running.
func (s *state) active() []*job {
	return slices.DeleteFunc(slices.Clone(s.jobs), func(j *job) bool { return j.Ended != nil })
}

func (j *job) busy() bool { return j.phase != idle }

// awaited reports whether the job may deliver a missing verdict.
func (s *state) awaited(j *job) bool {
	return slices.ContainsFunc(j.Workloads, func(uuid string) bool {
		w := s.runs.workload(uuid)
		return w.by == "" && !w.failedOn[j.Place.host()]
	})
}

// superseded reports whether other jobs have delivered the verdicts that the job could deliver. A job that has just
// delivered one may add a finding, and is not superseded.
func (s *state) superseded(j *job) bool {
	now := s.runs.work[j.stream.current]
	switch {
	case s.awaited(j), now != nil && now.by == "":
		return false
	case now != nil:
		return now.by != j.ID
	}
	return !slices.ContainsFunc(j.Workloads, func(uuid string) bool { return s.runs.workload(uuid).by == j.ID })
}

// resume continues the jobs of the plan.
func (s *state) resume(now time.Time) {
	for _, j := range s.active() {
		switch {
		case j.Handle == nil:
			j.phase = clearing
			s.do(clear{j})
		case s.rejects(j):
			s.quit(j, ending{exit: forged(j.stream.against)})
		case s.superseded(j): // the previous process ended before it released the job
			s.needless(j)
		default:
			s.follow(j, now)
		}
	}
}

// follow starts to follow a job that was accepted.
func (s *state) follow(j *job, now time.Time) {
	if j.phase = idle; s.rules.detach || s.mode != working {
		return
	}
	j.phase, j.stopped, j.since, j.lastOutput, j.running = following, false, now, now, false
	s.do(follow{job: j})
}

// began returns when the job began or, if unknown, when this process started to follow it.
func (j *job) began() time.Time {
	if j.Began != nil {
		return *j.Began
	}
	return j.since
}

// next returns the actions to perform now.
func (s *state) next(now time.Time) []action {
	if s.mode == working {
		s.overdue(now)
		for _, j := range s.jobs {
			if (j.phase == following || j.phase == sending) && !j.ceded && s.superseded(j) {
				s.needless(j)
			}
		}
		if s.deal(); s.settled() {
			s.mode = leaving
		}
	}
	for _, j := range s.jobs {
		if s.mode == leaving && !j.stopped && slices.Contains([]phase{clearing, sending, following}, j.phase) {
			s.stop(j)
		}
	}
	return s.decided()
}

// decided returns only the actions decided by apply and resume.
func (s *state) decided() []action {
	out := s.out
	s.out = nil
	return out
}

func (s *state) stop(j *job) {
	j.stopped = true
	s.do(stop{j})
}

// settled reports whether the remaining tasks are irrelevant: their jobs are unreachable, and their verdicts are known.
func (s *state) settled() bool {
	return !slices.ContainsFunc(s.jobs, func(j *job) bool { return j.busy() && (!j.ceded || s.awaited(j)) })
}

// over reports whether no task is left.
func (s *state) over() bool {
	return s.mode != working && len(s.out) == 0 && !slices.ContainsFunc(s.jobs, (*job).busy)
}

// overdue gives up jobs that must be over by their limit, and whose hosts are reachable but silent.
func (s *state) overdue(now time.Time) {
	for _, j := range s.jobs {
		if j.phase != following || !j.running || now.Sub(j.lastOutput) <= s.rules.overtime ||
			now.Sub(j.began()) <= s.plan.Limit+s.rules.overtime {
			continue
		}
		text := fmt.Sprintf("its host can be reached, but has not reported the job's end %v after its limit of %v",
			s.rules.overtime, s.plan.Limit)
		s.quit(j, ending{exit: remote.Exit{End: remote.Lost, Text: text, Hint: "check the agent's processes on the host"}})
	}
}

// needless ends a job whose verdicts other jobs have delivered.
func (s *state) needless(j *job) {
	s.quit(j, ending{needless: true,
		exit: remote.Exit{End: remote.Cancelled, Text: "another place has finished its workloads"}})
}

func (s *state) quit(j *job, e ending) {
	j.end = &e
	if !j.busy() {
		s.finish(j)
		return
	}
	j.phase = quitting
	s.stop(j)
}

// deal assigns workloads without a job to free places.
func (s *state) deal() {
	tries := 3 // jobs per workload, which may be the reason for lost hosts
	if s.isTool() {
		tries = 1
	}
	var rest []string
	for _, about := range s.plan.Run.Workloads {
		w := s.runs.workload(about.UUID)
		had := slices.ContainsFunc(s.jobs, func(j *job) bool {
			return j.Ended == nil && !j.ceded && slices.Contains(j.Workloads, about.UUID) && !w.failedOn[j.Place.host()]
		})
		if w.by == "" && !w.given && w.tries < tries && !had {
			rest = append(rest, about.UUID)
		}
	}
	free := slices.DeleteFunc(slices.Clone(s.plan.Places), func(p ProviderPlace) bool {
		return s.place(p).bad != nil || slices.ContainsFunc(s.jobs, func(j *job) bool {
			return (j.busy() || j.Ended == nil && !j.ceded) && j.Place.String() == p.String()
		})
	})
	for i, share := range Deal(rest, len(free), func(w string, i int) bool {
		return !s.runs.workload(w).failedOn[free[i].host()]
	}) {
		if len(share) == 0 {
			continue
		}
		j := &JobRecord{ID: fmt.Sprintf("fisub-%s-%d", s.plan.Run.ID, len(s.plan.Jobs)+1), Place: free[i], Workloads: share,
			Key: s.rules.key()}
		s.plan.Jobs = append(s.plan.Jobs, j)
		s.count(j, 1)
		s.jobs = append(s.jobs, &job{JobRecord: j, stream: newReader(j, 0)})
		s.do(save{})
		s.send(s.jobs[len(s.jobs)-1])
	}
}

func (s *state) send(j *job) {
	j.phase, j.stopped = sending, false
	s.say(j, event.JobChange{Phase: "sending"})
	s.do(submit{j})
}

// say emits the event of a job's phase.
func (s *state) say(j *job, is event.JobChange) {
	s.do(tell{event.Event{Type: event.TypeJob, Place: j.Place.String(), Job: j.ID, JobState: &is}})
}

func (s *state) warn(j *job, text, hint string) {
	s.do(tell{event.Event{Type: event.TypeWarning, Place: j.Place.String(), Job: j.ID,
		Message: &event.Message{Text: j.Place.String() + ": " + text, Hint: hint}}})
}

func (s *state) apply(f fact) {
	switch f := f.(type) {
	case paused:
		s.paused = f.err
		s.mode = max(s.mode, leaving)
	case broken:
		s.broken = cmp.Or(s.broken, f.err)
		s.mode = max(s.mode, leaving)
	case cleared:
		s.cleared(f)
	case accepted:
		f.job.Handle = &f.handle
		s.do(save{})
		if f.job.end != nil {
			s.finish(f.job)
		} else {
			s.follow(f.job, f.at)
		}
	case refused:
		s.refused(f)
	case received:
		s.received(f)
	case changed:
		s.changed(f)
	case waited:
		s.waited(f)
	case collected:
		s.collected(f)
	case released:
		s.released(f)
	}
}

// cleared submits a job again whose submission another process did not finish, with a new id so that late effects of
// the first one cannot be mistaken for it.
func (s *state) cleared(f cleared) {
	j := f.job
	switch {
	case f.err != nil && s.mode != working:
		j.phase = idle
	case f.err != nil:
		s.leave(j, f.err)
	default:
		j.ID = f.id
		j.stream = newReader(j.JobRecord, 0) // the id is part of the agent's signatures
		s.do(save{})
		switch {
		case s.mode != working:
			j.phase = idle
		case s.superseded(j):
			j.phase = idle
			s.needless(j)
		default:
			s.send(j)
		}
	}
}

// refused handles a job that its place did not accept.
func (s *state) refused(f refused) {
	j := f.job
	_, gone := errors.AsType[*noTableError](f.err)
	switch {
	case j.end != nil:
		s.finish(j)
		return
	case gone:
		s.leave(j, f.err)
		return
	case s.mode != working: // the host may have the job or not
		j.phase = idle
		return
	}
	j.phase, j.ceded = idle, true
	s.count(j.JobRecord, -1) // it did not run there
	s.place(j.Place).bad = f.err
	j.close(nil, true)
	j.Error = f.err.Error()
	s.do(save{})
	if len(s.plan.Places) > 1 { // with one place, Run returns the error
		s.warn(j, words(j, f.err), hint.Of(f.err))
	}
}

func (s *state) received(f received) {
	j := f.job
	if j.lastOutput = f.at; f.at.After(s.runs.now) {
		s.runs.now = f.at
	}
	s.read(j, f.text)
	if j.phase == following && s.rejects(j) {
		s.quit(j, ending{exit: forged(j.stream.against)})
	}
}

// forged returns the end of a tool's job whose stream is incomplete or forged.
func forged(text string) remote.Exit {
	return remote.Exit{End: remote.Lost, Text: "untrusted output: " + text,
		Hint: "another program has written to it: fisub help trust"}
}

func (s *state) changed(f changed) {
	j, is := f.job, f.state
	if running := is.Phase == remote.Running; j.phase == following && running != j.running {
		j.running, j.lastOutput = running, f.at
	}
	if j.phase == following && (is.Phase == remote.Running || is.Phase == remote.Starting) {
		if j.Began == nil {
			j.Began = &f.at
			s.do(save{})
		}
		if j.ceded { // other unreachable places may be reachable again too
			j.ceded = false
			for _, p := range s.places {
				if remote.CodeOf(p.bad) == "unreachable" {
					p.bad = nil
				}
			}
		}
	}
	text := plain.Brief(is.Text, 200)
	if !is.Start.IsZero() {
		text = fmt.Sprintf("%s, starting at about %s", text, is.Start.Format("15:04"))
	}
	s.say(j, event.JobChange{Phase: string(is.Phase), Text: text})
}

// outside reports whether the error of a Wait is about the table, the credentials or the connection, and not about the
// job.
func outside(err error) bool {
	return slices.Contains([]string{"credentials", "host-key", "no-such", "unreachable"}, remote.CodeOf(err))
}

func (s *state) waited(f waited) {
	j, err := f.job, f.err
	_, gone := errors.AsType[*noTableError](err)
	away := remote.CodeOf(err) == "unreachable"
	switch {
	case err == nil:
		// A judge killed on the host counts like a dead agent.
		again := f.exit.End == remote.Lost || f.exit.End == remote.Exited && f.exit.Code > 128
		j.end = &ending{exit: f.exit, again: again}
		s.finish(j)
	case j.end != nil:
		s.finish(j)
	case s.mode != working:
		j.phase = idle
	case away && f.at.Sub(j.began()) <= s.plan.Limit:
		s.away(j, err)
		s.do(follow{job: j, after: time.Second})
	case gone, outside(err):
		if away {
			s.away(j, err)
		}
		s.leave(j, err)
	default:
		j.end = &ending{exit: remote.Exit{End: remote.Lost, Text: err.Error(), Hint: hint.Of(err)}}
		s.finish(j)
	}
}

// away lets other places take over the workloads of an unreachable job.
func (s *state) away(j *job, err error) {
	if !j.ceded {
		s.warn(j, plain.Brief(words(j, err), 300), "fisub keeps trying and gives its workloads to a free place; the job "+
			"may still run there")
	}
	j.ceded, j.running = true, false
}

// leave stops following a job, which may still be running.
func (s *state) leave(j *job, err error) {
	j.phase, j.ceded = idle, remote.CodeOf(err) == "unreachable"
	s.place(j.Place).bad = err
	if s.awaited(j) {
		s.left = errors.Join(s.left, err)
	}
}

// words returns an error's text without the names that are printed in front of it.
func words(j *job, err error) string {
	if denied, ok := errors.AsType[*remote.Denied](err); ok {
		return denied.Text
	}
	return strings.TrimPrefix(err.Error(), j.Place.Table+": ")
}

// finish handles the end of a job, or the decision to end it.
func (s *state) finish(j *job) {
	e := j.end
	if e.needless || s.mode == cancelling {
		s.free(j)
		return
	}
	e.exit = s.compared(j, e.exit)
	e.exit.Lines, e.exit.MAC = 0, ""
	if n := j.stream.junk; n > 0 {
		s.warn(j, fmt.Sprintf("%d lines of its stream are not events of this run", n), "they are in "+streamOf(j.ID))
	}
	s.free(j)
}

// free fetches a job's log and lets its host release it.
func (s *state) free(j *job) {
	switch {
	case j.Handle != nil:
		j.phase = collecting
		s.do(collect{j})
	case s.mode == cancelling: // a host may have it anyway
		j.phase = releasing
		s.do(release{job: j})
	default:
		s.closed(j, nil)
	}
}

func (s *state) collected(f collected) {
	j := f.job
	if f.err != nil {
		s.warn(j, fmt.Sprintf("no log: %v", f.err), "")
	}
	if e := &j.end.exit; e.End == remote.Exited && e.Code != 0 && e.Code != 3 && e.Text == "" {
		e.Text, e.Hint = f.text, f.hint
	}
	j.phase = releasing
	s.do(release{job: j})
}

// released handles the result of a Release. It tries again if the host was reachable at the job's end: the connection
// may have failed.
func (s *state) released(f released) {
	e := f.job.end
	if remote.CodeOf(f.err) == "unreachable" && e.exit.End != remote.Lost && s.mode != cancelling && e.releases < 3 {
		s.do(release{f.job, time.Second / 2 << e.releases})
		e.releases++
		return
	}
	s.closed(f.job, f.err)
}

// closed records the end of a job. If its host did not release it, it may still be running.
func (s *state) closed(j *job, held error) {
	exit := j.end.exit
	j.phase, j.ceded = idle, true
	if held != nil && s.mode == cancelling {
		s.left = errors.Join(s.left, held)
		return
	}
	if held != nil {
		s.warn(j, "may still run: "+plain.Brief(words(j, held), 300), "")
	}
	j.close(&exit, held == nil)
	s.do(save{})
	if s.mode == cancelling {
		s.say(j, event.JobChange{Phase: "ended", Text: exit.Text})
		return
	}
	s.say(j, event.JobChange{Phase: "ended", Text: agent.Describe(exit)})
	s.judge(j)
}

// judge updates the job's place and workloads after its end.
func (s *state) judge(j *job) {
	exit, at := j.end.exit, s.place(j.Place)
	if s.isTool() {
		s.settle(j, exit)
	}
	left := slices.DeleteFunc(slices.Clone(j.Workloads), func(uuid string) bool { return s.runs.workload(uuid).by != "" })
	if len(left) == 0 || j.end.needless || !s.awaited(j) && exit.End == remote.Exited {
		return
	}
	alone := s.runs.first == "" && len(s.runs.held) == 0 && len(s.plan.Places) == 1 // Run returns the error
	over := exit.End == remote.Limited || exit.End == remote.Cancelled
	for _, uuid := range left {
		s.runs.workload(uuid).given = s.runs.workload(uuid).given || over
	}
	at.losses++
	if j.end.again && at.losses == 1 && !s.isTool() {
		alone = false // a host that was just rebooted gets another job
	} else if !over || alone {
		at.bad = fmt.Errorf("%s: %w", j.Place, &Ended{exit})
	}
	if !alone {
		s.warn(j, fmt.Sprintf("%s; %d of its %d workloads have no verdict", agent.Describe(exit), len(left),
			len(j.Workloads)), exit.Hint)
	}
}

func (s *state) end() {
	s.mode, s.left = cancelling, nil
	for _, j := range s.active() {
		s.quit(j, ending{exit: remote.Exit{End: remote.Cancelled, Text: "stopped"}})
	}
}

// unfollowed returns why jobs with missing verdicts are not followed any longer, or Finished if there are no such jobs.
func (s *state) unfollowed() (End, error) {
	active := s.active()
	awaited := slices.ContainsFunc(active, s.awaited)
	switch {
	case errors.Is(s.broken, ErrCancelled):
		return Cancelled, s.broken
	case s.broken != nil:
		return Failed, s.broken
	case s.paused != nil && len(active) > 0:
		return Left, s.paused
	case s.left != nil && awaited:
		return Failed, s.left
	case s.rules.detach && awaited:
		return Detached, nil
	}
	return Finished, nil
}

// nothingRan returns why no host has run anything, or nil if one has.
func (s *state) nothingRan() error {
	if s.runs.first != "" {
		return nil
	}
	if len(s.plan.Places) == 1 {
		return cmp.Or(s.place(s.plan.Places[0]).bad, ErrNothing)
	}
	return ErrNothing
}

// An Ended is the error of a place whose job ended before the program had finished.
type Ended struct{ Exit remote.Exit }

func (e *Ended) Error() string { return agent.Describe(e.Exit) }

// Advice returns the hint of the error.
func (e *Ended) Advice() string { return e.Exit.Hint }

// Deal distributes the workloads over n hands one by one, so that similar neighbours are spread. Each goes to the next
// hand that fits, or is omitted.
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
