//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"fisub/device/vgpu/ptx"
)

// An inst has the fields of vg_inst in exec.h.
type inst struct {
	op         opcode
	flags      uint8
	kind       uint8
	guard      int32
	d, a, b, c int32
	x, n       int32
	imm        int64
	line       int32
	want       int32
}

// sharedBase is the address of a kernel's shared memory. As on a GPU, the system reserves the bytes below it.
const sharedBase = 1024

// A function is a decoded function.
type function struct {
	src       *ptx.Func
	code      []inst
	extra     []int32
	pool      []byte
	frameSize int
	localSize int
	calls     bool
	tracks    []int32        // see exec/taint.h
	lacks     map[int]string // by instruction index in src.Body
}

// A program is a kernel and the functions that it can reach, by their index in the module.
type program struct {
	entry        int
	funcs        map[int]*function
	staticShared int
	shared       []sharedVar // sorted by offset
	heap         bool        // calls malloc or free
	async        bool        // has asynchronous operations that read shared memory
	tracks       bool        // may have undefined values to track; see exec/taint.h
	prints       bool        // calls printf
	atomics      bool        // has atomics or other operations whose order affects results
	lacks        []string
}

// A sharedVar is a variable and its address in shared memory.
type sharedVar struct {
	name string
	at   uint32
	size int
}

// sharedName describes the byte at an address of shared memory.
func (p *program) sharedName(a uint64) string {
	text := fmt.Sprintf("byte %d of shared memory", int64(a)-sharedBase)
	for _, v := range p.shared {
		if at := uint64(v.at); a >= at && a < at+uint64(v.size) {
			name := Demangled(v.name)
			text += " (" + name[strings.LastIndex(name, ":")+1:] // without the declaring function
			if a > at {
				text += fmt.Sprintf("+%d", a-at)
			}
			text += ")"
		}
	}
	return text
}

type variable struct {
	offset, size int
}

// layout returns the location of each parameter and local variable in a lane's local memory, and the total size.
func layout(f *ptx.Func) (map[string]variable, int) {
	at := 0
	m := map[string]variable{}
	put := func(v *ptx.Var) {
		align := max(1, v.Align, min(8, v.Size))
		if align > 1 {
			align = 1 << (32 - leadingZeros(uint32(align-1)))
		}
		at = (at + align - 1) / align * align
		m[v.Name] = variable{at, v.Size}
		at += v.Size
	}
	if !f.Entry {
		for _, v := range slices.Concat(f.Params, f.Returns) {
			put(v)
		}
	}
	for _, v := range f.Vars {
		if v.Space == "local" || v.Space == "param" {
			put(v)
		}
	}
	return m, (at + 15) / 16 * 16
}

func leadingZeros(v uint32) int {
	n := 0
	for ; n < 32 && v>>31 == 0; n++ {
		v <<= 1
	}
	return n
}

// An image provides the addresses of a loaded module's variables.
type image interface {
	address(name string) (uint64, bool) // of a global or constant variable
	params(f *ptx.Func) uint64          // of a kernel's parameters
	undefined() bool                    // check for reads of unwritten registers
}

