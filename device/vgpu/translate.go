//go:build linux && cgo

package vgpu

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"fisub/device/vgpu/ptx"
)

var roundings = map[string]int{"rn": roundRn, "rz": roundRz, "rm": roundRm, "rp": roundRp, "rna": roundRna,
	"rni": roundRn | flagInteger, "rzi": roundRz | flagInteger, "rmi": roundRm | flagInteger, "rpi": roundRp | flagInteger}

// modes returns the rounding and other modifiers of arithmetic as flags.
func (d *decoder) modes() (flags int) {
	for _, p := range d.parts[1:] {
		flags |= roundings[p]
		switch p {
		case "ftz":
			flags |= flagFtz
		case "sat":
			flags |= flagSat
		case "relu":
			flags |= flagRelu
		case "rs":
			d.lack(d.in.Op)
		}
	}
	return flags
}

var arithmetic = map[string]uint8{"add": arithAdd, "sub": arithSub, "mul": arithMul, "fma": arithFma, "mad": arithFma,
	"div": arithDiv, "rcp": arithRcp, "sqrt": arithSqrt, "min": arithMin, "max": arithMax, "min.nan": arithMinNan,
	"max.nan": arithMaxNan, "ex2": arithEx2, "tanh": arithTanh, "rsqrt": arithRsqrt, "neg": arithNeg, "abs": arithAbs}

var comparisons = map[string]uint8{"eq": cmpEq, "ne": cmpNe, "lt": cmpLt, "le": cmpLe, "gt": cmpGt, "ge": cmpGe,
	"lo": cmpLt, "ls": cmpLe, "hi": cmpGt, "hs": cmpGe, "equ": cmpEqu, "neu": cmpNeu, "ltu": cmpLtu, "leu": cmpLeu,
	"gtu": cmpGtu, "geu": cmpGeu, "num": cmpNum, "nan": cmpNan}

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

// A class says what an instruction does with its first operand.
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
			"tcgen05":                     (*decoder).tcgen05,
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
			"nanosleep":       (*decoder).nanosleep,
			"prefetch prefetchu applypriority discard pmevent setmaxnreg griddepcontrol": (*decoder).nop,
			"red":      (*decoder).atom,
			"ret":      (*decoder).ret,
			"st":       (*decoder).memory,
			"stmatrix": (*decoder).matrix,
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
	in.decode(d)
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

// logicOps holds the opcodes of and, or and xor.
var logicOps = map[string]struct {
	predicates opcode
	values     map[string]opcode
}{"and": {opPand, andOf}, "or": {opPor, orOf}, "xor": {opPxor, xorOf}}

func (d *decoder) logic() {
	t, ops := d.typ(0), logicOps[d.parts[0]]
	if t != "pred" {
		d.two(d.of(ops.values, widened(t)), t)
		return
	}
	a := d.pred(d.arg(1))
	if d.arg(1).Negated && d.arg(2).Negated {
		d.emit(inst{op: opPmov, d: d.scratch[6], a: a})
		a = d.scratch[6]
	}
	b := d.pred(d.arg(2))
	d.emit(inst{op: ops.predicates, a: a, b: b, d: d.dst(d.arg(0), t)})
}

func (d *decoder) not() {
	t := d.typ(0)
	if t == "pred" {
		d.emit(inst{op: opPnot, a: d.pred(d.arg(1)), d: d.dst(d.arg(0), t)})
		return
	}
	d.one(d.of(notOf, t), t)
}

func (d *decoder) funnel() {
	wrap, clamp := opShfLWrap, opShfLClamp
	if d.has("r") {
		wrap, clamp = opShfRWrap, opShfRClamp
	}
	d.three(either(d.has("clamp"), clamp, wrap), "b32")
}

func (d *decoder) bfind() {
	table := bfindOf
	if d.has("shiftamt") {
		table = bfindShiftamtOf
	}
	t := d.typ(0)
	d.emit(inst{op: d.of(table, t), a: d.src(d.arg(1), t), d: d.dst(d.arg(0), "u32")})
}

func (d *decoder) bfi() {
	t := d.typ(0)
	a, b, c, e := d.src(d.arg(1), t), d.src(d.arg(2), t), d.src(d.arg(3), "u32"), d.src(d.arg(4), "u32")
	d.emit(inst{op: d.of(bfiOf, t), a: a, b: b, c: c, x: d.more(e), d: d.dst(d.arg(0), t)})
}

func (d *decoder) bmsk() {
	d.two(d.of(map[string]opcode{"clamp": opBmskClamp, "wrap": opBmskWrap}, d.parts[1]), "b32")
}

var permutations = map[string]uint8{"f4e": prmtF4e, "b4e": prmtB4e, "rc8": prmtRc8, "ecl": prmtEcl, "ecr": prmtEcr,
	"rc16": prmtRc16}

func (d *decoder) prmt() {
	kind, ok := d.modifier(permutations)
	if !ok {
		kind = prmtPlain
	}
	d.three(opPrmt, "b32")
	d.out.code[len(d.out.code)-1].kind = kind
}

func (d *decoder) lop3() {
	if d.has("BoolOp") || d.arg(0).Pair != nil {
		d.lack(d.in.Op)
	}
	d.three(opLop3, "b32")
	d.out.code[len(d.out.code)-1].kind = uint8(d.arg(4).Int)
}

func (d *decoder) szext() {
	kind := uint8(0)
	if d.has("s32") {
		kind |= szextSigned
	}
	if d.has("wrap") {
		kind |= szextWraps
	}
	a, b := d.src(d.arg(1), "b32"), d.src(d.arg(2), "u32")
	d.emit(inst{op: opSzext, kind: kind, a: a, b: b, d: d.dst(d.arg(0), "b32")})
}

func (d *decoder) dot() {
	kind := uint8(0)
	types := d.parts[len(d.parts)-2:]
	if types[0] == "s32" {
		kind |= dotSignedA
	}
	if types[1] == "s32" {
		kind |= dotSignedB
	}
	if d.has("hi") {
		kind |= dotHigh
	}
	d.three(either(d.parts[0] == "dp4a", opDp4a, opDp2a), "b32")
	d.out.code[len(d.out.code)-1].kind = kind
}

func (d *decoder) selp() {
	t := d.typ(0)
	a, b := d.src(d.arg(1), t), d.src(d.arg(2), t)
	c := d.pred(d.arg(3))
	d.emit(inst{op: either(wide(t), opSelp64, opSelp32), a: a, b: b, c: c, d: d.dst(d.arg(0), t)})
}

func (d *decoder) slct() {
	t := d.typ(1)
	op := d.of(map[string]opcode{"b32": opSlct32, "u32": opSlct32, "s32": opSlct32, "f32": opSlct32,
		"b64": opSlct64, "u64": opSlct64, "s64": opSlct64, "f64": opSlct64}, t)
	if d.typ(0) == "f32" {
		op = opSlctF32
	}
	a, b, c := d.src(d.arg(1), t), d.src(d.arg(2), t), d.src(d.arg(3), d.typ(0))
	d.emit(inst{op: op, a: a, b: b, c: c, d: d.dst(d.arg(0), t)})
}

