package follow

import (
	"errors"
	"fmt"
	"time"

	"fisub/remote"
)

// An action is the next step of a Wait: an ask, a pause, an end, or to stop a job that will never start.
type action any

// An ask is a request to the Source.
type ask string

const (
	status ask = "status"
	read   ask = "read"
	exit   ask = "exit"
	lost   ask = "lost"
)

type (
	pause  time.Duration
	refuse struct{ exit remote.Exit } // stop the job, and end with the exit
	end    struct {
		exit remote.Exit
		err  error
	}
)

// A fact is the result of a request (Status, Part, *remote.Exit, lostFact or failed), or what a Read learns before it
// returns (wrote, remote.Stage).
type fact any

type (
	wrote    struct{} // bytes of the stream
	lostFact struct {
		exit remote.Exit
		sure bool
	}
	failed struct {
		ask ask // "" for a refuse
		err error
	}
)

// agentTime is how long the agent may fail on a reachable host before the job is lost.
const agentTime = 5 * time.Second

// state is all that is known about a job. It goes in rounds of requests, with a pause after each. It neither waits nor
// reads the clock.
type state struct {
	rules Rules
	todo  []ask // of this round
	rest  bool  // no round is going on

	live     remote.Stage // as the stream shows it; a zero Phase as long as there is none
	said     Status       // the last one
	away     string       // why the host is away; "" if it is not
	progress bool         // this round has brought bytes of the stream
	answered bool         // this round has shown that the host is there

	wait  time.Duration // the next pause while the host is away
	since time.Time     // start of the time without an answer; zero if there was one
	err   error         // ended the round early

	gap   time.Duration // between the last and the next query of the scheduler
	due   time.Time     // when it is asked again
	asked bool          // in this round
	never int           // consecutive Statuses with Never

	whole  bool         // the agent has ended, as a Read of this round says
	over   time.Time    // when the scheduler reported the end; zero before
	exit   *remote.Exit // of this round; nil if there is none that counts
	exitAt time.Time    // when there was one first
	lost   *lostFact    // of this round
}

func newState(r Rules) *state { return &state{rules: r, rest: true, wait: r.Read} }

// stage returns the stage that the Watcher must know.
func (s *state) stage() remote.Stage {
	switch {
	case s.away != "":
		return remote.Stage{Phase: remote.Away, Text: s.away}
	case s.live.Phase != "" && s.said.Stage.Phase != remote.Running:
		return s.live
	}
	return s.said.Stage
}

// next returns the next action. The fact of each request must be applied before the next call.
func (s *state) next(now time.Time) action {
	if s.rest {
		s.begin()
	}
	if len(s.todo) == 0 {
		if a := s.decide(now); a != nil {
			_, s.rest = a.(pause)
			if s.rest && s.err == nil {
				s.since, s.away = time.Time{}, ""
			}
			return a
		}
	}
	a := s.todo[0]
	s.todo = s.todo[1:]
	return a
}

// begin starts a round. A Read of what is there comes after the Exit: all that the job wrote before its exit can then
// be read. A Read that follows the stream comes before it: only when the agent has ended does its exit.json count,
// since until then the submission can write one.
func (s *state) begin() {
	s.rest, s.progress, s.answered, s.asked, s.whole = false, false, false, false, false
	s.err, s.exit, s.lost = nil, nil, nil
	s.todo = []ask{exit, read}
	if s.rules.Tail && s.over.IsZero() {
		s.todo = []ask{status, read}
	}
}

func (s *state) apply(f fact, now time.Time) {
	switch f := f.(type) {
	case remote.Stage:
		s.alive(f)
	case wrote:
		s.progress = true
		s.running()
	case Part:
		switch f {
		case Some:
			s.running()
			s.todo = append([]ask{read}, s.todo...)
		case All:
			s.running()
		case Whole:
			s.whole, s.asked, s.todo = true, false, []ask{exit}
		}
	case *remote.Exit:
		if f == nil || s.rules.Signed && f.MAC == "" {
			break
		}
		if s.exit = f; s.exitAt.IsZero() {
			s.exitAt, s.due = now, now
		}
	case Status:
		s.status(f, now)
	case lostFact:
		s.lost = &f
	case failed:
		s.failed(f, now)
	}
}

// alive notes a stage that the host itself shows.
func (s *state) alive(live remote.Stage) {
	if s.live.Phase != live.Phase {
		s.due = time.Time{} // the scheduler knows more, such as the node
	}
	s.live, s.away, s.answered = live, "", true
}

