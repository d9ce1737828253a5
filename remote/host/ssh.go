package host

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/remote"
)

// options are passed to every ssh and override the user's config: host keys are checked, prompts and forwarding are
// off, and a lost connection is detected within 15 seconds.
var options = []string{
	"-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10",
	"-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR", "-o", "ForwardAgent=no",
	"-o", "ForwardX11=no", "-o", "ClearAllForwardings=yes", "-o", "RequestTTY=no", "-o", "PermitLocalCommand=no",
	"-o", "RemoteCommand=none", "-o", "ControlPersist=no",
}

// SSH is a host reached through the system's OpenSSH. All sessions share one connection: the master, an ssh process
// that lives until this process closes its stdin. It connects on first use, and again after a loss.
type SSH struct {
	Name   string // an SSHName: "gpu01", "me@gpu01", "me@gpu01:2222"
	Config string // file for ssh -F; "" for the user's own config

	mu     sync.Mutex
	dir    string // private folder for sockets; "" before the first connection
	remove func() // deletes dir
	number int
	master *master
	closed bool
}

type master struct {
	socket string
	stdin  io.WriteCloser
	cmd    *exec.Cmd
	words  *plain.Buffer // its standard error
	out    *plain.Buffer // its standard output: of another command than fisub's
	exited chan struct{}
}

// args returns the arguments of an ssh that runs command on the host.
func (s *SSH) args(socket, mode, command string) []string {
	all := append([]string{}, options...)
	if s.Config != "" {
		all = append(all, "-F", s.Config)
	}
	all = append(all, "-o", "ControlMaster="+mode, "-o", "ControlPath="+socket)
	destination, port, ok := splitName(s.Name)
	if !ok {
		destination = s.Name // ssh rejects it
	}
	if port != "" {
		all = append(all, "-p", port)
	}
	return append(all, "--", destination, command)
}

// command prepares an ssh for remote.Start.
func command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ssh", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	remote.EndWithParent(cmd) // else it would wait for the next output of a silent job
	return cmd
}

// silence is how long a host waits for input from the client before it closes the connection. Otherwise processes on
// the host could wait for hours for a client that ended while the network was down.
var silence = time.Minute

// listen ends with its input, or after %g seconds without input; without timeout on the host, only the former.
const listen = `timeout 1 true 2>/dev/null || exec cat >/dev/null; while [ -n "$(timeout %g head -c 1)" ]; do :; done`

// connect returns the socket of an established connection. If ctx ends, the attempt to connect continues for other
// callers.
func (s *SSH) connect(ctx context.Context) (socket string, err error) {
	m, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	for !m.stands() {
		select {
		case <-m.exited:
			if code := m.cmd.ProcessState.ExitCode(); code >= 0 && code != 255 {
				return "", s.forced(m.words.String(), m.out.String())
			}
			return "", s.explain(m.words.String())
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return m.socket, nil
}

// begin returns the running master, or starts one.
func (s *SSH) begin(ctx context.Context) (m *master, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the connection was closed")
	}
	if s.master != nil {
		select {
		case <-s.master.exited:
			s.master.stdin.Close()
			s.master = nil
		default:
			return s.master, nil
		}
	}
	if s.dir == "" {
		if s.dir, s.remove, err = socketDir(); err != nil {
			return nil, &remote.LocalError{Err: err}
		}
	}
	s.number++
	m = &master{socket: filepath.Join(s.dir, fmt.Sprint(s.number)), exited: make(chan struct{}),
		words: &plain.Buffer{Limit: maxStderr}, out: &plain.Buffer{Limit: maxStderr}}
	m.cmd = command(context.WithoutCancel(ctx), s.args(m.socket, "yes",
		"exec /bin/sh -c "+plain.Quote(fmt.Sprintf(listen, silence.Seconds()))))
	m.cmd.Stdout, m.cmd.Stderr = m.out, m.words
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := remote.Start(m.cmd); err != nil {
		return nil, s.denied("no-such", err.Error(), "apt-get install openssh-client")
	}
	go func() {
		_ = m.cmd.Wait()
		close(m.exited)
	}()
	go m.speak(silence / 6)
	s.master = m
	return m, nil
}

// socketForm matches folders in which ssh can create a socket. The kernel allows 107 bytes, of which ssh needs 17 for a
// temporary name, and ssh interprets blanks, quotes and % in options.
var socketForm = plain.NewForm(`^[A-Za-z0-9_./+=@:,-]{1,80}$`)

// socketDir creates a private folder for sockets, in /tmp if the temporary folder is unsuitable.
func socketDir() (dir string, remove func(), err error) {
	for _, temp := range []string{os.TempDir(), "/tmp"} {
		dir, remove, err = cache.TempDirIn(temp, "fisub-ssh")
		if err == nil && socketForm.MatchString(dir) {
			return dir, remove, nil
		}
		if err == nil {
			remove()
			err = fmt.Errorf("%s: unsuitable for an ssh socket: set TMPDIR to a shorter path of letters and digits", temp)
		}
	}
	return "", nil, err
}

// stands reports whether the connection is established.
func (m *master) stands() bool {
	_, err := os.Stat(m.socket)
	return err == nil
}

// speak sends a byte to the host after each pause, until the connection ends.
func (m *master) speak(pause time.Duration) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-m.exited:
			return
		case <-tick.C:
			_, _ = m.stdin.Write([]byte(".")) // after an error the connection ends anyway
		}
	}
}

