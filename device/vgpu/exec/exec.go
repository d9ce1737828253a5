//go:build linux && cgo

// Package exec is the executor of package vgpu: C code that runs decoded PTX on warps of 32 lanes. exec.h declares the
// data structures.
package exec

/*
#cgo CFLAGS: -O2 -fno-strict-aliasing -Wno-unused-function -Wno-unknown-pragmas -Wno-pass-failed
#cgo LDFLAGS: -lm
#include "exec.h"
*/
import "C"

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// wide is 1 if the processor supports the faster build. A processor with AVX2 also has F16C.
var wide = func() C.int {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasBMI1 && cpu.X86.HasBMI2 {
		return 1
	}
	return 0
}()

// Work runs blocks of a vg_launch until none is left or one faults. Several threads may call it at once, with the same
// vg_state.
func Work(launch, state unsafe.Pointer) {
	C.vg_work((*C.vg_launch)(launch), (*C.vg_state)(state), wide)
}
