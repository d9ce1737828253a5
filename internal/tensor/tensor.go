// Package tensor holds host tensors: the format's dtypes, conversions between them and float32 or float64, and the
// contest's comparison rule. It does no arithmetic on tensors and knows nothing of devices.
package tensor

import "fmt"

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
