package kubernetestest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/spdystream"
)

// A kubelet runs the pods of the only node, each as a process in its own mount and process namespaces. It supports only
// the features that fisub's pods use.
type kubelet struct {
	c      *Cluster
	server *httptest.Server
	group  sync.WaitGroup
	ctx    context.Context

	mu   sync.Mutex
	pods map[string]*pod // by uid
}

// An object holds the fields of a pod that the kubelet reads.
type object struct {
	Metadata struct {
		Name, Namespace, UID       string
		DeletionTimestamp          *time.Time
		DeletionGracePeriodSeconds int
	}
	Spec struct {
		ActiveDeadlineSeconds *int64
		Containers            []struct {
			Name, Image   string
			Command, Args []string
			Env           []struct{ Name, Value string }
			VolumeMounts  []struct{ Name, MountPath string }
		}
		Volumes []struct {
			Name                  string
			PersistentVolumeClaim *struct{ ClaimName string }
		}
	}
	Status struct{ Phase string }
}

func (o *object) path() string {
	return "/api/v1/namespaces/" + o.Metadata.Namespace + "/pods/" + o.Metadata.Name
}

// A pod is a pod of this node.
type pod struct {
	object
	log     *os.File
	cmd     *exec.Cmd
	init    int           // process id of its first process
	exited  chan struct{} // closed when the process has ended, or never started
	why     string        // reason of its end, if not the process's own
	words   string
	stopped sync.Once
	started time.Time
	number  int // number of restarts
}

func startKubelet(c *Cluster) *kubelet {
	ctx, cancel := context.WithCancel(context.Background())
	k := &kubelet{c: c, ctx: ctx, pods: map[string]*pod{}}
	k.server = httptest.NewUnstartedServer(k)
	k.server.StartTLS()
	c.t.Cleanup(func() {
		cancel()
		k.mu.Lock()
		for _, p := range k.pods {
			p.kill()
		}
		k.mu.Unlock()
		k.server.CloseClientConnections()
		k.server.Close()
		k.group.Wait()
	})
	_, port, _ := net.SplitHostPort(k.server.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	status := map[string]any{
		"capacity":    map[string]string{"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "2"},
		"allocatable": map[string]string{"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "2"},
		"addresses":   []any{map[string]string{"type": "InternalIP", "address": "127.0.0.1"}},
		"conditions":  []any{map[string]string{"type": "Ready", "status": "True", "reason": "KubeletReady"}},
		"daemonEndpoints": map[string]any{
			"kubeletEndpoint": map[string]int{"Port": number}},
	}
	node := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": c.Node,
		"labels": map[string]string{"nvidia.com/gpu.product": "NVIDIA-B200", "kubernetes.io/arch": "amd64"}}}
	if err := errors.Join(c.Do("POST", "/api/v1/nodes", "", node, nil),
		c.Do("PATCH", "/api/v1/nodes/"+c.Node+"/status", mergePatch, map[string]any{"status": status}, nil)); err != nil {
		c.t.Fatal(err)
	}
	k.group.Go(k.watch)
	return k
}

const mergePatch = "application/merge-patch+json"

// watch follows the changes of the node's pods.
func (k *kubelet) watch() {
	for ; k.ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		req, err := http.NewRequestWithContext(k.ctx, "GET",
			k.c.server+"/api/v1/pods?watch=true&fieldSelector=spec.nodeName="+k.c.Node, nil)
		if err != nil {
			panic(err)
		}
		req.Header.Set("Authorization", "Bearer "+adminToken)
		resp, err := k.c.client.Do(req)
		if err != nil {
			continue
		}
		for lines := json.NewDecoder(resp.Body); ; {
			var e struct {
				Type   string
				Object object
			}
			if lines.Decode(&e) != nil {
				break
			}
			k.heard(e.Type, e.Object)
		}
		resp.Body.Close()
	}
}

