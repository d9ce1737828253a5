package slurm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/host"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
	"fisub/remote/slurm/slurmtest"
	"fisub/remote/ssh/sshdtest"
	"fisub/remote/work"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

// hurry makes p ask its own cluster often.
func hurry(p *Provider) {
	p.rules.Read, p.rules.Query, p.rules.Slow = 50*time.Millisecond, 200*time.Millisecond, time.Second
	p.rules.Grace, p.command = 2*time.Second, 20*time.Second
}

func open(name string, values map[string]any) (*Provider, error) {
	c, err := remotetest.Table[Config](name, values)
	if err != nil {
		return nil, err
	}
	return New(name, c), nil
}

func provider(t *testing.T, c *slurmtest.Cluster, table map[string]any) *Provider {
	t.Helper()
	p, err := open("cluster", table)
	if err != nil {
		t.Fatal(err)
	}
	hurry(p)
	if p.config.Login == "" {
		p.folder.Host = host.Local{Env: []string{"SLURM_CONF=" + c.Conf, "FISUB_TEST_TOKEN=planted-secret-of-the-client"}}
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func newJob(t *testing.T, id, text string) *remote.Job {
	t.Helper()
	job := remotetest.Script(t, text, nil)
	job.ID = id
	return job
}

// loginHost starts an sshd whose sessions have the variables env, each "NAME=value".
func loginHost(t *testing.T, env ...string) (*sshdtest.Fleet, *sshdtest.Daemon) {
	t.Helper()
	f := sshdtest.Prepare(t, 1, func(d *sshdtest.Daemon, _ int) { d.Addr = "127.0.0.2" })
	d := f.Daemons[0]
	conf := servertest.Read(t, d.Conf)
	with := strings.Replace(conf, "SetEnv ", "SetEnv "+strings.Join(append(env, ""), " "), 1)
	if with == conf && len(env) > 0 {
		t.Fatalf("no SetEnv in %s", conf)
	}
	servertest.Write(t, d.Conf, with)
	d.Start(t)
	return f, d
}

func numberOf(t *testing.T, h remote.Handle) string {
	t.Helper()
	var j work.FolderJob
	if err := json.Unmarshal(h.Data, &j); err != nil || j.Number == "" {
		t.Fatalf("handle %s: %v", h.Data, err)
	}
	return j.Number
}

func TestProvider(t *testing.T) {
	table := func(work string) map[string]any {
		return map[string]any{"workdir": work, "gres": "gpu:b200:1", "jobs": int64(2)}
	}
	t.Run("here", func(t *testing.T) {
		t.Parallel()
		c := slurmtest.Start(t, slurmtest.Setup{})
		work := filepath.Join(t.TempDir(), "it's 100% a [folder]")
		var cut atomic.Int64
		setup := suite(work, func(t *testing.T) remote.Provider {
			p := provider(t, c, table(work))
			p.folder.Host = &cuttable{p.folder.Host, &cut}
			return p
		}, func(*testing.T) { cut.Store(time.Now().Add(2 * time.Second).UnixNano()) })
		setup.Secrets = []string{"planted-secret-of-the-client"}
		setup.Output = func() string { return remotetest.Files(t, work, filepath.Dir(c.Conf)) }
		setup.Deaf = func(t *testing.T, cancel func()) remote.Provider {
			p := provider(t, c, table(work))
			p.folder.Host = &deaf{p.folder.Host, cancel}
			before := strings.Count(c.Run("squeue", "-h", "-t", "all", "-o", "%j"), "\n")
			t.Cleanup(func() {
				if all := c.Run("squeue", "-h", "-t", "all", "-o", "%j"); strings.Count(all, "\n") <= before {
					t.Errorf("was never in the queue: %s", all)
				}
				if left := c.Run("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%j"); left != "" {
					t.Errorf("left in the queue: %s", left)
				}
			})
			return p
		}
		setup.GPUs = func(t *testing.T) (remote.Provider, string) {
			work := t.TempDir()
			return provider(t, c, map[string]any{"workdir": work, "jobs": int64(2)}), work
		}
		remotetest.Run(t, setup)
	})
	t.Run("login host", func(t *testing.T) {
		t.Parallel()
		c := slurmtest.Start(t, slurmtest.Setup{})
		f, d := loginHost(t, "SLURM_CONF="+c.Conf)
		work := t.TempDir()
		fresh := func(t *testing.T) remote.Provider {
			tab := table(work)
			tab["login"], tab["ssh_config"] = d.Name, f.Config
			return provider(t, c, tab)
		}
		setup := suite(work, fresh, func(t *testing.T) { // for longer than the interval between two queries
			d.Stop()
			time.Sleep(2 * time.Second)
			d.Start(t)
		})
		setup.Deaf = func(t *testing.T, _ func()) remote.Provider {
			p := fresh(t).(*Provider)
			p.folder.Host = &deaf{p.folder.Host, d.Drop}
			return p
		}
		setup.Away = func(t *testing.T) (p remote.Provider, cut, back func()) {
			return fresh(t), d.Stop, func() { d.Start(t) }
		}
		remotetest.Run(t, setup)
	})
}

func suite(work string, fresh func(t *testing.T) remote.Provider, cut func(*testing.T)) remotetest.Setup {
	return remotetest.Setup{
		New:      fresh,
		Slow:     20 * time.Second,
		KillHost: func(t *testing.T, h remote.Handle) { remotetest.KillAgent(t, work, h.Job) },
		Sweeps:   true,
		Work:     work,
		Renames:  true,
		Cut:      cut,
	}
}

// A cuttable is a login host that is unreachable until a time in nanoseconds since 1970.
type cuttable struct {
	host.Host
	until *atomic.Int64
}

var errCut = errors.New("connection reset by peer")

func (l *cuttable) cut() bool { return time.Now().UnixNano() < l.until.Load() }

func (l *cuttable) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	if l.cut() {
		return errCut
	}
	return l.Host.Run(ctx, argv, stdin, stdout)
}

func (l *cuttable) Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error) {
	if l.cut() {
		return 0, errCut
	}
	return host.Read(ctx, l.Host, name, from, limit, w)
}

