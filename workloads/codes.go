package workloads

import (
	"encoding/binary"
	"sync"

	"fisub/internal/tensor"
	"fisub/workloads/random"
)

// clamp is what becomes of a normal where the contest draws random numbers for a narrow type.
func clamp(x float64) float64 { return min(2, max(-2, x)) }

// codeBits is how many upper bits of a uniform number codes looks at.
const codeBits = 11

// codes turns uniform numbers into the bytes of clamped normals of an 8-bit type. A byte depends on its number alone
// and changes at a few places between 0 and 2^32 only. For each value of the upper bits, all[value] has, from the lowest
// bit: 8 bits of the byte from a number on, 8 bits of the byte below it, the bit hard, 15 zeros, and that number. If the
// byte changes more than once, hard is set and the rest is 0.
type codes struct {
	all    [1 << codeBits]uint64
	encode func(float32) uint8
}

const hard = 1 << 16

var (
	codesE4M3FN = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E4M3FNFromFloat32) })
	codesE5M2   = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E5M2FromFloat32) })
)

func newCodes(encode func(float32) uint8) *codes {
	c := &codes{encode: encode}
	const width = 1 << (32 - codeBits)
	for i := range c.all {
		first, last := uint32(i*width), uint32(i*width+width-1)
		below, above := c.exact(first), c.exact(last)
		// The byte is monotonic in the number, so that it changes once if the two sides of a change are next to each other.
		for first+1 < last {
			if middle := first + (last-first)/2; c.exact(middle) == below {
				first = middle
			} else {
				last = middle
			}
		}
		if c.exact(last) == above {
			c.all[i] = uint64(last)<<32 | uint64(below)<<8 | uint64(above)
		} else {
			c.all[i] = hard
		}
	}
	return c
}

func (c *codes) exact(u uint32) uint8 { return c.encode(float32(clamp(random.Quantile(u)))) }

func (c *codes) code(u uint32) uint8 {
	if e := c.all[u>>(32-codeBits)]; e&hard == 0 {
		return side(e, u)
	}
	return c.exact(u)
}

// side returns the byte of u, whose upper bits give e.
func side(e uint64, u uint32) uint8 {
	below := (uint64(u) - e>>32) >> 60 // 0, or negative and cut to 15
	return uint8(e >> (below & 8))
}

// fill sets dst to the bytes of elements first and following, of which first is even.
func (c *codes) fill(s random.Stream, dst []byte, first int) {
	i := 0
	for ; i+1 < len(dst); i += 2 {
		u := s.Uint64((first + i) >> 1)
		low, high := c.all[uint32(u)>>(32-codeBits)], c.all[u>>(64-codeBits)]
		both := uint16(side(low, uint32(u))) | uint16(side(high, uint32(u>>32)))<<8
		if (low|high)&hard != 0 {
			both = uint16(c.code(uint32(u))) | uint16(c.code(uint32(u>>32)))<<8
		}
		binary.LittleEndian.PutUint16(dst[i:], both)
	}
	if i < len(dst) {
		dst[i] = c.code(s.Uint32(first + i))
	}
}
