//go:build linux && cgo

package vgpu

import (
	"fisub/device/vgpu/ptx"
)

func (d *decoder) barrier() {
	if d.has("cluster") {
		kind := uint8(clusterArrive)
		if d.has("wait") {
			kind = clusterWait
		}
		d.p.atomics = true
		in := inst{op: opBarrierCluster, kind: kind, x: d.more(d.phase)}
		if d.has("relaxed") {
			in.n = 1
		}
		d.emit(in)
		return
	}
	if d.has("warp") {
		d.emit(inst{op: opWarpSync, want: d.src(d.arg(0), "b32")})
		return
	}
	in := inst{op: opBar, b: -1, imm: 1}
	args := d.in.Args
	if d.parts[0] == "barrier" && !d.has("aligned") {
		in.imm = 0
	}
	switch {
	case d.has("arrive"):
		in.kind, in.imm = barArrive, 0
	case d.has("red"):
		in.kind = d.required(map[string]uint8{"popc": barPopc, "and": barAnd, "or": barOr})
		in.d = d.dst(args[0], d.typ(0))
		last := args[len(args)-1]
		if last.Negated {
			in.n = 1
		}
		in.c = d.regs[last.Reg]
		args = args[1 : len(args)-1]
	}
	if len(args) == 0 {
		d.lack(d.in.Op)
	}
	in.a = d.src(args[0], "b32")
	if len(args) > 1 {
		in.b = d.src(args[1], "b32")
	}
	d.emit(in)
}

// Votes and shuffles.
var (
	votes    = map[string]uint8{"all": voteAll, "any": voteAny, "uni": voteUni}
	shuffles = map[string]uint8{"idx": shflIdx, "up": shflUp, "down": shflDown, "bfly": shflBfly}
)

func (d *decoder) lanes() {
	switch d.parts[0] {
	case "vote":
		p := d.arg(1)
		in := inst{}
		if d.has("sync") {
			in.want = d.src(d.arg(2), "b32")
		} // without .sync: all executing lanes, as in old versions of PTX
		if p.Kind == ptx.Integer {
			in.a = d.pred(p)
		} else {
			in.a = d.regs[p.Reg]
		}
		if p.Negated {
			in.n = 1
		}
		if d.has("ballot") {
			in.op, in.d = opBallot, d.dst(d.arg(0), "b32")
		} else {
			in.op, in.kind, in.d = opVote, d.required(votes), d.dst(d.arg(0), "pred")
		}
		d.emit(in)
	case "match":
		t := d.typ(0)
		in := inst{op: opMatchAny, a: d.src(d.arg(1), t), want: d.src(d.arg(2), "b32"), d: d.dst(d.arg(0), "b32")}
		if wide(t) {
			in.n = 1
		}
		if d.has("all") {
			in.op = opMatchAll
			p := int32(-1)
			if q := d.arg(0).Pair; q != nil {
				p = d.dst(*q, "pred")
			}
			in.x = d.more(p)
		}
		d.emit(in)
	case "redux":
		kind := d.required(atomics)
		t := d.typ(0)
		code, ok := types[t]
		if !ok {
			code = types["u32"]
		}
		if d.has("abs") || d.has("NaN") {
			d.lack(d.in.Op)
		}
		d.emit(inst{op: opRedux, kind: kind, n: int32(code), a: d.src(d.arg(1), t), want: d.src(d.arg(2), "b32"),
			d: d.dst(d.arg(0), t)})
	case "shfl":
		if !d.has("sync") {
			d.lack(d.in.Op)
		}
		kind := d.required(shuffles)
		p := int32(-1)
		if q := d.arg(0).Pair; q != nil {
			p = d.dst(*q, "pred")
		}
		in := inst{op: opShfl, kind: kind, a: d.src(d.arg(1), "b32"), b: d.src(d.arg(2), "b32"),
			c:    d.src(d.arg(3), "b32"),
			want: d.src(d.arg(4), "b32"), d: d.dst(d.arg(0), "b32")}
		in.x = d.more(p)
		d.p.tracks = true
		d.emit(in)
	case "elect":
		in := inst{op: opElect, d: -1, want: d.src(d.arg(1), "b32")}
		if d.arg(0).Kind != ptx.None {
			in.d = d.dst(d.arg(0), "b32")
		}
		if q := d.arg(0).Pair; q != nil {
			in.a = d.dst(*q, "pred")
		} else {
			in.a = d.scratch[7]
		}
		d.emit(in)
	}
}