func both(t *testing.T, test func(t *testing.T, c *slurmtest.Cluster)) {
	for _, munge := range []bool{false, true} {
		t.Run(fmt.Sprintf("munge=%t", munge), func(t *testing.T) {
			t.Parallel()
			test(t, slurmtest.Start(t, slurmtest.Setup{Munge: munge}))
		})
	}
}

func TestJob(t *testing.T) {
	both(t, func(t *testing.T, c *slurmtest.Cluster) {
		p := provider(t, c, map[string]any{"workdir": t.TempDir(), "gres": "gpu:b200:1"})
		hosts, err := p.Check(remotetest.Within(t))
		if err != nil || len(hosts) != 1 || hosts[0].Err != nil || hosts[0].State != "ready" {
			t.Fatalf("check: %+v, %v", hosts, err)
		}
		if want := "partition gpu, 1 nodes idle, gpu:b200:2, a job would start now"; hosts[0].Detail != want {
			t.Errorf("check: got %q, want %q", hosts[0].Detail, want)
		}
		heard := filepath.Join(t.TempDir(), "heard") // path of a file that ends the job
		job := newJob(t, "j1", `echo first; until [ -e `+heard+` ]; do sleep 0.1; done
echo "gpu $CUDA_VISIBLE_DEVICES"; exit 3`)
		job.Labels = map[string]string{"run": "r1", "definition": "gdn\nx"}
		h := remotetest.Submit(t, p, job)
		if show := c.Run("scontrol", "-o", "show", "job", numberOf(t, h)); !strings.Contains(show,
			"Comment=fisub definition=gdn x run=r1 ") ||
			!strings.Contains(show, "Requeue=0") || !strings.Contains(show, "TimeLimit=00:04:00") ||
			!strings.Contains(show, "gres:gpu:b200:1") {
			t.Errorf("scontrol: %s", show)
		}
		w := &remotetest.Recorder{OnState: func(s remote.Stage) {
			if s == (remote.Stage{Phase: remote.Running, Text: "node " + c.Node}) {
				servertest.Write(t, heard, "")
			}
		}}
		if exit := remotetest.Follow(t, p, h, 0, w); exit.End != remote.Exited || exit.Code != 3 {
			t.Errorf("exit: %+v", exit)
		}
		if got, want := w.Stream(), "first\ngpu 0\n"; got != want {
			t.Errorf("stream: got %q, want %q", got, want)
		}
		if _, err := p.Wait(remotetest.Within(t), h, 600, w); err == nil || !strings.Contains(err.Error(), "after the end") {
			t.Errorf("offset behind the end: got %v", err)
		}
	})
}

