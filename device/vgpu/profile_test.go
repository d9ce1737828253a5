//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"strings"
	"testing"
	"unsafe"

	"fisub/device/counters"
)

// count runs a kernel of the given threads and returns its counters. In body, %rd1 is the address of 64 KiB of global
// memory that is written, %r1 of 16 KiB of shared memory that is written, %r2 the thread's number, %r3 to %r9, %p1 to
// %p4, %rd2 to %rd9 and %f1 to %f8 are free.
func count(t *testing.T, threads int, body string) counters.Launch {
	t.Helper()
	m := &Machine{Workers: 1}
	mod, err := m.Load(`.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in)
{
	.reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<9>;
	.shared .align 128 .b8 s[16384];
	ld.param.u64 %rd1, [in];
	mov.u32 %r2, %tid.x;
	mov.u32 %r1, s;
	mov.u32 %r10, 0;
	mov.u32 %r11, %r1;
FILL:
	st.shared.u32 [%r11], %r10;
	add.u32 %r11, %r11, 4;
	add.u32 %r10, %r10, 4;
	setp.lt.u32 %p8, %r10, 16384;
	@%p8 bra FILL;
` + body + `
END:
	ret;
}`)
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	if lacks := k.Lacks(); len(lacks) > 0 {
		t.Fatal("unsupported:", lacks)
	}
	p := m.Alloc(64<<10, "data")
	clear(unsafe.Slice((*byte)(at(p)), 64<<10))
	var all []counters.Launch
	m.OnCounters = func(l counters.Launch) { all = append(all, l) }
	err = m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{threads, 1, 1}, Cluster: [3]int{1, 1, 1},
		Params: binary.LittleEndian.AppendUint64(nil, uint64(p))})
	if err != nil || len(all) != 1 {
		t.Fatalf("got %v and %d launches", err, len(all))
	}
	return all[0]
}

