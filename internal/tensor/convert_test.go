package tensor

import (
	"math"
	"math/rand/v2"
	"sort"
	"testing"
)

// A format is a slow, independent model of a small float type with sign, exponent and mantissa fields. Decoding uses
// math.Ldexp; encoding searches the list of all values for the nearest.
type format struct {
	name             string
	expBits, manBits int
	bias             int
	special          bool // the top exponent encodes infinity and NaN
	topNaN           bool // the top code is NaN; no code is infinity
	saturate         bool
	nan              func(negative bool) uint32 // code of a NaN
	encode           func(float32) uint32
	decode           func(uint32) float32
	values           []float64 // of the non-negative finite codes, ascending, and of the next code
}

func formats() []*format {
	signed := func(code, sign uint32) func(bool) uint32 {
		return func(negative bool) uint32 {
			if negative {
				return code | sign
			}
			return code
		}
	}
	all := []*format{
		{name: "bfloat16", expBits: 8, manBits: 7, bias: 127, special: true, nan: signed(0x7fc0, 0),
			encode: func(x float32) uint32 { return uint32(BFloat16FromFloat32(x)) },
			decode: func(c uint32) float32 { return Float32FromBFloat16(uint16(c)) }},
		{name: "float16", expBits: 5, manBits: 10, bias: 15, special: true, nan: signed(0x7e00, 0x8000),
			encode: func(x float32) uint32 { return uint32(Float16FromFloat32(x)) },
			decode: func(c uint32) float32 { return Float32FromFloat16(uint16(c)) }},
		{name: "float8_e4m3fn", expBits: 4, manBits: 3, bias: 7, topNaN: true, nan: signed(0x7f, 0x80),
			encode: func(x float32) uint32 { return uint32(Float8E4M3FNFromFloat32(x)) },
			decode: func(c uint32) float32 { return Float32FromFloat8E4M3FN(uint8(c)) }},
		{name: "float8_e5m2", expBits: 5, manBits: 2, bias: 15, special: true, nan: signed(0x7f, 0x80),
			encode: func(x float32) uint32 { return uint32(Float8E5M2FromFloat32(x)) },
			decode: func(c uint32) float32 { return Float32FromFloat8E5M2(uint8(c)) }},
		{name: "float4_e2m1", expBits: 2, manBits: 1, bias: 1, saturate: true, nan: signed(7, 0),
			encode: func(x float32) uint32 { return uint32(Float4E2M1FromFloat32(x)) },
			decode: func(c uint32) float32 { return e2m1[c&15] }},
	}
	for _, f := range all {
		last := uint32(1)<<(f.expBits+f.manBits) - 1
		switch {
		case f.special:
			last = uint32(1<<f.expBits-1)<<f.manBits - 1
		case f.topNaN:
			last--
		}
		for c := uint32(0); c <= last+1; c++ {
			f.values = append(f.values, f.value(c))
		}
	}
	return all
}

// value decodes c as if no code were special.
func (f *format) value(c uint32) float64 {
	exp, man := int(c>>f.manBits), float64(c&(1<<f.manBits-1))/float64(int(1)<<f.manBits)
	if exp == 0 {
		return math.Ldexp(man, 1-f.bias)
	}
	return math.Ldexp(1+man, exp-f.bias)
}

func (f *format) sign() uint32 { return 1 << (f.expBits + f.manBits) }

func (f *format) nearest(x float32) uint32 {
	if x != x {
		return f.nan(math.Signbit(float64(x)))
	}
	code, abs := uint32(0), math.Abs(float64(x))
	last := uint32(len(f.values) - 2)
	switch i := sort.SearchFloat64s(f.values, abs); {
	case i == len(f.values):
		code = last + 1
	case f.values[i] == abs:
		code = uint32(i)
	default:
		lo, hi := f.values[i-1], f.values[i]
		mid := lo + (hi-lo)/2
		code = uint32(i)
		if abs < mid || abs == mid && i%2 == 1 {
			code--
		}
	}
	if code > last && f.saturate {
		code = last
	}
	if math.Signbit(float64(x)) {
		code |= f.sign()
	}
	return code
}

