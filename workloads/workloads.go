// Package workloads reads definitions, workloads and their inputs from the embedded dataset or a folder with the
// contest's layout. It runs nothing.
//
// The set "default" of a definition holds the workloads that the contest's own tools run: all lines of
// workloads/**/*.jsonl. Other sets are files workloads/**/<definition>.<set>.ndjson with the same kind of lines. The
// extension differs because the contest's loader would add any .jsonl file to the default set; this keeps the
// repository a valid dataset root for that loader. The uuid of an embedded workload is version 5, URL namespace, of
// fisub/<definition>/<set>/<index from 0>. The set "contest" of a definition has the axes and scalars of the official
// workloads. The contents of the official files are not public, so they are generated.
package workloads

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"fisub/definitions"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

//go:embed */*.jsonl */*.ndjson
var embedded embed.FS

// DefaultSet is the set of workloads that the contest's tools would run.
const DefaultSet = "default"

// ContestSet is the set with the axes of the contest's workloads.
const ContestSet = "contest"

// aliases are alternative names of sets, for datasets without a set of the given name. The contest set of decode had
// its own name.
var aliases = map[string]string{"contest54": ContestSet, ContestSet: "contest54"}

// SameSet reports whether two names refer to the same set.
func SameSet(a, b string) bool { return a == b || aliases[a] == b }

// A Dataset is a folder of definitions and workloads, or the embedded one. It is safe for concurrent use.
type Dataset struct {
	root     string // base folder of relative paths in workloads
	cache    string // folder for generated files
	seed     uint64 // of generated values; 0 selects the usual ones
	embedded bool
	names    []string // of the definitions, sorted
	defs     map[string]*trace.Definition

	reading sync.Mutex
	// workloads read so far, by definition; for a folder, all under ""
	read map[string]reading
}

// A reading holds the workloads of some files, by definition and set.
type reading struct {
	sets map[string]map[string][]*trace.Workload
	edge map[string]bool // definitions whose edge set is generated
	err  error
}

// A NotFoundError reports that a dataset has no definition of that name.
type NotFoundError struct {
	Name  string
	Near  []string // similar names, nearest first
	Track []string // the track's definitions, if Name is a track of the contest
}

func (e *NotFoundError) Error() string {
	if e.Track != nil {
		return fmt.Sprintf("%q is a track of the contest, not a definition", e.Name)
	}
	return fmt.Sprintf("definition %q: not found", e.Name)
}

// Advice returns the hint of the error.
func (e *NotFoundError) Advice() string {
	switch {
	case len(e.Track) > 0:
		return "a track of the contest, with the definitions " + plain.List(e.Track, "and")
	case len(e.Near) > 0:
		return "did you mean " + plain.List(e.Near, "or") + "?"
	}
	return "fisub dataset ls lists the definitions"
}

// Open reads the definitions of the dataset in the folder root, or of the embedded one if root is "". As in the
// contest, an invalid definition or a duplicate name makes the whole dataset invalid; the error joins all faults.
// Workloads are read on first use. Generated inputs are kept in cacheRoot/dataset; if cacheRoot is "", Load, Verify and
// Synth return errors that wrap cache.ErrNoFolder. A Dataset needs no Close.
func Open(root, cacheRoot string) (d *Dataset, err error) {
	d = &Dataset{root: root, embedded: root == "", defs: map[string]*trace.Definition{}, read: map[string]reading{}}
	if cacheRoot != "" {
		if d.cache, err = filepath.Abs(filepath.Join(cacheRoot, "dataset")); err != nil {
			return nil, err
		}
	}
	if d.embedded {
		d.root = d.generated()
	} else {
		if d.root, err = filepath.Abs(root); err != nil {
			return nil, err
		}
		if st, err := os.Stat(d.root); err != nil {
			return nil, err
		} else if !st.IsDir() {
			return nil, fmt.Errorf("%s: not a folder", d.root)
		}
	}
	return d, d.readDefinitions()
}

// Seeded returns the dataset with other generated values. They depend only on the seed, not on the machine; 0 selects
// the usual ones. Axes, scalars, sequence lengths and the files of a folder stay the same.
func (d *Dataset) Seeded(seed uint64) *Dataset {
	other := &Dataset{root: d.root, cache: d.cache, seed: seed, embedded: d.embedded, names: d.names, defs: d.defs,
		read: map[string]reading{}}
	if d.embedded {
		other.root = other.generated()
	}
	return other
}

func (d *Dataset) generated() string {
	if d.seed == 0 || d.cache == "" {
		return d.cache
	}
	return filepath.Join(d.cache, fmt.Sprint("seed-", d.seed))
}

