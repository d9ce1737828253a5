package modal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
)

const (
	// logCap and exitCap are the most that is read of a log and of exit.json, in bytes.
	logCap  = 16 << 20
	exitCap = 1 << 20
	// again and againMax are the first and the longest pause after an error.
	again    = 200 * time.Millisecond
	againMax = 10 * time.Second
	// away is how long Modal may be unreachable, beyond its sandbox's longest life, before a job counts as lost.
	away = 10 * time.Minute
)

// A result is how a sandbox ended.
type result struct {
	status pb.GenericResult_GenericStatus // UNSPECIFIED if Modal does not know the sandbox
	code   int
	text   string // Modal's own words
}

// ended returns the result of a sandbox, nil if it has not ended.
func (p *Provider) ended(ctx context.Context, sb *sdk.Sandbox) (*result, error) {
	watched, w := spy(ctx)
	code, err := sb.Poll(watched, nil)
	switch {
	case gone(err):
		return &result{text: words(err)}, nil
	case err != nil:
		return nil, p.fail(ctx, "asking for sandbox "+sb.SandboxID, err)
	case code == nil:
		return nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	text := redact(strings.TrimSpace(w.result.GetException()))
	return &result{status: w.result.GetStatus(), code: *code, text: text}, nil
}

// errQueued means that Modal has found no machine for a sandbox yet.
var errQueued = errors.New("still queued")

// exec starts a command in a sandbox, and waits for a machine until the given time. It ends the command after limit; 0
// means no limit.
func (p *Provider) exec(
	ctx context.Context, sb *sdk.Sandbox, command []string, limit time.Duration, until time.Time,
) (*sdk.ContainerProcess, error) {
	starting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	watched, w := spy(starting)
	cp, err := sb.Exec(watched, command, &sdk.SandboxExecParams{Timeout: limit})
	var late sdk.TimeoutError // the SDK waits for five minutes
	if err != nil && ctx.Err() == nil && w.queued() && (starting.Err() != nil || errors.As(err, &late)) {
		return nil, errQueued
	}
	return cp, err
}

// A follower is the state of one Wait.
type follower struct {
	remote.Feed
	p     *Provider
	h     remote.Handle
	d     handle
	began bool // part of the stream has arrived
}

func (f *follower) Write(b []byte) (int, error) {
	if len(b) > 0 {
		f.began = true
		f.Tell(remote.Running, "")
	}
	return f.Feed.Write(b)
}

// Wait follows the job in its sandbox. Once that is gone, it reads the rest from the volume.
func (p *Provider) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	d, err := p.open(h)
	if err != nil {
		return remote.Exit{}, err
	}
	f := &follower{Feed: remote.Feed{To: w, At: from}, p: p, h: h, d: d}
	if d.Created.IsZero() {
		f.d.Created = time.Now()
	}
	sb, err := p.client.Sandboxes.FromID(ctx, d.Sandbox, nil)
	if err != nil {
		return remote.Exit{}, p.fail(ctx, "finding sandbox "+d.Sandbox, err)
	}
	defer sb.Detach()
	pause, answered, failures := again, time.Now(), 0
	for {
		at := f.At
		exit, err := f.attempt(ctx, sb)
		switch {
		case err == nil && exit.End != "":
			return exit, nil
		case ctx.Err() != nil:
			return remote.Exit{}, fmt.Errorf("%s: waiting for %s: %w", p.name, h.Job, ctx.Err())
		case f.Err != nil:
			return remote.Exit{}, f.Err
		case lasting(err):
			return remote.Exit{}, err
		}
		if err == nil || f.At > at {
			pause, answered, failures = again, time.Now(), 0
		}
		if err != nil {
			if failures++; failures > 1 || f.began {
				f.Tell(remote.Away, err.Error())
			}
			if time.Since(answered) > longest+away {
				return remote.Exit{End: remote.Lost, Text: err.Error(),
					Hint: "modal.com shows whether sandbox " + d.Sandbox + " is still there"}, nil
			}
		}
		_ = remote.Sleep(ctx, pause) // the loop checks ctx
		pause = min(2*pause, againMax)
	}
}

