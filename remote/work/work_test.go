package work_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fisub/internal/longtest"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/follow"
	"fisub/remote/host"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
	"fisub/remote/work"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

// A faulty host is this machine, except that calls fail as a test demands.
type faulty struct {
	host.Local
	mu    sync.Mutex
	calls []string
	fail  func(n int, call string) error // n counts from 1
	late  bool                           // a failing call is executed before it fails
}

func (h *faulty) call(name string, do func() error) error {
	h.mu.Lock()
	h.calls = append(h.calls, name)
	var err error
	if h.fail != nil {
		err = h.fail(len(h.calls), name)
	}
	late := h.late
	h.mu.Unlock()
	if err == nil || late {
		err = errors.Join(err, do())
	}
	return err
}

func (h *faulty) Run(ctx context.Context, argv []string, in io.Reader, out io.Writer) error {
	_, script, _ := strings.Cut(argv[2], "INT; trap - INT; ")
	return h.call("run "+script[:min(20, len(script))], func() error { return h.Local.Run(ctx, argv, in, out) })
}

func (h *faulty) Read(ctx context.Context, name string, from, limit int64, w io.Writer) (n int64, err error) {
	err = h.call("read "+filepath.Base(name), func() error {
		n, err = h.Local.Read(ctx, name, from, limit,
			w)
		return err
	})
	return n, err
}

// begins is the prefix of the call that creates a job's folder and starts its agent.
const begins = "run umask 077; dir="

// folder returns a work folder on a faulty host.
func folder(t *testing.T) (*work.Folder, *faulty) {
	t.Helper()
	h := &faulty{}
	return work.New(h, "h1", t.TempDir()), h
}

// wait follows a job whose host may be away for a minute.
func wait(t *testing.T, j *work.FolderJob, r *remotetest.Recorder) (remote.Exit, error) {
	rules := follow.Rules{Tail: true, Read: time.Millisecond, Slow: time.Second, Away: time.Minute}
	return follow.Wait(remotetest.Within(t), j, rules, 0, r)
}

// If any call, or the reply to it, is lost with its connection, the job still runs, its stream is complete and nothing is
// left behind.
func TestEachCallLost(t *testing.T) {
	t.Parallel()
	for n, failed := 2, true; failed; n++ {
		f, h := folder(t)
		failed = false
		f.Away = time.Minute
		h.late = n%2 == 1
		h.fail = func(at int, call string) error {
			if at == n/2 {
				failed = true
				return &host.LostError{Text: "call " + call}
			}
			return nil
		}
		job := remotetest.Script(t, "cat a.txt; exit 3", map[string]string{"a.txt": "one\ntwo\n"})
		j, err := f.Submit(remotetest.Within(t), job, nil)
		if err != nil { // only the call that starts the agent may fail: its result is unknown
			var lost *host.LostError
			if entries, _ := os.ReadDir(agent.Jobs(f.Dir)); !errors.As(err, &lost) || len(entries) != 0 ||
				!strings.HasPrefix(h.calls[n/2-1], begins) {
				t.Errorf("call %d, %s: got %v, left %v", n, h.calls[n/2-1], err, entries)
			}
			continue
		}
		r := &remotetest.Recorder{}
		exit, err := wait(t, j, r)
		if err != nil || exit.Code != 3 || r.Stream() != "one\ntwo\n" {
			t.Errorf("call %d: got %+v, %v, %q", n, exit, err, r.Stream())
		}
		err = j.Collect(remotetest.Within(t), t.TempDir())
		if free := j.Free(remotetest.Within(t)); err == nil {
			err = free
		}
		if err != nil && err.Error() != "connection lost: call "+h.calls[n/2-1] {
			t.Errorf("call %d: got %v", n, err)
		}
		h.fail = nil
		if err := j.Free(remotetest.Within(t)); err != nil {
			t.Errorf("call %d: freed again: %v", n, err)
		}
	}
}

