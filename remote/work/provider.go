package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"fisub/remote"
	"fisub/remote/follow"
	"fisub/remote/host"
)

// Hosts are the hosts of one table, with a work folder each. They have the methods of a remote.Provider except Places
// and Check.
type Hosts struct {
	follow.Jobs
	Kind    string // of the provider
	Table   string // its name
	Folders []*Folder

	Logs  []string              // files in a job's folder that Collect copies in addition to the log
	Valid func(*FolderJob) bool // additional check of a job from a handle; may be nil

	// At returns the folder of a place; nil if the host is not in the table.
	At func(remote.Place) *Folder
}

// NewHosts returns the hosts of a table.
func NewHosts(kind, table string, at func(remote.Place) *Folder, folders ...*Folder) *Hosts {
	s := &Hosts{Kind: kind, Table: table, At: at, Folders: folders}
	s.Jobs = follow.Jobs{Starter: s}
	return s
}

// Start implements follow.Starter.
func (s *Hosts) Start(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (remote.Handle, error) {
	f := s.At(job.Place)
	if f == nil {
		return remote.Handle{}, fmt.Errorf("no host %q in the table", job.Place.Host)
	}
	j, err := f.Submit(ctx, job, progress)
	if err != nil {
		return remote.Handle{}, err
	}
	return j.Handle(s.Kind), nil
}

// Stop implements follow.Starter: the agent ends the job and removes its folder.
func (s *Hosts) Stop(ctx context.Context, h remote.Handle) (removed bool, err error) {
	j, _, err := s.Open(h)
	if err != nil {
		return false, err
	}
	return true, j.Free(ctx)
}

// Source implements follow.Starter.
func (s *Hosts) Source(_ context.Context, h remote.Handle) (follow.Source, follow.Rules, error) {
	j, f, err := s.Open(h)
	if err != nil {
		return nil, follow.Rules{}, err
	}
	return j, follow.Rules{Tail: true, Read: 250 * time.Millisecond, Slow: 5 * time.Second, Away: f.Away}, nil
}

// Fault implements follow.Starter.
func (s *Hosts) Fault(ctx context.Context, where remote.Place, err error) error {
	name := where.Host
	if f := s.At(where); f != nil {
		name = f.Name
	}
	return Fault(ctx, s.Table, name, err)
}

// Open returns the job of a handle and its folder.
func (s *Hosts) Open(h remote.Handle) (*FolderJob, *Folder, error) {
	j := &FolderJob{}
	err := json.Unmarshal(h.Data, j)
	j.ID, j.Place, j.Key = h.Job, h.Place, h.Key
	if err != nil || h.Provider != s.Kind || !j.Valid() || s.Valid != nil && !s.Valid(j) {
		return nil, nil, fmt.Errorf("job %.80q: the handle is not from %s", h.Job, s.Kind)
	}
	f := s.At(h.Place)
	if f == nil {
		return nil, nil, &remote.Denied{Code: "no-such", Provider: s.Table, Host: h.Place.Host,
			Text: "no longer among the table's hosts", Hint: "put it back into remote." + s.Table + ".hosts"}
	}
	j.Host = f.Host
	return j, f, nil
}

// Collect copies the log and the files in Logs.
func (s *Hosts) Collect(ctx context.Context, h remote.Handle, dst string) error {
	j, _, err := s.Open(h)
	if err == nil {
		err = j.Collect(ctx, dst, s.Logs...)
	}
	return s.Fault(ctx, h.Place, err)
}

// List returns the jobs on all hosts. Its error includes unreachable hosts.
func (s *Hosts) List(ctx context.Context) ([]remote.Handle, error) {
	handles, faults := make([][]remote.Handle, len(s.Folders)), make([]error, len(s.Folders))
	s.each(func(i int, f *Folder) {
		jobs, _, err := f.List(ctx)
		for _, j := range jobs {
			if f.Name != "" {
				j.Place.Host = f.Name
			}
			handles[i] = append(handles[i], j.Handle(s.Kind))
		}
		faults[i] = Fault(ctx, s.Table, f.Name, err)
	})
	return slices.Concat(handles...), errors.Join(faults...)
}

// Ready reports for each host whether a job for that kind of GPU ("" for none) could start now on one of the GPUs with
// those ordinals.
func (s *Hosts) Ready(ctx context.Context, kind string, ordinals []int) []remote.Host {
	hosts := make([]remote.Host, len(s.Folders))
	s.each(func(i int, f *Folder) {
		state, detail, err := f.Ready(ctx, kind, ordinals)
		hosts[i] = remote.Host{Name: f.Name, State: state, Detail: detail, Err: Fault(ctx, s.Table, f.Name, err)}
	})
	return hosts
}

// Close closes the connections.
func (s *Hosts) Close() error {
	faults := make([]error, len(s.Folders))
	s.each(func(i int, f *Folder) { faults[i] = f.Host.Close() })
	return errors.Join(faults...)
}

// each calls do concurrently for all folders.
func (s *Hosts) each(do func(i int, f *Folder)) {
	var group sync.WaitGroup
	for i, f := range s.Folders {
		group.Go(func() { do(i, f) })
	}
	group.Wait()
}

// Fault adds the table and the host to an error for the user; name is "" if there is only one host.
func Fault(ctx context.Context, table, name string, err error) error {
	var denied *remote.Denied
	var failed *host.ExitError
	var lost *host.LostError
	refuse := func(code, hint string) error {
		return &remote.Denied{Code: code, Provider: table, Host: name, Text: err.Error(), Hint: hint}
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &denied):
		full := *denied
		full.Provider, full.Host, full.Text = table, name, strings.Replace(err.Error(), denied.Error(), denied.Text, 1)
		return &full
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.As(err, new(*remote.LocalError)):
	case errors.As(err, &lost):
		return refuse("unreachable", lost.Hint)
	case errors.As(err, &failed) && failed.Status == host.NotRunnable:
		return refuse("disk", "programs cannot run in the work folder: set workdir to another folder")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EROFS),
		errors.Is(err, fs.ErrPermission):
		return refuse("disk", "set workdir to a writable folder with free space")
	}
	if name != "" {
		table += ": " + name
	}
	return fmt.Errorf("%s: %w", table, err)
}
