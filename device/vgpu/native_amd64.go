//go:build linux && cgo && amd64

package vgpu

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// Straight runs of instructions that work on each lane alone are translated to x86-64 code with AVX2. It handles eight
// lanes at a time, a strip, and keeps values in registers until the strip's end. All other instructions, and all
// checks, are the executor's. $FISUB_EMU_JIT=0 turns translation off.

// A nativeRun is the code of a run: vg_native in exec.h.
type nativeRun struct {
	full, part uintptr // functions of (base) and of (base, mask), for all lanes and for those in the mask
	n          int32   // instructions
	_          int32
}

// shortest is the number of instructions from which a run is translated.
const shortest = 2

// translate returns a nativeRun for each instruction of code, or nil without any run. The memory of translated code is
// never freed, like that of decoded code.
func translate(code []inst) []nativeRun {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasBMI2 || os.Getenv("FISUB_EMU_JIT") == "0" {
		return nil
	}
	type place struct{ pc, n, full, part int }
	var places []place
	var g native
	for pc := 0; pc < len(code); {
		n := 0
		for pc+n < len(code) && translatable(&code[pc+n]) && (n == 0 || code[pc+n].flags&flagLeader == 0) {
			n++
		}
		if n < shortest {
			pc += max(n, 1)
			continue
		}
		p := place{pc: pc, n: n, full: len(g.code)}
		g.run(code[pc:pc+n], false)
		p.part = len(g.code)
		g.run(code[pc:pc+n], true)
		places = append(places, p)
		pc += n
	}
	if len(places) == 0 {
		return nil
	}
	size := (len(g.code) + tableSize + 4095) &^ 4095
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil
	}
	base := uintptr(unsafe.Pointer(&memory[0]))
	writeTable(memory)
	copy(memory[tableSize:], g.code)
	if unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC) != nil { // the machine may forbid it
		_ = unix.Munmap(memory)
		return nil
	}
	runs := make([]nativeRun, len(code))
	for _, p := range places {
		runs[p.pc] = nativeRun{full: base + uintptr(tableSize+p.full), part: base + uintptr(tableSize+p.part), n: int32(p.n)}
	}
	return runs
}

// Constants of 32 bytes, by their offset.
const (
	constBits     = 32 * iota // 1, 2, 4, ... for the lanes of a strip
	constNaN                  // the canonical one
	constExponent             // of float32
	constSign
	constMagnitude
	constAll
	constSign64
	constMagnitude64
	constQuiet  // the bit of a quiet NaN of float64
	constShared // windows of generic addresses
	constLocal
	tableSize
)

func writeTable(to []byte) {
	for i := range 8 {
		put := func(at int, v uint32) { binary.LittleEndian.PutUint32(to[at+4*i:], v) }
		put(constBits, 1<<i)
		put(constNaN, 0x7fffffff)
		put(constExponent, 0x7f800000)
		put(constSign, 1<<31)
		put(constMagnitude, 1<<31-1)
		put(constAll, 0xffffffff)
	}
	for i := range 4 {
		binary.LittleEndian.PutUint64(to[constSign64+8*i:], 1<<63)
		binary.LittleEndian.PutUint64(to[constMagnitude64+8*i:], 1<<63-1)
		binary.LittleEndian.PutUint64(to[constQuiet+8*i:], 1<<51)
		binary.LittleEndian.PutUint64(to[constShared+8*i:], 0x40<<56)
		binary.LittleEndian.PutUint64(to[constLocal+8*i:], 0x41<<56)
	}
}

// Registers. The frame, the pool and the warp's registers are at r8, r9 and r10, as operands are encoded. r11 has the
// number of the strip, rdi 32 times it. rsi has the mask from the strip on, edx the strip's part of it, laneMask the
// same as a vector.
const (
	free     = 13 // ymm0 to ymm12 hold values
	scratch  = 13
	laneMask = 14
	scratch2 = 15
)

// A kind is the layout of a value.
type valueKind uint8

