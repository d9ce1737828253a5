package work_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fisub/remote/agent"
	"fisub/remote/host"
	"fisub/remote/remotetest"
	"fisub/remote/work"
)

// A plain host runs its commands as an unprivileged user.
type plain struct{ host.Local }

func (h plain) Run(ctx context.Context, argv []string, in io.Reader, out io.Writer) error {
	return h.Local.Run(ctx, append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, argv...), in, out)
}

// Each reason for rejecting a folder comes with a hint that fixes it.
func TestPrepareHints(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user and mount")
	}
	open := func(t *testing.T) string {
		dir, err := os.MkdirTemp("/tmp", "fisub-work-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return filepath.Join(dir, "work")
	}
	t.Run("mode", func(t *testing.T) {
		dir := open(t)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "store"), 0o700), os.Chown(dir, 65534, 65534),
			os.Chmod(filepath.Dir(dir), 0o755), os.Chown(filepath.Join(dir, "store"), 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{filepath.Join(dir, "store"), dir} {
			if err := os.Chmod(bad, 0); err != nil {
				t.Fatal(err)
			}
			_, err := work.New(plain{}, "", dir).Prepare(remotetest.Within(t))
			remotetest.CheckDenied(t, err, "disk", bad+": no permission", "chmod u+rwx "+bad)
		}
	})
	t.Run("path", func(t *testing.T) {
		_, err := work.New(host.Local{Env: []string{"PATH=/nonexistent"}}, "", open(t)).Prepare(remotetest.Within(t))
		remotetest.CheckDenied(t, err, "no-such", "not found", "PATH on the host")
	})
	for what, size := range map[string]string{"inodes": "nr_inodes=30,size=500m", "MB": "size=30m"} {
		t.Run(what, func(t *testing.T) {
			dir := open(t)
			if err := errors.Join(os.Mkdir(dir, 0o700), unix.Mount("none", dir, "tmpfs", 0, size+",mode=700")); err != nil {
				t.Skip(err)
			}
			defer unix.Unmount(dir, unix.MNT_DETACH)
			_, err := work.New(host.Local{}, "", dir).Send(remotetest.Within(t), remotetest.Script(t, "true", nil).Files, nil, nil)
			remotetest.CheckDenied(t, err, "disk", what+" free in "+dir, "df -i")
			if left, _ := os.ReadDir(agent.Store(dir)); len(left) != 0 {
				t.Errorf("sent in vain: %v", left)
			}
		})
	}
}

// If an agent has ended its job but cannot remove the rest of the folder, the shell removes it.
func TestFreeHalf(t *testing.T) {
	dir, hash := t.TempDir(), strings.Repeat("a", 64)
	j := &work.FolderJob{Host: host.Local{}, ID: "j1", Work: dir, Program: hash}
	script := "#!/bin/sh\nmv \"$3\" \"$(dirname \"$3\")/" + agent.FreePrefix + "j1\"; echo pipe2: too many open files >&2; exit 1\n"
	if err := errors.Join(os.MkdirAll(j.Dir(), 0o700), os.Mkdir(agent.Store(dir), 0o700),
		os.WriteFile(agent.Stored(dir, hash), []byte(script), 0o500)); err != nil {
		t.Fatal(err)
	}
	if err := j.Free(remotetest.Within(t)); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(agent.Jobs(dir)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
