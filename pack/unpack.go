package pack

import (
	"bytes"
	"crypto/rand"
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
	"fisub/internal/trace"
)

// maxPacked bounds a solution.json, in bytes: JSON escapes one byte of source as six at most.
const maxPacked = 6 * maxSources

// Unpacked says what Unpack wrote.
type Unpacked struct {
	Solution *trace.Solution
	Warnings []trace.Warning // keys of the JSON that were ignored
	Files    []string        // slash-separated, below the folder: config.toml first, then the sources
	// Notes say why packing the folder again gives another solution; none where it gives the same hash.
	Notes []string
}

// Unpack writes the sources of a solution.json below dir as solution/<language>/, with a config.toml that packs them
// again. The folder dir is made where it is missing. Nothing is written outside it, whatever the JSON and links inside
// dir say; nothing there is overwritten: files that exist must be identical. On an error nothing is left written.
func Unpack(data []byte, dir string) (*Unpacked, error) {
	if len(data) > maxPacked {
		return nil, fmt.Errorf("solution: %d bytes are more than the limit of %d", len(data), maxPacked)
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
	text := config.Encode(cfg)
	out := &Unpacked{Solution: sol, Warnings: warnings, Files: []string{config.Name}}
	contents := map[string][]byte{config.Name: text}
	folder := path.Join("solution", cfg.Build.SourceDir)
	for _, s := range sol.Sources {
		name := path.Clean(s.Path)
		if !safe(s.Path) {
			return nil, fmt.Errorf("solution: source path %q is not a file below the folder", s.Path)
		}
		name = path.Join(folder, name)
		if _, twice := contents[name]; twice {
			return nil, fmt.Errorf("solution: source path %q names a file twice", s.Path)
		}
		contents[name] = []byte(s.Content)
		out.Files = append(out.Files, name)
	}
	for _, name := range out.Files {
		for up := path.Dir(name); up != "."; up = path.Dir(up) {
			if _, isFile := contents[up]; isFile {
				return nil, fmt.Errorf("solution: source path %q is both a file and a folder", strings.TrimPrefix(up, folder+"/"))
			}
		}
	}

	made, err := makeFolders(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		removeFolders(made)
		return nil, err
	}
	defer root.Close()
	if err := out.write(root, dir, folder, contents); err != nil {
		removeFolders(made)
		return nil, err
	}
	return out, nil
}

// safe tells whether a source's path is a plain name of a file below a folder, on every system.
func safe(name string) bool {
	return utf8.ValidString(name) && filepath.IsLocal(filepath.FromSlash(name)) && path.Clean(name) != "." &&
		!strings.HasSuffix(name, "/") && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '\\' ||
			unicode.IsControl(r)
	})
}

// makeFolders makes dir and what is missing above it, and returns what it made, innermost first.
func makeFolders(dir string) (made []string, err error) {
	for up := filepath.Clean(dir); ; up = filepath.Dir(up) {
		if _, err := os.Lstat(up); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(up) == up {
			break
		}
		made = append(made, up)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		removeFolders(made)
		return nil, err
	}
	return made, nil
}

// removeFolders removes those that are empty.
func removeFolders(folders []string) {
	for _, f := range folders {
		_ = os.Remove(f)
	}
}

// write puts the files into a temporary folder inside root, checks them there, and moves them to their places.
func (u *Unpacked) write(root *os.Root, dir, folder string, contents map[string][]byte) (err error) {
	var absent []string
	var faults []error
	for _, name := range u.Files {
		exists, err := identical(root, name, contents[name])
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s: %w", filepath.Join(dir, name), cause(err)))
		case !exists:
			absent = append(absent, name)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}

	stage := ".unpack-" + rand.Text()
	defer func() { _ = root.RemoveAll(stage) }()
	for _, name := range u.Files {
		tmp := path.Join(stage, name)
		if err := root.MkdirAll(path.Dir(tmp), 0o755); err != nil {
			return err
		}
		if err := writeNew(root, tmp, contents[name]); err != nil {
			return err
		}
	}
	if u.Notes, err = u.repack(root, stage, folder, contents[config.Name]); err != nil {
		return err
	}

	var done, folders []string
	defer func() {
		if err == nil {
			return
		}
		for _, name := range slices.Backward(done) {
			_ = root.Remove(name)
		}
		for _, name := range slices.Backward(folders) {
			_ = root.Remove(name)
		}
	}()
	for _, name := range absent {
		var missing []string
		for up := path.Dir(name); up != "."; up = path.Dir(up) {
			if _, err := root.Lstat(up); errors.Is(err, fs.ErrNotExist) {
				missing = append(missing, up)
			}
		}
		slices.Reverse(missing)
		folders = append(folders, missing...)
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: appeared meanwhile", filepath.Join(dir, name))
		}
		if err := root.Rename(path.Join(stage, name), name); err != nil {
			return err
		}
		done = append(done, name)
	}
	return nil
}

// identical tells whether the file name exists with that content; it is an error for it to exist with another.
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

func writeNew(root *os.Root, name string, content []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// repack packs the written folder and says what is lost.
func (u *Unpacked) repack(root *os.Root, stage, folder string, text []byte) (notes []string, err error) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if _, err := config.Parse(config.Name, text); err != nil {
		for _, f := range config.Faults(err) {
			note("%s", f.Error())
		}
	}
	sub, err := fs.Sub(root.FS(), path.Join(stage, folder))
	if err != nil {
		return nil, err
	}
	entries, err := sources(sub, folder)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			note("%s", strings.TrimSuffix(line, "\n"))
		}
	}
	again := *u.Solution
	again.Sources = nil
	for _, e := range entries {
		switch e.Status {
		case Included:
			again.Sources = append(again.Sources, trace.SourceFile{Path: e.Path, Content: e.Content})
		default:
			note("%s: %s when packed again: %s", e.Path, e.Status, e.Reason)
		}
	}
	for _, s := range u.Solution.Sources {
		if clean := path.Clean(s.Path); clean != s.Path {
			note("%s: packed again as %s", s.Path, clean)
		}
	}
	if !slices.IsSortedFunc(u.Solution.Sources, func(a, b trace.SourceFile) int {
		return strings.Compare(a.Path,
			b.Path)
	}) {
		note("packed again the sources are sorted by name, which changes the hash")
	}
	if hw := u.Solution.Spec.TargetHardware; !slices.Equal(hw, []string{"cuda"}) {
		note(`target_hardware %q becomes ["cuda"] when packed again`, hw)
	}
	if len(notes) == 0 && again.Hash() != u.Solution.Hash() {
		note("packed again it has another hash")
	}
	return notes, nil
}