const (
	word  valueKind = iota + 1 // 32 bits per lane
	lower                      // 64 bits, of the first four lanes of a strip
	upper                      // and of the others
	pred                       // a bit per lane; in a register a word of ones or zeros
)

type value struct {
	place int32
	kind  valueKind
}

// native generates code.
type native struct {
	code    []byte // follows the constants
	partial bool
	held    [free]value // by register; kind 0: none
	dirty   [free]bool
	age     [free]int
	pinned  [free]bool
	now     int
}

func (g *native) run(code []inst, partial bool) {
	g.partial = partial
	g.emit(0x4c, 0x8b, 0x07, 0x4c, 0x8b, 0x4f, 0x08, 0x4c, 0x8b, 0x57, 0x10) // mov r8, [rdi]; r9, [rdi+8]; r10, [rdi+16]
	g.emit(0x31, 0xff, 0x45, 0x31, 0xdb)                                     // xor edi, edi; xor r11d, r11d
	again := len(g.code)
	if partial {
		g.emit(0x40, 0x0f, 0xb6, 0xd6) // movzx edx, sil
		g.broadcast(laneMask, 2)
	}
	for i := range code {
		g.pinned = [free]bool{}
		g.instruction(&code[i])
	}
	for y := range g.held {
		g.store(y)
		g.held[y] = value{}
	}
	g.emit(0xc1, 0xee, 0x08, 0x83, 0xc7, 0x20, 0x41, 0xff, 0xc3) // shr esi, 8; add edi, 32; inc r11d
	g.emit(0x81, 0xff, 0x80, 0, 0, 0)                            // cmp edi, 128
	g.emit(0x0f, 0x82)                                           // jb again
	g.code = binary.LittleEndian.AppendUint32(g.code, uint32(again-len(g.code)-4))
	g.emit(0xc5, 0xf8, 0x77, 0xc3) // vzeroupper; ret
}

func (g *native) emit(b ...byte) { g.code = append(g.code, b...) }

// Opcodes as map<<16 | prefix<<8 | opcode, with wideBit for VEX.W.
const (
	m0f, m38, m3a = 1 << 16, 2 << 16, 3 << 16
	p66, wideBit  = 1 << 8, 1 << 24

	vmovups, vmovupsStore      = m0f | 0x10, m0f | 0x11
	vpaddd, vpsubd, vpmulld    = m0f | p66 | 0xfe, m0f | p66 | 0xfa, m38 | p66 | 0x40
	vpand, vpandn, vpor, vpxor = m0f | p66 | 0xdb, m0f | p66 | 0xdf, m0f | p66 | 0xeb, m0f | p66 | 0xef
	vpaddq, vpsubq             = m0f | p66 | 0xd4, m0f | p66 | 0xfb
	vpsllvd, vpsrlvd, vpsravd  = m38 | p66 | 0x47, m38 | p66 | 0x45, m38 | p66 | 0x46
	vpsllvq, vpsrlvq           = m38 | p66 | wideBit | 0x47, m38 | p66 | wideBit | 0x45
	vpminsd, vpmaxsd           = m38 | p66 | 0x39, m38 | p66 | 0x3d
	vpminud, vpmaxud           = m38 | p66 | 0x3b, m38 | p66 | 0x3f
	vpcmpeqd, vpcmpgtd         = m0f | p66 | 0x76, m0f | p66 | 0x66
	vaddps, vsubps, vmulps     = m0f | 0x58, m0f | 0x5c, m0f | 0x59
	vcmpps, vblendvps          = m0f | 0xc2, m3a | p66 | 0x4a
	vaddpd, vsubpd, vmulpd     = m0f | p66 | 0x58, m0f | p66 | 0x5c, m0f | p66 | 0x59
	vcmppd, vblendvpd          = m0f | p66 | 0xc2, m3a | p66 | 0x4b
	vfmadd213pd                = m38 | p66 | wideBit | 0xa8
	vcvtdq2pd                  = m0f | 2<<8 | 0xe6
	vpcmpeqq, vpcmpgtq         = m38 | p66 | 0x29, m38 | p66 | 0x37
	vpslliq                    = m0f | p66 | 0x73
	vfmadd213ps                = m38 | p66 | 0xa8
	vmovmskps, vcvtdq2ps       = m0f | 0x50, m0f | 0x5b
	vpmuludq, vpmuldq          = m0f | p66 | 0xf4, m38 | p66 | 0x28
	vpmovzxdq, vpmovsxdq       = m38 | p66 | 0x35, m38 | p66 | 0x25
	vextracti128, vpermq       = m3a | p66 | 0x39, m3a | p66 | wideBit
	vshufps                    = m0f | 0xc6
	vpbroadcastd               = m38 | p66 | 0x58
	unordered                  = 3 // of vcmpps
)

