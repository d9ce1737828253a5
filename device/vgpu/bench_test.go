//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"fisub/device/counters"
)

// loop returns a kernel of one block that executes body n times, unrolled 16 times.
func loop(body string) string {
	return `
.version 9.0
.target sm_100
.address_size 64
.visible .entry loop(.param .u64 x, .param .u32 n)
{
	.reg .pred %p<9>;
	.reg .b16 %h<9>;
	.reg .b32 %r<40>;
	.reg .b64 %rd<9>;
	.reg .b64 %fd<9>;
	.shared .align 16 .b8 s[4096];
	ld.param.u64 %rd1, [x];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %tid.x;
	mul.wide.u32 %rd2, %r2, 16;
	add.s64 %rd2, %rd1, %rd2;
	shl.b32 %r3, %r2, 4;
	mov.u32 %r4, s;
	add.s32 %r3, %r3, %r4;
	mov.b32 %r5, 0f3F800001;
	mov.b32 %r6, 0f3F800003;
	mov.b32 %r7, 0;
	mov.b32 %r8, 0;
	st.shared.v4.b32 [%r3], {%r5, %r6, %r7, %r8};
	setp.lt.u32 %p2, %r2, 20;
	mul.wide.u32 %rd4, %r2, 32;
	add.s64 %rd4, %rd1, %rd4;
	mul.wide.u32 %rd5, %r2, 4;
	add.s64 %rd5, %rd1, %rd5;
	shl.b32 %r14, %r2, 2;
	add.s32 %r14, %r14, %r4;
	mov.b64 %fd1, 0d3FF0000000000001;
	shl.b32 %r13, %r2, 7;
	add.s32 %r13, %r13, %r4;
	st.shared.b32 [%r13], %r5;
$again:
` + strings.Repeat(body+"\n", 16) + `
	sub.s32 %r1, %r1, 1;
	setp.ne.s32 %p1, %r1, 0;
	@%p1 bra $again;
	st.global.b32 [%rd2], %r7;
	st.global.v4.b32 [%rd2], {%r9, %r10, %r11, %r12};
	ret;
}
`
}

