//go:build linux && cgo

package vgpu

import (
	"maps"
	"slices"
	"strings"

	"fisub/device/vgpu/ptx"
)

// Each register that may be read before it is written has a shadow. For each lane it holds 0 if the value is defined,
// unread if the register was never written, else 1 + the index of the instruction that first read such a value.
// Arithmetic propagates shadows. An undefined value is an error only in a store, address, branch or other visible
// effect, because compilers compute some values that are never used. Stores to shared and local memory keep such a
// value; see exec/taint.h.

// unread is the shadow of a register that was never written.
const unread = 0xffffffff

// addRegisters appends the registers of an operand.
func addRegisters(all []int, o ptx.Operand) []int {
	if o.Kind == ptx.Register {
		all = append(all, o.Reg)
	}
	for _, e := range o.Elems {
		all = addRegisters(all, e)
	}
	if o.Pair != nil {
		all = addRegisters(all, *o.Pair)
	}
	return all
}

// registers returns the registers that an instruction reads and writes, except its guard.
func registers(in *ptx.Inst) (reads, writes []int) { return registersIn(in, nil, nil) }

// registersIn is registers, with the memory of two slices for the result.
func registersIn(in *ptx.Inst, reads, writes []int) ([]int, []int) {
	reads, writes = reads[:0], writes[:0]
	name, _, _ := strings.Cut(in.Op, ".")
	args := in.Args
	reduces := (name == "bar" || name == "barrier") && strings.Contains(in.Op, ".red")
	stores := strings.HasPrefix(in.Op, "tcgen05.dealloc") || strings.HasPrefix(in.Op, "wmma.store") ||
		instructions[name].class == withoutResult && !reduces
	if len(args) > 0 && args[0].Kind != ptx.Memory && !stores && (name != "call" || args[0].Kind == ptx.List) {
		writes = addRegisters(writes, args[0])
		args = args[1:]
	}
	for _, o := range args {
		reads = addRegisters(reads, o)
	}
	return reads, writes
}

// readRegisters reports by register whether an instruction reads it.
func readRegisters(f *ptx.Func) []bool {
	all := make([]bool, len(f.Regs))
	for i := range f.Body {
		in := &f.Body[i]
		reads, _ := registers(in)
		if in.Guard >= 0 {
			reads = append(reads, in.Guard)
		}
		for _, r := range reads {
			all[r] = true
		}
	}
	return all
}

// flow is the control flow of a function's body.
type flow struct {
	block []int   // by instruction
	first []int   // first instruction of each block, then len(Body)
	preds [][]int // predecessors of each reachable block
}

