package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/trace"
	"fisub/pack"
)

func (a *app) checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "say what is wrong with the submission, or with dataset files, before anything runs",
		ArgsUsage: "[FILE...]",
		Description: "Without arguments: config.toml against the definition, the sources, the entry point, its export and parameters.\n" +
			"With --arch the kernel is also compiled as the contest compiles it, which takes no GPU. With FILE: definition,\n" +
			"solution, workload or trace files (.json, .jsonl) by the format's rules.\n\n" +
			"   fisub check\n" +
			"   fisub check --arch sm_100\n" +
			"   fisub check solution.json workloads/gdn/*.jsonl",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "arch", Usage: "compile for `ARCH[,ARCH...]`, such as sm_100"},
			&cli.StringFlag{Name: "solution", Usage: "check the packed solution in `FILE` instead of the sources"},
		},
		Action: a.check,
	}
}

func (a *app) check(c *cli.Context) error {
	if c.NArg() > 0 {
		return a.checkFiles(c, c.Args().Slice())
	}
	s, err := a.loadSubmission(c)
	if err != nil {
		return err
	}
	a.warn(s.warnings)
	var lines []string
	ok := func(what, format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%-10s  %s", what, fmt.Sprintf(format, args...)))
	}
	if s.cfg != nil {
		ok("config", "%s", relative(s.cfg.Path))
	}
	ok("definition", "%s, %d inputs, %d outputs", s.def.Name, s.def.Inputs.Len(), s.def.Outputs.Len())
	for _, e := range s.entries {
		if e.Status != pack.Included || e.Reason != "" {
			a.term.Warn(fmt.Sprintf("%s: %s", e.Path, e.Reason), "")
		}
	}
	a.warnOfContestPacker(s)
	ok("sources", "%d files, %d bytes", len(s.sol.Sources), sourceBytes(s.sol))
	findings := pack.Inspect(s.sol, s.def)
	bad := a.showFindings(findings, true)
	if !bad {
		ok("entry", "%s, %s", s.sol.Spec.EntryPoint, callText(s))
	}
	if archs := c.String("arch"); archs != "" && !bad {
		for _, arch := range strings.Split(archs, ",") {
			text, err := a.compile(c, s, arch)
			if err != nil {
				return err
			}
			bad = bad || text == ""
			if text != "" {
				ok("compiled", "%s: %s", arch, text)
			}
		}
	}
	if globalBool(c, "json") {
		if err := writeJSON(a.stdout, map[string]any{"ok": !bad, "content_hash": s.sol.Hash(), "findings": jsonFindings(findings),
			"files": jsonEntries(s.entries)}); err != nil {
			return err
		}
	} else {
		for _, line := range lines {
			fmt.Fprintln(a.stdout, line)
		}
		if !bad {
			fmt.Fprintf(a.stdout, "%-10s  %s\nsound\n", "hash", s.sol.Hash())
		}
	}
	if bad {
		return errShown
	}
	return nil
}

// compile builds the submission for arch; "" says that it does not compile, which has been shown.
func (a *app) compile(c *cli.Context, s *submission, arch string) (string, error) {
	if l := s.sol.Spec.Language; l != trace.CUDA && l != trace.CPP {
		return "", usage("leave --arch out", "--arch: %s submissions are not compiled ahead", l)
	}
	root, err := cache.Root()
	if err != nil {
		return "", err
	}
	obj, err := nvcc.Build(c.Context, root, s.sol, arch)
	var build *device.BuildError
	if errors.As(err, &build) {
		text := build.Text
		if log := strings.TrimRight(build.Log, "\n"); log != "" {
			text += "\n" + log
		}
		a.term.Error(arch+": "+text, "")
		return "", nil
	}
	if err != nil {
		return "", invalid(err)
	}
	return obj.Toolchain, nil
}

func sourceBytes(sol *trace.Solution) (n int) {
	for _, f := range sol.Sources {
		n += len(f.Content)
	}
	return n
}

func callText(s *submission) string {
	in, out := s.def.Inputs.Len(), s.def.Outputs.Len()
	if s.sol.Spec.DestinationPassingStyle {
		return fmt.Sprintf("destination-passing: %d inputs and %d outputs", in, out)
	}
	return fmt.Sprintf("value-returning: %d inputs, %d results", in, out)
}

// checkFiles checks dataset files; what a file holds is told by its keys.
func (a *app) checkFiles(c *cli.Context, names []string) error {
	bad := false
	for _, name := range names {
		file := path(c, name)
		what, warnings, err := checkFile(file)
		a.warn(warnings)
		if err != nil {
			for _, one := range flatten(err) {
				text, hint := explain(one)
				a.term.Error(text, hint)
			}
			bad = true
			continue
		}
		fmt.Fprintf(a.stdout, "%s: sound %s\n", relative(file), what)
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
