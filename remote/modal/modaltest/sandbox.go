package modaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mark is the environment variable that identifies a sandbox's processes.
const mark = "FISUB_MODALTEST_SANDBOX="

// A box is a sandbox. Server.mu guards its fields except mounts, which lives guards.
type box struct {
	s       *Server
	id      string
	task    string
	app     string
	def     *pb.Sandbox
	tags    map[string]string
	created float64
	dir     string

	started bool
	result  *pb.GenericResult
	ready   chan struct{} // closed when commands can run
	ended   chan struct{}
	open    int // number of running commands
	used    time.Time
	ctx     context.Context // ends with the sandbox
	cancel  context.CancelFunc

	lives  sync.Mutex // guards mounts; held while the volumes are copied
	mounts []*mount
}

// A mount is a sandbox's copy of a volume. base describes the copy when it was last in sync with the volume.
type mount struct {
	dir    string
	volume string
	base   map[string]stamp
}

type stamp struct {
	size  int64
	mtime time.Time
	dir   bool
}

func (s *Server) create(app string, def *pb.Sandbox, tags []*pb.SandboxTag, v2 bool) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gpu := def.GetResources().GetGpuConfig().GetGpuType()
	if gpu != "" && gpu != "B200" && gpu != "H100!" {
		return nil, status.Errorf(codes.InvalidArgument, "Invalid GPU type: %s", gpu)
	}
	n := len(s.boxes)
	b := &box{s: s, app: app, def: def, tags: map[string]string{}, created: float64(n + 1), ready: make(chan struct{}),
		ended: make(chan struct{}), used: time.Now()}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.id, b.task = fmt.Sprintf("sb-%022d", n), fmt.Sprintf("ta-%d", n) // the form of the id shows the API version
	if v2 {
		b.id = fmt.Sprintf("sb-v2-%d", n)
	}
	for _, t := range tags {
		b.tags[t.GetTagName()] = t.GetTagValue()
	}
	b.dir = s.Dir(b.id)
	for _, m := range def.GetVolumeMounts() {
		from := s.volumes[m.GetVolumeId()]
		if from == "" {
			return nil, status.Errorf(codes.NotFound, "no volume %s", m.GetVolumeId())
		}
		b.mounts = append(b.mounts, &mount{dir: filepath.Join(b.dir, m.GetMountPath()), volume: from})
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "tmp"), 0o755); err != nil {
		return nil, err
	}
	s.boxes = append(s.boxes, b)
	go b.start()
	return b, nil
}

// start starts the sandbox's command if a machine is free.
func (b *box) start() {
	b.s.mu.Lock()
	if b.started || b.result != nil || b.s.full && b.def.GetResources().GetGpuConfig().GetGpuType() != "" {
		b.s.mu.Unlock()
		return
	}
	b.started = true
	b.s.mu.Unlock()
	if err := errors.Join(b.reload(), b.shim()); err != nil {
		b.end(pb.GenericResult_GENERIC_STATUS_INIT_FAILURE, err.Error(), 0, false)
		return
	}
	close(b.ready)
	go b.live()
	argv := b.def.GetEntrypointArgs()
	if len(argv) == 0 || !b.begin() {
		return
	}
	cmd := b.command(b.ctx, argv)
	go func() {
		err := cmd.Run()
		b.done()
		if err == nil {
			b.end(pb.GenericResult_GENERIC_STATUS_SUCCESS, "", 0, true)
		} else {
			b.end(pb.GenericResult_GENERIC_STATUS_FAILURE, "", exitCode(err), true)
		}
	}()
}

// begin counts a command that is about to run. It returns false if the sandbox has ended.
func (b *box) begin() bool {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if b.result == nil {
		b.open++
	}
	return b.result == nil
}

func (b *box) done() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.open--
	b.used = time.Now()
}

