// Package kubernetes is the provider for Kubernetes clusters. It runs the user's own kubectl, so any login that works
// there works here, including exec plug-ins and single sign-on. A job runs either in its own pod, created by a Job that
// ends and is removed even if the client dies, or in an existing pod. The bundle and the event stream go through
// kubectl exec.
package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/follow"
	"fisub/remote/host"
	"fisub/remote/work"
)

// Kind is the provider's name in a table.
const Kind = "kubernetes"

// A Provider runs jobs in pods of one namespace.
type Provider struct {
	follow.Jobs
	name    string
	config  Config
	kubectl host.Kubectl
	pace    time.Duration // first interval between two queries of an object; it grows

	folder *work.Folder // in the table's pod; nil if the table names none

	mu   sync.Mutex
	user string // cached value of labelUser; "" before the first query
}

// New returns the provider of the table [remote.name]. It runs nothing.
func New(name string, c Config) *Provider {
	p := &Provider{name: name, config: c, pace: 500 * time.Millisecond}
	p.Jobs.Starter = p
	for _, flag := range []struct{ name, value string }{
		{"kubeconfig", c.Kubeconfig}, {"context", c.Context}, {"namespace", c.Namespace}} {
		if flag.value != "" {
			p.kubectl = append(p.kubectl, "--"+flag.name+"="+flag.value)
		}
	}
	if c.Pod != "" {
		p.folder = p.at(c.Pod)
	}
	return p
}

// at returns the work folder in a pod.
func (p *Provider) at(pod string) *work.Folder {
	one := container
	if p.config.Pod != "" {
		one = p.config.Container
	}
	f := work.New(&host.Pod{Kubectl: p.kubectl, Name: pod, Container: one}, "", p.config.Workdir)
	f.Away, f.Pack, f.Given = p.config.Away, true, true
	f.Check = work.CheckArch("node", "select nodes with this machine's processor: node_selector, such as "+
		"kubernetes.io/arch="+runtime.GOARCH)
	return f
}

// Places returns the GPUs of the table's pod, or one slot for each pod that the table allows at a time.
func (p *Provider) Places(n int) (places []remote.Place) {
	if p.config.Pod == "" {
		return remote.Slots("pod", min(n, p.config.Jobs))
	}
	for _, gpu := range p.config.GPUs {
		places = append(places, remote.Place{Host: p.config.Pod, GPU: gpu})
	}
	return places[:min(n, len(places))]
}

// data is Handle.Data.
type data struct {
	work.FolderJob
	Name      string `json:"name,omitempty"`      // of the Job; "" for an existing pod
	Pod       string `json:"pod,omitempty"`       // "" if not yet known
	Container string `json:"container,omitempty"` // the node's id for it, which changes when it restarts
}

func (d *data) handle() remote.Handle { return remote.NewHandle(Kind, d.ID, d.Place, d) }

func (p *Provider) open(h remote.Handle) (*data, error) {
	d := &data{}
	err := json.Unmarshal(h.Data, d)
	d.ID, d.Place, d.Key = h.Job, h.Place, h.Key
	named := func(s string) bool { return s == "" || objectForm.MatchString(s) }
	if err != nil || h.Provider != Kind || !d.Valid() || !named(d.Name) || !named(d.Pod) || d.Name == "" && d.Pod == "" {
		return nil, fmt.Errorf("job %.80q: the handle is not from %s", h.Job, Kind)
	}
	return d, nil
}

// Fault implements follow.Starter.
func (p *Provider) Fault(ctx context.Context, _ remote.Place, err error) error {
	if ctx.Err() == nil && errors.As(err, new(*host.LostError)) {
		return &remote.Denied{Code: "unreachable", Provider: p.name, Text: err.Error(), Hint: "see kubectl get pods"}
	}
	return work.Fault(ctx, p.name, "", err)
}

