//go:build linux && cgo

package vgpu

import (
	"strings"

	"fisub/device/vgpu/ptx"
)

// track sets the function's table of how each PTX instruction treats undefined values; exec/taint.h describes it.
func (d *decoder) track(f *function) {
	f.tracks = make([]int32, len(f.code), 8*len(f.code))
	var t tracker
	for i := range d.f.Body {
		first, end := d.starts[i], d.starts[i+1]
		at := len(f.tracks)
		if first == end || !d.trackInst(f, &t, &d.f.Body[i]) {
			continue
		}
		for pc := first; pc < end; pc++ {
			f.tracks[pc] = int32(at)
		}
		f.code[first].flags |= flagTracked
	}
}

// A tracker holds the parts of an entry of the table.
type tracker struct {
	reads, writes []int
	decisive      []int32
}

// registerOf returns the register that an operand is, or -1.
func registerOf(o ptx.Operand) int {
	if o.Kind != ptx.Register {
		return -1
	}
	return o.Reg
}

// decides records that an operand of the given value decides the result; for predicates the values are 0 and 1.
func (d *decoder) decides(t *tracker, o ptx.Operand, value int32) {
	if o.Kind != ptx.Register || o.Int != 0 {
		return
	}
	size := int32(max(4, ptx.Size(d.types[o.Reg])))
	if d.types[o.Reg] == "pred" {
		size = 0
		if o.Negated {
			value = 1 - value
		}
	}
	t.decisive = append(t.decisive, int32(o.Reg), d.regs[o.Reg], size, value)
}

// deciding returns the operands of which each decides the result of a lane-by-lane instruction if it has the value, 0
// or 1, whatever the other operands are.
func deciding(in *ptx.Inst) (operands []ptx.Operand, value int32) {
	name, modifiers, _ := strings.Cut(in.Op, ".")
	args := in.Args
	switch {
	case len(args) >= 3 && (name == "and" || name == "mul" && !strings.Contains(modifiers, "f")):
		return args[1:3], 0
	case len(args) == 3 && name == "or" && modifiers == "pred":
		return args[1:3], 1
	case len(args) == 4 && name == "setp" && strings.Contains(modifiers, ".and."):
		return args[3:], 0
	case len(args) == 4 && name == "setp" && strings.Contains(modifiers, ".or."):
		return args[3:], 1
	}
	return nil, 0
}

// trackInst appends an instruction's entry to the table. It returns false if undefined values do not matter to it.
func (d *decoder) trackInst(f *function, t *tracker, in *ptx.Inst) bool {
	name, modifiers, _ := strings.Cut(in.Op, ".")
	args := in.Args
	how := int32(trackUse)
	t.decisive = t.decisive[:0]
	t.reads, t.writes = registersIn(in, t.reads, t.writes)
	switch class := instructions[name].class; {
	case class == laneByLane:
		how = trackCompute
		switch {
		case name == "selp" && len(args) == 4 && args[3].Kind == ptx.Register:
			how = trackSelect
			t.reads = append(t.reads[:0], registerOf(args[1]), registerOf(args[2]), registerOf(args[3]))
			if args[3].Negated {
				t.reads[0], t.reads[1] = t.reads[1], t.reads[0]
			}
			t.decisive = append(t.decisive, int32(args[3].Reg), d.regs[args[3].Reg], 0, 1)
		case d.moves(t, in, name, modifiers):
			how = trackMove
		default:
			if name == "xor" || name == "not" || name == "lop3" || name == "and" || name == "or" && modifiers != "pred" {
				how = trackBitwise
			}
			operands, value := deciding(in)
			for _, o := range operands {
				d.decides(t, o, value)
			}
		}
	case name == "shfl" && len(args) == 5:
		how, t.reads = trackShuffle, t.reads[:0]
		for _, o := range args[2:] {
			t.reads = addRegisters(t.reads, o)
		}
		t.writes = append(t.writes[:0], registerOf(args[1]))
		if args[0].Kind == ptx.Register {
			t.writes = append(t.writes, args[0].Reg)
			if p := args[0].Pair; p != nil && p.Kind == ptx.Register {
				t.writes = append(t.writes, p.Reg)
			}
		}
	case (name == "ld" || name == "ldu") && len(args) > 1:
		how = trackLoad
		t.values(args[1], args[0])
	case name == "st" && !strings.Contains(modifiers, "async") && !strings.Contains(modifiers, "bulk") && len(args) > 1:
		how = trackStore
		t.values(args[0], args[1])
	case strings.HasPrefix(name, "prefetch") || name == "applypriority" || name == "discard":
		return false
	}
	if in.Guard < 0 && len(t.reads) == 0 && len(t.writes) == 0 {
		return false
	}
	guard := [3]int32{-1, 0, 0}
	if in.Guard >= 0 {
		guard = [3]int32{int32(in.Guard), d.regs[in.Guard], 0}
		if in.Negated {
			guard[2] = 1
		}
	}
	f.tracks = append(f.tracks, how, guard[0], guard[1], guard[2], int32(len(t.reads)))
	for _, r := range t.reads {
		f.tracks = append(f.tracks, int32(r))
	}
	f.tracks = append(f.tracks, int32(len(t.writes)))
	for _, r := range t.writes {
		f.tracks = append(f.tracks, int32(r))
	}
	if how != trackMove {
		f.tracks = append(f.tracks, int32(len(t.decisive)/4))
	} else {
		f.tracks = append(f.tracks, int32(len(t.decisive)))
	}
	f.tracks = append(f.tracks, t.decisive...)
	return true
}