// A keyed host is this machine; the user presses Ctrl-C before each command has its process group.
type keyed struct{ host.Local }

func (h keyed) Run(ctx context.Context, argv []string, in io.Reader, out io.Writer) error {
	if argv[0] == "sh" {
		argv = append([]string{"sh", "-c", "kill -INT $$; " + argv[2]}, argv[3:]...)
	}
	return h.Local.Run(ctx, argv, in, out)
}

// Ctrl-C, which is meant for the client, ends no command.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	f := work.New(keyed{}, "h1", t.TempDir())
	j, err := f.Submit(remotetest.Within(t), remotetest.Script(t, "cat a.txt", map[string]string{"a.txt": "one\n"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &remotetest.Recorder{}
	exit, err := wait(t, j, r)
	if err != nil || exit.Code != 0 || r.Stream() != "one\n" {
		t.Errorf("got %+v, %v, %q", exit, err, r.Stream())
	}
	if err := errors.Join(j.Collect(remotetest.Within(t), t.TempDir()), j.Free(remotetest.Within(t))); err != nil {
		t.Error(err)
	}
}

// Send waits Away for an unreachable host that has answered before, and tries again a few times if the connection is
// lost.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	away := &remote.Denied{Code: "unreachable", Text: "no route"}
	for _, c := range []struct {
		name  string
		fail  func(n int, call string) error
		least int // minimum number of calls
		want  error
	}{
		{"never there", func(int, string) error { return away }, 1, away},
		{"gone", func(n int, _ string) error {
			if n > 1 {
				return away
			}
			return nil
		}, 3, away},
		{"lost each time", func(int, string) error { return &host.LostError{Text: "again"} }, 4,
			&host.LostError{Text: "again"}},
		{"refused", func(int, string) error { return &remote.Denied{Code: "credentials"} }, 1,
			&remote.Denied{Code: "credentials"}},
		{"back in time", func(n int, _ string) error {
			if n > 1 && n < 4 {
				return away
			}
			return nil
		}, 6, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, h := folder(t)
			f.Away = 300 * time.Millisecond
			h.fail = c.fail
			if c.want == nil {
				f.Away = time.Minute
			}
			j, err := f.Submit(remotetest.Within(t), remotetest.Script(t, "true", nil), nil)
			if fmt.Sprint(err) != fmt.Sprint(c.want) || len(h.calls) < c.least || c.least == 1 && len(h.calls) > 1 {
				t.Errorf("got %v after %d calls, want %v after %d", err, len(h.calls), c.want, c.least)
			}
			if err == nil {
				err = j.Free(remotetest.Within(t))
			}
			if c.want == nil && err != nil {
				t.Error(err)
			}
		})
	}
}