// shim adds a sync command to the sandbox that commits the volumes.
func (b *box) shim() error {
	if err := errors.Join(os.MkdirAll(filepath.Join(b.dir, "bin"), 0o755),
		os.MkdirAll(filepath.Join(b.dir, "sync"), 0o755)); err != nil {
		return err
	}
	text := fmt.Sprintf("#!/bin/sh\nr='%s/sync/'$$\n: >\"$r\"\nwhile [ -e \"$r\" ]; do sleep 0.01; done\n", b.dir)
	return os.WriteFile(filepath.Join(b.dir, "bin", "sync"), []byte(text), 0o755)
}

// live answers sync, and ends the sandbox at its timeout or when it is idle.
func (b *box) live() {
	limit := time.After(time.Duration(b.def.GetTimeoutSecs()) * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-b.ended:
			return
		case <-limit:
			b.end(pb.GenericResult_GENERIC_STATUS_TIMEOUT, "", 0, true)
			return
		case <-tick.C:
		}
		asked, _ := os.ReadDir(filepath.Join(b.dir, "sync"))
		if len(asked) > 0 {
			_ = b.commit()
		}
		for _, f := range asked {
			_ = os.Remove(filepath.Join(b.dir, "sync", f.Name()))
		}
		b.s.mu.Lock()
		idle := b.def.GetIdleTimeoutSecs() > 0 && b.open == 0 &&
			time.Since(b.used) > time.Duration(b.def.GetIdleTimeoutSecs())*time.Second
		b.s.mu.Unlock()
		if idle {
			b.end(pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT, "", 0, true)
			return
		}
	}
}

// command returns the command argv, with paths in the sandbox mapped to this machine.
func (b *box) command(ctx context.Context, argv []string) *exec.Cmd {
	mapped := make([]string, len(argv))
	for i, a := range argv {
		mapped[i] = strings.ReplaceAll(a, Root, b.dir+Root)
	}
	cmd := exec.CommandContext(ctx, mapped[0], mapped[1:]...)
	cmd.Dir = b.dir
	cmd.Env = []string{mark + b.dir, "PATH=" + filepath.Join(b.dir, "bin") + ":" + os.Getenv("PATH"), "HOME=" + b.dir,
		"TMPDIR=" + filepath.Join(b.dir, "tmp")}
	cmd.WaitDelay = time.Second
	return cmd
}

func exitCode(err error) int {
	var failed *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failed) && failed.ExitCode() >= 0:
		return failed.ExitCode()
	case errors.Is(err, fs.ErrNotExist):
		return 127
	}
	return 137
}

// end ends the sandbox and all its processes. With save, the volumes get its changes.
func (b *box) end(state pb.GenericResult_GenericStatus, text string, code int, save bool) {
	b.s.mu.Lock()
	if b.result != nil {
		b.s.mu.Unlock()
		return
	}
	b.result = pb.GenericResult_builder{Status: state, Exception: text, Exitcode: int32(code)}.Build()
	started := b.started
	b.s.mu.Unlock()
	b.cancel()
	open := func() bool {
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		return b.open > 0
	}
	for open() || b.kill() > 0 {
		b.kill()
		time.Sleep(2 * time.Millisecond)
	}
	if save && started {
		_ = b.commit()
	}
	close(b.ended)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// kill kills the processes with the sandbox's mark, and returns their number.
func (b *box) kill() int {
	pids := Processes(b.dir)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(pids)
}

// Processes returns the ids of the processes in the sandbox whose folder is dir, or in all sandboxes below dir.
func Processes(dir string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		for _, v := range strings.Split(string(env), "\x00") {
			if rest, ok := strings.CutPrefix(v, mark+dir); ok && (rest == "" || rest[0] == '/') {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func tree(dir string) map[string]stamp {
	all := map[string]stamp{}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return nil
		}
		if st, err := d.Info(); err == nil {
			rel, _ := filepath.Rel(dir, name)
			all[rel] = stamp{st.Size(), st.ModTime(), d.IsDir()}
		}
		return nil
	})
	return all
}

// same reports whether a file is unchanged; folders always are.
func (a stamp) same(b stamp) bool {
	return a.dir == b.dir && (a.dir || a.size == b.size && a.mtime.Equal(b.mtime))
}

// commit copies the sandbox's changes to its volumes.
func (b *box) commit() error {
	b.lives.Lock()
	defer b.lives.Unlock()
	for _, m := range b.mounts {
		now := tree(m.dir)
		if err := update(m.dir, now, m.volume, m.base); err != nil {
			return err
		}
		m.base = now
	}
	return nil
}

// reload commits, and updates the sandbox's copies from the volumes.
func (b *box) reload() error {
	if err := b.commit(); err != nil {
		return err
	}
	b.lives.Lock()
	defer b.lives.Unlock()
	for _, m := range b.mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := update(m.volume, tree(m.volume), m.dir, tree(m.dir)); err != nil {
			return err
		}
		m.base = tree(m.dir)
	}
	return nil
}

