// Package follow follows the jobs of all providers. It decides which request comes next, what the Watcher is told, how
// long a host may be away, and how a job has ended. A provider describes its jobs by a Source, whose methods are single
// requests without loops and pauses, and by Rules. The state only decides; Wait performs the requests.
package follow

import (
	"context"
	"math"
	"time"

	"fisub/remote"
)

// A Source reads what a job has written, and asks its scheduler.
type Source interface {
	// Status asks the scheduler for the job's state. A provider without a scheduler returns the zero Status.
	Status(ctx context.Context) (Status, error)

	// Read writes the event stream from byte from to w. It calls w.State if it learns the stage of the job before
	// the first byte arrives.
	Read(ctx context.Context, from int64, w remote.Watcher) (Part, error)

	// Exit returns the content of exit.json, parsed by agent.ParseExit with the job's Seal. It is nil if the job has
	// written none.
	Exit(ctx context.Context) (*remote.Exit, error)

	// Lost returns the end of a job that the scheduler or the agent calls over, but that left no exit and whose Status
	// has no End. It is also called while Rules.Grace lasts; sure ends the wait for exit.json.
	Lost(ctx context.Context) (exit remote.Exit, sure bool, err error)
}

// A Status is the scheduler's view of a job.
type Status struct {
	Stage remote.Stage // of a job that is not over; a zero Phase if the scheduler does not know it
	Over  bool         // the job has ended, and writes nothing more

	// End is how a job that is over ended, as far as the scheduler alone knows: End.End is "" if only the agent does.
	End remote.Exit

	// Never is set if the job will never start as it is. If the next Status sets it too, the job is stopped.
	Never *remote.Exit
}

// A Part is how much of the stream a Read has written.
type Part int

const (
	Absent Part = iota // there is no stream yet
	Some               // there may be more at once
	All                // all that is there; the job may write more
	Whole              // all: the agent has ended
)

// Rules are the differences between providers.
type Rules struct {
	// Tail is set if Read follows the stream and returns when the agent has ended, which only a program on the job's
	// host can know. Otherwise Read returns what is there.
	Tail bool

	Read  time.Duration // pause between reads; it doubles, up to Slow, as long as the host is away
	Query time.Duration // pause between queries of the scheduler after a change; then it grows up to Slow
	Slow  time.Duration

	Grace time.Duration // how long exit.json may take to appear on a network file system, and the scheduler to end a job
	Away  time.Duration // how long the host and the scheduler may be unreachable before Wait returns the error

	// Signed is set if others than the agent can write exit.json while it is alive: then an unsigned one never counts.
	Signed bool

	// Doubt reports whether the scheduler may know better than the agent how the job ended, since it ends jobs by
	// signals to the agent. nil means that it never does.
	Doubt func(remote.Exit) bool

	stop func(context.Context) error // for a job that will never start; Jobs sets it
}

// Forever is the Away of providers that never give up.
const Forever = time.Duration(math.MaxInt64)

// An AgentError is the error of the agent on a host that can be reached.
type AgentError struct{ Err error }

func (e *AgentError) Error() string { return e.Err.Error() }
func (e *AgentError) Unwrap() error { return e.Err }

// A FinalError is an error of a request that need not be repeated. It ends a Wait at once; any other may be temporary.
type FinalError struct{ Err error }

func (e *FinalError) Error() string { return e.Err.Error() }
func (e *FinalError) Unwrap() error { return e.Err }

// Wait follows a job as remote.Provider's Wait does. Its errors do not name the provider.
func Wait(ctx context.Context, src Source, rules Rules, from int64, w remote.Watcher) (remote.Exit, error) {
	f := &feed{to: w, at: from, s: newState(rules)}
	for {
		var got fact
		next := f.s.next(time.Now())
		f.tell()
		switch a := next.(type) {
		case pause:
			_ = remote.Sleep(ctx, time.Duration(a))
		case end:
			return a.exit, a.err
		case refuse:
			err := rules.stop(ctx)
			if err == nil {
				return a.exit, nil
			}
			got = failed{err: err}
		case ask:
			got = f.perform(ctx, src, a)
		}
		switch {
		case f.err != nil:
			return remote.Exit{}, f.err
		case ctx.Err() != nil:
			return remote.Exit{}, ctx.Err()
		}
		if got != nil {
			f.apply(got)
		}
	}
}

// perform performs a request and returns its fact.
func (f *feed) perform(ctx context.Context, src Source, a ask) fact {
	var got fact
	var err error
	switch a {
	case status:
		var s Status
		s, err = src.Status(ctx)
		got = s
	case read:
		got, err = src.Read(ctx, f.at, f)
	case exit:
		var e *remote.Exit
		e, err = src.Exit(ctx)
		got = e
	case lost:
		var l lostFact
		l.exit, l.sure, err = src.Lost(ctx)
		got = l
	}
	if err != nil {
		return failed{a, err}
	}
	return got
}

// A feed passes the output of Reads to the Watcher, and tells the state about it.
type feed struct {
	to   remote.Watcher
	at   int64 // offset of the next byte
	s    *state
	told remote.Stage
	err  error // a *remote.LocalError of the Watcher
}

func (f *feed) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	f.apply(wrote{})
	n, err := f.to.Write(p)
	f.at += int64(n)
	f.err = remote.Local(err)
	return n, f.err
}

// State implements remote.Watcher for Reads.
func (f *feed) State(s remote.Stage) { f.apply(s) }

func (f *feed) apply(got fact) {
	f.s.apply(got, time.Now())
	f.tell()
}

// tell tells the Watcher a new stage.
func (f *feed) tell() {
	if s := f.s.stage(); s.Phase != "" && s != f.told {
		f.told = s
		f.to.State(s)
	}
}
