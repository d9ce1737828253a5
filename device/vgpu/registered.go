//go:build linux && cgo

package vgpu

/*
#include <stddef.h>
#include <stdint.h>
#include "glue.h"
*/
import "C"

const registeredName = "registered host memory"

// vgExpose lets kernels use host memory. It returns 0 if they may use a part of it already.
//
//export vgExpose
func vgExpose(p C.uintptr_t, size C.size_t) C.int {
	m := host.machine
	from, to := uint64(p), uint64(p)+uint64(size)
	m.mu.Lock()
	for _, a := range m.ranges {
		if a.base < to && from < a.base+a.size {
			m.mu.Unlock()
			return 0
		}
	}
	m.mu.Unlock()
	m.own(allocation{base: from, size: uint64(size), name: registeredName, kind: C.FISUB_VGPU_PINNED})
	return 1
}

// vgConceal ends the use of memory that vgExpose let kernels use. It returns 0 if no such memory begins at p.
//
//export vgConceal
func vgConceal(p C.uintptr_t) C.int {
	m := host.machine
	a, ok := m.find(uintptr(p))
	if !ok || a.base != uint64(p) || a.name != registeredName {
		return 0
	}
	if m.order != nil {
		m.order.forget(a.base, a.size)
	}
	m.Unmap(uintptr(p))
	return 1
}
