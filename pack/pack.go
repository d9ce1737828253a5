// Package pack packs a submission's sources and config into a solution.json, byte for byte like the contest's own
// packer, and unpacks it. It also finds the submissions of a repository like the contest's collector. preflight
// examines the sources.
package pack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

// maxSources limits the size of a submission's sources, in bytes.
const maxSources = 64 << 20

const bom = "\ufeff"

// extensions are the lower-case file name extensions that the contest packs.
var extensions = []string{".py", ".cu", ".cuh", ".cpp", ".c", ".h", ".hpp", ".cc", ".cxx"}

// A Treatment is the way a file is packed.
type Treatment string

const (
	Included Treatment = "included" // byte for byte
	Altered  Treatment = "altered"  // with the changes in Reason
	Skipped  Treatment = "skipped"  // left out because of Reason
)

// Reasons of skipped files.
const (
	BrokenLink = "broken link"        // its target does not exist
	LinkLoop   = "link to itself"     // perhaps by way of others
	Irregular  = "not a regular file" // a FIFO, device or socket
)

// An Entry is one direct child of a source folder. Content is the packed text, "" for a skipped entry.
type Entry struct {
	Path    string    `json:"path"` // bare file name
	Status  Treatment `json:"status"`
	Reason  string    `json:"reason"` // "" for an ordinary file
	Size    int64     `json:"bytes"`  // on disk, 0 for a subfolder or broken link
	Line    int       `json:"-"`      // first line that is not UTF-8, if that is the reason
	Content string    `json:"-"`
}

// Sources lists the folder dir as the contest's packer reads it: direct children only, links followed, known extensions
// in any case, sorted by name, line ends converted to LF. It returns the entries even with an error, which joins the
// faults of all files: empty, not UTF-8, unreadable.
func Sources(dir string) ([]Entry, error) {
	st, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hint.Wrap(fmt.Errorf("%s: no such folder", dir), others(filepath.Dir(dir)))
	}
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("%s: not a folder", dir)
	}
	return sources(os.DirFS(dir), dir, func(string) bool { return true })
}

// others returns a hint that names the source folders in the folder solution, or "".
func others(solution string) string {
	children, _ := os.ReadDir(solution)
	var folders []string
	for _, c := range children {
		if c.IsDir() && c.Name() != "baselines" {
			folders = append(folders, fmt.Sprintf("%q", c.Name()))
		}
	}
	if len(folders) == 0 || filepath.Base(solution) != "solution" {
		return ""
	}
	return fmt.Sprintf("in [build], set source_dir = %s to use that folder of %s", strings.Join(folders, " or "),
		plain.Relative(solution))
}

// sources is like Sources, for the children accepted by want in the root of fsys. dir is its name in errors.
func sources(fsys fs.FS, dir string, want func(name string) bool) ([]Entry, error) {
	children, err := fs.ReadDir(fsys, ".") // sorted; byte order of UTF-8 is code-point order
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	var entries []Entry
	var faults []error
	room := int64(maxSources)
	for _, child := range children {
		if !want(child.Name()) {
			continue
		}
		e := Entry{Path: child.Name()}
		err := e.read(fsys, child.Type()&fs.ModeSymlink != 0, &room)
		entries = append(entries, e)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", filepath.Join(dir, plain.Line(e.Path)), err))
		}
	}
	packed := func(e Entry) bool { return e.Status != Skipped }
	if len(faults) == 0 && !slices.ContainsFunc(entries, packed) {
		faults = append(faults, fmt.Errorf("%s: no source files: none ends in %s", dir, strings.Join(extensions, " ")))
	}
	return entries, errors.Join(faults...)
}

