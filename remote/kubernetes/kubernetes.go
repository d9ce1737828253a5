// Package kubernetes is the provider of clusters that Kubernetes schedules, through the user's own kubectl: what that
// finds in its kubeconfig, exec plug-ins and single sign-on too, is all that it takes to log in. A job has a pod of its
// own, in a Job that ends and removes it when no client is left to do so; or it runs in a pod that is there. The bundle
// and the event stream go through kubectl exec.
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
	"io"
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
	"fisub/remote/host"
	"fisub/remote/work"
)

// Kind is the provider's name in a table.
const Kind = "kubernetes"

// A Provider runs jobs in pods of one namespace.
type Provider struct {
	name    string
	config  Config
	kubectl host.Kubectl
	pace    time.Duration // between two looks at an object, at first

	folder *work.Folder // in the pod of the table, where it names one

	mu   sync.Mutex
	user string // of labelUser; "" before it was asked for
}

// New makes the provider of the table [remote.name]. It runs nothing.
func New(name string, c Config) *Provider {
	p := &Provider{name: name, config: c, pace: 500 * time.Millisecond}
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

// at gives the work folder in a pod.
func (p *Provider) at(pod string) *work.Folder {
	one := container
	if p.config.Pod != "" {
		one = p.config.Container
	}
	f := work.New(&host.Pod{Kubectl: p.kubectl, Name: pod, Container: one}, "", p.config.Workdir)
	f.Away, f.Check, f.Pack, f.Given = p.config.Away, check, true, true
	return f
}

// check tells whether this fisub runs in a pod.
func check(f *work.Facts) error {
	want := "Linux " + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if f.System != want {
		return &remote.Denied{Code: "arch", Text: fmt.Sprintf("the node is %.60s, this fisub is for %s", f.System, want),
			Hint: "name nodes of this machine's processor with node_selector, such as kubernetes.io/arch=" + runtime.GOARCH}
	}
	return nil
}

// Places are the GPUs of the pod, or as many slots as the table allows pods at a time.
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
	Name      string `json:"name,omitempty"`      // of the Job; "" where the pod is one that was there
	Pod       string `json:"pod,omitempty"`       // "" where it is not known yet
	Container string `json:"container,omitempty"` // what the node calls it, to know it from one that was started again
}

func (d *data) handle() remote.Handle { return remote.NewHandle(Kind, d.ID, d.Place, d) }

func (p *Provider) open(h remote.Handle) (*data, error) {
	d := &data{}
	err := json.Unmarshal(h.Data, d)
	d.ID, d.Place, d.Key = h.Job, h.Place, h.Key
	named := func(s string) bool { return s == "" || objectForm.MatchString(s) }
	if err != nil || h.Provider != Kind || !d.Valid() || !named(d.Name) || !named(d.Pod) || d.Name == "" && d.Pod == "" {
		return nil, fmt.Errorf("%s: job %.80q: its handle is not one of %s", p.name, h.Job, Kind)
	}
	if d.Pod != "" {
		d.Host = p.at(d.Pod).Host
	}
	return d, nil
}

// fault gives an error as the user sees it.
func (p *Provider) fault(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.As(err, new(*host.LostError)) {
		return &remote.Denied{Code: "unreachable", Provider: p.name, Text: err.Error(), Hint: "kubectl get pods shows more"}
	}
	return work.Fault(ctx, p.name, "", err)
}

// Submit has the cluster make a pod, brings the bundle there when it runs, and starts the agent.
func (p *Provider) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (remote.Handle,
	error) {
	d, err := p.submit(ctx, job, progress)
	if err != nil {
		return remote.Handle{}, p.fault(ctx, err)
	}
	return d.handle(), nil
}

