package kubernetes

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/host"
	"fisub/remote/kubernetes/kubernetestest"
	"fisub/remote/remotetest"
)

func TestMain(m *testing.M) {
	// In the test cluster's node, a connection that its client dropped takes a second or more to end.
	remotetest.Main(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

func open(t *testing.T, c *kubernetestest.Cluster, table map[string]any) *Provider {
	t.Helper()
	values := map[string]any{"kubeconfig": c.Kubeconfig, "workdir": filepath.Join(c.Scratch, "work")}
	if table["pod"] == nil {
		values["cpu"], values["memory"] = 0.1, int64(128)
	}
	for key, value := range table {
		values[key] = value
	}
	config, err := remotetest.Table[Config]("lab", values)
	if err != nil {
		t.Fatal(err)
	}
	p := New("lab", config)
	p.pace = 100 * time.Millisecond
	return p
}

// TestKubernetes shares one cluster, which takes a while to start.
func TestKubernetes(t *testing.T) {
	c := kubernetestest.Start(t)
	podOf := func(t *testing.T, h remote.Handle) string {
		t.Helper()
		d, err := open(t, c, nil).open(h)
		if err != nil {
			t.Fatal(err)
		}
		return d.Pod
	}
	t.Run("Host", func(t *testing.T) { hostCases(t, c) })
	t.Run("OwnPods", func(t *testing.T) {
		claim := c.Claim("bundles")
		remotetest.Run(t, remotetest.Setup{
			New: func(t *testing.T) remote.Provider {
				return open(t, c, map[string]any{"volume": "bundles", "jobs": int64(2)})
			},
			Slow:      30 * time.Second,
			KillHost:  func(t *testing.T, h remote.Handle) { c.Kill(podOf(t, h)) },
			Cut:       func(*testing.T) { c.Cut(time.Second) },
			Work:      claim,
			Renames:   true,
			SendsEach: true,
		})
	})
	t.Run("PodThere", func(t *testing.T) {
		work := stand(t, c, "bench")
		table := map[string]any{"pod": "bench", "gpus": []any{int64(0), int64(1)}}
		remotetest.Run(t, remotetest.Setup{
			New:  func(t *testing.T) remote.Provider { return open(t, c, table) },
			Slow: 30 * time.Second,
			KillHost: func(t *testing.T, h remote.Handle) {
				state := filepath.Join(agent.JobDir(filepath.Join(c.Scratch, "work"), h.Job), agent.StateName)
				c.Kubectl("", "exec", "bench", "--", "sh", "-c", `kill -9 $(grep -o '"pid":[0-9]*' `+state+` | cut -d: -f2)`)
			},
			Cut:     func(*testing.T) { c.Cut(time.Second) },
			Work:    work,
			Renames: true,
			Sweeps:  true,
			GPUs: func(t *testing.T) (remote.Provider, string) {
				of := maps.Clone(table)
				of["gpu"] = "b200"
				return open(t, c, of), work
			},
		})
	})
	for _, one := range []struct {
		name string
		run  func(*testing.T, *kubernetestest.Cluster)
	}{
		{"Late", late}, {"Evicted", evicted}, {"PodDeleted", podDeleted}, {"JobDeleted", jobDeleted},
		{"Deadline", deadline}, {"ClientGone", clientGone}, {"Refusals", refusals}, {"Quota", quota}, {"Queue", queue},
		{"Restarted", restarted}, {"LoginExpires", loginExpires}, {"Check", checks},
	} {
		t.Run(one.name, func(t *testing.T) { one.run(t, c) })
	}
}

// stand creates a running pod with a volume for the work folder, and returns the volume's folder.
func stand(t *testing.T, c *kubernetestest.Cluster, name string) string {
	t.Helper()
	work := c.Claim(name)
	c.Kubectl(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %[1]q}, "spec": {
"containers": [{"name": "main", "image": "any", "command": ["sh", "-c", "while :; do sleep 1 & wait; done"],
 "volumeMounts": [{"name": "work", "mountPath": %[2]q}]}], "terminationGracePeriodSeconds": 0,
"volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": %[1]q}}]}}`,
		name, filepath.Join(c.Scratch, "work")), "create", "-f", "-")
	t.Cleanup(func() { c.Kubectl("", "delete", "pod", name, "--wait=false", "--ignore-not-found") })
	c.Kubectl("", "wait", "--for=condition=Ready", "--timeout=300s", "pod/"+name)
	return work
}

func start(t *testing.T, p *Provider, text string) remote.Handle {
	t.Helper()
	job := remotetest.Script(t, text, nil)
	job.Place = p.Places(1)[0]
	return remotetest.Submit(t, p, job)
}

func pod(t *testing.T, p *Provider, h remote.Handle) string {
	t.Helper()
	d, err := p.open(h)
	if err != nil {
		t.Fatal(err)
	}
	return d.Pod
}

// A job's output remains available after its pod has ended, as for a client that was away.
func late(t *testing.T, c *kubernetestest.Cluster) {
	p := open(t, c, nil)
	h := start(t, p, `echo one; echo two; echo words >&2; exit 3`)
	d, err := p.open(h)
	if err != nil {
		t.Fatal(err)
	}
	// The pod stays as long as the job's folder does; delete the folder.
	c.Kubectl("", "exec", d.Pod, "--", "sh", "-c",
		"until [ -e "+d.Dir()+"/exit.json ]; do sleep 0.1; done; sleep 3; rm -rf "+d.Dir())
	c.Kubectl("", "wait", "--for=condition=Complete", "--timeout=300s", "job/"+d.Name)
	r := &remotetest.Recorder{}
	exit, err := p.Wait(remotetest.Within(t), h, 4, r)
	if err != nil || r.Stream() != "two\n" || exit.End != remote.Exited || exit.Code != 3 {
		t.Errorf("got %q, %+v, %v", r.Stream(), exit, err)
	}
	if text := remotetest.Log(t, p, h); !strings.Contains(text, "words\n") {
		t.Errorf("log: %q", text)
	}
	remotetest.Release(t, p, h)
	if left := c.Kubectl("", "get", "jobs,pods", "-l", labelBy+"=fisub", "-o", "name"); left != "" {
		t.Errorf("left in the cluster: %s", left)
	}
}

func evicted(t *testing.T, c *kubernetestest.Cluster) {
	p := open(t, c, nil)
	h := start(t, p, `echo one; sleep 300`)
	r, exit := remotetest.FollowThen(t, p, h, func() { c.Evict(pod(t, p, h)) })
	if exit.End != remote.Lost || !strings.Contains(exit.Text, "Evicted: The node was low on resource") ||
		exit.Hint == "" || r.Stream() != "one\n" {
		t.Errorf("got %+v, %q", exit, r.Stream())
	}
}

func podDeleted(t *testing.T, c *kubernetestest.Cluster) {
	p := open(t, c, nil)
	h := start(t, p, `echo one; sleep 300`)
	_, exit := remotetest.FollowThen(t, p, h, func() { c.Kubectl("", "delete", "pod", pod(t, p, h), "--wait=false") })
	if exit.End != remote.Lost || !strings.Contains(exit.Text, "pod") || exit.Hint == "" {
		t.Errorf("got %+v, want lost: its workloads go elsewhere", exit)
	}
}

func jobDeleted(t *testing.T, c *kubernetestest.Cluster) {
	p := open(t, c, nil)
	h := start(t, p, `echo one; sleep 300`)
	_, exit := remotetest.FollowThen(t, p, h, func() { c.Kubectl("", "delete", "job", objectName(h.Job), "--wait=false") })
	if exit.End != remote.Cancelled {
		t.Errorf("got %+v, want cancelled", exit)
	}
}

// The node ends a pod whose agent does not end its job.
func deadline(t *testing.T, c *kubernetestest.Cluster) {
	p := open(t, c, nil)
	h := start(t, p, `echo one; sleep 300`)
	name := pod(t, p, h)
	spec := c.Kubectl("", "get", "pod", name, "-o", "jsonpath={.spec.activeDeadlineSeconds}")
	if want := fmt.Sprint(seconds(time.Minute + beyond)); spec != want {
		t.Errorf("the pod's deadline: got %s s, want %s s", spec, want)
	}
	ttl := c.Kubectl("", "get", "job", objectName(h.Job), "-o", "jsonpath={.spec.ttlSecondsAfterFinished}")
	if ttl != fmt.Sprint(seconds(kept)) {
		t.Errorf("the Job is kept for %s s", ttl)
	}
	_, exit := remotetest.FollowThen(t, p, h, func() {
		c.Kubectl("", "patch", "pod", name, "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
	})
	if exit.End != remote.Limited || !strings.Contains(exit.Text, "DeadlineExceeded") {
		t.Errorf("got %+v, want limit", exit)
	}
}

// If a client dies before uploading the bundle, the pod ends and the cluster removes the Job.
func clientGone(t *testing.T, c *kubernetestest.Cluster) {
	p := open(t, c, nil)
	job := remotetest.Script(t, `echo one`, nil)
	o := manifest(&p.config, job, "me", nil)
	spec := o["spec"].(object)
	spec["ttlSecondsAfterFinished"] = 1
	one := spec["template"].(object)["spec"].(object)["containers"].([]object)[0]
	command := one["command"].([]string)
	if at := slices.Index(command, fmt.Sprint(seconds(boot))); at != 5 {
		t.Fatalf("command: %q", command)
	}
	command[5] = "2"
	c.Kubectl(text(t, o), "create", "-f", "-")
	c.Kubectl("", "wait", "--for=delete", "--timeout=90s", "job/"+objectName(job.ID))
	if left := c.Kubectl("", "get", "jobs,pods", "-l", labelName+"="+objectName(job.ID), "-o", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// A refusal by the cluster is reported in its words with a hint, and leaves nothing behind.
func refusals(t *testing.T, c *kubernetestest.Cluster) {
	for _, one := range []struct {
		name  string
		table map[string]any
		gpu   string
		code  string
		text  string
	}{
		{"no such image", map[string]any{"image": "missing:1"}, "", "image", "ImagePullBackOff"},
		{"no shell", map[string]any{"image": "no-shell:1"}, "", "image", "/bin/sh"},
		{"no such namespace", map[string]any{"namespace": "none"}, "", "no-such", `namespaces "none" not found`},
		{"no such context", map[string]any{"context": "none"}, "", "no-such", "context"},
		{"no right", map[string]any{"kubeconfig": c.Config(kubernetestest.NobodyToken, "")}, "", "credentials", "cannot"},
		{"login expired", map[string]any{"kubeconfig": c.Config("wrong", "")}, "", "credentials", "logged in"},
		{"nobody there", map[string]any{"kubeconfig": c.Config("x", "https://127.0.0.1:1")}, "", "unreachable", "refused"},
		{"no kubeconfig", map[string]any{"kubeconfig": "/none/there"}, "", "no-such", "/none/there"},
		{"no such GPU", nil, "h200", "no-such", "no node has the GPU h200, they have NVIDIA-B200"},
		{"no such node", map[string]any{"node_selector": []any{"kind=none"}, "pending": "2s"}, "", "capacity",
			"node affinity/selector"},
		{"no Kueue", map[string]any{"queue": "main"}, "", "no-such", "localqueues"},
		{"no such pod", map[string]any{"pod": "none"}, "", "no-such", "no pod none"},
	} {
		t.Run(one.name, func(t *testing.T) {
			p := open(t, c, one.table)
			job := remotetest.Script(t, `echo ran`, nil)
			job.GPU, job.Place = one.gpu, p.Places(1)[0]
			_, err := p.Submit(remotetest.Within(t), job, nil)
			remotetest.CheckDenied(t, err, one.code, one.text, "")
			if !strings.HasPrefix(fmt.Sprint(err), "lab: ") {
				t.Errorf("the error lacks the table: %v", err)
			}
			if left := c.Kubectl("", "get", "jobs", "-A", "-l", labelName+"="+objectName(job.ID), "-o", "name"); left != "" {
				t.Errorf("left: %s", left)
			}
		})
	}
}

// Submit and Check report an exhausted quota at once instead of waiting.
func quota(t *testing.T, c *kubernetestest.Cluster) {
	c.Kubectl("", "create", "namespace", "small")
	c.Kubectl("", "create", "quota", "gpus", "--namespace=small", "--hard=requests.nvidia.com/gpu=0")
	for begun := time.Now(); c.Kubectl("", "get", "quota", "gpus", "--namespace=small", "-o",
		"jsonpath={.status.hard}") == ""; time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("the quota is not counted")
		}
	}
	p := open(t, c, map[string]any{"namespace": "small", "gpu": "b200"})
	job := remotetest.Script(t, `echo ran`, nil)
	job.GPU, job.Place = "b200", p.Places(1)[0]
	_, err := p.Submit(remotetest.Within(t), job, nil)
	remotetest.CheckDenied(t, err, "quota", "exceeded quota: gpus", "")
	remotetest.CheckDown(t, p, "quota", "")
}

// A Job with the label of Kueue's queue waits until Kueue admits it by clearing suspend.
func queue(t *testing.T, c *kubernetestest.Cluster) {
	c.Kubectl(`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "localqueues.kueue.x-k8s.io"}, "spec": {"group": "kueue.x-k8s.io", "scope": "Namespaced",
"names": {"plural": "localqueues", "singular": "localqueue", "kind": "LocalQueue"}, "versions": [{"name": "v1beta1",
"served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields":
true}}}]}}`, "create", "-f", "-")
	c.Kubectl("", "wait", "--for=condition=Established", "--timeout=300s", "crd/localqueues.kueue.x-k8s.io")
	p := open(t, c, map[string]any{"queue": "main"})
	job := remotetest.Script(t, `echo one`, nil)
	job.Place = p.Places(1)[0]
	if _, err := p.Submit(remotetest.Within(t), job, nil); remote.CodeOf(err) != "no-such" || !strings.Contains(err.Error(), "main") {
		t.Errorf("no such queue: got %v", err)
	}
	c.Kubectl(`{"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "main"}}`,
		"create", "-f", "-")
	admitted := false
	job.Tell = func(s remote.Stage) {
		if s.Phase == remote.Queued && strings.Contains(s.Text, "queue main") && !admitted {
			admitted = true
			c.Kubectl("", "patch", "job", objectName(job.ID), "-p", `{"spec":{"suspend":false}}`)
		}
	}
	h, err := p.Submit(remotetest.Within(t), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, exit := remotetest.Wait(t, p, h); !admitted || r.Stream() != "one\n" || exit.End != remote.Exited {
		t.Errorf("got %q, %+v; admitted %v", r.Stream(), exit, admitted)
	}
	label := c.Kubectl("", "get", "job", objectName(job.ID), "-o",
		`jsonpath={.metadata.labels.kueue\.x-k8s\.io/queue-name}`)
	if label != "main" {
		t.Errorf("label of the queue: %q", label)
	}
	remotetest.Release(t, p, h)
}