// decodeKernel decodes the entry and all functions that it calls.
func decodeKernel(m *ptx.Module, img image, entry *ptx.Func) (*program, error) {
	index := m.Index()
	p := &program{entry: index[entry.Name], funcs: map[int]*function{}}
	// Find the reachable functions and their shared variables.
	reached, queue := map[int]bool{p.entry: true}, []int{p.entry}
	used := map[string]bool{}
	var visit func(o ptx.Operand)
	visit = func(o ptx.Operand) {
		if o.Kind == ptx.Symbol {
			used[o.Name] = true
			if i, ok := index[o.Name]; ok && !reached[i] && !m.Funcs[i].Entry { // a kernel is launched, not called
				reached[i] = true
				queue = append(queue, i)
			}
		}
		for _, e := range o.Elems {
			visit(e)
		}
	}
	for _, v := range m.Vars { // initialized with pointers to functions, which kernels may call
		for _, r := range v.Refs {
			visit(ptx.Operand{Kind: ptx.Symbol, Name: r.Name})
		}
	}
	for len(queue) > 0 {
		f := m.Funcs[queue[0]]
		queue = queue[1:]
		for _, in := range f.Body {
			for _, o := range in.Args {
				visit(o)
			}
		}
	}
	shared := map[string]uint32{}
	at, dynamicAlign := sharedBase, 16
	var dynamic []string
	place := func(v *ptx.Var, key string) {
		if v.Extern || v.Size == 0 {
			dynamicAlign = max(dynamicAlign, v.Align)
			dynamic = append(dynamic, key)
			return
		}
		a := max(1, v.Align)
		at = (at + a - 1) / a * a
		shared[key] = uint32(at)
		p.shared = append(p.shared, sharedVar{v.Name, uint32(at), v.Size})
		at += v.Size
	}
	for _, v := range m.Vars {
		if v.Space == "shared" && used[v.Name] {
			place(v, v.Name)
		}
	}
	for _, i := range slices.Sorted(maps.Keys(reached)) {
		for _, v := range m.Funcs[i].Vars {
			if v.Space == "shared" {
				place(v, m.Funcs[i].Name+"\x00"+v.Name)
			}
		}
	}
	at = (at + dynamicAlign - 1) / dynamicAlign * dynamicAlign
	for _, name := range dynamic {
		shared[name] = uint32(at)
	}
	p.staticShared = at - sharedBase
	decoders := map[int]*decoder{}
	for i := range reached {
		f := m.Funcs[i]
		if !f.HasBody {
			continue
		}
		d := &decoder{m: m, img: img, f: f, p: p, index: index, shared: shared, constants: map[constant]int32{}}
		fn, err := d.decode()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		p.funcs[i], decoders[i] = fn, d
	}
	if p.tracks {
		for i, d := range decoders {
			d.track(p.funcs[i])
		}
	}
	return p, nil
}

// mayNotRead reports whether it matters for an instruction if its results are used: an atomic, a vector load.
func mayNotRead(in ptx.Inst) bool {
	return strings.HasPrefix(in.Op, "atom.") || strings.HasPrefix(in.Op, "ld.") && strings.Contains(in.Op, ".v")
}

type constant struct {
	bits uint64
	wide bool
}

type decoder struct {
	m         *ptx.Module
	img       image
	f         *ptx.Func
	p         *program
	index     map[string]int
	shared    map[string]uint32
	constants map[constant]int32

	locals  map[string]variable
	types   []string      // by register
	shadow  map[int]int32 // shadow of each register that may be undefined
	reads   []bool        // by register: an instruction reads it; only if mayNotRead
	swapped []ptx.Operand // addresses of atom.cas
	pairs   map[int]int   // first of the two 64-bit registers that represent a 128-bit register
	regs    []int32
	frame   int
	out     function
	starts  []int // indexes in code of each instruction of Body, and of the end
	carry   int32
	phase   int32
	scratch []int32 // predicates
	jumps   []int   // indexes in code of jumps; their imm is an index in Body
	tables  []int   // indexes in extra of jump targets, likewise
	body    int     // index of the current instruction
	in      *ptx.Inst
	parts   []string
	guard   int32
	negated bool
}

type lacking string

// lack stops decoding of the current instruction, which is reported as unsupported because of what.
func (d *decoder) lack(what string) { panic(lacking(what)) }