func (p *Provider) submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (*data, error) {
	if _, err := job.Program(); err != nil {
		return nil, err
	}
	if p.config.Pod != "" {
		f, err := p.look(ctx, &data{Pod: p.config.Pod})
		if err == nil {
			err = p.standing(f.pod)
		}
		if err != nil {
			return nil, err
		}
		return p.begin(ctx, p.folder, f.pod, job, progress)
	}
	d := &data{Name: objectName(job.ID)}
	text, err := p.plan(ctx, job)
	if err != nil {
		return nil, err
	}
	err = p.kubectl.Do(ctx, bytes.NewReader(text), nil, "create", "--filename=-")
	if code := remote.CodeOf(err); err != nil && ctx.Err() == nil && code != "unreachable" {
		return nil, err
	}
	if err == nil {
		var pod *item
		if pod, err = p.wait(ctx, d, job.Tell); err == nil {
			if d, err = p.begin(ctx, p.at(pod.Metadata.Name), pod, job, progress); err == nil {
				return d, nil
			}
		}
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if left := p.remove(clean, objectName(job.ID)); left != nil {
		err = fmt.Errorf("%w; Job %s may be left in the cluster: %w", err, objectName(job.ID), left)
	}
	return nil, err
}

// begin starts the job in a pod that runs.
func (p *Provider) begin(ctx context.Context, f *work.Folder, pod *item, job *remote.Job,
	progress func(sent, total int64)) (*data, error) {
	j, err := f.Submit(ctx, job, progress)
	if err != nil {
		return nil, err
	}
	return &data{FolderJob: *j, Name: pod.Metadata.Labels[labelName], Pod: pod.Metadata.Name,
		Container: pod.containerID(j.Host.(*host.Pod).Container)}, nil
}

// standing tells why no job can run in the pod of the table.
func (p *Provider) standing(pod *item) error {
	hint := "kubectl get pods shows those that run"
	switch {
	case pod == nil:
		return &remote.Denied{Code: "no-such", Text: "there is no pod " + p.config.Pod, Hint: hint}
	case pod.Metadata.DeletionTimestamp != nil:
		return &remote.Denied{Code: "no-such", Text: "pod " + p.config.Pod + " is being deleted", Hint: hint}
	case p.config.Container != "" && len(pod.Status.ContainerStatuses) > 0 && pod.at(p.config.Container) < 0:
		return &remote.Denied{Code: "no-such", Text: "pod " + p.config.Pod + " has no container " + p.config.Container,
			Hint: "kubectl get pod " + p.config.Pod + " -o yaml shows their names"}
	case !pod.running(p.config.Container):
		text := "pod " + p.config.Pod + " is " + cmp.Or(pod.waiting(), pod.Status.Phase)
		return &remote.Denied{Code: "capacity", Text: text, Hint: hint}
	}
	return nil
}

// plan makes the text of the job's Job, and finds out first what the cluster would take long to say.
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

// queue tells whether there is the queue of the table: a Job would wait for one in vain.
func (p *Provider) queue(ctx context.Context) error {
	if p.config.Queue == "" {
		return nil
	}
	err := p.kubectl.Do(ctx, nil, nil, "get", "localqueues.kueue.x-k8s.io", p.config.Queue, "--output=name")
	switch text := fmt.Sprint(err); {
	case err == nil:
	case strings.Contains(text, "doesn't have a resource type"):
		return &remote.Denied{Code: "no-such", Text: text, Hint: "Kueue is not installed in the cluster: leave queue out"}
	case remote.CodeOf(err) == "no-such":
		return &remote.Denied{Code: "no-such", Text: text, Hint: "kubectl get localqueues shows those of the namespace"}
	case remote.CodeOf(err) != "credentials" || strings.Contains(text, "Unauthorized"):
		return err
	}
	return nil // also where the user may not look
}

// nodes gives the values of the label product that are the GPU, and says how many GPUs the nodes have that a job could
// be on. Both are empty where the table chooses the nodes, and where the user may not list them.
func (p *Provider) nodes(ctx context.Context, gpu string) (products []string, detail string, err error) {
	if gpu == "" || len(p.config.NodeSelector) > 0 {
		return nil, "", nil
	}
	out := &plain.Buffer{Limit: 64 << 20}
	err = p.kubectl.Do(ctx, nil, out, "get", "nodes", `--output=jsonpath={range .items[*]}`+
		`{.metadata.labels.nvidia\.com/gpu\.product}{"\t"}{.status.allocatable.nvidia\.com/gpu}{"\n"}{end}`)
	if forbidden(err) {
		return nil, "the cluster does not show you its nodes", nil
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
			Hint: "where nodes are made on demand, name them with node_selector"}
	}
	if nodes > 0 {
		detail = fmt.Sprintf("%d x %s on %s", total, strings.Join(products, ", "), plain.Count(nodes, "node"))
	}
	return products, detail, nil
}

