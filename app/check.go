package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/preflight"
)

func (a *app) checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "say what is wrong with the submission, or with dataset files, before anything runs",
		ArgsUsage: "[FILE...]",
		Description: "Without arguments: what the contest would reject, fail or silently change, all at once, each finding with its place and\n" +
			"remedy: what its collector finds in the repository, config.toml, what the packer drops, exports and parameters, forbidden\n" +
			"libraries and shipped binaries, the definition's constraints. CUDA and C++ are compiled for sm_100 as the contest compiles\n" +
			"them, which takes no GPU, where there is a toolchain; each kernel's registers, spills, shared memory and occupancy are\n" +
			"printed. docs/check.md lists the codes of findings. Where there is no config.toml here, those of the immediate subfolders are\n" +
			"checked. With FILE: definition, solution, workload or trace files (.json, .jsonl) by the format's rules.\n\n" +
			"   fisub check\n" +
			"   fisub check --strict\n" +
			"   fisub check --arch none\n" +
			"   fisub check --arch sm_90,sm_100\n" +
			"   fisub check solution.json workloads/gdn/*.jsonl\n\n" +
			"Exit status: 0 no error (warnings may be there, but not with --strict); 2 errors.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "arch", Usage: "compile for `ARCH[,ARCH...]`, such as sm_100, or none", DefaultText: "sm_100, where there is a toolchain"},
			&cli.BoolFlag{Name: "strict", Usage: "warnings count as errors"},
			&cli.StringFlag{Name: "solution", Usage: "check the packed solution in `FILE` instead of the sources"},
		},
		Action: a.check,
	}
}

// contestArch is what the contest's builder compiles for: its GPU's arch without the "a".
const contestArch = "sm_100"

