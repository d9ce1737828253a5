//go:build linux && cgo

package vgpu

/*
#include "exec/exec.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"fisub/device/vgpu/ptx"
	"fisub/internal/plain"
)

// A Fault is an error of a kernel or, if Missing is set, a feature that the virtual GPU does not support.
type Fault struct {
	Text    string
	Missing bool
	Stopped bool
	code    C.int // of CUDA; 0: an unspecified launch failure
}

func (f *Fault) Error() string { return f.Text }

// A location is an instruction: the index of a function, and of an instruction in it.
type location struct{ fn, pc int32 }

func locationOf(f *C.vg_fault) location { return location{int32(f.at._func), int32(f.at.pc)} }

// Arguments describe a fault of one kind; exec/codes.h lists the kinds.
type arguments interface {
	text(s *site) string
}

// A site is the origin of a fault.
type site struct {
	*Kernel
	*Machine
	op string // the instruction's name
}

func (k *Kernel) site(at location) *site {
	s := &site{k, k.mod.m, "an instruction"}
	if in := k.inst(at); in != nil {
		s.op = in.Op
	}
	return s
}

func (k *Kernel) arguments(f *C.vg_fault) arguments {
	return faultArguments[f.kind](unsafe.Pointer(&f.args))
}

// describe returns the message for a fault. A deadlock comes with all its waits.
func (k *Kernel) describe(f *C.vg_fault, waits ...C.vg_wait) *Fault {
	at := locationOf(f)
	s, args, place := k.site(at), k.arguments(f), k.place(at)
	text := args.text(s)
	switch args := args.(type) {
	case *faultUnsupported:
		lacks := ""
		if k.inst(at) != nil {
			fn := k.prog.funcs[int(at.fn)]
			lacks = fn.lacks[int(fn.code[at.pc].line)]
		}
		text = "the virtual GPU does not support " + cmp.Or(lacks, text)
		if place != "" {
			text += " (" + place + ")"
		}
		return &Fault{Text: text, Missing: true}
	case *faultAssertion:
		place = cmp.Or(place, fmt.Sprintf("%s:%d", s.cString(args.file), args.line))
	case wait:
		text = k.deadlock(f, text, waits)
	}
	if place != "" {
		place += ": "
	}
	_, stopped := args.(*faultStopped)
	return &Fault{Text: fmt.Sprintf("%skernel %s, block (%d,%d,%d), %s: %s", place, Demangled(k.src.Name),
		f.block[0], f.block[1], f.block[2], k.thread(int(f.thread)), text), Stopped: stopped, code: cudaCode(args)}
}

// cudaCode returns the error that CUDA reports for a fault, as on an H100.
func cudaCode(args arguments) C.int {
	switch args.(type) {
	case *faultOutOfBounds, *faultSharedAddress, *faultSharedRange, *faultLocalRange, *faultStackOverflow,
		*faultTensorMapMemory, *faultPrintfString, *faultSurfaceRange:
		return cudaIllegalAddress
	case *faultMisaligned:
		return cudaMisalignedAddress
	case *faultAssertion:
		return cudaAssert
	}
	return cudaLaunchFailure
}

func (f *faultOutOfBounds) text(s *site) string {
	return fmt.Sprintf("invalid %s of %d bytes at %#x, %s", access(f.write), f.size, f.address, s.near(f.address))
}

func (f *faultReadOnly) text(s *site) string {
	return fmt.Sprintf("invalid write of %d bytes to constant memory, %s", f.size, s.where(f.address))
}

func (f *faultMisaligned) text(s *site) string {
	text := fmt.Sprintf("misaligned %s: address %#x is not a multiple of %d", access(f.write), f.address, f.multiple)
	if f.outside {
		text += ", " + s.near(f.address)
	}
	return text
}

func (f *faultCopySize) text(s *site) string {
	return fmt.Sprintf("a copy of %d bytes, not a multiple of %d", f.size, f.multiple)
}

func (f *faultSharedAddress) text(s *site) string {
	text := fmt.Sprintf("invalid shared-memory address %#x", f.address)
	if rank := f.address>>24 - 1; f.address>>24 > 0 && f.address>>32 == 0 { // as mapa and cp.async.bulk encode it
		cluster := s.Kernel.launched.Cluster
		text += fmt.Sprintf(": byte %d of block %d of a cluster of %d", f.address&0xffffff, rank,
			max(1, cluster[0])*max(1, cluster[1])*max(1, cluster[2]))
	}
	return text
}

func (f *faultSharedRange) text(s *site) string {
	text := fmt.Sprintf("invalid %s of %d bytes of shared memory", access(f.write), f.size)
	if f.offset < 0 {
		return text + fmt.Sprintf(", %d bytes before its start", -f.offset)
	}
	return text + fmt.Sprintf(" at %d, which has %d bytes", f.offset, f.limit)
}

func (f *faultLocalRange) text(s *site) string {
	return fmt.Sprintf("invalid %s of %d bytes of local memory", access(f.write), f.size)
}

func (f *faultUnwrittenShared) text(s *site) string { return "read of unwritten shared memory" }

func (f *faultUnwrittenLocal) text(s *site) string {
	return fmt.Sprintf("read of %d unwritten bytes of local memory", f.size)
}

func (f *faultUnwrittenGlobal) text(s *site) string {
	return fmt.Sprintf("read of %d unwritten bytes of global memory at %#x, %s", f.size, f.address, s.where(f.address))
}

func (f *faultUnwrittenRegister) text(s *site) string {
	return s.op + " reads an unwritten register: an uninitialised variable?"
}

func (f *faultFoldedRegister) text(s *site) string {
	return s.op + " has a constant NaN as operand, which is what compilers make of an unwritten register: an " +
		"uninitialised variable?"
}

func (f *faultInFlight) text(s *site) string {
	if f.otherRank < 0 {
		return "read of shared memory while an asynchronous copy still writes it: missing wait"
	}
	op, _ := s.operation(f.other)
	cause := "missing wait for its mbarrier"
	if s.inst(f.waited) != nil {
		cause = "left pending by " + s.other(f.waited, "")
	} else if strings.HasPrefix(op, "cp.async.c") { // not bulk
		cause = "missing cp.async.wait_group"
	}
	switch f.missing {
	case missingOwn:
		cause += ", or the copy should come after the read"
	case missingBarrier:
		cause = "missing barrier between the two"
	case missingEither:
		cause += ", or a barrier is missing"
	}
	whose := s.thread(int(f.otherThread))
	if cluster := s.Kernel.launched.Cluster; cluster[0]*cluster[1]*cluster[2] > 1 {
		whose += fmt.Sprintf(" of the cluster's block %d", f.otherRank)
	}
	return fmt.Sprintf("read of shared memory that %s at %s, %s, still writes: %s", op,
		cmp.Or(s.place(f.other), "an unknown line"), whose, cause)
}

func (f *faultRace) text(s *site) string {
	space, whose, at := "shared", "", ""
	if f.global {
		space, at = "global", ", at "+s.where(f.address)
	}
	if f.otherBlock {
		id := s.blockOf(int(f.otherCluster), int(f.otherRank))
		whose = fmt.Sprintf(" of block (%d,%d,%d)", id[0], id[1], id[2])
	}
	return fmt.Sprintf("race on %s memory: nothing orders this %s and the %s at %s, %s%s%s", space, access(f.write),
		access(f.otherWrite), cmp.Or(s.place(f.other), "an unknown line"), s.thread(int(f.otherThread)), whose, at)
}

func (f *faultAsyncSource) text(s *site) string {
	op, wait := s.operation(f.other)
	return fmt.Sprintf("write to shared memory that %s at %s still reads: missing %s", op, s.place(f.other), wait)
}

func (f *faultAsyncLate) text(s *site) string {
	return fmt.Sprintf("the block ends while %s still reads its shared memory, with no cp.async.bulk.wait_group.read: "+
		"the PTX ISA does not say that the memory stays until then, but an H200 keeps it", s.op)
}

func (f *faultAsyncUnfinished) text(s *site) string {
	return fmt.Sprintf("the block ends while %s still reads its shared memory: missing %s", s.op, waitFor(s.op))
}

func (f *faultAsyncResult) text(s *site) string {
	op, _ := s.operation(f.other)
	return fmt.Sprintf("read of global memory that %s at %s still writes, at %s: missing cp.async.bulk.wait_group "+
		"(with .read it waits only for the source)", op, s.place(f.other), s.where(f.address))
}

func (f *faultProxyFence) text(s *site) string {
	return fmt.Sprintf("%s reads what %s wrote at %s, with no fence.proxy.async in between: each thread that "+
		"writes needs one before the barrier", s.op, s.thread(int(f.otherThread)),
		cmp.Or(s.place(f.other), "an unknown line"))
}

func (f *faultProxyChain) text(s *site) string {
	return fmt.Sprintf("%s reads what %s wrote at %s, and only another thread executed fence.proxy.async: the PTX ISA "+
		"permits this, but a GPU was seen to read old values", s.op, s.thread(int(f.otherThread)),
		cmp.Or(s.place(f.other), "an unknown line"))
}

func (f *faultMapFence) text(s *site) string {
	return fmt.Sprintf("%s reads a tensor map that the kernel wrote at %s, with no "+
		"fence.proxy.tensormap::generic.acquire in between", s.op, cmp.Or(s.place(f.other), "an unknown line"))
}

func (f *faultMbarrierState) text(s *site) string {
	if f.live {
		return s.op + " of an mbarrier that is in use: it needs mbarrier.inval first"
	}
	return s.op + " of an mbarrier that is not initialised"
}

func (f *faultClusterEnded) text(s *site) string {
	return fmt.Sprintf("access to shared memory of the cluster's block %d, which has ended", f.rank)
}

func (f *faultClusterStart) text(s *site) string {
	return fmt.Sprintf("access to shared memory of the cluster's block %d, which may not have started: missing cluster "+
		"barrier", f.rank)
}

func (f *faultClusterEnd) text(s *site) string {
	return fmt.Sprintf("access to shared memory of the cluster's block %d, which does not wait for it before it ends: "+
		"missing cluster barrier", f.rank)
}

func (f *faultElementWidth) text(s *site) string {
	return fmt.Sprintf("%s of %d bytes within an element of %d bytes, at %s: the code takes it for a narrower type",
		access(f.write), f.size, f.element, s.where(f.address))
}

func (f *faultDivision) text(s *site) string { return "integer division by zero" }

func (f *faultOutsideMask) text(s *site) string {
	return fmt.Sprintf("%s with member mask %#x, which excludes the executing lane", s.op, f.mask)
}

func (f *faultEndedThreads) text(s *site) string {
	return fmt.Sprintf("%s waits for %d threads of the block, which have ended", s.op, f.threads)
}

func (f *faultEndedLanes) text(s *site) string {
	var which []string
	if f.ended != 0 {
		which = append(which, fmt.Sprintf("lanes %#x, which have ended", f.ended))
	}
	if f.neverStarted != 0 {
		which = append(which, fmt.Sprintf("lanes %#x, which were never started", f.neverStarted))
	}
	return s.op + " waits for " + strings.Join(which, ", and ")
}

func (f *faultAbsentLane) text(s *site) string {
	why := [...]string{absentNeverStarted: "was never started", absentEnded: "has ended",
		absentOutside: "the member mask excludes"}[f.why]
	return fmt.Sprintf("%s uses a value that %s read from lane %d, which %s", s.op, s.other(f.shuffle, "a shuffle"),
		f.lane, why)
}

func (f *faultStoredRegister) text(s *site) string {
	return fmt.Sprintf("%s uses a value that %s stored from an unwritten register: an uninitialised variable?", s.op,
		s.other(f.store, "a store"))
}

// other returns the name of another instruction and its place, or name and the place if the instruction is unknown.
func (s *site) other(at location, name string) string {
	if in := s.inst(at); in != nil {
		name = in.Op
	}
	if place := s.place(at); place != "" {
		name += " at " + place
	}
	return name
}

// A wait that never ends. Its text says only what the thread waits for.
type wait interface {
	arguments
	waits()
}

func (*faultMissingLanes) waits()  {}
func (*faultDeadlock) waits()      {}
func (*faultSpinCluster) waits()   {}
func (*faultSpinWarpgroup) waits() {}
func (*faultSpinRead) waits()      {}
func (*faultSpinMbarrier) waits()  {}

// maxListed is the number of waits in the message for a deadlock.
const maxListed = 4

// deadlock returns the message for waits, the first of which is the fault f with its text.
func (k *Kernel) deadlock(f *C.vg_fault, text string, waits []C.vg_wait) string {
	threads := 0
	for _, w := range waits {
		if w.fault.block == f.block {
			threads += int(w.threads)
		}
	}
	wait := "wait forever, this one"
	if threads == 1 {
		wait = "waits forever,"
	}
	text = fmt.Sprintf("deadlock: %s of the block %s %s", plain.Count(threads, "thread"), wait, text)
	for i, w := range waits[min(1, len(waits)):] {
		if i == maxListed-1 {
			return text + "; others wait elsewhere"
		}
		at := locationOf(&w.fault)
		text += fmt.Sprintf("; also %s", plain.Count(int(w.threads), "thread"))
		if id := w.fault.block; id != f.block {
			text += fmt.Sprintf(" of block (%d,%d,%d)", id[0], id[1], id[2])
		}
		text += fmt.Sprintf(" at %s %s", cmp.Or(k.place(at), "an unknown line"), k.arguments(&w.fault).text(k.site(at)))
	}
	return text
}

func (f *faultMissingLanes) text(s *site) string {
	return fmt.Sprintf("in %s for lanes that never come (mask %#x waits for %#x)", s.op, f.arrived, f.missing)
}

func (f *faultDeadlock) text(s *site) string {
	if strings.HasPrefix(s.op, "bar") && f.expected > 0 {
		return fmt.Sprintf("in %s, barrier %d, where %d of %d threads have arrived", s.op, f.barrier, f.arrived, f.expected)
	}
	return "in " + s.op
}

func (f *faultBarrierCount) text(s *site) string {
	return fmt.Sprintf("barrier %d: %s waits for %d threads, but %s waits for %d: a GPU reports an illegal instruction",
		f.barrier, s.op, f.threads, cmp.Or(s.place(f.earlier), "an earlier arrival"), f.earlierThreads)
}

func (f *faultSpinCluster) text(s *site) string {
	return "for other threads of its cluster at barrier.cluster"
}

func (f *faultSpinWarpgroup) text(s *site) string {
	return "for other warps of its warpgroup at wgmma.wait_group"
}

func (f *faultSpinRead) text(s *site) string {
	return fmt.Sprintf("for a change of %#x, which it reads from %s", f.value, s.polled(f.space, f.address))
}

func (f *faultSpinMbarrier) text(s *site) string {
	bytes := int64(f.state>>40&0x7fffff) - mbTxZero
	text := fmt.Sprintf("for phase %d of the mbarrier at %s; still missing: %d of %d arrivals", f.phase,
		s.polled(f.space, f.address), f.state&0xfffff, f.state>>20&0xfffff)
	switch {
	case bytes > 0:
		text += fmt.Sprintf(" and %d bytes", bytes)
	case bytes < 0:
		text += fmt.Sprintf(", and %d more bytes have arrived than expected", -bytes)
	}
	return text
}

func (f *faultMbarrierArrivals) text(s *site) string {
	return fmt.Sprintf("%d arrivals at an mbarrier that expects %d more", f.arrivals, f.expected)
}

func (f *faultTensorMapMemory) text(s *site) string {
	space := "local"
	if f.shared {
		space = "shared"
	}
	return fmt.Sprintf("the tensor map is in %s memory: it must be a __grid_constant__ parameter, or in constant or "+
		"global memory", space)
}

func (f *faultTensorMap) text(s *site) string {
	what := ""
	if f.dimensions > 0 {
		what = fmt.Sprintf(" of %d dimensions", f.dimensions)
	}
	if f.im2col {
		what += " for im2col"
	}
	return fmt.Sprintf("no tensor map%s at %#x", what, f.address)
}

func (f *faultTextureObject) text(s *site) string {
	what := "texture"
	if f.surface {
		what = "surface"
	}
	return fmt.Sprintf("%#x is not the handle of a %s object: on a GPU this has no error, and any result", f.handle, what)
}

func (f *faultTextureShape) text(s *site) string {
	text := fmt.Sprintf("%d dimensions", f.dims)
	switch {
	case f.linear:
		text = "linear memory, for which there is only tex1Dfetch"
	case f.cube:
		text = "cubes"
	case f.layered:
		text = fmt.Sprintf("layers of %d dimensions", f.dims)
	}
	return fmt.Sprintf("%s does not fit the object, which is of %s", s.op, text)
}

func (f *faultSurfaceRange) text(s *site) string {
	return fmt.Sprintf("invalid surface %s of %d bytes at byte %d of a row, row %d, layer %d: the surface has %d bytes "+
		"in a row, rows %d, layers %d (x is in bytes)", access(f.write), f.size, f.x, f.y, f.z, f.width, f.height, f.depth)
}

func (f *faultCoordinate) text(s *site) string {
	return fmt.Sprintf("the innermost coordinate of a tensor copy, %d, is %d bytes, not a multiple of 16: "+
		"a GPU reports an illegal instruction", f.coordinate, int64(f.coordinate)*int64(f.size))
}

func (f *faultDescriptor) text(s *site) string {
	switch {
	case f.base:
		return fmt.Sprintf("the address of a descriptor's tensor, %#x, is not a multiple of 16", f.address)
	case f.extent <= 0:
		return fmt.Sprintf("use of a descriptor with shape[%d] = %d", f.dimension, f.extent)
	case f.stride < 0 || f.stride >= 1<<40/int64(f.size):
		return fmt.Sprintf("use of a descriptor with strides[%d] = %d, not between 0 and 2^40 bytes", f.dimension,
			f.stride)
	default:
		return fmt.Sprintf("use of a descriptor with strides[%d] = %d: %d bytes, not a multiple of 16: a GPU rounds down",
			f.dimension, f.stride, f.stride*int64(f.size))
	}
}

func (f *faultTmemAlloc) text(s *site) string {
	return fmt.Sprintf("%d columns of tensor memory cannot be allocated", f.columns)
}

func (f *faultTmemDealloc) text(s *site) string {
	return fmt.Sprintf("%d columns of tensor memory at %#x are not allocated", f.columns, f.address)
}

func (f *faultTmemLeak) text(s *site) string {
	return "the block ends without deallocating its tensor memory"
}

func (f *faultTmemRange) text(s *site) string {
	return fmt.Sprintf("invalid %s of %d columns of tensor memory at lane %d, column %d", access(f.write), f.columns,
		f.address>>16, f.address&0xffff)
}

func (f *faultTrap) text(s *site) string { return "trap" }

func (f *faultAssertion) text(s *site) string {
	return fmt.Sprintf("assertion `%s` failed", s.cString(f.message))
}

func (f *faultPrintfString) text(s *site) string {
	text := fmt.Sprintf("printf reads a string at %#x, %s", f.address, s.near(f.address))
	if f.skipped {
		text += "; conversions that CUDA does not have, such as %zu and %.*f, take no argument"
	}
	return text
}

func (f *faultPrintfArguments) text(s *site) string {
	return fmt.Sprintf("printf with more than %d arguments: a GPU prints other memory or ends the program", f.limit)
}

func (f *faultStackOverflow) text(s *site) string {
	return fmt.Sprintf("the stack overflows at a call %d deep: a thread has %d bytes (cudaLimitStackSize)", f.depth,
		f.limit)
}

func (f *faultCallTarget) text(s *site) string {
	return fmt.Sprintf("call of %#x, which is not a function", f.address)
}

func (f *faultFreeAddress) text(s *site) string {
	return fmt.Sprintf("free of %#x, which malloc did not return", f.address)
}

func (f *faultStopped) text(s *site) string { return "timeout: still running" }

func (f *faultUnsupported) text(s *site) string {
	return s.op + [...]string{featureInstruction: "", featureInterleaved: " with an interleaved tensor map",
		featurePacked:  " of padded values of 4 or 6 bits from shared memory",
		featureSwizzle: " with a swizzle of 96 bytes, or one that exchanges 8 bytes",
		featureLocal:   " with more than 256 KiB of local memory in a thread"}[f.feature]
}

// operation returns the name of the asynchronous operation at a location, and what ends it.
func (k *Kernel) operation(at location) (name, wait string) {
	name = "an asynchronous operation"
	if in := k.inst(at); in != nil {
		name = in.Op
	}
	return name, waitFor(name)
}

// waitFor returns the wait that must precede a reuse of the shared memory that an operation reads.
func waitFor(op string) string {
	switch {
	case strings.HasPrefix(op, "wgmma"):
		return "wgmma.wait_group"
	case strings.HasPrefix(op, "tcgen05"):
		return "wait for the mbarrier of a tcgen05.commit"
	case strings.Contains(op, "mbarrier"):
		return "wait for its mbarrier"
	}
	return "cp.async.bulk.wait_group.read by its thread"
}

// blockOf returns the index of a block by its cluster's number and its rank in the cluster.
func (k *Kernel) blockOf(cluster, rank int) [3]int {
	l := &k.launched
	per := [3]int{max(1, l.Cluster[0]), max(1, l.Cluster[1]), max(1, l.Cluster[2])}
	x, y := l.Grid[0]/per[0], l.Grid[1]/per[1]
	at, in := [3]int{cluster % x, cluster / x % y, cluster / x / y}, [3]int{rank % per[0], rank / per[0] % per[1],
		rank / per[0] / per[1]}
	return [3]int{at[0]*per[0] + in[0], at[1]*per[1] + in[1], at[2]*per[2] + in[2]}
}

func access(write bool) string {
	if write {
		return "write"
	}
	return "read"
}

// polled describes an address that a thread reads again and again.
func (k *Kernel) polled(space int32, a uint64) string {
	if space == spaceShared || a>>56 == sharedWindow>>56 {
		return k.prog.sharedName(a & 0xffffff)
	}
	return fmt.Sprintf("%#x (%s)", a, cmp.Or(k.mod.m.inside(a), "no allocation"))
}

// maxCalls is the maximum number of places printed for a chain of inlined calls.
const maxCalls = 3

// place returns the place of an instruction in the submission's own code, or in a header if none is known:
// "kernel.cu:12:3". For inlined code it is the place of the call, followed by the rest of the chain:
// "kernel.cu:57:3, in wait at kernel.cu:21:9". It is empty if it is unknown.
func (k *Kernel) place(at location) string {
	in := k.inst(at)
	if in == nil {
		return ""
	}
	var chain []*ptx.Loc // innermost first
	for l := &in.Loc; l != nil; l = l.Via {
		if name := k.mod.file(l.File); name != "" && !ofToolkit(name) {
			chain = append(chain, l)
		}
	}
	if len(chain) == 0 {
		chain = append(chain, &in.Loc)
	}
	if chain[0].Line == 0 {
		return ""
	}
	if n := len(chain); n > maxCalls { // keep the kernel's own line and the innermost ones
		chain = append(chain[:maxCalls-1:maxCalls-1], chain[n-1])
	}
	text := k.mod.position(chain[len(chain)-1])
	for _, l := range slices.Backward(chain[:len(chain)-1]) {
		text += ", "
		if name := k.mod.ptx.Strings[l.Func]; name != "" {
			text += "in " + Demangled(name) + " "
		}
		text += "at " + k.mod.position(l)
	}
	return text
}

// inst returns the PTX of an instruction, or nil if it is unknown.
func (k *Kernel) inst(at location) *ptx.Inst {
	f := k.prog.funcs[int(at.fn)]
	if f == nil || at.pc < 0 || int(at.pc) >= len(f.code) || int(f.code[at.pc].line) >= len(f.src.Body) {
		return nil
	}
	return &f.src.Body[f.code[at.pc].line]
}

// position returns file:line:column, or file:line if the column is unknown.
func (mod *Module) position(l *ptx.Loc) string {
	name, col := mod.file(l.File), l.Col
	if mod.Column != nil {
		col = mod.Column(name, l.Line, col)
	}
	if col == 0 {
		return fmt.Sprintf("%s:%d", name, l.Line)
	}
	return fmt.Sprintf("%s:%d:%d", name, l.Line, col)
}

// ofToolkit reports whether a source is a header of the toolkit or the system.
func ofToolkit(path string) bool {
	return filepath.IsAbs(path) && (strings.Contains(path, "/include/") || strings.HasPrefix(path, "/usr/"))
}

// file returns the name of a source, relative if it belongs to the submission.
func (mod *Module) file(n int) string {
	name := mod.ptx.Files[n]
	if mod.Rename != nil {
		return mod.Rename(name)
	}
	return name
}

// thread returns the name of thread t of a block, or of warp -1-t if t is negative.
func (k *Kernel) thread(t int) string {
	size := k.launched.Block
	name := func(t int) string {
		return fmt.Sprintf("(%d,%d,%d)", t%size[0], t/size[0]%size[1], t/size[0]/size[1])
	}
	if t >= 0 {
		return "thread " + name(t)
	}
	first := 32 * (-1 - t)
	return fmt.Sprintf("warp %d (threads %s to %s)", first/32, name(first),
		name(min(first+31, size[0]*size[1]*size[2]-1)))
}

// reach is the maximum distance at which an access is attributed to an allocation: the range of a signed 32-bit index
// of 4-byte elements. Unless memory is scarce, memory.c places allocations more than twice as far apart.
const reach = 8 << 30

// where describes an address by the allocation that contains it or the nearest one.
func (m *Machine) where(a uint64) string { return cmp.Or(m.inside(a), m.near(a)) }

// near describes the address of an access that is not inside an allocation, relative to the nearest one.
func (m *Machine) near(a uint64) string {
	if a < 4096 {
		return "a null pointer"
	}
	if r, ok := m.freedAt(a); ok {
		return fmt.Sprintf("byte %d of %s", a-r.base, r.end())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	best, nearest, how := uint64(math.MaxUint64), allocation{}, ""
	for _, r := range m.ranges {
		distance, side := uint64(0), "past the end of"
		switch {
		case r.name == "":
			continue
		case a >= r.base && a < r.base+r.size:
			return fmt.Sprintf("crossing the end of %v", r)
		case a >= r.base:
			distance = a - r.base - r.size
		default:
			distance, side = r.base-a, "before"
		}
		// An allocation beyond reach is named only if it is an argument of the call.
		if distance < best && (distance <= reach || r.free == nil) {
			best, nearest, how = distance, r, side
		}
	}
	text := fmt.Sprintf("%d bytes %s %v", best, how, nearest)
	switch {
	case best <= reach:
		return text
	case best < 1<<40:
		return "outside the device's memory, far from the nearest tensor: " + text
	}
	return "outside the device's memory"
}

// inside describes an address by the allocation that contains it, or returns "".
func (m *Machine) inside(a uint64) string {
	if in, ok := m.find(uintptr(a)); ok {
		return fmt.Sprintf("byte %d of %v", a-in.base, in)
	}
	return ""
}

// cString returns the string at a, or "?" if it is outside all allocations.
func (m *Machine) cString(a uint64) string {
	in, ok := m.find(uintptr(a))
	if !ok {
		return "?"
	}
	text, _, _ := strings.Cut(unsafe.String((*byte)(at(uintptr(a))), int(in.base+in.size-a)), "\x00")
	return strings.Clone(text)
}
