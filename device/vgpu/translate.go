//go:build linux && cgo

package vgpu

import (
	"slices"
	"strconv"
	"strings"

	"fisub/device/vgpu/ptx"
)

// As in arith.h.
const (
	aFTZ, aSat, aRelu, aBF16, aX2, cInteger = 8, 16, 32, 64, 128, 64
)

var roundings = map[string]int{"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 4, "rni": 0, "rzi": 1, "rmi": 2, "rpi": 3}

// modes are the rounding and the other modifiers of arithmetic as flags.
func (d *decoder) modes() (flags int) {
	for _, p := range d.parts[1:] {
		if r, ok := roundings[p]; ok {
			flags |= r
			if strings.HasSuffix(p, "i") {
				flags |= cInteger
			}
		}
		switch p {
		case "ftz":
			flags |= aFTZ
		case "sat":
			flags |= aSat
		case "relu":
			flags |= aRelu
		case "rs":
			d.lack(d.in.Op)
		}
	}
	return flags
}

var arithmetic = map[string]uint8{"add": 0, "sub": 1, "mul": 2, "fma": 3, "mad": 3, "div": 4, "rcp": 5, "sqrt": 6,
	"min": 7, "max": 8,
	"min.nan": 9, "max.nan": 10, "ex2": 11, "tanh": 12, "rsqrt": 13, "neg": 14, "abs": 15}

var comparisons = map[string]uint8{"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "lo": 2, "ls": 3, "hi": 4,
	"hs":  5,
	"equ": 6, "neu": 7, "ltu": 8, "leu": 9, "gtu": 10, "geu": 11, "num": 12, "nan": 13}

func (d *decoder) translate() {
	switch name := d.parts[0]; name {
	case "mov":
		d.mov()
	case "add", "sub", "mul", "mul24", "mad", "mad24", "fma", "div", "rem", "min", "max", "abs", "neg", "rcp", "sqrt",
		"rsqrt", "sin",
		"cos", "lg2", "ex2", "tanh", "sad":
		d.arith(name)
	case "addc", "subc", "madc":
		d.withCarry(name)
	case "and", "or", "xor":
		t := d.typ(0)
		if t == "pred" {
			a, b := d.pred(d.arg(1)), int32(0)
			if d.arg(1).Negated && d.arg(2).Negated {
				d.emit(inst{op: ops["pmov"], d: d.scratch[6], a: a})
				a = d.scratch[6]
			}
			b = d.pred(d.arg(2))
			d.emit(inst{op: d.op("p" + name), a: a, b: b, d: d.dst(d.arg(0), t)})
			return
		}
		d.two(name+"_"+sizeName(widened(t)), t)
	case "not":
		t := d.typ(0)
		if t == "pred" {
			d.emit(inst{op: ops["pnot"], a: d.pred(d.arg(1)), d: d.dst(d.arg(0), t)})
			return
		}
		d.one("not_"+sizeName(t), t)
	case "cnot":
		d.one("cnot_"+sizeName(d.typ(0)), d.typ(0))
	case "shl", "shr":
		t := d.typ(0)
		n := "shl_" + sizeName(t)
		if name == "shr" {
			n = "shr_u" + sizeName(t)
			if t[0] == 's' {
				n = "shr_s" + sizeName(t)
			}
		}
		a, b := d.src(d.arg(1), t), d.src(d.arg(2), "u32")
		d.emit(inst{op: d.op(n), a: a, b: b, d: d.dst(d.arg(0), t)})
	case "shf":
		side := "shf_l_"
		if d.has("r") {
			side = "shf_r_"
		}
		mode := "wrap"
		if d.has("clamp") {
			mode = "clamp"
		}
		d.three(side+mode, "b32")
	case "popc", "clz", "brev":
		t := d.typ(0)
		res := "u32"
		if name == "brev" {
			res = t
		}
		d.emit(inst{op: d.op(name + "_" + sizeName(t)), a: d.src(d.arg(1), t), d: d.dst(d.arg(0), res)})
	case "bfind":
		n := "bfind_"
		if d.has("shiftamt") {
			n += "shiftamt_"
		}
		d.emit(inst{op: d.op(n + d.typ(0)), a: d.src(d.arg(1), d.typ(0)), d: d.dst(d.arg(0), "u32")})
	case "bfe":
		t := d.typ(0)
		a, b, c := d.src(d.arg(1), t), d.src(d.arg(2), "u32"), d.src(d.arg(3), "u32")
		d.emit(inst{op: d.op("bfe_" + t), a: a, b: b, c: c, d: d.dst(d.arg(0), t)})
	case "bfi":
		t := d.typ(0)
		a, b, c, e := d.src(d.arg(1), t), d.src(d.arg(2), t), d.src(d.arg(3), "u32"), d.src(d.arg(4), "u32")
		d.emit(inst{op: d.op("bfi_" + sizeName(t)), a: a, b: b, c: c, x: d.more(e), d: d.dst(d.arg(0), t)})
	case "bmsk":
		d.two("bmsk_"+d.parts[1], "b32")
	case "prmt":
		mode := slices.Index([]string{"b32", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}, d.parts[len(d.parts)-1])
		d.three("prmt", "b32")
		d.out.code[len(d.out.code)-1].kind = uint8(max(mode, 0))
	case "lop3":
		if d.has("BoolOp") || d.arg(0).Pair != nil {
			d.lack(d.in.Op)
		}
		d.three("lop3", "b32")
		d.out.code[len(d.out.code)-1].kind = uint8(d.arg(4).Int)
	case "dp4a", "dp2a":
		k := uint8(0)
		types := d.parts[len(d.parts)-2:]
		if types[0] == "s32" {
			k |= 1
		}
		if types[1] == "s32" {
			k |= 2
		}
		if d.has("hi") {
			k |= 4
		}
		d.three(name, "b32")
		d.out.code[len(d.out.code)-1].kind = k
	case "copysign":
		d.two("copysign_"+sizeName(d.typ(0)), d.typ(0))
	case "selp":
		t := d.typ(0)
		n := "selp_32"
		if wide(t) {
			n = "selp_64"
		}
		a, b := d.src(d.arg(1), t), d.src(d.arg(2), t)
		c := d.pred(d.arg(3))
		d.emit(inst{op: d.op(n), a: a, b: b, c: c, d: d.dst(d.arg(0), t)})
	case "slct":
		t := d.typ(1)
		n := "slct_" + sizeName(t)
		if d.typ(0) == "f32" {
			n = "slct_f32"
		}
		a, b, c := d.src(d.arg(1), t), d.src(d.arg(2), t), d.src(d.arg(3), d.typ(0))
		d.emit(inst{op: d.op(n), a: a, b: b, c: c, d: d.dst(d.arg(0), t)})
	case "setp", "set":
		d.compare(name)
	case "testp":
		kind := slices.Index([]string{"finite", "infinite", "number", "notanumber", "normal", "subnormal"}, d.parts[1])
		t := d.typ(0)
		d.emit(inst{op: d.op("testp_" + t), kind: uint8(kind), a: d.src(d.arg(1), t), d: d.dst(d.arg(0), "pred")})
	case "cvt":
		d.cvt()
	case "cvta":
		d.cvta()
	case "isspacep":
		kind := map[string]uint8{"global": spaceGlobal, "shared": spaceShared, "local": spaceLocal,
			"shared::cta":     spaceShared,
			"shared::cluster": spaceShared, "const": 9, "param": 9}[d.parts[1]]
		d.emit(inst{op: ops["isspacep"], kind: kind, a: d.src(d.arg(1), "u64"), d: d.dst(d.arg(0), "pred")})
	case "ld", "ldu", "st", "atom", "red":
		switch {
		case d.has("async"):
			d.storeAsync(name)
		case name == "atom" || name == "red":
			d.atom(name)
		default:
			d.memory(name)
		}
	case "wgmma":
		d.wgmma()
	case "tcgen05":
		d.tcgen05()
	case "createpolicy":
		d.policy()
	case "prefetch", "prefetchu", "applypriority", "discard", "pmevent", "setmaxnreg", "griddepcontrol", "tensormap":
		if name == "tensormap" {
			d.lack(d.in.Op)
		}
		d.emit(inst{op: ops["nop"]})
	case "membar", "fence":
		d.emit(inst{op: ops["fence"]})
	case "bra":
		at := d.label(d.arg(0))
		d.jumps = append(d.jumps, len(d.out.code))
		d.emit(inst{op: ops["bra"], imm: int64(at)})
	case "brx":
		table := d.f.Tables[d.arg(1).Name]
		in := inst{op: ops["brx"], a: d.src(d.arg(0), "u32"), n: int32(len(table))}
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
	case "call":
		d.call()
	case "ret":
		d.giveResults()
		d.emit(inst{op: ops[name]})
	case "exit", "trap", "brkpt":
		d.emit(inst{op: ops[name]})
	case "nanosleep":
		d.emit(inst{op: ops["nanosleep"], a: d.src(d.arg(0), "u32")})
	case "bar", "barrier":
		d.barrier()
	case "activemask":
		d.emit(inst{op: ops["activemask"], d: d.dst(d.arg(0), "b32")})
	case "vote", "match", "redux", "shfl", "elect":
		d.lanes(name)
	case "mma", "ldmatrix", "stmatrix", "movmatrix":
		d.matrix(name)
	case "wmma":
		d.wmma()
	case "mbarrier":
		d.mbarrier()
	case "cp":
		d.copyAsync()
	case "fns":
		a, b, c := d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32"), d.src(d.arg(3), "s32")
		d.emit(inst{op: ops["fns"], a: a, b: b, c: c, d: d.dst(d.arg(0), "b32")})
	case "szext":
		kind := uint8(0)
		if d.has("s32") {
			kind |= 1
		}
		if d.has("wrap") {
			kind |= 2
		}
		a, b := d.src(d.arg(1), "b32"), d.src(d.arg(2), "u32")
		d.emit(inst{op: ops["szext"], kind: kind, a: a, b: b, d: d.dst(d.arg(0), "b32")})
	case "vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vset":
		d.video(name)
	case "clusterlaunchcontrol":
		d.launchControl()
	case "mapa":
		n := "mapa_64"
		t := d.typ(0)
		if !wide(t) {
			n = "mapa_32"
		}
		a, b := d.src(d.arg(1), t), d.src(d.arg(2), "u32")
		d.emit(inst{op: d.op(n), a: a, b: b, d: d.dst(d.arg(0), t)})
	default:
		d.lack(d.in.Op)
	}
}

// halves are the two registers of 64 bits of a value of 128.
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

// widened is b32 for types of 16 bits, whose bitwise instructions are those of 32.
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
			d.emit(inst{op: ops["pconst"], imm: from.Int, d: d.dst(to, t)})
			return
		}
		d.emit(inst{op: ops["pmov"], a: d.pred(from), d: d.dst(to, t)})
		return
	}
	switch {
	case d.has("v2") || d.has("v4") || d.has("v8"):
		values, results := elements(from), elements(to)
		if len(values) != len(results) {
			d.lack(d.in.Op)
		}
		name := "mov_32"
		if wide(t) {
			name = "mov_64"
		}
		var between []int32 // a register may be on both sides
		for _, v := range values {
			between = append(between, d.newReg(wide(t)))
			d.emit(inst{op: ops[name], a: d.src(v, t), d: between[len(between)-1]})
		}
		for i, r := range results {
			if r.Kind != ptx.None {
				d.emit(inst{op: ops[name], a: between[i], d: d.dst(r, t)})
			}
		}
	case t == "b128":
		values, results := d.halves(from), d.halves(to)
		for i, v := range values {
			d.emit(inst{op: ops["mov_64"], a: d.src(v, "b64"), d: d.dst(results[i], "b64")})
		}
	case from.Kind == ptx.Vector && len(from.Elems) == 2 && width(t) == 4:
		a, b := d.src(from.Elems[0], "b16"), d.src(from.Elems[1], "b16")
		d.emit(inst{op: ops["pack_16"], a: a, b: b, d: d.dst(to, t)})
	case from.Kind == ptx.Vector && len(from.Elems) == 2 && width(t) == 8:
		a, b := d.src(from.Elems[0], "b32"), d.src(from.Elems[1], "b32")
		d.emit(inst{op: ops["pack_32"], a: a, b: b, d: d.dst(to, t)})
	case from.Kind == ptx.Vector && len(from.Elems) == 4 && width(t) == 8:
		lo, hi := d.newReg(false), d.newReg(false)
		d.emit(inst{op: ops["pack_16"], a: d.src(from.Elems[0], "b16"), b: d.src(from.Elems[1], "b16"), d: lo})
		d.emit(inst{op: ops["pack_16"], a: d.src(from.Elems[2], "b16"), b: d.src(from.Elems[3], "b16"), d: hi})
		d.emit(inst{op: ops["pack_32"], a: lo, b: hi, d: d.dst(to, t)})
	case from.Kind == ptx.Vector:
		d.lack(d.in.Op)
	case to.Kind == ptx.Vector:
		var names []string
		switch {
		case width(t) == 4 && len(to.Elems) == 2:
			names = []string{"lo16", "hi16"}
		case width(t) == 8 && len(to.Elems) == 2:
			names = []string{"mov_64_32", "hi32"}
		case width(t) == 8 && len(to.Elems) == 4:
			names = []string{"cvt_64_16", "b16_of_64_1", "", "b16_of_64_3"}
		default:
			d.lack(d.in.Op)
		}
		a := d.src(from, t)
		for i, e := range to.Elems {
			if e.Kind == ptx.None {
				continue
			}
			if names[i] == "" {
				d.emit(inst{op: ops["hi32"], a: a, d: d.dst(e, "b32")})
				d.emit(inst{op: ops["lo16"], a: d.dst(e, "b32"), d: d.dst(e, "b32")})
				continue
			}
			// a register that is taken apart may be among those that get the parts
			d.emit(inst{op: d.op(names[i]), a: a, d: d.dst(e, "b32")})
		}
	case from.Kind == ptx.Symbol:
		if v, ok := d.locals[from.Name]; ok {
			kind := uint8(0)
			if wide(t) {
				kind = 1
			}
			d.emit(inst{op: ops["local_address"], kind: kind, imm: int64(v.offset) + from.Int, d: d.dst(to, t)})
			return
		}
		fallthrough
	default:
		n := "mov_32"
		if wide(t) {
			n = "mov_64"
		}
		d.one(n, t)
	}
}