// forbidden tells whether the user's account lacks a right; a login that has expired is none.
func forbidden(err error) bool {
	return remote.CodeOf(err) == "credentials" && strings.Contains(err.Error(), "orbidden")
}

// owner is whom the jobs belong to: what the cluster calls the user, where it tells, and this machine's name.
func (p *Provider) owner(ctx context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.user == "" {
		out := &plain.Buffer{Limit: 64 << 10}
		err := p.kubectl.Do(ctx, nil, out, "auth", "whoami", "--output=jsonpath={.status.userInfo.username}")
		// kubectl or the cluster may be too old to tell.
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

// errOver ends the following of a job whose pod is over.
var errOver = errors.New("the pod is over")

// A live host is a pod that is looked at whenever a command in it fails for another reason than its own.
type live struct {
	*host.Pod
	failed func()
}

func (l live) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	err := l.Pod.Run(ctx, argv, stdin, stdout)
	if err != nil && !errors.As(err, new(*host.ExitError)) && ctx.Err() == nil {
		l.failed()
	}
	return err
}

// Wait follows the job in its pod, and reads the rest from the pod's log when that is over.
func (p *Provider) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	d, err := p.open(h)
	if err != nil {
		return remote.Exit{}, err
	}
	feed := &remote.Feed{To: w, At: from}
	exit, err := p.follow(ctx, d, feed)
	if feed.Err != nil {
		return remote.Exit{}, feed.Err
	}
	return exit, p.fault(ctx, err)
}

func (p *Provider) follow(ctx context.Context, d *data, feed *remote.Feed) (remote.Exit, error) {
	var since time.Time // the cluster does not answer
	for pause := p.pace; ; pause = min(2*pause, 20*p.pace) {
		f, err := p.look(ctx, d)
		switch {
		case remote.CodeOf(err) == "unreachable" && (since.IsZero() || time.Since(since) < p.config.Away):
			if since.IsZero() {
				since = time.Now()
			}
			feed.Tell(remote.Away, err.Error())
		case err != nil:
			return remote.Exit{}, err
		case f.pod == nil, p.restarted(d, f.pod), f.pod.over():
			return p.end(ctx, d, f, feed)
		case !f.pod.running(p.containerName(d)):
			since = time.Time{}
			feed.Tell(remote.Starting, f.pod.waiting())
		default:
			since = time.Time{}
			if d.Pod == "" {
				d.Pod = f.pod.Metadata.Name
				d.Host = p.at(d.Pod).Host
			}
			fctx, stop := context.WithCancelCause(ctx)
			j := d.FolderJob
			j.Host = live{d.Host.(*host.Pod), func() {
				f, err := p.look(fctx, d)
				switch code := remote.CodeOf(err); {
				case err == nil && (f.pod == nil || p.restarted(d, f.pod) || f.pod.over()):
					stop(errOver)
				case code != "" && code != "unreachable":
					stop(err)
				}
			}}
			exit, err := j.Wait(fctx, feed.At, feed, p.config.Away)
			cause := context.Cause(fctx)
			stop(nil)
			switch {
			case feed.Err != nil:
				return exit, feed.Err
			case ctx.Err() == nil && cause != nil && cause != errOver:
				return exit, cause
			}
			if err == nil && exit.End != remote.Exited && exit.End != remote.Refused {
				if f, err := p.look(ctx, d); err == nil && f.pod != nil && p.restarted(d, f.pod) {
					return p.end(ctx, d, f, feed)
				}
			}
			if ctx.Err() != nil || cause == nil {
				return exit, err
			}
		}
		if err := remote.Sleep(ctx, pause); err != nil {
			return remote.Exit{}, err
		}
	}
}

