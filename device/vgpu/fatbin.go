//go:build linux && cgo

package vgpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"fisub/device/sass"
)

// fatbinMagic is the first word of a fat binary.
const fatbinMagic = 0xba55ed50

// A moduleImage is the part of a fat binary that the virtual GPU uses.
type moduleImage struct {
	ptx  []string // one text, or one for each unit of a program that nvlink linked
	arch int      // compute capability of the PTX, such as 100
	// By kernel, from the machine code for the same arch; nil without such code.
	usage map[string]usage
	cubin []byte // that machine code; nil without
}

// A usage is what ptxas assigned to each thread of a kernel.
type usage struct {
	registers int
	local     int // bytes of local memory, with the functions that it calls, except recursively
	frame     int // bytes of the stack that a call takes
}

// Kinds and flags of a fat binary's entries.
const (
	kindPTX, kindELF    = 1, 2
	flagLZ4, flagZstd   = 0x2000, 0x8000
	maxImage            = 1 << 30 // bytes of one entry, decompressed
	entryHead, sizeHead = 48, 64  // bytes of an entry's header: the minimum, and if compressed
)

// readImage reads a fat binary with readEntries. If it has several PTX entries, the one for the newest arch is used.
func readImage(read func(n int) []byte) (*moduleImage, error) {
	all, err := readEntries(read)
	if err != nil {
		return nil, err
	}
	return choose(all)
}

// readEntries reads a fat binary as nvcc writes it: a header, then entries with their own headers. read returns the
// first n bytes; readEntries requests no more than the header states.
func readEntries(read func(n int) []byte) (all []entry, err error) {
	head := read(16)
	if binary.LittleEndian.Uint32(head) != fatbinMagic {
		return nil, errors.New("vgpu: not a fat binary")
	}
	start, size := uint64(binary.LittleEndian.Uint16(head[6:])), binary.LittleEndian.Uint64(head[8:])
	if size > maxImage {
		return nil, fmt.Errorf("vgpu: a fat binary of %d bytes", size)
	}
	data := read(int(start + size))[start:]
	for len(data) >= sizeHead {
		e := entry{kind: binary.LittleEndian.Uint16(data), flags: binary.LittleEndian.Uint64(data[40:])}
		header, payload := uint64(binary.LittleEndian.Uint32(data[4:])), binary.LittleEndian.Uint64(data[8:])
		if header < entryHead || payload > maxImage || header+payload > uint64(len(data)) {
			return nil, errors.New("vgpu: truncated fat binary")
		}
		e.arch = int(binary.LittleEndian.Uint32(data[28:]))
		e.data = data[header : header+payload]
		if e.flags&(flagLZ4|flagZstd) != 0 {
			e.packed, e.size = uint64(binary.LittleEndian.Uint32(data[16:])), binary.LittleEndian.Uint64(data[56:])
			if header < sizeHead || e.packed > payload || e.size > maxImage {
				return nil, errors.New("vgpu: wrong size of a compressed entry of the fat binary")
			}
		}
		all = append(all, e)
		data = data[header+payload:]
	}
	return all, nil
}

// An entry is PTX or machine code for one arch.
type entry struct {
	kind         uint16
	flags        uint64
	arch         int
	data         []byte
	packed, size uint64 // bytes before and after decompression
}

func choose(all []entry) (*moduleImage, error) {
	var best *entry
	var archs []string
	for i, e := range all {
		switch {
		case e.kind == kindPTX && (best == nil || e.arch > best.arch):
			best = &all[i]
		case e.kind == kindELF:
			archs = append(archs, fmt.Sprintf("sm_%d", e.arch))
		}
	}
	if best == nil {
		if archs == nil {
			return nil, errors.New("vgpu: empty fat binary")
		}
		return nil, fmt.Errorf("the program has machine code for %s but no PTX, which the virtual GPU needs: compile it "+
			"with fisub nvcc, or with -gencode=arch=compute_%d,code=compute_%[2]d", strings.Join(slices.Compact(archs), ", "),
			all[0].arch)
	}
	text, err := best.open()
	if err != nil {
		return nil, err
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		text = text[:i]
	}
	m := &moduleImage{ptx: []string{string(text)}, arch: best.arch}
	return m, m.readCode(all)
}

// readCode sets the cubin and the usage from the entry with machine code for the arch of the PTX, if there is one.
func (m *moduleImage) readCode(all []entry) (err error) {
	i := slices.IndexFunc(all, func(e entry) bool { return e.kind == kindELF && e.arch == m.arch })
	if i < 0 {
		return nil
	}
	if m.cubin, err = all[i].open(); err != nil {
		return err
	}
	if m.usage, err = readUsage(m.cubin); err != nil {
		return fmt.Errorf("vgpu: the machine code for sm_%d: %w", m.arch, err)
	}
	return nil
}

