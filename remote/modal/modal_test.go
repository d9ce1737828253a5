package modal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"fisub/internal/longtest"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/modal"
	"fisub/remote/modal/modaltest"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

// The token of the tests must appear only in the environment.
const (
	tokenID     = "ak-PlantedTokenId123"
	tokenSecret = "as-PlantedTokenSecret456"
)

// start starts a fake Modal and points the environment to it.
func start(t *testing.T) *modaltest.Server {
	t.Helper()
	longtest.CI(t, "starts a fake Modal that runs jobs")
	s, err := modaltest.Start(t.TempDir(), tokenID, tokenSecret)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	for name, value := range map[string]string{
		"MODAL_SERVER_URL": s.URL(), "MODAL_TOKEN_ID": tokenID, "MODAL_TOKEN_SECRET": tokenSecret,
		"MODAL_CONFIG_PATH": filepath.Join(t.TempDir(), "none.toml"), "MODAL_PROFILE": "", "MODAL_ENVIRONMENT": "",
		"MODAL_LOGLEVEL": "DEBUG",
	} {
		t.Setenv(name, value)
	}
	return s
}

func configure(name string, values map[string]any) (*modal.Provider, error) {
	c, err := remotetest.Table[modal.Config](name, values)
	if err != nil {
		return nil, err
	}
	return modal.New(name, c)
}

