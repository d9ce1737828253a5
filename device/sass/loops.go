package sass

import "slices"

// maxDepth is the largest number of nested loops that depths tells apart.
const maxDepth = 8

// depths returns the number of loops around each node of a control flow graph, in which edges lead from a node to those
// in next. A loop is a strongly connected component; without its entries only the inner loops remain. The first node is
// the entry of the graph; nodes that cannot be reached from it have depth 0.
func depths(next [][]int32) []int {
	depth := make([]int, len(next))
	part := reachable(next) // loop that a node is in; -1: none
	for range maxDepth {
		component, cyclic := components(next, part)
		entry := make([]bool, len(next))
		for from := range next {
			for _, to := range next[from] {
				entry[to] = entry[to] || component[from] != component[to]
			}
		}
		inner := false
		for i, c := range component {
			part[i] = -1
			if c < 0 || !cyclic[c] {
				continue
			}
			depth[i]++
			if i > 0 && !entry[i] {
				part[i], inner = c, true
			}
		}
		if !inner {
			break
		}
	}
	return depth
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
