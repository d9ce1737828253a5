package setup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fisub/bench"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/pack"
	"fisub/project"
	"fisub/runs"
	"fisub/solution/baselines"
)

// Names of baselines, in addition to folders of solution/baselines and files.
const (
	NoBaseline        = "none"
	referenceBaseline = "reference" // the definition's own
)

// findBaseline returns the baseline given by named, the resumed run or the config, for a device of that kind. It
// returns nil without one, and on the virtual GPU, which measures no time.
func findBaseline(p *project.Project, s *project.Submission, named string, old *runs.Run, kind string,
	term *ui.Terminal) (*bench.Baseline, error) {
	name, dir, configured := named, p.Path("."), false
	switch {
	case name != "":
	case old != nil && old.Run.Baseline != nil:
		name = old.Run.Baseline.Name
	case old == nil && s.Config != nil:
		name, dir, configured = s.Config.Bench.Baseline, s.Root, true
	}
	if name == "" || name == NoBaseline {
		return nil, nil
	}
	sol, definition, err := readBaseline(s, name, dir)
	fault, hint := "", ""
	switch {
	case s.Definition.Python != nil:
		fault, hint = "a task has none", "fisub compare OTHER.py . times two answers alternately"
	case errors.Is(err, fs.ErrNotExist):
		fault = name + ": " + plain.Cause(err).Error()
	case err != nil:
		return nil, usage.Invalid(err)
	case definition == "":
		known := strings.Join(BaselineNames(s.Root, s.Definition.Name), ", ")
		fault, hint = "unknown baseline "+name, "one of "+known+", or a packed solution, FILE.json"
	case definition != s.Definition.Name:
		fault = "baseline " + name + " is of definition " + definition + ", not " + s.Definition.Name
	}
	switch {
	case fault != "" && configured:
		return nil, usage.Invalid(s.Config.Fault("", "bench.baseline", hint, "%s", fault))
	case fault != "":
		return nil, usage.Errorf(hint, "--baseline: %s", fault)
	}
	if kind == "emu" {
		term.Note("baseline   %s not run: the virtual GPU measures no time", name)
		return nil, nil
	}
	return &bench.Baseline{Name: name, Solution: sol}, nil
}

// readBaseline reads a baseline by its name, or as a file below dir, and returns its definition, or "" if there is
// nothing of that name. The solution is nil if the definition differs from s's.
func readBaseline(s *project.Submission, name, dir string) (sol *trace.Solution, definition string, err error) {
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

// BaselineNames lists the baselines of a definition, or of all for "", in the project at root and in this program.
func BaselineNames(root, definition string) []string {
	names := []string{referenceBaseline}
	for _, fsys := range []fs.FS{os.DirFS(filepath.Join(root, "solution", "baselines")), baselines.FS} {
		found, _ := fs.Glob(fsys, "*/"+config.Name)
		for _, name := range found {
			var text []byte
			if st, err := fs.Stat(fsys, name); err == nil && st.Mode().IsRegular() {
				text, _ = fs.ReadFile(fsys, name)
			}
			cfg, err := config.Parse(name, text)
			if definition == "" || err == nil && cfg.Solution.Definition == definition {
				names = append(names, filepath.Dir(name))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
