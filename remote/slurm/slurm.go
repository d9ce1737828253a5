// Package slurm is the provider for Slurm clusters. A job is one batch job whose script runs the agent; Slurm chooses
// the node and the GPU. Slurm's commands run on this machine or on a login host. Bundles and jobs are in a work folder
// on a file system that the login host and the compute nodes share. Jobs are submitted one by one, not as an array:
// each handle is saved before the next job is submitted, and each job can be cancelled, lost and moved alone.
package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/follow"
	"fisub/remote/host"
	"fisub/remote/work"
)

// Kind is the name of this provider in tables and handles.
const Kind = "slurm"

// Options of sbatch that the table may not set: keyOptions have their own keys, ownOptions are set by fisub.
var (
	keyOptions = map[string]string{"partition": "partition", "account": "account", "qos": "qos", "gres": "gres",
		"gpus": "gres", "gpus-per-node": "gres", "gpus-per-task": "gres", "constraint": "constraint", "time": "limit"}
	ownOptions = strings.Fields(`array chdir output error input job-name wrap wait parsable requeue no-requeue test-only
		nodes ntasks help usage version propagate comment export export-file get-user-env clusters`)
)

var optionForm = regexp.MustCompile(`^--([A-Za-z][A-Za-z0-9-]*)(=[^\x00-\x1f\x7f]*)?$`)

// foreign returns why the table may not have an option, or "" if it may. sbatch accepts the beginning of an option's
// name.
func foreign(option string) string {
	m := optionForm.FindStringSubmatch(option)
	if m == nil {
		return "is not an option: write --name or --name=value"
	}
	for name, key := range keyOptions {
		if strings.HasPrefix(name, m[1]) {
			return "has a key of its own: " + key
		}
	}
	if slices.ContainsFunc(ownOptions, func(own string) bool { return strings.HasPrefix(own, m[1]) }) {
		return "is set by fisub"
	}
	return ""
}

// A Provider submits jobs to one cluster.
type Provider struct {
	*work.Hosts
	config  *Config
	rules   follow.Rules
	command time.Duration // for one of Slurm's commands, which wait long for a dead controller
	folder  *work.Folder  // on the login host
}

// New returns the provider of the table [remote.name]. It runs nothing.
func New(name string, c Config) *Provider {
	var login host.Host = host.Local{}
	if c.Login != "" {
		login = &host.SSH{Name: c.Login, Config: c.SSHConfig}
	}
	folder := work.New(login, c.Login, c.Workdir)
	rules := follow.Rules{Read: 100 * time.Millisecond, Query: time.Second, Slow: 15 * time.Second,
		Grace: 40 * time.Second, Away: follow.Forever, Doubt: doubtful}
	if c.Login != "" {
		folder.Pack, rules.Read = true, time.Second/2 // each read takes a few processes on the login host
	}
	at := func(remote.Place) *work.Folder { return folder }
	p := &Provider{work.NewHosts(Kind, name, at, folder), &c, rules, 30 * time.Second, folder}
	p.Jobs, p.Logs, p.Valid = follow.Jobs{Starter: p}, []string{logName}, valid
	return p
}

// Places returns one slot for each job that the table allows in the queue at a time.
func (p *Provider) Places(n int) []remote.Place { return remote.Slots("slot", min(n, p.config.Jobs)) }

// slurm runs one of Slurm's commands, with a time limit in case the controller is dead.
func (p *Provider) slurm(ctx context.Context, stdin string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.command, fmt.Errorf("timeout after %v", p.command))
	defer cancel()
	out := &plain.Buffer{Limit: 4 << 20}
	err := p.folder.Host.Run(ctx, argv, strings.NewReader(stdin), out)
	if failed, ok := errors.AsType[*host.ExitError](err); ok {
		failed.Name = program(argv)
		failed.Stderr = strings.ReplaceAll(failed.Stderr, "Batch job submission failed: ", "")
	}
	return out.String(), err
}

// program returns the name of the program that argv runs: Slurm's command, even if another program starts it.
func program(argv []string) string {
	if at := slices.IndexFunc(argv, func(arg string) bool { return slices.Contains(commands, arg) }); at > 0 {
		return argv[at]
	}
	return argv[0]
}

// Fault implements follow.Starter. There is one host for all places.
func (p *Provider) Fault(ctx context.Context, _ remote.Place, err error) error {
	return work.Fault(ctx, p.Table, p.config.Login, p.denied(ctx, err))
}

// onCluster inserts the job's cluster after the program's name.
func onCluster(j *work.FolderJob, args []string) []string {
	if j.Cluster == "" {
		return args
	}
	return slices.Insert(args, slices.Index(args, program(args))+1, "--clusters="+j.Cluster)
}

// Start implements follow.Starter. A job whose folder was removed cannot run, even if the answer of sbatch was lost.
func (p *Provider) Start(ctx context.Context, rj *remote.Job, progress func(sent, total int64)) (remote.Handle, error) {
	j, err := p.folder.Place(ctx, rj, progress)
	if err != nil {
		return remote.Handle{}, p.denied(ctx, err)
	}
	out, err := p.slurm(ctx, script(agent.Stored(j.Work, j.Program), j.Dir()), sbatchArgs(p.config, rj, j.Dir())...)
	if err == nil {
		j.Number, j.Cluster, err = accepted(out)
	}
	if err == nil {
		return j.Handle(Kind), nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.command)
	defer cancel()
	err = errors.Join(p.denied(ctx, err), j.Remove(clean))
	if code := remote.CodeOf(err); code == "" || code == "unreachable" {
		return j.Handle(Kind), err
	}
	return remote.Handle{}, err
}

