package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/sftp"

	"fisub/remote"
)

// options are those of every ssh. What stands here the user's config cannot change: host keys are checked, nothing is asked,
// nothing is forwarded, and a connection that is gone is noticed within 15 seconds.
var options = []string{"-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
	"-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR", "-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "ClearAllForwardings=yes",
	"-o", "RequestTTY=no", "-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none", "-o", "ControlPersist=no"}

// A host is one that jobs run on. All its sessions share one connection: the master, an ssh process that lives as long as this
// process holds the other end of its input.
type host struct {
	table  string
	name   string // as the config has it
	config string // for ssh -F; "" for the user's own
	dir    string // private, for sockets

	mu     sync.Mutex
	number int
	master *master
}

type master struct {
	socket string
	stdin  io.Closer
	cmd    *exec.Cmd
	exited chan struct{}
}

// destination is what ssh calls the host.
func (h *host) destination() string {
	if strings.Contains(h.name, ":") {
		return "ssh://" + h.name
	}
	return h.name
}

func (h *host) args(socket, mode string, rest ...string) []string {
	all := append([]string{}, options...)
	if h.config != "" {
		all = append(all, "-F", h.config)
	}
	all = append(all, "-o", "ControlMaster="+mode, "-o", "ControlPath="+socket)
	return append(all, rest...)
}

// command prepares an ssh for remote.Start.
func command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ssh", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// connect gives the socket of a connection that stands.
func (h *host) connect(ctx context.Context) (socket string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.master != nil {
		select {
		case <-h.master.exited:
			h.master.stdin.Close()
			h.master = nil
		default:
			return h.master.socket, nil
		}
	}
	h.number++
	m := &master{socket: filepath.Join(h.dir, fmt.Sprintf("%s-%d", safe(h.name), h.number)), exited: make(chan struct{})}
	m.cmd = command(context.WithoutCancel(ctx), h.args(m.socket, "yes", "--", h.destination(), "exec cat >/dev/null"))
	var said capped
	m.cmd.Stderr = &said
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return "", err
	}
	if err := remote.Start(m.cmd); err != nil {
		return "", h.denied("no-such", err.Error(), "apt-get install openssh-client")
	}
	go func() {
		_ = m.cmd.Wait()
		close(m.exited)
	}()
	for {
		select {
		case <-m.exited:
			return "", h.explain(said.String())
		case <-ctx.Done():
			m.close()
			return "", ctx.Err()
		case <-time.After(2 * time.Millisecond):
			if _, err := os.Stat(m.socket); err == nil {
				h.master = m
				return m.socket, nil
			}
		}
	}
}

func (m *master) close() {
	m.stdin.Close()
	select {
	case <-m.exited:
	case <-time.After(2 * time.Second):
		_ = m.cmd.Process.Kill()
		<-m.exited
	}
}

func (h *host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.master != nil {
		h.master.close()
		h.master = nil
	}
}

// safe makes a short file name of a host's: sockets have room for a hundred bytes.
func safe(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' {
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), 20)]
}

// A gone error says that the connection, not the command, failed.
type gone struct{ text string }

func (e *gone) Error() string { return "connection lost: " + e.text }

// A status is the error of a command that ended with another status than 0.
type status struct {
	code int
	text string
}

func (e *status) Error() string { return fmt.Sprintf("exit status %d: %s", e.code, e.text) }

// marker ends what a login shell's startup files may print.
const marker = "\x1efisub\x1e\n"

// run runs a script of one line in /bin/sh on the host. stdin and stdout may be nil. The error is a *gone or *remote.Denied
// where the connection failed, a *status where the script did.
func (h *host) run(ctx context.Context, script string, stdin io.Reader, stdout io.Writer) error {
	socket, err := h.connect(ctx)
	if err != nil {
		return err
	}
	script = `umask 077; printf '\036fisub\036\n'; ` + script
	cmd := command(ctx, h.args(socket, "no", "--", h.destination(), "exec /bin/sh -c "+quote(script)))
	if stdout == nil {
		stdout = io.Discard
	}
	out := &unmarked{w: stdout}
	var said capped
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, &said
	if err = remote.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	text := strings.TrimSpace(said.String())
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case out.err != nil:
		return out.err
	case err == nil && !out.found:
		return &gone{"no word from the host's shell"}
	case err == nil:
		return nil
	case errors.As(err, &exit) && out.found && exit.ExitCode() != 255 && exit.Exited():
		return &status{exit.ExitCode(), text}
	case errors.As(err, &exit):
		if text == "" {
			text = "ssh: " + err.Error()
		}
		if denied := h.explain(text); !out.found && denied != nil {
			return denied
		}
		return &gone{text}
	}
	return err
}

