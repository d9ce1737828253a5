//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// exchange is a kernel of one warp. %r1 is the lane, %r2 its value 100 + lane, %rd2 the lane's word of x. The kernel
// stores %r9 there after the given code.
func exchange(code string) string {
	return `
.func (.param .b32 ret) choose(.param .b32 a, .param .b32 b, .param .b32 first)
{
	.reg .pred %p; .reg .b32 %r<9>;
	ld.param.b32 %r1, [a];
	ld.param.b32 %r2, [b];
	ld.param.b32 %r3, [first];
	setp.ne.b32 %p, %r3, 0;
	selp.b32 %r1, %r1, %r2, %p;
	st.param.b32 [ret], %r1;
	ret;
}
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<40>; .reg .b64 %rd<9>; .reg .b16 %h<9>; .reg .pred %p, %q, %t;
	.shared .align 16 .b8 s[512];
	.param .b32 pa; .param .b32 pb; .param .b32 pc; .param .b32 pr;
	ld.param.u64 %rd1, [x];
	mov.u32 %r1, %tid.x;
	add.u32 %r2, %r1, 100;
	mad.wide.u32 %rd2, %r1, 4, %rd1;
	cvt.u64.u32 %rd5, %r1;
	shl.b64 %rd5, %rd5, 2;
	mov.u64 %rd4, s;
	add.u64 %rd4, %rd4, %rd5;
	mov.u32 %r9, 7;
` + code + "\n$done:\n\tst.global.u32 [%rd2], %r9;\n$end:\n\tret;\n}\n"
}

// TestLanesOfMasks runs instructions whose member mask has lanes that do not take part, under synccheck.
func TestLanesOfMasks(t *testing.T) {
	const end = "setp.lt.u32 %p, %r1, 4;\n@%p ret;\n"
	for _, c := range []struct{ name, code, want string }{
		{"an exchange", "shfl.sync.idx.b32 %r9, %r2, 4, 31, -1;",
			"shfl.sync.idx.b32 waits for lanes 0xfff00000, which were never started"},
		{"a vote", "vote.sync.ballot.b32 %r9, 1, 0x100000;",
			"vote.sync.ballot.b32 waits for lanes 0x100000, which were never started"},
		{"after lanes have ended", end + "redux.sync.add.u32 %r9, %r2, -1;", "redux.sync.add.u32 waits for " +
			"lanes 0xf, which have ended, and lanes 0xfff00000, which were never started"},
		{"the lanes that were started", "shfl.sync.idx.b32 %r9, %r2, 4, 31, 0xfffff;", ""},
		{"the lanes that are left", end + "shfl.sync.idx.b32 %r9, %r2, 4, 31, 0xffff0;", ""},
		{"all lanes of a partial warp", "bar.warp.sync -1;", ""},
		{"a barrier of some lanes", "bar.warp.sync 0x7fffffff;",
			"bar.warp.sync waits for lanes 0x7ff00000, which were never started"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &Machine{Workers: 1, Strict: Ended}
			t.Cleanup(m.drop)
			_, err := runWords(t, m, exchange(c.code), 20)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasSuffix(err.Error(), c.want)) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestPartialWarps compares votes and reductions of a warp of 20 lanes, and after 4 of them have ended, with an H100's
// results for lane 9.
func TestPartialWarps(t *testing.T) {
	const end = "setp.lt.u32 %p, %r1, 4;\n@%p bra $end;\nmov.pred %p, 0;\n"
	for _, c := range []struct {
		code       string
		whole, end uint32
	}{
		{"vote.sync.ballot.b32 %r9, 1, -1;", 0xfffff, 0xffff0},
		{"vote.sync.all.pred %q, 1, -1;\nselp.b32 %r9, 1, 0, %q;", 1, 1},
		{"vote.sync.any.pred %q, 0, -1;\nselp.b32 %r9, 1, 0, %q;", 0, 0},
		{"setp.ne.u32 %q, %r2, 0;\nvote.sync.uni.pred %q, %q, -1;\nselp.b32 %r9, 1, 0, %q;", 1, 1},
		{"match.any.sync.b32 %r9, 7, -1;", 0xfffff, 0xffff0},
		{"match.all.sync.b32 %r9|%q, 7, -1;\n@!%q mov.u32 %r9, 0;", 0xfffff, 0xffff0},
		{"redux.sync.add.u32 %r9, 1, -1;", 20, 16},
		{"redux.sync.min.u32 %r9, %r2, -1;", 100, 104},
		{"elect.sync %r9|%q, -1;\n@%q add.u32 %r9, %r9, 100;", 0, 4},
		{"shfl.sync.idx.b32 %r9|%q, %r2, 1, 31, -1;\n@!%q mov.u32 %r9, 7;", 101, 0},
		{"shfl.sync.idx.b32 %r9|%q, %r2, 25, 31, -1;\n@!%q mov.u32 %r9, 7;", 0, 0},
	} {
		if got, _ := runExchange(t, exchange(c.code), 20, false); got[9] != c.whole {
			t.Errorf("%s: got %#x, want %#x", c.code, got[9], c.whole)
		}
		if got, _ := runExchange(t, exchange(end+c.code), 20, false); got[9] != c.end {
			t.Errorf("%s without 4 lanes: got %#x, want %#x", c.code, got[9], c.end)
		}
	}
}

// runExchange returns the words of x and the text of the hazard, if any, of a launch without faults.
func runExchange(t *testing.T, text string, lanes int, checked bool) (got []uint32, hazard string) {
	t.Helper()
	m := &Machine{Workers: 1}
	t.Cleanup(m.drop)
	if checked {
		m.Check = Races | UnwrittenLocal | UnwrittenGlobal
	}
	got, err := runWords(t, m, text, lanes)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range m.TakeHazards() {
		hazard += h.Kind + ": " + h.Text + "\n"
	}
	return got, hazard
}

// runWords runs a block of kernel k and returns the 32 words at its parameter.
func runWords(t *testing.T, m *Machine, text string, threads int) ([]uint32, error) {
	t.Helper()
	mod, err := m.Load(".version 9.0\n.target sm_100\n.address_size 64\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	mod.Undefined = true
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatal(err)
	}
	p, s := words(m, "x", make([]uint32, 32)...)
	err = m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{threads, 1, 1},
		Params: binary.LittleEndian.AppendUint64(nil, uint64(p))})
	return slices.Clone(s), err
}

