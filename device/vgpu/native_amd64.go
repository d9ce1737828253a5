//go:build linux && cgo && amd64

package vgpu

import (
	"encoding/binary"
	"math"
	"os"
	"strings"
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

// translate returns a nativeRun for each instruction of code, or nil without any run. extra has further operands,
// params is the size in bytes of the kernel's parameters. The memory of translated code is never freed, like that of
// decoded code.
func translate(code []inst, extra []int32, params int32) []nativeRun {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasBMI2 || os.Getenv("FISUB_EMU_JIT") == "0" {
		return nil
	}
	type place struct{ pc, n, full, part int }
	var places []place
	g := native{extra: extra, params: params}
	for pc := 0; pc < len(code); {
		n := 0
		for pc+n < len(code) && g.translatable(&code[pc+n]) && (n == 0 || code[pc+n].flags&flagLeader == 0) {
			n++
		}
		if n == 0 {
			pc++
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
	constHalf  // the lower halves of words
	constByte  // their lowest bytes
	constNaN16 // the canonical NaN of float16 and bfloat16, and what rounds to bfloat16
	constWord  // 1
	constOne   // 1 and powers of two as float32
	const2p16
	const2p31
	const2p32
	const2p31f64
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
		put(constHalf, 0xffff)
		put(constByte, 0xff)
		put(constNaN16, 0x7fff)
		put(constWord, 1)
		put(constOne, math.Float32bits(1))
		put(const2p16, math.Float32bits(1<<16))
		put(const2p31, math.Float32bits(1<<31))
		put(const2p32, math.Float32bits(1<<32))
	}
	for i := range 4 {
		binary.LittleEndian.PutUint64(to[constSign64+8*i:], 1<<63)
		binary.LittleEndian.PutUint64(to[constMagnitude64+8*i:], 1<<63-1)
		binary.LittleEndian.PutUint64(to[constQuiet+8*i:], 1<<51)
		binary.LittleEndian.PutUint64(to[constShared+8*i:], 0x40<<56)
		binary.LittleEndian.PutUint64(to[constLocal+8*i:], 0x41<<56)
		binary.LittleEndian.PutUint64(to[const2p31f64+8*i:], math.Float64bits(1<<31))
	}
}

// Registers. The frame, the pool and the warp's registers are at r8, r9 and r10, as operands are encoded, the
// parameters at rcx. r11 has the number of the strip, rdi 32 times it. rsi has the mask from the strip on, edx the
// strip's part of it, laneMask the same as a vector.
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
	extra   []int32
	params  int32
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
	g.emit(0x48, 0x8b, 0x4f, 0x18)                                           // mov rcx, [rdi+24]
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
	vpbroadcastd, vpbroadcastq = m38 | p66 | 0x58, m38 | p66 | 0x59
	vdivps, vsqrtps, vmaxps    = m0f | 0x5e, m0f | 0x51, m0f | 0x5f
	vdivpd, vsqrtpd            = m0f | p66 | 0x5e, m0f | p66 | 0x51
	vcvtps2pd, vcvtpd2ps       = m0f | 0x5a, m0f | p66 | 0x5a
	vcvttps2dq                 = m0f | 2<<8 | 0x5b
	vcvtph2ps, vcvtps2ph       = m38 | p66 | 0x13, m3a | p66 | 0x1d
	vpackusdw, vpmovzxwd       = m38 | p66 | 0x2b, m38 | p66 | 0x33
	vinserti128, vpabsd        = m3a | p66 | 0x38, m38 | p66 | 0x1e
	vpslldi, vtestpd           = m0f | p66 | 0x72, m38 | p66 | 0x0f
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

// byteOf emits an instruction on a byte of memory and the register al.
func (g *native) byteOf(v value, op ...byte) {
	g.emit(0x43) // REX.X, REX.B: the index r11, the base r8 to r10
	g.emit(op...)
	g.emit(2<<6|4, 3<<3|byte(v.place&3))
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
		if g.partial { // old ^= (eax ^ old) & edx
			g.byteOf(v, 0x32)
			g.emit(0x21, 0xd0)
			g.byteOf(v, 0x30)
			return
		}
		g.byteOf(v, 0x88)
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
		g.byteOf(v, 0x0f, 0xb6) // movzx eax
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
	opLdparam: "", opCvtF64F32: "qw", opCvtF32F64: "wq", opCvtF64U32: "qw", opCvtF32U32: "ww", opCvtS32F32: "ww",
	opCvtU32F32: "ww", opDivF32: "www", opRcpF32: "ww", opSqrtF32: "ww", opDivF64: "qqq", opSqrtF64: "qq",
	opMinF64: "qqq", opMaxF64: "qqq", opMinFtzF32: "www", opMaxFtzF32: "www", opNegFtzF32: "ww", opAbsFtzF32: "ww",
	opSetpS16: "pww", opSetpU16: "pww", opLo16: "ww", opHi16: "ww", opCvtU8_32: "ww", opCvtU16_32: "ww",
	opCvtS8_32: "ww", opCvtS16_32: "ww", opNot16: "ww", opNeg16: "ww", opAdd16: "www", opSub16: "www",
	opMullo16: "www", opMadlo16: "wwww", opShl16: "www", opShrU16: "www", opShrS16: "www", opPack16: "www",
	opPack32: "qww", opMulhiS32: "www", opMulhiU32: "www", opMinS64: "qqq", opMaxS64: "qqq", opMinU64: "qqq",
	opMaxU64: "qqq", opShrS64: "qqw", opNeg64: "qq", opAbsS32: "ww", opBfeU32: "wwww", opShfLWrap: "wwww",
	opShfRWrap: "wwww", opCvtF32Bf16: "ww", opCvtBf16F32: "ww", opCvtBf16x2F32: "www", opCvtF32F16: "ww",
	opCvtF16F32: "ww", opCvtF16x2F32: "www", opCvt64_16: "wq", opCvtU16_64: "qw",
}

// single has those that are one instruction for each part of a value.
var single = map[opcode]int{
	opAdd32: vpaddd, opSub32: vpsubd, opMullo32: vpmulld, opAdd64: vpaddq, opSub64: vpsubq, opAnd32: vpand,
	opOr32: vpor, opXor32: vpxor, opAnd64: vpand, opOr64: vpor, opXor64: vpxor, opShl32: vpsllvd,
	opShrU32: vpsrlvd, opShrS32: vpsravd, opMinS32: vpminsd, opMaxS32: vpmaxsd, opMinU32: vpminud,
	opMaxU32: vpmaxud, opPand: vpand, opPor: vpor, opPxor: vpxor, opDivF64: vdivpd,
}

// floatOperations has those on float32 numbers, whose NaN results are canonical, and whether subnormal numbers are
// flushed.
var floatOperations = map[opcode]struct {
	op  int
	ftz bool
}{opAddF32: {vaddps, false}, opSubF32: {vsubps, false}, opMulF32: {vmulps, false},
	opFmaF32: {vfmadd213ps, false}, opAddFtzF32: {vaddps, true}, opSubFtzF32: {vsubps, true},
	opMulFtzF32: {vmulps, true}, opFmaFtzF32: {vfmadd213ps, true}}

// comparisons of vcmpps by CMP_*.
var floatCompare = [...]byte{
	cmpEq: 0, cmpNe: 12, cmpLt: 17, cmpLe: 18, cmpGt: 30, cmpGe: 29, cmpEqu: 8, cmpNeu: 4, cmpLtu: 25,
	cmpLeu: 26, cmpGtu: 22, cmpGeu: 21, cmpNum: 7, cmpNan: 3,
}

func (g *native) translatable(in *inst) bool {
	shape, ok := shapes[in.op]
	if in.op == opLdparam {
		n := in.c & 31
		return int32(in.imm)+n*in.n <= g.params && in.imm >= 0 && (n == 4 && in.c&(m64|m16) == 0 || n == 8 && in.c&m64 != 0)
	}
	compares := strings.HasPrefix(shape, "pw") || strings.HasPrefix(shape, "pq")
	integers := compares && in.op != opSetpF32 && in.op != opSetpF64
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
	case opMov32_64, opCvtU32_64, opCvtS32_64, opCvtU16_64:
		op := vpmovzxdq
		if in.op == opCvtS32_64 {
			op = vpmovsxdq
		}
		a, lo, hi := source(1, word), g.take(), g.take()
		if in.op == opCvtU16_64 {
			g.constant(vpand, hi, a, constHalf)
			a = hi
		}
		g.widen(lo, a, lower, op)
		g.widen(hi, a, upper, op)
		g.set(in, in.d, lower, lo)
		g.set(in, in.d, upper, hi)
	case opMov64_32, opHi32, opCvt64_16:
		order := byte(0x88)
		if in.op == opHi32 {
			order = 0xdd
		}
		lo, hi, y := source(1, lower), source(1, upper), g.take()
		g.halves(y, lo, hi, order)
		if in.op == opCvt64_16 {
			g.constant(vpand, y, y, constHalf)
		}
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
	case opNegF32, opAbsF32, opNegFtzF32, opAbsFtzF32:
		y := g.take()
		a := g.number(source(1, word), in.op == opNegFtzF32 || in.op == opAbsFtzF32)
		if in.op == opNegF32 || in.op == opNegFtzF32 {
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
	case opMinF32, opMaxF32, opMinFtzF32, opMaxFtzF32:
		ftz := in.op == opMinFtzF32 || in.op == opMaxFtzF32
		y := g.take()
		a := g.number(source(1, word), ftz)
		b := g.number(source(2, word), ftz)
		g.choose(y, a, b, in.op == opMaxF32 || in.op == opMaxFtzF32, vcmpps)
		g.canonical(y)
		g.set(in, in.d, word, y)
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
	case opAddF64, opMulF64: // the processor takes the first NaN operand, these the last one
		op := vaddpd
		if in.op == opMulF64 {
			op = vmulpd
		}
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, part), g.take()
			g.op(op, y, b, a)
			return y
		})
	case opSubF64, opFmaF64:
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, part), g.take()
			order := []int{a, b} // the last NaN wins
			if in.op == opSubF64 {
				g.op(vsubpd, y, a, b)
			} else {
				c := source(3, part)
				order = append(order, c)
				g.op(vmovups, y, 0, a)
				g.op(vfmadd213pd, y, b, c)
			}
			g.op(vcmppd, scratch, y, y)
			g.emit(unordered)
			g.op(vtestpd, scratch, 0, scratch)
			g.emit(0x0f, 0x84, 0, 0, 0, 0) // jz: no NaN
			from := len(g.code)
			for _, x := range order {
				g.quiet(y, y, x)
			}
			binary.LittleEndian.PutUint32(g.code[from-4:], uint32(len(g.code)-from))
			return y
		})
	case opSqrtF64:
		g.each(in, 'q', func(part valueKind) int {
			a, y := source(1, part), g.take()
			g.op(vsqrtpd, y, 0, a)
			return y
		})
	case opMinF64, opMaxF64:
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, part), g.take()
			g.choose(y, a, b, in.op == opMaxF64, vcmppd)
			g.quiet(y, y, y)
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
	case opCvtF64S32, opCvtF64F32:
		op := vcvtdq2pd
		if in.op == opCvtF64F32 {
			op = vcvtps2pd
		}
		g.each(in, 'q', func(part valueKind) int {
			a, y := source(1, word), g.take()
			if part == upper {
				g.op(vextracti128, a, 0, y)
				g.emit(1)
				a = y
			}
			g.op(op, y, 0, a)
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
		g.halves(y, halves[0], halves[1], 0x88)
		g.set(in, in.d, pred, y)
	case opMulhiS32, opMulhiU32:
		op, extend := vpmuludq, vpmovzxdq
		if in.op == opMulhiS32 {
			op, extend = vpmuldq, vpmovsxdq
		}
		a, b, x, lo, hi := source(1, word), source(2, word), g.take(), g.take(), g.take()
		for _, half := range []struct {
			part valueKind
			y    int
		}{{lower, lo}, {upper, hi}} {
			g.widen(x, a, half.part, extend)
			g.widen(half.y, b, half.part, extend)
			g.op(op, half.y, x, half.y)
		}
		g.halves(lo, lo, hi, 0xdd)
		g.set(in, in.d, word, lo)
	case opLdparam:
		size := in.c & 31
		for i := range in.n {
			at := uint32(int32(in.imm) + size*i)
			to := g.extra[in.x+i]
			if to < 0 {
				continue
			}
			op, kinds := vpbroadcastd, parts('w')
			if size == 8 {
				op, kinds = vpbroadcastq, parts('q')
			}
			for _, part := range kinds {
				y := g.take()
				g.vex(op, y, 0, 1) // from [rcx + at]
				g.emit(byte(2<<6 | (y&7)<<3 | 1))
				g.code = binary.LittleEndian.AppendUint32(g.code, at)
				g.set(in, to, part, y)
				g.pinned = [free]bool{}
			}
		}
	case opPack32:
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, word), source(2, word), g.take()
			g.widen(scratch, a, part, vpmovzxdq)
			g.widen(y, b, part, vpmovzxdq)
			g.shift(y, y, 6, 32)
			g.op(vpor, y, y, scratch)
			return y
		})
	case opMinS64, opMaxS64, opMinU64, opMaxU64:
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, part), g.take()
			x, z := a, b
			if in.op == opMinU64 || in.op == opMaxU64 {
				g.constant(vpxor, scratch, a, constSign64)
				g.constant(vpxor, scratch2, b, constSign64)
				x, z = scratch, scratch2
			}
			g.op(vpcmpgtq, scratch, x, z)
			if in.op == opMinS64 || in.op == opMinU64 {
				a, b = b, a
			}
			g.blend(y, b, a, scratch)
			return y
		})
	case opShrS64: // the complement of a negative number is shifted
		g.each(in, 'q', func(part valueKind) int {
			a, b, y := source(1, part), source(2, word), g.take()
			g.op(vpxor, scratch, scratch, scratch)
			g.op(vpcmpgtq, scratch, scratch, a)
			g.widen(scratch2, b, part, vpmovzxdq)
			g.op(vpxor, y, a, scratch)
			g.op(vpsrlvq, y, y, scratch2)
			g.op(vpxor, y, y, scratch)
			return y
		})
	case opNeg64:
		g.each(in, 'q', func(part valueKind) int {
			a, y := source(1, part), g.take()
			g.op(vpxor, y, y, y)
			g.op(vpsubq, y, y, a)
			return y
		})
	case opCvtF64U32:
		g.each(in, 'q', func(part valueKind) int {
			a, y := source(1, word), g.take()
			g.constant(vpxor, y, a, constSign)
			if part == upper {
				g.op(vextracti128, y, 0, y)
				g.emit(1)
			}
			g.op(vcvtdq2pd, y, 0, y)
			g.constant(vaddpd, y, y, const2p31f64)
			return y
		})
	case opCvtF32F64:
		lo, hi, y := source(1, lower), source(1, upper), g.take()
		g.op(vcvtpd2ps, scratch, 0, lo)
		g.op(vcvtpd2ps, y, 0, hi)
		g.op(vinserti128, y, scratch, y)
		g.emit(1)
		g.set(in, in.d, word, y)
	case opSetpS16, opSetpU16:
		a, b, x, z, y := source(1, word), source(2, word), g.take(), g.take(), g.take()
		g.shift32(x, a, 6, 16)
		g.shift32(z, b, 6, 16)
		g.integers(in, y, x, z, vpcmpeqd, vpcmpgtd, constSign)
		g.set(in, in.d, pred, y)
	default:
		y := g.take()
		g.words(in, y, func(i int) int { return source(i, word) })
		g.set(in, in.d, word, y)
	}
}

