//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// tensorKernel runs body in a block of 128 threads. %rd1 and %rd2 are in and out, %r1 is the thread, %r2 the address of
// 32 KiB of shared memory aligned to 1024, %r3 an mbarrier.
func tensorKernel(t *testing.T, body string, in []uint32, out int) ([]uint32, error) {
	t.Helper()
	m := &Machine{Workers: 1, Strict: UnwrittenShared}
	t.Cleanup(m.drop)
	mod, err := m.Load(`
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
	.reg .pred %p<9>;
	.reg .b32 %r<99>;
	.reg .b64 %rd<20>;
	.reg .b128 %q<3>;
	.shared .align 1024 .b8 s[32768];
	.shared .align 8 .b64 bar;
	.shared .align 4 .b32 slot;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, s;
	mov.u32 %r3, bar;
	mov.u32 %r4, slot;
	setp.eq.u32 %p1, %r1, 0;
	setp.lt.u32 %p2, %r1, 32;
` + body + `
	ret;
}
`)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	if len(k.Lacks()) > 0 {
		t.Fatalf("lacks %v", k.Lacks())
	}
	x, _ := words(m, "in", in...)
	y, result := words(m, "out", make([]uint32, out)...)
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(x)), uint64(y))
	err = m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{128, 1, 1}, Params: params})
	return result, err
}

// Asynchronously copied data may be read only after waiting for the copy.
func TestCopiesUnderWay(t *testing.T) {
	in := make([]uint32, 1024)
	for i := range in {
		in[i] = uint32(i)
	}
	one := "shl.b32 %r5, %r1, 4; add.u32 %r6, %r2, %r5; cvt.u64.u32 %rd3, %r5; add.s64 %rd4, %rd1, %rd3;\n" +
		"cp.async.cg.shared.global [%r6], [%rd4], 16;\n"
	bulk := "@%p1 mbarrier.init.shared.b64 [%r3], 1;\nbar.sync 0;\n@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 2048;\n" +
		"@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 2048, [%r3];\n" +
		"bar.sync 0;\nshl.b32 %r5, %r1, 4; add.u32 %r6, %r2, %r5; cvt.u64.u32 %rd3, %r5;\n"
	store := "ld.shared.b32 %r7, [%r6]; add.s64 %rd5, %rd2, %rd3; st.global.b32 [%rd5], %r7;\n"
	const missing = "still writes: missing cp.async.wait_group"
	const pending = "still writes: left pending by cp.async.wait_group"
	for _, c := range []struct{ name, body, fault string }{
		{"waited", one + "cp.async.commit_group;\ncp.async.wait_group 0;\n" + store, ""},
		{"waited for all", one + "cp.async.wait_all;\n" + store, ""},
		{"an older group", one + "cp.async.commit_group;\ncp.async.commit_group;\ncp.async.wait_group 1;\n" + store, ""},
		{"not waited", one + "cp.async.commit_group;\n" + store, missing},
		{"a newer group", one + "cp.async.commit_group;\ncp.async.wait_group 1;\n" + store, pending},
		{"not committed", one + "cp.async.wait_group 0;\n" + store, pending},
		{"by an mbarrier", "@%p1 mbarrier.init.shared.b64 [%r3], 128;\nbar.sync 0;\n" + one +
			"cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];\n" +
			"$w: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;\n@!%p3 bra $w;\n" + store, ""},
		{"bulk", bulk + "$w: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;\n@!%p3 bra $w;\n" + store, ""},
		{"bulk, not waited", bulk + store, "still writes: missing wait for its mbarrier, or a barrier is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := tensorKernel(t, c.body, in, 512)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Errorf("got %v, want %q", err, c.fault)
				}
				return
			}
			if err != nil || out[4*77] != 4*77 {
				t.Errorf("got %d (%v), want %d", out[4*77], err, 4*77)
			}
		})
	}
}