// vex emits a VEX prefix for 256 bits and the opcode.
func (g *native) vex(op, reg, first, rm int) {
	g.emit(0xc4, byte((^reg>>3&1)<<7|1<<6|(^rm>>3&1)<<5|op>>16&0xff), byte(op>>24<<7|(^first&15)<<3|1<<2|op>>8&0xff),
		byte(op))
}

// op emits reg = first OP rm. Without a first operand, it is 0.
func (g *native) op(op, reg, first, rm int) {
	g.vex(op, reg, first, rm)
	g.emit(byte(3<<6 | (reg&7)<<3 | rm&7))
}

// memory emits reg = first OP the strip's part of a value.
func (g *native) memory(op, reg, first int, v value) {
	scale, at := byte(0), int(v.place>>2)
	if v.kind != word { // 64 bits: 64 bytes per strip
		scale = 1
	}
	if v.kind == upper {
		at += 32
	}
	base := 8 + int(v.place&3)
	g.vex(op, reg, first, base)
	g.emit(byte(2<<6|(reg&7)<<3|4), scale<<6|7<<3|byte(base&7)) // index rdi
	g.code = binary.LittleEndian.AppendUint32(g.code, uint32(at))
}

// constant emits reg = first OP a constant.
func (g *native) constant(op, reg, first, at int) {
	g.vex(op, reg, first, 0)
	g.emit(byte((reg&7)<<3 | 5)) // relative to the next instruction
	g.code = binary.LittleEndian.AppendUint32(g.code, uint32(at-tableSize-len(g.code)-4))
}

// blend emits reg = mask ? yes : no.
func (g *native) blend(reg, no, yes, mask int) {
	g.op(vblendvps, reg, no, yes)
	g.emit(byte(mask << 4))
}

// broadcast makes a vector of the lowest eight bits of eax (0) or edx (2).
func (g *native) broadcast(reg, from int) {
	g.emit(0xc4, byte((^reg>>3&1)<<7|1<<6|1<<5|1), byte(15<<3|1), 0x6e, byte(3<<6|(reg&7)<<3|from)) // vmovd
	g.op(vpbroadcastd, reg, 0, reg)
	g.constant(vpand, reg, reg, constBits)
	g.constant(vpcmpeqd, reg, reg, constBits)
}

// byteOf emits an instruction on a byte of memory and the register al (0) or cl (1).
func (g *native) byteOf(v value, reg byte, op ...byte) {
	g.emit(0x43) // REX.X, REX.B: the index r11, the base r8 to r10
	g.emit(op...)
	g.emit(2<<6|reg<<3|4, 3<<3|byte(v.place&3))
	g.code = binary.LittleEndian.AppendUint32(g.code, uint32(v.place>>2))
}

// store writes a register back if it was changed.
func (g *native) store(y int) {
	v := g.held[y]
	if v.kind == 0 || !g.dirty[y] {
		return
	}
	g.dirty[y] = false
	if v.kind == pred {
		g.op(vmovmskps, 0, 0, y)
		if g.partial {
			g.byteOf(v, 1, 0x0f, 0xb6)                 // movzx ecx, old
			g.emit(0x31, 0xc8, 0x21, 0xd0, 0x31, 0xc8) // eax = ((eax ^ ecx) & edx) ^ ecx
		}
		g.byteOf(v, 0, 0x88)
		return
	}
	if g.partial {
		mask := laneMask
		if v.kind != word { // eight words of the mask for four lanes
			g.widen(scratch2, laneMask, v.kind, vpmovsxdq)
			mask = scratch2
		}
		g.memory(vmovups, scratch, 0, v)
		g.blend(y, scratch, y, mask)
	}
	g.memory(vmovupsStore, y, 0, v)
}

