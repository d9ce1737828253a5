package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/host"
	"fisub/remote/work"
)

// extra is how much longer than the job's limit Slurm's limit is, so that the agent can verify the bundle, end the
// program and write the exit.
const extra = 3 * time.Minute

// prefix begins the names of fisub's jobs in the queue.
const prefix = "fisub-"

// called returns the name of a job in the queue: its ID, with the prefix added if it is missing.
func called(id string) string { return prefix + strings.TrimPrefix(id, prefix) }

// logName is the file in a job's folder for the output of Slurm and the shell before the agent runs.
const logName = "slurm.log"

// script returns the batch script. It runs the agent from the store, forwards SIGTERM to it and waits for its end. If
// the agent was killed, the script ends the job's remaining processes on the node.
func script(agent, dir string) string {
	return "#!/bin/sh\nagent=" + plain.Quote(agent) + " dir=" + plain.Quote(dir) + `
trap 'kill -TERM $!' TERM
"$agent" agent run "$dir" &
while wait $!; s=$?; [ $s -gt 128 ] && kill -0 $! 2>/dev/null; do :; done
[ $s -lt 126 ] || "$agent" agent sweep "$dir"
exit $s
`
}

// sbatchArgs returns the command that reads the script from standard input. The user's options come first, so that they
// cannot override fisub's. The login environment is not exported, since Slurm writes a job's environment to disk.
func sbatchArgs(c *Config, job *remote.Job, dir string) []string {
	args := append([]string{"sbatch"}, c.Sbatch...)
	option := func(name, value string) {
		if value != "" {
			args = append(args, "--"+name+"="+value)
		}
	}
	option("partition", c.Partition)
	option("account", c.Account)
	option("qos", c.QOS)
	option("constraint", c.Constraint)
	gres := c.Gres
	if gres == "" && job.GPU != "" {
		gres = "gpu:" + job.GPU + ":1"
	}
	option("gres", gres)
	option("nodes", "1")
	option("ntasks", "1")
	option("time", strconv.Itoa(int((job.Limit+extra+time.Minute-1)/time.Minute)))
	option("job-name", called(job.ID))
	comment := "fisub"
	for _, name := range slices.Sorted(maps.Keys(job.Labels)) {
		comment += " " + name + "=" + job.Labels[name]
	}
	option("comment", plain.Brief(comment, 200))
	option("chdir", dir)
	log := strings.ReplaceAll(dir, "%", "%%") + "/" + logName // escaped: sbatch expands patterns
	option("output", log)
	option("error", log)
	option("export", "HOME,LANG,LOGNAME,PATH,SHELL,USER")
	option("propagate", "NONE")
	return append(args, "--no-requeue", "--parsable")
}

var (
	jobNumber   = regexp.MustCompile(`^[0-9]{1,18}$`)
	clusterName = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)
)

// valid reports whether a handle's number and cluster are safe to pass to scancel; handles come from files.
func valid(j *work.FolderJob) bool {
	return (j.Number == "" || jobNumber.MatchString(j.Number)) && clusterName.MatchString(j.Cluster)
}

// accepted parses the output of sbatch --parsable: the job's number and, after a semicolon, the cluster if it is not
// the default one.
func accepted(stdout string) (number, cluster string, err error) {
	number, cluster, _ = strings.Cut(strings.TrimSpace(stdout), ";")
	if !jobNumber.MatchString(number) || !clusterName.MatchString(cluster) {
		return "", "", fmt.Errorf("sbatch: invalid job number %.100q", stdout)
	}
	return number, cluster, nil
}

// commands lists the Slurm commands that fisub uses.
var commands = []string{"sbatch", "squeue", "scancel", "scontrol", "sacct", "sinfo", "sacctmgr"}

// A listing is a command that lists a kind of resource.
type listing struct {
	what string
	argv []string
}

