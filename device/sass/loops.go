package sass

import "slices"

// maxDepth is the largest number of nested loops that depths tells apart.
const maxDepth = 8

// A flow describes the place of an instruction in the control flow of its function.
type flow struct {
	loop   int  // number of loops around it
	always bool // executed in each iteration of the innermost loop, or without a loop in each call
}

// flows returns the place of each node of a control flow graph, in which edges lead from a node to those in next. A
// loop is a strongly connected component; without its entries only the inner loops remain. The first node is the entry
// of the graph, the last its end; nodes that cannot be reached are in no loop.
func flows(next [][]int32) []flow {
	all := make([]flow, len(next))
	part := reachable(next) // loop that a node is in; -1: none
	if len(next) > 0 {
		markAlways(all, next, part, 0, int32(len(next)-1))
	}
	for range maxDepth {
		component, cyclic := components(next, part)
		entry := make([]bool, len(next))
		entries := make([]int, len(cyclic))
		for from := range next {
			for _, to := range next[from] {
				if c := component[to]; component[from] != c && c >= 0 && !entry[to] {
					entry[to] = true
					entries[c]++
				}
			}
		}
		if len(next) > 0 && component[0] >= 0 && !entry[0] {
			entry[0] = true
			entries[component[0]]++
		}
		for i, c := range component {
			if c >= 0 && cyclic[c] {
				all[i] = flow{loop: all[i].loop + 1}
			}
		}
		inner := false
		for i, c := range component {
			part[i] = -1
			switch {
			case c < 0 || !cyclic[c]:
			case !entry[i]:
				part[i], inner = c, true
			case entries[c] == 1:
				markAlways(all, next, component, int32(i), int32(i))
			}
		}
		if !inner {
			break
		}
	}
	return all
}

// markAlways marks the nodes that are on all ways from entry to end, of which all but end stay in the part of entry.
func markAlways(all []flow, next [][]int32, part []int32, entry, end int32) {
	// One such way, by the shortest.
	from := map[int32]int32{entry: -1}
	last := int32(-1)
	for queue := []int32{entry}; len(queue) > 0 && last < 0; queue = queue[1:] {
		i := queue[0]
		if slices.Contains(next[i], end) {
			last = i
		}
		for _, to := range next[i] {
			if _, seen := from[to]; !seen && part[to] == part[entry] {
				from[to] = i
				queue = append(queue, to)
			}
		}
	}
	var way []int32
	for i := last; i >= 0; i = from[i] {
		way = append(way, i)
	}
	slices.Reverse(way)
	at := map[int32]int{}
	for i, node := range way {
		at[node] = i
	}
	// A node of it is avoided if nodes before it lead around it.
	far := 0
	seen := map[int32]bool{}
	for i, node := range way {
		if far <= i {
			all[node].always = true
		}
		for stack := []int32{node}; len(stack) > 0; {
			from := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, to := range next[from] {
				if j, on := at[to]; to == end {
					far = len(way)
				} else if on {
					far = max(far, j)
				} else if !seen[to] && part[to] == part[entry] {
					seen[to] = true
					stack = append(stack, to)
				}
			}
		}
	}
}

// reachable returns 0 for the nodes that can be reached from the first, and -1 for the others.
func reachable(next [][]int32) []int32 {
	part := slices.Repeat([]int32{-1}, len(next))
	var stack []int32
	if len(next) > 0 {
		part[0], stack = 0, append(stack, 0)
	}
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, to := range next[i] {
			if part[to] < 0 {
				part[to], stack = 0, append(stack, to)
			}
		}
	}
	return part
}

// components returns the strongly connected component of each node by Tarjan's algorithm, and whether a component has
// a cycle. Edges between parts do not count; nodes of the part -1 have the component -1.
func components(next [][]int32, part []int32) (component []int32, cyclic []bool) {
	component = slices.Repeat([]int32{-1}, len(next))
	order, low := make([]int32, len(next)), make([]int32, len(next)) // 0: not visited
	edge := make([]int, len(next))                                   // number of edges visited
	var path, open []int32
	count := int32(0)
	for root := range next {
		if part[root] < 0 || order[root] != 0 {
			continue
		}
		path = append(path, int32(root))
		for len(path) > 0 {
			i := path[len(path)-1]
			if order[i] == 0 {
				count++
				order[i], low[i] = count, count
				open = append(open, i)
			}
			if edge[i] < len(next[i]) {
				to := next[i][edge[i]]
				edge[i]++
				switch {
				case part[to] != part[i]:
				case order[to] == 0:
					path = append(path, to)
				case component[to] < 0:
					low[i] = min(low[i], order[to])
				}
				continue
			}
			path = path[:len(path)-1]
			if len(path) > 0 {
				from := path[len(path)-1]
				low[from] = min(low[from], low[i])
			}
			if low[i] != order[i] {
				continue
			}
			at := len(open) - 1
			for open[at] != i {
				at--
			}
			for _, m := range open[at:] {
				component[m] = int32(len(cyclic))
			}
			cyclic = append(cyclic, len(open)-at > 1 || slices.Contains(next[i], i))
			open = open[:at]
		}
	}
	return component, cyclic
}
