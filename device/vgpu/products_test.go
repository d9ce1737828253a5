//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// A coded is a number and its code in a type of a matrix product.
type coded struct {
	code  uint32
	value float64
}

// drawn returns an element of a type: any number, or with special also infinities and NaN where the type has them.
func drawn(r *rand.Rand, typ string, special bool) coded {
	of := func(f narrow, limit uint64) coded {
		for {
			code := r.Uint64N(limit)
			if v := f.number(code); special || v-v == 0 {
				return coded{uint32(code), v}
			}
		}
	}
	switch typ {
	case "f16":
		v := float64(r.IntN(33)-16) / 4
		return coded{uint32(narrow{16, 10, 15, 65504}.encode(v, false)), v}
	case "bf16", "tf32", "f32":
		v := float64(r.IntN(33)-16) / 4
		code := math.Float32bits(float32(v))
		if typ == "bf16" {
			code >>= 16
		}
		return coded{code, v}
	case "s32":
		v := r.IntN(2000) - 1000
		return coded{uint32(v), float64(v)}
	case "s8", "s4":
		bits := int(typ[1] - '0')
		v := r.IntN(1<<bits) - 1<<(bits-1)
		return coded{uint32(v) & (1<<bits - 1), float64(v)}
	case "u8", "u4":
		v := r.IntN(1 << (typ[1] - '0'))
		return coded{uint32(v), float64(v)}
	case "ue4m3":
		return of(narrows["e4m3"], 0x7f)
	case "ue8m0":
		code := uint32(r.IntN(24)) + 115
		if special {
			code = []uint32{0, 1, 127, 254, 255, 250}[r.IntN(6)]
		}
		if code == 255 {
			return coded{code, math.NaN()}
		}
		return coded{code, math.Ldexp(1, int(code)-127)}
	}
	return of(narrows[typ], 1<<narrows[typ].bits)
}

// A product is one element of d: the terms of its sum.
type product struct {
	c     float64
	terms [][4]float64 // a, b and their scales
}

// check returns why got is not the sum, within the error of sums of which each term keeps 25 bits below the
// largest one, or "".
func (p product) check(got float64, typ string) string {
	if typ == "f16" {
		return p.checkHalf(got)
	}
	want, largest := p.c, math.Abs(p.c) // terms are exact in float64, and its error is far below what is allowed
	finite := p.c-p.c == 0
	for _, t := range p.terms {
		v := t[0] * t[1] * t[2] * t[3]
		finite = finite && v-v == 0
		want += v
		largest = max(largest, math.Abs(v))
	}
	if !finite {
		if math.IsNaN(want) != math.IsNaN(got) || !math.IsNaN(got) && want != got {
			return fmt.Sprintf("got %v, want %v", got, want)
		}
		return ""
	}
	allowed := largest*float64(len(p.terms)+1)*0x1p-24 + math.Abs(want)*0x1p-23 + 0x1p-149
	if math.Abs(want)+allowed > math.MaxFloat32 {
		if !math.IsInf(got, int(math.Copysign(1, want))) && math.Abs(want)-allowed > math.MaxFloat32 {
			return fmt.Sprintf("got %v, want an infinity", got)
		}
		return ""
	}
	if d := math.Abs(got - want); d > allowed || d != d {
		return fmt.Sprintf("got %v, want %v within %v", got, want, allowed)
	}
	return ""
}

// warpProduct runs an instruction of one warp: registers holds those of each lane, followed by the results.
func warpProduct(t *testing.T, op, rest string, counts []int, regs [32][]uint32) [][]uint32 {
	t.Helper()
	list := func(from, n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("%%x%d", from+i))
		}
		return "{" + strings.Join(all, ", ") + "}"
	}
	var loads, stores, operands strings.Builder
	total := len(regs[0])
	for i := range total {
		fmt.Fprintf(&loads, "ld.global.b32 %%x%d, [%%rd3+%d];\n", i, 4*i)
	}
	results := counts[len(counts)-1]
	from := 0
	for _, n := range counts {
		operands.WriteString(", " + list(from, n))
		from += n
	}
	for i := range results {
		fmt.Fprintf(&stores, "st.global.b32 [%%rd4+%d], %%x%d;\n", 4*i, 40+i)
	}
	text := fmt.Sprintf(`.version 9.0
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {
	.reg .b32 %%x<48>; .reg .b32 %%r<4>; .reg .b64 %%rd<8>; .reg .b16 %%h<4>;
	ld.param.u64 %%rd1, [in]; ld.param.u64 %%rd2, [out];
	mov.u32 %%r1, %%tid.x;
	mad.wide.u32 %%rd3, %%r1, %d, %%rd1;
	mad.wide.u32 %%rd4, %%r1, 16, %%rd2;
	%s
	%s %s%s%s;
	%s
	ret;
}`, 4*total, loads.String(), op, list(40, results), operands.String(), rest, stores.String())
	m := &Machine{Workers: 1}
	defer m.drop()
	mod, err := m.Load(text)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	k, err := mod.Kernel("k")
	if err != nil || len(k.Lacks()) > 0 {
		t.Fatal(op, err, k.Lacks())
	}
	var flat []uint32
	for lane := range regs {
		flat = append(flat, regs[lane]...)
	}
	x, _ := words(m, "in", flat...)
	y, out := words(m, "out", make([]uint32, 32*4)...)
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(x)), uint64(y))
	if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, Params: params}); err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	all := make([][]uint32, 32)
	for lane := range all {
		all[lane] = slices.Clone(out[4*lane : 4*lane+results])
	}
	return all
}

