package modal

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/host"
)

// newClient reads Modal's profile. It discards the SDK's log, which would go to stderr: problems also come as errors.
func newClient(environment string) (*sdk.Client, error) {
	return sdk.NewClientWithOptions(&sdk.ClientParams{
		Environment:            environment,
		Logger:                 slog.New(slog.DiscardHandler),
		GRPCUnaryInterceptors:  []grpc.UnaryClientInterceptor{watchUnary},
		GRPCStreamInterceptors: []grpc.StreamClientInterceptor{watchStream},
	})
}

// tokenKey matches a line of Modal's file that sets a token.
var tokenKey = regexp.MustCompile(`(?m)^\s*(token_id|oauth_refresh_token)\s*=\s*["'][^"']`)

// Configured reports whether the environment or Modal's file contains a token. It does not ask Modal.
func Configured() bool {
	if os.Getenv("MODAL_TOKEN_ID") != "" && os.Getenv("MODAL_TOKEN_SECRET") != "" {
		return true
	}
	path := os.Getenv("MODAL_CONFIG_PATH")
	if home, err := os.UserHomeDir(); path == "" && err == nil {
		path = filepath.Join(home, ".modal.toml")
	}
	text, err := plain.ReadFile(path, 1<<20)
	return err == nil && tokenKey.Match(text)
}

// A watch records details of the calls under one context that the SDK does not return.
type watch struct {
	mu        sync.Mutex
	result    *pb.GenericResult // how the sandbox ended
	asked     bool              // Modal has reported whether the sandbox has a machine
	scheduled bool              // whether the sandbox has a machine
	build     []string          // the end of an image's build log
}

type (
	watchKey  struct{}
	acceptKey struct{}
)

func spy(ctx context.Context) (context.Context, *watch) {
	w := &watch{}
	return context.WithValue(ctx, watchKey{}, w), w
}

// accepting makes Sandboxes.Create return once Modal has queued the sandbox. By default it waits up to 21 minutes for a
// machine, and ends the sandbox if the client disappears. Only the id of the returned sandbox is valid.
func accepting(ctx context.Context) context.Context { return context.WithValue(ctx, acceptKey{}, true) }

const buildLines = 20

func watchUnary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if r, ok := reply.(*pb.SandboxGetTaskIdResponse); ok && ctx.Value(acceptKey{}) != nil {
		r.SetTaskId("ta-accepted")
		return nil
	}
	err := call(ctx, method, req, reply, cc, opts...)
	w, ok := ctx.Value(watchKey{}).(*watch)
	if !ok || err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r := reply.(type) {
	case *pb.SandboxWaitResponse:
		w.result = r.GetResult()
	case *pb.SandboxGetTaskIdResponse:
		w.asked, w.scheduled = true, r.GetTaskId() != ""
	}
	return nil
}

func watchStream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	w, ok := ctx.Value(watchKey{}).(*watch)
	if !ok || err != nil {
		return s, err
	}
	return &watchedStream{s, w}, nil
}

type watchedStream struct {
	grpc.ClientStream
	w *watch
}

func (s *watchedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.ImageJoinStreamingResponse); ok && err == nil {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		for _, l := range r.GetTaskLogs() {
			s.w.build = append(s.w.build, l.GetData())
		}
		s.w.build = s.w.build[max(0, len(s.w.build)-1000):]
	}
	return err
}

// buildLog returns the last lines of the build log, "" if no image was built.
func (w *watch) buildLog() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.Split(strings.TrimRight(strings.Join(w.build, ""), "\n"), "\n")
	return redact(strings.Join(lines[max(0, len(lines)-buildLines):], "\n"))
}

// queued reports whether, by Modal's last answer, the sandbox has no machine.
func (w *watch) queued() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked && !w.scheduled
}

// volume is the volume's mount point in sandboxes. sandbox.sh has it too.
const volume = "/fisub/volume"

//go:embed sandbox.sh
var functions string

// script returns the command that runs a function of sandbox.sh.
func script(function string, args ...string) []string {
	return append([]string{"sh", "-c", functions, "fisub", function}, args...)
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

// callTime is the time limit of a command, including an upload, and the lifetime of the sandbox for files.
const callTime = time.Hour

// run runs a command in a sandbox to its end. An error of in that is one of this machine leaves the command's input
// open, or a partial one would look complete.
func (p *Provider) run(ctx context.Context, sb *sdk.Sandbox, command []string, in io.Reader, out io.Writer) error {
	cp, err := p.exec(ctx, sb, command, callTime, time.Now().Add(bound))
	if err != nil {
		return err
	}
	defer closing(ctx, cp)()
	var sending error
	if in != nil {
		w := bufio.NewWriterSize(ctxWriter{ctx, cp.Stdin}, 2<<20)
		if _, sending = io.Copy(w, in); sending == nil {
			sending = w.Flush()
		}
		if ctx.Err() != nil || errors.As(sending, new(*remote.LocalError)) {
			return errors.Join(sending, ctx.Err())
		}
	}
	if err := cp.Stdin.Close(); sending == nil && in != nil {
		sending = err
	}
	if sending != nil && code(sending) != codes.FailedPrecondition { // FailedPrecondition: it has ended, stderr says why
		return sending
	}
	return cmp.Or(drain(ctx, cp, cmp.Or(out, io.Discard)), sending)
}

// closing closes the output of cp when ctx ends, or when the returned function is called.
func closing(ctx context.Context, cp *sdk.ContainerProcess) func() {
	end := func() { cp.Stdout.Close(); cp.Stderr.Close() }
	stop := context.AfterFunc(ctx, end)
	return func() { stop(); end() }
}

// drain copies the stdout of cp to out, to its end. It returns a *host.ExitError for an exit status other than 0.
func drain(ctx context.Context, cp *sdk.ContainerProcess, out io.Writer) error {
	if _, err := io.Copy(out, cp.Stdout); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	output := plain.Buffer{Limit: 64 << 10}
	if _, err := io.Copy(&output, cp.Stderr); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	status, err := cp.Wait(soon, nil)
	if err == nil && status != 0 {
		err = &host.ExitError{Status: status, Stderr: redact(output.String())}
	}
	return err
}

type ctxWriter struct {
	ctx context.Context
	w   io.Writer
}

func (w ctxWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}
