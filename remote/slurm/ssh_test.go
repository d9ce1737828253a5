package slurm

import (
	"os"
	"strings"
	"testing"

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