var numberTests = map[string]uint8{"finite": testFinite, "infinite": testInfinite, "number": testNumber,
	"notanumber": testNotanumber, "normal": testNormal, "subnormal": testSubnormal}

func (d *decoder) testp() {
	t := d.typ(0)
	d.emit(inst{op: d.of(testpOf, t), kind: d.required(numberTests), a: d.src(d.arg(1), t), d: d.dst(d.arg(0), "pred")})
}

func (d *decoder) isspacep() {
	kind, ok := map[string]uint8{"global": spaceGlobal, "shared": spaceShared, "local": spaceLocal,
		"shared::cta": spaceShared, "shared::cluster": spaceShared}[d.parts[1]]
	if !ok { // const and param: they contain no generic addresses
		kind = spaceOutside
	}
	d.emit(inst{op: opIsspacep, kind: kind, a: d.src(d.arg(1), "u64"), d: d.dst(d.arg(0), "pred")})
}

func (d *decoder) nop() { d.emit(inst{op: opNop}) }

func (d *decoder) fence() { d.emit(inst{op: opFence}) }

func (d *decoder) branch() {
	at := d.label(d.arg(0))
	d.jumps = append(d.jumps, len(d.out.code))
	d.emit(inst{op: opBra, imm: int64(at)})
}

func (d *decoder) branchIndirect() {
	table := d.f.Tables[d.arg(1).Name]
	in := inst{op: opBrx, a: d.src(d.arg(0), "u32"), n: int32(len(table))}
	for i, l := range table {
		at, ok := d.f.Labels[l]
		if !ok {
			d.lack("the label " + l)
		}
		x := d.more(int32(at))
		if i == 0 {
			in.x = x
		}
		d.tables = append(d.tables, int(x))
	}
	d.emit(in)
}

func (d *decoder) ret() {
	d.giveResults()
	d.emit(inst{op: opRet})
}

func (d *decoder) end() {
	d.emit(inst{op: map[string]opcode{"exit": opExit, "trap": opTrap, "brkpt": opBrkpt}[d.parts[0]]})
}

func (d *decoder) nanosleep() { d.emit(inst{op: opNanosleep, a: d.src(d.arg(0), "u32")}) }

func (d *decoder) activemask() { d.emit(inst{op: opActivemask, d: d.dst(d.arg(0), "b32")}) }

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

func (d *decoder) label(o ptx.Operand) int {
	at, ok := d.f.Labels[o.Name]
	if !ok {
		d.lack("the label " + o.Name)
	}
	return at
}

func (d *decoder) mov() {
	t := d.typ(0)
	to, from := d.arg(0), d.arg(1)
	if t == "pred" {
		if from.Kind == ptx.Integer {
			d.emit(inst{op: opPconst, imm: from.Int, d: d.dst(to, t)})
			return
		}
		d.emit(inst{op: opPmov, a: d.pred(from), d: d.dst(to, t)})
		return
	}
	switch {
	case d.has("v2") || d.has("v4") || d.has("v8"):
		values, results := elements(from), elements(to)
		if len(values) != len(results) {
			d.lack(d.in.Op)
		}
		op := either(wide(t), opMov64, opMov32)
		var between []int32 // temporaries: a register may be on both sides
		for _, v := range values {
			between = append(between, d.newReg(wide(t)))
			d.emit(inst{op: op, a: d.src(v, t), d: between[len(between)-1]})
		}
		for i, r := range results {
			if r.Kind != ptx.None {
				d.emit(inst{op: op, a: between[i], d: d.dst(r, t)})
			}
		}
	case t == "b128":
		values, results := d.halves(from), d.halves(to)
		for i, v := range values {
			d.emit(inst{op: opMov64, a: d.src(v, "b64"), d: d.dst(results[i], "b64")})
		}
	case from.Kind == ptx.Vector && len(from.Elems) == 2 && width(t) == 4:
		a, b := d.src(from.Elems[0], "b16"), d.src(from.Elems[1], "b16")
		d.emit(inst{op: opPack16, a: a, b: b, d: d.dst(to, t)})
	case from.Kind == ptx.Vector && len(from.Elems) == 2 && width(t) == 8:
		a, b := d.src(from.Elems[0], "b32"), d.src(from.Elems[1], "b32")
		d.emit(inst{op: opPack32, a: a, b: b, d: d.dst(to, t)})
	case from.Kind == ptx.Vector && len(from.Elems) == 4 && width(t) == 8:
		lo, hi := d.newReg(false), d.newReg(false)
		d.emit(inst{op: opPack16, a: d.src(from.Elems[0], "b16"), b: d.src(from.Elems[1], "b16"), d: lo})
		d.emit(inst{op: opPack16, a: d.src(from.Elems[2], "b16"), b: d.src(from.Elems[3], "b16"), d: hi})
		d.emit(inst{op: opPack32, a: lo, b: hi, d: d.dst(to, t)})
	case from.Kind == ptx.Vector:
		d.lack(d.in.Op)
	case to.Kind == ptx.Vector:
		var parts []opcode
		switch {
		case width(t) == 4 && len(to.Elems) == 2:
			parts = []opcode{opLo16, opHi16}
		case width(t) == 8 && len(to.Elems) == 2:
			parts = []opcode{opMov64_32, opHi32}
		case width(t) == 8 && len(to.Elems) == 4:
			parts = []opcode{opCvt64_16, opB16Of64_1, opHi32, opB16Of64_3}
		default:
			d.lack(d.in.Op)
		}
		a := d.src(from, t)
		for i, e := range to.Elems {
			if e.Kind == ptx.None {
				continue
			}
			if len(parts) == 4 && i == 2 { // low half of the upper word
				d.emit(inst{op: opHi32, a: a, d: d.dst(e, "b32")})
				d.emit(inst{op: opLo16, a: d.dst(e, "b32"), d: d.dst(e, "b32")})
				continue
			}
			// The source may also be one of the results.
			d.emit(inst{op: parts[i], a: a, d: d.dst(e, "b32")})
		}
	case from.Kind == ptx.Symbol:
		if v, ok := d.locals[from.Name]; ok {
			kind := uint8(0)
			if wide(t) {
				kind = 1
			}
			d.emit(inst{op: opLocalAddress, kind: kind, imm: int64(v.offset) + from.Int, d: d.dst(to, t)})
			return
		}
		fallthrough
	default:
		d.one(either(wide(t), opMov64, opMov32), t)
	}
}

