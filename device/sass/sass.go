// Package sass reads the machine code (SASS) of NVIDIA GPUs from cubins as far as performance counters depend on it:
// memory, barrier, tensor-core, shuffle and branch instructions with their access widths and source lines. Compare
// reports for each source line whether they are those of the PTX, which the virtual GPU executes and counts. The
// package is no disassembler: it does not know the operands.
package sass

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// A Class is a kind of instruction. The zero value stands for all other instructions.
type Class uint8

const (
	GlobalLoad Class = iota + 1
	GlobalStore
	GlobalAtomic    // returns the old value
	GlobalReduction // returns nothing
	SharedLoad
	SharedStore
	SharedAtomic
	GenericLoad // the address decides on the memory
	GenericStore
	GenericAtomic
	LocalLoad
	LocalStore
	ClusterStore // to another block's shared memory: STAS, REDAS
	MatrixLoad   // ldmatrix: LDSM
	MatrixStore  // stmatrix: STSM
	AsyncCopy    // cp.async: LDGSTS
	BulkCopy     // cp.async.bulk: UBLKCP, UBLKRED
	TensorCopy   // cp.async.bulk.tensor: UTMALDG, UTMASTG, UTMAREDG
	Barrier
	Tensor // on tensor cores: HMMA, HGMMA, UTCHMMA and others
	Branch
	Shuffle
	Special    // MUFU: a special function, such as a reciprocal
	Arithmetic // FADD, FMUL, FFMA: shows copies of loops
)

var classNames = [...]string{"other", "global load", "global store", "global atomic", "global reduction", "shared load",
	"shared store", "shared atomic", "generic load", "generic store", "generic atomic", "local load", "local store",
	"cluster store", "matrix load", "matrix store", "asynchronous copy", "bulk copy", "tensor copy", "barrier",
	"tensor-core instruction", "branch", "shuffle", "special function", "arithmetic instruction"}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// An Inst is an instruction of a known class.
type Inst struct {
	Offset  int // in the kernel's section, in bytes
	Class   Class
	Width   int    // bits that each thread accesses; number of matrices of a matrix load or store; 0: not known
	Guarded bool   // has a predicate
	Loop    int    // number of loops around it
	File    string // source file, "" without a line table
	Line    int    // innermost if inlined; 0 without a line table
	PTX     int    // line of the PTX, 0 if unknown

	always bool // as in flow
}

// A Kernel is a kernel, or a function that kernels call.
type Kernel struct {
	Name         string
	Entry        bool
	Instructions int    // without the padding at the end
	Insts        []Inst // of known classes, by offset
}

// instSize is the size of an instruction in bytes.
const instSize = 16

// ErrArch is returned for machine code that Read does not know: it reads that of sm_75 and later.
var ErrArch = errors.New("sass: machine code of an unknown arch")

// Read reads the kernels and functions of a cubin, in the order of their sections. It makes no copy of cubin.
func Read(cubin []byte) ([]Kernel, error) {
	f, err := File(cubin)
	if err != nil {
		return nil, err
	}
	arch, ok := archOf(cubin)
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian || f.Machine != elf.EM_CUDA || !ok {
		return nil, ErrArch
	}
	symbols, err := f.Symbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, err
	}
	bySection := map[elf.SectionIndex][]elf.Symbol{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			bySection[s.Section] = append(bySection[s.Section], s)
		}
	}
	source, err := readLines(f, cubin, ".debug_line", symbols)
	if err != nil {
		return nil, err
	}
	ptx, err := readLines(f, cubin, ".nv_debug_line_sass", symbols)
	if err != nil {
		return nil, err
	}
	var all []Kernel
	total := 0
	for i, s := range f.Sections {
		if s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_EXECINSTR == 0 {
			continue
		}
		text, err := contents(cubin, s)
		if err != nil {
			return nil, err
		}
		if total += len(text); total > len(cubin) {
			return nil, errors.New("sass: sections overlap")
		}
		c := &code{text: text, arch: arch}
		functions := bySection[elf.SectionIndex(i)]
		slices.SortStableFunc(functions, func(a, b elf.Symbol) int { return cmp.Compare(a.Value, b.Value) })
		for j, symbol := range functions {
			begin, end := symbol.Value, uint64(len(text))
			if j+1 < len(functions) {
				end = functions[j+1].Value
			}
			if begin%instSize != 0 || begin > end || end > uint64(len(text)) {
				return nil, fmt.Errorf("sass: symbol %s is not in its section", symbol.Name)
			}
			k := c.read(int(begin), int(end))
			k.Name, k.Entry = symbol.Name, symbol.Other&entryFlag != 0
			at := elf.SectionIndex(i)
			source.each(at, k.Insts, func(in *Inst, file string, line int) { in.File, in.Line = file, line })
			ptx.each(at, k.Insts, func(in *Inst, _ string, line int) { in.PTX = line })
			all = append(all, k)
		}
	}
	return all, nil
}

// File reads the headers of a cubin. It makes no copy of cubin.
func File(cubin []byte) (*elf.File, error) { return elf.NewFile(image(cubin)) }

// An image reads a cubin, with the version of ELF in its header: cubins of CUDA 12 for Hopper and older GPUs have the
// toolkit's version there, such as 126, which debug/elf rejects.
type image []byte

// ReadAt implements io.ReaderAt.
func (m image) ReadAt(p []byte, at int64) (int, error) {
	const versionAt = 20
	n, err := bytes.NewReader(m).ReadAt(p, at)
	if i := versionAt - at; i >= 0 && i < int64(n) {
		p[i] = byte(elf.EV_CURRENT)
	}
	return n, err
}

// entryFlag is set in the st_other of a kernel's symbol.
const entryFlag = 0x10

// archOf returns the compute capability in the header's flags, such as 100. Cubins of CUDA 12.8 and later have another
// layout of the flags than older ones.
func archOf(cubin []byte) (int, bool) {
	const versionAt, flagsAt, newLayout = 8, 48, 8
	flags := binary.LittleEndian.Uint32(cubin[flagsAt:])
	arch := int(flags & 0xff)
	if cubin[versionAt] >= newLayout {
		arch = int(flags >> 8 & 0xff)
	}
	return arch, arch >= 75 && arch <= 121
}

// contents returns the part of cubin that is section s.
func contents(cubin []byte, s *elf.Section) ([]byte, error) {
	if s.Flags&elf.SHF_COMPRESSED != 0 || s.Offset > uint64(len(cubin)) || s.FileSize > uint64(len(cubin))-s.Offset {
		return nil, fmt.Errorf("sass: section %s is not in the file", s.Name)
	}
	return cubin[s.Offset : s.Offset+s.FileSize], nil
}