// update applies the changes between the stamps old and now of a folder, whose files are in from, to the folder to.
func update(from string, now map[string]stamp, to string, old map[string]stamp) error {
	for name := range old {
		if _, ok := now[name]; !ok {
			_ = os.RemoveAll(filepath.Join(to, name))
		}
	}
	for name, st := range now {
		if before, ok := old[name]; !ok || !st.same(before) {
			if err := carry(filepath.Join(from, name), filepath.Join(to, name), st); err != nil {
				return err
			}
		}
	}
	return nil
}

// carry copies the file from, described by st, to the path to. For a folder it only creates the path.
func carry(from, to string, st stamp) error {
	if st.dir {
		return os.MkdirAll(to, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	src, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was a temporary file
	}
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	tmp := to + ".carried"
	if info.Mode().Perm()&0o222 == 0 { // read-only: the copy can be a link
		_ = os.Remove(tmp)
		return errors.Join(os.Link(from, tmp), os.Rename(tmp, to))
	}
	dst, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Chmod(info.Mode().Perm()), dst.Close(), os.Chtimes(tmp, st.mtime, st.mtime),
		os.Rename(tmp, to))
}

// An execution is one command in a sandbox.
type execution struct {
	box   *box
	stdin *os.File
	wrote uint64

	mu   sync.Mutex
	cond *sync.Cond
	out  [3][]byte
	done bool
	code int
}

type sink struct {
	e  *execution
	fd int
}

func (k sink) Write(p []byte) (int, error) {
	k.e.mu.Lock()
	defer k.e.mu.Unlock()
	k.e.out[k.fd] = append(k.e.out[k.fd], bytes.ReplaceAll(p, []byte(k.e.box.dir+Root), []byte(Root))...)
	k.e.cond.Broadcast()
	return len(p), nil
}

// A router implements the calls to a sandbox. It is a separate type because both services have a method of the same
// name.
type router struct {
	pb.UnimplementedTaskCommandRouterServer
	s *Server
}

