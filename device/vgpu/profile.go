//go:build linux && cgo

package vgpu

/*
#include <stdlib.h>
#include "exec/exec.h"
*/
import "C"

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"fisub/device"
	"fisub/device/counters"
	"fisub/device/sass"
	"fisub/device/vgpu/ptx"
)

// Count makes the machine report the counters of each launch to OnHazard, as device.Counted, or stops that if sample is
// 0.
func (m *Machine) Count(sample int) {
	m.OnCounters, m.Sample = nil, sample
	if sample == 0 {
		return
	}
	m.OnCounters = func(l counters.Launch) {
		if text, err := json.Marshal(l); err == nil && m.OnHazard != nil {
			m.OnHazard(device.Hazard{Kind: device.Counted, Place: l.Kernel, Text: string(text)})
		}
	}
}

// A tally holds the counters of a launch while it runs.
type tally struct {
	first    []C.int32_t // by function of the module: its first counter
	counters []C.vg_count
	sectors  unsafe.Pointer
	blocks   int
}

// count prepares the launch's counters, and the marks of the sectors of its ranges.
func (m *Machine) count(k *Kernel, l *Launch, c *C.vg_launch, s *C.vg_state, ranges []C.vg_range,
	pinned *runtime.Pinner) *tally {
	t := &tally{first: make([]C.int32_t, k.n), blocks: l.blocks()}
	n := 0
	for i := range k.n {
		t.first[i] = C.int32_t(n)
		if f := k.prog.funcs[i]; f != nil {
			n += len(f.code)
		}
	}
	t.counters = make([]C.vg_count, n+1)
	var bytes C.size_t
	for i := range ranges {
		bytes += C.size_t(ranges[i].size/32 + 2)
	}
	t.sectors = C.calloc(bytes+1, 1)
	next := uintptr(t.sectors)
	for i := range ranges {
		ranges[i].sectors = (*C.uint8_t)(at(next))
		next += uintptr(ranges[i].size/32 + 2)
	}
	c.counter, c.ncounters, s.counters = &t.first[0], C.int32_t(n), &t.counters[0]
	pinned.Pin(c.counter)
	pinned.Pin(s.counters)
	clusters := l.blocks() / l.clusterBlocks()
	if m.Sample > 0 && clusters > m.Sample && !l.Cooperative && !k.prog.atomics {
		every := (clusters - 1 + m.Sample - 1) / max(1, m.Sample-1)
		c.every = C.uint64_t(every)
		t.blocks = ((clusters-2+every)/every + 1) * (l.blocks() / clusters)
	}
	return t
}

// counted returns the counters of a launch that has ended.
func (k *Kernel) counted(l *Launch, t *tally, s *C.vg_state) counters.Launch {
	u, _ := k.usage()
	r := counters.Launch{Kernel: Demangled(k.src.Name), Launches: 1, Grid: l.Grid, Block: l.Block, Cluster: l.Cluster,
		Blocks: t.blocks, StaticShared: k.StaticShared(), DynamicShared: l.Shared, Registers: u.registers, Local: u.local,
		Read: uint64(s.totals.read), Cold: uint64(s.totals.cold), Written: uint64(s.totals.written),
		AtomicChain: uint64(s.totals.chain)}
	if full := demangled(k.src.Name); full != r.Kernel {
		r.Instance = full
	}
	for i := range r.Cluster {
		r.Cluster[i] = max(1, r.Cluster[i])
	}
	var rows []counters.Row
	for i, f := range k.prog.funcs {
		all := t.counters[t.first[i]:][:len(f.code)]
		for pc := 0; pc < len(f.code); {
			line := f.code[pc].line
			var sum counters.Counts
			for ; pc < len(f.code) && f.code[pc].line == line; pc++ { // of one PTX instruction
				c := &all[pc]
				if uint64(c.warps) >= sum.Warps {
					sum.Warps, sum.Threads, sum.Active = uint64(c.warps), uint64(c.threads), uint64(c.active)
				}
				sum.Add(counters.Counts{Divergent: uint64(c.divergent), Requests: uint64(c.requests),
					Sectors: uint64(c.sectors), Least: uint64(c.least), Lines: uint64(c.lines), Bytes: uint64(c.bytes),
					Partial: uint64(c.partial), Shared: uint64(c.shared), Waves: uint64(c.wavefronts), Ideal: uint64(c.ideal),
					Conflicts: uint64(c.conflicts),
					Remote:    uint64(c.remote), Operations: uint64(c.operations),
					GlobalStride: counters.Stride(c.global_stride), SharedStride: counters.Stride(c.shared_stride)})
			}
			if sum.Warps == 0 || int(line) >= len(f.src.Body) {
				continue
			}
			row := counters.Row{Op: opOf(f.src, int(line)), Counts: sum}
			row.Correct()
			row.Operations += counters.Flops(row.Op)*sum.Active + counters.TensorOperations(row.Op)*sum.Warps
			row.File, row.Line = k.line(location{fn: int32(i), pc: int32(pc - 1)})
			rows = append(rows, row)
		}
	}
	r.Rows = counters.AddRows(nil, rows)
	if lines, err := k.MachineCode(); err == nil && lines != nil {
		r.Proved = true
		for _, l := range lines {
			if l.Verdict != sass.Equal && l.Verdict != sass.Copied {
				r.Differences = append(r.Differences, counters.Difference{File: l.File, Line: l.Line, Text: l.Detail})
			}
		}
	}
	return r
}

// opOf returns the opcode of an instruction as ptxas compiles it: an atomic operation whose result nothing reads is a
// reduction, and a branch to a kernel's end an exit.
func opOf(f *ptx.Func, i int) string {
	in := &f.Body[i]
	switch name, rest, _ := strings.Cut(in.Op, "."); {
	case name == "atom" && !strings.Contains(rest, "cas") && !strings.Contains(rest, "exch") && len(in.Args) > 0:
		if to := in.Args[0]; to.Kind == ptx.Register && !reads(f, to.Reg) {
			return "red." + rest
		}
	case name == "bra" && f.Entry && len(in.Args) > 0:
		to, ok := f.Labels[in.Args[len(in.Args)-1].Name]
		if ok && to < len(f.Body) && f.Body[to].Guard < 0 && (f.Body[to].Op == "ret" || f.Body[to].Op == "exit") {
			return "exit"
		}
	}
	return in.Op
}

// reads reports whether an instruction of f has the register as an operand other than its first.
func reads(f *ptx.Func, reg int) bool {
	var within func(o ptx.Operand) bool
	within = func(o ptx.Operand) bool {
		return o.Kind == ptx.Register && o.Reg == reg || slices.ContainsFunc(o.Elems, within)
	}
	for i := range f.Body {
		in := &f.Body[i]
		if in.Guard == reg || slices.ContainsFunc(in.Args[min(1, len(in.Args)):], within) {
			return true
		}
		if len(in.Args) > 0 && (strings.HasPrefix(in.Op, "st.") || strings.HasPrefix(in.Op, "red.")) && within(in.Args[0]) {
			return true
		}
	}
	return false
}

// line returns the innermost source line of an instruction that does not belong to the toolkit or a Python package.
func (k *Kernel) line(at location) (file string, line int) {
	in := k.inst(at)
	if in == nil {
		return "", 0
	}
	for l := &in.Loc; l != nil; l = l.Via {
		if name := k.mod.file(l.File); name != "" && !ofToolkit(name) && !strings.Contains(name, "/site-packages/") {
			return name, l.Line
		}
	}
	return k.mod.file(in.Loc.File), in.Loc.Line
}
