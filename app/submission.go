package app

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/workloads"
)

// A submission is what the commands work on: sources with their config, packed in memory, or a packed solution.
type submission struct {
	root     string         // folder of the config, or of the working directory for a packed solution
	cfg      *config.Config // nil for a packed solution
	data     *workloads.Dataset
	def      *trace.Definition
	sol      *trace.Solution
	entries  []pack.Entry
	warnings []trace.Warning
}

func openDataset(c *cli.Context) (*workloads.Dataset, error) {
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	dir := globalString(c, "dataset")
	if dir == "" {
		dir = os.Getenv("FIB_DATASET_PATH")
		if _, err := os.Stat(dir); dir != "" && err != nil {
			return nil, usage("let it name a dataset, or unset it: the embedded one is then taken", "FIB_DATASET_PATH: %w", err)
		}
	} else {
		dir = path(c, dir)
	}
	data, err := workloads.Open(dir, root)
	return data, invalid(err)
}

// loadSubmission reads the submission that the flags name: --solution FILE where the command has that flag, else the
// config. Its errors are about the user's input.
func (a *app) loadSubmission(c *cli.Context) (*submission, error) {
	data, err := openDataset(c)
	if err != nil {
		return nil, err
	}
	if file := c.String("solution"); file != "" {
		return loadPacked(path(c, file), path(c, "."), data)
	}
	return loadSources(configPath(c), data)
}

// configPath is the config that the flags name.
func configPath(c *cli.Context) string {
	return path(c, cmp.Or(globalString(c, "config"), config.Name))
}

// loadSources reads the config at file and packs its sources.
func loadSources(file string, data *workloads.Dataset) (*submission, error) {
	cfg, err := config.Load(file)
	if err != nil {
		return nil, invalid(err)
	}
	s := &submission{root: cfg.Root(), cfg: cfg, data: data}
	if s.def, err = data.Definition(cfg.Solution.Definition); err != nil {
		var unknown *workloads.NotFoundError
		if errors.As(err, &unknown) {
			return nil, invalid(cfg.UnknownDefinition(data.Definitions()))
		}
		return nil, invalid(err)
	}
	if err := config.Check(cfg, s.def); err != nil {
		return nil, invalid(err)
	}
	if s.sol, s.entries, err = pack.Solution(cfg, cfg.SourceDir()); err != nil {
		return nil, invalid(err)
	}
	return s, nil
}

func loadPacked(file, root string, data *workloads.Dataset) (*submission, error) {
	s := &submission{root: root, data: data}
	var err error
	if s.sol, s.warnings, err = trace.ReadSolution(file); err != nil {
		return nil, invalid(err)
	}
	if s.def, err = data.Definition(s.sol.Definition); err != nil {
		return nil, invalid(fmt.Errorf("%s: %w", file, err))
	}
	return s, nil
}

// relative shows a path as seen from the working directory where that is shorter.
func relative(p string) string {
	wd, err := os.Getwd()
	if err != nil {
		return p
	}
	if rel, err := filepath.Rel(wd, p); err == nil && len(rel) < len(p) {
		return rel
	}
	return p
}
