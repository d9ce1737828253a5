package work

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fisub/remote"
	"fisub/remote/host"
)

func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"2.28", "2.28", 0}, {"2.28", "2.3.4", 1}, {"2.2.5", "2.17", -1}, {"2.34", "", 1}, {"2.28", "2.28.1", -1}, {"", "", 0}} {
		if got := compareVersions(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// aged is a host that says of itself what it is told to, and that nothing may be sent to.
type aged struct {
	host.Host
	t    *testing.T
	says string
}

func (h aged) Run(_ context.Context, argv []string, _ io.Reader, stdout io.Writer) error {
	if strings.Contains(argv[2], "uname") {
		_, err := io.WriteString(stdout, h.says+"\n/home/me/work\nFilesystem 1K-blocks Used Available\n/dev/sda 100 1 1000000 1% /\n")
		return err
	}
	return errors.New("enough asked")
}

func (h aged) Put(context.Context, string, io.Reader, fs.FileMode) error {
	h.t.Error("something was sent")
	return nil
}

// A host whose C library is too old for what it would get is told so before anything is sent.
func TestOldHost(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "k.c"), filepath.Join(dir, "k.so")
	if err := os.WriteFile(source, []byte("#include <string.h>\nvoid *f(void *a, void *b, long n) { return memcpy(a, b, n); }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", lib, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	need := glibc(lib)
	if compareVersions(need, "2") < 0 || glibc(source) != "" {
		t.Fatalf("got %q of a library and %q of its source, want a version and none", need, glibc(source))
	}
	files := []remote.File{{Name: "prebuilt/k.c", Path: source}, {Name: "prebuilt/k.so", Path: lib}}
	for says, old := range map[string]bool{
		"Linux x86_64 glibc 2.0":     true,
		"Linux x86_64 glibc " + need: false,
		"Linux x86_64 glibc 9.99":    false,
		"Linux x86_64":               false,
	} {
		facts, err := New(aged{t: t, says: says}, "gpu01", "work").Send(t.Context(), files, nil)
		var denied *remote.Denied
		if got := errors.As(err, &denied); got != old || old && !strings.Contains(denied.Text, "k.so asks for glibc "+need) {
			t.Errorf("%s: got %v", says, err)
		}
		if !old && (facts == nil || facts.System != "Linux x86_64") {
			t.Errorf("%s: got %+v", says, facts)
		}
	}
}
