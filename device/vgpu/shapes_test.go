//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// Loads and stores of all shapes move the right bytes, in global, shared and generic addresses, for consecutive and other
// elements and for one address, in full warps and for some lanes.
func TestShapes(t *testing.T) {
	for _, typ := range []string{"u8", "s8", "u16", "s16", "b32", "b64"} {
		size := width(typ)
		for _, n := range []int{1, 2, 4} {
			if size*n > 16 {
				continue
			}
			prefix, vector := "%r", ""
			if size == 8 {
				prefix = "%rd"
			}
			values := prefix + "20"
			if n > 1 {
				var all []string
				for i := range n {
					all = append(all, fmt.Sprint(prefix, 20+i))
				}
				values, vector = "{"+strings.Join(all, ", ")+"}", fmt.Sprintf(".v%d", n)
			}
			for _, space := range []string{"global", "shared", "shared 64", "generic", "generic shared"} {
				for _, c := range []struct{ from, to, lanes int }{{1, 1, 32}, {2, 3, 32}, {0, 1, 32}, {1, 1, 19}, {3, 2, 19}} {
					shape := fmt.Sprintf("%s.%s, %s, strides %d and %d, %d lanes", vector, typ, space, c.from, c.to, c.lanes)
					testShape(t, shape, vector+"."+typ, values, space, size*n, c.from*size*n, c.to*size*n, c.lanes)
				}
			}
		}
	}
}

// testShape copies values of some bytes from and to addresses with strides.
func testShape(t *testing.T, shape, typ, values, space string, bytes, from, to, lanes int) {
	const total = 2048
	memory, source, target := "global", "%rd1", "%rd2"
	convert := ""
	switch space {
	case "shared":
		memory, source, target = "shared", "%r4", "%r5"
	case "shared 64":
		memory, source, target = "shared", "%rd4", "%rd5"
	case "generic":
		memory = ""
	case "generic shared":
		memory, source, target = "", "%rd4", "%rd5"
		convert = "cvta.shared.u64 %rd4, %rd4;\ncvta.shared.u64 %rd5, %rd5;"
	}
	if memory != "" {
		memory = "." + memory
	}
	address := func(base string, stride int, reg string) string {
		if strings.HasPrefix(base, "%rd") {
			return fmt.Sprintf("mul.wide.u32 %%rd%s, %%r1, %d;\nadd.s64 %%rd%s, %%rd%s, %s;\n", reg, stride, reg, reg, base)
		}
		return fmt.Sprintf("mul.lo.u32 %%r%s, %%r1, %d;\nadd.s32 %%r%s, %%r%s, %s;\n", reg, stride, reg, reg, base)
	}
	kind := strings.TrimRight(source, "0123456789")
	ptx := fmt.Sprintf(`
.version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
	.reg .pred %%p<4>;
	.reg .b32 %%r<40>;
	.reg .b64 %%rd<40>;
	.shared .align 16 .b8 s[%[1]d];
	.shared .align 16 .b8 t[%[1]d];
	ld.param.u64 %%rd1, [in];
	ld.param.u64 %%rd2, [out];
	mov.u32 %%r1, %%tid.x;
	mov.u32 %%r4, s;
	mov.u32 %%r5, t;
	cvt.u64.u32 %%rd4, %%r4;
	cvt.u64.u32 %%rd5, %%r5;
	mul.lo.u32 %%r2, %%r1, %[2]d;
	mov.u32 %%r3, 0;
$fill:
	add.s32 %%r6, %%r4, %%r2;
	add.s32 %%r7, %%r5, %%r2;
	cvt.u64.u32 %%rd6, %%r2;
	add.s64 %%rd6, %%rd6, %%rd1;
	ld.global.b32 %%r8, [%%rd6];
	st.shared.b32 [%%r6], %%r8;
	st.shared.b32 [%%r7], 0;
	add.s32 %%r2, %%r2, 4;
	add.s32 %%r3, %%r3, 4;
	setp.lt.u32 %%p1, %%r3, %[2]d;
	@%%p1 bra $fill;
	bar.sync 0;
	%[3]s
	%[4]s %[5]s
	setp.lt.u32 %%p2, %%r1, %[6]d;
	@%%p2 ld%[7]s%[8]s %[9]s, [%[10]s30];
	@%%p2 st%[7]s%[8]s [%[10]s31], %[9]s;
	bar.sync 0;
`, total, total/32, convert, address(source, from, "30"), address(target, to, "31"), lanes, memory, typ, values, kind)
	if strings.Contains(space, "shared") { // copy the result
		ptx += fmt.Sprintf(`
	mul.lo.u32 %%r2, %%r1, %[1]d;
	mov.u32 %%r3, 0;
$copy:
	add.s32 %%r7, %%r5, %%r2;
	cvt.u64.u32 %%rd6, %%r2;
	add.s64 %%rd6, %%rd6, %%rd2;
	ld.shared.b32 %%r8, [%%r7];
	st.global.b32 [%%rd6], %%r8;
	add.s32 %%r2, %%r2, 4;
	add.s32 %%r3, %%r3, 4;
	setp.lt.u32 %%p1, %%r3, %[1]d;
	@%%p1 bra $copy;
`, total/32)
	}
	m := &Machine{Workers: 1}
	defer m.drop()
	mod, err := m.Load(ptx + "\tret;\n}\n")
	if err != nil {
		t.Fatal(shape, err)
	}
	k, err := mod.Kernel("k")
	if err != nil || len(k.Lacks()) > 0 {
		t.Fatal(shape, err, k.Lacks())
	}
	in, want := make([]uint32, total/4), make([]byte, total)
	data := make([]byte, total)
	for i := range data {
		data[i] = byte(i*7 + i/256)
	}
	for i := range in {
		in[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	for l := range lanes {
		copy(want[l*to:l*to+bytes], data[l*from:])
	}
	p, _ := words(m, "in", in...)
	q, got := words(m, "out", make([]uint32, total/4)...)
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(p)), uint64(q))
	if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, Params: params}); err != nil {
		t.Fatal(shape, err)
	}
	for i, v := range got {
		if w := binary.LittleEndian.Uint32(want[4*i:]); v != w {
			t.Fatalf("%s: word %d is %#x, want %#x", shape, i, v, w)
		}
	}
}
