package counters

import "strings"

// A Kind says how a figure relates to the one of Nsight Compute.
type Kind string

const (
	Exact    Kind = "exact"    // equal
	PTX      Kind = "PTX"      // of the PTX; the machine code may differ
	Limit    Kind = "bound"    // the GPU's is at least as large
	Estimate Kind = "estimate" // close
)

// A Metric is a figure of a launch under its name in Nsight Compute.
type Metric struct {
	Value float64 `json:"value"`
	Kind  Kind    `json:"kind"`
}

// metricOps are the parts of names that stand for instructions.
var metricOps = []struct {
	name          string
	classes       []Class
	approximation Kind // of sectors; "" if they are exact
}{
	{"ld", []Class{GlobalLoad, AsyncCopy}, ""},
	{"st", []Class{GlobalStore}, ""},
	{"red", []Class{GlobalReduce}, Limit}, // lanes at one address take several passes
	{"atom", []Class{GlobalAtomic}, Limit},
}

// flopOps are the parts of names that stand for floating-point instructions, by the PTX's name and type.
var flopOps = map[string]string{"fma.f32": "ffma", "add.f32": "fadd", "sub.f32": "fadd", "mul.f32": "fmul",
	"fma.f64": "dfma", "add.f64": "dadd", "sub.f64": "dadd", "mul.f64": "dmul", "fma.f16x2": "hfma", "fma.f16": "hfma",
	"add.f16x2": "hadd", "add.f16": "hadd", "mul.f16x2": "hmul", "mul.f16": "hmul"}

// fewestRegisters is the smallest number of registers that a GPU gives a thread (H100).
const fewestRegisters = 16

// Metrics returns the figures of a launch on g, by name. Those of several launches are sums.
func (l *Launch) Metrics(g *GPU) map[string]Metric {
	all := map[string]Metric{}
	memory := Exact
	switch {
	case l.Sampled():
		memory = Estimate
	case !l.Proved || len(l.Differences) > 0:
		memory = PTX
	}
	code := PTX
	if l.Sampled() {
		code = Estimate
	}
	scale := l.scale()
	set := func(name string, value uint64, kind Kind) { all[name] = Metric{float64(value) * scale, kind} }
	var sum, global Counts
	by := map[Class]*Counts{}
	for i := range l.Rows {
		r := &l.Rows[i]
		c := ClassOf(r.Op)
		if by[c] == nil {
			by[c] = &Counts{}
		}
		by[c].Add(r.Counts)
		sum.Add(r.Counts)
		if c != BulkCopy && c != TensorCopy {
			global.Add(r.Counts)
		}
		parts := strings.Split(r.Op, ".")
		if op, ok := flopOps[parts[0]+"."+parts[len(parts)-1]]; ok {
			name := "smsp__sass_thread_inst_executed_op_" + op + "_pred_on.sum"
			all[name] = Metric{all[name].Value + float64(r.Active)*scale, code}
		}
	}
	of := func(classes ...Class) (c Counts) {
		for _, class := range classes {
			if by[class] != nil {
				c.Add(*by[class])
			}
		}
		return c
	}
	for _, op := range metricOps {
		c, kind := of(op.classes...), memory
		set("l1tex__t_requests_pipe_lsu_mem_global_op_"+op.name+".sum", c.Requests, kind)
		if op.approximation != "" {
			kind = op.approximation
		}
		set("l1tex__t_sectors_pipe_lsu_mem_global_op_"+op.name+".sum", c.Sectors, kind)
	}
	set("memory_l1_tag_requests_global", global.Lines, memory)
	set("memory_l2_theoretical_sectors_global", global.Sectors, memory)
	set("memory_l2_theoretical_sectors_global_ideal", global.Least, memory)
	for op, classes := range map[string][]Class{"ld": {SharedLoad, LoadMatrix, GlobalLoad},
		"st": {SharedStore, StoreMatrix, GlobalStore}} {
		c := of(classes...)
		set("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"+op+".sum", c.Waves, memory)
		set("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_"+op+".sum", c.Conflicts, memory)
	}
	shared := memory
	if by[AsyncCopy] != nil || by[Tensor] != nil {
		shared = Estimate // wgmma reads shared memory, too, and cp.async may take more wavefronts
	}
	set("memory_l1_wavefronts_shared", sum.Waves, shared)
	set("memory_l1_wavefronts_shared_ideal", sum.Ideal, shared)
	set("smsp__inst_executed.sum", sum.Warps, code)
	set("smsp__thread_inst_executed.sum", sum.Threads, code)
	set("smsp__thread_inst_executed_pred_on.sum", sum.Active, code)
	branches := of(Branch)
	set("branch_inst_executed", branches.Warps, code)
	set("smsp__branch_targets_threads_divergent", branches.Divergent, code)
	dram := Limit
	if l.Sampled() {
		dram = Estimate
	}
	set("dram__bytes_read.sum", l.Cold*32, dram)
	o, kind := g.Occupancy(l), Exact
	if l.Registers == 0 {
		kind = Estimate
	}
	all["sm__maximum_warps_per_active_cycle_pct"] = Metric{100 * o.Warps, kind}
	all["launch__waves_per_multiprocessor"] = Metric{o.Waves, kind}
	for name, value := range map[string]float64{"launch__grid_size": float64(l.GridBlocks()),
		"launch__block_size":                   float64(l.Threads()),
		"launch__shared_mem_per_block_static":  float64(l.StaticShared),
		"launch__shared_mem_per_block_dynamic": float64(l.DynamicShared),
		"launch__occupancy_limit_blocks":       float64(o.ByBlocks),
		"launch__occupancy_limit_warps":        float64(o.ByWarps)} {
		all[name] = Metric{value, Exact}
	}
	if l.Registers > 0 {
		all["launch__registers_per_thread"] = Metric{float64(max(l.Registers, fewestRegisters)), Exact}
		all["launch__occupancy_limit_registers"] = Metric{float64(o.ByRegisters), Exact}
	}
	return all
}
