package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/preflight/source"
)

// packedName is the file that the contest's collector prefers to everything else.
const packedName = "packed_solution.json"

// maxPacked bounds a packed solution that is read, in bytes.
const maxPacked = 256 << 20

// A Collected is a submission that the contest's collector would take from a repository.
type Collected struct {
	Path       string // of its config.toml or packed_solution.json
	Name       string
	Definition string
	Author     string
}

// Root is the folder that the contest would clone to get the submission in dir: the nearest one with a .git, dir itself or
// above it; without one it is dir.
func Root(dir string) string {
	root := git.Root(dir)
	if abs, err := filepath.Abs(dir); root == "" || err == nil && abs == root {
		return dir
	}
	return root
}

// Repository scans the repository in the folder root as the contest's collector does: packed_solution.json at the root, else
// config.toml there and in the immediate subfolders. It returns what would be collected, in this order, and what is wrong
// with it as a whole. The single submissions are not looked into.
func Repository(ctx context.Context, root string) ([]Collected, []Finding, error) {
	paths, err := config.Discover(root)
	if err != nil {
		return nil, nil, err
	}
	s := &scan{root: root}
	for _, path := range paths {
		cfg, _ := config.Read(path)
		s.configs = append(s.configs, cfg)
	}
	s.packed()
	s.several()
	s.deep()
	if repo, err := git.Open(ctx, root); err == nil && repo.Tracked(ctx, "solution.json") {
		s.add(Note, "solution-json", filepath.Join(root, "solution.json"), "git rm --cached solution.json; packed_solution.json is the name that counts: fisub pack --packed",
			"committed, and the contest does not look at it")
	}
	if s.collected == nil {
		for _, c := range s.configs {
			s.collected = append(s.collected, Collected{c.Path, c.Solution.Name, c.Solution.Definition, c.Solution.Author})
		}
	}
	if s.collected == nil {
		s.add(Error, "nothing-collected", root, "put config.toml at the root of the repository, or into a folder there", "the contest finds no config.toml and no %s", packedName)
	}
	return s.collected, s.findings, nil
}

// A scan is one Repository.
type scan struct {
	root      string
	configs   []*config.Config
	collected []Collected
	findings  []Finding
}

func (s *scan) add(severity source.Severity, code, path, hint, format string, args ...any) {
	s.findings = append(s.findings, Finding{Code: code, Severity: severity, Path: path, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

func readPacked(path string) (*trace.Solution, []trace.Warning, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxPacked {
		return nil, nil, fmt.Errorf("%s: not a file of at most %d bytes", path, maxPacked)
	}
	return trace.ReadSolution(path)
}

// packed looks at packed_solution.json at the root.
func (s *scan) packed() {
	path := filepath.Join(s.root, packedName)
	sol, warnings, err := readPacked(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	s.collected = []Collected{{Path: path}}
	if err != nil {
		s.add(Error, "invalid-packed", path, "the contest takes it before the sources: write it anew with fisub pack --packed, or delete it", "%s", strings.TrimPrefix(err.Error(), path+": "))
		return
	}
	s.collected = []Collected{{path, sol.Name, sol.Definition, sol.Author}}
	for _, w := range warnings {
		s.add(Warning, "unknown-key", path, "", "%s", strings.TrimPrefix(w.String(), path+": "))
	}
	matched := false
	var hidden []string
	for _, cfg := range s.configs {
		if cfg.Solution.Definition != sol.Definition || matched {
			hidden = append(hidden, filepath.ToSlash(strings.TrimPrefix(cfg.Path, s.root+string(filepath.Separator))))
			continue
		}
		matched = true
		own, _, err := pack.Solution(cfg, cfg.SourceDir())
		if err != nil || !same(own, sol) {
			s.add(Warning, "stale-packed", path, "fisub pack --packed writes it anew; or delete it", "differs from what %s packs to, and the contest takes it before the sources", filepath.Base(cfg.Path))
		}
	}
	if len(hidden) > 0 {
		s.add(Warning, "packed-hides", path, "delete it, or keep one submission in the repository", "the contest takes it and leaves out %s", strings.Join(hidden, ", "))
	}
}

// several looks at configs beside each other.
func (s *scan) several() {
	if len(s.configs) < 2 {
		return
	}
	if first := s.configs[0]; filepath.Dir(first.Path) == filepath.Clean(s.root) {
		s.add(Warning, "stray-config", first.Path, "delete it, or move it and its sources into a folder of their own", "is collected as a submission of its own, beside those of %d subfolders", len(s.configs)-1)
	}
	for i, cfg := range s.configs {
		if at := slices.IndexFunc(s.configs[:i], func(o *config.Config) bool {
			return cfg.Solution.Definition != "" && o.Solution.Definition == cfg.Solution.Definition
		}); at >= 0 {
			f := cfg.Fault("solution.definition", "keep one config for each definition", "%s has the same definition: both are collected", s.configs[at].Path)
			f.Code = "same-definition"
			s.findings = append(s.findings, faultFinding(Warning, f))
		}
		if at := slices.IndexFunc(s.configs[:i], func(o *config.Config) bool {
			return cfg.Solution.Name != "" && o.Solution.Name == cfg.Solution.Name
		}); at >= 0 {
			f := cfg.Fault("solution.name", "give each submission a name of its own", "%s has the same name: a dataset with both does not load", s.configs[at].Path)
			f.Code = "same-name"
			s.findings = append(s.findings, faultFinding(Error, f))
		}
	}
}

// deep looks for configs that the collector does not see.
func (s *scan) deep() {
	severity := Note
	if len(s.configs) == 0 && s.collected == nil {
		severity = Error
	}
	sources := map[string]bool{}
	for _, cfg := range s.configs {
		sources[filepath.Join(cfg.Root(), "solution")] = true
	}
	seen := 0
	_ = filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if seen++; err != nil || seen > 20000 {
			return fs.SkipAll
		}
		rel, _ := filepath.Rel(s.root, path)
		depth := strings.Count(rel, string(filepath.Separator))
		if d.IsDir() {
			if path != s.root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules" || sources[path] || depth > 4) {
				return fs.SkipDir
			}
			return nil
		}
		if d.Name() == config.Name && depth > 1 {
			s.add(severity, "config-too-deep", path, "move its folder to the root of the repository", "the contest looks for config.toml at the root and in its immediate subfolders only")
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
		if e.Status != pack.Skipped && slices.Contains(changes, git.Change{Path: path.Join(below, e.Path), State: "ignored"}) {
			c.add(Warning, "ignored-by-git", filepath.Join(dir, e.Path), "git add -f it, or mend .gitignore",
				"git ignores it: the contest's clone does not have it")
		}
	}
}