// home returns the dataset that holds the files of w. The edge set is never in a folder: its cases come from a dataset
// that generates them in the cache.
func (d *Dataset) home(def *trace.Definition, w *trace.Workload) *Dataset {
	if d.embedded || !d.Makes(def.Name, w) {
		return d
	}
	return &Dataset{root: d.generated(), cache: d.cache, seed: d.seed, embedded: true, names: d.names, defs: d.defs}
}

// Makes reports whether the dataset generates the inputs of w, instead of reading them from its folder.
func (d *Dataset) Makes(def string, w *trace.Workload) bool {
	if d.embedded {
		return true
	}
	if edgeOf(def, w.UUID) == nil {
		return false
	}
	return d.readingOf(def).edge[def]
}

// kept returns an error if the dataset has no folder for inputs.
func (d *Dataset) kept() error {
	if d.cache == "" {
		return fmt.Errorf("cache: %w for inputs", cache.ErrNoFolder)
	}
	return nil
}

// Root returns the absolute folder that relative paths of workloads start from. For the embedded dataset it is in the
// cache and need not exist.
func (d *Dataset) Root() string { return d.root }

// Embedded reports whether the dataset is the one in the binary.
func (d *Dataset) Embedded() bool { return d.embedded }

// Definitions returns the names of all definitions, sorted.
func (d *Dataset) Definitions() []string { return slices.Clone(d.names) }

// Definition returns the definition of that exact name, or a *NotFoundError.
func (d *Dataset) Definition(name string) (*trace.Definition, error) {
	if def, ok := d.defs[name]; ok {
		return def, nil
	}
	key := strings.ReplaceAll(strings.ToLower(name), "-", "_")
	if track := trace.Track(name); track != nil {
		return nil, &NotFoundError{Name: name, Track: track}
	}
	near := plain.Nearest(name, d.names)
	byLength := func(a, b string) int { return cmp.Compare(len(a), len(b)) }
	for _, n := range slices.SortedStableFunc(slices.Values(d.names), byLength) {
		if len(near) < 3 && len(key) > 2 && strings.Contains(strings.ToLower(n), key) && !slices.Contains(near, n) {
			near = append(near, n)
		}
	}
	return nil, &NotFoundError{Name: name, Near: near}
}

// Sets returns the names of the workload sets of a definition, the default one first.
func (d *Dataset) Sets(def string) ([]string, error) {
	all, err := d.sets(def)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(all))
	if i := slices.Index(names, DefaultSet); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, DefaultSet)
	}
	return names, nil
}

// Workloads returns the workloads of a set, in the order of their files and lines; "" is the default set. The caller
// must not change them.
func (d *Dataset) Workloads(def, set string) ([]*trace.Workload, error) {
	if set == "" {
		set = DefaultSet
	}
	all, err := d.sets(def)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{set, aliases[set]} {
		if ws := all[name]; len(ws) > 0 {
			return slices.Clone(ws), nil
		}
	}
	sets, _ := d.Sets(def)
	if len(sets) == 0 {
		return nil, fmt.Errorf("definition %s: no workloads in the dataset", def)
	}
	return nil, fmt.Errorf("definition %s: no workload set %q; it has %s", def, set, strings.Join(sets, ", "))
}

func (d *Dataset) readDefinitions() error {
	dir, files, err := d.list(definitions.FS, "definitions", ".json")
	if err != nil {
		return err
	}
	var faults []error
	places := map[string]string{}
	for _, name := range files {
		place := filepath.Join(dir, filepath.FromSlash(name))
		def, err := d.definition(place, name)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if first, ok := places[def.Name]; ok {
			faults = append(faults, fmt.Errorf("%s: Duplicate definition name: %s; the first is in %s", place, def.Name, first))
			continue
		}
		places[def.Name], d.defs[def.Name] = place, def
		d.names = append(d.names, def.Name)
	}
	slices.Sort(d.names)
	return errors.Join(faults...)
}

func (d *Dataset) definition(place, name string) (def *trace.Definition, err error) {
	if !d.embedded {
		def, _, err = trace.ReadDefinition(place)
		return def, err
	}
	text, err := definitions.FS.ReadFile(name)
	if err == nil {
		def, _, err = trace.DecodeDefinition(text)
	}
	return def, err
}

// sets returns the workloads of a definition by set. Embedded files are named after their definition, so only these are
// read. In a folder any file may contain its lines, so the first call reads all files.
func (d *Dataset) sets(def string) (map[string][]*trace.Workload, error) {
	r := d.readingOf(def)
	return r.sets[def], r.err
}

