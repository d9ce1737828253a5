//go:build linux && cgo

package vgpu

import (
	"slices"

	"fisub/device/vgpu/ptx"
)

// PTX does not document the layout of wmma's fragments. Here it is the layout for mma m16n8k16 (tf32: m16n8k8): row and
// column of an element are lane/4 and lane%4*step, in either order, plus a constant.

// An element is a position in a fragment. If byGroup, the row depends on lane/4 and the column on lane%4, else vice
// versa.
type element struct {
	byGroup  bool
	row, col int // constants to add
}

// fragment returns the elements in register r of matrix a, b, c or d.
func fragment(matrix string, shape, typ string, r int) []element {
	each := 4 / width(typ)
	wideM, wideN := shape == "m32n8k16", shape == "m8n32k16"
	left := func(r int) (all []element) { // m16 x k: rows by group
		for i := range each {
			all = append(all, element{true, 8 * (r & 1), i + r>>1*4*each})
		}
		return all
	}
	right := func(r int) (all []element) { // k x n8: columns by group
		for i := range each {
			all = append(all, element{false, i + r*4*each, 0})
		}
		return all
	}
	sum := func(r int) (all []element) { // m16 x n8
		if width(typ) == 2 {
			return []element{{true, 8 * r, 0}, {true, 8 * r, 1}}
		}
		return []element{{true, 8 * (r >> 1), r & 1}}
	}
	moved := func(all []element, row, col int) []element {
		for i := range all {
			all[i].row += row
			all[i].col += col
		}
		return all
	}
	turned := func(all []element) []element {
		for i, e := range all {
			all[i] = element{!e.byGroup, e.col, e.row}
		}
		return all
	}
	na, nb := 4, 2 // registers of a and b per mma
	if each == 4 {
		na, nb = 2, 1
	}
	block := 4 // registers of c and d per mma
	if matrix != "a" && matrix != "b" && width(typ) == 2 {
		block = 2
	}
	switch {
	case matrix == "a" && wideN: // compute the transposed product: a is the right operand
		return turned(right(r % nb))
	case matrix == "b" && wideN:
		return turned(moved(left(r%na), r/na*16, 0))
	case matrix == "a" && wideM:
		return moved(left(r%na), r/na*16, 0)
	case matrix == "a":
		return left(r % na)
	case matrix == "b" && wideM:
		return right(r % nb)
	case matrix == "b":
		return moved(right(r%nb), 0, r/nb%2*8)
	case wideM:
		return moved(sum(r%block), r/block*16, 0)
	case wideN:
		return turned(moved(sum(r%block), r/block*16, 0))
	}
	return moved(sum(r%block), 0, r/block*8)
}

func (d *decoder) wmma() {
	var shape string
	for _, s := range []string{"m16n16k16", "m32n8k16", "m8n32k16", "m16n16k8"} {
		if d.has(s) {
			shape = s
		}
	}
	if d.has("m8n8k4") && d.has("f64") {
		d.wmmaF64()
		return
	}
	if shape == "" {
		d.lack(d.in.Op)
	}
	switch d.parts[1] {
	case "load":
		d.wmmaMove(d.parts[2], shape, d.arg(0), d.arg(1), 2)
	case "store":
		d.wmmaMove(d.parts[2], shape, d.arg(1), d.arg(0), 2)
	case "mma":
		d.wmmaMultiply(shape)
	default:
		d.lack(d.in.Op)
	}
}

