package slurm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/follow"
	"fisub/remote/host"
	"fisub/remote/work"
)

// Source implements follow.Starter. The job's files are read through the login host. Slurm is queried rarely while the
// job runs, and again at its end.
func (p *Provider) Source(_ context.Context, h remote.Handle) (follow.Source, follow.Rules, error) {
	j, _, err := p.Open(h)
	rules := p.rules
	rules.Signed = h.Key != ""
	return &source{p: p, j: j}, rules, err
}

// doubtful reports whether Slurm may know better how the job ended: it signals both the agent and its program.
func doubtful(e remote.Exit) bool {
	return e.End == remote.Cancelled || e.End == remote.Exited && e.Code != 0
}

// A source is the follow.Source of a job.
type source struct {
	p     *Provider
	j     *work.FolderJob
	last  status
	ended bool // there is an exit.json
}

// Read implements follow.Source.
func (s *source) Read(ctx context.Context, from int64, w remote.Watcher) (follow.Part, error) {
	part, err := s.j.Written(ctx, from, w)
	if s.ended && part == follow.All && err == nil && from > 0 {
		var files map[string]int64
		files, err = host.Sizes(ctx, s.j.Host, s.j.Dir())
		if size, ok := files[agent.EventsName]; ok && size < from {
			err = &follow.FinalError{Err: fmt.Errorf("job %s: offset %d is after the end of the stream, %d", s.j.ID, from, size)}
		}
	}
	return part, err
}

// Exit implements follow.Source.
func (s *source) Exit(ctx context.Context) (*remote.Exit, error) {
	exit, err := s.j.Exit(ctx)
	s.ended = exit != nil
	return exit, err
}

// Status implements follow.Source.
func (s *source) Status(ctx context.Context) (is follow.Status, err error) {
	if s.last, err = s.p.jobStatus(ctx, s.j); err != nil {
		return is, err
	}
	if s.last.over() {
		end := ends[s.last.state]
		end.Text = s.last.text(s.j.Number)
		return follow.Status{Over: true, End: end}, nil
	}
	if hint := s.last.why().hint; hint != "" {
		is.Never = &remote.Exit{End: remote.Refused, Hint: hint,
			Text: fmt.Sprintf("job %s would not start: %s", s.j.Number, s.last.reason)}
	}
	at, of := 0, 0
	if s.last.phase() == remote.Queued && s.last.partition != "" {
		if out, err := s.p.slurm(ctx, "", queueArgs(s.j, s.last.partition)...); err == nil {
			at, of = position(out, s.j.Number)
		}
	}
	is.Stage = s.last.stage(at, of)
	return is, nil
}

// Lost implements follow.Source.
func (s *source) Lost(ctx context.Context) (exit remote.Exit, sure bool, err error) {
	// Listing the folder makes a network file system show the files of other hosts.
	files, err := host.Sizes(ctx, s.j.Host, s.j.Dir())
	if errors.Is(err, fs.ErrNotExist) {
		text := fmt.Sprintf("job %s: its folder is gone", s.j.Number)
		return remote.Exit{End: remote.Lost, Text: text}, true, nil
	} else if err != nil {
		return exit, false, err
	}
	output, err := s.j.LastLine(ctx, logName)
	_, started := files[agent.StateName]
	return s.last.lost(s.j.Number, s.j.Dir(), started, output), false, err
}
