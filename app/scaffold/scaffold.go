// Package scaffold creates the files of a new submission: config, kernel, .gitignore and a CI workflow. It has simple,
// correct kernels for fisub's own definitions only. It asks no questions and runs no programs.
package scaffold

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"fisub/definitions"
	"fisub/docs"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// Folders in kernels are named after a definition, those in families serve several. Each file is a template, which is
// filled in from the definition.
//
//go:embed kernels families project
var embedded embed.FS

// Languages are the languages with templates.
var Languages = []trace.Language{trace.CUDA, trace.Triton, trace.Python}

// ErrNoKernel means that fisub has no template kernel for a definition.
var ErrNoKernel = errors.New("fisub has no template kernel")

// Workflow is the path of the CI workflow in a project.
const Workflow = ".github/workflows/fisub.yml"

// Options describe a new project.
type Options struct {
	Definition *trace.Definition
	Language   trace.Language // one of Languages
	Name       string         // of the solution
	Author     string
	Set        string // named in the config's comments; "" is "contest"
	Edge       bool   // the definition has a set of hard inputs
	Version    string // fisub's commit or tag, for the workflow
}

// A File is one file of a project.
type File struct {
	Path    string // slash-separated, below the project's folder
	Content []byte
}

// A Project holds the files of a new submission.
type Project struct {
	Files   []File
	sources string // folder of the sources; "" if other files may be in the folder of Files
}

// New creates the project described by opts; the same options produce the same files. All errors are about the
// options: ErrNoKernel if the definition is not Known.
func New(opts Options) (*Project, error) {
	var faults []error
	for _, text := range []struct{ what, value string }{{"name", opts.Name}, {"author", opts.Author},
		{"definition", opts.Definition.Name}} {
		if err := CheckText(text.value); err != nil {
			faults = append(faults, fmt.Errorf("%s %q: %w", text.what, text.value, err))
		}
	}
	if !slices.Contains(Languages, opts.Language) {
		faults = append(faults, fmt.Errorf("language %q: no template", opts.Language))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}

	if !Known(opts.Definition.Name) {
		return nil, fmt.Errorf("definition %q: %w: write %s", opts.Definition.Name, ErrNoKernel, signature(opts.Definition))
	}

	def := opts.Definition
	values := map[string]any{
		"Name": opts.Name, "Definition": def.Name, "Author": opts.Author, "Language": string(opts.Language),
		"EntryPoint": "kernel.py::kernel", "DPS": opts.Language != trace.Python,
		"CUDA": opts.Language == trace.CUDA, "Python": opts.Language != trace.CUDA,
		"Set": cmp.Or(opts.Set, "contest"), "Version": opts.Version, "Edge": opts.Edge,
		"Sampled": def.OpType != "moe", // with up to 14,107 tokens, a sample would take hours on the virtual GPU
		"InPlace": len(def.Arguments()) < def.Inputs.Len()+def.Outputs.Len(),
		"Axes":    axes(def), "Inputs": tensors(&def.Inputs), "Outputs": tensors(&def.Outputs),
	}
	p := &Project{sources: path.Join("solution", string(opts.Language))}
	add := func(name, file string) {
		p.Files = append(p.Files, File{path.Join(p.sources, name), filled(file, def, values)})
	}
	if opts.Language != trace.CUDA {
		add("kernel.py", path.Join(folder(def.Name), string(opts.Language)+".py"))
	} else {
		values["EntryPoint"] = "kernel.cu::kernel"
		add("kernel.cu", path.Join(folder(def.Name), "kernel.cu"))
		for _, header := range []string{"tensor.cuh", "workspace.cuh"} { // if it includes them
			if bytes.Contains(p.Files[0].Content, []byte(`#include "`+header+`"`)) {
				add(header, path.Join("kernels", header))
			}
		}
	}
	p.Files = append([]File{
		{config.Name, filled("project/config.template", def, values)},
		{".gitignore", embeddedFile("project/gitignore")},
		{Workflow, filled("project/workflow.yml", def, values)},
		{"AGENTS.md", filled("project/AGENTS.md", def, values)},
	}, p.Files...)
	return p, nil
}

