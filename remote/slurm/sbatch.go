package slurm

import (
	"cmp"
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
)

// margin is what Slurm's own limit is longer than the job's: time for the agent to look at the bundle, to end the
// program and to write how it ended.
const margin = 3 * time.Minute

// prefix begins the names of our jobs in the queue; the job's ID follows.
const prefix = "fisub-"

// logName is, in a job's folder, what Slurm and the shell say before the agent runs.
const logName = "slurm.log"

// script gives the batch script: the agent, from the store, in place of the shell, so that Slurm's signals reach it.
func script(agent, dir string) string {
	return "#!/bin/sh\nexec " + plain.Quote(agent) + " agent run " + plain.Quote(dir) + "\n"
}

// sbatchArgs gives the command that reads the script on its standard input. The options of the user come first, so that
// they cannot undo ours. The environment of the login stays there, since Slurm writes a job's environment to disk.
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
	option("gres", gres(c, job))
	option("nodes", "1")
	option("ntasks", "1")
	option("time", strconv.Itoa(int((job.Limit+margin+time.Minute-1)/time.Minute)))
	option("job-name", prefix+job.ID)
	option("comment", comment(job.Labels))
	option("chdir", dir)
	option("output", pattern(dir)+"/"+logName)
	option("error", pattern(dir)+"/"+logName)
	option("export", "HOME,LANG,LOGNAME,PATH,SHELL,USER")
	option("propagate", "NONE")
	return append(args, "--no-requeue", "--parsable")
}

// gres gives what the config asks for, or one GPU of the job's kind.
func gres(c *Config, job *remote.Job) string {
	switch {
	case c.Gres != "":
		return c.Gres
	case job.GPU != "":
		return "gpu:" + job.GPU + ":1"
	}
	return ""
}

// comment gives the labels as one line, in the order of their names.
func comment(labels map[string]string) string {
	parts := []string{"fisub"}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, name+"="+labels[name])
	}
	return plain.Brief(strings.Join(parts, " "), 200)
}

// pattern gives a path as a filename pattern of sbatch that stands for itself.
func pattern(path string) string { return strings.ReplaceAll(path, "%", "%%") }

var jobNumber = regexp.MustCompile(`^[0-9]{1,18}$`)
var clusterName = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)

// accepted reads what sbatch --parsable prints: the job's number, and behind a semicolon the cluster where it is
// another one.
func accepted(stdout string) (number, cluster string, err error) {
	number, cluster, _ = strings.Cut(strings.TrimSpace(stdout), ";")
	if !jobNumber.MatchString(number) || !clusterName.MatchString(cluster) {
		return "", "", fmt.Errorf("sbatch: %.100q is no job number", stdout)
	}
	return number, cluster, nil
}

// commands are those of Slurm that are used.
var commands = []string{"sbatch", "squeue", "scancel", "scontrol", "sacct", "sinfo", "sacctmgr"}

// refusals lists, for words of Slurm's commands in lower case, what kind of refusal they are. The first that fits
// counts.
var refusals = []struct {
	words, code, hint string
}{
	{"invalid partition", "no-such", "set partition to one of them"},
	{"requested node configuration is not available", "no-such", "set gres, partition or constraint to what nodes have"},
	{"generic resource (gres)", "no-such", "set gres to what nodes have"},
	{"invalid feature", "no-such", "set constraint to features that nodes have"},
	{"memory specification", "no-such", "lower --mem in sbatch to what nodes have"},
	{"invalid account", "no-such", "set account to one of yours"},
	{"invalid qos", "no-such", "set qos to one of yours"},
	{"invalid --time", "limit", "set limit to a time that the partition allows"},
	{"time limit is invalid", "limit", "set limit to a time that the partition allows"},
	{"policy", "quota", "wait until your jobs have ended, or ask for fewer at a time with jobs"},
	{"job limit", "quota", "wait until your jobs have ended, or ask for fewer at a time with jobs"},
	{"quota exceeded", "disk", "free space where workdir is, or set another workdir"},
	{"no space left", "disk", "free space where workdir is, or set another workdir"},
	{"read-only file system", "disk", "set workdir to a folder that you may write to"},
	{"permission denied", "credentials", "see whether you may write to workdir and use the partition on the login host"},
	{"not authorized", "credentials", "ask the cluster's administrators for access"},
	{"authentication", "credentials", "log in anew: munge, or the token in SLURM_JWT, was refused"},
	{"munge", "credentials", "see whether munged runs on the login host"},
	{"unable to contact slurm controller", "unreachable", "try again when the controller is up: scontrol ping"},
	{"configuration source", "unreachable", "see whether the login host is set up for Slurm: sinfo"},
	{"could not resolve", "unreachable", "see whether the login host is set up for Slurm: sinfo"},
	{"option", "no-such", "see sbatch in the table: the cluster's sbatch does not have the option"},
}

// denied makes an error of a Slurm command a *remote.Denied, where its words say that the job will not be taken. names
// gives what there is, for the hint; it may be nil.
func denied(err error, names func(words string) string) error {
	var failed *host.ExitError
	if !errors.As(err, &failed) {
		return err
	}
	d := &remote.Denied{Code: "no-such", Text: failed.Error()}
	if failed.Status == host.NotFound {
		d.Hint = "set login to a host that has Slurm's commands"
		return d
	}
	words := strings.ToLower(failed.Stderr)
	for _, r := range refusals {
		about := r.code == "disk" || r.words == "permission denied" // what every command may say
		if (about || slices.Contains(commands, failed.Name)) && strings.Contains(words, r.words) {
			d.Code, d.Hint = r.code, r.hint
			if names != nil && r.code == "no-such" {
				d.Hint = cmp.Or(names(r.words), d.Hint)
			}
			return d
		}
	}
	return err
}
