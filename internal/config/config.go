// Package config reads config.toml, the description of a submission. It is strict, so that a misspelt key cannot
// silently change the packed solution, and reports all faults at once with their positions. It does not read the
// sources.
package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/trace"
)

// Name is the file name of a config.
const Name = "config.toml"

// maxSize limits the size of the file, in bytes.
const maxSize = 1 << 20

// A Config is a decoded config.toml.
type Config struct {
	Path     string // as given to Load or Parse
	Solution Solution
	Build    Build
	Bench    Bench
	Submit   Submit
	Remote   map[string]*Table // the tables [remote.NAME] by NAME, decoded by the providers
	Warnings []*Fault          // harmless faults, which Load accepts

	src    []byte
	places []place
}

// Solution is the table [solution].
type Solution struct {
	Name        string
	Definition  string
	Author      string
	Description string // "" if missing
}

// Build is the table [build].
type Build struct {
	Language                trace.Language
	EntryPoint              string // "file::symbol", neither part empty
	DestinationPassingStyle bool   // true if missing
	Binding                 string // "tvm-ffi", "torch", or "" if missing
	Dependencies            []string
	SourceDir               string // relative to solution/; defaults to the language
	TargetHardware          []string
}

// Bench is the table [bench]. Missing values are "".
type Bench struct {
	Profile  string // "official", "quick" or "thorough"
	Baseline string
	Set      string // workload set
}

// Submit is the table [submit]. Missing values are "".
type Submit struct {
	Tag    string // name of the tag; may contain {n}, the next number, and {definition}
	Remote string // name of the git remote to push to
}

// Load reads the config at path. Its error joins one *Fault per problem; see Faults.
func Load(path string) (*Config, error) {
	c, faults := Read(path)
	return c.unless(faults)
}

// Read is like Load but also returns the readable part of a faulty config: an invalid or missing value is empty or as
// written. The config is never nil.
func Read(path string) (*Config, []*Fault) {
	c := &Config{Path: path}
	none := func(err error, hint, format string, args ...any) (*Config, []*Fault) {
		f := &Fault{Code: "no-config", Path: path, Msg: fmt.Sprintf(format, args...), Hint: hint, err: err}
		return c, []*Fault{f}
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return none(nil, "use a file in it: "+filepath.Join(path, Name), "is a folder")
	}
	data, err := plain.ReadFile(path, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return none(err, "run this in the folder of the submission, or name its config.toml", "no such file")
	}
	if err != nil {
		advice := ""
		if kind, ok := errors.AsType[*plain.KindError](err); ok {
			advice = kind.Advice()
		}
		return none(plain.Cause(err), advice, "%v", plain.Cause(err))
	}
	return parse(path, data)
}

// Root returns the folder of the submission, which contains the config.
func (c *Config) Root() string { return filepath.Dir(c.Path) }

// SourceDir returns the folder of the sources: solution/<source_dir> below Root.
func (c *Config) SourceDir() string {
	return filepath.Join(c.Root(), "solution", filepath.FromSlash(c.Build.SourceDir))
}

// GuessEntry returns the entry point, or the probable one if it is not of the form file::symbol.
func (c *Config) GuessEntry() string {
	if entry := c.Build.EntryPoint; strings.Count(entry, "::") == 1 {
		return entry
	}
	file, symbol := guessEntry(c.Build.Language, c.Build.EntryPoint)
	return file + "::" + symbol
}

// Fault returns a fault at the value of key, such as "build.entry_point", at an unknown key itself, or at the table of
// a missing key. code and hint may be "".
func (c *Config) Fault(code, key, hint, format string, args ...any) *Fault {
	f := &Fault{Code: code, Path: c.Path, Msg: fmt.Sprintf(format, args...), Hint: hint}
	p, ok := c.place(key)
	if dot := strings.LastIndexByte(key, '.'); code == "unknown-key" {
		p.value = p.key // the value may be right
	} else if !ok && dot > 0 {
		p, ok = c.place(key[:dot])
	}
	if ok {
		f.at(c.src, p.value)
	}
	return f
}

// UnknownDefinition returns a fault for a definition that is not in known. Its hint suggests the nearest names.
func (c *Config) UnknownDefinition(known []string) *Fault {
	name := c.Solution.Definition
	hint := cmp.Or(meant(name, known), "fisub dataset ls lists the definitions")
	return c.Fault("unknown-definition", "solution.definition", hint, "unknown definition %q", name)
}

