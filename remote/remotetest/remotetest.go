// Package remotetest is the test suite that every provider must pass. Its jobs are shell scripts instead of `fisub
// local`, and the test binary is the agent. A provider's test starts with
//
//	func TestMain(m *testing.M) { remotetest.Main(m) }
//	func TestProvider(t *testing.T) { remotetest.Run(t, remotetest.Setup{New: ...}) }
package remotetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fisub/internal/config"
	"fisub/internal/longtest"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/servertest"
)

// Agent returns the agent in the test binary. Its GPUs come from PutGPUs.
func Agent() *agent.Agent {
	self, _ := os.Executable()
	return &agent.Agent{Version: "test", Self: []string{self, "agent"}, GPUs: func() (gpus []agent.GPU, err error) {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(self), "gpus")) // the running binary is in the store
		if err != nil {
			return nil, err
		}
		return gpus, json.Unmarshal(data, &gpus)
	}}
}

// PutGPUs sets the fake GPUs of the host with that work folder.
func PutGPUs(t testing.TB, work string, gpus ...agent.GPU) {
	t.Helper()
	data, err := json.Marshal(gpus)
	if err == nil {
		err = os.MkdirAll(agent.Store(work), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(agent.Store(work), "gpus"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Main runs the tests, or the agent if the binary was started as one. It fails if goroutines are left.
func Main(m *testing.M, options ...goleak.Option) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		if err := Agent().Main(context.Background(), os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // agents must be as fast with the race detector as without
	goleak.VerifyTestMain(m, options...)
}

// A Setup describes a provider to the suite.
type Setup struct {
	// New returns a provider on the same hosts each time, as in another process. The suite closes it.
	New func(t *testing.T) remote.Provider

	// Slow is added to the suite's timeouts, for providers that take long to start jobs.
	Slow time.Duration

	// KillHost kills the host of a running job, or the agent on it.
	KillHost func(t *testing.T, h remote.Handle)

	// Cut interrupts the connections for a moment; the provider must recover. It is nil without connections.
	Cut func(t *testing.T)

	// Away returns a provider and functions that make its hosts unreachable and reachable again. The provider must give
	// up a Wait as soon as its table allows, or never. Away is nil without connections.
	Away func(t *testing.T) (p remote.Provider, cut, back func())

	// Work is the folder on this machine that is the work folder of the first place; "" if there is none.
	Work string

	// Sweeps is set if Release ends a job's processes even if the job has killed its agent. Otherwise the container or
	// machine ends with the agent.
	Sweeps bool

	// SendsEach is set if jobs that are submitted at the same time each send the files that are missing.
	SendsEach bool

	// Renames is set if Release renames the folder of a job before it deletes it, and Wait reads exit.json in it.
	Renames bool

	// Deaf returns a provider that loses the reply to the start of a job, and may call cancel, which ends the Submit, then.
	// It is nil if that cannot be arranged.
	Deaf func(t *testing.T, cancel func()) remote.Provider

	// Secrets are credentials of the client that must not get to the hosts, into the handle or into a command line.
	Secrets []string

	// Output returns what the hosts have printed, and the content of the files on them; nil if there is nothing.
	Output func() string

	// GPUs returns a provider whose two places are the GPUs of one host, and the host's work folder. It is nil if each
	// job has its own host.
	GPUs func(t *testing.T) (p remote.Provider, work string)

	// Change adds provider-specific settings to a job.
	Change func(*remote.Job)
}

// Table decodes the values of a table [remote.name] into a Config.
func Table[C any, P interface {
	*C
	remote.Config
}](name string, values map[string]any) (C, error) {
	var c C
	err := remote.Decode(config.NewTable("remote."+name, values), P(&c))
	return c, err
}

// Script returns a job that runs a shell script. Its bundle also has the files, content by name. Its Place has GPU -1
// and no host.
func Script(t testing.TB, text string, files map[string]string) *remote.Job {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	job := &remote.Job{ID: NewID(t), Args: []string{"run.sh"}, Limit: time.Minute, Place: remote.Place{GPU: -1},
		Labels: map[string]string{"run": "test"}}
	add := func(name, path string, executable bool) {
		job.Files = append(job.Files, File(t, name, path, executable))
	}
	add(remote.Program, self, true)
	for name, content := range files {
		path := filepath.Join(dir, fmt.Sprint("f", len(job.Files)))
		servertest.Write(t, path, content)
		add(name, path, false)
	}
	path := filepath.Join(dir, "script")
	servertest.Write(t, path, "#!/bin/sh\n"+text+"\n")
	add("run.sh", path, true)
	return job
}

var (
	mu     sync.Mutex
	number int
	hashes = map[string]string{}
)

// NewID returns a job id that is unique in this process.
func NewID(t testing.TB) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	number++
	return fmt.Sprintf("test-%d-%d", os.Getpid(), number)
}

// File returns a remote.File for the file at path.
func File(t testing.TB, name, path string, executable bool) remote.File {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	key := fmt.Sprint(path, st.ModTime(), st.Size())
	if hashes[key] == "" {
		f, err := remote.FileAt(path)
		if err != nil {
			t.Fatal(err)
		}
		hashes[key] = f.SHA256
	}
	return remote.File{Name: name, SHA256: hashes[key], Size: st.Size(), Exec: executable, Path: path}
}

// A Recorder is a Watcher that records its input.
type Recorder struct {
	mu     sync.Mutex
	stream bytes.Buffer
	states []remote.Stage
	// Fail, if not nil, is called on each Write, and its error returned.
	Fail func(stream []byte) error
	// OnState, if not nil, is called for each state.
	OnState func(remote.Stage)
}

func (r *Recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream.Write(p)
	if r.Fail != nil {
		if err := r.Fail(r.stream.Bytes()); err != nil {
			return len(p), err
		}
	}
	return len(p), nil
}

// State records s.
func (r *Recorder) State(s remote.Stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, s)
	if r.OnState != nil {
		r.OnState(s)
	}
}

// Stream returns the stream so far.
func (r *Recorder) Stream() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stream.String()
}

// Phases returns the phases of the states so far.
func (r *Recorder) Phases() (phases []remote.Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.states {
		phases = append(phases, s.Phase)
	}
	return phases
}

// Within returns a context that ends after three minutes, or with the test.
func Within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Submit submits a job, and releases it at the end of the test.
func Submit(t testing.TB, p remote.Provider, job *remote.Job) remote.Handle {
	t.Helper()
	h, err := p.Submit(Within(t), job, nil)
	if err != nil {
		t.Fatalf("Submit: %v", err)
	}
	t.Cleanup(func() { Release(t, p, h) })
	return h
}

// Release releases a job.
func Release(t testing.TB, p remote.Provider, h remote.Handle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if err := p.Release(ctx, h); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// Log returns the log of a job.
func Log(t testing.TB, p remote.Provider, h remote.Handle) string {
	t.Helper()
	dst := t.TempDir()
	if err := p.Collect(Within(t), h, dst); err != nil {
		t.Errorf("Collect: %v", err)
	}
	text, _ := os.ReadFile(filepath.Join(dst, agent.LogName))
	return string(text)
}

// Follow waits for the end of a job, from that byte of its stream.
func Follow(t testing.TB, p remote.Provider, h remote.Handle, from int64, r *Recorder) remote.Exit {
	t.Helper()
	exit, err := p.Wait(Within(t), h, from, r)
	if err != nil {
		t.Fatalf("Wait: %v; stream %q", err, r.Stream())
	}
	return exit
}

// Wait is Follow from the beginning with a new Recorder.
func Wait(t testing.TB, p remote.Provider, h remote.Handle) (*Recorder, remote.Exit) {
	t.Helper()
	r := &Recorder{}
	return r, Follow(t, p, h, 0, r)
}

// FollowThen is Follow from the beginning. It calls then after the first bytes of the stream.
func FollowThen(t testing.TB, p remote.Provider, h remote.Handle, then func()) (*Recorder, remote.Exit) {
	t.Helper()
	var once sync.Once
	r := &Recorder{Fail: func([]byte) error { once.Do(then); return nil }}
	return r, Follow(t, p, h, 0, r)
}

// CheckDenied checks that err is a *remote.Denied with that code, and with those parts of its text and of its hint.
func CheckDenied(t testing.TB, err error, code, text, hint string) {
	t.Helper()
	var d *remote.Denied
	if !errors.As(err, &d) || d.Code != code || !strings.Contains(err.Error(), text) || d.Hint == "" ||
		!strings.Contains(d.Hint, hint) {
		t.Errorf("got %+v (%v), want %s: %s, with the hint %q", d, err, code, text, hint)
	}
}

// CheckDown checks that Check gives one host, which is down for a reason with that code.
func CheckDown(t testing.TB, p remote.Provider, code, text string) {
	t.Helper()
	hosts, err := p.Check(Within(t))
	if err != nil || len(hosts) != 1 || hosts[0].State != "down" {
		t.Fatalf("Check: got %+v, %v, want a host that is down", hosts, err)
	}
	CheckDenied(t, hosts[0].Err, code, text, "")
}

// KillAgent kills the agent of a job in a work folder of this machine without warning.
func KillAgent(t testing.TB, work, job string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(agent.JobDir(work, job), agent.StateName))
	var s agent.Identity
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.PID > 1 {
		err = syscall.Kill(s.PID, syscall.SIGKILL)
	}
	if err != nil || s.PID <= 1 {
		t.Fatalf("killing an agent: %s, %v", data, err)
	}
}

// CheckFaults checks the error of an invalid table.
func CheckFaults(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

// CheckForeign checks that Release, which removes what a handle names, rejects handles that p did not make. good is one
// that p could have made, and data are invalid values of its Data.
func CheckForeign(t *testing.T, p remote.Provider, good remote.Handle, data ...string) {
	t.Helper()
	bad := []remote.Handle{good, good, good}
	bad[0].Provider, bad[1].Job, bad[2].Job = "another", "../../home", ""
	for _, text := range append(data, `{`, `[]`, `7`) {
		h := good
		h.Data = json.RawMessage(text)
		bad = append(bad, h)
	}
	for _, h := range bad {
		if err := p.Release(t.Context(), h); err == nil || !strings.Contains(err.Error(), "handle") {
			t.Errorf("%+v, %s: got %v", h, h.Data, err)
		}
	}
}

type suite struct {
	Setup
}

// A testCase is a test of the suite. It is omitted if it does not apply to the provider.
type testCase struct {
	name    string
	applies bool
	run     func(*testing.T)
}

// Run runs the tests of the suite that apply to setup.
func Run(t *testing.T, setup Setup) {
	longtest.Skip(t, "runs jobs with a provider")
	s := &suite{setup}
	p := s.New(t)
	places := len(p.Places(2))
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, c := range []testCase{
		{"Events", true, s.events},
		{"ExitStatus", true, s.exitStatus},
		{"Signed", true, s.signed},
		{"SentOnce", true, s.sentOnce},
		{"SentOnceByMany", !s.SendsEach, s.sentOnceByMany},
		{"WrongHash", true, s.wrongHash},
		{"Spoilt", s.Work != "", s.spoilt},
		{"SpoiltAgent", s.Work != "", s.spoiltAgent},
		{"Daemon", s.Sweeps, s.daemon},
		{"InvalidJob", true, s.invalidJob},
		{"Limit", true, s.limit},
		{"Cancel", true, s.cancel},
		{"ReleaseTwice", true, s.releaseTwice},
		{"HalfFree", s.Renames, s.halfFree},
		{"HostileExit", s.Renames, s.hostileExit},
		{"AnswerLost", s.Deaf != nil, s.answerLost},
		{"Secrets", len(s.Secrets) > 0, s.secrets},
		{"Attach", true, s.attach},
		{"WaitCancelled", true, s.waitCancelled},
		{"WatcherFails", true, s.watcherFails},
		{"SubmitCancelled", true, s.submitCancelled},
		{"Garbage", true, s.garbage},
		{"TwoAtOnce", places == 2, s.twoAtOnce},
		{"Environment", true, s.environment},
		{"HostKilled", s.KillHost != nil, s.hostKilled},
		{"ConnectionCut", s.Cut != nil, s.connectionCut},
		{"Away", s.Away != nil, s.away},
		{"GPUs", s.GPUs != nil, s.gpus},
	} {
		if c.applies {
			t.Run(c.name, c.run)
		}
	}
}

// spoil corrupts the stored file with that hash without changing its size.
func (s *suite) spoil(t *testing.T, hash string) {
	t.Helper()
	name := agent.Stored(s.Work, hash)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	content[0] ^= 1
	if err := errors.Join(os.Remove(name), os.WriteFile(name, content, 0o444)); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) provider(t *testing.T) remote.Provider {
	t.Helper()
	p := s.New(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func (s *suite) job(t *testing.T, p remote.Provider, text string, files map[string]string) *remote.Job {
	t.Helper()
	job := Script(t, text, files)
	places := p.Places(1)
	if len(places) != 1 {
		t.Fatalf("Places(1): got %v", places)
	}
	job.Place = places[0]
	if s.Change != nil {
		s.Change(job)
	}
	return job
}

// submit is Submit with a check of the handle.
func (s *suite) submit(t *testing.T, p remote.Provider, job *remote.Job) remote.Handle {
	t.Helper()
	h := Submit(t, p, job)
	if h.Job != job.ID || h.Provider == "" || h.Place != job.Place {
		t.Errorf("handle: got %+v for job %s in %v", h, job.ID, job.Place)
	}
	return h
}

func (s *suite) limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+s.Slow)
	t.Cleanup(cancel)
	return ctx
}

func (s *suite) wait(t *testing.T, p remote.Provider, h remote.Handle, from int64) (*Recorder, remote.Exit) {
	t.Helper()
	r := &Recorder{}
	return r, Follow(t, p, h, from, r)
}

// An end is the result of a Wait.
type end struct {
	exit remote.Exit
	err  error
}

// background waits for a job's end in another goroutine.
func background(ctx context.Context, p remote.Provider, h remote.Handle, r *Recorder) <-chan end {
	ended := make(chan end, 1)
	go func() {
		exit, err := p.Wait(ctx, h, 0, r)
		ended <- end{exit, err}
	}()
	return ended
}

func (s *suite) listed(t *testing.T, p remote.Provider, id string) bool {
	t.Helper()
	all, err := p.List(s.limited(t))
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	return slices.ContainsFunc(all, func(h remote.Handle) bool { return h.Job == id })
}

const three = `echo one; sleep 0.2; echo two; echo words >&2; sleep 0.2; echo three`

func (s *suite) events(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p, `cat sub/data.txt; `+three, map[string]string{"sub/data.txt": "data\n"}))
	r, exit := s.wait(t, p, h, 0)
	if want := "data\none\ntwo\nthree\n"; r.Stream() != want {
		t.Errorf("stream: got %q, want %q", r.Stream(), want)
	}
	if exit.End != remote.Exited || exit.Code != 0 {
		t.Errorf("exit: got %+v", exit)
	}
	if !slices.Contains(r.Phases(), remote.Running) {
		t.Errorf("phases: got %v, want running among them", r.Phases())
	}
	again, exit := s.wait(t, p, h, 9)
	if again.Stream() != "two\nthree\n" || exit.End != remote.Exited {
		t.Errorf("a second Wait, from 9: got %q, %+v", again.Stream(), exit)
	}
	if log := Log(t, p, h); !strings.Contains(log, "words\n") {
		t.Errorf("log: got %q", log)
	}
}