func (d *decoder) arith(name string) {
	t := d.typ(0)
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
		d.emit(inst{op: ops["f32x2"], kind: arithmetic[name], imm: int64(d.modes()), a: a, b: b, c: c,
			d: d.dst(d.arg(0), "b64")})
		return
	case "u16x2", "s16x2":
		d.pairs16(name, t)
		return
	case "":
		d.lack(d.in.Op)
	}
	size, s := sizeName(t), t[:1]
	if s == "b" {
		s = "u"
	}
	switch name {
	case "add", "sub":
		if d.has("cc") {
			d.withCarry(name)
			return
		}
		if d.has("sat") {
			d.two(name+"_sat_s32", t)
			return
		}
		d.two(name+"_"+size, t)
	case "neg":
		d.one("neg_"+size, t)
	case "abs":
		d.one("abs_"+t, t)
	case "min", "max", "div", "rem":
		if d.has("relu") {
			d.pairs16(name, t)
			return
		}
		if (name == "div" || name == "rem") && d.arg(2).Kind == ptx.Register {
			d.emit(inst{op: ops["nonzero"], a: d.src(d.arg(2), t), n: map[bool]int32{true: 1}[wide(t)]})
		}
		d.two(name+"_"+s+size, t)
	case "mul24", "mad24":
		form := "mul24_" + t
		if d.has("hi") {
			form = "mul24hi_" + t
		}
		if name == "mul24" {
			d.two(form, t)
			return
		}
		add := "add_32"
		if d.has("sat") {
			add = "add_sat_s32"
		}
		tmp := d.newReg(false)
		d.emit(inst{op: d.op(form), a: d.src(d.arg(1), t), b: d.src(d.arg(2), t), d: tmp})
		d.emit(inst{op: ops[add], a: tmp, b: d.src(d.arg(3), t), d: d.dst(d.arg(0), t)})
	case "sad":
		d.three("sad_"+t, t)
	case "mul", "mad":
		if d.has("cc") || d.has("sat") {
			if name == "mad" && d.has("cc") {
				d.withCarry(name)
				return
			}
			d.lack(d.in.Op)
		}
		form, res := "lo_"+size, t
		switch {
		case d.has("hi"):
			form = "hi_" + s + size
		case d.has("wide"):
			form = "wide_" + s + size
			res = s + strconv.Itoa(16*width(t))
		}
		a, b := d.src(d.arg(1), t), d.src(d.arg(2), t)
		if name == "mul" {
			d.emit(inst{op: d.op("mul" + form), a: a, b: b, d: d.dst(d.arg(0), res)})
			return
		}
		c := d.src(d.arg(3), res)
		if d.has("hi") && width(t) == 8 {
			tmp := d.newReg(true)
			d.emit(inst{op: d.op("mul" + form), a: a, b: b, d: tmp})
			d.emit(inst{op: ops["add_64"], a: tmp, b: c, d: d.dst(d.arg(0), res)})
			return
		}
		d.emit(inst{op: d.op("mad" + form), a: a, b: b, c: c, d: d.dst(d.arg(0), res)})
	default:
		d.lack(d.in.Op)
	}
}

