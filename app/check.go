package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/app/outcome"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/pack"
	"fisub/project"
	"fisub/project/preflight"
	"fisub/remote/providers"
)

type checkOptions struct {
	arch, solution, emit string
	strict               bool
	files                []string
}

func (a *app) checkCommand() *cli.Command {
	var o checkOptions
	return &cli.Command{
		Name:      "check",
		Usage:     "check the submission, or dataset files, without running anything",
		ArgsUsage: "[FILE...]",
		Flags: []cli.Flag{
			stringFlag(&o.arch, "arch", "compile for `ARCH[,ARCH...]`, such as sm_100, or none",
				"sm_100, with a toolchain"),
			stringFlag(&o.emit, "emit", "print the PTX or machine code (`FORM` ptx or sass) of the sources, or of FILE", ""),
			boolFlag(&o.strict, "strict", "treat warnings as errors"),
			solutionFlag(&o.solution),
		},
		Action: func(c *cli.Context) error {
			if o.files = c.Args().Slice(); o.emit != "" {
				return a.emit(c.Context, o)
			} else if len(o.files) > 0 {
				return a.checkFiles(c.Context, o.files)
			}
			return a.check(c.Context, o)
		},
	}
}

// contestCUDA is the CUDA release in the contest's evaluation image, flashinfer-ci-cu132.
const contestCUDA = "13.2"

// contestArch is the arch that the contest's builder compiles for: the arch of its GPU without the "a".
const contestArch = "sm_100"

func (a *app) check(ctx context.Context, o checkOptions) error {
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	p := preflight.Options{Dataset: data, Archs: []string{contestArch}, MustCompile: o.arch != "", Remote: checkTable}
	if o.arch == "none" {
		p.Archs = nil
	} else if o.arch != "" {
		p.Archs = strings.Split(o.arch, ",")
	}
	configs := a.Configs()
	if t, _ := a.Task(); o.solution != "" {
		sol, warnings, err := trace.ReadSolution(a.Path(o.solution))
		a.warn(warnings)
		if err != nil {
			return usage.Invalid(err)
		}
		p.Solution, p.File, configs = sol, a.Path(o.solution), []string{""}
	} else if t != nil {
		s, err := a.load("")
		if err != nil {
			return err
		}
		p.Solution, p.File, configs = s.Solution, t.Answer, []string{""}
	}
	reports, err := a.preflight(ctx, p, configs...)
	if err != nil {
		return err
	}
	if sol := reports[0].Solution; p.MustCompile && len(p.Archs) > 0 && len(reports) == 1 && sol != nil &&
		!sol.Spec.Compiled() {
		what := string(sol.Spec.Language) + " submissions"
		if sol.Spec.Binding == "torch" {
			what = "submissions with the torch binding"
		}
		return usage.Errorf("omit --arch", "--arch: %s are not compiled in advance", what)
	}
	ok := !slices.ContainsFunc(reports, func(r *preflight.Report) bool { return !r.OK(o.strict) })
	if err := a.showReports(reports, ok, o.strict); err != nil {
		return err
	}
	if !ok {
		return shown(exitUsage)
	}
	return nil
}

// An emitted is the result of check --emit.
type emitted struct {
	Emit      string                     `json:"emit"` // "ptx" or "sass"
	Arch      string                     `json:"arch"`
	Toolchain string                     `json:"toolchain"`
	Files     []nvcc.Listing             `json:"files"`
	Kernels   []preflight.CompiledKernel `json:"kernels"` // of all files
}

// sourceName converts the path of a source, as in the findings of check, to its name in the solution. It returns other
// names unchanged.
func (a *app) sourceName(s *project.Submission, name string) string {
	if s.Config == nil {
		return name
	}
	dir, err := filepath.Abs(s.Config.SourceDir())
	for _, path := range []string{name, a.Path(name)} {
		if path, failed := filepath.Abs(path); err == nil && failed == nil {
			if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
				return rel
			}
		}
	}
	return name
}

// emit lists the code compiled from the sources o.files, or from all sources.
func (a *app) emit(ctx context.Context, o checkOptions) error {
	if a.final != nil {
		return usage.Errorf("--json", "check --emit does not support --json=final")
	}
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	arch := cmp.Or(o.arch, contestArch)
	if o.emit != "ptx" && o.emit != "sass" {
		return usage.Errorf("ptx or sass", "--emit: unknown form %q", o.emit)
	}
	if !s.Solution.Spec.Compiled() {
		return usage.Errorf("--emit works with cuda and cpp",
			"--emit: %s submissions are compiled when they are first called", s.Solution.Spec.Language)
	}
	root, err := cache.Root()
	if err != nil {
		return err
	}
	obj, all, err := nvcc.Emit(ctx, root, s.Solution, arch, o.emit == "sass", func() {
		a.term.Note("nvdisasm   not installed: fetching it from PyPI into %s", root)
	})
	if broken, ok := errors.AsType[*device.BuildError](err); ok {
		return usage.Errorf("fisub check lists the compiler's errors", "--emit: %s", broken.Text)
	} else if _, missing := errors.AsType[*nvcc.MissingError](err); missing {
		return usage.Invalid(err)
	} else if err != nil {
		return err
	}
	e := &emitted{Emit: o.emit, Arch: arch, Toolchain: obj.Toolchain, Files: []nvcc.Listing{},
		Kernels: []preflight.CompiledKernel{}}
	var known []string
	for i, name := range o.files {
		o.files[i] = a.sourceName(s, name)
	}
	for _, l := range all {
		known = append(known, l.File)
		if len(o.files) == 0 || slices.Contains(o.files, l.File) {
			e.Files = append(e.Files, l)
		}
	}
	for _, k := range obj.Kernels {
		e.Kernels = append(e.Kernels, preflight.CompiledKernel{Arch: arch, Resources: k})
	}
	for _, name := range o.files {
		if !slices.Contains(known, name) {
			return usage.Errorf("one of "+strings.Join(known, ", "), "--emit: %s is not a compiled source", name)
		}
	}
	return a.result(e)
}

