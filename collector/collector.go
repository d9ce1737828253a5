// Package collector finds what the contest takes of a repository, and packs it as the contest's own packer does. It
// knows the rules of both and no other package does; what a submission is worth it does not look into.
package collector

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/trace"
	"fisub/pack"
)

// Packed is the file at a repository's root that the contest takes as it is, and nothing else then.
const Packed = "packed_solution.json"

// PackHint is the advice for what the contest's own packer does not know.
const PackHint = "commit " + Packed + ", which the contest takes as it is: fisub pack --packed"

// A Submission is one that the contest finds.
type Submission struct {
	File                     string // its config.toml or Packed, below the root as Read was given it
	Path                     string // the same, relative to the root, with slashes
	Name, Definition, Author string // "" where they cannot be read

	Config   *config.Config  // as far as it can be read; nil for Packed
	Solution *trace.Solution // as the contest's own packer makes it of the config; nil where Err is set
	Err      error           // why it does not pack
	Warnings []trace.Warning // of reading Packed
	Reads    []string        // the files that are read for it, like Path
	Folder   string          // the one of its sources, likewise; "" for Packed
}

// A Scan is what a folder holds.
type Scan struct {
	Root    string
	Configs []Submission // each config.toml at the root and in the folders there
	Packed  *Submission  // nil where there is none
}

// Taken is what the contest takes.
func (s *Scan) Taken() []Submission {
	switch {
	case s == nil:
		return nil
	case s.Packed != nil:
		return []Submission{*s.Packed}
	}
	return s.Configs
}

// Of is what the contest takes for the submission of a config, a path below the root: that config, or Packed. It is nil
// where the contest takes neither.
func (s *Scan) Of(own string) *Submission {
	for _, t := range s.Taken() {
		if t.Path == own || t.Path == Packed {
			return &t
		}
	}
	return nil
}

// Read looks into the folder root. The error is that of reading it.
func Read(root string) (*Scan, error) {
	files, err := config.Discover(root)
	if err != nil {
		return nil, err
	}
	s := &Scan{Root: root}
	for _, file := range files {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		s.Configs = append(s.Configs, ofConfig(file, filepath.ToSlash(rel)))
	}
	file := filepath.Join(root, Packed)
	sol, warnings, err := readPacked(file)
	if !errors.Is(err, fs.ErrNotExist) {
		s.Packed = &Submission{File: file, Path: Packed, Solution: sol, Err: err, Warnings: warnings, Reads: []string{Packed}}
	}
	if sol != nil {
		s.Packed.Name, s.Packed.Definition, s.Packed.Author = sol.Name, sol.Definition, sol.Author
	}
	return s, nil
}

// Commit is Read of a clean checkout of the commit, which is gone again: File leads nowhere, and errors name files
// below the root.
func Commit(ctx context.Context, repo *git.Repository, commit string) (*Scan, error) {
	dir, remove, err := repo.Checkout(ctx, commit)
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := Read(dir)
	if err != nil {
		return nil, err
	}
	below := func(c *Submission) {
		if c != nil && c.Err != nil {
			c.Err = errors.New(strings.ReplaceAll(c.Err.Error(), dir+string(filepath.Separator), ""))
		}
	}
	below(s.Packed)
	for i := range s.Configs {
		below(&s.Configs[i])
	}
	return s, nil
}

func readPacked(file string) (*trace.Solution, []trace.Warning, error) {
	if st, err := os.Stat(file); err != nil {
		if l, lerr := os.Lstat(file); lerr == nil && l.Mode()&fs.ModeSymlink != 0 {
			return nil, nil, fmt.Errorf("%s: a link to nothing", file)
		}
		return nil, nil, err
	} else if !st.Mode().IsRegular() || st.Size() > pack.MaxPacked {
		return nil, nil, fmt.Errorf("%s: not a file of at most %d bytes", file, pack.MaxPacked)
	}
	return trace.ReadSolution(file)
}

// ofConfig packs the submission of a config as the contest does it.
func ofConfig(file, rel string) Submission {
	cfg, faults := config.Read(file)
	c := Submission{File: file, Path: rel, Config: cfg, Reads: []string{rel},
		Name: cfg.Solution.Name, Definition: cfg.Solution.Definition, Author: cfg.Solution.Author}
	for _, f := range faults {
		if !f.Harmless {
			c.Err = errors.Join(c.Err, f)
		}
	}
	if err := Packs(cfg); c.Err == nil && err != nil {
		c.Err = fmt.Errorf("%s: %w", rel, err)
	}
	if c.Err != nil {
		return c
	}
	own := *cfg
	own.Build.Dependencies, own.Solution.Description = nil, ""
	c.Folder = path.Join(path.Dir(rel), "solution", filepath.ToSlash(cfg.Build.SourceDir))
	var entries []pack.Entry
	c.Solution, entries, c.Err = pack.Solution(&own, cfg.SourceDir())
	for _, e := range entries {
		if e.Status != pack.Skipped {
			c.Reads = append(c.Reads, path.Join(c.Folder, e.Path))
		}
	}
	return c
}

// Packs says why the contest's own packer does not take the language of a config; nil where it does.
func Packs(cfg *config.Config) error {
	switch l := cfg.Build.Language; l {
	case trace.CPP, trace.TileLang:
		return fmt.Errorf("the contest's own packer knows cuda, triton and python, not %s", l)
	}
	return nil
}

// Lost are the keys of a config that the contest's own packer ignores. What it makes of the sources has another hash.
func Lost(cfg *config.Config) (keys []string) {
	if len(cfg.Build.Dependencies) > 0 {
		keys = append(keys, "build.dependencies")
	}
	return keys
}

// LostText is what to say of keys.
func LostText(keys ...string) string {
	return "the contest's own packer ignores " + strings.Join(keys, " and ")
}

// Differences names what two solutions differ in, of all that the contest looks at; none where they are the same
// submission.
func Differences(a, b *trace.Solution) (what []string) {
	for _, d := range []struct {
		name string
		same bool
	}{
		{"definition", a.Definition == b.Definition},
		{"name", a.Name == b.Name},
		{"author", a.Author == b.Author},
		{"destination_passing_style", a.Spec.DestinationPassingStyle == b.Spec.DestinationPassingStyle},
		{"content", a.Hash() == b.Hash()},
	} {
		if !d.same {
			what = append(what, d.name)
		}
	}
	return what
}