// The store keeps a job's files and new ones and sends neither again. It deletes files unused for a month.
func TestStore(t *testing.T) {
	f, h := folder(t)
	job := remotetest.Script(t, "true", map[string]string{"a": "same", "b": "same"})
	var sent, total int64
	facts, err := f.Send(remotetest.Within(t), job.Files, func(s, all int64) { sent, total = s, all }, nil)
	want := job.Files[0].Size + job.Files[1].Size + job.Files[3].Size
	if err != nil || sent != want || total != want || facts.Root != f.Dir {
		t.Fatalf("got %+v, %v, sent %d of %d bytes, want %d", facts, err, sent, total, want)
	}
	store := agent.Store(f.Dir)
	age := func(name string, days int) {
		t.Helper()
		at := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
		_, err := os.Stat(filepath.Join(store, name))
		if err != nil {
			err = os.WriteFile(filepath.Join(store, name), nil, 0o600)
		} else {
			err = nil
		}
		if err = errors.Join(err, os.Chtimes(filepath.Join(store, name), at, at)); err != nil {
			t.Fatal(err)
		}
	}
	age(".cut-off", 32)
	age("old", 32)
	age("young", 29)
	for _, file := range job.Files {
		age(file.SHA256, 100)
	}
	before := len(h.calls)
	if _, err := f.Send(remotetest.Within(t), job.Files, func(s, all int64) { sent, total = s, all }, nil); err != nil || total != 0 {
		t.Errorf("again: %v, sent %d of %d bytes", err, sent, total)
	}
	if got := h.calls[before:]; len(got) != 1 {
		t.Errorf("again: got calls %q, want one", got)
	}
	var names []string
	entries, _ := os.ReadDir(store)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) != 4 || !slices.Contains(names, "young") {
		t.Errorf("store: got %v", names)
	}
	for _, file := range job.Files {
		st, err := os.Stat(agent.Stored(f.Dir, file.SHA256))
		if err != nil || st.Mode() != file.Mode() || time.Since(st.ModTime()) > time.Hour {
			t.Errorf("%s: got %v, %v", file.Name, st, err)
		}
	}
	file := remote.File{Name: "none", SHA256: strings.Repeat("0", 64), Path: filepath.Join(store, "none")}
	if _, err := f.Send(remotetest.Within(t), []remote.File{file}, nil, nil); !errors.As(err, new(*remote.LocalError)) {
		t.Errorf("a file that is not on this machine: got %v", err)
	}
	// A truncated file, as after a crash of the host, is sent again.
	if err := os.Truncate(agent.Stored(f.Dir, job.Files[0].SHA256), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Send(remotetest.Within(t), job.Files, func(_, all int64) { total = all }, nil); err != nil ||
		total != job.Files[0].Size {
		t.Errorf("a short file: %v, %d bytes, want %d", err, total, job.Files[0].Size)
	}
}

// Prepare creates the folder in the configured place; the home folder may have any name.
func TestPrepare(t *testing.T) {
	home := filepath.Join(t.TempDir(), "it's a home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"~/a/b": home + "/a/b", "c": home + "/c", home + "/d/../e": home + "/e",
	} {
		f := work.New(host.Local{Env: []string{"HOME=" + home}}, "", dir)
		facts, err := f.Prepare(remotetest.Within(t))
		if err != nil || facts.Root != want || !strings.HasPrefix(facts.System, "Linux ") || facts.Free <= 0 {
			t.Errorf("%s: got %+v, %v, want %s", dir, facts, err, want)
		}
		if st, err := os.Stat(agent.Store(want)); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: got %v, %v", dir, st, err)
		}
	}
	_, err := work.New(host.Local{}, "", "/proc/none").Prepare(remotetest.Within(t))
	remotetest.CheckDenied(t, err, "disk", "", "")
}