func (k *kubelet) heard(what string, o object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[o.Metadata.UID]
	switch {
	case what == "DELETED":
		if p != nil {
			p.kill()
			delete(k.pods, o.Metadata.UID)
		}
		return
	case what != "ADDED" && what != "MODIFIED":
		return
	case p == nil:
		p = &pod{object: o, exited: make(chan struct{}), started: time.Now()}
		k.pods[o.Metadata.UID] = p
		if o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed" {
			close(p.exited)
		} else {
			k.group.Go(func() { k.run(p) })
		}
	}
	p.Spec.ActiveDeadlineSeconds = o.Spec.ActiveDeadlineSeconds
	if o.Metadata.DeletionTimestamp != nil {
		p.stopped.Do(func() { k.group.Go(func() { k.end(p, o.Metadata.DeletionGracePeriodSeconds) }) })
	}
}

func (p *pod) kill() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill() // unshare takes the pod's first process with it, which takes all others
	}
}

func (k *kubelet) status(p *pod, phase, reason, message string, container map[string]any) {
	ready := "False"
	if phase == "Running" {
		ready = "True"
	}
	one := map[string]any{"name": p.Spec.Containers[0].Name, "image": p.Spec.Containers[0].Image, "imageID": "",
		"ready": phase == "Running", "restartCount": p.number, "state": container,
		"containerID": fmt.Sprintf("standin://%s-%d", p.Metadata.UID, p.number)}
	if phase == "Pending" {
		delete(one, "containerID")
	}
	err := k.c.Do("PATCH", p.path()+"/status", mergePatch, map[string]any{"status": map[string]any{
		"phase": phase, "reason": reason, "message": message, "startTime": p.started.UTC().Format(time.RFC3339),
		"containerStatuses": []any{one},
		"conditions": []any{map[string]string{"type": "PodScheduled", "status": "True"},
			map[string]string{"type": "Ready", "status": ready}}}}, nil)
	if err != nil && k.ctx.Err() == nil && !strings.Contains(err.Error(), "NotFound") {
		k.c.t.Logf("kubelet: %v", err)
	}
}

func waiting(reason, message string) map[string]any {
	return map[string]any{"waiting": map[string]string{"reason": reason, "message": message}}
}

func (k *kubelet) run(p *pod) {
	defer close(p.exited)
	switch image := p.Spec.Containers[0].Image; {
	case strings.Contains(image, "missing"):
		k.status(p, "Pending", "", "", waiting("ErrImagePull", "not found"))
		k.status(p, "Pending", "", "", waiting("ImagePullBackOff", `Back-off pulling image "`+image+`": not found`))
		return
	case strings.Contains(image, "no-shell"):
		k.status(p, "Failed", "", "", map[string]any{"terminated": map[string]any{"reason": "StartError", "exitCode": 128,
			"message": `exec: "/bin/sh": stat /bin/sh: no such file or directory`}})
		return
	}
	for k.once(p) {
		p.number++
	}
}

