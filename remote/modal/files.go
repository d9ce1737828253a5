package modal

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
)

// A fileSandbox copies files to and from the volume. It is opened on demand. Modal ends it when it is idle, so that it
// does not outlive its client for long.
type fileSandbox struct {
	p  *Provider
	mu sync.Mutex // one call at a time
	sb *sdk.Sandbox
}

const (
	idle        = 60 * time.Second // how long an unused one stays
	filesCPU    = 0.5              // cores
	filesMemory = 512              // MiB
)

// run runs c in the sandbox. A connection error closes the sandbox and ends all commands in it.
func (d *fileSandbox) run(ctx context.Context, doing string, c call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.locked(ctx, doing, c)
}

func (d *fileSandbox) locked(ctx context.Context, doing string, c call) error {
	err := d.start(ctx, c.reload)
	if err == nil {
		err = d.p.call(ctx, d.sb, c)
	}
	if err == nil {
		return nil
	}
	if errors.As(err, new(*failed)) {
		if text := err.Error(); strings.Contains(text, "No space left") || strings.Contains(text, "quota exceeded") {
			return d.p.deny("disk", "free space on Modal's volume "+d.p.config.Volume, "%s: %s", doing, text)
		}
		return fmt.Errorf("%s: %s: %w", d.p.name, doing, err)
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	return errors.Join(d.p.fail(ctx, doing, err), d.end(clean))
}

func (d *fileSandbox) start(ctx context.Context, reload bool) error {
	if d.sb != nil {
		code, err := d.sb.Poll(ctx, nil)
		if err == nil && code == nil && reload {
			err = d.sb.ReloadVolumes(ctx, nil)
		}
		if err == nil && code == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := d.end(ctx); err != nil {
			return err
		}
	}
	var err error
	d.sb, err = d.p.client.Sandboxes.Create(ctx, d.p.app, d.p.image, &sdk.SandboxCreateParams{
		CPU:            filesCPU,
		CPULimit:       filesCPU,
		MemoryMiB:      filesMemory,
		MemoryLimitMiB: filesMemory,
		Timeout:        callTime,
		IdleTimeout:    idle,
		Volumes:        map[string]*sdk.Volume{volume: d.p.store},
		BlockNetwork:   true,
		Regions:        d.p.config.Regions,
		Tags:           map[string]string{tagKind: "door"},
	})
	return err
}

func (d *fileSandbox) end(ctx context.Context) error {
	if d.sb == nil {
		return nil
	}
	sb := d.sb
	d.sb = nil
	defer sb.Detach()
	if _, err := sb.Terminate(ctx, nil); err != nil && !gone(err) {
		return d.p.fail(ctx, "ending sandbox "+sb.SandboxID, err)
	}
	return nil
}

// send uploads job.json and the files missing on the volume. Concurrent submissions wait for each other, so that none
// uploads files that another has just uploaded.
func (p *Provider) send(ctx context.Context, job *remote.Job, progress func(sent, total int64)) error {
	p.files.mu.Lock()
	defer p.files.mu.Unlock()
	const doing = "sending the bundle"
	byHash := map[string]remote.File{}
	for _, f := range job.Files {
		byHash[f.SHA256] = f
	}
	var lacking strings.Builder
	err := p.files.locked(ctx, doing, call{run: "lack", out: &lacking, reload: true, in: func(w io.Writer) error {
		for _, f := range byHash {
			if _, err := fmt.Fprintf(w, "%s %d\n", f.SHA256, f.Size); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return err
	}
	var files []remote.File
	var total int64
	for _, sum := range strings.Fields(lacking.String()) {
		f, ok := byHash[sum]
		if !ok {
			return fmt.Errorf("%s: %s: requested %.80q, which is not in the bundle", p.name, doing, sum)
		}
		delete(byHash, sum)
		files = append(files, f)
		total += f.Size
	}
	count := &remote.Progress{Tell: progress}
	count.Begin(total)
	var wrong strings.Builder
	bundle := func(w io.Writer) error { return pack(w, job, files, count) }
	err = p.files.locked(ctx, doing, call{run: "put", args: []string{job.ID, rand.Text()}, out: &wrong, in: bundle})
	if sums := strings.Fields(wrong.String()); len(sums) > 0 && err != nil {
		for _, f := range files {
			if f.SHA256 == sums[0] {
				return fmt.Errorf("%s: %s: %w: file %s is not %s", p.name, doing, agent.ErrHash, f.Name, f.SHA256)
			}
		}
	}
	return err
}

// pack writes a tar archive of job.json and of the files, each under its hash.
func pack(w io.Writer, job *remote.Job, files []remote.File, count *remote.Progress) error {
	data, err := json.Marshal(job)
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: agent.JobName, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	if _, err := t.Write(data); err != nil {
		return err
	}
	for _, f := range files {
		if err := packFile(t, f, count); err != nil {
			return err
		}
	}
	return t.Close()
}

func packFile(t *tar.Writer, f remote.File, count *remote.Progress) error {
	src, err := plain.Open(f.Path)
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer src.Close()
	if err := t.WriteHeader(&tar.Header{Name: f.SHA256, Mode: int64(f.Mode()), Size: f.Size}); err != nil {
		return err
	}
	n, err := io.Copy(io.MultiWriter(t, count), &localReader{src})
	if err == nil && n != f.Size {
		err = &remote.LocalError{Err: fmt.Errorf("file %s has %d bytes, not %d", f.Name, n, f.Size)}
	}
	if errors.Is(err, tar.ErrWriteTooLong) {
		err = &remote.LocalError{Err: fmt.Errorf("file %s has more than %d bytes", f.Name, f.Size)}
	}
	return err
}

type localReader struct{ r io.Reader }

func (l *localReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	return n, remote.Local(err)
}