// words emits y = an instruction on words that needs no more than its operands and the scratch registers.
func (g *native) words(in *inst, y int, source func(i int) int) {
	signed := func(bits byte) {
		g.shift32(y, source(1), 6, 32-bits)
		g.shift32(y, y, 4, 32-bits)
	}
	half := func(op int) {
		g.op(op, y, source(1), source(2))
		g.constant(vpand, y, y, constHalf)
	}
	switch in.op {
	case opCvtF32U32: // the halves as float32, of which only the sum is rounded
		a := source(1)
		g.shift32(scratch, a, 2, 16)
		g.op(vcvtdq2ps, scratch, 0, scratch)
		g.constant(vmulps, scratch, scratch, const2p16)
		g.constant(vpand, y, a, constHalf)
		g.op(vcvtdq2ps, y, 0, y)
		g.op(vaddps, y, scratch, y)
	case opCvtS32F32: // the processor gives the least number if the operand is NaN or too large
		a := source(1)
		g.op(vcvttps2dq, y, 0, a)
		g.constant(vmovups, scratch, 0, const2p31)
		g.op(vcmpps, scratch, scratch, a)
		g.emit(18) // <=
		g.op(vpxor, y, y, scratch)
		g.op(vcmpps, scratch, a, a)
		g.emit(unordered)
		g.op(vpandn, y, scratch, y)
	case opCvtU32F32:
		a := source(1)
		g.op(vpxor, y, y, y)
		g.op(vmaxps, y, a, y)
		g.constant(vmovups, scratch, 0, const2p31)
		g.op(vcmpps, scratch, scratch, y)
		g.emit(18)
		g.constant(vpand, scratch2, scratch, const2p31)
		g.op(vsubps, scratch2, y, scratch2)
		g.op(vcvttps2dq, scratch2, 0, scratch2)
		g.constant(vpand, scratch, scratch, constSign)
		g.op(vpxor, scratch2, scratch2, scratch)
		g.constant(vmovups, scratch, 0, const2p32)
		g.op(vcmpps, scratch, scratch, y)
		g.emit(18)
		g.op(vpor, y, scratch, scratch2)
		g.op(vcmpps, scratch, a, a)
		g.emit(unordered)
		g.op(vpandn, y, scratch, y)
	case opDivF32:
		g.op(vdivps, y, source(1), source(2))
		g.canonical(y)
	case opRcpF32:
		g.constant(vmovups, y, 0, constOne)
		g.op(vdivps, y, y, source(1))
		g.canonical(y)
	case opSqrtF32:
		g.op(vsqrtps, y, 0, source(1))
		g.canonical(y)
	case opLo16, opCvtU16_32:
		g.constant(vpand, y, source(1), constHalf)
	case opCvtU8_32:
		g.constant(vpand, y, source(1), constByte)
	case opHi16:
		g.shift32(y, source(1), 2, 16)
	case opCvtS8_32:
		signed(8)
	case opCvtS16_32:
		signed(16)
	case opNot16:
		g.constant(vpandn, y, source(1), constHalf)
	case opNeg16:
		g.op(vpxor, y, y, y)
		g.op(vpsubd, y, y, source(1))
		g.constant(vpand, y, y, constHalf)
	case opAdd16:
		half(vpaddd)
	case opSub16:
		half(vpsubd)
	case opMullo16:
		half(vpmulld)
	case opShl16:
		half(vpsllvd)
	case opMadlo16:
		g.op(vpmulld, y, source(1), source(2))
		g.op(vpaddd, y, y, source(3))
		g.constant(vpand, y, y, constHalf)
	case opShrU16:
		g.constant(vpand, y, source(1), constHalf)
		g.op(vpsrlvd, y, y, source(2))
	case opShrS16:
		signed(16)
		g.op(vpsravd, y, y, source(2))
		g.constant(vpand, y, y, constHalf)
	case opPack16:
		a, b := source(1), source(2)
		g.constant(vpand, scratch, a, constHalf)
		g.shift32(y, b, 6, 16)
		g.op(vpor, y, y, scratch)
	case opAbsS32:
		g.op(vpabsd, y, 0, source(1))
	case opBfeU32: // a shift by 32 or more gives 0
		a, b, c := source(1), source(2), source(3)
		g.constant(vpand, scratch, b, constByte)
		g.op(vpsrlvd, y, a, scratch)
		g.constant(vpand, scratch, c, constByte)
		g.constant(vmovups, scratch2, 0, constWord)
		g.op(vpsllvd, scratch, scratch2, scratch)
		g.op(vpsubd, scratch, scratch, scratch2)
		g.op(vpand, y, y, scratch)
	case opShfLWrap, opShfRWrap:
		a, b, c := source(1), source(2), source(3)
		first, second := vpsllvd, vpsrlvd
		if in.op == opShfRWrap {
			a, b, first, second = b, a, second, first
		}
		g.shift32(scratch, c, 6, 27)
		g.shift32(scratch, scratch, 2, 27) // c & 31
		g.op(first, y, b, scratch)
		g.op(vpcmpeqd, scratch2, scratch2, scratch2)
		g.shift32(scratch2, scratch2, 2, 31)
		g.shift32(scratch2, scratch2, 6, 5) // 32
		g.op(vpsubd, scratch, scratch2, scratch)
		g.op(second, scratch, a, scratch)
		g.op(vpor, y, y, scratch)
	case opCvtF32Bf16:
		g.shift32(y, source(1), 6, 16)
	case opCvtBf16F32:
		g.bfloat16(y, source(1))
	case opCvtBf16x2F32: // the first operand is the upper half
		a, b := source(1), source(2)
		hi := g.take()
		g.bfloat16(hi, a)
		g.bfloat16(y, b)
		g.shift32(hi, hi, 6, 16)
		g.op(vpor, y, y, hi)
	case opCvtF32F16:
		g.constant(vpand, y, source(1), constHalf)
		g.op(vpackusdw, y, y, y)
		g.op(vpermq, y, 0, y)
		g.emit(0x08)
		g.op(vcvtph2ps, y, 0, y)
		g.canonical(y)
	case opCvtF16F32:
		g.float16(y, source(1))
	case opCvtF16x2F32:
		a, b := source(1), source(2)
		hi := g.take()
		g.float16(hi, a)
		g.float16(y, b)
		g.shift32(hi, hi, 6, 16)
		g.op(vpor, y, y, hi)
	}
}

