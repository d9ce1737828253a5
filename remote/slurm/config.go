package slurm

import (
	"context"
	"errors"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/host"
)

// A Config is a table [remote.NAME] of this kind. An empty field leaves the choice to the cluster or this machine.
type Config struct {
	remote.Common
	Login      string // "" if this machine has Slurm's commands
	SSHConfig  string
	Workdir    string
	Partition  string
	Account    string
	QOS        string
	Constraint string
	Gres       string
	Sbatch     []string
	Jobs       int
}

// Installed reports whether this machine has Slurm's commands.
func Installed() bool {
	_, err := exec.LookPath("sbatch")
	return err == nil
}

// Configured reports whether Slurm's commands on this machine find a cluster, which may be down. It takes at most 5
// seconds; without an answer the commands may find one.
func Configured() bool {
	if !Installed() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := host.Local{}.Run(ctx, partitions.argv, nil, nil)
	failed, ok := errors.AsType[*host.ExitError](err)
	return !ok || !slices.ContainsFunc(noCluster, func(words string) bool {
		return strings.Contains(strings.ToLower(failed.Stderr), words)
	})
}

// Keys returns the keys of this kind.
func (c *Config) Keys() []config.Key {
	const cluster, like = "the cluster's", "as for sbatch"
	return []config.Key{
		{Name: "login", To: &c.Login, Absent: "this machine",
			Help: "login host with Slurm's commands; `ssh HOST squeue` must work without a prompt"},
		{Name: "ssh_config", To: &c.SSHConfig, Absent: "your own", Help: "file for `ssh -F`, an absolute path"},
		{Name: "workdir", To: &c.Workdir, Default: "~/.cache/fisub/remote",
			Help: "folder for bundles and jobs; absolute or below `~/` of the login host; shared with the compute nodes"},
		{Name: "partition", To: &c.Partition, Absent: cluster, Help: like},
		{Name: "account", To: &c.Account, Absent: cluster, Help: like},
		{Name: "qos", To: &c.QOS, Absent: cluster, Help: like},
		{Name: "constraint", To: &c.Constraint, Absent: cluster, Help: like},
		{Name: "gres", To: &c.Gres, Absent: "one GPU of the job's kind: `gpu:b200:1`",
			Help: "if the cluster uses other names for its GPUs: `gpu:nvidia_b200:1`, `gpu:1`"},
		{Name: "sbatch", To: &c.Sbatch, Absent: "none", Help: "further options, with long names: `[\"--mem=64G\", " +
			"\"--cpus-per-task=8\", \"--exclusive\", \"--reservation=me\"]`"},
		{Name: "jobs", To: &c.Jobs, Default: 4, Help: "maximum number of jobs of a run in the queue"},
	}
}

var (
	nameForm = plain.NewForm(`^[A-Za-z0-9_][A-Za-z0-9_.,@:+-]{0,199}$`)
	gresForm = plain.NewForm(`^[A-Za-z0-9_][A-Za-z0-9_.:,=()-]{0,199}$`)
	printed  = plain.NewForm(`^[^\x00-\x1f\x7f]{1,500}$`)
)

// Check reports invalid values.
func (c *Config) Check(t *config.Table) {
	t.Match("login", c.Login, host.SSHName, "an SSH host")
	t.Match("partition", c.Partition, nameForm, "the name of a partition")
	t.Match("account", c.Account, nameForm, "the name of an account")
	t.Match("qos", c.QOS, nameForm, "the name of a QOS")
	t.Match("gres", c.Gres, gresForm, `one such as "gpu:b200:1"`)
	t.Match("constraint", c.Constraint, printed, "printed characters, at most 500")
	if c.SSHConfig != "" && !(path.IsAbs(c.SSHConfig) && printed.MatchString(c.SSHConfig)) {
		t.Fault("ssh_config", "", "%.200q is not absolute", c.SSHConfig)
	}
	below, home := strings.CutPrefix(c.Workdir, "~/")
	if !printed.MatchString(c.Workdir) || !(home && filepath.IsLocal(below) || path.IsAbs(c.Workdir)) {
		t.Fault("workdir", "", "want an absolute path, or one that begins with ~/, got %.200q", c.Workdir)
	}
	for _, o := range c.Sbatch {
		if why := foreign(o); why != "" {
			t.Fault("sbatch", "", "%.100q %s", o, why)
		}
	}
	config.Between(t, "jobs", c.Jobs, 1, 1000)
}

// Open returns the provider.
func (c *Config) Open(name string) (remote.Provider, error) { return New(name, *c), nil }
