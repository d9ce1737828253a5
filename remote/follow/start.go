package follow

import (
	"context"
	"fmt"
	"io"
	"time"

	"fisub/remote"
)

// A Starter starts and ends the jobs of a provider. Each method makes its attempt once.
type Starter interface {
	// Start sends the missing files and starts the job. With an error it returns the handle of a job that may be
	// running or have left something, and the zero Handle if there is none.
	Start(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (remote.Handle, error)

	// Stop asks for the end of a job, or removes all of a job that is over. It returns whether it is removed.
	Stop(ctx context.Context, h remote.Handle) (removed bool, err error)

	// List is that of remote.Provider.
	List(ctx context.Context) ([]remote.Handle, error)

	// Source returns the Source of a job, and the rules for it. A Source with a Close is closed after the Wait.
	Source(ctx context.Context, h remote.Handle) (Source, Rules, error)

	// Fault adds the provider and the host to an error for the user.
	Fault(ctx context.Context, where remote.Place, err error) error
}

// Jobs has the methods of a remote.Provider that are the same for all: Submit, Wait and Release.
type Jobs struct{ Starter }

// StopTime is how long a job may take to end once it is stopped. Tests change it.
var StopTime = 2 * time.Minute

// undoTime bounds the attempts to end a job whose start failed.
const undoTime = time.Minute

// Submit implements remote.Provider.
func (s Jobs) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (remote.Handle, error) {
	h, err := s.Start(ctx, job, progress)
	if err != nil && h.Job != "" {
		err = Undo(ctx, err, func(ctx context.Context) error { return s.release(ctx, h) })
	}
	if err != nil {
		return remote.Handle{}, s.Fault(ctx, job.Place, err)
	}
	return h, nil
}

// Wait implements remote.Provider.
func (s Jobs) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	src, rules, err := s.Source(ctx, h)
	if err != nil {
		return remote.Exit{}, s.Fault(ctx, h.Place, err)
	}
	if c, ok := src.(io.Closer); ok {
		defer c.Close()
	}
	rules.stop = func(ctx context.Context) error {
		_, err := s.Stop(ctx, h)
		return err
	}
	exit, err := Wait(ctx, src, rules, from, w)
	return exit, s.Fault(ctx, h.Place, err)
}

// Release implements remote.Provider.
func (s Jobs) Release(ctx context.Context, h remote.Handle) error {
	return s.Fault(ctx, h.Place, s.release(ctx, h))
}

// release repeats the stop until the job is removed, since a starting job may miss it.
func (s Jobs) release(ctx context.Context, h remote.Handle) error {
	deadline := time.Now().Add(StopTime)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		removed, err := s.Stop(ctx, h)
		switch {
		case err != nil || removed:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("job %s has not ended %v after it was stopped", h.Job, StopTime)
		}
		if err := remote.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// Undo ends a job whose start failed with err, even if ctx is over, and returns err. If the job may still be running
// then, the error says so.
func Undo(ctx context.Context, err error, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	for {
		left := stop(ctx)
		if left == nil {
			return err
		}
		if remote.Sleep(ctx, time.Second) != nil {
			return fmt.Errorf("%w; the job may be running: %w", err, left)
		}
	}
}