// A case of mma: its types, depth and operands.
type narrowMma struct {
	kind, a, b, d, scale string // kind: modifiers after mma, without the shape
	k, bits              int    // bits of an element's container
	sparse               bool
	scales               int // of a row of a
}

// TestNarrowMma compares mma of narrow types, with block scales and with sparse a, with exact sums.
func TestNarrowMma(t *testing.T) {
	var all []narrowMma
	small := []string{"e4m3", "e5m2", "e2m3", "e3m2", "e2m1"}
	for i, a := range small {
		b := small[(i+1)%len(small)]
		all = append(all, narrowMma{"sync.aligned.kind::f8f6f4", a, b, "f32", "", 32, 8, false, 0},
			narrowMma{"sync.aligned.kind::f8f6f4", a, a, "f16", "", 32, 8, false, 0},
			narrowMma{"sync.aligned.kind::mxf8f6f4.block_scale", a, b, "f32", "ue8m0", 32, 8, false, 1},
			narrowMma{"sp::ordered_metadata.sync.aligned.kind::f8f6f4", a, b, "f32", "", 64, 8, true, 0},
			narrowMma{"sp::ordered_metadata.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X", b, a, "f32", "ue8m0", 64, 8, true, 1})
	}
	for _, sparse := range []string{"", "sp::ordered_metadata."} {
		k := 64 << min(1, len(sparse))
		all = append(all, narrowMma{sparse + "sync.aligned.kind::mxf4.block_scale.scale_vec::2X", "e2m1", "e2m1", "f32", "ue8m0", k, 4, k == 128, 2},
			narrowMma{sparse + "sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::2X", "e2m1", "e2m1", "f32", "ue8m0", k, 4, k == 128, 2},
			narrowMma{sparse + "sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X", "e2m1", "e2m1", "f32", "ue4m3", k, 4, k == 128, 4})
	}
	for _, c := range []narrowMma{{a: "f16", d: "f32", k: 16, bits: 16}, {a: "f16", d: "f16", k: 32, bits: 16}, {a: "bf16", d: "f32", k: 16, bits: 16},
		{a: "bf16", d: "f32", k: 32, bits: 16}, {a: "tf32", d: "f32", k: 8, bits: 32}, {a: "tf32", d: "f32", k: 16, bits: 32},
		{a: "s8", d: "s32", k: 32, bits: 8}, {a: "u8", b: "s8", d: "s32", k: 64, bits: 8}, {a: "e4m3", b: "e5m2", d: "f32", k: 64, bits: 8},
		{a: "s4", d: "s32", k: 64, bits: 4}, {a: "u4", d: "s32", k: 128, bits: 4}} {
		if c.kind, c.sparse = "sp.sync.aligned", true; c.b == "" {
			c.b = c.a
		}
		all = append(all, c)
	}
	for n, c := range all {
		for round := range 4 {
			checkMma(t, c, rand.New(rand.NewPCG(uint64(n), uint64(round))), round == 3, round)
		}
	}
}

