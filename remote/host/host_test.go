package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fisub/internal/longtest"
	"fisub/remote"
	"fisub/remote/host"
	"fisub/remote/servertest"
	"fisub/remote/ssh/sshdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// login starts an sshd and returns a host that connects to it.
func login(t *testing.T) (*host.SSH, *sshdtest.Fleet) {
	t.Helper()
	f := sshdtest.New(t, 1)
	s := &host.SSH{Name: f.Daemons[0].Name, Config: f.Config}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, f
}

// TestHosts checks the contract of Host for each implementation.
func TestHosts(t *testing.T) {
	t.Run("local", func(t *testing.T) { promises(t, host.Local{}) })
	t.Run("ssh", func(t *testing.T) {
		s, _ := login(t)
		promises(t, s)
	})
}

type failing struct{ err error }

func (f *failing) Write([]byte) (int, error) { return 0, f.err }

func promises(t *testing.T, h host.Host) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	odd := []string{"printf", "%s|", "a b", "it's", `"$HOME"`, "$(id)", "-n", "", "*", "x;y", "a\nb", `\`}
	if err := h.Run(ctx, odd, nil, &out); err != nil || out.String() != strings.Join(odd[2:], "|")+"|" {
		t.Errorf("odd words: got %q, %v", out.String(), err)
	}
	out.Reset()
	if err := h.Run(ctx, []string{"cat"}, strings.NewReader("in"), &out); err != nil || out.String() != "in" {
		t.Errorf("standard input: got %q, %v", out.String(), err)
	}
	var failed *host.ExitError
	for _, status := range []int{1, 254} {
		err := h.Run(ctx, []string{"sh", "-c", fmt.Sprintf("echo 'sh: error: no' >&2; exit %d", status)}, nil, nil)
		if !errors.As(err, &failed) || failed.Status != status || err.Error() != "sh: no" {
			t.Errorf("status %d: got %v", status, err)
		}
	}
	if err := h.Run(ctx, []string{"no-such-command"}, nil, nil); !errors.As(err, &failed) ||
		failed.Status != host.NotFound {
		t.Errorf("no such command: got %v", err)
	}
	dir := filepath.Join(t.TempDir(), "it's a dir")
	if _, err := host.Sizes(ctx, h, dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: got %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := h.Run(ctx, []string{dir}, nil, nil); !errors.As(err, &failed) || failed.Status != host.NotRunnable {
		t.Errorf("a folder as a command: got %v", err)
	}

	name := filepath.Join(dir, "big")
	big := bytes.Repeat([]byte("\x00\xff\n0123456789"), 300_000)
	servertest.Write(t, name, string(big))
	cut := errors.New("cut")
	if sizes, err := host.Sizes(ctx, h, dir); err != nil || len(sizes) != 1 || sizes["big"] != int64(len(big)) {
		t.Errorf("sizes: %v, %v", sizes, err)
	}
	out.Reset()
	if n, err := host.Read(ctx, h, name, 1000, 2_000_000, &out); err != nil || n != 2_000_000 ||
		!bytes.Equal(out.Bytes(), big[1000:2_001_000]) {
		t.Errorf("read: %d bytes, %v", n, err)
	}
	if n, err := host.Read(ctx, h, name, int64(len(big))+5, 10, &out); err != nil || n != 0 {
		t.Errorf("read behind the end: %d bytes, %v", n, err)
	}
	if _, err := host.Read(ctx, h, name, 0, 10, &failing{cut}); !errors.Is(err, cut) {
		t.Errorf("read into nothing: got %v", err)
	}
	if err := h.Run(ctx, []string{"cat", name}, nil, &failing{cut}); !errors.Is(err, cut) {
		t.Errorf("run into nothing: got %v", err)
	}
	begun := time.Now()
	err := h.Run(ctx, []string{"sh", "-c", "echo on; exec sleep 50"}, nil, &failing{cut})
	if !errors.Is(err, cut) || time.Since(begun) > 30*time.Second {
		t.Errorf("a command that says no more: got %v after %v", err, time.Since(begun))
	}
	if _, err := host.Read(ctx, h, filepath.Join(dir, "none"), 0, 5, &out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read of no file: got %v", err)
	}
	short, end := context.WithTimeout(ctx, 300*time.Millisecond)
	defer end()
	if err := h.Run(short, []string{"sleep", "30"}, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that does not end: got %v", err)
	}
}

// A command's exit status 255 is not taken for ssh's own, which means a lost connection.
func TestStatus255(t *testing.T) {
	t.Parallel()
	s, _ := login(t)
	var failed *host.ExitError
	if err := s.Run(t.Context(), []string{"sh", "-c", "exit 255"}, nil, nil); !errors.As(err, &failed) ||
		failed.Status != 254 {
		t.Errorf("got %v", err)
	}
}

func TestExitError(t *testing.T) {
	for _, c := range []struct {
		err  host.ExitError
		want string
	}{
		{host.ExitError{"sbatch", 1, "sbatch: error: no\nsbatch: error: no\nsbatch: why\n"}, "sbatch: no; why"},
		{host.ExitError{"", 1, "mkdir: cannot \x1b[31mdo it\n\n"}, "mkdir: cannot [31mdo it"},
		{host.ExitError{"squeue", 127, ""}, "squeue: command not found"},
		{host.ExitError{"squeue", 3, " \n"}, "squeue: exit status 3"},
		{host.ExitError{"x", 1, "1\n2\n3\n4\n5\n6\n"}, "x: 1; 2; 3; 4; 5"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.err, got, c.want)
		}
	}
}

// Ctrl-C in the terminal never reaches a command of Local, not even just after its start.
func TestKeyboard(t *testing.T) {
	run := func(argv ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := (host.Local{}).Run(t.Context(), argv, nil, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	var pid, group int
	out := run("cut", "-d ", "-f1,5", "/proc/self/stat")
	if _, err := fmt.Sscan(out, &pid, &group); err != nil || pid != group {
		t.Errorf("got %q, want a process that leads its group", out)
	}
	if out, want := run("grep", "SigBlk", "/proc/self/status"), "SigBlk:\t0000000000000002\n"; out != want {
		t.Errorf("got %q, want %q: SIGINT is blocked", out, want)
	}
}

// A host whose shell hangs does not delay a caller whose context has ended.
func TestHangs(t *testing.T) {
	t.Parallel()
	s, f := login(t)
	d := f.Daemons[0]
	asked := filepath.Join(f.Dir, "asked")
	force(t, d, "case $SSH_ORIGINAL_COMMAND in *cat*) ;; *) echo >"+asked+"; exec sleep 60;; esac; exec cat >/dev/null")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := host.Sizes(ctx, s, "/")
		ended <- err
	}()
	servertest.Until(t, "the request", func() bool { _, err := os.Stat(asked); return err == nil })
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it goes on when its context has ended")
	}
}

// A host may be given by its IPv6 address.
func TestIPv6(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("no IPv6: %v", err)
	} else {
		l.Close()
	}
	f := sshdtest.Prepare(t, 1, func(d *sshdtest.Daemon, _ int) { d.Addr = "::1" })
	f.Daemons[0].Start(t)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := &host.SSH{Name: fmt.Sprintf("%s@[::1]:%d", me.Username, f.Daemons[0].Port), Config: f.Config}
	defer s.Close()
	var out bytes.Buffer
	if err := s.Run(t.Context(), []string{"echo", "there"}, nil, &out); err != nil || out.String() != "there\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// The text of an account that runs another command is in the error.
func TestForcedCommand(t *testing.T) {
	t.Parallel()
	const text = "This account is for file transfer only."
	for _, script := range []string{"echo '" + text + "'", "echo '" + text + "'; exit 1", "echo '" + text + "' >&2; exit 7",
		"echo '" + text + "'; sleep 1", "sleep 1; echo '" + text + "'; exit 1"} {
		s, f := login(t)
		force(t, f.Daemons[0], script)
		for range 3 {
			err := s.Run(t.Context(), []string{"true"}, nil, nil)
			var denied *remote.Denied
			if !errors.As(err, &denied) || denied.Code != "no-such" || !strings.HasSuffix(denied.Text, ": "+text) ||
				!strings.Contains(denied.Hint, "command") {
				t.Errorf("%s: got %v, %+v", script, err, denied)
			}
		}
	}
}

// What ssh says of the shared connection is not the account's text.
func TestForcedAside(t *testing.T) {
	const aside = "muxclient: master hello exchange failed\nmux_client_request_session: read from master failed: Broken pipe\n"
	s := &host.SSH{Name: "h1"}
	if got, want := s.Forced(aside+"muxing is not allowed", "No."), s.Forced("muxing is not allowed", "No."); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// force restarts the sshd to run a script for each request, which is in SSH_ORIGINAL_COMMAND.
func force(t *testing.T, d *sshdtest.Daemon, script string) {
	t.Helper()
	d.Stop()
	path := d.Conf + ".sh"
	conf, err := os.ReadFile(d.Conf)
	if err == nil {
		err = os.WriteFile(path, []byte(script+"\n"), 0o600)
	}
	if err == nil {
		err = os.WriteFile(d.Conf, fmt.Appendf(conf, "ForceCommand /bin/sh %s\n", path), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.Start(t)
}

// loginShell makes the sshd run requests with that login shell, after the startup file (unless it is "").
func loginShell(t *testing.T, f *sshdtest.Fleet, shell, startup string) {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		longtest.CI(t, "starts "+shell)
		longtest.Missing(t, "shells", "no "+shell)
	}
	force(t, f.Daemons[0], startup+"\nexec "+path+` -c "$SSH_ORIGINAL_COMMAND"`)
}

// csh and fish, which treat quotes, braces and `!` in their own ways, work as login shells.
func TestLoginShells(t *testing.T) {
	for _, shell := range []string{"tcsh", "fish", "bash"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			s, f := login(t)
			loginShell(t, f, shell, "")
			promises(t, s)
			var out bytes.Buffer
			odd := []string{"printf", "%s|", "!!", "a!b", "\x81\u00e9\t\r", `\\\\n`, "%s%%", "{a,b}", "~", "[a]*?", "\n\n"}
			if err := s.Run(t.Context(), odd, nil, &out); err != nil || out.String() != strings.Join(odd[2:], "|")+"|" {
				t.Errorf("odd words: got %q, %v", out.String(), err)
			}
			out.Reset()
			big := bytes.Repeat([]byte("fisub:\x00\n'\\"), 100_000)
			if err := s.Run(t.Context(), []string{"cat"}, bytes.NewReader(big), &out); err != nil ||
				!bytes.Equal(out.Bytes(), big) {
				t.Errorf("standard input: got %d bytes, %v, want %d", out.Len(), err, len(big))
			}
		})
	}
}

// The error names a startup file that reads stdin or hangs, and nothing of the remaining input is run.
func TestStartupFiles(t *testing.T) {
	defer host.SetShellTime(2 * time.Second)()
	for startup, want := range map[string]string{
		"read x; read y": "reads standard input",
		"head -c 5":      "reads standard input",
		"cat >/dev/null": "reads standard input",
		"sleep 1000":     "did not run a command within 2s",
	} {
		s, f := login(t)
		// The request that opens the connection has no marker to wait for.
		loginShell(t, f, "bash", `case $SSH_ORIGINAL_COMMAND in *"timeout 1"*) ;; *) `+startup+"\n;; esac")
		err := s.Run(t.Context(), []string{"cat"}, strings.NewReader("one\ntwo\nthree\n"), nil)
		var d *remote.Denied
		if !errors.As(err, &d) || !strings.Contains(d.Text, want) || !strings.Contains(d.Hint, "startup files") {
			t.Errorf("%s: got %v, want %q and a hint", startup, err, want)
		}
	}
}

// A temporary folder is not used if its path is too long for a socket or contains special characters.
func TestLongTemporaryFolder(t *testing.T) {
	for _, name := range []string{strings.Repeat("x", 110), "a b", "100%d", "it's"} {
		t.Run(name[:3], func(t *testing.T) {
			s, _ := login(t)
			dir := filepath.Join(t.TempDir(), name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("TMPDIR", dir)
			if err := s.Run(t.Context(), []string{"true"}, nil, nil); err != nil {
				t.Errorf("got %v", err)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

// The hint for a changed host key removes the entry that ssh found, whatever name the config uses.
func TestChangedKey(t *testing.T) {
	s, f := login(t)
	d := f.Daemons[0]
	d.Stop()
	key := d.Conf + ".other"
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	conf, err := os.ReadFile(d.Conf)
	if err != nil {
		t.Fatal(err)
	}
	conf = bytes.Replace(conf, []byte(filepath.Join(f.Dir, d.Name+".key")), []byte(key), 1)
	servertest.Write(t, d.Conf, string(conf))
	d.Start(t)
	var denied *remote.Denied
	if err := s.Run(t.Context(), []string{"true"}, nil, nil); !errors.As(err, &denied) || denied.Code != "host-key" {
		t.Fatalf("got %v", err)
	}
	_, command, _ := strings.Cut(denied.Hint, "reinstalled: ")
	command, _, _ = strings.Cut(command, ", then ")
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", denied.Hint, err, out)
	}
	known, err := os.ReadFile(filepath.Join(f.Dir, "known"))
	if err != nil || len(known) > 0 {
		t.Errorf("after %q: known_hosts holds %q, %v", command, known, err)
	}
}

// Files need no SFTP subsystem, and startup files may print anything.
func TestNoisyFiles(t *testing.T) {
	t.Parallel()
	s, f := login(t)
	force(t, f.Daemons[0], `case $SSH_ORIGINAL_COMMAND in *sftp*) exit 1;; esac
