package modal

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"fisub/remote"
	"fisub/remote/host"
)

// A fileHost is a small sandbox without a GPU, which has the volume. It is started on demand. Modal ends it when it is
// idle, so that it does not outlive its client for long. Each command sees what other sandboxes have written before;
// its own changes are on the volume when it ends.
type fileHost struct {
	p *Provider

	mu  sync.Mutex
	now *fileSandbox // nil if there is none
}

type fileSandbox struct {
	*sdk.Sandbox
	running int // number of commands
}

const (
	idle        = 60 * time.Second // how long an unused one stays
	filesCPU    = 0.5              // cores
	filesMemory = 512              // MiB
)

// Run implements host.Host. An error of the connection ends the sandbox, and with it all commands in it.
func (h *fileHost) Run(ctx context.Context, argv []string, in io.Reader, out io.Writer) error {
	sb, err := h.enter(ctx)
	if err != nil {
		return h.p.lost(ctx, err)
	}
	to := &kept{w: out}
	if out == nil {
		to.w = io.Discard
	}
	err = h.p.run(ctx, sb.Sandbox, append(script("saved"), argv...), in, to)
	failed, exited := errors.AsType[*host.ExitError](err)
	h.mu.Lock()
	defer h.mu.Unlock()
	sb.running--
	switch {
	case exited:
		failed.Name = argv[0]
		return failed
	case err == nil, errors.As(err, new(*remote.LocalError)):
		return err
	case to.err != nil:
		return to.err
	}
	if h.now == sb {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
		defer cancel()
		err = errors.Join(err, h.end(clean))
	}
	return h.p.lost(ctx, err)
}

// A kept keeps the error of w.
type kept struct {
	w   io.Writer
	err error
}

func (k *kept) Write(p []byte) (n int, err error) {
	n, k.err = k.w.Write(p)
	return n, k.err
}

// lost returns the error of a host.Host for an error of Modal.
func (p *Provider) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = p.fail(ctx, "reaching volume "+p.config.Volume, err)
	if errors.As(err, new(*remote.Denied)) {
		return err
	}
	return &host.LostError{Text: words(err), Hint: "check the network, and status.modal.com"}
}

// enter returns the running sandbox, or a new one. If no command runs in it, it shows the changes of other sandboxes.
func (h *fileHost) enter(ctx context.Context) (*fileSandbox, error) {
	if err := h.p.prepare(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if sb := h.now; sb != nil {
		code, err := sb.Poll(ctx, nil)
		if err == nil && code == nil && sb.running == 0 {
			err = sb.ReloadVolumes(ctx, nil)
		}
		switch {
		case err == nil && code == nil:
			sb.running++
			return sb, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		if err := h.end(ctx); err != nil {
			return nil, err
		}
	}
	sb, err := h.p.client.Sandboxes.Create(ctx, h.p.app, h.p.image, &sdk.SandboxCreateParams{
		CPU:            filesCPU,
		CPULimit:       filesCPU,
		MemoryMiB:      filesMemory,
		MemoryLimitMiB: filesMemory,
		Timeout:        callTime,
		IdleTimeout:    idle,
		Volumes:        map[string]*sdk.Volume{volume: h.p.store},
		BlockNetwork:   true,
		Regions:        h.p.config.Regions,
		Tags:           map[string]string{tagKind: "door"},
	})
	if err != nil {
		return nil, err
	}
	h.now = &fileSandbox{sb, 1}
	return h.now, nil
}

// end ends the sandbox, if there is one.
func (h *fileHost) end(ctx context.Context) error {
	sb := h.now
	if sb == nil {
		return nil
	}
	h.now = nil
	defer sb.Detach()
	if _, err := sb.Terminate(ctx, nil); err != nil && !gone(err) {
		return h.p.fail(ctx, "ending sandbox "+sb.SandboxID, err)
	}
	return nil
}

// Close ends the sandbox.
func (h *fileHost) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end(ctx)
}