func (d *decoder) decode() (*function, error) {
	d.out.src = d.f
	d.locals, d.out.localSize = layout(d.f)
	d.p.tracks = d.p.tracks || d.out.localSize > 0 || len(d.shared) > 0
	d.regs = make([]int32, len(d.f.Regs))
	for i, r := range d.f.Regs {
		d.types = append(d.types, r.Type)
		if r.Type == "pred" {
			d.regs[i] = int32(d.frame<<2 | inFrame)
			d.frame += 4
		}
	}
	d.frame += 4 * 8
	for i := range 8 {
		d.scratch = append(d.scratch, int32((d.frame-4*8+4*i)<<2|inFrame))
	}
	d.frame = (d.frame + 127) / 128 * 128
	d.place()
	for i, r := range d.f.Regs {
		if ptx.Size(r.Type) == 16 { // represented by two more registers
			if d.pairs == nil {
				d.pairs = map[int]int{}
			}
			d.pairs[i] = len(d.types)
			d.types = append(d.types, "b64", "b64")
			d.regs = append(d.regs, d.newReg(true), d.newReg(true))
		}
	}
	d.carry, d.phase = d.newReg(false), d.newReg(false)
	d.in, d.guard = &ptx.Inst{}, -1
	if d.img.undefined() {
		d.shadows()
	}
	d.receive()
	d.swapped = swappedIn(d.f)
	if slices.ContainsFunc(d.f.Body, mayNotRead) {
		d.reads = readRegisters(d.f)
	}
	start := make([]int, len(d.f.Body)+1)
	for i := range d.f.Body {
		start[i] = len(d.out.code)
		d.body, d.in = i, &d.f.Body[i]
		d.parts = strings.Split(d.in.Op, ".")
		d.guard, d.negated = -1, d.in.Negated
		if d.in.Guard >= 0 {
			d.guard = d.regs[d.in.Guard]
		}
		if err := d.instruction(); err != nil {
			return nil, err
		}
	}
	start[len(d.f.Body)] = len(d.out.code)
	d.guard, d.negated = -1, false
	d.giveResults()
	d.emit(inst{op: opRet})
	targets := map[int]bool{}
	for _, i := range d.jumps {
		in := &d.out.code[i]
		in.imm = int64(start[in.imm])
		targets[int(in.imm)] = true
		targets[i+1] = true
	}
	for _, i := range d.tables {
		d.out.extra[i] = int32(start[d.out.extra[i]])
		targets[int(d.out.extra[i])] = true
	}
	for i := range d.out.code {
		if targets[i] || i > 0 && d.out.code[i-1].op == opCall {
			d.out.code[i].flags |= flagLeader
		}
	}
	d.out.frameSize = d.frame
	d.starts = start
	out := d.out
	return &out, nil
}

// instruction decodes the current instruction. If it is unsupported, it reports that when it is executed.
func (d *decoder) instruction() (err error) {
	code, extra := len(d.out.code), len(d.out.extra)
	defer func() {
		switch e := recover().(type) {
		case nil:
		case lacking:
			d.missing(code, extra, string(e))
		case runtime.Error: // unexpected operands
			d.missing(code, extra, d.in.Op+" with such operands")
		default:
			panic(e)
		}
	}()
	d.used()
	d.computed()
	d.translate()
	return nil
}

// missing discards the output from indexes code and extra on, and emits an instruction that reports what as
// unsupported.
func (d *decoder) missing(code, extra int, what string) {
	d.out.code, d.out.extra = d.out.code[:code], d.out.extra[:extra]
	for len(d.jumps) > 0 && d.jumps[len(d.jumps)-1] >= code {
		d.jumps = d.jumps[:len(d.jumps)-1]
	}
	for len(d.tables) > 0 && d.tables[len(d.tables)-1] >= extra {
		d.tables = d.tables[:len(d.tables)-1]
	}
	d.p.lacks = append(d.p.lacks, what)
	if d.out.lacks == nil {
		d.out.lacks = map[int]string{}
	}
	d.out.lacks[d.body] = what
	d.emit(inst{op: opMissing})
}

func (d *decoder) newReg(wide bool) int32 {
	place := int32(d.frame<<2 | inFrame)
	d.frame += 128
	if wide {
		d.frame += 128
	}
	return place
}