// widen emits reg = the half of the words in from, extended to 64 bits.
func (g *native) widen(reg, from int, half valueKind, op int) {
	if half == upper {
		g.op(vextracti128, from, 0, reg)
		g.emit(1)
		from = reg
	}
	g.op(op, reg, 0, from)
}

// take returns a register for a value, and writes the oldest one back if none is left.
func (g *native) take() int {
	oldest := -1
	for y := range g.held {
		if g.pinned[y] {
			continue
		}
		if g.held[y].kind == 0 {
			oldest = y
			break
		}
		if oldest < 0 || g.age[y] < g.age[oldest] {
			oldest = y
		}
	}
	g.store(oldest)
	g.held[oldest] = value{}
	g.pinned[oldest] = true
	g.now++
	g.age[oldest] = g.now
	return oldest
}

// use returns the register of a value.
func (g *native) use(place int32, kind valueKind) int {
	v := value{place, kind}
	for y := range g.held {
		if g.held[y] == v {
			g.pinned[y] = true
			g.now++
			g.age[y] = g.now
			return y
		}
	}
	y := g.take()
	g.held[y] = v
	if kind == pred {
		g.byteOf(v, 0, 0x0f, 0xb6)
		g.broadcast(y, 0)
		return y
	}
	g.memory(vmovups, y, 0, v)
	return y
}

// set makes register y the value of a place. With a guard, lanes outside of it keep the old one.
func (g *native) set(in *inst, place int32, kind valueKind, y int) {
	v := value{place, kind}
	if in.guard >= 0 {
		old, mask := g.use(place, kind), g.guard(in, kind)
		g.blend(y, old, y, mask)
	}
	for o := range g.held {
		if g.held[o] == v {
			g.held[o] = value{}
		}
	}
	g.held[y], g.dirty[y] = v, true
}

// guard returns the vector of an instruction's guard for values of a kind, in a scratch register.
func (g *native) guard(in *inst, kind valueKind) int {
	mask := g.use(in.guard, pred)
	if in.flags&flagNegated != 0 {
		g.constant(vpxor, scratch, mask, constAll)
		mask = scratch
	}
	if kind == lower || kind == upper {
		g.widen(scratch2, mask, kind, vpmovsxdq)
		mask = scratch2
	}
	return mask
}

// shapes has the operations that are translated, with the kinds of d, a, b and c: w for words, q for 64 bits, p for
// predicates.
var shapes = map[opcode]string{
	opMov32: "ww", opMov64: "qq", opMov32_64: "qw", opMov64_32: "wq", opHi32: "wq", opNot32: "ww",
	opNeg32: "ww", opNot64: "qq", opNegF32: "ww", opAbsF32: "ww", opFlushF32: "ww", opCvtU32_64: "qw",
	opCvtS32_64: "qw", opCvtF32S32: "ww", opCvtaShared: "qq", opCvtaToShared: "qq", opCvtaLocal: "qq",
	opCvtaToLocal: "qq", opAdd32: "www", opSub32: "www", opMullo32: "www", opAdd64: "qqq", opSub64: "qqq",
	opMulwideS32: "qww", opMulwideU32: "qww", opAnd32: "www", opOr32: "www", opXor32: "www",
	opAnd64: "qqq", opOr64: "qqq", opXor64: "qqq", opShl32: "www", opShrU32: "www", opShrS32: "www",
	opShl64: "qqw", opShrU64: "qqw", opMinS32: "www", opMaxS32: "www", opMinU32: "www", opMaxU32: "www",
	opAddF32: "www", opSubF32: "www", opMulF32: "www", opAddFtzF32: "www", opSubFtzF32: "www",
	opMulFtzF32: "www", opMinF32: "www", opMaxF32: "www", opMadlo32: "wwww", opMadwideS32: "qwwq",
	opMadwideU32: "qwwq", opFmaF32: "wwww", opFmaFtzF32: "wwww", opSetpS32: "pww", opSetpU32: "pww",
	opSetpF32: "pww", opSelp32: "wwwp", opSelp64: "qqqp", opPand: "ppp", opPor: "ppp", opPxor: "ppp",
	opPnot: "pp", opPmov: "pp", opPconst: "p", opLop3: "wwww", opAddF64: "qqq", opSubF64: "qqq",
	opMulF64: "qqq", opFmaF64: "qqqq", opSetpF64: "pqq", opSetpS64: "pqq", opSetpU64: "pqq",
	opMullo64: "qqq", opMadlo64: "qqqq", opNegF64: "qq", opAbsF64: "qq", opCvtF64S32: "qw",
}

