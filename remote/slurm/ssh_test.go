package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/ssh"
	"fisub/remote/ssh/sshdtest"
)

// loginHost starts an sshd whose sessions have the variables of env, each "NAME=value".
func loginHost(t *testing.T, env ...string) (*sshdtest.Fleet, *sshdtest.Daemon) {
	t.Helper()
	f := sshdtest.Prepare(t, 1, func(d *sshdtest.Daemon, _ int) { d.Addr = "127.0.0.2" })
	d := f.Daemons[0]
	conf := read(t, d.Conf)
	with := strings.Replace(conf, "SetEnv ", "SetEnv "+strings.Join(append(env, ""), " "), 1)
	if with == conf && len(env) > 0 {
		t.Fatalf("no SetEnv in %s", conf)
	}
	overwrite(t, d.Conf, with)
	d.Start(t)
	return f, d
}

func TestLogin(t *testing.T) {
	t.Parallel()
	f, d := loginHost(t)
	opened, err := ssh.Open("lab", d.Name, f.Config)
	if err != nil {
		t.Fatal(err)
	}
	l := there{opened}
	defer l.Close()
	ctx := within(t)
	odd := []string{"printf", "%s|", "a b", "it's", `"$HOME"`, "$(id)", "-n", "", "*", "x;y", "a\nb", `\`}
	if out, err := l.Run(ctx, odd, ""); err != nil || out != strings.Join(odd[2:], "|")+"|" {
		t.Errorf("quoting: got %q, %v", out, err)
	}
	var failed *commandError
	for _, status := range []int{1, 254, 255} { // 255 is that of a lost connection
		_, err := l.Run(ctx, []string{"sh", "-c", fmt.Sprintf("echo 'sbatch: error: no' >&2; exit %d", status)}, "")
		if !errors.As(err, &failed) || failed.status != min(status, 254) || err.Error() != "sh: no" {
			t.Errorf("status %d: got %v", status, err)
		}
	}
	if _, err := l.Run(ctx, []string{"env", "no-such-command"}, ""); !errors.As(err, &failed) || failed.status != notFound {
		t.Errorf("no such command: got %v", err)
	}

	dir := filepath.Join(t.TempDir(), "it's a dir")
	if _, err := l.Sizes(ctx, dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: got %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("\x00\xff\n0123456789"), 300_000)
	if err := l.Put(ctx, filepath.Join(dir, agent.EventsName), bytes.NewReader(big), 0o555); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, agent.EventsName)); err != nil || st.Mode() != 0o555 || st.Size() != int64(len(big)) {
		t.Errorf("put: %v, %v", st, err)
	}
	cut := errors.New("cut")
	if err := l.Put(ctx, filepath.Join(dir, "cut"), &broken{cut}, 0o444); !errors.Is(err, cut) {
		t.Errorf("cut upload: got %v", err)
	}
	if sizes, err := l.Sizes(ctx, dir); err != nil || len(sizes) != 1 || sizes[agent.EventsName] != int64(len(big)) {
		t.Errorf("sizes: %v, %v", sizes, err)
	}
	var b bytes.Buffer
	name := filepath.Join(dir, agent.EventsName)
	if n, err := l.Read(ctx, name, 1000, 2_000_000, &b); err != nil || n != 2_000_000 || !bytes.Equal(b.Bytes(), big[1000:2_001_000]) {
		t.Errorf("read: %d bytes, %v", n, err)
	}
	if n, err := l.Read(ctx, name, int64(len(big))+5, 10, &b); err != nil || n != 0 {
		t.Errorf("read behind the end: %d bytes, %v", n, err)
	}
	if _, err := l.Read(ctx, name, 0, 10, &failing{cut}); !errors.Is(err, cut) {
		t.Errorf("read into nothing: got %v", err)
	}
	if _, err := l.Read(ctx, filepath.Join(dir, "none"), 0, 5, &b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read of no file: got %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := l.Run(short, []string{"sleep", "30"}, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that does not end: got %v", err)
	}
}

type failing struct{ err error }

func (f *failing) Write([]byte) (int, error) { return 0, f.err }

// What the login host refuses is said in ssh's words.
func TestLoginDenied(t *testing.T) {
	t.Parallel()
	f, d := loginHost(t)
	known := filepath.Join(f.Dir, "known")
	for _, tt := range []struct {
		name, code, text string
		spoil            func()
	}{
		{"host key", "host-key", "host key has changed", func() {
			overwrite(t, known, fmt.Sprintf("[%s]:%d %s", d.Addr, d.Port, read(t, filepath.Join(f.Dir, "id.pub"))))
		}},
		{"unknown host key", "host-key", "host key is not known", func() { overwrite(t, known, "") }},
		{"credentials", "credentials", "Permission denied", func() { overwrite(t, f.Config, "PubkeyAuthentication no\n"+read(t, f.Config)) }},
		{"name", "unreachable", "Could not resolve hostname", func() { overwrite(t, f.Config, "HostName no-such-host.invalid\n"+read(t, f.Config)) }},
		{"port", "unreachable", "Connection refused", func() { overwrite(t, f.Config, "Port 1\n"+read(t, f.Config)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, name := range []string{known, f.Config} {
				text := read(t, name)
				defer overwrite(t, name, text)
			}
			tt.spoil()
			p, err := open("lab", map[string]any{"login": d.Name, "ssh_config": f.Config})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			_, err = p.Submit(within(t), newJob(t, "j", "true"), nil)
			var denied *remote.Denied
			if !errors.As(err, &denied) || denied.Code != tt.code || denied.Host != d.Name || !strings.Contains(denied.Text, tt.text) || denied.Hint == "" {
				t.Errorf("got %#v", err)
			}
			hosts, err := p.Check(within(t))
			if err != nil || len(hosts) != 1 || hosts[0].State != "down" || !errors.As(hosts[0].Err, &denied) || denied.Code != tt.code {
				t.Errorf("check: %+v, %v", hosts, err)
			}
		})
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func overwrite(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
