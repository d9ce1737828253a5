package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fisub/remote/agent"
	"fisub/remote/ssh/sshdtest"
	"fisub/runs"
)

// A host that is unknown, rejects the user, is unreachable or has no room gives exit status 1, ssh's own message and a
// hint. It leaves no run folder, and nothing on the host.
func TestRemoteBadHosts(t *testing.T) {
	f := sshdtest.New(t, 1)
	d := f.Daemons[0]
	config, err := os.ReadFile(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) string {
		t.Helper()
		name = filepath.Join(f.Dir, name)
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	known, id := filepath.Join(f.Dir, "known"), filepath.Join(f.Dir, "id")
	public, err := os.ReadFile(id + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		table, from, to string // edit of the ssh config
		more            string // added to the table
		text, hint      string
	}{
		{"unknown", known, write("none", ""), "", "unknown host key: ",
			"run ssh h1 once, and compare the fingerprint"},
		{"changed", known, write("other", fmt.Sprintf("[%s]:%d %s", d.Addr, d.Port, public)), "",
			"its host key has changed: ", "possible eavesdropping"},
		{"stranger", id + "\n", filepath.Join(f.Dir, d.Name+".key") + "\n", "", "Permission denied (publickey)",
			"ssh-add the key"},
		{"keyless", id + "\n", filepath.Join(f.Dir, "absent") + "\n", "", "Permission denied (publickey)", "ssh-add the key"},
		{"nowhere", "HostName " + d.Addr, "HostName no-such-host.invalid", "", "Could not resolve hostname",
			"check the name, and that the host is up"},
		{"down", fmt.Sprintf("Port %d", d.Port), "Port 1", "", "Connection refused", "check " +
			"the name, and that the host is up"},
		{"full", "", "", fmt.Sprintf("workdir = %q\n", filepath.Join(f.Dir, "small", "work")), " MB free in ", "free space"},
		{"readonly", "", "", "workdir = \"/proc/fisub\"\n", "/proc/fisub", "set workdir to a writable folder"},
	}
	var tables strings.Builder
	for _, k := range cases {
		config := write("config-"+k.table, strings.ReplaceAll(string(config), k.from, k.to))
		if k.from == "" {
			config = f.Config
		}
		fmt.Fprintf(&tables, "[remote.%s]\nprovider = \"ssh\"\nhosts = [\"h1\"]\nssh_config = %q\ngpu = \"none\"\n%s\n",
			k.table, config, k.more)
	}
	b := newRemoteBench(t, tables.String())
	for _, k := range cases {
		t.Run(k.table, func(t *testing.T) {
			if k.table == "full" {
				small := filepath.Join(f.Dir, "small")
				if err := os.Mkdir(small, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=40m"); err != nil {
					t.Skipf("no small disk: %v", err)
				}
				defer func() { _ = syscall.Unmount(small, syscall.MNT_DETACH) }()
			}
			cmd := b.command("remote", "--on", k.table, "--limit", "1")
			_ = cmd.Run()
			text := b.stderr.String()
			_, hint, _ := strings.Cut(text, "\nhint: ")
			if status := cmd.ProcessState.ExitCode(); status != exitError ||
				!strings.Contains(text, "fisub: "+k.table+": h1: ") || !strings.Contains(text, k.text) ||
				!strings.Contains(hint, k.hint) {
				t.Errorf("got exit status %d, want %d, %q and a hint %q\n%s", status, exitError, k.text, k.hint, text)
			}
			if ids, err := runs.IDs(b.dir); err != nil || len(ids) != 0 {
				t.Errorf("runs: got %v, %v", ids, err)
			}
			for _, work := range []string{filepath.Join(d.Home, ".cache/fisub/remote"), filepath.Join(f.Dir, "small", "work")} {
				if left, _ := os.ReadDir(agent.Jobs(work)); len(left) != 0 {
					t.Errorf("left on the host: %v", left)
				}
			}
		})
	}
}
