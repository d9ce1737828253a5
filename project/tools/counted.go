package tools

import (
	"maps"
	"slices"
	"strings"

	"fisub/device/counters"
)

// countedNames has the names of figures that the virtual GPU counts, by ncu's metric. Others have ncu's name.
var countedNames = map[string]string{
	"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum":          "load_requests",
	"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum":           "load_sectors",
	"l1tex__t_requests_pipe_lsu_mem_global_op_st.sum":          "store_requests",
	"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum":           "store_sectors",
	"memory_l1_wavefronts_shared":                              "shared_wavefronts",
	"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "load_conflicts",
	"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": "store_conflicts",
	"smsp__branch_targets_threads_divergent":                   "divergent_branches",
	"launch__occupancy_limit_blocks":                           "limit_blocks",
	"launch__occupancy_limit_warps":                            "limit_warps",
	"launch__occupancy_limit_registers":                        "limit_registers",
}

// Kernels returns the counters of launches as the kernels of a profile, with the least times on gpu.
func Kernels(all []counters.Launch, gpu *counters.GPU) (kernels []ProfiledKernel) {
	names := maps.Clone(countedNames)
	for _, f := range figures {
		names[f.metric] = f.name
	}
	for i := range all {
		l := &all[i]
		o := gpu.Occupancy(l)
		k, occupancy := ProfiledKernel{Name: l.Kernel, Limiter: o.Limiter()}, counters.Exact
		if l.Registers == 0 {
			k.Limiter, occupancy = "", counters.Estimate
		}
		add := func(name, metric, unit string, value float64, kind counters.Kind) {
			k.Figures = append(k.Figures, Figure{Name: name, Metric: metric, Value: &value, Unit: unit, Kind: kind})
		}
		_, least := gpu.Bounds(l)
		kind := counters.Limit
		if l.Sampled() {
			kind = counters.Estimate
		}
		add("least_time", "", "ns", least*1e9, kind)
		add("resident_blocks", "", "", float64(o.Blocks), occupancy)
		metrics := l.Metrics(gpu)
		for _, metric := range slices.Sorted(maps.Keys(metrics)) {
			unit := ""
			switch {
			case strings.Contains(metric, "bytes") || strings.Contains(metric, "shared_mem_per_block"):
				unit = "byte"
			case strings.HasSuffix(metric, "_pct"):
				unit = "%"
			}
			name := names[metric]
			if name == "" {
				name = metric
			}
			add(name, metric, unit, metrics[metric].Value, metrics[metric].Kind)
		}
		kernels = append(kernels, k)
	}
	return kernels
}
