package aws

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A fake is Batch, EC2 and CloudWatch Logs as far as the provider uses them. A job's container, and an instance's user data, is
// really run: as a process of this machine with an environment of its own, that has nothing of this one's credentials.
type fake struct {
	t   *testing.T
	url string
	dir string

	mu     sync.Mutex
	hosts  map[string]*fakeHost
	order  []string
	asked  []string             // operations and their bodies
	faults map[string]answer    // by operation: what is answered instead
	hold   bool                 // hosts do not begin yet
	after  func(op string) bool // tells that an operation which was done gets no answer
	group  sync.WaitGroup
}

type answer struct {
	status        int
	code, message string
}

// A fakeHost is one job of Batch or one instance.
type fakeHost struct {
	id, name, token string
	tags            map[string]string
	state           string // Batch's or EC2's word
	reason, message string // of the end
	terminated      bool
	exit            *int
	ask             map[string]any // what Batch was asked for
	argv, env       []string
	cmd             *exec.Cmd
	over            chan struct{} // closed when cmd has ended; nil before it began
	log             string
	created         time.Time
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, dir: t.TempDir(), hosts: map[string]*fakeHost{}, faults: map[string]answer{}}
	server := httptest.NewServer(f)
	f.url = server.URL
	bin := filepath.Join(f.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "shutdown"), []byte("#!/bin/sh\necho \"$@\" >>\"$TMPDIR/shutdown\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		// One whose job has left its exit, or that was told to end, needs a moment for it.
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
	h.id = fmt.Sprintf("%s%017x", map[bool]string{true: "i-", false: "job-"}[h.ask == nil], len(f.hosts)+1)
	h.created = time.Now()
	f.hosts[h.id] = h
	f.order = append(f.order, h.id)
	if !f.hold {
		f.begin(h)
	}
}

// release lets the hosts begin that were held back.
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
	h.cmd.Env = append([]string{"PATH=" + filepath.Join(f.dir, "bin") + ":/usr/local/bin:/usr/bin:/bin", "TMPDIR=" + tmp}, h.env...)
	h.cmd.Stdout, h.cmd.Stderr = log, log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.cmd.Start(); err != nil {
		f.t.Error(err)
		return
	}
	h.state = map[bool]string{true: "running", false: "RUNNING"}[h.ask == nil]
	h.over = make(chan struct{})
	f.group.Go(func() {
		defer close(h.over)
		_ = h.cmd.Wait()
		log.Close()
		_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL) // nothing outlives a container or an instance
		f.mu.Lock()
		defer f.mu.Unlock()
		code := h.cmd.ProcessState.ExitCode()
		h.exit = &code
		orders, _ := os.ReadFile(filepath.Join(tmp, "shutdown"))
		switch {
		case h.ask != nil:
			h.state = map[bool]string{true: "SUCCEEDED", false: "FAILED"}[code == 0]
			if h.reason == "" {
				h.reason = "Essential container in task exited"
			}
		case h.reason != "":
			h.state = "terminated"
		case strings.HasSuffix(string(orders), "-h now\n"):
			h.state, h.reason, h.message = "terminated", "Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
		default:
			f.t.Errorf("instance %s goes on after its user data", h.id)
		}
	})
}