func TestQueue(t *testing.T) {
	t.Parallel()
	c := slurmtest.Start(t, slurmtest.Setup{GPUs: 1})
	p := provider(t, c, map[string]any{"workdir": t.TempDir(), "gres": "gpu:b200:1"})
	first := remotetest.Submit(t, p, newJob(t, "first", `trap 'exit 7' TERM; echo on; while :; do sleep 0.1; done`))
	second := remotetest.Submit(t, p, newJob(t, "second", `echo on; sleep 60`))

	// The second job reports its position and an estimate; then someone else cancels its queue entry.
	w := &remotetest.Recorder{OnState: func(s remote.Stage) {
		if s.Phase == remote.Queued && !s.Start.IsZero() && strings.HasPrefix(s.Text, "position 1 of 1, ") {
			c.Run("scancel", numberOf(t, second))
		}
	}}
	if exit := remotetest.Follow(t, p, second, 0, w); exit.End != remote.Cancelled || !strings.Contains(exit.Text, "CANCELLED") {
		t.Errorf("cancelled in the queue: %+v, %+v", exit, w.Phases())
	}

	// Waiting ends with its context, and the job continues.
	ctx, cancel := context.WithCancel(remotetest.Within(t))
	if _, err := p.Wait(ctx, first, 0, &remotetest.Recorder{Fail: func([]byte) error { cancel(); return nil }}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled wait: got %v", err)
	}
	if s, err := p.jobStatus(remotetest.Within(t), &work.FolderJob{Number: numberOf(t, first)}); err != nil || s.state != "RUNNING" {
		t.Fatalf("after a cancelled wait: %+v, %v", s, err)
	}

	// Slurm signals the program too, but the program's exit does not count. Release while another client waits.
	done := make(chan remote.Exit, 1)
	go func() {
		exit, err := p.Wait(remotetest.Within(t), first, 0, &remotetest.Recorder{})
		if err != nil {
			t.Error(err)
		}
		done <- exit
	}()
	c.Run("scancel", numberOf(t, first))
	if exit := <-done; exit.End != remote.Cancelled {
		t.Errorf("cancelled while it ran: %+v", exit)
	}
}

func TestNoSuch(t *testing.T) {
	t.Parallel()
	c := slurmtest.Start(t, slurmtest.Setup{})
	for _, tt := range []struct {
		name        string
		table       map[string]any
		gpu, text   string
		code, hints string
	}{
		{"partition", map[string]any{"partition": "gpux"}, "",
			"sbatch: invalid partition specified: gpux; Invalid partition name specified", "no-such",
			"the cluster's partitions: gpu"},
		{"gpu", nil, "h100", "sbatch: Requested node configuration is not available", "no-such",
			"resources of the nodes, by partition: gpu gpu:b200:2"},
		{"gpus", map[string]any{"gres": "gpu:b200:9"}, "", "sbatch: Requested node configuration is not available", "no-such",
			"resources of the nodes, by partition: gpu gpu:b200:2"},
		{"gres", map[string]any{"gres": "tpu:1"}, "", "sbatch: Invalid generic resource (gres) specification", "no-such",
			"resources of the nodes, by partition: gpu gpu:b200:2"},
		{"constraint", map[string]any{"constraint": "nvlink"}, "", "sbatch: Invalid feature specification", "no-such",
			"features of the nodes, by partition: gpu (null)"},
		{"option", map[string]any{"sbatch": []any{"--bogus"}}, "", "sbatch: unrecognized option '--bogus'", "no-such",
			"remove the option from sbatch"},
		{"memory", map[string]any{"sbatch": []any{"--mem=900G"}}, "",
			"sbatch: Memory specification can not be satisfied; Requested node configuration is not available", "no-such",
			"resources of the nodes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			work := t.TempDir()
			table := map[string]any{"workdir": work}
			for k, v := range tt.table {
				table[k] = v
			}
			p := provider(t, c, table)
			job := newJob(t, "j", "true")
			job.GPU = tt.gpu
			_, err := p.Submit(remotetest.Within(t), job, nil)
			remotetest.CheckDenied(t, err, tt.code, ": "+tt.text, tt.hints)
			if entries, err := os.ReadDir(agent.Jobs(work)); err != nil || len(entries) != 0 {
				t.Errorf("folders left: %v, %v", entries, err)
			}
			p.config.GPU = tt.gpu
			remotetest.CheckDown(t, p, tt.code, "")
		})
	}
	if out := c.Run("squeue", "-h", "-o", "%j"); out != "" {
		t.Errorf("left in the queue: %s", out)
	}
}