func TestDecodeAllCodes(t *testing.T) {
	for _, f := range formats() {
		last := uint32(len(f.values) - 2)
		for c := range 2 * f.sign() {
			got, abs, negative := f.decode(c), c&(f.sign()-1), c >= f.sign()
			switch {
			case abs <= last:
				if math.Abs(float64(got)) != f.values[abs] || math.Signbit(float64(got)) != negative {
					t.Errorf("%s: code %#x: got %v, want %v", f.name, c, got, f.values[abs])
				}
				if back := f.encode(got); back != c {
					t.Errorf("%s: code %#x is %v, which encodes to %#x", f.name, c, got, back)
				}
			case abs == last+1 && f.special:
				if !math.IsInf(float64(got), 0) || got < 0 != negative {
					t.Errorf("%s: code %#x: got %v, want infinity", f.name, c, got)
				}
				if back := f.encode(got); back != c {
					t.Errorf("%s: code %#x is %v, which encodes to %#x", f.name, c, got, back)
				}
			default:
				if got == got {
					t.Errorf("%s: code %#x: got %v, want NaN", f.name, c, got)
				}
				if back := f.decode(f.encode(got)); back == back {
					t.Errorf("%s: code %#x is NaN, which encodes to %v", f.name, c, back)
				}
			}
		}
	}
}

func TestEncodeRounds(t *testing.T) {
	for _, f := range formats() {
		check := func(x float32) {
			if got, want := f.encode(x), f.nearest(x); got != want {
				t.Fatalf("%s: %v (%#08x): got %#x, want %#x", f.name, x, math.Float32bits(x), got, want)
			}
		}
		around := func(x float64) {
			for _, s := range []float64{1, -1} {
				y := float32(s * x)
				check(y)
				check(math.Nextafter32(y, float32(math.Inf(1))))
				check(math.Nextafter32(y, float32(math.Inf(-1))))
			}
		}
		for i, v := range f.values {
			around(v)
			if i > 0 {
				around(f.values[i-1] + (v-f.values[i-1])/2)
			}
		}
		for _, x := range []float64{0, math.Inf(1), math.NaN(), math.MaxFloat32, 0x1p-149, 0x1p-126, 0x1.fffffcp-127} {
			around(x)
		}
		check(float32(math.Copysign(math.NaN(), -1)))
		r := rand.New(rand.NewPCG(1, 2))
		for range 1 << 20 {
			check(math.Float32frombits(r.Uint32()))
		}
		for range 1 << 18 { // in the dense range of the type's values
			check(float32(r.NormFloat64() * f.values[len(f.values)/2]))
		}
	}
}

func TestOverflow(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		name string
		got  uint32
		want uint32
	}{
		{"e4m3fn 448", uint32(Float8E4M3FNFromFloat32(448)), 0x7e},
		{"e4m3fn 464 ties to 448", uint32(Float8E4M3FNFromFloat32(464)), 0x7e},
		{"e4m3fn 465", uint32(Float8E4M3FNFromFloat32(465)), 0x7f},
		{"e4m3fn -1000", uint32(Float8E4M3FNFromFloat32(-1000)), 0xff},
		{"e4m3fn inf", uint32(Float8E4M3FNFromFloat32(inf)), 0x7f},
		{"e5m2 57344", uint32(Float8E5M2FromFloat32(57344)), 0x7b},
		{"e5m2 61439", uint32(Float8E5M2FromFloat32(61439)), 0x7b},
		{"e5m2 61440 ties to inf", uint32(Float8E5M2FromFloat32(61440)), 0x7c},
		{"e5m2 -inf", uint32(Float8E5M2FromFloat32(-inf)), 0xfc},
		{"float16 65519", uint32(Float16FromFloat32(65519)), 0x7bff},
		{"float16 65520 ties to inf", uint32(Float16FromFloat32(65520)), 0x7c00},
		{"bfloat16 largest float32", uint32(BFloat16FromFloat32(math.MaxFloat32)), 0x7f80},
		{"float4 5 ties to 4", uint32(Float4E2M1FromFloat32(5)), 6},
		{"float4 -inf", uint32(Float4E2M1FromFloat32(-inf)), 15},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, c.got, c.want)
		}
	}
}

