package ptx

import "testing"

// Parsing must not panic, and indexes in the result must be valid.
func FuzzParse(f *testing.F) {
	f.Add(`.version 9.0
.target sm_100a
.address_size 64
.file 1 "a.cu"
.global .align 4 .b8 table[8] = {1, -2, 0XFF};
.global .u64 at = generic(table)+4;
.visible .entry k(.param .u64 p, .param .align 8 .b8 q[16]) .maxntid 128, 1, 1 .minnctapersm 2
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.shared .align 16 .b8 tile[1024];
	.loc 1 3 5
	ld.param.u64 %r1, [p+8];
	{ .reg .b32 t; inner: mov.b32 t, {%r1, %r2}; bra inner; }
	setp.lt.f32 %p1|%p0, 0f3F800000, -0d3FF0000000000000;
	.loc 1 9 2, function_name $f+3, inlined_at 1 3 5
	@!%p1 bra out;
	proto: .callprototype (.param .b32 _) _ (.param .b64 _) .noreturn;
	call (%r0), f, (%r1, %r2), proto;
	to: .branchtargets out, out;
out:
	ret;
}`)
	f.Add(".global .align -4 .b8 e[] = {1};")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if (m == nil) != (err != nil) {
			t.Fatalf("got %v and %v", m, err)
		}
		if err != nil {
			return
		}
		for _, v := range m.Vars {
			if v.Size < 0 || v.Size > 1<<40 || v.Align < 0 {
				t.Errorf("variable %s: got size %d and alignment %d", v.Name, v.Size, v.Align)
			}
		}
		for _, fn := range m.Funcs {
			for label, at := range fn.Labels {
				if at < 0 || at > len(fn.Body) {
					t.Errorf("label %s: got %d of %d instructions", label, at, len(fn.Body))
				}
			}
			for _, in := range fn.Body {
				if in.Guard >= len(fn.Regs) {
					t.Errorf("%s: got predicate %d of %d registers", in.Op, in.Guard, len(fn.Regs))
				}
				operands(t, fn, in.Args)
			}
		}
	})
}

func operands(t *testing.T, fn *Func, all []Operand) {
	for _, o := range all {
		if o.Kind == Register && o.Reg >= len(fn.Regs) {
			t.Errorf("got register %d of %d", o.Reg, len(fn.Regs))
		}
		operands(t, fn, o.Elems)
		if o.Pair != nil {
			operands(t, fn, []Operand{*o.Pair})
		}
	}
}
