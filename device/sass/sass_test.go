package sass

import (
	_ "embed"
	"errors"
	"reflect"
	"slices"
	"testing"

	"fisub/device/vgpu/ptx"
)

//go:embed testdata/verdicts.cubin
var verdictsCubin []byte

//go:embed testdata/verdicts.ptx
var verdictsPTX string

func read(t testing.TB) ([]Kernel, *ptx.Module) {
	t.Helper()
	all, err := Read(verdictsCubin)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ptx.Parse(verdictsPTX)
	if err != nil {
		t.Fatal(err)
	}
	return all, m
}

func TestRead(t *testing.T) {
	all, _ := read(t)
	i := slices.IndexFunc(all, func(k Kernel) bool { return k.Name == "line_20" })
	if i < 0 || len(all) != 8 {
		t.Fatalf("got %d kernels, want 8 with line_20", len(all))
	}
	k := all[i]
	if !k.Entry || k.Instructions < 10 || k.Instructions > 30 {
		t.Errorf("got %d instructions, kernel: %v", k.Instructions, k.Entry)
	}
	want := []Inst{
		{Class: SharedStore, Width: 32, Line: 19},
		{Class: Barrier, Line: 19},
		{Class: SharedLoad, Width: 128, Line: 20},
		{Class: GlobalStore, Width: 32, Line: 22},
	}
	var got []Inst
	for _, in := range k.Insts {
		if in.File != "/src/verdicts.cu" || in.PTX == 0 || in.Offset%16 != 0 || in.Guarded || in.Loop != 0 {
			t.Errorf("got %+v", in)
		}
		got = append(got, Inst{Class: in.Class, Width: in.Width, Line: in.Line})
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	i = slices.IndexFunc(all, func(k Kernel) bool { return k.Name == "line_30" })
	var loads, inLoop int
	for _, in := range all[i].Insts {
		if in.Class == GlobalLoad {
			loads++
			inLoop += in.Loop
		}
	}
	if loads < 5 || inLoop < 4 || inLoop > loads {
		t.Errorf("line_30: got %d loads, %d of them in the loop", loads, inLoop)
	}
}

func TestReadOther(t *testing.T) {
	host := slices.Clone(verdictsCubin)
	host[18] = 62 // x86-64
	old := slices.Clone(verdictsCubin)
	old[49] = 70 // sm_70
	for _, data := range [][]byte{host, old} {
		if _, err := Read(data); !errors.Is(err, ErrArch) {
			t.Errorf("got %v, want %v", err, ErrArch)
		}
	}
}

// TestReadToolkitVersion reads a cubin whose ELF version is that of the toolkit, as CUDA 12 writes it.
func TestReadToolkitVersion(t *testing.T) {
	want, _ := read(t)
	old := slices.Clone(verdictsCubin)
	old[20] = 126
	if got, err := Read(old); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %d kernels and %v, want %d", len(got), err, len(want))
	}
}