// wmmaMove loads or stores a fragment.
func (d *decoder) wmmaMove(matrix, shape string, regs, address ptx.Operand, strideAt int) {
	typ := d.typ(0)
	if d.has("tf32") {
		typ = "tf32"
	}
	if w := width(typ); w != 2 && w != 4 && typ != "s8" && typ != "u8" {
		d.lack(d.in.Op)
	}
	rowMajor := d.has("row")
	var m, n, k int
	switch shape {
	case "m32n8k16":
		m, n, k = 32, 8, 16
	case "m8n32k16":
		m, n, k = 8, 32, 16
	case "m16n16k8":
		m, n, k = 16, 16, 8
	default:
		m, n, k = 16, 16, 16
	}
	rows, cols := m, n
	switch matrix {
	case "a":
		cols = k
	case "b":
		rows = k
	}
	leading := rows
	if rowMajor {
		leading = cols
	}
	stride := d.constant(uint64(leading), false)
	if strideAt < len(d.in.Args) {
		stride = d.src(d.arg(strideAt), "u32")
	}
	var base inst
	d.addressed(&base, address)
	size := width(typ)
	lane := int32(srLaneid*256<<2 | inWarp)
	group, inGroup := d.newReg(false), d.newReg(false)
	d.emit(inst{op: opShrU32, a: lane, b: d.constant(2, false), d: group})
	d.emit(inst{op: opAnd32, a: lane, b: d.constant(3, false), d: inGroup})
	step := 4 / size // adjacent elements per lane
	if matrix == "c" || matrix == "d" {
		step = 2
	}
	if step > 1 {
		d.emit(inst{op: opShl32, a: inGroup, b: d.constant(uint64(step/2), false), d: inGroup})
	}
	space, stores := d.space(), d.parts[1] == "store"
	op := either(stores, storeOps[space], loadOps[space])
	row, col, index := d.newReg(false), d.newReg(false), d.newReg(false)
	// access loads or stores values of the given bytes, the first one at the position of element e.
	access := func(e element, bytes int, places ...int32) {
		r, c := inGroup, group
		if e.byGroup {
			r, c = group, inGroup
		}
		d.emit(inst{op: opAdd32, a: r, b: d.constant(uint64(e.row), false), d: row})
		d.emit(inst{op: opAdd32, a: c, b: d.constant(uint64(e.col), false), d: col})
		major, minor := col, row
		if rowMajor {
			major, minor = row, col
		}
		d.emit(inst{op: opMadlo32, a: major, b: stride, c: minor, d: index})
		in := inst{op: op, imm: base.imm, n: int32(len(places)), c: int32(bytes) | base.c&mAddr32}
		if base.c&mAddr32 != 0 {
			in.a = d.newReg(false)
			d.emit(inst{op: opMadlo32, a: index, b: d.constant(uint64(size), false), c: base.a, d: in.a})
		} else {
			in.a = d.newReg(true)
			d.emit(inst{op: opMadwideU32, a: index, b: d.constant(uint64(size), false), c: base.a, d: in.a})
		}
		in.x = d.more(places...)
		d.emit(in)
	}
	// Registers with the same elements are loaded once, and two adjacent words are accessed at once, as a GPU does.
	var all [][]element
	var places []int32
	for r, o := range regs.Elems {
		all, places = append(all, fragment(matrix, shape, typ, r)), append(places, d.src(o, "b32"))
	}
	for r, place := range places {
		elems := all[r]
		if i := slices.IndexFunc(all[:r], func(o []element) bool { return slices.Equal(o, elems) }); i >= 0 && !stores {
			d.emit(inst{op: opMov32, a: places[i], d: place})
			continue
		}
		if len(elems) == 1 {
			pair := func(a, b element) bool { return a.byGroup == b.byGroup && adjacent(a, b, rowMajor) }
			switch {
			case r%2 == 0 && r+1 < len(all) && pair(elems[0], all[r+1][0]):
				access(elems[0], 4, place, places[r+1])
			case r%2 == 0 || !pair(all[r-1][0], elems[0]):
				access(elems[0], 4, place)
			}
			continue
		}
		along := elems[1].col != elems[0].col
		if along == rowMajor {
			access(elems[0], 4, place)
			continue
		}
		if len(elems) == 4 { // bytes of a or b, which are never stored
			d.emit(inst{op: opMov32, a: d.constant(0, false), d: place})
			byte, at := d.newReg(false), d.newReg(false)
			for i, e := range elems {
				access(e, 1, byte)
				d.emit(inst{op: opShl32, a: byte, b: d.constant(uint64(8*i), false), d: at})
				d.emit(inst{op: opOr32, a: place, b: at, d: place})
			}
			continue
		}
		turned := element{!elems[0].byGroup, elems[0].row, elems[0].col} // of the transposed 8 x 8 matrix
		if stores {
			word := d.newReg(false)
			d.emit(inst{op: opMovmatrix, a: place, d: word, want: -1})
			access(turned, 4, word)
		} else {
			access(turned, 4, place)
			d.emit(inst{op: opMovmatrix, a: place, d: place, want: -1})
		}
	}
}

// adjacent reports whether element b follows a in memory.
func adjacent(a, b element, rowMajor bool) bool {
	if rowMajor {
		return b.row == a.row && b.col == a.col+1
	}
	return b.col == a.col && b.row == a.row+1
}

