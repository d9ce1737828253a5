//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fisub/remote/ssh/sshdtest"
)

const (
	hosts    = 3
	hostDisk = 200 << 20 // bytes
)

// A world consists of a client and three hosts, each connected to the client by a link.
type world struct {
	dir    string
	client *machine
	hosts  [hosts]*machine

	begun time.Time
	mu    sync.Mutex
	log   bytes.Buffer // timeline of actions
}

func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(&w.log, "%7.2f  %s\n", time.Since(w.begun).Seconds(), fmt.Sprintf(format, args...))
}

// disk returns a path on a machine's disk.
func disk(m *machine, parts ...string) string {
	return filepath.Join(append([]string{m.Disk}, parts...)...)
}

func home(m *machine, parts ...string) string { return disk(m, append([]string{user}, parts...)...) }

// workFolder returns a path in the work folder of a host.
func workFolder(m *machine, parts ...string) string {
	return home(m, append([]string{".cache/fisub/remote"}, parts...)...)
}

const sshdConfig = `ListenAddress 0.0.0.0:22
HostKey /home/etc/key
AuthorizedKeysFile /home/etc/authorized
` + sshdtest.Options

const sshConfig = `Host *
  User ` + user + `
  IdentityFile /home/` + user + `/.ssh/id
  IdentitiesOnly yes
  GlobalKnownHostsFile /dev/null
`

// newWorld boots the machines. base has shared files: the program, project folders, and the store and cache of a host
// after a run.
func newWorld(dir, base string, cold bool) (w *world, err error) {
	w = &world{dir: dir, begun: time.Now(), client: &machine{Name: "client", Disk: filepath.Join(dir, "client")}}
	defer func() {
		if err != nil {
			w.end()
		}
	}()
	if err := errors.Join(os.Mkdir(w.client.Disk, 0o755), os.MkdirAll(home(w.client, ".ssh"), 0o700)); err != nil {
		return w, err
	}
	id := home(w.client, ".ssh", "id")
	if err := combined(exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", id)); err != nil {
		return w, err
	}
	config := sshConfig
	for i := range w.hosts {
		config += fmt.Sprintf("Host h%d\n  HostName %s\n", i+1, address(i, 2))
	}
	if err := errors.Join(os.WriteFile(home(w.client, ".ssh", "config"), []byte(config), 0o600),
		os.Link(filepath.Join(base, "fisub"), disk(w.client, "fisub")), os.Mkdir(home(w.client, ".cache"), 0o755),
		combined(exec.Command("cp", "-al", filepath.Join(base, clientCache), home(w.client, ".cache/fisub"))),
		w.client.start()); err != nil {
		return w, err
	}
	for i := range w.hosts {
		m := &machine{Name: fmt.Sprintf("h%d", i+1), Disk: filepath.Join(dir, fmt.Sprintf("h%d", i+1))}
		w.hosts[i] = m
		if err := os.Mkdir(m.Disk, 0o755); err != nil {
			return w, err
		}
		if err := unix.Mount("none", m.Disk, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", hostDisk)); err != nil {
			return w, err
		}
		if err := errors.Join(os.Mkdir(disk(m, "etc"), 0o755), os.MkdirAll(workFolder(m), 0o700),
			os.WriteFile(disk(m, "etc/sshd_config"), []byte(sshdConfig), 0o600), w.newKey(i), w.authorize(i, true)); err != nil {
			return w, err
		}
		parts := []string{"cache", "store"}
		if cold {
			parts = parts[:1]
		}
		for _, part := range parts {
			if _, err := os.Stat(filepath.Join(base, part)); err != nil {
				continue // not there before the first run
			}
			if err := combined(exec.Command("cp", "-a", filepath.Join(base, part), workFolder(m))); err != nil {
				return w, err
			}
		}
		if err := errors.Join(own(home(m)), w.boot(i, cold)); err != nil {
			return w, err
		}
	}
	return w, errors.Join(w.trust(), own(home(w.client)))
}

// own makes the user the owner of a folder and its content.
func own(dir string) error {
	return combined(exec.Command("chown", "-R", fmt.Sprintf("%d:%d", userID, userID), dir))
}

func address(host, end int) string { return fmt.Sprintf("10.9.%d.%d", host, end) }

// slowLink is the bandwidth of a host's link if the bundle must be sent.
const slowLink = "60mbit"

// boot starts host i, its sshd and its link.
func (w *world) boot(i int, slow bool) error {
	m, cable := w.hosts[i], fmt.Sprintf("to-h%d", i+1)
	if err := m.start(); err != nil {
		return err
	}
	for _, step := range []struct {
		on   *machine
		args string
	}{
		{nil, fmt.Sprintf("ip link add %s netns %s type veth peer name eth0 netns %s", cable, w.client.pid(), m.pid())},
		{w.client, fmt.Sprintf("ip addr add %s/30 dev %s", address(i, 1), cable)},
		{w.client, "ip link set " + cable + " up"},
		{m, fmt.Sprintf("ip addr add %s/30 dev eth0", address(i, 2))},
		{m, "ip link set eth0 up"},
	} {
		var err error
		if args := strings.Fields(step.args); step.on == nil {
			err = combined(exec.Command(args[0], args[1:]...))
		} else {
			err = step.on.run(args...)
		}
		if err != nil {
			return err
		}
	}
	if slow {
		err := w.client.run("tc", "qdisc", "add", "dev", cable, "root", "tbf", "rate", slowLink, "burst", "64kb",
			"latency", "400ms")
		if err != nil {
			return err
		}
	}
	return errors.Join(w.listen(i), w.reach(i))
}

