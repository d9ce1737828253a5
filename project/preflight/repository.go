package preflight

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/pack"
	"fisub/project/preflight/source"
)

// Root returns the folder that the contest would clone to get the submission in dir: the nearest folder with a .git, at
// or above dir, or dir itself if there is no such folder.
func Root(dir string) string {
	root := git.Root(dir)
	if abs, err := filepath.Abs(dir); root == "" || err == nil && abs == root {
		return dir
	}
	return root
}

// Repository checks the repository in the folder root as a whole, and returns the contest's selection from it. It does
// not check the individual submissions.
func Repository(ctx context.Context, root string) (*pack.Collection, []Finding, error) {
	found, err := pack.Collect(root)
	if err != nil {
		return nil, nil, err
	}
	s := &scan{found, &checker{Report: &Report{}}}
	s.packedFile()
	s.several()
	s.deep()
	if repo, err := git.Open(ctx, root); err == nil && repo.Tracked(ctx, "solution.json") {
		s.add(Note, "solution-json", filepath.Join(root, "solution.json"),
			"git rm --cached solution.json; "+pack.Packed+" is the file that the contest reads: fisub pack --packed",
			"committed, but ignored by the contest")
	}
	if len(s.Taken()) == 0 {
		s.add(Error, "nothing-collected", root, "put config.toml at the root of the repository, or into a folder in the "+
			"root",
			"the contest finds no config.toml and no %s", pack.Packed)
	}
	return found, s.Findings, nil
}

// A scan is the state of one Repository.
type scan struct {
	*pack.Collection
	*checker
}

func (s *scan) packedFile() {
	p := s.Packed
	if p == nil {
		return
	}
	if p.Err != nil {
		s.add(Error, "invalid-packed", p.File,
			"the contest uses it instead of the sources: update it with fisub pack --packed, or delete it",
			"%s", strings.TrimPrefix(p.Err.Error(), p.File+": "))
		return
	}
	for _, w := range p.Warnings {
		s.add(Warning, "unknown-key", p.File, "", "%s", strings.TrimPrefix(w.String(), p.File+": "))
	}
	matched := false
	var hidden []string
	for _, c := range s.Configs {
		if c.Definition != p.Definition || matched {
			hidden = append(hidden, c.Path)
			continue
		}
		matched = true
		if !current(p, c.Config) {
			s.add(Warning, "stale-packed", p.File, "update it with fisub pack --packed, or delete it",
				"outdated: differs from the packed %s, but the contest uses it instead of the sources", filepath.Base(c.File))
		}
	}
	if len(hidden) > 0 {
		s.add(Warning, "packed-hides", p.File, "delete it, or keep one submission in the repository",
			"the contest uses it and ignores %s", strings.Join(hidden, ", "))
	}
}

// current reports whether the packed solution, which may be nil, equals the packed config and sources.
func current(packed *pack.Collected, cfg *config.Config) bool {
	if packed == nil || packed.Err != nil {
		return false
	}
	own, _, err := pack.Solution(cfg, cfg.SourceDir())
	return err == nil && len(pack.Differences(own, packed.Solution)) == 0
}

// several checks several configs against each other.
func (s *scan) several() {
	if len(s.Configs) < 2 {
		return
	}
	definitions, names := map[string]string{"": ""}, map[string]string{"": ""}
	for _, c := range s.Configs {
		again := func(seen map[string]string, value, key string, severity source.Severity, code, hint, what string) {
			if other := seen[value]; other != "" {
				s.fault(severity, c.Config.Fault(code, key, hint, "%s %s", other, what))
			} else if value != "" {
				seen[value] = c.File
			}
		}
		again(definitions, c.Definition, "solution.definition", Warning, "same-definition",
			"keep one config for each definition", "same definition: both are collected")
		again(names, c.Name, "solution.name", Warning, "same-name",
			"give each submission its own name", "same name: a dataset with both does not load, unless the pipeline "+
				"renames one")
	}
}

// others reports the configs other than own that the contest's collector takes but its packer cannot pack.
func (c *checker) others(own string) {
	st, err := os.Stat(own)
	if err != nil || c.Repository.Packed != nil { // then no config counts
		return
	}
	for _, other := range c.Repository.Configs {
		if o, err := os.Stat(other.File); other.Err == nil || err != nil || os.SameFile(st, o) {
			continue
		}
		text := strings.TrimPrefix(plain.First(other.Err.Error()), other.File+": ")
		f := config.Fault{Path: other.File, Msg: strings.TrimPrefix(text, other.Path+": ")}
		if faults := config.Faults(other.Err); len(faults) > 0 {
			f = *faults[0]
		}
		f.Code = "stray-config"
		f.Msg = "collected as another submission, but cannot be packed: " + f.Msg
		f.Hint = "fix it, or delete it if it is not a submission"
		c.fault(Note, &f)
	}
}

// deep looks for configs below the collector's search depth.
func (s *scan) deep() {
	severity := Note
	if len(s.Taken()) == 0 {
		severity = Error
	}
	sources := map[string]bool{}
	for _, c := range s.Configs {
		sources[filepath.Join(filepath.Dir(c.File), "solution")] = true
	}
	seen := 0
	_ = filepath.WalkDir(s.Root, func(path string, d fs.DirEntry, err error) error {
		if seen++; err != nil || seen > 20000 {
			return fs.SkipAll
		}
		rel, _ := filepath.Rel(s.Root, path)
		depth := strings.Count(rel, string(filepath.Separator))
		if d.IsDir() {
			if path != s.Root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules" ||
				sources[path] || depth > 4) {
				return fs.SkipDir
			}
			return nil
		}
		if d.Name() == config.Name && depth > 1 {
			s.add(severity, "config-too-deep", path, "move its folder to the root of the repository",
				"the contest looks for config.toml at the root and in its immediate subfolders only")
		}
		return nil
	})
}

// gitIgnored looks for sources that a clone would not have.
func (c *checker) gitIgnored(ctx context.Context, dir string) {
	repo, err := git.Open(ctx, dir)
	if err != nil {
		return
	}
	below, _ := repo.Relative(dir)
	changes, _ := repo.Changes(ctx, below)
	for _, e := range c.Entries {
		if e.Status != pack.Skipped && slices.Contains(changes, git.Change{Path: path.Join(below, e.Path),
			State: "ignored"}) {
			c.add(Warning, "ignored-by-git", filepath.Join(dir, e.Path), "run git add -f, or fix .gitignore",
				"ignored by git: missing in the contest's clone")
		}
	}
}
