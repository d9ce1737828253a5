package sass

import "encoding/binary"

// An instruction has 128 bits. Bits 0 to 8 are the operation, 9 to 11 the kind of its operands, 12 to 15 its guard. The
// tables hold the encodings of sm_75 to sm_121; NVIDIA documents none of them. The tests compare with nvdisasm.

// A format is the place of an instruction's access width.
type format uint8

const (
	noWidth    format = iota
	asAccess          // bits 73 to 75, of loads and stores
	asInteger         // bits 73 to 75, of atomics; before sm_90 of those with floating-point numbers too
	asFloat           // bits 73 to 76, of atomics
	asMatrices        // bits 72 and 73
	asAsync           // as asAccess; from sm_100 on bits 74 and 75
	is256
	beforeHopper   // asInteger before sm_90
	sinceBlackwell // asAsync from sm_100 on
)

var widths = [...][16]uint8{
	asAccess:   {8, 8, 16, 16, 32, 64, 128},
	asInteger:  {32, 32, 64, 64, 128},
	asFloat:    {32, 64, 128, 32, 64, 128, 0, 0, 32, 32, 64, 128, 32, 64, 128, 64},
	asMatrices: {1, 2, 4},
	asAsync:    {8, 8, 16, 16, 32, 64, 128},

	beforeHopper:   {32, 32, 64, 32, 32, 64, 64},
	sinceBlackwell: {32, 32, 64, 64, 128, 128},
}

const (
	opBSYNC, opBREAK, opBSSY, opBRA    = 0x141, 0x142, 0x145, 0x147
	opBRX, opJMP, opJMX, opEXIT, opRET = 0x149, 0x14a, 0x14c, 0x14d, 0x150
)

var operations = map[uint16]struct {
	class  Class
	format format
}{
	0x181: {GlobalLoad, asAccess}, 0x17e: {GlobalLoad, is256}, 0x1a4: {GlobalLoad, noWidth}, // LDG, LDGMC
	0x186: {GlobalStore, asAccess}, 0x17f: {GlobalStore, is256},
	0x1a8: {GlobalAtomic, asInteger}, 0x1a9: {GlobalAtomic, asInteger}, 0x1a3: {GlobalAtomic, asFloat}, // ATOMG
	0x18e: {GlobalReduction, asInteger}, 0x1a6: {GlobalReduction, asFloat}, // RED, REDG
	0x184: {SharedLoad, asAccess}, 0x188: {SharedStore, asAccess},
	0x18c: {SharedAtomic, asInteger}, 0x18d: {SharedAtomic, asInteger},
	0x180: {GenericLoad, asAccess}, 0x185: {GenericStore, asAccess},
	0x18a: {GenericAtomic, asInteger}, 0x18b: {GenericAtomic, asInteger}, 0x1a2: {GenericAtomic, asFloat},
	0x183: {LocalLoad, asAccess}, 0x187: {LocalStore, asAccess},
	0x1bd: {ClusterStore, asAccess}, 0x1be: {ClusterStore, noWidth},
	0x03b: {MatrixLoad, asMatrices}, 0x044: {MatrixStore, asMatrices},
	0x1ae: {AsyncCopy, asAsync},
	0x1ba: {BulkCopy, noWidth}, 0x1bb: {BulkCopy, noWidth},
	0x1b4: {TensorCopy, noWidth}, 0x1b5: {TensorCopy, noWidth}, 0x1b6: {TensorCopy, noWidth},
	0x11d: {Barrier, noWidth},
	0x03c: {Tensor, noWidth}, 0x037: {Tensor, noWidth}, 0x03f: {Tensor, noWidth}, // HMMA, IMMA, DMMA
	0x1f0: {Tensor, noWidth}, 0x1f1: {Tensor, noWidth}, 0x1f2: {Tensor, noWidth}, 0x1f3: {Tensor, noWidth}, // HGMMA, ...
	0x07a: {Tensor, noWidth}, 0x1ea: {Tensor, noWidth}, // QMMA; UTCHMMA, ...
	opBRA: {Branch, noWidth}, opBRX: {Branch, noWidth}, opJMP: {Branch, noWidth}, opJMX: {Branch, noWidth},
	0x189: {Shuffle, noWidth},
	0x108: {Special, noWidth},
	0x020: {Arithmetic, noWidth}, 0x021: {Arithmetic, noWidth}, 0x023: {Arithmetic, noWidth},
}