// listen starts the sshd of host i and waits until it is running.
func (w *world) listen(i int) error {
	m := w.hosts[i]
	path, err := exec.LookPath("sshd")
	if err != nil {
		path = "/usr/sbin/sshd"
	}
	if err := m.run(path, "-f", "/home/etc/sshd_config", "-E", "/run/sshd.log"); err != nil {
		return err
	}
	there := func() bool { return slices.ContainsFunc(m.processes(), isListener) }
	if !await(context.Background(), time.Minute, there) {
		return fmt.Errorf("no sshd on %s", m.Name)
	}
	return nil
}

// reach waits until the client can connect to host i: after a cut the kernel remembers for a moment that it was
// unreachable.
func (w *world) reach(i int) error {
	var err error
	await(context.Background(), time.Minute, func() bool {
		err = w.client.run("bash", "-c", "exec 3<>/dev/tcp/"+address(i, 2)+"/22")
		return err == nil
	})
	return err
}

// newKey creates a new host key for the next sshd of host i.
func (w *world) newKey(i int) error {
	key := disk(w.hosts[i], "etc/key")
	_, _ = os.Remove(key), os.Remove(key+".pub")
	return combined(exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key))
}

// trust writes the current keys of the hosts to the client's known_hosts.
func (w *world) trust() error {
	var known strings.Builder
	for i, m := range w.hosts {
		public, err := os.ReadFile(disk(m, "etc/key.pub"))
		if err != nil {
			return err
		}
		fmt.Fprintf(&known, "%s %s", address(i, 2), public)
	}
	return os.WriteFile(home(w.client, ".ssh", "known_hosts"), []byte(known.String()), 0o644)
}

// authorize adds or removes the user's key on host i.
func (w *world) authorize(i int, yes bool) error {
	name := disk(w.hosts[i], "etc/authorized")
	if !yes {
		return os.Remove(name)
	}
	public, err := os.ReadFile(home(w.client, ".ssh", "id.pub"))
	if err != nil {
		return err
	}
	return os.WriteFile(name, public, 0o644)
}

// link sets the state of host i's link at the client's end, whose kernel notices that, or at the host's.
func (w *world) link(i int, clientSide bool, state string) error {
	if clientSide {
		return w.client.run("ip", "link", "set", fmt.Sprintf("to-h%d", i+1), state)
	}
	return w.hosts[i].run("ip", "link", "set", "eth0", state)
}

// fill fills the disk of host i or frees the space again.
func (w *world) fill(i int, full bool) error {
	name := disk(w.hosts[i], "filled")
	if !full {
		return os.Remove(name)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	piece := make([]byte, 4096)
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(w.hosts[i].Disk, &st); err != nil {
			return err
		}
		end, _ := f.Seek(0, 2)
		if st.Bavail > 0 && unix.Fallocate(int(f.Fd()), 0, end, int64(st.Bavail)*st.Bsize) == nil {
			continue
		}
		if _, err := f.Write(piece); err != nil {
			return nil
		}
	}
}

// project copies a submission to the client's home and appends tables to its config.
func (w *world) project(from, table string) error {
	to := home(w.client, "p")
	if err := combined(exec.Command("cp", "-a", from, to)); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(to, "config.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(table)
	return errors.Join(err, f.Close(), own(to))
}

// A client is a fisub process on the client.
type client struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	status int // -1 if it was killed
	out    string
}

// fisub starts fisub on the client. Its output goes to the files name.out and name.err.
func (w *world) fisub(ctx context.Context, name string, args ...string) (*client, error) {
	script := "cd /home/" + user + `/p && exec env -i HOME=/home/` + user + ` USER=` + user +
		` PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 /home/fisub "$@"`
	c := &client{cmd: w.client.command(ctx, true, append([]string{"sh", "-c", script, "fisub"}, args...)...),
		ended: make(chan struct{}), out: filepath.Join(w.dir, name)}
	stdout, err := os.Create(c.out + ".out")
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := os.Create(c.out + ".err")
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	c.cmd.Stdout, c.cmd.Stderr = stdout, stderr
	// Do not kill nsenter itself: nobody would reap its child, and the machine would never end.
	c.cmd.Cancel = func() error { return nil }
	w.say("fisub %s", strings.Join(args, " "))
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, c.end)
	go func() {
		_ = c.cmd.Wait()
		stop()
		c.status = c.cmd.ProcessState.ExitCode()
		w.say("fisub %s: status %d", strings.Join(args, " "), c.status)
		close(c.ended)
	}()
	return c, nil
}

// kill kills the program but not its children.
func (c *client) kill() {
	pid := strconv.Itoa(c.cmd.Process.Pid)
	child, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	for _, word := range strings.Fields(string(child)) {
		if pid, err := strconv.Atoi(word); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// end kills the program, even while it is starting.
func (c *client) end() {
	await(context.Background(), time.Minute, func() bool {
		c.kill()
		return ended(c)
	})
}

func (w *world) end() {
	w.client.stop()
	for _, m := range w.hosts {
		if m != nil {
			m.stop()
			_ = unix.Unmount(m.Disk, unix.MNT_DETACH)
		}
	}
}
