package workloads

import (
	"sync"

	"fisub/internal/tensor"
	"fisub/workloads/random"
)

// clamp is what becomes of a normal where the contest draws random numbers for a narrow type.
func clamp(x float64) float64 { return min(2, max(-2, x)) }

// codeBits is how many upper bits of a uniform number codes looks at.
const codeBits = 13

// codes turns uniform numbers into the bytes of clamped normals of an 8-bit type. A byte depends on its number alone
// and changes at a few places between 0 and 2^32 only, so the upper bits mostly tell it: of each value of them,
// all[value] is the byte, or negative where the lower bits matter.
type codes struct {
	all    [1 << codeBits]int16
	encode func(float32) uint8
}

var (
	codesE4M3FN = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E4M3FNFromFloat32) })
	codesE5M2   = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E5M2FromFloat32) })
)

func newCodes(encode func(float32) uint8) *codes {
	c := &codes{encode: encode}
	const width = 1 << (32 - codeBits)
	for i := range c.all {
		first := c.exact(uint32(i * width))
		if c.all[i] = int16(first); c.exact(uint32(i*width+width-1)) != first {
			c.all[i] = -1
		}
	}
	return c
}

func (c *codes) exact(u uint32) uint8 { return c.encode(float32(clamp(random.Quantile(u)))) }

func (c *codes) code(u uint32) uint8 {
	if code := c.all[u>>(32-codeBits)]; code >= 0 {
		return uint8(code)
	}
	return c.exact(u)
}

// fill sets dst to the bytes of elements first and following, of which first is even.
func (c *codes) fill(s random.Stream, dst []byte, first int) {
	for len(dst) > 1 {
		u := s.Uint64(first >> 1)
		dst[0], dst[1] = c.code(uint32(u)), c.code(uint32(u>>32))
		dst, first = dst[2:], first+2
	}
	if len(dst) > 0 {
		dst[0] = c.code(s.Uint32(first))
	}
}
