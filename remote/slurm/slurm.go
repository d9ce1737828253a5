// Package slurm is the provider of clusters that Slurm schedules. A job is one batch job whose script is the agent;
// Slurm chooses the node and the GPU. Its commands run on this machine or on a login host, and all that a job needs and
// leaves lies in a work folder on a file system that the login host and the compute nodes share. Each job is submitted
// by itself and not as an element of an array, so that each has a handle that is saved before the next one is
// submitted, and can be cancelled, lost and sent elsewhere alone.
package slurm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/host"
	"fisub/remote/work"
)

// Kind is the name of this provider in tables and handles.
const Kind = "slurm"

// ownOptions are set by fisub: what a job is must not depend on the table.
var ownOptions = []string{
	"array", "chdir", "output", "error", "input", "job-name", "wrap", "wait", "parsable", "requeue", "no-requeue",
	"test-only", "nodes", "ntasks", "help", "usage", "version", "propagate", "comment", "export", "export-file",
	"get-user-env", "clusters",
}

// keyOptions have keys of their own in the table.
var keyOptions = []struct{ option, key string }{
	{"partition", "partition"}, {"account", "account"}, {"qos", "qos"}, {"gres", "gres"}, {"gpus", "gres"},
	{"gpus-per-node", "gres"}, {"gpus-per-task", "gres"}, {"constraint", "constraint"}, {"time", "limit"},
}

// foreign tells why an option of the table cannot be one; "" where it can. sbatch takes the beginning of a name for the
// name.
func foreign(option string) string {
	m := optionForm.FindStringSubmatch(option)
	if m == nil {
		return "is no option: write --name or --name=value"
	}
	for _, k := range keyOptions {
		if strings.HasPrefix(k.option, m[1]) {
			return "has a key of its own: " + k.key
		}
	}
	if slices.ContainsFunc(ownOptions, func(own string) bool { return strings.HasPrefix(own, m[1]) }) {
		return "is set by fisub"
	}
	return ""
}

var optionForm = regexp.MustCompile(`^--([A-Za-z][A-Za-z0-9-]*)(=[^\x00-\x1f\x7f]*)?$`)

// A Provider submits to one cluster.
type Provider struct {
	name   string // of the table
	config *Config
	pace   pace
	folder *work.Folder // on the login host
}

// pace says how often a Provider looks.
type pace struct {
	read    time.Duration // at the stream of a job that runs
	queued  time.Duration // at a job's state, at first
	slow    time.Duration // at a job's state, at last
	grace   time.Duration // for files of a job that Slurm says has ended: network file systems show them late
	command time.Duration // for one of Slurm's commands, which wait long for a controller that is down
	stop    time.Duration // for a job to end after scancel
}

var usual = pace{
	read: 100 * time.Millisecond, queued: time.Second, slow: 15 * time.Second, grace: 40 * time.Second,
	command: 30 * time.Second, stop: 2 * time.Minute,
}

// New makes the provider of the table [remote.name]. It runs nothing.
func New(name string, c Config) *Provider {
	var login host.Host = host.Local{}
	if c.Login != "" {
		login = &host.SSH{Name: c.Login, Config: c.SSHConfig}
	}
	return &Provider{name, &c, usual, work.New(login, c.Login, c.Workdir)}
}

// Places gives as many slots of the queue as the table allows jobs at a time.
func (p *Provider) Places(n int) []remote.Place {
	var places []remote.Place
	for i := range min(n, p.config.Jobs) {
		places = append(places, remote.Place{Host: fmt.Sprintf("slot%d", i+1), GPU: -1})
	}
	return places
}

// slurm runs one of Slurm's commands, which does not wait for a dead controller for ever.
func (p *Provider) slurm(ctx context.Context, argv []string, stdin string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.pace.command, fmt.Errorf("no answer in %v", p.pace.command))
	defer cancel()
	out := &plain.Buffer{Limit: 4 << 20}
	err := p.folder.Host.Run(ctx, argv, strings.NewReader(stdin), out)
	var failed *host.ExitError
	if errors.As(err, &failed) {
		failed.Name = program(argv)
		failed.Stderr = strings.ReplaceAll(failed.Stderr, "Batch job submission failed: ", "")
	}
	return out.String(), err
}