func (d *decoder) emit(in inst) *inst {
	if in.guard == 0 {
		in.guard = d.guard
	}
	if d.negated && d.guard >= 0 {
		in.flags |= flagNegated
	}
	in.line = int32(d.body)
	if in.want == 0 {
		in.want = -1
	}
	switch in.op {
	case opCpBulk, opCpTensor, opWgmma, opTcMma, opTcgen05:
		d.p.async = true
	}
	d.out.code = append(d.out.code, in)
	return &d.out.code[len(d.out.code)-1]
}

// more appends further operands and returns the index of the first.
func (d *decoder) more(places ...int32) int32 {
	at := len(d.out.extra)
	d.out.extra = append(d.out.extra, places...)
	return int32(at)
}

// of returns the opcode for a type.
func (d *decoder) of(table map[string]opcode, typ string) opcode {
	op, ok := table[typ]
	if !ok {
		d.lack(d.in.Op)
	}
	return op
}

func either(first bool, a, b opcode) opcode {
	if first {
		return a
	}
	return b
}

func (d *decoder) constant(bits uint64, wide bool) int32 {
	if !wide {
		bits = uint64(uint32(bits))
	}
	c := constant{bits, wide}
	if place, ok := d.constants[c]; ok {
		return place
	}
	place := int32(len(d.out.pool)<<2 | inPool)
	for range 32 {
		if wide {
			d.out.pool = binary.LittleEndian.AppendUint64(d.out.pool, bits)
		} else {
			d.out.pool = binary.LittleEndian.AppendUint32(d.out.pool, uint32(bits))
		}
	}
	d.constants[c] = place
	return place
}

func (d *decoder) has(part string) bool { return slices.Contains(d.parts, part) }

func (d *decoder) hasPrefix(prefix string) bool {
	return slices.ContainsFunc(d.parts, func(p string) bool { return strings.HasPrefix(p, prefix) })
}

func (d *decoder) arg(i int) ptx.Operand {
	if i >= len(d.in.Args) {
		d.lack(d.in.Op)
	}
	return d.in.Args[i]
}

// typ returns the last type in the instruction's name, with skip 1 the one before it.
func (d *decoder) typ(skip int) string {
	for i := len(d.parts) - 1; i > 0; i-- {
		if ptx.Size(d.parts[i]) > 0 || d.parts[i] == "pred" || d.parts[i] == "tf32" || strings.HasSuffix(d.parts[i], "x2") {
			if skip == 0 {
				return d.parts[i]
			}
			skip--
		}
	}
	return ""
}

func width(typ string) int {
	if typ == "tf32" {
		return 4
	}
	return ptx.Size(typ)
}

func wide(typ string) bool { return width(typ) == 8 || typ == "f32x2" }

// src returns the operand for reading o as a value of the given type.
func (d *decoder) src(o ptx.Operand, typ string) int32 {
	w := wide(typ)
	switch o.Kind {
	case ptx.Register:
		if o.Int != 0 { // with an offset
			sum := d.newReg(w)
			d.emit(inst{op: either(w, opAdd64, opAdd32), a: d.regs[o.Reg], b: d.constant(uint64(o.Int), w), d: sum})
			return sum
		}
		return d.regs[o.Reg]
	case ptx.Integer:
		switch {
		case typ == "f32" || typ == "f64":
			d.lack(d.in.Op + " with an integer")
		case width(typ) == 2:
			return d.constant(uint64(o.Int)&0xffff, false)
		}
		return d.constant(uint64(o.Int), w)
	case ptx.Float:
		if w {
			if o.Single {
				return d.constant(math.Float64bits(float64(math.Float32frombits(uint32(o.Int)))), true)
			}
			return d.constant(uint64(o.Int), true)
		}
		if o.Single {
			return d.constant(uint64(o.Int), false)
		}
		return d.constant(uint64(math.Float32bits(float32(math.Float64frombits(uint64(o.Int))))), false)
	case ptx.Symbol:
		if place, ok := d.special(o.Name, w); ok {
			return place
		}
		return d.constant(d.address(o), w)
	}
	d.lack(d.in.Op + " with such an operand")
	return 0
}