func (d *Dataset) readingOf(def string) reading {
	of := ""
	if d.embedded {
		of = def
	}
	d.reading.Lock()
	defer d.reading.Unlock()
	r, ok := d.read[of]
	if !ok {
		r.sets, r.err = d.readFiles(of)
		r.edge = map[string]bool{}
		for name, def := range d.defs {
			ws := edgeWorkloads(def)
			if ws == nil || r.sets == nil || of != "" && of != name || r.sets[name][EdgeSet] != nil {
				continue
			}
			if r.sets[name] == nil {
				r.sets[name] = map[string][]*trace.Workload{}
			}
			r.sets[name][EdgeSet], r.edge[name] = ws, true
		}
		d.read[of] = r
	}
	return r
}

// readFiles reads the files named after the definition of, or all files if of is "".
func (d *Dataset) readFiles(of string) (map[string]map[string][]*trace.Workload, error) {
	dir, files, err := d.list(embedded, "workloads", ".jsonl", ".ndjson")
	if err != nil {
		return nil, err
	}
	all := map[string]map[string][]*trace.Workload{}
	var faults []error
	for _, name := range files {
		if of != "" && !strings.HasPrefix(path.Base(name), of+".") {
			continue
		}
		set := DefaultSet
		if base, ok := strings.CutSuffix(filepath.Base(name), ".ndjson"); ok {
			set = base[strings.LastIndexByte(base, '.')+1:]
		}
		place := filepath.Join(dir, filepath.FromSlash(name))
		traces, err := d.traces(place, name)
		if err != nil {
			faults = append(faults, err)
		}
		for _, t := range traces {
			if t.Solution != nil || t.Evaluation != nil {
				faults = append(faults, fmt.Errorf("%s: workload %s: the line is a trace of a solution", place,
					t.Workload.UUID))
				continue
			}
			if all[t.Definition] == nil {
				all[t.Definition] = map[string][]*trace.Workload{}
			}
			all[t.Definition][set] = append(all[t.Definition][set], &t.Workload)
		}
	}
	return all, errors.Join(faults...)
}

func (d *Dataset) traces(place, name string) (traces []*trace.Trace, err error) {
	if !d.embedded {
		traces, _, err = trace.ReadTraces(place)
		return traces, err
	}
	f, err := embedded.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	traces, _, err = trace.DecodeTraces(f, place)
	return traces, err
}

// list returns the path of a folder of the dataset, and the files below it with one of the extensions, sorted by path
// component. own is the folder of the embedded dataset. A missing folder has no files.
func (d *Dataset) list(own fs.FS, name string, exts ...string) (dir string, files []string, err error) {
	fsys := own
	if dir = name; !d.embedded {
		dir = filepath.Join(d.root, name)
		fsys = os.DirFS(dir)
	}
	err = fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if name == "." && errors.Is(err, fs.ErrNotExist) {
			return fs.SkipAll
		}
		if err == nil && !entry.IsDir() && slices.Contains(exts, filepath.Ext(name)) {
			files = append(files, name)
		}
		return err
	})
	return dir, files, err
}

// A Range holds the smallest and the largest size of an axis.
type Range struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

func (r Range) String() string {
	if r.Min == r.Max {
		return fmt.Sprint(r.Min)
	}
	return fmt.Sprintf("%d to %d", r.Min, r.Max)
}

// Ranges returns the smallest and the largest size of each axis of the workloads.
func Ranges(ws []*trace.Workload) map[string]Range {
	ranges := map[string]Range{}
	for _, w := range ws {
		for axis, n := range w.Axes.All() {
			r, ok := ranges[axis]
			if !ok {
				r = Range{n, n}
			}
			ranges[axis] = Range{min(r.Min, n), max(r.Max, n)}
		}
	}
	return ranges
}

// Omitted describes what the default set omits of the contest's, or the contest's set of hard inputs. It returns "" for
// other sets.
func (d *Dataset) Omitted(def, set string) string {
	if _, err := d.Workloads(def, EdgeSet); err == nil && set == ContestSet {
		return fmt.Sprintf("set %s has typical inputs; fisub local --set %s runs hard ones", set, EdgeSet)
	}
	ws, err := d.Workloads(def, set)
	contest, noContest := d.Workloads(def, ContestSet)
	if cmp.Or(err, noContest) != nil || set != DefaultSet {
		return ""
	}
	var fixed []string
	ours, all := Ranges(ws), Ranges(contest)
	for _, axis := range slices.Sorted(maps.Keys(ours)) {
		if r := ours[axis]; r.Min == r.Max && all[axis].Min < all[axis].Max {
			fixed = append(fixed, fmt.Sprintf("%s %d only; the contest has %v", axis, r.Min, all[axis]))
		}
	}
	text := "set default is small"
	if len(fixed) > 0 {
		text = "set default has " + strings.Join(fixed, "; ")
	}
	return fmt.Sprintf("%s; fisub local --set %s runs all %d", text, ContestSet, len(contest))
}