// bfloat16 emits y = float32 numbers as bfloat16, rounded to nearest even.
func (g *native) bfloat16(y, a int) {
	g.shift32(y, a, 2, 16)
	g.constant(vpand, y, y, constWord)
	g.op(vpaddd, y, y, a)
	g.constant(vpaddd, y, y, constNaN16)
	g.shift32(y, y, 2, 16)
	g.nan16(y, a)
}

// float16 emits y = float32 numbers as float16, rounded to nearest even.
func (g *native) float16(y, a int) {
	g.op(vcvtps2ph, a, 0, y)
	g.emit(0)
	g.op(vpmovzxwd, y, 0, y)
	g.nan16(y, a)
}

// nan16 makes y canonical where a is a NaN.
func (g *native) nan16(y, a int) {
	g.op(vcmpps, scratch, a, a)
	g.emit(unordered)
	g.constant(vmovups, scratch2, 0, constNaN16)
	g.blend(y, y, scratch2, scratch)
}

// shift emits to = from shifted by bits: how is 2 for right, 4 for right with the sign, 6 for left. shift32 does so for
// words.
func (g *native) shift(to, from, how int, bits byte) {
	g.op(vpslliq, how, to, from)
	g.emit(bits)
}

func (g *native) shift32(to, from, how int, bits byte) {
	g.op(vpslldi, how, to, from)
	g.emit(bits)
}

// halves makes the lower or the upper words of 64-bit numbers the value of a place: order is 0x88 or 0xdd.
func (g *native) halves(y, lo, hi int, order byte) {
	g.op(vshufps, y, lo, hi)
	g.emit(order)
	g.op(vpermq, y, 0, y)
	g.emit(0xd8)
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
		if in.op == opSetpU32 || in.op == opSetpU64 || in.op == opSetpU16 {
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

// choose emits y = the smaller or greater of two numbers: -0 is below +0, a number is preferred to a NaN, and b is
// taken if both are NaN.
func (g *native) choose(y, a, b int, greater bool, compare int) {
	order, both := byte(17), vpor // a < b
	if greater {
		order, both = 30, vpand
	}
	g.op(compare, scratch, a, b)
	g.emit(order)
	g.blend(y, b, a, scratch)
	g.op(compare, scratch, a, b) // equal: zeros of both signs
	g.emit(0)
	g.op(both, scratch2, a, b)
	g.blend(y, y, scratch2, scratch)
	g.op(compare, scratch, b, b)
	g.emit(unordered)
	g.blend(y, y, a, scratch)
	g.op(compare, scratch, a, a)
	g.emit(unordered)
	g.blend(y, y, b, scratch)
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
