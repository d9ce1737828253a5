package pack

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
)

// Packed is the name of a packed solution at the root of a repository. If it exists, the contest ignores the sources.
const Packed = "packed_solution.json"

// CollectHint is the hint for anything that the contest's own packer does not support.
const CollectHint = "commit " + Packed + ", which the contest uses unchanged: fisub pack --packed"

// A Collected is a submission found by the contest's collector.
type Collected struct {
	File                     string // path of its config.toml or Packed, including the root
	Path                     string // the same, relative to the root, with slashes
	Name, Definition, Author string // "" if unreadable

	Config   *config.Config  // the readable part of the config; nil for Packed
	Solution *trace.Solution // as packed by the contest's own packer; nil if Err is set
	Err      error           // why packing fails
	Warnings []trace.Warning // from reading Packed
	Reads    []string        // files that it is packed from, in the form of Path
	Folder   string          // the folder of its sources, in the form of Path; "" for Packed
}

// A Collection lists the submissions of a repository, or of a folder without one.
type Collection struct {
	Root    string
	Configs []Collected // each config.toml at the root and in its subfolders
	Packed  *Collected  // may be nil
}

// Taken returns the submissions that the contest takes.
func (c *Collection) Taken() []Collected {
	switch {
	case c == nil:
		return nil
	case c.Packed != nil:
		return []Collected{*c.Packed}
	}
	return c.Configs
}

// Of returns the submission that the contest takes for the config own, a path relative to the root: Packed, the
// config's submission, or nil.
func (c *Collection) Of(own string) *Collected {
	for _, t := range c.Taken() {
		if t.Path == own || t.Path == Packed {
			return &t
		}
	}
	return nil
}

// Collect finds the submissions in the folder root like the contest's collector. It returns an error if root is
// unreadable; the error of a submission is in its Err.
func Collect(root string) (*Collection, error) {
	files, err := config.Discover(root)
	if err != nil {
		return nil, err
	}
	s := &Collection{Root: root}
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
		s.Packed = &Collected{File: file, Path: Packed, Solution: sol, Err: err, Warnings: warnings, Reads: []string{Packed}}
	}
	if sol != nil {
		s.Packed.Name, s.Packed.Definition, s.Packed.Author = sol.Name, sol.Definition, sol.Author
	}
	return s, nil
}

// CollectCommit runs Collect on a temporary clean checkout of the commit. Each File names a file that no longer exists.
// Paths in errors are relative to the root.
func CollectCommit(ctx context.Context, repo *git.Repository, commit string) (*Collection, error) {
	dir, remove, err := repo.Checkout(ctx, commit)
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := Collect(dir)
	if err != nil {
		return nil, err
	}
	below := func(c *Collected) {
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
			return nil, nil, fmt.Errorf("%s: broken link", file)
		}
		return nil, nil, err
	} else if st.Size() > MaxPacked {
		return nil, nil, fmt.Errorf("%s: larger than the limit of %d bytes", file, MaxPacked)
	}
	return trace.ReadSolution(file)
}

// ofConfig packs the submission of a config like the contest.
func ofConfig(file, rel string) Collected {
	cfg, faults := config.Read(file)
	c := Collected{File: file, Path: rel, Config: cfg, Reads: []string{rel},
		Name: cfg.Solution.Name, Definition: cfg.Solution.Definition, Author: cfg.Solution.Author}
	for _, f := range faults {
		if !f.Harmless {
			c.Err = errors.Join(c.Err, f)
		}
	}
	if err := Collectable(cfg); c.Err == nil && err != nil {
		c.Err = fmt.Errorf("%s: %w", rel, err)
	}
	if c.Err != nil {
		return c
	}
	own := *cfg
	own.Build.Dependencies, own.Solution.Description = nil, ""
	c.Folder = path.Join(path.Dir(rel), "solution", filepath.ToSlash(cfg.Build.SourceDir))
	var entries []Entry
	c.Solution, entries, c.Err = Solution(&own, cfg.SourceDir())
	for _, e := range entries {
		if e.Status != Skipped {
			c.Reads = append(c.Reads, path.Join(c.Folder, e.Path))
		}
	}
	return c
}

// Collectable returns an error if the contest's own packer does not support the config's language.
func Collectable(cfg *config.Config) error {
	switch l := cfg.Build.Language; l {
	case trace.CPP, trace.TileLang:
		return fmt.Errorf("the contest's own packer supports cuda, triton and python, not %s", l)
	}
	return nil
}

// Ignored is the warning about a config with dependencies: its solution has a different hash.
const Ignored = "the contest's own packer ignores build.dependencies"

// Differences names the properties in which two submissions differ for the contest.
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
