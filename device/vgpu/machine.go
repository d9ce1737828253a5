//go:build linux && cgo

// Package vgpu is a virtual GPU: it executes PTX on the CPU. A Machine holds memory and modules and runs kernels; it
// measures no times.
package vgpu

//go:generate go run fisub/scripts/codes

/*
#include <stdlib.h>
#include <string.h>
#include "exec/exec.h"
#include "glue.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ianlancetaylor/demangle"

	"fisub/device"
	"fisub/device/vgpu/exec"
	"fisub/device/vgpu/ptx"
)

// A Machine is one virtual GPU. Its methods may be called from any goroutine; launches run one after another.
type Machine struct {
	mu      sync.Mutex
	ranges  []allocation // sorted by base
	nextID  int32
	Workers int // threads that run blocks; 0: one per processor

	Strict  Hazards             // hazards to report as faults
	Heard   func(device.Hazard) // called at once with each hazard that is not a fault; may be nil
	noticed []device.Hazard     // hazards that are not faults; for each kind and place the first

	// Look holds the hazards to check for in addition to those that are always checked: Races, UnwrittenLocal,
	// UnwrittenGlobal. The check for races stops after RacesUntil warp instructions of a launch; 0 means no limit.
	Look       Hazards
	RacesUntil uint64
	// Workload is the number of the current workload, or 0. From the second workload on, checks run only in small
	// launches of a new kernel or size, and in launches of kernels that had a hazard.
	Workload int
	looked   map[any]int // number of the first workload with a form, or with a *Kernel that had a hazard

	heap     *C.vg_heap // for device malloc; nil until a kernel needs it
	launch   sync.Mutex
	running  *C.vg_launch
	stopped  bool
	Executed uint64            // warp instructions so far
	worked   atomic.Bool       // a kernel was launched, or memory copied or set
	launched atomic.Bool       // a kernel was launched
	Counts   map[string]uint64 // by instruction; may be nil
}

// Hazards is a set of errors that do not always make the result wrong.
type Hazards uint32

// UnwrittenShared, UnwrittenLocal, UnwrittenGlobal and UnwrittenRegister are reads of memory or registers that were
// never written; UnwrittenGlobal covers outputs and memory allocated by the submission. Races are unordered accesses,
// Divisions are integer divisions by zero. Refusals are refused launches and copies; the caller of a Machine reports
// them. Ended are barriers and warp instructions that wait for ended threads; a GPU permits them, so they are checked
// only if they are faults. OutsideMask are warp instructions executed by a lane outside their member mask.
const (
	UnwrittenShared   Hazards = 1 << hazardShared
	Races             Hazards = 1 << hazardRace
	UnwrittenLocal    Hazards = 1 << hazardLocal
	Divisions         Hazards = 1 << hazardDivision
	Refusals          Hazards = 1 << hazardRefusal
	Ended             Hazards = 1 << hazardEnded
	UnwrittenGlobal   Hazards = 1 << hazardGlobal
	UnwrittenRegister Hazards = 1 << hazardRegister
	OutsideMask       Hazards = 1 << hazardOutsideMask
)

// An allocation is memory that kernels may use.
type allocation struct {
	base, size uint64
	id         int32
	readonly   bool
	name       string
	free       func() // nil: the caller owns the memory
	shadow     int64  // see exec.h
}

// Map lets kernels use size bytes at base, under the given name in messages. The caller keeps ownership of the memory.
func (m *Machine) Map(base uintptr, size int, name string, readonly bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.insert(allocation{base: uint64(base), size: uint64(size), readonly: readonly, name: name})
}

func (m *Machine) insert(a allocation) {
	m.nextID++
	a.id = m.nextID
	i, _ := slices.BinarySearchFunc(m.ranges, a.base, func(r allocation, b uint64) int {
		if r.base < b {
			return -1
		} else if r.base > b {
			return 1
		}
		return 0
	})
	m.ranges = slices.Insert(m.ranges, i, a)
}

// Unmap removes the allocation that begins at base, and reports whether there is one.
func (m *Machine) Unmap(base uintptr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.ranges, func(a allocation) bool { return a.base == uint64(base) })
	if i < 0 {
		return false
	}
	if free := m.ranges[i].free; free != nil {
		free()
	}
	m.ranges = slices.Delete(m.ranges, i, i+1)
	return true
}

// Alloc returns the address of size bytes that kernels and host code may use, or 0 if memory is exhausted. The same
// sequence of calls returns the same addresses in every process.
func (m *Machine) Alloc(size int, name string) uintptr {
	p := C.vg_map(C.size_t(max(size, 0)), C.VG_OPEN)
	if p == nil {
		return 0
	}
	m.own(allocation{base: uint64(uintptr(p)), size: uint64(size), name: name, free: func() { C.vg_unmap(p) }})
	return uintptr(p)
}

// own lets kernels use an allocation until Unmap, which frees it.
func (m *Machine) own(a allocation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.insert(a)
}

// written marks size bytes at p as written by the host. It has no effect unless Look includes UnwrittenGlobal.
func (m *Machine) written(p uintptr, size int) {
	m.worked.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watch()
	for _, a := range m.ranges {
		if from, to := max(uint64(p), a.base), min(uint64(p)+uint64(size), a.base+a.size); a.shadow != 0 && from < to {
			C.memset(at(uintptr(from+uint64(a.shadow))), 1, C.size_t(to-from))
		}
	}
}

// watch drops all shadows if UnwrittenGlobal is not checked: later writes are not recorded.
func (m *Machine) watch() {
	if m.Look&UnwrittenGlobal == 0 {
		for i := range m.ranges {
			m.ranges[i].shadow = 0
		}
	}
}

// Find returns the allocation that contains addr.
func (m *Machine) Find(addr uintptr) (base uintptr, size int, name string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.ranges {
		if uint64(addr) >= a.base && uint64(addr) < a.base+max(a.size, 1) {
			return uintptr(a.base), int(a.size), a.name, true
		}
	}
	return 0, 0, "", false
}

// A Module is PTX loaded by a Machine.
type Module struct {
	m       *Machine
	ptx     *ptx.Module
	vars    map[string]uint64
	sizes   map[string]int
	args    map[*ptx.Func]uint64 // addresses of kernels' parameters
	kernels map[string]*Kernel
	arch    int              // of the PTX, such as 100
	usage   map[string]usage // by kernel; nil if unknown

	// Undefined makes kernels check for reads of unwritten registers. It takes effect when a kernel is decoded.
	Undefined bool

	// Rename returns the name of a source file in messages. It may be nil.
	Rename func(path string) string

	// Column converts a column of the compiler's to one of the source, or to 0 if that is unknown. file is a result of
	// Rename. Column may be nil.
	Column func(file string, line, col int) int
}

// paramsSize is the maximum size in bytes of a kernel's parameters.
const paramsSize = 32768

// Load parses PTX and allocates its variables.
func (m *Machine) Load(text string) (*Module, error) {
	parsed, err := ptx.Parse(text)
	if err != nil {
		return nil, err
	}
	mod := &Module{m: m, ptx: parsed, vars: map[string]uint64{}, sizes: map[string]int{}, args: map[*ptx.Func]uint64{},
		kernels: map[string]*Kernel{}}
	for _, v := range parsed.Vars {
		if v.Space == "shared" || v.Extern {
			continue
		}
		p := m.Alloc(v.Size, v.Name)
		if p == 0 {
			return nil, errors.New("vgpu: out of memory")
		}
		data := unsafe.Slice((*byte)(at(p)), v.Size)
		clear(data)
		copy(data, v.Init)
		mod.vars[v.Name], mod.sizes[v.Name] = uint64(p), v.Size
		if v.Space == "const" {
			m.mu.Lock()
			for i := range m.ranges {
				if m.ranges[i].base == uint64(p) {
					m.ranges[i].readonly = true
				}
			}
			m.mu.Unlock()
		}
	}
	for _, v := range parsed.Vars {
		for _, r := range v.Refs {
			a, ok := mod.vars[r.Name]
			if i, is := parsed.Index()[r.Name]; !ok && is {
				a, ok = codeWindow+uint64(i)<<4, true
			}
			if !ok {
				return nil, fmt.Errorf("PTX line %d: unknown variable %s", v.Line, r.Name)
			}
			a += uint64(r.Add)
			for i := range r.Size {
				*(*byte)(at(uintptr(mod.vars[v.Name]) + uintptr(r.Offset+i))) = byte(a >> (8 * i))
			}
		}
	}
	return mod, nil
}

// at returns a pointer to non-Go memory. If inlined, it makes Go 1.26's compiler fail on copies of a fixed size.
//
//go:noinline
func at(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func (mod *Module) undefined() bool { return mod.Undefined }

func (mod *Module) address(name string) (uint64, bool) { a, ok := mod.vars[name]; return a, ok }

func (mod *Module) params(f *ptx.Func) uint64 {
	a, ok := mod.args[f]
	if !ok {
		a = uint64(mod.m.Alloc(paramsSize, "the parameters of "+Demangled(f.Name)))
		mod.args[f] = a
	}
	return a
}

// Symbol returns the address and size of a variable, or 0, 0 if it does not exist.
func (mod *Module) Symbol(name string) (uintptr, int) {
	return uintptr(mod.vars[name]), mod.sizes[name]
}

// Names returns the names of the module's kernels.
func (mod *Module) Names() (names []string) {
	for _, f := range mod.ptx.Funcs {
		if f.Entry && f.HasBody {
			names = append(names, f.Name)
		}
	}
	return names
}

// A Kernel is a decoded kernel, ready for launches.
type Kernel struct {
	mod   *Module
	src   *ptx.Func
	prog  *program
	funcs **C.vg_func // in C memory, like everything they point to
	n     int
	size  int    // of the parameters
	block [3]int // of the current launch
}

// Kernel decodes the kernel with the given name.
func (mod *Module) Kernel(name string) (*Kernel, error) {
	if k, ok := mod.kernels[name]; ok {
		return k, nil
	}
	i := slices.IndexFunc(mod.ptx.Funcs, func(f *ptx.Func) bool { return f.Name == name && f.Entry && f.HasBody })
	if i < 0 {
		return nil, fmt.Errorf("no kernel %s", name)
	}
	src := mod.ptx.Funcs[i]
	if mod.params(src) == 0 {
		return nil, errors.New("vgpu: out of memory")
	}
	prog, err := decodeKernel(mod.ptx, mod, src)
	if err != nil {
		return nil, err
	}
	k := &Kernel{mod: mod, src: src, prog: prog, n: len(mod.ptx.Funcs)}
	for _, p := range src.Params {
		k.size = aligned(k.size, p) + p.Size
	}
	k.funcs = (**C.vg_func)(C.calloc(C.size_t(k.n), 8))
	table := unsafe.Slice(k.funcs, k.n)
	for _, i := range slices.Sorted(maps.Keys(prog.funcs)) {
		f := prog.funcs[i]
		c := (*C.vg_func)(C.calloc(1, C.sizeof_vg_func))
		c.code = (*C.vg_inst)(copied(unsafe.Pointer(unsafe.SliceData(f.code)), len(f.code)*int(unsafe.Sizeof(inst{}))))
		c.ncode = C.int32_t(len(f.code))
		c.extra = (*C.int32_t)(copied(unsafe.Pointer(unsafe.SliceData(f.extra)), len(f.extra)*4))
		c.pool = (*C.uint8_t)(copied(unsafe.Pointer(unsafe.SliceData(f.pool)), len(f.pool)))
		c.frame_size, c.local_size, c.id = C.int32_t(f.frameSize), C.int32_t(f.localSize), C.int32_t(i)
		if f.calls {
			c.calls = 1
		}
		table[i] = c
	}
	mod.kernels[name] = k
	return k, nil
}

func copied(p unsafe.Pointer, n int) unsafe.Pointer {
	to := C.aligned_alloc(64, C.size_t((n+127)/64*64))
	if n > 0 {
		C.memcpy(to, p, C.size_t(n))
	}
	return to
}

// Lacks returns the instructions of the kernel that the virtual GPU does not support.
func (k *Kernel) Lacks() []string { return k.prog.lacks }

// StaticShared returns the size in bytes of the shared memory that the kernel declares.
func (k *Kernel) StaticShared() int { return k.prog.staticShared }

// LocalBytes returns the size of a thread's local memory.
func (k *Kernel) LocalBytes() (n int) {
	for _, f := range k.prog.funcs {
		n += f.localSize
	}
	return n
}

// Cluster returns the cluster size that the kernel is compiled for, or zeros.
func (k *Kernel) Cluster() [3]int { return k.src.ClusterDim }

// Params returns the offset and size of each parameter.
func (k *Kernel) Params() (all [][2]int) {
	at := 0
	for _, p := range k.src.Params {
		at = aligned(at, p)
		all = append(all, [2]int{at, p.Size})
		at += p.Size
	}
	return all
}

// A Launch is the configuration and the parameters of a launch.
type Launch struct {
	Grid, Block, Cluster [3]int
	Shared               int // dynamic shared memory in bytes
	Params               []byte
	Cooperative          bool // the kernel may use a grid-wide barrier
	anyCluster           bool // clusters may exceed portableCluster
}

// A form identifies similar launches: same kernel, same sizes.
type form struct {
	kernel               *Kernel
	grid, block, cluster [3]int
	shared               int
}

// laterRacesUntil replaces RacesUntil from the second workload on. There, launches of more than fewBlocks blocks are
// not checked, because a check takes several times as long as the calls.
const laterRacesUntil, fewBlocks = 100_000, 128

// looks returns the hazards to check for in a launch.
func (m *Machine) looks(k *Kernel, l *Launch) Hazards {
	if m.Workload == 0 || m.Look == 0 || m.looked[k] > 0 {
		return m.Look
	}
	f := form{k, l.Grid, l.Block, l.Cluster, l.Shared}
	if first := m.looked[f]; first > 0 && first != m.Workload || m.Workload > 1 && l.blocks() > fewBlocks {
		return 0
	}
	m.saw(f)
	return m.Look
}

func (m *Machine) saw(what any) {
	if m.looked == nil {
		m.looked = map[any]int{}
	}
	m.looked[what] = m.Workload
}

func (l *Launch) blocks() int { return l.Grid[0] * l.Grid[1] * l.Grid[2] }

// A Fault is an error of a kernel or, if Missing is set, a feature that the virtual GPU does not support.
type Fault struct {
	Text    string
	Missing bool
	Stopped bool
}

func (f *Fault) Error() string { return f.Text }

// Run runs a kernel to its end. An error of the kernel is a *Fault.
func (m *Machine) Run(k *Kernel, l Launch) error {
	m.worked.Store(true)
	m.launched.Store(true)
	m.launch.Lock()
	defer m.launch.Unlock()
	c := (*C.vg_launch)(C.calloc(1, C.sizeof_vg_launch))
	defer C.free(unsafe.Pointer(c))
	k.block = l.Block
	c.funcs, c.nfuncs, c.entry = k.funcs, C.int32_t(k.n), C.int32_t(k.prog.entry)
	for i := range 3 {
		c.grid[i], c.block[i] = C.uint32_t(l.Grid[i]), C.uint32_t(l.Block[i])
		c.cluster[i] = C.uint32_t(max(1, l.Cluster[i]))
	}
	c.shared_static, c.shared_dynamic, c.shared_base = C.uint32_t(k.prog.staticShared), C.uint32_t(l.Shared), sharedBase
	params := k.mod.args[k.src]
	copy(unsafe.Slice((*byte)(at(uintptr(params))), paramsSize), l.Params)
	c.params, c.params_size = (*C.uint8_t)(at(uintptr(params))), C.uint32_t(k.size)
	if l.Cooperative {
		workspace := m.Alloc(8, "the grid's barrier")
		defer m.Unmap(workspace)
		*(*[2]uint32)(at(workspace)) = [2]uint32{8, 0}
		c.workspace = C.uint64_t(workspace)
	}
	if k.prog.heap {
		c.heap = m.deviceHeap()
	}
	m.mu.Lock()
	if m.stopped {
		m.mu.Unlock()
		return &Fault{Text: "stopped", Stopped: true}
	}
	m.watch()
	ranges := (*C.vg_range)(C.calloc(C.size_t(len(m.ranges)+1), C.sizeof_vg_range))
	defer C.free(unsafe.Pointer(ranges))
	for i, a := range m.ranges {
		r := C.vg_range{base: C.uint64_t(a.base), size: C.uint64_t(a.size), id: C.int32_t(a.id),
			shadow: C.int64_t(a.shadow)}
		if a.readonly {
			r.readonly = 1
		}
		unsafe.Slice(ranges, len(m.ranges))[i] = r
	}
	c.ranges, c.nranges = ranges, C.int32_t(len(m.ranges))
	m.running = c
	m.mu.Unlock()
	workers := m.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	look := m.looks(k, &l)
	if k.prog.atomics {
		workers = 1
	}
	if look&Races != 0 {
		c.races, c.races_until, c.solo = 1, math.MaxUint64, C.int32_t(k.resident(l))
		if m.RacesUntil != 0 {
			c.races_until = C.uint64_t(m.RacesUntil)
		}
		if m.Workload > 1 {
			c.races_until = min(c.races_until, laterRacesUntil)
		}
		if blocks := l.blocks(); blocks <= 1<<24 {
			c.told = (*C.uint64_t)(C.calloc(C.size_t(blocks), 8))
			defer C.free(unsafe.Pointer(c.told))
		}
	}
	if look&UnwrittenLocal != 0 {
		c.local = 1
	}
	c.resident = C.int32_t(k.resident(l) / workers)
	c.strict = C.int32_t(m.Strict)
	if m.Counts != nil {
		c.counts = (*C.uint64_t)(C.calloc(C.size_t(len(opNames)), 8))
		defer C.free(unsafe.Pointer(c.counts))
	}
	c.workers = C.int32_t(workers)
	c.progress = (*C.vg_progress)(C.calloc(C.size_t(workers), C.sizeof_vg_progress))
	defer C.free(unsafe.Pointer(c.progress))
	if c.solo != 0 {
		for i := range workers - 1 { // counts as ended, so that the first worker does not wait for it yet
			unsafe.Slice(c.progress, workers)[1+i].waiting = math.MaxUint64
		}
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { exec.Work(unsafe.Pointer(c)) })
	}
	group.Wait()
	m.mu.Lock()
	m.running = nil
	m.mu.Unlock()
	m.Executed += uint64(c.executed)
	if m.Counts != nil {
		counts := unsafe.Slice(c.counts, len(opNames))
		for i, name := range opNames {
			if counts[i] > 0 {
				m.Counts[name] += uint64(counts[i])
			}
		}
	}
	for i := range c.hazard {
		if h := &c.hazards[i]; c.hazard[i] != 0 {
			m.saw(k)
			m.notice(kinds[i], cmp.Or(k.place(locationOf(h)), Demangled(k.src.Name)), k.describe(h).Text)
		}
	}
	if c.faulted != 0 {
		return k.describe(&c.fault)
	}
	if c.stop != 0 {
		return &Fault{Text: "kernel " + Demangled(k.src.Name) + " was stopped", Stopped: true}
	}
	return nil
}

// heapBytes is the size of the heap of device malloc, the same as CUDA's default.
const heapBytes = 8 << 20

// deviceHeap returns the heap for device malloc. It lives as long as the machine.
func (m *Machine) deviceHeap() *C.vg_heap {
	if m.heap == nil {
		m.heap = (*C.vg_heap)(C.calloc(1, C.sizeof_vg_heap))
		m.heap.base, m.heap.size = (*C.uint8_t)(at(m.Alloc(heapBytes, "memory of device malloc"))), heapBytes
	}
	return m.heap
}

// kinds maps the bits of Hazards to values of device.Hazard.Kind.
var kinds = [hazardCount]string{hazardShared: "unwritten-memory", hazardRace: "race", hazardLocal: "unwritten-memory",
	hazardDivision: "division-by-zero", hazardRefusal: "refused-launch", hazardEnded: "ended-threads",
	hazardGlobal: "unwritten-memory", hazardRegister: "unwritten-register", hazardOutsideMask: "member-mask"}

// notice records a hazard unless one of the same kind and place is known.
func (m *Machine) notice(kind, place, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := (device.Hazard{Kind: kind, Place: place, Text: text}); !slices.ContainsFunc(m.noticed, h.Same) {
		m.noticed = append(m.noticed, h)
		if m.Heard != nil {
			m.Heard(h)
		}
	}
}

// TakeHazards returns the hazards noticed since the last call. Faults are not among them.
func (m *Machine) TakeHazards() []device.Hazard {
	m.mu.Lock()
	defer m.mu.Unlock()
	noticed := m.noticed
	m.noticed = nil
	return noticed
}

// Worked reports whether a kernel was launched, or memory copied or set, since the last call.
func (m *Machine) Worked() bool { return m.worked.Swap(false) }

// Launched reports whether a kernel was launched since the last call.
func (m *Machine) Launched() bool { return m.launched.Swap(false) }

// Reset lets a stopped machine run again.
func (m *Machine) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = false
}

// Stop ends the running launch; later ones end at once.
func (m *Machine) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	if m.running != nil {
		m.running.stop = C.STOP_ASKED
	}
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
	name := func(t int) string {
		return fmt.Sprintf("(%d,%d,%d)", t%k.block[0], t/k.block[0]%k.block[1], t/k.block[0]/k.block[1])
	}
	if t >= 0 {
		return "thread " + name(t)
	}
	first := 32 * (-1 - t)
	return fmt.Sprintf("warp %d (threads %s to %s)", first/32, name(first),
		name(min(first+31, k.block[0]*k.block[1]*k.block[2]-1)))
}

// reach is the maximum distance at which an access is attributed to an allocation: the range of a signed 32-bit index
// of 4-byte elements. Unless memory is scarce, memory.c places allocations more than twice as far apart.
const reach = 8 << 30

// where describes an address by the allocation that contains it or the nearest one.
func (m *Machine) where(a uint64) string {
	if base, _, name, ok := m.Find(uintptr(a)); ok {
		return fmt.Sprintf("byte %d of %s", a-uint64(base), name)
	}
	return m.near(a)
}

// near describes the address of an access that is not inside an allocation, relative to the nearest one.
func (m *Machine) near(a uint64) string {
	if a < 4096 {
		return "a null pointer"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	best, text := uint64(math.MaxUint64), ""
	for _, r := range m.ranges {
		distance, how := uint64(0), "past the end of"
		switch {
		case r.name == "":
			continue
		case a >= r.base && a < r.base+r.size:
			return fmt.Sprintf("crossing the end of %s", r.name)
		case a >= r.base:
			distance = a - r.base - r.size
		default:
			distance, how = r.base-a, "before"
		}
		// An allocation beyond reach is named only if it is an argument of the call.
		if distance < best && (distance <= reach || r.free == nil) {
			best, text = distance, fmt.Sprintf("%d bytes %s %s", distance, how, r.name)
		}
	}
	switch {
	case best <= reach:
		return text
	case text != "" && best < 1<<40:
		return "outside the device's memory, far from the nearest tensor: " + text
	}
	return "outside the device's memory"
}

// inside names the allocation that contains a.
func (m *Machine) inside(a uint64) string {
	if base, _, name, ok := m.Find(uintptr(a)); ok {
		return fmt.Sprintf("byte %d of %s", a-uint64(base), name)
	}
	return "no allocation"
}

// cString returns the string at a, or "?" if it is outside all allocations.
func (m *Machine) cString(a uint64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.ranges {
		if a >= r.base && a < r.base+r.size {
			data := unsafe.Slice((*byte)(at(uintptr(a))), int(r.base+r.size-a))
			if i := slices.Index(data, 0); i >= 0 {
				data = data[:i]
			}
			return string(data)
		}
	}
	return "?"
}

// unnamed matches unnamed namespaces: the source's own, and those that nvcc adds for static functions.
var unnamed = regexp.MustCompile(`\(anonymous namespace\)::|\b_INTERNAL_\w+::`)

// Demangled returns the source name of a function without parameters, template arguments and unnamed namespaces.
func Demangled(name string) string {
	text, err := demangle.ToString(name, demangle.NoParams, demangle.NoTemplateParams, demangle.NoClones)
	if err != nil {
		return name
	}
	return unnamed.ReplaceAllString(text, "")
}
