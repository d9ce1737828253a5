// Package slurm is the provider of clusters that Slurm schedules. A job is one batch job whose script is the agent; Slurm
// chooses the node and the GPU. Its commands run on this machine or on a login host, and all that a job needs and leaves lies
// in a work folder on a file system that the login host and the compute nodes share. Each job is submitted by itself and not
// as an element of an array, so that each has a handle that is saved before the next one is submitted, and can be cancelled,
// lost and sent elsewhere alone.
package slurm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/ssh"
)

// Kind is the name of this provider in tables and handles.
const Kind = "slurm"

// ownOptions are set by fisub: what a job is must not depend on the table.
var ownOptions = []string{
	"array", "chdir", "output", "error", "input", "job-name", "wrap", "wait", "parsable", "requeue", "no-requeue", "test-only", "nodes", "ntasks",
	"help", "usage", "version", "propagate", "comment", "export", "export-file", "get-user-env", "clusters",
}

// keyOptions have keys of their own in the table.
var keyOptions = []struct{ option, key string }{
	{"partition", "partition"}, {"account", "account"}, {"qos", "qos"}, {"gres", "gres"}, {"gpus", "gres"}, {"gpus-per-node", "gres"},
	{"gpus-per-task", "gres"}, {"constraint", "constraint"}, {"time", "limit"},
}

// foreign tells why an option of the table cannot be one; "" where it can. sbatch takes the beginning of a name for the name.
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

var (
	optionForm = regexp.MustCompile(`^--([A-Za-z][A-Za-z0-9-]*)(=[^\x00-\x1f\x7f]*)?$`)
)

// A Provider submits to one cluster.
type Provider struct {
	name   string // of the table
	config *Config
	pace   pace

	opening chan struct{} // holds a token while nobody uses the three below
	login   login         // nil until it is opened
	work    string        // absolute path of the work folder there
	closed  bool

	sending chan struct{} // holds a token while nobody writes to the store
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
	read: 100 * time.Millisecond, queued: time.Second, slow: 15 * time.Second, grace: 40 * time.Second, command: 30 * time.Second, stop: 2 * time.Minute,
}

// New makes the provider of the table [remote.name]. It runs nothing.
func New(name string, c Config) *Provider {
	p := &Provider{name: name, config: &c, pace: usual, opening: make(chan struct{}, 1), sending: make(chan struct{}, 1)}
	p.opening <- struct{}{}
	p.sending <- struct{}{}
	return p
}

// Places gives as many slots of the queue as the table allows jobs at a time.
func (p *Provider) Places(n int) []remote.Place {
	var places []remote.Place
	for i := range min(n, p.config.Jobs) {
		places = append(places, remote.Place{Host: fmt.Sprintf("slot%d", i+1), GPU: -1})
	}
	return places
}

// open gives the login and the work folder there.
func (p *Provider) open(ctx context.Context) (login, string, error) {
	select {
	case <-p.opening:
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	defer func() { p.opening <- struct{}{} }()
	if p.closed {
		return nil, "", errors.New("the provider is closed")
	}
	if p.login == nil {
		if p.config.Login == "" {
			p.login = here{}
		} else if l, err := ssh.Open(p.name, p.config.Login, p.config.SSHConfig); err != nil {
			return nil, "", err
		} else {
			p.login = there{l}
		}
	}
	if p.work == "" {
		work := p.config.Workdir
		if below, ok := strings.CutPrefix(work, "~/"); ok {
			home, err := p.login.Run(ctx, []string{"printenv", "HOME"}, "")
			if err != nil {
				return nil, "", fmt.Errorf("workdir %s: %w", work, err)
			}
			if home = strings.TrimSuffix(home, "\n"); !path.IsAbs(home) || control(home) {
				return nil, "", fmt.Errorf("workdir %s: HOME is %.200q", work, home)
			}
			work = path.Join(home, below)
		}
		p.work = path.Clean(work)
	}
	return p.login, p.work, nil
}

// slurm runs one of Slurm's commands, which does not wait for a dead controller for ever.
func (p *Provider) slurm(ctx context.Context, l login, argv []string, stdin string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.pace.command, fmt.Errorf("no answer in %v", p.pace.command))
	defer cancel()
	return l.Run(ctx, argv, stdin)
}

