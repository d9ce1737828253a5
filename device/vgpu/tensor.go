//go:build linux && cgo

package vgpu

import (
	"slices"
	"strconv"
	"strings"

	"fisub/device/vgpu/ptx"
)

// mmaTypes holds the element types of matrix products, integerTypes the element types of integer mma.
var (
	mmaTypes = map[string]uint8{"f16": mmaF16, "bf16": mmaBf16, "tf32": mmaTf32, "e4m3": mmaE4m3, "e5m2": mmaE5m2,
		"e2m3": mmaE2m3, "e3m2": mmaE3m2, "e2m1": mmaE2m1, "s8": mmaS8, "u8": mmaU8}
	integerTypes = map[string]uint8{"s8": mmaS8, "u8": mmaU8, "s4": mmaS4, "u4": mmaU4, "b1": mmaB1}
)

// shape returns the numbers in a modifier such as m64n128k16.
func (d *decoder) shape() (m, n, k int) {
	for _, p := range d.parts {
		rest, ok := strings.CutPrefix(p, "m")
		ms, rest, ok1 := strings.Cut(rest, "n")
		ns, ks, ok2 := strings.Cut(rest, "k")
		if ok && ok1 && ok2 {
			m, _ = strconv.Atoi(ms)
			n, _ = strconv.Atoi(ns)
			k, _ = strconv.Atoi(ks)
		}
	}
	return m, n, k
}

// multiplyF64 decodes mma of float64; imm is rows | depth << 8.
func (d *decoder) multiplyF64() {
	m, n, k := d.shape()
	if n != 8 || d.has("sp") {
		d.lack(d.in.Op)
	}
	var all []int32
	for i, o := range d.in.Args {
		for _, e := range elements(o) {
			if i == 0 {
				all = append(all, d.dst(e, "f64"))
			} else {
				all = append(all, d.src(e, "f64"))
			}
		}
	}
	d.emit(inst{op: opMmaF64, imm: int64(m | k<<8), x: d.more(all...)})
}

func (d *decoder) wgmma() {
	switch {
	case d.has("commit_group"):
		d.emit(inst{op: opWgmmaCommit})
		return
	case d.has("wait_group"):
		d.emit(inst{op: opWgmmaWait, imm: d.arg(0).Int})
		return
	case !d.has("mma_async"): // fence
		d.emit(inst{op: opNop})
		return
	}
	m, n, k := d.shape()
	var kinds []string
	for _, p := range d.parts[2:] {
		if _, ok := mmaTypes[p]; ok || p == "f32" || p == "s32" {
			kinds = append(kinds, p)
		}
	}
	if m != 64 || d.has("sp") || d.has("satfinite") || len(kinds) != 3 {
		d.lack(d.in.Op)
	}
	a, b := mmaTypes[kinds[1]], mmaTypes[kinds[2]]
	args := d.in.Args
	in := inst{op: opWgmma, kind: a | b<<4, imm: int64(n | k<<16)}
	var places []int32
	for _, e := range elements(args[0]) {
		places = append(places, d.dst(e, "b32"))
	}
	if kinds[0] == "f16" {
		in.imm |= 1 << 24
	}
	if args[1].Kind == ptx.Vector {
		in.imm |= 1 << 25
		for _, e := range args[1].Elems {
			places = append(places, d.src(e, "b32"))
		}
	} else {
		in.a = d.src(args[1], "b64")
	}
	in.b = d.src(args[2], "b64")
	in.c = d.pred(args[3])
	if rest := args[4:]; len(rest) >= 2 { // absent for integers
		for i, r := range rest[:2] {
			if r.Int == -1 {
				in.imm |= 1 << (28 + i)
			}
		}
		rest = rest[2:]
		if len(rest) == 2 {
			in.imm |= (rest[0].Int & 1) << 26
			rest = rest[1:]
		}
		if len(rest) == 1 {
			in.imm |= (rest[0].Int & 1) << 27
		}
	}
	in.x = d.more(places...)
	d.emit(in)
}

// Shapes of tensor memory loads and stores, and kinds of products.
var (
	tensorShapes = map[string]uint8{"32x32b": tc32x32, "16x64b": tc16x64, "16x128b": tc16x128, "16x256b": tc16x256,
		"16x32bx2": tc16x32x2}
	tensorKinds = map[string]uint8{"kind::f16": tckF16, "kind::tf32": tckTf32, "kind::f8f6f4": tckF8, "kind::i8": tckI8,
		"kind::mxf8f6f4": tckMxf8, "kind::mxf4": tckMxf4, "kind::mxf4nvf4": tckMxf4}
)

