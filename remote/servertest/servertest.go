// Package servertest starts servers for tests, and handles files for them.
package servertest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Until waits for cond, and fails the test after three minutes.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// Write writes a file that only its owner can access. It creates the folder if it is missing.
func Write(t testing.TB, path, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(content), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Read returns the content of a file.
func Read(t testing.TB, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Address returns a free address of this machine. Its port is below those that the kernel chooses by itself: another
// connection could take such a port before the server does.
func Address(t testing.TB) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port from 10000 to 31999")
	return ""
}

// Run starts a server that ends with the test. Its output is shown if the test fails.
func Run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", cmd.Path, text[max(0, len(text)-3000):])
		}
	})
}

// A Gate forwards connections to a server while it is open.
type Gate struct {
	Address string

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
}

// NewGate opens a gate to the server at that address.
func NewGate(t testing.TB, server string) *Gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{Address: l.Addr().String(), conns: map[net.Conn]bool{}}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { g.pass(in, server) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		g.Shut(true)
		group.Wait()
	})
	return g
}

func (g *Gate) pass(in net.Conn, server string) {
	defer in.Close()
	g.mu.Lock()
	shut := g.shut
	g.conns[in] = true
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.conns, in)
		g.mu.Unlock()
	}()
	out, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer out.Close()
	if shut {
		return
	}
	var group sync.WaitGroup
	group.Go(func() {
		_, _ = io.Copy(out, in)
		out.Close()
	})
	_, _ = io.Copy(in, out)
	in.Close()
	group.Wait()
}

// Shut ends all connections and rejects new ones, or opens the gate again.
func (g *Gate) Shut(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	for c := range g.conns {
		if shut {
			c.Close()
		}
	}
}