var (
	partitions = &listing{"the cluster's partitions", []string{"sinfo", "--noheader", "--format=%R"}}
	resources  = &listing{"resources of the nodes, by partition", []string{"sinfo", "--noheader", "--format=%R %G"}}
	features   = &listing{"features of the nodes, by partition", []string{"sinfo", "--noheader", "--format=%R %f"}}
	accounts   = &listing{"your accounts and their QOS", host.Shell(`exec sacctmgr --noheader --parsable2 ` +
		`show assoc user="$(id -un)" format=account,qos`)}
)

// noCluster lists texts of Slurm's commands, in lower case, on a machine without the configuration of a cluster.
var noCluster = []string{"configuration source", "could not resolve"}

// refusals maps texts of Slurm's commands, in lower case, to kinds of refusals. The first match counts.
var refusals = []struct {
	words, code, hint string
	there             *listing // makes a better hint if it succeeds; may be nil
}{
	{"invalid partition", "no-such", "set partition to one of them", partitions},
	{"requested node configuration is not available", "no-such", "set gres, partition or constraint to what nodes have",
		resources},
	{"generic resource (gres)", "no-such", "set gres to what nodes have", resources},
	{"invalid feature", "no-such", "set constraint to features that nodes have", features},
	{"memory specification", "no-such", "lower --mem in sbatch to what nodes have", nil},
	{"invalid account", "no-such", "set account to one of yours", accounts},
	{"invalid qos", "no-such", "set qos to one of yours", accounts},
	{"invalid --time", "limit", "set limit to a time that the partition allows", nil},
	{"time limit is invalid", "limit", "set limit to a time that the partition allows", nil},
	{"policy", "quota", "wait until your jobs have ended, or lower jobs", nil},
	{"job limit", "quota", "wait until your jobs have ended, or lower jobs", nil},
	{"quota exceeded", "disk", "free space where workdir is, or set another workdir", nil},
	{"no space left", "disk", "free space where workdir is, or set another workdir", nil},
	{"read-only file system", "disk", "set workdir to a writable folder", nil},
	{"permission denied", "credentials", "check your permissions for workdir and the partition on the login host",
		nil},
	{"not authorized", "credentials", "ask the cluster's administrators for access", nil},
	{"authentication", "credentials", "log in again: munge or the token in SLURM_JWT was rejected", nil},
	{"munge", "credentials", "check that munged runs on the login host", nil},
	{"unable to contact slurm controller", "unreachable", "try again when the controller is up: scontrol ping", nil},
	{noCluster[0], "unreachable", "check that the login host is set up for Slurm: sinfo", nil},
	{noCluster[1], "unreachable", "check that the login host is set up for Slurm: sinfo", nil},
	{"option", "no-such", "remove the option from sbatch in the table: the cluster does not support it", nil},
}

// denied turns a command's error into a *remote.Denied if its text shows that the job will not be accepted.
func (p *Provider) denied(ctx context.Context, err error) error {
	var failed *host.ExitError
	if errors.As(err, new(*remote.Denied)) || !errors.As(err, &failed) {
		return err
	}
	if failed.Status == host.NotFound {
		return &remote.Denied{Code: "no-such", Text: failed.Error(), Hint: "set login to a host with Slurm's commands"}
	}
	words := strings.ToLower(failed.Stderr)
	for _, r := range refusals {
		about := r.code == "disk" || r.words == "permission denied" // any command may print these
		if (about || slices.Contains(commands, failed.Name)) && strings.Contains(words, r.words) {
			return &remote.Denied{Code: r.code, Text: failed.Error(), Hint: cmp.Or(p.names(ctx, r.there), r.hint)}
		}
	}
	return err
}

// names returns the output of a listing, or "".
func (p *Provider) names(ctx context.Context, there *listing) string {
	if there == nil {
		return ""
	}
	out, err := p.slurm(ctx, "", there.argv...)
	var lines []string
	for line := range strings.Lines(out) {
		if line = plain.Brief(line, 200); line != "" && !slices.Contains(lines, line) && len(lines) < 20 {
			lines = append(lines, line)
		}
	}
	if err != nil || len(lines) == 0 {
		return ""
	}
	return there.what + ": " + strings.Join(lines, ", ")
}