func checkMma(t *testing.T, c narrowMma, r *rand.Rand, special bool, round int) {
	t.Helper()
	var A [16][128]coded // as multiplied: without what is left out
	var B [128][8]coded
	var C [16][8]coded
	var kept [16][64]coded // of a sparse a
	var meta [16][]uint32  // four bits for each chunk
	stored := c.k
	for i := range 16 {
		for q := range c.k {
			A[i][q] = drawn(r, c.a, special)
		}
		for j := range 8 {
			C[i][j] = drawn(r, c.d, false)
		}
		if !c.sparse {
			copy(kept[i][:], A[i][:c.k])
			continue
		}
		stored = c.k / 2
		all, left, chunks := thinned(r, A[i][:c.k], c.bits, c.bits == 4)
		copy(A[i][:], all)
		copy(kept[i][:], left)
		meta[i] = chunks
	}
	for q := range c.k {
		for j := range 8 {
			B[q][j] = drawn(r, c.b, special)
		}
	}
	code := func(e coded, typ string) uint32 {
		if typ == "e2m1" && c.bits == 8 {
			return e.code << 2
		}
		return e.code
	}
	each := 32 / c.bits
	na, nb, nd := 16*stored*c.bits/1024, 8*c.k*c.bits/1024, 4
	if c.d == "f16" {
		nd = 2
	}
	counts := []int{na, nb, nd}
	var regs [32][]uint32
	for lane := range 32 {
		group, in := lane>>2, lane&3
		for reg := range na {
			var v uint32
			for i := range each {
				v |= code(kept[group+8*(reg%2)][in*each+i+reg/2*4*each], c.a) << (c.bits * i)
			}
			regs[lane] = append(regs[lane], v)
		}
		for reg := range nb {
			var v uint32
			for i := range each {
				v |= code(B[in*each+i+reg*4*each][group], c.b) << (c.bits * i)
			}
			regs[lane] = append(regs[lane], v)
		}
		for reg := range nd {
			if c.d == "f16" {
				regs[lane] = append(regs[lane], C[group+8*reg][in*2].code|C[group+8*reg][in*2+1].code<<16)
			} else {
				regs[lane] = append(regs[lane], C[group+8*(reg/2)][in*2+reg%2].code)
			}
		}
	}
	rest, next := "", na+nb+nd
	if c.sparse {
		// Bits of metadata of a row: 16 are in one lane of four, 32 in two, 64 in all.
		lanes := max(1, len(meta[0])/4)
		selector := round % (4 / lanes)
		rest = fmt.Sprintf(", %%x%d, %d", next, selector)
		next++
		for lane := range 32 {
			group, in := lane>>2, lane&3-lanes*selector
			v := r.Uint32() // lanes that the selector leaves out have anything
			if in >= 0 && in < lanes {
				v = 0
				for nibble := range 8 {
					row, chunk := group, 0
					if c.bits >= 16 { // a half for the row, one for that 8 below; the next lane has the next four chunks
						row, chunk = group+8*(nibble/4), in*4+nibble%4
					} else { // a lane for the row, one for that 8 below; the next two have the next eight chunks
						row, chunk = group+8*(in%2), in/2*8+nibble
					}
					v |= meta[row][chunk] << (4 * nibble)
				}
			}
			regs[lane] = append(regs[lane], v)
		}
	}
	var sa [16][4]coded
	var sb [8][4]coded
	if c.scales > 0 {
		for i := range 16 {
			for q := range c.scales {
				sa[i][q], sb[i%8][q] = drawn(r, c.scale, special), drawn(r, c.scale, special)
			}
		}
		byteA, byteB := 0, 0
		if c.scales < 4 {
			byteA, byteB = r.IntN(4/c.scales)*c.scales, r.IntN(4/c.scales)*c.scales
		}
		threadA, threadB := r.IntN(2), r.IntN(4)
		rest += fmt.Sprintf(", {%%x%d}, {%d, %d}, {%%x%d}, {%d, %d}", next, byteA, threadA, next+1, byteB, threadB)
		for lane := range 32 {
			group, in := lane>>2, lane&3
			a, b := r.Uint32(), r.Uint32()
			if in>>1 == threadA {
				for q := range c.scales {
					at := 8 * (byteA + q)
					a = a&^(255<<at) | sa[group+8*(in&1)][q].code<<at
				}
			}
			if in == threadB {
				for q := range c.scales {
					at := 8 * (byteB + q)
					b = b&^(255<<at) | sb[group][q].code<<at
				}
			}
			regs[lane] = append(regs[lane], a, b)
		}
	}
	op := fmt.Sprintf("mma.%s.m16n8k%d.row.col.%s.%s.%s.%s", c.kind, c.k, c.d, c.a, c.b, c.d)
	if c.scales > 0 {
		op += "." + c.scale
	}
	out := warpProduct(t, op, rest, counts, regs)
	for lane := range 32 {
		group, in := lane>>2, lane&3
		for reg := range 2 * nd {
			row, col := group+8*(reg/2), in*2+reg%2
			var got float64
			switch {
			case c.d == "f16":
				got = narrow{16, 10, 15, 65504}.number(uint64(out[lane][reg/2] >> (16 * (reg % 2)) & 0xffff))
			case reg >= 4:
				continue
			case c.d == "s32":
				got = float64(int32(out[lane][reg]))
			default:
				got = float64(math.Float32frombits(out[lane][reg]))
			}
			p := product{c: C[row][col].value}
			for q := range c.k {
				term := [4]float64{A[row][q].value, B[q][col].value, 1, 1}
				if c.scales > 0 {
					term[2], term[3] = sa[row][q*c.scales/c.k].value, sb[col][q*c.scales/c.k].value
				}
				p.terms = append(p.terms, term)
			}
			if why := p.check(got, c.d); why != "" {
				t.Fatalf("%s, row %d, column %d: %s", op, row, col, why)
			}
		}
	}
}

// checkHalf is check for a result that is rounded to float16 and has no scales.
func (p product) checkHalf(got float64) string {
	sum := p.c
	for _, t := range p.terms {
		sum += t[0] * t[1]
	}
	if sum != sum && got != got || math.Abs(sum) > 65504 && math.IsInf(got, int(math.Copysign(1, sum))) || math.Abs(sum-got) <= math.Abs(sum)*0x1p-10 {
		return ""
	}
	return fmt.Sprintf("got %v, want %v in float16", got, sum)
}