func (d *decoder) arith() {
	name, t := d.parts[0], d.typ(0)
	switch t {
	case "f32":
		d.arithF32(name)
		return
	case "f64":
		d.arithF64(name)
		return
	case "f16", "f16x2", "bf16", "bf16x2":
		d.arithHalf(name, t)
		return
	case "f32x2":
		c := d.constant(0, true)
		if len(d.in.Args) > 3 {
			c = d.src(d.arg(3), "b64")
		}
		a, b := d.src(d.arg(1), "b64"), d.src(d.arg(2), "b64")
		d.emit(inst{op: opF32x2, kind: arithmetic[name], imm: int64(d.modes()), a: a, b: b, c: c,
			d: d.dst(d.arg(0), "b64")})
		return
	case "u16x2", "s16x2":
		d.pairs16(name, t)
		return
	case "":
		d.lack(d.in.Op)
	}
	switch name {
	case "add", "sub":
		if d.has("cc") {
			d.withCarry()
			return
		}
		if d.has("sat") {
			d.two(either(name == "add", opAddSatS32, opSubSatS32), t)
			return
		}
		d.two(d.of(integerOps[name], t), t)
	case "neg", "abs":
		d.one(d.of(integerOps[name], t), t)
	case "min", "max", "div", "rem":
		if d.has("relu") {
			d.pairs16(name, t)
			return
		}
		if (name == "div" || name == "rem") && d.arg(2).Kind == ptx.Register {
			d.emit(inst{op: opNonzero, a: d.src(d.arg(2), t), n: map[bool]int32{true: 1}[wide(t)]})
		}
		d.two(d.of(integerOps[name], t), t)
	case "mul24", "mad24":
		table := mul24Of
		if d.has("hi") {
			table = mul24hiOf
		}
		if name == "mul24" {
			d.two(d.of(table, t), t)
			return
		}
		tmp := d.newReg(false)
		d.emit(inst{op: d.of(table, t), a: d.src(d.arg(1), t), b: d.src(d.arg(2), t), d: tmp})
		d.emit(inst{op: either(d.has("sat"), opAddSatS32, opAdd32), a: tmp, b: d.src(d.arg(3), t), d: d.dst(d.arg(0), t)})
	case "sad":
		d.three(d.of(sadOf, t), t)
	case "mul", "mad":
		if d.has("cc") || d.has("sat") {
			if name == "mad" && d.has("cc") {
				d.withCarry()
				return
			}
			d.lack(d.in.Op)
		}
		mul, mad, res := mulloOf, madloOf, t
		switch {
		case d.has("hi"):
			mul, mad = mulhiOf, madhiOf
		case d.has("wide"):
			mul, mad = mulwideOf, madwideOf
			res = t[:1] + strconv.Itoa(16*width(t))
		}
		a, b := d.src(d.arg(1), t), d.src(d.arg(2), t)
		if name == "mul" {
			d.emit(inst{op: d.of(mul, t), a: a, b: b, d: d.dst(d.arg(0), res)})
			return
		}
		c := d.src(d.arg(3), res)
		if d.has("hi") && width(t) == 8 {
			tmp := d.newReg(true)
			d.emit(inst{op: d.of(mul, t), a: a, b: b, d: tmp})
			d.emit(inst{op: opAdd64, a: tmp, b: c, d: d.dst(d.arg(0), res)})
			return
		}
		d.emit(inst{op: d.of(mad, t), a: a, b: b, c: c, d: d.dst(d.arg(0), res)})
	default:
		d.lack(d.in.Op)
	}
}

// integerOps holds the opcodes of integer arithmetic by type.
var integerOps = map[string]map[string]opcode{"add": addOf, "sub": subOf, "neg": negOf, "abs": absOf, "min": minOf,
	"max": maxOf, "div": divOf, "rem": remOf}

// pairs16 decodes arithmetic on pairs of 16-bit integers, and min and max with relu.
func (d *decoder) pairs16(name, t string) {
	kind, ok := map[string]uint8{"add": pairAdd, "min": pairMin, "max": pairMax}[name]
	if !ok {
		d.lack(d.in.Op)
	}
	flags := 0
	if t[0] == 's' {
		flags |= pairSigned
	}
	if d.has("relu") {
		flags |= pairRelu
	}
	if t == "s32" {
		flags |= pairWord
	}
	a, b := d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
	d.emit(inst{op: opPair16, kind: kind, imm: int64(flags), a: a, b: b, d: d.dst(d.arg(0), "b32")})
}

// withCarry decodes add.cc, addc and similar instructions. For mad it emits the product first.
func (d *decoder) withCarry() {
	name, t := d.parts[0], d.typ(0)
	var kind uint8
	if width(t) == 8 {
		kind |= carry64
	}
	if strings.HasPrefix(name, "sub") {
		kind |= carrySubtracts
	}
	if strings.HasSuffix(name, "c") {
		kind |= carryTakes
	}
	if d.has("cc") {
		kind |= carryGives
	}
	a, b := int32(0), int32(0)
	if strings.HasPrefix(name, "mad") {
		table := mulloOf
		if d.has("hi") {
			table = mulhiOf
		}
		a = d.newReg(wide(t))
		d.emit(inst{op: d.of(table, t), a: d.src(d.arg(1), t), b: d.src(d.arg(2), t), d: a})
		b = d.src(d.arg(3), t)
	} else {
		a, b = d.src(d.arg(1), t), d.src(d.arg(2), t)
	}
	d.emit(inst{op: opAddc, kind: kind, a: a, b: b, c: d.carry, d: d.dst(d.arg(0), t)})
}

func (d *decoder) arithF32(name string) {
	flags := d.modes()
	ftz, plain := flags&flagFtz != 0, flags == 0
	approx := d.has("approx") || d.has("full")
	switch name {
	case "add", "sub", "mul", "div":
		if name == "div" && d.has("approx") && flags&^flagFtz == 0 {
			d.two(either(ftz, opDivApproxFtzF32, opDivApproxF32), "f32")
			return
		}
		if plain || name == "div" && approx && !ftz {
			d.two(d.of(floatOps[name], "f32"), "f32")
			return
		}
	case "fma", "mad":
		if plain {
			d.three(opFmaF32, "f32")
			return
		}
	case "min", "max":
		if d.has("xorsign") {
			d.xorsign(name, opFArith, opAbsF32, opXorsign32, opSignF32, flags)
			return
		}
		if len(d.in.Args) > 3 {
			if d.has("NaN") || ftz {
				d.lack(d.in.Op)
			}
			d.three(either(name == "min", opMin3F32, opMax3F32), "f32")
			return
		}
		if d.has("NaN") {
			name += ".nan"
		}
		if plain {
			d.two(d.of(floatOps[name], "f32"), "f32")
			return
		}
	case "neg", "abs":
		if plain {
			d.one(d.of(floatOps[name], "f32"), "f32")
			return
		}
	case "rcp", "sqrt", "rsqrt", "ex2", "lg2":
		if flags&^flagFtz == 0 && (approx || !ftz) {
			if ftz {
				name += ".ftz"
			}
			d.one(d.of(floatOps[name], "f32"), "f32")
			return
		}
	case "sin", "cos", "tanh":
		d.one(d.of(floatOps[name], "f32"), "f32")
		return
	}
	d.general(opFArith, name, "f32", flags)
}