func TestNeverStarts(t *testing.T) {
	t.Parallel()
	c := slurmtest.Start(t, slurmtest.Setup{})
	p := provider(t, c, map[string]any{"workdir": t.TempDir()})
	job := newJob(t, "j", "true")
	job.Limit = 2 * time.Hour // the partition allows one
	h := remotetest.Submit(t, p, job)
	_, exit := remotetest.Wait(t, p, h)
	if exit.End != remote.Refused || !strings.Contains(exit.Text, "PartitionTimeLimit") || exit.Hint == "" {
		t.Errorf("exit: %+v", exit)
	}
	if out := c.Run("squeue", "-h", "-o", "%j"); out != "" {
		t.Errorf("left in the queue: %s", out)
	}
}

func TestWorkdirNotShared(t *testing.T) {
	t.Parallel()
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		t.Skipf("unshare --mount: %v", err)
	}
	work := t.TempDir()
	c := slurmtest.Start(t, slurmtest.Setup{Hide: work})
	p := provider(t, c, map[string]any{"workdir": work})
	h := remotetest.Submit(t, p, newJob(t, "j", "echo on"))
	_, exit := remotetest.Wait(t, p, h)
	if exit.End != remote.Refused || !strings.Contains(exit.Hint,
		"set workdir to a folder shared by login and compute nodes") {
		t.Errorf("exit: %+v", exit)
	}
}

func TestNodeFails(t *testing.T) {
	t.Parallel()
	c := slurmtest.Start(t, slurmtest.Setup{})
	p := provider(t, c, map[string]any{"workdir": t.TempDir()})
	h := remotetest.Submit(t, p, newJob(t, "j", "trap '' TERM; echo on; sleep 30; echo off"))
	w, exit := remotetest.FollowThen(t, p, h, func() {
		c.Run("scontrol", "update", "nodename="+c.Node, "state=down", "reason=test")
	})
	if exit.End != remote.Lost || !strings.Contains(exit.Text, "NODE_FAIL") || w.Stream() != "on\n" {
		t.Errorf("exit: %+v, stream %q", exit, w.Stream())
	}
}

func TestControllerAway(t *testing.T) {
	t.Parallel()
	c := slurmtest.Start(t, slurmtest.Setup{})
	work := t.TempDir()
	p := provider(t, c, map[string]any{"workdir": work})
	p.command = time.Second
	c.Stop("slurmctld")
	_, err := p.Submit(remotetest.Within(t), newJob(t, "none", "true"), nil)
	if err == nil || !strings.Contains(err.Error(), "timeout after 1s") {
		t.Errorf("submit: got %v", err)
	}
	p.command = 20 * time.Second
	_, err = p.Submit(remotetest.Within(t), newJob(t, "none", "true"), nil)
	remotetest.CheckDenied(t, err, "unreachable", "", "")
	if entries, _ := os.ReadDir(agent.Jobs(work)); len(entries) != 0 {
		t.Errorf("folders left: %v", entries)
	}
	c.StartController()
	p.command = time.Second

	// The stream of a running job still arrives, and its end does not need the controller.
	h := remotetest.Submit(t, p, newJob(t, "j", "echo on; sleep 3; echo off"))
	if w, exit := remotetest.FollowThen(t, p, h, func() { c.Stop("slurmctld") }); exit != (remote.Exit{End: remote.Exited}) || w.Stream() != "on\noff\n" {
		t.Errorf("exit: %+v, stream %q", exit, w.Stream())
	}
	c.StartController()
}

// A deaf login host loses the answer of sbatch. Submissions are then cancelled, or the connection is lost.
type deaf struct {
	host.Host
	after func()
}

func (l *deaf) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	err := l.Host.Run(ctx, argv, stdin, stdout)
	if program(argv) == "sbatch" {
		l.after()
		return cmp.Or(ctx.Err(), error(&remote.Denied{Code: "unreachable", Text: "Connection closed by remote host"}))
	}
	return err
}
