package pack

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
)

// MaxPacked limits the size of a solution.json, in bytes. JSON escapes one source byte as at most six.
const MaxPacked = 6 * maxSources

// Unpacked is the result of Unpack.
type Unpacked struct {
	Solution *trace.Solution
	Warnings []trace.Warning // ignored keys of the JSON
	Files    []string        // slash-separated paths below the folder: config.toml first, then the sources
	// Notes are the reasons why packing the folder again yields another solution. If the hash is the same, it is empty.
	Notes []string

	folder   string            // of the sources
	contents map[string][]byte // of Files
}

// Unpack writes the sources of a solution.json to dir/solution/<language>/, with a config.toml to pack them again. It
// creates dir if it is missing. It never writes outside dir, even with a malicious JSON or links inside dir. Existing
// files must be identical; they are never overwritten. After an error it removes everything that it wrote.
func Unpack(data []byte, dir string) (*Unpacked, error) {
	out, err := plan(data)
	if err != nil {
		return nil, err
	}
	if err := out.create(dir); err != nil {
		return nil, err
	}
	return out, nil
}

// plan returns the result of Unpack, without Notes, before anything is written.
func plan(data []byte) (*Unpacked, error) {
	if len(data) > MaxPacked {
		return nil, fmt.Errorf("solution: %d bytes, more than the limit of %d", len(data), MaxPacked)
	}
	sol, warnings, err := trace.DecodeSolution(data)
	if err != nil {
		return nil, err
	}
	cfg := &config.Config{
		Path:     config.Name,
		Solution: config.Solution{Name: sol.Name, Definition: sol.Definition, Author: sol.Author},
		Build: config.Build{
			Language:                sol.Spec.Language,
			EntryPoint:              sol.Spec.EntryPoint,
			DestinationPassingStyle: sol.Spec.DestinationPassingStyle,
			Binding:                 sol.Spec.Binding,
			Dependencies:            sol.Spec.Dependencies,
			SourceDir:               string(sol.Spec.Language),
		},
	}
	if sol.Description != nil {
		cfg.Solution.Description = *sol.Description
	}
	out := &Unpacked{Solution: sol, Warnings: warnings, Files: []string{config.Name},
		folder: path.Join("solution", cfg.Build.SourceDir), contents: map[string][]byte{config.Name: config.Encode(cfg)}}
	for _, s := range sol.Sources { // which trace.DecodeSolution has found to be writable together
		if !safe(s.Path) {
			return nil, fmt.Errorf("solution: source path %q is not a file below the folder", s.Path)
		}
		if acts(s.Path) {
			return nil, usage.Errorf("rename it in the JSON, if the solution needs it",
				"solution: source path %q is a file that git or an editor acts on", s.Path)
		}
		name := path.Join(out.folder, s.Path)
		out.contents[name] = []byte(s.Content)
		out.Files = append(out.Files, name)
	}
	return out, nil
}

// create writes the files to dir, and sets Notes.
func (u *Unpacked) create(dir string) (err error) {
	var made []string // dir and its missing parents, innermost first
	for up := filepath.Clean(dir); up != filepath.Dir(up); up = filepath.Dir(up) {
		if _, err := os.Lstat(up); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, up)
	}
	defer func() {
		for _, f := range made {
			if err != nil {
				_ = os.Remove(f)
			}
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := u.write(root, dir); err != nil {
		return err
	}
	return u.repack(root.FS())
}

// acts reports whether a tool that opens the folder might act on the file name by itself, because it is in a dot
// folder, starts with a dot (except sources), or marks a git repository, also by a short name that a file system gives
// to .git.
func acts(name string) bool {
	folder, file := path.Split(path.Clean(name))
	lower := strings.ToLower(file)
	return strings.HasPrefix(file, ".") && !slices.Contains(extensions, strings.ToLower(plain.Suffix(file))) ||
		strings.Contains("/"+folder, "/.") || lower == "head" || strings.Contains(strings.ToLower(name), "git~")
}

// safe reports whether name is a plain path of a file below a folder, on every system.
func safe(name string) bool {
	return utf8.ValidString(name) && filepath.IsLocal(filepath.FromSlash(name)) &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || unicode.In(r, unicode.Cc, unicode.Cf) })
}

// write writes the files that are missing in root, called dir in errors. After an error it removes them.
func (u *Unpacked) write(root *os.Root, dir string) (err error) {
	var absent []string
	var faults []error
	for _, name := range u.Files {
		exists, err := identical(root, name, u.contents[name])
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s: %w", filepath.Join(dir, name), plain.Cause(err)))
		case !exists:
			absent = append(absent, name)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}

	var done []string // files and folders
	defer func() {
		for _, name := range slices.Backward(done) {
			if err != nil {
				_ = root.Remove(name)
			}
		}
	}()
	for _, name := range absent {
		for i, r := range name {
			if r != '/' {
				continue
			}
			if err := root.Mkdir(name[:i], 0o755); err == nil {
				done = append(done, name[:i])
			} else if !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: created by another program", filepath.Join(dir, name))
		}
		if err != nil {
			return err
		}
		done = append(done, name)
		_, err = f.Write(u.contents[name])
		if err = cmp.Or(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// identical reports whether the file name exists with that content. Other content is an error.
func identical(root *os.Root, name string, content []byte) (bool, error) {
	st, err := root.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := root.Lstat(name); lerr == nil {
			return false, errors.New("exists as a broken link")
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() {
		return false, errors.New("exists and is not a file")
	}
	if st.Size() == int64(len(content)) {
		old, err := root.ReadFile(name)
		if err != nil {
			return false, err
		}
		if bytes.Equal(old, content) {
			return true, nil
		}
	}
	return false, errors.New("exists with other content")
}

// repack packs the files of u in the folder root, and no others, and sets Notes to the differences.
func (u *Unpacked) repack(root fs.FS) error {
	note := func(format string, args ...any) { u.Notes = append(u.Notes, fmt.Sprintf(format, args...)) }
	if _, err := config.Parse(config.Name, u.contents[config.Name]); err != nil {
		for _, f := range config.Faults(err) {
			note("%s", f.Error())
		}
	}
	sub, err := fs.Sub(root, u.folder)
	if err != nil {
		return err
	}
	entries, err := sources(sub, u.folder, func(name string) bool {
		own := path.Join(u.folder, name) + "/"
		return slices.ContainsFunc(u.Files, func(f string) bool { return strings.HasPrefix(f+"/", own) })
	})
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			note("%s", strings.TrimSuffix(line, "\n"))
		}
	}
	again := *u.Solution
	again.Sources = nil
	for _, e := range entries {
		if e.Status == Included {
			again.Sources = append(again.Sources, trace.SourceFile{Path: e.Path, Content: e.Content})
		} else {
			note("%s: %s when packed again: %s", e.Path, e.Status, e.Reason)
		}
	}
	for _, s := range u.Solution.Sources {
		if clean := path.Clean(s.Path); clean != s.Path {
			note("%s: packed again as %s", s.Path, clean)
		}
	}
	byPath := func(a, b trace.SourceFile) int { return strings.Compare(a.Path, b.Path) }
	if !slices.IsSortedFunc(u.Solution.Sources, byPath) {
		note("packed again the sources are sorted by name, which changes the hash")
	}
	if hw := u.Solution.Spec.TargetHardware; !slices.Equal(hw, []string{"cuda"}) {
		note(`target_hardware %q becomes ["cuda"] when packed again`, hw)
	}
	if len(u.Notes) == 0 && again.Hash() != u.Solution.Hash() {
		note("packing it again gives another hash")
	}
	return nil
}