// read sets e from the file e.Path. A faulty file is Skipped.
func (e *Entry) read(fsys fs.FS, link bool, room *int64) error {
	skip := func(reason string) { e.Status, e.Reason = Skipped, reason }
	if !utf8.ValidString(e.Path) {
		skip("name is not UTF-8")
		if slices.Contains(extensions, strings.ToLower(plain.Suffix(e.Path))) {
			return errors.New("file name is not UTF-8")
		}
		return nil
	}
	st, err := fs.Stat(fsys, e.Path)
	ext := plain.Suffix(e.Path)
	switch {
	case errors.Is(err, syscall.ELOOP):
		skip(LinkLoop)
		return nil
	case err != nil && link && !errors.Is(err, fs.ErrPermission):
		skip(BrokenLink)
		return nil
	case err != nil:
		skip("unreadable")
		return plain.Cause(err)
	case st.IsDir():
		skip("subfolder")
		return nil
	case !st.Mode().IsRegular():
		skip(Irregular)
		return nil
	}
	e.Size = st.Size()
	if !slices.Contains(extensions, strings.ToLower(ext)) {
		skip("no extension")
		if ext != "" {
			skip("extension " + ext)
		}
		return nil
	}
	if *room -= e.Size; *room < 0 {
		skip("too large")
		return fmt.Errorf("the sources are larger than %d MiB", maxSources>>20)
	}
	data, err := fs.ReadFile(fsys, e.Path)
	if err != nil {
		skip("unreadable")
		return plain.Cause(err)
	}
	if len(data) == 0 {
		skip("empty file")
		return errors.New("empty file")
	}
	if at := invalidUTF8(data); at >= 0 {
		skip("not UTF-8")
		e.Line = 1 + bytes.Count(data[:at], []byte{'\n'})
		return fmt.Errorf("invalid UTF-8: byte 0x%02x at position %d, in line %d", data[at], at, e.Line)
	}

	e.Status, e.Content = Included, string(data)
	var reasons []string
	if strings.Contains(e.Content, "\r") {
		e.Status = Altered
		lf := strings.ReplaceAll(e.Content, "\r\n", "\n")
		if len(lf) < len(e.Content) {
			reasons = append(reasons, "CRLF line ends become LF")
		}
		e.Content = strings.ReplaceAll(lf, "\r", "\n")
		if e.Content != lf {
			reasons = append(reasons, "CR line ends become LF")
		}
	}
	if strings.HasPrefix(e.Content, bom) {
		reasons = append(reasons, "BOM kept as U+FEFF")
	}
	if strings.IndexByte(e.Content, 0) >= 0 {
		reasons = append(reasons, "NUL kept")
	}
	if ext != strings.ToLower(ext) {
		reasons = append(reasons, "upper-case suffix: packed, but builders do not compile it")
	}
	e.Reason = strings.Join(reasons, "; ")
	return nil
}

// invalidUTF8 returns the offset of the first byte that does not decode, or -1.
func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i, r := range string(data) {
		if r == utf8.RuneError && !bytes.HasPrefix(data[i:], []byte(string(r))) {
			return i
		}
	}
	return -1
}

// Solution packs the folder dir, normally cfg.SourceDir(), with the metadata of cfg. It returns the entries of Sources
// even with an error. Errors about the config join *config.Fault values.
func Solution(cfg *config.Config, dir string) (*trace.Solution, []Entry, error) {
	entries, err := Sources(dir)
	if err != nil {
		return nil, entries, err
	}
	sol := Assemble(cfg, entries)
	if f := MissingEntry(cfg, dir, entries); f != nil {
		return nil, entries, f
	}
	if err := sol.Validate(); err != nil {
		return nil, entries, fmt.Errorf("%s: %w", cfg.Path, err)
	}
	return sol, entries, nil
}

// Assemble returns a solution with the metadata of cfg and the packed entries. It may be invalid.
func Assemble(cfg *config.Config, entries []Entry) *trace.Solution {
	sol := &trace.Solution{
		Name:        cfg.Solution.Name,
		Definition:  cfg.Solution.Definition,
		Author:      cfg.Solution.Author,
		Description: &cfg.Solution.Description,
		Spec: trace.BuildSpec{
			Language:                cfg.Build.Language,
			TargetHardware:          []string{"cuda"},
			EntryPoint:              cfg.Build.EntryPoint,
			Dependencies:            cfg.Build.Dependencies,
			DestinationPassingStyle: cfg.Build.DestinationPassingStyle,
			Binding:                 strings.TrimSuffix(cfg.Build.Binding, "tvm-ffi"), // the format's default, null
		},
	}
	for _, e := range entries {
		if e.Status != Skipped {
			sol.Sources = append(sol.Sources, trace.SourceFile{Path: e.Path, Content: e.Content})
		}
	}
	return sol
}

// MissingEntry returns a fault if the entry file is not among the packed entries of the folder dir, else nil.
func MissingEntry(cfg *config.Config, dir string, entries []Entry) *config.Fault {
	file, symbol, _ := strings.Cut(cfg.Build.EntryPoint, "::")
	var packed []string
	skipped := "" // why the entry file was skipped
	for _, e := range entries {
		if e.Status != Skipped {
			packed = append(packed, e.Path)
		} else if e.Path == file {
			skipped = e.Reason
		}
	}
	if slices.Contains(packed, file) {
		return nil
	}
	hint := ""
	if near := plain.Nearest(file, packed); path.Base(file) != file {
		hint = "sources are packed without subfolders: write only the file name"
	} else if skipped != "" && slices.Contains(extensions, strings.ToLower(plain.Suffix(file))) {
		hint = "the file exists but is not packed: " + skipped
	} else if skipped != "" {
		hint = "the file exists, but only files that end in " + strings.Join(extensions, " ") + " are packed"
	} else if len(near) > 0 {
		hint = fmt.Sprintf("did you mean %q?", near[0]+"::"+symbol)
	}
	return cfg.Fault("entry-file", "build.entry_point", hint, "entry file %q is not among the sources in %s", file, dir)
}

// Write writes sol as the contest's solution.json to the file name, or to stdout if name is "-". See cache.Output.
func Write(stdout io.Writer, name string, sol *trace.Solution) error {
	return cache.Output(stdout, name, sol.JSON(trace.Indent))
}