// floatOps holds the opcodes of floating-point arithmetic by type.
var floatOps = map[string]map[string]opcode{"add": addOf, "sub": subOf, "mul": mulOf, "div": divOf, "fma": fmaOf,
	"mad": fmaOf, "min": minOf, "max": maxOf, "min.nan": minNanOf, "max.nan": maxNanOf, "neg": negOf, "abs": absOf,
	"rcp": rcpOf, "sqrt": sqrtOf, "rsqrt": rsqrtOf, "ex2": ex2Of, "lg2": lg2Of, "rcp.ftz": rcpFtzOf, "sqrt.ftz": sqrtFtzOf,
	"rsqrt.ftz": rsqrtFtzOf, "ex2.ftz": ex2FtzOf, "lg2.ftz": lg2FtzOf, "sin": sinOf, "cos": cosOf, "tanh": tanhOf}

// general emits the slow form of arithmetic, which supports every modifier.
func (d *decoder) general(op opcode, name, t string, flags int) {
	kind, ok := arithmetic[name]
	if !ok {
		d.lack(d.in.Op)
	}
	places := [3]int32{}
	for i := range places {
		if i+1 < len(d.in.Args) {
			places[i] = d.src(d.arg(i+1), t)
		} else {
			places[i] = places[0]
		}
	}
	d.emit(inst{op: op, kind: kind, imm: int64(flags), a: places[0], b: places[1], c: places[2],
		d: d.dst(d.arg(0), t)})
}

// xorsign emits min or max of two absolute values with the sign of their product. op is applied to the results of abs;
// xor computes the sign, and sign applies it.
func (d *decoder) xorsign(name string, op, abs, xor, sign opcode, flags int) {
	if d.has("NaN") {
		name += ".nan"
	}
	a, b := d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
	p, q, s := d.newReg(false), d.newReg(false), d.newReg(false)
	d.emit(inst{op: xor, a: a, b: b, d: s})
	d.emit(inst{op: abs, a: a, d: p})
	d.emit(inst{op: abs, a: b, d: q})
	d.emit(inst{op: op, kind: arithmetic[name], imm: int64(flags), a: p, b: q, c: p, d: p})
	d.emit(inst{op: sign, a: p, b: s, d: d.dst(d.arg(0), "b32")})
}

func (d *decoder) arithF64(name string) {
	flags := d.modes() &^ flagFtz
	if d.has("ftz") && (name == "rcp" || name == "rsqrt") {
		d.one(either(name == "rcp", opRcpGrossF64, opRsqrtGrossF64), "f64")
		return
	}
	if flags == 0 {
		switch name {
		case "add", "sub", "mul", "div", "min", "max":
			d.two(d.of(floatOps[name], "f64"), "f64")
			return
		case "fma", "mad":
			d.three(opFmaF64, "f64")
			return
		case "neg", "abs", "rcp", "sqrt", "rsqrt":
			d.one(d.of(floatOps[name], "f64"), "f64")
			return
		}
	}
	d.general(opDArith, name, "f64", flags)
}

func (d *decoder) arithHalf(name, t string) {
	flags := d.modes()
	if strings.HasPrefix(t, "bf16") {
		flags |= flagBf16
	}
	if strings.HasSuffix(t, "x2") {
		flags |= flagX2
	}
	if name == "neg" || name == "abs" {
		d.one(d.of(floatOps[name], t), "b32")
		return
	}
	if d.has("NaN") {
		name += ".nan"
	}
	if d.has("xorsign") {
		half := strings.TrimSuffix(t, "x2")
		d.xorsign(d.parts[0], opHArith, absOf[half+"x2"], opXorsignH, signOf[half], flags)
		return
	}
	if len(d.in.Args) > 3 && name != "fma" {
		d.lack(d.in.Op)
	}
	choice := strings.HasPrefix(name, "min") || strings.HasPrefix(name, "max")
	d.general(either(choice, opHChoice, opHArith), name, "b32", flags)
}

func (d *decoder) compare() {
	name := d.parts[0]
	// setp.cmp[.bool][.ftz].type p[|q], a, b[, c]; set.cmp[.bool].dtype.stype d, a, b[, c]
	cmp, ok := comparisons[d.parts[1]]
	if !ok {
		d.lack(d.in.Op)
	}
	t := d.typ(0)
	res := d.scratch[0]
	simple := name == "setp" && len(d.in.Args) == 3 && d.arg(0).Pair == nil && !strings.HasSuffix(t, "x2")
	if simple {
		res = d.dst(d.arg(0), "pred")
	}
	in := inst{kind: cmp, d: res}
	switch {
	case t == "f16" || t == "bf16":
		in.op, in.a, in.b = opSetpH, d.src(d.arg(1), "b16"), d.src(d.arg(2), "b16")
		if t == "bf16" {
			in.imm = 1
		}
	case strings.HasSuffix(t, "x2"):
		if name == "set" {
			d.setPair(in, t)
			return
		}
		if len(d.in.Args) > 3 {
			d.lack(d.in.Op)
		}
		in.op, in.a, in.b = opSetpH, d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
		if t == "bf16x2" {
			in.imm = 1
		}
		first, second := d.arg(0), d.arg(0).Pair
		in.d = d.dst(first, "pred")
		d.emit(in)
		if second != nil {
			in.d, in.n = d.dst(*second, "pred"), 16
			d.emit(in)
		}
		return
	default:
		in.op, in.a, in.b = d.of(setpOf, t), d.src(d.arg(1), t), d.src(d.arg(2), t)
		if t == "f32" && d.has("ftz") {
			a, b := d.newReg(false), d.newReg(false)
			for _, p := range [][2]int32{{in.a, a}, {in.b, b}} { // abs with subnormals flushed, then the sign of x
				d.emit(inst{op: opFArith, kind: arithAbs, imm: flagFtz, a: p[0], b: p[0], c: p[0], d: p[1]})
				d.emit(inst{op: opCopysign32, a: p[0], b: p[1], d: p[1]})
			}
			in.a, in.b = a, b
		}
	}
	d.emit(in)
	if simple {
		return
	}
	combine := opNop
	for name, ops := range logicOps {
		if d.has(name) {
			combine = ops.predicates
		}
	}
	both := res
	if combine != opNop {
		c := d.pred(d.arg(3))
		both = d.scratch[1]
		d.emit(inst{op: combine, a: res, b: c, d: both})
		if second := d.arg(0).Pair; second != nil && second.Kind != ptx.None {
			d.emit(inst{op: opPnot, a: res, d: d.scratch[2]})
			d.emit(inst{op: combine, a: d.scratch[2], b: c, d: d.scratch[2]})
			d.emit(inst{op: opPmov, a: d.scratch[2], d: d.dst(*second, "pred")})
		}
	} else if second := d.arg(0).Pair; second != nil && second.Kind != ptx.None {
		d.emit(inst{op: opPnot, a: res, d: d.dst(*second, "pred")})
	}
	if name == "setp" {
		if d.arg(0).Kind != ptx.None {
			d.emit(inst{op: opPmov, a: both, d: d.dst(d.arg(0), "pred")})
		}
		return
	}
	d.emit(inst{op: opSelp32, a: d.constant(d.truth(), false), b: d.constant(0, false), c: both,
		d: d.dst(d.arg(0), "b32")})
}

