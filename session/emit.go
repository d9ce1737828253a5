package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/preflight"
)

// An Emitted is what a submission was compiled to.
type Emitted struct {
	Emit      string             `json:"emit"` // "ptx" or "sass"
	Arch      string             `json:"arch"`
	Toolchain string             `json:"toolchain"`
	Files     []nvcc.Listing     `json:"files"`
	Kernels   []preflight.Kernel `json:"kernels"` // of all files
}

// Emit lists what s compiles to for arch: of the sources of those names, or of all.
func Emit(ctx context.Context, s *Submission, what, arch string, names []string, log Log) (*Emitted, error) {
	if what != "ptx" && what != "sass" {
		return nil, usage.Errorf("ptx or sass", "--emit: unknown form %q", what)
	}
	if !s.Solution.Spec.Compiled() {
		return nil, usage.Errorf("it is for cuda and cpp, which fisub compiles itself",
			"--emit: %s submissions are compiled when they are called", s.Solution.Spec.Language)
	}
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	obj, all, err := nvcc.Emit(ctx, root, s.Solution, arch, what == "sass", func() {
		log.Note("nvdisasm   none here: fetching it from PyPI into %s", root)
	})
	var broken *device.BuildError
	var missing *nvcc.MissingError
	switch {
	case errors.As(err, &broken):
		return nil, usage.Errorf("fisub check says why", "--emit: %s", broken.Text)
	case errors.As(err, &missing):
		return nil, usage.Invalid(err)
	case err != nil:
		return nil, err
	}
	e := &Emitted{Emit: what, Arch: arch, Toolchain: obj.Toolchain, Files: []nvcc.Listing{},
		Kernels: []preflight.Kernel{}}
	var known []string
	for _, l := range all {
		known = append(known, l.File)
		if len(names) == 0 || slices.Contains(names, l.File) {
			e.Files = append(e.Files, l)
		}
	}
	for _, k := range obj.Kernels {
		e.Kernels = append(e.Kernels, preflight.Kernel{Arch: arch, Kernel: k})
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, usage.Errorf("one of "+strings.Join(known, ", "), "--emit: no source %s is compiled", name)
		}
	}
	return e, nil
}

// Text is the listing of each file below a line that says of what it is.
func (e *Emitted) Text() string {
	var w strings.Builder
	for _, l := range e.Files {
		fmt.Fprintf(&w, "// %s, %s, %s\n%s", l.File, e.Arch, e.Toolchain, plain.Lines(l.Text))
	}
	return w.String()
}