// pairs16 decodes operations on pairs of integers of 16 bits, and min and max with relu.
func (d *decoder) pairs16(name, t string) {
	kind := slices.Index([]string{"add", "min", "max"}, name)
	if kind < 0 {
		d.lack(d.in.Op)
	}
	flags := 0
	if t[0] == 's' {
		flags |= 1
	}
	if d.has("relu") {
		flags |= 2
	}
	if t == "s32" {
		flags |= 4
	}
	a, b := d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
	d.emit(inst{op: ops["pair16"], kind: uint8(kind), imm: int64(flags), a: a, b: b, d: d.dst(d.arg(0), "b32")})
}

// withCarry decodes add.cc, addc and the like. Products are made first.
func (d *decoder) withCarry(name string) {
	t := d.typ(0)
	var kind uint8
	if width(t) == 8 {
		kind |= 8
	}
	if strings.HasPrefix(name, "sub") {
		kind |= 1
	}
	if strings.HasSuffix(name, "c") {
		kind |= 2
	}
	if d.has("cc") {
		kind |= 4
	}
	a, b := int32(0), int32(0)
	if strings.HasPrefix(name, "mad") {
		form := "lo_" + sizeName(t)
		if d.has("hi") {
			form = "hi_" + t
		}
		a = d.newReg(wide(t))
		d.emit(inst{op: d.op("mul" + form), a: d.src(d.arg(1), t), b: d.src(d.arg(2), t), d: a})
		b = d.src(d.arg(3), t)
	} else {
		a, b = d.src(d.arg(1), t), d.src(d.arg(2), t)
	}
	d.emit(inst{op: ops["addc"], kind: kind, a: a, b: b, c: d.carry, d: d.dst(d.arg(0), t)})
}