func TestCompare(t *testing.T) {
	all, m := read(t)
	tests := []struct {
		kernel string
		want   Line
	}{
		{"line_10", Line{Line: 10, Class: GlobalLoad, PTX: 1, SASS: 1, Verdict: Equal}},
		{"line_10", Line{Line: 10, Class: GlobalStore, PTX: 1, SASS: 1, Verdict: Equal}},
		{"line_20", Line{Line: 20, Class: SharedLoad, PTX: 3, SASS: 1, Verdict: Merged,
			Detail: "1 of 3: ptxas merged 4 of 32 bits into one of 128; 2 of 3: ptxas merged it into a wider one"}},
		{"line_20", Line{Line: 21, Class: SharedLoad, PTX: 1, Verdict: Merged, Detail: "ptxas merged it into a wider one"}},
		{"line_30", Line{Line: 30, Class: GlobalLoad, PTX: 1, SASS: 7, Verdict: Copied, Detail: "ptxas made 7 copies"}},
		{"line_30", Line{Line: 32, Class: GlobalStore, PTX: 1, SASS: 1, Verdict: Equal}},
		{"line_40", Line{Line: 40, Class: GlobalLoad, PTX: 2, SASS: 1, Verdict: Other, Detail: "1 of 2: ptxas dropped it"}},
		{"line_50", Line{Line: 50, Class: GlobalLoad, PTX: 1, SASS: 1, Verdict: Other,
			Detail: "1 of 64 bits became 1 of 32 bits"}},
		{"line_60", Line{Line: 60, Class: GlobalLoad, PTX: 1, SASS: 3, Verdict: Other,
			Detail: "ptxas shares or moves out of a loop what the code around it repeats"}},
		{"line_60", Line{Line: 61, Class: GlobalStore, PTX: 1, SASS: 7, Verdict: Copied, Detail: "ptxas made 7 copies"}},
		{"line_70", Line{Line: 70, Class: GenericStore, PTX: 1, SASS: 1, Verdict: Equal}},
		{"line_70", Line{File: "/src/inlined.cuh", Line: 5, Class: GlobalAtomic, PTX: 1, SASS: 1, Verdict: Equal,
			Detail: "a global atomic became a global reduction"}},
		{"line_80", Line{Line: 80, Class: GlobalStore, PTX: 1, SASS: 1, Verdict: Equal,
			Detail: "executed under a predicate instead of behind a branch"}},
	}
	for _, tc := range tests {
		if tc.want.File == "" {
			tc.want.File = "/src/verdicts.cu"
		}
		lines := Compare(all, m, tc.kernel)
		if !slices.Contains(lines, tc.want) {
			t.Errorf("%s: got %+v, want %+v", tc.kernel, lines, tc.want)
		}
	}
	if lines := Compare(all, m, "missing"); lines != nil {
		t.Errorf("a kernel without machine code: got %v", lines)
	}
}