// program gives the name of the program that argv runs: Slurm's, where another one runs it.
func program(argv []string) string {
	for _, arg := range argv {
		if slices.Contains(commands, arg) {
			return arg
		}
	}
	return argv[0]
}

// fault gives an error as the user sees it.
func (p *Provider) fault(ctx context.Context, err error) error {
	return work.Fault(ctx, p.name, p.config.Login, denied(err, nil))
}

// A job is what a handle holds of it, and its ID.
type job struct {
	work.Job
	Number  string `json:"number,omitempty"`  // of Slurm; "" where only the name is known
	Cluster string `json:"cluster,omitempty"` // of a federation; "" for the login's own
}

func (p *Provider) newJob(id, root, number string) *job {
	return &job{Job: work.Job{Host: p.folder.Host, ID: id, Work: root, Place: remote.Place{GPU: -1}}, Number: number}
}

// onCluster adds the cluster behind the program's name.
func (j *job) onCluster(args []string) []string {
	if j.Cluster == "" {
		return args
	}
	return slices.Insert(args, slices.Index(args, program(args))+1, "--clusters="+j.Cluster)
}

// jobOf reads a handle, which comes from a file: what it names will be cancelled and removed.
func (p *Provider) jobOf(h remote.Handle) (*job, error) {
	j := &job{}
	err := json.Unmarshal(h.Data, j)
	j.Host, j.ID, j.Place = p.folder.Host, h.Job, h.Place
	if err != nil || h.Provider != Kind || !j.Valid() || j.Number != "" && !jobNumber.MatchString(j.Number) ||
		!clusterName.MatchString(j.Cluster) {
		return nil, fmt.Errorf("%s: job %.80q: its handle is not one of slurm", p.name, h.Job)
	}
	return j, nil
}

func (j *job) handle() remote.Handle {
	data, _ := json.Marshal(j) // strings: it cannot fail
	return remote.Handle{Provider: Kind, Job: j.ID, Place: j.Place, Data: data}
}

// Submit sends what the store lacks, and gives the job to sbatch.
func (p *Provider) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (remote.Handle,
	error) {
	j, err := p.submit(ctx, job, progress)
	if err != nil {
		return remote.Handle{}, p.fault(ctx, err)
	}
	return j.handle(), nil
}

func (p *Provider) submit(ctx context.Context, rj *remote.Job, progress func(sent, total int64)) (*job, error) {
	program, err := rj.Program()
	if err = errors.Join(rj.Check(), err); err != nil {
		return nil, err
	}
	facts, err := p.folder.Send(ctx, rj.Files, progress)
	if err != nil {
		return nil, err
	}
	j := p.newJob(rj.ID, facts.Root, "")
	j.Place = rj.Place
	if err = p.folder.Begin(ctx, &j.Job, rj); err == nil {
		err = p.queue(ctx, j, rj, program.SHA256)
	}
	if err != nil {
		return nil, errors.Join(err, p.undo(ctx, j, err))
	}
	return j, nil
}

// queue gives the job to sbatch. What it did until an error is for undo.
func (p *Provider) queue(ctx context.Context, j *job, rj *remote.Job, hash string) error {
	out, err := p.slurm(ctx, sbatchArgs(p.config, rj, j.Dir()), script(agent.Stored(j.Work, hash), j.Dir()))
	if err != nil {
		return denied(err, func(words string) string { return p.names(ctx, words) })
	}
	j.Number, j.Cluster, err = accepted(out)
	return err
}

// undo leaves nothing of a job whose submission ended with cause: also where the answer of sbatch did not arrive.
func (p *Provider) undo(ctx context.Context, j *job, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*p.pace.command)
	defer cancel()
	var err error
	var refused *remote.Denied
	if !errors.As(cause, &refused) || refused.Code == "unreachable" {
		err = p.cancel(ctx, j)
	}
	if err = errors.Join(err, j.Remove(ctx)); err != nil {
		return fmt.Errorf("job %s may be left in the queue, see scancel --name=%s%s: %w", j.ID, prefix, j.ID, err)
	}
	return nil
}

