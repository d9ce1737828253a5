package app

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fisub/internal/ui"
	"fisub/remote/agent"
	"fisub/remote/dispatch"
	"fisub/remote/servertest"
	"fisub/remote/slurm/slurmtest"
)

// A shellSession is fisub on its own terminal: typed keys, including Ctrl-C, arrive as from a keyboard.
type shellSession struct {
	t        *testing.T
	keyboard *os.File
	ended    chan int      // receives the exit status
	read     chan struct{} // closed when no process holds the terminal and screen has all output

	mu     sync.Mutex
	screen bytes.Buffer
}

// newTerminal opens a terminal, or skips the test if the machine has no terminals.
func newTerminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, tty, err := openTerminal()
	if err != nil {
		t.Skipf("no terminals on this machine: %v", err)
	}
	return keyboard, tty
}

// openTerminal opens a new terminal and returns the user's end and the program's end.
func openTerminal() (keyboard, tty *os.File, err error) {
	if keyboard, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		keyboard.Close()
		return nil, nil, err
	}
	return keyboard, tty, nil
}

// terminal starts the program on a new terminal.
func (b *remoteBench) terminal(t *testing.T, args ...string) *shellSession {
	t.Helper()
	keyboard, tty := newTerminal(t)
	cmd := b.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := cmd.Start()
	tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	s := &shellSession{t: t, keyboard: keyboard, ended: make(chan int, 1), read: make(chan struct{})}
	go func() {
		defer close(s.read)
		buf := make([]byte, 1<<12)
		for {
			n, err := keyboard.Read(buf)
			s.mu.Lock()
			s.screen.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = cmd.Wait()
		s.ended <- cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.read
		keyboard.Close()
	})
	return s
}

func (s *shellSession) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.String()
}

// sees waits until the screen contains the words n times.
func (s *shellSession) sees(words string, n int) {
	s.t.Helper()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("terminal:\n%s", s.text())
		}
	})
	servertest.Until(s.t, words, func() bool { return strings.Count(s.text(), words) >= n })
}

