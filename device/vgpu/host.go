//go:build linux && cgo

package vgpu

/*
#cgo CFLAGS: -D_GNU_SOURCE
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include <stdint.h>
#include <stddef.h>
#include <dlfcn.h>
#include "glue.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/device/sass"
)

// host is the state that the runtime library in this process uses: one GPU, since CUDA has one context per device.
var host = struct {
	sync.Mutex
	machine *Machine
	modules []*hostModule
	loaded  []*Module
	columns nvcc.Columns // of the sources of the next modules
	fault   *Fault       // the first fault of a kernel
	lack    string       // the first unsupported feature, and its place
	lacks   []string     // all that were reported

	prepared map[uintptr]prepared
	last     uintptr
}{machine: &Machine{}, prepared: map[uintptr]prepared{}}

// A hostModule is a module of the program. It is decoded when its first kernel is needed.
type hostModule struct {
	linked bool // part of the program, not loaded by it at run time
	image  func() (*moduleImage, error)
	load   func() (*Module, error)
}

// newHostModule returns the module in a fat binary or PTX at data. If the program was linked from units (nvcc
// -rdc=true), they are its fat binaries before that, and data has only machine code.
func newHostModule(data unsafe.Pointer, units []unsafe.Pointer, columns nvcc.Columns) *hostModule {
	h := &hostModule{linked: *(*uint32)(data) == fatbinMagic}
	h.image = sync.OnceValues(func() (*moduleImage, error) {
		if units != nil {
			return linkedImage(data, units)
		}
		if h.linked {
			return readImage(bytesAt(data))
		}
		return &moduleImage{ptx: []string{C.GoString((*C.char)(data))}}, nil // from cuModuleLoadData
	})
	h.load = sync.OnceValues(func() (*Module, error) {
		i, err := h.image()
		if err != nil {
			return nil, err
		}
		mod, err := host.machine.Load(i.ptx...)
		if err != nil {
			return nil, err
		}
		host.loaded = append(host.loaded, mod)
		mod.Rename, mod.Column, mod.Undefined, mod.usage = SourceName, columns.Of, true, i.usage
		if i.cubin != nil {
			mod.code = sync.OnceValues(func() ([]sass.Kernel, error) { return sass.Read(i.cubin) })
		}
		if mod.arch = i.arch; mod.arch == 0 {
			mod.arch = target(i.ptx[0])
		}
		return mod, nil
	})
	return h
}

// changedVariables returns the names of variables that are not in their initial state.
func changedVariables() (names []string) {
	host.Lock()
	defer host.Unlock()
	for _, mod := range host.loaded {
		names = append(names, mod.changed()...)
	}
	return names
}

// target returns the compute capability in the PTX's .target directive, such as 100.
func target(text string) int {
	_, after, _ := strings.Cut(text, "\n.target sm_")
	n := 0
	for i := 0; i < len(after) && after[i] >= '0' && after[i] <= '9' && n < 1000; i++ {
		n = 10*n + int(after[i]-'0')
	}
	return n
}

// vgCapability returns the compute capability of the device, such as 100: the newest that a kernel of the program was
// compiled for. Kernels that the program compiles or loads at run time do not change it.
//
//export vgCapability
func vgCapability() C.int {
	host.Lock()
	defer host.Unlock()
	newest := 0
	for _, h := range host.modules {
		if i, err := h.image(); h.linked && err == nil {
			newest = max(newest, i.arch)
		}
	}
	return C.int(cmp.Or(newest, 100))
}

// SourceName returns the path of a source in the submission, which is built in a folder src of the cache. For a program
// it is relative to the working folder if it is below it.
func SourceName(path string) string {
	path = filepath.ToSlash(path)
	if attached.folder != "" {
		if rel, err := filepath.Rel(attached.folder, path); err == nil && filepath.IsLocal(rel) {
			return rel
		}
		return path
	}
	if i := strings.LastIndex(path, "/src/"); i >= 0 && !strings.Contains(path, "/include/") {
		return path[i+len("/src/"):]
	}
	return path
}

// CUDA's error numbers.
const (
	cudaSuccess, cudaInvalidValue, cudaNoFunction       = 0, 1, 98
	cudaInvalidPTX, cudaNotSupported, cudaLaunchFailure = 218, 801, 719

	cudaIllegalAddress, cudaAssert, cudaMisalignedAddress = 700, 710, 716
)

func find(module uintptr, name string) (*Kernel, int) {
	host.Lock()
	defer host.Unlock()
	if module == 0 || int(module) > len(host.modules) {
		return nil, cudaNoFunction
	}
	mod, err := host.modules[module-1].load()
	if err != nil {
		keepLack(err.Error())
		return nil, cudaInvalidPTX
	}
	k, err := mod.Kernel(name)
	if err != nil {
		return nil, cudaNoFunction
	}
	return k, 0
}

//export vgModule
func vgModule(fatbin unsafe.Pointer, units *unsafe.Pointer) C.uintptr_t {
	host.Lock()
	defer host.Unlock()
	var list []unsafe.Pointer
	for p := units; p != nil && *p != nil; p = (*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		list = append(list, *p)
	}
	host.modules = append(host.modules, newHostModule(fatbin, list, host.columns))
	return C.uintptr_t(len(host.modules))
}

// A prepared launch is a launch whose parameters were copied.
type prepared struct {
	kernel *Kernel
	launch Launch
}

//export vgPrepare
func vgPrepare(module C.uintptr_t, kernel *C.char, dims *C.uint, args *unsafe.Pointer, shared C.size_t,
	code *C.int) C.uintptr_t {
	k, no := find(uintptr(module), C.GoString(kernel))
	if k == nil {
		*code = C.int(no)
		return 0
	}
	if s := vgStatus(); s != 0 {
		*code = s
		return 0
	}
	d := unsafe.Slice(dims, 11)
	l := Launch{Shared: int(shared), Params: make([]byte, k.size), Cooperative: d[9] != 0, anyCluster: d[10] != 0}
	for i := range 3 {
		l.Grid[i], l.Block[i], l.Cluster[i] = int(d[i]), int(d[3+i]), int(d[6+i])
	}
	if l.Cluster[0] == 0 {
		l.Cluster = k.Cluster()
	}
	if l.Cluster[0] == 0 {
		l.Cluster = [3]int{1, 1, 1}
	}
	if why, refusal := k.refusal(l); why != "" {
		refused(C.GoString(kernel), why)
		*code = C.int(refusal)
		return 0
	}
	params := k.Params()
	for i, p := range unsafe.Slice(args, len(params)) {
		copy(l.Params[params[i][0]:], unsafe.Slice((*byte)(p), params[i][1]))
	}
	host.Lock()
	defer host.Unlock()
	host.last++
	host.prepared[host.last] = prepared{k, l}
	return C.uintptr_t(host.last)
}

//export vgForget
func vgForget(id C.uintptr_t) {
	host.Lock()
	defer host.Unlock()
	delete(host.prepared, uintptr(id))
}

//export vgLaunch
func vgLaunch(id C.uintptr_t) C.int {
	if s := vgStatus(); s != 0 {
		return s
	}
	host.Lock()
	p := host.prepared[uintptr(id)]
	host.Unlock()
	return launchFamily(p.kernel, p.launch)
}

// launchFamily runs a kernel and then the kernels that it launches. The caller holds no lock.
func launchFamily(k *Kernel, l Launch) C.int {
	code, children := launchOne(k, l)
	tail := slices.DeleteFunc(slices.Clone(children), func(c child) bool { return !c.tail })
	children = slices.DeleteFunc(children, func(c child) bool { return c.tail })
	for _, c := range append(children, tail...) {
		if code != cudaSuccess || vgStatus() != cudaSuccess {
			break
		}
		host.Lock()
		kernel, err := k.mod.Kernel(c.kernel)
		host.Unlock()
		if err != nil {
			return cudaNoFunction
		}
		if why, _ := kernel.refusal(c.launch); why != "" {
			refused(c.kernel, why)
			continue
		}
		code = launchFamily(kernel, c.launch)
	}
	return code
}

func launchOne(k *Kernel, l Launch) (C.int, []child) {
	done := launching(k, &l)
	defer done()
	if _, ok := k.usage(); !ok {
		tell(Unlimited, "")
	}
	C.vg_device_begins()
	children, err := host.machine.run(k, l)
	C.vg_device_ends()
	var f *Fault
	if err == nil || !errors.As(err, &f) {
		return cudaSuccess, children
	}
	host.Lock()
	defer host.Unlock()
	if f.Missing {
		keepLack(f.Text)
		return cudaNotSupported, nil
	}
	keepFault(f)
	return cudaSuccess, nil // as on a GPU, which reports the fault later
}

//export vgAttributes
func vgAttributes(module C.uintptr_t, kernel *C.char, out *C.fisub_vgpu_attributes) C.int {
	k, code := find(uintptr(module), C.GoString(kernel))
	if k == nil {
		return C.int(code)
	}
	const unknown = 64 // registers, if ptxas's count is unknown
	u, _ := k.usage()
	*out = C.fisub_vgpu_attributes{shared: C.int(k.StaticShared()), local: C.int(k.local()),
		threads:   C.int(k.MaxThreads()),
		registers: C.int(cmp.Or(u.registers, unknown)), arch: C.int(k.mod.arch)}
	return cudaSuccess
}

// vgBlocks returns how many blocks of a kernel a multiprocessor holds at once, or 0 if the kernel does not exist.
//
//export vgBlocks
func vgBlocks(module C.uintptr_t, kernel *C.char, threads C.int, shared C.size_t) C.int {
	k, _ := find(uintptr(module), C.GoString(kernel))
	if k == nil {
		return 0
	}
	return C.int(k.blocks(int(threads), int(min(shared, 1<<20))))
}

//export vgSymbol
func vgSymbol(module C.uintptr_t, name *C.char, size *C.size_t) C.uintptr_t {
	host.Lock()
	defer host.Unlock()
	if module == 0 || int(module) > len(host.modules) {
		return 0
	}
	mod, err := host.modules[module-1].load()
	if err != nil {
		keepLack(err.Error())
		return 0
	}
	p, n := mod.Symbol(C.GoString(name))
	*size = C.size_t(n)
	return C.uintptr_t(p)
}

//export vgAlloc
func vgAlloc(size C.size_t, shared C.int, by *C.fisub_vgpu_callers) C.uintptr_t {
	if size > 1<<40 {
		return 0
	}
	host.Lock()
	host.machine.numbers++
	a := allocation{name: "memory of the host code", number: host.machine.numbers, taken: callersOf(by)}
	host.Unlock()
	part := C.int(C.VG_OWN)
	if shared != 0 {
		a.kind, part = C.FISUB_VGPU_PINNED, C.VG_OPEN
	}
	return C.uintptr_t(host.machine.alloc(int(size), a, part))
}

//export vgWritten
func vgWritten(p C.uintptr_t, size C.size_t) { host.machine.written(uintptr(p), int(size)) }

// vgInside keeps a fault if p is in an allocation of the device and p+size is past its end.
//
//export vgInside
func vgInside(function *C.char, p C.uintptr_t, size C.size_t) C.int {
	in, ok := host.machine.find(uintptr(p))
	end := in.base + in.size
	if !ok || uint64(size) <= end-uint64(p) {
		return cudaSuccess
	}
	wrongUse(fmt.Sprintf("%s of %d bytes at %#x, crossing the end of %v by %d bytes", C.GoString(function), size,
		uintptr(p), in, uint64(p)+uint64(size)-end))
	return cudaInvalidValue
}

// vgInaccessible keeps a fault for a copy with memory of the host that does not exist.
//
//export vgInaccessible
func vgInaccessible(function *C.char, p C.uintptr_t, writes C.int) {
	verb := "reads"
	if writes != 0 {
		verb = "writes"
	}
	wrongUse(fmt.Sprintf("%s %s host memory at %#x, which is not accessible: on a GPU this is a segmentation fault",
		C.GoString(function), verb, uintptr(p)))
}

// wrongUse keeps a fault of the submission's host code.
func wrongUse(text string) {
	host.Lock()
	defer host.Unlock()
	keepFault(&Fault{Text: text})
}

// keepFault keeps the first fault. The caller holds the lock, as of keepLack.
func keepFault(f *Fault) {
	if host.fault == nil {
		host.fault = f
		tell(Faulted, f.Text)
		if report := host.machine.OnHazard; report != nil && attached.notify == nil {
			report(device.Hazard{Kind: device.Faulted, Text: f.Error()})
		}
	}
}

// keepLack keeps the first unsupported feature, and reports each one once.
func keepLack(text string) {
	host.lack = cmp.Or(host.lack, text)
	if !slices.Contains(host.lacks, text) {
		host.lacks = append(host.lacks, text)
		tell(Lacking, text)
	}
}

// hostUse keeps a fault if host code has used device memory. It names the function if it belongs to library object.
func hostUse(object string) {
	var use C.vg_use
	if C.vg_used(&use) == 0 {
		return
	}
	where := ""
	for _, frame := range use.frames[:use.n] {
		var at C.Dl_info
		if C.dladdr(frame, &at) != 0 && C.GoString(at.dli_fname) == object && at.dli_sname != nil {
			where = " in " + strings.TrimPrefix(Demangled(C.GoString(at.dli_sname)), "__tvm_ffi_")
			break
		}
	}
	if place := placeOf(use.frames[:use.n]); place != "" {
		where = " at " + place
	}
	if a, ok := host.machine.find(uintptr(use.address)); ok && a.kind == C.FISUB_VGPU_PINNED && host.machine.order != nil {
		host.machine.order.hostUse(where, uint64(uintptr(use.address)), use.write == 1)
		return
	}
	verb := map[C.int]string{0: "reads", 1: "writes"}[use.write]
	wrongUse(fmt.Sprintf("host code%s %s device memory, %s: on a GPU this is a segmentation fault", where,
		cmp.Or(verb, "uses"), host.machine.where(uint64(uintptr(use.address)))))
}

// lateWork keeps a hazard if a call left work on a stream of the submission that neither the call's stream nor the host
// waited for.
func lateWork() {
	var kernel *C.char
	for C.vg_unawaited(&kernel) != 0 {
		what, place := "a copy", ""
		if kernel != nil {
			place = Demangled(C.GoString(kernel))
			what = "kernel " + place
		}
		host.machine.recordHazard(device.Hazard{Kind: "late-write", Place: place, Text: what + " may go on when the call " +
			"has returned: nothing orders its stream, which is non-blocking, with the stream of the call"})
	}
}

// vgRelease frees memory, which must be host memory if pinned is set. It reports whether there is such memory.
//
//export vgRelease
func vgRelease(function *C.char, p C.uintptr_t, pinned C.int, by *C.fisub_vgpu_callers) C.int {
	m := host.machine
	a, ok := m.find(uintptr(p))
	wrong := !ok || a.base != uint64(p) || a.number == 0 || pinned != 0 && a.kind != C.FISUB_VGPU_PINNED
	if wrong {
		misfreed(C.GoString(function), uintptr(p), a, ok)
		return 0
	}
	if m.order != nil {
		m.order.forget(a.base, a.size)
	}
	m.unmap(uintptr(p), callersOf(by))
	return 1
}

// misfreed keeps a hazard for a release of address p, at which no allocation begins. If inside is set, p is in a.
func misfreed(function string, p uintptr, a allocation, inside bool) {
	if attached.every&Refusals == 0 {
		return
	}
	what := fmt.Sprintf("%#x, which is not allocated", p)
	freed, ok := host.machine.freedAt(uint64(p))
	switch {
	case inside && a.number == 0:
		what = fmt.Sprintf("%#x, which is byte %d of %s", p, uint64(p)-a.base, a.name)
	case inside && a.base != uint64(p):
		what = fmt.Sprintf("%#x, which is byte %d of %s", p, uint64(p)-a.base, a)
	case inside:
		what = fmt.Sprintf("%s, which is not host memory", a)
	case ok && freed.base == uint64(p):
		what = freed.end()
	}
	text := function + " of " + what + ": it returns cudaErrorInvalidValue, as on a GPU"
	host.machine.recordHazard(device.Hazard{Kind: "invalid-free", Place: fmt.Sprintf("%#x", p), Text: text})
}

// vgEnding lists the features that the program lacks besides those already reported, and its allocations that were
// never freed.
//
//export vgEnding
func vgEnding() {
	const most = 10
	host.Lock()
	defer host.Unlock()
	if host.lack != "" {
		if others := otherLacks(); len(others) > 0 {
			tell(Note, "the program also uses, and the virtual GPU lacks: "+strings.Join(others, ", "))
		}
	}
	if attached.every&Refusals == 0 || host.fault != nil {
		return
	}
	host.machine.mu.Lock()
	left := slices.Clone(host.machine.ranges)
	host.machine.mu.Unlock()
	left = slices.DeleteFunc(left, func(a allocation) bool { return a.number == 0 })
	slices.SortFunc(left, func(a, b allocation) int { return cmp.Compare(a.number, b.number) })
	for i, a := range left {
		if i == most && len(left) > most+1 {
			tell(Note, fmt.Sprintf("%d more allocations were never freed", len(left)-most))
			return
		}
		tell(Note, a.String()+" was never freed")
	}
}

//export vgNote
func vgNote(text *C.char) {
	if attached.notify != nil {
		host.machine.note(C.GoString(text))
	}
}

//export vgKnown
func vgKnown(p C.uintptr_t) C.int { return host.machine.kindOf(uintptr(p)) }

// vgLimits changes the limits of the device that are not 0, and sets whether they are in use.
//
//export vgLimits
func vgLimits(l *C.fisub_vgpu_limits) {
	m := host.machine
	m.launch.Lock()
	defer m.launch.Unlock()
	m.heapBytes, m.stackBytes = cmp.Or(int(l.heap), m.heapBytes), cmp.Or(int(l.stack), m.stackBytes)
	if m.heap != nil {
		l.heap_used = 1
	}
	if m.printed {
		l.printf_used = 1
	}
}

//export vgStatus
func vgStatus() C.int {
	if attached.notify != nil {
		hostUse("")
	}
	host.Lock()
	defer host.Unlock()
	switch {
	case host.lack != "":
		return cudaNotSupported
	case host.fault != nil:
		return cmp.Or(host.fault.code, cudaLaunchFailure)
	}
	return cudaSuccess
}

// refused keeps a fault or hazard for a launch that a GPU refuses. A submission that does not check for errors would
// not notice it.
func refused(kernel, why string) {
	text := fmt.Sprintf("kernel %s was not launched: %s", Demangled(kernel), why)
	host.Lock()
	defer host.Unlock()
	if host.machine.Strict&Refusals != 0 {
		keepFault(&Fault{Text: text})
		return
	}
	host.machine.recordHazard(device.Hazard{Kind: "refused-launch", Place: Demangled(kernel), Text: text})
}

//export vgRefused
func vgRefused(kernel, why *C.char) { refused(C.GoString(kernel), C.GoString(why)) }

//export vgLacks
func vgLacks(name *C.char) {
	host.Lock()
	defer host.Unlock()
	keepLack(lackingPrefix + C.GoString(name))
}
