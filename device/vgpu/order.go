//go:build linux && cgo

package vgpu

/*
#include <stdlib.h>
#include "exec/exec.h"
#include "glue.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// A use is an access of an operation to global memory.
type use struct {
	from, to uint64
	kinds    int
	pinned   bool   // host code may use the memory, too
	place    string // source line of the access in a kernel; "": unknown, or several
}

// An operation is a launch, a copy, a memset or a stream-ordered allocation or release.
type operation struct {
	chain, index  uint32 // see hooks.h
	name          string // function or kernel
	number, where string // such as "launch 2", "on stream 1"
	before        []uint32
	uses          []use // sorted by address
	fenced        bool  // other kernels may know that the operation has reached some point
}

func (o *operation) String() string { return fmt.Sprintf("%s (%s %s)", o.name, o.number, o.where) }

// known reports whether an operation is among those in done: by chain, the number of the last one.
func (o *operation) known(done []uint32) bool {
	return int(o.chain) < len(done) && o.index <= done[o.chain]
}

// An order holds the operations that host code has not waited for. Two of them that touch the same bytes, at least one
// with a write, have to be ordered by streams, events or host code.
type order struct {
	sync.Mutex
	m        *Machine
	all      []*operation
	current  *operation // between vgBegin and vgEnd
	begun    uint32     // operations so far
	count    map[string]int
	reported map[string]bool
	guarding bool
}

// At most maxUses uses are held. The oldest operations are dropped first. An operation with more than manyUses does not
// hold their source lines.
const maxUses, manyUses = 1 << 21, 1 << 12

// name sets the name of the current operation: what it is, and its number among those of its kind.
func (o *order) name(name, kind string) {
	if o.current.name == "" {
		o.count[kind]++
		o.current.name, o.current.number = name, fmt.Sprintf("%s %d", kind, o.count[kind])
	}
}

// add records uses of the current operation, which are sorted by address.
func (o *order) add(uses []use) {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	i, ranges, all := 0, o.m.ranges, &o.current.uses
	for _, u := range uses {
		if i == len(ranges) || ranges[i].base > u.from {
			i = 0
		}
		for i < len(ranges) && ranges[i].base+ranges[i].size <= u.from {
			i++
		}
		if i == len(ranges) || ranges[i].base > u.from || ranges[i].name == "" || ranges[i].kind == C.FISUB_VGPU_HEAP {
			continue
		}
		u.to = min(u.to, ranges[i].base+ranges[i].size)
		u.pinned = ranges[i].kind == C.FISUB_VGPU_PINNED
		*all = append(*all, u)
	}
}

// launched records the accesses of a launch of k.
func (o *order) launched(k *Kernel, accesses []C.vg_access, fenced bool) {
	o.name("kernel "+Demangled(k.src.Name), "launch")
	places := map[location]string{}
	uses := make([]use, 0, len(accesses))
	for _, a := range accesses {
		at := location{int32(a.at._func), int32(a.at.pc)}
		place, ok := places[at]
		if !ok && at != (location{}) {
			place = k.place(at)
			places[at] = place
		}
		uses = append(uses, use{from: uint64(a.from), to: uint64(a.to), kinds: int(a.kinds), place: place})
	}
	if uses = merged(uses, true); len(uses) > manyUses {
		uses = merged(uses, false)
	}
	o.current.fenced = fenced
	o.add(uses)
}

// merged merges adjacent uses of the same kind, and with places set only those of one place.
func merged(uses []use, places bool) []use {
	all := uses[:0]
	for _, u := range uses {
		n := len(all) - 1
		if n < 0 || all[n].to != u.from || all[n].kinds != u.kinds || places && all[n].place != u.place {
			all = append(all, u)
			continue
		}
		if all[n].to = u.to; all[n].place != u.place {
			all[n].place = ""
		}
	}
	return all
}

// clash reports whether accesses of two kinds need an order. Atomic and volatile ones need none between each other.
func clash(a, b int) bool {
	return a&useWrite != 0 || b&useWrite != 0 || a&useStrongWrite != 0 && b&useRead != 0 ||
		b&useStrongWrite != 0 && a&useRead != 0
}

// overlaps calls f for the pairs of uses of a and b with common bytes until it returns true, and returns that pair.
func overlaps(a, b *operation, f func(x, y int) bool) (x, y use, ok bool) {
	for i, j := 0, 0; i < len(a.uses) && j < len(b.uses); {
		x, y := a.uses[i], b.uses[j]
		if x.from < y.to && y.from < x.to && f(x.kinds, y.kinds) {
			return x, y, true
		}
		if x.to < y.to {
			i++
		} else {
			j++
		}
	}
	return use{}, use{}, false
}

// orders reports whether kernel b may have waited for a point of kernel a by itself: a has a fence, and both access the
// same bytes with atomics or volatile accesses.
func orders(a, b *operation) bool {
	if !a.fenced {
		return false
	}
	_, _, ok := overlaps(a, b, func(x, y int) bool {
		return x&useStrongWrite != 0 && y&(useStrongRead|useStrongWrite) != 0
	})
	return ok
}

// replaces reports whether b uses all bytes that a uses at least in the same way.
func replaces(b, a *operation) bool {
	j := 0
	for _, x := range a.uses {
		for from := x.from; from < x.to; j++ {
			for j < len(b.uses) && b.uses[j].to <= from {
				j++
			}
			if j == len(b.uses) || b.uses[j].from > from || x.kinds&^b.uses[j].kinds != 0 && b.uses[j].kinds&useWrite == 0 {
				return false
			}
			if from = b.uses[j].to; from >= x.to {
				break
			}
		}
	}
	return true
}

// verb returns "read" or "write": what two accesses need an order for.
func verb(kinds int) string {
	if kinds&(useWrite|useStrongWrite) != 0 {
		return "write"
	}
	return "read"
}

// report reports a missing order of operation a and what follows it, once for each key and function or kernel.
func (o *order) report(a *operation, key, text string) {
	if key += a.name; !o.reported[key] {
		o.reported[key] = true
		tell(Faulted, text)
	}
}

// end compares the current operation with the earlier ones.
func (o *order) end() {
	o.Lock()
	defer o.Unlock()
	b := o.current
	o.current = nil
	if len(b.uses) == 0 {
		return
	}
	n := len(b.uses)
	for _, a := range o.all {
		n += len(a.uses)
		if a.known(b.before) {
			continue
		}
		if x, y, ok := overlaps(a, b, clash); ok && !orders(a, b) {
			o.report(a, b.name+x.place+y.place, o.race(a, b, x, y))
		}
	}
	o.all = slices.DeleteFunc(o.all, func(a *operation) bool {
		drop := n > maxUses || a.known(b.before) && replaces(b, a)
		if drop {
			n -= len(a.uses)
		}
		return drop
	})
	o.all = append(o.all, b)
	o.guard()
}

// race returns the text for a race of operations a and b with uses x and y.
func (o *order) race(a, b *operation, x, y use) string {
	place, at := y.place, ""
	if place != "" {
		place += ": "
	}
	if x.place != "" {
		at = " at " + x.place
	}
	missing, streams := "cudaStreamWaitEvent or a synchronisation by the host", a.where+b.where
	if a.where == b.where {
		missing = "a dependency in the graph"
	} else if strings.Contains(streams, "legacy") && strings.Contains(streams, "non-blocking") {
		missing += " (non-blocking streams and the legacy default stream do not wait for each other)"
	}
	return fmt.Sprintf("%s%s: race between operations: nothing orders its %s and the %s of %s%s, %s: missing %s",
		place, b, verb(y.kinds), verb(x.kinds), a, at, o.m.where(max(x.from, y.from)), missing)
}

// hostUse reports an access of host code to pinned or managed memory if it is wrong. where is its place or empty, such
// as " at p.cu:9:3".
func (o *order) hostUse(where string, address uint64, write bool) {
	o.Lock()
	defer o.Unlock()
	verbs := map[bool]string{false: "reads", true: "writes"}
	for _, a := range o.all {
		for _, u := range a.uses {
			if address < u.from || address >= u.to || u.kinds&useWrite == 0 && (!write || u.kinds&useRead == 0) {
				continue
			}
			o.report(a, verbs[write], fmt.Sprintf("host code%s %s %s, but nothing has waited for the %s of %s: missing "+
				"cudaStreamSynchronize, cudaEventSynchronize or cudaDeviceSynchronize", where, verbs[write], o.m.where(address),
				verb(u.kinds), a))
			return
		}
	}
}

// guard makes memory that host code must not use now inaccessible to it, or read-only. Only whole pages are guarded: a
// system call with guarded memory would fail.
func (o *order) guard() {
	var all, writes []use
	for _, a := range o.all {
		// A kernel may signal host code with a volatile or atomic write that other memory is written.
		signals := slices.ContainsFunc(a.uses, func(u use) bool { return u.pinned && u.kinds&useStrongWrite != 0 })
		if signals {
			continue
		}
		for _, u := range a.uses {
			if u.pinned && u.kinds&(useRead|useWrite) != 0 {
				all = append(all, u)
			}
			if u.pinned && u.kinds&useWrite != 0 {
				writes = append(writes, u)
			}
		}
	}
	guards := append(o.pages(all, false), o.pages(writes, true)...)
	if o.guarding || len(guards) > 0 {
		C.vg_guard(unsafe.SliceData(guards), C.int(len(guards)))
	}
	o.guarding = len(guards) > 0
}

// pages returns the pages all of whose bytes are in uses. The bytes past the end of an allocation do not count.
func (o *order) pages(uses []use, closed bool) (all []C.vg_guarded) {
	const page = 4096
	slices.SortFunc(uses, func(a, b use) int { return cmp.Compare(a.from, b.from) })
	for i := 0; i < len(uses); {
		from, to := uses[i].from, uses[i].to
		for i++; i < len(uses) && uses[i].from <= to; i++ {
			to = max(to, uses[i].to)
		}
		if a, ok := o.m.find(uintptr(from)); ok && to == a.base+a.size {
			to += page - 1
		}
		from, to = (from+page-1)/page*page, to/page*page
		if from < to {
			all = append(all, C.vg_guarded{from: C.uint64_t(from), to: C.uint64_t(to), closed: C.bool(closed)})
		}
	}
	return all
}

// forget drops the uses of memory that is released.
func (o *order) forget(base, size uint64) {
	o.Lock()
	defer o.Unlock()
	for _, a := range o.all {
		a.uses = slices.DeleteFunc(a.uses, func(u use) bool { return u.from >= base && u.from < base+size })
	}
	o.guard()
}

//export vgBegin
func vgBegin(where *C.char, chain C.uint, before *C.uint, n C.uint) {
	hostUse("")
	o := host.machine.order
	o.begun++
	o.current = &operation{chain: uint32(chain), index: o.begun, where: C.GoString(where), before: numbers(before, n)}
}

func numbers(p *C.uint, n C.uint) []uint32 {
	return slices.Clone(unsafe.Slice((*uint32)(unsafe.Pointer(p)), int(n)))
}

//export vgEnd
func vgEnd() { host.machine.order.end() }

// vgUse records that the current operation accesses memory. kind is the name of its kind in messages.
//
//export vgUse
func vgUse(function, kind *C.char, p C.uintptr_t, size C.size_t, write C.int) {
	o := host.machine.order
	if o == nil || o.current == nil {
		return
	}
	o.name(C.GoString(function), C.GoString(kind))
	u := use{from: uint64(p), to: uint64(p) + uint64(size), kinds: useRead}
	if write != 0 {
		u.kinds = useWrite
	}
	if size == 0 {
		a, _ := host.machine.find(uintptr(p))
		u.to += a.size
	}
	o.add([]use{u})
	slices.SortFunc(o.current.uses, func(a, b use) int { return cmp.Compare(a.from, b.from) })
}

//export vgWaited
func vgWaited(done *C.uint, n C.uint) {
	hostUse("")
	o := host.machine.order
	o.Lock()
	defer o.Unlock()
	known := numbers(done, n)
	o.all = slices.DeleteFunc(o.all, func(a *operation) bool { return a.known(known) })
	o.guard()
}
