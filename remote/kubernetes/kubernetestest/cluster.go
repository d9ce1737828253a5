// Package kubernetestest starts a one-node Kubernetes on this machine for tests. The etcd, API server, scheduler and
// controller manager are real and listen on loopback. A fake kubelet runs pods as processes of this machine; its GPUs
// are only counted. It needs root for the namespaces of pods, and the tools installed by scripts/kubernetes/tools.
package kubernetestest

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/remote/servertest"
)

// A Cluster runs until the test ends.
type Cluster struct {
	Kubeconfig string // of the administrator, through the proxy that Cut cuts
	Scratch    string // path of a tmpfs that is private to each pod
	Node       string

	t       testing.TB
	dir     string
	server  string // of the API, without the proxy
	client  *http.Client
	kubelet *kubelet
	proxy   *servertest.Gate
}

// Tokens of the administrator, and of a user without any rights.
const (
	adminToken  = "admin-token"
	NobodyToken = "nobody-token"
)

// Start starts a cluster. It skips the test, with the reason, if this machine cannot run one.
func Start(t testing.TB) *Cluster {
	t.Helper()
	longtest.CI(t, "starts a cluster of Kubernetes")
	if os.Geteuid() != 0 {
		t.Skip("kubernetes: starting a cluster takes root, for the namespaces of pods")
	}
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	tools := map[string]string{}
	own := filepath.Join(root, "kubernetes-tools")
	t.Setenv("PATH", own+":"+os.Getenv("PATH"))
	for _, name := range []string{"unshare", "nsenter", "etcd", "kubectl", "kube-apiserver", "kube-controller-manager",
		"kube-scheduler"} {
		if tools[name], err = exec.LookPath(name); err != nil {
			longtest.Missing(t, "kubernetes", "no "+name)
		}
	}
	c := &Cluster{t: t, dir: t.TempDir(), Node: "node1"}
	c.Scratch = c.path("scratch")
	c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(c.client.CloseIdleConnections)
	etcd, peer, api := "http://"+servertest.Address(t), "http://"+servertest.Address(t), servertest.Address(t)
	c.server = "https://" + api
	c.write("tokens", adminToken+",admin,admin,system:masters\n"+NobodyToken+",nobody,nobody\n")
	c.write("key", key(t))
	c.run(tools["etcd"], "--data-dir="+c.path("etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--unsafe-no-fsync", "--log-level=error")
	_, port, _ := net.SplitHostPort(api)
	c.run(tools["kube-apiserver"], "--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--cert-dir="+c.path("certs"), "--token-auth-file="+c.path("tokens"), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.99.0.0/24", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("key"), "--service-account-signing-key-file="+c.path("key"),
		"--disable-admission-plugins=TaintNodesByCondition", "--endpoint-reconciler-type=none")
	c.proxy = servertest.NewGate(t, api)
	c.Kubeconfig = c.Config(adminToken, "")
	direct := c.Config(adminToken, c.server)
	servertest.Until(t, "the API server", func() bool { return c.Do("GET", "/readyz", "", nil, nil) == nil })
	c.run(tools["kube-controller-manager"], "--kubeconfig="+direct, "--leader-elect=false", "--secure-port=0",
		"--use-service-account-credentials=false", "--concurrent-resource-quota-syncs=1", "--controllers=job-controller,"+
			"ttl-after-finished-controller,serviceaccount-controller,namespace-controller,resourcequota-controller,"+
			"garbage-collector-controller,persistentvolume-binder-controller")
	c.run(tools["kube-scheduler"], "--kubeconfig="+direct, "--leader-elect=false", "--secure-port=0")
	c.kubelet = startKubelet(c)
	servertest.Until(t, "the default service account", func() bool {
		return c.Do("GET", "/api/v1/namespaces/default/serviceaccounts/default", "", nil, nil) == nil
	})
	return c
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func key(t testing.TB) string {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

func (c *Cluster) run(program string, args ...string) {
	cmd := exec.Command(program, args...)
	cmd.Dir = c.dir
	servertest.Run(c.t, cmd)
}

// Config writes the kubeconfig of the user with that token and returns its path. server "" selects the proxy.
func (c *Cluster) Config(token, server string) string {
	c.t.Helper()
	f, err := os.CreateTemp(c.dir, "kubeconfig")
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintf(f, `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test, namespace: default}}]
users: [{name: test, user: {token: %s}}]
clusters:
- name: test
  cluster:
    insecure-skip-tls-verify: true
    server: %s
`, token, cmp.Or(server, "https://"+c.proxy.Address))
	return f.Name()
}

// Cut ends all connections to the API server, and rejects new ones for that time.
func (c *Cluster) Cut(d time.Duration) {
	c.proxy.Shut(true)
	time.Sleep(d)
	c.proxy.Shut(false)
}

// Do sends a request to the API server as the administrator. kind is the content type of in, "" for JSON. out may be
// nil.
func (c *Cluster) Do(method, path, kind string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, c.server+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", cmp.Or(kind, "application/json"))
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	return err
}

// Kubectl runs kubectl as the administrator and returns its output.
func (c *Cluster) Kubectl(stdin string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command("kubectl", append([]string{"--kubeconfig=" + c.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Claim creates a volume claim backed by a folder of this machine, and returns the folder.
func (c *Cluster) Claim(name string) (dir string) {
	c.t.Helper()
	dir = c.path("claims/" + name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	c.Kubectl(fmt.Sprintf(`{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": %[1]q}, "spec": {"capacity": {"storage": "1Gi"},
 "accessModes": ["ReadWriteMany"], "hostPath": {"path": %[2]q}, "storageClassName": "",
 "claimRef": {"namespace": "default", "name": %[1]q}}},
{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %[1]q}, "spec": {"storageClassName": "",
 "accessModes": ["ReadWriteMany"], "volumeName": %[1]q, "resources": {"requests": {"storage": "1Gi"}}}}]}`,
		name, dir), "create", "-f", "-")
	return dir
}