// names lists what there is of what Slurm refused.
func (p *Provider) names(ctx context.Context, words string) string {
	list := func(what string, argv ...string) string {
		out, err := p.slurm(ctx, argv, "")
		var lines []string
		for line := range strings.Lines(out) {
			if line = plain.Brief(line, 200); line != "" && !slices.Contains(lines, line) && len(lines) < 20 {
				lines = append(lines, line)
			}
		}
		if err != nil || len(lines) == 0 {
			return ""
		}
		return what + ": " + strings.Join(lines, ", ")
	}
	switch words {
	case "invalid partition":
		return list("the cluster's partitions", "sinfo", "--noheader", "--format=%R")
	case "requested node configuration is not available", "generic resource (gres)":
		return list("what the nodes of each partition have", "sinfo", "--noheader", "--format=%R %G")
	case "invalid feature":
		return list("features of the nodes of each partition", "sinfo", "--noheader", "--format=%R %f")
	case "invalid account", "invalid qos":
		user, err := p.slurm(ctx, []string{"id", "-un"}, "")
		if user = strings.TrimSpace(user); err != nil || !nameForm.MatchString(user) {
			return ""
		}
		return list("your accounts and their QOS",
			"sacctmgr", "--noheader", "--parsable2", "show", "assoc", "user="+user, "format=account,qos")
	}
	return ""
}