func (t *router) TaskExecStart(_ context.Context, r *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	b, err := t.s.box(r.GetTaskId())
	if err != nil {
		return nil, err
	}
	select {
	case <-b.ready:
	case <-b.ended:
	}
	t.s.mu.Lock()
	again := t.s.execs[r.GetExecId()] != nil
	t.s.mu.Unlock()
	if again {
		return &pb.TaskExecStartResponse{}, nil
	}
	if !b.begin() {
		return nil, status.Error(codes.NotFound, errEnded.Error())
	}
	ctx, cancel := context.WithCancel(b.ctx)
	if r.GetTimeoutSecs() > 0 {
		ctx, cancel = context.WithTimeout(b.ctx, time.Duration(r.GetTimeoutSecs())*time.Second)
	}
	e := &execution{box: b}
	e.cond = sync.NewCond(&e.mu)
	cmd := b.command(ctx, r.GetCommandArgs())
	in, w, err := os.Pipe()
	if err != nil {
		cancel()
		b.done()
		return nil, err
	}
	cmd.Stdin, e.stdin = in, w
	cmd.Stdout, cmd.Stderr = sink{e, 1}, sink{e, 2}
	if err := cmd.Start(); err != nil {
		cancel()
		b.done()
		in.Close()
		w.Close()
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	in.Close()
	t.s.mu.Lock()
	t.s.execs[r.GetExecId()] = e
	t.s.mu.Unlock()
	go func() {
		defer cancel()
		code := exitCode(cmd.Wait())
		w.Close()
		b.done()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.done, e.code = true, code
		e.cond.Broadcast()
	}()
	return &pb.TaskExecStartResponse{}, nil
}

func (t *router) get(id string) (*execution, error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if e := t.s.execs[id]; e != nil {
		return e, nil
	}
	return nil, status.Errorf(codes.NotFound, "no exec %s", id)
}

func (t *router) TaskExecStdinWrite(_ context.Context, r *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse,
	error) {
	e, err := t.get(r.GetExecId())
	if err != nil {
		return nil, err
	}
	t.s.mu.Lock()
	if end := r.GetOffset() + uint64(len(r.GetData())); end <= e.wrote && len(r.GetData()) > 0 {
		t.s.mu.Unlock()
		return &pb.TaskExecStdinWriteResponse{}, nil // sent again because the answer was lost
	}
	if r.GetOffset() != e.wrote {
		t.s.mu.Unlock()
		return nil, status.Errorf(codes.OutOfRange, "offset %d, want %d", r.GetOffset(), e.wrote)
	}
	e.wrote += uint64(len(r.GetData()))
	t.s.mu.Unlock()
	if _, err := e.stdin.Write(r.GetData()); err != nil {
		return nil, status.Error(codes.FailedPrecondition, "the command has closed its stdin")
	}
	if r.GetEof() {
		e.stdin.Close()
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

func (t *router) TaskExecStdioRead(r *pb.TaskExecStdioReadRequest,
	st grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse]) error {
	e, err := t.get(r.GetExecId())
	if err != nil {
		return err
	}
	t.s.mu.Lock()
	dropped := t.s.stall
	t.s.mu.Unlock()
	fd, at := 1, r.GetOffset()
	if r.GetFileDescriptor() == pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR {
		fd = 2
	}
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
		case <-dropped:
		case <-e.box.ended:
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cond.Broadcast()
	}()
	for {
		e.mu.Lock()
		for uint64(len(e.out[fd])) <= at && !e.done && ctx.Err() == nil && !closed(dropped) && !closed(e.box.ended) {
			e.cond.Wait()
		}
		chunk := append([]byte(nil), e.out[fd][min(at, uint64(len(e.out[fd]))):]...)
		done := e.done
		e.mu.Unlock()
		switch {
		case st.Context().Err() != nil:
			return st.Context().Err()
		case closed(dropped):
			return status.Error(codes.Unavailable, "connection reset by peer")
		case closed(e.box.ended):
			return status.Error(codes.NotFound, errEnded.Error())
		}
		for len(chunk) > 0 {
			n := min(len(chunk), 1<<20)
			if err := st.Send(pb.TaskExecStdioReadResponse_builder{Data: chunk[:n]}.Build()); err != nil {
				return err
			}
			at += uint64(n)
			chunk = chunk[n:]
		}
		if done {
			return nil
		}
	}
}

func (t *router) TaskExecWait(ctx context.Context, r *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	e, err := t.get(r.GetExecId())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { e.mu.Lock(); defer e.mu.Unlock(); e.cond.Broadcast() })
	defer stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.done {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e.cond.Wait()
	}
	code := int32(e.code)
	return pb.TaskExecWaitResponse_builder{Code: &code}.Build(), nil
}

func (t *router) TaskReloadVolumes(_ context.Context, r *pb.TaskReloadVolumesRequest) (*pb.TaskReloadVolumesResponse,
	error) {
	b, err := t.s.box(r.GetTaskId())
	if err != nil {
		return nil, err
	}
	if err := b.reload(); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &pb.TaskReloadVolumesResponse{}, nil
}