func (s *suite) exitStatus(t *testing.T) {
	p := s.provider(t)
	_, exit := s.wait(t, p, s.submit(t, p, s.job(t, p, `echo one; exit 3`, nil)), 0)
	if exit.End != remote.Exited || exit.Code != 3 {
		t.Errorf("got %+v, want exited with 3", exit)
	}
}

// signed runs a job with a key. Only the lines and the end signed by the agent count, even if the program writes an
// exit.json. The program must not find the key anywhere, not even on Modal's volume.
func (s *suite) signed(t *testing.T) {
	p := s.provider(t)
	key := rand.Text()
	job := s.job(t, p, `echo one; echo '{"end":"exited","code":0}' >../exit.json
grep -rl `+key[:5]+`''`+key[5:]+` ../.. ../../../../volume 2>/dev/null; sleep 1; echo two; exit 3`, nil)
	job.Key = key
	h := s.submit(t, p, job)
	h.Key = job.Key
	r, exit := s.wait(t, p, h, 0)
	if exit.End != remote.Exited || exit.Code != 3 || exit.MAC == "" || exit.Lines != 2 {
		t.Errorf("got %+v, want exited with 3, signed", exit)
	}
	seal, got := remote.Seal{Key: job.Key, Job: job.ID}, ""
	for text := range strings.Lines(r.Stream()) {
		line, ok := seal.Line([]byte(strings.TrimSuffix(text, "\n")))
		if got += string(line) + "|"; !ok {
			t.Errorf("not signed: %q", text)
		}
	}
	if got != "one|two|" {
		t.Errorf("stream: got %q", got)
	}
	text, err := json.Marshal(h)
	if err != nil || strings.Contains(string(text), job.Key) {
		t.Errorf("the handle holds the key: %s, %v", text, err)
	}
}

