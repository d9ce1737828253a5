//go:build linux && cgo

package vgpu

/*
#include <dlfcn.h>
#include "glue.h"
*/
import "C"

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"path/filepath"
	"strings"
	"unsafe"
)

// callers are the return addresses of calls in the program, innermost first.
type callers [8]unsafe.Pointer

func callersOf(c *C.fisub_vgpu_callers) (all callers) {
	if c != nil {
		for i, p := range c.at {
			all[i] = p
		}
	}
	return all
}

// place returns the innermost call in code of the program's own, as file:line:column, or "" if the program has no line
// numbers.
func (c callers) place() string {
	for _, p := range c {
		if p == nil {
			break
		}
		if name, line, column := lineOf(p); line > 0 && !ofToolkit(name) && !strings.Contains(name, "/tmpxft_") {
			return fmt.Sprintf("%s:%d:%d", sourceName(name), line, column)
		}
	}
	return ""
}

// lineOf returns the source line of the call that returns to p, from the debug information of its program or library,
// or 0.
func lineOf(p unsafe.Pointer) (file string, line, column int) {
	var object C.Dl_info
	if C.dladdr(p, &object) == 0 || object.dli_fname == nil {
		return "", 0, 0
	}
	path, at := C.GoString(object.dli_fname), uint64(uintptr(p))-1
	if !filepath.IsAbs(path) { // the program, by the name that it was started with
		path = "/proc/self/exe"
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", 0, 0
	}
	defer f.Close()
	if f.Type == elf.ET_DYN {
		at -= uint64(uintptr(object.dli_fbase))
	}
	data, err := f.DWARF()
	if err != nil {
		return "", 0, 0
	}
	unit, err := data.Reader().SeekPC(at)
	if err != nil {
		return "", 0, 0
	}
	lines, err := data.LineReader(unit)
	if err != nil || lines == nil {
		return "", 0, 0
	}
	var entry dwarf.LineEntry
	if lines.SeekPC(at, &entry) != nil || entry.File == nil {
		return "", 0, 0
	}
	return entry.File.Name, entry.Line, entry.Column
}