func (m *master) close() {
	m.stdin.Close()
	if !m.stands() { // still connecting: ssh would finish that first
		_ = m.cmd.Process.Kill()
	}
	select {
	case <-m.exited:
	case <-time.After(2 * time.Second):
		_ = m.cmd.Process.Kill()
		<-m.exited
	}
}

// Close ends the connection.
func (s *SSH) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.master != nil {
		s.master.close()
		s.master = nil
	}
	if s.remove != nil {
		s.remove()
	}
	return nil
}

// marker precedes the command's output on stdout and stderr. The output before it is from startup files.
const marker = "\x1efisub\x1e\n"

// bootstrap is the command for the login shell. All shells, even csh and fish, take its characters in quotes literally.
// It runs the script in the first line of stdin; read consumes byte by byte, so the rest is left for the command.
const bootstrap = `exec /bin/sh -c 'IFS= read -r fisub; case $fisub in fisub:*) ` +
	`eval "$(printf %b "${fisub#fisub:}")";; *) echo "` + robbed + `" >&2; exit 1;; esac'`

// robbed is the error message if something consumed stdin before bootstrap could.
const robbed = "a startup file of the login shell reads standard input"

// firstLine encodes a script as the line that bootstrap decodes.
func firstLine(script string) string {
	var line strings.Builder
	line.WriteString("fisub:")
	for _, b := range []byte(script) {
		if b < ' ' || b > '~' || b == '\\' {
			fmt.Fprintf(&line, `\0%03o`, b)
		} else {
			line.WriteByte(b)
		}
	}
	return line.String() + "\n"
}

// shellTime is how long a login shell may take to start the script.
var shellTime = time.Minute

// marked returns a script that prints the marker and then runs before, argv and after.
func marked(before string, argv []string, after string) string {
	script := `umask 077; printf '\036fisub\036\n'; ` + before
	for _, arg := range argv {
		script += " " + plain.Quote(arg)
	}
	return script + after
}

// Run runs a command under any login shell, whatever its startup files print. Files that it creates are private to the
// user. Exit status 255, which ssh uses for its own errors, becomes 254.
func (s *SSH) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	socket, err := s.connect(ctx)
	if err != nil {
		return err
	}
	script := marked(`printf '\036fisub\036\n' >&2; `, argv, " || { s=$?; [ $s -ne 255 ] || s=254; exit $s; }")
	running, stop := context.WithCancel(ctx)
	defer stop()
	cmd := command(running, s.args(socket, "no", bootstrap))
	out := &unmarked{tap: tap{w: cmp.Or(stdout, io.Discard), stop: stop}}
	words := &plain.Buffer{Limit: maxStderr}
	cmd.Stdin, cmd.Stderr = strings.NewReader(firstLine(script)), words
	if stdin != nil {
		cmd.Stdin = io.MultiReader(cmd.Stdin, stdin)
	}
	out.late = time.AfterFunc(shellTime, stop)
	defer out.late.Stop()
	err = run(running, cmd, out)
	text := words.String()
	if _, own, found := strings.Cut(text, marker); found {
		text = own
	}
	text = strings.TrimSpace(text)
	exit, ok := errors.AsType[*exec.ExitError](err)
	own := ok && exit.ExitCode() != 255 && exit.Exited() // not an error of ssh
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case out.err != nil:
		return out.err
	case err == nil && !out.found:
		if text+string(out.head) != "" {
			return s.forced(text, string(out.head))
		}
		return &LostError{"no output from the host's shell", "ssh " + s.words()}
	case err == nil:
		return nil
	case running.Err() != nil && !out.found:
		return s.denied("unreachable", fmt.Sprintf("its login shell did not run a command within %v", shellTime), startup)
	case own && out.found:
		return &ExitError{argv[0], exit.ExitCode(), text}
	case own:
		return s.forced(text, string(out.head))
	case ok && !out.found:
		return s.explain(cmp.Or(text, "ssh: "+err.Error()))
	case ok:
		return &LostError{cmp.Or(text, "ssh: "+err.Error()), "ssh " + s.words()}
	}
	return err
}

