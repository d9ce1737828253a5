package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/follow"
	"fisub/remote/host"
)

// An item holds the fields of a Job or pod that fisub reads.
type item struct {
	Kind     string
	Metadata struct {
		Name, Namespace, UID string
		Labels, Annotations  map[string]string
		DeletionTimestamp    *time.Time
	}
	Spec   struct{ Suspend bool }
	Status struct {
		Phase, Reason, Message string
		Conditions             []struct{ Type, Status, Reason, Message string }
		ContainerStatuses      []struct {
			Name, ContainerID string
			State, LastState  struct {
				Waiting    *struct{ Reason, Message string }
				Running    *struct{}
				Terminated *struct {
					Reason, Message string
					ExitCode        int
				}
			}
		}
	}
}

// condition returns the reason and message of a condition; ok reports whether it has that status.
func (i *item) condition(kind, status string) (reason, message string, ok bool) {
	for _, c := range i.Status.Conditions {
		if c.Type == kind && c.Status == status {
			return c.Reason, c.Message, true
		}
	}
	return "", "", false
}

// at returns the index in ContainerStatuses of the container with that name ("" for the first), or -1.
func (i *item) at(name string) int {
	for n, c := range i.Status.ContainerStatuses {
		if name == "" || c.Name == name {
			return n
		}
	}
	return -1
}

// containerID returns the node's id for the container, "" if it has not started. A restart changes the id.
func (i *item) containerID(name string) string {
	if n := i.at(name); n >= 0 {
		return i.Status.ContainerStatuses[n].ContainerID
	}
	return ""
}

func (i *item) over() bool { return i.Status.Phase == "Succeeded" || i.Status.Phase == "Failed" }

// running reports whether commands can run in the container.
func (i *item) running(name string) bool {
	n := i.at(name)
	return n >= 0 && !i.over() && i.Status.ContainerStatuses[n].State.Running != nil
}

// waiting returns the reason why a pod does not run yet.
func (i *item) waiting() string {
	if reason, message, ok := i.condition("PodScheduled", "False"); ok {
		return reason + ": " + message
	}
	if n := i.at(""); n >= 0 {
		if w := i.Status.ContainerStatuses[n].State.Waiting; w != nil {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	return ""
}

// stuck maps reasons that keep a container waiting forever to hints.
var stuck = map[string]string{
	"ImagePullBackOff":           "check the image's name and pull_secret (kubectl describe pod)",
	"InvalidImageName":           "write image = \"REGISTRY/NAME:TAG\"",
	"ErrImageNeverPull":          "the node must have the image, or be allowed to pull it",
	"CreateContainerConfigError": "see kubectl describe pod; user = 1000 may be required",
	"CreateContainerError":       "kubectl describe pod shows why",
	"RunContainerError":          "the image must have a shell, /bin/sh",
}

// hopeless returns an error if the pod will never run.
func (i *item) hopeless() error {
	for _, c := range i.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && stuck[w.Reason] != "" {
			return &remote.Denied{Code: "image", Text: w.Reason + ": " + plain.Brief(w.Message, 500), Hint: stuck[w.Reason]}
		}
		if d := c.State.Terminated; d != nil && strings.HasPrefix(d.Reason, "StartError") {
			return &remote.Denied{Code: "image", Text: d.Reason + ": " + plain.Brief(d.Message, 500),
				Hint: stuck["RunContainerError"]}
		}
	}
	if i.over() {
		exit := i.exit()
		return &remote.Denied{Code: "capacity", Text: exit.Text, Hint: exit.Hint}
	}
	return nil
}

// exit returns the exit of a job that wrote none, because its pod is over or its container was restarted.
func (i *item) exit() remote.Exit {
	s := i.Status
	var words []string
	say := func(reason, message string, code int) {
		if code != 0 && message == "" {
			message = fmt.Sprintf("status %d", code)
		}
		if text := strings.TrimSuffix(strings.TrimPrefix(reason+": "+message, ": "), ": "); text != "" {
			words = append(words, plain.Brief(text, 500))
		}
	}
	say(s.Reason, s.Message, 0)
	if reason, message, ok := i.condition("DisruptionTarget", "True"); ok && s.Reason == "" {
		say(reason, message, 0)
	}
	for _, c := range s.ContainerStatuses {
		if d := cmp.Or(c.State.Terminated, c.LastState.Terminated); d != nil && s.Reason == "" {
			say(d.Reason, d.Message, d.ExitCode)
		}
	}
	what := "the pod ended"
	if !i.over() {
		what = "the pod was restarted"
	}
	e := remote.Exit{End: remote.Lost, Text: strings.Join(append([]string{what}, words...), ": "),
		Hint: another}
	switch {
	case s.Reason == "DeadlineExceeded":
		e.End = remote.Limited
	case strings.Contains(e.Text, "OOMKilled"):
		e.Hint = "raise memory"
	}
	return e
}

// A found holds a job's objects; nil if absent.
type found struct {
	job *item // nil in a table with pod
	pod *item
}

func (p *Provider) get(ctx context.Context, args ...string) ([]item, error) {
	out := &plain.Buffer{Limit: 256 << 20}
	if err := p.kubectl.Do(ctx, nil, out, append([]string{"get", "--output=json"}, args...)...); err != nil {
		return nil, err
	}
	var list struct {
		item
		Items []item
	}
	if text := bytes.TrimSpace(out.Bytes()); len(text) == 0 {
		return nil, nil
	} else if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("kubectl get: %w", err)
	}
	if list.Kind != "List" && list.Kind != "" && !strings.HasSuffix(list.Kind, "List") {
		return []item{list.item}, nil
	}
	return list.Items, nil
}