func (d *decoder) arithF32(name string) {
	flags := d.modes()
	ftz, plain := flags&aFTZ != 0, flags == 0
	approx := d.has("approx") || d.has("full")
	switch name {
	case "add", "sub", "mul", "div":
		if name == "div" && d.has("approx") && flags&^aFTZ == 0 {
			d.two(map[bool]string{false: "div_approx_f32", true: "div_approx_ftz_f32"}[ftz], "f32")
			return
		}
		if plain || name == "div" && approx && !ftz {
			d.two(name+"_f32", "f32")
			return
		}
	case "fma", "mad":
		if plain {
			d.three("fma_f32", "f32")
			return
		}
	case "min", "max":
		n := name
		if d.has("xorsign") {
			d.xorsign(name, "f_arith", "abs_f32", "xorsign_32", "f32", flags)
			return
		}
		if d.has("NaN") {
			n += "_nan"
			name += ".nan"
		}
		if len(d.in.Args) > 3 {
			if n != name || ftz {
				d.lack(d.in.Op)
			}
			d.three(n+"3_f32", "f32")
			return
		}
		if plain {
			d.two(n+"_f32", "f32")
			return
		}
	case "neg", "abs":
		if plain {
			d.one(name+"_f32", "f32")
			return
		}
	case "rcp", "sqrt", "rsqrt", "ex2", "lg2":
		if flags&^aFTZ == 0 && (approx || !ftz) {
			if ftz {
				d.one(name+"_ftz_f32", "f32")
			} else {
				d.one(name+"_f32", "f32")
			}
			return
		}
	case "sin", "cos", "tanh":
		d.one(name+"_f32", "f32")
		return
	}
	d.general("f_arith", name, "f32", flags)
}