func (s *state) running() { s.alive(remote.Stage{Phase: remote.Running}) }

func (s *state) status(is Status, now time.Time) {
	changed := is.Stage.Phase != s.said.Stage.Phase
	if s.asked, s.never = true, s.never+1; is.Never == nil {
		s.never = 0
	}
	if is.Over {
		is.Stage = s.said.Stage
		s.over, s.said, s.err = now, is, nil
		s.todo = []ask{exit, read} // both again: what came before may be incomplete
		return
	}
	s.said = is
	s.gap = min(s.gap*3/2, s.rules.Slow)
	if changed {
		s.wait = s.rules.Read
	}
	if changed || s.gap == 0 || s.exit != nil {
		s.gap = s.rules.Query
	}
	s.due = now.Add(s.gap)
}

// failed ends the round. But a scheduler without an answer is no reason to call a host away whose files can be read,
// and it may know why the connection to a host was lost.
func (s *state) failed(f failed, now time.Time) {
	if f.ask == status && !s.rules.Tail && !final(f.err) && (s.live.Phase != "" || s.exit != nil) {
		s.asked, s.due = true, now.Add(s.rules.Slow)
		return
	}
	s.err, s.todo = f.err, nil
	if s.rules.Tail && f.ask != status && s.over.IsZero() && !final(f.err) {
		s.todo = []ask{status}
	}
}

func final(err error) bool {
	_, ok := errors.AsType[*FinalError](err)
	return ok
}

// decide returns the pause or the end that follows a round, or nil if it has put another request into todo.
func (s *state) decide(now time.Time) action {
	if s.err != nil {
		return s.fails(now)
	}
	over := !s.over.IsZero()
	switch {
	case s.exit != nil && (s.rules.Doubt == nil || !s.rules.Doubt(*s.exit)):
		return end{exit: *s.exit}
	case !over && !s.asked && (s.whole || !s.rules.Tail && !now.Before(s.due)):
		return s.ask(status)
	case s.never > 1:
		return refuse{*s.said.Never}
	case over || s.whole:
		return s.ends(now)
	case s.exit != nil && now.Sub(s.exitAt) >= s.rules.Grace:
		return end{exit: *s.exit}
	case s.rules.Tail:
		return s.slower()
	}
	s.wait = s.rules.Read
	if s.exit == nil && (s.live.Phase != "" || s.said.Stage.Phase == remote.Running) {
		return pause(s.wait)
	}
	return pause(max(s.due.Sub(now), s.wait))
}

// ends returns the end of a job that is over, and whose agent left no exit or a doubtful one.
func (s *state) ends(now time.Time) action {
	waits := s.exit == nil && !s.over.IsZero() && now.Sub(s.over) < s.rules.Grace
	switch {
	case s.exit == nil && s.lost == nil && (waits || s.said.End.End == ""):
		return s.ask(lost)
	case waits && !s.lost.sure:
		return pause(min(s.rules.Grace/10, time.Second))
	case s.said.End.End != "":
		return end{exit: s.said.End}
	case s.exit != nil:
		return end{exit: *s.exit}
	}
	return end{exit: s.lost.exit}
}

func (s *state) ask(a ask) action {
	s.todo = []ask{a}
	return nil
}

// slower returns a pause that is longer each time.
func (s *state) slower() pause {
	p := pause(s.wait)
	s.wait = min(2*s.wait, s.rules.Slow)
	return p
}

// fails returns what follows a round that an error ended.
func (s *state) fails(now time.Time) action {
	agent, ok := errors.AsType[*AgentError](s.err)
	if !ok && s.answered || s.progress || s.since.IsZero() {
		s.since, s.wait = now, s.rules.Read
	}
	silent := now.Sub(s.since)
	switch {
	case final(s.err):
		return end{err: s.err}
	case ok && silent > agentTime:
		return end{exit: remote.Exit{End: remote.Lost, Text: "following the job: " + agent.Error()}}
	case !ok && silent >= s.rules.Away:
		return end{err: fmt.Errorf("unreachable for %v: %w", silent.Round(time.Second), s.err)}
	}
	s.away, s.due = s.err.Error(), time.Time{}
	if denied, ok := errors.AsType[*remote.Denied](s.err); ok {
		s.away = denied.Text // without the table and the host, which are shown next to it
	}
	p := s.slower()
	if !ok {
		p = min(p, pause(max(s.rules.Away-silent, 50*time.Millisecond)))
	}
	return p
}