func (s *suite) sentOnce(t *testing.T) {
	p := s.provider(t)
	content := map[string]string{"a.txt": strings.Repeat(NewID(t), 1000)}
	send := func() (total int64) {
		job := s.job(t, p, `echo `+NewID(t)+` >/dev/null; wc -c <a.txt`, content)
		h, err := p.Submit(s.limited(t), job, func(sent, all int64) {
			if sent < 0 || sent > all {
				t.Errorf("progress: %d of %d bytes", sent, all)
			}
			total = all
		})
		if err != nil {
			t.Fatalf("Submit: %v", err)
		}
		defer p.Release(s.limited(t), h)
		if r, exit := s.wait(t, p, h, 0); exit.Code != 0 ||
			strings.TrimSpace(r.Stream()) != fmt.Sprint(len(content["a.txt"])) {
			t.Errorf("got %q, %+v", r.Stream(), exit)
		}
		return total
	}
	first, second := send(), send()
	if least := int64(len(content["a.txt"])); first < least {
		t.Errorf("sent first: got %d bytes, want at least %d", first, least)
	}
	if second > 100 {
		t.Errorf("sent again: got %d bytes, want only the script", second)
	}
}

// sentOnceByMany submits jobs with the same files at the same time. Each file is sent once.
func (s *suite) sentOnceByMany(t *testing.T) {
	p := s.provider(t)
	job := s.job(t, p, `cat a.txt`, map[string]string{"a.txt": strings.Repeat(NewID(t), 1000)})
	var sent, size atomic.Int64
	for _, f := range job.Files[1:] { // the agent is there, or in the sum
		size.Add(f.Size)
	}
	var group sync.WaitGroup
	for range 3 {
		one := *job
		one.ID = NewID(t)
		group.Go(func() {
			var total int64
			h, err := p.Submit(s.limited(t), &one, func(_, all int64) { total = all })
			if err != nil {
				t.Errorf("Submit: %v", err)
				return
			}
			sent.Add(total)
			Release(t, p, h)
		})
	}
	group.Wait()
	if got, want := sent.Load(), size.Load(); got != want && got != want+job.Files[0].Size {
		t.Errorf("sent: got %d bytes, want %d", got, want)
	}
}