// address returns the address of a variable or function in its own space.
func (d *decoder) address(o ptx.Operand) uint64 {
	if a, ok := d.shared[d.f.Name+"\x00"+o.Name]; ok {
		return uint64(a) + uint64(o.Int)
	}
	if a, ok := d.shared[o.Name]; ok {
		return uint64(a) + uint64(o.Int)
	}
	if d.f.Entry {
		at := 0
		for _, v := range d.f.Params {
			at = aligned(at, v)
			if v.Name == o.Name {
				return d.img.params(d.f) + uint64(at) + uint64(o.Int)
			}
			at += v.Size
		}
	}
	if a, ok := d.img.address(o.Name); ok {
		return a + uint64(o.Int)
	}
	if i, ok := d.index[o.Name]; ok {
		return codeWindow + uint64(i)<<4
	}
	d.lack("the variable " + o.Name)
	return 0
}

func aligned(at int, v *ptx.Var) int {
	a := max(v.Align, 1)
	return (at + a - 1) / a * a
}

func (d *decoder) special(name string, w bool) (int32, bool) {
	if !strings.HasPrefix(name, "%") {
		return 0, false
	}
	if i, ok := specials[name]; ok && !w {
		return i*256<<2 | inWarp, true
	}
	var op inst
	switch name {
	case "%clock", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi":
		op = inst{op: opClock, d: d.newReg(w)}
	case "%clock64", "%globaltimer":
		op = inst{op: opClock, kind: 1, d: d.newReg(true)}
	default:
		i, ok := specials[name]
		if !ok {
			d.lack("the register " + name)
		}
		op = inst{op: opMov32_64, a: i*256<<2 | inWarp, d: d.newReg(true)}
	}
	d.emit(op)
	return op.d, true
}

// dst returns the operand for a result; for _ it is a dummy.
func (d *decoder) dst(o ptx.Operand, typ string) int32 {
	switch o.Kind {
	case ptx.Register:
		return d.regs[o.Reg]
	case ptx.None:
		if typ == "pred" {
			return d.scratch[7]
		}
		return d.newReg(wide(typ))
	}
	d.lack(d.in.Op + " with such a result")
	return 0
}

// pred returns the operand for reading a predicate. It emits the negation, if any.
func (d *decoder) pred(o ptx.Operand) int32 {
	if o.Kind == ptx.Integer {
		d.emit(inst{op: opPconst, d: d.scratch[5], imm: o.Int})
		return d.scratch[5]
	}
	if o.Kind != ptx.Register {
		d.lack(d.in.Op + " with such a predicate")
	}
	if o.Negated {
		d.emit(inst{op: opPnot, d: d.scratch[4], a: d.regs[o.Reg]})
		return d.scratch[4]
	}
	return d.regs[o.Reg]
}

// one, two and three emit an instruction whose operands all have the given type.
func (d *decoder) one(op opcode, typ string) {
	d.emit(inst{op: op, a: d.src(d.arg(1), typ), d: d.dst(d.arg(0), typ)})
}

func (d *decoder) two(op opcode, typ string) {
	a, b := d.src(d.arg(1), typ), d.src(d.arg(2), typ)
	d.emit(inst{op: op, a: a, b: b, d: d.dst(d.arg(0), typ)})
}

func (d *decoder) three(op opcode, typ string) *inst {
	a, b, c := d.src(d.arg(1), typ), d.src(d.arg(2), typ), d.src(d.arg(3), typ)
	return d.emit(inst{op: op, a: a, b: b, c: c, d: d.dst(d.arg(0), typ)})
}