func (a *app) check(c *cli.Context) error {
	if c.NArg() > 0 {
		return a.checkFiles(c, c.Args().Slice())
	}
	archs := []string{contestArch}
	if v := c.String("arch"); v == "none" {
		archs = nil
	} else if v != "" {
		archs = strings.Split(v, ",")
	}
	configs, err := submissionConfigs(c)
	if err != nil {
		return err
	}
	var reports []*preflight.Report
	for _, file := range configs {
		s, err := a.namedSubmission(c, file)
		if err != nil {
			return err
		}
		r, err := a.preflight(c, s, archs)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	if sol := reports[0].Solution; c.IsSet("arch") && len(archs) > 0 && len(reports) == 1 && sol != nil && !sol.Spec.Compiled() {
		what := string(sol.Spec.Language) + " submissions"
		if sol.Spec.Binding == "torch" {
			what = "submissions with the torch binding"
		}
		return usage("leave --arch out", "--arch: %s are not compiled ahead", what)
	}
	strict := c.Bool("strict")
	ok := !slices.ContainsFunc(reports, func(r *preflight.Report) bool { return !r.OK(strict) })
	if err := a.showReports(c, reports, ok, strict); err != nil {
		return err
	}
	if !ok {
		return errShown
	}
	return nil
}

// submissionConfigs are the configs to check: that which the flags name; where there is none, those of the immediate
// subfolders, as the contest collects them. "" stands for the packed solution of --solution.
func submissionConfigs(c *cli.Context) ([]string, error) {
	if c.String("solution") != "" {
		return []string{""}, nil
	}
	file := configPath(c)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && globalString(c, "config") == "" {
		found, err := config.Discover(filepath.Dir(file))
		if err == nil && len(found) > 0 {
			return found, nil
		}
	}
	return []string{file}, nil
}

// namedSubmission is the submission of the config in file, which is not read yet, or, where file is "", that of --solution.
func (a *app) namedSubmission(c *cli.Context, file string) (*submission, error) {
	data, err := openDataset(c)
	if err != nil {
		return nil, err
	}
	if file != "" {
		return &submission{data: data, cfg: &config.Config{Path: file}}, nil
	}
	sol, warnings, err := trace.ReadSolution(path(c, c.String("solution")))
	a.warn(warnings)
	return &submission{data: data, sol: sol}, invalid(err)
}

// preflight is what fisub check says of s, of which it takes the path of the config, or the packed solution. It compiles for
// archs.
func (a *app) preflight(c *cli.Context, s *submission, archs []string) (*preflight.Report, error) {
	o := preflight.Options{Dataset: s.data, Archs: archs, MustCompile: c.IsSet("arch"),
		Remote: func(t *config.Table) error { _, err := decodeTable(t); return err }}
	if s.cfg != nil {
		o.Config = s.cfg.Path
	} else {
		o.Solution, o.File = s.sol, path(c, c.String("solution"))
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	o.Cache = root
	if len(o.Archs) > 0 && ui.IsTerminal(a.stderr) {
		a.term.Note("compiling for %s, unless that was done before ...", strings.Join(o.Archs, ", "))
	}
	r, err := preflight.Submission(c.Context, o)
	return r, invalid(err)
}

// showReports prints findings to stderr and what is known to stdout.
func (a *app) showReports(c *cli.Context, reports []*preflight.Report, ok, strict bool) error {
	for _, r := range reports {
		a.showFindings(r.Findings, strict)
		if log := strings.TrimRight(r.Log, "\n"); log != "" && a.term.Verbose {
			fmt.Fprintln(a.stderr, log)
		}
	}
	if globalBool(c, "json") {
		if len(reports) == 1 {
			return writeJSON(a.stdout, jsonReport(reports[0], strict))
		}
		all := []map[string]any{}
		for _, r := range reports {
			all = append(all, jsonReport(r, strict))
		}
		return writeJSON(a.stdout, map[string]any{"ok": ok, "submissions": all})
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
	line := func(what, format string, args ...any) {
		fmt.Fprintf(a.stdout, "%-10s  %s\n", what, fmt.Sprintf(format, args...))
	}
	if r.Config != nil {
		line("config", "%s", relative(r.Config.Path))
	}
	taken := r.Repository.Taken()
	for _, s := range taken {
		if len(taken) > 1 || r.Config == nil || s.File != r.Config.Path {
			line("collected", "%s: %s of %s", relative(s.File), s.Name, s.Definition)
		}
	}
	if r.Definition != nil {
		line("definition", "%s, %d inputs, %d outputs", r.Definition.Name, r.Definition.Inputs.Len(), r.Definition.Outputs.Len())
	}
	if sol := r.Solution; sol != nil {
		line("sources", "%s, %d bytes", plain.Count(len(sol.Sources), "file"), sourceBytes(sol))
		if r.Definition != nil && r.Count(preflight.Error) == 0 {
			line("entry", "%s, %s", sol.Spec.EntryPoint, callText(sol, r.Definition))
		}
	}
	for _, b := range r.Builds {
		if b.Toolchain == "" {
			continue
		}
		line("compiled", "%s: %s", b.Arch, b.Toolchain)
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

func jsonReport(r *preflight.Report, strict bool) map[string]any {
	m := map[string]any{"ok": r.OK(strict), "content_hash": nil, "findings": jsonFindings(r.Findings), "files": jsonEntries(r.Entries)}
	if r.Solution != nil && r.OK(false) {
		m["content_hash"] = r.Solution.Hash()
	}
	if r.Config != nil {
		m["config"] = r.Config.Path
	}
	kernels := []preflight.Kernel{}
	for _, b := range r.Builds {
		kernels = append(kernels, b.Kernels...)
	}
	m["kernels"] = kernels
	collected := []map[string]any{}
	for _, s := range r.Repository.Taken() {
		collected = append(collected, map[string]any{"path": s.File, "name": s.Name, "definition": s.Definition, "author": s.Author})
	}
	m["collected"] = collected
	return m
}

func sourceBytes(sol *trace.Solution) (n int) {
	for _, f := range sol.Sources {
		n += len(f.Content)
	}
	return n
}

func callText(sol *trace.Solution, def *trace.Definition) string {
	in, out := def.Inputs.Len(), def.Outputs.Len()
	if sol.Spec.DestinationPassingStyle {
		return fmt.Sprintf("destination-passing: %d inputs and %d outputs", in, out)
	}
	return fmt.Sprintf("value-returning: %d inputs, %d results", in, out)
}

// checkFiles checks dataset files; what a file holds is told by its keys.
func (a *app) checkFiles(c *cli.Context, names []string) error {
	type fault struct {
		Text string `json:"text"`
		Hint string `json:"hint,omitempty"`
	}
	type checked struct {
		File   string  `json:"file"`
		Sound  bool    `json:"sound"`
		Holds  string  `json:"holds,omitempty"` // in words
		Faults []fault `json:"faults,omitempty"`
	}
	bad := false
	var all []checked
	for _, name := range names {
		file := path(c, name)
		what, warnings, err := checkFile(file)
		a.warn(warnings)
		one := checked{File: relative(file), Sound: err == nil, Holds: what}
		if err != nil {
			one.Holds = ""
			for _, e := range flatten(err) {
				text, hint := explain(e)
				one.Faults = append(one.Faults, fault{text, hint})
				a.term.Error(text, hint)
			}
			bad = true
		}
		all = append(all, one)
		if err == nil && !globalBool(c, "json") {
			fmt.Fprintf(a.stdout, "%s: sound %s\n", relative(file), what)
		}
	}
	if globalBool(c, "json") {
		if err := writeJSON(a.stdout, all); err != nil {
			return err
		}
	}
	if bad {
		return errShown
	}
	return nil
}

func checkFile(file string) (what string, warnings []trace.Warning, err error) {
	switch filepath.Ext(file) {
	case ".jsonl":
		traces, warnings, err := trace.ReadTraces(file)
		n := 0
		for _, t := range traces {
			if t.Evaluation != nil {
				n++
			}
		}
		return fmt.Sprintf("file of %d traces, %d of them evaluated", len(traces), n), warnings, err
	case ".json":
		data, err := os.ReadFile(file)
		if err != nil {
			return "", nil, err
		}
		var keys map[string]json.RawMessage
		_ = json.Unmarshal(data, &keys) // a syntax error is found again below, with its place
		has := func(key string) bool { _, ok := keys[key]; return ok }
		switch {
		case has("sources"), has("spec"):
			sol, warnings, err := trace.ReadSolution(file)
			if err != nil {
				return "", warnings, err
			}
			return "solution " + sol.Name + ", hash " + sol.Hash(), warnings, nil
		case has("uuid"):
			w, warnings, err := trace.ReadWorkload(file)
			if err != nil {
				return "", warnings, err
			}
			return "workload " + w.UUID, warnings, nil
		case has("workload"), has("evaluation"):
			_, warnings, err := trace.ReadTrace(file)
			return "trace", warnings, err
		}
		def, warnings, err := trace.ReadDefinition(file)
		if err != nil {
			return "", warnings, err
		}
		return "definition " + def.Name, warnings, nil
	}
	return "", nil, fmt.Errorf("%s: not a .json or .jsonl file", file)
}