// wrongHash changes or shortens a file after its hash was taken. Neither job runs, and nothing gets into the store under
// that hash.
func (s *suite) wrongHash(t *testing.T) {
	p := s.provider(t)
	content := NewID(t)
	for _, other := range []string{strings.Repeat("x", len(content)), "x"} {
		job := s.job(t, p, `echo ran`, map[string]string{"a.txt": content})
		at := slices.IndexFunc(job.Files, func(f remote.File) bool { return f.Name == "a.txt" })
		servertest.Write(t, job.Files[at].Path, other)
		h, err := p.Submit(s.limited(t), job, nil)
		if err == nil || !strings.Contains(err.Error(), job.Files[at].Path) &&
			(!errors.Is(err, agent.ErrHash) && len(other) > 1 || !strings.Contains(err.Error(), "file a.txt")) {
			t.Errorf("%s: got %+v, %v, want the wrong hash of a.txt", other, h, err)
		}
		if s.listed(t, p, job.ID) {
			t.Errorf("%s: the job is there", other)
		}
	}
	h := s.submit(t, p, s.job(t, p, `cat a.txt`, map[string]string{"a.txt": content}))
	if r, exit := s.wait(t, p, h, 0); r.Stream() != content || exit.Code != 0 {
		t.Errorf("the next job: got %q, %+v, want %q", r.Stream(), exit, content)
	}
}

// refused submits a job and checks that it does not run.
func (s *suite) refused(t *testing.T, p remote.Provider, job *remote.Job) {
	t.Helper()
	h, err := p.Submit(s.limited(t), job, nil)
	if err != nil {
		if s.listed(t, p, job.ID) {
			t.Errorf("after %q the job is still there", err)
		}
		return
	}
	defer p.Release(s.limited(t), h)
	if r, exit := s.wait(t, p, h, 0); exit.End != remote.Refused || r.Stream() != "" {
		t.Errorf("got %+v, stream %q, want refused", exit, r.Stream())
	}
}

