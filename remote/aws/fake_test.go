package aws

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A fake implements the parts of Batch and CloudWatch Logs that the provider uses. It runs a job's container as a
// process of this machine, in an environment without this process's credentials.
type fake struct {
	t   *testing.T
	url string
	dir string

	mu     sync.Mutex
	hosts  map[string]*fakeHost
	order  []string
	asked  []string             // operations and their bodies
	faults map[string]answer    // by operation: the answer instead
	garble map[string]string    // by operation: text that replaces the answer
	hold   bool                 // hosts do not start yet
	after  func(op string) bool // reports that a completed operation gets no answer
	group  sync.WaitGroup
}

type answer struct {
	status        int
	code, message string
}

// A fakeHost is one job of Batch.
type fakeHost struct {
	id, name   string
	tags       map[string]string
	state      string // Batch's name for it
	reason     string // of the end
	terminated bool
	exit       *int
	ask        map[string]any // the request to Batch
	argv, env  []string
	cmd        *exec.Cmd
	over       chan struct{} // closed when cmd has ended; nil before it started
	log        string
	created    time.Time
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, dir: t.TempDir(), hosts: map[string]*fakeHost{}, faults: map[string]answer{}}
	server := httptest.NewServer(f)
	f.url = server.URL
	bin := filepath.Join(f.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		// A job that has written its exit, or was told to end, needs a moment to do so.
		late := time.After(20 * time.Second)
		for _, h := range f.hosts {
			if h.over == nil {
				continue
			}
			select {
			case <-h.over:
			case <-late:
				t.Errorf("host of %s was left running", h.name)
				_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL)
				late = time.After(0)
			}
		}
		f.group.Wait()
	})
	return f
}

func (f *fake) fault(op string, a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = a
}

func (f *fake) add(h *fakeHost) {
	h.id = fmt.Sprintf("job-%017x", len(f.hosts)+1)
	h.created = time.Now()
	f.hosts[h.id] = h
	f.order = append(f.order, h.id)
	if !f.hold {
		f.begin(h)
	}
}

func (f *fake) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = false
	for _, h := range f.hosts {
		if h.cmd == nil && h.exit == nil && !h.terminated {
			f.begin(h)
		}
	}
}

func (f *fake) begin(h *fakeHost) {
	tmp := filepath.Join(f.dir, h.id)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		f.t.Error(err)
	}
	log, err := os.Create(filepath.Join(tmp, "console"))
	if err != nil {
		f.t.Error(err)
	}
	h.log = log.Name()
	h.cmd = exec.Command(h.argv[0], h.argv[1:]...)
	h.cmd.Dir = tmp
	h.cmd.Env = append([]string{"PATH=" + filepath.Join(f.dir, "bin") + ":/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + tmp},
		h.env...)
	h.cmd.Stdout, h.cmd.Stderr = log, log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.cmd.Start(); err != nil {
		f.t.Error(err)
		return
	}
	h.state = "RUNNING"
	h.over = make(chan struct{})
	f.group.Go(func() {
		defer close(h.over)
		_ = h.cmd.Wait()
		log.Close()
		_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL) // nothing outlives a container
		f.mu.Lock()
		defer f.mu.Unlock()
		code := h.cmd.ProcessState.ExitCode()
		h.exit = &code
		h.state = map[bool]string{true: "SUCCEEDED", false: "FAILED"}[code == 0]
		if h.reason == "" {
			h.reason = "Essential container in task exited"
		}
	})
}

// end acts like an order to end: the host has limited time to react.
func (f *fake) end(h *fakeHost, reason string) {
	if h.exit != nil || h.terminated {
		return
	}
	h.reason, h.terminated = reason, true
	if h.cmd == nil {
		h.state = "FAILED"
		return
	}
	pid := h.cmd.Process.Pid
	_ = syscall.Kill(-pid, syscall.SIGTERM)
	f.group.Go(func() {
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			f.mu.Lock()
			over := h.exit != nil
			f.mu.Unlock()
			if over {
				return
			}
		}
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	})
}

// kill ends a host without warning, as AWS does when it reclaims an instance.
func (f *fake) kill(job string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		if h.tags["fisub:job"] == job && h.exit == nil {
			h.reason = "Host EC2 (instance i-0123456789abcdef0) terminated."
			_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	op := f.serve(answer, r)
	if f.after != nil && f.after(op) {
		<-r.Context().Done()
		return
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) (op string) {
	body, _ := io.ReadAll(r.Body)
	op = strings.TrimPrefix(r.URL.Path, "/v1/")
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		op = target[strings.LastIndex(target, ".")+1:]
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, op+" "+string(body))
	if a, ok := f.faults[op]; ok {
		f.refuse(w, a)
		return op
	}
	if text, ok := f.garble[op]; ok {
		_, _ = io.WriteString(w, text)
		return op
	}
	var ask map[string]any
	_ = json.Unmarshal(body, &ask)
	w.Header().Set("Content-Type", "application/json")
	if out := f.batch(op, ask); out != nil {
		_ = json.NewEncoder(w).Encode(out)
		return op
	}
	f.refuse(w, answer{400, "ClientException", "the fake does not know " + op})
	return op
}

func (f *fake) refuse(w http.ResponseWriter, a answer) {
	w.Header().Set("X-Amzn-Errortype", a.code)
	w.WriteHeader(a.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"__type": a.code, "message": a.message})
}

