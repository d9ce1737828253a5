package counters

import (
	"math"
	"strings"
	"testing"
)

func TestClassOf(t *testing.T) {
	for op, want := range map[string]Class{
		"ld.global.v4.f32": GlobalLoad, "ld.f32": GlobalLoad, "ld.shared::cta.u32": SharedLoad, "ld.param.u64": Constant,
		"st.local.u8": LocalStore, "atom.global.add.f32": GlobalAtomic, "red.relaxed.gpu.global.add.u32": GlobalReduce,
		"red.shared.add.u32": SharedAtomic, "ldmatrix.sync.aligned.m8n8.x4.shared.b16": LoadMatrix,
		"cp.async.cg.shared.global": AsyncCopy, "cp.async.wait_group": Mbarrier,
		"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes":                BulkCopy,
		"cp.async.bulk.wait_group.read":                                                    Mbarrier,
		"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes": TensorCopy,
		"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16":                                SharedLoad,
		"wmma.store.d.sync.aligned.row.m16n16k16.global.f32":                               GlobalStore,
		"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32":                                Tensor,
		"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16":                             Tensor,
		"tcgen05.mma.cta_group::1.kind::f16":                                               Tensor,
		"tcgen05.ld.sync.aligned.32x32b.x32.b32":                                           Other,

		"div.rn.f32": Special, "div.u32": Integer, "fma.rn.f16x2": Half, "setp.lt.f32": Single, "mad.lo.s32": Integer,
		"add.f64": Double, "cvt.rn.f16.f32": Conversion, "bar.sync": Barrier, "bra.uni": Branch, "and.b32": Integer,
	} {
		if got := ClassOf(op); got != want {
			t.Errorf("%s: got %q, want %q", op, got, want)
		}
	}
}