func (d *decoder) tcgen05() {
	in := inst{op: opTcgen05, b: -1, n: 1}
	if d.has("cta_group::2") {
		in.n = 2
		d.p.atomics = true
	}
	args := d.in.Args
	what, _, _ := strings.Cut(d.parts[1], "::")
	switch what {
	case "fence", "wait", "relinquish_alloc_permit":
		d.emit(inst{op: opNop})
	case "alloc":
		in.kind = tcAlloc
		d.addressed(&in, args[0])
		in.b = d.src(args[1], "b32")
		d.emit(in)
	case "dealloc":
		in.kind, in.a, in.b = tcDealloc, d.src(args[0], "b32"), d.src(args[1], "b32")
		d.emit(in)
	case "commit":
		in.kind = tcCommit
		d.addressed(&in, args[0])
		if len(args) > 1 {
			in.b = d.src(args[1], "b16")
		}
		d.emit(in)
	case "cp":
		rows, bytes, how := 0, 0, 0
		switch {
		case d.has("128x256b"):
			rows, bytes = 128, 32
		case d.has("128x128b"):
			rows, bytes = 128, 16
		case d.has("64x128b"):
			rows, bytes, how = 64, 16, 2
			if d.has("warpx2::01_23") {
				how = 3
			}
		case d.has("32x128b"):
			rows, bytes = 32, 16
		case d.has("4x256b"):
			rows, bytes, how = 4, 32, 4
		}
		if rows == 0 || d.hasPrefix("b8x16") {
			d.lack(d.in.Op)
		}
		in.kind = tcCp
		d.tensorAddress(&in, args[0])
		in.b, in.imm = d.src(args[1], "b64"), int64(rows|bytes<<16|how<<32)
		d.emit(in)
	case "ld", "st":
		in.op, in.kind = opTcMove, tcLd
		regs, address, rest := args[0], args[1], args[2:]
		if d.parts[1] == "st" {
			in.kind = tcSt
			address = args[0]
			regs, rest = args[len(args)-1], args[1:len(args)-1]
		}
		in.imm = int64(d.required(tensorShapes))
		if d.has("red") {
			d.lack(d.in.Op)
		}
		if d.has("pack::16b") || d.has("unpack::16b") {
			in.imm |= 1 << 8
		}
		if len(rest) > 0 {
			in.imm |= rest[0].Int << 16
		}
		d.tensorAddress(&in, address)
		var places []int32
		for _, e := range elements(regs) {
			if in.kind == tcLd {
				places = append(places, d.dst(e, "b32"))
			} else {
				places = append(places, d.src(e, "b32"))
			}
		}
		in.n, in.x = int32(len(places)), d.more(places...)
		d.emit(in)
	case "mma":
		in.op, in.kind = opTcMma, d.required(tensorKinds)
		d.tensorProduct(in)
	case "shift":
		in.kind = tcShift
		d.tensorAddress(&in, args[0])
		d.emit(in)
	default:
		d.lack(d.in.Op)
	}
}

// tensorProduct decodes the operands of tcgen05.mma.
func (d *decoder) tensorProduct(in inst) {
	args := d.in.Args
	var to, left inst
	d.tensorAddress(&to, args[0])
	fromMemory := int32(0)
	if args[1].Kind == ptx.Memory {
		d.tensorAddress(&left, args[1])
		fromMemory = 1
	} else {
		left.a = d.src(args[1], "b64")
	}
	in.a, in.b, in.c = to.a, left.a, d.src(args[2], "b64")
	places := []int32{0, 0, fromMemory, -1, 0, to.c, left.c, -1, 0, -1, 0, -1, 0, -1}
	rest := args[3:]
	address := func(place int) {
		var a inst
		d.tensorAddress(&a, rest[0])
		places[place], places[place+1], rest = a.a, a.c, rest[1:]
	}
	if d.has("sp") {
		in.imm |= tcmSparse
		address(7)
	}
	places[0], rest = d.src(rest[0], "b32"), rest[1:]
	if d.has("block_scale") {
		scales := map[uint8]int64{tckMxf8: 1, tckMxf4: 2}[in.kind]
		if d.has("scale_vec::4X") || d.has("block16") {
			scales = 4
		}
		in.imm |= scales << 4
		address(9)
		address(11)
	}
	if rest[0].Kind == ptx.Vector {
		for _, e := range rest[0].Elems {
			places = append(places, d.src(e, "b32"))
		}
		places[4] = int32(len(rest[0].Elems))
		rest = rest[1:]
	}
	places[1], rest = d.pred(rest[0]), rest[1:]
	switch {
	case d.has("ws"):
		in.imm |= tcmWs
		if len(rest) > 0 {
			places[13] = d.src(rest[0], "b64")
		}
	case len(rest) > 0:
		places[3] = d.src(rest[0], "u32")
	}
	in.x = d.more(places...)
	d.emit(in)
}