// general emits the slow form of arithmetic, which knows every modifier.
func (d *decoder) general(op, name, t string, flags int) {
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
	d.emit(inst{op: d.op(op), kind: kind, imm: int64(flags), a: places[0], b: places[1], c: places[2],
		d: d.dst(d.arg(0), t)})
}

// xorsign emits min or max of two numbers' absolute values, with the sign of their product.
func (d *decoder) xorsign(name, op, abs, sign, typ string, flags int) {
	if d.has("NaN") {
		name += ".nan"
	}
	a, b := d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
	p, q, s := d.newReg(false), d.newReg(false), d.newReg(false)
	d.emit(inst{op: ops[sign], a: a, b: b, d: s})
	d.emit(inst{op: ops[abs], a: a, d: p})
	d.emit(inst{op: ops[abs], a: b, d: q})
	d.emit(inst{op: ops[op], kind: arithmetic[name], imm: int64(flags), a: p, b: q, c: p, d: p})
	d.emit(inst{op: ops["sign_"+strings.TrimSuffix(typ, "x2")], a: p, b: s, d: d.dst(d.arg(0), "b32")})
}

func (d *decoder) arithF64(name string) {
	flags := d.modes() &^ aFTZ
	if d.has("ftz") && (name == "rcp" || name == "rsqrt") {
		d.one(name+"_gross_f64", "f64")
		return
	}
	if flags == 0 {
		switch name {
		case "add", "sub", "mul", "div", "min", "max":
			d.two(name+"_f64", "f64")
			return
		case "fma", "mad":
			d.three("fma_f64", "f64")
			return
		case "neg", "abs", "rcp", "sqrt", "rsqrt":
			d.one(name+"_f64", "f64")
			return
		}
	}
	d.general("d_arith", name, "f64", flags)
}

func (d *decoder) arithHalf(name, t string) {
	flags := d.modes()
	if strings.HasPrefix(t, "bf16") {
		flags |= aBF16
	}
	if strings.HasSuffix(t, "x2") {
		flags |= aX2
	}
	if name == "neg" || name == "abs" {
		d.one(name+"_"+t, "b32")
		return
	}
	if d.has("NaN") {
		name += ".nan"
	}
	if d.has("xorsign") {
		d.xorsign(strings.TrimSuffix(name, ".nan"), "h_arith", "abs_"+strings.TrimSuffix(t, "x2")+"x2", "xorsign_h", t, flags)
		return
	}
	if len(d.in.Args) > 3 && name != "fma" {
		d.lack(d.in.Op)
	}
	op := "h_arith"
	if strings.HasPrefix(name, "min") || strings.HasPrefix(name, "max") {
		op = "h_choice"
	}
	d.general(op, name, "b32", flags)
}

