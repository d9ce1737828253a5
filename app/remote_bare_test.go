package app

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fisub/internal/longtest"
	"fisub/remote/modal/modaltest"
	"fisub/remote/ssh/sshdtest"
)

// newBareBench returns a bench whose config has no table, with an empty home folder and no Modal token.
func newBareBench(t *testing.T) *remoteBench {
	b := newRemoteBench(t, "")
	home := t.TempDir()
	b.env = append(b.env, "HOME="+home, "MODAL_CONFIG_PATH="+filepath.Join(home, "none.toml"), "MODAL_TOKEN_ID=",
		"MODAL_TOKEN_SECRET=")
	return b
}

// Without a table, --host runs on a real sshd, and attach, logs and hosts find that host again.
func TestRemoteHostFlag(t *testing.T) {
	t.Parallel()
	f := sshdtest.New(t, 1)
	b := newBareBench(t)
	b.share(workFolders(f)[0])
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir() // OpenSSH reads the config of the account, whatever HOME is
	script := fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", ssh, f.Config)
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b.env = append(b.env, "PATH="+bin+":"+os.Getenv("PATH"))
	b.fisub(0, "remote", "--gpu", "none", "--host", "h1", "--limit", "2")
	b.whole(b.last(), 2)
	if got, want := b.last().Rows[0].Place, "ssh:h1: h1 gpu 0"; got != want {
		t.Errorf("place: got %q, want %q", got, want)
	}
	b.fisub(0, "remote", "--gpu", "none", "--host", "h1", "--limit", "2", "--detach")
	b.fisub(0, "remote", "attach", "last")
	b.whole(b.last(), 2)
	b.fisub(0, "remote", "logs", "last")
	b.fisub(0, "remote", "hosts", "--on", "ssh:h1")
	b.fisub(0, "remote", "gc", "--on", "ssh:h1", "--yes")
	b.fisub(2, "remote", "--gpu", "none", "--host", "-oProxyCommand=x", "--limit", "2")
	if got := b.stderr.String(); !strings.Contains(got, "-oProxyCommand=x") {
		t.Errorf("an option as host: got %s", got)
	}
}

// Without a table, a Modal token is enough. The server executes the jobs on this machine. With Slurm's commands too,
// the user has to choose.
func TestRemoteModalDefault(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "starts a fake Modal that runs jobs")
	s, err := modaltest.Start(t.TempDir(), "ak-PlantedTokenId123", "as-PlantedTokenSecret456")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	b := newBareBench(t)
	b.env = append(b.env, "MODAL_SERVER_URL="+s.URL(), "MODAL_TOKEN_ID=ak-PlantedTokenId123",
		"MODAL_TOKEN_SECRET=as-PlantedTokenSecret456")
	bin := t.TempDir()
	for _, name := range []string{"sh", "tar", "gcc", "g++", "as", "ld", "uname", "cat", "git"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	env := b.env
	b.env = append(env[:len(env):len(env)], "PATH="+bin)
	b.fisub(0, "remote", "--gpu", "none", "--limit", "2")
	b.whole(b.last(), 2)
	if got := b.last().Rows[0].Place; !strings.HasPrefix(got, "modal: ") {
		t.Errorf("place: got %q, want one of modal", got)
	}
	if err := os.WriteFile(filepath.Join(bin, "sbatch"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.fisub(2, "remote", "--gpu", "none", "--limit", "2")
	for _, want := range []string{"set up for modal and slurm", "fisub remote --gpu b200 --on modal"} {
		if got := b.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("two services: got %s, want %q", got, want)
		}
	}
}
