package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fisub/remote"
	"fisub/remote/remotetest"
	"fisub/remote/ssh/sshdtest"
)

// loginHost starts an sshd whose sessions have the variables env, each "NAME=value".
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

// Refusals by the login host keep ssh's words.
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
		{"unknown host key", "host-key", "unknown host key", func() { overwrite(t, known, "") }},
		{"credentials", "credentials", "Permission denied",
			func() { overwrite(t, f.Config, "PubkeyAuthentication no\n"+read(t, f.Config)) }},
		{"name", "unreachable", "Could not resolve hostname",
			func() { overwrite(t, f.Config, "HostName no-such-host.invalid\n"+read(t, f.Config)) }},
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
			_, err = p.Submit(remotetest.Within(t), newJob(t, "j", "true"), nil)
			var denied *remote.Denied
			if !errors.As(err, &denied) || denied.Code != tt.code || denied.Host != d.Name ||
				!strings.Contains(denied.Text, tt.text) || denied.Hint == "" {
				t.Errorf("got %#v", err)
			}
			hosts, err := p.Check(remotetest.Within(t))
			if err != nil || len(hosts) != 1 || hosts[0].State != "down" || !errors.As(hosts[0].Err, &denied) ||
				denied.Code != tt.code {
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
