// Package loopback is the provider that runs jobs on this machine, through the same agent and the same files as on another
// host. It is for trying a run out, and for tests.
package loopback

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"fisub/internal/cache"
	"fisub/remote"
	"fisub/remote/agent"
)

// Kind is the provider's name in a table.
const Kind = "loopback"

// A Provider runs jobs on this machine.
type Provider struct {
	name string
	Config
}

// New makes the provider of the table [remote.name].
func New(name string, c Config) (*Provider, error) {
	p := &Provider{name, c}
	if p.Workdir == "" {
		root, err := cache.Root()
		if err != nil {
			return nil, err
		}
		p.Workdir = filepath.Join(root, "remote", Kind)
	}
	return p, nil
}

// Places are the GPUs, or the slots.
func (p *Provider) Places(n int) (places []remote.Place) {
	for _, gpu := range p.GPUs {
		places = append(places, remote.Place{Host: "localhost", GPU: gpu})
	}
	for i := range p.Slots {
		if len(p.GPUs) > 0 {
			break
		}
		host := "localhost"
		if p.Slots > 1 {
			host = fmt.Sprintf("slot%d", i+1)
		}
		places = append(places, remote.Place{Host: host, GPU: -1})
	}
	return places[:min(n, len(places))]
}

// Check tells whether the work folder can be written.
func (p *Provider) Check(context.Context) ([]remote.Host, error) {
	h := remote.Host{Name: "localhost", State: "ready", Detail: p.Workdir}
	if err := os.MkdirAll(agent.Store(p.Workdir), 0o700); err != nil {
		h.State, h.Err = "down", err
	}
	return []remote.Host{h}, nil
}

// A spot is Handle.Data.
type spot struct {
	Work string `json:"work"`
}

func (p *Provider) fail(err error) error {
	if err == nil {
		return nil
	}
	d := &remote.Denied{Provider: p.name, Text: err.Error()}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		d.Code, d.Hint = "disk", "make room, or set workdir to a larger disk"
		return d
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// Submit copies the bundle below the work folder and starts an agent there.
func (p *Provider) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (h remote.Handle, err error) {
	defer func() { err = p.fail(err) }()
	if err := job.Check(); err != nil {
		return h, err
	}
	program, missing, total := "", []remote.File{}, int64(0)
	known := map[string]bool{}
	for _, f := range job.Files {
		if f.Name == agent.Program {
			program = agent.Stored(p.Workdir, f.SHA256)
		}
		if _, err := os.Stat(agent.Stored(p.Workdir, f.SHA256)); err != nil && !known[f.SHA256] {
			missing, total = append(missing, f), total+f.Size
		}
		known[f.SHA256] = true
	}
	if program == "" {
		return h, fmt.Errorf("job %s: no %s in its bundle", job.ID, agent.Program)
	}
	sent := int64(0)
	for _, f := range missing {
		if err := ctx.Err(); err != nil {
			return h, err
		}
		if progress != nil {
			progress(sent, total)
		}
		if err := agent.Put(p.Workdir, f); err != nil {
			return h, err
		}
		sent += f.Size
	}
	if progress != nil {
		progress(sent, total)
	}
	if err := ctx.Err(); err != nil {
		return h, err
	}
	data, err := json.Marshal(spot{p.Workdir})
	if err != nil {
		return h, err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return h, err
	}
	h = remote.Handle{Provider: Kind, Job: job.ID, Place: job.Place, Data: data}
	dir := agent.JobDir(p.Workdir, job.ID)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return h, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return h, err
	}
	err = cache.WriteFile(filepath.Join(dir, agent.JobName), text, 0o600)
	if err == nil {
		var out bytes.Buffer
		var cmd *exec.Cmd
		cmd, err = agent.Begin(func() *exec.Cmd {
			cmd := exec.CommandContext(ctx, program, "agent", "start", dir)
			cmd.Stdout, cmd.Stderr = &out, &out
			return cmd
		}, remote.Start)
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		} else if err != nil {
			err = fmt.Errorf("starting the agent: %w: %s", err, strings.TrimSpace(out.String()))
		}
	}
	if err != nil {
		return h, errors.Join(err, agent.Free(context.WithoutCancel(ctx), dir))
	}
	return h, nil
}

// dir is the folder of the handle's job.
func (p *Provider) dir(h remote.Handle) (string, error) {
	var s spot
	if err := json.Unmarshal(h.Data, &s); err != nil || h.Provider != Kind || !remote.ValidID(h.Job) || !filepath.IsAbs(s.Work) {
		return "", fmt.Errorf("%s: %q is no handle of this provider", p.name, h.Job)
	}
	return agent.JobDir(s.Work, h.Job), nil
}

// Wait follows the job's files.
func (p *Provider) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	dir, err := p.dir(h)
	if err != nil {
		return remote.Exit{}, err
	}
	w.State(remote.State{Phase: remote.Running})
	exit, err := agent.Tail(ctx, dir, from, struct{ io.Writer }{w})
	return exit, p.fail(err)
}

// Collect copies the log.
func (p *Provider) Collect(_ context.Context, h remote.Handle, dst string) error {
	dir, err := p.dir(h)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(dir, agent.LogName))
	if err == nil {
		err = os.WriteFile(filepath.Join(dst, agent.LogName), data, 0o600)
	}
	return p.fail(err)
}

// Release stops the agent and removes the job's folder.
func (p *Provider) Release(ctx context.Context, h remote.Handle) error {
	dir, err := p.dir(h)
	if err != nil {
		return err
	}
	return p.fail(agent.Free(ctx, dir))
}

// List gives the jobs below the work folder.
func (p *Provider) List(context.Context) ([]remote.Handle, error) {
	entries, err := os.ReadDir(agent.Jobs(p.Workdir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, p.fail(err)
	}
	data, err := json.Marshal(spot{p.Workdir})
	if err != nil {
		return nil, err
	}
	var all []remote.Handle
	for _, e := range entries {
		id := strings.TrimPrefix(e.Name(), agent.FreePrefix)
		if !e.IsDir() || !remote.ValidID(id) {
			continue
		}
		h := remote.Handle{Provider: Kind, Job: id, Place: remote.Place{GPU: -1}, Data: data}
		if job, err := agent.ReadJob(agent.JobDir(p.Workdir, e.Name())); err == nil {
			h.Place = job.Place
		}
		all = append(all, h)
	}
	return all, nil
}

// Close does nothing: there is no connection.
func (p *Provider) Close() error { return nil }