func (s *suite) spoilt(t *testing.T) {
	p := s.provider(t)
	content := map[string]string{"a.txt": NewID(t)}
	h := s.submit(t, p, s.job(t, p, `echo ran`, content))
	s.wait(t, p, h, 0)
	job := s.job(t, p, `echo ran`, content)
	at := slices.IndexFunc(job.Files, func(f remote.File) bool { return f.Name == "a.txt" })
	s.spoil(t, job.Files[at].SHA256)
	s.refused(t, p, job)
	// The corrupt file was deleted, so it is sent again.
	h = s.submit(t, p, s.job(t, p, `cat a.txt`, content))
	if r, exit := s.wait(t, p, h, 0); exit.Code != 0 || r.Stream() != content["a.txt"] {
		t.Errorf("the next job: got %q, %+v", r.Stream(), exit)
	}
}

// An agent corrupted by a crash of the host is sent again.
func (s *suite) spoiltAgent(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p, `echo ran`, nil))
	s.wait(t, p, h, 0)
	job := s.job(t, p, `echo ran again`, nil)
	program, err := job.Program()
	if err != nil {
		t.Fatal(err)
	}
	s.spoil(t, program.SHA256)
	h = s.submit(t, p, job)
	r, exit := s.wait(t, p, h, 0)
	if exit.End != remote.Exited || r.Stream() != "ran again\n" {
		t.Errorf("got %q, %+v", r.Stream(), exit)
	}
}

// A job that kills its agent and leaves a process in its own session is lost. Release ends the process.
func (s *suite) daemon(t *testing.T) {
	p := s.provider(t)
	file := filepath.Join(t.TempDir(), "beat")
	h := s.submit(t, p, s.job(t, p, `setsid sh daemon.sh </dev/null >/dev/null 2>&1 &
while ! [ -e '`+file+`' ]; do sleep 0.02; done; kill -9 $PPID; sleep 300`,
		map[string]string{"daemon.sh": "#!/bin/sh\n" + beat(file)}))
	if exit, err := p.Wait(s.limited(t), h, 0, &Recorder{}); err != nil || exit.End != remote.Lost {
		t.Errorf("got %+v, %v, want lost", exit, err)
	}
	Release(t, p, h)
	if beats(file) {
		t.Error("what the job left goes on")
	}
}

func (s *suite) invalidJob(t *testing.T) {
	p := s.provider(t)
	for name, spoil := range map[string]func(*remote.Job){
		"id":    func(j *remote.Job) { j.ID = "../" + j.ID },
		"file":  func(j *remote.Job) { j.Files[0].Name = "../x" },
		"limit": func(j *remote.Job) { j.Limit = 0 },
		"agent": func(j *remote.Job) { j.Files[0].Name = "other" },
	} {
		job := s.job(t, p, `echo ran`, nil)
		spoil(job)
		if h, err := p.Submit(s.limited(t), job, nil); err == nil {
			t.Errorf("%s: got a handle %+v, want an error", name, h)
		}
	}
}

func (s *suite) limit(t *testing.T) {
	p := s.provider(t)
	job := s.job(t, p, `echo one; sleep 300`, nil)
	job.Limit = time.Second
	begun := time.Now()
	r, exit := s.wait(t, p, s.submit(t, p, job), 0)
	if exit.End != remote.Limited || r.Stream() != "one\n" {
		t.Errorf("got %+v, %q, want limit", exit, r.Stream())
	}
	if took := time.Since(begun); took > 40*time.Second+s.Slow {
		t.Errorf("took %v", took)
	}
}

// beat is a script that shows that it is running by appending to a local file.
func beat(file string) string {
	return `echo one; trap '' HUP; while :; do echo x >>'` + file + `'; sleep 0.02; done`
}

// beats reports whether the file is still growing.
func beats(file string) bool {
	size := func() int64 {
		st, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return st.Size()
	}
	before := size()
	time.Sleep(300 * time.Millisecond)
	return size() > before
}

func (s *suite) cancel(t *testing.T) {
	p := s.provider(t)
	file := filepath.Join(t.TempDir(), "beat")
	h := s.submit(t, p, s.job(t, p, beat(file), nil))
	servertest.Until(t, "the job", func() bool { return beats(file) })
	if !s.listed(t, p, h.Job) {
		t.Error("List: the running job is not there")
	}
	ended := background(s.limited(t), p, h, &Recorder{})
	time.Sleep(100 * time.Millisecond)
	Release(t, p, h)
	if beats(file) {
		t.Error("the job goes on")
	}
	select {
	case e := <-ended:
		if e.err == nil && e.exit.End != remote.Cancelled && e.exit.End != remote.Lost {
			t.Errorf("Wait of a job that is released: got %+v", e.exit)
		}
	case <-time.After(30*time.Second + s.Slow):
		t.Fatal("Wait does not end")
	}
}

func (s *suite) releaseTwice(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p, `echo one`, nil))
	s.wait(t, p, h, 0)
	if !s.listed(t, p, h.Job) {
		t.Error("List: the job is not there before Release")
	}
	for range 2 {
		Release(t, p, h)
	}
	if s.listed(t, p, h.Job) {
		t.Error("List: the job is there after Release")
	}
	if exit, err := p.Wait(s.limited(t), h, 0, &Recorder{}); err == nil && exit.End == remote.Exited {
		t.Errorf("Wait after Release: got %+v", exit)
	}
}

