//go:build linux && cgo

package vgpu

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"fisub/device/vgpu/ptx"
)

// A laneForm describes an instruction whose only modifiers are its types.
type laneForm struct {
	ops    map[string]opcode // by the instruction's type
	args   []string          // types of the source operands; "": the instruction's type
	result string            // type of the result; "": the instruction's type
}

var forms = map[string]laneForm{
	"bfe":      {bfeOf, []string{"", "u32", "u32"}, ""},
	"brev":     {brevOf, []string{""}, ""},
	"clz":      {clzOf, []string{""}, "u32"},
	"cnot":     {cnotOf, []string{""}, ""},
	"copysign": {copysignOf, []string{"", ""}, ""},
	"fns":      {map[string]opcode{"b32": opFns}, []string{"", "", "s32"}, ""},
	"mapa":     {mapaOf, []string{"", "u32"}, ""},
	"popc":     {popcOf, []string{""}, "u32"},
	"shl":      {shlOf, []string{"", "u32"}, ""},
	"shr":      {shrOf, []string{"", "u32"}, ""},
}

// A class is the use of an instruction's first operand.
type class uint8

const (
	withResult    class = iota // writes it, unless it is an address; also the class of unsupported instructions
	laneByLane                 // writes it, and only computes it from the other operands, lane by lane
	withoutResult              // reads it, or has no operands
)

// An instruction has the properties shared by all forms of an instruction.
type instruction struct {
	class  class
	decode func(*decoder)
}

// instructions maps the first part of an instruction's name to its properties.
var instructions = func() map[string]instruction {
	m := map[string]instruction{}
	for name, f := range forms {
		m[name] = instruction{laneByLane, func(d *decoder) { d.form(f) }}
	}
	for class, decoders := range map[class]map[string]func(*decoder){
		laneByLane: {
			`abs add cos div ex2 fma lg2 mad mad24 max min mul mul24 neg rcp rem rsqrt sad sin sqrt sub
				tanh`: (*decoder).arith,
			"addc subc madc": (*decoder).withCarry,
			"and or xor":     (*decoder).logic,
			"bfi":            (*decoder).bfi,
			"bfind":          (*decoder).bfind,
			"bmsk":           (*decoder).bmsk,
			"cvt":            (*decoder).cvt,
			"cvta":           (*decoder).cvta,
			"dp4a dp2a":      (*decoder).dot,
			"isspacep":       (*decoder).isspacep,
			"lop3":           (*decoder).lop3,
			"mov":            (*decoder).mov,
			"not":            (*decoder).not,
			"prmt":           (*decoder).prmt,
			"selp":           (*decoder).selp,
			"set setp":       (*decoder).compare,
			"shf":            (*decoder).funnel,
			"slct":           (*decoder).slct,
			"szext":          (*decoder).szext,
			"testp":          (*decoder).testp,
			"vadd vsub vabsdiff vmin vmax vshl vshr vset": (*decoder).video,
		},
		withResult: {
			"activemask":                  (*decoder).activemask,
			"atom":                        (*decoder).atom,
			"call":                        (*decoder).call,
			"clusterlaunchcontrol":        (*decoder).launchControl,
			"createpolicy":                (*decoder).policy,
			"elect match redux shfl vote": (*decoder).lanes,
			"ld ldu":                      (*decoder).memory,
			"mbarrier":                    (*decoder).mbarrier,
			"mma ldmatrix movmatrix":      (*decoder).matrix,
			"suld":                        (*decoder).surface,
			"tcgen05":                     (*decoder).tcgen05,
			"tex tld4":                    (*decoder).texture,
			"wgmma":                       (*decoder).wgmma,
			"wmma":                        (*decoder).wmma,
		},
		withoutResult: {
			"bar barrier":     (*decoder).barrier,
			"bra":             (*decoder).branch,
			"brx":             (*decoder).branchIndirect,
			"cp":              (*decoder).copyAsync,
			"exit trap brkpt": (*decoder).end,
			"fence membar":    (*decoder).fence,
			"fisub":           (*decoder).descriptor,
			"nanosleep":       (*decoder).nanosleep,
			"prefetch prefetchu applypriority discard pmevent setmaxnreg griddepcontrol": (*decoder).nop,
			"red":       (*decoder).atom,
			"ret":       (*decoder).ret,
			"st":        (*decoder).memory,
			"stmatrix":  (*decoder).matrix,
			"sust":      (*decoder).surface,
			"tensormap": (*decoder).tensorMap,
		},
	} {
		for names, decode := range decoders {
			for _, name := range strings.Fields(names) {
				if _, ok := m[name]; ok {
					panic("duplicate instruction " + name)
				}
				m[name] = instruction{class, decode}
			}
		}
	}
	return m
}()