// sum is a reduction of lane 0's value by shuffles down in a warp with the given mask.
func sum(mask string) (code string) {
	for _, by := range []string{"16", "8", "4", "2", "1"} {
		code += "shfl.sync.down.b32 %r3, %r2, " + by + ", 31, " + mask + ";\nadd.u32 %r2, %r2, %r3;\n"
	}
	return code
}

// TestAbsentLanes runs exchanges that read lanes which do not take part. They read 0, as on an H100, and only a use of
// that value is a hazard.
func TestAbsentLanes(t *testing.T) {
	const down = "shfl.sync.down.b32 %r3, %r2, 16, 31, 0xfffff;\nadd.u32 %r4, %r1, 16;\nsetp.lt.u32 %p, %r4, 20;\n"
	for _, c := range []struct {
		name, code string
		lanes      int
		want       string // a part of the hazard's text; "": no hazard
		lane, word uint32 // the value of one lane
	}{
		// Mistakes.
		{"lanes that were never started", "shfl.sync.bfly.b32 %r9, %r2, 16, 31, -1;", 20,
			"thread (4,0,0): st.global.u32 uses a value that shfl.sync.bfly.b32 read from lane 20, which was never started",
			4, 0},
		{"lanes that have ended", "setp.ge.u32 %p, %r1, 10;\n@%p bra $end;\nshfl.sync.bfly.b32 %r9, %r2, 8, 31, -1;", 20,
			"thread (2,0,0): st.global.u32 uses a value that shfl.sync.bfly.b32 read from lane 10, which has ended", 2, 0},
		{"lanes outside of the mask", "setp.ge.u32 %p, %r1, 4;\n@%p bra $end;\nshfl.sync.down.b32 %r9, %r2, 4, 31, 15;", 32,
			"st.global.u32 uses a value that shfl.sync.down.b32 read from lane 4, which the member mask excludes", 3, 0},
		{"a broadcast from outside", "setp.lt.u32 %p, %r1, 4;\n@%p bra $end;\nshfl.sync.idx.b32 %r9, %r2, 0, 31, 0xfffffff0;",
			32, "read from lane 0, which the member mask excludes", 9, 0},
		{"a sum", sum("0xfffff") + "setp.ne.u32 %p, %r1, 0;\n@%p bra $end;\nmov.u32 %r9, %r2;", 20,
			"thread (0,0,0): st.global.u32 uses a value that shfl.sync.down.b32 read from lane", 0, 20*100 + 190},
		{"a branch", down + "setp.gt.s32 %q, %r3, %r2;\n@%q bra $end;", 20, "bra uses a value that shfl.sync.down.b32", 0, 0},
		{"a guard", down + "setp.gt.s32 %q, %r3, 0;\n@%q st.global.u32 [%rd2], %r1;\nbra $end;", 20, "st.global.u32 uses", 3, 3},
		{"a guarded value", down + "setp.gt.s32 %q, %r3, 0;\n@%q mov.u32 %r9, 8;", 20, "st.global.u32 uses", 3, 8},
		{"an address", down + "mad.wide.u32 %rd3, %r3, 0, %rd2;\nld.global.u32 %r9, [%rd3];", 20, "ld.global.u32 uses", 0, 0},
		{"an atomic", down + "atom.global.add.u32 %r9, [%rd2], %r3;", 20, "atom.global.add.u32 uses", 0, 0},
		{"a vote", down + "setp.gt.s32 %q, %r3, 0;\nvote.sync.ballot.b32 %r9, %q, 0xfffff;", 20, "vote.sync.ballot.b32 uses",
			0, 0xf000f},
		{"the lane of a shuffle", down + "shfl.sync.idx.b32 %r9, %r2, %r3, 31, 0xfffff;", 20, "shfl.sync.idx.b32 uses", 4, 100},
		{"a condition", down + "setp.gt.s32 %q, %r3, 0;\nselp.b32 %r9, 1, 2, %q;", 20, "st.global.u32 uses", 4, 2},
		{"the chosen side", down + "selp.b32 %r9, %r2, %r3, %p;", 20, "st.global.u32 uses", 4, 0},
		{"shared memory", down + "st.shared.u32 [%rd4], %r3;\nbar.sync 0;\nxor.b64 %rd4, %rd4, 4;\n" +
			"ld.shared.u32 %r9, [%rd4];", 20, "st.global.u32 uses a value that shfl.sync.down.b32 read from lane", 6, 0},
		{"generic addresses", down + "cvta.shared.u64 %rd4, %rd4;\nst.u32 [%rd4], %r3;\nld.u32 %r9, [%rd4];", 20,
			"st.global.u32 uses a value that shfl.sync.down.b32 read from lane 20", 4, 0},
		{"an argument", down + "st.param.b32 [pa], %r2;\nst.param.b32 [pb], %r3;\nst.param.b32 [pc], 0;\n" +
			"call (pr), choose, (pa, pb, pc);\nld.param.b32 %r9, [pr];", 20, "st.global.u32 uses", 4, 0},

		// Right programs.
		{"a guarded sum", down + "@%p add.u32 %r2, %r2, %r3;\nmov.u32 %r9, %r2;", 20, "", 0, 100 + 116},
		{"a selected sum", down + "add.u32 %r3, %r3, %r2;\nselp.b32 %r9, %r3, %r2, %p;", 20, "", 0, 100 + 116},
		{"a selection of the other side", down + "selp.b32 %r9, 0, %r3, !%p;", 20, "", 19, 0},
		{"a branch around the use", down + "mov.u32 %r9, %r2;\n@!%p bra $done;\nadd.u32 %r9, %r2, %r3;", 20, "", 3, 103 + 119},
		{"a maximum", down + "setp.gt.and.u32 %q, %r3, %r2, %p;\nselp.b32 %r9, %r3, %r2, %q;", 20, "", 1, 117},
		{"a conjunction", down + "setp.gt.u32 %q, %r3, %r2;\nand.pred %q, %p, %q;\n@%q bra $end;", 20, "", 1, 0},
		{"a disjunction", down + "setp.le.u32 %q, %r3, %r2;\nnot.pred %t, %p;\nor.pred %q, %t, %q;\n@%q bra $end;", 20, "", 1, 7},
		{"a product with 0", down + "selp.b32 %r4, 1, 0, %p;\nmad.lo.u32 %r5, %r4, 0, %r2;\nmul.lo.u32 %r4, %r3, %r4;\n" +
			"add.u32 %r9, %r5, %r4;", 20, "", 2, 102 + 118},
		{"a value that is not used", down, 20, "", 2, 7},
		{"a value that is overwritten", down + "mov.u32 %r3, 5;\nmov.u32 %r9, %r3;", 20, "", 9, 5},
		{"a sum of a power of two", strings.Join(strings.SplitAfter(sum("0xffff"), "\n")[2:], "") +
			"setp.ne.u32 %p, %r1, 0;\n@%p bra $end;\nmov.u32 %r9, %r2;", 16, "", 0, 16*100 + 120},
		{"a scan", "shfl.sync.up.b32 %r3|%p, %r2, 4, 0, 0xfffff;\n@%p add.u32 %r2, %r2, %r3;\nmov.u32 %r9, %r2;", 20, "", 4,
			104 + 100},
		{"lanes outside of the segment", "shfl.sync.down.b32 %r9, %r2, 4, 0x1c1f, 15;", 4, "", 1, 101},
		{"shared memory that nobody reads", down + "st.shared.u32 [%rd4], %r3;\nbar.sync 0;\n@%p ld.shared.u32 %r9, [%rd4];", 20,
			"", 3, 119},
		{"shared memory that is read, but not used", down + "st.shared.u32 [%rd4], %r3;\nbar.sync 0;\n" +
			"ld.shared.u32 %r4, [%rd4];\nselp.b32 %r9, %r4, %r2, %p;", 20, "", 5, 105},
		{"an argument that is not used", down + "st.param.b32 [pa], %r2;\nst.param.b32 [pb], %r3;\nst.param.b32 [pc], 1;\n" +
			"call (pr), choose, (pa, pb, pc);\nld.param.b32 %r9, [pr];", 20, "", 4, 104},
		{"a whole warp", sum("-1") + "mov.u32 %r9, %r2;", 32, "", 0, 32*100 + 496},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, checked := range []bool{true, false} {
				got, hazard := runExchange(t, exchange(c.code), c.lanes, checked)
				if got[c.lane] != c.word {
					t.Errorf("lane %d has %d, want %d", c.lane, got[c.lane], c.word)
				}
				want := c.want
				if c.name == "an argument" && !checked {
					want = "" // local memory is only followed in checked launches
				}
				if want == "" && hazard != "" {
					t.Errorf("checked %v: got %s, want no hazard", checked, hazard)
				}
				if !strings.Contains(hazard, want) || want != "" && !strings.HasPrefix(hazard, "member-mask: ") {
					t.Errorf("checked %v: got %q, want member-mask with %q", checked, hazard, want)
				}
			}
		})
	}
}

