package dispatch

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
)

// Release ends the jobs of a plan that may be running. It leaves the plan to the process that has the run folder.
func Release(ctx context.Context, p *Plan, open map[string]remote.Provider) error {
	var faults []error
	for _, j := range p.Active() {
		faults = append(faults, releaseJob(ctx, open[j.Place.Table], j))
	}
	return errors.Join(faults...)
}

// releaseJob ends a job. A job without a handle is searched for in the provider's list; then an unreachable host is an
// error only if no other one has the job.
func releaseJob(ctx context.Context, provider remote.Provider, j *JobRecord) error {
	if provider == nil {
		return &noTableError{j.Place}
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

// Limits for fetching the events of jobs that are about to be ended: after the last event, and in total.
const (
	fetchIdle  = 3 * time.Second
	fetchLimit = 20 * time.Second
)

// fetch appends the events that active jobs have written so far to their streams in the run folder. A host that cannot
// be reached delays the cancellation by fetchIdle.
func (d *Dispatcher) fetch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	var group sync.WaitGroup
	for _, j := range d.state.active() {
		provider := d.providers[j.Place.Table]
		if j.Handle == nil || provider == nil {
			continue
		}
		group.Go(func() {
			file, err := plain.OpenFile(filepath.Join(d.Folder.Path(), streamOf(j.ID)),
				os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
			if err != nil {
				return // replay reports it
			}
			defer file.Close()
			size, err := file.Seek(0, io.SeekEnd)
			if err != nil {
				return
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			w := &fetcher{file: file, room: d.state.room(j) - size, idle: time.AfterFunc(fetchIdle, cancel)}
			defer w.idle.Stop()
			h := *j.Handle
			h.Key = j.Key
			_, _ = provider.Wait(ctx, h, size, w)
		})
	}
	group.Wait()
}

// A fetcher writes the bytes of a stream to a file, and postpones the end of the fetching.
type fetcher struct {
	file *os.File
	room int64 // bytes that the stream may still have
	idle *time.Timer
}

func (f *fetcher) Write(p []byte) (int, error) {
	if f.room -= int64(len(p)); f.room < 0 {
		return 0, errors.New("too many bytes")
	}
	f.idle.Reset(fetchIdle)
	return f.file.Write(p)
}

func (f *fetcher) State(remote.Stage) {}

// ErrCancelled is the error if another process has cancelled the run.
var ErrCancelled = errors.New("cancelled by another process")

// markName is the file that marks a run as cancelled.
const markName = "cancelled"

// Mark marks the run in folder as cancelled: the process that follows it ends its jobs, and no job is started.
func Mark(folder string) error {
	return plain.WriteFile(filepath.Join(folder, streams, markName), nil, 0o600)
}

// Marked reports whether the run in folder is cancelled.
func Marked(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, streams, markName))
	return err == nil
}

// Unmark removes the mark of a cancelled run.
func Unmark(folder string) error {
	err := os.Remove(filepath.Join(folder, streams, markName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// watch waits until the run in folder is cancelled, and calls do unless ctx has ended before.
func watch(ctx context.Context, folder string, do func()) {
	for ; !Marked(folder); _ = remote.Sleep(ctx, time.Second/4) {
		if ctx.Err() != nil {
			return
		}
	}
	do()
}

// UntilMarked calls do with a context that ends when the run in folder is cancelled; then it returns ErrCancelled.
func UntilMarked(ctx context.Context, folder string, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go watch(ctx, folder, cancel)
	err := do(ctx)
	if Marked(folder) {
		return ErrCancelled
	}
	return err
}