// TestFault checks the code and text of each kind of error.
func TestFault(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		code string
		text string
	}{
		{"lost", &host.LostError{Text: "cut", Hint: "ssh -p 2222 h1"}, "unreachable", "lab: h1: connection lost: cut"},
		{"denied", &remote.Denied{Code: "disk", Text: "full"}, "disk", "lab: h1: full"},
		{"denied, and more", fmt.Errorf("%w; it may run", &remote.Denied{Code: "disk", Text: "full"}), "disk",
			"lab: h1: full; it may run"},
		{"no programs", &host.ExitError{Name: "x", Status: host.NotRunnable}, "disk", "lab: h1: x: exit status 126"},
		{"no space", &fs.PathError{Op: "write", Path: "/w", Err: syscall.ENOSPC}, "disk",
			"lab: h1: write /w: no space left on device"},
		{"no permission", &fs.PathError{Op: "open", Path: "/w", Err: syscall.EACCES}, "disk",
			"lab: h1: open /w: permission denied"},
		{"other", errors.New("odd"), "", "lab: h1: odd"},
		{"of this machine", &remote.LocalError{Err: fs.ErrPermission}, "", "lab: h1: permission denied"},
	} {
		err := work.Fault(t.Context(), "lab", "h1", fmt.Errorf("%w", c.err))
		denied := &remote.Denied{}
		errors.As(err, &denied)
		if err.Error() != c.text || denied.Code != c.code {
			t.Errorf("%s: got %v, %q, want %s, %q", c.name, err, denied.Code, c.text, c.code)
		}
		if lost, ok := c.err.(*host.LostError); ok && denied.Hint != lost.Hint {
			t.Errorf("got hint %q, want %q", denied.Hint, lost.Hint)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := work.Fault(ctx, "lab", "", errors.New("odd")); !errors.Is(err, context.Canceled) ||
		err.Error() != "lab: context canceled" {
		t.Errorf("got %v", err)
	}
}

// A cutting host is this machine behind a connection that is lost after a number of bytes of a file.
type cutting struct {
	host.Local
	after int64
	seeks []string // first blocks of the uploads
}

func (h *cutting) Run(ctx context.Context, argv []string, in io.Reader, out io.Writer) error {
	if !strings.Contains(argv[2], "dd of=") {
		return h.Local.Run(ctx, argv, in, out)
	}
	h.seeks = append(h.seeks, argv[6])
	if h.after == 0 {
		return h.Local.Run(ctx, argv, in, out)
	}
	in, h.after = io.LimitReader(in, h.after), 0
	_ = h.Local.Run(ctx, argv, in, out)
	return &host.LostError{Text: "cut"}
}

// An interrupted upload resumes, even in another process. If it cannot, it starts again.
func TestUploadGoesOn(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	for _, c := range []struct {
		name    string
		pack    bool
		content []byte
		begun   string // prefix of the partial upload
	}{
		{"plain", false, noise, ".part-"},
		{"text", true, []byte(fmt.Sprintf("%x", noise)), ".gzip-"},
		{"noise", true, noise, ".part-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := filepath.Join(t.TempDir(), "big")
			if err := os.WriteFile(name, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			files := []remote.File{remotetest.File(t, "big", name, false)}
			h := &cutting{after: 500_000}
			dir := t.TempDir()
			send := func() {
				t.Helper()
				f := work.New(h, "h1", dir)
				f.Pack = c.pack
				var sent, total int64
				if _, err := f.Send(remotetest.Within(t), files, func(s, all int64) { sent, total = s, all }, nil); err != nil || sent != total {
					t.Errorf("got %v, sent %d of %d bytes", err, sent, total)
				}
				entries, _ := os.ReadDir(agent.Store(dir))
				got, err := os.ReadFile(agent.Stored(dir, files[0].SHA256))
				if err != nil || !bytes.Equal(got, c.content) || len(entries) != 1 {
					t.Errorf("store: got %d bytes, %v, entries %v", len(got), err, entries)
				}
			}
			send()
			if fmt.Sprint(h.seeks) != "[0 7]" {
				t.Errorf("began at %v, want the second one to go on", h.seeks)
			}
			// Useless leftovers of a killed client: wrong content, half unpacked.
			part := filepath.Join(agent.Store(dir), c.begun+files[0].SHA256)
			if err := errors.Join(os.Remove(agent.Stored(dir, files[0].SHA256)), os.WriteFile(part, make([]byte, 300_000),
				0o600), os.WriteFile(part+".64", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			h.seeks = nil
			send()
			if fmt.Sprint(h.seeks) != "[4 0]" {
				t.Errorf("began at %v, want it to begin again", h.seeks)
			}
		})
	}
}

// Clients that send the same files at the same time do not disturb each other.
func TestSendAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	job := remotetest.Script(t, "cat a.txt", map[string]string{"a.txt": strings.Repeat("a line\n", 200_000)})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			f := work.New(host.Local{}, "h1", dir)
			f.Pack = i%2 == 0
			own := *job
			own.ID = remotetest.NewID(t)
			j, err := f.Submit(remotetest.Within(t), &own, nil)
			if err != nil {
				t.Error(err)
				return
			}
			exit, err := wait(t, j, &remotetest.Recorder{})
			if err != nil || exit.End != remote.Exited || exit.Code != 0 {
				t.Errorf("got %+v, %v", exit, err)
			}
			if err := j.Free(remotetest.Within(t)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if left, _ := filepath.Glob(filepath.Join(agent.Store(dir), ".*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// An agent damaged by a crash of the host is sent again. Free reports that it cannot end its job, and removes a job
// that is over.
func TestDamaged(t *testing.T) {
	t.Parallel()
	longtest.Skip(t, "sends files many times")
	f, _ := folder(t)
	begun := remotetest.Script(t, "touch begun; sleep 600", nil)
	begun.Limit = 10 * time.Minute
	j, err := f.Submit(remotetest.Within(t), begun, nil)
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(j.Dir(), agent.StateName)
	servertest.Until(t, "the job to begin", func() bool { // until then its agent verifies the stored program
		_, err := os.Stat(filepath.Join(j.Dir(), agent.BundleName, "begun"))
		return err == nil
	})
	program := agent.Stored(f.Dir, j.Program)
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	put := func(content []byte) {
		t.Helper()
		if err := errors.Join(os.Remove(program), os.WriteFile(program, content, 0o555)); err != nil {
			t.Fatal(err)
		}
	}
	for name, damaged := range map[string][]byte{"empty": nil, "cut": content[:100_000], "zeros": make([]byte, len(content)),
		"no program": bytes.Repeat([]byte("\n"), len(content)), "not what it was": append([]byte("#!/bin/true\n"), content[12:]...)} {
		put(damaged)
		if name == "empty" { // once is enough: the other cases take as long
			if exit, err := wait(t, j, &remotetest.Recorder{}); err != nil || exit.End != remote.Lost ||
				!strings.HasPrefix(exit.Text, "following the job: ") {
				t.Errorf("%s: following: got %+v, %v", name, exit, err)
			}
		}
		if err := j.Free(remotetest.Within(t)); err == nil || !strings.Contains(err.Error(), "may still run") {
			t.Errorf("%s: freed: got %v", name, err)
		}
		next := remotetest.Script(t, "echo ran", nil)
		n, err := f.Submit(remotetest.Within(t), next, nil)
		if err != nil {
			t.Errorf("%s: the next job: %v", name, err)
			continue
		}
		r := &remotetest.Recorder{}
		if exit, err := wait(t, n, r); err != nil || exit.End != remote.Exited || r.Stream() != "ran\n" {
			t.Errorf("%s: the next job: got %+v, %v, %q", name, exit, err, r.Stream())
		}
		put(damaged)
		if err := n.Free(remotetest.Within(t)); err != nil {
			t.Errorf("%s: freed when it has ended: got %v", name, err)
		}
		if _, err := os.Stat(n.Dir()); err == nil {
			t.Errorf("%s: it is said to be freed, and is there", name)
		}
	}
	// After a restart of the host.
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	text, err2 := os.ReadFile(state)
	other := strings.Replace(string(text), strings.TrimSpace(string(boot)), "another", 1)
	put(content)
	defer func() {
		if err := j.Free(remotetest.Within(t)); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(err, err2); err != nil || other == string(text) {
		t.Fatalf("got %v, %s", err, text)
	}
	put(nil)
	copied := *j
	copied.ID = remotetest.NewID(t)
	if err := errors.Join(os.Mkdir(copied.Dir(), 0o700), os.WriteFile(filepath.Join(copied.Dir(), agent.StateName),
		[]byte(other), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := copied.Free(remotetest.Within(t)); err != nil {
		t.Errorf("after a reboot: got %v", err)
	}
	put(content)
}

// Programs are run from the folder: Prepare rejects one that others can change or that is mounted noexec.
func TestUnsafeFolder(t *testing.T) {
	t.Parallel()
	refused := func(dir, text, hint string) {
		t.Helper()
		_, err := work.New(host.Local{}, "", dir).Prepare(remotetest.Within(t))
		remotetest.CheckDenied(t, err, "disk", text, hint)
	}
	for _, sub := range []string{"", "store", "jobs"} {
		dir := t.TempDir()
		at := filepath.Join(dir, sub)
		if err := errors.Join(os.MkdirAll(at, 0o700), os.Chmod(at, 0o777)); err != nil {
			t.Fatal(err)
		}
		refused(dir, at+" can be changed by others", "chmod go-w "+at)
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := work.New(host.Local{}, "", dir).Prepare(remotetest.Within(t)); err != nil {
			t.Errorf("that others can read: got %v", err)
		}
		if os.Getuid() != 0 {
			continue
		}
		if err := os.Chown(at, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		refused(dir, at+" belongs to ", "your own folder")
	}
	if os.Getuid() == 0 {
		dir := t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOEXEC, "size=1m"); err != nil {
			t.Skipf("no disk of its own: %v", err)
		}
		defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
		refused(filepath.Join(dir, "work"), "programs cannot run in "+dir, "noexec")
	}
}

// An unsuitable GPU is reported before files are sent, by nvidia-smi if the host does not have the agent yet.
func TestReady(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	smi := func(gpus, apps string) {
		t.Helper()
		text := "#!/bin/sh\ncase $1 in --query-gpu*) printf '" + gpus + "';; *) printf '" + apps + "';; esac\n"
		if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h := host.Local{Env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")}}
	uuid := "GPU-" + remotetest.NewID(t)
	lock := agent.LockName(uuid)
	defer os.Remove(lock)
	const two = "%s, NVIDIA H200, 580.95\\nGPU-other, NVIDIA GH200 480GB, 580.95\\n"
	dir := t.TempDir()
	f := work.New(h, "h1", dir)
	says := func(kind string, ordinals []int, state, text string) {
		t.Helper()
		got, detail, err := f.Ready(remotetest.Within(t), kind, ordinals)
		if got != state || (err != nil) != (state == "down") || !strings.Contains(detail+fmt.Sprint(err), text) {
			t.Errorf("%s on %v: got %s, %q, %v, want %s, %q", kind, ordinals, got, detail, err, state, text)
		}
	}
	smi(fmt.Sprintf(two, uuid), "")
	says("h200", []int{0}, "ready", "2 x NVIDIA H200, driver 580.95")
	says("h200", []int{0, 1}, "ready", "gpu 1 is NVIDIA GH200 480GB, the job is for h200")
	says("h200", []int{1}, "down", "gpu 1 is NVIDIA GH200 480GB, the job is for h200")
	says("h200", []int{2}, "down", "no gpu 2, the host has 2")
	says("", []int{0}, "ready", "2 x NVIDIA H200")
	smi(fmt.Sprintf(two, uuid), uuid+", 123, python\\n")
	says("h200", []int{0}, "busy", "gpu 0 is busy: process 123 (python)")
	smi(fmt.Sprintf(two, uuid), "")
	held, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	says("h200", []int{0}, "busy", "gpu 0 is in use by another fisub job")
	held.Close()
	smi("", "")
	says("h200", []int{0}, "down", "no NVIDIA GPU")
	says("", []int{0}, "ready", "no NVIDIA GPU")

	smi(fmt.Sprintf(two, uuid), "")
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("made: %v", entries)
	}
	job := remotetest.Script(t, "true", nil)
	job.GPU, job.Place.GPU = "b200", 0
	if _, err := f.Submit(remotetest.Within(t), job, nil); remote.CodeOf(err) != "no-such" ||
		!strings.Contains(err.Error(), "gpu 0 is NVIDIA H200, the job is for b200") {
		t.Errorf("submitted: got %v", err)
	}
	if entries, _ := os.ReadDir(agent.Store(dir)); len(entries) != 0 {
		t.Errorf("sent in vain: %v", entries)
	}
}