// wmmaMultiply emits two mma for one wmma.
func (d *decoder) wmmaMultiply(shape string) {
	var kinds []string
	for _, p := range d.parts[2:] {
		if _, ok := types[p]; ok {
			kinds = append(kinds, p)
		}
	}
	input, acc := "f16", ""
	switch {
	case len(kinds) == 4 && kinds[1] == kinds[2] && kinds[0] == "s32" && kinds[3] == "s32":
		input, acc = kinds[1], "s32"
	case len(kinds) == 2 && kinds[0] == kinds[1]:
		acc = kinds[0]
	case len(kinds) == 4 && kinds[1] == kinds[2] && kinds[0] == "f32" && kinds[3] == "f32":
		input, acc = kinds[1], "f32"
	}
	code, ok := mmaTypes[input]
	if !ok || acc != "f32" && acc != "f16" && (acc != "s32" || code < mmaS8) || d.has("satfinite") && acc != "s32" {
		d.lack(d.in.Op)
	}
	na, nb := 4, 2
	if acc == "s32" {
		na, nb = 2, 1
	}
	places := func(o ptx.Operand) (all []int32) {
		for _, e := range o.Elems {
			all = append(all, d.src(e, "b32"))
		}
		return all
	}
	to, a, b, c := places(d.arg(0)), places(d.arg(1)), places(d.arg(2)), places(d.arg(3))
	depth, block := int64(16), 4
	if shape == "m16n16k8" {
		depth = 8
	}
	imm := depth
	if acc == "f16" {
		imm |= multiplyHalf
		block = 2
	}
	if d.has("satfinite") {
		imm |= multiplySaturates
	}
	wantA, wantB := na, 2*nb
	switch shape {
	case "m32n8k16":
		wantA, wantB = 2*na, nb
	case "m8n32k16":
		wantA, wantB = nb, 2*na
	}
	if len(to) != 2*block || len(c) != 2*block || len(a) < wantA || len(b) < wantB { // a and b may have each half twice
		d.lack(d.in.Op)
	}
	// Use temporaries: d may share registers with a, b and c.
	var results []int32
	for half := range 2 {
		var left, right []int32
		switch shape {
		case "m32n8k16":
			left, right = a[na*half:na*half+na], b[:nb]
		case "m8n32k16":
			left, right = b[na*half:na*half+na], a[:nb]
		default:
			left, right = a[:na], b[nb*half:nb*half+nb]
		}
		var all []int32
		for range block {
			all = append(all, d.newReg(false))
		}
		results = append(results, all...)
		all = append(all, left...)
		all = append(all, right...)
		all = append(all, c[half*block:(half+1)*block]...)
		d.emit(inst{op: opMma, kind: code | code<<4, imm: imm, x: d.more(all...)})
	}
	for i, p := range results {
		d.emit(inst{op: opMov32, a: p, d: to[i]})
	}
}

// wmmaF64 decodes wmma m8n8k4 of float64, with the fragments of mma m8n8k4.
func (d *decoder) wmmaF64() {
	if d.parts[1] == "mma" {
		d.multiplyF64()
		return
	}
	matrix, regs, address := d.parts[2], d.arg(0), d.arg(1)
	ops := loadOps
	if d.parts[1] == "store" {
		regs, address, ops = address, regs, storeOps
	}
	leading := 8
	if (matrix == "a") == d.has("row") && matrix != "c" && matrix != "d" {
		leading = 4
	}
	stride := d.constant(uint64(leading), false)
	if len(d.in.Args) > 2 {
		stride = d.src(d.arg(2), "u32")
	}
	var base inst
	d.addressed(&base, address)
	lane := int32(srLaneid*256<<2 | inWarp)
	group, inGroup := d.newReg(false), d.newReg(false)
	d.emit(inst{op: opShrU32, a: lane, b: d.constant(2, false), d: group})
	d.emit(inst{op: opAnd32, a: lane, b: d.constant(3, false), d: inGroup})
	row, col := group, inGroup
	if matrix == "b" {
		row, col = inGroup, group
	}
	for i, o := range elements(regs) {
		if matrix == "c" || matrix == "d" { // two columns per lane
			col = d.newReg(false)
			d.emit(inst{op: opMadlo32, a: inGroup, b: d.constant(2, false), c: d.constant(uint64(i), false), d: col})
		}
		major, minor := col, row
		if d.has("row") {
			major, minor = row, col
		}
		index := d.newReg(false)
		d.emit(inst{op: opMadlo32, a: major, b: stride, c: minor, d: index})
		in := inst{op: ops[d.space()], imm: base.imm, n: 1,
			c: 8 | m64 | base.c&mAddr32}
		if base.c&mAddr32 != 0 {
			in.a = d.newReg(false)
			d.emit(inst{op: opMadlo32, a: index, b: d.constant(8, false), c: base.a, d: in.a})
		} else {
			in.a = d.newReg(true)
			d.emit(inst{op: opMadwideU32, a: index, b: d.constant(8, false), c: base.a, d: in.a})
		}
		in.x = d.more(d.src(o, "f64"))
		d.emit(in)
	}
}