// single has those that are one instruction for each part of a value.
var single = map[opcode]int{
	opAdd32: vpaddd, opSub32: vpsubd, opMullo32: vpmulld, opAdd64: vpaddq, opSub64: vpsubq, opAnd32: vpand,
	opOr32: vpor, opXor32: vpxor, opAnd64: vpand, opOr64: vpor, opXor64: vpxor, opShl32: vpsllvd,
	opShrU32: vpsrlvd, opShrS32: vpsravd, opMinS32: vpminsd, opMaxS32: vpmaxsd, opMinU32: vpminud,
	opMaxU32: vpmaxud, opPand: vpand, opPor: vpor, opPxor: vpxor,
}

// floatOperations has those on float32 numbers, whose NaN results are canonical, and whether subnormal numbers are
// flushed.
var floatOperations = map[opcode]struct {
	op  int
	ftz bool
}{opAddF32: {vaddps, false}, opSubF32: {vsubps, false}, opMulF32: {vmulps, false},
	opFmaF32:    {vfmadd213ps, false},
	opAddFtzF32: {vaddps, true},
	opSubFtzF32: {vsubps, true}, opMulFtzF32: {vmulps, true}, opFmaFtzF32: {vfmadd213ps, true}}

// comparisons of vcmpps by CMP_*.
var floatCompare = [...]byte{
	cmpEq: 0, cmpNe: 12, cmpLt: 17, cmpLe: 18, cmpGt: 30, cmpGe: 29, cmpEqu: 8, cmpNeu: 4, cmpLtu: 25,
	cmpLeu: 26, cmpGtu: 22, cmpGeu: 21, cmpNum: 7, cmpNan: 3,
}

func translatable(in *inst) bool {
	_, ok := shapes[in.op]
	integers := in.op == opSetpS32 || in.op == opSetpU32 || in.op == opSetpS64 || in.op == opSetpU64
	return ok && !(integers && in.kind > cmpGeu)
}

// parts returns the parts of a value with a letter of shapes.
func parts(letter byte) []valueKind {
	switch letter {
	case 'q':
		return []valueKind{lower, upper}
	case 'p':
		return []valueKind{pred}
	}
	return []valueKind{word}
}

// each sets the parts of an instruction's result, which has a letter of shapes, to the registers that f returns.
func (g *native) each(in *inst, letter byte, f func(part valueKind) int) {
	for _, part := range parts(letter) {
		g.set(in, in.d, part, f(part))
		g.pinned = [free]bool{}
	}
}

