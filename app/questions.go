package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"fisub/explain"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/scaffold"
	"fisub/workloads"
)

// languageTexts describe the languages that init knows.
var languageTexts = map[trace.Language]string{
	trace.CUDA:   "kernel.cu, built by nvcc, exported through TVM-FFI; fisub needs no Python for it",
	trace.Triton: "kernel.py with @triton.jit kernels; running it takes a Python with torch and triton",
	trace.Python: "kernel.py in PyTorch; running it takes a Python with torch",
}

// A questioner asks what init has to know.
type questioner struct{ *ui.Questions }

// questions returns nil where nobody can be asked: stdin or stderr is no terminal, or a program wants JSON.
func (a *app) questions(ctx context.Context) *questioner {
	in := a.term.Keyboard()
	if in == nil || !ui.IsTerminal(a.stderr) || a.json {
		return nil
	}
	return &questioner{a.term.Questions(ctx, in, explain.Error)}
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
	err = q.Choose("definition", names, describe, "", func(name string) (err error) {
		def, err = data.Definition(name)
		return err
	})
	return def, err
}

func (q *questioner) language() (l trace.Language, err error) {
	describe := func(name string) string { return languageTexts[trace.Language(name)] }
	err = q.Choose("language", languages(), describe, string(trace.CUDA), func(name string) error {
		if l = trace.Language(strings.ToLower(name)); !slices.Contains(scaffold.Languages, l) {
			return fmt.Errorf("%s: there is no template for it; one of %s", name, languageNames())
		}
		return nil
	})
	return l, err
}

func (q *questioner) text(what, fallback string) (text string, err error) {
	err = q.Ask(what, fallback, func(answer string) error {
		text = answer
		return scaffold.CheckText(answer)
	})
	return text, err
}