// A restarted pod is a different host.
func restarted(t *testing.T, c *kubernetestest.Cluster) {
	stand(t, c, "again")
	p := open(t, c, map[string]any{"pod": "again"})
	h := start(t, p, `echo one; sleep 300`)
	_, exit := remotetest.FollowThen(t, p, h, func() { c.Restart("again") })
	if exit.End != remote.Lost || !strings.Contains(exit.Text, "restarted") {
		t.Errorf("got %+v, want lost", exit)
	}
}

// If a login expires in mid-run, the job continues, and the next client gets all of its output.
func loginExpires(t *testing.T, c *kubernetestest.Cluster) {
	config := filepath.Join(t.TempDir(), "config")
	use := func(file string) {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(config+".new", text, 0o600)
		}
		if err == nil {
			err = os.Rename(config+".new", config)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	use(c.Kubeconfig)
	p := open(t, c, map[string]any{"kubeconfig": config})
	h := start(t, p, `echo one; sleep 8; echo two`)
	var once sync.Once
	r := &remotetest.Recorder{Fail: func([]byte) error {
		once.Do(func() {
			use(c.Config("wrong", ""))
			c.Cut(0)
		})
		return nil
	}}
	if _, err := p.Wait(remotetest.Within(t), h, 0, r); remote.CodeOf(err) != "credentials" ||
		!strings.Contains(err.Error(), "logged in") {
		t.Errorf("got %v, want that the login has expired", err)
	}
	use(c.Kubeconfig)
	if rest, exit := remotetest.Wait(t, p, h); rest.Stream() != "one\ntwo\n" || exit.End != remote.Exited {
		t.Errorf("after a new login: got %q, %+v", rest.Stream(), exit)
	}
}

func checks(t *testing.T, c *kubernetestest.Cluster) {
	stand(t, c, "there")
	for _, one := range []struct {
		name         string
		table        map[string]any
		state, words string
	}{
		{"own pods", map[string]any{"gpu": "b200"}, "ready", "2 x NVIDIA-B200 on 1 node"},
		{"no GPU", map[string]any{"gpu": "none"}, "ready", "image"},
		{"another GPU", map[string]any{"gpu": "a100"}, "down", "NVIDIA-B200"},
		{"pod", map[string]any{"pod": "there"}, "ready", "pod there"},
		{"no pod", map[string]any{"pod": "nowhere"}, "down", "nowhere"},
		{"no right", map[string]any{"kubeconfig": c.Config(kubernetestest.NobodyToken, "")}, "down", "forbidden"},
	} {
		hosts, err := open(t, c, one.table).Check(remotetest.Within(t))
		if err != nil || len(hosts) != 1 || hosts[0].State != one.state ||
			!strings.Contains(fmt.Sprint(hosts[0].Detail, hosts[0].Err), one.words) {
			t.Errorf("%s: got %+v, %v, want %s: %s", one.name, hosts, err, one.state, one.words)
		}
	}
	if left := c.Kubectl("", "get", "jobs", "-o", "name"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// hostCases checks the file operations of a Host in a pod.
func hostCases(t *testing.T, c *kubernetestest.Cluster) {
	stand(t, c, "files")
	p := open(t, c, map[string]any{"pod": "files"})
	h := p.folder.Host
	if _, err := host.Read(remotetest.Within(t), h, "/none", 0, 5, new(strings.Builder)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
}
