package nvcc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fisub/device"
	"fisub/internal/trace"
)

// PackedLib is libcupti's folder among packed objects.
const PackedLib = "lib"

// A MismatchError means that packed objects lack a solution for an arch.
type MismatchError struct {
	Solution, Arch string
	Have           []string // archs of the objects, each once
}

// OtherSolutions reports whether there are kernels of other solutions for the arch.
func (e *MismatchError) OtherSolutions() bool { return slices.Contains(e.Have, e.Arch) }

func (e *MismatchError) Error() string {
	if e.OtherSolutions() {
		return fmt.Sprintf("no kernel of %s for %s in the bundle, only of other solutions", e.Solution, e.Arch)
	}
	text := fmt.Sprintf("arch mismatch: no kernel of %s for %s in the bundle", e.Solution, e.Arch)
	if len(e.Have) > 0 {
		text += "; it has " + strings.Join(e.Have, ", ")
	}
	return text
}

// Advice returns the hint of the error.
func (e *MismatchError) Advice() string {
	if e.OtherSolutions() {
		return "add the kernel to the bundle on a machine with a compiler, or omit --prebuilt to compile it here"
	}
	return device.ArchHint
}

// Pack returns the files that a machine without a toolchain needs to run o, built from sol for arch: their names in a
// folder for Prebuilt, mapped to their paths here. Solutions may share a folder. written maps further names to their
// content: the entry of the index, which other builds replace here.
func Pack(root string, o *Object, sol *trace.Solution, arch string) (files map[string]string,
	written map[string][]byte, err error) {
	s, err := newSources(sol, arch)
	if err != nil {
		return nil, nil, err
	}
	key := filepath.Base(o.Dir)
	written = map[string][]byte{path.Join("build", "index", filepath.Base(s.index(root))): []byte(key + "\n")}
	build := path.Join("build", key)
	files = map[string]string{}
	for _, name := range []string{objectFile, manifestFile, logFile, columnsFile} {
		files[path.Join(build, name)] = filepath.Join(o.Dir, name)
	}
	for _, lib := range o.Libs {
		rel, err := filepath.Rel(o.Dir, lib)
		if err != nil {
			return nil, nil, err
		}
		files[path.Join(build, filepath.ToSlash(rel))] = lib
	}
	return files, written, nil
}

// PackTimer returns, like Pack, the files for timing with CUPTI; none if t has no libcupti.
func (t *Toolchain) PackTimer() map[string]string {
	files := map[string]string{}
	toolkit := filepath.Join(filepath.Dir(filepath.Dir(t.NVCC)), "extras", "CUPTI", "lib64")
	for _, dir := range append([]string{toolkit}, t.LibDirs...) {
		name := fmt.Sprintf("libcupti.so.%d", t.Major())
		if target, err := filepath.EvalSymlinks(filepath.Join(dir, name)); err == nil {
			files[path.Join(PackedLib, name)] = target
			return files
		}
	}
	return files
}

// Prebuilt returns the object of sol for arch in dir, a folder of Pack's files, or a *MismatchError.
func Prebuilt(dir string, sol *trace.Solution, arch string) (*Object, error) {
	s, err := newSources(sol, arch)
	if err != nil {
		return nil, err
	}
	o, err := lookUp(dir, s)
	if errors.Is(err, errNotBuilt) {
		e := &MismatchError{Solution: sol.Name, Arch: arch}
		for _, m := range manifests(dir) {
			e.Have = append(e.Have, m.Arch)
		}
		slices.Sort(e.Have)
		e.Have = slices.Compact(e.Have)
		return nil, e
	}
	return o, err
}

// Packed returns the toolchain and the CUDA release of the objects in dir, or "" if dir has no objects.
func Packed(dir string) (toolchain, cuda string) {
	for _, m := range manifests(dir) {
		toolchain, cuda = m.Toolchain, m.CUDAVersion
	}
	return toolchain, cuda
}

func manifests(dir string) (all []manifest) {
	names, _ := filepath.Glob(filepath.Join(dir, "build", "*", manifestFile))
	for _, name := range names {
		var m manifest
		if data, err := os.ReadFile(name); err == nil && json.Unmarshal(data, &m) == nil {
			all = append(all, m)
		}
	}
	return all
}

var archParts = regexp.MustCompile(`^sm_(\d+)(\d)([af]?)$`)

// Serves reports whether a GPU of arch gpu ("sm_103") runs code for arch kernel. Machine code runs on its own and
// later minor versions of the same major version; with the suffix "a" on exactly its arch, with "f" on its family,
// here taken to be the major version.
func Serves(kernel, gpu string) bool {
	k, g := archParts.FindStringSubmatch(kernel), archParts.FindStringSubmatch(gpu)
	if k == nil || g == nil || k[1] != g[1] {
		return false
	}
	of, on := atoi(k[2]), atoi(g[2])
	return of == on || of < on && k[3] != "a"
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
