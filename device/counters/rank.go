package counters

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"fisub/internal/plain"
)

// A Variant is a version of a solution or program, with the launches of one call.
type Variant struct {
	Name     string
	Launches []Launch
}

// A Ranking compares variants by their counts, which say nothing certain about their times.
type Ranking struct {
	GPU      string   `json:"gpu"` // of the least times and the occupancy
	Workload string   `json:"workload,omitempty"`
	Variants []Ranked `json:"variants"` // in the order given; the others are compared with the first
}

// A Ranked is a variant of a Ranking. It comes before another one if its least time is smaller, or else if its sectors,
// wavefronts and instructions take fewer cycles (an estimate). Differences below 1 % do not count, nor below 5 % if one
// of the figures is an estimate.
type Ranked struct {
	Name    string            `json:"name"`
	Place   int               `json:"place"`             // from 1; equal variants share a place
	Figures map[string]Metric `json:"figures"`           // of all launches; those of a launch if they are equal for all
	Changes []Change          `json:"changes,omitempty"` // the largest first, at most five per kernel
}

// A Change is the difference of a figure between a variant and the first one.
type Change struct {
	Kernel string  `json:"kernel,omitempty"` // if the variants have several kernels, with the same names
	Figure string  `json:"figure"`           // "shared wavefronts"
	Before float64 `json:"before"`           // of the first variant
	After  float64 `json:"after"`
	Kind   Kind    `json:"kind"`
	Text   string  `json:"text"` // "38 % fewer shared wavefronts"
}

// short is a least time, in µs, below which the real time depends little on the counts.
const short = 2

// Figures of a Ranking.
const (
	leastTime = "least time" // sum of the launches' least times, in µs
	waves     = "shared wavefronts"
	conflicts = "bank conflicts"
	tensorOps = "tensor operations"
	registers = "registers"
	local     = "bytes of local memory" // spills, too
	resident  = "blocks per multiprocessor"
	occupancy = "occupancy" // in per cent
)

var (
	figureNames = []string{leastTime, "warp instructions", "cold bytes", "global sectors", waves, conflicts, tensorOps,
		registers, local, "blocks", resident, occupancy}
	// sums has the metrics that figures consist of.
	sums = map[string][]string{"warp instructions": {"smsp__inst_executed.sum"}, "cold bytes": {"dram__bytes_read.sum"},
		"blocks": {"launch__grid_size"}, "global sectors": {"memory_l2_theoretical_sectors_global"},
		waves: {"memory_l1_wavefronts_shared"}, conflicts: {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
			"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"}}
)

// totals returns the figures of launches.
func totals(launches []Launch, g *GPU) map[string]Metric {
	all := map[string]Metric{}
	kinds := []Kind{"", Exact, PTX, Limit, Estimate}
	add := func(name string, value float64, kind Kind) {
		old := all[name]
		all[name] = Metric{old.Value + value, kinds[max(slices.Index(kinds, old.Kind), slices.Index(kinds, kind))]}
	}
	for i := range launches {
		l := &launches[i]
		_, least := g.Bounds(l)
		metrics := l.Metrics(g)
		add(leastTime, float64(l.Launches)*least*1e6, metrics["dram__bytes_read.sum"].Kind)
		for name, parts := range sums {
			for _, part := range parts {
				add(name, metrics[part].Value, metrics[part].Kind)
			}
		}
		for _, r := range l.Rows {
			if ClassOf(r.Op) == Tensor {
				add(tensorOps, float64(r.Operations)*l.scale(), metrics["memory_l1_tag_requests_global"].Kind)
			}
		}
		o := g.Occupancy(l)
		for name, value := range map[string]float64{registers: metrics["launch__registers_per_thread"].Value,
			local: float64(l.Local), resident: float64(o.Blocks), occupancy: 100 * o.Warps} {
			if old, ok := all[name]; ok && old.Value != value || name != local && l.Registers == 0 {
				value = math.NaN() // not the same, or unknown
			}
			all[name] = Metric{value, Exact}
		}
	}
	maps.DeleteFunc(all, func(_ string, m Metric) bool { return math.IsNaN(m.Value) })
	return all
}