// TestPartialBulkCopies leaves out bytes at both ends of copies to shared memory, where the values are then undefined,
// and bytes of each 16 of copies to global memory.
func TestPartialBulkCopies(t *testing.T) {
	in := make([]uint32, 15)
	for i := range in {
		in[i] = 0x01010101 * uint32(i+1)
	}
	// 64 bytes, of which those after the input, and more, are ignored.
	const inside = "@%p1 mbarrier.init.shared.b64 [%r3], 1;\nbar.sync 0;\n" +
		"@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 64;\n" +
		"@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [%r2], [%rd1], 64, 5, 6, [%r3];\n"
	const wait = "$w: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;\n@!%p3 bra $w;\n"
	const store = "@!%p1 ret;\nld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2];\nld.shared.v4.b32 {%r8, %r9, %r10, %r11}, [%r2+48];\n"
	const part = "shr.u32 %r5, %r5, 8;\nst.global.b32 [%rd2], %r5;\nst.global.b32 [%rd2+4], %r6;\nst.global.b32 [%rd2+8], %r9;\n" +
		"and.b32 %r10, %r10, 0xffff;\nst.global.b32 [%rd2+12], %r10;\n"
	for _, c := range []struct {
		name, body, fault string
		want              []uint32
	}{
		{"inside", inside + wait + store + part, "", []uint32{0x020202, 0x03030303, 0x0e0e0e0e, 0x0f0f}},
		{"an ignored byte at the start", inside + wait + store + "st.global.b32 [%rd2], %r5;", "read of unwritten shared memory", nil},
		{"an ignored byte at the end", inside + wait + store + "st.global.b32 [%rd2], %r10;", "read of unwritten shared memory", nil},
		{"a byte behind the allocation", strings.Replace(inside, "5, 6", "0, 3", 1) + wait, "invalid read of 1 byte", nil},
		{"without the wait", inside + "bar.sync 0;\n" + store + part, "still writes", nil},
		{"a mask", "@!%p1 ret;\nst.shared.b64 [%r2], -1;\nst.shared.b64 [%r2+8], -1;\nfence.proxy.async.shared::cta;\n" +
			"cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd2], [%r2], 16, 0x8421;\n" +
			"cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;", "", []uint32{0xff, 0xff00, 0xff0000, 0xff000000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := tensorKernel(t, c.body, in, 4)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Errorf("got %v, want %q", err, c.fault)
				}
			} else if err != nil || !slices.Equal(out[:len(c.want)], c.want) {
				t.Errorf("got %#x (%v), want %#x", out, err, c.want)
			}
		})
	}
}

func TestStoreAsync(t *testing.T) {
	out, err := tensorKernel(t, `
	@%p1 mbarrier.init.shared.b64 [%r3], 1;
	bar.sync 0;
	@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 512;
	shl.b32 %r5, %r1, 2; add.u32 %r6, %r2, %r5;
	st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], %r1, [%r3];
$w:	mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;
	@!%p3 bra $w;
	xor.b32 %r7, %r5, 4; add.u32 %r7, %r7, %r2;
	ld.shared.b32 %r8, [%r7];
	cvt.u64.u32 %rd3, %r5; add.s64 %rd3, %rd2, %rd3;
	st.global.b32 [%rd3], %r8;`, []uint32{0}, 128)
	if err != nil || out[10] != 11 || out[127] != 126 {
		t.Errorf("got %d, %d (%v), want 11, 126", out[10], out[127], err)
	}
}

func Test128Bits(t *testing.T) {
	out, err := tensorKernel(t, `
	ld.global.b128 %q1, [%rd1];
	mov.b128 %q2, %q1;
	mov.b128 {%rd3, %rd4}, %q2;
	mov.b128 %q1, {%rd4, %rd3};
	@%p1 st.global.b128 [%rd2], %q1;`, []uint32{1, 2, 3, 4}, 4)
	if err != nil || fmt.Sprint(out) != "[3 4 1 2]" {
		t.Errorf("got %v (%v), want [3 4 1 2]", out, err)
	}
}

