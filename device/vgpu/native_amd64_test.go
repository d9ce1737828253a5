//go:build linux && cgo && amd64

package vgpu

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Translated code gives the same bits as the executor, in full warps and for some lanes, with and without guards.
func TestTranslated(t *testing.T) {
	special := []uint32{0, 1, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f812345, 0x00000001, 0x807fffff,
		0x00800000, 0x7f7fffff, 0x3f800000, 0xbf800000, 31, 32, 33, 0xffffffff, 0x7fffffff, 63, 64}
	narrow := []string{"mov.b32 %r9, %r1;", "not.b32 %r9, %r1;", "neg.s32 %r9, %r1;", "add.s32 %r9, %r1, %r2;",
		"sub.s32 %r9, %r1, %r2;", "mul.lo.s32 %r9, %r1, %r2;", "and.b32 %r9, %r1, %r2;", "or.b32 %r9, %r1, %r2;",
		"xor.b32 %r9, %r1, %r2;", "shl.b32 %r9, %r1, %r2;", "shr.u32 %r9, %r1, %r2;", "shr.s32 %r9, %r1, %r2;",
		"min.s32 %r9, %r1, %r2;", "max.s32 %r9, %r1, %r2;", "min.u32 %r9, %r1, %r2;", "max.u32 %r9, %r1, %r2;",
		"mad.lo.s32 %r9, %r1, %r2, %r3;", "add.f32 %r9, %r1, %r2;", "sub.f32 %r9, %r1, %r2;", "mul.f32 %r9, %r1, %r2;",
		"fma.rn.f32 %r9, %r1, %r2, %r3;", "add.ftz.f32 %r9, %r1, %r2;", "sub.ftz.f32 %r9, %r1, %r2;",
		"mul.ftz.f32 %r9, %r1, %r2;", "fma.rn.ftz.f32 %r9, %r1, %r2, %r3;", "min.f32 %r9, %r1, %r2;", "max.f32 %r9, %r1, %r2;",
		"neg.f32 %r9, %r1;", "abs.f32 %r9, %r1;", "cvt.rn.f32.s32 %r9, %r1;", "selp.b32 %r9, %r1, %r2, %p1;",
		"lop3.b32 %r9, %r1, %r2, %r3, 0x96;", "lop3.b32 %r9, %r1, %r2, %r3, 0x2d;"}
	for _, cmp := range []string{"eq", "ne", "lt", "le", "gt", "ge"} {
		for _, kind := range []string{"s32", "u32", "f32", "ftz.f32"} {
			narrow = append(narrow, fmt.Sprintf("setp.%s.%s %%p2, %%r1, %%r2;\nselp.b32 %%r9, %%r1, %%r3, %%p2;", cmp, kind))
		}
	}
	for _, cmp := range []string{"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"} {
		narrow = append(narrow, fmt.Sprintf("setp.%s.f32 %%p2, %%r1, %%r2;\nselp.b32 %%r9, %%r1, %%r3, %%p2;", cmp))
	}
	for _, op := range []string{"and", "or", "xor"} {
		narrow = append(narrow, fmt.Sprintf("setp.lt.s32 %%p2, %%r1, %%r2;\n%s.pred %%p3, %%p1, %%p2;\nselp.b32 %%r9, 1, 2, %%p3;", op))
	}
	for _, cmp := range []string{"eq", "ne", "lt", "le", "gt", "ge"} {
		for _, kind := range []string{"s64", "u64", "f64"} {
			narrow = append(narrow, fmt.Sprintf("setp.%s.%s %%p2, %%rd1, %%rd2;\nselp.b32 %%r9, %%r1, %%r3, %%p2;", cmp, kind))
		}
	}
	for _, op := range []string{"min.ftz.f32", "max.ftz.f32", "div.rn.f32", "mul.hi.s32", "mul.hi.u32"} {
		narrow = append(narrow, op+" %r9, %r1, %r2;")
	}
	for _, op := range []string{"neg.ftz.f32", "abs.ftz.f32", "cvt.rn.f32.u32", "cvt.rzi.s32.f32", "cvt.rzi.u32.f32", "rcp.rn.f32",
		"sqrt.rn.f32", "abs.s32"} {
		narrow = append(narrow, op+" %r9, %r1;")
	}
	for _, op := range []string{"not.b16 %h3, %h1;", "neg.s16 %h3, %h1;", "add.s16 %h3, %h1, %h2;", "sub.s16 %h3, %h1, %h2;",
		"mul.lo.s16 %h3, %h1, %h2;", "mad.lo.s16 %h3, %h1, %h2, %h1;", "shl.b16 %h3, %h1, %r2;", "shr.u16 %h3, %h1, %r2;",
		"shr.s16 %h3, %h1, %r2;", "cvt.rn.bf16.f32 %h3, %r1;", "cvt.rn.f16.f32 %h3, %r1;"} {
		narrow = append(narrow, "cvt.u16.u32 %h1, %r1;\ncvt.u16.u32 %h2, %r2;\nmov.b16 %h3, 7;\n"+op+"\nmov.b32 %r9, {%h3, %h1};")
	}
	narrow = append(narrow, "cvt.rn.f32.f64 %r9, %rd1;", "mov.b32 {%h1, %h2}, %r1;\nmov.b32 %r9, {%h2, %h1};", "cvt.u32.u8 %r9, %r1;",
		"cvt.s32.s8 %r9, %r1;", "cvt.u16.u32 %h1, %r1;\ncvt.s32.s16 %r9, %h1;", "cvt.u16.u32 %h1, %r1;\ncvt.u32.u16 %r9, %h1;",
		"bfe.u32 %r9, %r1, %r2, %r3;", "bfe.u32 %r9, %r1, %r2, 7;", "shf.l.wrap.b32 %r9, %r1, %r2, %r3;",
		"shf.r.wrap.b32 %r9, %r1, %r2, %r3;", "cvt.rn.bf16x2.f32 %r9, %r1, %r2;", "cvt.rn.f16x2.f32 %r9, %r1, %r2;",
		"cvt.u16.u32 %h1, %r1;\ncvt.f32.f16 %r9, %h1;", "cvt.u16.u32 %h1, %r1;\ncvt.f32.bf16 %r9, %h1;", "ld.param.u32 %r9, [some];")
	for _, cmp := range []string{"eq", "lt", "ge"} {
		for _, kind := range []string{"s16", "u16"} {
			narrow = append(narrow, fmt.Sprintf("cvt.u16.u32 %%h1, %%r1;\ncvt.u16.u32 %%h2, %%r2;\nsetp.%s.%s %%p2, %%h1, %%h2;\n"+
				"selp.b32 %%r9, %%r1, %%r3, %%p2;", cmp, kind))
		}
	}
	for _, cmp := range []string{"equ", "ltu", "geu", "num", "nan"} {
		narrow = append(narrow, fmt.Sprintf("setp.%s.f64 %%p2, %%rd1, %%rd2;\nselp.b32 %%r9, %%r1, %%r3, %%p2;", cmp))
	}
	narrow = append(narrow, "not.pred %p3, %p1;\nmov.pred %p2, %p3;\nselp.b32 %r9, 1, 2, %p2;")
	pairs := []string{"mov.b64 %rd9, %rd1;", "not.b64 %rd9, %rd1;", "add.s64 %rd9, %rd1, %rd2;", "sub.s64 %rd9, %rd1, %rd2;",
		"and.b64 %rd9, %rd1, %rd2;", "or.b64 %rd9, %rd1, %rd2;", "xor.b64 %rd9, %rd1, %rd2;", "shl.b64 %rd9, %rd1, %r2;",
		"shr.u64 %rd9, %rd1, %r2;", "mul.wide.s32 %rd9, %r1, %r2;", "mul.wide.u32 %rd9, %r1, %r2;",
		"mad.wide.s32 %rd9, %r1, %r2, %rd1;", "mad.wide.u32 %rd9, %r1, %r2, %rd1;", "cvt.u64.u32 %rd9, %r1;",
		"cvt.s64.s32 %rd9, %r1;", "selp.b64 %rd9, %rd1, %rd2, %p1;", "cvta.shared.u64 %rd9, %rd1;",
		"cvta.to.local.u64 %rd9, %rd1;", "cvt.u32.u64 %r9, %rd1;\ncvt.u64.u32 %rd9, %r9;", "mov.b64 {%r12, %r9}, %rd1;\ncvt.s64.s32 %rd9, %r9;",
		"add.f64 %rd9, %rd1, %rd2;", "sub.f64 %rd9, %rd1, %rd2;", "mul.f64 %rd9, %rd1, %rd2;",
		"fma.rn.f64 %rd9, %rd1, %rd2, %rd3;", "neg.f64 %rd9, %rd1;", "abs.f64 %rd9, %rd1;", "cvt.rn.f64.s32 %rd9, %r1;",
		"min.f64 %rd9, %rd1, %rd2;", "max.f64 %rd9, %rd1, %rd2;", "div.rn.f64 %rd9, %rd1, %rd2;", "sqrt.rn.f64 %rd9, %rd1;",
		"cvt.f64.f32 %rd9, %r1;", "cvt.rn.f64.u32 %rd9, %r1;", "mov.b64 %rd9, {%r1, %r2};", "min.s64 %rd9, %rd1, %rd2;",
		"max.s64 %rd9, %rd1, %rd2;", "min.u64 %rd9, %rd1, %rd2;", "max.u64 %rd9, %rd1, %rd2;", "shr.s64 %rd9, %rd1, %r2;",
		"neg.s64 %rd9, %rd1;", "ld.param.u64 %rd9, [in];", "cvt.u16.u64 %h1, %rd1;\ncvt.u64.u16 %rd9, %h1;", "mul.lo.s64 %rd9, %rd1, %rd2;", "mad.lo.s64 %rd9, %rd1, %rd2, %rd3;", "cvta.local.u64 %rd9, %rd1;", "cvta.to.shared.u64 %rd9, %rd1;"}
	var body strings.Builder
	n := 0
	for _, ops := range [][]string{narrow, pairs} {
		for _, op := range ops {
			guarded := "@%p4 " + strings.ReplaceAll(op, "\n", "\n@!%p4 ")
			for _, text := range []string{op, guarded} {
				fmt.Fprintf(&body, "mov.b32 %%r9, 7;\nmov.b64 %%rd9, 9;\nmov.pred %%p2, %%p1;\nmov.pred %%p3, %%p4;\n@%%p5 bra $L%d;\n%s\nmov.b32 %%r16, %%r1;\n"+
					"$L%d:\nselp.b32 %%r14, 1, 0, %%p2;\nselp.b32 %%r15, 2, 0, %%p3;\nor.b32 %%r14, %%r14, %%r15;\n"+
					"st.global.v2.b32 [%%rd8+%d], {%%r9, %%r14};\nst.global.b64 [%%rd8+%d], %%rd9;\n", n, text, n, 16*n, 16*n+8)
				n++
			}
		}
	}
	ptx := `
.version 9.0
.target sm_100
.address_size 64
.visible .entry all(.param .u64 in, .param .u64 out, .param .u32 some)
{
	.reg .pred %p<9>;
	.reg .b16 %h<5>;
	.reg .b32 %r<20>;
	.reg .b64 %rd<20>;
	ld.param.u64 %rd5, [in];
	ld.param.u64 %rd6, [out];
	ld.param.u32 %r10, [some];
	mov.u32 %r11, %tid.x;
	mul.wide.u32 %rd7, %r11, 32;
	add.s64 %rd7, %rd5, %rd7;
	mul.wide.u32 %rd8, %r11, ` + fmt.Sprint(16*n) + `;
	add.s64 %rd8, %rd6, %rd8;
	ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd7];
	ld.global.v2.b64 {%rd1, %rd2}, [%rd7+16];
	mov.b64 %rd3, {%r3, %r1};
	setp.lt.s32 %p1, %r4, 0;
	and.b32 %r12, %r4, 1;
	setp.eq.s32 %p4, %r12, 0;
	shr.u32 %r13, %r10, %r11;
	and.b32 %r13, %r13, 1;
	setp.eq.s32 %p5, %r13, 0;
` + body.String() + `
	ret;
}
`
	r := rand.New(rand.NewPCG(1, 2))
	random := func() uint32 {
		if r.IntN(3) == 0 {
			return special[r.IntN(len(special))]
		}
		return r.Uint32()
	}
	in := make([]uint32, 32*8)
	for _, some := range []uint32{^uint32(0), 0x12345679, 0xfffffffe, 1 << 17} {
		for i := range in {
			in[i] = random()
		}
		for i := 4; i < len(in); i += 8 { // equal ones, and NaNs of float64
			switch r.IntN(4) {
			case 0:
				in[i+2], in[i+3] = in[i], in[i+1]
			case 1:
				in[i+1], in[i+3] = 0x7ff00000|in[i+1]>>12, 0xfff80000|in[i+3]>>13
			}
		}
		var results [2][]uint32
		for i, jit := range []string{"0", "1"} {
			t.Setenv("FISUB_EMU_JIT", jit)
			m := &Machine{Workers: 1}
			mod, err := m.Load(ptx)
			if err != nil {
				t.Fatal(err)
			}
			k, err := mod.Kernel("all")
			if err != nil || len(k.Lacks()) > 0 {
				t.Fatal(err, k.Lacks())
			}
			f := k.prog.funcs[k.prog.entry]
			if runs := translate(f.code, f.extra, 0); (runs != nil) != (jit == "1") {
				t.Fatalf("FISUB_EMU_JIT=%s: translated: %v", jit, runs != nil)
			}
			from, _ := words(m, "in", in...)
			to, out := words(m, "out", make([]uint32, 32*4*n)...)
			params := binary.LittleEndian.AppendUint64(nil, uint64(from))
			params = binary.LittleEndian.AppendUint64(params, uint64(to))
			params = binary.LittleEndian.AppendUint32(params, some)
			if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, Params: params}); err != nil {
				t.Fatal(err)
			}
			results[i] = slices.Clone(out)
			m.drop()
		}
		all := append(slices.Clone(narrow), pairs...)
		for lane := range 32 {
			for i := range n {
				at := 4 * (n*lane + i)
				if a, b := results[0][at:at+4], results[1][at:at+4]; !slices.Equal(a, b) {
					t.Errorf("lanes %#x, lane %d, inputs %x: %s (guarded: %v): got %x, want %x", some, lane, in[8*lane:8*lane+8],
						all[i/2], i%2 == 1, b, a)
				}
			}
		}
	}
}