// moves reports whether an instruction only moves halves of bytes, and sets the registers and the origin of each half.
// Compilers pack several small values in a register, of which some may be undefined.
func (d *decoder) moves(t *tracker, in *ptx.Inst, name, modifiers string) bool {
	args := in.Args
	halves := func(o ptx.Operand) int {
		if o.Kind != ptx.Register || o.Int != 0 || d.types[o.Reg] == "pred" || ptx.Size(d.types[o.Reg]) > 8 {
			return 0
		}
		return 2 * ptx.Size(d.types[o.Reg])
	}
	if len(args) < 2 || len(args) > 4 {
		return false
	}
	// shifted appends the halves of a result of n: those of the first source from number by on.
	shifted := func(n, by, from int, keep func(i int) bool) {
		for i := range 16 {
			if j := i + by; i < n && j >= 0 && j < from && keep(i) {
				t.decisive = append(t.decisive, int32(j))
			} else {
				t.decisive = append(t.decisive, -1)
			}
		}
	}
	all := func(int) bool { return true }
	to, from := halves(args[0]), halves(args[1])
	constant := args[len(args)-1].Int
	if len(args) > 2 && args[len(args)-1].Kind != ptx.Integer {
		return false
	}
	switch {
	case name == "mov" && from > 0 && args[0].Kind == ptx.Vector: // unpacks
		t.reads, t.writes = append(t.reads[:0], args[1].Reg), t.writes[:0]
		n := from / len(args[0].Elems)
		for i, e := range args[0].Elems {
			t.writes = append(t.writes, registerOf(e))
			shifted(n, i*n, from, all)
		}
		return true
	case name == "mov" && to > 0 && args[1].Kind == ptx.Vector: // packs
		if len(args[1].Elems) > 4 {
			return false
		}
		t.reads, t.writes = t.reads[:0], append(t.writes[:0], args[0].Reg)
		n := to / len(args[1].Elems)
		for i := range 16 {
			t.decisive = append(t.decisive, -1)
			if i >= to || i/n >= len(args[1].Elems) {
				continue
			}
			if e := args[1].Elems[i/n]; e.Kind == ptx.Register {
				if i%n == 0 {
					t.reads = append(t.reads, e.Reg)
				}
				t.decisive[len(t.decisive)-1] = int32(16*(len(t.reads)-1) + i%n)
			}
		}
		return true
	case to == 0 || from == 0:
		return false
	case name == "mov":
		shifted(to, 0, from, all)
	case name == "cvt" && (modifiers[0] == 'u' || modifiers[0] == 'b') && strings.Count(modifiers, ".") == 1:
		result, source, _ := strings.Cut(modifiers, ".")
		if source[0] == 'f' || source[0] == 's' && ptx.Size(result) > ptx.Size(source) {
			return false
		}
		shifted(2*ptx.Size(result), 0, min(from, 2*ptx.Size(source)), all)
	case name == "shl" && constant%4 == 0 && constant >= 0 && constant < 64:
		shifted(to, int(-constant/4), from, all)
	case name == "shr" && modifiers[0] != 's' && constant%4 == 0 && constant >= 0 && constant < 64:
		shifted(to, int(constant/4), from, all)
	case name == "and":
		shifted(to, 0, from, func(i int) bool { return constant>>(4*i)&15 != 0 })
	case name == "bfe" && modifiers[0] == 'u' && len(args) == 4 && args[2].Kind == ptx.Integer && args[2].Int%4 == 0 &&
		args[2].Int >= 0 && args[2].Int < 64:
		shifted(to, int(args[2].Int/4), from, func(i int) bool { return int64(4*i) < constant })
	case name == "prmt" && modifiers == "b32" && len(args) == 4:
		t.reads, t.writes = append(t.reads[:0], args[1].Reg), append(t.writes[:0], args[0].Reg)
		if args[2].Kind == ptx.Register {
			t.reads = append(t.reads, args[2].Reg)
		}
		for i := range 16 {
			selected := constant >> (i / 2 * 4) & 7
			if i >= 8 || int(selected/4) >= len(t.reads) {
				t.decisive = append(t.decisive, -1)
			} else {
				t.decisive = append(t.decisive, int32(16*(selected/4)+selected%4*2)+int32(i%2))
			}
		}
		return true
	default:
		return false
	}
	t.reads, t.writes = append(t.reads[:0], args[1].Reg), append(t.writes[:0], args[0].Reg)
	return true
}

// values sets the registers of a memory access: those of the address are read, the others are in order.
func (t *tracker) values(address, value ptx.Operand) {
	t.reads, t.writes = addRegisters(t.reads[:0], address), t.writes[:0]
	for _, e := range elements(value) {
		t.writes = append(t.writes, registerOf(e))
	}
}

// marks emits the marking of the memory to which the store in wrote registers that may be unwritten.
func (d *decoder) marks(in inst, space int, values []ptx.Operand) {
	shadows, found := make([]int32, len(values)), false
	for i, o := range values {
		shadows[i] = -1
		if s, ok := d.shadow[o.Reg]; ok && o.Kind == ptx.Register {
			shadows[i], found = s, true
		}
	}
	if found && space != spaceGlobal {
		d.p.tracks = true
		in.op, in.kind, in.x = opMark, uint8(space), d.more(shadows...)
		d.emit(in)
	}
}

// keeps reports whether an instruction stores values that it may find undefined: only their use is an error.
func (d *decoder) keeps(in *ptx.Inst) bool {
	return d.parts[0] == "st" && !d.has("async") && !d.has("bulk") && !d.has("b128") && len(in.Args) > 1 &&
		d.spaceOf(in.Args[0]) != spaceGlobal
}