// A product of 128 x 64 x 32 in two steps, of bfloat16 with the 128-byte swizzle.
func TestTensorMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	values := make([]float32, 192*32) // rows of a, then of b
	in := make([]uint32, 192*32/2)
	for i := range values {
		values[i] = float32(r.IntN(17)-8) / 4
		in[i/2] |= math.Float32bits(values[i]) >> 16 << (16 * (i % 2))
	}
	// 64-byte rows go to 128-byte rows, with swizzled units of 16 bytes.
	fill := `
	mov.u32 %r10, %r1;
$fill:
	shl.b32 %r11, %r10, 6; cvt.u64.u32 %rd3, %r11; add.s64 %rd3, %rd1, %rd3;
	shl.b32 %r12, %r10, 7; and.b32 %r13, %r10, 7;
	mov.u32 %r14, 0;
$unit:
	ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%rd3];
	xor.b32 %r15, %r14, %r13; shl.b32 %r15, %r15, 4; add.u32 %r15, %r15, %r12; add.u32 %r15, %r15, %r2;
	st.shared.v4.b32 [%r15], {%r20, %r21, %r22, %r23};
	add.s64 %rd3, %rd3, 16; add.u32 %r14, %r14, 1;
	setp.lt.u32 %p3, %r14, 4;
	@%p3 bra $unit;
	add.u32 %r10, %r10, 128;
	setp.lt.u32 %p3, %r10, 192;
	@%p3 bra $fill;
	@%p1 mbarrier.init.shared.b64 [%r3], 1;
	fence.proxy.async.shared::cta;
`
	alloc := `
	@!%p2 bra $allocated;
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 64;
	tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
$allocated:
	bar.sync 0;
	ld.shared.b32 %r30, [%r4];
`
	id := 1<<4 | 1<<7 | 1<<10 | 64>>3<<17 | 128>>4<<24
	multiply := fmt.Sprintf(`
	@!%%p1 bra $multiplied;
	shr.u32 %%r31, %%r2, 4; cvt.u64.u32 %%rd5, %%r31;
	or.b64 %%rd6, %%rd5, 0x%x;
	add.s64 %%rd7, %%rd6, 1024;
	setp.ne.u32 %%p4, 0, 0;
	setp.eq.u32 %%p5, 0, 0;
	mov.u32 %%r32, %d;
	tcgen05.mma.cta_group::1.kind::f16 [%%r30], %%rd6, %%rd7, %%r32, %%p4;
	add.s64 %%rd6, %%rd6, 2; add.s64 %%rd7, %%rd7, 2;
	tcgen05.mma.cta_group::1.kind::f16 [%%r30], %%rd6, %%rd7, %%r32, %%p5;
	tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%%r3];
$multiplied:
	mbarrier.try_wait.parity.shared.b64 %%p6, [%%r3], 0;
	@!%%p6 bra $multiplied;
	tcgen05.fence::after_thread_sync;
`, uint64(2)<<61|1<<46|1024>>4<<32|1<<16, id)
	var regs []string
	stores := "shl.b32 %r33, %r1, 8; cvt.u64.u32 %rd8, %r33; add.s64 %rd8, %rd2, %rd8;\n"
	for i := range 32 {
		regs = append(regs, fmt.Sprintf("%%r%d", 40+i))
	}
	load := "shr.u32 %r34, %r1, 5; shl.b32 %r34, %r34, 21; add.u32 %r34, %r34, %r30;\n" + stores
	for half := range 2 {
		load += fmt.Sprintf("tcgen05.ld.sync.aligned.32x32b.x32.b32 {%s}, [%%r34+%d];\ntcgen05.wait::ld.sync.aligned;\n",
			strings.Join(regs, ", "), 32*half)
		for i := range regs {
			load += fmt.Sprintf("st.global.b32 [%%rd8+%d], %s;\n", 128*half+4*i, regs[i])
		}
	}
	free := "bar.sync 0;\n@!%p2 bra $end;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 64;\n$end:\n"
	out, err := tensorKernel(t, fill+alloc+multiply+load+free, in, 128*64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 128 {
		for j := range 64 {
			want := 0.0
			for k := range 32 {
				want += float64(values[i*32+k]) * float64(values[(128+j)*32+k])
			}
			if got := math.Float32frombits(out[i*64+j]); float64(got) != want {
				t.Fatalf("row %d, column %d: got %v, want %v", i, j, got, want)
			}
		}
	}
	for _, c := range []struct{ body, fault string }{
		{fill + alloc + multiply + load, "ends without deallocating its tensor memory"},
		{fill + alloc + strings.Replace(load, "%r34, %r34, 21", "%r34, %r34, 20", 1) + free, "invalid read of 32 columns of tensor memory at lane "},
		{fill + "mov.u32 %r30, 0;\n" + load, "invalid read of 32 columns of tensor memory at lane 0, column 0"},
		{fill + alloc + "@%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 128;\n", "128 columns of tensor memory at 0x0 are not allocated"},
	} {
		if _, err := tensorKernel(t, c.body, in, 128*64); err == nil || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("got %v, want %q", err, c.fault)
		}
	}
}

// A copy whose first coordinate is not a multiple of 16 bytes is an illegal instruction on a GPU.
func TestTensorCopyAlignment(t *testing.T) {
	table := make([]byte, 1<<18)
	for _, c := range compareTensor() {
		if c.Name != "tensor u8" {
			continue
		}
		if _, err := runComparison(c, table); err == nil || !strings.Contains(err.Error(), "not a multiple of 16") {
			t.Errorf("got %v, want a misaligned read", err)
		}
		c.PTX = strings.Replace(c.PTX, "cvta.param.u64 %rd3, %rd3;", "ld.param.u64 %rd3, [in];", 1)
		if _, err := runComparison(c, table); err == nil || !strings.Contains(err.Error(), "no tensor map of 2 dimensions") {
			t.Errorf("got %v, want a missing tensor map", err)
		}
	}
}