// unmarked passes on the output after the marker.
type unmarked struct {
	tap
	head  []byte
	found bool
	late  *time.Timer // stopped when the marker arrives; may be nil
}

func (u *unmarked) Write(p []byte) (int, error) {
	n := len(p)
	if !u.found {
		u.head = append(u.head, p...)
		at := bytes.Index(u.head, []byte(marker))
		if at < 0 {
			if len(u.head) > 1<<20 {
				u.err = errors.New("the shell's startup files print more than 1 MiB")
				u.stop()
				return 0, u.err
			}
			return n, nil
		}
		if u.found = true; u.late != nil {
			u.late.Stop()
		}
		p, u.head = u.head[at+len(marker):], nil
	}
	if len(p) > 0 {
		if _, err := u.tap.Write(p); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (s *SSH) denied(code, text, hint string) error {
	return &remote.Denied{Code: code, Host: s.Name, Text: text, Hint: hint}
}

// startup is the hint for errors caused by the startup files of the login shell.
const startup = "check the startup files of the login shell on the host, such as .bashrc: in non-interactive shells " +
	"they must not read input or wait"

// refusals maps messages of ssh about a failed connection to codes and hints. The first match counts; NAME is the host.
var refusals = []struct{ words, code, begin, hint string }{
	{robbed, "no-such", "", startup},
	{"HOST IDENTIFICATION HAS CHANGED", "host-key", "its host key has changed: ",
		"possible eavesdropping; if the host was reinstalled: ssh-keygen KEY, then ssh NAME"},
	{"Host key verification failed|host key is known", "host-key", "unknown host key: ",
		"run ssh NAME once, and compare the fingerprint"},
	{"Permission denied|Too many authentication failures|no such identity", "credentials", "",
		"ssh NAME must work without a prompt: ssh-add the key, or set it in ~/.ssh/config"},
	{"Could not resolve hostname|Connection refused|timed out|No route to host|Network is unreachable|Connection closed|" +
		"Connection reset|kex_exchange_identification", "unreachable", "",
		"check the name, and that the host is up: ssh NAME"},
	{"Bad configuration option|Can't open user config file|terminating,", "no-such", "",
		"ssh -G NAME prints the effective config"},
	{"", "unreachable", "", "run ssh NAME for details"},
}

// knownKey returns the ssh-keygen options that remove a changed host key. They come from ssh's message, since
// known_hosts has no aliases of the user's config.
func knownKey(said string) string {
	options := "-R KNOWN"
	if name := regexp.MustCompile(`(?m)^Host key for (\S{1,255}) has changed`).FindStringSubmatch(said); name != nil {
		options = "-R " + plain.Quote(name[1])
	}
	if file := regexp.MustCompile(`(?m)^Offending \S+ key in (.{1,500}):\d+\s*$`).FindStringSubmatch(said); file != nil {
		options = "-f " + plain.Quote(file[1]) + " " + options
	}
	return options
}

// inLine returns the lines of a message as one of limited length.
func inLine(said string) string {
	var words []string
	for line := range strings.Lines(said) {
		if line = strings.Trim(strings.TrimSpace(line), "@ "); line != "" {
			words = append(words, line)
		}
	}
	return plain.Brief(strings.Join(words, "; "), 500)
}

// aside matches what ssh says when the shared connection ends as a command starts: it goes on with one of its own.
var aside = regexp.MustCompile(`(?m)^mux(client|_client_\w+): .*$`)

// forced returns the error for an account that has run another command than fisub's, with that command's output.
func (s *SSH) forced(stderr, stdout string) error {
	if strings.Contains(stderr, robbed) {
		return s.explain(stderr)
	}
	text := "its account does not run fisub's commands"
	if said := inLine(stdout + "\n" + aside.ReplaceAllString(stderr, "")); said != "" {
		text += ": " + said
	}
	return s.denied("no-such", text, "ssh "+s.words()+" true must work: see the login shell, command= in authorized_keys "+
		"and ForceCommand of its sshd")
}

// explain returns an error for ssh's message about a failed connection.
func (s *SSH) explain(said string) error {
	text := cmp.Or(inLine(said), "ssh ended without output")
	for _, r := range refusals {
		for word := range strings.SplitSeq(r.words, "|") {
			if strings.Contains(said, word) {
				hint := strings.ReplaceAll(r.hint, "KEY", knownKey(said))
				hint = strings.NewReplacer("NAME", s.words(), "KNOWN", plain.Word(s.known())).Replace(hint)
				return s.denied(r.code, r.begin+text, hint)
			}
		}
	}
	return nil
}