func (f *fake) batch(op string, ask map[string]any) any {
	text := func(v any) string { s, _ := v.(string); return s }
	strings1 := func(v any) (all []string) {
		list, _ := v.([]any)
		for _, s := range list {
			all = append(all, text(s))
		}
		return all
	}
	switch op {
	case "submitjob":
		h := &fakeHost{name: text(ask["jobName"]), state: "RUNNABLE", ask: ask, tags: map[string]string{}}
		for k, v := range ask["tags"].(map[string]any) {
			h.tags[k] = text(v)
		}
		over := ask["containerOverrides"].(map[string]any)
		h.argv = strings1(over["command"])
		for _, e := range over["environment"].([]any) {
			e := e.(map[string]any)
			h.env = append(h.env, text(e["name"])+"="+text(e["value"]))
		}
		f.add(h)
		return map[string]any{"jobId": h.id, "jobName": h.name, "jobArn": "arn:aws:batch:us-east-1:1:job/" + h.id}
	case "listjobs":
		filter := ask["filters"].([]any)[0].(map[string]any)
		name := strings1(filter["values"])[0]
		all := []any{}
		for _, id := range f.order {
			h := f.hosts[id]
			prefix, star := strings.CutSuffix(name, "*")
			if h.ask["jobQueue"] == ask["jobQueue"] && (h.name == name || star && strings.HasPrefix(h.name, prefix)) {
				summary := map[string]any{"jobId": h.id, "jobName": h.name, "status": h.state, "statusReason": h.reason,
					"createdAt": h.created.UnixMilli()}
				if h.exit != nil {
					summary["container"] = map[string]any{"exitCode": *h.exit}
				}
				all = append(all, summary)
			}
		}
		return map[string]any{"jobSummaryList": all}
	case "terminatejob":
		if h := f.hosts[text(ask["jobId"])]; h != nil {
			f.end(h, text(ask["reason"]))
		}
		return map[string]any{}
	case "describejobqueues":
		all := []any{}
		for _, q := range strings1(ask["jobQueues"]) {
			if q == "gpus" {
				all = append(all, map[string]any{"jobQueueName": q, "state": "ENABLED", "status": "VALID", "priority": 1,
					"computeEnvironmentOrder": []any{map[string]any{"order": 1, "computeEnvironment": "env"}}})
			}
		}
		return map[string]any{"jobQueues": all}
	case "describejobdefinitions":
		all := []any{}
		if ask["jobDefinitionName"] == "fisub" {
			for _, revision := range []int{3, 12, 4} {
				all = append(all, map[string]any{"jobDefinitionName": "fisub", "revision": revision, "status": "ACTIVE",
					"type": "container", "jobDefinitionArn": "a"})
			}
		}
		return map[string]any{"jobDefinitions": all}
	case "describecomputeenvironments":
		return map[string]any{"computeEnvironments": []any{map[string]any{"computeEnvironmentName": "env",
			"computeResources": map[string]any{"instanceTypes": []string{"p6-b200.48xlarge"}, "maxvCpus": 192, "subnets": []string{"subnet-a",
				"subnet-b"}}}}}
	case "FilterLogEvents":
		events := []any{}
		for _, h := range f.hosts {
			log, _ := os.ReadFile(h.log)
			words := strings.Trim(text(ask["filterPattern"]), `"`)
			if ask["logGroupName"] == "/aws/batch/job" && strings.Contains(string(log), words) {
				events = append(events, map[string]any{"logStreamName": h.id, "message": words, "timestamp": 1})
			}
		}
		return map[string]any{"events": events}
	case "GetLogEvents":
		events := []any{}
		if h := f.hosts[text(ask["logStreamName"])]; h != nil && ask["logGroupName"] == "/aws/batch/job" {
			log, _ := os.ReadFile(h.log)
			for _, line := range strings.Split(strings.TrimSpace(string(log)), "\n") {
				events = append(events, map[string]any{"message": line, "timestamp": 1})
			}
		}
		return map[string]any{"events": events}
	}
	return nil
}

// consoles returns all output of the hosts.
func (f *fake) consoles() (all string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		log, _ := os.ReadFile(h.log)
		all += string(log)
	}
	return all
}
