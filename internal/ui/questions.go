package ui

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"fisub/internal/usage"
)

// ErrEnded says that the input ended where an answer was waited for.
var ErrEnded = errors.New("the input ended")

// Questions are asked on a terminal.
type Questions struct {
	ctx   context.Context
	term  *Terminal
	lines <-chan string // closed at the end of the input
}

// Questions asks on t and reads the answers from in, until ctx ends.
func (t *Terminal) Questions(ctx context.Context, in io.Reader) *Questions {
	lines := make(chan string)
	go func() {
		defer close(lines)
		r := bufio.NewReader(io.LimitReader(in, 1<<20))
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return // half a line is no answer
			}
			select {
			case lines <- strings.TrimSpace(line):
			case <-ctx.Done():
				return
			}
		}
	}()
	return &Questions{ctx, t, lines}
}

// Ask asks until accept takes the answer; an empty one is the fallback, where there is one.
func (q *Questions) Ask(question, fallback string, accept func(answer string) error) error {
	for {
		if fallback != "" {
			fmt.Fprintf(q.term.Err, "%s [%s]: ", question, fallback)
		} else {
			fmt.Fprintf(q.term.Err, "%s: ", question)
		}
		var answer string
		select {
		case <-q.ctx.Done():
			return q.ctx.Err()
		case line, open := <-q.lines:
			if !open {
				fmt.Fprintln(q.term.Err)
				return fmt.Errorf("%w before %q was answered", ErrEnded, question)
			}
			answer = cmp.Or(line, fallback)
		}
		err := accept(answer)
		if err == nil {
			return nil
		}
		text, hint := usage.Explain(err)
		fmt.Fprintf(q.term.Err, "  %s\n", text)
		if hint != "" {
			fmt.Fprintf(q.term.Err, "  %s\n", hint)
		}
	}
}

// Choose lists what can be answered and asks for one, by number or by name; find finds a name, or says what is wrong
// with it.
func (q *Questions) Choose(question string, names []string, describe func(string) string, fallback string,
	find func(name string) error) error {
	width := 0
	for _, n := range names {
		width = max(width, len(n))
	}
	for i, n := range names {
		fmt.Fprintf(q.term.Err, "%3d  %-*s  %s\n", i+1, width, n, describe(n))
	}
	return q.Ask(question+", by number or name", fallback, func(answer string) error {
		if n, err := strconv.Atoi(answer); err == nil {
			if n < 1 || n > len(names) {
				return fmt.Errorf("%d: not a number from 1 to %d", n, len(names))
			}
			answer = names[n-1]
		}
		if answer == "" {
			return errors.New("an answer is needed")
		}
		return find(answer)
	})
}

// Keyboard is the terminal that answers can be typed on, or nil.
func (t *Terminal) Keyboard() *os.File {
	if in, ok := t.In.(*os.File); ok && IsTerminal(in) {
		return in
	}
	return nil
}

// answer gives the next line that is typed on the terminal, in lower case, and whether it is a whole one.
func answer(in *os.File) (word string, whole bool) {
	line, err := bufio.NewReader(in).ReadString('\n')
	return strings.ToLower(strings.TrimSpace(line)), err == nil
}

// Agreed asks a question where there is a keyboard, unless yes is set. The end of ctx is a no.
func (t *Terminal) Agreed(ctx context.Context, yes bool, question string) bool {
	in := t.Keyboard()
	if yes || in == nil {
		return true
	}
	fmt.Fprintf(t.Err, "%s [Y/n] ", question)
	agreed := make(chan bool, 1)
	go func() {
		word, whole := answer(in)
		agreed <- whole && (word == "" || word == "y" || word == "yes")
	}()
	select {
	case yes := <-agreed:
		return yes
	case <-ctx.Done():
		fmt.Fprintln(t.Err)
		return false
	}
}

// Decide waits for a signal and tells whether the jobs are to stop; they are left alone where it returns false. On a
// terminal the first interrupt asks and the second one stops. Without one an interrupt stops: what was started by a
// script must not cost money when the script is ended. A terminal that is closed leaves the jobs running.
func (t *Terminal) Decide(signals <-chan os.Signal, over <-chan struct{}) (stop bool) {
	in := t.Keyboard()
	answers := make(chan string, 1)
	asked := false
	for {
		select {
		case <-over:
			return false
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP:
				return false
			case in == nil || asked || s == syscall.SIGTERM:
				return true
			}
			asked = true
			fmt.Fprint(t.Err, "\nstop the jobs, detach from them, or go on? Ctrl-C again stops [s/d/G] ")
			go func() {
				word, _ := answer(in)
				answers <- word
			}()
		case word := <-answers:
			switch word {
			case "s", "stop":
				return true
			case "d", "detach":
				return false
			}
			asked = false
			t.Note("going on")
		}
	}
}
