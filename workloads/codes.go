package workloads

import (
	"encoding/binary"
	"sync"

	"fisub/internal/tensor"
	"fisub/workloads/random"
)

// clamp limits a normal to [-2, 2], as the contest does for narrow types.
func clamp(x float64) float64 { return min(2, max(-2, x)) }

// codeBits is the number of upper bits that select an entry of codes.
const codeBits = 15

// A codes maps uniform 32-bit numbers to the bytes of clamped normals of an 8-bit type. The byte changes at only a few
// numbers, so the upper bits mostly determine it: all[upper bits] is the byte, or hard if the lower bits matter.
type codes struct {
	all    [1 << codeBits]uint8
	encode func(float32) uint8
}

// hard is the byte of a NaN, which no clamped normal has.
const hard = 0x7f

var (
	codesE4M3FN = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E4M3FNFromFloat32) })
	codesE5M2   = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E5M2FromFloat32) })
)

func newCodes(encode func(float32) uint8) *codes {
	c := &codes{encode: encode}
	const width = 1 << (32 - codeBits)
	for i := range c.all {
		first := uint32(i * width)
		if c.all[i] = c.exact(first); c.exact(first+width-1) != c.all[i] {
			c.all[i] = hard
		}
	}
	return c
}

func (c *codes) exact(u uint32) uint8 { return c.encode(float32(clamp(random.Quantile(u)))) }

func (c *codes) code(u uint32) uint8 {
	if code := c.all[u>>(32-codeBits)]; code != hard {
		return code
	}
	return c.exact(u)
}

// fill sets dst to the bytes of the elements from first on; first must be even.
func (c *codes) fill(s random.Stream, dst []byte, first int) {
	i := 0
	for ; i+1 < len(dst); i += 2 {
		u := s.Uint64((first + i) >> 1)
		low, high := c.all[uint32(u)>>(32-codeBits)], c.all[u>>(64-codeBits)]
		if low == hard || high == hard {
			low, high = c.code(uint32(u)), c.code(uint32(u>>32))
		}
		binary.LittleEndian.PutUint16(dst[i:], uint16(low)|uint16(high)<<8)
	}
	if i < len(dst) {
		dst[i] = c.code(s.Uint32(first + i))
	}
}