// truth returns the result of a set instruction whose comparison holds: 1 for a floating-point type, all ones for an
// integer type. For a pair it is the value of one half.
func (d *decoder) truth() uint64 {
	switch d.typ(1) {
	case "f32":
		return 0x3f800000
	case "f16", "f16x2":
		return 0x3c00
	case "bf16", "bf16x2":
		return 0x3f80
	}
	return 0xffffffff
}

// setPair decodes set on pairs: each half of the result is truth or 0.
func (d *decoder) setPair(in inst, t string) {
	if len(d.in.Args) > 3 {
		d.lack(d.in.Op)
	}
	in.op, in.a, in.b = opSetpH, d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
	if t == "bf16x2" {
		in.imm = 1
	}
	yes := d.truth() & 0xffff
	lo, hi := d.newReg(false), d.newReg(false)
	for i, to := range []int32{lo, hi} {
		in.d, in.n = d.scratch[i], int32(16*i)
		d.emit(in)
		d.emit(inst{op: opSelp32, a: d.constant(yes, false), b: d.constant(0, false), c: d.scratch[i], d: to})
	}
	d.emit(inst{op: opPack16, a: lo, b: hi, d: d.dst(d.arg(0), "b32")})
}

var types = map[string]int{"u8": typeU8, "u16": typeU16, "u32": typeU32, "u64": typeU64, "s8": typeS8, "s16": typeS16,
	"s32": typeS32, "s64": typeS64, "f16": typeF16, "bf16": typeBf16, "f32": typeF32, "f64": typeF64, "tf32": typeTf32}

// fastCvt holds the specialized opcodes for conversions without modifiers from 32-bit operands.
var fastCvt = map[[2]string]opcode{{"f32", "s32"}: opCvtF32S32, {"f32", "u32"}: opCvtF32U32,
	{"f32", "bf16"}: opCvtF32Bf16, {"f32", "f16"}: opCvtF32F16, {"bf16", "f32"}: opCvtBf16F32, {"f16", "f32"}: opCvtF16F32,
	{"f64", "f32"}: opCvtF64F32, {"f64", "s32"}: opCvtF64S32, {"f64", "u32"}: opCvtF64U32}

func (d *decoder) cvt() {
	if d.parts[1] == "pack" {
		d.packSaturated()
		return
	}
	var dst, src string
	for _, p := range d.parts[1:] {
		switch p {
		case "rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", "ftz", "sat", "relu", "satfinite":
		default:
			if dst == "" {
				dst = p
			} else if src == "" {
				src = p
			} else {
				d.lack(d.in.Op)
			}
		}
	}
	flags := d.modes()
	to := d.arg(0)
	switch {
	case dst == "e4m3x2" || dst == "e5m2x2":
		in := inst{op: opCvtFp8x2, d: d.dst(to, "b16"), a: d.src(d.arg(1), src)}
		in.b = in.a
		if src == "f16x2" {
			in.n = 1
		} else {
			in.b = d.src(d.arg(2), src)
		}
		if dst == "e5m2x2" {
			in.kind = 1
		}
		in.imm = int64(flags & flagRelu)
		d.emit(in)
		return
	case dst == "f16x2" && (src == "e4m3x2" || src == "e5m2x2"):
		in := inst{op: opCvtFromFp8x2, d: d.dst(to, "b32"), a: d.src(d.arg(1), "b16"), imm: int64(flags & flagRelu)}
		if src == "e5m2x2" {
			in.kind = 1
		}
		d.emit(in)
		return
	case (dst == "f16x2" || dst == "bf16x2") && src == "f32":
		a, b := d.src(d.arg(1), src), d.src(d.arg(2), src)
		in := inst{op: either(dst == "f16x2", opCvtF16x2F32, opCvtBf16x2F32), a: a, b: b, d: d.dst(to, "b32")}
		if flags != 0 || d.has("satfinite") {
			if d.has("satfinite") {
				d.lack(d.in.Op)
			}
			in.op = opCvtPack
			in.imm = int64(types[strings.TrimSuffix(dst, "x2")] | types["f32"]<<8 | flags<<16)
		}
		d.emit(in)
		return
	}
	dt, ok := types[dst]
	st, ok2 := types[src]
	if !ok || !ok2 || d.has("satfinite") {
		d.lack(d.in.Op)
	}
	toWide, fromWide := d.isWide(to), d.isWideSource(d.arg(1), src)
	a := int32(0)
	if fromWide {
		a = d.src(d.arg(1), "b64")
	} else {
		a = d.src(d.arg(1), src)
	}
	if flags == 0 {
		fast, ok := fastCvt[[2]string{dst, src}]
		ok = ok && !fromWide
		if isInteger(dst) && isInteger(src) {
			fast, ok = integerCvt(dst, src, toWide, fromWide, d.width16(to))
		}
		if ok {
			d.emit(inst{op: fast, a: a, d: d.dst(to, dst)})
			return
		}
	}
	in := inst{op: opCvt, a: a, d: d.dst(to, dst), imm: int64(dt | st<<8 | flags<<16)}
	if toWide {
		in.n |= 1
	}
	if fromWide {
		in.n |= 2
	}
	if d.width16(to) {
		in.n |= 4
	}
	d.emit(in)
}

// packSaturated decodes cvt.pack.sat.type.abtype[.ctype].
func (d *decoder) packSaturated() {
	if len(d.parts) < 5 || d.parts[2] != "sat" {
		d.lack(d.in.Op)
	}
	dst, src := d.parts[3], d.parts[4]
	bits, err := strconv.Atoi(dst[1:])
	if err != nil || bits > 16 || src[1:] != "32" {
		d.lack(d.in.Op)
	}
	kind := bits
	if dst[0] == 's' {
		kind |= packSigned
	}
	if src[0] == 'u' {
		kind |= packFromUnsigned
	}
	c := d.constant(0, false)
	if len(d.in.Args) > 3 {
		c = d.src(d.arg(3), "b32")
	}
	a, b := d.src(d.arg(1), src), d.src(d.arg(2), src)
	d.emit(inst{op: opCvtSatPack, kind: uint8(kind), a: a, b: b, c: c, d: d.dst(d.arg(0), "b32")})
}

// videoOps holds the operations of the scalar video instructions.
var videoOps = map[string]uint8{"vadd": videoAdd, "vsub": videoSub, "vabsdiff": videoAbsdiff, "vmin": videoMin,
	"vmax": videoMax, "vshl": videoShl, "vshr": videoShr, "vset": videoSet}