// A load behind a branch may be executed under a predicate, but not always.
func TestCompareCondition(t *testing.T) {
	m, err := ptx.Parse(`.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .b32 %r<5>; .reg .pred %p<5>; .shared .b32 s[4];
@%p1 bra $end;
ld.shared.u32 %r1, [s];
$end:
ld.shared.u32 %r2, [s+4];
ret;
}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		guarded, always bool
		want            Verdict
	}{
		{false, false, Equal},
		{true, true, Equal},
		{false, true, Other},
	} {
		lines := Compare([]Kernel{{Name: "k", Insts: []Inst{
			{Class: SharedLoad, Width: 32, PTX: 7, Guarded: tc.guarded, always: tc.always},
			{Class: SharedLoad, Width: 32, PTX: 9, always: true},
		}}}, m, "k")
		if len(lines) != 1 || lines[0].Verdict != tc.want {
			t.Errorf("%+v: got %+v", tc, lines)
		}
	}
}

func TestClassify(t *testing.T) {
	tests := []struct {
		text  string
		class Class
		width int
	}{
		{"ld.global.nc.L1::no_allocate.v4.f32 {%f1, %f2, %f3, %f4}, [%d1];", GlobalLoad, 128},
		{"ld.shared::cluster.u8 %r1, [%r2];", SharedLoad, 8},
		{"ld.v2.f64 {%g1, %g2}, [%d1];", GenericLoad, 128},
		{"ld.param.u64 %d1, [p];", 0, 0},
		{"ld.const.u32 %r1, [%d1];", 0, 0},
		{"st.local.b16 [%d1], %h1;", LocalStore, 16},
		{"st.global.v8.b32 [%d1], {%r1, %r2, %r3, %r4, %r1, %r2, %r3, %r4};", GlobalStore, 256},
		{"st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r1], {%r1, %r2}, [%r3];", ClusterStore, 64},
		{"red.global.add.noftz.v4.bf16x2 [%d1], {%r1, %r2, %r3, %r4};", GlobalReduction, 128},
		{"atom.shared.cas.b64 %d1, [%r1], %d2, %d3;", SharedAtomic, 64},
		{"atom.add.noftz.f16x2 %r1, [%d1], %r2;", GenericAtomic, 32},
		{"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r1, %r2, %r3, %r4}, [%r1];", MatrixLoad, 4},
		{"stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r1};", MatrixStore, 1},
		{"cp.async.ca.shared.global [%r1], [%d1], 8;", AsyncCopy, 64},
		{"cp.async.wait_group 0;", 0, 0},
		{"cp.async.bulk.commit_group;", 0, 0},
		{"cp.async.bulk.prefetch.L2.global [%d1], %r1;", 0, 0},
		{"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r1], %r2;", BulkCopy, 0},
		{"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {%r1, %r2}], [%r3];", TensorCopy, 0},
		{"bar.sync 0;", Barrier, 0},
		{"bar.warp.sync %r1;", 0, 0},
		{"shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;", Shuffle, 0},
		{"ex2.approx.ftz.f32 %f1, %f2;", Special, 0},
		{"sqrt.rn.f32 %f1, %f2;", 0, 0},
	}
	for _, tc := range tests {
		m, err := ptx.Parse(`.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) { .reg .b16 %h<5>; .reg .b32 %r<5>; .reg .f32 %f<5>; .reg .b64 %d<5>; .reg .f64 %g<5>;
.reg .pred %p<5>;
` + tc.text + "\n}")
		if err != nil {
			t.Fatal(err)
		}
		if class, width := classify(&m.Funcs[0].Body[0]); class != tc.class || width != tc.width {
			t.Errorf("%s: got %v of %d, want %v of %d", tc.text, class, width, tc.class, tc.width)
		}
	}
}

func TestFlows(t *testing.T) {
	tests := []struct {
		name   string
		next   [][]int32
		loops  []int
		always string // x: in each iteration
	}{
		{"straight", [][]int32{{1}, {2}, {}}, []int{0, 0, 0}, "xx-"},
		{"condition", [][]int32{{1, 2}, {2}, {3}, {}}, []int{0, 0, 0, 0}, "x-x-"},
		{"two arms", [][]int32{{1, 2}, {3}, {3}, {4}, {}}, []int{0, 0, 0, 0, 0}, "x--x-"},
		{"return", [][]int32{{1, 3}, {2}, {3}, {}}, []int{0, 0, 0, 0}, "x---"},
		{"one block", [][]int32{{1}, {1, 2}, {3}, {}}, []int{0, 1, 0, 0}, "xxx-"},
		{"test first", [][]int32{{1}, {2, 3}, {1}, {4}, {}}, []int{0, 1, 1, 0, 0}, "xxxx-"},
		{"continue", [][]int32{{1}, {2, 3}, {3}, {1, 4}, {5}, {}}, []int{0, 1, 1, 1, 0, 0}, "xx-xx-"},
		{"break", [][]int32{{1}, {2, 4}, {3}, {1, 4}, {5}, {}}, []int{0, 1, 1, 1, 0, 0}, "xxxxx-"},
		{"entry is a loop", [][]int32{{0, 1}, {2}, {}}, []int{1, 0, 0}, "xx-"},
		{"nested", [][]int32{{1}, {2}, {3}, {2, 4}, {1, 5}, {6}, {}}, []int{0, 1, 2, 2, 1, 0, 0}, "xxxxxx-"},
		{"two inner loops", [][]int32{{1}, {1, 2}, {3}, {3, 4}, {0, 5}, {6}, {}}, []int{1, 2, 1, 2, 1, 0, 0}, "xxxxxx-"},
		{"a branch back that is no loop", [][]int32{{3}, {2}, {4}, {1}, {}}, []int{0, 0, 0, 0, 0}, "xxxx-"},
		{"two entries", [][]int32{{1, 2}, {2}, {1, 3}, {4}, {}}, []int{0, 1, 1, 0, 0}, "x--x-"},
		{"unreachable", [][]int32{{2}, {1}, {}}, []int{0, 0, 0}, "x--"},
		{"endless", [][]int32{{1}, {1}, {}}, []int{0, 1, 0}, "-x-"},
	}
	for _, tc := range tests {
		for i, got := range flows(tc.next) {
			if want := (flow{tc.loops[i], tc.always[i] == 'x'}); got != want {
				t.Errorf("%s: node %d: got %+v, want %+v", tc.name, i, got, want)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(verdictsCubin, 0, byte(0))
	for i := range 64 {
		f.Add(verdictsCubin, i*len(verdictsCubin)/64, byte(0xff>>(i%8)))
	}
	m, err := ptx.Parse(verdictsPTX)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, at int, change byte) {
		if at >= 0 && at < len(data) {
			data = slices.Clone(data)
			data[at] ^= change
		}
		all, err := Read(data)
		if err != nil {
			return
		}
		n := 0
		for _, k := range all {
			n += len(k.Insts)
			Compare(all, m, k.Name)
		}
		if n > len(data)/instSize {
			t.Errorf("%d instructions in %d bytes", n, len(data))
		}
	})
}