printf 'welcome\0\036fisub\036 to h1\n'; echo noise >&2; eval "$SSH_ORIGINAL_COMMAND"`)
	promises(t, s)
}

// After a client is cut off, nothing on the host waits for it. A live client keeps its connection.
func TestSilent(t *testing.T) {
	defer host.SetSilence(5 * time.Second)()
	s, f := login(t)
	client := func() string {
		var out bytes.Buffer
		if err := s.Run(t.Context(), []string{"sh", "-c", "echo $SSH_CONNECTION"}, nil, &out); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	first := client()
	seen := map[int]bool{}
	servertest.Until(t, "the client's words are not heard", func() bool {
		for _, pid := range f.Daemons[0].Begun() {
			seen[pid] = true
		}
		return len(seen) > 12 // each byte from the client ends two processes and starts two
	})
	if now := client(); now != first {
		t.Errorf("connection: got %q, want %q", now, first)
	}
	masters := 0
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		words, _ := os.ReadFile(path)
		if pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))); bytes.Contains(words, []byte(f.Config+"\x00")) &&
			bytes.Contains(words, []byte("ControlMaster=yes")) {
			masters++
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
		}
	}
	if masters != 1 {
		t.Fatalf("got %d connections", masters)
	}
	servertest.Until(t, "they wait for a client that is silent", func() bool { return len(f.Daemons[0].Begun()) == 0 })
}

// A caller that gives up does not abort a connection attempt that others need.
func TestShared(t *testing.T) {
	h, _ := login(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := h.Run(ctx, []string{"true"}, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("given up: got %v", err)
	}
	if err := h.Run(t.Context(), []string{"true"}, nil, nil); err != nil || h.Connections() != 1 {
		t.Errorf("got %v, and %d connections", err, h.Connections())
	}
}

// All output of a command reaches even a slow reader. Run does not wait for a silent process that outlives the command.
func TestSlowReader(t *testing.T) {
	slow := &slowWriter{}
	const size = 200 << 10 // more than a pipe holds
	if err := (host.Local{}).Run(t.Context(), []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}, nil, slow); err != nil {
		t.Error(err)
	}
	if slow.n != size {
		t.Errorf("got %d bytes, want %d", slow.n, size)
	}
	err := (host.Local{}).Run(t.Context(), []string{"sh", "-c", "echo one; sleep 100 & echo $!"}, nil, slow)
	if !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("got %v, want %v", err, exec.ErrWaitDelay)
	}
	if p, err := os.FindProcess(slow.last); err == nil {
		_ = p.Kill()
	}
}

// A slowWriter takes longer for its last writes than Run waits after the command.
type slowWriter struct{ n, last int }

func (s *slowWriter) Write(p []byte) (int, error) {
	if s.n += len(p); s.n > 160<<10 {
		time.Sleep(1200 * time.Millisecond)
	}
	for _, word := range strings.Fields(string(p)) {
		s.last, _ = strconv.Atoi(word)
	}
	return len(p), nil
}
