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
	"fisub/remote/work"
)

// Wait reads the job's files through the login host. It queries Slurm rarely while the job runs, and again at its end.
func (p *Provider) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	j, _, err := p.Open(h)
	if err != nil {
		return remote.Exit{}, err
	}
	f := &follower{Feed: remote.Feed{To: w, At: from}, p: p, j: j}
	exit, err := f.follow(ctx)
	if err == nil && f.At == from && from > 0 {
		err = f.behind(ctx)
	}
	if err != nil {
		return remote.Exit{}, p.fault(ctx, err)
	}
	return *exit, nil
}

// A follower is the state of one Wait.
type follower struct {
	remote.Feed
	p *Provider
	j *work.FolderJob

	status status // the last one queried
	began  bool   // the event stream exists
	gap    time.Duration
	next   time.Time // when to query Slurm next
	doomed int       // consecutive queries with a reason why the job will never start
	ended  time.Time // when exit.json appeared; zero before
	over   time.Time // when Slurm reported the job's end; zero before
}

// chunk is the most bytes read at once.
const chunk = 4 << 20

func (f *follower) follow(ctx context.Context) (*remote.Exit, error) {
	for pause := f.p.pace.read; ; {
		exit, wait, err := f.step(ctx)
		switch {
		case f.Err != nil:
			return nil, f.Err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			f.Tell(remote.Away, f.p.fault(ctx, err).Error())
			f.next = time.Time{}
			pause = min(2*pause, f.p.pace.slow)
			wait = pause
		case exit != nil:
			return exit, nil
		default:
			pause = f.p.pace.read
		}
		if err := remote.Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// step writes the new part of the stream. It returns the exit of an ended job, or how long to wait for more. An error
// means that the login host or the controller is unreachable for the moment.
func (f *follower) step(ctx context.Context) (*remote.Exit, time.Duration, error) {
	// Check for the exit first: everything the job wrote before it can then be read.
	exit, err := f.j.Exit(ctx)
	if err != nil {
		return nil, 0, err
	}
	if exit != nil && f.j.Key != "" && exit.MAC == "" {
		exit = nil // not the agent's, and only the agent can end a job here
	}
	if err := f.read(ctx); err != nil {
		return nil, 0, err
	}
	if exit != nil && final(exit) {
		return exit, 0, nil
	}
	now, read, grace := time.Now(), f.p.pace.read, f.p.pace.grace
	if exit != nil && f.ended.IsZero() {
		f.ended, f.next = now, now
	}
	if f.over.IsZero() {
		if !now.Before(f.next) {
			if err := f.query(ctx); err != nil && exit == nil && !f.began {
				return nil, 0, err
			}
		}
		switch {
		case !f.over.IsZero():
		case exit != nil && now.Sub(f.ended) > grace:
			return exit, 0, nil
		case f.doomed > 1:
			exit, err := f.refuse(ctx)
			return exit, 0, err
		case f.began && exit == nil:
			return nil, read, nil
		default:
			return nil, max(time.Until(f.next), read), nil
		}
	}
	if exit == nil && now.Sub(f.over) < grace {
		// Listing a folder makes a network file system show the files of other hosts.
		if _, err := f.j.Host.Sizes(ctx, f.j.Dir()); !errors.Is(err, fs.ErrNotExist) {
			return nil, min(grace/10, time.Second), err
		}
	}
	exit, err = f.end(ctx, exit)
	return exit, 0, err
}

func (f *follower) read(ctx context.Context) error {
	for {
		n, err := f.j.Host.Read(ctx, path.Join(f.j.Dir(), agent.EventsName), f.At, chunk, f)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if !f.began && f.Last.Phase != remote.Running {
			f.Tell(remote.Running, "")
			f.next = time.Time{} // Slurm knows the node
		}
		if f.began = true; n < chunk {
			return nil
		}
	}
}

// query asks Slurm, informs the Watcher, and sets the time of the next query.
func (f *follower) query(ctx context.Context) error {
	s, err := f.p.jobStatus(ctx, f.j)
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
	if f.doomed++; s.why().hint == "" {
		f.doomed = 0
	}
	at, of := 0, 0
	if s.phase() == remote.Queued && s.partition != "" {
		if out, err := f.p.slurm(ctx, queueArgs(f.j, s.partition)); err == nil {
			at, of = position(out, f.j.Number)
		}
	}
	f.State(s.stage(at, of))
	return nil
}

// refuse cancels a job that will never start as it is.
func (f *follower) refuse(ctx context.Context) (*remote.Exit, error) {
	text := fmt.Sprintf("job %s would not start: %s", f.j.Number, f.status.reason)
	return &remote.Exit{End: remote.Refused, Text: text, Hint: f.status.why().hint}, f.p.cancel(ctx, f.j)
}

func (f *follower) end(ctx context.Context, exit *remote.Exit) (*remote.Exit, error) {
	files, err := f.j.Host.Sizes(ctx, f.j.Dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil && f.status.state != "CANCELLED" {
		text := fmt.Sprintf("job %s: its folder is gone", f.j.Number)
		return &remote.Exit{End: remote.Lost, Text: text}, nil
	}
	output, err := f.j.LastLine(ctx, logName)
	if err != nil {
		return nil, err
	}
	_, started := files[agent.StateName]
	e := ended(f.j, f.status, exit, started, output)
	return &e, nil
}

// behind returns an error if the offset is after the end of an ended job's stream.
func (f *follower) behind(ctx context.Context) error {
	files, err := f.j.Host.Sizes(ctx, f.j.Dir())
	if size, ok := files[agent.EventsName]; ok && size < f.At {
		return fmt.Errorf("job %s: offset %d is after the end of the stream, %d", f.j.ID, f.At, size)
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