// linkedImage returns the image of a program that nvlink linked from units: their PTX, and the linked machine code.
func linkedImage(linked unsafe.Pointer, units []unsafe.Pointer) (*moduleImage, error) {
	m := &moduleImage{}
	for _, unit := range units {
		part, err := readImage(bytesAt(unit))
		if err != nil {
			return nil, err
		}
		m.ptx, m.arch = append(m.ptx, part.ptx...), max(m.arch, part.arch)
	}
	all, err := readEntries(bytesAt(linked))
	if err != nil {
		return nil, err
	}
	return m, m.readCode(all)
}

// bytesAt returns a function for readEntries that reads from memory at p.
func bytesAt(p unsafe.Pointer) func(n int) []byte {
	return func(n int) []byte { return unsafe.Slice((*byte)(p), n) }
}

// open returns the decompressed data of an entry.
func (e *entry) open() (text []byte, err error) {
	switch {
	case e.flags&flagLZ4 != 0:
		text, err = lz4(e.data[:e.packed], int(e.size))
	case e.flags&flagZstd != 0:
		var z *zstd.Decoder
		if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxImage)); err == nil {
			text, err = z.DecodeAll(e.data[:e.packed], nil)
			z.Close()
		}
	default:
		return e.data, nil
	}
	if err == nil && uint64(len(text)) != e.size {
		err = fmt.Errorf("%d bytes instead of %d", len(text), e.size)
	}
	if err != nil {
		return nil, fmt.Errorf("vgpu: decompressing the fat binary: %w", err)
	}
	return text, nil
}

// lz4 decompresses one block of LZ4 to size bytes.
func lz4(in []byte, size int) ([]byte, error) {
	errCut := errors.New("damaged LZ4 block")
	out := make([]byte, 0, min(size, 255*len(in)))
	// length returns n, or, if n is 15, its sum with the length bytes that follow.
	length := func(n int) (int, bool) {
		for last := byte(255); n >= 15 && last == 255; in = in[1:] {
			if len(in) == 0 {
				return 0, false
			}
			last = in[0]
			n += int(last)
		}
		return n, true
	}
	for len(in) > 0 {
		token := in[0]
		in = in[1:]
		n, ok := length(int(token >> 4))
		if !ok || n > len(in) || len(out)+n > size {
			return nil, errCut
		}
		out, in = append(out, in[:n]...), in[n:]
		if len(in) == 0 {
			break // the last sequence has only literals
		}
		if len(in) < 2 {
			return nil, errCut
		}
		back := int(binary.LittleEndian.Uint16(in))
		in = in[2:]
		n, ok = length(int(token & 15))
		n += 4
		if !ok || back == 0 || back > len(out) || len(out)+n > size {
			return nil, errCut
		}
		for range n { // source and target may overlap
			out = append(out, out[len(out)-back])
		}
	}
	return out, nil
}

// readUsage reads the section .nv.info of a cubin. Each attribute there has a format, a number and a value; the values
// of interest are a symbol index and a count.
func readUsage(cubin []byte) (map[string]usage, error) {
	const sized, registerCount, stackSize, frameSize = 4, 0x2f, 0x12, 0x11
	f, err := sass.File(cubin)
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	all := map[string]usage{}
	s := f.Section(".nv.info")
	if s == nil {
		return all, nil
	}
	data, err := s.Data()
	if err != nil {
		return nil, err
	}
	for len(data) >= 4 {
		format, attribute, n := data[0], data[1], 0
		if format == sized {
			n = int(binary.LittleEndian.Uint16(data[2:]))
		}
		data = data[4:]
		if n > len(data) {
			return nil, errors.New("truncated .nv.info")
		}
		if n == 8 && (attribute == registerCount || attribute == stackSize || attribute == frameSize) {
			at, value := binary.LittleEndian.Uint32(data), int(binary.LittleEndian.Uint32(data[4:]))
			if at == 0 || uint64(at) > uint64(len(symbols)) {
				return nil, errors.New(".nv.info has an unknown symbol")
			}
			name := symbols[at-1].Name // debug/elf omits symbol 0
			u := all[name]
			switch attribute {
			case registerCount:
				u.registers = value
			case stackSize:
				u.local = value
			case frameSize:
				u.frame = value
			}
			all[name] = u
		}
		data = data[n:]
	}
	return all, nil
}