func (p *Provider) containerName(d *data) string {
	if d.Name != "" {
		return container
	}
	return p.config.Container
}

// restarted tells whether the pod has not the container any more in which the job was begun.
func (p *Provider) restarted(d *data, pod *item) bool {
	id := pod.containerID(p.containerName(d))
	return d.Container != "" && id != "" && id != d.Container
}

// end says how a job ended whose pod is over or gone, and hands on what that has said.
func (p *Provider) end(ctx context.Context, d *data, f found, feed *remote.Feed) (remote.Exit, error) {
	switch _, message, failed := failure(f.job); {
	case f.pod == nil && d.Name == "":
		return remote.Exit{End: remote.Lost, Text: "pod " + d.Pod + " was deleted"}, nil
	case f.pod == nil && f.job == nil:
		return remote.Exit{End: remote.Cancelled, Text: "its Job is not in the cluster any more"}, nil
	case f.pod == nil && failed:
		return remote.Exit{End: remote.Lost, Text: "its pod was deleted: " + message,
			Hint: "its unfinished workloads can go to another pod"}, nil
	case f.pod == nil:
		return remote.Exit{End: remote.Lost, Text: "its pod was deleted, as when a node is drained",
			Hint: "its unfinished workloads can go to another pod"}, nil
	case d.Name == "":
		return f.pod.exit(), nil
	}
	files, err := p.log(ctx, f.pod)
	if err != nil {
		return remote.Exit{}, err
	}
	if stream := files[agent.EventsName]; int64(len(stream)) > feed.At {
		if _, err := feed.Write(stream[feed.At:]); err != nil {
			return remote.Exit{}, err
		}
	}
	if text := files[agent.ExitName]; text != nil {
		return agent.ParseExit(text, remote.Seal{Key: d.Key, Job: d.ID}), nil
	}
	return f.pod.exit(), nil
}

// maxLog bounds what is read of a pod's log.
const maxLog = 1 << 30

// log reads what a job has left in the log of its pod; nothing where the node does not have it any more.
func (p *Provider) log(ctx context.Context, pod *item) (map[string][]byte, error) {
	out := &plain.Buffer{Limit: maxLog}
	err := p.kubectl.Do(ctx, nil, out, "logs", pod.Metadata.Name, "--container="+container)
	if code := remote.CodeOf(err); err != nil && (code == "unreachable" || code == "credentials" || ctx.Err() != nil) {
		return nil, err
	}
	return said(out.Bytes()), nil
}

// Collect copies the job's log, from the pod while it runs, then from the pod's own log.
func (p *Provider) Collect(ctx context.Context, h remote.Handle, dst string) error {
	d, err := p.open(h)
	if err != nil {
		return err
	}
	f, err := p.look(ctx, d)
	switch {
	case err != nil:
		return p.fault(ctx, err)
	case f.pod == nil || p.restarted(d, f.pod):
		return nil
	case f.pod.running(p.containerName(d)):
		if d.Host == nil {
			d.Host = p.at(f.pod.Metadata.Name).Host
		}
		return p.fault(ctx, d.Collect(ctx, dst))
	}
	files, err := p.log(ctx, f.pod)
	if text, ok := files[agent.LogName]; ok && err == nil {
		return remote.Local(os.WriteFile(filepath.Join(dst, agent.LogName), text, 0o644))
	}
	return p.fault(ctx, err)
}

