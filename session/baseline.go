package session

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/pack"
	"fisub/solution/baselines"
)

// What a baseline may be called, besides a name of solution/baselines and a file.
const (
	NoBaseline        = "none"
	referenceBaseline = "reference" // the definition's own
)

// FindBaseline finds what named, the run that is resumed or the config names, for a run on a device of that kind; nil
// where they name none, and on the emulator, which keeps no time.
func (p *Project) FindBaseline(s *Submission, named string, old *runs.Run, kind string,
	term *ui.Terminal) (*bench.Baseline, error) {
	name, dir := named, p.Path(".")
	fault := func(hint, text string) error { return usage.Errorf(hint, "--baseline: %s", text) }
	switch {
	case name != "":
	case old != nil && old.Run.Baseline != nil:
		name = old.Run.Baseline.Name
	case old == nil && s.Config != nil:
		name, dir = s.Config.Bench.Baseline, s.Root
		fault = func(hint, text string) error {
			return usage.Invalid(s.Config.Fault("", "bench.baseline", hint, "%s", text))
		}
	}
	if name == "" || name == NoBaseline {
		return nil, nil
	}
	sol, definition, err := readBaseline(s, name, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault("", name+": "+plain.Cause(err).Error())
	case err != nil:
		return nil, usage.Invalid(err)
	case definition == "":
		known := strings.Join(BaselineNames(s.Root, s.Definition.Name), ", ")
		return nil, fault("one of "+known+", or a packed solution, FILE.json", "unknown baseline "+name)
	case definition != s.Definition.Name:
		return nil, fault("", "baseline "+name+" is of definition "+definition+", not "+s.Definition.Name)
	}
	if kind == "emu" {
		term.Note("baseline   %s is left out: the emulator keeps no time", name)
		return nil, nil
	}
	return &bench.Baseline{Name: name, Solution: sol}, nil
}

// readBaseline reads a baseline by its name, or as a file below dir, and says of which definition it is: "" where there
// is none of that name. The solution is nil where that is another one than the submission's.
func readBaseline(s *Submission, name, dir string) (sol *trace.Solution, definition string, err error) {
	if name == referenceBaseline {
		return bench.ReferenceSolution(s.Definition), s.Definition.Name, nil
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
	place := filepath.Join(s.Root, "solution", "baselines", name)
	if _, err := os.Stat(filepath.Join(place, config.Name)); errors.Is(err, fs.ErrNotExist) {
		shipped, err := fs.Sub(baselines.FS, name)
		if err != nil {
			return nil, "", err
		}
		if _, err := fs.Stat(shipped, config.Name); err != nil {
			return nil, "", nil
		}
		var remove func()
		if place, remove, err = cache.TempDir("fisub-baseline"); err != nil {
			return nil, "", err
		}
		defer remove()
		if err := os.CopyFS(place, shipped); err != nil {
			return nil, "", err
		}
	}
	cfg, err := config.Load(filepath.Join(place, config.Name))
	if err != nil {
		return nil, "", err
	}
	if cfg.Solution.Definition != s.Definition.Name {
		return nil, cfg.Solution.Definition, nil
	}
	if err := config.Check(cfg, s.Definition); err != nil {
		return nil, "", err
	}
	sol, _, err = pack.Solution(cfg, cfg.SourceDir())
	return sol, s.Definition.Name, err
}

// BaselineNames lists the baselines of a definition, "" for all: those of the submission in root, and those that fisub
// ships.
func BaselineNames(root, definition string) []string {
	names := []string{referenceBaseline}
	for _, fsys := range []fs.FS{os.DirFS(filepath.Join(root, "solution", "baselines")), baselines.FS} {
		found, _ := fs.Glob(fsys, "*/"+config.Name)
		for _, name := range found {
			text, _ := fs.ReadFile(fsys, name)
			cfg, err := config.Parse(name, text)
			if definition == "" || err == nil && cfg.Solution.Definition == definition {
				names = append(names, filepath.Dir(name))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func baselineText(b *event.Baseline) string {
	if b == nil {
		return NoBaseline
	}
	return b.Name + " " + plain.Short(b.ContentHash)
}
