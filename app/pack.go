package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/pack"
	"fisub/project"
	"fisub/project/preflight"
)

type packOptions struct {
	out    string
	packed bool
}

func (a *app) packCommand() *cli.Command {
	var o packOptions
	return &cli.Command{
		Name:  "pack",
		Usage: "write solution.json as the contest's packer does",
		Flags: []cli.Flag{
			stringFlag(&o.out, "o", "write to `FILE`; - is stdout", "solution.json next to the config"),
			boolFlag(&o.packed, "packed", "write packed_solution.json, which the contest prefers to the sources"),
		},
		Action: func(c *cli.Context) error { return a.pack(c.Context, o) },
	}
}

// A packed is the result of pack.
type packed struct {
	Path        string              `json:"path"`
	Name        string              `json:"name"`
	Definition  string              `json:"definition"`
	Author      string              `json:"author"`
	Language    trace.Language      `json:"language"`
	ContentHash string              `json:"content_hash"`
	Files       []pack.Entry        `json:"files"`
	Findings    []preflight.Finding `json:"findings"`
}

func (a *app) pack(ctx context.Context, o packOptions) error {
	if o.out != "" && o.packed {
		return usage.Errorf("packed_solution.json has a fixed name", "-o and --packed exclude each other")
	}
	if o.out == "-" && a.final != nil {
		return usage.Errorf("use a file, or omit --json=final", "-o - and --json=final would both write to stdout")
	}
	data, err := a.openContest()
	if err != nil {
		return err
	}
	s, err := project.PackSources(a.ConfigPath(), data)
	if err != nil {
		return err
	}
	doubts := s.Config.Warnings
	if s.Definition == nil && trace.Track(s.Solution.Definition) == nil {
		doubts = append(doubts, s.Config.UnknownDefinition(data.Definitions()))
	}
	for _, f := range doubts {
		a.term.Warn(usage.Explain(f))
	}
	out := filepath.Join(s.Root, "solution.json")
	switch {
	case o.packed:
		out = a.Path(pack.Packed)
	case o.out == "-":
		out = "-"
	case o.out != "":
		out = a.Path(o.out)
	}
	old, statErr := os.Stat(out)
	for _, part := range append([]string{s.Config.Path}, s.Files()...) {
		if st, err := os.Stat(part); err == nil && statErr == nil && os.SameFile(st, old) {
			return usage.Errorf("name another file", "-o %s: overwrites one of the packed files", out)
		}
	}
	findings := preflight.Sources(ctx, s.Solution, s.Definition)
	if err := pack.Write(a.stdout, out, s.Solution); err != nil {
		return err
	}
	sol := s.Solution
	if a.final != nil {
		a.final.Pack(a.Root(), out, sol, findings)
		return nil
	}
	if a.json {
		if out == "-" {
			return nil // stdout holds the solution, which is already JSON
		}
		return a.writeJSON(packed{out, sol.Name, sol.Definition, sol.Author, sol.Spec.Language, sol.Hash(),
			append([]pack.Entry{}, s.Entries...), append([]preflight.Finding{}, findings...)})
	}
	w := a.stdout
	if out == "-" {
		w = a.stderr
	} else {
		fmt.Fprintf(w, "packed      %s\n", plain.Relative(out))
	}
	if !a.term.Quiet || out != "-" {
		fmt.Fprintf(w, "name        %s by %s\ndefinition  %s\nlanguage    %s, entry point %s\nhash        %s\n",
			plain.Line(sol.Name), plain.Line(sol.Author), plain.Line(sol.Definition), sol.Spec.Language,
			plain.Line(sol.Spec.EntryPoint), sol.Hash())
		for _, e := range s.Entries {
			reason := ""
			if e.Reason != "" {
				reason = ": " + e.Reason
			}
			fmt.Fprintf(w, "%-10s  %s, %d bytes%s\n", e.Status, plain.Line(e.Path), e.Size, plain.Line(reason))
		}
	}
	for _, f := range findings {
		if f.Severity != preflight.Note || a.term.Verbose {
			a.term.Warn(f.Text(), f.Hint)
		}
	}
	// The contest's own packer ignores some keys of the config: its solution then has another hash than the tested
	// one.
	if len(s.Config.Build.Dependencies) > 0 && !o.packed {
		a.term.Warn(plain.Relative(s.Config.Path)+": "+pack.Ignored, pack.CollectHint)
	}
	return nil
}

func (a *app) unpackCommand() *cli.Command {
	return &cli.Command{
		Name:      "unpack",
		Usage:     "write the sources and config.toml of a packed solution into a folder",
		ArgsUsage: "FILE DIR",
		Action:    func(c *cli.Context) error { return a.unpack(c.Args().Get(0), a.Path(c.Args().Get(1))) },
	}
}

// An unpacked is the result of unpack.
type unpacked struct {
	Folder string   `json:"folder"`
	Files  []string `json:"files"`
	Notes  []string `json:"notes"`
}

func (a *app) unpack(file, dir string) error {
	data, err := a.readPacked(file)
	if err != nil {
		return usage.Invalid(err)
	}
	got, err := pack.Unpack(data, dir)
	if err != nil {
		if faults, ok := errors.AsType[*trace.ValidationError](err); ok && file != "-" {
			faults.File = file
		}
		return usage.Invalid(err)
	}
	a.warn(got.Warnings)
	for _, n := range got.Notes {
		a.term.Warn(n, "")
	}
	if a.json {
		return a.writeJSON(unpacked{dir, got.Files, append([]string{}, got.Notes...)})
	}
	for _, f := range got.Files {
		fmt.Fprintln(a.stdout, f)
	}
	return nil
}

// readPacked reads a packed solution. A file of "-" means stdin.
func (a *app) readPacked(file string) ([]byte, error) {
	in, name := a.term.In, "stdin"
	if file != "-" {
		f, err := plain.Open(a.Path(file))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, name = f, file
	}
	data, err := io.ReadAll(io.LimitReader(in, pack.MaxPacked+1))
	if err == nil && len(data) > pack.MaxPacked {
		err = fmt.Errorf("%s: larger than the limit of %d bytes", name, pack.MaxPacked)
	}
	return data, err
}