// end is what an order to end does: a host has time to react, but not for ever.
func (f *fake) end(h *fakeHost, state, reason, message string) {
	if h.exit != nil || h.terminated {
		return
	}
	h.reason, h.message, h.terminated = reason, message, true
	if h.cmd == nil {
		h.state = map[bool]string{true: "terminated", false: "FAILED"}[h.ask == nil]
		return
	}
	if state != "" {
		h.state = state
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

// kill ends a host as AWS does when it takes it back, without a word to what runs there.
func (f *fake) kill(job string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		if h.tags["fisub:job"] == job && h.exit == nil {
			h.reason, h.message = "Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Instance terminated due to spot interruption"
			if h.ask != nil {
				h.reason = "Host EC2 (instance i-0123456789abcdef0) terminated."
			}
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
	form, _ := url.ParseQuery(string(body))
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		op = target[strings.LastIndex(target, ".")+1:]
	} else if form.Has("Action") {
		op = form.Get("Action")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, op+" "+string(body))
	if a, ok := f.faults[op]; ok {
		f.refuse(w, form.Has("Action"), a)
		return op
	}
	if form.Has("Action") {
		f.ec2(w, op, form)
		return op
	}
	var ask map[string]any
	_ = json.Unmarshal(body, &ask)
	w.Header().Set("Content-Type", "application/json")
	if out := f.batch(op, ask); out != nil {
		_ = json.NewEncoder(w).Encode(out)
		return op
	}
	f.refuse(w, false, answer{400, "ClientException", "the fake does not know " + op})
	return op
}

func (f *fake) refuse(w http.ResponseWriter, isXML bool, a answer) {
	if isXML {
		w.WriteHeader(a.status)
		fmt.Fprintf(w, `<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>r</RequestID></Response>`, a.code, a.message)
		return
	}
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
	case "describejobs":
		all := []any{}
		for _, id := range strings1(ask["jobs"]) {
			if h := f.hosts[id]; h != nil {
				container := map[string]any{"logStreamName": h.id}
				if h.exit != nil {
					container["exitCode"] = *h.exit
				}
				all = append(all, map[string]any{"jobId": h.id, "jobName": h.name, "jobQueue": "q", "jobDefinition": "d", "status": h.state, "startedAt": 1,
					"createdAt": h.created.UnixMilli(), "statusReason": h.reason, "isTerminated": h.terminated, "isCancelled": false, "container": container})
			}
		}
		return map[string]any{"jobs": all}
	case "listjobs":
		filter := ask["filters"].([]any)[0].(map[string]any)
		name := strings1(filter["values"])[0]
		all := []any{}
		for _, id := range f.order {
			h := f.hosts[id]
			prefix, star := strings.CutSuffix(name, "*")
			if h.ask != nil && h.ask["jobQueue"] == ask["jobQueue"] && (h.name == name || star && strings.HasPrefix(h.name, prefix)) {
				all = append(all, map[string]any{"jobId": h.id, "jobName": h.name, "status": h.state})
			}
		}
		return map[string]any{"jobSummaryList": all}
	case "terminatejob":
		if h := f.hosts[text(ask["jobId"])]; h != nil {
			f.end(h, "", text(ask["reason"]), "")
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
				all = append(all, map[string]any{"jobDefinitionName": "fisub", "revision": revision, "status": "ACTIVE", "type": "container", "jobDefinitionArn": "a"})
			}
		}
		return map[string]any{"jobDefinitions": all}
	case "describecomputeenvironments":
		return map[string]any{"computeEnvironments": []any{map[string]any{"computeEnvironmentName": "env",
			"computeResources": map[string]any{"instanceTypes": []string{"p6-b200.48xlarge"}, "maxvCpus": 192}}}}
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

func (f *fake) ec2(w http.ResponseWriter, op string, form url.Values) {
	reply := func(content string, args ...any) {
		fmt.Fprintf(w, `<%sResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>`+content+`</%[1]sResponse>`, append([]any{op}, args...)...)
	}
	quote := func(s string) string {
		var b bytes.Buffer
		_ = xml.EscapeText(&b, []byte(s))
		return b.String()
	}
	item := func(h *fakeHost) string {
		tags := ""
		for k, v := range h.tags {
			tags += "<item><key>" + quote(k) + "</key><value>" + quote(v) + "</value></item>"
		}
		return fmt.Sprintf(`<item><instanceId>%s</instanceId><instanceState><code>0</code><name>%s</name></instanceState><stateReason><code>%s</code><message>%s</message></stateReason><tagSet>%s</tagSet></item>`,
			h.id, h.state, quote(h.reason), quote(h.message), tags)
	}
	switch op {
	case "RunInstances":
		if form.Get("DryRun") == "true" {
			f.refuse(w, true, answer{412, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."})
			return
		}
		h := &fakeHost{token: form.Get("ClientToken"), state: "pending", tags: map[string]string{}}
		for i := 1; form.Has(fmt.Sprintf("TagSpecification.1.Tag.%d.Key", i)); i++ {
			h.tags[form.Get(fmt.Sprintf("TagSpecification.1.Tag.%d.Key", i))] = form.Get(fmt.Sprintf("TagSpecification.1.Tag.%d.Value", i))
		}
		for _, other := range f.hosts {
			if other.token == h.token {
				reply(`<reservationId>r-1</reservationId><instancesSet>%s</instancesSet>`, item(other))
				return
			}
		}
		script, err := base64.StdEncoding.DecodeString(form.Get("UserData"))
		if err != nil || len(script) > 16<<10 {
			f.t.Errorf("user data: %d bytes, %v", len(script), err)
		}
		name := filepath.Join(f.dir, "user-data-"+strconv.Itoa(len(f.hosts)))
		if err := os.WriteFile(name, script, 0o700); err != nil {
			f.t.Error(err)
		}
		h.name, h.argv = h.tags["fisub:job"], []string{"/bin/sh", name}
		f.add(h)
		reply(`<reservationId>r-1</reservationId><instancesSet>%s</instancesSet>`, item(h))
	case "DescribeInstances":
		all := ""
		for _, id := range f.order {
			h, match := f.hosts[id], true
			for i := 1; form.Has(fmt.Sprintf("Filter.%d.Name", i)); i++ {
				var values []string
				for j := 1; form.Has(fmt.Sprintf("Filter.%d.Value.%d", i, j)); j++ {
					values = append(values, form.Get(fmt.Sprintf("Filter.%d.Value.%d", i, j)))
				}
				have := h.state
				if key, ok := strings.CutPrefix(form.Get(fmt.Sprintf("Filter.%d.Name", i)), "tag:"); ok {
					have = h.tags[key]
				}
				match = match && slices.Contains(values, have)
			}
			if match && h.ask == nil {
				all += `<item><reservationId>r-1</reservationId><instancesSet>` + item(h) + `</instancesSet></item>`
			}
		}
		reply(`<reservationSet>%s</reservationSet>`, all)
	case "TerminateInstances":
		if h := f.hosts[form.Get("InstanceId.1")]; h != nil {
			f.end(h, "shutting-down", "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
		}
		reply(`<instancesSet></instancesSet>`)
	case "GetConsoleOutput":
		log := []byte("[    0.000000] Linux version 6.8\n")
		if h := f.hosts[form.Get("InstanceId")]; h != nil {
			said, _ := os.ReadFile(h.log)
			log = append(log, said...)
		}
		reply(`<instanceId>i</instanceId><output>%s</output>`, base64.StdEncoding.EncodeToString(log))
	case "DescribeInstanceTypes":
		reply(`<instanceTypeSet><item><instanceType>p6-b200.48xlarge</instanceType><gpuInfo><gpus><item><name>B200</name><manufacturer>NVIDIA</manufacturer><count>8</count></item></gpus></gpuInfo></item></instanceTypeSet>`)
	case "DescribeCapacityReservations":
		reply(`<capacityReservationSet><item><capacityReservationId>%s</capacityReservationId><instanceType>p6-b200.48xlarge</instanceType><state>active</state><reservationType>capacity-block</reservationType><endDate>%s</endDate></item></capacityReservationSet>`,
			form.Get("CapacityReservationId.1"), time.Now().Add(2*time.Hour).UTC().Format(time.RFC3339))
	default:
		f.refuse(w, true, answer{400, "InvalidAction", "the fake does not know " + op})
	}
}

// said gives all that was asked of the fake, and all that the hosts said.
func (f *fake) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := strings.Join(f.asked, "\n")
	for _, h := range slices.Collect(maps.Values(f.hosts)) {
		log, _ := os.ReadFile(h.log)
		all += "\n" + string(log)
	}
	return all
}