// Release ends the job, and removes its pod where that is its own.
func (p *Provider) Release(ctx context.Context, h remote.Handle) error {
	d, err := p.open(h)
	if err != nil {
		return err
	}
	f, err := p.look(ctx, d)
	if err != nil {
		return p.fault(ctx, err)
	}
	if f.pod != nil && f.pod.running(p.containerName(d)) && !p.restarted(d, f.pod) {
		if d.Host == nil {
			d.Host = p.at(f.pod.Metadata.Name).Host
		}
		err = d.Free(ctx) // of a pod of its own it matters for a volume alone
	}
	if d.Name != "" {
		err = p.remove(ctx, d.Name)
	}
	return p.fault(ctx, err)
}

// remove deletes a Job, and waits until its pod is gone too, or has ended.
func (p *Provider) remove(ctx context.Context, name string) error {
	for begun := time.Now(); ; {
		err := p.kubectl.Do(ctx, nil, nil, "delete", "jobs.batch", name, "--ignore-not-found", "--wait=false",
			"--cascade=background")
		if err != nil {
			return err
		}
		f, err := p.look(ctx, &data{Name: name})
		if err != nil || f.job == nil && (f.pod == nil || f.pod.over()) {
			return err
		}
		if time.Since(begun) > stop {
			return fmt.Errorf("the Job %s is being deleted, but its pod is still there after %v", name, stop)
		}
		if err := remote.Sleep(ctx, p.pace); err != nil {
			return err
		}
	}
}

// stop is how long a pod may take to end that is deleted.
const stop = 40 * time.Second

// List gives the user's jobs that have a Job, or those in the pod of the table.
func (p *Provider) List(ctx context.Context) (handles []remote.Handle, err error) {
	defer func() { err = p.fault(ctx, err) }()
	if p.config.Pod != "" {
		f, err := p.look(ctx, &data{Pod: p.config.Pod})
		if err == nil {
			err = p.standing(f.pod)
		}
		if err != nil {
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

// Close does nothing: there is no connection.
func (p *Provider) Close() error { return nil }

// Check asks the cluster to accept a job without making it, or looks into the pod of the table.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	h := remote.Host{Name: p.name}
	var err error
	if h.State, h.Detail, err = p.ready(ctx); err != nil {
		h.State, h.Detail, h.Err = "down", "", p.fault(ctx, err)
	}
	if ctx.Err() != nil {
		return nil, p.fault(ctx, ctx.Err())
	}
	return []remote.Host{h}, nil
}

func (p *Provider) ready(ctx context.Context) (state, detail string, err error) {
	if p.config.Pod != "" {
		f, err := p.look(ctx, &data{Pod: p.config.Pod})
		if err == nil {
			err = p.standing(f.pod)
		}
		if err != nil {
			return "", "", err
		}
		state, detail, err := p.folder.Ready(ctx, p.config.Wanted(), p.config.GPUs)
		return state, "pod " + p.config.Pod + ", " + detail, err
	}
	detail, err = p.schedulable(ctx)
	return "ready", detail, err
}

// schedulable tells what a pod of a job would find in the cluster.
func (p *Provider) schedulable(ctx context.Context) (string, error) {
	job := &remote.Job{ID: "fisub-check", GPU: p.config.Wanted(), Limit: max(p.config.Limit, time.Minute)}
	if err := p.queue(ctx); err != nil {
		return "", err
	}
	nodes, detail, err := p.nodes(ctx, job.GPU)
	if err != nil {
		return "", err
	}
	one := manifest(&p.config, job, "check", nodes)
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "fisub-check"},
		"spec": podSpec(&p.config, job, nodes)}
	// A quota, or a rule for pods, shows in the pod only, which the user need not be allowed to make.
	for _, o := range []object{one, pod} {
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

// noRight is what a cluster says to a user who may not make something.
var noRight = regexp.MustCompile(`(?i)forbidden: user .* cannot create`)
