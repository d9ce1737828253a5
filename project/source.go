package project

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/workloads"
	"fisub/workloads/tasks"
)

// A Source is a solution for compare: packed, in a folder with a config, or in a git revision of the submission.
type Source struct {
	Arg string
	*Submission
	Git     *event.Git // the revision; nil for files and folders
	Variant string     // the values of its constants, "TILE=16 STAGES=2", else ""
}

// ReadSource reads the solution named by arg. It returns nil without an error if arg names none.
func (p *Project) ReadSource(ctx context.Context, arg string, data *workloads.Dataset) (*Source, error) {
	if strings.HasSuffix(arg, ".json") {
		s, err := loadPacked(p.Path(arg), p.Root(), data)
		return &Source{Arg: arg, Submission: s}, err
	}
	t, err := p.Task()
	if err != nil {
		return nil, err
	}
	if here := filepath.Clean(p.Path(arg)) == filepath.Clean(p.Root()); t != nil && (here || filepath.Ext(arg) == ".py") {
		answer := p.Path(arg)
		if here {
			answer = t.Answer
		}
		s, err := p.loadTask(t, answer, data)
		return &Source{Arg: arg, Submission: s}, err
	}
	file := filepath.Join(p.Path(arg), config.Name)
	if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
		s, err := LoadSources(file, data)
		return &Source{Arg: arg, Submission: s}, err
	}
	rev, dir, named := strings.Cut(arg, ":")
	repo, err := git.Open(ctx, p.Root())
	if err != nil || rev == "" {
		return nil, nil
	}
	commit, err := repo.Commit(ctx, rev)
	if err != nil || commit == "" {
		return nil, err
	}
	if !named {
		dir, _ = repo.Relative(p.Root())
	}
	checkout, remove, err := repo.Checkout(ctx, commit)
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := p.loadRevision(checkout, dir, t, data)
	if err != nil {
		text := strings.ReplaceAll(err.Error(), checkout+string(filepath.Separator), "")
		return nil, usage.Invalid(fmt.Errorf("%s: %s", arg, text))
	}
	s.Root = p.Root()
	return &Source{Arg: arg, Submission: s, Git: &event.Git{Commit: commit}}, nil
}

// loadRevision loads the submission in a folder of a checkout, or the answer to t there. A link out of the checkout is
// an error.
func (p *Project) loadRevision(checkout, dir string, t *tasks.Task, data *workloads.Dataset) (*Submission, error) {
	if !filepath.IsLocal(filepath.Join(dir, config.Name)) {
		return nil, fmt.Errorf("%s: not in the repository", dir)
	}
	if dir = filepath.Join(checkout, dir); t != nil {
		return p.loadTask(t, filepath.Join(dir, filepath.Base(t.Answer)), data)
	}
	return LoadSources(filepath.Join(dir, filepath.Base(p.ConfigPath())), data)
}

// A Constant is a macro or constant of the sources, with the values that a sweep tries.
type Constant struct {
	Name   string
	Values []string
}

// constantStart matches the start of a constant in the values of --define, which are joined with commas.
var constantStart = regexp.MustCompile(`(?:^|,)([A-Za-z_]\w*)=`)

// ParseConstants parses the values of --define: TILE=16,32,64. A caller may have split them at the commas.
func ParseConstants(values []string) (list []Constant, err error) {
	text := strings.Join(values, ",")
	starts := constantStart.FindAllStringSubmatchIndex(text, -1)
	if len(starts) == 0 || starts[0][0] != 0 {
		return nil, usage.Errorf("--define TILE=16,32,64", "--define %s: want NAME=VALUE,VALUE", text)
	}
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		c := Constant{Name: text[at[2]:at[3]], Values: strings.Split(text[at[1]:end], ",")}
		for n, v := range c.Values {
			switch {
			case strings.TrimSpace(v) == "":
				return nil, usage.Errorf("--define "+c.Name+"=16,32,64", "--define %s: empty value", c.Name)
			case strings.ContainsAny(v, "\n\r\\"):
				return nil, usage.Errorf("", "--define %s: invalid character in value %q", c.Name, v)
			case slices.Contains(c.Values[:n], v):
				return nil, usage.Errorf("", "--define %s: duplicate value %s", c.Name, v)
			}
		}
		if slices.ContainsFunc(list, func(o Constant) bool { return o.Name == c.Name }) {
			return nil, usage.Errorf("list all values in one flag: --define "+c.Name+"=16,32", "--define %s: listed twice",
				c.Name)
		}
		list = append(list, c)
	}
	return list, nil
}