func TestBulk(t *testing.T) {
	values := []float64{0, 1, -2, 3, 0.5, -6, 4, 1.5, -1, 2, 6}
	for _, d := range DTypes() {
		x := New(d, len(values))
		x.WriteFloat64s(values, 0)
		want := append([]float64(nil), values...)
		for i, v := range want {
			switch {
			case d == Bool && v != 0:
				want[i] = 1
			case !d.IsFloat():
				want[i] = math.Trunc(v)
			}
		}
		for first := range values {
			got64 := make([]float64, len(values)-first)
			x.ReadFloat64s(got64, first)
			got32 := make([]float32, len(values)-first)
			x.ReadFloat32s(got32, first)
			for i := range got64 {
				if got64[i] != want[first+i] || float64(got32[i]) != want[first+i] {
					t.Errorf("%v from %d: got %v and %v, want %v", d, first, got64, got32, want[first:])
					break
				}
			}
		}
		x.WriteFloat32s([]float32{1, 0, 1}, 3)
		copy(want[3:], []float64{1, 0, 1})
		for i, got := range float32s(x) {
			if float64(got) != want[i] {
				t.Errorf("%v after a write in the middle: element %d: got %v, want %v", d, i, got, want[i])
			}
		}
	}
}

func TestWriteIntegerRange(t *testing.T) {
	in := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 127.9, -128.9, -0.9}
	for _, c := range []struct {
		dtype DType
		want  []float64
	}{
		{Int8, []float64{0, 127, -128, 127, -128, 127, -128, 0}},
		{Int16, []float64{0, 32767, -32768, 32767, -32768, 127, -128, 0}},
		{Int32, []float64{0, 1<<31 - 1, -1 << 31, 1<<31 - 1, -1 << 31, 127, -128, 0}},
		{Int64, []float64{0, 1 << 63, -1 << 63, 1 << 63, -1 << 63, 127, -128, 0}},
	} {
		x := New(c.dtype, len(in))
		x.WriteFloat64s(in, 0)
		got := make([]float64, len(in))
		x.ReadFloat64s(got, 0)
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%v of %v: got %v, want %v", c.dtype, in[i], got[i], c.want[i])
			}
		}
		limit := math.Ldexp(1, c.dtype.Bits()-1)
		x.WriteFloat64s([]float64{1.5 * limit, -1.5 * limit}, 0)
		x.ReadFloat64s(got, 0)
		if got[0] != c.want[1] || got[1] != c.want[2] {
			t.Errorf("%v of %v and its negative: got %v and %v", c.dtype, 1.5*limit, got[0], got[1])
		}
	}
}

func TestRangePanics(t *testing.T) {
	x := New(Float32, 4)
	for _, c := range []struct{ first, n int }{{-1, 1}, {0, 5}, {4, 1}, {math.MaxInt, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("reading %d elements from %d: no panic", c.n, c.first)
				}
			}()
			x.ReadFloat32s(make([]float32, c.n), c.first)
		}()
	}
}

func BenchmarkFloat32s(b *testing.B) {
	for _, d := range []DType{Float32, BFloat16, Float16, Float8E4M3FN} {
		b.Run(d.String(), func(b *testing.B) {
			x, dst := New(d, 1<<20), make([]float32, 1<<20)
			b.SetBytes(4 << 20)
			for b.Loop() {
				x.ReadFloat32s(dst, 0)
			}
		})
	}
}

func BenchmarkWriteFloat64s(b *testing.B) {
	for _, d := range []DType{Float32, BFloat16, Float16, Float8E4M3FN} {
		b.Run(d.String(), func(b *testing.B) {
			x, src := New(d, 1<<20), make([]float64, 1<<20)
			b.SetBytes(8 << 20)
			for b.Loop() {
				x.WriteFloat64s(src, 0)
			}
		})
	}
}

// float32s returns all elements.
func float32s(t *Tensor) []float32 {
	dst := make([]float32, t.Len())
	t.ReadFloat32s(dst, 0)
	return dst
}
