package plain

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// FIFOs, devices and sockets are refused at once, also behind links. A test that waits is ended by go test.
func TestOpenKinds(t *testing.T) {
	t.Chdir(t.TempDir()) // the path of a socket is short
	if err := errors.Join(syscall.Mkfifo("fifo", 0o600), os.Symlink("fifo", "link"),
		os.Symlink("/dev/zero", "zero")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, test := range []struct{ path, want string }{
		{"fifo", "open fifo: is a FIFO, not a regular file"},
		{"link", "open link: is a FIFO, not a regular file"},
		{"zero", "open zero: is a device, not a regular file"},
		{"/dev/null", "open /dev/null: is a device, not a regular file"},
		{"socket", "open socket: is a socket, not a regular file"},
	} {
		for _, flag := range []int{os.O_RDONLY, os.O_CREATE | os.O_APPEND | os.O_WRONLY, os.O_CREATE | os.O_RDWR} {
			f, err := OpenFile(test.path, flag, 0o600)
			if err == nil {
				f.Close()
			}
			var kind *KindError
			if err == nil || err.Error() != test.want || !errors.As(err, &kind) {
				t.Errorf("%s, flags %#x: got %v, want %s", test.path, flag, err, test.want)
			}
		}
		if _, err := ReadFile(test.path, 1000); err == nil || err.Error() != test.want {
			t.Errorf("reading %s: got %v, want %s", test.path, err, test.want)
		}
	}
}

func TestOpenFiles(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	if _, err := Open(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want a missing file", err)
	}
	f, err := OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("text"); err != nil {
		t.Error(err)
	}
	f.Close()
	if got, err := ReadFile(name, 4); err != nil || string(got) != "text" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := ReadFile(name, 3); err == nil || !strings.Contains(err.Error(), "more than the limit of 3 bytes") {
		t.Errorf("got %v, want the limit", err)
	}
	if _, err := ReadFile(dir, 100); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("got %v, want a folder", err)
	}
}

// A shell's <(command) is a path of a pipe's descriptor.
func TestOpenDescriptor(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		_, _ = io.WriteString(w, "text")
		w.Close()
	}()
	if got, err := ReadFile("/dev/fd/"+strconv.Itoa(int(r.Fd())), 100); err != nil || string(got) != "text" {
		t.Errorf("got %q, %v, want text", got, err)
	}
}
