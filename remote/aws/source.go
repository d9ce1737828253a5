package aws

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/aws/mailbox"
	"fisub/remote/follow"
)

// A source is the follow.Source of a job: its folder of the bucket, and Batch. It does not trust the host's objects.
type source struct {
	p      *Provider
	a      *account
	d      *data
	b      *bucket
	folder string // ends with "out/"
	seal   remote.Seal

	after   string // the last key that is completely read
	started bool   // the host has written something
	ended   bool   // it has written its exit, after all the rest
	last    follow.Status
	garbled int // consecutive unreadable answers of Batch
}

// fault rewords an error, and marks those that a repetition does not cure.
func (s *source) fault(ctx context.Context, host string, err error) error {
	if err = s.p.denied(ctx, host, err); err != nil && !passing(err) {
		return &follow.FinalError{Err: err}
	}
	return err
}

// maxGarbled is the number of consecutive unreadable answers of Batch that end the Wait for a job that has not started.
const maxGarbled = 5

// Status implements follow.Source.
func (s *source) Status(ctx context.Context) (is follow.Status, err error) {
	if is, err = s.a.jobStatus(ctx, s.d); errors.As(err, new(*smithy.DeserializationError)) {
		s.garbled++
	} else {
		s.garbled = 0
	}
	switch {
	case s.garbled >= maxGarbled && !s.started:
		return is, &follow.FinalError{Err: s.p.denied(ctx, "unreadable reply from Batch", err)}
	case err != nil:
		return is, s.fault(ctx, "", err)
	}
	if last := s.d.Until.Add(maxSkew); !is.Over && time.Now().After(last) {
		return follow.Status{Over: true, End: remote.Exit{End: remote.Lost, Text: "its links expired at " +
			last.UTC().Format(time.RFC3339) + ", and it can store no results; Batch: " + string(is.Stage.Phase),
			Hint: "raise remote." + s.p.name + ".queue_limit if it waited for a machine"}}, nil
	}
	s.last = is
	if is.Stage.Phase == remote.Running && !s.started {
		is.Stage.Phase = remote.Starting
	}
	if is.End.End == remote.Lost {
		is.End = remote.Exit{} // Lost adds the last message of the host
	}
	return is, nil
}

// Read implements follow.Source.
func (s *source) Read(ctx context.Context, from int64, w remote.Watcher) (follow.Part, error) {
	in := &s3.ListObjectsV2Input{Bucket: &s.b.name, Prefix: &s.folder}
	if s.after != "" {
		in.StartAfter = &s.after
	}
	pages := s3.NewListObjectsV2Paginator(s.b.s3, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return follow.Absent, s.fault(ctx, "bucket "+s.b.name, err)
		}
		for _, o := range page.Contents {
			name := strings.TrimPrefix(aws.ToString(o.Key), s.folder)
			s.started, s.ended = s.started || name == mailbox.Started, s.ended || name == mailbox.Exit
			offset, ok := mailbox.EventOffset(name)
			if !ok {
				continue
			}
			if offset+aws.ToInt64(o.Size) > from {
				n, err := s.piece(ctx, *o.Key, offset, from, w)
				if from += n; err != nil {
					return follow.Absent, err
				}
			}
			s.after = *o.Key
		}
	}
	if s.started {
		w.State(remote.Stage{Phase: remote.Running})
	}
	switch {
	case s.ended:
		return follow.Whole, nil
	case s.started || s.after != "":
		return follow.All, nil
	}
	return follow.Absent, nil
}

// piece writes the part from byte from of the piece of the stream that begins at offset.
func (s *source) piece(ctx context.Context, key string, offset, from int64, w remote.Watcher) (int64, error) {
	if offset > from {
		return 0, &follow.FinalError{Err: fmt.Errorf("bytes %d to %d of the event stream are missing in %s", from, offset-1,
			s.folder)}
	}
	content, err := s.b.get(ctx, key, mailbox.MaxPiece)
	if err != nil {
		return 0, s.fault(ctx, "bucket "+s.b.name, err)
	}
	n, err := w.Write(content[min(from-offset, int64(len(content))):])
	return int64(n), err
}

// Exit implements follow.Source. The host writes the exit after all the rest, so it is there once a Read has seen it.
func (s *source) Exit(ctx context.Context) (*remote.Exit, error) {
	if !s.ended {
		return nil, nil
	}
	raw, err := s.b.get(ctx, s.folder+mailbox.Exit, 64<<10)
	if err != nil {
		return nil, s.fault(ctx, "bucket "+s.b.name, err)
	}
	exit := agent.ParseExit(raw, s.seal)
	return &exit, nil
}

// Lost implements follow.Source.
func (s *source) Lost(ctx context.Context) (exit remote.Exit, sure bool, err error) {
	if exit = s.last.End; !s.last.Over {
		exit = remote.Exit{End: remote.Lost, Text: "its exit was deleted"}
	}
	if lines := s.p.words(ctx, s.a, s.d); len(lines) > 0 {
		exit.Text += "; last message: " + lines[len(lines)-1]
	}
	return exit, true, nil
}
