//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Registers share places in the frame only while no lane needs both values: in loops, after guarded writes, and on
// both sides of a branch whose lanes part.
func TestLifetimes(t *testing.T) {
	var chain strings.Builder
	for i := 20; i < 400; i++ {
		fmt.Fprintf(&chain, "add.s32 %%r%d, %%r%d, %d;\n", i, i-1, i)
	}
	ptx := `
.version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 out)
{
	.reg .pred %p<4>;
	.reg .b32 %r<401>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd2, %r1, 4;
	add.s64 %rd3, %rd1, %rd2;
	mov.u32 %r2, 7;
	setp.lt.u32 %p1, %r1, 9;
	@%p1 mov.u32 %r2, 5; // 7 is needed in the other lanes
	mov.u32 %r19, %r1;
` + chain.String() + `
	and.b32 %r3, %r1, 1;
	setp.eq.u32 %p2, %r3, 0;
	@%p2 bra $even;
	mul.lo.s32 %r4, %r399, 3;
	add.s32 %r5, %r4, %r2;
	bra $loop;
$even:
	mul.lo.s32 %r6, %r399, 5;
	add.s32 %r5, %r6, %r2;
$loop: // each lane repeats it as often as its number
	mov.u32 %r7, 0;
$again:
	setp.eq.u32 %p0, %r7, 3;
	@%p0 mov.u32 %r2, %r1; // needed in the next turn, too
	add.s32 %r8, %r7, %r5;
	xor.b32 %r9, %r8, %r2;
	add.s32 %r10, %r9, 1;
	add.s32 %r11, %r9, 2;
	add.s32 %r12, %r9, 3;
	sub.s32 %r13, %r12, %r10;
	sub.s32 %r5, %r11, %r13;
	add.s32 %r7, %r7, 1;
	setp.lt.u32 %p3, %r7, %r1;
	@%p3 bra $again;
	st.global.b32 [%rd3], %r5;
	ret;
}
`
	m := &Machine{Workers: 1}
	defer m.drop()
	mod, err := m.Load(ptx)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil || len(k.Lacks()) > 0 {
		t.Fatal(err, k.Lacks())
	}
	if n := k.prog.funcs[k.prog.entry].frameSize; n > 4096 {
		t.Errorf("a frame of %d bytes for values of which a dozen are needed at a time", n)
	}
	p, got := words(m, "out", make([]uint32, 64)...)
	if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{64, 1, 1},
		Params: binary.LittleEndian.AppendUint64(nil, uint64(p))}); err != nil {
		t.Fatal(err)
	}
	want := make([]uint32, 64)
	for l := range want {
		second, sum := uint32(7), uint32(l)
		if l < 9 {
			second = 5
		}
		for i := 20; i < 400; i++ {
			sum += uint32(i)
		}
		v := sum*3 + second
		if l%2 == 0 {
			v = sum*5 + second
		}
		for n := 0; n < max(l, 1); n++ {
			if n == 3 {
				second = uint32(l)
			}
			v = (v + uint32(n)) ^ second
		}
		want[l] = v
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}