// video decodes the scalar video instructions: vop.dtype.atype.btype{.sat}{.mode}{.op2} d{.sel}, a{.sel}, b{.sel}{, c}.
func (d *decoder) video() {
	kind := videoOps[d.parts[0]]
	parts := d.parts[1:]
	imm := 0
	if kind == videoSet {
		i := slices.IndexFunc(parts, func(p string) bool {
			cmp, ok := comparisons[p]
			return ok && cmp <= cmpGe
		})
		if i < 0 {
			d.lack(d.in.Op)
		}
		imm |= int(comparisons[parts[i]]) << 20
		parts = append([]string{"u32"}, slices.Delete(slices.Clone(parts), i, i+1)...)
	}
	selector := func(o ptx.Operand, typ string) int {
		sel := 7
		if i := slices.Index([]string{"b0", "b1", "b2", "b3", "h0", "h1"}, o.Select); i >= 0 {
			sel = i
		}
		if typ == "s32" {
			sel |= 8
		}
		return sel
	}
	if len(parts) < 3 {
		d.lack(d.in.Op)
	}
	imm |= selector(d.arg(1), parts[1]) | selector(d.arg(2), parts[2])<<4 | selector(d.arg(0), "u32")<<8
	if parts[0] == "s32" {
		imm |= 1 << 12
	}
	for _, p := range parts[3:] {
		switch p {
		case "sat":
			imm |= 1 << 13
		case "wrap":
			imm |= 1 << 14
		case "add":
			imm |= 1 << 16
		case "min":
			imm |= 2 << 16
		case "max":
			imm |= 3 << 16
		}
	}
	c := d.constant(0, false)
	if len(d.in.Args) > 3 {
		c = d.src(d.arg(3), "b32")
	}
	a, b := d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
	d.emit(inst{op: opVideo, kind: kind, imm: int64(imm), a: a, b: b, c: c, d: d.dst(d.arg(0), "b32")})
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

// Integer conversions that extend the low bits, to 32-bit operands and from 32 to 64 bits.
var (
	extend32 = map[string]opcode{"u8": opCvtU8_32, "s8": opCvtS8_32, "u16": opCvtU16_32, "s16": opCvtS16_32}
	extend64 = map[string]opcode{"u8": opCvtU8_64, "s8": opCvtS8_64, "u16": opCvtU16_64, "s16": opCvtS16_64,
		"u32": opCvtU32_64, "s32": opCvtS32_64}
)

// integerCvt returns the specialized opcode for an integer conversion without saturation, if there is one.
func integerCvt(dst, src string, toWide, fromWide, to16 bool) (op opcode, ok bool) {
	dw, sw := width(dst), width(src)
	switch {
	case fromWide && sw < 8:
	case fromWide && dw == 8 && toWide:
		return opMov64, true
	case fromWide && dw == 4 && !toWide:
		return opMov64_32, true
	case fromWide && dw == 2 && !toWide && to16:
		return opCvt64_16, true
	case fromWide:
	case toWide && dw == 8:
		op, ok = extend64[src]
	case toWide:
	// Both operands have 32 bits: the narrower type decides.
	case to16 && (dw == 2 && src == "u8" || dst == "u8"):
		return opCvtU8_32, true
	case to16 && dw == 2 && sw >= 2:
		return opCvtU16_32, true
	case to16 && (dw == 2 && src == "s8" || dst == "s8"):
		return opCvtS8_16, true
	case to16:
	case dw == 4 && sw == 4:
		return opMov32, true
	case dw == 4:
		op, ok = extend32[src]
	case sw >= dw:
		op, ok = extend32[dst]
	}
	return op, ok
}

func (d *decoder) cvta() {
	// cvta[.to].space.size
	space, to := d.parts[1], false
	if space == "to" {
		to, space = true, d.parts[2]
	}
	if width(d.parts[len(d.parts)-1]) != 8 {
		d.lack(d.in.Op)
	}
	space, _, _ = strings.Cut(space, "::")
	table := cvtaOf
	if to {
		table = cvtaToOf
	}
	op, ok := table[space]
	if !ok {
		op = opMov64 // addresses of this space are generic ones
	}
	from := d.arg(1)
	if v, ok := d.locals[from.Name]; ok && from.Kind == ptx.Symbol {
		tmp := d.newReg(true)
		d.emit(inst{op: opLocalAddress, kind: 1, imm: int64(v.offset) + from.Int, d: tmp})
		d.emit(inst{op: op, a: tmp, d: d.dst(d.arg(0), "b64")})
		return
	}
	d.one(op, "b64")
}

// policy decodes createpolicy with the encoding in libcu++'s access_property_encoding.h. The virtual GPU has no L2
// cache, but programs compare policies.
func (d *decoder) policy() {
	in := inst{op: opPolicy, d: d.dst(d.arg(0), "b64")}
	shift := 57 // of the primary hint; the secondary hint is one bit below it
	for _, p := range d.parts[2:] {
		if hint, ok := strings.CutPrefix(p, "L2::evict_"); ok {
			code := slices.Index([]string{"unchanged", "first", "last", "normal"}, hint)
			if code < 0 {
				d.lack(d.in.Op)
			}
			in.imm |= int64(code) << shift
			shift = 56
		}
	}
	switch d.parts[1] {
	case "range":
		var at inst
		if d.addressed(&at, d.arg(1)); at.imm != 0 || at.c != 0 {
			d.lack(d.in.Op)
		}
		in.a, in.b, in.c = at.a, d.src(d.arg(2), "u32"), d.src(d.arg(3), "u32")
		in.imm |= 3 << 59
	case "fractional":
		in.kind, in.a = 1, d.constant(0x3f800000, false)
		if len(d.in.Args) > 1 {
			in.a = d.src(d.arg(1), "f32")
		}
		in.imm |= 2 << 59
	default: // cvt
		in.op, in.a = opMov64, d.src(d.arg(1), "b64")
	}
	d.emit(in)
}

// addressed sets in.a and in.imm to the address in o, and mAddr32 if the register has 32 bits.
func (d *decoder) addressed(in *inst, o ptx.Operand) {
	if o.Kind != ptx.Memory || len(o.Elems) != 1 {
		d.lack(d.in.Op)
	}
	base := o.Elems[0]
	in.imm = o.Int
	switch base.Kind {
	case ptx.Register:
		in.a = d.regs[base.Reg]
		if !d.isWide(base) {
			in.c |= mAddr32
		}
	case ptx.Integer:
		in.a = d.constant(uint64(base.Int), true)
	case ptx.Symbol:
		if v, ok := d.locals[base.Name]; ok {
			in.a = d.newReg(true)
			d.emit(inst{op: opLocalAddress, kind: 1, imm: int64(v.offset), d: in.a})
			return
		}
		in.a = d.constant(d.address(base), true)
	default:
		d.lack(d.in.Op)
	}
}

// space returns the address space in a memory instruction's name; -1 is the parameter space.
func (d *decoder) space() int {
	for _, p := range d.parts[1:] {
		name, _, _ := strings.Cut(p, "::")
		switch name {
		case "global", "const":
			return spaceGlobal
		case "shared":
			return spaceShared
		case "local":
			return spaceLocal
		case "param":
			return -1
		}
	}
	return spaceGeneric
}

// spaceOf returns the address space of a memory instruction. A generic address that names a variable belongs to the
// variable's space.
func (d *decoder) spaceOf(address ptx.Operand) int {
	space := d.space()
	if space != spaceGeneric || address.Kind != ptx.Memory || len(address.Elems) == 0 ||
		address.Elems[0].Kind != ptx.Symbol {
		return space
	}
	name := address.Elems[0].Name
	if _, ok := d.locals[name]; ok {
		return spaceLocal
	}
	if _, ok := d.shared[d.f.Name+"\x00"+name]; ok {
		return spaceShared
	}
	if _, ok := d.shared[name]; ok {
		return spaceShared
	}
	return space
}

// loadOps and storeOps hold the opcodes by address space.
var (
	loadOps = [...]opcode{spaceGeneric: opLdGeneric, spaceGlobal: opLdGlobal, spaceShared: opLdShared,
		spaceLocal: opLdLocal}
	storeOps = [...]opcode{spaceGeneric: opStGeneric, spaceGlobal: opStGlobal, spaceShared: opStShared,
		spaceLocal: opStLocal}
)

func (d *decoder) memory() {
	if d.has("async") {
		d.storeAsync()
		return
	}
	name, t := d.parts[0], d.typ(0)
	if d.has("unified") {
		d.lack(d.in.Op)
	}
	value, address := d.arg(0), d.arg(1)
	if name == "st" {
		value, address = address, value
	}
	elems := elements(value)
	if t == "b128" { // as pairs of 64-bit registers
		t = "b64"
		elems = nil
		for _, e := range elements(value) {
			elems = append(elems, d.halves(e)...)
		}
	}
	in := inst{n: int32(len(elems)), c: int32(width(t))}
	if t[0] == 's' {
		in.c |= mSigned
	}
	if slices.ContainsFunc([]string{"volatile", "relaxed", "acquire", "release", "mmio", "cv", "wt"}, d.has) {
		in.c |= mStrong
	}
	if d.has("release") || d.has("volatile") {
		in.c |= mRelease
	}
	var places []int32
	for _, e := range elems {
		if e.Kind == ptx.None && name != "st" {
			places = append(places, -1)
			continue
		}
		w := wide(t)
		if e.Kind == ptx.Register {
			w = d.isWide(e)
			if d.width16(e) {
				in.c |= m16
			}
		}
		if w {
			in.c |= m64
		}
		if name == "st" {
			places = append(places, d.src(e, t))
		} else {
			places = append(places, d.dst(e, t))
		}
	}
	space := d.spaceOf(address)
	if space < 0 {
		if d.f.Entry && name != "st" && address.Elems[0].Kind == ptx.Symbol {
			at := 0
			for _, v := range d.f.Params {
				at = aligned(at, v)
				if v.Name == address.Elems[0].Name {
					in.op, in.imm, in.x = opLdparam, int64(at)+address.Int, d.more(places...)
					d.emit(in)
					return
				}
				at += v.Size
			}
		}
		space = spaceLocal
		if address.Elems[0].Kind == ptx.Register {
			space = spaceGeneric
		}
	}
	d.addressed(&in, address)
	in.op = either(name == "st", storeOps[space], loadOps[space])
	in.x = d.more(places...)
	d.emit(in)
}

// atomics holds the operations of atom and red.
var atomics = map[string]uint8{"add": atomicAdd, "min": atomicMin, "max": atomicMax, "and": atomicAnd, "or": atomicOr,
	"xor": atomicXor, "exch": atomicExch, "cas": atomicCas, "inc": atomicInc, "dec": atomicDec}

func (d *decoder) atom() {
	if d.has("async") {
		d.storeAsync()
		return
	}
	name, t, kind := d.parts[0], d.typ(0), d.required(atomics)
	if t == "b128" {
		d.lack(d.in.Op)
	}
	code, ok := types[strings.TrimSuffix(t, "x2")]
	if !ok {
		code = types["u"+t[1:]]
	}
	d.p.atomics = true
	args := d.in.Args
	result := []ptx.Operand{{Kind: ptx.None}}
	if name == "atom" {
		result, args = elements(args[0]), args[1:]
	}
	values := elements(args[1])
	second := int32(-1)
	if kind == atomicCas {
		second = d.src(args[2], t)
	}
	var base inst
	d.addressed(&base, args[0])
	// The elements of a vector are separate atomics, as on a GPU.
	for i, v := range values {
		in := inst{op: opAtom, kind: kind | uint8(code)<<4, d: -1, a: base.a, c: int32(width(t)) | base.c,
			imm: base.imm + int64(i*width(t)), b: d.src(v, t)}
		if d.has("release") || d.has("acq_rel") {
			in.c |= mRelease
		}
		if i < len(result) && result[i].Kind != ptx.None {
			in.d = d.dst(result[i], t)
		}
		in.x = d.more(int32(d.spaceOf(args[0])), second)
		d.emit(in)
	}
}

// elements returns the elements of a vector, or the operand itself.
func elements(o ptx.Operand) []ptx.Operand {
	if o.Kind == ptx.Vector {
		return o.Elems
	}
	return []ptx.Operand{o}
}

func (d *decoder) call() {
	args := d.in.Args
	var results, params []ptx.Operand
	if len(args) > 0 && args[0].Kind == ptx.List {
		results, args = args[0].Elems, args[1:]
	}
	target := args[0]
	if len(args) > 1 && args[1].Kind == ptx.List {
		params = args[1].Elems
	}
	offset := func(o ptx.Operand) variable {
		v, ok := d.locals[o.Name]
		if o.Kind != ptx.Symbol || !ok {
			d.lack(d.in.Op + " with such an operand")
		}
		return v
	}
	d.out.calls = true
	if target.Kind == ptx.Symbol {
		switch target.Name {
		case "vprintf":
			result := int32(-1)
			if len(results) > 0 {
				result = int32(offset(results[0]).offset)
			}
			d.emit(inst{op: opVprintf, x: d.more(int32(offset(params[0]).offset), int32(offset(params[1]).offset), result)})
			return
		case "__assertfail":
			d.emit(inst{op: opAssertfail, x: d.more(int32(offset(params[0]).offset), int32(offset(params[1]).offset),
				int32(offset(params[2]).offset))})
			return
		case "malloc":
			d.p.heap = true
			d.emit(inst{op: opMalloc, x: d.more(int32(offset(results[0]).offset), int32(offset(params[0]).offset))})
			return
		case "free":
			d.p.heap = true
			d.emit(inst{op: opFree, x: d.more(int32(offset(params[0]).offset))})
			return
		}
	}
	in := inst{op: opCall}
	var callee *ptx.Func
	if target.Kind == ptx.Register {
		in.op, in.a = opCalli, d.regs[target.Reg]
		callee = d.f.Protos[args[len(args)-1].Name]
		if callee == nil {
			d.lack(d.in.Op)
		}
	} else {
		i, ok := d.index[target.Name]
		if !ok || !d.m.Funcs[i].HasBody {
			d.lack("the function " + target.Name)
		}
		in.imm, callee = int64(i), d.m.Funcs[i]
	}
	// Lay out parameters, then results, by position. The layout is the same for all functions with a given prototype.
	unnamed := *callee
	unnamed.Vars = nil
	for i, v := range slices.Concat(callee.Params, callee.Returns) {
		w := *v
		w.Name = strconv.Itoa(i)
		if i < len(callee.Params) {
			unnamed.Params = append(slices.Clone(unnamed.Params[:i]), &w)
			unnamed.Params = append(unnamed.Params, callee.Params[min(i+1, len(callee.Params)):]...)
		} else {
			j := i - len(callee.Params)
			unnamed.Returns = append(slices.Clone(unnamed.Returns[:j]), &w)
			unnamed.Returns = append(unnamed.Returns, callee.Returns[min(j+1, len(callee.Returns)):]...)
		}
	}
	places, _ := layout(&unnamed)
	if len(params) > len(callee.Params) || len(results) > len(callee.Returns) {
		d.lack(d.in.Op + " with more operands than the function has")
	}
	// Copy operands in registers through local memory of the calling function.
	var from, to []variable
	for i, p := range params {
		v, ok := d.locals[p.Name]
		if p.Kind != ptx.Symbol || !ok {
			v = d.temporary(callee.Params[i].Size)
			typ := callee.Params[i].Type
			for j, e := range elements(p) {
				d.keep(v.part(j, typ), d.callValue(e, typ), typ)
			}
		}
		from = append(from, v)
	}
	for i, r := range results {
		v, ok := d.locals[r.Name]
		if r.Kind != ptx.Symbol || !ok {
			v = d.temporary(callee.Returns[i].Size)
		}
		to = append(to, v)
	}
	in.x = d.more(int32(len(params)))
	for i, v := range from {
		there := places[strconv.Itoa(i)]
		d.more(int32(v.offset), int32(there.offset), int32(min(v.size, there.size)))
	}
	d.more(int32(len(results)))
	for i, v := range to {
		there := places[strconv.Itoa(len(callee.Params)+i)]
		d.more(int32(v.offset), int32(there.offset), int32(min(v.size, there.size)))
	}
	d.emit(in)
	for i, r := range results {
		if typ := callee.Returns[i].Type; r.Kind == ptx.Register || r.Kind == ptx.Vector {
			for j, e := range elements(r) {
				d.fetch(d.dst(e, typ), to[i].part(j, typ), typ)
			}
		}
	}
}

// callValue returns the operand for a call's argument that is not a variable.
func (d *decoder) callValue(o ptx.Operand, typ string) int32 {
	if typ == "pred" {
		return d.pred(o)
	}
	return d.src(o, typ)
}

// part returns the location of element i of a vector with elements of the given type.
func (v variable) part(i int, typ string) variable {
	size := max(width(typ), 1)
	return variable{v.offset + i*size, size}
}

// temporary reserves n bytes in the function's local memory.
func (d *decoder) temporary(n int) variable {
	v := variable{d.out.localSize, n}
	d.out.localSize += (n + 15) / 16 * 16
	return v
}

// local emits a load or store between a register and v in local memory.
func (d *decoder) local(op opcode, v variable, reg int32, typ string) {
	in := inst{op: op, n: 1, c: int32(max(width(typ), 1)), a: d.newReg(true)}
	d.emit(inst{op: opLocalAddress, kind: 1, imm: int64(v.offset), d: in.a})
	if wide(typ) {
		in.c |= m64
	}
	in.x = d.more(reg)
	d.emit(in)
}

// keep stores a register in local memory; fetch loads it back. Predicates are stored as words.
func (d *decoder) keep(v variable, reg int32, typ string) {
	if typ == "pred" {
		word := d.newReg(false)
		d.emit(inst{op: opSelp32, a: d.constant(1, false), b: d.constant(0, false), c: reg, d: word})
		reg, typ = word, "b32"
	}
	d.local(opStLocal, v, reg, typ)
}

func (d *decoder) fetch(reg int32, v variable, typ string) {
	if typ == "pred" {
		word := d.newReg(false)
		d.local(opLdLocal, v, word, "b32")
		d.emit(inst{op: opSetpU32, kind: cmpNe, a: word, b: d.constant(0, false), d: reg})
		return
	}
	d.local(opLdLocal, v, reg, typ)
}

// receive loads the parameters that the function has in registers; giveResults stores such results.
func (d *decoder) receive() {
	for _, v := range d.f.Params {
		for i, r := range d.registersOf(v) {
			d.fetch(d.regs[r], d.locals[v.Name].part(i, v.Type), v.Type)
		}
	}
}

func (d *decoder) giveResults() {
	for _, v := range d.f.Returns {
		for i, r := range d.registersOf(v) {
			d.keep(d.locals[v.Name].part(i, v.Type), d.regs[r], v.Type)
		}
	}
}

// registersOf returns the registers of a function's parameter or result, or nil if it is in memory.
func (d *decoder) registersOf(v *ptx.Var) (all []int) {
	if v.Space != "reg" {
		return nil
	}
	for i, r := range d.f.Regs {
		if r.Name == v.Name || v.Lanes > 1 && len(all) < v.Lanes && r.Name == v.Name+"."+"xyzw"[len(all):len(all)+1] {
			all = append(all, i)
		}
	}
	return all
}

// launchControl decodes clusterlaunchcontrol. A request to cancel another cluster's launch always fails, which the PTX
// ISA permits: the response is 16 zero bytes.
func (d *decoder) launchControl() {
	switch {
	case d.has("try_cancel"):
		in := inst{op: opStAsync, kind: storeToOne, c: 8, n: 2}
		if d.hasPrefix("multicast") {
			in.kind = storeToAll
		}
		d.addressed(&in, d.arg(0))
		bar, offset, narrow := d.sharedPlace(d.arg(1))
		if narrow {
			in.c |= m16
		}
		zero := d.constant(0, true)
		in.x = d.more(zero, zero, bar, offset, int32(types["u64"]))
		d.p.atomics = true
		d.emit(in)
	case d.has("is_canceled"):
		d.emit(inst{op: opPconst, d: d.dst(d.arg(0), "pred")})
	case d.hasPrefix("get_first_ctaid"):
		for _, e := range elements(d.arg(0)) {
			d.emit(inst{op: opMov32, a: d.constant(0, false), d: d.dst(e, "b32")})
		}
	default:
		d.lack(d.in.Op)
	}
}