// lookup gives the numbers of the job's entries in the queue by its name.
func (p *Provider) lookup(ctx context.Context, j *job) ([]string, error) {
	ask := []string{"squeue", "--noheader", "--me", "--name=" + prefix + j.ID, "--format=%A"}
	out, err := p.slurm(ctx, j.onCluster(ask), "")
	if err != nil {
		return nil, err
	}
	var numbers []string
	for line := range strings.Lines(out) {
		if n := strings.TrimSpace(line); jobNumber.MatchString(n) {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// cancel ends the job in Slurm. It does not wait for the end. A job that has ended, or never was, is no error.
func (p *Provider) cancel(ctx context.Context, j *job) error {
	numbers := []string{j.Number}
	if j.Number == "" {
		var err error
		if numbers, err = p.lookup(ctx, j); err != nil || len(numbers) == 0 {
			return err
		}
	}
	_, err := p.slurm(ctx, j.onCluster(append([]string{"scancel"}, numbers...)), "")
	if unknown(err) {
		return nil
	}
	return err
}

// unknown tells whether Slurm says that it has no such job.
func unknown(err error) bool {
	var failed *host.ExitError
	return errors.As(err, &failed) && strings.Contains(strings.ToLower(failed.Stderr), "invalid job id")
}

// look asks Slurm for the job's state: the queue, which remembers ended jobs for minutes, then the accounting, which a
// cluster need not have.
func (p *Provider) look(ctx context.Context, j *job) (status, error) {
	if j.Number == "" {
		numbers, err := p.lookup(ctx, j)
		if err != nil || len(numbers) == 0 {
			return status{}, err
		}
		j.Number = numbers[0]
	}
	out, err := p.slurm(ctx, squeueArgs(j), "")
	if err != nil && !unknown(err) {
		return status{}, err
	}
	s, err := readSqueue(out)
	if err != nil || !s.over() {
		return s, err
	}
	var failed *host.ExitError
	if s.state != "" {
		out, err = p.slurm(ctx, scontrolArgs(j), "")
		s.code = readScontrol(out).code
	} else {
		out, err = p.slurm(ctx, sacctArgs(j), "")
		s = readSacct(out)
	}
	if errors.As(err, &failed) {
		err = nil // forgotten between the two questions, or no accounting
	}
	return s, err
}

// Check asks for the partition's nodes, and when a job would start.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	h := remote.Host{Name: p.name}
	var err error
	h.State, h.Detail, err = p.ready(ctx)
	if h.Err = p.fault(ctx, err); err != nil {
		h.State = "down"
	}
	if ctx.Err() != nil {
		return nil, h.Err
	}
	return []remote.Host{h}, nil
}

// sayAll runs a command whose standard error is its answer.
const sayAll = `out=$("$@" 2>&1); s=$?; [ $s -eq 0 ] || exec >&2; printf '%s\n' "$out"; exit $s`

func (p *Provider) ready(ctx context.Context) (state, detail string, err error) {
	facts, err := p.folder.Look(ctx)
	if err != nil {
		return "", "", err
	}
	nodes, err := p.slurm(ctx, sinfoArgs(p.config.Partition), "")
	if err != nil {
		return "", "", err
	}
	job := &remote.Job{ID: "check", GPU: p.config.GPU, Limit: max(p.config.Limit, time.Minute)}
	ask := host.Shell(sayAll, "env", "SLURM_TIME_FORMAT=%s")
	ask = append(append(ask, sbatchArgs(p.config, job, facts.Root)...), "--test-only")
	words, err := p.slurm(ctx, ask, script("true", "/"))
	if err != nil {
		return "", "", denied(err, func(words string) string { return p.names(ctx, words) })
	}
	state, detail = readiness(nodes, words, time.Now())
	return state, detail, nil
}

// Collect copies the log, and what Slurm and the shell said.
func (p *Provider) Collect(ctx context.Context, h remote.Handle, dst string) error {
	j, err := p.jobOf(h)
	if err != nil {
		return err
	}
	return p.fault(ctx, j.Collect(ctx, dst, logName))
}

// Release cancels the job, waits until Slurm says that it has ended, and removes its folder.
func (p *Provider) Release(ctx context.Context, h remote.Handle) error {
	j, err := p.jobOf(h)
	if err != nil {
		return err
	}
	return p.fault(ctx, p.release(ctx, j))
}

func (p *Provider) release(ctx context.Context, j *job) error {
	deadline := time.Now().Add(p.pace.stop)
	for wait := p.pace.read; ; wait = min(2*wait, 2*time.Second) {
		s, err := p.look(ctx, j)
		if err != nil {
			return err
		}
		if s.over() {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("job %s is still %s %v after scancel", j.Number, s.state, p.pace.stop)
		}
		// Again each time: a job that is just being started may miss it.
		if err := p.cancel(ctx, j); err != nil {
			return err
		}
		if err := remote.Sleep(ctx, wait); err != nil {
			return err
		}
	}
	return j.Remove(ctx)
}

// List gives the jobs in the queue, and those that have ended and have a folder.
func (p *Provider) List(ctx context.Context) ([]remote.Handle, error) {
	handles, err := p.list(ctx)
	return handles, p.fault(ctx, err)
}

func (p *Provider) list(ctx context.Context) (handles []remote.Handle, err error) {
	folders, root, err := p.folder.List(ctx)
	if err != nil {
		return nil, err
	}
	out, err := p.slurm(ctx, []string{"squeue", "--noheader", "--me", "--states=all", "--format=%A|%T|%j|%Z"}, "")
	if err != nil {
		return nil, err
	}
	jobs := map[string]*job{}
	for _, f := range folders {
		jobs[f.ID] = p.newJob(f.ID, root, "")
	}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 4)
		if len(f) != 4 || !jobNumber.MatchString(f[0]) {
			continue
		}
		id, ours := strings.CutPrefix(f[2], prefix)
		in, below := strings.CutSuffix(f[3], "/jobs/"+id)
		kept := in == root && jobs[id] != nil
		if ours && below && remote.ValidID(id) && (kept || !(status{state: f[1]}).over()) {
			jobs[id] = p.newJob(id, in, f[0])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		handles = append(handles, jobs[id].handle())
	}
	return handles, nil
}

// Close ends the connection to the login host.
func (p *Provider) Close() error { return p.folder.Host.Close() }