func TestOperations(t *testing.T) {
	for op, want := range map[string]uint64{"fma.rn.f32": 2, "add.f32": 1, "fma.rn.bf16x2": 4, "mul.f64": 1, "add.u32": 0,
		"ex2.approx.f32": 0, "mad.lo.s32": 0} {
		if got := Flops(op); got != want {
			t.Errorf("%s: got %d operations, want %d", op, got, want)
		}
	}
	for _, c := range []struct {
		op   string
		want uint64
		typ  string
	}{
		{"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 4096, "f16"},
		{"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 2048, "tf32"},
		{"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", 8192, "i8"},
		{"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 512, "f64"},
		{"wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", 65536, "f16"},
		{"wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", 8192, "f8"},
		{"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", 8192, "f16"},
		{"mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", 4096, "f16"},
		{"wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.bf16.bf16", 32768, "f16"},
		{"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", 0, "f16"},
		{"tcgen05.mma.cta_group::1.kind::f8f6f4", 0, "f8"},
	} {
		if got := TensorOperations(c.op); got != c.want || TensorType(c.op) != c.typ {
			t.Errorf("%s: got %d operations of %s, want %d of %s", c.op, got, TensorType(c.op), c.want, c.typ)
		}
	}
}

// TestOccupancy compares limits with those of Nsight Compute on an H100.
func TestOccupancy(t *testing.T) {
	h100, err := Named("h100")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                         string
		threads, registers, shared   int
		warps, byRegisters, byShared int // blocks
		share                        float64
		limiter                      string
	}{
		{"threads", 256, 18, 0, 8, 10, 32, 1, "threads"},
		{"few registers", 256, 16, 256, 8, 16, 32, 1, "threads"},
		{"registers", 256, 40, 0, 8, 6, 32, 0.75, "registers"},
		{"shared memory", 128, 32, 50 << 10, 16, 16, 4, 0.25, "shared memory"},
		{"blocks", 32, 16, 0, 64, 128, 32, 0.5, "blocks"},
	} {
		l := Launch{Grid: [3]int{264, 1, 1}, Block: [3]int{c.threads, 1, 1}, Registers: c.registers, StaticShared: c.shared}
		o := h100.Occupancy(&l)
		if o.ByWarps != c.warps || o.ByRegisters != c.byRegisters || o.ByShared != c.byShared || o.Warps != c.share ||
			o.Limiter() != c.limiter {
			t.Errorf("%s: got %+v limited by %s, want %+v", c.name, o, o.Limiter(), c)
		}
		if want := 264 / float64(o.Blocks*132); math.Abs(o.Waves-want) > 1e-9 {
			t.Errorf("%s: got %g waves, want %g", c.name, o.Waves, want)
		}
	}
	if _, err := Named("B300"); err == nil {
		t.Error("an unknown GPU has limits")
	}
}

func TestMerge(t *testing.T) {
	launch := func(kernel string, warps uint64, stride Stride) Launch {
		return Launch{Kernel: kernel, Launches: 1, Blocks: 1, Cold: 3, AtomicChain: warps,
			Rows: []Row{{"a.cu", 7, "ld.global.f32", Counts{Warps: warps, GlobalStride: stride}}}}
	}
	all := Merge(nil, launch("k", 1, 4))
	all = Merge(all, launch("other", 1, 4))
	all = Merge(all, launch("k", 2, 8))
	if len(all) != 2 || all[0].Launches != 2 || all[0].Cold != 6 || all[0].AtomicChain != 2 {
		t.Fatalf("got %+v", all)
	}
	if r := all[0].Rows; len(r) != 1 || r[0].Warps != 3 || r[0].GlobalStride != Varies {
		t.Errorf("got rows %+v", r)
	}
	all = nil
	for _, instance := range []string{"k<1>", "k<2>", "k<1>"} {
		l := launch("k", 1, 4)
		l.Instance, l.Grid, l.Block = instance, [3]int{1, 1, 1}, [3]int{32, 1, 1}
		all = Merge(all, l)
	}
	if len(all) != 2 || all[0].Launches != 2 || all[1].Instance != "k<2>" {
		t.Fatalf("got %+v", all)
	}
}

// TestBounds checks the parts of a time, and that only limits are added to the least time.
func TestBounds(t *testing.T) {
	g := GPU{Name: "X", Processors: 10, Clock: 1e9, DRAM: 32e9, Tensor: map[string]float64{"f16": 1000}, Empty: 1e-6}
	l := Launch{Launches: 2, Grid: [3]int{5, 1, 1}, Blocks: 10, Cold: 2000, Written: 2000, Rows: []Row{
		{Op: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", Counts: Counts{Operations: 20_000_000}},
		{Op: "ld.shared.f32", Counts: Counts{Waves: 100_000}}}}
	parts, least := g.Bounds(&l)
	got := map[string]Bound{}
	for _, b := range parts {
		got[b.What] = b
	}
	for what, want := range map[string]Bound{"DRAM": {"DRAM", 2e-6, false}, "tensor cores": {"tensor cores", 2e-6, false},
		"shared memory": {"shared memory", 10e-6, true}} {
		if b := got[what]; math.Abs(b.Seconds-want.Seconds) > 1e-12 || b.Estimate != want.Estimate {
			t.Errorf("%s: got %+v, want %+v", what, b, want)
		}
	}
	if parts[0].Estimate || parts[2].What != "shared memory" || math.Abs(least-3e-6) > 1e-12 {
		t.Errorf("got %+v and at least %g s, want 3e-6", parts, least)
	}
	l.Proved = true
	if _, least := g.Bounds(&l); math.Abs(least-11e-6) > 1e-12 {
		t.Errorf("with compared machine code: got at least %g s, want 11e-6", least)
	}
	l.Blocks = 4 // of 10
	if parts, _ := g.Bounds(&l); !parts[0].Estimate || math.Abs(parts[0].Seconds-25e-6) > 1e-12 {
		t.Errorf("sampled: got %+v, want 25e-6 as an estimate", parts[0])
	}
}

func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		row  Row
		want string
	}{
		{Row{Op: "ld.global.f32", Counts: Counts{Warps: 1, Threads: 32, Requests: 1, Sectors: 4, Least: 4}}, ""},
		{Row{Op: "ld.global.f32", Counts: Counts{Warps: 1, Threads: 32, Requests: 1, Sectors: 32, Least: 4,
			GlobalStride: -512}},
			"32.0 sectors per request, 4.0 would do: neighbouring lanes are 512 bytes apart"},
		{Row{Op: "ld.shared.f32", Counts: Counts{Warps: 1, Threads: 32, Shared: 1, Waves: 32, Ideal: 1, Conflicts: 31,
			SharedStride: 128}}, "bank conflicts, neighbouring lanes are 128 bytes apart; a row of 132 bytes would have none"},
		{Row{Op: "ld.shared.f32", Counts: Counts{Warps: 20, Threads: 640, Shared: 20, Waves: 21, Ideal: 20,
			Conflicts: 1}}, ""},
		{Row{Op: "bra", Counts: Counts{Warps: 10, Threads: 320, Divergent: 5}}, "the lanes part in 50 % of 10 executions"},
		{Row{Op: "ld.global.f32", Counts: Counts{Warps: 1, Threads: 8, Requests: 1, Sectors: 1, Least: 1}},
			"8.0 of 32 lanes take part"},
	} {
		if got := strings.Join(Advice(&c.row), "\n"); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.row, got, c.want)
		}
	}
}

