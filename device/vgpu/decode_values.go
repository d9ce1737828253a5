//go:build linux && cgo

package vgpu

import (
	"slices"
	"strconv"
	"strings"

	"fisub/device/vgpu/ptx"
)

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
	d.three(opPrmt, "b32").kind = kind
}

func (d *decoder) lop3() {
	if d.has("BoolOp") || d.arg(0).Pair != nil {
		d.lack(d.in.Op)
	}
	d.three(opLop3, "b32").kind = uint8(d.arg(4).Int)
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

func (d *decoder) activemask() { d.emit(inst{op: opActivemask, d: d.dst(d.arg(0), "b32")}) }

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
	case from.Kind == ptx.Vector && d.isBytes(from) && len(from.Elems) == width(t) && !wide(t):
		d.emit(inst{op: opMov32, a: d.joined(from.Elems), d: d.dst(to, t)})
	case from.Kind == ptx.Vector:
		d.lack(d.in.Op)
	case to.Kind == ptx.Vector && d.isBytes(to) && len(to.Elems) == width(t) && !wide(t):
		a := d.src(from, t)
		for i, e := range to.Elems {
			if e.Kind != ptx.None {
				d.emit(inst{op: opBfeU32, a: a, b: d.constant(uint64(8*i), false), c: d.constant(8, false), d: d.dst(e, "b32")})
			}
		}
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

// isBytes reports whether a vector's elements are registers of a byte, numbers, or unused.
func (d *decoder) isBytes(o ptx.Operand) bool {
	return !slices.ContainsFunc(o.Elems, func(e ptx.Operand) bool {
		if e.Kind == ptx.Register {
			return ptx.Size(d.types[e.Reg]) != 1
		}
		return e.Kind != ptx.Integer && e.Kind != ptx.None
	})
}

// joined returns a register with two or four bytes.
func (d *decoder) joined(elems []ptx.Operand) int32 {
	both := d.newReg(false)
	if len(elems) == 4 {
		d.emit(inst{op: opPack16, a: d.joined(elems[:2]), b: d.joined(elems[2:]), d: both})
		return both
	}
	d.emit(inst{op: opPrmt, a: d.src(elems[0], "b8"), b: d.src(elems[1], "b8"), c: d.constant(0x40, false), d: both})
	d.emit(inst{op: opAnd32, a: both, b: d.constant(0xffff, false), d: both})
	return both
}

var types = map[string]int{"u8": typeU8, "u16": typeU16, "u32": typeU32, "u64": typeU64, "s8": typeS8, "s16": typeS16,
	"s32": typeS32, "s64": typeS64, "f16": typeF16, "bf16": typeBf16, "f32": typeF32, "f64": typeF64, "tf32": typeTf32}

// truncation holds the conversions with .rzi that have an opcode of their own.
var truncation = map[[2]string]opcode{{"s32", "f32"}: opCvtS32F32, {"u32", "f32"}: opCvtU32F32,
	{"s32", "f64"}: opCvtS32F64, {"u32", "f64"}: opCvtU32F64}

// fastCvt holds the conversions without modifiers that have an opcode of their own.
var fastCvt = map[[2]string]opcode{{"f32", "s32"}: opCvtF32S32, {"f32", "u32"}: opCvtF32U32,
	{"f32", "bf16"}: opCvtF32Bf16, {"f32", "f16"}: opCvtF32F16, {"bf16", "f32"}: opCvtBf16F32, {"f16", "f32"}: opCvtF16F32,
	{"f64", "f32"}: opCvtF64F32, {"f32", "f64"}: opCvtF32F64, {"f64", "s32"}: opCvtF64S32, {"f64", "u32"}: opCvtF64U32}

func (d *decoder) cvt() {
	if d.parts[1] == "pack" {
		d.packSaturated()
		return
	}
	var dst, src string
	for _, p := range d.parts[1:] {
		switch p {
		case "rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", "rs", "ftz", "sat", "relu", "satfinite":
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
	case isNarrow(dst) || d.has("rs"):
		d.toNarrow(dst, src)
		return
	case isNarrow(src) && (dst == "f16x2" || dst == "bf16x2"):
		in := inst{op: opCvtFromNarrow, kind: narrowTypes[strings.TrimSuffix(src, "x2")], d: d.dst(to, "b32"),
			a: d.src(d.arg(1), "b16"), imm: int64(flags & flagRelu)}
		if dst == "bf16x2" {
			in.n = 1
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
		ok = ok && fromWide == (src == "f64")
		if isInteger(dst) && isInteger(src) {
			fast, ok = integerCvt(dst, src, toWide, fromWide, d.width16(to))
		}
		if ok {
			d.emit(inst{op: fast, a: a, d: d.dst(to, dst)})
			return
		}
	}
	if fast, ok := truncation[[2]string{dst, src}]; ok && flags == (roundRz|flagInteger) && !toWide {
		d.emit(inst{op: fast, a: a, d: d.dst(to, dst)})
		return
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

// narrowTypes holds the floating-point types of 8 bits and fewer.
var narrowTypes = map[string]uint8{"e4m3": mmaE4m3, "e5m2": mmaE5m2, "e2m3": mmaE2m3, "e3m2": mmaE3m2, "e2m1": mmaE2m1,
	"ue8m0": mmaUe8m0}

// isNarrow reports whether t is a pair or four of a narrow type.
func isNarrow(t string) bool {
	name, _, _ := strings.Cut(t, "x")
	_, ok := narrowTypes[name]
	return ok
}

// toNarrow decodes cvt to a narrow type, and cvt with stochastic rounding.
func (d *decoder) toNarrow(dst, src string) {
	name, count, _ := strings.Cut(dst, "x")
	kind, ok := narrowTypes[name]
	if name == "f16" || name == "bf16" {
		kind, ok = mmaTypes[name], true
	}
	random := d.has("rs")
	from, ok2 := map[string]int32{"f32": narrowF32x2, "f16x2": narrowF16x2, "bf16x2": narrowBf16x2}[src]
	if !ok || !ok2 || count != "2" && !(random && count == "4") || random && src != "f32" {
		d.lack(d.in.Op)
	}
	in := inst{op: opCvtNarrow, kind: kind, n: from, d: d.dst(d.arg(0), "b32")}
	for flag, bit := range map[string]int64{"relu": narrowRelu, "rp": narrowUp, "satfinite": narrowFinite} {
		if d.has(flag) {
			in.imm |= bit
		}
	}
	values := d.in.Args[1:]
	if random {
		bits := d.src(values[len(values)-1], "b32")
		if values = values[:len(values)-1]; count == "4" {
			values = values[0].Elems
		}
		var all []int32
		for _, v := range values {
			all = append(all, d.src(v, src))
		}
		in.n, in.imm = narrowRandom, in.imm|int64(len(all))<<8
		in.x = d.more(all[len(all)-2], all[len(all)-1], bits)
	}
	in.a = d.src(values[0], src)
	in.b = in.a
	if len(values) > 1 {
		in.b = d.src(values[1], src)
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