func (g *native) instruction(in *inst) {
	shape := shapes[in.op]
	operands := [4]int32{in.d, in.a, in.b, in.c}
	source := func(i int, kind valueKind) int { return g.use(operands[i], kind) }
	if op, ok := single[in.op]; ok {
		g.each(in, shape[0], func(part valueKind) int {
			a, b, y := source(1, part), source(2, part), g.take()
			g.op(op, y, a, b)
			return y
		})
		return
	}
	if f, ok := floatOperations[in.op]; ok {
		y := g.take()
		a := g.number(source(1, word), f.ftz)
		if len(shape) == 4 {
			g.op(vmovups, y, 0, a)
			b := g.number(source(2, word), f.ftz)
			g.op(f.op, y, b, g.number(source(3, word), f.ftz))
		} else {
			g.op(f.op, y, a, g.number(source(2, word), f.ftz))
		}
		g.canonical(y)
		if f.ftz {
			g.flush(y, y)
		}
		g.set(in, in.d, word, y)
		return
	}
	switch in.op {
	case opMov32, opMov64, opPmov:
		g.each(in, shape[0], func(part valueKind) int {
			a, y := source(1, part), g.take()
			g.op(vmovups, y, 0, a)
			return y
		})
	case opNot32, opNot64, opPnot:
		g.each(in, shape[0], func(part valueKind) int {
			a, y := source(1, part), g.take()
			g.constant(vpxor, y, a, constAll)
			return y
		})
	case opNeg32:
		a, y := source(1, word), g.take()
		g.op(vpxor, y, y, y)
		g.op(vpsubd, y, y, a)
		g.set(in, in.d, word, y)
	case opPconst:
		y := g.take()
		if in.imm != 0 {
			g.op(vpcmpeqd, y, y, y)
		} else {
			g.op(vpxor, y, y, y)
		}
		g.set(in, in.d, pred, y)
	case opCvtaShared, opCvtaToShared, opCvtaLocal, opCvtaToLocal:
		op, at := vpaddq, constShared
		if in.op == opCvtaToShared || in.op == opCvtaToLocal {
			op = vpsubq
		}
		if in.op == opCvtaLocal || in.op == opCvtaToLocal {
			at = constLocal
		}
		g.each(in, 'q', func(part valueKind) int {
			a, y := source(1, part), g.take()
			g.constant(op, y, a, at)
			return y
		})
	case opMov32_64, opCvtU32_64, opCvtS32_64:
		op := vpmovzxdq
		if in.op == opCvtS32_64 {
			op = vpmovsxdq
		}
		a, lo, hi := source(1, word), g.take(), g.take()
		g.widen(lo, a, lower, op)
		g.widen(hi, a, upper, op)
		g.set(in, in.d, lower, lo)
		g.set(in, in.d, upper, hi)
	case opMov64_32, opHi32:
		order := byte(0x88)
		if in.op == opHi32 {
			order = 0xdd
		}
		lo, hi, y := source(1, lower), source(1, upper), g.take()
		g.op(vshufps, y, lo, hi)
		g.emit(order)
		g.op(vpermq, y, 0, y)
		g.emit(0xd8)
		g.set(in, in.d, word, y)
	case opMulwideS32, opMulwideU32, opMadwideS32, opMadwideU32:
		op, extend := vpmuludq, vpmovzxdq
		if in.op == opMulwideS32 || in.op == opMadwideS32 {
			op, extend = vpmuldq, vpmovsxdq
		}
		g.each(in, 'q', func(part valueKind) int {
			a, b, x, y := source(1, word), source(2, word), g.take(), g.take()
			g.widen(x, a, part, extend)
			g.widen(y, b, part, extend)
			g.op(op, y, x, y)
			if len(shape) == 4 {
				g.op(vpaddq, y, y, source(3, part))
			}
			return y
		})
	case opShl64, opShrU64:
		op := vpsllvq
		if in.op == opShrU64 {
			op = vpsrlvq
		}
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, word), g.take()
			g.widen(y, b, part, vpmovzxdq)
			g.op(op, y, a, y)
			return y
		})
	case opMadlo32:
		a, b, c, y := source(1, word), source(2, word), source(3, word), g.take()
		g.op(vpmulld, y, a, b)
		g.op(vpaddd, y, y, c)
		g.set(in, in.d, word, y)
	case opNegF32, opAbsF32:
		a, y := source(1, word), g.take()
		if in.op == opNegF32 {
			g.constant(vpxor, y, a, constSign)
		} else {
			g.constant(vpand, y, a, constMagnitude)
		}
		g.canonical(y)
		g.set(in, in.d, word, y)
	case opFlushF32:
		a, y := source(1, word), g.take()
		g.flush(y, a)
		g.set(in, in.d, word, y)
	case opCvtF32S32:
		a, y := source(1, word), g.take()
		g.op(vcvtdq2ps, y, 0, a)
		g.set(in, in.d, word, y)
	case opMinF32, opMaxF32:
		g.choice(in)
	case opSetpF32:
		a, b, y := source(1, word), source(2, word), g.take()
		g.op(vcmpps, y, a, b)
		g.emit(floatCompare[in.kind])
		g.set(in, in.d, pred, y)
	case opSetpS32, opSetpU32:
		a, b, y := source(1, word), source(2, word), g.take()
		g.integers(in, y, a, b, vpcmpeqd, vpcmpgtd, constSign)
		g.set(in, in.d, pred, y)
	case opSelp32, opSelp64:
		g.each(in, shape[0], func(part valueKind) int {
			a, b, p, y := source(1, part), source(2, part), source(3, pred), g.take()
			if part != word {
				g.widen(scratch2, p, part, vpmovsxdq)
				p = scratch2
			}
			g.blend(y, b, a, p)
			return y
		})
	case opLop3:
		g.lop3(in)
	case opAddF64, opSubF64, opMulF64, opFmaF64:
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, part), g.take()
			order := []int{a, b} // the last NaN wins
			switch in.op {
			case opAddF64:
				g.op(vaddpd, y, a, b)
			case opSubF64:
				g.op(vsubpd, y, a, b)
			case opMulF64:
				g.op(vmulpd, y, a, b)
			default:
				c := source(3, part)
				order = append(order, c)
				g.op(vmovups, y, 0, a)
				g.op(vfmadd213pd, y, b, c)
			}
			for _, x := range order {
				g.quiet(y, y, x)
			}
			return y
		})
	case opNegF64, opAbsF64:
		g.each(in, 'q', func(part valueKind) int {
			a, y := source(1, part), g.take()
			if in.op == opNegF64 {
				g.constant(vpxor, y, a, constSign64)
			} else {
				g.constant(vpand, y, a, constMagnitude64)
			}
			g.quiet(y, y, a)
			return y
		})
	case opCvtF64S32:
		g.each(in, 'q', func(part valueKind) int {
			a, y := source(1, word), g.take()
			if part == upper {
				g.op(vextracti128, a, 0, y)
				g.emit(1)
				a = y
			}
			g.op(vcvtdq2pd, y, 0, a)
			return y
		})
	case opMullo64, opMadlo64:
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, part), g.take()
			c := 0
			if in.op == opMadlo64 {
				c = source(3, part)
			}
			g.shift(scratch, a, 2, 32) // the upper halves
			g.op(vpmuludq, scratch, scratch, b)
			g.shift(scratch2, b, 2, 32)
			g.op(vpmuludq, scratch2, scratch2, a)
			g.op(vpaddq, scratch, scratch, scratch2)
			g.shift(scratch, scratch, 6, 32)
			g.op(vpmuludq, y, a, b)
			g.op(vpaddq, y, y, scratch)
			if in.op == opMadlo64 {
				g.op(vpaddq, y, y, c)
			}
			return y
		})
	case opSetpF64, opSetpS64, opSetpU64:
		var halves [2]int
		for i, part := range parts('q') {
			a, b := source(1, part), source(2, part)
			halves[i] = g.take()
			g.compare64(in, halves[i], a, b)
		}
		y := g.take()
		g.op(vshufps, y, halves[0], halves[1])
		g.emit(0x88)
		g.op(vpermq, y, 0, y)
		g.emit(0xd8)
		g.set(in, in.d, pred, y)
	}
}

