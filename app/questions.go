package app

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"fisub/explain"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/scaffold"
	"fisub/workloads"
)

// languageTexts describe the languages that init knows.
var languageTexts = map[trace.Language]string{
	trace.CUDA:   "kernel.cu, built by nvcc, exported through TVM-FFI; fisub needs no Python for it",
	trace.Triton: "kernel.py with @triton.jit kernels; running it takes a Python with torch and triton",
	trace.Python: "kernel.py in PyTorch; running it takes a Python with torch",
}

// A questioner asks on a terminal.
type questioner struct {
	ctx   context.Context
	term  *ui.Terminal
	lines <-chan string // closed at the end of the input
}

// questions returns nil where nobody can be asked: stdin or stderr is no terminal, or a program wants JSON.
func (a *app) questions(ctx context.Context) *questioner {
	in := a.terminal()
	if in == nil || !ui.IsTerminal(a.stderr) || a.json {
		return nil
	}
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
	return &questioner{ctx, a.term, lines}
}

// ask asks until accept takes the answer; an empty one is the fallback, where there is one.
func (q *questioner) ask(question, fallback string, accept func(answer string) error) error {
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
				return usage.Errorf("answer the questions, or give the flags: fisub init --help", "init: the input ended before %q was answered", question)
			}
			answer = cmp.Or(line, fallback)
		}
		err := accept(answer)
		if err == nil {
			return nil
		}
		text, hint := explain.Error(err)
		fmt.Fprintf(q.term.Err, "  %s\n", text)
		if hint != "" {
			fmt.Fprintf(q.term.Err, "  %s\n", hint)
		}
	}
}

// choose lists what can be answered and asks for one, by number or by name; find finds a name, or says what is wrong with it.
func (q *questioner) choose(question string, names []string, describe func(string) string, fallback string, find func(name string) error) error {
	width := 0
	for _, n := range names {
		width = max(width, len(n))
	}
	for i, n := range names {
		fmt.Fprintf(q.term.Err, "%3d  %-*s  %s\n", i+1, width, n, describe(n))
	}
	return q.ask(question+", by number or name", fallback, func(answer string) error {
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

func (q *questioner) definition(data *workloads.Dataset) (def *trace.Definition, err error) {
	names := withKernel(data.Definitions())
	describe := func(name string) string {
		d, err := data.Definition(name)
		if err != nil || d.Description == nil {
			return ""
		}
		line, _, _ := strings.Cut(plain.Line(strings.TrimSpace(*d.Description)), ". ")
		line, _, _ = strings.Cut(line, ": ")
		if r := []rune(line); len(r) > 60 {
			line = string(r[:57]) + "..."
		}
		return strings.TrimSuffix(line, ".")
	}
	err = q.choose("definition", names, describe, "", func(name string) (err error) {
		def, err = data.Definition(name)
		return err
	})
	return def, err
}

func (q *questioner) language() (l trace.Language, err error) {
	describe := func(name string) string { return languageTexts[trace.Language(name)] }
	err = q.choose("language", languages(), describe, string(trace.CUDA), func(name string) error {
		if l = trace.Language(strings.ToLower(name)); !slices.Contains(scaffold.Languages, l) {
			return fmt.Errorf("%s: there is no template for it; one of %s", name, languageNames())
		}
		return nil
	})
	return l, err
}

func (q *questioner) text(what, fallback string) (text string, err error) {
	err = q.ask(what, fallback, func(answer string) error {
		text = answer
		return scaffold.CheckText(answer)
	})
	return text, err
}
