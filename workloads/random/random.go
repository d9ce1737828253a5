// Package random generates numbers that are the same on every machine. Each depends only on a key and an index, so a
// tensor can be filled in any order and by any number of goroutines. The package uses integers and float64 operations
// that IEEE 754 specifies exactly; products are converted explicitly, so that no compiler fuses them with a following
// sum. It is not for secrets.
package random

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// A Stream is a sequence of numbers.
type Stream uint64

// New returns the stream of parts: its key is the start of their SHA-256, each preceded by its length.
func New(parts ...string) Stream {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return Stream(binary.LittleEndian.Uint64(h.Sum(nil)))
}

// Uint64 returns number i of the stream: SplitMix64 seeded with the key, at its step i+1.
func (s Stream) Uint64(i int) uint64 {
	z := uint64(s) + (uint64(i)+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Uint32 returns half i&1, the low one first, of number i/2.
func (s Stream) Uint32(i int) uint32 { return uint32(s.Uint64(i>>1) >> (32 * (i & 1))) }

// Intn returns a number uniform over 0 to n-1, within the resolution of 32 bits.
func (s Stream) Intn(i, n int) int { return int(uint64(s.Uint32(i)) * uint64(n) >> 32) }

// Uniform returns a number strictly between 0 and 1, at the centre of one of 2^32 equal intervals.
func (s Stream) Uniform(i int) float64 { return uniform(s.Uint32(i)) }

func uniform(u uint32) float64 { return float64((float64(u) + 0.5) * 0x1p-32) }

// Normal returns a standard normal number: Quantile(Uint32(i)).
func (s Stream) Normal(i int) float64 { return Quantile(s.Uint32(i)) }

// Quantile returns the standard normal quantile of the centre of interval u of 2^32 equal ones, between -6.3 and 6.3.
// It is algorithm AS 241 of Wichura (1988), PPND16, without its third branch: probabilities that small do not occur.
func Quantile(u uint32) float64 {
	p := uniform(u)
	q := p - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		return q * poly(r, &center[0]) / poly(r, &center[1])
	}
	r := math.Sqrt(-Log(min(p, 1-p))) - 1.6
	return math.Copysign(poly(r, &tail[0])/poly(r, &tail[1]), q)
}

// Numerator and denominator of AS 241's rational functions, constant term first.
var (
	center = [2][8]float64{
		{3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
			4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3},
		{1, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
			2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3},
	}
	tail = [2][8]float64{
		{1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
			1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
		{1, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
			1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9},
	}
)

func poly(x float64, c *[8]float64) float64 {
	y := c[7]
	for i := 6; i >= 0; i-- {
		y = float64(y*x) + c[i]
	}
	return y
}

var odd = [11]float64{1, 1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19, 1. / 21}

// Log returns the natural logarithm of a positive finite x, accurate to some units of the last place.
func Log(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := (m - 1) / (m + 1) // log m = 2 atanh s, |s| < 0.172
	s2 := float64(s * s)
	sum := 0.0
	for n := 10; n >= 0; n-- {
		sum = float64(sum*s2) + odd[n]
	}
	return float64(float64(e)*math.Ln2) + float64(2*s*sum)
}

// Exp returns e to the x for x between -700 and 700, accurate to some units of the last place.
func Exp(x float64) float64 {
	k := math.Floor(float64(x*math.Log2E) + 0.5)
	r := x - float64(k*math.Ln2)
	sum := 1.0
	for n := 14.0; n >= 1; n-- {
		sum = float64(float64(r/n)*sum) + 1
	}
	return math.Ldexp(sum, int(k))
}