// find returns the objects of a job. A pod becomes the job's host.
func (p *Provider) find(ctx context.Context, d *data) (f found, err error) {
	args := []string{"jobs.batch,pods", "--selector=" + labelName + "=" + d.Name}
	if d.Name == "" {
		args = []string{"pods", d.Pod, "--ignore-not-found"}
	}
	all, err := p.get(ctx, args...)
	for n := range all {
		switch i := &all[n]; i.Kind {
		case "Job":
			f.job = i
		case "Pod":
			if f.pod == nil || f.pod.over() {
				f.pod = i
			}
		}
	}
	if f.pod != nil {
		d.Host = p.at(f.pod.Metadata.Name).Host
	}
	return f, err
}

// refused returns the reason in the Job's events why the cluster creates no pod. It returns "" if there are no such
// events or the user may not read them.
func (p *Provider) refused(ctx context.Context, d *data) string {
	out := &plain.Buffer{Limit: 1 << 20}
	err := p.kubectl.Do(ctx, nil, out, "get", "events", "--field-selector=reason=FailedCreate,involvedObject.kind=Job,"+
		"involvedObject.name="+d.Name, "--output=jsonpath={.items[-1:].message}")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out.String())
}

// reason is how much longer than pending a busy cluster may take to report why a pod does not run.
const reason = time.Minute

// A pending is the follow.Source of a Job until its pod runs, to which the bundle can then be sent.
type pending struct {
	source
	until time.Time
	last  string // why it does not run
}

// wait waits until a pod of the Job runs, and reports the reason for waiting.
func (p *Provider) wait(ctx context.Context, d *data, tell func(remote.Stage)) (*item, error) {
	s := &pending{source{p: p, data: d}, time.Now().Add(p.config.Pending), "it has no pod"}
	rules := follow.Rules{Tail: true, Read: p.pace, Slow: 20 * p.pace, Away: p.config.Pending}
	_, err := follow.Wait(ctx, s, rules, 0, teller(tell))
	return s.pod, err
}

// A teller is the Watcher of a job without a stream. It may be nil.
type teller func(remote.Stage)

func (t teller) State(s remote.Stage) {
	if t != nil {
		t(s)
	}
}

func (t teller) Write(p []byte) (int, error) { return len(p), nil }

// Status implements follow.Source.
func (s *pending) Status(ctx context.Context) (is follow.Status, err error) {
	is.Stage.Phase = remote.Queued
	s.found, err = s.p.find(ctx, s.data)
	switch {
	case remote.CodeOf(err) == "unreachable":
		return is, err
	case err != nil:
	case s.job == nil:
		err = &remote.Denied{Code: "no-such", Text: "its Job was deleted while waiting"}
	case s.running():
		return follow.Status{}, nil
	case s.pod != nil:
		err = s.pod.hopeless()
		if s.last = s.pod.waiting(); !strings.HasPrefix(s.last, "Unschedulable") {
			is.Stage.Phase = remote.Starting
		}
	case s.job.Spec.Suspend:
		s.last = "suspended, until queue " + s.p.config.Queue + " admits it"
	default:
		if why := s.p.refused(ctx, s.data); why != "" {
			err = cmp.Or(host.Refused(why), &remote.Denied{Code: "capacity", Text: plain.Brief(why, 1000),
				Hint: "kubectl describe job " + s.Name + " shows more"})
		}
	}
	if message, failed := failure(s.job); err == nil && failed {
		err = &remote.Denied{Code: "capacity", Text: message}
	}
	if over := time.Since(s.until); err == nil && (over > 0 && s.last != "" || over > reason) {
		err = &remote.Denied{Code: "capacity", Text: fmt.Sprintf("no pod runs after %v: %s", s.p.config.Pending, s.last),
			Hint: "check gpu, node_selector and tolerations (kubectl describe nodes), or raise pending"}
	}
	if is.Stage.Text = s.last; err != nil {
		err = &follow.FinalError{Err: err}
	}
	return is, err
}

// Read implements follow.Source: a pod that runs ends the wait.
func (s *pending) Read(context.Context, int64, remote.Watcher) (follow.Part, error) {
	if s.running() {
		return follow.Whole, nil
	}
	return follow.Absent, nil
}

// Exit implements follow.Source.
func (s *pending) Exit(context.Context) (*remote.Exit, error) {
	return &remote.Exit{End: remote.Exited}, nil
}

// failure returns why the cluster gave up a Job; ok reports whether it did.
func failure(job *item) (message string, ok bool) {
	if job != nil {
		_, message, ok = job.condition("Failed", "True")
	}
	return message, ok
}
