package submit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"fisub/internal/config"
	"fisub/internal/trace"
	"fisub/pack"
)

// PackedName is the file at a repository's root that the contest's collector takes as it is.
const PackedName = "packed_solution.json"

// A Collected is one submission that the contest's collector finds in a checkout.
type Collected struct {
	Path     string          // of its config.toml, or PackedName; relative to the checkout, with slashes
	Solution *trace.Solution // nil where Err is set
	Err      error           // why it does not pack
	Reads    []string        // the files that the collector reads for it, relative to the checkout, with slashes
	Folder   string          // the one of its sources, likewise; "" for PackedName
}

// Collect finds what the collector finds in the folder root: packed_solution.json alone, where there is one, else config.toml
// there and in the immediate subfolders. Sources are packed as the contest's own packer does it, which knows no binding, no
// dependencies and no description. The error is that of reading the folder.
func Collect(root string) ([]Collected, error) {
	packed := filepath.Join(root, PackedName)
	if _, err := os.Lstat(packed); err == nil {
		c := Collected{Path: PackedName, Reads: []string{PackedName}}
		c.Solution, _, c.Err = trace.ReadSolution(packed)
		return []Collected{c}, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files, err := config.Discover(root)
	if err != nil {
		return nil, err
	}
	var found []Collected
	for _, file := range files {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		c := Collected{Path: filepath.ToSlash(rel)}
		c.Reads = []string{c.Path}
		cfg, err := config.Load(file)
		if err != nil {
			c.Err = err
			found = append(found, c)
			continue
		}
		if l := cfg.Build.Language; l != trace.CUDA && l != trace.Triton && l != trace.Python {
			c.Err = fmt.Errorf("%s: the contest's own packer knows cuda, triton and python, not %s", c.Path, l)
			found = append(found, c)
			continue
		}
		cfg.Build.Binding, cfg.Build.Dependencies, cfg.Solution.Description = "", nil, ""
		c.Folder = path.Join(path.Dir(c.Path), "solution", filepath.ToSlash(cfg.Build.SourceDir))
		var entries []pack.Entry
		c.Solution, entries, c.Err = pack.Solution(cfg, cfg.SourceDir())
		for _, e := range entries {
			if e.Status != pack.Skipped {
				c.Reads = append(c.Reads, path.Join(c.Folder, e.Path))
			}
		}
		found = append(found, c)
	}
	return found, nil
}

// Of gives the submissions of a definition among all.
func Of(all []Collected, definition string) (of []Collected) {
	for _, c := range all {
		if c.Solution != nil && c.Solution.Definition == definition {
			of = append(of, c)
		}
	}
	return of
}

// Differences names what two solutions differ in, of all that the contest looks at; none where they are the same submission.
func Differences(a, b *trace.Solution) (what []string) {
	if a.Definition != b.Definition {
		what = append(what, "definition")
	}
	if a.Name != b.Name {
		what = append(what, "name")
	}
	if a.Author != b.Author {
		what = append(what, "author")
	}
	if a.Spec.DestinationPassingStyle != b.Spec.DestinationPassingStyle {
		what = append(what, "destination_passing_style")
	}
	if a.Hash() != b.Hash() {
		what = append(what, "content")
	}
	return what
}