// tensorAddress sets an address in tensor memory: register in.a plus in.c.
func (d *decoder) tensorAddress(in *inst, o ptx.Operand) {
	if o.Kind != ptx.Memory || len(o.Elems) != 1 || o.Elems[0].Kind == ptx.Symbol {
		d.lack(d.in.Op)
	}
	in.a, in.c = d.src(o.Elems[0], "b32"), int32(o.Int)
}

// sharedPlace returns a shared-memory address: operand, offset, and whether the operand has 32 bits.
func (d *decoder) sharedPlace(o ptx.Operand) (place, offset int32, narrow bool) {
	var in inst
	d.addressed(&in, o)
	return in.a, int32(in.imm), in.c&mAddr32 != 0
}

// typeCode returns the code of an element type.
func typeCode(t string) int32 {
	if code, ok := types[strings.TrimSuffix(t, "x2")]; ok {
		return int32(code)
	}
	return int32(types["u"+t[1:]])
}

// descriptor decodes two instructions that bench/pyworker inserts into Triton's kernels: fisub.descriptor.base with an
// address, and fisub.descriptor.use with the bytes per element, the innermost coordinate, the extents and the strides.
func (d *decoder) descriptor() {
	in, args := inst{op: opDescriptor}, d.in.Args
	rank := (len(args) - 1) / 2
	switch {
	case d.in.Op == "fisub.descriptor.base" && len(args) == 1:
		in.a = d.src(args[0], "u64")
	case d.in.Op == "fisub.descriptor.use" && rank > 0 && len(args)%2 == 1:
		var places []int32
		for i, o := range args[2:] {
			places = append(places, d.src(o, []string{"u32", "u64"}[min(1, i/rank)]))
		}
		in.imm, in.a, in.n, in.x = args[0].Int, d.src(args[1], "u32"), int32(rank), d.more(places...)
	default:
		d.lack(d.in.Op)
	}
	d.emit(in)
}

func (d *decoder) copyTensor() {
	args := d.in.Args
	in := inst{op: opCpTensor}
	space := slices.IndexFunc(d.parts, func(p string) bool { return p == "global" || strings.HasPrefix(p, "shared") })
	toShared := space >= 0 && d.parts[space] != "global"
	shared, tensor, rest := args[0], args[1], args[2:]
	bar, barOffset, mask, op := int32(-1), int32(0), int32(-1), int32(-1)
	var offsets []ptx.Operand // of the pixels
	switch {
	case d.has("im2col"):
		in.imm, offsets, rest = 1, elements(rest[1]), slices.Delete(slices.Clone(rest), 1, 2)
	case d.has("im2col_no_offs"):
		in.imm, offsets = 1, make([]ptx.Operand, 3)
		for i := range offsets {
			offsets[i].Kind = ptx.Integer
		}
	case d.hasPrefix("im2col"):
		d.lack(d.in.Op)
	}
	if toShared {
		var narrow bool
		bar, barOffset, narrow = d.sharedPlace(rest[0])
		if narrow {
			in.c |= m16
		}
		if d.hasPrefix("multicast") {
			mask = d.src(rest[1], "b16")
			d.p.atomics = true
		}
		if d.has("cta_group::2") {
			d.p.atomics = true
			if d.ofPair(rest[0]) {
				in.n |= 32
			}
		}
	} else {
		shared, tensor = tensor, shared
		in.kind = copyToGlobal
		if d.has("reduce") {
			op = int32(d.required(atomics))
			d.p.atomics = true
		}
	}
	if tensor.Kind != ptx.Memory || len(tensor.Elems) != 2 {
		d.lack(d.in.Op)
	}
	place, offset, narrow := d.sharedPlace(shared)
	in.a = place
	if narrow {
		in.c |= mAddr32
	}
	var base inst
	d.addressed(&base, ptx.Operand{Kind: ptx.Memory, Int: tensor.Int, Elems: tensor.Elems[:1]})
	in.b = base.a
	var places []int32
	for _, c := range elements(tensor.Elems[1]) {
		places = append(places, d.src(c, "s32"))
	}
	in.n |= int32(len(places))
	if d.has("tile::gather4") || d.has("tile::scatter4") {
		in.n |= 16
	}
	places = append(places, bar, barOffset, mask, offset, int32(base.imm), op)
	for _, o := range offsets[:min(len(offsets), max(int(in.n&15)-2, 0))] {
		places = append(places, d.src(o, "b16"))
	}
	in.x = d.more(places...)
	d.emit(in)
}

// mapFields holds the fields of a tensor map.
var mapFields = map[string]uint8{"global_address": tmAddress, "rank": tmRank, "box_dim": tmBox, "global_dim": tmDim,
	"global_stride": tmStride, "element_stride": tmStep, "elemtype": tmType, "interleave_layout": tmInterleave,
	"swizzle_mode": tmSwizzle, "swizzle_atomicity": tmAtom, "fill_mode": tmFill}

