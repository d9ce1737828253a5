//go:build linux && cgo

package vgpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"
)

// TestWMMA multiplies matrices of small integers in every layout.
func TestWMMA(t *testing.T) {
	halves := map[int]uint32{}
	half := func(v int) uint32 {
		code, ok := halves[v]
		if !ok {
			code = uint32(narrow{16, 10, 15, 65504}.encode(float64(v), false))
			halves[v] = code
		}
		return code
	}
	for _, c := range []struct {
		shape    string
		m, n, k  int
		in, out  string
		a, b, cd int // registers
	}{
		{"m16n16k16", 16, 16, 16, "f16", "f32", 8, 8, 8}, {"m32n8k16", 32, 8, 16, "f16", "f32", 8, 8, 8},
		{"m8n32k16", 8, 32, 16, "f16", "f32", 8, 8, 8}, {"m16n16k16", 16, 16, 16, "f16", "f16", 8, 8, 4},
		{"m8n32k16", 8, 32, 16, "f16", "f16", 8, 8, 4}, {"m16n16k16", 16, 16, 16, "bf16", "f32", 4, 4, 8},
		{"m16n16k8", 16, 16, 8, "tf32", "f32", 4, 4, 8}, {"m16n16k16", 16, 16, 16, "s8", "s32", 2, 2, 8},
		{"m32n8k16", 32, 8, 16, "s8", "s32", 4, 1, 8}, {"m8n32k16", 8, 32, 16, "s8", "s32", 1, 4, 8},
	} {
		for layouts := range 8 {
			layout := func(bit int) string {
				if layouts>>bit&1 == 1 {
					return "col"
				}
				return "row"
			}
			encode := func(v int, typ string) uint32 {
				switch typ {
				case "f16":
					return half(v)
				case "bf16":
					return math.Float32bits(float32(v)) >> 16
				case "s8", "s32":
					return uint32(v)
				}
				return math.Float32bits(float32(v))
			}
			size := func(typ string) int {
				switch typ {
				case "f16", "bf16":
					return 2
				case "s8":
					return 1
				}
				return 4
			}
			r := rand.New(rand.NewPCG(1, uint64(layouts)))
			matrix := func(rows, cols int) [][]int {
				x := make([][]int, rows)
				for i := range x {
					x[i] = make([]int, cols)
					for j := range x[i] {
						x[i][j] = r.IntN(9) - 4
					}
				}
				return x
			}
			A, B, C := matrix(c.m, c.k), matrix(c.k, c.n), matrix(c.m, c.n)
			const stride = 40 // elements; larger than any dimension of the matrices
			memory := make([]byte, 4*stride*32*4)
			at1 := func(which, row, col int, layout, typ string) []byte {
				i := row*stride + col
				if layout == "col" {
					i = col*stride + row
				}
				return memory[which*stride*32*4+i*size(typ):][:size(typ)]
			}
			put := func(to []byte, v uint32) {
				for i := range to {
					to[i] = byte(v >> (8 * i))
				}
			}
			for which, x := range [][][]int{A, B, C} {
				typ := c.in
				if which == 2 {
					typ = c.out
				}
				for i := range x {
					for j := range x[i] {
						put(at1(which, i, j, layout(which), typ), encode(x[i][j], typ))
					}
				}
			}
			regs := func(prefix string, n int) string {
				var all []string
				for i := range n {
					all = append(all, fmt.Sprint("%", prefix, i))
				}
				return "{" + strings.Join(all, ", ") + "}"
			}
			types := c.out + "." + c.out
			if c.in != "f16" {
				types = c.out + "." + c.in + "." + c.in + "." + c.out
			}
			const part = stride * 32 * 4
			text := fmt.Sprintf(`
.visible .entry k(.param .u64 x)
{
	.reg .b32 %%a<8>; .reg .b32 %%b<8>; .reg .b32 %%c<8>; .reg .b32 %%d<8>; .reg .b64 %%rd<6>; .reg .b32 %%s;
	ld.param.u64 %%rd1, [x];
	mov.u32 %%s, %d;
	wmma.load.a.sync.aligned.%s.%s.global.%s %s, [%%rd1], %%s;
	wmma.load.b.sync.aligned.%s.%s.global.%s %s, [%%rd1+%d], %%s;
	wmma.load.c.sync.aligned.%s.%s.global.%s %s, [%%rd1+%d], %%s;
	wmma.mma.sync.aligned.%s.%s.%s.%s %s, %s, %s, %s;
	wmma.store.d.sync.aligned.%s.%s.global.%s [%%rd1+%d], %s, %%s;
	ret;
}`, stride, layout(0), c.shape, c.in, regs("a", c.a), layout(1), c.shape, c.in, regs("b", c.b), part, layout(2), c.shape, c.out,
				regs("c", c.cd), 2*part, layout(0), layout(1), c.shape, types, regs("d", c.cd), regs("a", c.a), regs("b", c.b), regs("c", c.cd),
				layout(2), c.shape, c.out, 3*part, regs("d", c.cd))
			got, err := runKernel(t, text, threads(1, 32), unsafe.Slice((*uint32)(unsafe.Pointer(&memory[0])), len(memory)/4)...)
			if err != nil {
				t.Fatal(err)
			}
			copy(memory, unsafe.Slice((*byte)(unsafe.Pointer(&got[0])), len(memory)))
			for i := range c.m {
				for j := range c.n {
					sum := C[i][j]
					for k := range c.k {
						sum += A[i][k] * B[k][j]
					}
					want := make([]byte, size(c.out))
					put(want, encode(sum, c.out))
					if g := at1(3, i, j, layout(2), c.out); string(g) != string(want) {
						t.Fatalf("%s %s, layouts %d, at (%d,%d): got %x, want %x (%d)", c.shape, types, layouts, i, j, g, want, sum)
					}
				}
			}
		}
	}
}
