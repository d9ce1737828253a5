// Package tensor holds host tensors: the format's dtypes, conversions between them and float32 or float64, and the
// contest's comparison rule. It does no arithmetic on tensors and knows nothing of devices.
package tensor

import (
	"fmt"
)

// A Tensor is a dense, row-major tensor in host memory. Data is little-endian. It may be a read-only mapping: write
// only to tensors created by New.
type Tensor struct {
	DType DType
	Shape []int // an empty shape is a 0-d tensor of one element
	Data  []byte
}

// New returns a zeroed tensor. It panics if an extent is negative or the size overflows.
func New(d DType, shape ...int) *Tensor {
	n, ok := Elements(shape)
	bytes, fits := d.Bytes(n)
	if !ok || !fits {
		panic(fmt.Sprintf("tensor: shape %v is out of range", shape))
	}
	return &Tensor{DType: d, Shape: append([]int(nil), shape...), Data: make([]byte, bytes)}
}

// Elements returns the product of shape, 1 for an empty shape. ok is false for a negative extent or an overflow.
func Elements(shape []int) (n int, ok bool) {
	n = 1
	for _, s := range shape {
		if s < 0 || s != 0 && n > (1<<62)/s {
			return 0, false
		}
		n *= s
	}
	return n, true
}

// Len returns the number of elements.
func (t *Tensor) Len() int {
	n, _ := Elements(t.Shape)
	return n
}

// A DType is the element type of a tensor. The constants are in the format's order.
type DType uint8

const (
	Float32 DType = iota
	Float16
	BFloat16
	Float8E4M3FN
	Float8E5M2
	Float4E2M1
	Int64
	Int32
	Int16
	Int8
	Bool
	numDTypes
)

var dtypes = [numDTypes]struct {
	name string
	bits int
}{
	Float32:      {"float32", 32},
	Float16:      {"float16", 16},
	BFloat16:     {"bfloat16", 16},
	Float8E4M3FN: {"float8_e4m3fn", 8},
	Float8E5M2:   {"float8_e5m2", 8},
	Float4E2M1:   {"float4_e2m1", 4},
	Int64:        {"int64", 64},
	Int32:        {"int32", 32},
	Int16:        {"int16", 16},
	Int8:         {"int8", 8},
	Bool:         {"bool", 8},
}

// DTypes returns every dtype in the format's order.
func DTypes() []DType {
	all := make([]DType, numDTypes)
	for i := range all {
		all[i] = DType(i)
	}
	return all
}

// ParseDType returns the dtype called name, such as "bfloat16". ok is false for any other text.
func ParseDType(name string) (d DType, ok bool) {
	for i, t := range dtypes {
		if t.name == name {
			return DType(i), true
		}
	}
	return 0, false
}

// String returns the format's name for d.
func (d DType) String() string {
	if d >= numDTypes {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Bits returns the width of one element in bits: 4 for float4_e2m1, which packs two elements into a byte.
func (d DType) Bits() int { return dtypes[d].bits }

// IsFloat reports whether d is a floating-point type.
func (d DType) IsFloat() bool { return d <= Float4E2M1 }

// Bytes returns the size of n elements in bytes. ok is false if n is negative or the size overflows an int.
func (d DType) Bytes(n int) (bytes int, ok bool) {
	bits := d.Bits()
	if n < 0 || n > (1<<62)/bits {
		return 0, false
	}
	return (n*bits + 7) / 8, true
}