// TestUnwrittenShared reads unwritten shared memory. Only a use of the values is a hazard.
func TestUnwrittenShared(t *testing.T) {
	const some = "setp.lt.u32 %p, %r1, 16;\n@%p st.shared.u32 [%rd4], %r2;\nbar.sync 0;\n"
	const other = "xor.b64 %rd4, %rd4, 64;\n" // the word of another lane
	// Sets the lower half of a byte.
	const half = "ld.shared.u8 %r3, [%rd4];\nand.b32 %r3, %r3, 0xf0;\nor.b32 %r3, %r3, 5;\nst.shared.u8 [%rd4], %r3;\n" +
		"ld.shared.u8 %r4, [%rd4];\n"
	for _, c := range []struct {
		name, code string
		want       string // the end of the hazard's text; "": no hazard
	}{
		// Mistakes.
		{"a store", "ld.shared.u32 %r9, [%rd4];", "thread (0,0,0)"},
		{"words of other lanes", some + other + "ld.shared.u32 %r9, [%rd4];", "thread (0,0,0)"},
		{"some words", some + "ld.shared.u32 %r9, [%rd4];", "thread (16,0,0)"},
		{"a sum", some + "ld.shared.u32 %r3, [%rd4];\nadd.u32 %r9, %r3, %r2;", "thread (16,0,0)"},
		{"a branch", some + "ld.shared.u32 %r3, [%rd4];\nsetp.eq.u32 %q, %r3, 1;\n@%q bra $end;", "thread (16,0,0)"},
		{"an address", some + "ld.shared.u32 %r3, [%rd4];\nmad.wide.u32 %rd3, %r3, 0, %rd2;\nst.global.u32 [%rd3], %r1;",
			"thread (16,0,0)"},
		{"a copy in shared memory", some + "ld.shared.u32 %r3, [%rd4];\nst.shared.u32 [%rd4+128], %r3;\n" +
			"ld.shared.u32 %r9, [%rd4+128];", "thread (16,0,0)"},
		{"a half", some + "st.shared.u16 [%rd4], %r1;\nld.shared.u32 %r9, [%rd4];", "thread (16,0,0)"},
		{"a sign", "ld.shared.s8 %r3, [%rd4];\nshr.u32 %r9, %r3, 24;", "thread (0,0,0)"},
		{"half a byte", half + "shr.u32 %r9, %r4, 4;", "thread (0,0,0)"},
		{"the sign of half a byte", half + "ld.shared.s8 %r3, [%rd4];\nshr.u32 %r9, %r3, 24;", "thread (0,0,0)"},
		{"a vector", "shl.b64 %rd5, %rd5, 1;\nmov.u64 %rd4, s;\nadd.u64 %rd4, %rd4, %rd5;\n" +
			"st.shared.u32 [%rd4], %r1;\nld.shared.v2.u32 {%r3, %r9}, [%rd4];", "thread (0,0,0)"},
		{"a generic address", some + "cvta.shared.u64 %rd4, %rd4;\nld.u32 %r9, [%rd4];", "thread (16,0,0)"},
		{"an atomic", some + "atom.shared.add.u32 %r3, [%rd4], 1;", "thread (16,0,0)"},
		{"a shuffle", some + "ld.shared.u32 %r3, [%rd4];\nshfl.sync.bfly.b32 %r9, %r3, 16, 31, -1;", "thread (16,0,0)"},

		// Right programs.
		{"a value that is not used", "ld.shared.u32 %r3, [%rd4];", ""},
		{"one key past the end", some + "ld.shared.u32 %r3, [%rd4];\nadd.u64 %rd4, %rd4, 4;\nmov.u32 %r9, %r3;\n" +
			"@!%p bra $end;\nld.shared.u32 %r3, [%rd4];", ""},
		{"a value that is not selected", some + "ld.shared.u32 %r3, [%rd4];\nselp.b32 %r9, %r3, %r1, %p;", ""},
		{"a conjunction", some + "ld.shared.u32 %r3, [%rd4];\nsetp.gt.u32 %q, %r3, %r2;\nand.pred %q, %p, %q;\n" +
			"@%q bra $end;", ""},
		{"the other half", "st.shared.u16 [%rd4], %r1;\nld.shared.u32 %r3, [%rd4];\nand.b32 %r9, %r3, 0xffff;", ""},
		{"the other half of a byte", half + "and.b32 %r9, %r4, 15;", ""},
		{"values of 4 bits", half + "and.b32 %r4, %r4, 15;\nshl.b32 %r5, %r1, 4;\nor.b32 %r4, %r4, %r5;\n" +
			"st.shared.u8 [%rd4], %r4;\nld.shared.u8 %r9, [%rd4];", ""},
		{"the other part of a vector", "shl.b64 %rd5, %rd5, 1;\nmov.u64 %rd4, s;\nadd.u64 %rd4, %rd4, %rd5;\n" +
			"st.shared.u32 [%rd4], %r1;\nld.shared.v2.u32 {%r9, %r3}, [%rd4];", ""},
		{"memory that is written after the copy", some + "ld.shared.u32 %r3, [%rd4];\nst.shared.u32 [%rd4+128], %r3;\n" +
			"st.shared.u32 [%rd4+128], %r1;\nld.shared.u32 %r9, [%rd4+128];", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, checked := range []bool{true, false} {
				_, hazard := runExchange(t, exchange(c.code), 32, checked)
				want := ""
				if c.want != "" {
					want = "unwritten-memory: kernel k, block (0,0,0), " + c.want + ": read of unwritten shared memory\n"
				}
				if hazard != want {
					t.Errorf("checked %v: got %q, want %q", checked, hazard, want)
				}
			}
		})
	}
}