// Variants returns a source for each combination of the constants' values, at most limit. A variant differs from s only
// in the values.
func (s *Source) Variants(constants []Constant, limit int) ([]*Source, error) {
	all := []*Source{s}
	for _, c := range constants {
		at, err := s.find(c.Name)
		if err != nil {
			return nil, err
		}
		if len(all)*len(c.Values) > limit {
			return nil, usage.Errorf("fewer values, or one constant at a time",
				"--define: more than %d combinations of values", limit)
		}
		var next []*Source
		for _, base := range all {
			for _, v := range c.Values {
				next = append(next, base.with(at, c.Name, v))
			}
		}
		all = next
	}
	if len(all) < 2 {
		return nil, usage.Errorf(fmt.Sprintf("--define %s=%s,...", constants[0].Name, constants[0].Values[0]),
			"--define: one value is nothing to compare")
	}
	return all, nil
}

// A definition is the place of a constant's value: a line of a source, and the patterns around the value.
type definition struct {
	file, line int
	pattern    *regexp.Regexp
}

// definitionPatterns match a line that defines a constant in a source file: what precedes the value, the value, and
// what follows it.
func definitionPatterns(file, name string) (list []*regexp.Regexp) {
	texts := []string{
		`^(\s*#\s*define\s+NAME\s+)(\S.*?)(\s*(?://.*|/\*.*)?)$`,
		`^(.*\bconst(?:expr)?\b[^;(){}]*\bNAME\s*=\s*)([^=;,{}][^;,{}]*)([;,].*)$`,
	}
	if path.Ext(file) == ".py" {
		texts = []string{`^(NAME\s*(?::[^=]+)?=\s*)([^=#\s][^#]*?)(\s*(?:#.*)?)$`}
	}
	for _, text := range texts {
		list = append(list, regexp.MustCompile(strings.ReplaceAll(text, "NAME", name)))
	}
	return list
}

// find returns the only definition of a constant in the sources.
func (s *Source) find(name string) (at definition, err error) {
	example := fmt.Sprintf("#define %s 32, constexpr int %[1]s = 32; or, in Python, %[1]s = 32", name)
	var places []string
	for i, f := range s.Solution.Sources {
		patterns := definitionPatterns(f.Path, name)
		for n, line := range strings.Split(f.Content, "\n") {
			for _, re := range patterns {
				if m := re.FindStringSubmatch(strings.TrimSuffix(line, "\r")); m != nil && !strings.HasSuffix(m[2], "\\") {
					at = definition{i, n, re}
					places = append(places, fmt.Sprintf("%s:%d", plain.Line(f.Path), n+1))
				}
			}
		}
	}
	switch len(places) {
	case 0:
		return at, usage.Errorf("define it once: "+example, "--define %s: no source of %s defines it", name,
			plain.Line(s.Solution.Name))
	case 1:
		return at, nil
	}
	return at, usage.Errorf("define it once: "+example, "--define %s: more than one definition: %s", name,
		strings.Join(places, ", "))
}

// with returns a copy of s in which the constant has another value.
func (s *Source) with(at definition, name, value string) *Source {
	sub, sol := *s.Submission, *s.Solution
	sol.Sources = slices.Clone(sol.Sources)
	f := &sol.Sources[at.file]
	lines := strings.Split(f.Content, "\n")
	text, cut := strings.CutSuffix(lines[at.line], "\r")
	m := at.pattern.FindStringSubmatch(text)
	lines[at.line] = m[1] + value + m[3]
	if cut {
		lines[at.line] += "\r"
	}
	f.Content = strings.Join(lines, "\n")
	sub.Solution = &sol
	label := strings.TrimSpace(s.Variant + " " + name + "=" + value)
	return &Source{Arg: label, Submission: &sub, Git: s.Git, Variant: label}
}