func flowOf(f *ptx.Func) flow {
	n := len(f.Body)
	leader := make([]bool, n+1)
	leader[0] = true
	for _, at := range f.Labels {
		leader[at] = true
	}
	ends := func(in *ptx.Inst) (name string, jumps bool) {
		name, _, _ = strings.Cut(in.Op, ".")
		return name, name == "bra" || name == "brx" || name == "ret" || name == "exit" || name == "trap"
	}
	for i := range f.Body {
		if _, jumps := ends(&f.Body[i]); jumps {
			leader[i+1] = true
		}
	}
	w := flow{block: make([]int, n)}
	for i := range n {
		if leader[i] {
			w.first = append(w.first, i)
		}
		w.block[i] = len(w.first) - 1
	}
	blocks := len(w.first)
	w.first = append(w.first, n)
	w.preds = make([][]int, blocks)
	seen, queue := make([]bool, blocks), []int{0}
	if blocks == 0 {
		return w
	}
	seen[0] = true
	for len(queue) > 0 {
		b := queue[0]
		queue = queue[1:]
		to := func(at int) {
			if at >= n {
				return
			}
			next := w.block[at]
			w.preds[next] = append(w.preds[next], b)
			if !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
		last := &f.Body[w.first[b+1]-1]
		switch name, jumps := ends(last); {
		case name == "bra" && len(last.Args) == 1:
			if at, ok := f.Labels[last.Args[0].Name]; ok {
				to(at)
			}
			if last.Guard >= 0 {
				to(w.first[b+1])
			}
		case name == "brx" && len(last.Args) == 2:
			for _, l := range f.Tables[last.Args[1].Name] {
				if at, ok := f.Labels[l]; ok {
					to(at)
				}
			}
			to(w.first[b+1])
		case !jumps || last.Guard >= 0:
			to(w.first[b+1])
		}
	}
	return w
}

// undefined returns, sorted, the registers whose value may be undefined when it is read.
func undefined(f *ptx.Func) []int {
	w := flowOf(f)
	blocks := len(w.preds)
	type use struct{ reg, block int }
	var exposed []use                       // the block reads the register before writing it
	written := make([]map[int]bool, blocks) // registers written by each block
	from := map[int][]int{}                 // registers computed from each register
	last := make([]int, len(f.Regs))        // 1 + last block that writes the register or exposes it
	for i := range f.Body {
		in := &f.Body[i]
		b := w.block[i]
		reads, writes := registers(in)
		name, _, _ := strings.Cut(in.Op, ".")
		if instructions[name].class == laneByLane {
			for _, r := range reads {
				from[r] = append(from[r], writes...)
			}
		}
		if in.Guard >= 0 {
			reads = append(reads, in.Guard)
		}
		for _, r := range reads {
			if r < len(last) && last[r] != b+1 {
				last[r] = b + 1
				exposed = append(exposed, use{r, b})
			}
		}
		if in.Guard >= 0 {
			continue // the write may not happen
		}
		for _, r := range writes {
			if r < len(last) {
				if last[r] != b+1 {
					last[r] = b + 1
				}
				if written[b] == nil {
					written[b] = map[int]bool{}
				}
				written[b][r] = true
			}
		}
	}
	for _, p := range f.Params { // parameters in registers are defined
		if p.Space == "reg" && len(f.Body) > 0 {
			for i, r := range f.Regs {
				if name, _, _ := strings.Cut(r.Name, "."); name == p.Name {
					exposed = slices.DeleteFunc(exposed, func(u use) bool { return u.reg == i })
				}
			}
		}
	}
	found := map[int]bool{}
	seen := make([]int, blocks)
	for i, u := range exposed {
		if found[u.reg] {
			continue
		}
		stack := []int{u.block}
		seen[u.block] = i + 1
		for len(stack) > 0 && !found[u.reg] {
			b := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if b == 0 {
				found[u.reg] = true
			}
			for _, p := range w.preds[b] {
				if seen[p] != i+1 && !written[p][u.reg] {
					seen[p] = i + 1
					stack = append(stack, p)
				}
			}
		}
	}
	queue := slices.Collect(maps.Keys(found))
	for len(queue) > 0 {
		r := queue[0]
		queue = queue[1:]
		for _, to := range from[r] {
			if !found[to] {
				found[to] = true
				queue = append(queue, to)
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// shadows gives each register that may be undefined a shadow and a conspicuous initial value.
func (d *decoder) shadows() {
	for _, r := range undefined(d.f) {
		if d.shadow == nil {
			d.shadow = map[int]int32{}
		}
		d.shadow[r] = d.newReg(false)
		d.emit(inst{op: opMov32, a: d.constant(unread, false), d: d.shadow[r]})
		switch ptx.Size(d.types[r]) {
		case 8:
			d.emit(inst{op: opMov64, a: d.constant(^uint64(0), true), d: d.regs[r]})
		case 2:
			d.emit(inst{op: opMov32, a: d.constant(0xffff, false), d: d.regs[r]})
		case 4:
			d.emit(inst{op: opMov32, a: d.constant(unread, false), d: d.regs[r]})
		}
	}
}

// used emits the checks for the registers that an instruction reads, if its effect is visible.
func (d *decoder) used() {
	if d.shadow == nil {
		return
	}
	if s, ok := d.shadow[d.in.Guard]; ok && d.in.Guard >= 0 {
		guard, negated := d.guard, d.negated
		d.guard, d.negated = -1, false
		d.emit(inst{op: opUndefined, a: s})
		d.guard, d.negated = guard, negated
	}
	if instructions[d.parts[0]].class == laneByLane || d.parts[0] == "shfl" {
		return
	}
	reads, _ := registers(d.in)
	if d.keeps(d.in) {
		reads = addRegisters(nil, d.in.Args[0]) // the address
	}
	for _, r := range reads {
		if s, ok := d.shadow[r]; ok {
			d.emit(inst{op: opUndefined, a: s})
		}
	}
}

// computed emits the updates of the shadows for the registers that an instruction is about to write. An operand that
// decides the result alone, such as the true one of an or, defines it.
func (d *decoder) computed() {
	if d.shadow == nil {
		return
	}
	reads, writes := registers(d.in)
	shadow := func(r int) int32 {
		if s, ok := d.shadow[r]; ok {
			return s
		}
		return d.constant(0, false)
	}
	for _, w := range writes {
		to, ok := d.shadow[w]
		if !ok {
			continue
		}
		switch {
		case instructions[d.parts[0]].class != laneByLane || len(reads) == 0:
			d.emit(inst{op: opMov32, a: d.constant(0, false), d: to})
		case d.parts[0] == "mov" && len(reads) == 1:
			d.emit(inst{op: opMov32, a: shadow(reads[0]), d: to})
		case d.parts[0] == "mov": // packs registers: undefined only if both are
			d.emit(inst{op: opMinU32, a: shadow(reads[0]), b: shadow(reads[1]), d: to})
		case d.parts[0] == "selp" && len(d.in.Args) == 4 && d.in.Args[3].Kind == ptx.Register:
			side := func(o ptx.Operand) int32 {
				if o.Kind == ptx.Register {
					return shadow(o.Reg)
				}
				return d.constant(0, false)
			}
			a, b := side(d.in.Args[1]), side(d.in.Args[2])
			c := d.pred(d.in.Args[3])
			d.emit(inst{op: opSelp32, a: a, b: b, c: c, d: to})
			if s, ok := d.shadow[d.in.Args[3].Reg]; ok {
				d.emit(inst{op: opMix, a: to, b: s, imm: int64(len(d.out.code) + 1), d: to})
			}
		default:
			sum := shadow(reads[0])
			for i, r := range reads {
				if i == 0 && len(reads) > 1 {
					continue
				}
				tmp := d.newReg(false)
				d.emit(inst{op: opMix, a: sum, b: shadow(r), imm: int64(len(d.out.code) + 1), d: tmp})
				sum = tmp
			}
			operands, value := deciding(d.in)
			for _, o := range operands {
				if o.Kind != ptx.Register || o.Int != 0 {
					continue
				}
				decided, tmp := d.newReg(false), d.newReg(false)
				d.emit(inst{op: opMinU32, a: shadow(o.Reg), b: sum, d: decided})
				selp := inst{op: opSelp32, a: decided, b: sum, c: d.nonzero(o), d: tmp}
				if value == 0 {
					selp.a, selp.b = selp.b, selp.a
				}
				d.emit(selp)
				sum = tmp
			}
			d.emit(inst{op: opMov32, a: sum, d: to})
		}
	}
}

// nonzero returns a predicate that reports whether an operand, a register, is not 0.
func (d *decoder) nonzero(o ptx.Operand) int32 {
	t := d.types[o.Reg]
	if t == "pred" {
		return d.pred(o)
	}
	wide := ptx.Size(t) == 8
	op := opSetpU32
	switch ptx.Size(t) {
	case 8:
		op = opSetpU64
	case 2:
		op = opSetpU16
	}
	d.emit(inst{op: op, kind: comparisons["ne"], a: d.regs[o.Reg], b: d.constant(0, wide), d: d.scratch[3]})
	return d.scratch[3]
}
