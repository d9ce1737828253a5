package tensor

import (
	"encoding/binary"
	"math"
)

// BFloat16FromFloat32 rounds to nearest even. Every NaN becomes 0x7fc0.
func BFloat16FromFloat32(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fc0
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32FromBFloat16 converts exactly.
func Float32FromBFloat16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// Float16FromFloat32 rounds to nearest even. Values that are too large become infinity, a NaN becomes the quiet NaN of
// its sign. Values from 2^16 on exceed the largest finite one by more than half a unit.
func Float16FromFloat32(x float32) uint16 {
	return uint16(narrow(x, 16, 10, 15, 143<<23, 0x7c00, 0x7e00))
}

// Float32FromFloat16 converts exactly.
func Float32FromFloat16(h uint16) float32 {
	sign, exp, man := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(man)*0x1p-24))
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | man<<13)
}

// Float8E4M3FNFromFloat32 rounds to nearest even. The type has no infinity: infinity and values that round beyond 448
// become NaN. Values from 480 on have NaN's encoding.
func Float8E4M3FNFromFloat32(x float32) uint8 {
	return uint8(narrow(x, 8, 3, 7, 0x43f00000, 0x7f, 0x7f))
}

// Float32FromFloat8E4M3FN converts exactly.
func Float32FromFloat8E4M3FN(b uint8) float32 { return e4m3fn[b] }

// Float8E5M2FromFloat32 rounds to nearest even. Values that round beyond 57344 become infinity.
func Float8E5M2FromFloat32(x float32) uint8 { return uint8(narrow(x, 8, 2, 15, 143<<23, 0x7c, 0x7f)) }

// Float32FromFloat8E5M2 converts exactly.
func Float32FromFloat8E5M2(b uint8) float32 { return Float32FromFloat16(uint16(b) << 8) }

// Float4E2M1FromFloat32 rounds to nearest even and saturates at 6, as the GPU's conversion does. NaN becomes 6. The
// result is in the low four bits.
func Float4E2M1FromFloat32(x float32) uint8 {
	if x != x {
		return 7
	}
	return uint8(narrow(x, 4, 1, 1, 0x40c00000, 7, 7))
}

var (
	e4m3fn = func() (t [256]float32) {
		for i := range t {
			t[i] = small(uint32(i), 4, 3, 7)
			if i&0x7f == 0x7f {
				t[i] = float32(math.NaN())
			}
		}
		return t
	}()
	e2m1 = func() (t [16]float32) {
		for i := range t {
			t[i] = small(uint32(i), 2, 1, 1)
		}
		return t
	}()
)

// small decodes a float of 1 + expBits + manBits bits, in a format without infinity and NaN.
func small(b uint32, expBits, manBits, bias int) float32 {
	man, exp := float64(b&(1<<manBits-1)), int(b>>manBits)&(1<<expBits-1)
	if exp == 0 {
		exp = 1
	} else {
		man += float64(int(1) << manBits)
	}
	x := math.Ldexp(man, exp-bias-manBits)
	if b>>(expBits+manBits)&1 != 0 {
		x = math.Copysign(x, -1)
	}
	return float32(x)
}

// narrow rounds x to a format with the given number of bits, man of them for the mantissa. Values from limit on, given
// as the bits of a float32, become over. NaN becomes nan.
func narrow(x float32, bits, man uint, bias int, limit, over, nan uint32) uint32 {
	b := math.Float32bits(x)
	sign, abs := b>>31<<(bits-1), b&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | nan
	case abs >= limit:
		return sign | over
	}
	return sign | round(abs, man, bias)
}

// round returns the exponent and mantissa bits of abs in a format with manBits and bias. abs is the bit pattern of a
// finite non-negative float32. A carry out of the mantissa correctly increments the exponent.
func round(abs uint32, manBits uint, bias int) uint32 {
	exp, man := int(abs>>23)-127+bias, abs&0x7fffff|1<<23
	shift, base := 23-manBits, uint32(0)
	if exp > 0 {
		base = uint32(exp-1) << manBits // the mantissa's leading one adds the rest
	} else {
		shift += uint(1 - exp)
	}
	if shift > 24 {
		return 0
	}
	half := uint32(1) << (shift - 1)
	return base + (man+half-1+man>>shift&1)>>shift
}

// ReadFloat32s fills dst with the elements from index first on. It panics if the tensor has too few.
func (t *Tensor) ReadFloat32s(dst []float32, first int) { read(t, dst, first) }

// ReadFloat64s is like ReadFloat32s but reads float64, which is exact for every dtype except int64.
func (t *Tensor) ReadFloat64s(dst []float64, first int) { read(t, dst, first) }

// Float64 returns the element at an index, as ReadFloat64s reads it.
func (t *Tensor) Float64(index int) float64 {
	var x [1]float64
	read(t, x[:], index)
	return x[0]
}