func open(t *testing.T, table map[string]any) *modal.Provider {
	t.Helper()
	p, err := configure("cloud", table)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func sandboxOf(t *testing.T, h remote.Handle) string {
	t.Helper()
	var d struct{ Sandbox string }
	if err := json.Unmarshal(h.Data, &d); err != nil {
		t.Fatal(err)
	}
	return d.Sandbox
}

func TestProvider(t *testing.T) {
	s := start(t)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func(f *os.File) { os.Stderr = f }(os.Stderr)
	os.Stderr = stderr
	remotetest.Run(t, remotetest.Setup{
		New: func(t *testing.T) remote.Provider { return open(t, map[string]any{"provider": "modal"}) },
		KillHost: func(t *testing.T, h remote.Handle) {
			if err := s.Kill(sandboxOf(t, h), pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, ""); err != nil {
				t.Fatal(err)
			}
		},
		Work: s.Volume("fisub"),
		Deaf: func(t *testing.T, _ func()) remote.Provider {
			p := open(t, nil)
			if _, err := p.List(t.Context()); err != nil { // the sandbox for files now exists
				t.Fatal(err)
			}
			before := len(s.Sandboxes())
			s.Lose("SandboxCreateV2", 100)
			t.Cleanup(func() {
				s.Lose("SandboxCreateV2", 0)
				if made := len(s.Sandboxes()) - before; made < 3 {
					t.Errorf("sandboxes that were made: got %d, want those of all tries", made)
				}
			})
			return p
		},
		Secrets: []string{"Planted"},
		Output:  func() string { return remotetest.Files(t, s.Dir(""), s.Volume("")) },
		Cut: func(*testing.T) {
			s.Fail("TaskExecStdioRead", codes.Aborted, "the connection is gone", 1) // the SDK does not retry this itself
			s.Drop()
		},
	})
	if text, err := os.ReadFile(stderr.Name()); err != nil || len(text) > 0 {
		t.Errorf("stderr: got %q, %v, want nothing", text, err)
	}
	settled(t, s)
	for _, b := range s.Sandboxes() {
		if !b.Blocked {
			t.Errorf("sandbox %s: its network is not blocked", b.ID)
		}
		if b.Timeout < time.Second {
			t.Errorf("sandbox %s: no time limit", b.ID)
		}
	}
	left, err := os.ReadDir(filepath.Join(s.Volume("fisub"), "jobs"))
	if err != nil || len(left) > 0 {
		t.Errorf("jobs on the volume: got %v, %v, want none", left, err)
	}
}

// settled waits until no sandbox is left; the one for files may take a moment.
func settled(t *testing.T, s *modaltest.Server) {
	t.Helper()
	servertest.Until(t, "the end of all sandboxes", func() bool {
		return !slices.ContainsFunc(s.Sandboxes(), func(b modaltest.Sandbox) bool { return b.Running })
	})
}

func running(s *modaltest.Server, id string) bool {
	return slices.ContainsFunc(s.Sandboxes(), func(b modaltest.Sandbox) bool { return b.ID == id && b.Running })
}

// A client that attaches after the end finds everything on the volume.
func TestAttachAfterTheEnd(t *testing.T) {
	s := start(t)
	first := open(t, nil)
	first.Hurry()
	job := remotetest.Script(t, `echo one; echo words >&2; echo two; exit 3`, nil)
	h, err := first.Submit(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	servertest.Until(t, "the sandbox's end", func() bool { return !running(s, sandboxOf(t, h)) })

	p := open(t, nil)
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Job != job.ID {
		t.Fatalf("List: got %+v, %v, want the job", all, err)
	}
	for name, h := range map[string]remote.Handle{"handle": h, "handle of List": all[0]} {
		r := &remotetest.Recorder{}
		exit := remotetest.Follow(t, p, h, 2, r)
		if r.Stream() != "e\ntwo\n" || exit.End != remote.Exited || exit.Code != 3 {
			t.Errorf("%s: got %q, %+v", name, r.Stream(), exit)
		}
		if log := remotetest.Log(t, p, h); !strings.Contains(log, "words\n") {
			t.Errorf("%s: log: got %q", name, log)
		}
	}
	remotetest.Release(t, p, all[0])
	if all, err = p.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("List after Release: got %+v, %v", all, err)
	}
}

// A machine that fails while no client follows the job loses only the output since the last save to the volume.
func TestLostWhileDetached(t *testing.T) {
	s := start(t)
	p := open(t, nil)
	p.Hurry()
	h := remotetest.Submit(t, p, remotetest.Script(t, `echo one; sleep 300`, nil))
	servertest.Until(t, "the stream on the volume", func() bool {
		data, _ := os.ReadFile(filepath.Join(s.Volume("fisub"), "jobs", h.Job, agent.EventsName))
		return string(data) == "one\n"
	})
	if err := s.Kill(sandboxOf(t, h), pb.GenericResult_GENERIC_STATUS_TERMINATED, "Sandbox was preempted"); err != nil {
		t.Fatal(err)
	}
	if r, exit := remotetest.Wait(t, p, h); r.Stream() != "one\n" || exit.End != remote.Lost ||
		exit.Text != "Sandbox was preempted" {
		t.Errorf("got %q, %+v", r.Stream(), exit)
	}
}

// Modal accepts a job before it has a machine; Submit does not wait for one.
func TestQueued(t *testing.T) {
	s := start(t)
	s.Full(true)
	p := open(t, nil)
	job := remotetest.Script(t, `echo one`, nil)
	job.GPU = "b200"
	job.Limit = 10 * time.Minute
	h := remotetest.Submit(t, p, job)
	r := &remotetest.Recorder{}
	ended := make(chan remote.Exit, 1)
	go func() {
		exit, err := p.Wait(t.Context(), h, 0, r)
		if err != nil {
			t.Errorf("Wait: %v", err)
		}
		ended <- exit
	}()
	servertest.Until(t, "the state", func() bool { return len(r.Phases()) > 0 })
	if dst := t.TempDir(); p.Collect(t.Context(), h, dst) != nil {
		t.Error("Collect of a queued job fails")
	}
	if got := r.Phases(); !slices.Equal(got, []remote.Phase{remote.Queued}) {
		t.Errorf("phases: got %v, want queued", got)
	}
	s.Full(false)
	// The tests' agent knows no GPU; its error shows that it has started.
	if exit := <-ended; exit.End != remote.Refused || !strings.HasPrefix(exit.Text, "no GPU: ") {
		t.Errorf("got %+v", exit)
	}
	for _, b := range s.Sandboxes() {
		if b.ID == sandboxOf(t, h) && (b.GPU != "B200" || b.Timeout != 13*time.Minute || b.CPU != 4 ||
			b.MostCPU != 4 || b.Most != 8192) {
			t.Errorf("sandbox: got %+v", b)
		}
	}
}

// Submit returns once Modal has queued the sandbox, which outlives the context. The SDK alone would wait for a machine,
// and end the sandbox with the context: accepting answers the SDK's waiting call. If this test fails after an update of
// the SDK, the SDK waits by another call.
func TestAccepted(t *testing.T) {
	s := start(t)
	p := open(t, nil)
	warm := remote.Handle{Provider: "modal", Job: "warm", Data: json.RawMessage(`{"app":"fisub"}`)}
	if err := p.Release(t.Context(), warm); err != nil {
		t.Fatal(err) // app, volume, image and door now exist
	}
	s.Full(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	job := remotetest.Script(t, `echo one`, nil)
	job.GPU = "b200"
	h, err := p.Submit(ctx, job, nil)
	if err != nil {
		t.Fatalf("Submit of a job for which there is no machine: %v", err)
	}
	cancel()
	called := s.Calls()
	if at := slices.Index(called, "SandboxCreate"); at < 0 {
		t.Errorf("calls: got %v", called)
	}
	if slices.Contains(called, "SandboxTerminate") {
		t.Errorf("the sandbox was ended: %v", called)
	}
	for _, b := range s.Sandboxes() {
		if b.ID == sandboxOf(t, h) && !b.Running {
			t.Errorf("sandbox: got %+v", b)
		}
	}
	remotetest.Release(t, p, h)
}

func TestNoCapacity(t *testing.T) {
	s := start(t)
	s.Full(true)
	p := open(t, map[string]any{"queue": "1s"})
	job := remotetest.Script(t, `echo one`, nil)
	job.GPU = "b200"
	h := remotetest.Submit(t, p, job)
	_, exit := remotetest.Wait(t, p, h)
	if exit.End != remote.Refused || exit.Text != "Modal found no machine with the GPU within 1s" || exit.Hint == "" {
		t.Errorf("got %+v", exit)
	}
	servertest.Until(t, "the sandbox's end", func() bool { return !running(s, sandboxOf(t, h)) })
}

// An upload resumes after a broken connection, and fails if the connection stays broken.
func TestUploadCut(t *testing.T) {
	s := start(t)
	p := open(t, nil)
	job := remotetest.Script(t, `cat a.txt`, map[string]string{"a.txt": "content"})
	s.Lose("TaskExecStdinWrite", 3)
	if r, exit := remotetest.Wait(t, p, remotetest.Submit(t, p, job)); r.Stream() != "content" || exit.End != remote.Exited {
		t.Errorf("got %q, %+v", r.Stream(), exit)
	}
	s.Fail("TaskExecStdinWrite", codes.Aborted, "the connection is gone", -1)
	job = remotetest.Script(t, `echo one`, nil)
	if h, err := p.Submit(t.Context(), job, nil); err == nil || !strings.Contains(err.Error(), "the connection is gone") {
		t.Errorf("got %+v, %v, want an error", h, err)
	}
	s.Fail("TaskExecStdinWrite", codes.Aborted, "", 0)
	if all, err := p.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("List: got %+v, %v, want the first job", all, err)
	}
}

// Old files are deleted from the volume.
func TestVolumeIsCleaned(t *testing.T) {
	s := start(t)
	p := open(t, nil)
	days := func(n int) time.Time { return time.Now().Add(-time.Duration(n) * 24 * time.Hour) }
	put := func(name string, age int) string {
		path := filepath.Join(s.Volume("fisub"), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644),
			os.Chtimes(path, days(age), days(age))); err != nil {
			t.Fatal(err)
		}
		return path
	}
	gone := []string{put("jobs/old/job.json", 20), put("store/"+strings.Repeat("a", 64), 40)}
	stays := []string{put("jobs/new/job.json", 10), put("store/"+strings.Repeat("b", 64), 20)}
	remotetest.Submit(t, p, remotetest.Script(t, `echo one`, nil))
	for _, name := range gone {
		servertest.Until(t, "the end of "+name, func() bool { _, err := os.Stat(name); return err != nil })
	}
	for _, name := range stays {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
}

func TestDenied(t *testing.T) {
	for _, c := range []struct {
		name  string
		table map[string]any
		set   func(t *testing.T, s *modaltest.Server)
		job   func(*remote.Job)
		code  string
		text  string
	}{
		{name: "no token", set: func(t *testing.T, _ *modaltest.Server) {
			t.Setenv("MODAL_TOKEN_ID", "")
			t.Setenv("MODAL_TOKEN_SECRET", "")
		},
			code: "credentials", text: "missing credentials"},
		{name: "wrong token", set: func(t *testing.T, _ *modaltest.Server) { t.Setenv("MODAL_TOKEN_ID", tokenID+"x") },
			code: "credentials", text: "Token ID ak-... is malformed or unknown"},
		{name: "forbidden", set: func(_ *testing.T, s *modaltest.Server) {
			s.Fail("AppGetOrCreate", codes.PermissionDenied, "not a member of the workspace", -1)
		}, code: "credentials", text: "asking for app fisub: not a member of the workspace"},
		{name: "no such GPU", job: func(j *remote.Job) { j.GPU = "z9000" }, code: "no-such",
			text: `Modal has no GPU "z9000"`},
		{name: "GPU that Modal lacks", job: func(j *remote.Job) { j.GPU = "gb200" }, code: "no-such",
			text: `Modal has no GPU "gb200"`},
		{name: "GPU with count", job: func(j *remote.Job) { j.GPU = "b200:8" }, code: "no-such",
			text: `Modal has no GPU "b200:8"`},
		{name: "budget", job: func(j *remote.Job) { j.GPU = "b200" }, set: func(_ *testing.T, s *modaltest.Server) {
			s.Fail("SandboxCreate", codes.ResourceExhausted, "workspace budget of $30 reached", -1)
		}, code: "quota", text: "workspace budget of $30 reached"},
		{name: "image", set: func(_ *testing.T, s *modaltest.Server) {
			s.Builds([]string{"Step 0: FROM nothing\n", "manifest unknown ", tokenSecret + "\n"}, "build failed")
		}, code: "image", text: "Step 0: FROM nothing\nmanifest unknown as-..."},
		{name: "volume of version 1", set: func(_ *testing.T, s *modaltest.Server) { s.OldVolume("fisub") }, code: "no-such",
			text: "has version v1, not v2"},
		{name: "limit", job: func(j *remote.Job) { j.Limit = 24 * time.Hour }, code: "limit", text: "too long"},
		{name: "unreachable", set: func(_ *testing.T, s *modaltest.Server) { s.Stop() }, code: "unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t)
			if c.set != nil {
				c.set(t, s)
			}
			p := open(t, c.table)
			job := remotetest.Script(t, `echo one`, nil)
			if c.job != nil {
				c.job(job)
			}
			_, err := p.Submit(t.Context(), job, nil)
			remotetest.CheckDenied(t, err, c.code, c.text, "")
			if text := fmt.Sprint(err); !strings.HasPrefix(text, "cloud: ") || strings.Contains(text, "Planted") {
				t.Errorf("the error lacks the table or has the token: %v", err)
			}
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			settled(t, s)
		})
	}
}

