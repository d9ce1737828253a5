//go:build linux && cgo

package vgpu

import (
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
			if d.parts[0] != "cvt" {
				d.lack(d.in.Op)
			}
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
	d.three(either(d.parts[0] == "dp4a", opDp4a, opDp2a), "b32").kind = kind
}

var numberTests = map[string]uint8{"finite": testFinite, "infinite": testInfinite, "number": testNumber,
	"notanumber": testNotanumber, "normal": testNormal, "subnormal": testSubnormal}

func (d *decoder) testp() {
	t := d.typ(0)
	d.emit(inst{op: d.of(testpOf, t), kind: d.required(numberTests), a: d.src(d.arg(1), t), d: d.dst(d.arg(0), "pred")})
}

func (d *decoder) arith() {
	name, t := d.parts[0], d.typ(0)
	if d.typ(1) == "f32" && (t == "f16" || t == "bf16") {
		d.mixed(name, t)
		return
	}
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
		if flags == flagFtz && name != "div" {
			d.two(d.of(floatOps[name+".ftz"], "f32"), "f32")
			return
		}
		if plain || name == "div" && approx && !ftz {
			d.two(d.of(floatOps[name], "f32"), "f32")
			return
		}
	case "fma", "mad":
		if plain || flags == flagFtz {
			d.three(either(ftz, opFmaFtzF32, opFmaF32), "f32")
			return
		}
	case "min", "max":
		if d.has("xorsign") {
			d.xorsign(name, opFArith, opAbsF32, opXorsign32, opSignF32, flags)
			return
		}
		if len(d.in.Args) > 3 {
			if d.has("NaN") || ftz {
				if d.has("NaN") {
					name += ".nan"
				}
				a, b, c, tmp := d.src(d.arg(1), "f32"), d.src(d.arg(2), "f32"), d.src(d.arg(3), "f32"), d.newReg(false)
				d.emit(inst{op: opFArith, kind: arithmetic[name], imm: int64(flags), a: a, b: b, c: a, d: tmp})
				d.emit(inst{op: opFArith, kind: arithmetic[name], imm: int64(flags), a: tmp, b: c, c: tmp,
					d: d.dst(d.arg(0), "f32")})
				return
			}
			d.three(either(name == "min", opMin3F32, opMax3F32), "f32")
			return
		}
		if d.has("NaN") {
			name += ".nan"
		} else if flags == flagFtz {
			d.two(d.of(floatOps[name+".ftz"], "f32"), "f32")
			return
		}
		if plain {
			d.two(d.of(floatOps[name], "f32"), "f32")
			return
		}
	case "neg", "abs":
		if plain || flags == flagFtz {
			if ftz {
				name += ".ftz"
			}
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

// mixed decodes add, sub and fma of float32 whose first operand, or first two in fma, are of type t: f16 or bf16.
func (d *decoder) mixed(name, t string) {
	widened := func(i int) int32 {
		to := d.newReg(false)
		d.emit(inst{op: fastCvt[[2]string{"f32", t}], a: d.src(d.arg(i), t), d: to})
		return to
	}
	in := inst{op: opFArith, kind: arithmetic[name], imm: int64(d.modes()), a: widened(1)}
	if name == "fma" {
		in.b, in.c = widened(2), d.src(d.arg(3), "f32")
	} else {
		in.b, in.c = d.src(d.arg(2), "f32"), in.a
	}
	switch {
	case in.imm == 0 && name == "fma":
		in.op = opFmaF32
	case in.imm == 0:
		in.op = d.of(floatOps[name], "f32")
	}
	in.d = d.dst(d.arg(0), "f32")
	d.emit(in)
}

// floatOps holds the opcodes of floating-point arithmetic by type.
var floatOps = map[string]map[string]opcode{"add": addOf, "sub": subOf, "mul": mulOf, "div": divOf, "fma": fmaOf,
	"mad": fmaOf, "min": minOf, "max": maxOf, "min.nan": minNanOf, "max.nan": maxNanOf, "neg": negOf, "abs": absOf,
	"add.ftz": addFtzOf, "sub.ftz": subFtzOf, "mul.ftz": mulFtzOf, "min.ftz": minFtzOf, "max.ftz": maxFtzOf,
	"neg.ftz": negFtzOf, "abs.ftz": absFtzOf, "rcp": rcpOf, "sqrt": sqrtOf, "rsqrt": rsqrtOf, "ex2": ex2Of,
	"lg2": lg2Of, "rcp.ftz": rcpFtzOf, "sqrt.ftz": sqrtFtzOf, "rsqrt.ftz": rsqrtFtzOf, "ex2.ftz": ex2FtzOf,
	"lg2.ftz": lg2FtzOf, "sin": sinOf, "cos": cosOf, "tanh": tanhOf}

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
			d.emit(inst{op: opFlushF32, a: in.a, d: a})
			d.emit(inst{op: opFlushF32, a: in.b, d: b})
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
