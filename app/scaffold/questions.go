package scaffold

import (
	"fmt"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/workloads"
)

// languageTexts describe the Languages.
var languageTexts = map[trace.Language]string{
	trace.CUDA:   "kernel.cu, built by nvcc, exported through TVM-FFI; fisub needs no Python for it",
	trace.Triton: "kernel.py with @triton.jit kernels; needs a Python with torch and triton",
	trace.Python: "kernel.py in PyTorch; needs a Python with torch",
}

// A Questioner asks for the options of a new submission.
type Questioner struct{ *ui.Questions }

// Definition asks for a definition with a template kernel.
func (q *Questioner) Definition(data *workloads.Dataset) (def *trace.Definition, err error) {
	names := WithKernel(data.Definitions())
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

// Language asks for one of Languages.
func (q *Questioner) Language() (l trace.Language, err error) {
	describe := func(name string) string { return languageTexts[trace.Language(name)] }
	err = q.Choose("language", LanguageNames(), describe, string(trace.CUDA), func(name string) error {
		if l = trace.Language(strings.ToLower(name)); !slices.Contains(Languages, l) {
			return fmt.Errorf("%s: no template; one of %s", name, strings.Join(LanguageNames(), ", "))
		}
		return nil
	})
	return l, err
}

// Text asks for a text that passes CheckText.
func (q *Questioner) Text(what, fallback string) (text string, err error) {
	err = q.Ask(what, fallback, func(answer string) error {
		text = answer
		return CheckText(answer)
	})
	return text, err
}

// WithKernel returns the names with a template kernel.
func WithKernel(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !Known(name) })
}

// LanguageNames returns the names of Languages.
func LanguageNames() []string {
	var names []string
	for _, l := range Languages {
		names = append(names, string(l))
	}
	return names
}