// once runs the pod's container. It reports whether to start it again.
func (k *kubelet) once(p *pod) (again bool) {
	cmd, err := k.command(p)
	if err == nil {
		if p.log == nil {
			p.log, err = os.Create(filepath.Join(k.c.dir, p.Metadata.UID+".log"))
		}
		cmd.Stdout, cmd.Stderr = p.log, p.log
	}
	k.mu.Lock()
	p.cmd, p.why, p.words = cmd, "", ""
	if err == nil && k.ctx.Err() == nil {
		err = cmd.Start()
	}
	k.mu.Unlock()
	if err != nil || k.ctx.Err() != nil {
		k.status(p, "Failed", "", "", map[string]any{"terminated": map[string]any{"reason": "StartError", "exitCode": 128,
			"message": fmt.Sprint(err)}})
		return false
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		id := strconv.Itoa(cmd.Process.Pid)
		text, _ := os.ReadFile("/proc/" + id + "/task/" + id + "/children")
		child := strings.TrimSpace(string(text))
		environ, _ := os.ReadFile("/proc/" + child + "/environ")
		if child != "" && bytes.Contains(environ, []byte("STANDIN_READY")) {
			k.mu.Lock()
			p.init, _ = strconv.Atoi(child)
			k.mu.Unlock()
			break
		}
	}
	k.status(p, "Running", "", "", map[string]any{"running": map[string]string{
		"startedAt": time.Now().UTC().Format(time.RFC3339)}})
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for waits := true; waits; {
		select {
		case err = <-ended:
			waits = false
		case <-time.After(100 * time.Millisecond):
			k.mu.Lock()
			s := p.Spec.ActiveDeadlineSeconds // may be shortened later
			late := s != nil && time.Since(p.started) > time.Duration(*s)*time.Second
			k.mu.Unlock()
			if late {
				k.fail(p, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
			}
		}
	}
	var failed *exec.ExitError
	code := 0
	if errors.As(err, &failed) {
		if code = failed.ExitCode(); code < 0 {
			code = 137
		}
	}
	k.mu.Lock()
	why, words := p.why, p.words
	k.mu.Unlock()
	if why == "restart" {
		return true
	}
	phase, reason := "Succeeded", "Completed"
	if code != 0 || why != "" {
		phase, reason = "Failed", "Error"
	}
	k.status(p, phase, why, words, map[string]any{"terminated": map[string]any{"reason": reason, "exitCode": code}})
	return false
}

// fail ends a pod for a reason of the kubelet's.
func (k *kubelet) fail(p *pod, why, words string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.why, p.words = why, words
	p.kill()
}

func (k *kubelet) command(p *pod) (*exec.Cmd, error) {
	one := p.Spec.Containers[0]
	mounts := []string{"mount --make-rprivate /", "mount -t proc proc /proc"}
	if err := os.MkdirAll(k.c.Scratch, 0o700); err != nil {
		return nil, err
	}
	mounts = append(mounts, "mount -t tmpfs none '"+k.c.Scratch+"'")
	for _, m := range one.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if v.Name == m.Name && v.PersistentVolumeClaim != nil {
				from := k.c.path("claims/" + v.PersistentVolumeClaim.ClaimName)
				mounts = append(mounts, "mkdir -p '"+m.MountPath+"'", "mount --bind '"+from+"' '"+m.MountPath+"'")
			}
		}
	}
	script := strings.Join(mounts, " && ") + ` && cd / && STANDIN_READY=1 exec "$@"`
	args := append([]string{"--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-c", script, "sh"}, one.Command...)
	cmd := exec.Command("unshare", append(args, one.Args...)...)
	cmd.Env = os.Environ()
	for _, e := range one.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// end removes a deleted pod.
func (k *kubelet) end(p *pod, seconds int) {
	k.mu.Lock()
	if p.init > 0 {
		_ = syscall.Kill(p.init, syscall.SIGTERM)
	}
	k.mu.Unlock()
	select {
	case <-p.exited:
	case <-time.After(time.Duration(seconds) * time.Second):
		k.mu.Lock()
		p.kill()
		k.mu.Unlock()
		<-p.exited
	}
	zero := map[string]any{"gracePeriodSeconds": 0, "preconditions": map[string]string{"uid": p.Metadata.UID}}
	_ = k.c.Do("DELETE", p.path(), "", zero, nil)
}

func (k *kubelet) find(namespace, name string) *pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.Metadata.Namespace == namespace && p.Metadata.Name == name {
			return p
		}
	}
	return nil
}

// Evict evicts a pod of namespace default as a kubelet short of memory does.
func (c *Cluster) Evict(name string) {
	c.kubelet.fail(c.kubelet.find("default", name), "Evicted", "The node was low on resource: memory.")
}

// Kill kills a pod's first process, and so the whole pod, as the out-of-memory killer does.
func (c *Cluster) Kill(name string) { c.kubelet.fail(c.kubelet.find("default", name), "", "") }

// Restart kills a pod's first process and starts its container again.
func (c *Cluster) Restart(name string) {
	c.kubelet.fail(c.kubelet.find("default", name), "restart", "")
}

