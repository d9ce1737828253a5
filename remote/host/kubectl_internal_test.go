package host

import (
	"bytes"
	"strings"
	"testing"

	"fisub/remote"
)

// The exit status at the end of the output is found, however the output is cut.
func TestFramed(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		status           int
		ended            bool
	}{
		{"words", "one\ntwo\x1e000\x1e\n", "one\ntwo", 0, true},
		{"a status", "\x1e044\x1e\n", "", 44, true},
		{"what looks like one before it", "a\x1e001\x1e\nb\x1e01\x1e\x1e255\x1e\n", "a\x1e001\x1e\nb\x1e01\x1e", 255, true},
		{"two of them", "\x1e001\x1e\n\x1e002\x1e\n", "\x1e001\x1e\n", 2, true},
		{"cut off", "one\x1e00", "one", 0, false},
		{"none", "one\n", "one\n", 0, false},
		{"nothing", "", "", 0, false},
	} {
		for size := 1; size <= max(1, len(c.text)); size++ {
			var out bytes.Buffer
			f := &framed{w: &out}
			for from := 0; from < len(c.text); from += size {
				piece := c.text[from:min(from+size, len(c.text))]
				if n, err := f.Write([]byte(piece)); n != len(piece) || err != nil {
					t.Fatalf("%s: wrote %d, %v", c.name, n, err)
				}
			}
			if status, ended := f.status(); status != c.status || ended != c.ended || out.String() != c.want {
				t.Errorf("%s, %d bytes at a time: got %q, %d, %v", c.name, size, out.String(), status, ended)
			}
		}
	}
}

// Messages of kubectl and clusters, as printed by kubectl 1.32 and 1.20.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ text, code string }{
		{`error: You must be logged in to the server (Unauthorized)`, "credentials"},
		{`Unable to connect to the server: getting credentials: exec: executable aws failed with exit code 255`,
			"credentials"},
		{`Error from server (Forbidden): pods is forbidden: User "me" cannot list resource "pods" in API group ""`,
			"credentials"},
		{`Error from server (Forbidden): error when creating "STDIN": pods "x" is forbidden: exceeded quota: gpus, ` +
			`requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8`, "quota"},
		{`Error from server (Forbidden): pods "x" is forbidden: violates PodSecurity "restricted:latest"`, "credentials"},
		{`Error from server (NotFound): error when creating "STDIN": namespaces "none" not found`, "no-such"},
		{`Error from server (NotFound): pods "x" not found`, "no-such"},
		{`error: context "none" does not exist`, "no-such"},
		{`error: cannot exec into a container in a completed pod; current phase is Succeeded`, "no-such"},
		{`Unable to connect to the server: dial tcp: lookup k8s.example: no such host`, "unreachable"},
		{`The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?`, "unreachable"},
		{`The connection to the server localhost:8080 was refused - did you specify the right host or port?`, "no-such"},
		{`error: dial tcp 10.0.0.1:443: i/o timeout`, "unreachable"},
		{`Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown authority`,
			"host-key"},
		{`error: Internal error occurred: exec failed: exec: "/bin/sh": stat /bin/sh: no such file or directory`, "image"},
	} {
		if d := Refused(c.text); d == nil || d.Code != c.code || d.Hint == "" || !strings.Contains(d.Text, c.text[:20]) {
			t.Errorf("%s: got %+v, want %s", c.text, d, c.code)
		}
	}
	if d := Refused("error: something new"); d != nil {
		t.Errorf("something new: got %+v", d)
	}
	if code := remote.CodeOf(explain(&ExitError{"kubectl", NotFound, ""})); code != "no-such" {
		t.Errorf("no kubectl: got %q", code)
	}
}