func read[F float32 | float64](t *Tensor, dst []F, first int) {
	src := t.bytes(first, len(dst))
	switch t.DType {
	case Float32:
		for i := range dst {
			dst[i] = F(math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:])))
		}
	case BFloat16:
		for i := range dst {
			dst[i] = F(Float32FromBFloat16(binary.LittleEndian.Uint16(src[2*i:])))
		}
	case Float16:
		for i := range dst {
			dst[i] = F(Float32FromFloat16(binary.LittleEndian.Uint16(src[2*i:])))
		}
	case Float8E4M3FN:
		for i := range dst {
			dst[i] = F(e4m3fn[src[i]])
		}
	case Float8E5M2:
		for i := range dst {
			dst[i] = F(Float32FromFloat8E5M2(src[i]))
		}
	case Float4E2M1:
		for i := range dst {
			dst[i] = F(e2m1[src[(first&1+i)/2]>>(4*((first+i)&1))&15])
		}
	case Int64:
		for i := range dst {
			dst[i] = F(int64(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case Int32:
		for i := range dst {
			dst[i] = F(int32(binary.LittleEndian.Uint32(src[4*i:])))
		}
	case Int16:
		for i := range dst {
			dst[i] = F(int16(binary.LittleEndian.Uint16(src[2*i:])))
		}
	case Int8:
		for i := range dst {
			dst[i] = F(int8(src[i]))
		}
	case Bool:
		for i := range dst {
			dst[i] = 0
			if src[i] != 0 {
				dst[i] = 1
			}
		}
	default:
		panic("tensor: " + t.DType.String())
	}
}

// Ints returns all elements of an integer tensor.
func (t *Tensor) Ints() []int {
	values := make([]float64, t.Len())
	t.ReadFloat64s(values, 0)
	ints := make([]int, len(values))
	for i, x := range values {
		ints[i] = int(x)
	}
	return ints
}

// WriteFloat32s stores src from index first on. Floats are rounded to nearest even. Integers are truncated and clamped
// to the range of the dtype; NaN becomes 0. A bool is x != 0. Concurrent calls may write disjoint ranges, except that
// two float4_e2m1 elements share a byte. It panics if src does not fit into the tensor.
func (t *Tensor) WriteFloat32s(src []float32, first int) { write(t, src, first) }

// WriteFloat64s is like WriteFloat32s for float64. Float dtypes are rounded to float32 first, as in torch.
func (t *Tensor) WriteFloat64s(src []float64, first int) { write(t, src, first) }

func write[F float32 | float64](t *Tensor, src []F, first int) {
	dst := t.bytes(first, len(src))
	switch t.DType {
	case Float32:
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(float32(x)))
		}
	case BFloat16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], BFloat16FromFloat32(float32(x)))
		}
	case Float16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], Float16FromFloat32(float32(x)))
		}
	case Float8E4M3FN:
		for i, x := range src {
			dst[i] = Float8E4M3FNFromFloat32(float32(x))
		}
	case Float8E5M2:
		for i, x := range src {
			dst[i] = Float8E5M2FromFloat32(float32(x))
		}
	case Float4E2M1:
		for i, x := range src {
			b, shift := &dst[(first&1+i)/2], 4*((first+i)&1)
			*b = *b&^(15<<shift) | Float4E2M1FromFloat32(float32(x))<<shift
		}
	case Bool:
		for i, x := range src {
			dst[i] = 0
			if x != 0 {
				dst[i] = 1
			}
		}
	default:
		for i, x := range src {
			t.putInt(dst, i, float64(x))
		}
	}
}

func (t *Tensor) putInt(dst []byte, i int, x float64) {
	v, bits := int64(0), t.DType.Bits()
	switch limit := math.Ldexp(1, bits-1); {
	case x >= limit:
		v = math.MaxInt64 >> (64 - bits)
	case x <= -limit:
		v = math.MinInt64 >> (64 - bits)
	case x == x:
		v = int64(x)
	}
	switch t.DType {
	case Int64:
		binary.LittleEndian.PutUint64(dst[8*i:], uint64(v))
	case Int32:
		binary.LittleEndian.PutUint32(dst[4*i:], uint32(v))
	case Int16:
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(v))
	case Int8:
		dst[i] = uint8(v)
	default:
		panic("tensor: " + t.DType.String())
	}
}

// bytes returns the storage of n elements from index first on. It starts with the byte that contains the first one.
func (t *Tensor) bytes(first, n int) []byte {
	if first < 0 || n < 0 || first > t.Len()-n {
		panic("tensor: range outside the tensor")
	}
	bits := t.DType.Bits()
	end := (first+n)*bits + 7
	return t.Data[first*bits/8 : end/8]
}