// shift emits to = from shifted by bits: how is 2 for right, 6 for left.
func (g *native) shift(to, from, how int, bits byte) {
	g.op(vpslliq, how, to, from)
	g.emit(bits)
}

// quiet emits y = no, or x as a quiet NaN where x is a NaN.
func (g *native) quiet(y, no, x int) {
	g.op(vcmppd, scratch, x, x)
	g.emit(unordered)
	g.constant(vpor, scratch2, x, constQuiet)
	g.op(vblendvpd, y, no, scratch2)
	g.emit(scratch << 4)
}

// compare64 is setp of 64 bits, for half a strip.
func (g *native) compare64(in *inst, y, a, b int) {
	if in.op == opSetpF64 {
		g.op(vcmppd, y, a, b)
		g.emit(floatCompare[in.kind])
		return
	}
	g.integers(in, y, a, b, vpcmpeqq, vpcmpgtq, constSign64)
}

// integers emits y = a comparison of integers, by instructions for equal and for greater signed ones.
func (g *native) integers(in *inst, y, a, b, equal, greater, sign int) {
	switch in.kind {
	case cmpEq, cmpNe, cmpEqu, cmpNeu:
		g.op(equal, y, a, b)
	default:
		if in.op == opSetpU32 || in.op == opSetpU64 {
			g.constant(vpxor, scratch, a, sign)
			g.constant(vpxor, scratch2, b, sign)
			a, b = scratch, scratch2
		}
		if in.kind == cmpLt || in.kind == cmpGe || in.kind == cmpLtu || in.kind == cmpGeu {
			a, b = b, a
		}
		g.op(greater, y, a, b)
	}
	switch in.kind {
	case cmpNe, cmpNeu, cmpGe, cmpLe, cmpGeu, cmpLeu:
		g.constant(vpxor, y, y, constAll)
	}
}