// BenchmarkInstruction measures the time of one warp instruction, and the ratio of times with and without counters.
func BenchmarkInstruction(b *testing.B) {
	for _, c := range []struct{ name, body string }{
		{"add.s32", "add.s32 %r7, %r7, %r5;"},
		{"fma.rn.f32", "fma.rn.f32 %r7, %r5, %r6, %r7;"},
		{"fma.rn.f32, some lanes", "@%p2 fma.rn.f32 %r7, %r5, %r6, %r7;"},
		{"add.s64", "add.s64 %rd3, %rd3, %rd1;"},
		{"setp.lt.s32", "setp.lt.s32 %p3, %r7, %r5;"},
		{"setp.gt.f32", "setp.gt.f32 %p3, %r7, %r5;"},
		{"selp.f32", "selp.f32 %r7, %r5, %r6, %p2;"},
		{"min.f32", "min.f32 %r7, %r5, %r6;"},
		{"cvt.rn.bf16.f32", "cvt.rn.bf16.f32 %h1, %r5;"},
		{"cvt.rn.f16.f32", "cvt.rn.f16.f32 %h1, %r5;"},
		{"cvt.rzi.s32.f32", "cvt.rzi.s32.f32 %r7, %r5;"},
		{"ex2.approx", "ex2.approx.f32 %r7, %r5;"},
		{"fma.rn.ftz.f32", "fma.rn.ftz.f32 %r7, %r5, %r6, %r7;"},
		{"add.ftz.f32", "add.ftz.f32 %r7, %r5, %r6;"},
		{"max.ftz.f32", "max.ftz.f32 %r7, %r5, %r6;"},
		{"setp.gt.ftz.f32", "setp.gt.ftz.f32 %p3, %r7, %r5;"},
		{"fma.rn.f64", "fma.rn.f64 %fd2, %fd1, %fd1, %fd2;"},
		{"add.f64", "add.f64 %fd2, %fd1, %fd2;"},
		{"fma.rn.f16x2", "fma.rn.f16x2 %r7, %r5, %r6, %r7;"},
		{"ld.param.u64", "ld.param.u64 %rd3, [x];"},
		{"ld.global.b32, consecutive", "ld.global.b32 %r7, [%rd5];"},
		{"ld.global.b32, one address", "ld.global.b32 %r7, [%rd1];"},
		{"ld.global.b32, some lanes", "@%p2 ld.global.b32 %r7, [%rd5];"},
		{"st.global.b32, consecutive", "st.global.b32 [%rd5], %r5;"},
		{"ld.shared.b32, consecutive", "ld.shared.b32 %r7, [%r14];"},
		{"st.shared.b32, consecutive", "st.shared.b32 [%r14], %r5;"},
		{"fma.rn.bf16x2", "fma.rn.bf16x2 %r7, %r5, %r6, %r7;"},
		{"shfl.bfly", "shfl.sync.bfly.b32 %r7, %r5, 4, 31, -1;"},
		{"ld.global.b32", "ld.global.b32 %r7, [%rd2];"},
		{"ld.global.v4.b32", "ld.global.v4.b32 {%r9, %r10, %r11, %r12}, [%rd2];"},
		{"st.global.b32", "st.global.b32 [%rd2], %r5;"},
		{"ld.shared.b32", "ld.shared.b32 %r7, [%r3];"},
		{"ld.global.b32, scattered", "ld.global.b32 %r7, [%rd4];"},
		{"ld.shared.b32, conflicts", "ld.shared.b32 %r7, [%r13];"},
		{"ld.shared.v4.b32", "ld.shared.v4.b32 {%r9, %r10, %r11, %r12}, [%r3];"},
		{"st.shared.b32", "st.shared.b32 [%r3], %r5;"},
		{"ldmatrix.x4", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r9, %r10, %r11, %r12}, [%r3];"},
		{"atom.global.add", "atom.global.add.u32 %r7, [%rd2], 1;"},
		{"bar.sync", "bar.sync 0;"},
		{"mma.m16n8k16.f16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r9, %r10, %r11, %r12}, {%r5, %r6, %r5, %r6}, {%r5, %r6}, {%r9, %r10, %r11, %r12};"},
		{"mma.m16n8k16.bf16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r9, %r10, %r11, %r12}, {%r5, %r6, %r5, %r6}, {%r5, %r6}, {%r9, %r10, %r11, %r12};"},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := &Machine{Workers: 1}
			defer m.drop()
			mod, err := m.Load(loop(c.body))
			if err != nil {
				b.Fatal(err)
			}
			k, err := mod.Kernel("loop")
			if err != nil {
				b.Fatal(err)
			}
			if len(k.Lacks()) > 0 {
				b.Fatalf("lacks %v", k.Lacks())
			}
			x, _ := words(m, "x", make([]uint32, 256)...)
			params := binary.LittleEndian.AppendUint64(nil, uint64(x))
			params = binary.LittleEndian.AppendUint32(params, 1000)
			best := [2]time.Duration{time.Hour, time.Hour} // without and with counters
			for b.Loop() {
				for i := range best {
					m.OnCounters = nil
					if i == 1 {
						m.OnCounters = func(counters.Launch) {}
					}
					start := time.Now()
					if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, Params: params}); err != nil {
						b.Fatal(err)
					}
					best[i] = min(best[i], time.Since(start))
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(best[0].Nanoseconds())/16000, "ns/warp-instruction")
			b.ReportMetric(float64(best[1])/float64(best[0]), "counted/plain")
		})
	}
}

// BenchmarkTranslate decodes 10,000 lines of PTX. Goal: 10 s.
func BenchmarkTranslate(b *testing.B) {
	text := loop(strings.Repeat(`
	ld.global.v4.b32 {%r9, %r10, %r11, %r12}, [%rd2];
	fma.rn.f32 %r7, %r9, %r10, %r11;
	setp.lt.s32 %p3, %r7, %r5;
	@%p3 shfl.sync.bfly.b32 %r7, %r5, 4, 31, -1;
	cvt.rn.bf16.f32 %h1, %r7;
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r9, %r10, %r11, %r12}, {%r5, %r6, %r5, %r6}, {%r5, %r6}, {%r9, %r10, %r11, %r12};
`, 104))
	lines := strings.Count(text, "\n")
	for b.Loop() {
		m := &Machine{Workers: 1}
		mod, err := m.Load(text)
		if err != nil {
			b.Fatal(err)
		}
		k, err := mod.Kernel("loop")
		if err != nil || len(k.Lacks()) > 0 {
			b.Fatalf("%v, lacks %v", err, k.Lacks())
		}
		m.drop()
	}
	b.ReportMetric(float64(lines), "lines")
}