func (s *shellSession) types(keys string) {
	s.t.Helper()
	if _, err := s.keyboard.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits for the program and checks its exit status.
func (s *shellSession) ends(want int) {
	s.t.Helper()
	select {
	case got := <-s.ended:
		<-s.read
		if got != want {
			s.t.Fatalf("exit status %d, want %d\n%s", got, want, s.text())
		}
	case <-time.After(time.Minute):
		s.t.Fatalf("it does not end\n%s", s.text())
	}
}

const (
	ctrlC    = "\x03"
	question = "stop the jobs, detach from them, or continue?"
)

// Output during a question comes after its answer, in order. The end of the jobs ends the question too.
func TestPause(t *testing.T) {
	keyboard, tty := newTerminal(t)
	defer keyboard.Close()
	defer tty.Close()
	term, pause, seen := &ui.Terminal{In: tty, Err: tty}, ui.Pause{}, ""
	until := func(words string) (text string) {
		t.Helper()
		for buf := make([]byte, 1<<12); !strings.Contains(seen, words); {
			n, err := keyboard.Read(buf)
			if seen += strings.ReplaceAll(string(buf[:n]), "\r", ""); err != nil {
				t.Fatal(err)
			}
		}
		text, seen, _ = strings.Cut(seen, words)
		return text
	}
	note := func(text string) {
		_ = pause.Do(func() error { term.Note("%s", text); return nil })
	}
	signals, over, stop := make(chan os.Signal), make(chan struct{}), make(chan bool)
	go func() { stop <- term.Decide(signals, over, &pause) }()
	note("first")
	signals <- os.Interrupt
	until("first\n\n" + question)
	note("second")
	note("third")
	fmt.Fprint(tty, "mark")
	if text := until("mark"); !strings.HasSuffix(text, "[s/d/C] ") {
		t.Errorf("got %q below the question", text)
	}
	if _, err := keyboard.WriteString("g\n"); err != nil {
		t.Fatal(err)
	}
	until("continuing\nsecond\nthird\n")
	signals <- os.Interrupt
	until(question)
	note("fourth")
	close(over)
	if <-stop {
		t.Error("the end of the jobs stops them")
	}
	until("[s/d/C] \nfourth\n")
}

// Ctrl-C on a terminal asks a question. d detaches, s or a second Ctrl-C stops, any other answer continues. Neither
// ssh nor Slurm's commands get the signal.
func TestRemoteTerminal(t *testing.T) {
	first := newRemoteBench(t, "")
	first.linger()
	first.fisub(0, "local", "--device", "emu", "--limit", "1") // builds the kernel for all cases
	for name, start := range map[string]func(t *testing.T) (b *remoteBench, work string){
		"loopback": func(t *testing.T) (*remoteBench, string) { return newLoopbackBench(t) },
		"ssh": func(t *testing.T) (*remoteBench, string) {
			b, _, works := newSSHBench(t, 1)
			return b, works[0]
		},
		"slurm": func(t *testing.T) (*remoteBench, string) {
			c := slurmtest.Start(t, slurmtest.Setup{})
			work := t.TempDir()
			b := newRemoteBench(t,
				fmt.Sprintf("[remote.cluster]\nprovider = \"slurm\"\njobs = 1\nworkdir = %q\ngpu = \"none\"\n", work))
			b.env = append(b.env, "SLURM_CONF="+c.Conf)
			return b, work
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, work := start(t)
			b.linger()
			b.cache = first.cache
			b.env = append(b.env, "FISUB_CACHE="+b.cache)
			b.share(work)
			open := func(args ...string) *shellSession {
				t.Helper()
				s := b.terminal(t, args...)
				b.awaitStream(work)
				s.sees(": running", 1)
				s.types(ctrlC)
				s.sees(question, 1)
				return s
			}
			ended := func() {
				t.Helper()
				nothingIn(t, work)
				if plan, err := dispatch.Load(b.lastFolder()); err != nil || !plan.Done || len(plan.Active()) != 0 {
					t.Errorf("plan: got %+v, %v", plan, err)
				}
			}

			// It asks before it starts. If the answer is no, it does nothing.
			s := b.terminal(t, "remote")
			s.sees("start? [Y/n]", 1)
			s.types("n\n")
			s.ends(0)
			s = b.terminal(t, "remote")
			s.sees("start? [Y/n]", 1)
			s.types(ctrlC)
			s.ends(exitInterrupted)
			for _, dir := range []string{agent.Jobs(work), filepath.Join(b.dir, ".fisub")} {
				if entries, err := os.ReadDir(dir); err == nil {
					t.Errorf("not agreed to: left in %s: %v", dir, entries)
				}
			}

			s = open("remote", "--yes")
			s.types("d\n")
			s.ends(exitInterrupted)
			if text := s.text(); !strings.Contains(text, "1 job still running; follow with: fisub remote attach") ||
				strings.Contains(text, "warning") {
				t.Errorf("detached: got\n%s", text)
			}
			if entries, err := os.ReadDir(agent.Jobs(work)); err != nil || len(entries) != 1 {
				t.Errorf("detached: the job is gone: %v, %v", entries, err)
			}
			letGo(t, work)
			b.fisub(0, "remote", "attach", "last")
			b.whole(b.last(), 20)
			ended()
			hold(t, work)

			s = open("remote", "--yes")
			s.types("\n")
			s.sees("continuing", 1)
			s.types(ctrlC)
			s.sees(question, 2)
			s.types("g\n")
			letGo(t, work)
			s.ends(0)
			if text := s.text(); strings.Contains(text, "warning") {
				t.Errorf("gone on: got\n%s", text)
			}
			b.whole(b.last(), 20)
			ended()
			hold(t, work)

			// s and a second Ctrl-C stop the jobs; a third one does not end fisub before it has ended them.
			for _, keys := range []string{"s\n", ctrlC, ctrlC + ctrlC} {
				s = open("remote", "--yes")
				for i := range len(keys) {
					if i > 0 && keys != "s\n" {
						s.sees("stopping 1 job", 1)
					}
					s.types(keys[i : i+1])
				}
				s.ends(exitInterrupted)
				s.sees("interrupted: all jobs are stopped", 1)
				ended()
			}

			// The same while a job is being sent and started. Nothing is printed below a question until the answer.
			s = b.terminal(t, "remote", "--yes", "--limit", "2")
			for n := range 5 {
				s.sees(": sending", 1)
				s.types(ctrlC)
				s.sees(question, n+1)
				if n == 0 {
					servertest.Until(t, "a running job", func() bool {
						text, _ := os.ReadFile(filepath.Join(b.lastFolder(), "events.jsonl"))
						return bytes.Contains(text, []byte(`"phase":"running"`))
					})
				}
				if text := s.text(); !strings.HasSuffix(text, "[s/d/C] ") {
					t.Errorf("below an open question: %q", text)
				}
				s.types("g\n")
				s.sees("continuing", n+1)
			}
			s.sees(": running", 1)
			letGo(t, work)
			s.ends(0)
			b.whole(b.last(), 2)
			ended()
		})
	}
}