// Start implements follow.Starter. It creates a Job, uploads the bundle once its pod runs, and starts the agent.
func (p *Provider) Start(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (remote.Handle,
	error) {
	if _, err := job.Program(); err != nil {
		return remote.Handle{}, err
	}
	if p.config.Pod != "" {
		pod, err := p.standing(ctx)
		if err != nil {
			return remote.Handle{}, err
		}
		return p.begin(ctx, p.folder, pod, job, progress)
	}
	text, err := p.plan(ctx, job)
	if err != nil {
		return remote.Handle{}, err
	}
	d := &data{Name: objectName(job.ID)}
	d.ID, d.Place, d.Work = job.ID, job.Place, p.config.Workdir
	err = p.kubectl.Do(ctx, bytes.NewReader(text), nil, "create", "--filename=-")
	if code := remote.CodeOf(err); err != nil && ctx.Err() == nil && code != "unreachable" {
		return remote.Handle{}, err
	}
	if err == nil {
		var pod *item
		if pod, err = p.wait(ctx, d, job.Tell); err == nil {
			var h remote.Handle
			if h, err = p.begin(ctx, p.at(pod.Metadata.Name), pod, job, progress); err == nil {
				return h, nil
			}
		}
	}
	return d.handle(), err
}

func (p *Provider) begin(ctx context.Context, f *work.Folder, pod *item, job *remote.Job,
	progress func(sent, total int64)) (remote.Handle, error) {
	j, err := f.Submit(ctx, job, progress)
	if err != nil {
		return remote.Handle{}, err
	}
	d := &data{FolderJob: *j, Name: pod.Metadata.Labels[labelName], Pod: pod.Metadata.Name,
		Container: pod.containerID(j.Host.(*host.Pod).Container)}
	return d.handle(), nil
}

// standing returns the table's pod, or an error if it cannot run jobs.
func (p *Provider) standing(ctx context.Context) (*item, error) {
	f, err := p.find(ctx, &data{Pod: p.config.Pod})
	hint := "kubectl get pods lists running pods"
	switch pod := f.pod; {
	case err != nil:
		return nil, err
	case pod == nil:
		return nil, &remote.Denied{Code: "no-such", Text: "no pod " + p.config.Pod, Hint: hint}
	case pod.Metadata.DeletionTimestamp != nil:
		return nil, &remote.Denied{Code: "no-such", Text: "pod " + p.config.Pod + " is being deleted", Hint: hint}
	case p.config.Container != "" && len(pod.Status.ContainerStatuses) > 0 && pod.at(p.config.Container) < 0:
		return nil, &remote.Denied{Code: "no-such", Text: "pod " + p.config.Pod + " has no container " + p.config.Container,
			Hint: "kubectl get pod " + p.config.Pod + " -o yaml shows their names"}
	case !pod.running(p.config.Container):
		text := "pod " + p.config.Pod + " is " + cmp.Or(pod.waiting(), pod.Status.Phase)
		return nil, &remote.Denied{Code: "capacity", Text: text, Hint: hint}
	}
	return f.pod, nil
}

// plan returns the job's manifest. It first checks for problems that the cluster would report late.
func (p *Provider) plan(ctx context.Context, job *remote.Job) ([]byte, error) {
	if err := p.queue(ctx); err != nil {
		return nil, err
	}
	nodes, _, err := p.nodes(ctx, job.GPU)
	if err != nil {
		return nil, err
	}
	owner, err := p.owner(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(manifest(&p.config, job, owner, nodes))
}

// queue returns an error if the table's queue does not exist: a Job would wait for it forever.
func (p *Provider) queue(ctx context.Context) error {
	if p.config.Queue == "" {
		return nil
	}
	err := p.kubectl.Do(ctx, nil, nil, "get", "localqueues.kueue.x-k8s.io", p.config.Queue, "--output=name")
	switch text := fmt.Sprint(err); {
	case err == nil:
	case strings.Contains(text, "doesn't have a resource type"):
		return &remote.Denied{Code: "no-such", Text: text, Hint: "Kueue is not installed in the cluster: remove queue"}
	case remote.CodeOf(err) == "no-such":
		return &remote.Denied{Code: "no-such", Text: text, Hint: "kubectl get localqueues lists the queues of the namespace"}
	case remote.CodeOf(err) != "credentials" || strings.Contains(text, "Unauthorized"):
		return err
	}
	return nil // even if the user has no right to look
}

// nodes returns the values of the label product that match the GPU, and a text with the number of these GPUs. Both are
// empty if the table selects the nodes; products is empty if the user may not list nodes.
func (p *Provider) nodes(ctx context.Context, gpu string) (products []string, detail string, err error) {
	if gpu == "" || len(p.config.NodeSelector) > 0 {
		return nil, "", nil
	}
	out := &plain.Buffer{Limit: 64 << 20}
	err = p.kubectl.Do(ctx, nil, out, "get", "nodes", `--output=jsonpath={range .items[*]}`+
		`{.metadata.labels.nvidia\.com/gpu\.product}{"\t"}{.status.allocatable.nvidia\.com/gpu}{"\n"}{end}`)
	if forbidden(err) {
		return nil, "no permission to list the cluster's nodes", nil
	} else if err != nil {
		return nil, "", err
	}
	var others []string
	total, nodes := 0, 0
	for line := range strings.Lines(out.String()) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, _ := strconv.Atoi(count)
		switch {
		case name == "":
		case !isGPU(name, gpu):
			others = append(others, name)
		default:
			nodes, total, products = nodes+1, total+n, append(products, name)
		}
	}
	slices.Sort(products)
	slices.Sort(others)
	products, others = slices.Compact(products), slices.Compact(others)
	if len(products) == 0 && len(others) > 0 {
		return nil, "", &remote.Denied{Code: "no-such",
			Text: fmt.Sprintf("no node has the GPU %s, they have %s", gpu, strings.Join(others, ", ")),
			Hint: "if nodes are created on demand, select them with node_selector"}
	}
	if nodes > 0 {
		detail = fmt.Sprintf("%d x %s on %s", total, strings.Join(products, ", "), plain.Count(nodes, "node"))
	}
	return products, detail, nil
}

// forbidden reports whether the user's account is missing a right. An expired login does not count.
func forbidden(err error) bool {
	return remote.CodeOf(err) == "credentials" && strings.Contains(err.Error(), "orbidden")
}

// owner returns the hashed owner of the jobs: the user's name in the cluster, if known, and the user's name on this
// machine.
func (p *Provider) owner(ctx context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.user == "" {
		out := &plain.Buffer{Limit: 64 << 10}
		err := p.kubectl.Do(ctx, nil, out, "auth", "whoami", "--output=jsonpath={.status.userInfo.username}")
		// kubectl or the cluster may be too old for this.
		switch code := remote.CodeOf(err); {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case code != "" && code != "no-such" && !forbidden(err):
			return "", err
		}
		name := strconv.Itoa(os.Getuid())
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		sum := sha256.Sum256([]byte(out.String() + "\n" + name))
		p.user = hex.EncodeToString(sum[:10])
	}
	return p.user, nil
}

// Source implements follow.Starter.
func (p *Provider) Source(_ context.Context, h remote.Handle) (follow.Source, follow.Rules, error) {
	d, err := p.open(h)
	return &source{p: p, data: d}, follow.Rules{Tail: true, Read: p.pace, Slow: 20 * p.pace, Away: p.config.Away,
		Doubt: doubtful}, err
}

// doubtful reports whether the pod may know better how the job ended: a restart ends an agent, too.
func doubtful(e remote.Exit) bool { return e.End != remote.Exited && e.End != remote.Refused }

// A source is the follow.Source of a job: its folder as long as the pod runs, then the pod's log.
type source struct {
	*data
	p     *Provider
	found                   // by the last Status
	over  bool              // its pod has ended or is gone
	files map[string][]byte // from the pod's log; nil before
}

// Status implements follow.Source.
func (s *source) Status(ctx context.Context) (is follow.Status, err error) {
	if s.found, err = s.p.find(ctx, s.data); err != nil && remote.CodeOf(err) != "unreachable" {
		err = &follow.FinalError{Err: err}
	}
	s.over = err == nil && (s.pod == nil || s.p.restarted(s.data, s.pod) || s.pod.over())
	message, failed := failure(s.job)
	switch {
	case err != nil:
	case s.pod == nil && s.Name == "":
		is.End = remote.Exit{End: remote.Lost, Text: "pod " + s.Pod + " was deleted"}
	case s.pod == nil && s.job == nil:
		is.End = remote.Exit{End: remote.Cancelled, Text: "its Job is no longer in the cluster"}
	case s.pod == nil && failed:
		is.End = remote.Exit{End: remote.Lost, Text: "its pod was deleted: " + message, Hint: another}
	case s.pod == nil:
		is.End = remote.Exit{End: remote.Lost, Text: "its pod was deleted, for example by draining a node", Hint: another}
	case !s.over && !s.running():
		is.Stage = remote.Stage{Phase: remote.Starting, Text: s.pod.waiting()}
	}
	is.Over = s.over
	return is, err
}

func (s *source) running() bool { return s.pod != nil && s.pod.running(s.p.containerName(s.data)) }

// Read implements follow.Source.
func (s *source) Read(ctx context.Context, from int64, w remote.Watcher) (follow.Part, error) {
	switch {
	case !s.over && s.running():
		return s.data.Read(ctx, from, w)
	case s.over:
		if stream := s.files[agent.EventsName]; int64(len(stream)) > from {
			_, err := w.Write(stream[from:])
			return follow.All, err
		}
	}
	return follow.Absent, nil
}

// Exit implements follow.Source. Only a job's own pod has a log.
func (s *source) Exit(ctx context.Context) (*remote.Exit, error) {
	switch {
	case !s.over:
		return s.data.Exit(ctx)
	case s.pod == nil || s.Name == "":
		return nil, nil
	}
	var err error
	if s.files, err = s.p.log(ctx, s.pod); err != nil || s.files[agent.ExitName] == nil {
		return nil, err
	}
	exit := agent.ParseExit(s.files[agent.ExitName], remote.Seal{Key: s.Key, Job: s.ID})
	return &exit, nil
}

// Lost implements follow.Source.
func (s *source) Lost(ctx context.Context) (remote.Exit, bool, error) {
	if s.over {
		return s.pod.exit(), true, nil
	}
	return s.data.Lost(ctx)
}

// another is a hint for a lost job.
const another = "another pod can run its unfinished workloads"

func (p *Provider) containerName(d *data) string {
	if d.Name != "" {
		return container
	}
	return p.config.Container
}

// restarted reports whether the pod's container is no longer the one that started the job.
func (p *Provider) restarted(d *data, pod *item) bool {
	id := pod.containerID(p.containerName(d))
	return d.Container != "" && id != "" && id != d.Container
}

// maxLog is the most that is read of a pod's log, in bytes.
const maxLog = 1 << 30

// log returns the files that a job left in its pod's log, or nothing if the node no longer has the log.
func (p *Provider) log(ctx context.Context, pod *item) (map[string][]byte, error) {
	out := &plain.Buffer{Limit: maxLog}
	err := p.kubectl.Do(ctx, nil, out, "logs", pod.Metadata.Name, "--container="+container)
	if code := remote.CodeOf(err); err != nil && (code == "unreachable" || code == "credentials" || ctx.Err() != nil) {
		return nil, err
	}
	return parseLog(out.Bytes()), nil
}

// Collect copies the job's log from the running pod or, after the pod has ended, from the pod's log.
func (p *Provider) Collect(ctx context.Context, h remote.Handle, dst string) error {
	d, err := p.open(h)
	var f found
	if err == nil {
		f, err = p.find(ctx, d)
	}
	switch {
	case err != nil || f.pod == nil || p.restarted(d, f.pod):
		return p.Fault(ctx, remote.Place{}, err)
	case f.pod.running(p.containerName(d)):
		return p.Fault(ctx, remote.Place{}, d.Collect(ctx, dst))
	}
	files, err := p.log(ctx, f.pod)
	if text, ok := files[agent.LogName]; ok && err == nil {
		return remote.Local(plain.WriteFile(filepath.Join(dst, agent.LogName), text, 0o644))
	}
	return p.Fault(ctx, remote.Place{}, err)
}

// Stop implements follow.Starter. A job with a pod of its own is removed once that has ended or is gone.
func (p *Provider) Stop(ctx context.Context, h remote.Handle) (removed bool, err error) {
	d, err := p.open(h)
	if err != nil {
		return false, err
	}
	f, err := p.find(ctx, d)
	if err != nil {
		return false, err
	}
	if f.pod != nil && f.pod.Metadata.DeletionTimestamp == nil && f.pod.running(p.containerName(d)) &&
		!p.restarted(d, f.pod) {
		err = d.Free(ctx) // in the job's own pod only a volume needs this
	}
	if d.Name == "" {
		return true, err
	}
	if f.job == nil && (f.pod == nil || f.pod.over()) {
		return true, nil
	}
	return false, p.kubectl.Do(ctx, nil, nil, "delete", "jobs.batch", d.Name, "--ignore-not-found", "--wait=false",
		"--cascade=background")
}

// List returns the user's jobs that have a Job, or the jobs in the table's pod.
func (p *Provider) List(ctx context.Context) (handles []remote.Handle, err error) {
	defer func() { err = p.Fault(ctx, remote.Place{}, err) }()
	if p.config.Pod != "" {
		if _, err := p.standing(ctx); err != nil {
			return nil, err
		}
		jobs, _, err := p.folder.List(ctx)
		for _, j := range jobs {
			j.Place.Host = p.config.Pod
			handles = append(handles, (&data{FolderJob: *j, Pod: p.config.Pod}).handle())
		}
		return handles, err
	}
	owner, err := p.owner(ctx)
	if err != nil {
		return nil, err
	}
	all, err := p.get(ctx, "jobs.batch", "--selector="+labelBy+"=fisub,"+labelUser+"="+owner)
	for _, i := range all {
		id := i.Metadata.Annotations[noteJob]
		if remote.ValidID(id) && i.Metadata.Name == objectName(id) {
			d := &data{Name: i.Metadata.Name,
				FolderJob: work.FolderJob{ID: id, Work: p.config.Workdir, Place: remote.Place{GPU: -1}}}
			handles = append(handles, d.handle())
		}
	}
	return handles, err
}

// Close does nothing; the provider holds no connection.
func (p *Provider) Close() error { return nil }

// Check submits a job as a dry run, or checks the table's pod.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	h := remote.Host{Name: p.name}
	var err error
	if h.State, h.Detail, err = p.ready(ctx); err != nil {
		h.State, h.Detail, h.Err = "down", "", p.Fault(ctx, remote.Place{}, err)
	}
	if ctx.Err() != nil {
		return nil, p.Fault(ctx, remote.Place{}, ctx.Err())
	}
	return []remote.Host{h}, nil
}