func (d *decoder) matrix() {
	name := d.parts[0]
	places := func(o ptx.Operand, result bool) (all []int32) {
		elems := []ptx.Operand{o}
		if o.Kind == ptx.Vector {
			elems = o.Elems
		}
		for _, e := range elems {
			if result {
				all = append(all, d.dst(e, "b32"))
			} else {
				all = append(all, d.src(e, "f32x1"))
			}
		}
		return all
	}
	switch name {
	case "movmatrix":
		d.one(opMovmatrix, "b32")
	case "ldmatrix", "stmatrix":
		kind := matrixRows
		switch trans := d.has("trans"); {
		case d.has("m8n8") && d.has("b16") && trans:
			kind = matrixColumns
		case d.has("m8n8") && d.has("b16"):
		case d.has("m16n16") && trans && d.has("b8") || d.has("m16n8") && trans && d.has("b8"):
			kind = matrixBytes
		case d.has("m8n16") && d.has("b4x16_p64"):
			kind = matrix4Bits
		case d.has("m8n16") && d.has("b6x16_p32"):
			kind = matrix6Bits
		default:
			d.lack(d.in.Op)
		}
		regs, address := d.arg(0), d.arg(1)
		if name == "stmatrix" {
			regs, address = address, regs
		}
		in := inst{op: either(name == "ldmatrix", opLdmatrix, opStmatrix), kind: uint8(kind)}
		d.addressed(&in, address)
		if d.space() == spaceGeneric {
			in.c |= mSigned
		}
		all := places(regs, name == "ldmatrix")
		in.n, in.x = int32(len(all)), d.more(all...)
		d.emit(in)
	case "mma":
		if d.has("f64") {
			d.multiplyF64()
			return
		}
		d.multiply(places)
	}
}

// multiply decodes mma of all types but f64.
func (d *decoder) multiply(places func(o ptx.Operand, result bool) []int32) {
	m, n, k := d.shape()
	var kinds []string
	for _, p := range d.parts[1:] {
		_, known := mmaTypes[p]
		_, small := integerTypes[p]
		if known || small || p == "f32" || p == "s32" {
			kinds = append(kinds, p)
		}
	}
	integer := d.has("s32")
	if n != 8 || m != 16 && (m != 8 || !integer) || k > 256 || k > 128 && !integer ||
		len(kinds) != 4 || kinds[0] != kinds[3] {
		d.lack(d.in.Op)
	}
	a, b := mmaTypes[kinds[1]], mmaTypes[kinds[2]]
	bits := map[string]int{"f16": 16, "bf16": 16, "tf32": 32, "s4": 4, "u4": 4, "b1": 1}[kinds[1]]
	imm, stored := k, k
	if integer {
		a, b = integerTypes[kinds[1]], integerTypes[kinds[2]]
	} else if d.hasPrefix("kind::mxf4") {
		imm, bits = imm|multiplyPacked, 4
	}
	if bits == 0 {
		bits = 8
	}
	for flag, set := range map[int]bool{multiplyRows8: m == 8, multiplySaturates: d.has("satfinite"),
		multiplyAnd: d.has("and"), multiplyHalf: kinds[0] == "f16", multiplySparse: d.hasPrefix("sp"),
		multiplyKind: d.hasPrefix("kind")} {
		if set {
			imm |= flag
		}
	}
	args := d.in.Args
	if imm&multiplySparse != 0 {
		stored = k / 2
	}
	results := m / 4
	if kinds[0] == "f16" {
		results = 2
	}
	var all []int32
	for i, want := range []int{results, m * stored * bits / 1024, 8 * k * bits / 1024, results} {
		p := places(args[i], i == 0)
		if len(p) != want {
			d.lack(d.in.Op)
		}
		all = append(all, p...)
	}
	args = args[4:]
	if imm&multiplySparse != 0 {
		if len(args) < 2 || args[1].Kind != ptx.Integer || k > 128 {
			d.lack(d.in.Op)
		}
		all = append(all, d.src(elements(args[0])[0], "b32"), int32(args[1].Int))
		args = args[2:]
	}
	if d.has("block_scale") {
		scales := map[bool]int{true: 1, false: 2}[d.has("kind::mxf8f6f4")]
		if d.has("scale_vec::4X") {
			scales = 4
		}
		if d.has("ue4m3") {
			imm |= multiplyE4m3Scales
		}
		imm |= scales << 20
		for _, i := range []int{0, 2} { // of a, of b
			selectors := elements(args[i+1])
			all = append(all, d.src(elements(args[i])[0], "b32"), d.src(selectors[0], "b16"), d.src(selectors[1], "b16"))
		}
	}
	d.emit(inst{op: opMma, kind: a | b<<4, imm: int64(imm), x: d.more(all...)})
}