func (d *decoder) translate() {
	in, ok := instructions[d.parts[0]]
	if !ok {
		d.lack(d.in.Op)
	}
	if carriesNaN[d.parts[0]] && slices.ContainsFunc(d.in.Args, isNaN) {
		d.emit(inst{op: opFolded})
	}
	in.decode(d)
}

// carriesNaN has the instructions whose result is NaN if an operand is.
var carriesNaN = map[string]bool{"add": true, "sub": true, "mul": true, "fma": true, "mad": true, "div": true}

func isNaN(o ptx.Operand) bool {
	if o.Kind != ptx.Float {
		return false
	}
	if o.Single {
		return math.IsNaN(float64(math.Float32frombits(uint32(o.Int))))
	}
	return math.IsNaN(math.Float64frombits(uint64(o.Int)))
}

func (d *decoder) form(f laneForm) {
	t := d.typ(0)
	in := inst{op: d.of(f.ops, t)}
	for i, place := range []*int32{&in.a, &in.b, &in.c}[:len(f.args)] {
		*place = d.src(d.arg(i+1), cmp.Or(f.args[i], t))
	}
	in.d = d.dst(d.arg(0), cmp.Or(f.result, t))
	d.emit(in)
}

// modifier returns the code in table for one of the instruction's modifiers.
func (d *decoder) modifier(table map[string]uint8) (code uint8, ok bool) {
	for _, p := range d.parts[1:] {
		if code, ok = table[p]; ok {
			return code, true
		}
	}
	return 0, false
}

// required is like modifier but reports the instruction as unsupported if no modifier is in table.
func (d *decoder) required(table map[string]uint8) uint8 {
	code, ok := d.modifier(table)
	if !ok {
		d.lack(d.in.Op)
	}
	return code
}

// halves returns the two 64-bit registers of a 128-bit value.
func (d *decoder) halves(o ptx.Operand) []ptx.Operand {
	if o.Kind == ptx.Vector && len(o.Elems) == 2 {
		return o.Elems
	}
	if o.Kind != ptx.Register || ptx.Size(d.types[o.Reg]) != 16 {
		d.lack(d.in.Op)
	}
	first := d.pairs[o.Reg]
	return []ptx.Operand{{Kind: ptx.Register, Reg: first}, {Kind: ptx.Register, Reg: first + 1}}
}

// widened returns b32 for 16-bit types, which use the 32-bit bitwise instructions, and t otherwise.
func widened(t string) string {
	if width(t) < 4 {
		return "b32"
	}
	return t
}

func (d *decoder) isWide(o ptx.Operand) bool {
	return o.Kind == ptx.Register && ptx.Size(d.types[o.Reg]) == 8
}

func (d *decoder) width16(o ptx.Operand) bool {
	return o.Kind == ptx.Register && ptx.Size(d.types[o.Reg]) == 2
}

func (d *decoder) isWideSource(o ptx.Operand, typ string) bool {
	if o.Kind == ptx.Register {
		return d.isWide(o)
	}
	return wide(typ)
}

func isInteger(typ string) bool { return typ[0] == 'u' || typ[0] == 's' }

// elements returns the elements of a vector, or the operand itself.
func elements(o ptx.Operand) []ptx.Operand {
	if o.Kind == ptx.Vector {
		return o.Elems
	}
	return []ptx.Operand{o}
}
