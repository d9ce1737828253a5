//go:build linux && cgo

// Package vgpu is a virtual GPU: it executes PTX on the CPU. A Machine holds memory and modules and runs kernels; it
// measures no times.
package vgpu

//go:generate go run fisub/scripts/codes

/*
#include <stdlib.h>
#include <string.h>
#include "exec/exec.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ianlancetaylor/demangle"

	"fisub/device"
	"fisub/device/counters"
	"fisub/device/sass"
	"fisub/device/vgpu/ptx"
)

// A Machine is one virtual GPU. Its methods may be called from any goroutine; launches run one after another.
type Machine struct {
	mu      sync.Mutex
	ranges  []allocation // sorted by base
	freed   []allocation // the latest, oldest first
	numbers int          // of allocations by host code
	Workers int          // threads that run blocks; 0: one per processor

	Strict   Hazards             // hazards to report as faults
	OnHazard func(device.Hazard) // called at once with each hazard that is not a fault, and with progress; may be nil
	OnNote   func(text string)   // called once with each note about code that is permitted but risky; may be nil
	notes    map[string]bool
	hazards  []device.Hazard // hazards that are not faults; for each kind and place the first

	// Check holds the hazards to check for in addition to those that are always checked: Races, UnwrittenLocal,
	// UnwrittenGlobal. The check for races stops after RacesUntil warp instructions of a launch; 0 means no limit.
	Check      Hazards
	RacesUntil uint64
	// Workload is the number of the current workload, or 0. From the second workload on, checks run only in small
	// launches of a new kernel or size, and in launches of kernels that had a hazard.
	Workload int
	fully    bool        // see Begin
	checked  map[any]int // number of the first workload with a form, or with a *Kernel that had a hazard

	heap    *C.vg_heap // for device malloc; nil until a kernel needs it
	printed bool       // a kernel with printf was launched
	// Limits in bytes; 0: the default.
	heapBytes, stackBytes int

	order *order // nil: the order of operations is not checked

	slow     time.Duration // before the first report of a launch's progress; 0: slowLaunch
	launch   sync.Mutex
	running  *C.vg_state
	stopped  bool
	Executed uint64            // warp instructions so far
	worked   atomic.Bool       // a kernel was launched, or memory copied or set
	launched atomic.Bool       // a kernel was launched
	Counts   map[string]uint64 // by instruction; may be nil

	// OnCounters, if not nil, is called with the counters of each launch that has ended. Of launches with more than
	// Sample clusters, about that many run, if Sample is not 0: the first, the last and every n-th one. Kernels with
	// atomics and cooperative ones run as a whole.
	OnCounters func(counters.Launch)
	Sample     int
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
	code    func() ([]sass.Kernel, error)

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

// Begin begins a call, which is checked for the given hazards. If fully is set, all its launches are, without a limit,
// and clues are recorded as well: narrow accesses to wider elements, and variables that earlier calls have changed.
func (m *Machine) Begin(check Hazards, fully bool) {
	m.Check, m.fully, m.numbers = check, fully, 0
	if !fully {
		return
	}
	if names := changedVariables(); len(names) > 0 {
		m.recordHazard(device.Hazard{Kind: device.ChangedVariable, Place: strings.Join(names, ", "), Clue: true,
			Text: "variables that earlier calls have changed, and nothing has reset before this call: " +
				strings.Join(names, ", ")})
	}
}

// changed returns the names of the module's variables whose contents are not the initial ones. Constants belong to the
// host code.
func (mod *Module) changed() (names []string) {
	for _, v := range mod.ptx.Vars {
		p, ok := mod.vars[v.Name]
		if !ok || v.Space == "const" || len(v.Refs) > 0 {
			continue
		}
		data := unsafe.Slice((*byte)(at(uintptr(p))), v.Size)
		if n := len(v.Init); !bytes.Equal(data[:n], v.Init) || len(bytes.TrimLeft(data[n:], "\x00")) > 0 {
			names = append(names, Demangled(v.Name))
		}
	}
	return names
}

// Load parses PTX and allocates its variables. Several texts are the units of a program that were compiled separately.
func (m *Machine) Load(texts ...string) (*Module, error) {
	var parsed *ptx.Module
	var err error
	if len(texts) == 1 {
		parsed, err = ptx.Parse(texts[0])
	} else {
		parsed, err = ptx.Link(texts)
	}
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
	mod      *Module
	src      *ptx.Func
	prog     *program
	funcs    **C.vg_func // in C memory, like everything they point to
	entries  *C.int32_t  // see vg_launch, in C memory
	n        int
	size     int    // of the parameters
	launched Launch // the current one
	// The comparison of its machine code with its PTX; nil: not made yet.
	machineCode func() ([]sass.Line, error)
}

// minFrame is the number of bytes of the stack that a call takes at least (H100).
const minFrame = 16

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
	k.size = paramBytes(src)
	k.funcs = (**C.vg_func)(C.calloc(C.size_t(k.n), 8))
	entries := make([]int32, k.n)
	for i, f := range mod.ptx.Funcs {
		if entries[i] = -1; f.Entry && f.HasBody {
			entries[i] = int32(paramBytes(f))
		}
	}
	k.entries = (*C.int32_t)(copied(unsafe.Pointer(&entries[0]), 4*k.n))
	table := unsafe.Slice(k.funcs, k.n)
	for _, i := range slices.Sorted(maps.Keys(prog.funcs)) {
		f := prog.funcs[i]
		c := (*C.vg_func)(C.calloc(1, C.sizeof_vg_func))
		c.code = (*C.vg_inst)(copied(unsafe.Pointer(unsafe.SliceData(f.code)), len(f.code)*int(unsafe.Sizeof(inst{}))))
		c.ncode = C.int32_t(len(f.code))
		c.extra = (*C.int32_t)(copied(unsafe.Pointer(unsafe.SliceData(f.extra)), len(f.extra)*4))
		c.pool = (*C.uint8_t)(copied(unsafe.Pointer(unsafe.SliceData(f.pool)), len(f.pool)))
		c.frame_size, c.local_size, c.id = C.int32_t(f.frameSize), C.int32_t(f.localSize), C.int32_t(i)
		c.stack = C.int32_t(max(mod.usage[f.src.Name].frame, minFrame))
		c.calls = C.bool(f.calls)
		if f.tracks != nil {
			c.tracks = (*C.int32_t)(copied(unsafe.Pointer(unsafe.SliceData(f.tracks)), len(f.tracks)*4))
			c.nregs = C.int32_t(len(f.src.Regs))
		}
		if runs := translate(f.code, f.extra, int32(k.size)); runs != nil {
			c.native = (*C.vg_native)(copied(unsafe.Pointer(&runs[0]), len(runs)*int(unsafe.Sizeof(runs[0]))))
		}
		table[i] = c
	}
	mod.kernels[name] = k
	return k, nil
}

// paramBytes returns the size of a kernel's parameters.
func paramBytes(f *ptx.Func) (n int) {
	for _, p := range f.Params {
		n = aligned(n, p) + p.Size
	}
	return n
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

// unnamed matches unnamed namespaces: the source's own, and those that nvcc adds for static functions.
var unnamed = regexp.MustCompile(`\(anonymous namespace\)::|\b_INTERNAL_\w+::`)

// lambda matches the name of a lambda's function with that of the function around it, which has all its parameters.
var lambda = regexp.MustCompile(`^.*\{lambda\(.*\)(#\d+)?\}::operator\(\)(\(.*\))?( const)?$`)

// Demangled returns the source name of a function without parameters, template arguments and unnamed namespaces, or
// "a lambda".
func Demangled(name string) string { return demangled(name, demangle.NoTemplateParams) }

// static matches what nvcc -rdc=true puts before the name of a static function.
var static = regexp.MustCompile(`^__nv_static_\d+__\w+?_(_Z)`)

func demangled(name string, options ...demangle.Option) string {
	name = static.ReplaceAllString(name, "$1")
	text, err := demangle.ToString(name, append(options, demangle.NoParams, demangle.NoClones)...)
	if err != nil {
		return name
	}
	return unnamed.ReplaceAllString(lambda.ReplaceAllString(text, "a lambda"), "")
}