func (d *decoder) mbarrier() {
	in := inst{op: opMbar, d: -1, b: -1}
	args := d.in.Args
	arrive := uint8(mbArrive)
	if d.has("expect_tx") && d.has("arrive") {
		arrive = mbArriveTx
	}
	switch d.parts[1] {
	case "init":
		in.kind, in.b = mbInit, d.src(args[1], "u32")
	case "inval":
		in.kind = mbInval
	case "arrive", "arrive_drop":
		in.kind = arrive
		if d.parts[1] == "arrive_drop" {
			in.kind = mbDrop
			if arrive == mbArriveTx {
				d.lack(d.in.Op)
			}
		}
		if args[0].Kind != ptx.Memory {
			if args[0].Kind != ptx.None {
				in.d = d.dst(args[0], "b64")
			}
			args = args[1:]
		}
		if len(args) > 1 {
			in.b = d.src(args[1], "u32")
		}
	case "expect_tx":
		in.kind, in.b = mbExpectTx, d.src(args[1], "u32")
	case "complete_tx":
		in.kind, in.b = mbCompleteTx, d.src(args[1], "u32")
	case "test_wait", "try_wait":
		in.d = d.dst(args[0], "pred")
		t, try := "b64", d.parts[1] == "try_wait"
		switch parity := d.has("parity"); {
		case parity && try:
			in.kind, t = mbTryParity, "u32"
		case parity:
			in.kind, t = mbTestParity, "u32"
		case try:
			in.kind = mbTry
		default:
			in.kind = mbTest
		}
		in.b = d.src(args[2], t)
		args = args[1:]
	case "pending_count":
		d.emit(inst{op: opMbar, kind: mbPending, a: d.src(args[1], "b64"), d: d.dst(args[0], "b32")})
		return
	default:
		d.lack(d.in.Op)
	}
	d.addressed(&in, args[0])
	if d.space() == spaceGeneric {
		in.c |= mSigned
	} else if in.c&mAddr32 != 0 && d.ofPair(args[0]) { // convert it to an address of the even block
		even, there := d.newReg(false), d.newReg(false)
		rank := int32(srCctarank*256<<2 | inWarp)
		d.emit(inst{op: opAnd32, a: rank, b: d.constant(0xfffffffe, false), d: even})
		d.emit(inst{op: opMapa32, a: in.a, b: even, d: there})
		in.a = there
	}
	d.emit(in)
}

func (d *decoder) copyAsync() {
	args := d.in.Args
	switch {
	case d.has("prefetch"):
		d.emit(inst{op: opNop})
	case d.has("bulk") && d.has("commit_group"):
		d.emit(inst{op: opBulkCommit})
	case d.has("bulk") && d.has("wait_group"):
		in := inst{op: opBulkWait, imm: args[0].Int}
		if d.has("read") {
			in.kind = 1
		}
		d.emit(in)
	case d.has("commit_group"):
		d.emit(inst{op: opCpAsyncCommit})
	case d.has("wait_all"):
		d.emit(inst{op: opCpAsyncWait, imm: -1})
	case d.has("wait_group"):
		d.emit(inst{op: opCpAsyncWait, imm: args[0].Int})
	case d.has("mbarrier") && d.has("arrive"):
		in := inst{op: opCpAsyncArrive}
		if d.has("noinc") {
			in.kind = 1
		}
		d.addressed(&in, args[0])
		if d.space() == spaceGeneric {
			in.c |= mSigned
		}
		d.emit(in)
	case d.has("tensor"):
		d.copyTensor()
	case d.has("bulk"):
		d.copyBulk()
	case d.has("ca"), d.has("cg"):
		in := inst{op: opCpAsync, n: int32(args[2].Int)}
		var source inst
		d.addressed(&source, args[1])
		d.addressed(&in, args[0])
		in.b = source.a
		size := int32(-1)
		if len(args) > 3 && !(d.hasPrefix("L2::cache_hint") && len(args) == 4) {
			if args[3].Kind == ptx.Register && d.f.Regs[args[3].Reg].Type == "pred" {
				in.kind, size = 1, d.pred(args[3])
			} else {
				size = d.src(args[3], "u32")
			}
		}
		in.x = d.more(size, int32(source.imm))
		d.emit(in)
	default:
		d.lack(d.in.Op)
	}
}
