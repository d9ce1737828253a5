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
	"sync"
	"syscall"

	"fisub/internal/usage"
)

// ErrEnded reports that the input ended before an answer.
var ErrEnded = errors.New("the input ended")

// Questions asks the user questions on a terminal.
type Questions struct {
	ctx   context.Context
	term  *Terminal
	lines <-chan string // closed when the input ends
}

// Questions returns a Questions that reads answers from in until ctx ends.
func (t *Terminal) Questions(ctx context.Context, in io.Reader) *Questions {
	lines := make(chan string)
	go func() {
		defer close(lines)
		r := bufio.NewReader(io.LimitReader(in, 1<<20))
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return // an incomplete line is not an answer
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

// Ask repeats the question until accept returns nil. An empty answer selects fallback unless that is "".
func (q *Questions) Ask(question, fallback string, accept func(answer string) error) error {
	prompt := question
	if fallback != "" {
		prompt += " [" + fallback + "]"
	}
	for {
		fmt.Fprintf(q.term.Err, "%s: ", prompt)
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

// Choose lists names and asks for one, by number or by name. find accepts a name or returns an error that explains the
// rejection.
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
			return errors.New("please answer")
		}
		return find(answer)
	})
}

// Keyboard returns the terminal to read answers from, or nil.
func (t *Terminal) Keyboard() *os.File {
	if in, ok := t.In.(*os.File); ok && IsTerminal(in) {
		return in
	}
	return nil
}

// answer reads a line from the terminal and converts it to lower case. whole is false if the line is incomplete.
func answer(in *os.File) (word string, whole bool) {
	line, err := bufio.NewReader(in).ReadString('\n')
	return strings.ToLower(strings.TrimSpace(line)), err == nil
}

// Agreed asks a yes-or-no question. Without a keyboard, or if yes is set, it returns true without asking. If ctx ends,
// it returns false.
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

// A Pause delays output while a question is open, so that the question stays readable.
type Pause struct {
	mu   sync.Mutex
	on   bool
	kept []func() error
}

// Do calls show now, or at the end of the pause. Errors of delayed calls are lost.
func (p *Pause) Do(show func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on {
		p.kept = append(p.kept, show)
		return nil
	}
	return show()
}

func (p *Pause) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = true
}

func (p *Pause) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = false
	for _, show := range p.kept {
		_ = show()
	}
	p.kept = nil
}

// Decide waits for a signal and reports whether to stop the jobs; otherwise they keep running. On a terminal the first
// interrupt asks and the second one stops. Without a terminal the first one stops, because jobs of an interrupted
// script must not cost money. SIGHUP, from a closed terminal, leaves the jobs running. The question begins a pause,
// which ends with the answer.
func (t *Terminal) Decide(signals <-chan os.Signal, over <-chan struct{}, pause *Pause) (stop bool) {
	defer pause.end()
	in := t.Keyboard()
	answers := make(chan string, 1)
	asked := false
	for {
		select {
		case <-over:
			if asked {
				fmt.Fprintln(t.Err)
			}
			return false
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP:
				return false
			case in == nil || asked || s == syscall.SIGTERM:
				return true
			}
			asked = true
			pause.begin()
			fmt.Fprint(t.Err, "\nstop the jobs, detach from them, or continue? Ctrl-C again stops them [s/d/C] ")
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
			t.Note("continuing")
			pause.end()
		}
	}
}
