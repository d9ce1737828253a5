package host

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
)

// A Pod is a container of a Kubernetes pod in which kubectl runs commands. It needs a shell and the core utilities.
type Pod struct {
	Kubectl   Kubectl
	Name      string
	Container string // "" for the pod's default container
}

// A Kubectl holds the flags of kubectl that choose the cluster and the namespace.
type Kubectl []string

// patience is the timeout of a request to the API server.
const patience = 30 * time.Second

// Do runs a kubectl command. Errors that the user can fix are *remote.Denied.
func (k Kubectl) Do(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	limited, cancel := context.WithTimeoutCause(ctx, 2*patience, fmt.Errorf("kubectl: timeout after %v", 2*patience))
	defer cancel()
	argv := append(append([]string{"kubectl"}, k...), args[0], "--request-timeout="+patience.String())
	err := Local{}.Run(limited, append(argv, args[1:]...), stdin, stdout)
	if limited.Err() != nil && ctx.Err() == nil {
		return &remote.Denied{Code: "unreachable", Text: err.Error(), Hint: "see kubectl get pods"}
	}
	return explain(err)
}

// Run runs a command in the container. Files that it creates are private to the user.
func (p *Pod) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	args := append(append([]string{"kubectl"}, p.Kubectl...), "exec", p.Name)
	if p.Container != "" {
		args = append(args, "--container="+p.Container)
	}
	if stdin != nil {
		args = append(args, "--stdin")
	}
	script := marked("", argv, `; s=$?; printf '\036%03d\036\n' $s; exit $s`)
	running, stop := context.WithCancel(ctx)
	defer stop()
	frame := &framed{w: cmp.Or(stdout, io.Discard)}
	out := &unmarked{tap: tap{w: frame, stop: stop}}
	err := Local{}.Run(running, append(args, "--", "/bin/sh", "-c", script), stdin, out)
	said, stderr := "", ""
	failed, ok := errors.AsType[*ExitError](err)
	if ok {
		failed.Stderr = ended.ReplaceAllString(failed.Stderr, "")
		said, stderr = failed.Error(), failed.Stderr
	}
	switch status, ended := frame.status(); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case out.err != nil:
		return out.err
	case ended && status == 0:
		return nil
	case ended:
		return &ExitError{argv[0], status, stderr}
	case out.found:
		return &LostError{Text: cmp.Or(said, "kubectl exec ended before the command")}
	case err == nil:
		return &LostError{Text: "no output from the container's shell"}
	case !ok: // reading stdin failed
		return err
	}
	return explain(err)
}

// Close does nothing: there is no connection.
func (p *Pod) Close() error { return nil }

// ended matches kubectl's message about a command's exit status.
var ended = regexp.MustCompile(`(?m)^command terminated with exit code \d+\n?`)

// framed passes on the output before the command's exit status, which the shell prints last. If that is missing, the
// connection was lost, whatever kubectl reports.
type framed struct {
	w    io.Writer
	kept []byte // the status, or a possible beginning of it
}

var trailer = regexp.MustCompile(`\x1e(\d{0,3}|\d{3}\x1e\n?)$`)

func (f *framed) Write(p []byte) (int, error) {
	text := append(f.kept, p...)
	at, last := len(text), text[max(0, len(text)-6):]
	if found := trailer.FindIndex(last); found != nil {
		at -= len(last) - found[0]
	}
	f.kept = bytes.Clone(text[at:])
	if at > 0 {
		if _, err := f.w.Write(text[:at]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (f *framed) status() (status int, ended bool) {
	if len(f.kept) != 6 {
		return 0, false
	}
	status, err := strconv.Atoi(string(f.kept[1:4]))
	return status, err == nil
}

// faults maps error messages of kubectl to error codes and hints. The first match counts.
var faults = []struct{ words, code, hint string }{
	{`exceeded quota`, "quota", "wait until other pods have ended, or request a higher quota (kubectl describe quota)"},
	{`violates PodSecurity|denied the request`, "credentials",
		"the cluster forbids such pods: ask its administrators, or use an existing pod with pod = \"NAME\""},
	{`(?i)namespaces? .* not found`, "no-such", "kubectl get namespaces; set namespace in the table"},
	{`(?i)forbidden`, "credentials", "set namespace, or ask for permission (kubectl auth can-i --list)"},
	{`Unauthorized|must be logged in|getting credentials|[Tt]oken.*expired|asked for the client to provide credentials`,
		"credentials", "log in to the cluster again: kubectl get pods must work without a prompt"},
	{`x509|certificate`, "host-key", "the kubeconfig does not trust the cluster's certificate: get a new kubeconfig"},
	{`context .* does not exist|no context exists|current-context|invalid configuration|error loading config|` +
		`localhost:8080|(?m)^error: stat .*no such file`, "no-such",
		"kubectl config get-contexts; set context in the table, or KUBECONFIG"},
	{`/bin/sh.*(no such file|not found)|(no such file|not found).*/bin/sh`, "image", "the image must contain a shell"},
	{`completed pod|container not found|pod does not exist|NotFound|container .* is not valid`, "no-such",
		"kubectl get pods lists running pods"},
	{`(?i)unable to connect|refused|no such host|timeout|timed out|deadline exceeded|unreachable|reset by peer|EOF|` +
		`broken pipe|unavailable|etcdserver|try again|too many requests|internal error|dialing backend|upgrade connection`,
		"unreachable", "see kubectl get pods"},
}

// Refused returns a *remote.Denied for a message from a cluster, or nil if the message is unknown.
func Refused(text string) *remote.Denied {
	for _, f := range faults {
		if regexp.MustCompile(f.words).MatchString(text) {
			return &remote.Denied{Code: f.code, Text: plain.Brief(text, 1000), Hint: f.hint}
		}
	}
	return nil
}

// explain turns an error of kubectl into a *remote.Denied if its message is known.
func explain(err error) error {
	var failed *ExitError
	if !errors.As(err, &failed) {
		return err
	}
	if failed.Status == NotFound && failed.Stderr == "" {
		return &remote.Denied{Code: "no-such", Text: failed.Error(), Hint: "install kubectl: kubernetes.io/docs/tasks/tools"}
	}
	if denied := Refused(failed.Stderr); denied != nil {
		denied.Text = failed.Error()
		return denied
	}
	return err
}