// cancel cancels the job in Slurm and does not wait for its end. An ended or unknown job is not an error.
func (p *Provider) cancel(ctx context.Context, j *work.FolderJob) error {
	_, err := p.slurm(ctx, "", onCluster(j, []string{"scancel", cmp.Or(j.Number, "--name="+called(j.ID))})...)
	if unknown(err) {
		return nil
	}
	return err
}

// unknown reports whether Slurm has no such job.
func unknown(err error) bool {
	var failed *host.ExitError
	return errors.As(err, &failed) && strings.Contains(strings.ToLower(failed.Stderr), "invalid job id")
}

// jobStatus asks the controller for the job's state, which it remembers for minutes after the end, then the accounting,
// which a cluster need not have.
func (p *Provider) jobStatus(ctx context.Context, j *work.FolderJob) (status, error) {
	if j.Number == "" {
		ask := []string{"squeue", "--noheader", "--me", "--name=" + called(j.ID), "--format=%A"}
		out, err := p.slurm(ctx, "", onCluster(j, ask)...)
		if j.Number = firstLine(out); err != nil || !jobNumber.MatchString(j.Number) {
			j.Number = ""
			return status{}, err
		}
	}
	out, err := p.slurm(ctx, "", scontrolArgs(j)...)
	if !unknown(err) {
		if err != nil {
			return status{}, err
		}
		return readScontrol(out)
	}
	out, err = p.slurm(ctx, "", sacctArgs(j)...)
	if errors.As(err, new(*host.ExitError)) {
		err = nil // no accounting
	}
	return readSacct(out), err
}

// Check reports the partition's nodes, and when a job would start.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	state, detail, err := p.ready(ctx)
	if err = p.Fault(ctx, remote.Place{}, err); ctx.Err() != nil {
		return nil, err
	}
	return []remote.Host{{Name: p.Table, State: state, Detail: detail, Err: err}}, nil
}

// mergeOutput runs a command that answers on standard error.
const mergeOutput = `out=$("$@" 2>&1); s=$?; [ $s -eq 0 ] || exec >&2; printf '%s\n' "$out"; exit $s`

// ready returns the state "down" with an error.
func (p *Provider) ready(ctx context.Context) (state, detail string, err error) {
	facts, err := p.folder.Inspect(ctx)
	if err != nil {
		return "down", "", err
	}
	nodes, err := p.slurm(ctx, "", sinfoArgs(p.config.Partition)...)
	if err != nil {
		return "down", "", err
	}
	job := &remote.Job{ID: "check", GPU: p.config.Wanted(), Limit: max(p.config.Limit, time.Minute)}
	ask := host.Shell(mergeOutput, "env", "SLURM_TIME_FORMAT=%s")
	ask = append(append(ask, sbatchArgs(p.config, job, facts.Root)...), "--test-only")
	words, err := p.slurm(ctx, script("true", "/"), ask...)
	state, detail = readiness(nodes, words, time.Now())
	if failed, ok := errors.AsType[*host.ExitError](p.denied(ctx, err)); ok && failed.Name == "sbatch" && state != "down" {
		return "busy", detail + ", " + failed.Error(), nil // a job would wait until nodes are back
	}
	if err != nil {
		return "down", "", err
	}
	return state, detail, nil
}

// Stop implements follow.Starter.
func (p *Provider) Stop(ctx context.Context, h remote.Handle) (removed bool, err error) {
	j, _, err := p.Open(h)
	if err != nil {
		return false, err
	}
	s, err := p.jobStatus(ctx, j)
	switch {
	case err != nil:
		return false, err
	case s.over():
		return true, j.Remove(ctx)
	}
	return false, p.cancel(ctx, j)
}

// List returns the jobs in the queue, and ended jobs that have a folder.
func (p *Provider) List(ctx context.Context) (handles []remote.Handle, err error) {
	defer func() { err = p.Fault(ctx, remote.Place{}, err) }()
	folders, root, err := p.folder.List(ctx)
	if err != nil {
		return nil, err
	}
	out, err := p.slurm(ctx, "", "squeue", "--noheader", "--me", "--states=all", "--format=%A|%T|%j|%Z")
	if err != nil {
		return nil, err
	}
	jobs := map[string]*work.FolderJob{}
	for _, j := range folders {
		jobs[j.ID] = j
	}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 4)
		if len(f) != 4 || !jobNumber.MatchString(f[0]) {
			continue
		}
		id := path.Base(f[3])
		in, below := strings.CutSuffix(f[3], "/jobs/"+id)
		kept := in == root && jobs[id] != nil
		if f[2] != called(id) || !below || !remote.ValidID(id) || !kept && (status{state: f[1]}).over() {
			continue
		}
		if !kept {
			jobs[id] = &work.FolderJob{ID: id, Work: in, Place: remote.Place{GPU: -1}}
		}
		jobs[id].Number = f[0]
	}
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		handles = append(handles, jobs[id].Handle(Kind))
	}
	return handles, nil
}
