// Package sshdtest runs real sshds for tests, with their own keys and client config.
package sshdtest

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/longtest"
	"fisub/internal/plain"
	"fisub/remote/servertest"
)

// A Fleet is a number of real sshds, each with its own address and home folder, and an ssh config that names them h1,
// h2, ...
type Fleet struct {
	Dir     string // for its files; the path is short
	Config  string // for ssh -F
	Daemons []*Daemon
}

// A Daemon is one sshd.
type Daemon struct {
	Name, Addr string
	Port       int
	Home       string // of the user who logs in
	Conf       string // its configuration file
	Space      string // network namespace; "" for this one

	cmd *exec.Cmd
	log *plain.Buffer
}

// Tool returns the path of a program of OpenSSH. If the program is missing, it skips the test, or fails it if
// FISUB_TEST_REQUIRE lists ssh.
func Tool(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin", "/usr/lib/openssh",
		"/usr/libexec/openssh") {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	longtest.Missing(t, "ssh", "no "+name)
	return ""
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Options are lines of the configuration of every sshd in tests.
const Options = `PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
Subsystem sftp internal-sftp
`

// New starts n sshds on 127.0.0.2 and the following addresses.
func New(t testing.TB, n int) *Fleet {
	t.Helper()
	f := Prepare(t, n, func(d *Daemon, i int) { d.Addr = fmt.Sprintf("127.0.0.%d", i+2) })
	for _, d := range f.Daemons {
		d.Start(t)
	}
	return f
}

// NewSpace starts an sshd in its own network namespace, which needs root, and returns the network device that leads there.
func NewSpace(t testing.TB) (f *Fleet, device string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	n := os.Getpid() % 200
	space, device, peer := fmt.Sprint("fs", n), fmt.Sprint("fsa", n), fmt.Sprint("fsb", n)
	f = Prepare(t, 1, func(d *Daemon, _ int) { d.Addr, d.Port, d.Space = fmt.Sprintf("10.213.%d.2", n), 2222, space })
	ip := func(text string) { output(t, Tool(t, "ip"), strings.Fields(text)...) }
	ip("netns add " + space)
	t.Cleanup(func() {
		f.Daemons[0].Stop()
		ip("netns del " + space)
	})
	ip("link add " + device + " type veth peer name " + peer + " netns " + space)
	ip(fmt.Sprintf("addr add 10.213.%d.1/30 dev %s", n, device))
	ip("link set " + device + " up")
	ip(fmt.Sprintf("-n %s addr add 10.213.%d.2/30 dev %s", space, n, peer))
	ip("-n " + space + " link set " + peer + " up")
	ip("-n " + space + " link set lo up")
	f.Daemons[0].Start(t)
	return f, device
}

// Prepare creates n sshds without starting them. place sets the Addr of each; a Port of 0 is replaced with a free one.
func Prepare(t testing.TB, n int, place func(d *Daemon, i int)) *Fleet {
	t.Helper()
	longtest.Skip(t, "starts sshd")
	Tool(t, "sshd")
	keygen := Tool(t, "ssh-keygen")
	dir, err := os.MkdirTemp("", "fs-") // short, for the paths of sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &Fleet{Dir: dir, Config: filepath.Join(dir, "config")}
	output(t, keygen, "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, "id"))
	if os.Getuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var known, config strings.Builder
	for i := range n {
		d := &Daemon{Name: fmt.Sprintf("h%d", i+1), log: &plain.Buffer{Limit: 1 << 20}}
		place(d, i)
		d.Home, d.Conf = filepath.Join(dir, d.Name), filepath.Join(dir, d.Name+".conf")
		if err := os.MkdirAll(d.Home, 0o700); err != nil {
			t.Fatal(err)
		}
		key := filepath.Join(dir, d.Name+".key")
		output(t, keygen, "-q", "-t", "ed25519", "-N", "", "-f", key)
		if d.Port == 0 {
			l, err := net.Listen("tcp", net.JoinHostPort(d.Addr, "0"))
			if err != nil {
				t.Fatal(err)
			}
			d.Port = l.Addr().(*net.TCPAddr).Port
			l.Close()
		}
		servertest.Write(t, d.Conf,
			fmt.Sprintf("ListenAddress %s\nHostKey %s\nAuthorizedKeysFile %s\nPermitRootLogin prohibit-password\n"+
				"SetEnv HOME=%s GORACE=%s\n%s", d.address(), key, filepath.Join(dir, "id.pub"), d.Home,
				cmp.Or(os.Getenv("GORACE"), "halt_on_error=0"), Options))
		public, err := os.ReadFile(key + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&known, "[%s]:%d %s", d.Addr, d.Port, public)
		fmt.Fprintf(&config, "Host %s\n  HostName %s\n  Port %d\n", d.Name, d.Addr, d.Port)
		f.Daemons = append(f.Daemons, d)
	}
	servertest.Write(t, filepath.Join(dir, "known"), known.String())
	fmt.Fprintf(&config,
		"Host *\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n  GlobalKnownHostsFile /dev/null\n",
		filepath.Join(dir, "id"), filepath.Join(dir, "known"))
	servertest.Write(t, f.Config, config.String())
	t.Cleanup(func() {
		for _, d := range f.Daemons {
			d.Stop()
		}
	})
	return f
}

// Start starts the sshd and waits until it answers.
func (d *Daemon) Start(t testing.TB) {
	t.Helper()
	args := []string{Tool(t, "sshd"), "-D", "-e", "-f", d.Conf}
	if d.Space != "" {
		args = append([]string{Tool(t, "ip"), "netns", "exec", d.Space}, args...)
	}
	d.cmd = exec.Command(args[0], args[1:]...)
	d.cmd.Stderr = d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("sshd on %s:\n%s", d.Addr, d.log)
		}
	})
	servertest.Until(t, "sshd on "+d.Addr, func() bool {
		c, err := net.DialTimeout("tcp", d.address(), time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (d *Daemon) address() string { return net.JoinHostPort(d.Addr, strconv.Itoa(d.Port)) }

// Stop ends the sshd and all its connections, as when a host loses power, but leaves other processes on the host
// running.
func (d *Daemon) Stop() {
	if d.cmd == nil {
		return
	}
	_ = syscall.Kill(d.cmd.Process.Pid, syscall.SIGSTOP) // accepts no new connections
	d.Drop()
	_ = syscall.Kill(d.cmd.Process.Pid, syscall.SIGKILL)
	_ = d.cmd.Wait()
	d.cmd = nil
}

// Drop kills the sshd processes of open connections.
func (d *Daemon) Drop() {
	for pid, name := range d.below() {
		if strings.HasPrefix(name, "sshd") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Begun returns the processes started by logged-in users that are still descendants of the sshd.
func (d *Daemon) Begun() (pids []int) {
	for pid, name := range d.below() {
		if !strings.HasPrefix(name, "sshd") {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// below returns the names of the descendants of the sshd by process id.
func (d *Daemon) below() map[int]string {
	all := map[int]string{}
	var add func(pid int)
	add = func(pid int) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, name := range tasks {
			text, _ := os.ReadFile(name)
			for _, word := range strings.Fields(string(text)) {
				child, _ := strconv.Atoi(word)
				comm, _ := os.ReadFile("/proc/" + word + "/comm")
				if stat, _ := os.ReadFile("/proc/" + word + "/stat"); !bytes.Contains(stat, []byte(") Z ")) && len(comm) > 0 {
					all[child] = strings.TrimSpace(string(comm))
				}
				add(child)
			}
		}
	}
	add(d.cmd.Process.Pid)
	return all
}