// TestUnwrittenValues stores unwritten registers (%r8, and %r7 in lanes from 16 on). Only a use of the values is a
// hazard.
func TestUnwrittenValues(t *testing.T) {
	const some = "setp.lt.u32 %p, %r1, 16;\n@%p mov.u32 %r7, %r2;\n"
	const other = "bar.sync 0;\nxor.b64 %rd4, %rd4, 64;\n" // the word of another lane
	// Loads two 16-bit values, of which the second one is undefined in lanes from 16 on.
	const parts = some + "cvt.u16.u32 %h1, %r7;\nst.shared.u16 [%rd4+2], %h1;\nst.shared.u16 [%rd4], %r1;\n" +
		"ld.shared.u32 %r3, [%rd4];\n"
	const stored = "st.global.u32 uses a value that st.shared.u32 stored from an unwritten register"
	for _, c := range []struct {
		name, code string
		want       string // a part of the hazard's text; "": no hazard
		lane, word uint32 // the value of one lane
	}{
		// Mistakes.
		{"a value of other lanes", some + "st.shared.u32 [%rd4], %r7;\n" + other + "ld.shared.u32 %r9, [%rd4];",
			"thread (0,0,0): " + stored, 16, 100},
		{"a vector", "shl.b64 %rd5, %rd5, 1;\nmov.u64 %rd4, s;\nadd.u64 %rd4, %rd4, %rd5;\n" +
			"st.shared.v2.u32 [%rd4], {%r1, %r8};\nld.shared.v2.u32 {%r3, %r9}, [%rd4];",
			"st.global.u32 uses a value that st.shared.v2.u32 stored", 31, 0xffffffff},
		{"an address", some + "st.shared.u32 [%rd4], %r8;\nld.shared.u32 %r3, [%rd4];\nadd.u64 %rd3, %rd2, 0;\n" +
			"mad.wide.u32 %rd3, %r3, 0, %rd2;\nst.global.u32 [%rd3], %r1;", "st.global.u32 uses", 3, 7},
		{"a branch", "st.shared.u32 [%rd4], %r8;\nld.shared.u32 %r3, [%rd4];\nsetp.eq.u32 %p, %r3, 1;\n@%p bra $end;",
			"bra uses a value", 3, 7},
		{"an atomic", "st.shared.u32 [%rd4], %r8;\natom.shared.add.u32 %r3, [%rd4], 1;", "atom.shared.add.u32 uses", 3, 7},
		{"stored twice", some + "st.shared.u32 [%rd4], %r7;\nld.shared.u32 %r3, [%rd4];\nadd.u32 %r3, %r3, 1;\n" +
			"st.shared.u32 [%rd4+128], %r3;\nld.shared.u32 %r9, [%rd4+128];", "thread (16,0,0): " + stored, 2, 103},
		{"a half", some + "st.shared.u32 [%rd4], %r7;\nst.shared.u16 [%rd4], 1;\nld.shared.u32 %r9, [%rd4];",
			"thread (16,0,0): " + stored, 0, 1},
		{"a generic address of shared memory", "cvta.shared.u64 %rd4, %rd4;\nst.u32 [%rd4], %r8;\nld.u32 %r9, [%rd4];",
			"st.global.u32 uses a value that st.u32 stored", 9, 0xffffffff},
		{"global memory", "st.global.u32 [%rd2], %r8;\nbra $end;", "st.global.u32 reads an unwritten register", 0, 0xffffffff},
		{"a generic address of global memory", "st.u32 [%rd2], %r8;\nbra $end;", "st.u32 reads an unwritten register", 0,
			0xffffffff},
		{"an undefined address", "setp.ne.u32 %p, %r1, 0;\n@%p bra $done;\nshr.u32 %r3, %r8, 22;\nst.shared.u8 [%r3+1], %r1;", "shr.u32 reads an unwritten register", 0, 7},
		{"local memory", "st.param.b32 [pa], %r8;\nld.param.b32 %r9, [pa];",
			"st.global.u32 uses a value that st.param.b32 stored from an unwritten register", 3, 0xffffffff},
		{"a part of a register", parts + "shr.u32 %r9, %r3, 16;", "thread (16,0,0): st.global.u32 uses a value that st.shared.u16",
			1, 101},
		{"another part of a register", parts + "mov.b32 {%h3, %h4}, %r3;\ncvt.u32.u16 %r9, %h4;", "st.global.u32 uses", 1, 101},
		{"a permuted byte", parts + "prmt.b32 %r9, %r3, 0, 0x4432;", "thread (16,0,0): st.global.u32 uses", 3, 103},
		{"a sign", parts + "cvt.s32.s16 %r9, %r3;\nmov.b32 {%h1, %h2}, %r3;\ncvt.s32.s16 %r9, %h2;", "st.global.u32 uses", 2, 102},
		{"an argument", "st.param.b32 [pa], %r2;\nst.param.b32 [pb], %r8;\nst.param.b32 [pc], 0;\n" +
			"call (pr), choose, (pa, pb, pc);\nld.param.b32 %r9, [pr];", "st.global.u32 uses a value that st.param.b32 stored", 4,
			0xffffffff},

		// Right programs.
		{"a partial tile", some + "st.shared.u32 [%rd4], %r7;\n" + other + "@!%p ld.shared.u32 %r9, [%rd4];", "", 16, 100},
		{"a partial tile that is read, but not used", some + "st.shared.u32 [%rd4], %r7;\n" + other +
			"ld.shared.u32 %r3, [%rd4];\nselp.b32 %r9, 1, %r3, %p;", "", 20, 104},
		{"overwritten memory", some + "st.shared.u32 [%rd4], %r7;\nst.shared.u32 [%rd4], %r1;\nld.shared.u32 %r9, [%rd4];",
			"", 20, 20},
		{"memory overwritten by an atomic", "st.shared.u32 [%rd4], %r8;\natom.shared.exch.b32 %r3, [%rd4], 4;\n" +
			"ld.shared.u32 %r9, [%rd4];", "", 20, 4},
		{"the other half", some + "st.shared.u32 [%rd4], %r7;\nst.shared.u16 [%rd4], %r1;\nld.shared.u16 %r9, [%rd4];", "", 20,
			20},
		{"the other part of a register", parts + "and.b32 %r9, %r3, 0xffff;", "", 17, 17},
		{"the other part of a packed register", parts + "mov.b32 {%h1, %h2}, %r3;\nmov.b32 %r4, {%h2, %h1};\n" +
			"shr.u32 %r9, %r4, 16;", "", 17, 17},
		{"the other bytes", parts + "bfe.u32 %r9, %r3, 8, 8;\nshl.b32 %r3, %r3, 24;\nshr.u32 %r3, %r3, 24;\n" +
			"add.u32 %r9, %r9, %r3;", "", 18, 18},
		{"bytes that a permutation leaves out", parts + "prmt.b32 %r4, %r3, %r1, 0x7710;\nmov.u32 %r9, %r4;", "", 19, 19},
		{"bytes that are packed and taken apart", parts + "shl.b32 %r4, %r3, 16;\nor.b32 %r4, %r4, %r1;\n" +
			"xor.b32 %r4, %r4, %r1;\nshr.u32 %r9, %r4, 16;", "", 19, 19},
		{"elements that are not used", "shl.b64 %rd5, %rd5, 2;\nmov.u64 %rd4, s;\nadd.u64 %rd4, %rd4, %rd5;\n" +
			"st.shared.u32 [%rd4+4], %r1;\nld.shared.v4.u32 {%r20, %r9, %r21, %r22}, [%rd4];", "", 4, 4},
		{"elements of other lanes that are not used", "st.shared.u32 [%rd4], %r1;\nsetp.ne.u32 %p, %r1, 2;\n" +
			"@%p bra $end;\nld.shared.v2.u32 {%r9, %r20}, [%rd4];", "", 2, 2},
		{"the other part of a vector", "shl.b64 %rd5, %rd5, 1;\nmov.u64 %rd4, s;\nadd.u64 %rd4, %rd4, %rd5;\n" +
			"st.shared.v2.u32 [%rd4], {%r8, %r1};\nld.shared.v2.u32 {%r3, %r9}, [%rd4];", "", 31, 31},
		{"an argument that is not used", "st.param.b32 [pa], %r2;\nst.param.b32 [pb], %r8;\nst.param.b32 [pc], 1;\n" +
			"call (pr), choose, (pa, pb, pc);\nld.param.b32 %r9, [pr];", "", 4, 104},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, hazard := runExchange(t, exchange(c.code), 32, true)
			if got[c.lane] != c.word {
				t.Errorf("lane %d has %d, want %d", c.lane, got[c.lane], c.word)
			}
			if c.want == "" && hazard != "" {
				t.Errorf("got %s, want no hazard", hazard)
			}
			if !strings.Contains(hazard, c.want) || c.want != "" && !strings.HasPrefix(hazard, "unwritten-register: ") {
				t.Errorf("got %q, want unwritten-register with %q", hazard, c.want)
			}
		})
	}
}