// storing returns a kernel of 64 threads that stores the numbers from 1000 on with the tensor map at %rd1.
func storing(t *testing.T, store string) (*Machine, *Kernel) {
	m := &Machine{Workers: 1}
	t.Cleanup(m.drop)
	mod, err := m.Load(`
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128])
{
	.reg .pred %p; .reg .b32 %r<5>; .reg .b64 %rd<3>;
	.shared .align 128 .b8 s[256];
	mov.u32 %r1, %tid.x; mov.u32 %r2, s;
	shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2;
	add.u32 %r4, %r1, 1000;
	st.shared.b32 [%r3], %r4;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	setp.ne.u32 %p, %r1, 0;
	@%p ret;
	mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;
	` + store + `
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group 0;
	ret;
}
`)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil || len(k.Lacks()) > 0 {
		t.Fatal(err, k.Lacks())
	}
	return m, k
}

// TestImageStore stores pixels to images of 3 x 2, some of them in the padding around.
func TestImageStore(t *testing.T) {
	m, k := storing(t, "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%rd1, {4, 1, 0, 0}], [%r2];")
	const channels, wide, high = 8, 3, 2
	address, got := words(m, "images", make([]uint32, 2*high*wide*channels)...)
	params := encodedTensor(&mapped{Type: 2, Dims: []uint64{channels, wide, high, 2}, Strides: []uint64{4 * channels, 4 * channels * wide,
		4 * channels * wide * high}, Box: []uint64{4, 16}, Steps: []uint64{1, 1, 1, 1}, Lower: []int16{-1, 0}, Upper: []int16{1, 0}}, uint64(address))
	if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{64, 1, 1}, Params: params}); err != nil {
		t.Fatal(err)
	}
	want := make([]uint32, len(got))
	x, y := 1, 0
	for pixel := range 16 {
		if x >= 0 && x < wide && y < 2*high { // the lines of the second image follow those of the first
			for c := range 4 {
				want[(y*wide+x)*channels+4+c] = uint32(1000 + 4*pixel + c)
			}
		}
		if x++; x > wide {
			x, y = -1, y+1
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestTensorMapMode copies with maps of the other mode, and with one whose box has no rows.
func TestTensorMapMode(t *testing.T) {
	table := make([]byte, 1<<18)
	cases := map[string]comparison{}
	for _, c := range compareTensor() {
		cases[c.Name] = c
	}
	tile, pixels, unfilled := cases["tensor 3d"], cases["tensor im2col 3d"], cases["tensor made"]
	tile.Tensor, pixels.Tensor = pixels.Tensor, tile.Tensor
	const box = "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%n1], 1, 32;"
	if !strings.Contains(unfilled.PTX, box) {
		t.Fatal("no box to leave out")
	}
	unfilled.PTX = strings.Replace(unfilled.PTX, box, "", 1)
	for _, c := range []struct {
		comparison
		want string
	}{{tile, "no tensor map of 3 dimensions at "}, {pixels, "no tensor map of 3 dimensions for im2col at "},
		{unfilled, "no tensor map of 2 dimensions at "}} {
		if _, err := runComparison(c.comparison, table); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// TestMadeTensorMaps looks for races in kernels that make a tensor map, with and without the fence before its use.
func TestMadeTensorMaps(t *testing.T) {
	table := make([]byte, 1<<18)
	const fence = "fence.proxy.tensormap::generic.acquire.gpu [%m2], 128;"
	for _, c := range compareTensor() {
		if c.Name != "tensor replaced" && c.Name != "tensor made" {
			continue
		}
		without := c
		if without.PTX = strings.Replace(c.PTX, fence, "", 1); without.PTX == c.PTX {
			t.Fatal("no fence to remove")
		}
		m := func() *Machine { return &Machine{Workers: 1, Check: Races, Strict: Races | Proxies} }
		if _, err := runOn(m(), c, table); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if _, err := runOn(m(), without, table); err == nil || !strings.Contains(err.Error(), "fence.proxy.tensormap::generic.acquire in between") {
			t.Errorf("%s without a fence: got %v", c.Name, err)
		}
	}
}

// CUTLASS clears a bit of the maps that the driver made for small tensors.
func TestTensorMapBit(t *testing.T) {
	map_ := encodedTensor(&mapped{Dims: []uint64{1}, Box: []uint64{16}}, math.MaxUint64)
	if word := binary.LittleEndian.Uint64(map_[8:]); word>>21&1 != 0 {
		t.Errorf("got %#x as the second word, want one without bit 21", word)
	}
}

// TestPackedCopies copies tiles of values of 4 and 6 bits, in a few of which nothing is inside the tensor: as they are, or
// in shared memory padded to 16 bytes for 16 values.
func TestPackedCopies(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	table := make([]byte, 1<<18)
	for i := range table {
		table[i] = byte(r.Uint32())
	}
	for _, c := range compareTensor() {
		if c.Name != "tensor u8 aligned" { // 128 x 16 bytes
			continue
		}
		const place = "shl.b32 %c0, %r4, 4; sub.u32 %c0, %c0, 32;"
		if !strings.Contains(c.PTX, place) {
			t.Fatal("no coordinate to replace")
		}
		for _, p := range []struct{ kind, bits, box, step int }{{13, 4, 256, 32}, {14, 4, 128, 64}, {15, 6, 128, 64}} {
			const wide, high = 384, 100
			stride := wide * p.bits / 8
			packed := c
			packed.Tensor = &mapped{Type: p.kind, Dims: []uint64{wide, high}, Strides: []uint64{uint64(stride)}, Box: []uint64{uint64(p.box), 16},
				Steps: []uint64{1, 1}}
			bytes := 16 * p.box * p.bits / 8 // padding does not count
			packed.PTX = strings.Replace(c.PTX, "[%r3], 2048;", fmt.Sprintf("[%%r3], %d;", bytes), 1)
			packed.PTX = strings.Replace(packed.PTX, place, fmt.Sprintf("mul.lo.u32 %%c0, %%r4, %d; sub.u32 %%c0, %%c0, %d;", p.step, 2*p.step), 1)
			out, err := runComparison(packed, table)
			if err != nil {
				t.Fatal(err)
			}
			for b := range 32 {
				for row := range 16 {
					for byte_ := range 128 {
						x, y := p.step*b-2*p.step, 3*b-4+row
						unit, in := 16, byte_%16 // bytes of memory in 16 of shared memory
						first := x + byte_/16*16
						if p.kind == 13 {
							first = x + byte_/16*32
						} else {
							unit = 2 * p.bits
						}
						var want byte
						if y >= 0 && y < high && first >= 0 && first < wide && in < unit {
							want = table[y*stride+first*p.bits/8+in]
						}
						if got := out[b*2048+row*128+byte_]; got != want {
							t.Fatalf("type %d, block %d, row %d, byte %d: got %#x, want %#x", p.kind, b, row, byte_, got, want)
						}
					}
				}
			}
		}
	}
}

// TestScatter copies four rows of 16 values to rows of a tensor that are not next to each other, two of them outside.
func TestScatter(t *testing.T) {
	m, k := storing(t, "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd1, {4, 5, -1, 2, 8}], [%r2];")
	const wide, high = 24, 8
	address, got := words(m, "tensor", make([]uint32, wide*high)...)
	params := encodedTensor(&mapped{Type: 2, Dims: []uint64{wide, high}, Strides: []uint64{4 * wide}, Box: []uint64{16, 1}, Steps: []uint64{1, 1}},
		uint64(address))
	if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{64, 1, 1}, Params: params}); err != nil {
		t.Fatal(err)
	}
	want := make([]uint32, wide*high)
	for i, row := range []int{5, -1, 2, 8} {
		for j := range 16 {
			if row >= 0 && row < high {
				want[row*wide+4+j] = uint32(1000 + 16*i + j)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The runtime library encodes some tensor maps that the virtual GPU cannot copy with.
func TestTensorCopyLacking(t *testing.T) {
	table := make([]byte, 1<<18)
	for _, c := range compareTensor() {
		if c.Name != "tensor u8" {
			continue
		}
		interleaved, flipped := *c.Tensor, *c.Tensor
		interleaved.Interleave, flipped.Swizzle = 1, 5
		for what, tensor := range map[string]*mapped{"an interleaved tensor map": &interleaved, "a swizzle of 96 bytes, or one": &flipped} {
			changed := c
			changed.Tensor = tensor
			want := "does not support cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes with " + what
			if _, err := runComparison(changed, table); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
}