// quote makes one word for a shell of text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// sftp opens a session for files; done ends it.
func (h *host) sftp(ctx context.Context) (client *sftp.Client, done func(), err error) {
	socket, err := h.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := command(ctx, h.args(socket, "no", "-s", "--", h.destination(), "sftp"))
	var said capped
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = remote.Start(cmd)
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	end := func() {
		in.Close()
		cancel()
		_ = cmd.Wait()
	}
	client, err = sftp.NewClientPipe(out, in, sftp.UseConcurrentWrites(true), sftp.MaxPacketUnchecked(1<<17))
	if err != nil {
		end()
		if text := err.Error(); strings.Contains(text, "packet too long") {
			return nil, nil, h.denied("no-such", "sftp: "+text, "the shell's startup files on the host must not print anything where there is no terminal")
		}
		return nil, nil, &gone{strings.TrimSpace(said.String() + " " + err.Error())}
	}
	return client, func() { client.Close(); end() }, nil
}

// capped keeps the first 16 KiB.
type capped struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.b.Write(p[:min(len(p), max(0, 16<<10-c.b.Len()))])
	return len(p), nil
}

func (c *capped) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

// unmarked passes on what comes behind the marker.
type unmarked struct {
	w     io.Writer
	head  []byte
	found bool
	err   error
}

func (u *unmarked) Write(p []byte) (int, error) {
	n := len(p)
	if !u.found {
		u.head = append(u.head, p...)
		at := bytes.Index(u.head, []byte(marker))
		if at < 0 {
			if len(u.head) > 1<<20 {
				u.err = errors.New("the shell's startup files print more than 1 MiB")
				return 0, u.err
			}
			return n, nil
		}
		u.found = true
		p, u.head = u.head[at+len(marker):], nil
	}
	if len(p) > 0 {
		if _, err := u.w.Write(p); err != nil {
			u.err = err
			return 0, err
		}
	}
	return n, nil
}

func (h *host) denied(code, text, hint string) error {
	return &remote.Denied{Code: code, Provider: h.table, Host: h.name, Text: text, Hint: hint}
}

// explain makes an error of what ssh said when it could not connect.
func (h *host) explain(said string) error {
	text := strings.TrimSpace(said)
	var words []string
	for line := range strings.Lines(text) {
		line = strings.Trim(strings.TrimSpace(line), "@ ")
		if line != "" {
			words = append(words, line)
		}
	}
	text = strings.Join(words, "; ")
	if len(text) > 500 {
		text = text[:500] + "..."
	}
	has := func(s string) bool { return strings.Contains(said, s) }
	switch {
	case has("HOST IDENTIFICATION HAS CHANGED"):
		return h.denied("host-key", "its host key has changed: "+text, "somebody may listen in; if the host was installed anew: ssh-keygen -R "+h.name+", then ssh "+h.name)
	case has("Host key verification failed"), has("host key is known"):
		return h.denied("host-key", "its host key is not known: "+text, "ssh "+h.name+" once by hand, and compare the fingerprint")
	case has("Permission denied"), has("Too many authentication failures"), has("no such identity"):
		return h.denied("credentials", text, "ssh "+h.name+" must work without a question: ssh-add the key, or name it in ~/.ssh/config")
	case has("Could not resolve hostname"), has("Connection refused"), has("timed out"), has("No route to host"), has("Network is unreachable"),
		has("Connection closed"), has("Connection reset"), has("kex_exchange_identification"):
		return h.denied("unreachable", text, "is the name right, and the host up? ssh "+h.name)
	case has("Bad configuration option"), has("Can't open user config file"), has("terminating,"):
		return h.denied("no-such", text, "ssh -G "+h.name+" shows what the config says")
	case text == "":
		text = "ssh ended without a word"
	}
	return h.denied("unreachable", text, "ssh "+h.name+" shows more")
}
