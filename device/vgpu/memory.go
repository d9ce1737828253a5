//go:build linux && cgo

package vgpu

/*
#include <stdlib.h>
#include <string.h>
#include "exec/exec.h"
#include "glue.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"
)

// An allocation is memory that kernels may use.
type allocation struct {
	base, size uint64
	readonly   bool
	name       string
	free       func() // nil: the caller owns the memory
	kind       C.int  // FISUB_VGPU_DEVICE if 0; FISUB_VGPU_HEAP for memory of the virtual GPU
	shadow     int64  // see exec.h
	element    int    // bytes of an element; 0: unknown

	// Of memory that the submission's or program's host code allocated: which one it is, from 1, and the calls that
	// allocated and freed it.
	number         int
	taken, dropped callers
}

// String returns the name of an allocation in messages.
func (a allocation) String() string {
	if a.number == 0 {
		return a.name
	}
	text := fmt.Sprintf("allocation %d (%d bytes", a.number, a.size)
	if attached.notify == nil {
		text = "the submission's " + text
	}
	if place := a.taken.place(); place != "" {
		text += ", allocated at " + place
	}
	return text + ")"
}

// end returns the name of an allocation that was freed, and the place of that.
func (a allocation) end() string {
	text := fmt.Sprintf("%v, which was freed", a)
	if place := a.dropped.place(); place != "" {
		text += " at " + place
	}
	return text
}

// freedAt returns the freed allocation that contained addr. The caller holds no lock.
func (m *Machine) freedAt(addr uint64) (a allocation, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.freed, func(a allocation) bool { return addr >= a.base && addr < a.base+max(a.size, 1) })
	if i < 0 {
		return allocation{}, false
	}
	return m.freed[i], true
}

// Map lets kernels use size bytes at base, under the given name in messages. The caller keeps ownership of the memory.
func (m *Machine) Map(base uintptr, size int, name string, readonly bool) {
	m.own(allocation{base: uint64(base), size: uint64(size), readonly: readonly, name: name})
}

// Unmap removes the allocation that begins at base, and reports whether there is one.
func (m *Machine) Unmap(base uintptr) bool { return m.unmap(base, callers{}) }

// maxFreed is the number of freed allocations that are remembered for messages.
const maxFreed = 256

func (m *Machine) unmap(base uintptr, by callers) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.ranges, func(a allocation) bool { return a.base == uint64(base) })
	if i < 0 {
		return false
	}
	a := m.ranges[i]
	if a.free != nil {
		a.free()
	}
	if a.dropped = by; a.number > 0 {
		m.freed = append(m.freed[max(0, len(m.freed)-maxFreed+1):], a)
	}
	m.ranges = slices.Delete(m.ranges, i, i+1)
	return true
}

// Alloc returns the address of size bytes that kernels and host code may use, or 0 if memory is exhausted. The same
// sequence of calls returns the same addresses in every process.
func (m *Machine) Alloc(size int, name string) uintptr {
	return m.alloc(size, allocation{name: name}, C.VG_OPEN)
}

// alloc maps memory of a VG_ kind for an allocation, whose base, size and free it sets.
func (m *Machine) alloc(size int, a allocation, kind C.int) uintptr {
	p := C.vg_map(C.size_t(max(size, 0)), kind)
	if p == nil {
		return 0
	}
	a.base, a.size, a.free = uint64(uintptr(p)), uint64(size), func() { C.vg_unmap(p) }
	if kind == C.VG_OWN {
		a.shadow = int64(C.vg_unwritten(p, C.size_t(size)))
	}
	m.own(a)
	return uintptr(p)
}

// own lets kernels use an allocation until Unmap, which frees it.
func (m *Machine) own(a allocation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.ranges, a.base, func(r allocation, b uint64) int { return cmp.Compare(r.base, b) })
	m.ranges = slices.Insert(m.ranges, i, a)
	m.freed = slices.DeleteFunc(m.freed, func(f allocation) bool {
		return f.base < a.base+a.size && a.base < f.base+f.size
	})
}

// written marks size bytes at p as written by the host. It has no effect unless Check includes UnwrittenGlobal.
func (m *Machine) written(p uintptr, size int) {
	m.worked.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropShadows()
	for i := range m.ranges {
		a := &m.ranges[i]
		from, to := max(uint64(p), a.base), min(uint64(p)+uint64(size), a.base+a.size)
		switch {
		case a.shadow == 0 || from >= to:
		case to-from == a.size:
			a.shadow = 0
		default:
			C.memset(at(uintptr(from+uint64(a.shadow))), 1, C.size_t(to-from))
		}
	}
}

// dropShadows drops all shadows if UnwrittenGlobal is not checked: later writes are not recorded.
func (m *Machine) dropShadows() {
	if m.Check&UnwrittenGlobal == 0 {
		for i := range m.ranges {
			m.ranges[i].shadow = 0
		}
	}
}

// find returns the allocation that contains addr.
func (m *Machine) find(addr uintptr) (a allocation, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.ranges {
		if uint64(addr) >= a.base && uint64(addr) < a.base+max(a.size, 1) {
			return a, true
		}
	}
	return allocation{}, false
}

// at returns a pointer to non-Go memory. If inlined, it makes Go 1.26's compiler fail on copies of a fixed size.
//
//go:noinline
func at(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// kindOf returns the kind of the memory at addr, a FISUB_VGPU constant.
func (m *Machine) kindOf(addr uintptr) C.int {
	a, ok := m.find(addr)
	if !ok {
		return C.FISUB_VGPU_PAGEABLE
	}
	return cmp.Or(a.kind, C.FISUB_VGPU_DEVICE)
}

// Limits of a new machine in bytes, the same as CUDA's defaults.
const defaultHeap, defaultStack = 8 << 20, 1 << 10

// deviceHeap returns the heap for device malloc. It lives as long as the machine.
func (m *Machine) deviceHeap() *C.vg_heap {
	if m.heap == nil {
		size := cmp.Or(m.heapBytes, defaultHeap)
		m.heap = (*C.vg_heap)(C.calloc(1, C.sizeof_vg_heap))
		a := allocation{name: "memory of device malloc", kind: C.FISUB_VGPU_HEAP}
		m.heap.base = (*C.uint8_t)(at(m.alloc(size, a, C.VG_OPEN)))
		m.heap.size = C.uint64_t(size)
	}
	return m.heap
}
