//go:build linux && cgo

package vgpu

import (
	"slices"
	"strings"

	"fisub/device/vgpu/ptx"
)

func (d *decoder) isspacep() {
	kind, ok := map[string]uint8{"global": spaceGlobal, "shared": spaceShared, "local": spaceLocal,
		"shared::cta": spaceShared, "shared::cluster": spaceShared}[d.parts[1]]
	if !ok { // const and param: they contain no generic addresses
		kind = spaceOutside
	}
	d.emit(inst{op: opIsspacep, kind: kind, a: d.src(d.arg(1), "u64"), d: d.dst(d.arg(0), "pred")})
}

func (d *decoder) fence() {
	in := inst{op: opFence}
	switch {
	case d.hasPrefix("tensormap") && !d.has("release"):
		in.kind = fenceTensormap
	case d.has("proxy") && d.hasPrefix("async"):
		in.kind = fenceProxy
	}
	d.emit(in)
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

// sameAddress reports whether two operands are the same register or symbol with the same offset.
func sameAddress(a, b ptx.Operand) bool {
	return a.Kind == b.Kind && a.Int == b.Int && len(a.Elems) == 1 && len(b.Elems) == 1 &&
		a.Elems[0].Kind == b.Elems[0].Kind && a.Elems[0].Reg == b.Elems[0].Reg && a.Elems[0].Name == b.Elems[0].Name
}

// swappedIn returns the addresses of compare-and-swaps in a function.
func swappedIn(f *ptx.Func) (all []ptx.Operand) {
	for _, in := range f.Body {
		if strings.HasPrefix(in.Op, "atom.") && strings.Contains(in.Op, ".cas.") && len(in.Args) > 1 {
			all = append(all, in.Args[1])
		}
	}
	return all
}

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
	// The first read of a loop around compare-and-swap, as in CUDA's programming guide: a stale value only costs a turn.
	if name != "st" && slices.ContainsFunc(d.swapped, func(o ptx.Operand) bool { return sameAddress(o, address) }) {
		in.c |= mStrong
	}
	if d.has("release") || d.has("volatile") {
		in.c |= mRelease
	}
	var places []int32
	for _, e := range elems {
		if name != "st" && (e.Kind == ptx.None || len(elems) > 1 && d.reads != nil && !d.isRead(e)) {
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
	in.kind = quickKind(&in, space, places)
	d.emit(in)
	if name == "st" && d.keeps(d.in) {
		d.marks(in, space, elems)
	}
}

// quickKind returns the number of a function for a load or store in quick.h, or 0 without one.
func quickKind(in *inst, space int, places []int32) uint8 {
	shapes := [][2]int32{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}, {4, 4}, {8, 1}, {8, 2}}
	i := slices.Index(shapes, [2]int32{in.c & 31, in.n}) // the size of an element and their number
	whole := in.n > 1 && in.c&mStrong != 0               // copied at once, see memory.h
	if i < 0 || whole || slices.Contains(places, -1) || space == spaceLocal || (in.c&31 == 8) != (in.c&m64 != 0) {
		return 0
	}
	mode := space
	if in.c&mAddr32 != 0 {
		if space != spaceShared {
			return 0
		}
		mode++
	}
	return uint8(1 + i + len(shapes)*mode)
}

// isRead reports whether an instruction reads the register e.
func (d *decoder) isRead(e ptx.Operand) bool {
	return e.Kind != ptx.Register || e.Reg >= len(d.reads) || d.reads[e.Reg]
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
	d.p.atomics = true
	args := d.in.Args
	result := []ptx.Operand{{Kind: ptx.None}}
	if name == "atom" {
		result, args = elements(args[0]), args[1:]
	}
	var base inst
	d.addressed(&base, args[0])
	if d.has("release") || d.has("acq_rel") {
		base.c |= mRelease
	}
	if t == "b128" { // as pairs of 64-bit registers
		b := d.halves(args[1])
		in := inst{op: opAtom, kind: kind, d: -1, a: base.a, b: d.src(b[0], "b64"), c: 16 | base.c, imm: base.imm}
		places := []int32{int32(d.spaceOf(args[0])), -1, d.src(b[1], "b64"), -1, -1}
		if kind == atomicCas {
			c := d.halves(args[2])
			places[1], places[3] = d.src(c[0], "b64"), d.src(c[1], "b64")
		}
		if result[0].Kind != ptx.None && d.isRead(result[0]) {
			to := d.halves(result[0])
			in.d, places[4] = d.dst(to[0], "b64"), d.dst(to[1], "b64")
		}
		in.x = d.more(places...)
		d.emit(in)
		return
	}
	values := elements(args[1])
	second := int32(-1)
	if kind == atomicCas {
		second = d.src(args[2], t)
	}
	code, ok := types[strings.TrimSuffix(t, "x2")]
	if !ok {
		code = types["u"+t[1:]]
	}
	// The elements of a vector are separate atomics, as on a GPU.
	for i, v := range values {
		in := inst{op: opAtom, kind: kind | uint8(code)<<4, d: -1, a: base.a, c: int32(width(t)) | base.c,
			imm: base.imm + int64(i*width(t)), b: d.src(v, t)}
		if i < len(result) && result[i].Kind != ptx.None && d.isRead(result[i]) {
			in.d = d.dst(result[i], t)
		}
		if kind == atomicExch && in.d < 0 {
			in.n = 1
		}
		in.x = d.more(int32(d.spaceOf(args[0])), second)
		d.emit(in)
	}
}