// Rank compares the variants, at least one and each with launches, with the first. It returns nil if their workloads
// differ.
func Rank(variants []Variant, g *GPU) *Ranking {
	r := &Ranking{GPU: g.Name, Workload: variants[0].Launches[0].Workload}
	if slices.ContainsFunc(variants, func(v Variant) bool { return v.Launches[0].Workload != r.Workload }) {
		return nil
	}
	names := variants[0].kernels()
	if len(names) < 2 || slices.ContainsFunc(variants, func(v Variant) bool { return !slices.Equal(v.kernels(), names) }) {
		names = []string{""}
	}
	cycles := make([]Metric, len(variants)) // of a multiprocessor
	for i, v := range variants {
		ranked := Ranked{Name: v.Name, Figures: totals(v.Launches, g)}
		cycles[i].Kind = ranked.Figures[leastTime].Kind
		for n := range v.Launches {
			l := &v.Launches[n]
			for k := range l.Rows {
				cycles[i].Value += l.Rows[k].cost() * l.scale() / float64(min(g.Processors, l.GridBlocks()))
			}
		}
		for _, name := range names {
			ranked.Changes = append(ranked.Changes, changes(name, variants[0].of(name), v.of(name), g)...)
		}
		r.Variants = append(r.Variants, ranked)
	}
	for i := range r.Variants {
		r.Variants[i].Place = 1
		for j := range r.Variants {
			a, b := r.Variants[j].Figures[leastTime], r.Variants[i].Figures[leastTime]
			if !differ(a, b) {
				a, b = cycles[j], cycles[i]
			}
			if differ(a, b) && a.Value < b.Value {
				r.Variants[i].Place++
			}
		}
	}
	return r
}

