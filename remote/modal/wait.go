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

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/follow"
	"fisub/remote/host"
	"fisub/remote/work"
)

// A result is how a sandbox ended.
type result struct {
	status pb.GenericResult_GenericStatus // UNSPECIFIED if Modal does not know the sandbox
	text   string                         // Modal's own words
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
	return &result{status: w.result.GetStatus(), text: text}, nil
}

// Source implements follow.Starter.
func (p *Provider) Source(ctx context.Context, h remote.Handle) (follow.Source, follow.Rules, error) {
	d, err := p.open(h)
	if err != nil {
		return nil, follow.Rules{}, err
	}
	s := &source{FolderJob: p.at(h.Job, h.Key), p: p, until: time.Now().Add(p.config.Queue)}
	if !d.Created.IsZero() {
		s.until = d.Created.Add(p.config.Queue)
	}
	if d.Sandbox == "" {
		s.end = &result{}
	} else if s.sb, err = p.client.Sandboxes.FromID(ctx, d.Sandbox, nil); err != nil {
		return nil, follow.Rules{}, p.fail(ctx, "finding sandbox "+d.Sandbox, err)
	}
	return s, follow.Rules{Tail: true, Read: 200 * time.Millisecond, Slow: 10 * time.Second, Away: follow.Forever}, nil
}

// Close closes the connection to the sandbox.
func (s *source) Close() error {
	if s.sb == nil {
		return nil
	}
	return s.sb.Detach()
}

// A source is the follow.Source of a job: its sandbox, then its folder on the volume.
type source struct {
	*work.FolderJob
	p     *Provider
	sb    *sdk.Sandbox
	until time.Time // when Modal must have found a machine
	found bool      // Modal has found one
	first *int64    // where the Wait began; nil before the first Read
	end   *result   // of the sandbox; nil as long as it is there
}

// Status implements follow.Source.
func (s *source) Status(ctx context.Context) (is follow.Status, err error) {
	if s.end == nil {
		if s.end, err = s.p.ended(ctx, s.sb); err != nil {
			return is, fault(err)
		}
	}
	switch {
	case s.end != nil:
		is.Over, is.End = true, s.end.cause()
	case !s.found:
		is.Stage.Phase = remote.Queued
		if time.Now().After(s.until) {
			is.Never = &remote.Exit{End: remote.Refused,
				Text: fmt.Sprintf("Modal found no machine with the GPU within %v", s.p.config.Queue),
				Hint: fmt.Sprintf("try again later, set other regions, or raise remote.%s.queue", s.p.name)}
		}
	}
	return is, nil
}

// Read implements follow.Source.
func (s *source) Read(ctx context.Context, from int64, w remote.Watcher) (follow.Part, error) {
	if s.end != nil {
		part, err := s.Written(ctx, from, w)
		return part, fault(err)
	}
	until := time.Now().Add(soon)
	if until.Before(s.until) {
		until = s.until
	}
	cp, err := s.p.exec(ctx, s.sb, script("follow", s.ID, fmt.Sprint(from)), 0, until)
	if err == nil {
		if s.found = true; s.first == nil {
			s.first = &from
		}
		if from == *s.first {
			w.State(remote.Stage{Phase: remote.Starting})
		} else {
			w.State(remote.Stage{Phase: remote.Running})
		}
		defer closing(ctx, cp)()
		err = drain(ctx, cp, w)
	}
	switch {
	case err == nil:
		return follow.Whole, nil
	case errors.Is(err, errQueued), errors.As(err, new(*host.ExitError)), gone(err):
		return follow.Absent, nil // once the sandbox has ended, its result gives the reason
	}
	return follow.Absent, fault(s.p.fail(ctx, "following the job", err))
}

// Exit implements follow.Source.
func (s *source) Exit(ctx context.Context) (*remote.Exit, error) {
	exit, err := s.FolderJob.Exit(ctx)
	if exit != nil {
		exit.Text = redact(exit.Text)
	}
	return exit, fault(err)
}

// Lost implements follow.Source.
func (s *source) Lost(ctx context.Context) (exit remote.Exit, sure bool, err error) {
	output, err := s.LastLine(ctx, startLog)
	return s.end.lost(redact(output)), true, fault(err)
}

// fault marks the errors that a repetition does not cure.
func fault(err error) error {
	if code := remote.CodeOf(err); code != "" && code != "unreachable" && code != "quota" {
		return &follow.FinalError{Err: err}
	}
	return err
}

// cause returns the end of a job as far as its sandbox's shows it.
func (r *result) cause() remote.Exit {
	switch {
	case r.status == pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		return remote.Exit{End: remote.Limited, Text: cmp.Or(r.text, "Modal ended the sandbox at its time limit")}
	case r.status == pb.GenericResult_GENERIC_STATUS_TERMINATED && !strings.Contains(strings.ToLower(r.text), "preempt"):
		return remote.Exit{End: remote.Cancelled, Text: cmp.Or(r.text, "the sandbox was ended")}
	}
	return remote.Exit{}
}

// lost returns the exit of a job that left none; output is the last one of starting its agent.
func (r *result) lost(output string) remote.Exit {
	what := "the agent ended without " + agent.ExitName
	switch {
	case r == nil:
		r = &result{}
	case r.status == pb.GenericResult_GENERIC_STATUS_UNSPECIFIED:
		what = "the sandbox is unknown to Modal"
	default:
		what = "the sandbox ended: " + strings.ToLower(strings.TrimPrefix(r.status.String(), "GENERIC_STATUS_"))
	}
	if output != "" {
		what += ": " + output
	}
	return remote.Exit{End: remote.Lost, Text: cmp.Or(r.text, what),
		Hint: "another sandbox can run its unfinished workloads"}
}