// TestByteMatrices loads and stores matrices of bytes, and loads those of 4 and 6 bits.
func TestByteMatrices(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	in := make([]uint32, 128)
	for i := range in {
		in[i] = r.Uint32()
	}
	stored := binary.LittleEndian.AppendUint32(nil, in[0])
	for _, v := range in[1:] {
		stored = binary.LittleEndian.AppendUint32(stored, v)
	}
	// Lane l has the address of row l, which is at 16 * (5 * l % 32).
	const prepare = `
	@!%p2 ret;
	shl.b32 %r5, %r1, 4; cvt.u64.u32 %rd3, %r5; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
	mul.lo.u32 %r6, %r1, 5; and.b32 %r6, %r6, 31; shl.b32 %r6, %r6, 4; add.u32 %r6, %r6, %r2;
	ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd4];
	`
	const load = prepare + "st.shared.v4.b32 [%r6], {%r10, %r11, %r12, %r13};\nbar.warp.sync -1;\n%s\n" +
		"st.global.v4.b32 [%rd5], {%r20, %r21, %r22, %r23};"
	const store = prepare + "st.shared.v4.b32 [%r6], {0, 0, 0, 0};\nbar.warp.sync -1;\n%s\nbar.warp.sync -1;\n" +
		"ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r6];\nst.global.v4.b32 [%rd5], {%r20, %r21, %r22, %r23};"
	narrow := func(bits int) func(lane, i int) byte { // byte i of register i / 4
		return func(lane, i int) byte {
			row, col := 8*(i/4)+lane/4, 4*(lane%4)+i%4
			v := uint64(stored[16*row+bits*col/8]) | uint64(stored[16*row+bits*col/8+1])<<8
			return byte(v >> (bits * col % 8) & (1<<bits - 1))
		}
	}
	for _, c := range []struct {
		body string
		want func(lane, i int) byte
	}{
		{strings.Replace(load, "%s", "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r20, %r21, %r22, %r23}, [%r6];", 1), func(lane, i int) byte {
			return stored[16*(16*(i/8)+4*(lane%4)+i%4)+lane/4+8*(i/4%2)]
		}},
		{strings.Replace(load, "%s", "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%r20, %r21, %r22, %r23}, [%r6];", 1), narrow(4)},
		{strings.Replace(load, "%s", "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b6x16_p32 {%r20, %r21, %r22, %r23}, [%r6];", 1), narrow(6)},
		// Lane l of a group of 32 has in register j bytes of rows 2 * (l % 4) and the next of matrix j, in columns l / 4 and 8 more.
		{strings.Replace(store, "%s", "stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [%r6], {%r10, %r11, %r12, %r13};", 1), func(row, col int) byte {
			lane := row%8/2 + 4*(col%8)
			return stored[16*lane+4*(row/8)+row%2+2*(col/8)]
		}},
	} {
		out, err := tensorKernel(t, c.body, in, 128)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 512 {
			if got, want := byte(out[i/4]>>(8*(i%4))), c.want(i/16, i%16); got != want {
				t.Errorf("%s: lane %d, byte %d: got %#x, want %#x", c.body[strings.Index(c.body, "matrix.")-2:], i/16, i%16, got, want)
				break
			}
		}
	}
}

// A case of tcgen05.mma by one CTA.
type tensorProduct struct {
	kind, a, b, d, scale string
	m, n, bits           int // bits of an element of a in shared memory, without padding
	sparse, ws           bool
	scales               int
	lane                 int  // of d
	mask                 bool // some columns of b are 0
	across               int  // 1: a, 2: b is contiguous along its rows
}

// packed reports whether two elements are in a byte.
func (c tensorProduct) packed() bool { return strings.HasPrefix(c.kind, "mxf4") }

// k returns the depth: 32 bytes of a, twice that if half of it is left out.
func (c tensorProduct) k() int {
	bits := c.bits
	if bits == 6 || bits == 4 && !c.packed() {
		bits = 8
	}
	k := 256 / bits
	if c.sparse {
		k *= 2
	}
	return k
}