// kernels returns the sorted names of the kernels.
func (v Variant) kernels() (names []string) {
	for _, l := range v.Launches {
		names = append(names, l.Kernel)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// of returns the launches of a kernel, or all if the name is "".
func (v Variant) of(kernel string) []Launch {
	return slices.DeleteFunc(slices.Clone(v.Launches), func(l Launch) bool { return kernel != "" && l.Kernel != kernel })
}

// differ reports whether two figures differ by a useful amount: 1 %, or 5 % for estimates.
func differ(a, b Metric) bool {
	least := 0.01
	if a.Kind == Estimate || b.Kind == Estimate {
		least = 0.05
	}
	return math.Abs(a.Value-b.Value) > least*max(a.Value, b.Value)
}

// changes returns the five largest differences between the launches a and b.
func changes(kernel string, a, b []Launch, g *GPU) (list []Change) {
	before, after := totals(a, g), totals(b, g)
	alike := a[0].Threads() == b[0].Threads() // else numbers of blocks do not say which has more warps
	for _, name := range figureNames {
		from, known := before[name]
		to, too := after[name]
		switch {
		case !differ(from, to) || (!known || !too) && name != tensorOps:
		case name == conflicts && math.Abs(from.Value-to.Value) < 0.01*max(before[waves].Value, after[waves].Value):
		case name == resident && !alike || name == occupancy && alike:
		default:
			list = append(list, Change{kernel, name, from.Value, to.Value, cmp.Or(to.Kind, from.Kind),
				changeText(name, from.Value, to.Value)})
		}
	}
	slices.SortStableFunc(list, func(a, b Change) int {
		return cmp.Compare(math.Abs(math.Log(b.After/b.Before)), math.Abs(math.Log(a.After/a.Before)))
	})
	return list[:min(5, len(list))]
}

func changeText(name string, before, after float64) string {
	ratio, more := after/before, "more"
	if ratio < 1 {
		more = "fewer"
	}
	switch {
	case name == leastTime:
		return fmt.Sprintf("a least time of %.2f µs instead of %.2f", after, before)
	case name == resident:
		return fmt.Sprintf("%s per multiprocessor instead of %.0f", count(int(after), "block"), before)
	case name == occupancy:
		return fmt.Sprintf("an occupancy of %.0f %% instead of %.0f %%", after, before)
	case after == 0:
		return fmt.Sprintf("no %s instead of %s", name, large(before))
	case before == 0:
		return fmt.Sprintf("%s %s instead of none", large(after), name)
	case name == registers || name == local:
		return fmt.Sprintf("%.0f %s %s", math.Abs(after-before), more, name)
	case ratio >= 2:
		return fmt.Sprintf("%.3g times as many %s", ratio, name)
	case ratio > 0.02:
		return fmt.Sprintf("%.2g %% %s %s", 100*math.Abs(ratio-1), more, name)
	}
	return fmt.Sprintf("1/%.0f of the %s", 1/ratio, name)
}

// Text returns the changes of a variant as one line, or a line for each kernel.
func (r *Ranked) Text() string {
	text, kernel, comma := plain.Line(r.Name)+":", "", " "
	for _, c := range r.Changes {
		if c.Kernel != kernel {
			text, kernel, comma = text+"\n  "+plain.Cut(c.Kernel, 60)+":", c.Kernel, " "
		}
		text, comma = text+comma+c.Text, ", "
	}
	if len(r.Changes) == 0 {
		text += " the same counts"
	}
	return text
}

// Table returns a table of the variants with the least time and the figures that differ, as ui.Terminal.Table takes it.
func (r *Ranking) Table() (layout string, rows [][]string) {
	layout, rows = "Lr", [][]string{{"COUNTED", "PLACE"}}
	for _, v := range r.Variants {
		rows = append(rows, []string{plain.Line(v.Name), fmt.Sprint(v.Place)})
	}
	for _, name := range figureNames {
		differs := name == leastTime
		cells := []string{strings.ToUpper(name)}
		for _, v := range r.Variants {
			m := v.Figures[name]
			differs = differs || differ(r.Variants[0].Figures[name], m)
			cell := large(m.Value)
			switch name {
			case leastTime:
				cell = fmt.Sprintf("%.2f µs", m.Value)
			case occupancy:
				cell += " %"
			}
			cells = append(cells, cell)
		}
		for i := range rows {
			if differs {
				rows[i] = append(rows[i], cells[i])
			}
		}
	}
	return layout + strings.Repeat("r", len(rows[0])-2), rows
}

// Text returns the changes of all variants, and a conclusion.
func (r *Ranking) Text() string {
	text := "against " + plain.Line(r.Variants[0].Name)
	if r.Workload != "" {
		text += ", on workload " + plain.Short(r.Workload)
	}
	text += ":\n"
	for i := range r.Variants[1:] {
		text += r.Variants[1+i].Text() + "\n"
	}
	return text + r.conclusion()
}

// conclusion names the first variants and says what decided.
func (r *Ranking) conclusion() string {
	var first []string
	var least Metric // of the first ones
	for _, v := range r.Variants {
		if v.Place == 1 {
			first, least = append(first, plain.Line(v.Name)), v.Figures[leastTime]
		}
	}
	text := "no variant is first by counts"
	if len(first) < len(r.Variants) {
		text = "first by counts, not times: " + plain.List(first, "and")
		if slices.ContainsFunc(r.Variants, func(v Ranked) bool {
			return v.Place > 1 && !differ(v.Figures[leastTime], least)
		}) {
			text += " (equal least times, but fewer cycles for sectors, wavefronts and instructions: an estimate)"
		} else {
			text += " (the smallest least time on " + (&GPU{Name: r.GPU}).withArticle() + ")"
		}
	}
	if slices.ContainsFunc(r.Variants, func(v Ranked) bool { return v.Figures[leastTime].Kind == Estimate }) {
		text += "; not all blocks were counted (estimates)"
	}
	if least.Value < short {
		text += fmt.Sprintf("; below %d µs, latencies decide, and they are not counted: try a larger workload", short)
	}
	return text
}
