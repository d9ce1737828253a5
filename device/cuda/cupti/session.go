//go:build cuda && linux && cgo

// Package cupti collects CUPTI's activity records in this process, for package activity. It needs the build tag cuda,
// and loads libcupti at the first use.
package cupti

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "session.h"
*/
import "C"

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"fisub/device/activity"
)

// A Library is the process's libcupti. It is used from one goroutine at a time.
type Library struct {
	Path    string // a file, or a name for the loader
	Version int    // as in package activity
}

var opened struct {
	sync.Once
	lib *Library
	err error
}

// Open loads libcupti for a driver of a CUDA major release such as 13: the first in dirs, else the loader's, else the
// same for the previous release. The error wraps device.ErrTimer. Later calls return the first result.
func Open(dirs []string, major int) (*Library, error) {
	opened.Do(func() { opened.lib, opened.err = open(dirs, major) })
	return opened.lib, opened.err
}

func open(dirs []string, major int) (*Library, error) {
	var names []string
	var first string
	for release := min(major, 13); release >= 12; release-- {
		name := fmt.Sprintf("libcupti.so.%d", release)
		names = append(names, name)
		for _, dir := range append(slices.Clone(dirs), "") { // a bare name is for the loader
			lib, message := load(filepath.Join(dir, name))
			if message == "" {
				return lib, nil
			}
			// A missing file is normal: prefer any other message.
			if first == "" && !strings.Contains(message, "No such file or directory") {
				first = message
			}
		}
	}
	switch {
	case first != "":
		return nil, activity.Unavailable(first)
	case len(names) == 0:
		return nil, activity.Unavailable(fmt.Sprintf("not supported with a driver for CUDA %d", major))
	}
	return nil, activity.Unavailable("no " + strings.Join(names, " or "))
}

func load(path string) (*Library, string) {
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	var version C.uint32_t
	if message := C.fisub_cupti_open(c, &version); message != nil {
		defer C.free(unsafe.Pointer(message))
		return nil, C.GoString(message)
	}
	if version < activity.Oldest {
		return nil, fmt.Sprintf("%s is of CUDA 11 or older", path)
	}
	return &Library{Path: path, Version: int(version)}, ""
}

// Begin starts recording on all devices of the process; after a success, End must follow. The error wraps
// device.ErrTimer: CUPTI fails while another profiler is active, on some virtual GPUs, and if the driver lets only
// root profile.
func (l *Library) Begin() error {
	var step *C.char
	return result(C.fisub_cupti_begin(&step), step)
}

// Now returns CUPTI's clock in ns, or 0 on failure.
func (l *Library) Now() uint64 { return uint64(C.fisub_cupti_now()) }

// Thread returns the calling thread's number in the records.
func Thread() uint32 { return uint32(C.fisub_cupti_thread()) }

// End stops recording and returns the records. The devices' work must be done. The error wraps device.ErrTimer:
// records were lost or are implausible.
func (l *Library) End() (*activity.Records, error) {
	var step *C.char
	var r C.fisub_records
	if err := result(C.fisub_cupti_end(&r, &step), step); err != nil {
		return nil, err
	}
	names := make([]activity.Name, r.n_names)
	for i, c := range unsafe.Slice(r.names, r.n_names) {
		names[i] = activity.Name{Symbol: C.GoString(c), Plain: C.GoString(c)}
		if plain := C.fisub_demangle(c); plain != nil {
			names[i].Plain = C.GoString(plain)
			C.free(unsafe.Pointer(plain))
		}
	}
	launches, activities, err := activity.Decode(unsafe.Slice((*byte)(r.data), r.size), names)
	if err != nil {
		return nil, err
	}
	return activity.New(launches, activities, l.Version, int(r.lost))
}

func result(code C.int, step *C.char) error {
	if code == 0 {
		return nil
	}
	text := fmt.Sprintf("error %d", code)
	if name := C.fisub_cupti_error(code); name != nil {
		text = C.GoString(name)
	}
	return activity.Unavailable(C.GoString(step) + ": " + text)
}
