// Package slurmtest starts a one-node Slurm on this machine for tests: a real controller and a real node daemon on
// loopback. The GPUs are dummy device nodes. It needs root and Debian's slurm-wlm.
package slurmtest

import (
	"crypto/rand"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/longtest"
	"fisub/remote/servertest"
)

// Setup describes the cluster.
type Setup struct {
	Munge bool     // authenticate with its own munged
	GPUs  int      // number of GPUs of kind b200; 0 means 2
	Hide  string   // a folder that is empty on the node, as if it were not shared
	Conf  []string // more lines for slurm.conf; the partition is "gpu"
}

// A Cluster runs until the test ends.
type Cluster struct {
	Conf string // path of slurm.conf, for SLURM_CONF
	Node string

	t       testing.TB
	dir     string
	daemons map[string]*exec.Cmd
}

// Start starts a cluster. It skips the test, with the reason, if this machine cannot run one.
func Start(t testing.TB, s Setup) *Cluster {
	t.Helper()
	longtest.CI(t, "starts a cluster of Slurm")
	if os.Geteuid() != 0 {
		t.Skip("slurm: starting a cluster takes root, for its device nodes")
	}
	for _, name := range []string{"slurmctld", "slurmd", "sbatch", "munged"} {
		if _, err := exec.LookPath(name); err != nil {
			longtest.Missing(t, "slurm", "no "+name)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	dir, err := os.MkdirTemp("", "slurmtest")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, dir: dir, Conf: filepath.Join(dir, "slurm.conf"), Node: host, daemons: map[string]*exec.Cmd{}}
	t.Cleanup(func() {
		c.clear()
		for _, name := range []string{"slurmd", "slurmctld", "munged"} {
			c.Stop(name)
		}
		if t.Failed() {
			for _, name := range []string{"slurmctld", "slurmd", "munged"} {
				text, _ := os.ReadFile(c.log(name))
				t.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c.configure(s)
	if s.Munge {
		c.run("munged", "munged", "--foreground", "--force", "--key-file="+c.path("munge/key"),
			"--socket="+c.path("munge/sock"),
			"--pid-file="+c.path("munge/pid"), "--log-file="+c.path("munge/log"), "--seed-file="+c.path("munge/seed"))
		servertest.Until(c.t, "munged", func() bool { _, err := os.Stat(c.path("munge/sock")); return err == nil })
	}
	c.StartController("-c")
	node := []string{"slurmd", "-D", "-N", host, "-f", c.Conf}
	if s.Hide != "" {
		node = append([]string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs none "$0" && exec "$@"`, s.Hide}, node...)
	}
	c.run("slurmd", node...)
	servertest.Until(c.t, "idle node", func() bool { out, _ := c.try("sinfo", "-h", "-o", "%T"); return strings.HasPrefix(out, "idle") })
	return c
}

// clear ends all jobs, since their processes would outlive the daemons.
func (c *Cluster) clear() {
	for begun := time.Now(); c.daemons["slurmctld"] != nil &&
		c.daemons["slurmd"] != nil; time.Sleep(50 * time.Millisecond) {
		out, err := c.try("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING,CONFIGURING,SUSPENDED", "--format=%A")
		if err == nil && out == "" {
			return
		}
		if time.Since(begun) > 30*time.Second {
			c.t.Errorf("slurm: jobs do not end: %s %v", out, err)
			return
		}
		_, _ = c.try("scancel", "--me")
	}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) log(daemon string) string { return c.path("log/" + daemon) }

func (c *Cluster) configure(s Setup) {
	c.t.Helper()
	check := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	check(os.Chmod(c.dir, 0o755)) // munged requires this for all folders above its socket
	for _, name := range []string{"state", "spool", "log", "dev", "munge"} {
		check(os.Mkdir(c.path(name), 0o755))
	}
	gpus := s.GPUs
	if gpus == 0 {
		gpus = 2
	}
	for i := range gpus {
		// slurmd requires character devices; each is a /dev/null.
		check(syscall.Mknod(c.path("dev/nvidia"+strconv.Itoa(i)), syscall.S_IFCHR|0o666, 1<<8|3))
	}
	auth := "AuthType=auth/none\nCredType=cred/none\n"
	if s.Munge {
		key := make([]byte, 1024)
		_, _ = rand.Read(key)
		check(os.WriteFile(c.path("munge/key"), key, 0o400))
		auth = "AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket=" + c.path("munge/sock") + "\n"
	}
	conf := fmt.Sprintf(`ClusterName=fisubtest
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=%[3]d
SlurmdPort=%[4]d
SlurmUser=root
SlurmdUser=root
%[5]sCommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=2
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=300
GresTypes=gpu
NodeName=%[1]s NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 Gres=gpu:b200:%[6]d State=UNKNOWN
PartitionName=gpu Nodes=%[1]s Default=YES MaxTime=60 State=UP
SlurmdParameters=config_overrides
`, c.Node, c.dir, port(c.t), port(c.t), auth, gpus)
	conf += strings.Join(append(s.Conf, ""), "\n")
	check(os.WriteFile(c.Conf, []byte(conf), 0o644))
	devices := c.path("dev/nvidia0")
	if gpus > 1 {
		devices = fmt.Sprintf("%s[0-%d]", c.path("dev/nvidia"), gpus-1)
	}
	check(os.WriteFile(c.path("gres.conf"), []byte("Name=gpu Type=b200 File="+devices+"\n"), 0o644))
	check(os.WriteFile(c.path("cgroup.conf"), []byte("CgroupPlugin=autodetect\n"), 0o644))
}

// port returns a free port below the range that the system uses for outgoing connections.
func port(t testing.TB) int {
	t.Helper()
	for range 100 {
		n, _ := rand.Int(rand.Reader, big.NewInt(12000))
		port := 20000 + int(n.Int64())
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("slurm: no free port")
	return 0
}

// run starts a daemon in the foreground, so that it can be ended as a child process.
func (c *Cluster) run(name string, args ...string) {
	c.t.Helper()
	log, err := os.OpenFile(c.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.Conf)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.daemons[name] = cmd
}

// StartController starts or restarts slurmctld. "-c" forgets all jobs.
func (c *Cluster) StartController(args ...string) {
	c.t.Helper()
	c.run("slurmctld", append([]string{"slurmctld", "-D", "-f", c.Conf}, args...)...)
	servertest.Until(c.t, "slurmctld", func() bool { out, _ := c.try("scontrol", "ping"); return strings.Contains(out, " UP") })
}

// Stop ends one of slurmctld, slurmd and munged, and waits for it. Running jobs continue.
func (c *Cluster) Stop(name string) {
	cmd := c.daemons[name]
	if cmd == nil {
		return
	}
	delete(c.daemons, name)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	timer.Stop()
}

func (c *Cluster) try(args ...string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.Conf)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Run runs one of Slurm's commands and returns its output.
func (c *Cluster) Run(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}