// attempt follows the job once. It returns no Exit if the job has not ended.
func (f *follower) attempt(ctx context.Context, sb *sdk.Sandbox) (remote.Exit, error) {
	end := &result{}
	if f.d.Sandbox != "" {
		var err error
		if end, err = f.p.ended(ctx, sb); err != nil {
			return remote.Exit{}, err
		}
	}
	if end != nil {
		return f.finish(ctx, *end)
	}
	data := plain.Buffer{Limit: exitCap}
	err := f.follow(ctx, sb)
	if err == nil {
		err = f.p.call(ctx, sb, call{run: "read_exit", args: []string{f.h.Job}, out: &data})
	}
	switch {
	case err == nil:
		return f.exit(data.Bytes()), nil
	case errors.Is(err, errQueued):
		if time.Now().Before(f.d.Created.Add(f.p.config.Queue)) {
			return remote.Exit{}, nil
		}
		return f.giveUp(ctx, sb)
	case errors.As(err, new(*failed)), gone(err):
		return remote.Exit{}, nil // once the sandbox has ended, its result gives the reason
	}
	return remote.Exit{}, f.p.fail(ctx, "following the job", err)
}

// follow copies the event stream from the sandbox until the agent has ended.
func (f *follower) follow(ctx context.Context, sb *sdk.Sandbox) error {
	if f.Last.Phase == "" {
		f.Tell(remote.Queued, "")
	}
	until := f.d.Created.Add(f.p.config.Queue)
	if soon := time.Now().Add(3 * time.Second); until.Before(soon) {
		until = soon
	}
	cp, err := f.p.exec(ctx, sb, script("follow", f.h.Job, fmt.Sprint(f.At)), 0, until)
	if err != nil {
		return err
	}
	if f.began {
		f.Tell(remote.Running, "")
	} else {
		f.Tell(remote.Starting, "")
	}
	defer closing(ctx, cp)()
	return drain(ctx, cp, f)
}

// giveUp ends a sandbox for which Modal found no machine in time.
func (f *follower) giveUp(ctx context.Context, sb *sdk.Sandbox) (remote.Exit, error) {
	if _, err := sb.Terminate(ctx, nil); err != nil && !gone(err) {
		return remote.Exit{}, f.p.fail(ctx, "ending sandbox "+sb.SandboxID, err)
	}
	return remote.Exit{
		End:  remote.Refused,
		Text: fmt.Sprintf("Modal found no machine with the GPU within %v", f.p.config.Queue),
		Hint: fmt.Sprintf("try again later, set other regions, or raise remote.%s.queue", f.p.name),
	}, nil
}

// finish reads the results of a job from the volume after its sandbox has ended.
func (f *follower) finish(ctx context.Context, end result) (remote.Exit, error) {
	if err := f.p.prepare(ctx); err != nil {
		return remote.Exit{}, err
	}
	read := func(c call) error {
		c.args = append([]string{f.h.Job}, c.args...)
		return f.p.files.run(ctx, "reading the job's files", c)
	}
	if err := read(call{run: "kept_events", args: []string{fmt.Sprint(f.At + 1)}, out: f, reload: true}); err != nil {
		return remote.Exit{}, err
	}
	data, output := plain.Buffer{Limit: exitCap}, plain.Buffer{Limit: 4096}
	err := read(call{run: "kept_exit", out: &data})
	if err == nil && len(data.Bytes()) > 0 {
		return f.exit(data.Bytes()), nil
	}
	if err == nil {
		err = read(call{run: "started", out: &output})
	}
	return end.exit(strings.TrimSpace(output.String())), err
}

// exit returns the exit of a job that left no exit.json; output is the output of starting its agent.
func (r result) exit(output string) remote.Exit {
	preempted := strings.Contains(strings.ToLower(r.text), "preempt")
	switch {
	case r.status == pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		return remote.Exit{End: remote.Limited, Text: cmp.Or(r.text, "Modal ended the sandbox at its time limit")}
	case r.status == pb.GenericResult_GENERIC_STATUS_TERMINATED && !preempted:
		return remote.Exit{End: remote.Cancelled, Text: cmp.Or(r.text, "the sandbox was ended")}
	}
	what := "the sandbox is unknown to Modal"
	if r.status != pb.GenericResult_GENERIC_STATUS_UNSPECIFIED {
		what = "the sandbox ended: " + strings.ToLower(strings.TrimPrefix(r.status.String(), "GENERIC_STATUS_"))
	}
	if lines := strings.Split(output, "\n"); output != "" {
		what += ": " + redact(lines[len(lines)-1])
	}
	return remote.Exit{End: remote.Lost, Text: cmp.Or(r.text, what),
		Hint: "another sandbox can run its unfinished workloads"}
}

func (f *follower) exit(data []byte) remote.Exit {
	e := agent.ParseExit(data, remote.Seal{Key: f.h.Key, Job: f.h.Job})
	e.Text = redact(e.Text)
	return e
}