// fault gives an error as the user sees it.
func (p *Provider) fault(ctx context.Context, err error) error {
	var d *remote.Denied
	var own *remote.LocalError
	switch {
	case err == nil || errors.As(err, &d):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", p.name, ctx.Err())
	case errors.As(err, &own):
		return fmt.Errorf("%s: %w", p.name, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return &remote.Denied{Code: "disk", Provider: p.name, Host: p.config.Login, Text: err.Error(), Hint: "set workdir to a folder with room that you may write to"}
	}
	if err := denied(p.name, p.config.Login, err, nil); errors.As(err, &d) {
		return d
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// A job is what a handle holds of it, and its ID.
type job struct {
	ID      string `json:"-"`
	Number  string `json:"number,omitempty"`  // of Slurm; "" where only the name is known
	Cluster string `json:"cluster,omitempty"` // of a federation; "" for the login's own
	Work    string `json:"work"`              // absolute path of the work folder
}

func (j *job) dir() string { return agent.JobDir(j.Work, j.ID) }

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
	j.ID = h.Job
	if err != nil || h.Provider != Kind || !remote.ValidID(j.ID) || j.Number != "" && !jobNumber.MatchString(j.Number) ||
		!clusterName.MatchString(j.Cluster) || !path.IsAbs(j.Work) || path.Clean(j.Work) != j.Work || control(j.Work) {
		return nil, fmt.Errorf("%s: job %.80q: its handle is not one of slurm", p.name, h.Job)
	}
	return j, nil
}

func (j *job) handle() (remote.Handle, error) {
	data, err := json.Marshal(j)
	return remote.Handle{Provider: Kind, Job: j.ID, Place: remote.Place{GPU: -1}, Data: data}, err
}

// Submit sends what the store lacks, and gives the job to sbatch.
func (p *Provider) Submit(ctx context.Context, rj *remote.Job, progress func(sent, total int64)) (remote.Handle, error) {
	h, err := p.submit(ctx, rj, progress)
	if err != nil {
		return remote.Handle{}, p.fault(ctx, err)
	}
	return h, nil
}

func (p *Provider) submit(ctx context.Context, rj *remote.Job, progress func(sent, total int64)) (remote.Handle, error) {
	var none remote.Handle
	if err := rj.Check(); err != nil {
		return none, err
	}
	at := slices.IndexFunc(rj.Files, func(f remote.File) bool { return f.Name == agent.Program && f.Exec })
	if at < 0 {
		return none, fmt.Errorf("job %s: no executable file %s in the bundle", rj.ID, agent.Program)
	}
	l, work, err := p.open(ctx)
	if err != nil {
		return none, err
	}
	if err := p.send(ctx, l, work, rj.Files, progress); err != nil {
		return none, err
	}
	j := &job{ID: rj.ID, Work: work}
	if _, err := l.Run(ctx, []string{"mkdir", "-m", "700", "--", j.dir()}, ""); err != nil {
		return none, err
	}
	if err = p.start(ctx, l, j, rj, agent.Stored(work, rj.Files[at].SHA256)); err != nil {
		if left := p.undo(ctx, l, j, err); left != nil {
			return none, errors.Join(err, left)
		}
		return none, err
	}
	h, err := j.handle()
	h.Place = rj.Place
	return h, err
}

// start writes the job's description and submits it. What it did until an error is for undo.
func (p *Provider) start(ctx context.Context, l login, j *job, rj *remote.Job, program string) error {
	text, err := json.Marshal(rj)
	if err != nil {
		return err
	}
	if err := l.Put(ctx, path.Join(j.dir(), agent.JobName), bytes.NewReader(text), 0o600); err != nil {
		return err
	}
	out, err := p.slurm(ctx, l, sbatchArgs(p.config, rj, j.dir()), script(program, j.dir()))
	if err != nil {
		return denied(p.name, p.config.Login, err, func(words string) string { return p.names(ctx, l, words) })
	}
	j.Number, j.Cluster, err = accepted(out)
	return err
}

// undo leaves nothing of a job whose submission ended with cause: also where the answer of sbatch did not arrive.
func (p *Provider) undo(ctx context.Context, l login, j *job, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*p.pace.command)
	defer cancel()
	var err error
	var refused *remote.Denied
	if !errors.As(cause, &refused) || refused.Code == "unreachable" {
		err = p.cancel(ctx, l, j)
	}
	_, gone := l.Run(ctx, []string{"rm", "-rf", "--", j.dir()}, "")
	if err = errors.Join(err, gone); err != nil {
		return fmt.Errorf("job %s may be left in the queue, see scancel --name=%s%s: %w", j.ID, prefix, j.ID, err)
	}
	return nil
}

// names lists what there is of what Slurm refused.
func (p *Provider) names(ctx context.Context, l login, words string) string {
	list := func(what string, argv ...string) string {
		out, err := p.slurm(ctx, l, argv, "")
		var lines []string
		for line := range strings.Lines(out) {
			if line = clean(line, 200); line != "" && !slices.Contains(lines, line) && len(lines) < 20 {
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
		user, err := l.Run(ctx, []string{"id", "-un"}, "")
		if user = strings.TrimSpace(user); err != nil || !nameForm.MatchString(user) {
			return ""
		}
		return list("your accounts and their QOS", "sacctmgr", "--noheader", "--parsable2", "show", "assoc", "user="+user, "format=account,qos")
	}
	return ""
}

// send brings to the store what it lacks. One job of this process sends at a time, so that the next one finds it there.
func (p *Provider) send(ctx context.Context, l login, work string, files []remote.File, progress func(sent, total int64)) error {
	select {
	case <-p.sending:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { p.sending <- struct{}{} }()
	if _, err := l.Run(ctx, []string{"mkdir", "-p", "-m", "700", "--", work, agent.Store(work), agent.Jobs(work)}, ""); err != nil {
		return err
	}
	have, err := l.Sizes(ctx, agent.Store(work))
	if err != nil {
		return err
	}
	var lacking []remote.File
	var there strings.Builder
	var sent, total int64
	for _, f := range files {
		if size, ok := have[f.SHA256]; ok && size == f.Size {
			there.WriteString(agent.Stored(work, f.SHA256) + "\x00")
			continue
		}
		have[f.SHA256] = f.Size // two names may have the same content
		lacking = append(lacking, f)
		total += f.Size
	}
	// Files that no job has used for a month go.
	if _, err := l.Run(ctx, []string{"xargs", "-0", "-r", "touch", "-c", "--"}, there.String()); err != nil {
		return err
	}
	if _, err := l.Run(ctx, []string{"find", agent.Store(work), "-maxdepth", "1", "-type", "f", "-mtime", "+30", "-delete"}, ""); err != nil {
		return err
	}
	for _, f := range lacking {
		if err := sendFile(ctx, l, agent.Stored(work, f.SHA256), f, func(n int) {
			if sent += int64(n); progress != nil {
				progress(sent, total)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

func sendFile(ctx context.Context, l login, name string, f remote.File, sent func(n int)) error {
	file, err := os.Open(f.Path)
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer file.Close()
	mode := fs.FileMode(0o444)
	if f.Exec {
		mode = 0o555
	}
	return l.Put(ctx, name, &hashed{file, f, sent, sha256.New()}, mode)
}

// hashed reads a file and ends with an error where its content is not that of the hash.
type hashed struct {
	r    io.Reader
	file remote.File
	sent func(n int)
	hash hash.Hash
}

func (r *hashed) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.hash.Write(p[:n])
	r.sent(n)
	if err == io.EOF {
		if got := hex.EncodeToString(r.hash.Sum(nil)); got != r.file.SHA256 {
			return n, fmt.Errorf("%w: file %s: got %s, want %s", agent.ErrHash, r.file.Name, got, r.file.SHA256)
		}
	} else if err != nil {
		err = &remote.LocalError{Err: err}
	}
	return n, err
}

// lookup gives the numbers of the job's entries in the queue by its name.
func (p *Provider) lookup(ctx context.Context, l login, j *job) ([]string, error) {
	out, err := p.slurm(ctx, l, j.onCluster([]string{"squeue", "--noheader", "--me", "--name=" + prefix + j.ID, "--format=%A"}), "")
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
func (p *Provider) cancel(ctx context.Context, l login, j *job) error {
	numbers := []string{j.Number}
	if j.Number == "" {
		var err error
		if numbers, err = p.lookup(ctx, l, j); err != nil || len(numbers) == 0 {
			return err
		}
	}
	_, err := p.slurm(ctx, l, j.onCluster(append([]string{"scancel"}, numbers...)), "")
	if unknown(err) {
		return nil
	}
	return err
}

// unknown tells whether Slurm says that it has no such job.
func unknown(err error) bool {
	var failed *commandError
	return errors.As(err, &failed) && strings.Contains(strings.ToLower(failed.stderr), "invalid job id")
}

// look asks Slurm for the job's state: the queue, which remembers ended jobs for minutes, then the accounting, which a cluster
// need not have.
func (p *Provider) look(ctx context.Context, l login, j *job) (status, error) {
	if j.Number == "" {
		numbers, err := p.lookup(ctx, l, j)
		if err != nil || len(numbers) == 0 {
			return status{}, err
		}
		j.Number = numbers[0]
	}
	out, err := p.slurm(ctx, l, squeueArgs(j), "")
	if err != nil && !unknown(err) {
		return status{}, err
	}
	s, err := readSqueue(out)
	if err != nil || !s.over() {
		return s, err
	}
	var failed *commandError
	if s.state != "" {
		out, err = p.slurm(ctx, l, scontrolArgs(j), "")
		s.code = readScontrol(out).code
	} else {
		out, err = p.slurm(ctx, l, sacctArgs(j), "")
		s = readSacct(out)
	}
	if errors.As(err, &failed) {
		err = nil // forgotten between the two questions, or no accounting
	}
	return s, err
}

// Check asks for the partition's nodes, and when a job would start.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	l, work, err := p.open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, p.fault(ctx, err)
		}
		return []remote.Host{{Name: p.name, State: "down", Err: p.fault(ctx, err)}}, nil
	}
	host := remote.Host{Name: p.name, State: "down"}
	nodes, err := p.slurm(ctx, l, sinfoArgs(p.config.Partition), "")
	if err == nil {
		probe := &remote.Job{ID: "check", GPU: p.config.GPU, Limit: max(p.config.Limit, time.Minute)}
		var words string
		words, err = p.probe(ctx, l, append([]string{"env", "SLURM_TIME_FORMAT=%s"}, slices.Insert(sbatchArgs(p.config, probe, work), 1, "--test-only")...))
		host.State, host.Detail = readiness(nodes, words, time.Now())
	}
	if ctx.Err() != nil {
		return nil, p.fault(ctx, err)
	}
	if host.Err = p.fault(ctx, err); err != nil {
		host.State = "down"
	}
	return []remote.Host{host}, nil
}

// sayAll runs a command whose standard error is its answer.
const sayAll = `out=$("$@" 2>&1); s=$?; [ $s -eq 0 ] || exec >&2; printf '%s\n' "$out"; exit $s`

// probe asks sbatch when a job would start.
func (p *Provider) probe(ctx context.Context, l login, argv []string) (string, error) {
	words, err := p.slurm(ctx, l, append([]string{"sh", "-c", sayAll, "sh"}, argv...), script("true", "/"))
	if err != nil {
		return "", denied(p.name, p.config.Login, err, func(words string) string { return p.names(ctx, l, words) })
	}
	return words, nil
}

// Collect copies the log, and what Slurm and the shell said.
func (p *Provider) Collect(ctx context.Context, h remote.Handle, dst string) error {
	j, err := p.jobOf(h)
	if err != nil {
		return err
	}
	l, _, err := p.open(ctx)
	if err != nil {
		return p.fault(ctx, err)
	}
	for _, name := range []string{agent.LogName, logName} {
		err := collect(ctx, l, path.Join(j.dir(), name), filepath.Join(dst, name))
		var own *remote.LocalError
		if err != nil && (errors.As(err, &own) || !errors.Is(err, fs.ErrNotExist)) {
			return p.fault(ctx, err)
		}
	}
	return nil
}

// maxLog bounds each file that is collected.
const maxLog = 64 << 20

func collect(ctx context.Context, l login, from, to string) error {
	f, err := os.CreateTemp(filepath.Dir(to), ".collect-*")
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer os.Remove(f.Name())
	_, err = l.Read(ctx, from, 0, maxLog, localWriter{f})
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), to); err != nil {
		return &remote.LocalError{Err: err}
	}
	return nil
}

type localWriter struct{ w io.Writer }

func (l localWriter) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	if err != nil {
		err = &remote.LocalError{Err: err}
	}
	return n, err
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
	l, _, err := p.open(ctx)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(p.pace.stop)
	for wait := p.pace.read; ; wait = min(2*wait, 2*time.Second) {
		s, err := p.look(ctx, l, j)
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
		if err := p.cancel(ctx, l, j); err != nil {
			return err
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	_, err = l.Run(ctx, []string{"rm", "-rf", "--", j.dir()}, "")
	return err
}

// List gives the jobs in the queue, and those that have ended and have a folder.
func (p *Provider) List(ctx context.Context) ([]remote.Handle, error) {
	handles, err := p.list(ctx)
	return handles, p.fault(ctx, err)
}

func (p *Provider) list(ctx context.Context) ([]remote.Handle, error) {
	l, work, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	folders, err := l.Sizes(ctx, agent.Jobs(work))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out, err := p.slurm(ctx, l, []string{"squeue", "--noheader", "--me", "--states=all", "--format=%A|%T|%j|%Z"}, "")
	if err != nil {
		return nil, err
	}
	jobs := map[string]*job{}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 4)
		if len(f) != 4 || !jobNumber.MatchString(f[0]) {
			continue
		}
		id, ours := strings.CutPrefix(f[2], prefix)
		root, below := strings.CutSuffix(f[3], "/jobs/"+id)
		if _, kept := folders[id]; ours && below && remote.ValidID(id) && (!(status{state: f[1]}).over() || root == work && kept) {
			jobs[id] = &job{ID: id, Number: f[0], Work: root}
		}
	}
	for id := range folders {
		if jobs[id] == nil && remote.ValidID(id) {
			jobs[id] = &job{ID: id, Work: work}
		}
	}
	var handles []remote.Handle
	for _, j := range jobs {
		h, err := j.handle()
		if err != nil {
			return nil, err
		}
		handles = append(handles, h)
	}
	slices.SortFunc(handles, func(a, b remote.Handle) int { return strings.Compare(a.Job, b.Job) })
	return handles, nil
}

// Close ends the connection to the login host.
func (p *Provider) Close() error {
	<-p.opening
	defer func() { p.opening <- struct{}{} }()
	if p.closed = true; p.login == nil {
		return nil
	}
	err := p.login.Close()
	p.login = nil
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
