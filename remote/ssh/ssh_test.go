package ssh_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/remote"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
	"fisub/remote/ssh"
	"fisub/remote/ssh/sshdtest"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

// A fleet is a Fleet with helpers for these tests.
type fleet struct{ *sshdtest.Fleet }

func newFleet(t testing.TB, n int) *fleet { return &fleet{sshdtest.New(t, n)} }

func (f *fleet) table(more map[string]any) map[string]any {
	hosts := []any{}
	for _, d := range f.Daemons {
		hosts = append(hosts, d.Name)
	}
	table := map[string]any{"hosts": hosts, "ssh_config": f.Config}
	for k, v := range more {
		table[k] = v
	}
	return table
}

func open(name string, values map[string]any) (*ssh.Provider, error) {
	c, err := remotetest.Table[ssh.Config](name, values)
	if err != nil {
		return nil, err
	}
	return ssh.New(name, c), nil
}

func (f *fleet) provider(t testing.TB, more map[string]any) *ssh.Provider {
	t.Helper()
	p, err := open("lab", f.table(more))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (f *fleet) closed(t testing.TB, more map[string]any) *ssh.Provider {
	t.Helper()
	p := f.provider(t, more)
	t.Cleanup(func() { p.Close() })
	return p
}

func work(d *sshdtest.Daemon) string { return filepath.Join(d.Home, ".cache/fisub/remote") }

func TestProvider(t *testing.T) {
	f := newFleet(t, 2)
	d := f.Daemons[0]
	t.Setenv("MODAL_TOKEN_SECRET", "planted-secret-of-the-client")
	remotetest.Run(t, remotetest.Setup{
		New:      func(t *testing.T) remote.Provider { return f.provider(t, nil) },
		KillHost: func(t *testing.T, h remote.Handle) { remotetest.KillAgent(t, work(d), h.Job) },
		Cut: func(t *testing.T) {
			d.Stop()
			d.Start(t)
		},
		Away: func(t *testing.T) (p remote.Provider, cut, back func()) {
			return f.provider(t, map[string]any{"away": "1s"}), d.Stop, func() { d.Start(t) }
		},
		Sweeps:  true,
		Work:    work(d),
		Renames: true,
		Secrets: []string{"planted-secret-of-the-client", strings.Split(servertest.Read(t, filepath.Join(f.Dir, "id")), "\n")[2]},
		Output:  func() string { return remotetest.Files(t, d.Home) },
		GPUs: func(t *testing.T) (remote.Provider, string) {
			g := newFleet(t, 1)
			return g.provider(t, map[string]any{"gpu": "b200", "gpus": []any{int64(0), int64(1)}}), work(g.Daemons[0])
		},
	})
}

func script(t testing.TB, p remote.Provider, text string) *remote.Job {
	t.Helper()
	job := remotetest.Script(t, text, nil)
	job.Place = p.Places(1)[0]
	return job
}

// A network that silently drops packets is noticed and survived.
func TestNetworkCut(t *testing.T) {
	t.Parallel()
	daemon, device := sshdtest.NewSpace(t)
	f, ip := &fleet{daemon}, sshdtest.Tool(t, "ip")
	p := f.closed(t, nil)
	job := script(t, p, `i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; sleep 0.5; done`)
	h := remotetest.Submit(t, p, job)
	r := &remotetest.Recorder{}
	ended := make(chan remote.Exit)
	go func() {
		exit, err := p.Wait(t.Context(), h, 0, r)
		if err != nil {
			t.Error(err)
		}
		ended <- exit
	}()
	servertest.Until(t, "the first line", func() bool { return r.Stream() != "" })
	output(t, ip, "link", "set", device, "down")
	servertest.Until(t, "the cut to be noticed", func() bool { return slices.Contains(r.Phases(), remote.Away) })
	output(t, ip, "link", "set", device, "up")
	exit := <-ended
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintln(&want, i+1)
	}
	if exit.End != remote.Exited || r.Stream() != want.String() {
		t.Errorf("got %+v, %q", exit, r.Stream())
	}
}

