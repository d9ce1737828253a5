package aws

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/remote"
	"fisub/remote/aws/mailbox"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
)

// Credentials that must not appear in any output, and settings that keep the tests off the cloud on any machine.
const (
	accessKey = "AKIAPLANTED0EXAMPLE0"
	secretKey = "planted-secret-4f7a1c90e2"
	region    = "us-east-1"
)

// TestMain also runs the test binary as the agent on the fakes' hosts.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "agent" && os.Args[2] == "mailbox" {
		o := mailbox.Options{Agent: remotetest.Agent(), Log: os.Stderr, Every: 50 * time.Millisecond,
			Stop: 200 * time.Millisecond}
		if err := mailbox.Main(o, os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	for key, value := range map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey,
		"AWS_REGION": region, "AWS_CONFIG_FILE": "/nonexistent",
		"AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "",
		"AWS_SESSION_TOKEN": "",
		"AWS_ENDPOINT_URL":  "http://127.0.0.1:1", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"} {
		os.Setenv(key, value)
		if value == "" {
			os.Unsetenv(key)
		}
	}
	remotetest.Main(m)
}

// tool returns the path of a program that scripts/aws/tools has put into the cache.
func tool(t *testing.T, name string) string {
	t.Helper()
	longtest.CI(t, "starts an S3 server or an emulator of AWS")
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "aws-tools", name)
	if _, err := os.Stat(path); err != nil {
		longtest.Missing(t, "aws", "no "+filepath.Base(name))
	}
	return path
}

// A cloud is a real S3 implementation behind a gate that can be shut, plus the fake of the other services.
type cloud struct {
	*fake
	s3   *s3.Client
	gate *servertest.Gate
	data string // the folder of the bucket
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	program := tool(t, "bin/versitygw")
	dir := t.TempDir()
	c := &cloud{data: filepath.Join(dir, "data", "results")}
	for _, sub := range []string{c.data, filepath.Join(dir, "meta")} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	address := servertest.Address(t)
	cmd := exec.Command(program, "--region", region, "--port", address, "--quiet", "posix", "--sidecar",
		filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	cmd.Env = []string{"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + secretKey}
	servertest.Run(t, cmd)
	c.gate = servertest.NewGate(t, address)
	c.fake = newFake(t)
	t.Setenv("AWS_ENDPOINT_URL", c.fake.url)
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+c.gate.Address)
	servertest.Until(t, "the S3 server", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	p := newProvider(t, nil)
	a, err := p.account(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c.s3 = a.s3
	return c
}

func open(name string, values map[string]any) (*Provider, error) {
	c, err := remotetest.Table[Config](name, values)
	if err != nil {
		return nil, err
	}
	return New(name, c), nil
}

// newProvider returns a provider that connects only to this machine, and polls more often than usual.
func newProvider(t *testing.T, more map[string]any) *Provider {
	t.Helper()
	table := map[string]any{"bucket": "results", "queue": "gpus", "job_definition": "fisub"}
	maps.Copy(table, more)
	p, err := open("cloud", table)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	p.poll, p.query = 50*time.Millisecond, 200*time.Millisecond
	dialer := &net.Dialer{}
	p.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if host, _, err := net.SplitHostPort(address); err != nil || !net.ParseIP(host).IsLoopback() {
			t.Errorf("a connection to %s was tried", address)
			return nil, fmt.Errorf("%s is not this machine", address)
		}
		return dialer.DialContext(ctx, network, address)
	}
	return p
}

func TestConformance(t *testing.T) {
	c := newCloud(t)
	curl, err := exec.LookPath("curl")
	if err != nil {
		longtest.Missing(t, "aws", "no curl")
	}
	// curl ends too soon to be observed, so a stand-in records its arguments.
	curled := filepath.Join(c.fake.dir, "curled")
	if err := os.WriteFile(filepath.Join(c.fake.dir, "bin", "curl"),
		fmt.Appendf(nil, "#!/bin/sh\necho curl \"$@\" >>%s\nexec %s \"$@\"\n", curled, curl), 0o755); err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int64 // connections to S3
	remotetest.Run(t, remotetest.Setup{
		New: func(t *testing.T) remote.Provider {
			p := newProvider(t, nil)
			dial := p.dial
			p.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if address == c.gate.Address {
					dials.Add(1)
				}
				return dial(ctx, network, address)
			}
			return p
		},
		Slow:     30 * time.Second,
		KillHost: func(_ *testing.T, h remote.Handle) { c.kill(h.Job) },
		Deaf: func(t *testing.T, cancel func()) remote.Provider {
			c.after = func(op string) bool {
				if op == "submitjob" {
					cancel()
				}
				return op == "submitjob"
			}
			t.Cleanup(func() { c.after = nil })
			return newProvider(t, nil)
		},
		Secrets: []string{accessKey, secretKey, "X-Amz-"},
		Output: func() string {
			text, err := os.ReadFile(curled)
			if err != nil || !strings.Contains(string(text), "curl -q ") {
				t.Errorf("command lines of curl: got %q, %v", text, err)
			}
			return c.consoles() + string(text)
		},
		Cut: func(t *testing.T) {
			c.gate.Shut(true)
			defer c.gate.Shut(false)
			// The SDK tries each request three times, so the fifth connection belongs to a second request.
			for first := dials.Load(); dials.Load() < first+5; time.Sleep(10 * time.Millisecond) {
				if t.Context().Err() != nil {
					return
				}
			}
		},
	})
	ctx := t.Context()
	b := &bucket{c.s3, "results"}
	for prefix, want := range map[string]bool{"fisub/jobs/": false, "fisub/store/": true} {
		out, err := b.s3.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: aws.String(prefix)})
		if err != nil || (len(out.Contents) > 0) != want {
			t.Errorf("after all jobs below %s: got %d objects, %v", prefix, len(out.Contents), err)
		}
	}
	// Batch gets the link to the list of links. It is signed, and so names the access key, but not the secret one.
	if strings.Contains(strings.Join(c.asked, "\n"), secretKey) {
		t.Error("the secret key was sent")
	}
}