// through returns the handle as decoded by another process.
func through(t *testing.T, h remote.Handle) remote.Handle {
	t.Helper()
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var read remote.Handle
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

func (s *suite) halfFree(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p, `echo one`, nil))
	s.wait(t, p, h, 0)
	dir := agent.JobDir(s.Work, h.Job) // left by a client that was killed during Release
	if err := os.Rename(dir, filepath.Join(filepath.Dir(dir), agent.FreePrefix+h.Job)); err != nil {
		t.Fatal(err)
	}
	all, err := p.List(s.limited(t))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(l remote.Handle) bool { return l.Job == h.Job })
	if i < 0 {
		t.Fatal("List: the job is not there before Release has ended")
	}
	Release(t, p, all[i])
	if s.listed(t, p, h.Job) {
		t.Error("List: the job is there after Release")
	}
}

// hostileExit replaces the files that an ended job has left. An invalid exit.json is not believed, and not more of a log
// is copied than the limit.
func (s *suite) hostileExit(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p, `echo ran`, nil))
	s.wait(t, p, h, 0)
	for name, text := range map[string]string{agent.ExitName: `{"end":"won"}`, agent.LogName: strings.Repeat("x", 17<<20)} {
		servertest.Write(t, filepath.Join(agent.JobDir(s.Work, h.Job), name), text)
	}
	if _, exit := s.wait(t, p, h, 0); exit.End != remote.Lost || !strings.Contains(exit.Text, "cannot be read") {
		t.Errorf("got %+v", exit)
	}
	if n := len(Log(t, p, h)); n != 16<<20 {
		t.Errorf("a long log: got %d bytes", n)
	}
}

// answerLost loses the reply to the start of a job: it may have started, so it is ended.
func (s *suite) answerLost(t *testing.T) {
	ctx, cancel := context.WithCancel(s.limited(t))
	defer cancel()
	p := s.Deaf(t, cancel)
	t.Cleanup(func() { p.Close() })
	file := filepath.Join(t.TempDir(), "beat")
	job := s.job(t, p, beat(file), nil)
	if h, err := p.Submit(ctx, job, nil); err == nil || ctx.Err() != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v, want an error", h, err)
	}
	// A scheduler lists a job for a moment after its end.
	servertest.Until(t, "the end of the job", func() bool { return !beats(file) && !s.listed(t, p, job.ID) })
}