var formats = map[string]int{"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1}

// descriptor returns the instruction descriptor, with the columns of metadata and the first bytes of the scales.
func (c tensorProduct) descriptor(selector, byteA, byteB int) uint32 {
	v := c.n>>3<<17 | c.m>>4<<24
	a, b := formats[c.a], formats[c.b]
	if c.packed() {
		a, b = 1, 1
	}
	v |= a<<7 | b<<10
	switch {
	case c.scales > 0:
		v |= byteB<<4 | byteA<<29
		if c.scale == "ue8m0" {
			v |= 1 << 23
		}
	case c.d == "f32":
		v |= 1 << 4
	case c.d == "s32":
		v |= 2 << 4
	}
	if c.sparse {
		v |= selector | 1<<2
	}
	return uint32(v | c.across<<15)
}

// place returns lane and column of an element of d.
func (c tensorProduct) place(i, j int) (lane, column int) {
	switch {
	case c.ws && c.m < 128:
		wide := c.n * c.m / 128
		return i + c.m*(j/wide), j % wide
	case c.m == 64:
		return i/16*32 + i%16 + c.lane, j
	}
	return i, j
}

// TestTensorProducts compares tcgen05.mma with exact sums: narrow types, block scales, sparse a, stationary a, results of
// float16.
func TestTensorProducts(t *testing.T) {
	var all []tensorProduct
	small := []string{"e4m3", "e5m2", "e2m3", "e3m2", "e2m1"}
	for i, a := range small {
		b := small[(i+2)%len(small)]
		bits := narrows[a].bits
		all = append(all, tensorProduct{kind: "f8f6f4", a: a, b: b, d: "f32", m: 128, n: 24, bits: bits},
			tensorProduct{kind: "f8f6f4", a: b, b: a, d: "f16", m: 64, n: 64, bits: narrows[b].bits, lane: 16 * (i & 1)},
			tensorProduct{kind: "f8f6f4", a: a, b: a, d: "f32", m: 128, n: 40, bits: bits, sparse: true},
			tensorProduct{kind: "mxf8f6f4", a: a, b: b, d: "f32", scale: "ue8m0", m: 128, n: 104, bits: bits, scales: 1},
			tensorProduct{kind: "mxf8f6f4", a: a, b: b, d: "f32", scale: "ue8m0", m: 128, n: 32, bits: bits, scales: 1, sparse: true},
			tensorProduct{kind: "f8f6f4", a: a, b: b, d: "f32", m: 32 << (i % 3), n: 64, bits: bits, ws: true},
			tensorProduct{kind: "f8f6f4", a: a, b: b, d: "f32", m: 64, n: 24, bits: bits, across: 3},
			tensorProduct{kind: "mxf8f6f4", a: a, b: b, d: "f32", scale: "ue8m0", m: 128, n: 16, bits: bits, scales: 1, across: 1 + i&1, sparse: i > 1})
	}
	for _, sparse := range []bool{false, true} {
		all = append(all, tensorProduct{kind: "mxf4", a: "e2m1", b: "e2m1", d: "f32", scale: "ue8m0", m: 128, n: 80, bits: 4, scales: 2, sparse: sparse},
			tensorProduct{kind: "mxf4nvf4", a: "e2m1", b: "e2m1", d: "f32", scale: "ue8m0", m: 128, n: 48, bits: 4, scales: 2, sparse: sparse},
			tensorProduct{kind: "mxf4nvf4", a: "e2m1", b: "e2m1", d: "f32", scale: "ue4m3", m: 128, n: 136, bits: 4, scales: 4, sparse: sparse},
			tensorProduct{kind: "f16", a: "f16", b: "f16", d: "f32", m: 128, n: 32, bits: 16, sparse: sparse},
			tensorProduct{kind: "f16", a: "f16", b: "f16", d: "f16", m: 128, n: 16, bits: 16, sparse: sparse},
			tensorProduct{kind: "f16", a: "bf16", b: "bf16", d: "f32", m: 128, n: 16, bits: 16, sparse: sparse, ws: !sparse},
			tensorProduct{kind: "tf32", a: "tf32", b: "tf32", d: "f32", m: 128, n: 16, bits: 32, sparse: sparse},
			tensorProduct{kind: "i8", a: "s8", b: "u8", d: "s32", m: 128, n: 16, bits: 8, sparse: sparse},
			tensorProduct{kind: "i8", a: "u8", b: "s8", d: "s32", m: 64, n: 128, bits: 8, ws: true, sparse: sparse, mask: sparse},
			tensorProduct{kind: "f16", a: "bf16", b: "bf16", d: "f32", m: 32, n: 64, bits: 16, ws: true, sparse: sparse, mask: !sparse},
			tensorProduct{kind: "tf32", a: "tf32", b: "tf32", d: "f32", m: 64, n: 64, bits: 32, ws: true, sparse: sparse, mask: sparse},
			tensorProduct{kind: "f8f6f4", a: "e2m1", b: "e5m2", d: "f32", m: 32, n: 64, bits: 4, ws: true, sparse: sparse, mask: true})
	}
	for n, c := range all {
		for round := range 2 {
			if round == 1 && !c.ws { // the special numbers of narrow types
				c.n = 16
			}
			if round == 1 && narrows[c.a].bits == 0 {
				continue
			}
			checkTensorProduct(t, c, rand.New(rand.NewPCG(uint64(n), uint64(round))), round == 1)
		}
	}
}

func checkTensorProduct(t *testing.T, c tensorProduct, r *rand.Rand, special bool) {
	t.Helper()
	k := c.k()
	A, kept, meta := make([][]coded, c.m), make([][]coded, c.m), make([][]uint32, c.m)
	B := make([][]coded, c.n)
	for i := range A {
		for range k {
			A[i] = append(A[i], drawn(r, c.a, special))
		}
		if kept[i] = A[i]; c.sparse {
			A[i], kept[i], meta[i] = thinned(r, A[i], c.bits, c.packed())
		}
	}
	// Of each part of the columns some are 0: spans of used ones and such, beginning within one.
	parts, shift, use, skip := max(128/c.m, 1), 0, 1+r.IntN(20), 1+r.IntN(10)
	zero := make([]bool, c.n)
	zeros := uint64(1<<39) | uint64(use-1)<<48 | uint64(skip-1)<<40
	if c.mask {
		shift = r.IntN(17)
		zeros |= uint64(shift) << 56
		for part := range parts {
			first := r.IntN(2)
			start := r.IntN([]int{use, skip}[first])
			zeros |= uint64(start)<<(8*part) | uint64(first)<<(32+part)
			for j := range c.n / parts {
				zero[part*c.n/parts+j] = (first*use+start+j)%(use+skip) >= use
			}
		}
	}
	for range shift { // rows that are not used
		B = append(B, nil)
	}
	for j := range B {
		for range k {
			B[j] = append(B[j], drawn(r, c.b, special))
		}
	}
	// Units of 16 bytes, in groups of eight: rows, or columns if units hold elements of several rows.
	pairs := c.packed()
	image := func(rows [][]coded, typ string, across bool) (all []byte, groups int) {
		bits, unit := 8, 16 // of an element; elements in 16 bytes
		switch {
		case pairs:
			bits, unit = 4, 32
		case typ == "f16" || typ == "bf16":
			bits, unit = 16, 8
		case typ == "tf32":
			bits, unit = 32, 4
		case narrows[typ].bits > 0:
			bits = narrows[typ].bits
		}
		k := len(rows[0])
		groups = k / unit
		if across {
			groups = k / 8
		}
		all = make([]byte, (len(rows)+unit-1)/unit*k*16)
		for i, row := range rows {
			for q, e := range row {
				group, line, place := i/8*groups+q/unit, i%8, q%unit
				if across {
					group, line, place = i/unit*groups+q/8, q%8, i%unit
				}
				for b := range bits {
					bit := 8*(128*group+16*line) + place*bits + b
					all[bit/8] |= byte(e.code>>b&1) << (bit % 8)
				}
			}
		}
		return all, groups
	}
	left, groupsA := image(kept, c.a, c.across&1 != 0)
	right, groupsB := image(B, c.b, c.across&2 != 0)
	shared := append(append([]byte{}, left...), right...)
	// Columns 0 to 3: scales of a, to 11: of b, in each part of 32 lanes; to 15: metadata.
	var tensor [128][16]uint32
	sa, sb := make([][]coded, c.m), make([][]coded, c.n)
	byteA, byteB, selector := 0, 0, 0
	if c.scales > 0 {
		if c.scales < 4 {
			byteA, byteB = r.IntN(4/c.scales)*c.scales, r.IntN(4/c.scales)*c.scales
		}
		put := func(rows [][]coded, column, first int) {
			for i := range rows {
				for q := range c.scales {
					e := drawn(r, c.scale, special)
					rows[i] = append(rows[i], e)
					for part := range 4 {
						tensor[32*part+i%32][column+i/32] |= e.code << (8 * (first + q))
					}
				}
			}
		}
		put(sa, 0, byteA)
		put(sb, 4, byteB)
	}
	if c.sparse {
		selector = r.IntN(2)
		for i, chunks := range meta {
			for q, v := range chunks {
				for from := 0; from < 128; from += c.m { // for each part of the columns
					if c.kind == "f16" || c.kind == "tf32" {
						tensor[from+i%8+8*(q/4)+i/16*16][12+selector] |= v << (16*(i/8%2) + 4*(q%4))
					} else {
						tensor[from+i][12+selector+q/8] |= v << (4 * (q % 8))
					}
				}
			}
		}
	}
	for len(shared)%512 != 0 {
		shared = append(shared, 0)
	}
	var in []uint32
	for i := 0; i < len(shared); i += 4 {
		in = append(in, binary.LittleEndian.Uint32(shared[i:]))
	}
	words := len(in)
	for lane := range tensor {
		in = append(in, tensor[lane][:]...)
	}
	desc := func(groups int) uint64 { return 1<<46 | uint64(groups*128>>4)<<32 | 128>>4<<16 }
	scale, sp := "", ""
	kind := "kind::" + c.kind
	if c.scales > 0 {
		kind += ".block_scale" + map[int]string{1: "", 2: ".block32", 4: ".scale_vec::4X"}[c.scales]
		scale = ", [%r30+256], [%r30+260]"
	}
	mma, mask := "mma", ""
	if c.ws {
		mma = "mma.ws"
	}
	if c.sparse {
		mma, sp = mma+".sp", ", [%r30+268]"
	}
	if c.mask {
		mask = ", %rd9"
	}
	var regs []string
	for i := range 16 {
		regs = append(regs, fmt.Sprintf("%%r%d", 40+i))
	}
	list := strings.Join(regs, ", ")
	multiply := func(predicate string) string {
		return fmt.Sprintf("tcgen05.%s.cta_group::1.%s [%%r36], %%rd6, %%rd7%s, %%r32%s, %s%s;\n", mma, kind, sp, scale, predicate, mask)
	}
	var body strings.Builder
	fmt.Fprintf(&body, `
	mov.u32 %%r10, %%r1;
$fill:
	shl.b32 %%r11, %%r10, 4; cvt.u64.u32 %%rd3, %%r11; add.s64 %%rd3, %%rd1, %%rd3; add.u32 %%r12, %%r2, %%r11;
	ld.global.v4.b32 {%%r20, %%r21, %%r22, %%r23}, [%%rd3];
	st.shared.v4.b32 [%%r12], {%%r20, %%r21, %%r22, %%r23};
	add.u32 %%r10, %%r10, 128;
	setp.lt.u32 %%p3, %%r10, %d;
	@%%p3 bra $fill;
	@%%p1 mbarrier.init.shared.b64 [%%r3], 1;
	fence.proxy.async.shared::cta;
	@!%%p2 bra $allocated;
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%%r4], 512;
$allocated:
	bar.sync 0;
	ld.shared.b32 %%r30, [%%r4];
	shr.u32 %%r34, %%r1, 5; shl.b32 %%r34, %%r34, 21; add.u32 %%r34, %%r34, %%r30;
	add.u32 %%r36, %%r30, %d;
	mul.wide.u32 %%rd3, %%r1, 64; add.s64 %%rd3, %%rd1, %%rd3;
`, words/4, c.lane<<16)
	for i, reg := range regs {
		fmt.Fprintf(&body, "ld.global.b32 %s, [%%rd3+%d];\n", reg, 4*words+4*i)
	}
	fmt.Fprintf(&body, `
	tcgen05.st.sync.aligned.32x32b.x16.b32 [%%r34+256], {%s};
	tcgen05.wait::st.sync.aligned;
	tcgen05.fence::before_thread_sync;
	bar.sync 0;
	tcgen05.fence::after_thread_sync;
	@!%%p1 bra $multiplied;
	shr.u32 %%r31, %%r2, 4; cvt.u64.u32 %%rd5, %%r31;
	or.b64 %%rd6, %%rd5, %#x;
	add.s64 %%rd5, %%rd5, %d;
	or.b64 %%rd7, %%rd5, %#x;
	setp.ne.u32 %%p4, 0, 0;
	setp.eq.u32 %%p5, 0, 0;
	mov.u32 %%r32, %#x;
	mov.b64 %%rd9, %#x;
	%s%s
	tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%%r3];
$multiplied:
	mbarrier.try_wait.parity.shared.b64 %%p6, [%%r3], 0;
	@!%%p6 bra $multiplied;
	tcgen05.fence::after_thread_sync;
	mul.wide.u32 %%rd8, %%r1, 1024; add.s64 %%rd8, %%rd2, %%rd8;
`, list, desc(groupsA), len(left)/16, desc(groupsB), c.descriptor(selector, byteA, byteB), zeros, multiply("%p4"), multiply("%p5"))
	for from := 0; from < c.n; from += 16 {
		fmt.Fprintf(&body, "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%s}, [%%r34+%d];\ntcgen05.wait::ld.sync.aligned;\n", list, from)
		for i, reg := range regs {
			fmt.Fprintf(&body, "st.global.b32 [%%rd8+%d], %s;\n", 4*(from+i), reg)
		}
	}
	body.WriteString("bar.sync 0;\n@!%p2 bra $end;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 512;\n$end:\n")
	out, err := tensorKernel(t, body.String(), in, 128*256)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	for i := range c.m {
		for range 6 { // of each row some columns
			j := r.IntN(c.n)
			lane, column := c.place(i, j)
			var got float64
			switch word := out[256*lane+column]; c.d {
			case "f16":
				got = narrow{16, 10, 15, 65504}.number(uint64(word))
			case "s32":
				got = float64(int32(word))
			default:
				got = float64(math.Float32frombits(word))
			}
			var p product
			for range 2 {
				for q := range k {
					term := [4]float64{A[i][q].value, B[j+shift][q].value, 1, 1}
					if zero[j] {
						term[1] = 0
					}
					if c.scales > 0 {
						term[2], term[3] = sa[i][q*c.scales/k].value, sb[j][q*c.scales/k].value
					}
					p.terms = append(p.terms, term)
				}
			}
			if why := p.check(got, c.d); why != "" {
				t.Fatalf("%+v, row %d, column %d: %s", c, i, j, why)
			}
		}
	}
}

// TestRowCopies copies four rows of 32 bytes to tensor memory, one to each 32 lanes.
func TestRowCopies(t *testing.T) {
	in := make([]uint32, 64)
	for i := range in {
		in[i] = uint32(100 + i)
	}
	const body = `
	mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd1, %rd3; shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r2;
	setp.lt.u32 %p3, %r1, 64;
	@%p3 ld.global.b32 %r6, [%rd3];
	@%p3 st.shared.b32 [%r5], %r6;
	@%p1 mbarrier.init.shared.b64 [%r3], 1;
	fence.proxy.async.shared::cta;
	@!%p2 bra $allocated;
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;
$allocated:
	bar.sync 0;
	ld.shared.b32 %r30, [%r4];
	shr.u32 %r34, %r1, 5; shl.b32 %r34, %r34, 21; add.u32 %r34, %r34, %r30;
	tcgen05.st.sync.aligned.32x32b.x8.b32 [%r34], {7, 7, 7, 7, 7, 7, 7, 7};
	tcgen05.wait::st.sync.aligned;
	tcgen05.fence::before_thread_sync;
	bar.sync 0;
	tcgen05.fence::after_thread_sync;
	@!%p1 bra $copied;
	shr.u32 %r31, %r2, 4; cvt.u64.u32 %rd5, %r31; or.b64 %rd5, %rd5, 0x400000080000; // units of 128 bytes
	add.u32 %r36, %r30, LANE;
	tcgen05.cp.cta_group::1.4x256b [%r36], %rd5;
	tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
$copied:
	mbarrier.try_wait.parity.shared.b64 %p6, [%r3], 0;
	@!%p6 bra $copied;
	tcgen05.fence::after_thread_sync;
	tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r40, %r41, %r42, %r43, %r44, %r45, %r46, %r47}, [%r34];
	tcgen05.wait::ld.sync.aligned;
	mul.wide.u32 %rd8, %r1, 32; add.s64 %rd8, %rd2, %rd8;
	st.global.v4.b32 [%rd8], {%r40, %r41, %r42, %r43}; st.global.v4.b32 [%rd8+16], {%r44, %r45, %r46, %r47};
	bar.sync 0;
	@!%p2 ret;
	tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 32;`
	out, err := tensorKernel(t, strings.Replace(body, "LANE", "0x50000", 1), in, 128*8)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range out {
		want := uint32(7)
		if lane, word := i/8, i%8; lane%32 == 5 {
			want = in[word/4*32+lane/32*4+word%4]
		}
		if got != want {
			t.Fatalf("lane %d, word %d: got %d, want %d", i/8, i%8, got, want)
		}
	}
	_, err = tensorKernel(t, strings.Replace(body, "LANE", "0x200000", 1), in, 128*8)
	if err == nil || !strings.Contains(err.Error(), "of tensor memory at lane 32") {
		t.Errorf("got %v, want a wrong range", err)
	}
}

// A stationary a of 32 rows has its result in four parts, which 8 columns cannot fill; a pair needs two blocks.
func TestTensorProductRange(t *testing.T) {
	const alloc = "@!%p2 ret;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;\nld.shared.b32 %r30, [%r4];\n" +
		"mov.u64 %rd6, 0; mov.u32 %r32, %d;\nsetp.ne.u32 %p4, 0, 0;\n@!%p1 ret;\n"
	few := fmt.Sprintf("%d", 1<<4|8>>3<<17|32>>4<<24)
	for _, body := range []string{
		strings.Replace(alloc, "%d", few, 1) + "tcgen05.mma.ws.cta_group::1.kind::f16 [%r30], %rd6, %rd6, %r32, %p4;",
		strings.Replace(alloc, "%d", "0", 1) + "tcgen05.shift.cta_group::2.down [%r30];",
		strings.Replace(alloc, "%d", "0", 1) + "tcgen05.cp.cta_group::2.32x128b.warpx4 [%r30], %rd6;",
	} {
		if _, err := tensorKernel(t, body, []uint32{0}, 1); err == nil || !strings.Contains(err.Error(), "of tensor memory at lane 0") {
			t.Errorf("%s: got %v, want a wrong range", body[strings.LastIndex(body, "tcgen05"):], err)
		}
	}
	pair := strings.Replace(alloc, "%d", fmt.Sprint(1<<2|1<<4|64>>3<<17|128>>4<<24), 1) +
		"tcgen05.mma.sp.cta_group::2.kind::f16 [%r30], %rd6, %rd6, [%r30], %r32, %p4;" // 64 rows for each
	if _, err := tensorKernel(t, pair, []uint32{0}, 1); err == nil || !strings.Contains(err.Error(), "does not support tcgen05.mma.sp.cta_group::2") {
		t.Errorf("sparse rows of two CTAs: got %v, want no support", err)
	}
}

// thinned leaves out half of a row. It returns the row with zeros instead, what is left, and four bits for each chunk.
func thinned(r *rand.Rand, row []coded, bits int, pairs bool) (all, kept []coded, meta []uint32) {
	all = make([]coded, len(row))
	chunk, unit := 4, 1
	switch {
	case bits == 32:
		chunk = 2
	case pairs:
		chunk, unit = 8, 2
	}
	for from := 0; from < len(row); from += chunk {
		places := [][2]int{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}[r.IntN(6)]
		if chunk == 2 { // the element's halves
			places = [][2]int{{0, 1}, {2, 3}}[r.IntN(2)]
		}
		meta = append(meta, uint32(places[0]|places[1]<<2))
		for n, p := range places {
			for u := range unit {
				o := from + p*unit + u
				if chunk == 2 {
					if o = from + p/2; n == 1 {
						continue
					}
				}
				all[o] = row[o]
				kept = append(kept, row[o])
			}
		}
	}
	return all, kept, meta
}
