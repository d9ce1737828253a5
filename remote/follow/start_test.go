package follow_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"fisub/remote"
	"fisub/remote/follow"
)

// A starter fails to start, and removes a job with the stops-th Stop.
type starter struct {
	follow.Starter
	err    error
	handle remote.Handle
	stops  int
	fails  error // of the first Stop
}

func (s *starter) Start(context.Context, *remote.Job, func(sent, total int64)) (remote.Handle, error) {
	return s.handle, s.err
}

func (s *starter) Stop(ctx context.Context, _ remote.Handle) (bool, error) {
	s.stops--
	err := s.fails
	s.fails = nil
	return s.stops == 0, errors.Join(err, ctx.Err())
}

func (s *starter) Fault(_ context.Context, where remote.Place, err error) error {
	if err != nil {
		err = errors.New(where.Host + ": " + err.Error())
	}
	return err
}

// A job that may be running after a failed start is stopped until it is removed, even if ctx is over.
func TestUndo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	job := &remote.Job{Place: remote.Place{Host: "h"}}
	for _, c := range []struct {
		s    *starter
		left int // Stops that are not needed
	}{
		{&starter{err: errors.New("cut"), handle: remote.Handle{Job: "j"}, stops: 3}, 0},
		{&starter{err: errors.New("cut"), handle: remote.Handle{Job: "j"}, stops: 2, fails: errors.New("busy")}, 0},
		{&starter{err: errors.New("cut"), stops: 3}, 3},
	} {
		h, err := follow.Jobs{Starter: c.s}.Submit(ctx, job, nil)
		if err == nil || err.Error() != "h: cut" || h.Job != "" || c.s.stops != c.left {
			t.Errorf("got %+v, %v, %d stops left, want %d", h, err, c.s.stops, c.left)
		}
	}
}

func TestReleaseInVain(t *testing.T) {
	defer func(d time.Duration) { follow.StopTime = d }(follow.StopTime)
	follow.StopTime = 300 * time.Millisecond
	err := follow.Jobs{Starter: &starter{}}.Release(t.Context(), remote.Handle{Job: "j", Place: remote.Place{Host: "h"}})
	if err == nil || !strings.HasPrefix(err.Error(), "h: job j has not ended 300ms after") {
		t.Errorf("got %v", err)
	}
}