// TestMetrics checks the names, sums and kinds of figures.
func TestMetrics(t *testing.T) {
	l := Launch{Launches: 1, Grid: [3]int{4, 1, 1}, Block: [3]int{64, 1, 1}, Blocks: 4, Registers: 32, Cold: 10,
		Proved: true, Rows: []Row{
			{Op: "ld.global.f32", Counts: Counts{Warps: 8, Threads: 256, Active: 200, Requests: 8, Sectors: 64, Least: 32}},
			{Op: "cp.async.ca.shared.global", Counts: Counts{Warps: 1, Requests: 1, Sectors: 16, Least: 16, Shared: 1,
				Waves: 4}},
			{Op: "red.global.add.f32", Counts: Counts{Warps: 2, Requests: 2, Sectors: 2, Least: 2}},
			{Op: "ld.shared.f32", Counts: Counts{Warps: 1, Shared: 1, Waves: 32, Ideal: 1, Conflicts: 31}},
			{Op: "bra", Counts: Counts{Warps: 8, Divergent: 3}},
			{Op: "fma.rn.f32", Counts: Counts{Active: 100}}, {Op: "fma.rn.ftz.f32", Counts: Counts{Active: 1}}}}
	check := func(name string, value float64, kind Kind) {
		t.Helper()
		got, ok := l.Metrics(&GPUs[0])[name]
		if !ok || got.Value != value || got.Kind != kind {
			t.Errorf("%s: got %+v, want %g (%s)", name, got, value, kind)
		}
	}
	check("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", 9, Exact)
	check("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 80, Exact)
	check("l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum", 2, Limit)
	check("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", 31, Exact)
	check("memory_l1_wavefronts_shared", 36, Estimate)
	check("smsp__inst_executed.sum", 20, PTX)
	check("smsp__branch_targets_threads_divergent", 3, PTX)
	check("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", 101, PTX)
	check("dram__bytes_read.sum", 320, Limit)
	check("launch__registers_per_thread", 32, Exact)
	l.Registers = 10
	check("launch__registers_per_thread", 16, Exact)
	check("sm__maximum_warps_per_active_cycle_pct", 100, Exact)
	l.Registers = 0 // unknown
	check("sm__maximum_warps_per_active_cycle_pct", 100, Estimate)
	l.Differences = []Difference{{"a.cu", 1, "ptxas merged 4 of 32 bits into one of 128"}}
	check("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 80, PTX)
	l.Blocks = 2
	check("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 160, Estimate)
	check("dram__bytes_read.sum", 640, Estimate)
}

// TestCheck rejects launches of a forged record, whose sizes would overflow.
func TestCheck(t *testing.T) {
	good := Launch{Launches: 1, Blocks: 1, Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, Cluster: [3]int{1, 1, 1}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Launch){
		"no grid":          func(l *Launch) { l.Grid[1] = 0 },
		"large grid":       func(l *Launch) { l.Grid = [3]int{1 << 30, 1 << 30, 1 << 30} },
		"large block":      func(l *Launch) { l.Block = [3]int{512, 512, 1} },
		"no block counted": func(l *Launch) { l.Blocks = 0 },
		"registers":        func(l *Launch) { l.Registers = 1 << 60 },
		"shared memory":    func(l *Launch) { l.DynamicShared = -2048 },
		"no launch":        func(l *Launch) { l.Launches = 0 },
	} {
		l := good
		if change(&l); l.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
