//go:build linux && cgo

package vgpu

import (
	"slices"
	"strconv"
	"strings"

	"fisub/device/vgpu/ptx"
)

func (d *decoder) nop() { d.emit(inst{op: opNop}) }

func (d *decoder) branch() {
	at := d.label(d.arg(0))
	d.jumps = append(d.jumps, len(d.out.code))
	d.emit(inst{op: opBra, imm: int64(at)})
}

func (d *decoder) branchIndirect() {
	table := d.f.Tables[d.arg(1).Name]
	in := inst{op: opBrx, a: d.src(d.arg(0), "u32"), n: int32(len(table))}
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
}

func (d *decoder) ret() {
	d.giveResults()
	d.emit(inst{op: opRet})
}

func (d *decoder) end() {
	d.emit(inst{op: map[string]opcode{"exit": opExit, "trap": opTrap, "brkpt": opBrkpt}[d.parts[0]]})
}

func (d *decoder) nanosleep() { d.emit(inst{op: opNanosleep, a: d.src(d.arg(0), "u32")}) }

func (d *decoder) label(o ptx.Operand) int {
	at, ok := d.f.Labels[o.Name]
	if !ok {
		d.lack("the label " + o.Name)
	}
	return at
}

// deviceFunctions holds the functions of CUDA's runtime that kernels may call, by their names in PTX. What a kernel
// launches runs after it, so that streams and events have no effect.
var deviceFunctions = map[string]uint8{
	"__cudaCDP2GetParameterBufferV2": deviceBuffer, "__cudaCDP2LaunchDeviceV2": deviceLaunch,
	"__cudaCDP2StreamCreateWithFlags": deviceHandle, "__cudaCDP2EventCreateWithFlags": deviceHandle,
	"__cudaCDP2StreamDestroy": deviceNothing, "__cudaCDP2EventDestroy": deviceNothing,
	"__cudaCDP2EventRecord": deviceNothing, "__cudaCDP2EventRecordWithFlags": deviceNothing,
	"__cudaCDP2StreamWaitEvent": deviceNothing, "__cudaCDP2GetLastError": deviceNothing,
	"__cudaCDP2PeekAtLastError": deviceNothing,
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
			d.p.prints = true
			result := int32(-1)
			if len(results) > 0 {
				result = int32(offset(results[0]).offset)
			}
			d.emit(inst{op: opVprintf, x: d.more(int32(offset(params[0]).offset), int32(offset(params[1]).offset), result)})
			return
		case "__assertfail":
			d.emit(inst{op: opAssertfail, x: d.more(int32(offset(params[0]).offset), int32(offset(params[1]).offset),
				int32(offset(params[2]).offset))})
			return
		case "malloc":
			d.p.heap = true
			d.emit(inst{op: opMalloc, x: d.more(int32(offset(results[0]).offset), int32(offset(params[0]).offset))})
			return
		case "free":
			d.p.heap = true
			d.emit(inst{op: opFree, x: d.more(int32(offset(params[0]).offset))})
			return
		}
		if kind, ok := deviceFunctions[strings.TrimSuffix(target.Name, "_ptsz")]; ok {
			d.p.heap, d.p.atomics = true, true
			places := []int32{-1}
			if len(results) > 0 {
				places[0] = int32(offset(results[0]).offset)
			}
			for _, p := range params {
				places = append(places, int32(offset(p).offset))
			}
			d.emit(inst{op: opDevice, kind: kind, x: d.more(places...)})
			return
		}
	}
	in := inst{op: opCall}
	var callee *ptx.Func
	if target.Kind == ptx.Register {
		in.op, in.a = opCalli, d.regs[target.Reg]
		callee = d.f.Protos[args[len(args)-1].Name]
		if callee == nil {
			d.lack(d.in.Op)
		}
	} else {
		i, ok := d.index[target.Name]
		if !ok || !d.m.Funcs[i].HasBody {
			d.lack(undefinedFunction(target.Name))
		}
		in.imm, callee = int64(i), d.m.Funcs[i]
	}
	// Lay out parameters, then results, by position. The layout is the same for all functions with a given prototype.
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
	// Copy operands in registers through local memory of the calling function.
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

// callValue returns the operand for a call's argument that is not a variable.
func (d *decoder) callValue(o ptx.Operand, typ string) int32 {
	if typ == "pred" {
		return d.pred(o)
	}
	return d.src(o, typ)
}

// part returns the location of element i of a vector with elements of the given type.
func (v variable) part(i int, typ string) variable {
	size := max(width(typ), 1)
	return variable{v.offset + i*size, size}
}

// temporary reserves n bytes in the function's local memory.
func (d *decoder) temporary(n int) variable {
	v := variable{d.out.localSize, n}
	d.out.localSize += (n + 15) / 16 * 16
	return v
}

// local emits a load or store between a register and v in local memory.
func (d *decoder) local(op opcode, v variable, reg int32, typ string) {
	in := inst{op: op, n: 1, c: int32(max(width(typ), 1)), a: d.newReg(true)}
	d.emit(inst{op: opLocalAddress, kind: 1, imm: int64(v.offset), d: in.a})
	if wide(typ) {
		in.c |= m64
	}
	in.x = d.more(reg)
	d.emit(in)
}

// keep stores a register in local memory; fetch loads it back. Predicates are stored as words.
func (d *decoder) keep(v variable, reg int32, typ string) {
	if typ == "pred" {
		word := d.newReg(false)
		d.emit(inst{op: opSelp32, a: d.constant(1, false), b: d.constant(0, false), c: reg, d: word})
		reg, typ = word, "b32"
	}
	d.local(opStLocal, v, reg, typ)
}

func (d *decoder) fetch(reg int32, v variable, typ string) {
	if typ == "pred" {
		word := d.newReg(false)
		d.local(opLdLocal, v, word, "b32")
		d.emit(inst{op: opSetpU32, kind: cmpNe, a: word, b: d.constant(0, false), d: reg})
		return
	}
	d.local(opLdLocal, v, reg, typ)
}

// receive loads the parameters that the function has in registers; giveResults stores such results.
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

// registersOf returns the registers of a function's parameter or result, or nil if it is in memory.
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

// launchControl decodes clusterlaunchcontrol. A request to cancel another cluster's launch always fails, which the PTX
// ISA permits: the response is 16 zero bytes.
func (d *decoder) launchControl() {
	switch {
	case d.has("try_cancel"):
		in := inst{op: opStAsync, kind: storeToOne, c: 8, n: 2}
		if d.hasPrefix("multicast") {
			in.kind = storeToAll
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
		d.emit(inst{op: opPconst, d: d.dst(d.arg(0), "pred")})
	case d.hasPrefix("get_first_ctaid"):
		for _, e := range elements(d.arg(0)) {
			d.emit(inst{op: opMov32, a: d.constant(0, false), d: d.dst(e, "b32")})
		}
	default:
		d.lack(d.in.Op)
	}
}