// secrets checks that no credential gets into the job's environment, the files and output of the hosts, the handle or a
// command line.
func (s *suite) secrets(t *testing.T) {
	p := s.provider(t)
	seen := filepath.Join(t.TempDir(), "seen") // made once the job's own command line was seen
	job := s.job(t, p, `env; cat ../job.json; until [ -e '`+seen+`' ]; do sleep 0.05; done; echo done`, nil)
	over, lines := make(chan struct{}), make(chan string)
	go func() {
		all := map[string]bool{}
		for {
			paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, path := range paths {
				line, _ := os.ReadFile(path)
				all[string(line)] = true
				if bytes.Contains(line, []byte(job.ID)) {
					_ = os.WriteFile(seen, nil, 0o600)
				}
			}
			select {
			case <-over:
				lines <- strings.Join(slices.Collect(maps.Keys(all)), "\n")
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	h := s.submit(t, p, job)
	r, exit := s.wait(t, p, h, 0)
	close(over)
	text := fmt.Sprint(<-lines, r.Stream(), exit, string(h.Data))
	if exit.Code != 0 || !strings.Contains(r.Stream(), "done") || !strings.Contains(text, job.ID) {
		t.Fatalf("got %+v, %q", exit, r.Stream())
	}
	dst := t.TempDir()
	if err := p.Collect(s.limited(t), h, dst); err != nil {
		t.Fatal(err)
	}
	text += Files(t, dst)
	if s.Output != nil {
		text += s.Output()
	}
	for _, secret := range s.Secrets {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s in %q", secret, text[max(0, at-100):at+20])
		}
	}
}

// Files returns the names and content of the files below the folders, except of large ones such as this program.
func Files(t testing.TB, dirs ...string) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range dirs {
		if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if data, err := os.ReadFile(name); err == nil && len(data) < 1<<20 {
					fmt.Fprintf(&all, "%s: %s\n", name, data)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	return all.String()
}

func (s *suite) attach(t *testing.T) {
	first := s.New(t)
	h, err := first.Submit(s.limited(t), s.job(t, first, three+`; sleep 1; echo four`, nil), nil)
	if err != nil {
		t.Fatalf("Submit: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	p := s.provider(t)
	h = through(t, h)
	defer p.Release(s.limited(t), h)
	r, exit := s.wait(t, p, h, 4)
	if r.Stream() != "two\nthree\nfour\n" || exit.End != remote.Exited {
		t.Errorf("got %q, %+v", r.Stream(), exit)
	}
}

func (s *suite) waitCancelled(t *testing.T) {
	p := s.provider(t)
	file := filepath.Join(t.TempDir(), "go on")
	h := s.submit(t, p, s.job(t, p, `echo one; until [ -e '`+file+`' ]; do sleep 0.1; done; echo two`, nil))
	ctx, cancel := context.WithCancel(s.limited(t))
	defer cancel()
	r := &Recorder{}
	ended := background(ctx, p, h, r)
	servertest.Until(t, "the first event", func() bool { return r.Stream() == "one\n" })
	cancel()
	select {
	case e := <-ended:
		if !errors.Is(e.err, context.Canceled) {
			t.Errorf("got %v, want context canceled", e.err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Wait does not end with its context")
	}
	servertest.Write(t, file, "")
	rest, exit := s.wait(t, p, h, int64(len(r.Stream())))
	if rest.Stream() != "two\n" || exit.End != remote.Exited || exit.Code != 0 {
		t.Errorf("the job does not go on: got %q, %+v", rest.Stream(), exit)
	}
}

func (s *suite) watcherFails(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p, three, nil))
	full := errors.New("no space left here")
	r := &Recorder{Fail: func([]byte) error { return full }}
	if _, err := p.Wait(s.limited(t), h, 0, r); !errors.Is(err, full) {
		t.Errorf("got %v, want the watcher's error", err)
	}
	if rest, exit := s.wait(t, p, h, 0); rest.Stream() != "one\ntwo\nthree\n" || exit.End != remote.Exited {
		t.Errorf("after it: got %q, %+v", rest.Stream(), exit)
	}
}

func (s *suite) submitCancelled(t *testing.T) {
	p := s.provider(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	job := s.job(t, p, `echo ran`, nil)
	if _, err := p.Submit(ctx, job, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context canceled", err)
	}
	if s.listed(t, p, job.ID) {
		t.Error("the job is there")
	}
}

func (s *suite) garbage(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p,
		`printf '\000\377{"seq":\n\r\033[2J'; i=0; while [ $i -lt 300 ]; do cat block; i=$((i+1)); done; printf end`,
		map[string]string{"block": strings.Repeat("0123456789abcde\n", 1024)}))
	r, exit := s.wait(t, p, h, 0)
	want := "\x00\xff{\"seq\":\n\r\x1b[2J" + strings.Repeat("0123456789abcde\n", 300*1024) + "end"
	if r.Stream() != want || exit.Code != 0 {
		t.Errorf("got %d bytes, %+v, want %d bytes", len(r.Stream()), exit, len(want))
	}
}

func (s *suite) twoAtOnce(t *testing.T) {
	p := s.provider(t)
	places := p.Places(2)
	if places[0].String() == places[1].String() {
		t.Errorf("Places: got %v twice", places[0])
	}
	var group sync.WaitGroup
	for i, place := range places {
		job := s.job(t, p, fmt.Sprintf(`sleep 2; echo %d`, i), nil)
		job.Place = place
		h := s.submit(t, p, job)
		group.Go(func() {
			r := &Recorder{}
			if exit, err := p.Wait(s.limited(t), h, 0, r); err != nil || exit.Code != 0 || r.Stream() != fmt.Sprintln(i) {
				t.Errorf("job %d: got %q, %+v, %v", i, r.Stream(), exit, err)
			}
		})
	}
	group.Wait()
}

func (s *suite) environment(t *testing.T) {
	p := s.provider(t)
	job := s.job(t, p, `printf '%s|%s|%s\n' "$WORD" "$1" "$2"`, nil)
	job.Env = map[string]string{"WORD": `a 'b' "c" $HOME`}
	job.Args = append(job.Args, `x 'y' "z" $HOME`, ";echo no")
	if r, _ := s.wait(t, p, s.submit(t, p, job), 0); r.Stream() != `a 'b' "c" $HOME|x 'y' "z" $HOME|;echo no`+"\n" {
		t.Errorf("got %q", r.Stream())
	}
}

func (s *suite) hostKilled(t *testing.T) {
	p := s.provider(t)
	file := filepath.Join(t.TempDir(), "beat")
	h := s.submit(t, p, s.job(t, p, beat(file), nil))
	r := &Recorder{}
	ended := background(s.limited(t), p, h, r)
	servertest.Until(t, "the first event", func() bool { return r.Stream() != "" })
	s.KillHost(t, h)
	if e := <-ended; e.err != nil || e.exit.End != remote.Lost || e.exit.Text == "" {
		t.Errorf("got %+v, %v, want lost, with a text", e.exit, e.err)
	}
	if r.Stream() != "one\n" {
		t.Errorf("stream: got %q", r.Stream())
	}
	servertest.Until(t, "the program's end", func() bool { return !beats(file) })
}

func (s *suite) connectionCut(t *testing.T) {
	p := s.provider(t)
	h := s.submit(t, p, s.job(t, p, `for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.3; done`, nil))
	r := &Recorder{}
	ended := background(s.limited(t), p, h, r)
	servertest.Until(t, "the first event", func() bool { return r.Stream() != "" })
	s.Cut(t)
	e := <-ended
	if want := "1\n2\n3\n4\n5\n6\n7\n8\n9\n"; e.err != nil || r.Stream() != want || e.exit.End != remote.Exited {
		t.Errorf("got %q, %+v, %v, want each byte once", r.Stream(), e.exit, e.err)
	}
	if !slices.Contains(r.Phases(), remote.Away) {
		t.Errorf("phases: got %v, want away among them", r.Phases())
	}
}

// away makes the hosts unreachable while a job runs and ends. The job must not count as ended, and its output must be
// complete when the hosts are back.
func (s *suite) away(t *testing.T) {
	p, cut, back := s.Away(t)
	t.Cleanup(func() { p.Close() })
	dir := t.TempDir()
	h := s.submit(t, p, s.job(t, p, `echo one; while ! [ -e `+dir+`/go ]; do sleep 0.05; done; echo two; touch `+dir+`/over`,
		nil))
	r := &Recorder{}
	ctx, cancel := context.WithCancel(s.limited(t))
	defer cancel()
	ended := background(ctx, p, h, r)
	servertest.Until(t, "the first event", func() bool { return r.Stream() == "one\n" })
	cut()
	servertest.Until(t, "a host that is away", func() bool { return slices.Contains(r.Phases(), remote.Away) })
	servertest.Write(t, filepath.Join(dir, "go"), "")
	servertest.Until(t, "the job's end", func() bool { _, err := os.Stat(filepath.Join(dir, "over")); return err == nil })
	select {
	case e := <-ended:
		if remote.CodeOf(e.err) != "unreachable" {
			t.Errorf("Wait while the hosts are away: got %+v, %v, want that they cannot be reached", e.exit, e.err)
		}
	case <-time.After(3 * time.Second):
		cancel()
		<-ended
	}
	back()
	rest, exit := s.wait(t, p, h, int64(len(r.Stream())))
	if got := r.Stream() + rest.Stream(); got != "one\ntwo\n" || exit.End != remote.Exited {
		t.Errorf("when they are back: got %q, %+v", got, exit)
	}
}

// gpus submits six jobs for a host's two GPUs at once. A GPU must never have two jobs, and both must be in use at the
// same time. Refusals because of GPUs must have hints.
func (s *suite) gpus(t *testing.T) {
	p, work := s.GPUs(t)
	t.Cleanup(func() { p.Close() })
	places := p.Places(2)
	if len(places) != 2 || places[0].Host != places[1].Host && places[0].GPU >= 0 {
		t.Fatalf("places: got %v, want two of one host", places)
	}
	job := func(i int, text string) *remote.Job {
		job := Script(t, text, nil)
		job.Place, job.GPU = places[i%2], "b200"
		return job
	}
	refused := func(name, text string) {
		t.Helper()
		r, exit := s.wait(t, p, s.submit(t, p, job(0, `echo ran`)), 0)
		if exit.End != remote.Refused || !strings.Contains(exit.Text, text) || exit.Hint == "" || r.Stream() != "" {
			t.Errorf("%s: got %+v, %q, want refused: %s, with a hint", name, exit, r.Stream(), text)
		}
	}
	// If the places are GPUs of a host, Check must predict which jobs can run.
	says := func(state, text string) {
		t.Helper()
		if places[0].GPU < 0 {
			return
		}
		hosts, err := p.Check(s.limited(t))
		if err != nil || len(hosts) != 1 || hosts[0].State != state || (hosts[0].Err != nil) != (state == "down") ||
			!strings.Contains(hosts[0].Detail+fmt.Sprint(hosts[0].Err), text) {
			t.Errorf("Check: got %+v, %v, want %s: %s", hosts, err, state, text)
		}
	}
	refused("a host without driver", "no GPU: ")
	says("down", "no GPU: ")
	uuids := []string{"GPU-" + NewID(t), "GPU-" + NewID(t)}
	host := func(name string, processes ...string) {
		PutGPUs(t, work, agent.GPU{UUID: uuids[0], Name: name, Processes: processes},
			agent.GPU{UUID: uuids[1], Name: name, Processes: processes})
	}
	t.Cleanup(func() {
		for _, uuid := range uuids {
			os.Remove("/tmp/fisub-" + uuid + ".lock")
		}
	})
	host("NVIDIA H200")
	refused("a kernel for another GPU", "is NVIDIA H200, the job is for b200")
	says("down", "gpu 0 is NVIDIA H200, the job is for b200")
	host("NVIDIA GB200")
	refused("a GPU whose name has another's in it", "is NVIDIA GB200, the job is for b200")
	host("NVIDIA B200", "123 (python)")
	refused("a GPU that somebody uses", "is busy: process 123 (python)")
	says("busy", "gpu 0 is busy: process 123 (python)")
	host("NVIDIA B200")
	says("ready", "2 x NVIDIA B200")
	holding := job(0, `echo on; sleep 300`)
	h := s.submit(t, p, holding)
	servertest.Until(t, "the GPU's lock", func() bool {
		if places[0].GPU < 0 {
			return true
		}
		hosts, err := p.Check(s.limited(t))
		return err == nil && len(hosts) == 1 && hosts[0].State == "ready" &&
			strings.Contains(hosts[0].Detail, "gpu 0 is in use by another fisub job: "+h.Job)
	})
	Release(t, p, h)

	// Jobs wait a while for a GPU that is in use; these jobs are short enough for that.
	dir := t.TempDir()
	text := `cd ` + dir + `; mkdir $CUDA_VISIBLE_DEVICES || echo shared; touch met-$CUDA_VISIBLE_DEVICES
i=0; while [ $i -lt 600 ] && ! [ -e met-` + uuids[0] + ` -a -e met-` + uuids[1] + ` ]; do i=$((i+1)); sleep 0.1; done
[ $i -lt 600 ] || echo alone; sleep 0.2; rmdir $CUDA_VISIBLE_DEVICES; echo $CUDA_VISIBLE_DEVICES`
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			h, err := p.Submit(s.limited(t), job(i, text), nil)
			if err != nil {
				t.Errorf("job %d: %v", i, err)
				return
			}
			r := &Recorder{}
			exit, err := p.Wait(s.limited(t), h, 0, r)
			at := slices.Index(uuids, strings.TrimSpace(r.Stream()))
			if err != nil || exit.End != remote.Exited || at < 0 || places[0].GPU >= 0 && at != i%2 {
				t.Errorf("job %d in %v: got %q, %+v, %v, want the GPU's UUID alone", i, h.Place, r.Stream(), exit, err)
			}
			if err := p.Release(s.limited(t), h); err != nil {
				t.Errorf("job %d: %v", i, err)
			}
		})
	}
	group.Wait()
}
