//go:build linux && cgo

// Package exec is the executor of package vgpu: C code that runs decoded PTX over warps of 32 lanes. exec.h has its form.
package exec

/*
#cgo CFLAGS: -O2 -fno-strict-aliasing -Wno-unused-function -Wno-unknown-pragmas
#cgo LDFLAGS: -lm
#include "exec.h"
*/
import "C"

import "unsafe"

// Ops are the instructions by name.
var Ops = func() map[string]uint16 {
	m := map[string]uint16{}
	for i := range int(C.vg_op_count()) {
		m[C.GoString(C.vg_op_name(C.int(i)))] = uint16(i)
	}
	return m
}()

// Work runs blocks of a vg_launch until none is left or one has faulted; several threads may do so at once.
func Work(launch unsafe.Pointer) { C.vg_work((*C.vg_launch)(launch)) }
