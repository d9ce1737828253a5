//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"errors"
	"strings"
)

// fatbinMagic begins a fat binary.
const fatbinMagic = 0xba55ed50

// fatbinPTX returns the PTX in a fat binary as nvcc --no-compress writes it: a header, then entries with headers of
// their own. read is asked how many bytes there are before any behind the first 16 is read.
func fatbinPTX(read func(n int) []byte) (string, error) {
	const kindPTX, compressed = 1, 0x2000 | 0x8000
	head := read(16)
	if binary.LittleEndian.Uint32(head) != fatbinMagic {
		return "", errors.New("vgpu: no fat binary")
	}
	start := int(binary.LittleEndian.Uint16(head[6:]))
	size := int(binary.LittleEndian.Uint64(head[8:]))
	data := read(start + size)[start:]
	for len(data) >= 64 {
		kind := binary.LittleEndian.Uint16(data)
		header := int(binary.LittleEndian.Uint32(data[4:]))
		payload := int(binary.LittleEndian.Uint64(data[8:]))
		flags := binary.LittleEndian.Uint64(data[40:])
		if header < 48 || payload < 0 || header+payload > len(data) {
			return "", errors.New("vgpu: the fat binary is cut off")
		}
		if kind == kindPTX {
			if flags&compressed != 0 {
				return "", errors.New("vgpu: the PTX in the fat binary is compressed")
			}
			text := string(data[header : header+payload])
			if i := strings.IndexByte(text, 0); i >= 0 {
				text = text[:i]
			}
			return text, nil
		}
		data = data[header+payload:]
	}
	return "", errors.New("vgpu: no PTX in the fat binary")
}