// CheckText returns an error if a text is unusable as a solution's name, author or definition: the contest's tools use
// them in paths.
func CheckText(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return errors.New("empty")
	case len(text) > 200:
		return errors.New("longer than 200 bytes")
	case strings.ContainsAny(text, `/\`):
		return errors.New("contains a slash, but is part of the path of saved results")
	case text == "." || text == "..":
		return errors.New("is a folder name, but is part of the path of saved results")
	case strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) || r == '\uFFFD' }):
		return errors.New("contains an unprintable character")
	}
	return nil
}

// FolderName returns a solution name derived from the folder dir.
func FolderName(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		abs = dir
	}
	name := strings.Trim(regexp.MustCompile(`[^A-Za-z0-9_.-]+`).ReplaceAllString(filepath.Base(abs), "-"), "-.")
	return cmp.Or(name, "kernel")
}

// Known reports whether there is a kernel for a definition.
func Known(definition string) bool { return folder(definition) != "" }

// folder returns the folder of the kernels for a definition, or "".
func folder(definition string) string {
	own := path.Join("kernels", definition)
	if st, err := fs.Stat(embedded, own); err == nil && st.IsDir() {
		return own
	}
	if _, err := fs.Stat(definitions.FS, "gdn/"+definition+".json"); err != nil {
		return ""
	}
	if strings.HasPrefix(definition, "gdn_prefill_") {
		return "families/prefill"
	}
	return "families/decode"
}

// signature returns a kernel's signature: "kernel(x float32 [n, 4], scale float32) -> (y float32 [n])".
func signature(def *trace.Definition) string {
	list := func(specs *trace.Map[trace.TensorSpec]) string { return "(" + strings.Join(tensors(specs), ", ") + ")" }
	return "kernel" + list(&def.Inputs) + " -> " + list(&def.Outputs)
}

func tensors(specs *trace.Map[trace.TensorSpec]) (all []string) {
	for name, spec := range specs.All() {
		text := name + " " + spec.DType.String()
		if !spec.Scalar {
			text += " [" + strings.Join(spec.Shape, ", ") + "]"
		}
		if spec.Param != "" {
			text += " (the argument " + spec.Param + ", changed in place)"
		}
		all = append(all, text)
	}
	return all
}

func axes(def *trace.Definition) string {
	var all []string
	for name, axis := range def.Axes.All() {
		size := "of each workload"
		if axis.Const {
			size = strconv.Itoa(axis.Value)
		}
		all = append(all, name+" "+size)
	}
	return strings.Join(all, ", ")
}

// Drop removes the file at path from the project.
func (p *Project) Drop(path string) {
	p.Files = slices.DeleteFunc(p.Files, func(f File) bool { return f.Path == path })
}

func embeddedFile(name string) []byte {
	data, err := embedded.ReadFile(name)
	if err != nil {
		panic(err) // a file of this package
	}
	return data
}

// filled returns an embedded file with its [[actions]] filled in.
func filled(name string, def *trace.Definition, values map[string]any) []byte {
	spec := func(name string) trace.TensorSpec {
		in, _ := def.Inputs.Get(name)
		return in
	}
	args := def.Arguments()
	if values["DPS"] == false {
		args = def.Inputs.Keys()
	}
	t := template.New(name).Delims("[[", "]]").Option("missingkey=error").Funcs(template.FuncMap{
		"has": func(name string) bool {
			return slices.Contains(def.Inputs.Keys(), name) || slices.Contains(def.Outputs.Keys(), name)
		},
		"axis": func(name string) int { // 0 for a var axis
			axis, _ := def.Axes.Get(name)
			return axis.Value
		},
		"type":     func(name string) string { return cTypes[spec(name).DType] },
		"optional": func(name string) bool { return spec(name).Optional },
		"named":    func(part string) bool { return strings.Contains(def.Name, part) },
		"upto":     func(name string) string { return strings.Join(args[:max(slices.Index(args, name), 0)], ", ") },
		"from":     func(name string) string { return strings.Join(args[max(slices.Index(args, name), 0):], ", ") },
		"about": func(prefix string) string { // paragraphs are wrapped, indented lines are not
			var b strings.Builder
			for line := range strings.Lines(string(filled(path.Join(path.Dir(name), "about"), def, values))) {
				if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, " ") || line == "" {
					b.WriteString(strings.TrimRight(prefix+line, " ") + "\n")
				} else {
					docs.Wrap(&b, line, prefix, prefix, 116)
				}
			}
			return strings.TrimSpace(b.String())
		},
	})
	var b bytes.Buffer
	if err := template.Must(t.Parse(string(embeddedFile(name)))).Execute(&b, values); err != nil {
		panic(err) // a file of this package
	}
	return b.Bytes()
}

// cTypes are the C types of tensors.
var cTypes = map[tensor.DType]string{tensor.Float32: "float", tensor.BFloat16: "__nv_bfloat16", tensor.Int32: "int32_t",
	tensor.Int64: "int64_t"}

// Results of Write for a file.
const (
	Created   = "created"
	Replaced  = "replaced"
	Unchanged = "unchanged" // the file already had this content
)

// A ConflictError lists files that prevent writing the project.
type ConflictError struct{ Lines []string } // one for each file

func (e *ConflictError) Error() string { return strings.Join(e.Lines, "\n") }

// Write writes the files below dir, created if necessary, and returns the result for each, in order. If files exist
// with other content, or the folder of the sources has other files, it writes nothing and returns a *ConflictError;
// with force it replaces the former and keeps the latter.
func (p *Project) Write(dir string, force bool) (done []string, err error) {
	var conflicts []string
	for _, f := range p.Files {
		old, err := read(filepath.Join(dir, filepath.FromSlash(f.Path)))
		state := Unchanged
		switch {
		case errors.Is(err, fs.ErrNotExist):
			state = Created
		case err != nil:
			return nil, err
		case !bytes.Equal(old, f.Content):
			state = Replaced
			conflicts = append(conflicts, filepath.Join(dir, filepath.FromSlash(f.Path))+": exists with other content")
		}
		done = append(done, state)
	}
	entries, err := os.ReadDir(filepath.Join(dir, filepath.FromSlash(p.sources)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if p.sources == "" {
			break
		}
		name := path.Join(p.sources, e.Name())
		if e.Type().IsRegular() && !slices.ContainsFunc(p.Files, func(f File) bool { return f.Path == name }) {
			conflicts = append(conflicts, filepath.Join(dir, filepath.FromSlash(name))+": exists, and would be packed as well")
		}
	}
	if len(conflicts) > 0 && !force {
		return nil, &ConflictError{conflicts}
	}
	for i, f := range p.Files {
		if done[i] == Unchanged {
			continue
		}
		name := filepath.Join(dir, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return nil, err
		}
		if err := cache.WriteFile(name, f.Content, 0o644); err != nil {
			return nil, err
		}
	}
	return done, nil
}

// read reads a regular file that Write may replace. Files too large for Write are not read.
func read(name string) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a file", name)
	}
	if st.Size() > 1<<20 {
		return nil, nil
	}
	return os.ReadFile(name)
}
