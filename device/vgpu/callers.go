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
	"slices"
	"strings"
	"unsafe"
)

// callers are the return addresses of calls in the program, innermost first.
type callers [8]unsafe.Pointer

func callersOf(c *C.fisub_vgpu_callers) (all callers) {
	if c != nil {
		copy(all[:], c.at[:])
	}
	return all
}

// place and placeOf return the innermost call in code of the program's own, as file:line:column, or "" if the program
// has no line numbers.
func (c callers) place() string { return placeOf(c[:]) }

func placeOf(frames []unsafe.Pointer) string {
	for _, p := range frames {
		if p == nil {
			break
		}
		for _, l := range linesOf(p) {
			if !ofToolkit(l.File.Name) && !strings.Contains(l.File.Name, "/tmpxft_") {
				return fmt.Sprintf("%s:%d:%d", SourceName(l.File.Name), l.Line, l.Column)
			}
		}
	}
	return ""
}

// linesOf returns the source lines of the call that returns to p, innermost inlined function first, from the debug
// information of its program or library.
func linesOf(p unsafe.Pointer) (all []dwarf.LineEntry) {
	var object C.Dl_info
	if C.dladdr(p, &object) == 0 || object.dli_fname == nil {
		return nil
	}
	path, at := C.GoString(object.dli_fname), uint64(uintptr(p))-1
	if !filepath.IsAbs(path) { // the program, by the name that it was started with
		path = "/proc/self/exe"
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if f.Type == elf.ET_DYN {
		at -= uint64(uintptr(object.dli_fbase))
	}
	data, err := f.DWARF()
	if err != nil {
		return nil
	}
	r := data.Reader()
	unit, err := r.SeekPC(at)
	if err != nil {
		return nil
	}
	lines, err := data.LineReader(unit)
	if err != nil || lines == nil {
		return nil
	}
	// LineReader.SeekPC expects sorted sequences, and a unit with inlined functions has others.
	var entry, next dwarf.LineEntry
	found := false
	for !found && lines.Next(&next) == nil {
		if found = !entry.EndSequence && entry.File != nil && entry.Address <= at && at < next.Address; !found {
			entry = next
		}
	}
	if !found {
		return nil
	}
	all = append(all, entry)
	for {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == dwarf.TagCompileUnit {
			return all
		}
		if e.Tag != dwarf.TagSubprogram && e.Tag != dwarf.TagInlinedSubroutine && e.Tag != dwarf.TagLexDwarfBlock {
			continue
		}
		ranges, err := data.Ranges(e)
		inside := slices.ContainsFunc(ranges, func(r [2]uint64) bool { return at >= r[0] && at < r[1] })
		if err != nil || !inside {
			r.SkipChildren()
			continue
		}
		files := lines.Files()
		n, ok := e.Val(dwarf.AttrCallFile).(int64)
		if ok && n >= 0 && int(n) < len(files) && files[n] != nil {
			line, _ := e.Val(dwarf.AttrCallLine).(int64)
			column, _ := e.Val(dwarf.AttrCallColumn).(int64)
			all = slices.Insert(all, 1, dwarf.LineEntry{File: files[n], Line: int(line), Column: int(column)})
		}
	}
}