// Check checks c against its definition. Its error joins *Fault values.
func Check(c *Config, def *trace.Definition) error {
	var faults []error
	if c.Solution.Definition != def.Name {
		faults = append(faults, c.Fault("unknown-definition", "solution.definition", "", "definition %q is not %q",
			c.Solution.Definition, def.Name))
	}
	if c.Build.DestinationPassingStyle {
		for name, out := range def.Outputs.All() {
			if out.Scalar {
				faults = append(faults, c.Fault("scalar-output", "build.destination_passing_style",
					"set destination_passing_style = false and return the outputs",
					"output %q is a scalar, which destination-passing style cannot allocate", name))
			}
		}
	}
	return errors.Join(faults...)
}

// Discover returns the configs that the contest's collector finds in a repository: config.toml in dir, then in its
// immediate subfolders that are not hidden. Each is a submission of its own. Finding none is not an error.
func Discover(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	add := func(path string) {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			paths = append(paths, path)
		}
	}
	add(filepath.Join(dir, Name))
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			add(filepath.Join(dir, e.Name(), Name))
		}
	}
	return paths, nil
}

// Encode writes [solution] and [build] for Parse. It omits missing and default values, except
// destination_passing_style. Strings must be valid UTF-8.
func Encode(c *Config) []byte {
	var b strings.Builder
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s = %s\n", key, quote(value))
		}
	}
	b.WriteString("[solution]\n")
	line("name", c.Solution.Name)
	line("definition", c.Solution.Definition)
	line("author", c.Solution.Author)
	line("description", c.Solution.Description)
	b.WriteString("\n[build]\n")
	line("language", string(c.Build.Language))
	line("entry_point", c.Build.EntryPoint)
	fmt.Fprintf(&b, "destination_passing_style = %t\n", c.Build.DestinationPassingStyle)
	line("binding", c.Build.Binding)
	if deps := c.Build.Dependencies; len(deps) > 0 {
		items := make([]string, len(deps))
		for i, d := range deps {
			items[i] = quote(d)
		}
		fmt.Fprintf(&b, "dependencies = [%s]\n", strings.Join(items, ", "))
	}
	if c.Build.SourceDir != string(c.Build.Language) {
		line("source_dir", c.Build.SourceDir)
	}
	return []byte(b.String())
}

// quote returns s as a TOML basic string. TOML and JSON strings differ in one character.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // never fails
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007F`)
}

// quoted lists words as "a", "b" or "c".
func quoted(words []string) string {
	q := make([]string, len(words))
	for i, w := range words {
		q[i] = fmt.Sprintf("%q", w)
	}
	return plain.List(q, "or")
}

// meant returns a hint with the known words nearest to word, or "" if none is near.
func meant(word string, known []string) string {
	if near := plain.Nearest(word, known); len(near) > 0 {
		return "did you mean " + quoted(near) + "?"
	}
	return ""
}

// misspelt reports whether at most a quarter of word's letters differ from a known word.
func misspelt(word string, known []string) bool {
	return slices.ContainsFunc(known, func(k string) bool { return 4*plain.Edits(word, k) <= len(word) })
}

// A Fault is one problem in a config. Line and Col count from 1, Col in characters. Without a position both are 0 and
// Excerpt is "".
type Fault struct {
	Code      string // stable name of the kind of fault, such as "unknown-key"; may be ""
	Path      string
	Line, Col int
	Msg       string
	Excerpt   string // the source line with a marker below it; no final newline
	Hint      string // advice, or ""
	Harmless  bool   // the contest accepts the file anyway
	err       error
}

// Error returns the position and the message, without excerpt and hint.
func (f *Fault) Error() string {
	switch {
	case f.Path == "":
		return f.Msg
	case f.Line == 0:
		return f.Path + ": " + f.Msg
	}
	return fmt.Sprintf("%s:%d:%d: %s", f.Path, f.Line, f.Col, f.Msg)
}

// Advice returns the hint of the error.
func (f *Fault) Advice() string { return f.Hint }

// Excerpted returns Error and the excerpt.
func (f *Fault) Excerpted() string {
	if f.Excerpt == "" {
		return f.Error()
	}
	return f.Error() + "\n" + f.Excerpt
}

// Unwrap returns the underlying operating-system error, if any.
func (f *Fault) Unwrap() error { return f.err }

// Faults returns the faults that err joins, in order, or nil.
func Faults(err error) []*Fault {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case nil:
		return nil
	case *Fault:
		return []*Fault{e}
	case interface{ Unwrap() []error }:
		var all []*Fault
		for _, err := range e.Unwrap() {
			all = append(all, Faults(err)...)
		}
		return all
	case interface{ Unwrap() error }:
		return Faults(e.Unwrap())
	}
	return nil
}

// A span is a range of bytes of the source.
type span struct{ start, end int }

// at sets the place of f to s in src, with an excerpt of the line it starts in.
func (f *Fault) at(src []byte, s span) {
	f.Line, f.Col, f.Excerpt = plain.Mark(string(src), s.start, s.end)
}
