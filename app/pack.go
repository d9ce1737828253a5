package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"fisub/collector"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/preflight"
)

// maxSolution bounds a packed solution that is read whole, in bytes.
const maxSolution = 256 << 20

func (a *app) packCommand() *cli.Command {
	return &cli.Command{
		Name:  "pack",
		Usage: "write solution.json as the contest's packer does",
		Description: "Packs config.toml and the sources into one file, byte for byte what the contest's own packer writes.\n" +
			"Findings inside the sources are warnings here; fisub check treats them as errors.\n\n" +
			"   fisub pack\n" +
			"   fisub pack -o - | fisub unpack - copy",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write to `FILE`; - is stdout", DefaultText: "solution.json beside the config"},
			&cli.BoolFlag{Name: "packed", Usage: "write packed_solution.json, the name that the contest's collector prefers over the sources"},
		},
		Action: a.pack,
	}
}

func (a *app) pack(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	out := c.String("o")
	if out != "" && c.Bool("packed") {
		return usage("packed_solution.json has a fixed name", "-o and --packed exclude each other")
	}
	s, err := a.loadSubmission(c)
	if err != nil {
		return err
	}
	switch {
	case c.Bool("packed"):
		out = path(c, collector.Packed)
	case out == "":
		out = filepath.Join(s.root, "solution.json")
	case out != "-":
		out = path(c, out)
	}
	for _, packed := range append([]string{s.cfg.Path}, sourceFiles(s)...) {
		if sameFile(out, packed) {
			return usage("name another file", "-o %s: it is a part of what is packed", out)
		}
	}
	findings := preflight.Sources(s.sol, s.def)
	if err := pack.Write(a.stdout, out, s.sol); err != nil {
		return err
	}

	if globalBool(c, "json") {
		if out == "-" {
			return nil // stdout holds the solution, which is JSON
		}
		return writeJSON(a.stdout, map[string]any{"path": out, "name": s.sol.Name, "definition": s.sol.Definition, "author": s.sol.Author,
			"language": s.sol.Spec.Language, "content_hash": s.sol.Hash(), "files": jsonEntries(s.entries), "findings": jsonFindings(findings)})
	}
	w := a.stdout
	if out == "-" {
		w = a.stderr
	} else {
		fmt.Fprintf(w, "packed      %s\n", relative(out))
	}
	if !a.term.Quiet || out != "-" {
		fmt.Fprintf(w, "name        %s by %s\ndefinition  %s\nlanguage    %s, entry point %s\nhash        %s\n", s.sol.Name, s.sol.Author,
			s.sol.Definition, s.sol.Spec.Language, s.sol.Spec.EntryPoint, s.sol.Hash())
		for _, e := range s.entries {
			fmt.Fprintf(w, "%-10s  %s\n", e.Status, entryText(e))
		}
	}
	for _, f := range findings {
		if f.Severity != preflight.Note || a.term.Verbose {
			a.term.Warn(findingText(f), f.Hint)
		}
	}
	if !c.Bool("packed") {
		a.warnOfContestPacker(s)
	}
	return nil
}

// sourceFiles are the paths of the files that s was packed from.
func sourceFiles(s *submission) []string {
	var files []string
	for _, e := range s.entries {
		files = append(files, filepath.Join(s.cfg.SourceDir(), e.Path))
	}
	return files
}

// sameFile tells whether both paths lead to one file.
func sameFile(a, b string) bool {
	sa, err := os.Stat(a)
	if err != nil {
		return false
	}
	sb, err := os.Stat(b)
	return err == nil && os.SameFile(sa, sb)
}

// warnOfContestPacker names settings that the contest's own packer does not read: the solution that it makes of the
// repository has another hash than the one that was tested.
func (a *app) warnOfContestPacker(s *submission) {
	if s.cfg == nil {
		return
	}
	if lost := collector.Lost(s.cfg); len(lost) > 0 {
		a.term.Warn(relative(s.cfg.Path)+": "+collector.LostText(lost...), collector.PackHint)
	}
}

func entryText(e pack.Entry) string {
	text := fmt.Sprintf("%s, %d bytes", e.Path, e.Size)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// showFindings prints findings by their severity; strict makes errors of warnings.
func (a *app) showFindings(findings []preflight.Finding, strict bool) {
	for _, f := range findings {
		text := findingText(f)
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
}

// findingText is the place, the fact, the code, and the excerpt.
func findingText(f preflight.Finding) string {
	f.Path = relative(f.Path)
	text := plain.Line(fmt.Sprintf("%s [%s]", f, f.Code)) // names of files are the author's
	if f.Excerpt != "" {
		text += "\n" + f.Excerpt
	}
	return text
}

func jsonEntries(entries []pack.Entry) []map[string]any {
	list := []map[string]any{}
	for _, e := range entries {
		list = append(list, map[string]any{"path": e.Path, "status": e.Status, "reason": e.Reason, "bytes": e.Size})
	}
	return list
}

func jsonFindings(findings []preflight.Finding) []map[string]any {
	list := []map[string]any{}
	for _, f := range findings {
		list = append(list, map[string]any{"code": f.Code, "path": f.Path, "line": f.Line, "column": f.Col, "message": f.Msg, "hint": f.Hint, "severity": f.Severity})
	}
	return list
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (a *app) unpackCommand() *cli.Command {
	return &cli.Command{
		Name:      "unpack",
		Usage:     "write the sources and config.toml of a packed solution into a folder",
		ArgsUsage: "FILE DIR",
		Description: "Writes below DIR only, and never over a file with other content. What comes out packs to the same hash.\n\n" +
			"   fisub unpack solution.json copy\n" +
			"   fisub -C copy pack",
		Action: a.unpack,
	}
}

func (a *app) unpack(c *cli.Context) error {
	if c.NArg() != 2 {
		return usage("fisub unpack FILE DIR", "unpack: got %d arguments, want a packed solution and a folder", c.NArg())
	}
	var data []byte
	var err error
	if name := c.Args().Get(0); name == "-" {
		data, err = io.ReadAll(io.LimitReader(a.stdin, maxSolution+1))
	} else if st, serr := os.Stat(path(c, name)); serr == nil && st.Size() > maxSolution {
		err = fmt.Errorf("%s: %d bytes are more than the limit of %d", name, st.Size(), maxSolution)
	} else {
		data, err = os.ReadFile(path(c, name))
	}
	if err == nil && len(data) > maxSolution {
		err = fmt.Errorf("stdin: more than the limit of %d bytes", maxSolution)
	}
	if err != nil {
		return invalid(err)
	}
	got, err := pack.Unpack(data, path(c, c.Args().Get(1)))
	if err != nil {
		var faults *trace.ValidationError
		if errors.As(err, &faults) && c.Args().Get(0) != "-" {
			faults.Place = c.Args().Get(0)
		}
		return invalid(err)
	}
	a.warn(got.Warnings)
	for _, n := range got.Notes {
		a.term.Warn(n, "")
	}
	if globalBool(c, "json") {
		return writeJSON(a.stdout, map[string]any{"folder": path(c, c.Args().Get(1)), "files": got.Files, "notes": append([]string{}, got.Notes...)})
	}
	for _, f := range got.Files {
		fmt.Fprintln(a.stdout, f)
	}
	return nil
}