const hopper, blackwell = 90, 100 // archs that changed encodings

// code is the contents of a section with machine code.
type code struct {
	text []byte
	arch int
}

func (c *code) words(at int) (low, high uint64) {
	return binary.LittleEndian.Uint64(c.text[at:]), binary.LittleEndian.Uint64(c.text[at+8:])
}

func operation(low uint64) uint16 { return uint16(low & 0x1ff) }

// never is the guard !PT: ptxas writes some loads only for a delay.
const never = 15

// guarded reports whether an instruction has a predicate.
func guarded(low uint64) bool { return low>>12&15 != 7 }

// read reads a function. The loop that ptxas writes after its end, and padding, are not counted.
func (c *code) read(begin, end int) (k Kernel) {
	end -= end % instSize
	last := begin
	for at := begin; at < end; at += instSize {
		low, high := c.words(at)
		if low&0xfff == 0x918 { // NOP
			continue
		}
		if _, to := c.target(at, low, high); operation(low) != opBRA || guarded(low) || to != at {
			last = at + instSize
		}
		o, ok := operations[operation(low)]
		if !ok || low>>12&15 == never {
			continue
		}
		in := Inst{Offset: at, Class: o.class, Guarded: guarded(low)}
		switch f := o.format; {
		case f == is256:
			in.Width = 256
		case f == asFloat:
			in.Width = int(widths[f][high>>9&15])
		case f == asMatrices:
			in.Width = int(widths[f][high>>8&3])
		case f == asInteger && c.arch < hopper:
			in.Width = int(widths[beforeHopper][high>>9&7])
		case f == asAsync && c.arch >= blackwell:
			in.Width = int(widths[sinceBlackwell][high>>9&7])
		case f != noWidth:
			in.Width = int(widths[f][high>>9&7])
		}
		k.Insts = append(k.Insts, in)
	}
	for len(k.Insts) > 0 && k.Insts[len(k.Insts)-1].Offset >= last {
		k.Insts = k.Insts[:len(k.Insts)-1]
	}
	k.Instructions = (last - begin) / instSize
	flow := c.flow(begin, last)
	for i := range k.Insts {
		f := flow[(k.Insts[i].Offset-begin)/instSize]
		k.Insts[i].Loop, k.Insts[i].always = f.loop, f.always
	}
	return k
}

// target returns the offset to which a branch jumps, and true if it always does.
func (c *code) target(at int, low, high uint64) (always bool, to int) {
	distance := int64(high&0x3ffff<<46|low>>34<<16) >> 16 // bits 34 to 81
	if c.arch >= hopper {
		distance = distance<<8 | int64(low>>16&0xff)
	}
	const plain = 0xe0 // bits 82 to 95: no uniform predicate, not .DIV or .U
	return !guarded(low) && low&0xfff == 0x947 && high>>18&0x3fff == plain, at + instSize + int(distance)*4
}

// flow returns the place of each instruction of a function in its control flow.
func (c *code) flow(begin, end int) []flow {
	n := (end - begin) / instSize
	next := make([][]int32, n+1) // the last node is the end
	var barriers [16]int         // by convergence barrier: where its threads meet, 0: not set
	for i := range n {
		at := begin + i*instSize
		low, high := c.words(at)
		through := true
		jump := func(to int) {
			if to >= begin && to < end && to%instSize == 0 {
				next[i] = append(next[i], int32((to-begin)/instSize))
			}
		}
		switch operation(low) {
		case opBRA:
			always, to := c.target(at, low, high)
			through = !always
			jump(to)
		case opBSSY:
			barriers[low>>16&15] = at + instSize + int(int32(low>>32))&^3
		case opBSYNC:
			if to := barriers[low>>16&15]; to != 0 {
				jump(to)
				through = guarded(low)
			}
		case opBRX, opJMP, opJMX, opEXIT, opRET:
			next[i] = append(next[i], int32(n))
			through = guarded(low)
		}
		if through {
			next[i] = append(next[i], int32(i+1))
		}
	}
	return flows(next)
}