// ServeHTTP answers the API server.
func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	if len(parts) < 5 {
		http.NotFound(w, r)
		return
	}
	p := k.find(parts[2], parts[3])
	switch {
	case p == nil:
		http.Error(w, "pod does not exist", http.StatusNotFound)
	case parts[1] == "exec":
		k.exec(w, r, p)
	case parts[1] == "containerLogs":
		text, _ := os.ReadFile(filepath.Join(k.c.dir, p.Metadata.UID+".log"))
		_, _ = w.Write(text)
	default:
		http.NotFound(w, r)
	}
}

// exec runs a command in a container, by version 4 of the remote command protocol.
func (k *kubelet) exec(w http.ResponseWriter, r *http.Request, p *pod) {
	k.mu.Lock()
	init := p.init
	k.mu.Unlock()
	if init == 0 {
		http.Error(w, `container not found ("`+p.Spec.Containers[0].Name+`")`, http.StatusNotFound)
		return
	}
	hijacker, ok := w.(http.Hijacker)
	if !ok || !strings.EqualFold(r.Header.Get("Upgrade"), "SPDY/3.1") {
		http.Error(w, "want SPDY/3.1, got "+r.Header.Get("Upgrade"), http.StatusBadRequest)
		return
	}
	q := r.URL.Query()
	conn, buffered, err := hijacker.Hijack()
	if err != nil {
		return
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n")
	if err != nil || buffered.Reader.Buffered() > 0 {
		conn.Close()
		return
	}
	spdy, err := spdystream.NewConnection(conn, true)
	if err != nil {
		conn.Close()
		return
	}
	defer spdy.Close()
	arrived := make(chan *spdystream.Stream, 8)
	go spdy.Serve(func(s *spdystream.Stream) {
		_ = s.SendReply(http.Header{}, false)
		arrived <- s
	})
	want := 1
	for _, name := range []string{"input", "output", "error"} {
		if q.Get(name) == "1" || q.Get(name) == "true" {
			want++
		}
	}
	streams := map[string]*spdystream.Stream{}
	for len(streams) < want {
		select { // the API server opens them at once
		case s := <-arrived:
			streams[s.Headers().Get("streamType")] = s
		case <-time.After(20 * time.Second):
			return
		case <-k.ctx.Done():
			return
		}
	}
	argv := append([]string{"--target", strconv.Itoa(init), "--mount", "--pid", "--wdns=/", "--"}, q["command"]...)
	cmd := exec.Command("nsenter", argv...)
	for _, e := range p.Spec.Containers[0].Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Env = append(os.Environ(), cmd.Env...)
	cmd.WaitDelay = 2 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s := streams["stdin"]; s != nil {
		in, err := cmd.StdinPipe()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(in, s)
			in.Close()
		}()
	}
	if s := streams["stdout"]; s != nil {
		cmd.Stdout = s
	}
	if s := streams["stderr"]; s != nil {
		cmd.Stderr = s
	}
	err = cmd.Run()
	answer := map[string]any{"metadata": map[string]any{}, "status": "Success"}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		code := failed.ExitCode()
		if code < 0 {
			code = 137
		}
		answer = map[string]any{"metadata": map[string]any{}, "status": "Failure", "reason": "NonZeroExitCode",
			"message": "command terminated with non-zero exit code", "details": map[string]any{
				"causes": []any{map[string]string{"reason": "ExitCode", "message": strconv.Itoa(code)}}}}
	} else if err != nil {
		answer = map[string]any{"metadata": map[string]any{}, "status": "Failure", "reason": "InternalError",
			"message": err.Error()}
	}
	text, _ := json.Marshal(answer)
	_, _ = streams["error"].Write(text)
	for _, s := range streams {
		_ = s.Close()
	}
	// The last output may still be in transit.
	select {
	case <-spdy.CloseChan():
	case <-time.After(5 * time.Second):
	case <-k.ctx.Done():
	}
}