// Text returns the listings, each after a line that names its file.
func (e *emitted) Text() string {
	var w strings.Builder
	for _, l := range e.Files {
		fmt.Fprintf(&w, "// %s, %s, %s\n%s", l.File, e.Arch, e.Toolchain, plain.Lines(l.Text))
	}
	return w.String()
}

// checkTable returns the faults of a table [remote.NAME].
func checkTable(t *config.Table) error {
	_, err := providers.Decode(t)
	return err
}

// preflight checks the submissions of the given configs. A config of "" means the packed solution in o.
func (a *app) preflight(ctx context.Context, o preflight.Options, configs ...string) (reports []*preflight.Report,
	err error) {
	if o.Cache, err = cache.Root(); err != nil && len(o.Archs) > 0 {
		return nil, err
	}
	if len(o.Archs) > 0 && ui.IsTerminal(a.stderr) {
		a.term.Note("compiling for %s, if not in the cache ...", strings.Join(o.Archs, ", "))
	}
	for _, o.Config = range configs {
		r, err := preflight.Submission(ctx, o)
		if err != nil {
			return nil, usage.Invalid(err)
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// A checked is the result of check for several submissions.
type checked struct {
	OK          bool         `json:"ok"`
	Submissions []checkedOne `json:"submissions"`
}

// A checkedOne is the result of check for one submission.
type checkedOne struct {
	OK          bool                       `json:"ok"`
	ContentHash *string                    `json:"content_hash"`
	Config      string                     `json:"config,omitempty"`
	Findings    []preflight.Finding        `json:"findings"`
	Files       []pack.Entry               `json:"files"`
	Kernels     []preflight.CompiledKernel `json:"kernels"`
	Collected   []collectedJSON            `json:"collected"`
}

type collectedJSON struct {
	Path       string `json:"path"`
	Name       string `json:"name"`
	Definition string `json:"definition"`
	Author     string `json:"author"`
}

// newChecked returns the JSON form of a report.
func newChecked(r *preflight.Report, strict bool) checkedOne {
	one := checkedOne{OK: r.OK(strict), Findings: append([]preflight.Finding{}, r.Findings...),
		Files: append([]pack.Entry{}, r.Entries...), Kernels: []preflight.CompiledKernel{}, Collected: []collectedJSON{}}
	if r.Packs {
		one.ContentHash = new(r.Solution.Hash())
	}
	if r.Config != nil {
		one.Config = r.Config.Path
	}
	for _, b := range r.Builds {
		one.Kernels = append(one.Kernels, b.Kernels...)
	}
	for _, s := range r.Repository.Taken() {
		one.Collected = append(one.Collected, collectedJSON{s.File, s.Name, s.Definition, s.Author})
	}
	return one
}

// showReports prints findings to stderr and facts to stdout.
func (a *app) showReports(reports []*preflight.Report, ok, strict bool) error {
	all := checked{OK: ok, Submissions: []checkedOne{}}
	for _, r := range reports {
		a.showFindings(r.Findings, strict)
		if log := strings.TrimRight(r.Log, "\n"); log != "" && a.term.Verbose {
			fmt.Fprintln(a.stderr, plain.Lines(log))
		}
		all.Submissions = append(all.Submissions, newChecked(r, strict))
	}
	switch {
	case a.final != nil:
		a.final.Check(a.Root(), reports, strict)
		return nil
	case a.json && len(reports) == 1:
		return a.writeJSON(all.Submissions[0])
	case a.json:
		return a.writeJSON(all)
	}
	for i, r := range reports {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		a.showReport(r, strict)
	}
	return nil
}

// callText describes the calling convention of a solution, with its numbers of inputs and outputs.
func callText(sol *trace.Solution, def *trace.Definition) string {
	own := def.Returned()
	in, out := plain.Count(def.Inputs.Len(), "input"), own.Len()
	if sol.Spec.DestinationPassingStyle {
		return fmt.Sprintf("destination-passing: %s and %s", in, plain.Count(out, "output"))
	}
	return fmt.Sprintf("value-returning: %s, %s", in, plain.Count(out, "result"))
}

const shownKernels = 8 // without -v

func (a *app) showReport(r *preflight.Report, strict bool) {
	line := a.line
	if r.Config != nil {
		line("config", "%s", plain.Relative(r.Config.Path))
	}
	taken := r.Repository.Taken()
	for _, s := range taken {
		if len(taken) > 1 || r.Config == nil || s.File != r.Config.Path {
			text := plain.Relative(s.File)
			if s.Name != "" || s.Definition != "" {
				text += fmt.Sprintf(": %s of %s", cmp.Or(s.Name, "no name,"), cmp.Or(s.Definition, "no definition"))
			}
			line("collected", "%s", text)
		}
	}
	if r.Definition != nil {
		line("definition", "%s, %s, %s", r.Definition.Name, plain.Count(r.Definition.Inputs.Len(), "input"),
			plain.Count(r.Definition.Outputs.Len(), "output"))
	}
	if sol := r.Solution; sol != nil {
		bytes := 0
		for _, f := range sol.Sources {
			bytes += len(f.Content)
		}
		line("sources", "%s, %d bytes", plain.Count(len(sol.Sources), "file"), bytes)
		if r.Definition != nil && r.Count(preflight.Error) == 0 {
			line("entry", "%s, %s", sol.Spec.EntryPoint, callText(sol, r.Definition))
		}
	}
	for _, b := range r.Builds {
		if b.Toolchain == "" {
			continue
		}
		other := ""
		if strings.HasPrefix(b.Toolchain, "nvcc ") && !strings.HasPrefix(b.Toolchain, "nvcc "+contestCUDA+".") {
			other = "; the contest's image has CUDA " + contestCUDA
		}
		line("compiled", "%s: %s%s", b.Arch, b.Toolchain, other)
		for i, k := range b.Kernels {
			if i == shownKernels && !a.term.Verbose {
				line("", "%s, shown with -v", plain.Count(len(b.Kernels)-i, "more kernel"))
				break
			}
			line("", "%s: %s", k.Name, k.Text())
		}
	}
	errs, warnings := r.Count(preflight.Error), r.Count(preflight.Warning)
	switch {
	case !r.OK(strict):
		fmt.Fprintf(a.stdout, "not sound: %s, %s\n", plain.Count(errs, "error"), plain.Count(warnings, "warning"))
		return
	case r.Solution != nil:
		line("hash", "%s", r.Solution.Hash())
	}
	if warnings > 0 {
		fmt.Fprintf(a.stdout, "sound, except for %s\n", plain.Count(warnings, "warning"))
		return
	}
	fmt.Fprintln(a.stdout, "sound")
}

// showFindings prints findings by severity. If strict is set, warnings count as errors.
func (a *app) showFindings(findings []preflight.Finding, strict bool) {
	count := map[string]int{}
	for _, f := range findings {
		if count[string(f.Severity)]++; count[string(f.Severity)] > maxShown {
			continue
		}
		text := f.Text()
		switch {
		case f.Severity == preflight.Error || f.Severity == preflight.Warning && strict:
			a.term.Error(text, f.Hint)
		case f.Severity == preflight.Warning:
			a.term.Warn(text, f.Hint)
		default:
			a.term.Note("note: %s", text)
			if f.Hint != "" {
				a.term.Note("hint: %s", f.Hint)
			}
		}
	}
	for severity, n := range count {
		if n > maxShown {
			a.term.Note("%s not shown, --json has all", plain.Count(n-maxShown, "more "+severity))
		}
	}
}

// A checkedFile is the result of check for a dataset file.
type checkedFile struct {
	File   string            `json:"file"`
	Sound  bool              `json:"sound"`
	Holds  string            `json:"holds,omitempty"` // description of the content
	Faults []outcome.Message `json:"faults,omitempty"`
}

// checkFiles checks dataset files. Their keys distinguish definitions, workloads and solutions.
func (a *app) checkFiles(ctx context.Context, names []string) error {
	bad := false
	all := []checkedFile{}
	for _, name := range names {
		what, warnings, err := preflight.File(ctx, a.Path(name))
		one := checkedFile{File: plain.Relative(a.Path(name)), Sound: err == nil}
		if err == nil {
			one.Holds = what
		} else {
			for _, e := range usage.Flatten(err) {
				text, hint := usage.Explain(e)
				one.Faults = append(one.Faults, outcome.Message{Text: text, Hint: hint})
			}
		}
		all = append(all, one)
		a.warn(warnings)
		for _, f := range one.Faults[:min(len(one.Faults), maxShown)] {
			a.term.Error(f.Text, f.Hint)
		}
		if n := len(one.Faults) - maxShown; n > 0 {
			a.term.Error(plain.Count(n, "more fault")+", shown with --json", "")
		}
		if bad = bad || !one.Sound; one.Sound && !a.json {
			fmt.Fprintf(a.stdout, "%s: sound %s\n", plain.Line(one.File), plain.Line(one.Holds))
		}
	}
	if a.json {
		if err := a.writeJSON(all); err != nil {
			return err
		}
	}
	if bad {
		return shown(exitUsage)
	}
	return nil
}
