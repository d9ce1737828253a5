// Package project reads the user's project: its submission, dataset, run folders and tables. It does not run anything.
package project

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/pack"
	"fisub/workloads"
	"fisub/workloads/tasks"
)

// A Project is a user's project. The zero Project is the working directory with the default dataset.
type Project struct {
	Dir     string   // "" for the working directory
	Config  string   // "" for config.toml in Dir
	Dataset string   // "" for $FIB_DATASET_PATH, else the embedded one
	Version string   // version of fisub, recorded in runs
	Command []string // command line, recorded in runs

	Warn func(text, hint string) // called for unreadable runs

	task func() (*tasks.Task, error) // nil before the first call of Task
}

// Path resolves name relative to the project's folder.
func (p *Project) Path(name string) string {
	if p.Dir == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.Dir, name)
}

// ConfigPath returns the path of the config, which need not exist.
func (p *Project) ConfigPath() string { return p.Path(cmp.Or(p.Config, config.Name)) }

// Root returns the folder of the config, which contains the runs.
func (p *Project) Root() string { return filepath.Dir(p.ConfigPath()) }

// OpenDataset opens the dataset of the project. A task is one of its own.
func (p *Project) OpenDataset() (*workloads.Dataset, error) {
	if t, err := p.Task(); err != nil {
		return nil, err
	} else if t != nil {
		return openTask(t)
	}
	root, _ := cache.Root() // without a cache, only reading inputs fails
	dir := os.Getenv("FIB_DATASET_PATH")
	if p.Dataset != "" {
		dir = p.Path(p.Dataset)
	} else if _, err := os.Stat(dir); dir != "" && err != nil {
		return nil, usage.Errorf("set it to a dataset, or unset it to use the embedded one", "FIB_DATASET_PATH: %w", err)
	}
	data, err := workloads.Open(dir, root)
	if err == nil && len(data.Definitions()) == 0 {
		return nil, usage.Errorf("a dataset has a folder named definitions", "%s: no definitions", dir)
	}
	return data, usage.Invalid(err)
}

// Configs returns the configs to check: the project's, or, if the default does not exist, those in its immediate
// subfolders, which the contest collects.
func (p *Project) Configs() []string {
	file := p.ConfigPath()
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && p.Config == "" {
		if found, err := config.Discover(filepath.Dir(file)); err == nil && len(found) > 0 {
			return found
		}
	}
	return []string{file}
}

// Tables returns the tables [remote.NAME], or nil without a config.
func (p *Project) Tables() (map[string]*config.Table, error) {
	cfg, err := config.Load(p.ConfigPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if t, _ := p.Task(); t != nil && err != nil { // a config beside a task has only tables
		syntax := func(f *config.Fault) bool { return f.Code == "config-syntax" }
		if cfg, faults := config.Read(p.ConfigPath()); !slices.ContainsFunc(faults, syntax) {
			return cfg.Remote, nil
		}
	}
	if err != nil {
		return nil, usage.Invalid(err)
	}
	return cfg.Remote, nil
}

// A Submission is the input of most commands: sources with their config, packed in memory, or a packed solution.
type Submission struct {
	Root       string         // folder of the config, or of the working directory for a packed solution
	Config     *config.Config // nil for a packed solution, and for an answer to a task
	Data       *workloads.Dataset
	Definition *trace.Definition
	Solution   *trace.Solution
	Entries    []pack.Entry
	Warnings   []trace.Warning
}

// Load reads the packed solution, or the config and its sources if packed is "". Its errors are about the user's input.
func (p *Project) Load(packed string) (*Submission, error) {
	data, err := p.OpenDataset()
	if err != nil {
		return nil, err
	}
	if packed != "" {
		return loadPacked(p.Path(packed), p.Path("."), data)
	}
	if t, err := p.Task(); err != nil {
		return nil, err
	} else if t != nil {
		return p.loadTask(t, t.Answer, data)
	}
	return LoadSources(p.ConfigPath(), data)
}

// LoadSources reads the config file and packs its sources.
func LoadSources(file string, data *workloads.Dataset) (*Submission, error) {
	s, err := PackSources(file, data)
	if err != nil {
		return nil, err
	}
	if s.Definition == nil {
		for _, f := range s.Config.Warnings {
			if f.Code == "track-name" {
				return nil, usage.Invalid(f)
			}
		}
		return nil, usage.Invalid(s.Config.UnknownDefinition(data.Definitions()))
	}
	return s, usage.Invalid(config.Check(s.Config, s.Definition))
}

// PackSources is LoadSources without the checks against the definition, which the contest's packer ignores. Definition
// is nil if it is not in the dataset.
func PackSources(file string, data *workloads.Dataset) (*Submission, error) {
	cfg, err := config.Load(file)
	if err != nil {
		return nil, usage.Invalid(err)
	}
	s := &Submission{Root: cfg.Root(), Config: cfg, Data: data}
	if s.Definition, err = data.Definition(cfg.Solution.Definition); err != nil {
		if _, ok := errors.AsType[*workloads.NotFoundError](err); !ok {
			return nil, usage.Invalid(err)
		}
	}
	s.Solution, s.Entries, err = pack.Solution(cfg, cfg.SourceDir())
	if err != nil {
		return nil, usage.Invalid(err)
	}
	packed := []string{cfg.SourceDir()}
	for _, e := range s.Entries {
		if e.Status != pack.Skipped || e.Reason == pack.BrokenLink || e.Reason == pack.LinkLoop {
			packed = append(packed, filepath.Join(cfg.SourceDir(), e.Path))
		}
	}
	for _, name := range packed {
		if to := git.LinkOut(cmp.Or(git.Root(s.Root), s.Root), name); to != "" {
			return nil, usage.Errorf("replace it with the file itself", "%s: a link to %s, outside the repository", name, to)
		}
	}
	return s, nil
}

// loadPacked reads the packed solution in file. Its runs are stored below root.
func loadPacked(file, root string, data *workloads.Dataset) (*Submission, error) {
	s := &Submission{Root: root, Data: data}
	var err error
	if s.Solution, s.Warnings, err = trace.ReadSolution(file); err != nil {
		return nil, usage.Invalid(err)
	}
	if s.Definition, err = data.Definition(s.Solution.Definition); err != nil {
		return nil, usage.Invalid(fmt.Errorf("%s: %w", file, err))
	}
	return s, nil
}

// Places applies plain.Places to text with the sources of s. For a packed solution it returns text.
func (s *Submission) Places(text string) string {
	if s.Config == nil {
		return text
	}
	return plain.Places(text, plain.Relative(s.Config.SourceDir()), s.SourcePaths())
}

// SourceFolder returns the folder of the sources relative to the project, with slashes, or "" for a packed solution.
func (s *Submission) SourceFolder() string {
	if s.Config == nil {
		return ""
	}
	return path.Join("solution", s.Config.Build.SourceDir)
}

// SourcePaths returns the paths of the sources in the solution.
func (s *Submission) SourcePaths() (paths []string) {
	for _, f := range s.Solution.Sources {
		paths = append(paths, f.Path)
	}
	return paths
}

// Files returns the paths of the files that s was packed from.
func (s *Submission) Files() []string {
	var files []string
	for _, e := range s.Entries {
		files = append(files, filepath.Join(s.Config.SourceDir(), e.Path))
	}
	return files
}