func TestDenied(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	d := f.Daemons[0]
	config, err := os.ReadFile(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	submit := func(change string, with ...string) error {
		t.Helper()
		text := strings.NewReplacer(with...).Replace(string(config))
		path := filepath.Join(f.Dir, "config-"+change)
		servertest.Write(t, path, text)
		p, err := open("lab", f.table(map[string]any{"ssh_config": path}))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, err = p.Submit(t.Context(), script(t, p, "echo ran"), nil)
		remotetest.CheckDown(t, p, remote.CodeOf(err), "")
		return err
	}
	known := filepath.Join(f.Dir, "known")
	other := filepath.Join(f.Dir, "other")
	servertest.Write(t, other, "")
	remotetest.CheckDenied(t, submit("unknown", known, other), "host-key", "unknown host key", "")
	servertest.Write(t, other, fmt.Sprintf("[%s]:%d %s", d.Addr, d.Port, servertest.Read(t, filepath.Join(f.Dir, "id.pub"))))
	remotetest.CheckDenied(t, submit("changed", known, other), "host-key", "has changed", "")
	// The user's own config cannot disable the check.
	servertest.Write(t, other, "")
	remotetest.CheckDenied(t, submit("careless", known, other, "Host *\n", "Host *\n  StrictHostKeyChecking no\n"), "host-key", "unknown host key", "")
	output(t, sshdtest.Tool(t, "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(f.Dir, "stranger"))
	remotetest.CheckDenied(t, submit("stranger", filepath.Join(f.Dir, "id"), filepath.Join(f.Dir, "stranger")), "credentials", "Permission denied", "")
	remotetest.CheckDenied(t, submit("keyless", filepath.Join(f.Dir, "id")+"\n", filepath.Join(f.Dir, "absent")+"\n"), "credentials", "Permission denied", "")
	remotetest.CheckDenied(t, submit("name", "HostName "+d.Addr, "HostName no-such-host.invalid"), "unreachable", "resolve", "")
	d.Stop()
	remotetest.CheckDenied(t, submit("down"), "unreachable", "refused", "")
}

func output(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// A host that allows few sessions per connection gets more connections.
func TestFewSessions(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	d := f.Daemons[0]
	d.Stop()
	servertest.Write(t, d.Conf, servertest.Read(t, d.Conf)+"MaxSessions 1\n")
	d.Start(t)
	p := f.closed(t, nil)
	h := remotetest.Submit(t, p, script(t, p, `echo one; sleep 0.3; echo two`))
	if r, exit := remotetest.Wait(t, p, h); r.Stream() != "one\ntwo\n" || exit.End != remote.Exited {
		t.Errorf("got %q, %+v", r.Stream(), exit)
	}
}

// After Close no ssh process of the provider is left.
func TestClose(t *testing.T) {
	f := newFleet(t, 1)
	p := f.provider(t, nil)
	hosts, err := p.Check(t.Context())
	if err != nil || hosts[0].Err != nil || hosts[0].State != "ready" || !strings.Contains(hosts[0].Detail, "GB free") {
		t.Errorf("got %+v, %v", hosts, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	servertest.Until(t, "the end of all ssh processes", func() bool {
		paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		return !slices.ContainsFunc(paths, func(path string) bool {
			line, _ := os.ReadFile(path)
			return strings.Contains(string(line), f.Config)
		})
	})
}

func TestConfig(t *testing.T) {
	_, err := open("lab", map[string]any{"hosts": []any{"-oProxyCommand=x", "a", "a", "b;c"}, "gpus": []any{int64(-1)},
		"workdir": "a b", "away": "0s", "ssh_config": "x", "user": "me"})
	remotetest.CheckFaults(t, err, `unknown key remote.lab.user
remote.lab.hosts: "-oProxyCommand=x" is not an SSH host
remote.lab.hosts: duplicate a
remote.lab.hosts: "b;c" is not an SSH host
remote.lab.gpus: -1 is not a GPU ordinal
remote.lab.workdir: "a b" is not a path of letters, digits and ./_@+=,-
remote.lab.away: must be above zero
remote.lab.ssh_config: "x" is not absolute`)
	if _, err := open("lab", nil); err == nil || !strings.Contains(err.Error(), "missing key remote.lab.hosts") {
		t.Errorf("without hosts: got %v", err)
	}
	p, err := open("lab", map[string]any{"hosts": []any{"a", "me@b:22"}, "gpus": []any{int64(0), int64(3)}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got := fmt.Sprint(p.Places(3)); got != "[a gpu 0 me@b:22 gpu 0 a gpu 3]" {
		t.Errorf("places: got %s", got)
	}
	hash := strings.Repeat("0", 64)
	remotetest.CheckForeign(t, p, remote.NewHandle(ssh.Kind, "a", remote.Place{Host: "a"}, map[string]string{"work": "/w",
		"program": hash}), `{"work":"/w/../x","program":"`+hash+`"}`, `{"work":"/w","program":"x y"}`)
}