func (d *decoder) compare(name string) {
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
		in.op, in.a, in.b = ops["setp_h"], d.src(d.arg(1), "b16"), d.src(d.arg(2), "b16")
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
		in.op, in.a, in.b = ops["setp_h"], d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
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
		n := t
		if t[0] == 'b' {
			n = "u" + t[1:]
		}
		in.op, in.a, in.b = d.op("setp_"+n), d.src(d.arg(1), t), d.src(d.arg(2), t)
		if t == "f32" && d.has("ftz") {
			a, b := d.newReg(false), d.newReg(false)
			for _, p := range [][2]int32{{in.a, a}, {in.b, b}} { // |x| + 0 with subnormals flushed
				d.emit(inst{op: ops["f_arith"], kind: arithmetic["abs"], imm: aFTZ, a: p[0], b: p[0], c: p[0], d: p[1]})
				d.emit(inst{op: ops["copysign_32"], a: p[0], b: p[1], d: p[1]})
			}
			in.a, in.b = a, b
		}
	}
	d.emit(in)
	if simple {
		return
	}
	combine := ""
	for _, b := range []string{"and", "or", "xor"} {
		if d.has(b) {
			combine = b
		}
	}
	both := res
	if combine != "" {
		c := d.pred(d.arg(3))
		both = d.scratch[1]
		d.emit(inst{op: d.op("p" + combine), a: res, b: c, d: both})
		if second := d.arg(0).Pair; second != nil && second.Kind != ptx.None {
			d.emit(inst{op: ops["pnot"], a: res, d: d.scratch[2]})
			d.emit(inst{op: d.op("p" + combine), a: d.scratch[2], b: c, d: d.scratch[2]})
			d.emit(inst{op: ops["pmov"], a: d.scratch[2], d: d.dst(*second, "pred")})
		}
	} else if second := d.arg(0).Pair; second != nil && second.Kind != ptx.None {
		d.emit(inst{op: ops["pnot"], a: res, d: d.dst(*second, "pred")})
	}
	if name == "setp" {
		if d.arg(0).Kind != ptx.None {
			d.emit(inst{op: ops["pmov"], a: both, d: d.dst(d.arg(0), "pred")})
		}
		return
	}
	d.emit(inst{op: ops["selp_32"], a: d.constant(d.truth(), false), b: d.constant(0, false), c: both,
		d: d.dst(d.arg(0), "b32")})
}

// truth returns the result of a set whose comparison holds: 1 of a floating-point type, all bits of an integer type. A
// pair has it in each half.
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

// setPair decodes set of pairs of halves: 1 or all bits of each half of the result.
func (d *decoder) setPair(in inst, t string) {
	if len(d.in.Args) > 3 {
		d.lack(d.in.Op)
	}
	in.op, in.a, in.b = ops["setp_h"], d.src(d.arg(1), "b32"), d.src(d.arg(2), "b32")
	if t == "bf16x2" {
		in.imm = 1
	}
	yes := d.truth() & 0xffff
	lo, hi := d.newReg(false), d.newReg(false)
	for i, to := range []int32{lo, hi} {
		in.d, in.n = d.scratch[i], int32(16*i)
		d.emit(in)
		d.emit(inst{op: ops["selp_32"], a: d.constant(yes, false), b: d.constant(0, false), c: d.scratch[i], d: to})
	}
	d.emit(inst{op: ops["pack_16"], a: lo, b: hi, d: d.dst(d.arg(0), "b32")})
}

// types are the codes of types of cvt, as in arith.h.
var types = map[string]int{"u8": 0, "u16": 1, "u32": 2, "u64": 3, "s8": 4, "s16": 5, "s32": 6, "s64": 7, "f16": 8,
	"bf16": 9, "f32": 10,
	"f64": 11, "tf32": 12}

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
		in := inst{op: ops["cvt_fp8x2"], d: d.dst(to, "b16"), a: d.src(d.arg(1), src)}
		in.b = in.a
		if src == "f16x2" {
			in.n = 1
		} else {
			in.b = d.src(d.arg(2), src)
		}
		if dst == "e5m2x2" {
			in.kind = 1
		}
		in.imm = int64(flags & aRelu)
		d.emit(in)
		return
	case dst == "f16x2" && (src == "e4m3x2" || src == "e5m2x2"):
		in := inst{op: ops["cvt_from_fp8x2"], d: d.dst(to, "b32"), a: d.src(d.arg(1), "b16"), imm: int64(flags & aRelu)}
		if src == "e5m2x2" {
			in.kind = 1
		}
		d.emit(in)
		return
	case (dst == "f16x2" || dst == "bf16x2") && src == "f32":
		a, b := d.src(d.arg(1), src), d.src(d.arg(2), src)
		in := inst{op: ops["cvt_"+dst+"_f32"], a: a, b: b, d: d.dst(to, "b32")}
		if flags != 0 || d.has("satfinite") {
			if d.has("satfinite") {
				d.lack(d.in.Op)
			}
			in.op = ops["cvt_pack"]
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
	fast := ""
	if flags == 0 || flags == 1 && false {
		switch {
		case dst == "f32" && (src == "s32" || src == "u32") && !fromWide:
			fast = "cvt_f32_" + src
		case dst == "f32" && src == "bf16":
			fast = "cvt_f32_bf16"
		case dst == "f32" && src == "f16":
			fast = "cvt_f32_f16"
		case dst == "bf16" && src == "f32":
			fast = "cvt_bf16_f32"
		case dst == "f16" && src == "f32":
			fast = "cvt_f16_f32"
		case dst == "f64" && src == "f32":
			fast = "cvt_f64_f32"
		case dst == "f64" && (src == "s32" || src == "u32"):
			fast = "cvt_f64_" + src
		case dt <= 7 && st <= 7:
			fast = d.integerCvt(dst, src, toWide, fromWide, d.width16(to))
		}
	}
	if fast != "" {
		d.emit(inst{op: d.op(fast), a: a, d: d.dst(to, dst)})
		return
	}
	in := inst{op: ops["cvt"], a: a, d: d.dst(to, dst), imm: int64(dt | st<<8 | flags<<16)}
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
		kind |= 32
	}
	if src[0] == 'u' {
		kind |= 64
	}
	c := d.constant(0, false)
	if len(d.in.Args) > 3 {
		c = d.src(d.arg(3), "b32")
	}
	a, b := d.src(d.arg(1), src), d.src(d.arg(2), src)
	d.emit(inst{op: ops["cvt_sat_pack"], kind: uint8(kind), a: a, b: b, c: c, d: d.dst(d.arg(0), "b32")})
}

