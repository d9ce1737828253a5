package workloads

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/trace"
	"fisub/internal/usage"
)

// A Choice selects workloads of a set. Each field narrows the selection of the fields before it; its zero value selects
// all.
type Choice struct {
	Where    []string // "batch_size=64", "total_tokens=1000..4000", "len=..64": all must hold
	Prefixes []string // prefixes of uuids
	Stride   int      // the first of every Stride
	Sample   int      // this many, spread over the axes
	Limit    int      // the first Limit
}

// All reports whether c selects all workloads.
func (c *Choice) All() bool {
	return len(c.Where) == 0 && len(c.Prefixes) == 0 && c.Stride == 0 && c.Sample == 0 && c.Limit == 0
}

// Of returns the chosen workloads of ws, in their order.
func (c *Choice) Of(ws []*trace.Workload) ([]*trace.Workload, error) {
	ws = slices.Clone(ws)
	for _, where := range c.Where {
		holds, err := condition(where, ws)
		if err != nil {
			return nil, err
		}
		if ws = slices.DeleteFunc(ws, func(w *trace.Workload) bool { return !holds(w) }); len(ws) == 0 {
			return nil, usage.Errorf("fisub dataset ls -v lists the axes", "--where %s: no matching workload", where)
		}
	}
	unused := slices.Clone(c.Prefixes)
	if len(unused) > 0 {
		ws = slices.DeleteFunc(ws, func(w *trace.Workload) bool {
			begins := func(prefix string) bool { return strings.HasPrefix(w.UUID, prefix) }
			unused = slices.DeleteFunc(unused, begins)
			return !slices.ContainsFunc(c.Prefixes, begins)
		})
	}
	if len(unused) > 0 {
		return nil, usage.Errorf("fisub dataset ls -v lists the uuids",
			"--workload: no workload of the set begins with %q", unused[0])
	}
	if c.Stride > 1 {
		n := -1
		ws = slices.DeleteFunc(ws, func(*trace.Workload) bool { n++; return n%c.Stride != 0 })
	}
	if c.Sample > 0 && c.Sample < len(ws) {
		ws = spread(ws, c.Sample)
	}
	if c.Limit > 0 {
		ws = ws[:min(c.Limit, len(ws))]
	}
	return ws, nil
}

// condition parses AXIS=N or AXIS=N..M; either end may be omitted.
func condition(text string, ws []*trace.Workload) (func(*trace.Workload) bool, error) {
	axis, value, ok := strings.Cut(text, "=")
	from, to, interval := strings.Cut(value, "..")
	least, most := math.MinInt, math.MaxInt
	var low, high error
	if from != "" || !interval {
		least, low = strconv.Atoi(from)
	}
	if most = least; interval {
		if most = math.MaxInt; to != "" {
			most, high = strconv.Atoi(to)
		}
	}
	if !ok || cmp.Or(low, high) != nil || least > most {
		return nil, usage.Errorf("such as batch_size=64, total_tokens=1000..4000 or len=..64", "--where: %q", text)
	}
	axes := map[string]bool{}
	for _, w := range ws {
		for name := range w.Axes.All() {
			axes[name] = true
		}
	}
	if !axes[axis] {
		return nil, usage.Unknown("axis", axis, slices.Sorted(maps.Keys(axes)))
	}
	return func(w *trace.Workload) bool {
		n, ok := w.Axes.Get(axis)
		return ok && n >= least && n <= most
	}, nil
}

// spread returns n of ws. The size of a workload is the product of its axes. spread takes one workload of each size,
// from the smallest to the largest; with too many sizes it takes evenly spaced ones, with too few it repeats. If the
// workloads have several sequences, half of the n are spread over the mean sequence length instead, from the longest.
func spread(ws []*trace.Workload, n int) []*trace.Workload {
	taken := map[*trace.Workload]bool{}
	take := func(upTo int, key func(*trace.Workload) float64) {
		sizes := map[float64][]*trace.Workload{}
		for _, w := range ws {
			if !taken[w] {
				sizes[key(w)] = append(sizes[key(w)], w)
			}
		}
		for len(taken) < upTo {
			left := slices.Sorted(maps.Keys(sizes))
			take := min(upTo-len(taken), len(left))
			for i := range take {
				at := left[(len(left)-1)*i/max(take-1, 1)]
				taken[sizes[at][0]] = true
				if sizes[at] = sizes[at][1:]; len(sizes[at]) == 0 {
					delete(sizes, at)
				}
			}
		}
	}
	bySize := n
	if slices.ContainsFunc(ws, func(w *trace.Workload) bool { return length(w) > 0 }) {
		bySize = (n + 1) / 2
	}
	take(bySize, func(w *trace.Workload) (log float64) {
		for _, x := range w.Axes.All() {
			log += math.Log1p(float64(max(x, 0)))
		}
		return log
	})
	take(n, func(w *trace.Workload) float64 { return -length(w) })
	return slices.DeleteFunc(ws, func(w *trace.Workload) bool { return !taken[w] })
}

// length returns the mean number of tokens of the sequences in a workload, 0 if it does not pack sequences.
func length(w *trace.Workload) float64 {
	tokens, ok := w.Axes.Get("total_seq_len")
	sequences, several := w.Axes.Get("num_seqs")
	if !ok || !several || sequences <= 0 {
		return 0
	}
	return float64(tokens) / float64(sequences)
}

// Evenly reorders ws so that every prefix of the result is spread over the axes.
func Evenly(ws []*trace.Workload) (ordered []*trace.Workload) {
	for n := 2; len(ordered) < len(ws); n *= 2 {
		for _, w := range spread(slices.Clone(ws), min(n, len(ws))) {
			if !slices.Contains(ordered, w) {
				ordered = append(ordered, w)
			}
		}
	}
	return ordered
}