// number returns the register of an operand whose subnormal numbers are flushed if ftz is set.
func (g *native) number(y int, ftz bool) int {
	if !ftz {
		return y
	}
	to := g.take()
	g.flush(to, y)
	return to
}

// flush emits to = from, with zeros of the same sign for subnormal numbers.
func (g *native) flush(to, from int) {
	g.constant(vpand, scratch, from, constExponent)
	g.op(vpxor, scratch2, scratch2, scratch2)
	g.op(vpcmpeqd, scratch, scratch, scratch2)
	g.constant(vpand, scratch2, from, constSign)
	g.blend(to, from, scratch2, scratch)
}

// canonical makes NaNs of y canonical.
func (g *native) canonical(y int) {
	g.op(vcmpps, scratch, y, y)
	g.emit(unordered)
	g.constant(vmovups, scratch2, 0, constNaN)
	g.blend(y, y, scratch2, scratch)
}

// choice is min.f32 and max.f32: -0 is below +0, and a number is preferred to a NaN.
func (g *native) choice(in *inst) {
	a, b, y := g.use(in.a, word), g.use(in.b, word), g.take()
	order, both := byte(17), vpor // a < b
	if in.op == opMaxF32 {
		order, both = 30, vpand
	}
	g.op(vcmpps, scratch, a, b)
	g.emit(order)
	g.blend(y, b, a, scratch)
	g.op(vcmpps, scratch, a, b) // equal: zeros of both signs
	g.emit(0)
	g.op(both, scratch2, a, b)
	g.blend(y, y, scratch2, scratch)
	g.op(vcmpps, scratch, b, b)
	g.emit(unordered)
	g.blend(y, y, a, scratch)
	g.op(vcmpps, scratch, a, a)
	g.emit(unordered)
	g.blend(y, y, b, scratch)
	g.canonical(y) // both are NaN
	g.set(in, in.d, word, y)
}

// lop3 combines the products that the table has.
func (g *native) lop3(in *inst) {
	a, b, c, y := g.use(in.a, word), g.use(in.b, word), g.use(in.c, word), g.take()
	g.op(vpxor, y, y, y)
	for i := range 8 {
		if in.kind>>i&1 == 0 {
			continue
		}
		g.op(vpcmpeqd, scratch, scratch, scratch)
		for n, x := range []int{c, b, a} {
			if i>>n&1 != 0 {
				g.op(vpand, scratch, scratch, x)
			} else {
				g.op(vpandn, scratch, x, scratch)
			}
		}
		g.op(vpor, y, y, scratch)
	}
	g.set(in, in.d, word, y)
}