// video decodes the scalar video instructions: vop.dtype.atype.btype{.sat}{.mode}{.op2} d{.sel}, a{.sel}, b{.sel}{, c}.
func (d *decoder) video(name string) {
	kind := slices.Index([]string{"vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vset"}, name)
	parts := d.parts[1:]
	imm := 0
	if name == "vset" {
		cmp := slices.Index([]string{"eq", "ne", "lt", "le", "gt", "ge"}, parts[len(parts)-1])
		for i, p := range parts {
			if at := slices.Index([]string{"eq", "ne", "lt", "le", "gt", "ge"}, p); at >= 0 {
				cmp = at
				parts = slices.Delete(slices.Clone(parts), i, i+1)
				break
			}
		}
		if cmp < 0 {
			d.lack(d.in.Op)
		}
		imm |= cmp << 20
		parts = append([]string{"u32"}, parts...)
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
	d.emit(inst{op: ops["video"], kind: uint8(kind), imm: int64(imm), a: a, b: b, c: c, d: d.dst(d.arg(0), "b32")})
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

// integerCvt is the instruction for a conversion between integers without saturation, "" where it is left to the
// general one.
func (d *decoder) integerCvt(dst, src string, toWide, fromWide, to16 bool) string {
	dw, sw := width(dst), width(src)
	if fromWide {
		if sw < 8 {
			return ""
		}
		switch {
		case dw == 8 && toWide:
			return "mov_64"
		case dw == 4 && !toWide:
			return "mov_64_32"
		case dw == 2 && !toWide && to16:
			return "cvt_64_16"
		}
		return ""
	}
	if toWide {
		if dw == 8 && sw <= 4 {
			return "cvt_" + src + "_64"
		}
		return ""
	}
	// both in places of 32 bits: the narrower of the two types decides
	if to16 {
		if dw == 2 && sw >= 2 || dw == 2 && src == "u8" {
			if src == "u8" {
				return "cvt_u8_32"
			}
			return "cvt_u16_32"
		}
		if dw == 2 && src == "s8" || dst == "s8" {
			return "cvt_s8_16"
		}
		if dst == "u8" {
			return "cvt_u8_32"
		}
		return ""
	}
	if dw == 4 {
		if sw == 4 {
			return "mov_32"
		}
		return "cvt_" + src + "_32"
	}
	if sw >= dw {
		return "cvt_" + dst + "_32"
	}
	return ""
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
	name := "mov_64"
	if space == "shared" || space == "local" {
		name = "cvta_" + space
		if to {
			name = "cvta_to_" + space
		}
	}
	from := d.arg(1)
	if v, ok := d.locals[from.Name]; ok && from.Kind == ptx.Symbol {
		tmp := d.newReg(true)
		d.emit(inst{op: ops["local_address"], kind: 1, imm: int64(v.offset) + from.Int, d: tmp})
		d.emit(inst{op: d.op(name), a: tmp, d: d.dst(d.arg(0), "b64")})
		return
	}
	d.one(name, "b64")
}

// policy decodes createpolicy with the encoding of libcu++'s access_property_encoding.h: the virtual GPU has no L2, but
// programs compare policies.
func (d *decoder) policy() {
	in := inst{op: ops["policy"], d: d.dst(d.arg(0), "b64")}
	shift := 57 // of the primary hint; the secondary one has a single bit below it
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
		in.op, in.a = ops["mov_64"], d.src(d.arg(1), "b64")
	}
	d.emit(in)
}

// addressed gives an instruction the address in o: place, offset, and whether the place has 32 bits.
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
			d.emit(inst{op: ops["local_address"], kind: 1, imm: int64(v.offset), d: in.a})
			return
		}
		in.a = d.constant(d.address(base), true)
	default:
		d.lack(d.in.Op)
	}
}

// space is that of a memory instruction by its name; -1 is the parameters'.
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

// spaceOf is the space of a memory instruction with that address: a generic address that names a variable is in the
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