func (p *Provider) ready(ctx context.Context) (state, detail string, err error) {
	if p.config.Pod != "" {
		if _, err := p.standing(ctx); err != nil {
			return "", "", err
		}
		state, detail, err := p.folder.Ready(ctx, p.config.Wanted(), p.config.GPUs)
		return state, "pod " + p.config.Pod + ", " + detail, err
	}
	detail, err = p.schedulable(ctx)
	return "ready", detail, err
}

// schedulable checks that the cluster would accept a job's pod, and describes the matching nodes.
func (p *Provider) schedulable(ctx context.Context) (string, error) {
	job := &remote.Job{ID: "fisub-check", GPU: p.config.Wanted(), Limit: max(p.config.Limit, time.Minute)}
	if err := p.queue(ctx); err != nil {
		return "", err
	}
	nodes, detail, err := p.nodes(ctx, job.GPU)
	if err != nil {
		return "", err
	}
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "fisub-check"},
		"spec": podSpec(&p.config, job, nodes)}
	// Quotas and pod policies apply only to the pod, which the user need not have the right to create.
	for _, o := range []object{manifest(&p.config, job, "check", nodes), pod} {
		text, err := json.Marshal(o)
		if err != nil {
			return "", err
		}
		err = p.kubectl.Do(ctx, bytes.NewReader(text), nil, "create", "--dry-run=server", "--filename=-")
		if err != nil && !(o["kind"] == "Pod" && noRight.MatchString(err.Error())) {
			return "", err
		}
	}
	return strings.TrimPrefix(detail+", image "+p.config.Image, ", "), nil
}

// noRight matches the cluster's answer to a user without the right to create an object.
var noRight = regexp.MustCompile(`(?i)forbidden: user .* cannot create`)
