package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/solution/baselines"
)

// What --baseline may be, besides a name of solution/baselines and a file.
const (
	noBaseline        = "none"
	referenceBaseline = "reference" // the definition's own
)

// baseline finds what --baseline, the run that is resumed or the config names, for a run on a device of that kind; nil where they
// name none, and on the emulator, which keeps no time.
func (a *app) baseline(c *cli.Context, s *submission, old *runs.Run, kind string) (*bench.Baseline, error) {
	name, dir, fault := c.String("baseline"), path(c, "."), func(hint, text string) error { return usage(hint, "--baseline: %s", text) }
	switch {
	case c.IsSet("baseline"):
	case old != nil:
		name = noBaseline
		if old.Run.Baseline != nil {
			name = old.Run.Baseline.Name
		}
	case s.cfg != nil:
		name, dir = s.cfg.Bench.Baseline, s.root
		fault = func(hint, text string) error { return invalid(s.cfg.Fault("bench.baseline", hint, "%s", text)) }
	}
	if name == "" || name == noBaseline {
		return nil, nil
	}
	sol, definition, err := findBaseline(s, name, dir)
	switch {
	case err != nil:
		return nil, invalid(err)
	case definition == "":
		return nil, fault("one of "+strings.Join(baselineNames(s.root), ", ")+", or a packed solution, FILE.json", "unknown baseline "+name)
	case definition != s.def.Name:
		return nil, fault("", "baseline "+name+" is of definition "+definition+", not "+s.def.Name)
	}
	if kind == "emu" {
		a.term.Note("baseline   %s is left out: the emulator keeps no time", name)
		return nil, nil
	}
	return &bench.Baseline{Name: name, Solution: sol}, nil
}

// findBaseline reads a baseline by its name, or as a file below dir, and says of which definition it is: "" where there is none
// of that name. The solution is nil where that is another one than the submission's.
func findBaseline(s *submission, name, dir string) (sol *trace.Solution, definition string, err error) {
	if name == referenceBaseline {
		return bench.ReferenceSolution(s.def), s.def.Name, nil
	}
	if strings.HasSuffix(name, ".json") {
		file := name
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if sol, _, err = trace.ReadSolution(file); err != nil {
			return nil, "", err
		}
		return sol, sol.Definition, nil
	}
	if !filepath.IsLocal(name) || filepath.Base(name) != name {
		return nil, "", nil
	}
	place := filepath.Join(s.root, "solution", "baselines", name)
	if _, err := os.Stat(filepath.Join(place, config.Name)); errors.Is(err, fs.ErrNotExist) {
		if _, err := fs.Stat(baselines.FS, name+"/"+config.Name); err != nil {
			return nil, "", nil
		}
		if place, err = os.MkdirTemp("", "fisub-baseline-*"); err != nil {
			return nil, "", err
		}
		defer os.RemoveAll(place)
		shipped, err := fs.Sub(baselines.FS, name)
		if err == nil {
			err = os.CopyFS(place, shipped)
		}
		if err != nil {
			return nil, "", err
		}
	}
	cfg, err := config.Load(filepath.Join(place, config.Name))
	if err != nil || cfg.Solution.Definition != s.def.Name {
		if err == nil {
			definition = cfg.Solution.Definition
		}
		return nil, definition, err
	}
	if err := config.Check(cfg, s.def); err != nil {
		return nil, "", err
	}
	sol, _, err = pack.Solution(cfg, cfg.SourceDir())
	return sol, s.def.Name, err
}

// baselineNames lists those of the submission in root and those that fisub ships.
func baselineNames(root string) []string {
	names := []string{referenceBaseline}
	for _, fsys := range []fs.FS{os.DirFS(filepath.Join(root, "solution", "baselines")), baselines.FS} {
		found, _ := fs.Glob(fsys, "*/"+config.Name)
		for _, name := range found {
			names = append(names, filepath.Dir(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// baselineEvent describes b, which may be nil.
func baselineEvent(b *bench.Baseline) *event.Baseline {
	if b == nil {
		return nil
	}
	return &event.Baseline{Name: b.Name, Solution: b.Solution.Name, ContentHash: b.Solution.Hash()}
}

func baselineText(b *event.Baseline) string {
	if b == nil {
		return noBaseline
	}
	return b.Name + " " + plain.Short(b.ContentHash)
}
