package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/preflight"
	"fisub/remote/providers"
	"fisub/session"
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
		Usage:     "say what is wrong with the submission, or with dataset files, before anything runs",
		ArgsUsage: "[FILE...]",
		Flags: []cli.Flag{
			stringFlag(&o.arch, "arch", "compile for `ARCH[,ARCH...]`, such as sm_100, or none",
				"sm_100, where there is a toolchain"),
			stringFlag(&o.emit, "emit", "list as `FORM`, ptx or sass, what is made of the submission, or of its sources FILE",
				""),
			boolFlag(&o.strict, "strict", "warnings count as errors"),
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

// contestCUDA is the release of the image that the contest evaluates in, flashinfer-ci-cu132.
const contestCUDA = "13.2"

// contestArch is what the contest's builder compiles for: its GPU's arch without the "a".
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
	var reports []*preflight.Report
	if o.solution != "" {
		p.File = a.Path(o.solution)
		sol, warnings, err := trace.ReadSolution(p.File)
		a.warn(warnings)
		if err != nil {
			return usage.Invalid(err)
		}
		p.Solution = sol
		if reports, err = a.preflight(ctx, p, ""); err != nil {
			return err
		}
	} else if reports, err = a.preflight(ctx, p, a.Configs()...); err != nil {
		return err
	}
	if sol := reports[0].Solution; p.MustCompile && len(p.Archs) > 0 && len(reports) == 1 && sol != nil &&
		!sol.Spec.Compiled() {
		what := string(sol.Spec.Language) + " submissions"
		if sol.Spec.Binding == "torch" {
			what = "submissions with the torch binding"
		}
		return usage.Errorf("leave --arch out", "--arch: %s are not compiled ahead", what)
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

func (a *app) emit(ctx context.Context, o checkOptions) error {
	if a.final != nil {
		return usage.Errorf("--json", "check --emit: it has no --json=final")
	}
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	found, err := session.Emit(ctx, s, o.emit, cmp.Or(o.arch, contestArch), o.files, a.term)
	if err != nil {
		return err
	}
	return a.result(found)
}

// checkTable finds what is wrong with a table [remote.NAME].
func checkTable(t *config.Table) error {
	_, err := providers.Decode(t)
	return err
}

// preflight is what fisub check says of the submissions of these configs; "" stands for the packed solution of o.
func (a *app) preflight(ctx context.Context, o preflight.Options, configs ...string) (reports []*preflight.Report,
	err error) {
	if o.Cache, err = cache.Root(); err != nil && len(o.Archs) > 0 {
		return nil, err
	}
	if len(o.Archs) > 0 && ui.IsTerminal(a.stderr) {
		a.term.Note("compiling for %s, unless that was done before ...", strings.Join(o.Archs, ", "))
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

// showReports prints findings to stderr and what is known to stdout.
func (a *app) showReports(reports []*preflight.Report, ok, strict bool) error {
	all := session.Checked{OK: ok, Submissions: []session.CheckedOne{}}
	for _, r := range reports {
		a.showFindings(r.Findings, strict)
		if log := strings.TrimRight(r.Log, "\n"); log != "" && a.term.Verbose {
			fmt.Fprintln(a.stderr, plain.Lines(log))
		}
		all.Submissions = append(all.Submissions, session.NewChecked(r, strict))
	}
	switch {
	case a.final != nil:
		a.final.Check(reports, strict)
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

const shownKernels = 8 // without -v

func (a *app) showReport(r *preflight.Report, strict bool) {
	line := a.line
	if r.Config != nil {
		line("config", "%s", session.Relative(r.Config.Path))
	}
	taken := r.Repository.Taken()
	for _, s := range taken {
		if len(taken) > 1 || r.Config == nil || s.File != r.Config.Path {
			line("collected", "%s: %s of %s", session.Relative(s.File), s.Name, s.Definition)
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
			line("entry", "%s, %s", sol.Spec.EntryPoint, session.CallText(sol, r.Definition))
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
		fmt.Fprintf(a.stdout, "sound but for %s\n", plain.Count(warnings, "warning"))
		return
	}
	fmt.Fprintln(a.stdout, "sound")
}

// showFindings prints findings by their severity; strict makes errors of warnings.
func (a *app) showFindings(findings []preflight.Finding, strict bool) {
	told := map[string]int{}
	for _, f := range findings {
		if told[string(f.Severity)]++; told[string(f.Severity)] > maxShown {
			continue
		}
		text := session.FindingText(f)
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
	for severity, n := range told {
		if n > maxShown {
			a.term.Note("%s not shown, --json has all", plain.Count(n-maxShown, "more "+severity))
		}
	}
}

// checkFiles checks dataset files; what a file holds is told by its keys.
func (a *app) checkFiles(ctx context.Context, names []string) error {
	bad := false
	all := []session.CheckedFile{}
	for _, name := range names {
		one, warnings := session.CheckFile(ctx, a.Path(name))
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