// TestCounts compares counts of accesses with those that Nsight Compute reports on an H100 (docs/results/counters).
func TestCounts(t *testing.T) {
	const address = "mul.wide.u32 %rd2, %r2, STRIDE;\nadd.u64 %rd2, %rd1, %rd2;\n"
	const shared = "mul.lo.u32 %r3, %r2, STRIDE;\nadd.u32 %r3, %r1, %r3;\n"
	const pairs = "shr.u32 %r4, %r2, 1;\nmul.lo.u32 %r3, %r4, STRIDE;\nadd.u32 %r3, %r1, %r3;\n"
	const second = "and.b32 %r4, %r2, 29;\nmul.lo.u32 %r3, %r4, STRIDE;\nadd.u32 %r3, %r1, %r3;\n"
	for _, c := range []struct {
		name, body, stride, op string
		want                   counters.Counts // of op, without executions
	}{
		{"consecutive", address + "ld.global.f32 %f1, [%rd2];", "4", "ld.global.f32",
			counters.Counts{Requests: 1, Sectors: 4, Least: 4, Lines: 1, Bytes: 128, GlobalStride: 4}},
		{"misaligned line", address + "ld.global.f32 %f1, [%rd2+4];", "4", "ld.global.f32",
			counters.Counts{Requests: 1, Sectors: 5, Least: 4, Lines: 2, Bytes: 128, GlobalStride: 4}},
		{"far apart", address + "st.global.f32 [%rd2], %f1;", "1024", "st.global.f32",
			counters.Counts{Requests: 1, Sectors: 32, Least: 4, Lines: 32, Bytes: 128, GlobalStride: 1024}},
		{"one address", address + "ld.global.f32 %f1, [%rd2];", "0", "ld.global.f32",
			counters.Counts{Requests: 1, Sectors: 1, Least: 1, Lines: 1, Bytes: 128}},
		{"vectors", address + "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2];", "16", "ld.global.v4.f32",
			counters.Counts{Requests: 1, Sectors: 16, Least: 16, Lines: 4, Bytes: 512, GlobalStride: 16}},
		{"bytes", address + "ld.global.u8 %r4, [%rd2];", "1", "ld.global.u8",
			counters.Counts{Requests: 1, Sectors: 1, Least: 1, Lines: 1, Bytes: 32, GlobalStride: 1}},
		{"without conflicts", shared + "ld.shared.f32 %f1, [%r3];", "4", "ld.shared.f32",
			counters.Counts{Shared: 1, Waves: 1, Ideal: 1, SharedStride: 4}},
		{"in one bank", shared + "ld.shared.f32 %f1, [%r3];", "128", "ld.shared.f32",
			counters.Counts{Shared: 1, Waves: 32, Ideal: 1, Conflicts: 31, SharedStride: 128}},
		{"of a padded row", shared + "ld.shared.f32 %f1, [%r3];", "132", "ld.shared.f32",
			counters.Counts{Shared: 1, Waves: 1, Ideal: 1, SharedStride: 132}},
		{"in two banks", shared + "st.shared.f32 [%r3], %f1;", "64", "st.shared.f32",
			counters.Counts{Shared: 1, Waves: 16, Ideal: 1, Conflicts: 15, SharedStride: 64}},
		{"64 bits", shared + "ld.shared.u64 %rd3, [%r3];", "8", "ld.shared.u64",
			counters.Counts{Shared: 1, Waves: 2, Ideal: 2, SharedStride: 8}},
		{"64 bits, equal pairs", pairs + "ld.shared.u64 %rd3, [%r3];", "8", "ld.shared.u64",
			counters.Counts{Shared: 1, Waves: 1, Ideal: 1, SharedStride: counters.Varies}},
		{"64 bits, stored by equal pairs", pairs + "st.shared.u64 [%r3], %rd1;", "8", "st.shared.u64",
			counters.Counts{Shared: 1, Waves: 2, Ideal: 2, SharedStride: counters.Varies}},
		{"128 bits", shared + "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r3];", "16", "ld.shared.v4.f32",
			counters.Counts{Shared: 1, Waves: 4, Ideal: 4, SharedStride: 16}},
		{"128 bits, two apart equal", second + "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r3];", "16", "ld.shared.v4.f32",
			counters.Counts{Shared: 1, Waves: 4, Ideal: 4, Conflicts: 2, SharedStride: counters.Varies}},
		{"128 bits with conflicts", shared + "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r3];", "32", "ld.shared.v4.f32",
			counters.Counts{Shared: 1, Waves: 8, Ideal: 4, Conflicts: 4, SharedStride: 32}},
		{"matrices", shared + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r3];", "16",
			"ldmatrix.sync.aligned.m8n8.x4.shared.b16",
			counters.Counts{Shared: 1, Waves: 4, Ideal: 4, SharedStride: 16}},
		{"matrices in one bank", shared + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r3];", "128",
			"ldmatrix.sync.aligned.m8n8.x4.shared.b16",
			counters.Counts{Shared: 1, Waves: 32, Ideal: 4, Conflicts: 28, SharedStride: 128}},
		{"copies", address + shared + "cp.async.ca.shared.global [%r3], [%rd2], 16;\ncp.async.wait_all;", "16",
			"cp.async.ca.shared.global",
			counters.Counts{Requests: 1, Sectors: 16, Least: 16, Lines: 4, Bytes: 512, GlobalStride: 16, Shared: 1, Waves: 4,
				Ideal: 4, SharedStride: 16}},
		{"generic to shared memory", shared + "cvt.u64.u32 %rd3, %r3;\ncvta.shared.u64 %rd3, %rd3;\nld.f32 %f1, [%rd3];", "8",
			"ld.f32", counters.Counts{Shared: 1, Waves: 2, Ideal: 1, Conflicts: 1, SharedStride: 8}},
		{"a reduction", address + "atom.global.add.u32 %r4, [%rd2], 1;", "4", "red.global.add.u32",
			counters.Counts{Requests: 1, Sectors: 4, Least: 4, Lines: 1, Bytes: 128, GlobalStride: 4}},
		{"an atomic", address + "atom.global.add.u32 %r4, [%rd2], 1;\nst.global.u32 [%rd2], %r4;", "4", "atom.global.add.u32",
			counters.Counts{Requests: 1, Sectors: 4, Least: 4, Lines: 1, Bytes: 128, GlobalStride: 4}},
		{"compare and swap", shared + "atom.shared.cas.b32 %r4, [%r3], 0, 1;", "4", "atom.shared.cas.b32",
			counters.Counts{Shared: 1, Waves: 2, Ideal: 2, SharedStride: 4}},
		{"products", "fma.rn.f32 %f1, %f2, %f3, %f4;", "", "fma.rn.f32", counters.Counts{Operations: 64}},
		{"a divergent branch", "setp.lt.u32 %p1, %r2, 7;\n@%p1 bra NEXT;\nadd.u32 %r4, %r4, 1;\nNEXT:\nadd.u32 %r5, %r5, 1;",
			"", "bra", counters.Counts{Divergent: 1}},
		{"a divergent return", "setp.lt.u32 %p1, %r2, 7;\n@%p1 bra END;", "", "exit", counters.Counts{Divergent: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := count(t, 32, strings.ReplaceAll(c.body, "STRIDE", c.stride))
			var got counters.Counts
			for _, r := range l.Rows {
				if r.Op == c.op {
					got.Add(r.Counts)
				}
			}
			if got.Warps == 0 {
				t.Fatalf("%s was not executed: got %+v", c.op, l.Rows)
			}
			got.Warps, got.Threads, got.Active = 0, 0, 0
			if got != c.want {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestCountsOfLanes checks executions, their lanes and those with a true predicate.
func TestCountsOfLanes(t *testing.T) {
	l := count(t, 40, "setp.lt.u32 %p1, %r2, 8;\n@%p1 xor.b32 %r4, %r4, 1;")
	for _, r := range l.Rows {
		if r.Op == "xor.b32" && r.Active == 8 {
			if r.Warps != 2 || r.Threads != 40 {
				t.Errorf("got %d executions by %d threads, want 2 by 40", r.Warps, r.Threads)
			}
			return
		}
	}
	t.Errorf("got no predicated instruction: %+v", l.Rows)
}

// TestSectorsOfLaunch checks which sectors a launch reads, reads before it writes them, and writes.
func TestSectorsOfLaunch(t *testing.T) {
	const address = "mul.wide.u32 %rd2, %r2, 4;\nadd.u64 %rd2, %rd1, %rd2;\n"
	for _, c := range []struct {
		name, body          string
		read, cold, written uint64
	}{
		{"read twice", address + "ld.global.f32 %f1, [%rd2];\nld.global.f32 %f2, [%rd2];", 4, 4, 0},
		{"written first", address + "st.global.f32 [%rd2], %f1;\nld.global.f32 %f2, [%rd2];", 4, 0, 4},
		{"read first", address + "ld.global.f32 %f2, [%rd2];\nst.global.f32 [%rd2], %f1;", 4, 4, 4},
		{"half written", address + "setp.lt.u32 %p1, %r2, 16;\n@%p1 st.global.f32 [%rd2], %f1;\nld.global.f32 %f2, [%rd2];",
			4, 2, 2},
	} {
		l := count(t, 32, c.body)
		if l.Read != c.read || l.Cold != c.cold || l.Written != c.written {
			t.Errorf("%s: got %d read, %d cold, %d written, want %d, %d, %d", c.name, l.Read, l.Cold, l.Written, c.read,
				c.cold, c.written)
		}
	}
	if l := count(t, 64, "red.global.add.u32 [%rd1], 1;"); l.AtomicChain != 64 {
		t.Errorf("got a chain of %d atomic operations, want 64", l.AtomicChain)
	}
}

// perBlock returns a kernel k whose blocks execute store, with 32 bytes of out for each at %rd1.
func perBlock(store string) string {
	return `.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{
	.reg .b32 %r<3>; .reg .b64 %rd<3>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %ctaid.x;
	mul.wide.u32 %rd2, %r1, 32;
	add.u64 %rd1, %rd1, %rd2;
	` + store + `
	ret;
}`
}

// TestSample checks that the first, the last and every n-th block run, and all of a kernel with atomics.
func TestSample(t *testing.T) {
	for _, c := range []struct {
		name, store  string
		sample, want int
	}{
		{"some", "st.global.u32 [%rd1], %r1;", 10, 10}, {"two", "st.global.u32 [%rd1], %r1;", 1, 2},
		{"all", "st.global.u32 [%rd1], %r1;", 100, 100}, {"atomics", "red.global.add.u32 [%rd1], %r1;", 10, 100},
	} {
		m := &Machine{Workers: 1, Sample: c.sample}
		mod, err := m.Load(perBlock(c.store))
		if err != nil {
			t.Fatal(err)
		}
		k, err := mod.Kernel("k")
		if err != nil {
			t.Fatal(err)
		}
		p := m.Alloc(3200, "out")
		memory := unsafe.Slice((*uint32)(at(p)), 800)
		clear(memory)
		var l counters.Launch
		m.OnCounters = func(got counters.Launch) { l = got }
		err = m.Run(k, Launch{Grid: [3]int{100, 1, 1}, Block: [3]int{32, 1, 1}, Cluster: [3]int{1, 1, 1},
			Params: binary.LittleEndian.AppendUint64(nil, uint64(p))})
		if err != nil {
			t.Fatal(err)
		}
		if l.Blocks != c.want || l.Written != uint64(c.want) || l.Sampled() != (c.want < 100) || memory[99*8]%99 != 0 ||
			memory[99*8] == 0 {
			t.Errorf("%s: got %d blocks, %d sectors written, the last one %d; want %d blocks", c.name, l.Blocks, l.Written,
				memory[99*8], c.want)
		}
	}
}

// TestInstance checks that instances of a kernel template can be told apart.
func TestInstance(t *testing.T) {
	for name, want := range map[string][2]string{"k": {"k"}, "_Z5scaleILi16EEvv": {"scale", "scale<16>"},
		"_ZN12_GLOBAL__N_11kEv": {"k"}} {
		m := &Machine{Workers: 1}
		mod, err := m.Load(".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry " + name + "() { ret; }")
		if err != nil {
			t.Fatal(err)
		}
		k, err := mod.Kernel(name)
		if err != nil {
			t.Fatal(err)
		}
		var got counters.Launch
		m.OnCounters = func(l counters.Launch) { got = l }
		if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}, Cluster: [3]int{1, 1, 1}}); err != nil {
			t.Fatal(err)
		}
		if got.Kernel != want[0] || got.Instance != want[1] {
			t.Errorf("%s: got %q and %q, want %q", name, got.Kernel, got.Instance, want)
		}
	}
}

// TestIncompleteNotCounted checks that a launch that ends with a fault has no counters: they would be too small.
func TestIncompleteNotCounted(t *testing.T) {
	m := &Machine{Workers: 1}
	mod, err := m.Load(perBlock("st.global.u32 [%rd1], %r1;"))
	if err != nil {
		t.Fatal(err)
	}
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	params := binary.LittleEndian.AppendUint64(nil, uint64(m.Alloc(3200, "out")))
	counted := 0
	m.OnCounters = func(counters.Launch) { counted++ }
	for blocks, want := range map[int]int{100: 1, 101: 0} {
		counted = 0
		err := m.Run(k, Launch{Grid: [3]int{blocks, 1, 1}, Block: [3]int{32, 1, 1}, Cluster: [3]int{1, 1, 1}, Params: params})
		if (err == nil) != (want == 1) || counted != want {
			t.Errorf("%d blocks: got %v and %d counted launches, want %d", blocks, err, counted, want)
		}
	}
}