func TestCheck(t *testing.T) {
	s := start(t)
	p := open(t, nil)
	hosts, err := p.Check(t.Context())
	if err != nil || len(hosts) != 1 || hosts[0].State != "ready" ||
		hosts[0].Detail != "app fisub, image debian:13-slim, 0 jobs in sandboxes" {
		t.Errorf("got %+v, %v", hosts, err)
	}
	if n := len(s.Sandboxes()); n > 0 {
		t.Errorf("it has started %d sandboxes", n)
	}
	t.Setenv("MODAL_TOKEN_SECRET", "as-other")
	remotetest.CheckDown(t, open(t, nil), "credentials", "")
}

func TestConfig(t *testing.T) {
	start(t)
	_, err := configure("cloud", map[string]any{"app": "a b", "image": "x y", "cpu": int64(0), "memory": int64(1),
		"queue": "1ms", "jobs": int64(0),
		"regions": []any{"us east"}, "environment": "/", "token_id": tokenID})
	remotetest.CheckFaults(t, err, `unknown key remote.cloud.token_id
remote.cloud.app: want a name in Modal: letters, digits, '.', '_' and '-', at most 63, got "a b"
remote.cloud.environment: want a name in Modal: letters, digits, '.', '_' and '-', at most 63, got "/"
remote.cloud.image: want an image of a registry, got "x y"
remote.cloud.cpu: want 0.125 to 256, got 0
remote.cloud.memory: want 128 to 2097152, got 1
remote.cloud.regions: want the name of a region, got "us east"
remote.cloud.queue: want 1s to 24h0m0s, got 1ms
remote.cloud.jobs: want 1 to 1000, got 0`)
	p := open(t, map[string]any{"jobs": int64(3), "gpu": "b200", "limit": "30m", "app": "bench"})
	if got := p.Places(5); !slices.Equal(got, []remote.Place{{Host: "sandbox1", GPU: -1}, {Host: "sandbox2", GPU: -1},
		{Host: "sandbox3", GPU: -1}}) || len(p.Places(-1)) != 0 {
		t.Errorf("places: got %v", got)
	}
	good := remote.NewHandle(modal.Kind, "a", remote.Place{GPU: -1}, map[string]string{"sandbox": "sb-1", "app": "bench"})
	remotetest.CheckForeign(t, p, good, `{"sandbox":"--x","app":"bench"}`)
	good.Data = json.RawMessage(`{"sandbox":"sb-1","app":"fisub"}`)
	if err := p.Release(t.Context(), good); remote.CodeOf(err) != "no-such" {
		t.Errorf("another app: got %v", err)
	}
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "modal.toml"))
	servertest.Write(t, os.Getenv("MODAL_CONFIG_PATH"), "[x]\ntoken_secret = "+tokenSecret)
	if _, err := configure("cloud", nil); err == nil || strings.Contains(err.Error(), "Planted") {
		t.Errorf("a broken profile: got %v", err)
	}
}