// tensorMap decodes tensormap.replace and tensormap.cp_fenceproxy.
func (d *decoder) tensorMap() {
	args := d.in.Args
	in := inst{op: opTensorMap}
	d.addressed(&in, args[0])
	if d.has("cp_fenceproxy") {
		place, offset, narrow := d.sharedPlace(args[1])
		in.kind, in.b = tmCopy, place
		if offset != 0 || args[2].Int != 128 {
			d.lack(d.in.Op + " with such operands")
		}
		if narrow {
			in.c |= m16
		}
	} else {
		in.kind = d.required(mapFields)
		if len(args) == 3 {
			in.n = int32(args[1].Int)
		}
		ranks := map[uint8]int32{tmBox: 5, tmDim: 5, tmStride: 4, tmStep: 5}
		if in.n < 0 || in.n >= max(ranks[in.kind], 1) {
			d.lack(d.in.Op + " with such a dimension")
		}
		in.b = d.src(args[len(args)-1], d.typ(0))
	}
	in.x = d.more(int32(d.spaceOf(args[0])))
	d.emit(in)
}

// ofPair reports whether a shared-memory address is in the even block of a pair of blocks. Programs form such an
// address by clearing bit 24, on a GPU the lowest bit of the block's rank. Here the addresses of a block's own shared
// memory do not contain the rank.
func (d *decoder) ofPair(o ptx.Operand) bool {
	if len(o.Elems) == 0 || o.Elems[0].Kind != ptx.Register {
		return false
	}
	return slices.ContainsFunc(d.f.Body, func(in ptx.Inst) bool {
		return strings.HasPrefix(in.Op, "and.") && len(in.Args) == 3 && in.Args[0].Kind == ptx.Register &&
			in.Args[0].Reg == o.Elems[0].Reg && in.Args[2].Kind == ptx.Integer && uint32(in.Args[2].Int)>>24 == 0xfe
	})
}

func (d *decoder) copyBulk() {
	args := d.in.Args
	in := inst{op: opCpBulk}
	var source inst
	d.addressed(&source, args[1])
	d.addressed(&in, args[0])
	in.b = source.a
	if source.c&mAddr32 != 0 {
		in.c |= m64
	}
	bar, barOffset, mask, op, code := int32(-1), int32(0), int32(-1), int32(-1), int32(0)
	left, right, bytes := int32(-1), int32(-1), int32(-1) // ignored at the start and the end; of 16 bytes those copied
	var spaces []string
	for _, p := range d.parts {
		if p == "global" || strings.HasPrefix(p, "shared") {
			spaces = append(spaces, p)
		}
	}
	if len(spaces) < 2 {
		d.lack(d.in.Op)
	}
	if d.has("ignore_oob") {
		left, right = d.src(args[3], "u32"), d.src(args[4], "u32")
		args = slices.Delete(slices.Clone(args), 3, 5)
	}
	if d.has("cp_mask") {
		bytes = d.src(args[len(args)-1], "b16")
	}
	switch {
	case spaces[0] == "global":
		in.kind = copyToGlobal
	case spaces[1] != "global":
		in.kind = copyToCluster
	}
	if in.kind != copyToGlobal {
		var narrow bool
		if bar, barOffset, narrow = d.sharedPlace(args[3]); narrow {
			in.c |= m16
		}
		if d.hasPrefix("multicast") {
			mask = d.src(args[4], "b16")
		}
	}
	if d.has("reduce") {
		op, code = int32(d.required(atomics)), typeCode(d.typ(0))
		d.p.atomics = true
	}
	in.x = d.more(d.src(args[2], "u32"), bar, barOffset, int32(source.imm), mask, op, code, left, right, bytes)
	d.emit(in)
}

// storeAsync decodes st.async and red.async.
func (d *decoder) storeAsync() {
	args := d.in.Args
	if !d.hasPrefix("shared") || !d.hasPrefix("mbarrier") {
		d.lack(d.in.Op)
	}
	t := d.typ(0)
	in := inst{op: opStAsync, kind: storeToOne, c: int32(width(t))}
	d.addressed(&in, args[0])
	var places []int32
	for _, e := range elements(args[1]) {
		places = append(places, d.src(e, t))
	}
	in.n = int32(len(places))
	bar, offset, narrow := d.sharedPlace(args[2])
	if narrow {
		in.c |= m16
	}
	if d.parts[0] == "red" {
		in.kind = d.required(atomics)
	}
	d.p.atomics = true
	in.x = d.more(append(places, bar, offset, typeCode(t))...)
	d.emit(in)
}
