package slurm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"fisub/remote"
	"fisub/remote/agent"
)

// Wait reads the job's files through the login, and asks Slurm what it knows: seldom while the job runs, and when it
// has ended.
func (p *Provider) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	j, err := p.jobOf(h)
	if err != nil {
		return remote.Exit{}, err
	}
	f := &follower{p: p, j: j, w: w, offset: from, pause: p.pace.read}
	exit, err := f.follow(ctx)
	if err == nil && f.offset == from && from > 0 {
		err = f.behind(ctx)
	}
	if err != nil {
		return remote.Exit{}, p.fault(ctx, err)
	}
	return exit, nil
}

// A follower is one Wait.
type follower struct {
	p      *Provider
	j      *job
	w      remote.Watcher
	offset int64

	status status       // what Slurm said last
	told   remote.State // what the Watcher heard last
	began  bool         // the event stream is there
	gap    time.Duration
	next   time.Time     // of the next look at Slurm
	pause  time.Duration // after a failure; grows
	doomed int           // looks in a row that gave a reason for which the job will not start
	ended  time.Time     // when exit.json was there; zero before
	over   time.Time     // when Slurm said that the job has ended; zero before
	broken error         // of the Watcher
}

// chunk bounds what is read at once.
const chunk = 4 << 20

// Write hands bytes of the stream on.
func (f *follower) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	f.offset += int64(n)
	if err != nil {
		f.broken = &remote.LocalError{Err: err}
	}
	return n, err
}

// tell tells the Watcher of a state that is another one.
func (f *follower) tell(s remote.State) {
	if s != f.told {
		f.told = s
		f.w.State(s)
	}
}

func (f *follower) follow(ctx context.Context) (remote.Exit, error) {
	for {
		exit, wait, err := f.step(ctx)
		switch {
		case f.broken != nil:
			return remote.Exit{}, f.broken
		case ctx.Err() != nil:
			return remote.Exit{}, ctx.Err()
		case err != nil:
			f.tell(remote.State{Phase: remote.Away, Text: f.p.fault(ctx, err).Error()})
			f.next = time.Time{}
			f.pause = min(2*f.pause, f.p.pace.slow)
			wait = f.pause
		case exit != nil:
			return *exit, nil
		default:
			f.pause = f.p.pace.read
		}
		if err := remote.Sleep(ctx, wait); err != nil {
			return remote.Exit{}, err
		}
	}
}

// step hands on what there is of the stream and gives how the job ended, or how long to wait for more. Its errors are
// those of a login host, or a controller, that cannot be reached for the moment.
func (f *follower) step(ctx context.Context) (*remote.Exit, time.Duration, error) {
	// Whether the job has ended is asked first: what it wrote before is then all there is.
	exit, err := f.j.Exit(ctx)
	if err != nil {
		return nil, 0, err
	}
	for {
		n, err := f.j.Host.Read(ctx, path.Join(f.j.Dir(), agent.EventsName), f.offset, chunk, f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, 0, err
		}
		if err == nil && !f.began {
			f.began = true
			if f.told.Phase != remote.Running {
				f.tell(remote.State{Phase: remote.Running})
				f.next = time.Time{} // Slurm knows the node
			}
		}
		if n < chunk {
			break
		}
	}
	if exit != nil && final(exit) {
		return exit, 0, nil
	}
	now := time.Now()
	if exit != nil && f.ended.IsZero() {
		f.ended, f.next = now, now
	}
	if f.over.IsZero() && !now.Before(f.next) {
		if err := f.look(ctx); err != nil && exit == nil && !f.began {
			return nil, 0, err
		}
	}
	grace := f.p.pace.grace
	switch {
	case f.over.IsZero() && exit != nil && now.Sub(f.ended) > grace:
		return exit, 0, nil
	case f.over.IsZero() && f.doomed > 1:
		return f.refuse(ctx)
	case f.over.IsZero() && f.began && exit == nil:
		return nil, f.p.pace.read, nil
	case f.over.IsZero():
		return nil, max(time.Until(f.next), f.p.pace.read), nil
	case exit == nil && now.Sub(f.over) < grace:
		// A folder that is listed shows what other hosts wrote there.
		if _, err := f.j.Host.Sizes(ctx, f.j.Dir()); !errors.Is(err, fs.ErrNotExist) {
			return nil, min(grace/10, time.Second), err
		}
	}
	e, err := f.end(ctx, exit)
	return e, 0, err
}

// look asks Slurm, tells the Watcher, and sets when to ask again.
func (f *follower) look(ctx context.Context) error {
	s, err := f.p.look(ctx, f.j)
	if err != nil {
		f.next = time.Now().Add(f.p.pace.slow)
		return err
	}
	changed := s.state != f.status.state
	f.status = s
	if s.over() {
		f.over = time.Now()
		return nil
	}
	f.gap = min(f.gap*3/2, f.p.pace.slow)
	if changed || f.gap == 0 || !f.ended.IsZero() {
		f.gap = f.p.pace.queued
	}
	f.next = time.Now().Add(f.gap)
	if f.doomed++; s.hopeless() == "" {
		f.doomed = 0
	}
	at, of := 0, 0
	if s.phase() == remote.Queued && s.partition != "" {
		if out, err := f.p.slurm(ctx, queueArgs(f.j, s.partition), ""); err == nil {
			at, of = position(out, f.j.Number)
		}
	}
	f.tell(s.told(at, of))
	return nil
}

// refuse takes a job out of the queue that will not start as it is.
func (f *follower) refuse(ctx context.Context) (*remote.Exit, time.Duration, error) {
	if err := f.p.cancel(ctx, f.j); err != nil {
		return nil, 0, err
	}
	text := fmt.Sprintf("job %s would not start: %s", f.j.Number, f.status.reason)
	return &remote.Exit{End: remote.Refused, Text: text, Hint: f.status.hopeless()}, 0, nil
}

// end decides how the job ended, with what its folder says.
func (f *follower) end(ctx context.Context, exit *remote.Exit) (*remote.Exit, error) {
	files, err := f.j.Host.Sizes(ctx, f.j.Dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil && f.status.state != "CANCELLED" {
		text := fmt.Sprintf("job %s: its folder is gone, as after a release", f.j.Number)
		return &remote.Exit{End: remote.Lost, Text: text}, nil
	}
	_, started := files[agent.StateName]
	said, err := f.j.Said(ctx, logName)
	if err != nil {
		return nil, err
	}
	e := ended(f.j, f.status, exit, started, said)
	return &e, nil
}

// behind is an error where the offset is behind the end of the stream of a job that has ended.
func (f *follower) behind(ctx context.Context) error {
	files, err := f.j.Host.Sizes(ctx, f.j.Dir())
	if size, ok := files[agent.EventsName]; ok && size < f.offset {
		return fmt.Errorf("job %s: offset %d is behind the end of the stream, %d", f.j.ID, f.offset, size)
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
