package modal

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
)

// newClient reads Modal's profile. The SDK's own log would go to stderr: what matters of it comes as errors.
func newClient(environment string) (*sdk.Client, error) {
	return sdk.NewClientWithOptions(&sdk.ClientParams{
		Environment:            environment,
		Logger:                 slog.New(slog.DiscardHandler),
		GRPCUnaryInterceptors:  []grpc.UnaryClientInterceptor{watchUnary},
		GRPCStreamInterceptors: []grpc.StreamClientInterceptor{watchStream},
	})
}

// A watch sees, of the calls under one context, what the SDK has no word for.
type watch struct {
	mu        sync.Mutex
	result    *pb.GenericResult // how the sandbox ended
	asked     bool              // Modal has said whether the sandbox has a machine
	scheduled bool              // it has
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

// accepting makes Sandboxes.Create return as soon as Modal has queued the sandbox. By itself it waits up to 21 minutes
// for a machine, and ends the sandbox where the client goes away meanwhile. The sandbox that it returns is good for its
// id only.
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

// buildLog gives the last lines of the build log; "" where nothing was built.
func (w *watch) buildLog() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.Split(strings.TrimRight(strings.Join(w.build, ""), "\n"), "\n")
	return redact(strings.Join(lines[max(0, len(lines)-buildLines):], "\n"))
}

// queued tells whether the last thing that Modal said of the sandbox was that it has no machine.
func (w *watch) queued() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked && !w.scheduled
}

// volume is where Modal's volume is in sandboxes, as sandbox.sh has it too.
const volume = "/fisub/volume"

//go:embed sandbox.sh
var functions string

// script is the command that runs a function of sandbox.sh.
func script(function string, args ...string) []string {
	return append([]string{"sh", "-c", "keep_days=" + agent.KeepDays + "\n" + functions, "fisub", function}, args...)
}

// A call is one function of sandbox.sh in a sandbox.
type call struct {
	run    string
	args   []string
	in     func(io.Writer) error // writes what it reads; nil for nothing
	out    io.Writer             // nil for nowhere
	reload bool                  // see what other sandboxes have put on the volume since; door only
	soon   bool                  // do not wait for the sandbox to have a machine
}

// callTime bounds a call. That of an upload is as long as the door's life.
const callTime = time.Hour

// A failed is a script that ended with another status than 0.
type failed struct {
	code int
	text string // end of its stderr
}

func (f *failed) Error() string {
	if f.text == "" {
		return fmt.Sprintf("exit status %d", f.code)
	}
	return redact(f.text)
}

// call runs c in sb to its end.
func (p *Provider) call(ctx context.Context, sb *sdk.Sandbox, c call) error {
	until := time.Now().Add(bound)
	if c.soon {
		until = time.Now().Add(3 * time.Second)
	}
	cp, err := p.exec(ctx, sb, script(c.run, c.args...), callTime, until)
	if err != nil {
		return err
	}
	defer closing(ctx, cp)()
	var sending error
	if c.in != nil {
		w := bufio.NewWriterSize(ctxWriter{ctx, cp.Stdin}, 2<<20)
		if sending = c.in(w); sending == nil {
			sending = w.Flush()
		}
		if ctx.Err() != nil || errors.As(sending, new(*remote.LocalError)) {
			return errors.Join(sending, ctx.Err()) // its stdin stays open: it never takes half for the whole
		}
		if err := cp.Stdin.Close(); sending == nil {
			sending = err
		}
		if sending != nil && code(sending) != codes.FailedPrecondition { // which says that it has ended, and its stderr why
			return sending
		}
	}
	out := c.out
	if out == nil {
		out = io.Discard
	}
	return cmp.Or(drain(ctx, cp, out), sending)
}

// closing closes what cp prints when ctx ends, or when the function that it returns is called.
func closing(ctx context.Context, cp *sdk.ContainerProcess) func() {
	end := func() { cp.Stdout.Close(); cp.Stderr.Close() }
	stop := context.AfterFunc(ctx, end)
	return func() { stop(); end() }
}

// drain copies what cp prints to out, to its end. Its error is a *failed where that is another status than 0.
func drain(ctx context.Context, cp *sdk.ContainerProcess, out io.Writer) error {
	if _, err := io.Copy(out, cp.Stdout); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	said := plain.Buffer{Limit: 4096}
	if _, err := io.Copy(&said, cp.Stderr); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	status, err := cp.Wait(soon, nil)
	if err == nil && status != 0 {
		err = &failed{status, strings.TrimSpace(said.String())}
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