func (d *decoder) memory(name string) {
	t := d.typ(0)
	if d.has("unified") {
		d.lack(d.in.Op)
	}
	value, address := d.arg(0), d.arg(1)
	if name == "st" {
		value, address = address, value
	}
	elems := elements(value)
	if t == "b128" { // as pairs
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
	prefix := "ld_"
	if name == "st" {
		prefix = "st_"
	}
	if space < 0 {
		if d.f.Entry && name != "st" && address.Elems[0].Kind == ptx.Symbol {
			at := 0
			for _, v := range d.f.Params {
				at = aligned(at, v)
				if v.Name == address.Elems[0].Name {
					in.op, in.imm, in.x = ops["ldparam"], int64(at)+address.Int, d.more(places...)
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
	in.op = d.op(prefix + []string{"generic", "global", "shared", "local"}[space])
	in.x = d.more(places...)
	d.emit(in)
}

func (d *decoder) atom(name string) {
	kind := -1
	for _, p := range d.parts[1:] {
		if i := slices.Index([]string{"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"}, p); i >= 0 {
			kind = i
		}
	}
	t := d.typ(0)
	if kind < 0 || d.has("async") || t == "b128" {
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
	if kind == 7 {
		second = d.src(args[2], t)
	}
	var base inst
	d.addressed(&base, args[0])
	// Of a vector each element is added by itself, as on a GPU.
	for i, v := range values {
		in := inst{op: ops["atom"], kind: uint8(kind | code<<4), d: -1, a: base.a, c: int32(width(t)) | base.c,
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

// elements are those of a vector, or the operand alone.
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
			d.emit(inst{op: ops["vprintf"], x: d.more(int32(offset(params[0]).offset), int32(offset(params[1]).offset), result)})
			return
		case "__assertfail":
			d.emit(inst{op: ops["assertfail"], x: d.more(int32(offset(params[0]).offset), int32(offset(params[1]).offset),
				int32(offset(params[2]).offset))})
			return
		case "malloc":
			d.p.heap = true
			d.emit(inst{op: ops["malloc"], x: d.more(int32(offset(results[0]).offset), int32(offset(params[0]).offset))})
			return
		case "free":
			d.p.heap = true
			d.emit(inst{op: ops["free"], x: d.more(int32(offset(params[0]).offset))})
			return
		}
	}
	in := inst{op: ops["call"]}
	var callee *ptx.Func
	if target.Kind == ptx.Register {
		in.op, in.a = ops["calli"], d.regs[target.Reg]
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
	// Of a prototype the places are those that any function of it has: parameters come first, then results.
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
	// What is in registers goes through local memory of this function.
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

// callValue is the place of an argument of a call that is no variable.
func (d *decoder) callValue(o ptx.Operand, typ string) int32 {
	if typ == "pred" {
		return d.pred(o)
	}
	return d.src(o, typ)
}

// part is the place of element i of a vector of that type.
func (v variable) part(i int, typ string) variable {
	size := max(width(typ), 1)
	return variable{v.offset + i*size, size}
}

// temporary is a place of n bytes in the function's local memory.
func (d *decoder) temporary(n int) variable {
	v := variable{d.out.localSize, n}
	d.out.localSize += (n + 15) / 16 * 16
	return v
}

// local is the instruction that loads or stores a value of that type in a place of local memory.
func (d *decoder) local(op string, v variable, reg int32, typ string) {
	in := inst{op: ops[op], n: 1, c: int32(max(width(typ), 1)), a: d.newReg(true)}
	d.emit(inst{op: ops["local_address"], kind: 1, imm: int64(v.offset), d: in.a})
	if wide(typ) {
		in.c |= m64
	}
	in.x = d.more(reg)
	d.emit(in)
}

// keep stores the value in a register in local memory; fetch loads it. Predicates become words.
func (d *decoder) keep(v variable, reg int32, typ string) {
	if typ == "pred" {
		word := d.newReg(false)
		d.emit(inst{op: ops["selp_32"], a: d.constant(1, false), b: d.constant(0, false), c: reg, d: word})
		reg, typ = word, "b32"
	}
	d.local("st_local", v, reg, typ)
}

func (d *decoder) fetch(reg int32, v variable, typ string) {
	if typ == "pred" {
		word := d.newReg(false)
		d.local("ld_local", v, word, "b32")
		d.emit(inst{op: ops["setp_u32"], kind: comparisons["ne"], a: word, b: d.constant(0, false), d: reg})
		return
	}
	d.local("ld_local", v, reg, typ)
}

// receive loads the parameters of a function that are in registers, giveResults stores such results.
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

// registersOf finds the registers that a parameter or result of a function is in: none if it is in memory.
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

// launchControl decodes clusterlaunchcontrol. A request to cancel the launch of another cluster always fails, which the
// PTX ISA permits: the response is 16 zero bytes.
func (d *decoder) launchControl() {
	switch {
	case d.has("try_cancel"):
		in := inst{op: ops["st_async"], kind: 255, c: 8, n: 2}
		if d.hasPrefix("multicast") {
			in.kind = 254
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
		d.emit(inst{op: ops["pconst"], d: d.dst(d.arg(0), "pred")})
	case d.hasPrefix("get_first_ctaid"):
		for _, e := range elements(d.arg(0)) {
			d.emit(inst{op: ops["mov_32"], a: d.constant(0, false), d: d.dst(e, "b32")})
		}
	default:
		d.lack(d.in.Op)
	}
}
