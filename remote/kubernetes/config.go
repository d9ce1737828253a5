package kubernetes

import (
	"path"
	"path/filepath"
	"strings"
	"time"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/remote"
)

// A Config is a table [remote.NAME] of this kind. An empty field leaves the choice to the kubeconfig or the cluster.
type Config struct {
	remote.Common
	Kubeconfig string
	Context    string
	Namespace  string

	Pod       string // an existing pod; "" if each job gets its own
	Container string
	GPUs      []int // of Pod; each is a place
	Workdir   string
	Away      time.Duration

	Image          string
	CPU            float64
	Memory         int // MiB
	NodeSelector   []string
	Tolerations    []string
	Queue          string
	Priority       string
	ServiceAccount string
	PullSecret     string
	User           int
	Volume         string
	Pending        time.Duration
	Jobs           int
}

// Keys returns the keys of this kind.
func (c *Config) Keys() []config.Key {
	const none = "none"
	return []config.Key{
		{Name: "kubeconfig", To: &c.Kubeconfig, Absent: "as kubectl finds it",
			Help: "file for `kubectl --kubeconfig`, absolute"},
		{Name: "context", To: &c.Context, Absent: "the current one", Help: "a context of `kubectl config get-contexts`"},
		{Name: "namespace", To: &c.Namespace, Absent: "the context's", Help: "namespace of the pods"},
		{Name: "image", To: &c.Image, Default: "debian:13-slim",
			Help: "image of the pods. It needs sh, the core utilities, findutils and glibc 2.28 or later, but no CUDA"},
		{Name: "cpu", To: &c.CPU, Default: 4.0, Help: "cores requested for a pod"},
		{Name: "memory", To: &c.Memory, Default: 8192, Help: "MiB requested for a pod, also its limit"},
		{Name: "node_selector", To: &c.NodeSelector, Absent: "the nodes whose label `nvidia.com/gpu.product` names the GPU",
			Help: "required labels of the node: `[\"cloud.google.com/gke-accelerator=nvidia-b200\"]`"},
		{Name: "tolerations", To: &c.Tolerations, Absent: "`nvidia.com/gpu`",
			Help: "further taints to tolerate: `[\"team=kernels:NoSchedule\"]`, or a key alone"},
		{Name: "queue", To: &c.Queue, Absent: none, Help: "Kueue's LocalQueue, in the namespace"},
		{Name: "priority", To: &c.Priority, Absent: "the cluster's", Help: "PriorityClass of the pods"},
		{Name: "service_account", To: &c.ServiceAccount, Absent: "the namespace's",
			Help: "ServiceAccount of the pods; its token is not mounted"},
		{Name: "pull_secret", To: &c.PullSecret, Absent: none, Help: "Secret for pulling the image"},
		{Name: "user", To: &c.User, Absent: "the image's", Help: "user id of the pods, if root is forbidden"},
		{Name: "volume", To: &c.Volume, Absent: "none: each pod receives the whole bundle",
			Help: "PersistentVolumeClaim for `workdir`, to keep the bundle's files; ReadWriteMany if `jobs` is above 1"},
		{Name: "pending", To: &c.Pending, Default: time.Hour, Help: "maximum wait of a job for a node or for the queue"},
		{Name: "jobs", To: &c.Jobs, Default: 4, Help: "maximum number of pods of a run"},
		{Name: "pod", To: &c.Pod, Absent: "a new pod for each job", Help: "an existing pod, in which the jobs run"},
		{Name: "container", To: &c.Container, Absent: "the pod's default one", Help: "of `pod`"},
		{Name: "gpus", To: &c.GPUs, Default: []int{0}, Help: "GPU ordinals in `pod`; each is a place"},
		{Name: "workdir", To: &c.Workdir, Default: "/tmp/fisub",
			Help: "folder in the pod for the bundle's files and the jobs, absolute"},
		{Name: "away", To: &c.Away, Default: 5 * time.Minute,
			Help: "how long the cluster may be unreachable while a job runs"},
	}
}

var (
	objectForm  = plain.NewForm(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	contextForm = plain.NewForm(`^[^\x00-\x20\x7f-][^\x00-\x1f\x7f]{0,499}$`)
	imageForm   = plain.NewForm(`^[!-~]+$`)
	workForm    = plain.NewForm(`^/[A-Za-z0-9_./@+=,-]+$`)
	labelForm   = plain.NewForm(`^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,62})=` +
		`([A-Za-z0-9]([A-Za-z0-9_.-]{0,62}))?$`)
	taintForm = plain.NewForm(`^([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(=[A-Za-z0-9_.-]{0,63})?` +
		`(:(NoSchedule|PreferNoSchedule|NoExecute))?$`)
)

// Keys for only one of the two modes: an existing pod, or a pod for each job.
var (
	ofPod  = []string{"container", "gpus"}
	ofJobs = strings.Fields("image cpu memory node_selector tolerations queue priority service_account pull_secret user " +
		"volume pending jobs")
)

// Check reports invalid values.
func (c *Config) Check(t *config.Table) {
	t.Match("context", c.Context, contextForm, "the name of a context")
	for key, value := range map[string]string{"namespace": c.Namespace, "pod": c.Pod, "container": c.Container,
		"queue": c.Queue, "priority": c.Priority, "service_account": c.ServiceAccount, "pull_secret": c.PullSecret,
		"volume": c.Volume} {
		t.Match(key, value, objectForm, "a name in Kubernetes: a-z, 0-9, '-' and '.'")
	}
	if c.Kubeconfig != "" && !filepath.IsAbs(c.Kubeconfig) {
		t.Fault("kubeconfig", "", "%.200q is not absolute", c.Kubeconfig)
	}
	t.Match("image", c.Image, imageForm, "an image of a registry")
	for _, l := range c.NodeSelector {
		t.Match("node_selector", l, labelForm, `a label such as "nvidia.com/gpu.product=NVIDIA-B200"`)
	}
	for _, s := range c.Tolerations {
		t.Match("tolerations", s, taintForm, `a taint such as "team=kernels:NoSchedule", or its key`)
	}
	foreign, why := ofPod, "requires pod"
	if c.Pod != "" {
		foreign, why = ofJobs, "cannot be combined with pod"
	}
	for _, key := range foreign {
		if t.Has(key) {
			t.Fault(key, "", "%s", why)
		}
	}
	if len(c.GPUs) == 0 {
		t.Fault("gpus", "write gpus = [0]", "empty list")
	}
	remote.CheckGPUs(t, c.GPUs)
	if dir := path.Clean(c.Workdir); !workForm.MatchString(c.Workdir) || dir == "/" {
		t.Fault("workdir", "", "%.200q is not an absolute path of letters, digits and ./_@+=,-", c.Workdir)
	}
	config.Between(t, "cpu", c.CPU, 0.1, 1024)
	config.Between(t, "memory", c.Memory, 128, 1<<24)
	config.Between(t, "user", c.User, 0, 1<<31-1)
	config.Between(t, "pending", c.Pending, time.Second, 7*24*time.Hour)
	config.Between(t, "away", c.Away, time.Second, 24*time.Hour)
	config.Between(t, "jobs", c.Jobs, 1, 1000)
}

// Open returns the provider.
func (c *Config) Open(name string) (remote.Provider, error) { return New(name, *c), nil }
